//! Jobs: processes that were started together find each other.
//!
//! Each process of a job has a rank, knows the number of processes, publishes one card (a few bytes of its choice,
//! mostly the address of its adapter), and can read the card of any other process.
//!
//! ```
//! use hca_job::Job;
//!
//! // As its launcher says in the environment; without one, a job of this process alone.
//! let job = Job::from_env()?;
//! job.publish(b"udp://127.0.0.2")?;
//! job.fence()?; // all have published
//! let next = (job.rank() + 1) % job.size();
//! println!("{} speaks to {next} at {:?}", job.rank(), job.card(next)?);
//! job.finalize()?;
//! # Ok::<(), hca_job::JobError>(())
//! ```
//!
//! [`Job::from_env`] takes the first of these that the environment names:
//!
//! | variables | kind of job | set by |
//! |---|---|---|
//! | `PMI_FD`, `PMI_RANK`, `PMI_SIZE` | PMI-1 on an inherited descriptor | `hca run`, `mpiexec.hydra`, Slurm's `srun --mpi=pmi2` |
//! | `PMI_PORT`, `PMI_ID` | PMI-1 over TCP | `mpiexec.hydra -pmi-port` |
//! | `HCA_JOB` | `file:///DIR?rank=R&size=N&id=NAME` or `tcp://HOST:PORT?rank=R&size=N&id=NAME` | the user, who starts the processes by hand |
//! | none | one process, rank 0 of 1 | |
//!
//! `HCA_JOB_TIMEOUT` is the limit of each call in seconds ([`Settings::timeout`]).
//!
//! A card is requested when it is needed, so nothing is stored for ranks without communication. All calls take `&self`
//! and may come from several threads. PMI-1 answers one question at a time, so a request for a card waits while another
//! thread waits at a fence.
//!
//! Not supported: processes that join later, or again, are refused; a job is started as a whole. Nothing is encrypted:
//! any process that can reach the rendezvous of a job can take part in the job.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `job` | [`Job`], [`Settings`] |
//! | `environment`, `url` | the variables of the environment, and the grammar of `HCA_JOB` |
//! | `line`, `link` | lines of PMI-1; a descriptor that carries them, with deadlines |
//! | `pmi` | PMI-1 as a process speaks it |
//! | `card` | cards as values of limited length |
//! | `files` | the rendezvous in a folder |
//! | [`server`], `state` | PMI-1 as a launcher speaks it: sockets, and the machine behind them |
//! | `inherited` | the descriptor that a launcher left open |
//! | [`tether`](mod@tether) | processes that do not outlive the thread that started them |
//! | `error` | [`JobError`] |
#![deny(unsafe_code)]

#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}
mod card;
mod environment;
mod error;
mod files;
mod inherited;
mod job;
mod line;
mod link;
mod pmi;
pub mod server;
mod state;
pub mod tether;
mod url;

pub use card::MAX_CARD_BYTES;
pub use error::{Doing, JobError, LineFault};
pub use job::{Job, Settings, TIMEOUT_VARIABLE};
pub use url::{JOB_VARIABLE, MAX_SIZE};
