//! The part of a queue pair that its ports and the engine share.

use hca_core::{QpHandle, QpState};

use crate::counters::OpCounts;
use crate::queues::doorbell::{Link, Ringer};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

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
    /// Its peer may be on this machine, and who posts has the engine do what it can do at once.
    pub(crate) may_be_near: bool,
    /// The state as [`encode_state`] writes it, for the checks at posting; or [`RTS_NEAR`].
    state: AtomicU32,
    pub(crate) lanes: LanesWord,
    pub(crate) ops: OpCounts,
}

impl QpShared {
    pub(crate) fn new(handle: QpHandle, may_be_near: bool) -> Self {
        Self {
            link: Link::new(),
            handle,
            may_be_near,
            state: AtomicU32::new(0),
            lanes: LanesWord::new(),
            ops: OpCounts::default(),
        }
    }
    /// The state as [`encode_state`] writes it.
    #[inline(always)]
    pub(crate) fn state(&self) -> u32 {
        self.state.load(Ordering::Relaxed) & STATE
    }
    /// The same of a queue pair whose state is not RTS, and anything else in RTS.
    #[inline(always)]
    pub(crate) fn state_but_rts(&self) -> u32 {
        self.state.load(Ordering::Relaxed)
    }
    /// Whether requests are taken, and may be done as they are posted.
    #[inline(always)]
    pub(crate) fn is_open_and_near(&self) -> bool {
        self.state.load(Ordering::Relaxed) == RTS_NEAR
    }
    /// Shows a state to the ports; `near`: it is connected to a peer on this machine, whose memory it may reach.
    #[inline]
    pub(crate) fn show_state(&self, state: u32, near: bool) {
        let is_open = state == encode_state(QpState::Rts) && near && self.may_be_near;
        // SeqCst: a receive port publishes a request and looks whether the queue pair is gone.
        self.state.store(if is_open { RTS_NEAR } else { state }, Ordering::SeqCst);
    }
}

impl Ringer for QpShared {
    fn link(&self) -> &Link<Self> {
        &self.link
    }
}

pub(crate) const DESTROYED: u32 = 7;
/// The bits of a state.
const STATE: u32 = 7;
/// RTS, and requests may be done as they are posted.
const RTS_NEAR: u32 = 8 | encode_state(QpState::Rts);

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
