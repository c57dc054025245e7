//! A peer that stays within an access to revoked memory, as a stopped process does: it delays the thread that revokes
//! the memory, and no other thread.
#![allow(unsafe_code, missing_docs)]

mod ends;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ends::peer::Peer;
use ends::{End, open, send};
use hca_core::{
    Completion, CqPort, Device, DeviceError, Lkey, MrKeys, Notify, Payload, QpAttr, QpHandle, QpState,
    SendFlags, SendOp, SendWr, Sge, WcStatus,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softhca::{Progress, SoftHca};

/// Rounds at most until one in which the machine had time for this test within the peer's 100 ms.
const ROUNDS: u32 = 50;
/// Messages that go to and fro meanwhile.
const PINGS: u32 = 20;

/// Two ends that exchange messages, one of them on an adapter that takes memory back.
struct Others([End; 2]);

impl Others {
    fn with(device: &Arc<SoftHca>) -> Self {
        let ends = [device.clone(), open("shm", Progress::Inline, 1).unwrap()].map(End::new);
        ends[0].connect(&ends[1]);
        ends[1].connect(&ends[0]);
        let mut others = Self(ends);
        others.ping();
        others
    }
    /// One message to the other adapter, and the state of the queue pair that sent it.
    fn ping(&mut self) {
        let [a, b] = &mut self.0;
        b.recv();
        send(&mut a.rc, SendFlags::SIGNALED);
        let (mut came, mut one) = ([0; 2], [Completion::default()]);
        while came != [1, 1] {
            for (end, came) in [&mut *a, b].into_iter().zip(&mut came) {
                *came += end.cq.poll(&mut one);
                assert_eq!(one[0].status, WcStatus::Success);
            }
        }
        assert_eq!(a.device.query_qp(a.rc.handle).unwrap().state, QpState::Rts);
    }
}

fn stuck(end: &End) -> u64 {
    end.counter("peers_dropped_stuck")
}

/// Runs `take_back` while a peer is within an access. `true`: meanwhile others went on, and the peer left in time.
fn others_go_on(
    progress: Progress,
    take_back: fn(&SoftHca, QpHandle, MrKeys) -> Result<(), DeviceError>,
) -> bool {
    let end = End::new(open("shm", progress, 0).unwrap());
    let mut others = Others::with(&end.device);
    let (mut peer, keys) = Peer::of(&end);
    let mut bracket = peer.fabric.access(peer.grant, &peer.guard).unwrap();
    bracket.write(1024, &[7; 8]).unwrap();
    let returned = AtomicBool::new(false);
    let is_under_way = || end.counter("take_backs_now") > 0;
    assert!(!is_under_way());
    std::thread::scope(|s| {
        s.spawn(|| {
            take_back(&end.device, end.rc.handle, keys).unwrap();
            returned.store(true, Ordering::SeqCst);
        });
        while !is_under_way() {
            if returned.load(Ordering::SeqCst) {
                return false;
            }
            std::thread::yield_now();
        }
        for _ in 0..PINGS {
            others.ping();
        }
        let left_in_time = !returned.load(Ordering::SeqCst) && stuck(&end) == 0;
        drop(bracket);
        left_in_time
    }) && stuck(&end) == 0
}

fn others_go_on_in_some_round(take_back: fn(&SoftHca, QpHandle, MrKeys) -> Result<(), DeviceError>) {
    for progress in [Progress::Inline, Progress::Adaptive, Progress::Thread] {
        let rounds = (0..ROUNDS).find(|_| others_go_on(progress, take_back));
        assert!(rounds.is_some(), "{progress:?}: nobody else got a turn before the peer was dropped");
    }
}

#[test]
fn others_go_on_while_a_region_waits_for_a_peer_that_is_within() {
    others_go_on_in_some_round(|device, _, keys| device.dereg_mr(keys.handle));
}

#[test]
fn others_go_on_while_a_queue_pair_that_goes_waits_for_a_peer_that_is_within() {
    others_go_on_in_some_round(|device, qp, _| {
        device.destroy_qp(qp)?;
        assert!(matches!(device.query_qp(qp), Err(DeviceError::UnknownHandle { .. })));
        Ok(())
    });
}

#[test]
fn others_go_on_while_a_queue_pair_that_changes_waits_for_a_peer_that_is_within() {
    others_go_on_in_some_round(|device, qp, _| change(device, qp, QpState::Error));
    others_go_on_in_some_round(|device, qp, _| change(device, qp, QpState::Reset));
}

fn change(device: &SoftHca, qp: QpHandle, state: QpState) -> Result<(), DeviceError> {
    device.modify_qp(qp, &QpAttr { state: Some(state), ..QpAttr::default() })?;
    assert_eq!(device.query_qp(qp).unwrap().state, state);
    Ok(())
}

/// The queue pair that two threads destroy while a peer is within is destroyed once.
#[test]
fn a_queue_pair_that_went_while_its_peer_was_waited_for_is_unknown_to_who_comes_later() {
    let end = End::new(open("shm", Progress::Adaptive, 0).unwrap());
    let (mut peer, _) = Peer::of(&end);
    let bracket = peer.fabric.access(peer.grant, &peer.guard).unwrap();
    let (device, qp) = (&end.device, end.rc.handle);
    let gone = std::thread::scope(|s| {
        let both = [0, 1].map(|_| s.spawn(|| device.destroy_qp(qp).map_err(|e| e.to_string())));
        while end.counter("take_backs_now") == 0 && stuck(&end) == 0 {
            std::thread::yield_now();
        }
        drop(bracket);
        both.map(|t| t.join().unwrap())
    });
    assert_eq!(gone.iter().filter(|r| r.is_ok()).count(), 1, "{gone:?}");
    assert_eq!(end.counter("take_backs_now"), 0);
}

/// A request that ends in error while a peer is within: its completion comes behind the peer's access, others' at once.
fn the_error_waits(progress: Progress) -> bool {
    let mut end = End::new(open("shm", progress, 0).unwrap());
    let mut others = Others::with(&end.device);
    let (mut peer, _) = Peer::of(&end);
    let bracket = peer.fabric.access(peer.grant, &peer.guard).unwrap();
    fail(&mut end);
    let mut one = [Completion::default()];
    while end.device.query_qp(end.rc.handle).unwrap().state != QpState::Error {
        end.device.turn();
    }
    for _ in 0..PINGS {
        others.ping();
        let shown = end.cq.poll(&mut one);
        if stuck(&end) > 0 {
            return false;
        }
        assert_eq!(shown, 0, "{progress:?}: it is shown while the peer is within");
    }
    drop(bracket);
    while end.cq.poll(&mut one) == 0 {
        end.device.turn();
    }
    assert_eq!((one[0].wr_id, one[0].status), (5, WcStatus::LocalProtection));
    stuck(&end) == 0
}

#[test]
fn a_completion_waits_for_a_peer_that_is_within_what_it_tells_to_be_over_and_others_do_not() {
    for progress in [Progress::Inline, Progress::Adaptive, Progress::Thread] {
        let rounds = (0..ROUNDS).find(|_| the_error_waits(progress));
        assert!(rounds.is_some(), "{progress:?}: nobody else got a turn before the peer was dropped");
    }
}

/// Nobody but the queue's waker tells that the peer left.
#[test]
fn who_sleeps_for_a_completion_that_waits_for_a_peer_is_woken() {
    for progress in [Progress::Inline, Progress::Adaptive, Progress::Thread] {
        let mut end = End::new(open("shm", progress, 0).unwrap());
        let (mut peer, _) = Peer::of(&end);
        let bracket = peer.fabric.access(peer.grant, &peer.guard).unwrap();
        fail(&mut end);
        std::thread::scope(|s| {
            let cq = &mut end.cq;
            let sleeper = s.spawn(move || sleep_for(&mut **cq));
            drop(bracket);
            assert_eq!(sleeper.join().unwrap(), (5, WcStatus::LocalProtection), "{progress:?}");
        });
    }
}

/// Sleeps on the queue's descriptor until it has a completion.
fn sleep_for(cq: &mut dyn CqPort) -> (u64, WcStatus) {
    let mut one = [Completion::default()];
    loop {
        cq.arm(Notify::Any);
        if cq.poll(&mut one) == 1 {
            return (one[0].wr_id, one[0].status);
        }
        let fd = cq.wait_fd().unwrap();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let long = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_ne!(poll(&mut fds, Some(&long)), Ok(0), "nobody wakes the sleeper");
    }
}

/// Posts a request that ends in error.
fn fail(end: &mut End) {
    let nowhere = [Sge { addr: 0, len: 64, lkey: Lkey::new(0) }];
    let (op, flags, payload) = (SendOp::Send, SendFlags::SIGNALED, Payload::Sges(&nowhere));
    // SAFETY: the entry names no memory.
    unsafe { end.rc.send.post(&[SendWr { wr_id: 5, op, flags, payload, dest: None }]) }.unwrap();
    end.rc.send.ring();
}
