//! The project's performance targets, measured: each figure as a ratio to a floor or a peer of the same
//! minute, from interleaved pairs of one placement of the CPUs.
//!
//! ```text
//! cargo run --release -p hca-benches --bin ratios -- [--json] [--only NAME,..] [--device URL] [--time SECONDS]
//! ```

#[path = "../../../crates/fabric/tests/fabrics/namespaces.rs"]
mod namespaces;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use hca::DeviceUrl;
use hca::cli::Failure;
use hca::perf::{Case, Limit, Op, Pair, Phase, Service, Setup, Size};
use hca_benches::floor::{self, Floor};
use hca_benches::idle;
use hca_benches::ratio::{Better, Ratio, Target, WANTED_PAIRS, interleave, summary};

use namespaces::Wire;

/// Measures the project's performance targets as ratios to floors of the same minute.
#[derive(Parser)]
struct Args {
    /// One JSON object a line, and nothing else, on standard output
    #[arg(long)]
    json: bool,
    /// Only the targets whose names contain one of these
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The device of this process
    #[arg(long, default_value = "auto://")]
    device: DeviceUrl,
    /// Seconds of each run of a pair
    #[arg(long, default_value_t = 0.25)]
    time: f64,
}

/// What a row of the table is measured by.
enum What {
    /// Half of a round trip against the bare ping-pong, in ns.
    Latency(Op),
    /// Half of a round trip of 64 bytes over raw Ethernet, between two namespaces, against a floor, in ns.
    Raw(Op, Floor),
    /// A stream of this operation and size over raw Ethernet, between two namespaces, against a floor: bytes a second,
    /// or messages where they are small.
    RawStream(Op, u64, Floor),
    /// A stream of writes of this size against a floor, in bytes a second.
    Stream(u64, Floor),
    /// A stream of 8-byte sends against the bare rate, in messages a second.
    Rate,
    /// A stream of 64 KiB writes with this loss against one without, in bytes a second.
    Loss(&'static str),
    /// The half round trip with so many idle queue pairs against that with none.
    Crowd(u32),
    /// Context switches a second of an adapter that nobody uses, with so many connected queue pairs.
    Wakeups(u32),
    /// Bytes a connected queue pair that nobody uses.
    Memory,
}

struct Row {
    name: &'static str,
    against: &'static str,
    target: Target,
    what: What,
}

const fn less(must: f64, aim: Option<f64>) -> Target {
    Target { better: Better::Less, must, aim }
}
const fn more(must: f64, aim: Option<f64>) -> Target {
    Target { better: Better::More, must, aim }
}

#[rustfmt::skip]
const ROWS: [Row; 19] = [
    Row { name: "send 8 B, latency", against: "bare UDP ping-pong", target: less(1.25, Some(1.12)), what: What::Latency(Op::Send) },
    Row { name: "write 8 B, latency", against: "bare UDP ping-pong", target: less(1.25, Some(1.12)), what: What::Latency(Op::Write) },
    Row { name: "raw send 64 B, latency", against: "bare V2 ring over veth", target: less(1.25, Some(1.1)), what: What::Raw(Op::Send, Floor::RawPingPong) },
    Row { name: "raw write 64 B, latency", against: "bare V2 ring over veth", target: less(1.25, Some(1.1)), what: What::Raw(Op::Write, Floor::RawPingPong) },
    Row { name: "raw send 64 B, latency, AF_XDP", against: "bare AF_XDP copy over veth", target: less(1.25, Some(1.1)), what: What::Raw(Op::Send, Floor::XdpPingPong) },
    Row { name: "raw write 64 KiB, stream", against: "sendmmsg to V2 ring, 4 KiB", target: more(0.7, Some(0.85)), what: What::RawStream(Op::Write, 64 << 10, Floor::RawGoodput) },
    Row { name: "raw send 64 B, rate", against: "sendmmsg to V2 ring, 64 B", target: more(0.7, Some(0.85)), what: What::RawStream(Op::Send, 64, Floor::RawRate) },
    Row { name: "raw write 64 B, rate", against: "sendmmsg to V2 ring, 64 B", target: more(0.7, Some(0.85)), what: What::RawStream(Op::Write, 64, Floor::RawRate) },
    Row { name: "write 64 KiB, stream", against: "bare GSO+GRO goodput", target: more(0.7, Some(0.85)), what: What::Stream(64 << 10, Floor::UdpGoodput) },
    Row { name: "write 1 MiB, stream", against: "bare GSO+GRO goodput", target: more(0.7, Some(0.85)), what: What::Stream(1 << 20, Floor::UdpGoodput) },
    Row { name: "write 64 KiB, stream, tcp", against: "one TCP stream", target: more(1.0, None), what: What::Stream(64 << 10, Floor::TcpStream) },
    Row { name: "write 1 MiB, stream, tcp", against: "one TCP stream", target: more(1.0, None), what: What::Stream(1 << 20, Floor::TcpStream) },
    Row { name: "send 8 B, rate", against: "bare GSO+GRO rate, 24 B", target: more(0.2, Some(0.4)), what: What::Rate },
    Row { name: "write 64 KiB, 1 % loss", against: "the same without loss", target: more(0.3, None), what: What::Loss("loss=0.01,seed=7") },
    Row { name: "write 64 KiB, 0.1 % loss", against: "the same without loss", target: more(0.7, None), what: What::Loss("loss=0.001,seed=7") },
    Row { name: "send 8 B, 10,000 idle pairs", against: "the same with none", target: less(1.1, None), what: What::Crowd(10_000) },
    Row { name: "idle adapter, wake-ups/s", against: "", target: less(1.0, None), what: What::Wakeups(0) },
    Row { name: "idle adapter, 100 pairs, wake-ups/s", against: "", target: less(1.0, None), what: What::Wakeups(100) },
    Row { name: "idle pair, bytes", against: "", target: less(8192.0, None), what: What::Memory },
];

fn main() -> ExitCode {
    hca::perf::peer_if_asked();
    floor::far_side_if_asked();
    idle::child_if_asked();
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
    let cpus = Setup::new(args.device.clone()).cpus.ok_or("two CPUs are needed: one for each process")?;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "what", "against", "ours", "floor", "ratio", "lowest", "highest", "pairs", "must", "aim", "",
    ]);
    table.column_iter_mut().skip(2).take(8).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    let mut good = true;
    for row in
        ROWS.iter().filter(|r| args.only.is_empty() || args.only.iter().any(|o| r.name.contains(o.as_str())))
    {
        eprintln!("{}", row.name);
        let measured = measure(args, cpus, row)?;
        let met = measured.as_ref().is_some_and(|m| row.target.is_met(m.median));
        good &= met;
        if args.json {
            println!("{}", as_json(row, measured.as_ref(), met));
        }
        table.add_row(cells(row, measured.as_ref(), met));
    }
    if !args.json {
        println!("{table}");
    }
    Ok(good)
}

fn measure(args: &Args, cpus: (usize, usize), row: &Row) -> Result<Option<Ratio>, Failure> {
    let time = Duration::from_secs_f64(args.time);
    let limit = Limit::Time(time);
    let rc = |op, size| Case { service: Service::Rc, op, size: Size(size) };
    let start = || Pair::start(&Setup::new(args.device.clone()));
    let samples = match row.what {
        What::Latency(op) => {
            let mut pair = start()?;
            interleave(
                cpus,
                || Ok(pair.run(&rc(op, 8), Phase::Latency, limit)?.latencies.value_at_quantile(0.5) as f64),
                || Ok(floor::run(Floor::UdpPingPong, cpus.0, cpus.1, time)?.half_rtt_ns),
            )?
        }
        What::Raw(op, floor) => return raw(cpus, (&rc(op, 64), Phase::Latency), limit, (floor, time)),
        What::RawStream(op, size, floor) => return raw(cpus, (&rc(op, size), Phase::Stream), limit, (floor, time)),
        What::Stream(size, against) => {
            let mut pair = start()?;
            interleave(
                cpus,
                || Ok(pair.run(&rc(Op::Write, size), Phase::Stream, limit)?.rate() * size as f64),
                || Ok(floor::run(against, cpus.0, cpus.1, time)?.bytes_per_s),
            )?
        }
        What::Rate => {
            let mut pair = start()?;
            interleave(
                cpus,
                || Ok(pair.run(&rc(Op::Send, 8), Phase::Stream, limit)?.rate()),
                || Ok(floor::run(Floor::UdpRate, cpus.0, cpus.1, time)?.packets_per_s),
            )?
        }
        What::Loss(fault) => {
            let mut lossy = args.device.clone();
            lossy.options.fault = Some(fault.parse()?);
            let (mut lossy, mut clean) = (Pair::start(&Setup::new(lossy))?, start()?);
            let case = rc(Op::Write, 64 << 10);
            interleave(
                cpus,
                || Ok(lossy.run(&case, Phase::Stream, limit)?.rate()),
                || Ok(clean.run(&case, Phase::Stream, limit)?.rate()),
            )?
        }
        What::Crowd(count) => {
            let (mut crowded, mut alone) = (start()?, start()?);
            let _crowd = idle::Crowd::connect(crowded.opened().context(), count)?;
            let case = rc(Op::Send, 8);
            let p50 = |pair: &mut Pair| -> Result<f64, Failure> {
                Ok(pair.run(&case, Phase::Latency, limit)?.latencies.value_at_quantile(0.5) as f64)
            };
            interleave(cpus, || p50(&mut crowded), || p50(&mut alone))?
        }
        What::Wakeups(pairs) => return Ok(Some(single(idle::wakeups_per_s(&args.device, pairs)?))),
        What::Memory => return Ok(Some(single(idle::bytes_per_pair(&args.device)?))),
    };
    Ok(summary(&samples))
}

/// A case over raw Ethernet between two namespaces, against a floor on the same wire: a latency in ns, or messages a
/// second.
fn raw(
    cpus: (usize, usize),
    (case, phase): (&Case, Phase),
    limit: Limit,
    (floor, time): (Floor, Duration),
) -> Result<Option<Ratio>, Failure> {
    let wire = match Wire::with_addresses(4500) {
        Ok(wire) => wire,
        Err(why) => {
            eprintln!("left out: {why}");
            return Ok(None);
        }
    };
    let far = wire.0[1].path();
    let measured = wire.within(0, || {
        let mut setup = Setup::new("raw://wire".parse().expect("a device's name"));
        setup.peer_netns = Some(far.clone());
        let mut pair = Pair::start(&setup).map_err(|e| e.to_string())?;
        let ours = || {
            let measured = pair.run(case, phase, limit)?;
            Ok(match phase {
                Phase::Latency => measured.latencies.value_at_quantile(0.5) as f64,
                Phase::Stream => measured.rate(),
            })
        };
        let bare = || {
            let figures = floor::run_across(floor, cpus.0, cpus.1, time, Some(&far))?;
            Ok(match floor {
                Floor::RawGoodput => figures.bytes_per_s / case.size.0 as f64,
                Floor::RawRate => figures.packets_per_s,
                _ => figures.half_rtt_ns,
            })
        };
        interleave(cpus, ours, bare).map_err(|e| e.to_string())
    });
    Ok(summary(&measured?))
}

/// A figure that has no floor.
fn single(value: f64) -> Ratio {
    let placement = hca::probe::Placement::Unknown;
    Ratio { median: value, low: value, high: value, ours: value, floor: 1.0, pairs: 1, placement }
}

fn cells(row: &Row, measured: Option<&Ratio>, met: bool) -> Vec<String> {
    let plain = |x: f64| if x >= 100.0 { format!("{x:.0}") } else { format!("{x:.2}") };
    let figure = |x: f64| match row.what {
        What::Latency(_) | What::Raw(..) | What::Crowd(_) => format!("{:.2} us", x / 1e3),
        What::Stream(..) => format!("{:.2} GB/s", x / 1e9),
        What::RawStream(_, size, Floor::RawGoodput) => format!("{:.2} GB/s", x * size as f64 / 1e9),
        What::Rate | What::RawStream(..) => format!("{:.2} M/s", x / 1e6),
        What::Loss(_) => format!("{:.2} GB/s", x * 65_536.0 / 1e9),
        What::Wakeups(_) | What::Memory => plain(x),
    };
    let alone = matches!(row.what, What::Wakeups(_) | What::Memory);
    let shown = |f: &dyn Fn(&Ratio) -> String| measured.map(f).unwrap_or_default();
    let beside = |f: &dyn Fn(&Ratio) -> String| if alone { String::new() } else { shown(f) };
    let few = measured.is_none_or(|m| !alone && m.pairs < WANTED_PAIRS);
    vec![
        row.name.to_owned(),
        row.against.to_owned(),
        shown(&|m| figure(m.ours)),
        beside(&|m| figure(m.floor)),
        shown(&|m| plain(m.median)),
        beside(&|m| plain(m.low)),
        beside(&|m| plain(m.high)),
        beside(&|m| format!("{} {}", m.pairs, m.placement)),
        format!("{}{}", if row.target.better == Better::Less { "<=" } else { ">=" }, plain(row.target.must)),
        row.target.aim.map(plain).unwrap_or_default(),
        match (met, few) {
            (_, true) => "TOO FEW PAIRS".to_owned(),
            (true, _) => "met".to_owned(),
            (false, _) => "MISSED".to_owned(),
        },
    ]
}

fn as_json(row: &Row, measured: Option<&Ratio>, met: bool) -> serde_json::Value {
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
        "must": row.target.must,
        "aim": row.target.aim,
        "met": met,
    })
}
