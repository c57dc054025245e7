//! Links and their faults.

use core::time::Duration;

use hca_core::Instant;

use crate::Rng;

/// The behaviour of a link from one node to another. The default is a link without faults, with a latency of 2 us.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkProfile {
    /// The least time that a packet takes; at least 1 ns.
    pub latency: Duration,
    /// The largest random addition to the latency. The order of packets is kept.
    pub jitter: Duration,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet arrives twice, the second copy up to `reorder_delay` later.
    pub duplicate: f64,
    /// Probability that a packet is held back by up to `reorder_delay`, so that later ones pass it.
    pub reorder: f64,
    /// The longest delay of a reordered or duplicated packet.
    pub reorder_delay: Duration,
    /// Probability that a packet is changed on its way: flipped bits, a burst, or a missing end.
    pub corrupt: f64,
    /// Rate of the link in bits a second; `None`: no packet waits for another.
    pub bits_per_second: Option<u64>,
    /// The most bytes that wait for the link; further packets are lost. Only with a rate.
    pub queue_bytes: u64,
    /// Probability that the link refuses a train of packets for now, as a full send buffer does.
    pub defer: f64,
    /// From this many waiting bytes on, packets of ECN-capable flows get the mark "congestion
    /// experienced". Only with a rate.
    pub ecn_bytes: Option<u64>,
}

impl Default for LinkProfile {
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(2),
            jitter: Duration::ZERO,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_delay: Duration::from_micros(50),
            corrupt: 0.0,
            bits_per_second: None,
            queue_bytes: 512 << 10,
            defer: 0.0,
            ecn_bytes: None,
        }
    }
}

impl LinkProfile {
    /// A bad link: each fault happens to a few packets in a hundred.
    pub fn hostile() -> Self {
        Self {
            jitter: Duration::from_micros(3),
            loss: 0.02,
            duplicate: 0.02,
            reorder: 0.02,
            corrupt: 0.01,
            defer: 0.02,
            ..Self::default()
        }
    }
    /// A link with random faults of random probability; each kind is absent now and then.
    pub fn random(rng: &mut Rng) -> Self {
        let rate = |rng: &mut Rng, max: f64| {
            if rng.chance(0.25) { 0.0 } else { max * rng.below(1000) as f64 / 1000.0 }
        };
        Self {
            latency: Duration::from_nanos(rng.between(200, 20_000)),
            jitter: rng.up_to(Duration::from_micros(5)),
            loss: rate(rng, 0.04),
            duplicate: rate(rng, 0.04),
            reorder: rate(rng, 0.04),
            reorder_delay: Duration::from_micros(rng.between(1, 200)),
            corrupt: rate(rng, 0.02),
            bits_per_second: rng.chance(0.3).then(|| rng.between(1, 100) * 1_000_000_000),
            queue_bytes: rng.between(16, 512) << 10,
            ecn_bytes: rng.chance(0.5).then(|| rng.between(4, 64) << 10),
            defer: rate(rng, 0.1),
        }
    }
    /// The same link without its faults: latency, jitter and rate stay.
    #[must_use]
    pub fn healed(&self) -> Self {
        Self { loss: 0.0, duplicate: 0.0, reorder: 0.0, corrupt: 0.0, defer: 0.0, ..self.clone() }
    }
}

/// A link's profile and what is under way on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Link {
    pub(crate) profile: LinkProfile,
    /// Cuts that are in force.
    pub(crate) cuts: u32,
    /// When the link has sent what waits for it.
    busy_until: Instant,
    /// The latest arrival of a packet that was not held back.
    last_arrival: Instant,
}

/// What becomes of a packet on a link with a rate.
pub(crate) enum Queueing {
    Full,
    Leaves { at: Instant, mark: bool },
}

impl Link {
    pub(crate) fn new(profile: &LinkProfile) -> Self {
        Self { profile: profile.clone(), ..Self::default() }
    }
    /// Puts a packet of `bytes` into the link's queue.
    pub(crate) fn enqueue(&mut self, now: Instant, bytes: u64) -> Queueing {
        let Some(rate) = self.profile.bits_per_second else {
            return Queueing::Leaves { at: now, mark: false };
        };
        let wait = self.busy_until.since(now);
        let backlog = (wait.as_nanos() * u128::from(rate) / 8_000_000_000) as u64;
        if backlog + bytes > self.profile.queue_bytes {
            return Queueing::Full;
        }
        let own = Duration::from_nanos((bytes * 8).saturating_mul(1_000_000_000) / rate.max(1));
        self.busy_until = self.busy_until.max(now) + own;
        Queueing::Leaves {
            at: self.busy_until,
            mark: self.profile.ecn_bytes.is_some_and(|limit| backlog >= limit),
        }
    }
    /// When a packet that leaves `at` arrives, in order.
    pub(crate) fn arrival(&mut self, at: Instant, rng: &mut Rng) -> Instant {
        let mut t = at + self.profile.latency.max(Duration::from_nanos(1));
        if !self.profile.jitter.is_zero() {
            t = t + rng.up_to(self.profile.jitter);
        }
        self.last_arrival = self.last_arrival.max(t);
        self.last_arrival
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_with_a_rate_delays_marks_and_then_drops() {
        let profile = LinkProfile {
            bits_per_second: Some(8_000_000_000), // a byte a nanosecond
            queue_bytes: 3000,
            ecn_bytes: Some(1500),
            ..LinkProfile::default()
        };
        let mut link = Link { profile, ..Link::default() };
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(match link.enqueue(Instant::from_nanos(10), 1000) {
                Queueing::Full => None,
                Queueing::Leaves { at, mark } => Some((at.as_nanos(), mark)),
            });
        }
        assert_eq!(seen, [Some((1010, false)), Some((2010, false)), Some((3010, true)), None]);
        // Later the queue has drained.
        assert!(matches!(
            link.enqueue(Instant::from_nanos(5000), 1000),
            Queueing::Leaves { at, mark: false } if at.as_nanos() == 6000
        ));
    }

    #[test]
    fn jitter_keeps_the_order() {
        let profile = LinkProfile { jitter: Duration::from_micros(50), ..LinkProfile::default() };
        let mut link = Link { profile, ..Link::default() };
        let mut rng = Rng::new(3);
        let times: Vec<_> = (0..100).map(|n| link.arrival(Instant::from_nanos(n * 100), &mut rng)).collect();
        assert!(times.is_sorted());
    }
}
