//! Scenes, the parts of a script: each begins and ends while all is quiet.

use hca_core::{Access, QpState, QpType, SendFlags, WcStatus};

use super::draw::{Draw, Reach, Waiting};
use super::script::{Act, Data, Far, KeyOf, Op, Part, Request, Side, slot};
use crate::qp::ALL;

/// What goes wrong with a request of a reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// The peer's key, its rights or its range.
    Far,
    /// An atomic on no word.
    Misaligned,
    /// The key that an earlier request of the queue took back.
    JustInvalidated,
    /// A key to be taken back that can't be.
    Invalidation,
    /// What the peer's queue pair allows.
    NotAllowed,
    /// One's own list.
    Near,
    /// Nobody posts a receive request.
    NotReady,
    /// The receive request is too small.
    TooSmall,
    /// The receive request's list can't be written.
    BadRecv,
}

/// What happens while a request waits for a receive request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// It comes.
    Recv,
    /// The peer takes back a key that a later request uses, and then it comes.
    Dereg,
    /// The queue pair goes to the error state.
    Error,
    /// The queue pair is destroyed.
    Destroy,
}

impl Draw {
    /// One scene.
    pub(super) fn scene(&mut self) {
        self.begin();
        let pair = self.rng.below(self.config.pairs.len());
        let side = self.rng.below(2);
        match (self.service(pair), self.rng.below(12)) {
            (_, 0..=2) => self.traffic(),
            (_, 3) => self.keys_renewed(),
            (_, 4) => self.drained(side, pair),
            (QpType::Rc, 5) => self.invalidated(side, pair),
            (QpType::Rc, 6) if pair == 0 => self.at_rest(side),
            (QpType::Rc, 7) if self.config.timeout.1 == 1 => self.silent_peer(side, pair),
            (QpType::Rc, 7..=8) => self.stuck(side, pair),
            (QpType::Rc, _) => self.failing(side, pair),
            _ => self.unreliable(side, pair),
        }
    }

    /// Several lists of steps, each in its own order, mixed.
    fn mix(&mut self, mut lists: Vec<Vec<Act>>) {
        lists.iter_mut().for_each(|l| l.reverse());
        loop {
            lists.retain(|l| !l.is_empty());
            if lists.is_empty() {
                return;
            }
            let i = self.rng.below(lists.len());
            self.acts.extend(lists[i].pop());
            if self.rng.one_in(4) {
                let turns = 1 + self.rng.below(3);
                self.acts.push(Act::Turn(turns));
            }
        }
    }

    /// Posts requests in batches of several sizes.
    fn posts(&mut self, side: Side, pair: usize, requests: &[Request]) -> Vec<Act> {
        let mut out = Vec::new();
        let mut rest = requests;
        while !rest.is_empty() {
            let n = if self.rng.one_in(3) { 1 } else { 1 + self.rng.below(rest.len()) };
            let (now, later) = rest.split_at(n);
            out.push(Act::Post { side, pair, requests: now.to_vec() });
            rest = later;
        }
        out
    }

    /// Messages both ways on all queue pairs, which all succeed.
    fn traffic(&mut self) {
        let mut lists = Vec::new();
        let mut done = Vec::new();
        let mut taken = [false; 2];
        for pair in 0..self.config.pairs.len() {
            for side in 0..2 {
                let peer = 1 - side;
                let count = self.rng.below(13);
                let mut requests = self.batch(side, pair, count);
                // A shared queue serves one at a time.
                if self.config.srq[peer] && std::mem::replace(&mut taken[peer], true) {
                    self.without_messages(peer, &mut requests);
                }
                let (recvs, enough) = self.recvs_for(peer, pair, &requests);
                if !enough {
                    self.without_messages(peer, &mut requests);
                }
                signal_last(&mut requests);
                let waits = self.service(pair) == QpType::Rc && self.config.rnr_retry == 7;
                let late =
                    if waits && self.rng.one_in(2) { self.rng.below(recvs.len() + 1) } else { recvs.len() };
                let (early, late) = recvs.split_at(late);
                self.acts.extend_from_slice(early);
                lists.push(late.to_vec());
                lists.push(self.posts(side, pair, &requests));
                done.push((peer, pair, requests));
            }
        }
        if self.config.srq[0] && self.rng.one_in(3) {
            let limit = self.rng.below(4) as u32;
            self.acts.push(Act::Limit { side: 0, limit });
        }
        self.mix(lists);
        self.acts.push(Act::Await);
        for (peer, pair, requests) in done {
            self.consumed(peer, pair, &requests);
        }
        if self.rng.one_in(4) {
            self.some_in_advance();
        }
    }

    /// Receive requests for a later scene.
    fn some_in_advance(&mut self) {
        self.begin();
        let pair = self.rng.below(self.config.pairs.len());
        let side = self.rng.below(2);
        for _ in 0..1 + self.rng.below(4) {
            let need = self.length(pair);
            let recv = self.recv(side, pair, need);
            self.acts.extend(recv);
        }
    }

    /// Keys go, and come anew.
    fn keys_renewed(&mut self) {
        for _ in 0..1 + self.rng.below(3) {
            let side = self.rng.below(2);
            let slot = slot::VICTIMS.start + self.rng.below(slot::VICTIMS.len());
            if !self.gone[side][slot] {
                self.acts.push(Act::Dereg { side, slot });
                self.gone[side][slot] = true;
            }
            if self.rng.one_in(2) {
                self.renew(side, slot);
            }
        }
        self.traffic();
    }

    fn renew(&mut self, side: Side, slot: usize) {
        self.acts.push(Act::Rereg { side, slot });
        self.gone[side][slot] = false;
        self.renewed[side][slot] = true;
    }

    /// A send queue that is drained holds what is posted; the peer's requests are served meanwhile.
    fn drained(&mut self, side: Side, pair: usize) {
        let peer = 1 - side;
        let mut held = self.batch(side, pair, 5);
        let mut theirs = self.batch(peer, pair, 5);
        let (for_held, enough) = self.recvs_for(peer, pair, &held);
        if !enough {
            self.without_messages(peer, &mut held);
        }
        let (for_theirs, enough) = self.recvs_for(side, pair, &theirs);
        if !enough {
            self.without_messages(side, &mut theirs);
        }
        signal_last(&mut held);
        signal_last(&mut theirs);
        self.acts.extend(for_held);
        self.acts.extend(for_theirs);
        self.acts.push(Act::Drain { side, pair });
        let lists = vec![self.posts(side, pair, &held), self.posts(peer, pair, &theirs)];
        self.mix(lists);
        let wr_id = held.first().map_or(u64::MAX, |r| r.wr_id);
        self.acts.push(Act::Hold { side, pair, wr_id });
        self.acts.push(Act::State { side, pair, to: QpState::Rts });
        self.acts.push(Act::Await);
        self.consumed(peer, pair, &held);
        self.consumed(side, pair, &theirs);
    }

    /// SENDs that take keys back.
    fn invalidated(&mut self, side: Side, pair: usize) {
        let peer = 1 - side;
        let mut requests = self.batch(side, pair, 3);
        if let Some(inv) = self.invalidation(side, pair, &requests) {
            requests.push(inv);
        }
        requests.extend(self.batch_behind(side, pair, 3, &requests));
        self.all_succeed(side, pair, requests);
        for slot in slot::VICTIMS {
            if self.gone[peer][slot] && self.rng.one_in(2) {
                self.renew(peer, slot);
            }
        }
    }

    /// A SEND that takes back a key of the peer's, which nobody uses from then on.
    fn invalidation(&mut self, side: Side, pair: usize, before: &[Request]) -> Option<Request> {
        let peer = 1 - side;
        let slot = slot::VICTIMS.into_iter().find(|&s| !self.gone[peer][s])?;
        let len = self.length(pair);
        let data = self.data(side, len);
        let taken = before.iter().filter(|r| r.op.consumes_recv()).count();
        if self.waiting(peer, pair).get(taken).is_some_and(|w| w.room < data.len()) {
            return None;
        }
        self.gone[peer][slot] = true;
        let mut request = self.request(Op::SendInv(slot, KeyOf::Good), data);
        // Without the fence a READ before it may find the key gone.
        request.flags |= SendFlags::FENCE;
        Some(request)
    }

    /// Like [`batch`](Self::batch), behind others.
    fn batch_behind(&mut self, side: Side, pair: usize, n: usize, before: &[Request]) -> Vec<Request> {
        let taken = before.iter().filter(|r| r.op.consumes_recv()).count();
        let mut requests = self.batch(side, pair, n);
        // It looked at the wrong receive requests, if any wait.
        if self.waiting(1 - side, pair).len() > taken {
            requests.retain(|r| !r.op.consumes_recv());
        }
        requests
    }

    fn all_succeed(&mut self, side: Side, pair: usize, mut requests: Vec<Request>) {
        let peer = 1 - side;
        let (recvs, enough) = self.recvs_for(peer, pair, &requests);
        if !enough {
            self.without_messages(peer, &mut requests);
        }
        signal_last(&mut requests);
        self.acts.extend(recvs);
        let posts = self.posts(side, pair, &requests);
        self.mix(vec![posts]);
        self.acts.push(Act::Await);
        self.consumed(peer, pair, &requests);
    }

    /// Leaves out what needs receive requests, for which no place was found; keys that were to be taken back stay.
    fn without_messages(&mut self, peer: Side, requests: &mut Vec<Request>) {
        for request in requests.iter() {
            if let Op::SendInv(slot, KeyOf::Good) = request.op {
                self.gone[peer][slot] = false;
            }
        }
        requests.retain(|r| !r.op.consumes_recv());
    }

    /// A peer that waits in RTR serves requests, and is told that somebody connected.
    fn at_rest(&mut self, side: Side) {
        let peer = 1 - side;
        let psn = self.psns();
        self.rebuilt(psn, Some(peer));
        self.begin();
        let requests = self.batch(side, 0, 6);
        self.all_succeed(side, 0, requests);
        self.acts.push(Act::Rise { side: peer, psn: psn[peer] });
        self.begin();
        self.traffic();
    }

    fn rebuilt(&mut self, psn: [u32; 2], rests: Option<Side>) {
        self.acts.push(Act::Rebuild { psn, rests });
        self.waiting.iter_mut().flatten().for_each(std::collections::VecDeque::clear);
    }

    /// Both ends of a pair that failed come up again.
    fn recover(&mut self, pair: usize) {
        let psn = self.psns();
        if self.config.srq.contains(&true) || self.rng.one_in(3) {
            return self.rebuilt(psn, None);
        }
        self.acts.push(Act::Reset { pair, psn });
        self.waiting[pair].iter_mut().for_each(std::collections::VecDeque::clear);
    }

    /// The peer is gone, or in error.
    fn silent_peer(&mut self, side: Side, pair: usize) {
        let peer = 1 - side;
        if self.rng.one_in(2) {
            self.acts.push(Act::Destroy { side: peer, pair });
        } else {
            self.acts.push(Act::State { side: peer, pair, to: QpState::Error });
        }
        let mut requests = self.batch(side, pair, 6);
        if let Some(first) = requests.first_mut() {
            first.expect = WcStatus::RetryExceeded;
        }
        requests.iter_mut().skip(1).for_each(|r| r.expect = WcStatus::WrFlushed);
        let posts = self.posts(side, pair, &requests);
        self.mix(vec![posts]);
        self.acts.push(Act::Await);
        let psn = self.psns();
        self.rebuilt(psn, None);
    }

    /// A request waits for a receive request, and something happens to what stands behind it.
    fn stuck(&mut self, side: Side, pair: usize) {
        let peer = 1 - side;
        if self.config.rnr_retry != 7 {
            return self.failing(side, pair);
        }
        let mut requests = self.batch(side, pair, 4);
        let (recvs, enough) = self.recvs_for(peer, pair, &requests);
        let before = requests.iter().filter(|r| r.op.consumes_recv()).count();
        if !enough || self.waiting(peer, pair).len() != before {
            self.acts.extend(recvs);
            return;
        }
        let Some(waits) = self.consumer(side, pair) else {
            self.acts.extend(recvs);
            return;
        };
        let (wr_id, at) = (waits.wr_id, requests.len());
        requests.push(waits);
        let mut variant =
            self.rng.of(&[After::Recv, After::Recv, After::Dereg, After::Error, After::Destroy]);
        let victim = if variant == After::Dereg {
            self.behind_with_victim(side, pair, &mut requests)
        } else {
            requests.extend(self.batch_behind(side, pair, 5, &requests));
            None
        };
        signal_last(&mut requests);
        self.acts.extend(recvs);
        let fails = requests.iter().position(|r| r.expect != WcStatus::Success).unwrap_or(requests.len());
        let mut late = Vec::new();
        let mut ends = matches!(variant, After::Error | After::Destroy);
        if !ends {
            let enough;
            (late, enough) = self.recvs_for(peer, pair, &requests[..fails]);
            if !enough {
                (variant, ends) = (After::Error, true);
            }
        }
        if ends {
            requests.iter_mut().skip(at).for_each(|r| r.expect = WcStatus::WrFlushed);
        }
        let posts = self.posts(side, pair, &requests);
        self.mix(vec![posts]);
        self.acts.push(Act::Hold { side, pair, wr_id });
        match variant {
            After::Error => self.acts.push(Act::State { side, pair, to: QpState::Error }),
            After::Destroy => self.acts.push(Act::Destroy { side, pair }),
            After::Recv | After::Dereg => {
                if let Some(slot) = victim {
                    self.acts.push(Act::Dereg { side: peer, slot });
                    self.gone[peer][slot] = true;
                }
                self.acts.extend(late);
            }
        }
        self.acts.push(Act::Await);
        if ends {
            self.unpromised(peer, &requests[at]);
            if variant == After::Destroy {
                let psn = self.psns();
                self.rebuilt(psn, None);
            } else {
                self.recover(pair);
            }
        } else if fails < requests.len() {
            self.recover(pair);
        } else {
            self.consumed(peer, pair, &requests);
        }
    }

    /// A message that needs a receive request.
    fn consumer(&mut self, side: Side, pair: usize) -> Option<Request> {
        let len = self.length(pair).max(1);
        let data = self.data(side, len);
        if data.len() == 0 {
            return None;
        }
        let op = match self.rng.below(3) {
            0 => Op::WriteImm(self.far(1 - side, Reach::Write, data.len())?, 7),
            1 => Op::SendImm(9),
            _ => Op::Send,
        };
        Some(self.request(op, data))
    }

    /// Requests of which one writes to a victim of the peer's; it fails, as its key goes meanwhile.
    fn behind_with_victim(&mut self, side: Side, pair: usize, requests: &mut Vec<Request>) -> Option<usize> {
        let peer = 1 - side;
        requests.extend(self.batch_behind(side, pair, 2, requests));
        let slot = slot::VICTIMS.rev().find(|&s| !self.gone[peer][s])?;
        let data = self.data(side, 100);
        // What was drawn before must not use the region: it would fail first, or not.
        if data.len() != 100 || requests.iter().any(|r| names(r, slot)) {
            return None;
        }
        let victim = self.request(Op::Write(Far { slot, off: 16, key: KeyOf::Good }), data);
        requests.push(Request { expect: WcStatus::RemoteAccess, ..victim });
        let behind = self.batch_behind(side, pair, 3, requests);
        requests.extend(behind.into_iter().map(|r| Request { expect: WcStatus::WrFlushed, ..r }));
        Some(slot)
    }

    /// A request's target, whose content nobody promises after it failed half way, is written anew.
    fn unpromised(&mut self, peer: Side, request: &Request) {
        if let Op::WriteImm(far, _) = request.op {
            let part = Part { slot: far.slot, off: far.off, len: request.data.len(), key: KeyOf::Good };
            self.acts.push(Act::Fill { side: peer, part });
        }
    }

    /// One request of a reliable connection fails: those before it succeed, those behind it are flushed and leave no
    /// trace.
    fn failing(&mut self, side: Side, pair: usize) {
        use Wrong as W;
        let peer = 1 - side;
        let kinds = [
            W::Far,
            W::Far,
            W::Far,
            W::Misaligned,
            W::JustInvalidated,
            W::Invalidation,
            W::NotAllowed,
            W::Near,
            W::Near,
            W::NotReady,
            W::TooSmall,
            W::BadRecv,
        ];
        let kind = self.rng.of(&kinds);
        let count = self.rng.below(6);
        let mut requests = self.batch(side, pair, count);
        if kind == W::NotAllowed {
            // Nor would those before it be.
            requests.retain(|r| matches!(r.op, Op::Send | Op::SendImm(_)));
        }
        if kind == W::JustInvalidated {
            let inv = self.invalidation(side, pair, &requests);
            requests.extend(inv);
        }
        let (recvs, enough) = self.recvs_for(peer, pair, &requests);
        self.acts.extend(recvs);
        let before = requests.iter().filter(|r| r.op.consumes_recv()).count();
        let exact = enough && self.waiting(peer, pair).len() == before;
        if !enough {
            return self.without_messages(peer, &mut requests);
        }
        let Some(wrong) = self.wrong(kind, side, pair, exact) else {
            return self.all_succeed(side, pair, requests);
        };
        let unpromised = wrong.clone();
        requests.push(wrong);
        let behind = self.batch_behind(side, pair, 4, &requests);
        requests.extend(behind.into_iter().map(|r| Request { expect: WcStatus::WrFlushed, ..r }));
        signal_last(&mut requests);
        let posts = self.posts(side, pair, &requests);
        self.mix(vec![posts]);
        self.acts.push(Act::Await);
        self.unpromised(peer, &unpromised);
        let taken = self.waiting(peer, pair).get(before).cloned();
        let written = |p: &Part| p.key == KeyOf::Good && ![slot::READ_ONLY, slot::STRANGE].contains(&p.slot);
        for part in taken.into_iter().flat_map(|w| w.parts).filter(written) {
            self.acts.push(Act::Fill { side: peer, part });
        }
        self.recover(pair);
    }

    /// The request that fails. `exact`: all receive requests are spoken for.
    fn wrong(&mut self, kind: Wrong, side: Side, pair: usize, exact: bool) -> Option<Request> {
        use WcStatus as S;
        use Wrong as W;
        let peer = 1 - side;
        let (mut request, expect) = match kind {
            W::Far => (self.wrong_far(side)?, S::RemoteAccess),
            W::Misaligned => {
                let mut far = self.far(peer, Reach::Atomic, 8)?;
                far.off = (far.off + 1 + self.rng.below(7)) % (3 << 10);
                let op = if self.rng.one_in(2) { Op::FetchAdd(far, 1) } else { Op::CompareSwap(far, 0, 1) };
                (self.answered(side, op, 8)?, S::RemoteInvalidRequest)
            }
            W::JustInvalidated => {
                let slot = slot::VICTIMS.rev().find(|&s| self.gone[peer][s])?;
                let far = Far { slot, off: 8, key: KeyOf::Stale };
                (self.on_far(side, far, 24)?, S::RemoteAccess)
            }
            W::Invalidation => {
                let slot = self.rng.of(&[slot::READ_ONLY, slot::LOCAL, slot::STRANGE]);
                let key = self.rng.of(&[KeyOf::Good, KeyOf::Unknown]);
                let len = self.length(pair);
                let data = self.data(side, len);
                if !exact {
                    return None;
                }
                let recv = self.recv(peer, pair, data.len())?;
                self.acts.push(recv);
                (self.request(Op::SendInv(slot, key), data), S::RemoteAccess)
            }
            W::NotAllowed => {
                let right = self.rng.of(&[Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC]);
                let far = Far { slot: slot::MAIN, off: 64, key: KeyOf::Good };
                let request = match right {
                    Access::REMOTE_WRITE => self.request(
                        Op::Write(far),
                        Data::Parts(vec![Part { slot: slot::MAIN, off: 0, len: 40, key: KeyOf::Good }]),
                    ),
                    Access::REMOTE_READ => self.answered(side, Op::Read(far), 40)?,
                    _ => self.answered(side, Op::FetchAdd(far, 5), 8)?,
                };
                self.acts.push(Act::Allow { side: peer, pair, access: ALL - right });
                (request, S::RemoteAccess)
            }
            W::Near => (self.wrong_near(side, pair)?, S::LocalProtection),
            W::NotReady if exact && self.config.rnr_retry != 7 => {
                (self.consumer(side, pair)?, S::RnrRetryExceeded)
            }
            W::TooSmall if exact => {
                let len = self.length(pair).max(1);
                let data = self.data(side, len);
                if data.len() == 0 {
                    return None;
                }
                let room = self.rng.below(data.len());
                let parts = self.parts(peer, room, true)?;
                self.recv_of(peer, pair, parts);
                (self.request(Op::Send, data), S::RemoteInvalidRequest)
            }
            W::BadRecv if exact => {
                let slot = self.rng.of(&[slot::READ_ONLY, slot::STRANGE, slot::MAIN]);
                let key = if slot == slot::MAIN { KeyOf::Unknown } else { KeyOf::Good };
                let len = 1 + self.rng.below(2000);
                let data = self.data(side, len);
                if data.len() == 0 {
                    return None;
                }
                self.recv_of(peer, pair, vec![Part { slot, off: 0, len: 3000, key }]);
                (self.request(Op::SendImm(3), data), S::RemoteOperation)
            }
            _ => return None,
        };
        request.expect = expect;
        Some(request)
    }

    fn recv_of(&mut self, side: Side, pair: usize, parts: Vec<Part>) {
        let wr_id = self.wr_id();
        self.acts.push(Act::Recv { side, pair, wr_id, parts: parts.clone() });
        let room = parts.iter().map(|p| p.len).sum();
        self.waiting(side, pair).push_back(Waiting { room, parts });
    }

    /// A WRITE, READ or atomic to a place that its key does not cover.
    fn wrong_far(&mut self, side: Side) -> Option<Request> {
        let peer = 1 - side;
        let regions = self.config.regions();
        let main = regions[slot::MAIN].len;
        let at = |slot, off, key| Far { slot, off, key };
        let renewed = slot::VICTIMS.rev().find(|&s| self.renewed[peer][s] || self.gone[peer][s]);
        let len = 1 + self.rng.below(200);
        let far = match self.rng.below(7) {
            0 => at(slot::MAIN, 8, KeyOf::Unknown),
            1 => {
                let len = len % 8 + 1;
                return self.on_far(side, at(slot::MAIN, main - len + 1, KeyOf::Good), len);
            }
            2 => at(slot::MAIN, main + 4096, KeyOf::Good),
            3 => at(slot::STRANGE, 0, KeyOf::Good),
            4 => at(slot::LOCAL, 0, KeyOf::Good),
            5 => at(renewed?, 0, KeyOf::Stale),
            _ => {
                let right = self.rng.one_in(2);
                let far = at(if right { slot::READ_ONLY } else { slot::WRITE_ONLY }, 8, KeyOf::Good);
                if right {
                    let data = self.data(side, len);
                    return (data.len() > 0).then(|| self.request(Op::Write(far), data));
                }
                return self.answered(side, Op::Read(far), len);
            }
        };
        self.on_far(side, far, len)
    }

    /// Some operation on a place.
    fn on_far(&mut self, side: Side, far: Far, len: usize) -> Option<Request> {
        match self.rng.below(3) {
            0 => {
                let data = self.data(side, len);
                (data.len() == len).then(|| self.request(Op::Write(far), data))
            }
            1 => self.answered(side, Op::Read(far), len),
            // Elsewhere it would be misaligned as well.
            _ if far.off.is_multiple_of(8) => self.answered(side, Op::FetchAdd(far, 1), 8),
            _ => self.answered(side, Op::Read(far), len),
        }
    }

    /// A request whose own list does not hold.
    fn wrong_near(&mut self, side: Side, pair: usize) -> Option<Request> {
        let regions = self.config.regions();
        let bad = |slot, off, key| Part { slot, off, len: 1, key };
        let mut bad = match self.rng.below(4) {
            0 => bad(slot::MAIN, 0, KeyOf::Unknown),
            1 => bad(slot::MAIN, regions[slot::MAIN].len, KeyOf::Good),
            2 => bad(slot::STRANGE, 0, KeyOf::Good),
            // What comes back may not be put where nobody may write.
            _ => bad(slot::READ_ONLY, 0, KeyOf::Good),
        };
        let writes = bad.slot == slot::READ_ONLY || self.rng.one_in(3);
        let writes = writes && self.service(pair) == QpType::Rc;
        if bad.slot == slot::READ_ONLY && !writes {
            bad.slot = slot::STRANGE;
        }
        let len = self.rng.below(200);
        let mut parts = self.parts(side, len, writes)?;
        parts.truncate(2);
        let at = self.rng.below(parts.len() + 1);
        parts.insert(at, bad);
        let data = Data::Parts(parts);
        let len = data.len();
        let op = match self.service(pair) {
            QpType::Rc if writes => Op::Read(self.far(1 - side, Reach::Read, len)?),
            QpType::Ud => Op::Send,
            _ => Op::Write(self.far(1 - side, Reach::Write, len)?),
        };
        Some(self.request(op, data))
    }

    /// What the unreliable services drop without a word, and what stops their send queue.
    fn unreliable(&mut self, side: Side, pair: usize) {
        let peer = 1 - side;
        let mut requests = self.batch(side, pair, 6);
        let (recvs, enough) = self.recvs_for(peer, pair, &requests);
        self.acts.extend(recvs);
        if !enough {
            return;
        }
        let before = requests.iter().filter(|r| r.op.consumes_recv()).count();
        let arrives = requests.clone();
        let ud = self.service(pair) == QpType::Ud;
        let fails = self.rng.one_in(2);
        if fails {
            if let Some(wrong) = self.wrong_near(side, pair) {
                requests.push(Request { expect: WcStatus::LocalProtection, ..wrong });
                let behind = self.batch_behind(side, pair, 3, &requests);
                requests.extend(behind.into_iter().map(|r| Request { expect: WcStatus::WrFlushed, ..r }));
            }
        } else if ud {
            let data = self.data(side, 30);
            requests.push(Request { wrong_qkey: true, ..self.request(Op::Send, data) });
        } else {
            requests.extend(self.wrong_far(side).filter(|r| matches!(r.op, Op::Write(_))));
        }
        if !fails && self.waiting(peer, pair).len() == before {
            let data = self.data(side, 50);
            requests.push(self.request(Op::Send, data));
        }
        signal_last(&mut requests);
        let posts = self.posts(side, pair, &requests);
        self.mix(vec![posts]);
        self.acts.push(Act::Await);
        self.consumed(peer, pair, &arrives);
        if requests.iter().any(|r| r.expect == WcStatus::LocalProtection) {
            self.acts.push(Act::State { side, pair, to: QpState::Rts });
        }
    }
}

/// So that somebody waits for all of them.
fn signal_last(requests: &mut [Request]) {
    if let Some(last) = requests.last_mut() {
        last.flags |= SendFlags::SIGNALED;
    }
}

/// Whether a request names a region of the peer's.
fn names(request: &Request, region: usize) -> bool {
    match request.op {
        Op::Write(far) | Op::WriteImm(far, _) | Op::Read(far) => far.slot == region,
        Op::CompareSwap(far, ..) | Op::FetchAdd(far, _) => far.slot == region,
        Op::Send | Op::SendImm(_) | Op::SendInv(..) => false,
    }
}
