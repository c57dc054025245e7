//! Faults by seed, by script, in both directions.

use std::time::Duration;

use crate::suite::{BUDGET, av, counter, now, packet, pass, put};
use hca_core::Instant;
use hca_fabric::{Direction, Fabric, FaultPlan, Faults, Faulty, LoopbackNet, RxBudget, TxBatch, Verdict};

/// Two ends of a network; the first one's packets suffer.
fn ends(plan: FaultPlan) -> (Faulty, Box<dyn Fabric>) {
    let net = LoopbackNet::new();
    let a = Faulty::new(Box::new(net.attach("10.0.0.1".parse().unwrap())), plan);
    (a, Box::new(net.attach("10.0.0.2".parse().unwrap())))
}

/// The numbers of the packets that arrive when `count` are sent, all delays waited out.
fn arrivals(plan: FaultPlan, count: u32) -> Vec<u32> {
    let (mut a, mut b) = ends(plan);
    let path = a.open_path(&av(b.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 20);
    for i in 0..count {
        put(&mut batch, path, &packet(i, 20 + (i as usize % 7) * 4));
    }
    let mut at = now();
    let mut got = Vec::new();
    loop {
        a.send(at, &mut batch);
        a.recv(at, BUDGET, &mut |_| panic!("nothing was sent this way"));
        let all = RxBudget { packets: usize::MAX, bytes: usize::MAX };
        b.recv(at, all, &mut |p| got.push(u32::from_be_bytes(p.bytes[8..12].try_into().unwrap())));
        match a.next_deadline() {
            Some(due) => at = due,
            None if batch.is_empty() => return got,
            None => {}
        }
    }
}

fn hostile(seed: u64) -> FaultPlan {
    format!("loss=0.1,dup=0.1,reorder=0.1,corrupt=0.05,delay=0.1:10us-2ms,seed={seed}").parse().unwrap()
}

#[test]
fn the_same_seed_does_the_same_and_another_does_not() {
    let one = arrivals(hostile(1), 500);
    assert_eq!(one, arrivals(hostile(1), 500));
    assert_ne!(one, arrivals(hostile(2), 500));
    assert!((300..600).contains(&one.len()), "{}", one.len());
}

#[test]
fn each_fault_does_what_its_name_says() {
    let of = |text: &str| arrivals(text.parse().unwrap(), 1000);
    let lossy = of("loss=0.2,seed=3");
    assert!((750..850).contains(&lossy.len()) && lossy.is_sorted(), "{}", lossy.len());
    let doubled = of("dup=0.2,seed=3");
    assert!((1150..1250).contains(&doubled.len()) && doubled.is_sorted());
    for text in ["reorder=0.2,seed=3", "delay=0.2:10us-2ms,seed=3"] {
        let mut moved = of(text);
        assert!(!moved.is_sorted());
        moved.sort_unstable();
        assert_eq!(moved, (0..1000).collect::<Vec<_>>(), "{text}");
    }
    assert_eq!(of("seed=3"), (0..1000).collect::<Vec<_>>());
    assert_eq!(of("loss=1"), []);
}

#[test]
fn one_kind_of_faults_leaves_the_others_their_luck() {
    let came = |text: &str| {
        let mut came = arrivals(text.parse().unwrap(), 1000);
        came.sort_unstable();
        came.dedup();
        came
    };
    let alone = came("loss=0.2,seed=3");
    for beside in ["dup=0.2", "reorder=0.2", "delay=0.2:10us-2ms"] {
        assert_eq!(came(&format!("loss=0.2,{beside},seed=3")), alone, "{beside}");
    }
}

#[test]
fn a_reordered_packet_is_overtaken_by_four_at_most() {
    for (place, number) in arrivals("reorder=0.3,seed=5".parse().unwrap(), 1000).into_iter().enumerate() {
        assert!((place as i64 - i64::from(number)).abs() <= 8, "packet {number} came as {place}");
    }
}

#[test]
fn every_corrupted_packet_is_dropped_by_its_icrc() {
    let plan =
        FaultPlan { tx: Faults { corrupt: 0.3, ..Faults::default() }, seed: 11, ..FaultPlan::default() };
    let (mut a, mut b) = ends(plan);
    let packets: Vec<_> = (0..300).map(|i| packet(i, 64)).collect();
    let path = a.open_path(&av(b.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 20);
    packets.iter().for_each(|p| put(&mut batch, path, p));
    a.send(now(), &mut batch);
    let mut got = 0;
    b.recv(now(), BUDGET, &mut |p| {
        assert!(packets.iter().any(|q| q == p.bytes));
        got += 1;
    });
    let corrupted = counter(&a, "faulty_tx_corrupted");
    assert!((60..120).contains(&corrupted), "{corrupted}");
    assert_eq!(counter(&*b, "icrc_errors"), corrupted);
    assert_eq!(got + corrupted, 300);
}

#[test]
fn a_script_decides_over_single_packets() {
    let plan = FaultPlan::drop_numbers(Direction::Tx, [1, 3]);
    assert_eq!(arrivals(plan, 6), [0, 2, 4, 5]);
    let plan = FaultPlan::script(|_, bytes| match bytes[11] {
        0 => Verdict::Delay(Duration::from_millis(5)),
        1 => Verdict::Duplicate,
        2 => Verdict::Corrupt(20, 0),
        _ => Verdict::Pass,
    });
    assert_eq!(arrivals(plan, 5), [1, 1, 3, 4, 0]);
}

#[test]
fn received_packets_suffer_by_the_rx_faults() {
    let net = LoopbackNet::new();
    let mut a = net.attach("10.0.0.1".parse().unwrap());
    let plan = "rx.loss=0.5,rx.delay=0.1:1ms,seed=2".parse().unwrap();
    let mut b = Faulty::new(Box::new(net.attach("10.0.0.2".parse().unwrap())), plan);
    let path = a.open_path(&av(b.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 20);
    (0..400).for_each(|i| put(&mut batch, path, &packet(i, 20)));
    a.send(now(), &mut batch);
    let mut got = 0;
    let mut sink = |_: &hca_fabric::RxPacket<'_>| got += 1;
    b.recv(now(), BUDGET, &mut sink);
    let due = b.next_deadline().expect("some are late");
    assert!(due > now());
    b.recv(due, BUDGET, &mut sink);
    assert_eq!(b.next_deadline(), None);
    assert_eq!(got + counter(&b, "faulty_rx_lost"), 400);
    assert!((150..250).contains(&got), "{got}");
}

#[test]
fn what_is_held_back_has_a_limit() {
    let plan: FaultPlan = "tx.delay=1:1s".parse().unwrap();
    let (mut a, b) = ends(plan);
    let path = a.open_path(&av(b.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(1 << 20);
    for i in 0..5000 {
        put(&mut batch, path, &packet(i, 12));
    }
    a.send(now(), &mut batch);
    assert_eq!(counter(&a, "faulty_tx_overflowed"), 5000 - 4096);
}

/// More packets are due at once than one call takes, and those that are sent then come twice.
#[test]
fn many_packets_that_are_due_at_once_leave_room_for_those_that_are_sent() {
    const LATE: u32 = 700;
    let mut sent = 0;
    let plan = FaultPlan::script(move |_, _| {
        sent += 1;
        if sent <= LATE { Verdict::Delay(Duration::from_millis(1)) } else { Verdict::Duplicate }
    });
    let (mut a, mut b) = ends(plan);
    let path = a.open_path(&av(b.attr().local)).unwrap();
    let mut batch = TxBatch::with_capacity(4 << 20);
    let begin = now();
    for (at, numbers) in [(begin, 0..LATE), (begin + Duration::from_millis(1), LATE..LATE + 15)] {
        numbers.for_each(|i| put(&mut batch, path, &packet(i, 4096)));
        a.send(at, &mut batch);
    }
    let (all, mut got) = (RxBudget { packets: usize::MAX, bytes: usize::MAX }, 0);
    while let Some(at) = a.next_deadline().or((!batch.is_empty()).then_some(begin)) {
        a.send(at, &mut batch);
        got += b.recv(at, all, &mut |_| {}).packets;
    }
    got += b.recv(begin, all, &mut |_| {}).packets;
    assert_eq!(got, LATE as usize + 2 * 15);
}

#[test]
fn without_faults_the_layer_changes_nothing() {
    let net = LoopbackNet::new();
    let wrap = |addr: &str| -> Box<dyn Fabric> {
        Box::new(Faulty::new(Box::new(net.attach(addr.parse().unwrap())), FaultPlan::default()))
    };
    crate::suite::run(wrap("10.0.0.1"), wrap("10.0.0.2"));
}

#[test]
fn a_full_batch_below_loses_nothing() {
    let (mut a, mut b) = ends(FaultPlan::default());
    let packets: Vec<_> = (0..700).map(|i| packet(i, 4096)).collect();
    assert_eq!(pass(&mut a, &mut *b, &packets).len(), 700);
    let small = RxBudget { packets: 1, bytes: 1 };
    assert_eq!(b.recv(Instant::from_nanos(0), small, &mut |_| {}).packets, 0);
}
