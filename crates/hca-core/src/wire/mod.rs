//! Every header of the InfiniBand transport, byte by byte.
//!
//! Headers are `#[repr(C)]` structs over big-endian byte arrays: alignment 1, no padding, so that a view of any bytes
//! is a cast that can't fail. Two steps: a *view* accepts any bits; [`Packet::parse`] checks the properties of a single
//! packet (lengths, opcode, pad count, version) and copies nothing.
//!
//! [`PacketBuilder`] writes a packet of any opcode; [`frame`] has the headers around it on Ethernet, [`neighbour`] the
//! messages of address resolution there, and [`listener`] the reports of received multicast groups.
#![forbid(unsafe_code)]

mod aeth;
mod arp;
mod atomic;
mod be;
mod bth;
mod build;
mod checksum;
mod class_flow;
mod deth;
mod ethernet;
mod feth;
pub mod frame;
mod grh;
pub mod icrc;
mod imm;
mod ipv4;
mod ipv6;
pub mod listener;
mod lrh;
mod mad;
mod ndp;
pub mod neighbour;
mod opcode;
mod packet;
mod reth;
mod udp;
mod vcrc;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use arp::ArpPacket;
pub use atomic::{AtomicAckEth, AtomicEth};
pub use be::{Be16, Be24, Be32, Be64};
pub use bth::{Bth, BthFlags};
pub use build::{BuildError, PacketBuilder};
pub use deth::{Deth, Rdeth, Xrceth};
pub use ethernet::{EthernetHeader, VlanTag, ether_type};
pub use feth::{Feth, Placement, Selectivity};
pub use grh::Grh;
pub use imm::{Ieth, ImmDt};
pub use ipv4::Ipv4Header;
pub use ipv6::Ipv6Header;
pub use lrh::{Lrh, NextHeader};
pub use mad::{MadHeader, method, mgmt_class};
pub use ndp::{BrokenOption, LinkAddressOption, NdpMessage};
pub use opcode::{Layout, Opcode, PacketOp, TransportKind};
pub use packet::{Packet, ParseError};
pub use reth::Reth;
pub use udp::UdpHeader;
pub use vcrc::vcrc;

/// UDP port of RoCEv2.
pub const ROCEV2_PORT: u16 = 4791;
/// Bytes of the invariant CRC at the end of every packet.
pub const ICRC_BYTES: usize = 4;
/// Headers from BTH to the last extended header take at most this many bytes.
pub const MAX_HEADER_BYTES: usize = 56;
