//! A host channel adapter in software: any Linux machine can run it, without root, kernel module or
//! hardware. It implements [`hca_core::Device`] over any [`hca_fabric::Fabric`].
//!
//! One single-threaded engine owns all state: queue pairs (each with a pure transport machine of
//! `hca-transport`), keys, completion queues, timers. A turn of the engine takes doorbells and packets,
//! fires timers, sends packets, and writes completions. [`Progress`] says which thread turns the engine.
//!
//! ```
//! use hca_core::Device;
//! use hca_fabric::LoopbackNet;
//! use softhca::{Options, Progress, SoftHca};
//!
//! let net = LoopbackNet::new();
//! let fabric = net.attach("10.0.0.1".parse().unwrap());
//! let hca = SoftHca::open(Box::new(fabric), Options { progress: Progress::Inline, ..Options::default() })?;
//! assert_eq!(hca.attr().max_qp, 65_533);
//! # Ok::<(), hca_core::DeviceError>(())
//! ```
//!
//! | folder | contents | uses |
//! |---|---|---|
//! | `device` | opening; the control path; the faces of multicast, XRC, RD, Portals engines | all below |
//! | `ports` | the data path: posting and polling | `drive` and below |
//! | `drive` | the threads that turn the engine; the adapter's thread and its sleep; empty polls | `engine` and below |
//! | `engine` | the turn: packets, messages, timers, acknowledgements; changes of queue pairs | `direct` and below |
//! | `direct` | direct access to the memory of peers on this machine | `objects` and below |
//! | `objects` | tables; queue pairs and their parts; what the adapter knows of its neighbours | `queues` and below |
//! | `queues` | rings between program and engine, their slots, doorbells, completion queues | `memory`, `notify` |
//! | `memory` | regions, keys, windows; copies on memory that others change | |
//! | `notify` | how those that wait are told: descriptors, events, runs of Portals engines | |
//!
//! A folder uses the folders below it alone, and no files import each other in a circle.
#![deny(unsafe_code)]
// Under loom only the primitives that threads share are built, and explored.
#![cfg_attr(loom, allow(dead_code, unused_imports, unused_crate_dependencies))]

#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}
mod clock;
#[cfg(not(loom))]
mod counters;
#[cfg(not(loom))]
mod device;
#[cfg(not(loom))]
mod direct;
#[cfg(not(loom))]
mod drive;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
mod limits;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod network;
mod notify;
#[cfg(not(loom))]
mod objects;
#[cfg(not(loom))]
mod options;
#[cfg(not(loom))]
mod patience;
#[cfg(not(loom))]
mod ports;
mod queues;
mod sync;

#[cfg(not(loom))]
pub use device::SoftHca;
#[cfg(not(loom))]
pub use memory::scattered::{Pieces, Scattered};
#[cfg(not(loom))]
pub use objects::pace::Pace;
#[cfg(not(loom))]
pub use options::{Clock, Limits, Options, Progress, UnknownProgress};
#[cfg(not(loom))]
#[doc(hidden)]
pub use patience::{Patience, as_one_look};
