//! Unreliable connection and unreliable datagram.
mod pair;

use hca_core::wire::{Opcode, PacketOp};
use hca_core::*;
use hca_transport::*;
use pair::*;

use PacketOp as P;
use Side::{A, B};
use WcStatus::{Success, WrFlushed};

const PSN: u32 = 0xff_fffd;

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
    p.run();
    p.expect_sends(&[Success; 3]);
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
        p.run();
        p.expect_sends(&[Success; 2]);
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
    let request = SendRequest { op: SendOp::Send, flags: SendFlags::SIGNALED, len: 8, dest: None };
    p.post_raw(A, Posted { request, addr: 0, bad: true });
    p.send(A, SendOp::Send, 0, 8);
    p.recv(A, 0, 8);
    p.run();
    p.expect_sends(&[Success, WcStatus::LocalProtection, WrFlushed]);
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
    for op in [SendOp::Read(remote(0)), SendOp::FetchAdd { remote: remote(0), add: 1 }, SendOp::SendInv(KEY)]
    {
        let mut p = uc();
        p.send(A, op, 0, 8);
        p.run();
        p.expect_sends(&[WcStatus::LocalQpOperation]);
        assert_eq!(p.a.qp.state(), QpState::Sqe);
    }
}

#[test]
fn uc_receive_that_cant_be_written_is_an_error_of_the_receiver() {
    let mut p = uc();
    p.recv_raw(B, 0, 100, true);
    p.recv(B, 0, 100);
    p.send(A, SendOp::Send, 0, 8);
    p.run();
    p.expect_sends(&[Success]);
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
fn uc_stops_between_messages_when_drained() {
    let mut p = uc();
    p.sink_room = 1;
    p.send(A, SendOp::Write(remote(0)), 0, 600);
    p.send(A, SendOp::Write(remote(0)), 0, 600);
    p.transmit_side(A);
    p.modify(A, QpAttr { state: Some(QpState::Sqd), sqd_event: Some(true), ..QpAttr::default() }).unwrap();
    p.run();
    p.expect_sends(&[Success]);
    assert!(p.a.host.has_event(QpEvent::SqDrained));
}

#[test]
fn a_datagram_arrives_behind_its_grh() {
    let mut p = ud();
    p.fill(A, 0, 1000);
    p.recv(B, 4096, 1040);
    p.send(A, SendOp::SendImm(3), 0, 1000);
    p.run();
    p.expect_sends(&[Success]);
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
    let request = SendRequest { op: SendOp::Send, flags: SendFlags::SIGNALED, len: 8, dest: Some(dest) };
    p.post_raw(A, Posted { request, addr: 0, bad: false });
    p.run();
    assert_eq!(p.b.host.recvs().len(), 1);
}

#[test]
fn a_datagram_longer_than_the_ports_mtu_is_a_local_length_error() {
    let mut p = ud();
    p.send(A, SendOp::Send, 0, 4097);
    p.send(A, SendOp::Send, 0, 8);
    p.run();
    p.expect_sends(&[WcStatus::LocalLength, WrFlushed]);
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
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.run();
    p.expect_sends(&[WcStatus::LocalQpOperation]);
}
