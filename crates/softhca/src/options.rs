//! How an adapter is opened.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hca_core::Instant;

use crate::clock::monotonic_ns;
use crate::engine::MAX_QPS;

/// The threads that run the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Progress {
    /// The program: `post` pushes out, and a poll that finds nothing turns. Lowest latency, no thread;
    /// while the program does neither, nothing moves. A poll that yields a message has acknowledged it, unless
    /// [`Options::lazy_acks`] says otherwise. A WRITE that the program finds in its memory is acknowledged by the turn
    /// behind the one that brought it, so whoever spins on memory turns once more.
    Inline,
    /// A thread of the adapter, as hardware would; it blocks when idle.
    Thread,
    /// Inline while the program polls; a parked thread takes over within 2 ms once it stops.
    #[default]
    Adaptive,
}

impl Progress {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Inline, Self::Thread, Self::Adaptive];

    /// Its name in device URLs and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Thread => "thread",
            Self::Adaptive => "adaptive",
        }
    }
}
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
impl FromStr for Progress {
    type Err = UnknownProgress;
    fn from_str(s: &str) -> Result<Self, UnknownProgress> {
        Self::ALL.into_iter().find(|p| p.name() == s).ok_or(UnknownProgress)
    }
}

/// No progress mode has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown progress mode: use inline, thread or adaptive")]
pub struct UnknownProgress;

/// Where the adapter takes the time from.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The system's monotonic clock.
    #[default]
    Monotonic,
    /// Nanoseconds that a simulator sets. Only with [`Progress::Inline`].
    Virtual(Arc<AtomicU64>),
}

pub(crate) struct Time {
    clock: Clock,
    /// The system's clock when the adapter was opened.
    origin_ns: u64,
}

impl Time {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, origin_ns: monotonic_ns() }
    }
    /// Whether a simulator sets it, which then moves the adapter too.
    pub(crate) fn is_virtual(&self) -> bool {
        matches!(self.clock, Clock::Virtual(_))
    }
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(match &self.clock {
            Clock::Monotonic => monotonic_ns().saturating_sub(self.origin_ns),
            Clock::Virtual(ns) => ns.load(Ordering::Relaxed),
        })
    }
}

/// How many objects of each kind an adapter holds at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs, up to 65,534: of 16 bits of a number two are the management queue pairs'.
    pub qps: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Memory regions, up to 2^24.
    pub mrs: u32,
    /// Protection domains.
    pub pds: u32,
    /// Address handles.
    pub ahs: u32,
}
impl Default for Limits {
    fn default() -> Self {
        Self { qps: MAX_QPS, cqs: 65_536, srqs: 65_536, mrs: 1 << 20, pds: 65_536, ahs: 65_536 }
    }
}

/// How an adapter is opened.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The threads that run the engine.
    pub progress: Progress,
    /// Whether the acknowledgement of a message that a poll yields waits for the program's answer, to go along with it,
    /// or for its next call, with [`Progress::Inline`] too. It spares a packet each way of a ping-pong. It is for
    /// programs that never stop calling: where one does, the last message stays unacknowledged until its queue pair
    /// closes. In the other modes acknowledgements always wait, as a thread of the adapter sends what the program does
    /// not.
    pub lazy_acks: bool,
    /// Seed of keys; `None` takes it from the system.
    pub seed: Option<u64>,
    /// Where the time comes from.
    pub clock: Clock,
    /// How many objects it holds.
    pub limits: Limits,
}
