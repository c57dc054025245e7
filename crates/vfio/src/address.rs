//! The address of a PCI function, and its text.

use core::fmt;
use core::str::FromStr;

use crate::error::OpenError;

/// The address of a PCI function: `0000:03:00.0`. The domain may be left out when it is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// The domain, also called segment.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device on the bus, below 32.
    pub device: u8,
    /// The function of the device, below 8.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = OpenError;

    fn from_str(s: &str) -> Result<Self, OpenError> {
        parse(s).ok_or_else(|| OpenError::Address { given: s.to_owned() })
    }
}

fn parse(s: &str) -> Option<PciAddress> {
    let (rest, function) = s.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
    // `from_str_radix` takes a sign.
    let number = |s: &str, max: u32| {
        let digits = !s.is_empty() && s.bytes().all(|b| b.is_ascii_hexdigit());
        u32::from_str_radix(s, 16).ok().filter(|n| digits && *n <= max)
    };
    Some(PciAddress {
        domain: number(domain, u32::MAX)?,
        bus: number(bus, 0xff)? as u8,
        device: number(device, 0x1f)? as u8,
        function: number(function, 7)? as u8,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written_and_nothing_else_is() {
        let a: PciAddress = "0000:03:00.1".parse().unwrap();
        assert_eq!(a, PciAddress { domain: 0, bus: 3, device: 0, function: 1 });
        assert_eq!(a.to_string(), "0000:03:00.1");
        assert_eq!("af:1f.7".parse::<PciAddress>().unwrap().to_string(), "0000:af:1f.7");
        assert_eq!("10000:01:00.0".parse::<PciAddress>().unwrap().to_string(), "10000:01:00.0");
        for bad in ["", "3", "03:00", "0000:03:20.0", "0000:03:00.8", "+0:03:00.0", "0:0:0:0.0.", "x:03:00.0"]
        {
            let told = bad.parse::<PciAddress>().unwrap_err().to_string();
            assert!(told.contains(&format!("`{bad}`")) && told.contains("lspci -D"), "{told}");
        }
    }
}
