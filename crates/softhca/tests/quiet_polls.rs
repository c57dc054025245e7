//! Empty polls: they read a word of the network's memory, and see an arriving message at once.

mod ends;

use std::sync::Arc;

use ends::{End, open, send, shm_pair};
use hca_core::{Completion, Device, Notify, SendFlags, WcOpcode};
use hca_fabric::LoopbackNet;
use softhca::{Options, Patience, Progress, SoftHca};

const POLLS: u64 = 1000;

#[test]
fn polls_of_a_network_in_memory_are_no_turns_until_something_comes() {
    // However slow the machine is, no poll comes late.
    Patience { short_ticks: u32::MAX, ..Patience::default() }.set();
    let net = LoopbackNet::new();
    let [mut a, mut b] = ["10.0.0.1", "10.0.0.2"].map(|addr| {
        let fabric = Box::new(net.attach(addr.parse().expect("it is an address")));
        let options = Options { progress: Progress::Inline, ..Options::default() };
        let device: Arc<SoftHca> = SoftHca::open(fabric, options).unwrap();
        End::new(device)
    });
    a.connect(&b);
    b.connect(&a);
    let mut wc = [Completion::default()];
    for message in 0..4 {
        let before = b.counter("turns");
        for _ in 0..POLLS {
            assert_eq!(b.cq.poll(&mut wc), 0, "message {message} was not sent");
        }
        let turns = b.counter("turns") - before;
        assert!(turns <= POLLS / 100 + 2, "{turns} turns for {POLLS} polls that find nothing");
        assert!(turns > 1, "timers are looked at now and then");
        b.recv();
        send(&mut a.rc, SendFlags::SIGNALED);
        assert_eq!((b.cq.poll(&mut wc), wc[0].opcode), (1, WcOpcode::Recv), "message {message}");
        let polls = (0..4).position(|_| a.cq.poll(&mut wc) == 1);
        assert!(polls.is_some(), "SEND {message} is acknowledged by the poll that yielded it");
    }
    a.close();
    b.close();
}

/// As where a program arms the queue of rare messages, and polls that of frequent ones.
#[test]
fn polls_beside_a_queue_that_is_armed_and_gets_nothing_are_no_turns_for_ever() {
    Patience { short_ticks: u32::MAX, ..Patience::default() }.set();
    let [mut a, b] = shm_pair(Progress::Adaptive);
    let (handle, mut armed) = a.device.create_cq(4).unwrap();
    let _ = armed.wait_fd().unwrap();
    let mut wc = [Completion::default()];
    armed.arm(Notify::Any);
    assert_eq!(armed.poll(&mut wc), 0);
    let mut round = || {
        let before = a.counter("turns");
        for _ in 0..POLLS {
            assert_eq!(a.cq.poll(&mut wc), 0);
        }
        a.counter("turns") - before
    };
    // The adapter's thread may have its turns beside a program that had no CPU for a while.
    let least = (0..100).map(|_| round()).min().expect("there are rounds");
    assert!(least <= POLLS / 100 + 2, "{least} turns for {POLLS} polls that find nothing");
    drop(armed);
    a.device.destroy_cq(handle).unwrap();
    a.close();
    b.close();
}

/// A look at sockets is a system call, during which a near peer's message waits.
#[test]
fn polls_look_at_sockets_less_often_while_near_peers_talk_and_the_sockets_are_silent() {
    Patience { short_ticks: u32::MAX, ..Patience::default() }.set();
    let [near, auto] = [0, 1].map(|n| open("auto", Progress::Inline, n).expect("there are sockets"));
    let far = open("udp", Progress::Inline, 2).expect("there are sockets");
    let (mut a, mut b) = (End::new(near), End::new(auto.clone()));
    let (mut c, mut d) = (End::new(far), End::new(auto));
    for [one, other] in [[&a, &b], [&c, &d]] {
        one.connect(other);
        other.connect(one);
    }
    let mut wc = [Completion::default()];
    // Whole turns of so many polls, or a few more, of which every eighth or so finds a message of the near peer's.
    let mut looks = |b: &mut End, mut talks: Option<&mut End>| {
        let before = b.counter("turns");
        for _ in 0..POLLS / 8 {
            if let Some(a) = &mut talks {
                b.recv_reliable();
                send(&mut a.rc, SendFlags::SIGNALED);
            }
            let expected = usize::from(talks.is_some());
            let mut found: usize = (0..8).map(|_| b.cq.poll(&mut wc)).sum();
            for _ in 0..POLLS {
                if let Some(a) = &mut talks {
                    a.cq.poll(&mut wc);
                }
                if found == expected {
                    break;
                }
                found += b.cq.poll(&mut wc);
            }
            assert_eq!(found, expected);
        }
        b.counter("turns") - before
    };
    // Until the peers have met.
    looks(&mut b, Some(&mut a));
    let busy = looks(&mut b, Some(&mut a));
    assert!(busy <= POLLS / 100, "{busy} whole turns in {POLLS} polls");
    // Until they know that the near peer is silent.
    looks(&mut b, None);
    let silent = looks(&mut b, None);
    assert!(
        silent >= POLLS / 20,
        "{silent} whole turns in {POLLS} polls: the sockets are all there is to look at"
    );
    looks(&mut b, Some(&mut a));
    let mut until_found = || {
        d.recv_reliable();
        send(&mut c.rc, SendFlags::SIGNALED);
        let mut wc = [Completion::default()];
        let polls = (1..POLLS).find(|_| d.cq.poll(&mut wc) == 1).expect("a message by a socket is found");
        c.cq.poll(&mut wc);
        polls
    };
    until_found();
    // The sockets are looked at as often as before.
    let polls = until_found();
    assert!(polls <= 20, "found by the poll {polls} behind that of another one");
    [a, b, c, d].into_iter().for_each(End::close);
}
