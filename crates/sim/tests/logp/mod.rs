//! LogP judges itself for verbs, VIs, Active Messages, global memory and Portals: in simulated time, a longer latency,
//! overhead or gap moves that parameter alone, by as much.
//!
//! The processors' overheads are pauses of the program in simulated time, those of the far side a part of the way back.
//! The gap is the rate of the link, whose latency is as much shorter as a packet takes to leave. The gap of a byte in
//! bulk, of Active Messages, is that rate as well: a byte takes eight bits of the link and its share of the headers,
//! whichever parameter moves.

mod am;
mod global;
mod portals;
mod verbs;
mod via;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use hca_am::Way;
use hca_perf::layers::logp::{Bursts, measure};
use hca_sim::{LinkProfile, Sim, Step, Violation, sleep};

const WINDOW: usize = 8;
/// The rate by which the packets of a way are measured.
const RATE: u64 = 4_000_000;
/// How often the program looks while it waits, and so how exact a time is.
const LOOK: Duration = Duration::from_micros(4);
/// How long nothing is sent before a burst.
const QUIET: Duration = Duration::from_millis(100);
/// Bytes in bulk by whose times the gap of a byte is measured: whole packets.
const BULK: [usize; 2] = [4096, 12_288];
/// The largest difference of two measurements of one time: some looks.
const NEAR_NS: f64 = 12_000.0;

/// The parameters of a machine, in ns. The gap is that of a request; `None`: the link has no rate.
#[derive(Clone, Copy, Debug)]
struct Machine {
    latency: u64,
    send: u64,
    receive: u64,
    gap: Option<u64>,
}

const BASE: Machine = Machine { latency: 300_000, send: 40_000, receive: 30_000, gap: Some(200_000) };

/// The side that sends requests.
trait Asks {
    /// Sends a request. `false`: the window is full, or the way is not open yet.
    fn ask(&mut self) -> bool;
    /// Sends a request with so many bytes in bulk, if the layer has such. `false` as for [`ask`](Self::ask).
    fn bulk(&mut self, _len: usize) -> bool {
        unreachable!("the layer has no bulk")
    }
    /// Takes the answers that have come; returns how many.
    fn answers(&mut self) -> usize;
}
/// A program that asks, and what the program at the far side does when something has come.
type Ends = (Rc<RefCell<dyn Asks>>, Box<dyn FnMut()>);

#[derive(Clone, Copy, Debug)]
enum Kind {
    Verbs,
    Via,
    Am(Way),
    Global(Way),
    Portals,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Verbs,
        Self::Via,
        Self::Am(Way::Verbs),
        Self::Am(Way::Via),
        Self::Global(Way::Verbs),
        Self::Global(Way::Via),
        Self::Portals,
    ];

    fn open(self, sim: &Sim) -> Ends {
        match self {
            Self::Verbs => verbs::open(sim),
            Self::Via => via::open(sim),
            Self::Am(way) => am::open(sim, way),
            Self::Global(way) => global::open(sim, way),
            Self::Portals => portals::open(sim),
        }
    }
}

struct Layer {
    sim: Sim,
    asks: Rc<RefCell<dyn Asks>>,
    machine: Machine,
    has_bulk: bool,
    /// The bytes that its requests have in bulk now.
    bulk: Option<usize>,
}

/// The bits that a request brings to the link: the packet that is waited for, and all that go to the far side.
#[derive(Clone, Copy, Debug)]
struct Bits {
    request: f64,
    all: f64,
}

impl Layer {
    fn new(kind: Kind, machine: Machine, bits: Bits) -> Self {
        let nanos = Duration::from_nanos;
        let rate = machine.gap.map(|gap| bits.all * 1e9 / gap as f64);
        let leaves = rate.map_or(0.0, |rate| bits.request * 1e9 / rate);
        let there = LinkProfile {
            latency: nanos(machine.latency - leaves as u64),
            bits_per_second: rate.map(|rate| rate as u64),
            ..LinkProfile::default()
        };
        let back = LinkProfile {
            latency: nanos(machine.latency + machine.send + machine.receive),
            ..LinkProfile::default()
        };
        let sim = Sim::builder(1).links(&LinkProfile::default()).build();
        let (asks, mut serve) = kind.open(&sim);
        sim.net().set_link(0, 1, &there);
        sim.net().set_link(1, 0, &back);
        sim.add_actor(move |_| {
            serve();
            Step::OnProgress
        });
        let mut layer = Self { sim, asks, machine, has_bulk: matches!(kind, Kind::Am(_)), bulk: None };
        // The hellos, and what is learned of the path.
        layer.burst(0, 8, Duration::ZERO).expect("they talk");
        layer
    }

    /// The times of a burst of `count` requests, behind `before` others, and of the same with all answers.
    fn burst(&mut self, before: usize, count: usize, delay: Duration) -> Result<[Duration; 2], Violation> {
        let (sim, asks) = (self.sim.clone(), Rc::clone(&self.asks));
        let send = Duration::from_nanos(self.machine.send);
        let receive = Duration::from_nanos(self.machine.receive);
        let mut answers = Answers { asks: Rc::clone(&asks), taken: 0, receive };
        let bulk = self.bulk;
        // Bulk messages take longer, so looks are further apart.
        let look = if bulk.is_some() { 64 * LOOK } else { LOOK };
        let ask = move || {
            let mut asks = asks.borrow_mut();
            match bulk {
                Some(len) => asks.bulk(len),
                None => asks.ask(),
            }
        };
        self.sim.block_on(async move {
            // Acknowledgements of the burst before have left.
            sleep(QUIET).await;
            let mut begin = sim.now();
            for sent in 0..before + count {
                if sent == before {
                    begin = sim.now();
                }
                sleep(send).await;
                while !ask() {
                    sleep(look).await;
                    answers.take().await;
                }
                if !delay.is_zero() {
                    sleep(delay).await;
                    answers.take().await;
                }
            }
            let burst = sim.now().since(begin);
            while answers.taken < before + count {
                if !answers.take().await {
                    sleep(look).await;
                }
            }
            [burst, sim.now().since(begin)]
        })
    }
}

/// The answers of a burst.
struct Answers {
    asks: Rc<RefCell<dyn Asks>>,
    taken: usize,
    receive: Duration,
}

impl Answers {
    /// Takes those that have come. Returns whether there were some.
    async fn take(&mut self) -> bool {
        let came = self.asks.borrow_mut().answers();
        self.taken += came;
        for _ in 0..came {
            sleep(self.receive).await;
        }
        came > 0
    }
}

impl Bursts for Layer {
    type Error = Violation;
    fn window(&self) -> usize {
        WINDOW
    }
    fn round_trip_ns(&mut self) -> Result<f64, Violation> {
        Ok(self.burst(0, 1, Duration::ZERO)?[1].as_nanos() as f64)
    }
    fn burst_ns(&mut self, count: usize, delay: Duration) -> Result<f64, Violation> {
        // What fills the window at first does not count.
        let before = if count < self.window() { 0 } else { 2 * self.window() };
        let [time, _] = self.burst(before, count, delay)?;
        Ok(time.as_nanos() as f64 / count as f64 - delay.as_nanos() as f64)
    }
    fn byte_gap_ns(&mut self) -> Result<Option<f64>, Violation> {
        if !self.has_bulk {
            return Ok(None);
        }
        let [short, long] = BULK.map(|len| {
            self.bulk = Some(len);
            // The adapters learn of the longer round trip first.
            self.burst_ns(32, Duration::ZERO)?;
            self.burst_ns(16, Duration::ZERO)
        });
        self.bulk = None;
        Ok(Some((long? - short?) / (BULK[1] - BULK[0]) as f64))
    }
}

impl Bits {
    /// Measures what a request brings, by a link that is slow.
    fn measure(kind: Kind) -> Result<Self, Violation> {
        let some = Self { request: 0.0, all: 1000.0 };
        let fast = Layer::new(kind, Machine { gap: None, ..BASE }, some).round_trip_ns()?;
        let mut slow = Layer::new(kind, Machine { gap: Some((some.all * 1e9) as u64 / RATE), ..BASE }, some);
        let rate = RATE as f64 / 1e9;
        Ok(Self {
            request: (slow.round_trip_ns()? - fast) * rate,
            all: slow.burst_ns(64, Duration::ZERO)? * rate,
        })
    }
}

/// Latency, overheads and gap, and the gap of a byte in bits of the link.
fn parameters(kind: Kind, machine: Machine, bits: Bits) -> Result<([f64; 4], Option<f64>), Violation> {
    let p = measure(&mut Layer::new(kind, machine, bits))?;
    let rate = machine.gap.map_or(0.0, |gap| bits.all / gap as f64);
    Ok(([p.latency(), p.send, p.receive, p.gap], p.byte_gap.map(|gap| gap * rate)))
}

fn judge(kind: Kind) -> Result<(), Violation> {
    let bits = Bits::measure(kind)?;
    let (base, byte_bits) = parameters(kind, BASE, bits)?;
    assert_eq!(byte_bits.is_some(), matches!(kind, Kind::Am(_)), "{kind:?}");
    // Eight bits, and the share of a packet's headers.
    let near_a_byte = |bits: f64| (8.0..8.4).contains(&bits);
    assert!(
        byte_bits.is_none_or(near_a_byte),
        "{kind:?}: a byte in bulk takes {byte_bits:?} bits of the link"
    );
    let known = [BASE.latency, BASE.send, BASE.receive, BASE.gap.unwrap_or(0)].map(|ns| ns as f64);
    let near = |a: f64, b: f64| (a - b).abs() < NEAR_NS;
    assert!(base.iter().zip(known).all(|(&a, b)| near(a, b)), "{kind:?}: {base:?} is not {known:?}");
    let moved = [
        Machine { latency: BASE.latency + 100_000, ..BASE },
        Machine { send: BASE.send + 30_000, ..BASE },
        Machine { receive: BASE.receive + 25_000, ..BASE },
        Machine { gap: BASE.gap.map(|gap| gap + 50_000), ..BASE },
    ];
    for (which, (machine, by)) in moved.into_iter().zip([100_000.0, 30_000.0, 25_000.0, 50_000.0]).enumerate()
    {
        let (parameters, byte_bits) = parameters(kind, machine, bits)?;
        assert!(
            byte_bits.is_none_or(near_a_byte),
            "{kind:?}: {byte_bits:?} bits for a byte with {machine:?}"
        );
        for (i, (now, before)) in parameters.into_iter().zip(base).enumerate() {
            let expected = before + if i == which { by } else { 0.0 };
            assert!(
                near(now, expected),
                "{kind:?}: parameter {i} is {now}, not {expected}, with {machine:?}"
            );
        }
    }
    Ok(())
}

#[test]
fn what_is_added_to_a_parameter_of_a_layer_moves_that_one_alone() {
    for kind in Kind::ALL {
        judge(kind).unwrap_or_else(|violation| panic!("{violation}"));
    }
}
