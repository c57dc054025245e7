//! What a user would pick instead: the messaging libraries that Debian packages, measured by their own programs.
//!
//! | peer | package | its program |
//! |---|---|---|
//! | UCX | `ucx-utils` | `ucx_perftest` |
//! | libfabric | `libfabric-bin` | `fi_pingpong`, which keeps one message under way: latency only |
//! | Open MPI | `openmpi-bin`, `libopenmpi-dev` | `exchange.c` beside this file, built by its `mpicc`, since the package has none |
//! | sockets | `sockperf` | `sockperf`: latency only, since what it sends by UDP need not arrive |

mod process;
mod programs;

use core::fmt;
use std::time::Duration;

use crate::ratio::Better;

pub use process::{PeerError, find, leash_if_asked};
use programs::Program;

/// Messages of the first run of a program, which tells how many the next one takes; of long ones as many as have so
/// many bytes.
const FIRST_COUNT: u64 = 2000;
const FIRST_BYTES: u64 = 128 << 20;
/// Messages of a run.
const COUNTS: std::ops::RangeInclusive<u64> = 64..=20_000_000;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Half of a round trip of messages of this size.
    SendLatency(u64),
    /// Half of a round trip of one-sided writes of this size.
    PutLatency(u64),
    /// A stream of messages of this size, in bytes.
    SendBandwidth(u64),
    /// A stream of one-sided writes of this size, in bytes.
    PutBandwidth(u64),
    /// A stream of 8-byte messages, by their number.
    SendRate,
    /// A stream of 8-byte one-sided writes, by their number.
    PutRate,
}

impl What {
    /// All that is compared.
    pub const ALL: [Self; 9] = [
        Self::SendLatency(8),
        Self::SendLatency(4 << 10),
        Self::SendLatency(64 << 10),
        Self::PutLatency(8),
        Self::SendBandwidth(1 << 20),
        Self::PutBandwidth(64 << 10),
        Self::PutBandwidth(1 << 20),
        Self::SendRate,
        Self::PutRate,
    ];

    /// Bytes a message.
    pub fn size(self) -> u64 {
        match self {
            Self::SendLatency(n) | Self::PutLatency(n) | Self::SendBandwidth(n) | Self::PutBandwidth(n) => n,
            Self::SendRate | Self::PutRate => 8,
        }
    }
    /// Which way is better.
    pub fn better(self) -> Better {
        if self.is_latency() { Better::Less } else { Better::More }
    }
    /// Whether one message at a time is under way; its figure is in ns.
    pub fn is_latency(self) -> bool {
        matches!(self, Self::SendLatency(_) | Self::PutLatency(_))
    }
    /// Whether it is one-sided.
    pub fn is_put(self) -> bool {
        matches!(self, Self::PutLatency(_) | Self::PutBandwidth(_) | Self::PutRate)
    }
    /// Whether its figure is in bytes a second.
    pub fn is_bandwidth(self) -> bool {
        matches!(self, Self::SendBandwidth(_) | Self::PutBandwidth(_))
    }

    /// A figure with its unit.
    pub fn figure(self, x: f64) -> String {
        match self {
            _ if self.is_latency() && x < 1e3 => format!("{x:.0} ns"),
            _ if self.is_latency() => format!("{:.2} us", x / 1e3),
            _ if self.is_bandwidth() => format!("{:.2} GB/s", x / 1e9),
            _ => format!("{:.2} M/s", x / 1e6),
        }
    }

    /// The figure of a stream that takes so many messages a second.
    pub fn of_rate(self, per_second: f64) -> f64 {
        if self.is_bandwidth() { per_second * self.size() as f64 } else { per_second }
    }

    /// The time that a message took in a run that gave this figure, in ns.
    fn ns_a_message(self, figure: f64) -> f64 {
        match self {
            // The half of a round trip.
            _ if self.is_latency() => 2.0 * figure,
            _ if self.is_bandwidth() => 1e9 * self.size() as f64 / figure,
            _ => 1e9 / figure,
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = if self.is_put() { "put" } else { "send" };
        let kind = match self {
            _ if self.is_latency() => "latency",
            _ if self.is_bandwidth() => "bandwidth",
            _ => "rate",
        };
        f.pad(&format!("{op} {} {kind}", hca_perf::bytes_text(self.size())))
    }
}

/// What carries a peer's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Memory that two processes share.
    Memory,
    /// Sockets on the loopback interface.
    Sockets,
}

/// A peer.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its name.
    pub name: &'static str,
    /// What carries its messages.
    pub over: Over,
    program: Program,
}

impl Peer {
    /// All of them.
    pub const ALL: [Self; 13] = programs::PEERS;

    /// Whether it has something of this kind, and a program that measures it.
    pub fn offers(&self, what: What) -> bool {
        self.program.offers(what)
    }

    /// Whether its receiver does not even read this, so that it is no measure of what brings it to the receiver's
    /// memory.
    pub fn leaves_unread(&self, what: What) -> bool {
        self.program.leaves_unread(what)
    }

    /// What has to be installed before it can run.
    ///
    /// # Errors
    /// The first program that is missing, and its package.
    pub fn installed(&self) -> Result<(), PeerError> {
        let missing = self.program.needs().iter().find(|(program, _)| find(program).is_none());
        missing.map_or(Ok(()), |&(program, package)| Err(PeerError::Missing { program, package }))
    }

    /// Runs of it for one thing, of about `time` each.
    ///
    /// # Errors
    /// It can't be run: the first run has been made, to know how many messages a run takes.
    pub fn runs(&self, what: What, cpus: (usize, usize), time: Duration) -> Result<Runs, PeerError> {
        self.installed()?;
        let mut runs = Runs { program: self.program, what, cpus, time, count: first_count(what) };
        runs.run()?;
        Ok(runs)
    }
}

/// Messages of the first run.
fn first_count(what: What) -> u64 {
    FIRST_COUNT.min(FIRST_BYTES / what.size()).max(*COUNTS.start())
}

/// Runs of a peer.
pub struct Runs {
    program: Program,
    what: What,
    cpus: (usize, usize),
    time: Duration,
    count: u64,
}

impl Runs {
    /// One run; its figure is in ns, or a second, as `what` has it.
    ///
    /// # Errors
    /// The program can't be run, or does not end.
    pub fn run(&mut self) -> Result<f64, PeerError> {
        let figure = self.program.run(self.what, self.count, self.cpus)?;
        let fits = self.time.as_nanos() as f64 / self.what.ns_a_message(figure);
        // A run that the machine disturbed does not make the next one tiny.
        let next = (fits as u64).clamp(self.count / 4, self.count.saturating_mul(100));
        self.count = next.clamp(*COUNTS.start(), *COUNTS.end());
        Ok(figure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_figures_tell_what_is_compared() {
        let shown = |w: What| w.to_string();
        assert_eq!(shown(What::SendLatency(8)), "send 8 B latency");
        assert_eq!(shown(What::PutBandwidth(1 << 20)), "put 1 MiB bandwidth");
        assert_eq!(shown(What::SendRate), "send 8 B rate");
        assert_eq!(What::SendLatency(8).figure(140.4), "140 ns");
        assert_eq!(What::PutBandwidth(8).figure(2.5e9), "2.50 GB/s");
        assert_eq!(What::PutRate.figure(2.5e6), "2.50 M/s");
    }

    #[test]
    fn the_time_of_a_message_follows_from_the_figure() {
        assert_eq!(What::SendLatency(8).ns_a_message(100.0), 200.0);
        assert_eq!(What::SendBandwidth(1000).ns_a_message(1e9), 1000.0);
        assert_eq!(What::SendRate.ns_a_message(1e7), 100.0);
    }

    #[test]
    fn a_first_run_is_short_whatever_its_messages_are() {
        assert_eq!(first_count(What::SendLatency(8)), FIRST_COUNT);
        assert_eq!(first_count(What::PutBandwidth(64 << 10)), FIRST_COUNT);
        assert_eq!(first_count(What::PutBandwidth(1 << 20)), 128);
    }

    #[test]
    fn a_missing_program_names_its_package() {
        for peer in Peer::ALL {
            for (program, package) in peer.program.needs() {
                let e = PeerError::Missing { program, package }.to_string();
                assert!(e.contains(program) && e.contains(&format!("apt-get install {package}")), "{e}");
            }
        }
    }

    #[test]
    fn every_comparison_has_peers_over_memory_and_over_sockets() {
        for what in What::ALL {
            for over in [Over::Memory, Over::Sockets] {
                assert!(Peer::ALL.iter().any(|p| p.over == over && p.offers(what)), "{what} {over:?}");
            }
        }
    }
}
