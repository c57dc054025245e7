//! [`Ni`]: an interface of a node, and its queries.

use std::any::Any;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hca_matching::{Config, Nid, Pid, Process, Rank, Uid, Version};

use super::{Error, Limits, NiHandle, NiOptions, StatusRegister};
use crate::ni::NiCore;
use crate::node::{Kind, NiState};
use crate::trace::Trace;
use crate::{Memory, Node};

/// An interface of a node (`PtlNIInit`). Clones are the same interface; when the last is dropped, it is closed
/// (`PtlNIFini`): its operations under way end, and its objects are freed.
///
/// Any thread may make calls at any time; each call runs under the lock of the node.
#[derive(Clone)]
#[doc(alias = "PtlNIInit")]
#[doc(alias = "PtlNIFini")]
pub struct Ni {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) core: NiCore,
    pub(super) handle: NiHandle,
    limits: Limits,
    pub(super) matching: bool,
}

impl Ni {
    /// Opens an interface of a node, or returns the open one of this kind, whose limits stay.
    ///
    /// A node has one interface of each of the four kinds; an interface exchanges messages only with interfaces of its
    /// kind. `pid` asks for a process number, which has to be the node's; [`NodeOptions::pid`](crate::NodeOptions::pid)
    /// chooses it. `None` is `PTL_PID_ANY`.
    ///
    /// On a logical interface the ranks of the node's job are the map, until [`set_map`](Self::set_map) gives another
    /// one.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID` if the options are not one of each pair, `PTL_PID_IN_USE` if the node has another process
    /// number.
    pub fn init(node: &Node, options: NiOptions, pid: Option<Pid>, desired: &Limits) -> Result<Self, Error> {
        Self::open(node, options, pid, desired).map_err(|e| Error::new("PtlNIInit", e))
    }
    fn open(
        node: &Node,
        options: NiOptions,
        pid: Option<Pid>,
        desired: &Limits,
    ) -> Result<Self, crate::Error> {
        let matching = one_of(options, NiOptions::MATCHING, NiOptions::NO_MATCHING)?;
        let logical = one_of(options, NiOptions::LOGICAL, NiOptions::PHYSICAL)?;
        if !NiOptions::all().contains(options) {
            return Err(crate::Error::Argument { argument: "options", why: "has bits that name no option" });
        }
        let of_node = node.card().pid;
        if let Some(asked) = pid.filter(|&pid| pid != of_node) {
            return Err(crate::Error::PidInUse { asked: asked.0, node: of_node.0 });
        }
        let kind = Kind::V4 { matching, logical };
        let seed = node.options().seed.unwrap_or_else(|| RandomState::new().hash_one(kind.index()));
        let limits = desired.to_engine();
        let config = Config { version: Version::V4, matching, limits, seed, ..Config::default() };
        loop {
            match NiCore::open(node, kind, config) {
                Err(crate::Error::InterfaceOpen) => {}
                Ok(core) => return Ok(Self::new(core, desired, matching)),
                Err(error) => return Err(error),
            }
            if let Some(inner) =
                NiCore::object_of(node, kind).and_then(|object| object.downcast::<Inner>().ok())
            {
                return Ok(Self { inner });
            }
            // Another thread is opening or closing it.
            std::thread::yield_now();
        }
    }
    fn new(core: NiCore, desired: &Limits, matching: bool) -> Self {
        let eager_bytes = core.node().options().eager_bytes;
        let limits = desired.granted(&core.limits(), eager_bytes);
        let inner = Arc::new(Inner { core, handle: NiHandle::next(), limits, matching });
        let object: Arc<dyn Any + Send + Sync> = inner.clone();
        inner.core.set_object(Arc::downgrade(&object));
        Self { inner }
    }

    /// The limits that were granted.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }
    /// The interface's handle, the same as [`MdHandle::ni`](super::MdHandle::ni) of its objects.
    #[doc(alias = "PtlNIHandle")]
    pub fn handle(&self) -> NiHandle {
        self.inner.handle
    }
    /// The node of the interface.
    pub fn node(&self) -> &Node {
        self.inner.core.node()
    }
    /// `len` bytes for messages: [`Node::alloc`].
    ///
    /// # Errors
    /// `PTL_NO_SPACE`.
    pub fn alloc(&self, len: usize) -> Result<Memory, Error> {
        self.node().alloc(len).map_err(|e| Error::new("alloc", e.into()))
    }
    /// The present value, after progress.
    #[doc(alias = "PtlNIStatus")]
    pub fn status(&self, register: StatusRegister) -> u64 {
        self.node().progress();
        let status = self.read(|ni| ni.engine.status());
        match register {
            StatusRegister::DropCount => status.dropped,
            StatusRegister::PermissionViolations => status.permission_violations,
            StatusRegister::OperationViolations => status.operation_violations,
        }
    }

    /// Whether the interface is logical: processes are named by ranks.
    pub fn is_logical(&self) -> bool {
        self.inner.core.kind().is_logical()
    }
    /// Whether the interface matches messages by their bits.
    pub fn is_matching(&self) -> bool {
        self.inner.matching
    }
    /// The user number that peers see.
    #[doc(alias = "PtlGetUid")]
    pub fn uid(&self) -> Uid {
        self.node().uid()
    }
    /// The address of this process on this interface: its rank, or its numbers.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID` if the interface is logical and this process has no rank: there is no map, or the process is
    /// not on it.
    #[doc(alias = "PtlGetId")]
    pub fn id(&self) -> Result<Process, Error> {
        if !self.is_logical() {
            return Ok(self.phys_id());
        }
        let map = self.read(|ni| ni.map.clone());
        let (rank, me) = (self.node().rank(), self.phys_id());
        let rank = match map {
            None => rank,
            Some(map) => {
                let is_me = |rank: Rank| map.get(rank.0 as usize) == Some(&(me.nid(), me.pid()));
                rank.filter(|&rank| is_me(rank))
                    .or_else(|| (0..map.len() as u32).map(Rank).find(|&r| is_me(r)))
            }
        };
        let none = crate::Error::Argument { argument: "ni", why: "has no map with this process on it" };
        rank.map(Process::logical).ok_or_else(|| Error::new("PtlGetId", none))
    }
    /// The physical address of this process, on any interface.
    #[doc(alias = "PtlGetPhysId")]
    pub fn phys_id(&self) -> Process {
        let card = self.node().card();
        Process::physical(card.nid, card.pid)
    }
    /// Sets the map of ranks to processes. The first map stays; without one, ranks are those of the node's job.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID` on a physical interface, or for an empty map; `PTL_IGNORED` if the interface has a map.
    #[doc(alias = "PtlSetMap")]
    pub fn set_map(&self, map: Vec<(Nid, Pid)>) -> Result<(), Error> {
        let error = |e| Err(Error::new("PtlSetMap", e));
        if !self.is_logical() {
            let why = "is physical, and has no ranks to map";
            return error(crate::Error::Argument { argument: "ni", why });
        }
        if map.is_empty() || u32::try_from(map.len()).is_err() {
            let why = "is to have 1 process at least, and no more than there are ranks";
            return error(crate::Error::Argument { argument: "map", why });
        }
        let is_new = self.read(|ni| ni.set_map(map));
        if is_new { Ok(()) } else { error(crate::Error::MapSet) }
    }
    /// The processes by rank. Without a [`set_map`](Self::set_map) the call asks the node's directory, and may have to
    /// wait for the answer.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID` on a physical interface; `PTL_FAIL` if the directory gives no answer.
    #[doc(alias = "PtlGetMap")]
    pub fn get_map(&self) -> Result<Vec<(Nid, Pid)>, Error> {
        if !self.is_logical() {
            let why = "is physical, and has no map";
            return Err(Error::new("PtlGetMap", crate::Error::Argument { argument: "ni", why }));
        }
        if let Some(map) = self.read(|ni| ni.map.clone()) {
            return Ok(map.to_vec());
        }
        let directory = &self.node().options().directory;
        (0..directory.size().unwrap_or(0))
            .map(|rank| directory.by_rank(Rank(rank)).map(|card| (card.nid, card.pid)))
            .collect::<Result<_, _>>()
            .map_err(|e| Error::new("PtlGetMap", e.into()))
    }

    /// Ends all waits on this interface, now and for ever: [`eq_wait`](Self::eq_wait), [`eq_poll`](Self::eq_poll),
    /// [`ct_wait`](Self::ct_wait) and [`ct_poll`](Self::ct_poll) return `PTL_ABORTED`. All other calls still work. In C
    /// one call aborts all interfaces of the process.
    #[doc(alias = "PtlAbort")]
    pub fn abort(&self) {
        self.inner.core.abort();
    }
    /// Starts a bundle of operations. They may be deferred until the bundle's end, so that one doorbell announces them
    /// all: over a network, many messages leave by one system call. They begin at the latest with
    /// [`end_bundle`](Self::end_bundle), or with the next call that looks for events or counts. Bundles nest.
    #[doc(alias = "PtlStartBundle")]
    pub fn start_bundle(&self) {
        self.inner.core.start_bundle();
    }
    /// Ends a bundle of operations that [`start_bundle`](Self::start_bundle) started.
    #[doc(alias = "PtlEndBundle")]
    pub fn end_bundle(&self) {
        self.inner.core.end_bundle();
    }
    /// Orders atomic operations and the program's accesses: after the return, the program sees the results of all
    /// earlier atomic operations, and later atomic operations see the program's earlier writes.
    ///
    /// Atomic operations read, combine and write back under the node's lock: they are atomic with each other, for all
    /// initiators and on all interfaces of the node. They are not atomic with accesses of the processor. So a program
    /// changes such bytes itself only while no such operation can arrive, or changes them by an atomic operation to
    /// itself. [`Memory::load_u64`](crate::Memory::load_u64) reads a word from before an operation or from after it,
    /// and after the operation's event the result. This call takes the lock once, and so orders everything before it.
    #[doc(alias = "PtlAtomicSync")]
    pub fn atomic_sync(&self) {
        self.node().progress();
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
    /// Sets the trace of each message's way through the lists, or ends it.
    pub fn set_trace(&self, trace: Option<Trace>) {
        self.inner.core.set_trace(trace);
    }

    /// Looks at the interface's state.
    pub(super) fn read<R>(&self, f: impl FnOnce(&mut NiState) -> R) -> R {
        self.inner.core.look(f)
    }
}

impl std::fmt::Debug for Ni {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ni").field("handle", &self.handle()).field("kind", &self.inner.core.kind()).finish()
    }
}

/// Whether `yes` is set rather than `no`.
fn one_of(options: NiOptions, yes: NiOptions, no: NiOptions) -> Result<bool, crate::Error> {
    match (options.contains(yes), options.contains(no)) {
        (true, false) => Ok(true),
        (false, true) => Ok(false),
        _ => {
            let why = "is to have one of MATCHING and NO_MATCHING, and one of LOGICAL and PHYSICAL";
            Err(crate::Error::Argument { argument: "options", why })
        }
    }
}
