//! Capabilities.

use hca_prm::CmdStatus;

use super::Output;
use crate::function::Function;

/// What the driver chose.
#[derive(Debug, Default)]
pub(crate) struct Chosen {}

impl Function {
    pub(super) fn query_hca_cap(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }

    pub(super) fn set_hca_cap(&mut self, _input: &[u8]) -> Result<(), CmdStatus> {
        Ok(())
    }
}
