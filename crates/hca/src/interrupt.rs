//! Ctrl-C: the first one asks the command to end, a second one ends it at once.
//!
//! Whatever waits does so in short slices, and looks here between them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How long anything waits without looking whether Ctrl-C was pressed.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Set by Ctrl-C.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether Ctrl-C was pressed: loops end, and the command with 130.
#[inline]
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Listens for Ctrl-C. A second one ends the process at once, unless this process `outlives` them: the peer of a
/// measurement is told to stop by the process that started it.
pub(crate) fn listen(outlives: bool) {
    let handler = move || {
        if INTERRUPTED.swap(true, Ordering::Relaxed) && !outlives {
            std::process::exit(130);
        }
    };
    if let Err(e) = ctrlc::set_handler(handler) {
        eprintln!("hca: Ctrl-C will end this abruptly: {e}");
    }
}

/// What a call yields that can't be given up on by itself, as one that asks a name server; `None` once Ctrl-C was
/// pressed. The call is then left to a thread that ends with the process.
pub(crate) fn unless_interrupted<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, came) = channel();
    std::thread::spawn(move || {
        // Nobody listens any more after Ctrl-C.
        let _ = done.send(call());
    });
    loop {
        match came.recv_timeout(SLICE) {
            Ok(value) => return Some(value),
            Err(RecvTimeoutError::Timeout) if !interrupted() => {}
            Err(_) => return None,
        }
    }
}
