//! Queues against an adapter of the test's own, in memory: it reads entries from the ring as their layouts say, and
//! writes completions.

mod mixes;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use hca_core::{
    Completion, CqHandle, CqPort, Lkey, Notify, Payload, PostErrorKind, QpHandle, QpState, QpType, Qpn,
    RecvPort, RecvWr, RemoteAddr, Rkey, SendFlags, SendOp, SendPort, SendWr, Sge, SrqHandle, WcOpcode,
    WcStatus,
};
use hca_prm::{
    BF_OFFSET, CI_MASK, CQ_DOORBELL, CompletionMode, CqDbr, Cqe64, CqeOpcode, CqeSyndrome, CtrlSeg, DataSeg,
    ErrCqe, SrqNextSeg, WqeOpcode, bf_buffer,
};
use proptest::prelude::*;

use super::core::{Counter, QpCore};
use super::recv::RecvQueue;
use super::send::{Bell, SendLimits, SendQueue};
use super::wqe::{BLOCK_CELLS, blocks_for};
use crate::ah::AhTable;
use crate::cq::{CqCore, CqPoller};
use crate::cqe;
use crate::shared::SharedCells;
use crate::srq::{SrqCore, SrqQueue};

/// A doorbell page that keeps what was written to it.
#[derive(Clone, Default)]
struct Page {
    heard: Arc<Mutex<Vec<(usize, u64)>>>,
    whole: Arc<Mutex<Vec<[u8; 64]>>>,
    flames: bool,
}

impl Bell for Page {
    fn ring(&self, turn: bool, value: u64) {
        self.heard.lock().unwrap().push((bf_buffer(0, turn.into(), 0x100), value));
    }
    fn has_flames(&self) -> bool {
        self.flames
    }
    fn ring_whole(&self, turn: bool, entry: &[u8; 64]) {
        self.whole.lock().unwrap().push(*entry);
        self.ring(turn, u64::from_be_bytes(*entry.first_chunk().unwrap()));
    }
    fn arm(&self, value: u64) {
        self.heard.lock().unwrap().push((CQ_DOORBELL, value));
    }
    fn nudge(&self) {}
}

impl Page {
    fn heard(&self) -> Vec<(usize, u64)> {
        core::mem::take(&mut self.heard.lock().unwrap())
    }
}

const QPN: u32 = 0x43;
const CQN: u32 = 0x81;

/// One queue pair, whose queues complete on one completion queue, and the adapter's side of it.
struct Bench {
    qp: Arc<QpCore>,
    send: SendQueue<Page>,
    recv: Option<RecvQueue<Page>>,
    cq: Arc<CqCore>,
    poller: CqPoller<Page>,
    page: Page,
    // The adapter's side.
    sq: SharedCells,
    rq: SharedCells,
    stride: usize,
    cqes: SharedCells,
    log_cq: u32,
    produced: u32,
    /// Blocks of the send queue, and receive requests, that were carried out.
    sent: u16,
    received: u16,
}

const DEPTH: u32 = 8;
const MAX_SGE: u32 = 4;
const MAX_INLINE: u32 = 64;

const LIMITS: SendLimits =
    SendLimits { depth: DEPTH, max_sge: MAX_SGE, max_inline: MAX_INLINE, max_message: 1 << 30 };

impl Bench {
    fn new() -> Self {
        Self::with(QpType::Rc, None, 5)
    }
    fn with(qp_type: QpType, srq: Option<Arc<SrqCore>>, log_cq: u32) -> Self {
        let blocks = (DEPTH * blocks_for(MAX_SGE, MAX_INLINE)).next_power_of_two();
        let sq = SharedCells::on_heap(blocks as usize * BLOCK_CELLS);
        let stride = MAX_SGE as usize;
        let rq = SharedCells::on_heap(DEPTH as usize * stride);
        let record = SharedCells::on_heap(1);
        let handle = QpHandle { index: 1, generation: 2 };
        let has_srq = srq.is_some();
        let qp = Arc::new(QpCore::new(handle, Qpn::new(QPN), qp_type, [blocks, DEPTH], srq, record));
        let cqes = SharedCells::on_heap(4 << log_cq);
        cqe::clear(&cqes);
        let record = SharedCells::on_heap(1);
        let cq = Arc::new(CqCore::new(CqHandle::default(), CQN, log_cq, cqes.clone(), record));
        cq.add(&qp, true, true);
        let page = Page::default();
        let limits = LIMITS;
        let ahs = Arc::new(AhTable::new());
        let send = SendQueue::new(qp.clone(), ahs, 9, sq.clone(), page.clone(), limits);
        let recv = RecvQueue::new(qp.clone(), rq.clone(), page.clone(), stride, DEPTH, MAX_SGE);
        let poller = CqPoller::new(cq.clone(), page.clone(), false, true);
        qp.show(Some(QpState::Rts));
        let recv = (!has_srq).then_some(recv);
        let (produced, sent, received) = (0, 0, 0);
        Self { qp, send, recv, cq, poller, page, sq, rq, stride, cqes, log_cq, produced, sent, received }
    }

    fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        // SAFETY: the adapter of the test reads no memory but the queue.
        #[allow(unsafe_code)]
        unsafe {
            self.send.post_now(wr)
        }
    }
    fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostErrorKind> {
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe {
            self.recv.as_mut().unwrap().post_now(wr)
        }
    }
    fn poll(&mut self) -> Vec<Completion> {
        self.poll_with(7)
    }
    /// With room for so many completions.
    fn poll_with(&mut self, room: usize) -> Vec<Completion> {
        // What stood there before is not to be seen.
        let old = Completion { byte_len: 99, grh: true, solicited: true, ..Completion::default() };
        let mut out = vec![old; room];
        let n = self.poller.poll(&mut out);
        assert!(!self.cq.is_polled(), "who removes a queue pair would wait");
        out.truncate(n);
        out
    }
    fn poll_all(&mut self) -> Vec<Completion> {
        self.poll_all_with(7)
    }
    fn poll_all_with(&mut self, room: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        loop {
            match self.poll_with(room) {
                some if some.is_empty() => return all,
                some => all.extend(some),
            }
        }
    }

    /// What the doorbell record says of the send queue, and of the receive queue.
    fn told(&self) -> [u16; 2] {
        [Counter::Send, Counter::Recv].map(|c| u32::from_be(self.qp.record(c).load(Ordering::Relaxed)) as u16)
    }
    fn free_cqes(&self) -> u32 {
        (1 << self.log_cq) - (self.produced - self.consumed())
    }
    fn consumed(&self) -> u32 {
        // Counters stay below 2^24 in these tests.
        self.cq.announced_consumer_counter()
    }
    fn produce(&mut self, entry: Cqe64) {
        assert!(self.free_cqes() > 0, "the queue of the test is large enough");
        cqe::tests::write(&self.cqes, self.produced, self.log_cq, entry.with(Cqe64::QPN, QPN));
        self.produced += 1;
    }
    /// The entry at the adapter's own place of the send queue, and how many blocks it has.
    fn next_entry(&self) -> Option<(CtrlSeg, Vec<u8>, u16)> {
        if self.told()[0] == self.sent {
            return None;
        }
        let cell = |i: usize| {
            let at = (usize::from(self.sent) * BLOCK_CELLS + i) & (self.sq.len() - 1);
            self.sq.bytes(at, 1)
        };
        let ctrl = CtrlSeg::from_bytes(&cell(0)).unwrap();
        assert_eq!(ctrl.get(CtrlSeg::WQE_INDEX), u32::from(self.sent), "an entry stands where it says");
        assert_eq!(ctrl.get(CtrlSeg::QP_OR_SQ), QPN);
        let cells = ctrl.get(CtrlSeg::DS) as usize;
        Some((ctrl, (0..cells).flat_map(cell).collect(), cells.div_ceil(BLOCK_CELLS) as u16))
    }
    /// Carries one send request out, or fails it.
    fn carry_out(&mut self, failure: Option<CqeSyndrome>) -> Option<(CtrlSeg, Vec<u8>)> {
        let (ctrl, entry, blocks) = self.next_entry()?;
        let at = u32::from(self.sent);
        self.sent = self.sent.wrapping_add(blocks);
        match failure {
            Some(syndrome) => self.fail(CqeOpcode::ReqErr, at, syndrome),
            None if ctrl.get(CtrlSeg::CE) == CompletionMode::Always.code() => {
                let done = Cqe64::new()
                    .with(Cqe64::OPCODE, CqeOpcode::Req.code())
                    .with(Cqe64::S_WQE_OPCODE, ctrl.get(CtrlSeg::OPCODE))
                    .with(Cqe64::BYTE_CNT, 8)
                    .with(Cqe64::WQE_COUNTER, at);
                self.produce(done);
            }
            None => {}
        }
        Some((ctrl, entry))
    }
    fn fail(&mut self, opcode: CqeOpcode, at: u32, syndrome: CqeSyndrome) {
        let entry = ErrCqe::new()
            .with(ErrCqe::OPCODE, opcode.code())
            .with(ErrCqe::SYNDROME, syndrome.code())
            .with(ErrCqe::WQE_COUNTER, at);
        self.produce(Cqe64::from_bytes(entry.as_bytes()).unwrap());
    }
    /// A message of so many bytes takes the next receive request, or it is flushed.
    fn receive(&mut self, flush: bool, bytes: u32) -> bool {
        if self.told()[1] == self.received {
            return false;
        }
        let at = u32::from(self.received);
        self.received = self.received.wrapping_add(1);
        if flush {
            self.fail(CqeOpcode::RespErr, at, CqeSyndrome::WrFlushErr);
        } else {
            let done = Cqe64::new()
                .with(Cqe64::OPCODE, CqeOpcode::RespSend.code())
                .with(Cqe64::BYTE_CNT, bytes)
                .with(Cqe64::WQE_COUNTER, at);
            self.produce(done);
        }
        true
    }
}

const REMOTE: RemoteAddr = RemoteAddr { addr: 0x1000, rkey: Rkey::new(0x77) };

fn write_8(wr_id: u64, flags: SendFlags) -> SendWr<'static> {
    SendWr {
        wr_id,
        op: SendOp::Write(REMOTE),
        flags,
        payload: Payload::Inline(&[1, 2, 3, 4, 5, 6, 7, 8]),
        dest: None,
    }
}
fn ids(completions: &[Completion]) -> Vec<u64> {
    completions.iter().map(|c| c.wr_id).collect()
}

#[test]
fn a_write_of_8_bytes_is_posted_told_carried_out_and_polled() {
    let mut b = Bench::new();
    b.post(&write_8(7, SendFlags::SIGNALED)).unwrap();
    let bell = u64::from(WqeOpcode::RdmaWrite.code()) << 32 | u64::from(QPN) << 8 | 3;
    assert_eq!((b.page.heard(), b.told()), (vec![(BF_OFFSET, bell)], [1, 0]));
    let (_, entry) = b.carry_out(None).unwrap();
    assert_eq!(entry[32..44], [0x80, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
    let got = b.poll();
    let expected = Completion {
        wr_id: 7,
        qp: QpHandle { index: 1, generation: 2 },
        opcode: WcOpcode::RdmaWrite,
        ..Completion::default()
    };
    assert_eq!(got, [expected]);
    assert!(b.poll().is_empty());
    // The other of two doorbells is next.
    b.post(&write_8(8, SendFlags::empty())).unwrap();
    assert_eq!(b.page.heard()[0].0, BF_OFFSET + 0x100);
}

#[test]
fn a_batch_is_told_at_once_and_nothing_new_is_not_told() {
    let mut b = Bench::new();
    let batch = [write_8(1, SendFlags::empty()), write_8(2, SendFlags::SIGNALED)];
    // SAFETY: the adapter of the test reads no memory but the queue.
    #[allow(unsafe_code)]
    unsafe {
        b.send.post(&batch).unwrap();
    }
    assert_eq!((b.page.heard(), b.told()), (vec![], [0, 0]));
    b.send.ring();
    b.send.ring();
    assert_eq!((b.page.heard().len(), b.told()), (1, [2, 0]));
    while b.carry_out(None).is_some() {}
    assert_eq!(ids(&b.poll_all()), [2]);
}

#[test]
fn a_short_request_that_is_posted_by_itself_goes_to_the_doorbell_page_whole() {
    let mut b = Bench::new();
    let page = Page { flames: true, ..b.page.clone() };
    b.send = SendQueue::new(b.qp.clone(), Arc::new(AhTable::new()), 9, b.sq.clone(), page, LIMITS);
    let whole = |b: &Bench| core::mem::take(&mut *b.page.whole.lock().unwrap());
    b.post(&write_8(7, SendFlags::SIGNALED)).unwrap();
    assert_eq!(whole(&b), [*b.sq.bytes(0, BLOCK_CELLS).first_chunk().unwrap()]);
    assert_eq!((b.page.heard()[0].0, b.told()), (BF_OFFSET, [1, 0]));
    // One that is longer, and one before which there is another that nobody was told of, are announced.
    b.post(&SendWr { payload: Payload::Inline(&[9; 40]), ..write_8(8, SendFlags::SIGNALED) }).unwrap();
    // SAFETY: the adapter of the test reads no memory but the queue.
    #[allow(unsafe_code)]
    unsafe {
        b.send.post(&[write_8(9, SendFlags::SIGNALED)]).unwrap();
    }
    b.post(&write_8(10, SendFlags::SIGNALED)).unwrap();
    assert!(whole(&b).is_empty());
    b.post(&write_8(11, SendFlags::SIGNALED)).unwrap();
    assert_eq!(whole(&b), [*b.sq.bytes(5 * BLOCK_CELLS, BLOCK_CELLS).first_chunk().unwrap()]);
    let at: Vec<usize> = b.page.heard().iter().map(|(at, _)| *at).collect();
    assert_eq!(at, [BF_OFFSET + 0x100, BF_OFFSET, BF_OFFSET + 0x100], "by turns");
    while b.carry_out(None).is_some() {}
    assert_eq!(ids(&b.poll_all()), [7, 8, 9, 10, 11]);
}

#[test]
fn a_queue_takes_its_depth_of_the_longest_requests_and_no_more() {
    let mut b = Bench::new();
    let list = [Sge { addr: 64, len: 8, lkey: Lkey::new(1) }; MAX_SGE as usize];
    let op = SendOp::CompareSwap { remote: REMOTE, compare: 1, swap: 2 };
    let long = SendWr {
        wr_id: 1,
        op: SendOp::Read(REMOTE),
        flags: SendFlags::empty(),
        payload: Payload::Sges(&list),
        dest: None,
    };
    let atomic = SendWr { op, payload: Payload::Sges(&list[..1]), ..long };
    for round in 0..5 {
        for _ in 0..DEPTH {
            b.post(&long).unwrap();
        }
        let full = PostErrorKind::QueueFull { depth: DEPTH };
        assert_eq!((b.post(&long), b.post(&atomic)), (Err(full), Err(full)), "round {round}");
        assert!(b.poll().is_empty());
        for _ in 0..DEPTH - 1 {
            b.carry_out(None).unwrap();
        }
        assert_eq!(b.post(&long), Err(full), "nothing has told that they ended");
        b.carry_out(Some(CqeSyndrome::RemoteAccessErr)).unwrap();
        let got = b.poll_all();
        assert_eq!((got.len(), got[0].status), (1, WcStatus::RemoteAccess));
    }
}

#[test]
fn what_is_wrong_with_a_request_is_told_and_those_before_it_stay() {
    let mut b = Bench::new();
    let list = [Sge { addr: 64, len: 8, lkey: Lkey::new(1) }; 6];
    let send = |op, payload| SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, payload, dest: None };
    let big = [Sge { addr: 0, len: 1 << 30, lkey: Lkey::new(1) }, list[0]];
    let add = SendOp::FetchAdd { remote: REMOTE, add: 1 };
    for (wr, error) in [
        (send(SendOp::Send, Payload::Sges(&list)), PostErrorKind::TooManySges { count: 6, max: MAX_SGE }),
        (
            send(SendOp::Send, Payload::Inline(&[0; 65])),
            PostErrorKind::InlineTooLong { len: 65, max: MAX_INLINE },
        ),
        (
            send(SendOp::Send, Payload::Sges(&big)),
            PostErrorKind::MessageTooLong { len: (1 << 30) + 8, max_log2: 30 },
        ),
        (send(add, Payload::Sges(&list[..2])), PostErrorKind::AtomicLength { len: 16 }),
        (
            send(SendOp::Read(REMOTE), Payload::Inline(&[0; 8])),
            PostErrorKind::Unsupported { qp_type: QpType::Rc, op: WcOpcode::RdmaRead },
        ),
    ] {
        // SAFETY: the adapter of the test reads no memory but the queue.
        #[allow(unsafe_code)]
        let refused = unsafe { b.send.post(&[write_8(9, SendFlags::SIGNALED), wr]) }.unwrap_err();
        assert_eq!((refused.accepted, refused.kind), (1, error));
        b.send.ring();
        b.carry_out(None).unwrap();
        assert!(b.carry_out(None).is_none());
        assert_eq!(ids(&b.poll_all()), [9]);
    }
}

#[test]
fn services_refuse_what_they_do_not_offer() {
    let ops = [
        SendOp::Send,
        SendOp::SendImm(1),
        SendOp::Write(REMOTE),
        SendOp::WriteImm(REMOTE, 1),
        SendOp::SendInv(Rkey::new(1)),
        SendOp::Read(REMOTE),
        SendOp::FetchAdd { remote: REMOTE, add: 1 },
    ];
    let list = [Sge { addr: 64, len: 8, lkey: Lkey::new(1) }];
    for (qp_type, offered) in [(QpType::Rc, 7), (QpType::Uc, 4)] {
        let mut b = Bench::with(qp_type, None, 5);
        for (i, op) in ops.into_iter().enumerate() {
            let wr =
                SendWr { wr_id: 0, op, flags: SendFlags::empty(), payload: Payload::Sges(&list), dest: None };
            match b.post(&wr) {
                Ok(()) => assert!(i < offered, "{op:?}"),
                Err(e) => {
                    assert!(i >= offered && matches!(e, PostErrorKind::Unsupported { .. }), "{op:?}: {e}");
                }
            }
        }
    }
    let mut ud = Bench::with(QpType::Ud, None, 5);
    assert_eq!(
        ud.post(&write_8(1, SendFlags::empty())),
        Err(PostErrorKind::Unsupported { qp_type: QpType::Ud, op: WcOpcode::RdmaWrite })
    );
    let send = SendWr { op: SendOp::Send, ..write_8(1, SendFlags::empty()) };
    assert_eq!(ud.post(&send), Err(PostErrorKind::Destination));
    let dest = hca_core::UdDest {
        ah: hca_core::AhHandle::default(),
        qpn: Qpn::new(1),
        qkey: hca_core::Qkey::new(1),
    };
    assert_eq!(ud.post(&SendWr { dest: Some(dest.into()), ..send }), Err(PostErrorKind::AddressHandle));
    assert_eq!(
        Bench::new().post(&SendWr { dest: Some(dest.into()), ..send }),
        Err(PostErrorKind::Destination)
    );
}

#[test]
fn states_take_the_requests_that_they_should() {
    let mut b = Bench::new();
    let recv = RecvWr { wr_id: 1, sges: &[] };
    for state in [QpState::Reset, QpState::Init, QpState::Rtr] {
        b.qp.show(Some(state));
        assert_eq!(b.post(&write_8(1, SendFlags::empty())), Err(PostErrorKind::WrongState(state)));
        assert_eq!(b.post_recv(&recv).is_ok(), state != QpState::Reset);
    }
    for state in [QpState::Rts, QpState::Sqe, QpState::Error] {
        b.qp.show(Some(state));
        b.post(&write_8(1, SendFlags::empty())).unwrap();
        b.post_recv(&recv).unwrap();
    }
    b.qp.show(None);
    assert_eq!(b.post(&write_8(1, SendFlags::empty())), Err(PostErrorKind::Destroyed));
    assert_eq!(b.post_recv(&recv), Err(PostErrorKind::Destroyed));
}

#[test]
fn after_an_error_every_request_is_flushed_in_order() {
    let mut b = Bench::new();
    for id in 0..6 {
        let flags = if id == 1 { SendFlags::SIGNALED } else { SendFlags::empty() };
        b.post(&write_8(id, flags)).unwrap();
    }
    for id in 10..13 {
        b.post_recv(&RecvWr { wr_id: id, sges: &[] }).unwrap();
    }
    b.carry_out(None).unwrap();
    b.carry_out(None).unwrap();
    b.carry_out(None).unwrap();
    b.carry_out(Some(CqeSyndrome::TransportRetryExcErr)).unwrap();
    while b.carry_out(Some(CqeSyndrome::WrFlushErr)).is_some() {}
    while b.receive(true, 0) {}
    let got = b.poll_all();
    assert_eq!(ids(&got), [1, 3, 4, 5, 10, 11, 12]);
    let status: Vec<WcStatus> = got.iter().map(|c| c.status).collect();
    use WcStatus::{RetryExceeded, Success, WrFlushed as F};
    assert_eq!(status, [Success, RetryExceeded, F, F, F, F, F]);
    assert!(got[4..].iter().all(|c| c.opcode == WcOpcode::Recv));
    assert_eq!((b.qp.send.outstanding(), b.qp.recv.outstanding()), (0, 0));
}

#[test]
fn a_reset_begins_the_queues_anew_and_leaves_no_completion() {
    let mut b = Bench::new();
    for round in 0..3 {
        for id in 0..5 {
            b.post(&write_8(id, SendFlags::SIGNALED)).unwrap();
            b.post_recv(&RecvWr { wr_id: id, sges: &[] }).unwrap();
        }
        b.carry_out(None).unwrap();
        b.carry_out(None).unwrap();
        b.receive(false, 1);
        assert_eq!(b.poll().len(), 3, "round {round}");
        b.carry_out(None).unwrap();
        b.receive(false, 1);
        b.qp.show(Some(QpState::Reset));
        let (qp, cq) = (b.qp.clone(), b.cq.clone());
        cq.reset(&qp, || {
            qp.clear_send();
            qp.clear_recv();
        });
        qp.begin_anew();
        (b.sent, b.received) = (0, 0);
        assert!(b.poll_all().is_empty());
        assert_eq!((b.told(), b.qp.send.outstanding()), ([0, 0], 0));
        b.qp.show(Some(QpState::Rts));
        for id in 0..u64::from(DEPTH) {
            b.post(&write_8(id, SendFlags::SIGNALED)).unwrap();
        }
        assert!(b.post(&write_8(9, SendFlags::SIGNALED)).is_err());
        while b.carry_out(None).is_some() {}
        assert_eq!(ids(&b.poll_all()), (0..u64::from(DEPTH)).collect::<Vec<_>>());
        b.page.heard();
    }
}

#[test]
fn requests_of_which_nobody_was_told_before_a_reset_are_told_to_nobody_behind_it() {
    let mut b = Bench::new();
    // Posting is unsafe by the port's contract.
    // SAFETY: the adapter of the test reads no memory but the queues.
    #[allow(unsafe_code)]
    let post = |b: &mut Bench| unsafe {
        b.send.post(&[write_8(1, SendFlags::SIGNALED); 2]).unwrap();
        b.recv.as_mut().unwrap().post(&[RecvWr { wr_id: 1, sges: &[] }; 2]).unwrap();
    };
    let ring = |b: &mut Bench| {
        b.send.ring();
        b.recv.as_mut().unwrap().ring();
        (b.told(), b.page.heard().len())
    };
    post(&mut b);
    b.qp.show(Some(QpState::Reset));
    assert_eq!(ring(&mut b), ([0, 0], 0), "it is being reset");
    let (qp, cq) = (b.qp.clone(), b.cq.clone());
    cq.reset(&qp, || {
        qp.clear_send();
        qp.clear_recv();
    });
    qp.begin_anew();
    assert_eq!(ring(&mut b), ([0, 0], 0), "it is in RESET");
    b.qp.show(Some(QpState::Rts));
    assert_eq!(ring(&mut b), ([0, 0], 0), "it has begun anew");
    post(&mut b);
    assert_eq!(ring(&mut b), ([2, 2], 1));
}

#[test]
fn a_queue_pair_that_is_removed_leaves_no_completion_and_a_later_one_of_its_number_finds_none() {
    let mut b = Bench::new();
    b.post(&write_8(1, SendFlags::SIGNALED)).unwrap();
    b.post(&write_8(2, SendFlags::SIGNALED)).unwrap();
    b.carry_out(None).unwrap();
    let other = Arc::new(QpCore::new(
        QpHandle { index: 9, generation: 0 },
        Qpn::new(QPN),
        QpType::Rc,
        [8, 8],
        None,
        SharedCells::on_heap(1),
    ));
    b.cq.remove(&b.qp.clone());
    // The number is used anew at once, and the first request stands where the old one's did.
    other.send.note(0, 0, 1, super::shadow::Noted { wr_id: 5, tag: 0 });
    b.cq.add(&other, true, true);
    assert!(b.poll().is_empty());
    b.sent = 0;
    b.carry_out(None).unwrap();
    let got = b.poll();
    assert_eq!((got.len(), got[0].wr_id, got[0].qp.index), (1, 5, 9));
}

#[test]
fn queue_pairs_are_found_by_number_among_others_wherever_they_stand() {
    let mut b = Bench::new();
    // All of them, and the one that is not there, belong to one place of eight.
    let (numbers, nobody) = ([QPN - 3, QPN + 5], QPN + 13);
    let others = numbers.map(|qpn| {
        let handle = QpHandle { index: qpn, generation: 0 };
        let record = SharedCells::on_heap(1);
        let qp = Arc::new(QpCore::new(handle, Qpn::new(qpn), QpType::Rc, [8, 8], None, record));
        b.cq.add(&qp, true, true);
        qp
    });
    let write = |b: &mut Bench, opcode: CqeOpcode, qpn| {
        let entry = Cqe64::new().with(Cqe64::OPCODE, opcode.code()).with(Cqe64::QPN, qpn);
        cqe::tests::write(&b.cqes, b.produced, b.log_cq, entry);
        b.produced += 1;
    };
    for room in [1, 4] {
        for qp in &others {
            let seq = [qp.send.oldest(), qp.recv.oldest()];
            qp.send.note(seq[0], 0, 1, super::shadow::Noted { wr_id: 5, tag: 0 });
            qp.recv.note(seq[1], 0, 1, super::shadow::Noted { wr_id: 6, tag: 0 });
        }
        for qpn in [nobody, numbers[1], numbers[0]] {
            write(&mut b, CqeOpcode::Req, qpn);
            write(&mut b, CqeOpcode::RespSend, qpn);
        }
        let got: Vec<_> = b.poll_all_with(room).iter().map(|c| (c.wr_id, c.qp.index)).collect();
        let expected = [(5, numbers[1]), (6, numbers[1]), (5, numbers[0]), (6, numbers[0])];
        assert_eq!(got, expected, "room for {room}");
    }
}

#[test]
fn completions_that_make_no_sense_are_passed_over() {
    let mut b = Bench::new();
    b.post(&write_8(1, SendFlags::SIGNALED)).unwrap();
    let send = Cqe64::new().with(Cqe64::OPCODE, CqeOpcode::Req.code());
    b.produce(send.with(Cqe64::WQE_COUNTER, 1));
    b.produce(send.with(Cqe64::WQE_COUNTER, 16));
    b.produce(Cqe64::new().with(Cqe64::OPCODE, CqeOpcode::RespSend.code()));
    b.produce(Cqe64::new().with(Cqe64::OPCODE, CqeOpcode::ResizeCq.code()));
    let (at, entry) = (b.produced, Cqe64::new().with(Cqe64::QPN, 0x99_9999));
    cqe::tests::write(&b.cqes, at, b.log_cq, entry);
    b.produced += 1;
    b.carry_out(None).unwrap();
    assert_eq!(ids(&b.poll()), [1]);
}

#[test]
fn a_queue_is_armed_by_the_same_word_in_record_and_page_and_anew_after_an_event() {
    let mut b = Bench::new();
    let armed = |b: &mut Bench, notify| {
        b.page.heard();
        b.poller.arm(notify);
        let record = b.cq.record_word(CqDbr::ARM_CI.offset());
        assert_eq!(b.page.heard(), [(CQ_DOORBELL, u64::from(record) << 32 | u64::from(CQN))]);
        record
    };
    assert_eq!(armed(&mut b, Notify::Solicited), 1 << 24);
    assert_eq!(armed(&mut b, Notify::Any), 0);
    assert_eq!(armed(&mut b, Notify::Solicited), 0, "what asks for more is not taken back");
    b.post(&write_8(1, SendFlags::SIGNALED)).unwrap();
    b.carry_out(None).unwrap();
    assert_eq!(b.poll().len(), 1);
    assert_eq!(armed(&mut b, Notify::Any), 1, "the same request number, as no event came");
    b.cq.completed();
    assert_eq!(armed(&mut b, Notify::Solicited), 1 << 28 | 1 << 24 | 1);
    assert_eq!(armed(&mut b, Notify::Any), 1 << 28 | 1);
    (0..3).for_each(|_| b.cq.completed());
    assert_eq!(armed(&mut b, Notify::Any), 1, "two bits");
}

#[test]
fn the_descriptor_is_readable_after_an_event_and_no_more_once_armed() {
    use std::os::fd::AsFd;
    let mut b = Bench::new();
    b.poller.arm(Notify::Any);
    let fd = b.poller.wait_fd().unwrap().as_fd().try_clone_to_owned().unwrap();
    let readable = || {
        let mut set = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut set, Some(&rustix::time::Timespec::default())).unwrap() == 1
    };
    assert!(readable(), "what came before there was a descriptor is not lost");
    b.poller.arm(Notify::Any);
    assert!(!readable());
    b.cq.completed();
    assert!(readable());
    b.poller.arm(Notify::Any);
    assert!(!readable());
    b.cq.die();
    assert!(readable());
}

#[test]
fn a_dead_adapter_ends_what_is_outstanding_once() {
    let mut b = Bench::new();
    for id in 0..4 {
        b.post(&write_8(id, SendFlags::empty())).unwrap();
        b.post_recv(&RecvWr { wr_id: 10 + id, sges: &[] }).unwrap();
    }
    b.post(&write_8(4, SendFlags::SIGNALED)).unwrap();
    b.carry_out(None).unwrap();
    b.carry_out(Some(CqeSyndrome::RemoteOpErr)).unwrap();
    b.cq.die();
    let got = b.poll_all();
    assert_eq!(ids(&got), [1, 2, 3, 4, 10, 11, 12, 13]);
    assert_eq!(got[0].status, WcStatus::RemoteOperation);
    assert!(got[1..].iter().all(|c| c.status == WcStatus::Fatal && c.qp == b.qp.handle));
    assert_eq!((got[1].opcode, got[5].opcode), (WcOpcode::RdmaWrite, WcOpcode::Recv));
}

const REMOTE_WORD: [Sge; 1] = [Sge { addr: 64, len: 8, lkey: Lkey::new(1) }];

#[test]
fn an_operation_that_has_no_entry_is_refused_with_any_data() {
    let mut b = Bench::new();
    let ops = [
        SendOp::LocalInv(REMOTE.rkey),
        SendOp::AtomicWrite { remote: REMOTE, value: [1; 8] },
        SendOp::Flush {
            remote: REMOTE,
            len: 8,
            placement: hca_core::wire::Placement::GLOBAL_VISIBILITY,
            selectivity: hca_core::wire::Selectivity::Range,
        },
    ];
    let payloads =
        [Payload::Sges(&[]), Payload::Sges(&REMOTE_WORD), Payload::Inline(&[]), Payload::Inline(&[7; 8])];
    for op in ops {
        for payload in payloads {
            let refused = b.post(&SendWr { op, payload, ..write_8(1, SendFlags::SIGNALED) });
            let unsupported = PostErrorKind::Unsupported { qp_type: QpType::Rc, op: op.wc_opcode() };
            assert_eq!(refused, Err(unsupported), "{op:?} {payload:?}");
        }
    }
    assert_eq!((b.page.heard(), b.told()), (vec![], [0, 0]));
}
