//! The client's memory: what it has mapped for the function, and all accesses of it.
//!
//! Nothing else in this crate touches memory of the client's, but through [`Guest`] and the windows that it makes.
//! Every access is refused while bus mastering is off.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// An address is not mapped, not for this kind of access, or bus mastering is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device can't reach {len} bytes at {iova:#x}: not mapped by the client, or bus mastering is off")]
pub(crate) struct Fault {
    /// The address.
    pub(crate) iova: u64,
    /// How many bytes from there.
    pub(crate) len: u64,
}

/// All memory that the client has mapped for a function.
#[derive(Debug)]
pub(crate) struct Guest {
    bus_master: bool,
}

impl Guest {
    pub(crate) fn new() -> Self {
        Self { bus_master: false }
    }

    /// Whether the function may reach memory at all.
    pub(crate) fn set_bus_master(&mut self, on: bool) {
        self.bus_master = on;
    }

    /// Maps a range; `rights` are reading and writing, `file` a descriptor and where in it the range begins.
    pub(crate) fn map(
        &mut self,
        _iova: u64,
        _size: u64,
        _rights: (bool, bool),
        _file: Option<(OwnedFd, u64)>,
    ) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Unmaps all that lies in a range.
    pub(crate) fn unmap(&mut self, _iova: u64, _size: u64) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Unmaps everything.
    pub(crate) fn clear(&mut self) {}

    /// Copies client memory.
    pub(crate) fn read(&self, iova: u64, into: &mut [u8]) -> Result<(), Fault> {
        Err(Fault { iova, len: into.len() as u64 })
    }

    /// Copies to client memory.
    pub(crate) fn write(&self, iova: u64, bytes: &[u8]) -> Result<(), Fault> {
        Err(Fault { iova, len: bytes.len() as u64 })
    }

    /// Stores 4 aligned bytes at once, behind all that was stored before. `value` is what these bytes are in memory
    /// when read as a big-endian number.
    pub(crate) fn store32(&self, iova: u64, _value: u32) -> Result<(), Fault> {
        Err(Fault { iova, len: 4 })
    }
}
