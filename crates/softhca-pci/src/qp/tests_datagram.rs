//! Datagrams: the sender's address in a completion, and the limits of length.

use std::net::IpAddr;

use hca_core::{Gid, Lid};
use hca_prm::command::vport::{RoceAddr, SetRoceAddressIn};
use hca_prm::register::Pmtu;
use hca_prm::{Cqe64, CqeOpcode, CqeSyndrome, DataSeg, Opcode, ServiceType, UdAdrsVector, WqeOpcode};

use crate::bed::{Client, PAGE, Pair, QpShape, Wqe};
use crate::command::Output;
use crate::function::PortKind;
use crate::port::link::Wire;
use crate::qp::tests::{counter, opcode, syndrome};

const QKEY: u32 = 0x1111;

/// Makes a function's port one of Ethernet, with these addresses at these places.
pub(crate) fn ethernet(client: &mut Client, addresses: &[(u32, Gid)]) {
    let f = &mut client.function;
    f.options.port = PortKind::Roce;
    f.objects.wire = Wire::of(&f.options, &f.hca, &f.link);
    for (index, gid) in addresses {
        let command = SetRoceAddressIn::new()
            .with(SetRoceAddressIn::ROCE_ADDRESS_INDEX, *index)
            .with(SetRoceAddressIn::ROCE_ADDRESS, RoceAddr::new().with(RoceAddr::SOURCE_L3_ADDRESS, gid.0));
        f.port_command(Opcode::SET_ROCE_ADDRESS, command.as_bytes(), &mut Output::new(16)).unwrap();
    }
}

fn datagrams() -> Pair {
    Pair::new(QpShape { st: ServiceType::Ud, ..QpShape::default() })
}

/// How a datagram is addressed.
fn address(p: &Pair, to: Gid) -> UdAdrsVector {
    let mut address = UdAdrsVector::new()
        .with(UdAdrsVector::Q_KEY, QKEY)
        .with(UdAdrsVector::EXT, true)
        .with(UdAdrsVector::DESTINATION_QP_DCT, p.b.qp.qpn)
        .with(UdAdrsVector::RGID_RIP, to.0);
    address.set_rmac([2, 0, 0, 0, 0, 1]);
    address
}

#[test]
fn a_datagram_between_ethernet_ports_tells_its_form_and_the_addresses_that_it_was_sent_with() {
    let v6 = |last| Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    let v4 = |last| Gid::from_ip(IpAddr::from([10, 9, 0, last]));
    let mut p = datagrams();
    ethernet(&mut p.a.client, &[(0, v6(1)), (1, v4(1)), (3, v6(3)), (4, v4(4))]);
    ethernet(&mut p.b.client, &[(0, v6(5)), (1, v4(5)), (2, v6(6)), (3, v4(6))]);
    let all = [(0, v6(1), v6(5)), (3, v6(3), v6(6)), (3, v6(3), v6(5)), (1, v4(1), v4(5)), (4, v4(4), v4(6))];
    for (i, (index, from, to)) in all.into_iter().cycle().take(15).enumerate() {
        let (class, hops) = (4 * i as u32, 1 + 7 * i as u32);
        let to_b = address(&p, to)
            .with(UdAdrsVector::SRC_ADDR_INDEX, index)
            .with(UdAdrsVector::TCLASS, class)
            .with(UdAdrsVector::HOP_LIMIT, hops);
        p.b.recv(0, 128);
        p.a.post(&Wqe::new(WqeOpcode::Send).address(&to_b).inline(b"text"));
        assert_eq!(opcode(&p.sent()), CqeOpcode::Req);
        let cqe = p.received();
        assert_eq!((cqe.get(Cqe64::G), cqe.get(Cqe64::RQPN)), (1, p.a.qp.qpn));
        let header = p.b.bytes(0, 40);
        // The adapter marks what it sends as able to be marked by congestion.
        let (class, hops) = (class as u8 | 2, hops as u8);
        if matches!(from.ip(), IpAddr::V4(_)) {
            // By which a receiver looks for the addresses: bit 3 stands for UDP, the lower ones for IPv4.
            assert_eq!(cqe.get(Cqe64::SL), 0b1010);
            assert_eq!((&header[32..36], &header[36..]), (&from.0[12..], &to.0[12..]));
            assert_eq!((header[20], header[21], header[28]), (0x45, class, hops));
        } else {
            assert_eq!(cqe.get(Cqe64::SL), 0b1001);
            assert_eq!((&header[8..24], &header[24..]), (&from.0[..], &to.0[..]));
            assert_eq!((header[0], header[1], header[7]), (0x60 | class >> 4, class << 4, hops));
        }
    }
    // A place of the table where there is no address.
    p.b.recv(0, 128);
    let none = address(&p, v6(5)).with(UdAdrsVector::SRC_ADDR_INDEX, 9);
    p.a.post(&Wqe::new(WqeOpcode::Send).address(&none).inline(b"text"));
    p.received();
    assert_eq!(p.b.bytes(8, 16), v4(1).0, "the lowest address of the function");
}

#[test]
fn between_infiniband_ports_what_is_about_a_header_means_nothing_in_a_datagram_without_one() {
    let mut p = datagrams();
    let lid = Lid::new(2);
    assert!(p.server.directory.lock().add_lid(lid, 1));
    // What stood in that place of the send queue before: UCX clears the bit and writes no more.
    let mut stale = address(&p, Gid([0x5a; 16]))
        .with(UdAdrsVector::RLID_UDP_SPORT, u32::from(lid.raw()))
        .with(UdAdrsVector::SRC_ADDR_INDEX, 77)
        .with(UdAdrsVector::FLOW_LABEL, 0x5_5555)
        .with(UdAdrsVector::TCLASS, 0xff)
        .with(UdAdrsVector::HOP_LIMIT, 1);
    stale.set_rmac([0x5a; 6]);
    p.b.recv(0, 128);
    p.a.post(&Wqe::new(WqeOpcode::Send).address(&stale).inline(b"text"));
    assert_eq!(opcode(&p.sent()), CqeOpcode::Req);
    let cqe = p.received();
    assert_eq!((cqe.get(Cqe64::G), cqe.get(Cqe64::RQPN), cqe.get(Cqe64::BYTE_CNT)), (0, p.a.qp.qpn, 44));
    assert_eq!(p.b.bytes(20, 2), [0x45, 2], "no class: not marked by congestion");
}

#[test]
fn what_many_different_senders_of_one_function_ask_for_is_told_of_each_datagram() {
    let mut p = datagrams();
    let gid = |last| Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    ethernet(&mut p.b.client, &[(0, gid(100)), (1, gid(101))]);
    ethernet(&mut p.a.client, &[(0, gid(1)), (1, gid(2))]);
    // More than a hop limit can number.
    for i in 0..600_u32 {
        let (index, hops, to) = (i & 1, i / 4 % 256, gid(100 + (i >> 1 & 1) as u8));
        p.b.recv(0, 128);
        let to_b =
            address(&p, to).with(UdAdrsVector::SRC_ADDR_INDEX, index).with(UdAdrsVector::HOP_LIMIT, hops);
        p.a.post(&Wqe::new(WqeOpcode::Send).address(&to_b).inline(b"text"));
        p.sent();
        p.received();
        let header = p.b.bytes(0, 40);
        assert_eq!((&header[8..24], &header[24..]), (&gid(1 + index as u8).0[..], &to.0[..]), "{i}");
        assert_eq!(u32::from(header[7]), if hops == 0 { 64 } else { hops }, "{i}");
    }
}

#[test]
fn a_datagram_longer_than_the_ports_mtu_is_a_local_length_error_and_sends_nothing() {
    // Frames of 1,500 bytes of payload have packets of 1,024; where no frame is too long, the adapter's MTU holds.
    for (frame, longest) in [(Some(1522), 1024), (Some(1142), 1024), (Some(1141), 512), (None, 4096)] {
        let mut p = datagrams();
        if let Some(frame) = frame {
            ethernet(&mut p.a.client, &[]);
            let asked = Pmtu::new().with(Pmtu::LOCAL_PORT, 1).with(Pmtu::ADMIN_MTU, frame);
            p.a.client.function.set_packet_sizes(asked.as_bytes()).unwrap();
        }
        let gid = p.server.gid();
        for (len, fits) in [(longest, true), (longest + 1, false), (8192, false)] {
            p.b.recv(0, 16384);
            let to_b = address(&p, gid).with(UdAdrsVector::GRH, true);
            let at = p.a.post(&Wqe::new(WqeOpcode::Send).address(&to_b).seg(p.a.mr.seg(0, len)));
            let cqe = p.sent();
            assert_eq!(counter(&cqe), u32::from(at));
            if fits {
                assert_eq!(opcode(&cqe), CqeOpcode::Req, "{len}");
                assert_eq!(p.received().get(Cqe64::BYTE_CNT), 40 + len);
                continue;
            }
            assert_eq!(syndrome(&cqe), CqeSyndrome::LocalLengthErr, "{len}");
            let a = p.a.qp.qpn;
            p.a.client.change(Opcode::SQERR2RTS_QP, a, 0, hca_prm::Qpc::new()).unwrap();
            p.look();
            assert!(p.b.received().is_none());
        }
    }
}

#[test]
fn who_sends_to_new_addresses_does_not_wait_for_one_who_sends_all_the_time() {
    let mut p = datagrams();
    let cq = p.a.client.cq(6);
    let mut other = p.a.client.qp(QpShape { st: ServiceType::Ud, ..QpShape::default() }, &cq, &cq);
    p.a.client.connect(&other, p.server.gid(), 1);
    // So many that there is no handle left.
    let own = p.server.gid();
    let to = |n: u16| {
        let mut gid = own;
        gid.0[14..].copy_from_slice(&(n + 2).to_be_bytes());
        Wqe::new(WqeOpcode::Send).datagram(gid, 0, 0x77, QKEY).inline(&[1; 8])
    };
    for n in 0..1024 {
        p.a.post(&to(n));
        p.sent();
    }
    p.a.client.post_send(&mut other, &to(2000));
    let mut cq = cq;
    let sent = (0..50).find(|_| {
        p.a.post(&to(5));
        p.look();
        while p.a.sent().is_some() {}
        p.a.client.poll(&mut cq).is_some()
    });
    assert!(sent.is_some());
}

#[test]
fn a_place_behind_the_header_may_begin_where_a_key_of_scattered_pages_ends() {
    let mut p = datagrams();
    let (room, start) = (p.b.client.alloc(2 * PAGE, PAGE), 0x77_0000_0000);
    let key = p.b.client.try_mr(&[room + PAGE, room], start, 2 * PAGE, |context| context).unwrap();
    let places = [p.b.mr.seg(0, 128), DataSeg::pointer(8, key, start + 2 * PAGE)];
    p.b.client.post_recv(&mut p.b.qp, &places);
    let to_b = address(&p, p.server.gid()).with(UdAdrsVector::GRH, true);
    p.a.post(&Wqe::new(WqeOpcode::Send).address(&to_b).inline(b"text"));
    assert_eq!(opcode(&p.received()), CqeOpcode::RespSend);
    assert_eq!(p.b.bytes(40, 4), b"text");
}
