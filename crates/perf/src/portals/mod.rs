//! The rows of Portals: put, get, atomic, and the cost of entries before the matching one.
//!
//! | module | contents |
//! |---|---|
//! | `half` | one side's node, interface and entry |
//! | `run` | the measuring side |
//! | `serve` | the side that answers |

mod half;
mod run;
pub(super) mod serve;

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use ::portals::{Card, Directory, DirectoryError, Node, NodeOptions};
use clap::ValueEnum;
use hca::Opened;
use serde::{Deserialize, Serialize};

use super::plan::{Layer, Op, Size, parse_bytes};
use crate::Failure;

pub use run::Nodes;

/// Entries before the one that matches, at most.
const MAX_BEFORE: u64 = 1_000_000;
/// The entries that `--depth` alone asks for.
pub const DEFAULT_DEPTHS: &str = "0,1,10,100,1000,10000,100000";
/// The longest message that goes with its header, at most.
const MAX_EAGER_BYTES: u32 = 256 << 10;
/// Memory that an entry takes, about.
const ENTRY_BYTES: u64 = 256;
/// Bytes of the messages that go past other entries.
const DEPTH_SIZE: Size = Size::of(8);
/// An atomic operation is on words of this many bytes.
const WORD_BYTES: u64 = 8;

/// The settings of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Whether the adapter matches, if it can; otherwise the program's calls do.
    pub offload: bool,
    /// The longest message that goes with its header.
    pub eager_bytes: Eager,
}

/// The longest message of a node that goes with its header: from 1 byte to 256 KiB, because a node has some hundred
/// slots of that length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Eager(u32);

impl Eager {
    /// The limit in bytes.
    pub fn bytes(self) -> u64 {
        self.0.into()
    }
}
impl TryFrom<u64> for Eager {
    type Error = String;
    fn try_from(bytes: u64) -> Result<Self, String> {
        let refuse = || format!("{bytes} bytes with a header: from 1 to {MAX_EAGER_BYTES}");
        u32::try_from(bytes).ok().filter(|n| (1..=MAX_EAGER_BYTES).contains(n)).map(Self).ok_or_else(refuse)
    }
}
impl From<Eager> for u64 {
    fn from(eager: Eager) -> Self {
        eager.bytes()
    }
}
impl FromStr for Eager {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let eager = parse_bytes(text).and_then(|bytes| Self::try_from(bytes).ok());
        eager.ok_or_else(|| format!("`{text}` is not a size from 1 to 256K: write bytes, or 16K"))
    }
}

impl Default for Settings {
    /// As nodes are opened where nothing is asked for.
    fn default() -> Self {
        let NodeOptions { offload, eager_bytes, .. } = NodeOptions::default();
        Self { offload, eager_bytes: Eager(eager_bytes as u32) }
    }
}

/// The kind of the entries that a message does not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Entries {
    /// Entries for one process and all match bits.
    Exact,
    /// Entries for any process, with some ignored match bits.
    Wildcard,
}

impl fmt::Display for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::Wildcard => "wildcard",
        })
    }
}

/// The entries before the one that matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    /// The number of entries.
    pub count: u64,
    /// The kind of the entries.
    pub entries: Entries,
}

/// One row of Portals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "CaseFields")]
pub struct Case {
    /// Operation.
    pub op: Op,
    /// Bytes a message.
    pub size: Size,
    /// The entries before the one that matches, if any.
    pub before: Option<Before>,
    /// Whether the target's program computes all the time and makes no calls. Only for operations that complete at the
    /// initiator.
    pub computes: bool,
}

/// A row as another process says it.
#[derive(Deserialize)]
struct CaseFields {
    op: Op,
    size: Size,
    before: Option<Before>,
    #[serde(default)]
    computes: bool,
}

impl TryFrom<CaseFields> for Case {
    type Error = String;
    fn try_from(CaseFields { op, size, before, computes }: CaseFields) -> Result<Self, String> {
        if !op.is_of(Layer::Portals) {
            return Err(format!("portals has no {op}"));
        }
        if let Some(Before { count, .. }) = before.filter(|before| before.count > MAX_BEFORE) {
            return Err(format!("{count} entries before the one that matches: at most {MAX_BEFORE}"));
        }
        let case = Self { op, size, before, computes };
        if case.is_unanswered() { Err(UNANSWERED.to_owned()) } else { Ok(case) }
    }
}

/// Why a row is none.
const UNANSWERED: &str =
    "a target that computes can't answer by a put: measure an operation that completes at the initiator";

impl Case {
    /// Whether the target would have to answer, and does not.
    fn is_unanswered(&self) -> bool {
        self.computes && self.op == Op::Put
    }
    /// The approximate memory of a side.
    fn memory(&self) -> u64 {
        2 * self.size.bytes() + self.before.map_or(0, |before| before.count * ENTRY_BYTES)
    }
    /// A case with a single entry.
    ///
    /// # Panics
    /// The size is 0, or more than 1 GiB.
    pub const fn new(op: Op, size: u64) -> Self {
        Self { op, size: Size::of(size), before: None, computes: false }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.op, self.size)?;
        match self.before {
            Some(Before { count, entries }) => write!(f, " behind {count} {entries} entries"),
            None => Ok(()),
        }
    }
}

/// Numbers of entries, as `0,10,1000`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Depths(pub Vec<u64>);

impl FromStr for Depths {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| {
            let parsed = part.trim().parse().ok().filter(|&n| n <= MAX_BEFORE);
            parsed.ok_or_else(|| format!("`{part}` is not a number of entries from 0 to {MAX_BEFORE}"))
        };
        text.split(',').map(number).collect::<Result<_, _>>().map(Self)
    }
}

/// The plan of a Portals run: all of its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The rows, each with the settings of its nodes.
    pub cases: Vec<(Settings, Case)>,
    /// The requested combinations without a row, each with its reason.
    pub left_out: Vec<String>,
}

impl Plan {
    /// Every combination that exists of settings, operations and sizes.
    pub fn of_sizes(settings: &[Settings], ops: &[Op], sizes: &[Size]) -> Self {
        let (mut cases, mut left_out) = (Vec::new(), Vec::new());
        for &setting in settings {
            for &op in ops {
                if !op.is_of(Layer::Portals) {
                    left_out.push(format!("portals has no {op}"));
                    continue;
                }
                for &size in sizes {
                    match refused(op, size, setting) {
                        // Default sizes were not requested one by one.
                        Some(_) if sizes == super::plan::DEFAULT_SIZES => {}
                        Some(why) => left_out.push(format!("{op} of {size}: {why}")),
                        None => cases.push((setting, Case::new(op, size.bytes()))),
                    }
                }
            }
        }
        left_out.dedup();
        Self { cases, left_out }
    }
    /// The rows of puts behind other entries, for each depth and each kind.
    pub fn of_depths(settings: &[Settings], depths: &[u64], kinds: &[Entries]) -> Self {
        let mut cases = Vec::new();
        for &setting in settings {
            for &entries in kinds {
                for &count in depths {
                    let before = Some(Before { count, entries });
                    cases.push((setting, Case { before, ..Case::new(Op::Put, DEPTH_SIZE.bytes()) }));
                }
            }
        }
        Self { cases, left_out: Vec::new() }
    }
}

/// Why an operation is not of this size.
fn refused(op: Op, size: Size, settings: Settings) -> Option<String> {
    let eager_bytes = settings.eager_bytes.bytes();
    match op {
        Op::Atomic if !size.bytes().is_multiple_of(WORD_BYTES) => {
            Some("it is on words of 8 bytes".to_owned())
        }
        Op::Atomic if size.bytes() > eager_bytes => {
            Some(format!("it has {eager_bytes} bytes at most (--eager)"))
        }
        _ => None,
    }
}

/// The other process of a measurement, once it is known.
#[derive(Default)]
struct Other(OnceLock<Card>);

impl Directory for Other {
    fn size(&self) -> Option<u32> {
        None
    }
    fn by_rank(&self, rank: ::portals::Rank) -> Result<Card, DirectoryError> {
        Err(DirectoryError::Rank { rank })
    }
    fn by_process(&self, nid: ::portals::Nid, pid: ::portals::Pid) -> Result<Card, DirectoryError> {
        let card = self.0.get().filter(|card| (card.nid, card.pid) == (nid, pid));
        card.copied().ok_or(DirectoryError::Process { nid, pid })
    }
}

/// Opens a node.
fn open(opened: &Opened, settings: Settings, other: std::sync::Arc<Other>) -> Result<Node, Failure> {
    Ok(Node::open(opened.context(), NodeOptions { directory: other, ..settings.options() })?)
}

impl Settings {
    fn options(self) -> NodeOptions {
        let Self { offload, eager_bytes } = self;
        NodeOptions { offload, eager_bytes: eager_bytes.bytes() as usize, ..NodeOptions::default() }
    }
    /// The memory of a node before a measurement.
    fn memory(self) -> u64 {
        self.options().slot_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::DEFAULT_SIZES;

    #[test]
    fn depths_are_read() {
        assert_eq!("0,10, 1000".parse::<Depths>().unwrap(), Depths(vec![0, 10, 1000]));
        assert_eq!(DEFAULT_DEPTHS.parse::<Depths>().unwrap().0.len(), 7);
        for text in ["", "1,", "x", "-1", "1000001"] {
            assert!(text.parse::<Depths>().unwrap_err().contains("1000000"), "{text}");
        }
    }

    #[test]
    fn a_plan_leaves_out_what_portals_does_not_do_and_says_so() {
        let settings = [Settings { offload: true, eager_bytes: Eager(1024) }];
        let sizes = [8, 12, 2048].map(Size::of);
        let plan = Plan::of_sizes(&settings, &[Op::Put, Op::Send, Op::Atomic], &sizes);
        let rows: Vec<_> = plan.cases.iter().map(|(_, c)| (c.op, c.size.bytes())).collect();
        assert_eq!(rows, [(Op::Put, 8), (Op::Put, 12), (Op::Put, 2048), (Op::Atomic, 8)]);
        let told = plan.left_out.join("; ");
        for part in ["no send", "atomic of 12 B", "words", "atomic of 2 KiB", "1024 bytes"] {
            assert!(told.contains(part), "{told}");
        }
        let default = Plan::of_sizes(&[Settings::default()], &[Op::Atomic], &DEFAULT_SIZES);
        assert!(default.left_out.is_empty() && default.cases.len() == 5, "{default:?}");
    }

    #[test]
    fn a_depth_is_measured_for_each_kind_of_entries() {
        let plan = Plan::of_depths(&[Settings::default()], &[0, 9], &[Entries::Exact, Entries::Wildcard]);
        let told: Vec<_> = plan.cases.iter().map(|(_, case)| case.to_string()).collect();
        assert_eq!(told[1], "put 8 B behind 9 exact entries");
        assert_eq!((told.len(), told[3].contains("wildcard")), (4, true));
    }
}
