//! Forked children have copies of memory that their parents share with peers, as they have of other memory. The kernel
//! makes none of memory that is mapped by several: the child makes them itself, before `fork` returns in either of both.
//!
//! Invariants:
//! 1. From [`before`] to [`in_parent`] or [`in_child`] one thread holds the locks of [`MEMORY`] and [`BLOCKS`], and no
//!    other reaches a [`Held`]. That thread runs the program's own handlers in between, which may register memory, take
//!    some and give it back.
#![allow(unsafe_code)]

use core::cell::{Cell, UnsafeCell};
use core::ffi::c_void;
use core::ops::Range;
use core::ptr::null_mut;
use std::io::{PipeReader, PipeWriter, Read as _};
use std::sync::{Mutex, MutexGuard, Once};

use rustix::mm::{MapFlags, MremapFlags, ProtFlags};

use crate::entry::lock;
use crate::heap::{BLOCKS, Block, Blocks};
use crate::moved::{MEMORY, Memory};

/// Has children of this process get copies from now on.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    // SAFETY: handlers that stay, as the object is never unloaded.
    ONCE.call_once(|| _ = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) });
}

/// What the thread that forks holds (1); `None` where no thread forks.
struct Held<T>(UnsafeCell<Option<T>>);
// SAFETY: (1)
unsafe impl<T> Sync for Held<T> {}
impl<T> Held<T> {
    const fn none() -> Self {
        Self(UnsafeCell::new(None))
    }
    fn set(&self, value: Option<T>) -> Option<T> {
        // SAFETY: (1): this is the thread, outside of `with`.
        unsafe { core::mem::replace(&mut *self.0.get(), value) }
    }
}
static HELD_MEMORY: Held<MutexGuard<'static, Memory>> = Held::none();
static HELD_BLOCKS: Held<MutexGuard<'static, Blocks>> = Held::none();
/// Both ends of a pipe that the child closes once it has its copies, if there is anything to copy.
static ENDS: Held<(PipeReader, PipeWriter)> = Held::none();

thread_local! {
    /// This is the thread that forks, and holds the locks.
    static FORKS: Cell<bool> = const { Cell::new(false) };
}
/// Whether this thread forks.
pub(crate) fn forks() -> bool {
    FORKS.get()
}
/// Reaches what a lock keeps, also from a handler of the program's own on the thread that forks.
fn with<T, R>(
    mutex: &'static Mutex<T>,
    held: &'static Held<MutexGuard<'static, T>>,
    reach: impl FnOnce(&mut T) -> R,
) -> R {
    if !forks() {
        return reach(&mut lock(mutex));
    }
    // SAFETY: (1): this is the thread, and nothing that is reached comes to the same place again.
    reach(unsafe { (*held.0.get()).as_mut() }.expect("it forks"))
}
/// Reaches the memory of regions. Within, memory of malloc may be taken and given back.
pub(crate) fn with_memory<R>(reach: impl FnOnce(&mut Memory) -> R) -> R {
    with(&MEMORY, &HELD_MEMORY, reach)
}
/// Reaches the blocks of malloc.
pub(crate) fn with_blocks<R>(reach: impl FnOnce(&mut Blocks) -> R) -> R {
    with(&BLOCKS, &HELD_BLOCKS, reach)
}

pub(crate) extern "C" fn before() {
    let memory = lock(&MEMORY);
    let blocks = lock(&BLOCKS);
    let is_any = memory.is_any_moved() || blocks.values().any(|block| matches!(block, Block::Shared(_)));
    HELD_MEMORY.set(Some(memory));
    HELD_BLOCKS.set(Some(blocks));
    FORKS.set(true);
    ENDS.set(if is_any { std::io::pipe().ok() } else { None });
}
pub(crate) extern "C" fn in_parent() {
    let ends = ENDS.set(None);
    FORKS.set(false);
    let _held = (HELD_MEMORY.set(None), HELD_BLOCKS.set(None));
    if let Some((mut from_child, to_parent)) = ends {
        drop(to_parent);
        // The end of the pipe: the child has closed it, or is gone, or there is none.
        let _ = from_child.read_exact(&mut [0]);
    }
}
extern "C" fn in_child() {
    // Closed behind the copies.
    let _ends = ENDS.set(None);
    with_memory(|memory| {
        memory.places().for_each(|place| copy(&place));
        *memory = Memory::new();
    });
    with_blocks(|blocks| {
        for (at, block) in blocks.iter_mut() {
            if matches!(block, Block::Shared(_)) {
                copy(&(*at..*at + block.len()));
            }
            *block = Block::Private(block.len());
        }
    });
    FORKS.set(false);
    let _held = (HELD_MEMORY.set(None), HELD_BLOCKS.set(None));
}
fn copy(place: &Range<usize>) {
    if !make_own(place) {
        let words = b"hca: no memory for a child's copy of its parent's\n";
        // SAFETY: as many bytes as there are.
        unsafe { libc::write(libc::STDERR_FILENO, words.as_ptr().cast(), words.len()) };
        std::process::abort();
    }
}

/// Puts private memory with the same bytes in the place of shared one, which this process has mapped for reading and in
/// which nobody writes meanwhile; whether there was memory for it.
pub(crate) fn make_own(place: &Range<usize>) -> bool {
    let (shared, len) = (core::ptr::with_exposed_provenance_mut::<c_void>(place.start), place.len());
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory, which then takes the place of the other one, whose owners are the callers' modules.
    unsafe {
        let Ok(own) = rustix::mm::mmap_anonymous(null_mut(), len, prot, MapFlags::PRIVATE) else {
            return false;
        };
        core::ptr::copy_nonoverlapping(shared.cast::<u8>(), own.cast(), len);
        rustix::mm::mremap_fixed(own, len, len, MremapFlags::MAYMOVE, shared).is_ok()
    }
}
