//! The link of a port that another driver used before.

use hca_prm::Opcode;
use hca_prm::command::hca::{AccessRegIn, AccessRegMod, AccessRegOut};
use hca_prm::command::vport::{
    ModifyNicVportContextIn, ModifyVportStateIn, NicVportContext, NicVportFieldSelect,
    QueryNicVportContextOut, QueryVportStateOut, VportStateMod,
};
use hca_prm::register::{Paos, Pmtu, RegisterId};

use super::commands::word;
use super::{State, change};

/// The link of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// What it was set to, and what it is once it was raised.
    pub(crate) admin: u32,
    pub(crate) raised: u32,
    /// How often it is looked at before it is up.
    pub(crate) looks: u32,
    /// The longest frame that there can be, may be, and may be for the function.
    pub(crate) most: u32,
    pub(crate) frame: u32,
    pub(crate) own_frame: u32,
    /// What the embedded switch makes of it.
    pub(crate) uplink: u32,
    /// Writes to its registers.
    pub(crate) writes: u32,
}

impl Default for Link {
    /// One that is up.
    fn default() -> Self {
        Self { admin: 1, raised: 1, looks: 0, most: 9978, frame: 4222, own_frame: 4222, uplink: 2, writes: 0 }
    }
}

impl Link {
    /// What it is.
    fn oper(&self) -> u32 {
        if self.admin == 1 && self.looks == 0 { self.raised } else { 2 }
    }

    fn access(&mut self, input: &[u8], output: &mut [u8]) {
        let command = AccessRegIn::from_bytes(&input[..AccessRegIn::SIZE]).unwrap();
        let write = command.get(AccessRegIn::OP_MOD) == AccessRegMod::Write.code();
        let (given, out) = (&input[AccessRegIn::SIZE..], &mut output[AccessRegOut::SIZE..]);
        self.writes += u32::from(write);
        match RegisterId::from_code(command.get(AccessRegIn::REGISTER_ID)) {
            Some(RegisterId::Pmtu) => {
                let asked = Pmtu::from_bytes(given).unwrap();
                assert_eq!(asked.get(Pmtu::LOCAL_PORT), 1);
                if write {
                    self.frame = asked.get(Pmtu::ADMIN_MTU);
                    assert!(self.frame <= self.most);
                }
                let sizes = Pmtu::new().with(Pmtu::MAX_MTU, self.most).with(Pmtu::ADMIN_MTU, self.frame);
                out.copy_from_slice(sizes.with(Pmtu::OPER_MTU, self.frame).as_bytes());
            }
            Some(RegisterId::Paos) => {
                let asked = Paos::from_bytes(given).unwrap();
                assert_eq!((asked.get(Paos::LOCAL_PORT), asked.get(Paos::ASE)), (1, write));
                if write {
                    self.admin = asked.get(Paos::ADMIN_STATUS);
                }
                let status = Paos::new().with(Paos::ADMIN_STATUS, self.admin);
                out.copy_from_slice(status.with(Paos::OPER_STATUS, self.oper()).as_bytes());
                self.looks = self.looks.saturating_sub((self.admin == 1 && !write).into());
            }
            _ => self.writes -= u32::from(write),
        }
    }
}

impl State {
    /// What the registers of an Ethernet port's link say, and what is written to them.
    pub(super) fn see_link(&mut self, command: Opcode, input: &[u8], output: &mut [u8]) {
        let Some(link) = self.wants.link.as_mut().filter(|_| self.wants.ethernet) else { return };
        match command {
            Opcode::ACCESS_REG => link.access(input, output),
            Opcode::QUERY_NIC_VPORT_CONTEXT => change::<QueryNicVportContextOut>(output, |out| {
                let context = out.get(QueryNicVportContextOut::NIC_VPORT_CONTEXT);
                let context = context.with(NicVportContext::MTU, link.own_frame);
                out.set(QueryNicVportContextOut::NIC_VPORT_CONTEXT, context);
            }),
            Opcode::MODIFY_NIC_VPORT_CONTEXT => {
                let command = ModifyNicVportContextIn::from_bytes(&input[..ModifyNicVportContextIn::SIZE]);
                let command = command.unwrap();
                if command.get(ModifyNicVportContextIn::FIELD_SELECT).get(NicVportFieldSelect::MTU) {
                    let context = command.get(ModifyNicVportContextIn::NIC_VPORT_CONTEXT);
                    (link.own_frame, link.writes) = (context.get(NicVportContext::MTU), link.writes + 1);
                }
            }
            Opcode::QUERY_VPORT_STATE => change::<QueryVportStateOut>(output, |out| {
                out.set(QueryVportStateOut::ADMIN_STATE, link.uplink)
                    .set(QueryVportStateOut::STATE, (link.oper() == 1).into());
            }),
            Opcode::MODIFY_VPORT_STATE => {
                assert_eq!(word(input, 4) & 0xffff, VportStateMod::Uplink.code());
                let command = ModifyVportStateIn::from_bytes(&input[..ModifyVportStateIn::SIZE]).unwrap();
                (link.uplink, link.writes) = (command.get(ModifyVportStateIn::ADMIN_STATE), link.writes + 1);
            }
            _ => {}
        }
    }
}
