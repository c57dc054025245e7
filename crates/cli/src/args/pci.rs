//! The argument of `hca serve --pci`: a socket, and the fixed settings of its function.

use std::path::PathBuf;
use std::str::FromStr;

use softhca_pci::{Fixed, NoRate};

/// A socket, with the fixed settings of its function: `PATH[,mac=…][,ip=…]…[,rate=…]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PciSocket {
    pub path: PathBuf,
    pub fixed: Fixed,
}

/// The reason why that can't be understood.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PciSocketError {
    #[error("there is no path: write it first, as in /tmp/a.sock,ip=10.0.0.5")]
    NoPath,
    #[error(
        "`{0}` is not an option: mac=ADDRESS, ip=ADDRESS and rate=RATE may follow the path, and the path has no commas"
    )]
    Unknown(String),
    #[error("mac={0} is not an Ethernet address: write six bytes, as in mac=02:00:00:00:00:01")]
    Mac(String),
    #[error(
        "ip={0} is not an IP address: write one without a prefix length, as in ip=10.0.0.5 or ip=2001:db8::5"
    )]
    Ip(String),
    #[error("rate={0}: {1}")]
    Rate(String, NoRate),
    #[error("{0}= is given twice: a function has one")]
    Twice(&'static str),
}

impl FromStr for PciSocket {
    type Err = PciSocketError;

    fn from_str(text: &str) -> Result<Self, PciSocketError> {
        let mut parts = text.split(',');
        let path = parts.next().filter(|path| !path.is_empty()).ok_or(PciSocketError::NoPath)?;
        let mut fixed = Fixed::default();
        for part in parts {
            match part.split_once('=') {
                Some(("mac", mac)) => {
                    let read = mac_of(mac).ok_or_else(|| PciSocketError::Mac(mac.to_owned()))?;
                    once("mac", fixed.mac.replace(read).is_none())?;
                }
                Some(("ip", ip)) => {
                    fixed.ips.push(ip.parse().map_err(|_| PciSocketError::Ip(ip.to_owned()))?);
                }
                Some(("rate", rate)) => {
                    let read = rate.parse().map_err(|e| PciSocketError::Rate(rate.to_owned(), e))?;
                    once("rate", fixed.rate.replace(read).is_none())?;
                }
                _ => return Err(PciSocketError::Unknown(part.to_owned())),
            }
        }
        Ok(Self { path: path.into(), fixed })
    }
}

fn once(key: &'static str, is_first: bool) -> Result<(), PciSocketError> {
    if is_first { Ok(()) } else { Err(PciSocketError::Twice(key)) }
}

fn mac_of(text: &str) -> Option<[u8; 6]> {
    let is_byte = |part: &str| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
    let bytes: Option<Vec<u8>> =
        text.split(':').map(|part| u8::from_str_radix(part, 16).ok().filter(|_| is_byte(part))).collect();
    bytes?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_says_what_is_fixed_of_its_function() {
        let read: PciSocket =
            "/tmp/a.sock,mac=02:00:00:aa:BB:01,ip=10.0.0.5,ip=2001:db8::5,rate=2.5G".parse().unwrap();
        assert_eq!(read.path, PathBuf::from("/tmp/a.sock"));
        assert_eq!(read.fixed.mac, Some([2, 0, 0, 0xaa, 0xbb, 1]));
        let ips = ["10.0.0.5", "2001:db8::5"].map(|ip| ip.parse::<std::net::IpAddr>().unwrap());
        assert_eq!(read.fixed.ips, ips);
        assert_eq!(read.fixed.rate, Some("2500M".parse().unwrap()));
        assert_eq!("a".parse(), Ok(PciSocket { path: "a".into(), fixed: Fixed::default() }));
    }

    #[test]
    fn what_can_not_be_understood_says_what_to_write() {
        let said = |text: &str| text.parse::<PciSocket>().unwrap_err().to_string();
        assert!(said(",mac=02:00:00:00:00:01").contains("/tmp/a.sock,ip="));
        assert!(said("").contains("no path"));
        for mac in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "2:0:0:0:0:1",
            "02:00:00:00:00:0g",
            "+2:00:00:00:00:01",
        ] {
            assert!(said(&format!("a,mac={mac}")).contains("mac=02:00:00:00:00:01"), "{mac}");
        }
        for ip in ["", "10.0.0.5/24", "10.0.0", "host"] {
            assert!(said(&format!("a,ip={ip}")).contains("ip=10.0.0.5"), "{ip}");
        }
        assert!(said("a,rate=fast").contains("rate=fast: it is not a rate"));
        assert!(said("a,rate=1M,rate=2M").contains("rate= is given twice"));
        assert!(said("a,mac=02:00:00:00:00:01,mac=02:00:00:00:00:01").contains("mac= is given twice"));
        for unknown in ["a,", "a,mtu=9000", "a,b.sock", "a,ip"] {
            assert!(said(unknown).contains("mac=ADDRESS, ip=ADDRESS and rate=RATE"), "{unknown}");
        }
    }
}
