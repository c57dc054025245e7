//! Descriptions of a function, its regions and its interrupts, in the layouts of the kernel's vfio.

use super::{MAX_AREAS, MAX_IRQS, Reader, WireError, Writer};

/// The description of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Whether it can be reset.
    pub can_reset: bool,
    /// Whether it is a PCI function.
    pub is_pci: bool,
    /// Regions that it has; nine of a PCI function are numbered.
    pub regions: u32,
    /// Kinds of interrupts that it has; five of a PCI function are numbered.
    pub irq_kinds: u32,
}

const DEVICE_RESET: u32 = 1;
const DEVICE_PCI: u32 = 2;

impl DeviceInfo {
    pub(super) const BYTES: u32 = 16;

    pub(super) fn parse(payload: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new("a device's description", payload);
        let (_argsz, flags, regions, irq_kinds) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
        Ok(Self { can_reset: flags & DEVICE_RESET != 0, is_pci: flags & DEVICE_PCI != 0, regions, irq_kinds })
    }
    pub(super) fn write(&self, w: &mut Writer) {
        let bit = |is: bool, bit| if is { bit } else { 0 };
        let flags = bit(self.can_reset, DEVICE_RESET) | bit(self.is_pci, DEVICE_PCI);
        w.u32(Self::BYTES).u32(flags).u32(self.regions).u32(self.irq_kinds);
    }
}

/// A part of a region that may be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// The area's offset in the region.
    pub offset: u64,
    /// The length.
    pub size: u64,
}

/// The description of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// The bytes of a reply with the whole description. If the reply is shorter, its areas were left out.
    pub argsz: u32,
    /// The number.
    pub index: u32,
    /// Whether it can be read.
    pub read: bool,
    /// Whether it can be written.
    pub write: bool,
    /// Whether it can be mapped, at least in part.
    pub mmap: bool,
    /// The length; 0: there is no such region.
    pub size: u64,
    /// The region's offset in its file, for mapping.
    pub offset: u64,
    /// The parts that may be mapped, if not the whole region may.
    pub areas: Option<Vec<Area>>,
}

const REGION_READ: u32 = 1;
const REGION_WRITE: u32 = 2;
const REGION_MMAP: u32 = 4;
const REGION_CAPS: u32 = 8;
const CAP_SPARSE: u16 = 1;

impl RegionInfo {
    /// Bytes of a description without capabilities.
    pub const BYTES: u32 = 32;
    /// The bytes of the longest accepted description, with room for capabilities that this crate ignores.
    pub const MAX_BYTES: u32 = Self::BYTES + 16 + 16 * MAX_AREAS as u32 + 1024;

    /// Parses a description from the bytes of a reply or of the kernel.
    ///
    /// # Errors
    /// The bytes end too early, there are more areas than [`MAX_AREAS`], an area exceeds the region, or the chain of
    /// capabilities is broken.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new("a region's description", payload);
        let (argsz, flags, index, cap_offset) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
        let (size, offset) = (r.u64()?, r.u64()?);
        let told = flags & REGION_CAPS != 0 && argsz as usize <= payload.len();
        let areas = if told { areas(payload, cap_offset)? } else { None };
        let ends = areas.iter().flatten().map(|a| a.offset.checked_add(a.size));
        if let Some(end) = ends.into_iter().find(|e| e.is_none_or(|e| e > size)) {
            return Err(WireError::Count {
                what: "the end of an area",
                claimed: end.unwrap_or(u64::MAX),
                possible: size,
            });
        }
        let has = |bit| flags & bit != 0;
        let (read, write, mmap) = (has(REGION_READ), has(REGION_WRITE), has(REGION_MMAP));
        Ok(Self { argsz, index, read, write, mmap, size, offset, areas })
    }

    /// Writes it, with its areas if the other side left room for them.
    pub(super) fn write(&self, room: u32, w: &mut Writer) {
        let areas = self.areas.as_deref();
        let caps = areas.map_or(0, |a| 16 + 16 * a.len() as u32);
        let argsz = Self::BYTES + caps;
        let bit = |is: bool, bit| if is { bit } else { 0 };
        let flags = bit(self.read, REGION_READ) | bit(self.write, REGION_WRITE) | bit(self.mmap, REGION_MMAP);
        let fits = argsz <= room;
        let (caps_flag, at) = if caps > 0 { (REGION_CAPS, Self::BYTES) } else { (0, 0) };
        // Where they would stand is told without them, too: QEMU takes the flag with another offset for an error.
        w.u32(argsz).u32(flags | caps_flag).u32(self.index).u32(at);
        w.u64(self.size).u64(self.offset);
        if let Some(areas) = areas.filter(|_| fits) {
            w.u16(CAP_SPARSE).u16(1).u32(0).u32(areas.len() as u32).u32(0);
            for a in areas {
                w.u64(a.offset).u64(a.size);
            }
        }
    }
}

/// Follows the chain of capabilities to the one that names areas.
fn areas(payload: &[u8], first: u32) -> Result<Option<Vec<Area>>, WireError> {
    let mut at = first;
    let mut behind = RegionInfo::BYTES;
    while at != 0 {
        // Each stands behind the one before, so that there are no circles.
        let found = payload.get(at as usize..).filter(|_| at >= behind).ok_or(WireError::Chain { at })?;
        let mut r = Reader::new("a region's capability", found);
        let (id, _version, next) = (r.u16()?, r.u16()?, r.u32()?);
        if id == CAP_SPARSE {
            let (count, _reserved) = (r.u32()?, r.u32()?);
            if count as usize > MAX_AREAS {
                let (claimed, possible) = (u64::from(count), MAX_AREAS as u64);
                return Err(WireError::Count { what: "the number of areas", claimed, possible });
            }
            let areas = (0..count).map(|_| Ok(Area { offset: r.u64()?, size: r.u64()? }));
            return areas.collect::<Result<_, _>>().map(Some);
        }
        behind = at.saturating_add(8);
        at = next;
    }
    Ok(None)
}

/// The description of one kind of interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IrqInfo {
    /// The kind's number.
    pub index: u32,
    /// The number.
    pub count: u32,
    /// Whether an eventfd can receive them.
    pub eventfd: bool,
    /// Whether they can be masked.
    pub maskable: bool,
    /// Whether an interrupt masks itself when it fires.
    pub automasked: bool,
    /// Whether the interrupts of the kind can only be set up all at once.
    pub noresize: bool,
}

const IRQ_EVENTFD: u32 = 1;
const IRQ_MASKABLE: u32 = 2;
const IRQ_AUTOMASKED: u32 = 4;
const IRQ_NORESIZE: u32 = 8;

impl IrqInfo {
    pub(super) const BYTES: u32 = 16;

    pub(super) fn parse(payload: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new("a description of interrupts", payload);
        let (_argsz, flags, index, count) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
        if count > MAX_IRQS {
            let (claimed, possible) = (u64::from(count), u64::from(MAX_IRQS));
            return Err(WireError::Count { what: "the number of interrupts", claimed, possible });
        }
        let has = |bit| flags & bit != 0;
        Ok(Self {
            index,
            count,
            eventfd: has(IRQ_EVENTFD),
            maskable: has(IRQ_MASKABLE),
            automasked: has(IRQ_AUTOMASKED),
            noresize: has(IRQ_NORESIZE),
        })
    }
    pub(super) fn write(&self, w: &mut Writer) {
        let bit = |is: bool, bit| if is { bit } else { 0 };
        let flags = bit(self.eventfd, IRQ_EVENTFD)
            | bit(self.maskable, IRQ_MASKABLE)
            | bit(self.automasked, IRQ_AUTOMASKED)
            | bit(self.noresize, IRQ_NORESIZE);
        w.u32(Self::BYTES).u32(flags).u32(self.index).u32(self.count);
    }
}
