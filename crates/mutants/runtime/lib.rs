//! Linked into the crates whose mutants are judged: tells at run time which mutant is chosen.
//!
//! `MUTANT` names the mutant; without it all code is as it was written. `MUTANT_SEEN` names a file instead, which gets a
//! byte for each place that was reached.
#![feature(const_eval_select, core_intrinsics)]
#![allow(internal_features)]

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

const NONE: u32 = u32::MAX - 2;
const SEEN: u32 = u32::MAX - 1;
const UNREAD: u32 = u32::MAX;

static CHOSEN: AtomicU32 = AtomicU32::new(UNREAD);

/// Which of `count` mutants from `first` on is chosen, from 0; all ones: none of them.
#[inline(always)]
pub const fn of(first: u32, count: u32) -> u32 {
    // What the compiler evaluates has no environment and stays as it was written.
    core::intrinsics::const_eval_select((first, count), never, now)
}

/// Whether this mutant is not chosen.
#[inline(always)]
pub const fn not(mutant: u32) -> bool {
    of(mutant, 1) != 0
}

const fn never(_: u32, _: u32) -> u32 {
    u32::MAX
}

#[inline(always)]
fn now(first: u32, count: u32) -> u32 {
    let chosen = CHOSEN.load(Relaxed);
    if chosen >= SEEN {
        return slow(first, count);
    }
    let at = chosen.wrapping_sub(first);
    if at < count { at } else { u32::MAX }
}

#[cold]
#[inline(never)]
fn slow(first: u32, count: u32) -> u32 {
    if CHOSEN.load(Relaxed) == UNREAD {
        let chosen = std::env::var("MUTANT").ok().and_then(|mutant| mutant.parse().ok());
        let chosen = chosen.unwrap_or(if std::env::var_os("MUTANT_SEEN").is_some() { SEEN } else { NONE });
        CHOSEN.store(chosen, Relaxed);
        return now(first, count);
    }
    if let Some(seen) = seen().get(first as usize) {
        seen.store(1, Relaxed);
    }
    u32::MAX
}

unsafe extern "C" {
    fn mmap(at: *mut c_void, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void;
}

/// The file, mapped: what was reached is in it however the process ends.
fn seen() -> &'static [AtomicU8] {
    static BYTES: OnceLock<&'static [AtomicU8]> = OnceLock::new();
    BYTES.get_or_init(|| {
        let path = std::env::var_os("MUTANT_SEEN").expect("it was there");
        let file = std::fs::File::options().read(true).write(true).open(path).expect("the file of what was reached");
        let len = file.metadata().expect("its length").len() as usize;
        const READ_WRITE: c_int = 3;
        const SHARED: c_int = 1;
        // SAFETY: the kernel chooses where.
        let at = unsafe { mmap(std::ptr::null_mut(), len, READ_WRITE, SHARED, file.as_raw_fd(), 0) };
        assert!(at as isize != -1, "the file of what was reached can't be mapped");
        // SAFETY: `len` bytes that stay mapped until the process ends; all access is atomic.
        unsafe { std::slice::from_raw_parts(at.cast(), len) }
    })
}
