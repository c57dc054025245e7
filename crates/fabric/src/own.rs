//! Addresses of this host, by an interface's name or a prefix: one device name for all hosts of a job.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::open::OpenError;
use crate::udp::sys::{interface_index, named_addresses};

/// A prefix of IP addresses, as `10.1.0.0/16`. Bits behind the prefix do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    ip: IpAddr,
    bits: u8,
}

impl Prefix {
    /// The prefix of so many bits of an address; `None` if the address has fewer.
    pub fn new(ip: IpAddr, bits: u8) -> Option<Self> {
        let most = if ip.is_ipv4() { 32 } else { 128 };
        (bits <= most).then_some(Self { ip, bits })
    }
    /// Whether an address begins with this prefix.
    pub fn holds(&self, other: IpAddr) -> bool {
        let (differ, width) = match (self.ip, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits() ^ b.to_bits()), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits(), 128),
            _ => return false,
        };
        differ.checked_shr(width - u32::from(self.bits)).unwrap_or(0) == 0
    }
}

impl FromStr for Prefix {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (ip, bits) = text.split_once('/').ok_or(())?;
        let ip = ip.strip_prefix('[').and_then(|p| p.strip_suffix(']')).unwrap_or(ip);
        if !bits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(());
        }
        Self::new(ip.parse().map_err(drop)?, bits.parse().map_err(drop)?).ok_or(())
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            IpAddr::V4(ip) => write!(f, "{ip}/{}", self.bits),
            IpAddr::V6(ip) => write!(f, "[{ip}]/{}", self.bits),
        }
    }
}

/// The address of the interface of this name: its IPv4 address; without one its IPv6 address that reaches beyond the
/// link; without one its link-local address.
///
/// # Errors
/// There is no such interface, it has no address, or it has several of the kind that counts.
pub fn address_of(interface: &str) -> Result<IpAddr, OpenError> {
    interface_index(interface)?;
    let own = named_addresses().into_iter().filter(|(name, _)| name == interface);
    let own: Vec<IpAddr> = own.map(|(_, ip)| ip).collect();
    let rank = own.iter().map(kind).min();
    let first = own.iter().copied().filter(|ip| Some(kind(ip)) == rank).collect();
    only(interface, first)?.ok_or_else(|| OpenError::NoAddress { name: interface.to_owned() })
}

/// The address of this host with this prefix, and the name of its interface.
///
/// # Errors
/// No address of this host has the prefix, or several have it.
pub fn address_in(prefix: Prefix) -> Result<(IpAddr, String), OpenError> {
    let all = named_addresses();
    let ip =
        only(&prefix.to_string(), all.iter().map(|(_, ip)| *ip).filter(|ip| prefix.holds(*ip)).collect())?;
    let found = ip.and_then(|ip| all.iter().find(|(_, own)| *own == ip));
    let (name, ip) = found
        .ok_or_else(|| OpenError::NoneWithPrefix { prefix, has: all.iter().map(|(_, ip)| *ip).collect() })?;
    Ok((*ip, name.clone()))
}

/// The order in which an interface's addresses count.
fn kind(ip: &IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => 0,
        IpAddr::V6(ip) if !ip.is_unicast_link_local() => 1,
        IpAddr::V6(_) => 2,
    }
}

/// The only address of these, if there is one.
fn only(what: &str, found: Vec<IpAddr>) -> Result<Option<IpAddr>, OpenError> {
    match found[..] {
        [] => Ok(None),
        [ip] => Ok(Some(ip)),
        _ => Err(OpenError::SeveralAddresses { what: what.to_owned(), has: found }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap_or_else(|()| panic!("{text} is a prefix"))
    }

    #[test]
    fn a_prefix_holds_the_addresses_that_begin_with_it() {
        for (text, inside, outside) in [
            ("10.1.0.0/16", "10.1.255.3", "10.2.0.1"),
            ("10.1.2.3/16", "10.1.0.1", "10.0.2.3"),
            ("127.0.0.1/32", "127.0.0.1", "127.0.0.0"),
            ("0.0.0.0/0", "10.1.2.3", "::1"),
            ("fd00:1::/32", "fd00:1:ffff::2", "fd00:2::2"),
            ("[::]/0", "fd00::1", "10.0.0.1"),
        ] {
            let prefix = prefix(text);
            assert!(prefix.holds(inside.parse().unwrap()), "{text} {inside}");
            assert!(!prefix.holds(outside.parse().unwrap()), "{text} {outside}");
        }
        for text in ["10.1.0.0", "10.1.0.0/33", "10.1.0.0/", "10.1.0.0/+8", "fd00::/129", "lo/8", "10.1.0/16"]
        {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
        }
    }

    #[test]
    fn several_addresses_are_named_and_none_is_taken() {
        let (a, b): (IpAddr, IpAddr) = ([10, 1, 0, 2].into(), [10, 1, 0, 3].into());
        assert_eq!(only("eth0", vec![a]).unwrap(), Some(a));
        assert_eq!(only("eth0", Vec::new()).unwrap(), None);
        let error = only("eth0", vec![a, b]).unwrap_err().to_string();
        for part in ["eth0", "10.1.0.2, 10.1.0.3"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
