//! The packets of a send request: the number of their PSNs, their cost in the window, and their headers.

use hca_core::wire::{AtomicEth, Be32, Be64, BthFlags, Feth, Ieth, ImmDt, PacketOp, Reth};
use hca_core::{Psn, RemoteAddr, SendFlags, SendOp, WcStatus};

use crate::build::{Ext, pad, reserve_packet, send_packet};
use crate::connection::Path;
use crate::inflight::Kind;
use crate::window::packet_cost;
use crate::{ATOMIC_BYTES, Host, LocalError, SendRequest, TxSink};

/// The request at the cursor, read once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current {
    pub(crate) request: SendRequest,
    pub(crate) kind: Kind,
    pub(crate) packets: u32,
}

/// What is sent next of a message: PSNs and cost.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) packets: u32,
    pub(crate) cost: u16,
}

/// PSNs and cost of what is sent next of a message, from its packet `packet` on: one packet of a SEND or
/// WRITE, all that one request asks for of a READ.
#[inline]
pub(crate) fn extent(current: &Current, packet: u32, path: &Path) -> Extent {
    let packets = if current.kind == Kind::Read {
        ((packet | (path.chunk - 1)) + 1).min(current.packets) - packet
    } else {
        1
    };
    let cost = if packet + packets == current.packets {
        let last = current.request.len - (current.packets - 1) * path.mtu;
        path.full_cost.wrapping_mul((packets - 1) as u16).wrapping_add(packet_cost(last))
    } else {
        path.full_cost.wrapping_mul(packets as u16)
    };
    Extent { packets, cost }
}

/// The completion status of a local failure.
pub(crate) fn local_status(error: LocalError) -> WcStatus {
    match error {
        LocalError::Protection => WcStatus::LocalProtection,
        LocalError::Length => WcStatus::LocalLength,
    }
}

/// Builds one packet of a message: its `packet`th, or the request for `packets` of a READ. `false`: the
/// sink is full.
#[inline]
#[expect(clippy::too_many_arguments, reason = "the parts of a packet; a struct would be built for one call")]
pub(crate) fn emit<H: Host, T: TxSink>(
    current: &Current,
    index: u32,
    packet: u32,
    packets: u32,
    psn: Psn,
    ask: bool,
    path: &Path,
    host: &mut H,
    tx: &mut T,
) -> Result<bool, WcStatus> {
    let request = &current.request;
    if current.kind.is_answered() {
        let (to, mut ext) = path.head(index, host);
        let op = answered_headers(&mut ext, request, packet, packets, path);
        let bth = path.bth_to(to, op, BthFlags::empty(), 0, psn);
        let value = if let SendOp::AtomicWrite { value, .. } = request.op.op() { Some(value) } else { None };
        let Some(body) = reserve_packet(tx, None, &bth, &ext, value.map_or(0, |v| v.len())) else {
            return Ok(false);
        };
        if let Some(value) = value {
            body.copy_from_slice(&value);
        }
        tx.commit();
        return Ok(true);
    }
    let offset = packet * path.mtu;
    let len = (request.len - offset).min(path.mtu);
    let last = packet + 1 == current.packets;
    let (to, mut ext) = path.head(index, host);
    let op = headers(&mut ext, request, packet == 0, last);
    let mut flags = BthFlags::empty();
    if ask {
        flags |= BthFlags::ACK_REQ;
    }
    if last && current.kind.consumes_recv() && request.flags.contains(SendFlags::SOLICITED) {
        flags |= BthFlags::SOLICITED;
    }
    let bth = path.bth_to(to, op, flags, pad(len as usize), psn);
    send_packet((index, offset, len, current.packets == 1), &bth, &ext, host, tx).map_err(local_status)
}

pub(crate) fn reth(remote: RemoteAddr, len: u32) -> Reth {
    Reth { va: Be64::new(remote.addr), rkey: Be32::new(remote.rkey.raw()), dma_len: Be32::new(len) }
}

/// The opcode of a packet of a SEND or RDMA WRITE, and its own extended headers, behind those in `ext`.
#[inline]
pub(crate) fn headers(ext: &mut Ext, request: &SendRequest, first: bool, last: bool) -> PacketOp {
    use PacketOp as P;
    let op = |only, begin, middle, end| match (first, last) {
        (true, true) => only,
        (true, false) => begin,
        (false, false) => middle,
        (false, true) => end,
    };
    match request.op.op() {
        SendOp::SendImm(imm) => {
            if last {
                ext.push(&ImmDt { data: Be32::new(imm) });
            }
            op(P::SendOnlyImm, P::SendFirst, P::SendMiddle, P::SendLastImm)
        }
        SendOp::SendInv(rkey) => {
            if last {
                ext.push(&Ieth { rkey: Be32::new(rkey.raw()) });
            }
            op(P::SendOnlyInv, P::SendFirst, P::SendMiddle, P::SendLastInv)
        }
        SendOp::Write(remote) => {
            if first {
                ext.push(&reth(remote, request.len));
            }
            op(P::WriteOnly, P::WriteFirst, P::WriteMiddle, P::WriteLast)
        }
        SendOp::WriteImm(remote, imm) => {
            if first {
                ext.push(&reth(remote, request.len));
            }
            if last {
                ext.push(&ImmDt { data: Be32::new(imm) });
            }
            op(P::WriteOnlyImm, P::WriteFirst, P::WriteMiddle, P::WriteLastImm)
        }
        _ => op(P::SendOnly, P::SendFirst, P::SendMiddle, P::SendLast),
    }
}

/// The opcode of a READ, atomic, ATOMIC WRITE or FLUSH, and its own extended headers, behind those in `ext`.
fn answered_headers(
    ext: &mut Ext,
    request: &SendRequest,
    packet: u32,
    packets: u32,
    path: &Path,
) -> PacketOp {
    let mut atomic = |op, remote: RemoteAddr, swap_add, compare| {
        ext.push(&AtomicEth {
            va: Be64::new(remote.addr),
            rkey: Be32::new(remote.rkey.raw()),
            swap_add: Be64::new(swap_add),
            compare: Be64::new(compare),
        });
        op
    };
    match request.op.op() {
        SendOp::CompareSwap { remote, compare, swap } => atomic(PacketOp::CompareSwap, remote, swap, compare),
        SendOp::FetchAdd { remote, add } => atomic(PacketOp::FetchAdd, remote, add, 0),
        SendOp::Read(remote) => {
            let offset = packet * path.mtu;
            let len = u64::from(packets) * u64::from(path.mtu);
            let len = len.min(u64::from(request.len - offset)) as u32;
            let at = RemoteAddr { addr: remote.addr.wrapping_add(offset.into()), ..remote };
            ext.push(&reth(at, len));
            PacketOp::ReadRequest
        }
        SendOp::AtomicWrite { remote, .. } => {
            ext.push(&reth(remote, ATOMIC_BYTES));
            PacketOp::AtomicWrite
        }
        SendOp::Flush { remote, len, placement, selectivity } => {
            ext.push(&Feth::new(selectivity, placement));
            ext.push(&reth(remote, len));
            PacketOp::Flush
        }
        _ => unreachable!("only READ and atomics are answered: {:?}", request.op),
    }
}
