//! Multicast groups: a socket for each, bound to the group's address.
//!
//! The kernel gives a datagram to a group to every socket that has joined the group on the interface where the datagram
//! arrived, and a datagram that leaves by the interface to those of this machine, the sender's included. So the sockets
//! of several adapters, processes and users may be bound to one group (SO_REUSEADDR), and each gets one copy.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hca_core::Instant;
use hca_core::wire::ROCEV2_PORT;
use rustix::event::{Timespec, epoll};
use socket2::{InterfaceIndexOrAddress, Socket};

use super::end::{Account, Sink};
use super::sys::{self, RxSlots};
use super::{Receiver, allow_no_checksum, new_socket, tell_hop_limit, tell_traffic_class};
use crate::paths::scoped;

/// Groups of an end. Each costs a socket.
pub(super) const MAX_GROUPS: u32 = 128;
/// Sockets with packets that one look finds.
const READY: usize = 16;
/// Datagrams that one look takes from a group's socket at most.
const LOOK_DATAGRAMS: usize = 64;

struct Group {
    address: IpAddr,
    socket: Socket,
    receiver: Receiver,
    /// Names the group to the kernel; none is used twice.
    key: u64,
}

/// The groups that an end has joined.
pub(super) struct Groups {
    interface: u32,
    recv_buffer: usize,
    joined: Vec<Group>,
    next_key: u64,
    /// Readable when a group's socket is.
    epoll: OwnedFd,
    slots: RxSlots,
}

impl Groups {
    /// For groups on this interface, with receive buffers of so many bytes.
    pub(super) fn new(interface: u32, recv_buffer: usize) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let slots = RxSlots::new(1);
        Ok(Self { interface, recv_buffer, joined: Vec::new(), next_key: 0, epoll, slots })
    }

    pub(super) fn join(&mut self, address: IpAddr, tells_hop_limit: bool) -> io::Result<()> {
        let socket = new_socket(address)?;
        socket.set_reuse_address(true)?;
        socket.bind(&scoped(address, ROCEV2_PORT, self.interface).into())?;
        allow_no_checksum(&socket, address)?;
        tell_traffic_class(&socket, address)?;
        tell_hop_limit(&socket, address, tells_hop_limit);
        // Without it, trains arrive packet by packet.
        let _ = sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1);
        socket.set_recv_buffer_size(self.recv_buffer)?;
        member(&socket, address, self.interface)?;
        let key = self.next_key;
        self.next_key += 1;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(key), epoll::EventFlags::IN)?;
        self.joined.push(Group { address, socket, receiver: Receiver::of_group(address), key });
        Ok(())
    }

    /// The kernel ends the membership with the socket.
    pub(super) fn leave(&mut self, address: IpAddr) {
        self.joined.retain(|g| g.address != address);
    }

    pub(super) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(super) fn tell_hop_limit(&self, on: bool) {
        for group in &self.joined {
            tell_hop_limit(&group.socket, group.address, on);
        }
    }

    /// Packets that the kernel dropped at the sockets of groups that are joined, for want of buffer.
    pub(super) fn dropped(&self) -> u64 {
        self.joined.iter().filter_map(|g| sys::dropped(g.socket.as_fd())).sum()
    }

    /// Gives the packets that came to groups to the sink. Returns how many they were.
    pub(super) fn recv(&mut self, now: Instant, account: &mut Account, sink: Sink<'_>) -> usize {
        let Self { joined, epoll, slots, .. } = self;
        let mut packets = 0;
        if joined.is_empty() {
            return packets;
        }
        let mut ready =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; READY];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok(ready) = epoll::wait(epoll, &mut ready[..], Some(&at_once)).map(|count| &ready[..count])
        else {
            return packets;
        };
        for event in ready {
            let Some(group) = joined.iter_mut().find(|g| g.key == event.data.u64()) else { continue };
            for _ in 0..LOOK_DATAGRAMS {
                account.counters.recv_calls += 1;
                if slots.recv_one(group.socket.as_fd()).is_err() {
                    break;
                }
                if let Some(datagram) = slots.datagram(0) {
                    packets += group.receiver.deliver(now, &datagram, account, sink);
                }
            }
        }
        packets
    }
}

/// Makes a socket a member of a group on an interface, and of no other group.
pub(crate) fn member(socket: &Socket, group: IpAddr, interface: u32) -> io::Result<()> {
    /// As the kernel's headers have it; the C library's may not.
    const IPV6_MULTICAST_ALL: i32 = 29;
    match group {
        IpAddr::V4(group) => {
            // Memberships of other sockets on other interfaces do not count.
            sys::set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
            socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(interface))
        }
        IpAddr::V6(group) => {
            // Kernels before 4.20 do not know it.
            let _ = sys::set_option(socket.as_fd(), libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
            socket.join_multicast_v6(&group, interface)
        }
    }
}
