//! The types of direct access to peers' memory: grants, refusals, notices.

use hca_core::Access;

use super::pages::SharedPages;

/// The most regions that an adapter grants at one time.
pub const MAX_GRANTED_REGIONS: u32 = 8192;
/// The most regions of one peer that are mapped at one time; more are refused.
pub const MAX_MAPPED_OF_PEER: u32 = 256;
/// The most regions of all peers that are mapped at one time; more are refused.
pub const MAX_MAPPED: u32 = 8192;
/// The most unanswered questions to one peer. A peer that asks more violates the protocol, and is dropped.
pub const MAX_ASKED: u32 = 64;
/// The most queue pairs with a word on the board.
pub const MAX_QP_WORDS: u32 = 65_536;
/// The most pieces of memory that one fetch from a peer's process fills.
pub const MAX_LOAN_PLACES: usize = 32;
/// The most bytes that one bracket moves.
pub const MAX_BRACKET_BYTES: usize = 256 << 10;

/// The name of the link to a peer; a new link never has the name of an old one.
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

/// The name of a mapped region of a peer. A new region never has the name of a revoked one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// The word that the peer's board must hold for its queue pair before an access may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpGuard {
    pub(super) link: LinkId,
    /// Which of the board's words it is.
    pub(super) slot: u32,
    pub(super) word: u64,
}

/// A region that a peer may map.
#[derive(Clone, Copy, Debug)]
pub struct Grant<'a> {
    /// The key that the peer presents, which names the region from now on.
    pub key: u32,
    /// The queue pair that asked for the grant, or that gets the offer.
    pub qpn: u32,
    /// The region's memory; `None`: memory of the program's own, which the peer may write by the kernel.
    pub pages: Option<&'a SharedPages>,
    /// The region's offset in the pages, all of which the region covers, since a descriptor opens all of them. Without
    /// pages the region's address in this process.
    pub offset: usize,
    /// Bytes of the region.
    pub len: usize,
    /// The address by which peers name its first byte.
    pub iova: u64,
    /// The peer's rights: those of [`Access::BY_PEERS`]; others are ignored.
    pub access: Access,
    /// The protection domain, in the adapter's own numbers, for the peer to compare with a queue pair's.
    pub pd: u32,
    /// The word of the requesting queue pair on the board now.
    pub qp_word: u64,
}

/// A mapped region of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The peer's queue pair number, as the question or the offer named it.
    pub qpn: u32,
    /// The address of its first byte, as the peer names it.
    pub iova: u64,
    /// The length in bytes.
    pub len: u64,
    /// The granted rights.
    pub access: Access,
    /// The protection domain, in the peer's numbers.
    pub pd: u32,
    /// The word of the queue pair, when this was granted.
    pub qp_word: u64,
    /// The peer offered the grant without a request.
    pub offered: bool,
    /// The memory is of the peer's program, and is written by [`Reach::write_process`](crate::Reach::write_process)
    /// alone.
    pub in_process: bool,
}

/// An event between this adapter and a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The peer asks for the region of a key. This side answers by `grant` or `refuse_grant`.
    GrantAsked {
        /// The peer.
        link: LinkId,
        /// The key that the peer presents.
        key: u32,
        /// The queue pair of this adapter by which the peer would use the region.
        qpn: u32,
    },
    /// The peer has granted a region, which is now mapped.
    Granted {
        /// The peer.
        link: LinkId,
        /// The key.
        key: u32,
        /// The name of the grant.
        grant: GrantId,
        /// The granted region.
        granted: Granted,
    },
    /// The peer does not grant the region of this key, or the granted region can't be mapped. Packets serve instead.
    GrantRefused {
        /// The peer.
        link: LinkId,
        /// The key.
        key: u32,
        /// The peer's queue pair, as the question named it.
        qpn: u32,
    },
    /// The peer has mapped an offered region.
    GrantTaken {
        /// The peer.
        link: LinkId,
        /// The key.
        key: u32,
    },
    /// The peer has refused an offered region, or has unmapped a granted one.
    GrantLeft {
        /// The peer.
        link: LinkId,
        /// The key.
        key: u32,
    },
    /// The peer has revoked a region, which is no longer mapped.
    GrantRevoked {
        /// The peer.
        link: LinkId,
        /// The key.
        key: u32,
        /// The name of the grant, which is no longer valid.
        grant: GrantId,
    },
    /// The peer fetches memory that messages lend from this process.
    ProcessTaken {
        /// The peer.
        link: LinkId,
    },
    /// The peer does not fetch from this process, or no longer does.
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

/// The reason why a direct access is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// There is no such grant.
    #[error("there is no such grant")]
    Unknown,
    /// The region was revoked; a notice follows.
    #[error("the region was revoked")]
    Revoked,
    /// The queue pair's word differs from the guard's.
    #[error("the queue pair's word is {found:#x}")]
    QueuePair {
        /// The word on the board.
        found: u64,
    },
    /// The kernel does not write there for this thread, or the range or the right does not allow it. A part of the bytes
    /// may stand there.
    #[error("the kernel does not write to the peer's process")]
    Unable,
}

/// The reason why a piece was not moved; nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The piece is not within the region.
    #[error("the access is not within the region")]
    Range,
    /// The region is not granted for this.
    #[error("the region's rights do not allow the access")]
    Right,
    /// An atomic operation's word is not aligned to 8 bytes.
    #[error("the word is not aligned to 8 bytes")]
    Alignment,
    /// The bracket would move more than [`MAX_BRACKET_BYTES`].
    #[error("more than {MAX_BRACKET_BYTES} bytes within one bracket")]
    Length,
}

/// The result of a revocation. Unless `exposed` is set, peers can no longer change the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocation {
    /// The peers that were within an access for longer than the time limit, and were dropped.
    pub dropped: Vec<LinkId>,
    /// Whether the memory is private to this process from now on, because a dropped peer may write to its own mapping.
    pub private: bool,
    /// Whether a dropped peer may still change the bytes: there was no memory for private copies, or a system call of
    /// the peer that writes to memory of this program has not returned for a second. Pages of this library are never
    /// freed then. If another revocation has dropped the peer, the next one by the memory's own key says so as well, so
    /// that the program learns that the device did not release the memory.
    pub exposed: bool,
}
