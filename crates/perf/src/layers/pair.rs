//! Verbs and Portals as layers, by the two processes of `hca perf`.

use std::time::Duration;

use super::logp::Bursts;
use super::two::{Near, STREAMS, byte_gap_ns, half_round_trip_ns, least_burst_ns};
use crate::channel::Channel;
use crate::control::FromPeer;
use crate::portals::{self, Nodes, Settings};
use crate::run::{Answered, Limit, unexpected};
use crate::{Case, Failure, Op, Pair, Phase, Service, Setup, Size};

/// Requests of 8 bytes that may be without an answer.
const WINDOW: usize = 16;

/// Requests that one side posts, and the other answers.
struct Window<'a> {
    answered: &'a mut dyn Answered,
    channel: &'a mut Channel<FromPeer>,
    open: usize,
}

impl Near for Window<'_> {
    fn window(&self) -> usize {
        WINDOW
    }
    #[inline]
    fn ask(&mut self) -> Result<(), Failure> {
        while self.open >= WINDOW || !self.answered.ask()? {
            self.poll()?;
        }
        self.open += 1;
        Ok(())
    }
    #[inline]
    fn poll(&mut self) -> Result<(), Failure> {
        self.open -= self.answered.answers()?;
        // The peer says nothing while it answers, but that it can not go on.
        if self.channel.arrived() {
            return Err(unexpected(self.channel.recv(None)?).into());
        }
        Ok(())
    }
    #[inline]
    fn settle(&mut self) -> Result<(), Failure> {
        while self.open > 0 {
            self.poll()?;
        }
        Ok(())
    }
}

/// Verbs between two processes.
pub struct Verbs {
    pair: Pair,
    time: Duration,
    case: Case,
}

impl Verbs {
    /// SENDs of 8 bytes of reliable queue pairs, answered by SENDs. `time`: of a measurement.
    ///
    /// # Errors
    /// A device can't be opened, or the process not be started.
    pub fn start(setup: &Setup, time: Duration) -> Result<Self, Failure> {
        let case = Case { service: Service::Rc, op: Op::Send, size: Size::of(8), foreign: false };
        Ok(Self { pair: Pair::start(setup)?, time, case })
    }
    /// The same with another service, and messages of another size.
    pub fn set_messages(&mut self, service: Service, size: u64) {
        self.case = Case { service, op: Op::Send, size: Size::of(size), foreign: false };
    }
    /// Half of a round trip of SENDs, in ns: the median of batches.
    ///
    /// # Errors
    /// A device, or the far side, can't go on.
    pub fn latency_ns(&mut self) -> Result<f64, Failure> {
        let time = self.time;
        self.near(|near| half_round_trip_ns(near, time))
    }
    /// The time of a READ of so many bytes, in ns: the median.
    ///
    /// # Errors
    /// As [`latency_ns`](Self::latency_ns).
    pub fn read_ns(&mut self, size: u64) -> Result<f64, Failure> {
        let case = Case { service: Service::Rc, op: Op::Read, size: Size::of(size), foreign: false };
        let measured = self.pair.run(&case, Phase::Latency, Limit::Time(self.time))?;
        Ok(measured.latencies.value_at_quantile(0.5) as f64)
    }
    fn near<T>(&mut self, run: impl FnOnce(&mut dyn Near) -> Result<T, Failure>) -> Result<T, Failure> {
        self.pair.answered(&self.case, |answered, channel| run(&mut Window { answered, channel, open: 0 }))
    }
}

impl Bursts for Verbs {
    type Error = Failure;
    fn window(&self) -> usize {
        WINDOW
    }
    fn round_trip_ns(&mut self) -> Result<f64, Failure> {
        Ok(2.0 * self.latency_ns()?)
    }
    fn burst_ns(&mut self, count: usize, pause: Duration) -> Result<f64, Failure> {
        let time = self.time;
        self.near(|near| least_burst_ns(near, (count, pause), time))
    }
    fn byte_gap_ns(&mut self) -> Result<Option<f64>, Failure> {
        let (pair, limit) = (&mut self.pair, Limit::Time(self.time / STREAMS));
        byte_gap_ns(|size| {
            let case =
                Case { service: Service::Rc, op: Op::Write, size: Size::of(size as u64), foreign: false };
            Ok(Some(1e9 / pair.run(&case, Phase::Stream, limit)?.rate()))
        })
    }
    fn finish(&mut self) -> Result<(), Failure> {
        Ok(self.pair.opened().finish_capture()?)
    }
}

/// Portals between two processes.
pub(super) struct Portals {
    pair: Pair,
    nodes: Nodes,
    time: Duration,
}

impl Portals {
    /// Puts of 8 bytes, answered by puts.
    pub(super) fn start(setup: &Setup, time: Duration) -> Result<Self, Failure> {
        let mut pair = Pair::start(setup)?;
        let nodes = pair.nodes(Settings::default())?;
        Ok(Self { pair, nodes, time })
    }
    fn near<T>(&mut self, run: impl FnOnce(&mut dyn Near) -> Result<T, Failure>) -> Result<T, Failure> {
        let case = portals::Case::new(Op::Put, 8);
        self.pair.answered_portals(&self.nodes, &case, |answered, channel| {
            run(&mut Window { answered, channel, open: 0 })
        })
    }
}

impl Bursts for Portals {
    type Error = Failure;
    fn window(&self) -> usize {
        WINDOW
    }
    fn round_trip_ns(&mut self) -> Result<f64, Failure> {
        let time = self.time;
        Ok(2.0 * self.near(|near| half_round_trip_ns(near, time))?)
    }
    fn burst_ns(&mut self, count: usize, pause: Duration) -> Result<f64, Failure> {
        let time = self.time;
        self.near(|near| least_burst_ns(near, (count, pause), time))
    }
    fn byte_gap_ns(&mut self) -> Result<Option<f64>, Failure> {
        let (pair, nodes, limit) = (&mut self.pair, &self.nodes, Limit::Time(self.time / STREAMS));
        byte_gap_ns(|size| {
            let case = portals::Case::new(Op::Put, size as u64);
            Ok(Some(1e9 / pair.run_portals(nodes, &case, Phase::Stream, limit)?.rate()))
        })
    }
    fn finish(&mut self) -> Result<(), Failure> {
        Ok(self.pair.opened().finish_capture()?)
    }
}
