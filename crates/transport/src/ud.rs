//! Unreliable datagram: one packet a message, to any queue pair that knows the Q_Key.
//!
//! Any host can send a datagram, so no datagram may harm the receiver: a datagram that does not fit its receive request
//! is dropped and counted, and the request returns to the head of its queue.

use hca_core::wire::{Be24, Be32, Bth, BthFlags, Deth, ImmDt, Opcode, Packet, PacketOp};
use hca_core::{Pkey, Psn, Qkey, Qpn, RecvExtra, SendFlags, SendOp, WcOpcode, WcStatus};

use crate::build::{Ext, pad, reserve_packet};
use crate::emit::local_status;
use crate::{Count, Host, RecvDone, RxMeta, TxSink};

/// Bytes of the global route header in front of every received datagram.
const GRH_BYTES: u32 = 40;

/// Both directions of a datagram queue pair.
#[derive(Debug)]
pub(crate) struct Datagram {
    pub(crate) qpn: Qpn,
    pub(crate) pkey: Pkey,
    pub(crate) qkey: Qkey,
    /// Longest message.
    pub(crate) mtu: u32,
    /// The oldest request that is not completed.
    pub(crate) index: u32,
    psn: Psn,
    ready: bool,
}

impl Datagram {
    pub(crate) fn new(qpn: Qpn, pkey: Pkey, qkey: Qkey, mtu: u32, index: u32) -> Self {
        Self { qpn, pkey, qkey, mtu, index, psn: Psn::default(), ready: false }
    }
    /// Ready to send, from this PSN on.
    pub(crate) fn start(&mut self, psn: Psn) {
        self.psn = psn;
        self.ready = true;
    }
    pub(crate) fn posted(&mut self) {
        self.ready = true;
    }
    pub(crate) fn wants_transmit(&self) -> bool {
        self.ready
    }
    /// The send queue stopped before request `index`.
    pub(crate) fn stop(&mut self, index: u32) {
        self.index = index;
        self.ready = false;
    }

    /// Sends up to `max` packets; returns how many, and why the oldest request failed if it did.
    pub(crate) fn poll<H: Host, T: TxSink>(
        &mut self,
        may_start: bool,
        host: &mut H,
        tx: &mut T,
        max: usize,
    ) -> (usize, Option<WcStatus>) {
        let mut sent = 0;
        while sent < max {
            if !may_start || self.index == host.sq_posted() {
                self.ready = false;
                break;
            }
            match self.send(host, tx) {
                Ok(true) => sent += 1,
                Ok(false) => break,
                Err(status) => return (sent, Some(status)),
            }
        }
        (sent, None)
    }

    fn send<H: Host, T: TxSink>(&mut self, host: &mut H, tx: &mut T) -> Result<bool, WcStatus> {
        let request = host.send_request(self.index);
        let imm = match request.op.op() {
            SendOp::Send => None,
            SendOp::SendImm(imm) => Some(imm),
            _ => return Err(WcStatus::LocalQpOperation),
        };
        let Some(dest) = request.dest else { return Err(WcStatus::LocalQpOperation) };
        if request.len > self.mtu {
            return Err(WcStatus::LocalLength);
        }
        // The path and the whole list, before there is a packet.
        host.check_local(self.index, false).map_err(local_status)?;
        // A privileged Q_Key stands for the queue pair's own.
        let qkey = if dest.qkey.is_privileged() { self.qkey } else { dest.qkey };
        let mut ext =
            Ext::one(&Deth { qkey: Be32::new(qkey.raw()), reserved: 0, src_qp: Be24::new(self.qpn.raw()) });
        if let Some(imm) = imm {
            ext.push(&ImmDt { data: Be32::new(imm) });
        }
        let op = if imm.is_some() { PacketOp::SendOnlyImm } else { PacketOp::SendOnly };
        let solicited = request.flags.contains(SendFlags::SOLICITED);
        let flags = if solicited { BthFlags::SOLICITED } else { BthFlags::empty() };
        let len = request.len as usize;
        let bth = Bth::new(Opcode::ud(op), flags, pad(len), self.pkey, dest.qpn, self.psn);
        let Some(body) = reserve_packet(tx, Some(dest.ah), &bth, &ext, len) else { return Ok(false) };
        if len > 0 {
            host.gather(self.index, 0, body).map_err(local_status)?;
        }
        tx.commit();
        self.psn = self.psn.add(1);
        host.complete_send(self.index, WcStatus::Success, 0);
        self.index = self.index.wrapping_add(1);
        Ok(true)
    }

    /// Takes a packet. `Err`: the receive queue itself failed, and the queue pair with it.
    pub(crate) fn handle_packet<H: Host>(
        &mut self,
        rx: &RxMeta<'_>,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), WcStatus> {
        let Some(deth) = packet.deth() else {
            host.count(Count::DroppedInvalid);
            return Ok(());
        };
        if deth.qkey.get() != self.qkey.raw() {
            host.count(Count::DroppedQkey);
            return Ok(());
        }
        let data = packet.payload();
        if data.len() > self.mtu as usize {
            host.count(Count::DroppedInvalid);
            return Ok(());
        }
        let Some(room) = host.take_recv(Some(packet)) else {
            host.count(Count::DroppedNoRecv);
            return Ok(());
        };
        let byte_len = GRH_BYTES + data.len() as u32;
        if room < byte_len.into() {
            host.count(Count::DroppedInvalid);
            host.return_recv();
            return Ok(());
        }
        host.place_recv(0, rx.grh.unwrap_or(&[0; GRH_BYTES as usize])).map_err(local_status)?;
        if !data.is_empty() {
            host.place_recv(GRH_BYTES, data).map_err(local_status)?;
        }
        host.complete_recv(&RecvDone {
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len,
            extra: packet.imm().map_or(RecvExtra::None, RecvExtra::Imm),
            solicited: packet.bth().solicited(),
            src_qp: Qpn::new(deth.src_qp.get()),
            grh: true,
        });
        Ok(())
    }
}
