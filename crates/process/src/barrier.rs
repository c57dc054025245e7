//! Registration for the system's memory barriers while it costs nothing.
//!
//! `membarrier` serves a process only after a registration. The kernel carries out the registration of a process with
//! one thread at once. With several threads it waits for an RCU grace period, once for each command: 5 to 30 ms, and
//! seconds while others spin on all processors.

use std::fs::metadata;
use std::os::unix::fs::MetadataExt;

use rustix::thread::{MembarrierCommand, membarrier};

/// The directories of a directory have this many links beside those of its entries: its own and its parent's.
const LINKS_OF_NONE: u64 = 2;

/// Registers this process by a command such as [`MembarrierCommand::RegisterPrivateExpedited`], if this is its only
/// thread. A process with several threads has to register where it needs the barrier. [`spawn`](crate::spawn) does this
/// for the private expedited barrier.
pub fn register_while_alone(command: MembarrierCommand) {
    if threads() == Some(1) {
        // Whoever needs the barrier registers again, which tells whether the system has it.
        let _ = membarrier(command);
    }
}

/// The threads of this process; `None` where /proc is missing.
pub(crate) fn threads() -> Option<u64> {
    if cfg!(miri) { None } else { metadata("/proc/self/task").ok()?.nlink().checked_sub(LINKS_OF_NONE) }
}
