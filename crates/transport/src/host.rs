//! What a queue pair borrows from its adapter while it handles one input or makes one output.

use hca_core::wire::Packet;
use hca_core::{
    Access, AhHandle, FlatOp, Qkey, Qpn, RecvExtra, RemoteAddr, Rkey, SendFlags, WcOpcode, WcStatus,
};

/// A send request as the transport sees it; its memory is reached through the [`Host`] only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// What to do.
    pub op: FlatOp,
    /// How.
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

/// Bytes of a message where they lie. The transport does not look at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPlace {
    /// Their address, as the adapter has it.
    pub addr: usize,
    /// How many they are.
    pub len: u32,
}

/// A local key does not (any more) cover an entry of a scatter/gather list with the right needed,
/// or a list is too short for what is to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalError {
    /// Key, range, right or protection domain: completes as `LocalProtection`.
    Protection,
    /// The list is too short: completes as `LocalLength`.
    Length,
}

/// A remote key does not allow the access: NAK with remote access error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAccessError;

/// An atomic operation on a 64-bit word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Swap `swap` in if the word equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add, modulo 2^64.
    FetchAdd {
        /// What to add.
        add: u64,
    },
}

/// What became of a request on the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// It is done.
    Done,
    /// It was begun and goes on when the queue pair has its next turn.
    Again,
    /// The memory is out of reach, or the peer has to judge: it goes as a message.
    Unable,
    /// It is to wait until what is under way before it is done.
    Later,
    /// A local key does not allow it.
    Fail(LocalError),
}

/// Bytes of a SEND that [`Host::small_send`] tells of at most: what fits a cache line with its head.
pub const SMALL_BYTES: u32 = 48;

/// A piece of a message that the peer fetches from this side's memory itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    /// The memory's address and key, as the peer names them.
    pub memory: RemoteAddr,
    /// Bytes.
    pub len: u32,
    /// Of memory of the peer's process, which was not granted: what the two adapters agreed to look at. The transport
    /// does not.
    pub terms: Option<[u64; 2]>,
}

/// The reason why what was lent could not be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoanError {
    /// The request's own list does not take it.
    Local(LocalError),
    /// The key of the memory that is to be written does not allow it.
    Remote,
    /// The memory is out of reach.
    Gone,
    /// The peer lends what it does not have.
    Bad,
}

impl From<LocalError> for LoanError {
    fn from(e: LocalError) -> Self {
        Self::Local(e)
    }
}

/// How a receive request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvDone {
    /// Status.
    pub status: WcStatus,
    /// `Recv` or `RecvRdmaWithImm`.
    pub opcode: WcOpcode,
    /// Bytes of the message (UD: with the 40 bytes of GRH).
    pub byte_len: u32,
    /// Immediate data or invalidated key.
    pub extra: RecvExtra,
    /// The sender asked for a solicited event.
    pub solicited: bool,
    /// Sending queue pair; UD only.
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
    /// In error, shared receive queue: no more request will be taken.
    LastWqeReached,
    /// Error that no work request reports.
    Fatal,
    /// The peer's request was invalid.
    RequestError,
    /// The peer was refused access.
    AccessError,
}

/// What happened that somebody may want to count.
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
    /// How many kinds there are.
    pub const COUNT: usize = 20;
}

/// An operation of the peer's that no receive request tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Served {
    /// RDMA WRITE, with or without immediate.
    Write,
    /// RDMA READ.
    Read,
    /// An atomic operation.
    Atomic,
}

/// Bytes that an atomic operation is on.
pub(crate) const ATOMIC_BYTES: u32 = 8;

/// What a queue pair borrows from its adapter: its queues, its memory, its completions.
///
/// Send requests are named by a free-running index (`u32`, wrapping); the valid ones are those from
/// the oldest uncompleted to `sq_posted() - 1`.
pub trait Host {
    /// How many send requests were ever posted (wrapping): the index of the next one.
    fn sq_posted(&self) -> u32;
    /// The send request of this index.
    fn send_request(&self, index: u32) -> SendRequest;
    /// Fills `out` with bytes of a request's local list (or inline data), from `offset` on.
    ///
    /// # Errors
    /// A key does not allow it; `out` then holds anything.
    fn gather(&mut self, index: u32, offset: u32, out: &mut [u8]) -> Result<(), LocalError>;
    /// Where `len` bytes of a request's local list lie from `offset` on, if they are one piece that nobody writes
    /// before the request completes: they may be sent from there. `None` is always right, and asks for
    /// [`gather`](Self::gather).
    fn in_place(&mut self, _index: u32, _offset: u32, _len: u32) -> Option<InPlace> {
        None
    }
    /// Places bytes of a response into a request's local list, from `offset` on.
    ///
    /// # Errors
    /// A key does not allow it.
    fn scatter(&mut self, index: u32, offset: u32, data: &[u8]) -> Result<(), LocalError>;
    /// Checks a request's whole local list before its first packet: reading (`write` false) or
    /// writing (`write` true).
    ///
    /// # Errors
    /// A key does not allow it.
    fn check_local(&mut self, index: u32, write: bool) -> Result<(), LocalError>;
    /// Completes the oldest uncompleted send request, whose index this is. A success that is not
    /// signalled yields no completion, everything else does.
    fn complete_send(&mut self, index: u32, status: WcStatus, byte_len: u32);

    /// Takes the oldest receive request for the message that begins with `packet` (`None`: it came by other ways);
    /// returns the bytes that it can take, or `None` if there is none. At most one is held at a time.
    fn take_recv(&mut self, packet: Option<&Packet<'_>>) -> Option<u64>;
    /// Places bytes into the held receive request.
    ///
    /// # Errors
    /// A key does not allow it, or the list ends.
    fn place_recv(&mut self, offset: u32, data: &[u8]) -> Result<(), LocalError>;
    /// Completes the held receive request.
    fn complete_recv(&mut self, done: &RecvDone);
    /// Gives the held receive request back to the head of its queue, unused (UC, UD: the message was dropped).
    fn return_recv(&mut self);
    /// Receive requests that are waiting; `None` with a shared receive queue, which counts no credits.
    fn recv_credits(&self) -> Option<u32>;
    /// Completes every remaining receive request as flushed, the held one first. With a shared receive
    /// queue only the held one.
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
    /// Does an atomic operation on an aligned word, key checked; returns the old value.
    ///
    /// # Errors
    /// The access is not allowed.
    fn atomic_remote(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, RemoteAccessError>;
    /// Takes a key back (SEND with invalidate).
    ///
    /// # Errors
    /// The key is unknown, of another protection domain, or not one that peers may take back.
    fn invalidate(&mut self, rkey: Rkey) -> Result<(), RemoteAccessError>;

    /// Carries out a WRITE, READ or atomic straight on the peer's memory, if it is within reach. `behind`: an earlier
    /// request is under way, so nothing may be done yet. Only connections by messages ask.
    fn direct(&mut self, _index: u32, _request: &SendRequest, _behind: bool) -> Direct {
        Direct::Unable
    }

    /// The length of a request that is a plain SEND of at most [`SMALL_BYTES`], neither fenced nor solicited; `None` is
    /// always right. Only connections by messages ask.
    fn small_send(&self, _index: u32) -> Option<u32> {
        None
    }
    /// Lends the peer up to `max` bytes of a request's local list from `offset` on, if it can reach that memory. Only
    /// connections by messages ask.
    fn lend(&mut self, _index: u32, _offset: u32, _max: u32) -> Option<Loan> {
        None
    }
    /// Fetches what the peer lends into the held receive request.
    ///
    /// # Errors
    /// Nothing, or a part, was placed.
    fn place_loan(&mut self, _offset: u32, _loan: &Loan) -> Result<(), LoanError> {
        Err(LoanError::Gone)
    }

    /// Fetches what the peer lends into memory that it writes, key checked again.
    ///
    /// # Errors
    /// Nothing, or a part, was written.
    fn write_loan(&mut self, _rkey: Rkey, _va: u64, _loan: &Loan) -> Result<(), LoanError> {
        Err(LoanError::Gone)
    }
    /// Lends the peer up to `max` bytes of what it reads from `va` on, key checked, if it can fetch them.
    fn lend_remote(&mut self, _rkey: Rkey, _va: u64, _max: u32) -> Option<Loan> {
        None
    }
    /// Fetches what the peer lends into a request's local list, from `offset` on.
    ///
    /// # Errors
    /// Nothing, or a part, was placed.
    fn scatter_loan(&mut self, _index: u32, _offset: u32, _loan: &Loan) -> Result<(), LoanError> {
        Err(LoanError::Gone)
    }

    /// An operation of the peer's on this side's memory, new and allowed: it was carried out, or is being answered.
    /// Counts, and does nothing else.
    #[inline]
    fn served(&mut self, _what: Served, _bytes: u32) {}
    /// Raises an event.
    fn event(&mut self, event: QpEvent);
    /// Counts.
    fn count(&mut self, what: Count);
}

/// Takes packets to send.
pub trait TxSink {
    /// Room for one packet of `len` bytes from BTH to padding, uninitialised in meaning (any bytes):
    /// every one is to be written. `None`: no room now, come back later. `to` is the path for UD.
    /// A second `reserve` without [`commit`](Self::commit) takes the place of the first.
    fn reserve(&mut self, to: Option<AhHandle>, len: usize) -> Option<&mut [u8]>;
    /// The packet last reserved is complete and to be sent.
    fn commit(&mut self);
    /// The least payload that is better sent from where it lies; `None`: none is.
    fn in_place_from(&self) -> Option<u32> {
        None
    }
    /// As [`commit`](Self::commit) of a packet whose bytes from `at` on are `payload`, and were not written. Only where
    /// [`in_place_from`](Self::in_place_from) tells so is it called.
    fn commit_in_place(&mut self, _at: usize, _payload: InPlace) {
        unreachable!("this sink has every payload copied");
    }
}
