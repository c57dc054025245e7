//! Completion queues.

use hca_prm::CmdStatus;

use crate::command::Output;
use crate::function::Function;

impl Function {
    pub(crate) fn create_cq(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
    pub(crate) fn destroy_cq(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
    pub(crate) fn query_cq(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
    pub(crate) fn modify_cq(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
}
