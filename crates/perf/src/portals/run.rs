//! The measuring side of Portals.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::portals::{Card, Node};

use super::super::channel::Channel;
use super::super::control::{FromPeer, NodeCard, Phase, ToPeer};
use super::super::json::Row;
use super::super::plan::{Layer, Op};
use super::super::run::{Answered, DRAIN_LIMIT, Limit, Measured, PATIENCE, Pace, Pair, unexpected};
use super::half::Half;
use super::{Case, Other, Settings, open};
use crate::Failure;
use crate::interrupt::interrupted;

/// The nodes of the two processes.
pub struct Nodes {
    node: Node,
    other: Card,
    settings: Settings,
}

impl Nodes {
    /// Whether this side's adapter matches.
    pub fn is_offloaded(&self) -> bool {
        self.node.is_offloaded()
    }
    /// The settings that the nodes were opened with.
    pub fn settings(&self) -> Settings {
        self.settings
    }
}

impl Pair {
    /// Opens a Portals node in each process; the peer's replaces the one that it had.
    ///
    /// # Errors
    /// The peer or a device can't go on.
    pub fn nodes(&mut self, settings: Settings) -> Result<Nodes, Failure> {
        let directory = Arc::new(Other::default());
        let node = open(self.opened(), settings, directory.clone())?;
        self.channel.send(&ToPeer::Node { settings, card: NodeCard(node.card()) })?;
        let other = match self.channel.recv(Some(PATIENCE))? {
            FromPeer::Node { card } => card.0,
            other => return Err(unexpected(other).into()),
        };
        directory.0.set(other).expect("it was empty");
        Ok(Nodes { node, other, settings })
    }

    /// Runs one measurement between the nodes.
    ///
    /// # Errors
    /// The peer or a device can't go on.
    pub fn run_portals(
        &mut self,
        nodes: &Nodes,
        case: &Case,
        phase: Phase,
        limit: Limit,
    ) -> Result<Measured, Failure> {
        if case.is_unanswered() {
            return Err(super::UNANSWERED.into());
        }
        let mut half = self.half(nodes, case, phase)?;
        let mut pace = Pace::new(&mut self.channel, limit, case.size);
        let mut measured = match phase {
            Phase::Latency => latency(&mut half, case, &mut pace)?,
            Phase::Stream => stream(&mut half, &mut pace)?,
        };
        measured.errors = measured.errors.saturating_add(self.part(nodes, half)?);
        Ok(measured)
    }
    /// This side's half of a measurement, which the peer's waits for.
    fn half(&mut self, nodes: &Nodes, case: &Case, phase: Phase) -> Result<Half, Failure> {
        let half = Half::new(&nodes.node, nodes.other, case, phase, nodes.settings.eager_bytes.bytes())?;
        self.channel.send(&ToPeer::Move { case: *case, phase })?;
        match self.channel.recv(Some(PATIENCE))? {
            FromPeer::Listening => {}
            other => return Err(unexpected(other).into()),
        }
        Ok(half)
    }
    /// Ends a measurement. Returns the peer's errors.
    fn part(&mut self, nodes: &Nodes, half: Half) -> Result<u64, Failure> {
        self.channel.send(&ToPeer::Stop)?;
        // The peer's operations under way may need an answer of this side.
        let told = Instant::now();
        while !self.channel.over() && told.elapsed() < DRAIN_LIMIT {
            nodes.node.progress();
        }
        let errors = match self.channel.recv(Some(DRAIN_LIMIT + PATIENCE))? {
            FromPeer::Done { errors, .. } => errors,
            other => return Err(unexpected(other).into()),
        };
        half.settle()?;
        Ok(errors)
    }
    /// Runs a program of puts, each of which the peer answers by one.
    pub(crate) fn answered_portals<T>(
        &mut self,
        nodes: &Nodes,
        case: &Case,
        run: impl FnOnce(&mut dyn Answered, &mut Channel<FromPeer>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut half = self.half(nodes, case, Phase::Latency)?;
        let done = run(&mut half, &mut self.channel)?;
        self.part(nodes, half)?;
        Ok(done)
    }

    /// Measures one row: the latency in one half of `time`, a stream in the other. Messages behind other entries have
    /// no stream.
    ///
    /// # Errors
    /// As [`run_portals`](Self::run_portals).
    pub fn portals_row(&mut self, nodes: &Nodes, case: &Case, time: Duration) -> Result<Row, Failure> {
        let streams = case.before.is_none();
        let limit = Limit::Time(if streams { time / 2 } else { time });
        let before = self.placement();
        let latency = self.run_portals(nodes, case, Phase::Latency, limit)?;
        let stream = match streams && !interrupted() {
            true => self.run_portals(nodes, case, Phase::Stream, limit)?,
            false => Measured::new(),
        };
        let placement = before.and(self.placement());
        let row = self.assemble(case.op, case.size, &latency, &stream, placement);
        Ok(Row {
            layer: Layer::Portals.to_string(),
            offload: Some(nodes.is_offloaded()),
            eager_bytes: Some(nodes.settings.eager_bytes.bytes()),
            depth: case.before.map(|before| before.count),
            entries: case.before.map(|before| before.entries),
            ..row
        })
    }
}

impl Answered for Half {
    #[inline]
    fn ask(&mut self) -> Result<bool, Failure> {
        self.post()?;
        Ok(true)
    }
    #[inline]
    fn answers(&mut self) -> Result<usize, Failure> {
        // Takes the events of this side's puts, too.
        self.completed()?;
        Ok(usize::from(self.arrived()?))
    }
}

/// One operation at a time.
fn latency(half: &mut Half, case: &Case, pace: &mut Pace<'_>) -> Result<Measured, Failure> {
    let mut out = Measured::new();
    let one_way = case.op == Op::Put;
    let halves = if one_way { 2 } else { 1 };
    let begin = Instant::now();
    let (mut t0, mut turns, mut counted_from) = (begin, 0_u64, begin);
    loop {
        half.post()?;
        let mut over = false;
        while !over && !pace.cut_short() {
            over = if one_way { half.arrived()? } else { half.completed()? > 0 };
            pace.waits_since(t0)?;
        }
        let t1 = Instant::now();
        turns += 1;
        match over {
            // The measured case is a program that has just begun to compute.
            true if !case.computes && pace.warming(turns, t1 - begin) => counted_from = t1,
            true => {
                out.latencies.saturating_record((t1 - t0).as_nanos() as u64 / halves);
                out.messages += 1;
            }
            false => {}
        }
        if pace.over(begin, t1, out.messages) {
            break;
        }
        t0 = t1;
    }
    out.elapsed = counted_from.elapsed();
    Ok(out)
}

/// As many as the window takes.
fn stream(half: &mut Half, pace: &mut Pace<'_>) -> Result<Measured, Failure> {
    let mut out = Measured::new();
    let begin = Instant::now();
    let (mut posted, mut looks) = (0_u64, 0_u32);
    loop {
        let budget = match pace.limit {
            Limit::Count(n) => n - posted,
            Limit::Time(_) => u64::MAX,
        };
        posted += half.post_many(budget)?;
        let completed = half.completed()?;
        out.messages += completed;
        looks = looks.wrapping_add(1);
        let look = looks.is_multiple_of(16) || completed == 0;
        if look && pace.over(begin, Instant::now(), posted) {
            break;
        }
    }
    posted += half.finish()?;
    let drain = Instant::now();
    while out.messages < posted && drain.elapsed() < DRAIN_LIMIT && !pace.cut_short() {
        pace.heartbeat();
        out.messages += half.completed()?;
    }
    out.elapsed = begin.elapsed();
    out.errors += posted - out.messages;
    Ok(out)
}
