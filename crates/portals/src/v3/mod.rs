//! Portals 3.3.
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
