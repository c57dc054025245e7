//! Base Transport Header.

use bytemuck::{Pod, Zeroable};

use super::{Be16, Be24, Opcode};
use crate::{Pkey, Psn, Qpn};

bitflags::bitflags! {
    /// The single bits of a [`Bth`]: eight bits for each of the three bytes with single bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct BthFlags: u32 {
        /// Solicited event.
        const SOLICITED = SOLICITED as u32;
        /// Forward explicit congestion notification.
        const FECN = (FECN as u32) << 8;
        /// Backward explicit congestion notification.
        const BECN = (BECN as u32) << 8;
        /// The requester asks for an acknowledgement.
        const ACK_REQ = (ACK_REQ as u32) << 16;
    }
}

/// Base Transport Header, 12 bytes; the first of every transport packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Bth {
    opcode: u8,
    /// SE, MigReq, PadCnt (2 bits), TVer (4 bits).
    se_m_pad_tver: u8,
    pkey: Be16,
    /// FECN, BECN and 6 reserved bits; the byte that the ICRC takes as ones.
    fecn_becn: u8,
    dest_qp: Be24,
    /// AckReq and 7 reserved bits.
    ack_req: u8,
    psn: Be24,
}
const _: () = assert!(size_of::<Bth>() == 12 && align_of::<Bth>() == 1);

const SOLICITED: u8 = 0x80;
const MIG_REQ: u8 = 0x40;
const PAD_SHIFT: u32 = 4;
const TVER: u8 = 0x0f;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQ: u8 = 0x80;

impl Bth {
    /// Bytes on the wire.
    pub const BYTES: usize = 12;

    /// A header of transport version 0, MigReq set as adapters send it.
    #[inline]
    pub fn new(opcode: Opcode, flags: BthFlags, pad: u8, pkey: Pkey, dest_qp: Qpn, psn: Psn) -> Self {
        let [se, fecn_becn, ack_req, _] = flags.bits().to_le_bytes();
        Self {
            opcode: opcode.raw(),
            se_m_pad_tver: se | MIG_REQ | (pad & 3) << PAD_SHIFT,
            pkey: Be16::new(pkey.raw()),
            fecn_becn,
            dest_qp: Be24::new(dest_qp.raw()),
            ack_req,
            psn: Be24::new(psn.raw()),
        }
    }
    /// This header with another path migration bit.
    #[must_use]
    pub const fn with_mig_req(mut self, mig_req: bool) -> Self {
        self.se_m_pad_tver = self.se_m_pad_tver & !MIG_REQ | if mig_req { MIG_REQ } else { 0 };
        self
    }
    /// The operation code of the packet.
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        Opcode::new(self.opcode)
    }
    /// Bytes of padding behind the payload, 0 to 3.
    #[inline]
    pub const fn pad(&self) -> u8 {
        self.se_m_pad_tver >> PAD_SHIFT & 3
    }
    /// Whether the solicited event bit is set.
    #[inline]
    pub const fn solicited(&self) -> bool {
        self.se_m_pad_tver & SOLICITED != 0
    }
    /// The path migration bit.
    pub const fn mig_req(&self) -> bool {
        self.se_m_pad_tver & MIG_REQ != 0
    }
    /// Transport header version; 0 is the only one.
    #[inline]
    pub const fn version(&self) -> u8 {
        self.se_m_pad_tver & TVER
    }
    /// The partition key of the packet.
    #[inline]
    pub const fn pkey(&self) -> Pkey {
        Pkey::new(self.pkey.get())
    }
    /// The number of the destination queue pair.
    #[inline]
    pub const fn dest_qp(&self) -> Qpn {
        Qpn::new(self.dest_qp.get())
    }
    /// Whether the sender asks for an acknowledgement.
    #[inline]
    pub const fn ack_req(&self) -> bool {
        self.ack_req & ACK_REQ != 0
    }
    /// Whether the packet met congestion on its way (forward notification).
    pub const fn fecn(&self) -> bool {
        self.fecn_becn & FECN != 0
    }
    /// Whether the peer met congestion (backward notification).
    pub const fn becn(&self) -> bool {
        self.fecn_becn & BECN != 0
    }
    /// The packet sequence number (PSN).
    #[inline]
    pub const fn psn(&self) -> Psn {
        Psn::new(self.psn.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::PacketOp;

    #[test]
    fn the_bytes_stand_where_the_iba_has_them() {
        // The BTH of golden row RC_SEND_LAST: 3 bytes of padding, AckReq.
        let bth = Bth::new(
            Opcode::rc(PacketOp::SendLast),
            BthFlags::ACK_REQ,
            3,
            Pkey::DEFAULT,
            Qpn::new(0x12_3456),
            Psn::new(0xab_cdef),
        );
        let bytes = [0x02, 0x70, 0xff, 0xff, 0x00, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef];
        assert_eq!(bytemuck::bytes_of(&bth), bytes);
        assert!(bth.ack_req() && bth.mig_req() && !bth.solicited() && !bth.fecn() && !bth.becn());
        assert_eq!((bth.pad(), bth.version()), (3, 0));
    }

    #[test]
    fn every_flag_is_a_bit_of_its_own() {
        // The BTH of golden row RC_SEND_ONLY_solicited_fecn_becn.
        let bth: Bth =
            bytemuck::cast([0x04_u8, 0x80, 0x80, 0x01, 0xc0, 0x12, 0x34, 0x56, 0x00, 0xab, 0xcd, 0xef]);
        assert!(bth.solicited() && bth.fecn() && bth.becn() && !bth.ack_req() && !bth.mig_req());
        let flags = BthFlags::SOLICITED | BthFlags::FECN | BthFlags::BECN;
        let again = Bth::new(bth.opcode(), flags, bth.pad(), bth.pkey(), bth.dest_qp(), bth.psn());
        assert_eq!(again.with_mig_req(false), bth);
    }

    #[test]
    fn the_reserved_bits_of_other_senders_reach_no_field() {
        let bth: Bth =
            bytemuck::cast([0x04_u8, 0x00, 0xff, 0xff, 0x3f, 0x00, 0x00, 0x01, 0x7f, 0x00, 0x00, 0x02]);
        assert!(!bth.fecn() && !bth.becn() && !bth.ack_req());
    }
}
