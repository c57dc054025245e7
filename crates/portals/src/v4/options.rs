//! Options: bits with the numbers that the interface's header gives them.

use bitflags::bitflags;
use hca_matching::{MdOptions as RawMd, Options as Raw};

bitflags! {
    /// The kind of an interface: one of each pair. (`PTL_NI_*`)
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct NiOptions: u32 {
        /// Entries have match criteria.
        #[doc(alias = "PTL_NI_MATCHING")]
        const MATCHING = 1 << 0;
        /// An entry takes any message for its portal.
        #[doc(alias = "PTL_NI_NO_MATCHING")]
        const NO_MATCHING = 1 << 1;
        /// Processes are ranks.
        #[doc(alias = "PTL_NI_LOGICAL")]
        const LOGICAL = 1 << 2;
        /// Processes are node and process numbers.
        #[doc(alias = "PTL_NI_PHYSICAL")]
        const PHYSICAL = 1 << 3;
    }
}

bitflags! {
    /// Optional features of an interface. ([`Limits::features`](super::Limits::features))
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Features: u32 {
        /// Entries may cover memory that can't be accessed.
        #[doc(alias = "PTL_TARGET_BIND_INACCESSIBLE")]
        const TARGET_BIND_INACCESSIBLE = 1 << 0;
        /// Data is ordered for all addresses.
        #[doc(alias = "PTL_TOTAL_DATA_ORDERING")]
        const TOTAL_DATA_ORDERING = 1 << 1;
        /// Atomic operations are atomic with those of the processor.
        #[doc(alias = "PTL_COHERENT_ATOMICS")]
        const COHERENT_ATOMICS = 1 << 2;
    }
}

bitflags! {
    /// The options of an initiator's memory descriptor. (`PTL_MD_*`)
    ///
    /// `PTL_IOVEC`, number 1, is not among them: the type of [`Md::memory`](super::Md::memory) tells whether the memory
    /// is a vector.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MdOptions: u32 {
        /// `Send` events are counted.
        #[doc(alias = "PTL_MD_EVENT_CT_SEND")]
        const EVENT_CT_SEND = 1 << 1;
        /// `Reply` events are counted.
        #[doc(alias = "PTL_MD_EVENT_CT_REPLY")]
        const EVENT_CT_REPLY = 1 << 2;
        /// Acknowledgements are counted.
        #[doc(alias = "PTL_MD_EVENT_CT_ACK")]
        const EVENT_CT_ACK = 1 << 3;
        /// Messages may overtake each other. In this implementation they do not.
        #[doc(alias = "PTL_MD_UNORDERED")]
        const UNORDERED = 1 << 4;
        /// No events for successful operations. They are still counted.
        #[doc(alias = "PTL_MD_EVENT_SUCCESS_DISABLE")]
        const EVENT_SUCCESS_DISABLE = 1 << 5;
        /// The bytes of a put or an atomic may be changed as soon as the call returns: they are copied within it. Such
        /// a message has [`Limits::max_volatile_size`](super::Limits::max_volatile_size) bytes at most. A triggered one
        /// is copied when its count is reached.
        #[doc(alias = "PTL_MD_VOLATILE")]
        const VOLATILE = 1 << 6;
        /// No `Send` events, which are still counted.
        #[doc(alias = "PTL_MD_EVENT_SEND_DISABLE")]
        const EVENT_SEND_DISABLE = 1 << 7;
        /// Messages may be lost. In this implementation they are not.
        #[doc(alias = "PTL_MD_UNRELIABLE")]
        const UNRELIABLE = 1 << 8;
        /// Bytes are counted instead of events; failures are still counted one by one.
        #[doc(alias = "PTL_MD_EVENT_CT_BYTES")]
        const EVENT_CT_BYTES = 1 << 14;
    }
}

macro_rules! entry_options {
    ($(#[$doc:meta])* $name:ident { $($(#[$($more_doc:tt)*])* $more:ident = $bit:expr;)* }) => {
        bitflags! {
            $(#[$doc])*
            ///
            /// `PTL_IOVEC`, number 1, is not among them: the memory's type tells whether it is a vector.
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
            pub struct $name: u32 {
                /// The entry takes puts and atomics.
                const OP_PUT = 1 << 1;
                /// The entry takes gets, and with `OP_PUT` operations that do both.
                const OP_GET = 1 << 2;
                /// One operation uses the entry up, and it is unlinked.
                const USE_ONCE = 1 << 3;
                /// On the overflow list: messages are taken and forgotten, no header waits for an entry of the priority
                /// list.
                const UNEXPECTED_HDR_DISABLE = 1 << 4;
                /// The program guarantees that all of the memory can be accessed. This implementation can always access
                /// it, so the option changes nothing.
                const IS_ACCESSIBLE = 1 << 5;
                /// No `Link` event.
                const EVENT_LINK_DISABLE = 1 << 6;
                /// No event when an operation is done.
                const EVENT_COMM_DISABLE = 1 << 7;
                /// No `PtDisabled` event where a message for this entry disables the portal.
                const EVENT_FLOWCTRL_DISABLE = 1 << 8;
                /// No event for a successful operation, which is still counted.
                const EVENT_SUCCESS_DISABLE = 1 << 9;
                /// No event when a waiting header finds this entry, nor for a search.
                const EVENT_OVER_DISABLE = 1 << 10;
                /// No `AutoUnlink` and no `AutoFree` event.
                const EVENT_UNLINK_DISABLE = 1 << 11;
                /// Operations are counted.
                const EVENT_CT_COMM = 1 << 12;
                /// Waiting headers that match this entry are counted, and a search's matches.
                const EVENT_CT_OVERFLOW = 1 << 13;
                /// Bytes are counted instead of events; failures are still counted one by one.
                const EVENT_CT_BYTES = 1 << 14;
                $($(#[$($more_doc)*])* const $more = $bit;)*
            }
        }
    };
}
entry_options! {
    /// The options of an entry of an interface without matching. (`PTL_LE_*`)
    LeOptions {}
}
entry_options! {
    /// The options of an entry of an interface with matching. (`PTL_ME_*`)
    MeOptions {
        /// Each operation's bytes go behind the last operation's, and the message's offset is ignored.
        MANAGE_LOCAL = 1 << 15;
        /// A message that does not fit does not match, instead of being cut off.
        NO_TRUNCATE = 1 << 16;
        /// With `MANAGE_LOCAL`: a message may begin at the next multiple of 16 bytes, if it fits whole from there.
        MAY_ALIGN = 1 << 17;
        /// With `MANAGE_LOCAL`: a header that waited, and that the entry finds when it is appended, moves the local
        /// offset by its message's length, as if it had come here.
        LOCAL_INC_UH_RLENGTH = 1 << 18;
    }
}

/// The engine's options for the interface's.
pub(super) fn entry(options: MeOptions, is_vector: bool) -> Raw {
    const PAIRS: [(MeOptions, Raw); 18] = [
        (MeOptions::OP_PUT, Raw::OP_PUT),
        (MeOptions::OP_GET, Raw::OP_GET),
        (MeOptions::USE_ONCE, Raw::USE_ONCE),
        (MeOptions::UNEXPECTED_HDR_DISABLE, Raw::UNEXPECTED_HDR_DISABLE),
        (MeOptions::IS_ACCESSIBLE, Raw::IS_ACCESSIBLE),
        (MeOptions::EVENT_LINK_DISABLE, Raw::EVENT_LINK_DISABLE),
        (MeOptions::EVENT_COMM_DISABLE, Raw::EVENT_COMM_DISABLE),
        (MeOptions::EVENT_FLOWCTRL_DISABLE, Raw::EVENT_FLOWCTRL_DISABLE),
        (MeOptions::EVENT_SUCCESS_DISABLE, Raw::EVENT_SUCCESS_DISABLE),
        (MeOptions::EVENT_OVER_DISABLE, Raw::EVENT_OVER_DISABLE),
        (MeOptions::EVENT_UNLINK_DISABLE, Raw::EVENT_UNLINK_DISABLE),
        (MeOptions::EVENT_CT_COMM, Raw::EVENT_CT_COMM),
        (MeOptions::EVENT_CT_OVERFLOW, Raw::EVENT_CT_OVERFLOW),
        (MeOptions::EVENT_CT_BYTES, Raw::EVENT_CT_BYTES),
        (MeOptions::MANAGE_LOCAL, Raw::MANAGE_LOCAL),
        (MeOptions::NO_TRUNCATE, Raw::NO_TRUNCATE),
        (MeOptions::MAY_ALIGN, Raw::MAY_ALIGN),
        (MeOptions::LOCAL_INC_UH_RLENGTH, Raw::LOCAL_INC_UH_RLENGTH),
    ];
    let mut raw = if is_vector { Raw::IOVEC } else { Raw::empty() };
    for (option, engines) in PAIRS {
        if options.contains(option) {
            raw |= engines;
        }
    }
    raw
}

/// The engine's options for the interface's.
pub(super) fn md(options: MdOptions, is_vector: bool) -> RawMd {
    const PAIRS: [(MdOptions, RawMd); 9] = [
        (MdOptions::EVENT_CT_SEND, RawMd::EVENT_CT_SEND),
        (MdOptions::EVENT_CT_REPLY, RawMd::EVENT_CT_REPLY),
        (MdOptions::EVENT_CT_ACK, RawMd::EVENT_CT_ACK),
        (MdOptions::UNORDERED, RawMd::UNORDERED),
        (MdOptions::EVENT_SUCCESS_DISABLE, RawMd::EVENT_SUCCESS_DISABLE),
        (MdOptions::VOLATILE, RawMd::VOLATILE),
        (MdOptions::EVENT_SEND_DISABLE, RawMd::EVENT_SEND_DISABLE),
        (MdOptions::UNRELIABLE, RawMd::UNRELIABLE),
        (MdOptions::EVENT_CT_BYTES, RawMd::EVENT_CT_BYTES),
    ];
    let mut raw = if is_vector { RawMd::IOVEC } else { RawMd::empty() };
    for (option, engines) in PAIRS {
        if options.contains(option) {
            raw |= engines;
        }
    }
    raw
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_has_its_counterpart_in_the_engine() {
        let all = entry(MeOptions::all(), true);
        assert_eq!(all.bits().count_ones(), 19);
        assert_eq!(entry(MeOptions::empty(), false), Raw::empty());
        assert_eq!(md(MdOptions::all(), true), RawMd::all());
        let (le, me) = (LeOptions::all().bits(), MeOptions::all().bits());
        assert_eq!(me & le, le, "a list entry's options are a match entry's, with the same numbers");
        assert_eq!((le, me), (0x7ffe, 0x7_fffe));
    }
}
