//! Two queue pairs with a connection by messages, and the two channels between them: each channel keeps its messages in
//! order.
#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod lane;
pub mod plan;

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use crate::pair::*;
use lane::Quick;

pub const MS: u64 = 1_000_000;
/// The number of A's first request.
pub const NUMBER: u16 = PSN as u16;
/// Data bytes of one message.
pub const PIECE: usize = 4096;
/// The time without an answer before a request is sent again for the first time.
pub const RESEND_NS: u64 = 16 * MS;

/// The kind of a message, from its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum M {
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
    Hello,
    Ack,
    Nak,
    ReadData,
    Original,
    Fetched,
    AtomicWrite,
    Flush,
}
pub const FIRST: u8 = 1;
pub const LAST: u8 = 2;
pub const SOLICITED: u8 = 4;
pub const LENT: u8 = 8;
pub const LIMITED: u8 = 4;
pub const NOT_LENT: u8 = 8;

const KINDS: [M; 16] = [
    M::Send,
    M::SendImm,
    M::SendInv,
    M::Write,
    M::WriteImm,
    M::Read,
    M::CompareSwap,
    M::FetchAdd,
    M::Hello,
    M::Ack,
    M::Nak,
    M::ReadData,
    M::Original,
    M::Fetched,
    M::AtomicWrite,
    M::Flush,
];

/// A message, made or taken apart by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Msg {
    pub kind: M,
    pub flags: u8,
    pub to: Qpn,
    pub number: u16,
    pub done: u16,
    pub extra: u32,
    pub body: Vec<u8>,
}

impl Msg {
    pub fn new(kind: M, to: Side, number: u16) -> Self {
        Self { kind, flags: FIRST | LAST, to: qpn(to), number, done: 0, extra: 0, body: Vec::new() }
    }
    pub fn flags(self, flags: u8) -> Self {
        Self { flags, ..self }
    }
    pub fn done(self, done: u16) -> Self {
        Self { done, ..self }
    }
    pub fn extra(self, extra: u32) -> Self {
        Self { extra, ..self }
    }
    pub fn data(mut self, len: usize) -> Self {
        self.body.resize(self.body.len() + len, 0x5a);
        self
    }
    pub fn remote(mut self, remote: RemoteAddr, len: u32) -> Self {
        self.body.extend(remote.addr.to_ne_bytes());
        self.body.extend(remote.rkey.raw().to_ne_bytes());
        self.body.extend(len.to_ne_bytes());
        self
    }
    pub fn bytes(&self) -> Vec<u8> {
        let kind = self.kind as u32 | u32::from(self.flags) << 4 | self.to.raw() << 8;
        let numbers = u32::from(self.number) | u32::from(self.done) << 16;
        let mut out = Vec::new();
        for word in [kind, numbers, self.extra] {
            out.extend(word.to_ne_bytes());
        }
        out.extend(&self.body);
        out
    }
    pub fn parse(bytes: &[u8]) -> Self {
        let word = |i: usize| u32::from_ne_bytes(bytes[i * 4..i * 4 + 4].try_into().unwrap());
        Self {
            kind: KINDS[(word(0) & 15) as usize],
            flags: (word(0) >> 4 & 15) as u8,
            to: Qpn::new(word(0) >> 8),
            number: word(1) as u16,
            done: (word(1) >> 16) as u16,
            extra: word(2),
            body: bytes[HEAD_BYTES..].to_vec(),
        }
    }
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Two queue pairs by messages. The parts of `Pair` for packets (its wire, script and turns) are unused.
pub struct Ways {
    pair: Pair,
    /// The messages on their way from each side.
    pub way: [VecDeque<Vec<u8>>; 2],
    /// All that ever left, in order.
    pub log: Vec<(Side, Msg)>,
    /// Messages that a way takes while others are in it.
    pub room: usize,
    /// The most messages that a side sends in one go.
    pub burst: usize,
    /// Whether hosts reach the memory of each other.
    pub reach: bool,
    /// The use of the fast path: 0: never; 1: always; n: except every nth time.
    pub quick: u32,
    turns: u32,
    /// The messages of each side that took the fast path.
    pub went: [Quick; 2],
}

impl Deref for Ways {
    type Target = Pair;
    fn deref(&self) -> &Pair {
        &self.pair
    }
}
impl DerefMut for Ways {
    fn deref_mut(&mut self) -> &mut Pair {
        &mut self.pair
    }
}

impl Ways {
    /// Both sides in RTS.
    pub fn new(setup: &Setup) -> Self {
        let mut ways = Self::reset(setup);
        for side in [A, B] {
            ways.ready_to_receive(side, setup);
            ways.ready_to_send(side, setup);
        }
        // Both look once whether there is something to send.
        ways.settle();
        ways
    }
    pub fn rc() -> Self {
        Self::new(&Setup::default())
    }
    /// Both sides in RESET.
    pub fn reset(setup: &Setup) -> Self {
        let mut pair = Pair::reset(setup);
        for side in [A, B] {
            pair.node(side).qp.use_messages(true);
        }
        let way = [VecDeque::new(), VecDeque::new()];
        let (log, went) = (Vec::new(), [Quick::default(); 2]);
        Self { pair, way, log, room: usize::MAX, burst: 64, reach: false, quick: 0, turns: 0, went }
    }
    /// A in RTS, and B where it drops all messages.
    pub fn one_sided(setup: &Setup) -> Self {
        let mut ways = Self::reset(setup);
        ways.ready_to_receive(A, setup);
        ways.ready_to_send(A, setup);
        ways
    }
    /// Calls `f` with a side, which may reach the other's memory meanwhile if hosts do.
    pub fn with<R>(&mut self, side: Side, f: impl FnOnce(Instant, &mut Qp, &mut MockHost) -> R) -> R {
        if self.reach {
            let memory = core::mem::take(&mut self.node(side.other()).host.mem);
            self.node(side).host.near.memory = memory;
        }
        let r = self.pair.with(side, f);
        if self.reach {
            let memory = core::mem::take(&mut self.node(side).host.near.memory);
            self.node(side.other()).host.mem = memory;
        }
        r
    }
    fn sink(&self, side: Side) -> VecSink {
        VecSink::with_room(self.room.saturating_sub(self.way[side as usize].len()))
    }
    fn took(&mut self, side: Side, sink: VecSink) -> usize {
        let sent = sink.out.len();
        for (to, bytes) in sink.out {
            assert!(to.is_none() && bytes.len() <= MAX_MESSAGE);
            self.log.push((side, Msg::parse(&bytes)));
            self.way[side as usize].push_back(bytes);
        }
        sent
    }
    /// Lets a side send all messages except an acknowledgement.
    pub fn send_side(&mut self, side: Side) -> usize {
        if !self.node(side).qp.wants_transmit() {
            return 0;
        }
        let by_lines = if self.is_quick() { self.send_quick_at_most(side, self.burst).0 } else { 0 };
        let (mut sink, burst) = (self.sink(side), self.burst - by_lines);
        self.with(side, |now, qp, host| qp.poll_transmit(now, host, &mut sink, burst));
        by_lines + self.took(side, sink)
    }
    /// Lets a side send the acknowledgement that it owes.
    pub fn ack_side(&mut self, side: Side) -> usize {
        let mut sink = self.sink(side);
        self.with(side, |now, qp, host| qp.poll_ack(now, host, &mut sink));
        self.took(side, sink)
    }
    /// Posts a request without a notification of the queue pair.
    pub fn queue(&mut self, side: Side, op: SendOp, addr: usize, len: u32) {
        let request = SendRequest { op: op.into(), flags: SendFlags::SIGNALED, len, dest: None };
        let host = &mut self.node(side).host;
        host.push(Posted { request, addr, bad: false });
    }
    /// Lets a side send the requests just posted: by the fast path, or by `Qp::send_messages`.
    pub fn send_at_once(&mut self, side: Side) -> bool {
        if self.is_quick() && self.send_quick(side) {
            return true;
        }
        let mut sink = self.sink(side);
        let all = self
            .with(side, |now, qp, host| qp.may_send_messages() && qp.send_messages(now, host, &mut sink, 64));
        self.took(side, sink);
        all
    }
    /// Lets a side take the next message that is on its way to it.
    pub fn take(&mut self, side: Side) -> bool {
        let Some(bytes) = self.way[side.other() as usize].pop_front() else { return false };
        self.hand(side, &bytes);
        true
    }
    /// Lets a side take all that is on its way to it.
    pub fn take_all(&mut self, side: Side) {
        while self.take(side) {}
    }
    /// Lets a side send all messages except an acknowledgement, and the other side take all that is on its way to it.
    pub fn flow(&mut self, side: Side) {
        self.send_side(side);
        self.take_all(side.other());
    }
    pub fn hand(&mut self, side: Side, bytes: &[u8]) {
        if self.is_quick() && self.take_quick(side, bytes) {
            return;
        }
        self.with(side, |now, qp, host| qp.handle_message(now, bytes, host));
    }
    pub fn hand_msg(&mut self, side: Side, msg: &Msg) {
        self.hand(side, &msg.bytes());
    }
    pub fn fire(&mut self, side: Side) -> bool {
        let now = self.instant();
        self.with(side, |_, qp, host| {
            let due = qp.next_deadline().is_some_and(|d| d <= now);
            if due {
                qp.handle_timeout(now, host);
            }
            due
        })
    }
    /// Sends, takes, and else lets the next timer fire. `false`: all is quiet.
    pub fn turn(&mut self) -> bool {
        let mut any = false;
        for side in [A, B] {
            any |= self.send_side(side) > 0;
            any |= self.ack_side(side) > 0;
        }
        for side in [A, B] {
            any |= !self.way[side.other() as usize].is_empty();
            self.take_all(side);
        }
        any || self.skip()
    }
    /// Lets the next timer fire. `false`: there is none.
    pub fn skip(&mut self) -> bool {
        let deadlines = [&self.a, &self.b].into_iter().filter_map(|n| n.qp.next_deadline());
        let Some(at) = deadlines.map(Instant::as_nanos).min() else { return false };
        self.now = self.now.max(at);
        self.fire(A);
        self.fire(B);
        true
    }
    /// Steps until all is quiet.
    pub fn run(&mut self) {
        // What is done directly may want several turns, in which nothing is sent.
        let mut idle = 0;
        for _ in 0..20_000 {
            if self.turn() {
                idle = 0;
                continue;
            }
            if !self.a.qp.wants_transmit() && !self.b.qp.wants_transmit() {
                return;
            }
            idle += 1;
            assert!(idle < 100, "quiet, but wants to send");
        }
        panic!("not quiet; the last messages: {:?}", &self.log[self.log.len().saturating_sub(10)..]);
    }
    /// Goes on until all is quiet; A's requests, all that it ever posted, ended like this.
    #[track_caller]
    pub fn ends(&mut self, statuses: &[WcStatus]) {
        self.run();
        self.expect_sends(statuses);
    }
    /// Steps without letting time pass until nothing moves.
    pub fn settle(&mut self) {
        loop {
            let before = self.log.len();
            for side in [A, B] {
                self.send_side(side);
                self.ack_side(side);
                self.take_all(side.other());
            }
            if self.log.len() == before {
                return;
            }
        }
    }
    /// Loses all messages on their way.
    pub fn lose(&mut self) {
        self.way = [VecDeque::new(), VecDeque::new()];
    }
    /// The messages that a side sent, in order.
    pub fn sent(&self, side: Side) -> Vec<&Msg> {
        self.log.iter().filter(|(s, _)| *s == side).map(|(_, m)| m).collect()
    }
    pub fn kinds(&self, side: Side) -> Vec<M> {
        self.sent(side).iter().map(|m| m.kind).collect()
    }
    /// How many messages of a kind a side sent.
    pub fn sent_of(&self, side: Side, kind: M) -> usize {
        self.kinds(side).into_iter().filter(|k| *k == kind).count()
    }
    /// The limit of A's SENDs that B told last by itself.
    pub fn last_limit(&self) -> Option<u32> {
        let told = self.sent(B).into_iter().rfind(|m| m.kind == M::Ack && m.has(LIMITED));
        told.map(|m| m.extra)
    }
    fn syndromes(&self, side: Side) -> Vec<Syndrome> {
        let naks = self.sent(side).into_iter().filter(|m| m.kind == M::Nak);
        naks.filter_map(|m| Syndrome::decode(m.extra as u8)).collect()
    }
    pub fn naks(&self, side: Side) -> Vec<NakCode> {
        let code = |s| if let Syndrome::Nak(code) = s { Some(code) } else { None };
        self.syndromes(side).into_iter().filter_map(code).collect()
    }
    pub fn rnr_naks(&self, side: Side) -> usize {
        self.syndromes(side).iter().filter(|s| matches!(s, Syndrome::RnrNak(_))).count()
    }
}
