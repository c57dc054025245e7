//! The outcome of a script's run, in terms that are the same on every fabric.

use hca_core::{WcOpcode, WcStatus};

/// A completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) wr_id: u64,
    pub(super) status: WcStatus,
    pub(super) opcode: WcOpcode,
    /// Of receives, READs and atomics that succeeded.
    pub(super) byte_len: u32,
    /// Immediate data, or the region whose key was taken back.
    pub(super) extra: String,
    /// The pair of a datagram's sender.
    pub(super) from: Option<usize>,
    pub(super) solicited: bool,
}

/// What a play came to.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Each queue by name, with its completions.
    pub(super) queues: Vec<(String, Vec<Entry>)>,
    /// States of the queue pairs whenever all was quiet, and what was refused.
    pub(super) states: Vec<String>,
    /// Asynchronous events of each side, sorted: the IBA orders them not.
    pub(super) events: [Vec<String>; 2],
    /// All bytes of each region of each side.
    pub(super) memory: [Vec<Vec<u8>>; 2],
}

impl Outcome {
    /// The first difference, in words.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        for ((name, ours), (other_name, theirs)) in self.queues.iter().zip(&other.queues) {
            assert_eq!(name, other_name);
            if ours != theirs {
                let at = ours.iter().zip(theirs).position(|(a, b)| a != b);
                let at = at.unwrap_or(ours.len().min(theirs.len()));
                let (a, b) = (ours.get(at), theirs.get(at));
                return Some(format!(
                    "completion {at} of the {name}: {a:?} against {b:?} ({} against {})",
                    ours.len(),
                    theirs.len()
                ));
            }
        }
        if self.states != other.states {
            let pair = self.states.iter().zip(&other.states).find(|(a, b)| a != b);
            return Some(format!("states: {pair:?}"));
        }
        for side in 0..2 {
            if self.events[side] != other.events[side] {
                return Some(format!(
                    "events of side {side}: {:?} against {:?}",
                    self.events[side], other.events[side]
                ));
            }
            for (slot, (a, b)) in self.memory[side].iter().zip(&other.memory[side]).enumerate() {
                if a == b {
                    continue;
                }
                let differ: Vec<usize> = (0..a.len()).filter(|&i| a[i] != b[i]).collect();
                if let (Some(&from), Some(&to)) = (differ.first(), differ.last()) {
                    return Some(format!(
                        "memory of side {side}, region {slot}: {} bytes within {from}..={to}, the first {:#04x} against \
                         {:#04x}",
                        differ.len(),
                        a[from],
                        b[from]
                    ));
                }
            }
        }
        None
    }
}
