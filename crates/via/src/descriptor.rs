//! Descriptors: the segments as they lie in memory, their control bits and their status word.

use std::fmt;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use crate::memory::Region;
use crate::{Error, MemHandle, Memory};

bitflags::bitflags! {
    /// The control bits of a descriptor.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Control: u16 {
        /// RDMA WRITE. Neither this nor `RDMA_READ`: a send or a receive.
        const RDMA_WRITE = 1;
        /// RDMA READ.
        const RDMA_READ = 2;
        /// The message carries the immediate data.
        const IMMEDIATE = 4;
        /// The descriptor waits until all earlier RDMA READs of its queue have completed.
        const QUEUE_FENCE = 8;
    }
}

bitflags::bitflags! {
    /// The status word of a descriptor.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Status: u32 {
        /// The descriptor has completed, well if no error is set.
        const DONE = 1;
        /// The format is wrong: control bits, number of segments, or the length.
        const FORMAT_ERROR = 2;
        /// A segment is not covered by its memory handle, or the handle has another protection tag.
        const PROTECTION_ERROR = 4;
        /// The message is longer than the descriptor's segments, or than the maximum transfer size.
        const LENGTH_ERROR = 8;
        /// A part of the message was placed. This library never sets it.
        const PARTIAL_ERROR = 0x10;
        /// The connection ended before the descriptor was carried out.
        const FLUSHED_ERROR = 0x20;
        /// The peer does not answer.
        const TRANSPORT_ERROR = 0x40;
        /// The peer's memory handle does not allow the RDMA.
        const RDMA_PROTECTION_ERROR = 0x80;
        /// The peer has no receive descriptor, or one that does not fit.
        const REMOTE_DESCRIPTOR_ERROR = 0x100;
        /// The bits of the operation, see [`op`](Self::op).
        const OP = 7 << 16;
        /// The message brought immediate data.
        const IMMEDIATE = 0x8_0000;
        /// All bits of errors.
        const ERROR = 0x1fe;
    }
}

/// The operation of a descriptor that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A send.
    Send,
    /// A receive.
    Receive,
    /// An RDMA WRITE.
    RdmaWrite,
    /// A receive descriptor that an RDMA WRITE with immediate data consumed.
    RemoteRdmaWrite,
    /// An RDMA READ.
    RdmaRead,
}

impl Status {
    /// The operation; `None` for a value that names none.
    pub fn op(self) -> Option<Op> {
        Some(match (self & Self::OP).bits() >> 16 {
            0 => Op::Send,
            1 => Op::Receive,
            2 => Op::RdmaWrite,
            3 => Op::RemoteRdmaWrite,
            4 => Op::RdmaRead,
            _ => return None,
        })
    }
    /// Whether the descriptor completed without an error.
    pub fn is_ok(self) -> bool {
        self.contains(Self::DONE) && !self.intersects(Self::ERROR)
    }
    /// The bits that report an error; none for a success.
    #[must_use]
    pub fn error(self) -> Self {
        self & Self::ERROR
    }
    /// The bits of an operation.
    pub(crate) fn of(op: Op) -> Self {
        let code: u32 = match op {
            Op::Send => 0,
            Op::Receive => 1,
            Op::RdmaWrite => 2,
            Op::RemoteRdmaWrite => 3,
            Op::RdmaRead => 4,
        };
        Self::from_bits_retain(code << 16)
    }
}

/// The control segment: the first 32 bytes of a descriptor, in the byte order of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct ControlSegment {
    /// The address of the descriptor that the same post takes behind this one; 0 for none.
    pub next: u64,
    /// The memory handle of that descriptor.
    pub next_handle: u32,
    /// The number of segments behind this one, with the address segment.
    pub segment_count: u16,
    /// The bits of [`Control`].
    pub control: u16,
    /// 0.
    pub reserved: u32,
    /// Immediate data, to send or as received.
    pub immediate: u32,
    /// The bytes of the message: the sum of the data segments to send, and the bytes of the message after a receive.
    pub length: u32,
    /// The bits of [`Status`].
    pub status: u32,
}

/// A data segment; or an address segment, with the peer's address and handle, whose length means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Segment {
    /// The address of the first byte.
    pub addr: u64,
    /// The memory handle.
    pub handle: u32,
    /// The number of bytes.
    pub len: u32,
}

const _: () = assert!(size_of::<ControlSegment>() == CONTROL_BYTES && size_of::<Segment>() == SEGMENT_BYTES);

/// Bytes of a control segment.
pub const CONTROL_BYTES: usize = 32;
/// Bytes of an address segment and of a data segment.
pub const SEGMENT_BYTES: usize = 16;
/// Descriptors lie at multiples of this number of bytes. A control segment and two others have as many bytes.
pub const DESCRIPTOR_ALIGN: u64 = 64;

const NEXT_HANDLE_AT: usize = 8;
/// Where the length lies; the status is behind it, and both are one word.
const LENGTH_AT: usize = 24;
const IMMEDIATE_AT: usize = 20;

impl Segment {
    /// The bytes from `offset` on of registered memory.
    pub fn new(memory: &Memory, offset: usize, len: u32) -> Self {
        Self { addr: memory.addr().wrapping_add(offset as u64), handle: memory.handle().0, len }
    }
    pub(crate) fn handle(self) -> MemHandle {
        MemHandle(self.handle)
    }
}

/// The place of the peer's memory that an RDMA reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The address at the peer.
    pub addr: u64,
    /// The peer's memory handle.
    pub handle: MemHandle,
}

/// The contents of a descriptor, to be [written](Descriptor::write) into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    control: Control,
    remote: Option<RemoteAddress>,
    segments: &'a [Segment],
    immediate: u32,
}

impl<'a> Request<'a> {
    /// A send, or a receive.
    pub fn new(segments: &'a [Segment]) -> Self {
        Self { control: Control::empty(), remote: None, segments, immediate: 0 }
    }
    /// An RDMA WRITE of the segments to the peer's memory.
    pub fn write(segments: &'a [Segment], remote: RemoteAddress) -> Self {
        Self { control: Control::RDMA_WRITE, remote: Some(remote), ..Self::new(segments) }
    }
    /// An RDMA READ of the peer's memory into the segments.
    pub fn read(segments: &'a [Segment], remote: RemoteAddress) -> Self {
        Self { control: Control::RDMA_READ, remote: Some(remote), ..Self::new(segments) }
    }
    /// With immediate data (a send or an RDMA WRITE).
    #[must_use]
    pub fn immediate(self, immediate: u32) -> Self {
        Self { control: self.control | Control::IMMEDIATE, immediate, ..self }
    }
    /// Behind all earlier RDMA READs of the queue.
    #[must_use]
    pub fn fence(self) -> Self {
        Self { control: self.control | Control::QUEUE_FENCE, ..self }
    }
    /// The bytes that the descriptor takes in memory.
    pub fn bytes(&self) -> usize {
        CONTROL_BYTES + SEGMENT_BYTES * (self.segments.len() + usize::from(self.remote.is_some()))
    }
}

/// A descriptor: a place in registered memory, whose address is a multiple of 64. Clones are the same place.
#[derive(Clone)]
pub struct Descriptor {
    pub(crate) region: Arc<Region>,
    offset: usize,
}

impl Descriptor {
    pub(crate) fn at(region: Arc<Region>, addr: u64) -> Result<Self, Error> {
        if !addr.is_multiple_of(DESCRIPTOR_ALIGN) {
            return Err(Error::Parameter { what: "descriptor", why: "its address is no multiple of 64" });
        }
        let handle = region.handle.0;
        let offset = region.offset(addr, CONTROL_BYTES);
        let offset = offset.ok_or(Error::Memory { handle, addr, len: CONTROL_BYTES })?;
        Ok(Self { region, offset })
    }
    /// The address of its control segment.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.region.addr() + self.offset as u64
    }
    /// The handle of the memory that it lies in.
    pub fn handle(&self) -> MemHandle {
        self.region.handle
    }
    /// Writes a control segment and the others behind it, with an empty status.
    ///
    /// # Errors
    /// The memory ends before the last segment, or there are more segments than a descriptor can count.
    pub fn write(&self, request: &Request<'_>) -> Result<(), Error> {
        let length: u64 = request.segments.iter().map(|segment| u64::from(segment.len)).sum();
        let count = request.segments.len() + usize::from(request.remote.is_some());
        let (Ok(length), Ok(segment_count)) = (u32::try_from(length), u16::try_from(count)) else {
            return Err(Error::Parameter { what: "segments", why: "their number or their sum is too large" });
        };
        let (handle, addr, len) = (self.region.handle.0, self.addr(), request.bytes());
        self.region.offset(addr, len).ok_or(Error::Memory { handle, addr, len })?;
        let control = ControlSegment {
            segment_count,
            control: request.control.bits(),
            immediate: request.immediate,
            length,
            ..ControlSegment::default()
        };
        let mr = self.region.mr();
        mr.write_at(self.offset, bytemuck::bytes_of(&control));
        let mut at = self.offset + CONTROL_BYTES;
        if let Some(RemoteAddress { addr, handle }) = request.remote {
            mr.write_at(at, bytemuck::bytes_of(&Segment { addr, handle: handle.0, len: 0 }));
            at += SEGMENT_BYTES;
        }
        mr.write_at(at, bytemuck::cast_slice(request.segments));
        Ok(())
    }
    /// Has a post take another descriptor behind this one (`Next`); `None` ends the chain here, as a
    /// [write](Self::write) does. The link stays in memory behind the post.
    pub fn chain(&self, next: Option<&Self>) {
        let (addr, handle) = next.map_or((0, 0), |next| (next.addr(), next.handle().0));
        self.region.mr().write_at(self.offset, &addr.to_ne_bytes());
        self.region.mr().write_at(self.offset + NEXT_HANDLE_AT, &handle.to_ne_bytes());
    }
    /// The control segment, as it lies in memory now.
    #[inline]
    pub fn control(&self) -> ControlSegment {
        bytemuck::cast(self.region.mr().load_words::<{ CONTROL_BYTES / 8 }>(self.offset))
    }
    /// The status word, as it lies in memory now (Acquire): with `DONE`, everything of the message is visible.
    pub fn status(&self) -> Status {
        Status::from_bits_retain(self.length_and_status()[1])
    }
    fn length_and_status(&self) -> [u32; 2] {
        bytemuck::cast(self.region.mr().load_u64(self.offset + LENGTH_AT))
    }

    /// One of the segments behind the control segment; `None` if the memory ends before.
    #[inline]
    pub(crate) fn segment(&self, index: usize) -> Option<Segment> {
        let at = self.offset + CONTROL_BYTES + index * SEGMENT_BYTES;
        let there = at + SEGMENT_BYTES <= self.region.len();
        there.then(|| bytemuck::cast(self.region.mr().load_words::<{ SEGMENT_BYTES / 8 }>(at)))
    }
    /// Clears the status. Release.
    #[inline]
    pub(crate) fn begin(&self, length: u32) {
        self.region.mr().store_u64(self.offset + LENGTH_AT, bytemuck::cast([length, 0]));
    }
    pub(crate) fn set_immediate(&self, immediate: u32) {
        self.region.mr().write_at(self.offset + IMMEDIATE_AT, &immediate.to_ne_bytes());
    }
    /// Says how it ended: the status last, in one store with the length. Release.
    #[inline]
    pub(crate) fn end(&self, length: u32, status: Status) {
        self.region.mr().store_u64(self.offset + LENGTH_AT, bytemuck::cast([length, status.bits()]));
    }
}

impl From<&Self> for Descriptor {
    fn from(descriptor: &Self) -> Self {
        descriptor.clone()
    }
}
impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Descriptor({:#x}, {:?})", self.addr(), self.status())
    }
}

/// A descriptor that was taken off its queue, with its end.
#[derive(Clone, Debug)]
#[must_use = "the status says whether it was carried out"]
pub struct Done {
    /// The descriptor, which may be posted again.
    pub descriptor: Descriptor,
    /// Its status word.
    pub status: Status,
    /// The bytes of the message.
    pub length: u32,
    /// The immediate data that came with the message.
    pub immediate: Option<u32>,
}
