//! Reliable connection: refused requests and their completions, by packets and by messages alike, and by messages alone.
mod messages;
mod pair;

use hca_core::wire::{NakCode, Placement, Selectivity, Syndrome};
use hca_core::*;
use hca_transport::*;
use messages::*;
use pair::*;

use Side::{A, B};
use WcStatus::{Success, WrFlushed};

const NUMBER: u16 = 0xfffd;
const FAR: RemoteAddr = RemoteAddr { addr: MEMORY as u64 - 4, rkey: KEY };
const WRONG: RemoteAddr = RemoteAddr { addr: 0, rkey: Rkey::new(1) };

const VISIBLE: Placement = Placement::GLOBAL_VISIBILITY;

fn flush(remote: RemoteAddr, len: u32, placement: Placement, selectivity: Selectivity) -> SendOp {
    SendOp::Flush { remote, len, placement, selectivity }
}

fn bad_request(p: &mut Pair, op: SendOp, len: u32) {
    let request = SendRequest { op: op.into(), flags: SendFlags::SIGNALED, len, dest: None };
    p.post_raw(A, Posted { request, addr: 0, bad: true });
}

/// Lets the same posts run over packets and over messages: all that both programs are told is the same. Returns the
/// messages' ends.
fn same_as_packets(setup: &Setup, what: &str, posts: &dyn Fn(&mut Pair)) -> Ways {
    let mut packets = Pair::new(setup);
    let mut ways = Ways::new(setup);
    for p in [&mut packets, &mut *ways] {
        p.fill(A, 0, 20_000);
        p.fill(B, 400_000, 20_000);
        posts(p);
    }
    packets.run();
    ways.run();
    for side in [A, B] {
        let (p, w) = (packets.node(side), ways.node(side));
        assert_eq!(p.host.done, w.host.done, "{what}: {side:?}");
        assert_eq!(p.qp.state(), w.qp.state(), "{what}: {side:?}");
        assert_eq!((p.host.atomics, &p.host.invalidated), (w.host.atomics, &w.host.invalidated), "{what}");
        assert_eq!(p.host.flushes, w.host.flushes, "{what}");
        assert!(p.host.mem == w.host.mem, "{what}: memory of {side:?}");
        for c in [Count::NakAccess, Count::NakInvalid, Count::NakOperational, Count::NakReceived] {
            assert_eq!(p.host.counted(c), w.host.counted(c), "{what}: {side:?} {c:?}");
        }
        assert!(w.host.held.is_none());
    }
    ways
}

#[test]
fn refusals_end_both_sides_as_on_packets() {
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
        let p = same_as_packets(&Setup::default(), &format!("{op:?}"), &|p| {
            p.recv(B, 0, 8);
            p.recv(B, 0, 8);
            p.recv(A, 0, 8);
            p.send(A, SendOp::Write(remote(0)), 0, 8);
            p.send(A, op, 0, if op.has_list() { 8 } else { 0 });
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
            let p = same_as_packets(&Setup::default(), "long", &|p| {
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
        (Access::all() - Access::REMOTE_WRITE, SendOp::Write(remote(0))),
        (Access::all() - Access::REMOTE_WRITE, SendOp::WriteImm(remote(0), 1)),
        (Access::all() - Access::REMOTE_READ, SendOp::Read(remote(0))),
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
        let p = same_as_packets(&s, &format!("{op:?}"), &|p| {
            p.recv(B, 0, 8);
            p.send(A, op, 0, if op.has_list() { 8 } else { 0 });
        });
        p.expect_sends(&[WcStatus::RemoteAccess]);
        assert!(p.b.host.has_event(QpEvent::AccessError));
    }
}

#[test]
fn no_bytes_need_no_key() {
    let wrong = RemoteAddr { addr: u64::MAX, rkey: Rkey::new(0) };
    let p = same_as_packets(&Setup::default(), "no bytes", &|p| {
        p.recv(B, 0, 0);
        p.send(A, SendOp::Write(wrong), 0, 0);
        p.send(A, SendOp::Read(wrong), 0, 0);
        p.send(A, SendOp::WriteImm(wrong, 1), 0, 0);
    });
    p.expect_sends(&[Success; 3]);
}

#[test]
fn receive_requests_that_do_not_fit_end_as_on_packets() {
    for len in [9, 700, 5000, 9000] {
        for op in [SendOp::Send, SendOp::SendImm(1), SendOp::SendInv(KEY)] {
            let p = same_as_packets(&Setup::default(), "too small", &|p| {
                p.recv(B, 0, 8);
                p.recv(B, 0, 8);
                p.send(A, op, 0, len);
                p.send(A, SendOp::Write(remote(0)), 0, 8);
            });
            p.expect_sends(&[WcStatus::RemoteInvalidRequest, WrFlushed]);
            let p = same_as_packets(&Setup::default(), "not writable", &|p| {
                p.recv_raw(B, 0, 10_000, true);
                p.send(A, op, 0, len);
            });
            p.expect_sends(&[WcStatus::RemoteOperation]);
            assert_eq!(p.b.host.recvs()[0].1.status, WcStatus::LocalProtection);
        }
    }
}

#[test]
fn keys_that_cant_be_taken_back_end_as_on_packets() {
    for len in [0, 8, 9000] {
        let p = same_as_packets(&Setup::default(), "invalidate", &|p| {
            p.recv(B, 100_000, 9000);
            p.recv(B, 100_000, 9000);
            p.send(A, SendOp::SendInv(KEY), 0, len);
            p.send(A, SendOp::SendInv(Rkey::new(5)), 0, len);
        });
        p.expect_sends(&[Success, WcStatus::RemoteAccess]);
    }
}

#[test]
fn local_errors_wait_for_the_requests_before_them() {
    let read = SendOp::Read(remote(400_000));
    let add = SendOp::FetchAdd { remote: remote(0), add: 1 };
    for (op, len) in [
        (SendOp::Write(remote(64)), 8),
        (SendOp::Write(remote(64)), 9000),
        (SendOp::Send, 8),
        (SendOp::Send, 9000),
        (read, 8),
        (read, 9000),
        (add, 8),
    ] {
        for before in [SendOp::Write(remote(0)), read, SendOp::Send] {
            let p = same_as_packets(&Setup::default(), &format!("{before:?}, {op:?}"), &|p| {
                p.recv(B, 100_000, 8);
                p.recv(B, 100_000, 8);
                p.send(A, before, 0, 8);
                bad_request(p, op, len);
                p.send(A, SendOp::Write(remote(0)), 0, 8);
            });
            p.expect_sends(&[Success, WcStatus::LocalProtection, WrFlushed]);
        }
    }
    for (op, len, rd_atomic, status) in [
        (add, 4, 4, WcStatus::LocalLength),
        (add, 9, 4, WcStatus::LocalLength),
        (SendOp::Write(remote(0)), (1 << 31) + 1, 4, WcStatus::LocalLength),
        (read, 8, 0, WcStatus::LocalQpOperation),
        (add, 8, 0, WcStatus::LocalQpOperation),
    ] {
        let s = Setup { rd_atomic, ..Setup::default() };
        let p = same_as_packets(&s, &format!("{op:?}"), &|p| {
            p.send(A, SendOp::Write(remote(0)), 0, 8);
            p.send(A, op, 0, len);
        });
        p.expect_sends(&[Success, status]);
    }
}

#[test]
fn nothing_of_a_request_that_fails_at_home_is_sent() {
    for (op, len) in [(SendOp::Write(remote(64)), 8), (SendOp::Send, 9000), (SendOp::Read(remote(0)), 8)] {
        let mut p = Ways::rc();
        p.send(A, SendOp::Write(remote(0)), 0, 8);
        bad_request(&mut p, op, len);
        p.run();
        p.expect_sends(&[Success, WcStatus::LocalProtection]);
        assert_eq!(p.kinds(A), [M::Hello, M::Write]);
    }
}

#[test]
fn an_atomic_needs_an_aligned_word() {
    let p = same_as_packets(&Setup::default(), "aligned", &|p| {
        p.send(A, SendOp::FetchAdd { remote: remote(4), add: 1 }, 0, 8);
    });
    p.expect_sends(&[WcStatus::RemoteInvalidRequest]);
    assert_eq!(p.b.host.atomics, 0);
    assert!(p.b.host.has_event(QpEvent::RequestError));
}

#[test]
fn more_reads_than_max_dest_rd_atomic_are_an_invalid_request() {
    let p = same_as_packets(
        &Setup { rd_atomic: 4, dest_rd_atomic: 2, ..Setup::default() },
        "max_dest_rd_atomic",
        &|p| {
            p.sends(3, A, SendOp::Read(remote(0)), 0, 8);
        },
    );
    p.expect_sends(&[Success, Success, WcStatus::RemoteInvalidRequest]);
}

#[test]
fn rnr_retries_run_out_as_on_packets() {
    for rnr_retry in [0, 1, 6] {
        let s = Setup { rnr_retry, ..Setup::default() };
        let p = same_as_packets(&s, "rnr", &|p| {
            p.send(A, SendOp::Write(remote(0)), 0, 8);
            p.send(A, SendOp::Send, 0, 9000);
            p.send(A, SendOp::Write(remote(64)), 0, 8);
        });
        p.expect_sends(&[Success, WcStatus::RnrRetryExceeded, WrFlushed]);
    }
}

#[test]
fn a_shared_receive_queue_keeps_its_requests_and_the_last_wqe_event_is_raised() {
    let s = Setup { srq_b: true, ..Setup::default() };
    let p = same_as_packets(&s, "shared", &|p| {
        p.recv(B, 0, 8);
        p.recv(B, 0, 8);
        p.send(A, SendOp::Send, 0, 9);
    });
    p.expect_sends(&[WcStatus::RemoteInvalidRequest]);
    let mut p = Ways::new(&s);
    p.recv(B, 0, 8);
    p.state(B, QpState::Error);
    assert_eq!(p.b.host.done, [Done::Event(QpEvent::LastWqeReached)]);
    p.state(B, QpState::Error);
    assert_eq!(p.b.host.done.len(), 1);
}

#[test]
fn refusals_complete_the_oldest_request_with_their_cause() {
    for (code, status) in [
        (NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest),
        (NakCode::RemoteAccess, WcStatus::RemoteAccess),
        (NakCode::RemoteOperational, WcStatus::RemoteOperation),
        (NakCode::PsnSequence, WcStatus::BadResponse),
        (NakCode::InvalidRd, WcStatus::BadResponse),
    ] {
        let mut p = Ways::rc();
        p.sends(3, A, SendOp::Write(remote(0)), 0, 8);
        p.send_side(A);
        let syndrome = Syndrome::Nak(code).encode();
        p.hand_msg(A, &Msg::new(M::Nak, A, NUMBER + 1).flags(0).done(NUMBER + 1).extra(syndrome.into()));
        p.expect_sends(&[Success, status, WrFlushed]);
        assert_eq!(p.a.host.counted(Count::NakReceived), 1);
    }
    let mut p = Ways::rc();
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.send_side(A);
    p.hand_msg(A, &Msg::new(M::Nak, A, NUMBER).flags(0).done(NUMBER).extra(0xff));
    p.expect_sends(&[WcStatus::BadResponse]);
}

#[test]
fn the_requests_before_a_refused_one_are_answered_first() {
    let mut p = Ways::rc();
    p.fill(B, 0, 9000);
    p.send(A, SendOp::Read(remote(0)), 50_000, 9000);
    p.send(A, SendOp::FetchAdd { remote: remote(MEMORY - 8), add: 1 }, 60_000, 8);
    p.send(A, SendOp::Write(WRONG), 0, 8);
    p.send_side(A);
    p.take_all(B);
    // B is in error, and still answers.
    assert_eq!(p.b.qp.state(), QpState::Error);
    p.run();
    p.expect_sends(&[Success, Success, WcStatus::RemoteAccess]);
    p.expect_bytes(A, 50_000, 0, 9000);
    assert_eq!(p.naks(B), [NakCode::RemoteAccess]);
}

#[test]
fn a_key_taken_back_during_a_read_ends_it_with_remote_access() {
    let mut p = Ways::rc();
    p.send(A, SendOp::Read(remote(0)), 0, 9000);
    p.send(A, SendOp::Read(remote(0)), 0, 8);
    p.send_side(A);
    p.take_all(B);
    p.burst = 1;
    p.send_side(B);
    p.b.host.revoked = true;
    p.run();
    p.expect_sends(&[WcStatus::RemoteAccess, WrFlushed]);
    assert!(p.b.host.has_event(QpEvent::AccessError));
}

#[test]
fn a_read_into_memory_that_is_gone_is_a_local_protection_error() {
    let mut p = Ways::rc();
    let i = p.send(A, SendOp::Read(remote(0)), 0, 600);
    p.send_side(A);
    p.a.host.sq[i.wrapping_sub(SQ_BASE) as usize].bad = true;
    p.run();
    p.expect_sends(&[WcStatus::LocalProtection]);
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
    ];
    for (n, case) in cases.into_iter().enumerate() {
        let mut p = Ways::rc();
        p.recv(B, 0, 1 << 19);
        p.hand_msg(B, &Msg::new(M::Hello, B, NUMBER).extra(0xffff));
        for msg in case {
            p.hand_msg(B, &Msg { number: NUMBER, ..msg });
        }
        p.send_side(B);
        assert_eq!(p.naks(B), [NakCode::InvalidRequest], "case {n}");
        assert_eq!(p.b.qp.state(), QpState::Error, "case {n}");
        assert!(p.b.host.done.contains(&Done::RecvFlushed(0)), "case {n}");
        assert!(p.b.host.has_event(QpEvent::RequestError), "case {n}");
    }
}

#[test]
fn responses_that_no_request_called_for_are_bad_responses() {
    let msg = |kind, flags, len| Msg::new(kind, A, NUMBER).done(NUMBER).flags(flags).data(len);
    let (read, add) = (SendOp::Read(remote(0)), SendOp::FetchAdd { remote: remote(0), add: 1 });
    let both = FIRST | LAST;
    let cases: Vec<(SendOp, u32, Msg)> = vec![
        (SendOp::Send, 8, msg(M::ReadData, both, 8)),
        (SendOp::Send, 8, msg(M::Original, both, 8)),
        (read, 8, msg(M::Original, both, 8)),
        (read, 8, msg(M::ReadData, both, 9)),
        (read, 8, msg(M::ReadData, both, 0)),
        (read, 8, msg(M::ReadData, FIRST, 8)),
        (read, 8, msg(M::ReadData, LAST, 8)),
        (read, 9000, msg(M::ReadData, 0, PIECE)),
        (read, 9000, msg(M::ReadData, both, PIECE)),
        (add, 8, msg(M::ReadData, both, 8)),
        (add, 8, msg(M::Original, both, 7)),
        (add, 8, msg(M::Original, both, 9)),
        // It was not answered, and yet is said to be done.
        (read, 8, Msg::new(M::Ack, A, NUMBER).done(NUMBER + 1)),
        (read, 8, Msg::new(M::Write, A, NUMBER + 1).done(NUMBER + 1).remote(remote(0), 0)),
    ];
    for (n, (op, len, msg)) in cases.into_iter().enumerate() {
        let mut p = Ways::rc();
        p.send(A, op, 0, len);
        p.send_side(A);
        p.hand_msg(A, &Msg::new(M::Hello, A, NUMBER).extra(0xffff));
        p.hand_msg(A, &msg);
        assert_eq!(p.a.host.statuses(), [WcStatus::BadResponse], "case {n}");
    }
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
    p.deliver(B, &Raw::rc(hca_core::wire::PacketOp::SendOnly, B, 0xff_fffd).payload(4).bytes());
    assert_eq!(p.b.host.counted(Count::DroppedState), 1);
}

#[test]
fn a_message_half_received_is_flushed_first() {
    let mut p = Ways::rc();
    p.recv(B, 0, 10_000);
    p.recv(B, 0, 10_000);
    p.send(A, SendOp::Send, 0, 9000);
    p.burst = 1;
    p.send_side(A);
    p.take_all(B);
    p.state(B, QpState::Error);
    assert_eq!(p.b.host.done, [Done::RecvFlushed(0), Done::RecvFlushed(1)]);
}

#[test]
fn what_is_posted_in_error_is_flushed_at_once() {
    let mut p = Ways::rc();
    p.state(A, QpState::Error);
    p.send(A, SendOp::Send, 0, 8);
    p.recv(A, 0, 8);
    p.expect_sends(&[WrFlushed]);
    assert_eq!(p.a.host.done[1], Done::RecvFlushed(0));
    assert!(!p.a.qp.wants_transmit() && p.a.qp.next_deadline().is_none());
}

#[test]
fn the_adapter_can_force_the_error_state() {
    let mut p = Ways::rc();
    p.send(A, SendOp::Send, 0, 9000);
    p.send_side(A);
    p.with(A, |now, qp, host| qp.fail(now, host));
    p.expect_sends(&[WrFlushed]);
    assert!(p.a.qp.next_deadline().is_none());
}

#[test]
fn no_answer_leaves_after_an_error_from_outside() {
    let mut p = Ways::rc();
    p.send(A, SendOp::Read(remote(0)), 0, 8);
    p.send(A, SendOp::Write(remote(0)), 0, 8);
    p.send_side(A);
    p.take_all(B);
    assert!(p.b.qp.wants_transmit());
    p.state(B, QpState::Error);
    assert!(!p.b.qp.wants_transmit() && p.b.qp.ack_owed().is_none());
    assert_eq!((p.send_side(B), p.ack_side(B)), (0, 0));
}

#[test]
fn the_refusal_that_brought_the_error_on_leaves_though_the_program_learns_of_it_first() {
    let mut p = Ways::rc();
    p.send(A, SendOp::Write(remote(MEMORY)), 0, 8);
    p.send_side(A);
    p.take_all(B);
    assert_eq!(p.b.qp.state(), QpState::Error);
    p.state(B, QpState::Error);
    p.send_side(B);
    assert_eq!(p.naks(B), [NakCode::RemoteAccess]);
}

#[test]
fn a_write_of_several_pieces_is_checked_whole_before_the_first_is_written() {
    let mut p = Ways::rc();
    let len = 3 * PIECE;
    p.send(A, SendOp::Write(remote(MEMORY - len + 1)), 0, len as u32);
    p.settle();
    p.expect_sends(&[WcStatus::RemoteAccess]);
    assert_eq!(p.b.host.writes, 0);
}
