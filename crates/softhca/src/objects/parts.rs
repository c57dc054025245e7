//! Local memory by key: a range in one piece, or in several ([`Scattered`](crate::memory::scattered::Scattered)).

use hca_core::{Access, PdHandle, Sge};
use hca_transport::LocalError;

use crate::objects::tables::Tables;

/// The address of an entry that lies in one piece of a region with these rights.
#[inline(always)]
pub(crate) fn local(tables: &Tables, pd: PdHandle, s: Sge, access: Access) -> Result<*mut u8, LocalError> {
    tables.mrs.translate(pd, s.lkey.raw(), s.addr, s.len.into(), access).map_err(|_| LocalError::Protection)
}

/// Goes through the parts of an entry that lie in one piece of memory each, of which most have one. The call is told
/// where a part begins in the entry, and its length.
#[inline]
pub(crate) fn each_part<E: From<LocalError>>(
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
pub(crate) fn each_of_several<E>(
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
