//! The shared object, as programs load it.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::LazyLock;

/// The shared object, which cargo builds beside the tests.
pub(crate) fn path() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libhca_ibverbs.so")
}

/// The handle of the loaded object, which only [`close`] closes.
static LOADED: LazyLock<usize> = LazyLock::new(|| {
    let path = CString::new(path().into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: the path ends with a zero, and the object's constructors are those of Rust's library.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null(), "{path:?} is not loaded: build hca-ibverbs");
    handle as usize
});

/// The address of a function in a version node.
pub(crate) fn symbol(name: &str, node: &str) -> Option<usize> {
    let (name, node) = (CString::new(name).unwrap(), CString::new(node).unwrap());
    // SAFETY: the handle is open for ever, and both texts end with a zero.
    let found = unsafe { libc::dlvsym(*LOADED as *mut _, name.as_ptr(), node.as_ptr()) };
    (!found.is_null()).then_some(found as usize)
}

/// Closes the handle, as a program does that is done with the library.
#[allow(dead_code)] // in some tests
pub(crate) fn close() {
    // SAFETY: a handle that is open; the object asks not to be unloaded.
    assert_eq!(unsafe { libc::dlclose(*LOADED as *mut _) }, 0);
}
