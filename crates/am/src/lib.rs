//! Active Messages II over any [`Device`](hca_core::Device): each message names a handler at the receiver, which is
//! called with the message's arguments and data.
//!
//! An endpoint has handlers, a table of the peers that it has mapped, a tag, and a segment. Endpoints of a [`Bundle`]
//! are polled together. A request is answered by one reply, or ends without one. A handler is a closure; that of a
//! request gets a [`Token`], which replies once.
//!
//! ```
//! use hca_am::{Bundle, Error, Tag, Way};
//!
//! fn square(context: &hca_verbs::Context) -> Result<u32, Error> {
//!     let mut bundle = Bundle::open(context, Way::Verbs)?;
//!     let server = bundle.endpoint()?;
//!     bundle.set_tag(server, Tag(7))?;
//!     bundle.set_handler(server, 1, |message, token| {
//!         let _ = token.reply(1, &[message.arg(0) * message.arg(0)]);
//!     })?;
//!     let client = bundle.endpoint()?;
//!     let (tell, told) = std::sync::mpsc::channel();
//!     bundle.set_handler(client, 1, move |message, _| drop(tell.send(message.arg(0))))?;
//!     let server = bundle.name(server)?;
//!     bundle.map(client, 0, &server, Tag(7))?;
//!     bundle.request(client, 0, 1, &[12])?;
//!     loop {
//!         bundle.poll()?;
//!         if let Ok(squared) = told.try_recv() {
//!             return Ok(squared);
//!         }
//!     }
//! }
//! ```
//!
//! # Messages
//!
//! | message | carries | call | reply |
//! |---|---|---|---|
//! | short | up to 16 arguments of 32 bits | [`Bundle::request`] | [`Token::reply`] |
//! | medium | and a payload, which the handler sees as a slice | [`Bundle::request_medium`] | [`Token::reply_medium`] |
//! | bulk | and bytes, which are in the receiver's segment by then | [`Bundle::request_bulk`] | [`Token::reply_bulk`] |
//!
//! The calls `try_…` return [`Error::NotSent`] where the others wait for a credit.
//!
//! # Rules
//!
//! - Handlers of a bundle run one at a time, within [`Bundle::poll`] and calls that wait; those of an
//!   [offloaded](Parallel::offloaded) one also on the device's thread, while the program computes.
//! - A handler may only reply. In a sequential bundle it has nothing else; in a [`Parallel`] one other calls are
//!   refused.
//! - Requests of one endpoint to one peer are handled in their order. So are their replies.
//! - A request that can not be handled comes back to the sender's error handler, with a [`Reason`]. A peer that is gone
//!   is noticed while the program polls or waits.
//! - A request that came back as unreachable was handled once, or not at all.
//!
//! # The C interface
//!
//! | function | here |
//! |---|---|
//! | `AM_AllocateBundle`, `AM_FreeBundle` | [`Bundle::open`], [`Parallel::new`], their drops |
//! | `AM_AllocateEndpoint`, `AM_FreeEndpoint` | [`Bundle::endpoint`], [`Bundle::free_endpoint`] |
//! | `AM_GetTag`, `AM_SetTag` | [`Bundle::tag`], [`Bundle::set_tag`] |
//! | `AM_GetSeg`, `AM_SetSeg` | [`Bundle::segment`], [`Bundle::set_segment`] |
//! | `AM_Map`, `AM_MapAny`, `AM_UnMap` | [`Bundle::map`], [`Bundle::map_any`], [`Bundle::unmap`] |
//! | `AM_GetTranslationInuse`, `…Name`, `…Tag` | [`Bundle::mapped`] |
//! | `AM_GetNumTranslations`, `AM_SetNumTranslations` | [`Bundle::translations`], [`Bundle::set_translations`] |
//! | `AM_SetExpectedResources` | [`Options`] |
//! | `AM_SetHandler`, handler 0 | [`Bundle::set_handler`], [`Bundle::set_error_handler`] |
//! | `AM_SetHandlerAny` | [`Bundle::set_handler_any`] |
//! | `AM_SetEventMask`, `AM_WaitSema` | [`Bundle::set_event_mask`], [`Bundle::wait`], [`Parallel::wait`] |
//! | `AM_GetSourceEndpoint`, `AM_GetDestEndpoint` | [`Message::source`], [`Message::endpoint`] |
//! | `AM_GetMsgTag` | [`Message::tag`] |
//! | `AM_Poll` | [`Bundle::poll`] |
//! | `AM_Request`, `AM_RequestI` | [`Bundle::request`], [`Bundle::request_medium`] |
//! | `AM_RequestXfer` | [`Bundle::request_bulk`] |
//! | `AM_RequestXferAsync` | [`Bundle::try_request_bulk`] |
//! | `AM_Reply`, `AM_ReplyI`, `AM_ReplyXfer` | [`Token::reply`], [`Token::reply_medium`], [`Token::reply_bulk`] |
//! | `AM_MaxShort`, `AM_MaxMedium`, `AM_MaxLong` | [`MAX_ARGS`], [`Bundle::limits`] |
//! | `AM_MoveEndpoint` | not there |
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `bundle`, `request`, `parallel` | [`Bundle`], its calls, those that send; [`Parallel`] |
//! | `protocol` | how requests are answered, and credits come back |
//! | `endpoint`, `message` | endpoints and links; [`Message`], [`Token`], [`Returned`] |
//! | `name`, `segment`, `error` | [`EndpointName`], [`Tag`]; [`Segment`]; [`Error`], [`Reason`] |
//! | [`wire`] | the messages as bytes |
//! | `lower` | links over verbs and over VIs |
//! | [`instrument`] | marks between the parts of a request and its reply, for benches (feature `instrument`) |
#![forbid(unsafe_code)]

mod bundle;
mod by_hand;
mod endpoint;
mod error;
pub mod instrument;
mod lower;
mod message;
mod moving;
mod name;
mod parallel;
mod protocol;
mod request;
mod segment;
pub mod wire;

#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}

pub use bundle::{Bundle, MAX_TRANSLATIONS, Options};
#[doc(hidden)]
pub use by_hand::HalfLink;
pub use endpoint::EndpointId;
pub use error::{Error, Reason, ReturnCode};
pub use message::{Message, Returned, Token};
pub use moving::Detached;
pub use name::{EndpointName, Tag, Way};
pub use parallel::Parallel;
pub use segment::{Segment, Source};

/// The most arguments of a message (`AM_MaxShort`).
pub const MAX_ARGS: usize = 16;

/// Which events of an endpoint end a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum EventMask {
    /// None (`AM_NOEVENTS`).
    #[default]
    None,
    /// A message has come, or a peer is lost (`AM_NOTEMPTY`).
    NotEmpty,
}
