//! How adapters of one machine name each other.

use core::fmt;
use std::net::{IpAddr, Ipv6Addr};

use hca_core::Qpn;

/// The name of an adapter among those of one machine: its address, and its slot where several processes share the
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerName {
    /// The address; one of IPv4 is mapped.
    pub address: Ipv6Addr,
    /// The slot of the adapter's process at a shared address.
    pub slot: Option<u8>,
}

impl PeerName {
    /// The name of an adapter that has an address to itself (`None`), or is in a slot there.
    pub fn new(address: IpAddr, slot: Option<u8>) -> Self {
        let address = match address {
            IpAddr::V4(a) => a.to_ipv6_mapped(),
            IpAddr::V6(a) => a,
        };
        Self { address, slot }
    }

    /// The names that the adapter of a queue pair may have, which is at this address: in the slot that the number names
    /// if the address is shared, and by the address alone if not. An address is one or the other at any time.
    pub(super) fn of_queue_pair(address: IpAddr, qpn: Qpn) -> [Self; 2] {
        [Some((qpn.raw() >> 16) as u8), None].map(|slot| Self::new(address, slot))
    }

    /// The address as IP packets have it.
    pub fn ip(&self) -> IpAddr {
        IpAddr::V6(self.address).to_canonical()
    }
}

impl From<Ipv6Addr> for PeerName {
    fn from(address: Ipv6Addr) -> Self {
        Self { address, slot: None }
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.slot {
            None => write!(f, "{}", self.ip()),
            Some(slot) => write!(f, "{} slot {slot}", self.ip()),
        }
    }
}
