//! Measures devices between two processes: latency, bandwidth and message rate of verbs and of Portals.
//!
//! `hca perf` prints the results; benches compare them with floors. A program that measures first calls
//! [`peer_if_asked`], then [`Pair::start`], which starts the program once more as the other side.
//!
//! | module | contents |
//! |---|---|
//! | [`plan`] | operations, services, sizes: the rows |
//! | `control`, `channel` | the control protocol of the two processes, and its connection |
//! | [`portals`] | the same for Portals |
//! | [`layers`] | LogP of verbs, VIs, Active Messages, global memory and Portals |
//! | [`batches`], [`child`] | times below the step of the clock; other processes of the same program |
//! | `side` | one side's queue pair and memory, through the safe verbs |
//! | `stamps` | the stamps that the messages of a latency carry |
//! | `run` | the measuring side; [`Pair`] starts it |
//! | [`peer`] | the side that answers |
//! | `json` | [`Row`]: the results of one row |
//! | [`probe`] | the distance of two CPUs, which every latency depends on |
//! | [`interrupt`] | Ctrl-C and other signals, which end a measurement |
//! | `fuzzed` | the fuzz target of the control protocol, in tests and under the fuzzer only |
#![forbid(unsafe_code)]

#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}

pub mod batches;
mod channel;
pub mod child;
mod control;
#[cfg(any(test, fuzzing))]
mod fuzzed;
pub mod interrupt;
mod json;
pub mod layers;
pub mod peer;
pub mod plan;
pub mod portals;
pub mod probe;
mod run;
mod side;
mod stamps;

use std::time::Duration;

use clap::Parser;

pub use control::Phase;
#[cfg(fuzzing)]
pub use fuzzed::control as fuzz_control;
pub use json::{FIELDS, Row};
pub use peer::PeerArgs;
pub use plan::{Case, Layer, Memory, Op, Plan, Service, Size, bytes_text};
pub use run::{Limit, Measured, Pair, PairError, Setup, device_at};

/// The colours of the series of a chart, in their order: red, green and blue, 0 to 255.
pub const COLOURS: [[u8; 3]; 8] = [
    [31, 90, 180],
    [214, 96, 20],
    [30, 140, 70],
    [160, 30, 110],
    [90, 160, 230],
    [240, 170, 70],
    [110, 200, 120],
    [120, 120, 120],
];

/// The error of a failed measurement or command, which names the remedy.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The hidden command that makes a process the peer of a measurement.
pub const PEER_COMMAND: &str = "__peer";
/// TCP port of the control channel between hosts.
pub const CONTROL_PORT: u16 = 18516;
/// The default time for a row.
pub const DEFAULT_DURATION: Duration = Duration::from_millis(800);

/// The default limit of a listener's memory for one measurement.
pub const DEFAULT_MEMORY: Memory = Memory(512 << 20);

/// Becomes the peer of a measurement if this process was started as one by [`Pair::start`]. To be called
/// first in `main` of every program that measures.
pub fn peer_if_asked() {
    if std::env::args().nth(1).as_deref() == Some(PEER_COMMAND) {
        let done = peer::serve_standard_streams(&PeerArgs::parse_from(std::env::args_os().skip(1)));
        if let Err(e) = &done {
            eprintln!("peer: {e}");
        }
        std::process::exit(i32::from(done.is_err()));
    }
}
