//! The layers: VIs, and Active Messages over verbs and over VIs, beside the verbs of the same device.

use std::cell::RefCell;
use std::convert::Infallible;
use std::hint::black_box;

use hca::am::Way;
use hca_benches::duo::{Duo, Kind};
use hca_benches::ratio::{Ratio, summary};
use hca_perf::Failure;
use hca_perf::Setup;
use hca_perf::batches::per_second;
use hca_perf::layers::am::{self, SEGMENT};
use hca_perf::layers::via;

use super::{Bench, Row, Unit, less, more};

/// Bytes of a medium message.
const MEDIUM: usize = 4096;

#[rustfmt::skip]
pub(super) const ROWS: [Row; 8] = [
    Row { name: "via send 8 B", against: "send 8 B", target: less(1.15, Some(1.05)), unit: Unit::Ns, measure: vis },
    Row { name: "am short over verbs, half round trip", against: "send 8 B", target: less(1.2, Some(1.1)), unit: Unit::Ns, measure: |b| short(b, Way::Verbs) },
    Row { name: "am short over vis, half round trip", against: "send 8 B", target: None, unit: Unit::Ns, measure: |b| short(b, Way::Via) },
    Row { name: "am short over vis", against: "am short over verbs", target: None, unit: Unit::Ns, measure: mapping },
    Row { name: "am medium 4 KiB flood over verbs", against: "memcpy", target: more(0.5, Some(0.7)), unit: Unit::Bytes, measure: |b| medium(b, Way::Verbs) },
    Row { name: "am medium 4 KiB flood over vis", against: "memcpy", target: None, unit: Unit::Bytes, measure: |b| medium(b, Way::Via) },
    Row { name: "am bulk 1 MiB over verbs", against: "write 1 MiB", target: more(0.9, Some(0.97)), unit: Unit::Bytes, measure: |b| bulk(b, Way::Verbs) },
    Row { name: "am bulk 1 MiB over vis", against: "write 1 MiB", target: None, unit: Unit::Bytes, measure: |b| bulk(b, Way::Via) },
];

fn setup(b: &Bench) -> Setup {
    Setup { cpus: Some(b.cpus), ..Setup::new(b.device.clone()) }
}

/// Half of a round trip of two VIs with Reliable Delivery against that of SENDs, in ns.
fn vis(b: &Bench) -> Result<Option<Ratio>, Failure> {
    let mut two = via::start(&setup(b), via::Spec::default(), b.time)?;
    let mut duo = Duo::start(&b.device, b.cpus, Kind::Send, 8)?;
    Ok(summary(&b.interleave(|| two.latency_ns(), || duo.latency_ns(b.time))?))
}

/// Half of a round trip against that of SENDs, in ns.
fn short(b: &Bench, way: Way) -> Result<Option<Ratio>, Failure> {
    let mut two = am::start(&setup(b), way, b.time)?;
    let mut duo = Duo::start(&b.device, b.cpus, Kind::Send, 8)?;
    Ok(summary(&b.interleave(|| two.latency_ns(), || duo.latency_ns(b.time))?))
}

/// The price of VIs below Active Messages, in ns.
fn mapping(b: &Bench) -> Result<Option<Ratio>, Failure> {
    let vis = RefCell::new(am::start(&setup(b), Way::Via, b.time)?);
    let mut verbs = am::start(&setup(b), Way::Verbs, b.time)?;
    Ok(summary(&b.interleave(|| vis.borrow_mut().latency_ns(), || verbs.latency_ns())?))
}

/// Medium messages against copies of as many bytes, from one buffer into 16, in bytes a second.
fn medium(b: &Bench, way: Way) -> Result<Option<Ratio>, Failure> {
    let mut two = am::start(&setup(b), way, b.time)?;
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
fn bulk(b: &Bench, way: Way) -> Result<Option<Ratio>, Failure> {
    let mut two = am::start(&setup(b), way, b.time)?;
    let mut duo = Duo::start(&b.device, b.cpus, Kind::Blocks { span: SEGMENT }, SEGMENT)?;
    let ours = || two.bulk_bytes_per_s(SEGMENT);
    Ok(summary(&b.interleave(ours, || duo.write_bytes_per_s(b.time))?))
}
