//! Blocks of memory that peers on the machine can map, for the allocator that `hca exec --heap` preloads. [`forked`]
//! has them copied for children.
//!
//! Invariants:
//! 1. [`BLOCKS`] has each block that the program has, by its address. Nobody else unmaps one.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use std::collections::BTreeMap;
use std::sync::{Mutex, Once};

use hca_fabric::SharedPages;
use rustix::mm::Advice;

use crate::entry::{INVALID, counted, pointer};
use crate::forked::{self, with_blocks};

/// A block of the program.
pub(crate) enum Block {
    Shared(SharedPages),
    /// So many bytes of this process alone: a child's.
    Private(usize),
}
impl Block {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Shared(pages) => pages.len(),
            Self::Private(len) => *len,
        }
    }
}
pub(crate) type Blocks = BTreeMap<usize, Block>;
pub(crate) static BLOCKS: Mutex<Blocks> = Mutex::new(BTreeMap::new());

/// The functions that the preloaded allocator calls, as it declares them.
#[repr(C)]
struct Source {
    alloc: extern "C" fn(usize) -> *mut c_void,
    free: extern "C" fn(*mut c_void) -> c_int,
    len: extern "C" fn(*mut c_void) -> usize,
}
static SOURCE: Source = Source { alloc, free, len };

/// Offers memory to the program's allocator, if it is the one of `hca exec --heap`.
pub(crate) fn offer() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"hca_heap_use".as_ptr()) };
        if found.is_null() {
            return;
        }
        forked::watch();
        // SAFETY: the function of this name takes a pointer to a source that stays.
        let use_source: extern "C" fn(&'static Source) = unsafe { core::mem::transmute(found) };
        use_source(&SOURCE);
    });
}

extern "C" fn alloc(len: usize) -> *mut c_void {
    pointer(|| {
        // Blocks that are made beside the copies for a child are the C library's.
        if forked::forks() {
            return Err(INVALID);
        }
        let pages = SharedPages::alloc(len).map_err(|_| INVALID)?;
        let at: *mut c_void = pages.addr().as_ptr().cast();
        // Other pages for peers are kept from children; these are copied for them.
        // SAFETY: pages that were just made; the advice changes no content.
        unsafe { rustix::mm::madvise(at, pages.len(), Advice::LinuxDoFork)? };
        with_blocks(|blocks| blocks.insert(at.addr(), Block::Shared(pages)));
        Ok(at)
    })
}
extern "C" fn free(block: *mut c_void) -> c_int {
    counted(|| {
        let found = with_blocks(|blocks| blocks.remove(&block.addr()));
        if let Some(Block::Private(len)) = found {
            // SAFETY: (1): it was mapped at the fork.
            let _ = unsafe { rustix::mm::munmap(block, len) };
        }
        Ok(found.is_some().into())
    })
}
extern "C" fn len(block: *mut c_void) -> usize {
    with_blocks(|blocks| blocks.get(&block.addr()).map_or(0, Block::len))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::forked::{before, in_parent};

    /// A program's handlers run between those of this module, and any block that begins at a page is asked about.
    #[test]
    fn handlers_of_the_program_may_give_memory_back_while_it_forks() {
        let (tell, told) = channel();
        std::thread::spawn(move || {
            let own = alloc(4096);
            before();
            let other = core::ptr::without_provenance_mut(4096);
            let found = (len(own), len(other), free(other), alloc(4096).is_null(), free(own));
            in_parent();
            tell.send((found, len(own), free(alloc(4096)))).unwrap();
        });
        let found = told.recv_timeout(Duration::from_secs(10)).expect("it does not wait for itself");
        assert_eq!(found, ((4096, 0, 0, true, 1), 0, 1));
    }
}
