//! Portals matching: a message for the last of many entries with wildcards, against reading the bytes that are
//! compared.

use std::cell::RefCell;
use std::convert::Infallible;
use std::hint::black_box;

use hca_benches::matching::Target;
use hca_benches::ratio::{Ratio, summary};
use hca_perf::Failure;
use hca_perf::batches::median_ns;

use super::{Bench, Row, Unit, less};

#[rustfmt::skip]
pub(super) const ROWS: [Row; 3] = [
    Row { name: "1000 wildcards by bits", against: "reading their bytes", target: less(1.5, None), unit: Unit::Ns, measure: |b| wildcards(b, 1000, false) },
    Row { name: "1000 wildcards by source", against: "reading their bytes", target: less(1.5, None), unit: Unit::Ns, measure: |b| wildcards(b, 1000, true) },
    Row { name: "10000 wildcards by bits", against: "reading their bytes", target: None, unit: Unit::Ns, measure: |b| wildcards(b, 10_000, false) },
];

/// A batch, so that nobody pays for a look at the clock.
const BATCH: usize = 64;

/// The whole of a message, its event taken, in ns.
fn wildcards(b: &Bench, entries: u64, by_source: bool) -> Result<Option<Ratio>, Failure> {
    let target = RefCell::new(Target::wild(entries, by_source));
    let ours = || Ok(time(b, || target.borrow_mut().message()));
    let floor = || {
        let read = || {
            black_box(target.borrow().stream());
        };
        Ok(time(b, read))
    };
    Ok(summary(&b.interleave(ours, floor)?))
}

fn time(b: &Bench, mut once: impl FnMut()) -> f64 {
    let Ok(ns) = median_ns(b.time, BATCH, || {
        (0..BATCH).for_each(|_| once());
        Ok::<_, Infallible>(())
    });
    ns
}
