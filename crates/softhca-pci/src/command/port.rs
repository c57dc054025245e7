//! The port: its state, addresses, and registers.

use hca_prm::register::RegisterId;
use hca_prm::{CmdStatus, Opcode};

use super::Output;
use crate::function::Function;

/// What a port keeps.
#[derive(Debug, Default)]
pub(crate) struct Port {}

impl Function {
    pub(super) fn port_command(
        &mut self,
        _opcode: Opcode,
        _input: &[u8],
        _out: &mut Output,
    ) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }

    /// The function is started: its addresses are known to the others.
    pub(super) fn open_port(&mut self) {}

    /// The function is stopped: its addresses are known no more.
    pub(super) fn close_port(&mut self) {
        self.directory.lock().remove_function(self.options.number);
    }

    pub(super) fn read_register(&mut self, _id: RegisterId, _bytes: &mut [u8]) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadParam)
    }

    pub(super) fn write_register(&mut self, _id: RegisterId, _bytes: &[u8]) -> Result<(), CmdStatus> {
        Ok(())
    }
}
