//! Connections for programs: listeners, connects and resolutions over the verbs.
//!
//! A context has one [`Machine`](crate::Machine), on queue pair 1 of its device. It begins with the first listener,
//! connection or resolution of the context, and ends with the last.

mod connection;
mod datagram;
mod error;
mod listener;
mod manager;

pub use connection::{Connection, connect};
pub use datagram::{DatagramListener, DatagramRequest, DatagramService, UDP_QKEY, resolve};
pub use error::ConnectionError;
pub use listener::{Incoming, Listener};
