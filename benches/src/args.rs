//! What the programs' arguments have in common.

use std::time::Duration;

/// The longest run that makes sense.
const MAX_SECONDS: f64 = 3600.0;

/// Seconds, as `0.25`: the parser of `--time`.
///
/// # Errors
/// It is no number, or not above 0 and at most 3,600.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if s > 0.0 && s <= MAX_SECONDS => Ok(Duration::from_secs_f64(s)),
        Ok(_) => Err(format!("it is to be above 0, and at most {MAX_SECONDS}")),
        Err(_) => Err("it is no number of seconds, as 0.25".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_above_zero() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for wrong in ["0", "-1", "nan", "inf", "3601", "1s", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
