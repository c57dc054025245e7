//! Portals 3.3 and 4.3 over any [`Device`](hca_core::Device): messages that find their buffer by match bits, events,
//! counting events and triggered operations.
//!
//! A program opens a device elsewhere, creates a [`Node`] on it, and opens network interfaces on the node. Each version
//! has its own module, with its own names, handles and return codes: [`v4`] for Portals 4.3, [`v3`] for Portals 3.3. If
//! the device can match ([`Device::offload`](hca_core::Device::offload)), a put to a posted entry lands in its buffer,
//! with its event, while the target program computes and makes no calls; otherwise the program's own calls do that
//! work. There is no other difference.
//!
//! ```
//! use portals::{Node, NodeOptions, v4};
//!
//! fn to_the_next(context: &hca_verbs::Context, job: std::sync::Arc<hca_job::Job>)
//! -> Result<(), Box<dyn std::error::Error>> {
//!     let node = Node::join(context, &job, NodeOptions::default())?;
//!     let options = v4::NiOptions::MATCHING | v4::NiOptions::LOGICAL;
//!     let ni = v4::Ni::init(&node, options, None, &v4::Limits::default())?;
//!     let eq = ni.eq_alloc(64)?;
//!     let pt = ni.pt_alloc(v4::PtOptions::empty(), Some(eq), Some(0))?;
//!     let inbox = ni.alloc(4096)?;
//!     let me = v4::Me { options: v4::MeOptions::OP_PUT, match_bits: 7, ..v4::Me::new(&inbox) };
//!     ni.me_append(pt, &me, v4::ListKind::Priority, 0)?;
//!     job.barrier()?; // all have posted
//!
//!     let hello = ni.alloc(5)?;
//!     hello.write_at(0, b"hello");
//!     let md = ni.md_bind(&v4::Md::new(&hello))?;
//!     let next = v4::Process::logical(v4::Rank((job.rank() + 1) % job.size()));
//!     ni.put(&v4::Put { match_bits: 7, ..v4::Put::new(md, 5, next, pt) })?;
//!     loop {
//!         let got = ni.eq_wait(eq)?;
//!         if got.event.kind == v4::EventKind::Put {
//!             println!("{:?} sent {} bytes", got.event.initiator, got.event.mlength);
//!             return Ok(());
//!         }
//!     }
//! }
//! ```
//!
//! # Memory
//!
//! Messages are sent from and received into [`Memory`], which is registered once ([`Node::alloc`]). Descriptors and
//! entries hold parts of it, or a vector of parts ([`Pieces`]). Peers may write to it at any time, so it is never a
//! slice.
//!
//! # Finding each other
//!
//! [`Node::join`] makes a node a process of a job (PMI-1 under `hca run`, `mpiexec.hydra` or Slurm; a folder; an
//! address). Without a job, a program gives each node a [`Directory`] of the others' [`Card`]s.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | [`v4`], [`v3`] | the interfaces of Portals 4.3 and 3.3 |
//! | `node` | [`Node`]: connections, messages, protocols, waiting |
//! | `job` | a node as a process of a job |
//! | `ni` | the parts of a network interface that both versions share |
//! | `memory` | [`Memory`], [`Pieces`] |
//! | `wire` | the messages between nodes |
//! | [`trace`] | the path of each message through the lists |
//! | `lock` | the lock of a node, where other threads can leave work |
//! | `error` | [`Error`], behind the return codes of both versions |
#![deny(unsafe_code)]

#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}
mod error;
mod job;
mod lock;
mod memory;
mod ni;
mod node;
pub mod trace;
pub mod v3;
pub mod v4;
mod wire;

pub use error::{Error, OpenError};
pub use hca_matching::{Jid, Nid, Pid, Process, Rank, Uid};
pub use job::JoinError;
pub use memory::{Memory, Pieces};
#[doc(hidden)]
pub use node::Holdings;
pub use node::{Card, Counts, Directory, DirectoryError, Listed, Node, NodeOptions, Signal};
