//! Times below the step of the clock: the median of what whole batches took.

use std::time::{Duration, Instant};

/// Batches that are kept.
const MAX_BATCHES: usize = 1 << 18;

/// Runs `batch`, which does something `count` times, again and again for `time`, and gives the median of the time that
/// one of them took, in ns. The first tenth of the time is warm-up.
///
/// # Errors
/// The first of `batch`.
pub fn median_ns<E>(
    time: Duration,
    count: usize,
    mut batch: impl FnMut() -> Result<(), E>,
) -> Result<f64, E> {
    let mut samples = Vec::new();
    let begin = Instant::now();
    let mut before = begin;
    loop {
        batch()?;
        let now = Instant::now();
        if now - begin > time / 10 && samples.len() < MAX_BATCHES {
            samples.push((now - before).as_nanos() as f64 / count as f64);
        }
        if now - begin > time {
            break;
        }
        before = now;
    }
    // A machine that stood still for so long has at least the batch that took all of the time.
    Ok(median(samples).unwrap_or(f64::NAN))
}

/// As [`median_ns`], of a batch that says itself how long of it counts.
///
/// # Errors
/// The first of `batch`.
pub fn median_of<E>(
    time: Duration,
    count: usize,
    mut batch: impl FnMut() -> Result<Duration, E>,
) -> Result<f64, E> {
    let mut samples = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() <= time {
        let warm = begin.elapsed() > time / 10;
        let took = batch()?;
        if warm && samples.len() < MAX_BATCHES {
            samples.push(took.as_nanos() as f64 / count as f64);
        }
    }
    Ok(median(samples).unwrap_or(f64::NAN))
}

/// Things a second: `batch` does `count` of them, again and again for `time`, of which the first tenth is warm-up.
///
/// # Errors
/// The first of `batch`.
pub fn per_second<E>(
    time: Duration,
    count: usize,
    mut batch: impl FnMut() -> Result<(), E>,
) -> Result<f64, E> {
    let begin = Instant::now();
    while begin.elapsed() < time / 10 {
        batch()?;
    }
    let (begin, mut done) = (Instant::now(), 0);
    loop {
        batch()?;
        done += count;
        let passed = begin.elapsed();
        if passed >= time {
            return Ok(done as f64 / passed.as_secs_f64());
        }
    }
}

/// The middle value; of an even count the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => None,
        n if !n.is_multiple_of(2) => Some(values[n / 2]),
        n => Some((values[n / 2 - 1] + values[n / 2]) / 2.0),
    }
}

/// The mean of the middle half: as robust as the median, and finer than the step of a coarse clock.
pub fn middle_mean(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let quarter = values.len() / 4;
    let middle = &values[quarter..values.len() - quarter];
    (!middle.is_empty()).then(|| middle.iter().sum::<f64>() / middle.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(middle_mean(vec![]), None);
        assert_eq!(middle_mean(vec![900.0, 1.0, 2.0, -50.0]), Some(1.5));
        assert_eq!(middle_mean(vec![7.0]), Some(7.0));
    }
}
