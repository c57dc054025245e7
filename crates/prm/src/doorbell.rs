//! Doorbells: the pages of registers by which work is announced and queues are armed, and the records in memory that
//! go with them.
//!
//! A user's doorbell page (UAR) has 4 KiB in BAR 0. To announce work, a driver writes the send queue's counter into the
//! queue pair's record, and then 8 bytes to the page: those that the entry begins with. To arm a completion queue, it
//! writes the same word to the record and to the page; the record is what counts if the page's is late.

use crate::codes::codes;
use crate::layout;

/// Bytes of a doorbell page.
pub const UAR_PAGE: usize = 4096;
/// Where in the page a completion queue is armed: [`CqDoorbell`].
pub const CQ_DOORBELL: usize = 0x20;
/// The register that takes an event queue's consumer index and arms it: [`EqDoorbell`].
pub const EQ_ARM: usize = 0x40;
/// The register that takes an event queue's consumer index without arming it: [`EqDoorbell`].
pub const EQ_CI: usize = 0x48;
/// Where the first send doorbell is. There are [`BF_REGS`], of which each has two buffers that take turns; a buffer is
/// half as long as the capability `LOG_BF_REG_SIZE` says.
pub const BF_OFFSET: usize = 0x800;
/// Send doorbells in a page.
pub const BF_REGS: usize = 4;
/// The counters of a work queue's record, and the index of entries, have this many bits that count.
pub const WQ_COUNTER_MASK: u32 = 0xffff;
/// The counters of completion and event queues have this many bits that count.
pub const CI_MASK: u32 = 0xff_ffff;

layout! {
    list LAYOUTS;

    /// The doorbell record of a queue pair.
    pub struct QpDbr: 0x08 {
        /// Receive requests posted, counted without end.
        RCV_COUNTER: 0x00 [15:0],
        /// Blocks of the send queue posted, counted without end.
        SND_COUNTER: 0x04 [15:0],
    }

    /// The doorbell record of a completion queue.
    pub struct CqDbr: 0x08 {
        /// Completions taken, counted without end.
        UPDATE_CI: 0x00 [23:0],
        /// How many events it has made, counted with two bits from 0: a value arms once.
        ARM_CMD_SN: 0x04 [29:28],
        /// For what: a [`CqArm`] code.
        ARM_CMD: 0x04 [24],
        /// Completions that the driver had taken when it armed.
        ARM_CI: 0x04 [23:0],
    }

    /// What arms a completion queue, written to [`CQ_DOORBELL`]. Its first word is the second one of [`CqDbr`].
    pub struct CqDoorbell: 0x08 {
        /// How many events it has made, counted with two bits from 0.
        CMD_SN: 0x00 [29:28],
        /// For what: a [`CqArm`] code.
        CMD: 0x00 [24],
        /// Completions that the driver has taken.
        CI: 0x00 [23:0],
        /// The completion queue.
        CQN: 0x04 [23:0],
    }

    /// What tells an event queue how far it was read, written to [`EQ_ARM`] or [`EQ_CI`].
    pub struct EqDoorbell: 0x04 {
        /// The event queue.
        EQN: 0x00 [31:24],
        /// Events that the driver has taken.
        CI: 0x00 [23:0],
    }
}

codes! {
    /// The kind of completion that a completion queue is armed for.
    pub enum CqArm {
        Next = 0 "the next completion",
        Solicited = 1 "the next solicited completion, or one in error",
    }
}

impl CqDoorbell {
    /// What [`CqDbr`]'s second word must be for this doorbell.
    #[must_use]
    pub fn record_word(&self) -> [u8; 4] {
        let [a, b, c, d, ..] = *self.as_bytes();
        [a, b, c, d]
    }
}

/// Where in a doorbell page the buffer `turn` (0 or 1) of send doorbell `index` is, with buffers of `buf_size` bytes.
///
/// # Panics
///
/// If `index` is [`BF_REGS`] or more, or `turn` is neither 0 nor 1.
#[must_use]
pub const fn bf_buffer(index: usize, turn: usize, buf_size: usize) -> usize {
    assert!(index < BF_REGS && turn < 2, "a page has four send doorbells of two buffers");
    BF_OFFSET + (2 * index + turn) * buf_size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_queue_is_armed_by_the_same_word_in_record_and_page() {
        let doorbell = CqDoorbell::new()
            .with(CqDoorbell::CMD_SN, 2)
            .with(CqDoorbell::CMD, true)
            .with(CqDoorbell::CI, 0x123)
            .with(CqDoorbell::CQN, 0x41);
        assert_eq!(doorbell.as_bytes(), &[0x21, 0, 1, 0x23, 0, 0, 0, 0x41]);
        let record =
            CqDbr::new().with(CqDbr::ARM_CMD_SN, 2).with(CqDbr::ARM_CMD, true).with(CqDbr::ARM_CI, 0x123);
        assert_eq!(record.as_bytes()[4..], doorbell.record_word());
    }

    #[test]
    fn send_doorbells_lie_where_stock_drivers_write_them() {
        assert_eq!(
            [(0, 0), (0, 1), (2, 0), (2, 1)].map(|(index, turn)| bf_buffer(index, turn, 0x100)),
            [0x800, 0x900, 0xc00, 0xd00]
        );
    }

    #[test]
    fn an_event_queues_number_stands_before_its_counter() {
        let doorbell = EqDoorbell::new().with(EqDoorbell::EQN, 5).with(EqDoorbell::CI, 7);
        assert_eq!(doorbell.as_bytes(), &[5, 0, 0, 7]);
    }
}
