//! Settings of functions that an operator has fixed, and that their drivers can't change.

use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

use hca_core::Gid;

use crate::function::PortKind;
use crate::port::rate::Rate;
use crate::port::{guid_of, mac_of};
use crate::server::ServeError;

/// The settings of a function that the operator has fixed; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fixed {
    /// The Ethernet address of a RoCE port. Its driver can't have another one, its frames from another one are dropped
    /// and counted, and no other function of the server may have it or send by it.
    pub mac: Option<[u8; 6]>,
    /// The only IP addresses that a RoCE port's table of addresses may have, beside the link-local one of its Ethernet
    /// address. No other function of the server may have them. If there are none, the driver may choose.
    pub ips: Vec<IpAddr>,
    /// The limit of its send rate: RDMA requests, retransmissions, answers to READs and atomics, and Ethernet frames,
    /// together. Acknowledgements are not counted. `None`: no limit.
    pub rate: Option<Rate>,
}

/// The reason why a setting of a function can't be fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FixedError {
    /// An InfiniBand port generates its addresses.
    #[error(
        "an InfiniBand port generates its addresses: leave Ethernet and IP addresses out, or serve Ethernet ports"
    )]
    InfiniBand,
    /// The Ethernet address is not the address of one station.
    #[error(
        "the Ethernet address {} is a group address or zero: name one whose first byte is even, as 02:00:00:00:00:01",
        shown(.0)
    )]
    NoStation([u8; 6]),
    /// Another function has the Ethernet address.
    #[error("another function, or the gateway, has the Ethernet address {}: give each function a different one", shown(.0))]
    MacTaken([u8; 6]),
    /// The IP address is not the address of one host.
    #[error(
        "the IP address {0} is a group, unspecified, loopback or broadcast address: name one that only the function has"
    )]
    NoHost(IpAddr),
    /// Another function has the IP address.
    #[error("the IP address {0} is given twice: give each function different addresses")]
    IpTaken(IpAddr),
}

fn shown(mac: &[u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The link-local address of an Ethernet address (RFC 4291 appendix A).
fn link_local([a, b, c, d, e, f]: [u8; 6]) -> IpAddr {
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]).into()
}

impl Fixed {
    /// Whether a port with this Ethernet address may have this one in its table.
    pub(crate) fn allows(&self, gid: Gid, mac: [u8; 6]) -> bool {
        let named = || self.ips.iter().any(|ip| Gid::from_ip(*ip) == gid);
        self.ips.is_empty() || gid == Gid::default() || gid == Gid::from_ip(link_local(mac)) || named()
    }

    /// The GIDs that no other function may have.
    pub(crate) fn gids(&self) -> impl Iterator<Item = Gid> {
        self.mac.map(link_local).into_iter().chain(self.ips.iter().copied()).map(Gid::from_ip)
    }
}

/// Whether all of what is fixed of the functions at these sockets can be, on an adapter with the GID `own`.
pub(crate) fn check(own: Gid, port: PortKind, paths: &[PathBuf], fixed: &[Fixed]) -> Result<(), ServeError> {
    let mac_by_itself = |number: usize| mac_of(guid_of(own, number as u16));
    let without = |at: &usize| fixed.get(*at).is_none_or(|f| f.mac.is_none());
    // The gateway's, and those of functions of which none is fixed.
    let by_itself = (0..paths.len()).filter(without).map(|at| mac_by_itself(at + 1));
    let mut macs: Vec<[u8; 6]> = by_itself.chain([mac_by_itself(0)]).collect();
    let mut gids = Vec::new();
    for (path, fixed) in paths.iter().zip(fixed) {
        let refused = |why| Err(ServeError::Fixed { path: path.clone(), why });
        if port != PortKind::Roce && (fixed.mac.is_some() || !fixed.ips.is_empty()) {
            return refused(FixedError::InfiniBand);
        }
        if let Some(mac) = fixed.mac {
            if mac[0] & 1 != 0 || mac == [0; 6] {
                return refused(FixedError::NoStation(mac));
            }
            if macs.contains(&mac) {
                return refused(FixedError::MacTaken(mac));
            }
            macs.push(mac);
        }
        for ip in fixed.mac.map(link_local).iter().chain(&fixed.ips) {
            let ip = ip.to_canonical();
            if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() {
                return refused(FixedError::NoHost(ip));
            }
            if gids.contains(&ip) {
                return refused(FixedError::IpTaken(ip));
            }
            gids.push(ip);
        }
    }
    Ok(())
}
