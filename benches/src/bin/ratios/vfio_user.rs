//! The ConnectX driver on functions that another process serves, beside handing over between threads that yield, beside
//! the same engine within the program, and beside the pages of memory.

use std::time::Instant;

use hca::{ConnectOptions, open_exactly};
use hca_benches::crowd::pair;
use hca_benches::embedded::Embedded;
use hca_benches::floor::{Floor, pages};
use hca_benches::ratio::{Ratio, summary};
use hca_benches::served::Functions;
use hca_core::Access;
use hca_perf::Failure;
use hca_perf::{Op, Pair, Setup};

use super::{Bench, Row, Unit, less, more, rc};

#[rustfmt::skip]
pub(super) const ROWS: [Row; 7] = [
    Row { name: "send 8 B one way", against: "hand-over by threads that yield", target: less(1.5, None), unit: Unit::Ns, measure: |b| latency(b, Op::Send) },
    Row { name: "send 8 B beside 4,000 idle queue pairs", against: "the same without them", target: less(1.1, None), unit: Unit::Ns, measure: beside_idle },
    Row { name: "write 8 B half round trip", against: "hand-over by threads that yield", target: None, unit: Unit::Ns, measure: |b| latency(b, Op::Write) },
    Row { name: "write 1 MiB stream", against: "the engine within the program", target: more(0.8, None), unit: Unit::Bytes, measure: |b| stream(b, Op::Write) },
    Row { name: "send 1 MiB stream", against: "writes by the engine within the program", target: None, unit: Unit::Bytes, measure: |b| stream(b, Op::Send) },
    Row { name: "write 1 MiB stream, two adapters", against: "the engine in two programs, over UDP", target: more(0.8, None), unit: Unit::Bytes, measure: beside_udp },
    Row { name: "register 1 GiB", against: "its pages, from the system", target: less(3.0, None), unit: Unit::Ns, measure: register },
];

/// Bytes of a large block.
const BLOCK: u64 = 1 << 20;
/// Queue pairs of a neighbour that are connected and have nothing to do.
const IDLE: usize = 4000;
/// Bytes that are registered.
const REGISTERED: usize = 1 << 30;

/// Functions, and two processes that use one each.
struct Two {
    // The pair goes first, so that nothing is cut off.
    pair: Pair,
    _functions: Functions,
}

impl Two {
    fn start() -> Result<Self, Failure> {
        Self::on(Functions::start(2)?)
    }
    /// The first two of these.
    fn on(functions: Functions) -> Result<Self, Failure> {
        let mut setup = Setup::new(functions.urls()[0].clone());
        setup.peer_device = Some(functions.urls()[1].clone());
        Ok(Self { pair: Pair::start(&setup)?, _functions: functions })
    }
}

/// A latency against that of handing over, in ns.
fn latency(b: &Bench, op: Op) -> Result<Option<Ratio>, Failure> {
    let mut two = Two::start()?;
    let ours = || b.p50(&mut two.pair, &rc(op, 8));
    let floor = || Ok(b.floor(Floor::HandOver)?.half_rtt_ns);
    Ok(summary(&b.interleave(ours, floor)?))
}

/// A latency on functions whose neighbour has many idle queue pairs against that on functions without one, in ns.
fn beside_idle(b: &Bench) -> Result<Option<Ratio>, Failure> {
    let functions = Functions::start(3)?;
    let neighbour = open_exactly(&functions.urls()[2])?;
    let pd = neighbour.context().alloc_pd()?;
    let cq = neighbour.context().create_cq(2 * IDLE as u32)?;
    let idle = (0..IDLE).map(|_| pair(&pd, &cq)).collect::<Result<Vec<_>, _>>()?;
    for two in idle.chunks(2) {
        two[0].connect(&two[1].endpoint(), &ConnectOptions::default())?;
        two[1].connect(&two[0].endpoint(), &ConnectOptions::default())?;
    }
    let (mut beside, mut alone) = (Two::on(functions)?, Two::start()?);
    let case = rc(Op::Send, 8);
    Ok(summary(&b.interleave(|| b.p50(&mut beside.pair, &case), || b.p50(&mut alone.pair, &case))?))
}

/// A stream of blocks against WRITEs within one process, in bytes a second.
fn stream(b: &Bench, op: Op) -> Result<Option<Ratio>, Failure> {
    let mut two = Two::start()?;
    let device = format!("loopback://ratios-{}", std::process::id()).parse()?;
    let mut embedded = Embedded::open(&device, BLOCK as usize)?;
    let ours = || Ok(b.rate(&mut two.pair, &rc(op, BLOCK))? * BLOCK as f64);
    Ok(summary(&b.interleave(ours, || embedded.write_bytes_per_s(b.time))?))
}

/// The same against the engine in each of two programs.
fn beside_udp(b: &Bench) -> Result<Option<Ratio>, Failure> {
    let mut two = Two::start()?;
    let mut pair = b.pair()?;
    let case = rc(Op::Write, BLOCK);
    let bytes = |rate: f64| rate * BLOCK as f64;
    let ours = || Ok(bytes(b.rate(&mut two.pair, &case)?));
    Ok(summary(&b.interleave(ours, || Ok(bytes(b.rate(&mut pair, &case)?)))?))
}

/// From asking for memory to its being registered, against as much memory, with all of its pages, of the system; in ns.
fn register(b: &Bench) -> Result<Option<Ratio>, Failure> {
    let functions = Functions::start(1)?;
    let opened = open_exactly(&functions.urls()[0])?;
    let pd = opened.context().alloc_pd()?;
    let ours = || {
        let begin = Instant::now();
        let memory = pd.alloc_shared(REGISTERED, Access::REMOTE_WRITE)?;
        let took = begin.elapsed();
        drop(memory);
        Ok(took.as_nanos() as f64)
    };
    Ok(summary(&b.interleave(ours, || Ok(pages::populate(REGISTERED)?.as_nanos() as f64))?))
}
