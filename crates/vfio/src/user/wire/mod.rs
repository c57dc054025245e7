//! The messages of vfio-user, as both sides build and parse them.
//!
//! A message is a [`Header`] of 16 bytes and a payload; descriptors travel beside it, as ancillary data of the socket.
//! A [`Request`] and a [`Reply`] are whole payloads: `parse` takes any bytes and never panics, `build` makes the
//! message with its header. All numbers are in the order of the host, as both ends are on one machine.
//!
//! Version 0.0 of the protocol is spoken, as QEMU (10.1 and later) and libvfio-user do. What lies beyond it, migration,
//! dirty pages and descriptors that stand for trapped registers, is not parsed; a server answers it with `ENOSYS`.
//!
//! # A command of this project: waking a server that polls
//!
//! A server that polls pages which the client has mapped goes to sleep when these stay quiet, and nothing in the
//! protocol wakes it. Where both sides name `"hca_wake": true` among their capabilities, the client may send
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
//! The client asks the kernel for its part of the server's barrier when it fetches the eventfd, and runs a full fence
//! of its own each time where the kernel has none. A server without the barrier looks again after a millisecond, which
//! is what a lost wake-up costs then.

mod info;
mod message;
mod version;

use thiserror::Error;

pub use info::{Area, DeviceInfo, IrqInfo, RegionInfo};
pub use message::{DmaMap, DmaUnmap, IrqAction, IrqData, MultiWrite, Reply, Request, SetIrqs, Wake};
pub use version::{Capabilities, Version};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;
/// What one message may read or write, at most, whatever a peer offers.
pub const MAX_TRANSFER_BYTES: u32 = 1 << 20;
/// The longest accepted message: the longest transfer, with its headers.
pub const MAX_MESSAGE_BYTES: usize = HEADER_BYTES + 16 + MAX_TRANSFER_BYTES as usize;
/// Descriptors that may come with one message.
pub const MAX_DESCRIPTORS: usize = 64;
/// Areas of a region that may be mapped.
pub const MAX_AREAS: usize = 256;
/// Interrupts of one kind that a function can have: what MSI-X knows.
pub const MAX_IRQS: u32 = 2048;
/// The number of MSI-X among the kinds of interrupts.
pub const IRQ_MSIX: u32 = 2;
/// That of errors of the bus that the device can't go on after.
pub const IRQ_ERROR: u32 = 3;
/// The index of requests to release the device.
pub const IRQ_REQUEST: u32 = 4;
/// The number of the configuration space among the regions; the six BARs come before it.
pub const REGION_CONFIG: u32 = 7;

/// What makes bytes no message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// It ends too early.
    #[error("{what} needs {needs} bytes, and there are {has}")]
    Short {
        /// Which part.
        what: &'static str,
        /// What it needs.
        needs: usize,
        /// What there is.
        has: usize,
    },
    /// Its header claims a length that no message has.
    #[error("a message of {claimed} bytes, where {HEADER_BYTES} to {MAX_MESSAGE_BYTES} are possible")]
    Size {
        /// What the header says.
        claimed: u32,
    },
    /// Neither a command nor a reply.
    #[error("a message of type {kind}, where 0 is a command and 1 a reply")]
    Kind {
        /// What the header says.
        kind: u32,
    },
    /// No command that is known.
    #[error("command {code} is not known")]
    Command {
        /// The number.
        code: u16,
    },
    /// A count that does not fit what comes with it, or is beyond what is possible.
    #[error("{what} is {claimed}, where {possible} is possible")]
    Count {
        /// Which count.
        what: &'static str,
        /// What the message says.
        claimed: u64,
        /// The most, or what the data's length says.
        possible: u64,
    },
    /// A value that means nothing.
    #[error("{what} is {value:#x}, which is not defined")]
    Value {
        /// Which field.
        what: &'static str,
        /// The value.
        value: u64,
    },
    /// The capabilities are no JSON object, or one of them is not of its kind.
    #[error("the capability `{name}` is not of its kind in the version's JSON")]
    Capability {
        /// The one that was given.
        name: &'static str,
    },
    /// The chain of a region's capabilities leads out of the message or in circles.
    #[error("the chain of a region's capabilities leads to byte {at}, where none can be")]
    Chain {
        /// Where it leads.
        at: u32,
    },
}

/// The commands of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum Command {
    /// Agrees on a version and capabilities: the first.
    Version = 1,
    /// Lets the device reach memory of the client's.
    DmaMap = 2,
    /// Takes that back.
    DmaUnmap = 3,
    /// Asks about the device.
    DeviceGetInfo = 4,
    /// Asks about a region.
    GetRegionInfo = 5,
    /// Asks for descriptors that stand for registers.
    GetRegionIoFds = 6,
    /// Asks about a kind of interrupts.
    GetIrqInfo = 7,
    /// Says what interrupts do.
    SetIrqs = 8,
    /// Reads from a region.
    RegionRead = 9,
    /// Writes to a region.
    RegionWrite = 10,
    /// The server reads memory of the client's.
    DmaRead = 11,
    /// The server writes memory of the client's.
    DmaWrite = 12,
    /// Resets the device.
    DeviceReset = 13,
    /// Writes to several places of regions.
    RegionWriteMulti = 15,
    /// Asks for the means to wake the server, this project's own.
    HcaWake = 0xff01,
}

impl Command {
    /// All of them.
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

    /// The command of a number.
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.code() == code)
    }
    /// The number of the command.
    pub fn code(self) -> u16 {
        self as u16
    }
    /// The name in the protocol's own words.
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
        /// Whether its sender wants to hear nothing of it.
        no_reply: bool,
    },
    /// The reply to one that was done.
    Reply,
    /// The reply to one that was refused; nothing follows it.
    Refusal {
        /// Why, as a number of the operating system; it may be 0.
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
    /// The sender's number for it, which the reply repeats.
    pub id: u16,
    /// The command's number, which need not be one that is known.
    pub command: u16,
    /// The kind.
    pub kind: Kind,
    /// Bytes that follow.
    pub payload_bytes: usize,
}

impl Header {
    /// Takes 16 bytes for a header.
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

    /// The bytes of it.
    ///
    /// # Panics
    /// If the payload is longer than any message's.
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

/// The whole message that refuses a command.
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
