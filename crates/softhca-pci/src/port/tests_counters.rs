//! Sets of counters, and the traffic of their queue pairs.

use hca_prm::command::counter::QueryQCounterOut as Set;
use hca_prm::{Ads, Field, Opcode, Qpc, RaddrSeg, ServiceType, WqeOpcode, optpar};

use crate::bed::{End, Pair, QpShape, Server, Wqe};

/// All counters of a set that are not 0.
fn told(end: &mut End, set: u32) -> Vec<(&'static str, u32)> {
    let (told, _) = end.client.function.objects.counters_of(set, false);
    let named: [(&str, Field<Set, u32>); 14] = [
        ("out_of_buffer", Set::OUT_OF_BUFFER),
        ("out_of_sequence", Set::OUT_OF_SEQUENCE),
        ("duplicate", Set::DUPLICATE_REQUEST),
        ("rnr", Set::RNR_NAK_RETRY_ERR),
        ("sequence", Set::PACKET_SEQ_ERR),
        ("timeout", Set::LOCAL_ACK_TIMEOUT_ERR),
        ("req_error", Set::REQ_CQE_ERROR),
        ("req_flush", Set::REQ_CQE_FLUSH_ERROR),
        ("resp_error", Set::RESP_CQE_ERROR),
        ("resp_flush", Set::RESP_CQE_FLUSH_ERROR),
        ("retries", Set::REQ_TRANSPORT_RETRIES_EXCEEDED),
        ("req_access", Set::REQ_REMOTE_ACCESS_ERRORS),
        ("resp_access", Set::RESP_REMOTE_ACCESS_ERRORS),
        ("resp_length", Set::RESP_LOCAL_LENGTH_ERROR),
    ];
    named.into_iter().map(|(name, field)| (name, told.get(field))).filter(|(_, n)| *n > 0).collect()
}

#[test]
fn what_goes_wrong_is_counted_where_it_did() {
    // Nobody has the address.
    let server = Server::new();
    let mut a = End::new(&server, 0, QpShape::default());
    let qp = a.qp;
    a.client.connect_by(&qp, Ads::new().with(Ads::RLID, 77), 9, (6, 2));
    let mut p = Pair { b: End::new(&server, 1, QpShape::default()), a, server };
    for _ in 0..2 {
        p.a.post(&Wqe::new(WqeOpcode::Send).inline(b"nowhere"));
    }
    p.sent();
    p.sent();
    assert_eq!(told(&mut p.a, 0), [("timeout", 2), ("req_error", 2), ("req_flush", 1), ("retries", 1)]);
    assert_eq!(told(&mut p.b, 0), [], "it is another function's");

    // Refused: what ends a request is no gap in the sequence.
    let mut p = Pair::new(QpShape::default());
    p.b.recv(0, 64);
    let wrong = RaddrSeg::new().with(RaddrSeg::RADDR, 0x1000).with(RaddrSeg::RKEY, 0x1234_5678);
    p.a.post(&Wqe::new(WqeOpcode::RdmaWrite).to(wrong).inline(b"12345678"));
    p.sent();
    p.until("the flushed receive request", |p| p.b.received());
    assert_eq!(told(&mut p.a, 0), [("req_error", 1), ("req_access", 1)]);
    assert_eq!(told(&mut p.b, 0), [("resp_error", 1), ("resp_flush", 1), ("resp_access", 1)]);

    // Nothing is there to receive by, and then a place that is too small.
    let mut p = Pair::new(QpShape::default());
    p.a.post(&Wqe::new(WqeOpcode::Send).inline(b"much too long"));
    p.until("a negative acknowledgement", |p| told(&mut p.a, 0).iter().any(|c| c.0 == "rnr").then_some(()));
    p.b.recv(0, 4);
    p.sent();
    p.until("the receive request that was too small", |p| p.b.received());
    assert_eq!(told(&mut p.a, 0)[0].0, "rnr");
    let at_b = told(&mut p.b, 0);
    assert_eq!((at_b[0].0, &at_b[1..]), ("out_of_buffer", &[("resp_error", 1), ("resp_length", 1)][..]));
}

#[test]
fn a_set_counts_what_happened_while_it_was_named_and_keeps_it() {
    let mut p = Pair::new(QpShape { st: ServiceType::Rc, ..QpShape::default() });
    let (a, b) = (p.a.qp.qpn, p.b.qp.qpn);
    for (qpn, end) in [(a, &mut p.a), (b, &mut p.b)] {
        let other = Qpc::new().with(Qpc::COUNTER_SET_ID, 5);
        end.client.change(Opcode::RTS2RTS_QP, qpn, 0, other).unwrap();
        assert_eq!(end.client.query(&end.qp.clone()).get(Qpc::COUNTER_SET_ID), 0, "it was not meant");
        end.client.change(Opcode::RTS2RTS_QP, qpn, optpar::COUNTER_SET_ID, other).unwrap();
    }
    p.b.recv(0, 4);
    p.a.post(&Wqe::new(WqeOpcode::Send).inline(b"much too long"));
    p.sent();
    p.until("the receive request that was too small", |p| p.b.received());
    assert_eq!(told(&mut p.b, 0), []);
    let counted = [("resp_error", 1), ("resp_length", 1)];
    assert_eq!(told(&mut p.b, 5), counted);
    p.b.client.destroy(b).unwrap();
    assert_eq!(told(&mut p.b, 5), counted, "it does not go with its queue pair");
    p.b.client.function.objects.counters_of(5, true);
    assert_eq!(told(&mut p.b, 5), []);
}

#[test]
fn what_the_adapter_counts_stays_with_the_set_that_was_named_then() {
    let mut p = Pair::new(QpShape::default());
    p.a.post(&Wqe::new(WqeOpcode::Send).inline(b"early"));
    p.until("a negative acknowledgement", |p| told(&mut p.a, 0).iter().any(|c| c.0 == "rnr").then_some(()));
    let b = p.b.qp.qpn;
    let other = Qpc::new().with(Qpc::COUNTER_SET_ID, 5);
    p.b.client.change(Opcode::RTS2RTS_QP, b, optpar::COUNTER_SET_ID, other).unwrap();
    assert_eq!(told(&mut p.b, 5), []);
    assert!(matches!(told(&mut p.b, 0)[..], [("out_of_buffer", _)]));
    p.b.recv(0, 64);
    p.received();
}

#[test]
fn what_the_adapter_has_counted_for_a_queue_pair_outlives_it() {
    let mut p = Pair::new(QpShape::default());
    p.a.post(&Wqe::new(WqeOpcode::Send).inline(b"early"));
    p.until("a negative acknowledgement", |p| told(&mut p.a, 0).iter().any(|c| c.0 == "rnr").then_some(()));
    let b = p.b.qp.qpn;
    p.b.client.destroy(b).unwrap();
    assert!(matches!(told(&mut p.b, 0)[..], [("out_of_buffer", _)]));
}
