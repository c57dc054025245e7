//! Blocks of memory that peers on the machine can map, for the allocator that `hca exec --heap` preloads.
//!
//! A forked child has copies of its parent's blocks, as of other memory. The kernel makes none of memory that is mapped by
//! several: the child makes them itself, before `fork` returns in either of both.
//!
//! Invariants:
//! 1. [`BLOCKS`] has each block that the program has, by its address. Nobody else unmaps one.
//! 2. From [`before`] to [`in_parent`] or [`in_child`] one thread holds the lock of [`BLOCKS`], and no other reaches
//!    [`FORKING`]. That thread runs the program's own handlers in between, which may take and give back memory.
#![allow(unsafe_code)]

use core::cell::{Cell, UnsafeCell};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use std::collections::BTreeMap;
use std::io::{PipeReader, PipeWriter, Read as _};
use std::sync::{Mutex, MutexGuard, Once};

use hca_fabric::SharedPages;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use crate::entry::{INVALID, counted, lock, pointer};

/// A block of the program.
enum Block {
    Shared(SharedPages),
    /// So many bytes of this process alone: a child's.
    Private(usize),
}
impl Block {
    fn len(&self) -> usize {
        match self {
            Self::Shared(pages) => pages.len(),
            Self::Private(len) => *len,
        }
    }
}
type Blocks = BTreeMap<usize, Block>;
static BLOCKS: Mutex<Blocks> = Mutex::new(BTreeMap::new());

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
        // SAFETY: handlers that stay, as the object is never unloaded.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        // SAFETY: the function of this name takes a pointer to a source that stays.
        let use_source: extern "C" fn(&'static Source) = unsafe { core::mem::transmute(found) };
        use_source(&SOURCE);
    });
}

thread_local! {
    /// This is the thread that forks, and holds the lock.
    static FORKS: Cell<bool> = const { Cell::new(false) };
}
/// Reaches the blocks, also from a handler of the program's own on the thread that forks.
fn with_blocks<T>(reach: impl FnOnce(&mut Blocks) -> T) -> T {
    if !FORKS.get() {
        return reach(&mut lock(&BLOCKS));
    }
    // SAFETY: (2): this is the thread, and nothing that is reached comes here again.
    let (held, _) = unsafe { (*FORKING.0.get()).as_mut() }.expect("it forks");
    reach(held)
}

extern "C" fn alloc(len: usize) -> *mut c_void {
    pointer(|| {
        // Blocks that are made beside the copies for a child are the C library's.
        if FORKS.get() {
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

/// The thread that forks: it holds the lock, and both ends of a pipe that the child closes once it has its copies.
struct Forking(UnsafeCell<Option<(MutexGuard<'static, Blocks>, Option<Ends>)>>);
type Ends = (PipeReader, PipeWriter);
// SAFETY: (2)
unsafe impl Sync for Forking {}
static FORKING: Forking = Forking(UnsafeCell::new(None));

extern "C" fn before() {
    let held = lock(&BLOCKS);
    let is_any = held.values().any(|block| matches!(block, Block::Shared(_)));
    let pipe = if is_any { std::io::pipe().ok() } else { None };
    // SAFETY: (2)
    unsafe { *FORKING.0.get() = Some((held, pipe)) };
    FORKS.set(true);
}
extern "C" fn in_parent() {
    FORKS.set(false);
    // SAFETY: (2)
    let forking = unsafe { (*FORKING.0.get()).take() };
    if let Some((_held, Some((mut from_child, to_parent)))) = forking {
        drop(to_parent);
        // The end of the pipe: the child has closed it, or is gone, or there is none.
        let _ = from_child.read_exact(&mut [0]);
    }
}
extern "C" fn in_child() {
    FORKS.set(false);
    // SAFETY: (2): the only thread of this process.
    let forking = unsafe { (*FORKING.0.get()).take() };
    let Some((mut held, _pipe)) = forking else { return };
    for (at, block) in held.iter_mut() {
        if matches!(block, Block::Shared(_)) && !is_copied(*at, block.len()) {
            let words = b"hca: no memory for a child's copy of its parent's\n";
            // SAFETY: as many bytes as there are.
            unsafe { libc::write(libc::STDERR_FILENO, words.as_ptr().cast(), words.len()) };
            std::process::abort();
        }
        *block = Block::Private(block.len());
    }
}
/// Puts private memory with the same bytes in the place of shared one; whether there was memory for it.
fn is_copied(at: usize, len: usize) -> bool {
    let shared: *mut c_void = core::ptr::with_exposed_provenance_mut(at);
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory, which then takes the place of the block's (1); no other thread of this process reads or writes.
    unsafe {
        let Ok(own) = rustix::mm::mmap_anonymous(null_mut(), len, prot, MapFlags::PRIVATE) else {
            return false;
        };
        core::ptr::copy_nonoverlapping(shared.cast::<u8>(), own.cast(), len);
        rustix::mm::mremap_fixed(own, len, len, MremapFlags::MAYMOVE, shared).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

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
