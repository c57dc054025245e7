//! The functions of the C library's allocator, for programs that preload this library (LD_PRELOAD): long blocks, and
//! blocks that are aligned to pages, are memory that adapters of the same machine can map. Peers then reach a program's
//! registered memory directly.
//!
//! The memory comes from `hca-ibverbs`, which calls [`hca_heap_use`] once it has a device. Until then, and for all other
//! blocks, the C library's allocator answers. A block goes back to where it came from.
//!
//! | block | from |
//! |---|---|
//! | 128 KiB to 256 MiB, or aligned to 4 KiB and more | `hca-ibverbs`; where that has no more, the C library |
//! | others | the C library |
//!
//! Invariants of the unsafe code:
//!
//! 1. Callers keep the contracts of the C library's functions.
//! 2. The functions of a [`Source`] are set once, all together, before `SOURCE` is shown, and stay.
//! 3. A block of a source begins at a page, is zeroed, and has at least the bytes that were asked for.
#![allow(unsafe_code)]
// The unit tests have the C library's own functions.
#![cfg_attr(test, allow(dead_code))]

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;
/// From here on the C library maps blocks of their own, too.
const LONG: usize = 128 << 10;
/// The longest block: all pages of a block are there from the beginning.
const MAX: usize = 256 << 20;

/// A source of memory that peers can map.
#[repr(C)]
#[derive(Debug)]
pub struct Source {
    /// A new block; null if there is none.
    pub alloc: extern "C" fn(usize) -> *mut c_void,
    /// Takes a block back; 0 if it is none of the source's.
    pub free: extern "C" fn(*mut c_void) -> c_int,
    /// The bytes of a block; 0 if it is none of the source's.
    pub len: extern "C" fn(*mut c_void) -> usize,
}

/// The source (2); null before there is one.
static SOURCE: AtomicPtr<Source> = AtomicPtr::new(null_mut());
/// Blocks of the source that live: without one, nobody asks it about a block.
static LIVE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The thread is within a call of the source, whose own blocks are the C library's.
    static IS_WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// Names the source of blocks from now on.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn hca_heap_use(source: &'static Source) {
    SOURCE.store(core::ptr::from_ref(source).cast_mut(), Ordering::Release);
}

/// Calls the source, unless there is none, or the call came from it.
fn with_source<T>(call: impl FnOnce(&Source) -> T) -> Option<T> {
    // SAFETY: (2)
    let source = unsafe { SOURCE.load(Ordering::Acquire).as_ref() }?;
    // A thread that ends has no more thread-local values.
    IS_WITHIN.try_with(|within| !within.replace(true)).ok()?.then(|| {
        let result = call(source);
        let _ = IS_WITHIN.try_with(|within| within.set(false));
        result
    })
}

/// Whether a block is to be one that peers can map.
const fn is_shown(len: usize, align: usize) -> bool {
    let wants = len >= LONG || align >= PAGE;
    let aligned = if len >= HUGE { HUGE } else { PAGE };
    wants && len > 0 && len <= MAX && align <= aligned
}

/// A block of the source; null where there is none.
fn block(len: usize, align: usize) -> *mut c_void {
    if !is_shown(len, align) {
        return null_mut();
    }
    let block = with_source(|source| (source.alloc)(len)).unwrap_or(null_mut());
    if !block.is_null() {
        LIVE.fetch_add(1, Ordering::Relaxed);
    }
    block
}
/// The bytes of a block of the source; 0 for a block of the C library.
fn len_of(block: *mut c_void) -> usize {
    // Every block of a source begins at a page; few others do.
    if block.is_null() || !block.addr().is_multiple_of(PAGE) || LIVE.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    with_source(|source| (source.len)(block)).unwrap_or(0)
}
/// Gives a block back to the source; whether it was one of its own.
fn is_taken_back(block: *mut c_void) -> bool {
    if block.is_null() || !block.addr().is_multiple_of(PAGE) || LIVE.load(Ordering::Relaxed) == 0 {
        return false;
    }
    // `free` leaves the error number of an earlier call as it was.
    // SAFETY: the location is the calling thread's own, for as long as the thread runs.
    let (error, before) = unsafe {
        let error = libc::__errno_location();
        (error, *error)
    };
    let is_taken = with_source(|source| (source.free)(block)).is_some_and(|own| own != 0);
    // SAFETY: as above.
    unsafe { *error = before };
    if is_taken {
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
    is_taken
}

/// The C library's functions, by the names under which it has them beside the public ones.
mod c {
    use super::c_void;
    unsafe extern "C" {
        pub(super) fn __libc_malloc(len: usize) -> *mut c_void;
        pub(super) fn __libc_calloc(count: usize, len: usize) -> *mut c_void;
        pub(super) fn __libc_realloc(block: *mut c_void, len: usize) -> *mut c_void;
        pub(super) fn __libc_memalign(align: usize, len: usize) -> *mut c_void;
        pub(super) fn __libc_free(block: *mut c_void);
    }
}

/// The functions that take the C library's place.
#[cfg(not(test))]
mod calls {
    use super::{PAGE, block, c, c_int, c_void, is_taken_back, len_of, null_mut};

    #[unsafe(no_mangle)]
    unsafe extern "C" fn malloc(len: usize) -> *mut c_void {
        let shown = block(len, 1);
        // SAFETY: (1)
        if shown.is_null() { unsafe { c::__libc_malloc(len) } } else { shown }
    }
    #[unsafe(no_mangle)]
    unsafe extern "C" fn calloc(count: usize, len: usize) -> *mut c_void {
        // A block of the source is zeroed (3).
        let shown = count.checked_mul(len).map_or(null_mut(), |len| block(len, 1));
        // SAFETY: (1)
        if shown.is_null() { unsafe { c::__libc_calloc(count, len) } } else { shown }
    }
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memalign(align: usize, len: usize) -> *mut c_void {
        let shown = block(len, align);
        // SAFETY: (1)
        if shown.is_null() { unsafe { c::__libc_memalign(align, len) } } else { shown }
    }
    #[unsafe(no_mangle)]
    unsafe extern "C" fn aligned_alloc(align: usize, len: usize) -> *mut c_void {
        // SAFETY: (1)
        unsafe { memalign(align, len) }
    }
    #[unsafe(no_mangle)]
    unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, align: usize, len: usize) -> c_int {
        if !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
            return libc::EINVAL;
        }
        // SAFETY: (1)
        let block = unsafe { memalign(align, len) };
        if block.is_null() {
            return libc::ENOMEM;
        }
        // SAFETY: (1)
        unsafe { to.write(block) };
        0
    }
    #[unsafe(no_mangle)]
    unsafe extern "C" fn valloc(len: usize) -> *mut c_void {
        // SAFETY: (1)
        unsafe { memalign(PAGE, len) }
    }
    #[unsafe(no_mangle)]
    unsafe extern "C" fn pvalloc(len: usize) -> *mut c_void {
        let Some(len) = len.checked_next_multiple_of(PAGE) else { return null_mut() };
        // SAFETY: (1)
        unsafe { memalign(PAGE, len.max(PAGE)) }
    }
    #[unsafe(no_mangle)]
    unsafe extern "C" fn realloc(old: *mut c_void, len: usize) -> *mut c_void {
        let has = len_of(old);
        if has == 0 {
            // SAFETY: (1)
            return unsafe { c::__libc_realloc(old, len) };
        }
        if len <= has && len > has / 2 {
            return old;
        }
        if len == 0 {
            is_taken_back(old);
            return null_mut();
        }
        // SAFETY: (1)
        let new = unsafe { malloc(len) };
        if !new.is_null() {
            // SAFETY: both blocks have so many bytes, and are different ones.
            unsafe { core::ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast(), has.min(len)) };
            is_taken_back(old);
        }
        new
    }
    #[unsafe(no_mangle)]
    unsafe extern "C" fn reallocarray(old: *mut c_void, count: usize, len: usize) -> *mut c_void {
        let Some(len) = count.checked_mul(len) else {
            // SAFETY: the location is the calling thread's own.
            unsafe { *libc::__errno_location() = libc::ENOMEM };
            return null_mut();
        };
        // SAFETY: (1)
        unsafe { realloc(old, len) }
    }
    #[unsafe(no_mangle)]
    unsafe extern "C" fn free(block: *mut c_void) {
        if !is_taken_back(block) {
            // SAFETY: (1): a block of the C library, or null.
            unsafe { c::__libc_free(block) };
        }
    }
    #[unsafe(no_mangle)]
    unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
        let has = len_of(block);
        if has != 0 || block.is_null() {
            return has;
        }
        // SAFETY: the name ends with a zero.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"malloc_usable_size".as_ptr()) };
        // SAFETY: the C library's function of this type.
        let next =
            unsafe { core::mem::transmute::<*mut c_void, Option<extern "C" fn(*mut c_void) -> usize>>(next) };
        next.map_or(0, |next| next(block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn alloc(len: usize) -> *mut c_void {
        // SAFETY: a multiple of pages.
        unsafe { c::__libc_memalign(PAGE, len) }
    }
    extern "C" fn free(block: *mut c_void) -> c_int {
        // SAFETY: the location is the calling thread's own, and the block is one of the above.
        unsafe {
            *libc::__errno_location() = libc::EINVAL;
            c::__libc_free(block);
        }
        1
    }
    extern "C" fn len(_: *mut c_void) -> usize {
        LONG
    }

    #[test]
    fn a_block_that_goes_leaves_the_error_number_of_an_earlier_call() {
        static OWN: Source = Source { alloc, free, len };
        hca_heap_use(&OWN);
        let shown = block(LONG, 1);
        assert!(!shown.is_null());
        // SAFETY: the location is this thread's own.
        unsafe { *libc::__errno_location() = libc::EAGAIN };
        assert!(is_taken_back(shown));
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN));
    }

    #[test]
    fn long_blocks_and_aligned_ones_are_shown() {
        for (len, align) in [(LONG, 1), (1, PAGE), (MAX, 16), (HUGE, HUGE)] {
            assert!(is_shown(len, align), "{len} {align}");
        }
        for (len, align) in [(LONG - 1, 64), (0, PAGE), (MAX + 1, 1), (HUGE - 1, HUGE), (LONG, 2 * PAGE)] {
            assert!(!is_shown(len, align), "{len} {align}");
        }
    }
}
