//! Buffers that programs allocate for registration.

use core::ffi::{c_int, c_void};

use crate::entry::{Errno, In, counted, exports, give, pointer};
use crate::mapping::Mapping;
use crate::memory::Pd;

/// Memory for regions of one protection domain.
pub(crate) struct Buffer {
    pd: In<Pd>,
    memory: Mapping,
    len: usize,
}

impl Buffer {
    /// Whether a range lies in it, and the domain is its own.
    pub(crate) fn holds(&self, pd: In<Pd>, addr: *mut c_void, len: usize) -> bool {
        let offset = (addr as usize).checked_sub(self.memory.first().as_ptr() as usize);
        let end = offset.and_then(|offset| offset.checked_add(len));
        pd.raw() == self.pd.raw() && end.is_some_and(|end| end <= self.len)
    }
}

exports! {
    "IBVERBS_1.17" fn ibv_alloc_buf(pd: In<Pd>, size: usize, to: In<*mut Buffer>) -> *mut c_void {
        pointer(|| {
            pd.get()?;
            let memory = Mapping::zeroed(size)?;
            let first = memory.first().as_ptr().cast();
            let buffer = give(Buffer { pd, memory, len: size });
            to.set(buffer).inspect_err(|_| _ = In::of(buffer).take())?;
            Ok(first)
        })
    }
    "IBVERBS_1.17" fn ibv_free_buf(buffer: In<Buffer>) -> () {
        let _ = counted(|| {
            drop(buffer.take()?);
            Ok(0)
        });
    }
    // It is memory of the process, and no dmabuf.
    "IBVERBS_1.18" fn ibv_export_buf_dmabuf_fd(_buffer: In<Buffer>) -> c_int {
        counted(|| Err(Errno(libc::ENODATA)))
    }
}
