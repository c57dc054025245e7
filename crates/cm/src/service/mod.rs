//! Connections for programs: listeners, connects and resolutions over the verbs.
//!
//! A context has one [`Machine`](crate::Machine), on queue pair 1 of its device. It begins with the first listener,
//! connection or resolution of the context, and ends with the last.

mod agent;
mod alarm;
mod bell;
mod connection;
mod datagram;
mod error;
mod group;
mod listener;
mod manager;
mod noted;
mod port;
mod ports;
mod wait;

pub use agent::{Agent, Sink};
pub use connection::{ConnectParams, Connection, connect, connect_async, connect_with};
pub use datagram::{DatagramListener, DatagramRequest, DatagramService, UDP_QKEY, resolve, resolve_async};
pub use error::ConnectionError;
pub use group::{group, join};
pub use listener::{Incoming, Listener};
pub use ports::{ephemeral_port, ports_to_bind};
