//! Functions that a server offers at a socket: vfio-user.
//!
//! [`PciFunction::connect`](crate::PciFunction::connect) is the client, [`serve`] the server. Both have the messages
//! ([`wire`]), the [`Channel`] that carries them with their descriptors, and the [`Sleeper`].

mod channel;
mod client;
pub mod serve;
pub mod wire;

pub use crate::signal::Signals;
pub use crate::wake::{Sleeper, can_be_eventfd, take_count};
pub use channel::{Channel, ChannelError, Received};
pub(crate) use client::connect;
pub use client::{UserError, UserOptions};
