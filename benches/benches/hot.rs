//! Wall time of what happens for each packet: the header's parse and the ICRC.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hca_core::wire::{ICRC_BYTES, Packet};
use hca_fabric::MeasuredIcrc;

/// A SEND ONLY of `payload` bytes: BTH, payload.
fn packet(payload: usize) -> Vec<u8> {
    let mut bytes = vec![0x04, 0x40, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0, 0, 7];
    bytes.resize(12 + payload, 0x5a);
    bytes
}

fn parse(c: &mut Criterion) {
    let bytes = packet(64);
    c.bench_function("header parse", |b| {
        b.iter(|| Packet::parse(black_box(&bytes)).expect("it is well formed"));
    });
    // The floor: the base header's bytes, copied out.
    c.bench_function("floor: header copy", |b| {
        b.iter(|| *black_box(&bytes).first_chunk::<12>().expect("a header"));
    });
}

fn icrc(c: &mut Criterion) {
    let ip = |n| IpAddr::V4(Ipv4Addr::new(127, 0, 0, n));
    let mut flow = MeasuredIcrc::new(ip(2), ip(3), 0xc000).expect("both are IPv4");
    let mut group = c.benchmark_group("icrc");
    for payload in [64, 1024, 4096] {
        let mut bytes = packet(payload + ICRC_BYTES);
        let segment = bytes.len();
        group.throughput(Throughput::Bytes(payload as u64));
        group.bench_function(format!("{payload} B, put on"), |b| {
            b.iter(|| flow.seal(black_box(7), segment, black_box(&mut bytes)));
        });
        group.bench_function(format!("{payload} B, checked"), |b| {
            b.iter(|| flow.is_right(black_box(7), black_box(&bytes)));
        });
        // The floor: a CRC over as many bytes, without the pseudo header, by the library that most use.
        group.bench_function(format!("{payload} B, crc32fast alone"), |b| {
            b.iter(|| crc32fast::hash(black_box(&bytes)));
        });
    }
    group.finish();
}

criterion_group! {
    name = hot;
    config = Criterion::default().warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = parse, icrc
}
criterion_main!(hot);
