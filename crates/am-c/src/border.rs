//! The border to C: pointers, handlers, tokens and panics.
//!
//! Invariants:
//! 1. A [`Ptr`] comes from a C program alone. It is null, or points to what the header says of it, which no other thread
//!    changes during the call. It need not be aligned. The types behind it are plain numbers.
//! 2. A [`Handler`] is a function of the header's type that may be called by any thread until the process ends.
//! 3. The token of a handler is the address of a [`Running`] on the stack of the call. [`CURRENT`] has this address as
//!    long as the handler runs and no handler within it, and each use compares: a stale or foreign token is refused.
//! 4. No panic leaves a function with the C calling convention: [`guarded`] catches it.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use hca::am::{EndpointName, Error, Message, ReturnCode, Returned, Tag, Token};

/// A return code other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    NotInit = 1,
    BadArg = 2,
    Resource = 3,
    NotSent = 4,
    InUse = 5,
}

pub(crate) type Result<T = ()> = std::result::Result<T, Code>;

impl From<Error> for Code {
    fn from(error: Error) -> Self {
        match error.code() {
            ReturnCode::BadArg => Self::BadArg,
            ReturnCode::Resource => Self::Resource,
            ReturnCode::NotSent => Self::NotSent,
            ReturnCode::InUse => Self::InUse,
        }
    }
}

/// Defines functions that C programs call. Each returns 0 or the number of a code.
macro_rules! exports {
    ($(fn $name:ident($($arg:ident: $t:ty),* $(,)?) $body:block)*) => {$(
        #[allow(unsafe_code)] // its name alone
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($arg: $t),*) -> i32 {
            $crate::border::guarded(|| $body)
        }
    )*};
}
pub(crate) use exports;

/// Runs a call. A panic, which the panic hook has told on standard error, is an error of a resource. Under the fuzzer
/// it ends the process.
pub(crate) fn guarded(call: impl FnOnce() -> Result) -> i32 {
    #[cfg(any(test, fuzzing))]
    let call = || catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| std::process::abort());
    match catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Code::Resource)) {
        Ok(()) => 0,
        Err(code) => code as i32,
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
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }
    /// The pointer, if it is not null. Asked before a call has an effect.
    pub(crate) fn there(self) -> Result<Self> {
        if self.0.is_null() { Err(Code::BadArg) } else { Ok(self) }
    }
    pub(crate) fn write(self, value: T) -> Result {
        let this = self.there()?;
        // SAFETY: (1) it is not null and writable.
        unsafe { this.0.write_unaligned(value) };
        Ok(())
    }
    /// A copy of `count` values.
    pub(crate) fn copied(self, count: usize, zero: T) -> Result<Vec<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let from = self.there()?.0;
        count.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= 1 << 30).ok_or(Code::BadArg)?;
        let mut values = vec![zero; count];
        // SAFETY: (1) so many values are readable; the copy is by bytes, as they need no alignment.
        unsafe {
            from.cast::<u8>().copy_to_nonoverlapping(values.as_mut_ptr().cast(), count * size_of::<T>());
        }
        Ok(values)
    }
}

impl Ptr<c_char> {
    /// A copy of the text.
    pub(crate) fn text(self) -> Result<String> {
        let this = self.there()?;
        // SAFETY: (1) the header says that a zero ends it.
        let text = unsafe { CStr::from_ptr(this.0) };
        Ok(text.to_str().map_err(|_| Code::BadArg)?.to_owned())
    }
}

/// A handler of a C program (invariant 2), before its arguments are known.
pub(crate) type Handler = unsafe extern "C" fn();

/// `AM_returned_t`.
#[repr(C)]
pub(crate) struct CReturned {
    index: c_int,
    handler: c_int,
    num_args: c_int,
    args: [c_int; 16],
    data: *const u8,
    bytes: usize,
    offset: u64,
}

/// A message whose handler runs.
pub(crate) struct Running<'a> {
    token: Cell<Option<Token<'a>>>,
    pub(crate) source: EndpointName,
    pub(crate) tag: Tag,
    pub(crate) endpoint: usize,
}

thread_local! {
    /// The address of the message whose handler runs on this thread; 0 for none.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
    /// The handlers that run on this thread, one within the other.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Whether a handler runs on this thread.
pub(crate) fn is_in_handler() -> bool {
    DEPTH.get() > 0
}

/// Uses the message of a token.
pub(crate) fn running<T>(token: usize, use_it: impl FnOnce(&Running<'_>) -> Result<T>) -> Result<T> {
    if token == 0 || CURRENT.get() != token {
        return Err(Code::BadArg);
    }
    // SAFETY: (3) the message is on the stack of this thread while `CURRENT` has its address.
    use_it(unsafe { &*(token as *const Running<'static>) })
}
/// Takes the right to reply.
pub(crate) fn reply(token: usize, reply: impl FnOnce(Token<'_>) -> std::result::Result<(), Error>) -> Result {
    running(token, |running| Ok(reply(running.token.take().ok_or(Code::BadArg)?)?))
}

/// The type of an argument.
macro_rules! int_at {
    ($i:literal) => {
        c_int
    };
}
/// Calls a function with `first` and so many arguments.
macro_rules! with_args {
    ($f:expr, ($($first:expr => $t:ty),*), $args:expr) => {
        with_args!(@ $f, ($($first => $t),*), $args;
            0 [] 1 [0] 2 [0 1] 3 [0 1 2] 4 [0 1 2 3] 5 [0 1 2 3 4] 6 [0 1 2 3 4 5] 7 [0 1 2 3 4 5 6]
            8 [0 1 2 3 4 5 6 7] 9 [0 1 2 3 4 5 6 7 8] 10 [0 1 2 3 4 5 6 7 8 9] 11 [0 1 2 3 4 5 6 7 8 9 10]
            12 [0 1 2 3 4 5 6 7 8 9 10 11] 13 [0 1 2 3 4 5 6 7 8 9 10 11 12]
            14 [0 1 2 3 4 5 6 7 8 9 10 11 12 13] 15 [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14]
            16 [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15])
    };
    (@ $f:expr, $first:tt, $args:expr; $($n:literal $of:tt)*) => {
        match $args.len() {
            $($n => with_args!(% $f, $first, $args, $of),)*
            _ => {}
        }
    };
    (% $f:expr, ($($first:expr => $t:ty),*), $args:expr, [$($i:literal)*]) => {{
        // SAFETY: (2) the header says that the function has these arguments.
        let f = unsafe { std::mem::transmute::<Handler, extern "C" fn($($t,)* $(int_at!($i)),*)>($f) };
        f($($first,)* $($args[$i] as c_int),*)
    }};
}

/// Calls the handler of a message.
pub(crate) fn call(handler: Handler, endpoint: usize, message: &Message<'_>, token: Token<'_>) {
    let running =
        Running { token: Cell::new(Some(token)), source: message.source(), tag: message.tag(), endpoint };
    let at = &raw const running as usize;
    // A handler may poll another bundle, whose handlers then run within it.
    let outer = CURRENT.replace(at);
    DEPTH.set(DEPTH.get() + 1);
    let args = message.args();
    let data = match message.range() {
        Some(range) => {
            let segment = message.segment().map_or(0, hca::am::Segment::addr);
            Some((segment as usize + range.start, range.len()))
        }
        None => message.is_medium().then(|| (message.data().as_ptr() as usize, message.data().len())),
    };
    match data {
        Some((data, bytes)) => with_args!(handler, (at => usize, data => usize, bytes => usize), args),
        None => with_args!(handler, (at => usize), args),
    }
    DEPTH.set(DEPTH.get() - 1);
    CURRENT.set(outer);
}

/// Calls handler 0.
pub(crate) fn tell(handler: Handler, message: &Returned<'_>) {
    let mut args = [0; 16];
    for (to, &from) in args.iter_mut().zip(message.args) {
        *to = from as c_int;
    }
    let (offset, bytes) = message.range.unwrap_or((0, message.data.len() as u64));
    let returned = CReturned {
        index: message.index as c_int,
        handler: message.handler.into(),
        num_args: message.args.len() as c_int,
        args,
        data: message.data.as_ptr(),
        bytes: bytes as usize,
        offset,
    };
    let opcode = match (message.range, message.is_medium) {
        (Some(_), _) => 3,
        (None, true) => 2,
        (None, false) => 1,
    };
    // The peer refused a reply.
    let opcode = opcode + if message.reason == hca::am::Reason::ReplyRejected { 3 } else { 0 };
    // SAFETY: (2) handler 0 has the type `AM_error_fn`.
    let f = unsafe { std::mem::transmute::<Handler, extern "C" fn(c_int, c_int, *const CReturned)>(handler) };
    DEPTH.set(DEPTH.get() + 1);
    f(message.reason.code().into(), opcode, &raw const returned);
    DEPTH.set(DEPTH.get() - 1);
}

/// A pointer of the header's type `void *`.
pub(crate) type Address = Ptr<u8>;
