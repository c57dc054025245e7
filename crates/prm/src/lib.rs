//! The ConnectX programming interface, as the manual draws it: layouts and codes.
//!
//! A driver builds the structures that the adapter parses, and the adapter builds the structures that the driver
//! parses. Both sides are programs of this project: a driver for adapters of the ConnectX family, and a model of such
//! an adapter. So this crate describes each structure once, for both directions: the places of its fields, the meanings
//! of its numbers, and its signature. The crate has no I/O, no memory that others may change, no unsafe code, and no
//! policy: its users decide what to do with a field's value.
//!
//! ```
//! use hca_prm::command::hca::SetIssiIn;
//! use hca_prm::{CmdIn, CmdQueueEntry, CMD_TYPE, Opcode};
//!
//! // A driver asks for version 1 of the interface …
//! let input = SetIssiIn::new().with(SetIssiIn::CURRENT_ISSI, 1);
//! let mut slot = CmdQueueEntry::new()
//!     .with(CmdQueueEntry::TYPE, CMD_TYPE)
//!     .with(CmdQueueEntry::INPUT_LENGTH, SetIssiIn::SIZE as u32)
//!     .with(CmdQueueEntry::COMMAND_INPUT_INLINE_DATA, *input.as_bytes())
//!     .with(CmdQueueEntry::OWNERSHIP, true);
//! slot.sign();
//!
//! // … and the adapter sees the request.
//! assert!(slot.is_signed());
//! let input = slot.get(CmdQueueEntry::COMMAND_INPUT_INLINE_DATA);
//! assert_eq!(CmdIn::from_bytes(&input)?.opcode(), Opcode::SET_ISSI);
//! assert_eq!(SetIssiIn::from_bytes(&input)?.get(SetIssiIn::CURRENT_ISSI), 1);
//! # Ok::<(), hca_prm::TooShort>(())
//! ```
//!
//! # How a structure reads
//!
//! [`layout!`] takes the place of a field as in the manual: the byte offset of its row of 32 bits, and the bits in the
//! row. A layout owns its bytes: a user copies them out of memory that others may change, reads or changes the copy,
//! and copies it back. Fields are constants of their layout, with the names that the manual gives them, so that a
//! reader finds them there: `qpc.get(Qpc::LOG_RQ_SIZE)` (MLX-15-4845, and Linux's `mlx5_ifc.h`, which names the same
//! fields in small letters). Bits without a field are reserved, or unused in this project. `{:?}` shows a layout's
//! fields that are not zero.
//!
//! Numbers of up to 32 bits are `u32`, single bits `bool`. Reading never fails. Writing panics if a number has more
//! bits than its field: callers compare untrusted numbers with the limits before they write them to a field.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `layout` | [`layout!`], [`Field`], [`Layout`]; [`layouts`] gives them all |
//! | `opcode`, `status` | [`Opcode`], [`CmdStatus`], [`DeliveryStatus`] |
//! | `init_seg` | [`InitSegment`], [`HealthBuffer`] and its syndromes |
//! | `cmdq` | [`CmdQueueEntry`], mailboxes ([`CmdIfBox`]), signatures |
//! | [`command`] | each command's input and output, by subject; [`CommandInfo`] finds them by operation code |
//! | [`caps`] | capabilities: [`HcaCap`](caps::HcaCap) and those of each kind |
//! | [`register`] | registers behind the command `ACCESS_REG` |
//! | `context` | [`Qpc`] and [`Ads`], [`Eqc`], [`Cqc`], [`Srqc`], [`Rmpc`], [`Mkc`], … |
//! | `wqe` | segments of work queue entries: [`CtrlSeg`], [`DataSeg`], … |
//! | `cqe`, `eqe` | [`Cqe64`] and its syndromes; [`Eqe`] and the data of events |
//! | `doorbell` | doorbell pages and records |
//! | [`pas`] | lists of pages, which follow some commands |

#![forbid(unsafe_code)]

pub mod caps;
mod cmdq;
mod codes;
pub mod command;
mod context;
mod cqe;
mod doorbell;
mod eqe;
mod init_seg;
mod layout;
mod mtu;
mod opcode;
pub mod pas;
pub mod register;
mod status;
mod wqe;

pub use cmdq::*;
pub use command::{CmdIn, CmdOut, Command, CommandInfo};
pub use context::*;
pub use cqe::*;
pub use doorbell::*;
pub use eqe::*;
pub use init_seg::*;
pub use layout::{Field, FieldInfo, Kind, Layout, LayoutInfo, TooShort, Value};
pub use mtu::MtuCode;
pub use opcode::Opcode;
pub use status::{CmdStatus, DeliveryStatus};
pub use wqe::*;

#[doc(hidden)]
pub use layout::support as layout_support;

/// An iterator over all layouts of this crate.
pub fn layouts() -> impl Iterator<Item = &'static LayoutInfo> {
    let modules = [
        cmdq::LAYOUTS,
        init_seg::LAYOUTS,
        register::LAYOUTS,
        wqe::LAYOUTS,
        cqe::LAYOUTS,
        eqe::LAYOUTS,
        doorbell::LAYOUTS,
    ];
    let groups = [caps::LAYOUTS, context::LAYOUTS, command::LAYOUTS];
    modules.into_iter().chain(groups.into_iter().flatten().copied()).flatten()
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_values;
