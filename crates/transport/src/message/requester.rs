//! The requester: it carries out requests in the order of their posts, as messages or directly on the peer's memory.

mod completer;
mod pieces;

use hca_core::{Instant, Psn, WcStatus};

use super::{FIRST, Head, LAST, MAX_DATA, Op, reserve};
use crate::connection::{Path, Variant};
use crate::emit::local_status;
use crate::inflight::Kind;
use crate::refusal::Rnr;
use crate::requester::{NEVER, flush};
use crate::rules::{Credits, check, may_begin};
use crate::{Count, Direct, Host, SendRequest, TxSink};

/// How long nothing is heard before requests are sent again: at first, and at most.
const RESEND_NS: (u64, u64) = (16_000_000, 256_000_000);

/// When an address at which nobody was is looked at again.
const LOOK_AGAIN_NS: u64 = 10_000_000;

/// The requester of one connection. Indices are those of the send queue.
#[derive(Debug)]
pub(crate) struct Requester {
    /// The oldest request that is not completed.
    una: u32,
    /// The one that is sent next, or has been in part.
    next: u32,
    /// Behind the last one that was ever sent.
    high: u32,
    /// The number of request 0, if all since then had gone as messages.
    base: u16,
    /// What of `next` has left, if something has.
    current: Option<SendRequest>,
    sent: u32,
    /// Bytes of the response to the oldest request, a READ.
    answered: u32,
    /// What the response to a READ lent, and what is still to be told of it.
    fetch: Fetch,
    fetched: Option<Fetched>,
    /// READs and atomics that wait for their responses.
    unanswered: u32,
    credits: Credits,
    ready: bool,
    /// Something that only the peer can change keeps the next request back.
    blocked: bool,
    /// The peer could not reach what was lent: nothing is lent before the request of this index.
    lends_from: Option<u32>,
    /// The oldest request was refused for want of a receive request, and goes alone until it is taken.
    refused: bool,
    peer: Peer,
    /// Since when the oldest request has made no progress; `NEVER` until the timer first looks.
    since_ns: u64,
    resend_at: u64,
    resend_wait: u64,
    /// The first such wait since the peer was heard.
    first_wait: u64,
    /// The RNR wait that holds up all requests.
    rnr: Rnr,
}

/// The state of the peer, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// Our P_Key is to be told before the next request.
    Strange,
    /// Our P_Key was told.
    Greeted,
    /// Nobody was found at its address.
    Away,
    /// The process has gone, and the connection with it.
    Gone,
}

/// The state of the lent part of a READ's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fetch {
    /// Nothing so far.
    No,
    /// Some of it, and it was fetched.
    Yes,
    /// Some could not be fetched: all is passed over until it comes by value.
    Failed,
}

/// What the peer is to be told of what it lent to a READ.
#[derive(Clone, Copy, Debug)]
struct Fetched {
    number: u16,
    /// From where on the data itself is to be sent.
    not_from: Option<u32>,
}

/// The outcome of an attempt to send.
enum Step {
    Sent,
    /// The request is done, and nothing was sent.
    Done,
    /// Nothing may be sent now.
    Blocked,
    /// The sink is full.
    Full,
    Fail(WcStatus),
}

/// How long a silent peer is waited for at most: the timeout of every try.
fn patience_ns(path: &Path) -> u64 {
    path.timeout_ns.saturating_mul(u64::from(path.retry_cnt) + 1)
}
/// When the timer looks first, which is when silence begins to count: not later than patience alone would end.
fn first_wait(path: &Path) -> u64 {
    RESEND_NS.0.min(patience_ns(path))
}

impl Requester {
    pub(crate) fn new(path: &Path, psn: Psn, index: u32) -> Self {
        Self {
            una: index,
            next: index,
            high: index,
            base: (psn.raw() as u16).wrapping_sub(index as u16),
            current: None,
            sent: 0,
            answered: 0,
            fetch: Fetch::No,
            fetched: None,
            unanswered: 0,
            credits: Credits::default(),
            ready: false,
            blocked: false,
            lends_from: None,
            refused: false,
            peer: Peer::Strange,
            since_ns: 0,
            resend_at: NEVER,
            resend_wait: first_wait(path),
            first_wait: first_wait(path),
            rnr: Rnr::new(path),
        }
    }
    /// Attributes changed, and among them perhaps the P_Key.
    pub(crate) fn update(&mut self, path: &Path) {
        self.greet_again();
        self.rnr.update(path);
        self.first_wait = first_wait(path);
    }
    fn greet_again(&mut self) {
        if self.peer == Peer::Greeted {
            self.peer = Peer::Strange;
        }
    }
    /// The oldest request that is not completed.
    #[inline]
    pub(crate) fn oldest(&self) -> u32 {
        self.una
    }
    /// Whether nothing that was begun is left.
    pub(crate) fn is_drained(&self) -> bool {
        self.una == self.high && self.current.is_none()
    }
    /// Whether nothing was begun, and nothing keeps the next request back.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.is_drained() && self.is_clear()
    }
    /// Whether nothing keeps back a request that is posted when none is under way.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        let is_there = !matches!(self.peer, Peer::Away | Peer::Gone);
        self.current.is_none() && !self.ready && is_there && !self.rnr.is_waiting()
    }
    #[inline]
    pub(crate) fn posted(&mut self) {
        self.ready = !self.rnr.is_waiting();
    }
    #[inline]
    pub(crate) fn wants_transmit(&self) -> bool {
        self.ready
    }
    /// Whether the peer has gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.peer == Peer::Gone
    }
    /// The peer has gone.
    pub(crate) fn peer_gone(&mut self) {
        self.peer = Peer::Gone;
        self.fetched = None;
        self.go_back(self.una);
    }
    #[inline]
    fn is_waiting(&self) -> bool {
        self.una != self.high
    }
    #[inline]
    fn number(&self, index: u32) -> u16 {
        (index as u16).wrapping_add(self.base)
    }

    /// Sends up to `max` messages; returns how many, and why the oldest request failed if it did. `done` is what
    /// they tell of the other direction.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "what `Qp` passes on, and one number")]
    pub(crate) fn poll<H: Host, T: TxSink>(
        &mut self,
        now: Instant,
        path: &Path,
        done: u16,
        may_start: bool,
        host: &mut H,
        tx: &mut T,
        max: usize,
    ) -> (usize, Option<WcStatus>) {
        let mut sent = 0;
        let mut steps = 0;
        if self.fetched.is_some() {
            if !self.tell_fetched(path, done, tx) {
                return (0, None);
            }
            sent = 1;
        }
        // Answers to the peer, and what is posted meanwhile, end no wait.
        if self.rnr.is_waiting() {
            self.ready = false;
            return (sent, None);
        }
        // Whoever let this queue pair send, what is begun now and finds no room goes on.
        self.ready = true;
        while steps < max {
            steps += 1;
            match self.step(now, path, done, may_start, host, tx) {
                Step::Sent => sent += 1,
                Step::Done => {}
                Step::Blocked => {
                    self.ready = false;
                    break;
                }
                Step::Full => break,
                Step::Fail(status) => return (sent, Some(status)),
            }
        }
        (sent, None)
    }

    #[inline]
    fn step<H: Host, T: TxSink>(
        &mut self,
        now: Instant,
        path: &Path,
        done: u16,
        may_start: bool,
        host: &mut H,
        tx: &mut T,
    ) -> Step {
        let request = match self.current {
            Some(request) => request,
            None if self.next == host.sq_posted() || !may_start && self.next == self.high => {
                return Step::Blocked;
            }
            None => host.send_request(self.next),
        };
        let kind = Kind::of(&request.op);
        if self.sent == 0 {
            match self.begin(&request, kind, path, host) {
                None => {}
                Some(step) => return step,
            }
        }
        if self.peer != Peer::Greeted {
            let head = self.head(path, Op::Hello, FIRST | LAST, done, u32::from(path.pkey.raw()));
            if reserve(tx, &head, 0).is_none() {
                return Step::Full;
            }
            tx.commit();
            self.peer = Peer::Greeted;
            return Step::Sent;
        }
        if kind.is_answered() {
            self.ask(now, path, done, &request, host, tx)
        } else {
            self.send_piece(now, path, done, &request, host, tx)
        }
    }

    /// What decides over a request before its first message; `None`: it is sent.
    #[inline]
    fn begin<H: Host>(
        &mut self,
        request: &SendRequest,
        kind: Kind,
        path: &Path,
        host: &mut H,
    ) -> Option<Step> {
        if self.is_gone() {
            return Some(self.local_failure(WcStatus::RetryExceeded));
        }
        if kind == Kind::Local {
            return Some(self.carry_out(host));
        }
        let is_alone = self.una == self.next;
        if self.refused && !is_alone
            || kind.is_answered() && self.unanswered > 0 && self.unanswered >= u32::from(path.max_rd_atomic)
            || !may_begin(request.flags, kind, self.unanswered as usize, &self.credits, is_alone)
        {
            return Some(self.wait());
        }
        // One that was begun before the limit became 0 is still asked for again.
        if self.next == self.high || !kind.is_answered() {
            let several = request.len as usize > MAX_DATA;
            if let Err(status) = check(request, (kind, several), self.next, path, host) {
                return Some(self.local_failure(status));
            }
        }
        // What was sent before has its number, so it is sent again.
        if self.next == self.high
            && path.variant == Variant::Plain
            && matches!(kind, Kind::Write | Kind::Read | Kind::Atomic)
        {
            self.begin_direct(request, host)
        } else {
            None
        }
    }

    /// Does a request straight on the peer's memory where that may be: nothing before it is under way, so it is in
    /// order, and what went wrong before it was not followed by it.
    #[inline]
    fn begin_direct<H: Host>(&mut self, request: &SendRequest, host: &mut H) -> Option<Step> {
        match host.direct(self.next, request, self.is_waiting()) {
            Direct::Unable => None,
            Direct::Later => Some(self.wait()),
            Direct::Again => {
                self.current = Some(*request);
                Some(Step::Full)
            }
            Direct::Fail(e) => Some(self.local_failure(local_status(e))),
            Direct::Done => {
                let len = if Kind::of(&request.op).is_answered() { request.len } else { 0 };
                Some(self.done_unheard(len, host))
            }
        }
    }
    /// Carries out the next request, of which nothing is sent, once all before it are completed.
    #[cold]
    fn carry_out<H: Host>(&mut self, host: &mut H) -> Step {
        if self.una != self.next || self.next != self.high {
            return self.wait();
        }
        match host.carry_out(self.next) {
            Ok(()) => self.done_unheard(0, host),
            Err(status) => Step::Fail(status),
        }
    }
    /// Completes the next request, which is the oldest. The peer hears nothing of it, so that the one behind it has its
    /// number.
    #[inline(always)]
    fn done_unheard<H: Host>(&mut self, len: u32, host: &mut H) -> Step {
        host.complete_send(self.next, WcStatus::Success, len);
        self.current = None;
        self.next = self.next.wrapping_add(1);
        (self.una, self.high) = (self.next, self.next);
        self.base = self.base.wrapping_sub(1);
        Step::Done
    }

    #[inline]
    fn wait(&mut self) -> Step {
        self.blocked = true;
        Step::Blocked
    }

    /// Fails the next request, once all before it are completed.
    #[cold]
    fn local_failure(&mut self, status: WcStatus) -> Step {
        if self.una == self.next { Step::Fail(status) } else { self.wait() }
    }

    #[cold]
    fn note_fetched(&mut self, head: &Head, not_from: Option<u32>) {
        self.fetched = Some(Fetched { number: head.number, not_from });
        self.ready = true;
    }

    #[inline]
    fn head(&self, path: &Path, op: Op, flags: u8, done: u16, extra: u32) -> Head {
        Head { op, flags, dest: path.dest_qpn, number: self.number(self.next), done, extra }
    }

    /// The last message of the next request has left.
    #[inline]
    fn left(&mut self, now: Instant) {
        if !self.is_waiting() {
            self.progressed();
        }
        self.resend_at = self.resend_at.min(now.as_nanos().saturating_add(self.resend_wait));
        self.next = self.next.wrapping_add(1);
        if self.next.wrapping_sub(self.high) as i32 > 0 {
            self.high = self.next;
        }
        (self.current, self.sent) = (None, 0);
    }

    /// Whether all that was ever sent were requests that need no response, and none of it is to be sent again.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.next == self.high && self.unanswered == 0
    }
    /// Whether nothing keeps the next request back, but perhaps the peer's receive requests, and nothing was begun of
    /// it.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.peer == Peer::Greeted
            && self.is_plain()
            && self.current.is_none()
            && !self.refused
            && !self.rnr.is_waiting()
    }
    /// The request that is sent next.
    #[inline]
    pub(super) fn next(&self) -> u32 {
        self.next
    }
    /// The number of the request that is sent next.
    #[inline]
    pub(super) fn next_number(&self) -> u16 {
        self.number(self.next)
    }
    /// Whether the peer is known to have a receive request for it.
    #[inline]
    pub(super) fn has_credit(&self) -> bool {
        self.credits.are_more_than(0)
    }
    /// It was sent, in one message, by an [open](Self::is_open) requester, and will use a receive request.
    #[inline(always)]
    pub(super) fn sent_plain(&mut self, now: Instant) {
        if !self.is_waiting() {
            self.progressed();
        }
        self.credits.take(Kind::Send);
        self.resend_at = self.resend_at.min(now.as_nanos().saturating_add(self.resend_wait));
        self.next = self.next.wrapping_add(1);
        self.high = self.next;
    }
    #[inline]
    pub(super) fn resends_at(&self) -> u64 {
        self.resend_at
    }
    /// How many requests of a [plain](Self::is_plain) requester are done when those before this number are; `None` if
    /// that is for [`done`](Self::done) to judge.
    #[inline]
    pub(super) fn count_done(&self, number: u16) -> Option<u32> {
        let count = u32::from(number.wrapping_sub(self.number(self.una)));
        (count <= self.high.wrapping_sub(self.una)).then_some(count)
    }
    /// So many are completed.
    #[inline]
    pub(super) fn completed(&mut self, count: u32) {
        self.una = self.una.wrapping_add(count);
        self.rnr.progressed();
        self.refused = false;
        self.progressed();
        self.unblock();
    }

    #[inline]
    fn progressed(&mut self) {
        (self.since_ns, self.resend_wait) = (NEVER, self.first_wait);
    }

    /// Sends again from this request on.
    #[cold]
    fn go_back(&mut self, to: u32) {
        if self.next == to && self.sent == 0 {
            self.ready = true;
            return;
        }
        (self.next, self.current, self.sent) = (to, None, 0);
        (self.ready, self.blocked) = (true, false);
    }

    /// What was taken back by going back no longer counts.
    #[cold]
    fn recount<H: Host>(&mut self, from: u32, host: &H) {
        let end = if self.sent > 0 { self.next.wrapping_add(1) } else { self.next };
        let mut index = from;
        while index != end {
            let kind = Kind::of(&host.send_request(index).op);
            self.credits.give_back(kind);
            self.unanswered = self.unanswered.saturating_sub(kind.is_answered().into());
            index = index.wrapping_add(1);
        }
    }

    /// When [`timeout`](Self::timeout) is due.
    #[inline]
    pub(crate) fn deadline_ns(&self) -> u64 {
        if self.rnr.is_waiting() {
            self.rnr.until_ns()
        } else if self.is_waiting() {
            self.resend_at
        } else {
            NEVER
        }
    }

    /// Time passed. An error is the end of the oldest request.
    #[cold]
    pub(crate) fn timeout<H: Host>(
        &mut self,
        now: Instant,
        path: &Path,
        host: &mut H,
    ) -> Result<(), WcStatus> {
        let now_ns = now.as_nanos();
        if self.rnr.is_waiting() {
            self.ready = self.rnr.ends(now_ns);
            return Ok(());
        }
        if !self.is_waiting() || now_ns < self.resend_at {
            return Ok(());
        }
        if self.since_ns == NEVER {
            self.since_ns = now_ns;
        }
        // A timer that comes late says that this process was stopped, not that the peer was silent.
        self.since_ns = self.since_ns.saturating_add(now_ns - self.resend_at).min(now_ns);
        let silent_ns = now_ns - self.since_ns;
        let patience_ns = patience_ns(path);
        if silent_ns >= patience_ns {
            host.count(Count::Timeout);
            return Err(WcStatus::RetryExceeded);
        }
        if silent_ns >= self.resend_wait && self.sent == 0 && self.answered == 0 {
            host.count(Count::Probe);
            self.greet_again();
            self.resend_wait = (self.resend_wait * 2).min(RESEND_NS.1);
            self.recount(self.una, host);
            self.go_back(self.una);
        }
        let wait = self.resend_wait.min(patience_ns - silent_ns);
        self.resend_at = now_ns.saturating_add(wait);
        Ok(())
    }

    /// Nothing can be sent now, as nobody is there. An error is the end of the oldest request.
    #[cold]
    pub(crate) fn unreachable<H: Host>(
        &mut self,
        now: Instant,
        path: &Path,
        host: &H,
    ) -> Result<(), WcStatus> {
        let now_ns = now.as_nanos();
        self.ready = false;
        self.fetched = None;
        let known = self.peer == Peer::Away || self.is_waiting();
        if !self.is_gone() {
            self.peer = Peer::Away;
        }
        if !self.is_waiting() && self.next == host.sq_posted() {
            self.since_ns = NEVER;
            self.rnr.stop();
            return Ok(());
        }
        if self.is_gone() {
            return Err(WcStatus::RetryExceeded);
        }
        if !known || self.since_ns == NEVER {
            self.since_ns = now_ns;
        }
        if now_ns.saturating_sub(self.since_ns) >= patience_ns(path) {
            return Err(WcStatus::RetryExceeded);
        }
        self.rnr.wait_until(now_ns.saturating_add(LOOK_AGAIN_NS));
        Ok(())
    }

    /// Completes the oldest request with `status`, the others as flushed.
    pub(crate) fn flush<H: Host>(&mut self, status: WcStatus, host: &mut H) {
        self.una = flush(self.una, status, host);
        (self.next, self.high) = (self.una, self.una);
        (self.current, self.sent, self.answered, self.unanswered) = (None, 0, 0, 0);
        (self.ready, self.blocked) = (false, false);
        (self.fetch, self.fetched) = (Fetch::No, None);
        self.rnr.stop();
        self.resend_at = NEVER;
    }
}

#[cfg(test)]
mod tests {
    use hca_core::{Mtu, QpAttr, QpType, Qpn};

    use super::*;
    use crate::QpConfig;

    #[test]
    fn an_index_from_which_loans_are_made_again_does_not_count_when_it_comes_again() {
        let config = QpConfig {
            qp_type: QpType::Rc,
            qpn: Qpn::new(2),
            max_rd_atomic_limit: 16,
            max_send_wr: 128,
            window_bytes: 1 << 20,
            port_mtu: Mtu::B4096,
        };
        let path = Path::new(&config, &QpAttr::default());
        let mut r = Requester::new(&path, Psn::new(0), u32::MAX);
        let mut may_at = |index, from| {
            (r.next, r.lends_from) = (index, from);
            (r.may_lend(), r.lends_from)
        };
        // As many requests as there are indices may go by before the peer can't reach something.
        assert_eq!(may_at(1 << 31, None), (true, None));
        let from = Some(5);
        assert_eq!(may_at(u32::MAX, from), (false, from));
        assert_eq!(may_at(4, from), (false, from));
        assert_eq!(may_at(5, from), (true, None));
    }
}
