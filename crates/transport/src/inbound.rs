//! The reassembly of a SEND or RDMA WRITE from packets: the allowed sequences of opcodes, their lengths, and the places
//! of their bytes. RC and UC share this module; each decides the consequence of a fault. `accept` is one table of
//! opcodes and states, and therefore longer than other functions.

use hca_core::wire::{Packet, PacketOp};
use hca_core::{Access, MAX_MESSAGE_BYTES, Qpn, RecvExtra, Rkey, WcOpcode, WcStatus};

use crate::{Host, LocalError, RecvDone, Served};

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

impl Inbound {
    /// Carries out one packet of a SEND or RDMA WRITE.
    #[inline]
    pub(crate) fn accept<H: Host>(
        &mut self,
        op: PacketOp,
        packet: &Packet<'_>,
        mtu: u32,
        access: Access,
        host: &mut H,
    ) -> Result<Accepted, Fault> {
        use PacketOp as P;
        let data = packet.payload();
        let len = data.len() as u32;
        let fits = match op {
            P::SendFirst | P::SendMiddle | P::WriteFirst | P::WriteMiddle => len == mtu,
            P::SendLast | P::SendLastImm | P::SendLastInv | P::WriteLast | P::WriteLastImm => {
                len >= 1 && len <= mtu
            }
            _ => len <= mtu,
        };
        if !fits {
            return Err(Fault::Invalid);
        }
        match (op, *self) {
            (P::SendOnly | P::SendOnlyImm | P::SendOnlyInv, Self::Idle) => {
                let room = host.take_recv(Some(packet)).ok_or(Fault::NoRecv)?;
                place(host, 0, room, data)?;
                finish_send(packet, len, host)?;
                Ok(DELIVERED)
            }
            (P::SendFirst, Self::Idle) => {
                let room = host.take_recv(Some(packet)).ok_or(Fault::NoRecv)?;
                *self = Self::Send { offset: len, room };
                place(host, 0, room, data)?;
                Ok(MORE)
            }
            (P::SendMiddle | P::SendLast | P::SendLastImm | P::SendLastInv, Self::Send { offset, room }) => {
                if u64::from(offset) + u64::from(len) > MAX_MESSAGE_BYTES {
                    return Err(Fault::Invalid);
                }
                place(host, offset, room, data)?;
                let offset = offset + len;
                if op == P::SendMiddle {
                    *self = Self::Send { offset, room };
                    return Ok(MORE);
                }
                finish_send(packet, offset, host)?;
                *self = Self::Idle;
                Ok(DELIVERED)
            }
            (P::WriteOnly | P::WriteOnlyImm | P::WriteFirst, Self::Idle) => {
                self.begin_write(op, packet, mtu, access, host)
            }
            (P::WriteMiddle | P::WriteLast | P::WriteLastImm, Self::Write { va, rkey, left, len: total }) => {
                let more = op == P::WriteMiddle;
                if more != (left > len) || left < len {
                    return Err(Fault::Invalid);
                }
                if op == P::WriteLastImm {
                    host.take_recv(Some(packet)).ok_or(Fault::NoRecv)?;
                }
                write(op, rkey, va, data, host)?;
                if more {
                    *self =
                        Self::Write { va: va.wrapping_add(len.into()), rkey, left: left - len, len: total };
                    return Ok(MORE);
                }
                *self = Self::Idle;
                Ok(finish_write(packet, total, host))
            }
            _ => Err(Fault::Invalid),
        }
    }

    fn begin_write<H: Host>(
        &mut self,
        op: PacketOp,
        packet: &Packet<'_>,
        mtu: u32,
        access: Access,
        host: &mut H,
    ) -> Result<Accepted, Fault> {
        let data = packet.payload();
        let len = data.len() as u32;
        let reth = packet.reth().ok_or(Fault::Invalid)?;
        let (va, rkey, total) = (reth.va.get(), Rkey::new(reth.rkey.get()), reth.dma_len.get());
        let first = op == PacketOp::WriteFirst;
        let fits = if first { total > mtu } else { total == len };
        if !fits || u64::from(total) > MAX_MESSAGE_BYTES {
            return Err(Fault::Invalid);
        }
        if !access.contains(Access::REMOTE_WRITE) {
            return Err(Fault::Access);
        }
        if first {
            host.check_remote(rkey, va, total.into(), Access::REMOTE_WRITE).map_err(|_| Fault::Access)?;
        }
        if op == PacketOp::WriteOnlyImm {
            host.take_recv(Some(packet)).ok_or(Fault::NoRecv)?;
        }
        // A WRITE of no bytes touches nothing and needs no valid key.
        if len > 0 {
            write(op, rkey, va, data, host)?;
        }
        if first {
            *self = Self::Write { va: va.wrapping_add(len.into()), rkey, left: total - len, len: total };
            return Ok(MORE);
        }
        Ok(finish_write(packet, total, host))
    }
}

/// Whether this opcode begins a message.
pub(crate) const fn begins_message(op: PacketOp) -> bool {
    use PacketOp as P;
    matches!(
        op,
        P::SendFirst
            | P::SendOnly
            | P::SendOnlyImm
            | P::SendOnlyInv
            | P::WriteFirst
            | P::WriteOnly
            | P::WriteOnlyImm
    )
}

/// Whether this opcode belongs to a SEND or an RDMA WRITE.
#[inline]
pub(crate) const fn is_send_or_write(op: PacketOp) -> bool {
    (op as u8) <= PacketOp::WriteOnlyImm as u8 || matches!(op, PacketOp::SendLastInv | PacketOp::SendOnlyInv)
}

/// How the held receive request ends by a fault, where it ends by it.
pub(crate) const fn recv_status(fault: Fault) -> Option<WcStatus> {
    match fault {
        Fault::TooLong | Fault::Placement(LocalError::Length) => Some(WcStatus::LocalLength),
        Fault::Placement(LocalError::Protection) => Some(WcStatus::LocalProtection),
        Fault::Invalidate => Some(WcStatus::LocalAccess),
        Fault::Invalid | Fault::NoRecv | Fault::Access => None,
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

#[inline]
pub(crate) fn place<H: Host>(host: &mut H, offset: u32, room: u64, data: &[u8]) -> Result<(), Fault> {
    if u64::from(offset) + data.len() as u64 > room {
        return Err(Fault::TooLong);
    }
    if data.is_empty() {
        return Ok(());
    }
    host.place_recv(offset, data).map_err(Fault::Placement)
}

/// Writes; on failure the receive request that immediate data took goes back.
#[inline]
fn write<H: Host>(op: PacketOp, rkey: Rkey, va: u64, data: &[u8], host: &mut H) -> Result<(), Fault> {
    if host.write_remote(rkey, va, data).is_ok() {
        return Ok(());
    }
    if matches!(op, PacketOp::WriteLastImm | PacketOp::WriteOnlyImm) {
        host.return_recv();
    }
    Err(Fault::Access)
}

/// The queue pair that sent a request, where the packet names it (RD).
#[inline(always)]
fn sender(packet: &Packet<'_>) -> Qpn {
    packet.deth().map_or(Qpn::default(), |deth| Qpn::new(deth.src_qp.get()))
}

#[inline(always)]
fn finish_send<H: Host>(packet: &Packet<'_>, byte_len: u32, host: &mut H) -> Result<(), Fault> {
    let extra = if let Some(imm) = packet.imm() {
        RecvExtra::Imm(imm)
    } else if let Some(ieth) = packet.ieth() {
        let rkey = Rkey::new(ieth.rkey.get());
        host.invalidate(rkey).map_err(|_| Fault::Invalidate)?;
        RecvExtra::Invalidated(rkey)
    } else {
        RecvExtra::None
    };
    host.complete_recv(&RecvDone {
        status: WcStatus::Success,
        opcode: WcOpcode::Recv,
        byte_len,
        extra,
        solicited: packet.bth().solicited(),
        src_qp: sender(packet),
        grh: false,
    });
    Ok(())
}

fn finish_write<H: Host>(packet: &Packet<'_>, byte_len: u32, host: &mut H) -> Accepted {
    host.served(Served::Write, byte_len);
    let Some(imm) = packet.imm() else { return DONE };
    host.complete_recv(&RecvDone {
        status: WcStatus::Success,
        opcode: WcOpcode::RecvRdmaWithImm,
        byte_len,
        extra: RecvExtra::Imm(imm),
        solicited: packet.bth().solicited(),
        src_qp: sender(packet),
        grh: false,
    });
    DELIVERED
}
