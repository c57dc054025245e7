//! Unreliable connection: SEND and RDMA WRITE without answers.
//!
//! A message that lost a packet is dropped silently, and its receive request returns to the head of its queue. The next
//! First or Only packet begins a new message, with any PSN. A request is complete when its last packet has left. A
//! request that can't be carried out stops the send queue only (SQE).

use hca_core::wire::{Bth, BthFlags, Opcode, Packet, PacketOp};
use hca_core::{MAX_MESSAGE_BYTES, Psn, QpAttr, SendFlags, SendOp, WcStatus};

use crate::build::{Ext, pad, reserve_packet};
use crate::connection::{Cnp, Path};
use crate::emit::{headers, local_status};
use crate::inbound::{Fault, Inbound, Piece, begins_message, is_send_or_write, recv_status};
use crate::{Count, Host, QpConfig, SendRequest, TxSink};

/// Both directions of an unreliable connection.
#[derive(Debug)]
pub(crate) struct Unreliable {
    pub(crate) path: Path,
    pub(crate) cnp: Cnp,
    /// The oldest request that is not completed, and its next packet.
    pub(crate) index: u32,
    packet: u32,
    current: Option<SendRequest>,
    psn: Psn,
    ready: bool,
    expected: Psn,
    inbound: Inbound,
}

impl Unreliable {
    pub(crate) fn new(config: &QpConfig, attr: &QpAttr, index: u32) -> Self {
        Self {
            path: Path::new(config, attr),
            cnp: Cnp::default(),
            index,
            packet: 0,
            current: None,
            psn: attr.sq_psn.unwrap_or_default(),
            ready: false,
            expected: attr.rq_psn.unwrap_or_default(),
            inbound: Inbound::Idle,
        }
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
    /// Whether no message is half sent.
    pub(crate) fn is_drained(&self) -> bool {
        self.packet == 0
    }
    /// The send queue stopped before request `index`: what was half sent is forgotten.
    pub(crate) fn stop(&mut self, index: u32) {
        self.index = index;
        (self.packet, self.current, self.ready) = (0, None, false);
    }
    pub(crate) fn forget_inbound(&mut self) {
        self.inbound = Inbound::Idle;
    }

    /// Sends up to `max` packets; returns how many, and why the oldest request failed if it did.
    pub(crate) fn poll<H: Host, T: TxSink>(
        &mut self,
        may_start: bool,
        host: &mut H,
        tx: &mut T,
        mut max: usize,
    ) -> (usize, Option<WcStatus>) {
        let mut sent = 0;
        while sent < max {
            if self.packet == 0 && (!may_start || self.index == host.sq_posted()) {
                self.ready = false;
                break;
            }
            if self.packet == 0 && host.send_request(self.index).op.is_local() {
                if let Err(status) = host.carry_out(self.index) {
                    return (sent, Some(status));
                }
                host.complete_send(self.index, WcStatus::Success, 0);
                self.index = self.index.wrapping_add(1);
                max -= 1;
                continue;
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
        let request = match self.current {
            Some(r) => r,
            None => *self.current.insert(host.send_request(self.index)),
        };
        let packets = self.path.packets(request.len);
        if self.packet == 0 {
            let op = request.op.op();
            if op.is_read_or_atomic() || matches!(op, SendOp::SendInv(_)) {
                return Err(WcStatus::LocalQpOperation);
            }
            if u64::from(request.len) > MAX_MESSAGE_BYTES {
                return Err(WcStatus::LocalLength);
            }
            if packets > 1 {
                host.check_local(self.index, false).map_err(local_status)?;
            }
        }
        let offset = self.packet * self.path.mtu;
        let len = (request.len - offset).min(self.path.mtu) as usize;
        let last = self.packet + 1 == packets;
        let mut ext = Ext::none();
        let op = headers(&mut ext, &request, self.packet == 0, last);
        let solicited =
            last && request.op.op().consumes_recv() && request.flags.contains(SendFlags::SOLICITED);
        let flags = if solicited { BthFlags::SOLICITED } else { BthFlags::empty() };
        let bth = Bth::new(Opcode::uc(op), flags, pad(len), self.path.pkey, self.path.dest_qpn, self.psn);
        let Some(body) = reserve_packet(tx, None, &bth, &ext, len) else { return Ok(false) };
        if len > 0 {
            host.gather(self.index, offset, body).map_err(local_status)?;
        }
        tx.commit();
        self.psn = self.psn.add(1);
        self.packet += 1;
        if last {
            host.complete_send(self.index, WcStatus::Success, 0);
            self.index = self.index.wrapping_add(1);
            (self.packet, self.current) = (0, None);
        }
        Ok(true)
    }

    /// Takes a packet. `Err`: the receive queue itself failed, and the queue pair with it.
    pub(crate) fn handle_packet<H: Host>(
        &mut self,
        op: PacketOp,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), WcStatus> {
        if !is_send_or_write(op) {
            host.count(Count::DroppedInvalid);
            return Ok(());
        }
        let psn = packet.bth().psn();
        let gap = psn != self.expected;
        self.expected = psn.add(1);
        if gap || begins_message(op) {
            self.abandon(host);
        }
        if self.inbound == Inbound::Idle && !begins_message(op) {
            host.count(if gap { Count::DroppedPsn } else { Count::DroppedInvalid });
            return Ok(());
        }
        let piece = Piece::of_packet(op, packet, self.path.mtu);
        let Err(fault) = piece.and_then(|piece| self.inbound.accept(&piece, self.path.access, host)) else {
            return Ok(());
        };
        match fault {
            Fault::NoRecv | Fault::NotLent => {
                host.count(Count::DroppedNoRecv);
                self.abandon(host);
            }
            Fault::Placement(_) => {
                self.inbound = Inbound::Idle;
                return Err(recv_status(fault).unwrap_or(WcStatus::LocalProtection));
            }
            Fault::TooLong | Fault::Invalidate => {
                // The request may not be known to `inbound`, when it was an Only, but it is held.
                host.count(Count::DroppedInvalid);
                self.inbound = Inbound::Idle;
                host.return_recv();
            }
            Fault::Invalid | Fault::Access => {
                host.count(Count::DroppedInvalid);
                self.abandon(host);
            }
        }
        Ok(())
    }

    /// Drops the message under way.
    fn abandon<H: Host>(&mut self, host: &mut H) {
        if let Inbound::Send { .. } = self.inbound {
            host.return_recv();
        }
        self.inbound = Inbound::Idle;
    }
}
