//! The revocations that are under way: whom each waits for, and what became of it.

use std::collections::HashSet;
use std::time::{Duration, Instant as Clock};

use super::bracket::Seen;
use super::grant::{LinkId, Revocation};
use super::pages::SharedPages;

/// How long one sleeps between looks, where the caller waits for the end.
pub(super) const NAP: Duration = Duration::from_micros(50);

/// A peer within an access that has to end.
pub(super) struct Inside {
    pub(super) link: LinkId,
    pub(super) seen: Seen,
}

/// The name of a revocation that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeBackId(pub(super) u64);

/// The state of a begun revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum TakeBack {
    /// The revocation is done.
    Done(Revocation),
    /// A peer is within an access. The caller has to call `ShmFabric::continue_take_back` until that returns the
    /// result.
    UnderWay(TakeBackId),
}

/// A take-back that is under way.
pub(super) struct UnderWay {
    pub(super) id: TakeBackId,
    /// The key that is revoked.
    pub(super) key: Option<u32>,
    /// The queue pair whose word was withdrawn.
    pub(super) word: Option<u32>,
    /// Slots of the regions.
    pub(super) regions: Vec<u32>,
    pub(super) inside: Vec<Inside>,
    pub(super) deadline: Clock,
    /// The peers that were not out in time.
    pub(super) stuck: Vec<LinkId>,
    /// The memory that these may write to, which becomes private.
    pub(super) private: Vec<SharedPages>,
    /// The regions that may change yet, as nothing keeps these peers from it.
    pub(super) exposed: Vec<u32>,
    /// What came of others that dropped a peer that this one waited for.
    pub(super) outcome: Revocation,
}

/// All that is being taken back.
#[derive(Default)]
pub(super) struct TakeBacks {
    pub(super) under_way: Vec<UnderWay>,
    pub(super) begun: u64,
    /// Keys of memory that a dropped peer may still change, until they are revoked.
    pub(super) exposed: HashSet<u32>,
    /// Links that are cut behind a take-back.
    pub(super) closing_links: Vec<(TakeBackId, LinkId)>,
}

impl TakeBacks {
    /// When `ShmFabric::part` has something to do, if it does so as soon as it can.
    pub(super) fn parts_in(&self) -> Option<Duration> {
        (!self.closing_links.is_empty()).then_some(NAP)
    }
    /// How many wait for peers that are within.
    pub(super) fn now(&self) -> u64 {
        self.under_way.len() as u64
    }
    pub(super) fn is_parting(&self) -> bool {
        !self.closing_links.is_empty()
    }
}
