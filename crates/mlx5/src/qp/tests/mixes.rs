//! Shared receive queues, and requests, completions and threads in any mix.

use hca_core::{AhHandle, Qkey, UdDest};

use super::*;

struct Shared {
    bench: Bench,
    srq: SrqQueue<Page>,
    ring: SharedCells,
    record: SharedCells,
    stride: usize,
    /// Where the adapter is in the list, and how many it took.
    at: u16,
    taken: u16,
}

const SRQ_DEPTH: u32 = 5;

impl Shared {
    fn new() -> Self {
        let core = Arc::new(SrqCore::new(SrqHandle::default(), 3, SRQ_DEPTH));
        let bench = Bench::with(QpType::Rc, Some(core.clone()), 5);
        let stride = 4;
        let ring = SharedCells::on_heap(8 * stride);
        let record = SharedCells::on_heap(1);
        let srq = SrqQueue::new(core, ring.clone(), record.clone(), bench.page.clone(), stride, 2);
        Self { bench, srq, ring, record, stride, at: 0, taken: 0 }
    }
    fn post(&mut self, wr_id: u64) -> Result<(), PostErrorKind> {
        let list = [Sge { addr: wr_id, len: 64, lkey: Lkey::new(4) }];
        // SAFETY: the adapter of the test reads no memory but the queue.
        #[allow(unsafe_code)]
        unsafe {
            self.srq.post_now(&RecvWr { wr_id, sges: &list })
        }
    }
    /// The adapter takes the next request; its place, and what its list says.
    fn take(&mut self) -> Option<(u16, u64)> {
        let told = u32::from_be(self.record.word32(0).load(Ordering::Relaxed)) as u16;
        if told == self.taken {
            return None;
        }
        let bytes = self.ring.bytes(usize::from(self.at) * self.stride, self.stride);
        let list = DataSeg::from_bytes(&bytes[16..]).unwrap();
        assert!(DataSeg::from_bytes(&bytes[32..]).unwrap().is_terminator());
        let at = self.at;
        self.at = SrqNextSeg::from_bytes(&bytes).unwrap().get(SrqNextSeg::NEXT_WQE_INDEX) as u16;
        self.taken = self.taken.wrapping_add(1);
        Some((at, list.get(DataSeg::ADDR)))
    }
    fn complete(&mut self, at: u16) {
        let done =
            Cqe64::new().with(Cqe64::OPCODE, CqeOpcode::RespSend.code()).with(Cqe64::WQE_COUNTER, at.into());
        self.bench.produce(done);
    }
}

#[test]
fn a_shared_queue_takes_its_depth_and_no_more_and_what_ended_makes_room() {
    let mut s = Shared::new();
    for id in 0..u64::from(SRQ_DEPTH) {
        s.post(id).unwrap();
    }
    let full = PostErrorKind::QueueFull { depth: SRQ_DEPTH };
    assert_eq!(s.post(9), Err(full));
    let (first, _) = s.take().unwrap();
    let (second, addr) = s.take().unwrap();
    assert_eq!((addr, s.post(9)), (1, Err(full)));
    s.complete(second);
    assert_eq!(ids(&s.bench.poll()), [1]);
    s.post(9).unwrap();
    assert_eq!(s.post(10), Err(full));
    s.complete(second);
    assert!(s.bench.poll().is_empty(), "nothing is there any more, or not taken yet");
    s.complete(first);
    assert_eq!(ids(&s.bench.poll()), [0]);
    let rest: Vec<u64> = std::iter::from_fn(|| s.take()).map(|(_, addr)| addr).collect();
    assert_eq!(rest, [2, 3, 4, 9]);
}

#[test]
fn a_removed_queue_pair_names_what_it_took_from_a_shared_queue_and_makes_room() {
    let mut s = Shared::new();
    for id in 0..u64::from(SRQ_DEPTH) {
        s.post(id).unwrap();
    }
    for _ in 0..3 {
        let (at, _) = s.take().unwrap();
        s.complete(at);
    }
    // One of them is polled before.
    let mut one = [Completion::default()];
    assert_eq!((s.bench.poller.poll(&mut one), one[0].wr_id), (1, 0));
    let qp = s.bench.qp.clone();
    assert_eq!(s.bench.cq.remove(&qp), [1, 2]);
    assert!(s.bench.poll().is_empty());
    for id in 5..8 {
        s.post(id).unwrap();
    }
    assert!(s.post(8).is_err());
}

#[test]
fn a_reset_queue_pair_leaves_what_it_took_from_a_shared_queue_as_flushed() {
    let mut s = Shared::new();
    for id in 0..u64::from(SRQ_DEPTH) {
        s.post(id).unwrap();
    }
    let places = [(); 3].map(|()| s.take().unwrap().0);
    s.bench.post(&write_8(20, SendFlags::SIGNALED)).unwrap();
    s.complete(places[0]);
    s.bench.carry_out(None).unwrap();
    s.complete(places[1]);
    // One that has failed, of which more is told, goes like the others.
    s.bench.fail(CqeOpcode::RespErr, places[2].into(), CqeSyndrome::LocalLengthErr);
    let qp = s.bench.qp.clone();
    s.bench.cq.reset(&qp, || qp.clear_send());
    qp.begin_anew();
    let got = s.bench.poll_all();
    let flushed = |wr_id| Completion {
        wr_id,
        qp: qp.handle,
        status: WcStatus::WrFlushed,
        opcode: WcOpcode::Recv,
        ..Completion::default()
    };
    assert_eq!(got, [0, 1, 2].map(flushed));
    // Each makes room once.
    for id in 5..8 {
        s.post(id).unwrap();
    }
    assert!(s.post(8).is_err());
    let (at, _) = s.take().unwrap();
    s.complete(at);
    assert_eq!(ids(&s.bench.poll_all()), [3]);
}

#[derive(Clone, Debug)]
enum Step {
    Post {
        kind: u8,
        pieces: u8,
        signaled: bool,
    },
    CarryOut,
    Recv,
    Receive,
    /// With room for so many completions.
    Poll(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..9_u8, 0..=4_u8, any::<bool>())
            .prop_map(|(kind, pieces, signaled)| Step::Post { kind, pieces, signaled }),
        4 => Just(Step::CarryOut),
        2 => Just(Step::Recv),
        2 => Just(Step::Receive),
        1 => (1..8_usize).prop_map(Step::Poll),
    ]
}

/// What the test's own books say of a request.
#[derive(Debug)]
struct Posted {
    id: u64,
    opcode: WcOpcode,
    signaled: bool,
}

const EIGHT: [Sge; 1] = [Sge { addr: 64, len: 8, lkey: Lkey::new(1) }];

/// The operation and the data of a request, by number.
fn request(kind: u8, pieces: usize) -> (SendOp, Payload<'static>) {
    const LIST: [Sge; MAX_SGE as usize] = [Sge { addr: 64, len: 2, lkey: Lkey::new(1) }; MAX_SGE as usize];
    const DATA: [u8; MAX_INLINE as usize] = [7; MAX_INLINE as usize];
    let (list, data) = (Payload::Sges(&LIST[..pieces]), Payload::Inline(&DATA[..pieces * 8]));
    match kind {
        0 => (SendOp::Send, list),
        1 => (SendOp::SendImm(kind.into()), data),
        2 => (SendOp::Write(REMOTE), list),
        3 => (SendOp::Write(REMOTE), data),
        4 => (SendOp::Read(REMOTE), list),
        5 => (SendOp::FetchAdd { remote: REMOTE, add: 1 }, Payload::Sges(&EIGHT)),
        6 => (SendOp::CompareSwap { remote: REMOTE, compare: 1, swap: 2 }, Payload::Sges(&EIGHT)),
        7 => (SendOp::WriteImm(REMOTE, 3), list),
        _ => (SendOp::SendInv(Rkey::new(4)), list),
    }
}

/// A queue pair, and what is to come of its requests.
struct Mix {
    b: Bench,
    id: u64,
    /// Requests that the adapter has not carried out, and those that were not polled.
    sends: VecDeque<Posted>,
    carried: VecDeque<Posted>,
    recvs: VecDeque<u64>,
    received: VecDeque<u64>,
    /// Requests that have not ended.
    in_send: u32,
    in_recv: u32,
}

impl Mix {
    fn new() -> Self {
        let (sends, carried) = (VecDeque::new(), VecDeque::new());
        let (recvs, received) = (VecDeque::new(), VecDeque::new());
        Self { b: Bench::new(), id: 0, sends, carried, recvs, received, in_send: 0, in_recv: 0 }
    }
    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Post { kind, pieces, signaled } => self.post(kind, pieces, signaled),
            Step::CarryOut => self.carry_out(),
            Step::Recv => self.recv(),
            Step::Receive => self.receive(),
            Step::Poll(room) => self.poll(room),
        }
    }
    fn post(&mut self, kind: u8, pieces: u8, signaled: bool) -> Result<(), TestCaseError> {
        let (op, payload) = request(kind, pieces.into());
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let wr = SendWr { wr_id: self.id, op, flags, payload, dest: None };
        let room = self.in_send < DEPTH;
        prop_assert_eq!(self.b.post(&wr).is_ok(), room);
        if room {
            self.sends.push_back(Posted { id: self.id, opcode: op.wc_opcode(), signaled });
            self.in_send += 1;
        }
        self.id += 1;
        Ok(())
    }
    fn carry_out(&mut self) -> Result<(), TestCaseError> {
        if self.b.free_cqes() > 0
            && let Some((ctrl, _)) = self.b.carry_out(None)
        {
            let posted = self.sends.pop_front().unwrap();
            prop_assert_eq!(ctrl.get(CtrlSeg::CE) != 0, posted.signaled);
            self.carried.push_back(posted);
        }
        Ok(())
    }
    fn recv(&mut self) -> Result<(), TestCaseError> {
        let room = self.in_recv < DEPTH;
        prop_assert_eq!(self.b.post_recv(&RecvWr { wr_id: self.id, sges: &EIGHT }).is_ok(), room);
        if room {
            self.recvs.push_back(self.id);
            self.in_recv += 1;
        }
        self.id += 1;
        Ok(())
    }
    fn receive(&mut self) -> Result<(), TestCaseError> {
        let b = &mut self.b;
        if b.free_cqes() > 0 && b.receive(false, 5) {
            let at = usize::from(b.received.wrapping_sub(1)) % DEPTH as usize * b.stride;
            let entry = DataSeg::from_bytes(&b.rq.bytes(at, 1)).unwrap();
            prop_assert_eq!(entry, DataSeg::pointer(8, 1, 64));
            self.received.push_back(self.recvs.pop_front().unwrap());
        }
        Ok(())
    }
    fn poll(&mut self, room: usize) -> Result<(), TestCaseError> {
        for c in self.b.poll_all_with(room) {
            if c.opcode.is_recv() {
                prop_assert_eq!((Some(c.wr_id), c.byte_len), (self.received.pop_front(), 5));
                self.in_recv -= 1;
                continue;
            }
            // Those before it that were not signalled have ended with it.
            let posted = loop {
                self.in_send -= 1;
                let posted = self.carried.pop_front().unwrap();
                if posted.signaled {
                    break posted;
                }
            };
            // What the adapter of the test says of lengths.
            let byte_len = if matches!(posted.opcode, WcOpcode::Send | WcOpcode::RdmaWrite) { 0 } else { 8 };
            let (wr_id, opcode, qp) = (posted.id, posted.opcode, self.b.qp.handle);
            prop_assert_eq!(c, Completion { wr_id, opcode, qp, byte_len, ..Completion::default() });
        }
        prop_assert!(self.carried.iter().all(|p| !p.signaled) && self.received.is_empty());
        prop_assert_eq!(self.b.produced & CI_MASK, self.b.consumed());
        Ok(())
    }
}

proptest! {
    /// Wherever rings and counters begin: each signalled request completes once, in order, with its own number; nothing
    /// is refused before the depth is reached, and all is refused then.
    #[test]
    fn any_mix_of_requests_completes_in_order(steps in prop::collection::vec(step(), 1..400)) {
        let mut mix = Mix::new();
        for step in steps {
            mix.step(&step)?;
        }
    }

    /// Most requests are posted in a way that leaves out what they do not need: it takes and refuses what the other
    /// does, and writes the same entries.
    #[test]
    fn a_request_is_the_same_entry_whichever_way_it_is_posted(
        posts in prop::collection::vec((0..9_u8, 0..=4_u8, 0..8_u8, 0..4_u8), 1..40),
    ) {
        let (mut usual, mut any) = (Bench::new(), Bench::new());
        // A queue whose requests may go to the doorbell page posts none as usual.
        let page = Page { flames: true, ..any.page.clone() };
        any.send = SendQueue::new(any.qp.clone(), Arc::new(AhTable::new()), 9, any.sq.clone(), page, LIMITS);
        for (i, (kind, pieces, flags, odd)) in posts.into_iter().enumerate() {
            let (op, _) = request(kind, 0);
            let lens = [0, 4, 8, 9, u32::MAX];
            let one = [Sge { addr: 64, len: lens[usize::from(pieces)], lkey: Lkey::new(1) }];
            let payload = match odd {
                0 => request(kind, pieces.into()).1,
                1 => Payload::Sges(&one),
                _ => request(3, pieces.into()).1,
            };
            let flags = SendFlags::from_bits_truncate(flags);
            let dest = UdDest { ah: AhHandle::default(), qpn: Qpn::new(1), qkey: Qkey::new(1) };
            let (dest, flags) = ((odd == 3).then_some(dest.into()), flags | SendFlags::SIGNALED);
            let wr = SendWr { wr_id: i as u64, op, flags, payload, dest };
            prop_assert_eq!(usual.post(&wr), any.post(&wr));
            let cells = usual.sq.len();
            prop_assert_eq!(usual.sq.bytes(0, cells), any.sq.bytes(0, cells));
            prop_assert_eq!(usual.told(), any.told());
            for b in [&mut usual, &mut any] {
                b.carry_out(None);
            }
            prop_assert_eq!(usual.poll(), any.poll());
        }
    }

    /// Whatever an adapter writes into completions, no request completes twice, and none that is not outstanding.
    #[test]
    fn garbage_completions_end_each_request_at_most_once(
        entries in prop::collection::vec((any::<[u64; 8]>(), 0..16_u8, 0..20_u16, any::<bool>()), 1..100),
    ) {
        let mut b = Bench::new();
        let mut ended = std::collections::HashSet::new();
        let mut id = 0;
        for (words, opcode, at, ours) in entries {
            while b.post(&write_8(id, SendFlags::empty())).is_ok() {
                id += 1;
            }
            while b.post_recv(&RecvWr { wr_id: id, sges: &[] }).is_ok() {
                id += 1;
            }
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
            let mut entry = Cqe64::from_bytes(&bytes).unwrap().with(Cqe64::OPCODE, u32::from(opcode % 15));
            if ours {
                entry = entry.with(Cqe64::WQE_COUNTER, u32::from(b.sent.wrapping_add(at)));
            }
            b.produce(entry);
            for c in b.poll_all() {
                prop_assert!(c.wr_id < id && ended.insert(c.wr_id), "{} ended twice", c.wr_id);
            }
        }
    }
}

/// A thread polls while another removes queue pairs that have completions: none of these comes afterwards, and
/// what they took from the shared queue is returned by exactly one of the two.
#[test]
fn a_queue_pair_is_removed_while_another_thread_polls() {
    let core = Arc::new(SrqCore::new(SrqHandle::default(), 3, SRQ_DEPTH));
    for round in 0..300_u64 {
        let mut s = Shared::new();
        for id in 0..u64::from(SRQ_DEPTH) {
            s.post(id).unwrap();
        }
        for _ in 0..SRQ_DEPTH {
            let (at, _) = s.take().unwrap();
            s.complete(at);
        }
        let (qp, cq) = (s.bench.qp.clone(), s.bench.cq.clone());
        let polled = std::thread::scope(|scope| {
            let poller = scope.spawn(|| {
                let mut got = Vec::new();
                for _ in 0..round % 8 {
                    let mut one = [Completion::default()];
                    if s.bench.poller.poll(&mut one) == 1 {
                        got.push(one[0].wr_id);
                    }
                }
                got
            });
            let returned = cq.remove(&qp);
            let mut all = poller.join().unwrap();
            all.extend(returned);
            all
        });
        assert_eq!(polled, (0..u64::from(SRQ_DEPTH)).collect::<Vec<_>>(), "round {round}");
        assert!(s.bench.poll().is_empty());
    }
    drop(core);
}
