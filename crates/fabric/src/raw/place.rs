//! The interface and the address of an adapter.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;

use hca_core::wire::ROCEV2_PORT;

use super::filter;
use super::frame::Mac;
use crate::OpenError;
use crate::netlink::{Address, Link, Netlink};
use crate::paths::scoped;
use crate::udp::sys::set_option;
use crate::udp::{bind, new_socket};

/// An interface that is up, and an address of it.
pub(super) struct Place {
    pub(super) link: u32,
    pub(super) mac: Mac,
    pub(super) mtu: u32,
    /// Packets and bytes in a frame that the interface may be given uncut.
    pub(super) uncut: (usize, usize),
    pub(super) local: IpAddr,
    /// The loopback interface, which has no hardware addresses.
    pub(super) bare: bool,
}

impl Place {
    /// The interface of this name, and this address of it; `None` takes its first.
    pub(super) fn find(netlink: &mut Netlink, name: &str, wanted: Option<IpAddr>) -> Result<Self, OpenError> {
        let io = |doing| {
            let local = wanted.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
            move |source| OpenError::Io { doing, local, source }
        };
        let link = match netlink.link(name) {
            Ok(link) => link,
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ERANGE | libc::EINVAL)) => {
                let known = netlink.link_names().map_err(io("asking for the interfaces"))?;
                return Err(OpenError::NoInterface { name: name.to_owned(), known });
            }
            Err(e) => return Err(io("asking for the interface")(e)),
        };
        let bare = usable(&link)?;
        let all = netlink.addresses().map_err(io("asking for the addresses"))?;
        let own: Vec<Address> = all.into_iter().filter(|a| a.link == link.index).collect();
        let local = choose(&link, &own, wanted, bare)?;
        let mac = link.mac.unwrap_or_default();
        Ok(Self { link: link.index, mac, mtu: link.mtu, uncut: link.uncut, local, bare })
    }
}

/// Whether the interface can carry RoCE; says if it is one without hardware addresses.
fn usable(link: &Link) -> Result<bool, OpenError> {
    let name = link.name.clone();
    if link.flags & libc::IFF_UP as u32 == 0 {
        return Err(OpenError::InterfaceDown { name });
    }
    match link.kind {
        libc::ARPHRD_LOOPBACK => Ok(true),
        libc::ARPHRD_ETHER if link.mac.is_some() => Ok(false),
        kind => Err(OpenError::NotEthernet { name, kind }),
    }
}

/// The wanted address, or the first that reaches beyond the link, or the first.
fn choose(link: &Link, own: &[Address], wanted: Option<IpAddr>, bare: bool) -> Result<IpAddr, OpenError> {
    let name = || link.name.clone();
    let local_only = |a: &Address| matches!(a.ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let found = match wanted {
        None => own.iter().find(|a| !local_only(a)).or(own.first()).copied(),
        // The loopback interface has all addresses of its networks.
        Some(ip) => own.iter().find(|a| a.ip == ip || bare && a.holds(ip)).map(|a| Address { ip, ..*a }),
    };
    match (found, wanted) {
        (Some(a), _) if a.tentative => Err(OpenError::Tentative { name: name(), address: a.ip }),
        (Some(a), _) if a.ip.is_unspecified() || a.ip.is_multicast() => Err(OpenError::NotUnicast(a.ip)),
        (Some(a), _) => Ok(a.ip),
        (None, None) => Err(OpenError::NoAddress { name: name() }),
        (None, Some(address)) => {
            let has = own.iter().map(|a| a.ip).collect();
            Err(OpenError::NotOnInterface { name: name(), address, has })
        }
    }
}

/// A UDP socket that holds the address's port 4791 and takes nothing: without it the kernel would answer every
/// packet with an ICMP error, and another adapter could stand on the same address.
pub(super) fn guard(place: &Place) -> Result<UdpSocket, OpenError> {
    let local = place.local;
    let io = |doing| move |source| OpenError::Io { doing, local, source };
    let socket = new_socket(local).map_err(io("opening a UDP socket"))?;
    socket.attach_filter(&filter::nothing()).map_err(io("closing the UDP socket to packets"))?;
    // Frames of several packets are then dropped as they are; the kernel would cut them first.
    let _ = set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1);
    bind(&socket, scoped(local, ROCEV2_PORT, place.link))?;
    Ok(socket.into())
}
