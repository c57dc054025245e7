//! RoCE frames over an Ethernet interface, by packet sockets (AF_PACKET).
//!
//! A ring that the kernel fills is polled without a system call; a filter in the kernel lets only RoCE frames for this
//! address into it. The fabric builds frames, with Identifications that it chooses itself, and the frames bypass the
//! queueing discipline. Routes and neighbours come from the kernel, by rtnetlink. A UDP socket that receives nothing
//! holds the address, so that the kernel does not answer packets with ICMP errors.
//!
//! The kernel removes the VLAN tag of an arriving frame. The fabric cuts a frame of several packets (from a sender over
//! veth or the loopback, or merged by the interface). In the other direction trains leave uncut if the interface can
//! cut them or passes them on uncut.
//!
//! Processes that [share](crate::share) the address have each a ring of its own, whose filter passes the frames for the
//! process's queue pairs. Packets among them do not leave an Ethernet interface, and are handed on by UNIX datagrams;
//! on the loopback interface they are frames as others.

mod counters;
mod filter;
pub(crate) mod frame;
mod neighbours;
mod place;
mod rx;
mod shared;
mod sys;
mod tx;

use std::cell::Cell;
use std::fmt;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use hca_core::{AddressVector, Counter, GidType, Instant, Mtu};
use hca_process::NotInChildren;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use socket2::{Domain, InterfaceIndexOrAddress, SockRef, Socket, Type};

use crate::flow::FlowCounts;
use crate::netlink::Netlink;
use crate::share::Share;
use crate::share::program::Part;
use crate::udp::sys::set_option;
use crate::udp::{Counters, member};
use crate::{
    Fabric, FabricAttr, FabricLink, ManagementDesk, MulticastGroups, OpenError, PathError, PathId, QpEnds,
    RxBudget, RxOutcome, RxPacket, Tap, TxBatch,
};
use counters::RawCounters;
use frame::{Shown, Source};
use neighbours::Neighbours;
use place::Place;
use rx::Receiver;
use shared::{GUARD, Held};
use sys::{Ring, SOL_PACKET, Shape};
use tx::Sender;

/// Bytes of the receive ring, about. A slot is met again after a round: of 16 MiB, little of which the caches hold
/// then, a small message takes 6 % more time.
const RING_BYTES: usize = 4 << 20;
/// Longest frame that a slot of the ring has room for: a path MTU of 4096 and all headers.
const MAX_SLOT_FRAME: usize = 4096 + 256;
/// Bytes of the longest super-frame, with room to spare.
const LONG_FRAME_BYTES: usize = 1 << 17;
/// Buffer for super-frames to ask the kernel for.
const RECV_BUFFER_BYTES: usize = 8 << 20;
/// Buffer for frames that the interface has not sent yet.
const SEND_BUFFER_BYTES: usize = 2 << 20;
/// Bytes that a peer is told a slot holds: small packets take a slot each, too.
const BYTES_A_SLOT: usize = 1024;
/// Groups of one adapter: as many memberships as the kernel lets a socket have (`net.ipv4.igmp_max_memberships`).
const MAX_GROUPS: u32 = 20;
/// Any protocol, for a packet socket.
const ETH_P_ALL: u16 = 3;

/// The version of RoCE of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RoceVersion {
    /// EtherType 0x8915 and a GRH: one Ethernet only.
    V1,
    /// UDP over IPv4 or IPv6.
    #[default]
    V2,
}

impl fmt::Display for RoceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "1",
            Self::V2 => "2",
        })
    }
}

/// The options of a [`RawFabric`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawOptions {
    /// The address, one of the interface's; `None` takes its first.
    pub ip: Option<IpAddr>,
    /// RoCEv2, or RoCEv1.
    pub version: RoceVersion,
    /// The VLAN of the frames, from 1 to 4094; `None` sends without a tag.
    pub vlan: Option<u16>,
    /// The number of processes of this user that may share the address, at most [`MAX_SLOTS`](crate::MAX_SLOTS); 0: the
    /// address belongs to this adapter alone. The first process at the address decides.
    pub slots: u16,
}

/// A fabric of RoCE frames over an Ethernet interface.
pub struct RawFabric {
    attr: FabricAttr,
    ring: Ring,
    socket: Socket,
    receiver: Receiver,
    sender: Sender,
    /// The address is free once this is gone, whatever children live. It goes before the descriptor.
    _not_in_children: NotInChildren,
    /// Holds the address, and the memberships of groups.
    guard: UdpSocket,
    version: RoceVersion,
    vlan: u16,
    /// The interface's index.
    link: u32,
    /// The place at a shared address.
    shared: Option<Box<Share>>,
    /// Where super-frames go that do not fit a slot.
    long: Box<[u8]>,
    counters: Counters,
    raw: RawCounters,
    /// Frames that found no room; the kernel forgets them when it is asked.
    drops: Cell<u64>,
    tap: Option<Box<dyn Tap>>,
    told_lost: bool,
}

impl RawFabric {
    /// Opens the adapter's end on an interface.
    ///
    /// # Errors
    /// The program may not use raw frames, the interface is unknown, down or without the address, the address is in
    /// use, or the system refuses. The error names the remedy.
    pub fn open(interface: &str, options: &RawOptions) -> Result<Self, OpenError> {
        let unspecified = options.ip.unwrap_or(std::net::Ipv4Addr::UNSPECIFIED.into());
        let mut netlink = Netlink::open().map_err(|source| OpenError::Io {
            doing: "opening a socket to the kernel's tables",
            local: unspecified,
            source,
        })?;
        let place = Place::find(&mut netlink, interface, options.ip)?;
        let local = place.local;
        let io = |doing| move |source| OpenError::Io { doing, local, source };
        let mut shared = match options.slots {
            0 => None,
            slots => Some(Box::new(Share::join(&Held { place: &place, options }, slots)?)),
        };
        let mut notes = vec![
            ("interface", format!("{interface}, MAC {}", mac_text(&place.mac))),
            ("link mtu", format!("{} bytes", place.mtu)),
        ];
        let part = shared.as_ref().map(|share| (share.slots(), Part::Slot(share.slot())));
        let RawTap { socket, vnet, queue_bytes } = tap(&place, options, part, &mut notes)?;
        let guard = match &mut shared {
            None => place::guard(&place)?,
            Some(share) => share.take(GUARD).map_err(io("taking a slot of a shared address"))?.into(),
        };
        let shape = Shape::new(MAX_SLOT_FRAME.min(place.mtu as usize + 64), RING_BYTES);
        let ring = Ring::new(&socket, shape, vnet).map_err(io("making the receive ring"))?;
        sys::bind(&socket, place.link, ETH_P_ALL).map_err(io("binding to the interface"))?;
        notes.push(("receive ring", format!("{} frames in {} bytes", shape.slots(), shape.bytes())));
        let source = Source { version: options.version, local, mac: place.mac, vlan: options.vlan };
        let sender = open_sender(&place, source, netlink, shared.is_some(), &mut notes)?;
        if let Some(share) = &shared {
            share
                .watch(socket.as_fd())
                .map_err(|e| io("watching the sockets of a shared address")(e.into()))?;
            notes.push(("shared address", share.describe()));
        }
        let kind = match options.version {
            RoceVersion::V1 => GidType::RoceV1,
            RoceVersion::V2 => GidType::RoceV2,
        };
        let attr = FabricAttr {
            name: "raw".to_owned(),
            local,
            max_mtu: Mtu::largest_for_link(place.mtu).unwrap_or(Mtu::B256),
            recv_buffer_bytes: queue_bytes.min(shape.slots() * BYTES_A_SLOT),
            qpn_slot: shared.as_ref().map(|share| share.slot()),
            link: FabricLink::of(Some(interface.to_owned()), kind),
            notes,
        };
        Ok(Self {
            attr,
            ring,
            socket,
            receiver: Receiver::new(options.version, local, vnet),
            sender,
            _not_in_children: NotInChildren::new(&[guard.as_fd()]),
            guard,
            version: options.version,
            vlan: options.vlan.unwrap_or(0),
            link: place.link,
            shared,
            long: vec![0; LONG_FRAME_BYTES].into_boxed_slice(),
            counters: Counters::default(),
            raw: RawCounters::default(),
            drops: Cell::new(0),
            tap: None,
            told_lost: false,
        })
    }

    /// Gives the packets of the ring, and those of this adapter to itself, to the sink.
    #[inline]
    fn recv_own(&mut self, now: Instant, budget: RxBudget, sink: &mut dyn FnMut(&RxPacket<'_>)) -> RxOutcome {
        let mut outcome = RxOutcome::default();
        let mut bytes = 0;
        if self.sender.next_deadline().is_some_and(|at| at <= now) {
            let Self { sender, counters, raw, tap, guard, .. } = self;
            sender.send_due(&mut tx::Account { now, counters, raw, tap, guard });
        }
        if !self.sender.looped.packets.is_empty() {
            let (mut counters, mut raw, mut tap) = (self.counters, self.raw, self.tap.take());
            let mut account =
                rx::Account { now, counters: &mut counters, raw: &mut raw, tap: &mut tap, sink: &mut *sink };
            bytes += self.take_looped(&budget, &mut outcome, &mut account);
            (self.counters, self.raw, self.tap) = (counters, raw, tap);
        }
        let Self { ring, socket, receiver, long, counters, raw, tap, .. } = self;
        let mut account = rx::Account { now, counters, raw, tap, sink };
        while let Some(arrived) = ring.peek() {
            if outcome.packets >= budget.packets || bytes >= budget.bytes {
                outcome.more = true;
                break;
            }
            bytes += arrived.bytes.len();
            if arrived.status & sys::STATUS_COPY != 0 {
                match take_long(socket, long, account.raw) {
                    Ok(len) => {
                        outcome.packets += receiver.deliver(arrived.status, &long[..len], &mut account);
                    }
                    Err(_) => account.counters.recv_errors += 1,
                }
                account.counters.recv_calls += 1;
            } else if arrived.truncated {
                account.raw.rx_truncated += 1;
            } else {
                outcome.packets += receiver.deliver(arrived.status, arrived.bytes, &mut account);
            }
            ring.release();
        }
        outcome
    }

    /// Gives what comes to the desk and from other processes at the address to the sink.
    fn look(&mut self, now: Instant, share: &mut Share, sink: &mut dyn FnMut(&RxPacket<'_>)) -> usize {
        let Self { receiver, long, counters, raw, tap, attr, .. } = self;
        share.look(now, attr.local, sink, &mut |desk, sink| {
            let (len, _) = rustix::net::recv(desk, &mut long[..], RecvFlags::DONTWAIT).ok()?;
            counters.recv_calls += 1;
            let frame = &long[..len];
            let mut account = rx::Account { now, counters, raw, tap, sink };
            Some(receiver.deliver(rx::status(frame), frame, &mut account))
        })
    }

    /// Packets to the own address reach other processes there by UNIX datagrams, and the answers this one: they are
    /// looked for in each turn then.
    fn look_often(&mut self) {
        if let Some(share) = &mut self.shared {
            share.look_often(self.sender.reaches_itself());
        }
    }

    /// Gives packets of this adapter to itself to the sink, as far as the budget goes.
    #[cold]
    fn take_looped(
        &mut self,
        budget: &RxBudget,
        outcome: &mut RxOutcome,
        account: &mut rx::Account<'_>,
    ) -> usize {
        let mut bytes = 0;
        while let Some(l) = self.sender.looped.packets.front().copied() {
            if outcome.packets >= budget.packets || bytes >= budget.bytes {
                outcome.more = true;
                return bytes;
            }
            self.sender.looped.packets.pop_front();
            bytes += l.len;
            let shown = Shown {
                header: l.header,
                ident: l.ident,
                dont_fragment: true,
                payload: &self.sender.looped.bytes[l.start..l.start + l.len],
                checksum_wrong: false,
            };
            outcome.packets += self.receiver.give(&shown, account);
        }
        self.sender.looped.bytes.clear();
        bytes
    }

    /// What the interface reports, told once.
    #[cold]
    fn interface_error(&mut self, error: &io::Error) {
        self.raw.interface_errors += 1;
        self.note_lost(&error.to_string());
    }

    #[cold]
    fn note_lost(&mut self, why: &str) {
        if !std::mem::replace(&mut self.told_lost, true) {
            let text = format!(
                "was down or gone ({why}); packets are lost meanwhile. It is used again when it is up again; one \
                 that was removed and made anew needs the device to be opened again"
            );
            self.attr.notes.push(("interface lost", text));
        }
    }
}

/// A packet socket with its filter, which is not bound yet.
struct RawTap {
    socket: Socket,
    /// Each frame comes with a `virtio_net_hdr`.
    vnet: bool,
    /// Bytes that may wait in super-frames.
    queue_bytes: usize,
}

/// A packet socket for the frames to an address, or to one part of a shared address.
fn tap(
    place: &Place,
    options: &RawOptions,
    part: Option<(u16, Part)>,
    notes: &mut Vec<(&'static str, String)>,
) -> Result<RawTap, OpenError> {
    let local = place.local;
    let io = |doing| move |source| OpenError::Io { doing, local, source };
    let socket = packet_socket(local)?;
    let (vnet, queue_bytes) = offer_superframes(&socket, notes);
    let filter = filter::program(options.version, local, options.vlan.unwrap_or(0), part, false);
    socket.attach_filter(&filter::for_socket(&filter)).map_err(io("attaching the filter"))?;
    set_option(socket.as_fd(), SOL_PACKET, sys::PACKET_VERSION, sys::TPACKET_V2)
        .map_err(io("asking for ring version 2"))?;
    // Where the kernel does not know it, the filter drops what this side sends.
    let _ = set_option(socket.as_fd(), SOL_PACKET, sys::PACKET_IGNORE_OUTGOING, 1);
    Ok(RawTap { socket, vnet, queue_bytes })
}

/// Takes a frame that did not fit its slot from the socket's queue. That the interface went down is told before the
/// frames that came until then, and each slot stands for one of these.
fn take_long(socket: &Socket, long: &mut [u8], raw: &mut RawCounters) -> rustix::io::Result<usize> {
    loop {
        match rustix::net::recv(socket, &mut *long, RecvFlags::DONTWAIT) {
            Err(Errno::NETDOWN) => raw.interface_errors += 1,
            taken => return taken.map(|(len, _)| len),
        }
    }
}

/// A packet socket that receives nothing yet.
fn packet_socket(local: IpAddr) -> Result<Socket, OpenError> {
    let kind = Type::RAW.nonblocking().cloexec();
    Socket::new(Domain::PACKET, kind, None).map_err(|source| match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            let program = std::env::current_exe().map_or("PROGRAM".to_owned(), |p| p.display().to_string());
            OpenError::NeedsNetRaw { program }
        }
        _ => OpenError::Io { doing: "opening a packet socket", local, source },
    })
}

/// Has RoCE packets of this version to this address, which is not shared, pass, and, if asked for, packets to groups.
fn set_filter(
    socket: &Socket,
    version: RoceVersion,
    local: IpAddr,
    vlan: u16,
    groups: bool,
) -> io::Result<()> {
    socket.attach_filter(&filter::for_socket(&filter::program(version, local, vlan, None, groups)))
}

/// Asks for what super-frames need; whether each frame comes with a `virtio_net_hdr`, and how many bytes may wait in
/// super-frames.
fn offer_superframes(socket: &Socket, notes: &mut Vec<(&'static str, String)>) -> (bool, usize) {
    let fd = socket.as_fd();
    let told = set_option(fd, SOL_PACKET, sys::PACKET_VNET_HDR, 1)
        .and_then(|()| set_option(fd, SOL_PACKET, sys::PACKET_COPY_THRESH, 1));
    let asked = RECV_BUFFER_BYTES as i32;
    if set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, asked).is_err() {
        let _ = socket.set_recv_buffer_size(RECV_BUFFER_BYTES);
    }
    // The kernel doubles what it is asked for, and counts its own overhead against it.
    let granted = socket.recv_buffer_size().unwrap_or(RECV_BUFFER_BYTES) / 2;
    let text = match &told {
        Ok(()) if granted < RECV_BUFFER_BYTES => format!(
            "segmented by this adapter where they arrive unsegmented; the socket's buffer has {granted} bytes: raise net.core.rmem_max, or run with \
             CAP_NET_ADMIN, for more"
        ),
        Ok(()) => format!(
            "segmented by this adapter where they arrive unsegmented; the socket's buffer has {granted} bytes"
        ),
        Err(e) => format!(
            "dropped ({e}): `ip link set INTERFACE gso_max_segs 1` makes a sender on this machine segment them"
        ),
    };
    notes.push(("super-frames", text));
    if told.is_ok() { (true, granted) } else { (false, usize::MAX) }
}

fn open_sender(
    place: &Place,
    source: Source,
    netlink: Netlink,
    shares: bool,
    notes: &mut Vec<(&'static str, String)>,
) -> Result<Sender, OpenError> {
    let io = |doing| move |e| OpenError::Io { doing, local: place.local, source: e };
    let socket = packet_socket(place.local)?;
    if let Err(e) = set_option(socket.as_fd(), SOL_PACKET, sys::PACKET_QDISC_BYPASS, 1) {
        notes.push(("queueing discipline", format!("not bypassed ({e})")));
    }
    let asked = SEND_BUFFER_BYTES as i32;
    if set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, asked).is_err() {
        socket.set_send_buffer_size(SEND_BUFFER_BYTES).map_err(io("sizing the send buffer"))?;
    }
    let vnet = set_option(socket.as_fd(), SOL_PACKET, sys::PACKET_VNET_HDR, 1).is_ok();
    sys::bind(&socket, place.link, 0).map_err(io("binding to the interface"))?;
    let neighbours = Neighbours::new(netlink, place.link, place.local, place.bare);
    Ok(Sender::new(socket, source, neighbours, vnet.then_some(place.uncut), shares))
}

fn mac_text(mac: &frame::Mac) -> String {
    mac.map(|b| format!("{b:02x}")).join(":")
}

impl MulticastGroups for RawFabric {
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        // The kernel tells switches, and has the interface take the group's frames.
        let guard = SockRef::from(&self.guard);
        member(&guard, group, self.link)?;
        if let Err(e) = set_filter(&self.socket, self.version, self.attr.local, self.vlan, true) {
            leave(&guard, group, self.link);
            return Err(e);
        }
        self.receiver.join(group);
        self.sender.joined.push(group);
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        if !self.receiver.is_member(group) {
            return;
        }
        leave(&SockRef::from(&self.guard), group, self.link);
        self.receiver.leave(group);
        self.sender.joined.retain(|joined| *joined != group);
        if !self.receiver.has_groups() {
            // The old one passes more than is wanted, and the receiver drops that.
            let _ = set_filter(&self.socket, self.version, self.attr.local, self.vlan, false);
        }
    }

    fn limit(&self) -> u32 {
        MAX_GROUPS
    }
}

/// Ends a membership, which the kernel ends with the interface too.
fn leave(socket: &Socket, group: IpAddr, link: u32) {
    let _ = match group {
        IpAddr::V4(group) => socket.leave_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(link)),
        IpAddr::V6(group) => socket.leave_multicast_v6(&group, link),
    };
}

impl Fabric for RawFabric {
    fn attr(&self) -> &FabricAttr {
        &self.attr
    }

    fn open_path_of(&mut self, av: &AddressVector, ends: QpEnds) -> Result<PathId, PathError> {
        let opened = self.sender.open_path(av, ends);
        self.look_often();
        opened
    }

    fn close_path(&mut self, path: PathId) {
        self.sender.close_path(path, &mut self.raw);
        self.look_often();
    }

    fn send(&mut self, now: Instant, batch: &mut TxBatch) {
        let Self { sender, counters, raw, tap, guard, .. } = self;
        sender.send(batch, &mut tx::Account { now, counters, raw, tap, guard });
        if self.sender.interface_lost && !self.told_lost {
            self.note_lost("it takes no frames");
        }
    }

    fn recv(&mut self, now: Instant, budget: RxBudget, sink: &mut dyn FnMut(&RxPacket<'_>)) -> RxOutcome {
        let Some(mut share) = self.shared.take() else { return self.recv_own(now, budget, sink) };
        let mut outcome = self.recv_own(now, budget, &mut share.only_own(sink));
        outcome.packets += self.look(now, &mut share, sink);
        self.shared = Some(share);
        outcome
    }

    fn next_deadline(&self) -> Option<Instant> {
        let shared = self.shared.as_ref().and_then(|share| share.next_deadline());
        self.sender.next_deadline().into_iter().chain(shared).min()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.as_ref().map_or(self.socket.as_fd(), |share| share.wait_fd()))
    }

    fn desk(&mut self) -> Option<&mut dyn ManagementDesk> {
        self.shared.as_deref_mut().map(|share| share as &mut dyn ManagementDesk)
    }

    fn prepare_wait(&mut self) -> bool {
        // An error that waits would keep the descriptor readable for ever.
        if let Ok(Some(e)) = self.socket.take_error() {
            self.interface_error(&e);
        }
        if let Some(share) = &mut self.shared {
            share.prepare_wait();
        }
        self.ring.has_frame() || !self.sender.looped.packets.is_empty()
    }

    #[cfg(not(loom))]
    fn renew_glance(&mut self, glance: &mut crate::Glance) -> bool {
        let by_ring = self.shared.is_none() && self.sender.looped.packets.is_empty();
        by_ring && self.sender.next_deadline().is_none() && self.ring.renew_glance(glance)
    }

    fn groups(&mut self) -> Option<&mut dyn MulticastGroups> {
        (self.version == RoceVersion::V2 && self.shared.is_none()).then_some(self)
    }

    fn counters(&self, out: &mut Vec<Counter>) {
        self.counters.append(out);
        self.raw.append(out);
        self.drops.set(self.drops.get() + u64::from(sys::take_drops(&self.socket)));
        out.push(Counter { name: "rx_kernel_drops", value: self.drops.get() });
        // The Identification stands in the frame: it is neither learned nor solved.
        FlowCounts::default().append(out);
        if let Some(share) = &self.shared {
            share.counters(out);
        }
    }

    fn set_tap(&mut self, tap: Option<Box<dyn Tap>>) {
        self.tap = tap;
    }
}
