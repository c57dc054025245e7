//! Portals 3.3: match entries with memory descriptors attached, pairs of events, an access control list.
//!
//! The target decides where a message goes. Each of its portals has a list of match entries, which are compared with a
//! message in order. The message goes to the first entry that matches (by source, and by the 64 match bits that are not
//! ignored) and whose descriptor may take it (by operation, room and remaining uses). The descriptor chooses the events
//! and their queue. A program can change the lists at any place and time; message passing libraries rely on that:
//!
//! ```
//! use portals::Memory;
//! use portals::v3::*;
//!
//! /// A receive of MPI: `catch_all` is the last entry of the list, and takes into a buffer of its own what nobody has asked
//! /// for, with events in `unexpected`; receives go before it, with events in `done`.
//! fn receive(
//!     ni: &Ni,
//!     (catch_all, unexpected, done): (MeHandle, EqHandle, EqHandle),
//!     arrived: &mut Vec<Event>,
//!     (from, tag): (MatchId, u64),
//!     memory: &Memory,
//! ) -> Result<Option<Event>, Error> {
//!     let options = MdOptions::OP_PUT | MdOptions::TRUNCATE | MdOptions::EVENT_START_DISABLE;
//!     let active = Md { threshold: Threshold::Count(1), options, eq: Some(done), ..Md::new(memory) };
//!     let inactive = Md { threshold: Threshold::Count(0), ..active.clone() };
//!     loop {
//!         while let Some(got) = ni.eq_get(unexpected)? {
//!             arrived.push(got.event);
//!         }
//!         if let Some(at) = arrived.iter().position(|event| event.match_bits == tag) {
//!             return Ok(Some(arrived.remove(at))); // it has come before: its bytes are in the other buffer
//!         }
//!         let me = ni.me_insert(catch_all, from, tag, 0, Unlink::Unlink, Position::Before)?;
//!         let md = ni.md_attach(me, &inactive, Unlink::Unlink)?;
//!         // The descriptor takes the next such message, unless one has come since the look above.
//!         match ni.md_update(md, Some(&active), Some(unexpected)) {
//!             Ok(_) => return Ok(None), // `done` will tell of it
//!             Err(error) if error.code() == ReturnCode::MdNoUpdate => ni.md_unlink(md)?,
//!             Err(error) => return Err(error),
//!         }
//!     }
//! }
//!
//! fn send(ni: &Ni, to: ProcessId, tag: u64, memory: &Memory) -> Result<(), Error> {
//!     let md = ni.md_bind(&Md { threshold: Threshold::Count(1), ..Md::new(memory) }, Unlink::Unlink)?;
//!     ni.put(md, AckReq::NoAck, to, 4, 0, tag, 0, 0)
//! }
//! # fn setup(node: &portals::Node) -> Result<(), Box<dyn std::error::Error>> {
//! # let ni = Ni::init(node, None, &Limits::default())?;
//! # let (unexpected, done) = (ni.eq_alloc(512, None)?, ni.eq_alloc(512, None)?);
//! # let catch_all = ni.me_attach(4, MatchId::ANY, 0, !0, Unlink::Retain, Position::After)?;
//! # let all = Md { options: MdOptions::OP_PUT, eq: Some(unexpected), ..Md::new(node.alloc(1 << 20)?) };
//! # ni.md_attach(catch_all, &all, Unlink::Retain)?;
//! # let memory = node.alloc(64)?;
//! # send(&ni, ni.id(), 7, &memory)?;
//! # receive(&ni, (catch_all, unexpected, done), &mut Vec::new(), (MatchId::ANY, 7), &memory)?;
//! # Ok(())
//! # }
//! ```
//!
//! The `PUT_START` event of a long message comes before its bytes, so the update sees that the message has begun. With
//! [`EVENT_START_DISABLE`](MdOptions::EVENT_START_DISABLE) on the catch-all's descriptor the update could miss it.
//!
//! # The interface's functions
//!
//! | function | here |
//! |---|---|
//! | `PtlInit`, `PtlFini` | [`Node::open`](crate::Node::open) or [`Node::join`](crate::Node::join), and the drop of the last [`Node`](crate::Node) |
//! | `PtlNIInit`, `PtlNIFini` | [`Ni::init`], and the drop of the last clone; `desired` and `actual` limits: [`Limits`], [`Ni::limits`] |
//! | `PtlNIStatus` | [`Ni::status`] |
//! | `PtlNIDist` | [`Ni::dist`] |
//! | `PtlNIHandle` | [`Ni::handle`] |
//! | `PtlGetUid`, `PtlGetId`, `PtlGetJid` | [`Ni::uid`], [`Ni::id`], [`Ni::jid`] |
//! | `PtlMEAttach`, `PtlMEAttachAny`, `PtlMEInsert` | [`Ni::me_attach`], [`Ni::me_attach_any`], [`Ni::me_insert`] |
//! | `PtlMEUnlink` | [`Ni::me_unlink`] |
//! | `PtlMDAttach`, `PtlMDBind` | [`Ni::md_attach`], [`Ni::md_bind`] |
//! | `PtlMDUnlink`, `PtlMDUpdate` | [`Ni::md_unlink`], [`Ni::md_update`] |
//! | `PtlEQAlloc`, `PtlEQFree` | [`Ni::eq_alloc`], [`Ni::eq_free`] |
//! | `PtlEQGet`, `PtlEQWait`, `PtlEQPoll` | [`Ni::eq_get`], [`Ni::eq_wait`], [`Ni::eq_poll`] |
//! | `PtlACEntry` | [`Ni::ac_entry`] |
//! | `PtlPut`, `PtlPutRegion` | [`Ni::put`], [`Ni::put_region`] |
//! | `PtlGet`, `PtlGetRegion` | [`Ni::get`], [`Ni::get_region`] |
//! | `PtlGetPut` | [`Ni::get_put`] |
//! | `PtlEQWait_timeout` (extension) | [`Ni::eq_wait_timeout`] |
//! | `PtlNIEqDump` (extension) | [`Ni::ni_eq_dump`] |
//! | `PtlMEMDPost` (extension) | [`Ni::me_md_post`] |
//!
//! These are all functions of the interface: 29, and three extensions of other implementations. Return codes are
//! [`ReturnCode`]s: those of refused calls are [`Error::code`], `PTL_EQ_EMPTY` is `None`, `PTL_EQ_DROPPED` is
//! [`Got::dropped`].
//!
//! # Choices that the interface leaves open
//!
//! - All portals up to the limit are there from the start. Messages to a portal without entries are dropped and
//!   counted.
//! - If no entry takes a message, an initiator that asked for an acknowledgement or a reply learns that by the event's
//!   [`ni_fail_type`](Event::ni_fail_type): `Dropped`, `PermViolation`, or `Undeliverable` if the target does not
//!   answer.
//! - A descriptor's threshold counts down when a message is taken, when a put begins, and when an acknowledgement or a
//!   reply arrives. An acknowledgement or a reply for an inactive descriptor is dropped, with its bytes, and counted.
//! - The `UNLINK` event comes when no operation on the descriptor is under way: its memory belongs to the program
//!   again.
//! - A full queue loses its oldest events.
//! - [`get_put`](Ni::get_put) is atomic with all other operations that arrive at the node, and not with accesses of the
//!   processor.
//! - An access control entry that was never set admits no process. (In the C reference implementation all entries admit
//!   the own user; the interface says so of entry 0 only.)
mod eq;
mod error;
mod event;
mod handle;
mod lists;
mod md;
mod ni;
mod transfer;

pub use eq::{EqDump, EqHandler};
pub use error::{Error, ReturnCode};
pub use event::{Event, EventKind, Got};
pub use handle::{AnyHandle, EqHandle, MatchId, MdHandle, MeHandle, NiHandle, ProcessId};
pub use hca_matching::{Jid, NiFail, Nid, Pid, Threshold, Uid};
pub use md::{AckReq, Md, MdOptions, MdState, Position, Unlink};
pub use ni::{Limits, Ni, StatusRegister};
