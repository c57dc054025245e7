//! The receiving side: the choice of rings to poll, and taking packets from them.

use core::cmp::Reverse;
use std::time::Duration;

use super::access::Reach;
use super::bell::BITS;
use super::fabric::ShmFabric;
use super::link::{Called, Link, Links, Stage, send_wake};
use super::peer::PeerName;
use super::ring::{Garbage, What};
use super::rounds::{HOT_RINGS, MAX_POLLED};
use super::shown::header;
use super::sink::ShmSink;
use crate::{Direction, RxBudget, RxOutcome, RxPacket};

/// Packets taken from a ring before the next one has its turn.
const QUANTUM_PACKETS: usize = 64;
/// How long a ring stays polled for nothing while others are not idle.
const HOT_FOR: Duration = Duration::from_millis(10);
/// Rings that are not polled and are looked at each tick nevertheless.
const SCANNED: u32 = 8;

/// How the taking of packets from a ring ended.
enum Taken {
    /// It is empty.
    All,
    /// There may be more.
    Some,
}

/// Parks a ring, and calls its producer if it waits for the credits that this gives.
fn park(links: &mut Links, slot: u32, local: PeerName) -> Called {
    let Some(link) = links.get_mut(slot) else { return Called::Awake };
    if let Some(rx) = &mut link.rx {
        rx.park();
    }
    link.call_for_credits(|socket| send_wake(socket, local))
}

impl ShmFabric {
    /// Adds a ring to those that are polled each turn.
    pub(super) fn poll_from_now_on(&mut self, slot: u32) {
        let Some(link) = self.links.get_mut(slot).filter(|l| l.unproven.is_none()) else { return };
        let Some(rx) = &mut link.rx else { return };
        rx.note_call();
        link.last_input = self.now;
        if !link.polled {
            link.polled = true;
            self.rounds.polled.push(slot);
            self.counters.rings_unparked += 1;
        }
    }

    /// Takes the calls of producers whose rings are not polled.
    #[inline(never)]
    pub(super) fn answer_calls(&mut self) {
        let mut called = std::mem::take(&mut self.rounds.called);
        called.clear();
        let slots = self.links.slots();
        self.doorbells.take(|bit| called.extend((bit..slots).step_by(BITS as usize)));
        for &slot in &called {
            self.poll_from_now_on(slot);
        }
        self.rounds.called = called;
    }

    /// Takes packets from all rings that are polled, in turns.
    #[inline]
    pub(super) fn poll_rings<S: ShmSink>(&mut self, budget: RxBudget, sink: &mut S) -> RxOutcome {
        let mut outcome = RxOutcome::default();
        let mut bytes = 0;
        let mut busy = true;
        // Another ring is the first each turn.
        let count = self.rounds.polled.len();
        let first = if count > 1 { self.rounds.turn as usize % count } else { 0 };
        while busy {
            busy = false;
            for i in 0..count {
                let at = if first + i < count { first + i } else { first + i - count };
                let Some(&slot) = self.rounds.polled.get(at) else { continue };
                if outcome.packets >= budget.packets || bytes >= budget.bytes {
                    outcome.more = true;
                    return self.after_poll(outcome);
                }
                let left = RxBudget {
                    packets: (budget.packets - outcome.packets).min(QUANTUM_PACKETS),
                    bytes: budget.bytes - bytes,
                };
                match self.poll_ring(slot, left, &mut outcome, &mut bytes, sink) {
                    Ok(Taken::Some) => busy = true,
                    Ok(Taken::All) => {}
                    // The list is shorter now; what moved up has its turn in the next call.
                    Err(why) => self.drop_peer(slot, &why),
                }
            }
        }
        self.after_poll(outcome)
    }

    #[inline]
    fn poll_ring<S: ShmSink>(
        &mut self,
        slot: u32,
        budget: RxBudget,
        outcome: &mut RxOutcome,
        bytes: &mut usize,
        sink: &mut S,
    ) -> Result<Taken, Garbage> {
        let Some(link) = self.links.get_mut(slot) else { return Ok(Taken::All) };
        let Some(rx) = &mut link.rx else { return Ok(Taken::All) };
        let (mut packets, mut taken) = (0, 0);
        let ended = loop {
            if packets >= budget.packets || taken >= budget.bytes {
                break Ok(Taken::Some);
            }
            let (what, lines) = match rx.take(&mut self.record) {
                Ok(Some(found)) => found,
                Ok(None) => break Ok(Taken::All),
                Err(why) => break Err(why),
            };
            packets += 1;
            let packet = self.record.packet();
            taken += packet.len();
            self.counters.rx_lines += u64::from(lines);
            let What::Packet(attributes) = what else {
                self.counters.rx_messages += 1;
                let reach = Reach::new(&mut self.grants.mapped, &mut self.grants.revoked);
                taken += sink.message(link.peer, packet, reach);
                continue;
            };
            self.counters.rx_packets += 1;
            self.counters.rx_bytes += packet.len() as u64;
            let ends = (link.peer.address, self.own.local.address);
            if let Some(shown) = &mut self.shown {
                shown.packet(self.now, Direction::Rx, ends, attributes, packet);
            }
            sink.packet(&RxPacket { header: header(ends, attributes), bytes: packet });
        };
        if packets > 0 {
            link.last_input = self.now;
            outcome.packets += packets;
            *bytes += taken;
            let local = self.own.local;
            self.counters.note_call(link.call_for_credits(|socket| send_wake(socket, local)));
        } else if matches!(link.stage, Stage::Ending) && ended.is_ok() {
            self.rounds.ended += 1;
        }
        self.unmap_revoked();
        ended
    }

    #[inline]
    fn after_poll(&mut self, outcome: RxOutcome) -> RxOutcome {
        if self.rounds.ended > 0 {
            self.remove_ended_links();
        }
        self.park_surplus();
        outcome
    }
    /// Stops polling rings where they have become too many.
    #[inline]
    pub(super) fn park_surplus(&mut self) {
        if self.rounds.polled.len() > MAX_POLLED {
            self.park_idle();
            // The rings with the latest input are the first now.
            self.rounds.look_at = 0;
        }
    }

    /// Links whose peer is gone, and whose ring is empty now.
    #[cold]
    fn remove_ended_links(&mut self) {
        self.rounds.ended = 0;
        let over = |slot: &u32| {
            self.links.get(*slot).is_some_and(|l| matches!(l.stage, Stage::Ending) && !l.has_input())
        };
        let over: Vec<u32> = self.rounds.polled.iter().copied().filter(over).collect();
        for slot in over {
            self.remove_link(slot);
        }
    }

    /// Stops polling the rings that were idle the longest, down to the number that is polled each turn, and those
    /// that were idle for long while others were not.
    pub(super) fn park_idle(&mut self) {
        let links = &mut self.links;
        let last_input = |links: &Links, slot: u32| {
            let link = links.get(slot).expect("what is polled is there");
            // Where there is no peer, nobody could call.
            link.stage.calls().then_some(link.last_input)
        };
        self.rounds.polled.sort_by_key(|&slot| last_input(links, slot).map(Reverse));
        let newest = self.rounds.polled.iter().find_map(|&slot| last_input(links, slot));
        let hot = self.rounds.polled.iter().take(HOT_RINGS).take_while(|&&slot| {
            let idle = last_input(links, slot).zip(newest).map(|(last, newest)| newest.since(last));
            idle.is_none_or(|idle| idle < HOT_FOR)
        });
        let hot = hot.count();
        if hot == self.rounds.polled.len() {
            return;
        }
        for &slot in &self.rounds.polled[hot..] {
            self.counters.note_call(park(links, slot, self.own.local));
        }
        self.own.barrier.on_parking();
        let (mut index, counters) = (0, &mut self.counters);
        self.rounds.polled.retain(|&slot| {
            index += 1;
            let link = links.get_mut(slot).expect("what is polled is there");
            if index <= hot || !link.stage.calls() || link.has_input() {
                return true;
            }
            link.polled = false;
            counters.rings_parked += 1;
            false
        });
    }

    /// Says of all rings that are polled that they are so no more, before sleeping.
    pub(super) fn park_polled(&mut self) {
        for &slot in &self.rounds.polled {
            self.counters.note_call(park(&mut self.links, slot, self.own.local));
        }
    }

    /// Behind the word that this side sleeps, from which on the kernel carries calls: where peers of other users may
    /// have taken calls back, polls the rings that are not and that have something. `true`: there are some.
    pub(super) fn finds_calls_taken_back(&mut self) -> bool {
        if !self.own.domain.admits_others() {
            return false;
        }
        let has = |l: &Link| !l.polled && l.unproven.is_none() && l.has_input();
        let found: Vec<u32> = self.links.iter().filter(|(_, l)| has(l)).map(|(slot, _)| slot).collect();
        for &slot in &found {
            self.counters.rings_found_by_scan += 1;
            self.poll_from_now_on(slot);
        }
        !found.is_empty()
    }

    /// Looks at a few of the rings that are not polled: a peer may have taken back another one's call.
    pub(super) fn scan_parked(&mut self) {
        let slots = self.links.slots();
        if self.rounds.polled.len() >= self.links.len() || slots == 0 {
            return;
        }
        for _ in 0..SCANNED.min(slots) {
            self.rounds.scan_at = (self.rounds.scan_at + 1) % slots;
            if self
                .links
                .get(self.rounds.scan_at)
                .is_some_and(|l| !l.polled && l.unproven.is_none() && l.has_input())
            {
                self.counters.rings_found_by_scan += 1;
                self.poll_from_now_on(self.rounds.scan_at);
            }
        }
    }
}
