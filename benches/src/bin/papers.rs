//! The two tables of a paper on Portals in an adapter, by our own instrumentation, beside the published figures.
//!
//! ```text
//! cargo run --release -p hca-benches --features instrument --bin papers -- [--fabric shm|udp] [--rounds N] [--json]
//! ```

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Parser, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use hca_benches::portals::{End, ends};
use hca_benches::ratio::median;
use hca_benches::ticks;
use hca_matching::instrument::{self, Part};
use hca_perf::Failure;
use hca_perf::probe;

const SOURCE: &str = "\
K. Pedretti, R. Brightwell, \"A NIC-offload Implementation of Portals for Quadrics QsNet\", 2004: Tables 1 and 2, in us; two hosts
of two Pentium III at 1 GHz each, a QsNet adapter in a PCI slot of 64 bits at 66 MHz, whose own processor matches.";

const EXAMPLES: &str = "\
Examples:
  papers                    both tables over shared memory
  papers --fabric udp       over UDP sockets
  papers --json

Ours are medians in ns. The initiator's parts are timed between calls of Portals 4.3 on two threads of this process, each bound to a CPU;
the target's by marks inside of a build of its own (--features instrument), whose cost is measured and taken off. Times of hosts that are
twenty years apart are no race: what can be compared is which part takes how much of the whole.

Exit codes: 0 success, 2 failed.";

/// Where the time of a Portals ping-pong goes, beside a published account.
#[derive(Parser)]
#[command(after_long_help = EXAMPLES)]
struct Args {
    /// What carries the messages
    #[arg(long, value_enum, default_value_t = Fabric::Shm)]
    fabric: Fabric,
    /// Round trips
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    rounds: u32,
    /// One JSON object a row, and nothing else, on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Fabric {
    /// Shared memory.
    Shm,
    /// UDP sockets.
    Udp,
}

impl Fabric {
    fn device(self) -> String {
        match self {
            Self::Shm => format!("shm://papers-{}?progress=inline", std::process::id()),
            Self::Udp => "udp://?progress=inline".to_owned(),
        }
    }
}

/// A row: what it is, the published times in us (Portals, and the vendor's own Tports), and how far ours is the same.
struct Row {
    part: &'static str,
    portals: Option<f64>,
    tports: Option<f64>,
    note: &'static str,
}

const INITIATOR: [Row; 4] = [
    Row {
        part: "post receive for pong",
        portals: Some(6.4),
        tports: Some(1.7),
        note: "one call of 4.3; two of 3.3 there, across PCI",
    },
    Row {
        part: "send ping",
        portals: Some(2.2),
        tports: Some(1.0),
        note: "comparable: the call returns when the message has left",
    },
    Row {
        part: "wait for send",
        portals: Some(2.8),
        tports: Some(0.1),
        note: "one event of 4.3; a start and an end event there",
    },
    Row {
        part: "wait for pong",
        portals: Some(24.7),
        tports: Some(8.5),
        note: "both ways and the other side; there through two adapters",
    },
];
const ADAPTER: [(Part, Row); 8] = [
    (
        Part::Lock,
        Row { part: "take lock", portals: Some(0.2), tports: Some(0.1), note: "the node's, once a call" },
    ),
    (
        Part::Inspect,
        Row { part: "inspect header", portals: Some(0.4), tports: Some(0.1), note: "comparable" },
    ),
    (
        Part::Match,
        Row {
            part: "match",
            portals: Some(1.4),
            tports: Some(0.3),
            note: "by hash; along a list there, of one entry",
        },
    ),
    (
        Part::Housekeeping,
        Row { part: "housekeeping", portals: Some(0.7), tports: Some(0.2), note: "comparable" },
    ),
    (
        Part::Bytes,
        Row {
            part: "place the bytes",
            portals: None,
            tports: None,
            note: "none in a message of 0 B; not told there",
        },
    ),
    (
        Part::Event,
        Row {
            part: "write event",
            portals: Some(0.7),
            tports: Some(0.5),
            note: "to memory; across PCI there",
        },
    ),
    (
        Part::Unlink,
        Row {
            part: "unlink",
            portals: Some(1.3),
            tports: Some(0.1),
            note: "no event asked for; a PCI write there",
        },
    ),
    (
        Part::Unlock,
        Row { part: "drop lock", portals: Some(0.1), tports: Some(0.1), note: "the node's, once a call" },
    ),
];

fn main() -> ExitCode {
    let args = Args::parse();
    match tables(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("papers: {e}");
            ExitCode::from(2)
        }
    }
}

fn tables(args: &Args) -> Result<(), Failure> {
    let device = args.fabric.device();
    let of_initiator = initiator(&device, args.rounds)?;
    let of_adapter = adapter(&device, args.rounds)?;
    let rows: Vec<_> = INITIATOR.iter().zip(of_initiator).collect();
    show(args.json, 1, "Table 1: a ping-pong of 0 B, by its initiator", &rows);
    let rows: Vec<_> = ADAPTER.iter().map(|(_, row)| row).zip(of_adapter).collect();
    show(args.json, 2, "Table 2: a message of 0 B, by who matches it", &rows);
    if !args.json {
        println!("\n{SOURCE}");
    }
    Ok(())
}

/// Prints a table, with the sum of its rows.
fn show(json: bool, number: u32, title: &str, rows: &[(&Row, f64)]) {
    let sum = |of: &dyn Fn(&Row) -> Option<f64>| rows.iter().filter_map(|(row, _)| of(row)).sum::<f64>();
    let total =
        Row { part: "total", portals: Some(sum(&|r| r.portals)), tports: Some(sum(&|r| r.tports)), note: "" };
    let ours: f64 = rows.iter().map(|row| row.1).sum();
    let share = |x: f64, of: f64| format!("{:.0} %", 100.0 * x / of);
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "part",
        "ours, ns",
        "of all",
        "QsNet Portals, us",
        "of all",
        "QsNet Tports, us",
        "what can be compared",
    ]);
    table.column_iter_mut().skip(1).take(5).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    for (row, ns) in rows.iter().copied().chain([(&total, ours)]) {
        let published = |x: Option<f64>| x.map(|x| format!("{x:.1}")).unwrap_or_default();
        if json {
            let object = serde_json::json!({
                "table": number, "part": row.part, "ours_ns": ns, "portals_us": row.portals,
                "tports_us": row.tports, "note": row.note,
            });
            println!("{object}");
        }
        let of_theirs = row.portals.map(|x| share(x, total.portals.unwrap_or(1.0))).unwrap_or_default();
        table.add_row([
            row.part.to_owned(),
            format!("{ns:.0}"),
            share(ns, ours),
            published(row.portals),
            of_theirs,
            published(row.tports),
            row.note.to_owned(),
        ]);
    }
    if !json {
        println!("{}{title}\n{}", if number > 1 { "\n" } else { "" }, table.trim_fmt());
    }
}

/// The parts of a round trip, by its initiator.
fn initiator(device: &str, rounds: u32) -> Result<[f64; 4], Failure> {
    let [mut a, b] = ends(device, 0)?;
    a.tell_sending()?;
    let cpus = probe::cpus();
    let over = AtomicBool::new(false);
    let (far, near) = (cpus.last().copied(), cpus.first().copied());
    let parts = std::thread::scope(|scope| {
        let other = scope.spawn(|| answer(&b, far, &over));
        let parts = ask(&a, near, rounds);
        over.store(true, Ordering::Release);
        let answered = other.join().expect("it does not panic");
        parts.and_then(|parts| answered.map(|()| parts))
    })?;
    Ok(parts.map(|part| ticks::ns(median(part).unwrap_or(0.0))))
}

/// Sends pings; what each part of each round took, in ticks.
fn ask(a: &End, cpu: Option<usize>, rounds: u32) -> Result<[Vec<f64>; 4], Failure> {
    if let Some(cpu) = cpu {
        probe::pin(cpu)?;
    }
    let mut parts = [const { Vec::new() }; 4];
    for round in 0..rounds + rounds / 10 {
        let t0 = ticks::now();
        a.post(true)?;
        let t1 = ticks::now();
        a.put()?;
        let t2 = ticks::now();
        while !a.sent()? {}
        let t3 = ticks::now();
        while !a.arrived()? {}
        let t4 = ticks::now();
        if round >= rounds / 10 {
            let times = [t1 - t0, t2 - t1, t3 - t2, t4 - t3];
            parts.iter_mut().zip(times).for_each(|(part, ticks)| part.push(ticks as f64));
        }
    }
    Ok(parts)
}

/// Answers pings until it is over.
fn answer(b: &End, cpu: Option<usize>, over: &AtomicBool) -> Result<(), Failure> {
    if let Some(cpu) = cpu {
        probe::pin(cpu)?;
    }
    b.post(true)?;
    loop {
        while !b.arrived()? {
            if over.load(Ordering::Acquire) {
                return Ok(());
            }
        }
        b.post(true)?;
        b.put()?;
    }
}

/// The parts of a message at its target, in ns.
fn adapter(device: &str, rounds: u32) -> Result<[f64; 8], Failure> {
    instrument::set_clock(ticks::now);
    let [a, b] = ends(device, 0)?;
    a.post(false)?;
    b.post(true)?;
    a.put()?;
    while !b.arrived()? {
        a.progress();
    }
    let cost = mark_cost();
    let mut parts = [const { Vec::new() }; 8];
    for _ in 0..rounds {
        b.post(true)?;
        a.put()?;
        // The call that finds it is the one that counts.
        let spent = loop {
            let _ = instrument::take();
            if b.arrived()? {
                break instrument::take();
            }
        };
        for (part, (of, ticks)) in parts.iter_mut().zip(ADAPTER.iter().zip(spent)) {
            part.push((ticks as f64 - cost * marks(of.0)).max(0.0));
        }
    }
    Ok(parts.map(|part| ticks::ns(median(part).unwrap_or(0.0))))
}

/// How many marks a part has in a message for an entry that it uses up.
fn marks(part: Part) -> f64 {
    match part {
        Part::Housekeeping | Part::Unlink => 2.0,
        _ => 1.0,
    }
}

/// What a mark itself takes, in ticks.
fn mark_cost() -> f64 {
    let mut costs = Vec::new();
    for _ in 0..1000 {
        let _ = instrument::take();
        instrument::begin();
        for _ in 0..8 {
            instrument::mark(Part::Bytes);
        }
        costs.push(instrument::take()[Part::Bytes as usize] as f64 / 8.0);
    }
    median(costs).unwrap_or(0.0)
}
