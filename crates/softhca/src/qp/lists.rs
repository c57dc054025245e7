//! The lists of places of requests, as direct access goes through them.

use hca_core::{Access, Payload, PdHandle, Sge};
use hca_transport::LocalError;

use super::parts::each_part;
use super::{SendHeader, entries, list, pieces};
use crate::near::{LocalList, Piece};
use crate::ring::Consumer;
use crate::tables::Tables;

/// The local list of a request that is queued.
pub(super) struct RequestList<'a> {
    pub(super) sq: &'a Consumer<SendHeader>,
    pub(super) index: u32,
    pub(super) tables: &'a Tables,
    pub(super) pd: PdHandle,
}

/// The local list of a request that is not queued.
pub(crate) struct PostedList<'a> {
    pub(crate) payload: Payload<'a>,
    pub(crate) tables: &'a Tables,
    pub(crate) pd: PdHandle,
}

/// Goes through a list's pieces in `offset .. offset + len`, translated.
#[inline]
fn each_piece<E: From<LocalError>>(
    (tables, pd): (&Tables, PdHandle),
    sges: impl Iterator<Item = Sge>,
    (offset, len): (u32, usize),
    write: bool,
    mut f: impl FnMut(Piece<'_>, usize) -> Result<(), E>,
) -> Result<(), E> {
    let access = if write { Access::LOCAL_WRITE } else { Access::empty() };
    pieces(sges, offset, len, |s, at| {
        each_part(tables, pd, s, access, |place, part, len| f(Piece::Memory(place, len), at + part))
    })
}

/// The piece that inline bytes are.
#[inline]
fn inline_piece(bytes: &[u8], offset: u32, len: usize) -> Result<Piece<'_>, LocalError> {
    let offset = offset as usize;
    bytes.get(offset..offset + len).map(Piece::Inline).ok_or(LocalError::Length)
}

impl LocalList for RequestList<'_> {
    #[inline]
    fn each<E: From<LocalError>>(
        &self,
        offset: u32,
        len: usize,
        write: bool,
        mut f: impl FnMut(Piece<'_>, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let h = self.sq.header_ref(self.index);
        let cells = self.sq.cells(self.index);
        if h.inline {
            return f(inline_piece(bytemuck::cast_slice(list(cells, h)), offset, len)?, 0);
        }
        each_piece((self.tables, self.pd), entries(cells, h), (offset, len), write, f)
    }
}

impl LocalList for PostedList<'_> {
    #[inline]
    fn each<E: From<LocalError>>(
        &self,
        offset: u32,
        len: usize,
        write: bool,
        mut f: impl FnMut(Piece<'_>, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.payload {
            Payload::Inline(bytes) => f(inline_piece(bytes, offset, len)?, 0),
            Payload::Sges(sges) => {
                each_piece((self.tables, self.pd), sges.iter().copied(), (offset, len), write, f)
            }
        }
    }
}
