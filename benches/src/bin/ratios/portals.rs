//! Portals beside the verbs that carry it, and beside what is published of the reference implementation.

use std::cell::RefCell;

use hca::DeviceUrl;
use hca_benches::ratio::{Ratio, summary};
use hca_perf::Failure;
use hca_perf::portals::{Case, Nodes, Settings};
use hca_perf::{Limit, Op, Pair, Phase, Setup};

use super::{Bench, Fabric, Row, Unit, less, more, rc};

/// The reference implementation over UDP on loopback, put to self of 8 B and of 4 KiB, in ns, and its puts a second.
const PUBLISHED_8: f64 = 5_000.0;
const PUBLISHED_4K: f64 = 17_700.0;
const PUBLISHED_RATE: f64 = 110_000.0;
/// The longest that adaptive progress leaves a program alone that has stopped calling, in ns: its thread takes
/// over within 2 ms, and is woken once.
const PROMISED: f64 = 2_000_000.0 + WAKE;
/// Waking a sleeper on another core, in ns.
const WAKE: f64 = 18_000.0;

#[rustfmt::skip]
pub(super) const ROWS: [Row; 21] = [
    Row { name: "shm put 8 B one way", against: "verbs send", target: less(1.35, None), unit: Unit::Ns, measure: |b| latency(b, Fabric::Shm, Op::Put, Op::Send, 8) },
    Row { name: "udp put 8 B one way", against: "verbs send", target: less(1.1, None), unit: Unit::Ns, measure: |b| latency(b, Fabric::Udp, Op::Put, Op::Send, 8) },
    Row { name: "shm put 4 KiB one way", against: "verbs send", target: None, unit: Unit::Ns, measure: |b| latency(b, Fabric::Shm, Op::Put, Op::Send, 4 << 10) },
    Row { name: "udp put 4 KiB one way", against: "verbs send", target: None, unit: Unit::Ns, measure: |b| latency(b, Fabric::Udp, Op::Put, Op::Send, 4 << 10) },
    Row { name: "shm put 1 MiB stream", against: "verbs write", target: more(0.9, None), unit: Unit::Bytes, measure: |b| stream(b, Fabric::Shm, Op::Write, 1 << 20) },
    Row { name: "udp put 1 MiB stream", against: "verbs write", target: None, unit: Unit::Bytes, measure: |b| stream(b, Fabric::Udp, Op::Write, 1 << 20) },
    Row { name: "shm put 8 B rate", against: "verbs send", target: None, unit: Unit::Messages, measure: |b| rate(b, Fabric::Shm, Op::Put) },
    Row { name: "udp put 8 B rate", against: "verbs send", target: None, unit: Unit::Messages, measure: |b| rate(b, Fabric::Udp, Op::Put) },
    Row { name: "shm get 8 B", against: "verbs send, there and back", target: None, unit: Unit::Ns, measure: |b| latency(b, Fabric::Shm, Op::Get, Op::Send, 8) },
    Row { name: "udp get 8 B", against: "verbs send, there and back", target: None, unit: Unit::Ns, measure: |b| latency(b, Fabric::Udp, Op::Get, Op::Send, 8) },
    Row { name: "udp put 8 B, published", against: "reference, put to self", target: less(1.0 / 1.35, Some(1.0 / 1.5)), unit: Unit::Ns, measure: |b| published(b, Fabric::Udp, 8, PUBLISHED_8) },
    Row { name: "udp put 4 KiB, published", against: "reference, put to self", target: less(0.5, None), unit: Unit::Ns, measure: |b| published(b, Fabric::Udp, 4 << 10, PUBLISHED_4K) },
    Row { name: "udp put rate, published", against: "reference", target: more(5.0, None), unit: Unit::Messages, measure: |b| published_rate(b, Fabric::Udp) },
    Row { name: "shm put 8 B, published", against: "reference over UDP", target: less(1.0 / 20.0, None), unit: Unit::Ns, measure: |b| published(b, Fabric::Shm, 8, PUBLISHED_8) },
    Row { name: "shm put 4 KiB, published", against: "reference over UDP", target: less(1.0 / 20.0, None), unit: Unit::Ns, measure: |b| published(b, Fabric::Shm, 4 << 10, PUBLISHED_4K) },
    Row { name: "shm put rate, published", against: "reference over UDP", target: more(20.0, None), unit: Unit::Messages, measure: |b| published_rate(b, Fabric::Shm) },
    Row { name: "shm 64 KiB, target computes", against: "2 ms and a wake-up", target: less(1.0, None), unit: Unit::Ns, measure: |b| computes(b, Fabric::Shm) },
    Row { name: "udp 64 KiB, target computes", against: "2 ms and a wake-up", target: less(1.0, None), unit: Unit::Ns, measure: |b| computes(b, Fabric::Udp) },
    Row { name: "shm 64 KiB, target has computed", against: "the same, target polls", target: None, unit: Unit::Ns, measure: |b| has_computed(b, Fabric::Shm) },
    Row { name: "udp 64 KiB, target has computed", against: "the same, target polls", target: None, unit: Unit::Ns, measure: |b| has_computed(b, Fabric::Udp) },
    Row { name: "shm put 8 B behind 1000 wildcards", against: "put 8 B", target: None, unit: Unit::Ns, measure: |b| behind(b, Fabric::Shm) },
];

/// Two processes, and a Portals node in each.
struct Two {
    pair: Pair,
    nodes: Nodes,
}

impl Two {
    fn start(b: &Bench, fabric: Fabric) -> Result<Self, Failure> {
        let device: DeviceUrl = b.named.clone().unwrap_or_else(|| fabric.device());
        let mut pair = Pair::start(&Setup::new(device))?;
        let nodes = pair.nodes(Settings::default())?;
        Ok(Self { pair, nodes })
    }
    /// The median latency in ns.
    fn p50(&mut self, b: &Bench, case: &Case) -> Result<f64, Failure> {
        let measured = self.pair.run_portals(&self.nodes, case, Phase::Latency, b.limit())?;
        Ok(measured.latencies.value_at_quantile(0.5) as f64)
    }
    /// Messages of a stream a second.
    fn rate(&mut self, b: &Bench, case: &Case) -> Result<f64, Failure> {
        Ok(self.pair.run_portals(&self.nodes, case, Phase::Stream, b.limit())?.rate())
    }
}

/// An operation beside one of the verbs, in ns; what is told to the initiator beside a SEND there and back.
fn latency(b: &Bench, fabric: Fabric, op: Op, verb: Op, size: u64) -> Result<Option<Ratio>, Failure> {
    let (mut two, mut verbs) = (Two::start(b, fabric)?, Two::start(b, fabric)?.pair);
    let ways = if op == Op::Put { 1.0 } else { 2.0 };
    let ours = || two.p50(b, &Case::new(op, size));
    Ok(summary(&b.interleave(ours, || Ok(ways * b.p50(&mut verbs, &rc(verb, size))?))?))
}

/// Puts of this size beside one of the verbs, in bytes a second.
fn stream(b: &Bench, fabric: Fabric, verb: Op, size: u64) -> Result<Option<Ratio>, Failure> {
    let (mut two, mut verbs) = (Two::start(b, fabric)?, Two::start(b, fabric)?.pair);
    let bytes = size as f64;
    let ours = || Ok(two.rate(b, &Case::new(Op::Put, size))? * bytes);
    Ok(summary(&b.interleave(ours, || Ok(b.rate(&mut verbs, &rc(verb, size))? * bytes))?))
}

/// Messages of 8 bytes a second, beside SENDs.
fn rate(b: &Bench, fabric: Fabric, op: Op) -> Result<Option<Ratio>, Failure> {
    let (mut two, mut verbs) = (Two::start(b, fabric)?, Two::start(b, fabric)?.pair);
    let ours = || two.rate(b, &Case::new(op, 8));
    Ok(summary(&b.interleave(ours, || b.rate(&mut verbs, &rc(Op::Send, 8)))?))
}

/// A put beside a published time, in ns.
fn published(b: &Bench, fabric: Fabric, size: u64, peer: f64) -> Result<Option<Ratio>, Failure> {
    let mut two = Two::start(b, fabric)?;
    Ok(summary(&b.interleave(|| two.p50(b, &Case::new(Op::Put, size)), || Ok(peer))?))
}

/// Puts of 8 bytes a second beside the published ones.
fn published_rate(b: &Bench, fabric: Fabric) -> Result<Option<Ratio>, Failure> {
    let mut two = Two::start(b, fabric)?;
    Ok(summary(&b.interleave(|| two.rate(b, &Case::new(Op::Put, 8)), || Ok(PUBLISHED_RATE))?))
}

/// A put of 64 KiB until its acknowledgement, while the target's program computes and calls nothing.
const WITNESS: Case = Case::new(Op::PutAck, 64 << 10);

/// The first one after the target has begun to compute, beside what is promised, in ns.
fn computes(b: &Bench, fabric: Fabric) -> Result<Option<Ratio>, Failure> {
    let mut two = Two::start(b, fabric)?;
    // So that both have met.
    two.p50(b, &WITNESS)?;
    let busy = Case { computes: true, ..WITNESS };
    let ours = || {
        let measured = two.pair.run_portals(&two.nodes, &busy, Phase::Latency, Limit::Count(1))?;
        Ok(measured.latencies.value_at_quantile(0.5) as f64)
    };
    Ok(summary(&b.interleave(ours, || Ok(PROMISED))?))
}

/// Those that follow, beside a target that polls, in ns.
fn has_computed(b: &Bench, fabric: Fabric) -> Result<Option<Ratio>, Failure> {
    let two = RefCell::new(Two::start(b, fabric)?);
    let busy = Case { computes: true, ..WITNESS };
    let p50 = |case| two.borrow_mut().p50(b, case);
    Ok(summary(&b.interleave(|| p50(&busy), || p50(&WITNESS))?))
}

/// A put past other entries, beside one without, in ns.
fn behind(b: &Bench, fabric: Fabric) -> Result<Option<Ratio>, Failure> {
    use hca_perf::portals::{Before, Entries};
    let (mut two, mut alone) = (Two::start(b, fabric)?, Two::start(b, fabric)?);
    let case = Case::new(Op::Put, 8);
    let past = Case { before: Some(Before { count: 1000, entries: Entries::Wildcard }), ..case };
    Ok(summary(&b.interleave(|| two.p50(b, &past), || alone.p50(b, &case))?))
}
