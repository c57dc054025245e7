//! Packets made by hand.

use hca_core::wire::{Aeth, AtomicEth, Be32, Be64, Bth, Deth, Reth};

use super::*;

/// A packet made by hand.
pub struct Raw {
    pub opcode: Opcode,
    pub flags: BthFlags,
    pub pkey: Pkey,
    pub to: Qpn,
    pub psn: u32,
    pub ext: Vec<u8>,
    pub payload: Vec<u8>,
}
impl Raw {
    pub fn rc(op: PacketOp, to: Side, psn: u32) -> Self {
        Self {
            opcode: Opcode::rc(op),
            flags: BthFlags::ACK_REQ,
            pkey: Pkey::DEFAULT,
            to: qpn(to),
            psn,
            ext: Vec::new(),
            payload: Vec::new(),
        }
    }
    pub fn payload(mut self, len: usize) -> Self {
        self.payload = vec![0x5a; len];
        self
    }
    pub fn reth(mut self, va: u64, rkey: Rkey, len: u32) -> Self {
        let reth = Reth { va: Be64::new(va), rkey: Be32::new(rkey.raw()), dma_len: Be32::new(len) };
        self.ext.extend_from_slice(bytemuck::bytes_of(&reth));
        self
    }
    pub fn feth(mut self, bits: u32) -> Self {
        self.ext.extend_from_slice(bytemuck::bytes_of(&Feth::from_bits(bits)));
        self
    }
    pub fn atomic(mut self, va: u64, swap_add: u64) -> Self {
        let eth = AtomicEth {
            va: Be64::new(va),
            rkey: Be32::new(KEY.raw()),
            swap_add: Be64::new(swap_add),
            compare: Be64::new(0),
        };
        self.ext.extend_from_slice(bytemuck::bytes_of(&eth));
        self
    }
    pub fn aeth(mut self, syndrome: Syndrome) -> Self {
        let aeth = Aeth { syndrome: syndrome.encode(), msn: hca_core::wire::Be24::new(0) };
        self.ext.extend_from_slice(bytemuck::bytes_of(&aeth));
        self
    }
    pub fn deth(mut self, qkey: Qkey) -> Self {
        let deth = Deth { qkey: Be32::new(qkey.raw()), reserved: 0, src_qp: hca_core::wire::Be24::new(0x77) };
        self.ext.extend_from_slice(bytemuck::bytes_of(&deth));
        self
    }
    pub fn bytes(&self) -> Vec<u8> {
        let pad = self.payload.len().wrapping_neg() & 3;
        let bth = Bth::new(self.opcode, self.flags, pad as u8, self.pkey, self.to, Psn::new(self.psn));
        let mut out = bytemuck::bytes_of(&bth).to_vec();
        out.extend_from_slice(&self.ext);
        out.extend_from_slice(&self.payload);
        out.resize(out.len() + pad, 0);
        out
    }
}
