//! Completions.

use thiserror::Error;

use crate::{QpHandle, Qpn, Rkey};

/// The status of a completed work request: all statuses of the IBA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Error)]
#[repr(u8)]
pub enum WcStatus {
    /// The request was executed.
    #[default]
    #[error("success")]
    Success = 0,
    /// The message is longer than the receive request, or a request's length is illegal.
    #[error("local length error: the message does not fit the buffers of this request")]
    LocalLength = 1,
    /// The queue pair found an internal inconsistency.
    #[error("local queue pair operation error")]
    LocalQpOperation = 2,
    /// As above, of an end-to-end context (RD).
    #[error("local end-to-end context operation error")]
    LocalEecOperation = 3,
    /// A local key does not cover an entry of the scatter/gather list, or lacks the required right.
    #[error("local protection error: a scatter/gather entry is not covered by its lkey")]
    LocalProtection = 4,
    /// The queue pair was in the error state before this request was carried out.
    #[error("work request flushed: the queue pair is in the error state")]
    WrFlushed = 5,
    /// A memory window could not be bound, or a key not be taken back by its owner.
    #[error("memory window bind error: the window, its range or its rights do not allow it")]
    MwBind = 6,
    /// The peer sent a response that fits no outstanding request.
    #[error("bad response from the peer")]
    BadResponse = 7,
    /// A protection error on the local side of an incoming RDMA WRITE with immediate.
    #[error("local access error")]
    LocalAccess = 8,
    /// The peer found the request malformed or unsupported.
    #[error("remote invalid request: the peer refuses the operation or its length")]
    RemoteInvalidRequest = 9,
    /// The peer's key does not allow the access.
    #[error("remote access error: the peer's rkey does not cover this access")]
    RemoteAccess = 10,
    /// The peer could not carry the request out.
    #[error("remote operation error: the peer could not complete the request")]
    RemoteOperation = 11,
    /// No answer within timeout and retry_cnt.
    #[error("transport retry counter exceeded: the peer does not answer")]
    RetryExceeded = 12,
    /// The peer had no receive request within rnr_retry.
    #[error("RNR retry counter exceeded: the peer posts no receive requests")]
    RnrRetryExceeded = 13,
    /// RD domain violation.
    #[error("local RDD violation")]
    LocalRddViolation = 14,
    /// Invalid RD request.
    #[error("remote invalid RD request")]
    RemoteInvalidRd = 15,
    /// The peer aborted the operation.
    #[error("remote aborted")]
    RemoteAborted = 16,
    /// Invalid end-to-end context number.
    #[error("invalid end-to-end context number")]
    InvalidEecn = 17,
    /// Invalid end-to-end context state.
    #[error("invalid end-to-end context state")]
    InvalidEecState = 18,
    /// The device failed.
    #[error("fatal device error")]
    Fatal = 19,
    /// No response in time.
    #[error("response timeout")]
    ResponseTimeout = 20,
    /// Any other error.
    #[error("general error")]
    General = 21,
}

/// The operation of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum WcOpcode {
    /// SEND, of any kind.
    #[default]
    Send,
    /// RDMA WRITE, with or without immediate.
    RdmaWrite,
    /// RDMA READ.
    RdmaRead,
    /// Compare and swap.
    CompSwap,
    /// Fetch and add.
    FetchAdd,
    /// Bind of a memory window.
    BindMw,
    /// Local invalidate.
    LocalInv,
    /// A receive request that took a SEND.
    Recv,
    /// A receive request that took the immediate data of an RDMA WRITE.
    RecvRdmaWithImm,
}

impl WcOpcode {
    /// Whether it completes a receive request.
    pub const fn is_recv(self) -> bool {
        matches!(self, Self::Recv | Self::RecvRdmaWithImm)
    }
}

/// Data that a received message carries beside its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum RecvExtra {
    /// Nothing.
    #[default]
    None,
    /// Immediate data.
    Imm(u32),
    /// A key of this side that the sender invalidated.
    Invalidated(Rkey),
}

/// The completion of one work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The id that was posted.
    pub wr_id: u64,
    /// The handle of the queue pair, which is never reused (unlike QPNs).
    pub qp: QpHandle,
    /// The status. Unless it is success, only `wr_id`, `qp` and `opcode` are valid beside it.
    pub status: WcStatus,
    /// The operation.
    pub opcode: WcOpcode,
    /// Bytes received or read; on UD the 40 bytes of GRH are counted.
    pub byte_len: u32,
    /// Immediate data or invalidated key.
    pub extra: RecvExtra,
    /// The sender's queue pair, which is never 0 (UD receives; 0 otherwise).
    pub src_qp: Qpn,
    /// Whether the buffer begins with a 40-byte GRH (UD receives). Without a GRH the 40 bytes are reserved and
    /// undefined: within an InfiniBand subnet, datagrams may have none.
    pub grh: bool,
    /// Whether the sender asked for a solicited event; not every device reports it.
    pub solicited: bool,
}
