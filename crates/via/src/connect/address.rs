//! Addresses of VIs: a host, and a discriminator that tells its programs apart.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use crate::Error;

/// A discriminator: 1 to 16 bytes, by which a program that waits for connections is known at its host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Discriminator {
    bytes: [u8; Self::MAX_LEN],
    len: u8,
}

impl Discriminator {
    /// The most bytes of a discriminator.
    pub const MAX_LEN: usize = 16;

    /// A discriminator of these bytes.
    ///
    /// # Errors
    /// There are none, or more than 16.
    pub fn new(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.is_empty() || bytes.len() > Self::MAX_LEN {
            return Err(Error::Parameter { what: "discriminator", why: "it has 1 to 16 bytes" });
        }
        let mut own = [0; Self::MAX_LEN];
        own[..bytes.len()].copy_from_slice(bytes);
        Ok(Self { bytes: own, len: bytes.len() as u8 })
    }
    /// The bytes that it was made of.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The ports of RDMA CM at which a listener with this discriminator may be.
    pub(crate) fn ports(&self) -> impl Iterator<Item = u16> + use<> {
        let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
        hash.write(self.bytes());
        let first = (hash.0 ^ hash.0 >> 32) % PORTS;
        (0..PROBES).map(move |probe| (FIRST_PORT + (first + probe) % PORTS) as u16)
    }
}

const FIRST_PORT: u64 = 32_768;
const PORTS: u64 = 16_384;
/// Ports that a discriminator may have.
const PROBES: u64 = 8;

/// FNV-1a: the same on all machines.
struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Discriminator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.bytes().escape_ascii())
    }
}

/// The address of a program that connects VIs (`VIP_NET_ADDRESS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetAddress {
    /// The address of its adapter.
    pub host: IpAddr,
    /// Its discriminator.
    pub discriminator: Discriminator,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_discriminator_has_the_same_ports_on_all_machines() {
        let ports: Vec<u16> = Discriminator::new(b"hello").unwrap().ports().collect();
        assert_eq!(ports[0], 42_317);
        assert!(ports.windows(2).all(|pair| pair[1] == pair[0] + 1 || pair[1] == 32_768));
        assert_eq!(ports.len(), 8);
    }

    #[test]
    fn a_discriminator_has_one_to_sixteen_bytes() {
        assert!(Discriminator::new(b"").is_err());
        assert!(Discriminator::new(&[7; 17]).is_err());
        assert_eq!(Discriminator::new(&[7; 16]).unwrap().bytes(), [7; 16]);
    }
}
