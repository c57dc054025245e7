//! Ethernet II header and the VLAN tag.

use bytemuck::{Pod, Zeroable};

use super::Be16;

/// Ethernet II header, 14 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct EthernetHeader {
    /// Destination address.
    pub dst: [u8; 6],
    /// Source address.
    pub src: [u8; 6],
    /// The type of the payload; see [`ether_type`].
    pub ether_type: Be16,
}
const _: () = assert!(size_of::<EthernetHeader>() == 14 && align_of::<EthernetHeader>() == 1);

/// VLAN tag, 4 bytes, which follows an Ethernet header with the type [`ether_type::VLAN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct VlanTag {
    /// Priority (3 bits), drop eligible (1 bit), VLAN identifier (12 bits).
    tci: Be16,
    /// The type of the payload; see [`ether_type`].
    pub ether_type: Be16,
}
const _: () = assert!(size_of::<VlanTag>() == 4 && align_of::<VlanTag>() == 1);

/// The EtherTypes of networks with RoCE.
pub mod ether_type {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// Address resolution.
    pub const ARP: u16 = 0x0806;
    /// A VLAN tag.
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// RoCEv1: a GRH.
    pub const ROCEV1: u16 = 0x8915;
}

const VID: u16 = 0x0fff;
const PCP_SHIFT: u32 = 13;

impl EthernetHeader {
    /// Bytes on the wire.
    pub const BYTES: usize = 14;
}

impl VlanTag {
    /// Bytes on the wire.
    pub const BYTES: usize = 4;

    /// A tag; `priority` is cut to 3 bits, `vid` to 12.
    pub const fn new(priority: u8, vid: u16, ether_type: u16) -> Self {
        Self { tci: Be16::new((priority as u16) << PCP_SHIFT | vid & VID), ether_type: Be16::new(ether_type) }
    }
    /// VLAN identifier, 12 bits.
    pub const fn vid(&self) -> u16 {
        self.tci.get() & VID
    }
    /// The priority of the frame, 3 bits.
    pub const fn priority(&self) -> u8 {
        (self.tci.get() >> PCP_SHIFT) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_destination_comes_first() {
        // The Ethernet header of a notification packet that a ConnectX-4 Lx sent.
        let bytes = [0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2, 0x7c, 0xfe, 0x90, 0x64, 0x3b, 0x32, 0x08, 0x00];
        let h: EthernetHeader = bytemuck::cast(bytes);
        assert_eq!(h.dst, [0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2]);
        assert_eq!(h.src, [0x7c, 0xfe, 0x90, 0x64, 0x3b, 0x32]);
        assert_eq!(h.ether_type.get(), ether_type::IPV4);
        assert_eq!(bytemuck::bytes_of(&h), bytes);
    }

    #[test]
    fn a_vlan_tag_holds_priority_and_identifier() {
        let tag = VlanTag::new(5, 0x123, ether_type::IPV6);
        assert_eq!(bytemuck::bytes_of(&tag), [0xa1, 0x23, 0x86, 0xdd]);
        assert_eq!((tag.priority(), tag.vid()), (5, 0x123));
        assert_eq!(VlanTag::new(0, 0xffff, 0).vid(), 0xfff);
    }
}
