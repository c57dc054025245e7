//! Extended reliable connections (XRC): an initiator, a target, and shared receive queues that requests name, by packets
//! and by messages.
mod link;
mod messages;
mod pair;

use std::collections::VecDeque;

use link::*;
use pair::*;

use WcStatus::RemoteAccess;

/// Two queues of the target's domain, and the key of each queue's protection domain.
const QUEUES: [(u32, Rkey); 2] = [(7, KEY), (0xab_cdef, Rkey::new(0x5678))];
/// A number that no queue of the domain has.
const ELSEWHERE: u32 = 8;

both!(
    each_message_goes_to_the_queue_that_it_names,
    rdma_and_atomics_need_no_receive_request_and_take_the_keys_of_the_queue_that_they_name,
    a_key_of_another_queues_protection_domain_is_refused,
    a_queue_that_the_domain_does_not_have_is_refused,
    an_empty_queue_keeps_its_message_waiting_and_no_other_queue_serves_it,
);

/// An initiator at A, and a target at B with its queues.
fn xrc(by: By) -> Link {
    let mut p = by.connected(&Setup::xrc());
    for (srq, key) in QUEUES {
        p.b.host.xrc.queues.insert(srq, (VecDeque::new(), key));
    }
    p
}
fn packets() -> Pair {
    let Link::Packets(pair) = xrc(By::Packets) else { unreachable!() };
    pair
}
/// Posts a request that names a queue.
fn send(p: &mut Pair, srq: u32, op: SendOp, addr: usize, len: u32) {
    p.a.host.names = Srqn::new(srq);
    p.send(A, op, addr, len);
}

fn at(addr: u64, rkey: Rkey) -> RemoteAddr {
    RemoteAddr { addr, rkey }
}

fn each_message_goes_to_the_queue_that_it_names(by: By) {
    let mut p = xrc(by);
    let [(one, _), (two, _)] = QUEUES;
    p.fill(A, 0, 10_000);
    for (srq, addr) in [(one, 100_000), (two, 200_000), (two, 300_000)] {
        p.recv_srq(srq, addr, 10_000);
    }
    send(&mut p, two, SendOp::Send, 0, 10_000);
    send(&mut p, one, SendOp::SendImm(5), 0, 9_000);
    send(&mut p, two, SendOp::SendInv(KEY), 0, 40);
    p.ends(&[Success; 3]);
    assert_eq!(p.b.host.xrc.completed, [two, one, two]);
    let recvs: Vec<_> = p.b.host.recvs().iter().map(|(id, r)| (*id, r.byte_len, r.extra)).collect();
    let (imm, inv) = (RecvExtra::Imm(5), RecvExtra::Invalidated(KEY));
    assert_eq!(recvs, [(1, 10_000, RecvExtra::None), (0, 9_000, imm), (2, 40, inv)]);
    for (addr, len) in [(200_000, 10_000), (100_000, 9_000), (300_000, 40)] {
        p.expect_bytes(B, addr, 0, len);
    }
}

fn rdma_and_atomics_need_no_receive_request_and_take_the_keys_of_the_queue_that_they_name(by: By) {
    let mut p = xrc(by);
    let [(one, key_one), (two, key_two)] = QUEUES;
    p.fill(A, 0, 9_000);
    p.fill(B, 500_000, 9_000);
    p.recv_srq(two, 0, 0);
    // READs of both protection domains are answered while others are asked for.
    send(&mut p, one, SendOp::Read(at(500_000, key_one)), 100_000, 9_000);
    send(&mut p, two, SendOp::Read(at(500_000, key_two)), 200_000, 9_000);
    send(&mut p, one, SendOp::Write(at(600_000, key_one)), 0, 9_000);
    send(&mut p, two, SendOp::WriteImm(at(700_000, key_two), 3), 0, 9_000);
    send(&mut p, two, SendOp::FetchAdd { remote: at(800_000, key_two), add: 4 }, 300_000, 8);
    let swap = SendOp::CompareSwap { remote: at(800_000, key_one), compare: 4, swap: 9 };
    send(&mut p, one, swap, 300_008, 8);
    p.ends(&[Success; 6]);
    for (side, addr, from) in [(A, 100_000, 500_000), (A, 200_000, 500_000), (B, 600_000, 0), (B, 700_000, 0)]
    {
        p.expect_bytes(side, addr, from, 9_000);
    }
    assert_eq!(p.b.host.mem[800_000..800_008], 9_u64.to_ne_bytes());
    assert_eq!(p.b.host.recvs().len(), 1, "WRITE with immediate data alone");
}

fn a_key_of_another_queues_protection_domain_is_refused(by: By) {
    let mut p = xrc(by);
    let [(one, _), (_, key_two)] = QUEUES;
    send(&mut p, one, SendOp::Write(at(0, key_two)), 0, 8);
    p.ends(&[RemoteAccess]);
    assert!(p.b.host.has_event(QpEvent::AccessError));
}

fn a_queue_that_the_domain_does_not_have_is_refused(by: By) {
    let ops = [SendOp::Send, WRITE, READ];
    for op in ops {
        let mut p = xrc(by);
        for (srq, _) in QUEUES {
            p.recv_srq(srq, 0, 64);
        }
        send(&mut p, ELSEWHERE, op, 0, 8);
        p.ends(&[RemoteAccess]);
        assert!(p.b.host.has_event(QpEvent::AccessError) && p.b.host.recvs().is_empty());
        assert_eq!((p.a.qp.state(), p.b.qp.state()), (QpState::Error, QpState::Error));
        assert!(p.b.host.has_event(QpEvent::LastWqeReached));
    }
}

fn an_empty_queue_keeps_its_message_waiting_and_no_other_queue_serves_it(by: By) {
    let mut p = xrc(by);
    let [(one, _), (two, _)] = QUEUES;
    p.recv_srq(two, 0, 64);
    send(&mut p, one, SendOp::Send, 0, 8);
    while p.rnr_naks() < 3 {
        assert!(p.turn());
    }
    assert!(p.b.host.recvs().is_empty());
    p.recv_srq(one, 0, 64);
    p.ends(&[Success]);
    assert_eq!(p.b.host.xrc.completed, [one]);
}

#[test]
fn every_request_packet_names_its_queue_and_no_response_does() {
    let mut p = packets();
    let [(one, _), _] = QUEUES;
    p.recv_srq(one, 0, 1000);
    p.a.host.names = Srqn::new(one);
    p.send(A, SendOp::Send, 0, 1000);
    p.send(A, WRITE, 0, 1000);
    p.send(A, READ, 0, 1000);
    p.send(A, SendOp::FetchAdd { remote: remote(0), add: 1 }, 0, 8);
    p.ends(&[Success; 4]);
    for sent in &p.wire {
        let packet = sent.packet();
        assert_eq!(packet.opcode().kind(), Some(TransportKind::Xrc));
        let named = packet.xrceth().map(|x| x.srqn.get());
        assert_eq!(named, (sent.side == A).then_some(one), "{packet:?}");
    }
    let first: Vec<_> = p.ops(A).into_iter().take(4).collect();
    use PacketOp::{SendFirst, SendLast, SendMiddle};
    assert_eq!(first, [SendFirst, SendMiddle, SendMiddle, SendLast]);
}

#[test]
fn lost_packets_are_sent_again_with_their_queue() {
    let mut p = packets();
    let [(one, key_one), (two, key_two)] = QUEUES;
    p.script = Box::new(|_, n, _| if n < 60 && n % 5 == 1 { Fate::Drop } else { Fate::Pass });
    p.fill(A, 0, 4_000);
    p.fill(B, 500_000, 4_000);
    for i in 0..4 {
        p.recv_srq(if i % 2 == 0 { one } else { two }, 100_000 + i * 5_000, 4_000);
    }
    for i in 0..4 {
        let (srq, key) = if i % 2 == 0 { (one, key_one) } else { (two, key_two) };
        send(&mut p, srq, SendOp::Send, 0, 4_000);
        send(&mut p, srq, SendOp::Read(at(500_000, key)), 200_000 + 5_000 * i, 4_000);
    }
    p.ends(&[Success; 8]);
    assert_eq!(p.b.host.xrc.completed, [one, two, one, two]);
    for i in 0..4 {
        p.expect_bytes(B, 100_000 + i * 5_000, 0, 4_000);
        p.expect_bytes(A, 200_000 + i * 5_000, 500_000, 4_000);
    }
}

#[test]
fn an_initiator_takes_no_request_and_a_target_no_response() {
    let mut p = packets();
    let [(one, _), _] = QUEUES;
    p.a.host.names = Srqn::new(one);
    p.send(A, WRITE, 0, 8);
    p.run();
    let (request, response) = (p.wire[0].bytes.clone(), p.wire[1].bytes.clone());
    for (to, bytes) in [(A, &request), (B, &response)] {
        let before = p.node(to).host.counted(Count::DroppedState);
        p.deliver(to, bytes);
        assert_eq!(p.node(to).host.counted(Count::DroppedState), before + 1);
    }
    // Nor does either take the packets of a plain RC.
    let mut plain = request;
    plain[0] &= 0x1f;
    plain.drain(12..16);
    p.deliver(B, &plain);
    assert_eq!(p.b.host.counted(Count::DroppedState), 2);
    assert_eq!(p.b.host.writes, 1);
}

#[test]
fn a_message_keeps_to_one_queue() {
    let mut p = packets();
    let [(one, _), (two, _)] = QUEUES;
    p.recv_srq(one, 0, 1000);
    p.script = Box::new(|side, _, _| if side == A { Fate::Drop } else { Fate::Pass });
    send(&mut p, one, SendOp::Send, 0, 600);
    p.transmit_side(A);
    let [first, middle, ..] = &p.wire[..] else { panic!("three packets") };
    let (first, mut middle) = (first.bytes.clone(), middle.bytes.clone());
    middle[13..16].copy_from_slice(&two.to_be_bytes()[1..]);
    p.deliver(B, &first);
    p.deliver(B, &middle);
    p.transmit_side(B);
    assert_eq!(p.naks(B), [NakCode::InvalidRequest]);
}

#[test]
fn a_repeated_read_that_names_another_queue_is_a_guess() {
    let mut p = packets();
    let [(one, key), (two, _)] = QUEUES;
    send(&mut p, one, SendOp::Read(at(0, key)), 0, 64);
    p.ends(&[Success]);
    let read = p.wire[0].bytes.clone();
    let answered = p.wire.len();
    p.deliver(B, &read);
    p.transmit_side(B);
    assert_eq!(p.wire.len(), answered + 1, "the same READ is answered again");
    let mut other = read;
    other[13..16].copy_from_slice(&two.to_be_bytes()[1..]);
    p.deliver(B, &other);
    p.transmit_side(B);
    assert_eq!(p.wire.len(), answered + 1);
}
