//! The options of an end of shared memory.

use std::path::PathBuf;

/// The way to peers of memory that the program allocated itself, and not as shared pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessVm {
    /// The memory goes through the ring, by two copies.
    No,
    /// Receivers fetch long messages from the process by one copy (`process_vm_readv`), and WRITEs to an adapter that
    /// sleeps are done by the kernel (`/proc/PID/mem`), if the system lets processes of one user read each other.
    #[default]
    Yes,
    /// As `Yes`; and if Yama restricts that, this process allows every process of its user to read (and trace) it.
    Any,
}

/// The options of a [`ShmFabric`](crate::ShmFabric).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmOptions {
    /// Bytes of the ring to each peer: a power of two from 64 KiB to 64 MiB.
    pub ring_bytes: usize,
    /// The folder that holds the sockets, for containers that share a folder; `None` takes abstract names, which the
    /// processes of a network namespace share.
    pub folder: Option<PathBuf>,
    /// Whether processes of other users may be peers. They then reach the queue pairs of this adapter as hosts of a
    /// network would.
    pub any_user: bool,
    /// Whether RC queue pairs exchange messages instead of packets, with peers that do so too. If not, all traffic is
    /// packets, which layers and taps see.
    pub messages: bool,
    /// Whether only the rings are shared with peers: the target's side then does every copy.
    pub isolated: bool,
    /// The way of memory that the program allocated itself; with `isolated` always through the ring.
    pub process_vm: ProcessVm,
}

impl Default for ShmOptions {
    /// 1 MiB to each peer, abstract names, this user's processes only, messages.
    fn default() -> Self {
        let process_vm = ProcessVm::Yes;
        Self {
            ring_bytes: 1 << 20,
            folder: None,
            any_user: false,
            messages: true,
            isolated: false,
            process_vm,
        }
    }
}
