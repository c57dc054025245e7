//! Registered memory, which Portals messages are sent from and received into.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use hca_core::{Access, RemoteAddr, Sge};
use hca_verbs::{MemoryError, Pd, RemoteMr, SharedRange, raw};

use crate::wire::Piece;

/// Registered memory, or a part of it. From [`Node::alloc`](crate::Node::alloc).
///
/// Messages may change it at any time, so it is never a slice: the program copies in and out, and does atomic
/// operations on aligned words. Clones are the same memory; it lives as long as a clone, a part, a descriptor, an entry
/// or an operation under way needs it. Its first byte is aligned to 4096 bytes.
#[derive(Clone)]
pub struct Memory(SharedRange);

impl Memory {
    pub(crate) fn alloc(pd: &Pd, len: usize) -> Result<Self, MemoryError> {
        Ok(Self(pd.alloc_shared(len.max(1), Access::REMOTE_READ)?.range(..len)))
    }
    /// # Safety
    /// As [`Pd::register`].
    #[allow(unsafe_code)] // hands the caller's promise on
    pub(crate) unsafe fn register(
        pd: &Pd,
        addr: std::ptr::NonNull<u8>,
        len: usize,
    ) -> Result<Self, MemoryError> {
        // SAFETY: as the caller promised.
        Ok(Self(unsafe { pd.register(addr, len, Access::REMOTE_READ)? }.range(..)))
    }

    /// The length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Whether the memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// The address of the first byte, which events report as their start.
    pub fn addr(&self) -> u64 {
        self.0.remote().addr
    }
    /// A part of the memory.
    ///
    /// # Panics
    /// The range does not lie inside.
    #[must_use]
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        Self(self.0.slice(range))
    }

    /// As the safe verbs have it.
    pub(crate) fn into_range(self) -> SharedRange {
        self.0
    }
    fn is_of(&self, pd: &Pd) -> bool {
        self.0.is_of(pd)
    }
    /// Copies from `offset` on into `out`.
    ///
    /// # Panics
    /// The bytes do not lie inside.
    #[inline]
    #[track_caller]
    pub fn read_at(&self, offset: usize, out: &mut [u8]) {
        self.0.read_at(offset, out);
    }
    /// Copies `data` to the bytes from `offset` on.
    ///
    /// # Panics
    /// The bytes do not lie inside.
    #[inline]
    #[track_caller]
    pub fn write_at(&self, offset: usize, data: &[u8]) {
        self.0.write_at(offset, data);
    }
    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.len()];
        self.read_at(0, &mut out);
        out
    }
    /// Reads a word in this machine's byte order (Acquire): stores before the store of its value are visible
    /// afterwards.
    ///
    /// # Panics
    /// The word is not aligned to 8 bytes, or does not lie inside.
    #[inline]
    #[track_caller]
    pub fn load_u64(&self, offset: usize) -> u64 {
        self.0.load_u64(offset)
    }
    /// Writes a word (Release).
    ///
    /// # Panics
    /// The word is not aligned to 8 bytes, or does not lie inside.
    #[inline]
    #[track_caller]
    pub fn store_u64(&self, offset: usize, value: u64) {
        self.0.store_u64(offset, value);
    }
    fn remote(&self) -> RemoteAddr {
        let RemoteMr { addr, rkey, .. } = self.0.remote();
        RemoteAddr { addr, rkey }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:#x}, {} bytes)", self.addr(), self.len())
    }
}

/// The memory of a descriptor or an entry: one piece, or a vector of pieces (an "iovec") that counts as one memory.
#[derive(Clone)]
pub struct Pieces(Kind);

#[derive(Clone)]
enum Kind {
    One(Memory),
    /// With where each ends.
    Many(Arc<[(Memory, u64)]>),
}

impl Pieces {
    /// The piece, if it is one.
    pub(crate) fn into_one(self) -> Result<Memory, Self> {
        match self.0 {
            Kind::One(memory) => Ok(memory),
            many @ Kind::Many(_) => Err(Self(many)),
        }
    }
    /// The number of bytes of all pieces.
    pub fn len(&self) -> u64 {
        match &self.0 {
            Kind::One(memory) => memory.len() as u64,
            Kind::Many(pieces) => pieces.last().map_or(0, |(_, end)| *end),
        }
    }
    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The number of pieces.
    pub fn count(&self) -> usize {
        match &self.0 {
            Kind::One(_) => 1,
            Kind::Many(pieces) => pieces.len(),
        }
    }
    /// Whether the memory is a vector of pieces.
    pub fn is_vector(&self) -> bool {
        matches!(self.0, Kind::Many(_))
    }
    /// The start address that events report: the address of the first piece.
    pub fn addr(&self) -> u64 {
        match &self.0 {
            Kind::One(memory) => memory.addr(),
            Kind::Many(pieces) => pieces.first().map_or(0, |(memory, _)| memory.addr()),
        }
    }
    /// Whether all of it is of this protection domain.
    pub(crate) fn is_of(&self, pd: &Pd) -> bool {
        match &self.0 {
            Kind::One(memory) => memory.is_of(pd),
            Kind::Many(pieces) => pieces.iter().all(|(memory, _)| memory.is_of(pd)),
        }
    }
    /// Calls `f` with each part of a range, in order: its memory, where in it, and how many bytes.
    fn each(&self, offset: u64, len: u64, mut f: impl FnMut(&Memory, usize, usize)) {
        let pieces = match &self.0 {
            Kind::One(memory) => return f(memory, offset as usize, len as usize),
            Kind::Many(pieces) => pieces,
        };
        let (mut at, end) = (offset, offset + len);
        let first = pieces.partition_point(|(_, piece_end)| *piece_end <= at);
        for (memory, piece_end) in &pieces[first..] {
            if at >= end {
                break;
            }
            let n = end.min(*piece_end) - at;
            f(memory, memory.len() - (piece_end - at) as usize, n as usize);
            at += n;
        }
    }
    /// Copies out. No bytes are nowhere: their offset is not looked at.
    #[inline(always)]
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        match &self.0 {
            _ if out.is_empty() => {}
            Kind::One(memory) => memory.read_at(offset as usize, out),
            Kind::Many(_) => self.read_pieces(offset, out),
        }
    }
    #[cold]
    fn read_pieces(&self, offset: u64, out: &mut [u8]) {
        let mut at = 0;
        self.each(offset, out.len() as u64, |memory, from, n| {
            memory.read_at(from, &mut out[at..at + n]);
            at += n;
        });
    }
    /// Copies in. No bytes go nowhere: their offset is not looked at.
    #[inline(always)]
    pub(crate) fn write(&self, offset: u64, data: &[u8]) {
        match &self.0 {
            _ if data.is_empty() => {}
            Kind::One(memory) => memory.write_at(offset as usize, data),
            Kind::Many(_) => self.write_pieces(offset, data),
        }
    }
    #[cold]
    fn write_pieces(&self, offset: u64, data: &[u8]) {
        let mut at = 0;
        self.each(offset, data.len() as u64, |memory, from, n| {
            memory.write_at(from, &data[at..at + n]);
            at += n;
        });
    }
    /// The pieces of a range as the other side names them.
    pub(crate) fn remote(&self, offset: u64, len: u64) -> Vec<Piece> {
        let mut out = Vec::new();
        self.each(offset, len, |memory, from, n| {
            let RemoteAddr { addr, rkey } = memory.remote();
            out.push(Piece { at: RemoteAddr { addr: addr + from as u64, rkey }, len: n as u32 });
        });
        out
    }
    /// The pieces of a range as entries of a request's list.
    pub(crate) fn sges(&self, offset: u64, len: u64) -> Vec<Sge> {
        let mut out = Vec::new();
        self.each(offset, len, |memory, from, n| out.push(raw::sge(&memory.0.slice(from..from + n))));
        out
    }
}

impl From<Memory> for Pieces {
    fn from(memory: Memory) -> Self {
        Self(Kind::One(memory))
    }
}
impl From<&Memory> for Pieces {
    fn from(memory: &Memory) -> Self {
        memory.clone().into()
    }
}
impl From<Vec<Memory>> for Pieces {
    /// A vector, even of one.
    fn from(pieces: Vec<Memory>) -> Self {
        let mut end = 0;
        let with_ends = pieces.into_iter().map(|memory| {
            end += memory.len() as u64;
            (memory, end)
        });
        Self(Kind::Many(with_ends.collect()))
    }
}
impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::One(memory) => memory.fmt(f),
            Kind::Many(pieces) => f.debug_list().entries(pieces.iter().map(|(memory, _)| memory)).finish(),
        }
    }
}
