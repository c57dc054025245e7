//! A peer: the connection to another node, and the operations under way on it.

use std::collections::VecDeque;

use hca_core::{Instant, QpHandle, Qpn, Sge};
use hca_matching::{Delivery, Flight, NiFail, Response};
use hca_verbs::raw::RawQp;
use hca_verbs::{AddressHandle, Endpoint};

use super::hello::{Hello, Identity};
use super::slab::Slab;
use crate::wire::Piece;

/// Operations of one side that the other has not answered. A node keeps to it, and drops a peer that does not.
pub(super) const WINDOW: u32 = 1024;

/// The stage of a connection.
pub(super) enum Stage {
    /// Hellos go to and fro.
    Connecting(Connecting),
    /// Both queue pairs are connected.
    Up,
}

pub(super) struct Connecting {
    pub(super) datagrams: Qpn,
    pub(super) step: Step,
    /// The peer's last hello, while device work had the queue pair.
    pub(super) hello: Option<Hello>,
    /// A message came while the queue pair was away: the peer knows this side.
    pub(super) is_known: bool,
    /// When the next hello goes.
    pub(super) next: Instant,
    pub(super) tries: u32,
    /// When it is given up.
    pub(super) deadline: Instant,
}

/// The step of the queue pair of a connection that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It is being made.
    Making,
    /// Nothing: it is here.
    Here,
    /// It is being reset. Its completions belong to the earlier connection.
    Resetting,
    /// It is being connected.
    Connecting,
}

/// An operation that this side began and the peer has not answered, or that has not left yet.
pub(super) struct Flying {
    pub(super) flight: Flight,
    pub(super) ni: u8,
    /// Its `SEND` event is still to be posted.
    pub(super) unsent: bool,
    /// It has left.
    pub(super) gone: bool,
    /// What it sends, if its memory may be changed as soon as its call returns.
    pub(super) copy: Option<Box<[u8]>>,
}

/// Bytes that are being fetched from the peer's memory.
pub(super) struct Fetch {
    /// Requests that have not completed, or not been posted.
    pub(super) left: u32,
    pub(super) whose: Fetched,
}

pub(super) enum Fetched {
    /// Of a put: its delivery, and the sender's token.
    Put { ni: u8, delivery: Delivery, token: u32 },
    /// Of a reply: the operation, what became of it, and the token that lets the lender's memory go.
    Reply { flying: Flying, response: Response, lender: u32 },
}

/// An entry's bytes that the peer fetches.
pub(super) struct Lending {
    pub(super) ni: u8,
    pub(super) delivery: Delivery,
}

/// The requests that wait to be posted.
pub(super) enum Out {
    /// An operation; its token.
    Request(u32),
    /// An answer, with the bytes of a reply.
    Response {
        token: u32,
        response: Response,
        data: Vec<u8>,
    },
    /// A reply whose bytes the peer fetches.
    Lent {
        token: u32,
        response: Response,
        lender: u32,
        pieces: Vec<Piece>,
    },
    /// Memory that the peer lent was fetched.
    Fetched {
        token: u32,
        fail: NiFail,
    },
    /// A part of a fetch.
    Read {
        fetch: u32,
        from: Piece,
        to: Vec<Sge>,
    },
    /// The transport answers it.
    Ping,
    Bye,
}

pub(super) struct Peer {
    pub(super) identity: Identity,
    pub(super) stage: Stage,
    /// `None`: it belongs to device work, which the queue pair of an open connection never does.
    pub(super) qp: Option<RawQp>,
    /// Its handle, once it is made.
    pub(super) handle: Option<QpHandle>,
    /// The path to the peer, once it is made.
    pub(super) to: Option<AddressHandle>,
    pub(super) ours: Option<Endpoint>,
    /// Requests that it takes.
    pub(super) depth: u32,
    /// Which of this side's queue pairs it is.
    pub(super) attempt: u32,
    /// The peer's, once it is connected to, and which of the peer's that is.
    pub(super) theirs: Option<(Endpoint, u32)>,
    pub(super) flying: Slab<Flying>,
    /// Of puts, as many as the peer's window lets it have, and of replies, as many as this side's does.
    pub(super) fetches: Slab<Fetch>,
    /// Fetches of replies. Each has its place in the window until its end is reported to the peer.
    pub(super) replies: u32,
    pub(super) lendings: Slab<Lending>,
    pub(super) backlog: VecDeque<Out>,
    /// Answers in the backlog.
    pub(super) answers: u32,
    /// Operations for which the window has no place yet.
    pub(super) waiting: VecDeque<Flying>,
    /// Requests were posted whose doorbell was not rung.
    pub(super) unrung: bool,
    /// Among those that wait for room that all peers share.
    pub(super) blocked: bool,
    /// Requests posted and known to be done, counted on for ever.
    pub(super) posted: u32,
    pub(super) done: u32,
    /// Posted since the last one that will tell.
    pub(super) silent: u32,
    /// Send slots in use, with the count of posts behind each.
    pub(super) slots: VecDeque<(u32, u32)>,
    /// The last sign of life was asked for at.
    pub(super) pinged: Instant,
}

impl Peer {
    pub(super) fn new(identity: Identity, meeting: Connecting, attempt: u32) -> Self {
        Self {
            identity,
            stage: Stage::Connecting(meeting),
            qp: None,
            handle: None,
            to: None,
            ours: None,
            depth: 0,
            attempt,
            theirs: None,
            flying: Slab::new(WINDOW),
            fetches: Slab::new(2 * WINDOW),
            replies: 0,
            lendings: Slab::new(WINDOW),
            backlog: VecDeque::new(),
            answers: 0,
            waiting: VecDeque::new(),
            unrung: false,
            blocked: false,
            posted: 0,
            done: 0,
            silent: 0,
            slots: VecDeque::new(),
            pinged: Instant::ZERO,
        }
    }
    /// The queue pair of an open connection.
    #[inline]
    pub(super) fn qp(&mut self) -> &mut RawQp {
        self.qp.as_mut().expect("an open connection has its queue pair")
    }
    /// Whether what its queue pair yields is of the connection that it has, or is about to have.
    #[inline]
    pub(super) fn listens(&self) -> bool {
        match &self.stage {
            Stage::Up => true,
            Stage::Connecting(meeting) => meeting.step != Step::Resetting,
        }
    }
    #[inline]
    pub(super) fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up)
    }
    /// Whether the next post overtakes nothing that waits to be posted.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        self.is_up() && self.backlog.is_empty()
    }
    /// Whether the window has no place for another operation.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.flying.len() + self.replies >= WINDOW
    }
    /// Whether as many puts of the peer are being fetched as its window has.
    pub(super) fn is_full_of_puts(&self) -> bool {
        self.fetches.len() - self.replies >= WINDOW
    }
    /// Requests that may not be done.
    #[inline]
    pub(super) fn outstanding(&self) -> u32 {
        self.posted.wrapping_sub(self.done)
    }
    /// Whether something of an interface is under way.
    pub(super) fn has_any_of(&self, ni: u8) -> bool {
        let of_fetch = |fetch: &Fetch| match &fetch.whose {
            Fetched::Put { ni: of, .. } => *of == ni,
            Fetched::Reply { flying, .. } => flying.ni == ni,
        };
        self.flying.iter().chain(&self.waiting).any(|flying| flying.ni == ni)
            || self.fetches.iter().any(of_fetch)
            || self.lendings.iter().any(|lending| lending.ni == ni)
    }
    /// Whether something is waited for that only the peer can end.
    pub(super) fn awaits(&self) -> bool {
        !self.flying.is_empty() || !self.lendings.is_empty()
    }
}
