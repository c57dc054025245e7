//! RDMA on any Linux machine: opens a device by name, for verbs and Portals over standard RoCEv2.
//!
//! Programs add this crate. It opens devices ([`open`]) and re-exports the verbs. The command `hca` is the crate
//! `hca-cli`; its measurements are the crate `hca-perf`.
//!
//! ```
//! let context = hca::open("loopback://story?progress=inline")?;
//! let pd = context.alloc_pd()?;
//! let mut buf = pd.alloc(4096)?;
//! buf[..5].copy_from_slice(b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Portals runs over the same devices:
//!
#![cfg_attr(feature = "portals", doc = "```")]
#![cfg_attr(not(feature = "portals"), doc = "```ignore")]
//! use hca::portals::v4::*;
//! use hca::portals::{Node, NodeOptions};
//!
//! let node = Node::open(&hca::open("loopback://story")?, NodeOptions::default())?;
//! let ni = Ni::init(&node, NiOptions::MATCHING | NiOptions::PHYSICAL, None, &Limits::default())?;
//! let (eq, memory) = (ni.eq_alloc(16)?, ni.alloc(64)?);
//! let pt = ni.pt_alloc(PtOptions::empty(), Some(eq), None)?;
//! let options = MeOptions::OP_PUT | MeOptions::EVENT_LINK_DISABLE;
//! ni.me_append(pt, &Me { options, match_bits: 7, ..Me::new(&memory) }, ListKind::Priority, 0)?;
//! let md = ni.md_bind(&Md::new(ni.alloc(8)?))?;
//! ni.put(&Put { match_bits: 7, ..Put::new(md, 8, ni.id()?, pt) })?;
//! assert_eq!(ni.eq_wait(eq)?.event.kind, EventKind::Put);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | feature | adds |
//! |---|---|
//! | `uring`, on by default | `uring://`: UDP through io_uring |
//! | `portals` | [`portals`]: Portals 3.3 and 4.3 |
//! | `am` | `hca::am`: Active Messages, the crate `hca-am` |
//! | `global` | `hca::global`: the global memory of Split-C, the crate `hca-global` |
//! | `via` | `hca::via`: the VI Architecture, the crate `hca-via` |
//! | `vfio` | `vfio://` and `vfio-user://`: ConnectX adapters of this machine, and functions of `hca serve` |
//! | `tokio` | `Reactor::spawn` and `AsyncCq`: completion queues on a tokio runtime |
//! | `bytes`, `memmap2` | [`Pd::adopt`] takes memory of these crates |
//!
//! | module | contents |
//! |---|---|
//! | `url` | [`DeviceUrl`]: the grammar of device names |
//! | `open` | [`open`], `HCA_DEVICE`, from a name to a device |
//! | [`stat`] | counters of running adapters, shown to their own user |
//! | [`cm`] | connections by RDMA CM: listeners, connects, resolutions |
//! | [`job`] | [`Job`]: the processes that `hca run` started together |
//! | [`verbs`], [`hca_core`] | the crates below, for programs that need more than the re-exports |
#![forbid(unsafe_code)]

mod named;
mod open;
pub mod stat;
mod url;

#[cfg(feature = "am")]
pub use hca_am as am;
/// Connections by RDMA CM: listeners, connects, resolutions.
pub use hca_cm as cm;
pub use hca_core;
#[cfg(feature = "global")]
pub use hca_global as global;
pub use hca_job as job;
pub use hca_job::{Job, JobError};
pub use hca_verbs as verbs;
pub use hca_verbs::*;
#[cfg(feature = "via")]
pub use hca_via as via;
#[cfg(feature = "portals")]
pub use portals;

pub use named::{DEVICES_VARIABLE, NamedDevice, NamedDevicesError, named_devices};
pub use open::{
    CaptureFile, DEVICE_VARIABLE, OpenError, Opened, device_from_environment, open, open_device, open_exactly,
};
pub use url::{DeviceUrl, FaultSpec, Options, PciOptions, SHARED_BY, ShmSettings, Target, UrlError, Users};

/// The programs of the guide, compiled and run as tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/guide/first-program.md")]
    mod first_program {}
    #[doc = include_str!("../../../docs/guide/verbs.md")]
    mod verbs {}
    #[doc = include_str!("../../../docs/guide/portals.md")]
    mod portals {}
    #[doc = include_str!("../../../docs/guide/via.md")]
    mod via {}
    #[doc = include_str!("../../../docs/guide/am.md")]
    mod am {}
    #[doc = include_str!("../../../docs/guide/global.md")]
    mod global {}
    #[doc = include_str!("../../../docs/guide/faults.md")]
    mod faults {}
    #[doc = include_str!("../../../docs/guide/adding-a-device.md")]
    mod adding_a_device {}
}
