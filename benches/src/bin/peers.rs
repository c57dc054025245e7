//! Ours beside what a user would pick instead: the messaging libraries that Debian packages, in interleaved pairs of
//! one placement of the CPUs.
//!
//! ```text
//! cargo run --release -p hca-benches --bin peers -- [--fabric shm,udp,raw] [--plot FILE.svg] [--json] [--only NAME,..] [--time SECONDS]
//! ```

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use hca::DeviceUrl;
use hca_benches::args::seconds;
use hca_benches::duo::{self, Duo, Kind};
use hca_benches::peers::{Over, Peer, PeerError, Runs, What, leash_if_asked};
use hca_benches::plot::{Bar, plot};
use hca_benches::ratio::{Better, Ratio, Sample, Target, interleave, met, plain, summary, verdict};
use hca_perf::Failure;
use hca_perf::{Case, Limit, Op, Pair, Phase, Service, Setup, Size};

const EXAMPLES: &str = "\
Examples:
  peers                                     every fabric beside every peer that is installed
  peers --fabric shm --plot peers-shm.svg   shared memory, and a drawing
  peers --fabric shm --only '8 B latency'   the rows of all peers that do it
  peers --only UCX,'Open MPI' --json
  peers --fabric udp,raw --only latency --time 1

A name is what stands in the columns what and peer, as `send 8 B latency UCX tags`; any part of it
will do. Peers are programs of the packages ucx-utils, libfabric-bin, openmpi-bin (with
libopenmpi-dev and gcc) and sockperf; those that are missing are told, and left out. raw needs
CAP_NET_RAW.

Exit codes: 0 something was compared, whatever came out; 2 nothing was.";

/// Measures ours beside the messaging libraries that Debian packages.
#[derive(Parser)]
#[command(after_long_help = EXAMPLES)]
struct Args {
    /// Which of our fabrics
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["shm", "udp", "raw"])]
    fabric: Vec<Fabric>,
    /// One JSON object a line, and nothing else, on standard output
    #[arg(long)]
    json: bool,
    /// Draw how many times better ours is
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Only rows that have one of these in their names, as `put`, or `UCX`, or `8 B latency UCX tags`
    #[arg(long, value_delimiter = ',', value_name = "NAME,..")]
    only: Vec<String>,
    /// Seconds of each run of a pair, about
    #[arg(long, value_name = "SECONDS", default_value = "0.25", value_parser = seconds)]
    time: Duration,
}

/// What carries our messages.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Fabric {
    /// Shared memory.
    Shm,
    /// UDP sockets.
    Udp,
    /// Ethernet frames on the loopback interface, which no packaged peer sends: beside peers over sockets.
    Raw,
}

impl Fabric {
    fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Udp => "udp",
            Self::Raw => "raw",
        }
    }
    fn device(self) -> DeviceUrl {
        let url = match self {
            // A domain of its own, so that nobody else is in it.
            Self::Shm => format!("shm://peers-{}", std::process::id()),
            Self::Udp => "udp://".to_owned(),
            Self::Raw => "raw://lo".to_owned(),
        };
        url.parse().expect("it is a device's name")
    }
    fn over(self) -> Over {
        if self == Self::Shm { Over::Memory } else { Over::Sockets }
    }
    /// What this project asks of itself beside a peer.
    fn target(self, what: What, peer: &Peer) -> Option<Target> {
        let less = |must, aim| Some(Target { better: Better::Less, must, aim });
        let more = |must| Some(Target { better: Better::More, must, aim: None });
        match (self, what) {
            (Self::Shm, What::SendLatency(8)) if peer.name == "UCX tags" => less(0.8, None),
            (Self::Shm, What::SendLatency(4096)) => less(0.9, Some(0.6)),
            (Self::Shm, What::SendBandwidth(_)) => more(1.6),
            (Self::Shm, What::SendRate) => more(1.0),
            _ => None,
        }
    }
}

/// One comparison.
struct Row {
    fabric: Fabric,
    what: What,
    peer: &'static Peer,
    measured: Option<Ratio>,
    /// No peer does better here.
    best: bool,
}

impl Row {
    fn target(&self) -> Option<Target> {
        if self.is_unread() { None } else { self.fabric.target(self.what, self.peer) }
    }

    fn is_unread(&self) -> bool {
        self.peer.leaves_unread(self.what)
    }

    /// What stands behind the peer's name.
    fn mark(&self) -> &'static str {
        match (self.best, self.is_unread()) {
            (true, _) => " *",
            (false, true) => " +",
            (false, false) => "",
        }
    }

    /// How many times better ours is, of a ratio of ours to theirs.
    fn better(&self, ratio: f64) -> f64 {
        if self.what.better() == Better::Less { 1.0 / ratio } else { ratio }
    }

    fn bar(&self) -> Option<Bar> {
        let m = self.measured.as_ref()?;
        let (a, b) = (self.better(m.low), self.better(m.high));
        Some(Bar {
            what: format!("{} {}", self.fabric.name(), self.what),
            peer: format!("{}{}", self.peer.name, self.mark()),
            better: self.better(m.median),
            span: a.min(b)..a.max(b),
            placement: m.placement.to_string(),
        })
    }

    fn cells(&self) -> Vec<String> {
        let shown = |f: &dyn Fn(&Ratio) -> String| self.measured.as_ref().map(f).unwrap_or_default();
        vec![
            self.fabric.name().to_owned(),
            self.what.to_string(),
            format!("{}{}", self.peer.name, self.mark()),
            shown(&|m| self.what.figure(m.ours)),
            shown(&|m| self.what.figure(m.floor)),
            shown(&|m| plain(m.median)),
            shown(&|m| plain(m.low)),
            shown(&|m| plain(m.high)),
            shown(&|m| format!("{} {}", m.pairs, m.placement)),
            shown(&|m| if self.better(m.median) >= 1.0 { "ours" } else { "peer" }.to_owned()),
            self.target().map(|t| t.to_string()).unwrap_or_default(),
            self.target().and_then(|t| t.aim).map(plain).unwrap_or_default(),
            verdict(self.target(), self.measured.as_ref()).to_owned(),
        ]
    }

    fn json(&self) -> serde_json::Value {
        let m = self.measured.as_ref();
        serde_json::json!({
            "fabric": self.fabric.name(),
            "what": self.what.to_string(),
            "peer": self.peer.name,
            "best": self.best,
            "unread": self.is_unread(),
            "ours": m.map(|m| m.ours),
            "theirs": m.map(|m| m.floor),
            "ratio": m.map(|m| m.median),
            "low": m.map(|m| m.low),
            "high": m.map(|m| m.high),
            "better": m.map(|m| self.better(m.median)),
            "pairs": m.map_or(0, |m| m.pairs),
            "placement": m.map(|m| m.placement),
            "must": self.target().map(|t| t.must),
            "aim": self.target().and_then(|t| t.aim),
            "met": met(self.target(), m),
        })
    }
}

fn main() -> ExitCode {
    leash_if_asked();
    hca_perf::peer_if_asked();
    duo::child_if_asked();
    match all(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("peers: {e}");
            ExitCode::from(2)
        }
    }
}

fn all(args: &Args) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let mut missing = Vec::new();
    for &fabric in &args.fabric {
        for what in What::ALL {
            match compare(args, fabric, what, &mut missing) {
                Ok(more) => {
                    if args.json {
                        more.iter().for_each(|r| println!("{}", r.json()));
                    }
                    rows.extend(more);
                }
                // The next fabric may be better off.
                Err(e) => {
                    eprintln!("left out: {} {what}: {e}", fabric.name());
                    break;
                }
            }
        }
    }
    if rows.is_empty() {
        return Err("nothing was compared: install a peer, or ask for other names".into());
    }
    if !args.json {
        println!("{}\n\n* the best of the peers", table(&rows));
        if rows.iter().any(Row::is_unread) {
            println!(
                "+ its receiver never reads the message: shown, and no peer in what has to bring it to memory"
            );
        }
    }
    if let Some(path) = &args.plot {
        plot(path, "each peer", &rows.iter().filter_map(Row::bar).collect::<Vec<_>>())?;
        eprintln!("drawn to {}", path.display());
    }
    Ok(())
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "fabric", "what", "peer", "ours", "theirs", "ratio", "lowest", "highest", "pairs", "better", "must",
        "aim", "",
    ]);
    table.column_iter_mut().skip(3).take(6).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    rows.iter().for_each(|r| {
        table.add_row(r.cells());
    });
    table
}

/// One thing beside all peers that do it. A peer that can't be run is told once, and left out.
fn compare(args: &Args, fabric: Fabric, what: What, missing: &mut Vec<String>) -> Result<Vec<Row>, Failure> {
    let time = args.time;
    let asked = |peer: &&Peer| {
        let name = format!("{what} {}", peer.name);
        args.only.is_empty() || args.only.iter().any(|o| name.contains(o.as_str()))
    };
    let peers = Peer::ALL.iter().filter(|p| p.over == fabric.over() && p.offers(what)).filter(asked);
    let mut rows: Vec<Row> = Vec::new();
    let device = fabric.device();
    let cpus = Setup::new(device.clone()).cpus.ok_or("two CPUs are needed: one for each process")?;
    let mut ours = None;
    for peer in peers {
        let mut theirs = match peer.runs(what, cpus, time) {
            Ok(runs) => runs,
            Err(e) => {
                // A package that is missing is told once, any other trouble for each peer.
                let why = match e {
                    PeerError::Missing { .. } => e.to_string(),
                    _ => format!("{}: {e}", peer.name),
                };
                if !missing.contains(&why) {
                    eprintln!("left out: {why}");
                    missing.push(why);
                }
                continue;
            }
        };
        eprintln!("{} {what} beside {}", fabric.name(), peer.name);
        let mut compared = beside(&device, &mut ours, what, &mut theirs, cpus, time);
        if let Err(e) = &compared
            && e.downcast_ref::<PeerError>().is_none()
        {
            // A connection that broke stays so: others take its place, and what happened is told.
            eprintln!("once more, with new processes of ours: {e}");
            ours = None;
            compared = beside(&device, &mut ours, what, &mut theirs, cpus, time);
        }
        match compared {
            Ok(samples) => {
                rows.push(Row { fabric, what, peer, measured: summary(&samples), best: false });
            }
            Err(e) => eprintln!("left out: {}: {e}", peer.name),
        }
    }
    let worst = |r: &Row| r.measured.as_ref().map_or(f64::MAX, |m| r.better(m.median));
    if let Some(best) =
        rows.iter_mut().filter(|r| !r.is_unread()).min_by(|a, b| worst(a).total_cmp(&worst(b)))
    {
        best.best = true;
    }
    Ok(rows)
}

/// Interleaved pairs of ours, which are started if they are not, and theirs.
fn beside(
    device: &DeviceUrl,
    ours: &mut Option<Ours>,
    what: What,
    theirs: &mut Runs,
    cpus: (usize, usize),
    time: Duration,
) -> Result<Vec<Sample>, Failure> {
    let ours = match ours {
        Some(ours) => ours,
        None => ours.insert(Ours::start(device, cpus, what)?),
    };
    interleave(cpus, || ours.run(what, time), || Ok(theirs.run()?))
}

/// Our two processes.
enum Ours {
    /// Timed in batches.
    Duo(Box<Duo>),
    /// A stream.
    Pair(Box<Pair>, Case),
}

impl Ours {
    fn start(device: &DeviceUrl, cpus: (usize, usize), what: What) -> Result<Self, Failure> {
        let size = what.size() as usize;
        let kind = match what {
            What::SendLatency(_) => Kind::Send,
            What::PutLatency(_) => Kind::Write,
            What::PutBandwidth(_) => Kind::Blocks { span: size },
            What::SendBandwidth(_) | What::SendRate | What::PutRate => {
                let op = if what.is_put() { Op::Write } else { Op::Send };
                let pair = Pair::start(&Setup::new(device.clone()))?;
                let case = Case { service: Service::Rc, op, size: Size::of(what.size()), foreign: false };
                return Ok(Self::Pair(Box::new(pair), case));
            }
        };
        Ok(Self::Duo(Box::new(Duo::start(device, cpus, kind, size)?)))
    }

    fn run(&mut self, what: What, time: Duration) -> Result<f64, Failure> {
        match self {
            Self::Duo(duo) if what.is_bandwidth() => duo.write_bytes_per_s(time),
            Self::Duo(duo) => duo.latency_ns(time),
            Self::Pair(pair, case) => {
                Ok(what.of_rate(pair.run(case, Phase::Stream, Limit::Time(time))?.rate()))
            }
        }
    }
}
