//! Entries of completion queues, and reading them.
//!
//! The adapter writes an entry's last word last. So the reader loads that word first, and the other words behind a
//! barrier. This module reads the fields of [`hca_prm::Cqe64`] from words, because it does so for each completion; the
//! tests write entries by the layout.

use core::sync::atomic::Ordering;

use hca_core::{Completion, Qpn, RecvExtra, Rkey, WcOpcode, WcStatus};
use hca_prm::{CqeOpcode, CqeSyndrome};
use hca_vfio::mmio::dma_rmb;

use crate::shared::{Block, CELL, Cell, Ring, rows, set_rows};

/// Cells of an entry.
pub(crate) const CQE_CELLS: usize = hca_prm::Cqe64::SIZE / CELL;

const REQ: u8 = CqeOpcode::Req as u8;
const RESP_WR_IMM: u8 = CqeOpcode::RespWrImm as u8;
const RESP_SEND: u8 = CqeOpcode::RespSend as u8;
const RESP_SEND_IMM: u8 = CqeOpcode::RespSendImm as u8;
const RESP_SEND_INV: u8 = CqeOpcode::RespSendInv as u8;
const REQ_ERR: u8 = CqeOpcode::ReqErr as u8;
const RESP_ERR: u8 = CqeOpcode::RespErr as u8;

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A request of a send queue has succeeded.
    Sent,
    /// A receive request has.
    Received,
    /// A request of a send queue has not.
    SendFailed,
    /// A receive request has not.
    RecvFailed,
    /// Nothing that this driver asked for.
    Other,
}

impl Kind {
    /// Whether it is about a receive request.
    pub(crate) fn is_recv(self) -> bool {
        matches!(self, Self::Received | Self::RecvFailed)
    }
}

/// An entry that the adapter has written.
#[derive(Clone, Copy)]
pub(crate) struct Cqe<'a> {
    words: &'a Block,
    /// The last word.
    last: u64,
}

impl<'a> Cqe<'a> {
    /// The entry at `counter` of a queue of 2^`log_size`, which `ring` is, if the adapter has written it.
    #[inline(always)]
    pub(crate) fn ready(ring: &'a Ring, counter: u32, log_size: u32) -> Option<Self> {
        let words = ring.block(counter);
        // Who finds the owner's bit in this word finds all of the word. What no adapter has written yet has the bit of
        // the round before the first (`clear`).
        let last = rows(&words[3][1]);
        if (last as u32 ^ counter >> log_size) & 1 != 0 {
            return None;
        }
        dma_rmb();
        Some(Self { words, last })
    }

    /// The queue pair.
    #[inline(always)]
    pub(crate) fn qpn(&self) -> u32 {
        (self.last >> 32) as u32 & 0xff_ffff
    }
    /// The request's place in its queue.
    #[inline(always)]
    pub(crate) fn place(&self) -> u16 {
        (self.last >> 16) as u16
    }
    #[inline(always)]
    fn opcode(&self) -> u8 {
        self.last as u8 >> 4
    }
    /// The kind of the entry.
    #[inline(always)]
    pub(crate) fn kind(&self) -> Kind {
        match self.opcode() {
            REQ => Kind::Sent,
            RESP_WR_IMM | RESP_SEND | RESP_SEND_IMM | RESP_SEND_INV => Kind::Received,
            REQ_ERR => Kind::SendFailed,
            RESP_ERR => Kind::RecvFailed,
            _ => Kind::Other,
        }
    }
    /// Bytes that came.
    #[inline(always)]
    pub(crate) fn byte_count(&self) -> u32 {
        rows(&self.words[2][1]) as u32
    }

    /// When it was written, of a request that succeeded; 0 of one that did not, whose entry has no time.
    pub(crate) fn time(&self) -> u64 {
        if matches!(self.kind(), Kind::Sent | Kind::Received) { rows(&self.words[3][0]) } else { 0 }
    }
    /// How a request that failed did so.
    #[cold]
    pub(crate) fn status(&self) -> WcStatus {
        let syndrome = rows(&self.words[3][0]) as u8;
        CqeSyndrome::from_code(syndrome.into()).map_or(WcStatus::General, CqeSyndrome::wc_status)
    }
    /// The vendor's own number for the error.
    pub(crate) fn vendor_syndrome(&self) -> u8 {
        (rows(&self.words[3][0]) >> 8) as u8
    }

    /// Fills in the fields of a successful send request.
    #[inline(always)]
    pub(crate) fn complete_send(&self, opcode: WcOpcode, out: &mut Completion) {
        out.status = WcStatus::Success;
        out.opcode = opcode;
        out.byte_len = 0;
        if !matches!(opcode, WcOpcode::Send | WcOpcode::RdmaWrite) {
            out.byte_len = if opcode == WcOpcode::RdmaRead { self.byte_count() } else { 8 };
        }
        out.extra = RecvExtra::None;
        out.src_qp = Qpn::new(0);
        out.grh = false;
        out.solicited = false;
    }

    /// Fills in the fields of a successful receive request. Only datagrams have a sender.
    #[inline(always)]
    pub(crate) fn complete_recv(&self, datagram: bool, out: &mut Completion) {
        let imm = || rows(&self.words[2][0]) as u32;
        let (opcode, extra) = match self.opcode() {
            RESP_SEND_IMM => (WcOpcode::Recv, RecvExtra::Imm(imm())),
            RESP_SEND_INV => (WcOpcode::Recv, RecvExtra::Invalidated(Rkey::new(imm()))),
            RESP_WR_IMM => (WcOpcode::RecvRdmaWithImm, RecvExtra::Imm(imm())),
            _ => (WcOpcode::Recv, RecvExtra::None),
        };
        let sender = if datagram { (rows(&self.words[1][1]) >> 32) as u32 } else { 0 };
        out.status = WcStatus::Success;
        out.opcode = opcode;
        out.byte_len = self.byte_count();
        out.extra = extra;
        out.src_qp = Qpn::new(sender);
        out.grh = sender >> 28 & 3 != 0;
        out.solicited = self.last & 2 != 0;
    }

    /// Makes it that of a receive request that was flushed. While nobody polls.
    pub(crate) fn flush(&mut self) {
        let syndromes = rows(&self.words[3][0]) & !0xffff | u64::from(CqeSyndrome::WrFlushErr.code());
        set_rows(&self.words[3][0], syndromes);
        self.last = self.last & !0xf0 | u64::from(RESP_ERR) << 4;
        set_rows(&self.words[3][1], self.last);
    }

    /// Writes it to the place of `counter`, as ready in that round. While nobody polls, and the adapter does not write
    /// there.
    pub(crate) fn copy_to(&self, ring: &Ring, counter: u32, log_size: u32) {
        let to = ring.block(counter);
        for (from, to) in self.words.iter().flatten().zip(to.iter().flatten()) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let last = self.last & !1 | u64::from(counter >> log_size & 1);
        to[3][1].store(last.to_be(), Ordering::Relaxed);
    }
}

/// Marks all entries of a new queue as not written: of the round before the first.
pub(crate) fn clear(cells: &[Cell]) {
    for last in cells.iter().skip(CQE_CELLS - 1).step_by(CQE_CELLS) {
        last[1].store(u64::from(hca_prm::Cqe64::FIRST_OP_OWN).to_be(), Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use hca_prm::{Cqe64, ErrCqe};

    use super::*;
    use crate::shared::SharedCells;

    /// Writes an entry as an adapter does, the owner bit last.
    pub(crate) fn write(cells: &[Cell], counter: u32, log_size: u32, entry: Cqe64) {
        let at = (counter as usize & ((1 << log_size) - 1)) * CQE_CELLS;
        let entry = entry.with(Cqe64::OWNER, Cqe64::sw_owner(counter, log_size));
        let words: &[[u8; 8]] = entry.as_bytes().as_chunks().0;
        for (i, word) in words.iter().enumerate() {
            let order = if i == 7 { Ordering::Release } else { Ordering::Relaxed };
            cells[at + i / 2][i % 2].store(u64::from_ne_bytes(*word), order);
        }
    }

    #[test]
    fn an_entry_is_ready_in_the_round_of_its_owner_bit_only() {
        let cells = SharedCells::on_heap(4 * CQE_CELLS);
        let ring = Ring::new(cells.clone());
        clear(&cells);
        for counter in 0..4 {
            assert!(Cqe::ready(&ring, counter, 2).is_none(), "nothing was written");
        }
        write(&cells, 1, 2, Cqe64::new().with(Cqe64::QPN, 5));
        assert!(Cqe::ready(&ring, 1, 2).is_some() && Cqe::ready(&ring, 5, 2).is_none());
        write(&cells, 5, 2, Cqe64::new().with(Cqe64::QPN, 6));
        assert_eq!(Cqe::ready(&ring, 5, 2).unwrap().qpn(), 6);
        assert!(Cqe::ready(&ring, 1, 2).is_none() && Cqe::ready(&ring, 9, 2).is_none());
        Cqe::ready(&ring, 5, 2).unwrap().copy_to(&ring, 8, 2);
        assert!(Cqe::ready(&ring, 4, 2).is_none(), "another round");
        assert_eq!(Cqe::ready(&ring, 8, 2).unwrap().qpn(), 6);
    }

    #[test]
    fn all_that_a_receive_tells_is_read() {
        let cells = SharedCells::on_heap(CQE_CELLS);
        let ring = Ring::new(cells.clone());
        let entry = Cqe64::new()
            .with(Cqe64::G, 1)
            .with(Cqe64::RQPN, 0x77)
            .with(Cqe64::IMM, 0xa0b0_c0d0)
            .with(Cqe64::BYTE_CNT, 104)
            .with(Cqe64::QPN, 0x43)
            .with(Cqe64::SE, true)
            .with(Cqe64::WQE_COUNTER, 0x8001);
        let of = |opcode: CqeOpcode| {
            write(&cells, 0, 0, entry.with(Cqe64::OPCODE, opcode.code()));
            let cqe = Cqe::ready(&ring, 0, 0).unwrap();
            assert_eq!((cqe.qpn(), cqe.place(), cqe.kind()), (0x43, 0x8001, Kind::Received));
            let mut c = Completion { status: WcStatus::Fatal, ..Completion::default() };
            cqe.complete_recv(false, &mut c);
            assert_eq!((c.src_qp.raw(), c.grh), (0, false), "of a connection these mean nothing");
            cqe.complete_recv(true, &mut c);
            assert_eq!((c.status, c.byte_len, c.src_qp.raw()), (WcStatus::Success, 104, 0x77));
            assert!(c.grh && c.solicited);
            (c.opcode, c.extra)
        };
        let imm = RecvExtra::Imm(0xa0b0_c0d0);
        assert_eq!(of(CqeOpcode::RespSend), (WcOpcode::Recv, RecvExtra::None));
        assert_eq!(of(CqeOpcode::RespSendImm), (WcOpcode::Recv, imm));
        assert_eq!(of(CqeOpcode::RespWrImm), (WcOpcode::RecvRdmaWithImm, imm));
        let inv = RecvExtra::Invalidated(Rkey::new(0xa0b0_c0d0));
        assert_eq!(of(CqeOpcode::RespSendInv), (WcOpcode::Recv, inv));
    }

    #[test]
    fn every_syndrome_is_a_status_and_an_unknown_one_a_general_error() {
        let cells = SharedCells::on_heap(CQE_CELLS);
        let ring = Ring::new(cells.clone());
        let of = |syndrome: u32| {
            let entry = ErrCqe::new()
                .with(ErrCqe::SYNDROME, syndrome)
                .with(ErrCqe::VENDOR_ERR_SYND, 0x68)
                .with(ErrCqe::OPCODE, CqeOpcode::ReqErr.code());
            write(&cells, 0, 0, Cqe64::from_bytes(entry.as_bytes()).unwrap());
            let cqe = Cqe::ready(&ring, 0, 0).unwrap();
            assert!(cqe.kind() == Kind::SendFailed && cqe.vendor_syndrome() == 0x68);
            cqe.status()
        };
        for syndrome in CqeSyndrome::ALL {
            assert_eq!(of(syndrome.code()), syndrome.wc_status());
        }
        assert_eq!((of(0), of(0xff)), (WcStatus::General, WcStatus::General));
    }

    #[test]
    fn lengths_are_told_of_reads_and_atomics() {
        let cells = SharedCells::on_heap(CQE_CELLS);
        let ring = Ring::new(cells.clone());
        write(&cells, 0, 0, Cqe64::new().with(Cqe64::BYTE_CNT, 77));
        let cqe = Cqe::ready(&ring, 0, 0).unwrap();
        let len = |opcode| {
            let mut c = Completion::default();
            cqe.complete_send(opcode, &mut c);
            (c.opcode == opcode).then_some(c.byte_len)
        };
        use WcOpcode as W;
        let lengths = [W::RdmaRead, W::CompSwap, W::FetchAdd, W::Send, W::RdmaWrite].map(len);
        assert_eq!(lengths, [77, 8, 8, 0, 0].map(Some));
    }
}
