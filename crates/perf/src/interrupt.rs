//! Signals that ask the command to end: Ctrl-C, SIGTERM, and SIGHUP of a terminal that goes. After the first signal the
//! command ends in order, and removes its files in folders; a second signal ends it at once.
//!
//! Every wait is cut into short slices, and checks for a signal between them.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// The longest wait without a check for Ctrl-C.
pub const SLICE: Duration = Duration::from_millis(50);

/// The signal that came; 0: none.
static TOLD: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// The signal that asked the command to end.
fn told() -> Option<u8> {
    let signal = TOLD.get()?.load(Ordering::Relaxed);
    u8::try_from(signal).ok().filter(|signal| *signal != 0)
}

/// Whether Ctrl-C was pressed, or another signal asked the command to end: loops then end, and so does the command.
#[inline]
pub fn interrupted() -> bool {
    told().is_some()
}

/// The exit code of a command that a signal ended: 130 for Ctrl-C.
pub fn exit_code() -> Option<u8> {
    told().map(|signal| 128 + signal)
}

/// Listens for signals. A second one ends the process at once, unless this process `outlives` Ctrl-C, and the terminal:
/// the peer of a measurement is told to stop by the process that started it.
pub fn listen(outlives: bool) {
    let signals: &[i32] = match outlives {
        true => &[SIGINT, SIGHUP],
        // `nohup` ignores SIGHUP, so that the program continues.
        false if is_ignored(SIGHUP) => &[SIGINT, SIGTERM],
        false => &[SIGINT, SIGTERM, SIGHUP],
    };
    if let Err(e) = signals.iter().try_for_each(|signal| listen_for(*signal, outlives)) {
        eprintln!("hca: Ctrl-C will end the measurement without a result: {e}");
    }
}

fn listen_for(signal: i32, outlives: bool) -> io::Result<()> {
    let told = TOLD.get_or_init(Arc::default);
    if !outlives {
        // Any second one, of whatever kind: what is registered first is looked at first.
        static CAME: OnceLock<Arc<AtomicBool>> = OnceLock::new();
        let came = CAME.get_or_init(Arc::default);
        flag::register_conditional_shutdown(signal, 128 + signal, came.clone())?;
        flag::register(signal, came.clone())?;
    }
    flag::register_usize(signal, told.clone(), signal as usize).map(drop)
}

/// Whether a signal was ignored already when this process was started.
pub fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 != 0)
}

/// The result of a call that can't be interrupted, such as a name lookup; `None` once Ctrl-C was pressed. The call is
/// then left to a thread that ends with the process.
pub fn unless_interrupted<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, came) = channel();
    std::thread::spawn(move || {
        // After Ctrl-C the receiver is gone.
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
