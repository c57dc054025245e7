//! The sending side of shared memory.

use std::time::Duration;

use hca_core::Instant;
use hca_core::wire::ICRC_BYTES;

use super::access::Reach;
use super::fabric::ShmFabric;
use super::link::{Stage, send_wake};
use super::memory::LINE;
use super::path::Path;
use super::ring::{Attributes, Garbage, Producer, Refusal};
use crate::{Direction, PathId, Train, TxBatch};

/// How long a full ring is waited for. Behind it stand packets to other peers.
const FULL_PATIENCE: Duration = Duration::from_millis(4);
/// When an address at which nobody was is looked at again.
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// How the sending of a train ended.
enum Sent {
    /// It left, or is lost and counted.
    Done,
    /// The ring is full behind so many packets of it.
    Blocked(usize),
}

/// A sender of messages to one peer.
pub struct ShmTx<'a> {
    producer: &'a mut Producer,
    /// Takes nothing yet, or no more.
    closed: bool,
    garbage: Option<Garbage>,
    /// A message found the ring full.
    full: bool,
    messages: u64,
    lines: u64,
}

impl<'a> ShmTx<'a> {
    fn new(producer: &'a mut Producer, closed: bool) -> Self {
        Self { producer, closed, garbage: None, full: false, messages: 0, lines: 0 }
    }
    /// Reserves room for a message of 12 to 4,220 bytes; the caller has to write every byte. `None`: the ring is full.
    #[inline]
    pub fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.closed {
            return None;
        }
        match self.producer.reserve(len) {
            Ok(room) => Some(room),
            Err(Refusal::Full) => {
                self.full = true;
                None
            }
            Err(Refusal::Garbage(why)) => {
                (self.garbage, self.closed) = (Some(why), true);
                None
            }
        }
    }
    /// The bytes of the ring that messages have taken so far.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.lines as usize * LINE
    }
    /// Publishes the message that was reserved last.
    #[inline]
    pub fn commit(&mut self) {
        self.lines += u64::from(self.producer.commit_message());
        self.messages += 1;
    }
}

impl ShmFabric {
    pub(super) fn send_trains(&mut self, batch: &mut TxBatch) {
        while let Some(&train) = batch.trains().first() {
            match self.send_train(batch, &train) {
                Sent::Done => batch.advance(1),
                Sent::Blocked(packets) => {
                    self.counters.tx_blocked += 1;
                    if let Some(path) = self.paths.get_mut(train.path) {
                        let slot = path.link;
                        self.rounds.note_full(&mut self.links, slot);
                    }
                    if packets > 0 {
                        batch.advance_packets(packets);
                    }
                    return;
                }
            }
        }
    }

    fn send_train(&mut self, batch: &TxBatch, train: &Train) -> Sent {
        let packets = train.packets() as u64;
        let Some(path) = self.paths.get_mut(train.path) else {
            self.counters.tx_lost_closed += packets;
            return Sent::Done;
        };
        let (peer, attributes, mut slot) = (path.peer, path.attributes, path.link);
        if self.links.get(slot).is_none_or(|l| l.peer != peer) {
            let Some(found) = self.find_link(train.path) else {
                self.counters.tx_lost_unreachable += packets;
                return Sent::Done;
            };
            slot = found;
        }
        if self.links.get(slot).is_some_and(|l| l.full_since.is_some()) && !self.hears_welcome(slot) {
            self.counters.tx_lost_gone += packets;
            return Sent::Done;
        }
        let sent = self.send_to(slot, attributes, batch, train);
        self.call_if_due(slot);
        sent
    }

    /// Looks for a welcome where a ring is full: it brings credits along. `false`: the link is gone.
    #[cold]
    fn hears_welcome(&mut self, slot: u32) -> bool {
        if self.links.get(slot).is_some_and(|l| matches!(l.stage, Stage::Asking(_))) {
            self.hear_link(slot);
        }
        self.links.get(slot).is_some()
    }

    /// The link of a path, which may have to be made; not too often where nobody is.
    #[cold]
    fn find_link(&mut self, id: PathId) -> Option<u32> {
        let now = self.now;
        let path = self.paths.get_mut(id)?;
        let peer = path.peer;
        let known = self.links.find(peer);
        if known.is_none() && now < path.retry_at {
            return None;
        }
        // Who comes to an address of the network after a peer has left is another one.
        let made = || if self.own.domain.is_on_network() { None } else { self.link_to(peer).ok().flatten() };
        let link = known.or_else(made);
        let path = self.paths.get_mut(id).expect("found above");
        match link {
            Some(slot) => path.link = slot,
            None => path.retry_at = now + RETRY_AFTER,
        }
        link
    }

    fn send_to(&mut self, slot: u32, attributes: Attributes, batch: &TxBatch, train: &Train) -> Sent {
        let link = self.links.get_mut(slot).expect("found by the caller");
        let total = train.packets();
        if matches!(link.stage, Stage::Ending) {
            self.counters.tx_lost_gone += total as u64;
            return Sent::Done;
        }
        for (k, sealed) in batch.bytes(train).chunks(train.segment).enumerate() {
            let start = train.start + k * train.segment;
            if batch.flip_within(start..start + sealed.len()).is_some() {
                self.counters.tx_lost_damaged += 1;
                continue;
            }
            let packet = &sealed[..sealed.len() - ICRC_BYTES];
            let lines = match link.tx.push(attributes, packet) {
                Ok(lines) => lines,
                Err(Refusal::Full) if link.is_worth_waiting_for(self.now, FULL_PATIENCE) => {
                    return Sent::Blocked(k);
                }
                Err(Refusal::Full) => {
                    self.counters.tx_lost_full += (total - k) as u64;
                    return Sent::Done;
                }
                Err(Refusal::Garbage(why)) => {
                    self.counters.tx_lost_gone += (total - k) as u64;
                    self.drop_peer(slot, &why);
                    return Sent::Done;
                }
            };
            link.full_since = None;
            self.counters.tx_packets += 1;
            self.counters.tx_bytes += packet.len() as u64;
            self.counters.tx_lines += u64::from(lines);
            if let Some(shown) = &mut self.shown {
                let ends = (self.own.local.address, link.peer.address);
                shown.packet(self.now, Direction::Tx, ends, attributes, packet);
            }
        }
        Sent::Done
    }

    /// Calls `send`, which may write messages to the peer of a path and access memory that peers have granted, and then
    /// calls the peer if messages were sent and it does not poll. `None`: there is no link now.
    #[inline]
    pub fn send_messages<R>(
        &mut self,
        now: Instant,
        path: PathId,
        send: impl FnOnce(&mut ShmTx<'_>, Reach<'_>) -> R,
    ) -> Option<R> {
        self.now = now;
        let &mut Path { peer, link: mut slot, .. } = self.paths.get_mut(path)?;
        if self.links.get(slot).is_none_or(|l| l.peer != peer) {
            slot = self.find_link(path)?;
        }
        let link = self.links.get_mut(slot).expect("found above");
        if matches!(link.stage, Stage::Ending) {
            return None;
        }
        if link.unproven.is_some() {
            return Some(self.send_later(slot, send));
        }
        let mut tx = ShmTx::new(&mut link.tx, false);
        let result = send(&mut tx, Reach::new(&mut self.grants.mapped, &mut self.grants.revoked));
        let ShmTx { garbage, full, messages, lines, .. } = tx;
        if full {
            self.counters.tx_messages_blocked += 1;
            self.rounds.note_full(&mut self.links, slot);
        }
        self.counters.tx_messages += messages;
        self.counters.tx_lines += lines;
        self.unmap_revoked();
        match garbage {
            Some(why) => self.drop_peer(slot, &why),
            // Requests that were done directly need nobody.
            None if lines > 0 => self.call_if_due(slot),
            None => {}
        }
        Some(result)
    }

    /// Has `send` find no room, since the peer has yet to prove its address.
    #[cold]
    fn send_later<R>(&mut self, slot: u32, send: impl FnOnce(&mut ShmTx<'_>, Reach<'_>) -> R) -> R {
        self.shorten_proof_deadline(slot);
        let link = self.links.get_mut(slot).expect("found by the caller");
        let mut tx = ShmTx::new(&mut link.tx, true);
        let result = send(&mut tx, Reach::new(&mut self.grants.mapped, &mut self.grants.revoked));
        self.unmap_revoked();
        result
    }

    /// Calls the peer of a link if it does not poll.
    #[inline]
    pub(super) fn call_if_due(&mut self, slot: u32) {
        let local = self.own.local;
        if let Some(link) = self.links.get_mut(slot) {
            self.counters.note_call(link.call_if_due(|socket| send_wake(socket, local)));
        }
    }
}
