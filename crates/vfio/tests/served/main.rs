//! Functions that a server offers: what a driver does with one, and what a server may do to its client.

mod behaves;
mod misbehaves;
mod server;
