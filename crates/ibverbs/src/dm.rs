//! Device memory, for which memory of the process stands.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

use hca::hca_core::Access;

use crate::abi::{IbvAllocDmAttr, IbvContext, IbvDm, Slot};
use crate::entry::{Errno, INVALID, In, give, number, pointer};
use crate::mapping::Mapping;
use crate::memory::{Backing, Mr, Pd, Range, ZERO_BASED, access, register};

/// The most bytes of one allocation, which `max_dm_size` tells.
pub(crate) const MAX_BYTES: usize = 1 << 20;
/// The most that an allocation is aligned to: a page.
const MAX_LOG_ALIGN: u32 = 12;

/// Device memory. Its regions are counted.
#[repr(C)]
pub(crate) struct Dm {
    c: IbvDm,
    memory: Mapping,
    len: usize,
    pub(crate) users: AtomicU32,
}

pub(crate) extern "C" fn alloc_dm(context: In<IbvContext>, attr: In<IbvAllocDmAttr>) -> *mut Dm {
    pointer(|| {
        let attr = attr.get()?;
        context.context()?;
        if attr.comp_mask != 0 || attr.log_align_req > MAX_LOG_ALIGN {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if attr.length == 0 || attr.length > MAX_BYTES {
            return Err(if attr.length == 0 { INVALID } else { Errno(libc::ENOMEM) });
        }
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let c = IbvDm {
            context: context.raw(),
            memcpy_to_dm: memcpy_to_dm as Slot,
            memcpy_from_dm: memcpy_from_dm as Slot,
            comp_mask: 1,
            handle: NEXT.fetch_add(1, Ordering::Relaxed),
        };
        let memory = Mapping::zeroed(attr.length)?;
        Ok(give(Dm { c, memory, len: attr.length, users: AtomicU32::new(0) }))
    })
}
pub(crate) extern "C" fn free_dm(dm: In<Dm>) -> c_int {
    number(|| {
        let object = dm.get()?;
        debug_assert!(!object.c.context.is_null());
        if object.users.load(Ordering::Relaxed) > 0 {
            return Err(Errno(libc::EBUSY));
        }
        dm.take().map(drop)
    })
}
extern "C" fn memcpy_to_dm(dm: In<Dm>, offset: u64, from: *const u8, len: usize) -> c_int {
    number(|| dm.get()?.memory.copy_in(offset, from, len))
}
extern "C" fn memcpy_from_dm(to: *mut u8, dm: In<Dm>, offset: u64, len: usize) -> c_int {
    number(|| dm.get()?.memory.copy_out(offset, to, len))
}

/// Registers a part of device memory, whose first byte has address 0.
pub(crate) extern "C" fn reg_dm_mr(pd: In<Pd>, dm: In<Dm>, offset: u64, len: usize, flags: u32) -> *mut Mr {
    pointer(|| {
        let object = dm.get()?;
        let offset = usize::try_from(offset).map_err(|_| INVALID)?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= object.len);
        if flags & ZERO_BASED == 0 || !inside {
            return Err(INVALID);
        }
        let access: Access = access(flags & !ZERO_BASED)?;
        let first = object.memory.first().as_ptr().wrapping_add(offset);
        let range = Range { addr: first.cast::<c_void>(), len, iova: 0, access };
        let mr = register(pd, &range, core::ptr::null_mut(), Backing::Dm(dm))?;
        object.users.fetch_add(1, Ordering::Relaxed);
        Ok(mr)
    })
}
