//! RoCEv2 over UDP sockets.
//!
//! One unconnected socket at port 4791 receives; a connected socket a flow sends, with a source port from 49152 up as
//! entropy. Trains leave by UDP_SEGMENT and arrive merged by UDP_GRO. The socket of a flow counts the IPv4
//! Identification by one a send call, so the Identification is known once it was learned, and the ICRC covers the real
//! header of the frame.

mod counters;
mod end;
#[cfg(test)]
mod full;
#[cfg(test)]
mod gathered;
mod group;
mod multicast;
mod path;
mod read;
#[cfg(test)]
mod refusals;
mod rx;
mod shared;
pub(crate) mod sys;
mod tx;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use hca_core::wire::ROCEV2_PORT;
use hca_core::{Counter, GidType, Instant, Mtu};
use hca_process::NotInChildren;
use socket2::{Domain, Protocol, Socket, Type};

use crate::paths::{is_link_local, scoped};
use crate::share::Share;
use crate::{
    Fabric, FabricAttr, FabricLink, ManagementDesk, OpenError, RxBudget, RxOutcome, RxPacket, TxBatch,
};
pub(crate) use counters::Counters;
pub(crate) use end::{End, Sink, by_end};
use group::Group;
pub(crate) use multicast::member;
pub(crate) use path::Paths;
use read::Reader;
pub(crate) use rx::Receiver;
pub(crate) use shared::Shared;
pub(crate) use tx::Refusal;
pub(crate) use tx::Sender;
#[cfg(feature = "io-uring")]
pub(crate) use tx::Step;

/// Payloads of so many bytes are sent from where they lie (`docs/decisions/one-copy-on-send.md`): of smaller ones the
/// kernel's work for one more piece costs what the copy does.
const IN_PLACE_FROM: u32 = 4096;

/// The options of a [`UdpFabric`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// The size of the receive buffer to request from the kernel; [`FabricAttr`] has the granted size.
    pub recv_buffer: usize,
    /// The most flows with a socket of their own; flows beyond share one socket.
    pub max_paths: usize,
    /// Whether the kernel (or the network adapter) cuts trains. If not, trains leave packet by packet.
    pub segmentation: bool,
    /// The [index](crate::interface_index) of the interface of a link-local address; 0 takes the interface that has the
    /// address. Peers at link-local addresses are on the same interface. Other addresses need no index.
    pub interface: u32,
    /// The number of processes of this user that may share the address, at most [`MAX_SLOTS`](crate::MAX_SLOTS); 0: the
    /// address belongs to this adapter alone. The first process at the address decides.
    pub slots: u16,
}

impl Default for UdpOptions {
    /// 8 MiB, 1024 flows with a socket of their own, segmentation on, an address of its own.
    fn default() -> Self {
        Self { recv_buffer: 8 << 20, max_paths: 1024, segmentation: true, interface: 0, slots: 0 }
    }
}

/// The receiving socket of an address, and what it was granted.
pub(crate) struct RxSocket {
    /// The port is free once this is gone, whatever children of this process live. It goes before the descriptor, whose
    /// number another one may have then.
    _not_in_children: NotInChildren,
    pub(crate) socket: Socket,
    pub(crate) attr: FabricAttr,
    /// The interface of a link-local address; 0: it is none.
    pub(crate) interface: u32,
    /// The place at a shared address.
    pub(crate) shared: Option<Box<Shared>>,
}

/// The interface that a link-local address is one of, and 0 for other addresses.
fn interface_of(local: IpAddr, chosen: u32) -> Result<u32, OpenError> {
    if !is_link_local(local) {
        return Ok(0);
    }
    let own = sys::interfaces_of(local);
    match own[..] {
        _ if own.contains(&chosen) => Ok(chosen),
        [one] if chosen == 0 => Ok(one),
        [_, _, ..] if chosen == 0 => Err(OpenError::NotUnicast(local)),
        _ => Err(OpenError::NotLocal(local)),
    }
}

impl RxSocket {
    pub(crate) fn open(local: IpAddr, options: &UdpOptions, name: &str) -> Result<Self, OpenError> {
        let broadcast = matches!(local, IpAddr::V4(a) if a.is_broadcast());
        if local.is_unspecified() || local.is_multicast() || broadcast {
            return Err(OpenError::NotUnicast(local));
        }
        let interface = interface_of(local, options.interface)?;
        let io = |doing| move |source| OpenError::Io { doing, local, source };
        let mut notes = Vec::new();
        let (socket, shared) = match options.slots {
            0 => (bound(scoped(local, ROCEV2_PORT, interface), false)?, None),
            slots => {
                let mut share = Share::join(&Group { local, interface }, slots)?;
                let slot =
                    share.take(share.slot().into()).map_err(io("taking a slot of a shared address"))?;
                (slot.into(), Some(Box::new(Shared::new(share))))
            }
        };
        if let Err(e) = sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1) {
            notes.push(("receive merging", format!("off ({e}): trains arrive packet by packet")));
        }
        tell_traffic_class(&socket, local).map_err(io("asking for the traffic class"))?;
        let recv_buffer_bytes = grant_recv_buffer(&socket, options.recv_buffer, &mut notes)
            .map_err(io("sizing the receive buffer"))?;
        let max_mtu = sys::link_mtu(local, interface).map_or(Mtu::B1024, |link| {
            notes.push(("link mtu", format!("{link} bytes")));
            Mtu::largest_for_link(link).unwrap_or(Mtu::B256)
        });
        let link = FabricLink::of(sys::interface_name(local, interface), GidType::RoceV2);
        let qpn_slot = shared.as_ref().map(|s| s.share.slot());
        notes.extend(shared.as_ref().map(|s| ("shared address", s.share.describe())));
        let attr =
            FabricAttr { name: name.to_owned(), local, max_mtu, recv_buffer_bytes, qpn_slot, link, notes };
        let _not_in_children = NotInChildren::new(&[socket.as_fd()]);
        Ok(Self { _not_in_children, socket, attr, interface, shared })
    }

    /// As the [`Fabric`]'s.
    pub(crate) fn desk(&mut self) -> Option<&mut dyn ManagementDesk> {
        self.shared.as_mut().map(|shared| &mut shared.share as &mut dyn ManagementDesk)
    }

    /// To be called before a sleep.
    pub(crate) fn prepare_wait(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.share.prepare_wait();
        }
    }

    /// Appends what the kernel counts at this socket.
    pub(crate) fn counters(&self, out: &mut Vec<Counter>) {
        let value = sys::dropped(self.socket.as_fd()).unwrap_or(0);
        out.push(Counter { name: "rx_kernel_drops", value });
        if let Some(shared) = &self.shared {
            shared.share.counters(out);
        }
    }
}

/// Has the traffic class of each datagram told.
fn tell_traffic_class(socket: &Socket, at: IpAddr) -> io::Result<()> {
    let (level, option) = if at.is_ipv6() {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS)
    } else {
        (libc::IPPROTO_IP, libc::IP_RECVTOS)
    };
    sys::set_option(socket.as_fd(), level, option, 1)
}

/// Has the hop limit of each datagram told, or not.
fn tell_hop_limit(socket: &Socket, at: IpAddr, on: bool) {
    let (level, option) = if at.is_ipv6() {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT)
    } else {
        (libc::IPPROTO_IP, libc::IP_RECVTTL)
    };
    // A kernel that will not tell leaves the field at 0, "not known".
    let _ = sys::set_option(socket.as_fd(), level, option, i32::from(on));
}

/// Allows packets without a UDP checksum: Linux's soft RoCE and adapters leave it at 0 over IPv6, as the ICRC covers
/// more.
fn allow_no_checksum(socket: &Socket, at: IpAddr) -> io::Result<()> {
    if at.is_ipv6() {
        sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)
    } else {
        Ok(())
    }
}

/// A socket at a port, that of RoCEv2, by itself or in a group of sockets of this user.
fn bound(at: SocketAddr, in_group: bool) -> Result<Socket, OpenError> {
    let local = at.ip();
    let io = |doing| move |source| OpenError::Io { doing, local, source };
    let socket = new_socket(local).map_err(io("opening a UDP socket"))?;
    if in_group {
        socket.set_reuse_port(true).map_err(io("sharing a port"))?;
    }
    bind(&socket, at)?;
    allow_no_checksum(&socket, local).map_err(io("allowing packets without a UDP checksum"))?;
    Ok(socket)
}

/// A nonblocking UDP socket for addresses of this one's family.
pub(crate) fn new_socket(at: IpAddr) -> io::Result<Socket> {
    let domain = if at.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 };
    Socket::new(domain, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))
}

/// Binds a socket to an adapter's address and port.
pub(crate) fn bind(socket: &Socket, at: SocketAddr) -> Result<(), OpenError> {
    let local = at.ip();
    socket.bind(&at.into()).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => OpenError::InUse(local),
        io::ErrorKind::AddrNotAvailable => OpenError::NotLocal(local),
        _ => OpenError::Io { doing: "binding port 4791", local, source },
    })
}

/// Asks for a receive buffer and returns how many bytes of packets it holds.
fn grant_recv_buffer(
    socket: &Socket,
    wanted: usize,
    notes: &mut Vec<(&'static str, String)>,
) -> io::Result<usize> {
    let asked = i32::try_from(wanted).unwrap_or(i32::MAX / 2);
    let forced = sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, asked);
    if forced.is_err() {
        socket.set_recv_buffer_size(wanted)?;
    }
    // The kernel doubles what it is asked for, and charges its own overhead to it.
    let usable = socket.recv_buffer_size()? / 2;
    let remedy = if usable < wanted {
        format!("; {wanted} were asked for, and `sysctl -w net.core.rmem_max={wanted}` grants them")
    } else {
        String::new()
    };
    notes.push(("receive buffer", format!("{usable} bytes{remedy}")));
    Ok(usable)
}

/// A fabric of RoCEv2 over plain UDP sockets.
pub struct UdpFabric {
    end: End,
    reader: Reader,
}

impl UdpFabric {
    /// Opens the adapter's end at an address of this machine.
    ///
    /// # Errors
    /// The address is in use, is not of this machine, or the system refuses sockets.
    pub fn open(local: IpAddr, options: &UdpOptions) -> Result<Self, OpenError> {
        let end = End::open(local, options, "udp")?;
        Ok(Self { end, reader: Reader::new(local.is_loopback()) })
    }

    /// Adds a note for people to the attributes.
    pub fn note(&mut self, what: &'static str, text: String) {
        self.end.rx.attr.notes.push((what, text));
    }
}

impl Fabric for UdpFabric {
    by_end!();

    fn send(&mut self, now: Instant, batch: &mut TxBatch) {
        let End { rx, sender, account, .. } = &mut self.end;
        if account.tap.is_some() {
            batch.take_in();
        }
        sender.send(now, batch, account);
        rx.attr.notes.extend(sender.note.take());
    }

    fn sends_in_place_from(&self) -> Option<u32> {
        // A tap sees whole packets.
        (self.end.sender.cuts && self.end.account.tap.is_none()).then_some(IN_PLACE_FROM)
    }

    fn recv(&mut self, now: Instant, budget: RxBudget, sink: &mut dyn FnMut(&RxPacket<'_>)) -> RxOutcome {
        let Self { end, reader } = self;
        end.recv(now, sink, |end, sink| reader.recv(end, now, budget, sink))
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.end.rx.socket.as_fd())
    }

    fn prepare_wait(&mut self) -> bool {
        self.end.rx.prepare_wait();
        false
    }

    fn read_traffic_class(&mut self) {
        self.reader.read_class(self.end.rx.socket.as_fd());
    }

    fn counters(&self, out: &mut Vec<Counter>) {
        self.end.append(&self.end.account.counters, out);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, UdpSocket};
    use std::time::Instant as WallTime;

    use hca_core::wire::icrc::IpFlow;

    use super::*;

    #[test]
    fn a_packet_over_ipv6_without_a_udp_checksum_arrives() {
        let local = IpAddr::from(Ipv6Addr::LOCALHOST);
        let begun = WallTime::now();
        // The address is the only one of its kind: another test process may hold it for a moment.
        let mut fabric = loop {
            match UdpFabric::open(local, &UdpOptions::default()) {
                Err(OpenError::InUse(_)) if begun.elapsed().as_secs() < 20 => std::thread::yield_now(),
                opened => break opened.unwrap(),
            }
        };
        let sender = UdpSocket::bind((local, 0)).unwrap();
        sys::set_option(sender.as_fd(), libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, 1).unwrap();
        let body = [0x5a; 24];
        let flow = IpFlow::new(local, local, sender.local_addr().unwrap().port()).unwrap();
        let packet = [&body[..], &flow.icrc(0, &body).to_le_bytes()].concat();
        sender.send_to(&packet, (local, ROCEV2_PORT)).unwrap();
        let mut got = Vec::new();
        let budget = RxBudget { packets: 8, bytes: 1 << 16 };
        fabric.recv(Instant::ZERO, budget, &mut |p| got.push(p.bytes.to_vec()));
        assert_eq!(got, [body]);
    }
}
