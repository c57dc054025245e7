//! Work requests, which programs post.

use crate::wire::{Feth, Placement, Selectivity};
use crate::{Access, AhHandle, Lkey, Qkey, QpHandle, Qpn, Rkey, Srqn};

/// One entry of a scatter/gather list: a piece of registered local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Sge {
    /// First byte, as an address of the region (its virtual address unless registered otherwise).
    pub addr: u64,
    /// The number of bytes; 0 is legal, and accesses no memory.
    pub len: u32,
    /// Key of the region.
    pub lkey: Lkey,
}

/// The target of an RDMA operation at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RemoteAddr {
    /// First byte at the peer.
    pub addr: u64,
    /// Key of the peer's region.
    pub rkey: Rkey,
}

/// A range of a registered region that a memory window shows to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwRange {
    /// The key of the region, which allows windows ([`Access::MW_BIND`]).
    pub lkey: Lkey,
    /// The first byte, as an address of the region.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// The rights of peers: any of [`Access::REMOTE_READ`], `REMOTE_WRITE`, `REMOTE_ATOMIC` and `FLUSH_GLOBAL`. Where
    /// they change the memory, the region allows local writes.
    pub access: Access,
    /// Peers name the first byte by address 0, not by `addr`.
    pub zero_based: bool,
}

/// The operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND into a receive request of the peer.
    Send,
    /// SEND with immediate data.
    SendImm(u32),
    /// SEND that invalidates a remote key at the peer.
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
        /// The number to add, modulo 2^64.
        add: u64,
    },
    /// WRITE of one aligned 64-bit word, which no reader sees in part. It has no local list.
    AtomicWrite {
        /// The word.
        remote: RemoteAddr,
        /// Its bytes, as they stand in memory.
        value: [u8; 8],
    },
    /// FLUSH: completes when the data of all earlier requests of this queue to that memory has reached the place that
    /// the placement type names. It has no local list.
    Flush {
        /// The first byte of the range; of a whole region, any address.
        remote: RemoteAddr,
        /// Bytes of the range; for a whole region, it means nothing.
        len: u32,
        /// Where the data must have arrived: one place, or both.
        placement: Placement,
        /// The range, or the whole region of the key.
        selectivity: Selectivity,
    },
    /// Bind of a memory window of type 2 that is not bound, to this queue pair. Nothing is sent.
    BindMw {
        /// The key of the window from now on: its present one, with any other lowest byte.
        rkey: Rkey,
        /// The range that it shows.
        range: MwRange,
    },
    /// Taking back of the key of a memory window of type 2 that is bound to this queue pair. Nothing is sent.
    LocalInv(Rkey),
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
            Self::AtomicWrite { .. } => W::AtomicWrite,
            Self::Flush { .. } => W::Flush,
            Self::BindMw { .. } => W::BindMw,
            Self::LocalInv(_) => W::LocalInv,
        }
    }
    /// Whether data comes back into the local list (READ and atomics).
    #[inline]
    pub const fn is_read_or_atomic(self) -> bool {
        matches!(self, Self::Read(_) | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }
    /// Whether it is an atomic operation that returns the old value.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }
    /// Whether it is carried out by the device alone, when all earlier requests of its queue have completed.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::BindMw { .. } | Self::LocalInv(_))
    }
    /// Whether it has a local list.
    #[inline]
    pub const fn has_list(self) -> bool {
        !self.is_local() && !matches!(self, Self::AtomicWrite { .. } | Self::Flush { .. })
    }
    /// Whether the peer needs a receive request for it.
    pub const fn consumes_recv(self) -> bool {
        matches!(self, Self::Send | Self::SendImm(_) | Self::SendInv(_) | Self::WriteImm(..))
    }
}

/// A [`SendOp`] in fields that all operations share, for code that assembles and queues requests.
///
/// An enum is copied as a whole, by loads that are wider than the stores that wrote it. A processor does not forward
/// such stores to the loads: the copy waits until the stores, and all stores before them, have reached the cache,
/// including stores to lines that another CPU holds. The fields of this type are copied one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlatOp {
    addr: u64,
    /// Immediate data, what to compare with, what to add or to write, or a length.
    first: u64,
    /// What to swap in, or the bits of a FETH.
    second: u64,
    /// Of the peer's region, or the one to take back.
    rkey: Rkey,
    code: OpCode,
}

/// Which [`SendOp`] it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpCode {
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    Flush,
    BindMw,
    LocalInv,
}

/// The bit of [`MwRange::zero_based`] beside a range's rights.
const ZERO_BASED: u64 = 1 << 8;

impl FlatOp {
    /// The packed form of an operation.
    #[inline(always)]
    pub const fn new(op: &SendOp) -> Self {
        let none = RemoteAddr { addr: 0, rkey: Rkey::new(0) };
        let (code, remote, first, second) = match op {
            SendOp::Send => (OpCode::Send, none, 0, 0),
            SendOp::SendImm(data) => (OpCode::SendImm, none, *data as u64, 0),
            SendOp::SendInv(rkey) => (OpCode::SendInv, RemoteAddr { addr: 0, rkey: *rkey }, 0, 0),
            SendOp::Write(remote) => (OpCode::Write, *remote, 0, 0),
            SendOp::WriteImm(remote, data) => (OpCode::WriteImm, *remote, *data as u64, 0),
            SendOp::Read(remote) => (OpCode::Read, *remote, 0, 0),
            SendOp::CompareSwap { remote, compare, swap } => (OpCode::CompareSwap, *remote, *compare, *swap),
            SendOp::FetchAdd { remote, add } => (OpCode::FetchAdd, *remote, *add, 0),
            SendOp::AtomicWrite { remote, value } => {
                (OpCode::AtomicWrite, *remote, u64::from_ne_bytes(*value), 0)
            }
            SendOp::Flush { remote, len, placement, selectivity } => {
                (OpCode::Flush, *remote, *len as u64, Feth::new(*selectivity, *placement).bits() as u64)
            }
            SendOp::BindMw { rkey, range } => {
                let MwRange { lkey, addr, len, access, zero_based } = *range;
                let zero_based = if zero_based { ZERO_BASED } else { 0 };
                let second = (lkey.raw() as u64) << 32 | access.bits() as u64 | zero_based;
                (OpCode::BindMw, RemoteAddr { addr, rkey: *rkey }, len, second)
            }
            SendOp::LocalInv(rkey) => (OpCode::LocalInv, RemoteAddr { addr: 0, rkey: *rkey }, 0, 0),
        };
        Self { addr: remote.addr, first, second, rkey: remote.rkey, code }
    }
    /// The operation, unpacked again.
    #[inline(always)]
    pub const fn op(&self) -> SendOp {
        let (remote, data) = (self.remote(), self.first as u32);
        match self.code {
            OpCode::Send => SendOp::Send,
            OpCode::SendImm => SendOp::SendImm(data),
            OpCode::SendInv => SendOp::SendInv(self.rkey),
            OpCode::Write => SendOp::Write(remote),
            OpCode::WriteImm => SendOp::WriteImm(remote, data),
            OpCode::Read => SendOp::Read(remote),
            OpCode::CompareSwap => SendOp::CompareSwap { remote, compare: self.first, swap: self.second },
            OpCode::FetchAdd => SendOp::FetchAdd { remote, add: self.first },
            OpCode::AtomicWrite => SendOp::AtomicWrite { remote, value: self.first.to_ne_bytes() },
            OpCode::Flush => {
                let feth = Feth::from_bits(self.second as u32);
                let region = matches!(feth.selectivity(), Some(Selectivity::Region));
                let selectivity = if region { Selectivity::Region } else { Selectivity::Range };
                SendOp::Flush { remote, len: data, placement: feth.placement(), selectivity }
            }
            OpCode::BindMw => SendOp::BindMw {
                rkey: self.rkey,
                range: MwRange {
                    lkey: Lkey::new((self.second >> 32) as u32),
                    addr: self.addr,
                    len: self.first,
                    access: Access::from_bits_truncate(self.second as u8),
                    zero_based: self.second & ZERO_BASED != 0,
                },
            },
            OpCode::LocalInv => SendOp::LocalInv(self.rkey),
        }
    }
    /// The target of an RDMA operation; meaningless for a SEND.
    #[inline(always)]
    pub const fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.addr, rkey: self.rkey }
    }
    /// Whether the operation is a SEND without immediate data or invalidation.
    #[inline(always)]
    pub const fn is_plain_send(&self) -> bool {
        matches!(self.code, OpCode::Send)
    }
    /// The target of a WRITE without immediate data; `None` for other operations.
    #[inline(always)]
    pub const fn plain_write(&self) -> Option<RemoteAddr> {
        if matches!(self.code, OpCode::Write) { Some(self.remote()) } else { None }
    }
    /// Whether it is an atomic operation that returns the old value.
    #[inline(always)]
    pub const fn is_atomic(&self) -> bool {
        matches!(self.code, OpCode::CompareSwap | OpCode::FetchAdd)
    }
    /// Whether it has a local list.
    #[inline(always)]
    pub const fn has_list(&self) -> bool {
        !self.is_local() && !matches!(self.code, OpCode::AtomicWrite | OpCode::Flush)
    }
    /// Whether it is carried out by the device alone.
    #[inline(always)]
    pub const fn is_local(&self) -> bool {
        matches!(self.code, OpCode::BindMw | OpCode::LocalInv)
    }
    /// The operation as its completion reports it.
    #[inline(always)]
    pub const fn wc_opcode(&self) -> crate::WcOpcode {
        use crate::WcOpcode as W;
        /// Of each [`OpCode`].
        const REPORTED: [W; OpCode::LocalInv as usize + 1] = [
            W::Send,
            W::Send,
            W::Send,
            W::RdmaWrite,
            W::RdmaWrite,
            W::RdmaRead,
            W::CompSwap,
            W::FetchAdd,
            W::AtomicWrite,
            W::Flush,
            W::BindMw,
            W::LocalInv,
        ];
        REPORTED[self.code as usize]
    }
}

impl From<SendOp> for FlatOp {
    fn from(op: SendOp) -> Self {
        Self::new(&op)
    }
}

bitflags::bitflags! {
    /// Options of a send request. Those that `enum ibv_send_flags` has, too, have its bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SendFlags: u8 {
        /// A success is reported by a completion (a failure always is).
        const SIGNALED = 1 << 1;
        /// The request waits until all earlier READs and atomics of this queue have completed.
        const FENCE = 1;
        /// The receive completion raises a solicited event.
        const SOLICITED = 1 << 2;
        /// Neither the program nor a peer writes the request's memory until it completes. The device may then send
        /// without a copy.
        const STABLE = 1 << 3;
    }
}

/// The local side of a send request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory, read (or written, for READ and atomics) until the request completes.
    Sges(&'a [Sge]),
    /// Bytes that are copied into the request as it is posted. Not for READ and atomics.
    Inline(&'a [u8]),
    /// Registered memory and inline bytes in one list. Not for READ and atomics.
    Mixed(Mixed<'a>),
}

/// A local list of registered memory and inline bytes.
///
/// A queue pair takes a list of at most `max_send_sge` entries, with at most `max_inline` inline bytes. A device with
/// requests of a fixed size may take fewer inline bytes beside many entries.
#[derive(Clone, Copy, Debug)]
pub struct Mixed<'a> {
    /// The entries. Only the length of an inline entry counts.
    pub entries: &'a [Sge],
    /// A bit mask of the inline entries; the lowest bit is for the first entry.
    pub inline: u64,
    /// The bytes of all inline entries, one entry behind the other.
    pub bytes: &'a [u8],
}

/// An entry of a [`Mixed`] list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixedEntry<'a> {
    /// Registered memory.
    Memory(Sge),
    /// Bytes that are copied.
    Inline(&'a [u8]),
}

impl<'a> Mixed<'a> {
    /// The number of entries that `inline` has bits for.
    pub const MAX_ENTRIES: usize = u64::BITS as usize;

    /// The entries in their order. An inline entry that is longer than the rest of `bytes` gets the rest.
    pub fn iter(&self) -> impl Iterator<Item = MixedEntry<'a>> + use<'a> {
        let Self { entries, inline, mut bytes } = *self;
        entries.iter().enumerate().map(move |(i, &entry)| {
            if i >= Self::MAX_ENTRIES || inline & 1 << i == 0 {
                return MixedEntry::Memory(entry);
            }
            let (own, rest) = bytes.split_at(bytes.len().min(entry.len as usize));
            bytes = rest;
            MixedEntry::Inline(own)
        })
    }

    /// The list as a simpler kind of payload, if all entries are memory, or all are inline.
    pub fn as_plain(&self) -> Option<Payload<'a>> {
        let all = 1_u64.checked_shl(self.entries.len() as u32).map_or(u64::MAX, |bit| bit - 1);
        match self.inline & all {
            0 => Some(Payload::Sges(self.entries)),
            // Entries beyond the bits are memory.
            inline if inline == all && self.entries.len() <= Self::MAX_ENTRIES => {
                Some(Payload::Inline(self.bytes))
            }
            _ => None,
        }
    }

    /// Bytes of the message.
    pub fn message_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| u64::from(entry.len)).sum()
    }
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

/// The destination of a request, where the connection alone does not name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dest {
    /// That of a datagram (UD).
    Datagram(UdDest),
    /// The shared receive queue of the peer's XRC domain (XRC): receive requests come from this queue, and the keys of
    /// RDMA and atomics are those of its protection domain.
    Srq(Srqn),
    /// That of a reliable datagram (RD).
    Reliable(RdDest),
}

/// The destination of a reliable datagram (RD).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdDest {
    /// The end-to-end context to the adapter of the queue pair.
    pub eec: QpHandle,
    /// The queue pair at the far end.
    pub qpn: Qpn,
    /// The Q_Key of the queue pair at the far end.
    pub qkey: Qkey,
}

impl From<RdDest> for Dest {
    fn from(dest: RdDest) -> Self {
        Self::Reliable(dest)
    }
}
impl From<UdDest> for Dest {
    fn from(dest: UdDest) -> Self {
        Self::Datagram(dest)
    }
}

/// A request for the send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The program's number for the request, which the completion carries.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The flags.
    pub flags: SendFlags,
    /// Local memory.
    pub payload: Payload<'a>,
    /// The destination; for UD, XRC and RD only.
    pub dest: Option<Dest>,
}

/// A request for a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// The program's number for the request, which the completion carries.
    pub wr_id: u64,
    /// The buffers for the message, in order. On UD the first 40 bytes hold the GRH.
    pub sges: &'a [Sge],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_plain_where_all_entries_are_of_one_kind() {
        const MAX: usize = Mixed::MAX_ENTRIES;
        let entries = [Sge { addr: 1, len: 1, lkey: Lkey::new(1) }; MAX + 2];
        for len in [0, 1, 2, MAX - 1, MAX, MAX + 1, MAX + 2] {
            for inline in [0, 1, u64::MAX >> 1, u64::MAX, !1] {
                let list = Mixed { entries: &entries[..len], inline, bytes: &[7; MAX] };
                let of_memory = list.iter().filter(|entry| matches!(entry, MixedEntry::Memory(_))).count();
                let is_right = match list.as_plain() {
                    Some(Payload::Sges(all)) => of_memory == len && all.len() == len,
                    Some(Payload::Inline(_)) => of_memory == 0,
                    other => other.is_none() && of_memory > 0 && of_memory < len,
                };
                assert!(is_right, "{len} entries, {inline:x}: {of_memory} of memory, {:?}", list.as_plain());
            }
        }
    }

    #[test]
    fn a_flat_operation_is_the_operation() {
        let remote = RemoteAddr { addr: 1 << 40, rkey: Rkey::new(7) };
        let all = [
            SendOp::Send,
            SendOp::SendImm(0xffff_fffe),
            SendOp::SendInv(Rkey::new(9)),
            SendOp::Write(remote),
            SendOp::WriteImm(remote, 3),
            SendOp::Read(remote),
            SendOp::CompareSwap { remote, compare: u64::MAX, swap: 1 << 63 },
            SendOp::FetchAdd { remote, add: u64::MAX - 1 },
            SendOp::AtomicWrite { remote, value: *b"01234567" },
            SendOp::Flush {
                remote,
                len: u32::MAX,
                placement: Placement::GLOBAL_VISIBILITY,
                selectivity: Selectivity::Range,
            },
            SendOp::Flush { remote, len: 0, placement: Placement::all(), selectivity: Selectivity::Region },
        ];
        for op in all {
            let flat = FlatOp::new(&op);
            assert_eq!((flat.op(), flat.wc_opcode()), (op, op.wc_opcode()));
            assert_eq!(flat.is_plain_send(), op == SendOp::Send);
            assert_eq!(flat.plain_write(), matches!(op, SendOp::Write(_)).then_some(remote));
            let atomic = matches!(op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
            assert_eq!(flat.is_atomic(), atomic);
            assert_eq!(flat.has_list(), op.has_list());
            if !matches!(op, SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_)) {
                assert_eq!(flat.remote(), remote);
            }
        }
    }
}
