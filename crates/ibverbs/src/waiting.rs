//! Calls that wait in the middle of what they do, and whose thread may be cancelled there (`pthread_cancel`).
//!
//! A call that waits is a future. The C library unwinds the frames of a cancelled thread, and no frame may have a
//! destructor. So the future is kept beside the frames while the thread sleeps ([`CALLS`]). The end of the thread drops
//! the future, and with it all that the call has.
//!
//! Invariants, beside those of `entry`:
//! 1. A [`Bed`] names memory that a future borrows which [`asleep`] is a part of. The thread sleeps on it before that
//!    future is polled again, moved or dropped: it is in [`CALLS`], or [`finish`] has it.
//! 2. Where the thread may be unwound, in [`waiting`] and [`Bed::sleep`], no frame has a destructor or catches panics.
//! 3. A sleep changes nothing that outlives it: it may be unwound at any instruction.
#![allow(unsafe_code)]

use core::cell::{Cell, RefCell};
use core::ffi::{c_int, c_long};
use core::future::poll_fn;
use core::pin::{Pin, pin};
use core::ptr::{null, null_mut};
use core::sync::atomic::AtomicU32;
use core::task::{Context, Poll, Waker};
use std::future::Future;

use crate::entry::{Errno, Sleep, counted, ppoll, pthread_testcancel};

unsafe extern "C-unwind" {
    fn syscall(number: c_long, ...) -> c_long;
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
}

/// A thread's sleep: on descriptors, or on a word.
#[derive(Clone, Copy)]
enum Bed {
    /// Descriptors, until one of them has an event, for so long.
    Descriptors(*mut libc::pollfd, usize, Option<libc::timespec>),
    /// As this says, which notes how the thread has slept.
    As(*mut Sleep),
    /// A word, until another thread wakes those that sleep on it; not at all if it has another value.
    Word(*const AtomicU32, u32),
}

impl Bed {
    /// Sleeps. The number of an error, or 0. A thread that is cancelled does not return from here.
    #[inline(never)]
    fn sleep(self) -> c_int {
        const ASYNCHRONOUS: c_int = 1;
        let slept = match self {
            Self::Descriptors(fds, count, limit) => {
                let limit = limit.as_ref().map_or(null(), |limit| &raw const *limit);
                // SAFETY: (1), of so many entries; of a wrong descriptor the kernel says so.
                c_long::from(unsafe { ppoll(fds, count as libc::nfds_t, limit, null()) })
            }
            Self::As(sleep) => {
                // SAFETY: (1)
                unsafe { (*sleep).begin() };
                0
            }
            Self::Word(at, value) => {
                let mut before = 0;
                // The C library's calls that a thread is cancelled in do so, too.
                // SAFETY: (3), and room for the type before.
                unsafe { pthread_setcanceltype(ASYNCHRONOUS, &raw mut before) };
                let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
                // SAFETY: (1); without a time.
                let slept = unsafe { syscall(libc::SYS_futex, at, wait, value, null::<libc::timespec>()) };
                // SAFETY: the type that the thread had.
                unsafe { pthread_setcanceltype(before, null_mut()) };
                slept
            }
        };
        // SAFETY: the location is the calling thread's own.
        if slept < 0 { unsafe { *libc::__errno_location() } } else { 0 }
    }
}

/// A call that waits.
type Call = Pin<Box<dyn Future<Output = Result<isize, Errno>>>>;

thread_local! {
    /// The calls that the thread sleeps in: several if the handler of a signal makes one as well.
    static CALLS: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
    /// The sleep that the call asks for which is polled.
    static WANTED: Cell<Option<Bed>> = const { Cell::new(None) };
    /// The result of the sleep before the call is polled again.
    static SLEPT: Cell<c_int> = const { Cell::new(0) };
}

/// Has the thread sleep, as a part of a call. The number of an error, or 0.
async fn asleep(bed: Bed) -> c_int {
    let mut has_asked = false;
    poll_fn(|_| {
        if core::mem::replace(&mut has_asked, true) {
            return Poll::Ready(SLEPT.get());
        }
        WANTED.set(Some(bed));
        Poll::Pending
    })
    .await
}
/// Sleeps until one of these descriptors of the program's has an event; for ever with a negative time. A negative
/// descriptor is left out.
///
/// # Errors
/// As of `poll`.
pub(crate) async fn poll(fds: &mut [libc::pollfd], timeout_ms: c_int) -> Result<(), Errno> {
    let limit = u32::try_from(timeout_ms)
        .ok()
        .map(|ms| libc::timespec { tv_sec: (ms / 1000).into(), tv_nsec: (ms % 1000 * 1_000_000).into() });
    match asleep(Bed::Descriptors(fds.as_mut_ptr(), fds.len(), limit)).await {
        0 => Ok(()),
        error => Err(Errno(error)),
    }
}
/// Sleeps as this says, and notes there how.
pub(crate) async fn as_said(sleep: &mut Sleep) {
    asleep(Bed::As(sleep)).await;
}
/// Sleeps while a word has this value, until another thread wakes those that sleep on it. `EINTR` behind a signal whose
/// handler ends system calls; other errors are the caller's to find out.
pub(crate) async fn while_it_has(word: &AtomicU32, value: u32) -> c_int {
    asleep(Bed::Word(word, value)).await
}

/// A look at a call: its result, or what to sleep on.
fn look<T>(call: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Result<T, Bed> {
    match call.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(found) => Ok(found),
        Poll::Pending => Err(WANTED.take().expect("calls wait by `asleep` alone")),
    }
}
/// Waits for a call in a frame that may have destructors: on a thread that is not cancelled.
pub(crate) fn finish<T>(call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    loop {
        match look(call.as_mut()) {
            Ok(found) => return found,
            Err(bed) => SLEPT.set(bed.sleep()),
        }
    }
}
/// The result of a call, or what to sleep on, with its place in [`CALLS`] meanwhile.
fn go_on(mut call: Call) -> Result<Result<isize, (usize, Bed)>, Errno> {
    let bed = match look(call.as_mut()) {
        Ok(found) => return found.map(Ok),
        Err(bed) => bed,
    };
    let mut given = Some(call);
    let kept = CALLS.try_with(|calls| {
        let mut calls = calls.borrow_mut();
        calls.extend(given.take());
        calls.len() - 1
    });
    match (kept, given) {
        (Ok(place), _) => Ok(Err((place, bed))),
        // The thread is about to end, and is not cancelled any more.
        (Err(_), Some(call)) => {
            SLEPT.set(bed.sleep());
            finish(call).map(Ok)
        }
        (Err(_), None) => unreachable!("nobody took the call"),
    }
}

/// A call that returns a number from 0 on, or -1 and sets `errno`, and that may wait. A cancellation point, also where
/// it does not wait.
#[inline(always)]
pub(crate) fn waiting<F: Future<Output = Result<isize, Errno>> + 'static>(call: impl Fn() -> F) -> isize {
    // SAFETY: it takes nothing (2).
    unsafe { pthread_testcancel() };
    let mut slept = None;
    loop {
        let (mut found, mut next) = (-1, None);
        counted(|| {
            let call: Call = match slept {
                None => Box::pin(call()),
                Some((place, error)) => {
                    SLEPT.set(error);
                    CALLS.with_borrow_mut(|calls| {
                        // Calls above it are of handlers that did not return.
                        calls.truncate(place + 1);
                        calls.pop().expect("the call is kept while its thread sleeps")
                    })
                }
            };
            match go_on(call)? {
                Ok(done) => found = done,
                Err(kept) => next = Some(kept),
            }
            Ok(0)
        });
        let Some((place, bed)) = next else { return found };
        slept = Some((place, Bed::sleep(bed)));
    }
}
/// A call that waits for a short time at most, and is not ended half way. The thread may be cancelled behind it.
#[inline(always)]
pub(crate) fn whole(call: impl Fn() -> Result<c_int, Errno>) -> c_int {
    let done = counted(&call);
    // SAFETY: it takes nothing (2).
    unsafe { pthread_testcancel() };
    done
}
