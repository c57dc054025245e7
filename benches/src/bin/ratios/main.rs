//! The project's performance targets, measured: each figure as a ratio to a floor or a peer of the same
//! minute, from interleaved pairs of one placement of the CPUs.
//!
//! ```text
//! cargo run --release -p hca-benches --bin ratios -- [--fabric udp|shm|portals|matching|vfio-user|layers] [--plot FILE.svg] [--json] [--only NAME,..] [--device URL] [--time SECONDS]
//! ```

mod layers;
mod matching;
mod network;
mod portals;
mod shm;
mod vfio_user;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use hca::DeviceUrl;
use hca_benches::args::seconds;
use hca_benches::floor::{self, Figures, Floor};
use hca_benches::plot::{Bar, plot};
use hca_benches::ratio::{Better, Ratio, Sample, Target, WANTED_PAIRS, interleave, met, plain, verdict};
use hca_benches::{crowd, duo, engines, idle, members, served, turns};
use hca_perf::Failure;
use hca_perf::{Case, Limit, Op, Pair, Phase, Service, Setup, Size};

const EXAMPLES: &str = "\
Examples:
  ratios                                          packets over UDP, and over raw Ethernet
  ratios --fabric portals                         Portals beside the verbs, and beside published figures
  ratios --fabric matching                        what Portals matching costs beside its memory
  ratios --fabric vfio-user                       the ConnectX driver on functions that are served
  ratios --fabric layers --device udp://          Active Messages beside the verbs, over UDP
  ratios --fabric shm --plot ratios-shm.svg       shared memory, and a drawing
  ratios --fabric shm --only 'send 8 B one way'   one row
  ratios --fabric shm --only turns,idle           peers that take turns, peers that say nothing
  ratios --fabric shm --device shm://mine?ring=65536 --only rate
  ratios --only shared                            processes at a shared address
  ratios --fabric shm --only adapters             threads with adapters of their own
  ratios --only stream,loss --time 1 --json

Two CPUs are needed; each of the two processes is bound to one. A row is the median of 7 pairs of
one placement of the CPUs (near or far), out of 24 at most; lowest and highest are of the same
pairs. Any part of a name without a comma names a row for --only. Raw rows need the right to make
network namespaces, and have no figures without it.

Exit codes: 0 every target was met, 1 one was missed or could not be measured, 2 failed.";

/// Measures the project's performance targets as ratios to floors of the same minute.
#[derive(Parser)]
#[command(after_long_help = EXAMPLES)]
struct Args {
    /// Which targets
    #[arg(long, value_enum, default_value_t = Fabric::Udp)]
    fabric: Fabric,
    /// One JSON object a line, and nothing else, on standard output
    #[arg(long)]
    json: bool,
    /// Draw how many times better ours is than each floor, or worse
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Only the targets whose names contain one of these
    #[arg(long, value_delimiter = ',', value_name = "NAME,..")]
    only: Vec<String>,
    /// Another device than the fabric's, for both processes; raw rows have their own
    #[arg(long, value_name = "URL")]
    device: Option<DeviceUrl>,
    /// Seconds of each run of a pair
    #[arg(long, value_name = "SECONDS", default_value = "0.25", value_parser = seconds)]
    time: Duration,
}

/// Whose targets are measured.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Fabric {
    /// Packets over UDP sockets, and raw Ethernet.
    Udp,
    /// Shared memory.
    Shm,
    /// UDP sockets and shared memory, for Portals.
    Portals,
    /// None: the Portals matching engine alone.
    Matching,
    /// Functions of an adapter that another process serves, and the ConnectX driver on them.
    VfioUser,
    /// VIs, Active Messages over verbs and over VIs, and global memory; on shared memory and over UDP.
    Layers,
}

impl Fabric {
    fn device(self) -> DeviceUrl {
        match self {
            // The engine needs none, and no process beside its own. Functions are served for each row.
            Self::Udp | Self::Portals | Self::Matching | Self::VfioUser => {
                "udp://".parse().expect("it is a device's name")
            }
            // A domain of its own, so that nobody else is in it.
            Self::Shm | Self::Layers => {
                format!("shm://ratios-{}", std::process::id()).parse().expect("it is a device's name")
            }
        }
    }

    fn rows(self) -> &'static [Row] {
        match self {
            Self::Udp => &network::ROWS,
            Self::Shm => &shm::ROWS,
            Self::Portals => &portals::ROWS,
            Self::Matching => &matching::ROWS,
            Self::VfioUser => &vfio_user::ROWS,
            Self::Layers => &layers::ROWS,
        }
    }
}

/// How a row's figures are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// Nanoseconds.
    Ns,
    /// Bytes a second.
    Bytes,
    /// Messages a second.
    Messages,
    /// Messages of 64 KiB a second.
    Blocks,
    /// A number that has no floor.
    Alone,
}

/// A row of the table.
struct Row {
    name: &'static str,
    against: &'static str,
    /// `None`: the floor is shown, and nothing asked for.
    target: Option<Target>,
    unit: Unit,
    /// `None`: it can't be measured here, and standard error says why.
    measure: fn(&Bench) -> Result<Option<Ratio>, Failure>,
}

impl Row {
    /// The measurement as it is judged: a figure that has no floor needs no second one.
    fn judged(&self, measured: Option<&Ratio>) -> Option<Ratio> {
        let pairs = |m: &Ratio| if self.unit == Unit::Alone { WANTED_PAIRS } else { m.pairs };
        measured.map(|m| Ratio { pairs: pairs(m), ..m.clone() })
    }
}

const fn less(must: f64, aim: Option<f64>) -> Option<Target> {
    Some(Target { better: Better::Less, must, aim })
}
const fn more(must: f64, aim: Option<f64>) -> Option<Target> {
    Some(Target { better: Better::More, must, aim })
}
const fn rc(op: Op, size: u64) -> Case {
    Case { service: Service::Rc, op, size: Size::of(size), foreign: false }
}

/// What rows are measured with.
struct Bench {
    /// The device, if one was named.
    named: Option<DeviceUrl>,
    device: DeviceUrl,
    cpus: (usize, usize),
    time: Duration,
}

impl Bench {
    fn limit(&self) -> Limit {
        Limit::Time(self.time)
    }
    fn pair(&self) -> Result<Pair, Failure> {
        Pair::start(&Setup::new(self.device.clone()))
    }
    fn floor(&self, floor: Floor) -> Result<Figures, Failure> {
        Ok(floor::run(floor, self.cpus.0, self.cpus.1, self.time)?)
    }
    fn interleave(
        &self,
        ours: impl FnMut() -> Result<f64, Failure>,
        floor: impl FnMut() -> Result<f64, Failure>,
    ) -> Result<Vec<Sample>, Failure> {
        interleave(self.cpus, ours, floor)
    }
    /// The median latency in ns.
    fn p50(&self, pair: &mut Pair, case: &Case) -> Result<f64, Failure> {
        Ok(pair.run(case, Phase::Latency, self.limit())?.latencies.value_at_quantile(0.5) as f64)
    }
    /// Messages of a stream a second.
    fn rate(&self, pair: &mut Pair, case: &Case) -> Result<f64, Failure> {
        Ok(pair.run(case, Phase::Stream, self.limit())?.rate())
    }
}

fn main() -> ExitCode {
    hca_perf::peer_if_asked();
    floor::far_side_if_asked();
    idle::child_if_asked();
    duo::child_if_asked();
    crowd::child_if_asked();
    members::child_if_asked();
    engines::child_if_asked();
    turns::child_if_asked();
    served::child_if_asked();
    hca_perf::layers::layer_if_asked();
    let args = Args::parse();
    match all(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            eprintln!("ratios: {e}");
            ExitCode::from(2)
        }
    }
}

/// Measures and prints; whether every target was met.
fn all(args: &Args) -> Result<bool, Failure> {
    let device = args.device.clone().unwrap_or_else(|| args.fabric.device());
    let cpus = Setup::new(device.clone()).cpus.ok_or("two CPUs are needed: one for each process")?;
    let bench = Bench { named: args.device.clone(), device, cpus, time: args.time };
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "what", "against", "ours", "floor", "ratio", "lowest", "highest", "pairs", "must", "aim", "",
    ]);
    table.column_iter_mut().skip(2).take(8).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    let asked = |r: &&Row| args.only.is_empty() || args.only.iter().any(|o| r.name.contains(o.as_str()));
    let (mut good, mut bars) = (true, Vec::new());
    if !args.fabric.rows().iter().any(|r| asked(&r)) {
        let names: Vec<_> = args.fabric.rows().iter().map(|r| r.name).collect();
        return Err(format!("no target has such a name; they are: {}", names.join("; ")).into());
    }
    for row in args.fabric.rows().iter().filter(asked) {
        eprintln!("{}", row.name);
        let measured = (row.measure)(&bench)?;
        good &= met(row.target, row.judged(measured.as_ref()).as_ref()) != Some(false);
        if args.json {
            println!("{}", as_json(row, measured.as_ref()));
        }
        table.add_row(cells(row, measured.as_ref()));
        bars.extend(measured.and_then(|m| bar(row, &m)));
    }
    if !args.json {
        println!("{table}");
    }
    if let Some(path) = &args.plot {
        plot(path, "its floors", &bars)?;
        eprintln!("drawn to {}", path.display());
    }
    Ok(good)
}

/// How many times better ours is than its floor.
fn bar(row: &Row, m: &Ratio) -> Option<Bar> {
    let better = |ratio: f64| match row.unit {
        Unit::Ns => Some(1.0 / ratio),
        Unit::Bytes | Unit::Messages | Unit::Blocks => Some(ratio),
        Unit::Alone => None,
    };
    let (a, b) = (better(m.low)?, better(m.high)?);
    Some(Bar {
        what: row.name.to_owned(),
        peer: row.against.to_owned(),
        better: better(m.median)?,
        span: a.min(b)..a.max(b),
        placement: m.placement.to_string(),
    })
}

/// A figure that has no floor.
fn single(value: f64) -> Ratio {
    let placement = hca_perf::probe::Placement::Unknown;
    Ratio { median: value, low: value, high: value, ours: value, floor: 1.0, pairs: 1, placement }
}

fn figure(unit: Unit, x: f64) -> String {
    match unit {
        Unit::Ns if x < 1e3 => format!("{x:.1} ns"),
        Unit::Ns => format!("{:.2} us", x / 1e3),
        Unit::Bytes => format!("{:.2} GB/s", x / 1e9),
        Unit::Blocks => format!("{:.2} GB/s", x * 65_536.0 / 1e9),
        Unit::Messages => format!("{:.2} M/s", x / 1e6),
        Unit::Alone => plain(x),
    }
}

fn cells(row: &Row, measured: Option<&Ratio>) -> Vec<String> {
    let alone = row.unit == Unit::Alone;
    let shown = |f: &dyn Fn(&Ratio) -> String| measured.map(f).unwrap_or_default();
    let beside = |f: &dyn Fn(&Ratio) -> String| if alone { String::new() } else { shown(f) };
    vec![
        row.name.to_owned(),
        row.against.to_owned(),
        shown(&|m| figure(row.unit, m.ours)),
        beside(&|m| figure(row.unit, m.floor)),
        shown(&|m| plain(m.median)),
        beside(&|m| plain(m.low)),
        beside(&|m| plain(m.high)),
        beside(&|m| format!("{} {}", m.pairs, m.placement)),
        row.target.map(|t| t.to_string()).unwrap_or_default(),
        row.target.and_then(|t| t.aim).map(plain).unwrap_or_default(),
        verdict(row.target, row.judged(measured).as_ref()).to_owned(),
    ]
}

fn as_json(row: &Row, measured: Option<&Ratio>) -> serde_json::Value {
    serde_json::json!({
        "name": row.name,
        "against": row.against,
        "ratio": measured.map(|m| m.median),
        "low": measured.map(|m| m.low),
        "high": measured.map(|m| m.high),
        "ours": measured.map(|m| m.ours),
        "floor": measured.map(|m| m.floor),
        "pairs": measured.map_or(0, |m| m.pairs),
        "placement": measured.map(|m| m.placement),
        "must": row.target.map(|t| t.must),
        "aim": row.target.and_then(|t| t.aim),
        "met": met(row.target, row.judged(measured).as_ref()),
    })
}
