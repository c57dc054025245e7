//! The border to C: raw pointers, null, `errno` and panics.
//!
//! Invariants:
//! 1. An [`In`] comes from a C program alone, as an argument or in a field of one. It is null, or points to what the
//!    function's contract says: to an object of this library that is not destroyed before the call returns, or to memory
//!    of the program that no other thread changes during the call.
//! 2. Objects of this library are only read through [`In`]. What changes in them is an atomic, or behind a lock.
//! 3. An object is given to the program once, by [`give`], and taken back once, by [`In::take`], when it is destroyed.
//! 4. A [`Context`] is only reached by the address of its `struct ibv_context`, which lies in its `verbs_context`.
//! 5. Functions with the C calling convention that return in a panic do not exist: [`guarded`] catches it.
//! 6. Where the C library may unwind a cancelled thread, in [`sleeping`], [`Sleep::begin`] and
//!    [`waiting`](crate::waiting), no frame of this library has a destructor or catches panics. Elsewhere calls that
//!    reach the system are [`steady`].
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int};
use core::mem::{MaybeUninit, offset_of};
use core::ptr::null_mut;
use std::panic::{AssertUnwindSafe, catch_unwind};

use hca::hca_core::{DeviceError, PostError, PostErrorKind, SendPort, SendWr, Sge};

use crate::abi::{IbvContext, IbvSendWr, IbvSge, IbvWc, VerbsContext};
use crate::context::Context;
use crate::explain;

/// Defines functions that C programs call, each in its version node.
macro_rules! exports {
    ($($version:literal fn $name:ident($($arg:ident: $t:ty),* $(,)?) -> $ret:ty $body:block)*) => {
        $crate::entry::exported! { "C" $($version fn $name($($arg: $t),*) -> $ret $body)* }
    };
}
pub(crate) use exports;

/// As [`exports`], of functions in whose sleep a program's thread may be cancelled (`pthread_cancel`): the C library
/// unwinds it there. Their bodies are calls of [`sleeping`] alone, or of the functions of [`waiting`](crate::waiting).
macro_rules! cancellable {
    ($($version:literal fn $name:ident($($arg:ident: $t:ty),* $(,)?) -> $ret:ty $body:block)*) => {
        $crate::entry::exported! { "C-unwind" $($version fn $name($($arg: $t),*) -> $ret $body)* }
    };
}
pub(crate) use cancellable;

/// The functions of [`exports`] and of [`cancellable`], by their calling convention.
macro_rules! exported {
    ($abi:literal $($version:literal fn $name:ident($($arg:ident: $t:ty),*) -> $ret:ty $body:block)*) => {$(
        #[allow(unsafe_code)]
        mod $name {
            core::arch::global_asm!(concat!(".symver ", stringify!($name), ", ", stringify!($name), "@@@", $version));
        }
        #[allow(unsafe_code)]
        #[unsafe(no_mangle)]
        pub(crate) extern $abi fn $name($($arg: $t),*) -> $ret $body
    )*};
}
pub(crate) use exported;

/// Puts a function into further version nodes, under which programs of other releases look for it.
macro_rules! also {
    ($($name:ident $($version:literal)*;)*) => {$($(
        core::arch::global_asm!(concat!(
            ".globl ", stringify!($name), ".", $version, "\n",
            ".set ", stringify!($name), ".", $version, ", ", stringify!($name), "\n",
            ".symver ", stringify!($name), ".", $version, ", ", stringify!($name), "@", $version,
        ));
    )*)*};
}
also! {
    ibv_query_gid_type "IBVERBS_PRIVATE_57" "IBVERBS_PRIVATE_59" "IBVERBS_PRIVATE_64" "IBVERBS_PRIVATE_65";
    mlx5dv_init_obj "MLX5_1.0";
}

/// The number of an error, as `errno` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

/// An argument that is refused.
pub(crate) const INVALID: Errno = Errno(libc::EINVAL);

impl From<DeviceError> for Errno {
    fn from(error: DeviceError) -> Self {
        use DeviceError as D;
        explain::refused(&error);
        Self(match error {
            D::LimitReached { .. } | D::OutOfMemory { .. } => libc::ENOMEM,
            D::InUse { .. } | D::HasEngine { .. } => libc::EBUSY,
            D::Unsupported { .. } => libc::EOPNOTSUPP,
            D::NoPath { .. } => libc::EHOSTUNREACH,
            D::Refused { .. } | D::Dead { .. } | D::Exposed => libc::EIO,
            D::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            _ => libc::EINVAL,
        })
    }
}
impl From<PostErrorKind> for Errno {
    fn from(error: PostErrorKind) -> Self {
        Self(if matches!(error, PostErrorKind::QueueFull { .. }) { libc::ENOMEM } else { libc::EINVAL })
    }
}
impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() = number };
}

/// The answer of what is not offered: the number, in `errno` too.
pub(crate) fn unsupported() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// Runs a call. A panic, which the panic hook has told on standard error, is an error of the device.
#[inline]
fn guarded<T>(call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Errno(libc::EIO)))
}
unsafe extern "C-unwind" {
    pub(crate) fn ppoll(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    pub(crate) fn pthread_testcancel();
}
/// Runs a call in which the thread is not cancelled (6): a panic handler would end the process then.
fn steady<T>(call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    const DISABLED: c_int = 1;
    let mut before = 0;
    // SAFETY: room for the state before.
    unsafe { pthread_setcancelstate(DISABLED, &raw mut before) };
    let result = guarded(call);
    // SAFETY: as above, with the state that the thread had.
    unsafe { pthread_setcancelstate(before, &raw mut before) };
    result
}

/// A sleep on descriptors.
#[derive(Clone, Copy)]
pub(crate) struct Sleep {
    fds: [libc::pollfd; 2],
    limit: Option<libc::timespec>,
    error: c_int,
}
impl Sleep {
    /// On one or two descriptors, for ever or for so long.
    pub(crate) fn on(
        fd: std::os::fd::BorrowedFd<'_>,
        other: Option<std::os::fd::BorrowedFd<'_>>,
        limit: Option<std::time::Duration>,
    ) -> Self {
        use std::os::fd::AsRawFd;
        let readable = |fd: c_int| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let limit = limit.map(|limit| libc::timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        Self {
            fds: [readable(fd.as_raw_fd()), readable(other.map_or(-1, |fd| fd.as_raw_fd()))],
            limit,
            error: 0,
        }
    }
    /// Sleeps. A thread that is cancelled does not return from here.
    #[inline(always)]
    pub(crate) fn begin(&mut self) {
        let limit = self.limit.as_ref().map_or(core::ptr::null(), |limit| &raw const *limit);
        // SAFETY: descriptors that are open while the program waits, and a time.
        if unsafe { ppoll(self.fds.as_mut_ptr(), 2, limit, core::ptr::null()) } < 0 {
            // SAFETY: the location is the calling thread's own.
            self.error = unsafe { *libc::__errno_location() };
        }
    }
    /// Whether the first descriptor was readable behind it.
    ///
    /// # Errors
    /// A signal came, and one of the program's handlers is of those that end system calls.
    pub(crate) fn was_woken(&self) -> Result<bool, Errno> {
        match self.error {
            0 => Ok(self.fds[0].revents != 0),
            libc::EINTR if calls_go_on() => Ok(false),
            error => Err(Errno(error)),
        }
    }
}
/// Whether all handlers of the program have system calls go on behind them, as `read` does, and `poll` does not.
fn calls_go_on() -> bool {
    const LAST: c_int = 64;
    // The handlers of these may be this library's, and come from no other thread.
    (1..=LAST).filter(|signal| ![libc::SIGSEGV, libc::SIGBUS].contains(signal)).all(|signal| {
        // SAFETY: all fields may be zero.
        let mut now: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: no new action, and room for the present one. Of the C library's own signals it tells none.
        let is_told = unsafe { libc::sigaction(signal, core::ptr::null(), &raw mut now) } == 0;
        !is_told
            || [libc::SIG_DFL, libc::SIG_IGN].contains(&now.sa_sigaction)
            || now.sa_flags & libc::SA_RESTART != 0
    })
}
/// A call that looks for something, and sleeps until it is there. `look` is told how the thread has slept, and tells how
/// it is to sleep, unless it is done. 0, or -1 and `errno`.
#[inline(always)]
pub(crate) fn sleeping(mut look: impl FnMut(Option<Sleep>) -> Result<Option<Sleep>, Errno>) -> c_int {
    // As in `read`, also where there is something already. A thread that was cancelled does not return from here.
    // SAFETY: it takes nothing (6).
    unsafe { pthread_testcancel() };
    let mut slept = None;
    loop {
        let mut next = None;
        let result = counted(|| {
            next = look(slept)?;
            Ok(0)
        });
        let Some(mut sleep) = next.filter(|_| result == 0) else { return result };
        sleep.begin();
        slept = Some(sleep);
    }
}

/// A call that returns 0 or the number of an error, and sets `errno` as well.
#[inline]
pub(crate) fn number(call: impl FnOnce() -> Result<(), Errno>) -> c_int {
    refused(steady(call))
}
/// As [`number`], of the data path.
#[inline]
pub(crate) fn posted(call: impl FnOnce() -> Result<(), Errno>) -> c_int {
    guarded(call).map_or_else(|e| refused(Err(e)), |()| 0)
}
/// A call that returns a number from 0 on, or -1 and sets `errno`.
#[inline]
pub(crate) fn counted(call: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    steady(call).unwrap_or_else(|e| {
        set_errno(e.0);
        -1
    })
}
/// A call that returns what the program gets, and sets `errno` itself where that is an error: for what is called most.
#[inline(always)]
pub(crate) fn told(call: impl FnOnce() -> c_int) -> c_int {
    #[cold]
    #[inline(never)]
    fn panicked(_why: Box<dyn core::any::Any + Send>) -> c_int {
        failed(Err(Errno(libc::EIO)))
    }
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(panicked)
}
/// The result of a call that returns a number from 0 on, or -1 and sets `errno`.
#[inline(never)]
pub(crate) fn failed(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|e| {
        set_errno(e.0);
        -1
    })
}
/// The result of a call that returns 0 or the number of an error, and sets `errno` as well.
#[inline(never)]
pub(crate) fn refused(result: Result<(), Errno>) -> c_int {
    result.map_or_else(
        |e| {
            set_errno(e.0);
            e.0
        },
        |()| 0,
    )
}
/// A call that returns a pointer, or null and sets `errno`.
#[inline]
pub(crate) fn pointer<T>(call: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    steady(call).unwrap_or_else(|e| {
        set_errno(e.0);
        null_mut()
    })
}

/// The result of a function of this library that returns 0 or the number of an error.
pub(crate) fn done(number: c_int) -> Result<(), Errno> {
    if number == 0 { Ok(()) } else { Err(Errno(number)) }
}
/// The result of a function of this library that returns a pointer, or null and sets `errno`.
pub(crate) fn made<T>(pointer: *mut T) -> Result<*mut T, Errno> {
    if pointer.is_null() {
        // SAFETY: the location is the calling thread's own.
        return Err(Errno(unsafe { *libc::__errno_location() }));
    }
    Ok(pointer)
}

/// Gives an object to the program.
pub(crate) fn give<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// A pointer from a C program (invariant 1).
#[repr(transparent)]
pub(crate) struct In<T>(*mut T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T> In<T> {
    pub(crate) fn null() -> Self {
        Self(null_mut())
    }
    /// A pointer in a field that the program filled in.
    pub(crate) fn of(field: *mut T) -> Self {
        Self(field)
    }
    pub(crate) fn raw(self) -> *mut T {
        self.0
    }
    /// The object, or an invalid argument for null.
    #[inline]
    pub(crate) fn get<'a>(self) -> Result<&'a T, Errno> {
        self.opt().ok_or(INVALID)
    }
    /// The object; `None` for null.
    #[inline]
    pub(crate) fn opt<'a>(self) -> Option<&'a T> {
        // SAFETY: (1), (2)
        unsafe { self.0.as_ref() }
    }
    /// An element of an array of the program's.
    pub(crate) fn at<'a>(self, index: usize) -> Result<&'a T, Errno> {
        if self.0.is_null() {
            return Err(INVALID);
        }
        // SAFETY: (1): the program has given the array's length.
        Ok(unsafe { &*self.0.add(index) })
    }
    /// Stores a result where the program wants it.
    #[inline]
    pub(crate) fn set(self, value: T) -> Result<(), Errno> {
        if self.0.is_null() {
            return Err(INVALID);
        }
        // SAFETY: (1): memory of the program for a result, which may not be initialised yet.
        unsafe { self.0.write(value) };
        Ok(())
    }
    /// Stores the elements of a list of results, of which the program has room for `room`.
    #[inline]
    pub(crate) fn set_at(self, index: usize, room: usize, value: T) -> Result<(), Errno> {
        if self.0.is_null() || index >= room {
            return Err(INVALID);
        }
        // SAFETY: (1): an array of `room` results.
        unsafe { self.0.add(index).write(value) };
        Ok(())
    }
    /// The first places of an array of results, of which the program has at least `count`.
    #[inline(always)]
    pub(crate) fn places<'a>(self, count: usize) -> Result<&'a mut [MaybeUninit<T>], Errno> {
        if self.0.is_null() {
            return Err(INVALID);
        }
        // SAFETY: (1): an array with room for all, which may not be initialised.
        Ok(unsafe { core::slice::from_raw_parts_mut(self.0.cast(), count) })
    }
    /// The rest of an array, behind `count` elements.
    pub(crate) fn behind(self, count: usize) -> Self {
        Self(self.0.wrapping_add(count))
    }
    /// Takes an object back that was given to the program.
    pub(crate) fn take(self) -> Result<Box<T>, Errno> {
        if self.0.is_null() {
            return Err(INVALID);
        }
        // SAFETY: (3)
        Ok(unsafe { Box::from_raw(self.0) })
    }
    /// Copies the first bytes of a value to a shorter or longer structure of the program's.
    pub(crate) fn set_prefix<U: Copy>(self, value: &U, bytes: usize) -> Result<(), Errno> {
        if self.0.is_null() {
            return Err(INVALID);
        }
        let bytes = bytes.min(size_of::<U>());
        // SAFETY: (1): the program has room for so many bytes, and the value has them.
        unsafe { core::ptr::copy_nonoverlapping((&raw const *value).cast::<u8>(), self.0.cast(), bytes) };
        Ok(())
    }
    /// Zeroes bytes of a structure of the program's.
    pub(crate) fn zero(self, bytes: usize) -> Result<(), Errno> {
        if self.0.is_null() {
            return Err(INVALID);
        }
        // SAFETY: (1): the program has room for so many bytes.
        unsafe { self.0.cast::<u8>().write_bytes(0, bytes) };
        Ok(())
    }
}

impl In<IbvContext> {
    /// The context around it.
    #[inline]
    pub(crate) fn context<'a>(self) -> Result<&'a Context, Errno> {
        self.whole().get()
    }
    /// The pointer to the context around it; null for null.
    pub(crate) fn whole(self) -> In<Context> {
        if self.0.is_null() {
            return In(null_mut());
        }
        In(self.0.wrapping_byte_sub(offset_of!(VerbsContext, context)).cast())
    }
}

const _: () = assert!(size_of::<Sge>() == size_of::<IbvSge>() && align_of::<Sge>() == align_of::<IbvSge>());
const _: () = assert!(offset_of!(Sge, len) == offset_of!(IbvSge, length));
const _: () = assert!(offset_of!(Sge, lkey) == offset_of!(IbvSge, lkey));

/// A request's scatter/gather list, as the device takes it: both types have one layout.
#[inline]
pub(crate) fn sges<'a>(list: *mut IbvSge, count: c_int) -> Result<&'a [Sge], Errno> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(_) if list.is_null() => Err(INVALID),
        // SAFETY: (1), and both types have the same size and the same numbers at the same places.
        Ok(count) => Ok(unsafe { core::slice::from_raw_parts(list.cast(), count) }),
        Err(_) => Err(INVALID),
    }
}

/// The attributes of an open file.
pub(crate) fn stat(fd: c_int) -> Result<rustix::fs::Stat, Errno> {
    if fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: the program gives a descriptor that is open during the call; of a wrong one the kernel says so.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    Ok(rustix::fs::fstat(fd)?)
}

/// A descriptor that the program gives away.
pub(crate) fn owned(fd: c_int) -> std::os::fd::OwnedFd {
    // SAFETY: the contract of ibv_import_device: an open descriptor, which the program closes no more.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }
}

/// Copies the bytes of an inline entry.
pub(crate) fn copy_inline(entry: &Sge, to: &mut [u8]) {
    // SAFETY: (1): the program gives as many bytes at the address as `to` has.
    unsafe { core::ptr::copy_nonoverlapping(entry.addr as *const u8, to.as_mut_ptr(), to.len()) };
}

/// The number of entries and the operation of a request, which lie side by side, as one number.
#[inline(always)]
pub(crate) fn shape(wr: &IbvSendWr) -> u64 {
    const AT: usize = offset_of!(IbvSendWr, num_sge);
    const _: () = assert!(AT.is_multiple_of(8) && offset_of!(IbvSendWr, opcode) == AT + 4);
    // SAFETY: eight bytes of the request, aligned as its first number is, and no padding.
    unsafe { core::ptr::from_ref(wr).byte_add(AT).cast::<u64>().read() }
}
/// The [shape] of a request with these.
pub(crate) const fn shape_of(entries: u32, opcode: u32) -> u64 {
    (opcode as u64) << 32 | entries as u64
}

/// Stores a completion of these words.
#[inline(always)]
pub(crate) fn set_words(to: &mut MaybeUninit<IbvWc>, words: [u64; 6]) {
    const _: () = assert!(size_of::<IbvWc>() == 48 && align_of::<IbvWc>() == 8);
    // SAFETY: a completion has the size and alignment of the words, and no value of its numbers is illegal.
    unsafe { (&raw mut *to).cast::<[u64; 6]>().write(words) };
}

/// The send port of a queue pair that has none.
pub(crate) struct NoPort;
// SAFETY: (1), (2) and (3) of the trait: no request is taken.
unsafe impl SendPort for NoPort {
    unsafe fn post(&mut self, _wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        Err(PostError { accepted: 0, kind: PostErrorKind::Destroyed })
    }
    fn ring(&mut self) {}
}

/// The bytes of an inline entry; `None` if it has no address.
#[inline(always)]
pub(crate) fn inline_entry(entry: &Sge) -> Option<&[u8]> {
    // SAFETY: (1): the program gives as many bytes at the address, and no thread changes them during the call.
    (entry.addr != 0)
        .then(|| unsafe { core::slice::from_raw_parts(entry.addr as *const u8, entry.len as usize) })
}

/// The bytes of a request's inline entries: those of a single entry where they lie, those of several gathered in `room`.
/// `None` if they do not fit, or an entry has no address.
#[inline]
pub(crate) fn inline_bytes<'a>(list: &'a [Sge], room: &'a mut [MaybeUninit<u8>]) -> Option<&'a [u8]> {
    if list.iter().any(|entry| entry.addr == 0 && entry.len > 0) {
        return None;
    }
    if let [one] = list {
        return Some(inline_entry(one).unwrap_or_default());
    }
    let mut used = 0;
    for entry in list {
        let to = room.get_mut(used..used + entry.len as usize)?;
        // SAFETY: (1): the program gives as many bytes at the address as `to` has room for.
        unsafe { core::ptr::copy_nonoverlapping(entry.addr as *const u8, to.as_mut_ptr().cast(), to.len()) };
        used += to.len();
    }
    // SAFETY: the first `used` bytes were written.
    Some(unsafe { core::slice::from_raw_parts(room.as_ptr().cast(), used) })
}

/// A list of pointers that ends with null, for [`free_list`].
pub(crate) fn give_list<T>(items: &[*mut T]) -> Result<*mut *mut T, Errno> {
    // SAFETY: calloc takes any sizes; the memory holds one pointer more than there are items.
    unsafe {
        let list: *mut *mut T = libc::calloc(items.len() + 1, size_of::<*mut T>()).cast();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        core::ptr::copy_nonoverlapping(items.as_ptr(), list, items.len());
        Ok(list)
    }
}
/// Frees a list of [`give_list`].
pub(crate) fn free_list<T>(list: In<*mut T>) {
    // SAFETY: (3): a list that was given, or null.
    unsafe { libc::free(list.0.cast()) };
}

/// A text for C.
pub(crate) fn text(text: &'static core::ffi::CStr) -> *const c_char {
    text.as_ptr()
}

/// Registers memory of the program's. Accesses to it survive that the program unmaps it, as those of an adapter in
/// silicon do.
pub(crate) fn reg_mr(
    device: &dyn hca::hca_core::Device,
    pd: hca::hca_core::PdHandle,
    mr: &hca::hca_core::MrInit,
) -> Result<hca::hca_core::MrKeys, DeviceError> {
    // Programs that have replaced the action of SIGSEGV meanwhile are found out here.
    hca_dma::survive();
    // SAFETY: the contract of ibv_reg_mr: the memory stays until ibv_dereg_mr, or its accesses fail one by one, and the
    // program reads and writes it as memory that others change. Rust code of this process has no reference to it.
    unsafe { device.reg_mr(pd, mr) }
}
/// Posts one request and rings.
#[inline]
pub(crate) fn post_send_now(port: &mut dyn SendPort, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
    // SAFETY: the contract of ibv_post_send: the program leaves the memory to the device until the completion.
    unsafe { port.post_now(wr) }
}
/// Posts one request.
#[inline]
pub(crate) fn post_send(port: &mut dyn SendPort, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
    // SAFETY: as above.
    unsafe { port.post(core::slice::from_ref(wr)) }.map_err(|e| e.kind)
}
/// Posts one receive request and rings.
#[inline]
pub(crate) fn post_recv_now(
    port: &mut dyn hca::hca_core::RecvPort,
    wr: &hca::hca_core::RecvWr<'_>,
) -> Result<(), PostErrorKind> {
    // SAFETY: the contract of ibv_post_recv: the program leaves the memory to the device until the completion.
    unsafe { port.post_now(wr) }
}
/// Posts one receive request.
#[inline]
pub(crate) fn post_recv(
    port: &mut dyn hca::hca_core::RecvPort,
    wr: &hca::hca_core::RecvWr<'_>,
) -> Result<(), PostErrorKind> {
    // SAFETY: as above.
    unsafe { port.post(core::slice::from_ref(wr)) }.map_err(|e| e.kind)
}

/// Has a function called when the program ends by `exit` or by returning from `main`.
pub(crate) fn at_exit(call: extern "C" fn()) {
    // SAFETY: the object is never unloaded, so that the function is there when the program ends.
    unsafe { libc::atexit(call) };
}
/// Has a function called when this process ends by `_exit`, if it has preloaded the library that catches that.
pub(crate) fn before_exit(call: extern "C" fn()) {
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"hca_before_exit".as_ptr()) };
    if !found.is_null() {
        // SAFETY: the function of this name takes one that stays, as this object is never unloaded.
        let before: extern "C" fn(extern "C" fn()) = unsafe { core::mem::transmute(found) };
        before(call);
    }
}
/// Runs what is left to do as the program ends, and waits so long for it. Not on this thread: it may be one that a
/// signal has interrupted while it held a lock.
pub(crate) fn last(name: &str, wait: std::time::Duration, call: impl FnOnce() + Send + 'static) {
    let (done, ended) = std::sync::mpsc::channel();
    let run = move || {
        call();
        let _ = done.send(());
    };
    if hca_process::spawn(name, run).is_ok() {
        let _ = ended.recv_timeout(wait);
    }
}

/// A lock that stays usable when its holder panicked.
pub(crate) fn lock<T: ?Sized>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
