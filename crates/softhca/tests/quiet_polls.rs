//! Empty polls: they read a word of the network's memory, and see an arriving message at once.

mod ends;

use std::sync::Arc;

use ends::{End, open, post, send, shm_pair};
use hca_core::{Completion, Device, Notify, RemoteAddr, SendFlags, SendOp, WcOpcode};
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

/// Two adapters with sockets and shared memory, which have met.
fn near_pair() -> [End; 2] {
    Patience { short_ticks: u32::MAX, ..Patience::default() }.set();
    let [mut a, mut b] =
        [0, 1].map(|n| End::new(open("auto", Progress::Inline, n).expect("there are sockets")));
    a.connect(&b);
    b.connect(&a);
    talk(&mut a, &mut b);
    [a, b]
}

/// Polls of `b`, of which every eighth or so finds a message of `a`; returns its whole turns.
fn talk(a: &mut End, b: &mut End) -> u64 {
    let mut wc = [Completion::default()];
    let before = b.counter("turns");
    for _ in 0..POLLS / 8 {
        b.recv_reliable();
        send(&mut a.rc, SendFlags::SIGNALED);
        let mut found: usize = (0..8).map(|_| b.cq.poll(&mut wc)).sum();
        // The first message waits for a handshake.
        for _ in 0..POLLS {
            a.cq.poll(&mut wc);
            if found > 0 {
                break;
            }
            found += b.cq.poll(&mut wc);
        }
        assert_eq!(found, 1);
    }
    b.counter("turns") - before
}

/// As many polls, which find nothing.
fn wait(b: &mut End) -> u64 {
    let before = b.counter("turns");
    (0..POLLS).for_each(|_| assert_eq!(b.cq.poll(&mut [Completion::default()]), 0));
    b.counter("turns") - before
}

/// A look at sockets is a system call, during which a near peer's message waits.
#[test]
fn polls_look_at_sockets_less_often_while_near_peers_talk_and_the_sockets_are_silent() {
    let [mut a, mut b] = near_pair();
    let busy = talk(&mut a, &mut b);
    assert!(busy <= POLLS / 100, "{busy} whole turns in {POLLS} polls");
    // Until they know that the near peer is silent.
    wait(&mut b);
    let silent = wait(&mut b);
    assert!(silent >= POLLS / 20, "{silent} whole turns in {POLLS} polls, and only the sockets to look at");
    let keys = a.open_to_writes();
    let RemoteAddr { addr, rkey } = a.remote(&keys);
    // Whole turns, and messages sent by shared memory.
    let mut write = || {
        let before = ["turns", "shm_tx_messages"].map(|name| b.counter(name));
        for _ in 0..POLLS / 8 {
            post(&mut b.rc, &[SendOp::Write(RemoteAddr { addr, rkey })], SendFlags::SIGNALED);
            let mut found = 0;
            for poll in 0..POLLS {
                found += b.cq.poll(&mut [Completion::default()]);
                if poll >= 8 && found > 0 {
                    break;
                }
                a.device.turn();
            }
            assert_eq!(found, 1);
        }
        [b.counter("turns") - before[0], b.counter("shm_tx_messages") - before[1]]
    };
    // Until the peer has granted it, a WRITE goes as a message.
    let granted = (0..10_000).any(|_| write()[1] == 0);
    assert!(granted, "the peer's memory is granted");
    write();
    let [busy, _] = write();
    assert!(busy <= POLLS / 100, "{busy} whole turns in {POLLS} polls between writes");
    a.device.dereg_mr(keys.handle).unwrap();
    a.close();
    b.close();
}

#[test]
fn a_packet_has_the_sockets_looked_at_as_often_as_before() {
    let [mut a, mut b] = near_pair();
    let far = open("udp", Progress::Inline, 2).expect("there are sockets");
    let (mut c, mut d) = (End::new(far), End::new(b.device.clone()));
    c.connect(&d);
    d.connect(&c);
    talk(&mut a, &mut b);
    let mut wc = [Completion::default()];
    let mut polls_until_found = || {
        d.recv_reliable();
        send(&mut c.rc, SendFlags::SIGNALED);
        let polls = (1..POLLS).find(|_| d.cq.poll(&mut wc) == 1).expect("a message by a socket is found");
        c.cq.poll(&mut wc);
        polls
    };
    polls_until_found();
    let polls = polls_until_found();
    assert!(polls <= 20, "found by the poll {polls} behind that of another one");
    [a, b, c, d].into_iter().for_each(End::close);
}
