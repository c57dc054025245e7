//! Creating the adapter's Ethernet objects, command by command.

use hca_core::wire::NdpMessage;
use hca_core::wire::ether_type;
use hca_core::wire::neighbour::{ALL_NODES, BROADCAST, Mac, Station, solicited_node};
use hca_prm::command::cq::{CreateCqIn, CreateCqOut, DestroyCqIn};
use hca_prm::command::ethernet::*;
use hca_prm::command::mkey::DestroyMkeyIn;
use hca_prm::command::resource::{
    AllocPdIn, AllocPdOut, AllocTransportDomainIn, AllocTransportDomainOut, DeallocPdIn,
    DeallocTransportDomainIn,
};
use hca_prm::command::vport::AllowedListType;
use hca_prm::{Command, Cqc, Rqc, Sqc, Wq, WqType};
use hca_vfio::DmaError;

use super::Means;
use super::queues::{CELLS, LOG_CQ, LOG_RECVS, LOG_SEND_BLOCKS, Numbers, Parts, Queues};
use crate::cmd::{CmdError, CommandQueue};
use crate::cqe;
use crate::error::OpenError;
use crate::mr;
use crate::port::{Port, list_addresses, no_addresses};
use crate::queue::QueueMemory;
use crate::shared::SharedCells;
use crate::uar::Uar;

/// The state of a queue that works.
const READY: u32 = 1;
/// Bytes of a send queue's block and of a receive queue's entry, as powers of two.
const LOG_BLOCK: u32 = 6;
const LOG_ENTRY: u32 = 4;
/// What a flow does: it leads somewhere.
const FORWARD: u32 = 4;
/// The part of a flow's criteria that holds: the outer headers.
const OUTER: u32 = 1;
/// The protocol of options in front of all others. Adapters may tell it or what follows the options.
const HOP_BY_HOP: u8 = 0;
/// Bytes of a buffer: more than the longest frame of these adapters, whatever the port is set to.
const FRAME_ROOM: usize = 10 << 10;

/// An error of making the queues.
pub(super) enum Failed {
    Memory(DmaError),
    Command(CmdError),
}

impl From<DmaError> for Failed {
    fn from(e: DmaError) -> Self {
        Self::Memory(e)
    }
}
impl From<CmdError> for Failed {
    fn from(e: CmdError) -> Self {
        Self::Command(e)
    }
}

impl Failed {
    pub(super) fn open(self, name: &str) -> OpenError {
        match self {
            Self::Memory(e) => e.into(),
            Self::Command(source) => OpenError::Command { name: name.to_owned(), source },
        }
    }
}

/// A command that takes something back.
type Undo = Box<dyn Fn(&CommandQueue) -> Result<(), CmdError> + Send + Sync>;

/// What was made: the commands that take it back, in the order in which it was made; and the memory that the adapter
/// reaches until they are given.
#[derive(Default)]
pub(super) struct Made {
    undos: Vec<Undo>,
    memory: Vec<SharedCells>,
}

impl Made {
    fn push<C: Command + Send + Sync>(&mut self, undo: C) {
        self.undos.push(Box::new(move |cmd| cmd.exec(&undo).map(drop)));
    }
    /// Takes all of it back, the last first, also behind what is refused; the first error is told, and the memory given
    /// to nobody else then.
    pub(super) fn take_back(&self, cmd: &CommandQueue) -> Result<(), CmdError> {
        let gone = self.undos.iter().rev().map(|undo| undo(cmd)).fold(Ok(()), Result::and);
        gone.inspect_err(|_| self.leak())
    }
    /// Gives the memory to nobody else while the function is open.
    pub(super) fn leak(&self) {
        self.memory.iter().for_each(SharedCells::leak);
    }
}

/// Makes what `$make` asks for, notes the command that takes it back, and is its number.
macro_rules! make {
    ($cmd:expr, $made:expr, $make:expr, $tail:expr => $out:ident::$number:ident, $undo:ident::$of:ident) => {{
        let number = $cmd.exec_with(&$make, $tail, &mut [])?.get($out::$number);
        $made.push($undo::new().with($undo::$of, number));
        number
    }};
}

/// Makes the queues of a port, and leads frames to them. Returns them, with the number of their completion queue.
pub(super) fn queues(
    means: &Means<'_>,
    port: &Port,
    stations: &[Station],
    made: &mut Made,
) -> Result<(Queues<Uar>, u32), Failed> {
    let cmd = means.cmd;
    let pdn = make!(cmd, made, AllocPdIn::new(), &[] => AllocPdOut::PD, DeallocPdIn::PD);
    let domain = make!(cmd, made, AllocTransportDomainIn::new(), &[] =>
        AllocTransportDomainOut::TRANSPORT_DOMAIN, DeallocTransportDomainIn::TRANSPORT_DOMAIN);
    let uar = means.uars.for_queue();
    let [cq, send, recv] = CELLS.map(|cells| QueueMemory::alloc(means.arena, cells));
    let (cq, send, recv) = (cq?, send?, recv?);

    let frames = means.arena.alloc(FRAME_ROOM << LOG_RECVS, 4096)?;
    let place = frames.iova().0;
    let (key, lkey) = mr::key_of(cmd, pdn, &frames)?;
    made.push(DestroyMkeyIn::new().with(DestroyMkeyIn::MKEY_INDEX, key));
    let frames = SharedCells::of(frames);
    made.memory.extend([&cq.cells, &send.cells, &recv.cells, &frames].map(SharedCells::clone));

    cqe::clear(&cq.cells[..CELLS[0]]);
    let context = Cqc::new()
        .with(Cqc::LOG_CQ_SIZE, LOG_CQ)
        .with(Cqc::UAR_PAGE, uar.index)
        .with(Cqc::C_EQN, means.eqn)
        .with(Cqc::LOG_PAGE_SIZE, cq.log_page_size)
        .with(Cqc::DBR_ADDR, cq.record_iova);
    let create = CreateCqIn::new().with(CreateCqIn::CQ_CONTEXT, context);
    let cqn = make!(cmd, made, create, &cq.pages => CreateCqOut::CQN, DestroyCqIn::CQN);

    let sqn = send_queue(means, made, (pdn, domain, cqn, port.inline_mode), &uar, &send)?;
    let rqn = receive_queue(means, made, (pdn, cqn), &recv)?;

    let parts = Parts {
        cq: cq.cells.part(0, CELLS[0]),
        cq_record: cq.record,
        send: send.cells.part(0, CELLS[1]),
        recv: recv.cells.part(0, CELLS[2]),
        records: [send.record, recv.record],
        frames,
    };
    let queues = Queues::new(parts, uar, Numbers { cqn, sqn, lkey, frames: place });
    start(cmd, sqn, rqn)?;

    let tirc = Tirc::new().with(Tirc::INLINE_RQN, rqn).with(Tirc::TRANSPORT_DOMAIN, domain);
    let create = CreateTirIn::new().with(CreateTirIn::CTX, tirc);
    let tirn = make!(cmd, made, create, &[] => CreateTirOut::TIRN, DestroyTirIn::TIRN);
    let groups = groups(stations);
    flows(cmd, made, tirn, port.mac(), &groups)?;
    let heard: Vec<Mac> = std::iter::once(BROADCAST).chain(groups).collect();
    list_addresses(cmd, AllowedListType::CurrentMcMacAddress, &heard)?;
    made.push(no_addresses(AllowedListType::CurrentMcMacAddress));
    Ok((queues, cqn))
}

fn send_queue(
    means: &Means<'_>,
    made: &mut Made,
    (pdn, domain, cqn, inline_mode): (u32, u32, u32, u32),
    uar: &Uar,
    memory: &QueueMemory,
) -> Result<u32, CmdError> {
    let cmd = means.cmd;
    let create = CreateTisIn::new().with(CreateTisIn::CTX, Tisc::new().with(Tisc::TRANSPORT_DOMAIN, domain));
    let tisn = make!(cmd, made, create, &[] => CreateTisOut::TISN, DestroyTisIn::TISN);
    let wq = ring(pdn, LOG_BLOCK, LOG_SEND_BLOCKS, memory).with(Wq::UAR_PAGE, uar.index);
    let context = Sqc::new()
        .with(Sqc::FLUSH_IN_ERROR_EN, true)
        // Requests carry whole frames.
        .with(Sqc::MIN_WQE_INLINE_MODE, inline_mode)
        .with(Sqc::TS_FORMAT, means.caps.sq_ts_format)
        .with(Sqc::CQN, cqn)
        .with(Sqc::TIS_LST_SZ, 1)
        .with(Sqc::TIS_NUM_0, tisn)
        .with(Sqc::WQ, wq);
    let create = CreateSqIn::new().with(CreateSqIn::CTX, context);
    Ok(make!(cmd, made, create, &memory.pages => CreateSqOut::SQN, DestroySqIn::SQN))
}

fn receive_queue(
    means: &Means<'_>,
    made: &mut Made,
    (pdn, cqn): (u32, u32),
    memory: &QueueMemory,
) -> Result<u32, CmdError> {
    let context = Rqc::new()
        .with(Rqc::VSD, true)
        .with(Rqc::FLUSH_IN_ERROR_EN, true)
        .with(Rqc::TS_FORMAT, means.caps.rq_ts_format)
        .with(Rqc::CQN, cqn)
        .with(Rqc::WQ, ring(pdn, LOG_ENTRY, LOG_RECVS, memory));
    let create = CreateRqIn::new().with(CreateRqIn::CTX, context);
    Ok(make!(means.cmd, made, create, &memory.pages => CreateRqOut::RQN, DestroyRqIn::RQN))
}

fn ring(pdn: u32, log_stride: u32, log_size: u32, memory: &QueueMemory) -> Wq {
    Wq::new()
        .with(Wq::WQ_TYPE, WqType::Cyclic.code())
        .with(Wq::PD, pdn)
        .with(Wq::DBR_ADDR, memory.record_iova)
        .with(Wq::LOG_WQ_STRIDE, log_stride)
        .with(Wq::LOG_WQ_PG_SZ, memory.log_page_size)
        .with(Wq::LOG_WQ_SZ, log_size)
}

/// Has both queues work, which are in reset.
fn start(cmd: &CommandQueue, sqn: u32, rqn: u32) -> Result<(), CmdError> {
    let ready = Sqc::new().with(Sqc::STATE, READY);
    cmd.exec(&ModifySqIn::new().with(ModifySqIn::SQN, sqn).with(ModifySqIn::CTX, ready))?;
    let ready = Rqc::new().with(Rqc::STATE, READY);
    cmd.exec(&ModifyRqIn::new().with(ModifyRqIn::RQN, rqn).with(ModifyRqIn::CTX, ready)).map(drop)
}

/// The groups' MACs in which a port is asked for its IPv6 addresses, each once, and that of what is said to all.
fn groups(stations: &[Station]) -> Vec<Mac> {
    let of =
        |s: &Station| if let std::net::IpAddr::V6(ip) = s.ip { Some(solicited_node(ip).0) } else { None };
    let mut groups: Vec<Mac> = stations.iter().filter_map(of).chain([ALL_NODES.0]).collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

fn set_dmac(headers: &mut FteMatchSetLyr24, [a, b, c, d, e, f]: Mac) {
    headers.set(FteMatchSetLyr24::DMAC_47_16, u32::from_be_bytes([a, b, c, d]));
    headers.set(FteMatchSetLyr24::DMAC_15_0, u16::from_be_bytes([e, f]).into());
}

/// What frames are looked at for: the destination, the type, and the protocol above IP where one is told.
fn headers(dst: Mac, ether_type: u16, protocol: u8) -> FteMatchParam {
    let mut outer = FteMatchSetLyr24::new()
        .with(FteMatchSetLyr24::ETHERTYPE, ether_type.into())
        .with(FteMatchSetLyr24::IP_PROTOCOL, protocol.into());
    set_dmac(&mut outer, dst);
    FteMatchParam::new().with(FteMatchParam::OUTER_HEADERS, outer)
}

/// Leads ARP and ICMPv6 to a transport interface: a table of two groups of flows.
fn flows(cmd: &CommandQueue, made: &mut Made, tirn: u32, mac: Mac, groups: &[Mac]) -> Result<(), CmdError> {
    let nic_rx = FlowTableType::NicRx.code();
    let arp: Vec<_> = [BROADCAST, mac].map(|dst| headers(dst, ether_type::ARP, 0)).to_vec();
    let of_ndp = |dst: &Mac| headers(*dst, ether_type::IPV6, NdpMessage::PROTOCOL);
    let with_options = |dst: &Mac| headers(*dst, ether_type::IPV6, HOP_BY_HOP);
    let ndp = std::iter::once(&mac).chain(groups).map(of_ndp);
    let ndp: Vec<_> = ndp.chain(groups.iter().map(with_options)).collect();

    let log_size = (arp.len() + ndp.len()).next_power_of_two().trailing_zeros();
    let context = FlowTableContext::new().with(FlowTableContext::LOG_SIZE, log_size);
    let create = CreateFlowTableIn::new()
        .with(CreateFlowTableIn::TABLE_TYPE, nic_rx)
        .with(CreateFlowTableIn::FLOW_TABLE_CONTEXT, context);
    let table = cmd.exec(&create)?.get(CreateFlowTableOut::TABLE_ID);
    made.push(
        DestroyFlowTableIn::new()
            .with(DestroyFlowTableIn::TABLE_TYPE, nic_rx)
            .with(DestroyFlowTableIn::TABLE_ID, table),
    );
    let mut first = 0;
    for (mask, flows) in [(headers([0xff; 6], 0xffff, 0), arp), (headers([0xff; 6], 0xffff, 0xff), ndp)] {
        group(cmd, made, table, first, mask, &flows, tirn)?;
        first += flows.len() as u32;
    }
    let root = SetFlowTableRootIn::new()
        .with(SetFlowTableRootIn::TABLE_TYPE, nic_rx)
        .with(SetFlowTableRootIn::TABLE_ID, table);
    // A table that goes is not the first one any more, either.
    cmd.exec(&root).map(drop)
}

/// Makes a group of flows that look at the same fields, from a number on, and the flows in it.
fn group(
    cmd: &CommandQueue,
    made: &mut Made,
    table: u32,
    first: u32,
    mask: FteMatchParam,
    flows: &[FteMatchParam],
    tirn: u32,
) -> Result<(), CmdError> {
    let nic_rx = FlowTableType::NicRx.code();
    let create = CreateFlowGroupIn::new()
        .with(CreateFlowGroupIn::TABLE_TYPE, nic_rx)
        .with(CreateFlowGroupIn::TABLE_ID, table)
        .with(CreateFlowGroupIn::START_FLOW_INDEX, first)
        .with(CreateFlowGroupIn::END_FLOW_INDEX, first + flows.len() as u32 - 1)
        .with(CreateFlowGroupIn::MATCH_CRITERIA_ENABLE, OUTER)
        .with(CreateFlowGroupIn::MATCH_CRITERIA, mask);
    let group = cmd.exec(&create)?.get(CreateFlowGroupOut::GROUP_ID);
    made.push(
        DestroyFlowGroupIn::new()
            .with(DestroyFlowGroupIn::TABLE_TYPE, nic_rx)
            .with(DestroyFlowGroupIn::TABLE_ID, table)
            .with(DestroyFlowGroupIn::GROUP_ID, group),
    );
    let to = DestFormat::new()
        .with(DestFormat::DESTINATION_TYPE, DestinationType::Tir.code())
        .with(DestFormat::DESTINATION_ID, tirn);
    for (index, value) in (first..).zip(flows) {
        let context = FlowContext::new()
            .with(FlowContext::GROUP_ID, group)
            .with(FlowContext::ACTION, FORWARD)
            .with(FlowContext::DESTINATION_LIST_SIZE, 1)
            .with(FlowContext::MATCH_VALUE, *value);
        let set = SetFteIn::new()
            .with(SetFteIn::TABLE_TYPE, nic_rx)
            .with(SetFteIn::TABLE_ID, table)
            .with(SetFteIn::FLOW_INDEX, index)
            .with(SetFteIn::FLOW_CONTEXT, context);
        cmd.exec_with(&set, to.as_bytes(), &mut [])?;
        made.push(
            DeleteFteIn::new()
                .with(DeleteFteIn::TABLE_TYPE, nic_rx)
                .with(DeleteFteIn::TABLE_ID, table)
                .with(DeleteFteIn::FLOW_INDEX, index),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_hears_the_groups_of_its_ipv6_addresses_each_once() {
        let at = |ip: &str| Station { mac: [2, 0, 0, 0, 0, 1], ip: ip.parse().unwrap() };
        let stations = [at("fe80::11:2233"), at("10.0.0.1"), at("2001:db8::11:2233"), at("2001:db8::5")];
        let ff = |a, b, c| [0x33, 0x33, 0xff, a, b, c];
        assert_eq!(groups(&stations), [ALL_NODES.0, ff(0, 0, 5), ff(0x11, 0x22, 0x33)]);
    }

    #[test]
    fn a_flow_names_the_destination_and_the_type() {
        let param = headers([1, 2, 3, 4, 5, 6], 0x86dd, 58);
        let outer = param.get(FteMatchParam::OUTER_HEADERS);
        assert_eq!(
            outer.as_bytes()[..20],
            [0, 0, 0, 0, 0, 0, 0x86, 0xdd, 1, 2, 3, 4, 5, 6, 0, 0, 58, 0, 0, 0]
        );
    }
}
