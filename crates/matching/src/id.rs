//! Identities of senders: processes, users and jobs; and an entry's criteria for messages.

use crate::Header;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);
    };
}
id! { /// A node.
Nid }
id! { /// A process of a node.
Pid }
id! { /// A process of a job, counted from 0.
Rank }
id! { /// A user.
Uid }
id! { /// A job: the processes that were started together.
Jid }

/// A process: node and process where the interface's addresses are physical, a rank where they are logical.
///
/// As in both interfaces' own types, the value does not tell a physical address from a logical one; the interface knows
/// its kind.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process(u64);

impl Process {
    /// A process by node and number.
    pub const fn physical(nid: Nid, pid: Pid) -> Self {
        Self((nid.0 as u64) << 32 | pid.0 as u64)
    }
    /// A process by rank.
    pub const fn logical(rank: Rank) -> Self {
        Self(rank.0 as u64)
    }
    /// The node of a physical address.
    pub const fn nid(self) -> Nid {
        Nid((self.0 >> 32) as u32)
    }
    /// The process number of a physical address.
    pub const fn pid(self) -> Pid {
        Pid(self.0 as u32)
    }
    /// The rank of a logical address.
    pub const fn rank(self) -> Rank {
        Rank(self.0 as u32)
    }
    pub(crate) const fn packed(self) -> u64 {
        self.0
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.nid().0, self.pid().0)
    }
}

/// The processes from which an entry takes messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    packed: u64,
    /// The bits that count; of `packed`, the others are 0.
    mask: u64,
}

impl Source {
    /// Every process.
    pub const ANY: Self = Self { packed: 0, mask: 0 };

    /// Processes by node and process number; `None` is any.
    pub const fn physical(nid: Option<Nid>, pid: Option<Pid>) -> Self {
        let (high, high_mask) = match nid {
            Some(nid) => (nid.0, u32::MAX),
            None => (0, 0),
        };
        let (low, low_mask) = match pid {
            Some(pid) => (pid.0, u32::MAX),
            None => (0, 0),
        };
        Self { packed: (high as u64) << 32 | low as u64, mask: (high_mask as u64) << 32 | low_mask as u64 }
    }
    /// Processes by rank; `None` is any.
    pub const fn logical(rank: Option<Rank>) -> Self {
        match rank {
            Some(rank) => Self::exactly(Process::logical(rank)),
            None => Self::ANY,
        }
    }
    /// The source that is one process.
    pub const fn exactly(process: Process) -> Self {
        Self { packed: process.0, mask: u64::MAX }
    }
    /// Whether the source is valid for physical addresses only: it names a node, or only a part of a process.
    pub const fn is_physical(self) -> bool {
        self.packed >> 32 != 0 || self.mask != 0 && self.mask != u64::MAX
    }
    /// Whether the source is valid for logical addresses only: it names a process, and no node.
    pub const fn is_logical(self) -> bool {
        self.mask == u64::MAX && self.packed >> 32 == 0
    }
    /// Whether the criterion includes this process.
    #[inline]
    pub const fn includes(self, process: Process) -> bool {
        (self.packed ^ process.0) & self.mask == 0
    }
    pub(crate) const fn packed(self) -> u64 {
        self.packed
    }
    pub(crate) const fn mask(self) -> u64 {
        self.mask
    }
}

/// The criteria by which an entry matches messages.
///
/// The match bits that are not ignored must be equal, and source, user and job must be the wanted ones. Users and jobs
/// are criteria of 3.3, as in the paper on its offload; in 4.3 the user that may use an entry is
/// [`Entry::uid`](crate::Entry::uid), which is checked after the match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Criteria {
    /// The processes from which the entry takes messages.
    pub source: Source,
    /// The match bits.
    pub bits: u64,
    /// The mask of the match bits that are ignored.
    pub ignore: u64,
    /// The sending user; `None` is any.
    pub uid: Option<Uid>,
    /// The sending job; `None` is any.
    pub jid: Option<Jid>,
}

impl Criteria {
    /// The criteria that every message meets. An interface without matching uses no other criteria.
    pub const ANY: Self = Self { source: Source::ANY, bits: 0, ignore: u64::MAX, uid: None, jid: None };

    /// The criteria of one process and all 64 match bits.
    pub const fn exactly(process: Process, bits: u64) -> Self {
        Self { source: Source::exactly(process), bits, ignore: 0, uid: None, jid: None }
    }
    /// Whether a message meets the criteria.
    #[inline]
    pub fn matches(&self, header: &Header) -> bool {
        (self.bits ^ header.match_bits) & !self.ignore == 0
            && self.source.includes(header.initiator)
            && self.admits(header.uid, header.jid)
    }
    /// The part that the hash and the stream over wildcards do not look at.
    #[inline]
    pub(crate) fn admits(&self, uid: Uid, jid: Jid) -> bool {
        self.uid.is_none_or(|wanted| wanted == uid) && self.jid.is_none_or(|wanted| wanted == jid)
    }
    /// Whether source and bits are one value each, so that a hash finds the entry.
    #[inline]
    pub(crate) fn is_exact(&self) -> bool {
        self.ignore == 0 && self.source.mask == u64::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_half_of_a_physical_source_can_be_any() {
        let p = Process::physical(Nid(3), Pid(9));
        for (source, wanted) in [
            (Source::physical(Some(Nid(3)), Some(Pid(9))), true),
            (Source::physical(Some(Nid(3)), None), true),
            (Source::physical(None, Some(Pid(9))), true),
            (Source::physical(Some(Nid(4)), None), false),
            (Source::physical(None, Some(Pid(8))), false),
            (Source::ANY, true),
        ] {
            assert_eq!(source.includes(p), wanted, "{source:?}");
        }
        assert!(Source::logical(Some(Rank(5))).includes(Process::logical(Rank(5))));
        assert!(!Source::logical(Some(Rank(5))).includes(Process::logical(Rank(6))));
        assert!(Source::logical(None).includes(Process::logical(Rank(6))));
    }

    #[test]
    fn a_source_tells_which_addresses_it_can_be_of() {
        for (source, physical, logical) in [
            (Source::ANY, false, false),
            (Source::logical(Some(Rank(5))), false, true),
            (Source::logical(None), false, false),
            (Source::physical(Some(Nid(3)), Some(Pid(5))), true, false),
            (Source::physical(Some(Nid(3)), None), true, false),
            (Source::physical(None, Some(Pid(5))), true, false),
            (Source::physical(None, None), false, false),
        ] {
            assert_eq!((source.is_physical(), source.is_logical()), (physical, logical), "{source:?}");
        }
    }

    #[test]
    fn a_process_is_the_node_and_the_number_that_it_was_made_of() {
        let process = Process::physical(Nid(3), Pid(9));
        assert_eq!(
            (process.nid(), process.pid(), Process::logical(Rank(5)).rank()),
            (Nid(3), Pid(9), Rank(5))
        );
    }

    #[test]
    fn criteria_of_one_process_and_all_bits_are_exact() {
        let exact = Criteria::exactly(Process::physical(Nid(3), Pid(9)), 5);
        let node = Source::physical(Some(Nid(3)), None);
        assert!(exact.is_exact());
        for other in [Criteria { ignore: 1, ..exact }, Criteria { source: node, ..exact }, Criteria::ANY] {
            assert!(!other.is_exact(), "{other:?}");
        }
    }

    #[test]
    fn ignored_bits_do_not_count() {
        let criteria = Criteria { bits: 0xf0, ignore: 0x0f, ..Criteria::ANY };
        let header = |match_bits| Header { match_bits, ..Header::default() };
        assert!(criteria.matches(&header(0xf7)));
        assert!(!criteria.matches(&header(0xe7)));
    }

    #[test]
    fn users_and_jobs_are_criteria() {
        let header = Header { uid: Uid(1), jid: Jid(2), ..Header::default() };
        assert!(Criteria { uid: Some(Uid(1)), jid: Some(Jid(2)), ..Criteria::ANY }.matches(&header));
        assert!(!Criteria { uid: Some(Uid(3)), ..Criteria::ANY }.matches(&header));
        assert!(!Criteria { jid: Some(Jid(3)), ..Criteria::ANY }.matches(&header));
    }
}
