//! [`Fabric`]: the trait that every kind of network implements, and its types.

use core::net::IpAddr;
use std::any::Any;
use std::os::fd::BorrowedFd;

use hca_core::{AddressVector, Counter, Instant, Mtu, Qpn};
use thiserror::Error;

use crate::{FabricLink, RoceVersion, TxBatch};

hca_core::debug_as_display!(PathError);

/// The name of a path to a peer within one fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u32);

/// The attributes of a fabric.
#[derive(Clone, Debug)]
pub struct FabricAttr {
    /// `auto`, `udp`, `uring`, `shm`, `raw`, `loopback`, `sim`, with layers in front (`capture+udp`).
    pub name: String,
    /// The local address.
    pub local: IpAddr,
    /// The largest path MTU that the link carries.
    pub max_mtu: Mtu,
    /// The bytes that a receiver of this kind buffers; a sender keeps at most as many in flight to one peer.
    pub recv_buffer_bytes: usize,
    /// The top byte of the numbers of all queue pairs, if several processes share the address.
    pub qpn_slot: Option<u8>,
    /// The link that carries the fabric's packets.
    pub link: FabricLink,
    /// Findings at run time, for users: the subject, and the finding with its remedy, if there is one.
    pub notes: Vec<(&'static str, String)>,
}

/// An error of opening a path.
#[derive(Error)]
#[non_exhaustive]
pub enum PathError {
    /// The peer's address has another IP version than the local address.
    #[error("the peer {peer} and this adapter's address {local} are of different IP versions")]
    Family {
        /// The peer.
        peer: IpAddr,
        /// This side.
        local: IpAddr,
    },
    /// The peer is another adapter of this machine, and frames that leave an Ethernet interface do not return to it.
    #[error(
        "the peer {peer} is an address of this machine, and frames that leave the interface of {local} do not come \
         back: use udp:// between adapters of one machine, or network namespaces"
    )]
    SameMachine {
        /// The peer.
        peer: IpAddr,
        /// This side.
        local: IpAddr,
    },
    /// The peer's address is not unicast.
    #[error("no path to {peer}: {why}")]
    NotUnicast {
        /// The peer.
        peer: IpAddr,
        /// The rule, and a valid replacement.
        why: &'static str,
    },
    /// The process at the peer's address belongs to another user.
    #[error(
        "the process at {peer} belongs to user {uid}: take an adapter of this user, or let both sides admit other users \
         (users=any)"
    )]
    ForeignUser {
        /// The peer.
        peer: IpAddr,
        /// The user.
        uid: u32,
    },
    /// The limit of open paths is reached.
    #[error("{0} paths are open, which is the limit")]
    Limit(usize),
    /// The operating system refused the call.
    #[error("{doing}: {source}{}", hca_core::remedy(source))]
    Io {
        /// The operation.
        doing: &'static str,
        /// The reason.
        source: std::io::Error,
    },
}

impl PathError {
    /// Refuses an address that leads nowhere: besides peers, a path without a queue pair at its end may lead to a
    /// multicast group.
    pub(crate) fn unless_addressable(peer: IpAddr, ends: QpEnds) -> Result<(), Self> {
        if peer.is_multicast() && ends.peer.is_none() { Ok(()) } else { Self::unless_unicast(peer) }
    }
    /// Refuses a peer's address that names no single peer.
    pub(crate) fn unless_unicast(peer: IpAddr) -> Result<(), Self> {
        let broadcast = matches!(peer, IpAddr::V4(a) if a.is_broadcast());
        let why = match peer {
            _ if peer.is_unspecified() => {
                "this is not a peer's address: give the peer's own, as in its endpoint or GID"
            }
            _ if peer.is_multicast() || broadcast => {
                "a path leads to one peer, and this is a group address: give the peer's own address, as in its endpoint or GID"
            }
            _ => return Ok(()),
        };
        Err(Self::NotUnicast { peer, why })
    }
}

/// The numbers of the queue pairs at both ends of a path, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpEnds {
    /// This side's.
    pub local: Option<Qpn>,
    /// The peer's.
    pub peer: Option<Qpn>,
}

/// The fields of a packet's headers before the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketHeader {
    /// The sender's address.
    pub src: IpAddr,
    /// The receiver's address, or that of a multicast group.
    pub dst: IpAddr,
    /// The sender's UDP port; 0 on RoCEv1, which has none.
    pub src_port: u16,
    /// DSCP and ECN bits; 3 in the lower two is "congestion experienced".
    /// [`Fabric::read_traffic_class`] says when it may be 0 instead.
    pub traffic_class: u8,
    /// The time to live; 0 if it is unknown.
    pub hop_limit: u8,
}

/// One packet that arrived, its ICRC checked.
#[derive(Clone, Copy, Debug)]
pub struct RxPacket<'a> {
    /// Its headers.
    pub header: PacketHeader,
    /// The bytes from BTH to padding, without the ICRC; at least 12.
    pub bytes: &'a [u8],
}

impl RxPacket<'_> {
    /// Whether the packet met congestion on its way.
    pub fn congestion_experienced(&self) -> bool {
        self.header.traffic_class & 3 == 3
    }
}

/// The limits of one receive call.
#[derive(Clone, Copy, Debug)]
pub struct RxBudget {
    /// The most packets.
    pub packets: usize,
    /// The most bytes.
    pub bytes: usize,
}

/// The result of a receive call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxOutcome {
    /// The number of packets given to the sink.
    pub packets: usize,
    /// Whether the budget ended before the input did.
    pub more: bool,
}

/// The direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Sent by this side.
    Tx,
    /// Received by this side.
    Rx,
}

/// A frame as it is on the wire, for a [`Tap`].
#[derive(Clone, Copy, Debug)]
pub struct TapFrame<'a> {
    /// The direction of the frame.
    pub direction: Direction,
    /// The kind of headers before the BTH: IP and UDP, or a GRH.
    pub version: RoceVersion,
    /// Their fields.
    pub header: PacketHeader,
    /// The IPv4 Identification of the frame, or the one that the ICRC proves.
    pub ident: u16,
    /// BTH to ICRC.
    pub payload: &'a [u8],
}

/// An observer of every frame, with the frame's real header. Captures are taps.
pub trait Tap: Send {
    /// Observes one frame at this time.
    fn frame(&mut self, now: Instant, frame: &TapFrame<'_>);
    /// Writes out buffered frames.
    ///
    /// # Errors
    /// The file can't be written.
    fn flush(&mut self) -> std::io::Result<()>;
}

/// A network, seen from one address.
pub trait Fabric: Send + Any {
    /// The fabric's attributes.
    fn attr(&self) -> &FabricAttr;
    /// The [notes](FabricAttr::notes) up to now: a layer's attributes have those of the network below it when the layer
    /// was made.
    fn notes(&self) -> Vec<(&'static str, String)> {
        self.attr().notes.clone()
    }
    /// Opens a path that is not for a single queue pair, such as an address handle's. It may lead to a multicast group.
    ///
    /// # Errors
    /// As [`open_path_of`](Self::open_path_of).
    fn open_path(&mut self, av: &AddressVector) -> Result<PathId, PathError> {
        self.open_path_of(av, QpEnds::default())
    }
    /// Opens a path between queue pairs of these numbers; several paths to one peer may be the same. If the address
    /// vector has no flow label, the local number spreads the queue pairs over
    /// [`PORTS_PER_PEER`](crate::PORTS_PER_PEER) UDP source
    /// ports.
    ///
    /// # Errors
    /// The peer can't be addressed from here.
    fn open_path_of(&mut self, av: &AddressVector, ends: QpEnds) -> Result<PathId, PathError>;
    /// Closes a path. Its packets under way may still be sent.
    fn close_path(&mut self, path: PathId);
    /// Puts on the ICRCs of all waiting trains and sends them, in order on each path. Packets that the network can't
    /// take now stay in the batch; packets that the network refuses for good are lost, and counted.
    fn send(&mut self, now: Instant, batch: &mut TxBatch);
    /// The least payload of a packet that is worth being [lent](TxBatch::commit_lent) and not copied; `None`: this
    /// fabric sends whole packets only.
    fn sends_in_place_from(&self) -> Option<u32> {
        None
    }
    /// Gives arrived packets to `sink`, at most the budget (the rest of a train may exceed it).
    fn recv(&mut self, now: Instant, budget: RxBudget, sink: &mut dyn FnMut(&RxPacket<'_>)) -> RxOutcome;
    /// The time at which the fabric needs a call although no packet arrives (for a delay layer).
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
    /// A descriptor that is readable when `recv` has packets. `None`: this fabric has no descriptor (the simulator).
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;
    /// A second descriptor, of packets that come rarely: at a shared address those that name no process. One set for both
    /// would cost each packet of the first a wake-up of the set.
    fn wait_fd_beside(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// To be called before one sleeps on [`wait_fd`](Self::wait_fd); `true`: do not sleep, there is input.
    fn prepare_wait(&mut self) -> bool {
        false
    }
    /// Updates a glance to the present state of the fabric, whose last call found no input. `false`: the glance is not
    /// valid, as only [`recv`](Self::recv) can tell whether a packet has arrived.
    #[cfg(not(loom))]
    fn renew_glance(&mut self, _glance: &mut crate::Glance) -> bool {
        false
    }
    /// Tells the [traffic class](PacketHeader::traffic_class) of each packet from now on. Before this call a fabric may
    /// leave it at 0 where nothing on the way marks packets that meet congestion.
    fn read_traffic_class(&mut self) {}
    /// The desk of an address that several adapters share; `None` where the adapter has its address alone.
    fn desk(&mut self) -> Option<&mut dyn ManagementDesk> {
        None
    }
    /// The multicast groups of this end; `None` where the fabric carries no multicast.
    fn groups(&mut self) -> Option<&mut dyn MulticastGroups> {
        None
    }
    /// Appends this fabric's counters.
    fn counters(&self, out: &mut Vec<Counter>);
    /// Installs (or removes) a tap.
    fn set_tap(&mut self, tap: Option<Box<dyn Tap>>);
}

/// The desk of a shared address: the management datagrams that name no process.
pub trait ManagementDesk {
    /// Gives such datagrams to this adapter, too, from now on (`true`), or no longer.
    fn read(&mut self, on: bool);
    /// Gives requests of connection management for a service to this adapter.
    ///
    /// # Errors
    /// Another adapter at the address has claimed the service ([`AddrInUse`](std::io::ErrorKind::AddrInUse)), or the
    /// system refuses a socket.
    fn claim(&mut self, service: u64) -> std::io::Result<()>;
    /// Ends a claim.
    fn release(&mut self, service: u64);
}

/// The multicast groups whose packets an end receives. A packet to a group comes to all ends that have joined it, the
/// sender's own included, once each; [`PacketHeader::dst`] is the group's address.
pub trait MulticastGroups {
    /// Receives a group's packets from now on. The address is a multicast one, of the IP version of the local address,
    /// and was not joined.
    ///
    /// # Errors
    /// The system refuses.
    fn join(&mut self, group: IpAddr) -> std::io::Result<()>;
    /// Receives no more of a group's packets. Nothing happens if it was not joined.
    fn leave(&mut self, group: IpAddr);
    /// The most groups that are joined at a time.
    fn limit(&self) -> u32;
    /// The descriptor that is readable while packets of groups wait, if [`Fabric::wait_fd`] does not tell of them. It is
    /// there from the first [`join`](Self::join) on, and stays.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
