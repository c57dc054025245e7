//! Measurements beside their floors.
//!
//! An absolute time says little here: on virtual machines the host moves the CPUs, and every latency
//! changes with them. So a figure is a ratio to a floor (or a peer) that was measured in the same minute, with
//! the CPUs in the same place.
//!
//! | what | where |
//! |---|---|
//! | floors: bare UDP, TCP and cache lines in two processes | [`floor`] |
//! | small messages between raw queue pairs | [`raw`] |
//! | ours in two processes, timed in batches | [`duo`], [`hca_perf::batches`] |
//! | idle adapters: wake-ups, memory; idle peers; peers that take turns | [`idle`], [`crowd`], [`turns`] |
//! | an adapter served as ConnectX functions; the same engine within one process | [`served`], [`embedded`] |
//! | threads with adapters of their own | [`engines`] |
//! | messages for the Portals matching engine | [`matching`] |
//! | two Portals nodes, for what is counted and timed part by part; a clock for that | [`portals`], [`ticks`] |
//! | VIs, Active Messages, global memory between two processes; LogP | [`hca_perf::layers`], `hca logp` |
//! | processes that share CPUs: latency, rate and CPU time of every kind of wait | [`placed`], `cargo run --release --bin placement` |
//! | the two test drivers of a report on prototype adapters | [`drivers`] |
//! | peers: what Debian packages, by its own programs | [`peers`], `cargo run --release --bin peers` |
//! | arguments of the programs | [`args`] |
//! | ratios from interleaved pairs, against the project's targets | [`ratio`], `cargo run --release --bin ratios` |
//! | how many times better ours is, drawn; figures of papers | [`plot`], [`figures`] |
//! | wall time | `benches/hot.rs`, `benches/pair.rs`: `cargo bench` |
//! | instruction counts, which repeat exactly | `cargo run --release --bin instructions`, `.ci/instructions` |
#![deny(unsafe_code)]

pub mod args;
pub mod cost;
pub mod crowd;
pub mod drivers;
pub mod duo;
pub mod embedded;
pub mod engines;
pub mod figures;
pub mod floor;
pub mod foreign;
pub mod idle;
pub mod matching;
pub mod members;
pub mod peers;
pub mod placed;
pub mod plot;
pub mod portals;
pub mod ratio;
pub mod raw;
pub mod served;
pub mod ticks;
pub mod turns;
