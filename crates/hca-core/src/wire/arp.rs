//! Address resolution over Ethernet for IPv4 (RFC 826).

use core::net::Ipv4Addr;

use bytemuck::{Pod, Zeroable};

use super::{Be16, ether_type};

/// An ARP packet about IPv4 over Ethernet, 28 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ArpPacket {
    /// The kind of network: 1, Ethernet.
    hardware: Be16,
    /// The kind of address that is asked about, as an EtherType: IPv4.
    protocol: Be16,
    hardware_len: u8,
    protocol_len: u8,
    /// The operation: [`REQUEST`](Self::REQUEST) or [`REPLY`](Self::REPLY).
    pub operation: Be16,
    /// The sender's MAC.
    pub sender_mac: [u8; 6],
    sender_ip: [u8; 4],
    /// The target's MAC; of no meaning in a request.
    pub target_mac: [u8; 6],
    target_ip: [u8; 4],
}
const _: () = assert!(size_of::<ArpPacket>() == 28 && align_of::<ArpPacket>() == 1);

impl ArpPacket {
    /// Bytes on the wire.
    pub const BYTES: usize = 28;
    /// A request for the MAC of the target's address.
    pub const REQUEST: u16 = 1;
    /// A reply: the sender has its address.
    pub const REPLY: u16 = 2;

    /// A packet of this operation between these addresses.
    pub const fn new(
        operation: u16,
        (sender_mac, sender_ip): ([u8; 6], Ipv4Addr),
        (target_mac, target_ip): ([u8; 6], Ipv4Addr),
    ) -> Self {
        Self {
            hardware: Be16::new(1),
            protocol: Be16::new(ether_type::IPV4),
            hardware_len: 6,
            protocol_len: 4,
            operation: Be16::new(operation),
            sender_mac,
            sender_ip: sender_ip.octets(),
            target_mac,
            target_ip: target_ip.octets(),
        }
    }
    /// Whether the packet is about IPv4 over Ethernet, and a request or a reply.
    pub fn is_known(&self) -> bool {
        (self.hardware.get(), self.protocol.get()) == (1, ether_type::IPV4)
            && (self.hardware_len, self.protocol_len) == (6, 4)
            && matches!(self.operation.get(), Self::REQUEST | Self::REPLY)
    }
    /// The sender's address; unspecified in a probe (RFC 5227).
    pub const fn sender_ip(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(self.sender_ip)
    }
    /// The IP address of the target.
    pub const fn target_ip(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(self.target_ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_stand_where_the_rfc_has_them() {
        let of = |last| Ipv4Addr::new(10, 0, 0, last);
        let p = ArpPacket::new(ArpPacket::REQUEST, ([2, 0, 0, 0, 0, 1], of(1)), ([0; 6], of(2)));
        let bytes = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];
        assert_eq!(bytemuck::bytes_of(&p), bytes);
        assert!(p.is_known());
        assert_eq!((p.sender_ip(), p.target_ip()), (of(1), of(2)));
        for at in [1, 3, 4, 5, 7] {
            let mut other = bytes;
            other[at] += 2;
            assert!(!bytemuck::cast::<_, ArpPacket>(other).is_known(), "byte {at}");
        }
    }
}
