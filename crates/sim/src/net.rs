//! The network: the nodes' addresses, the packets under way, and their faults.

use core::cmp::Reverse;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use hca_core::Instant;
use hca_core::wire::icrc::IpFlow;
use hca_core::wire::{Bth, ICRC_BYTES};
use hca_fabric::{Direction, PacketHeader, Tap};

use crate::fabric::tap_frame;
use crate::link::{Link, Queueing};
use crate::near::{Chances, NearProfile, NearStats};
use crate::trace::{Event, FrameTag, Loss, Trace};
use crate::{LinkProfile, Rng};

/// Bytes that an adapter's receive buffer takes, as a UDP socket's does by default.
pub(crate) const RECV_BUFFER_BYTES: usize = 212_992;

/// The counts of the network's packets and faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetStats {
    /// Frames that adapters sent.
    pub sent: u64,
    /// Frames that reached an adapter's buffer, copies counted.
    pub arrived: u64,
    /// Frames lost by a link's loss rate.
    pub lost: u64,
    /// Frames lost at a full queue or buffer.
    pub overflowed: u64,
    /// Frames lost on a cut link, or because no adapter is at the address.
    pub unreachable: u64,
    /// Frames that arrived a second time.
    pub duplicated: u64,
    /// Frames held back behind later ones.
    pub reordered: u64,
    /// Frames changed on their way.
    pub corrupted: u64,
    /// Changed frames that were detected, by ICRC or length.
    pub rejected: u64,
    /// Frames marked "congestion experienced".
    pub marked: u64,
    /// Trains of packets that the network refused for the moment.
    pub deferred: u64,
}

impl NetStats {
    /// Faults of all kinds that were injected.
    pub fn faults(&self) -> u64 {
        self.lost
            + self.overflowed
            + self.unreachable
            + self.duplicated
            + self.reordered
            + self.corrupted
            + self.marked
            + self.deferred
    }
}

impl core::ops::AddAssign for NetStats {
    fn add_assign(&mut self, r: Self) {
        self.sent += r.sent;
        self.arrived += r.arrived;
        self.lost += r.lost;
        self.overflowed += r.overflowed;
        self.unreachable += r.unreachable;
        self.duplicated += r.duplicated;
        self.reordered += r.reordered;
        self.corrupted += r.corrupted;
        self.rejected += r.rejected;
        self.marked += r.marked;
        self.deferred += r.deferred;
    }
}

/// A frame under way.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) id: u64,
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// The multicast group that it was sent to.
    pub(crate) group: Option<IpAddr>,
    pub(crate) src_port: u16,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) ident: u16,
    /// UDP payload: BTH to ICRC.
    pub(crate) bytes: Vec<u8>,
}

impl Frame {
    fn tag(&self) -> FrameTag {
        FrameTag::new(self.id, self.from, self.to, &self.bytes)
    }
}

/// Where an adapter sits.
struct Port {
    ip: IpAddr,
    /// Counts the adapters that were opened here; the latest is the one that lives.
    incarnation: u32,
    alive: bool,
    groups: BTreeSet<IpAddr>,
    inbox: VecDeque<Frame>,
    inbox_bytes: usize,
    ident: u16,
    /// When it looks at what its neighbours wrote.
    looks_at: Option<Instant>,
}

pub(crate) struct Net {
    rng: Rng,
    ipv6: bool,
    ports: Vec<Port>,
    /// From row to column.
    links: Vec<Vec<Link>>,
    profile: LinkProfile,
    /// Ordered by arrival, then by number.
    under_way: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    frames: Vec<Option<Frame>>,
    free: Vec<usize>,
    buffers: Vec<Vec<u8>>,
    next_frame: u64,
    next_arrival_seq: u64,
    stats: NetStats,
    tap: Option<Box<dyn Tap>>,
    /// Where nodes share machines.
    pub(crate) near: Option<Chances>,
    pub(crate) trace: Trace,
}

/// The network between all adapters of a simulation; clones are the same network.
#[derive(Clone)]
pub struct SimNet {
    net: Arc<Mutex<Net>>,
    clock: Arc<AtomicU64>,
}

impl SimNet {
    pub(crate) fn new(rng: Rng, ipv6: bool) -> Self {
        let net = Net {
            rng,
            ipv6,
            ports: Vec::new(),
            links: Vec::new(),
            profile: LinkProfile::default(),
            under_way: BinaryHeap::new(),
            frames: Vec::new(),
            free: Vec::new(),
            buffers: Vec::new(),
            next_frame: 0,
            next_arrival_seq: 0,
            stats: NetStats::default(),
            tap: None,
            near: None,
            trace: Trace::new(false),
        };
        Self { net: Arc::new(Mutex::new(net)), clock: Arc::new(AtomicU64::new(0)) }
    }

    /// The lock is never contended (one thread runs a simulation) and a panic elsewhere leaves the
    /// network usable for its report.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Net> {
        self.net.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
    pub(crate) fn clock(&self) -> &Arc<AtomicU64> {
        &self.clock
    }
    /// The virtual time of the network.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.clock.load(Ordering::Relaxed))
    }
    pub(crate) fn event(&self, event: Event) {
        let now = self.now();
        self.lock().trace.add(now, event);
    }

    /// Gives every link, those of later nodes too, this profile.
    pub fn set_profile(&self, profile: &LinkProfile) {
        let mut net = self.lock();
        net.profile = profile.clone();
        net.links.iter_mut().flatten().for_each(|l| l.profile = profile.clone());
    }
    /// Gives the link from one node to another (this direction only) a profile.
    pub fn set_link(&self, from: usize, to: usize, profile: &LinkProfile) {
        self.lock().links[from][to].profile = profile.clone();
    }
    /// The profile of the link from one node to another.
    pub fn link(&self, from: usize, to: usize) -> LinkProfile {
        self.lock().links[from][to].profile.clone()
    }
    /// Removes the faults of every link and heals every cut. Latency, jitter and rates stay.
    pub fn heal_all(&self) {
        let mut net = self.lock();
        net.profile = net.profile.healed();
        if let Some(near) = &mut net.near {
            near.profile = near.profile.healed();
        }
        for link in net.links.iter_mut().flatten() {
            link.profile = link.profile.healed();
            link.cuts = 0;
        }
    }
    /// The counts of events among the nodes of each machine.
    pub fn near_stats(&self) -> NearStats {
        self.lock().near.as_ref().map(|n| n.stats).unwrap_or_default()
    }
    /// Sets the behaviour of machines from now on. Existing rings keep their size.
    pub fn set_near(&self, profile: &NearProfile) {
        if let Some(near) = &mut self.lock().near {
            near.profile = profile.clone();
        }
    }
    /// Cuts the link from one node to another (this direction only). Cuts count: the link needs as many
    /// [`heal`](Self::heal)s. Packets under way are lost when they would arrive.
    pub fn cut(&self, from: usize, to: usize) {
        self.lock().links[from][to].cuts += 1;
        self.event(Event::Cut(from, to));
    }
    /// Undoes one cut of a link.
    pub fn heal(&self, from: usize, to: usize) {
        let mut net = self.lock();
        let link = &mut net.links[from][to];
        link.cuts = link.cuts.saturating_sub(1);
        drop(net);
        self.event(Event::Healed(from, to));
    }
    /// Cuts every link, in both directions, between one group of nodes and the others.
    pub fn partition(&self, group: &[usize]) {
        self.each_across(group, |a, b| self.cut(a, b));
    }
    /// Undoes one [`partition`](Self::partition) of this group.
    pub fn rejoin(&self, group: &[usize]) {
        self.each_across(group, |a, b| self.heal(a, b));
    }
    fn each_across(&self, group: &[usize], f: impl Fn(usize, usize)) {
        let nodes = self.lock().ports.len();
        for &a in group {
            for b in (0..nodes).filter(|b| !group.contains(b)) {
                f(a, b);
                f(b, a);
            }
        }
    }
    /// The counts of the network so far.
    pub fn stats(&self) -> NetStats {
        self.lock().stats
    }
    /// The number of frames under way and in the buffers of adapters.
    pub fn frames_under_way(&self) -> usize {
        let net = self.lock();
        net.under_way.len() + net.ports.iter().map(|p| p.inbox.len()).sum::<usize>()
    }
    /// Sets a tap, which sees every frame as it is sent, before any fault.
    pub fn set_tap(&self, tap: Option<Box<dyn Tap>>) {
        self.lock().tap = tap;
    }
    /// The address of a node.
    pub fn address(&self, node: usize) -> IpAddr {
        self.lock().ports[node].ip
    }

    /// When the next frame arrives.
    pub(crate) fn next_arrival(&self) -> Option<Instant> {
        self.lock().under_way.peek().map(|r| r.0.0)
    }
    /// Puts everything that has arrived by now into the buffers; calls `woken` with each node.
    pub(crate) fn deliver(&self, mut woken: impl FnMut(usize)) {
        let now = self.now();
        let mut net = self.lock();
        while net.under_way.peek().is_some_and(|r| r.0.0 <= now) {
            let Reverse((_, _, slot)) = net.under_way.pop().expect("it was seen above");
            let frame = net.frames[slot].take().expect("the heap names frames that are there");
            net.free.push(slot);
            if let Some(node) = net.arrive(now, frame) {
                woken(node);
            }
        }
    }
}

impl Net {
    /// Adds a port; its index is the node's.
    pub(crate) fn add_port(&mut self) -> usize {
        let n = self.ports.len();
        let ip = if self.ipv6 {
            IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, (n >> 16) as u16, n as u16 + 1))
        } else {
            IpAddr::V4(Ipv4Addr::from(0x0a00_0001 + n as u32))
        };
        let ident = self.rng.next_u64() as u16;
        let inbox = VecDeque::new();
        self.ports.push(Port {
            ip,
            incarnation: 0,
            alive: false,
            groups: BTreeSet::new(),
            inbox,
            inbox_bytes: 0,
            ident,
            looks_at: None,
        });
        let link = || Link::new(&self.profile);
        for row in &mut self.links {
            row.push(link());
        }
        self.links.push((0..=n).map(|_| link()).collect());
        n
    }
    /// Brings a port up for a new adapter; returns its incarnation.
    pub(crate) fn open_port(&mut self, node: usize) -> u32 {
        let port = &mut self.ports[node];
        port.alive = true;
        port.incarnation += 1;
        port.incarnation
    }
    /// The adapter is gone, and with it what its buffer holds.
    pub(crate) fn close_port(&mut self, node: usize) {
        let port = &mut self.ports[node];
        port.alive = false;
        port.looks_at = None;
        port.groups.clear();
        port.inbox_bytes = 0;
        self.buffers.extend(port.inbox.drain(..).map(|f| f.bytes));
    }
    pub(crate) fn is_live(&self, node: usize, incarnation: u32) -> bool {
        self.ports[node].alive && self.ports[node].incarnation == incarnation
    }
    /// When a node looks at what its neighbours wrote; drawn anew once such a time is over, or would be too late.
    pub(crate) fn looks_at(&mut self, node: usize, now: Instant, from: Instant) -> Instant {
        let Some(chances) = &mut self.near else { return now };
        let latest = from + chances.profile.delay + Duration::from_nanos(1);
        let known = self.ports[node].looks_at.filter(|at| *at >= now && *at <= latest);
        let at = known.unwrap_or_else(|| chances.draw_look(from));
        self.ports[node].looks_at = Some(at);
        at
    }
    pub(crate) fn look_is_due(&self, node: usize, now: Instant) -> bool {
        self.ports[node].looks_at == Some(now)
    }
    /// When the next node looks at what its neighbours wrote, after this time.
    pub(crate) fn next_look(&self, now: Instant) -> Option<Instant> {
        self.ports.iter().filter_map(|p| p.looks_at).filter(|at| *at > now).min()
    }
    pub(crate) fn set_look(&mut self, node: usize, at: Instant) {
        self.ports[node].looks_at = Some(at);
    }
    pub(crate) fn has_input(&self, node: usize) -> bool {
        !self.ports[node].inbox.is_empty()
    }
    pub(crate) fn ip(&self, node: usize) -> IpAddr {
        self.ports[node].ip
    }

    /// Whether a node is told to come again with what it would send on a path.
    pub(crate) fn defers(&mut self, node: usize, path: &Path) -> bool {
        let to = self.ports.iter().position(|p| p.ip == path.peer);
        let rate = to.map_or(0.0, |to| self.links[node][to].profile.defer);
        let defers = rate > 0.0 && self.rng.chance(rate);
        self.stats.deferred += u64::from(defers);
        defers
    }

    /// The IPv4 Identification of a node's next packet.
    pub(crate) fn next_ident(&mut self, node: usize) -> u16 {
        let port = &mut self.ports[node];
        port.ident = port.ident.wrapping_add(1);
        if port.ip.is_ipv4() { port.ident } else { 0 }
    }

    /// Sends one packet: `packet` is BTH to ICRC.
    pub(crate) fn send(&mut self, now: Instant, node: usize, path: &Path, ident: u16, packet: &[u8]) {
        let src = self.ports[node].ip;
        let mut bytes = self.buffers.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(packet);
        self.stats.sent += 1;
        let id = self.next_frame;
        self.next_frame += 1;
        if let Some(tap) = &mut self.tap {
            tap.frame(now, &tap_frame(Direction::Tx, path.header(src), ident, &bytes));
        }
        let to = self.ports.iter().position(|p| p.ip == path.peer);
        let frame = Frame {
            id,
            from: node,
            to: to.unwrap_or(usize::MAX >> 48),
            group: Some(path.peer).filter(IpAddr::is_multicast),
            src_port: path.src_port,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            ident,
            bytes,
        };
        self.trace.add(now, Event::Sent(frame.tag()));
        match to {
            Some(to) => self.travel(now, to, frame),
            None if frame.group.is_some() => self.replicate(now, frame),
            None => self.lose(now, frame, Loss::NoAdapter),
        }
    }

    /// A frame to a group travels to each adapter that has joined it, the sender's included.
    fn replicate(&mut self, now: Instant, frame: Frame) {
        let member = |port: &Port| frame.group.is_some_and(|group| port.groups.contains(&group));
        let members: Vec<usize> = (0..self.ports.len()).filter(|to| member(&self.ports[*to])).collect();
        for to in members {
            self.travel(now, to, Frame { to, ..frame.clone() });
        }
        self.buffers.push(frame.bytes);
    }
    /// An adapter joins a group, or leaves it.
    pub(crate) fn set_member(&mut self, node: usize, group: IpAddr, joins: bool) {
        let groups = &mut self.ports[node].groups;
        if joins {
            groups.insert(group);
        } else {
            groups.remove(&group);
        }
    }

    /// Decides what happens to a frame on its link.
    fn travel(&mut self, now: Instant, to: usize, mut frame: Frame) {
        let from = frame.from;
        if self.links[from][to].cuts > 0 {
            return self.lose(now, frame, Loss::Partition);
        }
        let overhead = if self.ipv6 { 62 } else { 42 };
        let wire_bytes = frame.bytes.len() as u64 + overhead;
        let (left, mark) = match self.links[from][to].enqueue(now, wire_bytes) {
            Queueing::Full => return self.lose(now, frame, Loss::QueueFull),
            Queueing::Leaves { at, mark } => (at, mark),
        };
        let profile = &self.links[from][to].profile;
        let (loss, duplicate, reorder, corrupt, held) =
            (profile.loss, profile.duplicate, profile.reorder, profile.corrupt, profile.reorder_delay);
        if self.rng.chance(loss) {
            return self.lose(now, frame, Loss::Random);
        }
        if mark && matches!(frame.traffic_class & 3, 1 | 2) {
            frame.traffic_class |= 3;
            self.stats.marked += 1;
            self.trace.add(now, Event::Marked(frame.tag()));
        }
        let mut arrival = self.links[from][to].arrival(left, &mut self.rng);
        if self.rng.chance(duplicate) {
            let later = arrival + self.rng.up_to(held);
            self.stats.duplicated += 1;
            self.trace.add(now, Event::Duplicated(frame.tag()));
            let mut copy = frame.clone();
            if self.rng.chance(corrupt) {
                self.corrupt(now, &mut copy);
            }
            self.schedule(later, copy);
        }
        if self.rng.chance(reorder) {
            arrival = arrival + self.rng.up_to(held);
            self.stats.reordered += 1;
            self.trace.add(now, Event::HeldBack(frame.tag()));
        }
        if self.rng.chance(corrupt) {
            self.corrupt(now, &mut frame);
        }
        self.schedule(arrival, frame);
    }

    fn schedule(&mut self, at: Instant, frame: Frame) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.frames.push(None);
            self.frames.len() - 1
        });
        self.frames[slot] = Some(frame);
        self.next_arrival_seq += 1;
        self.under_way.push(Reverse((at, self.next_arrival_seq, slot)));
    }

    /// Changes a frame by an error that a CRC of 32 bits is sure to find: up to three bits, a burst
    /// of up to 32 bits, or, found with near certainty, a missing end.
    fn corrupt(&mut self, now: Instant, frame: &mut Frame) {
        self.stats.corrupted += 1;
        let bits = frame.bytes.len() as u64 * 8;
        match self.rng.below(8) {
            0 => {
                let cut = self.rng.between(1, frame.bytes.len().min(40) as u64) as usize;
                frame.bytes.truncate(frame.bytes.len() - cut);
            }
            1 => {
                let (at, pattern) = (self.rng.below(bits), self.rng.next_u64() as u32 | 1);
                for i in (0..32).filter(|i| pattern >> i & 1 == 1 && at + i < bits) {
                    flip(&mut frame.bytes, at + i);
                }
            }
            n => {
                let at = self.rng.below(bits);
                for i in 0..n % 3 + 1 {
                    // Distinct bits, so that none is flipped back.
                    flip(&mut frame.bytes, (at + i * 37) % bits);
                }
            }
        }
        self.trace.add(now, Event::Corrupted(frame.tag()));
    }

    fn lose(&mut self, now: Instant, frame: Frame, why: Loss) {
        match why {
            Loss::Random => self.stats.lost += 1,
            Loss::QueueFull | Loss::BufferFull => self.stats.overflowed += 1,
            Loss::Partition | Loss::NoAdapter => self.stats.unreachable += 1,
            Loss::Corrupt => self.stats.rejected += 1,
        }
        self.trace.add(now, Event::Lost(frame.tag(), why));
        self.buffers.push(frame.bytes);
    }

    fn arrive(&mut self, now: Instant, frame: Frame) -> Option<usize> {
        let node = frame.to;
        let why = if self.links[frame.from][node].cuts > 0 {
            Some(Loss::Partition)
        } else if !self.ports[node].alive {
            Some(Loss::NoAdapter)
        } else if self.ports[node].inbox_bytes + frame.bytes.len() > RECV_BUFFER_BYTES {
            Some(Loss::BufferFull)
        } else {
            None
        };
        if let Some(why) = why {
            self.lose(now, frame, why);
            return None;
        }
        self.stats.arrived += 1;
        self.trace.add(now, Event::Arrived(frame.tag()));
        self.ports[node].inbox_bytes += frame.bytes.len();
        self.ports[node].inbox.push_back(frame);
        Some(node)
    }

    /// Takes the oldest frame out of a buffer whose ICRC is right; wrong ones are dropped and counted
    /// on the way.
    pub(crate) fn take(&mut self, now: Instant, node: usize) -> Option<Frame> {
        while let Some(frame) = self.ports[node].inbox.pop_front() {
            self.ports[node].inbox_bytes -= frame.bytes.len();
            if self.is_intact(&frame) {
                return Some(frame);
            }
            self.lose(now, frame, Loss::Corrupt);
        }
        None
    }
    fn is_intact(&self, frame: &Frame) -> bool {
        if frame.bytes.len() < Bth::BYTES + ICRC_BYTES {
            return false;
        }
        let (packet, crc) = frame.bytes.split_at(frame.bytes.len() - ICRC_BYTES);
        let dst = frame.group.unwrap_or(self.ports[frame.to].ip);
        let flow = IpFlow::new(self.ports[frame.from].ip, dst, frame.src_port)
            .expect("all nodes are of one IP version");
        flow.icrc(frame.ident, packet).to_le_bytes() == crc
    }
    /// Gives a frame's buffer back for another frame.
    pub(crate) fn recycle(&mut self, bytes: Vec<u8>) {
        self.buffers.push(bytes);
    }
}

fn flip(bytes: &mut [u8], bit: u64) {
    bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
}

/// An open path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) peer: IpAddr,
    pub(crate) src_port: u16,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

impl Path {
    pub(crate) fn header(&self, src: IpAddr) -> PacketHeader {
        let Self { peer, src_port, traffic_class, hop_limit } = *self;
        PacketHeader { src, dst: peer, src_port, traffic_class, hop_limit }
    }
}

/// Puts the ICRC on: `bytes` is BTH to padding with four bytes behind it.
pub(crate) fn seal(src: IpAddr, path: &Path, ident: u16, bytes: &mut [u8]) {
    let end = bytes.len() - ICRC_BYTES;
    let flow = IpFlow::new(src, path.peer, path.src_port).expect("a path is of one IP version");
    let crc = flow.icrc(ident, &bytes[..end]);
    bytes[end..].copy_from_slice(&crc.to_le_bytes());
}
