//! The loopback network inside the process, for tests: queues under a lock, no system call unless a thread waits.
//!
//! The fabric puts on and checks ICRCs as on a real network, so that the layers above and below see the frames of a
//! wire. It runs under Miri as long as no descriptor is asked for.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use hca_core::wire::ICRC_BYTES;
use hca_core::{AddressVector, Counter, Instant, Mtu};
use hca_process::Fork;
use rustix::event::{EventfdFlags, eventfd};

use crate::flow::{Checked, RxFlows};
#[cfg(not(loom))]
use crate::glance::{Glance, InputWord};
use crate::icrc::{FlowCrc, Icrc};
use crate::paths::{PathTable, hop_limit};
use crate::{
    Direction, Fabric, FabricAttr, FabricLink, MulticastGroups, PacketHeader, PathError, PathId, QpEnds,
    RxBudget, RxOutcome, RxPacket, Tap, TapFrame, Train, TxBatch,
};
use hca_core::counters;

/// Bytes that a queue holds beside those that its receiver has taken; what comes beyond is dropped.
const QUEUE_BYTES: usize = 4 << 20;
/// Trains that a queue holds, likewise; what comes beyond is dropped.
const QUEUE_TRAINS: usize = 16_384;
/// Groups of one fabric.
const MAX_GROUPS: u32 = 128;
/// Every loopback flow has this source port.
const SRC_PORT: u16 = 0xc000;

/// A train on its way.
#[derive(Clone, Copy)]
struct Frame {
    header: PacketHeader,
    /// Identification of the first packet.
    ident: u16,
    segment: usize,
    /// Bytes of all packets.
    len: usize,
}

/// Trains in the order in which they were sent, and their bytes in a row.
#[derive(Default)]
struct Trains {
    frames: Vec<Frame>,
    bytes: Vec<u8>,
}

/// Trains that a receiver took from its queue, and how far it has come in them.
#[derive(Default)]
struct Taken {
    trains: Trains,
    frame: usize,
    byte: usize,
}

impl Taken {
    fn is_empty(&self) -> bool {
        self.frame == self.trains.frames.len()
    }
    /// The oldest train that is left, which is so no more.
    fn next(&mut self) -> Option<(&Frame, &[u8])> {
        let frame = self.trains.frames.get(self.frame)?;
        let bytes = &self.trains.bytes[self.byte..][..frame.len];
        (self.frame, self.byte) = (self.frame + 1, self.byte + frame.len);
        Some((frame, bytes))
    }
}

#[derive(Default)]
struct QueueState {
    trains: Trains,
    dropped: u64,
    /// The receiver sleeps on its descriptor, or is about to.
    armed: bool,
    /// The descriptor was written to.
    signalled: bool,
}

/// Frames wait, or the receiver is armed.
const STIRRED: u32 = 1;

#[derive(Default)]
struct Queue {
    /// [`STIRRED`], or 0. Changed under the lock.
    stirred: AtomicU32,
    state: Mutex<QueueState>,
    event: OnceLock<OwnedFd>,
    /// Its end left, or was replaced.
    left: AtomicBool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // A sink that panics leaves the queue itself in order.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn event(&self) -> Option<BorrowedFd<'_>> {
        if let Some(fd) = self.event.get() {
            return Some(fd.as_fd());
        }
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).ok()?;
        Some(self.event.get_or_init(|| fd).as_fd())
    }
    /// Takes a train and its bytes; returns false when it is full.
    #[inline(always)]
    fn push(&self, frame: Frame, bytes: &[u8]) -> bool {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Trains { frames, bytes: held } = &mut state.trains;
        if frames.len() == QUEUE_TRAINS || held.len() + bytes.len() > QUEUE_BYTES {
            state.dropped += bytes.len().div_ceil(frame.segment) as u64;
            return false;
        }
        held.extend_from_slice(bytes);
        frames.push(frame);
        // Release: pairs with the Acquire in `recv`.
        self.stirred.store(STIRRED, Ordering::Release);
        if state.armed {
            state.armed = false;
            state.signalled = true;
            if let Some(fd) = self.event.get() {
                // It can't overflow: the receiver reads it before it arms again.
                let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
            }
        }
        true
    }
    /// Exchanges all trains that wait for those that the receiver has done with.
    fn take(&self, taken: &mut Taken) {
        let Taken { trains, frame, byte } = taken;
        (*frame, *byte) = (0, 0);
        trains.frames.clear();
        trains.bytes.clear();
        let mut state = self.lock();
        state.armed = false;
        if core::mem::take(&mut state.signalled)
            && let Some(fd) = self.event.get()
        {
            let _ = rustix::io::read(fd, &mut [0_u8; 8][..]);
        }
        core::mem::swap(&mut state.trains, trains);
        self.stirred.store(0, Ordering::Relaxed);
    }
}

/// The queues of a network.
#[derive(Default)]
struct Queues {
    by_address: HashMap<IpAddr, Arc<Queue>>,
    /// Of ends that may have been replaced.
    by_group: HashMap<IpAddr, Vec<Weak<Queue>>>,
}

impl Queues {
    fn leave(&mut self, group: IpAddr, queue: &Arc<Queue>) {
        if let Some(members) = self.by_group.get_mut(&group) {
            members.retain(|q| !std::ptr::eq(q.as_ptr(), Arc::as_ptr(queue)));
            if members.is_empty() {
                self.by_group.remove(&group);
            }
        }
    }
}

/// A loopback network in this process.
#[derive(Clone, Default)]
pub struct LoopbackNet {
    queues: Arc<Mutex<Queues>>,
}

impl LoopbackNet {
    /// A network without adapters.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn queue(&self, addr: IpAddr) -> Option<Arc<Queue>> {
        self.lock().by_address.get(&addr).cloned()
    }

    /// Puts a train into the queues of a group's members. As on other networks, the sender does not learn of members
    /// that do not get it.
    #[cold]
    #[inline(never)]
    fn push_to_group(&self, frame: Frame, bytes: &[u8]) {
        let members = self.lock().by_group.get(&frame.header.dst).cloned().unwrap_or_default();
        members.iter().filter_map(Weak::upgrade).for_each(|queue| _ = queue.push(frame, bytes));
    }

    /// Attaches an adapter's end at an address of this network, and replaces an end that was attached there before.
    pub fn attach(&self, addr: IpAddr) -> LoopbackFabric {
        let queue = Arc::new(Queue::default());
        if let Some(replaced) = self.lock().by_address.insert(addr, Arc::clone(&queue)) {
            replaced.left.store(true, Ordering::Relaxed);
        }
        LoopbackFabric {
            attr: FabricAttr {
                name: "loopback".to_owned(),
                local: addr,
                max_mtu: Mtu::B4096,
                recv_buffer_bytes: QUEUE_BYTES / 2,
                qpn_slot: None,
                link: FabricLink::none(),
                notes: Vec::new(),
            },
            net: self.clone(),
            queue,
            taken: Taken::default(),
            paths: PathTable::new(),
            icrc: Icrc::new(),
            flows: RxFlows::shown(addr),
            groups: Vec::new(),
            counters: LoopbackCounters::default(),
            tap: None,
            fork: Fork::new(),
        }
    }
}

struct Path {
    header: PacketHeader,
    crc: FlowCrc,
    queue: Option<Arc<Queue>>,
    ident: u16,
}

counters! {
    LoopbackCounters:
    tx_packets,
    tx_bytes,
    tx_trains,
    tx_lost_unreachable,
    /// Packets to queues that were full.
    tx_lost_no_buffers,
    tx_lost_closed,
    rx_packets,
    rx_bytes,
    icrc_errors,
    short_packets,
}

/// One address of a [`LoopbackNet`].
pub struct LoopbackFabric {
    attr: FabricAttr,
    net: LoopbackNet,
    queue: Arc<Queue>,
    taken: Taken,
    paths: PathTable<(PacketHeader, u32), Path>,
    icrc: Icrc,
    flows: RxFlows,
    /// The groups that are joined, each with its flows.
    groups: Vec<(IpAddr, RxFlows)>,
    counters: LoopbackCounters,
    tap: Option<Box<dyn Tap>>,
    fork: Fork,
}

impl LoopbackFabric {
    /// Whether trains were taken and not delivered, or may have come.
    #[inline]
    fn has_input(&self) -> bool {
        // Acquire: pairs with the Release in `push`; what was pushed is seen under the lock.
        !self.taken.is_empty() || self.queue.stirred.load(Ordering::Acquire) == STIRRED
    }
    /// Gives the packets of the oldest train to `sink`; returns how many were right, and their bytes with those of the
    /// others.
    #[inline(never)]
    fn deliver(&mut self, now: Instant, sink: &mut dyn FnMut(&RxPacket<'_>)) -> (usize, usize) {
        let Self { taken, flows, groups, tap, counters, queue, .. } = self;
        if taken.is_empty() {
            queue.take(taken);
        }
        let Some((frame, bytes)) = taken.next() else { return (0, 0) };
        let Frame { header, mut ident, segment, .. } = *frame;
        let flows = match header.dst.is_multicast() {
            false => flows,
            true => match groups.iter_mut().find(|(group, _)| *group == header.dst) {
                Some((_, flows)) => flows,
                // It was left meanwhile.
                None => return (0, bytes.len()),
            },
        };
        let mut good = 0;
        flows.begin(header.src, header.src_port);
        for packet in bytes.chunks(segment) {
            let checked = flows.check_shown(ident, true, packet);
            if let (Some(tap), Checked::Good(_) | Checked::Bad(_)) = (&mut *tap, checked) {
                let (direction, version) = (Direction::Rx, crate::RoceVersion::V2);
                tap.frame(now, &TapFrame { direction, version, header, ident, payload: packet });
            }
            ident = ident.wrapping_add(1);
            match checked {
                Checked::Good(_) => {
                    good += 1;
                    counters.rx_bytes += packet.len() as u64;
                    sink(&RxPacket { header, bytes: &packet[..packet.len() - ICRC_BYTES] });
                }
                Checked::Bad(_) | Checked::Odd(_) => counters.icrc_errors += 1,
                Checked::Short => counters.short_packets += 1,
            }
        }
        counters.rx_packets += good as u64;
        (good, bytes.len())
    }
}

impl Drop for LoopbackFabric {
    fn drop(&mut self) {
        // A thread that a child has not may have held the lock.
        if self.fork.is_child() {
            return;
        }
        let mut queues = self.net.lock();
        for (group, _) in &self.groups {
            queues.leave(*group, &self.queue);
        }
        self.queue.left.store(true, Ordering::Relaxed);
        if queues.by_address.get(&self.attr.local).is_some_and(|q| Arc::ptr_eq(q, &self.queue)) {
            queues.by_address.remove(&self.attr.local);
        }
    }
}

impl Fabric for LoopbackFabric {
    fn attr(&self) -> &FabricAttr {
        &self.attr
    }

    fn open_path_of(&mut self, av: &AddressVector, ends: QpEnds) -> Result<PathId, PathError> {
        let (src, dst) = (self.attr.local, av.dgid.ip());
        PathError::unless_addressable(dst, ends)?;
        let crc = FlowCrc::new(src, dst, SRC_PORT).ok_or(PathError::Family { peer: dst, local: src })?;
        let (traffic_class, hop_limit) = (av.traffic_class, hop_limit(av.hop_limit));
        let header = PacketHeader { src, dst, src_port: SRC_PORT, traffic_class, hop_limit };
        let key = (header, av.flow_label);
        let found = self.paths.find(&key)?;
        Ok(found.unwrap_or_else(|| self.paths.insert(key, Path { header, crc, queue: None, ident: 0 })))
    }

    fn close_path(&mut self, path: PathId) {
        self.paths.close(path);
    }

    fn send(&mut self, now: Instant, batch: &mut TxBatch) {
        let waiting = batch.trains().len();
        for k in 0..waiting {
            let train = batch.trains()[k];
            let packets = train.packets() as u64;
            let Some(path) = self.paths.get_mut(train.path) else {
                self.counters.tx_lost_closed += packets;
                continue;
            };
            let first = path.ident;
            path.ident = first.wrapping_add(1);
            self.icrc.seal(&path.crc, first, train.segment, batch.bytes_mut(&train));
            batch.apply_flips(&train);
            let bytes = batch.bytes(&train);
            let header = path.header;
            if let Some(tap) = &mut self.tap {
                let (direction, version) = (Direction::Tx, crate::RoceVersion::V2);
                for (k, payload) in bytes.chunks(train.segment).enumerate() {
                    let ident = first.wrapping_add(k as u16);
                    tap.frame(now, &TapFrame { direction, version, header, ident, payload });
                }
            }
            let Train { segment, len, .. } = train;
            let frame = Frame { header, ident: first, segment, len };
            if header.dst.is_multicast() {
                self.net.push_to_group(frame, bytes);
            } else {
                if path.queue.as_ref().is_none_or(|q| q.left.load(Ordering::Relaxed)) {
                    path.queue = self.net.queue(header.dst);
                }
                let Some(queue) = &path.queue else {
                    self.counters.tx_lost_unreachable += packets;
                    continue;
                };
                if !queue.push(frame, bytes) {
                    self.counters.tx_lost_no_buffers += packets;
                    continue;
                }
            }
            self.counters.tx_trains += 1;
            self.counters.tx_packets += packets;
            self.counters.tx_bytes += len as u64;
        }
        batch.advance(waiting);
    }

    fn recv(&mut self, now: Instant, budget: RxBudget, sink: &mut dyn FnMut(&RxPacket<'_>)) -> RxOutcome {
        let mut outcome = RxOutcome::default();
        let mut bytes = 0;
        while self.has_input() {
            if outcome.packets >= budget.packets || bytes >= budget.bytes {
                outcome.more = !(self.taken.is_empty() && self.queue.lock().trains.frames.is_empty());
                break;
            }
            let (packets, len) = self.deliver(now, sink);
            outcome.packets += packets;
            bytes += len;
        }
        outcome
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queue.event()
    }

    fn prepare_wait(&mut self) -> bool {
        let mut state = self.queue.lock();
        if !(self.taken.is_empty() && state.trains.frames.is_empty()) {
            return true;
        }
        // Without a descriptor nobody could be woken.
        state.armed = self.queue.event().is_some();
        self.queue.stirred.store(STIRRED, Ordering::Release);
        !state.armed
    }

    #[cfg(not(loom))]
    fn renew_glance(&mut self, glance: &mut Glance) -> bool {
        glance.look_at(&self.queue, |queue| &queue.stirred, 0, InputWord::silent);
        self.taken.is_empty()
    }

    fn groups(&mut self) -> Option<&mut dyn MulticastGroups> {
        Some(self)
    }

    fn counters(&self, out: &mut Vec<Counter>) {
        self.counters.append(out);
        out.push(Counter { name: "rx_kernel_drops", value: self.queue.lock().dropped });
        self.flows.counts.append(out);
    }

    fn set_tap(&mut self, tap: Option<Box<dyn Tap>>) {
        self.tap = tap;
    }
}

impl MulticastGroups for LoopbackFabric {
    fn join(&mut self, group: IpAddr) -> std::io::Result<()> {
        self.groups.push((group, RxFlows::shown_of_group(group)));
        self.net.lock().by_group.entry(group).or_default().push(Arc::downgrade(&self.queue));
        Ok(())
    }
    fn leave(&mut self, group: IpAddr) {
        self.groups.retain(|(joined, _)| *joined != group);
        self.net.lock().leave(group, &self.queue);
    }
    fn limit(&self) -> u32 {
        MAX_GROUPS
    }
}
