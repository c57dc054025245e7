//! Work requests: what a program posts.

use crate::{AhHandle, Lkey, Qkey, Qpn, Rkey};

/// One entry of a scatter/gather list: a piece of registered local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Sge {
    /// First byte, as an address of the region (its virtual address unless registered otherwise).
    pub addr: u64,
    /// Bytes; 0 is legal and touches nothing.
    pub len: u32,
    /// Key of the region.
    pub lkey: Lkey,
}

/// Where an RDMA operation goes at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RemoteAddr {
    /// First byte at the peer.
    pub addr: u64,
    /// Key of the peer's region.
    pub rkey: Rkey,
}

/// The operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND into a receive request of the peer.
    Send,
    /// SEND with immediate data.
    SendImm(u32),
    /// SEND that takes back a remote key at the peer.
    SendInv(Rkey),
    /// RDMA WRITE.
    Write(RemoteAddr),
    /// RDMA WRITE that also consumes a receive request, to deliver immediate data.
    WriteImm(RemoteAddr, u32),
    /// RDMA READ.
    Read(RemoteAddr),
    /// Compare the 64-bit word at the peer and swap if equal; the old value comes back.
    CompareSwap {
        /// The word.
        remote: RemoteAddr,
        /// Swap if the word equals this.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Add to the 64-bit word at the peer; the old value comes back.
    FetchAdd {
        /// The word.
        remote: RemoteAddr,
        /// What to add, modulo 2^64.
        add: u64,
    },
}

impl SendOp {
    /// The operation as its completion reports it.
    pub const fn wc_opcode(self) -> crate::WcOpcode {
        use crate::WcOpcode as W;
        match self {
            Self::Send | Self::SendImm(_) | Self::SendInv(_) => W::Send,
            Self::Write(_) | Self::WriteImm(..) => W::RdmaWrite,
            Self::Read(_) => W::RdmaRead,
            Self::CompareSwap { .. } => W::CompSwap,
            Self::FetchAdd { .. } => W::FetchAdd,
        }
    }
    /// Whether data comes back into the local list (READ and atomics).
    pub const fn is_read_or_atomic(self) -> bool {
        matches!(self, Self::Read(_) | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }
    /// Whether the peer needs a receive request for it.
    pub const fn consumes_recv(self) -> bool {
        matches!(self, Self::Send | Self::SendImm(_) | Self::SendInv(_) | Self::WriteImm(..))
    }
}

bitflags::bitflags! {
    /// Options of a send request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SendFlags: u8 {
        /// A success is reported by a completion (a failure always is).
        const SIGNALED = 1;
        /// Wait until all earlier READs and atomics of this queue have completed.
        const FENCE = 1 << 1;
        /// The receive completion raises a solicited event.
        const SOLICITED = 1 << 2;
    }
}

/// The local side of a send request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory, read (or written, for READ and atomics) until the request completes.
    Sges(&'a [Sge]),
    /// Bytes that are copied into the request as it is posted. Not for READ and atomics.
    Inline(&'a [u8]),
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDest {
    /// The path.
    pub ah: AhHandle,
    /// The queue pair at the far end.
    pub qpn: Qpn,
    /// The Q_Key to send; one with bit 31 set sends the queue pair's own.
    pub qkey: Qkey,
}

/// A request for the send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// Local memory.
    pub payload: Payload<'a>,
    /// Where to; for UD only.
    pub dest: Option<UdDest>,
}

/// A request for a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the message is placed, in order. On UD its first 40 bytes take the GRH.
    pub sges: &'a [Sge],
}
