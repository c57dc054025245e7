//! Immediate data and the key to invalidate.

use bytemuck::{Pod, Zeroable};

use super::Be32;

/// Immediate data, 4 bytes, delivered in the receive completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ImmDt {
    /// The data; by custom in network byte order, here as the host-order number.
    pub data: Be32,
}

/// Invalidate Extended Transport Header, 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Ieth {
    /// The remote key to invalidate at the receiver.
    pub rkey: Be32,
}
const _: () = assert!(size_of::<ImmDt>() == 4 && size_of::<Ieth>() == 4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_stand_where_the_iba_has_them() {
        // Golden rows RC_SEND_ONLY_WITH_IMMEDIATE and RC_SEND_ONLY_INVALIDATE.
        let imm: ImmDt = bytemuck::cast([0xca_u8, 0xfe, 0xf0, 0x0d]);
        assert_eq!(imm.data.get(), 0xcafe_f00d);
        let ieth: Ieth = bytemuck::cast([0xde_u8, 0xad, 0xbe, 0xef]);
        assert_eq!(ieth.rkey.get(), 0xdead_beef);
    }
}
