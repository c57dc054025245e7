//! The far side of a measurement: the same program, started with a command of its own.

use std::process::{Child, ExitStatus};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Failure;

/// How long a process may take to end.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Runs `serve` with the arguments behind `command`, and ends the process, if that is what it was started for.
pub fn serve_if_asked(command: &str, what: &str, serve: impl FnOnce(&[String]) -> Result<(), Failure>) {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((first, args)) = args.split_first() else { return };
    if first != command {
        return;
    }
    let done = serve(args);
    if let Err(e) = &done {
        eprintln!("{what}: {e}");
    }
    std::process::exit(i32::from(done.is_err()));
}

/// Waits until a process that was told to end has ended; one that does not is killed.
pub fn wait_for_end(child: &mut Child) {
    own_end(child);
}

/// As [`wait_for_end`]. Returns the status of a process that was not killed here.
pub(crate) fn own_end(child: &mut Child) -> Option<ExitStatus> {
    let (begin, mut killed) = (Instant::now(), false);
    loop {
        match child.try_wait() {
            Ok(None) => {}
            Ok(status) => return status.filter(|_| !killed),
            Err(_) => return None,
        }
        if begin.elapsed() > LAST_WORDS {
            killed = child.kill().is_ok();
        }
        // There is no wait with a limit; nothing is measured here.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `run`, which waits for another process and does not reap it. A process for which that takes longer than `limit`
/// is killed, as it may hang; then the result is `true`.
pub(crate) fn within<T>(limit: Duration, other: Pid, run: impl FnOnce() -> T) -> (T, bool) {
    let (over, ended) = channel::<()>();
    std::thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let is_late = ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            is_late && kill_process(other, Signal::KILL).is_ok()
        });
        let done = run();
        drop(over);
        (done, watch.join().unwrap_or(false))
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_that_hangs_is_killed_and_one_that_does_not_is_left_alone() {
        let mut hangs = Command::new("sleep").arg("1000").stdout(Stdio::piped()).spawn().unwrap();
        let (mut said, pid) = (hangs.stdout.take().unwrap(), Pid::from_child(&hangs));
        let read = || said.read(&mut [0; 8]).unwrap();
        assert_eq!(within(Duration::from_millis(20), pid, read), (0, true));
        assert!(!hangs.wait().unwrap().success());
        let mut lives = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        assert_eq!(within(Duration::from_secs(1000), Pid::from_child(&lives), || 7), (7, false));
        drop(lives.stdin.take());
        assert!(lives.wait().unwrap().success());
    }
}
