//! The plan of a seed: all decisions before the run begins.

use std::time::Duration;

use hca_core::Instant;
use hca_sim::{LinkProfile, Rng};

/// What breaks, and for how long.
#[derive(Clone, Debug)]
pub(crate) enum Chaos {
    Cut {
        from: usize,
        to: usize,
        lasts: Duration,
    },
    Partition {
        group: Vec<usize>,
        lasts: Duration,
    },
    Stall {
        node: usize,
        lasts: Duration,
    },
    /// The adapter and the process are gone, and come back empty.
    Crash {
        node: usize,
        lasts: Duration,
    },
    /// The process says goodbye, and another one begins on the same adapter.
    Leave {
        node: usize,
        lasts: Duration,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) nodes: usize,
    /// The adapter runs the engine; otherwise the program's calls do.
    pub(crate) offload: bool,
    /// Processes are ranks.
    pub(crate) logical: bool,
    pub(crate) eager: usize,
    pub(crate) receive_slots: u32,
    pub(crate) send_slots: u32,
    pub(crate) send_depth: u32,
    pub(crate) keepalive: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) profile: LinkProfile,
    /// Operations of each node, and the time between two.
    pub(crate) ops: u64,
    pub(crate) gap: Duration,
    /// Some messages have 1 MiB.
    pub(crate) large: bool,
    /// How long a program with an adapter that matches calls nothing, at most.
    pub(crate) nap: Duration,
    pub(crate) chaos: Vec<(Instant, Chaos)>,
    /// All faults end.
    pub(crate) heal: Instant,
}

impl Plan {
    pub(crate) fn new(rng: &mut Rng, offload: bool) -> Self {
        let nodes = 2 + rng.below(5).min(rng.below(5)) as usize;
        let mut profile = LinkProfile::random(rng);
        if rng.chance(0.2) {
            profile = profile.healed();
        }
        let large = rng.chance(0.04);
        let ops = if rng.chance(0.1) { rng.between(60, 150) } else { rng.between(8, 40) };
        let gap = Duration::from_nanos(rng.pick(&[0, 1_000, 20_000, 300_000]));
        let mut chaos = Vec::new();
        if rng.chance(0.5) {
            let during = (gap * ops as u32).max(Duration::from_micros(300));
            for _ in 0..rng.between(1, 4) {
                let at = Instant::ZERO + rng.up_to(during);
                chaos.push((at, Chaos::new(rng, nodes)));
            }
            chaos.sort_by_key(|(at, _)| *at);
        }
        let last = chaos.iter().map(|(at, chaos)| *at + chaos.lasts()).max();
        Self {
            nodes,
            offload,
            logical: rng.chance(0.5),
            eager: rng.pick(&[64, 64, 256, 1024, 4096]),
            receive_slots: rng.pick(&[16, 64, 512]),
            send_slots: rng.pick(&[4, 16, 256]),
            send_depth: rng.pick(&[8, 32, 128]),
            keepalive: Duration::from_millis(rng.pick(&[50, 300, 1000])),
            connect_timeout: Duration::from_secs(rng.pick(&[2, 5])),
            profile,
            ops,
            gap,
            large,
            nap: Duration::from_micros(rng.pick(&[0, 10, 100, 20_000])),
            heal: last.unwrap_or(Instant::ZERO).max(Instant::ZERO + gap * ops as u32),
            chaos,
        }
    }
}

impl Chaos {
    fn new(rng: &mut Rng, nodes: usize) -> Self {
        let node = rng.below(nodes as u64) as usize;
        // Some are over before anybody notices.
        let most = rng.pick(&[50, 5_000, 3_000_000]);
        let lasts = rng.up_to(Duration::from_micros(most));
        match rng.below(6) {
            0 => {
                let to = (node + 1 + rng.below(nodes as u64 - 1) as usize) % nodes;
                Self::Cut { from: node, to, lasts }
            }
            1 => {
                let group = (0..nodes).filter(|&n| n == node || rng.chance(0.3)).collect();
                Self::Partition { group, lasts }
            }
            2 => Self::Stall { node, lasts },
            3 => Self::Leave { node, lasts },
            _ => Self::Crash { node, lasts },
        }
    }
    pub(crate) fn lasts(&self) -> Duration {
        match *self {
            Self::Cut { lasts, .. }
            | Self::Partition { lasts, .. }
            | Self::Stall { lasts, .. }
            | Self::Crash { lasts, .. }
            | Self::Leave { lasts, .. } => lasts,
        }
    }
}
