//! Unreliable connection and unreliable datagram.
mod pair;

use pair::*;

fn uc() -> Pair {
    Pair::new(&Setup { qp_type: QpType::Uc, ..Setup::default() })
}
fn ud() -> Pair {
    Pair::new(&Setup { qp_type: QpType::Ud, ..Setup::default() })
}
fn uc_raw(op: PacketOp, psn: u32) -> Raw {
    Raw { opcode: Opcode::uc(op), ..Raw::rc(op, B, psn) }
}
fn ud_raw(len: usize) -> Raw {
    Raw { opcode: Opcode::ud(P::SendOnly), ..Raw::rc(P::SendOnly, B, 0) }.deth(QKEY).payload(len)
}

#[test]
fn uc_moves_bytes_without_any_answer() {
    let mut p = uc();
    p.fill(A, 0, 1000);
    p.recv(B, 4096, 1000);
    p.recv(B, 0, 0);
    p.send(A, SendOp::SendImm(5), 0, 1000);
    p.send(A, SendOp::Write(remote(8192)), 0, 1000);
    p.send(A, SendOp::WriteImm(remote(16_384), 6), 0, 1000);
    p.ends(&[Success; 3]);
    assert!(p.ops(B).is_empty());
    p.expect_bytes(B, 4096, 0, 1000);
    p.expect_bytes(B, 8192, 0, 1000);
    p.expect_bytes(B, 16_384, 0, 1000);
    assert_eq!(p.b.host.recvs().len(), 2);
}

#[test]
fn uc_drops_a_message_that_lost_a_packet_and_goes_on_with_the_next() {
    for lost in 0..4 {
        let mut p = uc();
        p.fill(A, 0, 1000);
        p.recv(B, 4096, 1000);
        p.drop_packets(A, &[lost]);
        p.send(A, SendOp::Send, 100_000, 1000);
        p.send(A, SendOp::Send, 0, 1000);
        p.ends(&[Success; 2]);
        assert_eq!(p.b.host.recvs().len(), 1, "lost {lost}");
        assert_eq!(p.b.host.recvs()[0].0, 0, "the receive request went back");
        p.expect_bytes(B, 4096, 0, 1000);
    }
}

#[test]
fn uc_drops_what_finds_no_receive_request_or_does_not_fit() {
    let mut p = uc();
    p.send(A, SendOp::Send, 0, 600);
    p.run();
    assert!(p.b.host.counted(Count::DroppedNoRecv) == 1 && p.b.host.recvs().is_empty());
    p.recv(B, 0, 300);
    p.send(A, SendOp::Send, 0, 600);
    p.send(A, SendOp::Send, 0, 301);
    p.send(A, SendOp::Send, 0, 300);
    p.run();
    assert_eq!(p.b.host.recvs().len(), 1);
    assert_eq!(p.b.qp.state(), QpState::Rts);
}

#[test]
fn uc_drops_writes_that_are_not_allowed_without_a_word() {
    let mut p = uc();
    p.recv(B, 0, 0);
    p.send(A, SendOp::WriteImm(remote(MEMORY), 1), 0, 8);
    p.send(A, SendOp::Write(remote(MEMORY)), 0, 800);
    p.run();
    assert_eq!(p.b.host.writes, 0);
    assert_eq!((p.b.host.rq.len(), p.b.qp.state()), (1, QpState::Rts));
}

#[test]
fn uc_local_error_stops_the_send_queue_only_until_it_is_made_ready_again() {
    let mut p = uc();
    p.send(A, SendOp::Send, 0, 8);
    p.send_bad(SendOp::Send, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.recv(A, 0, 8);
    p.ends(&[Success, WcStatus::LocalProtection, WrFlushed]);
    assert_eq!(p.a.qp.state(), QpState::Sqe);
    p.send(A, SendOp::Send, 0, 8);
    assert_eq!(p.a.host.statuses().last(), Some(&WrFlushed));
    p.send(B, SendOp::Send, 0, 8);
    p.run();
    assert_eq!(p.a.host.recvs().len(), 1, "SQE still receives");
    p.state(A, QpState::Rts);
    p.recv(B, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.run();
    assert_eq!(p.b.host.recvs().len(), 1);
    assert_eq!(p.a.host.statuses().last(), Some(&Success));
}

#[test]
fn uc_offers_no_reads_and_atomics() {
    for op in [READ, SendOp::FetchAdd { remote: remote(0), add: 1 }, SendOp::SendInv(KEY)] {
        let mut p = uc();
        p.send(A, op, 0, 8);
        p.ends(&[WcStatus::LocalQpOperation]);
        assert_eq!(p.a.qp.state(), QpState::Sqe);
        // Behind the failed one all is flushed at once.
        p.send(A, SendOp::Send, 0, 8);
        p.expect_sends(&[WcStatus::LocalQpOperation, WrFlushed]);
    }
}

#[test]
fn uc_receive_that_cant_be_written_is_an_error_of_the_receiver() {
    let mut p = uc();
    p.recv_raw(B, 0, 100, true);
    p.recv(B, 0, 100);
    p.send(A, SendOp::Send, 0, 8);
    p.ends(&[Success]);
    assert_eq!(p.b.host.recvs()[0].1.status, WcStatus::LocalProtection);
    assert_eq!(p.b.qp.state(), QpState::Error);
}

#[test]
fn uc_first_inside_a_message_begins_a_new_one() {
    let mut p = uc();
    p.recv(B, 0, 1000);
    p.deliver(B, &uc_raw(P::SendFirst, PSN).payload(256).bytes());
    p.deliver(B, &uc_raw(P::SendFirst, PSN + 1).payload(256).bytes());
    p.deliver(B, &uc_raw(P::SendLast, PSN + 2).payload(4).bytes());
    assert_eq!(p.b.host.recvs()[0].1.byte_len, 260);
}

#[test]
fn a_datagram_arrives_behind_its_grh() {
    let mut p = ud();
    p.fill(A, 0, 1000);
    p.recv(B, 4096, 1040);
    p.send(A, SendOp::SendImm(3), 0, 1000);
    p.ends(&[Success]);
    let (_, done) = p.b.host.recvs()[0];
    assert_eq!((done.byte_len, done.grh, done.src_qp, done.extra), (1040, true, qpn(A), RecvExtra::Imm(3)));
    assert_eq!(p.b.host.mem[4096..4136], [7; 40]);
    p.expect_bytes(B, 4136, 0, 1000);
}

#[test]
fn a_datagram_without_receive_request_or_room_is_dropped() {
    let mut p = ud();
    p.send(A, SendOp::Send, 0, 100);
    p.run();
    assert_eq!(p.b.host.counted(Count::DroppedNoRecv), 1);
    p.recv(B, 0, 139);
    p.send(A, SendOp::Send, 0, 100);
    p.run();
    assert_eq!((p.b.host.counted(Count::DroppedInvalid), p.b.host.rq.len()), (1, 1));
    assert_eq!(p.b.qp.state(), QpState::Rts);
}

#[test]
fn a_datagram_of_another_q_key_is_dropped() {
    let mut p = ud();
    p.recv(B, 0, 100);
    let mut raw = ud_raw(8);
    raw.ext.clear();
    p.deliver(B, &raw.deth(Qkey::new(5)).bytes());
    assert_eq!((p.b.host.counted(Count::DroppedQkey), p.b.host.rq.len()), (1, 1));
    p.deliver(B, &ud_raw(8).bytes());
    assert_eq!(p.b.host.recvs().len(), 1);
}

#[test]
fn a_privileged_q_key_takes_the_queue_pairs_own() {
    let mut p = ud();
    p.recv(B, 0, 100);
    let dest = UdTarget { ah: AhHandle::default(), qpn: qpn(B), qkey: Qkey::new(0x8000_0000) };
    let request =
        SendRequest { op: SendOp::Send.into(), flags: SendFlags::SIGNALED, len: 8, dest: Some(dest) };
    p.post_raw(A, Posted { request, addr: 0, bad: false });
    p.run();
    assert_eq!(p.b.host.recvs().len(), 1);
}

#[test]
fn a_datagram_longer_than_the_ports_mtu_is_a_local_length_error() {
    let mut p = ud();
    p.send(A, SendOp::Send, 0, 4097);
    p.send(A, SendOp::Send, 0, 8);
    p.ends(&[WcStatus::LocalLength, WrFlushed]);
    assert_eq!(p.a.qp.state(), QpState::Sqe);
    p.state(A, QpState::Rts);
    p.recv(B, 0, 100);
    p.send(A, SendOp::Send, 0, 8);
    p.run();
    assert_eq!(p.b.host.recvs().len(), 1);
}

#[test]
fn only_sends_are_datagrams() {
    let mut p = ud();
    p.send(A, WRITE, 0, 8);
    p.ends(&[WcStatus::LocalQpOperation]);
}

/// Lets a side send this many packets at most, and returns those that left, of which it has to tell the number.
fn sends_at_most(p: &mut Pair, max: usize) -> usize {
    let mut sink = VecSink::with_room(usize::MAX);
    let sent = p.a.qp.poll_transmit(Instant::from_nanos(p.now), &mut p.a.host, &mut sink, max);
    assert_eq!(sent, sink.out.len(), "it told another number");
    sent
}

#[test]
fn no_more_packets_leave_than_may() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for len in [8, 1000] {
            let mut p = Pair::new(&Setup { qp_type, ..Setup::default() });
            p.sends(8, A, SendOp::Send, 0, len);
            for max in [1, 3, 0, 2] {
                assert_eq!(sends_at_most(&mut p, max), max, "{qp_type:?}, {len} bytes");
            }
        }
    }
}

#[test]
fn a_congestion_notification_counts_among_the_packets_that_may_leave() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut p = Pair::new(&Setup { qp_type, ..Setup::default() });
        p.recv(A, 0, 8);
        p.sends(4, A, SendOp::Send, 0, 1000);
        p.mark_ce = true;
        let psn = if qp_type == QpType::Rc { 0xff_fffe } else { 0 };
        let opcode = if qp_type == QpType::Rc { Opcode::rc(P::SendOnly) } else { Opcode::uc(P::SendOnly) };
        p.deliver(A, &Raw { opcode, ..Raw::rc(P::SendOnly, A, psn) }.payload(8).bytes());
        assert_eq!(p.a.host.recvs().len(), 1);
        assert_eq!(sends_at_most(&mut p, 2), 2, "{qp_type:?}");
        assert_eq!((p.a.host.counted(Count::CnpSent), sends_at_most(&mut p, 1)), (1, 1), "{qp_type:?}");
    }
}

#[test]
fn marks_of_unreliable_connections_are_answered_and_those_of_datagrams_counted() {
    let mut p = uc();
    p.mark_ce = true;
    p.send(A, WRITE, 0, 8);
    p.run();
    assert_eq!((p.b.host.counted(Count::CnpSent), p.a.host.counted(Count::CnpReceived)), (1, 1));
    assert_eq!(p.a.host.counted(Count::CnpSent), 0, "a notification is not answered");
    let mut p = ud();
    p.mark_ce = true;
    p.recv(B, 0, 100);
    p.send(A, SendOp::Send, 0, 8);
    p.run();
    assert_eq!((p.b.host.counted(Count::EcnMarked), p.b.host.counted(Count::CnpSent)), (1, 0));
    p.mark_ce = false;
    let mut raw = ud_raw(8);
    raw.flags |= BthFlags::BECN;
    p.deliver(B, &raw.bytes());
    assert_eq!(p.b.host.counted(Count::EcnMarked), 1, "what the peer met is none of here");
}

#[test]
fn the_first_psn_is_the_one_that_was_asked_for() {
    for (mut p, op) in [(uc(), WRITE), (ud(), SendOp::Send)] {
        p.send(A, op, 0, 8);
        p.send(A, op, 0, 8);
        p.run();
        assert_eq!(p.psns(A), [PSN, PSN + 1], "{op:?}");
    }
}

#[test]
fn an_unreliable_connection_is_drained_between_messages() {
    let mut p = uc();
    p.sink_room = 1;
    p.sends(2, A, WRITE, 0, 600);
    p.transmit_side(A);
    p.drain(A);
    for to_come in [2, 1, 0] {
        assert_eq!(p.a.host.has_event(QpEvent::SqDrained), to_come == 0, "{to_come} packets are to come");
        p.transmit_side(A);
    }
    p.ends(&[Success]);
}

#[test]
fn an_unreliable_connection_is_established_once_and_not_when_ready_to_send() {
    let s = Setup { qp_type: QpType::Uc, ..Setup::default() };
    let mut p = Pair::reset(&s);
    p.ready_to_receive(A, &s);
    p.ready_to_send(A, &s);
    p.ready_to_receive(B, &s);
    p.sends(2, A, WRITE, 0, 8);
    p.run();
    let told = |p: &Pair| p.b.host.events(QpEvent::CommEstablished);
    assert_eq!(told(&p), 1);
    let mut p = uc();
    p.send(A, WRITE, 0, 8);
    p.run();
    assert_eq!(told(&p), 0);
}

#[test]
fn only_the_last_packet_of_a_solicited_message_says_so_and_no_write_does() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        for (len, packets) in [(8, 1), (600, 3)] {
            let mut p = Pair::new(&Setup { qp_type, ..Setup::default() });
            p.recvs(2, B, 0, 600);
            for (op, flags) in [
                (SendOp::Send, SendFlags::SOLICITED),
                (SendOp::Send, SendFlags::empty()),
                (WRITE, SendFlags::SOLICITED),
            ] {
                p.post(A, op, 0, len, flags);
            }
            p.run();
            let solicited = |s: &Sent| s.packet().bth().solicited();
            // A probe comes after them.
            let mine = p.sent(A).take(3 * packets);
            let said: Vec<usize> = mine.enumerate().filter(|(_, s)| solicited(s)).map(|(n, _)| n).collect();
            assert_eq!(said, [packets - 1], "{qp_type:?}, {len} bytes");
        }
    }
}

#[test]
fn a_list_of_several_packets_is_checked_before_the_first_one_leaves() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut p = Pair::new(&Setup { qp_type, ..Setup::default() });
        p.send_bad(WRITE, 600);
        p.ends(&[WcStatus::LocalProtection]);
        assert!(p.ops(A).is_empty(), "{qp_type:?}");
    }
}

#[test]
fn a_datagram_is_as_long_as_the_ports_mtu_at_most() {
    let mut p = ud();
    p.recv(B, 0, 4096 + 40);
    p.recv(B, 8192, 8192);
    p.send(A, SendOp::Send, 0, 4096);
    p.ends(&[Success]);
    assert_eq!(p.b.host.recvs()[0].1.byte_len, 4096 + 40);
    p.deliver(B, &ud_raw(4100).bytes());
    assert_eq!((p.b.host.recvs().len(), p.b.host.counted(Count::DroppedInvalid)), (1, 1));
}
