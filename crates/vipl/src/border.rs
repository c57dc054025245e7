//! The border to C: pointers, null, and panics.
//!
//! Invariants:
//! 1. A [`Ptr`] comes from a C program alone, as an argument or in a field of one. It is null, or points to what the
//!    header says of it, which no other thread changes during the call. It need not be aligned.
//! 2. The types behind a [`Ptr`] are plain numbers: any bytes are a value of them.
//! 3. No panic leaves a function with the C calling convention: [`guarded`] catches it.
//! 4. A callback is a function of the header's type, which may be called by any thread until the process ends.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use hca::via::{Error, MemAttributes, Memory, Nic};

use crate::abi::{CErrorDescriptor, Code, Result};
use crate::table::Handle;

/// Defines functions that C programs call. Each returns 0 or the number of a code.
macro_rules! exports {
    ($(fn $name:ident($($arg:ident: $t:ty),* $(,)?) $body:block)*) => {$(
        #[allow(unsafe_code)] // its name alone
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($arg: $t),*) -> u32 {
            $crate::border::guarded(|| $body)
        }
    )*};
}
pub(crate) use exports;

/// Runs a call. A panic, which the panic hook has told on standard error, is an error of a resource. Under the fuzzer
/// it ends the process.
pub(crate) fn guarded(call: impl FnOnce() -> Result) -> u32 {
    #[cfg(any(test, fuzzing))]
    let call = || catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| std::process::abort());
    match catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Code::ErrorResource)) {
        Ok(()) => 0,
        Err(code) => code as u32,
    }
}

/// A pointer of a C program (invariant 1).
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Ptr<T>(*mut T);

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Ptr<T> {}

#[cfg(any(test, fuzzing))]
impl<T> Ptr<T> {
    /// A pointer to this address, which is null or keeps the promises of (1).
    pub(crate) fn of(addr: usize) -> Self {
        Self(addr as *mut T)
    }
}

impl<T: Copy> Ptr<T> {
    /// The pointer, if it is not null. Asked before a call has an effect.
    pub(crate) fn there(self) -> Result<Self> {
        if self.0.is_null() { Err(Code::InvalidParameter) } else { Ok(self) }
    }
    pub(crate) fn addr(self) -> u64 {
        self.0 as u64
    }
    pub(crate) fn read(self) -> Result<T> {
        let this = self.there()?;
        // SAFETY: (1) it is not null and readable; (2) any bytes are a value.
        Ok(unsafe { this.0.read_unaligned() })
    }
    pub(crate) fn write(self, value: T) -> Result {
        let this = self.there()?;
        // SAFETY: (1) it is not null and writable.
        unsafe { this.0.write_unaligned(value) };
        Ok(())
    }
    /// A copy of the bytes behind the value.
    pub(crate) fn bytes_behind(self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let from = self.there()?.0.wrapping_add(1).cast::<u8>();
        // SAFETY: (1) the value's length fields say that so many bytes follow; the vector is new.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        Ok(bytes)
    }
    /// Writes the bytes behind the value.
    pub(crate) fn write_bytes_behind(self, bytes: &[u8]) -> Result {
        let to = self.there()?.0.wrapping_add(1).cast::<u8>();
        // SAFETY: (1) the header says that the program has room for so many bytes.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
}

impl Ptr<c_char> {
    /// A copy of the text.
    pub(crate) fn text(self) -> Result<String> {
        let this = self.there()?;
        // SAFETY: (1) the header says that a zero ends it.
        let text = unsafe { CStr::from_ptr(this.0) };
        Ok(text.to_str().map_err(|_| Code::InvalidParameter)?.to_owned())
    }
    /// Writes a text and a zero.
    pub(crate) fn set_text(self, text: &str) -> Result {
        let to = self.there()?.0.cast::<u8>();
        // SAFETY: (1) the caller has compared the text with the room that the program names.
        unsafe {
            to.copy_from_nonoverlapping(text.as_ptr(), text.len());
            to.add(text.len()).write(0);
        }
        Ok(())
    }
}

/// Registers memory of the program.
pub(crate) fn register(
    nic: &Nic,
    addr: Ptr<u8>,
    len: usize,
    attributes: &MemAttributes,
) -> std::result::Result<Memory, Error> {
    let none = Error::Parameter { what: "memory", why: "its address is null" };
    let addr = NonNull::new(addr.0).ok_or(none)?;
    if !hca_process::can_access(addr, len, true) {
        let why = "it is not mapped, or the program can't write there";
        return Err(Error::Parameter { what: "memory", why });
    }
    // SAFETY: (1) the header says that the memory stays until VipDeregisterMem.
    unsafe { nic.register(addr, len, attributes) }
}

/// The context of a callback, which only the program looks at.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Context(pub(crate) usize);

/// `VIP_VI_CALLBACK`.
pub(crate) type ViCallback = extern "C" fn(Context, Handle, Handle, u64);
/// `VIP_CQ_CALLBACK`.
pub(crate) type CqCallback = extern "C" fn(Context, Handle, Handle, i32);
/// The handler of `VipErrorCallback`.
pub(crate) type ErrorCallback = extern "C" fn(Context, &mut CErrorDescriptor);
