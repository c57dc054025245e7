//! Reliable connection: the effects of requests, their order, what delays them, and how they end where the peer is
//! silent. Each rule is tested by packets and by messages.
mod link;
mod messages;
mod pair;

use link::*;
use messages::{LIMITED, M, MS, PIECE, RESEND_NS};
use pair::*;

use WcStatus::RetryExceeded;

both!(
    every_operation_carries_its_data_at_every_length,
    atomics_return_the_old_value,
    requests_end_in_the_order_of_posting_and_unsignalled_ones_as_well,
    one_acknowledgement_answers_all_requests_before_it,
    the_owed_acknowledgement_says_whether_something_was_delivered,
    a_fence_waits_for_what_is_answered_by_a_response_only,
    no_more_reads_and_atomics_are_outstanding_than_max_rd_atomic,
    a_requesters_changed_limit_holds_though_answers_are_awaited,
    a_read_under_way_is_asked_for_again_though_none_may_be_begun,
    a_responders_changed_limit_holds_though_responses_wait,
    a_way_that_is_full_holds_back_and_loses_nothing,
    sends_beyond_the_credits_wait_but_one_probes,
    writes_need_no_credits,
    a_shared_receive_queue_tells_no_credits,
    a_solicited_request_says_so_once,
    the_first_request_in_rtr_raises_comm_established_once,
    a_queue_pair_in_rtr_takes_no_answers_and_sends_nothing,
    a_drained_send_queue_finishes_what_is_under_way_and_tells,
    a_limit_that_changes_while_draining_keeps_the_event,
    draining_that_was_called_off_is_told_when_it_is_begun_again_only_if_asked_for,
    p_keys_that_do_not_match_let_nothing_in,
    duplicates_of_every_kind_are_answered_again_and_carried_out_once,
    silence_ends_in_retry_exceeded_after_the_timeout_times_the_tries,
    timeout_zero_waits_for_ever,
    a_reset_queue_pair_connects_again_with_new_psns,
    a_queue_pair_that_was_used_and_reset_has_nothing_to_flush,
    a_response_answers_the_requests_before_it,
    nothing_is_begun_while_draining,
    a_queue_drains_by_what_is_sent_again,
    a_p_key_that_changes_is_told_and_judged_anew,
    what_was_lost_before_the_peer_was_ready_is_sent_again_and_executed_once,
    a_timeout_that_is_called_too_early_sends_nothing_again,
    what_is_left_of_an_earlier_connection_is_dropped,
);

const QUIET: SendFlags = SendFlags::empty();
fn every_operation_carries_its_data_at_every_length(by: By) {
    for len in [0, 1, 3, 48, 255, 256, 257, 5000, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 70_000, 100_000] {
        let mut p = by.rc();
        p.fill(A, 0, len);
        p.fill(B, 400_000, len);
        for at in [500_000, 600_000, 700_000] {
            p.recv(B, at, len);
        }
        p.recv(B, 0, 0);
        let (n, word) = (len as u32, remote(MEMORY - 8));
        p.send(A, SendOp::Send, 0, n);
        p.send(A, SendOp::SendImm(0xfeed), 0, n);
        p.send(A, SendOp::SendInv(KEY), 0, n);
        p.send(A, SendOp::Write(remote(100_000)), 0, n);
        p.send(A, SendOp::WriteImm(remote(200_000), 0xbeef), 0, n);
        p.send(A, SendOp::Read(remote(400_000)), 800_000, n);
        p.send(A, SendOp::FetchAdd { remote: word, add: 5 }, 950_000, 8);
        p.send(A, SendOp::CompareSwap { remote: word, compare: 5, swap: 9 }, 950_008, 8);
        p.run();
        let told = |op: usize, len| Done::Send(SQ_BASE.wrapping_add(op as u32), Success, len);
        let lens = [0, 0, 0, 0, 0, n, 8, 8];
        let sends: Vec<_> = lens.iter().enumerate().map(|(op, len)| told(op, *len)).collect();
        assert_eq!(p.a.host.done, sends, "what is answered by bytes tells how many");
        for at in [500_000, 600_000, 700_000, 100_000, 200_000] {
            p.expect_bytes(B, at, 0, len);
        }
        p.expect_bytes(A, 800_000, 400_000, len);
        assert_eq!(p.a.host.mem[950_008..950_016], 5_u64.to_ne_bytes());
        assert_eq!(p.b.host.mem[MEMORY - 8..], 9_u64.to_ne_bytes());
        let recvs: Vec<_> =
            p.b.host.recvs().iter().map(|(i, r)| (*i, r.status, r.opcode, r.byte_len, r.extra)).collect();
        let recv = |i, extra| (i, Success, WcOpcode::Recv, n, extra);
        assert_eq!(
            recvs,
            [
                recv(0, RecvExtra::None),
                recv(1, RecvExtra::Imm(0xfeed)),
                recv(2, RecvExtra::Invalidated(KEY)),
                (3, Success, WcOpcode::RecvRdmaWithImm, n, RecvExtra::Imm(0xbeef)),
            ]
        );
        assert_eq!(p.b.host.invalidated, [KEY]);
        assert_eq!(p.a.host.counted(Count::Retransmitted), 0);
        if let Some(ways) = p.messages() {
            let pieces = len.div_ceil(PIECE).max(1);
            assert_eq!((ways.sent_of(A, M::Write), ways.sent_of(B, M::ReadData)), (pieces, pieces));
        }
    }
}

fn atomics_return_the_old_value(by: By) {
    let mut p = by.rc();
    p.b.host.mem[64..72].copy_from_slice(&5_u64.to_ne_bytes());
    let at = remote(64);
    p.send(A, SendOp::FetchAdd { remote: at, add: 3 }, 0, 8);
    p.send(A, SendOp::CompareSwap { remote: at, compare: 7, swap: 1 }, 8, 8);
    p.send(A, SendOp::CompareSwap { remote: at, compare: 8, swap: 20 }, 16, 8);
    p.send(A, SendOp::FetchAdd { remote: at, add: u64::MAX }, 24, 8);
    p.ends(&[Success; 4]);
    let old: Vec<u64> =
        p.a.host.mem[..32].as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w)).collect();
    assert_eq!(old, [5, 8, 8, 20]);
    assert_eq!(p.b.host.mem[64..72], 19_u64.to_ne_bytes());
}

fn requests_end_in_the_order_of_posting_and_unsignalled_ones_as_well(by: By) {
    let mut p = by.rc();
    p.recv(B, 0, 8);
    p.send(A, READ, 0, 8);
    p.post(A, WRITE, 0, 8, QUIET);
    p.post(A, SendOp::Send, 0, 8, QUIET);
    p.send(A, ADD, 0, 8);
    p.post(A, WRITE, 0, 0, QUIET);
    p.run();
    // The host itself checks the order.
    p.expect_sends(&[Success; 5]);
}

fn one_acknowledgement_answers_all_requests_before_it(by: By) {
    for op in [SendOp::Send, WRITE] {
        let mut p = by.rc();
        p.recvs(20, B, 0, 8);
        p.sends(20, A, op, 0, 8);
        p.ends(&[Success; 20]);
        assert_eq!(p.b.host.recvs().len(), if op == SendOp::Send { 20 } else { 0 });
        match &p {
            Link::Packets(p) => assert_eq!((p.ops(B), p.psns(B)), (vec![P::Acknowledge], vec![16])),
            Link::Messages(p) => {
                let acks: Vec<_> = p.sent(B).iter().map(|m| (m.kind, m.done)).collect();
                assert_eq!(acks, [(M::Ack, 17)]);
            }
        }
    }
}

fn the_owed_acknowledgement_says_whether_something_was_delivered(by: By) {
    let mut p = by.rc();
    p.recv(B, 0, 8);
    for (op, delivered) in [(WRITE, false), (SendOp::Send, true)] {
        p.send(A, op, 0, 8);
        p.flow(A);
        assert_eq!(p.b.qp.ack_owed(), Some(AckOwed { delivered }));
    }
    p.transmit_side(B);
    assert_eq!(p.b.qp.ack_owed(), None);
    assert_eq!(p.sent(B).len(), 1);
    p.take_all(A);
    p.expect_sends(&[Success; 2]);
}

fn a_fence_waits_for_what_is_answered_by_a_response_only(by: By) {
    for (before, waits) in [(READ, true), (ADD, true), (ATOMIC_WRITE, true), (FLUSH, true), (WRITE, false)] {
        for op in [WRITE, READ] {
            let mut p = by.rc();
            p.sends(2, A, before, 0, list(before));
            p.post(A, op, 0, 8, SendFlags::SIGNALED | SendFlags::FENCE);
            p.transmit_side(A);
            assert_eq!(p.begun(A).len(), if waits { 2 } else { 3 }, "{before:?}, {op:?}");
            assert!(!p.a.qp.wants_transmit());
            while p.begun(A).len() < 3 {
                assert!(p.turn());
            }
            assert!(!waits || p.a.host.statuses() == [Success; 2], "{before:?}, {op:?}");
            p.ends(&[Success; 3]);
            assert_eq!(p.begun(A), [before.wc_opcode(), before.wc_opcode(), op.wc_opcode()]);
        }
    }
}

fn no_more_reads_and_atomics_are_outstanding_than_max_rd_atomic(by: By) {
    for rd_atomic in [1, 2, 4] {
        for ops in [[READ, ADD], [ATOMIC_WRITE, FLUSH]] {
            let mut p = by.connected(&Setup { rd_atomic, dest_rd_atomic: rd_atomic, ..Setup::default() });
            for op in ops.repeat(10) {
                p.send(A, op, 0, list(op));
            }
            p.transmit_side(A);
            assert_eq!(p.begun(A).len(), usize::from(rd_atomic));
            p.ends(&[Success; 20]);
            assert_eq!(p.b.host.atomics, 10);
            assert!(p.naks(B).is_empty());
        }
    }
}

fn a_requesters_changed_limit_holds_though_answers_are_awaited(by: By) {
    let mut p = by.connected(&Setup { rd_atomic: 1, ..Setup::default() });
    p.sends(4, A, READ, 4096, 8);
    p.transmit_side(A);
    assert_eq!(p.begun(A).len(), 1);
    p.state(A, QpState::Sqd);
    p.change(A, QpAttr { max_rd_atomic: Some(3), ..QpAttr::default() });
    p.state(A, QpState::Rts);
    p.transmit_side(A);
    assert_eq!(p.begun(A).len(), 3);
    p.ends(&[Success; 4]);
}

fn a_read_under_way_is_asked_for_again_though_none_may_be_begun(by: By) {
    let s = Setup::default();
    let mut p = by.one_sided(&s);
    p.send(A, READ, 4096, 600);
    p.transmit_side(A);
    p.lose();
    p.state(A, QpState::Sqd);
    p.change(A, QpAttr { max_rd_atomic: Some(0), ..QpAttr::default() });
    p.ready_to_receive(B, &s);
    p.ends(&[Success]);
    p.state(A, QpState::Rts);
    p.send(A, READ, 4096, 600);
    p.ends(&[Success, WcStatus::LocalQpOperation]);
}

fn a_responders_changed_limit_holds_though_responses_wait(by: By) {
    let serve = |p: &mut Link, max: u8| {
        p.state(B, QpState::Sqd);
        p.change(B, QpAttr { max_dest_rd_atomic: Some(max), ..QpAttr::default() });
    };
    // None of them is answered yet.
    let reads = |p: &mut Link, count: usize| {
        p.sends(count, A, READ, 4096, 8);
        p.flow(A);
        p.b.qp.state()
    };
    let mut p = by.connected(&Setup { dest_rd_atomic: 1, ..Setup::default() });
    assert_eq!(reads(&mut p, 1), QpState::Rts);
    serve(&mut p, 3);
    assert_eq!(reads(&mut p, 2), QpState::Sqd, "three are served now");
    assert_eq!(reads(&mut p, 1), QpState::Error, "and no fourth");
    // A lower one holds for what comes then.
    let mut p = by.rc();
    assert_eq!(reads(&mut p, 2), QpState::Rts);
    serve(&mut p, 1);
    assert_eq!(reads(&mut p, 1), QpState::Error);
    p.run();
    assert_eq!(p.a.host.statuses()[..2], [Success; 2], "what waited is answered");
}

fn a_way_that_is_full_holds_back_and_loses_nothing(by: By) {
    for room in 1..4 {
        let mut p = by.rc();
        p.set_room(room);
        p.fill(A, 0, 20_000);
        p.fill(B, 100_000, 20_000);
        p.recv(B, 200_000, 20_000);
        p.send(A, SendOp::Send, 0, 20_000);
        p.send(A, SendOp::Read(remote(100_000)), 50_000, 20_000);
        p.send(A, ADD, 90_000, 8);
        p.send(B, SendOp::Write(remote(300_000)), 100_000, 20_000);
        p.ends(&[Success; 3]);
        assert_eq!(p.b.host.statuses(), [Success]);
        p.expect_bytes(B, 200_000, 0, 20_000);
        p.expect_bytes(A, 50_000, 100_000, 20_000);
        p.expect_bytes(A, 300_000, 100_000, 20_000);
        assert!(p.messages().is_none_or(|ways| ways.sent_of(A, M::Hello) == 1));
    }
}

fn sends_beyond_the_credits_wait_but_one_probes(by: By) {
    let mut p = by.rc();
    p.recvs(3, B, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.run();
    p.sends(6, A, SendOp::Send, 0, 8);
    p.send(A, WRITE, 0, 8);
    p.transmit_side(A);
    assert_eq!(p.begun(A).len(), 1 + 2, "two credits were told");
    assert!(!p.a.qp.wants_transmit(), "waits for credits");
    p.settle();
    assert_eq!((p.begun(A), p.rnr_naks()), (vec![WcOpcode::Send; 4], 1), "one probes, and nothing overtakes");
    p.recvs(4, B, 0, 8);
    p.ends(&[Success; 8]);
    assert_eq!(p.rnr_naks(), 1, "the probe's acknowledgement tells how many may follow");
}

fn writes_need_no_credits(by: By) {
    let mut p = by.rc();
    p.recv(B, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.run();
    p.sends(5, A, WRITE, 0, 8);
    p.transmit_side(A);
    assert_eq!(p.begun(A).len(), 6);
}

fn a_shared_receive_queue_tells_no_credits(by: By) {
    let mut p = by.connected(&Setup { srq_b: true, ..Setup::default() });
    p.recvs(41, B, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.run();
    p.sends(40, A, SendOp::Send, 0, 8);
    p.transmit_side(A);
    assert_eq!(p.begun(A).len(), 41);
    p.ends(&[Success; 41]);
    match &p {
        Link::Packets(p) => {
            let mut answers = p.sent(B);
            assert!(answers.all(|s| s.syndrome() == Some(Syndrome::Ack(None))));
        }
        Link::Messages(p) => assert!(p.sent(B).iter().all(|m| m.kind == M::Ack && !m.has(LIMITED))),
    }
}

fn a_solicited_request_says_so_once(by: By) {
    let mut p = by.rc();
    let len = 2 * by.unit() + 100;
    p.recvs(4, B, 0, len);
    for op in [SendOp::Send, SendOp::WriteImm(remote(0), 1)] {
        for flags in [SendFlags::SOLICITED, QUIET] {
            p.post(A, op, 0, len as u32, flags);
        }
    }
    p.run();
    let flags: Vec<bool> = p.b.host.recvs().iter().map(|r| r.1.solicited).collect();
    assert_eq!(flags, [true, false, true, false]);
}

fn the_first_request_in_rtr_raises_comm_established_once(by: By) {
    let s = Setup::default();
    let mut p = by.one_sided(&s);
    p.ready_to_receive(B, &s);
    p.recv(B, 0, 8);
    for op in [SendOp::Send, READ, WRITE] {
        p.send(A, op, 0, 8);
    }
    p.ends(&[Success; 3]);
    assert_eq!(p.b.host.events(QpEvent::CommEstablished), 1, "and it answers in RTR");
}

fn a_queue_pair_in_rtr_takes_no_answers_and_sends_nothing(by: By) {
    let s = Setup::default();
    let mut p = by.reset(&s);
    p.ready_to_receive(A, &s);
    p.send(A, SendOp::Send, 0, 8);
    p.deliver(A, &by.answer(0, Syndrome::Ack(None)));
    assert_eq!(p.a.host.counted(Count::DroppedState), 1);
    assert!(!p.transmit_side(A));
    p.expect_sends(&[]);
}

fn a_drained_send_queue_finishes_what_is_under_way_and_tells(by: By) {
    let mut p = by.rc();
    p.send(A, WRITE, 0, 3 * by.unit() as u32);
    p.transmit_some(A, 2);
    p.send(A, WRITE, 0, 8);
    p.set_room(1);
    p.drain(A);
    assert!(!p.a.host.has_event(QpEvent::SqDrained));
    p.ends(&[Success]);
    assert_eq!(p.a.host.done.last(), Some(&Done::Event(QpEvent::SqDrained)));
    // The responder goes on meanwhile.
    p.send(B, READ, 0, 8);
    p.run();
    assert_eq!(p.b.host.statuses(), [Success]);
    p.state(A, QpState::Rts);
    p.ends(&[Success; 2]);
    // An idle one drains at once.
    p.drain(A);
    assert_eq!(p.a.host.events(QpEvent::SqDrained), 2);
}

fn a_limit_that_changes_while_draining_keeps_the_event(by: By) {
    let mut p = by.rc();
    p.send(A, WRITE, 0, 8);
    p.transmit_side(A);
    p.drain(A);
    p.change(A, QpAttr { rnr_retry: Some(3), ..QpAttr::default() });
    assert_eq!(p.a.host.events(QpEvent::SqDrained), 0);
    p.run();
    assert_eq!(p.a.host.events(QpEvent::SqDrained), 1);
}

fn draining_that_was_called_off_is_told_when_it_is_begun_again_only_if_asked_for(by: By) {
    let mut p = by.rc();
    p.send(A, WRITE, 0, 8);
    p.transmit_side(A);
    p.drain(A);
    p.state(A, QpState::Rts);
    p.run();
    assert_eq!(p.a.host.events(QpEvent::SqDrained), 0, "it is ready to send");
    p.state(A, QpState::Sqd);
    p.run();
    assert_eq!(p.a.host.events(QpEvent::SqDrained), 0, "nobody asked");
}

fn p_keys_that_do_not_match_let_nothing_in(by: By) {
    // Limited members of one partition do not match each other.
    for (a, b, lets_in) in
        [(0xffff, 0xffff, true), (0x7fff, 0xffff, true), (0x7fff, 0x7fff, false), (0x8001, 0x8002, false)]
    {
        let s = Setup::default();
        let mut p = by.reset(&s);
        for (side, pkey) in [(A, a), (B, b)] {
            p.ready_to_receive(side, &s);
            p.ready_to_send(side, &s);
            p.state(side, QpState::Sqd);
            p.change(side, QpAttr { pkey: Some(Pkey::new(pkey)), ..QpAttr::default() });
            p.state(side, QpState::Rts);
        }
        p.send(A, WRITE, 0, 8);
        p.ends(&[if lets_in { Success } else { RetryExceeded }]);
        assert_eq!(p.b.host.counted(Count::DroppedPkey) > 0, !lets_in);
        assert_eq!(p.b.host.writes > 0, lets_in);
    }
}

fn duplicates_of_every_kind_are_answered_again_and_carried_out_once(by: By) {
    for op in [
        SendOp::Send,
        SendOp::SendImm(1),
        SendOp::SendInv(KEY),
        WRITE,
        SendOp::WriteImm(remote(0), 1),
        READ,
        SendOp::CompareSwap { remote: remote(0), compare: 0, swap: 1 },
        ADD,
        ATOMIC_WRITE,
        FLUSH,
    ] {
        let mut p = by.rc();
        p.recvs(2, B, 0, 8);
        p.send(A, op, 0, list(op));
        p.run();
        let carried_out = |p: &Link| {
            let host = &p.b.host;
            (host.done.clone(), host.atomics, host.writes, host.flushes.len(), host.invalidated.len())
        };
        let (before, answers) = (carried_out(&p), p.sent(B));
        assert_eq!((p.sent(A).len(), answers.len()), (1, 1), "{op:?}");
        let copy = p.sent(A).remove(0);
        p.deliver(B, &copy);
        assert_eq!(p.b.host.counted(Count::Duplicate), 1, "{op:?}");
        assert_eq!(carried_out(&p), before, "{op:?}");
        assert!(p.transmit_side(B) && !p.transmit_side(B));
        assert_eq!(p.sent(B).len(), 2, "{op:?}");
        match &p {
            // The same answer; the credits may have changed.
            Link::Packets(p) => {
                let said: Vec<_> = p.sent(B).map(|s| (s.op(), s.psn())).collect();
                assert_eq!(said[0], said[1], "{op:?}");
            }
            Link::Messages(p) => {
                let last = p.sent(B)[1];
                assert_eq!((last.kind, last.done), (M::Ack, 0xfffe), "{op:?}");
            }
        }
        p.ends(&[Success]);
    }
}

fn silence_ends_in_retry_exceeded_after_the_timeout_times_the_tries(by: By) {
    for flags in [SendFlags::SIGNALED, QUIET] {
        for (timeout, retry_cnt) in [(14, 0), (14, 2), (14, 7), (8, 7), (16, 3), (1, 0)] {
            let mut p = by.one_sided(&Setup { timeout, retry_cnt, ..Setup::default() });
            for op in [WRITE, SendOp::Send, WRITE] {
                p.post(A, op, 0, 8, flags);
            }
            p.recv(A, 0, 8);
            p.transmit_side(A);
            let begin = p.now;
            p.ends(&[RetryExceeded, WrFlushed, WrFlushed]);
            assert_eq!(p.a.host.done.last(), Some(&Done::RecvFlushed(0)));
            let (took, patience) = (p.now - begin, (4096_u64 << timeout) * (u64::from(retry_cnt) + 1));
            match by {
                By::Packets => assert!((patience..=4 * patience).contains(&took), "{took} of {patience}"),
                By::Messages => {
                    let first_look = RESEND_NS.min(patience);
                    assert_eq!(took, first_look + patience, "from the first look of the timer on");
                    assert_eq!(p.a.host.counted(Count::Timeout), 1);
                }
            }
            assert_eq!((p.a.qp.state(), p.a.qp.next_deadline()), (QpState::Error, None));
        }
    }
}

fn timeout_zero_waits_for_ever(by: By) {
    let s = Setup { timeout: 0, retry_cnt: 0, ..Setup::default() };
    let mut p = by.one_sided(&s);
    p.send(A, SendOp::Send, 0, 8);
    while p.now < 60_000 * MS {
        assert!(p.turn());
    }
    p.expect_sends(&[]);
    p.ready_to_receive(B, &s);
    p.recv(B, 0, 8);
    p.ends(&[Success]);
}

fn a_reset_queue_pair_connects_again_with_new_psns(by: By) {
    let mut p = by.rc();
    p.send(A, WRITE, 0, 8);
    p.run();
    let s = Setup { psn_a: 100, psn_b: 200, ..Setup::default() };
    for side in [A, B] {
        p.state(side, QpState::Reset);
        assert_eq!(p.node(side).qp.attr().dest_qpn, None);
        p.node(side).qp.use_messages(by == By::Messages);
        p.ready_to_receive(side, &s);
        p.ready_to_send(side, &s);
    }
    p.send(A, WRITE, 0, 8);
    p.ends(&[Success; 2]);
    match &p {
        Link::Packets(p) => assert_eq!(p.psns(A), [0xff_fffd, 100]),
        Link::Messages(p) => {
            let writes: Vec<_> = p.sent(A).iter().filter(|m| m.kind == M::Write).map(|m| m.number).collect();
            assert_eq!(writes, [0xfffd, 100]);
        }
    }
}

fn a_queue_pair_that_was_used_and_reset_has_nothing_to_flush(by: By) {
    let mut p = by.rc();
    p.send(A, WRITE, 0, 8);
    p.run();
    p.state(A, QpState::Reset);
    p.state(A, QpState::Error);
    p.expect_sends(&[Success]);
}

fn a_response_answers_the_requests_before_it(by: By) {
    let mut p = by.rc();
    p.send(A, WRITE, 0, 8);
    p.send(A, READ, 0, 8);
    p.ends(&[Success; 2]);
    assert_eq!(p.sent(B).len(), 1);
}

fn nothing_is_begun_while_draining(by: By) {
    let mut p = by.rc();
    p.recv(B, 0, 8);
    p.state(A, QpState::Sqd);
    p.send(A, SendOp::Send, 0, 8);
    p.settle();
    assert!(p.begun(A).is_empty());
    p.state(A, QpState::Rts);
    p.ends(&[Success]);
}

fn a_queue_drains_by_what_is_sent_again(by: By) {
    let s = Setup::default();
    let mut p = by.one_sided(&s);
    p.send(A, WRITE, 0, 8);
    p.send(A, READ, 0, 8);
    p.transmit_side(A);
    p.lose();
    p.drain(A);
    p.send(A, WRITE, 0, 8);
    while p.a.host.counted(Count::Probe) + p.a.host.counted(Count::Timeout) == 0 {
        assert!(p.skip());
    }
    assert!(!p.a.host.has_event(QpEvent::SqDrained));
    p.ready_to_receive(B, &s);
    p.ends(&[Success; 2]);
    assert_eq!(p.a.host.done.last(), Some(&Done::Event(QpEvent::SqDrained)));
    p.state(A, QpState::Rts);
    p.ends(&[Success; 3]);
}

fn a_p_key_that_changes_is_told_and_judged_anew(by: By) {
    let other = Pkey::new(0x8001);
    let change = |p: &mut Link, side| {
        p.state(side, QpState::Sqd);
        p.change(side, QpAttr { pkey: Some(other), ..QpAttr::default() });
        p.state(side, QpState::Rts);
    };
    let write = |p: &mut Link| {
        p.send(A, SendOp::Write(remote(64)), 0, 8);
        p.settle();
    };
    for first in [A, B] {
        let mut p = by.rc();
        write(&mut p);
        p.expect_sends(&[Success]);
        change(&mut p, first);
        write(&mut p);
        p.expect_sends(&[Success]);
        assert_eq!(p.b.host.writes, 1, "{first:?}: the keys differ now");
        assert!(p.b.host.counted(Count::DroppedPkey) > 0, "{first:?}");
        change(&mut p, first.other());
        p.ends(&[Success; 2]);
    }
    // Both at once: what is told by the first message is enough.
    let mut p = by.rc();
    write(&mut p);
    change(&mut p, A);
    change(&mut p, B);
    write(&mut p);
    p.expect_sends(&[Success; 2]);
}

fn what_was_lost_before_the_peer_was_ready_is_sent_again_and_executed_once(by: By) {
    let s = Setup::default();
    let mut p = by.one_sided(&s);
    p.fill(A, 0, 10_000);
    p.fill(B, 50_000, 10_000);
    p.send(A, SendOp::Send, 0, 10_000);
    p.send(A, SendOp::FetchAdd { remote: remote(MEMORY - 8), add: 3 }, 20_000, 8);
    p.send(A, SendOp::Read(remote(50_000)), 30_000, 9_000);
    p.send(A, SendOp::Write(remote(70_000)), 0, 5_000);
    p.settle();
    let hellos = |p: &Link| p.messages().map_or(0, |ways| ways.sent_of(A, M::Hello));
    assert_eq!(p.b.host.counted(Count::DroppedState) as usize, p.sent(A).len() + hellos(&p));
    p.ready_to_receive(B, &s);
    p.recv(B, 100_000, 10_000);
    p.ends(&[Success; 4]);
    assert_eq!((p.b.host.atomics, p.b.host.recvs().len()), (1, 1));
    p.expect_bytes(B, 100_000, 0, 10_000);
    p.expect_bytes(A, 30_000, 50_000, 9_000);
    p.expect_bytes(B, 70_000, 0, 5_000);
    if by == By::Messages {
        assert_eq!((hellos(&p), p.a.host.counted(Count::Probe)), (2, 1), "the P_Key is told again");
    }
}

fn a_timeout_that_is_called_too_early_sends_nothing_again(by: By) {
    let mut p = by.rc();
    p.send(A, WRITE, 0, 8);
    p.transmit_side(A);
    let sent = p.sent(A).len();
    for after in [0, 1] {
        p.now += after;
        p.with(A, |now, qp, host| qp.handle_timeout(now, host));
        assert_eq!((p.transmit_side(A), p.sent(A).len()), (false, sent));
        assert_eq!(p.a.host.counted(Count::Probe) + p.a.host.counted(Count::Timeout), 0);
    }
    p.ends(&[Success]);
}

fn what_is_left_of_an_earlier_connection_is_dropped(by: By) {
    let mut p = by.rc();
    p.recv(B, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.send(A, SendOp::Write(remote(64)), 0, 8);
    p.transmit_side(A);
    let old = p.sent(A);
    p.lose();
    let s = Setup { psn_a: 100, psn_b: 200, ..Setup::default() };
    for side in [A, B] {
        p.state(side, QpState::Reset);
        p.node(side).qp.use_messages(by == By::Messages);
        p.ready_to_receive(side, &s);
        p.ready_to_send(side, &s);
    }
    let base = p.a.host.sq.len();
    p.a.host.completed = base;
    for bytes in &old {
        p.deliver(B, bytes);
    }
    // Old answers are, too.
    p.send(A, WRITE, 0, 8);
    p.transmit_side(A);
    p.deliver(A, &by.answer(1, Syndrome::Ack(None)));
    p.deliver(A, &by.answer(0, Syndrome::Nak(NakCode::PsnSequence)));
    p.expect_sends(&[]);
    assert!(p.b.host.done.is_empty() && p.b.host.writes == 0);
    p.ends(&[Success]);
}
