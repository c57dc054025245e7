//! Bytes that do not lie in one piece of memory: they continue in later entries of a list, or the memory of an entry
//! lies in several pieces ([`Scattered`](crate::memory::scattered::Scattered)).

use hca_core::{Access, Lkey, Rkey, Sge};
use hca_transport::{LocalError, RemoteAccessError};

use crate::engine::host::{QpHost, held_pieces};
use crate::memory::dma;
use crate::objects::parts::{each_of_several, each_part};
use crate::queues::slot::{entries, in_slot, pieces};

#[allow(unsafe_code)] // the calls of `dma`, each with its argument
impl QpHost<'_> {
    /// As `Host::gather`, wherever the bytes lie.
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
    /// As `Host::scatter`, wherever the bytes lie.
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
    /// As `Host::place_recv`, wherever the bytes lie.
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
