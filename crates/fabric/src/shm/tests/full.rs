//! Full rings: a producer that sleeps at a full ring is called as soon as there is room.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::hello::{Greeting, Kind};
use super::super::link::Stage;
use super::super::{LineData, LineSink};
use super::direct::{KEY, Pair, QPN, pair};
use super::hostile::met;
use super::*;
use crate::Notice;
use crate::shm::hello;

/// Takes all.
struct All;

impl LineSink for All {
    fn line(&mut self, _: crate::LinkId, _: [u32; 3], _: LineData<'_>) -> bool {
        true
    }
}

/// Whether who sleeps on the descriptor wakes up now.
fn is_woken(f: &ShmFabric) -> bool {
    let fd = f.wait_fd().unwrap();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}

/// Goes to sleep, behind whatever there is to be taken.
fn sleep(f: &mut ShmFabric) {
    let start = Clock::now();
    while is_woken(f) || f.prepare_wait() {
        recv(f, &mut Vec::new());
        assert!(start.elapsed() < Duration::from_secs(10), "it has something to do each time");
    }
}

/// Fills the ring of a path with messages of one line.
fn fill(f: &mut ShmFabric, path: PathId) {
    f.send_messages(now(), path, |tx, _| {
        while let Some(room) = tx.reserve(60) {
            room.fill(1);
            tx.commit();
        }
    });
}

#[test]
fn who_sleeps_beside_a_full_ring_is_called_as_soon_as_there_is_room() {
    let takes: [fn(&mut ShmFabric) -> usize; 2] = [
        |b| recv(b, &mut Vec::new()),
        |b| b.look().map(|ring| b.take_lines(ring, 100_000, &mut All)).map_or(0, |found| found.taken),
    ];
    for (packets, take) in [(true, takes[0]), (false, takes[0]), (false, takes[1])] {
        let (mut a, mut b, to_b) = met();
        for round in 0..3 {
            match packets {
                true => while send(&mut a, to_b, &[packet(round, 4000)]) == 0 {},
                false => fill(&mut a, to_b),
            }
            sleep(&mut a);
            // It sleeps again as long as nothing changes.
            assert!(!a.prepare_wait() && !is_woken(&a));
            while !is_woken(&a) {
                assert!(take(&mut b) > 0, "round {round}: all was taken, and nobody called");
            }
            assert!(a.prepare_wait(), "there is room");
            assert_eq!(send(&mut a, to_b, &[packet(round, 4000)]), 0);
            while take(&mut b) + recv(&mut b, &mut Vec::new()) > 0 {}
        }
        assert!(counter(&b, "wakeups_sent") >= 3);
    }
}

#[test]
fn who_sleeps_beside_a_full_socket_is_woken_as_soon_as_there_is_room_and_not_before() {
    let Pair { mut a, mut b, to_b, .. } = pair();
    // Wake-ups, which a peer that is stopped does not take.
    let Stage::Up(socket) = &a.links.get(to_b.slot()).unwrap().stage else { panic!("they have met") };
    let g =
        Greeting { kind: Kind::Wake, from: a.own.local, ring_lines: 0, bit: 0, barriers: false, nonce: 0 };
    while hello::send(socket.as_fd(), &g, &[]).is_ok() {}
    a.ask_grant(to_b, KEY, QPN).unwrap();
    sleep(&mut a);
    assert_eq!(a.next_deadline(), None, "it sleeps without a clock");
    let start = Clock::now();
    let notice = loop {
        recv(&mut b, &mut Vec::new());
        if let Some(notice) = b.next_notice() {
            break notice;
        }
        // Nobody calls it but the socket.
        if is_woken(&a) {
            recv(&mut a, &mut Vec::new());
        }
        assert!(start.elapsed() < Duration::from_secs(10), "the question does not come");
    };
    assert!(matches!(notice, Notice::GrantAsked { key: KEY, qpn: QPN, .. }), "{notice:?}");
    sleep(&mut a);
    assert!(!is_woken(&a), "room alone wakes nobody");
}

/// All credits were given before the consumer was asked to call.
#[test]
fn room_that_came_before_one_goes_to_sleep_is_found() {
    let (mut a, mut b, to_b) = met();
    for _ in 0..3 {
        fill(&mut a, to_b);
        while recv(&mut b, &mut Vec::new()) > 0 {}
        assert!(a.prepare_wait(), "there is room");
    }
}

/// The consumer takes a little at any moment of the producer's going to sleep, until it parks and sleeps itself.
#[test]
fn room_that_there_is_while_one_goes_to_sleep_is_not_slept_through() {
    let (mut a, mut b, to_b) = met();
    let messages = 200_000;
    let t = std::thread::spawn(move || {
        let (mut taken, start) = (0, Clock::now());
        while taken < messages {
            let more = recv(&mut b, &mut Vec::new());
            taken += more;
            if more == 0 && !b.prepare_wait() {
                std::thread::yield_now();
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{taken} of {messages}");
        }
        b
    });
    let mut sent = 0;
    while sent < messages {
        a.send_messages(now(), to_b, |tx, _| {
            while sent < messages
                && let Some(room) = tx.reserve(60)
            {
                room.fill(1);
                tx.commit();
                sent += 1;
            }
        });
        if sent < messages && !a.prepare_wait() {
            let fd = a.wait_fd().unwrap();
            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
            let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
            assert_eq!(poll(&mut fds, Some(&limit)), Ok(1), "asleep beside a ring with room, {sent} sent");
        }
        recv(&mut a, &mut Vec::new());
    }
    let b = t.join().unwrap();
    println!("{} calls", counter(&b, "wakeups_sent"));
}
