//! Contexts of event queues, completion queues and shared receive queues.

use crate::codes::codes;
use crate::layout;

layout! {
    list LAYOUTS;

    /// Context of an event queue.
    pub struct Eqc: 0x40 {
        /// How it is: an [`EqStatus`] code.
        STATUS: 0x00 [31:28],
        /// Whether it will interrupt: an [`EqSt`] code.
        ST: 0x00 [11:8],
        /// Where in the first page it begins, in units of 1/64 of a page.
        PAGE_OFFSET: 0x08 [11:6],
        /// Entries, as a power of two.
        LOG_EQ_SIZE: 0x0c [28:24],
        /// The doorbell page through which it is armed.
        UAR_PAGE: 0x0c [23:0],
        /// The MSI-X vector.
        INTR: 0x14 [11:0],
        /// Bytes of a page, as a power of two less 12.
        LOG_PAGE_SIZE: 0x18 [28:24],
        /// Events that the driver has taken.
        CONSUMER_COUNTER: 0x28 [23:0],
        /// Events that the adapter has written.
        PRODUCER_COUNTER: 0x2c [23:0],
    }

    /// Context of a completion queue.
    pub struct Cqc: 0x40 {
        /// How it is: a [`CqStatus`] code.
        STATUS: 0x00 [31:28],
        /// The doorbell record is given as a place in registered user memory.
        DBR_UMEM_VALID: 0x00 [25],
        /// Events go to a processor on the adapter.
        APU_CQ: 0x00 [24],
        /// Bytes of an entry: 64 (0), 128 (1), 128 of which the upper 64 are used (2).
        CQE_SZ: 0x00 [23:21],
        /// Completions may be overwritten one by the other in the same place (collapsed).
        CC: 0x00 [20],
        /// Entries may be overwritten without the queue being in error.
        OI: 0x00 [17],
        /// Whether it will make an event: a [`CqSt`] code.
        ST: 0x00 [11:8],
        /// Where in the first page it begins, in units of 1/64 of a page.
        PAGE_OFFSET: 0x08 [11:6],
        /// Entries, as a power of two.
        LOG_CQ_SIZE: 0x0c [28:24],
        /// The doorbell page through which it is armed.
        UAR_PAGE: 0x0c [23:0],
        /// How long an event waits for more completions, in microseconds.
        CQ_PERIOD: 0x10 [27:16],
        /// How many completions make an event at once.
        CQ_MAX_COUNT: 0x10 [15:0],
        /// The event queue.
        C_EQN: 0x14 [31:0],
        /// Bytes of a page, as a power of two less 12.
        LOG_PAGE_SIZE: 0x18 [28:24],
        /// Completions that the driver has taken.
        CONSUMER_COUNTER: 0x28 [23:0],
        /// Completions that the adapter has written.
        PRODUCER_COUNTER: 0x2c [23:0],
        /// Bus address of the doorbell record, see [`CqDbr`](crate::CqDbr).
        DBR_ADDR: 0x38 [63:0],
    }

    /// Context of a shared receive queue, in version 0 of the interface; in version 1 it is a [`Rmpc`].
    pub struct Srqc: 0x40 {
        /// Entries, as a power of two.
        LOG_SRQ_SIZE: 0x00 [27:24],
        /// Bytes of an entry, as a power of two less 4.
        LOG_RQ_STRIDE: 0x04 [26:24],
        /// Where in the first page it begins, in units of 1/64 of a page.
        PAGE_OFFSET: 0x08 [31:26],
        /// Bytes of a page, as a power of two less 12.
        LOG_PAGE_SIZE: 0x10 [29:24],
        /// The protection domain.
        PD: 0x18 [23:0],
        /// How few requests make an event; 0 if it is not armed.
        LWM: 0x1c [31:16],
        /// Bus address of the doorbell record.
        DBR_ADDR: 0x28 [63:0],
    }

    /// Context of a shared receive queue of extended reliable connections.
    pub struct XrcSrqc: 0x40 {
        /// Whether it is ready or in error: an [`XrcSrqState`] code.
        STATE: 0x00 [31:28],
        /// Entries, as a power of two.
        LOG_XRC_SRQ_SIZE: 0x00 [27:24],
        /// Entries have no segment that names the next one.
        BASIC_CYCLIC_RCV_WQE: 0x04 [27],
        /// Bytes of an entry, as a power of two less 4.
        LOG_RQ_STRIDE: 0x04 [26:24],
        /// The domain of extended connections.
        XRCD: 0x04 [23:0],
        /// Where in the first page it begins, in units of 1/64 of a page.
        PAGE_OFFSET: 0x08 [31:26],
        /// The doorbell record is given as a place in registered user memory.
        DBR_UMEM_VALID: 0x08 [24],
        /// The completion queue of its requests.
        CQN: 0x08 [23:0],
        /// Bytes of a page, as a power of two less 12.
        LOG_PAGE_SIZE: 0x10 [29:24],
        /// The user's number for this queue, which completions carry where the interface says so.
        USER_INDEX: 0x10 [23:0],
        /// The protection domain.
        PD: 0x18 [23:0],
        /// How few requests make an event; 0 if it is not armed.
        LWM: 0x1c [31:16],
        /// Bus address of the doorbell record.
        DBR_ADDR: 0x28 [63:0],
    }

    /// Context of a receive memory pool: in version 1 of the interface, a shared receive queue.
    pub struct Rmpc: 0xf0 {
        /// Whether it is ready or in error: an [`RmpState`] code.
        STATE: 0x00 [23:20],
        /// Entries have no segment that names the next one.
        BASIC_CYCLIC_RCV_WQE: 0x04 [31],
        /// The queue.
        WQ: 0x30 {Wq},
    }

    /// A work queue within another context. The addresses of its pages follow it.
    pub struct Wq: 0xc0 {
        /// How entries follow each other: a [`WqType`] code.
        WQ_TYPE: 0x00 [31:28],
        /// Where in the first page it begins, in units of 1/64 of a page.
        PAGE_OFFSET: 0x04 [20:16],
        /// How few requests make an event; 0 if it is not armed.
        LWM: 0x04 [15:0],
        /// The protection domain.
        PD: 0x08 [23:0],
        /// The doorbell page.
        UAR_PAGE: 0x0c [23:0],
        /// Bus address of the doorbell record.
        DBR_ADDR: 0x10 [63:0],
        /// Entries that the adapter has taken.
        HW_COUNTER: 0x18 [31:0],
        /// Entries that the driver has announced.
        SW_COUNTER: 0x1c [31:0],
        /// Bytes of an entry, as a power of two.
        LOG_WQ_STRIDE: 0x20 [19:16],
        /// Bytes of a page, as a power of two less 12.
        LOG_WQ_PG_SZ: 0x20 [12:8],
        /// Entries, as a power of two.
        LOG_WQ_SZ: 0x20 [4:0],
        /// The doorbell record is given as a place in registered user memory.
        DBR_UMEM_VALID: 0x24 [31],
        /// The queue is given as a place in registered user memory.
        WQ_UMEM_VALID: 0x24 [30],
    }

    /// Context of an Ethernet receive queue.
    pub struct Rqc: 0xf0 {
        /// The frame's checksum is delivered as well.
        SCATTER_FCS: 0x00 [29],
        /// VLAN tags are left in place.
        VSD: 0x00 [28],
        /// Where receive requests come from: a queue of its own (0), a pool (1).
        MEM_RQ_TYPE: 0x00 [27:24],
        /// The state: reset (0), ready (1), error (3).
        STATE: 0x00 [23:20],
        /// Requests are flushed in error.
        FLUSH_IN_ERROR_EN: 0x00 [18],
        /// What is received is sent.
        HAIRPIN: 0x00 [17],
        /// What completions' times mean.
        TS_FORMAT: 0x00 [5:4],
        /// The user's number for this queue.
        USER_INDEX: 0x04 [23:0],
        /// The completion queue.
        CQN: 0x08 [23:0],
        /// The set of counters.
        COUNTER_SET_ID: 0x0c [31:24],
        /// The queue.
        WQ: 0x30 {Wq},
    }

    /// Context of an Ethernet send queue.
    pub struct Sqc: 0xf0 {
        /// Requests are flushed in error.
        FLUSH_IN_ERROR_EN: 0x00 [28],
        /// How much of the headers each request must carry.
        MIN_WQE_INLINE_MODE: 0x00 [26:24],
        /// The state: reset (0), ready (1), error (3).
        STATE: 0x00 [23:20],
        /// What completions' times mean.
        TS_FORMAT: 0x00 [5:4],
        /// The user's number for this queue.
        USER_INDEX: 0x04 [23:0],
        /// The completion queue.
        CQN: 0x08 [23:0],
        /// How many transport interfaces it has.
        TIS_LST_SZ: 0x20 [31:16],
        /// The transport interface.
        TIS_NUM_0: 0x2c [23:0],
        /// The queue.
        WQ: 0x30 {Wq},
    }
}

codes! {
    /// The status of an event queue.
    pub enum EqStatus {
        Ok = 0x0 "well",
        WriteFailure = 0xa "an event could not be written",
    }

    /// The arming state of an event queue.
    pub enum EqSt {
        Armed = 0x9 "armed: the next event interrupts",
        Fired = 0xa "fired: it has interrupted",
    }

    /// The status of a completion queue.
    pub enum CqStatus {
        Ok = 0x0 "well",
        Overflow = 0x9 "it has overflowed",
        WriteFail = 0xa "a completion could not be written",
    }

    /// The arming state of a completion queue.
    pub enum CqSt {
        SolicitedArmed = 0x6 "armed for the next solicited completion",
        Armed = 0x9 "armed for the next completion",
        Fired = 0xa "fired: it has made its event",
        AlwaysArmed = 0xb "armed for every completion",
    }

    /// State of a shared receive queue of extended reliable connections.
    pub enum XrcSrqState {
        Good = 0x0 "ready",
        Error = 0x1 "in error",
    }

    /// State of a receive memory pool.
    pub enum RmpState {
        Rdy = 0x1 "ready",
        Err = 0x3 "in error",
    }

    /// The arrangement of a work queue's entries.
    pub enum WqType {
        LinkedList = 0x0 "each names the next",
        Cyclic = 0x1 "in a ring",
        LinkedListStridingRq = 0x2 "each names the next, and has many strides",
        CyclicStridingRq = 0x3 "in a ring, each with many strides",
    }
}
