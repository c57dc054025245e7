//! The context of a queue pair, and the path in it.

use hca_core::QpType;

use crate::codes::codes;
use crate::layout;
use crate::opcode::Opcode;

layout! {
    list LAYOUTS;

    /// Context of a queue pair.
    pub struct Qpc: 0xe8 {
        /// The state: a [`QpState`] code.
        STATE: 0x00 [31:28],
        /// The service: a [`ServiceType`] code.
        ST: 0x00 [23:16],
        /// Path migration: a [`PathMigration`] code.
        PM_STATE: 0x00 [12:11],
        /// The protection domain.
        PD: 0x04 [23:0],
        /// Payload of a packet: an [`MtuCode`](crate::MtuCode).
        MTU: 0x08 [31:29],
        /// The longest message, as a power of two.
        LOG_MSG_MAX: 0x08 [28:24],
        /// Entries of the receive queue, as a power of two.
        LOG_RQ_SIZE: 0x08 [22:19],
        /// Bytes of such an entry, as a power of two less 4: 0 for 16 bytes.
        LOG_RQ_STRIDE: 0x08 [18:16],
        /// There is no send queue.
        NO_SQ: 0x08 [15],
        /// Blocks of 64 bytes in the send queue, as a power of two.
        LOG_SQ_SIZE: 0x08 [14:11],
        /// What completions' times mean: a free running clock (0), the default (1), the time of day (2).
        TS_FORMAT: 0x08 [7:6],
        /// The set of counters that counts this queue pair, see
        /// [`AllocQCounterIn`](crate::command::counter::AllocQCounterIn).
        COUNTER_SET_ID: 0x0c [31:24],
        /// The doorbell page through which work is announced.
        UAR_PAGE: 0x0c [23:0],
        /// The user's number for this queue pair, which completions carry where the interface says so.
        USER_INDEX: 0x10 [23:0],
        /// Bytes of a page of the work queues, as a power of two less 12.
        LOG_PAGE_SIZE: 0x14 [28:24],
        /// The peer's queue pair.
        REMOTE_QPN: 0x14 [23:0],
        /// The path to the peer.
        PRIMARY_ADDRESS_PATH: 0x18 {Ads},
        /// Every how many packets an acknowledgement is asked for, as a power of two.
        LOG_ACK_REQ_FREQ: 0x70 [31:28],
        /// READs and atomics that may be under way to the peer, as a power of two.
        LOG_SRA_MAX: 0x70 [23:21],
        /// How often a packet is sent again.
        RETRY_COUNT: 0x70 [18:16],
        /// How often a message is sent again that found the receiver not ready; 7 for without end.
        RNR_RETRY: 0x70 [15:13],
        /// The packet sequence number to be sent next.
        NEXT_SEND_PSN: 0x78 [23:0],
        /// The completion queue of the send queue.
        CQN_SND: 0x7c [23:0],
        /// READs and atomics of the peer that may be under way, as a power of two.
        LOG_RRA_MAX: 0x90 [23:21],
        /// Atomic operations that the peer may do: an [`AtomicMode`] code; 0 for none.
        ATOMIC_MODE: 0x90 [19:16],
        /// The peer may READ.
        RRE: 0x90 [15],
        /// The peer may WRITE.
        RWE: 0x90 [14],
        /// The peer may do atomic operations.
        RAE: 0x90 [13],
        /// Where in the first page the work queues begin, in units of 1/64 of a page.
        PAGE_OFFSET: 0x90 [11:6],
        /// How long the peer shall wait when no receive request is there, as InfiniBand numbers these times.
        MIN_RNR_NAK: 0x94 [28:24],
        /// The packet sequence number that is expected next.
        NEXT_RCV_PSN: 0x94 [23:0],
        /// The domain of extended connections that a target belongs to.
        XRCD: 0x98 [23:0],
        /// The completion queue of the receive queue.
        CQN_RCV: 0x9c [23:0],
        /// Bus address of the doorbell record.
        DBR_ADDR: 0xa0 [63:0],
        /// The key that datagrams must carry.
        Q_KEY: 0xa8 [31:0],
        /// Where receive requests come from: an [`RqType`] code.
        RQ_TYPE: 0xac [26:24],
        /// The shared receive queue.
        SRQN_RMPN_XRQN: 0xac [23:0],
        /// Blocks of the send queue that the adapter has taken.
        HW_SQ_WQEBB_COUNTER: 0xb4 [31:16],
        /// Receive requests that the adapter has taken.
        HW_RQ_COUNTER: 0xb8 [31:0],
        /// The doorbell record is given as a place in registered user memory.
        DBR_UMEM_VALID: 0xd0 [28],
    }

    /// The address path, by which packets reach the peer.
    pub struct Ads: 0x2c {
        /// Which partition key packets carry.
        PKEY_INDEX: 0x00 [15:0],
        /// Packets carry a global header. Always so on Ethernet.
        GRH: 0x04 [23],
        /// The peer's local identifier; InfiniBand only.
        RLID: 0x04 [15:0],
        /// How long to wait for an acknowledgement: 4.096 us times two to this power.
        ACK_TIMEOUT: 0x08 [31:27],
        /// Which of the port's own addresses is the source.
        SRC_ADDR_INDEX: 0x08 [23:16],
        /// The highest rate, numbered as InfiniBand does, plus 5; 0 for none.
        STAT_RATE: 0x08 [11:8],
        /// Routers that a packet may pass.
        HOP_LIMIT: 0x08 [7:0],
        /// The traffic class.
        TCLASS: 0x0c [27:20],
        /// The flow label.
        FLOW_LABEL: 0x0c [19:0],
        /// The peer's GID, or its IP address.
        RGID_RIP: 0x10 [u8; 16],
        /// The class of service in the IP header.
        DSCP: 0x20 [21:16],
        /// The UDP source port, which says which of several ways a packet takes.
        UDP_SPORT: 0x20 [15:0],
        /// The VLAN tag's priority.
        ETH_PRIO: 0x24 [30:28],
        /// The service level.
        SL: 0x24 [27:24],
        /// The port, from 1.
        VHCA_PORT_NUM: 0x24 [23:16],
        /// The peer's Ethernet address, upper part.
        RMAC_47_32: 0x24 [15:0],
        /// The peer's Ethernet address, lower part.
        RMAC_31_0: 0x28 [31:0],
    }
}

impl Ads {
    /// The peer's Ethernet address.
    #[must_use]
    pub fn rmac(&self) -> [u8; 6] {
        let [_, _, a, b] = self.get(Self::RMAC_47_32).to_be_bytes();
        let [c, d, e, f] = self.get(Self::RMAC_31_0).to_be_bytes();
        [a, b, c, d, e, f]
    }

    /// Sets the peer's Ethernet address.
    pub fn set_rmac(&mut self, [a, b, c, d, e, f]: [u8; 6]) -> &mut Self {
        self.set(Self::RMAC_47_32, u32::from_be_bytes([0, 0, a, b]));
        self.set(Self::RMAC_31_0, u32::from_be_bytes([c, d, e, f]))
    }
}

codes! {
    /// State of a queue pair.
    pub enum QpState {
        Rst = 0x0 "reset",
        Init = 0x1 "initialised: receive requests can be posted",
        Rtr = 0x2 "ready to receive",
        Rts = 0x3 "ready to send",
        SqEr = 0x4 "the send queue is in error",
        Sqd = 0x5 "the send queue is drained",
        Err = 0x6 "in error",
        SqDraining = 0x7 "the send queue drains",
        Suspended = 0x9 "suspended",
    }

    /// Service of a queue pair.
    pub enum ServiceType {
        Rc = 0x0 "reliable connection",
        Uc = 0x1 "unreliable connection",
        Ud = 0x2 "unreliable datagram",
        Xrc = 0x3 "extended reliable connection",
        Mlx = 0x4 "management frames that the driver builds itself",
        Dci = 0x5 "dynamic connection, initiator",
        Dct = 0x6 "dynamic connection, target",
        Qp0 = 0x7 "subnet management, queue pair 0",
        Qp1 = 0x8 "general services, queue pair 1",
        RawEthertype = 0x9 "raw Ethernet",
        RawIpv6 = 0xa "raw IPv6",
        Sniffer = 0xb "copies of what passes",
        RegUmr = 0xc "memory keys changed by work requests",
        Ptp1588 = 0xd "packets of the precision time protocol",
        SyncUmr = 0xe "memory keys changed by work requests, in order",
    }

    /// State of path migration.
    pub enum PathMigration {
        Armed = 0x0 "the other path takes over when this one fails",
        Rearm = 0x1 "another path is being agreed on",
        Migrated = 0x3 "the other path has taken over, or there is none",
    }

    /// The source of a queue pair's receive requests.
    pub enum RqType {
        Regular = 0x0 "a receive queue of its own",
        Srq = 0x1 "a shared receive queue",
        Crq = 0x2 "a queue that several completions make",
        ZeroLength = 0x3 "there is none",
    }

    /// The atomic operations that a peer may do.
    pub enum AtomicMode {
        IbSpec = 0x1 "those of InfiniBand, of 8 bytes",
        Only8Bytes = 0x2 "extended ones, of 8 bytes",
        UpTo8Bytes = 0x3 "extended ones, of up to 8 bytes",
        UpTo16Bytes = 0x4 "extended ones, of up to 16 bytes",
        UpTo32Bytes = 0x5 "extended ones, of up to 32 bytes",
        UpTo64Bytes = 0x6 "extended ones, of up to 64 bytes",
        UpTo128Bytes = 0x7 "extended ones, of up to 128 bytes",
        UpTo256Bytes = 0x8 "extended ones, of up to 256 bytes",
    }
}

impl QpState {
    /// The command for the transition from this state to `to`; `None` if no single command exists. No command drains a
    /// send queue.
    #[must_use]
    pub const fn transition(self, to: Self) -> Option<Opcode> {
        match (self, to) {
            (_, Self::Err) => Some(Opcode::QP_2ERR),
            (_, Self::Rst) => Some(Opcode::QP_2RST),
            (Self::Rst, Self::Init) => Some(Opcode::RST2INIT_QP),
            (Self::Init, Self::Init) => Some(Opcode::INIT2INIT_QP),
            (Self::Init, Self::Rtr) => Some(Opcode::INIT2RTR_QP),
            (Self::Rtr, Self::Rts) => Some(Opcode::RTR2RTS_QP),
            (Self::Rts, Self::Rts) => Some(Opcode::RTS2RTS_QP),
            (Self::SqEr, Self::Rts) => Some(Opcode::SQERR2RTS_QP),
            (Self::Sqd, Self::Rts) => Some(Opcode::SQD_RTS_QP),
            _ => None,
        }
    }

    /// The state after a command; `None` if the command is not a transition. The command is allowed in state `from` if
    /// `from.transition(to)` is this command.
    #[must_use]
    pub const fn reached_by(opcode: Opcode) -> Option<Self> {
        match opcode {
            Opcode::RST2INIT_QP | Opcode::INIT2INIT_QP => Some(Self::Init),
            Opcode::INIT2RTR_QP => Some(Self::Rtr),
            Opcode::RTR2RTS_QP | Opcode::RTS2RTS_QP | Opcode::SQERR2RTS_QP | Opcode::SQD_RTS_QP => {
                Some(Self::Rts)
            }
            Opcode::QP_2ERR => Some(Self::Err),
            Opcode::QP_2RST => Some(Self::Rst),
            _ => None,
        }
    }
}

impl From<hca_core::QpState> for QpState {
    fn from(state: hca_core::QpState) -> Self {
        match state {
            hca_core::QpState::Reset => Self::Rst,
            hca_core::QpState::Init => Self::Init,
            hca_core::QpState::Rtr => Self::Rtr,
            hca_core::QpState::Rts => Self::Rts,
            hca_core::QpState::Sqd => Self::Sqd,
            hca_core::QpState::Sqe => Self::SqEr,
            hca_core::QpState::Error => Self::Err,
        }
    }
}

impl ServiceType {
    /// The service as verbs name it; `None` for a service that verbs do not have.
    #[must_use]
    pub const fn verbs(self) -> Option<QpType> {
        match self {
            Self::Rc => Some(QpType::Rc),
            Self::Uc => Some(QpType::Uc),
            Self::Ud => Some(QpType::Ud),
            _ => None,
        }
    }
}

/// The mask of the context's optional fields that a transition takes over: `OPT_PARAM_MASK` of the commands that modify
/// queue pairs. Required fields of the transition need no bit.
pub mod optpar {
    /// `SECONDARY_ADDRESS_PATH`.
    pub const ALT_ADDR_PATH: u32 = 1 << 0;
    /// `RRE`.
    pub const RRE: u32 = 1 << 1;
    /// `RAE`, with `ATOMIC_MODE`.
    pub const RAE: u32 = 1 << 2;
    /// `RWE`.
    pub const RWE: u32 = 1 << 3;
    /// `PKEY_INDEX`.
    pub const PKEY_INDEX: u32 = 1 << 4;
    /// `Q_KEY`.
    pub const Q_KEY: u32 = 1 << 5;
    /// `MIN_RNR_NAK`.
    pub const RNR_TIMEOUT: u32 = 1 << 6;
    /// `PRIMARY_ADDRESS_PATH`.
    pub const PRIMARY_ADDR_PATH: u32 = 1 << 7;
    /// `LOG_SRA_MAX`.
    pub const SRA_MAX: u32 = 1 << 8;
    /// `LOG_RRA_MAX`.
    pub const RRA_MAX: u32 = 1 << 9;
    /// `PM_STATE`.
    pub const PM_STATE: u32 = 1 << 10;
    /// `RETRY_COUNT`.
    pub const RETRY_COUNT: u32 = 1 << 12;
    /// `RNR_RETRY`.
    pub const RNR_RETRY: u32 = 1 << 13;
    /// `ACK_TIMEOUT`.
    pub const ACK_TIMEOUT: u32 = 1 << 14;
    /// `CQN_RCV`.
    pub const CQN_RCV: u32 = 1 << 19;
    /// `OFFLOAD_TYPE`.
    pub const OFFLOAD_TYPE: u32 = 1 << 24;
    /// `COUNTER_SET_ID`.
    pub const COUNTER_SET_ID: u32 = 1 << 25;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ethernet_address_lies_at_the_end_of_the_path() {
        let mut path = Ads::new();
        path.set_rmac([2, 3, 4, 5, 6, 7]);
        assert_eq!(path.as_bytes()[0x26..], [2, 3, 4, 5, 6, 7]);
        assert_eq!(path.rmac(), [2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn states_and_services_of_programs_have_their_codes() {
        use hca_core::QpState as Verbs;
        for (verbs, code) in [
            (Verbs::Reset, 0),
            (Verbs::Init, 1),
            (Verbs::Rtr, 2),
            (Verbs::Rts, 3),
            (Verbs::Sqe, 4),
            (Verbs::Sqd, 5),
            (Verbs::Error, 6),
        ] {
            assert_eq!(QpState::from(verbs).code(), code, "{verbs:?}");
        }
        assert_eq!(ServiceType::ALL.iter().filter_map(|service| service.verbs()).count(), 3);
    }

    #[test]
    fn a_command_leads_from_a_state_to_the_one_that_it_reaches() {
        let mut given = std::collections::HashSet::new();
        for &from in QpState::ALL {
            for &to in QpState::ALL {
                if let Some(opcode) = from.transition(to) {
                    assert_eq!(QpState::reached_by(opcode), Some(to), "{from:?}: {opcode}");
                    given.insert(opcode);
                }
            }
        }
        for &opcode in Opcode::ALL {
            assert_eq!(QpState::reached_by(opcode).is_some(), given.contains(&opcode), "{opcode}");
        }
        assert_eq!(QpState::Rst.transition(QpState::Rtr), None);
        assert_eq!(QpState::Suspended.transition(QpState::Err), Some(Opcode::QP_2ERR));
    }

    #[test]
    fn a_context_has_its_path_at_0x18() {
        let path = Ads::new().with(Ads::RLID, 0xabcd);
        let context = Qpc::new().with(Qpc::PRIMARY_ADDRESS_PATH, path).with(Qpc::STATE, QpState::Rts.code());
        assert_eq!(context.as_bytes()[0x1e..0x20], [0xab, 0xcd]);
        assert_eq!(context.as_bytes()[0], 0x30);
        assert_eq!(context.get(Qpc::PRIMARY_ADDRESS_PATH), path);
    }
}
