//! The suite over the loopback network.

use hca_fabric::{Fabric, LoopbackNet, RxBudget, RxOutcome, RxPacket, TxBatch};

use crate::suite::{BUDGET, av, counter, now, packet, put};

#[test]
fn the_suite_passes_over_loopback() {
    let net = LoopbackNet::new();
    let a = net.attach("10.0.0.1".parse().unwrap());
    let b = net.attach("10.0.0.2".parse().unwrap());
    crate::suite::run(Box::new(a), Box::new(b));
}

#[test]
fn four_senders_on_threads_of_their_own_lose_nothing() {
    const EACH: u32 = 500;
    let net = LoopbackNet::new();
    let mut sink = net.attach("10.0.0.9".parse().unwrap());
    let to = av(sink.attr().local);
    std::thread::scope(|s| {
        for n in 1..=4_u8 {
            let mut a = net.attach([10, 0, 0, n].into());
            s.spawn(move || {
                let path = a.open_path(&to).unwrap();
                let mut batch = TxBatch::with_capacity(1 << 16);
                for i in 0..EACH {
                    put(&mut batch, path, &packet(i, 20));
                    a.send(now(), &mut batch);
                }
            });
        }
        let mut next = [0_u32; 5];
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while next.iter().sum::<u32>() < 4 * EACH && std::time::Instant::now() < deadline {
            sink.recv(now(), BUDGET, &mut |p| {
                let std::net::IpAddr::V4(from) = p.header.src else { panic!("an IPv4 network") };
                let from = usize::from(from.octets()[3]);
                assert_eq!(p.bytes, packet(next[from], 20), "in order from each");
                next[from] += 1;
            });
        }
        assert_eq!(next, [0, EACH, EACH, EACH, EACH]);
    });
    assert_eq!(counter(&sink, "icrc_errors"), 0);
}

#[test]
fn all_senders_to_an_end_that_was_replaced_reach_the_new_one() {
    let net = LoopbackNet::new();
    let at = "10.0.0.9".parse().unwrap();
    let mut senders = [1, 2, 3, 4].map(|n: u8| net.attach([10, 0, 0, n].into()));
    let mut batch = TxBatch::with_capacity(1 << 16);
    let paths = senders.each_mut().map(|a| a.open_path(&av(at)).unwrap());
    let mut all_send = || {
        for (a, path) in senders.iter_mut().zip(paths) {
            put(&mut batch, path, &packet(1, 20));
            a.send(now(), &mut batch);
        }
        senders.each_ref().map(|a| counter(a, "tx_lost_unreachable"))
    };
    let takes_all = |end: &mut dyn Fabric| assert_eq!(end.recv(now(), BUDGET, &mut |_| {}).packets, 4);
    let mut old = net.attach(at);
    all_send();
    takes_all(&mut old);
    // One that is replaced, and one that has gone before the next one comes.
    let mut new = net.attach(at);
    all_send();
    takes_all(&mut new);
    drop(old);
    drop(new);
    assert_eq!(all_send(), [1; 4]);
    let mut new = net.attach(at);
    assert_eq!(all_send(), [1; 4]);
    takes_all(&mut new);
}

#[test]
fn a_full_queue_drops_and_counts() {
    let net = LoopbackNet::new();
    let mut a = net.attach("10.0.0.1".parse().unwrap());
    let mut b = net.attach("10.0.0.2".parse().unwrap());
    let path = a.open_path(&av(b.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(8 << 20);
    (0..1500).for_each(|i| put(&mut batch, path, &packet(i, 4096)));
    a.send(now(), &mut batch);
    let lost = counter(&a, "tx_lost_no_buffers");
    assert!(lost > 0);
    assert_eq!(counter(&b, "rx_kernel_drops"), lost);
    let mut got = 0;
    while b.recv(now(), BUDGET, &mut |_| got += 1).more {}
    assert_eq!(got + lost, 1500);
}

#[test]
fn what_a_budget_leaves_comes_first_by_the_next_call_and_lets_nobody_sleep() {
    let net = LoopbackNet::new();
    let mut a = net.attach("10.0.0.1".parse().unwrap());
    let mut b = net.attach("10.0.0.2".parse().unwrap());
    let path = a.open_path(&av(b.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 16);
    let mut send = |number| {
        put(&mut batch, path, &packet(number, 20));
        a.send(now(), &mut batch);
    };
    (0..3).for_each(&mut send);
    let one = RxBudget { packets: 1, ..BUDGET };
    let mut got = Vec::new();
    let mut take = |p: &RxPacket<'_>| got.push(p.bytes.to_vec());
    assert_eq!(b.recv(now(), one, &mut take), RxOutcome { packets: 1, more: true });
    send(3);
    assert!(b.prepare_wait(), "there is input");
    while b.recv(now(), one, &mut take).more {}
    assert_eq!(got, [0, 1, 2, 3].map(|number| packet(number, 20)));
    assert!(!b.prepare_wait(), "there is none");
    send(4);
    assert_eq!(b.recv(now(), one, &mut |_| {}), RxOutcome { packets: 1, more: false }, "nor does that last");
}

#[test]
fn who_leaves_is_unreachable_and_who_comes_back_is_reached() {
    let net = LoopbackNet::new();
    let mut a = net.attach("10.0.0.1".parse().unwrap());
    let peer = "10.0.0.2".parse().unwrap();
    let path = a.open_path(&av(peer)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 16);
    for round in 1..4 {
        put(&mut batch, path, &packet(0, 20));
        a.send(now(), &mut batch);
        assert_eq!(counter(&a, "tx_lost_unreachable"), round);
        let mut b = net.attach(peer);
        put(&mut batch, path, &packet(1, 20));
        a.send(now(), &mut batch);
        assert_eq!(b.recv(now(), BUDGET, &mut |_| {}).packets, 1);
    }
}
