//! The revocation of grants, after which peers can no longer change the memory.
//!
//! A peer that keeps the protocol is out of an access within the copy of 256 KiB, unless its process was stopped or is
//! not run. A peer that is not out in time is dropped, but it may go on writing to memory that it has mapped, as long
//! as that one access lasts. So this process replaces the shared pages of that memory by private copies; before that,
//! it ends all other peers' accesses to the memory in the same way.
//!
//! No call sleeps: a revocation is begun, and then [continued](ShmFabric::continue_take_back) until it is done, while
//! the adapter goes on. Once the peers' time is over, the next call finishes the revocation, or begins to keep others out
//! of what the late peers hold; those have as much time. Until the end
//!
//! - its regions stay in their places, with another generation, and are granted to nobody;
//! - peers are known by the names of their links, as another one may stand in a link's slot later.
//!
//! Memory that may change behind a revocation is remembered by its key: the revocation of that key says so, too.

use std::time::{Duration, Instant as Clock};

use super::bracket::seen;
use super::error::GrantError;
use super::fabric::ShmFabric;
use super::grant::{LinkId, Notice, Revocation};
use super::note::{Note, Place};
use super::take_back::{Inside, NAP, TakeBack, TakeBackId, UnderWay};

/// How long a peer may be within an access to memory that is taken back.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);
/// How much longer, if it writes to memory of the program's own by a system call.
const PATIENCE_WITH_CALLS: Duration = Duration::from_secs(1);
/// Looks at the in-use words before others go on.
const SPINS: u32 = 200;

impl ShmFabric {
    /// Revokes a key's region from all peers. On return, no access by that key is under way and none will begin. A peer
    /// that is within an access for 100 ms is dropped; if the peer could write, the region's memory is made private in
    /// place, so that its later writes have no effect on this process.
    ///
    /// For a key that was never granted the call only looks into a table. Loans by the key to peers that fetch from
    /// this process end, too, without a wait.
    ///
    /// The call sleeps as long as a peer is within an access; [`begin_revoke`](Self::begin_revoke) does not sleep.
    pub fn revoke(&mut self, key: u32) -> Revocation {
        let begun = self.begin_revoke(key);
        self.wait_for(begun)
    }
    /// Begins to revoke a key's region, like [`revoke`](Self::revoke), without a wait. From now on no access by that
    /// key begins.
    pub fn begin_revoke(&mut self, key: u32) -> TakeBack {
        self.end_loans(key);
        match self.grants.slot_of(key) {
            Some(slot) => self.begin_take_back(vec![slot], Some(key), None),
            None => {
                let exposed = self.take_backs.exposed.remove(&key);
                TakeBack::Done(Revocation { exposed, ..Revocation::default() })
            }
        }
    }

    /// Publishes another word of a queue pair, and returns once the queue pair's peer has no access under the old word
    /// under way. A peer that stays within an access for 100 ms is dropped, as by [`revoke`](Self::revoke).
    ///
    /// # Errors
    /// As [`begin_withdraw_qp_word`](Self::begin_withdraw_qp_word).
    ///
    /// # Panics
    /// If `slot` is not below [`MAX_QP_WORDS`](crate::MAX_QP_WORDS).
    pub fn withdraw_qp_word(&mut self, peer: LinkId, slot: u32, word: u64) -> Result<Revocation, GrantError> {
        let begun = self.begin_withdraw_qp_word(peer, slot, word)?;
        Ok(self.wait_for(begun))
    }
    /// Begins to withdraw a queue pair's word, like [`withdraw_qp_word`](Self::withdraw_qp_word), without a wait. From
    /// now on no access under the old word begins.
    ///
    /// # Errors
    /// There is no memory for the word; peers see 0 then.
    ///
    /// # Panics
    /// If `slot` is not below [`MAX_QP_WORDS`](crate::MAX_QP_WORDS).
    pub fn begin_withdraw_qp_word(
        &mut self,
        peer: LinkId,
        slot: u32,
        word: u64,
    ) -> Result<TakeBack, GrantError> {
        // A page that is not there holds zeros, which the peer sees as well.
        if self.grants.qp_word(slot) == word {
            if !self.is_withdrawing(slot) {
                return Ok(TakeBack::Done(Revocation::default()));
            }
        } else {
            self.grants.set_qp_word(slot, word)?;
        }
        let link = self.links.by_token(peer.token());
        let holds = link.and_then(|l| self.links.get(l)).is_some_and(|l| !l.direct.held.is_empty());
        if !holds {
            return Ok(TakeBack::Done(Revocation::default()));
        }
        Ok(self.begin_take_back(Vec::new(), None, link.map(|link| (link, slot))))
    }
    /// Whether a withdrawal still waits for the end of accesses under an older word of a queue pair.
    pub fn is_withdrawing(&self, slot: u32) -> bool {
        self.take_backs.under_way.iter().any(|t| t.word == Some(slot))
    }

    /// Checks whether a revocation is done, and returns its result. The name of a finished revocation is no longer
    /// valid.
    pub fn continue_take_back(&mut self, id: TakeBackId) -> Option<Revocation> {
        let Some(at) = self.take_backs.under_way.iter().position(|t| t.id == id) else {
            return Some(Revocation::default());
        };
        let mut t = self.take_backs.under_way.swap_remove(at);
        let done = self.advance(&mut t);
        if done.is_none() {
            self.take_backs.under_way.push(t);
        }
        done
    }

    /// Ends accesses to regions, one of which may be revoked by its key, or any access of one peer, as the word of a
    /// queue pair is withdrawn.
    fn begin_take_back(
        &mut self,
        regions: Vec<u32>,
        key: Option<u32>,
        withdrawn: Option<(u32, u32)>,
    ) -> TakeBack {
        if self.chance.as_ref().is_some_and(|c| c.is_killed()) {
            return TakeBack::Done(Revocation::default());
        }
        for &region in &regions {
            self.grants.begin_to_end(region);
        }
        self.own.barrier.on_parking();
        let inside = self.inside(&regions, withdrawn.map(|(peer, _)| peer), &[]);
        self.take_backs.begun += 1;
        let id = TakeBackId(self.take_backs.begun);
        let mut t = UnderWay {
            id,
            key,
            word: withdrawn.map(|(_, word)| word),
            regions,
            inside,
            deadline: Clock::now() + PATIENCE,
            stuck: Vec::new(),
            private: Vec::new(),
            exposed: Vec::new(),
            outcome: Revocation::default(),
        };
        match self.advance(&mut t) {
            Some(done) => TakeBack::Done(done),
            None => {
                self.take_backs.under_way.push(t);
                TakeBack::UnderWay(id)
            }
        }
    }

    /// Sleeps until it is done.
    fn wait_for(&mut self, begun: TakeBack) -> Revocation {
        let id = match begun {
            TakeBack::Done(done) => return done,
            TakeBack::UnderWay(id) => id,
        };
        let mut looks = 0;
        loop {
            if let Some(done) = self.continue_take_back(id) {
                return done;
            }
            looks += 1;
            if looks < SPINS { std::thread::yield_now() } else { std::thread::sleep(NAP) }
        }
    }

    /// `None`: peers that were within an access still are, and have time.
    fn advance(&mut self, t: &mut UnderWay) -> Option<Revocation> {
        loop {
            self.look_whether_out(&mut t.inside);
            if self.have_time(t) {
                return None;
            }
            for late in std::mem::take(&mut t.inside) {
                self.note_stuck(t, &late);
            }
            let stuck: Vec<u32> = t.stuck.iter().filter_map(|l| self.links.by_token(l.token())).collect();
            // Who is dropped loses all that it holds, and from memory that becomes private all are kept out.
            let lost = self.grants.regions().filter(|(_, r)| {
                r.holders.iter().any(|(l, _)| stuck.contains(l)) || t.private.iter().any(|p| r.is_of(p))
            });
            let lost: Vec<u32> =
                lost.map(|(slot, _)| slot).filter(|slot| !t.regions.contains(slot)).collect();
            if lost.is_empty() {
                return Some(self.finish(t));
            }
            for &region in &lost {
                self.grants.begin_to_end(region);
            }
            self.own.barrier.on_parking();
            t.inside = self.inside(&lost, None, &stuck);
            t.deadline = Clock::now() + PATIENCE;
            t.regions.extend(lost);
        }
    }
    /// Whether peers that are within may be so for longer.
    fn have_time(&self, t: &UnderWay) -> bool {
        let now = Clock::now();
        let calls = || t.inside.iter().any(|i| self.by_calls(i));
        !t.inside.is_empty() && (now < t.deadline || now < t.deadline + PATIENCE_WITH_CALLS && calls())
    }
    /// A peer that was not out in time is dropped at the end: notes what it may change until then and behind that.
    fn note_stuck(&self, t: &mut UnderWay, late: &Inside) {
        let Some(slot) = self.links.by_token(late.link.token()) else { return };
        t.stuck.push(late.link);
        let Some(at) = late.seen.region() else { return };
        if self.by_calls(late) {
            tracing::error!("a peer does not return from a call that writes to memory which is taken back");
            t.exposed.push(at);
        }
        // The peer may change the region later on, if it can write there.
        let held = self.grants.region(at).filter(|r| r.holders.iter().any(|(l, _)| *l == slot));
        let writable = held.filter(|r| r.is_writable()).and_then(|r| r.pages.clone());
        t.private.extend(writable.filter(|p| !t.private.iter().any(|q| q.is(p))));
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
            concerns.then(|| Inside { link: LinkId::new(self.links.token(slot)), seen })
        };
        links.into_iter().filter(|l| !stuck.contains(l)).filter_map(look).collect()
    }

    /// Looks for a moment who of them is out, dead, or stopped outside of a system call that writes.
    fn look_whether_out(&self, inside: &mut Vec<Inside>) {
        for _ in 0..SPINS {
            inside.retain(|i| {
                let slot = self.links.by_token(i.link.token());
                let side = slot.and_then(|s| self.links.get(s)).and_then(|l| l.direct.peer.as_ref());
                side.is_some_and(|s| seen(&s.outbox, s.in_use_at) == i.seen)
            });
            if inside.is_empty() {
                return;
            }
            std::hint::spin_loop();
        }
        inside.retain(|i| {
            let slot = self.links.by_token(i.link.token());
            let is_out = |slot| self.links.is_dead(slot) || self.by_calls(i) && self.links.is_stopped(slot);
            slot.is_some_and(|slot| !is_out(slot))
        });
    }

    /// Whether an access goes on by system calls alone: the memory is the program's own. A peer that is stopped is
    /// within none, and looks at the board once more before the next.
    fn by_calls(&self, i: &Inside) -> bool {
        // Mapped regions are not forgotten before their holders are out, or dropped.
        let region = i.seen.region().and_then(|r| self.grants.region(r));
        region.is_none_or(|r| r.pages.is_none())
    }

    /// All are out, or stuck: makes memory private, tells holders, forgets regions, drops peers.
    fn finish(&mut self, t: &mut UnderWay) -> Revocation {
        let mut outcome = std::mem::take(&mut t.outcome);
        outcome.private |= !t.private.is_empty();
        for pages in &t.private {
            match pages.make_private() {
                Ok(()) => self.counters.regions_made_private += 1,
                Err(why) => {
                    let bytes = pages.len();
                    tracing::error!(%why, bytes, "no memory for copies of the pages that a dropped peer may change");
                    // Nothing else may ever stand there.
                    std::mem::forget(pages.clone());
                    t.exposed
                        .extend(self.grants.regions().filter(|(_, r)| r.is_of(pages)).map(|(slot, _)| slot));
                }
            }
        }
        let exposed = t.exposed.iter().filter_map(|&slot| self.grants.region(slot)).map(|r| r.key);
        self.take_backs.exposed.extend(exposed);
        outcome.exposed |= match t.key {
            Some(key) => self.take_backs.exposed.remove(&key),
            None => !t.exposed.is_empty(),
        };
        self.forget_regions(&t.regions);
        for &link in &t.stuck {
            outcome.dropped.push(link);
            // Who waits for the same peer learns what came of it.
            for other in &mut self.take_backs.under_way {
                if other.inside.iter().any(|i| i.link == link) {
                    other.outcome.dropped.push(link);
                    other.outcome.private |= outcome.private;
                    other.outcome.exposed |= outcome.exposed;
                }
            }
            let Some(slot) = self.links.by_token(link.token()) else { continue };
            let peer = self.links.get(slot).map(|l| l.peer);
            tracing::warn!(?peer, "a peer that did not leave an access to revoked memory is dropped");
            self.counters.peers_dropped_stuck += 1;
            self.end(slot);
        }
        outcome.private &= !outcome.exposed;
        outcome
    }
    /// Tells the holders of regions that these are revoked, and forgets those that no other take-back waits for.
    fn forget_regions(&mut self, regions: &[u32]) {
        for &slot in regions {
            let generation = self.grants.generation(slot).wrapping_sub(1);
            let Some(region) = self.grants.end(slot) else { continue };
            self.counters.grants_revoked += region.holders.len() as u64;
            for (holder, _) in region.holders {
                let Some(link) = self.links.get_mut(holder) else { continue };
                link.direct.held.retain(|s| *s != slot);
                let peer = LinkId::new(self.links.token(holder));
                let place = Place { region: slot, generation, offset: 0 };
                self.send_note(peer, Note::Revoked { key: region.key, place }, None);
            }
        }
    }

    /// Takes back all that a peer holds, and cuts the link to it, though it lives.
    pub(super) fn take_back_and_end(&mut self, slot: u32) {
        let Some(link) = self.links.get_mut(slot).filter(|l| !l.closing) else { return };
        link.closing = true;
        let held = link.direct.held.clone();
        let peer = LinkId::new(self.links.token(slot));
        if !held.is_empty()
            && let TakeBack::UnderWay(id) = self.begin_take_back(held, None, None)
        {
            self.take_backs.closing_links.push((id, peer));
            self.unwatch(slot);
            return;
        }
        self.end(slot);
    }
    /// Cuts the links behind whose take-back nothing is under way any more.
    #[cold]
    pub(super) fn part(&mut self) {
        for (id, peer) in std::mem::take(&mut self.take_backs.closing_links) {
            if self.continue_take_back(id).is_none() {
                self.take_backs.closing_links.push((id, peer));
            } else if let Some(slot) = self.links.by_token(peer.token()) {
                self.end(slot);
            }
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
        if holders.is_empty() && !self.grants.is_ending(region) {
            self.grants.begin_to_end(region);
            self.grants.end(region);
        }
        true
    }
}

impl Drop for ShmFabric {
    /// Memory outlives the adapter that has granted it. The copy that a forked child has takes nothing back: board,
    /// links and memory are its parent's.
    fn drop(&mut self) {
        if self.own.fork.is_child() {
            return;
        }
        // All that is under way is begun anew.
        self.take_backs.under_way.clear();
        let all = self.grants.end_all();
        if !all.is_empty() {
            let begun = self.begin_take_back(all, None, None);
            self.wait_for(begun);
        }
    }
}
