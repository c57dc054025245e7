//! Forks, and limits of file sizes: in a process of one thread, without a test harness.
//!
//! Invariants:
//! 1. Children of this process, which has one thread, may do anything; they end by `_exit`.
#![allow(unsafe_code)] // `fork`, with `_exit` in its child

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Mutex;

use hca_process::{
    Fork, NotInChildren, PerProcess, is_only_thread_of_program, memory_file, register_while_alone, spawn,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::MembarrierCommand;

/// Runs this in a child, and expects that it ends by itself, with all that was expected there.
fn in_child(what: &str, run: impl FnOnce()) {
    // SAFETY: (1)
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err();
        // SAFETY: (1)
        unsafe { libc::_exit(panicked.into()) };
    }
    let mut status = 0;
    // SAFETY: the status lives on the stack.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "{what}: status {status:#x}, of which 0x7f is the signal");
}

fn children_are_told_apart_over_generations() {
    let first = Fork::new();
    assert!(!first.is_child());
    in_child("a child", || {
        assert!(first.is_child());
        // What it makes itself is its own.
        let second = Fork::new();
        assert!(!second.is_child() && first.is_child());
        in_child("a grandchild", || {
            assert!(first.is_child() && second.is_child());
            assert!(!Fork::new().is_child());
        });
        assert!(!second.is_child());
    });
    assert!(!first.is_child() && !Fork::new().is_child());
}

fn a_child_has_statics_of_its_own_whatever_lock_was_held_at_the_fork() {
    static LIST: PerProcess<Mutex<Vec<u32>>> = PerProcess::new();
    let mut held = LIST.get().lock().unwrap();
    held.push(1);
    in_child("a child", || {
        LIST.get().try_lock().expect("its parent's lock is not its own").push(2);
        assert_eq!(*LIST.get().try_lock().unwrap(), [2]);
        let _held = LIST.get().try_lock().unwrap();
        in_child("a grandchild", || assert!(LIST.get().try_lock().unwrap().is_empty()));
    });
    drop(held);
    assert_eq!(*LIST.get().lock().unwrap(), [1]);
}

fn a_file_beyond_the_limit_is_an_error_and_no_signal() {
    let make = |len| memory_file("hca-test", MemfdFlags::empty(), len);
    let limit = getrlimit(Resource::Fsize);
    in_child("a limit of 8 KiB", || {
        setrlimit(Resource::Fsize, Rlimit { current: Some(8192), ..limit }).unwrap();
        let file = make(8192).unwrap();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 8192);
        assert_eq!(make(8193).unwrap_err(), Errno::FBIG);
    });
    assert!(make(1 << 20).is_ok());
}

fn descriptors_that_are_registered_lead_nowhere_in_a_child() {
    let open = || eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let raw = |fd: &OwnedFd| fd.as_raw_fd();
    let (kept, given_up, no_longer) = (open(), open(), open());
    let registered = NotInChildren::new(&[given_up.as_fd()]);
    drop(NotInChildren::new(&[no_longer.as_fd()]));
    in_child("a child with a registered descriptor", || {
        for fd in [&kept, &given_up, &no_longer] {
            rustix::io::write(fd, &1_u64.to_ne_bytes()).unwrap();
        }
        // Its number is taken.
        assert_ne!(raw(&open()), raw(&given_up));
    });
    in_child("a child that has another descriptor in its place, and a child of its own", || {
        rustix::io::fcntl_getfd(&given_up).expect("its number is taken");
        // SAFETY: (1): as who closes all descriptors and opens others does.
        assert!(unsafe { libc::dup2(raw(&no_longer), raw(&given_up)) } >= 0);
        in_child("a grandchild", || _ = rustix::io::write(&given_up, &4_u64.to_ne_bytes()).unwrap());
    });
    let count = |fd| {
        let mut bytes = [0; 8];
        rustix::io::read(fd, &mut bytes).map(|_| u64::from_ne_bytes(bytes))
    };
    assert_eq!((count(&kept), count(&given_up), count(&no_longer)), (Ok(1), Err(Errno::AGAIN), Ok(5)));
    drop(registered);
}

fn threads_of_libraries_are_none_of_the_program() {
    let wait_for =
        |over: std::sync::mpsc::Receiver<()>| move || over.recv().is_err() && !is_only_thread_of_program();
    assert!(is_only_thread_of_program());
    let (to_own, over) = std::sync::mpsc::channel::<()>();
    let own = spawn("own", wait_for(over)).unwrap();
    assert!(is_only_thread_of_program());
    in_child("a child", || assert!(is_only_thread_of_program()));
    let (to_other, over) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(wait_for(over));
    assert!(!is_only_thread_of_program());
    drop(to_own);
    assert!(own.join().unwrap() && !is_only_thread_of_program());
    drop(to_other);
    assert!(other.join().unwrap());
    let panicked = spawn("panics", || std::panic::resume_unwind(Box::new(()))).unwrap().join();
    assert!(panicked.is_err());
    // A joined thread may be one of the kernel's for a moment yet.
    while !is_only_thread_of_program() {
        std::thread::yield_now();
    }
}

/// The commands for which this process is registered, a bit each; `None`: the kernel (before 6.3) does not say.
fn registrations() -> Option<i64> {
    const GET_REGISTRATIONS: libc::c_int = 1 << 9;
    // SAFETY: a call without pointers.
    let commands = unsafe { libc::syscall(libc::SYS_membarrier, GET_REGISTRATIONS, 0, 0) };
    (commands >= 0).then_some(commands)
}

fn the_first_thread_of_a_library_finds_its_process_registered_for_barriers() {
    let (private, global) =
        [MembarrierCommand::RegisterPrivateExpedited, MembarrierCommand::RegisterGlobalExpedited]
            .map(|command| i64::from(command as u32))
            .into();
    if registrations().is_none() {
        println!("this kernel does not tell registrations for membarrier");
        return;
    }
    in_child("a process whose first thread is a library's", || {
        assert_eq!(registrations(), Some(0));
        let seen = hca_process::spawn("first", || {
            // With two threads it would take a grace period.
            register_while_alone(MembarrierCommand::RegisterGlobalExpedited);
            registrations()
        });
        assert_eq!(seen.unwrap().join().unwrap(), Some(private));
    });
    in_child("a process with one thread", || {
        register_while_alone(MembarrierCommand::RegisterGlobalExpedited);
        assert_eq!(registrations(), Some(global));
    });
}

fn main() {
    the_first_thread_of_a_library_finds_its_process_registered_for_barriers();
    println!("the first thread of a library finds its process registered for barriers: ok");
    descriptors_that_are_registered_lead_nowhere_in_a_child();
    println!("descriptors that are registered lead nowhere in a child: ok");
    children_are_told_apart_over_generations();
    println!("children are told apart over generations: ok");
    a_child_has_statics_of_its_own_whatever_lock_was_held_at_the_fork();
    println!("a child has statics of its own, whatever lock was held at the fork: ok");
    a_file_beyond_the_limit_is_an_error_and_no_signal();
    println!("a file beyond the limit is an error and no signal: ok");
    threads_of_libraries_are_none_of_the_program();
    println!("threads of libraries are none of the program: ok");
}
