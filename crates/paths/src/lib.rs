//! Leads paths below `/sys/class/infiniband`, `/sys/class/infiniband_verbs`, `/sys/class/infiniband_cm` and
//! `/dev/infiniband` to a tree of files, for programs that preload this library (LD_PRELOAD). The environment variable
//! `HCA_PATHS` names the tree; without it nothing changes.
//!
//! Each function here has the name of one of the C library, and calls that one with the same arguments but for the path.
//!
//! | not led | why |
//! |---|---|
//! | relative paths | a program that changes to a folder of `/sys` is not known |
//! | system calls without the C library | static programs, and those of Go |
//!
//! Invariants of the unsafe code:
//!
//! 1. A path is null or ends with a zero, as the functions of the C library demand of their callers.
//! 2. The function behind a name has that name's type: the C library's own, found by `dlsym`.
#![allow(unsafe_code)]
// The names are those of the C library, which documents them.
#![allow(missing_docs, clippy::missing_safety_doc)]

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::{MaybeUninit, transmute};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use libc::{DIR, FILE, mode_t, size_t, ssize_t};

/// The folders that are led.
const LED: [&[u8]; 4] = [
    b"/sys/class/infiniband",
    b"/sys/class/infiniband_verbs",
    b"/sys/class/infiniband_cm",
    b"/dev/infiniband",
];
/// The environment variable with the folder of the tree.
pub const TREE_VARIABLE: &str = "HCA_PATHS";
/// The longest path, with its zero.
const MAX_PATH: usize = libc::PATH_MAX as usize;

/// The folder of the tree, as the environment of the process's beginning had it.
fn tree() -> Option<&'static [u8]> {
    static TREE: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    let read =
        || std::env::var_os(TREE_VARIABLE).map(|tree| tree.as_bytes().to_vec()).filter(|t| !t.is_empty());
    TREE.get_or_init(read).as_deref()
}

/// Whether a path is one of the folders, or below.
fn is_led(path: &[u8]) -> bool {
    LED.iter().any(|folder| path.strip_prefix(*folder).is_some_and(|rest| rest.is_empty() || rest[0] == b'/'))
}

/// Room for a path that is led elsewhere.
struct Room(MaybeUninit<[u8; MAX_PATH]>);

impl Room {
    /// The path to use in the place of another one.
    ///
    /// # Safety
    /// Invariant 1.
    unsafe fn lead(&mut self, path: *const c_char) -> *const c_char {
        // Most paths are told by their first bytes.
        if path.is_null() {
            return path;
        }
        // SAFETY: it ends with a zero.
        let asked = unsafe { CStr::from_ptr(path) }.to_bytes();
        if !is_led(asked) {
            return path;
        }
        let Some(tree) = tree() else { return path };
        let len = tree.len() + asked.len();
        if len >= MAX_PATH {
            return path;
        }
        let room = self.0.as_mut_ptr().cast::<u8>();
        // SAFETY: `len` and one more byte fit; the room is this function's alone.
        unsafe {
            room.copy_from_nonoverlapping(tree.as_ptr(), tree.len());
            room.add(tree.len()).copy_from_nonoverlapping(asked.as_ptr(), asked.len());
            room.add(len).write(0);
        }
        room.cast_const().cast()
    }
}

/// The function of the C library with this name; null if it has none.
fn next(slot: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let mut found = slot.load(Ordering::Acquire);
    if found.is_null() {
        // SAFETY: a name that ends with a zero.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        slot.store(found, Ordering::Release);
    }
    found
}

/// What a function returns where the C library has none of its name.
trait Missing {
    fn missing() -> Self;
}
impl Missing for c_int {
    fn missing() -> Self {
        -1
    }
}
impl Missing for ssize_t {
    fn missing() -> Self {
        -1
    }
}
impl<T> Missing for *mut T {
    fn missing() -> Self {
        null_mut()
    }
}

/// Defines functions of the C library: the arguments in front of the path, the path, and those behind it.
macro_rules! led {
    ($(fn $name:ident($($before:ident: $of:ty,)* @$path:ident $(, $arg:ident: $kind:ty)*) -> $ret:ty;)*) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($before: $of,)* $path: *const c_char $(, $arg: $kind)*) -> $ret {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without a zero"),
            };
            let found = next(&NEXT, NAME);
            if found.is_null() {
                // SAFETY: the thread's own number.
                unsafe { *libc::__errno_location() = libc::ENOSYS };
                return Missing::missing();
            }
            let mut room = Room(MaybeUninit::uninit());
            // SAFETY: invariants 1 and 2.
            unsafe {
                let call: unsafe extern "C" fn($($of,)* *const c_char $(, $kind)*) -> $ret = transmute(found);
                call($($before,)* room.lead($path) $(, $arg)*)
            }
        }
    )*};
}

// `open` and its siblings are called with a mode or without: the argument is passed on as it came.
led! {
    fn open(@path, flags: c_int, mode: mode_t) -> c_int;
    fn open64(@path, flags: c_int, mode: mode_t) -> c_int;
    fn __open_2(@path, flags: c_int) -> c_int;
    fn __open64_2(@path, flags: c_int) -> c_int;
    fn openat(dir: c_int, @path, flags: c_int, mode: mode_t) -> c_int;
    fn openat64(dir: c_int, @path, flags: c_int, mode: mode_t) -> c_int;
    fn __openat_2(dir: c_int, @path, flags: c_int) -> c_int;
    fn __openat64_2(dir: c_int, @path, flags: c_int) -> c_int;
    fn fopen(@path, mode: *const c_char) -> *mut FILE;
    fn fopen64(@path, mode: *const c_char) -> *mut FILE;
    fn chdir(@path) -> c_int;
    fn opendir(@path) -> *mut DIR;
    fn scandir(@path, list: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int;
    fn scandir64(@path, list: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int;
    fn access(@path, mode: c_int) -> c_int;
    fn eaccess(@path, mode: c_int) -> c_int;
    fn euidaccess(@path, mode: c_int) -> c_int;
    fn faccessat(dir: c_int, @path, mode: c_int, flags: c_int) -> c_int;
    fn stat(@path, into: *mut c_void) -> c_int;
    fn stat64(@path, into: *mut c_void) -> c_int;
    fn lstat(@path, into: *mut c_void) -> c_int;
    fn lstat64(@path, into: *mut c_void) -> c_int;
    fn fstatat(dir: c_int, @path, into: *mut c_void, flags: c_int) -> c_int;
    fn fstatat64(dir: c_int, @path, into: *mut c_void, flags: c_int) -> c_int;
    fn __xstat(version: c_int, @path, into: *mut c_void) -> c_int;
    fn __xstat64(version: c_int, @path, into: *mut c_void) -> c_int;
    fn __lxstat(version: c_int, @path, into: *mut c_void) -> c_int;
    fn __lxstat64(version: c_int, @path, into: *mut c_void) -> c_int;
    fn __fxstatat(version: c_int, dir: c_int, @path, into: *mut c_void, flags: c_int) -> c_int;
    fn __fxstatat64(version: c_int, dir: c_int, @path, into: *mut c_void, flags: c_int) -> c_int;
    fn statx(dir: c_int, @path, flags: c_int, mask: c_uint, into: *mut c_void) -> c_int;
    fn readlink(@path, into: *mut c_char, len: size_t) -> ssize_t;
    fn __readlink_chk(@path, into: *mut c_char, len: size_t, room: size_t) -> ssize_t;
    fn readlinkat(dir: c_int, @path, into: *mut c_char, len: size_t) -> ssize_t;
    fn realpath(@path, into: *mut c_char) -> *mut c_char;
    fn __realpath_chk(@path, into: *mut c_char, room: size_t) -> *mut c_char;
    fn canonicalize_file_name(@path) -> *mut c_char;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_folders_of_devices_are_led() {
        for path in
            ["/sys/class/infiniband", "/sys/class/infiniband/", "/sys/class/infiniband/rxe0/ports/1/state"]
        {
            assert!(is_led(path.as_bytes()), "{path}");
        }
        assert!(is_led(b"/dev/infiniband/uverbs0") && is_led(b"/sys/class/infiniband_verbs/abi_version"));
        for path in ["/sys/class/infinibandx", "/sys/class/net", "/dev/infiniban", "", "sys/class/infiniband"]
        {
            assert!(!is_led(path.as_bytes()), "{path}");
        }
    }
}
