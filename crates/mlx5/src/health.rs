//! Whether the adapter lives.
//!
//! The firmware counts a register up while it lives, and names a syndrome when it is unwell. The first reason to take
//! it for dead stays: from then on every command fails at once, and ports end what is outstanding.

use core::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use hca_core::DeviceError;
use hca_prm::{HealthBuffer, HealthSyndrome, InitSegment, Opcode};
use hca_vfio::FunctionError;

use crate::registers::Registers;

/// How often in a row the health counter may be found as it was.
const MAX_MISSES: u32 = 5;

/// Why an adapter is taken for dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Death {
    /// A command got no answer.
    Silent {
        /// Which.
        command: Opcode,
    },
    /// The firmware says that it is unwell.
    Syndrome {
        /// Its code, a [`HealthSyndrome`].
        syndrome: u32,
        /// More of the same, of the firmware's own.
        extended: u32,
    },
    /// The health counter does not go on.
    Stopped,
    /// Registers read as all ones: the function is off the bus.
    Gone,
    /// The function's server, or the kernel, refuses accesses.
    Unreachable,
    /// It refused to let go of memory.
    Holds,
}

impl Death {
    /// The reason, in words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Silent { .. } => "a command got no answer in time",
            Self::Syndrome { syndrome, .. } => HealthSyndrome::from_code(syndrome)
                .map_or("its firmware reports a fault that has no name", HealthSyndrome::text),
            Self::Stopped => "its firmware no longer runs, as the health counter stands still",
            Self::Gone => "its registers read as ones only, as those of a function that is off the bus",
            Self::Holds => "it refused to let go of memory, and was kept from all of it",
            Self::Unreachable => {
                "its registers can't be reached any more: its server has ended, or the kernel took it back"
            }
        }
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())?;
        match self {
            Self::Silent { command } => write!(f, " ({command})"),
            Self::Syndrome { syndrome, extended } => write!(f, " (syndrome {syndrome:#x}, {extended:#x})"),
            _ => Ok(()),
        }
    }
}

/// The adapter's state of health.
#[derive(Default)]
pub(crate) struct Health {
    dead: AtomicBool,
    death: OnceLock<Death>,
    last: AtomicU32,
    misses: AtomicU32,
}

impl Health {
    /// Whether it is dead.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        // Relaxed: a hint that comes soon is enough, and `death` orders itself.
        self.dead.load(Ordering::Relaxed)
    }
    /// Why it is dead, if it is.
    pub(crate) fn death(&self) -> Option<Death> {
        self.death.get().copied()
    }
    /// Refuses what needs a living adapter.
    pub(crate) fn check_alive(&self) -> Result<(), DeviceError> {
        self.death().map_or(Ok(()), |d| Err(DeviceError::Dead { why: d.text() }))
    }
    /// Declares it dead; the first reason stays. Returns whether this was the first.
    pub(crate) fn declare(&self, death: Death) -> bool {
        let first = self.death.set(death).is_ok();
        if first {
            self.dead.store(true, Ordering::Relaxed);
            tracing::error!(%death, "the adapter is taken for dead");
        }
        first
    }

    /// Looks at the registers once. Returns whether it died by that.
    pub(crate) fn look(&self, registers: &Registers) -> bool {
        if self.is_dead() {
            return false;
        }
        match self.judge(registers) {
            Ok(None) => false,
            Ok(Some(death)) => self.declare(death),
            Err(e) => {
                tracing::error!(%e, "the health registers can't be read");
                self.declare(Death::Unreachable)
            }
        }
    }

    fn judge(&self, registers: &Registers) -> Result<Option<Death>, FunctionError> {
        let counter = registers.row(InitSegment::HEALTH_COUNTER.offset())?;
        let row = registers.row(InitSegment::HEALTH_BUFFER.offset() + HealthBuffer::SYND.offset())?;
        if counter == u32::MAX && row == u32::MAX {
            return Ok(Some(Death::Gone));
        }
        let syndrome = HealthBuffer::SYND.of_row(row);
        if syndrome != 0 {
            return Ok(Some(Death::Syndrome { syndrome, extended: HealthBuffer::EXT_SYND.of_row(row) }));
        }
        let counter = InitSegment::HEALTH_COUNTER.of_row(counter);
        if self.last.swap(counter, Ordering::Relaxed) != counter {
            self.misses.store(0, Ordering::Relaxed);
            return Ok(None);
        }
        let misses = self.misses.fetch_add(1, Ordering::Relaxed) + 1;
        Ok((misses >= MAX_MISSES).then_some(Death::Stopped))
    }
}
