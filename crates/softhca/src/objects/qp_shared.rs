//! The part of a queue pair that its ports and the engine share.

use hca_core::{QpHandle, QpState};

use crate::counters::OpCounts;
use crate::queues::doorbell::{Link, Ringer};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The lanes of a queue pair that are open now, in a word that its ports see, too. The owner of the engine alone reads
/// and writes the word. The word is not 0, and an old value does not return after a change of the peer.
pub(crate) struct LanesWord(AtomicU64);

impl LanesWord {
    /// The lanes have been looked at since something else touched the machine.
    pub(super) const KNOWN: u64 = 1;
    pub(super) const SENDS: u64 = 2;
    pub(super) const TAKES: u64 = 4;
    pub(super) const ACCESSES: u64 = 8;
    /// From here on it counts the peers.
    pub(super) const PEER: u64 = 16;

    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }
    #[inline(always)]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    #[inline(always)]
    pub(super) fn set(&self, word: u64) {
        self.0.store(word, Ordering::Relaxed);
    }
}

/// What the ports of a queue pair and the engine share.
pub(crate) struct QpShared {
    link: Link<QpShared>,
    pub(crate) handle: QpHandle,
    /// The state as [`encode_state`] writes it, for the checks at posting.
    pub(crate) state: AtomicU32,
    /// It is connected to a peer on this machine, whose memory it may reach.
    pub(crate) near: AtomicBool,
    pub(crate) lanes: LanesWord,
    pub(crate) ops: OpCounts,
}

impl QpShared {
    pub(crate) fn new(handle: QpHandle) -> Self {
        Self {
            link: Link::new(),
            handle,
            state: AtomicU32::new(0),
            near: AtomicBool::new(false),
            lanes: LanesWord::new(),
            ops: OpCounts::default(),
        }
    }
    pub(crate) fn is_near(&self) -> bool {
        self.near.load(Ordering::Relaxed)
    }
}

impl Ringer for QpShared {
    fn link(&self) -> &Link<Self> {
        &self.link
    }
}

pub(crate) const DESTROYED: u32 = 7;

pub(crate) const fn encode_state(s: QpState) -> u32 {
    s as u32
}

pub(crate) const fn decode_state(word: u32) -> Option<QpState> {
    Some(match word {
        0 => QpState::Reset,
        1 => QpState::Init,
        2 => QpState::Rtr,
        3 => QpState::Rts,
        4 => QpState::Sqd,
        5 => QpState::Sqe,
        6 => QpState::Error,
        _ => return None,
    })
}
