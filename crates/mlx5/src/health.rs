//! The adapter's health: checks whether it is alive, and the reasons of its death.
//!
//! The firmware increments a health counter, and reports a fault by a syndrome, which tells whether a reset is
//! required. A fault that requires no reset, such as a high temperature, is logged, and the adapter continues. An
//! adapter is also dead if its counter stands still, its function was disabled or is being reset, or it is off the bus.
//!
//! The first reason of death is kept: from then on every command fails at once, and ports end outstanding requests.
//! Closing and opening the adapter resets it, which mends every fault that does not require a power cycle.
//!
//! The driver's thread checks the health at intervals; before that thread exists, a thread that waits for a command
//! does so.

use core::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hca_core::DeviceError;
use hca_prm::{HealthBuffer, HealthSyndrome, InitSegment, NicInterface, Opcode};
use hca_vfio::FunctionError;

use crate::registers::Registers;

/// How often in a row the health counter may be found as it was.
const MAX_MISSES: u32 = 5;

/// The reason why an adapter is declared dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Death {
    /// A command got no answer.
    Silent {
        /// The unanswered command.
        command: Opcode,
    },
    /// The firmware reports a fault that requires a reset.
    Syndrome {
        /// The code, a [`HealthSyndrome`].
        syndrome: u32,
        /// The firmware's own extension of the code.
        extended: u32,
        /// Whether the firmware requires a power cycle.
        power_cycle: bool,
    },
    /// The function's interface is disabled.
    Disabled,
    /// The firmware is being reset.
    Resets,
    /// The health counter stands still.
    Stopped,
    /// Registers read as all ones: the function is off the bus.
    Gone,
    /// The function's server, or the kernel, refuses accesses.
    Unreachable,
    /// The adapter refused to release memory.
    Holds,
    /// The bus has reported a fatal error.
    Bus,
    /// The system requested the function back, and the driver has released it.
    TakenBack,
    /// The program has closed the adapter.
    Closed,
}

impl Death {
    /// The reason, in words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Silent { .. } => "a command got no answer in time",
            Self::Syndrome { power_cycle: true, .. } => {
                "its firmware reports a fault that no reset repairs (see the log): power-cycle the machine first"
            }
            Self::Syndrome { syndrome, .. } => syndrome_text(syndrome),
            Self::Disabled => "its interface is disabled, by its firmware or by the adapter's administrator",
            Self::Resets => "somebody resets its firmware",
            Self::Stopped => "its firmware no longer runs, as the health counter stands still",
            Self::Gone => "its registers read as all ones, as if the function had left the bus",
            Self::Bus => "its bus has reported a fatal error (see the system's log)",
            Self::TakenBack => "the system took the function back, for example by unbinding it from vfio-pci",
            Self::Closed => "the program has closed it",
            Self::Holds => "it refused to release memory, so its bus mastering was switched off",
            Self::Unreachable => {
                "its registers can't be accessed any more: its server has ended, or the kernel took the function back"
            }
        }
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())?;
        match self {
            Self::Silent { command } => write!(f, " ({command})"),
            Self::Syndrome { syndrome, extended, .. } => {
                write!(f, " (syndrome {syndrome:#x}, {extended:#x})")
            }
            _ => Ok(()),
        }
    }
}

fn syndrome_text(code: u32) -> &'static str {
    HealthSyndrome::from_code(code).map_or("its firmware reports an unknown fault", HealthSyndrome::text)
}

/// The adapter's state of health.
pub(crate) struct Health {
    dead: AtomicBool,
    death: OnceLock<Death>,
    last: AtomicU32,
    misses: AtomicU32,
    /// What the firmware last reported that ends nothing; 0: it is well.
    report: AtomicU32,
    /// How many such reports there were.
    reports: AtomicU64,
    interval: Duration,
    /// When it is to be looked at again.
    due: Mutex<Instant>,
}

impl Health {
    /// That of an adapter that is looked at once in `interval`.
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            dead: AtomicBool::new(false),
            death: OnceLock::new(),
            last: AtomicU32::new(0),
            misses: AtomicU32::new(0),
            report: AtomicU32::new(0),
            reports: AtomicU64::new(0),
            interval,
            due: Mutex::new(Instant::now() + interval),
        }
    }
    /// How long it need not be looked at.
    pub(crate) fn due_in(&self) -> Duration {
        self.due.lock().unwrap_or_else(PoisonError::into_inner).saturating_duration_since(Instant::now())
    }
    /// How many reports there were that ended nothing.
    pub(crate) fn reports(&self) -> u64 {
        self.reports.load(Ordering::Relaxed)
    }

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
    /// Fails if the adapter is dead.
    pub(crate) fn check_alive(&self) -> Result<(), DeviceError> {
        self.death().map_or(Ok(()), |d| Err(DeviceError::Dead { why: d.text() }))
    }
    /// Declares it dead; the first reason stays. Returns whether this was the first.
    pub(crate) fn declare(&self, death: Death) -> bool {
        let first = self.death.set(death).is_ok();
        if first {
            self.dead.store(true, Ordering::Relaxed);
            match death {
                Death::Closed => tracing::debug!("the adapter is closed"),
                _ => tracing::error!(%death, "the adapter is considered dead"),
            }
        }
        first
    }

    /// Looks at the registers if that is due. Returns whether it died by that.
    pub(crate) fn look_if_due(&self, registers: &Registers) -> bool {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now < *due {
            return false;
        }
        *due = now + self.interval;
        drop(due);
        self.look(registers)
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
        let in_buffer = |row: usize| registers.row(InitSegment::HEALTH_BUFFER.offset() + row);
        if in_buffer(HealthBuffer::FW_VERSION.offset())? == u32::MAX {
            return Ok(Some(Death::Gone));
        }
        match NicInterface::from_code(registers.get(InitSegment::NIC_INTERFACE)?) {
            Some(NicInterface::Disabled) => return Ok(Some(Death::Disabled)),
            Some(NicInterface::SwReset) => return Ok(Some(Death::Resets)),
            _ => {}
        }
        let row = in_buffer(HealthBuffer::SYND.offset())?;
        let syndrome = HealthBuffer::SYND.of_row(row);
        let asks = in_buffer(HealthBuffer::RFR.offset())?;
        if syndrome != 0 && HealthBuffer::RFR.of_row(asks) {
            report(registers)?;
            let (extended, power_cycle) =
                (HealthBuffer::EXT_SYND.of_row(row), HealthBuffer::CRR.of_row(asks));
            return Ok(Some(Death::Syndrome { syndrome, extended, power_cycle }));
        }
        let before = self.report.swap(syndrome, Ordering::Relaxed);
        match syndrome {
            same if same == before => {}
            0 => tracing::info!("the adapter's firmware reports no fault any more"),
            _ => {
                report(registers)?;
                self.reports.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    "the adapter continues with a fault: {} (syndrome {syndrome:#x}); no reset is required",
                    syndrome_text(syndrome)
                );
            }
        }
        let counter = registers.get(InitSegment::HEALTH_COUNTER)?;
        if self.last.swap(counter, Ordering::Relaxed) != counter {
            self.misses.store(0, Ordering::Relaxed);
            return Ok(None);
        }
        let misses = self.misses.fetch_add(1, Ordering::Relaxed) + 1;
        Ok((misses >= MAX_MISSES).then_some(Death::Stopped))
    }
}

/// Logs all that the firmware tells of a fault, for its maker.
fn report(registers: &Registers) -> Result<(), FunctionError> {
    let mut buffer = HealthBuffer::new();
    for (i, row) in buffer.as_bytes_mut().as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *row = registers.row(InitSegment::HEALTH_BUFFER.offset() + 4 * i)?.to_be_bytes();
    }
    let of = |field| buffer.get::<u32>(field);
    tracing::warn!(
        assert_var = ?buffer.get(HealthBuffer::ASSERT_VAR),
        assert_exit_ptr = of(HealthBuffer::ASSERT_EXIT_PTR),
        assert_callra = of(HealthBuffer::ASSERT_CALLRA),
        time = of(HealthBuffer::TIME),
        firmware = of(HealthBuffer::FW_VERSION),
        adapter = of(HealthBuffer::HW_ID),
        severity = of(HealthBuffer::SEVERITY),
        processor = of(HealthBuffer::IRISC_INDEX),
        syndrome = of(HealthBuffer::SYND),
        extended = of(HealthBuffer::EXT_SYND),
        "the adapter's firmware reports a fault"
    );
    Ok(())
}
