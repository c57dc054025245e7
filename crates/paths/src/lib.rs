//! Leads paths below `/sys/class/infiniband`, `/sys/class/infiniband_verbs`, `/sys/class/infiniband_cm` and
//! `/dev/infiniband` to a tree of files, for programs that preload this library (LD_PRELOAD). The environment variable
//! `HCA_PATHS` names the tree; without it nothing changes.
//!
//! Each function here has the name of one of the C library, and calls that one with the same arguments but for the path.
//! A device's file is a link in the tree. The program is told of no link, by `readdir` neither, and `realpath` answers
//! with the name that the program knows. A counter's file gets its present value first (`counters`).
//!
//! | not led | why |
//! |---|---|
//! | relative paths | a program that changes to a folder of `/sys` is not known |
//! | patterns of `glob`, walks of `nftw` | the C library opens what they name by itself |
//! | the kinds of devices' files in lists of `scandir` | the C library reads the folder by itself |
//! | system calls without the C library | static programs, and those of Go: `hca exec --namespace` is for them |
//!
//! `_exit` calls what a library has left to do first (`end`).
//!
//! Invariants of the unsafe code:
//!
//! 1. A path is null or ends with a zero, as the functions of the C library demand of their callers.
//! 2. `Next` has the address of the C library's function of the same name and so of the same type.
//! 3. The tree's name is set once, and its memory stays.
//! 4. `errno` changes by the C library's function alone.
#![allow(unsafe_code)]
// The unit tests have the C library's own functions.
#![cfg_attr(test, allow(dead_code))]

mod counters;
mod end;

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::{MaybeUninit, transmute};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The environment variable that names the tree's folder.
const TREE_VARIABLE: &CStr = c"HCA_PATHS";
/// The most bytes of a path, with the zero behind it.
const PATH_BYTES: usize = libc::PATH_MAX as usize;
/// The most parts of a path that is led.
const MAX_PARTS: usize = 32;
/// Folders that are led, by their parts.
const FOLDERS: [&[&[u8]]; 4] = [
    &[b"sys", b"class", b"infiniband"],
    &[b"sys", b"class", b"infiniband_verbs"],
    &[b"sys", b"class", b"infiniband_cm"],
    &[b"dev", b"infiniband"],
];

type Path = *const c_char;

/// Where a path is led to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nowhere: it is another path.
    Elsewhere,
    /// A file of attributes.
    Attribute,
    /// A device's file: the tree has links that stand for it.
    Device,
}

/// The C library's function of a name.
struct Next {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}
impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, at: AtomicPtr::new(null_mut()) }
    }
    #[inline]
    fn get(&self) -> *mut c_void {
        let at = self.at.load(Ordering::Relaxed);
        if at.is_null() { self.find() } else { at }
    }
    #[cold]
    fn find(&self) -> *mut c_void {
        let at = keeping_errno(|| {
            // SAFETY: the name ends with a zero.
            unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) }
        });
        assert!(!at.is_null(), "the C library has no {:?}", self.name);
        self.at.store(at, Ordering::Relaxed);
        at
    }
}

fn keeping_errno<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: the location is the calling thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let result = call();
    // SAFETY: as above.
    unsafe { *errno = before };
    result
}

/// The tree's folder (3); empty where there is none.
///
/// Nothing is allocated: an allocator may open files as it begins, before the constructor has asked, and would wait for
/// itself.
fn tree() -> &'static CStr {
    static TREE: AtomicPtr<c_char> = AtomicPtr::new(null_mut());
    static IS_SOUGHT: AtomicBool = AtomicBool::new(false);
    static NAME: Name = Name(UnsafeCell::new([0; PATH_BYTES]));
    #[cold]
    fn find() -> *mut c_char {
        if IS_SOUGHT.swap(true, Ordering::Relaxed) {
            // Another call copies the name, which is so early that no program looks for devices yet.
            return c"".as_ptr().cast_mut();
        }
        let found = keeping_errno(|| {
            // SAFETY: the name ends with a zero. The program's other threads do not change its environment yet: the
            // constructor has asked.
            let told = unsafe { libc::getenv(TREE_VARIABLE.as_ptr()) };
            // Another machine's processes inherit the name, and not the tree.
            // SAFETY: the value ends with a zero.
            let is_there = !told.is_null()
                && unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, told, libc::X_OK) } == 0;
            // SAFETY: the value ends with a zero.
            let name = if is_there { unsafe { CStr::from_ptr(told) } } else { c"" }.to_bytes_with_nul();
            let to = NAME.0.get().cast::<c_char>();
            // The kernel has taken it for a path.
            assert!(name.len() <= PATH_BYTES);
            // SAFETY: this thread alone is here, and there is room.
            unsafe { core::ptr::copy_nonoverlapping(name.as_ptr().cast(), to, name.len()) };
            to
        });
        TREE.store(found, Ordering::Release);
        found
    }
    let known = TREE.load(Ordering::Acquire);
    let at = if known.is_null() { find() } else { known };
    // SAFETY: (3): a text that ends with a zero.
    unsafe { CStr::from_ptr(at) }
}
/// Room for the name of the tree, which is written once, before its address is shown (3).
struct Name(UnsafeCell<[c_char; PATH_BYTES]>);
// SAFETY: as above.
unsafe impl Sync for Name {}

/// Looks the tree up before the program runs, as its environment and its signal handlers may be in the way later.
extern "C" fn prepare() {
    if !tree().is_empty() {
        calls::NEXT.iter().for_each(|next| _ = next.get());
    }
}
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = prepare;

/// Calls `call` with the path, or with the path in the tree.
#[inline]
fn led<T>(path: Path, call: impl Fn(Path, Place) -> T) -> T {
    if path.is_null() || tree().is_empty() {
        return call(path, Place::Elsewhere);
    }
    // SAFETY: (1)
    let text = unsafe { CStr::from_ptr(path) }.to_bytes();
    if !text.starts_with(b"/") {
        return call(path, Place::Elsewhere);
    }
    let mut room = [const { MaybeUninit::uninit() }; PATH_BYTES];
    match in_tree(text, tree().to_bytes(), &mut room) {
        Some((led, place)) => call(led.as_ptr(), place),
        None => call(path, Place::Elsewhere),
    }
}

/// The path in the tree, for one of a folder that is led; or the path that `..` leads to from there. `..` is taken by
/// the names alone, as no folder of the tree is a link.
fn in_tree<'a>(
    text: &[u8],
    tree: &[u8],
    room: &'a mut [MaybeUninit<u8>; PATH_BYTES],
) -> Option<(&'a CStr, Place)> {
    let mut parts: [&[u8]; MAX_PARTS] = [b""; MAX_PARTS];
    let (mut count, mut was_led, mut folder) = (0_usize, false, None);
    for part in text.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")) {
        if part == b".." {
            if !was_led {
                return None;
            }
            count = count.saturating_sub(1);
        } else {
            *parts.get_mut(count)? = part;
            count += 1;
        }
        folder = FOLDERS.into_iter().find(|folder| parts[..count].starts_with(folder));
        was_led |= folder.is_some();
    }
    if !was_led {
        return None;
    }
    let mut used = 0;
    let mut put = |bytes: &[u8]| {
        room.get_mut(used..used + bytes.len())?.write_copy_of_slice(bytes);
        used += bytes.len();
        Some(())
    };
    put(if folder.is_some() { tree } else { b"" })?;
    for part in &parts[..count] {
        put(b"/")?;
        put(part)?;
    }
    if text.ends_with(b"/") || count == 0 {
        put(b"/")?;
    }
    put(b"\0")?;
    // SAFETY: the first `used` bytes are written.
    let bytes = unsafe { core::slice::from_raw_parts(room.as_ptr().cast(), used) };
    if folder.is_some() {
        keeping_errno(|| counters::refresh(tree, &parts[..count]));
    }
    let place = match folder {
        Some(folder) if folder[0] == b"dev" && count > folder.len() => Place::Device,
        Some(_) => Place::Attribute,
        None => Place::Elsewhere,
    };
    Some((CStr::from_bytes_with_nul(bytes).ok()?, place))
}

/// The program's name for a path, from a real one: without the tree's folder in front.
fn without_tree(real: *mut c_char) -> *mut c_char {
    if real.is_null() || tree().is_empty() {
        return real;
    }
    // SAFETY: the C library's result ends with a zero.
    let text = unsafe { CStr::from_ptr(real) }.to_bytes_with_nul();
    if let Some(rest) = text.strip_prefix(tree().to_bytes()).filter(|rest| rest.starts_with(b"/")) {
        // SAFETY: both lie in the result, which is the program's or new; the bytes move to its start.
        unsafe { core::ptr::copy(rest.as_ptr(), real.cast(), rest.len()) };
    }
    real
}

/// The functions. Those with optional arguments take all of them: the calling convention passes them alike.
mod calls {
    use super::*;

    type Stat = *mut c_void;
    type Dir = *mut libc::DIR;
    type File = *mut libc::FILE;

    macro_rules! functions {
        ($(fn $name:ident $next:ident($($arg:ident: $t:ty),*) -> $ret:ty $body:block)*) => {
            /// The C library's functions.
            pub(super) static NEXT: [&Next; [$(stringify!($name)),*].len()] = [$(&$name::NEXT),*];
            $(
                mod $name {
                    pub(super) static NEXT: super::Next = super::Next::new(
                        match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => unreachable!(),
                        },
                    );
                }
                #[cfg_attr(not(test), unsafe(no_mangle))]
                extern "C" fn $name($($arg: $t),*) -> $ret {
                    // SAFETY: (2)
                    let $next: unsafe extern "C" fn($($t),*) -> $ret = unsafe { transmute($name::NEXT.get()) };
                    $body
                }
            )*
        };
    }
    /// A call of the C library's function, whose contract the program keeps.
    macro_rules! call {
        ($next:ident($($arg:expr),*)) => {
            // SAFETY: (1), (2): the program's arguments, with a path that is as good.
            unsafe { $next($($arg),*) }
        };
    }
    /// Without the flag that asks for a link itself, where links stand for devices.
    fn follow(flags: c_int, place: Place) -> c_int {
        if place == Place::Device { flags & !libc::AT_SYMLINK_NOFOLLOW } else { flags }
    }
    /// The same of the flags of `open`.
    fn opened(flags: c_int, place: Place) -> c_int {
        if place == Place::Device { flags & !libc::O_NOFOLLOW } else { flags }
    }
    /// The program's name for a device's file of the tree, if it is there: in `to`, or in new memory.
    fn name_of_device(path: Path, to: *mut c_char) -> *mut c_char {
        if access(path, libc::F_OK) != 0 {
            return null_mut();
        }
        // SAFETY: (1): a path in the tree, without links on the way and without `..`.
        let text = unsafe { CStr::from_ptr(path) };
        let name = &text.to_bytes_with_nul()[tree().count_bytes()..];
        if to.is_null() {
            // SAFETY: it ends with a zero.
            return unsafe { libc::strdup(name.as_ptr().cast()) };
        }
        // SAFETY: (1): the program has room for the longest path.
        unsafe { core::ptr::copy_nonoverlapping(name.as_ptr().cast(), to, name.len()) };
        to
    }
    /// An entry that was read of a folder: the links of the devices' folder stand for devices.
    fn no_links(of: Dir, entry: *mut libc::dirent) -> *mut libc::dirent {
        const _: () = assert!(size_of::<libc::dirent>() == size_of::<libc::dirent64>());
        if entry.is_null() || tree().is_empty() {
            return entry;
        }
        // No reference: an entry is as long as its name.
        // SAFETY: an entry that is there until the next call, and that no other thread has.
        let kind = unsafe { &raw mut (*entry).d_type };
        // SAFETY: as above.
        if unsafe { *kind } == libc::DT_LNK && keeping_errno(|| is_of_devices(of)) {
            // SAFETY: as above.
            unsafe { *kind = libc::DT_CHR };
        }
        entry
    }
    /// Whether a folder is that of the devices.
    fn is_of_devices(folder: Dir) -> bool {
        let mut room = [const { MaybeUninit::uninit() }; PATH_BYTES];
        let Some((path, _)) = in_tree(b"/dev/infiniband", tree().to_bytes(), &mut room) else { return false };
        let stat = |look: &dyn Fn(*mut libc::stat) -> c_int| {
            let mut found = MaybeUninit::uninit();
            // SAFETY: it is filled in where the look is a success.
            (look(found.as_mut_ptr()) == 0).then(|| unsafe { found.assume_init() })
        };
        // SAFETY: a folder that is open, and room for its attributes.
        let own = stat(&|to| unsafe { libc::fstat(libc::dirfd(folder), to) });
        let devices = stat(&|to| stat64(path.as_ptr(), to.cast()));
        own.zip(devices)
            .is_some_and(|(own, devices)| (own.st_dev, own.st_ino) == (devices.st_dev, devices.st_ino))
    }
    /// What `readlink` answers of a file that is no link.
    fn no_link() -> isize {
        // SAFETY: the location is the calling thread's own.
        unsafe { *libc::__errno_location() = libc::EINVAL };
        -1
    }

    functions! {
        fn open next(path: Path, flags: c_int, mode: c_uint) -> c_int { led(path, |path, place| call!(next(path, opened(flags, place), mode))) }
        fn open64 next(path: Path, flags: c_int, mode: c_uint) -> c_int { led(path, |path, place| call!(next(path, opened(flags, place), mode))) }
        fn __open_2 next(path: Path, flags: c_int) -> c_int { led(path, |path, place| call!(next(path, opened(flags, place)))) }
        fn __open64_2 next(path: Path, flags: c_int) -> c_int { led(path, |path, place| call!(next(path, opened(flags, place)))) }
        fn openat next(at: c_int, path: Path, flags: c_int, mode: c_uint) -> c_int { led(path, |path, place| call!(next(at, path, opened(flags, place), mode))) }
        fn openat64 next(at: c_int, path: Path, flags: c_int, mode: c_uint) -> c_int { led(path, |path, place| call!(next(at, path, opened(flags, place), mode))) }
        fn __openat_2 next(at: c_int, path: Path, flags: c_int) -> c_int { led(path, |path, place| call!(next(at, path, opened(flags, place)))) }
        fn __openat64_2 next(at: c_int, path: Path, flags: c_int) -> c_int { led(path, |path, place| call!(next(at, path, opened(flags, place)))) }
        fn fopen next(path: Path, mode: Path) -> File { led(path, |path, _| call!(next(path, mode))) }
        fn fopen64 next(path: Path, mode: Path) -> File { led(path, |path, _| call!(next(path, mode))) }
        fn freopen next(path: Path, mode: Path, file: File) -> File { led(path, |path, _| call!(next(path, mode, file))) }
        fn freopen64 next(path: Path, mode: Path, file: File) -> File { led(path, |path, _| call!(next(path, mode, file))) }
        fn opendir next(path: Path) -> Dir { led(path, |path, _| call!(next(path))) }
        fn scandir next(path: Path, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int { led(path, |path, _| call!(next(path, list, filter, order))) }
        fn scandir64 next(path: Path, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int { led(path, |path, _| call!(next(path, list, filter, order))) }
        fn scandirat next(at: c_int, path: Path, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int { led(path, |path, _| call!(next(at, path, list, filter, order))) }
        fn scandirat64 next(at: c_int, path: Path, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int { led(path, |path, _| call!(next(at, path, list, filter, order))) }
        fn readdir next(of: Dir) -> *mut libc::dirent { no_links(of, call!(next(of))) }
        fn readdir64 next(of: Dir) -> *mut libc::dirent64 { no_links(of, call!(next(of)).cast()).cast() }
        fn chdir next(path: Path) -> c_int { led(path, |path, _| call!(next(path))) }
        fn access next(path: Path, mode: c_int) -> c_int { led(path, |path, _| call!(next(path, mode))) }
        fn eaccess next(path: Path, mode: c_int) -> c_int { led(path, |path, _| call!(next(path, mode))) }
        fn euidaccess next(path: Path, mode: c_int) -> c_int { led(path, |path, _| call!(next(path, mode))) }
        fn faccessat next(at: c_int, path: Path, mode: c_int, flags: c_int) -> c_int { led(path, |path, place| call!(next(at, path, mode, follow(flags, place)))) }
        fn stat next(path: Path, to: Stat) -> c_int { led(path, |path, _| call!(next(path, to))) }
        fn stat64 next(path: Path, to: Stat) -> c_int { led(path, |path, _| call!(next(path, to))) }
        fn lstat next(path: Path, to: Stat) -> c_int { led(path, |path, place| if place == Place::Device { stat(path, to) } else { call!(next(path, to)) }) }
        fn lstat64 next(path: Path, to: Stat) -> c_int { led(path, |path, place| if place == Place::Device { stat64(path, to) } else { call!(next(path, to)) }) }
        fn fstatat next(at: c_int, path: Path, to: Stat, flags: c_int) -> c_int { led(path, |path, place| call!(next(at, path, to, follow(flags, place)))) }
        fn fstatat64 next(at: c_int, path: Path, to: Stat, flags: c_int) -> c_int { led(path, |path, place| call!(next(at, path, to, follow(flags, place)))) }
        fn statx next(at: c_int, path: Path, flags: c_int, mask: c_uint, to: Stat) -> c_int { led(path, |path, place| call!(next(at, path, follow(flags, place), mask, to))) }
        fn statfs next(path: Path, to: Stat) -> c_int { led(path, |path, _| call!(next(path, to))) }
        fn statfs64 next(path: Path, to: Stat) -> c_int { led(path, |path, _| call!(next(path, to))) }
        fn statvfs next(path: Path, to: Stat) -> c_int { led(path, |path, _| call!(next(path, to))) }
        fn statvfs64 next(path: Path, to: Stat) -> c_int { led(path, |path, _| call!(next(path, to))) }
        fn readlink next(path: Path, to: *mut c_char, room: usize) -> isize { led(path, |path, place| if place == Place::Device { no_link() } else { call!(next(path, to, room)) }) }
        fn __readlink_chk next(path: Path, to: *mut c_char, room: usize, size: usize) -> isize { led(path, |path, place| if place == Place::Device { no_link() } else { call!(next(path, to, room, size)) }) }
        fn readlinkat next(at: c_int, path: Path, to: *mut c_char, room: usize) -> isize { led(path, |path, place| if place == Place::Device { no_link() } else { call!(next(at, path, to, room)) }) }
        fn __readlinkat_chk next(at: c_int, path: Path, to: *mut c_char, room: usize, size: usize) -> isize { led(path, |path, place| if place == Place::Device { no_link() } else { call!(next(at, path, to, room, size)) }) }
        fn getxattr next(path: Path, name: Path, to: *mut c_void, room: usize) -> isize { led(path, |path, _| call!(next(path, name, to, room))) }
        fn lgetxattr next(path: Path, name: Path, to: *mut c_void, room: usize) -> isize { led(path, |path, place| if place == Place::Device { getxattr(path, name, to, room) } else { call!(next(path, name, to, room)) }) }
        fn listxattr next(path: Path, to: *mut c_char, room: usize) -> isize { led(path, |path, _| call!(next(path, to, room))) }
        fn llistxattr next(path: Path, to: *mut c_char, room: usize) -> isize { led(path, |path, place| if place == Place::Device { listxattr(path, to, room) } else { call!(next(path, to, room)) }) }
        fn realpath next(path: Path, to: *mut c_char) -> *mut c_char { led(path, |path, place| if place == Place::Device { name_of_device(path, to) } else { without_tree(call!(next(path, to))) }) }
        fn __realpath_chk next(path: Path, to: *mut c_char, size: usize) -> *mut c_char { led(path, |path, place| if place == Place::Device && size >= PATH_BYTES { name_of_device(path, to) } else { without_tree(call!(next(path, to, size))) }) }
        fn canonicalize_file_name next(path: Path) -> *mut c_char { led(path, |path, place| if place == Place::Device { name_of_device(path, null_mut()) } else { without_tree(call!(next(path))) }) }
    }

    // Programs that were linked to a C library before 2.33 call these, whose first argument is the structure's version.
    // There is one of it on this architecture.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn __xstat(_: c_int, path: Path, to: Stat) -> c_int {
        stat(path, to)
    }
    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn __xstat64(_: c_int, path: Path, to: Stat) -> c_int {
        stat64(path, to)
    }
    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn __lxstat(_: c_int, path: Path, to: Stat) -> c_int {
        lstat(path, to)
    }
    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn __lxstat64(_: c_int, path: Path, to: Stat) -> c_int {
        lstat64(path, to)
    }
    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn __fxstatat(_: c_int, at: c_int, path: Path, to: Stat, flags: c_int) -> c_int {
        fstatat(at, path, to, flags)
    }
    #[cfg_attr(not(test), unsafe(no_mangle))]
    extern "C" fn __fxstatat64(_: c_int, at: c_int, path: Path, to: Stat, flags: c_int) -> c_int {
        fstatat64(at, path, to, flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn led_to(path: &str) -> Option<(String, bool)> {
        let mut room = [const { MaybeUninit::uninit() }; PATH_BYTES];
        let (path, place) = in_tree(path.as_bytes(), b"/t", &mut room)?;
        Some((path.to_str().unwrap().to_owned(), place == Place::Device))
    }

    #[test]
    fn paths_of_devices_are_led_to_the_tree_and_no_others() {
        for (path, is_device) in [
            ("/sys/class/infiniband", false),
            ("/sys/class/infiniband/hca0/ports/1/state", false),
            ("/sys/class/infiniband_verbs/abi_version", false),
            ("/sys/class/infiniband_cm", false),
            ("/dev/infiniband/", false),
            ("/dev/infiniband/uverbs0", true),
        ] {
            assert_eq!(led_to(path), Some((format!("/t{path}"), is_device)));
        }
        let plain = Some(("/t/sys/class/infiniband/a".to_owned(), false));
        assert_eq!(led_to("//sys/./class//infiniband/a"), plain);
        assert_eq!(led_to("/sys/class/infiniband/b/../a"), plain);
        // Back to where the tree is not.
        assert_eq!(led_to("/sys/class/infiniband/a/../../net"), Some(("/sys/class/net".to_owned(), false)));
        assert_eq!(led_to("/dev/infiniband/../.."), Some(("/".to_owned(), false)));
        for other in ["", "/", "/sys/class", "/sys/class/../class/infiniband"] {
            assert_eq!(led_to(other), None, "{other}");
        }
        for other in
            ["/sys/class/infinibandx", "/dev/null", "/x/../dev/infiniband", "/a/sys/class/infiniband"]
        {
            assert_eq!(led_to(other), None, "{other}");
        }
        assert_eq!(led_to(&format!("/dev/infiniband/{}", "x".repeat(5000))), None, "too long");
        assert_eq!(led_to(&format!("/dev/infiniband{}", "/x".repeat(100))), None, "too deep");
    }
}
