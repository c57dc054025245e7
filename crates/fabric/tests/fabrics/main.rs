//! One suite for all fabrics; tests of a single fabric are in a file of its own.

mod auto;
mod capture;
mod faulty;
mod link_local;
mod loopback;
mod raw;
mod raw_share;
mod share;
mod share_survive;
mod suite;
mod udp;
#[cfg(feature = "io-uring")]
mod uring;
mod wire;
