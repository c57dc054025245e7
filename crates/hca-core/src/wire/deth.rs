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
    /// Shared receive queue that the message is for.
    pub srqn: Be24,
}
const _: () = assert!(size_of::<Xrceth>() == 4 && align_of::<Xrceth>() == 1);
