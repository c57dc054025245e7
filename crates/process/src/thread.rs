//! Threads of libraries, without the program's signals.
#![allow(unsafe_code)] // the mask of signals

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

use rustix::thread::MembarrierCommand;

use crate::barrier::register_while_alone;

/// Signals that a fault of the thread's own raises. Blocked, they would end the process without its handler.
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT];

thread_local! {
    static IS_LIBRARY: Cell<bool> = const { Cell::new(false) };
}

/// Marks the calls that `call` makes as a library's own, on this thread: see [`is_library`].
pub fn as_library<T>(call: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            IS_LIBRARY.set(self.0);
        }
    }
    let _before = Before(IS_LIBRARY.replace(true));
    call()
}
/// Whether this thread is a library's, started by [`spawn`], or is in [`as_library`]. A program may have put functions
/// of its own before those of the C library, which call the library that calls them.
pub fn is_library() -> bool {
    IS_LIBRARY.get()
}

/// Starts a thread of a library: it has a name, and takes none of the program's signals.
///
/// A signal to the process goes to any thread that does not block it. A program that waits for signals in one thread
/// blocks them in all other threads, but can't do so in a thread that a library started before.
///
/// The first thread of a process [registers](crate::register_while_alone) the process for the private expedited barrier
/// of `membarrier`, which costs milliseconds once there are two.
///
/// # Errors
/// The system starts no more threads.
pub fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    register_while_alone(MembarrierCommand::RegisterPrivateExpedited);
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the sets are this function's own, and sigfillset and pthread_sigmask write them before they are read. A
    // thread inherits the mask of the thread that starts it, which has its own back afterwards.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for fault in FAULTS {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
        let thread = Builder::new().name(name.to_owned()).spawn(|| as_library(run));
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        thread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signals that this thread blocks, a bit each.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap()
    }
    fn bit(signal: libc::c_int) -> u64 {
        1 << (signal - 1)
    }

    #[test]
    fn calls_of_libraries_are_known_on_their_threads_and_within_them() {
        assert!(!is_library());
        assert_eq!(as_library(|| (as_library(is_library), is_library())), (true, true));
        assert_eq!((spawn("own", is_library).unwrap().join().unwrap(), is_library()), (true, false));
        let panicked = std::panic::catch_unwind(|| as_library(|| panic!("for the test")));
        assert!(panicked.is_err() && !is_library());
    }

    #[test]
    fn a_librarys_thread_takes_no_signals_but_those_of_its_own_faults() {
        let before = blocked();
        let theirs = spawn("named", || (blocked(), std::thread::current().name().map(str::to_owned)));
        let (mask, name) = theirs.unwrap().join().unwrap();
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGALRM, libc::SIGCHLD]
        {
            assert_ne!(mask & bit(signal), 0, "signal {signal}");
        }
        for fault in FAULTS {
            assert_eq!(mask & bit(fault), 0, "signal {fault}");
        }
        assert_eq!((name.as_deref(), blocked()), (Some("named"), before));
    }
}
