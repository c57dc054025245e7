//! Reliable connection by messages, at random: each request ends once, in order, with the right bytes, for all times at
//! which the peers become ready and all orders of turns; and no received bytes do harm.
mod cases;
mod link;
mod messages;
mod pair;

use cases::cases;
use link::alike;
use messages::plan::*;
use messages::*;
use pair::ops::*;
use pair::*;
use proptest::prelude::*;

fn op() -> impl Strategy<Value = (Op, SendFlags)> {
    let len = prop_oneof![
        Just(0),
        1..100_u32,
        prop_oneof![Just(48), Just(1023), Just(1024), Just(4095), Just(4096), Just(4097), Just(8192)],
        100..13_000_u32,
    ];
    let op = (0..5, len).prop_map(|(kind, len)| Op::of(kind, len));
    let flags = prop_oneof![
        6 => Just(SendFlags::SIGNALED),
        2 => Just(SendFlags::empty()),
        1 => Just(SendFlags::FENCE),
        1 => Just(SendFlags::SIGNALED | SendFlags::FENCE),
    ];
    (op, flags)
}

fn act() -> impl Strategy<Value = Act> {
    let side = || prop_oneof![Just(A), Just(B)];
    prop_oneof![
        1 => side().prop_map(Act::Ready),
        2 => side().prop_map(Act::Post),
        2 => (side(), 1..5_usize).prop_map(|(s, n)| Act::PostAtOnce(s, n)),
        3 => side().prop_map(Act::Recv),
        5 => (side(), 1..8_usize).prop_map(|(s, n)| Act::Send(s, n)),
        3 => side().prop_map(Act::Ack),
        5 => (side(), 1..8_usize).prop_map(|(s, n)| Act::Take(s, n)),
        2 => prop_oneof![0..30_000_u64, Just(10 * MS), Just(20 * MS), Just(300 * MS)].prop_map(Act::Pass),
        1 => side().prop_map(Act::Drain),
    ]
}

fn setup() -> impl Strategy<Value = Setup> {
    let psn = || prop_oneof![0xfff0..0x1_0010_u32, Just(0), any::<u32>().prop_map(|p| p & 0xff_ffff)];
    (psn(), psn(), 1..5_u8, any::<bool>()).prop_map(|(psn_a, psn_b, rd, srq_b)| Setup {
        psn_a,
        psn_b,
        rd_atomic: rd,
        dest_rd_atomic: rd,
        srq_b,
        // For ever: however long a plan lets the peer be silent.
        timeout: 0,
        ..Setup::default()
    })
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

/// What each side is said to have done is completed by the quick way too, whatever went before it by the long one.
#[test]
fn a_plain_send_says_sends_and_writes_to_be_done() {
    let mut p = Ways::reset(&Setup::default());
    p.quick = 1;
    for side in [A, B] {
        p.ready_to_receive(side, &Setup::default());
        p.ready_to_send(side, &Setup::default());
    }
    assert_eq!([p.a.qp.lanes(), p.b.qp.lanes()], [Lanes::default(); 2], "neither has let the other in");
    let quick = |flags| (Op::Send(8), flags);
    let (signaled, none) = (SendFlags::SIGNALED, SendFlags::empty());
    let ops = vec![
        quick(signaled),
        (Op::Write(3000), none),
        (Op::Write(8), signaled),
        quick(none),
        quick(signaled),
    ];
    let mut plans = [Plan::new(A, ops), Plan::new(B, vec![quick(signaled); 3])];
    for plan in &mut plans {
        plan.steps_to_ready = 0;
        (0..3).for_each(|_| plan.recv(&mut p));
    }
    // The first ones tell that they are there, and how many they take.
    for plan in &mut plans {
        plan.post(&mut p, 1, true);
    }
    p.run();
    assert!(p.a.qp.lanes().sends && p.b.qp.lanes().takes);
    let before = p.a.host.completed;
    plans[0].post(&mut p, 4, true);
    p.take_all(B);
    plans[1].post(&mut p, 2, true);
    p.take_all(A);
    assert_eq!(p.a.host.completed, before + 4);
    let [a, b] = p.went;
    assert_eq!((a.sends_done, a.writes_done, b.sent, a.took), (2, 2, 2, 3), "{a:?} {b:?}");
    finish(&mut p, &mut plans, &Setup::default());
    for plan in &plans {
        plan.check(&mut p);
    }
}

/// A request that may be refused, by its sender or by its target.
fn faulty_op() -> impl Strategy<Value = (SendOp, u32, SendFlags, bool)> {
    let addr = prop_oneof![8 => Just(64), 1 => Just(68), 1 => Just(MEMORY as u64 - 4)];
    let key = prop_oneof![9 => Just(KEY), 1 => Just(Rkey::new(1))];
    let len = prop_oneof![4 => Just(8), 1 => Just(0), 1 => 1..9000_u32];
    let flags = prop_oneof![4 => Just(SendFlags::empty()), 1 => Just(SendFlags::FENCE)];
    let bad = prop_oneof![15 => Just(false), 1 => Just(true)];
    (0..10, addr, key, len, flags, bad).prop_map(|(kind, addr, rkey, len, flags, bad)| {
        let remote = RemoteAddr { addr, rkey };
        let (placement, selectivity) = (Placement::GLOBAL_VISIBILITY, Selectivity::Range);
        let op = match kind {
            0 => SendOp::Send,
            1 => SendOp::SendImm(len),
            2 => SendOp::SendInv(rkey),
            3 => SendOp::Write(remote),
            4 => SendOp::WriteImm(remote, len),
            5 => SendOp::Read(remote),
            6 => SendOp::FetchAdd { remote, add: 3 },
            7 => SendOp::CompareSwap { remote, compare: 0, swap: 5 },
            8 => SendOp::AtomicWrite { remote, value: [len as u8; 8] },
            _ => SendOp::Flush { remote, len, placement, selectivity },
        };
        // Of several packets the first one shows whether the key is right, and the last one takes a receive request.
        let most = if kind == 4 { 256 } else { len };
        (op, if op.has_list() { len.min(most) } else { 0 }, flags | SendFlags::SIGNALED, bad)
    })
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn whoever_has_the_next_turn_nothing_is_lost_doubled_or_reordered(
        setup in setup(),
        ops_a in prop::collection::vec(op(), 1..MAX_OPS),
        ops_b in prop::collection::vec(op(), 0..MAX_OPS),
        acts in prop::collection::vec(act(), 0..300),
        seed in prop_oneof![1 => Just(0), 2 => any::<u64>()],
        room in prop_oneof![Just(usize::MAX), 1..6_usize],
        quick in 0..4_u32,
    ) {
        let mut p = Ways::reset(&setup);
        (p.room, p.quick) = (room, quick);
        reach(&mut p, seed);
        let mut plans = [Plan::new(A, ops_a), Plan::new(B, ops_b)];
        for act in acts {
            play(&mut p, &mut plans, &setup, act);
        }
        finish(&mut p, &mut plans, &setup);
        for plan in &plans {
            plan.check(&mut p);
        }
    }

    #[test]
    fn programs_are_told_the_same_by_packets_and_by_messages(
        setup in setup(),
        rnr_retry in 0..4_u8,
        access in prop_oneof![9 => Just(Access::all()), 1 => Just(Access::all() - Access::REMOTE_ATOMIC)],
        recvs in prop::collection::vec(
            prop_oneof![8 => Just((9000, false)), 1 => Just((4, false)), 1 => Just((9000, true))], 0..MAX_OPS),
        ops in prop::collection::vec(faulty_op(), 1..MAX_OPS),
    ) {
        let setup = Setup { rnr_retry, access, ..setup };
        alike(&setup, "random", |p| {
            for (i, (len, bad)) in recvs.iter().enumerate() {
                p.recv_raw(B, 500_000 + 9000 * i, *len, *bad);
            }
            for (i, (op, len, flags, bad)) in ops.iter().enumerate() {
                let request = hca_transport::SendRequest { op: (*op).into(), flags: *flags, len: *len, dest: None };
                p.post_raw(A, Posted { request, addr: 9000 * i, bad: *bad });
            }
        });
    }

    #[test]
    fn messages_that_were_tampered_with_do_no_harm(
        setup in setup(),
        ops_a in prop::collection::vec(op(), 1..MAX_OPS),
        ops_b in prop::collection::vec(op(), 0..MAX_OPS),
        harms in prop::collection::vec(harm(), 0..200),
        seed in prop_oneof![Just(0), any::<u64>()],
        quick in 0..4_u32,
    ) {
        let setup = Setup { timeout: 10, retry_cnt: 1, rnr_retry: 3, ..setup };
        let mut p = Ways::new(&setup);
        p.quick = quick;
        reach(&mut p, seed);
        p.burst = 8;
        let mut plans = [Plan::new(A, ops_a), Plan::new(B, ops_b)];
        for plan in &mut plans {
            plan.steps_to_ready = 0;
            plan.finish(&mut p, &setup);
        }
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
        for plan in &plans {
            plan.check_ended(&mut p);
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
        quick in 0..4_u32,
    ) {
        let mut p = Ways::reset(&setup);
        p.quick = quick;
        if state > 0 {
            p.ready_to_receive(B, &setup);
        }
        if state > 1 {
            p.ready_to_send(B, &setup);
        }
        for i in 0..10 {
            p.recv(B, 500_000, 6000);
            let op = if i % 3 == 0 { READ } else { SendOp::Send };
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
        prop_assert_eq!(p.recvs_ended(B) + left, 10);
    }
}
