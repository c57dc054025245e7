//! The guard process, which ends a job's process groups when the launcher was killed.
//!
//! Each process reports itself to the guard before its program runs, by a pipe that only the launcher and such
//! processes write to ([`tether`](hca_job::tether)). A pipe that ends without a final message means that the launcher
//! is gone.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// The hidden command that is the guard.
pub(crate) const COMMAND: &str = "run-guard";
/// The launcher's last word, in place of a process's number.
const DONE: i32 = 0;
/// How long the processes have between TERM and KILL.
const GRACE: Duration = Duration::from_secs(1);

/// The launcher's end of its guard.
pub(super) struct Guard {
    child: Child,
    tell: Arc<OwnedFd>,
}

impl Guard {
    /// Starts this program again, in its own process group, so that a terminal's signals to the launcher's group do not
    /// reach it.
    pub(super) fn start() -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg(COMMAND)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command.spawn()?;
        let tell = child.stdin.take().expect("its input is a pipe");
        Ok(Self { child, tell: Arc::new(tell.into()) })
    }

    /// Where processes tell it of themselves.
    pub(super) fn pipe(&self) -> &Arc<OwnedFd> {
        &self.tell
    }

    /// The job is over.
    pub(super) fn dismiss(&mut self) {
        // A guard that was killed can't be informed.
        let _ = rustix::io::write(&*self.tell, &DONE.to_ne_bytes());
        let _ = self.child.wait();
    }
}

/// Is the guard.
pub(crate) fn guard() {
    let (mut groups, mut number) = (Vec::new(), [0; 4]);
    // Four bytes are written in one piece.
    while io::stdin().lock().read_exact(&mut number).is_ok() {
        match i32::from_ne_bytes(number) {
            DONE => return,
            group => groups.extend(Pid::from_raw(group)),
        }
    }
    // A group without processes is left alone: its number may be reused.
    groups.retain(|group| kill_process_group(*group, Signal::TERM).is_ok());
    let end = Instant::now() + GRACE;
    while !groups.is_empty() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
        groups.retain(|group| test_kill_process_group(*group).is_ok());
    }
    for group in groups {
        let _ = kill_process_group(group, Signal::KILL);
    }
}
