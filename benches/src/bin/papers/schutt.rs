//! Schutt's report: tables 2 to 4, and figure 7, by the two drivers.

use hca_benches::drivers::{first, second};
use hca_benches::figures::Figure;
use hca_perf::{Failure, Setup};

use super::Run;
use super::report::{Report, Row, Unit};

const SOURCE: &str = "\
J. A. Schutt, \"Experiences with Prototype InfiniBand Hardware\", SAND2001-3387, 2001; hosts of two Pentium III at 1 GHz, prototype
adapters of the 2nd (NGIO) and 3rd generation (InfiniBand, 1X) in PCI slots of 64 bits at 66 MHz. Its drivers are in the kernel; ours
are in user space, where the wake-up of a thread stands for the interrupt. Ours are two processes of one machine; UP is both on one
processor. Between two hosts there was nothing of ours: its values stand beside those of the two processes.";

/// Bytes of Table 2's streams, and the throughput: loopback UP and SMP, two hosts UP and SMP; 0 is an error there.
const STREAMS: [(usize, [f64; 4]); 5] = [
    (4096, [62.0, 59.0, 67.0, 64.0]),
    (8192, [83.0, 81.0, 88.0, 86.0]),
    (65_536, [121.0, 120.0, 0.0, 0.0]),
    (131_072, [112.0, 112.0, 120.0, 119.0]),
    (262_144, [113.0, 113.0, 121.0, 121.0]),
];
/// Table 3: round trips between two hosts, UP and SMP, in us; the mean of a range; 0 is an error there.
const SECOND_GENERATION: [(usize, [f64; 2]); 6] = [
    (4, [51.0, 49.0]),
    (32, [52.0, 49.0]),
    (256, [61.0, 58.0]),
    (2048, [107.0, 111.0]),
    (4060, [156.0, 164.0]),
    (4096, [0.0, 0.0]),
];
/// The lengths of protocol messages of Table 4.
const PROTOCOLS: [usize; 3] = [64, 2048, 4096];
/// Table 4: round trips in us, and throughput in MB/s, by protocol message; 0 is none there.
const THIRD_GENERATION: [(usize, [(f64, f64); 3]); 12] = [
    (4, [(35.0, 0.23), (36.0, 0.22), (36.5, 0.22)]),
    (28, [(35.9, 1.6), (0.0, 0.0), (0.0, 0.0)]),
    (32, [(67.0, 0.96), (37.7, 1.7), (38.2, 1.7)]),
    (256, [(76.0, 6.7), (47.3, 5.4), (47.8, 11.0)]),
    (2012, [(0.0, 0.0), (94.0, 43.0), (0.0, 0.0)]),
    (2048, [(97.0, 42.0), (98.0, 42.0), (98.0, 42.0)]),
    (4060, [(0.0, 0.0), (0.0, 0.0), (151.0, 54.0)]),
    (4096, [(123.0, 67.0), (122.0, 67.0), (122.0, 67.0)]),
    (8192, [(173.0, 95.0), (173.0, 95.0), (173.0, 95.0)]),
    (16_384, [(272.0, 120.0), (272.0, 120.0), (272.0, 120.0)]),
    (32_768, [(473.0, 139.0), (474.0, 138.0), (474.0, 138.0)]),
    (1_048_576, [(15900.0, 132.0), (15900.0, 132.0), (15900.0, 132.0)]),
];
/// The longest protocol message of the search for the crossover.
const LONG_PROTOCOL: usize = 65_536;

fn some(x: f64) -> Option<f64> {
    (x > 0.0).then_some(x)
}

/// Both processes on one processor, or each on its own.
fn placed(run: &Run, alone: bool) -> Setup {
    let setup = run.setup();
    Setup { cpus: setup.cpus.map(|(a, b)| if alone { (a, a) } else { (a, b) }), ..setup }
}

pub(super) fn run(run: &Run, report: &mut Report) -> Result<(), Failure> {
    table_2(run, report)?;
    table_3(run, report)?;
    table_4(run, report)?;
    report.say(&format!("\n{SOURCE}"));
    Ok(())
}

fn table_2(run: &Run, report: &Report) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let places = [("UP", true), ("SMP", false)];
    let mut trips = Vec::new();
    for (_, alone) in places {
        let mut two = first::start(&placed(run, alone), 4, run.time)?;
        trips.push(2.0 * two.latency_ns()? / 1e3);
    }
    let published = [("loopback", [58.0, 58.0]), ("two hosts", [44.0, 49.0])];
    for (where_, values) in published {
        for (i, (kernel, _)) in places.iter().enumerate() {
            let what = format!("round trip of 4 B, {where_}, {kernel}");
            rows.push(Row::new(what, Unit::Us, values[i], trips[i], "blocked sends and receives, as there"));
        }
    }
    // The time of the same messages where nobody sleeps.
    let polled = {
        let mut verbs = hca_perf::layers::Verbs::start(&placed(run, false), run.time)?;
        verbs.set_messages(hca_perf::Service::Rc, 4);
        2.0 * verbs.latency_ns()? / 1e3
    };
    let tasklet = "none of ours: the interrupt wakes the program itself";
    rows.push(Row::new("tasklet, loopback, UP", Unit::Us, 2.1, None, tasklet));
    rows.push(Row::new("tasklet, two hosts, UP", Unit::Us, 1.8, None, tasklet));
    let wake = Some((trips[1] - polled) / 2.0);
    let note = "half of what blocking adds to a round trip (SMP)";
    rows.push(Row::new("wake-up, loopback, UP", Unit::Us, 7.7, wake, note));
    rows.push(Row::new("wake-up, two hosts, UP", Unit::Us, 4.1, wake, note));
    for (size, values) in STREAMS {
        let mut ours = Vec::new();
        for (_, alone) in places {
            ours.push(first::bytes_per_s(&mut first::start(&placed(run, alone), size, run.time)?)? / 1e6);
        }
        for (i, place) in
            ["loopback, UP", "loopback, SMP", "two hosts, UP", "two hosts, SMP"].iter().enumerate()
        {
            let note = if values[i] > 0.0 { "one blocked send after the other" } else { "an error there" };
            let what = format!("stream of {size} B, {place}");
            rows.push(Row::new(what, Unit::Mb, some(values[i]), ours[i % 2], note));
        }
    }
    report.show("Table 2: the first driver (send and receive, blocking, interrupts)", &rows);
    Ok(())
}

fn table_3(run: &Run, report: &Report) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let mut ours = Vec::new();
    for alone in [true, false] {
        let mut two = second::start(&placed(run, alone), 4096, run.time)?;
        let mut trips = Vec::new();
        for (size, _) in SECOND_GENERATION {
            trips.push(second::round_trip_ns(&mut two, size)? / 1e3);
        }
        ours.push(trips);
    }
    for (i, (size, values)) in SECOND_GENERATION.into_iter().enumerate() {
        for (kernel, (place, value)) in ["UP", "SMP"].into_iter().zip(values).enumerate() {
            let note = match (value > 0.0, size) {
                (false, _) => "an error there: RDMA did not work",
                (_, 256) => "hung there after 200 round trips",
                _ => "polled notification; an interrupt for each message",
            };
            let what = format!("round trip of {size} B, {place}");
            rows.push(Row::new(what, Unit::Us, some(value), ours[kernel][i], note));
        }
    }
    report.show("Table 3: the second driver, 2nd generation, protocol messages of 4096 B", &rows);
    Ok(())
}

fn table_4(run: &Run, report: &mut Report) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for (i, protocol) in PROTOCOLS.into_iter().enumerate() {
        let mut two = second::start(&placed(run, false), protocol, run.time)?;
        let (mut ours, mut published) = (Vec::new(), Vec::new());
        for (size, values) in THIRD_GENERATION {
            let us = second::round_trip_ns(&mut two, size)? / 1e3;
            let (trip, rate) = values[i];
            let way = if size + second::HEADER <= protocol {
                "within a protocol message"
            } else {
                "fetched by RDMA"
            };
            let what = |unit| format!("{unit} of {size} B, protocol message of {protocol} B");
            rows.push(Row::new(what("round trip"), Unit::Us, some(trip), us, way));
            rows.push(Row::new(
                what("throughput"),
                Unit::Mb,
                some(rate),
                2.0 * size as f64 / us,
                "size / half of it",
            ));
            ours.push((size as f64, us));
            published.extend(some(trip).map(|us| (size as f64, us)));
        }
        lines.push((format!("ours, {protocol} B"), ours));
        lines.push((format!("paper, {protocol} B"), published));
    }
    let crossover = crossover(run)?;
    let note = match crossover {
        Some(_) => "where RDMA and a copy into a protocol message of 64 KiB take the same",
        None => "up to 64 KiB the copy is faster",
    };
    rows.push(Row::new("crossover of short and long, payload", Unit::Bytes, 2012.0, crossover, note));
    report.show("Table 4 and figure 7: the second driver, 3rd generation", &rows);
    let title = "Schutt, figure 7: round trip by protocol message, second driver".to_owned();
    report.figure(Figure::Lines { title, value: "us", lines });
    Ok(())
}

/// The length from which on RDMA is faster than a copy into a protocol message, found between two that were measured.
fn crossover(run: &Run) -> Result<Option<f64>, Failure> {
    let setup = placed(run, false);
    let sizes = [32, 128, 512, 1024, 2012, 4060, 8192, 16_384, 32_768, LONG_PROTOCOL - second::HEADER];
    let mut trips = [const { Vec::new() }; 2];
    for (trips, protocol) in trips.iter_mut().zip([64, LONG_PROTOCOL]) {
        let mut two = second::start(&setup, protocol, run.time)?;
        for size in sizes {
            trips.push(second::round_trip_ns(&mut two, size)?);
        }
    }
    // Positive where RDMA is slower.
    let lead: Vec<f64> = trips[0].iter().zip(&trips[1]).map(|(long, short)| long - short).collect();
    let Some(at) = lead.iter().rposition(|&lead| lead > 0.0) else { return Ok(Some(0.0)) };
    let Some(&next) = lead.get(at + 1) else { return Ok(None) };
    let (from, to) = (sizes[at] as f64, sizes[at + 1] as f64);
    Ok(Some(from + (to - from) * lead[at] / (lead[at] - next)))
}
