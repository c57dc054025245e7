//! Abilities that only some devices have, and the attributes of objects that can be changed.

use core::time::Duration;

use crate::{Access, PdHandle};

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
