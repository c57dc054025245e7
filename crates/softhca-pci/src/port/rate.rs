//! The rate at which a function may send, as an operator has fixed it: RDMA and Ethernet frames together.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use hca_core::Instant;
use softhca::Pace;

/// The lowest rate: below, a packet takes longer than peers wait for an answer.
const LEAST: f64 = 1e6;
/// The highest rate; 1 Pbit/s is as good as none.
const MOST: f64 = 1e15;
/// Bytes by which frames may fall behind what queue pairs send, to make up for it at once later.
const BEHIND: i64 = 64 << 10;

/// A rate of a function, in bits a second: at least 1 Mbit/s. As text `500M`, `2.5G`, `10000000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(NonZeroU64);

/// No rate has this text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not a rate: write bits a second, at least 1M, as in 500M or 2.5G")]
pub struct NoRate;

impl Rate {
    /// A rate of `bits` bits a second.
    ///
    /// # Errors
    /// They are less than 1 Mbit/s, or more than 1 Pbit/s.
    pub fn bits_per_s(bits: u64) -> Result<Self, NoRate> {
        let fits = (LEAST..=MOST).contains(&(bits as f64));
        NonZeroU64::new(bits).filter(|_| fits).map(Self).ok_or(NoRate)
    }
}

impl FromStr for Rate {
    type Err = NoRate;
    fn from_str(text: &str) -> Result<Self, NoRate> {
        let (number, unit) = match text.strip_suffix(['k', 'K', 'M', 'G', 'T']) {
            Some(number) => (number, &text[number.len()..]),
            None => (text, ""),
        };
        let unit = match unit {
            "k" | "K" => 1e3,
            "M" => 1e6,
            "G" => 1e9,
            "T" => 1e12,
            _ => 1.0,
        };
        if !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            return Err(NoRate);
        }
        let number: f64 = number.parse().map_err(|_| NoRate)?;
        let bits = number * unit;
        if bits <= MOST { Self::bits_per_s(bits as u64) } else { Err(NoRate) }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0.get();
        let (unit, name) = [(1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1000, "kbit/s")]
            .into_iter()
            .find(|(unit, _)| bits.is_multiple_of(*unit))
            .unwrap_or((1, "bit/s"));
        write!(f, "{} {name}", bits / unit)
    }
}

/// The Ethernet side of a function whose rate is fixed; its queue pairs have the same pace at the adapter.
#[derive(Debug)]
pub(crate) struct FrameRate {
    pub(crate) pace: Arc<Pace>,
    /// Bytes that frames have sent more than queue pairs, since both wanted to.
    ahead: i64,
    /// What queue pairs had sent when that was counted.
    counted: u64,
}

impl FrameRate {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { pace: Arc::new(Pace::new(rate.0)), ahead: 0, counted: 0 }
    }

    /// Whether a frame may leave now: there is room, and queue pairs that wait have sent as much.
    pub(crate) fn may_leave(&mut self, now: Instant) -> bool {
        let sent = self.pace.sent_by_queue_pairs();
        let theirs = i64::try_from(sent.wrapping_sub(self.counted)).unwrap_or(i64::MAX);
        self.counted = sent;
        let waits = self.pace.is_waited_for();
        self.ahead = if waits { self.ahead.saturating_sub(theirs).max(-BEHIND) } else { 0 };
        self.pace.room(now) > 0 && !(waits && self.ahead > 0)
    }

    /// A frame of so many bytes left.
    pub(crate) fn left(&mut self, now: Instant, bytes: usize) {
        self.pace.spend(now, bytes as u64);
        self.ahead = self.ahead.saturating_add(bytes as i64);
    }

    /// How long until frames that wait may leave.
    pub(crate) fn opens_in(&self, now: Instant) -> Duration {
        self.pace.opens_at().since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_bits_a_second_with_a_unit() {
        let read = |text: &str| text.parse::<Rate>().map(|rate| rate.to_string());
        for (text, shown) in [
            ("10G", "10 Gbit/s"),
            ("2.5G", "2500 Mbit/s"),
            ("500M", "500 Mbit/s"),
            ("1M", "1 Mbit/s"),
            ("1500k", "1500 kbit/s"),
            ("1000001", "1000001 bit/s"),
            ("1000T", "1000000 Gbit/s"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(shown), "{text}");
        }
        for text in [
            "", "G", "10", "999k", "0.5M", "1001T", "-1G", "+1G", "1e9", "nan", "inf", "1.2.3G", "10 G",
            "10GG", "1Gbit",
        ] {
            assert_eq!(read(text), Err(NoRate), "{text}");
        }
    }
}
