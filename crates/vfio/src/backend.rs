//! The operations that differ between the two kinds of functions.

use core::fmt;
use core::ptr::NonNull;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::error::{DmaError, FunctionError};
use crate::iova::Iova;
use crate::memory::Memory;
use crate::user::wire::{DeviceInfo, RegionInfo};
use crate::wake::Waker;

/// A region, and the file by which it can be mapped.
pub(crate) struct Region {
    pub(crate) info: RegionInfo,
    pub(crate) file: Option<Arc<dyn RegionFile>>,
}

/// A file that stands for a region.
pub(crate) trait RegionFile: AsFd + Send + Sync {
    /// Whether its length says what of it may be mapped.
    fn has_length(&self) -> bool;
}

/// The access rights of a device to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaRights {
    /// The device may read the memory.
    pub read: bool,
    /// The device may write the memory.
    pub write: bool,
}

impl DmaRights {
    /// Reading and writing.
    pub const ALL: Self = Self { read: true, write: true };
    /// Reading only.
    pub const READ: Self = Self { read: true, write: false };
}

/// The limits of mappings for DMA.
pub(crate) struct DmaLimits {
    pub(crate) ranges: Vec<RangeInclusive<u64>>,
    /// Sizes of the pages of which a mapping can be made, as bits.
    pub(crate) page_sizes: u64,
    pub(crate) max_mappings: u32,
}

/// Memory that is to be mapped.
pub(crate) enum DmaMemory<'a> {
    /// All of a piece of the library's own.
    Own(&'a Arc<Memory>),
    /// Somebody else's, whole pages.
    Foreign(NonNull<u8>, usize),
}

impl DmaMemory<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Own(m) => m.len(),
            Self::Foreign(_, len) => *len,
        }
    }
    pub(crate) fn addr(&self) -> usize {
        match self {
            Self::Own(m) => m.base().addr().get(),
            Self::Foreign(at, _) => at.addr().get(),
        }
    }
}

/// A function by way of the kernel, or of a server.
///
/// Regions and interrupts are those of vfio: BARs 0 to 5, configuration space 7; MSI-X is kind 2, errors of
/// the bus 3, requests to let go 4. Ranges have been
/// checked against the region's description.
pub(crate) trait Backend: fmt::Debug + Send + Sync {
    /// Its name for people, and by which it can be opened.
    fn name(&self) -> &str;
    fn device(&self) -> DeviceInfo;
    fn region(&self, index: u32) -> Result<Region, FunctionError>;
    fn read(&self, region: &RegionInfo, offset: u64, into: &mut [u8]) -> Result<(), FunctionError>;
    fn write(&self, region: &RegionInfo, offset: u64, data: &[u8]) -> Result<(), FunctionError>;
    /// Interrupts of a kind that there are, and that can write to eventfds.
    fn irqs(&self, kind: u32) -> Result<u32, FunctionError>;
    /// Has interrupts of a kind from 0 on write to these.
    fn set_irqs(&self, kind: u32, eventfds: &[BorrowedFd<'_>]) -> Result<(), FunctionError>;
    fn clear_irqs(&self, kind: u32) -> Result<(), FunctionError>;
    fn reset(&self) -> Result<(), FunctionError>;

    fn dma_limits(&self) -> DmaLimits;
    /// Whether memory may be huge pages that the system has set aside (hugetlbfs). A server must not take these: their
    /// owner can punch holes that nothing fills, so that the server's next access is its end.
    fn takes_huge_pages(&self) -> bool;
    /// Whether memory may be somebody else's than the library's own ([`DmaMemory::Foreign`]).
    fn takes_foreign(&self) -> bool;
    fn dma_map(&self, at: Iova, memory: &DmaMemory<'_>, rights: DmaRights) -> Result<(), DmaError>;
    /// Returns when the device can reach it no more.
    fn dma_unmap(&self, at: Iova, len: u64) -> Result<(), DmaError>;

    /// Closes all descriptors of it, whoever holds them. From then on all of the above fails, but for unmapping, as it
    /// reaches no memory any more.
    fn let_go(&self) -> Result<(), FunctionError>;

    /// The waker of the function's server, if the server may sleep.
    fn waker(&self) -> Option<Waker>;
}
