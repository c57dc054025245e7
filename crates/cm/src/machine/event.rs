//! The machine's output: datagrams to send, and events for the program.

use core::fmt;

use hca_core::{Gid, Lid, Pkey};

use crate::ServiceId;
use crate::wire::{
    CmTimeout, CommId, Drep, Dreq, Info, Kind, MAD_BYTES, PrivateData, Reason, Rej, Rep, Req, Resolution,
    Rtu, SidrRep, SidrReq,
};

/// The port of a peer. Messages of the connection manager go to its queue pair 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Peer {
    /// The GID.
    pub gid: Gid,
    /// The LID on InfiniBand; 0 on RoCE.
    pub lid: Lid,
}

impl From<Gid> for Peer {
    fn from(gid: Gid) -> Self {
        Self { gid, lid: Lid::default() }
    }
}

/// A datagram to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The receiver.
    pub to: Peer,
    /// The bytes.
    pub mad: Box<[u8; MAD_BYTES]>,
}

/// The states of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnState {
    /// A REQ was sent.
    ReqSent,
    /// A REQ was received, and waits for the program's answer.
    ReqReceived,
    /// A REP was sent.
    RepSent,
    /// A REP was received, and waits for the program's answer.
    RepReceived,
    /// Both sides are ready.
    Established,
    /// A DREQ was sent.
    DreqSent,
    /// The connection has ended, and late messages about it are answered.
    TimeWait,
}

impl fmt::Display for ConnState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ReqSent => "REQ sent",
            Self::ReqReceived => "REQ received",
            Self::RepSent => "REP sent",
            Self::RepReceived => "REP received",
            Self::Established => "established",
            Self::DreqSent => "DREQ sent",
            Self::TimeWait => "time-wait",
        })
    }
}

/// The reason for which a connection or a resolution failed without a word of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// No answer came to a message and its retransmissions.
    #[error(
        "no answer to {0} and its retransmissions: the peer is unreachable, or its connection manager does not run"
    )]
    NoAnswer(Kind),
    /// The program did not answer a request in the time that the peer waits.
    #[error("the program did not answer the peer's request in time")]
    Unanswered,
    /// The peer has an older connection by the same queue pair, or began anew.
    #[error("stale connection: the queue pair or the ID belongs to an older connection; connect again")]
    Stale,
    /// The listener is gone.
    #[error("the listener was removed")]
    NoListener,
}

/// The cause of a disconnection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The peer asked for it.
    Peer,
    /// The peer does not have the connection, and says so by a rejection.
    Rejected(Reason),
    /// The peer asks for a new connection by the same queue pair, so it has lost this one.
    Stale,
}

/// An event for the program.
///
/// A connection that the program was told of, or has asked for, ends in one closing event
/// ([`Rejected`](Self::Rejected), [`Failed`](Self::Failed), [`Disconnected`](Self::Disconnected) or
/// [`DisconnectDone`](Self::DisconnectDone)), unless the program rejected it, and then in one [`Gone`](Self::Gone).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A peer asks a listener for a connection. Accept, reject or delay the answer.
    Request {
        /// The connection.
        id: CommId,
        /// The listener's service.
        service: ServiceId,
        /// The peer.
        from: Peer,
        /// The request.
        request: Req,
    },
    /// The peer accepts. Make the queue pair ready and say so, or reject.
    Reply {
        /// The connection.
        id: CommId,
        /// The peer's reply.
        reply: Rep,
    },
    /// The peer received the request or the reply, and needs time for its answer.
    Delayed {
        /// The connection.
        id: CommId,
        /// The time.
        service_timeout: CmTimeout,
    },
    /// The peer is ready: a connection that was accepted is established.
    Established {
        /// The connection.
        id: CommId,
        /// The private data of the RTU; empty where the program learnt it by [`crate::Machine::established`].
        private_data: PrivateData<{ Rtu::PRIVATE_BYTES }>,
    },
    /// The peer rejects.
    Rejected {
        /// The connection.
        id: CommId,
        /// The reason.
        reason: Reason,
        /// Additional information about the reason.
        info: Info,
        /// The private data of the REJ.
        private_data: PrivateData<{ Rej::PRIVATE_BYTES }>,
    },
    /// No connection came about.
    Failed {
        /// The connection.
        id: CommId,
        /// The reason.
        failure: Failure,
    },
    /// The connection has ended, and not by the program.
    Disconnected {
        /// The connection.
        id: CommId,
        /// The cause.
        cause: Cause,
        /// The private data of the DREQ.
        private_data: PrivateData<{ Dreq::PRIVATE_BYTES }>,
    },
    /// The connection has ended, as the program asked for.
    DisconnectDone {
        /// The connection.
        id: CommId,
        /// Whether the peer has answered, be it by asking for the same.
        answered: bool,
        /// The private data of the DREP.
        private_data: PrivateData<{ Drep::PRIVATE_BYTES }>,
    },
    /// Time-wait is over, or there was none: the queue pair may be connected again, and the ID means nothing any more.
    Gone {
        /// The connection.
        id: CommId,
    },
    /// A peer asks a listener for the queue pair of its service. Answer or ignore.
    SidrRequest {
        /// The request.
        id: CommId,
        /// The peer.
        from: Peer,
        /// The request as the peer has sent it.
        request: SidrReq,
    },
    /// The program has not answered a [`SidrRequest`](Self::SidrRequest) in time, and can not any more.
    SidrExpired {
        /// The request.
        id: CommId,
    },
    /// The answer to a resolution, which has ended with it.
    Resolved {
        /// The resolution.
        id: CommId,
        /// The peer that answered.
        from: Peer,
        /// The result.
        resolution: Resolution,
        /// The private data of the SIDR_REP.
        private_data: PrivateData<{ SidrRep::PRIVATE_BYTES }>,
    },
    /// No answer came to a resolution, which has ended.
    Unresolved {
        /// The resolution.
        id: CommId,
    },
}

impl Event {
    /// The ID of the connection or the resolution that the event is about.
    pub const fn id(&self) -> CommId {
        match self {
            Self::Request { id, .. }
            | Self::Reply { id, .. }
            | Self::Delayed { id, .. }
            | Self::Established { id, .. }
            | Self::Rejected { id, .. }
            | Self::Failed { id, .. }
            | Self::Disconnected { id, .. }
            | Self::DisconnectDone { id, .. }
            | Self::Gone { id }
            | Self::SidrRequest { id, .. }
            | Self::SidrExpired { id }
            | Self::Resolved { id, .. }
            | Self::Unresolved { id } => *id,
        }
    }
}

/// A program's answer to [`Event::SidrRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrAnswer {
    /// The result.
    pub resolution: Resolution,
    /// Private data.
    pub private_data: PrivateData<{ SidrRep::PRIVATE_BYTES }>,
}

/// A resolution that a program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolve {
    /// The peer.
    pub to: Peer,
    /// The service.
    pub service: ServiceId,
    /// Partition key.
    pub pkey: Pkey,
    /// The time until a retransmission.
    pub timeout: CmTimeout,
    /// Retransmissions.
    pub retries: u8,
    /// Private data.
    pub private_data: PrivateData<{ SidrReq::PRIVATE_BYTES }>,
}

/// An error of a call to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The machine holds as many connections and resolutions as it may.
    #[error(
        "{limit} connections and resolutions: the limit is reached; raise `Config::max_entries` or close some"
    )]
    Full {
        /// The limit.
        limit: usize,
    },
    /// Another listener has the service.
    #[error("{service} has a listener already")]
    InUse {
        /// The service.
        service: ServiceId,
    },
    /// There is no such connection, resolution or request, or not any more.
    #[error("no connection or resolution has the ID {id}: it has ended")]
    Unknown {
        /// The ID.
        id: CommId,
    },
    /// The connection is in another state than the call is for.
    #[error("the connection {id} is in state \"{state}\", in which this call has no place")]
    State {
        /// The connection.
        id: CommId,
        /// Its state.
        state: ConnState,
    },
}
