//! Shared receive queues, and memory of receive queues (RMP).

use hca_prm::CmdStatus;

use crate::command::Output;
use crate::function::Function;

impl Function {
    pub(crate) fn create_srq(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
    pub(crate) fn destroy_srq(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
    pub(crate) fn query_srq(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
    pub(crate) fn arm_rq(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
    pub(crate) fn create_xrc_srq(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
    pub(crate) fn destroy_xrc_srq(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
    pub(crate) fn query_xrc_srq(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
    pub(crate) fn arm_xrc_srq(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
    pub(crate) fn create_rmp(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
    pub(crate) fn modify_rmp(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
    pub(crate) fn destroy_rmp(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
    pub(crate) fn query_rmp(&mut self, _input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        Err(CmdStatus::BadOp)
    }
}
