//! Beds of raw Ethernet whose adapters share one address, on the loopback interface or on Ethernet.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use hca_conformance::{Bed, Feature};
use hca_core::{Device, Gid};
use hca_fabric::{RawFabric, RawOptions};
use softhca::Progress;
use test_support::namespaces::ip;

use crate::raw::{Wire, can, next_address, opened};

/// Software adapters on raw Ethernet that share one address.
pub(crate) struct SharedRawBed {
    pub(crate) interface: SharedOn,
    pub(crate) progress: Progress,
}

/// The interface of a shared address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedOn {
    /// The loopback interface, by which frames come back.
    Loopback,
    /// Ethernet, by which they do not: adapters hand packets on to each other.
    Ethernet,
}

impl Bed for SharedRawBed {
    fn name(&self) -> String {
        format!("RoCEv2 {:?} shared {}", self.interface, self.progress)
    }
    fn open(&self, n: usize) -> Vec<Arc<dyn Device>> {
        let wire = Wire::shared().as_ref().unwrap_or_else(|why| panic!("{why}"));
        let (link, network) = match self.interface {
            SharedOn::Loopback => ("lo", 0x7f4d_0000),
            SharedOn::Ethernet => ("wire", 0x0a4d_0000),
        };
        let address = next_address(network);
        wire.within(0, || {
            if self.interface == SharedOn::Ethernet {
                ip(&format!("addr add {address}/16 dev {link}")).unwrap_or_else(|e| panic!("{e}"));
            }
            let raw = RawOptions { ip: Some(IpAddr::V4(address)), slots: 16, ..RawOptions::default() };
            (0..n).map(|_| opened(RawFabric::open(link, &raw), self.progress)).collect()
        })
    }
    fn can(&self, feature: Feature) -> bool {
        can(feature, self.progress)
    }
    fn silent_gid(&self) -> Option<Gid> {
        let silent = match self.interface {
            SharedOn::Loopback => Ipv4Addr::new(127, 77, 255, 253),
            SharedOn::Ethernet => Ipv4Addr::new(10, 77, 255, 253),
        };
        Some(silent.into())
    }
}
