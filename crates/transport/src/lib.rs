//! The InfiniBand transport as pure state machines: reliable connection (RC), unreliable connection
//! (UC) and unreliable datagram (UD).
//!
//! A [`Qp`] takes inputs by `handle_*` (a packet, posted requests, a timeout) and yields outputs by
//! `poll_*` (a packet to send) and [`Qp::next_deadline`]. It does no I/O, reads no clock, draws no
//! random number and stores no payload: it names requests by index and asks the [`Host`] that it is
//! lent to move bytes. Completions and events go straight to the host, which saves a queue a
//! connection. The same code runs under every fabric, the simulator, the fuzzers and miri.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod build;
mod completer;
mod connection;
mod host;
mod inbound;
mod psn;
mod qp;
mod requester;
mod responder;
mod rtt;
mod uc;
mod ud;
mod window;

pub use host::*;
pub use qp::{AckOwed, Qp, QpConfig, RxMeta, WindowStats};
