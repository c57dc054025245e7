//! Every header of the InfiniBand transport, byte by byte.
//!
//! Headers are `#[repr(C)]` structs over big-endian byte arrays: alignment 1, no padding, so that a
//! view of any bytes is a cast that can't fail. Two steps: a *view* accepts any bits; [`Packet::parse`]
//! checks what one packet alone can show (lengths, opcode, pad count, version) and copies nothing.

mod aeth;
mod atomic;
mod be;
mod bth;
mod deth;
pub mod icrc;
mod imm;
mod opcode;
mod packet;
mod reth;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use atomic::{AtomicAckEth, AtomicEth};
pub use be::{Be16, Be24, Be32, Be64};
pub use bth::{Bth, BthFlags};
pub use deth::{Deth, Rdeth, Xrceth};
pub use imm::{Ieth, ImmDt};
pub use opcode::{Layout, Opcode, PacketOp, TransportKind};
pub use packet::{Packet, ParseError};
pub use reth::Reth;

/// UDP port of RoCEv2.
pub const ROCEV2_PORT: u16 = 4791;
/// Bytes of the invariant CRC at the end of every packet.
pub const ICRC_BYTES: usize = 4;
/// Headers from BTH to the last extended header take at most this many bytes.
pub const MAX_HEADER_BYTES: usize = 12 + 4 + 8 + 28 + 4;
