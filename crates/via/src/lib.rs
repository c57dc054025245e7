//! The Virtual Interface Architecture over any [`Device`](hca_core::Device): VIs with send and receive queues of
//! descriptors in registered memory, RDMA, completion queues, and connections by RDMA CM.
//!
//! A program opens a device elsewhere and uses it as an adapter, a [`Nic`]. It writes descriptors into registered
//! [`Memory`], posts them to a [`Vi`], and takes them off again when they have completed. A descriptor's status word is
//! in memory, too.
//!
//! ```
//! use hca_via::{Discriminator, MemAttributes, NetAddress, Nic, Request, Segment, ViAttributes};
//!
//! fn greet(context: &hca_verbs::Context, server: std::net::IpAddr) -> Result<(), hca_via::Error> {
//!     let nic = Nic::open(context)?;
//!     let ptag = nic.create_ptag()?;
//!     let memory = nic.alloc(4096, &MemAttributes::new(&ptag))?;
//!     let vi = nic.create_vi(&ViAttributes::new(&ptag), None, None)?;
//!     let there = NetAddress { host: server, discriminator: Discriminator::new(b"greetings")? };
//!     vi.connect(Discriminator::new(b"client")?, &there, None)?;
//!
//!     memory.write_at(64, b"hello");
//!     let descriptor = memory.descriptor(0)?;
//!     descriptor.write(&Request::new(&[Segment::new(&memory, 64, 5)]))?;
//!     vi.post_send(&descriptor)?;
//!     assert!(vi.send_wait(None)?.status.is_ok());
//!     vi.disconnect()
//! }
//! ```
//!
//! # Where VIs differ from queue pairs
//!
//! - A message without a receive descriptor is lost on an unreliable VI, and ends the connection of a reliable one.
//! - A descriptor that can not be carried out is no error of the post: it completes with an error, in its turn.
//! - A descriptor stays on its queue until the program takes it off. A completion queue tells only which queue to look
//!   at.
//! - A disconnect makes a VI idle, and it may be connected again.
//!
//! # The functions of VIPL
//!
//! | function | here |
//! |---|---|
//! | `VipOpenNic`, `VipCloseNic`, `VipQueryNic` | [`Nic::open`], [`Nic::close`], [`Nic::attributes`] |
//! | `VipCreateVi`, `VipDestroyVi`, `VipQueryVi` | [`Nic::create_vi`], [`Vi::destroy`], [`Vi::query`] |
//! | `VipSetViAttributes` | [`Vi::set_attributes`] |
//! | `VipErrorCallback` | [`Nic::set_error_handler`] |
//! | `VipConnectWait`, `VipConnectAccept`, `VipConnectReject` | [`Nic::listen`] and [`Listener::wait`], [`ConnectionRequest::accept`], [`ConnectionRequest::reject`] |
//! | `VipConnectRequest`, `VipDisconnect` | [`Vi::connect`], [`Vi::disconnect`] |
//! | `VipConnectPeerRequest`, `VipConnectPeerDone`, `VipConnectPeerWait` | [`Vi::peer_request`], [`Vi::peer_done`], [`Vi::peer_wait`] |
//! | `VipCreatePtag`, `VipDestroyPtag` | [`Nic::create_ptag`], [`Ptag::destroy`] |
//! | `VipRegisterMem`, `VipDeregisterMem` | [`Nic::register`] and [`Nic::alloc`], [`Memory::deregister`] |
//! | `VipSetMemAttributes`, `VipQueryMem` | [`Memory::set_attributes`], [`Memory::attributes`] |
//! | `VipPostSend`, `VipPostRecv` | [`Vi::post_send`], [`Vi::post_recv`], [`Vi::post_at`] |
//! | `VipSendDone`, `VipRecvDone` | [`Vi::send_done`], [`Vi::recv_done`] |
//! | `VipSendWait`, `VipRecvWait` | [`Vi::send_wait`], [`Vi::recv_wait`] |
//! | `VipSendNotify`, `VipRecvNotify` | [`Vi::send_notify`], [`Vi::recv_notify`] |
//! | `VipCreateCQ`, `VipDestroyCQ`, `VipResizeCQ` | [`Nic::create_cq`], [`Cq::destroy`], [`Cq::resize`] |
//! | `VipCQDone`, `VipCQWait`, `VipCQNotify` | [`Cq::done`], [`Cq::wait`], [`Cq::notify`] |
//! | `VipNSInit`, `VipNSShutdown` | [`NameService::open`], its drop |
//! | `VipNSGetHostByName`, `VipNSGetHostByAddr` | [`NameService::host_by_name`], [`NameService::host_by_addr`] |
//! | `VipQuerySystemManagementInfo` | in the C library alone |
//!
//! Quality of service and what else is missing: the last section of [`design`].
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `nic` | [`Nic`], its attributes |
//! | `vi` | [`Vi`]: states, posts, completions |
//! | `queue`, `ring` | work queues: the checks of descriptors, and their ends; the descriptors by their numbers |
//! | `queue_pair` | queue pairs of either service, with room in their completion queues |
//! | `descriptor` | [`Descriptor`], [`ControlSegment`], [`Segment`], [`Status`] |
//! | `source` | completion queues of the verbs, with the work queues on them |
//! | `cq` | [`Cq`] |
//! | `memory` | [`Memory`], [`Ptag`], memory handles |
//! | `connect` | addresses, listeners, client-server and peer-to-peer connections |
//! | `names` | [`NameService`] |
//! | `event`, `notify`, `tasks`, `wait` | asynchronous errors; calls of the program; the adapter's threads; waiters |
//! | `error` | [`Error`] and its [`ReturnCode`] |
#![deny(unsafe_code)]

mod connect;
mod cq;
mod descriptor;
mod error;
mod event;
mod lock;
mod memory;
mod names;
mod nic;
mod notify;
mod queue;
mod queue_pair;
mod ring;
mod source;
mod tasks;
mod vi;
mod wait;

#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}

pub use connect::{ConnectionRequest, Discriminator, Listener, NetAddress, RemoteAttributes};
pub use cq::{Cq, CqEntry};
pub use descriptor::{
    CONTROL_BYTES, Control, ControlSegment, DESCRIPTOR_ALIGN, Descriptor, Done, Op, RemoteAddress, Request,
    SEGMENT_BYTES, Segment, Status,
};
pub use error::{Error, ReturnCode};
pub use event::{AsyncError, ErrorHandler, ErrorKind};
pub use memory::{MemAttributes, MemHandle, Memory, Ptag};
pub use names::NameService;
pub use nic::{Nic, NicAttributes, NicOptions, Reliability};
pub use queue::Queue;
pub use vi::{Vi, ViAttributes, ViId, ViState, ViStatus};
