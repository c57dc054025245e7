//! Device memory, for which memory of the process stands.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use hca::hca_core::Access;

use crate::abi::{IbvAllocDmAttr, IbvContext, IbvDm, Slot};
use crate::entry::{Errno, INVALID, In, give, number, pointer};
use crate::import::File;
use crate::mapping::Mapping;
use crate::memory::{Backing, Mr, Pd, Range, ZERO_BASED, access, register};

/// The most bytes of one allocation, which `max_dm_size` tells.
pub(crate) const MAX_BYTES: usize = 1 << 20;
/// The most that an allocation is aligned to: a page.
const MAX_LOG_ALIGN: u32 = 12;

/// Device memory, or an import of it.
#[repr(C)]
pub(crate) struct Dm {
    c: IbvDm,
    file: Arc<File>,
    memory: Arc<Memory>,
}
/// The memory that device memory and its imports share. The regions on it are counted.
pub(crate) struct Memory {
    mapping: Mapping,
    len: usize,
    pub(crate) users: AtomicU32,
}

impl Dm {
    fn give(context: In<IbvContext>, file: Arc<File>, memory: Arc<Memory>, handle: u32) -> *mut Self {
        let c = IbvDm {
            context: context.raw(),
            memcpy_to_dm: memcpy_to_dm as Slot,
            memcpy_from_dm: memcpy_from_dm as Slot,
            comp_mask: 1,
            handle,
        };
        give(Self { c, file, memory })
    }
    /// The memory of a handle, once more.
    pub(crate) fn import(context: In<IbvContext>, handle: u32) -> Result<*mut Self, Errno> {
        let file = Arc::clone(&context.context()?.file);
        let memory = file.dms.get(handle)?;
        Ok(Self::give(context, file, memory, handle))
    }
}

pub(crate) extern "C" fn alloc_dm(context: In<IbvContext>, attr: In<IbvAllocDmAttr>) -> *mut Dm {
    pointer(|| {
        let attr = attr.get()?;
        let file = Arc::clone(&context.context()?.file);
        if attr.comp_mask != 0 || attr.log_align_req > MAX_LOG_ALIGN {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if attr.length == 0 || attr.length > MAX_BYTES {
            return Err(if attr.length == 0 { INVALID } else { Errno(libc::ENOMEM) });
        }
        let mapping = Mapping::zeroed(attr.length)?;
        let memory = Arc::new(Memory { mapping, len: attr.length, users: AtomicU32::new(0) });
        let handle = file.dms.add(Arc::clone(&memory));
        Ok(Dm::give(context, file, memory, handle))
    })
}
pub(crate) extern "C" fn free_dm(dm: In<Dm>) -> c_int {
    number(|| {
        let object = dm.get()?;
        if object.memory.users.load(Ordering::Relaxed) > 0 {
            return Err(Errno(libc::EBUSY));
        }
        // One that an import has freed is there no more.
        if !object.file.dms.remove(object.c.handle) {
            return Err(INVALID);
        }
        dm.take().map(drop)
    })
}
extern "C" fn memcpy_to_dm(dm: In<Dm>, offset: u64, from: *const u8, len: usize) -> c_int {
    number(|| dm.get()?.memory.mapping.copy_in(offset, from, len))
}
extern "C" fn memcpy_from_dm(to: *mut u8, dm: In<Dm>, offset: u64, len: usize) -> c_int {
    number(|| dm.get()?.memory.mapping.copy_out(offset, to, len))
}

/// Registers a part of device memory, whose first byte has address 0.
pub(crate) extern "C" fn reg_dm_mr(pd: In<Pd>, dm: In<Dm>, offset: u64, len: usize, flags: u32) -> *mut Mr {
    pointer(|| {
        let object = dm.get()?;
        let memory = object.file.dms.get(object.c.handle)?;
        let offset = usize::try_from(offset).map_err(|_| INVALID)?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= memory.len);
        if flags & ZERO_BASED == 0 || !inside {
            return Err(INVALID);
        }
        let access: Access = access(flags & !ZERO_BASED)?;
        let first = memory.mapping.first().as_ptr().wrapping_add(offset);
        let range = Range { addr: first.cast::<c_void>(), len, iova: 0, access };
        let mr = register(pd, &range, core::ptr::null_mut(), Backing::Dm(Arc::clone(&memory)))?;
        memory.users.fetch_add(1, Ordering::Relaxed);
        Ok(mr)
    })
}
