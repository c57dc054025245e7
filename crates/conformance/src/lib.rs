//! One behaviour suite for every [`Device`](hca_core::Device): the guarantees of verbs, tested at the level of the
//! device's own traits. A new device is done when the suite is green.
//!
//! # How a device joins
//!
//! A *bed* opens adapters that can reach each other. A device brings one for each fabric and mode in
//! which it runs, and [`suite!`] turns each into a module of tests, one for each check, so that a
//! failure reads `udp_adaptive::keys::after_deregistration_no_write_lands`:
//!
//! ```
//! use std::sync::Arc;
//!
//! use hca_conformance::{Bed, Feature, suite};
//! use hca_core::{Device, Gid};
//!
//! struct MyBed;
//!
//! impl Bed for MyBed {
//!     fn name(&self) -> String {
//!         "mine".into()
//!     }
//!     fn open(&self, n: usize) -> Vec<Arc<dyn Device>> {
//!         # let open_my_device = |_: usize| -> Arc<dyn Device> { unimplemented!() };
//!         (0..n).map(|i| open_my_device(i)).collect()
//!     }
//!     fn can(&self, feature: Feature) -> bool {
//!         // Silicon moves by itself, and a direct cable loses nothing.
//!         matches!(feature, Feature::Lossless | Feature::Passive | Feature::WaitFd)
//!     }
//!     fn silent_gid(&self) -> Option<Gid> {
//!         Some("192.0.2.99".parse::<std::net::Ipv4Addr>().unwrap().into())
//!     }
//! }
//!
//! suite!(mine, MyBed);
//! # fn main() {}
//! ```
//!
//! # Rules of checks
//!
//! - Every check opens adapters of its own and closes them again; checks run in parallel.
//! - A wait polls, turns *all* adapters of the check (some have no other thread that does) and yields, or
//!   sleeps where nothing moves ([`Pause`]). When [`Bed::patience`] is over the wait fails and shows every counter.
//!   Nothing hangs.
//! - If adapters differ in a case that the IBA leaves open, a check accepts each of the outcomes, and documents that.
//! - A bed denies missing features by [`Bed::can`]; the checks that need such a feature then pass at once. A bed over a
//!   network that loses packets denies [`Feature::Lossless`]: the reliable services have to pass all the same.
//!
//! # Topics
//!
//! | topic | promises |
//! |---|---|
//! | `send_recv`, `rdma`, `atomics` | bytes, lengths, immediate data, order, lists, inline, PSN wrap |
//! | `foreign` | memory of the program's own, at the lengths around which adapters treat it in other ways |
//! | `keys` | ranges, rights, protection domains; nothing lands after deregistration |
//! | `qp_states` | legal and illegal transitions, the requests that each state takes, draining, reuse |
//! | `errors` | the cause first, then the flushed; RNR and timeouts in their time |
//! | `srq`, `cq` | sharing, limit and last-request events; overrun, notification, descriptors |
//! | `xrc` | domains, their queues by number, initiators and targets; queues, targets and domains that go |
//! | `rd` | domains of reliable datagrams, queue pairs and end-to-end contexts; those that fail, and those that go |
//! | `uc`, `ud` | messages that the unreliable services drop and never deliver; GRH, Q_Keys, SQE |
//! | `multicast` | members, copies, loopback, rules and limits of groups |
//! | `limits` | reported limits are granted, requests beyond them refused; stale handles |
//! | `progress` | progress of the device while its program makes no calls |
//! | `portals` | engines of a Portals layer that the device runs itself |
//! | `concurrency` | all of it with four threads |
//!
//! # Fabrics against each other
//!
//! [`differ`] plays the random script of a seed on several beds, and reports differences of the outcomes.
#![deny(unsafe_code)]

mod bed;
mod checks;
mod differential;
mod mem;
mod node;
mod pause;
mod qp;
mod ran;
mod suite;
mod world;

pub use bed::{Bed, Feature, run};
pub use differential::differ;
pub use pause::Pause;
pub use ran::Ran;
pub(crate) use suite::CHECKS;
