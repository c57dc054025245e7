//! How RoCEv2 packets travel. A [`Fabric`] sends trains of packets and yields what arrived, with the
//! invariant CRC put on and checked here, since only here the IP header is known.
#![deny(unsafe_code)]

mod batch;
mod fabric;

pub use batch::{Train, TxBatch};
pub use fabric::*;
