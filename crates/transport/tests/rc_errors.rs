//! Reliable connection: refused requests and their completions. Requests that end by messages as they do by packets are
//! in `near_errors`.
mod pair;

use hca_core::wire::{NakCode, Opcode, PacketOp, Syndrome};
use hca_core::*;
use hca_transport::*;
use pair::*;

use PacketOp as P;
use Side::{A, B};
use WcStatus::{Success, WrFlushed};

const PSN: u32 = 0xff_fffd;

/// Gives B one packet by hand and returns the NAK that it sends, if it does.
fn nak_for(p: &mut Pair, raw: &Raw) -> Option<NakCode> {
    p.deliver(B, &raw.bytes());
    p.transmit_side(B);
    p.naks(B).last().copied()
}

#[test]
fn requests_before_the_failing_one_complete_even_if_their_acknowledgement_never_came() {
    let mut p = Pair::rc();
    p.script = Box::new(|s, _, packet| {
        let ack = packet.aeth().and_then(|a| Syndrome::decode(a.syndrome));
        if s == B && matches!(ack, Some(Syndrome::Ack(_))) { Fate::Drop } else { Fate::Pass }
    });
    p.sends(3, A, SendOp::Write(remote(0)), 0, 8);
    p.send(A, SendOp::Write(remote(MEMORY)), 0, 8);
    p.run();
    p.expect_sends(&[Success, Success, Success, WcStatus::RemoteAccess]);
}

#[test]
fn a_receive_too_small_ends_with_local_length_first_and_invalid_request_at_the_sender() {
    for len in [9, 256, 700] {
        let mut p = Pair::rc();
        p.recv(B, 0, 8);
        p.recv(B, 0, 8);
        p.send(B, SendOp::Send, 0, 8);
        p.send(A, SendOp::Send, 0, len);
        p.transmit_side(A);
        p.run();
        p.expect_sends(&[WcStatus::RemoteInvalidRequest]);
        let Done::Recv(0, done) = p.b.host.done[0] else { panic!("{:?}", p.b.host.done) };
        assert_eq!(done.status, WcStatus::LocalLength);
        assert!(matches!(p.b.host.done[1], Done::Send(_, WrFlushed, _)));
        assert_eq!(p.b.host.done[2], Done::RecvFlushed(1));
    }
}

#[test]
fn a_local_protection_error_waits_for_the_requests_before_it() {
    for len in [8, 1000] {
        let mut p = Pair::rc();
        p.send(A, SendOp::Write(remote(0)), 0, 8);
        let request =
            SendRequest { op: SendOp::Write(remote(64)).into(), flags: SendFlags::SIGNALED, len, dest: None };
        p.post_raw(A, Posted { request, addr: 0, bad: true });
        p.send(A, SendOp::Write(remote(0)), 0, 8);
        p.run();
        p.expect_sends(&[Success, WcStatus::LocalProtection, WrFlushed]);
        assert_eq!(p.ops(A).len(), 1, "nothing of it was sent");
        assert_eq!(p.a.qp.state(), QpState::Error);
    }
}

#[test]
fn max_rd_atomic_zero_refuses_reads_at_home() {
    let mut p = Pair::new(&Setup { rd_atomic: 0, ..Setup::default() });
    p.send(A, SendOp::Read(remote(0)), 0, 8);
    p.run();
    p.expect_sends(&[WcStatus::LocalQpOperation]);
    assert!(p.wire.is_empty());
}

#[test]
fn opcode_sequences_that_the_iba_forbids_are_invalid_requests() {
    let w = |op, len| Raw::rc(op, B, 0).reth(0, KEY, len);
    let cases: Vec<Vec<Raw>> = vec![
        vec![Raw::rc(P::SendMiddle, B, 0).payload(256)],
        vec![Raw::rc(P::SendLast, B, 0).payload(1)],
        vec![Raw::rc(P::WriteMiddle, B, 0).payload(256)],
        vec![Raw::rc(P::SendFirst, B, 0).payload(256), Raw::rc(P::SendFirst, B, 0).payload(256)],
        vec![Raw::rc(P::SendFirst, B, 0).payload(256), Raw::rc(P::SendOnly, B, 0).payload(1)],
        vec![Raw::rc(P::SendFirst, B, 0).payload(256), Raw::rc(P::WriteLast, B, 0).payload(1)],
        vec![Raw::rc(P::SendFirst, B, 0).payload(256), w(P::ReadRequest, 8)],
        vec![Raw::rc(P::SendFirst, B, 0).payload(256), Raw::rc(P::FetchAdd, B, 0).atomic(0, 1)],
        vec![w(P::WriteFirst, 300).payload(256), Raw::rc(P::SendLast, B, 0).payload(44)],
        // Lengths that lie.
        vec![Raw::rc(P::SendFirst, B, 0).payload(255)],
        vec![Raw::rc(P::SendOnly, B, 0).payload(257)],
        vec![Raw::rc(P::SendFirst, B, 0).payload(256), Raw::rc(P::SendLast, B, 0)],
        vec![w(P::WriteOnly, 9).payload(8)],
        vec![w(P::WriteFirst, 256).payload(256)],
        vec![w(P::WriteFirst, 0x8000_0001).payload(256)],
        vec![w(P::ReadRequest, 0x8000_0001)],
        vec![w(P::WriteFirst, 300).payload(256), Raw::rc(P::WriteLast, B, 0).payload(45)],
        vec![w(P::WriteFirst, 300).payload(256), Raw::rc(P::WriteLast, B, 0).payload(43)],
        vec![w(P::WriteFirst, 300).payload(256), Raw::rc(P::WriteMiddle, B, 0).payload(256)],
        vec![Raw::rc(P::SendFirst, B, 0).payload(256), w(P::AtomicWrite, 8).payload(8)],
        vec![Raw::rc(P::SendFirst, B, 0).payload(256), Raw::rc(P::Flush, B, 0).feth(1).reth(0, KEY, 8)],
    ];
    for (n, case) in cases.into_iter().enumerate() {
        let mut p = Pair::rc();
        p.recv(B, 0, 10_000);
        let mut nak = None;
        for (i, mut raw) in case.into_iter().enumerate() {
            raw.psn = (PSN + i as u32) & 0xff_ffff;
            nak = nak_for(&mut p, &raw);
        }
        assert_eq!(nak, Some(NakCode::InvalidRequest), "case {n}");
        assert_eq!(p.b.qp.state(), QpState::Error, "case {n}");
        assert!(p.b.host.done.contains(&Done::RecvFlushed(0)), "case {n}");
        assert!(p.b.host.has_event(QpEvent::RequestError), "case {n}");
    }
}

#[test]
fn packets_of_wrong_partition_service_or_state_are_dropped_and_counted() {
    let mut p = Pair::rc();
    p.recv(B, 0, 100);
    let mut raw = Raw::rc(P::SendOnly, B, PSN).payload(4);
    raw.pkey = Pkey::new(0x8001);
    p.deliver(B, &raw.bytes());
    assert_eq!(p.b.host.counted(Count::DroppedPkey), 1);
    let mut raw = Raw::rc(P::SendOnly, B, PSN).payload(4);
    raw.opcode = Opcode::uc(P::SendOnly);
    p.deliver(B, &raw.bytes());
    assert_eq!(p.b.host.counted(Count::DroppedState), 1);
    p.state(B, QpState::Error);
    p.deliver(B, &Raw::rc(P::SendOnly, B, PSN).payload(4).bytes());
    assert_eq!(p.b.host.counted(Count::DroppedState), 2);
    assert!(!p.transmit_side(B));
}

#[test]
fn refusals_complete_the_oldest_request_with_their_cause() {
    for (code, status) in [
        (NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest),
        (NakCode::RemoteAccess, WcStatus::RemoteAccess),
        (NakCode::RemoteOperational, WcStatus::RemoteOperation),
        (NakCode::InvalidRd, WcStatus::RemoteInvalidRd),
    ] {
        let mut p = Pair::rc();
        p.sends(3, A, SendOp::Write(remote(0)), 0, 8);
        p.transmit_side(A);
        p.deliver(A, &Raw::rc(P::Acknowledge, A, PSN + 1).aeth(Syndrome::Nak(code)).bytes());
        p.expect_sends(&[Success, status, WrFlushed]);
    }
}

/// What is answered by a response of its own.
const ANSWERED: [SendOp; 2] = [
    SendOp::Read(RemoteAddr { addr: 0, rkey: KEY }),
    SendOp::FetchAdd { remote: RemoteAddr { addr: 0, rkey: KEY }, add: 1 },
];

#[test]
fn a_refusal_is_no_answer_to_a_read_or_atomic_before_it_whose_response_was_lost() {
    for first in ANSWERED {
        let mut p = Pair::rc();
        p.drop_packets(B, &[0]);
        p.send(A, first, 512, 8);
        p.send(A, SendOp::Write(RemoteAddr { addr: 0, rkey: Rkey::new(1) }), 0, 8);
        p.run();
        assert_eq!(p.naks(B), [NakCode::RemoteAccess]);
        // Nobody says what became of it: the peer is in error, and answers nothing.
        p.expect_sends(&[WcStatus::RetryExceeded, WrFlushed]);
    }
}

#[test]
fn a_refusal_that_passes_over_a_lost_response_has_it_asked_for_again() {
    let refused = |code| Raw::rc(P::Acknowledge, A, PSN + 1).aeth(Syndrome::Nak(code)).bytes();
    for (code, status) in [
        (NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest),
        (NakCode::RemoteAccess, WcStatus::RemoteAccess),
        (NakCode::RemoteOperational, WcStatus::RemoteOperation),
    ] {
        let mut p = Pair::new(&Setup { retry_cnt: 0, ..Setup::default() });
        p.send(A, ANSWERED[0], 512, 8);
        p.send(A, SendOp::Write(remote(0)), 0, 8);
        p.transmit_side(A);
        p.deliver(A, &refused(code));
        p.expect_sends(&[]);
        p.transmit_side(A);
        assert_eq!(p.psns(A), [PSN, PSN + 1, PSN, PSN + 1], "{code:?}");
        let answer = Raw::rc(P::ReadResponseOnly, A, PSN).aeth(Syndrome::Ack(None)).payload(8);
        p.deliver(A, &answer.bytes());
        p.expect_sends(&[Success]);
        p.deliver(A, &refused(code));
        p.expect_sends(&[Success, status]);
    }
    // A missing packet behind it is no reason to give up on it either.
    let mut p = Pair::new(&Setup { retry_cnt: 0, ..Setup::default() });
    p.send(A, ANSWERED[0], 512, 8);
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.transmit_side(A);
    p.deliver(A, &refused(NakCode::PsnSequence));
    p.expect_sends(&[]);
    p.run();
    p.expect_sends(&[Success; 2]);
}

#[test]
fn acknowledgements_of_what_was_never_sent_are_dropped() {
    let mut p = Pair::rc();
    p.recv(B, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.transmit_side(A);
    for psn in [PSN + 1, 0x7f_0000, PSN - 5] {
        for s in [
            Syndrome::Ack(Some(3)),
            Syndrome::Nak(NakCode::RemoteAccess),
            Syndrome::Nak(NakCode::PsnSequence),
        ] {
            p.deliver(A, &Raw::rc(P::Acknowledge, A, psn).aeth(s).bytes());
        }
    }
    p.expect_sends(&[]);
    p.run();
    p.expect_sends(&[Success]);
    assert_eq!(p.a.host.counted(Count::DroppedPsn), 9);
}

#[test]
fn responses_that_no_request_called_for_are_bad_responses() {
    let ack = Syndrome::Ack(None);
    let read = |op, len| Raw::rc(op, A, PSN).aeth(ack).payload(len);
    let cases: Vec<(SendOp, u32, Raw)> = vec![
        (SendOp::Send, 8, read(P::ReadResponseOnly, 8)),
        (SendOp::Read(remote(0)), 8, read(P::ReadResponseOnly, 9)),
        (SendOp::Read(remote(0)), 8, read(P::ReadResponseOnly, 0)),
        (SendOp::Read(remote(0)), 8, read(P::ReadResponseFirst, 8)),
        (SendOp::Read(remote(0)), 600, read(P::ReadResponseLast, 256)),
        (SendOp::FetchAdd { remote: remote(0), add: 1 }, 8, read(P::ReadResponseOnly, 8)),
        (SendOp::Read(remote(0)), 8, Raw { ext: vec![0; 12], ..Raw::rc(P::AtomicAcknowledge, A, PSN) }),
    ];
    for (n, (op, len, raw)) in cases.into_iter().enumerate() {
        let mut p = Pair::rc();
        p.send(A, op, 0, len);
        p.transmit_side(A);
        p.deliver(A, &raw.bytes());
        assert_eq!(p.a.host.statuses(), [WcStatus::BadResponse], "case {n}");
    }
}

#[test]
fn a_read_into_memory_that_is_gone_is_a_local_protection_error() {
    let mut p = Pair::rc();
    let i = p.send(A, SendOp::Read(remote(0)), 0, 600);
    p.transmit_side(A);
    p.a.host.sq[i.wrapping_sub(SQ_BASE) as usize].bad = true;
    p.run();
    p.expect_sends(&[WcStatus::LocalProtection]);
}

#[test]
fn a_key_taken_back_during_a_read_ends_it_with_remote_access() {
    let mut p = Pair::rc();
    p.sink_room = 1;
    p.send(A, SendOp::Read(remote(0)), 0, 1000);
    p.transmit_side(A);
    p.now += LATENCY_NS;
    p.turn();
    p.transmit_side(B);
    p.b.host.revoked = true;
    p.run();
    p.expect_sends(&[WcStatus::RemoteAccess]);
}

#[test]
fn a_late_copy_of_a_read_long_done_ends_nothing() {
    let mut p = Pair::rc();
    p.send(A, SendOp::Read(remote(0)), 0, 600);
    p.run();
    p.b.host.revoked = true;
    let copy = p.wire[0].bytes.clone();
    p.deliver(B, &copy);
    assert!(!p.transmit_side(B));
    assert_eq!(p.b.qp.state(), QpState::Rts);
}

#[test]
fn send_with_invalidate_takes_the_key_back_after_the_data_is_placed() {
    let mut p = Pair::rc();
    p.recv(B, 4096, 300);
    p.recv(B, 4096, 300);
    p.fill(A, 0, 300);
    p.send(A, SendOp::SendInv(KEY), 0, 300);
    p.run();
    p.expect_sends(&[Success]);
    assert_eq!(p.b.host.invalidated, [KEY]);
    assert_eq!(p.b.host.recvs()[0].1.extra, RecvExtra::Invalidated(KEY));
    p.send(A, SendOp::SendInv(Rkey::new(5)), 0, 8);
    p.run();
    p.expect_sends(&[Success, WcStatus::RemoteAccess]);
    assert_ne!(p.b.host.recvs()[1].1.status, Success);
}

#[test]
fn what_is_posted_in_error_is_flushed_at_once() {
    let mut p = Pair::rc();
    p.state(A, QpState::Error);
    p.send(A, SendOp::Send, 0, 8);
    p.recv(A, 0, 8);
    p.expect_sends(&[WrFlushed]);
    assert_eq!(p.a.host.done[1], Done::RecvFlushed(0));
    assert!(!p.a.qp.wants_transmit() && p.a.qp.next_deadline().is_none());
}

#[test]
fn a_message_half_received_is_flushed_first() {
    let mut p = Pair::rc();
    p.recv(B, 0, 1000);
    p.recv(B, 0, 1000);
    p.deliver(B, &Raw::rc(P::SendFirst, B, PSN).payload(256).bytes());
    p.state(B, QpState::Error);
    assert_eq!(p.b.host.done, [Done::RecvFlushed(0), Done::RecvFlushed(1)]);
}

#[test]
fn a_shared_receive_queue_keeps_its_requests_and_the_last_wqe_event_is_raised() {
    let mut p = Pair::new(&Setup { srq_b: true, ..Setup::default() });
    p.recv(B, 0, 8);
    p.state(B, QpState::Error);
    assert_eq!(p.b.host.done, [Done::Event(QpEvent::LastWqeReached)]);
}

#[test]
fn the_adapter_can_force_the_error_state() {
    let mut p = Pair::rc();
    p.send(A, SendOp::Send, 0, 8);
    let now = Instant::from_nanos(p.now);
    p.a.qp.fail(now, &mut p.a.host);
    p.expect_sends(&[WrFlushed]);
    assert_eq!(p.a.qp.state(), QpState::Error);
}

#[test]
fn limits_of_the_configuration_are_checked() {
    let s = Setup { dest_rd_atomic: 17, ..Setup::default() };
    let mut p = Pair::reset(&s);
    let init = QpAttr {
        state: Some(QpState::Init),
        pkey: Some(Pkey::DEFAULT),
        access: Some(Access::empty()),
        ..QpAttr::default()
    };
    p.modify(A, init).unwrap();
    let rtr = QpAttr {
        state: Some(QpState::Rtr),
        av: Some(AddressVector::default()),
        path_mtu: Some(Mtu::B256),
        dest_qpn: Some(qpn(B)),
        rq_psn: Some(Psn::new(0)),
        max_dest_rd_atomic: Some(17),
        min_rnr_timer: Some(RnrTimer::default()),
        ..QpAttr::default()
    };
    assert!(matches!(
        p.modify(A, rtr),
        Err(TransitionError::Value { what: "max_dest_rd_atomic", value: 17, max: 16 })
    ));
    assert_eq!(p.a.qp.state(), QpState::Init);
}

#[test]
fn no_answer_leaves_after_an_error_from_outside() {
    let mut p = Pair::rc();
    p.deliver(B, &Raw::rc(P::ReadRequest, B, PSN).reth(0, KEY, 600).bytes());
    p.deliver(B, &Raw::rc(P::WriteOnly, B, PSN + 3).reth(0, KEY, 4).payload(4).bytes());
    assert!(p.b.qp.wants_transmit());
    p.state(B, QpState::Error);
    assert!(!p.b.qp.wants_transmit() && p.b.qp.ack_owed().is_none());
    p.run();
    assert!(p.ops(B).is_empty());
}

#[test]
fn the_refusal_that_brought_the_error_on_leaves_though_the_program_learns_of_it_first() {
    let mut p = Pair::rc();
    p.deliver(B, &Raw::rc(P::WriteOnly, B, PSN).reth(MEMORY as u64, KEY, 4).payload(4).bytes());
    assert_eq!(p.b.qp.state(), QpState::Error);
    p.state(B, QpState::Error);
    p.run();
    assert_eq!(p.naks(B), [NakCode::RemoteAccess]);
}

#[test]
fn an_rnr_retry_that_was_raised_in_sqd_holds_for_the_next_request() {
    let mut p = Pair::new(&Setup { rnr_retry: 0, srq_b: true, ..Setup::default() });
    p.state(A, QpState::Sqd);
    p.modify(A, QpAttr { state: Some(QpState::Sqd), rnr_retry: Some(3), ..QpAttr::default() }).unwrap();
    p.state(A, QpState::Rts);
    p.send(A, SendOp::Send, 0, 8);
    p.transmit();
    p.turn();
    p.transmit();
    p.turn();
    p.expect_sends(&[]);
    p.recv(B, 0, 8);
    p.run();
    p.expect_sends(&[Success]);
}

#[test]
fn a_second_refusal_of_the_same_packet_within_a_round_trip_sends_nothing_again() {
    let mut p = Pair::rc();
    p.sends(5, A, SendOp::Write(remote(0)), 0, 8);
    p.transmit_side(A);
    let nak = Raw::rc(P::Acknowledge, A, PSN + 1).aeth(Syndrome::Nak(NakCode::PsnSequence)).bytes();
    for _ in 0..2 {
        p.deliver(A, &nak);
        p.transmit_side(A);
    }
    let mine: Vec<u32> = p.psns(A).iter().map(|psn| psn.wrapping_sub(PSN) & 0xff_ffff).collect();
    assert_eq!(mine, [0, 1, 2, 3, 4, 1, 2, 3, 4]);
}

#[test]
fn a_refusal_of_a_later_request_is_none_of_an_unanswered_read_before_it() {
    let mut p = Pair::rc();
    p.send(A, SendOp::Read(remote(0)), 0, 600);
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.transmit_side(A);
    // The READ has three PSNs: the first one behind them is not its own.
    let nak = |psn| Raw::rc(P::Acknowledge, A, psn).aeth(Syndrome::Nak(NakCode::RemoteAccess)).bytes();
    p.deliver(A, &nak(PSN + 3));
    assert_eq!(p.a.qp.state(), QpState::Rts);
    p.expect_sends(&[]);
    // Of its second packet it is.
    p.deliver(A, &nak(PSN + 1));
    assert_eq!(p.a.host.statuses()[0], WcStatus::RemoteAccess);
}

#[test]
fn what_the_window_says_is_counted_in_bytes() {
    let mut p = Pair::new(&Setup { window_bytes: 64 << 10, ..Setup::default() });
    assert_eq!((p.a.qp.window().cwnd_bytes, p.a.qp.window().inflight_bytes), (64 << 10, 0));
    p.send(A, SendOp::Write(remote(0)), 0, 4096);
    p.transmit_side(A);
    let inflight = p.a.qp.window().inflight_bytes;
    assert!((4096..8192).contains(&inflight), "{inflight} bytes");
}

#[test]
fn a_queue_pair_tells_its_number() {
    let p = Pair::rc();
    assert_eq!((p.a.qp.qpn(), p.b.qp.qpn()), (qpn(A), qpn(B)));
}
