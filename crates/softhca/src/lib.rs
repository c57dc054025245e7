//! A host channel adapter in software: any Linux machine can run it, without root, kernel module or
//! hardware. It implements [`hca_core::Device`] over any [`hca_fabric::Fabric`].
//!
//! One single-threaded engine owns all state: queue pairs (each with a pure transport machine of
//! `hca-transport`), keys, completion queues, timers. A turn of the engine takes doorbells and packets,
//! fires timers, sends, and shows completions. Who turns it is [`Progress`].
//!
//! ```
//! use hca_core::Device;
//! use hca_fabric::LoopbackNet;
//! use softhca::{Options, Progress, SoftHca};
//!
//! let net = LoopbackNet::new();
//! let fabric = net.attach("10.0.0.1".parse().unwrap());
//! let hca = SoftHca::open(Box::new(fabric), Options { progress: Progress::Inline, ..Options::default() })?;
//! assert_eq!(hca.attr().max_qp, 65_536);
//! # Ok::<(), hca_core::DeviceError>(())
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `device` | opening, and the control path |
//! | `ports` | the data path: posting and polling |
//! | `engine` | the turn |
//! | `qp`, `cq`, `mr`, `tables` | queue pairs, completion queues, regions and keys, the rest |
//! | `progress`, `turn_lock`, `doorbell` | who turns, and how others tell it |
//! | `ring`, `dma` | shared rings; copies on memory that others change |
#![deny(unsafe_code)]

mod counters;
mod cq;
mod device;
mod dma;
mod doorbell;
mod engine;
mod memory;
mod mr;
mod notify;
mod options;
mod ports;
mod progress;
mod qp;
mod random;
mod ring;
mod shared;
mod slab;
mod sync;
mod tables;
mod turn_lock;

pub use device::SoftHca;
pub use options::{Clock, Limits, Options, Progress, UnknownProgress};
