//! The adapter's capabilities, and those that the driver enables.

use hca_prm::caps::{AtomicCaps, EthOffloadCap, HcaCap, RoceCap};
use hca_prm::command::hca::{HcaCapType, QueryHcaCapIn, QueryHcaCapOut, SetHcaCapIn};
use hca_prm::{CmdStatus, Layout};

use crate::cmd::{CmdError, CommandQueue};
use crate::mr::LOG_MAX_BYTES;

/// `PORT_TYPE` of an Ethernet port.
const PORT_ETHERNET: u32 = 1;
/// `WQE_INLINE_MODE` of an adapter whose port says it.
const PORT_SAYS: u32 = 1;
/// A clock that tells the time of day is all that is offered; 0 is a free-running one, 2 both.
const REAL_TIME_ONLY: u32 = 1;
/// `ATOMIC_REQ_8B_ENDIANNESS_MODE` for operands in the host's byte order.
const HOST_ORDER: u32 = 1;

/// The capabilities that the driver uses, within its own limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caps {
    /// Queue pairs, as a power of two.
    pub(crate) log_max_qp: u32,
    /// WQEBBs of a send queue, and WQEs of a receive queue, as a power of two.
    pub(crate) log_max_qp_sz: u32,
    /// Completion queues, as a power of two.
    pub(crate) log_max_cq: u32,
    /// Entries of a completion queue, as a power of two.
    pub(crate) log_max_cq_sz: u32,
    /// Shared receive queues, as a power of two.
    pub(crate) log_max_srq: u32,
    /// WQEs of a shared receive queue, as a power of two.
    pub(crate) log_max_srq_sz: u32,
    /// Protection domains, as a power of two.
    pub(crate) log_max_pd: u32,
    /// Memory keys, as a power of two.
    pub(crate) log_max_mkey: u32,
    /// Bytes of a memory key's range, as a power of two.
    pub(crate) log_max_mr_bytes: u32,
    /// Entries of an event queue, as a power of two.
    pub(crate) log_max_eq_sz: u32,
    /// Bytes of a message, as a power of two.
    pub(crate) log_max_msg: u32,
    /// READs and atomics outstanding as requester, as a power of two.
    pub(crate) log_max_ra_req_qp: u32,
    /// The same as responder.
    pub(crate) log_max_ra_res_qp: u32,
    /// Bytes of a send WQE.
    pub(crate) max_wqe_sz_sq: u32,
    /// Bytes of a receive WQE.
    pub(crate) max_wqe_sz_rq: u32,
    /// Whether events of completion queues can be held back.
    pub(crate) cq_moderation: bool,
    /// Whether requests may be written to the doorbell page.
    pub(crate) blueflame: bool,
    /// Bytes of a BlueFlame register, of which two buffers take turns, as a power of two.
    pub(crate) log_bf_reg_size: u32,
    /// Whether completions carry the user's index of their queue pair (1) or not (0).
    pub(crate) cqe_version: u32,
    /// Entries of the GID table of a RoCE port.
    pub(crate) roce_addresses: u32,
    /// Whether the embedded switch may follow the link or not.
    pub(crate) uplink_follow: bool,
    /// The function's own port in commands about several: 1, or 0 where functions have no more than one.
    pub(crate) port_number: u32,
    /// Whether the adapter supports RoCEv2.
    pub(crate) roce_v2: bool,
    /// Whether the port is an Ethernet one.
    pub(crate) ethernet: bool,
    /// Whether it offers Ethernet queues, and tables of flows that lead frames to them.
    pub(crate) ethernet_queues: bool,
    /// What the times of Ethernet completions are told to be, which nobody reads, where it has to be told.
    pub(crate) sq_ts_format: u32,
    /// The same of receive queues.
    pub(crate) rq_ts_format: u32,
    /// The same of queue pairs.
    pub(crate) qp_ts_format: u32,
    /// Rates that it can be limited to, a bit for each of its numbers.
    pub(crate) rates: u32,
    /// Ticks in a millisecond of the clock that completions are stamped from, where that runs freely.
    pub(crate) clock_khz: Option<u32>,
    /// Whether the port says how much of the headers Ethernet requests carry in themselves.
    pub(crate) port_says_inline: bool,
    /// Whether it can be kept from hearing its own frames: single ones, and those to groups.
    pub(crate) local_loopback: [bool; 2],
    /// Whether the function manages the switch between physical and virtual functions, and that has a table of MACs.
    pub(crate) mac_table: bool,
    /// Whether atomics are offered, with operands in the host's byte order.
    pub(crate) atomic: bool,
    /// Whether the firmware takes the driver's name.
    pub(crate) driver_version: bool,
    /// Whether the services are offered: RC, UC, UD.
    pub(crate) services: [bool; 3],
    /// How much longer an answer may take, as the exponent of an ACK timeout.
    pub(crate) local_ca_ack_delay: u32,
}

fn query<L: Layout>(cmd: &CommandQueue, kind: HcaCapType, current: bool) -> Result<L, CmdError> {
    let input = QueryHcaCapIn::new().with(QueryHcaCapIn::OP_MOD, kind.op_mod(current));
    let answer = cmd.exec(&input)?.get(QueryHcaCapOut::CAPABILITY);
    let mut caps = L::zeroed();
    caps.as_bytes_mut().copy_from_slice(&answer[..L::SIZE]);
    Ok(caps)
}

fn set<L: Layout>(cmd: &CommandQueue, kind: HcaCapType, caps: &L) -> Result<(), CmdError> {
    let mut all = [0; 4096];
    all[..L::SIZE].copy_from_slice(caps.as_bytes());
    let input =
        SetHcaCapIn::new().with(SetHcaCapIn::OP_MOD, kind.op_mod(false)).with(SetHcaCapIn::CAPABILITY, all);
    cmd.exec(&input).map(drop)
}

impl Caps {
    /// Queries the capabilities, and sets the used ones before the adapter is started.
    pub(crate) fn negotiate(cmd: &CommandQueue) -> Result<Self, CmdError> {
        let general = HcaCapType::GeneralDevice;
        let most: HcaCap = query(cmd, general, false)?;
        let mut used: HcaCap = query(cmd, general, true)?;
        // Doorbell pages of 4 KiB, whatever the page size of this machine.
        used.set(HcaCap::UAR_4K, most.get(HcaCap::UAR_4K));
        used.set(HcaCap::LOG_UAR_PAGE_SZ, 0);
        // Memory does not damage commands; sums over them cost more than they find.
        used.set(HcaCap::CMDIF_CHECKSUM, 0);
        let roce = most.get(HcaCap::ROCE) && most.get(HcaCap::PORT_TYPE) == PORT_ETHERNET;
        used.set(HcaCap::ROCE, roce);
        set(cmd, general, &used)?;
        let atomic = most.get(HcaCap::ATOMIC) && atomics(cmd)?;
        let roce_caps = if roce { self::roce(cmd)? } else { RoceCap::new() };
        let mut caps = Self::of(&used, &roce_caps, atomic);
        caps.port_says_inline = caps.ethernet_queues && port_says_inline(cmd)?;
        Ok(caps)
    }

    fn of(used: &HcaCap, roce: &RoceCap, atomic: bool) -> Self {
        let qp_clocks = if used.get(HcaCap::ROCE) {
            roce.get(RoceCap::QP_TS_FORMAT)
        } else {
            used.get(HcaCap::SQ_TS_FORMAT)
        };
        let runs_freely = qp_clocks != REAL_TIME_ONLY;
        Self {
            log_max_qp: used.get(HcaCap::LOG_MAX_QP).min(24),
            // The counters of work queues have 16 bits, of which one tells full from empty.
            log_max_qp_sz: used.get(HcaCap::LOG_MAX_QP_SZ).min(15),
            log_max_cq: used.get(HcaCap::LOG_MAX_CQ).min(24),
            log_max_cq_sz: used.get(HcaCap::LOG_MAX_CQ_SZ).min(22),
            log_max_srq: used.get(HcaCap::LOG_MAX_SRQ).min(24),
            log_max_srq_sz: used.get(HcaCap::LOG_MAX_SRQ_SZ).min(15),
            log_max_pd: used.get(HcaCap::LOG_MAX_PD).min(24),
            log_max_mkey: used.get(HcaCap::LOG_MAX_MKEY).min(24),
            log_max_mr_bytes: used.get(HcaCap::LOG_MAX_MRW_SZ).clamp(12, LOG_MAX_BYTES),
            log_max_eq_sz: used.get(HcaCap::LOG_MAX_EQ_SZ).min(22),
            log_max_msg: used.get(HcaCap::LOG_MAX_MSG).min(31),
            log_max_ra_req_qp: used.get(HcaCap::LOG_MAX_RA_REQ_QP).min(7),
            log_max_ra_res_qp: used.get(HcaCap::LOG_MAX_RA_RES_QP).min(7),
            // The length of a WQE is told in 6 bits of 16 bytes.
            max_wqe_sz_sq: used.get(HcaCap::MAX_WQE_SZ_SQ).min(63 * 16),
            max_wqe_sz_rq: used.get(HcaCap::MAX_WQE_SZ_RQ).min(63 * 16),
            cq_moderation: used.get(HcaCap::CQ_MODERATION),
            blueflame: used.get(HcaCap::BF),
            // Four of them lie in the upper half of a page.
            log_bf_reg_size: used.get(HcaCap::LOG_BF_REG_SIZE).min(9),
            cqe_version: used.get(HcaCap::CQE_VERSION),
            roce_addresses: roce.get(RoceCap::ROCE_ADDRESS_TABLE_SIZE),
            uplink_follow: used.get(HcaCap::UPLINK_FOLLOW),
            port_number: used.get(HcaCap::NUM_VHCA_PORTS).min(1),
            roce_v2: roce.get(RoceCap::ROCE_VERSION) >> 2 & 1 != 0,
            ethernet: used.get(HcaCap::PORT_TYPE) == PORT_ETHERNET,
            ethernet_queues: used.get(HcaCap::ETH_NET_OFFLOADS) && used.get(HcaCap::NIC_FLOW_TABLE),
            sq_ts_format: ts_format(used.get(HcaCap::SQ_TS_FORMAT)),
            rq_ts_format: ts_format(used.get(HcaCap::RQ_TS_FORMAT)),
            // That of completions: the free-running clock, where it is offered.
            qp_ts_format: if runs_freely { 0 } else { ts_format(qp_clocks) },
            clock_khz: Some(used.get(HcaCap::DEVICE_FREQUENCY_KHZ)).filter(|khz| runs_freely && *khz > 0),
            rates: used.get(HcaCap::STAT_RATE_SUPPORT),
            port_says_inline: false,
            local_loopback: [used.get(HcaCap::DISABLE_LOCAL_LB_UC), used.get(HcaCap::DISABLE_LOCAL_LB_MC)],
            mac_table: used.get(HcaCap::ESWITCH_MANAGER) && used.get(HcaCap::LOG_MAX_L2_TABLE) > 0,
            atomic,
            driver_version: used.get(HcaCap::DRIVER_VERSION),
            services: [used.get(HcaCap::RC), used.get(HcaCap::UC), used.get(HcaCap::UD)],
            local_ca_ack_delay: used.get(HcaCap::LOCAL_CA_ACK_DELAY),
        }
    }
}

/// The adapter's own choice (1), where it knows more than free-running counters, which is all that 0 is.
fn ts_format(offered: u32) -> u32 {
    u32::from(offered != 0)
}

/// Whether the port says how much of the headers Ethernet requests carry in themselves.
fn port_says_inline(cmd: &CommandQueue) -> Result<bool, CmdError> {
    match query::<EthOffloadCap>(cmd, HcaCapType::EthernetOffload, true) {
        Ok(caps) => Ok(caps.get(EthOffloadCap::WQE_INLINE_MODE) == PORT_SAYS),
        Err(CmdError::Refused { .. }) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Queries the capabilities of a RoCE port. From now on the driver chooses UDP source ports, if the adapter supports
/// that.
fn roce(cmd: &CommandQueue) -> Result<RoceCap, CmdError> {
    let kind = HcaCapType::Roce;
    let mut used: RoceCap = query(cmd, kind, true)?;
    let most: RoceCap = query(cmd, kind, false)?;
    let port = RoceCap::SW_R_ROCE_SRC_UDP_PORT;
    if most.get(port) && !used.get(port) {
        used.set(port, true);
        match set(cmd, kind, &used) {
            Ok(()) => {}
            Err(e @ CmdError::Refused { .. }) => {
                tracing::debug!(%e, "the adapter chooses UDP source ports by itself");
            }
            Err(e) => return Err(e),
        }
    }
    Ok(used)
}

/// Has the adapter take operands in the host's byte order. Returns whether it does.
fn atomics(cmd: &CommandQueue) -> Result<bool, CmdError> {
    let kind = HcaCapType::Atomic;
    let most: AtomicCaps = match query(cmd, kind, false) {
        Ok(most) => most,
        // A function that may do atomics and may not ask about them takes the order of the wire.
        Err(e) if e.is(CmdStatus::BadParam) || e.is(CmdStatus::BadOp) => return Ok(false),
        Err(e) => return Err(e),
    };
    let mut used: AtomicCaps = query(cmd, kind, true)?;
    if used.get(AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE) == HOST_ORDER {
        return Ok(true);
    }
    if !most.get(AtomicCaps::SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1) {
        return Ok(false);
    }
    used.set(AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE, HOST_ORDER);
    set(cmd, kind, &used)?;
    Ok(true)
}
