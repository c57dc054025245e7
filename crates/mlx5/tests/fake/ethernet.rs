//! Ethernet queues and tables of flows, as far as commands go.

use hca_prm::command::ethernet::{
    DeleteFteIn, DestroyFlowGroupIn, DestroyFlowTableIn, SetFlowTableRootIn, SetFteIn,
};
use hca_prm::{CmdStatus, Opcode};

use super::State;

/// What a command makes, or takes away.
fn kind(command: Opcode) -> Option<(&'static str, bool)> {
    Some(match command {
        Opcode::ALLOC_TRANSPORT_DOMAIN => ("transport domain", true),
        Opcode::DEALLOC_TRANSPORT_DOMAIN => ("transport domain", false),
        Opcode::CREATE_TIS => ("sending interface", true),
        Opcode::DESTROY_TIS => ("sending interface", false),
        Opcode::CREATE_SQ => ("send queue", true),
        Opcode::DESTROY_SQ => ("send queue", false),
        Opcode::CREATE_RQ => ("receive queue", true),
        Opcode::DESTROY_RQ => ("receive queue", false),
        Opcode::CREATE_TIR => ("receiving interface", true),
        Opcode::DESTROY_TIR => ("receiving interface", false),
        Opcode::CREATE_FLOW_TABLE => ("table", true),
        Opcode::CREATE_FLOW_GROUP => ("group", true),
        _ => return None,
    })
}

impl State {
    pub(super) fn ethernet(
        &mut self,
        command: Opcode,
        input: &[u8],
        out: &mut [u8],
    ) -> Result<(), CmdStatus> {
        let named = u32::from_be_bytes(input[8..12].try_into().unwrap()) & 0xff_ffff;
        match (kind(command), command) {
            (Some((kind, true)), _) => {
                let number = self.number(kind);
                out[8..12].copy_from_slice(&number.to_be_bytes());
            }
            (Some((kind, false)), _) => return self.gone(kind, named),
            (_, Opcode::MODIFY_SQ) => return self.has("send queue", named),
            (_, Opcode::MODIFY_RQ) => return self.has("receive queue", named),
            (_, Opcode::SET_FLOW_TABLE_ENTRY) => {
                let set = SetFteIn::from_bytes(&input[..SetFteIn::SIZE]).unwrap();
                self.has("table", set.get(SetFteIn::TABLE_ID))?;
                self.objects.insert(("flow", set.get(SetFteIn::FLOW_INDEX)));
            }
            (_, Opcode::DELETE_FLOW_TABLE_ENTRY) => {
                let gone = DeleteFteIn::from_bytes(input).unwrap();
                return self.gone("flow", gone.get(DeleteFteIn::FLOW_INDEX));
            }
            (_, Opcode::DESTROY_FLOW_GROUP) => {
                let gone = DestroyFlowGroupIn::from_bytes(input).unwrap();
                return self.gone("group", gone.get(DestroyFlowGroupIn::GROUP_ID));
            }
            (_, Opcode::DESTROY_FLOW_TABLE) => {
                let gone = DestroyFlowTableIn::from_bytes(input).unwrap();
                let table = gone.get(DestroyFlowTableIn::TABLE_ID);
                self.objects.remove(&("root", table));
                return self.gone("table", table);
            }
            (_, Opcode::SET_FLOW_TABLE_ROOT) => {
                let root = SetFlowTableRootIn::from_bytes(input).unwrap();
                let table = root.get(SetFlowTableRootIn::TABLE_ID);
                self.has("table", table)?;
                self.objects.insert(("root", table));
            }
            _ => return Err(CmdStatus::BadOp),
        }
        Ok(())
    }

    fn has(&self, kind: &'static str, number: u32) -> Result<(), CmdStatus> {
        if self.objects.contains(&(kind, number)) { Ok(()) } else { Err(CmdStatus::BadRes) }
    }
}
