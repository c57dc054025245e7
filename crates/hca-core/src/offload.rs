//! Work on the adapter: the interface by which a layer above gives a device its engine, so that messages are handled
//! while the program computes and makes no calls.

use core::time::Duration;
use std::sync::Weak;

use crate::{CqHandle, DeviceError};

/// An engine of the layer above, such as the matching of Portals or a connection manager. The device runs the engine, as
/// an adapter with a processor of its own runs a loaded program.
///
/// An engine has a completion queue of its own, which was passed to the device when the engine was
/// [attached](Offload::attach). The layer polls that queue in its own calls, too. So if such a call is at work,
/// on this thread or another, the engine's run returns at once: either it leaves a note, and the working call polls
/// once more before it ends, or it reports that more is left, and is run again.
pub trait OffloadEngine: Send + Sync {
    /// Handles new completions of the engine's queue, and work that is due by the engine's deadline. Returns whether
    /// more is left.
    ///
    /// The thread that moves the device calls this: a thread of the device, or a thread of the program in another call
    /// of this device. The program may hold locks during such a call, so a run must not wait for any of these locks.
    /// The device holds no lock of its own. A run's work is bounded, some tens of microseconds. A run may post, poll,
    /// and use the control path, that of [`Offload`] included. The device runs an engine on one thread at a
    /// time, and never within its own run. A run must not panic.
    fn run(&self) -> bool;
    /// The time until the engine needs a run even without completions (for its own retransmissions and keepalives);
    /// `None`: it needs none. The device asks after each run; if the deadline changes at another time,
    /// [`nudge`](Offload::nudge) tells the device.
    fn next_deadline(&self) -> Option<Duration>;
}

/// The capability of a device to run [engines](OffloadEngine) of the layers above, from
/// [`Device::offload`](crate::Device::offload).
pub trait Offload {
    /// Attaches an engine to a completion queue. From now on the device runs the engine at its deadline, and when
    /// completions have come to the queue, unless a poll of the queue has taken them. The device runs the engine once
    /// to begin with.
    ///
    /// The device keeps the engine by a weak reference, so that an engine may own the device. An engine that was
    /// dropped is run no more.
    ///
    /// # Errors
    /// The queue is unknown or has an engine already, or the device has no room for another.
    fn attach(&self, cq: CqHandle, engine: Weak<dyn OffloadEngine>) -> Result<(), DeviceError>;
    /// Detaches the engine. After the return no run begins. The call waits for a run that is under way on another
    /// thread; called from within the run itself it does not wait. [`Device::destroy_cq`](crate::Device::destroy_cq)
    /// does the same before it destroys the queue.
    ///
    /// Not to be called with a lock held that the engine waits for in its run.
    ///
    /// # Errors
    /// The queue is unknown, or has no engine.
    fn detach(&self, cq: CqHandle) -> Result<(), DeviceError>;
    /// Makes the device run the engine soon, and ask for its deadline, although no completion has come. The device's
    /// thread runs it, or the program's next call that moves the device; it does not run within this call, so the
    /// caller may hold locks of its own.
    ///
    /// # Errors
    /// The queue is unknown, or has no engine.
    fn nudge(&self, cq: CqHandle) -> Result<(), DeviceError>;
    /// The program is about to sleep, until a run of its engine wakes it: the device moves without the program's calls
    /// from now on.
    fn program_sleeps(&self) {}
}
