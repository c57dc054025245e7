//! The longest message, 2^31 bytes, by packets of 256: it takes 2^23 PSNs, half of their circle.
//!
//! The test allocates no such memory: each packet's payload holds its place in the message, and packets must arrive in
//! order.
mod pair;

use pair::*;

const LONGEST: u32 = MAX_MESSAGE_BYTES as u32;
const MTU_BYTES: u32 = 256;
/// Short messages of this length go before and behind the long one.
const SHORT: u32 = 40;
/// The wrap of PSNs lies within the long message.
const FIRST_PSN: u32 = 0xff_fff0;
/// Of each side's packets, each whose number is a multiple of this is lost.
const LOST: [u64; 2] = [100_003, 10_007];
/// Packets between late copies of an early one.
const LATE: u64 = 1 << 20;
/// The window holds no more packets than this, whatever they carry: far below half of the circle.
const MAX_IN_FLIGHT: u32 = 1 << 14;

/// One side's queues, and how much of the current message came.
#[derive(Default)]
struct Queues {
    requests: Vec<SendRequest>,
    completed: Vec<(WcStatus, u32)>,
    recvs: u32,
    received: Vec<u32>,
    placed: u64,
    retransmitted: u64,
    duplicates: u64,
}

impl Queues {
    fn stamp(offset: u64, out: &mut [u8]) {
        out.fill(0);
        out[..8].copy_from_slice(&offset.to_be_bytes());
    }
    fn place(&mut self, offset: u64, data: &[u8]) {
        assert_eq!(data[..8], offset.to_be_bytes(), "the payload is that of its place");
        assert_eq!(offset, self.placed, "each byte once and in order");
        self.placed += data.len() as u64;
    }
    /// A message ended, with all its bytes.
    fn ended(&mut self, len: u32) {
        assert_eq!(core::mem::take(&mut self.placed), len.into(), "bytes of the message");
    }
}

impl Host for Queues {
    fn sq_posted(&self) -> u32 {
        self.requests.len() as u32
    }
    fn send_request(&self, index: u32) -> SendRequest {
        self.requests[index as usize]
    }
    fn gather(&mut self, _: u32, offset: u32, out: &mut [u8]) -> Result<(), LocalError> {
        Self::stamp(offset.into(), out);
        Ok(())
    }
    fn scatter(&mut self, _: u32, offset: u32, data: &[u8]) -> Result<(), LocalError> {
        self.place(offset.into(), data);
        Ok(())
    }
    fn check_local(&mut self, _: u32, _: bool) -> Result<(), LocalError> {
        Ok(())
    }
    fn complete_send(&mut self, index: u32, status: WcStatus, byte_len: u32) {
        assert_eq!(index as usize, self.completed.len(), "send completions in order");
        if matches!(self.requests[index as usize].op.op(), SendOp::Read(_)) {
            self.ended(byte_len);
        }
        self.completed.push((status, byte_len));
    }
    fn take_recv(&mut self, _: Option<&Packet<'_>>) -> Option<u64> {
        self.recvs = self.recvs.checked_sub(1)?;
        Some(MAX_MESSAGE_BYTES)
    }
    fn place_recv(&mut self, offset: u32, data: &[u8]) -> Result<(), LocalError> {
        self.place(offset.into(), data);
        Ok(())
    }
    fn complete_recv(&mut self, done: &RecvDone) {
        assert_eq!(done.status, WcStatus::Success);
        if done.opcode == WcOpcode::RecvRdmaWithImm {
            // What a WRITE with immediate brought, in order as well.
            assert_eq!(u64::from(done.byte_len), self.placed);
        }
        self.ended(done.byte_len);
        self.received.push(done.byte_len);
    }
    fn return_recv(&mut self) {
        self.recvs += 1;
    }
    fn recv_credits(&self) -> Option<u32> {
        Some(self.recvs)
    }
    fn flush_recv(&mut self) {}
    fn has_srq(&self) -> bool {
        false
    }
    fn check_remote(&mut self, rkey: Rkey, va: u64, len: u64, _: Access) -> Result<(), RemoteAccessError> {
        if rkey == KEY && va + len <= MAX_MESSAGE_BYTES { Ok(()) } else { Err(RemoteAccessError) }
    }
    fn write_remote(&mut self, _: Rkey, va: u64, data: &[u8]) -> Result<(), RemoteAccessError> {
        self.place(va, data);
        Ok(())
    }
    fn read_remote(&mut self, _: Rkey, va: u64, out: &mut [u8]) -> Result<(), RemoteAccessError> {
        Self::stamp(va, out);
        Ok(())
    }
    fn atomic_remote(&mut self, _: Rkey, _: u64, _: AtomicOp) -> Result<u64, RemoteAccessError> {
        Err(RemoteAccessError)
    }
    fn flush_remote(&mut self, _: Rkey, _: Option<(u64, u64)>, _: Access) -> Result<(), RemoteAccessError> {
        Err(RemoteAccessError)
    }
    fn invalidate(&mut self, _: Rkey) -> Result<(), RemoteAccessError> {
        Err(RemoteAccessError)
    }
    fn event(&mut self, event: QpEvent) {
        assert_eq!(event, QpEvent::CommEstablished);
    }
    fn count(&mut self, what: Count) {
        match what {
            Count::Retransmitted => self.retransmitted += 1,
            Count::Duplicate => self.duplicates += 1,
            _ => {}
        }
    }
}

fn connected(now: Instant, side: Side, queues: &mut Queues) -> Qp {
    let setup = Setup { psn_a: FIRST_PSN, psn_b: FIRST_PSN, window_bytes: 1 << 20, ..Setup::default() };
    let mut qp = Qp::new(&setup.config(side));
    for attr in setup.to_rtr(side).into_iter().chain([setup.to_rts(side)]) {
        qp.modify(now, &attr, queues).unwrap();
    }
    qp
}

/// A message of 2^31 bytes between two short ones, with losses and late copies of an early packet, up to the
/// last moment at which its PSN lies behind.
fn carry(op: SendOp) {
    let mut now_ns = 1_000;
    let mut sides = [Queues::default(), Queues::default()];
    let mut qps = [A, B].map(|side| connected(Instant::from_nanos(now_ns), side, &mut sides[side as usize]));
    let recv = matches!(op, SendOp::Send | SendOp::WriteImm(..));
    let lens = [SHORT, LONGEST, SHORT];
    sides[1].recvs = if recv { 3 } else { 0 };
    let flags = SendFlags::SIGNALED;
    sides[0].requests.extend(lens.map(|len| SendRequest { op: op.into(), flags, len, dest: None }));
    qps[0].handle_posted(Instant::from_nanos(now_ns), &mut sides[0]);

    let mut sent = [0; 2];
    let mut early = None;
    let mut late = 0;
    while sides[0].completed.len() < lens.len() {
        now_ns += 1_000;
        let now = Instant::from_nanos(now_ns);
        let mut idle = true;
        for from in [0, 1] {
            let mut train = VecSink::with_room(usize::MAX);
            qps[from].poll_transmit(now, &mut sides[from], &mut train, 64);
            if qps[from].ack_owed().is_some() {
                qps[from].poll_ack(now, &mut sides[from], &mut train);
            }
            idle &= train.out.is_empty();
            for (_, bytes) in train.out {
                sent[from] += 1;
                if sent[from] % LOST[from] == 0 {
                    continue;
                }
                let to = 1 - from;
                let meta = RxMeta { ce: false, grh: None };
                qps[to].handle_packet(now, &meta, &Packet::parse(&bytes).unwrap(), &mut sides[to]);
                if from == 0 {
                    let early = early.get_or_insert(bytes);
                    if sent[0] % LATE == 0 {
                        late += 1;
                        qps[1].handle_packet(now, &meta, &Packet::parse(early).unwrap(), &mut sides[1]);
                    }
                }
            }
        }
        let in_flight = qps[0].window().inflight_bytes / 64;
        assert!(in_flight <= MAX_IN_FLIGHT, "{in_flight} packets at least are in flight");
        if idle {
            let next = qps.iter().filter_map(Qp::next_deadline).map(Instant::as_nanos).min();
            now_ns = now_ns.max(next.expect("what is not complete has a timer"));
        }
        for (qp, side) in qps.iter_mut().zip(&mut sides) {
            let now = Instant::from_nanos(now_ns);
            if qp.next_deadline().is_some_and(|at| at <= now) {
                qp.handle_timeout(now, side);
            }
        }
    }
    let [a, b] = sides;
    let read = matches!(op, SendOp::Read(_));
    assert_eq!(a.completed, lens.map(|len| (WcStatus::Success, if read { len } else { 0 })));
    assert_eq!(b.received, if recv { lens.to_vec() } else { Vec::new() });
    assert!(read || sent[0] > u64::from(LONGEST / MTU_BYTES));
    assert!(a.retransmitted > 0, "what was lost was sent again");
    assert!(read || late >= 8 && b.duplicates >= late, "{late} late, {} duplicates", b.duplicates);
}

#[test]
#[ignore = "carries 8 million packets: seconds with optimisation, a minute without"]
fn the_longest_send_takes_half_of_the_psns_and_arrives_once() {
    carry(SendOp::Send);
}

#[test]
#[ignore = "carries 8 million packets: seconds with optimisation, a minute without"]
fn the_longest_write_takes_half_of_the_psns_and_arrives_once() {
    carry(SendOp::WriteImm(RemoteAddr { addr: 0, rkey: KEY }, 7));
}

#[test]
#[ignore = "carries 8 million packets: seconds with optimisation, a minute without"]
fn the_longest_read_takes_half_of_the_psns_and_arrives_once() {
    carry(SendOp::Read(RemoteAddr { addr: 0, rkey: KEY }));
}
