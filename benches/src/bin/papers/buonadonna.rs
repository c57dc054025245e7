//! Buonadonna's paper: figure 6, and the share of the ICRC.

use std::convert::Infallible;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use hca::via::Reliability;
use hca_benches::figures::Figure;
use hca_fabric::MeasuredIcrc;
use hca_perf::batches::median_ns;
use hca_perf::layers::{Verbs, via};
use hca_perf::{Failure, Service, Setup};

use super::Run;
use super::report::{Report, Row, Unit};

const SOURCE: &str = "\
P. Buonadonna, \"Analysis of an Infiniband Channel Adapter\", 2001; two Pentium III at 550 MHz, a Myrinet adapter (LANai 9) whose
firmware is the channel adapter. Its text tells the values of figure 6 (\"50, 52 and 30\", and 4 to 5 more, 2 more for a READ, with
verbs). VI native: here VIs over shared memory, where a descriptor becomes a message and no packet is made. VI on IB formats: VIs over
UDP, whose packets have IB headers and an ICRC. IB: verbs over UDP. Over UDP the kernel carries each packet, which its firmware did not
need: the step from the first to the second row is the kernel's, but for the ICRC's share, which is told apart.";

/// Bytes of a message.
const SIZE: usize = 4;
/// Bytes of the packet of a message: BTH, payload, ICRC.
const PACKET: usize = 12 + SIZE + 4;

/// The three benchmarks.
const MODES: [&str; 3] = ["unreliable send-receive", "reliable send-receive", "RDMA read"];

pub(super) fn run(run: &Run, report: &mut Report) -> Result<(), Failure> {
    let (shm, udp) = (run.on("shm"), run.on("udp"));
    let rows = [
        ("VI native (over shared memory)", [50.0, 52.0, 30.0], vis(run, &shm)?),
        ("VI / IB (over UDP)", [50.0, 52.0, 30.0], vis(run, &udp)?),
        ("IB / IB (verbs over UDP)", [54.5, 56.5, 32.0], verbs(run, &udp)?),
    ];
    let beside = verbs(run, &shm)?;
    let mut table = Vec::new();
    for (i, mode) in MODES.iter().enumerate() {
        for (name, paper, ours) in &rows {
            let note = if i == 1 { "Reliable Delivery, RC" } else { "told in the paper's text" };
            table.push(Row::new(format!("{mode}, {name}"), Unit::Us, paper[i], ours[i], note));
        }
        let what = format!("{mode}, verbs over shared memory");
        table.push(Row::new(what, Unit::Us, None, beside[i], "not in the paper"));
    }
    let level = via::Spec { reliability: Reliability::Reception, size: SIZE };
    for (name, setup) in [("shared memory", &shm), ("UDP", &udp)] {
        let us = 2.0 * via::start(setup, level, run.time)?.latency_ns()? / 1e3;
        let what = format!("Reliable Reception, VIs over {name}");
        table.push(Row::new(what, Unit::Us, None, us, "its firmware had it, no value is told"));
    }
    report.show("Figure 6: round trips of 4 B", &table);
    let icrc = icrc_ns(run)? / 1e3;
    let share = |ours: f64| 100.0 * 4.0 * icrc / ours;
    let note = "two packets, each made and checked; acknowledgements come on top";
    report.show(
        "The ICRC's share of a round trip",
        &[
            Row::new("an ICRC of such a packet", Unit::Us, None, icrc, "the paper saw no difference at all"),
            Row::new("of VI / IB, unreliable", Unit::Percent, None, share(rows[1].2[0]), note),
            Row::new("of VI / IB, reliable", Unit::Percent, None, share(rows[1].2[1]), note),
            Row::new("of IB / IB, unreliable", Unit::Percent, None, share(rows[2].2[0]), note),
            Row::new("of IB / IB, reliable", Unit::Percent, None, share(rows[2].2[1]), note),
        ],
    );
    let mut names = Vec::new();
    for (name, ..) in &rows {
        names.extend([format!("paper: {name}"), format!("ours: {name}")]);
    }
    let bars = |i: usize| rows.iter().flat_map(|(_, paper, ours)| [Some(paper[i]), Some(ours[i])]).collect();
    let groups = MODES.iter().enumerate().map(|(i, mode)| ((*mode).to_owned(), bars(i))).collect();
    let title = "Buonadonna, figure 6: round trips of 4 B".to_owned();
    report.figure(Figure::Bars { title, value: "us", names, groups });
    report.say(&format!("\n{SOURCE}"));
    Ok(())
}

/// Round trips of VIs, in us, by benchmark.
fn vis(run: &Run, setup: &Setup) -> Result<[f64; 3], Failure> {
    let spec = |reliability| via::Spec { reliability, size: SIZE };
    let unreliable = via::start(setup, spec(Reliability::Unreliable), run.time)?.latency_ns()?;
    let mut two = via::start(setup, spec(Reliability::Delivery), run.time)?;
    let reliable = two.latency_ns()?;
    Ok([2.0 * unreliable, 2.0 * reliable, two.read_ns(SIZE)?].map(|ns| ns / 1e3))
}

/// The same of verbs.
fn verbs(run: &Run, setup: &Setup) -> Result<[f64; 3], Failure> {
    let mut verbs = Verbs::start(setup, run.time)?;
    let mut trip = |service| {
        verbs.set_messages(service, SIZE as u64);
        verbs.latency_ns()
    };
    let (unreliable, reliable) = (trip(Service::Uc)?, trip(Service::Rc)?);
    Ok([2.0 * unreliable, 2.0 * reliable, verbs.read_ns(SIZE as u64)?].map(|ns| ns / 1e3))
}

/// The time of an ICRC over the packet of a message, in ns.
fn icrc_ns(run: &Run) -> Result<f64, Failure> {
    let ip = |n| IpAddr::V4(Ipv4Addr::new(127, 0, 0, n));
    let mut flow = MeasuredIcrc::new(ip(2), ip(3), 0xc000).ok_or("both addresses are IPv4")?;
    let mut packet = [0x5a; PACKET];
    let Ok(ns) = median_ns(run.time, 1024, || {
        (0..1024).for_each(|_| flow.seal(black_box(7), PACKET, black_box(&mut packet)));
        Ok::<_, Infallible>(())
    });
    Ok(ns)
}
