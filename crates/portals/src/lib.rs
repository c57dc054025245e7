//! Portals 3.3 and 4.3 over any [`Device`](hca_core::Device).
#![deny(unsafe_code)]

mod error;
mod lock;
mod memory;
mod ni;
mod node;
mod sync;
pub mod trace;
pub mod v3;
pub mod v4;
mod wire;

pub use error::{Error, OpenError};
pub use hca_matching::{Jid, Nid, Pid, Process, Rank, Uid};
pub use memory::{Memory, Pieces};
#[doc(hidden)]
pub use node::Holdings;
pub use node::{Card, Counts, Directory, DirectoryError, Listed, Node, NodeOptions};
