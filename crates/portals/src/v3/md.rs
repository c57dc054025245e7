//! Memory descriptors: the program's values, and the engine's state of them.

use bitflags::bitflags;
use hca_matching::{Options, Region, Threshold};

use super::handle::{EqHandle, NiHandle};
use crate::Pieces;

bitflags! {
    /// The options of a memory descriptor (`PTL_MD_*`), numbered as in the C interface's reference implementation.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MdOptions: u32 {
        /// Puts are taken.
        const OP_PUT = 1 << 0;
        /// Gets are taken; with `OP_PUT`, exchanges too.
        const OP_GET = 1 << 1;
        /// The message gives the offset in the memory; without this option, each message goes behind the last one.
        const MANAGE_REMOTE = 1 << 2;
        /// A message that is too long is truncated; without this option, the next entry is compared.
        const TRUNCATE = 1 << 3;
        /// No acknowledgement is sent, even if requested.
        const ACK_DISABLE = 1 << 4;
        /// The memory is a vector. Its type implies the bit: it is set in values that are read, and refused where it is
        /// set wrongly.
        const IOVEC = 1 << 5;
        /// [`Md::max_size`] counts.
        const MAX_SIZE = 1 << 6;
        /// No `*_START` events.
        const EVENT_START_DISABLE = 1 << 7;
        /// No `*_END` events.
        const EVENT_END_DISABLE = 1 << 8;
    }
}

/// A memory descriptor (`ptl_md_t`).
#[derive(Clone, Debug)]
pub struct Md {
    /// The memory, allocated or registered at the interface's node: one piece, or a vector of pieces (`start`,
    /// `length`).
    pub memory: Pieces,
    /// The number of operations that the descriptor takes. Each arriving operation counts, and of its own operations
    /// each step with an event: a put whose bytes have left, an acknowledgement, a reply. At 0 the descriptor is
    /// inactive.
    pub threshold: Threshold,
    /// With [`MAX_SIZE`](MdOptions::MAX_SIZE), for memory with a local offset: the descriptor becomes inactive as soon
    /// as fewer bytes than this are left, so that a message of this length always fits.
    pub max_size: u64,
    /// The options.
    pub options: MdOptions,
    /// The program's value for the descriptor's events.
    pub user_ptr: u64,
    /// The event queue; `None` for no events (`PTL_EQ_NONE`).
    pub eq: Option<EqHandle>,
}

impl Md {
    /// A descriptor of this memory for any number of operations, with no options and no events.
    pub fn new(memory: impl Into<Pieces>) -> Self {
        Self {
            memory: memory.into(),
            threshold: Threshold::Infinite,
            max_size: 0,
            options: MdOptions::empty(),
            user_ptr: 0,
            eq: None,
        }
    }
    /// Converts it to the engine's form, without the caller's checks.
    pub(super) fn region(&self, unlink: Unlink) -> Region {
        Region {
            start: self.memory.addr(),
            length: self.memory.len(),
            options: self.engine_options(),
            threshold: self.threshold,
            min_free: if self.options.contains(MdOptions::MAX_SIZE) { self.max_size } else { 0 },
            user_ptr: self.user_ptr,
            eq: self.eq.map(|eq| eq.raw),
            ct: None,
            unlink: unlink == Unlink::Unlink,
        }
    }
    fn engine_options(&self) -> Options {
        let mut out = Options::empty();
        out.set(Options::IOVEC, self.memory.is_vector());
        for (flag, same, opposite) in TABLE {
            out.set(same, self.options.contains(flag) != opposite);
        }
        out
    }
    pub(super) fn of(ni: NiHandle, region: &Region, memory: Pieces) -> Self {
        let MdState { threshold, max_size, options, user_ptr, eq, .. } = MdState::of(ni, region);
        Self { memory, threshold, max_size, options, user_ptr, eq }
    }
}

/// An option, the engine's, and whether that one means the opposite.
const TABLE: [(MdOptions, Options, bool); 7] = [
    (MdOptions::OP_PUT, Options::OP_PUT, false),
    (MdOptions::OP_GET, Options::OP_GET, false),
    (MdOptions::MANAGE_REMOTE, Options::MANAGE_LOCAL, true),
    (MdOptions::TRUNCATE, Options::NO_TRUNCATE, true),
    (MdOptions::ACK_DISABLE, Options::ACK_DISABLE, false),
    (MdOptions::EVENT_START_DISABLE, Options::EVENT_START_DISABLE, false),
    (MdOptions::EVENT_END_DISABLE, Options::EVENT_END_DISABLE, false),
];

/// A memory descriptor at the moment of an event ([`Event::md`](super::Event::md)): its values, with the rest of its
/// threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MdState {
    /// The address of the memory's first piece.
    pub start: u64,
    /// The bytes of the memory.
    pub length: u64,
    /// The number of operations that it still takes.
    pub threshold: Threshold,
    /// As in [`Md`]; 0 without [`MAX_SIZE`](MdOptions::MAX_SIZE).
    pub max_size: u64,
    /// The options.
    pub options: MdOptions,
    /// The program's value for the descriptor's events.
    pub user_ptr: u64,
    /// The event queue.
    pub eq: Option<EqHandle>,
}

impl MdState {
    pub(super) fn of(ni: NiHandle, region: &Region) -> Self {
        let mut options = MdOptions::empty();
        options.set(MdOptions::IOVEC, region.options.contains(Options::IOVEC));
        options.set(MdOptions::MAX_SIZE, region.min_free > 0);
        for (flag, same, opposite) in TABLE {
            options.set(flag, region.options.contains(same) != opposite);
        }
        let &Region { start, length, threshold, min_free: max_size, user_ptr, eq, .. } = region;
        let eq = eq.map(|raw| EqHandle { ni, raw });
        Self { start, length, threshold, max_size, options, user_ptr, eq }
    }
}

/// The fate of a used-up descriptor, or of an entry whose descriptor is unlinked (`ptl_unlink_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unlink {
    /// The object stays (`PTL_RETAIN`): a descriptor becomes inactive, an entry has no descriptor.
    Retain,
    /// The object is unlinked (`PTL_UNLINK`): a used-up descriptor with an `UNLINK` event; an entry together with its
    /// descriptor.
    Unlink,
}

/// The position of a new entry (`ptl_ins_pos_t`): beside another one, or at an end of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// Before the other entry, or at the front of the list (`PTL_INS_BEFORE`).
    Before,
    /// Behind the other entry, or at the end of the list (`PTL_INS_AFTER`).
    After,
}

/// Whether a put requests an acknowledgement (`ptl_ack_req_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AckReq {
    /// An acknowledgement by an `ACK` event (`PTL_ACK_REQ`).
    Ack,
    /// No acknowledgement (`PTL_NO_ACK_REQ`).
    NoAck,
}
