//! Reliable connection: refused requests and their completions, the error state and flushing. Each rule is tested by
//! packets and by messages, but those of the forms of either.
mod link;
mod messages;
mod pair;

use link::*;
use messages::{FIRST, LAST, LENT, M, Msg, PIECE, Ways};
use pair::*;

both!(
    nothing_of_a_request_that_fails_at_home_is_sent,
    a_shared_receive_queue_keeps_its_requests_and_the_last_wqe_event_is_raised,
    refusals_complete_the_oldest_request_with_their_cause,
    answers_to_what_was_never_sent_are_dropped,
    the_requests_before_a_refused_one_are_answered_first,
    a_key_taken_back_during_a_read_ends_it_with_remote_access,
    a_read_into_memory_that_is_gone_is_a_local_protection_error,
    a_write_of_several_pieces_is_checked_whole_before_the_first_is_written,
    a_message_half_received_is_flushed_first,
    what_is_posted_in_error_is_flushed_at_once,
    the_adapter_can_force_the_error_state,
    no_answer_leaves_after_an_error_from_outside,
    the_refusal_that_brought_the_error_on_leaves_though_the_program_learns_of_it_first,
);

const PSN: u32 = 0xff_fffd;
const NUMBER: u16 = 0xfffd;
const FAR: RemoteAddr = RemoteAddr { addr: MEMORY as u64 - 4, rkey: KEY };
const WRONG: RemoteAddr = RemoteAddr { addr: 0, rkey: Rkey::new(1) };
const VISIBLE: Placement = Placement::GLOBAL_VISIBILITY;

fn flush(remote: RemoteAddr, len: u32, placement: Placement, selectivity: Selectivity) -> SendOp {
    SendOp::Flush { remote, len, placement, selectivity }
}

#[test]
fn refusals_end_both_sides_alike() {
    for op in [
        SendOp::Write(FAR),
        SendOp::Write(WRONG),
        SendOp::Read(WRONG),
        SendOp::Read(FAR),
        SendOp::WriteImm(FAR, 1),
        SendOp::FetchAdd { remote: WRONG, add: 1 },
        SendOp::CompareSwap { remote: FAR, compare: 0, swap: 1 },
        SendOp::AtomicWrite { remote: WRONG, value: [1; 8] },
        SendOp::AtomicWrite { remote: FAR, value: [1; 8] },
        flush(WRONG, 8, VISIBLE, Selectivity::Range),
        flush(FAR, 8, VISIBLE, Selectivity::Range),
        flush(WRONG, 0, VISIBLE, Selectivity::Region),
        flush(remote(0), 8, Placement::empty(), Selectivity::Range),
        flush(remote(0), 8, Placement::from_bits_retain(4), Selectivity::Range),
    ] {
        let p = alike(&Setup::default(), &format!("{op:?}"), |p| {
            p.recv(B, 0, 8);
            p.recv(B, 0, 8);
            p.recv(A, 0, 8);
            p.send(A, WRITE, 0, 8);
            p.send(A, op, 0, list(op));
            p.send(A, SendOp::Write(remote(64)), 0, 8);
        });
        // A word that is not aligned, or a FLUSH to nowhere.
        let status = match op {
            SendOp::CompareSwap { .. } | SendOp::AtomicWrite { remote: FAR, .. } => {
                WcStatus::RemoteInvalidRequest
            }
            SendOp::Flush { placement, .. } if placement != VISIBLE => WcStatus::RemoteInvalidRequest,
            _ => WcStatus::RemoteAccess,
        };
        p.expect_sends(&[Success, status, WrFlushed]);
        assert_eq!((p.a.qp.state(), p.b.qp.state()), (QpState::Error, QpState::Error), "{op:?}");
        assert_eq!(p.a.host.done.last(), Some(&Done::RecvFlushed(0)), "the send queue is flushed first");
        let event =
            if status == WcStatus::RemoteAccess { QpEvent::AccessError } else { QpEvent::RequestError };
        assert_eq!(p.b.host.done, [Done::RecvFlushed(0), Done::RecvFlushed(1), Done::Event(event)], "{op:?}");
        assert_eq!(p.b.host.mem[64..72], [0; 8], "nothing behind the refused request is carried out");
    }
    for len in [5000, 20_000] {
        for op in [SendOp::Write(FAR), SendOp::WriteImm(WRONG, 1), SendOp::Read(FAR)] {
            let p = alike(&Setup::default(), "long", |p| {
                p.recv(B, 0, 8);
                p.send(A, op, 0, len);
            });
            p.expect_sends(&[WcStatus::RemoteAccess]);
        }
    }
}

#[test]
fn the_queue_pairs_own_access_flags_are_checked() {
    for (access, op) in [
        (Access::all() - Access::REMOTE_WRITE, WRITE),
        (Access::all() - Access::REMOTE_WRITE, SendOp::WriteImm(remote(0), 1)),
        (Access::all() - Access::REMOTE_READ, READ),
        (Access::all() - Access::REMOTE_ATOMIC, SendOp::FetchAdd { remote: remote(0), add: 1 }),
        (
            Access::all() - Access::REMOTE_ATOMIC,
            SendOp::CompareSwap { remote: remote(0), compare: 0, swap: 0 },
        ),
        (Access::all() - Access::REMOTE_WRITE, SendOp::AtomicWrite { remote: remote(0), value: [1; 8] }),
        (Access::all() - Access::FLUSH_GLOBAL, flush(remote(0), 8, VISIBLE, Selectivity::Range)),
        (
            Access::all() - Access::FLUSH_PERSISTENT,
            flush(remote(0), 8, Placement::all(), Selectivity::Region),
        ),
    ] {
        let s = Setup { access, ..Setup::default() };
        let p = alike(&s, &format!("{op:?}"), |p| {
            p.recv(B, 0, 8);
            p.send(A, op, 0, list(op));
        });
        p.expect_sends(&[WcStatus::RemoteAccess]);
        assert!(p.b.host.has_event(QpEvent::AccessError));
    }
}

#[test]
fn no_bytes_need_no_key() {
    let wrong = RemoteAddr { addr: u64::MAX, rkey: Rkey::new(0) };
    let p = alike(&Setup::default(), "no bytes", |p| {
        p.recv(B, 0, 0);
        p.send(A, SendOp::Write(wrong), 0, 0);
        p.send(A, SendOp::Read(wrong), 0, 0);
        p.send(A, SendOp::WriteImm(wrong, 1), 0, 0);
    });
    p.expect_sends(&[Success; 3]);
}

#[test]
fn receive_requests_that_do_not_fit_end_alike() {
    for len in [9, 256, 700, 5000, 9000] {
        for op in [SendOp::Send, SendOp::SendImm(1), SendOp::SendInv(KEY)] {
            let p = alike(&Setup::default(), "too small", |p| {
                p.recvs(2, B, 0, 8);
                p.send(B, SendOp::Send, 0, 8);
                p.send(A, op, 0, len);
                p.send(A, WRITE, 0, 8);
            });
            p.expect_sends(&[WcStatus::RemoteInvalidRequest, WrFlushed]);
            let [Done::Recv(0, failed), rest @ ..] = &p.b.host.done[..] else {
                panic!("{:?}", p.b.host.done)
            };
            assert_eq!(failed.status, WcStatus::LocalLength);
            let flushed = [Done::Send(SQ_BASE, WrFlushed, 0), Done::RecvFlushed(1)];
            assert_eq!(rest[..2], flushed, "behind the request that failed");
            let p = alike(&Setup::default(), "not writable", |p| {
                p.recv_raw(B, 0, 10_000, true);
                p.send(A, op, 0, len);
            });
            p.expect_sends(&[WcStatus::RemoteOperation]);
            assert_eq!(p.b.host.recvs()[0].1.status, WcStatus::LocalProtection);
        }
    }
}

#[test]
fn keys_that_cant_be_taken_back_end_alike() {
    for len in [0, 8, 9000] {
        let p = alike(&Setup::default(), "invalidate", |p| {
            p.recv(B, 100_000, 9000);
            p.recv(B, 100_000, 9000);
            p.send(A, SendOp::SendInv(KEY), 0, len);
            p.send(A, SendOp::SendInv(Rkey::new(5)), 0, len);
        });
        p.expect_sends(&[Success, WcStatus::RemoteAccess]);
        assert_ne!(p.b.host.recvs()[1].1.status, Success);
    }
}

#[test]
fn local_errors_wait_for_the_requests_before_them() {
    for (op, len) in [
        (SendOp::Write(remote(64)), 8),
        (SendOp::Write(remote(64)), 9000),
        (SendOp::Send, 8),
        (SendOp::Send, 9000),
        (READ, 8),
        (READ, 9000),
        (ADD, 8),
    ] {
        for before in [WRITE, READ, SendOp::Send] {
            let p = alike(&Setup::default(), &format!("{before:?}, {op:?}"), |p| {
                p.recv(B, 100_000, 8);
                p.recv(B, 100_000, 8);
                p.send(A, before, 0, 8);
                p.send_bad(op, len);
                p.send(A, WRITE, 0, 8);
            });
            p.expect_sends(&[Success, WcStatus::LocalProtection, WrFlushed]);
        }
    }
    for (op, len, rd_atomic, status) in [
        (ADD, 4, 4, WcStatus::LocalLength),
        (ADD, 9, 4, WcStatus::LocalLength),
        (WRITE, (1 << 31) + 1, 4, WcStatus::LocalLength),
        (READ, 8, 0, WcStatus::LocalQpOperation),
        (ADD, 8, 0, WcStatus::LocalQpOperation),
        (ATOMIC_WRITE, 0, 0, WcStatus::LocalQpOperation),
        (FLUSH, 0, 0, WcStatus::LocalQpOperation),
    ] {
        let s = Setup { rd_atomic, ..Setup::default() };
        let p = alike(&s, &format!("{op:?}"), |p| {
            p.send(A, WRITE, 0, 8);
            p.send(A, op, 0, len);
        });
        p.expect_sends(&[Success, status]);
    }
}

#[test]
fn an_atomic_needs_an_aligned_word() {
    let p = alike(&Setup::default(), "aligned", |p| {
        p.send(A, SendOp::FetchAdd { remote: remote(4), add: 1 }, 0, 8);
    });
    p.expect_sends(&[WcStatus::RemoteInvalidRequest]);
    assert_eq!(p.b.host.atomics, 0);
    assert!(p.b.host.has_event(QpEvent::RequestError));
}

#[test]
fn more_reads_than_max_dest_rd_atomic_are_an_invalid_request() {
    let p =
        alike(&Setup { rd_atomic: 4, dest_rd_atomic: 2, ..Setup::default() }, "max_dest_rd_atomic", |p| {
            p.sends(3, A, READ, 0, 8);
        });
    p.expect_sends(&[Success, Success, WcStatus::RemoteInvalidRequest]);
}

fn nothing_of_a_request_that_fails_at_home_is_sent(by: By) {
    for (op, len) in [(WRITE, 8), (WRITE, 1000), (WRITE, 9000), (SendOp::Send, 9000), (READ, 8)] {
        let mut p = by.rc();
        p.send(A, WRITE, 0, 8);
        p.send_bad(op, len);
        p.send(A, WRITE, 0, 8);
        p.ends(&[Success, WcStatus::LocalProtection, WrFlushed]);
        assert_eq!((p.begun(A), p.a.qp.state()), (vec![WcOpcode::RdmaWrite], QpState::Error));
    }
    let mut p = by.connected(&Setup { rd_atomic: 0, ..Setup::default() });
    p.send(A, READ, 0, 8);
    p.ends(&[WcStatus::LocalQpOperation]);
    assert!(p.sent(A).is_empty());
}

fn a_shared_receive_queue_keeps_its_requests_and_the_last_wqe_event_is_raised(by: By) {
    let s = Setup { srq_b: true, ..Setup::default() };
    alike(&s, "shared", |p| {
        p.recvs(2, B, 0, 8);
        p.send(A, SendOp::Send, 0, 9);
    })
    .expect_sends(&[WcStatus::RemoteInvalidRequest]);
    let mut p = by.connected(&s);
    p.recv(B, 0, 8);
    for _ in 0..2 {
        p.state(B, QpState::Error);
        assert_eq!(p.b.host.done, [Done::Event(QpEvent::LastWqeReached)]);
    }
}

fn refusals_complete_the_oldest_request_with_their_cause(by: By) {
    // A missing packet is asked for again, and no message is missing. RC knows no RD requests.
    let others = match by {
        By::Packets => &[(NakCode::InvalidRd, WcStatus::RemoteInvalidRd)][..],
        By::Messages => {
            &[(NakCode::InvalidRd, WcStatus::BadResponse), (NakCode::PsnSequence, WcStatus::BadResponse)]
        }
    };
    let all = [
        (NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest),
        (NakCode::RemoteAccess, WcStatus::RemoteAccess),
        (NakCode::RemoteOperational, WcStatus::RemoteOperation),
    ];
    for (code, status) in all.iter().chain(others) {
        let mut p = by.rc();
        p.sends(3, A, WRITE, 0, 8);
        p.transmit_side(A);
        p.deliver(A, &by.answer(1, Syndrome::Nak(*code)));
        p.expect_sends(&[Success, *status, WrFlushed]);
        assert_eq!(p.a.host.counted(Count::NakReceived), 1);
    }
}

fn answers_to_what_was_never_sent_are_dropped(by: By) {
    let mut p = by.rc();
    p.recv(B, 0, 8);
    p.send(A, SendOp::Send, 0, 8);
    p.transmit_side(A);
    // None of them says that anything is done.
    let stray = |n, syndrome| match by {
        By::Packets => by.answer(n, syndrome),
        By::Messages => {
            let before = u16::from(matches!(syndrome, Syndrome::Ack(_)));
            Msg::parse(&by.answer(n, syndrome)).done(NUMBER - before).bytes()
        }
    };
    for n in [-5, -2, -1, 1, 0x8000, 0x7f_0003] {
        for syndrome in [
            Syndrome::Ack(Some(3)),
            Syndrome::Nak(NakCode::RemoteAccess),
            Syndrome::Nak(NakCode::PsnSequence),
            Syndrome::RnrNak(RnrTimer::new(1)),
        ] {
            if by == By::Packets && n == -1 && matches!(syndrome, Syndrome::Ack(_)) {
                // The last acknowledgement once more, with other credits.
                continue;
            }
            let before = p.a.host.counted(Count::DroppedPsn);
            p.deliver(A, &stray(n, syndrome));
            assert_eq!(p.a.host.counted(Count::DroppedPsn), before + 1, "{n}: {syndrome:?}");
        }
    }
    p.expect_sends(&[]);
    p.ends(&[Success]);
}

fn the_requests_before_a_refused_one_are_answered_first(by: By) {
    let mut p = by.rc();
    p.fill(B, 0, 9000);
    p.send(A, READ, 50_000, 9000);
    p.send(A, ADD, 60_000, 8);
    p.send(A, SendOp::Write(WRONG), 0, 8);
    p.flow(A);
    // B is in error, and still answers.
    assert_eq!(p.b.qp.state(), QpState::Error);
    p.ends(&[Success, Success, WcStatus::RemoteAccess]);
    p.expect_bytes(A, 50_000, 0, 9000);
    assert_eq!(p.naks(B), [NakCode::RemoteAccess]);
}

fn a_key_taken_back_during_a_read_ends_it_with_remote_access(by: By) {
    let mut p = by.rc();
    p.send(A, READ, 0, 3 * by.unit() as u32);
    p.send(A, READ, 0, 8);
    p.flow(A);
    p.transmit_some(B, 1);
    p.b.host.revoked = true;
    p.ends(&[WcStatus::RemoteAccess, WrFlushed]);
    assert!(p.b.host.has_event(QpEvent::AccessError));
}

fn a_read_into_memory_that_is_gone_is_a_local_protection_error(by: By) {
    let mut p = by.rc();
    p.send(A, READ, 0, 600);
    p.transmit_side(A);
    p.a.host.sq[0].bad = true;
    p.ends(&[WcStatus::LocalProtection]);
}

fn a_write_of_several_pieces_is_checked_whole_before_the_first_is_written(by: By) {
    let mut p = by.rc();
    let len = 3 * by.unit();
    p.send(A, SendOp::Write(remote(MEMORY - len + 1)), 0, len as u32);
    p.settle();
    p.expect_sends(&[WcStatus::RemoteAccess]);
    assert_eq!(p.b.host.writes, 0);
}

fn a_message_half_received_is_flushed_first(by: By) {
    let mut p = by.rc();
    p.recvs(2, B, 0, 10_000);
    p.send(A, SendOp::Send, 0, 3 * by.unit() as u32);
    p.transmit_some(A, 1);
    p.take_all(B);
    assert!(p.b.host.held.is_some());
    p.state(B, QpState::Error);
    assert_eq!(p.b.host.done, [Done::RecvFlushed(0), Done::RecvFlushed(1)]);
}

fn what_is_posted_in_error_is_flushed_at_once(by: By) {
    let mut p = by.rc();
    p.state(A, QpState::Error);
    p.send(A, SendOp::Send, 0, 8);
    p.recv(A, 0, 8);
    p.expect_sends(&[WrFlushed]);
    assert_eq!(p.a.host.done[1], Done::RecvFlushed(0));
    assert!(!p.a.qp.wants_transmit() && p.a.qp.next_deadline().is_none());
}

fn the_adapter_can_force_the_error_state(by: By) {
    for transmitted in [false, true] {
        let mut p = by.rc();
        p.send(A, SendOp::Send, 0, 9000);
        if transmitted {
            p.transmit_side(A);
        }
        p.with(A, |now, qp, host| qp.fail(now, host));
        p.expect_sends(&[WrFlushed]);
        assert_eq!((p.a.qp.state(), p.a.qp.next_deadline()), (QpState::Error, None));
    }
}

fn no_answer_leaves_after_an_error_from_outside(by: By) {
    let mut p = by.rc();
    p.send(A, READ, 0, 600);
    p.send(A, WRITE, 0, 8);
    p.flow(A);
    assert!(p.b.qp.wants_transmit());
    p.state(B, QpState::Error);
    assert!(!p.b.qp.wants_transmit() && p.b.qp.ack_owed().is_none());
    assert!(!p.transmit_side(B));
    p.run();
    assert!(p.sent(B).is_empty());
}

fn the_refusal_that_brought_the_error_on_leaves_though_the_program_learns_of_it_first(by: By) {
    let mut p = by.rc();
    p.send(A, SendOp::Write(remote(MEMORY)), 0, 8);
    p.flow(A);
    assert_eq!(p.b.qp.state(), QpState::Error);
    p.state(B, QpState::Error);
    p.transmit_side(B);
    assert_eq!(p.naks(B), [NakCode::RemoteAccess]);
}

/// B, which has a receive request, gets these, and refuses the last of them as an invalid request.
fn is_an_invalid_request(mut p: Link, case: usize, all: &[Vec<u8>]) {
    p.recv(B, 0, 1 << 19);
    for bytes in all {
        p.deliver(B, bytes);
        p.transmit_side(B);
    }
    assert_eq!(p.naks(B), [NakCode::InvalidRequest], "case {case}");
    assert_eq!(p.b.qp.state(), QpState::Error, "case {case}");
    assert!(p.b.host.done.contains(&Done::RecvFlushed(0)), "case {case}");
    assert!(p.b.host.has_event(QpEvent::RequestError), "case {case}");
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
        let at = |(i, raw): (usize, Raw)| Raw { psn: (PSN + i as u32) & 0xff_ffff, ..raw }.bytes();
        is_an_invalid_request(By::Packets.rc(), n, &case.into_iter().enumerate().map(at).collect::<Vec<_>>());
    }
}

#[test]
fn sequences_and_lengths_that_lie_are_invalid_requests() {
    let msg = |kind, flags| Msg::new(kind, B, 0).flags(flags);
    let send = |flags, len| msg(M::Send, flags).data(len);
    let write = |flags, total, len| msg(M::Write, flags).remote(remote(0), total).data(len);
    let max = (1 << 31) + 1;
    let cases: Vec<Vec<Msg>> = vec![
        vec![send(FIRST, PIECE), msg(M::Write, LAST).data(1)],
        vec![send(FIRST, PIECE), msg(M::Read, LAST).remote(remote(0), 8)],
        vec![send(FIRST, PIECE), msg(M::FetchAdd, LAST).remote(remote(0), 8).data(16)],
        vec![write(FIRST, 5000, PIECE), send(LAST, 904)],
        vec![send(FIRST, 0)],
        vec![send(FIRST, PIECE), send(0, 0)],
        vec![send(FIRST | LAST, PIECE + 1)],
        vec![write(FIRST | LAST, 9, 8)],
        vec![write(FIRST | LAST, 8, 9)],
        vec![write(FIRST, 4096, PIECE)],
        vec![write(FIRST, 5000, 100)],
        vec![write(FIRST, max, PIECE)],
        vec![write(FIRST, 5000, PIECE), msg(M::Write, LAST).data(905)],
        vec![write(FIRST, 5000, PIECE), msg(M::Write, LAST).data(903)],
        vec![write(FIRST, 5000, PIECE), msg(M::Write, 0).data(PIECE)],
        vec![msg(M::Write, FIRST | LAST)],
        vec![msg(M::Write, FIRST | LAST).data(15)],
        vec![msg(M::Read, FIRST | LAST).remote(remote(0), max)],
        vec![msg(M::Read, FIRST | LAST).remote(remote(0), 8).data(1)],
        vec![msg(M::Read, FIRST | LAST)],
        vec![msg(M::CompareSwap, FIRST | LAST).remote(remote(0), 8).data(15)],
        vec![msg(M::CompareSwap, FIRST | LAST).remote(remote(0), 8).data(17)],
        vec![msg(M::FetchAdd, FIRST | LAST).remote(remote(4), 8).data(16)],
        vec![msg(M::Send, FIRST | LAST | LENT)],
        vec![msg(M::Send, FIRST | LAST | LENT).remote(remote(0), 0)],
        vec![msg(M::Send, FIRST | LAST | LENT).remote(remote(0), (128 << 10) + 1)],
        // Half of a loan's terms, and too many of them.
        vec![msg(M::Send, FIRST | LAST | LENT).remote(remote(0), 5000).data(8)],
        vec![msg(M::Send, FIRST | LAST | LENT).remote(remote(0), 5000).data(24)],
    ];
    let hello = Msg::new(M::Hello, B, NUMBER).extra(0xffff);
    for (n, mut case) in cases.into_iter().enumerate() {
        case.insert(0, hello.clone());
        let all: Vec<_> = case.into_iter().map(|msg| Msg { number: NUMBER, ..msg }.bytes()).collect();
        is_an_invalid_request(By::Messages.rc(), n, &all);
    }
}

/// A has a request of this length, and gets what is no answer to it.
fn is_a_bad_response(mut p: Link, case: usize, (op, len): (SendOp, u32), bytes: &[u8]) {
    p.send(A, op, 0, len);
    p.transmit_side(A);
    p.deliver(A, bytes);
    assert_eq!(p.a.host.statuses(), [WcStatus::BadResponse], "case {case}");
}

#[test]
fn packets_that_no_request_called_for_are_bad_responses() {
    let ack = Syndrome::Ack(None);
    let read = |op, len| Raw::rc(op, A, PSN).aeth(ack).payload(len);
    let cases: Vec<(SendOp, u32, Raw)> = vec![
        (SendOp::Send, 8, read(P::ReadResponseOnly, 8)),
        (READ, 8, read(P::ReadResponseOnly, 9)),
        (READ, 8, read(P::ReadResponseOnly, 0)),
        (READ, 8, read(P::ReadResponseFirst, 8)),
        (READ, 600, read(P::ReadResponseLast, 256)),
        // The end comes early, where no probe asked for less.
        (READ, 1000, read(P::ReadResponseOnly, 256)),
        (ADD, 8, read(P::ReadResponseOnly, 8)),
        (READ, 8, Raw { ext: vec![0; 12], ..Raw::rc(P::AtomicAcknowledge, A, PSN) }),
    ];
    for (n, (op, len, raw)) in cases.into_iter().enumerate() {
        is_a_bad_response(By::Packets.rc(), n, (op, len), &raw.bytes());
    }
}

#[test]
fn messages_that_no_request_called_for_are_bad_responses() {
    let msg = |kind, flags, len| Msg::new(kind, A, NUMBER).done(NUMBER).flags(flags).data(len);
    let lent = |flags, len| msg(M::ReadData, flags, 0).remote(remote(0), len);
    let both = FIRST | LAST;
    let cases: Vec<(SendOp, u32, Msg)> = vec![
        (SendOp::Send, 8, msg(M::ReadData, both, 8)),
        (SendOp::Send, 8, msg(M::Original, both, 8)),
        (READ, 8, msg(M::Original, both, 8)),
        (READ, 8, msg(M::ReadData, both, 9)),
        (READ, 8, msg(M::ReadData, both, 0)),
        (READ, 8, msg(M::ReadData, FIRST, 8)),
        (READ, 8, msg(M::ReadData, LAST, 8)),
        (READ, 9000, msg(M::ReadData, 0, PIECE)),
        (READ, 9000, msg(M::ReadData, both, PIECE)),
        (ADD, 8, msg(M::ReadData, both, 8)),
        (ADD, 8, msg(M::Original, both, 7)),
        (ADD, 8, msg(M::Original, both, 9)),
        // The loan is longer than what is left, too short for the last, not the first, and of no length.
        (READ, 5000, lent(LENT | FIRST | LAST, 5001)),
        (READ, 5000, lent(LENT | FIRST | LAST, 4999)),
        (READ, 5000, lent(LENT | LAST, 5000)),
        (READ, 5000, lent(LENT | FIRST, 0)),
        // The request was not answered, and yet is said to be done.
        (READ, 8, Msg::new(M::Ack, A, NUMBER).done(NUMBER + 1)),
        (WRITE, 8, Msg::new(M::Nak, A, NUMBER).flags(0).done(NUMBER).extra(0xff)),
        (READ, 8, Msg::new(M::Write, A, NUMBER + 1).done(NUMBER + 1).remote(remote(0), 0)),
    ];
    for (n, (op, len, msg)) in cases.into_iter().enumerate() {
        let mut p = By::Messages.rc();
        p.deliver(A, &Msg::new(M::Hello, A, NUMBER).extra(0xffff).bytes());
        is_a_bad_response(p, n, (op, len), &msg.bytes());
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
fn messages_in_a_wrong_state_or_of_wrong_form_are_dropped_and_counted() {
    let mut p = Ways::rc();
    p.recv(B, 0, 100);
    p.hand(B, &[0; HEAD_BYTES - 1]);
    assert_eq!(p.b.host.counted(Count::DroppedInvalid), 1);
    p.state(B, QpState::Error);
    p.hand_msg(B, &Msg::new(M::Send, B, NUMBER).data(4));
    assert_eq!(p.b.host.counted(Count::DroppedState), 1);
    assert!(p.send_side(B) == 0 && p.ack_side(B) == 0);
    // One by packets takes no messages, nor the other way round.
    let mut p = Pair::rc();
    let now = Instant::from_nanos(p.now);
    p.b.qp.handle_message(now, &Msg::new(M::Send, B, NUMBER).data(4).bytes(), &mut p.b.host);
    assert_eq!(p.b.host.counted(Count::DroppedInvalid), 1);
    let mut p = Ways::rc();
    p.deliver(B, &Raw::rc(P::SendOnly, B, 0xff_fffd).payload(4).bytes());
    assert_eq!(p.b.host.counted(Count::DroppedState), 1);
}

#[test]
fn requests_before_the_failing_one_complete_even_if_their_acknowledgement_never_came() {
    let mut p = Pair::rc();
    p.script = Box::new(|s, _, packet| {
        let ack = packet.aeth().and_then(|a| Syndrome::decode(a.syndrome));
        if s == B && matches!(ack, Some(Syndrome::Ack(_))) { Fate::Drop } else { Fate::Pass }
    });
    p.sends(3, A, WRITE, 0, 8);
    p.send(A, SendOp::Write(remote(MEMORY)), 0, 8);
    p.ends(&[Success, Success, Success, WcStatus::RemoteAccess]);
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
        p.send(A, WRITE, 0, 8);
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
    p.send(A, WRITE, 0, 8);
    p.transmit_side(A);
    p.deliver(A, &refused(NakCode::PsnSequence));
    p.expect_sends(&[]);
    p.ends(&[Success; 2]);
}

#[test]
fn a_late_copy_of_a_read_long_done_ends_nothing() {
    let mut p = Pair::rc();
    p.send(A, READ, 0, 600);
    p.run();
    p.b.host.revoked = true;
    let copy = p.wire[0].bytes.clone();
    p.deliver(B, &copy);
    assert!(!p.transmit_side(B));
    assert_eq!(p.b.qp.state(), QpState::Rts);
}

#[test]
fn limits_of_the_configuration_are_checked() {
    let s = Setup { dest_rd_atomic: 17, ..Setup::default() };
    let mut p = Pair::reset(&s);
    let [init, rtr] = s.to_rtr(A);
    p.modify(A, init).unwrap();
    assert!(matches!(
        p.modify(A, rtr),
        Err(TransitionError::Value { what: "max_dest_rd_atomic", value: 17, max: 16 })
    ));
    assert_eq!(p.a.qp.state(), QpState::Init);
}

#[test]
fn a_second_refusal_of_the_same_packet_within_a_round_trip_sends_nothing_again() {
    let mut p = Pair::rc();
    p.sends(5, A, WRITE, 0, 8);
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
    p.send(A, READ, 0, 600);
    p.send(A, WRITE, 0, 8);
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
    p.send(A, WRITE, 0, 4096);
    p.transmit_side(A);
    let inflight = p.a.qp.window().inflight_bytes;
    assert!((4096..8192).contains(&inflight), "{inflight} bytes");
}

#[test]
fn a_queue_pair_tells_its_number() {
    let p = Pair::rc();
    assert_eq!((p.a.qp.qpn(), p.b.qp.qpn()), (qpn(A), qpn(B)));
}
