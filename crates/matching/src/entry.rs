//! The objects that a target posts: entries, their memory, and their options.

use bitflags::bitflags;

use crate::handle::Key;
use crate::{Criteria, CtHandle, EntryHandle, EqHandle, Uid};

bitflags! {
    /// The options of an entry's memory: those of 4.3's list entries and of 3.3's memory descriptors, each defined so
    /// that the more common case has the flag clear. The interfaces of both versions translate their options into
    /// these.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Options: u32 {
        /// The entry takes puts and atomics.
        const OP_PUT = 1 << 0;
        /// The entry takes gets, and with `OP_PUT` operations that do both.
        const OP_GET = 1 << 1;
        /// One operation uses the entry up.
        const USE_ONCE = 1 << 2;
        /// Each operation's bytes go behind the last operation's, and the message's offset is ignored.
        const MANAGE_LOCAL = 1 << 3;
        /// A message that is too long does not match (4.3) or is rejected (3.3), instead of being truncated.
        const NO_TRUNCATE = 1 << 4;
        /// With `MANAGE_LOCAL`: a message may begin at the next multiple of [`ALIGN_BYTES`] if it fits whole from
        /// there.
        const MAY_ALIGN = 1 << 5;
        /// No acknowledgement is sent, even if the initiator asks for one.
        const ACK_DISABLE = 1 << 6;
        /// [`Region::start`] names a vector of pieces. Only the caller, which moves the bytes, uses it.
        const IOVEC = 1 << 7;
        /// On an overflow list: messages are taken and forgotten; no header waits for an entry.
        const UNEXPECTED_HDR_DISABLE = 1 << 8;
        /// The user guarantees that all of the memory can be accessed. Only the caller uses it.
        const IS_ACCESSIBLE = 1 << 9;
        /// With `MANAGE_LOCAL`, on appending: each waiting header counts as if its bytes had arrived in this memory.
        const LOCAL_INC_UH_RLENGTH = 1 << 10;
        /// No `Link` event.
        const EVENT_LINK_DISABLE = 1 << 11;
        /// No event when an operation is done.
        const EVENT_COMM_DISABLE = 1 << 12;
        /// No `PtDisabled` event where a message for this entry disables the portal.
        const EVENT_FLOWCTRL_DISABLE = 1 << 13;
        /// No event for a successful operation.
        const EVENT_SUCCESS_DISABLE = 1 << 14;
        /// No event when a waiting header finds this entry, nor for a search.
        const EVENT_OVER_DISABLE = 1 << 15;
        /// No `AutoUnlink` and `AutoFree` events, no `Unlink` event.
        const EVENT_UNLINK_DISABLE = 1 << 16;
        /// Operations are counted.
        const EVENT_CT_COMM = 1 << 17;
        /// Waiting headers that match this entry are counted, and a search's matches.
        const EVENT_CT_OVERFLOW = 1 << 18;
        /// Bytes are counted instead; failures are still counted one by one.
        const EVENT_CT_BYTES = 1 << 19;
        /// 3.3: no event when an operation begins.
        const EVENT_START_DISABLE = 1 << 20;
        /// 3.3: no event when an operation ends.
        const EVENT_END_DISABLE = 1 << 21;
    }
}

/// The alignment of [`Options::MAY_ALIGN`].
pub const ALIGN_BYTES: u64 = 16;

/// The number of operations that memory still takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Threshold {
    /// Any number of operations.
    #[default]
    Infinite,
    /// This number of operations; at 0 the memory is inactive.
    Count(u32),
}

/// Memory that messages go to or come from: the second half of a list entry of 4.3, or a memory descriptor of 3.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The start address. The engine only adds offsets to it, for events.
    pub start: u64,
    /// The bytes.
    pub length: u64,
    /// The operations that the memory allows, and the events that it posts.
    pub options: Options,
    /// The number of operations that the memory takes.
    pub threshold: Threshold,
    /// With [`Options::MANAGE_LOCAL`]: the memory is used up as soon as fewer bytes than this are left; 0: never.
    /// (`max_size` in 3.3.)
    pub min_free: u64,
    /// The user's value in the memory's events.
    pub user_ptr: u64,
    /// The queue of its events; `None` is the portal's queue.
    pub eq: Option<EqHandle>,
    /// The counting event of its operations.
    pub ct: Option<CtHandle>,
    /// Whether the memory is detached from its entry when an operation has used it up. If not, it stays attached,
    /// inactive.
    pub unlink: bool,
}

impl Default for Region {
    /// No bytes, no rights, no events.
    fn default() -> Self {
        Self {
            start: 0,
            length: 0,
            options: Options::empty(),
            threshold: Threshold::Infinite,
            min_free: 0,
            user_ptr: 0,
            eq: None,
            ct: None,
            unlink: true,
        }
    }
}

/// An entry of a match list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The criteria for messages.
    pub criteria: Criteria,
    /// The user that may send messages (4.3); `None` is any.
    pub uid: Option<Uid>,
    /// Whether the entry is unlinked when its memory is detached.
    pub unlink: bool,
    /// The memory; an entry without memory (3.3, until a descriptor is attached) takes no messages.
    pub region: Option<Region>,
}

impl Entry {
    /// An entry with its memory, for any user, that is unlinked when it is used up: the entry of 4.3.
    pub const fn new(criteria: Criteria, region: Region) -> Self {
        Self { criteria, uid: None, unlink: true, region: Some(region) }
    }
    /// An entry to which memory is attached later: the match entry of 3.3.
    pub const fn bare(criteria: Criteria, unlink: bool) -> Self {
        Self { criteria, uid: None, unlink, region: None }
    }
}

/// The two lists of a portal. 3.3 has the first only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ListKind {
    /// The list that is searched first.
    #[default]
    Priority,
    /// The list that is searched if the priority list has no match. A message that its entries take waits for an entry
    /// on the priority list.
    Overflow,
}

/// The place of a new entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// At the front of a portal's list.
    First(u32, ListKind),
    /// At the end of a portal's list.
    Last(u32, ListKind),
    /// Right before another entry.
    Before(EntryHandle),
    /// Right behind another entry.
    After(EntryHandle),
}

/// An entry as the interface keeps it.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) entry: Entry,
    pub(crate) pt_index: u32,
    pub(crate) list: ListKind,
    /// In its list; otherwise it only waits for the end of what it began.
    pub(crate) linked: bool,
    /// Whether it was used up, so that its end is told.
    pub(crate) auto_unlinked: bool,
    /// Whether a place in the event queue is kept for the end (flow control).
    pub(crate) unlink_reserved: bool,
    pub(crate) free_reserved: bool,
    /// The next local offset.
    pub(crate) offset: u64,
    /// Operations under way.
    pub(crate) pending: u32,
    /// Waiting headers whose bytes are here.
    pub(crate) headers: u32,
    /// The memory descriptor's handle (3.3).
    pub(crate) md: Option<Key>,
    /// The memory left, and is gone when `pending` is 0.
    pub(crate) detaching: bool,
    /// The operation that used the memory up.
    pub(crate) last_link: u64,
}

impl Posted {
    pub(crate) fn new(entry: Entry, pt_index: u32, list: ListKind) -> Self {
        Self {
            entry,
            pt_index,
            list,
            linked: false,
            auto_unlinked: false,
            unlink_reserved: false,
            free_reserved: false,
            offset: 0,
            pending: 0,
            headers: 0,
            md: None,
            detaching: false,
            last_link: 0,
        }
    }
}
