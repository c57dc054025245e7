//! Ratios from interleaved pairs, each within one placement of the CPUs.

use core::fmt;

use hca_perf::Failure;
use hca_perf::batches::median;
use hca_perf::probe::{Placement, placement};

/// Pairs of one placement that a ratio is the median of.
pub const WANTED_PAIRS: usize = 7;
/// Pairs after which a case is given up.
const MAX_PAIRS: usize = 24;

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// The ratio is to stay below its target.
    Less,
    /// The ratio is to stay above its target.
    More,
}

/// What a ratio is held against.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Which way is better.
    pub better: Better,
    /// What has to be reached.
    pub must: f64,
    /// What is aimed at.
    pub aim: Option<f64>,
}

impl Target {
    /// Whether a ratio reaches what has to be reached.
    pub fn is_met(&self, ratio: f64) -> bool {
        match self.better {
            Better::Less => ratio <= self.must,
            Better::More => ratio >= self.must,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.better == Better::Less { "<=" } else { ">=" };
        write!(f, "{sign}{}", plain(self.must))
    }
}

/// Whether a target was met, by enough pairs; `None` where there is none.
pub fn met(target: Option<Target>, measured: Option<&Ratio>) -> Option<bool> {
    target.map(|t| measured.is_some_and(|r| r.pairs >= WANTED_PAIRS && t.is_met(r.median)))
}

/// The same in a word; nothing where there is none.
pub fn verdict(target: Option<Target>, measured: Option<&Ratio>) -> &'static str {
    match met(target, measured) {
        _ if measured.is_none_or(|r| r.pairs < WANTED_PAIRS) => "TOO FEW PAIRS",
        None => "",
        Some(true) => "met",
        Some(false) => "MISSED",
    }
}

/// A number with as many digits as tell something.
pub fn plain(x: f64) -> String {
    match x {
        x if x >= 100.0 => format!("{x:.0}"),
        x if x != 0.0 && x < 0.1 => format!("{x:.4}"),
        x => format!("{x:.2}"),
    }
}

/// One interleaved pair.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The figure that is held against the other.
    pub ours: f64,
    /// The figure that it is held against.
    pub floor: f64,
    /// How the CPUs stood all the time.
    pub placement: Placement,
}

/// The pairs of one placement, taken together.
#[derive(Clone, Debug, PartialEq)]
pub struct Ratio {
    /// Median of the pairs' ratios.
    pub median: f64,
    /// The least of them.
    pub low: f64,
    /// The largest of them.
    pub high: f64,
    /// Median of our figures.
    pub ours: f64,
    /// Median of the floor's figures.
    pub floor: f64,
    /// How many pairs.
    pub pairs: usize,
    /// How the CPUs stood.
    pub placement: Placement,
}

/// Runs pairs of `ours` and `floor` on these CPUs until one placement has seven of them.
///
/// Runs during which the placement changed are thrown away. Where too few of one placement came about, the
/// ratio is of those that did, and says how many.
///
/// # Errors
/// A run failed.
pub fn interleave(
    cpus: (usize, usize),
    mut ours: impl FnMut() -> Result<f64, Failure>,
    mut floor: impl FnMut() -> Result<f64, Failure>,
) -> Result<Vec<Sample>, Failure> {
    let mut samples = Vec::new();
    let mut before = placement(cpus.0, cpus.1);
    for _ in 0..MAX_PAIRS {
        let a = ours()?;
        let between = placement(cpus.0, cpus.1);
        let b = floor()?;
        let after = placement(cpus.0, cpus.1);
        samples.push(Sample { ours: a, floor: b, placement: before.and(between).and(after) });
        before = after;
        if largest_class(&samples).1 >= WANTED_PAIRS {
            break;
        }
    }
    Ok(samples)
}

/// The steady placement that most samples have, and how many have it.
fn largest_class(samples: &[Sample]) -> (Placement, usize) {
    let count = |p| (p, samples.iter().filter(|s| s.placement == p).count());
    [Placement::Near, Placement::Far].map(count).into_iter().max_by_key(|c| c.1).expect("two classes")
}

/// Takes the samples of the placement together that most of them have; `None` if none was steady.
pub fn summary(samples: &[Sample]) -> Option<Ratio> {
    let (placement, pairs) = largest_class(samples);
    let mine = || samples.iter().filter(|s| s.placement == placement);
    let ratios: Vec<f64> = mine().map(|s| s.ours / s.floor).collect();
    let extreme = |pick: fn(f64, f64) -> f64| ratios.iter().copied().reduce(pick);
    Some(Ratio {
        median: median(ratios.clone())?,
        low: extreme(f64::min)?,
        high: extreme(f64::max)?,
        ours: median(mine().map(|s| s.ours).collect())?,
        floor: median(mine().map(|s| s.floor).collect())?,
        pairs,
        placement,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ours: f64, floor: f64, placement: Placement) -> Sample {
        Sample { ours, floor, placement }
    }

    #[test]
    fn the_ratio_is_the_median_of_the_pairs_of_one_placement() {
        use Placement::{Far, Mixed, Near};
        let samples = [
            sample(3.0, 2.0, Near),
            sample(2.2, 2.0, Near),
            sample(9.0, 1.0, Mixed),
            sample(5.0, 1.0, Far),
            sample(2.4, 2.0, Near),
        ];
        let r = summary(&samples).unwrap();
        assert_eq!((r.median, r.low, r.high), (1.2, 1.1, 1.5));
        assert_eq!((r.pairs, r.placement, r.ours, r.floor), (3, Near, 2.4, 2.0));
        assert_eq!(summary(&samples[2..3]), None);
    }

    #[test]
    fn targets_have_a_direction() {
        let less = Target { better: Better::Less, must: 1.25, aim: Some(1.12) };
        assert!(less.is_met(1.25) && !less.is_met(1.26));
        let more = Target { better: Better::More, must: 0.7, aim: None };
        assert!(more.is_met(0.7) && !more.is_met(0.69));
        assert_eq!((less.to_string().as_str(), more.to_string().as_str()), ("<=1.25", ">=0.70"));
    }

    #[test]
    fn a_ratio_of_too_few_pairs_meets_nothing() {
        let target = Some(Target { better: Better::Less, must: 1.25, aim: None });
        let few = [sample(1.0, 1.0, Placement::Near); WANTED_PAIRS - 1];
        let enough = [sample(1.0, 1.0, Placement::Near); WANTED_PAIRS];
        let slow = [sample(1.3, 1.0, Placement::Near); WANTED_PAIRS];
        let judged = |samples: &[Sample]| verdict(target, summary(samples).as_ref());
        assert_eq!((judged(&few), judged(&enough), judged(&slow)), ("TOO FEW PAIRS", "met", "MISSED"));
        assert_eq!(judged(&[]), "TOO FEW PAIRS");
        let is_met = |samples: &[Sample]| met(target, summary(samples).as_ref());
        assert_eq!([&few[..], &enough, &slow, &[]].map(is_met), [false, true, false, false].map(Some));
        assert_eq!((verdict(None, summary(&slow).as_ref()), met(None, None)), ("", None));
    }
}
