//! BAR 0: the initialization segment, the table of vectors, and doorbells that come as messages.
//!
//! | offset | contents |
//! |---|---|
//! | 0 | initialization segment ([`InitSegment`]) |
//! | 0x2000, 0x3000 | MSI-X: table, pending bits |
//! | 0x10000 | the first doorbell page, trapped |
//! | 0x11000 to the end | doorbell pages that the client maps; a client that does not gets there by messages, too |

use std::time::Instant;

use hca_prm::{
    CMD_INTERFACE_REV, CQ_DOORBELL, EQ_ARM, EQ_CI, EqDoorbell, HealthBuffer, HealthSyndrome, InitSegment,
    NicInterface,
};

use crate::bus::uar::{self, FIRST_UAR, PAGE};
use crate::function::Function;

/// Bytes of BAR 0.
pub(crate) const BAR_BYTES: u64 = 32 << 20;
/// Where the table of vectors lies.
pub(crate) const MSIX_TABLE: u64 = 0x2000;
/// Where the pending bits lie.
pub(crate) const MSIX_PENDING: u64 = 0x3000;
/// From here to the end of the BAR the client may map.
pub(crate) const MAPPED_FROM: u64 = (FIRST_UAR as u64 + 1) * PAGE;

/// Slots of the command queue, and bytes of each, as powers of two.
const LOG_CMDQ_SIZE: u32 = 5;
const LOG_CMDQ_STRIDE: u32 = 6;
/// The firmware that the model says it is, as far as drivers care.
const FW_REV: (u32, u32, u32) = (12, 28, 2006);
/// What the health counter counts.
const HEALTH_TICK_MS: u128 = 10;
/// Where the lower half of the command queue's address stands, and whether a driver uses the function.
const CMDQ_AND_INTERFACE: u64 = 0x14;
/// How bad a fault is that the function reports, on the scale of the system log.
const CRITICAL: u32 = 2;

/// The free running clock of a function, of which registers and completions tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    /// Nanoseconds since the function was made.
    pub(crate) fn now_ns(self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// The registers of a function that hold something.
#[derive(Debug)]
pub(crate) struct Registers {
    origin: Instant,
    /// Bus address of the command queue.
    pub(crate) cmdq: u64,
    /// A [`NicInterface`] code.
    pub(crate) nic_interface: u32,
    /// What the firmware reports to be unwell with.
    syndrome: u32,
}

impl Registers {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), cmdq: 0, nic_interface: NicInterface::Full.code(), syndrome: 0 }
    }

    /// As after a reset; clocks go on.
    pub(crate) fn reset(&mut self) {
        *self = Self { origin: self.origin, ..Self::new() };
    }

    /// The firmware is unwell from now on, until a reset.
    pub(crate) fn set_syndrome(&mut self, syndrome: HealthSyndrome) {
        if self.syndrome == 0 {
            tracing::warn!("a function reports a fault: {syndrome}");
            self.syndrome = syndrome.code();
        }
    }

    /// The free running clock.
    pub(crate) fn clock(&self) -> Clock {
        Clock(self.origin)
    }

    /// Nanoseconds of it.
    fn timer_ns(&self) -> u64 {
        self.clock().now_ns()
    }

    /// A row of the initialization segment.
    fn row(&self, offset: u64) -> u32 {
        let mut s = InitSegment::new();
        match offset {
            0x00 => s.set(InitSegment::FW_REV_MINOR, FW_REV.1).set(InitSegment::FW_REV_MAJOR, FW_REV.0),
            0x04 => s
                .set(InitSegment::CMD_INTERFACE_REV, CMD_INTERFACE_REV)
                .set(InitSegment::FW_REV_SUBMINOR, FW_REV.2),
            0x10 => s.set(InitSegment::CMDQ_PHY_ADDR_63_32, (self.cmdq >> 32) as u32),
            CMDQ_AND_INTERFACE => s
                .set(InitSegment::CMDQ_PHY_ADDR_31_12, self.cmdq as u32 >> 12)
                .set(InitSegment::NIC_INTERFACE, self.nic_interface)
                .set(InitSegment::LOG_CMDQ_SIZE, LOG_CMDQ_SIZE)
                .set(InitSegment::LOG_CMDQ_STRIDE, LOG_CMDQ_STRIDE),
            0x1fc => s.set(InitSegment::NIC_INTERFACE_SUPPORTED, 0b011),
            0x200..0x240 => {
                // What is told of it is lost, so that nothing but a reset helps.
                let unwell = self.syndrome != 0;
                let health = HealthBuffer::new().with(HealthBuffer::SYND, self.syndrome);
                let health = health.with(HealthBuffer::RFR, unwell).with(HealthBuffer::VALID, unwell);
                let health = health.with(HealthBuffer::SEVERITY, if unwell { CRITICAL } else { 0 });
                s.set(InitSegment::HEALTH_BUFFER, health)
            }
            0x1000 => s.set(InitSegment::INTERNAL_TIMER_H, (self.timer_ns() >> 32) as u32),
            0x1004 => s.set(InitSegment::INTERNAL_TIMER_L, self.timer_ns() as u32),
            0x1010 => s.set(InitSegment::HEALTH_SYNDROME, self.syndrome).set(
                InitSegment::HEALTH_COUNTER,
                (self.origin.elapsed().as_millis() / HEALTH_TICK_MS) as u32 & 0xff_ffff,
            ),
            _ => &mut s,
        };
        let row = s.as_bytes().get(offset as usize..).and_then(|b| b.first_chunk());
        row.map_or(0, |row| u32::from_be_bytes(*row))
    }
}

impl Function {
    /// Reads BAR 0. Unknown registers read as zeros.
    pub fn bar_read(&mut self, offset: u64, into: &mut [u8]) {
        let mut row = (u64::MAX, [0; 4]);
        for (i, byte) in into.iter_mut().enumerate() {
            let at = offset.saturating_add(i as u64);
            *byte = match at {
                MSIX_TABLE..MSIX_PENDING => self.interrupts.table_byte(at - MSIX_TABLE),
                MSIX_PENDING..0x4000 => self.interrupts.pending_byte(at - MSIX_PENDING),
                0..MSIX_TABLE => {
                    if row.0 != at & !3 {
                        row = (at & !3, self.registers.row(at & !3).to_be_bytes());
                    }
                    row.1[(at & 3) as usize]
                }
                _ => 0,
            };
        }
        if let Some(script) = &self.options.script {
            script.bar_read(offset, into);
        }
    }

    /// Writes to BAR 0. Registers are written in units of 4 bytes; unknown ones are ignored.
    pub fn bar_write(&mut self, offset: u64, data: &[u8]) {
        if (MSIX_TABLE..MSIX_PENDING).contains(&offset) {
            for (i, byte) in data.iter().enumerate() {
                let at = offset + i as u64;
                if at < MSIX_PENDING {
                    self.interrupts.write_table_byte(at - MSIX_TABLE, *byte);
                }
            }
            return;
        }
        let page = offset / PAGE;
        if let Ok(uar) = u32::try_from(page)
            && self.pages.is_given(uar)
        {
            self.doorbell(uar, offset % PAGE, data);
            return;
        }
        if offset.is_multiple_of(4) && offset < MSIX_TABLE {
            // No register lies beyond, so a long write is no long loop.
            let rows = data.as_chunks::<4>().0.iter().zip((offset..MSIX_TABLE).step_by(4));
            for (row, at) in rows {
                self.write_row(at, u32::from_be_bytes(*row));
            }
        }
    }

    /// Whether this write to BAR 0 would end all objects, as the driver uses the function no more.
    pub(crate) fn ends_use(offset: u64, data: &[u8]) -> bool {
        let at = CMDQ_AND_INTERFACE.checked_sub(offset).filter(|at| at.is_multiple_of(4));
        let row = at.and_then(|at| data.get(usize::try_from(at).ok()?..)?.first_chunk());
        let code = row.map(|row| InitSegment::NIC_INTERFACE.of_row(u32::from_be_bytes(*row)));
        matches!(code.and_then(NicInterface::from_code), Some(NicInterface::Disabled | NicInterface::SwReset))
    }

    fn write_row(&mut self, offset: u64, row: u32) {
        match offset {
            0x10 => {
                let low = self.registers.cmdq & u64::from(u32::MAX);
                self.registers.cmdq = u64::from(row) << 32 | low;
            }
            CMDQ_AND_INTERFACE => {
                let low = u64::from(InitSegment::CMDQ_PHY_ADDR_31_12.of_row(row)) << 12;
                self.registers.cmdq = self.registers.cmdq >> 32 << 32 | low;
                self.set_nic_interface(InitSegment::NIC_INTERFACE.of_row(row));
            }
            0x18 => self.run_commands(row),
            _ => {}
        }
    }

    /// A driver that goes in haste says so by a register; commands are not run then until it says otherwise.
    fn set_nic_interface(&mut self, code: u32) {
        match NicInterface::from_code(code) {
            Some(NicInterface::Disabled) => self.disable(),
            Some(NicInterface::SwReset) => {
                self.disable();
                self.registers.reset();
                // Linux's driver waits for it.
                self.registers.nic_interface = NicInterface::Disabled.code();
                return;
            }
            _ => {}
        }
        self.registers.nic_interface = code;
    }

    /// A doorbell that came as a message.
    fn doorbell(&mut self, uar: u32, at: u64, data: &[u8]) {
        let (arm, ci) = (EQ_ARM as u64, EQ_CI as u64);
        if at == arm || at == ci {
            if let Ok(doorbell) = EqDoorbell::from_bytes(data) {
                self.eq_doorbell(doorbell, at == arm);
            }
        } else if uar::is_doorbell(at) || at == CQ_DOORBELL as u64 + 4 {
            // Of the 8 bytes of one that comes in halves, the second is the last, and holds the queue's number.
            let named = match at.checked_sub(CQ_DOORBELL as u64) {
                Some(0) => data.get(4..8),
                Some(4) => data.get(..4),
                _ => None,
            };
            if at != CQ_DOORBELL as u64
                && let Some(doorbell) = data.first_chunk()
            {
                let queue = uar::queue_of(*doorbell);
                self.objects.activate(queue);
                self.ethernet.activate(queue);
            }
            let number = |bytes: &[u8]| bytes.try_into().map(u32::from_be_bytes).ok();
            if let Some(cqn) = named.and_then(number) {
                let word = data.get(..4).filter(|_| at == CQ_DOORBELL as u64).and_then(number);
                self.armed(uar, cqn & 0xff_ffff, word);
            }
            self.objects.suspect_all();
            self.ethernet_rung(uar);
        }
    }
}
