//! The tables and figures of five papers, with our values beside the published ones.
//!
//! ```text
//! cargo run --release -p hca-benches --features instrument --bin papers -- \
//!     --paper NAME [--fabric shm|udp] [--plot FILE.svg] [--json]
//! ```

mod begel;
mod buonadonna;
mod pedretti;
mod report;
mod schutt;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use hca_benches::args::seconds;
use hca_benches::drivers;
use hca_perf::layers::layer_if_asked;
use hca_perf::{Failure, Setup, peer_if_asked};

use self::report::Report;

const EXAMPLES: &str = "\
Examples:
  papers                                        Pedretti and Brightwell, over shared memory
  papers --paper schutt --plot schutt.svg
  papers --paper begel --fabric udp
  papers --paper buonadonna --json

Each line has the paper's value, ours in the same unit, the ratio, and what is the same and what is not. Times of hosts that are
twenty years apart are no race: what can be compared is the shape, and which part takes how much of the whole. Breakdowns come from
marks inside of a build of its own (--features instrument), whose cost is measured and taken off.

Exit codes: 0 success, 2 failed.";

/// The tables and figures of the papers that the layers come from, beside our own values.
#[derive(Parser)]
#[command(after_long_help = EXAMPLES)]
struct Args {
    /// The paper
    #[arg(long, value_enum, default_value_t = Paper::Pedretti)]
    paper: Paper,
    /// The network of the messages; buonadonna measures both
    #[arg(long, value_enum, default_value_t = Fabric::Shm)]
    fabric: Fabric,
    /// Round trips of Pedretti's tables
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    rounds: u32,
    /// Seconds of a measurement
    #[arg(long, value_name = "SECONDS", default_value = "0.1", value_parser = seconds)]
    time: Duration,
    /// Draw the figures
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// One JSON object a row, and nothing else, on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Paper {
    /// Schutt, prototype InfiniBand hardware, 2001.
    Schutt,
    /// Begel, Buonadonna, Culler, Gay, VI Architecture primitives, March and September 2001.
    Begel,
    /// Buonadonna, an InfiniBand channel adapter, 2001.
    Buonadonna,
    /// Pedretti and Brightwell, Portals in a QsNet adapter, 2004.
    Pedretti,
}

impl Paper {
    fn name(self) -> &'static str {
        match self {
            Self::Schutt => "schutt",
            Self::Begel => "begel",
            Self::Buonadonna => "buonadonna",
            Self::Pedretti => "pedretti",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Fabric {
    /// Shared memory.
    Shm,
    /// UDP sockets.
    Udp,
}

/// The settings of a measurement.
struct Run {
    fabric: Fabric,
    time: Duration,
}

impl Run {
    /// The two processes on the fabric of the arguments.
    fn setup(&self) -> Setup {
        self.on(if self.fabric == Fabric::Shm { "shm" } else { "udp" })
    }
    /// The two processes on shared memory, or over UDP.
    fn on(&self, fabric: &str) -> Setup {
        let name = match fabric {
            "shm" => format!("shm://papers-{}", std::process::id()),
            _ => "udp://".to_owned(),
        };
        Setup::new(name.parse().expect("it is a device's name"))
    }
}

fn main() -> ExitCode {
    peer_if_asked();
    layer_if_asked();
    drivers::child_if_asked();
    match measured(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("papers: {e}");
            ExitCode::from(2)
        }
    }
}

fn measured(args: &Args) -> Result<(), Failure> {
    let run = Run { fabric: args.fabric, time: args.time };
    if run.setup().cpus.is_none() {
        return Err("two CPUs are needed: one for each process".into());
    }
    let mut report = Report::new(args.json, args.paper.name());
    match args.paper {
        Paper::Schutt => schutt::run(&run, &mut report)?,
        Paper::Begel => begel::run(&run, &mut report)?,
        Paper::Buonadonna => buonadonna::run(&run, &mut report)?,
        Paper::Pedretti => pedretti::run(&run, args.rounds, &mut report)?,
    }
    args.plot.as_deref().map_or(Ok(()), |path| report.draw(path))
}
