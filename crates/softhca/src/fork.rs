//! Whether this process is a child that was forked off after the adapter was opened.
//!
//! A child has a copy of the rings and of the engine, but neither the adapter's thread nor the right to use its
//! address. A child must change nothing, and must not wait for a lock that a thread of the parent held at the fork.

use hca_core::DeviceError;

/// What an adapter keeps to tell.
#[derive(Clone, Copy)]
pub(crate) struct Fork(hca_process::Fork);

impl Fork {
    pub(crate) fn new() -> Self {
        Self(hca_process::Fork::new())
    }
    #[inline]
    pub(crate) fn is_child(self) -> bool {
        self.0.is_child()
    }
    /// Refuses the control path to a child.
    pub(crate) fn check(self) -> Result<(), DeviceError> {
        if self.is_child() {
            let what = "use in a child process: the device was opened before the fork; open another one in the child";
            return Err(DeviceError::Unsupported { what });
        }
        Ok(())
    }
}
