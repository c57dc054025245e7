//! Networks that carry RoCEv2 packets. A [`Fabric`] sends trains of packets and returns received packets.
//! It adds and checks the invariant CRC, since only a fabric knows the IP header.
//!
//! | module | contents |
//! |---|---|
//! | `auto` | UDP, and shared memory where a peer is found on this machine |
//! | `batch` | packets to send, gathered into trains |
//! | `fabric` | the trait |
//! | `icrc`, `flow` | the ICRC of a flow, the IPv4 Identification predicted and solved |
//! | `clmul` | the ICRC by carry-less multiplication, where the CPU has it |
//! | `capture` | a tap that writes pcapng |
//! | `faulty` | a layer of loss, duplication, reordering, delay and corruption, by seed |
//! | `glance` | words by which a poller finds out, without the fabric, whether there is input |
//! | `lent` | payloads that are sent without a copy into the train |
//! | `loopback` | a network inside the process, for tests |
//! | `netlink` | the kernel's interfaces, routes, neighbours and sockets |
//! | `own` | this host's address by an interface's name or a prefix |
//! | `share` | one UDP address for several processes |
//! | `raw` | Ethernet frames over packet sockets, RoCEv2 and RoCEv1 |
//! | `link` | the interface below a fabric, and its speed |
//! | `shm` | rings in memory that processes of one machine share |
//! | `udp` | plain UDP sockets |
//! | `uring` | UDP sockets driven by io_uring |
#![deny(unsafe_code)]

#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}
#[cfg(doc)]
#[doc = include_str!("shm/DESIGN.md")]
pub mod design_shm {}
#[cfg(not(loom))]
mod auto;
mod batch;
mod capture;
#[cfg_attr(not(target_arch = "x86_64"), path = "clmul_none.rs")]
mod clmul;
mod cred;
mod fabric;
mod faulty;
mod flow;
#[cfg(not(loom))]
mod glance;
mod icrc;
mod ident;
mod lent;
mod link;
mod loopback;
mod netlink;
mod open;
mod own;
mod paths;
mod raw;
mod share;
mod shm;
mod sync;
mod udp;
#[cfg(feature = "io-uring")]
mod uring;

#[cfg(not(loom))]
pub use auto::AutoFabric;
pub use batch::{Train, TxBatch};
pub use capture::{Capture, CaptureOutput};
pub use fabric::*;
pub use faulty::{FaultPlan, FaultPlanError, Faults, Faulty, Script, Verdict};
#[cfg(not(loom))]
pub use glance::Glance;
#[doc(hidden)]
pub use icrc::MeasuredIcrc;
pub use link::FabricLink;
pub use loopback::{LoopbackFabric, LoopbackNet};
pub use open::OpenError;
pub use own::{Prefix, address_in, address_of};
pub use paths::PORTS_PER_PEER;
pub use raw::{RawFabric, RawOptions, RoceVersion};
pub use share::MAX_SLOTS;
#[cfg(fuzzing)]
pub use shm::shm_peer;
#[cfg(not(loom))]
pub use shm::{
    AccessError, Bracket, Denied, FetchError, Found, Grant, GrantError, GrantId, Granted, LINE_DATA_BYTES,
    LineData, LineMessage, LineSink, LineTx, Lines, LinkId, LoanTerms, MAX_ASKED, MAX_BRACKET_BYTES,
    MAX_GRANTED_REGIONS, MAX_LOAN_PLACES, MAX_MAPPED, MAX_MAPPED_OF_PEER, MAX_QP_WORDS,
    MAX_SHARED_ALLOCATIONS, Notice, PeerName, Places, ProcessLoan, ProcessVm, QpGuard, Reach, Refusable,
    Revocation, SharedPages, ShmChance, ShmError, ShmFabric, ShmOptions, ShmSink, ShmTx, TakeBack,
    TakeBackId, Way, max_process_write,
};
pub use udp::sys::interface_index;
pub use udp::{UdpFabric, UdpOptions};
#[cfg(feature = "io-uring")]
pub use uring::{UringFabric, UringOptions};
