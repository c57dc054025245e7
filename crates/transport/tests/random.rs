//! Random scripts of operations over a wire that loses, doubles and delays: exactly once, in order, the
//! right bytes, one completion a request, and quiet at the end.
mod pair;

use hca_core::wire::Packet;
use hca_core::*;
use pair::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use test_support::random::Rng;

use Side::{A, B};

/// Local memory of request `n`, its twin at the peer, and what both are apart.
const SLOT: usize = 4096;
/// Where requests find their targets at the peer.
const TARGETS: usize = 256 << 10;
/// Where receives are placed.
const RECVS: usize = 512 << 10;
/// The word that atomics count in, and where writes leave it alone.
const COUNTER: usize = MEMORY - 64;

/// Fewer operations than this in a script. Miri takes a second for each.
const MAX_OPS: usize = if cfg!(miri) { 4 } else { 30 };

#[derive(Clone, Copy, Debug)]
enum Op {
    Send(u32),
    Write(u32),
    WriteImm(u32),
    Read(u32),
    Add,
}

fn op() -> impl Strategy<Value = (Op, bool)> {
    let len = prop_oneof![Just(0), Just(1), 2..300_u32, Just(256), Just(512), 300..4000_u32];
    let op = (0..5, len).prop_map(|(k, len)| match k {
        0 => Op::Send(len),
        1 => Op::Write(len),
        2 => Op::WriteImm(len),
        3 => Op::Read(len),
        _ => Op::Add,
    });
    (op, prop::bool::weighted(0.1))
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

/// Posts the script of one side, with receive requests at the other.
fn post(p: &mut Pair, side: Side, ops: &[(Op, bool)], recvs_now: bool) -> Vec<usize> {
    let mut recv_ids = Vec::new();
    for (n, (op, fence)) in ops.iter().enumerate() {
        let (local, target) = (n * SLOT, TARGETS + n * SLOT);
        let flags = if *fence { SendFlags::SIGNALED | SendFlags::FENCE } else { SendFlags::SIGNALED };
        p.fill(side, local, SLOT);
        p.fill(side.other(), target, SLOT);
        let (op, len) = match *op {
            Op::Send(len) => (SendOp::SendImm(n as u32), len),
            Op::Write(len) => (SendOp::Write(remote(target)), len),
            Op::WriteImm(len) => (SendOp::WriteImm(remote(target), n as u32), len),
            Op::Read(len) => (SendOp::Read(remote(target)), len),
            Op::Add => (SendOp::FetchAdd { remote: remote(COUNTER), add: 1 }, 8),
        };
        if op.consumes_recv() {
            recv_ids.push(n);
            if recvs_now {
                p.recv(side.other(), RECVS + n * SLOT, SLOT);
            }
        }
        p.post(side, op, local, len, flags);
    }
    recv_ids
}

/// What must hold at the end for the script of `side`.
fn check(p: &mut Pair, side: Side, ops: &[(Op, bool)], recv_ids: &[usize]) {
    assert_eq!(p.node(side).host.statuses(), vec![WcStatus::Success; ops.len()]);
    let recvs = p.node(side.other()).host.recvs();
    let imms: Vec<_> = recvs.iter().map(|r| r.1.extra).collect();
    let want: Vec<_> = recv_ids.iter().map(|n| RecvExtra::Imm(*n as u32)).collect();
    assert_eq!(imms, want, "receives: each once, in order");
    let mut adds = 0_u64;
    for (n, (op, _)) in ops.iter().enumerate() {
        let (local, target) = (n * SLOT, TARGETS + n * SLOT);
        match *op {
            Op::Send(len) => p.expect_bytes(side.other(), RECVS + n * SLOT, local, len as usize),
            Op::Write(len) | Op::WriteImm(len) => p.expect_bytes(side.other(), target, local, len as usize),
            Op::Read(len) => p.expect_bytes(side, local, target, len as usize),
            Op::Add => {
                assert_eq!(p.node(side).host.mem[local..local + 8], adds.to_ne_bytes());
                adds += 1;
            }
        }
    }
    assert_eq!(p.node(side.other()).host.mem[COUNTER..COUNTER + 8], adds.to_ne_bytes());
    assert_eq!(p.node(side.other()).host.atomics as u64, adds, "no atomic twice");
    let n = p.node(side);
    assert_eq!(n.qp.state(), QpState::Rts);
    assert!(n.qp.next_deadline().is_none() && n.qp.ack_owed().is_none() && n.host.held.is_none());
    assert_eq!(n.qp.window().inflight_bytes, 0);
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

/// 128 cases of a fixed seed; `PROPTEST_CASES` and `PROPTEST_RNG_SEED` ask for others.
fn config() -> ProptestConfig {
    let given = ProptestConfig::default();
    let cases = match std::env::var_os("PROPTEST_CASES") {
        _ if cfg!(miri) => 1,
        Some(_) => given.cases,
        None => 128,
    };
    let rng_seed = if given.rng_seed == RngSeed::Random { RngSeed::Fixed(1) } else { given.rng_seed };
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..given }
}

proptest! {
    #![proptest_config(config())]

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
        let ids_a = post(&mut p, A, &ops_a, true);
        let ids_b = post(&mut p, B, &ops_b, true);
        p.run();
        check(&mut p, A, &ops_a, &ids_a);
        check(&mut p, B, &ops_b, &ids_b);
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
        let ids = post(&mut p, A, &ops, false);
        for n in &ids {
            let until = p.now + gap;
            p.run_until(until);
            p.recv(B, RECVS + n * SLOT, SLOT);
        }
        p.run();
        check(&mut p, A, &ops, &ids);
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
        post(&mut p, A, &ops, true);
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
            let opcode = hca_core::wire::Opcode::new(if op > 250 { 0x81 } else { code });
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
            let raw = Raw { opcode, ext, payload: vec![1; len], ..Raw::rc(hca_core::wire::PacketOp::SendOnly, B, psn) };
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
