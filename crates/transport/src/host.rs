//! [`Host`] and [`TxSink`]: the adapter's side of a queue pair, which the queue pair borrows while it handles one input
//! or makes one output.

use hca_core::wire::Packet;
use hca_core::{
    Access, AhHandle, FlatOp, Qkey, Qpn, RecvExtra, RemoteAddr, Rkey, SendFlags, Srqn, WcOpcode, WcStatus,
};

/// A send request as the transport sees it; the transport accesses its memory through the [`Host`] only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// The operation.
    pub op: FlatOp,
    /// The flags of the request.
    pub flags: SendFlags,
    /// Bytes of the message (of its local list), at most 2^31.
    pub len: u32,
    /// Destination; UD only.
    pub dest: Option<UdTarget>,
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdTarget {
    /// The path.
    pub ah: AhHandle,
    /// The queue pair at the far end.
    pub qpn: Qpn,
    /// Q_Key as posted (bit 31: take the queue pair's own).
    pub qkey: Qkey,
}

/// The ends of a reliable datagram (RD).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdEnds {
    /// The queue pair that the datagram is for.
    pub to: Qpn,
    /// The Q_Key of that queue pair.
    pub qkey: Qkey,
    /// The queue pair that sends the datagram.
    pub from: Qpn,
}

/// The place of a message's bytes in the sender's memory. The transport does not read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPlace {
    /// The address of the bytes, in the adapter's terms.
    pub addr: usize,
    /// The number of bytes.
    pub len: u32,
}

/// A fault of a local scatter/gather list: a key does not allow the access to an entry (any more), or the list is too
/// short for the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalError {
    /// Key, range, right or protection domain: completes as `LocalProtection`.
    Protection,
    /// The list is too short: completes as `LocalLength`.
    Length,
}

/// The error of a remote key that does not allow an access: NAK with remote access error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAccessError;

/// An atomic operation on a 64-bit word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Replace the word by `swap` if it equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add, modulo 2^64.
    FetchAdd {
        /// The number to add.
        add: u64,
    },
    /// Store the word, by one access (ATOMIC WRITE).
    Write {
        /// New value.
        value: u64,
    },
}

impl AtomicOp {
    /// The right that it needs.
    pub const fn right(self) -> Access {
        match self {
            Self::CompareSwap { .. } | Self::FetchAdd { .. } => Access::REMOTE_ATOMIC,
            Self::Write { .. } => Access::REMOTE_WRITE,
        }
    }
}

/// The outcome of a request on the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// The request is done.
    Done,
    /// The request was begun, and goes on in the queue pair's next turn.
    Again,
    /// The memory is out of reach, or the peer has to decide: the request goes as a message.
    Unable,
    /// The request has to wait until earlier requests are done.
    Later,
    /// A local key does not allow the request.
    Fail(LocalError),
}

/// A piece of a message that the peer fetches from this side's memory itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    /// The memory's address and key, as the peer uses them.
    pub memory: RemoteAddr,
    /// The number of bytes.
    pub len: u32,
    /// For memory of the peer's process that was not granted: the words that the two adapters agreed to check. The
    /// transport does not interpret them.
    pub terms: Option<[u64; 2]>,
}

/// The reason why lent bytes could not be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoanError {
    /// The request's own list does not take the bytes.
    Local(LocalError),
    /// The key of the written memory does not allow the access.
    Remote,
    /// The memory is out of reach.
    Gone,
    /// The peer lends memory that it does not have.
    Bad,
}

impl From<LocalError> for LoanError {
    fn from(e: LocalError) -> Self {
        Self::Local(e)
    }
}

/// The completion of a receive request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvDone {
    /// Status.
    pub status: WcStatus,
    /// `Recv` or `RecvRdmaWithImm`.
    pub opcode: WcOpcode,
    /// Bytes of the message (UD: with the 40 bytes of GRH).
    pub byte_len: u32,
    /// The immediate data or the invalidated key.
    pub extra: RecvExtra,
    /// The sender asked for a solicited event.
    pub solicited: bool,
    /// Sending queue pair; UD and RD only.
    pub src_qp: Qpn,
    /// The buffer begins with a GRH; UD only.
    pub grh: bool,
}

/// An event of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpEvent {
    /// First packet while in RTR.
    CommEstablished,
    /// SQD reached and drained.
    SqDrained,
    /// In error, with a shared receive queue: the queue pair takes no more requests.
    LastWqeReached,
    /// An error that no work request reports.
    Fatal,
    /// The peer's request was invalid.
    RequestError,
    /// The peer was refused access.
    AccessError,
}

/// A kind of event that adapters count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Count {
    /// Packet for a state that takes none, or of another service, or P_Key mismatch; dropped.
    DroppedState,
    /// P_Key mismatch; dropped.
    DroppedPkey,
    /// Q_Key mismatch; dropped.
    DroppedQkey,
    /// PSN outside of every window; dropped.
    DroppedPsn,
    /// Malformed, or a sequence of opcodes that the IBA forbids, and no NAK is due; dropped.
    DroppedInvalid,
    /// No receive request (UC, UD); dropped.
    DroppedNoRecv,
    /// Duplicate request; answered again.
    Duplicate,
    /// NAK "PSN sequence error" sent.
    NakSequence,
    /// NAK "invalid request" sent.
    NakInvalid,
    /// NAK "remote access error" sent.
    NakAccess,
    /// READ that this side does not allow; such a NAK follows.
    ReadRefused,
    /// NAK "remote operational error" sent.
    NakOperational,
    /// RNR NAK sent.
    RnrNakSent,
    /// RNR NAK received.
    RnrNakReceived,
    /// NAK of another kind received.
    NakReceived,
    /// Packet sent again.
    Retransmitted,
    /// The probe timer fired.
    Probe,
    /// The queue pair's own timeout fired.
    Timeout,
    /// CNP received.
    CnpReceived,
    /// CNP sent.
    CnpSent,
    /// Packet arrived with a congestion mark.
    EcnMarked,
}
impl Count {
    /// The number of kinds.
    pub const COUNT: usize = 21;
}

/// An operation of the peer that uses no receive request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Served {
    /// RDMA WRITE, with or without immediate.
    Write,
    /// RDMA READ.
    Read,
    /// An atomic operation.
    Atomic,
    /// ATOMIC WRITE.
    AtomicWrite,
    /// FLUSH.
    Flush,
}
impl Served {
    /// The number of operations.
    pub const COUNT: usize = 5;
}

/// Bytes that an atomic operation is on.
pub(crate) const ATOMIC_BYTES: u32 = 8;

/// The adapter's side of a queue pair: its queues, its memory, its completions.
///
/// Send requests are named by a free-running index (`u32`, wrapping); the valid ones are those from
/// the oldest uncompleted to `sq_posted() - 1`.
pub trait Host {
    /// The number of send requests posted so far (wrapping): the index of the next one.
    fn sq_posted(&self) -> u32;
    /// The send request of this index.
    fn send_request(&self, index: u32) -> SendRequest;
    /// The shared receive queue of the peer that a request names (XRC initiators).
    fn named_srq(&self, _index: u32) -> Srqn {
        Srqn::default()
    }
    /// The ends of a request (end-to-end contexts).
    fn rd_ends(&self, _index: u32) -> RdEnds {
        RdEnds::default()
    }
    /// Fills `out` with bytes of a request's local list (or inline data), from `offset` on.
    ///
    /// # Errors
    /// A key does not allow the access; the contents of `out` are then undefined.
    fn gather(&mut self, index: u32, offset: u32, out: &mut [u8]) -> Result<(), LocalError>;
    /// The place of `len` bytes of a request's local list from `offset` on, if they are one piece that no code writes
    /// before the request completes; packets may then be sent from there. `None` is always allowed, and makes the
    /// transport call [`gather`](Self::gather).
    fn in_place(&mut self, _index: u32, _offset: u32, _len: u32) -> Option<InPlace> {
        None
    }
    /// Places bytes of a response into a request's local list, from `offset` on.
    ///
    /// # Errors
    /// A key does not allow the access.
    fn scatter(&mut self, index: u32, offset: u32, data: &[u8]) -> Result<(), LocalError>;
    /// Checks a request's whole local list before its first packet: reading (`write` false) or
    /// writing (`write` true).
    ///
    /// # Errors
    /// A key does not allow the access.
    fn check_local(&mut self, index: u32, write: bool) -> Result<(), LocalError>;
    /// Carries out a request that the adapter executes alone ([`FlatOp::is_local`]). All requests before it have
    /// completed.
    ///
    /// # Errors
    /// The status with which the request fails.
    fn carry_out(&mut self, _index: u32) -> Result<(), WcStatus> {
        Err(WcStatus::LocalQpOperation)
    }
    /// Completes the oldest uncompleted send request, which has this index. The success of an unsignalled request
    /// yields no completion; every other outcome does.
    fn complete_send(&mut self, index: u32, status: WcStatus, byte_len: u32);
    /// Completes the oldest `count` uncompleted send requests, from this index on, which succeeded; none of them is a
    /// READ or an atomic.
    fn complete_sends(&mut self, first: u32, count: u32) {
        (0..count).for_each(|i| self.complete_send(first.wrapping_add(i), WcStatus::Success, 0));
    }

    /// Has what follows go to the shared receive queue of this number (XRC targets): receive requests are taken from
    /// it, and keys are those of its protection domain. A receive request that is held stays that of its queue.
    ///
    /// # Errors
    /// There is no such queue in the queue pair's XRC domain; nothing has changed.
    fn enter_srq(&mut self, _number: Srqn) -> Result<(), RemoteAccessError> {
        Err(RemoteAccessError)
    }
    /// Has what follows go to the queue pair of this number (end-to-end contexts): receive requests are taken from it,
    /// and keys are those of its protection domain. A receive request that is held stays that of its queue pair. The
    /// Q_Key is that of a new request; one that is answered again has none.
    ///
    /// # Errors
    /// The RD domain has no such queue pair that receives, or the Q_Key is not that of the queue pair; nothing has
    /// changed.
    fn enter_queue_pair(&mut self, _number: Qpn, _qkey: Option<Qkey>) -> Result<(), RemoteAccessError> {
        Err(RemoteAccessError)
    }
    /// Takes the oldest receive request for the message that begins with `packet` (`None`: the message did not come as
    /// packets). Returns the bytes that the request can take, or `None` if there is no request. At most one request is
    /// held at a time.
    fn take_recv(&mut self, packet: Option<&Packet<'_>>) -> Option<u64>;
    /// Places bytes into the held receive request.
    ///
    /// # Errors
    /// A key does not allow the access, or the list ends.
    fn place_recv(&mut self, offset: u32, data: &[u8]) -> Result<(), LocalError>;
    /// Completes the held receive request.
    fn complete_recv(&mut self, done: &RecvDone);
    /// Returns the held receive request, unused, to the head of its queue (UC, UD: the message was dropped).
    fn return_recv(&mut self);
    /// The number of waiting receive requests; `None` with a shared receive queue, which counts no credits.
    fn recv_credits(&self) -> Option<u32>;
    /// Completes every remaining receive request as flushed, the held one first. With a shared receive queue only the
    /// held request is flushed.
    fn flush_recv(&mut self);
    /// Whether receive requests come from a shared receive queue.
    fn has_srq(&self) -> bool;

    /// Checks a key: protection domain, range, rights, state. `len` 0 needs no key and succeeds.
    ///
    /// # Errors
    /// The access is not allowed.
    fn check_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<(), RemoteAccessError>;
    /// Places bytes of an RDMA WRITE, key checked again.
    ///
    /// # Errors
    /// The access is not allowed; nothing was written.
    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), RemoteAccessError>;
    /// Fetches bytes for an RDMA READ, key checked again.
    ///
    /// # Errors
    /// The access is not allowed.
    fn read_remote(&mut self, rkey: Rkey, va: u64, out: &mut [u8]) -> Result<(), RemoteAccessError>;
    /// Does an atomic operation on an aligned word, key checked; returns the old value, of a [`AtomicOp::Write`] any.
    ///
    /// # Errors
    /// The access is not allowed.
    fn atomic_remote(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, RemoteAccessError>;
    /// Makes all data that was placed in a range, or in the whole region (`None`), visible to all readers of the memory
    /// ([`Access::FLUSH_GLOBAL`]), safe from a loss of power ([`Access::FLUSH_PERSISTENT`]), or both; key checked.
    ///
    /// # Errors
    /// The access is not allowed.
    fn flush_remote(
        &mut self,
        rkey: Rkey,
        range: Option<(u64, u64)>,
        rights: Access,
    ) -> Result<(), RemoteAccessError>;
    /// Invalidates a key (SEND with invalidate).
    ///
    /// # Errors
    /// The key is unknown, of another protection domain, or not one that peers may invalidate.
    fn invalidate(&mut self, rkey: Rkey) -> Result<(), RemoteAccessError>;

    /// Carries out a WRITE, READ or atomic directly on the peer's memory, if the memory is within reach. `behind`: an
    /// earlier request is under way, so nothing may be done yet. Called for connections by messages only.
    fn direct(&mut self, _index: u32, _request: &SendRequest, _behind: bool) -> Direct {
        Direct::Unable
    }

    /// Lends the peer up to `max` bytes of a request's local list from `offset` on, if the peer can reach that memory.
    /// Called for connections by messages only.
    fn lend(&mut self, _index: u32, _offset: u32, _max: u32) -> Option<Loan> {
        None
    }
    /// The peer could not reach what was lent of the oldest request; all of it is sent.
    fn loan_refused(&mut self) {}
    /// Fetches bytes that the peer lends into the held receive request.
    ///
    /// # Errors
    /// No bytes, or a part of them, were placed.
    fn place_loan(&mut self, _offset: u32, _loan: &Loan) -> Result<(), LoanError> {
        Err(LoanError::Gone)
    }

    /// Fetches bytes that the peer lends into the memory of its WRITE, key checked again.
    ///
    /// # Errors
    /// No bytes, or a part of them, were written.
    fn write_loan(&mut self, _rkey: Rkey, _va: u64, _loan: &Loan) -> Result<(), LoanError> {
        Err(LoanError::Gone)
    }
    /// Lends the peer up to `max` bytes of the memory that it READs, from `va` on, key checked, if the peer can fetch
    /// them.
    fn lend_remote(&mut self, _rkey: Rkey, _va: u64, _max: u32) -> Option<Loan> {
        None
    }
    /// Fetches bytes that the peer lends into a request's local list, from `offset` on.
    ///
    /// # Errors
    /// No bytes, or a part of them, were placed.
    fn scatter_loan(&mut self, _index: u32, _offset: u32, _loan: &Loan) -> Result<(), LoanError> {
        Err(LoanError::Gone)
    }

    /// Counts a new and allowed operation of the peer on this side's memory, which was carried out, or is being
    /// answered.
    #[inline]
    fn served(&mut self, _what: Served, _bytes: u32) {}
    /// Raises an event.
    fn event(&mut self, event: QpEvent);
    /// Counts an event.
    fn count(&mut self, what: Count);
}

/// A sink for packets to send.
pub trait TxSink {
    /// Reserves room for one packet of `len` bytes from BTH to padding. The bytes have arbitrary contents: the caller
    /// has to write every one. `None`: no room now, try again later. `to` is the path for UD. A second `reserve`
    /// without [`commit`](Self::commit) replaces the first.
    fn reserve(&mut self, to: Option<AhHandle>, len: usize) -> Option<&mut [u8]>;
    /// Marks the packet last reserved as complete: it will be sent.
    fn commit(&mut self);
    /// The least payload that is better sent in place than copied; `None`: none is.
    fn in_place_from(&self) -> Option<u32> {
        None
    }
    /// Commits the packet last reserved, whose bytes from `at` on were not written and are `payload` in place. Called
    /// only if [`in_place_from`](Self::in_place_from) allows it.
    fn commit_in_place(&mut self, _at: usize, _payload: InPlace) {
        unreachable!("this sink has every payload copied");
    }
}
