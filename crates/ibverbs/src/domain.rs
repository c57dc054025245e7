//! Thread domains and parent domains: names under which objects are created, without effect on how they work.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use crate::abi::{IbvContext, IbvParentDomainInitAttr, IbvPd, IbvTd};
use crate::entry::{Errno, INVALID, In, give, number, pointer};
use crate::memory::{Parent, Pd};

/// A thread domain. Its parent domains are counted.
#[repr(C)]
pub(crate) struct Td {
    c: IbvTd,
    pub(crate) users: AtomicU32,
}

pub(crate) extern "C" fn alloc_td(context: In<IbvContext>, attr: In<u32>) -> *mut Td {
    pointer(|| {
        context.context()?;
        if *attr.get()? != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        Ok(give(Td { c: IbvTd { context: context.raw() }, users: AtomicU32::new(0) }))
    })
}
pub(crate) extern "C" fn dealloc_td(td: In<Td>) -> c_int {
    number(|| {
        let object = td.get()?;
        debug_assert!(!object.c.context.is_null());
        if object.users.load(Ordering::Relaxed) > 0 {
            return Err(Errno(libc::EBUSY));
        }
        td.take().map(drop)
    })
}

/// A parent domain is the protection domain under another address.
pub(crate) extern "C" fn alloc_parent_domain(
    context: In<IbvContext>,
    attr: In<IbvParentDomainInitAttr>,
) -> *mut Pd {
    pointer(|| {
        const PD_CONTEXT: u32 = 1 << 1;
        let attr = attr.get()?;
        // The program's allocators are not offered: objects are this library's.
        if attr.comp_mask & !PD_CONTEXT != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let (pd, td) = (In::<Pd>::of(attr.pd.cast()), In::<Td>::of(attr.td.cast()));
        let owner = pd.get()?;
        if owner.parent.is_some() {
            return Err(INVALID);
        }
        owner.users.fetch_add(1, Ordering::Relaxed);
        td.opt().inspect(|td| _ = td.users.fetch_add(1, Ordering::Relaxed));
        Ok(give(Pd {
            c: IbvPd { context: context.raw(), handle: owner.c.handle },
            adapter: Arc::clone(&owner.adapter),
            file: Arc::clone(&owner.file),
            handle: owner.handle,
            users: AtomicU32::new(0),
            parent: Some(Parent { pd, td }),
        }))
    })
}
