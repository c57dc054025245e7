//! The plan of a seed: all random decisions of a run that are made before it begins.

use core::time::Duration;

use hca_core::{AckTimeout, Mtu, Psn, QpType, RnrTimer};

use super::Mix;
use super::host::{HOST_REGIONS, XrcDomain};
use super::managers::{Call, REGIONS};
use super::post::GRH_BYTES;
use crate::{LinkProfile, Rng};

/// A mistake that an end makes as its last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mistake {
    /// A WRITE with a key that names nothing.
    UnknownKey,
    /// A WRITE that begins inside of the region and ends behind it.
    BeyondRegion,
    /// A WRITE to a region that grants reads only.
    NoWriteRight,
    /// An atomic on a region that grants reads only.
    NoAtomicRight,
    /// A READ of a region that grants no remote access.
    NoReadRight,
    /// A WRITE to a region of another protection domain.
    ForeignPd,
    /// A WRITE with a key that a SEND with invalidate has taken back.
    Invalidated,
    /// An atomic on a word that is not aligned.
    Misaligned,
    /// A SEND longer than the peer's receive requests.
    TooLong,
}

impl Mistake {
    const ALL: [Self; 10] = [
        Self::UnknownKey,
        Self::BeyondRegion,
        Self::NoWriteRight,
        Self::NoAtomicRight,
        Self::NoReadRight,
        Self::ForeignPd,
        Self::Invalidated,
        Self::Misaligned,
        // Twice, since both ends see it.
        Self::TooLong,
        Self::TooLong,
    ];
}

/// How a pair of queue pairs is connected and used.
#[derive(Clone, Debug)]
pub(super) struct ConnPlan {
    pub(super) nodes: [usize; 2],
    pub(super) kind: QpType,
    /// It is an extended reliable connection (XRC): the first end is the initiator, the second one the target.
    pub(super) xrc: bool,
    /// Its queue pairs are of reliable datagrams (RD), and go by the end-to-end contexts of the two nodes.
    pub(super) rd: bool,
    pub(super) mtu: Mtu,
    pub(super) max_message: usize,
    /// Requests of each end.
    pub(super) requests: u32,
    pub(super) send_depth: u32,
    pub(super) recv_depth: u32,
    pub(super) srq: [bool; 2],
    pub(super) timeout: AckTimeout,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) rnr_timer: RnrTimer,
    pub(super) rd_atomic: u8,
    pub(super) psn: [Psn; 2],
    /// Marks of an ECN-capable flow.
    pub(super) traffic_class: u8,
    /// Retries may run out: they are few, or a node of it crashes.
    pub(super) may_fail: bool,
    pub(super) mistake: Option<Mistake>,
    /// The first end's own region is deregistered while the other writes there.
    pub(super) doomed: bool,
    /// Unsignalled requests in a row at most.
    pub(super) unsignaled: u32,
    /// The longest pause between two posts.
    pub(super) pause: Duration,
    /// The longest pause before receive requests are posted again.
    pub(super) recv_pause: Duration,
}

/// Something that happens to nodes and links.
#[derive(Clone, Debug)]
pub(super) enum Chaos {
    Cut {
        from: usize,
        to: usize,
        heal_after: Duration,
    },
    Partition {
        group: Vec<usize>,
        heal_after: Duration,
    },
    Stall {
        node: usize,
        resume_after: Duration,
    },
    Crash {
        node: usize,
        restart_after: Duration,
    },
    Links(LinkProfile),
    Revoke {
        conn: usize,
    },
    /// A program looks at no completion.
    Deafen {
        node: usize,
        hear_after: Duration,
    },
    /// An end drains its send queue (SQD), and goes on at most this long after it has.
    Drain {
        conn: usize,
        side: usize,
        pause: Duration,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) nodes: usize,
    pub(super) ipv6: bool,
    pub(super) profile: LinkProfile,
    pub(super) conns: Vec<ConnPlan>,
    /// In order of time.
    pub(super) chaos: Vec<(Duration, Chaos)>,
    /// When all faults end.
    pub(super) heal: Duration,
    pub(super) arena_bytes: usize,
    /// A node with completion queues that may overrun.
    pub(super) shallow: Option<Shallow>,
    /// Regions that an adapter holds at most, where that is few.
    pub(super) max_regions: Option<u32>,
    /// Connections and resolutions that programs ask for by their connection managers.
    pub(super) calls: Vec<Call>,
    /// The services that the programs use.
    pub(super) mix: Mix,
    /// Nodes share machines.
    pub(super) near: bool,
}

/// A node whose completion queues hold less than what may complete at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shallow {
    pub(super) node: usize,
    /// Entries of each of its completion queues.
    pub(super) depth: u32,
}

impl Plan {
    pub(super) fn new(rng: &mut Rng) -> Self {
        let nodes = rng.pick(&[2, 2, 2, 3, 4]);
        let crash = rng.chance(0.15).then(|| rng.below(nodes as u64) as usize);
        let big = rng.chance(0.1);
        let mut conns: Vec<ConnPlan> = Vec::new();
        for _ in 0..rng.between(1, if big { 2 } else { 4 }) {
            conns.push(ConnPlan::new(rng, nodes, big, crash));
        }
        let heal = Duration::from_micros(rng.between(2_000, 40_000));
        let mut chaos = Vec::new();
        let at = |rng: &mut Rng| heal.mul_f64(rng.below(900) as f64 / 1000.0);
        for _ in 0..rng.below(4) {
            let node = rng.below(nodes as u64) as usize;
            let other = (node + 1 + rng.below(nodes as u64 - 1) as usize) % nodes;
            let lasts = Duration::from_micros(rng.between(1, 8_000));
            let what = match rng.below(5) {
                0 => Chaos::Cut { from: node, to: other, heal_after: lasts },
                1 => Chaos::Partition { group: vec![node], heal_after: lasts },
                2 | 3 => Chaos::Stall { node, resume_after: lasts },
                _ => Chaos::Links(LinkProfile::random(rng)),
            };
            chaos.push((at(rng), what));
        }
        if let Some(node) = crash {
            let restart_after = Duration::from_micros(rng.between(0, 5_000));
            chaos.push((at(rng), Chaos::Crash { node, restart_after }));
        }
        for (conn, _) in conns.iter().enumerate().filter(|c| c.1.doomed) {
            chaos.push((at(rng), Chaos::Revoke { conn }));
        }
        for _ in 0..rng.below(4) {
            let (conn, side) = (rng.below(conns.len() as u64) as usize, rng.below(2) as usize);
            let pause = Duration::from_micros(rng.pick(&[0, 20, 1000]));
            chaos.push((at(rng), Chaos::Drain { conn, side, pause }));
        }
        chaos.sort_by_key(|c| c.0);
        Self {
            nodes,
            ipv6: rng.chance(0.2),
            profile: if rng.chance(0.1) { LinkProfile::default() } else { LinkProfile::random(rng) },
            conns,
            chaos,
            heal,
            arena_bytes: if big { 5 << 20 } else { 1 << 20 },
            shallow: None,
            max_regions: None,
            calls: Vec::new(),
            mix: Mix::default(),
            near: false,
        }
    }

    /// Some of the reliable connections end at XRC domains.
    pub(super) fn use_xrc(&mut self, rng: &mut Rng) {
        let shallow = self.shallow.map(|s| s.node);
        for conn in &mut self.conns {
            // A completion that is lost is looked for in the queue pair's own queues, and a region that goes is that of
            // the first end.
            let may =
                conn.kind == QpType::Rc && !conn.doomed && !conn.nodes.iter().any(|n| shallow == Some(*n));
            conn.xrc = rng.chance(0.25) && may;
            if conn.xrc {
                conn.srq = [false; 2];
            }
        }
        // A target has no send queue to drain.
        let conns = &self.conns;
        self.chaos
            .retain(|(_, what)| !matches!(what, Chaos::Drain { conn, side: 1, .. } if conns[*conn].xrc));
    }

    /// Some of the reliable connections are reliable datagrams.
    pub(super) fn use_rd(&mut self, rng: &mut Rng) {
        let shallow = self.shallow.map(|s| s.node);
        for c in 0..self.conns.len() {
            let conn = &self.conns[c];
            let may = conn.kind == QpType::Rc
                && !conn.xrc
                && !conn.doomed
                && !conn.nodes.iter().any(|n| shallow == Some(*n));
            if !(rng.chance(0.35) && may) {
                continue;
            }
            let nodes = conn.nodes;
            let is_between =
                |other: &&ConnPlan| other.rd && (other.nodes == nodes || other.nodes == [nodes[1], nodes[0]]);
            // The settings are those of the end-to-end contexts, which all share.
            if let Some(first) = self.conns.iter().find(is_between).cloned() {
                let ConnPlan { nodes, max_message, requests, send_depth, recv_depth, .. } = self.conns[c];
                let ConnPlan { mistake, unsignaled, pause, recv_pause, .. } = self.conns[c];
                self.conns[c] = ConnPlan {
                    nodes,
                    max_message,
                    requests,
                    send_depth,
                    recv_depth,
                    mistake,
                    unsignaled,
                    pause,
                    recv_pause,
                    ..first
                };
            }
            let conn = &mut self.conns[c];
            (conn.rd, conn.srq) = (true, [false; 2]);
        }
        // A queue pair of RD has no state SQD.
        let conns = &self.conns;
        self.chaos.retain(|(_, what)| !matches!(what, Chaos::Drain { conn, .. } if conns[*conn].rd));
    }

    /// Programs ask for connections by a connection manager on each node.
    pub(super) fn use_managers(&mut self, rng: &mut Rng) {
        let calls = rng.between(1, 12);
        self.calls = (0..calls).map(|_| Call::new(rng, self.nodes, self.heal)).collect();
        self.max_regions = self.max_regions.map(|regions| regions + REGIONS);
    }

    /// Adapters may run short of places: in completion queues, and for regions.
    pub(super) fn run_short(&mut self, rng: &mut Rng) {
        if rng.chance(0.25) {
            self.max_regions = Some(HOST_REGIONS + rng.below(6) as u32);
        }
        if !rng.chance(0.25) {
            return;
        }
        let node = rng.below(self.nodes as u64) as usize;
        let depth = rng.pick(&[1, 4, 16, 64]);
        self.shallow = Some(Shallow { node, depth });
        // What a shared receive queue has left, and whether a send queue has drained, could not be told any more.
        for conn in &mut self.conns {
            for side in 0..2 {
                conn.srq[side] &= conn.nodes[side] != node;
            }
        }
        let conns = &self.conns;
        self.chaos.retain(
            |(_, what)| !matches!(what, Chaos::Drain { conn, .. } if conns[*conn].nodes.contains(&node)),
        );
        for _ in 0..rng.between(1, 4) {
            let hear_after = Duration::from_micros(rng.between(1, 8_000));
            let at = self.heal.mul_f64(rng.below(900) as f64 / 1000.0);
            self.chaos.push((at, Chaos::Deafen { node, hear_after }));
        }
        self.chaos.sort_by_key(|c| c.0);
    }
}

impl Plan {
    /// How many receive queues a node has, and the bytes of the longest buffer of all.
    pub(super) fn spares(&self, n: usize) -> (usize, usize) {
        let (mut own, mut shared, mut xrc, mut longest) = (0, 0, 0, 0);
        for conn in &self.conns {
            for side in (0..2).filter(|side| conn.nodes[*side] == n) {
                longest = longest.max(conn.max_message + GRH_BYTES);
                match (conn.xrc, side) {
                    (true, 1) => xrc = XrcDomain::QUEUES,
                    (true, _) => {}
                    (false, _) if conn.srq[side] => shared = 1,
                    (false, _) => own += 1,
                }
            }
        }
        (own + shared + xrc, longest)
    }
    /// Whether the network may double packets.
    pub(super) fn doubles(&self) -> bool {
        self.profiles().any(|p| p.duplicate > 0.0)
    }
    /// Whether packets may overtake each other.
    pub(super) fn reorders(&self) -> bool {
        self.profiles().any(|p| p.reorder > 0.0)
    }
    /// How the links are, now or later.
    fn profiles(&self) -> impl Iterator<Item = &LinkProfile> {
        let later = self.chaos.iter().filter_map(|c| if let Chaos::Links(p) = &c.1 { Some(p) } else { None });
        core::iter::once(&self.profile).chain(later)
    }
}

/// Receive requests for messages of this length that a queue holds at most: memory is for all.
pub(super) fn recv_limit(max_message: usize) -> u32 {
    ((24 << 10) / max_message).clamp(2, 64) as u32
}

impl ConnPlan {
    fn new(rng: &mut Rng, nodes: usize, big: bool, crash: Option<usize>) -> Self {
        let a = rng.below(nodes as u64) as usize;
        // Now and then a node talks to itself.
        let b = if rng.chance(0.05) { a } else { (a + 1 + rng.below(nodes as u64 - 1) as usize) % nodes };
        let kind = rng.pick(&[QpType::Rc, QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud]);
        let rc = kind == QpType::Rc;
        let crashes = crash.is_some_and(|n| n == a || n == b);
        let weak = rc && rng.chance(0.2);
        let mistake = (rc && rng.chance(0.15)).then(|| rng.pick(&Mistake::ALL));
        let max_message = match kind {
            QpType::Ud => 1024,
            _ if big => rng.pick(&[20_000, 80_000, 200_000]),
            _ => rng.pick(&[64, 1500, 6_000, 16_000]),
        };
        let timeout = if weak {
            rng.between(6, 11)
        } else if !crashes && rng.chance(0.2) {
            0
        } else {
            rng.between(13, 15)
        };
        let send_depth = rng.pick(&[2, 5, 16, 64]);
        let near_wrap = |rng: &mut Rng| {
            let psn = if rng.chance(0.6) { 0x100_0000 - rng.between(1, 300) } else { rng.below(1 << 24) };
            Psn::new(psn as u32)
        };
        Self {
            nodes: [a, b],
            kind,
            xrc: false,
            rd: false,
            mtu: rng.pick(&Mtu::ALL),
            max_message,
            requests: rng.between(5, if max_message > 20_000 { 12 } else { 60 }) as u32,
            send_depth,
            // Half a queue at most: the other half completes, and makes room.
            unsignaled: rng.pick(&[0, 1, 1, 4, 32]).min(send_depth / 2),
            recv_depth: rng.pick(&[1, 3, 16, 64]).min(recv_limit(max_message)),
            srq: [rc && rng.chance(0.25), rc && rng.chance(0.25)],
            timeout: AckTimeout::new(timeout as u8),
            retry_cnt: if weak { rng.below(3) as u8 } else { 7 },
            rnr_retry: if weak { rng.below(8) as u8 } else { 7 },
            rnr_timer: RnrTimer::new(rng.between(1, 12) as u8),
            rd_atomic: rng.pick(&[1, 2, 4, 16]),
            psn: [near_wrap(rng), near_wrap(rng)],
            traffic_class: rng.pick(&[0, 2]),
            may_fail: weak || crashes,
            mistake,
            // A READ that is repeated after the region is gone is not answered: only a timeout ends it.
            doomed: rc && mistake.is_none() && timeout > 0 && rng.chance(0.1),
            pause: Duration::from_micros(rng.pick(&[0, 20, 200, 1000])),
            recv_pause: Duration::from_micros(rng.pick(&[0, 0, 30, 500])),
        }
    }
}
