//! The layers: VIs, and Active Messages over verbs and over VIs, beside the verbs of the same device.

use std::cell::RefCell;
use std::convert::Infallible;
use std::hint::black_box;

use hca::DeviceUrl;
use hca::am::Way;
use hca_benches::duo::{Duo, Kind};
use hca_benches::ratio::{Ratio, summary};
use hca_perf::Failure;
use hca_perf::Setup;
use hca_perf::batches::per_second;
use hca_perf::layers::am::{self, SEGMENT};
use hca_perf::layers::global::{self, Access};
use hca_perf::layers::via;

use super::{Bench, Fabric, Row, Unit, less, more};

/// Bytes of a medium message.
const MEDIUM: usize = 4096;
/// Bytes of the memory in which single words are accessed.
const PAGE: usize = 4096;

#[rustfmt::skip]
pub(super) const ROWS: [Row; 20] = [
    Row { name: "via send 8 B", against: "send 8 B", target: less(1.15, Some(1.05)), unit: Unit::Ns, measure: |b| vis(b, Fabric::Shm) },
    Row { name: "am short over verbs, half round trip", against: "send 8 B", target: less(1.2, Some(1.1)), unit: Unit::Ns, measure: |b| short(b, Fabric::Shm, Way::Verbs) },
    Row { name: "am short over vis, half round trip", against: "send 8 B", target: None, unit: Unit::Ns, measure: |b| short(b, Fabric::Shm, Way::Via) },
    Row { name: "am short over vis", against: "am short over verbs", target: None, unit: Unit::Ns, measure: |b| mapping(b, Fabric::Shm) },
    Row { name: "am short to a peer that computes, offloaded", against: "not offloaded", target: None, unit: Unit::Ns, measure: |b| computing(b, Fabric::Shm) },
    Row { name: "am medium 4 KiB flood over verbs", against: "memcpy", target: more(0.5, Some(0.7)), unit: Unit::Bytes, measure: |b| medium(b, Way::Verbs) },
    Row { name: "am medium 4 KiB flood over vis", against: "memcpy", target: None, unit: Unit::Bytes, measure: |b| medium(b, Way::Via) },
    Row { name: "am bulk 1 MiB over verbs", against: "write 1 MiB", target: more(0.9, Some(0.97)), unit: Unit::Bytes, measure: |b| bulk(b, Fabric::Shm, Way::Verbs) },
    Row { name: "am bulk 1 MiB over vis", against: "write 1 MiB", target: None, unit: Unit::Bytes, measure: |b| bulk(b, Fabric::Shm, Way::Via) },
    Row { name: "global put 1 MiB over verbs", against: "write 1 MiB", target: more(0.9, Some(0.97)), unit: Unit::Bytes, measure: |b| put(b, Fabric::Shm) },
    Row { name: "global put of a part 1 MiB over verbs", against: "write 1 MiB", target: more(0.9, Some(0.97)), unit: Unit::Bytes, measure: |b| put_part(b, Fabric::Shm) },
    Row { name: "global read 8 B over verbs", against: "read 8 B", target: less(1.2, Some(1.0)), unit: Unit::Ns, measure: |b| access(b, Access::Read) },
    Row { name: "global write 8 B over verbs", against: "write 8 B, completed", target: less(1.2, Some(1.0)), unit: Unit::Ns, measure: |b| access(b, Access::Write) },
    Row { name: "udp via send 8 B", against: "send 8 B", target: less(1.05, Some(1.02)), unit: Unit::Ns, measure: |b| vis(b, Fabric::Udp) },
    Row { name: "udp am short over verbs, half round trip", against: "send 8 B", target: less(1.2, Some(1.1)), unit: Unit::Ns, measure: |b| short(b, Fabric::Udp, Way::Verbs) },
    Row { name: "udp am short over vis, half round trip", against: "send 8 B", target: None, unit: Unit::Ns, measure: |b| short(b, Fabric::Udp, Way::Via) },
    Row { name: "udp am short over vis", against: "am short over verbs", target: None, unit: Unit::Ns, measure: |b| mapping(b, Fabric::Udp) },
    Row { name: "udp am bulk 1 MiB over verbs", against: "write 1 MiB", target: more(0.9, Some(0.97)), unit: Unit::Bytes, measure: |b| bulk(b, Fabric::Udp, Way::Verbs) },
    Row { name: "udp global put 1 MiB over verbs", against: "write 1 MiB", target: more(0.9, Some(0.97)), unit: Unit::Bytes, measure: |b| put(b, Fabric::Udp) },
    Row { name: "udp global put of a part 1 MiB over verbs", against: "write 1 MiB", target: more(0.9, Some(0.97)), unit: Unit::Bytes, measure: |b| put_part(b, Fabric::Udp) },
];

/// The device of a row: the one that was named, or the fabric's.
fn device(b: &Bench, fabric: Fabric) -> DeviceUrl {
    b.named.clone().unwrap_or_else(|| fabric.device())
}
fn setup(b: &Bench, fabric: Fabric) -> Setup {
    Setup { cpus: Some(b.cpus), ..Setup::new(device(b, fabric)) }
}

/// Half of a round trip of two VIs with Reliable Delivery against that of SENDs, in ns.
fn vis(b: &Bench, fabric: Fabric) -> Result<Option<Ratio>, Failure> {
    let mut two = via::start(&setup(b, fabric), via::Spec::default(), b.time)?;
    let mut duo = Duo::start(&device(b, fabric), b.cpus, Kind::Send, 8)?;
    Ok(summary(&b.interleave(|| two.latency_ns(), || duo.latency_ns(b.time))?))
}

/// Half of a round trip against that of SENDs, in ns.
fn short(b: &Bench, fabric: Fabric, way: Way) -> Result<Option<Ratio>, Failure> {
    let mut two = am::start(&setup(b, fabric), way, b.time)?;
    let mut duo = Duo::start(&device(b, fabric), b.cpus, Kind::Send, 8)?;
    Ok(summary(&b.interleave(|| two.latency_ns(), || duo.latency_ns(b.time))?))
}

/// The price of VIs below Active Messages, in ns.
fn mapping(b: &Bench, fabric: Fabric) -> Result<Option<Ratio>, Failure> {
    let vis = RefCell::new(am::start(&setup(b, fabric), Way::Via, b.time)?);
    let mut verbs = am::start(&setup(b, fabric), Way::Verbs, b.time)?;
    Ok(summary(&b.interleave(|| vis.borrow_mut().latency_ns(), || verbs.latency_ns())?))
}

/// Half of a round trip to a peer that computes, whose device runs handlers, against that of a peer whose device does
/// not, in ns.
fn computing(b: &Bench, fabric: Fabric) -> Result<Option<Ratio>, Failure> {
    let start = |offloaded| am::start_computing(&setup(b, fabric), Way::Verbs, offloaded, b.time);
    let (mut with, mut without) = (start(true)?, start(false)?);
    Ok(summary(&b.interleave(|| with.latency_ns(), || without.latency_ns())?))
}

/// Medium messages against copies of as many bytes, from one buffer into 16, in bytes a second.
fn medium(b: &Bench, way: Way) -> Result<Option<Ratio>, Failure> {
    let mut two = am::start(&setup(b, Fabric::Shm), way, b.time)?;
    let (source, mut targets) = (vec![7_u8; MEDIUM], vec![0_u8; 16 * MEDIUM]);
    let mut next = 0;
    let mut floor = || {
        let Ok(rate) = per_second(b.time, MEDIUM, || {
            black_box(&mut targets)[next * MEDIUM..][..MEDIUM].copy_from_slice(black_box(&source));
            next = (next + 1) % 16;
            Ok::<_, Infallible>(())
        });
        Ok(rate)
    };
    Ok(summary(&b.interleave(|| two.medium_bytes_per_s(MEDIUM), &mut floor)?))
}

/// Bulk messages of 1 MiB against WRITEs of as much, in bytes a second.
fn bulk(b: &Bench, fabric: Fabric, way: Way) -> Result<Option<Ratio>, Failure> {
    let mut two = am::start(&setup(b, fabric), way, b.time)?;
    let mut duo = Duo::start(&device(b, fabric), b.cpus, Kind::Blocks { span: SEGMENT }, SEGMENT)?;
    let ours = || two.bulk_bytes_per_s(SEGMENT);
    Ok(summary(&b.interleave(ours, || duo.write_bytes_per_s(b.time))?))
}

/// A read or a write of 8 bytes of global memory against a READ or a WRITE from post to completion, in ns.
fn access(b: &Bench, access: Access) -> Result<Option<Ratio>, Failure> {
    let mut two = global::start(&setup(b, Fabric::Shm), Way::Verbs, b.time)?;
    let mut duo = Duo::start(&device(b, Fabric::Shm), b.cpus, Kind::Blocks { span: PAGE }, 8)?;
    let floor = || if access == Access::Read { duo.read_ns(b.time) } else { duo.write_ns(b.time) };
    Ok(summary(&b.interleave(|| two.access_ns(access), floor)?))
}

/// Puts of 1 MiB into global memory, from memory of the program, against WRITEs of as much, in bytes a second.
fn put(b: &Bench, fabric: Fabric) -> Result<Option<Ratio>, Failure> {
    let mut two = global::start(&setup(b, fabric), Way::Verbs, b.time)?;
    let mut duo = Duo::start(&device(b, fabric), b.cpus, Kind::Blocks { span: SEGMENT }, SEGMENT)?;
    let ours = || two.put_bytes_per_s(SEGMENT);
    Ok(summary(&b.interleave(ours, || duo.write_bytes_per_s(b.time))?))
}

/// The same from this process's own part of global memory.
fn put_part(b: &Bench, fabric: Fabric) -> Result<Option<Ratio>, Failure> {
    let mut two = global::start(&setup(b, fabric), Way::Verbs, b.time)?;
    let mut duo = Duo::start(&device(b, fabric), b.cpus, Kind::Blocks { span: SEGMENT }, SEGMENT)?;
    let ours = || two.put_part_bytes_per_s(SEGMENT);
    Ok(summary(&b.interleave(ours, || duo.write_bytes_per_s(b.time))?))
}
