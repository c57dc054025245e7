//! A record of the objects and settings that executed commands have created, destroyed and changed.

use hca_prm::caps::{EthOffloadCap, HcaCap, RoceCap};
use hca_prm::command::cq::CreateCqIn;
use hca_prm::command::ethernet::{
    DeleteFteIn, DestroyFlowGroupIn, DestroyFlowTableIn, SetFlowTableRootIn, SetFteIn,
};
use hca_prm::command::hca::{ManagePagesIn, ManagePagesMod, ManagePagesOut, QueryIssiOut};
use hca_prm::command::vport::{
    HcaVportContext, MacAddress, ModifyNicVportContextIn, NicVportContext, PortState,
    QueryHcaVportContextOut, QueryHcaVportGidOut, QueryNicVportContextOut,
};
use hca_prm::{CmdIn, CmdOut, CmdStatus, Cqc, Layout, Opcode, pas};

use super::{Queue, State, change, events, nic_context};

/// The function's own GID, as an InfiniBand port.
pub(crate) const GID: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 7];
/// Its LID.
pub(crate) const LID: u32 = 3;
/// Its MAC, as an Ethernet port.
pub(crate) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

/// Capabilities of some kinds.
pub(crate) struct AllCaps {
    pub(crate) general: HcaCap,
    pub(crate) roce: RoceCap,
    pub(crate) ethernet: EthOffloadCap,
}

impl AllCaps {
    /// Changes those of one kind, which stand at the beginning of these bytes.
    pub(super) fn change<L: Layout>(
        bytes: &mut [u8],
        which: fn(&mut Self) -> &mut L,
        with: impl FnOnce(&mut Self),
    ) {
        let (general, roce, ethernet) = (HcaCap::new(), RoceCap::new(), EthOffloadCap::new());
        let mut all = Self { general, roce, ethernet };
        *which(&mut all) = head(bytes);
        with(&mut all);
        bytes[..L::SIZE].copy_from_slice(which(&mut all).as_bytes());
    }
}

/// What makes objects of each kind, and what takes them away.
const KINDS: [(Opcode, Opcode, &str); 16] = [
    (Opcode::ALLOC_UAR, Opcode::DEALLOC_UAR, "doorbell page"),
    (Opcode::CREATE_EQ, Opcode::DESTROY_EQ, "event queue"),
    (Opcode::ALLOC_PD, Opcode::DEALLOC_PD, "domain"),
    (Opcode::CREATE_MKEY, Opcode::DESTROY_MKEY, "memory key"),
    (Opcode::CREATE_CQ, Opcode::DESTROY_CQ, "completion queue"),
    (Opcode::CREATE_QP, Opcode::DESTROY_QP, "queue pair"),
    (Opcode::CREATE_RMP, Opcode::DESTROY_RMP, "receive pool"),
    (Opcode::ALLOC_TRANSPORT_DOMAIN, Opcode::DEALLOC_TRANSPORT_DOMAIN, "transport domain"),
    (Opcode::CREATE_TIS, Opcode::DESTROY_TIS, "sending interface"),
    (Opcode::CREATE_SQ, Opcode::DESTROY_SQ, "send queue"),
    (Opcode::CREATE_RQ, Opcode::DESTROY_RQ, "receive queue"),
    (Opcode::CREATE_TIR, Opcode::DESTROY_TIR, "receiving interface"),
    (Opcode::CREATE_FLOW_TABLE, Opcode::DESTROY_FLOW_TABLE, "table"),
    (Opcode::CREATE_FLOW_GROUP, Opcode::DESTROY_FLOW_GROUP, "group"),
    (Opcode::SET_L2_TABLE_ENTRY, Opcode::DELETE_L2_TABLE_ENTRY, "switch entry"),
    (Opcode::SET_FLOW_TABLE_ENTRY, Opcode::DELETE_FLOW_TABLE_ENTRY, "flow"),
];

pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}
/// The layout that bytes begin with.
pub(super) fn head<L: Layout>(bytes: &[u8]) -> L {
    let mut layout = L::zeroed();
    layout.as_bytes_mut().copy_from_slice(&bytes[..L::SIZE]);
    layout
}

impl State {
    /// Nothing is left of what was made.
    pub(super) fn forget(&mut self) {
        self.pages.clear();
        self.objects.clear();
        self.roce.clear();
        self.macs.clear();
        self.held.clear();
        self.let_go.clear();
        self.waiting.clear();
        self.eqs.clear();
        (self.enabled, self.running, self.command) = (false, false, 0);
    }

    /// Takes a command into account, and has its output be as the test wants it.
    pub(super) fn ran(&mut self, input: &[u8], output: &mut [u8]) {
        let command = head::<CmdIn>(input).opcode();
        self.inputs.push((command, input.to_vec()));
        if head::<CmdOut>(output).get(CmdOut::STATUS) != CmdStatus::Ok.code() {
            return;
        }
        match command {
            Opcode::ENABLE_HCA => self.enabled = true,
            Opcode::INIT_HCA => self.running = true,
            Opcode::DISABLE_HCA => self.enabled = false,
            Opcode::TEARDOWN_HCA => self.stopped(),
            Opcode::QUERY_ISSI => change::<QueryIssiOut>(output, |out| {
                out.set(QueryIssiOut::SUPPORTED_ISSI_DW0, self.wants.issi);
            }),
            Opcode::MANAGE_PAGES => self.pages_moved(input, output),
            Opcode::QUERY_HCA_CAP => self.show_caps(input, output),
            Opcode::SET_HCA_CAP => {
                self.caps.insert((word(input, 4) & 0xffff) >> 1, input[16..].to_vec());
            }
            Opcode::CREATE_MKEY => self.mkey = input.to_vec(),
            Opcode::SET_ROCE_ADDRESS => {
                let (entry, index) = (input[16..48].to_vec(), word(input, 8) >> 16);
                if entry.iter().all(|b| *b == 0) {
                    self.roce.remove(&index);
                } else {
                    self.roce.insert(index, entry);
                }
            }
            Opcode::MODIFY_NIC_VPORT_CONTEXT => self.list_macs(input),
            Opcode::QUERY_NIC_VPORT_CONTEXT => change::<QueryNicVportContextOut>(output, |out| {
                let context = out.get(QueryNicVportContextOut::NIC_VPORT_CONTEXT);
                let mut mac = MacAddress::new();
                mac.set_mac(MAC);
                let context = context
                    .with(NicVportContext::PERMANENT_ADDRESS, mac)
                    .with(NicVportContext::MIN_WQE_INLINE_MODE, self.wants.inline_mode);
                out.set(QueryNicVportContextOut::NIC_VPORT_CONTEXT, context);
            }),
            Opcode::QUERY_HCA_VPORT_CONTEXT => self.show_port(output),
            Opcode::QUERY_HCA_VPORT_GID => {
                output[QueryHcaVportGidOut::SIZE..][..16].copy_from_slice(&self.wants.managed.gid);
            }
            Opcode::SET_FLOW_TABLE_ROOT => {
                let root = head::<SetFlowTableRootIn>(input);
                self.objects.insert(("root", root.get(SetFlowTableRootIn::TABLE_ID)));
            }
            _ => {}
        }
        self.count(command, input, output);
        self.see_queues(command, input, output);
        self.see_link(command, input, output);
    }

    fn stopped(&mut self) {
        if !self.objects.is_empty() || self.macs.values().any(|list| !list.is_empty()) {
            self.faults.push(format!("stopped with {:?}, {:?}", self.objects, self.macs));
        }
        self.running = false;
    }

    /// What was made, or has gone.
    fn count(&mut self, command: Opcode, input: &[u8], output: &[u8]) {
        let made = KINDS.iter().find(|(makes, ..)| *makes == command);
        let gone = KINDS.iter().find(|(_, takes, _)| *takes == command);
        if let Some((.., kind)) = made {
            let number = match command {
                Opcode::SET_FLOW_TABLE_ENTRY => head::<SetFteIn>(input).get(SetFteIn::FLOW_INDEX),
                Opcode::SET_L2_TABLE_ENTRY => word(input, 0x14),
                Opcode::CREATE_EQ => word(output, 8) & 0xff,
                _ => word(output, 8) & 0xff_ffff,
            };
            self.objects.insert((kind, number));
        } else if let Some((.., kind)) = gone {
            let number = match command {
                Opcode::DELETE_FLOW_TABLE_ENTRY => head::<DeleteFteIn>(input).get(DeleteFteIn::FLOW_INDEX),
                Opcode::DELETE_L2_TABLE_ENTRY => word(input, 0x14),
                Opcode::DESTROY_FLOW_GROUP => {
                    head::<DestroyFlowGroupIn>(input).get(DestroyFlowGroupIn::GROUP_ID)
                }
                Opcode::DESTROY_FLOW_TABLE => {
                    let table = head::<DestroyFlowTableIn>(input).get(DestroyFlowTableIn::TABLE_ID);
                    self.objects.remove(&("root", table));
                    table
                }
                _ => word(input, 8) & 0xff_ffff,
            };
            if !self.objects.remove(&(*kind, number)) {
                self.faults.push(format!("a {kind} has gone twice"));
            }
        }
    }

    /// Which event queues there are, and which of them completion queues have.
    fn see_queues(&mut self, command: Opcode, input: &[u8], output: &[u8]) {
        match command {
            Opcode::CREATE_EQ => _ = self.eqs.insert(word(output, 8) & 0xff, Queue(events(input))),
            Opcode::DESTROY_EQ => _ = self.eqs.remove(&(word(input, 8) & 0xff)),
            Opcode::CREATE_CQ => {
                self.cq_eqs.push(head::<CreateCqIn>(input).get(CreateCqIn::CQ_CONTEXT).get(Cqc::C_EQN));
            }
            _ => {}
        }
    }

    /// What the subnet's manager has made of the port.
    fn show_port(&mut self, output: &mut [u8]) {
        let port = &mut self.wants.managed;
        let (state, lid) = if port.looks == 0 { (port.state, port.lid) } else { (PortState::Init, 0) };
        port.looks = port.looks.saturating_sub(1);
        change::<QueryHcaVportContextOut>(output, |out| {
            let context = out.get(QueryHcaVportContextOut::HCA_VPORT_CONTEXT);
            let context =
                context.with(HcaVportContext::VPORT_STATE, state.code()).with(HcaVportContext::LID, lid);
            out.set(QueryHcaVportContextOut::HCA_VPORT_CONTEXT, context);
        });
    }

    fn pages_moved(&mut self, input: &[u8], output: &mut [u8]) {
        match ManagePagesMod::from_code(word(input, 4) & 0xffff) {
            Some(ManagePagesMod::AllocationSuccess) => {
                let given: Vec<u64> = pas::iter(&input[ManagePagesIn::SIZE..]).collect();
                self.lent += given.len();
                let came = given.len().min(self.waiting.len());
                self.let_go.extend(self.waiting.drain(..came));
                self.pages.extend(given);
            }
            Some(ManagePagesMod::HcaReturnPages) => {
                let told = head::<ManagePagesOut>(output).get(ManagePagesOut::OUTPUT_NUM_ENTRIES) as usize;
                let kept = if self.running { 0 } else { self.wants.keeps.min(told) };
                for page in pas::iter(&output[ManagePagesOut::SIZE..]).take(told - kept) {
                    assert!(self.pages.remove(&page), "{page:#x} is the driver's");
                }
                change::<ManagePagesOut>(output, |out| {
                    let told = (told - kept) as u32 + self.wants.overstates;
                    out.set(ManagePagesOut::OUTPUT_NUM_ENTRIES, told);
                });
            }
            _ => {}
        }
    }

    /// Which MACs the port is to hear.
    fn list_macs(&mut self, input: &[u8]) {
        let (context, lists) = nic_context(input);
        if lists {
            let list = &input[ModifyNicVportContextIn::SIZE..];
            let macs: Vec<[u8; 6]> =
                list.chunks(MacAddress::SIZE).map(|m| MacAddress::from_bytes(m).unwrap().mac()).collect();
            assert_eq!(macs.len(), context.get(NicVportContext::ALLOWED_LIST_SIZE) as usize);
            self.macs.insert(context.get(NicVportContext::ALLOWED_LIST_TYPE), macs);
        }
    }
}
