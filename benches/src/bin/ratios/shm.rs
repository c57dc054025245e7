//! Shared memory: cache lines, copies, streams, peers that nobody talks to, and peers that take turns.

use std::cell::RefCell;
use std::convert::Infallible;
use std::hint::black_box;

use hca::{Buf, Pd};
use hca_benches::crowd::Peers;
use hca_benches::duo::{Duo, ForeignOp, Kind, aligned};
use hca_benches::floor::{Floor, cache};
use hca_benches::ratio::{Ratio, summary};
use hca_benches::turns::{Order, Turns};
use hca_perf::Failure;
use hca_perf::Op;
use hca_perf::batches::per_second;

use super::network::{beside_one, beside_processes, crowd};
use super::{Bench, Row, Unit, less, more, rc};

/// Memory that no cache holds.
const COLD_BYTES: usize = 256 << 20;
/// Receive buffers of 1 MiB that a stream of messages goes through, as `hca perf` posts them.
const RECEIVE_BUFFERS: usize = 4;

#[rustfmt::skip]
pub(super) const ROWS: [Row; 28] = [
    Row { name: "send 8 B one way", against: "8 B ring", target: less(1.6, Some(1.35)), unit: Unit::Ns, measure: |b| duo(b, Kind::Send, 8, cache::Kind::RingPingPong) },
    Row { name: "write 8 B half round trip", against: "bare put", target: less(1.3, Some(1.1)), unit: Unit::Ns, measure: |b| duo(b, Kind::Write, 8, cache::Kind::PutPingPong) },
    Row { name: "read 8 B", against: "load of an owned line", target: less(2.0, Some(1.5)), unit: Unit::Ns, measure: |b| duo(b, Kind::Read, 8, cache::Kind::OwnedLoad) },
    Row { name: "fetch-add", against: "the same on an owned line", target: less(2.0, Some(1.5)), unit: Unit::Ns, measure: |b| duo(b, Kind::FetchAdd, 8, cache::Kind::OwnedAdd) },
    Row { name: "compare-swap", against: "the same on an owned line", target: less(2.0, Some(1.5)), unit: Unit::Ns, measure: |b| duo(b, Kind::CompareSwap, 8, cache::Kind::OwnedSwap) },
    Row { name: "write 64 KiB hot", against: "memcpy", target: more(0.9, Some(0.97)), unit: Unit::Bytes, measure: |b| blocks(b, 64 << 10, 64 << 10) },
    Row { name: "write 1 MiB hot", against: "memcpy", target: more(0.9, Some(0.97)), unit: Unit::Bytes, measure: |b| blocks(b, 1 << 20, 1 << 20) },
    Row { name: "write 64 KiB cold", against: "memcpy", target: more(1.6, None), unit: Unit::Bytes, measure: |b| blocks(b, 64 << 10, COLD_BYTES) },
    Row { name: "write 1 MiB cold", against: "memcpy", target: more(1.6, None), unit: Unit::Bytes, measure: |b| blocks(b, 1 << 20, COLD_BYTES) },
    Row { name: "send 1 MiB stream", against: "memcpy into as many buffers", target: more(0.7, Some(0.85)), unit: Unit::Bytes, measure: messages },
    Row { name: "send 1 MiB foreign stream", against: "memcpy", target: None, unit: Unit::Bytes, measure: |b| foreign(b, ForeignOp::Send, 1 << 20) },
    Row { name: "write 64 KiB foreign", against: "memcpy", target: None, unit: Unit::Bytes, measure: |b| foreign(b, ForeignOp::Write, 64 << 10) },
    Row { name: "write 1 MiB foreign", against: "memcpy", target: None, unit: Unit::Bytes, measure: |b| foreign(b, ForeignOp::Write, 1 << 20) },
    Row { name: "read 1 MiB foreign", against: "memcpy", target: None, unit: Unit::Bytes, measure: |b| foreign(b, ForeignOp::Read, 1 << 20) },
    Row { name: "send 4 KiB one way", against: "bare put of 4 KiB", target: None, unit: Unit::Ns, measure: |b| duo(b, Kind::Send, 4096, cache::Kind::LargePutPingPong) },
    Row { name: "send 8 B rate", against: "8 B ring", target: more(0.3, Some(0.5)), unit: Unit::Messages, measure: sends },
    Row { name: "write 8 B rate", against: "bare store and flag", target: more(0.5, Some(0.7)), unit: Unit::Messages, measure: writes },
    Row { name: "auto: send 8 B one way", against: "by shared memory alone", target: less(1.1, Some(1.0)), unit: Unit::Ns, measure: beside_sockets },
    Row { name: "beside 1000 idle peers", against: "send 8 B alone", target: less(1.1, Some(1.0)), unit: Unit::Ns, measure: |b| peers(b, 1000) },
    Row { name: "beside 100 idle peers", against: "send 8 B alone", target: less(1.1, Some(1.0)), unit: Unit::Ns, measure: |b| peers(b, 100) },
    Row { name: "beside 10000 idle pairs", against: "send 8 B alone", target: less(1.1, Some(1.0)), unit: Unit::Ns, measure: |b| crowd(b, 10_000) },
    Row { name: "beside 1000 idle pairs", against: "send 8 B alone", target: less(1.1, Some(1.0)), unit: Unit::Ns, measure: |b| crowd(b, 1000) },
    Row { name: "spin: write 8 B half round trip", against: "the same with turns", target: less(3.0, None), unit: Unit::Ns, measure: |b| spin(b, Kind::Spin, Kind::Write) },
    Row { name: "spin: write 8 B half round trip, foreign memory", against: "the same with turns", target: less(3.0, None), unit: Unit::Ns, measure: |b| spin(b, Kind::SpinForeign, Kind::WriteForeign) },
    Row { name: "8 peers take turns", against: "one of them alone", target: None, unit: Unit::Ns, measure: |b| turns(b, 8) },
    Row { name: "1000 peers take turns", against: "one of them alone", target: None, unit: Unit::Ns, measure: |b| turns(b, 1000) },
    Row { name: "2 adapters, a thread each, send 8 B rate", against: "2 processes", target: more(0.9, None), unit: Unit::Messages, measure: |b| beside_processes(b, &b.device.clone()) },
    Row { name: "2 adapters, a thread each, beside one", against: "1 thread alone", target: None, unit: Unit::Messages, measure: |b| beside_one(b, &b.device.clone()) },
];

/// A latency against one on bare cache lines, in ns.
fn duo(b: &Bench, kind: Kind, size: usize, floor: cache::Kind) -> Result<Option<Ratio>, Failure> {
    let mut duo = Duo::start(&b.device, b.cpus, kind, size)?;
    let floor = || Ok(b.floor(Floor::Cache(floor))?.half_rtt_ns);
    Ok(summary(&b.interleave(|| duo.latency_ns(b.time), floor)?))
}

/// The latency of messages to a near peer where each adapter has sockets to look at, too, against adapters of shared
/// memory alone, in ns.
fn beside_sockets(b: &Bench) -> Result<Option<Ratio>, Failure> {
    let mut both = Duo::start(&"auto://".parse()?, b.cpus, Kind::Send, 8)?;
    let mut near = Duo::start(&b.device, b.cpus, Kind::Send, 8)?;
    Ok(summary(&b.interleave(|| both.latency_ns(b.time), || near.latency_ns(b.time))?))
}

/// Half of a round trip of WRITEs between programs that call nothing while they wait, against programs that turn their
/// devices, in ns.
pub(super) fn spin(b: &Bench, spins: Kind, turns: Kind) -> Result<Option<Ratio>, Failure> {
    let mut spinning = Duo::start(&b.device, b.cpus, spins, 8)?;
    let mut turning = Duo::start(&b.device, b.cpus, turns, 8)?;
    Ok(summary(&b.interleave(|| spinning.latency_ns(b.time), || turning.latency_ns(b.time))?))
}

/// WRITEs of `size` over `span` bytes against memcpy, in bytes a second.
///
/// The copy reads the same source. Its target is a buffer of this process that begins at a page, as the peer's memory
/// does, from the same allocator: no program gets a mapping of its peer's memory.
fn blocks(b: &Bench, size: usize, span: usize) -> Result<Option<Ratio>, Failure> {
    let mut duo = Duo::start(&b.device, b.cpus, Kind::Blocks { span }, size)?;
    let mut target = [aligned(duo.pd(), span)?];
    let source = duo.source().clone();
    let floor = || Ok(memcpy(b, &source, &mut target, size));
    Ok(summary(&b.interleave(|| duo.write_bytes_per_s(b.time), floor)?))
}

/// A stream of blocks of foreign memory against memcpy between two buffers, in bytes a second.
fn foreign(b: &Bench, op: ForeignOp, size: usize) -> Result<Option<Ratio>, Failure> {
    let mut duo = Duo::start(&b.device, b.cpus, Kind::Foreign { op, span: size }, size)?;
    let (source, mut target) = (aligned(duo.pd(), size)?, [aligned(duo.pd(), size)?]);
    let floor = || Ok(memcpy(b, &source, &mut target, size));
    Ok(summary(&b.interleave(|| duo.foreign_bytes_per_s(b.time), floor)?))
}

/// A stream of SENDs of 1 MiB against memcpy from one buffer into as many as are posted to receive, in bytes a second.
fn messages(b: &Bench) -> Result<Option<Ratio>, Failure> {
    let size = 1 << 20;
    let mut pair = b.pair()?;
    let pd: Pd = pair.opened().context().alloc_pd()?;
    let source = aligned(&pd, size)?;
    let mut targets = (0..RECEIVE_BUFFERS).map(|_| aligned(&pd, size)).collect::<Result<Vec<_>, _>>()?;
    let ours = || Ok(b.rate(&mut pair, &rc(Op::Send, size as u64))? * size as f64);
    let floor = || Ok(memcpy(b, &source, &mut targets, size));
    Ok(summary(&b.interleave(ours, floor)?))
}

/// Copies the source, block after block, into each target in turn; bytes a second.
fn memcpy(b: &Bench, source: &[u8], targets: &mut [Buf], size: usize) -> f64 {
    let (mut at, mut target) = (0, 0);
    let Ok(rate) = per_second(b.time, size, || {
        black_box(&mut targets[target])[at..at + size].copy_from_slice(black_box(&source[at..at + size]));
        at = (at + size) % source.len();
        target = (target + usize::from(at == 0)) % targets.len();
        Ok::<_, Infallible>(())
    });
    rate
}

/// A stream of 8-byte messages, signalled every 64th, against the ring's, a second.
fn sends(b: &Bench) -> Result<Option<Ratio>, Failure> {
    let mut pair = b.pair()?;
    let floor = || Ok(b.floor(Floor::Cache(cache::Kind::RingStream))?.packets_per_s);
    Ok(summary(&b.interleave(|| b.rate(&mut pair, &rc(Op::Send, 8)), floor)?))
}

/// A stream of 8-byte WRITEs to successive lines, signalled every 64th, which the target's program follows, against one
/// of bare stores, a second.
fn writes(b: &Bench) -> Result<Option<Ratio>, Failure> {
    let mut duo = Duo::start(&b.device, b.cpus, Kind::Follow, 8)?;
    let floor = || Ok(b.floor(Floor::Cache(cache::Kind::StoreStream))?.packets_per_s);
    Ok(summary(&b.interleave(|| duo.writes_per_s(b.time), floor)?))
}

/// The half round trip with so many connected peers that are idle against that with none, in ns.
fn peers(b: &Bench, count: usize) -> Result<Option<Ratio>, Failure> {
    let (mut crowded, mut alone) = (b.pair()?, b.pair()?);
    let _peers = Peers::connect(crowded.opened(), &b.device, count)?;
    let case = rc(Op::Send, 8);
    Ok(summary(&b.interleave(|| b.p50(&mut crowded, &case), || b.p50(&mut alone, &case))?))
}

/// The half round trip of messages each of which comes from another of so many peers than the last, against that of as
/// many from one of them, in ns.
fn turns(b: &Bench, count: usize) -> Result<Option<Ratio>, Failure> {
    let turns = RefCell::new(Turns::start(&b.device, b.cpus, count)?);
    let there = turns.borrow().count();
    if there < count {
        eprintln!("{there} of {count} peers: for more raise the limit of descriptors (ulimit -Hn)");
    }
    let run = |who| turns.borrow_mut().half_round_trip_ns(who, Order::Drawn, b.time);
    Ok(summary(&b.interleave(|| run(0..there), || run(0..1))?))
}
