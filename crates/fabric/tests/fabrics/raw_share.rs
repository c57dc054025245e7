//! One address for several processes, on raw Ethernet.

use std::net::IpAddr;

use hca_core::Instant;
use hca_fabric::{Fabric, OpenError, RawFabric, RawOptions, RoceVersion, TxBatch, UdpFabric, UdpOptions};
use test_support::namespaces::{Namespace, Wire};

use crate::raw::{acquaint, over_wire, v6};
use crate::share::{REP, REQ, management, packet_to, receive_all, send, slot, to_slot};
use crate::suite::{av, counter, now, put, receive};

const SHARED: RawOptions = RawOptions { ip: None, version: RoceVersion::V2, vlan: None, slots: 8 };

fn open(wire: &Wire, end: usize, options: RawOptions) -> RawFabric {
    wire.within(end, || RawFabric::open("wire", &options)).unwrap_or_else(|e| panic!("{e}"))
}

fn v4(end: usize) -> Option<IpAddr> {
    format!("10.77.0.{}", end + 1).parse().ok()
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn frames_go_to_their_slots() {
    over_wire(4500, |wire| {
        for (ip, version, vlan) in [
            (v4 as fn(usize) -> _, RoceVersion::V2, None),
            (v6, RoceVersion::V2, None),
            (v4, RoceVersion::V2, Some(7)),
            (v6, RoceVersion::V1, None),
        ] {
            let options = |end, slots| RawOptions { ip: ip(end), version, vlan, slots };
            let mut sender = open(wire, 0, options(0, 0));
            // The first one said how many.
            let mut members = [8, 1, 1].map(|slots| open(wire, 1, options(1, slots)));
            acquaint(&mut sender, &mut members[0]);
            let slots = [0, 1, 2].map(|n| slot(&members[n]));
            assert!(
                slots.iter().all(|s| *s < 8) && slots[0] != slots[1] && slots[1] != slots[2],
                "{slots:?}"
            );
            let packets: Vec<_> = (0..60).map(|n| to_slot(slots[n as usize / 5 % 3], n, 512)).collect();
            send(&mut sender, ip(1).unwrap(), &packets);
            for (member, own) in members.iter_mut().zip(slots) {
                let mine: Vec<_> = packets.iter().filter(|p| p[5] == own).cloned().collect();
                assert_eq!(receive(member, mine.len()), mine, "{version} {vlan:?}");
                assert_eq!((counter(member, "strays_handed_on"), counter(member, "icrc_errors")), (0, 0));
            }
        }
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn frames_that_name_no_process_come_to_one_of_them() {
    over_wire(4500, |wire| {
        let mut sender = open(wire, 0, RawOptions::default());
        let mut members = [SHARED; 3].map(|options| open(wire, 1, options));
        acquaint(&mut sender, &mut members[0]);
        let [a, b, c] = &mut members;
        a.desk().unwrap().read(true);
        b.desk().unwrap().read(true);
        wire.within(1, || c.desk().unwrap().claim(0x0106_1d2f)).unwrap();
        let to = v4(1).unwrap();
        let answer = management(REP, 1, [77, u32::from(slot(c)) << 24 | 5, 0, 0]);
        let request = management(REQ, 2, [77, 0, 0, 0x0106_1d2f]);
        let unclaimed = management(REQ, 3, [77, 0, 0, 0x0106_1d30]);
        send(
            &mut sender,
            to,
            &[answer.clone(), request.clone(), unclaimed.clone(), packet_to(0xff_ffff, 4, 64)],
        );
        // Both read the desk, and each frame comes once.
        let mut read = receive_all(a, 4);
        read.extend(receive_all(b, 1));
        read.sort();
        let mut expected = vec![unclaimed, packet_to(0xff_ffff, 4, 64)];
        expected.sort();
        assert_eq!(read, expected);
        let mut claimed = receive_all(c, 2);
        claimed.sort();
        let mut expected = vec![answer, request];
        expected.sort();
        assert_eq!(claimed, expected);
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn processes_at_one_address_reach_each_other_though_frames_do_not_come_back() {
    over_wire(4500, |wire| {
        let [mut a, mut b] = [SHARED; 2].map(|options| open(wire, 1, options));
        let at = v4(1).unwrap();
        // More than the recipient's socket holds.
        let packets: Vec<_> = (0..150).map(|n| to_slot(slot(&b), n, 4108)).collect();
        let path = a.open_path(&av(at)).unwrap();
        let mut batch = TxBatch::with_capacity(1 << 20);
        let (first, rest) = packets.split_at(100);
        first.iter().for_each(|p| put(&mut batch, path, p));
        a.send(now(), &mut batch);
        let mut got = Vec::new();
        for turn in 1..1000 {
            if turn == 2 {
                // There is room again, and some still wait.
                rest.iter().for_each(|p| put(&mut batch, path, p));
                a.send(now(), &mut batch);
            }
            a.recv(Instant::from_nanos(turn * 2_000_000), crate::suite::BUDGET, &mut |p| {
                panic!("{:?}", p.bytes)
            });
            b.recv(Instant::from_nanos(turn * 2_000_000), crate::suite::BUDGET, &mut |p| {
                assert_eq!(p.header.src, at);
                got.push(p.bytes.to_vec());
            });
            if a.next_deadline().is_none() && got.len() == packets.len() {
                break;
            }
        }
        assert!(got == packets, "{} of {}", got.len(), packets.len());
        assert_eq!((counter(&a, "strays_handed_on"), counter(&a, "strays_lost")), (150, 0));
        // To itself as before.
        let own = to_slot(slot(&a), 1, 64);
        send(&mut a, at, std::slice::from_ref(&own));
        assert_eq!(receive_all(&mut a, 1), [own]);
        a.close_path(path);
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn packets_to_a_process_that_takes_none_are_lost_and_counted_and_others_get_theirs() {
    over_wire(4500, |wire| {
        let [mut a, mut b, c] = [SHARED; 3].map(|options| open(wire, 1, options));
        let at = v4(1).unwrap();
        let mut batch = TxBatch::with_capacity(1 << 20);
        let path = a.open_path(&av(at)).unwrap();
        // Nothing reads the mailbox of the one, whose packets exceed what may wait for it.
        for n in 0..600 {
            put(&mut batch, path, &to_slot(slot(&c), n, 4108));
            if batch.room() < 8192 {
                a.send(now(), &mut batch);
                a.recv(now(), crate::suite::BUDGET, &mut |_| {});
            }
        }
        put(&mut batch, path, &to_slot(slot(&b), 1, 64));
        a.send(now(), &mut batch);
        a.recv(now(), crate::suite::BUDGET, &mut |_| {});
        assert_eq!(receive_all(&mut b, 1), [to_slot(slot(&b), 1, 64)]);
        assert!(counter(&a, "strays_lost") > 0 && a.next_deadline().is_some());
        // Some time later those that waited are lost, too.
        a.recv(now() + std::time::Duration::from_millis(1200), crate::suite::BUDGET, &mut |_| {});
        a.recv(now() + std::time::Duration::from_millis(2400), crate::suite::BUDGET, &mut |_| {});
        assert_eq!(a.next_deadline(), None);
        assert!(counter(&a, "strays_lost") > 500, "{}", counter(&a, "strays_lost"));
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn frames_over_the_loopback_interface_go_to_their_slots() {
    Namespace::new().unwrap().within(|| {
        let options = RawOptions { ip: "127.0.0.9".parse().ok(), ..SHARED };
        let mut members = [options; 3].map(|options| RawFabric::open("lo", &options).unwrap());
        let slots = [0, 1, 2].map(|n| slot(&members[n]));
        let packets: Vec<_> = (0..60).map(|n| to_slot(slots[n as usize / 5 % 3], n, 512)).collect();
        send(&mut members[0], "127.0.0.9".parse().unwrap(), &packets);
        for (member, own) in members.iter_mut().zip(slots) {
            let mine: Vec<_> = packets.iter().filter(|p| p[5] == own).cloned().collect();
            assert_eq!(receive(member, mine.len()), mine);
            assert_eq!(counter(member, "strays_handed_on"), 0);
        }
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn a_shared_address_is_of_one_kind_of_fabric() {
    over_wire(1500, |wire| {
        wire.within(0, || {
            let at = v4(0).unwrap();
            let raw = |options: RawOptions| RawFabric::open("wire", &options).err();
            let udp = |slots| UdpFabric::open(at, &UdpOptions { slots, ..UdpOptions::default() }).err();
            let first = RawFabric::open("wire", &SHARED).unwrap();
            for refused in [
                raw(RawOptions::default()),
                raw(RawOptions { vlan: Some(7), ..SHARED }),
                raw(RawOptions { version: RoceVersion::V1, ..SHARED }),
                udp(0),
                udp(8),
            ] {
                assert!(matches!(refused, Some(OpenError::InUse(a)) if a == at), "{refused:?}");
            }
            drop(first);
            let shared = UdpOptions { slots: 8, ..UdpOptions::default() };
            let _udp = UdpFabric::open(at, &shared).unwrap();
            assert!(matches!(raw(SHARED), Some(OpenError::InUse(_))));
        });
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn udp_sockets_predict_what_frames_of_several_processes_and_to_several_have() {
    over_wire(4500, |wire| {
        // Datagrams of one path go to two processes, and those of two processes may have one source port.
        let mut senders = vec![open(wire, 0, RawOptions::default())];
        let shared = UdpOptions { slots: 8, ..UdpOptions::default() };
        let mut members =
            [0, 1].map(|_| wire.within(1, || UdpFabric::open(v4(1).unwrap(), &shared)).unwrap());
        acquaint(&mut senders[0], &mut members[0]);
        for shares in [false, true] {
            if shares {
                senders.clear();
                senders.extend([SHARED; 2].map(|options| open(wire, 0, options)));
            }
            for sender in &mut senders {
                let path = sender.open_path(&av(v4(1).unwrap())).unwrap();
                let mut batch = TxBatch::with_capacity(1 << 20);
                for round in 0..4 {
                    for (to, count) in [(0, 400), (1, 1)] {
                        for n in 0..count {
                            put(&mut batch, path, &to_slot(slot(&members[to]), n, 64 + n as usize % 2 * 4));
                            sender.send(now(), &mut batch);
                        }
                        assert_eq!(
                            receive(&mut members[to], count as usize).len(),
                            count as usize,
                            "{round}"
                        );
                    }
                }
                sender.close_path(path);
            }
        }
        for member in &members {
            assert_eq!((counter(member, "icrc_idents_refused"), counter(member, "icrc_errors")), (0, 0));
        }
    });
}

#[test]
#[ignore = "needs root: Ethernet interfaces in network namespaces"]
fn a_super_frame_for_two_slots_is_handed_on() {
    over_wire(4500, |wire| {
        let mut members = [SHARED; 2].map(|options| open(wire, 1, options));
        let [a, b] = &mut members;
        let mut sender = open(wire, 0, RawOptions::default());
        acquaint(&mut sender, a);
        let path = sender.open_path(&av(v4(1).unwrap())).unwrap();
        let mut batch = TxBatch::with_capacity(1 << 16);
        (0..4).for_each(|n| put(&mut batch, path, &to_slot(slot(a), n, 256)));
        let train = batch.trains()[0];
        for n in [1, 3] {
            batch.bytes_mut(&train)[n * train.segment + 5] = slot(b);
        }
        sender.send(now(), &mut batch);
        assert_eq!((receive_all(a, 2).len(), receive_all(b, 2).len()), (2, 2));
        assert_eq!((counter(a, "strays_handed_on"), counter(b, "strays_got")), (2, 2));
    });
}
