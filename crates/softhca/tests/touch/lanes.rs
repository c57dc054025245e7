//! A poster's lane to a peer's memory ends with its connection and with its queue pair.

use hca_core::{
    Completion, Device, Gid, Mixed, Payload, Pkey, PostErrorKind, QpAttr, QpCap, QpInit, QpPorts, QpState,
    QpType, RecvPort, RecvWr, SendFlags, SendOp, SendPort, SendWr, WcStatus,
};
use softhca::{Options, Progress};

use crate::ends::{connect, shm_pair_with};
use crate::{ALL, Access, Pair, REMOTE, REMOTE_FAULT, put};

fn send(port: &mut dyn SendPort, flags: SendFlags) {
    let wr = SendWr { wr_id: 1, op: SendOp::Send, flags, payload: Payload::Inline(b""), dest: None };
    // SAFETY: inline data names no memory.
    unsafe { port.post_now(&wr) }.unwrap();
}

fn recv(port: &mut dyn RecvPort) {
    // SAFETY: it names no memory.
    unsafe { port.post(&[RecvWr { wr_id: 2, sges: &[] }]) }.unwrap();
    port.ring();
}

/// One message there, and one back that says it to be done: with this queue pair of the target's, or else its first.
/// Returns whether that came the quick way.
fn exchange(Pair { a, b, .. }: &mut Pair, peer: Option<&mut QpPorts>) -> bool {
    let quick = a.counter("rx_messages_quick");
    let (to_send, to_recv) = match peer {
        Some(peer) => (&mut peer.send, peer.recv.as_mut().expect("it has a queue of its own")),
        None => (&mut b.rc.send, &mut b.rc.recv),
    };
    recv(&mut **to_recv);
    recv(&mut *a.rc.recv);
    send(&mut *a.rc.send, SendFlags::SIGNALED);
    let mut one = [Completion::default()];
    while b.cq.poll(&mut one) == 0 {}
    send(&mut **to_send, SendFlags::empty());
    for _ in 0..2 {
        while a.cq.poll(&mut one) == 0 {
            b.device.turn();
        }
        assert_eq!(one[0].status, WcStatus::Success);
    }
    a.counter("rx_messages_quick") > quick
}

/// The peer that was connected before is still there, and would allow it.
#[test]
fn what_one_peer_granted_is_not_reached_over_a_connection_to_another() {
    let options = Options { progress: Progress::Inline, lazy_acks: true, ..Options::default() };
    let mut pair = Pair::between(shm_pair_with(&options), REMOTE, ALL, Access::LOCAL_WRITE);
    pair.warm_up(Access::REMOTE_WRITE);
    // Behind such a message all is known of a connection's quick ways.
    assert!((0..200).any(|n| exchange(&mut pair, None) && n > 8), "nothing came the quick way");
    let op = SendOp::Write(pair.remote(0));
    pair.post(op, pair.sge(0, 8));
    assert!(pair.alone().is_some(), "it goes directly");
    put(&pair.b, 0..4096, 0);
    // Of a protection domain that has no such region.
    let (pd, cq) = (pair.b.device.alloc_pd().unwrap(), pair.b.cq_handle);
    let init = QpInit { qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, cap: QpCap::default() };
    let mut peer = pair.b.device.create_qp(pd, &init).unwrap();
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    pair.a.device.modify_qp(pair.a.rc.handle, &reset).unwrap();
    let [at_a, at_b] = [&pair.a, &pair.b].map(|end| Gid::from_ip(end.device.fabric().local));
    connect(&pair.a.device, pair.a.rc.handle, (at_b, peer.qpn), true);
    connect(&pair.b.device, peer.handle, (at_a, pair.a.rc.qpn), true);
    assert!((0..200).any(|n| exchange(&mut pair, Some(&mut peer)) && n > 8), "nothing came the quick way");
    pair.refused(op, pair.sge(0, 8), REMOTE_FAULT, "over the new connection");
}

#[test]
fn the_port_of_a_queue_pair_that_went_reaches_nothing() {
    let mut pair = Pair::warm();
    pair.a.device.destroy_qp(pair.a.rc.handle).unwrap();
    let op = SendOp::Write(pair.remote(0));
    let sge = pair.sge(0, 8);
    assert_eq!(pair.try_post(op, &[sge], SendFlags::SIGNALED), Err(PostErrorKind::Destroyed));
    crate::assert_all(&pair.b, 0, "behind the queue pair's end");
    assert!(pair.alone().is_none());
}

/// Changes what may be changed where the send queue is drained.
fn change_in_sqd(pair: &Pair, of_target: bool, change: QpAttr) {
    let end = if of_target { &pair.b } else { &pair.a };
    let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
    for attr in [to(QpState::Sqd), change, to(QpState::Rts)] {
        end.device.modify_qp(end.rc.handle, &attr).unwrap();
    }
}

/// The partition that the other side is not in.
#[test]
fn another_p_key_ends_what_goes_directly() {
    for of_target in [false, true] {
        let mut pair = Pair::warm();
        let elsewhere = QpAttr { pkey: Some(Pkey::new(0x8001)), ..QpAttr::default() };
        change_in_sqd(&pair, of_target, elsewhere);
        let (op, sge) = (SendOp::Write(pair.remote(0)), pair.sge(0, 8));
        assert!(!pair.carries_out(op, Payload::Sges(&[sge])), "target {of_target}");
        pair.post(op, sge);
        // The target drops what comes, and the request waits for its answer.
        for _ in 0..1000 {
            assert!(pair.alone().is_none(), "target {of_target}");
            pair.b.device.turn();
        }
        crate::assert_all(&pair.b, 0, "of another partition");
    }
}

/// A list of both kinds whose entries are all memory has no room for bytes beside them, and needs none.
#[test]
fn bytes_that_no_entry_has_are_no_part_of_a_message() {
    let mut pair = Pair::warm();
    let entries = [pair.sge(0, 8)];
    let payload = Payload::Mixed(Mixed { entries: &entries, inline: 0, bytes: &[9; 32] });
    let op = SendOp::Write(pair.remote(0));
    let wr = SendWr { wr_id: 7, op, flags: SendFlags::SIGNALED, payload, dest: None };
    // SAFETY: the memory outlives its adapter, and is accessed by volatile accesses only.
    unsafe { pair.a.rc.send.post_now(&wr) }.unwrap();
    assert_eq!(pair.ends().status, WcStatus::Success);
    assert!((0..8).all(|at| crate::byte(&pair.b, crate::BEGIN + at) == crate::OURS));
    assert_eq!(crate::byte(&pair.b, crate::BEGIN + 8), 0, "nothing behind it");
}

/// A queue pair that has no READs and atomics, or takes none.
#[test]
fn what_goes_directly_needs_room_for_reads_on_both_sides() {
    let none = QpAttr { max_rd_atomic: Some(0), ..QpAttr::default() };
    let takes_none = QpAttr { max_dest_rd_atomic: Some(0), ..QpAttr::default() };
    for (of_target, change, status) in
        [(false, none, WcStatus::LocalQpOperation), (true, takes_none, WcStatus::RemoteInvalidRequest)]
    {
        for i in 1..4 {
            let mut pair = Pair::warm();
            change_in_sqd(&pair, of_target, change);
            pair.warm_up(Access::REMOTE_WRITE);
            let op = crate::ops(pair.remote(0))[i].0;
            pair.refused(op, pair.sge(0, 8), &[status], &format!("{op:?}, target {of_target}"));
        }
        // The same of one without a list.
        let mut pair = Pair::warm();
        change_in_sqd(&pair, of_target, change);
        pair.warm_up(Access::REMOTE_WRITE);
        let op = SendOp::AtomicWrite { remote: pair.remote(0), value: [3; 8] };
        assert!(!pair.carries_out(op, Payload::Sges(&[])), "target {of_target}");
        pair.try_post(op, &[], SendFlags::SIGNALED).unwrap();
        assert_eq!(pair.ends().status, status, "{op:?}, target {of_target}");
        crate::assert_all(&pair.b, 0, "it was refused");
    }
}
