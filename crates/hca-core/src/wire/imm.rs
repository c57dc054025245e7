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
    /// The remote key to take back at the receiver.
    pub rkey: Be32,
}
const _: () = assert!(size_of::<ImmDt>() == 4 && size_of::<Ieth>() == 4);
