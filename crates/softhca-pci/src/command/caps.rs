//! Capabilities: those that the function offers, and those that its driver enables.
//!
//! The function offers the features that drivers need and the model implements, and no others, so that no driver asks
//! for a missing one. Work requests that change the pages of keys are not offered (`UMR_MODIFY_ENTITY_SIZE_DISABLED`):
//! commands create keys.

use hca_prm::caps::{AtomicCaps, EthOffloadCap, FlowTableNicCap, FlowTableProp, HcaCap, PortType, RoceCap};
use hca_prm::command::hca::{HcaCapType, QueryHcaCapIn, QueryHcaCapOut, SetHcaCapIn};
use hca_prm::{CmdStatus, Kind, Layout};

use super::resource::{LOG_PDS, LOG_TRANSPORT_DOMAINS, LOG_XRCDS};
use super::{Output, parse};
use crate::eq::{MAX_EQS, MAX_LOG_EQ_SIZE};
use crate::eth::flow::MAX_FLOWS;
use crate::function::{Function, PortKind};
use crate::port;

/// As powers of two, what a function has at most; those who make the objects hold to it.
pub(crate) const LOG_QPS: u32 = 12;
pub(crate) const LOG_QP_SIZE: u32 = 14;
/// Bytes of the longest receive request.
pub(crate) const RECV_WQE: u32 = 512;
pub(crate) const LOG_CQS: u32 = 12;
pub(crate) const LOG_CQ_SIZE: u32 = 16;
pub(crate) const LOG_SRQS: u32 = 10;
pub(crate) const LOG_SRQ_SIZE: u32 = 14;
pub(crate) const LOG_MKEYS: u32 = 16;
/// READs and atomics under way on a queue pair, in each direction.
pub(crate) const LOG_READS: u32 = 4;
/// Sets of counters.
pub(crate) const Q_COUNTERS: u32 = 64;
/// As powers of two: Ethernet objects of each kind, and flow counters; receive queues in a list; entries of a queue;
/// bytes of an entry of a receive queue; bytes of a packet that is cut; addresses of a port.
pub(crate) const LOG_ETHERNET: u32 = 10;
pub(crate) const LOG_RQT_SIZE: u32 = 10;
pub(crate) const LOG_WQ_SIZE: u32 = 14;
pub(crate) const LOG_RQ_STRIDES: core::ops::RangeInclusive<u32> = 4..=9;
pub(crate) const LOG_LSO: u32 = 18;
pub(crate) const LOG_MACS: u32 = 7;
/// Ticks of the clock a millisecond: it counts nanoseconds.
const CLOCK_KHZ: u32 = 1_000_000;
/// The port of RoCEv2.
const ROCE_UDP_PORT: u32 = 4791;

/// What the driver chose.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    general: Option<HcaCap>,
    atomic: Option<AtomicCaps>,
}

/// Whether a queue may ask for this clock. There is one, which runs freely, and no default is offered beside it.
pub(crate) fn check_clock(format: u32) -> Result<(), CmdStatus> {
    if format == 0 { Ok(()) } else { Err(CmdStatus::BadParam) }
}

/// `requested`, as far as it is offered.
fn within<L: Layout>(requested: &L, offered: &L) -> L {
    let mut chosen = *offered;
    for field in L::FIELDS.iter().filter(|field| field.kind == Kind::Bits) {
        if field.number(requested.as_bytes()) < field.number(offered.as_bytes()) {
            field.copy(requested.as_bytes(), chosen.as_bytes_mut());
        }
    }
    chosen
}

impl Function {
    pub(crate) fn query_hca_cap(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let command: QueryHcaCapIn = parse(input)?;
        if command.get(QueryHcaCapIn::OTHER_FUNCTION) {
            return Err(CmdStatus::BadParam);
        }
        let (kind, current) =
            HcaCapType::from_op_mod(command.get(QueryHcaCapIn::OP_MOD)).ok_or(CmdStatus::BadParam)?;
        let roce = self.options.port == PortKind::Roce;
        let chosen = &self.commands.caps;
        let general = || offered_general(self.options.port);
        let mut output = QueryHcaCapOut::new();
        let place = &mut output.as_bytes_mut()[QueryHcaCapOut::CAPABILITY.offset()..];
        let mut put = |bytes: &[u8]| place[..bytes.len()].copy_from_slice(bytes);
        match kind {
            HcaCapType::GeneralDevice if current => {
                put(chosen.general.unwrap_or_else(general).as_bytes());
            }
            HcaCapType::GeneralDevice => put(general().as_bytes()),
            HcaCapType::Atomic if current => put(chosen.atomic.unwrap_or_else(unset_atomic).as_bytes()),
            HcaCapType::Atomic => put(offered_atomic().as_bytes()),
            HcaCapType::EthernetOffload if roce => put(offered_ethernet().as_bytes()),
            HcaCapType::Roce if roce => put(offered_roce().as_bytes()),
            HcaCapType::NicFlowTable if roce => put(offered_flows().as_bytes()),
            // Of these the function has none.
            _ => {}
        }
        out.put(&output)
    }

    pub(crate) fn set_hca_cap(&mut self, input: &[u8]) -> Result<(), CmdStatus> {
        let command: SetHcaCapIn = parse(input)?;
        let (kind, _) =
            HcaCapType::from_op_mod(command.get(SetHcaCapIn::OP_MOD)).ok_or(CmdStatus::BadParam)?;
        if command.get(SetHcaCapIn::OTHER_FUNCTION) {
            return Err(CmdStatus::BadParam);
        }
        let requested = &input[SetHcaCapIn::CAPABILITY.offset()..];
        match kind {
            HcaCapType::GeneralDevice => {
                let requested: HcaCap = parse(requested)?;
                let mut chosen = within(&requested, &offered_general(self.options.port));
                // The driver's to choose, whatever is offered.
                chosen.set(HcaCap::LOG_UAR_PAGE_SZ, requested.get(HcaCap::LOG_UAR_PAGE_SZ));
                self.commands.caps.general = Some(chosen);
            }
            HcaCapType::Atomic => {
                // The only choice that there is; Linux leaves the other fields empty.
                let mode = parse::<AtomicCaps>(requested)?.get(AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE);
                let chosen = unset_atomic().with(AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE, mode.min(1));
                self.commands.caps.atomic = Some(chosen);
            }
            _ => {}
        }
        Ok(())
    }
}

fn offered_general(port: PortKind) -> HcaCap {
    let mut cap = HcaCap::new();
    cap.set(HcaCap::LOG_MAX_QP, LOG_QPS)
        .set(HcaCap::LOG_MAX_QP_SZ, LOG_QP_SIZE)
        .set(HcaCap::LOG_MAX_CQ, LOG_CQS)
        .set(HcaCap::LOG_MAX_CQ_SZ, LOG_CQ_SIZE)
        .set(HcaCap::LOG_MAX_SRQ, LOG_SRQS)
        .set(HcaCap::LOG_MAX_SRQ_SZ, LOG_SRQ_SIZE)
        .set(HcaCap::LOG_MAX_RMP, LOG_SRQS)
        .set(HcaCap::LOG_MAX_EQ, MAX_EQS.ilog2())
        .set(HcaCap::LOG_MAX_EQ_SZ, MAX_LOG_EQ_SIZE)
        .set(HcaCap::LOG_MAX_MKEY, LOG_MKEYS)
        .set(HcaCap::LOG_MAX_PD, LOG_PDS)
        .set(HcaCap::LOG_MAX_XRCD, LOG_XRCDS)
        .set(HcaCap::LOG_MAX_TRANSPORT_DOMAIN, LOG_TRANSPORT_DOMAINS)
        .set(HcaCap::MAX_QP_CNT, Q_COUNTERS)
        .set(HcaCap::LOG_MAX_RA_REQ_QP, LOG_READS)
        .set(HcaCap::LOG_MAX_RA_RES_QP, LOG_READS)
        .set(HcaCap::LOG_MAX_MSG, 30)
        .set(HcaCap::LOG_MAX_MRW_SZ, 40)
        .set(HcaCap::LOG_PG_SZ, 12)
        .set(HcaCap::MAX_WQE_SZ_SQ, 512)
        .set(HcaCap::MAX_WQE_SZ_RQ, RECV_WQE);
    cap.set(HcaCap::RC, true)
        .set(HcaCap::UC, true)
        .set(HcaCap::UD, true)
        .set(HcaCap::XRC, true)
        .set(HcaCap::ATOMIC, true)
        .set(HcaCap::CQ_MODERATION, true)
        .set(HcaCap::CQE_VERSION, 1)
        .set(HcaCap::UMR_MODIFY_ENTITY_SIZE_DISABLED, true)
        .set(HcaCap::UMR_INDIRECT_MKEY_DISABLED, true)
        .set(HcaCap::DRIVER_VERSION, true)
        .set(HcaCap::BF, true)
        .set(HcaCap::LOG_BF_REG_SIZE, 9)
        .set(HcaCap::UAR_SZ, crate::bus::registers::BAR_BYTES.ilog2() - 20)
        .set(HcaCap::LOCAL_CA_ACK_DELAY, 16)
        .set(HcaCap::VPORT_COUNTERS, true)
        .set(HcaCap::NUM_PORTS, 1)
        .set(HcaCap::DEVICE_FREQUENCY_KHZ, CLOCK_KHZ)
        .set(HcaCap::DEVICE_FREQUENCY_MHZ, CLOCK_KHZ / 1000);
    match port {
        PortKind::InfiniBand => cap.set(HcaCap::PORT_TYPE, PortType::Ib.code()).set(HcaCap::IB_VIRT, true),
        PortKind::Roce => general_of_roce(&mut cap),
    };
    cap
}

fn general_of_roce(cap: &mut HcaCap) -> &mut HcaCap {
    cap.set(HcaCap::PORT_TYPE, PortType::Eth.code())
        .set(HcaCap::ETH_VIRT, true)
        .set(HcaCap::ROCE, true)
        .set(HcaCap::ETH_NET_OFFLOADS, true)
        .set(HcaCap::NIC_FLOW_TABLE, true)
        .set(HcaCap::MAX_WQE_SZ_SQ, 1024)
        .set(HcaCap::LOG_MAX_RQ, LOG_ETHERNET)
        .set(HcaCap::LOG_MAX_SQ, LOG_ETHERNET)
        .set(HcaCap::LOG_MAX_TIR, LOG_ETHERNET)
        .set(HcaCap::LOG_MAX_TIS, LOG_ETHERNET)
        .set(HcaCap::LOG_MAX_RQT, LOG_ETHERNET)
        .set(HcaCap::LOG_MAX_RQT_SIZE, LOG_RQT_SIZE)
        .set(HcaCap::LOG_MAX_TIS_PER_SQ, 1)
        .set(HcaCap::LOG_MAX_WQ_SZ, LOG_WQ_SIZE)
        .set(HcaCap::LOG_MAX_STRIDE_SZ_RQ, *LOG_RQ_STRIDES.end())
        .set(HcaCap::LOG_MIN_STRIDE_SZ_RQ, *LOG_RQ_STRIDES.start())
        .set(HcaCap::LOG_MAX_STRIDE_SZ_SQ, 6)
        .set(HcaCap::LOG_MIN_STRIDE_SZ_SQ, 6)
        .set(HcaCap::LOG_MAX_CURRENT_UC_LIST, LOG_MACS)
        .set(HcaCap::LOG_MAX_CURRENT_MC_LIST, 7)
        .set(HcaCap::LOG_MAX_VLAN_LIST, 7)
}

fn offered_atomic() -> AtomicCaps {
    AtomicCaps::new()
        .with(AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE, 1)
        .with(AtomicCaps::SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1, true)
        .with(AtomicCaps::ATOMIC_OPERATIONS, AtomicCaps::COMPARE_SWAP | AtomicCaps::FETCH_ADD)
        // Operands of 8 bytes, as a bit for each power of two.
        .with(AtomicCaps::ATOMIC_SIZE_QP, 1 << 3)
}

/// Answers come in the host's order even if the driver does not say so; but it has to say so to be told.
fn unset_atomic() -> AtomicCaps {
    offered_atomic().with(AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE, 0)
}

fn offered_roce() -> RoceCap {
    RoceCap::new()
        .with(RoceCap::L3_TYPE, RoceCap::L3_IPV4 | RoceCap::L3_IPV6)
        .with(RoceCap::ROCE_VERSION, 1 << 2)
        .with(RoceCap::R_ROCE_DEST_UDP_PORT, ROCE_UDP_PORT)
        .with(RoceCap::R_ROCE_MIN_SRC_UDP_PORT, 0xc000)
        .with(RoceCap::R_ROCE_MAX_SRC_UDP_PORT, 0xffff)
        .with(RoceCap::ROCE_ADDRESS_TABLE_SIZE, port::ROCE_ADDRESSES)
}

fn offered_ethernet() -> EthOffloadCap {
    EthOffloadCap::new()
        .with(EthOffloadCap::SELF_LB_EN_MODIFIABLE, true)
        .with(EthOffloadCap::CSUM_CAP, true)
        .with(EthOffloadCap::VLAN_CAP, true)
        .with(EthOffloadCap::MAX_LSO_CAP, LOG_LSO)
        .with(EthOffloadCap::RSS_IND_TBL_CAP, LOG_RQT_SIZE)
}

fn offered_flows() -> FlowTableNicCap {
    let tables = FlowTableProp::new()
        .with(FlowTableProp::FT_SUPPORT, true)
        .with(FlowTableProp::FLOW_MODIFY_EN, true)
        .with(FlowTableProp::MODIFY_ROOT, true)
        .with(FlowTableProp::IDENTIFIED_MISS_TABLE_MODE, true)
        .with(FlowTableProp::FLOW_TABLE_MODIFY, true)
        .with(FlowTableProp::LOG_MAX_FT_SIZE, 16)
        .with(FlowTableProp::MAX_FT_LEVEL, 64)
        .with(FlowTableProp::LOG_MAX_FT_NUM, LOG_ETHERNET)
        .with(FlowTableProp::LOG_MAX_DESTINATION, 6)
        .with(FlowTableProp::LOG_MAX_FLOW, MAX_FLOWS.ilog2())
        .with(FlowTableProp::FT_FIELD_SUPPORT, [0xff; 16])
        .with(FlowTableProp::FT_FIELD_BITMASK_SUPPORT, [0xff; 16]);
    FlowTableNicCap::new().with(FlowTableNicCap::FLOW_TABLE_PROPERTIES_NIC_RECEIVE, tables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_chooses_within_what_is_offered() {
        let offered = offered_general(PortKind::InfiniBand);
        let requested =
            offered.with(HcaCap::LOG_MAX_QP, 5).with(HcaCap::LOG_MAX_CQ, 24).with(HcaCap::DCT, true);
        let chosen = within(&requested, &offered);
        assert_eq!((chosen.get(HcaCap::LOG_MAX_QP), chosen.get(HcaCap::LOG_MAX_CQ)), (5, LOG_CQS));
        assert!(!chosen.get(HcaCap::DCT) && chosen.get(HcaCap::RC));
    }
}
