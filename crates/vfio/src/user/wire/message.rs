//! The request and the reply of each command.

use super::{
    Command, DeviceInfo, HEADER_BYTES, Header, IrqInfo, Kind, MAX_IRQS, MAX_TRANSFER_BYTES, Reader,
    RegionInfo, Version, WireError, Writer,
};

/// A mapping of memory for the device.
///
/// With a descriptor the server can map it; without one it asks the client by messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaMap {
    /// Whether the device may read it.
    pub read: bool,
    /// Whether the device may write it.
    pub write: bool,
    /// The memory's offset in the descriptor's file.
    pub offset: u64,
    /// The address for the device.
    pub address: u64,
    /// The length.
    pub size: u64,
}

/// Memory that the device may no longer access after the reply. All memory is unmapped by a flag on the wire, and has the
/// address 0 and a size of 2^64 - 1 here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaUnmap {
    /// The address for the device.
    pub address: u64,
    /// The length.
    pub size: u64,
}

/// The action on interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqAction {
    /// The interrupts are masked.
    Mask,
    /// The interrupts are unmasked.
    Unmask,
    /// The interrupts are triggered; with eventfds: the eventfds are set.
    Trigger,
}

/// The interrupts of the range that the action concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqData<'a> {
    /// All interrupts of the range. With [`IrqAction::Trigger`] and an empty range: all interrupts of the kind are
    /// disabled.
    None,
    /// The interrupts whose byte is not 0.
    Bools(&'a [u8]),
    /// The interrupts' eventfds come with the message; without eventfds in the message, the set ones are removed.
    EventFds,
}

/// A change of interrupts: masking, unmasking, triggering, or their eventfds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetIrqs<'a> {
    /// The kind's number.
    pub index: u32,
    /// The first of the range.
    pub start: u32,
    /// The number.
    pub count: u32,
    /// The action.
    pub action: IrqAction,
    /// The interrupts that the action concerns.
    pub data: IrqData<'a>,
}

/// One of several writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiWrite {
    /// The region's number.
    pub region: u32,
    /// The offset in the region.
    pub offset: u64,
    /// The first of these bytes are written.
    pub data: [u8; 8],
    /// The number of written bytes: 1 to 8.
    pub count: u32,
}

/// The means to wake a server; the eventfd is the first descriptor of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The offset, a multiple of eight, of the sleep word in the second descriptor's file. The word is not 0 while the
    /// server sleeps. `None`: there is no word, and each doorbell needs a wake.
    pub word: Option<u64>,
}

/// A request of a client or of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request<'a> {
    /// The client's version.
    Version(Version),
    /// Maps memory for the device.
    DmaMap(DmaMap),
    /// Ends a mapping of memory.
    DmaUnmap(DmaUnmap),
    /// Asks about the device.
    DeviceGetInfo,
    /// Asks about a region.
    GetRegionInfo {
        /// The region's number.
        index: u32,
        /// The bytes that the reply may have.
        argsz: u32,
    },
    /// Asks for descriptors that stand for registers.
    GetRegionIoFds {
        /// The region's number.
        index: u32,
    },
    /// Asks about interrupts.
    GetIrqInfo {
        /// The kind's number.
        index: u32,
    },
    /// Changes interrupts: masking, unmasking, triggering, or their eventfds.
    SetIrqs(SetIrqs<'a>),
    /// Reads from a region.
    RegionRead {
        /// The region's number.
        region: u32,
        /// The offset in the region.
        offset: u64,
        /// The number of bytes.
        count: u32,
    },
    /// Writes to a region.
    RegionWrite {
        /// The region's number.
        region: u32,
        /// The offset in the region.
        offset: u64,
        /// The bytes to write.
        data: &'a [u8],
    },
    /// The server reads the client's memory.
    DmaRead {
        /// The address for the device.
        address: u64,
        /// The number of bytes.
        count: u32,
    },
    /// The server writes the client's memory.
    DmaWrite {
        /// The address for the device.
        address: u64,
        /// The bytes to write.
        data: &'a [u8],
    },
    /// Resets the device.
    DeviceReset,
    /// Writes to several places.
    RegionWriteMulti(Vec<MultiWrite>),
    /// Asks for the means to wake the server.
    HcaWake,
}

fn transfer(what: &'static str, claimed: u64) -> Result<u32, WireError> {
    let fits = u32::try_from(claimed).ok().filter(|c| *c <= MAX_TRANSFER_BYTES);
    fits.ok_or(WireError::Count { what, claimed, possible: MAX_TRANSFER_BYTES.into() })
}

impl<'a> Request<'a> {
    /// The command of the request.
    pub fn command(&self) -> Command {
        match self {
            Self::Version(_) => Command::Version,
            Self::DmaMap(_) => Command::DmaMap,
            Self::DmaUnmap(_) => Command::DmaUnmap,
            Self::DeviceGetInfo => Command::DeviceGetInfo,
            Self::GetRegionInfo { .. } => Command::GetRegionInfo,
            Self::GetRegionIoFds { .. } => Command::GetRegionIoFds,
            Self::GetIrqInfo { .. } => Command::GetIrqInfo,
            Self::SetIrqs(_) => Command::SetIrqs,
            Self::RegionRead { .. } => Command::RegionRead,
            Self::RegionWrite { .. } => Command::RegionWrite,
            Self::DmaRead { .. } => Command::DmaRead,
            Self::DmaWrite { .. } => Command::DmaWrite,
            Self::DeviceReset => Command::DeviceReset,
            Self::RegionWriteMulti(_) => Command::RegionWriteMulti,
            Self::HcaWake => Command::HcaWake,
        }
    }

    /// Parses the payload of a command's message.
    ///
    /// # Errors
    /// The command is unknown, the payload is too short, or a field has no meaning.
    pub fn parse(command: u16, payload: &'a [u8]) -> Result<Self, WireError> {
        let command = Command::from_code(command).ok_or(WireError::Command { code: command })?;
        let mut r = Reader::new(command.name(), payload);
        Ok(match command {
            Command::Version => Self::Version(Version::parse(payload)?),
            Command::DmaMap => Self::DmaMap(DmaMap::parse(&mut r)?),
            Command::DmaUnmap => Self::DmaUnmap(DmaUnmap::parse(&mut r)?),
            Command::DeviceGetInfo => {
                r.array::<16>()?;
                Self::DeviceGetInfo
            }
            Command::GetRegionInfo => {
                let (argsz, _flags, index) = (r.u32()?, r.u32()?, r.u32()?);
                r.array::<20>()?;
                Self::GetRegionInfo { index, argsz }
            }
            Command::GetRegionIoFds => {
                let (_argsz, _flags, index, _count) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
                Self::GetRegionIoFds { index }
            }
            Command::GetIrqInfo => {
                let (_argsz, _flags, index, _count) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
                Self::GetIrqInfo { index }
            }
            Command::SetIrqs => Self::SetIrqs(SetIrqs::parse(&mut r)?),
            Command::RegionRead => {
                let (offset, region, count) = (r.u64()?, r.u32()?, r.u32()?);
                Self::RegionRead { region, offset, count: transfer("the count of a read", count.into())? }
            }
            Command::RegionWrite => {
                let (offset, region, count) = (r.u64()?, r.u32()?, r.u32()?);
                Self::RegionWrite { region, offset, data: r.data("the count of a write", count.into())? }
            }
            Command::DmaRead => {
                let (address, count) = (r.u64()?, r.u64()?);
                Self::DmaRead { address, count: transfer("the count of a DMA read", count)? }
            }
            Command::DmaWrite => {
                let (address, count) = (r.u64()?, r.u64()?);
                Self::DmaWrite { address, data: r.data("the count of a DMA write", count)? }
            }
            Command::DeviceReset => Self::DeviceReset,
            Command::RegionWriteMulti => Self::RegionWriteMulti(multi(&mut r)?),
            Command::HcaWake => {
                r.array::<8>()?;
                Self::HcaWake
            }
        })
    }

    /// Builds the whole message of the request.
    ///
    /// # Panics
    /// If it carries more data than [`MAX_TRANSFER_BYTES`].
    pub fn build(&self, id: u16, no_reply: bool) -> Vec<u8> {
        let mut w = Writer(vec![0; HEADER_BYTES]);
        match self {
            Self::Version(v) => v.write(&mut w),
            Self::DmaMap(m) => m.write(&mut w),
            Self::DmaUnmap(m) => m.write(&mut w),
            Self::DeviceGetInfo => {
                w.u32(DeviceInfo::BYTES).bytes(&[0; 12]);
            }
            Self::GetRegionInfo { index, argsz } => {
                w.u32(*argsz).u32(0).u32(*index).bytes(&[0; 20]);
            }
            Self::GetRegionIoFds { index } => {
                w.u32(16).u32(0).u32(*index).u32(0);
            }
            Self::GetIrqInfo { index } => {
                w.u32(IrqInfo::BYTES).u32(0).u32(*index).u32(0);
            }
            Self::SetIrqs(s) => s.write(&mut w),
            Self::RegionRead { region, offset, count } => {
                w.u64(*offset).u32(*region).u32(*count);
            }
            Self::RegionWrite { region, offset, data } => {
                w.u64(*offset).u32(*region).u32(data.len() as u32).bytes(data);
            }
            Self::DmaRead { address, count } => {
                w.u64(*address).u64((*count).into());
            }
            Self::DmaWrite { address, data } => {
                w.u64(*address).u64(data.len() as u64).bytes(data);
            }
            Self::DeviceReset => {}
            Self::RegionWriteMulti(writes) => {
                w.u64(writes.len() as u64);
                for m in writes {
                    w.u64(m.offset).u32(m.region).u32(m.count).bytes(&m.data);
                }
            }
            Self::HcaWake => {
                w.u32(16).u32(0);
            }
        }
        finish(w, id, self.command(), Kind::Command { no_reply })
    }
}

/// Puts the header before a payload for which room was left.
fn finish(w: Writer, id: u16, command: Command, kind: Kind) -> Vec<u8> {
    let mut message = w.0;
    let header = Header { id, command: command.code(), kind, payload_bytes: message.len() - HEADER_BYTES };
    message[..HEADER_BYTES].copy_from_slice(&header.build());
    message
}

const DMA_READ: u32 = 1;
const DMA_WRITE: u32 = 2;
const DMA_UNMAP_ALL: u32 = 2;

impl DmaMap {
    fn parse(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (_argsz, flags, offset) = (r.u32()?, r.u32()?, r.u64()?);
        let (address, size) = (r.u64()?, r.u64()?);
        let (read, write) = (flags & DMA_READ != 0, flags & DMA_WRITE != 0);
        Ok(Self { read, write, offset, address, size: checked_size(address, size)? })
    }
    fn write(&self, w: &mut Writer) {
        let flags = if self.read { DMA_READ } else { 0 } | if self.write { DMA_WRITE } else { 0 };
        w.u32(32).u32(flags).u64(self.offset).u64(self.address).u64(self.size);
    }
}

impl DmaUnmap {
    /// All memory.
    pub const ALL: Self = Self { address: 0, size: u64::MAX };

    fn parse(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (_argsz, flags, address, size) = (r.u32()?, r.u32()?, r.u64()?, r.u64()?);
        if flags & DMA_UNMAP_ALL == 0 {
            return Ok(Self { address, size: checked_size(address, size)? });
        }
        if (address, size) == (0, 0) {
            return Ok(Self::ALL);
        }
        Err(WireError::Value { what: "the size of a DMA range beside the flag for all", value: size })
    }
    fn write(&self, w: &mut Writer) {
        let (flags, address, size) =
            if *self == Self::ALL { (DMA_UNMAP_ALL, 0, 0) } else { (0, self.address, self.size) };
        w.u32(24).u32(flags).u64(address).u64(size);
    }
}

/// A range of addresses holds a byte at least, and does not go round.
fn checked_size(address: u64, size: u64) -> Result<u64, WireError> {
    let fits = size > 0 && address.checked_add(size - 1).is_some();
    if fits { Ok(size) } else { Err(WireError::Value { what: "the size of a DMA range", value: size }) }
}

const DATA_NONE: u32 = 1;
const DATA_BOOL: u32 = 2;
const DATA_EVENTFD: u32 = 4;
const ACTION_MASK: u32 = 8;
const ACTION_UNMASK: u32 = 16;
const ACTION_TRIGGER: u32 = 32;

impl<'a> SetIrqs<'a> {
    fn parse(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let (_argsz, flags, index) = (r.u32()?, r.u32()?, r.u32()?);
        let (start, count) = (r.u32()?, r.u32()?);
        let end = u64::from(start) + u64::from(count);
        if end > u64::from(MAX_IRQS) {
            let possible = MAX_IRQS.into();
            return Err(WireError::Count {
                what: "the end of a range of interrupts",
                claimed: end,
                possible,
            });
        }
        let nothing = WireError::Value { what: "what is to be done with interrupts", value: flags.into() };
        let action = match flags & (ACTION_MASK | ACTION_UNMASK | ACTION_TRIGGER) {
            ACTION_MASK => IrqAction::Mask,
            ACTION_UNMASK => IrqAction::Unmask,
            ACTION_TRIGGER => IrqAction::Trigger,
            _ => return Err(nothing),
        };
        let data = match flags & (DATA_NONE | DATA_BOOL | DATA_EVENTFD) {
            DATA_NONE => IrqData::None,
            DATA_BOOL => IrqData::Bools(r.data("the count of interrupts", count.into())?),
            DATA_EVENTFD => IrqData::EventFds,
            _ => return Err(nothing),
        };
        Ok(Self { index, start, count, action, data })
    }
    fn write(&self, w: &mut Writer) {
        let action = match self.action {
            IrqAction::Mask => ACTION_MASK,
            IrqAction::Unmask => ACTION_UNMASK,
            IrqAction::Trigger => ACTION_TRIGGER,
        };
        let (data, bools): (u32, &[u8]) = match self.data {
            IrqData::None => (DATA_NONE, &[]),
            IrqData::Bools(bools) => (DATA_BOOL, bools),
            IrqData::EventFds => (DATA_EVENTFD, &[]),
        };
        w.u32(20 + bools.len() as u32).u32(action | data).u32(self.index).u32(self.start).u32(self.count);
        w.bytes(bools);
    }
}

fn multi(r: &mut Reader<'_>) -> Result<Vec<MultiWrite>, WireError> {
    const ENTRY: u64 = 24;
    let claimed = r.u64()?;
    let possible = r.rest().len() as u64 / ENTRY;
    if claimed > possible {
        return Err(WireError::Count { what: "the number of writes", claimed, possible });
    }
    let entry = |_| {
        let (offset, region, count) = (r.u64()?, r.u32()?, r.u32()?);
        let data = r.array()?;
        if !(1..=8).contains(&count) {
            return Err(WireError::Value { what: "the count of one of several writes", value: count.into() });
        }
        Ok(MultiWrite { region, offset, data, count })
    };
    (0..claimed).map(entry).collect()
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply<'a> {
    /// The server's version.
    Version(Version),
    /// The memory is mapped.
    DmaMap,
    /// The memory is unmapped.
    DmaUnmap(DmaUnmap),
    /// The description of the device.
    DeviceInfo(DeviceInfo),
    /// The description of a region. A mappable region's descriptor comes with the message.
    RegionInfo(RegionInfo),
    /// The description of a kind of interrupts.
    IrqInfo(IrqInfo),
    /// The interrupts were changed.
    SetIrqs,
    /// The bytes that were read from a region.
    RegionRead {
        /// The region's number.
        region: u32,
        /// The offset in the region.
        offset: u64,
        /// The bytes that were read.
        data: &'a [u8],
    },
    /// The end of a write to a region.
    RegionWrite {
        /// The region's number.
        region: u32,
        /// The offset in the region.
        offset: u64,
        /// The number of bytes.
        count: u32,
    },
    /// The bytes of the client's memory.
    DmaRead {
        /// The address for the device.
        address: u64,
        /// The bytes that were read.
        data: &'a [u8],
    },
    /// The end of a write to the client's memory.
    DmaWrite {
        /// The address for the device.
        address: u64,
        /// The number of bytes.
        count: u32,
    },
    /// The device was reset.
    DeviceReset,
    /// The number of completed writes of a message with several.
    RegionWriteMulti {
        /// The number.
        count: u64,
    },
    /// The means to wake the server.
    HcaWake(Wake),
}

const WAKE_HAS_WORD: u32 = 1;

impl<'a> Reply<'a> {
    /// The command that the reply answers.
    pub fn command(&self) -> Command {
        match self {
            Self::Version(_) => Command::Version,
            Self::DmaMap => Command::DmaMap,
            Self::DmaUnmap(_) => Command::DmaUnmap,
            Self::DeviceInfo(_) => Command::DeviceGetInfo,
            Self::RegionInfo(_) => Command::GetRegionInfo,
            Self::IrqInfo(_) => Command::GetIrqInfo,
            Self::SetIrqs => Command::SetIrqs,
            Self::RegionRead { .. } => Command::RegionRead,
            Self::RegionWrite { .. } => Command::RegionWrite,
            Self::DmaRead { .. } => Command::DmaRead,
            Self::DmaWrite { .. } => Command::DmaWrite,
            Self::DeviceReset => Command::DeviceReset,
            Self::RegionWriteMulti { .. } => Command::RegionWriteMulti,
            Self::HcaWake(_) => Command::HcaWake,
        }
    }

    /// Parses the payload of a reply's message; refusals have no payload and are no [`Reply`].
    ///
    /// # Errors
    /// The command is unknown or is none of this crate's requests, the payload is too short, or a field has no meaning.
    pub fn parse(command: u16, payload: &'a [u8]) -> Result<Self, WireError> {
        let unknown = WireError::Command { code: command };
        let command = Command::from_code(command).ok_or_else(|| unknown.clone())?;
        let mut r = Reader::new(command.name(), payload);
        Ok(match command {
            Command::Version => Self::Version(Version::parse(payload)?),
            Command::DmaMap => Self::DmaMap,
            Command::DmaUnmap => Self::DmaUnmap(DmaUnmap::parse(&mut r)?),
            Command::DeviceGetInfo => Self::DeviceInfo(DeviceInfo::parse(payload)?),
            Command::GetRegionInfo => Self::RegionInfo(RegionInfo::parse(payload)?),
            Command::GetRegionIoFds => return Err(unknown),
            Command::GetIrqInfo => Self::IrqInfo(IrqInfo::parse(payload)?),
            Command::SetIrqs => Self::SetIrqs,
            Command::RegionRead => {
                let (offset, region, count) = (r.u64()?, r.u32()?, r.u32()?);
                Self::RegionRead { region, offset, data: r.data("the count that was read", count.into())? }
            }
            Command::RegionWrite => {
                let (offset, region, count) = (r.u64()?, r.u32()?, r.u32()?);
                Self::RegionWrite { region, offset, count }
            }
            Command::DmaRead => {
                let (address, count) = (r.u64()?, r.u64()?);
                Self::DmaRead { address, data: r.data("the count that was read by DMA", count)? }
            }
            // 32 bits of the count are in all that is spoken, whatever its length there.
            Command::DmaWrite => Self::DmaWrite { address: r.u64()?, count: r.u32()? },
            Command::DeviceReset => Self::DeviceReset,
            Command::RegionWriteMulti => Self::RegionWriteMulti { count: r.u64()? },
            Command::HcaWake => {
                let (_argsz, flags, word) = (r.u32()?, r.u32()?, r.u64()?);
                let word = Some(word).filter(|_| flags & WAKE_HAS_WORD != 0);
                if let Some(value) = word.filter(|w| w % 8 != 0) {
                    return Err(WireError::Value {
                        what: "the place of the word that says that the server sleeps",
                        value,
                    });
                }
                Self::HcaWake(Wake { word })
            }
        })
    }

    /// Builds the whole message of the reply. A region's areas are left out if they do not fit `room`, the `argsz` of
    /// the request; other replies ignore `room`.
    ///
    /// # Panics
    /// If it carries more data than [`MAX_TRANSFER_BYTES`].
    pub fn build(&self, id: u16, room: u32) -> Vec<u8> {
        let mut w = Writer(vec![0; HEADER_BYTES]);
        match self {
            Self::Version(v) => v.write(&mut w),
            Self::DmaMap | Self::SetIrqs | Self::DeviceReset => {}
            Self::DmaUnmap(m) => m.write(&mut w),
            Self::DeviceInfo(i) => i.write(&mut w),
            Self::RegionInfo(i) => i.write(room, &mut w),
            Self::IrqInfo(i) => i.write(&mut w),
            Self::RegionRead { region, offset, data } => {
                w.u64(*offset).u32(*region).u32(data.len() as u32).bytes(data);
            }
            Self::RegionWrite { region, offset, count } => {
                w.u64(*offset).u32(*region).u32(*count);
            }
            Self::DmaRead { address, data } => {
                w.u64(*address).u64(data.len() as u64).bytes(data);
            }
            Self::DmaWrite { address, count } => {
                w.u64(*address).u64((*count).into());
            }
            Self::RegionWriteMulti { count } => {
                w.u64(*count);
            }
            Self::HcaWake(wake) => {
                w.u32(16).u32(if wake.word.is_some() { WAKE_HAS_WORD } else { 0 });
                w.u64(wake.word.unwrap_or(0));
            }
        }
        finish(w, id, self.command(), Kind::Reply)
    }
}
