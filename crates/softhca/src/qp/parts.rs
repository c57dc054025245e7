//! Bytes that do not lie in one piece of memory: they continue in later entries of a list, or the memory of an entry
//! lies in several pieces ([`Scattered`](crate::scattered::Scattered)).

use hca_core::{Access, Lkey, PdHandle, Rkey, Sge};
use hca_transport::{LocalError, RemoteAccessError};

use super::{QpHost, entries, held_pieces, in_slot, local, pieces};
use crate::dma;
use crate::tables::Tables;

#[allow(unsafe_code)] // the calls of `dma`, each with its argument
impl QpHost<'_> {
    /// As [`Host::gather`], wherever the bytes lie.
    #[inline(never)]
    pub(super) fn gather_parts(&self, index: u32, offset: u32, out: &mut [u8]) -> Result<(), LocalError> {
        let (h, cells) = self.res.sq.at(index);
        pieces(entries(cells, h), offset, out.len(), |s, at| {
            if let Some(bytes) = in_slot(cells, h, &s) {
                out[at..at + s.len as usize].copy_from_slice(bytes?);
                return Ok(());
            }
            each_part(self.tables, self.res.send_pd, s, Access::empty(), |from, part, len| {
                // SAFETY: as in `gather`.
                Ok(unsafe { dma::load(from, &mut out[at + part..at + part + len]) }?)
            })
        })
    }
    /// As [`Host::scatter`], wherever the bytes lie.
    #[inline(never)]
    pub(super) fn scatter_parts(&self, index: u32, offset: u32, data: &[u8]) -> Result<(), LocalError> {
        let (h, cells) = self.res.sq.at(index);
        pieces(entries(cells, h), offset, data.len(), |s, at| {
            each_part(self.tables, self.res.send_pd, s, Access::LOCAL_WRITE, |to, part, len| {
                // SAFETY: as in `scatter`.
                unsafe { dma::store(to, &data[at + part..at + part + len]) };
                Ok(())
            })
        })
    }
    /// As [`Host::place_recv`], wherever the bytes lie.
    #[inline(never)]
    pub(super) fn place_parts(&mut self, offset: u32, data: &[u8]) -> Result<(), LocalError> {
        let (tables, pd) = (&*self.tables, self.res.recv_pd);
        let place = |s: Sge, at: usize| {
            each_part(tables, pd, s, Access::LOCAL_WRITE, |to, part, len| {
                // SAFETY: as in `scatter`.
                unsafe { dma::store(to, &data[at + part..at + part + len]) };
                Ok(())
            })
        };
        held_pieces(&self.res.rq, &self.res.held, offset, data.len(), place)
    }
    /// Goes through the parts of a peer's access that lie in one piece of memory each.
    #[cold]
    pub(super) fn each_of_several_remote(
        &mut self,
        rkey: Rkey,
        (va, len): (u64, usize),
        access: Access,
        f: &mut dyn FnMut(*mut u8, usize, usize) -> Result<(), LocalError>,
    ) -> Result<(), RemoteAccessError> {
        let done = self.each_of_several_named(rkey, (va, len), access, f);
        done.map_err(|_| self.refuse(rkey, va, len as u64, access))
    }
    fn each_of_several_named(
        &self,
        rkey: Rkey,
        (va, len): (u64, usize),
        access: Access,
        f: &mut dyn FnMut(*mut u8, usize, usize) -> Result<(), LocalError>,
    ) -> Result<(), LocalError> {
        if let Ok((key, addr)) = self.through_window(rkey, va, len as u64, access) {
            let s = Sge { addr, len: len as u32, lkey: Lkey::new(key) };
            // The window has the rights that its region need not have.
            return each_part(self.tables, self.res.pd, s, Access::empty(), f);
        }
        let refused = LocalError::Protection;
        each_of_several(self.tables, (self.res.pd, rkey.raw()), (va, len), access, refused, f)
    }
}

/// Goes through the parts of an entry that lie in one piece of memory each, of which most have one. The call is told
/// where a part begins in the entry, and its length.
#[inline]
pub(super) fn each_part<E: From<LocalError>>(
    tables: &Tables,
    pd: PdHandle,
    s: Sge,
    access: Access,
    mut f: impl FnMut(*mut u8, usize, usize) -> Result<(), E>,
) -> Result<(), E> {
    match local(tables, pd, s, access) {
        Ok(at) => f(at, 0, s.len as usize),
        Err(_) => {
            let (key, range, refused) =
                ((pd, s.lkey.raw()), (s.addr, s.len as usize), E::from(LocalError::Protection));
            each_of_several(tables, key, range, access, refused, &mut f)
        }
    }
}

/// Goes through the parts of a range of a region of several pieces. `refused`: there is no such region, or it does not
/// allow that.
#[cold]
#[inline(never)]
fn each_of_several<E>(
    tables: &Tables,
    (pd, key): (PdHandle, u32),
    (addr, len): (u64, usize),
    access: Access,
    refused: E,
    f: &mut dyn FnMut(*mut u8, usize, usize) -> Result<(), E>,
) -> Result<(), E> {
    let Ok((memory, offset)) = tables.mrs.scattered(pd, key, addr, len as u64, access) else {
        return Err(refused);
    };
    let mut done = 0;
    for (at, part) in memory.parts(offset, len) {
        f(at.as_ptr(), done, part)?;
        done += part;
    }
    Ok(())
}
