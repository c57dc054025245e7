//! The configuration space of a function, and its capabilities.

use crate::error::{FunctionError, RegionName};
use crate::function::PciFunction;
use crate::user::wire::{REGION_CONFIG, RegionInfo};

const VENDOR_ID: u16 = 0x00;
const DEVICE_ID: u16 = 0x02;
const COMMAND: u16 = 0x04;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;
const STATUS: u16 = 0x06;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const FIRST_CAPABILITY: u16 = 0x34;
/// As many as there are places for.
const MAX_CAPABILITIES: usize = 48;
const CAPABILITY_MSIX: u8 = 0x11;

/// The configuration space of a function: little-endian registers, reached by calls.
#[derive(Debug)]
pub struct ConfigSpace {
    function: PciFunction,
    region: RegionInfo,
}

/// A capability that a function lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// The capability's number: 0x10 is PCI Express, 0x11 MSI-X.
    pub id: u8,
    /// The capability's offset.
    pub offset: u16,
}

/// The places of the MSI-X tables. The kernel or the server maintains the tables; this tells a driver which registers
/// they occupy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixCapability {
    /// Vectors of the table.
    pub vectors: u16,
    /// The index of the table's BAR.
    pub table_bar: u8,
    /// The table's offset in its BAR.
    pub table_offset: u32,
    /// The index of the pending bits' BAR.
    pub pending_bar: u8,
    /// The offset of the pending bits in their BAR.
    pub pending_offset: u32,
}

impl ConfigSpace {
    pub(crate) fn of(function: &PciFunction) -> Result<Self, FunctionError> {
        let region = function.0.backend.region(REGION_CONFIG)?.info;
        Ok(Self { function: function.clone(), region })
    }

    /// The length in bytes: 256, or 4096 with PCI Express.
    pub fn bytes(&self) -> u64 {
        self.region.size
    }

    fn check(&self, offset: u16, bytes: u64) -> Result<u64, FunctionError> {
        let (at, size) = (u64::from(offset), self.region.size);
        if at % bytes == 0 && at + bytes <= size {
            return Ok(at);
        }
        let (name, region) = (self.function.name().to_owned(), RegionName::Config);
        Err(FunctionError::Range { name, region, offset: at, bytes, size })
    }
    fn read<const N: usize>(&self, offset: u16) -> Result<[u8; N], FunctionError> {
        let mut out = [0; N];
        let at = self.check(offset, N as u64)?;
        self.function.0.backend.read(&self.region, at, &mut out)?;
        Ok(out)
    }
    fn write(&self, offset: u16, data: &[u8]) -> Result<(), FunctionError> {
        let at = self.check(offset, data.len() as u64)?;
        self.function.0.backend.write(&self.region, at, data)
    }

    /// Reads a byte at an offset.
    ///
    /// # Errors
    /// The offset lies outside, or the function is gone. The other accessors fail likewise, and if the offset is not
    /// aligned.
    pub fn read8(&self, offset: u16) -> Result<u8, FunctionError> {
        self.read(offset).map(u8::from_le_bytes)
    }
    /// Reads 2 bytes at an offset.
    ///
    /// # Errors
    /// As [`read8`](Self::read8).
    pub fn read16(&self, offset: u16) -> Result<u16, FunctionError> {
        self.read(offset).map(u16::from_le_bytes)
    }
    /// Reads 4 bytes at an offset.
    ///
    /// # Errors
    /// As [`read8`](Self::read8).
    pub fn read32(&self, offset: u16) -> Result<u32, FunctionError> {
        self.read(offset).map(u32::from_le_bytes)
    }
    /// Writes a byte at an offset.
    ///
    /// # Errors
    /// As [`read8`](Self::read8).
    pub fn write8(&self, offset: u16, v: u8) -> Result<(), FunctionError> {
        self.write(offset, &v.to_le_bytes())
    }
    /// Writes 2 bytes at an offset.
    ///
    /// # Errors
    /// As [`read8`](Self::read8).
    pub fn write16(&self, offset: u16, v: u16) -> Result<(), FunctionError> {
        self.write(offset, &v.to_le_bytes())
    }
    /// Writes 4 bytes at an offset.
    ///
    /// # Errors
    /// As [`read8`](Self::read8).
    pub fn write32(&self, offset: u16, v: u32) -> Result<(), FunctionError> {
        self.write(offset, &v.to_le_bytes())
    }

    /// The vendor ID: 0x15b3 is Mellanox.
    ///
    /// # Errors
    /// The function is gone.
    pub fn vendor_id(&self) -> Result<u16, FunctionError> {
        self.read16(VENDOR_ID)
    }
    /// The device ID of the function.
    ///
    /// # Errors
    /// The function is gone.
    pub fn device_id(&self) -> Result<u16, FunctionError> {
        self.read16(DEVICE_ID)
    }

    fn set_command(&self, bit: u16, on: bool) -> Result<(), FunctionError> {
        let was = self.read16(COMMAND)?;
        let is = if on { was | bit } else { was & !bit };
        if was == is { Ok(()) } else { self.write16(COMMAND, is) }
    }
    /// Switches memory space on or off: while it is on, the function answers accesses to its BARs. Memory space is on
    /// after opening.
    ///
    /// # Errors
    /// Register mappings exist, whose use without memory space would end the process; or the function is gone.
    pub fn set_memory_space(&self, on: bool) -> Result<(), FunctionError> {
        let windows = std::sync::Arc::strong_count(&self.function.0.windows) - 1;
        if !on && windows > 0 {
            return Err(FunctionError::StillMapped { name: self.function.name().to_owned(), windows });
        }
        self.set_command(COMMAND_MEMORY, on)
    }
    /// Switches bus mastering on or off: while it is on, the function may access memory and send interrupts. Bus
    /// mastering is off after opening.
    ///
    /// # Errors
    /// The function is gone.
    pub fn set_bus_master(&self, on: bool) -> Result<(), FunctionError> {
        self.set_command(COMMAND_MASTER, on)
    }
    /// Whether bus mastering is on: the function may access memory.
    ///
    /// # Errors
    /// The function is gone.
    pub fn bus_master(&self) -> Result<bool, FunctionError> {
        Ok(self.read16(COMMAND)? & COMMAND_MASTER != 0)
    }

    /// The function's list of capabilities. A circular list ends at the repetition.
    ///
    /// # Errors
    /// The function is gone.
    pub fn capabilities(&self) -> Result<Vec<Capability>, FunctionError> {
        let mut found: Vec<Capability> = Vec::new();
        if self.read16(STATUS)? & STATUS_CAPABILITIES == 0 {
            return Ok(found);
        }
        // The two lowest bits are reserved; what stands in the header is no capability.
        let mut offset = u16::from(self.read8(FIRST_CAPABILITY)? & !3);
        while offset >= 0x40 && found.len() < MAX_CAPABILITIES && found.iter().all(|c| c.offset != offset) {
            found.push(Capability { id: self.read8(offset)?, offset });
            offset = u16::from(self.read8(offset + 1)? & !3);
        }
        Ok(found)
    }

    /// The MSI-X capability, if there is one.
    ///
    /// # Errors
    /// The function is gone.
    pub fn msix(&self) -> Result<Option<MsixCapability>, FunctionError> {
        let Some(found) = self.capabilities()?.into_iter().find(|c| c.id == CAPABILITY_MSIX) else {
            return Ok(None);
        };
        let control = self.read16(found.offset + 2)?;
        let (table, pending) = (self.read32(found.offset + 4)?, self.read32(found.offset + 8)?);
        Ok(Some(MsixCapability {
            vectors: (control & 0x7ff) + 1,
            table_bar: (table & 7) as u8,
            table_offset: table & !7,
            pending_bar: (pending & 7) as u8,
            pending_offset: pending & !7,
        }))
    }
}
