//! Abilities that only some devices have, and the attributes of objects that can be changed.

use core::time::Duration;

use crate::wire::Placement;
use crate::{
    Access, CqHandle, DeviceError, Gid, MwHandle, MwRange, PdHandle, QpHandle, QpInit, QpPorts, Qpn,
    RddHandle, RecvPort, Rkey, SrqHandle, SrqInit, Srqn, XrcdHandle,
};

/// Abilities that only some devices have. A device without an ability refuses its calls as unsupported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// The most that the notifications of a completion queue can be held back
    /// ([`Device::moderate_cq`](crate::Device::moderate_cq)); `None`: not at all.
    pub cq_moderation: Option<CqModeration>,
    /// Whether completion queues can be resized ([`CqPort::resize`](crate::CqPort::resize)).
    pub cq_resize: bool,
    /// Whether shared receive queues can be resized ([`RecvPort::resize`](crate::RecvPort::resize)).
    pub srq_resize: bool,
    /// Whether the domain and the rights of a region can be changed ([`Device::rereg_mr`](crate::Device::rereg_mr)).
    pub mr_rereg: bool,
    /// Memory windows; 0: the device has none ([`Device::windows`](crate::Device::windows)).
    pub max_mw: u32,
    /// XRC domains; 0: the device has no XRC ([`Device::xrc`](crate::Device::xrc)).
    pub max_xrcd: u32,
    /// Domains of reliable datagrams; 0: the device has no RD
    /// ([`Device::reliable_datagrams`](crate::Device::reliable_datagrams)).
    pub max_rdd: u32,
    /// Multicast groups that have a member here; 0: the device has none ([`Device::multicast`](crate::Device::multicast)).
    pub max_mcast_grp: u32,
    /// Queue pairs of the device that may be members of one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Whether RC queue pairs have ATOMIC WRITE ([`SendOp::AtomicWrite`](crate::SendOp::AtomicWrite)).
    pub atomic_write: bool,
    /// The placement types of FLUSH that RC queue pairs have ([`SendOp::Flush`](crate::SendOp::Flush)); empty: no FLUSH.
    /// The device registers no region for peers to FLUSH to another place.
    pub flush: Placement,
}

/// How long a completion queue holds notifications back, so that one notification stands for several completions.
///
/// A queue that is armed raises its notification when `count` completions that it is armed for have come, or `period`
/// after the first of them, whichever is first. A device may raise it earlier. Completions themselves are not held
/// back: a poll returns them at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqModeration {
    /// Completions; 0 and 1 hold nothing back.
    pub count: u16,
    /// The time, in whole microseconds; zero holds nothing back.
    pub period: Duration,
}

impl CqModeration {
    /// Whether notifications are held back at all.
    pub fn holds_back(&self) -> bool {
        self.count > 1 && !self.period.is_zero()
    }
}

/// The attributes of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqStatus {
    /// Entries.
    pub depth: u32,
    /// How it holds notifications back.
    pub moderation: CqModeration,
    /// Its completions have times ([`CqPort::poll_with_times`](crate::CqPort::poll_with_times)).
    pub timed: bool,
}

/// The attributes of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqStatus {
    /// Outstanding requests that it has room for.
    pub max_wr: u32,
    /// Entries in a request's list.
    pub max_sge: u32,
    /// The limit that is armed; 0: none.
    pub limit: u32,
}

/// The attributes of a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrStatus {
    /// The protection domain.
    pub pd: PdHandle,
    /// The address by which requests name the first byte.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// The permitted accesses.
    pub access: Access,
}

/// The kind of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MwType {
    /// Type 1: bound by a call, and used through any queue pair of its protection domain. The device chooses its key
    /// anew at each bind.
    One,
    /// Type 2B: bound by a request of a queue pair, and used through that queue pair alone, of the window's protection
    /// domain. The program chooses the lowest byte of its key at each bind.
    Two,
}

/// The handle and the key of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwKeys {
    /// The handle.
    pub handle: MwHandle,
    /// The key. Nothing is reached by it before a bind; of type 2, its lowest byte is the program's to choose.
    pub rkey: Rkey,
}

/// The attributes of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwStatus {
    /// The kind.
    pub kind: MwType,
    /// The protection domain.
    pub pd: PdHandle,
    /// The key now.
    pub rkey: Rkey,
    /// The range that it shows; `None`: it is not bound.
    pub range: Option<MwRange>,
    /// The queue pair that it is bound to (type 2).
    pub qp: Option<QpHandle>,
}

/// Memory windows: keys for parts of a region that are given and taken back without a registration.
///
/// A region that has windows bound to it is neither deregistered nor changed. A device never gives a peer on the same
/// machine direct access by a window's key, so that taking it back needs nothing of the peer.
///
/// A window of type 2 is bound by [`SendOp::BindMw`](crate::SendOp::BindMw), and its key is taken back by
/// [`SendOp::LocalInv`](crate::SendOp::LocalInv) or by the peer's [`SendOp::SendInv`](crate::SendOp::SendInv), or when
/// its queue pair is destroyed. Only then is it bound anew.
pub trait MemoryWindows: Send + Sync {
    /// Creates a memory window.
    ///
    /// # Errors
    /// The limit is reached, or the protection domain is unknown.
    fn alloc_mw(&self, pd: PdHandle, kind: MwType) -> Result<MwKeys, DeviceError>;
    /// Binds a window of type 1, which may be bound already; `None` takes its key back and binds it to nothing. Returns
    /// the new key. On return, nothing is reached by the old key any more.
    ///
    /// # Errors
    /// The window is unknown, of type 2, or zero-based; the region is unknown or of another protection domain; range or
    /// rights are beyond what it allows. The window is as it was.
    fn bind_mw(&self, mw: MwHandle, range: Option<&MwRange>) -> Result<Rkey, DeviceError>;
    /// The attributes of a window.
    ///
    /// # Errors
    /// It is unknown.
    fn query_mw(&self, mw: MwHandle) -> Result<MwStatus, DeviceError>;
    /// Destroys a window. On return, nothing is reached by its key any more.
    ///
    /// # Errors
    /// It is unknown.
    fn dealloc_mw(&self, mw: MwHandle) -> Result<(), DeviceError>;
}

/// The port and the names of a new shared receive queue of an XRC domain.
pub struct XrcSrqPort {
    /// The handle.
    pub handle: SrqHandle,
    /// The number by which requests of peers name it; not 0.
    pub number: Srqn,
    /// The queue.
    pub recv: Box<dyn RecvPort>,
}

/// Extended reliable connections (XRC): a connection ends at an XRC domain, and each of its requests names a shared
/// receive queue of that domain. So one connection serves all programs or threads behind it.
///
/// An initiator is created by [`Device::create_qp`](crate::Device::create_qp) with the type
/// [`QpType::XrcIni`](crate::QpType::XrcIni), and only sends. Its peer is a target, which only receives:
/// [`create_xrc_target`](Self::create_xrc_target). A target has neither protection domain nor completion queues: the
/// queue that a request names decides about both.
///
/// - The completion of a receive request goes to the completion queue of its shared receive queue, and names the target
///   queue pair and the number of the queue.
/// - RDMA and atomics need no receive request, but name a queue, too: the protection domain of their keys is that of the
///   queue.
/// - A request that names no queue of the target's domain is refused like one with a wrong key.
/// - The completions of a target that is destroyed or reset stay: their requests are those of the queues. A request that
///   it holds for a message under way is its queue's again.
/// - [`Device::destroy_srq`](crate::Device::destroy_srq) destroys a queue. A target that is receiving a message into a
///   request of the queue goes to the error state. No completion of the queue's requests is returned by any poll that
///   begins later, nor does any hold an entry of the completion queue.
pub trait ExtendedConnections: Send + Sync {
    /// Creates an XRC domain.
    ///
    /// # Errors
    /// The limit is reached.
    fn alloc_xrcd(&self) -> Result<XrcdHandle, DeviceError>;
    /// Destroys an XRC domain.
    ///
    /// # Errors
    /// It is unknown, or queues or targets still belong to it.
    fn dealloc_xrcd(&self, xrcd: XrcdHandle) -> Result<(), DeviceError>;
    /// Creates a shared receive queue of an XRC domain, whose completions go to a completion queue of its own choice.
    ///
    /// # Errors
    /// A limit, or an unknown handle.
    fn create_xrc_srq(
        &self,
        pd: PdHandle,
        xrcd: XrcdHandle,
        cq: CqHandle,
        init: &SrqInit,
    ) -> Result<XrcSrqPort, DeviceError>;
    /// Creates a target queue pair of an XRC domain in state RESET. It exists until
    /// [`Device::destroy_qp`](crate::Device::destroy_qp), which names none of its requests.
    ///
    /// # Errors
    /// A limit, or an unknown domain.
    fn create_xrc_target(&self, xrcd: XrcdHandle) -> Result<(QpHandle, Qpn), DeviceError>;
}

/// Reliable datagrams (RD): each request of a queue pair names the queue pair that it is for, and the end-to-end context
/// (EE context) by which it goes. So one reliable connection between two adapters serves all queue pairs of both, and a
/// queue pair sends to as many queue pairs as there are.
///
/// - A queue pair and an end-to-end context belong to one RD domain, and work together only within it.
/// - An end-to-end context is connected like an RC queue pair, by [`Device::modify_qp`](crate::Device::modify_qp) with
///   the attributes of one, where `dest_qpn` is the number of the peer's context. A queue pair has a Q_Key, as one of UD.
/// - An end-to-end context has one message under way, and so has a queue pair. Contexts serve their queue pairs in turn.
/// - SEND, RDMA WRITE, RDMA READ and atomics are offered. Keys are those of the protection domain of the queue pair that
///   a request is for, with the rights of the end-to-end context.
/// - A request that is refused, or that fails at this side, ends with its status and takes its queue pair to
///   [`QpState::Sqe`](crate::QpState::Sqe). The end-to-end context resynchronizes with its peer, and serves its other
///   queue pairs. A message of which the peer has a part is aborted there: its receive request completes as
///   [`RemoteAborted`](crate::WcStatus::RemoteAborted).
/// - A peer that does not answer takes the end-to-end context to the error state. Requests that name a context in
///   another state than RTS or SQD fail with [`InvalidEecState`](crate::WcStatus::InvalidEecState).
/// - A receive request's completion names the sender's queue pair. Requests of one receive queue complete in any order,
///   as several end-to-end contexts take from it.
pub trait ReliableDatagrams: Send + Sync {
    /// Creates an RD domain.
    ///
    /// # Errors
    /// The limit is reached.
    fn alloc_rdd(&self) -> Result<RddHandle, DeviceError>;
    /// Destroys an RD domain.
    ///
    /// # Errors
    /// It is unknown, or queue pairs or end-to-end contexts still belong to it.
    fn dealloc_rdd(&self, rdd: RddHandle) -> Result<(), DeviceError>;
    /// Creates a queue pair of an RD domain in state RESET. `init` is of type [`QpType::Rd`](crate::QpType::Rd) and names
    /// no shared receive queue.
    ///
    /// # Errors
    /// A limit, or an unknown handle.
    fn create_rd_qp(&self, pd: PdHandle, rdd: RddHandle, init: &QpInit) -> Result<QpPorts, DeviceError>;
    /// Creates an end-to-end context of an RD domain in state RESET; returns its handle and its number. It exists until
    /// [`Device::destroy_qp`](crate::Device::destroy_qp).
    ///
    /// # Errors
    /// A limit, or an unknown domain.
    fn create_eec(&self, rdd: RddHandle) -> Result<(QpHandle, Qpn), DeviceError>;
}

/// Multicast: datagrams to a group, of which each member gets a copy.
///
/// A group is named by its GID, an IP multicast address: `::ffff:239.1.2.3` on a port whose address is an IPv4 one, an
/// IPv6 multicast address as it stands on others. A program sends to a group by an address handle with the group's GID
/// and to [`Qpn::MULTICAST`](crate::Qpn::MULTICAST), from any datagram queue pair: a sender need not be a member. A copy
/// takes a receive request of the member, behind the checks that a datagram to the queue pair itself meets (state,
/// partition, Q_Key); a member without one drops its copy and counts that.
///
/// Messages loop back: members on the sender's own device get their copies, and so does the sender, if it is a member.
///
/// A queue pair that is destroyed leaves its groups. A reset keeps them.
pub trait Multicast: Send + Sync {
    /// Makes a datagram queue pair a member of a group.
    ///
    /// # Errors
    /// The GID is not a group's, or of the other IP version; the queue pair is unknown, connected, or a member already;
    /// the device's limit of groups ([`Abilities::max_mcast_grp`]) or of a group's members
    /// ([`Abilities::max_mcast_qp_attach`]) is reached; or the network refuses.
    fn attach_mcast(&self, qp: QpHandle, group: Gid) -> Result<(), DeviceError>;
    /// Ends a membership. On return, no message to the group is given to the queue pair any more.
    ///
    /// # Errors
    /// The queue pair is unknown, or no member.
    fn detach_mcast(&self, qp: QpHandle, group: Gid) -> Result<(), DeviceError>;
}
