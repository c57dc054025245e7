//! The initialization segment: the registers at the begin of BAR 0, reached by calls, as a server traps them.

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
    /// Writes a row.
    pub(crate) fn set_row(&self, offset: usize, row: u32) -> Result<(), FunctionError> {
        self.0.write32_be(offset as u64, row)
    }
}
