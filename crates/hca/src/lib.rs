//! RDMA anywhere: open a device by name, and talk verbs over standard RoCEv2 to it, on any Linux machine.
//!
//! This is the crate that programs add. It opens devices ([`open`]) and re-exports the verbs; the `hca`
//! command is its binary.
//!
//! ```
//! let context = hca::open("loopback://story?progress=inline")?;
//! let pd = context.alloc_pd()?;
//! let mut buf = pd.alloc(4096)?;
//! buf[..5].copy_from_slice(b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Portals messages go over the same devices:
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
//! All features but `tokio` are on by default. A program that wants no command line in its build names what it uses,
//! as `hca = { version = "0.1", default-features = false, features = ["udp"] }`:
//!
//! | feature | what it brings |
//! |---|---|
//! | `udp` | `udp://` and `auto://`: RoCEv2 over UDP sockets; with `shm`, `auto://` takes shared memory with peers on this machine |
//! | `uring` | `uring://`: the same through io_uring |
//! | `shm` | `shm://`: the processes of this machine, through shared memory |
//! | `raw` | `raw://`: frames on an Ethernet interface |
//! | `loopback` | `loopback://`: networks inside the process |
//! | `vfio` | `vfio://` and `vfio-user://`: ConnectX adapters of this machine, and those that a server offers |
//! | `pci` | `hca serve`: the adapter as PCI functions, with `cli` |
//! | `portals` | [`portals`]: Portals 3.3 and 4.3 |
//! | `cli` | the `hca` command and the measurements behind it, with what they need (clap, plotters, …); brings `loopback`, `portals` and `udp` |
//! | `tokio` | `AsyncCq`: a completion queue on a tokio runtime |
//!
//! | module | what it holds |
//! |---|---|
//! | `url` | [`DeviceUrl`]: the grammar of device names |
//! | `narrow` | a network with a smaller path MTU (`mtu=`) |
//! | `open` | [`open`], `HCA_DEVICE`, and which device a name becomes |
//! | [`verbs`], [`core`](mod@core) | the crates below, for programs that need more than the re-exports |
//! | `cli`, `devinfo`, `pingpong`, `perf`, `run`, `serve`, `trace`, `interrupt`, `warnings` | the command, Ctrl-C, and what the library warns of (feature `cli`) |
//! | `probe` | where two CPUs stand to each other, which every latency depends on (feature `cli`) |
#![forbid(unsafe_code)]

#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cli")]
mod devinfo;
#[cfg(feature = "cli")]
mod interrupt;
mod narrow;
mod open;
#[cfg(feature = "cli")]
pub mod perf;
#[cfg(feature = "cli")]
mod pingpong;
#[cfg(feature = "cli")]
pub mod probe;
#[cfg(feature = "cli")]
mod run;
#[cfg(all(feature = "cli", feature = "pci"))]
mod serve;
#[cfg(feature = "cli")]
mod trace;
mod url;
#[cfg(feature = "cli")]
mod warnings;

pub use hca_core as core;
pub use hca_verbs as verbs;
pub use hca_verbs::*;
#[cfg(feature = "portals")]
pub use portals;

pub use open::{
    DEVICE_VARIABLE, OpenError, Opened, device_from_environment, open, open_device, open_exactly,
};
pub use url::{DeviceUrl, FaultSpec, Options, PciOptions, ShmSettings, Target, UrlError, Users};
