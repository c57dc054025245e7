//! Forked children have copies of memory that their parents share with peers, as they have of other memory. The kernel
//! makes none of memory that is mapped by several: the child makes them itself, before `fork` returns in either of
//! both.
//!
//! Invariants:
//! 1. From [`before`] to [`in_parent`] or [`in_child`] one thread holds the locks of [`MEMORY`] and [`BLOCKS`], and no
//!    other reaches a [`Held`]. That thread runs the program's own handlers in between, which may register memory, take
//!    some and give it back.
#![allow(unsafe_code)]

use core::cell::{Cell, UnsafeCell};
use core::ffi::c_void;
use core::ptr::null_mut;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, Once};

use hca_process::{Backing, Mapping, without_signals};
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

/// A value that the thread which forks holds (1); `None` where no thread forks.
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
/// The parent's socket and the child's, which the child writes to once it has its copies.
pub(crate) type Ends = (UnixStream, UnixStream);
/// That of the present child, if there is anything to copy.
static ENDS: Held<Ends> = Held::none();

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
/// Reaches the memory of regions. Within, memory of malloc may be taken and given back. A handler of a signal may fork,
/// so it waits.
pub(crate) fn with_memory<R>(reach: impl FnOnce(&mut Memory) -> R) -> R {
    without_signals(|| with(&MEMORY, &HELD_MEMORY, reach))
}
/// Reaches the blocks of malloc.
pub(crate) fn with_blocks<R>(reach: impl FnOnce(&mut Blocks) -> R) -> R {
    with(&BLOCKS, &HELD_BLOCKS, reach)
}

pub(crate) extern "C" fn before() {
    let mut memory = lock(&MEMORY);
    let blocks = lock(&BLOCKS);
    let is_any = memory.is_any_moved() || blocks.values().any(|block| matches!(block, Block::Shared(_)));
    let ends = memory.for_child.take();
    HELD_MEMORY.set(Some(memory));
    HELD_BLOCKS.set(Some(blocks));
    FORKS.set(true);
    ENDS.set(if is_any { ends.or_else(|| UnixStream::pair().ok()) } else { None });
}
pub(crate) extern "C" fn in_parent() {
    let ends = ENDS.set(None);
    FORKS.set(false);
    let mut memory = HELD_MEMORY.set(None);
    let _blocks = HELD_BLOCKS.set(None);
    if let Some((mut from_child, to_parent)) = ends {
        drop(to_parent);
        // A byte of the child's, or the end of the socket: the child is gone, or there is none.
        let _ = from_child.read_exact(&mut [0]);
    }
    if let Some(memory) = memory.as_mut().filter(|memory| memory.is_any_moved()) {
        memory.has_ends();
    }
}
extern "C" fn in_child() {
    // The first end leaves a descriptor to look for the places with.
    let to_parent = ENDS.set(None).map(|(_, to_parent)| to_parent);
    with_memory(|memory| {
        if memory.is_any_moved() {
            // Without a socket the parent does not wait.
            let places = memory.places().ok().filter(|_| to_parent.is_some());
            let Some(places) = places else {
                end(b"hca: no descriptor for a child's copy of its parent's\n")
            };
            places.iter().for_each(copy);
        }
        *memory = memory.of_child();
    });
    with_blocks(|blocks| {
        for (at, block) in blocks.iter_mut() {
            if matches!(block, Block::Shared(_)) {
                let rights = libc::PROT_READ | libc::PROT_WRITE;
                let backing = Backing::Other;
                copy(&Mapping { range: *at..*at + block.len(), rights, is_shared: true, backing });
            }
            *block = Block::Private(block.len());
        }
    });
    FORKS.set(false);
    let _held = (HELD_MEMORY.set(None), HELD_BLOCKS.set(None));
    if let Some(to_parent) = to_parent {
        // SAFETY: one byte. A parent that is gone raises no signal.
        unsafe { libc::send(to_parent.as_raw_fd(), c"".as_ptr().cast(), 1, libc::MSG_NOSIGNAL) };
    }
}
fn copy(place: &Mapping) {
    if !make_own(place) {
        end(b"hca: no memory for a child's copy of its parent's\n");
    }
}
/// Ends a child that would have its parent's memory.
fn end(words: &[u8]) -> ! {
    // SAFETY: as many bytes as there are.
    unsafe { libc::write(libc::STDERR_FILENO, words.as_ptr().cast(), words.len()) };
    std::process::abort();
}

/// Puts private memory with the same bytes and rights in the place of shared one, in which nobody writes meanwhile;
/// whether there was memory for it.
pub(crate) fn make_own(place: &Mapping) -> bool {
    let (shared, len) =
        (core::ptr::with_exposed_provenance_mut::<c_void>(place.range.start), place.range.len());
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory, which then takes the place of the other one, whose owners are the callers' modules.
    unsafe {
        if place.rights & libc::PROT_READ == 0 && libc::mprotect(shared, len, libc::PROT_READ) != 0 {
            return false;
        }
        let Ok(own) = rustix::mm::mmap_anonymous(null_mut(), len, prot, MapFlags::PRIVATE) else {
            return false;
        };
        core::ptr::copy_nonoverlapping(shared.cast::<u8>(), own.cast(), len);
        let is_there = rustix::mm::mremap_fixed(own, len, len, MremapFlags::MAYMOVE, shared).is_ok();
        let is_both = place.rights == libc::PROT_READ | libc::PROT_WRITE;
        is_there && (is_both || libc::mprotect(shared, len, place.rights) == 0)
    }
}
