//! The two papers of Begel, Buonadonna, Culler and Gay: tables 1 to 5, and figures 2 to 5.

use std::convert::Infallible;
use std::hint::black_box;

use hca::am::Way;
use hca::am::instrument::Part;
use hca::via::Reliability;
use hca_benches::figures::Figure;
use hca_benches::ticks;
use hca_core::marks;
use hca_perf::batches::{median_ns, middle_mean};
use hca_perf::layers::global::Access;
use hca_perf::layers::logp::LogP;
use hca_perf::layers::two::Near;
use hca_perf::layers::{Kind, am, global, via};
use hca_perf::{Failure, Setup};

use super::Run;
use super::report::{Report, Row, Unit};

const SOURCE: &str = "\
A. Begel, P. Buonadonna, D. E. Culler, D. Gay, \"An Analysis of VI Architecture Primitives in Support of Parallel and Distributed
Communication\", March and September 2001, whose values are the same; four Pentium III Xeon at 550 MHz, a Myrinet adapter (LANai 7) that
emulates VIs. Ours: VIs, Active Messages over VIs as their version 3, and global memory over those, between two processes. Figures 2 and 5
have values only as far as the text tells them; the text that there is of the papers has no pictures. In the build with marks, tables 1, 2
and 5 and figures 2 and 5 carry the marks' price, too: about ten marks a message.";

/// Bytes of the smallest message of theirs, which the papers compare with a VI's of as many.
const SMALLEST: usize = 16;
/// Rounds of a breakdown.
const ROUNDS: usize = 20_000;
/// Bytes of the messages of figure 5.
const SIZES: [usize; 14] = [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768];

pub(super) fn run(run: &Run, report: &mut Report) -> Result<(), Failure> {
    let setup = run.setup();
    table_1(run, &setup, report)?;
    table_2(run, &setup, report)?;
    figure_2(run, &setup, report)?;
    breakdowns(run, &setup, report)?;
    let rates = figure_5(run, &setup, report)?;
    table_5(run, &rates, report)?;
    report.say(&format!("\n{SOURCE}"));
    Ok(())
}

fn vi(run: &Run, setup: &Setup, size: usize) -> Result<hca_perf::layers::two::Two<via::End>, Failure> {
    via::start(setup, via::Spec { reliability: Reliability::Delivery, size }, run.time)
}

fn table_1(run: &Run, setup: &Setup, report: &Report) -> Result<(), Failure> {
    let half = vi(run, setup, 4)?.latency_ns()? / 1e3;
    let rate = vi(run, setup, 32_768)?.messages_per_s()? * 32_768.0 / 1e6;
    let mut rows = Vec::new();
    for (name, trip, throughput, note) in [
        ("LANai 4 VI", 33.1, 62.8, "a VI that firmware emulates, as ours is software"),
        ("LANai 7 VI", 30.2, 68.3, "the same, with doorbells by hardware: the nearest to ours"),
        ("Giganet cLAN", 24.0, 70.0, "hardware; no memory or network of one machine"),
        ("Compaq ServerNet II", 7.4, 180.0, "simulated there"),
    ] {
        rows.push(Row::new(format!("RTT/2, {name}"), Unit::Us, trip, half, note));
        rows.push(Row::new(format!("throughput, {name}"), Unit::Mb, throughput, rate, "ours of 32 KiB"));
    }
    report.show("Table 1: VIs", &rows);
    Ok(())
}

fn table_2(run: &Run, setup: &Setup, report: &Report) -> Result<(), Failure> {
    let bare = vi(run, setup, SMALLEST)?.latency_ns()?;
    let figures = |p: &LogP| {
        [p.round_trip / 2.0, p.round_trip / 2.0 - bare, p.latency(), p.send, p.receive, p.gap]
            .map(|ns| ns / 1e3)
    };
    let over_vis = figures(&Kind::AmVia.logp(setup, run.time)?);
    let over_verbs = figures(&Kind::Am.logp(setup, run.time)?);
    let names = ["RTT/2", "over a VI's", "L", "o_s", "o_r", "g"];
    let mut rows = Vec::new();
    let third = [35.6, 5.4, 29.6, 3.1, 2.9, 30.0];
    for (i, name) in names.iter().enumerate() {
        let note = if i == 1 {
            "the mapping cost, over a VI's 16 B"
        } else {
            "the same construction, credits apart"
        };
        rows.push(Row::new(format!("{name}, AMVIA 3, LANai 7"), Unit::Us, third[i], over_vis[i], note));
    }
    for (which, values) in [
        ("AMVIA 1, LANai 4", [53.0, 19.9, 45.0, 2.7, 5.3, 48.0]),
        ("AMVIA 1, LANai 7", [39.2, 9.0, 33.2, 3.2, 2.8, 34.7]),
    ] {
        for (name, value) in names.iter().zip(values) {
            rows.push(Row::new(
                format!("{name}, {which}"),
                Unit::Us,
                value,
                None,
                "three VIs a peer: not built",
            ));
        }
    }
    for (name, value) in names.iter().zip(over_verbs) {
        let what = format!("{name}, Active Messages over verbs");
        rows.push(Row::new(
            what,
            Unit::Us,
            None,
            value,
            "one shared receive queue, no VIs: not in the papers",
        ));
    }
    report.show("Table 2: LogP of Active Messages", &rows);
    Ok(())
}

fn figure_2(run: &Run, setup: &Setup, report: &mut Report) -> Result<(), Failure> {
    let mut ours = Vec::new();
    for way in [Way::Via, Way::Verbs] {
        let mut two = global::start(setup, way, run.time)?;
        let mut of_way = Vec::new();
        for access in Access::ALL {
            of_way.push(two.access_ns(access)? / 1e3);
        }
        ours.push(of_way);
    }
    let told = [
        (Some(70.4), "a request and its reply there, 2 x (30.2 + 5) by the text; RDMA here"),
        (Some(70.4), "the same"),
        (Some(30.0), "the gap: slightly below that of table 2 by the text"),
        (Some(30.0), "the same"),
        (None, "the fastest by the text; every second is acknowledged there, none of ours"),
    ];
    let mut rows = Vec::new();
    let mut groups = Vec::new();
    for (i, (access, (paper, note))) in Access::ALL.iter().zip(told).enumerate() {
        let name = format!("{access:?}").to_lowercase();
        rows.push(Row::new(format!("{name}, over VIs"), Unit::Us, paper, ours[0][i], note));
        rows.push(Row::new(format!("{name}, over verbs"), Unit::Us, None, ours[1][i], "not in the papers"));
        groups.push((name, vec![paper, Some(ours[0][i]), Some(ours[1][i])]));
    }
    report.show("Figure 2: accesses of Split-C to 8 B", &rows);
    let names = ["paper, by its text", "ours, over VIs", "ours, over verbs"].map(str::to_owned).to_vec();
    let title = "Begel and others, figure 2: accesses to 8 B".to_owned();
    report.figure(Figure::Bars { title, value: "us", names, groups });
    Ok(())
}

/// A line of tables 3 and 4: its category, the parts of ours, and the shares there of AM and of Split-C.
struct Line {
    category: &'static str,
    name: &'static str,
    parts: &'static [Part],
    am: f64,
    split_c: f64,
}

const CATEGORIES: [&str; 4] = ["Base VI", "Event Notification", "Flow Control", "Semantics"];

#[rustfmt::skip]
const LINES: [Line; 13] = [
    Line { category: "Base VI", name: "VipSendDone", parts: &[Part::SendDone], am: 7.0, split_c: 7.1 },
    Line { category: "Base VI", name: "VipPostSend", parts: &[Part::PostSend], am: 6.1, split_c: 9.4 },
    Line { category: "Base VI", name: "VipRecvDone", parts: &[Part::RecvDone], am: 7.4, split_c: 8.0 },
    Line { category: "Base VI", name: "VipPostRecv", parts: &[Part::PostReceive], am: 4.8, split_c: 5.6 },
    Line { category: "Base VI", name: "recycle send descriptor", parts: &[Part::RecycleSend], am: 1.7, split_c: 1.8 },
    Line { category: "Base VI", name: "recycle receive descriptor", parts: &[Part::RecycleReceive], am: 2.0, split_c: 1.8 },
    Line { category: "Base VI", name: "build send descriptor", parts: &[Part::BuildSend], am: 3.5, split_c: 2.4 },
    Line { category: "Event Notification", name: "VipCQDone, send", parts: &[Part::CqDoneSend], am: 22.1, split_c: 24.4 },
    Line { category: "Event Notification", name: "VipCQDone, receive", parts: &[Part::CqDoneReceive], am: 22.1, split_c: 22.5 },
    Line { category: "Flow Control", name: "send bookkeeping", parts: &[Part::SendBookkeeping], am: 5.7, split_c: 4.9 },
    Line { category: "Flow Control", name: "process received message", parts: &[Part::ProcessReceived], am: 8.7, split_c: 6.7 },
    Line { category: "Semantics", name: "read data from message", parts: &[Part::ReadData], am: 6.3, split_c: 3.6 },
    Line { category: "Semantics", name: "act on message", parts: &[Part::Act], am: 2.6, split_c: 1.8 },
];

fn breakdowns(run: &Run, setup: &Setup, report: &mut Report) -> Result<(), Failure> {
    marks::set_clock(ticks::now);
    let of_am = am::start(setup, Way::Via, run.time)?.during(|end| {
        parts(|| {
            end.ask()?;
            end.settle()
        })
    })?;
    let of_global = global::start(setup, Way::Via, run.time)?.during(|end| parts(|| end.get().map(drop)))?;
    for (number, title, ns, share) in [
        (3, "a short request and its reply of Active Messages", of_am, (|line| line.am) as fn(&Line) -> f64),
        (4, "a get of Split-C", of_global, |line| line.split_c),
    ] {
        let all: f64 = ns.iter().sum();
        let of_line = |line: &Line| line.parts.iter().map(|part| ns[*part as usize]).sum::<f64>();
        let mut rows = Vec::new();
        let mut groups = Vec::new();
        for category in CATEGORIES {
            let of_category = || LINES.iter().filter(|line| line.category == category);
            let (ours, theirs) =
                (of_category().map(of_line).sum::<f64>(), of_category().map(share).sum::<f64>());
            rows.push(Row::new(
                category,
                Unit::Percent,
                theirs,
                100.0 * ours / all,
                format!("ours {ours:.0} ns"),
            ));
            for line in of_category() {
                let ours = of_line(line);
                let what = format!("  {}", line.name);
                let note = format!("ours {ours:.0} ns");
                rows.push(Row::new(what, Unit::Percent, share(line), 100.0 * ours / all, note));
            }
            groups.push((category.to_owned(), vec![Some(theirs), Some(100.0 * ours / all)]));
        }
        rows.push(Row::new(
            "sum, at the side that asks",
            Unit::Us,
            6.0,
            all / 1e3,
            "o_s + o_r of table 2 there",
        ));
        report.show(&format!("Table {number} and figure {number}: where the time of {title} goes"), &rows);
        let names = ["paper", "ours"].map(str::to_owned).to_vec();
        let title = format!("Begel and others, figure {number}: {title}");
        report.figure(Figure::Bars { title, value: "% of the overhead", names, groups });
    }
    Ok(())
}

/// The time of each part of an operation, in ns: the mean of the middle half.
fn parts(mut operation: impl FnMut() -> Result<(), Failure>) -> Result<[f64; marks::PARTS], Failure> {
    let cost = mark_cost();
    let mut all = [const { Vec::new() }; marks::PARTS];
    for round in 0..ROUNDS + ROUNDS / 10 {
        let _ = marks::take();
        operation()?;
        let spent = marks::take();
        if round >= ROUNDS / 10 {
            for (part, spent) in all.iter_mut().zip(spent) {
                part.push(spent.ticks as f64 - cost * spent.marks as f64);
            }
        }
    }
    Ok(all.map(|part| ticks::ns(middle_mean(part).unwrap_or(0.0).max(0.0))))
}

/// The time of a mark itself, in ticks.
fn mark_cost() -> f64 {
    let mut costs = Vec::new();
    for _ in 0..1000 {
        let _ = marks::take();
        marks::begin();
        (0..8).for_each(|_| marks::mark(0));
        costs.push(marks::take()[0].ticks as f64 / 8.0);
    }
    middle_mean(costs).unwrap_or(0.0)
}

/// The rates of figure 5 in MB/s, by size: VIs, Active Messages, Split-C.
fn figure_5(run: &Run, setup: &Setup, report: &mut Report) -> Result<Vec<[f64; 3]>, Failure> {
    let mut active = am::start(setup, Way::Via, run.time)?;
    let mut memory = global::start(setup, Way::Via, run.time)?;
    let mut rates = Vec::new();
    for size in SIZES {
        let bare = vi(run, setup, size)?.messages_per_s()? * size as f64;
        let over =
            if size <= 4096 { active.medium_bytes_per_s(size)? } else { active.bulk_bytes_per_s(size)? };
        rates.push([bare, over, memory.put_bytes_per_s(size)?].map(|rate| rate / 1e6));
    }
    let last = SIZES.len() - 1;
    let mut rows = Vec::new();
    for (i, (size, ours)) in SIZES.iter().zip(&rates).enumerate() {
        let told = [
            if *size == 32 { Some(2.2) } else { (i == last).then_some(68.3) },
            (i == last).then_some(44.0),
            (i == last).then_some(44.0),
        ];
        let notes = [
            "one way; every eighth is answered, none there",
            if *size <= 4096 {
                "copied and acknowledged, as there"
            } else {
                "RDMA WRITE and a message, as there"
            },
            "RDMA WRITE and a message; fragments of 4 KiB there",
        ];
        for (k, name) in ["VI", "AM over VIs", "Split-C put over VIs"].iter().enumerate() {
            rows.push(Row::new(format!("{name}, {size} B"), Unit::Mb, told[k], ours[k], notes[k]));
        }
    }
    report.show("Figure 5: bandwidth (the paper's values where its text has them)", &rows);
    let line = |k: usize| SIZES.iter().zip(&rates).map(|(size, rate)| (*size as f64, rate[k])).collect();
    let lines = vec![
        ("ours: VI".to_owned(), line(0)),
        ("ours: AM over VIs".to_owned(), line(1)),
        ("ours: Split-C over VIs".to_owned(), line(2)),
        ("paper: VI (32 B, the most)".to_owned(), vec![(32.0, 2.2), (32_768.0, 68.3)]),
        ("paper: AM, Split-C (plateau)".to_owned(), vec![(4096.0, 44.0), (32_768.0, 44.0)]),
    ];
    let title = "Begel and others, figure 5: bandwidth".to_owned();
    report.figure(Figure::Lines { title, value: "MB/s", lines });
    Ok(rates)
}

fn table_5(run: &Run, rates: &[[f64; 3]], report: &Report) -> Result<(), Failure> {
    let of = |size: usize| SIZES.iter().position(|&s| s == size).map(|i| rates[i]).ok_or("it was measured");
    let (kib, short) = (of(1024)?, of(32)?);
    let (source, mut target) = (vec![7_u8; 1024], vec![0_u8; 1024]);
    let Ok(copy) = median_ns(run.time, 256, || {
        (0..256).for_each(|_| black_box(&mut target).copy_from_slice(black_box(&source)));
        Ok::<_, Infallible>(())
    });
    let receive = 32.0 / short[0];
    report.show(
        "Table 5: what a message of 1 KiB costs over a VI's",
        &[
            Row::new("memory copy", Unit::Us, 4.0, copy / 1e3, "of 1 KiB, from the caches"),
            Row::new(
                "short network receive",
                Unit::Us,
                14.5,
                receive,
                "a message of 32 B of a VI's stream, as there",
            ),
            Row::new("total", Unit::Us, 18.5, copy / 1e3 + receive, "the sum"),
            Row::new("observed, AM", Unit::Us, 18.0, 1024.0 / kib[1] - 1024.0 / kib[0], "of figure 5"),
            Row::new("observed, Split-C", Unit::Us, 18.0, 1024.0 / kib[2] - 1024.0 / kib[0], "of figure 5"),
        ],
    );
    Ok(())
}
