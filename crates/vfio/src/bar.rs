//! BARs: registers, mapped or accessed by calls.

use std::sync::Arc;

use crate::backend::{Region, RegionFile};
use crate::error::{FunctionError, RegionName};
use crate::function::PciFunction;
use crate::mapping::Mapping;
use crate::mmio::Mmio;
use crate::user::wire::{Area, RegionInfo};

/// A base address region (BAR): a function's memory of registers.
///
/// Parts of it may be mapped ([`mappable`](Self::mappable), [`map`](Self::map)); all of it can be accessed by calls,
/// each of which is a system call or a message to a server. [`registers`](Self::registers) chooses the quicker way of
/// the two.
#[derive(Clone)]
pub struct Bar {
    function: PciFunction,
    index: u8,
    info: RegionInfo,
    file: Option<Arc<dyn RegionFile>>,
}

impl core::fmt::Debug for Bar {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Bar").field("index", &self.index).field("info", &self.info).finish_non_exhaustive()
    }
}

/// BARs of a function.
const BARS: u8 = 6;

impl Bar {
    pub(crate) fn of(function: &PciFunction, index: u8) -> Result<Self, FunctionError> {
        let none = || FunctionError::NoBar { name: function.name().to_owned(), index };
        if index >= BARS || u32::from(index) >= function.0.backend.device().regions {
            return Err(none());
        }
        let Region { info, file } = function.0.backend.region(index.into())?;
        if info.size == 0 {
            return Err(none());
        }
        Ok(Self { function: function.clone(), index, info, file })
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.info.size
    }
    /// The parts that may be mapped, each with its offset and its length.
    pub fn mappable(&self) -> Vec<(u64, u64)> {
        match (&self.info.areas, self.info.mmap && self.file.is_some()) {
            (_, false) => Vec::new(),
            (None, true) => vec![(0, self.info.size)],
            (Some(areas), true) => areas.iter().map(|a| (a.offset, a.size)).collect(),
        }
    }

    /// Maps a part of the BAR. The part has to lie within one of the [`mappable`](Self::mappable) parts.
    ///
    /// # Errors
    /// The part lies outside of the mappable parts, or the system or the server refuses.
    pub fn map(&self, offset: u64, len: usize) -> Result<Mmio, FunctionError> {
        let not_mappable = || FunctionError::NotMappable {
            name: self.function.name().to_owned(),
            region: RegionName::Bar(self.index),
            offset,
            bytes: len as u64,
            areas: self.mappable(),
        };
        let end = offset.checked_add(len as u64).filter(|_| len > 0 && offset.is_multiple_of(8));
        let end = end.ok_or_else(not_mappable)?;
        let within = |a: &Area| offset >= a.offset && end <= a.offset + a.size;
        let areas = self.mappable().into_iter().map(|(offset, size)| Area { offset, size });
        let area = areas.into_iter().find(within).ok_or_else(not_mappable)?;
        let file = self.file.as_ref().ok_or_else(not_mappable)?;

        let page = rustix::param::page_size() as u64;
        let first = offset & !(page - 1);
        let last = end.checked_next_multiple_of(page).ok_or_else(not_mappable)?;
        // Where the area ends within a page, what lies behind on that page is of the same file, and not reached.
        if first < area.offset & !(page - 1) {
            return Err(not_mappable());
        }
        let at = self.info.offset.checked_add(first).ok_or_else(not_mappable)?;
        self.check_length(&**file, at.saturating_add(last - first))?;
        // Held until the window is known, so that none is left when the function is let go of.
        let mut shown = self.function.shown();
        let shown = shown.as_mut().ok_or_else(|| self.function.was_let_go())?;
        let mapping = Mapping::of_file(file.as_fd(), at, (last - first) as usize, 1);
        let mapping = mapping.map_err(|e| FunctionError::Io {
            name: self.function.name().to_owned(),
            doing: "mapping registers",
            source: e.into(),
        })?;
        let owner = (self.function.clone(), self.function.0.windows.clone());
        let window = Mmio::new(mapping, (offset - first) as usize, len, owner);
        shown.retain(|held| held.strong_count() > 0);
        shown.push(window.held());
        Ok(window)
    }

    /// Access to a part of the BAR: mapped if the whole part may be mapped, else by calls.
    ///
    /// # Errors
    /// The part does not lie within the BAR, does not begin at a multiple of 8, or is mappable and the mapping fails.
    pub fn registers(&self, offset: u64, len: usize) -> Result<Registers, FunctionError> {
        let size = self.info.size;
        let end =
            offset.checked_add(len as u64).filter(|e| *e <= size && len > 0 && offset.is_multiple_of(8));
        if end.is_none() {
            let (name, region) = (self.function.name().to_owned(), RegionName::Bar(self.index));
            return Err(FunctionError::Range { name, region, offset, bytes: len as u64, size });
        }
        let window = match self.map(offset, len) {
            Ok(window) => Some(window),
            Err(FunctionError::NotMappable { .. }) => None,
            Err(e) => return Err(e),
        };
        Ok(Registers { bar: self.clone(), window, offset, len: len as u64 })
    }

    /// A server's file that ends too early would end this process by a signal upon the first access.
    fn check_length(&self, file: &dyn RegionFile, needs: u64) -> Result<(), FunctionError> {
        if !file.has_length() {
            return Ok(());
        }
        let name = || self.function.name().to_owned();
        let stat = rustix::fs::fstat(file.as_fd()).map_err(|e| FunctionError::Io {
            name: name(),
            doing: "asking for the length of the file behind a BAR",
            source: e.into(),
        })?;
        let has = stat.st_size as u64;
        if has >= needs {
            return Ok(());
        }
        Err(FunctionError::ShortFile { name: name(), region: RegionName::Bar(self.index), needs, has })
    }

    fn check(&self, offset: u64, bytes: u64, may: bool, what: &'static str) -> Result<(), FunctionError> {
        let (name, region) = (|| self.function.name().to_owned(), RegionName::Bar(self.index));
        let size = self.info.size;
        if !offset.is_multiple_of(bytes) || offset.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(FunctionError::Range { name: name(), region, offset, bytes, size });
        }
        if may { Ok(()) } else { Err(FunctionError::Right { name: name(), region, what }) }
    }
    fn read<const N: usize>(&self, offset: u64) -> Result<[u8; N], FunctionError> {
        self.check(offset, N as u64, self.info.read, "read")?;
        let mut out = [0; N];
        self.function.0.backend.read(&self.info, offset, &mut out)?;
        Ok(out)
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), FunctionError> {
        self.check(offset, data.len() as u64, self.info.write, "written")?;
        self.function.0.backend.write(&self.info, offset, data)
    }

    /// Reads 4 bytes by a call, in the host's order.
    ///
    /// # Errors
    /// The bytes lie outside of the BAR, are not aligned or not readable, or the function is gone. The other accessors
    /// fail likewise.
    pub fn read32(&self, offset: u64) -> Result<u32, FunctionError> {
        self.read(offset).map(u32::from_ne_bytes)
    }
    /// Reads 8 bytes by a call, in the host's order.
    ///
    /// # Errors
    /// As [`read32`](Self::read32).
    pub fn read64(&self, offset: u64) -> Result<u64, FunctionError> {
        self.read(offset).map(u64::from_ne_bytes)
    }
    /// Reads 4 bytes that are big-endian, by a call.
    ///
    /// # Errors
    /// As [`read32`](Self::read32).
    pub fn read32_be(&self, offset: u64) -> Result<u32, FunctionError> {
        self.read(offset).map(u32::from_be_bytes)
    }
    /// Reads 8 bytes that are big-endian, by a call.
    ///
    /// # Errors
    /// As [`read32`](Self::read32).
    pub fn read64_be(&self, offset: u64) -> Result<u64, FunctionError> {
        self.read(offset).map(u64::from_be_bytes)
    }
    /// Writes 4 bytes by a call, in the host's order.
    ///
    /// # Errors
    /// As [`read32`](Self::read32); the bytes can't be written.
    pub fn write32(&self, offset: u64, v: u32) -> Result<(), FunctionError> {
        self.write(offset, &v.to_ne_bytes())
    }
    /// Writes 8 bytes by a call, in the host's order.
    ///
    /// # Errors
    /// As [`write32`](Self::write32).
    pub fn write64(&self, offset: u64, v: u64) -> Result<(), FunctionError> {
        self.write(offset, &v.to_ne_bytes())
    }
    /// Writes 4 bytes big-endian, by a call.
    ///
    /// # Errors
    /// As [`write32`](Self::write32).
    pub fn write32_be(&self, offset: u64, v: u32) -> Result<(), FunctionError> {
        self.write(offset, &v.to_be_bytes())
    }
    /// Writes 8 bytes big-endian, by a call.
    ///
    /// # Errors
    /// As [`write32`](Self::write32).
    pub fn write64_be(&self, offset: u64, v: u64) -> Result<(), FunctionError> {
        self.write(offset, &v.to_be_bytes())
    }
}

/// A part of a BAR, accessed by the quickest way that exists. Offsets count from the beginning of the part.
///
/// This type is for set-up code, so that one driver works with functions whose registers can be mapped and with
/// functions whose registers can't. The data path uses an [`Mmio`].
#[derive(Clone, Debug)]
pub struct Registers {
    bar: Bar,
    window: Option<Mmio>,
    offset: u64,
    len: u64,
}

impl Registers {
    /// The window on the registers, if they are mapped.
    pub fn window(&self) -> Option<&Mmio> {
        self.window.as_ref()
    }
    /// The offset of the registers in their BAR.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What is outside of a window would panic, and what is outside of the part would reach its neighbours.
    fn check(&self, at: u64, bytes: u64) -> Result<u64, FunctionError> {
        if at.is_multiple_of(bytes) && at.checked_add(bytes).is_some_and(|e| e <= self.len) {
            return Ok(self.offset + at);
        }
        let (name, region) = (self.bar.function.name().to_owned(), RegionName::Bar(self.bar.index));
        Err(FunctionError::Range { name, region, offset: at, bytes, size: self.len })
    }

    /// Reads 4 bytes that are big-endian.
    ///
    /// # Errors
    /// The bytes lie outside of the registers or are not aligned, or the function is gone. The other accessors fail
    /// likewise.
    pub fn read32_be(&self, at: u64) -> Result<u32, FunctionError> {
        let within = self.check(at, 4)?;
        match &self.window {
            Some(window) => Ok(window.load32_be(at as usize)),
            None => self.bar.read32_be(within),
        }
    }
    /// Reads 8 bytes that are big-endian.
    ///
    /// # Errors
    /// As [`read32_be`](Self::read32_be).
    pub fn read64_be(&self, at: u64) -> Result<u64, FunctionError> {
        let within = self.check(at, 8)?;
        match &self.window {
            Some(window) => Ok(window.load64_be(at as usize)),
            None => self.bar.read64_be(within),
        }
    }
    /// Writes 4 bytes big-endian.
    ///
    /// # Errors
    /// As [`read32_be`](Self::read32_be).
    pub fn write32_be(&self, at: u64, v: u32) -> Result<(), FunctionError> {
        let within = self.check(at, 4)?;
        match &self.window {
            Some(window) => {
                window.store32_be(at as usize, v);
                Ok(())
            }
            None => self.bar.write32_be(within, v),
        }
    }
    /// Writes 8 bytes big-endian.
    ///
    /// # Errors
    /// As [`read32_be`](Self::read32_be).
    pub fn write64_be(&self, at: u64, v: u64) -> Result<(), FunctionError> {
        let within = self.check(at, 8)?;
        match &self.window {
            Some(window) => {
                window.store64_be(at as usize, v);
                Ok(())
            }
            None => self.bar.write64_be(within, v),
        }
    }
}
