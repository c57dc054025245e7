//! Functions that a server offers at a socket: vfio-user.
//!
//! [`PciFunction::connect`](crate::PciFunction::connect) is the client. For a server this module has what is not the
//! client's alone: the messages ([`wire`]), the [`Channel`] that carries them with their descriptors, and the
//! [`Sleeper`].

mod channel;
mod client;
pub mod wire;

pub use crate::wake::Sleeper;
pub use channel::{Channel, ChannelError, Received};
pub(crate) use client::connect;
pub use client::{UserError, UserOptions};
