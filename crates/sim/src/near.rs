//! Nodes that share a machine: the times at which each node sees its neighbours' writes to shared memory, and the
//! system calls that are refused.

use core::time::Duration;

use hca_core::Instant;
use hca_fabric::{ProcessVm, Refusable, ShmChance, ShmOptions};

use crate::trace::Event;
use crate::{Rng, SimNet};

/// Messages that a look takes which takes a part.
const MAX_PART: u64 = 8;

/// The behaviour of a machine with several nodes. Memory, rings and sockets are real; the seed decides the behaviour of
/// processors and system.
#[derive(Clone, Debug, PartialEq)]
pub struct NearProfile {
    /// The number of machines, over which nodes are distributed in turn: nodes of one machine reach each other by
    /// shared memory, nodes of different machines by packets.
    pub machines: usize,
    /// The longest time until a node sees a neighbour's write.
    pub delay: Duration,
    /// Probability that a poll takes a few messages only.
    pub part: f64,
    /// Probability that a poll without a result parks the rings, as before a sleep.
    pub sleep: f64,
    /// Probability that a region is not granted, or not mapped.
    pub refuse_grant: f64,
    /// Probability that the system does not let a neighbour read a node's memory.
    pub refuse_read: f64,
    /// Bytes of each ring: a power of two from 64 KiB up.
    pub ring_bytes: usize,
    /// Whether only rings are shared.
    pub isolated: bool,
}

impl Default for NearProfile {
    /// One machine on which nothing is refused, and 1 us until a look.
    fn default() -> Self {
        Self {
            machines: 1,
            delay: Duration::from_micros(1),
            part: 0.0,
            sleep: 0.1,
            refuse_grant: 0.0,
            refuse_read: 0.0,
            ring_bytes: 1 << 20,
            isolated: false,
        }
    }
}

impl NearProfile {
    /// A machine with random faults; each fault is absent now and then.
    pub fn random(rng: &mut Rng) -> Self {
        let rate = |rng: &mut Rng, max: f64| {
            if rng.chance(0.4) { 0.0 } else { max * rng.below(1000) as f64 / 1000.0 }
        };
        Self {
            machines: if rng.chance(0.2) { 2 } else { 1 },
            delay: Duration::from_nanos(rng.pick(&[1, 300, 3_000, 30_000, 300_000])),
            part: rate(rng, 0.8),
            sleep: rate(rng, 1.0),
            refuse_grant: rate(rng, 0.5),
            refuse_read: rate(rng, 1.0),
            ring_bytes: rng.pick(&[64 << 10, 64 << 10, 256 << 10]),
            isolated: rng.chance(0.15),
        }
    }
    /// The same machine without its faults; the delay of polls and the parking of rings stay.
    #[must_use]
    pub fn healed(&self) -> Self {
        Self { part: 0.0, refuse_grant: 0.0, refuse_read: 0.0, ..self.clone() }
    }
    pub(crate) fn options(&self) -> ShmOptions {
        ShmOptions {
            ring_bytes: self.ring_bytes,
            isolated: self.isolated,
            process_vm: ProcessVm::Yes,
            ..ShmOptions::default()
        }
    }
}

/// The counts of events among the nodes of one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NearStats {
    /// Polls of neighbours' writes.
    pub looks: u64,
    /// Polls that were limited to a few messages.
    pub parts: u64,
    /// Rings parked before a sleep.
    pub sleeps: u64,
    /// Regions that were not granted or not mapped.
    pub grants_refused: u64,
    /// Reads of a node's memory that were refused to neighbours.
    pub reads_refused: u64,
    /// Messages that arrived by rings.
    pub messages: u64,
    /// Times that a ring was full.
    pub full: u64,
    /// Regions that neighbours mapped, for direct access or for fetches of messages.
    pub mapped: u64,
    /// Regions that were revoked from neighbours.
    pub revoked: u64,
    /// Messages fetched from a neighbour's process.
    pub fetched: u64,
    /// Neighbours that were woken.
    pub woken: u64,
    /// Neighbours that disconnected, with or without unread messages.
    pub gone: u64,
}

impl core::ops::AddAssign for NearStats {
    fn add_assign(&mut self, r: Self) {
        self.looks += r.looks;
        self.parts += r.parts;
        self.sleeps += r.sleeps;
        self.grants_refused += r.grants_refused;
        self.reads_refused += r.reads_refused;
        self.messages += r.messages;
        self.full += r.full;
        self.mapped += r.mapped;
        self.revoked += r.revoked;
        self.fetched += r.fetched;
        self.woken += r.woken;
        self.gone += r.gone;
    }
}

/// The chances of all nodes.
pub(crate) struct Chances {
    pub(crate) profile: NearProfile,
    pub(crate) stats: NearStats,
    rng: Rng,
}

impl Chances {
    pub(crate) fn new(profile: NearProfile, rng: Rng) -> Self {
        Self { profile, stats: NearStats::default(), rng }
    }
    /// A time to look, drawn now.
    pub(crate) fn draw_look(&mut self, from: Instant) -> Instant {
        from + Duration::from_nanos(1) + self.rng.up_to(self.profile.delay)
    }
}

/// One node's chances.
pub(crate) struct NodeChance {
    pub(crate) net: SimNet,
    pub(crate) node: usize,
    pub(crate) incarnation: u32,
}

impl NodeChance {
    /// Whether something of this probability happens.
    fn happens(
        &self,
        probability: impl Fn(&NearProfile) -> f64,
        stat: impl Fn(&mut NearStats) -> &mut u64,
    ) -> bool {
        let mut net = self.net.lock();
        let Some(chances) = &mut net.near else { return false };
        let happens = chances.rng.chance(probability(&chances.profile));
        *stat(&mut chances.stats) += u64::from(happens);
        happens
    }
}

impl ShmChance for NodeChance {
    fn looks_at(&self, earliest: Option<Instant>) -> Instant {
        let now = self.net.now();
        self.net.lock().looks_at(self.node, now, earliest.unwrap_or(now).max(now))
    }
    fn looks_now(&self) -> bool {
        let now = self.net.now();
        self.net.lock().look_is_due(self.node, now)
    }
    fn must_look(&mut self) {
        let now = self.net.now();
        self.net.lock().set_look(self.node, now);
    }
    fn takes_at_most(&mut self) -> usize {
        self.net.event(Event::Looked(self.node));
        let part = self.happens(|p| p.part, |s| &mut s.parts);
        let mut net = self.net.lock();
        let Some(chances) = &mut net.near else { return usize::MAX };
        chances.stats.looks += 1;
        if part { chances.rng.between(1, MAX_PART) as usize } else { usize::MAX }
    }
    fn sleeps(&mut self) -> bool {
        self.happens(|p| p.sleep, |s| &mut s.sleeps)
    }
    fn refuses(&mut self, what: Refusable) -> bool {
        match what {
            Refusable::Grant | Refusable::Mapping => {
                self.happens(|p| p.refuse_grant, |s| &mut s.grants_refused)
            }
            Refusable::ProcessRead => self.happens(|p| p.refuse_read, |s| &mut s.reads_refused),
        }
    }
    fn nonce(&mut self) -> u64 {
        match &mut self.net.lock().near {
            Some(chances) => chances.rng.next_u64(),
            None => 0,
        }
    }
    fn is_killed(&self) -> bool {
        !self.net.lock().is_live(self.node, self.incarnation)
    }
}
