//! Queue pairs.

use hca_prm::{CmdStatus, Opcode};

use crate::command::Output;
use crate::function::Function;

impl Function {
    pub(crate) fn create_qp(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
    pub(crate) fn destroy_qp(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
    pub(crate) fn query_qp(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }

    /// All commands that change a queue pair's state or attributes, told apart by `opcode`.
    pub(crate) fn modify_qp(
        &mut self,
        _opcode: Opcode,
        _input: &[u8],
        _out: &mut Output,
    ) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
}
