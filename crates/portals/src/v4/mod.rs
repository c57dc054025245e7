//! Portals 4.3: one-sided messages, whose portal, match bits and source select the target's memory.
//!
//! A target allocates a portal and appends entries of its memory to it; an initiator binds memory and puts, gets, or
//! combines bytes by 18 operations on 14 types. Events and counts report the results to both sides; a count that
//! reaches a threshold triggers operations. If the device can match
//! ([`Node::is_offloaded`](crate::Node::is_offloaded)), messages are handled while the programs compute; otherwise they
//! are handled within the programs' calls.
//!
//! ```
//! use portals::Node;
//! use portals::v4::*;
//!
//! fn put_to_a_neighbour(here: &Node, there: &Node) -> Result<(), Error> {
//!     let options = NiOptions::MATCHING | NiOptions::PHYSICAL;
//!     let (a, b) = (
//!         Ni::init(here, options, None, &Limits::default())?,
//!         Ni::init(there, options, None, &Limits::default())?,
//!     );
//!     // The target: a portal, and one entry for the match bits 7.
//!     let (eq, inbox) = (b.eq_alloc(64)?, b.alloc(4096)?);
//!     let pt = b.pt_alloc(PtOptions::empty(), Some(eq), None)?;
//!     let options = MeOptions::OP_PUT | MeOptions::USE_ONCE | MeOptions::EVENT_LINK_DISABLE;
//!     b.me_append(pt, &Me { options, match_bits: 7, ..Me::new(&inbox) }, ListKind::Priority, 0)?;
//!     // The initiator: memory, and the counting event of its acknowledgements.
//!     let (ct, data) = (a.ct_alloc()?, a.alloc(5)?);
//!     data.write_at(0, b"hello");
//!     let md = Md { options: MdOptions::EVENT_CT_ACK, ct: Some(ct), ..Md::new(&data) };
//!     let md = a.md_bind(&md)?;
//!     a.put(&Put { match_bits: 7, ack_req: AckReq::Ct, ..Put::new(md, 5, b.id()?, pt) })?;
//!
//!     let event = b.eq_wait(eq)?.event;
//!     assert_eq!((event.kind, event.mlength, event.initiator), (EventKind::Put, 5, a.id()?));
//!     assert_eq!(a.ct_wait(ct, 1)?, CtEvent { success: 1, failure: 0 });
//!     assert_eq!(inbox.slice(..5).to_vec(), b"hello");
//!     Ok(())
//! }
//! ```
//!
//! # Differences from C
//!
//! - Memory is registered ([`Memory`](crate::Memory), [`Pieces`](crate::Pieces)) and never a bare address; its type
//!   distinguishes a vector, instead of `PTL_IOVEC`. Memory lives as long as an object or an operation needs it.
//! - A handle has the type of its object, and belongs to one interface. A handle of a freed object is refused, and
//!   never names another object. `PTL_INVALID_HANDLE`, `PTL_EQ_NONE` and `PTL_CT_NONE` are `None`.
//! - The arguments of an operation are a structure ([`Put`], [`Get`], [`Fetch`]) with defaults.
//! - A return code that is not a failure is a value: `PTL_EQ_EMPTY` and `PTL_CT_NONE_REACHED` are `None`,
//!   `PTL_EQ_DROPPED` is [`Got::dropped`]. All others are in [`Error::code`], and the [`Error`] names the argument.
//! - Times are [`Duration`](std::time::Duration)s, and `None` is `PTL_TIME_FOREVER`.
//!
//! # Guarantees and their limits
//!
//! - **Order.** Messages of an initiator to a target are matched in the order of its calls, for all lengths. Up to
//!   [`max_waw_ordered_size`](Limits::max_waw_ordered_size) bytes, their data is in order as well.
//! - **Delivery.** Messages are not lost. If the target is gone, the initiator gets [`NiFail::Undeliverable`], after
//!   [`NodeOptions::connect_timeout`](crate::NodeOptions::connect_timeout) if the two were never connected.
//! - **`Send`** means that the bytes may be changed: at once for short messages, whose bytes were copied, and after the
//!   target's fetch for longer messages. **`Ack`** means that the bytes are in the target's memory.
//! - **Atomics**: see [`Ni::atomic_sync`].
//! - `VOLATILE` copies bytes that can't leave at once. A bundle's operations may leave together, at its end.
//!   `UNORDERED`, `UNRELIABLE`, `MATCH_UNORDERED`, `IS_ACCESSIBLE` and the hints `ONLY_USE_ONCE` and `ONLY_TRUNCATE`
//!   are accepted and change nothing: this implementation makes no use of the freedom that they give.
//!
//! # The functions of the interface
//!
//! | C | here |
//! |---|---|
//! | `PtlInit`, `PtlFini` | [`Node::open`](crate::Node::open), and the drop of the last clone of the node; there is no state of the process |
//! | `PtlAbort` | [`Ni::abort`], for one interface |
//! | `PtlNIInit`, `PtlNIFini` | [`Ni::init`], and the drop of the last clone of the [`Ni`] |
//! | `PtlNIStatus` | [`Ni::status`] |
//! | `PtlNIHandle` | [`MdHandle::ni`] and those of the other handles; [`Ni::handle`] |
//! | `PtlSetMap`, `PtlGetMap` | [`Ni::set_map`], [`Ni::get_map`] |
//! | `PtlGetUid` | [`Ni::uid`] |
//! | `PtlGetId`, `PtlGetPhysId` | [`Ni::id`], [`Ni::phys_id`] |
//! | `PtlHandleIsEqual` | `==`; handles of different types can't be compared |
//! | `PtlPTAlloc`, `PtlPTFree` | [`Ni::pt_alloc`], [`Ni::pt_free`] |
//! | `PtlPTDisable`, `PtlPTEnable` | [`Ni::pt_disable`], [`Ni::pt_enable`] |
//! | `PtlMDBind`, `PtlMDRelease` | [`Ni::md_bind`], [`Ni::md_release`] |
//! | `PtlLEAppend`, `PtlLEUnlink`, `PtlLESearch` | [`Ni::le_append`], [`Ni::le_unlink`], [`Ni::le_search`] |
//! | `PtlMEAppend`, `PtlMEUnlink`, `PtlMESearch` | [`Ni::me_append`], [`Ni::me_unlink`], [`Ni::me_search`] |
//! | `PtlCTAlloc`, `PtlCTFree` | [`Ni::ct_alloc`], [`Ni::ct_free`] |
//! | `PtlCTGet`, `PtlCTWait`, `PtlCTPoll` | [`Ni::ct_get`], [`Ni::ct_wait`], [`Ni::ct_poll`] |
//! | `PtlCTSet`, `PtlCTInc` | [`Ni::ct_set`], [`Ni::ct_inc`] |
//! | `PtlCTCancelTriggered` | [`Ni::ct_cancel_triggered`] |
//! | `PtlEQAlloc`, `PtlEQFree` | [`Ni::eq_alloc`], [`Ni::eq_free`] |
//! | `PtlEQGet`, `PtlEQWait`, `PtlEQPoll` | [`Ni::eq_get`], [`Ni::eq_wait`], [`Ni::eq_poll`] |
//! | `PtlPut`, `PtlGet` | [`Ni::put`], [`Ni::get`] |
//! | `PtlAtomic`, `PtlFetchAtomic`, `PtlSwap` | [`Ni::atomic`], [`Ni::fetch_atomic`], [`Ni::swap`] |
//! | `PtlAtomicSync` | [`Ni::atomic_sync`] |
//! | `PtlTriggeredPut`, `PtlTriggeredGet` | [`Ni::triggered_put`], [`Ni::triggered_get`] |
//! | `PtlTriggeredAtomic`, `PtlTriggeredFetchAtomic`, `PtlTriggeredSwap` | [`Ni::triggered_atomic`], [`Ni::triggered_fetch_atomic`], [`Ni::triggered_swap`] |
//! | `PtlTriggeredCTInc`, `PtlTriggeredCTSet` | [`Ni::triggered_ct_inc`], [`Ni::triggered_ct_set`] |
//! | `PtlStartBundle`, `PtlEndBundle` | [`Ni::start_bundle`], [`Ni::end_bundle`] |
//! | `PtlTriggeredMEAppend`, `PtlTriggeredMEUnlink` | not here: they are an experiment of one implementation, and no part of 4.3 |
//!
//! Beside the functions of the interface there are [`Ni::alloc`], [`Ni::set_trace`], [`Ni::limits`] (`actual` of
//! `PtlNIInit`).

mod ct;
mod eq;
mod error;
mod event;
mod handle;
mod limits;
mod memory;
mod moves;
mod ni;
mod options;
mod pt;

use hca_matching::AckRequest;

pub use hca_matching::atomic::{AtomicOp, Datatype};
pub use hca_matching::{
    Count as CtEvent, Jid, ListKind, NiFail, Nid, Pid, PortalOptions as PtOptions, Process, Rank, SearchOp,
    Source, Uid,
};

pub use error::{Error, ReturnCode};
pub use event::{Event, EventKind, Got};
pub use handle::{CtHandle, EqHandle, LeHandle, MdHandle, MeHandle, NiHandle};
pub use limits::Limits;
pub use memory::{Le, Md, Me};
pub use moves::{Fetch, Get, Put};
pub use ni::Ni;
pub use options::{Features, LeOptions, MdOptions, MeOptions, NiOptions};

/// The acknowledgement that an initiator asks for, numbered as in the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
#[doc(alias = "ptl_ack_req_t")]
pub enum AckReq {
    /// No acknowledgement.
    #[default]
    #[doc(alias = "PTL_NO_ACK_REQ")]
    None = 0,
    /// An acknowledgement by an `Ack` event.
    #[doc(alias = "PTL_ACK_REQ")]
    Ack = 1,
    /// An acknowledgement that is counted, without an event.
    #[doc(alias = "PTL_CT_ACK_REQ")]
    Ct = 2,
    /// An acknowledgement that the target has finished, regardless of the result; it is counted, without an event.
    #[doc(alias = "PTL_OC_ACK_REQ")]
    Oc = 3,
}

impl AckReq {
    #[inline]
    const fn to_engine(self) -> AckRequest {
        match self {
            Self::None => AckRequest::None,
            Self::Ack => AckRequest::Full,
            Self::Ct => AckRequest::Count,
            Self::Oc => AckRequest::Complete,
        }
    }
}

/// A status register of an interface, which counts failures, numbered as in the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[doc(alias = "ptl_sr_index_t")]
pub enum StatusRegister {
    /// Dropped messages: no portal, a disabled portal, no entry, or no room for the header.
    #[doc(alias = "PTL_SR_DROP_COUNT")]
    DropCount = 0,
    /// Messages from a user that the entry is not for.
    #[doc(alias = "PTL_SR_PERMISSION_VIOLATIONS")]
    PermissionViolations = 1,
    /// Messages whose operation the entry, or the interface, does not allow.
    #[doc(alias = "PTL_SR_OPERATION_VIOLATIONS")]
    OperationViolations = 2,
}

/// Calls `f` with the engine's handles: on the stack, where they are few.
fn with_raw<A: Copy, B: Copy, R>(
    given: &[A],
    argument: &'static str,
    raw: impl Fn(A) -> Result<B, crate::Error>,
    f: impl FnOnce(&[B]) -> Result<R, crate::Error>,
) -> Result<R, crate::Error> {
    const FEW: usize = 16;
    let Some(&first) = given.first() else {
        return Err(crate::Error::Argument { argument, why: "is empty: there is nothing to wait for" });
    };
    if given.len() > FEW {
        return f(&given.iter().map(|&given| raw(given)).collect::<Result<Vec<_>, _>>()?);
    }
    let mut few = [raw(first)?; FEW];
    for (slot, &given) in few.iter_mut().zip(given) {
        *slot = raw(given)?;
    }
    f(&few[..given.len()])
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_says_of_each_function_what_it_is_here() {
        let table =
            include_str!("mod.rs").split("//! # The functions of the interface").nth(1).expect("a table");
        let table = table.split("mod ct;").next().expect("the docs end");
        let is_c = |word: &&str| word.starts_with("Ptl");
        let named: Vec<&str> = table.split('`').filter(is_c).collect();
        assert_eq!(
            named.iter().filter(|name| !name.contains("ME") || !name.contains("Triggered")).count(),
            53 + 1
        );
        for group in [
            "Init Fini Abort NIInit NIFini NIStatus NIHandle SetMap GetMap GetUid GetId GetPhysId HandleIsEqual",
            "PTAlloc PTFree PTDisable PTEnable MDBind MDRelease LEAppend LEUnlink LESearch MEAppend MEUnlink MESearch",
            "CTAlloc CTFree CTGet CTWait CTPoll CTSet CTInc CTCancelTriggered EQAlloc EQFree EQGet EQWait EQPoll",
            "Put Get Atomic FetchAtomic Swap AtomicSync TriggeredPut TriggeredGet TriggeredAtomic",
            "TriggeredFetchAtomic TriggeredSwap TriggeredCTInc TriggeredCTSet StartBundle EndBundle",
            "TriggeredMEAppend TriggeredMEUnlink",
        ] {
            for name in group.split(' ') {
                assert!(named.contains(&format!("Ptl{name}").as_str()), "Ptl{name}");
            }
        }
    }
}
