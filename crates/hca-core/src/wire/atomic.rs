//! Atomic Extended Transport Headers.

use bytemuck::{Pod, Zeroable};

use super::{Be32, Be64};

/// Atomic Extended Transport Header, 28 bytes: compare-and-swap and fetch-and-add requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct AtomicEth {
    /// The 64-bit word at the responder; a multiple of 8.
    pub va: Be64,
    /// Key that grants the access.
    pub rkey: Be32,
    /// Value to swap in, or to add.
    pub swap_add: Be64,
    /// Value to compare with (compare-and-swap only).
    pub compare: Be64,
}
const _: () = assert!(size_of::<AtomicEth>() == 28 && align_of::<AtomicEth>() == 1);

/// Atomic Acknowledge Extended Transport Header, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct AtomicAckEth {
    /// The previous value of the word.
    pub original: Be64,
}
const _: () = assert!(size_of::<AtomicAckEth>() == 8 && align_of::<AtomicAckEth>() == 1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_stand_where_the_iba_has_them() {
        // Golden rows RC_COMPARE_SWAP and RC_ATOMIC_ACKNOWLEDGE.
        let mut bytes = [0_u8; 28];
        bytes[..8].copy_from_slice(&[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        bytes[8..12].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
        bytes[12..20].fill(0x11);
        bytes[20..].fill(0x22);
        let eth: AtomicEth = bytemuck::cast(bytes);
        assert_eq!((eth.va.get(), eth.rkey.get()), (0x1122_3344_5566_7788, 0xdead_beef));
        assert_eq!(eth.swap_add.get(), 0x1111_1111_1111_1111);
        assert_eq!(eth.compare.get(), 0x2222_2222_2222_2222);
        let ack: AtomicAckEth = bytemuck::cast([1_u8, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(ack.original.get(), 0x0102_0304_0506_0708);
    }
}
