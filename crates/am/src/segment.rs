//! Segments: the memory of an endpoint that bulk messages write.

use std::fmt;
use std::ops::Range;

use hca_verbs::SharedMr;
use hca_via::Memory;

use crate::lower::STAGE;

/// The segment of an endpoint: registered memory, into which peers write by bulk messages. Clones are the same memory.
///
/// Peers may write it at any time, so it is never a slice: the program copies in and out.
#[derive(Clone)]
pub struct Segment(pub(crate) Place);

#[derive(Clone)]
pub(crate) enum Place {
    Verbs(SharedMr),
    Via(Memory),
}

/// Where peers reach a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Remote {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) key: u32,
}

impl Segment {
    /// The length in bytes; at least 1.
    #[allow(clippy::len_without_is_empty)] // it has at least one byte
    pub fn len(&self) -> usize {
        match &self.0 {
            Place::Verbs(mr) => mr.len(),
            Place::Via(memory) => memory.len(),
        }
    }
    /// Copies from `offset` on into `out`.
    ///
    /// # Panics
    /// The bytes do not lie inside.
    #[track_caller]
    pub fn read_at(&self, offset: usize, out: &mut [u8]) {
        match &self.0 {
            Place::Verbs(mr) => mr.read_at(offset, out),
            Place::Via(memory) => memory.read_at(offset, out),
        }
    }
    /// Copies `data` to the bytes from `offset` on.
    ///
    /// # Panics
    /// The bytes do not lie inside.
    #[track_caller]
    pub fn write_at(&self, offset: usize, data: &[u8]) {
        match &self.0 {
            Place::Verbs(mr) => mr.write_at(offset, data),
            Place::Via(memory) => memory.write_at(offset, data),
        }
    }
    /// A copy of a range.
    ///
    /// # Panics
    /// The bytes do not lie inside.
    #[track_caller]
    pub fn to_vec(&self, range: Range<usize>) -> Vec<u8> {
        let mut out = vec![0; range.len()];
        self.read_at(range.start, &mut out);
        out
    }
    /// The address of the first byte in this process.
    pub fn addr(&self) -> u64 {
        self.remote().addr
    }
    pub(crate) fn remote(&self) -> Remote {
        match &self.0 {
            Place::Verbs(mr) => {
                let remote = mr.remote();
                Remote { addr: remote.addr, len: remote.len, key: remote.rkey.raw() }
            }
            Place::Via(memory) => {
                Remote { addr: memory.addr(), len: memory.len() as u64, key: memory.handle().0 }
            }
        }
    }
}

impl Remote {
    /// Whether a range lies inside.
    pub(crate) fn has(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len)
    }
    /// The part of `len` bytes that begins at `offset`, which [was checked](Self::has).
    pub(crate) fn part(&self, offset: u64, len: u64) -> Self {
        Self { addr: self.addr.wrapping_add(offset), len, key: self.key }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} bytes)", self.len())
    }
}

/// The bytes of a bulk message.
#[derive(Clone, Debug)]
pub enum Source<'a> {
    /// Bytes of the program's, which the call copies into registered memory.
    Bytes(&'a [u8]),
    /// A range of a segment of the same bundle, from which the bytes go without a copy. They stay as they are until the
    /// request was answered, or the peer may get either.
    Segment(&'a Segment, Range<usize>),
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}
impl<'a, const N: usize> From<&'a [u8; N]> for Source<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Bytes(bytes)
    }
}
impl<'a> From<&'a Vec<u8>> for Source<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl Source<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Segment(_, range) => range.len(),
        }
    }
    /// Calls `go` with each piece that goes by itself, its place, and whether it is the first one.
    #[inline]
    pub(crate) fn each_piece<E>(
        &self,
        to: Remote,
        mut go: impl FnMut(&Source<'_>, Remote, bool) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Bytes(bytes) if bytes.len() > STAGE => {
                bytes.chunks(STAGE).enumerate().try_for_each(|(i, piece)| {
                    let to = to.part((i * STAGE) as u64, piece.len() as u64);
                    go(&Source::Bytes(piece), to, i == 0)
                })
            }
            whole => go(whole, to, true),
        }
    }
    /// Calls `go` with each piece of an access that goes by itself, and its place; `most` is the length of a segment's
    /// pieces.
    #[inline]
    pub(crate) fn each_access<E>(
        &self,
        to: Remote,
        most: usize,
        mut go: impl FnMut(&Source<'_>, Remote) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Segment(segment, range) if range.len() > most => {
                range.clone().step_by(most).try_for_each(|begin| {
                    let piece = begin..range.end.min(begin + most);
                    let to = to.part((begin - range.start) as u64, piece.len() as u64);
                    go(&Source::Segment(segment, piece), to)
                })
            }
            whole => whole.each_piece(to, |piece, to, _| go(piece, to)),
        }
    }
    /// Whether its range lies in its segment.
    pub(crate) fn is_whole(&self) -> bool {
        match self {
            Self::Bytes(_) => true,
            Self::Segment(segment, range) => range.start <= range.end && range.end <= segment.len(),
        }
    }
}
