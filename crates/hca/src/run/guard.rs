//! The process that ends a job's groups where the launcher was killed, and so could not.
//!
//! It hears of each group by a pipe that only the launcher writes to. A pipe that ends without a last word means that
//! the launcher is gone.

use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

/// The hidden command that is the guard.
pub(crate) const COMMAND: &str = "run-guard";
/// The launcher's last word.
const DONE: &str = "done";
/// How long the processes have between TERM and KILL.
const GRACE: Duration = Duration::from_secs(1);

/// The launcher's end of its guard.
pub(super) struct Guard {
    child: Child,
    tell: ChildStdin,
}

impl Guard {
    /// Starts this program again, in a group of its own, so that what a terminal sends to the launcher's does not reach it.
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
        Ok(Self { child, tell })
    }

    /// Tells it of a group.
    pub(super) fn watch(&mut self, group: Pid) {
        // Without a guard the job is as before, but for the death of its launcher.
        let _ = writeln!(self.tell, "{}", group.as_raw_pid());
    }

    /// The job is over.
    pub(super) fn dismiss(&mut self) {
        let _ = writeln!(self.tell, "{DONE}");
        let _ = self.child.wait();
    }
}

/// Is the guard.
pub(crate) fn guard() {
    let mut groups = Vec::new();
    for line in io::stdin().lock().lines() {
        match line {
            Ok(line) if line == DONE => return,
            Ok(line) => groups.extend(line.parse().ok().and_then(Pid::from_raw)),
            Err(_) => break,
        }
    }
    for signal in [Signal::TERM, Signal::KILL] {
        for group in &groups {
            let _ = kill_process_group(*group, signal);
        }
        if signal == Signal::TERM {
            std::thread::sleep(GRACE);
        }
    }
}
