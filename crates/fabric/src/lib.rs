//! How RoCEv2 packets travel. A [`Fabric`] sends trains of packets and yields what arrived, with the
//! invariant CRC put on and checked here, since only here the IP header is known.
//!
//! | module | what |
//! |---|---|
//! | `batch` | packets to send, gathered into trains |
//! | `fabric` | the trait |
//! | `icrc`, `flow` | the ICRC of a flow, the IPv4 Identification predicted and solved |
//! | `loopback` | a network inside of the process, for tests |
//! | `udp` | plain UDP sockets |
#![deny(unsafe_code)]

mod batch;
mod fabric;
mod flow;
mod icrc;
mod loopback;
mod udp;

pub use batch::{Train, TxBatch};
pub use fabric::*;
pub use loopback::{LoopbackFabric, LoopbackNet};
pub use udp::{OpenError, UdpFabric, UdpOptions};
