//! The software adapter as a PCI function: a model of a ConnectX adapter, for drivers that know the real adapter.
//!
//! A client (a virtual machine, or a driver in another process) connects to a socket, finds a PCI function behind it,
//! and hands its memory over. The function has the registers, commands, queues and doorbells of the adapter's
//! programming interface (`hca-prm`). A [`softhca::SoftHca`] executes the requests of its queues, over any network that
//! `softhca` supports. All functions of a server share that one adapter and its address; protection domains keep them
//! apart.
//!
//! ```text
//!  client   configuration, registers, doorbells │ command slots, queues, memory of its own
//!           ────── vfio-user messages ──────────┼────────── mapped, shared ──────────
//!  here     bus: pci, registers, uar            │ guest: all accesses of client memory
//!             │          │          │           │
//!             │       command ──────┼─────────► qp, cq, srq, mkey, port: objects of commands
//!             │          │          ├─────────► look: requests to posts (qp), completions to entries (cq)
//!             │          │          └─────────► eth: frames between functions
//!             └─► bus::interrupts ◄── eq ◄─────────┘
//!                                               │
//!           ──────────────────── softhca: one adapter for all functions ───────────────
//! ```
//!
//! One thread does everything for all functions of a server, so there are no locks. A [`Function`] is a state machine:
//! it works in calls and never waits.
//!
//! A client is not trusted. The server reads each word that a client writes once, and checks it before use; a client
//! can break its own function only. Bus mastering is checked before the client's memory is accessed. When the client
//! disconnects or resets its function, the server destroys all objects of the function, and the next client finds the
//! function reset.
//!
//! | module | contents |
//! |---|---|
//! | `server` | [`Server`]: sockets and clients; the loop of its thread |
//! | `function` | [`Function`]: the parts, their order, reset |
//! | `bus` | messages to a function; configuration space; MSI-X; BAR 0; doorbell pages, which the client maps and the server polls |
//! | `guest` | the client's memory: maps, checked copies, windows |
//! | `command` | slots, mailboxes, and the commands |
//! | `qp`, `cq`, `srq`, `mkey` | objects as commands make them, each with its part of the data path and its tests |
//! | `objects` | the tables of these objects; their shared state |
//! | `look` | the order of a look: announced requests, receive requests, sends, completions |
//! | `eq` | event queues |
//! | `port` | the port: state, link, addresses, counters; which addresses of functions stand for the adapter's own |
//! | `eth` | frames: queues, tables of flows, the switch between functions |
//! | `trim` | memory that goes back to the system after a peak |
//! | `served` | [`Served`]: a server in a thread of this process |
//! | `script` | [`Script`]: for tests, deviations of a function from correct behaviour |

#![deny(unsafe_code)]

#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}
#[cfg(any(test, fuzzing))]
#[cfg_attr(fuzzing, allow(dead_code, unused_imports))]
mod bed;
mod bus;
mod command;
mod cq;
mod eq;
mod eth;
mod function;
#[cfg(any(test, fuzzing))]
mod fuzzed;
mod guest;
mod leaving;
mod look;
mod mkey;
mod objects;
mod port;
mod qp;
mod script;
mod served;
mod server;
mod srq;
mod trim;

pub use function::{Function, FunctionOptions, PortKind, UnknownPort};
#[cfg(fuzzing)]
pub use fuzzed::served_function;
pub use port::directory::SharedDirectory;
pub use port::fixed::{Fixed, FixedError};
pub use port::rate::{NoRate, Rate};
pub use script::{Given, Script, Turn};
pub use served::Served;
pub use server::{ServeError, Server, ServerOptions, Stopper};
