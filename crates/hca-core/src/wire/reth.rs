//! RDMA Extended Transport Header.

use bytemuck::{Pod, Zeroable};

use super::{Be32, Be64};

/// RDMA Extended Transport Header, 16 bytes: WRITE first/only and READ request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Reth {
    /// The address of the first byte at the responder.
    pub va: Be64,
    /// Key that grants the access.
    pub rkey: Be32,
    /// Bytes in the whole message, at most 2^31.
    pub dma_len: Be32,
}
const _: () = assert!(size_of::<Reth>() == 16 && align_of::<Reth>() == 1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_stand_where_the_iba_has_them() {
        // Golden row RC_RDMA_WRITE_FIRST.
        let bytes = [
            0x11_u8, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0xde, 0xad, 0xbe, 0xef, 0x00, 0x00, 0x02, 0x58,
        ];
        let reth: Reth = bytemuck::cast(bytes);
        assert_eq!(reth.va.get(), 0x1122_3344_5566_7788);
        assert_eq!((reth.rkey.get(), reth.dma_len.get()), (0xdead_beef, 600));
    }
}
