//! Properties of small values at their limits.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use hca_core::*;

const REMOTE: RemoteAddr = RemoteAddr { addr: 0, rkey: Rkey::new(0) };

#[test]
fn numbers_know_what_they_may_name() {
    for (raw, is_ordinary) in [(0, false), (1, false), (2, true), (0xff_fffe, true), (0xff_ffff, false)] {
        assert_eq!(Qpn::new(raw).is_ordinary(), is_ordinary, "queue pair {raw:#x}");
    }
    for (raw, is_unicast) in [(0, false), (1, true), (0xbfff, true), (0xc000, false), (0xffff, false)] {
        assert_eq!(Lid::new(raw).is_unicast(), is_unicast, "LID {raw:#x}");
    }
    for (raw, is_privileged) in [(0, false), (0x7fff_ffff, false), (0x8000_0000, true), (u32::MAX, true)] {
        assert_eq!(Qkey::new(raw).is_privileged(), is_privileged, "Q_Key {raw:#x}");
    }
}

#[test]
fn partition_keys_without_a_number_match_nothing() {
    let key = Pkey::new;
    assert!(key(0xffff).matches(key(0xffff)) && key(0xffff).matches(key(0x7fff)));
    assert!(!key(0x8000).matches(key(0x8000)), "there is no partition 0");
    assert!(!key(0xc001).matches(key(0x8001)));
}

#[test]
fn gids_know_which_addresses_they_hold() {
    let v4 = Ipv4Addr::new(10, 0, 0, 7);
    let group = Ipv4Addr::new(224, 0, 0, 1);
    let v6: Ipv6Addr = "fe80::1".parse().unwrap();
    let group6: Ipv6Addr = "ff12::1".parse().unwrap();
    let cases = [
        (IpAddr::from(v4), true, false),
        (group.into(), true, true),
        (v6.into(), false, false),
        (group6.into(), false, true),
    ];
    for (ip, is_ipv4, is_multicast) in cases {
        let gid = Gid::from(ip);
        assert_eq!((gid.is_ipv4(), gid.is_multicast(), gid.ip()), (is_ipv4, is_multicast, ip), "{ip}");
    }
    assert_eq!(Gid::from(v4), Gid::from(IpAddr::from(v4)));
    assert_eq!(Gid::from(v4).to_string(), "::ffff:10.0.0.7");
    assert_eq!(format!("{:?}", Gid::from(IpAddr::from(v6))), "Gid(fe80::1)");
}

#[test]
fn mtus_and_timeouts_have_the_encodings_of_the_specification() {
    let encodings = Mtu::ALL.map(|mtu| (mtu.encoding(), mtu.bytes()));
    assert_eq!(encodings, [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)]);
    for (link, mtu) in
        [(335, None), (336, Some(Mtu::B256)), (1500, Some(Mtu::B1024)), (4175, Some(Mtu::B2048))]
    {
        assert_eq!(Mtu::largest_for_link(link), mtu, "a link of {link}");
    }
    assert_eq!(Mtu::largest_for_link(4176), Some(Mtu::B4096));
    assert_eq!((AckTimeout::new(14).encoding(), AckTimeout::new(32 + 3).encoding()), (14, 3));
    assert_eq!((StaticRate::new(3).encoding(), StaticRate::new(64 + 5).encoding()), (3, 5));
    assert_eq!(MAX_MESSAGE_BYTES, 0x8000_0000);
}

#[test]
fn operations_know_what_they_need() {
    let swap = SendOp::CompareSwap { remote: REMOTE, compare: 0, swap: 0 };
    let add = SendOp::FetchAdd { remote: REMOTE, add: 0 };
    // Answered with data, atomic, takes a receive request.
    let cases = [
        (SendOp::Send, false, false, true),
        (SendOp::SendImm(1), false, false, true),
        (SendOp::SendInv(Rkey::new(1)), false, false, true),
        (SendOp::Write(REMOTE), false, false, false),
        (SendOp::WriteImm(REMOTE, 1), false, false, true),
        (SendOp::Read(REMOTE), true, false, false),
        (swap, true, true, false),
        (add, true, true, false),
    ];
    for (op, is_read_or_atomic, is_atomic, consumes_recv) in cases {
        let told = (op.is_read_or_atomic(), op.is_atomic(), op.consumes_recv());
        assert_eq!(told, (is_read_or_atomic, is_atomic, consumes_recv), "{op:?}");
        assert!(!op.wc_opcode().is_recv(), "{op:?}");
    }
    assert!(WcOpcode::Recv.is_recv() && WcOpcode::RecvRdmaWithImm.is_recv());
}

#[test]
fn instants_count_nanoseconds_and_stay_within_their_range() {
    let at = Instant::from_nanos(1_500);
    assert_eq!(at.as_nanos(), 1_500);
    assert_eq!(at + Duration::from_micros(1), Instant::from_nanos(2_500));
    assert_eq!(
        (at - Instant::from_nanos(500), Instant::ZERO - at),
        (Duration::from_micros(1), Duration::ZERO)
    );
    assert_eq!((at + Duration::MAX).as_nanos(), u64::MAX);
}

#[test]
fn a_frame_is_as_long_as_ip_carries_and_no_longer() {
    use hca_core::wire::frame::{Frame, FrameHead};
    let head = FrameHead::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc000).unwrap();
    let most = usize::from(u16::MAX) - 20 - 8;
    let mut frame = Vec::new();
    head.write_with_icrc(&vec![0; most], &mut frame);
    assert_eq!(frame.len(), 14 + usize::from(u16::MAX));
    let longer = std::panic::catch_unwind(|| head.write_with_icrc(&vec![0; most + 1], &mut Vec::new()));
    assert!(longer.is_err());
    // One that has no room for a CRC is refused by what it would need.
    let mut short = Vec::new();
    head.write_with_icrc(&[0; 3], &mut short);
    assert_eq!(
        Frame::parse(&short).unwrap_err().to_string(),
        "frame ends after 3 bytes, but its ICRC needs 16"
    );
}

#[test]
fn an_encoded_count_that_stands_for_no_credits_is_taken_for_the_most() {
    use hca_core::wire::Syndrome;
    assert_eq!([29, 30, 31, 255].map(Syndrome::credits), [24_576, 32_768, 32_768, 32_768]);
}

#[test]
fn memory_of_a_device_says_how_long_it_is() {
    let mut bytes = [0_u8; 8];
    let addr = core::ptr::NonNull::from(&mut bytes[0]);
    for len in [0, 1, 8] {
        // SAFETY: nobody uses it before `bytes` goes.
        #[allow(unsafe_code)]
        let memory = unsafe { DmaMemory::new(addr, len, Box::new(())) };
        assert_eq!((memory.len(), memory.is_empty(), memory.addr()), (len, len == 0, addr));
    }
}

#[test]
fn a_local_route_header_of_another_version_says_so() {
    let header: &hca_core::wire::Lrh = bytemuck::from_bytes(&[0x35, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!((header.vl(), header.version()), (3, 5));
}
