//! The engine: one single-threaded struct that owns all state of the adapter and does a bounded piece
//! of work a turn.

mod acks;
pub(crate) mod change;
mod dormant;
mod faults;
pub(crate) mod grants;
pub(crate) mod host;
mod lines;
mod lookup;
mod multicast;
pub(crate) mod near;
mod parts;
mod rd;
mod short_turns;
mod xrc;

use core::cmp::Reverse;
use core::net::IpAddr;
use core::time::Duration;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use hca_core::wire::{ICRC_BYTES, Ipv4Header, Ipv6Header, Packet, UdpHeader};
use hca_core::{AhHandle, Instant, Mtu, QpHandle, QpState, QpType, Qpn};
use hca_fabric::{PacketHeader, PathId, RxBudget, RxPacket, TxBatch};
use hca_transport::{InPlace, RxMeta, TxSink};
use hca_turn_lock::Barrier;

use crate::counters::EngineCounters;
use crate::engine::host::QpHost;
use crate::engine::short_turns::ShortTurns;
use crate::limits::{GENERAL_SERVICES, slot_of};
use crate::network::Network;
use crate::objects::direct::TakingBack;
use crate::objects::dormant::{Dormancy, DormantQps};
use crate::objects::groups::Groups;
use crate::objects::pace::Paced;
use crate::objects::qp::{QpEntry, is_near};
use crate::objects::qp_shared::{QpShared, encode_state};
use crate::objects::slab::Slab;
use crate::objects::tables::{Ah, Tables};
use crate::queues::doorbell::Doorbell;
use crate::sync::Arc;

/// Bytes of packets gathered before they are handed to the fabric.
const BATCH_BYTES: usize = 256 << 10;
/// What a turn receives and sends at most.
const TURN_BYTES: usize = 256 << 10;
const TURN_PACKETS: usize = 512;
/// So many queue pairs are left in the order in which they came: they rarely are on two paths and return to the first.
const FEW: usize = 2;
/// Packets a queue pair sends before the next one has its turn.
const BURST_PACKETS: usize = 64;
/// Bytes of a packet, by which the burst of a queue pair with a pace is counted.
const PACED_PACKET: u64 = 4096;
/// How long behind its turn to send such a queue pair's timer is looked at.
const PACED_TIMER: Duration = Duration::from_micros(100);

/// Pieces of a turn's size in which the largest ring is taken, with all packets as small as can be.
const MAX_PIECES: usize = (64 << 20) / 64 / TURN_PACKETS + 1;

/// Bytes of a message of one line, as a turn's share counts them.
const LINE_BYTES: usize = 64;
/// Messages of one line that a turn takes from a ring before it looks at other things.
const TURN_LINES: usize = 64;

/// When a network that took nothing more, as a socket is full, is tried again although nobody calls.
const FULL_RETRY: Duration = Duration::from_millis(1);
/// The same of messages to a peer whose ring is full. It calls as soon as there is room.
const CALLED_RETRY: Duration = Duration::from_millis(16);

/// Marks the slot of a completion queue among the timers. No table has so many slots.
const CQ_TIMER: u32 = 1 << 31;

/// Stands for the turn of a queue pair whose acknowledgement has left, while it is still in the list.
const LISTED: u64 = u64::MAX;

/// When an acknowledgement that became due in this turn leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckRule {
    /// Now: the program that is given the message may never call again, and nobody else moves the adapter.
    Now,
    /// Now, unless the program was given a message that it may answer: then with the answer, or in the
    /// next turn.
    UnlessDelivered,
    /// With the next packet to the peer, or in the next turn: who turns looks at its memory between turns,
    /// and may answer what it finds there.
    NextTurn,
    /// With the next packet to the peer, or in the first turn with another rule, for which the caller cares.
    WithAnswer,
}

pub(crate) struct Engine {
    pub(crate) network: Network,
    tx: TxBatch,
    /// Peers on this machine may reach this one's memory, and it theirs.
    pub(crate) shares_memory: bool,
    short_turns: ShortTurns,
    /// Time passes by itself. In a simulation nobody turns again after a turn that found nothing.
    pub(crate) real_time: bool,
    /// The largest path MTU.
    pub(crate) max_mtu: Mtu,
    pub(crate) core: Core,
}

/// The engine without its network.
pub(crate) struct Core {
    pub(crate) qps: Slab<Box<QpEntry>>,
    pub(crate) tables: Tables,
    pub(crate) ahs: Slab<Ah>,
    pub(crate) counters: EngineCounters,
    /// Queue pairs that want to send, each once.
    ready: VecDeque<u32>,
    /// As many of these, from the first on, were brought into an order by their paths, and have their turn before
    /// others.
    ready_grouped: usize,
    /// As many of these as the network took nothing of when they were tried last.
    ready_blocked: usize,
    /// Queue pairs that want to send and wait until their pace has room; their `ready` is set.
    paced: Paced,
    /// Queue pairs that owe an acknowledgement, each once.
    acks: Vec<u32>,
    /// As `ready_blocked`.
    acks_blocked: usize,
    /// So many others of `acks` wait for an answer of the program; the adapter's thread knows until when.
    acks_held: usize,
    /// Some of `acks` do not wait for an answer.
    acks_leave_now: bool,
    /// When queue pairs want a call, and when notifications of completion queues are held back no longer; entries may be
    /// too early, never too late.
    timers: BinaryHeap<Reverse<(Instant, u32)>>,
    /// Queue pairs that exchange messages, by the peer's number and their slot.
    pub(crate) near_qps: BTreeSet<(u32, u32)>,
    /// Queue pairs whose word on the board is to be looked at.
    pub(crate) words_due: Vec<u32>,
    /// Words of queue pairs so far: no queue pair has the word of another one before it in the same slot.
    pub(crate) words: u32,
    /// What turns take back while peers are within.
    pub(crate) taking_back: Vec<TakingBack>,
    /// Dormant queue pairs, and the packets and messages that wait for them.
    pub(crate) dormant: DormantQps,
    /// The slot of the general services queue pair, if there is one.
    pub(crate) general_services: Option<u32>,
    /// Multicast groups.
    pub(crate) groups: Groups,
    /// The queue pair of the packet before, which wants what it did to be noted.
    touched: Option<u32>,
    turn: u64,
    /// The time that was passed in last.
    pub(crate) now: Instant,
    /// Packets or messages have arrived since the adapter's thread last asked.
    pub(crate) arrived: bool,
}

/// Gives a queue pair's packets to the batch.
struct Sink<'a> {
    batch: &'a mut TxBatch,
    path: Option<PathId>,
    ahs: &'a Slab<Ah>,
    full: bool,
    /// The network, if payloads may be taken from where they lie.
    network: Option<&'a Network>,
}

#[allow(unsafe_code)] // a packet is lent its payload
impl TxSink for Sink<'_> {
    #[inline(always)]
    fn reserve(&mut self, to: Option<AhHandle>, len: usize) -> Option<&mut [u8]> {
        let path = match to {
            None => self.path,
            Some(ah) => self.ahs.get(ah.index, ah.generation).map(|a| a.path),
        };
        let path = path.expect("a queue pair that sends has a path");
        let room = if self.batch.cuts_short(path, len) { None } else { self.batch.reserve(path, len) };
        self.full = room.is_none();
        room
    }
    #[inline]
    fn commit(&mut self) {
        self.batch.commit();
    }
    #[inline]
    fn in_place_from(&self) -> Option<u32> {
        self.network?.sends_in_place_from()
    }
    #[inline]
    fn commit_in_place(&mut self, at: usize, payload: InPlace) {
        let from = core::ptr::with_exposed_provenance(payload.addr);
        // SAFETY: `QpHost::in_place` found it in a live region for this very packet, and its request is STABLE. We run
        // under the engine's lock, which deregistration takes, and before it is given back, and before a completion is
        // shown, `Engine::send` has the batch sent or taken in.
        unsafe { self.batch.commit_lent(at, from, payload.len as usize) };
    }
}

impl Engine {
    pub(crate) fn new(mut network: Network, qps: Slab<Box<QpEntry>>, tables: Tables, ahs: Slab<Ah>) -> Self {
        let near = network.near();
        let shares_memory = near.as_ref().is_some_and(|near| near.shares_memory());
        let short_turns = ShortTurns::new(near.map(|near| near.is_alone()));
        Self {
            max_mtu: network.attr().max_mtu,
            network,
            shares_memory,
            short_turns,
            real_time: true,
            tx: TxBatch::with_capacity(BATCH_BYTES),
            core: Core {
                qps,
                tables,
                ahs,
                counters: EngineCounters::default(),
                ready: VecDeque::with_capacity(64),
                ready_grouped: 0,
                ready_blocked: 0,
                paced: Paced::default(),
                acks: Vec::with_capacity(64),
                acks_blocked: 0,
                acks_held: 0,
                acks_leave_now: false,
                timers: BinaryHeap::with_capacity(64),
                near_qps: BTreeSet::new(),
                general_services: None,
                groups: Groups::default(),
                words_due: Vec::new(),
                words: 0,
                taking_back: Vec::new(),
                dormant: DormantQps::default(),
                touched: None,
                turn: 0,
                now: Instant::ZERO,
                arrived: false,
            },
        }
    }

    /// A bounded piece of all work there is. Returns whether there was any.
    pub(crate) fn turn(&mut self, now: Instant, bell: &Doorbell<QpShared>, acks: AckRule) -> bool {
        self.core.turn += 1;
        self.core.now = now;
        self.core.counters.turns += 1;
        let owed = self.core.acks.len();
        let rang = self.core.take_doorbells(now, bell);
        let budget = RxBudget { packets: TURN_PACKETS, bytes: TURN_BYTES };
        let received = self.receive(now, budget);
        let fired = self.core.fire_timers(now);
        self.core.resume_paced(now);
        let sent = !self.core.ready.is_empty() && self.transmit(now);
        let acked = !self.core.acks.is_empty() && self.flush_acks_behind(now, acks, owed);
        self.send(now);
        self.conclude();
        rang | received | fired | sent | acked
    }

    /// Takes what arrived. Returns whether anything did.
    #[inline]
    fn receive(&mut self, now: Instant, budget: RxBudget) -> bool {
        let mut packets = if self.network.has_near() { self.receive_near(now, budget) } else { 0 };
        let core = &mut self.core;
        let by_packets = self.network.recv_packets(now, budget, &mut |p| core.receive(now, p)).packets;
        if by_packets > 0 {
            self.short_turns.note_packets();
        }
        packets += by_packets;
        core.settle_touched(None);
        core.arrived |= packets > 0;
        packets > 0
    }

    /// What posts ask for: their doorbells, and what can be sent at once. `caller` is the queue pair of
    /// who runs this, which need not ring.
    pub(crate) fn turn_posted(&mut self, now: Instant, bell: &Doorbell<QpShared>, caller: Option<QpHandle>) {
        let rang = self.core.take_doorbells(now, bell);
        let slot = caller.and_then(|qp| self.core.posted(now, qp));
        let made = slot.map_or(0, |slot| self.transmit_at_once(now, slot));
        if rang | slot.is_some() {
            if !self.core.ready.is_empty() && made < TURN_BYTES {
                self.transmit(now);
            }
            self.send(now);
            self.conclude();
        }
    }

    /// Shows what a turn did: what peers may reach no more is taken back before a completion tells so, and behind a
    /// completion queue that overran goes what its queue pairs allowed. Where a peer is within, nothing is waited for
    /// here: the completions that depend on it are kept until a later turn finds it out.
    pub(crate) fn conclude(&mut self) {
        self.take_back();
        if self.core.tables.has_fresh() {
            self.core.finish(self.core.now);
            self.take_back();
        }
    }
    /// As [`conclude`](Self::conclude), where nothing was done but requests completed.
    #[inline(always)]
    fn conclude_completions(&mut self) {
        if self.core.tables.has_fresh() {
            self.conclude();
        }
    }
    /// Who waits for more than memory is waited for by the next turn: it looks at everything.
    pub(crate) fn next_turn_is_whole(&mut self) {
        self.short_turns.end();
    }

    /// When the next turn is due even if nothing happens: at once where something is to be sent that was not tried yet.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadline_of_late_timers(Duration::ZERO)
    }
    /// The same if timers may fire so late.
    pub(crate) fn deadline_of_late_timers(&self, late: Duration) -> Option<Instant> {
        let timer = self.core.timers.peek().map(|t| t.0.0 + late);
        let paced = self.core.paced.opens_at();
        [timer, paced, self.network.next_deadline(), self.sends_at(), self.takes_back_at()]
            .into_iter()
            .flatten()
            .min()
    }
    /// Whether nothing is to be done but what comes from the network, and when a timer fires.
    #[inline]
    fn rests(&self) -> bool {
        let core = &self.core;
        core.ready.is_empty()
            && core.acks.is_empty()
            && self.tx.is_empty()
            && core.taking_back.is_empty()
            && core.paced.opens_at().is_none()
    }
    /// When what waits to be sent or acknowledged is tried.
    pub(crate) fn sends_at(&self) -> Option<Instant> {
        let core = &self.core;
        if core.ready.len() > core.ready_blocked || core.acks.len() > core.acks_blocked + core.acks_held {
            return Some(core.now);
        }
        let blocked = core.ready_blocked > 0 || core.acks_blocked > 0 || !self.tx.is_empty();
        // Messages leave nothing in the batch. In a simulation who waits for a call may not sleep where it is heard.
        let is_called = self.network.has_near() && self.real_time && self.tx.is_empty();
        blocked.then(|| core.now + if is_called { CALLED_RETRY } else { FULL_RETRY })
    }

    #[inline(always)]
    fn send(&mut self, now: Instant) {
        if !self.tx.is_empty() {
            self.send_batch(now);
        }
    }
    #[inline(never)]
    fn send_batch(&mut self, now: Instant) {
        self.network.send(now, &mut self.tx);
        // Packets that stay in the batch may wait for longer than their memory is there.
        self.tx.take_in();
    }

    /// Lets a queue pair send whose owner has just posted, if none has its turn before. What is left has its turn
    /// behind. Returns the bytes that were sent.
    #[inline]
    fn transmit_at_once(&mut self, now: Instant, slot: u32) -> usize {
        let core = &mut self.core;
        let is_next = core.ready.is_empty()
            && core.qps.at_mut(slot).is_some_and(|entry| !core::mem::replace(&mut entry.ready, true));
        if !is_next {
            core.settle(slot);
            return 0;
        }
        let before = self.tx.len_bytes();
        let (full, by_messages) = core.transmit_slot(now, slot, &mut self.tx, &mut self.network);
        let made = self.tx.len_bytes() - before + by_messages;
        if full {
            self.send(now);
        }
        made
    }

    /// Lets the queue pairs that want to send, in turns, until none does, the turn's share is used up or
    /// the network takes no more. An acknowledgement that is owed goes along.
    fn transmit(&mut self, now: Instant) -> bool {
        let mut spent = 0;
        self.core.ready_blocked = 0;
        while !self.core.ready.is_empty() && spent < TURN_BYTES {
            let before = self.tx.len_bytes();
            let (full, by_messages) = self.core.transmit_round(now, &mut self.tx, &mut self.network);
            let made = self.tx.len_bytes() - before + by_messages;
            spent += made;
            if full || self.core.ready.is_empty() {
                self.send(now);
            }
            if (full && !self.tx.is_empty()) || made == 0 {
                self.core.ready_blocked = self.core.ready.len();
                break;
            }
        }
        spent > 0
    }
}

/// Orders queue pairs that all have their turn now, such that those of one path follow each other: what they send
/// leaves in one train, and not in a call each.
#[inline]
fn group_by_path(slots: &mut [u32], qps: &Slab<Box<QpEntry>>) {
    if slots.len() > FEW {
        slots.sort_unstable_by_key(|slot| (qps.at(*slot).and_then(|e| e.res.path), *slot));
    }
}

impl Core {
    /// A queue pair with its host, by handle.
    pub(crate) fn with_qp<R>(
        &mut self,
        now: Instant,
        handle: QpHandle,
        f: impl FnOnce(&mut QpEntry, &mut Tables, &Slab<Ah>) -> R,
    ) -> Option<R> {
        self.now = now;
        let entry = self.qps.get_mut(handle.index, handle.generation)?;
        let r = f(entry, &mut self.tables, &self.ahs);
        self.settle(handle.index);
        self.finish(now);
        Some(r)
    }

    #[inline]
    fn take_doorbells(&mut self, now: Instant, bell: &Doorbell<QpShared>) -> bool {
        self.now = now;
        self.tables.regions.now = now;
        !bell.is_empty() && self.take_rung(now, bell)
    }
    #[inline(never)]
    fn take_rung(&mut self, now: Instant, bell: &Doorbell<QpShared>) -> bool {
        let mut any = false;
        for shared in bell.take() {
            if let Some(slot) = self.posted(now, shared.handle) {
                self.settle(slot);
                any = true;
            }
        }
        any
    }

    /// A queue pair has new requests: what it wants now is to be [noted](Self::settle). `None`: it is gone.
    #[inline]
    fn posted(&mut self, now: Instant, qp: QpHandle) -> Option<u32> {
        let entry = self.qps.get_mut(qp.index, qp.generation)?;
        entry.res.sq.refresh();
        let QpEntry { machine, res, .. } = &mut **entry;
        machine.handle_posted(now, &mut QpHost::new(res, &mut self.tables, &self.ahs));
        Some(qp.index)
    }

    /// One packet from the network.
    #[inline(always)]
    pub(crate) fn receive(&mut self, now: Instant, rx: &RxPacket<'_>) {
        let packet = match Packet::parse(rx.bytes) {
            Ok(p) => p,
            Err(e) => return self.counters.malformed(e),
        };
        if packet.opcode().is_rd() {
            return self.receive_datagram(now, rx, &packet);
        }
        let qpn = packet.bth().dest_qp().raw();
        let mut slot = slot_of(qpn);
        if qpn == GENERAL_SERVICES.raw() {
            slot = self.general_services.unwrap_or(slot);
        }
        let entry = self.qps.at_mut(slot).filter(|e| e.machine.qpn().raw() == qpn);
        let Some(entry) = entry else {
            if qpn == Qpn::MULTICAST.raw() {
                return self.receive_multicast(now, rx, &packet);
            }
            self.counters.rx_unknown_qp += 1;
            return;
        };
        if entry.res.peer.is_some_and(|peer| peer != rx.header.src) {
            self.counters.rx_foreign_source += 1;
            return;
        }
        if entry.dormancy != Dormancy::Awake {
            return self.keep_packet(slot, rx);
        }
        let ce = rx.congestion_experienced();
        let mut grh;
        let meta = if entry.machine.qp_type() == QpType::Ud {
            grh = [0; 40];
            write_grh(rx, &mut grh);
            RxMeta { ce, grh: Some(&grh) }
        } else {
            RxMeta { ce, grh: None }
        };
        let QpEntry { machine, res, .. } = &mut **entry;
        let mut host = QpHost::new(res, &mut self.tables, &self.ahs);
        machine.handle_packet(now, &meta, &packet, &mut host);
        if self.touched != Some(slot) {
            self.settle_touched(Some(slot));
        }
    }

    /// Notes what the packets of one queue pair made it want, once for all of them in a row; `next` is the
    /// queue pair of the packet that was just handled.
    pub(crate) fn settle_touched(&mut self, next: Option<u32>) {
        if let Some(slot) = core::mem::replace(&mut self.touched, next) {
            self.settle(slot);
        }
    }

    /// Notes what a queue pair wants after an input.
    #[inline]
    pub(crate) fn settle(&mut self, slot: u32) {
        let Some(entry) = self.qps.at_mut(slot) else { return };
        let wants = entry.machine.wants();
        if wants.transmit && !entry.ready {
            entry.ready = true;
            self.ready.push_back(slot);
        }
        if wants.ack.is_some()
            && entry.ack_since.is_none_or(|since| since == LISTED)
            && entry.ack_since.replace(self.turn).is_none()
        {
            self.acks_leave_now |= !entry.answers();
            self.acks.push(slot);
        }
        if let Some(at) = wants.deadline
            && entry.timer.is_none_or(|t| at < t)
        {
            entry.timer = Some(at);
            self.timers.push(Reverse((at, slot)));
        }
        let (state, is_of_rd) = (encode_state(entry.machine.state()), entry.res.rd.is_some());
        // Only the engine stores the state, under its lock, so this compares with its own last word.
        if entry.res.shared.state() != state {
            self.show_state(slot, state);
        }
        if is_of_rd {
            self.settle_rd(slot);
        }
    }
    /// A queue pair has its turn to send.
    pub(crate) fn make_ready(&mut self, slot: u32) {
        if let Some(entry) = self.qps.at_mut(slot)
            && !core::mem::replace(&mut entry.ready, true)
        {
            self.ready.push_back(slot);
        }
    }

    /// Shows a new state to the posting side. A receive port publishes a request and then reads the
    /// state; so once ERROR is shown, the queues are looked at once more for requests to flush.
    #[cold]
    fn show_state(&mut self, slot: u32, state: u32) {
        let Some(entry) = self.qps.at_mut(slot) else { return };
        if entry.res.word != 0 || entry.machine.uses_messages() {
            self.words_due.push(slot);
        }
        entry.res.shared.show_state(state, is_near(&entry.machine, &entry.res));
        if state == encode_state(QpState::Error) {
            // Pairs with the light one in `QpRecvPort::ring`.
            Barrier::of_system().heavy();
            let QpEntry { machine, res, .. } = &mut **entry;
            res.sq.refresh();
            let now = self.now;
            machine.handle_posted(now, &mut QpHost::new(res, &mut self.tables, &self.ahs));
        }
    }

    /// Queue pairs whose pace may have room again have their turn, behind those that have it now.
    #[inline]
    fn resume_paced(&mut self, now: Instant) {
        if self.paced.opens_at().is_some() {
            self.ready.extend(self.paced.take_due(now));
        }
    }

    fn fire_timers(&mut self, now: Instant) -> bool {
        let mut fired = false;
        while self.timers.peek().is_some_and(|t| t.0.0 <= now) {
            let Some(Reverse((at, slot))) = self.timers.pop() else { break };
            if slot & CQ_TIMER != 0 {
                if let Some(cq) = self.tables.cqs.at_mut(slot & !CQ_TIMER) {
                    cq.fire(now);
                }
                continue;
            }
            let Some(entry) = self.qps.at_mut(slot) else { continue };
            if entry.timer != Some(at) {
                continue;
            }
            if let Some(pace) = entry.res.pace.as_ref().filter(|_| entry.ready) {
                // No answer is late to what its pace holds back.
                let later = pace.opens_at().max(now) + PACED_TIMER;
                entry.timer = Some(later);
                self.timers.push(Reverse((later, slot)));
                continue;
            }
            entry.timer = None;
            if entry.machine.next_deadline().is_some_and(|d| d <= now) {
                let QpEntry { machine, res, .. } = &mut **entry;
                machine.handle_timeout(now, &mut QpHost::new(res, &mut self.tables, &self.ahs));
                fired = true;
            }
            self.settle(slot);
        }
        fired
    }

    /// Every ready queue pair once. Returns whether the batch is full, and the bytes that left by messages.
    fn transmit_round(&mut self, now: Instant, tx: &mut TxBatch, network: &mut Network) -> (bool, usize) {
        let mut by_messages = 0;
        for _ in 0..self.ready.len() {
            if self.ready_grouped == 0 {
                // All have had their turn since this was done last, so nobody is overtaken twice.
                if self.ready.len() > FEW {
                    group_by_path(self.ready.make_contiguous(), &self.qps);
                }
                self.ready_grouped = self.ready.len();
            }
            let Some(slot) = self.ready.pop_front() else { break };
            self.ready_grouped -= 1;
            let (full, bytes) = self.transmit_slot(now, slot, tx, network);
            by_messages += bytes;
            if full {
                return (true, by_messages);
            }
        }
        (false, by_messages)
    }

    /// The turn of a queue pair, whose `ready` is set, to send. Returns whether the batch is full, and the bytes that
    /// left by messages. Requests that were done, and of which nothing leaves, count as a line each: there may be more.
    fn transmit_slot(
        &mut self,
        now: Instant,
        slot: u32,
        tx: &mut TxBatch,
        network: &mut Network,
    ) -> (bool, usize) {
        let Some(entry) = self.qps.at_mut(slot) else { return (false, 0) };
        let mut burst = BURST_PACKETS;
        if let Some(pace) = &entry.res.pace {
            let room = pace.room(now);
            if room == 0 {
                self.paced.wait(slot, pace);
                return (false, 0);
            }
            burst = (room / PACED_PACKET).clamp(1, BURST_PACKETS as u64) as usize;
        }
        entry.ready = false;
        if entry.machine.uses_messages() {
            return (false, self.transmit_messages(now, slot, burst, network));
        }
        let QpEntry { machine, res, .. } = &mut **entry;
        let (path, before, oldest) = (res.path, tx.len_bytes(), res.sq.head());
        let mut host = QpHost::new(res, &mut self.tables, &self.ahs);
        let mut sink = Sink { batch: tx, path, ahs: &self.ahs, full: false, network: Some(network) };
        let sent = machine.poll_transmit(now, &mut host, &mut sink, burst);
        if sent > 0
            && !sink.full
            && machine.ack_owed().is_some()
            && machine.poll_ack(now, &mut host, &mut sink)
        {
            entry.ack_since = entry.ack_since.map(|_| LISTED);
        }
        let full = sink.full;
        if let Some(pace) = &entry.res.pace {
            pace.spend_of_queue_pair(now, tx.len_bytes() - before);
        }
        let done = if sent > 0 { 0 } else { done_since(entry, oldest) };
        self.counters.tx_requests_and_responses += sent as u64;
        self.settle(slot);
        (full, done)
    }

    /// Puts the queue pairs of overrun completion queues in error, and shows all completions.
    pub(crate) fn finish(&mut self, now: Instant) {
        while let Some(cq) = self.tables.overrun_cqs.pop() {
            let is_context = |e: &QpEntry| e.machine.qp_type() == QpType::Eec;
            let users = |e: &QpEntry| !is_context(e) && (e.res.send_cq == cq || e.res.recv_cq == cq);
            let slots: Vec<u32> = self.qps.iter().filter(|(_, e)| users(e)).map(|(i, _)| i).collect();
            for slot in slots {
                self.recall(slot);
                let entry = self.qps.at_mut(slot).expect("listed just now");
                let QpEntry { machine, res, .. } = &mut **entry;
                machine.fail(now, &mut QpHost::new(res, &mut self.tables, &self.ahs));
                self.settle(slot);
            }
        }
        self.tables.finish();
        while let Some((at, cq)) = self.tables.held_back.pop() {
            self.timers.push(Reverse((at, CQ_TIMER | cq)));
        }
    }
}

/// The bytes that count as sent for the requests that were done since this one was the oldest.
#[inline]
fn done_since(entry: &QpEntry, oldest: u32) -> usize {
    entry.res.sq.head().wrapping_sub(oldest) as usize * LINE_BYTES
}

/// The header that precedes a datagram in its buffer: over IPv6 the IP header, over IPv4 20 zeros and
/// the IP header.
pub(crate) fn write_grh(rx: &RxPacket<'_>, grh: &mut [u8; 40]) {
    let udp_len = (UdpHeader::BYTES + rx.bytes.len() + ICRC_BYTES) as u16;
    let PacketHeader { src, dst, traffic_class, hop_limit, .. } = rx.header;
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut ip = Ipv4Header::new(src, dst, udp_len + Ipv4Header::BYTES as u16);
            (ip.tos, ip.ttl) = (traffic_class, hop_limit);
            grh[20..].copy_from_slice(bytemuck::bytes_of(&ip.with_checksum()));
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            *grh = bytemuck::cast(Ipv6Header::new(src, dst, udp_len, traffic_class, 0, hop_limit));
        }
        _ => unreachable!("a fabric has addresses of one family"),
    }
}

/// A queue pair left the tables: nothing of it may be found by index any more.
impl Core {
    pub(crate) fn forget(&mut self, slot: u32) {
        self.ready.retain(|s| *s != slot);
        self.acks.retain(|s| *s != slot);
        self.paced.forget(slot);
        self.dormant.forget(slot);
        (self.ready_grouped, self.ready_blocked) = (0, 0);
        (self.acks_blocked, self.acks_held) = (0, 0);
    }
}

const _: fn() = || {
    fn send<T: Send>() {}
    send::<Engine>();
    send::<Arc<QpShared>>();
};
