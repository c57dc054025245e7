//! Connections: how they come about on first use, and how they end.

use std::fmt;
use std::time::Duration;

use hca_core::{Access, AddressVector, Instant, Psn, QpAttr, QpState, QpType, RnrTimer};
use hca_matching::{NiFail, Process};
use hca_verbs::{ConnectOptions, Endpoint, Grh};

use super::State;
use super::directory::{Card, nid_of};
use super::hello::{Hello, Identity, NO_RANK};
use super::peer::{Fetched, Lending, Meeting, Out, Peer, Stage};
use crate::Error;

/// Between the first hello and the second; each further wait is twice as long, up to [`SLOWEST_HELLO`].
const FIRST_HELLO: Duration = Duration::from_millis(20);
const SLOWEST_HELLO: Duration = Duration::from_secs(1);

/// What a hello tells of a peer that is known.
enum Tale {
    /// Nothing new, or that what it is connected to while both meet is not the peer's any more.
    Known,
    /// An earlier connection.
    Old,
    /// Another process in its place, or that it has begun anew.
    New,
}

impl State {
    /// The peer that a target is, which begins to be met if it is new.
    #[inline]
    pub(super) fn route(&mut self, ni: u8, target: Process) -> Result<u32, Error> {
        let of_ni = self.nis[ni as usize].as_ref().expect("its interface is open");
        if let Some((last, peer)) = of_ni.last
            && last == target
        {
            return Ok(peer);
        }
        let known = match of_ni.rank_of(target) {
            Some(rank) if of_ni.map.is_none() => self.by_rank.get(&rank).copied(),
            _ => of_ni.process(target).and_then(|process| self.by_process.get(&process).copied()),
        };
        let peer = known.map_or_else(|| self.meet(ni, target), Ok)?;
        self.ni(ni).last = Some((target, peer));
        Ok(peer)
    }
    /// Whether the directory has to be asked before a target is spoken to.
    pub(crate) fn is_unknown(&self, ni: u8, target: Process) -> bool {
        let of_ni = self.nis[ni as usize].as_ref().expect("its interface is open");
        self.card_of(ni, target).is_none_or(|card| self.stale.contains(&(card.nid, card.pid)))
            && of_ni.in_range(target)
    }
    /// Takes a card that may be stale for good, as nobody knows a better one; whether there is any.
    pub(crate) fn trust(&mut self, ni: u8, target: Process) -> bool {
        let id = self.card_of(ni, target).map(|card| (card.nid, card.pid));
        id.is_some_and(|id| self.stale.remove(&id) || self.cards.contains_key(&id))
    }
    fn card_of(&self, ni: u8, target: Process) -> Option<&Card> {
        let of_ni = self.nis[ni as usize].as_ref().expect("its interface is open");
        match of_ni.rank_of(target) {
            Some(rank) if of_ni.map.is_none() => self.rank_cards.get(&rank),
            _ => of_ni.process(target).and_then(|process| self.cards.get(&process)),
        }
    }
    /// Keeps what the directory said.
    pub(crate) fn learn(&mut self, card: Card, rank: Option<hca_matching::Rank>) {
        self.stale.remove(&(card.nid, card.pid));
        self.cards.insert((card.nid, card.pid), card);
        if let Some(rank) = rank {
            self.rank_cards.insert(rank, card);
        }
    }
    #[cold]
    fn meet(&mut self, ni: u8, target: Process) -> Result<u32, Error> {
        let &card = self.card_of(ni, target).ok_or(Error::Target { target })?;
        if let Some(&peer) = self.by_process.get(&(card.nid, card.pid)) {
            return Ok(peer);
        }
        // What a count sets off can't wait for the directory.
        if !self.in_after && self.stale.contains(&(card.nid, card.pid)) {
            return Err(Error::Target { target });
        }
        let of_ni = self.nis[ni as usize].as_ref().expect("its interface is open");
        let rank = of_ni.rank_of(target).filter(|_| of_ni.map.is_none()).unwrap_or(NO_RANK);
        let own = (card.nid, card.pid) == (self.identity.nid, self.identity.pid);
        let identity = match own {
            true => self.identity,
            false => Identity { nid: card.nid, pid: card.pid, rank, incarnation: 0, ..self.identity },
        };
        let peer = self.new_peer(identity, card)?;
        if own {
            let of = self.peer(peer);
            let ours = (of.ours, of.attempt);
            self.connect(peer, ours)?;
            self.is_up(peer);
        } else {
            self.say_hello(peer);
        }
        Ok(peer)
    }
    fn new_peer(&mut self, identity: Identity, card: Card) -> Result<u32, Error> {
        let av = AddressVector { dgid: card.gid, dlid: card.lid, ..AddressVector::default() };
        let to = self.net.ports.pd.create_ah(&av)?;
        let qp = self.net.ports.connection()?;
        let port = self.net.ports.pd.context().port();
        let ours = Endpoint {
            service: QpType::Rc,
            qpn: qp.qpn(),
            psn: Psn::new(self.random() as u32 & 0xff_ffff),
            mtu: port.active_mtu,
            rd_atomic: self.net.ports.pd.context().attr().max_rd_atomic,
            gid: self.gid,
            lid: port.lid,
        };
        let now = self.clock.now();
        let meeting = Meeting {
            to,
            datagrams: card.datagrams,
            next: now,
            tries: 0,
            deadline: now + self.connect_timeout,
        };
        self.attempts = self.attempts.wrapping_add(1);
        let (handle, stage) = (qp.handle(), Stage::Meeting(meeting));
        let peer = Peer::new(identity, stage, qp, ours, self.attempts);
        let index = self.free_peers.pop().unwrap_or_else(|| {
            self.net.peers.push(None);
            self.net.peers.len() as u32 - 1
        });
        self.net.peers[index as usize] = Some(Box::new(peer));
        if self.by_qp.len() <= handle.index as usize {
            self.by_qp.resize(handle.index as usize + 1, u32::MAX);
        }
        self.by_qp[handle.index as usize] = index;
        self.by_process.insert((identity.nid, identity.pid), index);
        if identity.rank != NO_RANK {
            self.by_rank.insert(identity.rank, index);
        }
        Ok(index)
    }
    /// Connects the queue pair to one of the peer's, in the place of another that it may be connected to.
    fn connect(&mut self, peer: u32, theirs: (Endpoint, u32)) -> Result<(), Error> {
        let of = self.net.peers[peer as usize].as_mut().expect("a peer that is there");
        if of.theirs.take().is_some() {
            of.qp.modify(&QpAttr { state: Some(QpState::Reset), ..QpAttr::default() })?;
        }
        // Slots come back as soon as this node looks: who finds none asks again at once.
        let options = ConnectOptions { min_rnr_timer: RnrTimer::new(1), ..ConnectOptions::default() };
        of.qp.connect(Access::REMOTE_READ, &of.ours, &theirs.0, &options)?;
        of.theirs = Some(theirs);
        Ok(())
    }

    /// Sends a hello, and says when the next is due.
    fn say_hello(&mut self, peer: u32) {
        let (from, key, datagrams, now) = (self.identity, self.key, self.datagrams(), self.clock.now());
        let eager_bytes = self.eager_bytes as u32;
        let of = self.net.peers[peer as usize].as_mut().expect("a peer that is there");
        let (endpoint, attempt, yours) = (of.ours, of.attempt, of.theirs.map(|(theirs, _)| theirs.qpn));
        let Stage::Meeting(meeting) = &mut of.stage else { return };
        let hello = Hello { from, key, endpoint, attempt, datagrams, yours, is_up: false, eager_bytes };
        let wait = (FIRST_HELLO * (1 << meeting.tries.min(10))).min(SLOWEST_HELLO);
        meeting.tries += 1;
        meeting.next = now + wait;
        self.net.ports.send_hello(meeting.to.clone(), meeting.datagrams, &hello.to_bytes());
        self.wake_in(wait);
    }
    /// A hello came.
    #[cold]
    pub(super) fn hear_hello(&mut self, grh: &Grh, bytes: &[u8]) {
        let eager_bytes = self.eager_bytes as u32;
        let Some(hello) = Hello::parse(bytes).filter(|hello| hello.key == self.key) else {
            self.counts.strangers += 1;
            return;
        };
        // The slots of one side hold what the other sends.
        if hello.eager_bytes != eager_bytes {
            self.counts.strangers += 1;
            let (nid, pid, theirs) = (hello.from.nid.0, hello.from.pid.0, hello.eager_bytes);
            return tracing::warn!(
                nid,
                pid,
                theirs,
                eager_bytes,
                "a Portals peer has other eager_bytes; all of a job need the same"
            );
        }
        // What a datagram says of its sender's address is not taken on trust; nobody else is this node.
        let id = (hello.from.nid, hello.from.pid);
        let is_there = hello.endpoint.gid == grh.sgid && hello.from.nid == nid_of(grh.sgid);
        if !is_there || id == (self.identity.nid, self.identity.pid) {
            self.counts.strangers += 1;
            return;
        }
        let mut known = self.by_process.get(&id).copied();
        if let Some(peer) = known {
            match self.told_by(peer, &hello) {
                Tale::Known => {}
                Tale::Old => return,
                Tale::New => {
                    self.lost(peer, &"the peer has begun anew");
                    known = None;
                }
            }
        }
        let peer = match known {
            Some(peer) => peer,
            None => {
                let (lid, datagrams) = (hello.endpoint.lid, hello.datagrams);
                let card = Card { nid: id.0, pid: id.1, gid: grh.sgid, lid, datagrams };
                match self.new_peer(hello.from, card) {
                    Ok(peer) => peer,
                    Err(error) => return tracing::warn!(%error, "a Portals peer can't be connected to"),
                }
            }
        };
        if let Err(error) = self.answer_hello(peer, &hello) {
            tracing::warn!(%error, "a Portals peer can't be connected to");
            self.lost(peer, &error);
        }
    }
    /// What a hello says of a peer that is known.
    fn told_by(&mut self, peer: u32, hello: &Hello) -> Tale {
        let of = self.peer(peer);
        let incarnation = of.identity.incarnation;
        if incarnation != 0 && incarnation != hello.from.incarnation {
            return Tale::New;
        }
        let Some((_, attempt)) = of.theirs else { return Tale::Known };
        match hello.attempt.wrapping_sub(attempt) as i32 {
            i32::MIN..=-1 => Tale::Old,
            1.. if of.is_up() => Tale::New,
            _ => Tale::Known,
        }
    }
    fn answer_hello(&mut self, peer: u32, hello: &Hello) -> Result<(), Error> {
        let of = self.peer(peer);
        let before = std::mem::replace(&mut of.identity, hello.from);
        let new = of.theirs.is_none_or(|(_, attempt)| attempt != hello.attempt);
        let knows_ours = hello.yours == Some(of.ours.qpn);
        if before.rank != hello.from.rank && self.by_rank.get(&before.rank) == Some(&peer) {
            self.by_rank.remove(&before.rank);
        }
        if hello.from.rank != NO_RANK {
            self.by_rank.insert(hello.from.rank, peer);
        }
        if new {
            self.connect(peer, (hello.endpoint, hello.attempt))?;
        }
        if !hello.is_up {
            let of = self.peer(peer);
            let is_up = of.is_up() || knows_ours;
            let (endpoint, attempt, yours) = (of.ours, of.attempt, Some(hello.endpoint.qpn));
            let (from, key, datagrams) = (self.identity, self.key, self.datagrams());
            let eager_bytes = self.eager_bytes as u32;
            let answer = Hello { from, key, endpoint, attempt, datagrams, yours, is_up, eager_bytes };
            let to = match &self.peer(peer).stage {
                Stage::Meeting(meeting) => meeting.to.clone(),
                Stage::Up => self.net.ports.pd.create_ah(&hello.endpoint.av())?,
            };
            self.net.ports.send_hello(to, hello.datagrams, &answer.to_bytes());
            self.wake_in(FIRST_HELLO);
        }
        if knows_ours {
            self.is_up(peer);
        }
        Ok(())
    }
    /// The peer's queue pair is known to be connected to this one.
    #[cold]
    pub(super) fn is_up(&mut self, peer: u32) {
        let now = self.clock.now();
        let of = self.peer(peer);
        if !of.is_up() {
            (of.stage, of.pinged) = (Stage::Up, now);
            let id = (of.identity.nid, of.identity.pid);
            self.stale.remove(&id);
            self.counts.connected += 1;
            self.ready.push(peer);
        }
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
        tracing::warn!(nid = id.nid.0, pid = id.pid.0, %why, "a Portals peer is let go");
        self.counts.malformed += 1;
        self.lost(peer, why);
    }
    /// A peer said goodbye.
    pub(super) fn gone(&mut self, peer: u32) {
        self.drop_peer(peer);
    }
    /// Ends a connection, and all that is under way on it.
    fn drop_peer(&mut self, peer: u32) {
        let Some(gone) = self.net.peers[peer as usize].take() else { return };
        let mut gone = *gone;
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
        self.net.in_use -= gone.outstanding();
        // On return the device touches nothing of it any more.
        match gone.qp.destroy() {
            Ok(slots) => slots.into_iter().for_each(|slot| self.net.ports.used(slot as u32)),
            Err(error) => return self.device_failed(&error),
        }
        for (_, slot) in gone.slots {
            self.net.ports.free_slot(slot);
        }
        self.free_peers.push(peer);
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
        self.give_back_slots();
        let freed: Vec<u32> = self.blocked.drain(..).collect();
        for other in freed {
            if let Some(of) = self.net.peers[other as usize].as_mut() {
                of.blocked = false;
            }
            self.ready.push(other);
        }
    }

    /// The timer is to fire within so long.
    pub(super) fn wake_in(&mut self, wait: Duration) {
        let at = self.clock.now() + wait;
        if self.timer.is_none_or(|timer| at < timer) {
            (self.timer, self.sooner) = (Some(at), self.offloaded);
        }
    }
    /// Something is under way that only a peer can end: it is looked after.
    #[inline]
    pub(super) fn watch(&mut self) {
        if self.timer.is_none() {
            self.wake_in(self.keepalive);
        }
    }
    /// Does what is due by now; whether it was anything.
    #[cold]
    pub(crate) fn run_timers(&mut self) -> bool {
        let now = self.clock.now();
        if self.timer.is_none_or(|timer| now < timer) {
            return false;
        }
        self.timer = None;
        for peer in 0..self.net.peers.len() as u32 {
            if self.net.peers[peer as usize].is_some() {
                self.look_after(peer, now);
            }
        }
        if !self.ready.is_empty() {
            self.post_backlogs();
        }
        true
    }
    fn look_after(&mut self, peer: u32, now: Instant) {
        let keepalive = self.keepalive;
        let of = self.peer(peer);
        match &of.stage {
            Stage::Meeting(meeting) if now >= meeting.deadline => {
                return self.lost(peer, &"it does not answer");
            }
            Stage::Meeting(meeting) if now >= meeting.next => return self.say_hello(peer),
            Stage::Meeting(meeting) => {
                let wait = meeting.next.since(now);
                return self.wake_in(wait);
            }
            Stage::Up => {}
        }
        if !of.awaits() {
            return;
        }
        let idle = now.since(of.pinged);
        if idle < keepalive {
            return self.wake_in(keepalive - idle);
        }
        of.pinged = now;
        // What is on its way asks the peer already.
        if of.outstanding() == of.silent && of.backlog.is_empty() {
            self.post(peer, Out::Ping);
        }
        self.wake_in(keepalive);
    }
}
