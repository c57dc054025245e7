//! The types of direct access to peers' memory: grants, refusals, notices.

use std::io;

use hca_core::Access;

use super::pages::SharedPages;

/// Regions that an adapter has granted at one time.
pub const MAX_GRANTED_REGIONS: u32 = 8192;
/// Regions of one peer that are mapped here at one time; more are refused.
pub const MAX_MAPPED_OF_PEER: u32 = 256;
/// Regions of all peers that are mapped here at one time; more are refused.
pub const MAX_MAPPED: u32 = 8192;
/// Questions to one peer that it has not answered. A peer that asks more breaks the rules, and is dropped.
pub const MAX_ASKED: u32 = 64;
/// Queue pairs that have a word on the board.
pub const MAX_QP_WORDS: u32 = 65_536;
/// Pieces of memory of this process at most that one fetch from a peer's process fills.
pub const MAX_LOAN_PLACES: usize = 32;
/// Bytes that one bracket moves at most.
pub const MAX_BRACKET_BYTES: usize = 256 << 10;

/// The name of the link to a peer; links are never confused with their successors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(u64);

impl LinkId {
    /// Of the name that the list of links gives.
    pub(super) fn new(token: u64) -> Self {
        Self(token)
    }
    pub(super) fn token(self) -> u64 {
        self.0
    }
    pub(super) fn slot(self) -> u32 {
        self.0 as u32
    }
}

/// Names a peer's region that is mapped here. One that was taken back is never mistaken for its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// The word that the peer's board must hold for its queue pair, so that an access may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpGuard {
    pub(super) link: LinkId,
    /// Where the word stands on the board.
    pub(super) at: u32,
    pub(super) word: u64,
}

/// A region that a peer may map.
#[derive(Clone, Copy, Debug)]
pub struct Grant<'a> {
    /// The key that the peer presents; it names the region from now on.
    pub key: u32,
    /// The queue pair that asked, or that is to know of an offer.
    pub qpn: u32,
    /// The region's memory.
    pub pages: &'a SharedPages,
    /// Where in it the region begins. It reaches from the first page to the last one, since a descriptor opens all.
    pub offset: usize,
    /// Bytes of the region.
    pub len: usize,
    /// The address by which peers name its first byte.
    pub iova: u64,
    /// What the peer may do: `REMOTE_READ`, `REMOTE_WRITE`, `REMOTE_ATOMIC`; other rights are left out.
    pub access: Access,
    /// The protection domain, in the adapter's own numbers, for the peer to compare with a queue pair's.
    pub pd: u32,
    /// The word of the requesting queue pair on the board now.
    pub qp_word: u64,
}

/// A peer's region that is mapped here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The peer's queue pair number, as the question or the offer named it.
    pub qpn: u32,
    /// The address of its first byte, as the peer names it.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// What may be done there.
    pub access: Access,
    /// The protection domain, in the peer's numbers.
    pub pd: u32,
    /// The word of the queue pair, when this was granted.
    pub qp_word: u64,
    /// The peer offered the grant without a request.
    pub offered: bool,
}

/// An event between this adapter and a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The peer asks for the region of a key. It is answered by `grant` or `refuse_grant`.
    GrantAsked {
        /// The peer.
        link: LinkId,
        /// The key that it presents.
        key: u32,
        /// This adapter's queue pair by which it would use it.
        qpn: u32,
    },
    /// The peer's region is mapped here.
    Granted {
        /// The peer.
        link: LinkId,
        /// The key.
        key: u32,
        /// The name here.
        grant: GrantId,
        /// What is granted.
        granted: Granted,
    },
    /// The peer does not grant the region of this key, or what it granted can't be mapped. Packets serve.
    GrantRefused {
        /// The peer.
        link: LinkId,
        /// The key.
        key: u32,
        /// The peer's queue pair, as the question named it.
        qpn: u32,
    },
    /// The peer has mapped what was offered to it.
    GrantTaken {
        /// The peer.
        link: LinkId,
        /// The key.
        key: u32,
    },
    /// The peer has not mapped what was offered to it, or has let go of what it was granted.
    GrantLeft {
        /// The peer.
        link: LinkId,
        /// The key.
        key: u32,
    },
    /// The peer took a region back, which is no longer mapped here.
    GrantRevoked {
        /// The peer.
        link: LinkId,
        /// The key.
        key: u32,
        /// Its name here, which is void.
        grant: GrantId,
    },
    /// The peer fetches from this process what messages lend.
    ProcessTaken {
        /// The peer.
        link: LinkId,
    },
    /// The peer does not, or no more.
    ProcessLeft {
        /// The peer.
        link: LinkId,
    },
    /// The peer is gone, with all grants in either direction.
    LinkGone {
        /// The peer.
        link: LinkId,
    },
}

/// The reason why something was not asked for or granted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// There is no such link, or the two have not met yet.
    #[error("no shared-memory connection to this peer exists")]
    Link,
    /// The peer's process belongs to another user.
    #[error("the peer's process belongs to another user, which may exchange packets only")]
    ForeignUser,
    /// This adapter does not share memory in this way.
    #[error("this adapter was opened with isolated=yes or process_vm=no")]
    Isolated,
    /// A limit is reached.
    #[error("{limit} {what}, which is the limit")]
    Limit {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: u32,
    },
    /// The region does not reach over all pages of its memory, and a descriptor would open the others as well.
    #[error("the region does not cover all pages of its memory")]
    Partial,
    /// The region is being taken back, and a peer is still within an access to it.
    #[error("the region is being revoked")]
    Ending,
    /// The memory is this process's alone since a peer was stuck in it.
    #[error("the memory became private when a peer that had mapped it was dropped")]
    Private,
    /// The memory was granted for reading only once, and is sealed against other writers for good.
    #[error("the memory was granted for reading only, and can't be granted for writing later")]
    ReadOnly,
    /// Another adapter of this process has granted it.
    #[error("the memory is granted by another adapter of this process")]
    Elsewhere,
    /// The operating system refused the call.
    #[error("{doing}: {source}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The reason.
        source: io::Error,
    },
}

/// The reason why a direct access does not go ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// There is no such grant.
    #[error("there is no such grant")]
    Unknown,
    /// The region was taken back; a notice follows.
    #[error("the region was revoked")]
    Revoked,
    /// The queue pair's word is another one.
    #[error("the queue pair's word is {found:#x}")]
    QueuePair {
        /// What stands there.
        found: u64,
    },
}

/// The reason why a piece was not moved. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// It is not within the region.
    #[error("the access is not within the region")]
    Range,
    /// The region is not granted for this.
    #[error("the region's rights do not allow the access")]
    Right,
    /// An atomic operation's word is not aligned to 8 bytes.
    #[error("the word is not aligned to 8 bytes")]
    Alignment,
    /// More than [`MAX_BRACKET_BYTES`] within one bracket.
    #[error("more than {MAX_BRACKET_BYTES} bytes within one bracket")]
    Length,
}

/// What taking something back came to. Unless it says `exposed`, nothing that peers do changes the memory any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocation {
    /// Peers that were within an access for longer than the bound, and were dropped.
    pub dropped: Vec<LinkId>,
    /// The memory is private to this process from now on, as a dropped peer may write to its mapping.
    pub private: bool,
    /// There was no memory for private copies: a dropped peer may still change the bytes. They are never freed, and the
    /// program is told that the device did not release them.
    pub exposed: bool,
}
