//! Local Route Header: the first header of a packet on an InfiniBand link (RoCE has none).

use bytemuck::{Pod, Zeroable};

use super::Be16;
use crate::Lid;

/// Local Route Header, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Lrh {
    /// VL (4 bits), LVer (4 bits).
    vl_lver: u8,
    /// SL (4 bits), 2 reserved bits, LNH (2 bits).
    sl_lnh: u8,
    dlid: Be16,
    /// 5 reserved bits, PktLen (11 bits).
    pkt_len: Be16,
    slid: Be16,
}
const _: () = assert!(size_of::<Lrh>() == 8 && align_of::<Lrh>() == 1);

/// The header that follows an [`Lrh`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NextHeader {
    /// No header: a raw packet with a 4-byte header that holds an EtherType.
    Raw = 0,
    /// An IPv6 header: a raw packet of IPv6.
    Ipv6 = 1,
    /// The BTH: a packet that stays on its subnet.
    Bth = 2,
    /// The GRH.
    Grh = 3,
}

const HIGH: u32 = 4;
const LOW: u8 = 0x0f;
const LNH: u8 = 0x03;
const PKT_LEN: u16 = 0x07ff;

impl Lrh {
    /// Bytes on the wire.
    pub const BYTES: usize = 8;

    /// A header of link version 0. `words` is the length of the packet from the first byte of this
    /// header up to the VCRC, in units of 4 bytes, cut to 11 bits; `vl` and `sl` are cut to 4 bits.
    pub const fn new(vl: u8, sl: u8, next: NextHeader, dlid: Lid, words: u16, slid: Lid) -> Self {
        Self {
            vl_lver: vl << HIGH,
            sl_lnh: sl << HIGH | next as u8,
            dlid: Be16::new(dlid.raw()),
            pkt_len: Be16::new(words & PKT_LEN),
            slid: Be16::new(slid.raw()),
        }
    }
    /// The virtual lane, 4 bits.
    pub const fn vl(&self) -> u8 {
        self.vl_lver >> HIGH
    }
    /// Link version; 0 is the only one.
    pub const fn version(&self) -> u8 {
        self.vl_lver & LOW
    }
    /// The service level, 4 bits.
    pub const fn sl(&self) -> u8 {
        self.sl_lnh >> HIGH
    }
    /// The header that follows this one.
    pub const fn next(&self) -> NextHeader {
        match self.sl_lnh & LNH {
            0 => NextHeader::Raw,
            1 => NextHeader::Ipv6,
            2 => NextHeader::Bth,
            _ => NextHeader::Grh,
        }
    }
    /// The LID of the destination.
    pub const fn dlid(&self) -> Lid {
        Lid::new(self.dlid.get())
    }
    /// Length from this header up to the VCRC, in units of 4 bytes.
    pub const fn words(&self) -> u16 {
        self.pkt_len.get() & PKT_LEN
    }
    /// The LID of the source.
    pub const fn slid(&self) -> Lid {
        Lid::new(self.slid.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_stand_where_the_link_expects_them() {
        // Literal: VL 7, SL 1, LNH 2 (BTH), DLID 0x375c, 14 words, SLID 0x17d2.
        let lrh = Lrh::new(7, 1, NextHeader::Bth, Lid::new(0x375c), 14, Lid::new(0x17d2));
        assert_eq!(bytemuck::bytes_of(&lrh), [0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2]);
        assert_eq!((lrh.vl(), lrh.version(), lrh.sl(), lrh.next()), (7, 0, 1, NextHeader::Bth));
        assert_eq!((lrh.dlid(), lrh.words(), lrh.slid()), (Lid::new(0x375c), 14, Lid::new(0x17d2)));
    }

    #[test]
    fn reserved_bits_reach_no_field() {
        let lrh: Lrh = bytemuck::cast([0x00_u8, 0x0c, 0, 0, 0xf8, 0x01, 0, 0]);
        assert_eq!((lrh.sl(), lrh.next(), lrh.words()), (0, NextHeader::Raw, 1));
    }
}
