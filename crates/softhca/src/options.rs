//! The options of an adapter, and its progress modes.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hca_core::{Instant, Mtu};

use crate::clock::monotonic_ns;
use crate::limits::MAX_QPS;

/// The threads that run the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Progress {
    /// The program's threads: a post sends, and a poll of an empty queue runs a turn. Lowest latency, no thread of the
    /// adapter; while the program does neither, the adapter makes no progress. A poll that yields a message has
    /// acknowledged it, unless [`Options::lazy_acks`] is set. A WRITE is acknowledged by the turn after the one that
    /// stored it, so a program that spins on its memory has to turn once more.
    Inline,
    /// A thread of the adapter, which sleeps when idle. As with hardware, the adapter makes progress without the
    /// program.
    Thread,
    /// The program's threads while they poll; once they stop, a thread of the adapter takes over within 2 ms.
    #[default]
    Adaptive,
}

impl Progress {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Inline, Self::Thread, Self::Adaptive];

    /// The mode's name in device URLs and tables.
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

/// The source of the adapter's time.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The system's monotonic clock.
    #[default]
    Monotonic,
    /// A count of nanoseconds that a simulator sets. Only with [`Progress::Inline`].
    Virtual(Arc<AtomicU64>),
}

#[derive(Clone)]
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
    /// The clock that programs see: the system's monotonic one, in nanoseconds, or the simulator's.
    pub(crate) fn shown(&self) -> u64 {
        match &self.clock {
            Clock::Monotonic => monotonic_ns(),
            Clock::Virtual(ns) => ns.load(Ordering::Relaxed),
        }
    }
}

/// The limits of an adapter's objects, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs, up to 65,533: a number has 16 bits, two numbers belong to the management queue pairs, and the last
    /// one to multicast groups.
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

/// The options of an adapter.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The threads that run the engine.
    pub progress: Progress,
    /// Whether, with [`Progress::Inline`], the acknowledgement of a message that a poll yields waits for the program's
    /// answer or for its next call. An acknowledgement that goes along with the answer saves a packet each way of a
    /// ping-pong. The option is for programs that never stop calling: after the last call, the last message stays
    /// unacknowledged until its queue pair closes. In the other modes acknowledgements always wait so, because a thread
    /// of the adapter sends them if the program does not.
    pub lazy_acks: bool,
    /// The seed of keys; `None` takes one from the system.
    pub seed: Option<u64>,
    /// The source of the time.
    pub clock: Clock,
    /// The limits of the adapter's objects.
    pub limits: Limits,
    /// The largest path MTU, where it is less than that of the network.
    pub mtu: Option<Mtu>,
}
