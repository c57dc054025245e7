//! Threads of libraries, without the program's signals.
#![allow(unsafe_code)] // the mask of signals

use std::cell::{Cell, RefCell};
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use rustix::thread::MembarrierCommand;

use crate::barrier::{register_while_alone, threads};
use crate::fork::PerProcess;

/// Signals that a fault of the thread's own raises. Blocked, they would end the process without its handler.
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT];

thread_local! {
    static IS_LIBRARY: Cell<bool> = const { Cell::new(false) };
}

/// The threads of [`spawn`] of a process.
#[derive(Default)]
struct Own {
    running: AtomicU64,
    /// Those that have begun and those that have ended.
    changes: AtomicU64,
}
static OWN: PerProcess<Own> = PerProcess::new();

thread_local! {
    /// This thread among them, while it runs.
    static COUNTED: RefCell<Option<Counted>> = const { RefCell::new(None) };
}
struct Counted(&'static Own);
impl Counted {
    fn new() -> Self {
        let own = OWN.get();
        own.changes.fetch_add(1, Ordering::SeqCst);
        own.running.fetch_add(1, Ordering::SeqCst);
        Self(own)
    }
}
impl Drop for Counted {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        self.0.changes.fetch_add(1, Ordering::SeqCst);
    }
}

/// Whether the calling thread is the only one of the program: all others of the process are of [`spawn`]. `false` in a
/// thread of [`spawn`], and where /proc is missing.
pub fn is_only_thread_of_program() -> bool {
    let own = OWN.get();
    // Without a change meanwhile, all that are counted here are among those that the kernel counts.
    let changes = own.changes.load(Ordering::SeqCst);
    let running = own.running.load(Ordering::SeqCst);
    COUNTED.with_borrow(Option::is_none)
        && threads() == Some(running + 1)
        && own.changes.load(Ordering::SeqCst) == changes
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
    let (counts, is_counted) = channel();
    let counted = move || {
        COUNTED.set(Some(Counted::new()));
        drop::<Sender<()>>(counts);
        let result = as_library(run);
        COUNTED.take();
        result
    };
    // A thread inherits the mask of the thread that starts it.
    let thread = without_signals(|| Builder::new().name(name.to_owned()).spawn(counted))?;
    // Before it is counted, it would be taken for one of the program's.
    let _ = is_counted.recv();
    Ok(thread)
}

/// Calls `call` while this thread takes no signals but those of its own faults. Others wait, or go to other threads.
pub fn without_signals<T>(call: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the sets are this function's own, and sigfillset and pthread_sigmask write them before they are read. The
    // thread has its own mask back afterwards.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for fault in FAULTS {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
        let result = call();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        result
    }
}

/// The slice of a thread that [runs soon](run_soon): the shortest that Linux knows.
const SLICE: Duration = Duration::from_micros(100);

/// What `sched_getattr` tells of a thread and `sched_setattr` sets, in its first version (sched_setattr(2)).
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Has the calling thread run as soon as it wakes, although other threads compute on its CPU, and wake when its sleeps
/// are over: for a thread that sleeps most of the time, and works for microseconds. Its share of the CPU stays as it is.
///
/// From Linux 6.12 on the scheduler chooses by deadlines, and the deadline of a thread is the end of its slice. A thread
/// that wakes has its whole slice before it, and so a later deadline than a thread in the middle of a slice of the same
/// length, which runs on for milliseconds. The call asks for the shortest slice. It also takes back the 50 us by which
/// Linux prolongs sleeps.
///
/// # Errors
/// The system has no such call, or a filter refuses it. Nothing has changed.
pub fn run_soon() -> io::Result<()> {
    // SAFETY: the call changes a number of the calling thread.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0_u64, 0_u64, 0_u64) }.into())?;
    let mut attr = SchedAttr::default();
    let size = size_of::<SchedAttr>() as u32;
    // SAFETY: the kernel writes `size` bytes at most into `attr`, for the calling thread.
    check(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) })?;
    if attr.policy != libc::SCHED_OTHER as u32 {
        // The program has said how its threads run.
        return Ok(());
    }
    attr.runtime_ns = SLICE.as_nanos() as u64;
    // SAFETY: the kernel reads the `size` bytes of `attr` that `attr.size` tells.
    check(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) })
}

fn check(status: libc::c_long) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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

    #[test]
    fn a_thread_that_runs_soon_wakes_in_time_and_has_the_shortest_slice() {
        let change = || {
            run_soon()?;
            let mut attr = SchedAttr::default();
            let size = size_of::<SchedAttr>() as u32;
            // SAFETY: as above.
            check(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) })?;
            // SAFETY: the call tells a number of the calling thread.
            let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, 0_u64, 0_u64, 0_u64, 0_u64) };
            Ok::<_, io::Error>((slack, attr.policy, attr.runtime_ns))
        };
        // Filters of containers may refuse the calls.
        if let Ok((slack, policy, slice)) = spawn("soon", change).unwrap().join().unwrap() {
            assert_eq!(slack, 1);
            // Kernels before 6.12 know no slices.
            if policy == libc::SCHED_OTHER as u32 && slice != 0 {
                assert_eq!(u128::from(slice), SLICE.as_nanos());
            }
        }
    }
}
