//! The initialization segment: the registers at the beginning of BAR 0, and the health buffer among them.

use crate::codes::codes;
use crate::layout;

/// The revision of the command interface that this crate describes: the required value of
/// [`CMD_INTERFACE_REV`](InitSegment::CMD_INTERFACE_REV).
pub const CMD_INTERFACE_REV: u32 = 5;

layout! {
    list LAYOUTS;

    /// The initialization segment: the registers that a driver uses first. Each row is read and written as 4 big-endian
    /// bytes.
    pub struct InitSegment: 0x1048 {
        /// Firmware revision, minor part.
        FW_REV_MINOR: 0x00 [31:16],
        /// Firmware revision, major part.
        FW_REV_MAJOR: 0x00 [15:0],
        /// Revision of the command interface, [`CMD_INTERFACE_REV`].
        CMD_INTERFACE_REV: 0x04 [31:16],
        /// Firmware revision, last part.
        FW_REV_SUBMINOR: 0x04 [15:0],
        /// Bus address of the command queue, upper half: written before the lower one.
        CMDQ_PHY_ADDR_63_32: 0x10 [31:0],
        /// Bus address of the command queue, lower half, without the bits of a page; writing this row takes it.
        CMDQ_PHY_ADDR_31_12: 0x14 [31:12],
        /// What the function is used for: a [`NicInterface`] code. Drawn with two bits; drivers use three, as one code
        /// has.
        NIC_INTERFACE: 0x14 [10:8],
        /// Slots in the command queue, as a power of two; read before the queue's address is written.
        LOG_CMDQ_SIZE: 0x14 [7:4],
        /// Bytes from slot to slot, as a power of two.
        LOG_CMDQ_STRIDE: 0x14 [3:0],
        /// One bit a slot: writing it hands those slots to the adapter.
        COMMAND_DOORBELL_VECTOR: 0x18 [31:0],
        /// The firmware still starts; nothing else of the adapter may be used.
        INITIALIZING: 0x1fc [31],
        /// Which values `NIC_INTERFACE` may take, a bit each.
        NIC_INTERFACE_SUPPORTED: 0x1fc [26:24],
        /// What the firmware reports when it is unwell.
        HEALTH_BUFFER: 0x200 {HealthBuffer},
        /// Free running clock, upper half; read again if it changed while the lower one was read.
        INTERNAL_TIMER_H: 0x1000 [31:0],
        /// Free running clock, lower half.
        INTERNAL_TIMER_L: 0x1004 [31:0],
        /// A [`HealthSyndrome`] code, or 0.
        HEALTH_SYNDROME: 0x1010 [31:24],
        /// Goes up while the firmware lives.
        HEALTH_COUNTER: 0x1010 [23:0],
    }

    /// The firmware's report of a fault, at 0x200 of the initialization segment.
    pub struct HealthBuffer: 0x40 {
        /// Values that were not what they should be.
        ASSERT_VAR: 0x00 [u32; 6],
        /// Where the firmware stopped.
        ASSERT_EXIT_PTR: 0x20 [31:0],
        /// Whence it came.
        ASSERT_CALLRA: 0x24 [31:0],
        /// When, in the firmware's own time.
        TIME: 0x2c [31:0],
        /// Which firmware.
        FW_VERSION: 0x30 [31:0],
        /// Which adapter.
        HW_ID: 0x34 [31:0],
        /// A reset of the function is asked for.
        RFR: 0x38 [31],
        /// A power cycle is asked for.
        CRR: 0x38 [30],
        /// `SEVERITY` holds something.
        VALID: 0x38 [27],
        /// How bad it is, on the scale of the system log: 0 is worst.
        SEVERITY: 0x38 [26:24],
        /// Which of the adapter's processors reports.
        IRISC_INDEX: 0x3c [31:24],
        /// A [`HealthSyndrome`] code; 0 if all is well.
        SYND: 0x3c [23:16],
        /// More of the same, of the firmware's own.
        EXT_SYND: 0x3c [15:0],
    }
}

codes! {
    /// The kind of a function's register interface: [`NIC_INTERFACE`](InitSegment::NIC_INTERFACE).
    pub enum NicInterface {
        Full = 0 "a driver uses the function with all it has",
        Disabled = 1 "no driver uses the function, and its commands are not run",
        NoDramNic = 2 "a driver without memory of its own uses the function",
        SwReset = 7 "the driver resets the firmware",
    }

    /// The fault that the firmware reports: [`SYND`](HealthBuffer::SYND).
    pub enum HealthSyndrome {
        FwInternalErr = 0x1 "internal error of the firmware",
        DeadIrisc = 0x7 "one of the adapter's processors does not answer",
        HwFatalErr = 0x8 "fatal error of the hardware",
        FwCrcErr = 0x9 "the firmware's checksum is wrong",
        IcmFetchPciErr = 0xa "the memory lent to the adapter cannot be read over the bus",
        IcmPageErr = 0xb "a page lent to the adapter cannot be reached",
        AsynchronousEqBufOverrun = 0xc "the queue of asynchronous events has overrun",
        EqInErr = 0xd "an event queue is in error",
        EqInv = 0xe "an event queue was invalid when an event came",
        FfserErr = 0xf "an error was detected in the hardware's fast path",
        HighTempErr = 0x10 "the adapter is too hot",
        IcmPciPoisonedErr = 0x12 "the memory lent to the adapter came back poisoned from the bus",
        TrustLockdownErr = 0x13 "the adapter has locked itself down",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_is_taken_apart_as_a_row() {
        let row = 0x1234_5056;
        assert_eq!(InitSegment::LOG_CMDQ_SIZE.offset(), 0x14);
        assert_eq!(InitSegment::LOG_CMDQ_SIZE.of_row(row), 5);
        assert_eq!(InitSegment::LOG_CMDQ_STRIDE.of_row(row), 6);
        assert_eq!(InitSegment::CMDQ_PHY_ADDR_31_12.of_row(row), 0x12345);
        assert_eq!(InitSegment::NIC_INTERFACE.in_row(row, 1), 0x1234_5156);
        assert!(InitSegment::INITIALIZING.of_row(0x8000_0000));
        assert_eq!(InitSegment::INITIALIZING.in_row(0xffff_ffff, false), 0x7fff_ffff);
    }

    #[test]
    fn the_syndrome_lies_where_drivers_read_its_byte() {
        let health = HealthBuffer::new().with(HealthBuffer::SYND, HealthSyndrome::HighTempErr.code());
        let segment =
            InitSegment::new().with(InitSegment::HEALTH_BUFFER, health).with(InitSegment::HEALTH_COUNTER, 9);
        assert_eq!(segment.as_bytes()[0x23d], 0x10);
        assert_eq!(segment.as_bytes()[0x1013], 9);
    }
}
