//! The messages of vfio-user: building and parsing, for client and server.
//!
//! A message is a [`Header`] of 16 bytes and a payload; descriptors travel beside it, as ancillary data of the socket.
//! A [`Request`] and a [`Reply`] are whole payloads: `parse` accepts any bytes and never panics, `build` makes the
//! message with its header. All numbers are in the order of the host, as both ends are on one machine.
//!
//! The crate speaks version 0.0 of the protocol, as QEMU (10.1 and later) and libvfio-user do. Commands beyond that
//! version (migration, dirty pages, descriptors for trapped registers) are not parsed; a server answers them with
//! `ENOSYS`.
//!
//! # A command of this project: waking a server that polls
//!
//! A server that polls pages which the client has mapped goes to sleep when these pages stay unchanged, and no message
//! of the protocol wakes it. If both sides name `"hca_wake": true` among their capabilities, the client may send
//! [`Command::HcaWake`]; the reply brings an eventfd, and with [`Wake::word`] a second descriptor, a file in memory
//! that holds a word of 32 bits at an offset. The word is 0 while the server polls, so the client makes no system call
//! then:
//!
//! | client | server |
//! |---|---|
//! | writes the doorbell | stores 1 to the word |
//! | loads the word, with no more than the compiler kept from exchanging the two | runs `membarrier` for all processes that asked for it (`GLOBAL_EXPEDITED`), or a full fence |
//! | if it is not 0: writes 1 to the eventfd | looks at all doorbells; sleeps on the eventfd if they are quiet |
//!
//! The client registers with the kernel for the server's barrier when it fetches the eventfd; without such a barrier in
//! the kernel, the client runs a full fence at each doorbell. A server without the barrier polls again after a
//! millisecond, so a lost wake-up costs a millisecond.

mod info;
mod message;
mod version;

use thiserror::Error;

pub use info::{Area, DeviceInfo, IrqInfo, RegionInfo};
pub use message::{DmaMap, DmaUnmap, IrqAction, IrqData, MultiWrite, Reply, Request, SetIrqs, Wake};
pub use version::{Capabilities, Version};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;
/// The most bytes that one message may read or write, regardless of a peer's limit.
pub const MAX_TRANSFER_BYTES: u32 = 1 << 20;
/// The longest accepted message: the longest transfer, with its headers.
pub const MAX_MESSAGE_BYTES: usize = HEADER_BYTES + 16 + MAX_TRANSFER_BYTES as usize;
/// The most descriptors of one message.
pub const MAX_DESCRIPTORS: usize = 64;
/// The most mappable areas of one region.
pub const MAX_AREAS: usize = 256;
/// The most interrupts of one kind: the limit of MSI-X.
pub const MAX_IRQS: u32 = 2048;
/// The number of MSI-X among the kinds of interrupts.
pub const IRQ_MSIX: u32 = 2;
/// The number of fatal bus errors among the kinds of interrupts.
pub const IRQ_ERROR: u32 = 3;
/// The number of requests to release the device among the kinds of interrupts.
pub const IRQ_REQUEST: u32 = 4;
/// The number of the configuration space among the regions; the six BARs come before it.
pub const REGION_CONFIG: u32 = 7;

/// The reason why bytes are not a message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// The message ends too early.
    #[error("{what} needs {needs} bytes, and there are {has}")]
    Short {
        /// The part that is cut off.
        what: &'static str,
        /// The bytes that the part needs.
        needs: usize,
        /// The bytes that are there.
        has: usize,
    },
    /// The header has a length that no message has.
    #[error("a message of {claimed} bytes, where {HEADER_BYTES} to {MAX_MESSAGE_BYTES} are possible")]
    Size {
        /// The header's value.
        claimed: u32,
    },
    /// The message is neither a command nor a reply.
    #[error("a message of type {kind}, where 0 is a command and 1 a reply")]
    Kind {
        /// The header's value.
        kind: u32,
    },
    /// The command is unknown.
    #[error("command {code} is not known")]
    Command {
        /// The number.
        code: u16,
    },
    /// A count does not fit the data, or exceeds a limit.
    #[error("{what} is {claimed}, where {possible} is possible")]
    Count {
        /// The name of the count.
        what: &'static str,
        /// The message's value.
        claimed: u64,
        /// The limit, or the count that the data's length gives.
        possible: u64,
    },
    /// A field has a value without a meaning.
    #[error("{what} is {value:#x}, which is not defined")]
    Value {
        /// The name of the field.
        what: &'static str,
        /// The value.
        value: u64,
    },
    /// The capabilities are not a JSON object, or one has a value of the wrong type.
    #[error("the capability `{name}` is not of its kind in the version's JSON")]
    Capability {
        /// The name of the capability.
        name: &'static str,
    },
    /// The chain of a region's capabilities leaves the message or is circular.
    #[error("the chain of a region's capabilities leads to byte {at}, where none can be")]
    Chain {
        /// The offset to which the chain leads.
        at: u32,
    },
}

/// The commands of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum Command {
    /// Agrees on a version and capabilities: the first message.
    Version = 1,
    /// Maps client memory for the device.
    DmaMap = 2,
    /// Ends a mapping of client memory.
    DmaUnmap = 3,
    /// Asks about the device.
    DeviceGetInfo = 4,
    /// Asks about a region.
    GetRegionInfo = 5,
    /// Asks for descriptors that stand for registers.
    GetRegionIoFds = 6,
    /// Asks about a kind of interrupts.
    GetIrqInfo = 7,
    /// Changes interrupts: masking, unmasking, triggering, or their eventfds.
    SetIrqs = 8,
    /// Reads from a region.
    RegionRead = 9,
    /// Writes to a region.
    RegionWrite = 10,
    /// The server reads client memory.
    DmaRead = 11,
    /// The server writes client memory.
    DmaWrite = 12,
    /// Resets the device.
    DeviceReset = 13,
    /// Writes to several places of regions.
    RegionWriteMulti = 15,
    /// Asks for the means to wake the server: this project's own command.
    HcaWake = 0xff01,
}

impl Command {
    /// All commands, in the order of their numbers.
    pub const ALL: [Self; 15] = [
        Self::Version,
        Self::DmaMap,
        Self::DmaUnmap,
        Self::DeviceGetInfo,
        Self::GetRegionInfo,
        Self::GetRegionIoFds,
        Self::GetIrqInfo,
        Self::SetIrqs,
        Self::RegionRead,
        Self::RegionWrite,
        Self::DmaRead,
        Self::DmaWrite,
        Self::DeviceReset,
        Self::RegionWriteMulti,
        Self::HcaWake,
    ];

    /// The command that a number stands for.
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.code() == code)
    }
    /// The number of the command.
    pub fn code(self) -> u16 {
        self as u16
    }
    /// The command's name in the protocol's specification.
    pub fn name(self) -> &'static str {
        match self {
            Self::Version => "VERSION",
            Self::DmaMap => "DMA_MAP",
            Self::DmaUnmap => "DMA_UNMAP",
            Self::DeviceGetInfo => "DEVICE_GET_INFO",
            Self::GetRegionInfo => "DEVICE_GET_REGION_INFO",
            Self::GetRegionIoFds => "DEVICE_GET_REGION_IO_FDS",
            Self::GetIrqInfo => "DEVICE_GET_IRQ_INFO",
            Self::SetIrqs => "DEVICE_SET_IRQS",
            Self::RegionRead => "REGION_READ",
            Self::RegionWrite => "REGION_WRITE",
            Self::DmaRead => "DMA_READ",
            Self::DmaWrite => "DMA_WRITE",
            Self::DeviceReset => "DEVICE_RESET",
            Self::RegionWriteMulti => "REGION_WRITE_MULTI",
            Self::HcaWake => "HCA_WAKE",
        }
    }
}

impl core::fmt::Display for Command {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A command.
    Command {
        /// Whether the sender asks for no reply.
        no_reply: bool,
    },
    /// The reply to a command that was carried out.
    Reply,
    /// The reply to a command that was refused; it has no payload.
    Refusal {
        /// The reason as an error number of the operating system; may be 0.
        errno: u32,
    },
}

const TYPE_MASK: u32 = 0xf;
const TYPE_REPLY: u32 = 1;
const FLAG_NO_REPLY: u32 = 1 << 4;
const FLAG_ERROR: u32 = 1 << 5;

/// The header of each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's number for the message, which the reply repeats.
    pub id: u16,
    /// The command's number, possibly an unknown one.
    pub command: u16,
    /// The kind.
    pub kind: Kind,
    /// The bytes behind the header.
    pub payload_bytes: usize,
}

impl Header {
    /// Parses a header from 16 bytes.
    ///
    /// # Errors
    /// The length is not between [`HEADER_BYTES`] and [`MAX_MESSAGE_BYTES`], or the type is unknown.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, WireError> {
        let mut r = Reader::new("the header", bytes);
        let (id, command) = (r.u16()?, r.u16()?);
        let (size, flags, errno) = (r.u32()?, r.u32()?, r.u32()?);
        let whole = usize::try_from(size).ok().filter(|s| (HEADER_BYTES..=MAX_MESSAGE_BYTES).contains(s));
        let whole = whole.ok_or(WireError::Size { claimed: size })?;
        let kind = match flags & TYPE_MASK {
            0 => Kind::Command { no_reply: flags & FLAG_NO_REPLY != 0 },
            TYPE_REPLY if flags & FLAG_ERROR != 0 => Kind::Refusal { errno },
            TYPE_REPLY => Kind::Reply,
            kind => return Err(WireError::Kind { kind }),
        };
        Ok(Self { id, command, kind, payload_bytes: whole - HEADER_BYTES })
    }

    /// The bytes of the header.
    ///
    /// # Panics
    /// If the payload is longer than [`MAX_MESSAGE_BYTES`] allows.
    pub fn build(&self) -> [u8; HEADER_BYTES] {
        assert!(self.payload_bytes <= MAX_MESSAGE_BYTES - HEADER_BYTES, "{} bytes", self.payload_bytes);
        let size = (HEADER_BYTES + self.payload_bytes) as u32;
        let (flags, errno) = match self.kind {
            Kind::Command { no_reply } => (if no_reply { FLAG_NO_REPLY } else { 0 }, 0),
            Kind::Reply => (TYPE_REPLY, 0),
            Kind::Refusal { errno } => (TYPE_REPLY | FLAG_ERROR, errno),
        };
        let mut out = [0; HEADER_BYTES];
        out[0..2].copy_from_slice(&self.id.to_ne_bytes());
        out[2..4].copy_from_slice(&self.command.to_ne_bytes());
        out[4..8].copy_from_slice(&size.to_ne_bytes());
        out[8..12].copy_from_slice(&flags.to_ne_bytes());
        out[12..16].copy_from_slice(&errno.to_ne_bytes());
        out
    }
}

/// Builds the whole message that refuses a command.
pub fn refusal(id: u16, command: u16, errno: u32) -> [u8; HEADER_BYTES] {
    Header { id, command, kind: Kind::Refusal { errno }, payload_bytes: 0 }.build()
}

/// Takes a payload apart from its front.
struct Reader<'a> {
    what: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, bytes, at: 0 }
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let short = WireError::Short { what: self.what, needs: self.at + N, has: self.bytes.len() };
        let found = self.rest().first_chunk::<N>().copied().ok_or(short)?;
        self.at += N;
        Ok(found)
    }
    fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_ne_bytes)
    }
    fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_ne_bytes)
    }
    fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_ne_bytes)
    }
    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }
    /// The rest, of which the message says that it is as long as this.
    fn data(&self, what: &'static str, claimed: u64) -> Result<&'a [u8], WireError> {
        let rest = self.rest();
        if claimed != rest.len() as u64 {
            return Err(WireError::Count { what, claimed, possible: rest.len() as u64 });
        }
        Ok(rest)
    }
}

/// Puts a payload together.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn u16(&mut self, v: u16) -> &mut Self {
        self.bytes(&v.to_ne_bytes())
    }
    fn u32(&mut self, v: u32) -> &mut Self {
        self.bytes(&v.to_ne_bytes())
    }
    fn u64(&mut self, v: u64) -> &mut Self {
        self.bytes(&v.to_ne_bytes())
    }
    fn bytes(&mut self, v: &[u8]) -> &mut Self {
        self.0.extend_from_slice(v);
        self
    }
}

#[cfg(test)]
mod tests;
