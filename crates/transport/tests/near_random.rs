//! Reliable connection by messages, at random: each request ends once, in order, with the right bytes, whenever the
//! peers become ready and whoever has the next turn; and no bytes that come can do harm.
mod messages;
mod pair;

use hca_core::*;
use hca_transport::*;
use messages::*;
use pair::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use Side::{A, B};

/// Fewer operations than this in a script. Miri takes a second for each.
const MAX_OPS: usize = if cfg!(miri) { 4 } else { 26 };
/// Local memory of request `n`, its target at the peer, and where it is received: what each takes.
const SLOT: usize = 13_000;
const TARGETS: usize = MAX_OPS * SLOT;
const RECVS: usize = 2 * MAX_OPS * SLOT;
/// The word that atomics count in.
const COUNTER: usize = MEMORY - 64;
const _: () = assert!(3 * MAX_OPS * SLOT <= COUNTER);

#[derive(Clone, Copy, Debug)]
enum Op {
    Send(u32),
    Write(u32),
    WriteImm(u32),
    Read(u32),
    Add,
}

fn op() -> impl Strategy<Value = (Op, SendFlags)> {
    let len = prop_oneof![
        Just(0),
        1..100_u32,
        prop_oneof![Just(48), Just(1023), Just(1024), Just(4095), Just(4096), Just(4097), Just(8192)],
        100..13_000_u32,
    ];
    let op = (0..5, len).prop_map(|(k, len)| match k {
        0 => Op::Send(len),
        1 => Op::Write(len),
        2 => Op::WriteImm(len),
        3 => Op::Read(len),
        _ => Op::Add,
    });
    let flags = prop_oneof![
        6 => Just(SendFlags::SIGNALED),
        2 => Just(SendFlags::empty()),
        1 => Just(SendFlags::FENCE),
        1 => Just(SendFlags::SIGNALED | SendFlags::FENCE),
    ];
    (op, flags)
}

/// One turn of a script.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A step on the way from RESET to RTS.
    Ready(Side),
    Post(Side),
    Recv(Side),
    Send(Side, usize),
    Ack(Side),
    Take(Side, usize),
    /// Time passes, and timers fire.
    Pass(u64),
    /// To SQD, or back.
    Drain(Side),
}

fn act() -> impl Strategy<Value = Act> {
    let side = || prop_oneof![Just(A), Just(B)];
    prop_oneof![
        1 => side().prop_map(Act::Ready),
        3 => side().prop_map(Act::Post),
        3 => side().prop_map(Act::Recv),
        5 => (side(), 1..8_usize).prop_map(|(s, n)| Act::Send(s, n)),
        3 => side().prop_map(Act::Ack),
        5 => (side(), 1..8_usize).prop_map(|(s, n)| Act::Take(s, n)),
        2 => prop_oneof![0..30_000_u64, Just(10 * MS), Just(20 * MS), Just(300 * MS)].prop_map(Act::Pass),
        1 => side().prop_map(Act::Drain),
    ]
}

/// One side of a script.
struct Script {
    side: Side,
    ops: Vec<(Op, SendFlags)>,
    posted: usize,
    /// Receive requests that the peer posted for them.
    recvs: usize,
    steps_to_ready: u8,
}

impl Script {
    fn new(side: Side, ops: Vec<(Op, SendFlags)>) -> Self {
        Self { side, ops, posted: 0, recvs: 0, steps_to_ready: 2 }
    }
    fn receives(&self) -> Vec<usize> {
        let receives = |op: &Op| matches!(op, Op::Send(_) | Op::WriteImm(_));
        (0..self.ops.len()).filter(|n| receives(&self.ops[*n].0)).collect()
    }
    /// Posts the next request.
    fn post(&mut self, p: &mut Ways) {
        if self.steps_to_ready == 2 {
            return;
        }
        let Some((op, flags)) = self.ops.get(self.posted).copied() else { return };
        let (n, side) = (self.posted, self.side);
        let (local, target) = (n * SLOT, TARGETS + n * SLOT);
        let (op, len) = match op {
            Op::Send(len) if len % 2 == 0 => (SendOp::Send, len),
            Op::Send(len) => (SendOp::SendImm(n as u32), len),
            Op::Write(len) => (SendOp::Write(remote(target)), len),
            Op::WriteImm(len) => (SendOp::WriteImm(remote(target), n as u32), len),
            Op::Read(len) => (SendOp::Read(remote(target)), len),
            Op::Add => (SendOp::FetchAdd { remote: remote(COUNTER), add: 1 }, 8),
        };
        p.fill(side, local, len as usize);
        if let SendOp::Read(_) = op {
            p.fill(side.other(), target, len as usize);
        }
        p.post(side, op, local, len, flags);
        self.posted += 1;
    }
    /// The peer posts the next receive request.
    fn recv(&mut self, p: &mut Ways) {
        if let Some(n) = self.receives().get(self.recvs) {
            p.recv(self.side.other(), RECVS + n * SLOT, SLOT);
            self.recvs += 1;
        }
    }
    /// A step of this side towards RTS.
    fn ready(&mut self, p: &mut Ways, setup: &Setup) {
        match self.steps_to_ready {
            2 => p.ready_to_receive(self.side, setup),
            1 => p.ready_to_send(self.side, setup),
            _ => return,
        }
        self.steps_to_ready -= 1;
    }
    fn drain(&mut self, p: &mut Ways) {
        let to = match p.node(self.side).qp.state() {
            QpState::Rts => QpState::Sqd,
            QpState::Sqd => QpState::Rts,
            _ => return,
        };
        p.state(self.side, to);
    }
    fn finish(&mut self, p: &mut Ways, setup: &Setup) {
        while self.steps_to_ready > 0 {
            self.ready(p, setup);
        }
        if p.node(self.side).qp.state() == QpState::Sqd {
            self.drain(p);
        }
        while self.posted < self.ops.len() {
            self.post(p);
        }
        while self.recvs < self.receives().len() {
            self.recv(p);
        }
    }
    /// What must hold at the end.
    fn check(&self, p: &mut Ways) {
        let side = self.side;
        assert_eq!(p.node(side).host.statuses(), vec![WcStatus::Success; self.ops.len()]);
        let imms: Vec<_> = p.node(side.other()).host.recvs().iter().map(|r| r.1.extra).collect();
        let want: Vec<_> = self.receives().iter().map(|n| extra(*n, self.ops[*n].0)).collect();
        assert_eq!(imms, want, "receives: each once, in order");
        let mut adds = 0_u64;
        for (n, (op, _)) in self.ops.iter().enumerate() {
            let (local, target) = (n * SLOT, TARGETS + n * SLOT);
            match *op {
                Op::Send(len) => p.expect_bytes(side.other(), RECVS + n * SLOT, local, len as usize),
                Op::Write(len) | Op::WriteImm(len) => {
                    p.expect_bytes(side.other(), target, local, len as usize);
                }
                Op::Read(len) => p.expect_bytes(side, local, target, len as usize),
                Op::Add => {
                    assert_eq!(p.node(side).host.mem[local..local + 8], adds.to_ne_bytes());
                    adds += 1;
                }
            }
        }
        assert_eq!(p.node(side.other()).host.mem[COUNTER..COUNTER + 8], adds.to_ne_bytes());
        let n = p.node(side);
        assert_eq!(n.qp.state(), QpState::Rts);
        assert!(n.qp.next_deadline().is_none() && n.qp.ack_owed().is_none() && n.host.held.is_none());
        assert!(n.qp.is_idle_near());
    }
}

/// What the receive request of operation `n` tells.
fn extra(n: usize, op: Op) -> RecvExtra {
    match op {
        Op::Send(len) if len % 2 == 0 => RecvExtra::None,
        _ => RecvExtra::Imm(n as u32),
    }
}

/// What each side reaches of the other's memory, by pseudo-random numbers; 0: nothing.
fn reach(p: &mut Ways, seed: u64) {
    if seed == 0 {
        return;
    }
    p.reach = true;
    for (side, mut x) in [(A, seed | 1), (B, seed.rotate_left(32) | 1)] {
        let mut roll = move || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x >> 20
        };
        let near = &mut p.node(side).host.near;
        near.small = roll() % 2 == 0;
        near.gone.extend((0..100).map(|_| roll() % 4 == 0));
        let mut lend = roll;
        near.lend = Some(Box::new(move |_, _, max| match lend() % 4 {
            0 => None,
            1 => Some(max.min(1 + (lend() % 5000) as u32)),
            _ => Some(max),
        }));
        let mut lend_read = roll;
        near.lend_read = Some(Box::new(move |_, max| match lend_read() % 4 {
            0 => None,
            1 => Some(max.min(1 + (lend_read() % 5000) as u32)),
            _ => Some(max),
        }));
        near.direct = Some(Box::new(move |_, request, behind| match roll() % 4 {
            _ if request.len == 0 => Direct::Unable,
            0 => Direct::Unable,
            _ if behind => Direct::Later,
            1 => Direct::Again,
            _ if matches!(request.op, SendOp::WriteImm(..)) => {
                panic!("a WRITE with immediate data is not direct")
            }
            _ => Direct::Done,
        }));
    }
}

fn setup() -> impl Strategy<Value = Setup> {
    let psn = || prop_oneof![0xfff0..0x1_0010_u32, Just(0), any::<u32>().prop_map(|p| p & 0xff_ffff)];
    (psn(), psn(), 1..5_u8, any::<bool>()).prop_map(|(psn_a, psn_b, rd, srq_b)| Setup {
        psn_a,
        psn_b,
        rd_atomic: rd,
        dest_rd_atomic: rd,
        srq_b,
        // For ever: however long a script lets the peer be silent.
        timeout: 0,
        ..Setup::default()
    })
}

/// 256 cases of a fixed seed; `PROPTEST_CASES` and `PROPTEST_RNG_SEED` ask for others.
fn config() -> ProptestConfig {
    let given = ProptestConfig::default();
    let cases = match std::env::var_os("PROPTEST_CASES") {
        _ if cfg!(miri) => 1,
        Some(_) => given.cases,
        None => 256,
    };
    let rng_seed = if given.rng_seed == RngSeed::Random { RngSeed::Fixed(1) } else { given.rng_seed };
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..given }
}

/// What a script does to one message on its way.
#[derive(Clone, Debug)]
enum Harm {
    None,
    Flip(usize, u8),
    Cut(usize),
    Twice,
    /// Its head's kind and flags.
    Kind(u8),
    /// Its number, done, or extra moves a little.
    Nudge(usize, i8),
    Bytes(Vec<u8>),
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        6 => Just(Harm::None),
        2 => (0..64_usize, 0..8_u8).prop_map(|(at, bit)| Harm::Flip(at, 1 << bit)),
        1 => (0..64_usize).prop_map(Harm::Cut),
        2 => Just(Harm::Twice),
        2 => any::<u8>().prop_map(Harm::Kind),
        3 => (4..12_usize, -3..4_i8).prop_map(|(at, by)| Harm::Nudge(at, by)),
        1 => prop::collection::vec(any::<u8>(), 0..80).prop_map(Harm::Bytes),
    ]
}

fn harmed(mut message: Vec<u8>, harm: &Harm) -> Vec<Vec<u8>> {
    match harm {
        Harm::None => {}
        Harm::Flip(at, bit) => {
            let at = at % message.len();
            message[at] ^= bit;
        }
        Harm::Cut(len) => message.truncate(*len),
        Harm::Twice => return vec![message.clone(), message],
        Harm::Kind(kind) => message[0] = *kind,
        Harm::Nudge(at, by) => message[*at] = message[*at].wrapping_add_signed(*by),
        Harm::Bytes(bytes) => return vec![bytes.clone(), message],
    }
    vec![message]
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn whoever_has_the_next_turn_nothing_is_lost_doubled_or_reordered(
        setup in setup(),
        ops_a in prop::collection::vec(op(), 1..MAX_OPS),
        ops_b in prop::collection::vec(op(), 0..MAX_OPS),
        acts in prop::collection::vec(act(), 0..300),
        seed in prop_oneof![1 => Just(0), 2 => any::<u64>()],
        room in prop_oneof![Just(usize::MAX), 1..6_usize],
    ) {
        let mut p = Ways::reset(&setup);
        p.room = room;
        reach(&mut p, seed);
        let mut scripts = [Script::new(A, ops_a), Script::new(B, ops_b)];
        for act in acts {
            match act {
                Act::Ready(side) => scripts[side as usize].ready(&mut p, &setup),
                Act::Post(side) => scripts[side as usize].post(&mut p),
                Act::Recv(side) => scripts[side as usize].recv(&mut p),
                Act::Drain(side) => scripts[side as usize].drain(&mut p),
                Act::Send(side, burst) => {
                    p.burst = burst;
                    p.send_side(side);
                }
                Act::Ack(side) => {
                    p.ack_side(side);
                }
                Act::Take(side, n) => {
                    for _ in 0..n {
                        p.take(side);
                    }
                }
                Act::Pass(ns) => {
                    p.now += ns;
                    p.fire(A);
                    p.fire(B);
                }
            }
        }
        p.burst = 64;
        for script in &mut scripts {
            script.finish(&mut p, &setup);
        }
        p.run();
        for script in &scripts {
            script.check(&mut p);
        }
    }

    #[test]
    fn messages_that_were_tampered_with_do_no_harm(
        setup in setup(),
        ops_a in prop::collection::vec(op(), 1..MAX_OPS),
        ops_b in prop::collection::vec(op(), 0..MAX_OPS),
        harms in prop::collection::vec(harm(), 0..200),
        seed in prop_oneof![Just(0), any::<u64>()],
    ) {
        let setup = Setup { timeout: 10, retry_cnt: 1, rnr_retry: 3, ..setup };
        let mut p = Ways::new(&setup);
        reach(&mut p, seed);
        p.burst = 8;
        let mut scripts = [Script::new(A, ops_a), Script::new(B, ops_b)];
        for script in &mut scripts {
            script.steps_to_ready = 0;
            script.finish(&mut p, &setup);
        }
        let posted_recvs = [p.a.host.next_recv, p.b.host.next_recv];
        let mut harms = harms.iter();
        let mut more = true;
        while more {
            for side in [A, B] {
                p.send_side(side);
                p.ack_side(side);
                more &= harms.len() > 0;
                let way = core::mem::take(&mut p.way[side as usize]);
                for message in way {
                    for message in harmed(message, harms.next().unwrap_or(&Harm::None)) {
                        p.hand(side.other(), &message);
                    }
                }
            }
            more &= p.skip() || p.a.qp.wants_transmit() || p.b.qp.wants_transmit();
        }
        p.run();
        for side in [A, B] {
            p.state(side, QpState::Error);
            let n = p.node(side);
            prop_assert_eq!(n.host.completed, scripts[side as usize].ops.len());
            let recvs = n.host.done.iter().filter(|d| matches!(d, Done::Recv(..) | Done::RecvFlushed(_))).count();
            prop_assert_eq!(recvs + n.host.rq.len(), posted_recvs[side as usize] as usize);
            prop_assert!(n.host.held.is_none() && n.qp.next_deadline().is_none());
        }
    }

    #[test]
    fn no_bytes_can_do_harm_in_any_state(
        setup in setup(),
        state in 0..6,
        messages in prop::collection::vec(
            (any::<u8>(), -3..6_i16, -3..6_i16, any::<u32>(),
             prop_oneof![Just(0_usize), 1..40_usize, Just(4096), Just(5000)],
             prop::option::of((any::<bool>(), 0..9000_u32)), any::<bool>()), 1..40),
    ) {
        let mut p = Ways::reset(&setup);
        if state > 0 {
            p.ready_to_receive(B, &setup);
        }
        if state > 1 {
            p.ready_to_send(B, &setup);
        }
        for i in 0..10 {
            p.recv(B, 500_000, 6000);
            let op = if i % 3 == 0 { SendOp::Read(remote(0)) } else { SendOp::Send };
            p.send(B, op, 0, 300 * i);
        }
        p.send_side(B);
        match state {
            4 => p.state(B, QpState::Sqd),
            5 => p.state(B, QpState::Error),
            _ => {}
        }
        let before = p.b.host.completed;
        if state != 1 {
            p.hand_msg(B, &Msg::new(M::Hello, B, 0).extra(0xffff));
        }
        for (n, (kind, number, done, extra, len, remote_to, ours)) in messages.into_iter().enumerate() {
            let base = if ours { setup.psn_b } else { setup.psn_a } as u16;
            let number = base.wrapping_add(n as u16 / 2).wrapping_add_signed(number);
            let done = (setup.psn_b as u16).wrapping_add_signed(done);
            let mut msg = Msg::new(M::Send, B, number).done(done).extra(extra);
            if let Some((far, total)) = remote_to {
                msg = msg.remote(if far { RemoteAddr { addr: u64::MAX - 7, rkey: KEY } } else { remote(64) }, total);
            }
            let mut bytes = msg.data(len).bytes();
            bytes[0] = kind;
            p.hand(B, &bytes);
            p.now += 1000;
            p.fire(B);
            p.send_side(B);
            p.ack_side(B);
        }
        if state == 0 || state == 5 {
            prop_assert_eq!(p.b.host.completed, before);
            prop_assert!(p.b.host.recvs().is_empty());
        }
        prop_assert!(p.b.host.completed <= 10 && p.b.host.recvs().len() <= 10);
        if state == 0 {
            return Ok(());
        }
        p.state(B, QpState::Error);
        prop_assert_eq!(p.b.host.completed, 10);
        let left = p.b.host.rq.len();
        let ended = p.b.host.done.iter().filter(|d| matches!(d, Done::Recv(..) | Done::RecvFlushed(_))).count();
        prop_assert_eq!(ended + left, 10);
    }
}
