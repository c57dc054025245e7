//! Frames as AF_PACKET sees them on the loopback interface: the Identification that the ICRC covers is
//! the one that stands in the frame. The check shares no code with the fabric: CRC by bits.

use std::net::IpAddr;

use hca_core::AddressVector;
use hca_fabric::{Fabric, TxBatch, UdpFabric, UdpOptions};
use socket2::{Domain, Protocol, Socket, Type};

use crate::suite::{at_free_address, av, counter, now, packet, put, receive};

/// CRC-32, bit by bit.
fn crc32(parts: &[&[u8]]) -> u32 {
    let mut c = !0_u32;
    for &byte in parts.iter().copied().flatten() {
        c ^= u32::from(byte);
        for _ in 0..8 {
            c = if c & 1 == 1 { c >> 1 ^ 0xedb8_8320 } else { c >> 1 };
        }
    }
    !c
}

/// Whether each packet of an IPv4 frame, cut as the kernel would cut it, carries a right ICRC.
fn packets_with_right_icrc(ip_packet: &[u8], segment: usize) -> usize {
    let payload = &ip_packet[28..];
    let ident = u16::from_be_bytes([ip_packet[4], ip_packet[5]]);
    let mut right = 0;
    for (k, p) in payload.chunks(segment).enumerate() {
        let mut head = ip_packet[..28].to_vec();
        head[1] = 0xff;
        head[2..4].copy_from_slice(&(28 + p.len() as u16).to_be_bytes());
        head[4..6].copy_from_slice(&ident.wrapping_add(k as u16).to_be_bytes());
        (head[8], head[10], head[11]) = (0xff, 0xff, 0xff);
        head[24..26].copy_from_slice(&(8 + p.len() as u16).to_be_bytes());
        (head[26], head[27]) = (0xff, 0xff);
        let (body, icrc) = p.split_last_chunk::<4>().unwrap();
        let mut body = body.to_vec();
        body[4] = 0xff;
        assert_eq!(crc32(&[&[0xff; 8], &head, &body]).to_le_bytes(), *icrc, "packet {k} of a train");
        right += 1;
    }
    right
}

#[test]
#[ignore = "needs root: frames as they are on the wire"]
fn the_identification_in_the_frame_is_the_one_that_the_icrc_covers() {
    const ETH_P_IP: i32 = 0x0800;
    let tap = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(ETH_P_IP.to_be() >> 16)))
        .expect("CAP_NET_RAW");
    tap.set_nonblocking(true).unwrap();
    tap.set_recv_buffer_size(4 << 20).unwrap();
    let open = |salt, max_paths| {
        let options = UdpOptions { max_paths, ..UdpOptions::default() };
        at_free_address(salt, |addr| UdpFabric::open(addr, &options))
    };
    for (salt, max_paths) in [(51, 1024), (52, 0)] {
        let (mut a, mut b) = (open(salt, max_paths), open(salt + 10, max_paths));
        let marked = AddressVector { traffic_class: 0x6a, hop_limit: 33, ..av(b.attr().local) };
        let path = a.open_path(&marked).unwrap();
        let mut batch = TxBatch::with_capacity(1 << 20);
        let mut sizes = vec![];
        for round in 0..20 {
            for i in 0..=round % 5 {
                put(&mut batch, path, &packet(i, 20));
                sizes.push(24);
            }
            // Another size ends the train, so that several leave by one call.
            put(&mut batch, path, &packet(round, 40));
            sizes.push(44);
            a.send(now(), &mut batch);
        }
        assert_eq!(receive(&mut b, sizes.len()).len(), sizes.len());
        let IpAddr::V4(from) = a.attr().local else { unreachable!("an IPv4 address was asked for") };
        let mut seen = 0;
        let mut frame = vec![0_u8; 70_000];
        let mut tap = &tap;
        while let Ok(n) = std::io::Read::read(&mut tap, &mut frame) {
            let ours = frame[12..16] == from.octets() && frame[22..24] == 4791_u16.to_be_bytes();
            if frame[9] == 17 && ours {
                assert_eq!((frame[1], frame[6], frame[8]), (0x6a, 0x40, 33));
                let first = if u32::from_be_bytes(frame[36..40].try_into().unwrap()) == 0 && n > 28 + 44 {
                    24
                } else {
                    n - 28
                };
                seen += packets_with_right_icrc(&frame[..n], first);
            }
        }
        assert_eq!(seen, sizes.len());
        assert_eq!(counter(&b, "icrc_ident_solved"), 0);
    }
}
