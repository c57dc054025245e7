#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod adapter;
mod arena;
mod check;
pub mod checker;
mod executor;
mod fabric;
mod link;
mod near;
mod net;
mod rng;
mod sim;
#[cfg(test)]
mod tests;
mod trace;
mod violation;
mod workload;

pub use check::check;
pub use executor::{
    Cancelled, Elapsed, JoinHandle, Sleep, note, now, random, sleep, spawn, timeout, yield_now,
};
pub use fabric::SimFabric;
pub use link::LinkProfile;
pub use near::{NearProfile, NearStats};
pub use net::{NetStats, SimNet};
pub use rng::Rng;
pub use sim::{Actor, Node, Outcome, Sim, SimBuilder, Step, report_panics_only};
pub use trace::{Event, FrameTag, Loss};
pub use violation::Violation;
pub use workload::{Mix, Report, Workload};

/// The programs of the guide, compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/simulator.md")]
mod guide {}
