//! Random scripts of operations over a wire that loses, doubles and delays: exactly once, in order, the
//! right bytes, one completion a request, and quiet at the end.
mod cases;
mod pair;

use cases::cases;
use pair::ops::*;
use pair::*;
use proptest::prelude::*;
use test_support::random::Rng;

fn op() -> impl Strategy<Value = (Op, SendFlags)> {
    let len = prop_oneof![Just(0), Just(1), 2..300_u32, Just(256), Just(512), 300..4000_u32];
    let op = (0..5, len).prop_map(|(kind, len)| Op::of(kind, len));
    let flags =
        prop_oneof![9 => Just(SendFlags::SIGNALED), 1 => Just(SendFlags::SIGNALED | SendFlags::FENCE)];
    (op, flags)
}

#[derive(Clone, Copy, Debug)]
struct Faults {
    seed: u64,
    loss: u64,
    double: u64,
    late: u64,
}

fn faults() -> impl Strategy<Value = Faults> {
    (any::<u64>(), 0..120_u64, 0..80_u64, 0..80_u64).prop_map(|(seed, loss, double, late)| Faults {
        seed,
        loss,
        double,
        late,
    })
}

fn script(f: Faults) -> Script {
    let mut rng = Rng::new(f.seed);
    Box::new(move |_, _, _| {
        let x = rng.next_u64();
        let roll = x % 1000;
        if roll < f.loss {
            Fate::Drop
        } else if roll < f.loss + f.double {
            Fate::Double
        } else if roll < f.loss + f.double + f.late {
            Fate::Late(x >> 20 & 0x3_ffff)
        } else {
            Fate::Pass
        }
    })
}

/// Posts the script of one side.
fn post(p: &mut Pair, side: Side, ops: &Ops) {
    for (n, op) in ops.iter().enumerate() {
        let posted = p.op(side, n, *op);
        p.post_raw(side, posted);
    }
}

/// The same, with the receive requests that it takes.
fn post_all(p: &mut Pair, side: Side, ops: &Ops) {
    receives(ops).into_iter().for_each(|n| p.recv_op(side.other(), n));
    post(p, side, ops);
}

/// What must hold at the end for the script of `side`.
fn check(p: &mut Pair, side: Side, ops: &Ops) {
    p.check_ops(side, ops);
    let adds = ops.iter().filter(|(op, _)| matches!(op, Op::Add)).count();
    assert_eq!(p.node(side.other()).host.atomics as usize, adds, "no atomic twice");
    assert_eq!(p.node(side).qp.window().inflight_bytes, 0);
}

fn setup() -> impl Strategy<Value = Setup> {
    let psn = || prop_oneof![0xff_fff0..0x100_0000_u32, Just(0), any::<u32>().prop_map(|p| p & 0xff_ffff)];
    let mtu = prop_oneof![Just(Mtu::B256), Just(Mtu::B512), Just(Mtu::B4096)];
    (psn(), psn(), mtu, 1..5_u8, prop_oneof![Just(1000_u32), Just(6000), Just(200_000)], any::<bool>())
        .prop_map(|(psn_a, psn_b, mtu, rd, window_bytes, srq_b)| Setup {
            psn_a,
            psn_b,
            mtu,
            rd_atomic: rd,
            dest_rd_atomic: rd,
            window_bytes,
            srq_b,
            timeout: 18,
            ..Setup::default()
        })
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn a_faulty_wire_loses_doubles_and_reorders_no_message(
        setup in setup(),
        ops_a in prop::collection::vec(op(), 1..MAX_OPS),
        ops_b in prop::collection::vec(op(), 0..MAX_OPS),
        faults in faults(),
        room in prop_oneof![Just(usize::MAX), 1..4_usize],
    ) {
        let mut p = Pair::new(&setup);
        p.script = script(faults);
        p.sink_room = room;
        post_all(&mut p, A, &ops_a);
        post_all(&mut p, B, &ops_b);
        p.run();
        check(&mut p, A, &ops_a);
        check(&mut p, B, &ops_b);
    }

    #[test]
    fn late_receive_requests_delay_and_lose_nothing(
        setup in setup(),
        ops in prop::collection::vec(op(), 1..MAX_OPS),
        faults in faults(),
        gap in 10_000..400_000_u64,
    ) {
        let mut p = Pair::new(&setup);
        p.script = script(faults);
        post(&mut p, A, &ops);
        for n in receives(&ops) {
            let until = p.now + gap;
            p.run_until(until);
            p.recv_op(B, n);
        }
        p.run();
        check(&mut p, A, &ops);
    }

    #[test]
    fn a_peer_that_goes_away_leaves_one_completion_a_request(
        setup in setup(),
        ops in prop::collection::vec(op(), 1..MAX_OPS),
        faults in faults(),
        dies in 0..200_usize,
    ) {
        let mut p = Pair::new(&Setup { timeout: 10, retry_cnt: 1, ..setup });
        let mut inner = script(faults);
        p.script = Box::new(move |s, n, packet| if n >= dies { Fate::Drop } else { inner(s, n, packet) });
        post_all(&mut p, A, &ops);
        p.run();
        let statuses = p.a.host.statuses();
        prop_assert_eq!(statuses.len(), ops.len());
        let good = statuses.iter().take_while(|s| **s == WcStatus::Success).count();
        if good < ops.len() {
            prop_assert_eq!(statuses[good], WcStatus::RetryExceeded);
            prop_assert!(statuses[good + 1..].iter().all(|s| *s == WcStatus::WrFlushed));
        }
        prop_assert!(!p.a.qp.wants_transmit() && p.a.qp.next_deadline().is_none());
    }

    #[test]
    fn no_packet_can_do_harm(
        kind in prop_oneof![
            Just(QpType::Rc),
            Just(QpType::Uc),
            Just(QpType::Ud),
            Just(QpType::XrcIni),
            Just(QpType::XrcTgt),
            Just(QpType::Eec),
        ],
        packets in prop::collection::vec(
            (any::<u8>(), -3..6_i32, prop_oneof![Just(0_usize), 1..20_usize, Just(256), Just(300)],
             prop::collection::vec(any::<u8>(), 28), any::<bool>(), any::<bool>()), 1..40),
    ) {
        let setup = Setup { qp_type: kind, ..Setup::default() };
        let mut p = Pair::new(&setup);
        let named = if kind == QpType::Eec { qpn(B).raw() } else { 0 };
        p.b.host.xrc.queues.insert(named, Default::default());
        for _ in 0..10 {
            p.recv(B, 0, 400);
            p.recv_srq(named, 0, 400);
            p.send(B, SendOp::Send, 0, 300);
        }
        for (n, (op, psn, len, mut ext, sane, ours)) in packets.into_iter().enumerate() {
            let base = if ours { setup.psn_b } else { setup.psn_a };
            let psn = base.wrapping_add(n as u32 / 2).wrapping_add_signed(psn) & 0xff_ffff;
            let code = match kind {
                QpType::Rc => op & 0x1f,
                QpType::Uc => 0x20 | op & 0xf,
                QpType::Ud => 0x64 | op & 1,
                QpType::XrcIni | QpType::XrcTgt => 0xa0 | op & 0x1f,
                QpType::Eec => 0x40 | op & 0x1f,
                QpType::Rd => unreachable!("it takes no packets"),
            };
            let opcode = Opcode::new(if op > 250 { 0x81 } else { code });
            let Some(layout) = opcode.layout() else { continue };
            let names = usize::from(layout.deth.max(layout.xrceth)).saturating_sub(12)
                + if layout.deth != 0 { 8 } else if layout.xrceth != 0 { 4 } else { 0 };
            if sane {
                ext[..names].fill(0);
                if layout.deth != 0 {
                    ext[names - 8..names - 4].copy_from_slice(&QKEY.raw().to_be_bytes());
                }
            }
            if sane && layout.reth != 0 {
                let reth = &mut ext[names..];
                reth[..8].copy_from_slice(&64_u64.to_be_bytes());
                reth[8..12].copy_from_slice(&KEY.raw().to_be_bytes());
                reth[12..16].copy_from_slice(&(len as u32 * 2).to_be_bytes());
            }
            ext.resize(usize::from(layout.header_bytes) - 12, 0);
            let raw = Raw { opcode, ext, payload: vec![1; len], ..Raw::rc(P::SendOnly, B, psn) };
            let bytes = raw.bytes();
            if Packet::parse(&bytes).is_ok() {
                p.deliver(B, &bytes);
            }
            p.now += 1000;
            p.transmit_side(B);
        }
        p.script = Box::new(|_, _, _| Fate::Drop);
        p.run();
        let ended = p.b.host.statuses().len();
        prop_assert_eq!(ended, 10);
    }
}
