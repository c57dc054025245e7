//! Connections: establishing them on first use, and keeping them alive.

use std::time::Duration;

use hca_core::{AddressVector, Instant, Psn};
use hca_matching::Process;
use hca_verbs::raw::RawQp;
use hca_verbs::{Endpoint, Grh};

use super::device_work::{DeviceWork, Done, Made, Which};
use super::directory::{Card, nid_of};
use super::hello::{Hello, Identity, NO_RANK};
use super::peer::{Connecting, Out, Peer, Stage, Step};
use super::{Node, State};
use crate::Error;

/// Between the first hello and the second; each further wait is twice as long, up to [`SLOWEST_HELLO`].
const FIRST_HELLO: Duration = Duration::from_millis(20);
const SLOWEST_HELLO: Duration = Duration::from_secs(1);

/// The meaning of a hello from a known peer.
enum HelloOutcome {
    /// Nothing new, or a newer queue pair of the peer while the connection is being made.
    Known,
    /// An earlier connection.
    Old,
    /// Another process in its place, or the process was restarted.
    New,
}

impl Node {
    /// Connects to a target, if it is new, and waits for the device's part of that.
    ///
    /// # Errors
    /// The target is unknown; the device refused something.
    pub(crate) fn meet(&self, ni: u8, target: Process) -> Result<(), Error> {
        let work = self.with(|state| state.prepare(ni, target))?.1;
        match work.and_then(|work| work.run(&self.inner.maker)) {
            Some(done) => self.with(|state| state.conclude(done)),
            None => Ok(()),
        }
    }
}

impl State {
    /// The peer that a target is, which begins to be met if it is new.
    pub(super) fn route(&mut self, ni: u8, target: Process) -> Result<u32, Error> {
        match self.ni(ni).last {
            Some((last, peer)) if last == target => Ok(peer),
            _ => self.route_anew(ni, target),
        }
    }
    /// The same where it is not the last one.
    #[inline(never)]
    pub(super) fn route_anew(&mut self, ni: u8, target: Process) -> Result<u32, Error> {
        let of_ni = self.nis[ni as usize].as_ref().expect("its interface is open");
        let known = match of_ni.rank_of(target) {
            Some(rank) if of_ni.map.is_none() => self.by_rank.get(&rank).copied(),
            _ => of_ni.process(target).and_then(|process| self.by_process.get(&process).copied()),
        };
        let peer = known.map_or_else(|| self.meet(ni, target), Ok)?;
        self.ni(ni).last = Some((target, peer));
        Ok(peer)
    }
    /// Whether the directory must be asked before a target can be reached.
    pub(crate) fn is_unknown(&self, ni: u8, target: Process) -> bool {
        let of_ni = self.nis[ni as usize].as_ref().expect("its interface is open");
        self.card_of(ni, target).is_none_or(|card| self.stale.contains(&(card.nid, card.pid)))
            && of_ni.in_range(target)
    }
    /// Accepts a possibly stale card, as no better one is known; returns whether there is one.
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
    /// Stores an answer of the directory.
    pub(crate) fn learn(&mut self, card: Card, rank: Option<hca_matching::Rank>) {
        self.stale.remove(&(card.nid, card.pid));
        self.cards.insert((card.nid, card.pid), card);
        if let Some(rank) = rank {
            self.rank_cards.insert(rank, card);
        }
    }
    /// Whether a target's address is known, and nothing of it is here yet.
    pub(crate) fn is_unconnected(&self, ni: u8, target: Process) -> bool {
        self.card_of(ni, target).is_some_and(|card| !self.by_process.contains_key(&(card.nid, card.pid)))
    }
    #[cold]
    fn meet(&mut self, ni: u8, target: Process) -> Result<u32, Error> {
        // A caller that can get an error connects before.
        if !self.in_after && !self.may_meet && self.is_unconnected(ni, target) {
            return Err(Error::Target { target });
        }
        let (peer, work) = self.prepare(ni, target)?;
        self.queued_work.extend(work);
        Ok(peer)
    }
    /// The peer of a target, and for a new one the device work that connects it.
    fn prepare(&mut self, ni: u8, target: Process) -> Result<(u32, Option<DeviceWork>), Error> {
        let &card = self.card_of(ni, target).ok_or(Error::Target { target })?;
        if let Some(&peer) = self.by_process.get(&(card.nid, card.pid)) {
            return Ok((peer, None));
        }
        let of_ni = self.nis[ni as usize].as_ref().expect("its interface is open");
        let rank = of_ni.rank_of(target).filter(|_| of_ni.map.is_none()).unwrap_or(NO_RANK);
        let identity = match (card.nid, card.pid) == (self.identity.nid, self.identity.pid) {
            true => self.identity,
            false => Identity { nid: card.nid, pid: card.pid, rank, incarnation: 0, ..self.identity },
        };
        let (peer, work) = self.new_peer(identity, card, None);
        Ok((peer, Some(work)))
    }
    pub(super) fn new_peer(
        &mut self,
        identity: Identity,
        card: Card,
        hello: Option<Hello>,
    ) -> (u32, DeviceWork) {
        let to = AddressVector { dgid: card.gid, dlid: card.lid, ..AddressVector::default() };
        let psn = Psn::new(self.random() as u32);
        let now = self.clock.now();
        let meeting = Connecting {
            datagrams: card.datagrams,
            step: Step::Making,
            hello,
            is_known: false,
            next: now,
            tries: 0,
            deadline: now + self.connect_timeout,
        };
        self.attempts = self.attempts.wrapping_add(1);
        let peer = Peer::new(identity, meeting, self.attempts);
        let index = self.free_peers.pop().unwrap_or_else(|| {
            self.net.peers.push(None);
            self.net.peers.len() as u32 - 1
        });
        self.net.peers[index as usize] = Some(Box::new(peer));
        self.by_process.insert((identity.nid, identity.pid), index);
        if identity.rank != NO_RANK {
            self.by_rank.insert(identity.rank, index);
        }
        self.wake_in(self.connect_timeout);
        let which = Which { peer: index, attempt: self.attempts };
        (index, DeviceWork::Make { which, to, psn })
    }
    /// Connects the queue pair to one of the peer's, in the place of another that it may be connected to.
    fn begin_connect(&mut self, peer: u32, theirs: (Endpoint, u32)) {
        let of = self.net.peer(peer);
        let Stage::Connecting(meeting) = &mut of.stage else { return };
        let (Some(qp), Some(ours)) = (of.qp.take(), of.ours) else { return };
        let which = Which { peer, attempt: of.attempt };
        let (step, work) = match of.theirs.replace(theirs) {
            Some(_) => (Step::Resetting, DeviceWork::Reset { which, qp }),
            None => (Step::Connecting, DeviceWork::Connect { which, qp, ours, theirs: theirs.0 }),
        };
        (meeting.step, meeting.is_known) = (step, false);
        self.queued_work.push(work);
    }

    /// Sends a hello, and says when the next is due.
    fn say_hello(&mut self, peer: u32) {
        let (from, key, datagrams, now) = (self.identity, self.key, self.datagrams(), self.clock.now());
        let eager_bytes = self.eager_bytes as u32;
        let of = self.net.peers[peer as usize].as_mut().expect("a peer that is there");
        let (attempt, peer_qpn) = (of.attempt, of.theirs.map(|(theirs, _)| theirs.qpn));
        let Stage::Connecting(meeting) = &mut of.stage else { return };
        let (Some(to), Some(endpoint), Step::Here) = (&of.to, of.ours, meeting.step) else { return };
        let hello = Hello { from, key, endpoint, attempt, datagrams, peer_qpn, is_up: false, eager_bytes };
        let wait = (FIRST_HELLO * (1 << meeting.tries.min(10))).min(SLOWEST_HELLO);
        meeting.tries += 1;
        meeting.next = now + wait;
        let until = meeting.deadline.since(now);
        self.net.ports.send_hello(to.clone(), meeting.datagrams, &hello.to_bytes());
        self.wake_in(wait.min(until));
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
                "a Portals peer has another value of eager_bytes; all processes of a job need the same"
            );
        }
        // The sender's address in a datagram is not trusted; no other node has this node's identity.
        let id = (hello.from.nid, hello.from.pid);
        let is_there = hello.endpoint.gid == grh.sgid && hello.from.nid == nid_of(grh.sgid);
        if !is_there || id == (self.identity.nid, self.identity.pid) {
            self.counts.strangers += 1;
            return;
        }
        self.take_hello(&hello);
    }
    /// Handles a hello whose sender's address was verified.
    pub(super) fn take_hello(&mut self, hello: &Hello) {
        let id = (hello.from.nid, hello.from.pid);
        let mut known = self.by_process.get(&id).copied();
        if let Some(peer) = known {
            match self.told_by(peer, hello) {
                HelloOutcome::Known => {}
                HelloOutcome::Old => return,
                HelloOutcome::New => {
                    self.lost(peer, &"the peer was restarted");
                    known = None;
                }
            }
        }
        match known {
            Some(peer) => self.answer_hello(peer, hello),
            None => {
                let (Endpoint { gid, lid, .. }, datagrams) = (hello.endpoint, hello.datagrams);
                let card = Card { nid: id.0, pid: id.1, gid, lid, datagrams };
                let (_, work) = self.new_peer(hello.from, card, Some(*hello));
                self.queued_work.push(work);
            }
        }
    }
    /// Classifies a hello of a known peer.
    fn told_by(&mut self, peer: u32, hello: &Hello) -> HelloOutcome {
        let of = self.peer(peer);
        let incarnation = of.identity.incarnation;
        if incarnation != 0 && incarnation != hello.from.incarnation {
            return HelloOutcome::New;
        }
        let Some((_, attempt)) = of.theirs else { return HelloOutcome::Known };
        match hello.attempt.wrapping_sub(attempt) as i32 {
            i32::MIN..=-1 => HelloOutcome::Old,
            1.. if of.is_up() => HelloOutcome::New,
            _ => HelloOutcome::Known,
        }
    }
    fn answer_hello(&mut self, peer: u32, hello: &Hello) {
        let of = self.net.peer(peer);
        let before = std::mem::replace(&mut of.identity, hello.from);
        if before.rank != hello.from.rank && self.by_rank.get(&before.rank) == Some(&peer) {
            self.by_rank.remove(&before.rank);
        }
        if hello.from.rank != NO_RANK {
            self.by_rank.insert(hello.from.rank, peer);
        }
        let of = self.net.peer(peer);
        let new = of.theirs.is_none_or(|(_, attempt)| attempt != hello.attempt);
        let (Some(to), Some(ours), Some(_)) = (&of.to, of.ours, &of.qp) else {
            return self.keep_hello(peer, hello);
        };
        if new {
            self.keep_hello(peer, hello);
            return self.begin_connect(peer, (hello.endpoint, hello.attempt));
        }
        let knows_ours = hello.peer_qpn == Some(ours.qpn);
        if !hello.is_up {
            let to = to.clone();
            let is_up = of.is_up() || knows_ours;
            let (endpoint, attempt, peer_qpn) = (ours, of.attempt, Some(hello.endpoint.qpn));
            let (from, key, datagrams) = (self.identity, self.key, self.datagrams());
            let eager_bytes = self.eager_bytes as u32;
            let answer = Hello { from, key, endpoint, attempt, datagrams, peer_qpn, is_up, eager_bytes };
            self.net.ports.send_hello(to, hello.datagrams, &answer.to_bytes());
            self.wake_in(FIRST_HELLO);
        }
        if knows_ours {
            self.is_up(peer);
        }
    }
    /// Leaves a hello until the queue pair is back.
    fn keep_hello(&mut self, peer: u32, hello: &Hello) {
        if let Stage::Connecting(meeting) = &mut self.peer(peer).stage {
            meeting.hello = Some(*hello);
        }
    }
    /// The peer's queue pair is known to be connected to this one.
    #[cold]
    pub(super) fn is_up(&mut self, peer: u32) {
        let now = self.clock.now();
        let of = self.peer(peer);
        if let (Stage::Connecting(meeting), None) = (&mut of.stage, &of.qp) {
            meeting.is_known = true;
        } else if !of.is_up() {
            (of.stage, of.pinged) = (Stage::Up, now);
            let id = (of.identity.nid, of.identity.pid);
            self.stale.remove(&id);
            self.counts.connected += 1;
            self.ready.push(peer);
        }
    }

    /// Concludes a piece of device work.
    ///
    /// # Errors
    /// Connecting to a peer failed, and it is dropped.
    pub(super) fn conclude(&mut self, done: Done) -> Result<(), Error> {
        match done {
            Done::Made { which, made: Ok(made) } => self.made(which, made),
            Done::Made { which, made: Err(error) } => self.not_made(which, error),
            Done::Reset { which, qp, result } => self.back(which, qp, result, Self::go_on_behind_reset),
            Done::Connected { which, qp, result } => self.back(which, qp, result, Self::go_on),
            Done::Ended { which, slots } => {
                self.ended(which, slots);
                Ok(())
            }
            Done::Revived { qp } => {
                if let Err(error) = self.net.ports.revived(qp) {
                    self.device_failed(&error);
                }
                Ok(())
            }
        }
    }
    /// The peer of a piece of device work, if it still exists.
    fn of(&mut self, which: Which) -> Option<&mut Peer> {
        let of = self.net.peers.get_mut(which.peer as usize)?.as_deref_mut();
        of.filter(|of| of.attempt == which.attempt)
    }
    fn made(&mut self, which: Which, Made { to, qp, ours }: Made) -> Result<(), Error> {
        let handle = qp.handle();
        if let Some(of) = self.of(which) {
            (of.to, of.ours, of.handle, of.depth) =
                (Some(to), Some(ours), Some(handle), qp.cap().max_send_wr);
            if self.by_qp.len() <= handle.index as usize {
                self.by_qp.resize(handle.index as usize + 1, u32::MAX);
            }
            self.by_qp[handle.index as usize] = which.peer;
        } else if let Some(leaving) = self.leaving.get_mut(&which.attempt) {
            leaving.peer.to = Some(to);
        }
        self.back(which, qp, Ok(()), Self::go_on)
    }
    fn not_made(&mut self, which: Which, error: Error) -> Result<(), Error> {
        if self.of(which).is_some() {
            self.drop_peer(which.peer);
        }
        // There is no queue pair to be destroyed.
        self.ended(which, Ok(Vec::new()));
        Err(error)
    }
    /// A queue pair is back.
    fn back(
        &mut self,
        which: Which,
        qp: RawQp,
        result: Result<(), Error>,
        next: impl FnOnce(&mut Self, u32),
    ) -> Result<(), Error> {
        let Some(of) = self.of(which) else {
            self.queued_work.push(DeviceWork::End { which, qp });
            return result;
        };
        of.qp = Some(qp);
        if let Stage::Connecting(meeting) = &mut of.stage {
            meeting.step = Step::Here;
        }
        match &result {
            Ok(()) => next(self, which.peer),
            Err(error) => self.lost(which.peer, error),
        }
        result
    }
    /// Continues after a queue pair was reset.
    fn go_on_behind_reset(&mut self, peer: u32) {
        if let Some(theirs) = self.peer(peer).theirs.take() {
            self.begin_connect(peer, theirs);
        }
    }
    /// A queue pair is made, or connected.
    fn go_on(&mut self, peer: u32) {
        let id = (self.identity.nid, self.identity.pid);
        let of = self.net.peer(peer);
        let is_own = (of.identity.nid, of.identity.pid) == id;
        let is_connected = of.theirs.is_some();
        let Stage::Connecting(meeting) = &mut of.stage else { return };
        let (hello, is_known) = (meeting.hello.take(), meeting.is_known);
        if is_own && !is_connected {
            let own = (of.ours.expect("its queue pair is made"), of.attempt);
            return self.begin_connect(peer, own);
        }
        if is_known || is_own {
            self.is_up(peer);
        }
        match hello {
            Some(hello) => self.take_hello(&hello),
            None => self.say_hello(peer),
        }
    }

    /// The timer is to fire within so long.
    pub(super) fn wake_in(&mut self, wait: Duration) {
        let at = self.clock.now() + wait;
        if self.timer.is_none_or(|timer| at < timer) {
            (self.timer, self.sooner) = (Some(at), self.offloaded);
            // Sleeping waiters would sleep too long.
            self.found = true;
        }
    }
    /// Something is under way that only a peer can end: it is looked after.
    #[inline]
    pub(super) fn watch(&mut self) {
        if self.timer.is_none() {
            self.wake_in(self.keepalive);
        }
    }
    /// Does the work that is due; returns whether there was any.
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
        true
    }
    fn look_after(&mut self, peer: u32, now: Instant) {
        let keepalive = self.keepalive;
        let of = self.peer(peer);
        match &of.stage {
            Stage::Connecting(meeting) if now >= meeting.deadline => {
                return self.lost(peer, &"it does not answer");
            }
            Stage::Connecting(meeting) if now >= meeting.next && meeting.step == Step::Here => {
                return self.say_hello(peer);
            }
            Stage::Connecting(meeting) => {
                let hello = if meeting.step == Step::Here { meeting.next } else { meeting.deadline };
                let wait = hello.min(meeting.deadline).since(now);
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
        // Messages under way probe the peer already.
        if of.outstanding() == of.silent && of.backlog.is_empty() {
            self.post(peer, Out::Ping);
        }
        self.wake_in(keepalive);
    }
}
