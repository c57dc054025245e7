//! Names of endpoints, tags, and the ways below.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use crate::Error;

/// The layer below a bundle. Endpoints of one way map endpoints of the same way only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// Queue pairs, with one shared receive queue and inline sends.
    Verbs,
    /// The VI Architecture: a VI for each peer, two completion queues, descriptors.
    Via,
}

impl Way {
    fn text(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Via => "via",
        }
    }
}

/// The name of an endpoint, by which peers map it. As text it goes over any channel of the program's own:
/// `verbs/10.0.0.2/7471`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EndpointName {
    /// The layer below.
    pub way: Way,
    /// The address of the device.
    pub host: IpAddr,
    /// Tells the endpoints of a host apart.
    pub id: u64,
}

impl EndpointName {
    pub(crate) fn wire_host(&self) -> [u8; 16] {
        match self.host {
            IpAddr::V4(host) => host.to_ipv6_mapped().octets(),
            IpAddr::V6(host) => host.octets(),
        }
    }
    pub(crate) fn of_wire(way: Way, host: [u8; 16], id: u64) -> Self {
        Self { way, host: IpAddr::V6(Ipv6Addr::from(host)).to_canonical(), id }
    }
}

impl fmt::Display for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.way.text(), self.host, self.id)
    }
}

impl FromStr for EndpointName {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        let none = Error::Name("any way: WAY/ADDRESS/NUMBER");
        let mut parts = text.split('/');
        let (Some(way), Some(host), Some(id), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(none);
        };
        let way = [Way::Verbs, Way::Via].into_iter().find(|known| known.text() == way);
        match (way, host.parse(), id.parse()) {
            (Some(way), Ok(host), Ok(id)) => Ok(Self { way, host, id }),
            _ => Err(none),
        }
    }
}

/// The tag of an endpoint: a number that peers have to know. A request with another one is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub u64);

impl Tag {
    /// Of an endpoint: takes requests with any tag (`AM_ALL`).
    pub const ALL: Self = Self(u64::MAX);
    /// Of an endpoint: takes no request (`AM_NONE`).
    pub const NONE: Self = Self(0);

    /// Whether an endpoint with this tag takes requests of a mapping with the other one.
    pub(crate) fn admits(self, asked: Self) -> bool {
        self != Self::NONE && (self == Self::ALL || self == asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_its_text() {
        for text in ["verbs/127.0.0.2/7471", "via/fd00::1/18446744073709551615"] {
            assert_eq!(text.parse::<EndpointName>().unwrap().to_string(), text);
        }
        for text in
            ["", "verbs/127.0.0.2", "verbs/127.0.0.2/x", "vi/127.0.0.2/1", "via/here/1", "via/::1/1/1"]
        {
            assert!(text.parse::<EndpointName>().is_err(), "{text}");
        }
        let name = EndpointName { way: Way::Via, host: "127.0.0.2".parse().unwrap(), id: 5 };
        assert_eq!(EndpointName::of_wire(Way::Via, name.wire_host(), 5), name);
    }

    #[test]
    fn a_tag_admits_itself_all_or_none() {
        assert!(Tag(5).admits(Tag(5)) && !Tag(5).admits(Tag(6)));
        assert!(Tag::ALL.admits(Tag(6)) && !Tag::NONE.admits(Tag::NONE));
    }
}
