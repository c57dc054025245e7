//! The scatter/gather list of a request, as a direct access iterates over it.

use hca_core::{Access, PdHandle};
use hca_transport::LocalError;

use crate::objects::parts::each_part;
use crate::objects::tables::Tables;
use crate::queues::ring::Consumer;
use crate::queues::slot::{Place, SendHeader, entries, in_slot, list, pieces};

/// Where a piece of a request's local list stands.
pub(crate) enum Piece<'a> {
    /// Registered memory that others may change.
    Memory(*mut u8, usize),
    /// Bytes of the request itself.
    Inline(&'a [u8]),
}

/// The local list of a request that is queued.
pub(crate) struct RequestList<'a> {
    pub(crate) sq: &'a Consumer<SendHeader>,
    pub(crate) index: u32,
    pub(crate) tables: &'a Tables,
    pub(crate) pd: PdHandle,
}

impl RequestList<'_> {
    /// Calls `f` with each piece of `offset .. offset + len`, translated, and where it begins within that.
    ///
    /// # Errors
    /// A local key does not allow it, or `f` fails.
    #[inline]
    pub(crate) fn each<E: From<LocalError>>(
        &self,
        offset: u32,
        len: usize,
        write: bool,
        mut f: impl FnMut(Piece<'_>, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let h = self.sq.header_ref(self.index);
        let cells = self.sq.cells(self.index);
        if h.place == Place::Slot {
            let (bytes, offset) = (bytemuck::cast_slice(list(cells, h)), offset as usize);
            let piece = bytes.get(offset..offset + len).map(Piece::Inline).ok_or(LocalError::Length)?;
            return f(piece, 0);
        }
        let access = if write { Access::LOCAL_WRITE } else { Access::empty() };
        pieces(entries(cells, h), offset, len, |s, at| {
            if let Some(bytes) = in_slot(cells, h, &s) {
                return f(Piece::Inline(bytes?), at);
            }
            let place = |place, part, len| f(Piece::Memory(place, len), at + part);
            each_part(self.tables, self.pd, s, access, place)
        })
    }
}
