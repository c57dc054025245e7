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
//! | module | contents |
//! |---|---|
//! | `device`, `change` | opening, and the control path; changing and destroying queue pairs |
//! | `ports`, `glance` | the data path: posting and polling; the checks of an empty poll |
//! | `engine`, `network` | the turn, and its network |
//! | `engine::acks`, `shm`, `objects` | acknowledgements; peers on this machine; lookup and creation |
//! | `qp`, `cq`, `mr`, `tables` | queue pairs, completion queues, regions and keys, the rest |
//! | `multicast` | multicast groups and their members |
//! | `scattered` | regions of several pieces |
//! | `near`, `grants` | direct access to peers' memory on this machine; regions that peers were granted |
//! | `progress`, `guard`, `doorbell` | progress modes, what the adapter's thread learns, and doorbells to the thread that turns |
//! | `dormant` | idle queue pairs, whose owner is called when a message arrives |
//! | `offload`, `runs` | Portals engines of the layer above, which the turning thread runs |
//! | `events`, `notify` | asynchronous events, and the descriptors that waiters sleep on |
//! | `pace` | rate limits of groups of queue pairs |
//! | `patience` | when a waiting thread spins, yields or sleeps |
//! | `ring`, `dma` | shared rings; copies on memory that others change |
#![deny(unsafe_code)]
// Under loom only the primitives that threads share are built, and explored.
#![cfg_attr(loom, allow(dead_code, unused_imports, unused_crate_dependencies))]

#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}
#[cfg(not(loom))]
mod change;
mod clock;
#[cfg(not(loom))]
mod counters;
#[cfg(not(loom))]
mod cq;
#[cfg(not(loom))]
mod device;
#[cfg(not(loom))]
mod dma;
mod doorbell;
#[cfg(not(loom))]
mod dormant;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
mod events;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
mod glance;
#[cfg(not(loom))]
mod grants;
#[cfg(not(loom))]
mod guard;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod mr;
#[cfg(not(loom))]
mod multicast;
#[cfg(not(loom))]
mod near;
#[cfg(not(loom))]
mod network;
#[cfg(not(loom))]
mod notify;
#[cfg(not(loom))]
mod offload;
#[cfg(not(loom))]
mod options;
#[cfg(not(loom))]
mod pace;
#[cfg(not(loom))]
mod patience;
#[cfg(not(loom))]
mod ports;
#[cfg(not(loom))]
mod progress;
#[cfg(not(loom))]
mod qp;
#[cfg(not(loom))]
mod random;
#[cfg(not(loom))]
mod rd;
mod ring;
mod runs;
#[cfg(not(loom))]
mod scattered;
#[cfg(not(loom))]
mod seat;
#[cfg(not(loom))]
mod shared;
#[cfg(not(loom))]
mod slab;
#[cfg(not(loom))]
mod sleep;
mod sync;
#[cfg(not(loom))]
mod tables;
#[cfg(not(loom))]
mod xrc;

#[cfg(not(loom))]
pub use device::SoftHca;
#[cfg(not(loom))]
pub use options::{Clock, Limits, Options, Progress, UnknownProgress};
#[cfg(not(loom))]
pub use pace::Pace;
#[cfg(not(loom))]
#[doc(hidden)]
pub use patience::{Patience, as_one_look};
#[cfg(not(loom))]
pub use scattered::{Pieces, Scattered};
