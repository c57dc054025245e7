//! Ethernet: queues, interfaces and tables of flows, of which drivers ask that they can be made.

use hca_prm::{CmdStatus, Opcode};

use super::Output;
use crate::function::Function;

/// What the Ethernet side keeps.
#[derive(Debug, Default)]
pub(crate) struct Ethernet {}

impl Function {
    pub(super) fn ethernet_command(
        &mut self,
        _opcode: Opcode,
        _input: &[u8],
        _out: &mut Output,
    ) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
}
