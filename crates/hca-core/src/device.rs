//! The interface of an adapter: a control path that may lock and allocate, and data path ports that do neither.
//!
//! One thread at a time uses a port (`&mut self`), so ports need no lock. Different ports of one queue pair may be used
//! by different threads: one posts while another polls. Dynamic dispatch happens once a batch.
//!
//! The traits are `unsafe` to implement, because programs without `unsafe` code reuse memory when a device reports its
//! release. Each trait lists an implementor's obligations by number, and each `unsafe impl` argues by these numbers.
#![allow(unsafe_code)] // declarations only: what callers and implementors have to promise about memory

use core::ptr::NonNull;
use core::task::Waker;
use core::time::Duration;
use std::os::fd::BorrowedFd;

use crate::{
    Abilities, Access, AddressVector, AhHandle, AsyncEvent, Completion, CqHandle, CqModeration, CqStatus,
    DeviceClock, DeviceError, ExtendedConnections, GidEntry, GidType, LinkLayer, Lkey, MemoryWindows,
    MrHandle, MrStatus, Multicast, Offload, PdHandle, Pkey, PortAttr, PortCounters, PostError, PostErrorKind,
    QpAttr, QpCap, QpHandle, QpInfo, QpInit, QpState, Qpn, RecvWr, ReliableDatagrams, Rkey, SendWr,
    SrqHandle, SrqStatus,
};

/// An adapter's control path. The trait is object-safe.
///
/// Handles carry a generation: a handle of a destroyed object is refused, and never names another object.
///
/// # Safety
/// The following holds for all requests of the program and all packets of peers, in any order and from any thread,
/// provided that callers of `unsafe` methods meet their own obligations:
/// 1. Apart from its own memory, the device accesses only registered regions of the process. Within these it accesses
///    only the memory that the list of an outstanding request names by its region's key, in the way of the request (a
///    list that is read is not written), and the memory that peers name by a region's key, as the region's [`Access`]
///    allows, or by the key of a memory window that is bound to a region with [`Access::MW_BIND`], as the bind allows.
/// 2. The program may copy from and to the same bytes meanwhile. So the device's accesses are not plain accesses of
///    Rust: they are atomics, assembly, or made outside of this program.
/// 3. After [`dereg_mr`](Self::dereg_mr) has returned `Ok`, the device no longer accesses the region's memory.
/// 4. After [`destroy_qp`](Self::destroy_qp) has returned `Ok`, the device no longer accesses memory for the queue
///    pair's requests. A request that the queue pair took from a shared receive queue and has not completed is among
///    the returned requests, or was polled, or is being polled at this moment.
/// 5. After [`destroy_srq`](Self::destroy_srq) has returned `Ok`, the device no longer accesses memory for the queue's
///    requests.
/// 6. Memory of [`alloc_memory`](Self::alloc_memory) is aligned as documented there.
/// 7. A handle names one object: no two objects ever have the same handle. No two existing regions share a key.
/// 8. The device's ports meet the obligations of their own traits, also after the queue, or the device, is gone.
pub unsafe trait Device: Send + Sync {
    /// Limits and abilities.
    fn attr(&self) -> &DeviceAttr;
    /// The port (an adapter has one).
    fn port(&self) -> PortAttr;
    /// The port's GID table: entries that are in use, by index. A device that has no table of its own has that of
    /// [`GidEntry::of_port`].
    fn gids(&self) -> Vec<GidEntry> {
        let port = self.port();
        let kind = if port.link_layer == LinkLayer::InfiniBand { GidType::Ib } else { GidType::RoceV2 };
        GidEntry::of_port(port.gid, kind, None)
    }
    /// The entry of the GID table with this index; `None` if it is not in use.
    fn gid(&self, index: u32) -> Option<GidEntry> {
        self.gids().into_iter().find(|entry| entry.index == index)
    }
    /// The entry of the GID table with this index, for a program that was told the index.
    ///
    /// # Errors
    /// The index is not in use; the error names those that are.
    fn query_gid(&self, index: u32) -> Result<GidEntry, DeviceError> {
        let table = self.gids();
        let used = table.iter().map(|entry| entry.index).collect();
        let found = table.into_iter().find(|entry| entry.index == index);
        found.ok_or(DeviceError::UnusedGidIndex { index, used })
    }
    /// The entries of the GID table for packets of this type, on this interface if one is given.
    fn gids_of(&self, kind: GidType, interface: Option<&str>) -> Vec<GidEntry> {
        let mut table = self.gids();
        table.retain(|entry| {
            entry.kind == kind && interface.is_none_or(|name| entry.interface.as_deref() == Some(name))
        });
        table
    }
    /// The port's P_Key table, by index. A device that takes P_Keys by value has one entry, the default.
    fn pkeys(&self) -> Vec<Pkey> {
        vec![Pkey::DEFAULT]
    }
    /// The port's counters by the names of the IBA; `None` where there is no link, or the device does not count them.
    fn port_counters(&self) -> Option<PortCounters> {
        None
    }
    /// A snapshot of all counters, by name. Names are only ever added.
    fn counters(&self) -> Vec<Counter>;
    /// A snapshot of one queue pair's own counters, by the names that [`counters`](Self::counters) has for the sums.
    ///
    /// # Errors
    /// The queue pair is unknown, or the device counts nothing by queue pair, as a ConnectX adapter does not.
    fn qp_counters(&self, _qp: QpHandle) -> Result<Vec<Counter>, DeviceError> {
        Err(DeviceError::Unsupported { what: "counters by queue pair" })
    }
    /// All queue pairs, by their place in the device's table. Empty where the device keeps no such list.
    fn queue_pairs(&self) -> Vec<QpInfo> {
        Vec::new()
    }
    /// The device's clock, which time stamps of completions are read from; `None` where there is none.
    fn clock(&self) -> Option<DeviceClock> {
        None
    }

    /// Creates a protection domain.
    ///
    /// # Errors
    /// The limit is reached.
    fn alloc_pd(&self) -> Result<PdHandle, DeviceError>;
    /// Destroys a protection domain.
    ///
    /// # Errors
    /// It is unknown, or objects still belong to it.
    fn dealloc_pd(&self, pd: PdHandle) -> Result<(), DeviceError>;

    /// Memory that this device can reach (mapped, pinned or shared as it needs), zeroed, aligned to
    /// at least 4096 bytes.
    ///
    /// # Errors
    /// There is not that much.
    fn alloc_memory(&self, len: usize) -> Result<DmaMemory, DeviceError>;
    /// Registers memory. `Access` of nothing means local reads only.
    ///
    /// # Safety
    /// `mr.addr .. mr.addr + mr.len` stays valid until [`dereg_mr`](Self::dereg_mr) has returned, and
    /// the program reads and writes it under the rules of memory that others change meanwhile:
    /// wherever a request in flight or a peer may write, no reference to it exists.
    ///
    /// # Errors
    /// A limit, an unknown protection domain, or memory of a kind that the device can't reach.
    unsafe fn reg_mr(&self, pd: PdHandle, mr: &MrInit) -> Result<MrKeys, DeviceError>;
    /// Takes a region's keys back. When it returns, the device touches the memory no more.
    ///
    /// # Errors
    /// The handle is unknown, or the region is gone and a peer may still change its memory
    /// ([`DeviceError::Exposed`]).
    fn dereg_mr(&self, mr: MrHandle) -> Result<(), DeviceError>;
    /// Moves a region to another protection domain and changes its rights; its memory and addresses stay. On return, no
    /// access is under way that is no longer allowed. The region has a new handle, and may have new keys.
    ///
    /// # Errors
    /// Either handle is unknown, and nothing was done; the device can not ([`Abilities::mr_rereg`]); or the region is
    /// gone, and a peer may still change its memory ([`DeviceError::Exposed`]).
    fn rereg_mr(&self, _mr: MrHandle, _pd: PdHandle, _access: Access) -> Result<MrKeys, DeviceError> {
        Err(DeviceError::Unsupported { what: "change of a registered region" })
    }
    /// The attributes of a region.
    ///
    /// # Errors
    /// It is unknown, or the device changes none ([`Abilities::mr_rereg`]).
    fn query_mr(&self, _mr: MrHandle) -> Result<MrStatus, DeviceError> {
        Err(DeviceError::Unsupported { what: "query of regions" })
    }

    /// Creates a completion queue of at least `depth` entries.
    ///
    /// # Errors
    /// `depth` is 0 or beyond the limit, or there are too many.
    fn create_cq(&self, depth: u32) -> Result<(CqHandle, Box<dyn CqPort>), DeviceError>;
    /// Creates a completion queue whose completions have times, for [`CqPort::poll_with_times`]. A device with a clock
    /// whose every queue has them need not tell them apart.
    ///
    /// # Errors
    /// As [`create_cq`](Self::create_cq), or the device has no clock.
    fn create_timed_cq(&self, depth: u32) -> Result<(CqHandle, Box<dyn CqPort>), DeviceError> {
        if self.clock().is_none() {
            return Err(DeviceError::Unsupported { what: "times of completions" });
        }
        self.create_cq(depth)
    }
    /// Sets how long a completion queue holds notifications back.
    ///
    /// # Errors
    /// It is unknown, a value is beyond [`Abilities::cq_moderation`], or the device holds none back.
    fn moderate_cq(&self, _cq: CqHandle, _moderation: CqModeration) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported { what: "moderation of completion queues" })
    }
    /// The attributes of a completion queue.
    ///
    /// # Errors
    /// It is unknown, or the device changes none ([`Abilities::cq_moderation`], [`Abilities::cq_resize`]).
    fn query_cq(&self, _cq: CqHandle) -> Result<CqStatus, DeviceError> {
        Err(DeviceError::Unsupported { what: "query of completion queues" })
    }
    /// Destroys a completion queue. A Portals engine that is attached to it is detached first.
    ///
    /// # Errors
    /// It is unknown, or queue pairs still use it; then nothing was done.
    fn destroy_cq(&self, cq: CqHandle) -> Result<(), DeviceError>;

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// A limit, or an unknown protection domain.
    fn create_srq(&self, pd: PdHandle, init: &SrqInit)
    -> Result<(SrqHandle, Box<dyn RecvPort>), DeviceError>;
    /// Arms the limit event: it is raised once, when fewer than `limit` requests are left. 0 disarms.
    ///
    /// # Errors
    /// It is unknown, or the limit is beyond the queue's depth.
    fn set_srq_limit(&self, srq: SrqHandle, limit: u32) -> Result<(), DeviceError>;
    /// The attributes of a shared receive queue.
    ///
    /// # Errors
    /// It is unknown, or the device changes none ([`Abilities::srq_resize`]).
    fn query_srq(&self, _srq: SrqHandle) -> Result<SrqStatus, DeviceError> {
        Err(DeviceError::Unsupported { what: "query of shared receive queues" })
    }
    /// Destroys a shared receive queue.
    ///
    /// # Errors
    /// It is unknown, or queue pairs still use it.
    fn destroy_srq(&self, srq: SrqHandle) -> Result<(), DeviceError>;

    /// Creates an address handle for datagrams.
    ///
    /// # Errors
    /// A limit, an unknown protection domain, or no path.
    fn create_ah(&self, pd: PdHandle, av: &AddressVector) -> Result<AhHandle, DeviceError>;
    /// Destroys an address handle.
    ///
    /// # Errors
    /// It is unknown.
    fn destroy_ah(&self, ah: AhHandle) -> Result<(), DeviceError>;

    /// Creates a queue pair in state RESET.
    ///
    /// # Errors
    /// A limit, an unknown handle, or objects of another protection domain.
    fn create_qp(&self, pd: PdHandle, init: &QpInit) -> Result<QpPorts, DeviceError>;
    /// Creates the general services queue pair, whose number is 1, in state RESET: a datagram queue pair, to which the
    /// connection managers of peers send. `init` is that of a datagram queue pair. There is one at a time.
    ///
    /// # Errors
    /// As [`create_qp`](Self::create_qp); the program can not have it; or it exists.
    fn create_general_services_qp(&self, _pd: PdHandle, _init: &QpInit) -> Result<QpPorts, DeviceError> {
        Err(DeviceError::Unsupported { what: "the general services queue pair" })
    }
    /// The top byte that the communication IDs of a connection manager on this adapter have, so that messages find the
    /// adapter among several that share an address. `None`: any byte will do.
    fn comm_id_prefix(&self) -> Option<u8> {
        None
    }
    /// Has requests for a service, by its ID, come to this adapter's general services queue pair, if several adapters
    /// share an address. Each claim is to be [released](Self::release_service).
    ///
    /// # Errors
    /// Another adapter at the address has claimed the service ([`DeviceError::InUse`]).
    fn claim_service(&self, _service: u64) -> Result<(), DeviceError> {
        Ok(())
    }
    /// Ends a claim.
    fn release_service(&self, _service: u64) {}
    /// Sets attributes and changes the state. RESET forgets the requests of the queue pair's own queues with their
    /// completions; those that it took from a shared receive queue, and that no poll has returned, complete as flushed
    /// or are that queue's again.
    ///
    /// # Errors
    /// The transition's rules ([`QpAttr::check`]), a value out of range, or no path to the peer.
    fn modify_qp(&self, qp: QpHandle, attr: &QpAttr) -> Result<(), DeviceError>;
    /// The state and all attributes that are set.
    ///
    /// # Errors
    /// It is unknown.
    fn query_qp(&self, qp: QpHandle) -> Result<QpStatus, DeviceError>;
    /// Destroys a queue pair. When it returns, the device touches no memory for it any more, and no
    /// completion of it will be returned by any poll that begins later, nor does any hold an entry of its completion
    /// queues (those of an [XRC target](ExtendedConnections) stay). Returned are the `wr_id`s of the
    /// requests that it took from a shared receive queue and that no poll will return any more; one that a poll
    /// on another thread returns at this moment may be among them.
    ///
    /// # Errors
    /// It is unknown.
    fn destroy_qp(&self, qp: QpHandle) -> Result<Vec<u64>, DeviceError>;

    /// Takes the oldest asynchronous event.
    fn poll_event(&self) -> Option<AsyncEvent>;
    /// Registers a waker for the next asynchronous event. The thread that makes the device's progress wakes it; it is
    /// woken at once if an event waits. Any number of wakers wait side by side, and all are woken, without a lock held:
    /// an [`EventQueue`](crate::EventQueue) does this. A waker may be woken though nothing came.
    fn set_event_waker(&self, waker: &Waker);

    /// Makes a bounded amount of the device's progress on this thread, if the device works so and no other thread does.
    /// Returns whether it did anything. Hardware returns `false`. Called in a loop it gives the CPU to other threads
    /// where it finds nothing many times in a row.
    fn turn(&self) -> bool;
    /// Whether only the program's calls make the device's progress: nothing happens between them, and no waiter is
    /// woken. Hardware, and an adapter with a thread or in a simulator, returns `false`.
    fn needs_turns(&self) -> bool;
    /// The time until the device needs a turn even if nothing happens; `None` if it needs none. Called by a thread that
    /// is about to sleep on [`wait_fd`](Self::wait_fd) or [`turn_fd`](Self::turn_fd): calls of other threads leave the
    /// descriptors such that they wake it, until the thread calls [`turn`](Self::turn).
    fn next_deadline(&self) -> Option<Duration>;
    /// The descriptor that becomes readable when the device needs a turn, or has an asynchronous event, while no thread
    /// makes its progress. `None` only where there is no descriptor.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;
    /// The descriptor that becomes readable when the device needs a turn while no thread makes its progress.
    /// Asynchronous events do not count, so that a program that does not take them can sleep on it. `None` if the
    /// device makes its own progress, or has no descriptor.
    fn turn_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Memory windows, where the device has them.
    fn windows(&self) -> Option<&dyn MemoryWindows> {
        None
    }
    /// Extended reliable connections (XRC), where the device has them.
    fn xrc(&self) -> Option<&dyn ExtendedConnections> {
        None
    }
    /// Reliable datagrams (RD), where the device has them.
    fn reliable_datagrams(&self) -> Option<&dyn ReliableDatagrams> {
        None
    }
    /// Multicast groups, where the device has them.
    fn multicast(&self) -> Option<&dyn Multicast> {
        None
    }
    /// The capability to run Portals engines itself, where it has it.
    fn offload(&self) -> Option<&dyn Offload> {
        None
    }
}

/// The send port of one queue pair, which takes send requests.
///
/// # Safety
/// 1. Lists and inline bytes are read before a post returns, and not later.
/// 2. A refused request has no effect: the device accesses no memory for it, and it has no completion.
/// 3. Requests end in the order in which they were taken. After a request was polled as completed, the device no longer
///    accesses memory for it, or for any request taken before it.
pub unsafe trait SendPort: Send {
    /// Takes a batch. The device may start at once, and has to by the next [`ring`](Self::ring).
    ///
    /// # Safety
    /// Until a request completes: memory in its list that is read is not written, and memory that is
    /// written (READ, atomics) is neither read nor written by references.
    ///
    /// # Errors
    /// The index of the first request that is refused, and why; those before it are taken.
    unsafe fn post(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError>;
    /// Takes one request of a batch, like [`post`](Self::post).
    ///
    /// # Safety
    /// Like [`post`](Self::post).
    ///
    /// # Errors
    /// Why it is refused.
    #[inline]
    unsafe fn post_one(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        // SAFETY: our caller's.
        unsafe { self.post(core::slice::from_ref(wr)) }.map_err(|e| e.kind)
    }
    /// Does a READ, a WRITE, an atomic or a FLUSH within the call, if the device can: the request has no completion,
    /// and the device accesses no memory for it behind the call. A WRITE may have more inline bytes than the queue pair
    /// takes. A device can for a [near](QpStatus::near) peer, as long as no earlier request is under way. `false`: nothing
    /// was done; the request may be posted. Where a program has broken the promise below, a part of a WRITE may be
    /// done, which a post does again. The default never can.
    ///
    /// # Safety
    /// During the call the memory in its list is mapped; memory that is read is not written, and memory that is written is
    /// neither read nor written by references.
    unsafe fn carry_out(&mut self, _wr: &SendWr<'_>) -> bool {
        false
    }
    /// Whether [`post`](Self::post) would take a request behind `before` others that are not posted yet: for lists of which
    /// all or none is to be posted. The default does not know, and says so of none.
    ///
    /// # Errors
    /// Why it would be refused.
    fn would_take(&mut self, _wr: &SendWr<'_>, _before: usize) -> Result<(), PostErrorKind> {
        Ok(())
    }
    /// Tells the device of all that was posted: the doorbell.
    fn ring(&mut self);
    /// Takes one request and rings, which a device may do in one go.
    ///
    /// # Safety
    /// Like [`post`](Self::post).
    ///
    /// # Errors
    /// Why it is refused.
    #[inline]
    unsafe fn post_now(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        // SAFETY: our caller's.
        unsafe { self.post_one(wr) }?;
        self.ring();
        Ok(())
    }
}

/// The receive port of one queue pair, or of one shared receive queue, which takes receive requests.
///
/// # Safety
/// 1. Lists are read before a post returns, and not later.
/// 2. A refused request has no effect: the device accesses no memory for it, and it has no completion.
/// 3. After a request was polled as completed, the device no longer accesses memory for it; nor, if the queue is a
///    queue pair's own, for any request taken before it.
pub unsafe trait RecvPort: Send {
    /// Takes a batch.
    ///
    /// # Safety
    /// Until a request completes, no reference to the memory in its list exists.
    ///
    /// # Errors
    /// The index of the first request that is refused, and why; those before it are taken.
    unsafe fn post(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError>;
    /// Takes one request of a batch, like [`post`](Self::post).
    ///
    /// # Safety
    /// Like [`post`](Self::post).
    ///
    /// # Errors
    /// Why it is refused.
    #[inline]
    unsafe fn post_one(&mut self, wr: &RecvWr<'_>) -> Result<(), PostErrorKind> {
        // SAFETY: our caller's.
        unsafe { self.post(core::slice::from_ref(wr)) }.map_err(|e| e.kind)
    }
    /// Tells the device of all that was posted: the doorbell.
    fn ring(&mut self);
    /// Takes one request and rings, which a device may do in one go.
    ///
    /// # Safety
    /// Like [`post`](Self::post).
    ///
    /// # Errors
    /// Why it is refused.
    #[inline]
    unsafe fn post_now(&mut self, wr: &RecvWr<'_>) -> Result<(), PostErrorKind> {
        // SAFETY: our caller's.
        unsafe { self.post_one(wr) }?;
        self.ring();
        Ok(())
    }
    /// Gives a shared receive queue room for at least `max_wr` outstanding requests. Those that are outstanding stay.
    /// Returns the room that it has now.
    ///
    /// # Errors
    /// `max_wr` is 0, beyond the limit, or fewer than are outstanding; or the queue can not be resized
    /// ([`Abilities::srq_resize`]). The queue is as it was.
    fn resize(&mut self, _max_wr: u32) -> Result<u32, DeviceError> {
        Err(DeviceError::Unsupported { what: "resize of a receive queue" })
    }
}

/// The completions that an armed queue notifies of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notify {
    /// The next completion.
    Any,
    /// The next completion that is solicited, or an error.
    Solicited,
}

/// The polling port of one completion queue.
///
/// # Safety
/// 1. A completion names, by its queue pair, its direction and its `wr_id`, a request that was taken and has ended.
///    Each request is named at most once.
/// 2. All data that was written for the request is visible to the thread that polled its completion.
/// 3. A poll returns a number that is at most the length of `out`, and has filled in as many completions.
pub unsafe trait CqPort: Send {
    /// Fills `out` from its start with the oldest completions and returns how many. A device that is
    /// turned by its callers does a turn when the queue is empty.
    fn poll(&mut self, out: &mut [Completion]) -> usize;
    /// Like [`poll`](Self::poll), with the device's time at which each completion was written, in ticks of
    /// [`Device::clock`]: `at[i]` is that of `out[i]`. As many are filled in as both have room for. `None`: the queue
    /// has no such times ([`Device::create_timed_cq`] makes one that has), and nothing was polled.
    fn poll_with_times(&mut self, _out: &mut [Completion], _at: &mut [u64]) -> Option<usize> {
        None
    }
    /// Asks for one notification. A completion that came before the call need not raise it: poll
    /// once more after arming, and only then wait. A notification without a completion is legal.
    fn arm(&mut self, notify: Notify);
    /// Sets the waker of notifications, beside the descriptor. The thread that makes the device's progress wakes it; if
    /// no other thread does so, a waiter sleeps on [`wait_fd`](Self::wait_fd) as well.
    fn set_waker(&mut self, waker: &Waker);
    /// One descriptor for everything that a waiter on this queue has to wake up for: readable when
    /// an armed notification was raised, or when the device needs a turn (then poll). Created at the
    /// first call.
    ///
    /// # Errors
    /// The system has no descriptors left, or the device has none (in the simulator).
    fn wait_fd(&mut self) -> Result<BorrowedFd<'_>, DeviceError>;
    /// Waiters of this queue sleep on [`Device::turn_fd`] from now on, and are woken by the waker alone: an armed queue
    /// keeps that descriptor true, as [`wait_fd`](Self::wait_fd) is.
    fn wait_by_waker(&mut self) {}
    /// Gives the queue at least `depth` entries. Completions that wait in it stay. Returns the entries that it has now.
    ///
    /// # Errors
    /// `depth` is 0, beyond the limit, or fewer than the completions that wait; or the device can not
    /// ([`Abilities::cq_resize`]). The queue is as it was.
    fn resize(&mut self, _depth: u32) -> Result<u32, DeviceError> {
        Err(DeviceError::Unsupported { what: "resize of completion queues" })
    }
    /// The time that a waiter should poll before it sleeps: about the cost of a sleep and a wake-up, if its own polls
    /// make the device's progress.
    fn look_before_sleep(&self) -> Duration {
        Duration::ZERO
    }
}

/// The ports and names of a new queue pair.
pub struct QpPorts {
    /// The handle.
    pub handle: QpHandle,
    /// The queue pair number.
    pub qpn: Qpn,
    /// The granted capabilities.
    pub cap: QpCap,
    /// The send queue.
    pub send: Box<dyn SendPort>,
    /// The receive queue; `None` with a shared receive queue.
    pub recv: Option<Box<dyn RecvPort>>,
}

/// The state and the attributes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpStatus {
    /// The state now.
    pub state: QpState,
    /// Attributes as they were set.
    pub attr: QpAttr,
    /// The queues' limits.
    pub cap: QpCap,
    /// Whether the peer is a process of this machine, whose CPU takes the bytes of long requests out of this process's
    /// memory. Determined once the queue pair is in RTR.
    pub near: bool,
}

/// The initial attributes of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Outstanding requests.
    pub max_wr: u32,
    /// Entries in a request's list.
    pub max_sge: u32,
}

/// The memory region to be registered.
#[derive(Clone, Copy, Debug)]
pub struct MrInit {
    /// First byte.
    pub addr: NonNull<u8>,
    /// Bytes; at least 1.
    pub len: usize,
    /// The address by which requests name the first byte; usually `addr`.
    pub iova: u64,
    /// The permitted accesses.
    pub access: Access,
}

/// The handle and the keys of a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrKeys {
    /// The handle.
    pub handle: MrHandle,
    /// The key for local scatter/gather entries.
    pub lkey: Lkey,
    /// The key for peers.
    pub rkey: Rkey,
}

/// Memory that a device gave out; freed when dropped.
pub struct DmaMemory {
    addr: NonNull<u8>,
    len: usize,
    _owner: Box<dyn Send + Sync>,
}

impl DmaMemory {
    /// Wraps memory that lives as long as `owner`.
    ///
    /// # Safety
    /// `addr .. addr + len` is valid for reads and writes, zeroed, and used by no other code until `owner` is dropped.
    pub unsafe fn new(addr: NonNull<u8>, len: usize, owner: Box<dyn Send + Sync>) -> Self {
        Self { addr, len, _owner: owner }
    }
    /// The address of the first byte.
    pub fn addr(&self) -> NonNull<u8> {
        self.addr
    }
    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether the memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
// SAFETY: a `DmaMemory` is an address and the right to free it; its holder decides which code reads and writes there,
// as for any raw pointer.
unsafe impl Send for DmaMemory {}
// SAFETY: as above; a shared `DmaMemory` only tells its address.
unsafe impl Sync for DmaMemory {}

/// The scope within which an atomic operation is atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicScope {
    /// No atomics.
    None,
    /// Against other operations through the same adapter.
    Hca,
    /// Against the CPU as well.
    Cpu,
}

/// The limits and capabilities of a device. Every limit is enforced.
#[derive(Clone, Debug)]
pub struct DeviceAttr {
    /// The name of the device, for users.
    pub name: String,
    /// The network that carries the packets: `udp`, `uring`, `loopback`, …
    pub fabric: String,
    /// Queue pairs.
    pub max_qp: u32,
    /// Outstanding requests a queue.
    pub max_qp_wr: u32,
    /// Scatter/gather entries a request.
    pub max_sge: u32,
    /// Inline bytes a request.
    pub max_inline: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries a completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes a region.
    pub max_mr_bytes: u64,
    /// Protection domains.
    pub max_pd: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Outstanding requests a shared receive queue.
    pub max_srq_wr: u32,
    /// READs and atomics that a queue pair may have outstanding, on either side.
    pub max_rd_atomic: u8,
    /// The scope within which atomics are atomic.
    pub atomics: AtomicScope,
    /// Whether any memory of the process can be registered, or only memory of `alloc_memory`.
    pub foreign_memory: bool,
    /// Whether the program can have the general services queue pair.
    pub general_services: bool,
    /// The abilities that only some devices have.
    pub abilities: Abilities,
}

/// A named counter's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The name, as `part_thing`.
    pub name: &'static str,
    /// The count since the device was opened.
    pub value: u64,
}

/// Plain counters, read by a snapshot, and [`Counter`](crate::Counter)s of their names. With two beginnings of names,
/// `append_as` takes the first or the second one.
#[doc(hidden)]
#[macro_export]
macro_rules! counters {
    (@struct $of:ident: $($(#[$m:meta])* $name:ident,)*) => {
        /// Plain counters; read by a snapshot.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct $of {
            $($(#[$m])* pub(crate) $name: u64,)*
        }
    };
    ($of:ident, $first:literal, $second:literal: $($(#[$m:meta])* $name:ident,)*) => {
        $crate::counters! { @struct $of: $($(#[$m])* $name,)* }
        impl $of {
            pub(crate) fn append_as(&self, second: bool, out: &mut Vec<$crate::Counter>) {
                $(out.push($crate::Counter {
                    name: if second { concat!($second, stringify!($name)) } else { concat!($first, stringify!($name)) },
                    value: self.$name,
                });)*
            }
        }
    };
    ($of:ident: $($(#[$m:meta])* $name:ident,)*) => {
        $crate::counters! { @struct $of: $($(#[$m])* $name,)* }
        impl $of {
            pub(crate) fn append(&self, out: &mut Vec<$crate::Counter>) {
                $(out.push($crate::Counter { name: stringify!($name), value: self.$name });)*
            }
        }
    };
}
