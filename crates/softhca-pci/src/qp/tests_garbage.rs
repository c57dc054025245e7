//! Clients that write contents that no driver writes.

use hca_prm::{Opcode, ServiceType, WqeOpcode};
use proptest::prelude::*;

use crate::bed::{Answer, BASE, LEN, Pair, QpShape, Wqe};

/// Bytes that a client puts somewhere in its queues.
#[derive(Clone, Debug)]
enum Junk {
    /// In a send queue: where, and what.
    Send(u16, [u8; 64]),
    /// As `Send`, with a control segment that is almost right.
    Almost(u16, u8, u8, [u8; 48]),
    Recv(u16, [u8; 64]),
    /// In the doorbell record of the queue pair, or of its completion queue.
    Record([u8; 8]),
    CqRecord([u8; 8]),
    /// Moves a counter by this much.
    Posted(bool, u16),
    Ring,
    /// An event of the adapter's time.
    Look,
}

fn junk() -> impl Strategy<Value = Junk> {
    let bytes = || proptest::array::uniform32(any::<u8>());
    let block = (bytes(), bytes()).prop_map(|(a, b)| {
        let mut all = [0; 64];
        all[..32].copy_from_slice(&a);
        all[32..].copy_from_slice(&b);
        all
    });
    let opcodes = prop_oneof![
        Just(0_u8),
        Just(1),
        Just(8),
        Just(9),
        Just(0xa),
        Just(0xb),
        Just(0x10),
        Just(0x11),
        Just(0x12),
        Just(0x25),
        any::<u8>()
    ];
    prop_oneof![
        (any::<u16>(), block.clone()).prop_map(|(at, b)| Junk::Send(at, b)),
        (any::<u16>(), opcodes, any::<u8>(), block.clone())
            .prop_map(|(at, op, ds, b)| { Junk::Almost(at, op, ds, b[..48].try_into().unwrap()) }),
        (any::<u16>(), block).prop_map(|(at, b)| Junk::Recv(at, b)),
        proptest::array::uniform8(any::<u8>()).prop_map(Junk::Record),
        proptest::array::uniform8(any::<u8>()).prop_map(Junk::CqRecord),
        (any::<bool>(), 0_u16..20).prop_map(|(send, n)| Junk::Posted(send, n)),
        Just(Junk::Ring),
        Just(Junk::Look),
    ]
}

fn play(p: &mut Pair, junk: &[Junk]) {
    let (mut sent, mut received) = (0_u16, 0_u16);
    for step in junk {
        let (qp, uar) = (p.a.qp, p.a.client.uar);
        let sq = |at: u16| qp.sq + 64 * u64::from(at % (1 << qp.log_sq));
        match step {
            Junk::Send(at, bytes) => p.a.client.write(sq(*at), bytes),
            Junk::Almost(at, op, ds, rest) => {
                let at = sq(at % 24);
                p.a.client.write(at, &[0, 0, 0, *op, 0, 0, 1, ds % 40, 0, 0, 0, 8, 0, 0, 0, 0]);
                p.a.client.write(at + 16, rest);
            }
            Junk::Recv(at, bytes) => {
                p.a.client.write(qp.rq + 64 * u64::from(at % (1 << qp.log_rq)), bytes);
            }
            Junk::Record(bytes) => p.a.client.write(qp.record, bytes),
            Junk::CqRecord(bytes) => p.a.client.write(p.a.send_cq.record, bytes),
            Junk::Posted(true, n) => {
                sent = sent.wrapping_add(*n);
                p.a.client.write(qp.record + 4, &u32::from(sent).to_be_bytes());
            }
            Junk::Posted(false, n) => {
                received = received.wrapping_add(*n);
                p.a.client.write(qp.record, &u32::from(received).to_be_bytes());
            }
            Junk::Ring => p.a.client.function.armed(uar, 0, None),
            Junk::Look => p.look(),
        }
    }
    for _ in 0..30 {
        p.look();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Commands that make objects, whose contexts hold anything.
    #[test]
    fn whatever_a_command_asks_for_it_is_refused_or_done_and_goes_again(
        commands in proptest::collection::vec(
            (0_usize..8, proptest::collection::vec((0_usize..0x110, any::<u8>()), 0..40), 0_usize..40),
            1..20,
        ),
    ) {
        let mut p = Pair::new(QpShape::default());
        let page = p.a.client.alloc(0x1000, 0x1000);
        for (which, bytes, pages) in commands {
            let opcode = [
                Opcode::CREATE_MKEY,
                Opcode::CREATE_CQ,
                Opcode::CREATE_QP,
                Opcode::CREATE_SRQ,
                Opcode::CREATE_RMP,
                Opcode::MODIFY_RMP,
                Opcode::MODIFY_CQ,
                Opcode::RST2INIT_QP,
            ][which];
            let mut input = vec![0; 0x110];
            input[..2].copy_from_slice(&opcode.0.to_be_bytes());
            for (at, byte) in bytes {
                input[at] = byte;
            }
            input.extend((0..pages).flat_map(|_| page.to_be_bytes()));
            assert!(matches!(p.a.client.give(&input, 0x110), Answer::Delivered(..)));
        }
        for _ in 0..5 {
            p.look();
        }
        p.a.client.function.reset();
        p.look();
    }

    #[test]
    fn whatever_stands_in_queues_and_records_the_other_function_is_as_it_was(
        service in prop_oneof![Just(ServiceType::Rc), Just(ServiceType::Uc), Just(ServiceType::Ud)],
        steps in proptest::collection::vec(junk(), 1..60),
    ) {
        let mut p = Pair::new(QpShape { st: service, ..QpShape::default() });
        let third = p.server.client(2);
        let before = third.read(BASE, LEN as usize);
        play(&mut p, &steps);
        prop_assert!(third.read(BASE, LEN as usize) == before, "memory of another function changed");
        // A whole connection still works, beside what is left of that one.
        let shape = QpShape::default();
        let (a, b) = ((p.a.send_cq, p.a.recv_cq), (p.b.send_cq, p.b.recv_cq));
        let fresh = p.a.client.cq(4);
        let _ = a;
        (p.a.send_cq, p.a.recv_cq) = (fresh, fresh);
        p.a.qp = p.a.client.qp(shape, &fresh, &fresh);
        let b_fresh = p.b.client.cq(4);
        let _ = b;
        (p.b.send_cq, p.b.recv_cq) = (b_fresh, b_fresh);
        p.b.qp = p.b.client.qp(shape, &b_fresh, &b_fresh);
        let gid = p.server.gid();
        let (to_a, to_b) = (p.a.qp.qpn, p.b.qp.qpn);
        p.a.client.connect(&p.a.qp.clone(), gid, to_b);
        p.b.client.connect(&p.b.qp.clone(), gid, to_a);
        p.b.recv(0, 64);
        p.a.post(&Wqe::new(WqeOpcode::Send).inline(b"still here"));
        p.received();
        prop_assert_eq!(p.b.bytes(0, 10), b"still here");
    }
}
