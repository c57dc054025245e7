//! Handles, each of which names its interface, and the identity of a process.

use std::fmt;

use hca_matching::{EntryHandle, EqHandle as RawEq, Jid, MdHandle as RawMd, Nid, Pid, Process, Source, Uid};

/// The handle of an interface (`ptl_handle_ni_t`), unique since the program began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NiHandle(pub(super) u64);

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident, $raw:ty) => {
        $(#[$doc])*
        ///
        /// A handle of a freed object is refused, and never names another object.
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name {
            pub(super) ni: NiHandle,
            pub(super) raw: $raw,
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({}, {:?})"), self.ni.0, self.raw)
            }
        }
        impl From<$name> for AnyHandle {
            fn from(handle: $name) -> Self {
                Self::$name(handle)
            }
        }
    };
}
handle! { /// Names a match entry (`ptl_handle_me_t`).
MeHandle, EntryHandle }
handle! { /// Names a memory descriptor (`ptl_handle_md_t`).
MdHandle, RawMd }
handle! { /// Names an event queue (`ptl_handle_eq_t`).
EqHandle, RawEq }

/// A handle of any kind (`ptl_handle_any_t`), for [`Ni::handle`](super::Ni::handle).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnyHandle {
    /// The handle of an interface.
    NiHandle(NiHandle),
    /// The handle of a match entry.
    MeHandle(MeHandle),
    /// The handle of a memory descriptor.
    MdHandle(MdHandle),
    /// The handle of an event queue.
    EqHandle(EqHandle),
}

impl From<NiHandle> for AnyHandle {
    fn from(handle: NiHandle) -> Self {
        Self::NiHandle(handle)
    }
}

/// The address of a process (`ptl_process_id_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    /// The node.
    pub nid: Nid,
    /// The process number on that node.
    pub pid: Pid,
}

impl ProcessId {
    pub(super) const fn packed(self) -> Process {
        Process::physical(self.nid, self.pid)
    }
    pub(super) const fn of(process: Process) -> Self {
        Self { nid: process.nid(), pid: process.pid() }
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.nid.0, self.pid.0)
    }
}

/// The sources whose messages an entry takes (`match_id`); `None` is any (`PTL_NID_ANY`, `PTL_PID_ANY`, `PTL_UID_ANY`,
/// `PTL_JID_ANY`).
///
/// The C interface selects on node and process alone, and leaves users and jobs to the access control list; the paper
/// on the interface's offload to QsNet has users and jobs in match entries, too. This crate's entries select on all
/// four.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatchId {
    /// The node of the source.
    pub nid: Option<Nid>,
    /// The process number of the source.
    pub pid: Option<Pid>,
    /// The user of the source.
    pub uid: Option<Uid>,
    /// The job of the source.
    pub jid: Option<Jid>,
}

impl MatchId {
    /// All sources.
    pub const ANY: Self = Self { nid: None, pid: None, uid: None, jid: None };

    pub(super) const fn source(self) -> Source {
        Source::physical(self.nid, self.pid)
    }
}

impl From<ProcessId> for MatchId {
    fn from(ProcessId { nid, pid }: ProcessId) -> Self {
        Self { nid: Some(nid), pid: Some(pid), ..Self::ANY }
    }
}
