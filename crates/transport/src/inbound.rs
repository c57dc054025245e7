//! The reassembly of a SEND or RDMA WRITE from its pieces: the allowed sequences, their lengths, and the places of their
//! bytes. RC by packets, RC by messages and UC share this module; each decides the consequence of a fault.

use hca_core::wire::Packet;
use hca_core::wire::PacketOp::{self, *};
use hca_core::{Access, MAX_MESSAGE_BYTES, Qpn, RecvExtra, RemoteAddr, Rkey, WcOpcode, WcStatus};

use crate::{Host, Loan, LoanError, LocalError, RecvDone, Served};

/// The message under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Inbound {
    /// None: a First or Only is next.
    #[default]
    Idle,
    /// A SEND; a receive request is held.
    Send {
        /// Bytes placed.
        offset: u32,
        /// Bytes that the receive request takes.
        room: u64,
    },
    /// An RDMA WRITE.
    Write {
        /// Where the next byte goes.
        va: u64,
        /// The key that the message came with.
        rkey: Rkey,
        /// Bytes to come.
        left: u32,
        /// Bytes of the message.
        len: u32,
    },
}

/// The reason why a packet of a message can't be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Opcode sequence or length against the rules.
    Invalid,
    /// No receive request; nothing has changed.
    NoRecv,
    /// What the peer lends is out of reach: the request is to come again, with its bytes. No receive request is held.
    NotLent,
    /// The receive request is too small.
    TooLong,
    /// Not allowed by the queue pair or the key.
    Access,
    /// The receive request's own list can't be written.
    Placement(LocalError),
    /// The key can't be taken back.
    Invalidate,
}

/// The outcome of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// It ended its message.
    pub(crate) done: bool,
    /// It completed a receive request.
    pub(crate) delivered: bool,
}

const MORE: Accepted = Accepted { done: false, delivered: false };
const DONE: Accepted = Accepted { done: true, delivered: false };
const DELIVERED: Accepted = Accepted { done: true, delivered: true };

/// A piece of a SEND or RDMA WRITE, as its framing carries it: a packet, or a message between adapters of one machine.
pub(crate) struct Piece<'a> {
    /// It belongs to an RDMA WRITE.
    pub(crate) writes: bool,
    pub(crate) first: bool,
    pub(crate) last: bool,
    /// The memory that an RDMA WRITE names with its first piece, and the bytes of the whole message.
    pub(crate) target: Option<(RemoteAddr, u32)>,
    pub(crate) body: Body<'a>,
    /// What the last piece tells: immediate data, or the key to invalidate.
    pub(crate) extra: RecvExtra,
    pub(crate) solicited: bool,
    /// The queue pair that sent it, where a connection serves several (RD).
    pub(crate) src_qp: Qpn,
    pub(crate) packet: Option<&'a Packet<'a>>,
}

/// The bytes of a piece.
#[derive(Clone, Copy)]
pub(crate) enum Body<'a> {
    Bytes(&'a [u8]),
    /// The peer lends them.
    Lent(Loan),
}

impl Body<'_> {
    #[inline(always)]
    fn len(&self) -> u32 {
        match self {
            Self::Bytes(data) => data.len() as u32,
            Self::Lent(loan) => loan.len,
        }
    }
}

impl<'a> Piece<'a> {
    /// The piece that a packet carries.
    #[inline(always)]
    pub(crate) fn of_packet(op: PacketOp, packet: &'a Packet<'a>, mtu: u32) -> Result<Self, Fault> {
        let Shape { writes, first, last, imm, invalidates } = SHAPES[op as usize];
        let data = packet.payload();
        let len = data.len() as u32;
        let least = if last { u32::from(!first) } else { mtu };
        if len > mtu || len < least {
            return Err(Fault::Invalid);
        }
        let target = if first && writes {
            let reth = packet.reth().ok_or(Fault::Invalid)?;
            let remote = RemoteAddr { addr: reth.va.get(), rkey: Rkey::new(reth.rkey.get()) };
            Some((remote, reth.dma_len.get()))
        } else {
            None
        };
        let extra = if imm {
            RecvExtra::Imm(packet.imm().ok_or(Fault::Invalid)?)
        } else if invalidates {
            RecvExtra::Invalidated(Rkey::new(packet.ieth().ok_or(Fault::Invalid)?.rkey.get()))
        } else {
            RecvExtra::None
        };
        let src_qp = packet.deth().map_or(Qpn::default(), |deth| Qpn::new(deth.src_qp.get()));
        let solicited = packet.bth().solicited();
        let body = Body::Bytes(data);
        Ok(Self { writes, first, last, target, body, extra, solicited, src_qp, packet: Some(packet) })
    }

    /// Whether it ends an RDMA WRITE with immediate data.
    #[inline(always)]
    fn ends_write_with_imm(&self) -> bool {
        self.last && matches!(self.extra, RecvExtra::Imm(_))
    }

    /// Places its bytes in the held receive request, which has `room` bytes.
    #[inline(always)]
    fn place<H: Host>(&self, offset: u32, room: u64, host: &mut H) -> Result<(), Fault> {
        if u64::from(offset) + u64::from(self.body.len()) > room {
            return Err(Fault::TooLong);
        }
        match &self.body {
            Body::Bytes([]) => Ok(()),
            Body::Bytes(data) => host.place_recv(offset, data).map_err(Fault::Placement),
            Body::Lent(loan) => host.place_loan(offset, loan).map_err(not_fetched),
        }
    }

    /// Writes its bytes to the memory of a key.
    #[inline(always)]
    fn write<H: Host>(&self, rkey: Rkey, va: u64, host: &mut H) -> Result<(), Fault> {
        match &self.body {
            // A WRITE of no bytes touches nothing and needs no valid key.
            Body::Bytes([]) => Ok(()),
            Body::Bytes(data) => host.write_remote(rkey, va, data).map_err(|_| Fault::Access),
            Body::Lent(loan) => host.write_loan(rkey, va, loan).map_err(not_fetched),
        }
    }

    #[inline(always)]
    fn received(&self, opcode: WcOpcode, byte_len: u32) -> RecvDone {
        let Self { extra, solicited, src_qp, .. } = *self;
        RecvDone { status: WcStatus::Success, opcode, byte_len, extra, solicited, src_qp, grh: false }
    }
}

/// The fault of a piece that was lent and could not be fetched.
#[cold]
fn not_fetched(why: LoanError) -> Fault {
    match why {
        LoanError::Local(e) => Fault::Placement(e),
        LoanError::Remote => Fault::Access,
        LoanError::Bad => Fault::Invalid,
        LoanError::Gone => Fault::NotLent,
    }
}

impl Inbound {
    /// Carries out one piece of a SEND or RDMA WRITE.
    #[inline(always)]
    pub(crate) fn accept<H: Host>(
        &mut self,
        piece: &Piece<'_>,
        access: Access,
        host: &mut H,
    ) -> Result<Accepted, Fault> {
        if piece.first != (*self == Self::Idle) {
            return Err(Fault::Invalid);
        }
        if piece.writes { self.accept_write(piece, access, host) } else { self.accept_send(piece, host) }
    }

    #[inline(always)]
    fn accept_send<H: Host>(&mut self, piece: &Piece<'_>, host: &mut H) -> Result<Accepted, Fault> {
        let (offset, room) = match *self {
            Self::Idle => (0, host.take_recv(piece.packet).ok_or(Fault::NoRecv)?),
            Self::Send { offset, room } => (offset, room),
            Self::Write { .. } => return Err(Fault::Invalid),
        };
        let len = piece.body.len();
        if u64::from(offset) + u64::from(len) > MAX_MESSAGE_BYTES {
            return Err(Fault::Invalid);
        }
        if let Err(fault) = piece.place(offset, room, host) {
            if fault == Fault::NotLent {
                // The receive request waits for the message to come again.
                host.return_recv();
            }
            return Err(fault);
        }
        let offset = offset + len;
        if !piece.last {
            *self = Self::Send { offset, room };
            return Ok(MORE);
        }
        if let RecvExtra::Invalidated(rkey) = piece.extra {
            host.invalidate(rkey).map_err(|_| Fault::Invalidate)?;
        }
        *self = Self::Idle;
        host.complete_recv(&piece.received(WcOpcode::Recv, offset));
        Ok(DELIVERED)
    }

    #[inline(always)]
    fn accept_write<H: Host>(
        &mut self,
        piece: &Piece<'_>,
        access: Access,
        host: &mut H,
    ) -> Result<Accepted, Fault> {
        let (va, rkey, left, total) = match *self {
            Self::Idle => {
                let (remote, total) = piece.target.ok_or(Fault::Invalid)?;
                (remote.addr, remote.rkey, total, total)
            }
            Self::Write { va, rkey, left, len } => (va, rkey, left, len),
            Self::Send { .. } => return Err(Fault::Invalid),
        };
        let len = piece.body.len();
        let fits = if piece.last { len == left } else { len < left };
        if !fits || u64::from(total) > MAX_MESSAGE_BYTES {
            return Err(Fault::Invalid);
        }
        if piece.first {
            if !access.contains(Access::REMOTE_WRITE) {
                return Err(Fault::Access);
            }
            // What comes in one piece is checked as it is written.
            if !piece.last {
                host.check_remote(rkey, va, total.into(), Access::REMOTE_WRITE).map_err(|_| Fault::Access)?;
            }
        }
        let takes_recv = piece.ends_write_with_imm();
        if takes_recv {
            host.take_recv(piece.packet).ok_or(Fault::NoRecv)?;
        }
        if let Err(fault) = piece.write(rkey, va, host) {
            if takes_recv {
                host.return_recv();
            }
            return Err(fault);
        }
        if !piece.last {
            *self = Self::Write { va: va.wrapping_add(len.into()), rkey, left: left - len, len: total };
            return Ok(MORE);
        }
        *self = Self::Idle;
        host.served(Served::Write, total);
        if !takes_recv {
            return Ok(DONE);
        }
        host.complete_recv(&piece.received(WcOpcode::RecvRdmaWithImm, total));
        Ok(DELIVERED)
    }
}

/// What a packet of a SEND or RDMA WRITE is of its message.
#[derive(Clone, Copy)]
struct Shape {
    writes: bool,
    first: bool,
    last: bool,
    imm: bool,
    invalidates: bool,
}

/// The shapes by opcode; those of other opcodes have no meaning.
const SHAPES: [Shape; AtomicWrite as usize + 1] = {
    let middle = Shape { writes: false, first: false, last: false, imm: false, invalidates: false };
    let (first, last) = (Shape { first: true, ..middle }, Shape { last: true, ..middle });
    let only = Shape { first: true, ..last };
    let mut shapes = [middle; _];
    shapes[SendFirst as usize] = first;
    shapes[SendLast as usize] = last;
    shapes[SendLastImm as usize] = Shape { imm: true, ..last };
    shapes[SendLastInv as usize] = Shape { invalidates: true, ..last };
    shapes[SendOnly as usize] = only;
    shapes[SendOnlyImm as usize] = Shape { imm: true, ..only };
    shapes[SendOnlyInv as usize] = Shape { invalidates: true, ..only };
    shapes[WriteFirst as usize] = Shape { writes: true, ..first };
    shapes[WriteMiddle as usize] = Shape { writes: true, ..middle };
    shapes[WriteLast as usize] = Shape { writes: true, ..last };
    shapes[WriteLastImm as usize] = Shape { writes: true, imm: true, ..last };
    shapes[WriteOnly as usize] = Shape { writes: true, ..only };
    shapes[WriteOnlyImm as usize] = Shape { writes: true, imm: true, ..only };
    shapes
};

/// Whether this opcode of a SEND or RDMA WRITE begins a message.
#[inline]
pub(crate) const fn begins_message(op: PacketOp) -> bool {
    SHAPES[op as usize].first
}

/// Whether this opcode belongs to a SEND or an RDMA WRITE.
#[inline]
pub(crate) const fn is_send_or_write(op: PacketOp) -> bool {
    (op as u8) <= WriteOnlyImm as u8 || matches!(op, SendLastInv | SendOnlyInv)
}

/// How the held receive request ends by a fault, where it ends by it.
pub(crate) const fn recv_status(fault: Fault) -> Option<WcStatus> {
    match fault {
        Fault::TooLong | Fault::Placement(LocalError::Length) => Some(WcStatus::LocalLength),
        Fault::Placement(LocalError::Protection) => Some(WcStatus::LocalProtection),
        Fault::Invalidate => Some(WcStatus::LocalAccess),
        Fault::Invalid | Fault::NoRecv | Fault::NotLent | Fault::Access => None,
    }
}

/// A receive that failed.
pub(crate) fn failed_recv(status: WcStatus) -> RecvDone {
    RecvDone {
        status,
        opcode: WcOpcode::Recv,
        byte_len: 0,
        extra: RecvExtra::None,
        solicited: false,
        src_qp: Qpn::default(),
        grh: false,
    }
}
