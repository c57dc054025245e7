//! The end of connections: at once for the users of the node, and for the device when it has released the queue pairs.

use std::fmt;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use hca_core::{Completion, DeviceError};
use hca_matching::NiFail;

use super::device_work::{DeviceWork, Held, Which};
use super::interface::NiState;
use super::peer::{Fetched, Lending, Peer};
use super::{Clock, Node, State};
use crate::memory::Pieces;

/// An interface that is closed beside others waits so long for the answers to its operations.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// A connection that is no more, and whose memory the device may still touch.
pub(super) struct Leaving {
    pub(super) peer: Box<Peer>,
    /// Receive slots of its that a poll has yielded since it left: the device may name them once more.
    polled: Vec<u32>,
}

/// The number of connections that have ended, for threads that wait for it.
#[derive(Default)]
pub(super) struct Departures {
    count: Mutex<u64>,
    more: Condvar,
}

impl Departures {
    fn count(&self) -> u64 {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn notify(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.more.notify_all();
    }
    fn wait_beyond(&self, seen: u64) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.more.wait_while(count, |count| *count == seen));
    }
}

impl Node {
    /// Closes an interface: its operations under way end, with their connections, which other interfaces may use: so it
    /// waits for them a while where others are open. On return the device touches no memory for it.
    pub(crate) fn close_ni(&self, ni: u8) {
        if self.inner.fork.is_child() {
            return;
        }
        let shares = self.with(|state| {
            state.ni(ni).close();
            state.nis.iter().flatten().count() > 1
        });
        // A clock of a simulation stands still while this thread waits.
        if shares && matches!(self.inner.clock, Clock::System(_)) {
            // One that is not answered by then takes its connection along.
            let _ = self.wait(Some(LAST_ANSWERS), |state| Ok((!state.has_any_of(ni)).then_some(())));
        }
        self.with(|state| state.begin_close(ni));
        loop {
            let seen = self.inner.departures.count();
            // Another thread may be seeing one off.
            if self.with(|state| !state.leaving.values().any(|leaving| leaving.peer.has_any_of(ni))) {
                break;
            }
            self.inner.departures.wait_beyond(seen);
        }
        // Its memory is given back to the device outside of the lock.
        drop(self.with(|state| state.end_close(ni)));
    }
}

impl State {
    /// Whether something of an interface is under way.
    fn has_any_of(&self, ni: u8) -> bool {
        self.net.peers.iter().flatten().any(|of| of.has_any_of(ni))
    }
    fn begin_close(&mut self, ni: u8) {
        for peer in 0..self.net.peers.len() as u32 {
            if self.net.peers[peer as usize].as_ref().is_some_and(|of| of.has_any_of(ni)) {
                self.lost(peer, &"an interface is closed");
            }
        }
    }
    fn end_close(&mut self, ni: u8) -> Option<Box<NiState>> {
        self.net.bundles -= self.ni(ni).bundles;
        self.nis[ni as usize].take()
    }

    /// A connection has failed.
    #[cold]
    pub(super) fn lost(&mut self, peer: u32, why: &dyn fmt::Display) {
        let id = self.peer(peer).identity;
        tracing::debug!(nid = id.nid.0, pid = id.pid.0, %why, "a Portals connection is lost");
        self.counts.lost += 1;
        self.drop_peer(peer);
    }
    /// A peer does not keep to the rules.
    #[cold]
    pub(super) fn malformed(&mut self, peer: u32, why: &dyn fmt::Display) {
        let id = self.peer(peer).identity;
        tracing::warn!(nid = id.nid.0, pid = id.pid.0, %why, "a Portals peer is disconnected");
        self.counts.malformed += 1;
        self.lost(peer, why);
    }
    /// A peer said goodbye.
    pub(super) fn gone(&mut self, peer: u32) {
        self.drop_peer(peer);
    }
    /// Ends a connection. Its operations under way end once the device has released its queue pair.
    pub(super) fn drop_peer(&mut self, peer: u32) {
        let Some(mut gone) = self.net.peers[peer as usize].take() else { return };
        self.found = true;
        let id = (gone.identity.nid, gone.identity.pid);
        self.by_process.remove(&id);
        // One that comes in its place has datagrams elsewhere.
        if id != (self.identity.nid, self.identity.pid) && self.cards.contains_key(&id) {
            self.stale.insert(id);
        }
        for of_ni in self.nis.iter_mut().flatten() {
            of_ni.last = None;
        }
        if self.by_rank.get(&gone.identity.rank) == Some(&peer) {
            self.by_rank.remove(&gone.identity.rank);
        }
        let which = Which { peer, attempt: gone.attempt };
        // A queue pair that belongs to device work ends when the work is concluded.
        self.queued_work.extend(gone.qp.take().map(|qp| DeviceWork::End { which, qp }));
        self.leaving.insert(which.attempt, Leaving { peer: gone, polled: Vec::new() });
    }
    /// A poll has yielded a receive slot of a connection that is no more.
    #[cold]
    pub(super) fn polled_late(&mut self, wc: &Completion, slot: u32) {
        if let Some(of) = self.leaving.values_mut().find(|of| of.peer.handle == Some(wc.qp)) {
            of.polled.push(slot);
        }
    }
    /// The device touches nothing of a connection any more, and yields nothing of it but these receive slots.
    pub(super) fn ended(&mut self, which: Which, slots: Result<Vec<u64>, DeviceError>) {
        let Some(Leaving { peer: mut gone, polled }) = self.leaving.remove(&which.attempt) else { return };
        self.net.in_use -= gone.outstanding();
        match slots {
            Ok(slots) => {
                let slots = slots.into_iter().map(|slot| slot as u32).filter(|slot| !polled.contains(slot));
                slots.for_each(|slot| self.net.ports.used(slot));
            }
            Err(error) => {
                self.departures.notify();
                return self.device_failed(&error);
            }
        }
        self.queued_work.extend(gone.to.take().map(|path| DeviceWork::LetGo(Held::Path(path))));
        for (_, slot) in gone.slots {
            self.net.ports.free_slot(slot);
        }
        self.free_peers.push(which.peer);
        for fetch in gone.fetches.drain() {
            match fetch.whose {
                Fetched::Put { ni, delivery, .. } => {
                    let _ = self.ni(ni).complete(delivery, NiFail::Undeliverable);
                    self.after(ni);
                }
                Fetched::Reply { flying, .. } => self.undeliverable(flying),
            }
        }
        for Lending { ni, delivery } in gone.lendings.drain() {
            let _ = self.ni(ni).complete(delivery, NiFail::Undeliverable);
            self.after(ni);
        }
        for flying in gone.flying.drain().into_iter().chain(gone.waiting) {
            self.undeliverable(flying);
        }
        self.found = true;
        self.give_back_slots();
        let freed: Vec<u32> = self.blocked.drain(..).collect();
        for other in freed {
            if let Some(of) = self.net.peers[other as usize].as_mut() {
                of.blocked = false;
            }
            self.ready.push(other);
        }
        self.departures.notify();
    }

    /// Releases memory: a wait, if needed, is left for after the lock.
    #[inline]
    pub(super) fn let_go(&mut self, memory: Pieces) {
        self.queued_work.extend(Held::of_pieces(memory).map(DeviceWork::LetGo));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn who_waits_for_a_departure_goes_on_behind_the_next() {
        let departures = Departures::default();
        departures.notify();
        departures.notify();
        assert_eq!(departures.count(), 2);
        // One has come meanwhile.
        departures.wait_beyond(1);
        let told = AtomicBool::new(false);
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                departures.wait_beyond(2);
                assert!(told.load(Ordering::Relaxed), "it was not waited for");
            });
            // Time to do so too early.
            (0..1000).take_while(|_| !waits.is_finished()).for_each(|_| thread::yield_now());
            told.store(true, Ordering::Relaxed);
            departures.notify();
        });
        assert_eq!(departures.count(), 3);
    }
}
