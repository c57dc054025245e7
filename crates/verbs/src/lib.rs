//! Safe verbs over any [`Device`](hca_core::Device): queue pairs, completion queues, registered memory.
//!
//! A program opens a device elsewhere and passes it to a [`Context`]. From there on it needs no `unsafe`: posting a
//! buffer moves it into the queue, and its completion returns it. No memory is used after it was freed, for any order
//! of drops, forgotten values and cancelled futures. The names are those of the InfiniBand specification.
//!
//! ```
//! use hca_verbs::*;
//! use std::sync::Arc;
//!
//! fn ping(device: Arc<dyn hca_core::Device>, exchange: impl Fn(Endpoint) -> Endpoint)
//! -> Result<(), Box<dyn std::error::Error>> {
//!     let context = Context::new(device);
//!     let pd = context.alloc_pd()?;
//!     let mut cq = context.create_cq(256)?;
//!     let mut qp = pd.qp::<Rc>(&cq).build()?;
//!     qp.post_recv(pd.alloc(4096)?)?;
//!     let remote = exchange(qp.endpoint()); // a line of text over any channel of the program's own
//!     qp.connect(&remote, &ConnectOptions::default())?;
//!
//!     let mut hello = pd.alloc(5)?;
//!     hello.copy_from_slice(b"hello");
//!     qp.send(hello)?;
//!     let mut wcs = Completions::default();
//!     loop {
//!         for wc in cq.wait(&mut wcs, None)? {
//!             let wc = wc.ok()?;
//!             if let Some(answer) = wc.payload() {
//!                 println!("{}", String::from_utf8_lossy(answer));
//!                 return Ok(());
//!             }
//!         }
//!     }
//! }
//! ```
//!
//! # Memory
//!
//! | | [`Buf`] | [`FrozenBuf`] | [`SharedMr`] |
//! |---|---|---|---|
//! | from | [`Pd::alloc`] | [`Buf::freeze`] | [`Pd::alloc_shared`] |
//! | peers reach it | no | no | as its [`Access`] says |
//! | the program sees | `&mut [u8]` while it holds it | `&[u8]`, always | copies and atomics |
//! | posting | moves it; its completion gives it back | takes a clone | takes a [`range`](SharedMr::range) |
//! | parts | [`split_at`](Buf::split_at), [`split_into`](Buf::split_into), [`join`](Buf::join) | [`slice`](FrozenBuf::slice) | `range` |
//! | SEND and WRITE from | yes | yes | yes |
//! | receive, READ and atomics into | yes | no | yes |
//!
//! Local lists mix them: `(header, body.clone(), window.range(..64))`. A post copies [`Inline`] bytes, so the
//! program may reuse them at once. [`Pd::register`] registers memory of the program's own, where the device supports
//! that.
//!
//! **Visibility.** WRITEs into a [`SharedMr`]: an aligned WRITE of up to 8 bytes appears as a whole; WRITEs of one
//! queue pair appear in order; the order within a longer WRITE is undefined. A completion or a received message makes
//! all earlier data visible. After [`SharedMr::load_u64`] or [`wait_until`](SharedMr::wait_until) has read a word, all
//! data written before that word is visible.
//!
//! **Unsignalled requests** report only failures. The next completion of the same send queue returns their buffers. A
//! queue of unsignalled requests only would never be freed, so the request that would fill it is refused.
//!
//! # Completion queues
//!
//! A queue pair reserves its depths on its completion queues (a shared receive queue reserves its own once), so these
//! cannot overrun; [`BuildError::CqDepth`] says how many entries are missing. Three calls fill the same
//! [`Completions`]:
//!
//! - [`poll`](CompletionQueue::poll) never waits, and allocates and locks nothing.
//! - [`wait`](CompletionQueue::wait) blocks on the device's descriptor and turns the device itself.
//! - [`next`](CompletionQueue::next) is a future for any runtime. For a device without a thread (`progress=inline`) the
//!   future turns the device, so it makes its runtime poll it again and again; with the feature `tokio`, `AsyncCq`
//!   sleeps on the device's descriptor instead.
//!
//! # Requests as futures
//!
//! A [`Reactor`] shares one completion queue among any number of tasks: [`AsyncQp`]s are built on it, whose requests are
//! futures that give their list back, and whose messages are awaited, one by one or as a stream.
//!
//! ```
//! # use hca_verbs::*;
//! # async fn example(pd: &Pd, reactor: &Reactor, remote: &Endpoint, table: RemoteMr) -> Result<(), Box<dyn std::error::Error>> {
//! let qp = pd.qp::<Rc>(reactor).build_async(reactor)?;
//! qp.post_recvs(pd.alloc_many(16, 4096)?)?;
//! qp.connect(remote, &ConnectOptions::default())?;
//! let entry = qp.read(pd.alloc(64)?, table.try_range(128..192)?).await?;
//! let entry = qp.send(entry).await?;
//! println!("{:?} was answered by {:?}", &entry[..], &qp.recv().await?[..]);
//! # Ok(()) }
//! ```
//!
//! A future that is dropped leaves its request to the queue, and the request's buffers to [`AsyncQp::reclaim`].
//!
//! # Four programs
//!
//! One buffer to many peers:
//! ```
//! # use hca_verbs::*;
//! fn broadcast(news: Buf, peers: &mut [QueuePair<Rc>]) -> Result<FrozenBuf, Box<dyn std::error::Error>> {
//!     let news = news.freeze();
//!     for qp in peers {
//!         qp.send(news.clone())?;
//!     }
//!     Ok(news) // once all have completed, `try_unfreeze` makes it writable again
//! }
//! ```
//! Many parts of one large region in flight, one doorbell for all of them:
//! ```
//! # use hca_verbs::*;
//! fn stripe(pd: &Pd, qp: &mut QueuePair<Rc>, to: RemoteMr) -> Result<(), Box<dyn std::error::Error>> {
//!     const PART: usize = 16 << 20;
//!     let whole = pd.alloc(1 << 30)?;
//!     let mut batch = qp.batch();
//!     for (i, part) in whole.split_into(PART).enumerate() {
//!         let at = to.try_range(i * PART..)?; // a peer told its length
//!         batch.post_send(SendRequest::write(part, at).id(i as u64).signaled(i % 8 == 7))?;
//!     }
//!     batch.ring();
//!     Ok(()) // `Buf::join` puts the parts together again as they come back
//! }
//! ```
//! A READ into a window that peers write meanwhile:
//! ```
//! # use hca_verbs::*;
//! fn refresh(window: &SharedMr, qp: &mut QueuePair<Rc>, from: RemoteMr) -> Result<(), Box<dyn std::error::Error>> {
//!     qp.read(window.range(4096..8192), from.try_range(..4096)?)?;
//!     let bell = window.wait_until(0, |word| word != 0); // a peer rings it by an 8-byte WRITE
//!     let mut copy = vec![0; bell as usize];
//!     window.read_at(64, &mut copy);
//!     Ok(())
//! }
//! ```
//! One thread posts while another polls:
//! ```
//! # use hca_verbs::*;
//! fn two_threads(qp: QueuePair<Rc>, mut cq: CompletionQueue, bufs: Vec<Buf>) {
//!     let (mut sq, _rq) = qp.split();
//!     std::thread::scope(|s| {
//!         let (give, take) = std::sync::mpsc::channel::<Buf>();
//!         bufs.into_iter().for_each(|buf| give.send(buf).expect("the receiver lives"));
//!         s.spawn(move || take.into_iter().try_for_each(|buf| sq.send(buf)));
//!         s.spawn(move || {
//!             let mut wcs = Completions::default();
//!             while let Ok(wcs) = cq.wait(&mut wcs, None) {
//!                 for mut wc in wcs {
//!                     wc.take_bufs().for_each(|buf| drop(give.send(buf)));
//!                 }
//!             }
//!         });
//!     });
//! }
//! ```
//!
//! # Threads
//!
//! | type | `Send` | `Sync` | |
//! |---|---|---|---|
//! | [`Context`], [`Pd`], [`AddressHandle`], [`UdPeer`], [`CqRef`], [`SrqRef`], [`QpControl`], [`XrcDomain`], [`XrcTarget`], [`RdDomain`], [`EeContext`] | yes | yes | clones are the same object |
//! | [`Buf`], [`FrozenBuf`], [`Part`], [`SharedMr`], [`SharedRange`] | yes | yes | [`SharedMr`] is written through `&self`, by atomics |
//! | [`RemoteMr`], [`Endpoint`], [`SendRequest`], [`Completions`], [`Wc`] | yes | yes | data |
//! | [`Reactor`], [`AsyncQp`], [`AsyncSrq`] | yes | yes | clones are the same object |
//! | [`Request`], [`Message`] | yes | yes | a future each task may have; [`Driver`] is one task's |
//! | [`QueuePair`], [`SendQueue`], [`RecvQueue`], [`Srq`], [`XrcSrq`], [`CompletionQueue`], batches, and those of [`raw`] | yes | no | one thread at a time; the two halves and the completion queue may be used by three |
//!
//! # Dropping, forgetting, forking
//!
//! - No drop panics. A drop that returns a part to an arena takes a short lock. The last drop of a queue pair, region,
//!   completion queue or another object of the device destroys the object at the device, which may wait. The adapter in
//!   software takes one turn, and up to 100 ms for each peer on this machine that stands still within revoked memory.
//!   An adapter in silicon takes one command, which takes microseconds, and up to 60 s, once, if the adapter has
//!   stopped answering. An async program that can't wait drops such objects where waiting is allowed
//!   (`tokio::task::spawn_blocking`).
//! - A queue pair is destroyed when its halves and controls are gone; the device has released its memory then. Its
//!   buffers in flight are freed when its completion queues are next polled, or dropped.
//! - Each object keeps the objects that it depends on alive: the order of drops does not matter.
//! - A forgotten object (`mem::forget`) is leaked. If a device does not confirm the release of memory, the memory is
//!   leaked and the loss is logged (`tracing`, level error).
//! - A batch that is forgotten leaves its requests to the next doorbell of its queue.
//! - After `fork` a device belongs to the parent. A child may drop inherited objects, which leaks them without an
//!   access to the device, and must not use them otherwise: memory that peers on this machine can access is not mapped
//!   in a child.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `context`, `pd`, `region`, `arena` | the device in use, its protection domains and registered memory |
//! | `buf`, `mr`, `shared` | memory that peers can, and can not, access |
//! | `part`, `request`, `service` | requests and their local lists, and the services that offer them |
//! | `post`, `slots` | posting, and the slots that hold buffers in flight |
//! | `qp`, `builder`, `connect`, `srq`, `xrc`, `rd`, `ah`, `multicast` | queues, connecting them, and groups |
//! | `cq`, `channel`, `wc`, `grh`, `wait`, `tokio` | completions |
//! | `events` | asynchronous events, by the objects that they are about |
//! | `reactor` | requests as futures |
//! | [`raw`] | `unsafe` posting on the program's own memory |
#![deny(unsafe_code)]

mod adopt;
mod ah;
mod arena;
mod buf;
mod builder;
mod channel;
mod connect;
mod context;
mod cq;
mod error;
mod events;
mod grh;
mod mr;
mod multicast;
mod part;
mod pd;
mod post;
mod qp;
pub mod raw;
mod rd;
mod reactor;
mod region;
mod request;
mod service;
mod shared;
mod slots;
mod srq;
mod sync;
#[cfg(feature = "tokio")]
mod tokio;
mod wait;
mod wc;
mod window;
mod xrc;

pub use adopt::{FrozenBytes, NotAdopted, OwnedBytes};
pub use ah::{AddressHandle, AhCache, UdPeer};
pub use buf::{Buf, FrozenBuf, SplitInto};
pub use builder::QpBuilder;
pub use channel::CompletionChannel;
pub use connect::{ConnectOptions, Endpoint};
pub use context::Context;
pub use cq::{CompletionQueue, CqRef};
pub use error::*;
pub use grh::Grh;
pub use mr::{RemoteMr, SharedMr, SharedRange};
pub use multicast::Membership;
pub use part::{First, GatherList, Inline, Part, ScatterList};
pub use pd::Pd;
pub use qp::{QpControl, QueuePair, RecvBatch, RecvQueue, SendBatch, SendQueue};
pub use rd::{EeContext, EeContextBuilder, RdDomain, RdPeer};
pub use reactor::{
    AsyncBatch, AsyncQp, AsyncSrq, Drain, Driver, Failed, Message, Messages, Reactor, Ready, Receive,
    Reclaim, Request, RequestError, Unclaimed,
};
pub use request::SendRequest;
pub use service::{Connected, OfferedBy, Rc, Rd, Service, Uc, Ud, Xrc, ops};
pub use srq::{Srq, SrqRef};
#[cfg(feature = "tokio")]
pub use tokio::{AsyncCq, NotAsync};
pub use wc::{Completions, Wc, Wcs};
pub use window::{MemoryWindow, QpWindow};
pub use xrc::{XrcDomain, XrcSrq, XrcTarget, XrcTargetBuilder};

// The types that the methods above take and return, so that one `use` is enough.
pub use hca_core::wire::Placement;
pub use hca_core::{
    Abilities, Access, AckTimeout, AddressVector, AsyncEvent, AtomicScope, Completion, Counter, CqModeration,
    CqStatus, DeviceAttr, DeviceError, Gid, Lid, LinkLayer, MrStatus, Mtu, MwStatus, Notify, Pkey, PortAttr,
    PostErrorKind, Psn, Qkey, QpAttr, QpCap, QpHandle, QpState, QpStatus, QpType, Qpn, RNR_RETRY_INFINITE,
    RecvExtra, Rkey, RnrTimer, SrqInit, SrqStatus, Srqn, StaticRate, TransitionError, WcOpcode, WcStatus,
};
