//! Pedretti and Brightwell's paper on Portals in an adapter: tables 1 and 2, figures 3 and 4.

use std::sync::atomic::{AtomicBool, Ordering};

use hca_benches::figures::Figure;
use hca_benches::portals::{End, ends};
use hca_benches::ticks;
use hca_matching::instrument::{self, Part};
use hca_perf::batches::middle_mean;
use hca_perf::portals::{Case, Settings};
use hca_perf::{Failure, Op, Pair, probe};

use super::report::{Report, Row, Unit, figure};
use super::{Fabric, Run};

const SOURCE: &str = "\
K. Pedretti, R. Brightwell, \"A NIC-offload Implementation of Portals for Quadrics QsNet\", 2004; two hosts of two Pentium III at 1 GHz
each, a QsNet adapter in a PCI slot of 64 bits at 66 MHz, whose own processor matches. Ours are the means of the middle half, of figures the medians: the initiator's parts between
calls of Portals 4.3 on two threads of this process, the target's by marks, the figures' between two processes. The text that there is of
the paper has no pictures: figures 3 and 4 have values only where it tells them.";

/// Bytes of the messages of figures 3 and 4.
const SIZES: [u64; 14] = [1, 8, 16, 32, 64, 128, 256, 288, 320, 512, 1024, 4096, 65_536, 1 << 20];

/// A part: what it is, the published times in us (Portals, and the vendor's own Tports), and how far ours is the same.
struct Published {
    part: &'static str,
    portals: Option<f64>,
    tports: Option<f64>,
    note: &'static str,
}

const INITIATOR: [Published; 4] = [
    Published {
        part: "post receive for pong",
        portals: Some(6.4),
        tports: Some(1.7),
        note: "one call of 4.3; two of 3.3 there, across PCI",
    },
    Published {
        part: "send ping",
        portals: Some(2.2),
        tports: Some(1.0),
        note: "comparable: the call returns when the message has left",
    },
    Published {
        part: "wait for send",
        portals: Some(2.8),
        tports: Some(0.1),
        note: "one event of 4.3; a start and an end event there",
    },
    Published {
        part: "wait for pong",
        portals: Some(24.7),
        tports: Some(8.5),
        note: "both ways and the other side; there through two adapters",
    },
];
const ADAPTER: [(Part, Published); 8] = [
    (
        Part::Lock,
        Published {
            part: "take lock",
            portals: Some(0.2),
            tports: Some(0.1),
            note: "the node's, once a call",
        },
    ),
    (
        Part::Inspect,
        Published { part: "inspect header", portals: Some(0.4), tports: Some(0.1), note: "comparable" },
    ),
    (
        Part::Match,
        Published {
            part: "match",
            portals: Some(1.4),
            tports: Some(0.3),
            note: "by hash; along a list there, of one entry",
        },
    ),
    (
        Part::Housekeeping,
        Published { part: "housekeeping", portals: Some(0.7), tports: Some(0.2), note: "comparable" },
    ),
    (
        Part::Bytes,
        Published {
            part: "place the bytes",
            portals: None,
            tports: None,
            note: "none in a message of 0 B; not told there",
        },
    ),
    (
        Part::Event,
        Published {
            part: "write event",
            portals: Some(0.7),
            tports: Some(0.5),
            note: "to memory; across PCI there",
        },
    ),
    (
        Part::Unlink,
        Published {
            part: "unlink",
            portals: Some(1.3),
            tports: Some(0.1),
            note: "no event asked for; a PCI write there",
        },
    ),
    (
        Part::Unlock,
        Published {
            part: "drop lock",
            portals: Some(0.1),
            tports: Some(0.1),
            note: "the node's, once a call",
        },
    ),
];

pub(super) fn run(run: &Run, rounds: u32, report: &mut Report) -> Result<(), Failure> {
    let device = match run.fabric {
        Fabric::Shm => format!("shm://papers-{}?progress=inline", std::process::id()),
        Fabric::Udp => "udp://?progress=inline".to_owned(),
    };
    let parts: Vec<_> = INITIATOR.iter().zip(initiator(&device, rounds)?).collect();
    show(report, "Table 1: a ping-pong of 0 B, by its initiator", &parts);
    let parts: Vec<_> = ADAPTER.iter().map(|(_, part)| part).zip(adapter(&device, rounds)?).collect();
    show(report, "Table 2: a message of 0 B, by who matches it", &parts);
    figures_3_and_4(run, report)?;
    report.say(&format!("\n{SOURCE}"));
    Ok(())
}

/// Prints a table, with the sum of its rows.
fn show(report: &Report, title: &str, parts: &[(&Published, f64)]) {
    let sum =
        |of: &dyn Fn(&Published) -> Option<f64>| parts.iter().filter_map(|(part, _)| of(part)).sum::<f64>();
    let (portals, tports) = (sum(&|p| p.portals), sum(&|p| p.tports));
    let all: f64 = parts.iter().map(|part| part.1).sum();
    let total = Published { part: "total", portals: Some(portals), tports: Some(tports), note: "" };
    let row = |(part, ns): (&Published, f64)| {
        let share = |x: f64, of: f64| format!("{:.0} %", 100.0 * x / of);
        let theirs = part.portals.map_or_else(|| "none".to_owned(), |us| share(us, portals));
        let tports = part.tports.map(|us| format!("Tports {}; ", figure(us))).unwrap_or_default();
        let note = format!("{} of all, there {theirs}; {tports}{}", share(ns, all), part.note);
        Row::new(part.part, Unit::Us, part.portals, ns / 1e3, note.trim_end_matches("; "))
    };
    report.show(title, &parts.iter().copied().chain([(&total, all)]).map(row).collect::<Vec<_>>());
}

/// Latency and bandwidth by size, between two processes.
fn figures_3_and_4(run: &Run, report: &mut Report) -> Result<(), Failure> {
    let mut pair = Pair::start(&run.setup())?;
    let nodes = pair.nodes(Settings::default())?;
    let (mut latency, mut bandwidth) = (Vec::new(), Vec::new());
    let (mut puts, mut gets, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for size in SIZES {
        let put = pair.portals_row(&nodes, &Case::new(Op::Put, size), 2 * run.time)?;
        let get = pair.portals_row(&nodes, &Case::new(Op::Get, size), 2 * run.time)?;
        let note = match size {
            32 => "the last with data within its header there",
            288 => "the last short message there",
            _ => "",
        };
        let (put_us, get_us, rate) = (put.p50_ns as f64 / 1e3, get.p50_ns as f64 / 1e3, 1e3 * put.gb_per_s);
        latency.push(Row::new(format!("put of {size} B, one way"), Unit::Us, None, put_us, note));
        latency.push(Row::new(format!("get of {size} B"), Unit::Us, None, get_us, ""));
        let asymptote = (size == 1 << 20).then_some(307.0);
        let note = asymptote.map_or("", |_| "the asymptote of Portals and Tports there");
        bandwidth.push(Row::new(format!("puts of {size} B"), Unit::Mb, asymptote, rate, note));
        puts.push((size as f64, put_us));
        gets.push((size as f64, get_us));
        rates.push((size as f64, rate));
    }
    report.show("Figure 3: latency", &latency);
    report.show("Figure 4: bandwidth of puts", &bandwidth);
    let title = "Pedretti and Brightwell, figure 3: latency".to_owned();
    let lines = vec![("ours: put".to_owned(), puts), ("ours: get".to_owned(), gets)];
    report.figure(Figure::Lines { title, value: "us", lines });
    let title = "Pedretti and Brightwell, figure 4: bandwidth of puts".to_owned();
    let there = ("paper: asymptote".to_owned(), vec![(65_536.0, 307.0), (1_048_576.0, 307.0)]);
    report.figure(Figure::Lines { title, value: "MB/s", lines: vec![("ours".to_owned(), rates), there] });
    Ok(())
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
    Ok(parts.map(|part| ticks::ns(middle_mean(part).unwrap_or(0.0))))
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
            part.push(ticks as f64 - cost * marks(of.0));
        }
    }
    Ok(parts.map(|part| ticks::ns(middle_mean(part).unwrap_or(0.0).max(0.0))))
}

/// How many marks a part has in a message for an entry that it uses up.
fn marks(part: Part) -> f64 {
    match part {
        Part::Housekeeping | Part::Unlink => 2.0,
        _ => 1.0,
    }
}

/// The time that a mark itself takes, in ticks.
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
    middle_mean(costs).unwrap_or(0.0)
}
