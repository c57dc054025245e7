//! The software adapter as a PCI function: a model of a ConnectX adapter, which drivers that know the real one can use.
//!
//! A client (a virtual machine, or a driver in another process) connects to a socket, finds a PCI function behind it,
//! and hands its memory over. The function has the registers, commands, queues and doorbells of the adapter's
//! programming interface (`hca-prm`); what its queues ask for is done by a [`softhca::SoftHca`], over any network that
//! has. All functions of a server share that one adapter and its address; protection domains keep them apart.
//!
//! ```text
//!  client   configuration, registers, doorbells │ command slots, queues, memory of its own
//!           ────── vfio-user messages ──────────┼────────── mapped, shared ──────────
//!  here     pci      registers     uar          │ guest: all accesses of client memory
//!             │          │          │           │
//!             │       command ──────┼─────────► objects: keys, completion queues, queue pairs, …
//!             │          │          ├─────────► path: requests to posts, completions to entries
//!             │          │          └─────────► ethernet: frames between functions
//!             └─────► interrupts ◄── eq ◄──────────┘
//!                                               │
//!           ──────────────────── softhca: one adapter for all functions ───────────────
//! ```
//!
//! One thread does everything for all functions of a server, so there are no locks. A [`Function`] is a state machine:
//! what it does it does in calls, and it waits for nothing.
//!
//! A client is not trusted. What it writes is read once, and checked before it is believed; what it can break is its
//! own function. Bus mastering is checked before its memory is touched. When it goes, or resets its function, all that
//! the function had is destroyed, and the next one finds it as new.
//!
//! | module | what it holds |
//! |---|---|
//! | `server`, `client` | [`Server`]: sockets, messages, the loop; who may be slow, and who dies |
//! | `function` | [`Function`]: the parts, their order, reset |
//! | `pci` | configuration space and its capabilities |
//! | `interrupts` | MSI-X: vectors, masks, what is pending |
//! | `registers` | BAR 0: initialization segment, table of vectors, trapped doorbells |
//! | `uar` | doorbell pages that the client maps, and that are polled |
//! | `command` | slots, mailboxes, and what each command does |
//! | `eq` | event queues |
//! | `guest` | the client's memory: maps, checked copies, windows |
//! | `objects` | keys, completion queues, queue pairs, shared receive queues, as commands make them |
//! | `path` | the data path: work requests to posts, completions to entries |
//! | `ethernet` | frames: queues, tables of flows, the switch between functions |
//! | `served` | [`Served`]: a server in a thread of this process |
//! | `directory` | which addresses of functions stand for the adapter's own |

#![deny(unsafe_code)]

mod client;
mod command;
mod directory;
mod eq;
mod ethernet;
mod function;
#[cfg(any(test, fuzzing))]
mod fuzzed;
mod guest;
mod interrupts;
mod objects;
mod path;
mod pci;
mod registers;
mod served;
mod server;
mod uar;

pub use directory::SharedDirectory;
pub use function::{Function, FunctionOptions, PortKind, UnknownPort};
#[cfg(fuzzing)]
pub use fuzzed::served_function;
pub use served::Served;
pub use server::{ServeError, Server, ServerOptions, Stopper};
