//! Served functions: a driver's operations on a function, and a server's misbehaviour towards its client.

mod behaves;
mod misbehaves;
mod server;
