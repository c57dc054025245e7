//! What the function makes of each command.

use std::collections::HashMap;

use hca_prm::caps::{AtomicCaps, HcaCap, RoceCap};
use hca_prm::command::hca::*;
use hca_prm::command::vport::*;
use hca_prm::command::{eq::CreateEqIn, mkey::CreateMkeyIn};
use hca_prm::register::{Paos, Pmtu, RegisterId};
use hca_prm::{CmdStatus, Eqc, Layout, Mkc, Opcode, pas};

use super::{Link, State, Wants};

/// The function's own GID, as an InfiniBand port.
pub(crate) const GID: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 7];
/// Its LID.
pub(crate) const LID: u32 = 3;
/// Its MAC, as an Ethernet port.
pub(crate) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

/// Capabilities of each kind, padded.
pub(crate) fn capabilities(wants: &Wants) -> HashMap<u32, Vec<u8>> {
    let general = HcaCap::new()
        .with(HcaCap::LOG_MAX_QP, 12)
        .with(HcaCap::LOG_MAX_QP_SZ, 12)
        .with(HcaCap::LOG_MAX_CQ, 12)
        .with(HcaCap::LOG_MAX_CQ_SZ, 14)
        .with(HcaCap::LOG_MAX_EQ_SZ, 10)
        .with(HcaCap::LOG_MAX_MKEY, 16)
        .with(HcaCap::LOG_MAX_SRQ, 10)
        .with(HcaCap::LOG_MAX_SRQ_SZ, 12)
        .with(HcaCap::LOG_MAX_PD, 2)
        .with(HcaCap::LOG_MAX_MSG, 30)
        .with(HcaCap::LOG_MAX_MRW_SZ, 32)
        .with(HcaCap::MAX_WQE_SZ_SQ, 512)
        .with(HcaCap::MAX_WQE_SZ_RQ, 512)
        .with(HcaCap::LOG_BF_REG_SIZE, 9)
        .with(HcaCap::LOG_MAX_RA_REQ_QP, 4)
        .with(HcaCap::LOG_MAX_RA_RES_QP, 4)
        .with(HcaCap::CMDIF_CHECKSUM, 3)
        .with(HcaCap::CQE_VERSION, 1)
        .with(HcaCap::NUM_PORTS, 1)
        .with(HcaCap::IB_VIRT, true)
        .with(HcaCap::ATOMIC, true)
        .with(HcaCap::DRIVER_VERSION, true)
        .with(HcaCap::UPLINK_FOLLOW, true)
        .with(HcaCap::ROCE, wants.ethernet)
        .with(HcaCap::ETH_NET_OFFLOADS, wants.ethernet_queues)
        .with(HcaCap::NIC_FLOW_TABLE, wants.ethernet_queues)
        .with(HcaCap::PORT_TYPE, wants.ethernet.into());
    let atomic = AtomicCaps::new().with(AtomicCaps::SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1, true);
    let roce = RoceCap::new().with(RoceCap::ROCE_VERSION, 4).with(RoceCap::ROCE_ADDRESS_TABLE_SIZE, 3);
    let pad = |bytes: &[u8]| {
        let mut all = bytes.to_vec();
        all.resize(4096, 0);
        all
    };
    let kinds = [
        (HcaCapType::GeneralDevice, pad(general.as_bytes())),
        (HcaCapType::Atomic, pad(atomic.as_bytes())),
        (HcaCapType::Roce, pad(roce.as_bytes())),
    ];
    kinds.into_iter().map(|(kind, caps)| (kind.code(), caps)).collect()
}

impl Link {
    /// What it is.
    fn oper(&self) -> u32 {
        if self.admin == 1 && self.looks == 0 { self.raised } else { 2 }
    }
}

/// What a command is about that makes a queue, or takes it away.
fn queue(command: Opcode) -> &'static str {
    match command {
        Opcode::CREATE_CQ | Opcode::DESTROY_CQ => "completion queue",
        Opcode::CREATE_QP | Opcode::DESTROY_QP => "queue pair",
        _ => "receive pool",
    }
}

fn put<L: Layout>(out: &mut [u8], answer: L) {
    let place = &mut out[..L::SIZE];
    place.copy_from_slice(answer.as_bytes());
}
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl State {
    pub(super) fn command(&mut self, command: Opcode, input: &[u8], out: &mut [u8]) -> Result<(), CmdStatus> {
        let op_mod = word(input, 4) & 0xffff;
        match command {
            Opcode::ENABLE_HCA => self.enabled = true,
            Opcode::QUERY_ISSI => {
                put(out, QueryIssiOut::new().with(QueryIssiOut::SUPPORTED_ISSI_DW0, self.wants.issi));
            }
            Opcode::QUERY_PAGES => {
                let pages = if op_mod == 1 { self.wants.boot_pages } else { self.wants.init_pages };
                put(out, QueryPagesOut::new().with(QueryPagesOut::NUM_PAGES, pages));
            }
            Opcode::MANAGE_PAGES => {
                return self.manage_pages(op_mod, word(input, 12) as usize, &input[16..], out);
            }
            Opcode::QUERY_HCA_CAP => {
                let caps = self.caps.get(&(op_mod >> 1)).ok_or(CmdStatus::BadParam)?;
                out[16..16 + 4096].copy_from_slice(caps);
            }
            Opcode::SET_HCA_CAP => {
                self.caps.insert(op_mod >> 1, input[16..16 + 4096].to_vec());
            }
            Opcode::INIT_HCA => self.running = true,
            Opcode::ACCESS_REG => {
                return self.access(word(input, 8) & 0xffff, op_mod == 0, &input[16..], out);
            }
            Opcode::ALLOC_UAR => {
                let first = !self.objects.iter().any(|(kind, _)| *kind == "doorbell page");
                let number = if first { 0xf } else { 0x10 + self.objects.len() as u32 };
                self.objects.insert(("doorbell page", number));
                out[8..12].copy_from_slice(&number.to_be_bytes());
            }
            Opcode::CREATE_EQ => {
                let input = (CreateEqIn::from_bytes(input).unwrap(), &input[CreateEqIn::SIZE..]);
                let context: Eqc = input.0.get(CreateEqIn::EQ_CONTEXT_ENTRY);
                assert_eq!(context.get(Eqc::UAR_PAGE), 0xf);
                let (log, vector) = (context.get(Eqc::LOG_EQ_SIZE), context.get(Eqc::INTR));
                let number = self.make_eq(log, vector, input.0.get(CreateEqIn::EVENT_BITMASK), input.1);
                out[8..12].copy_from_slice(&number.to_be_bytes());
            }
            Opcode::ALLOC_PD => {
                let number = self.number("domain");
                out[8..12].copy_from_slice(&number.to_be_bytes());
            }
            Opcode::CREATE_MKEY => {
                self.mkey = input.to_vec();
                let context: Mkc =
                    CreateMkeyIn::from_bytes(input).unwrap().get(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
                if !self.objects.contains(&("domain", context.get(Mkc::PD))) {
                    return Err(CmdStatus::BadRes);
                }
                let number = self.number("memory key");
                out[8..12].copy_from_slice(&number.to_be_bytes());
            }
            Opcode::DESTROY_EQ => {
                self.eqs.remove(&(word(input, 8) & 0xff));
                return self.gone("event queue", word(input, 8));
            }
            Opcode::DEALLOC_UAR => return self.gone("doorbell page", word(input, 8)),
            Opcode::DEALLOC_PD => return self.gone("domain", word(input, 8)),
            Opcode::DESTROY_MKEY => return self.gone("memory key", word(input, 8)),
            Opcode::CREATE_CQ | Opcode::CREATE_QP | Opcode::CREATE_RMP => {
                let number = self.number(queue(command));
                out[8..12].copy_from_slice(&number.to_be_bytes());
            }
            Opcode::DESTROY_CQ | Opcode::DESTROY_QP | Opcode::DESTROY_RMP => {
                return self.gone(queue(command), word(input, 8));
            }
            // Nothing flows: they are as they were made.
            Opcode::RST2INIT_QP | Opcode::QP_2RST | Opcode::QP_2ERR | Opcode::MODIFY_RMP => {}
            Opcode::TEARDOWN_HCA => {
                if !self.objects.is_empty() || self.macs.values().any(|list| !list.is_empty()) {
                    self.faults.push(format!("stopped with {:?}, {:?}", self.objects, self.macs));
                }
                self.running = false;
            }
            Opcode::DISABLE_HCA => self.enabled = false,
            Opcode::MODIFY_NIC_VPORT_CONTEXT => {
                self.list_macs(input)?;
                let command = ModifyNicVportContextIn::from_bytes(input).unwrap();
                let select = command.get(ModifyNicVportContextIn::FIELD_SELECT);
                let context = command.get(ModifyNicVportContextIn::NIC_VPORT_CONTEXT);
                if let Some(link) = self.wants.link.as_mut().filter(|_| select.get(NicVportFieldSelect::MTU))
                {
                    (link.own_frame, link.writes) = (context.get(NicVportContext::MTU), link.writes + 1);
                }
            }
            Opcode::SET_ISSI | Opcode::SET_DRIVER_VERSION => {}
            other => return self.port(other, input, out),
        }
        Ok(())
    }

    /// Which MACs the port is to hear.
    fn list_macs(&mut self, input: &[u8]) -> Result<(), CmdStatus> {
        let (command, list) = input.split_at(ModifyNicVportContextIn::SIZE);
        let command = ModifyNicVportContextIn::from_bytes(command).unwrap();
        if command.get(ModifyNicVportContextIn::FIELD_SELECT).get(NicVportFieldSelect::ADDRESSES_LIST) {
            let context = command.get(ModifyNicVportContextIn::NIC_VPORT_CONTEXT);
            let kind = context.get(NicVportContext::ALLOWED_LIST_TYPE);
            if self.wants.refuses_list == Some(kind) {
                return Err(CmdStatus::BadParam);
            }
            let macs: Vec<[u8; 6]> =
                list.chunks(MacAddress::SIZE).map(|m| MacAddress::from_bytes(m).unwrap().mac()).collect();
            assert_eq!(macs.len(), context.get(NicVportContext::ALLOWED_LIST_SIZE) as usize);
            self.macs.insert(kind, macs);
        }
        Ok(())
    }

    pub(super) fn gone(&mut self, kind: &'static str, number: u32) -> Result<(), CmdStatus> {
        if self.objects.remove(&(kind, number)) { Ok(()) } else { Err(CmdStatus::BadRes) }
    }

    fn manage_pages(
        &mut self,
        op_mod: u32,
        count: usize,
        list: &[u8],
        out: &mut [u8],
    ) -> Result<(), CmdStatus> {
        match ManagePagesMod::from_code(op_mod) {
            Some(ManagePagesMod::AllocationSuccess) => {
                let given: Vec<u64> = pas::iter(list).collect();
                assert_eq!(given.len(), count);
                for page in given {
                    assert!(page % 4096 == 0 && page != 0 && self.pages.insert(page), "{page:#x}");
                    self.store(page, &[0xee; 64]);
                }
            }
            Some(ManagePagesMod::HcaReturnPages) => {
                let spare =
                    if self.running { usize::MAX } else { self.pages.len().saturating_sub(self.wants.keeps) };
                let back: Vec<u64> = self.pages.iter().copied().take(count.min(spare)).collect();
                back.iter().for_each(|p| _ = self.pages.remove(p));
                pas::write(&back, &mut out[16..]).unwrap();
                let told = back.len() as u32 + self.wants.overstates;
                put(out, ManagePagesOut::new().with(ManagePagesOut::OUTPUT_NUM_ENTRIES, told));
            }
            _ => {}
        }
        Ok(())
    }

    fn access(&mut self, register: u32, write: bool, given: &[u8], out: &mut [u8]) -> Result<(), CmdStatus> {
        let ethernet = self.wants.ethernet;
        let link = self.wants.link.as_mut().ok_or(CmdStatus::BadParam)?;
        let answer: [u8; 16] = match RegisterId::from_code(register) {
            Some(RegisterId::Pmtu) => {
                let asked = Pmtu::from_bytes(given).unwrap();
                assert_eq!(asked.get(Pmtu::LOCAL_PORT), 1);
                if write {
                    (link.frame, link.writes) = (asked.get(Pmtu::ADMIN_MTU), link.writes + 1);
                    assert!(ethernet && link.frame <= link.most);
                }
                let (most, now) = if ethernet { (link.most, link.frame) } else { (2048, 2048) };
                let sizes = Pmtu::new().with(Pmtu::MAX_MTU, most).with(Pmtu::ADMIN_MTU, now);
                *sizes.with(Pmtu::OPER_MTU, now).as_bytes()
            }
            Some(RegisterId::Paos) => {
                let asked = Paos::from_bytes(given).unwrap();
                assert_eq!((asked.get(Paos::LOCAL_PORT), asked.get(Paos::ASE)), (1, write));
                if write {
                    (link.admin, link.writes) = (asked.get(Paos::ADMIN_STATUS), link.writes + 1);
                }
                let status = Paos::new().with(Paos::ADMIN_STATUS, link.admin);
                let status = status.with(Paos::OPER_STATUS, link.oper());
                link.looks = link.looks.saturating_sub((link.admin == 1 && !write).into());
                *status.as_bytes()
            }
            _ => return Err(CmdStatus::BadParam),
        };
        out[16..32].copy_from_slice(&answer);
        Ok(())
    }

    fn port(&mut self, command: Opcode, input: &[u8], out: &mut [u8]) -> Result<(), CmdStatus> {
        match (command, self.wants.ethernet) {
            (Opcode::QUERY_HCA_VPORT_CONTEXT, false) => {
                let context = HcaVportContext::new()
                    .with(HcaVportContext::VPORT_STATE, PortState::Active.code())
                    .with(HcaVportContext::LID, LID);
                put(
                    out,
                    QueryHcaVportContextOut::new().with(QueryHcaVportContextOut::HCA_VPORT_CONTEXT, context),
                );
            }
            (Opcode::QUERY_HCA_VPORT_GID, false) => {
                out[16..32].copy_from_slice(&GID);
                put(out, QueryHcaVportGidOut::new().with(QueryHcaVportGidOut::GIDS_NUM, 1));
            }
            (Opcode::QUERY_NIC_VPORT_CONTEXT, true) => {
                let mut mac = MacAddress::new();
                mac.set_mac(MAC);
                let frame = self.wants.link.as_ref().map_or(0, |link| link.own_frame);
                let nic = NicVportContext::new()
                    .with(NicVportContext::PERMANENT_ADDRESS, mac)
                    .with(NicVportContext::MTU, frame);
                put(
                    out,
                    QueryNicVportContextOut::new().with(QueryNicVportContextOut::NIC_VPORT_CONTEXT, nic),
                );
            }
            (Opcode::QUERY_VPORT_STATE, true) => {
                let link = self.wants.link.clone().unwrap_or_default();
                let state = QueryVportStateOut::new().with(QueryVportStateOut::ADMIN_STATE, link.uplink);
                put(out, state.with(QueryVportStateOut::STATE, (link.oper() == 1).into()));
            }
            (Opcode::MODIFY_VPORT_STATE, true) => {
                let command = ModifyVportStateIn::from_bytes(input).unwrap();
                assert_eq!(command.get(ModifyVportStateIn::OP_MOD), VportStateMod::Uplink.code());
                let link = self.wants.link.as_mut().ok_or(CmdStatus::BadOp)?;
                (link.uplink, link.writes) = (command.get(ModifyVportStateIn::ADMIN_STATE), link.writes + 1);
            }
            (Opcode::SET_ROCE_ADDRESS, true) => {
                let entry = input[16..48].to_vec();
                let index = word(input, 8) >> 16;
                if entry.iter().all(|b| *b == 0) {
                    self.roce.remove(&index);
                } else {
                    self.roce.insert(index, entry);
                }
            }
            _ => return self.ethernet(command, input, out),
        }
        Ok(())
    }
}
