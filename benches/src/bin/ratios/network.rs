//! Packets over UDP and raw Ethernet, and what an adapter costs that nobody uses.

use hca::DeviceUrl;
use hca_benches::duo::Kind;
use hca_benches::engines::{Processes, Stream, rate_by_threads};
use hca_benches::floor::{self, Floor};
use hca_benches::idle;
use hca_benches::members::Members;
use hca_benches::ratio::{Ratio, summary};
use hca_perf::Failure;
use hca_perf::{Op, Pair, Setup};
use test_support::namespaces::Wire;

use super::shm::spin;
use super::{Bench, Row, Unit, less, more, rc, single};

/// Processes that may share an address: the two that are measured, and 63 that are idle.
const SHARED_BY: u16 = 65;

#[rustfmt::skip]
pub(super) const ROWS: [Row; 30] = [
    Row { name: "send 8 B, latency", against: "bare UDP ping-pong", target: less(1.25, Some(1.12)), unit: Unit::Ns, measure: |b| latency(b, Op::Send) },
    Row { name: "write 8 B, latency", against: "bare UDP ping-pong", target: less(1.25, Some(1.12)), unit: Unit::Ns, measure: |b| latency(b, Op::Write) },
    Row { name: "raw send 64 B, latency", against: "bare V2 ring over veth", target: less(1.25, Some(1.1)), unit: Unit::Ns, measure: |b| raw(b, (Op::Send, 64), Floor::RawPingPong) },
    Row { name: "raw write 64 B, latency", against: "bare V2 ring over veth", target: less(1.25, Some(1.1)), unit: Unit::Ns, measure: |b| raw(b, (Op::Write, 64), Floor::RawPingPong) },
    Row { name: "raw read 64 B, post to completion", against: "V2 ring, there and back", target: None, unit: Unit::Ns, measure: |b| raw(b, (Op::Read, 64), Floor::RawPingPong) },
    Row { name: "raw atomic 8 B, post to completion", against: "V2 ring, there and back", target: None, unit: Unit::Ns, measure: |b| raw(b, (Op::Atomic, 8), Floor::RawPingPong) },
    Row { name: "raw send 64 B, latency, xdp", against: "bare AF_XDP copy over veth", target: None, unit: Unit::Ns, measure: |b| raw(b, (Op::Send, 64), Floor::XdpPingPong) },
    Row { name: "raw write 64 KiB, stream", against: "sendmmsg to V2 ring, 4 KiB", target: None, unit: Unit::Blocks, measure: |b| raw(b, (Op::Write, 64 << 10), Floor::RawGoodput) },
    Row { name: "raw send 64 B, rate", against: "sendmmsg to V2 ring, 64 B", target: None, unit: Unit::Messages, measure: |b| raw(b, (Op::Send, 64), Floor::RawRate) },
    Row { name: "raw write 64 B, rate", against: "sendmmsg to V2 ring, 64 B", target: None, unit: Unit::Messages, measure: |b| raw(b, (Op::Write, 64), Floor::RawRate) },
    Row { name: "write 64 KiB, stream", against: "bare GSO+GRO goodput", target: more(0.7, Some(0.85)), unit: Unit::Bytes, measure: |b| stream(b, 64 << 10, Floor::UdpGoodput) },
    Row { name: "write 1 MiB, stream", against: "bare GSO+GRO goodput", target: more(0.7, Some(0.85)), unit: Unit::Bytes, measure: |b| stream(b, 1 << 20, Floor::UdpGoodput) },
    Row { name: "write 64 KiB, stream, tcp", against: "one TCP stream", target: more(1.0, None), unit: Unit::Bytes, measure: |b| stream(b, 64 << 10, Floor::TcpStream) },
    Row { name: "write 1 MiB, stream, tcp", against: "one TCP stream", target: more(1.0, None), unit: Unit::Bytes, measure: |b| stream(b, 1 << 20, Floor::TcpStream) },
    Row { name: "send 8 B, rate", against: "bare GSO+GRO rate, 24 B", target: more(0.2, Some(0.4)), unit: Unit::Messages, measure: rate },
    Row { name: "write 64 KiB, 1 % loss", against: "the same without loss", target: more(0.3, None), unit: Unit::Blocks, measure: |b| loss(b, "loss=0.01,seed=7") },
    Row { name: "write 64 KiB, 0.1 % loss", against: "the same without loss", target: more(0.7, None), unit: Unit::Blocks, measure: |b| loss(b, "loss=0.001,seed=7") },
    Row { name: "send 8 B, 10,000 idle pairs", against: "the same with none", target: less(1.1, None), unit: Unit::Ns, measure: |b| crowd(b, 10_000) },
    Row { name: "send 8 B, shared address", against: "the same, an address each", target: less(1.05, None), unit: Unit::Ns, measure: |b| shared(b, 0) },
    Row { name: "send 8 B, shared address, 63 idle processes", against: "the same, an address each", target: less(1.05, None), unit: Unit::Ns, measure: |b| shared(b, 63) },
    Row { name: "join of a shared address, the slowest of 63, ms", against: "", target: less(10.0, None), unit: Unit::Alone, measure: |b| Ok(Some(single(joins(b, 63)?.high))) },
    Row { name: "join of a shared address, of 8, ms", against: "", target: None, unit: Unit::Alone, measure: |b| joins(b, 8).map(Some) },
    Row { name: "join of a shared address, of 63, ms", against: "", target: None, unit: Unit::Alone, measure: |b| joins(b, 63).map(Some) },
    Row { name: "join of a shared address, of 249, ms", against: "", target: None, unit: Unit::Alone, measure: |b| joins(b, 249).map(Some) },
    Row { name: "spin: write 8 B, half round trip", against: "the same with turns", target: less(3.0, None), unit: Unit::Ns, measure: |b| spin(b, Kind::Spin, Kind::Write) },
    Row { name: "idle adapter, wake-ups/s", against: "", target: less(1.0, None), unit: Unit::Alone, measure: |b| wakeups(b, 0) },
    Row { name: "idle adapter, 100 pairs, wake-ups/s", against: "", target: less(1.0, None), unit: Unit::Alone, measure: |b| wakeups(b, 100) },
    Row { name: "idle pair, bytes", against: "", target: less(8192.0, None), unit: Unit::Alone, measure: |b| Ok(Some(single(idle::bytes_per_pair(&b.device)?))) },
    Row { name: "2 adapters, a thread each, send 8 B rate", against: "2 processes", target: more(0.9, None), unit: Unit::Messages, measure: |b| beside_processes(b, &at_shared(b)) },
    Row { name: "2 adapters, a thread each, beside one", against: "1 thread alone", target: None, unit: Unit::Messages, measure: |b| beside_one(b, &at_shared(b)) },
];

/// Half of a round trip of 8 bytes against the bare ping-pong, in ns.
fn latency(b: &Bench, op: Op) -> Result<Option<Ratio>, Failure> {
    let mut pair = b.pair()?;
    let ours = || b.p50(&mut pair, &rc(op, 8));
    Ok(summary(&b.interleave(ours, || Ok(b.floor(Floor::UdpPingPong)?.half_rtt_ns))?))
}

/// An operation of this size over raw Ethernet between two namespaces, against a floor on the same wire: half of a
/// round trip in ns, the whole of it for what is answered, or a stream in messages a second.
fn raw(b: &Bench, (op, size): (Op, u64), floor: Floor) -> Result<Option<Ratio>, Failure> {
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
        let bare = || {
            let figures = floor::run_across(floor, b.cpus.0, b.cpus.1, b.time, Some(&far))?;
            Ok(match floor {
                Floor::RawGoodput => figures.bytes_per_s / size as f64,
                Floor::RawRate => figures.packets_per_s,
                _ if matches!(op, Op::Read | Op::Atomic) => 2.0 * figures.half_rtt_ns,
                _ => figures.half_rtt_ns,
            })
        };
        let ours = || match floor {
            Floor::RawGoodput | Floor::RawRate => b.rate(&mut pair, &rc(op, size)),
            _ => b.p50(&mut pair, &rc(op, size)),
        };
        b.interleave(ours, bare).map_err(|e| e.to_string())
    });
    Ok(summary(&measured?))
}

/// A stream of writes of this size against a floor, in bytes a second.
fn stream(b: &Bench, size: u64, against: Floor) -> Result<Option<Ratio>, Failure> {
    let mut pair = b.pair()?;
    let ours = || Ok(b.rate(&mut pair, &rc(Op::Write, size))? * size as f64);
    Ok(summary(&b.interleave(ours, || Ok(b.floor(against)?.bytes_per_s))?))
}

/// A stream of 8-byte sends against the bare rate, in messages a second.
fn rate(b: &Bench) -> Result<Option<Ratio>, Failure> {
    let mut pair = b.pair()?;
    let ours = || b.rate(&mut pair, &rc(Op::Send, 8));
    Ok(summary(&b.interleave(ours, || Ok(b.floor(Floor::UdpRate)?.packets_per_s))?))
}

/// A stream of 64 KiB writes with this loss against one without, in messages a second.
fn loss(b: &Bench, fault: &str) -> Result<Option<Ratio>, Failure> {
    let mut lossy = b.device.clone();
    lossy.options.fault = Some(fault.parse()?);
    let (mut lossy, mut clean) = (Pair::start(&Setup::new(lossy))?, b.pair()?);
    let case = rc(Op::Write, 64 << 10);
    Ok(summary(&b.interleave(|| b.rate(&mut lossy, &case), || b.rate(&mut clean, &case))?))
}

/// The half round trip with so many idle queue pairs against that with none, in ns.
pub(super) fn crowd(b: &Bench, count: u32) -> Result<Option<Ratio>, Failure> {
    let (mut crowded, mut alone) = (b.pair()?, b.pair()?);
    let _crowd = idle::Crowd::connect(crowded.opened().context(), count)?;
    let case = rc(Op::Send, 8);
    Ok(summary(&b.interleave(|| b.p50(&mut crowded, &case), || b.p50(&mut alone, &case))?))
}

/// The device of the bench, at an address that processes share.
fn at_shared(b: &Bench) -> DeviceUrl {
    let mut device = b.device.clone();
    device.options.share = Some(SHARED_BY);
    device
}

/// The half round trip of two processes at one shared address, beside so many idle processes there, against that of
/// two with an address each, in ns.
fn shared(b: &Bench, idle: usize) -> Result<Option<Ratio>, Failure> {
    let mut alone = b.pair()?;
    let mut pair = Pair::start(&Setup::new(at_shared(b)))?;
    let address = pair.opened().url().clone();
    let mut members = Members::default();
    for _ in 0..idle {
        members.add(&address)?;
    }
    let case = rc(Op::Send, 8);
    Ok(summary(&b.interleave(|| b.p50(&mut pair, &case), || b.p50(&mut alone, &case))?))
}

/// The times that so many processes take to open a device at a shared address, one after the other, in ms.
fn joins(b: &Bench, count: u16) -> Result<Ratio, Failure> {
    let mut device = b.device.clone();
    device.options.share = Some(count + 1);
    let first = hca::open_exactly(&device)?;
    let mut members = Members::default();
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..count {
        times.push(members.add(first.url())?.as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    let (low, median, high) = (times[0], times[times.len() / 2], times[times.len() - 1]);
    Ok(Ratio { median, low, high, ours: median, pairs: times.len(), ..single(median) })
}

/// Two streams of 8-byte messages by two threads of this process, each between adapters of its own, against the same by
/// two processes, a second: whether adapters of one process share anything that costs.
pub(super) fn beside_processes(b: &Bench, device: &DeviceUrl) -> Result<Option<Ratio>, Failure> {
    let cpus = [b.cpus.0, b.cpus.1];
    let mut streams = [Stream::open(device)?, Stream::open(device)?];
    let mut processes = Processes::start(device, &cpus)?;
    let ours = || rate_by_threads(&mut streams, &cpus, b.time);
    Ok(summary(&b.interleave(ours, || processes.rate(b.time))?))
}

/// The same against one thread with one stream: what a second CPU brings.
pub(super) fn beside_one(b: &Bench, device: &DeviceUrl) -> Result<Option<Ratio>, Failure> {
    let cpus = [b.cpus.0, b.cpus.1];
    let mut streams = [Stream::open(device)?, Stream::open(device)?];
    let mut alone = [Stream::open(device)?];
    let ours = || rate_by_threads(&mut streams, &cpus, b.time);
    Ok(summary(&b.interleave(ours, || rate_by_threads(&mut alone, &cpus[..1], b.time))?))
}

/// Context switches a second of an adapter that nobody uses, with so many connected queue pairs.
fn wakeups(b: &Bench, pairs: u32) -> Result<Option<Ratio>, Failure> {
    Ok(Some(single(idle::wakeups_per_s(&b.device, pairs)?)))
}
