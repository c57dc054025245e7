//! Split-C's global memory over [Active Messages](hca_am): the processes of a job read and write each other's memory.
//!
//! ```
//! use hca_global::{Error, Process};
//!
//! /// Each process tells its neighbour its rank, by a store that nobody answers.
//! fn ring(process: &mut Process) -> Result<u64, Error> {
//!     let heard = process.spread::<u64>(1)?;
//!     let next = (process.rank() + 1) % process.size();
//!     process.store(heard.at(next, 0)?, process.rank() as u64)?;
//!     process.store_sync(size_of::<u64>())?;
//!     Ok(process.load(&heard, 0, 1)?[0])
//! }
//! ```
//!
//! | Split-C | here |
//! |---|---|
//! | `PROCS`, `MYPROC` | [`Process::size`], [`Process::rank`] |
//! | global pointer, spread array `a[v]::[w]` | [`GlobalPtr`], [`Spread`] |
//! | read, write | [`Process::read`], [`Process::write`] |
//! | `:=`, `sync()` | [`Process::get`], [`Process::put`], [`Process::sync`]; without waiting [`Process::outstanding`] |
//! | `:-`, `store_sync`, `all_store_sync` | [`Process::store`], [`Process::store_sync`], [`Process::all_store_sync`] |
//! | `bulk_read`, `bulk_write`, `bulk_put`, `bulk_store` | [`Process::read_bulk`], [`Process::write_bulk`], [`Process::put_bulk`], [`Process::store_bulk`]; without a copy [`Process::read_part`], [`Process::put_part`] |
//! | `atomic` | [`Process::register`], [`Process::call`] |
//! | `barrier`, `all_bcast`, `all_reduce`, scan | [`Process::barrier`], [`Process::broadcast`], [`Process::reduce`], [`Process::all_reduce`], [`Process::scan`] |
//!
//! # Rules
//!
//! - Elements are plain data ([`bytemuck::Pod`]). A [`Spread`] checks bounds; a [`GlobalPtr`] comes from one.
//! - The memory is copied in and out, so no two processes race on a reference.
//! - Reads, writes and bulk accesses are RDMA. Gets, puts, stores and calls are carried out while the process that has
//!   the memory polls: in any call that waits.
//! - A process that is gone ends the waits of all others with [`Error::Lost`].
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `process` | [`Process`]: memory and accesses; [`Joining`] |
//! | `by_hand` | processes of a simulation |
//! | `collective` | barrier, broadcast, reduction, scan |
//! | `pointer` | [`GlobalPtr`], [`Spread`] |
//! | `state` | the handlers |
//! | `error` | [`Error`] |
#![forbid(unsafe_code)]

mod by_hand;
mod collective;
mod error;
mod pointer;
mod process;
mod state;

#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}

pub use error::Error;
pub use hca_am::{Options, Way};
pub use pointer::{GlobalPtr, Spread};
pub use process::{Get, Joining, Memory, ProcedureId, Process};
