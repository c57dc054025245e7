//! Safe verbs over any [`Device`](hca_core::Device).
#![deny(unsafe_code)]

mod ah;
mod arena;
mod buf;
mod builder;
mod connect;
mod context;
mod cq;
mod error;
mod grh;
mod mr;
mod part;
mod pd;
mod post;
mod qp;
pub mod raw;
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

pub use ah::{AddressHandle, UdPeer};
pub use buf::{Buf, FrozenBuf, SplitInto};
pub use builder::QpBuilder;
pub use connect::{ConnectOptions, Endpoint};
pub use context::Context;
pub use cq::{CompletionQueue, CqRef};
pub use error::*;
pub use grh::Grh;
pub use mr::{RemoteMr, SharedMr, SharedRange};
pub use part::{First, GatherList, Inline, Part, ScatterList};
pub use pd::Pd;
pub use qp::{QpControl, QueuePair, RecvBatch, RecvQueue, SendBatch, SendQueue};
pub use request::SendRequest;
pub use service::{Connected, OfferedBy, Rc, Service, Uc, Ud, ops};
pub use srq::{Srq, SrqRef};
#[cfg(feature = "tokio")]
pub use tokio::AsyncCq;
pub use wc::{Completions, Wc, Wcs};
