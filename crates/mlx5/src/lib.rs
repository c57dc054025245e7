//! The driver for adapters of the ConnectX family (ConnectX-4 and later, and their virtual functions): a [`Device`]
//! over a [`PciFunction`], without a kernel driver.
//!
//! ```text
//!  program     Mlx5: Device          ports: SendPort, RecvPort, CqPort
//!                 │                     │   no lock, no system call: queue memory, doorbell records, doorbell pages
//!  objects     PDs, regions, address handles, completion queues, shared receive queues, queue pairs
//!                 │
//!  adapter     Hca ── commands ── slots and mailboxes in DMA memory, one doorbell register
//!               │  ── pages       memory that is lent to the adapter, counted
//!               │  ── UARs        doorbell pages
//!               │  ── EQs         events of the adapter; interrupts
//!               │  ── port        InfiniBand or RoCE: addresses, partition keys, neighbours
//!               │  ── health      whether the adapter lives
//!               │
//!  function    PciFunction: registers, DMA memory, interrupts (Linux vfio, or a vfio-user server)
//! ```
//!
//! A thread of the driver sleeps on the interrupts. It gives the adapter the pages that it requests, wakes threads that
//! wait for a completion or an event, and checks the adapter's health once a second. A polling program does not need
//! it.
//!
//! An adapter that does not answer, or reports a fatal health state, is declared dead: all later calls fail at once
//! with the reason, and memory that it may still access is not reused until the function is reset or closed.
//!
//! Not supported: Ethernet for programs, memory windows, fast registration, ATOMIC WRITE, FLUSH, other depths for queues
//! that exist, dynamic connections, multicast, and more than one port. The device's [`Abilities`](hca_core::Abilities)
//! say so, and its calls are refused.
//!
//! ```no_run
//! use hca_core::Device;
//! use hca_mlx5::{Mlx5, Options};
//! use hca_vfio::PciFunction;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let function = PciFunction::open("0000:03:00.0".parse()?)?;
//! let device = Mlx5::open(function, Options::default())?;
//! println!("{}: {}", device.attr().name, device.port().gid);
//! # Ok(()) }
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `device` | [`Mlx5`], the device |
//! | `hca` | the adapter: the order of its start and stop |
//! | `cmd` | the command queue: slots, mailboxes, waiting, errors |
//! | `pages` | memory lent to the adapter |
//! | `caps`, `uar`, `eq`, `health` | its capabilities, doorbell pages, event queues, health |
//! | `port`, `infiniband`, `link` | its port: addresses; the state from the subnet manager; an Ethernet port's link |
//! | `driver_thread`, `serve`, `events` | the driver's thread and its work; events on their way to the program |
//! | `eth`, `neighbours` | the driver's Ethernet queues, and their use: ARP and neighbour discovery |
//! | `pd`, `mr`, `memory` | protection domains, regions, memory that it can reach |
//! | `cq`, `cqe`, `qp`, `srq`, `ah` | queues and address handles |
//! | `queue`, `shared`, `masked` | memory of queues; words that the adapter reads and writes; rings of our own |
//!
//! [`Device`]: hca_core::Device
//! [`PciFunction`]: hca_vfio::PciFunction
#![deny(unsafe_code)]

#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}
mod ah;
mod caps;
mod cmd;
mod counters;
mod cq;
mod cqe;
mod device;
mod driver_thread;
mod eq;
mod error;
mod eth;
mod events;
mod hca;
mod health;
mod infiniband;
mod link;
mod masked;
mod memory;
mod mr;
mod neighbours;
mod options;
mod pages;
mod pd;
mod port;
mod qp;
mod queue;
mod registers;
mod serve;
mod shared;
mod speed;
mod srq;
mod sync;
mod table;
mod uar;

pub use cmd::CmdError;
pub use device::Mlx5;
pub use error::OpenError;
pub use health::Death;
pub use options::Options;
