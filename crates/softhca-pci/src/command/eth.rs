//! Ethernet: queues, interfaces and tables of flows. Drivers of a RoCE port make a network interface of them before they
//! come to RDMA; here they are numbers, which are made, named and taken away as they should be. Send queues are served so far that the interface goes on (`eth_sq`).
//! No frame moves.

use hca_prm::command::ethernet::{
    CreateFlowGroupIn, CreateFlowTableIn, DestroyFlowGroupIn, DestroyFlowTableIn, QueryRqOut,
    SetFlowTableRootIn, SetFteIn,
};
use hca_prm::{CmdStatus, Opcode};

use super::eth_sq::{Sq, Sqs};
use super::resource::Numbers;
use super::{Output, caps, parse};
use crate::function::{Function, PortKind};

/// Where the output of commands that make something has its number, and the input of those that name it.
const NUMBER: usize = 8;

/// What the Ethernet side keeps.
#[derive(Debug, Default)]
pub(crate) struct Ethernet {
    tirs: Numbers,
    sqs: Numbers,
    pub(super) queues: Sqs,
    rqs: Numbers,
    tises: Numbers,
    rqts: Numbers,
    tables: Numbers,
    groups: Numbers,
    counters: Numbers,
}

/// The number that an input names behind its head.
fn named(input: &[u8]) -> Result<u32, CmdStatus> {
    let bytes = input.get(NUMBER..).and_then(|rest| rest.first_chunk()).ok_or(CmdStatus::BadInpLen)?;
    Ok(u32::from_be_bytes(*bytes) & 0xff_ffff)
}

impl Ethernet {
    /// The kind of thing that a command is about, told by the code of the one that makes it.
    fn of(&mut self, opcode: Opcode) -> Option<&mut Numbers> {
        Some(match opcode {
            Opcode::CREATE_TIR | Opcode::MODIFY_TIR | Opcode::DESTROY_TIR => &mut self.tirs,
            Opcode::DESTROY_SQ => &mut self.sqs,
            Opcode::CREATE_RQ | Opcode::MODIFY_RQ | Opcode::DESTROY_RQ | Opcode::QUERY_RQ => &mut self.rqs,
            Opcode::CREATE_TIS | Opcode::MODIFY_TIS | Opcode::DESTROY_TIS => &mut self.tises,
            Opcode::CREATE_RQT | Opcode::MODIFY_RQT | Opcode::DESTROY_RQT => &mut self.rqts,
            Opcode::ALLOC_FLOW_COUNTER | Opcode::DEALLOC_FLOW_COUNTER => &mut self.counters,
            _ => return None,
        })
    }

    fn has_table(&self, table: u32) -> Result<(), CmdStatus> {
        if self.tables.contains(table) { Ok(()) } else { Err(CmdStatus::BadRes) }
    }

    /// Commands about tables of flows, which name them elsewhere.
    fn flows(&mut self, opcode: Opcode, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        match opcode {
            Opcode::CREATE_FLOW_TABLE => {
                parse::<CreateFlowTableIn>(input)?;
                made(&mut self.tables, out)
            }
            Opcode::DESTROY_FLOW_TABLE => {
                self.tables.free(parse::<DestroyFlowTableIn>(input)?.get(DestroyFlowTableIn::TABLE_ID))
            }
            Opcode::CREATE_FLOW_GROUP => {
                self.has_table(parse::<CreateFlowGroupIn>(input)?.get(CreateFlowGroupIn::TABLE_ID))?;
                made(&mut self.groups, out)
            }
            Opcode::DESTROY_FLOW_GROUP => {
                self.groups.free(parse::<DestroyFlowGroupIn>(input)?.get(DestroyFlowGroupIn::GROUP_ID))
            }
            Opcode::SET_FLOW_TABLE_ENTRY => self.has_table(parse::<SetFteIn>(input)?.get(SetFteIn::TABLE_ID)),
            // Both name the table in the same place.
            Opcode::MODIFY_FLOW_TABLE | Opcode::DELETE_FLOW_TABLE_ENTRY | Opcode::SET_FLOW_TABLE_ROOT => {
                self.has_table(parse::<SetFlowTableRootIn>(input)?.get(SetFlowTableRootIn::TABLE_ID))
            }
            _ => Err(CmdStatus::BadOp),
        }
    }
}

/// Gives out a number.
fn made(numbers: &mut Numbers, out: &mut Output) -> Result<(), CmdStatus> {
    let number = numbers.alloc(caps::LOG_ETHERNET)?;
    out.put_at(NUMBER, &number.to_be_bytes())
}

impl Function {
    pub(super) fn ethernet_command(
        &mut self,
        opcode: Opcode,
        input: &[u8],
        out: &mut Output,
    ) -> Result<(), CmdStatus> {
        if self.options.port != PortKind::Roce {
            return Err(CmdStatus::BadOp);
        }
        let ethernet = &mut self.commands.eth;
        match opcode {
            Opcode::CREATE_SQ => {
                let sq = Sq::new(input)?;
                let number = ethernet.sqs.alloc(caps::LOG_ETHERNET)?;
                ethernet.queues.insert(number, sq);
                return out.put_at(NUMBER, &number.to_be_bytes());
            }
            Opcode::MODIFY_SQ => {
                return ethernet.queues.get_mut(&named(input)?).ok_or(CmdStatus::BadRes)?.modify(input);
            }
            Opcode::QUERY_SQ => return self.query_sq(input, out),
            Opcode::DESTROY_SQ => _ = ethernet.queues.remove(&named(input)?),
            _ => {}
        }
        let Some(numbers) = ethernet.of(opcode) else { return ethernet.flows(opcode, input, out) };
        match opcode {
            Opcode::CREATE_TIR
            | Opcode::CREATE_RQ
            | Opcode::CREATE_TIS
            | Opcode::CREATE_RQT
            | Opcode::ALLOC_FLOW_COUNTER => made(numbers, out),
            Opcode::DESTROY_TIR
            | Opcode::DESTROY_SQ
            | Opcode::DESTROY_RQ
            | Opcode::DESTROY_TIS
            | Opcode::DESTROY_RQT
            | Opcode::DEALLOC_FLOW_COUNTER => numbers.free(named(input)?),
            _ if !numbers.contains(named(input)?) => Err(CmdStatus::BadRes),
            Opcode::QUERY_RQ => out.put(&QueryRqOut::new()),
            _ => Ok(()),
        }
    }
}
