//! The port: its state, addresses, counters and registers, for InfiniBand and for Ethernet.
//!
//! The port holds tables that drivers read and write. The addresses in these tables also go to the directory, so that
//! other functions can be reached by them.

pub(crate) mod counters;
pub(crate) mod directory;
pub(crate) mod fixed;
pub(crate) mod link;
pub(crate) mod rate;
#[cfg(test)]
mod tests_counters;
#[cfg(test)]
mod tests_link;
#[cfg(test)]
mod tests_rate;

use hca_core::{Gid, Lid};
use hca_prm::command::counter::{AllocQCounterOut, DeallocQCounterIn, QueryQCounterIn, QueryQCounterOut};
use hca_prm::command::vport::{
    AllowedListType, HcaVportContext, MacAddress, MadIfcIn, MadIfcOut, ModifyHcaVportContextIn,
    ModifyNicVportContextIn, NicVportContext, NicVportFieldSelect, PortState, QueryHcaVportContextOut,
    QueryHcaVportGidIn, QueryHcaVportGidOut, QueryHcaVportPkeyIn, QueryHcaVportPkeyOut,
    QueryNicVportContextOut, QueryRoceAddressIn, QueryRoceAddressOut, QueryVportStateOut, RoceAddr,
    SetRoceAddressIn, VportPkey,
};
use hca_prm::register::{NodeDesc, Ptys, Pvlc, RegisterId};
use hca_prm::{CmdStatus, Layout, Opcode};

use crate::command::resource::Numbers;
use crate::command::{Output, caps, parse};
use crate::eth::Ethernet;
use crate::function::{Function, PortKind};

/// Entries of a RoCE port's table of addresses.
pub(super) const ROCE_ADDRESSES: u32 = 16;
/// Entries of an InfiniBand port's tables.
const GIDS: u32 = 8;
const PKEYS: u32 = 128;
/// The index that means all of a table.
const ALL: u32 = 0xffff;
/// The partition that everybody is a full member of.
const DEFAULT_PKEY: u32 = 0xffff;
/// What the port can do, as a PortInfo says it: its GUID is that of the system, it has communication management,
/// and its clients can be asked to register again.
const CAP_MASK: u32 = 1 << 11 | 1 << 16 | 1 << 25;
/// What of that its driver may say anew: which agents it has (communication management, SNMP, device management, those
/// of vendors), and that its clients can be asked to register again.
const CAP_MASK_PERMITTED: u32 = 1 << 16 | 1 << 17 | 1 << 19 | 1 << 24 | 1 << 25;
/// Objects that a command could look at while it asks the adapter for the counters of a queue pair.
const ASKED_COST: usize = 64;
/// The state of a link that is up, and of one that is switched off.
const LINK_UP: u32 = 5;
const DISABLED: u32 = 3;

/// The state of a port.
#[derive(Debug, Default)]
pub(crate) struct Port {
    roce: Vec<RoceAddr>,
    nic: Option<NicVportContext>,
    node_desc: NodeDesc,
    /// What the port can do, if its driver has said so.
    cap_mask: Option<u32>,
    counters: Numbers,
}

impl Function {
    pub(super) fn port_command(
        &mut self,
        opcode: Opcode,
        input: &[u8],
        out: &mut Output,
    ) -> Result<(), CmdStatus> {
        match opcode {
            Opcode::MAD_IFC => mad(input, out),
            Opcode::QUERY_HCA_VPORT_CONTEXT => {
                let context = self.hca_vport_context();
                out.put(
                    &QueryHcaVportContextOut::new().with(QueryHcaVportContextOut::HCA_VPORT_CONTEXT, context),
                )
            }
            Opcode::QUERY_HCA_VPORT_GID => self.query_gid(input, out),
            Opcode::QUERY_HCA_VPORT_PKEY => query_pkey(input, out),
            Opcode::QUERY_NIC_VPORT_CONTEXT => {
                let context = self.nic_vport_context();
                out.put(
                    &QueryNicVportContextOut::new().with(QueryNicVportContextOut::NIC_VPORT_CONTEXT, context),
                )
            }
            Opcode::MODIFY_NIC_VPORT_CONTEXT => self.modify_nic(input),
            Opcode::QUERY_VPORT_STATE => {
                let up = u32::from(self.link_is_up());
                let output = QueryVportStateOut::new().with(QueryVportStateOut::ADMIN_STATE, 1);
                out.put(&output.with(QueryVportStateOut::STATE, up))
            }
            // The virtual port is as the link is.
            Opcode::MODIFY_VPORT_STATE => Ok(()),
            Opcode::MODIFY_HCA_VPORT_CONTEXT => self.modify_hca_vport(input),
            Opcode::SET_ROCE_ADDRESS => self.set_roce_address(input),
            Opcode::QUERY_ROCE_ADDRESS => self.query_roce_address(input, out),
            Opcode::ALLOC_Q_COUNTER => {
                let number = self.commands.port.counters.alloc(caps::Q_COUNTERS.ilog2())?;
                // What was counted when it was another's.
                self.counters_of(number, true);
                out.put(&AllocQCounterOut::new().with(AllocQCounterOut::COUNTER_SET_ID, number))
            }
            Opcode::DEALLOC_Q_COUNTER => {
                let command: DeallocQCounterIn = parse(input)?;
                self.commands.port.counters.free(command.get(DeallocQCounterIn::COUNTER_SET_ID))
            }
            Opcode::QUERY_Q_COUNTER => {
                let command: QueryQCounterIn = parse(input)?;
                let number = command.get(QueryQCounterIn::COUNTER_SET_ID);
                if !self.commands.port.counters.contains(number) {
                    return Err(CmdStatus::BadRes);
                }
                out.put(&self.counters_of(number, command.get(QueryQCounterIn::CLEAR)))
            }
            Opcode::QUERY_VPORT_COUNTER => {
                let lost = self.directory.switch().lost(self.options.number);
                out.put(&self.ethernet.seen.report(lost))
            }
            _ => Err(CmdStatus::BadOp),
        }
    }

    /// What a set has counted, of queue pairs and of Ethernet queues. `again`: it begins anew.
    fn counters_of(&mut self, set: u32, again: bool) -> QueryQCounterOut {
        let (told, asked) = self.objects.counters_of(set, again);
        self.commands.charge(self.objects.qps.len() + ASKED_COST * asked);
        let seen = &mut self.ethernet.seen.out_of_buffer;
        let lost = if again { seen.remove(&set) } else { seen.get(&set).copied() }.unwrap_or_default();
        let also = told.get(QueryQCounterOut::OUT_OF_BUFFER);
        told.with(QueryQCounterOut::OUT_OF_BUFFER, also.wrapping_add(lost))
    }

    /// The function is started: its addresses are known to the others.
    pub(super) fn open_port(&mut self) {
        let (gid, lid, number) = (self.port_gid(), self.lid(), self.options.number);
        if self.options.port == PortKind::Roce {
            let mac = self.mac();
            self.directory.switch().open(number, mac);
        }
        let mut directory = self.directory.lock();
        if self.options.port == PortKind::InfiniBand {
            // They come from the function's number, so that no other InfiniBand port has them.
            let has = directory.add_gid(gid, number) & directory.add_lid(lid, number);
            directory.set_address(number, 0, gid);
            if !has {
                tracing::warn!("function {number}: another function has taken its GID {gid} or LID {lid}");
            }
        }
    }

    /// The function is stopped: its addresses are known no more.
    pub(super) fn close_port(&mut self) {
        self.directory.lock().remove_function(self.options.number);
        self.directory.switch().close(self.options.number);
        self.commands.port = Port::default();
        self.ethernet = Ethernet::default();
    }

    /// The LID of an InfiniBand port.
    pub(crate) fn lid(&self) -> Lid {
        match self.options.port {
            PortKind::InfiniBand => Lid::new(self.options.number.saturating_add(1)),
            PortKind::Roce => Lid::new(0),
        }
    }

    /// A GID of the port's table, if there is one at this index.
    pub(crate) fn gid(&self, index: u32) -> Option<Gid> {
        let gid = match self.options.port {
            PortKind::InfiniBand => (index == 0).then(|| self.port_gid())?,
            PortKind::Roce => {
                Gid(self.commands.port.roce.get(index as usize)?.get(RoceAddr::SOURCE_L3_ADDRESS))
            }
        };
        Some(gid).filter(|gid| *gid != Gid::default())
    }

    /// A GUID of the function, or (0) of the adapter: from the adapter's address, and so another one on each.
    fn guid(&self, of: u16) -> u64 {
        guid_of(self.directory.lock().own(), of)
    }

    fn port_guid(&self) -> u64 {
        self.guid(self.options.number.saturating_add(1))
    }

    /// The GID that an InfiniBand port has by itself.
    fn port_gid(&self) -> Gid {
        let mut gid = [0; 16];
        gid[..2].copy_from_slice(&[0xfe, 0x80]);
        gid[8..].copy_from_slice(&self.port_guid().to_be_bytes());
        Gid(gid)
    }

    /// The Ethernet address that the function has by itself, or that was fixed.
    pub(crate) fn mac(&self) -> [u8; 6] {
        self.options.fixed.mac.unwrap_or_else(|| mac_of(self.port_guid()))
    }

    fn hca_vport_context(&self) -> HcaVportContext {
        let (state, physical) =
            if self.link_is_up() { (PortState::Active, LINK_UP) } else { (PortState::Down, DISABLED) };
        let lid = u32::from(self.lid().raw());
        HcaVportContext::new()
            .with(HcaVportContext::PORT_PHYSICAL_STATE, physical)
            .with(HcaVportContext::VPORT_STATE_POLICY, 2)
            .with(HcaVportContext::PORT_STATE, state.code())
            .with(HcaVportContext::VPORT_STATE, state.code())
            .with(HcaVportContext::SYSTEM_IMAGE_GUID, self.guid(0))
            .with(HcaVportContext::PORT_GUID, self.port_guid())
            .with(HcaVportContext::NODE_GUID, self.port_guid())
            .with(HcaVportContext::CAP_MASK1, self.commands.port.cap_mask.unwrap_or(CAP_MASK))
            .with(HcaVportContext::CAP_MASK1_FIELD_SELECT, CAP_MASK_PERMITTED)
            // There is no subnet manager, so there is no identifier of one.
            .with(HcaVportContext::LID, lid)
            .with(HcaVportContext::SUBNET_TIMEOUT, 18)
    }

    /// The driver says which agents it has. All else of the port is not its driver's to change.
    fn modify_hca_vport(&mut self, input: &[u8]) -> Result<(), CmdStatus> {
        let command: ModifyHcaVportContextIn = parse(input)?;
        let requested = command.get(ModifyHcaVportContextIn::HCA_VPORT_CONTEXT);
        let select = requested.get(HcaVportContext::CAP_MASK1_FIELD_SELECT);
        let others = requested.get(HcaVportContext::FIELD_SELECT)
            | requested.get(HcaVportContext::CAP_MASK2_FIELD_SELECT);
        let foreign = command.get(ModifyHcaVportContextIn::OTHER_VPORT);
        if foreign || others != 0 || select & !CAP_MASK_PERMITTED != 0 {
            return Err(CmdStatus::BadParam);
        }
        let mask = self.commands.port.cap_mask.get_or_insert(CAP_MASK);
        *mask = *mask & !select | requested.get(HcaVportContext::CAP_MASK1) & select;
        Ok(())
    }

    fn query_gid(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let index = parse::<QueryHcaVportGidIn>(input)?.get(QueryHcaVportGidIn::GID_INDEX);
        let gid = |index| self.gid(index).unwrap_or_default().0;
        let at = QueryHcaVportGidOut::SIZE;
        let count = match index {
            ALL => {
                for index in 0..GIDS {
                    out.put_at(at + 16 * index as usize, &gid(index))?;
                }
                GIDS
            }
            0..GIDS => {
                out.put_at(at, &gid(index))?;
                1
            }
            _ => return Err(CmdStatus::BadParam),
        };
        out.put(&QueryHcaVportGidOut::new().with(QueryHcaVportGidOut::GIDS_NUM, count))
    }

    fn nic_vport_context(&self) -> NicVportContext {
        let mut context = self.commands.port.nic.unwrap_or_else(|| {
            let mut mac = NicVportContext::new().get(NicVportContext::PERMANENT_ADDRESS);
            mac.set_mac(self.mac());
            NicVportContext::new()
                .with(NicVportContext::MTU, 1500)
                .with(NicVportContext::PERMANENT_ADDRESS, mac)
        });
        context
            .set(NicVportContext::SYSTEM_IMAGE_GUID, self.guid(0))
            .set(NicVportContext::PORT_GUID, self.port_guid())
            .set(NicVportContext::NODE_GUID, self.port_guid())
            .set(NicVportContext::ALLOWED_LIST_SIZE, 0);
        context
    }

    /// Whether the port keeps its own frames from coming back to it: those for one, and those for several.
    pub(crate) fn keeps_own(&self) -> [bool; 2] {
        let context = self.nic_vport_context();
        [NicVportContext::DISABLE_UC_LOCAL_LB, NicVportContext::DISABLE_MC_LOCAL_LB]
            .map(|bit| context.get(bit))
    }

    fn modify_nic(&mut self, input: &[u8]) -> Result<(), CmdStatus> {
        let command: ModifyNicVportContextIn = parse(input)?;
        let select = command.get(ModifyNicVportContextIn::FIELD_SELECT);
        let requested = command.get(ModifyNicVportContextIn::NIC_VPORT_CONTEXT);
        let mut context = self.nic_vport_context();
        let wished = requested.get(NicVportContext::PERMANENT_ADDRESS).mac();
        if select.get(NicVportFieldSelect::PERMANENT_ADDRESS) && !self.may_have_mac(wished) {
            return Err(CmdStatus::BadParam);
        }
        // The last that may be refused.
        if select.get(NicVportFieldSelect::ADDRESSES_LIST) {
            self.list_addresses(&requested, &input[ModifyNicVportContextIn::SIZE..])?;
        }
        if select.get(NicVportFieldSelect::ROCE_EN) {
            context.set(NicVportContext::ROCE_EN, requested.get(NicVportContext::ROCE_EN));
        }
        if select.get(NicVportFieldSelect::MTU) {
            let largest = requested.get(NicVportContext::MTU);
            context.set(NicVportContext::MTU, largest);
            self.directory.switch().set_largest(self.options.number, largest as usize);
        }
        if select.get(NicVportFieldSelect::PERMANENT_ADDRESS) {
            context
                .set(NicVportContext::PERMANENT_ADDRESS, requested.get(NicVportContext::PERMANENT_ADDRESS));
        }
        if select.get(NicVportFieldSelect::DISABLE_UC_LOCAL_LB) {
            context.set(
                NicVportContext::DISABLE_UC_LOCAL_LB,
                requested.get(NicVportContext::DISABLE_UC_LOCAL_LB),
            );
        }
        if select.get(NicVportFieldSelect::DISABLE_MC_LOCAL_LB) {
            context.set(
                NicVportContext::DISABLE_MC_LOCAL_LB,
                requested.get(NicVportContext::DISABLE_MC_LOCAL_LB),
            );
        }
        if select.get(NicVportFieldSelect::PROMISC) {
            let all =
                requested.get(NicVportContext::PROMISC_MC) || requested.get(NicVportContext::PROMISC_ALL);
            self.directory.switch().hear_all_groups(self.options.number, all);
        }
        self.commands.port.nic = Some(context);
        self.tell_loops();
        Ok(())
    }

    /// Whether the function may have this Ethernet address: any, unless one was fixed. Where it may not, that is logged.
    fn may_have_mac(&self, mac: [u8; 6]) -> bool {
        let may = self.options.fixed.mac.is_none_or(|fixed| fixed == mac);
        if !may {
            let number = self.options.number;
            tracing::warn!(
                "function {number}: its driver asks for an Ethernet address other than the fixed one"
            );
        }
        may
    }

    /// Which frames the port hears, by their destination.
    fn list_addresses(&self, requested: &NicVportContext, list: &[u8]) -> Result<(), CmdStatus> {
        let count = requested.get(NicVportContext::ALLOWED_LIST_SIZE) as usize;
        if count > 1 << caps::LOG_MACS {
            return Err(CmdStatus::LimErr);
        }
        let (list, _) = list.as_chunks::<{ MacAddress::SIZE }>();
        let macs = || -> Result<_, CmdStatus> {
            let list = list.get(..count).ok_or(CmdStatus::BadInpLen)?;
            Ok(list.iter().map(|bytes| MacAddress::from_array(*bytes).mac()).collect())
        };
        match AllowedListType::from_code(requested.get(NicVportContext::ALLOWED_LIST_TYPE)) {
            Some(AllowedListType::CurrentUcMacAddress) => {
                let macs: Vec<[u8; 6]> = macs()?;
                if !macs.iter().all(|mac| self.may_have_mac(*mac)) {
                    return Err(CmdStatus::BadParam);
                }
                self.directory.switch().ask_for(self.options.number, macs);
            }
            Some(AllowedListType::CurrentMcMacAddress) => {
                self.directory.switch().hear_groups(self.options.number, macs()?);
            }
            // Of VLANs, which nothing is led by.
            _ => {}
        }
        Ok(())
    }

    fn set_roce_address(&mut self, input: &[u8]) -> Result<(), CmdStatus> {
        let command: SetRoceAddressIn = parse(input)?;
        let index = command.get(SetRoceAddressIn::ROCE_ADDRESS_INDEX);
        if self.options.port != PortKind::Roce || index >= ROCE_ADDRESSES {
            return Err(CmdStatus::BadParam);
        }
        let gid = |a: &RoceAddr| Gid(a.get(RoceAddr::SOURCE_L3_ADDRESS));
        let address = command.get(SetRoceAddressIn::ROCE_ADDRESS);
        if !self.options.fixed.allows(gid(&address), self.mac()) {
            tracing::warn!(
                "function {}: its driver asks for the GID {}, which is none of those that were fixed; name it with ip=",
                self.options.number,
                gid(&address)
            );
            return Err(CmdStatus::BadParam);
        }
        if gid(&address) != Gid::default() && !self.may_have_mac(address.mac()) {
            return Err(CmdStatus::BadParam);
        }
        let mut directory = self.directory.lock();
        if !directory.add_gid(gid(&address), self.options.number) {
            tracing::warn!(
                "function {}: its driver asks for the GID {}, which another function has; give each another address",
                self.options.number,
                gid(&address)
            );
            return Err(CmdStatus::BadRes);
        }
        directory.set_address(self.options.number, index, gid(&address));
        let table = &mut self.commands.port.roce;
        table.resize(ROCE_ADDRESSES as usize, RoceAddr::new());
        let old = std::mem::replace(&mut table[index as usize], address);
        let still = table.iter().any(|a| gid(a) == gid(&old));
        if !still {
            directory.remove_gid(gid(&old), self.options.number);
        }
        Ok(())
    }

    fn query_roce_address(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let index = parse::<QueryRoceAddressIn>(input)?.get(QueryRoceAddressIn::ROCE_ADDRESS_INDEX);
        if self.options.port != PortKind::Roce || index >= ROCE_ADDRESSES {
            return Err(CmdStatus::BadParam);
        }
        let address = self.commands.port.roce.get(index as usize).copied().unwrap_or_default();
        out.put(&QueryRoceAddressOut::new().with(QueryRoceAddressOut::ROCE_ADDRESS, address))
    }

    pub(super) fn read_register(&mut self, id: RegisterId, bytes: &mut [u8]) -> Result<(), CmdStatus> {
        match id {
            RegisterId::Ptys => show(&self.speeds(), bytes),
            RegisterId::Pmtu => show(&self.packet_sizes(), bytes),
            RegisterId::Paos => show(&self.link_status(), bytes),
            RegisterId::Pvlc => {
                let lanes = Pvlc::new().with(Pvlc::LOCAL_PORT, 1).with(Pvlc::VL_HW_CAP, 1);
                show(&lanes.with(Pvlc::VL_ADMIN, 1).with(Pvlc::VL_OPERATIONAL, 1), bytes)
            }
            RegisterId::NodeDesc => show(&self.commands.port.node_desc, bytes),
            // Others have nothing to tell.
            _ => {
                bytes.fill(0);
                Ok(())
            }
        }
    }

    pub(super) fn write_register(&mut self, id: RegisterId, bytes: &[u8]) -> Result<(), CmdStatus> {
        match id {
            RegisterId::NodeDesc => self.commands.port.node_desc = parse(bytes)?,
            RegisterId::Paos => self.set_link_status(bytes)?,
            RegisterId::Pmtu => self.set_packet_sizes(bytes)?,
            _ => {}
        }
        Ok(())
    }

    /// One speed, whatever carries the packets: four lanes at 25 Gbit/s.
    fn speeds(&self) -> Ptys {
        const FOUR_LANES: u32 = 1 << 2;
        const EDR: u32 = 1 << 5;
        const CR4_100G: u32 = 1 << 20;
        let speeds = Ptys::new().with(Ptys::LOCAL_PORT, 1);
        let now = |speed| if self.link_is_up() { speed } else { 0 };
        match self.options.port {
            PortKind::InfiniBand => speeds
                .with(Ptys::PROTO_MASK, Ptys::IB)
                .with(Ptys::IB_LINK_WIDTH_CAPABILITY, FOUR_LANES | 1)
                .with(Ptys::IB_LINK_WIDTH_ADMIN, FOUR_LANES | 1)
                .with(Ptys::IB_LINK_WIDTH_OPER, now(FOUR_LANES))
                .with(Ptys::IB_PROTO_CAPABILITY, EDR | 1)
                .with(Ptys::IB_PROTO_ADMIN, EDR | 1)
                .with(Ptys::IB_PROTO_OPER, now(EDR)),
            PortKind::Roce => speeds
                .with(Ptys::PROTO_MASK, Ptys::EN)
                .with(Ptys::ETH_PROTO_CAPABILITY, CR4_100G)
                .with(Ptys::ETH_PROTO_ADMIN, CR4_100G)
                .with(Ptys::ETH_PROTO_OPER, now(CR4_100G)),
        }
    }
}

/// A GUID of a function of the adapter with this address, or (0) of the adapter.
pub(crate) fn guid_of(own: Gid, function: u16) -> u64 {
    let hash = own.0.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    // Locally administered, as no maker's number is in it.
    0x02 << 56 | (hash >> 8 & 0xff_ffff_ffff) << 16 | u64::from(function)
}

/// The Ethernet address that goes with a GUID.
pub(crate) fn mac_of(guid: u64) -> [u8; 6] {
    let [_, a, b, c, d, _, e, f] = guid.to_be_bytes();
    [2, a ^ b, c, d, e, f]
}

/// Puts a register into the place that the driver gave for it.
fn show<L: Layout>(register: &L, bytes: &mut [u8]) -> Result<(), CmdStatus> {
    let place = bytes.get_mut(..L::SIZE).ok_or(CmdStatus::BadInpLen)?;
    place.copy_from_slice(register.as_bytes());
    Ok(())
}

fn query_pkey(input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
    let index = parse::<QueryHcaVportPkeyIn>(input)?.get(QueryHcaVportPkeyIn::PKEY_INDEX);
    let default = VportPkey::new().with(VportPkey::PKEY, DEFAULT_PKEY);
    let at = QueryHcaVportPkeyOut::SIZE;
    match index {
        0 | ALL => out.put_at(at, default.as_bytes()),
        1..PKEYS => out.put_at(at, VportPkey::new().as_bytes()),
        _ => Err(CmdStatus::BadParam),
    }
}

/// Answers a management datagram as an agent does that has nothing to say: its header comes back as a response.
fn mad(input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
    const HEADER: usize = 24;
    const METHOD: usize = 3;
    const RESPONSE: u8 = 0x80;
    let request = parse::<MadIfcIn>(input)?.get(MadIfcIn::MAD);
    let mut response = [0; 256];
    response[..HEADER].copy_from_slice(&request[..HEADER]);
    response[METHOD] |= RESPONSE;
    out.put(&MadIfcOut::new().with(MadIfcOut::RESPONSE_MAD_PACKET, response))
}
