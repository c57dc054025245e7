//! The plan of a measurement: operations, services and sizes, and the rows that result.

use core::fmt;
use core::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The longest message that is measured: 1 GiB.
const MAX_SIZE: u64 = 1 << 30;

/// An operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// SEND into receive requests.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// Fetch-and-add on one 64-bit word; of Portals: on as many as the size has.
    Atomic,
    /// Portals: a put, which posts an event at the target.
    Put,
    /// Portals: a put, acknowledged to the initiator.
    #[serde(rename = "put-ack")]
    PutAck,
    /// Portals: a get.
    Get,
}
impl Op {
    /// Whether a layer has the operation.
    pub fn is_of(self, layer: Layer) -> bool {
        match self {
            Self::Send | Self::Write | Self::Read => layer == Layer::Verbs,
            Self::Atomic => true,
            Self::Put | Self::PutAck | Self::Get => layer == Layer::Portals,
        }
    }
}
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
            Self::Put => "put",
            Self::PutAck => "put-ack",
            Self::Get => "get",
        })
    }
}

/// A programming interface to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// The safe verbs.
    #[default]
    Verbs,
    /// Portals 4.3, above them.
    Portals,
}
impl Layer {
    /// The operations that are measured by default.
    pub fn default_ops(self) -> &'static [Op] {
        match self {
            Self::Verbs => &[Op::Send, Op::Write, Op::Read, Op::Atomic],
            Self::Portals => &[Op::Put, Op::PutAck, Op::Get, Op::Atomic],
        }
    }
}
impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Verbs => "verbs",
            Self::Portals => "portals",
        })
    }
}

/// A transport service to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}
impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
        })
    }
}
impl Service {
    /// Whether the service offers an operation.
    pub fn offers(self, op: Op) -> bool {
        match self {
            Self::Rc => op.is_of(Layer::Verbs),
            Self::Uc => matches!(op, Op::Send | Op::Write),
            Self::Ud => op == Op::Send,
        }
    }
}

/// A message size, as `8`, `64K` or `4M` (1024 and 1024 x 1024).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Size(u64);

impl Size {
    /// The size of a message of `bytes` bytes: from 1 to 1 GiB.
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes >= 1 && bytes <= MAX_SIZE { Some(Self(bytes)) } else { None }
    }
    /// The size of a message of `bytes` bytes, for a constant.
    ///
    /// # Panics
    /// It is 0, or more than 1 GiB.
    pub const fn of(bytes: u64) -> Self {
        Self::new(bytes).expect("a message has from 1 byte to 1 GiB")
    }
    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}
impl TryFrom<u64> for Size {
    type Error = String;
    fn try_from(bytes: u64) -> Result<Self, String> {
        Self::new(bytes).ok_or_else(|| format!("a size of {bytes}: from 1 to {MAX_SIZE}"))
    }
}
impl From<Size> for u64 {
    fn from(size: Size) -> Self {
        size.0
    }
}

/// Bytes, as `8`, `64K`, `4M` or `2G`.
pub(super) fn parse_bytes(s: &str) -> Option<u64> {
    let upper = s.to_ascii_uppercase();
    let (digits, unit) = match upper.strip_suffix("IB").or(upper.strip_suffix('B')).unwrap_or(&upper) {
        x if x.ends_with('K') => (&x[..x.len() - 1], 1 << 10),
        x if x.ends_with('M') => (&x[..x.len() - 1], 1 << 20),
        x if x.ends_with('G') => (&x[..x.len() - 1], 1 << 30),
        x => (x, 1),
    };
    digits.trim().parse::<u64>().ok().and_then(|n| n.checked_mul(unit))
}

impl FromStr for Size {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let size = parse_bytes(s).and_then(Self::new);
        size.ok_or_else(|| format!("`{s}` is not a size from 1 to 1G: write bytes, or 64K, or 4M"))
    }
}

/// Memory that a measurement may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory(pub u64);

impl FromStr for Memory {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let bytes = parse_bytes(s).filter(|n| (1 << 20..=1 << 40).contains(n));
        bytes.map(Self).ok_or_else(|| format!("`{s}` is not a size from 1M to 1024G: write 64M, or 2G"))
    }
}
impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}M", self.0 >> 20)
    }
}
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&bytes_text(self.0))
    }
}

/// The text of a number of bytes for users, as `64 KiB`.
pub fn bytes_text(bytes: u64) -> String {
    let (n, unit) = match bytes {
        n if n >= 1 << 30 && n % (1 << 30) == 0 => (n >> 30, " GiB"),
        n if n >= 1 << 20 && n % (1 << 20) == 0 => (n >> 20, " MiB"),
        n if n >= 1 << 10 && n % (1 << 10) == 0 => (n >> 10, " KiB"),
        n => (n, " B"),
    };
    format!("{n}{unit}")
}

/// The one size of an atomic.
const ATOMIC_SIZE: Size = Size::of(8);

/// The sizes that are measured by default.
pub const DEFAULT_SIZES: [Size; 10] = [
    Size::of(8),
    Size::of(64),
    Size::of(256),
    Size::of(1 << 10),
    Size::of(4 << 10),
    Size::of(16 << 10),
    Size::of(64 << 10),
    Size::of(256 << 10),
    Size::of(1 << 20),
    Size::of(4 << 20),
];

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "CaseFields")]
pub struct Case {
    /// Service.
    pub service: Service,
    /// Operation.
    pub op: Op,
    /// Bytes a message.
    pub size: Size,
    /// The memory of both sides is the C library's, as that of most programs is, and not the adapter's.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub foreign: bool,
}

/// A row as another process says it.
#[derive(Deserialize)]
struct CaseFields {
    service: Service,
    op: Op,
    size: Size,
    #[serde(default)]
    foreign: bool,
}

impl TryFrom<CaseFields> for Case {
    type Error = String;
    fn try_from(CaseFields { service, op, size, foreign }: CaseFields) -> Result<Self, String> {
        if !service.offers(op) {
            return Err(format!("{service} has no {op}"));
        }
        if op == Op::Atomic && size != ATOMIC_SIZE {
            return Err(format!("an atomic of {size}: it has {ATOMIC_SIZE}"));
        }
        Ok(Self { service, op, size, foreign })
    }
}

/// The plan of a run: all of its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The rows.
    pub cases: Vec<Case>,
    /// Time for each row.
    pub duration: Duration,
    /// The requested combinations without a row, each with its reason.
    pub left_out: Vec<String>,
}

impl Plan {
    /// Every combination that exists of `services`, `ops` and `sizes`. `mtu` bounds datagrams. An atomic has 8 bytes;
    /// other requested sizes of an atomic are listed as left out.
    pub fn new(services: &[Service], ops: &[Op], sizes: &[Size], mtu: u32, duration: Duration) -> Self {
        let (mut cases, mut left_out) = (Vec::new(), Vec::new());
        for &service in services {
            for &op in ops {
                if !service.offers(op) {
                    left_out.push(format!("{service} has no {op}"));
                    continue;
                }
                let own = if op == Op::Atomic { &[ATOMIC_SIZE][..] } else { sizes };
                let others = || sizes.iter().filter(|&&size| size != ATOMIC_SIZE).map(Size::to_string);
                // Default sizes were not requested one by one.
                if op == Op::Atomic && sizes != DEFAULT_SIZES && others().next().is_some() {
                    let others = others().collect::<Vec<_>>().join(", ");
                    left_out.push(format!("{service} atomic of {others}: an atomic has {ATOMIC_SIZE}"));
                }
                for &size in own {
                    if service == Service::Ud && size.0 > u64::from(mtu) {
                        left_out.push(format!("{size} does not fit one datagram (path MTU {mtu})"));
                    } else {
                        cases.push(Case { service, op, size, foreign: false });
                    }
                }
            }
        }
        Self { cases, duration, left_out }
    }
    /// Has all rows measured with memory of the C library.
    #[must_use]
    pub fn with_foreign_memory(mut self, foreign: bool) -> Self {
        self.cases.iter_mut().for_each(|case| case.foreign = foreign);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_printed() {
        for (text, bytes, shown) in [
            ("8", 8, "8 B"),
            ("64K", 65_536, "64 KiB"),
            ("4MiB", 4 << 20, "4 MiB"),
            ("1500b", 1500, "1500 B"),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, shown));
        }
        for text in ["", "0", "x", "2G", "-1", "18446744073709551615K"] {
            assert!(text.parse::<Size>().unwrap_err().contains("64K"), "{text}");
        }
    }

    #[test]
    fn a_plan_leaves_out_what_a_service_does_not_offer_and_says_so() {
        let ops = [Op::Send, Op::Write, Op::Read, Op::Atomic];
        let sizes = [Size::of(8), Size::of(8192)];
        let plan = Plan::new(&[Service::Ud, Service::Rc], &ops, &sizes, 4096, Duration::from_secs(1));
        let rows: Vec<_> = plan.cases.iter().map(|c| (c.service, c.op, c.size.0)).collect();
        use {Op::*, Service::*};
        assert_eq!(
            rows,
            [
                (Ud, Send, 8),
                (Rc, Send, 8),
                (Rc, Send, 8192),
                (Rc, Write, 8),
                (Rc, Write, 8192),
                (Rc, Read, 8),
                (Rc, Read, 8192),
                (Rc, Atomic, 8)
            ]
        );
        assert_eq!(plan.left_out.len(), 5);
    }

    #[test]
    fn sizes_that_an_atomic_does_not_have_are_told() {
        let left_out = |sizes: &[Size]| {
            let plan = Plan::new(&[Service::Rc], &[Op::Atomic], sizes, 4096, Duration::from_secs(1));
            assert_eq!(
                plan.cases,
                [Case { service: Service::Rc, op: Op::Atomic, size: Size::of(8), foreign: false }]
            );
            plan.left_out
        };
        assert_eq!(
            left_out(&[Size::of(3), Size::of(8), Size::of(4096)]),
            ["rc atomic of 3 B, 4 KiB: an atomic has 8 B"]
        );
        assert!(left_out(&[Size::of(8)]).is_empty());
        assert!(left_out(&DEFAULT_SIZES).is_empty());
    }

    #[test]
    fn the_default_plan_takes_less_than_a_minute() {
        let ops = [Op::Send, Op::Write, Op::Read, Op::Atomic];
        let plan = Plan::new(&[Service::Rc], &ops, &DEFAULT_SIZES, 4096, crate::DEFAULT_DURATION);
        let overhead = Duration::from_millis(300);
        assert!((plan.duration + overhead) * (plan.cases.len() as u32) < Duration::from_secs(55));
    }
}
