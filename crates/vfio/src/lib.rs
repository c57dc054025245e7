//! PCI functions for drivers in user space: configuration space, registers, DMA memory, interrupts.
//!
//! [`PciFunction`] has two kinds: a function of this machine, by Linux's vfio, and a function that another process
//! serves at a socket (vfio-user), which needs no hardware, privileges or virtual machine. A driver uses both kinds
//! alike.
//!
//! ```text
//!  driver   PciFunction ── config(): ConfigSpace          identity, capabilities, bus mastering
//!              │        ── bar(i): Bar ── map(): Mmio     registers; a window keeps the function open
//!              │        ── enable_msix(): eventfds
//!              │        ── notices(), let_go()           errors of the bus; requests for the function
//!              │        ── dma_map(): DmaMapping          memory of the program's own (Linux vfio)
//!              │        ── waker(): Waker                 wakes a server that sleeps (vfio-user)
//!           DmaArena ──── alloc(): DmaBuf                 memory of the library's own, mapped once, given out in pieces
//!              │
//!  here     DmaTable: device addresses (allocator), mappings, and the memory that they keep alive
//!              │
//!  kinds    Linux vfio: iommufd, or group and container   vfio-user: messages over a socket, descriptors beside them
//!           ───────────── the kernel ─────────────        ───────────── a server process ─────────────
//! ```
//!
//! Ownership: a function is open as long as a clone, a window or an arena of it lives. An arena's memory lives until
//! the device can no longer access it, in whichever order values are dropped. A program that maps its own memory has to
//! keep that memory alive itself, hence the `unsafe` of [`PciFunction::dma_map`].
//!
//! Not supported: interrupts other than MSI-X, resets of whole buses, I/O ports, migration. The crate binds no function
//! to vfio-pci; its errors name the commands for that.
//!
//! ```no_run
//! use hca_vfio::{ArenaOptions, DmaArena, PciFunction};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let function = PciFunction::open("0000:03:00.0".parse()?)?;
//! function.reset()?;
//! let config = function.config()?;
//! println!("{:04x}:{:04x}", config.vendor_id()?, config.device_id()?);
//!
//! let registers = function.bar(0)?.map(0, 4096)?;
//! let arena = DmaArena::new(&function, ArenaOptions::default());
//! let page = arena.alloc(4096, 4096)?;
//! config.set_bus_master(true)?;
//! registers.store64_be(0x10, page.iova().0);
//! # Ok(()) }
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `function`, `config`, `bar` | [`PciFunction`], [`ConfigSpace`], [`Bar`], [`Registers`] |
//! | [`mmio`] | [`Mmio`]: all accesses of registers, and the barriers around them |
//! | `arena`, `memory`, `mapping` | [`DmaArena`], [`DmaBuf`]: files in memory, mapped here and by servers |
//! | `dma`, `iova` | mappings of memory for the device, and their addresses |
//! | `linux` | functions of this machine |
//! | [`user`] | functions of a server; the wire, which servers share |
//! | `wake`, `signal` | [`Waker`], and its other half for servers; signals that never wait |
#![deny(unsafe_code)]

#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}
mod address;
mod arena;
mod backend;
mod bar;
mod config;
mod dma;
mod error;
mod function;
mod iova;
mod linux;
mod mapping;
mod memory;
pub mod mmio;
mod signal;
pub mod user;
mod wake;

pub use address::PciAddress;
pub use arena::{ArenaOptions, DmaArena, DmaBuf, MAX_PIECE_ALIGN, PIECE_BYTES};
pub use backend::DmaRights;
pub use bar::{Bar, Registers};
pub use config::{Capability, ConfigSpace, MsixCapability};
pub use dma::DmaMapping;
pub use error::{DmaError, FunctionError, OpenError, RegionName};
pub use function::{Notices, PciFunction};
pub use iova::Iova;
pub use mmio::Mmio;
pub use user::{UserError, UserOptions};
pub use wake::Waker;
