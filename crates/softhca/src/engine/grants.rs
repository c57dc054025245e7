//! The target's side of direct access: the grants of this adapter to peers on this machine, and their revocation.

use core::time::Duration;

use hca_core::{Access, DeviceError, Instant, MrInit, MrKeys, PdHandle, QpHandle, QpState, QpType};
use hca_fabric::{Grant, LinkId, Notice, PathId, Revocation, ShmFabric, TakeBack, TakeBackId};

use crate::engine::{Core, Engine};
use crate::limits::slot_of;
use crate::memory::mr::EndedMr;
use crate::memory::scattered::Scattered;
use crate::objects::direct::{DirectPeer, TakingBack, qp_word, with_atomic_write, with_room_for};
use crate::objects::qp::QpEntry;
use crate::objects::regions::{Offer, Region};
use crate::sync::Arc;

/// How soon a turn looks again whether peers are out of what it takes back.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// The word by which peers reach memory through a queue pair as it is now; 0: they may not.
fn word_of(entry: &QpEntry) -> u64 {
    let m = &entry.machine;
    if m.qp_type() != QpType::Rc
        || !m.uses_messages()
        || !matches!(m.state(), QpState::Rtr | QpState::Rts | QpState::Sqd)
        || m.refuses_peer()
    {
        return 0;
    }
    let access = with_atomic_write(m.attr().access.unwrap_or_default());
    let access = with_room_for(m.attr().max_dest_rd_atomic, access);
    qp_word(entry.res.words, entry.res.pd.index, access)
}

/// Logs what a peer that was dropped may still do.
fn report(revocation: &Revocation) {
    if revocation.exposed {
        tracing::error!("a peer that was dropped may still change memory that was taken back");
    }
}

impl Engine {
    /// Shows peers what a queue pair allows now. What it allows no more does not begin any more, and is not under way
    /// once the take-back is done that this names.
    pub(crate) fn publish_word(&mut self, slot: u32) -> Option<TakeBackId> {
        self.core.publish_word(slot, self.network.near()?)
    }

    /// Ends all direct accesses by way of a queue pair that goes. `None`: none is under way.
    pub(crate) fn withdraw_word(&mut self, qp: QpHandle) -> Option<TakeBackId> {
        let near = self.network.near()?;
        self.core.qps.get(qp.index, qp.generation)?;
        self.core.withdraw(qp.index, 0, near)
    }

    /// Ends all direct accesses by a key.
    pub(crate) fn begin_revoke(&mut self, key: u32) -> TakeBack {
        let Some(near) = self.network.near() else {
            return TakeBack::Done(Revocation::default());
        };
        let begun = near.begin_revoke(key);
        self.core.tables.regions.end_key(key);
        if let TakeBack::Done(done) = &begun {
            report(done);
        }
        begun
    }

    /// Looks whether a take-back is done, for a caller that has let others have the engine since its last look. `None`:
    /// it is not.
    pub(crate) fn continue_take_back(&mut self, id: TakeBackId) -> Option<Revocation> {
        // Where no turn is made those of turns would never end.
        self.conclude();
        let done = self.network.near()?.continue_take_back(id);
        done.inspect(report)
    }
    /// When a turn looks again whether peers are out of what was taken back.
    pub(crate) fn takes_back_at(&self) -> Option<Instant> {
        (!self.core.taking_back.is_empty()).then(|| self.core.now + LOOK_AGAIN)
    }

    /// Takes back what peers may reach no more since this turn.
    #[inline]
    pub(crate) fn take_back(&mut self) {
        let core = &self.core;
        // Where memory is not shared, no peer has any.
        let none = core.tables.taken_back.is_empty()
            && (!self.network.has_near() || core.words_due.is_empty() && core.taking_back.is_empty());
        if !none {
            self.take_back_now();
        }
    }

    #[cold]
    fn take_back_now(&mut self) {
        let Some(near) = self.network.near() else {
            return self.core.tables.taken_back.clear();
        };
        self.core.continue_take_backs(near);
        while let Some(slot) = self.core.words_due.pop() {
            if let Some(id) = self.core.publish_word(slot, near) {
                let cqs = self.core.qps.at_mut(slot).map(|e| vec![e.res.send_cq, e.res.recv_cq]);
                self.core.withhold(id, cqs.unwrap_or_default());
            }
        }
        while let Some((key, cq)) = self.core.tables.taken_back.pop() {
            self.core.tables.regions.end_key(key);
            match near.begin_revoke(key) {
                TakeBack::Done(done) => report(&done),
                TakeBack::UnderWay(id) => self.core.withhold(id, vec![cq]),
            }
        }
        if !self.core.taking_back.is_empty() {
            self.next_turn_is_whole();
        }
    }
}

/// What a program is told that took memory back.
pub(crate) fn outcome(revocation: &Revocation) -> Result<(), DeviceError> {
    if revocation.exposed { Err(DeviceError::Exposed) } else { Ok(()) }
}

impl Core {
    /// Lists a queue pair by the peer's number, if it exchanges messages; to be called whenever that may have changed.
    pub(crate) fn list_near(&mut self, slot: u32) {
        let Some(entry) = self.qps.at_mut(slot) else { return };
        let m = &entry.machine;
        let peer = m.attr().dest_qpn.filter(|_| m.uses_messages()).map(|qpn| qpn.raw());
        let before = core::mem::replace(&mut entry.res.listed, peer);
        if before != peer {
            if let Some(qpn) = before {
                self.near_qps.remove(&(qpn, slot));
            }
            self.near_qps.extend(peer.map(|qpn| (qpn, slot)));
        }
    }

    /// Completions of these queues are shown once this take-back is done.
    fn withhold(&mut self, id: TakeBackId, cqs: Vec<u32>) {
        let cqs = cqs.into_iter().filter_map(|cq| self.tables.withhold(cq)).collect();
        self.taking_back.push(TakingBack { id, cqs });
    }
    /// Looks which take-backs of turns are done, and lets completions be shown that waited for them.
    fn continue_take_backs(&mut self, near: &mut ShmFabric) {
        for t in core::mem::take(&mut self.taking_back) {
            match near.continue_take_back(t.id) {
                None => self.taking_back.push(t),
                Some(done) => {
                    report(&done);
                    t.cqs.into_iter().for_each(|cq| self.tables.let_show(cq));
                }
            }
        }
    }

    fn publish_word(&mut self, slot: u32, near: &mut ShmFabric) -> Option<TakeBackId> {
        let entry = self.qps.at_mut(slot)?;
        let now = word_of(entry);
        if now == entry.res.word {
            return None;
        }
        // Another one each time, so that what a peer has seen before fits no more.
        self.words = self.words.wrapping_add(1);
        entry.res.words = self.words;
        let word = if now == 0 { 0 } else { word_of(entry) };
        self.withdraw(slot, word, near)
    }

    /// Names the take-back behind which no access under an older word is under way, if there is any.
    fn withdraw(&mut self, slot: u32, word: u64, near: &mut ShmFabric) -> Option<TakeBackId> {
        let entry = self.qps.at_mut(slot)?;
        let older = near.is_withdrawing(slot);
        if entry.res.word == word && !older {
            return None;
        }
        let before = core::mem::replace(&mut entry.res.word, word);
        let link = entry.res.path.filter(|_| before != 0 || older).and_then(|p| near.link_of(p));
        let done = TakeBack::Done(Revocation::default());
        let published = match link {
            Some(link) => near.begin_withdraw_qp_word(link, slot, word),
            None => near.set_qp_word(slot, word).map(|()| done),
        };
        match published {
            Ok(TakeBack::UnderWay(id)) => Some(id),
            Ok(TakeBack::Done(done)) => {
                report(&done);
                None
            }
            Err(why) => {
                tracing::debug!(%why, slot, "peers do not reach memory through a queue pair");
                None
            }
        }
    }

    /// Heeds what a peer says about direct access.
    #[cold]
    pub(crate) fn heed(&mut self, notice: Notice, near: &mut ShmFabric) {
        match notice {
            Notice::GrantAsked { link, key, qpn } => self.answer(link, key, qpn, near),
            Notice::Granted { link, key, grant, granted } => {
                let region = Region::new(key, grant, &granted);
                if granted.offered {
                    self.tables.regions.insert_lent(link, key, region);
                } else {
                    self.tables.regions.insert(link, key, region);
                }
                let guard = near.qp_guard(link, slot_of(granted.qpn), granted.qp_word);
                self.pass_answer(link, granted.qpn, key, guard.map(|g| (g, granted.qp_word)), near);
            }
            Notice::GrantRefused { link, key, qpn } => {
                self.tables.regions.refuse(link, key);
                self.pass_answer(link, qpn, key, None, near);
            }
            Notice::GrantRevoked { link, key, .. } => self.tables.regions.remove(link, key),
            Notice::GrantTaken { link, key } => self.tables.regions.set_offer(link, key, Offer::Taken),
            Notice::GrantLeft { link, key } => self.tables.regions.set_offer(link, key, Offer::Vain),
            Notice::ProcessTaken { link } => self.tables.regions.set_process(link, Offer::Taken),
            Notice::ProcessLeft { link } => self.tables.regions.set_process(link, Offer::Vain),
            Notice::LinkGone { link } => self.tables.regions.forget(link),
            _ => {}
        }
    }

    /// Passes an answer of a peer to the queue pairs that are connected to the one that it is for.
    fn pass_answer(
        &mut self,
        link: LinkId,
        qpn: u32,
        key: u32,
        granted: Option<(hca_fabric::QpGuard, u64)>,
        near: &mut ShmFabric,
    ) {
        for &(_, slot) in self.near_qps.range((qpn, 0)..=(qpn, u32::MAX)) {
            let res = &mut self.qps.at_mut(slot).expect("who goes leaves the list").res;
            if res.direct.is_none() && res.path.and_then(|p| near.link_of(p)) == Some(link) {
                res.direct = Some(DirectPeer::new(link));
            }
            if let Some(direct) = res.direct.as_mut().filter(|n| n.link == link) {
                direct.answered(key, granted, self.tables.regions.now);
            }
        }
    }

    /// Asks the peer for a region that a queue pair would reach directly, or offers it one to fetch messages from.
    #[cold]
    pub(crate) fn ask(&mut self, slot: u32, path: PathId, near: &mut ShmFabric) {
        let Some(entry) = self.qps.at_mut(slot) else { return };
        let work = &mut entry.res.direct_work;
        let (key, offer, process) = (work.key.take(), work.offer.take(), core::mem::take(&mut work.process));
        let Some(peer) = entry.machine.attr().dest_qpn.filter(|_| near.shares_memory()) else { return };
        if entry.res.direct.is_none() {
            entry.res.direct = near.link_of(path).map(DirectPeer::new);
        }
        let Some(direct) = &mut entry.res.direct else { return };
        let link = direct.link;
        if let Some(key) = key {
            direct.ask(key, peer, &mut self.tables.regions, near);
        }
        if process {
            self.offer_process(link, near);
        }
        if let Some(key) = offer {
            let made = if self.offer(slot, link, key, near).is_some() { Offer::Made } else { Offer::Vain };
            self.tables.regions.set_offer(link, key, made);
        }
    }

    /// Offers this process to a peer, once.
    fn offer_process(&mut self, link: LinkId, near: &mut ShmFabric) {
        if !self.tables.regions.has_process(link) {
            let made = if near.offer_process(link).is_ok() { Offer::Made } else { Offer::Vain };
            self.tables.regions.set_process(link, made);
        }
    }

    /// Offers a region to a peer, for messages to be fetched from. One that peers may access in another way is
    /// not: an offer is for reading only, and seals the memory.
    fn offer(&mut self, slot: u32, link: LinkId, key: u32, near: &mut ShmFabric) -> Option<()> {
        let entry = self.qps.at_mut(slot)?;
        let (base, len, iova, access) = self.tables.mrs.region(entry.res.pd, key)?;
        if access.intersects(Access::BY_PEERS - Access::REMOTE_READ) {
            return None;
        }
        let pages = near.pages_of(base.addr(), len)?;
        let grant = Grant {
            key,
            qpn: entry.machine.qpn().raw(),
            offset: base.addr() - pages.addr().addr().get(),
            pages: Some(&pages),
            len,
            iova,
            access: Access::REMOTE_READ,
            pd: entry.res.pd.index,
            qp_word: entry.res.word,
        };
        match near.offer(link, &grant) {
            Ok(()) => {
                entry.res.direct_work.told = entry.res.word;
                Some(())
            }
            Err(why) => {
                tracing::debug!(%why, "a peer does not fetch messages from a region");
                None
            }
        }
    }

    /// Answers a peer that asks for the region of a key, to be reached through a queue pair of ours.
    fn answer(&mut self, link: LinkId, key: u32, qpn: u32, near: &mut ShmFabric) {
        if self.grant(link, key, qpn, near).is_none() {
            near.refuse_grant(link, key, qpn);
        }
    }

    /// Grants a region to the peer that this queue pair is connected to, if it may have it; a refusal by the fabric is
    /// told by the fabric.
    fn grant(&mut self, link: LinkId, key: u32, qpn: u32, near: &mut ShmFabric) -> Option<()> {
        let slot = slot_of(qpn);
        let entry = self.qps.at_mut(slot).filter(|e| e.machine.qpn().raw() == qpn && e.res.word != 0)?;
        if near.link_of(entry.res.path?) != Some(link) {
            return None;
        }
        if entry.res.guesses.is_over() || entry.machine.refuses_peer() {
            return None;
        }
        let Some((base, len, iova, access)) = self.tables.mrs.region(entry.res.pd, key) else {
            if !self.tables.mrs.was(entry.res.pd, key) {
                entry.res.guesses.note_wrong();
            }
            return None;
        };
        let access = access.intersection(Access::BY_PEERS);
        let pages = near.pages_of(base.addr(), len);
        // Memory of the program's own is reached by the kernel, which writes.
        let (offset, access) = match &pages {
            Some(pages) => (base.addr() - pages.addr().addr().get(), access),
            None => (base.expose_provenance(), access.intersection(Access::REMOTE_WRITE)),
        };
        if access.is_empty() {
            return None;
        }
        let (pd, qp_word) = (entry.res.pd.index, entry.res.word);
        if pages.is_none() {
            self.offer_process(link, near);
        }
        let grant = Grant { key, qpn, offset, pages: pages.as_ref(), len, iova, access, pd, qp_word };
        match near.grant(link, &grant) {
            Ok(()) => self.qps.at_mut(slot)?.res.direct_work.told = qp_word,
            Err(why) => tracing::debug!(%why, "a peer does not reach a region directly"),
        }
        Some(())
    }
}

impl Engine {
    /// Has the region that takes an ended one's place stand there, once that is taken back. A peer that may still be within
    /// an access leaves none.
    pub(crate) fn replace_mr(
        &mut self,
        (ended, revocation): (EndedMr, &Revocation),
        pd: PdHandle,
        mr: &MrInit,
        scattered: Option<Arc<Scattered>>,
    ) -> Result<MrKeys, DeviceError> {
        self.leave_pd(ended.pd);
        let mrs = &mut self.core.tables.mrs;
        if let Err(exposed) = outcome(revocation) {
            mrs.free(ended);
            self.leave_pd(pd);
            return Err(exposed);
        }
        Ok(mrs.replace(&ended, pd, mr, scattered))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hca_core::{
        AddressVector, Device, Gid, Mtu, Pkey, Psn, QpAttr, QpCap, QpInit, QpType, Qpn, RnrTimer,
    };
    use hca_fabric::ShmOptions;

    use super::*;
    use crate::{Options, Progress, SoftHca};

    fn open() -> Arc<SoftHca> {
        let domain = format!("grants.{}", std::process::id());
        let fabric = ShmFabric::open(&domain, &ShmOptions::default()).expect("there is shared memory");
        let inline = Options { progress: Progress::Inline, ..Options::default() };
        SoftHca::open(Box::new(fabric), inline).expect("an adapter opens")
    }

    /// Queue pairs of the first adapter, each connected to the peer's of its own number from `first` on.
    fn connect(a: &SoftHca, b: &SoftHca, first: u32, count: u32) {
        let pd = a.alloc_pd().unwrap();
        let (cq, _port) = a.create_cq(16).unwrap();
        for peer in first..first + count {
            let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpCap::default() };
            let init = QpInit { qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, cap };
            let qp = a.create_qp(pd, &init).unwrap().handle;
            let init = QpAttr {
                state: Some(QpState::Init),
                pkey: Some(Pkey::DEFAULT),
                access: Some(Access::empty()),
                ..QpAttr::default()
            };
            let dgid = Gid::from_ip(b.fabric().local);
            let rtr = QpAttr {
                state: Some(QpState::Rtr),
                dest_qpn: Some(Qpn::new(peer)),
                av: Some(AddressVector { dgid, ..AddressVector::default() }),
                path_mtu: Some(Mtu::B1024),
                rq_psn: Some(Psn::new(0)),
                max_dest_rd_atomic: Some(1),
                min_rnr_timer: Some(RnrTimer::new(1)),
                ..QpAttr::default()
            };
            for attr in [init, rtr] {
                a.modify_qp(qp, &attr).unwrap();
            }
        }
    }

    /// How often a queue pair is looked at for the answer about a key to one of so many that were asked.
    fn looks_for_an_answer(queue_pairs: u32) -> u64 {
        const FIRST: u32 = 1000;
        let (a, b) = (open(), open());
        connect(&a, &b, FIRST, queue_pairs);
        let ask = || {
            a.shared().control(|Engine { network, core, .. }| {
                let near = network.near().expect("the network carries messages");
                let link = near.link_of(core.qps.at(0)?.res.path?)?;
                let before = core.qps.looks();
                core.heed(Notice::GrantRefused { link, key: 7, qpn: FIRST + queue_pairs / 2 }, near);
                Some(core.qps.looks() - before)
            })
        };
        let meet = || {
            a.turn();
            b.turn();
            ask()
        };
        (0..1_000_000).find_map(|_| meet()).expect("they meet")
    }

    #[test]
    fn a_region_that_a_peer_may_still_change_is_gone_behind_its_change() {
        let hca = open();
        let [pd, other] = [0; 2].map(|_| hca.alloc_pd().unwrap());
        let mut bytes = [0; 64];
        let addr = core::ptr::NonNull::from(&mut bytes).cast();
        let init = MrInit { addr, len: 64, iova: 0, access: Access::empty() };
        let changed = hca.shared().control(|e| {
            e.use_pd(pd).unwrap().users += 1;
            let keys = e.core.tables.mrs.register(pd, &init).unwrap();
            let ended = e.core.tables.mrs.end(keys.handle).unwrap();
            e.use_pd(other).unwrap().users += 1;
            let exposed = Revocation { exposed: true, ..Revocation::default() };
            e.replace_mr((ended, &exposed), other, &init, None)
        });
        assert!(matches!(changed, Err(DeviceError::Exposed)), "{changed:?}");
        assert_eq!(hca.shared().control(|e| e.core.tables.mrs.live()), 0);
        hca.dealloc_pd(pd).and_then(|()| hca.dealloc_pd(other)).expect("no region is left in either");
    }

    #[test]
    fn two_queue_pairs_never_have_the_same_word() {
        let (a, b) = (open(), open());
        connect(&a, &b, 1000, 2);
        a.turn();
        let words = a.shared().control(|e| [0, 1].map(|slot| e.core.qps.at(slot).map(|qp| qp.res.word)));
        assert!(words.iter().all(|word| word.is_some_and(|word| word != 0)), "{words:?}");
        assert_ne!(words[0], words[1]);
    }

    #[test]
    fn an_answer_to_a_grant_looks_at_the_queue_pair_that_asked_and_at_no_other() {
        assert_eq!(looks_for_an_answer(1), 1);
        assert_eq!(looks_for_an_answer(300), 1);
    }
}
