//! Where faults are not resumed: other processors and C libraries, and Miri. A fault ends the program.

/// The assembly of accesses, without entries for their faults.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! survivable {
    (dropped: $($line:expr),+) => { concat!($($line, "\n",)+) };
    ($kind:ident: $line:expr, $clear:expr) => { $line };
}
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) use survivable;

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) fn lose() {}

/// `false`: no bytes are lost here.
#[inline(always)]
pub fn has_lost() -> bool {
    false
}

/// `false`: a fault ends the program.
pub fn survives() -> bool {
    false
}

/// Does nothing here: a fault ends the program.
pub fn survive() {}

/// `None`: writers can't be held here.
///
/// # Safety
/// None is needed.
#[allow(unsafe_code)] // the signature, which is that of other processors
pub unsafe fn hold_writers<T>(_: core::ptr::NonNull<u8>, _: usize, _: impl FnOnce() -> T) -> Option<T> {
    None
}
