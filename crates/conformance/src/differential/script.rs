//! The actions of a script. A script names every object by its place (side, pair, region), since handles, keys, numbers
//! and addresses differ between fabrics.

use hca_core::{Access, Mtu, QpState, QpType, SendFlags, WcStatus};

use crate::qp::ALL;

/// 0 or 1: one of the two adapters.
pub(super) type Side = usize;

/// Regions of each side, by their index in [`Config::regions`].
pub(super) mod slot {
    /// Long, everything allowed, from the device's allocator.
    pub(crate) const MAIN: usize = 0;
    /// The same in memory of the program's own.
    pub(crate) const FOREIGN: usize = 1;
    /// No rights for peers.
    pub(crate) const LOCAL: usize = 2;
    /// Peers may read; nobody writes.
    pub(crate) const READ_ONLY: usize = 3;
    /// Peers may write only; named by addresses of its own.
    pub(crate) const WRITE_ONLY: usize = 4;
    /// Peers may take these keys back.
    pub(crate) const VICTIMS: core::ops::Range<usize> = 5..8;
    /// In another protection domain.
    pub(crate) const STRANGE: usize = 8;
    /// The number.
    pub(crate) const COUNT: usize = 9;
}

/// A region as it is registered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub(super) len: usize,
    pub(super) access: Access,
    /// In memory of the program's own, at an odd place.
    pub(super) foreign: bool,
    /// Requests name its first byte by this address instead of its own.
    pub(super) iova: Option<u64>,
}

/// What has a completion queue of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cqs {
    Queue,
    QueuePair,
    Adapter,
}

/// What holds for a whole script.
#[derive(Clone, Debug)]
pub(super) struct Config {
    /// The services of the pairs.
    pub(super) pairs: Vec<QpType>,
    pub(super) mtu: Mtu,
    pub(super) cqs: Cqs,
    /// Sides whose receive requests come from a shared queue.
    pub(super) srq: [bool; 2],
    pub(super) rnr_retry: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_inline: u32,
    /// Local ACK timeout and retries; short where a script has to do with silent peers.
    pub(super) timeout: (u8, u8),
    /// Whether there is room for messages of hundreds of KiB.
    pub(super) long: bool,
}

impl Config {
    pub(super) fn regions(&self) -> [Region; slot::COUNT] {
        use Access as A;
        let (main, foreign) = if self.long { (1 << 20, 640 << 10) } else { (96 << 10, 48 << 10) };
        let region = |len, access, foreign| Region { len, access, foreign, iova: None };
        [
            region(main, ALL, false),
            region(foreign, ALL, true),
            region(8 << 10, A::LOCAL_WRITE, false),
            region(8 << 10, A::REMOTE_READ, false),
            Region { iova: Some(0x7_0000_0008), ..region(8 << 10, A::LOCAL_WRITE | A::REMOTE_WRITE, false) },
            region(4 << 10, ALL, false),
            region(4 << 10, ALL, true),
            region(6 << 10, ALL, false),
            region(4 << 10, ALL, false),
        ]
    }
}

/// Which key a request shows for a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyOf {
    /// The region's.
    Good,
    /// The one that it had before it was registered again, or that was taken back.
    Stale,
    /// One that names nothing.
    Unknown,
}

/// A piece of a region of one's own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) slot: usize,
    pub(super) off: usize,
    pub(super) len: usize,
    pub(super) key: KeyOf,
}

/// A place in a region of the peer's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Far {
    pub(super) slot: usize,
    pub(super) off: usize,
    pub(super) key: KeyOf,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Send,
    SendImm(u32),
    /// Takes back the key of a region of the peer's.
    SendInv(usize, KeyOf),
    Write(Far),
    WriteImm(Far, u32),
    Read(Far),
    CompareSwap(Far, u64, u64),
    FetchAdd(Far, u64),
}

impl Op {
    pub(super) fn consumes_recv(self) -> bool {
        matches!(self, Self::Send | Self::SendImm(_) | Self::SendInv(..) | Self::WriteImm(..))
    }
}

#[derive(Clone, Debug)]
pub(super) enum Data {
    Parts(Vec<Part>),
    Inline(Vec<u8>),
    /// Memory and inline bytes in one list.
    Mixed(Vec<Piece>),
}

/// An entry of a list that has inline bytes.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    Part(Part),
    Inline(Vec<u8>),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Part(part) => part.len,
            Self::Inline(bytes) => bytes.len(),
        }
    }
}

impl Data {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Parts(parts) => parts.iter().map(|p| p.len).sum(),
            Self::Inline(bytes) => bytes.len(),
            Self::Mixed(entries) => entries.iter().map(Piece::len).sum(),
        }
    }
}

/// A send request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) wr_id: u64,
    pub(super) op: Op,
    pub(super) flags: SendFlags,
    pub(super) data: Data,
    /// How it ends.
    pub(super) expect: WcStatus,
    /// A datagram that shows another Q_Key than the peer's.
    pub(super) wrong_qkey: bool,
}

/// A step of a script.
#[derive(Clone, Debug)]
pub(super) enum Act {
    /// Posts a receive request, to the shared queue where there is one.
    Recv { side: Side, pair: usize, wr_id: u64, parts: Vec<Part> },
    /// Posts a batch.
    Post { side: Side, pair: usize, requests: Vec<Request> },
    /// Turns both adapters so often.
    Turn(usize),
    /// Waits until all signalled requests have completed, and all is quiet.
    Await,
    /// Waits until the signalled requests before this one have completed, and goes on for a while: it and those behind
    /// it wait for something that has not come.
    Hold { side: Side, pair: usize, wr_id: u64 },
    /// Takes a region's keys back.
    Dereg { side: Side, slot: usize },
    /// Registers the same memory again.
    Rereg { side: Side, slot: usize },
    /// Writes what nobody promised the content of.
    Fill { side: Side, part: Part },
    /// Changes only the state.
    State { side: Side, pair: usize, to: QpState },
    /// To SQD, with an event.
    Drain { side: Side, pair: usize },
    /// What peers may do by one queue pair.
    Allow { side: Side, pair: usize, access: Access },
    /// Both ends through RESET to RTS again.
    Reset { pair: usize, psn: [u32; 2] },
    /// All queue pairs and shared queues anew; `rests`: that side of the first pair stays in RTR.
    Rebuild { psn: [u32; 2], rests: Option<Side> },
    /// From RTR to RTS.
    Rise { side: Side, psn: u32 },
    /// One end goes.
    Destroy { side: Side, pair: usize },
    /// Arms the limit event of a side's shared queue.
    Limit { side: Side, limit: u32 },
}

/// A script: what two programs do, one on each adapter.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) config: Config,
    pub(super) psn: [u32; 2],
    pub(super) acts: Vec<Act>,
    /// What regions hold at first.
    pub(super) content: Vec<u8>,
}
