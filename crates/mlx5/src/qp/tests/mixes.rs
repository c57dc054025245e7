//! Shared receive queues, and requests, completions and threads in any mix.

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
    assert_eq!(s.bench.cq.remove(&qp, false, || {}), [1, 2]);
    assert!(s.bench.poll().is_empty());
    for id in 5..8 {
        s.post(id).unwrap();
    }
    assert!(s.post(8).is_err());
}

#[derive(Clone, Debug)]
enum Step {
    Post { kind: u8, pieces: u8, signaled: bool },
    CarryOut,
    Recv,
    Receive,
    Poll,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..7_u8, 0..=4_u8, any::<bool>())
            .prop_map(|(kind, pieces, signaled)| Step::Post { kind, pieces, signaled }),
        4 => Just(Step::CarryOut),
        2 => Just(Step::Recv),
        2 => Just(Step::Receive),
        1 => Just(Step::Poll),
    ]
}

/// What the test's own books say of a request.
#[derive(Debug)]
struct Posted {
    id: u64,
    opcode: WcOpcode,
    signaled: bool,
}

proptest! {
    /// Wherever rings and counters begin: each signalled request completes once, in order, with its own number; nothing
    /// is refused before the depth is reached, and all is refused then.
    #[test]
    fn any_mix_of_requests_completes_in_order(steps in prop::collection::vec(step(), 1..400)) {
        let mut b = Bench::new();
        let list = [Sge { addr: 64, len: 2, lkey: Lkey::new(1) }; MAX_SGE as usize];
        let eight = [Sge { addr: 64, len: 8, lkey: Lkey::new(1) }];
        let data = [7; MAX_INLINE as usize];
        let (mut sends, mut carried) = (VecDeque::new(), VecDeque::new());
        let (mut recvs, mut received) = (VecDeque::new(), VecDeque::new());
        let (mut in_send, mut in_recv, mut id) = (0, 0, 0_u64);
        for step in steps {
            match step {
                Step::Post { kind, pieces, signaled } => {
                    let n = usize::from(pieces);
                    let op = match kind {
                        0 => SendOp::Send,
                        1 => SendOp::SendImm(kind.into()),
                        2 | 3 => SendOp::Write(REMOTE),
                        4 => SendOp::Read(REMOTE),
                        5 => SendOp::FetchAdd { remote: REMOTE, add: 1 },
                        _ => SendOp::SendInv(Rkey::new(4)),
                    };
                    let payload = match kind {
                        1 | 3 => Payload::Inline(&data[..n * 16]),
                        5 => Payload::Sges(&eight),
                        _ => Payload::Sges(&list[..n]),
                    };
                    let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
                    let wr = SendWr { wr_id: id, op, flags, payload, dest: None };
                    let room = in_send < DEPTH;
                    prop_assert_eq!(b.post(&wr).is_ok(), room);
                    if room {
                        sends.push_back(Posted { id, opcode: op.wc_opcode(), signaled });
                        in_send += 1;
                    }
                    id += 1;
                }
                Step::CarryOut => {
                    if b.free_cqes() > 0 && let Some((ctrl, _)) = b.carry_out(None) {
                        let posted: Posted = sends.pop_front().unwrap();
                        prop_assert_eq!(ctrl.get(CtrlSeg::CE) != 0, posted.signaled);
                        carried.push_back(posted);
                    }
                }
                Step::Recv => {
                    let room = in_recv < DEPTH;
                    prop_assert_eq!(b.post_recv(&RecvWr { wr_id: id, sges: &eight }).is_ok(), room);
                    if room {
                        recvs.push_back(id);
                        in_recv += 1;
                    }
                    id += 1;
                }
                Step::Receive => {
                    if b.free_cqes() > 0 && b.receive(false, 5) {
                        let at = usize::from(b.received.wrapping_sub(1)) % DEPTH as usize * b.stride;
                        let entry = DataSeg::from_bytes(&b.rq.bytes(at, 1)).unwrap();
                        prop_assert_eq!(entry, DataSeg::pointer(8, 1, 64));
                        received.push_back(recvs.pop_front().unwrap());
                    }
                }
                Step::Poll => {
                    for c in b.poll_all() {
                        prop_assert_eq!(c.status, WcStatus::Success);
                        if c.opcode.is_recv() {
                            prop_assert_eq!((Some(c.wr_id), c.byte_len), (received.pop_front(), 5));
                            in_recv -= 1;
                            continue;
                        }
                        // Those before it that were not signalled have ended with it.
                        let posted = loop {
                            in_send -= 1;
                            let posted: Posted = carried.pop_front().unwrap();
                            if posted.signaled {
                                break posted;
                            }
                        };
                        prop_assert_eq!((c.wr_id, c.opcode), (posted.id, posted.opcode));
                    }
                    prop_assert!(carried.iter().all(|p| !p.signaled) && received.is_empty());
                    prop_assert_eq!(b.produced & CI_MASK, b.consumed());
                }
            }
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
            let returned = cq.remove(&qp, false, || {});
            let mut all = poller.join().unwrap();
            all.extend(returned);
            all
        });
        assert_eq!(polled, (0..u64::from(SRQ_DEPTH)).collect::<Vec<_>>(), "round {round}");
        assert!(s.bench.poll().is_empty());
    }
    drop(core);
}
