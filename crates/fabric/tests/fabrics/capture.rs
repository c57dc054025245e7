//! Captures: the test reads them back, and finds the frames that crossed the fabric, headers included.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::suite::{at_free_address, now, packet, pass};
use hca_core::wire::icrc::IpFlow;
use hca_fabric::{Capture, Fabric, LoopbackNet, Tap, UdpFabric, UdpOptions};

pub(crate) struct Frame {
    time_ns: u64,
    inbound: bool,
    pub(crate) bytes: Vec<u8>,
}

/// A reader for what the writer writes: little-endian, one interface.
pub(crate) fn read(file: &[u8]) -> Vec<Frame> {
    let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let (mut at, mut frames) = (0, Vec::new());
    assert_eq!(u32_at(0), 0x0a0d_0d0a);
    assert_eq!(u32_at(8), 0x1a2b_3c4d);
    while at < file.len() {
        let total = u32_at(at + 4) as usize;
        assert_eq!(total % 4, 0);
        assert_eq!(u32_at(at + total - 4) as usize, total, "both lengths agree");
        if u32_at(at) == 6 {
            let len = u32_at(at + 20) as usize;
            assert_eq!(u32_at(at + 24) as usize, len);
            let options = at + 28 + len.next_multiple_of(4);
            assert_eq!(u32_at(options), 4 << 16 | 2);
            frames.push(Frame {
                time_ns: u64::from(u32_at(at + 12)) << 32 | u64::from(u32_at(at + 16)),
                inbound: u32_at(options + 4) & 3 == 1,
                bytes: file[at + 28..at + 28 + len].to_vec(),
            });
        }
        at += total;
    }
    assert_eq!(at, file.len());
    frames
}

/// One's complement sum over 16-bit words: 0xffff over a header with a right checksum.
fn checksum(bytes: &[u8]) -> u32 {
    let sum = bytes.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0))).sum::<u32>();
    (sum & 0xffff) + (sum >> 16)
}

/// Checks headers and ICRC of an IPv4 frame from its bytes alone and returns the transport bytes.
fn check_v4(frame: &[u8]) -> &[u8] {
    let ip = &frame[14..34];
    assert_eq!((frame[12], frame[13], ip[0], ip[6]), (8, 0, 0x45, 0x40));
    assert_eq!(checksum(ip), 0xffff);
    assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), frame.len() - 14);
    let addr = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
    let port = u16::from_be_bytes([frame[34], frame[35]]);
    let (body, icrc) = frame[42..].split_last_chunk::<4>().unwrap();
    let ident = u16::from_be_bytes([ip[4], ip[5]]);
    let flow = IpFlow::new(addr(12), addr(16), port).unwrap();
    assert_eq!(flow.icrc(ident, body), u32::from_le_bytes(*icrc));
    body
}

pub(crate) fn capture_of(a: &mut dyn Fabric, b: &mut dyn Fabric, packets: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
    let taps = [(); 2].map(|()| {
        let capture = Capture::to_writer(Vec::new(), "test").unwrap();
        Arc::new(Mutex::new(Some(capture.with_wall_at_zero(Duration::from_secs(1_700_000_000)))))
    });
    /// Lets the test take the capture out again.
    struct Lent(Arc<Mutex<Option<Capture<Vec<u8>>>>>);
    impl Tap for Lent {
        fn frame(&mut self, now: hca_core::Instant, frame: &hca_fabric::TapFrame<'_>) {
            self.0.lock().unwrap().as_mut().unwrap().frame(now, frame);
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    a.set_tap(Some(Box::new(Lent(taps[0].clone()))));
    b.set_tap(Some(Box::new(Lent(taps[1].clone()))));
    assert_eq!(pass(a, b, packets), packets);
    a.set_tap(None);
    b.set_tap(None);
    let [tx, rx] = taps.map(|t| t.lock().unwrap().take().unwrap().into_inner().unwrap());
    (tx, rx)
}

fn mixed() -> Vec<Vec<u8>> {
    [12, 20, 28, 28, 28, 16, 1036, 1036, 12].iter().enumerate().map(|(i, &n)| packet(i as u32, n)).collect()
}

#[test]
fn both_ends_capture_the_same_frames_with_their_true_header() {
    let open = |salt| at_free_address(salt, |addr| UdpFabric::open(addr, &UdpOptions::default()));
    let (tx, rx) = capture_of(&mut open(21), &mut open(22), &mixed());
    let (tx, rx) = (read(&tx), read(&rx));
    assert_eq!((tx.len(), rx.len()), (9, 9));
    for ((t, r), p) in tx.iter().zip(&rx).zip(mixed()) {
        assert!(!t.inbound && r.inbound);
        assert_eq!(t.time_ns, 1_700_000_000_000_000_000 + now().as_nanos());
        assert_eq!(check_v4(&t.bytes), p);
        assert_eq!(t.bytes, r.bytes, "the receiver proves the Identification that the sender counted");
    }
}

#[test]
fn ipv6_frames_have_a_right_udp_checksum() {
    let net = LoopbackNet::new();
    let (mut a, mut b) = (net.attach("fd00::1".parse().unwrap()), net.attach("fd00::2".parse().unwrap()));
    let (tx, _) = capture_of(&mut a, &mut b, &mixed());
    for f in read(&tx) {
        let (ip, udp) = (&f.bytes[14..54], &f.bytes[54..]);
        assert_eq!((f.bytes[12], f.bytes[13], ip[0] >> 4, ip[6]), (0x86, 0xdd, 6, 17));
        let mut pseudo = ip[8..40].to_vec();
        pseudo.extend([&(udp.len() as u32).to_be_bytes()[..], &[0, 0, 0, 17], udp].concat());
        assert_eq!(checksum(&pseudo), 0xffff);
    }
}

#[test]
fn a_limit_is_kept_and_what_is_left_out_counted() {
    let mut capture = Capture::to_writer(Vec::new(), "test").unwrap().with_limit(1000);
    let payload = packet(0, 100);
    let frame = hca_fabric::TapFrame {
        direction: hca_fabric::Direction::Rx,
        version: hca_fabric::RoceVersion::V2,
        header: hca_fabric::PacketHeader {
            src: "10.0.0.1".parse().unwrap(),
            dst: "10.0.0.2".parse().unwrap(),
            src_port: 50_000,
            traffic_class: 0,
            hop_limit: 0,
        },
        ident: 5,
        payload: &payload,
    };
    for _ in 0..20 {
        capture.frame(now(), &frame);
    }
    let left_out = capture.left_out();
    let file = capture.into_inner().unwrap();
    assert!(file.len() <= 1000 && file.len() > 700);
    assert_eq!(read(&file).len() as u64, 20 - left_out);
}

#[test]
fn tshark_decodes_every_frame() {
    use hca_core::wire::{Bth, BthFlags, Opcode};
    use hca_core::{Pkey, Psn, Qpn};
    let found = std::process::Command::new("tshark").arg("--version").output();
    if found.is_err() {
        return;
    }
    let send_only = Opcode::new(4);
    let packets: Vec<_> = (0..5_u32)
        .map(|i| {
            let bth = Bth::new(send_only, BthFlags::ACK_REQ, 0, Pkey::DEFAULT, Qpn::new(17), Psn::new(i));
            let mut p = packet(i, 12 + 64);
            p[..12].copy_from_slice(bth_bytes(&bth));
            p
        })
        .collect();
    let net = LoopbackNet::new();
    let dir = std::env::temp_dir().join(format!("hca-fabric-capture-{}.pcapng", std::process::id()));
    let (mut a, mut b) = (net.attach("10.0.0.1".parse().unwrap()), net.attach("10.0.0.2".parse().unwrap()));
    a.set_tap(Some(Box::new(Capture::create(&dir).unwrap())));
    pass(&mut a, &mut b, &packets);
    drop(a);
    let shown = std::process::Command::new("tshark")
        .args(["--disable-protocol", "rpcordma", "-o", "ip.check_checksum:TRUE", "-T", "fields"])
        .args(["-e", "infiniband.bth.psn", "-e", "infiniband.bth.destqp", "-e", "_ws.malformed"])
        .args(["-e", "ip.checksum.status", "-r"])
        .arg(&dir)
        .output()
        .unwrap();
    std::fs::remove_file(&dir).unwrap();
    let lines: Vec<_> = std::str::from_utf8(&shown.stdout).unwrap().lines().collect();
    assert_eq!(lines, (0..5).map(|i| format!("{i}\t0x000011\t\t1")).collect::<Vec<_>>());
}

/// The bytes of a header whose layout is the wire's.
fn bth_bytes(bth: &hca_core::wire::Bth) -> &[u8] {
    bytemuck::bytes_of(bth)
}
