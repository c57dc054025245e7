//! Tethered processes, which do not outlive the process that started them, even if that is killed.
//!
//! ```
//! use std::io::Read;
//! use std::process::Command;
//! use std::sync::Arc;
//!
//! let (mut guard, tell) = std::io::pipe()?;
//! let mut command = Command::new("true");
//! hca_job::tether::tether(&mut command.process_group(0), &Arc::new(tell.into()));
//! # use std::os::unix::process::CommandExt;
//! let mut child = command.spawn()?;
//! let mut number = [0; 4];
//! guard.read_exact(&mut number)?;
//! assert_eq!(i32::from_ne_bytes(number), child.id() as i32);
//! # child.wait()?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Invariants:
//! 1. The code between fork and exec makes system calls, and nothing else: it takes no lock, allocates and frees
//!    nothing, and does not panic, independent of the state of the parent's other threads at the fork.
//! 2. The data that this code uses was created before the fork, and lives until the command is dropped in the parent.
#![allow(unsafe_code)] // `pre_exec`: system calls between fork and exec

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, write};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

/// Ties the process of a command to the thread that starts it.
///
/// - Before its program runs, the process writes its number into the pipe `guard`, as four bytes in the machine's
///   order. It holds the pipe open until its program runs. So when the pipe ends, the reader of its other end knows
///   every process that was started, no matter at which point the starting process was killed. If the pipe has no
///   reader any more, nothing is written.
/// - The process is killed (SIGKILL) when the *thread* that started it ends: start the process from a thread that lives
///   until the process ends. Programs that gain rights when they are executed (setuid, capabilities) are not killed so.
///
/// Processes that the program starts are not tied: the reader of the pipe ends those, by the process's group.
pub fn tether(command: &mut Command, guard: &Arc<OwnedFd>) {
    let (guard, parent) = (guard.clone(), getpid());
    let in_child = move || -> io::Result<()> { Ok(bind(&guard, parent)?) };
    // SAFETY: (1) `bind` is system calls; (2) the closure holds a descriptor that is open, and a number.
    unsafe { command.pre_exec(in_child) };
}

/// The child's part.
fn bind(guard: &OwnedFd, parent: Pid) -> Result<(), Errno> {
    let mut fds = [PollFd::new(guard, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now))?;
    // Without a reader a write would be the end of the process.
    if !fds[0].revents().contains(PollFlags::ERR) {
        write(guard, &getpid().as_raw_pid().to_ne_bytes())?;
    }
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have been killed before that call.
    if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, pipe};
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn the_guard_hears_of_a_process_before_its_program_runs_and_even_if_there_is_none() {
        for program in ["true", "/nonexistent/program"] {
            let (mut guard, tell) = pipe().unwrap();
            let tell = Arc::new(OwnedFd::from(tell));
            let mut command = Command::new(program);
            tether(&mut command, &tell);
            let child = command.spawn();
            drop((command, tell));
            let mut told = Vec::new();
            guard.read_to_end(&mut told).unwrap();
            assert_eq!(told.len(), 4, "{program}");
            if let Ok(mut child) = child {
                assert_eq!(told, (child.id() as i32).to_ne_bytes());
                assert!(child.wait().unwrap().success());
            }
        }
    }

    #[test]
    fn a_process_ends_with_the_thread_that_started_it() {
        let (_guard, tell) = pipe().unwrap();
        let tell = Arc::new(OwnedFd::from(tell));
        let start = move || {
            let mut command = Command::new("sleep");
            tether(command.arg("1000"), &tell);
            command.spawn().unwrap()
        };
        let mut child = std::thread::spawn(start).join().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    }

    #[test]
    fn without_a_guard_a_process_is_started_all_the_same() {
        let (guard, tell) = pipe().unwrap();
        drop(guard);
        let mut command = Command::new("true");
        tether(&mut command, &Arc::new(tell.into()));
        assert!(command.spawn().unwrap().wait().unwrap().success());
    }

    #[test]
    fn whose_parent_is_another_process_by_now_does_not_run() {
        let (_guard, tell) = pipe().unwrap();
        // The setting belongs to the thread, and ends with it.
        let told = std::thread::spawn(move || bind(&tell.into(), getpid())).join().unwrap();
        assert_eq!(told, Err(Errno::SRCH));
    }
}
