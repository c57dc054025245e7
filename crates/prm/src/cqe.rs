//! Completion queue entries of 64 bytes.
//!
//! The adapter writes the last byte of an entry last. Its upper half is the operation, and its lowest bit is the owner
//! bit, which changes its value in each round of the queue. A driver takes an entry if the owner bit is that of the
//! driver's present round ([`Cqe64::sw_owner`]) and the operation is not [`CqeOpcode::Invalid`], with which the driver
//! has initialised the queue.

use hca_core::WcStatus;

use crate::codes::codes;
use crate::layout;

layout! {
    list LAYOUTS;

    /// A completion queue entry.
    pub struct Cqe64: 0x40 {
        /// The hash that chose the queue.
        RSS_HASH_RESULT: 0x0c [31:0],
        /// What was hashed.
        RSS_HASH_TYPE: 0x10 [31:24],
        /// The sum over an Ethernet frame.
        CHECK_SUM: 0x14 [31:16],
        /// A datagram's source.
        SLID: 0x14 [15:0],
        /// Whether a datagram has a global header: 0 if it has none.
        G: 0x18 [29:28],
        /// A datagram's service level.
        SL: 0x18 [27:24],
        /// The queue pair that sent a datagram.
        RQPN: 0x18 [23:0],
        /// What checksums were found right: 1 that of Ethernet, 2 of IP, 4 of TCP or UDP.
        HDS_IP_EXT: 0x1c [31:24],
        /// What headers an Ethernet frame has.
        L4_L3_HDR_TYPE: 0x1c [23:16],
        /// An Ethernet frame's VLAN tag.
        VLAN_INFO: 0x1c [15:0],
        /// The shared receive queue; with version 1 of completions, the `USER_INDEX` of the queue that completed.
        SRQN_USER_INDEX: 0x20 [23:0],
        /// The immediate value.
        IMM: 0x24 [31:0],
        /// The key that the peer has invalidated.
        INVAL_RKEY: 0x24 [31:0] over,
        /// Bytes of the message. Of a request, those of a READ or an atomic.
        BYTE_CNT: 0x2c [31:0],
        /// When.
        TIMESTAMP: 0x30 [63:0],
        /// The operation of the entry that completes: of the send queue, a [`WqeOpcode`](crate::WqeOpcode) code.
        S_WQE_OPCODE: 0x38 [31:24],
        /// The queue pair.
        QPN: 0x38 [23:0],
        /// Which entry completes: its first block in a send queue, its number in a receive queue.
        WQE_COUNTER: 0x3c [31:16],
        /// What completes: a [`CqeOpcode`] code.
        OPCODE: 0x3c [7:4],
        /// The peer's request was solicited.
        SE: 0x3c [1],
        /// Changes from round to round.
        OWNER: 0x3c [0],
    }

    /// A completion queue entry of a failed request: a [`Cqe64`] with other fields in these places.
    pub struct ErrCqe: 0x40 {
        /// More about the fault, of the firmware.
        VENDOR_ERR_SYND: 0x34 [15:8],
        /// What failed: a [`CqeSyndrome`] code.
        SYNDROME: 0x34 [7:0],
        /// The operation of the entry that failed: of the send queue, a [`WqeOpcode`](crate::WqeOpcode) code.
        S_WQE_OPCODE: 0x38 [31:24],
        /// The queue pair.
        QPN: 0x38 [23:0],
        /// Which entry failed.
        WQE_COUNTER: 0x3c [31:16],
        /// [`CqeOpcode::ReqErr`] or [`CqeOpcode::RespErr`].
        OPCODE: 0x3c [7:4],
    }
}

impl Cqe64 {
    /// The value in place of the service level of a datagram over Ethernet that came by UDP over IPv6.
    pub const ROCE_IPV6: u32 = 9;
    /// The value in place of the service level of a datagram that came by UDP over IPv4.
    pub const ROCE_IPV4: u32 = 10;

    /// The last byte of every entry of a queue before its first round.
    pub const FIRST_OP_OWN: u8 = (CqeOpcode::Invalid as u8) << 4 | 1;

    /// The owner bit that the adapter writes into entry number `counter`, counted without wrapping, of a queue of
    /// 2^`log_size` entries.
    #[inline]
    #[must_use]
    pub const fn sw_owner(counter: u32, log_size: u32) -> bool {
        counter >> log_size & 1 != 0
    }

    /// Whether the adapter wrote an entry, whose last byte is `op_own`, in the round of entry number `counter`.
    #[inline]
    #[must_use]
    pub const fn is_ready(op_own: u8, counter: u32, log_size: u32) -> bool {
        op_own >> 4 != CqeOpcode::Invalid as u8 && (op_own & 1 != 0) == Self::sw_owner(counter, log_size)
    }
}

codes! {
    /// The kind of a completion.
    pub enum CqeOpcode {
        Req = 0 "a request of the send queue",
        RespWrImm = 1 "a receive request, by RDMA WRITE with immediate",
        RespSend = 2 "a receive request, by SEND",
        RespSendImm = 3 "a receive request, by SEND with immediate",
        RespSendInv = 4 "a receive request, by SEND with invalidate",
        ResizeCq = 5 "the queue itself: what follows is in the new one",
        NoPacket = 6 "a request that no packet was for",
        SigErr = 12 "a signature that is wrong",
        ReqErr = 13 "a request of the send queue, in error",
        RespErr = 14 "a receive request, in error",
        Invalid = 15 "nothing: the entry was never written",
    }

    /// The reason why a request failed.
    pub enum CqeSyndrome {
        LocalLengthErr = 0x01 "local length error",
        LocalQpOpErr = 0x02 "local queue pair operation error",
        LocalProtErr = 0x04 "local protection error",
        WrFlushErr = 0x05 "flushed",
        MwBindErr = 0x06 "memory window bind error",
        BadRespErr = 0x10 "bad response",
        LocalAccessErr = 0x11 "local access error",
        RemoteInvalReqErr = 0x12 "remote invalid request",
        RemoteAccessErr = 0x13 "remote access error",
        RemoteOpErr = 0x14 "remote operation error",
        TransportRetryExcErr = 0x15 "transport retry counter exceeded",
        RnrRetryExcErr = 0x16 "RNR retry counter exceeded",
        RemoteAbortedErr = 0x22 "remote aborted",
    }

    /// The reason why a completion queue is in error, see [`CqError`](crate::CqError).
    pub enum CqErrorSyndrome {
        CqOverrun = 0x1 "it has overflowed",
        CqAccessViolation = 0x2 "its memory cannot be written",
    }
}

impl CqeOpcode {
    /// Whether the entry has a time stamp; entries of errors have their syndrome in that place.
    #[must_use]
    pub const fn has_time(self) -> bool {
        !matches!(self, Self::ReqErr | Self::RespErr | Self::SigErr | Self::Invalid)
    }
}

impl CqeSyndrome {
    /// The completion status that a program sees.
    #[must_use]
    pub const fn wc_status(self) -> WcStatus {
        match self {
            Self::LocalLengthErr => WcStatus::LocalLength,
            Self::LocalQpOpErr => WcStatus::LocalQpOperation,
            Self::LocalProtErr => WcStatus::LocalProtection,
            Self::WrFlushErr => WcStatus::WrFlushed,
            Self::MwBindErr => WcStatus::MwBind,
            Self::BadRespErr => WcStatus::BadResponse,
            Self::LocalAccessErr => WcStatus::LocalAccess,
            Self::RemoteInvalReqErr => WcStatus::RemoteInvalidRequest,
            Self::RemoteAccessErr => WcStatus::RemoteAccess,
            Self::RemoteOpErr => WcStatus::RemoteOperation,
            Self::TransportRetryExcErr => WcStatus::RetryExceeded,
            Self::RnrRetryExcErr => WcStatus::RnrRetryExceeded,
            Self::RemoteAbortedErr => WcStatus::RemoteAborted,
        }
    }

    /// The syndrome that maps to `status`; `None` if there is none.
    #[must_use]
    pub fn of_wc_status(status: WcStatus) -> Option<Self> {
        Self::ALL.iter().copied().find(|syndrome| syndrome.wc_status() == status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_lies_as_stock_drivers_read_it() {
        let entry = Cqe64::new()
            .with(Cqe64::SRQN_USER_INDEX, 0x01_0203)
            .with(Cqe64::IMM, 0xa0b0_c0d0)
            .with(Cqe64::BYTE_CNT, 64)
            .with(Cqe64::TIMESTAMP, 0x1122_3344_5566_7788)
            .with(Cqe64::S_WQE_OPCODE, 0x0a)
            .with(Cqe64::QPN, 0x43)
            .with(Cqe64::WQE_COUNTER, 0x8001)
            .with(Cqe64::OPCODE, CqeOpcode::RespSendImm.code())
            .with(Cqe64::OWNER, true);
        let bytes = entry.as_bytes();
        assert_eq!(bytes[32..36], [0, 1, 2, 3]);
        assert_eq!(bytes[36..40], 0xa0b0_c0d0_u32.to_be_bytes());
        assert_eq!(bytes[44..48], 64_u32.to_be_bytes());
        assert_eq!(bytes[48..56], 0x1122_3344_5566_7788_u64.to_be_bytes());
        assert_eq!(bytes[56..60], 0x0a00_0043_u32.to_be_bytes());
        assert_eq!(bytes[60..64], [0x80, 1, 0, 0x31]);
    }

    #[test]
    fn an_error_has_its_syndrome_at_55_and_the_vendors_at_54() {
        let entry = ErrCqe::new()
            .with(ErrCqe::SYNDROME, CqeSyndrome::RnrRetryExcErr.code())
            .with(ErrCqe::VENDOR_ERR_SYND, 0x89)
            .with(ErrCqe::OPCODE, CqeOpcode::ReqErr.code());
        assert_eq!(entry.as_bytes()[54..56], [0x89, 0x16]);
        assert_eq!(entry.as_bytes()[63], 0xd0);
        // Both layouts have the fields that they share in the same place.
        let same = Cqe64::from_array(*entry.as_bytes());
        assert_eq!(CqeOpcode::from_code(same.get(Cqe64::OPCODE)), Some(CqeOpcode::ReqErr));
        for field in <ErrCqe as crate::Layout>::FIELDS {
            if let Some(other) =
                <Cqe64 as crate::Layout>::FIELDS.iter().find(|other| other.name == field.name)
            {
                assert_eq!((field.start, field.width), (other.start, other.width), "{}", field.name);
            }
        }
    }

    #[test]
    fn an_entry_is_taken_in_its_own_round_only() {
        let op_own = |opcode: CqeOpcode, owner: u32| (opcode.code() << 4 | owner) as u8;
        for counter in [0, 3, 4, 7, 8, u32::MAX] {
            let round = u32::from(Cqe64::sw_owner(counter, 2));
            assert!(Cqe64::is_ready(op_own(CqeOpcode::Req, round), counter, 2), "{counter}");
            assert!(!Cqe64::is_ready(op_own(CqeOpcode::Req, 1 - round), counter, 2), "{counter}");
            assert!(!Cqe64::is_ready(op_own(CqeOpcode::Invalid, round), counter, 2), "{counter}");
        }
        assert_eq!([3, 4, 7, 8].map(|counter| Cqe64::sw_owner(counter, 2)), [false, true, true, false]);
        assert!(!Cqe64::is_ready(Cqe64::FIRST_OP_OWN, 0, 2) && !Cqe64::is_ready(Cqe64::FIRST_OP_OWN, 4, 2));
    }

    #[test]
    fn every_syndrome_has_a_status_of_its_own() {
        for &syndrome in CqeSyndrome::ALL {
            assert_eq!(CqeSyndrome::of_wc_status(syndrome.wc_status()), Some(syndrome));
        }
        assert_eq!(CqeSyndrome::of_wc_status(WcStatus::Success), None);
        assert_eq!(CqeSyndrome::from_code(0), None);
    }
}
