//! RDMA anywhere: open a device by name, and talk verbs over standard RoCEv2 to it, on any Linux machine.
//!
//! This is the crate that programs add. It opens devices ([`open`]) and re-exports the verbs; the `hca`
//! command is its binary (feature `cli`, on by default: a library user may turn it off).
//!
//! ```
//! let context = hca::open("loopback://story?progress=inline")?;
//! let pd = context.alloc_pd()?;
//! let mut buf = pd.alloc(4096)?;
//! buf[..5].copy_from_slice(b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `url` | [`DeviceUrl`]: the grammar of device names |
//! | `narrow` | a network with a smaller path MTU (`mtu=`) |
//! | `open` | [`open`], `HCA_DEVICE`, and which device a name becomes |
//! | [`verbs`], [`core`](mod@core) | the crates below, for programs that need more than the re-exports |
//! | `cli`, `devinfo`, `pingpong`, `perf` | the command (feature `cli`) |
//! | `probe` | where two CPUs stand to each other, which every latency depends on (feature `cli`) |
#![forbid(unsafe_code)]

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cli")]
mod devinfo;
mod narrow;
mod open;
#[cfg(feature = "cli")]
pub mod perf;
#[cfg(feature = "cli")]
mod pingpong;
#[cfg(feature = "cli")]
pub mod probe;
mod url;

pub use hca_core as core;
pub use hca_verbs as verbs;
pub use hca_verbs::*;

pub use open::{
    DEVICE_VARIABLE, OpenError, Opened, device_from_environment, open, open_device, open_exactly,
};
pub use url::{DeviceUrl, FaultSpec, Options, ShmSettings, Target, UrlError, Users};
