//! Requests that are done within a call, without a completion.

use hca_core::{Completion, Device, Payload, RemoteAddr, SendFlags, SendOp, SendWr};

use crate::{ALL, Access, BEGIN, END, OURS, Pair, WORD, assert_all, byte, ops, put, register};

/// The word at the beginning of the target's region.
fn word(pair: &Pair) -> u64 {
    u64::from_ne_bytes(core::array::from_fn(|i| byte(&pair.b, BEGIN + i)))
}

#[test]
fn a_request_is_done_within_the_call_and_has_no_completion() {
    let mut pair = Pair::warm();
    let sge = pair.sge(0, 8);
    let ops = ops(pair.remote(0)).map(|(op, _)| op);
    assert!(pair.carries_out(ops[0], Payload::Sges(&[sge])));
    assert_eq!(word(&pair), WORD);
    put(&pair.b, BEGIN..BEGIN + 8, 3);
    assert!(pair.carries_out(ops[1], Payload::Sges(&[sge])));
    assert!((0..8).all(|at| byte(&pair.a, at) == 3) && byte(&pair.a, 8) == OURS);
    put(&pair.b, BEGIN..BEGIN + 8, 0);
    assert!(pair.carries_out(ops[2], Payload::Sges(&[sge])));
    assert!(word(&pair) == 1 && (0..8).all(|at| byte(&pair.a, at) == 0), "the word before comes back");
    assert_eq!(pair.alone().map(|c| c.wr_id), None, "nothing completes");
    // The next request that is posted is as any other.
    put(&pair.a, 0..8, OURS);
    pair.post(ops[0], sge);
    assert_eq!(pair.alone().map(|c| c.wr_id), Some(7));
}

#[test]
fn inline_bytes_may_be_more_than_the_queue_takes() {
    let mut pair = Pair::warm();
    let bytes = [9; 1024];
    let op = SendOp::Write(pair.remote(0));
    assert!(pair.carries_out(op, Payload::Inline(&bytes)));
    assert!((0..1024).all(|at| byte(&pair.b, BEGIN + at) == 9));
    assert!(!pair.carries_out(op, Payload::Inline(&[9; 1025])), "the region has 1024");
    // Nobody writes to the bytes of a program that it only shows.
    let read = SendOp::Read(pair.remote(0));
    assert!(!pair.carries_out(read, Payload::Inline(&bytes)));
}

/// Each of the peer's turns is due to the test: until then what was posted is under way.
#[test]
fn nothing_is_done_before_earlier_requests() {
    let mut pair = Pair::warm();
    pair.b.recv();
    let send = SendWr {
        wr_id: 7,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        payload: Payload::Inline(b"first"),
        dest: None,
    };
    // SAFETY: inline data names no memory.
    unsafe { pair.a.rc.send.post_now(&send) }.unwrap();
    put(&pair.b, 0..4096, 0);
    let sge = pair.sge(0, 8);
    for (op, _) in ops(pair.remote(0)) {
        assert!(!pair.carries_out(op, Payload::Sges(&[sge])), "{op:?}");
    }
    assert_all(&pair.b, 0, "before the SEND has ended");
    pair.ends();
    assert!(pair.carries_out(SendOp::Write(pair.remote(0)), Payload::Sges(&[sge])));
}

#[test]
fn what_is_no_access_is_left_to_the_queue() {
    let mut pair = Pair::warm();
    pair.b.recv();
    let sge = pair.sge(0, 8);
    for op in [SendOp::Send, SendOp::SendImm(1), SendOp::WriteImm(pair.remote(0), 1)] {
        assert!(!pair.carries_out(op, Payload::Sges(&[sge])), "{op:?}");
    }
    // A list of two pieces is, too.
    let write = SendOp::Write(pair.remote(0));
    assert!(!pair.carries_out(write, Payload::Sges(&[pair.sge(0, 4), pair.sge(4, 4)])));
    for _ in 0..100 {
        pair.b.device.turn();
        assert_eq!(pair.b.cq.poll(&mut [Completion::default()]), 0);
    }
    assert_all(&pair.b, 0, "nothing was done");
    // Before the peer's memory was reached by a post, nothing is known of it.
    let mut cold = Pair::new(crate::REMOTE, crate::ALL, Access::LOCAL_WRITE);
    let (write, sge) = (SendOp::Write(cold.remote(0)), cold.sge(0, 8));
    assert!(!cold.carries_out(write, Payload::Sges(&[sge])));
}

/// Requests that the doorbell was not rung for are earlier ones, too, and so are those without a completion.
#[test]
fn nothing_is_done_before_requests_of_a_batch() {
    for flags in [SendFlags::SIGNALED, SendFlags::empty()] {
        let mut pair = Pair::warm();
        pair.b.recv();
        let send =
            SendWr { wr_id: 7, op: SendOp::Send, flags, payload: Payload::Inline(b"first"), dest: None };
        // SAFETY: inline data names no memory.
        unsafe { pair.a.rc.send.post_one(&send) }.unwrap();
        put(&pair.b, 0..4096, 0);
        let sge = pair.sge(0, 8);
        for rings in [false, true] {
            if rings {
                pair.a.rc.send.ring();
            }
            for (op, _) in ops(pair.remote(0)) {
                assert!(!pair.carries_out(op, Payload::Sges(&[sge])), "{op:?}, rung for: {rings}");
            }
            assert_all(&pair.b, 0, "before the SEND has ended");
        }
        let write = SendOp::Write(pair.remote(0));
        let done = (0..1000).any(|_| {
            pair.b.device.turn();
            pair.alone();
            pair.carries_out(write, Payload::Sges(&[sge]))
        });
        assert!(done && word(&pair) == WORD, "behind the SEND");
        assert!(pair.b.next(&*pair.a.device).is_some(), "the SEND has come");
    }
}

#[test]
fn a_list_of_no_bytes_or_of_too_many_is_left_to_the_queue() {
    let mut pair = Pair::warm();
    let (write, read) = (SendOp::Write(pair.remote(0)), SendOp::Read(pair.remote(0)));
    let value = [3; 8];
    let (aligned, add) = (
        SendOp::AtomicWrite { remote: pair.remote(0), value },
        SendOp::FetchAdd { remote: pair.remote(4), add: 1 },
    );
    let at = |at, len| [pair.sge(at, len)];
    let (none, most, beyond, whole) = (at(0, 0), at(0, u32::MAX), at(4092, 8), at(0, 8));
    for (op, payload) in [
        (write, Payload::Inline(&[])),
        (write, Payload::Sges(&[])),
        (write, Payload::Sges(&none)),
        (write, Payload::Sges(&most)),
        (write, Payload::Sges(&beyond)),
        (read, Payload::Sges(&none)),
        (read, Payload::Sges(&beyond)),
        // It is not aligned there.
        (add, Payload::Sges(&whole)),
        // It has no list.
        (aligned, Payload::Inline(&value)),
        (aligned, Payload::Sges(&whole)),
    ] {
        assert!(!pair.carries_out(op, payload), "{op:?}, {payload:?}");
    }
    assert_all(&pair.b, 0, "nothing was done");
    assert_all(&pair.a, OURS, "nothing was done");
    assert!(pair.carries_out(aligned, Payload::Sges(&[])));
    assert_eq!(word(&pair), u64::from_ne_bytes(value));
}

/// Each request goes to another region than the one before.
#[test]
fn regions_of_a_peer_are_reached_in_turns() {
    let mut pair = Pair::warm();
    let second = register(&pair.b, pair.b.pd, END..END + 8, ALL);
    let (sge, remote) = (pair.sge(0, 8), pair.remote(0));
    let there = RemoteAddr { addr: remote.addr + (END - BEGIN) as u64, rkey: second.rkey };
    let ops = [SendOp::Write(remote), SendOp::Write(there)];
    assert!(pair.becomes_direct(ops[1], sge), "the second region is never reached directly");
    for round in 0..20 {
        assert!(pair.carries_out(ops[round % 2], Payload::Sges(&[sge])), "round {round}");
    }
    // Each grant ends by itself.
    pair.b.device.dereg_mr(second.handle).unwrap();
    put(&pair.b, 0..4096, 0);
    assert!(!pair.carries_out(ops[1], Payload::Sges(&[sge])));
    assert!(pair.carries_out(ops[0], Payload::Sges(&[sge])));
    assert!((END..END + 8).all(|at| byte(&pair.b, at) == 0) && word(&pair) == WORD);
}
