//! One connection: its state, and what is known of the peer.

use core::time::Duration;

use hca_core::{Instant, Psn, Qpn};

use super::event::{ConnState, Peer};
use crate::ServiceId;
use crate::wire::{CommId, Guid, Ids, MAD_BYTES, Req, TransactionId};

/// A datagram as bytes.
pub(super) type Bytes = Box<[u8; MAD_BYTES]>;

/// A message that is sent again until it is answered.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) mad: Bytes,
    /// Retransmissions that are left.
    pub(super) left: u8,
    /// An MRA has prolonged the wait since the last transmission.
    pub(super) delayed: bool,
}

#[derive(Debug)]
pub(super) enum State {
    ReqSent(Sending),
    /// `delayed`: an MRA was sent.
    ReqReceived {
        delayed: bool,
    },
    RepSent(Sending),
    RepReceived {
        delayed: bool,
    },
    /// The RTU, on the side that sent it: the answer to a duplicate REP.
    Established {
        rtu: Option<Bytes>,
    },
    DreqSent(Sending),
    /// The answer to a duplicate REQ or REP, if the connection was rejected here.
    TimeWait {
        answer: Option<Bytes>,
    },
}

impl State {
    pub(super) const fn name(&self) -> ConnState {
        match self {
            Self::ReqSent(_) => ConnState::ReqSent,
            Self::ReqReceived { .. } => ConnState::ReqReceived,
            Self::RepSent(_) => ConnState::RepSent,
            Self::RepReceived { .. } => ConnState::RepReceived,
            Self::Established { .. } => ConnState::Established,
            Self::DreqSent(_) => ConnState::DreqSent,
            Self::TimeWait { .. } => ConnState::TimeWait,
        }
    }
}

/// The peer's side, as its messages describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    pub(super) id: CommId,
    pub(super) guid: Guid,
    pub(super) qpn: Qpn,
}

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) state: State,
    pub(super) peer: Peer,
    /// Of the REQ, and of all answers to it.
    pub(super) transaction: TransactionId,
    pub(super) remote: Option<Remote>,
    pub(super) local_qpn: Qpn,
    /// The first PSN of the REQ: tells a duplicate from a new request with the same ID.
    pub(super) starting_psn: Psn,
    /// The listener whose backlog the request is in.
    pub(super) listener: Option<ServiceId>,
    /// The time until a retransmission.
    pub(super) wait: Duration,
    /// Retransmissions of a message.
    pub(super) retries: u8,
    /// The time that a packet and its acknowledgement take.
    pub(super) round_trip: Duration,
    /// The time in which either side repeats its REQ or REP.
    pub(super) repeats: Duration,
    /// How long the last MRA of this side has the peer wait before that.
    pub(super) delay: Duration,
    /// The program has had the closing event, or has closed the connection itself.
    pub(super) closed: bool,
    /// The program does not want any events.
    pub(super) forgotten: bool,
    pub(super) timer: Option<Instant>,
}

impl Conn {
    pub(super) fn ids(&self, local: CommId) -> Ids {
        Ids { local, remote: self.remote.map_or(CommId(0), |remote| remote.id) }
    }
    /// Whether the peer has this ID for the connection.
    pub(super) fn is_remote(&self, id: CommId) -> bool {
        self.remote.is_some_and(|remote| remote.id == id)
    }
    /// Whether this is the request that the connection began with.
    pub(super) fn began_with(&self, transaction: TransactionId, request: &Req) -> bool {
        self.transaction == transaction
            && self.starting_psn == request.starting_psn
            && self.remote.is_some_and(|remote| remote.qpn == request.local_qpn)
    }
    /// Time-wait: the time in which late messages come.
    pub(super) fn time_wait(&self) -> Duration {
        match self.state {
            // The peer repeats its message until it has the answer, which may get lost.
            State::ReqReceived { .. } | State::RepSent(_) | State::RepReceived { .. } => {
                self.repeats + self.delay
            }
            _ => self.round_trip,
        }
    }
    /// A message that waits for its answer from now on.
    pub(super) fn sending(&self, mad: Bytes) -> Sending {
        Sending { mad, left: self.retries, delayed: false }
    }
}
