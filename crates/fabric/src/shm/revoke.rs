//! Taking back what was granted, so that nothing changes afterwards.
//!
//! A peer that keeps the protocol is out of an access within the copy of 256 KiB, unless its process was stopped or
//! is not run. Who is not out in time is dropped: it may go on for as long as that one access lasts, in memory that it
//! has mapped for writing. So that memory gets private copies of its pages in the place of the shared ones; before
//! that, all other peers' accesses to it are ended in the same way.

use std::time::{Duration, Instant as Clock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::bracket::{Seen, seen};
use super::fabric::ShmFabric;
use super::grant::{GrantError, LinkId, Notice, Revocation};
use super::link::Stage;
use super::note::{Note, Place};
use super::pages::SharedPages;

/// How long a peer may be within an access to memory that is taken back.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);
/// Looks at the in-use words before the processor is given to others, one of whom may be waited for.
const SPINS: u32 = 200;
/// How long one sleeps between looks, once giving way has not helped.
const NAP: Duration = Duration::from_micros(50);

/// A peer within an access that has to end.
struct Inside {
    slot: u32,
    seen: Seen,
}

impl ShmFabric {
    /// Takes the region of a key back from all peers. When this returns, no access by that key is under way and none
    /// will be. A peer that is within one for 100 ms is dropped; if it could write, then the region's memory is made
    /// private in place, so that what it does later is not seen here.
    ///
    /// A key that was never granted costs a look into a table. What was lent by it to be fetched from this process is so
    /// no more, and nobody is waited for.
    pub fn revoke(&mut self, key: u32) -> Revocation {
        self.end_loans(key);
        match self.grants.slot_of(key) {
            Some(slot) => self.take_back(vec![slot], None),
            None => Revocation::default(),
        }
    }

    /// Publishes another word of a queue pair, and returns only once no access under the old one is under way from
    /// the peer that it is connected to. A peer that stays in one for 100 ms is dropped, as by
    /// [`revoke`](Self::revoke).
    ///
    /// # Panics
    /// If `slot` is not below [`MAX_QP_WORDS`](crate::MAX_QP_WORDS).
    pub fn withdraw_qp_word(&mut self, peer: LinkId, slot: u32, word: u64) -> Result<Revocation, GrantError> {
        // A page that is not there holds zeros, which the peer sees as well.
        if self.own_qp_word(slot) == word {
            return Ok(Revocation::default());
        }
        self.set_qp_word(slot, word)?;
        let link = self.links.by_token(peer.token());
        let holds = link.and_then(|l| self.links.get(l)).is_some_and(|l| !l.direct.held.is_empty());
        Ok(if holds { self.take_back(Vec::new(), link) } else { Revocation::default() })
    }

    /// Takes regions back, and waits for the end of accesses to them, and of any access of one peer.
    fn take_back(&mut self, mut regions: Vec<u32>, peer: Option<u32>) -> Revocation {
        if self.chance.as_ref().is_some_and(|c| c.is_killed()) {
            return Revocation::default();
        }
        let deadline = Clock::now() + PATIENCE;
        let mut peer = peer;
        let mut taken = Vec::new();
        let mut stuck: Vec<u32> = Vec::new();
        let mut private: Vec<SharedPages> = Vec::new();
        loop {
            for &region in &regions {
                self.grants.end_generation(region);
            }
            self.barrier.on_parking();
            let inside = self.inside(&regions, peer.take(), &stuck);
            taken.append(&mut regions);
            for i in self.wait_for(inside, deadline) {
                stuck.push(i.slot);
                // What it is within may change later on, if it can write there.
                let within = i.seen.region().and_then(|r| self.grants.region(r));
                let held = within.filter(|r| r.holders.iter().any(|(l, _)| *l == i.slot));
                let writable = held.filter(|r| r.is_writable()).map(|r| r.pages.clone());
                if let Some(pages) = writable.filter(|p| !private.iter().any(|q| q.is(p))) {
                    private.push(pages);
                }
            }
            // Who is dropped loses all that it holds, and from memory that becomes private all are kept out.
            let lost = self.grants.regions().filter(|(_, r)| {
                r.holders.iter().any(|(l, _)| stuck.contains(l)) || private.iter().any(|p| p.is(&r.pages))
            });
            regions = lost.map(|(slot, _)| slot).filter(|slot| !taken.contains(slot)).collect();
            if regions.is_empty() {
                break;
            }
        }
        self.finish(&taken, &stuck, &private)
    }

    /// Who is within one of these regions, or, of this peer, within any.
    fn inside(&self, regions: &[u32], peer: Option<u32>, stuck: &[u32]) -> Vec<Inside> {
        let holders = regions.iter().filter_map(|&r| self.grants.region(r)).flat_map(|r| &r.holders);
        let mut links: Vec<u32> = holders.map(|(link, _)| *link).chain(peer).collect();
        links.sort_unstable();
        links.dedup();
        let look = |slot: u32| {
            let side = self.links.get(slot)?.direct.peer.as_ref()?;
            let seen = seen(&side.outbox, side.in_use_at);
            let concerns = seen.region().is_some_and(|r| peer == Some(slot) || regions.contains(&r));
            concerns.then_some(Inside { slot, seen })
        };
        links.into_iter().filter(|l| !stuck.contains(l)).filter_map(look).collect()
    }

    /// Waits until they are out, or dead; returns who is not out in time.
    fn wait_for(&self, mut inside: Vec<Inside>, deadline: Clock) -> Vec<Inside> {
        let mut spins = 0;
        loop {
            inside.retain(|i| {
                let side = self.links.get(i.slot).and_then(|l| l.direct.peer.as_ref());
                side.is_some_and(|s| seen(&s.outbox, s.in_use_at) == i.seen)
            });
            if inside.is_empty() {
                return inside;
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            inside.retain(|i| !self.is_dead(i.slot));
            if inside.is_empty() || Clock::now() >= deadline {
                return inside;
            }
            if spins < 2 * SPINS { std::thread::yield_now() } else { std::thread::sleep(NAP) }
        }
    }

    /// Whether nobody is at the other end of a link's socket. The kernel closes a dead process's descriptors after it
    /// has taken its memory away, and so when none of its threads runs there any more.
    pub(super) fn is_dead(&self, slot: u32) -> bool {
        let Some(Stage::Up(socket)) = self.links.get(slot).map(|l| &l.stage) else { return true };
        let mut fds = [PollFd::new(socket, PollFlags::empty())];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&none)).is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// All are out, or stuck: makes memory private, tells holders, forgets regions, drops peers.
    fn finish(&mut self, taken: &[u32], stuck: &[u32], private: &[SharedPages]) -> Revocation {
        let mut exposed = false;
        for pages in private {
            match pages.make_private() {
                Ok(()) => self.counters.regions_made_private += 1,
                Err(why) => {
                    let bytes = pages.len();
                    tracing::error!(%why, bytes, "no memory to copy pages to that a dropped peer may change");
                    // Nothing else may ever stand there.
                    std::mem::forget(pages.clone());
                    exposed = true;
                }
            }
        }
        for &slot in taken {
            let generation = self.grants.generation(slot).wrapping_sub(1);
            let Some(region) = self.grants.forget(slot) else { continue };
            self.counters.grants_revoked += region.holders.len() as u64;
            for (holder, _) in region.holders {
                let Some(link) = self.links.get_mut(holder) else { continue };
                link.direct.held.retain(|s| *s != slot);
                let peer = LinkId::new(self.links.token(holder));
                let place = Place { region: slot, generation, offset: 0 };
                self.send_note(peer, Note::Revoked { key: region.key, place }, None);
            }
        }
        let mut dropped = Vec::new();
        for &slot in stuck {
            dropped.push(LinkId::new(self.links.token(slot)));
            let peer = self.links.get(slot).map(|l| l.peer);
            tracing::warn!(
                ?peer,
                "a peer that stayed within an access to memory that was taken back is dropped"
            );
            self.counters.peers_dropped_stuck += 1;
            self.end(slot);
        }
        Revocation { dropped, private: !private.is_empty() && !exposed, exposed }
    }

    /// Takes back all that a peer holds, before the link to it is cut though it lives.
    pub(super) fn take_back_from(&mut self, slot: u32) {
        let Some(link) = self.links.get_mut(slot) else { return };
        let held = std::mem::take(&mut link.direct.held);
        if !held.is_empty() {
            self.take_back(held, None);
        }
    }

    /// A peer is gone, and with it all grants in either direction.
    pub(super) fn part_grants(&mut self, slot: u32) {
        let peer = LinkId::new(self.links.token(slot));
        let Some(link) = self.links.get_mut(slot) else { return };
        let known = link.direct.known;
        let direct = std::mem::take(&mut link.direct);
        self.grants.questions -= direct.asked.len();
        for region in direct.held {
            self.leave_region(slot, region, u32::MAX);
        }
        while let Some(grant) = self.grants.mapped.of_link(peer) {
            self.grants.mapped.remove(grant);
        }
        self.grants.mapped.processes.forget(peer);
        if known {
            self.notify(peer, Notice::LinkGone { link: peer });
        }
    }

    /// A peer lets go of what it was granted so many times.
    pub(super) fn be_left(&mut self, peer: LinkId, key: u32, times: u32) {
        let Some(region) = self.grants.slot_of(key) else { return };
        let Some(link) = self.links.get_mut(peer.slot()) else { return };
        if link.direct.held.contains(&region) && self.leave_region(peer.slot(), region, times) {
            if let Some(link) = self.links.get_mut(peer.slot()) {
                link.direct.held.retain(|r| *r != region);
            }
            self.notify(peer, Notice::GrantLeft { link: peer, key });
        }
    }

    /// `true`: the peer holds the region no more. One that nobody holds is forgotten.
    fn leave_region(&mut self, slot: u32, region: u32, times: u32) -> bool {
        let Some(holders) = self.grants.holders_mut(region) else { return true };
        let Some(at) = holders.iter().position(|(l, _)| *l == slot) else { return true };
        holders[at].1 = holders[at].1.saturating_sub(times);
        if holders[at].1 > 0 {
            return false;
        }
        holders.swap_remove(at);
        if holders.is_empty() {
            self.grants.end_generation(region);
            self.grants.forget(region);
        }
        true
    }
}

impl Drop for ShmFabric {
    /// Memory outlives the adapter that has granted it. The copy that a forked child has takes nothing back: board, links
    /// and memory are its parent's.
    fn drop(&mut self) {
        if self.fork.is_child() {
            return;
        }
        let all: Vec<u32> = self.grants.regions().map(|(slot, _)| slot).collect();
        if !all.is_empty() {
            self.take_back(all, None);
        }
    }
}
