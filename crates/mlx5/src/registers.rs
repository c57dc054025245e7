//! The initialization segment: the registers at the beginning of BAR 0, accessed by calls, because a server traps them.

use std::sync::Arc;

use hca_prm::{Field, InitSegment};
use hca_vfio::{Bar, FunctionError};

/// The registers. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Registers(Arc<Bar>);

impl Registers {
    pub(crate) fn new(bar: Arc<Bar>) -> Self {
        Self(bar)
    }

    /// The row of 32 bits at an offset.
    pub(crate) fn row(&self, offset: usize) -> Result<u32, FunctionError> {
        self.0.read32_be(offset as u64)
    }
    /// The number in a field.
    pub(crate) fn get(&self, field: Field<InitSegment, u32>) -> Result<u32, FunctionError> {
        self.row(field.offset()).map(|row| field.of_row(row))
    }
    /// The adapter's free-running clock.
    pub(crate) fn timer(&self) -> Result<u64, FunctionError> {
        let (high, low) = (InitSegment::INTERNAL_TIMER_H, InitSegment::INTERNAL_TIMER_L);
        let (before, time, after) = (self.get(high)?, self.get(low)?, self.get(high)?);
        // The lower half may have gone around between the two; not twice, in so short a time.
        let time = if before == after { time } else { self.get(low)? };
        Ok(u64::from(after) << 32 | u64::from(time))
    }
    /// Writes a row.
    pub(crate) fn set_row(&self, offset: usize, row: u32) -> Result<(), FunctionError> {
        self.0.write32_be(offset as u64, row)
    }
}
