//! The engine's part for peers on this machine: messages, and direct accesses to the peers' memory.

use core::net::IpAddr;

use hca_core::{Access, AhHandle, Instant, Payload, QpHandle, Qpn, SendFlags, SendWr};
use hca_fabric::{Found, Glance, PeerName, Reach, RxBudget, RxPacket, ShmFabric, ShmSink, ShmTx};
use hca_transport::TxSink;

use crate::clock;
use crate::direct::list::Piece;
use crate::direct::ops::Op;
use crate::engine::host::QpHost;
use crate::engine::lines::send_lines;
use crate::engine::{
    AckRule, BURST_PACKETS, Core, Engine, LINE_BYTES, LISTED, MAX_PIECES, TURN_BYTES, TURN_LINES,
    TURN_PACKETS, done_since, short_turns,
};
use crate::limits::slot_of;
use crate::network::Network;
use crate::objects::direct::{PostersLane, with_room_for};
use crate::objects::dormant::Dormancy;
use crate::objects::machine::Machine;
use crate::objects::parts::local;
use crate::objects::qp::QpEntry;
use crate::objects::qp_shared::QpShared;
use crate::objects::send_queue::SendQueue;
use crate::objects::slab::Slab;
use crate::objects::tables::{Ah, Tables};
use crate::queues::doorbell::Doorbell;

/// Gives a queue pair's messages to a ring.
pub(super) struct MessageSink<'a, 'b> {
    pub(super) tx: &'a mut ShmTx<'b>,
    pub(super) full: bool,
}

impl TxSink for MessageSink<'_, '_> {
    #[inline]
    fn reserve(&mut self, _: Option<AhHandle>, len: usize) -> Option<&mut [u8]> {
        let room = self.tx.reserve(len);
        self.full = room.is_none();
        room
    }
    #[inline]
    fn commit(&mut self) {
        self.tx.commit();
    }
}

/// What a turn has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Nothing,
    /// Something stands in this ring.
    Ring(Found),
    /// Something else is to be done for peers on this machine.
    Near,
    /// Everything is to be looked at.
    All,
}

/// What comes by shared memory.
struct Arrivals<'a> {
    core: &'a mut Core,
    now: Instant,
}

impl ShmSink for Arrivals<'_> {
    #[inline]
    fn packet(&mut self, packet: &RxPacket<'_>) {
        self.core.receive(self.now, packet);
    }
    #[inline]
    fn message(&mut self, from: PeerName, message: &[u8], reach: Reach<'_>) -> usize {
        self.core.receive_message(self.now, from, message, reach)
    }
}

impl Engine {
    /// Takes what came by shared memory. Returns the packets and messages.
    #[inline(never)]
    pub(super) fn receive_near(&mut self, now: Instant, budget: RxBudget) -> usize {
        let Some(near) = self.network.near() else { return 0 };
        let core = &mut self.core;
        let packets = near.recv_all(now, budget, &mut Arrivals { core, now }).packets;
        while let Some(peer) = near.next_gone() {
            core.peer_gone(peer);
        }
        while let Some(notice) = near.next_notice() {
            core.heed(notice, near);
        }
        packets
    }

    /// Lets go of a process that has gone from the address, and slot, of a peer's queue pair, before the one that is
    /// there now is met.
    pub(crate) fn part_from_predecessor(&mut self, now: Instant, peer: IpAddr, qpn: Qpn) {
        let budget = RxBudget { packets: TURN_PACKETS, bytes: TURN_BYTES };
        // What it left in its ring is taken, in so many pieces at most.
        for _ in 0..MAX_PIECES {
            if !self.network.near().is_some_and(|near| near.is_predecessor_leaving(peer, qpn)) {
                break;
            }
            self.receive(now, budget);
        }
        self.conclude();
    }

    /// Looks what a turn has to do, which nothing may come before. It costs a few words that others set: what comes by
    /// other ways than shared memory is found by every so manyth turn, and by each that comes some time after the last
    /// whole one.
    #[inline(always)]
    pub(crate) fn look(&mut self, bell: &Doorbell<QpShared>) -> Look {
        if self.short_turns.are_done()
            || !bell.is_empty()
            || !self.tx.is_empty()
            || self.real_time && self.short_turns.are_late()
        {
            return self.begin_short_turns();
        }
        self.short_turns.count();
        let Some(near) = self.network.near() else { return Look::All };
        if let Some(ring) = near.look() {
            return Look::Ring(ring);
        }
        if !near.polls_rings() {
            self.short_turns.end();
            return Look::All;
        }
        if !(self.core.ready.is_empty() && self.core.acks.is_empty()) || near.is_called() {
            return Look::Near;
        }
        if self.real_time { Look::Nothing } else { Look::All }
    }
    /// Brings a poller's glance up to where the engine stands, whose turn found nothing to do. Returns how many looks
    /// are left until a whole turn is due, none where the glance shows nothing, and when the last one began, in ticks.
    #[inline]
    pub(crate) fn renew_glance(&mut self, glance: &mut Glance) -> (u32, u32) {
        if !(self.real_time && self.rests() && self.network.renew_glance(glance)) {
            (0, 0)
        } else if self.network.has_near() {
            self.short_turns.left()
        } else {
            (short_turns::MOST, clock::ticks())
        }
    }
    /// A whole turn is due; short ones follow.
    #[inline(never)]
    fn begin_short_turns(&mut self) -> Look {
        self.short_turns.begin(self.core.turn);
        Look::All
    }

    /// A turn for shared memory alone that begins with the messages of one line in a ring. `None`: a whole turn is due.
    #[inline(always)]
    pub(crate) fn lines_turn(&mut self, ring: Found, acks: AckRule) -> Option<bool> {
        self.core.turn += 1;
        let found = self.network.near()?.take_lines(ring, TURN_LINES, &mut self.core);
        if found.taken == 0 {
            return self.near_turn(acks);
        }
        self.after_lines(found.taken, acks);
        Some(true)
    }

    /// A turn for shared memory alone, with the time of the turn before. `None`: a whole turn is due.
    #[inline(never)]
    pub(crate) fn near_turn(&mut self, acks: AckRule) -> Option<bool> {
        self.core.turn += 1;
        let now = self.core.now;
        let budget = RxBudget { packets: TURN_PACKETS, bytes: TURN_BYTES };
        let received = self.receive_near(now, budget) > 0;
        self.core.settle_touched(None);
        if !self.core.ready.is_empty() {
            self.transmit(now);
        }
        if !self.core.acks.is_empty() {
            self.flush_acks(now, acks);
        }
        self.conclude();
        (received || self.real_time).then_some(received)
    }

    /// The way of a queue pair to the peer's region with this key, if loads and stores reach it, for its poster.
    #[inline(never)]
    pub(crate) fn posters_lane(&mut self, qp: QpHandle, key: u32) -> Option<PostersLane> {
        let Core { qps, tables, .. } = &mut self.core;
        let QpEntry { machine, res, .. } = &mut **qps.get_mut(qp.index, qp.generation)?;
        let word = machine.accesses_at_once()?;
        let mut lane =
            res.direct.as_mut()?.find(key, &tables.regions).ok().filter(|lane| !lane.in_process)?;
        lane.rights = with_room_for(machine.attr().max_rd_atomic, lane.rights);
        PostersLane::new(word, res.send_cq, lane, self.network.near()?)
    }

    /// Does a request of one piece on a peer's memory that is not queued; the caller found the send queue empty and its
    /// lane valid. `None`: nothing was done, and the request is to be queued. Of a WRITE whose local memory the program
    /// has unmapped, a part may be done by then; the completion of the queued request says why. `Some(true)`: the
    /// engine has no more to do than before, and later than before. A request that is not `POSTED` has no completion,
    /// and as many inline bytes as a message may have.
    #[inline(always)]
    pub(crate) fn access<O: Op, const POSTED: bool>(
        &mut self,
        lane: &PostersLane,
        of: &SendQueue,
        wr: &SendWr<'_>,
    ) -> Option<bool> {
        let at = lane.place(O::remote(&wr.op)?, O::RIGHT)?;
        let near = self.network.near()?;
        let tables = &mut self.core.tables;
        let len = match wr.payload {
            Payload::Sges(&[]) if !O::LIST => {
                O::carry_out(&wr.op, &mut lane.enter(near)?, at, &Piece::Inline(&[])).ok()?;
                0
            }
            // One that has no list is refused as it is queued.
            _ if !O::LIST => return None,
            Payload::Inline(bytes) if !O::FETCHES && O::takes(bytes.len() as u32) => {
                if bytes.len() > if POSTED { of.max_inline } else { of.max_message } as usize {
                    return None;
                }
                O::carry_out(&wr.op, &mut lane.enter(near)?, at, &Piece::Inline(bytes)).ok()?;
                bytes.len()
            }
            Payload::Sges(&[entry]) if of.max_sge > 0 && O::takes(entry.len) => {
                let access = if O::FETCHES { Access::LOCAL_WRITE } else { Access::empty() };
                let len = entry.len as usize;
                let piece = Piece::Memory(local(tables, of.pd, entry, access).ok()?, len);
                O::carry_out(&wr.op, &mut lane.enter(near)?, at, &piece).ok()?;
                len
            }
            _ => return None,
        };
        self.short_turns.note_access();
        let opcode = O::opcode(&wr.op);
        of.qp.ops.completed(opcode, len as u32);
        if POSTED && wr.flags.contains(SendFlags::SIGNALED) {
            let byte_len = if O::FETCHES { len as u32 } else { 0 };
            if !tables.complete_shown(lane.send_cq, wr.wr_id, of.qp.handle, opcode, byte_len) {
                self.conclude();
                return Some(false);
            }
        }
        Some(true)
    }

    /// Sends what a queue pair just posted by messages, if nothing else is to be done before. `false`: a turn is due.
    #[inline(never)]
    pub(crate) fn send_at_once(&mut self, bell: &Doorbell<QpShared>, caller: Option<QpHandle>) -> bool {
        if !self.core.ready.is_empty() || !bell.is_empty() {
            return false;
        }
        match (caller, self.network.near()) {
            (Some(qp), Some(near)) => {
                let sent = self.core.send_posted_lines(qp, near) || self.core.send_at_once(qp, near);
                // What failed is noted, and shown, by the turn.
                if sent {
                    self.conclude_completions();
                }
                sent
            }
            _ => false,
        }
    }
}

impl Core {
    /// One message of a peer on this machine.
    #[inline(always)]
    pub(crate) fn receive_message(
        &mut self,
        now: Instant,
        from: PeerName,
        message: &[u8],
        reach: Reach<'_>,
    ) -> usize {
        let Some(qpn) = hca_transport::dest_of(message) else { return 0 };
        let slot = slot_of(qpn.raw());
        let Some(entry) = self.qps.at_mut(slot).filter(|e| e.machine.qpn() == qpn) else {
            self.counters.rx_unknown_qp += 1;
            return 0;
        };
        if entry.res.near_peer != Some(from) {
            self.counters.rx_foreign_source += 1;
            return 0;
        }
        if entry.dormancy != Dormancy::Awake {
            self.keep_message(slot, from, message);
            return 0;
        }
        let QpEntry { machine, res, .. } = &mut **entry;
        let mut host = QpHost::new(res, &mut self.tables, &self.ahs).reaching(reach);
        machine.handle_message(now, message, &mut host);
        let moved = core::mem::take(&mut host.res.direct_work.moved);
        if self.touched != Some(slot) {
            self.settle_touched(Some(slot));
        }
        moved
    }

    /// The process of this name has gone, and every connection by messages with it.
    #[cold]
    fn peer_gone(&mut self, peer: PeerName) {
        let of_peer = |e: &QpEntry| e.machine.uses_messages() && e.res.near_peer == Some(peer);
        let slots: Vec<u32> = self.qps.iter().filter(|(_, e)| of_peer(e)).map(|(i, _)| i).collect();
        for slot in slots {
            let entry = self.qps.at_mut(slot).expect("listed just now");
            let QpEntry { machine, res, .. } = &mut **entry;
            res.sq.refresh();
            machine.peer_gone(&mut QpHost::new(res, &mut self.tables, &self.ahs));
            self.settle(slot);
        }
    }

    /// As [`transmit_messages`](Self::transmit_messages) for requests that were just posted, without the engine's
    /// lists. The time is that of the last turn, which only makes timers look too early.
    #[inline]
    fn send_at_once(&mut self, qp: QpHandle, near: &mut ShmFabric) -> bool {
        let now = self.now;
        let Some(entry) = self.qps.get_mut(qp.index, qp.generation) else { return false };
        // What a pace may hold up is for a turn.
        if entry.res.pace.is_some() || !entry.machine.may_send_messages() {
            return false;
        }
        entry.res.sq.refresh();
        let sent = exchange(entry, (&mut self.tables, &self.ahs), now, near, |machine, host, sink| {
            machine.send_messages(now, host, sink, BURST_PACKETS)
        });
        // What can't leave now, or failed, is for a turn.
        let is_all = sent == Some(true);
        let deadline = entry.machine.next_deadline().filter(|_| is_all);
        if deadline.is_some_and(|at| entry.timer.is_none_or(|t| at < t)) {
            self.settle(qp.index);
        }
        self.ask_if_due(qp.index, near);
        is_all
    }

    /// Lets a queue pair send messages; returns the bytes that left, or those that count for what was done without.
    #[inline]
    pub(super) fn transmit_messages(
        &mut self,
        now: Instant,
        slot: u32,
        burst: usize,
        network: &mut Network,
    ) -> usize {
        let Some(entry) = self.qps.at_mut(slot) else { return 0 };
        let Some(near) = network.near() else { return 0 };
        let oldest = entry.res.sq.head();
        let lines = send_lines(entry, &self.tables, now, near, burst).count;
        let sent = exchange(entry, (&mut self.tables, &self.ahs), now, near, |machine, host, sink| {
            machine.poll_transmit(now, host, sink, burst - lines);
            sink.tx.bytes() + core::mem::take(&mut host.res.direct_work.moved) + lines * LINE_BYTES
        });
        let QpEntry { machine, res, .. } = &mut **entry;
        match (sent, &res.pace) {
            (None, _) => machine.unreachable(now, &mut QpHost::new(res, &mut self.tables, &self.ahs)),
            (Some(sent), Some(pace)) => pace.spend_of_queue_pair(now, sent),
            (Some(_), None) => {}
        }
        let made = sent.filter(|sent| *sent > 0).unwrap_or_else(|| done_since(entry, oldest));
        self.ask_if_due(slot, near);
        self.settle(slot);
        made
    }

    /// Asks a queue pair's peer what the requests just tried need to know.
    #[inline(always)]
    fn ask_if_due(&mut self, slot: u32, near: &mut ShmFabric) {
        let due = self.qps.at(slot).filter(|e| e.res.direct_work.asks_peer());
        if let Some(path) = due.and_then(|e| e.res.path) {
            self.ask(slot, path, near);
        }
    }
}

/// Lets a queue pair send messages by `send`, which may reach its peer's memory. `None`: nobody is at its path.
#[inline(always)]
fn exchange<R>(
    entry: &mut QpEntry,
    (tables, ahs): (&mut Tables, &Slab<Ah>),
    now: Instant,
    near: &mut ShmFabric,
    send: impl FnOnce(&mut Machine, &mut QpHost<'_>, &mut MessageSink<'_, '_>) -> R,
) -> Option<R> {
    let QpEntry { machine, res, ack_since, .. } = entry;
    let path = res.path?;
    let sent = near.send_messages(now, path, |tx, reach| {
        let mut host = QpHost::new(res, tables, ahs).reaching(reach);
        send(machine, &mut host, &mut MessageSink { tx, full: false })
    });
    if res.link.is_none() {
        res.link = near.link_of(path);
    }
    if machine.ack_owed().is_none() {
        *ack_since = ack_since.map(|_| LISTED);
    }
    sent
}
