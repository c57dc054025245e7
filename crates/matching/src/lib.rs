//! Portals matching as a state machine without I/O, for Portals 3.3 and 4.3: the decision of a network interface's
//! target side about a message, and its effects: events, counts, triggered operations.
//!
//! An [`Interface`] holds a portal table with its lists, event queues and counting events. [`Interface::deliver`]
//! takes the [`Header`] of a message, and returns the [`Entry`] that takes the message and the place for its bytes. The
//! caller moves the bytes and calls [`Interface::complete`], which posts the events and returns the response for the
//! initiator. No byte of a message passes through this crate; it reads no clock and draws no random number (the seed is
//! an argument). So the same state machine runs above verbs, in an adapter, and in a simulator.
//!
//! ```
//! use hca_matching::*;
//!
//! let mut ni = Interface::new(Config { version: Version::V4, ..Config::default() });
//! let eq = ni.eq_alloc(64)?;
//! let pt = ni.pt_alloc(PortalOptions::empty(), Some(eq), None)?;
//! let criteria = Criteria { bits: 7, ..Criteria::ANY };
//! let region = Region { start: 0x1000, length: 64, options: Options::OP_PUT | Options::USE_ONCE, ..Region::default() };
//! let entry = ni.append(pt, ListKind::Priority, Entry::new(criteria, region))?;
//!
//! let header = Header { pt_index: pt, match_bits: 7, length: 8, ..Header::default() };
//! let Verdict::Accept(delivery) = ni.deliver(&header) else { panic!("an entry waits") };
//! assert_eq!((delivery.entry, delivery.offset, delivery.mlength), (entry, 0, 8));
//! // … the caller copies 8 bytes to 0x1000 …
//! let response = ni.complete(delivery, NiFail::Ok);
//! assert_eq!(response.kind, ResponseKind::None); // no acknowledgement was asked for
//!
//! let kinds: Vec<_> = std::iter::from_fn(|| ni.eq_get(eq).unwrap()).map(|got| got.event.kind).collect();
//! assert_eq!(kinds, [EventKind::Link, EventKind::Put, EventKind::AutoUnlink]);
//! # Ok::<(), Error>(())
//! ```
//!
//! # One engine, two interfaces
//!
//! Each difference between the two interfaces is a setting:
//!
//! | | 3.3 | 4.3 | setting |
//! |---|---|---|---|
//! | entry and memory | match entry, memory descriptor attached later | one | [`Entry::region`], [`Interface::attach`] |
//! | place in the list | anywhere | at the end of one of two lists | [`Interface::insert`], [`Interface::append`] |
//! | offset | local unless asked otherwise | remote unless asked otherwise | [`Options::MANAGE_LOCAL`] |
//! | too long | passes on unless asked otherwise | truncated unless asked otherwise | [`Options::NO_TRUNCATE`] |
//! | how often | a threshold, `max_size` | once or for ever, `min_free` | [`Region::threshold`], [`Region::min_free`] |
//! | when used up | both may stay or go | gone | [`Region::unlink`], [`Entry::unlink`] |
//! | an entry that matches but has no right for it | the next one is asked | the message fails | [`Version`] |
//! | events | pairs, each to be left out | one | [`Version`], [`Options`] |
//! | event queue | the memory descriptor's | the portal's | [`Region::eq`], else the portal's |
//! | access control | a list, by the message's index | the entry's user | [`Interface::set_acl`], [`Entry::uid`] |
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `id` | [`Process`], [`Source`], users and jobs; [`Criteria`] |
//! | `header`, `request` | headers of messages at a target; requests of an initiator |
//! | `entry` | [`Entry`], [`Region`] and their options |
//! | `list`, `chains`, `dense` | an ordered list that finds exact entries by hash and others by a linear stream |
//! | `unexpected` | headers that wait for their entry |
//! | `interface` | [`Interface`]: the portal table, event queues, status |
//! | `post` | appending, inserting, searching, unlinking, memory descriptors of 3.3 |
//! | `deliver` | the choice of the entry for a message; the effects of its completion |
//! | `event`, `counter` | event queues; counting events and triggered operations |
//! | [`instrument`] | marks between the parts of a message's way, for benches (feature `instrument`) |
//! | [`atomic`] | the 18 operations on the 14 types, on bytes; `x87` for long double |
#![forbid(unsafe_code)]

#[cfg(doc)]
#[doc = include_str!("../DESIGN.md")]
pub mod design {}
pub mod atomic;
mod chains;
mod counter;
mod deliver;
mod dense;
mod entry;
mod error;
mod event;
mod handle;
mod header;
mod id;
mod initiator;
pub mod instrument;
mod interface;
mod list;
mod post;
mod request;
mod unexpected;

pub use deliver::{Delivery, Landing, Reason, Verdict};
pub use entry::{ALIGN_BYTES, Entry, ListKind, Options, Place, Region, Threshold};
pub use error::Error;
pub use event::{Event, EventKind, Got};
pub use handle::{CtHandle, EntryHandle, EqHandle, MdHandle, Released};
pub use header::{AckRequest, Header, NiFail, Operation, Response, ResponseKind};
pub use id::{Criteria, Jid, Nid, Pid, Process, Rank, Source, Uid};
pub use initiator::Flight;
pub use interface::{Acl, Config, Interface, Limits, PortalOptions, Status, Version};
pub use post::SearchOp;
pub use request::{Count, Md, MdOptions, Transfer, Triggered};
