//! The seeds of a test that runs one after another, by environment variables.

/// The number in an environment variable, if it is set.
///
/// # Panics
/// If it is no number.
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|e| panic!("{name} is {text:?}, which is no number: {e}")))
}

/// `one` alone if it is given, else `count` from `first` on; behind the last number comes 0.
pub fn seeds(one: Option<u64>, first: u64, count: u64) -> impl Iterator<Item = u64> {
    let (first, count) = one.map_or((first, count), |one| (one, 1));
    (0..count).map(move |n| first.wrapping_add(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_seed_runs_as_well() {
        let of = |one, first, count| seeds(one, first, count).collect::<Vec<_>>();
        assert_eq!(of(None, 5, 3), [5, 6, 7]);
        assert_eq!(of(Some(u64::MAX), 5, 3), [u64::MAX]);
        assert_eq!(of(None, u64::MAX, 2), [u64::MAX, 0]);
    }
}
