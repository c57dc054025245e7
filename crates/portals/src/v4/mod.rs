//! Portals 4.3.

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
    /// None.
    #[default]
    #[doc(alias = "PTL_NO_ACK_REQ")]
    None = 0,
    /// One that tells what became of it, by an `Ack` event.
    #[doc(alias = "PTL_ACK_REQ")]
    Ack = 1,
    /// One that is counted, without an event.
    #[doc(alias = "PTL_CT_ACK_REQ")]
    Ct = 2,
    /// One that says that the target is done with it, whatever became of it; it is counted, without an event.
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

/// What an interface counts of what went wrong, numbered as in the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[doc(alias = "ptl_sr_index_t")]
pub enum StatusRegister {
    /// Messages that nothing took: no portal, a disabled one, no entry, no room for the header.
    #[doc(alias = "PTL_SR_DROP_COUNT")]
    DropCount = 0,
    /// Messages from a user that the entry is not for.
    #[doc(alias = "PTL_SR_PERMISSION_VIOLATIONS")]
    PermissionViolations = 1,
    /// Messages that want what the entry, or the interface, does not do.
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
