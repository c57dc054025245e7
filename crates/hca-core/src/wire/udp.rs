//! UDP header (RFC 768).

use bytemuck::{Pod, Zeroable};

use super::Be16;

/// UDP header, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct UdpHeader {
    /// Source port; on RoCEv2 entropy of the flow.
    pub src_port: Be16,
    /// Destination port; 4791 on RoCEv2.
    pub dst_port: Be16,
    /// Bytes of this header and the payload.
    pub len: Be16,
    /// Checksum; 0 for none (IPv4 only).
    pub checksum: Be16,
}
const _: () = assert!(size_of::<UdpHeader>() == 8 && align_of::<UdpHeader>() == 1);

impl UdpHeader {
    /// Bytes on the wire.
    pub const BYTES: usize = 8;
    /// UDP's number in the IP header.
    pub const PROTOCOL: u8 = 17;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_port_comes_first() {
        // From a notification packet that a ConnectX-4 Lx sent.
        let h: UdpHeader = bytemuck::cast([0x00_u8, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00]);
        assert_eq!((h.src_port.get(), h.dst_port.get()), (0, crate::wire::ROCEV2_PORT));
        assert_eq!((h.len.get(), h.checksum.get()), (40, 0));
    }
}
