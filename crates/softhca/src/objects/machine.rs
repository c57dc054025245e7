//! The transport state machine of a queue pair, and the word of its open lanes.

use core::num::NonZeroU64;
use core::ops::{Deref, DerefMut};

use hca_transport::{Lane, Lanes, Qp};

use crate::objects::qp_shared::{LanesWord, QpShared};
use crate::sync::Arc;

/// A queue pair's machine, and its open lanes until something else touches the machine.
pub(crate) struct Machine {
    qp: Qp,
    shared: Arc<QpShared>,
    /// The word while the open lanes are not known.
    unknown: u64,
}

impl Machine {
    pub(crate) fn new(qp: Qp, shared: Arc<QpShared>) -> Self {
        let mut machine = Self { qp, shared, unknown: 0 };
        machine.end_lanes();
        machine
    }
    #[inline(always)]
    fn lanes(&self) -> u64 {
        let word = self.shared.lanes.get();
        if word & LanesWord::KNOWN == 0 { self.look_for_lanes() } else { word }
    }
    #[inline(never)]
    fn look_for_lanes(&self) -> u64 {
        let Lanes { sends, takes, accesses } = self.qp.lanes();
        let flag = |is, flag| if is { flag } else { 0 };
        let word = self.unknown
            | LanesWord::KNOWN
            | flag(sends, LanesWord::SENDS)
            | flag(takes, LanesWord::TAKES)
            | flag(accesses, LanesWord::ACCESSES);
        self.shared.lanes.set(word);
        word
    }
    /// The quick way for a plain SEND that is next, if there is one now.
    #[inline(always)]
    pub(crate) fn lane_to_send(&mut self) -> Option<Lane<'_>> {
        if self.lanes() & LanesWord::SENDS != 0 { self.qp.lane() } else { None }
    }
    /// The quick way for a plain SEND that has come, if there is one now.
    #[inline(always)]
    pub(crate) fn lane_to_take(&mut self) -> Option<Lane<'_>> {
        if self.lanes() & LanesWord::TAKES != 0 { self.qp.lane() } else { None }
    }
    /// The word of the lanes as long as requests on the peer's memory may be done as they are posted, whenever none is
    /// under way.
    pub(crate) fn accesses_at_once(&self) -> Option<NonZeroU64> {
        let word = self.lanes();
        if word & LanesWord::ACCESSES == 0 { None } else { NonZeroU64::new(word) }
    }
    /// Its lanes have changed.
    #[inline]
    pub(crate) fn forget_lanes(&mut self) {
        self.shared.lanes.set(self.unknown);
    }
    /// It is connected to another peer, or none: what was known of the one before holds no more.
    pub(crate) fn end_lanes(&mut self) {
        self.unknown += LanesWord::PEER;
        self.forget_lanes();
    }
}
impl Drop for Machine {
    /// Its ports may be there for longer.
    fn drop(&mut self) {
        self.end_lanes();
    }
}
impl Deref for Machine {
    type Target = Qp;
    #[inline]
    fn deref(&self) -> &Qp {
        &self.qp
    }
}
impl DerefMut for Machine {
    /// The owner of the machine alone changes its lanes.
    #[inline]
    fn deref_mut(&mut self) -> &mut Qp {
        self.forget_lanes();
        &mut self.qp
    }
}
