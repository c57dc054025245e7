//! Types of an InfiniBand host channel adapter (HCA): numbers, wire formats, work requests and
//! completions, states of queue pairs, and the [`Device`] traits, which the software adapter and
//! drivers for hardware implement.
//!
//! This crate does no I/O, starts no thread, reads no clock and draws no random number.
//!
//! | module | contents |
//! |---|---|
//! | [`wire`] | every header, byte by byte; parsing, building, ICRC and VCRC |
//! | `num` | [`Qpn`], [`Psn`], [`Lkey`], [`Rkey`], [`Gid`], [`Mtu`], timers: the field's numbers as types |
//! | `wr` | [`SendWr`], [`RecvWr`], [`Sge`]: the requests that a program posts |
//! | `wc` | [`Completion`] and all completion statuses |
//! | `qp` | queue pair states, attributes and the legal transitions |
//! | `event` | [`AsyncEvent`] and its [`EventObject`]; the [`EventQueue`] of a device; [`WakerSet`], [`WakerSlot`] |
//! | `port` | [`PortAttr`], [`GidEntry`], [`QpInfo`], [`DeviceClock`]: properties of a device |
//! | `ability` | [`Abilities`] that only some devices have: [`MemoryWindows`], [`ExtendedConnections`], [`ReliableDatagrams`]; [`CqStatus`], [`SrqStatus`], [`MrStatus`] |
//! | `device` | [`Device`] (control path) and its ports (data path) |
//! | `random` | [`SplitMix64`] |
//! | `offload` | [`OffloadEngine`]: an engine of the layer above, which a device may run |
//!
//! ```
//! use hca_core::{Psn, Mtu};
//! let psn = Psn::new(0xff_ffff);
//! assert_eq!(psn.add(1), Psn::new(0)); // PSNs are 24-bit serial numbers
//! assert_eq!(Mtu::B1024.packets(2500), 3);
//! ```
#![deny(unsafe_code)]

mod ability;
mod device;
mod error;
mod event;
#[cfg(feature = "instrument")]
pub mod marks;
mod num;
mod offload;
mod port;
mod qp;
mod random;
mod time;
mod wc;
pub mod wire;
mod wr;

pub use ability::*;
pub use device::*;
pub use error::*;
pub use event::*;
pub use num::*;
pub use offload::*;
pub use port::*;
pub use qp::*;
pub use random::*;
pub use time::*;
pub use wc::*;
pub use wr::*;
