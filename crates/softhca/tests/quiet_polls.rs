//! Empty polls: they read a word of the network's memory, and see an arriving message at once.

mod ends;

use std::sync::Arc;

use ends::{End, send, shm_pair};
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
