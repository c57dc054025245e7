//! The InfiniBand transport as pure state machines: reliable connection (RC), unreliable connection
//! (UC), unreliable datagram (UD) and reliable datagram (RD).
//!
//! A [`Qp`] takes inputs by `handle_*` (a packet, posted requests, a timeout) and yields outputs by
//! `poll_*` (a packet to send) and [`Qp::next_deadline`]. It does no I/O, reads no clock, draws no
//! random number and stores no payload: it names requests by index and calls its [`Host`] to move
//! bytes. Completions and events go directly to the host, which saves a queue for each connection.
//! The same code runs under every fabric, the simulator, the fuzzers and miri.
//!
//! | module | contents |
//! |---|---|
//! | `qp` | [`Qp`]: states, transitions, dispatch of inputs |
//! | `host` | [`Host`] and [`TxSink`]: the environment of a queue pair |
//! | `connection` | one reliable connection: both directions, the path, congestion notifications |
//! | `datagram` | reliable datagrams: end-to-end contexts and the queue pairs that they serve |
//! | `requester`, `completer` | sending, retransmission, probes and timeouts; handling of responses |
//! | `emit` | the packets of a send request |
//! | `responder`, `executed` | PSN checks, READ and atomic responses, NAKs; executed READs that may be repeated |
//! | `rules` | what keeps the next request back, or refuses it |
//! | `inflight` | the outstanding messages of a requester |
//! | `inbound`, `answered` | execution of SENDs and WRITEs from their pieces; of READs, atomics, ATOMIC WRITEs and FLUSHes |
//! | `message` | RC between adapters of one machine, by messages instead of packets |
//! | `uc`, `ud` | the unreliable services |
//! | `window`, `rtt` | the send window; the measured round trip |
//! | `build`, `psn` | packets in place; PSN arithmetic |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}
mod answered;
mod build;
mod completer;
mod connection;
mod datagram;
mod emit;
mod executed;
mod host;
mod inbound;
mod inflight;
mod message;
mod psn;
mod qp;
mod refusal;
mod requester;
mod responder;
mod rtt;
mod rules;
mod uc;
mod ud;
mod window;

use host::ATOMIC_BYTES;
pub use host::*;
pub use message::{HEAD_BYTES, Lane, Lanes, MAX_MESSAGE, dest_of, plain_send_to};
pub use qp::{AckOwed, Qp, QpConfig, RxMeta, Wants, WindowStats};
