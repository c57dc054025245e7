//! RDMA Extended Transport Header.

use bytemuck::{Pod, Zeroable};

use super::{Be32, Be64};

/// RDMA Extended Transport Header, 16 bytes: WRITE first/only and READ request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Reth {
    /// First byte to touch at the responder.
    pub va: Be64,
    /// Key that grants the access.
    pub rkey: Be32,
    /// Bytes in the whole message, at most 2^31.
    pub dma_len: Be32,
}
const _: () = assert!(size_of::<Reth>() == 16 && align_of::<Reth>() == 1);
