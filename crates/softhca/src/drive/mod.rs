//! Who turns the engine: the program's threads, which own its lock one at a time, and the adapter's thread.

pub(crate) mod change;
pub(crate) mod glance;
pub(crate) mod guard;
pub(crate) mod offload;
pub(crate) mod progress;
pub(crate) mod seat;
pub(crate) mod shared;
pub(crate) mod sleep;
pub(crate) mod sleeper;
