//! Measurements beside their floors.
//!
//! An absolute time says little here: on virtual machines the host moves the CPUs, and every latency
//! changes with them. So a figure is a ratio to a floor (or a peer) that was measured in the same minute, with
//! the CPUs in the same place.
//!
//! | what | where |
//! |---|---|
//! | floors: bare UDP and TCP in two processes | [`floor`] |
//! | idle adapters: wake-ups, memory | [`idle`] |
//! | ratios from interleaved pairs, against the project's targets | [`ratio`], `cargo run --release --bin ratios` |
//! | wall time | `benches/hot.rs`, `benches/pair.rs`: `cargo bench` |
//! | instruction counts, which repeat exactly | `cargo run --release --bin instructions`, `.ci/instructions` |
#![deny(unsafe_code)]

pub mod cost;
pub mod floor;
pub mod idle;
pub mod ratio;
