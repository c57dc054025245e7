//! What the tests and benches of several crates need: network namespaces, filters of system calls, processes in roles,
//! counting allocators, loopback addresses, random numbers, seeds, the inputs of fuzz targets, waits,
//! wakers that run code.
//!
//! It is a development dependency of any crate and names none of them. A need that is not met here is an error or a
//! panic, never a test that passes: a test that needs more than a plain user has is ignored, with its reason.
#![deny(unsafe_code)]

pub mod addresses;
pub mod corpus;
pub mod counting;
pub mod filter;
pub mod namespaces;
pub mod random;
pub mod roles;
pub mod seeds;
pub mod waiting;
pub mod wakers;
