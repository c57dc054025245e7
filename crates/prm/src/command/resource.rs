//! Commands for the small objects: doorbell pages, domains, special keys; and the pace of interrupts.

commands! {
    list COMMANDS;

    /// Takes a doorbell page (UAR).
    ALLOC_UAR => AllocUarIn: 0x10 {
    }, AllocUarOut: 0x10 {
        /// The number: the page lies at this many times 4 KiB in BAR 0.
        UAR: 0x08 [23:0],
    }

    /// Gives a doorbell page back.
    DEALLOC_UAR => DeallocUarIn: 0x10 {
        /// The number.
        UAR: 0x08 [23:0],
    }

    /// Takes a protection domain.
    ALLOC_PD => AllocPdIn: 0x10 {
    }, AllocPdOut: 0x10 {
        /// The number.
        PD: 0x08 [23:0],
    }

    /// Gives a protection domain back.
    DEALLOC_PD => DeallocPdIn: 0x10 {
        /// The number.
        PD: 0x08 [23:0],
    }

    /// Takes a domain of extended reliable connections.
    ALLOC_XRCD => AllocXrcdIn: 0x10 {
    }, AllocXrcdOut: 0x10 {
        /// The number.
        XRCD: 0x08 [23:0],
    }

    /// Gives a domain of extended reliable connections back.
    DEALLOC_XRCD => DeallocXrcdIn: 0x10 {
        /// The number.
        XRCD: 0x08 [23:0],
    }

    /// Takes a transport domain: what keeps the Ethernet queues of several users apart.
    ALLOC_TRANSPORT_DOMAIN => AllocTransportDomainIn: 0x10 {
    }, AllocTransportDomainOut: 0x10 {
        /// The number.
        TRANSPORT_DOMAIN: 0x08 [23:0],
    }

    /// Gives a transport domain back.
    DEALLOC_TRANSPORT_DOMAIN => DeallocTransportDomainIn: 0x10 {
        /// The number.
        TRANSPORT_DOMAIN: 0x08 [23:0],
    }

    /// Asks for the keys that are always there.
    QUERY_SPECIAL_CONTEXTS => QuerySpecialContextsIn: 0x10 {
    }, QuerySpecialContextsOut: 0x20 {
        /// The reserved local key, for addresses of the bus.
        RESD_LKEY: 0x0c [31:0],
    }

    /// Sets how long an interrupt waits for more events.
    CONFIG_INT_MODERATION => ConfigIntModerationIn: 0x10 {
        /// Shortest time from one to the next, in microseconds.
        MIN_DELAY: 0x08 [27:16],
        /// Which interrupt.
        INT_VECTOR: 0x08 [15:0],
    }, ConfigIntModerationOut: 0x10 {
        /// The time that is in use.
        MIN_DELAY: 0x08 [27:16],
        /// As in the input.
        INT_VECTOR: 0x08 [15:0],
    }
}
