//! Portals on the adapter: the interface by which a layer above gives a device its matching engine, so that messages
//! are matched and placed while the target program computes and makes no calls.

use core::time::Duration;
use std::sync::Weak;

use crate::{CqHandle, DeviceError};

/// A part of a Portals layer that the device runs, as an adapter with its own processor runs a program that was loaded
/// onto it.
///
/// It has a completion queue of its own, which the device was told when the engine was
/// [attached](PortalsOffload::attach). The layer polls that queue in its own calls, too, so an engine that finds itself
/// at work, in such a call on this thread or another, returns at once: either it leaves word, and whoever is at work
/// looks once more before it ends, or it says that more is left and is run again.
pub trait PortalsEngine: Send + Sync {
    /// Handles new completions of its queue, and work that is due by its own deadline. Returns whether more is left.
    ///
    /// Called by whoever moves the device: a thread of the device's, or one of the program's in a call of this device
    /// that concerns something else, with whatever locks the program holds then; so it waits for no lock that is held
    /// during such a call. No lock of the device is held. The work is bounded, some tens of microseconds. It may post,
    /// poll, and use the control path, that of [`PortalsOffload`] included. The device runs an engine on one thread at
    /// a time, and never within its own run. It must not panic.
    fn run(&self) -> bool;
    /// How long until it wants to be run even if nothing comes (retransmissions of its own, keepalives); `None`: it
    /// does not. Asked behind each run; where it changes at another time, [`nudge`](PortalsOffload::nudge) tells the
    /// device.
    fn next_deadline(&self) -> Option<Duration>;
}

/// The capability of a device to run [Portals engines](PortalsEngine), as
/// [`Device::portals`](crate::Device::portals) tells.
pub trait PortalsOffload {
    /// From now on the engine is run whenever completions have come to the queue by other ways than its own poll (whose
    /// caller has them already), and at its deadline. It is run once to begin with.
    ///
    /// The device keeps the engine by a weak reference, so that an engine may own the device. One that is gone is run
    /// no more.
    ///
    /// # Errors
    /// The queue is unknown or has an engine already, or the device has no room for another.
    fn attach(&self, cq: CqHandle, engine: Weak<dyn PortalsEngine>) -> Result<(), DeviceError>;
    /// Takes the engine away. When it returns, no run begins any more. One that is under way on another thread is
    /// waited for; called from within the run itself it does not wait.
    /// [`Device::destroy_cq`](crate::Device::destroy_cq) does the same before it destroys the queue.
    ///
    /// Not to be called with a lock held that the engine waits for in its run.
    ///
    /// # Errors
    /// The queue is unknown, or has none.
    fn detach(&self, cq: CqHandle) -> Result<(), DeviceError>;
    /// Has the engine run soon, and asked for its deadline, though nothing has come: by the device's thread, or by the
    /// program's next call that moves the device; not on this thread now, so the caller may hold locks of its own.
    ///
    /// # Errors
    /// The queue is unknown, or has none.
    fn nudge(&self, cq: CqHandle) -> Result<(), DeviceError>;
}
