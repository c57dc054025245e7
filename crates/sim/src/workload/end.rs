//! One queue pair of the workload, and its present activity.

use core::ops::Range;
use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;

use hca_core::{
    AhHandle, Gid, Instant, MrKeys, MwHandle, QpHandle, Qpn, RecvPort, Rkey, SendPort, Srqn, WcOpcode,
    WcStatus,
};

use super::host::{Host, Srq, XrcDomain};
use super::plan::Mistake;
use super::zone::Zone;
use crate::checker::{Datagrams, Ledger, Order, Stream};

/// Where a range was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The host's zone for local use.
    Local,
    /// The host's zone for receive buffers.
    Recv,
    /// The host's spare receive buffers.
    Spare,
    /// The host's zone for peers.
    Remote,
    /// An end's own region.
    Own(usize),
}

/// A range of a host's arena that is in use; several requests may share it.
#[derive(Debug)]
pub(super) struct Span {
    pub(super) host: usize,
    pub(super) epoch: u32,
    pub(super) origin: Origin,
    pub(super) range: Range<usize>,
}

/// What a request promises.
#[derive(Debug)]
pub(super) enum Promise {
    /// The message with this number is at the peer.
    Send(Option<u64>),
    /// The peer's memory holds these bytes; with immediate data the message is there too.
    Write { target: Rc<Span>, bytes: Vec<u8>, number: Option<u64> },
    /// The local list holds these bytes.
    Read { bytes: Vec<u8>, source: Option<Rc<Span>> },
    /// The local list holds this value.
    Atomic { old: u64 },
    /// The local list holds a value that nobody else got.
    SharedAdd,
    /// The peer's memory holds these bytes, which an earlier request wrote.
    Flush { target: Rc<Span>, bytes: Vec<u8> },
    /// The word that this end alone changes holds what was written: the next atomic on it tells.
    AtomicWrite,
    /// The window with this index among the end's is bound.
    Bind(usize),
    /// It fails.
    Mistake,
}

#[derive(Debug)]
pub(super) struct Op {
    pub(super) promise: Promise,
    /// The operation that its completion names.
    pub(super) opcode: WcOpcode,
    pub(super) len: usize,
    /// The local list.
    pub(super) pieces: Vec<Rc<Span>>,
}

/// A receive request's buffer.
#[derive(Debug)]
pub(super) struct RecvBuf {
    pub(super) pieces: Vec<Rc<Span>>,
}

/// Memory at this end's host that its peer alone works with.
pub(super) struct Own {
    pub(super) zone: Zone,
    pub(super) keys: MrKeys,
    pub(super) revoked: bool,
}

/// A region, or a memory window of type 2, that the peer may take back.
pub(super) struct Invalidatable {
    pub(super) what: Lent,
    pub(super) rkey: Rkey,
    pub(super) range: Range<usize>,
    pub(super) state: Lending,
}

/// A loan.
pub(super) enum Lent {
    Region(MrKeys),
    Window(MwHandle),
}

/// How far it is with what is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lending {
    /// The window is not bound, and no request to bind it was posted.
    Unbound,
    /// The request that binds it is under way, or failed.
    Asked,
    /// The key is good.
    Lent,
    /// A SEND that takes it back was posted.
    Used,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Up,
    /// In the error state: it failed, or was put there.
    Down,
    /// Destroyed, or its node crashed.
    Gone,
}

/// The end of an extended reliable connection (XRC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It only sends, and each request names a shared receive queue of the peer's domain.
    Initiator,
    /// It only receives, by the shared receive queues of its node's domain.
    Target,
}

/// A send queue that drains (SQD).
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    /// When the device said that it has.
    pub(super) drained: Option<Instant>,
    /// How long it stays so at most, and when it goes on.
    pub(super) pause: Duration,
    pub(super) resume_at: Option<Instant>,
}

pub(super) struct End {
    pub(super) conn: usize,
    pub(super) host: usize,
    pub(super) epoch: u32,
    pub(super) peer: usize,
    pub(super) life: Life,
    pub(super) handle: QpHandle,
    pub(super) qpn: Qpn,
    pub(super) role: Option<Role>,
    /// The queue that the next requests of an initiator name.
    pub(super) names: Srqn,
    /// The host's completion queues that it sends and receives on.
    pub(super) cqs: [usize; 2],
    /// One of them overran.
    pub(super) overran: bool,
    /// Messages that the peer was told have arrived while this end's program did not look: all up to this number.
    pub(super) owed: Option<u64>,
    /// `None` once it, or its process, is gone.
    pub(super) send: Option<Box<dyn SendPort>>,
    /// `None` once it is gone, and where it shares a receive queue.
    pub(super) recv: Option<Box<dyn RecvPort>>,
    pub(super) shares: bool,
    /// The multicast group that it is a member of.
    pub(super) group: Option<(AhHandle, Gid)>,
    pub(super) ah: Option<AhHandle>,
    /// The end-to-end context by which it sends reliable datagrams.
    pub(super) eec: Option<QpHandle>,
    pub(super) sq: Ledger,
    pub(super) rq: Ledger,
    pub(super) ops: BTreeMap<u64, Op>,
    /// Messages to this end (RC).
    pub(super) stream: Stream,
    /// Messages to this end (UC, UD).
    pub(super) datagrams: Datagrams,
    /// UC: what a WRITE with this immediate data placed.
    pub(super) placed: BTreeMap<u32, (Range<usize>, Vec<u8>)>,
    pub(super) left: u32,
    pub(super) next_post: Instant,
    pub(super) next_recv: Instant,
    /// When it last posted a request or saw one complete, or its peer went away.
    pub(super) progress_at: Instant,
    /// A word at the peer that only this end changes: offset and what it holds.
    pub(super) word: Option<(Range<usize>, u64)>,
    pub(super) own: Option<Own>,
    pub(super) invalidatable: Vec<Invalidatable>,
    /// A memory window of type 1 at this end's host, through which its peer may work, and its key.
    pub(super) window: Option<(MwHandle, Rkey)>,
    pub(super) mistake: Option<Mistake>,
    /// How the mistake it made has to end.
    pub(super) made: Option<WcStatus>,
    /// Its mistake was a message longer than the peer's receive requests.
    pub(super) too_long: bool,
    /// Receive requests that ended as too short.
    pub(super) short: u32,
    pub(super) drain: Option<Drain>,
    /// When it went on after its last drain.
    pub(super) resumed_at: Instant,
    /// Unsignalled requests since the last signalled one.
    pub(super) unsignaled: u32,
    /// It was put into the error state by the program.
    pub(super) forced: bool,
    /// Ranges of requests that failed: what they hold is anybody's guess until the queue pairs are gone.
    pub(super) tainted: Vec<Rc<Span>>,
}

impl End {
    pub(super) fn new_ledgers() -> (Ledger, Ledger) {
        (Ledger::new(Order::Fifo), Ledger::new(Order::Fifo))
    }
    /// How many queues it receives by.
    pub(super) fn recv_queues(&self) -> usize {
        match self.role {
            Some(Role::Initiator) => 0,
            Some(Role::Target) => XrcDomain::QUEUES,
            None => 1,
        }
    }
    /// The shared one of the queues that it receives by with this index, if it shares them.
    pub(super) fn shared_queue<'h>(&self, host: &'h mut Host, index: usize) -> Option<&'h mut Srq> {
        match self.role {
            Some(Role::Target) => host.xrc.as_mut()?.queues.get_mut(index).map(|(_, srq)| srq),
            _ => host.srq.as_mut().filter(|_| self.shares),
        }
    }
    /// Nothing is left to do.
    pub(super) fn is_idle(&self) -> bool {
        self.sq.is_empty() && (self.life != Life::Up || self.left == 0 && self.drain.is_none())
    }
}
