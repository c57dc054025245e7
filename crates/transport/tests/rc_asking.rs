//! Acknowledgement requests: the packets that ask for an acknowledgement, and the handling of packets that do not, as
//! packet scripts.
mod pair;

use pair::*;

const QUIET: SendFlags = SendFlags::empty();
const MS: u64 = 1_000_000;

fn write(p: &mut Pair, flags: SendFlags) {
    p.post(A, WRITE, 0, 8, flags);
}
/// So many unsignalled ones.
fn quiet(p: &mut Pair, count: usize) {
    (0..count).for_each(|_| write(p, QUIET));
}
/// Whether each packet of A asked, in order.
fn asked(p: &Pair) -> Vec<bool> {
    p.sent(A).map(|s| s.packet().bth().ack_req()).collect()
}
/// Makes the round trip known, so that probes wait 300 us.
fn measure(p: &mut Pair) {
    write(p, SendFlags::SIGNALED);
    p.run();
    assert!(p.a.qp.window().srtt_ns > 0);
    p.wire.clear();
    p.counts = [0; 2];
    p.a.host.done.clear();
}
#[test]
fn packets_ask_that_are_signalled_or_end_long_messages_or_quarters_of_the_queue() {
    let (quiet, signalled) = ((8, QUIET), (8, SendFlags::SIGNALED));
    for (what, max_send_wr, writes, asks) in [
        ("signalled", 128, vec![quiet, quiet, signalled, quiet, signalled], vec![2, 4]),
        ("the last of several", 128, vec![(700, QUIET)], vec![2]),
        ("each quarter of the send queue", 128, vec![quiet; 128], vec![31, 63, 95, 127]),
        ("each quarter of a short one", 16, vec![quiet; 10], vec![3, 7]),
        ("every 32nd, and the last", 8, vec![(256 * 70, QUIET)], vec![31, 63, 69]),
    ] {
        let mut p = Pair::new(&Setup { max_send_wr, ..Setup::default() });
        for (len, flags) in &writes {
            p.post(A, WRITE, 0, *len, *flags);
        }
        while p.transmit_side(A) {}
        let asked = asked(&p);
        assert_eq!((0..asked.len()).filter(|n| asked[*n]).collect::<Vec<_>>(), asks, "{what}");
        p.run();
        assert_eq!(p.a.host.statuses(), vec![Success; writes.len()], "{what}");
        assert_eq!(p.a.host.counted(Count::Probe), 0, "{what}");
    }
}

#[test]
fn a_quarter_of_the_window_asks() {
    let mut p = Pair::new(&Setup { window_bytes: 8 << 10, ..Setup::default() });
    for _ in 0..30 {
        p.post(A, WRITE, 0, 256, QUIET);
    }
    p.ends(&[Success; 30]);
    assert!(asked(&p).chunks(7).all(|c| c.contains(&true) || c.len() < 7), "{:?}", asked(&p));
    assert!(p.a.host.counted(Count::Probe) <= 1, "only what is last may need one");
}

#[test]
fn what_takes_the_last_credit_asks() {
    for op in [SendOp::Send, SendOp::SendImm(1)] {
        let mut p = Pair::rc();
        p.recvs(4, B, 0, 8);
        p.post(A, SendOp::Send, 0, 8, SendFlags::SIGNALED);
        p.run();
        // Three credits are known now.
        for _ in 0..8 {
            p.post(A, op, 0, 8, QUIET);
        }
        p.transmit_side(A);
        assert_eq!(asked(&p)[1..], [false, false, true], "{op:?}");
        p.recvs(8, B, 0, 8);
        let until = p.now + 4 * LATENCY_NS;
        p.run_until(until);
        assert!(asked(&p).len() > 4, "{op:?}: goes on without the probe");
        p.ends(&[Success; 9]);
    }
}

#[test]
fn what_is_sent_once_more_asks_at_its_end() {
    let mut p = Pair::rc();
    measure(&mut p);
    p.drop_packets(A, &[0]);
    quiet(&mut p, 4);
    p.ends(&[Success; 4]);
    assert_eq!(asked(&p), [false, false, false, false, false, false, false, true]);
    assert!(p.now < MS, "the peer's NAK needs no timer: {}", p.now);
    assert_eq!(p.a.host.counted(Count::Probe), 0);
}

#[test]
fn an_unsignalled_end_is_acknowledged_by_one_probe_and_recovered_by_it_and_uses_up_no_retry() {
    // Of five messages, these are lost.
    for lost in [&[][..], &[4], &[3, 4], &[1, 2, 3, 4], &[0, 1, 2, 3, 4]] {
        let mut p = Pair::new(&Setup { retry_cnt: 0, ..Setup::default() });
        measure(&mut p);
        let start = p.now;
        p.drop_packets(A, lost);
        quiet(&mut p, 5);
        p.ends(&[Success; 5]);
        assert!(!lost.is_empty() || p.ops(A).len() == 6, "five messages and one probe");
        assert_eq!((p.a.host.counted(Count::Probe), p.a.host.counted(Count::Timeout)), (1, 0), "{lost:?}");
        assert!(p.now - start < MS, "{lost:?}: {}", p.now - start);
        assert_eq!(p.b.host.writes, 6, "{lost:?}: none is placed twice");
        assert_eq!(p.a.qp.next_deadline(), None);
    }
    // Probes that are lost are sent again.
    let mut p = Pair::new(&Setup { retry_cnt: 0, ..Setup::default() });
    measure(&mut p);
    p.drop_packets(A, &[0, 1, 2, 3]);
    write(&mut p, QUIET);
    p.ends(&[Success]);
    assert_eq!((p.ops(A).len(), p.a.host.counted(Count::Timeout)), (5, 0));
}

#[test]
fn each_unsignalled_packet_starts_the_probe_timer_anew_and_no_other_runs() {
    let mut p = Pair::rc();
    measure(&mut p);
    for _ in 0..10 {
        write(&mut p, QUIET);
        p.transmit_side(A);
        assert_eq!(p.a.qp.next_deadline().map(Instant::as_nanos), Some(p.now + 300_000));
        p.now += 200_000;
    }
    assert_eq!(p.a.host.counted(Count::Probe), 0);
    assert_eq!(p.ops(A).len(), 10);
    p.ends(&[Success; 10]);
}

#[test]
fn later_packets_do_not_put_off_the_timers_of_one_that_asks() {
    let mut p = Pair::rc();
    measure(&mut p);
    p.script = Box::new(|_, _, _| Fate::Drop);
    write(&mut p, SendFlags::SIGNALED);
    p.transmit_side(A);
    let at = p.a.qp.next_deadline();
    p.now += 100_000;
    write(&mut p, QUIET);
    write(&mut p, SendFlags::SIGNALED);
    p.transmit_side(A);
    assert_eq!(p.a.qp.next_deadline(), at);
}

#[test]
fn a_dead_peer_is_noticed_though_unsignalled_requests_keep_coming() {
    let (timeout, retry_cnt) = (10, 1);
    let mut p = Pair::new(&Setup { timeout, retry_cnt, ..Setup::default() });
    measure(&mut p);
    p.script = Box::new(|_, _, _| Fate::Drop);
    let start = p.now;
    let until = start + 1000 * MS;
    while p.a.qp.state() == QpState::Rts && p.now < until {
        write(&mut p, QUIET);
        let next = p.now + 100_000;
        while p.a.qp.next_deadline().is_some_and(|d| d.as_nanos() <= next) {
            p.turn();
        }
        p.transmit_side(A);
        p.now = p.now.max(next);
    }
    let bound = 4 * (4096 << timeout) * (u64::from(retry_cnt) + 1) + 32 * 100_000 + MS;
    assert!(p.now - start < bound, "{} of {bound}", p.now - start);
    assert_eq!(p.a.host.statuses()[0], WcStatus::RetryExceeded);
}

#[test]
fn draining_asks_at_once_for_what_did_not_ask_lost_or_not() {
    for lost in [&[][..], &[1, 2, 3]] {
        let mut p = Pair::rc();
        measure(&mut p);
        p.drop_packets(A, lost);
        quiet(&mut p, 3);
        p.transmit_side(A);
        assert_eq!(asked(&p), [false; 3]);
        let start = p.now;
        p.drain(A);
        write(&mut p, QUIET);
        p.ends(&[Success; 3]);
        assert_eq!(p.a.host.events(QpEvent::SqDrained), 1, "{lost:?}");
        assert!(!lost.is_empty() || p.now - start < 200_000, "without a timer: {}", p.now - start);
        p.state(A, QpState::Rts);
        p.ends(&[Success; 4]);
    }
}

#[test]
fn a_request_that_fails_here_waits_for_no_timer_behind_unsignalled_ones() {
    let mut p = Pair::rc();
    measure(&mut p);
    let start = p.now;
    quiet(&mut p, 2);
    p.send_bad(WRITE, 8);
    p.ends(&[Success, Success, WcStatus::LocalProtection]);
    assert!(p.now - start < 200_000, "{}", p.now - start);
}

#[test]
fn a_send_without_credits_waits_for_no_timer_behind_unsignalled_writes() {
    let mut p = Pair::rc();
    p.recv(B, 0, 8);
    p.post(A, SendOp::Send, 0, 8, SendFlags::SIGNALED);
    p.run();
    // No credit is left.
    p.recv(B, 0, 8);
    let start = p.now;
    write(&mut p, QUIET);
    p.post(A, SendOp::Send, 0, 8, SendFlags::SIGNALED);
    p.ends(&[Success; 3]);
    assert!(p.now - start < 200_000, "{}", p.now - start);
}

#[test]
fn a_blocked_requester_that_was_answered_does_not_probe_without_end() {
    let mut p = Pair::new(&Setup { window_bytes: 300, ..Setup::default() });
    for _ in 0..40 {
        p.post(A, WRITE, 0, 30, QUIET);
    }
    p.ends(&[Success; 40]);
    assert!(p.ops(A).len() <= 81, "{}", p.ops(A).len());
}

#[test]
fn an_answered_probe_with_nothing_sent_before_it_blames_no_packet_sent_after() {
    let mut p = Pair::rc();
    measure(&mut p);
    write(&mut p, QUIET);
    p.transmit_side(A);
    // The probe leaves, and a new message right behind it.
    while p.a.host.counted(Count::Probe) == 0 {
        p.turn();
    }
    write(&mut p, QUIET);
    p.transmit_side(A);
    let cwnd = p.a.qp.window().cwnd_bytes;
    // The peer answered before it saw the new message.
    let ack = Raw::rc(P::Acknowledge, A, PSN + 1).aeth(Syndrome::Ack(None)).bytes();
    p.deliver(A, &ack);
    p.transmit_side(A);
    assert_eq!(p.a.host.counted(Count::Retransmitted), 0);
    assert_eq!(p.a.qp.window().cwnd_bytes, cwnd);
    p.ends(&[Success; 2]);
}

#[test]
fn the_round_trip_is_measured_at_packets_that_ask() {
    for op in [WRITE, SendOp::WriteImm(remote(0), 1)] {
        let mut p = Pair::rc();
        p.recv(B, 0, 8);
        p.recv(B, 0, 8);
        p.post(A, op, 0, 8, QUIET);
        p.transmit_side(A);
        p.now += MS;
        p.post(A, op, 0, 8, SendFlags::SIGNALED);
        p.ends(&[Success; 2]);
        let srtt = p.a.qp.window().srtt_ns;
        assert!((2 * LATENCY_NS..4 * LATENCY_NS).contains(&srtt), "{op:?}: {srtt}");
    }
}

#[test]
fn requests_behind_a_wait_for_a_receive_request_are_asked_about() {
    let mut p = Pair::new(&Setup { srq_b: true, ..Setup::default() });
    measure(&mut p);
    for _ in 0..3 {
        p.post(A, SendOp::Send, 0, 8, QUIET);
    }
    p.run_until(p.now + 5 * MS);
    assert!(p.b.host.counted(Count::RnrNakSent) > 1);
    p.recvs(3, B, 0, 8);
    p.ends(&[Success; 3]);
    assert_eq!(p.a.qp.next_deadline(), None);
}

/// A path of 20 ms there and back.
const SLOW: Fate = Fate::Late(10 * MS);

/// Bytes that each READ request of A asks for, in order.
fn asked_for(p: &Pair) -> Vec<u32> {
    let requests = p.sent(A).filter(|s| s.op() == Some(P::ReadRequest));
    requests.map(|s| s.packet().reth().unwrap().dma_len.get()).collect()
}

#[test]
fn a_first_read_on_a_slow_path_is_asked_for_once() {
    for timeout in [14, 0] {
        let mut p = Pair::new(&Setup { timeout, ..Setup::default() });
        p.script = Box::new(|_, _, _| SLOW);
        p.fill(B, 0, 16_384);
        p.send(A, READ, 100_000, 16_384);
        p.ends(&[Success]);
        p.expect_bytes(A, 100_000, 0, 16_384);
        assert_eq!((asked_for(&p), p.ops(B).len()), (vec![16_384], 64));
    }
}

#[test]
fn a_lost_first_read_is_asked_for_again_by_the_timeout() {
    let mut p = Pair::rc();
    p.drop_packets(A, &[0]);
    p.send(A, READ, 100_000, 1000);
    p.ends(&[Success]);
    assert_eq!((p.a.host.counted(Count::Probe), p.a.host.counted(Count::Timeout)), (0, 1));
}

#[test]
fn a_read_that_is_late_is_probed_by_one_packet_and_not_asked_for_again() {
    let mut p = Pair::rc();
    measure(&mut p);
    p.script = Box::new(|_, _, _| SLOW);
    p.fill(B, 0, 16_384);
    for i in 0..2 {
        p.send(A, READ, 100_000 + 50_000 * i, 16_384);
    }
    p.ends(&[Success; 2]);
    p.expect_bytes(A, 100_000, 0, 16_384);
    p.expect_bytes(A, 150_000, 0, 16_384);
    let asked = asked_for(&p);
    assert!(asked.len() > 2, "it was probed");
    assert_eq!(
        (&asked[..2], asked[2..].iter().all(|len| *len == 256)),
        (&[16_384; 2][..], true),
        "{asked:?}"
    );
    assert_eq!(p.a.host.counted(Count::Retransmitted), 0);
}

#[test]
fn the_answer_to_a_probe_says_that_the_rest_of_a_read_was_lost() {
    // The request, or all of its responses, but not the probe's.
    for (side, lost) in [(A, vec![0]), (B, vec![0, 1, 2, 3])] {
        let mut p = Pair::new(&Setup { retry_cnt: 0, ..Setup::default() });
        measure(&mut p);
        let start = p.now;
        p.fill(B, 0, 1000);
        p.drop_packets(side, &lost);
        p.send(A, READ, 100_000, 1000);
        p.ends(&[Success]);
        p.expect_bytes(A, 100_000, 0, 1000);
        assert_eq!(asked_for(&p), [1000, 256, 744]);
        assert!(p.now - start < MS, "without the timeout: {}", p.now - start);
    }
}

#[test]
fn a_packet_that_a_probe_asked_for_alone_is_asked_for_alone_ever_after() {
    let mut p = Pair::rc();
    measure(&mut p);
    p.fill(B, 0, 1000);
    // The request is lost, so that the responder carries out the probe alone. All responses are lost until the timeout.
    let mut whole = 0;
    p.script = Box::new(move |side, _, packet| {
        whole += usize::from(packet.reth().is_some_and(|r| r.dma_len.get() > 256));
        let lost = if side == A {
            whole == 1 && packet.reth().is_some_and(|r| r.dma_len.get() > 256)
        } else {
            whole < 2
        };
        if lost { Fate::Drop } else { Fate::Pass }
    });
    p.send(A, READ, 100_000, 1000);
    p.ends(&[Success]);
    p.expect_bytes(A, 100_000, 0, 1000);
    let asked = asked_for(&p);
    assert_eq!((asked[0], &asked[asked.len() - 2..]), (1000, &[256, 744][..]), "{asked:?}");
    assert_eq!(p.a.host.counted(Count::Timeout), 1);
    assert_eq!(
        p.b.host.counted(Count::DroppedInvalid),
        0,
        "more than the probe asked for was never carried out"
    );
}

#[test]
fn a_slow_path_is_measured_and_then_no_longer_probed() {
    for known in [false, true] {
        let mut p = Pair::rc();
        if known {
            measure(&mut p);
        }
        p.script = Box::new(|_, _, _| SLOW);
        for _ in 0..10 {
            write(&mut p, SendFlags::SIGNALED);
            p.run();
        }
        p.expect_sends(&[Success; 10]);
        assert!(p.a.host.counted(Count::Probe) <= 10, "{known}: {}", p.a.host.counted(Count::Probe));
        assert!(p.a.qp.window().srtt_ns > MS, "{known}");
        let before = p.a.host.counted(Count::Probe);
        write(&mut p, SendFlags::SIGNALED);
        p.run();
        assert_eq!(p.a.host.counted(Count::Probe), before, "{known}");
    }
}

/// An acknowledgement of A's packet, with so many credits.
fn ack(psn: u32, credits: u32) -> Vec<u8> {
    let credits = Syndrome::encode_credits(credits);
    Raw::rc(P::Acknowledge, A, psn & 0xff_ffff).aeth(Syndrome::Ack(Some(credits))).bytes()
}
fn sends(p: &mut Pair, count: usize) -> usize {
    let before = p.ops(A).len();
    p.sends(count, A, SendOp::Send, 0, 8);
    p.transmit_side(A);
    p.ops(A).len() - before
}

#[test]
fn an_acknowledgement_that_comes_late_takes_no_credit_back() {
    let mut p = Pair::rc();
    assert_eq!(sends(&mut p, 1), 1);
    p.deliver(A, &ack(PSN, 3));
    p.expect_sends(&[Success]);
    p.deliver(A, &ack(PSN, 0));
    // Only the last one is looked at: what is older knew less.
    p.deliver(A, &ack(PSN - 1, 12));
    assert_eq!(sends(&mut p, 5), 3);
    // More than before were posted meanwhile.
    let mut p = Pair::rc();
    assert_eq!(sends(&mut p, 1), 1);
    p.deliver(A, &ack(PSN, 1));
    p.deliver(A, &ack(PSN, 4));
    assert_eq!(sends(&mut p, 6), 4);
}

#[test]
fn a_send_under_way_has_its_receive_request_beside_the_credits() {
    let mut p = Pair::rc();
    p.send(A, SendOp::Send, 0, 600);
    p.transmit_side(A);
    p.deliver(A, &ack(PSN, 1));
    assert_eq!(sends(&mut p, 2), 1);
}

#[test]
fn a_refusal_for_want_of_a_receive_request_gives_the_retries_back() {
    // The peer is silent until a retry is used up, and refuses then; more often than there are retries.
    let mut p = Pair::new(&Setup { retry_cnt: 1, srq_b: true, ..Setup::default() });
    p.send(A, SendOp::Send, 0, 8);
    for i in 1..=3 {
        p.script = Box::new(|side, _, _| if side == A { Fate::Drop } else { Fate::Pass });
        while p.a.host.counted(Count::Timeout) < i {
            assert!(p.turn());
        }
        p.script = Box::new(|_, _, _| Fate::Pass);
        while p.a.host.counted(Count::RnrNakReceived) < i {
            assert!(p.turn());
        }
        assert_eq!(p.a.qp.state(), QpState::Rts, "the peer was heard after each silence");
    }
    p.recv(B, 0, 8);
    p.ends(&[Success]);
}

#[test]
fn an_answer_that_comes_too_soon_to_be_the_probes_tells_of_no_loss() {
    let mut p = Pair::rc();
    measure(&mut p);
    quiet(&mut p, 2);
    p.transmit_side(A);
    while p.a.host.counted(Count::Probe) == 0 {
        p.turn();
    }
    // It left before the second packet came, and was late.
    let ack = Raw::rc(P::Acknowledge, A, PSN + 1).aeth(Syndrome::Ack(None)).bytes();
    p.deliver(A, &ack);
    p.transmit_side(A);
    assert_eq!(p.a.host.counted(Count::Retransmitted), 0);
    p.ends(&[Success; 2]);
}

#[test]
fn a_path_that_became_faster_costs_two_probes_and_not_one_a_packet() {
    let mut p = Pair::rc();
    p.script = Box::new(|_, _, _| Fate::Late(MS / 4));
    measure(&mut p);
    quiet(&mut p, 8);
    // All are lost, and nothing takes long from then on.
    p.script = Box::new(|side, n, _| if side == A && n < 8 { Fate::Drop } else { Fate::Pass });
    p.ends(&[Success; 8]);
    assert_eq!(p.a.host.counted(Count::Probe), 2);
    assert_eq!(p.a.host.counted(Count::Retransmitted), 6);
}

#[test]
fn what_is_acknowledged_after_going_back_is_not_sent_again() {
    let mut p = Pair::rc();
    quiet(&mut p, 3);
    p.transmit_side(A);
    let nak = Syndrome::Nak(NakCode::PsnSequence);
    p.deliver(A, &Raw::rc(P::Acknowledge, A, PSN).aeth(nak).bytes());
    // It had been on its way all the time.
    p.deliver(A, &Raw::rc(P::Acknowledge, A, PSN + 1).aeth(Syndrome::Ack(None)).bytes());
    p.wire.clear();
    p.transmit_side(A);
    assert_eq!(p.wire.iter().map(Sent::psn).collect::<Vec<_>>(), [PSN + 2]);
    p.ends(&[Success; 3]);
}
