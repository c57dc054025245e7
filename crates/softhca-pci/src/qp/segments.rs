//! The segments of a request behind its control segment.

use hca_core::{Lkey, Sge};
use hca_prm::{CqeSyndrome, DataSeg, InlineSeg};

use super::recv::byte_count;
use super::{MAX_INLINE, MAX_SEND_SGE};

/// The byte counter's bits of an inline segment.
const INLINE_MASK: u32 = 0x3ff;
/// What a request is that can't be understood.
const WRONG: CqeSyndrome = CqeSyndrome::LocalQpOpErr;

/// The places that a request lists.
pub(crate) type Places = [Sge; MAX_SEND_SGE as usize];

/// What is left of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segments<'a>(&'a [u8]);

/// A data segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    /// A pointer.
    Place(Sge),
    /// Bytes in the request itself.
    Bytes(&'a [u8]),
}

impl<'a> Segments<'a> {
    /// All of `rest`.
    pub(crate) fn of(rest: &'a [u8]) -> Self {
        Self(rest)
    }

    /// Takes a segment of a fixed length.
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], CqeSyndrome> {
        let (head, rest) = self.0.split_first_chunk().ok_or(WRONG)?;
        self.0 = rest;
        Ok(*head)
    }

    /// Takes a data segment; `None`: there is none left.
    pub(crate) fn part(&mut self) -> Result<Option<Part<'a>>, CqeSyndrome> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let seg = DataSeg::from_array(*self.0.first_chunk().ok_or(WRONG)?);
        if !seg.get(DataSeg::INLINE) {
            self.0 = &self.0[DataSeg::SIZE..];
            let (addr, lkey) = (seg.get(DataSeg::ADDR), Lkey::new(seg.get(DataSeg::LKEY)));
            return Ok(Some(Part::Place(Sge { addr, len: byte_count(&seg), lkey })));
        }
        let len = (seg.get(DataSeg::BYTE_COUNT) & INLINE_MASK) as usize;
        let bytes = self.0.get(InlineSeg::SIZE..InlineSeg::SIZE + len).ok_or(WRONG)?;
        self.0 = self.0.get(InlineSeg::room(len)..).unwrap_or_default();
        Ok(Some(Part::Bytes(bytes)))
    }
}

/// Where the bytes of a request are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'a> {
    /// In memory: so many places were listed.
    Places(usize),
    /// In the request, in one piece.
    Inline(&'a [u8]),
    /// In the request, in pieces, beside places, or longer than those of the adapter's: all of its data segments, which were looked through.
    Mixed(Segments<'a>),
}

impl<'a> Data<'a> {
    /// Reads the data segments, and lists the places among them.
    pub(crate) fn read(mut rest: Segments<'a>, places: &mut Places) -> Result<Self, CqeSyndrome> {
        let all = rest;
        let (mut count, mut pieces, mut inline) = (0, 0, &[][..]);
        while let Some(part) = rest.part()? {
            match part {
                Part::Place(place) => {
                    *places.get_mut(count).ok_or(WRONG)? = place;
                    count += 1;
                }
                Part::Bytes(bytes) => (pieces, inline) = (pieces + 1, bytes),
            }
        }
        Ok(match (count, pieces) {
            (_, 0) => Self::Places(count),
            (0, 1) if inline.len() <= MAX_INLINE as usize => Self::Inline(inline),
            _ => Self::Mixed(all),
        })
    }
}
