//! Doorbells: the pages of registers by which work is announced and queues are armed, and the records in memory that
//! go with them.
//!
//! A user's doorbell page (UAR) has 4 KiB in BAR 0. To announce work, a driver writes the send queue's counter into the
//! queue pair's record, and then the first 8 bytes of the entry to the page. To arm a completion queue, a driver writes
//! the same word to the record and to the page; the record counts if the page's word is late.

use crate::codes::codes;
use crate::layout;

/// The length of a doorbell page.
pub const UAR_PAGE: usize = 4096;
/// The offset in the page of the register that arms a completion queue: [`CqDoorbell`].
pub const CQ_DOORBELL: usize = 0x20;
/// The register that takes an event queue's consumer index and arms it: [`EqDoorbell`].
pub const EQ_ARM: usize = 0x40;
/// The register that takes an event queue's consumer index without arming it: [`EqDoorbell`].
pub const EQ_CI: usize = 0x48;
/// The offset of the first send doorbell. There are [`BF_REGS`], each of which has two buffers that are used in turn; a
/// buffer is half as long as the register, whose length the capability `LOG_BF_REG_SIZE` gives.
pub const BF_OFFSET: usize = 0x800;
/// The number of send doorbells in a page.
pub const BF_REGS: usize = 4;
/// The mask of the significant bits in the counters of a work queue's record and in the index of entries.
pub const WQ_COUNTER_MASK: u32 = 0xffff;
/// The mask of the significant bits in the counters of completion and event queues.
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

    /// The doorbell that arms a completion queue, written to [`CQ_DOORBELL`]. Its first word equals the second word of
    /// [`CqDbr`].
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

    /// The doorbell with an event queue's consumer index, written to [`EQ_ARM`] or [`EQ_CI`].
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
    /// The second word of [`CqDbr`] for this doorbell.
    #[must_use]
    pub fn record_word(&self) -> [u8; 4] {
        let [a, b, c, d, ..] = *self.as_bytes();
        [a, b, c, d]
    }
}

/// The offset in a doorbell page of buffer `turn` (0 or 1) of send doorbell `index`, with buffers of `buf_size` bytes.
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
