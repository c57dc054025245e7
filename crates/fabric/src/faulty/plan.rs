//! The faults of a hostile network, and their text form.

use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::Direction;

/// Fault probabilities of the packets of one direction, each from 0 to 1 and independent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// The packet vanishes.
    pub loss: f64,
    /// The packet arrives twice.
    pub duplicate: f64,
    /// A few later packets overtake it.
    pub reorder: f64,
    /// The packet is late by a time between `delay_min` and `delay_max`.
    pub delay: f64,
    /// The least delay.
    pub delay_min: Duration,
    /// The greatest delay.
    pub delay_max: Duration,
    /// One bit of the packet flips on its way, which its ICRC shows.
    pub corrupt: f64,
}

impl Faults {
    /// Faults of a network that only loses packets, with this probability.
    pub fn loss(probability: f64) -> Self {
        Self { loss: probability, ..Self::default() }
    }
    /// Whether all probabilities are 0.
    pub fn is_none(&self) -> bool {
        [self.loss, self.duplicate, self.reorder, self.delay, self.corrupt].iter().all(|&p| p == 0.0)
    }
}

/// The fate of one packet in a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet passes. The plan's probabilities still apply.
    Pass,
    /// The packet vanishes.
    Drop,
    /// The packet arrives twice.
    Duplicate,
    /// The packet is late by this time.
    Delay(Duration),
    /// One bit flips on its way: byte (cut to the packet's length) and bit.
    Corrupt(usize, u8),
}

/// A script, which decides about single packets in their order: direction, bytes from BTH to padding.
pub type Script = Box<dyn FnMut(Direction, &[u8]) -> Verdict + Send>;

/// The plan of a [`Faulty`](crate::Faulty) layer; the same seed causes the same faults to the same packets.
///
/// As a text: `key=value` pairs with commas between, such as `loss=0.01,dup=0.001,delay=0.1:10us-2ms,seed=7`.
/// `loss`, `dup`, `reorder`, `corrupt` and `delay` hold for both directions; `tx.loss`, `rx.loss` and so on for one.
#[derive(Default)]
pub struct FaultPlan {
    /// The seed of the random decisions.
    pub seed: u64,
    /// The faults of packets that leave.
    pub tx: Faults,
    /// The faults of packets that arrive.
    pub rx: Faults,
    /// The script, which decides before the probabilities.
    pub script: Option<Script>,
}

impl FaultPlan {
    /// A plan whose script decides about every packet.
    pub fn script(script: impl FnMut(Direction, &[u8]) -> Verdict + Send + 'static) -> Self {
        Self { script: Some(Box::new(script)), ..Self::default() }
    }
    /// A plan that drops the packets of one direction that have these numbers, counted from 0.
    pub fn drop_numbers(direction: Direction, numbers: impl Into<Vec<u64>>) -> Self {
        let numbers = numbers.into();
        let mut next = 0;
        Self::script(move |d, _| {
            if d != direction {
                return Verdict::Pass;
            }
            next += 1;
            if numbers.contains(&(next - 1)) { Verdict::Drop } else { Verdict::Pass }
        })
    }
}

/// The reason why a text is not a fault plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FaultPlanError {
    /// A part is not `key=value`.
    #[error("`{0}` is not key=value; a plan looks like `loss=0.01,dup=0.001,seed=7`")]
    NotAPair(String),
    /// The key is unknown.
    #[error(
        "unknown fault `{0}`; there are seed, loss, dup, reorder, corrupt and delay, each but seed also with tx. or rx. in front"
    )]
    UnknownKey(String),
    /// The value is not a probability.
    #[error("`{value}` for {key} is not a probability from 0 to 1")]
    Probability {
        /// The key of the probability.
        key: String,
        /// The given value.
        value: String,
    },
    /// The value is not a delay.
    #[error("`{0}` is not a delay; it looks like `0.1:2ms` or `0.1:10us-2ms` (ns, us, ms, s)")]
    Delay(String),
    /// The seed is not a number.
    #[error("`{0}` for seed is not a whole number below 2^64")]
    Seed(String),
}

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut plan = Self::default();
        for pair in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| FaultPlanError::NotAPair(pair.into()))?;
            let (key, value) = (key.trim(), value.trim());
            if key == "seed" {
                plan.seed = value.parse().map_err(|_| FaultPlanError::Seed(value.into()))?;
                continue;
            }
            let (name, tx, rx) = match key.split_once('.') {
                Some(("tx", name)) => (name, true, false),
                Some(("rx", name)) => (name, false, true),
                _ => (key, true, true),
            };
            for (on, faults) in [(tx, &mut plan.tx), (rx, &mut plan.rx)] {
                if on {
                    set(faults, key, name, value)?;
                }
            }
        }
        Ok(plan)
    }
}

fn set(faults: &mut Faults, key: &str, name: &str, value: &str) -> Result<(), FaultPlanError> {
    let probability = |value: &str| {
        let wrong = || FaultPlanError::Probability { key: key.into(), value: value.into() };
        let p: f64 = value.parse().map_err(|_| wrong())?;
        if (0.0..=1.0).contains(&p) { Ok(p) } else { Err(wrong()) }
    };
    match name {
        "loss" => faults.loss = probability(value)?,
        "dup" | "duplicate" => faults.duplicate = probability(value)?,
        "reorder" => faults.reorder = probability(value)?,
        "corrupt" => faults.corrupt = probability(value)?,
        "delay" => {
            let wrong = || FaultPlanError::Delay(value.into());
            let (p, range) = value.split_once(':').ok_or_else(wrong)?;
            let (min, max) = range.split_once('-').map_or((None, range), |(a, b)| (Some(a), b));
            faults.delay = probability(p)?;
            faults.delay_max = duration(max).ok_or_else(wrong)?;
            faults.delay_min = min.map_or(Some(faults.delay_max), duration).ok_or_else(wrong)?;
            if faults.delay_min > faults.delay_max {
                return Err(wrong());
            }
        }
        _ => return Err(FaultPlanError::UnknownKey(key.into())),
    }
    Ok(())
}

fn duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * scale).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_sets_both_directions_or_one() {
        let p: FaultPlan = "loss=0.01, tx.dup=0.5,rx.delay=0.1:10us-2ms,seed=7".parse().unwrap();
        assert_eq!((p.seed, p.tx.loss, p.rx.loss), (7, 0.01, 0.01));
        assert_eq!((p.tx.duplicate, p.rx.duplicate), (0.5, 0.0));
        assert_eq!((p.rx.delay_min, p.rx.delay_max), (Duration::from_micros(10), Duration::from_millis(2)));
        assert!("".parse::<FaultPlan>().unwrap().tx.is_none());
    }

    #[test]
    fn a_wrong_text_is_told_what_is_wrong() {
        let error = |t: &str| t.parse::<FaultPlan>().err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error("loss=2").contains("`2` for loss is not a probability"));
        assert!(error("lost=0.1").contains("unknown fault `lost`"));
        assert!(error("loss").contains("not key=value"));
        assert!(error("delay=0.1").contains("not a delay"));
        assert!(error("delay=0.1:2ms-1ms").contains("not a delay"));
        assert!(error("delay=0.1:99999999999999999999999s").contains("not a delay"));
        assert!(error("seed=-1").contains("seed"));
        assert!(error("loss=NaN").contains("not a probability"));
    }
}
