//! The far side of a measurement: the same program, started with a command of its own.

use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

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
