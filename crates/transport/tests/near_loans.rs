//! Reliable connection by messages: lent bytes, which the receiver fetches, or which are sent if it can't.
mod messages;
mod pair;

use messages::*;
use pair::*;

/// A lends what `rule` says of a request (from 0), an offset and the bytes at most.
fn lend(p: &mut Ways, mut rule: impl FnMut(u32, u32, u32) -> Option<u32> + 'static) {
    p.reach = true;
    p.a.host.near.lend =
        Some(Box::new(move |index, offset, max| rule(index.wrapping_sub(SQ_BASE), offset, max)));
}

/// A, which lends all that it is asked for.
fn lending() -> Ways {
    let mut p = Ways::rc();
    lend(&mut p, |_, _, max| Some(max));
    p
}

/// B lends what A reads, as `rule` says of an address and the bytes at most.
fn lend_reads(p: &mut Ways, rule: impl FnMut(u64, u32) -> Option<u32> + 'static) {
    p.reach = true;
    p.b.host.near.lend_read = Some(Box::new(rule));
}

/// B, which lends all that A reads.
fn lending_reads() -> Ways {
    let mut p = Ways::rc();
    lend_reads(&mut p, |_, max| Some(max));
    p
}

#[test]
fn sends_and_writes_are_lent_from_512_bytes_on() {
    let to = remote(500_000);
    for (len, lent) in [(511, 0), (512, 1), (128 << 10, 1), ((128 << 10) + 1, 2), (300_000, 3)] {
        for (op, kind, extra) in [
            (SendOp::Send, M::Send, Some(RecvExtra::None)),
            (SendOp::SendImm(3), M::SendImm, Some(RecvExtra::Imm(3))),
            (SendOp::SendInv(KEY), M::SendInv, Some(RecvExtra::Invalidated(KEY))),
            (SendOp::Write(to), M::Write, None),
            (SendOp::WriteImm(to, 5), M::WriteImm, Some(RecvExtra::Imm(5))),
        ] {
            let mut p = lending();
            p.fill(A, 0, len);
            p.recv(B, 500_000, len);
            p.post(A, op, 0, len as u32, SendFlags::SIGNALED | SendFlags::SOLICITED);
            p.ends(&[Success]);
            p.expect_bytes(B, 500_000, 0, len);
            let fetched: u32 = p.b.host.near.fetched.iter().map(|l| l.len).sum();
            assert_eq!(fetched as usize, if lent > 0 { len } else { 0 });
            assert_eq!((p.b.host.near.fetched.len(), p.sent_of(A, kind)), (lent, lent.max(1)), "{op:?}");
            let told = p.b.host.recvs().first().map(|r| (r.1.extra, r.1.byte_len as usize, r.1.solicited));
            assert_eq!(told, extra.map(|extra| (extra, len, true)), "{op:?}");
        }
    }
}

#[test]
fn pieces_may_be_lent_and_sent_by_turns() {
    // Entries of a list that the peer reaches, and others that it does not; and how many loans there are at least.
    for (rule, loans) in [
        (
            (|at, max: u32| (at % 10_000 < 5_000).then(|| max.min(5_000 - at % 10_000))) as fn(u32, u32) -> _,
            3,
        ),
        (|at, max| (at > 0).then_some(max), 1),
        (|at, max| (at == 0).then_some(max.min(1)), 1),
        (|at, max| (at >= 8192).then_some(max.min(100)), 1),
    ] {
        for op in [SendOp::SendImm(9), SendOp::WriteImm(remote(500_000), 9)] {
            let mut p = Ways::rc();
            lend(&mut p, move |_, offset, max| rule(offset, max));
            p.fill(A, 0, 50_000);
            p.recv(B, 500_000, 50_000);
            p.send(A, op, 0, 50_000);
            p.ends(&[Success]);
            p.expect_bytes(B, 500_000, 0, 50_000);
            let fetched = p.b.host.near.fetched.len();
            assert!(fetched >= loans, "{op:?}: {fetched} loans");
            assert!(op == SendOp::SendImm(9) || p.b.host.writes > fetched as u32, "some came by value");
            assert_eq!(p.b.host.recvs()[0].1.extra, RecvExtra::Imm(9));
        }
    }
}

#[test]
fn what_the_peer_cant_fetch_is_sent_by_value_and_takes_one_receive_request() {
    let at = |i: usize| 500_000 + i * 6000;
    let send = (|_| SendOp::Send) as fn(usize) -> SendOp;
    let write = |i| SendOp::WriteImm(remote(500_000 + i * 6000), i as u32);
    // The index wraps among these: the third request is number u32::MAX. The first, the second or the third piece of
    // one of them is out of reach.
    for (op, which, piece) in
        [send, write].into_iter().flat_map(|op| (0..18).map(move |n| (op, n / 3, n % 3)))
    {
        // Also with no patience for missing receive requests, which this is not.
        let mut p = Ways::new(&Setup { rnr_retry: 0, ..Setup::default() });
        lend(&mut p, |_, _, max| Some(max.min(2000)));
        p.burst = 2;
        p.b.host.near.gone.extend((0..which * 3 + piece).map(|_| false));
        p.b.host.near.gone.push_back(true);
        for i in 0..6 {
            p.fill(A, i * 6000, 6000);
            p.recv(B, at(i), 6000);
            p.send(A, op(i), i * 6000, 6000);
        }
        p.ends(&[Success; 6]);
        p.expect_bytes(B, 500_000, 0, 36_000);
        let recvs: Vec<_> = p.b.host.recvs().iter().map(|r| (r.0 as usize, r.1.extra)).collect();
        let told =
            |i| if let SendOp::WriteImm(_, imm) = op(i) { RecvExtra::Imm(imm) } else { RecvExtra::None };
        assert_eq!(recvs, (0..6).map(|i| (i, told(i))).collect::<Vec<_>>());
        assert_eq!((p.rnr_naks(B), p.b.host.counted(Count::RnrNakSent)), (1, 0));
        assert_eq!(p.a.host.counted(Count::RnrNakReceived), 0);
        assert_eq!(p.last_limit(), Some(6), "each took one, and none is left");
        assert_eq!(p.b.host.near.gone.len(), 0, "it was lent once more");
    }
}

#[test]
fn a_loan_that_cant_be_taken_ends_the_connection() {
    let (beyond, within) = (remote(MEMORY - 4_000), remote(500_000));
    let (none, list) = (WcStatus::RemoteInvalidRequest, WcStatus::RemoteOperation);
    // The target's key is wrong, the peer does not have what it lends, or the receive request's list can't be written.
    for (op, len, status) in [
        (SendOp::Write(beyond), 5_000, WcStatus::RemoteAccess),
        (SendOp::Write(beyond), 200_000, WcStatus::RemoteAccess),
        (SendOp::Send, 6000, none),
        (SendOp::Write(within), 6000, none),
        (SendOp::WriteImm(within, 1), 6000, none),
        (SendOp::Send, 6000, list),
    ] {
        let mut p = lending();
        p.b.host.near.bad = status == none;
        p.recv_raw(B, 500_000, 6000, status == list);
        p.send(A, op, 0, len);
        p.ends(&[status]);
        assert!(p.b.host.near.fetched.is_empty() || status == list);
        assert_eq!((p.a.qp.state(), p.b.qp.state()), (QpState::Error, QpState::Error), "{op:?}");
        assert!(status != list || p.b.host.recvs()[0].1.status == WcStatus::LocalProtection);
    }
}

#[test]
fn reads_are_lent_and_what_was_fetched_is_told_once() {
    for (len, lent) in [(511, 0), (512, 1), (128 << 10, 1), ((128 << 10) + 1024, 2), (300_000, 3)] {
        let mut p = lending_reads();
        p.fill(B, 0, len);
        p.sends(3, A, READ, 500_000, len as u32);
        p.ends(&[Success; 3]);
        p.expect_bytes(A, 500_000, 0, len);
        assert_eq!(p.a.host.near.fetched.len(), 3 * lent);
        assert_eq!(p.sent_of(A, M::Fetched), if lent > 0 { 3 } else { 0 });
        assert_eq!(p.sent_of(B, M::ReadData), 3 * lent.max(1));
        assert!(p.a.qp.is_idle_near());
    }
}

#[test]
fn nothing_is_answered_behind_a_lent_response_before_it_was_fetched() {
    let mut p = lending_reads();
    p.fill(B, 0, 5000);
    p.recv(B, 600_000, 8);
    p.send(A, READ, 500_000, 5000);
    p.send(A, SendOp::Send, 0, 8);
    p.send(A, ADD, 8, 8);
    p.flow(A);
    p.send_side(B);
    assert_eq!((p.sent_of(B, M::ReadData), p.sent_of(B, M::Original)), (1, 0));
    assert!(!p.b.qp.wants_transmit(), "it waits");
    // A request of B's tells nothing along that A may not know yet.
    p.recv(A, 700_000, 8);
    p.send(B, SendOp::Send, 0, 8);
    p.send_side(B);
    p.ack_side(B);
    assert!(p.sent(B).iter().all(|m| m.done == NUMBER), "nothing is done yet");
    p.ends(&[Success; 3]);
    p.expect_bytes(A, 500_000, 0, 5000);
    assert_eq!(p.b.host.atomics, 1);
}

#[test]
fn what_was_done_behind_a_lent_response_is_told_once_that_was_fetched() {
    let mut p = lending_reads();
    p.recv(B, 600_000, 8);
    p.send(A, READ, 500_000, 5000);
    p.send(A, SendOp::Send, 0, 8);
    p.flow(A);
    p.send_side(B);
    p.ack_side(B);
    p.take_all(A);
    p.flow(A);
    // No timer has to help.
    p.settle();
    p.expect_sends(&[Success; 2]);
    assert_eq!(p.a.host.counted(Count::Probe), 0);
}

#[test]
fn a_lent_response_that_cant_be_fetched_comes_by_value_from_there_on() {
    for piece in 0..3 {
        let mut p = Ways::rc();
        lend_reads(&mut p, |_, max| Some(max.min(5000)));
        p.a.host.near.gone.extend((0..piece).map(|_| false));
        p.a.host.near.gone.push_back(true);
        p.fill(B, 0, 15_000);
        p.send(A, READ, 500_000, 15_000);
        p.send(A, ADD, 8, 8);
        p.send(A, READ, 600_000, 15_000);
        p.ends(&[Success; 3]);
        p.expect_bytes(A, 500_000, 0, 15_000);
        p.expect_bytes(A, 600_000, 0, 15_000);
        assert_eq!(p.b.host.atomics, 1);
        let told: Vec<_> = p.sent(A).into_iter().filter(|m| m.kind == M::Fetched).collect();
        let told: Vec<_> = told.iter().map(|m| (m.number, m.flags, m.extra)).collect();
        assert_eq!(told, [(NUMBER, NOT_LENT, piece * 5000), (NUMBER + 2, 0, 0)], "piece {piece}");
        assert_eq!(p.a.host.near.fetched.len(), piece as usize + 3);
    }
}

#[test]
fn what_had_left_behind_a_loan_that_cant_be_fetched_is_passed_over() {
    // A loan, data, a loan, and so on, all of which have left when A finds the first or second loan out of reach.
    for gone in 0..2 {
        let mut p = Ways::rc();
        lend_reads(&mut p, |at, max| (at % 7_000 == 0).then(|| max.min(2_904)));
        p.a.host.near.gone.extend((0..gone).map(|_| false));
        p.a.host.near.gone.push_back(true);
        p.fill(B, 0, 20_000);
        p.send(A, READ, 500_000, 20_000);
        p.ends(&[Success]);
        p.expect_bytes(A, 500_000, 0, 20_000);
        assert_eq!(p.sent_of(A, M::Fetched), 1);
    }
}

#[test]
fn what_was_fetched_is_told_although_the_way_was_full_or_a_receive_request_is_missing() {
    let mut p = lending_reads();
    p.send(A, READ, 500_000, 5000);
    p.send(A, SendOp::Send, 0, 8);
    p.flow(A);
    p.send_side(B);
    p.room = 0;
    p.take_all(A);
    assert_eq!(p.send_side(A), 0);
    p.room = usize::MAX;
    p.settle();
    assert_eq!(p.sent_of(A, M::Fetched), 1);
    p.recv(B, 600_000, 8);
    p.ends(&[Success; 2]);
}

#[test]
fn only_the_answer_to_the_oldest_lent_response_ends_it() {
    for (number, flags, extra) in [
        (NUMBER + 1, 0, 0),
        (NUMBER - 1, 0, 0),
        (NUMBER + 1, NOT_LENT, 0),
        (NUMBER - 1, NOT_LENT, 0),
        (NUMBER, NOT_LENT, 5001),
    ] {
        let mut p = lending_reads();
        p.fill(B, 0, 5000);
        p.send(A, READ, 500_000, 5000);
        p.send(A, ADD, 8, 8);
        p.flow(A);
        p.send_side(B);
        let stray = Msg::new(M::Fetched, B, number).flags(flags).extra(extra).done(NUMBER);
        p.hand_msg(B, &stray);
        assert_eq!(p.b.qp.state(), QpState::Rts);
        assert_eq!(p.b.host.counted(Count::DroppedPsn), 1, "{stray:?}");
        assert!(!p.b.qp.wants_transmit(), "{stray:?}");
        assert_eq!(p.sent_of(B, M::Original), 0, "what is behind the response waits: {stray:?}");
        p.ends(&[Success; 2]);
        p.expect_bytes(A, 500_000, 0, 5000);
    }
}

#[test]
fn a_queue_pair_in_error_hears_only_of_what_it_has_lent() {
    let mut p = lending_reads();
    p.send(A, READ, 500_000, 5000);
    p.send(A, SendOp::Write(remote(MEMORY)), 0, 8);
    p.flow(A);
    p.send_side(B);
    assert_eq!(p.b.qp.state(), QpState::Error);
    for (kind, number) in [(M::Hello, NUMBER), (M::Send, NUMBER + 1), (M::Fetched, NUMBER + 1)] {
        let dropped = |p: &Ways| p.b.host.counted(Count::DroppedState) + p.b.host.counted(Count::DroppedPsn);
        let before = dropped(&p);
        p.hand_msg(B, &Msg::new(kind, B, number).done(NUMBER));
        assert_eq!(dropped(&p), before + 1, "{kind:?}");
        assert!(!p.b.qp.wants_transmit(), "{kind:?}: the refusal waits for the response");
    }
    p.ends(&[Success, WcStatus::RemoteAccess]);
}

#[test]
fn a_response_that_lends_what_the_peer_does_not_have_ends_the_connection() {
    let mut p = lending_reads();
    p.a.host.near.bad = true;
    p.send(A, READ, 500_000, 5000);
    p.ends(&[WcStatus::BadResponse]);
    assert_eq!(p.a.qp.state(), QpState::Error);
}

#[test]
fn a_lent_read_is_told_of_while_the_queue_drains() {
    let mut p = lending_reads();
    p.send(A, READ, 500_000, 5000);
    p.send_side(A);
    p.state(A, QpState::Sqd);
    p.run();
    assert_eq!(p.sent_of(A, M::Fetched), 1);
    p.expect_sends(&[Success]);
}

#[test]
fn a_loan_that_is_always_out_of_reach_is_tried_once() {
    for before in 0..5 {
        let mut p = Ways::new(&Setup { rnr_retry: 0, ..Setup::default() });
        lend(&mut p, |_, _, max| Some(max.min(2000)));
        p.sends(before, A, WRITE, 0, 8);
        p.run();
        p.burst = 1;
        p.b.host.near.gone.extend([true; 100]);
        p.fill(A, 0, 6000);
        p.recv(B, 500_000, 6000);
        p.send(A, SendOp::Send, 0, 6000);
        p.run();
        assert_eq!(p.a.host.statuses(), vec![Success; before + 1]);
        p.expect_bytes(B, 500_000, 0, 6000);
        assert_eq!((p.rnr_naks(B), p.b.host.near.gone.len()), (1, 99), "after {before} others");
    }
}

#[test]
fn a_refused_loan_is_told_as_such_although_the_way_was_full() {
    let mut p = Ways::new(&Setup { rnr_retry: 0, ..Setup::default() });
    lend(&mut p, |_, _, max| Some(max));
    p.b.host.near.gone.push_back(true);
    p.recv(B, 500_000, 6000);
    p.fill(A, 0, 6000);
    p.send(A, SendOp::Send, 0, 6000);
    p.flow(A);
    p.room = 0;
    assert_eq!(p.send_side(B), 0);
    p.room = usize::MAX;
    p.ends(&[Success]);
    assert!(p.sent(B)[0].has(NOT_LENT));
    p.expect_bytes(B, 500_000, 0, 6000);
}

#[test]
fn a_loan_needs_a_receive_request_with_room() {
    let mut p = lending();
    p.send(A, SendOp::Send, 0, 6000);
    p.settle();
    assert_eq!((p.rnr_naks(B), p.b.host.counted(Count::RnrNakSent)), (1, 1));
    p.recv(B, 500_000, 5999);
    p.ends(&[WcStatus::RemoteInvalidRequest]);
    assert_eq!(p.b.host.recvs()[0].1.status, WcStatus::LocalLength);
    assert!(p.b.host.near.fetched.is_empty());
}
