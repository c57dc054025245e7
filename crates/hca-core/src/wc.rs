//! Completions.

use thiserror::Error;

use crate::{QpHandle, Qpn, Rkey, Srqn};

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
    /// WRITE of one word that is not torn.
    AtomicWrite,
    /// FLUSH.
    Flush,
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
    /// The handle of the queue pair, which is never reused (unlike QPNs). For a receive request of an XRC domain, that of
    /// the target queue pair that took it.
    pub qp: QpHandle,
    /// The status. Unless it is success, only `wr_id`, `qp`, `opcode`, `srq` and [`vendor_code`](Self::vendor_code) are
    /// valid beside it.
    pub status: WcStatus,
    /// The operation.
    pub opcode: WcOpcode,
    /// Bytes received or read; on UD the 40 bytes of GRH are counted. Of a failed request, the
    /// [vendor code](Self::vendor_code).
    pub byte_len: u32,
    /// Immediate data or invalidated key.
    pub extra: RecvExtra,
    /// The sender's queue pair, which is never 0 (UD receives; 0 otherwise).
    pub src_qp: Qpn,
    /// The number of the XRC domain's shared receive queue whose request it was; 0, which no such queue has, for every
    /// other request.
    pub srq: Srqn,
    /// Whether the buffer begins with a 40-byte GRH (UD receives). Without a GRH the 40 bytes are reserved and
    /// undefined: within an InfiniBand subnet, datagrams may have none.
    pub grh: bool,
    /// Whether the sender asked for a solicited event; not every device reports it.
    pub solicited: bool,
}

impl Completion {
    /// The device's own number for the failure, beside the status; 0 for a success, and if the device has none. The
    /// software adapter has the codes of [`KeyFault`], ConnectX the vendor syndrome of its completion queue entry.
    #[inline]
    pub const fn vendor_code(&self) -> u8 {
        match self.status {
            WcStatus::Success => 0,
            _ => self.byte_len as u8,
        }
    }
}

/// The reason why a key does not allow an access.
///
/// A peer learns the status only ([`WcStatus::RemoteAccess`]). The owner of the key has a counter for each reason, and
/// the [vendor code](Completion::vendor_code) of completions whose local key failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[repr(u8)]
pub enum KeyFault {
    /// No object has the key: the key was never given, or another object has its place by now.
    #[error("no memory region or window has the key")]
    Unknown = 1,
    /// The region was deregistered, the key invalidated, or the window is not bound.
    #[error("the key was freed: its region is deregistered, the key invalidated or the window not bound")]
    Freed = 2,
    /// The object belongs to another protection domain, or the window to another queue pair.
    #[error("the key belongs to another protection domain, or its window to another queue pair")]
    OtherPd = 3,
    /// The access begins in front of the object or ends behind it.
    #[error("the range is not inside of the memory that the key names")]
    Range = 4,
    /// The object lacks a right that the access needs.
    #[error("the key lacks a right that the access needs")]
    Right = 5,
}

impl KeyFault {
    /// All reasons, in the order of their codes.
    pub const ALL: [Self; 5] = [Self::Unknown, Self::Freed, Self::OtherPd, Self::Range, Self::Right];

    /// The reason as the vendor code of a completion.
    pub const fn code(self) -> u8 {
        self as u8
    }
    /// The reason with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.code() == code)
    }
}
