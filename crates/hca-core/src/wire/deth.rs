//! Datagram headers: DETH, RDETH, XRCETH.

use bytemuck::{Pod, Zeroable};

use super::{Be24, Be32};

/// Datagram Extended Transport Header, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Deth {
    /// Queue key.
    pub qkey: Be32,
    /// Reserved.
    pub reserved: u8,
    /// The queue pair that sent the datagram.
    pub src_qp: Be24,
}
const _: () = assert!(size_of::<Deth>() == 8 && align_of::<Deth>() == 1);

/// Reliable Datagram Extended Transport Header, 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Rdeth {
    /// Reserved.
    pub reserved: u8,
    /// End-to-end context.
    pub eec: Be24,
}
const _: () = assert!(size_of::<Rdeth>() == 4 && align_of::<Rdeth>() == 1);

/// Extended Reliable Connection header, 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Xrceth {
    /// Reserved.
    pub reserved: u8,
    /// The shared receive queue of the message.
    pub srqn: Be24,
}
const _: () = assert!(size_of::<Xrceth>() == 4 && align_of::<Xrceth>() == 1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_stand_where_the_iba_has_them() {
        // Golden rows UD_SEND_ONLY, RD_SEND_ONLY and XRC_SEND_ONLY.
        let deth: Deth = bytemuck::cast([0x11_u8, 0x11, 0x11, 0x11, 0x00, 0x00, 0x00, 0x42]);
        assert_eq!((deth.qkey.get(), deth.src_qp.get()), (0x1111_1111, 0x42));
        let rdeth: Rdeth = bytemuck::cast([0x00_u8, 0x00, 0x00, 0x77]);
        assert_eq!(rdeth.eec.get(), 0x77);
        let xrceth: Xrceth = bytemuck::cast([0x00_u8, 0x00, 0x00, 0x99]);
        assert_eq!(xrceth.srqn.get(), 0x99);
    }
}
