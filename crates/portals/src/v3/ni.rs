//! [`Ni`]: an interface of 3.3, and its queries.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hca_matching::{Acl, Config, Jid, Limits as EngineLimits, Source, Uid, Version};

use super::eq::Queues;
use super::error::{Error, ReturnCode};
use super::handle::{AnyHandle, MatchId, NiHandle, ProcessId};
use crate::Node;
use crate::ni::NiCore;
use crate::node::Kind;
use crate::trace::Trace;

/// The limits of an interface (`ptl_ni_limits_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Match entries, of all lists.
    pub max_mes: u32,
    /// Memory descriptors.
    pub max_mds: u32,
    /// Event queues.
    pub max_eqs: u32,
    /// The largest index of the access control list.
    pub max_ac_index: u32,
    /// The largest index of a portal.
    pub max_pt_index: u32,
    /// Pieces of a descriptor's memory.
    pub max_md_iovecs: u32,
    /// Entries of a list.
    pub max_me_list: u32,
    /// Bytes that [`get_put`](super::Ni::get_put) exchanges.
    pub max_getput_md: u32,
}

impl Default for Limits {
    fn default() -> Self {
        let engine = EngineLimits::default();
        Self {
            max_mes: engine.max_entries,
            max_mds: engine.max_mds,
            max_eqs: engine.max_eqs,
            max_ac_index: engine.max_ac_index,
            max_pt_index: engine.max_pt_index,
            max_md_iovecs: u32::MAX,
            max_me_list: engine.max_list_size,
            max_getput_md: u32::MAX,
        }
    }
}

impl Limits {
    fn granted(&self, node: &Node) -> Self {
        let engine = EngineLimits::grant(&self.to_engine());
        Self {
            max_mes: engine.max_entries,
            max_mds: engine.max_mds,
            max_eqs: engine.max_eqs,
            max_ac_index: engine.max_ac_index,
            max_pt_index: engine.max_pt_index,
            max_md_iovecs: self.max_md_iovecs.min(node.max_pieces()),
            max_me_list: engine.max_list_size,
            max_getput_md: self.max_getput_md.min(node.max_exchange()),
        }
    }
    fn to_engine(self) -> EngineLimits {
        EngineLimits {
            max_entries: self.max_mes,
            max_mds: self.max_mds,
            max_eqs: self.max_eqs,
            max_ac_index: self.max_ac_index,
            max_pt_index: self.max_pt_index,
            max_list_size: self.max_me_list,
            max_msg_size: u64::MAX,
            ..EngineLimits::default()
        }
    }
}

/// A status register of an interface (`ptl_sr_index_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum StatusRegister {
    /// The number of dropped messages, for any reason (`PTL_SR_DROP_COUNT`).
    DropCount = 0,
    /// The number of messages that the access control list refused (`PTL_SR_PERMISSIONS_VIOLATIONS`); they count as
    /// dropped, too.
    PermissionsViolations = 1,
}

impl TryFrom<u32> for StatusRegister {
    type Error = Error;
    fn try_from(index: u32) -> Result<Self, Error> {
        match index {
            0 => Ok(Self::DropCount),
            1 => Ok(Self::PermissionsViolations),
            _ => Err(Error::argument(
                "PtlNIStatus",
                ReturnCode::SrIndexInvalid,
                "register",
                "an interface has two of them",
            )),
        }
    }
}

/// A network interface of Portals 3.3 on a node. Clones are the same interface; when the last is dropped, it is closed
/// (`PtlNIFini`): its operations under way end, and its objects are freed.
///
/// All calls take `&self`, and may be made by any thread at any time. See the [module's page](super).
#[derive(Clone)]
#[doc(alias = "PtlNIInit")]
#[doc(alias = "PtlNIFini")]
pub struct Ni {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) core: NiCore,
    pub(super) id: NiHandle,
    pub(super) queues: Queues,
    limits: Limits,
}

impl Ni {
    /// Opens the interface of a node, or returns the open one, whose limits stay. `pid` asks for a process number: the
    /// node's own, or any by `None` (`PTL_PID_ANY`).
    ///
    /// The limits are granted as far as possible; [`limits`](Self::limits) returns them. Entry 0 of the access control
    /// list admits all processes of the own user to all portals; the other entries admit no process until they are
    /// [set](Self::ac_entry).
    ///
    /// # Errors
    /// `PTL_PID_INVALID`.
    pub fn init(node: &Node, pid: Option<u32>, desired: &Limits) -> Result<Self, Error> {
        Self::open(node, pid, desired).map_err(|error| Error::new("PtlNIInit", error))
    }
    fn open(node: &Node, pid: Option<u32>, desired: &Limits) -> Result<Self, crate::Error> {
        let own = node.card().pid.0;
        if let Some(asked) = pid.filter(|&asked| asked != own) {
            return Err(crate::Error::PidInUse { asked, node: own });
        }
        let limits = desired.granted(node);
        let config = Config {
            version: Version::V3,
            limits: limits.to_engine(),
            seed: node.draw(),
            ..Config::default()
        };
        loop {
            match NiCore::open(node, Kind::V3, config) {
                Err(crate::Error::InterfaceOpen) => {}
                Ok(core) => return Self::new(core, limits),
                Err(error) => return Err(error),
            }
            if let Some(inner) = NiCore::object_of(node, Kind::V3).and_then(|object| object.downcast().ok()) {
                return Ok(Self { inner });
            }
            // Another thread is opening or closing it.
            std::thread::yield_now();
        }
    }
    fn new(core: NiCore, limits: Limits) -> Result<Self, crate::Error> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let uid = Some(core.node().uid());
        let own_user = Acl { source: Source::ANY, uid, jid: None, pt_index: None };
        core.with(|ni| ni.engine.set_acl(0, Some(own_user)))?;
        let id = NiHandle(NEXT.fetch_add(1, Ordering::Relaxed));
        let inner = Arc::new(Inner { core, id, queues: Queues::default(), limits });
        let object: Arc<dyn Any + Send + Sync> = inner.clone();
        inner.core.set_object(Arc::downgrade(&object));
        Ok(Self { inner })
    }
    /// The granted limits (`actual` of `PtlNIInit`).
    pub fn limits(&self) -> Limits {
        self.inner.limits
    }
    /// The node of the interface.
    pub fn node(&self) -> &Node {
        self.inner.core.node()
    }
    /// Reads a status register.
    #[doc(alias = "PtlNIStatus")]
    pub fn status(&self, register: StatusRegister) -> u64 {
        self.progress();
        let status = self.inner.core.look(|ni| ni.engine.status());
        match register {
            StatusRegister::DropCount => status.dropped,
            StatusRegister::PermissionsViolations => status.permission_violations,
        }
    }
    /// How far a process is: 0 is this one, 1 another one of this node, and 2 any other. The fabrics report no
    /// distances, so all other nodes have the same.
    ///
    /// # Errors
    /// `PTL_PROCESS_INVALID`: there is no such process; `PTL_FAIL`: the directory of processes can't be asked.
    #[doc(alias = "PtlNIDist")]
    pub fn dist(&self, process: ProcessId) -> Result<u64, Error> {
        let own = self.id();
        if process == own {
            return Ok(0);
        }
        self.inner.core.find(process.packed()).map_err(|error| Error::new("PtlNIDist", error))?;
        Ok(if process.nid == own.nid { 1 } else { 2 })
    }
    /// The interface that a handle belongs to: this interface, for its own handles of existing objects.
    ///
    /// # Errors
    /// `PTL_HANDLE_INVALID`: the handle belongs to another interface, or its object is gone.
    #[doc(alias = "PtlNIHandle")]
    pub fn handle(&self, handle: impl Into<AnyHandle>) -> Result<NiHandle, Error> {
        let (ni, there) = match handle.into() {
            AnyHandle::NiHandle(ni) => (ni, true),
            AnyHandle::MeHandle(me) => (me.ni, self.inner.core.look(|ni| ni.engine.has_entry(me.raw))),
            AnyHandle::MdHandle(md) => (md.ni, self.inner.core.look(|ni| ni.engine.has_md(md.raw))),
            AnyHandle::EqHandle(eq) => (eq.ni, self.inner.core.look(|ni| ni.engine.eq_len(eq.raw).is_ok())),
        };
        if ni != self.inner.id || !there {
            return Err(Error::handle("PtlNIHandle", "handle"));
        }
        Ok(self.inner.id)
    }
    /// The handle of the interface.
    pub fn ni_handle(&self) -> NiHandle {
        self.inner.id
    }
    /// The user number that other processes see.
    #[doc(alias = "PtlGetUid")]
    pub fn uid(&self) -> Uid {
        self.node().uid()
    }
    /// The address of this process.
    #[doc(alias = "PtlGetId")]
    pub fn id(&self) -> ProcessId {
        let card = self.node().card();
        ProcessId { nid: card.nid, pid: card.pid }
    }
    /// The job; 0 without a job (`PTL_JID_NONE`).
    #[doc(alias = "PtlGetJid")]
    pub fn jid(&self) -> Jid {
        self.node().jid()
    }
    /// Sets an entry of the access control list. Each message names an entry, and no portal takes the message unless
    /// the entry admits its source, user, job and portal; `None` admits any (`PTL_PT_INDEX_ANY`).
    ///
    /// # Errors
    /// `PTL_AC_INDEX_INVALID`, `PTL_PT_INDEX_INVALID`.
    #[doc(alias = "PtlACEntry")]
    pub fn ac_entry(
        &self,
        ac_index: u32,
        match_id: impl Into<MatchId>,
        pt_index: Option<u32>,
    ) -> Result<(), Error> {
        let match_id = match_id.into();
        let acl = Acl { source: match_id.source(), uid: match_id.uid, jid: match_id.jid, pt_index };
        let set = self.inner.core.with(|ni| ni.engine.set_acl(ac_index, Some(acl)));
        set.map_err(|error| Error::new("PtlACEntry", error))
    }

    /// Makes progress without waiting, and returns whether there was work. All calls that move data or look for events
    /// make progress; a program whose events all go to handlers calls this while it waits.
    pub fn progress(&self) -> bool {
        let did = self.node().progress();
        self.run_handlers();
        did
    }
    /// Sets the trace of each message's way through the lists; `None` ends it.
    pub fn set_trace(&self, trace: Option<Trace>) {
        self.inner.core.set_trace(trace);
    }
}

impl std::fmt::Debug for Ni {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ni").field("id", &self.id()).field("limits", &self.limits()).finish_non_exhaustive()
    }
}
