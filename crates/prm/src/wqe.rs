//! Work queue entries: the 16-byte segments of an entry.
//!
//! A send queue is a ring of blocks of [`SEND_WQE_BB`] bytes. An entry begins at a block, with a control segment that
//! holds the operation and the length of the entry in units of [`WQE_DS_UNIT`] bytes. The segments behind it depend on
//! the operation:
//!
//! | operation | segments |
//! |---|---|
//! | SEND on a connection | [`CtrlSeg`], data |
//! | SEND of a datagram | [`CtrlSeg`], [`UdAdrsVector`], data |
//! | any of these on an extended connection | [`CtrlSeg`], [`XrcSeg`], then as on a connection |
//! | WRITE, READ | [`CtrlSeg`], [`RaddrSeg`], data |
//! | atomic | [`CtrlSeg`], [`RaddrSeg`], [`AtomicSeg`], one data pointer for the old value |
//! | invalidate, fast register | [`CtrlSeg`], [`UmrCtrlSeg`], [`Mkc`](crate::Mkc), translation entries |
//!
//! Data are pointers ([`DataSeg`]), or bytes in the entry itself behind an [`InlineSeg`], padded to 16 bytes.
//!
//! An entry of a receive queue is a list of pointers as long as the queue's stride. A shorter list ends with
//! [`DataSeg::TERMINATOR`]. In a shared receive queue, a [`SrqNextSeg`] precedes the list.

use crate::codes::codes;
use crate::layout;

/// Bytes of a block of the send queue (WQEBB).
pub const SEND_WQE_BB: usize = 64;
/// Bytes of the unit in which an entry's length is given (octword).
pub const WQE_DS_UNIT: usize = 16;
/// The most units of an entry: the largest value of [`CtrlSeg::DS`].
pub const MAX_WQE_DS: u32 = 63;

layout! {
    list LAYOUTS;

    /// Control segment: the operation of a send queue's entry. Its first 8 bytes are also written to the doorbell page.
    pub struct CtrlSeg: 0x10 {
        /// The entry's first block, counted without end.
        WQE_INDEX: 0x00 [23:8],
        /// The operation: a [`WqeOpcode`] code.
        OPCODE: 0x00 [7:0],
        /// The queue pair, or send queue.
        QP_OR_SQ: 0x04 [31:8],
        /// Units of 16 bytes in the entry.
        DS: 0x04 [5:0],
        /// Makes the exclusive or of the entry's bytes 0xff, where the context asks for it.
        SIGNATURE: 0x08 [31:24],
        /// What to wait for: a [`FenceMode`] code.
        FM: 0x08 [7:5],
        /// When to complete: a [`CompletionMode`] code.
        CE: 0x08 [3:2],
        /// The peer's completion is solicited.
        SE: 0x08 [1],
        /// The immediate value.
        IMM: 0x0c [31:0],
        /// The key that the entry makes or invalidates.
        UMR_MKEY: 0x0c [31:0] over,
    }

    /// Segment of an extended connection, before all others: the shared receive queue of the peer's domain.
    pub struct XrcSeg: 0x10 {
        /// The queue's number.
        XRC_SRQN: 0x00 [31:0],
    }

    /// Remote address segment: the address and the key at the peer.
    pub struct RaddrSeg: 0x10 {
        /// The address.
        RADDR: 0x00 [63:0],
        /// The key that allows it.
        RKEY: 0x08 [31:0],
    }

    /// Atomic segment: the operands.
    pub struct AtomicSeg: 0x10 {
        /// What is put in if the comparison holds, or what is added.
        SWAP_ADD: 0x00 [63:0],
        /// What is compared with.
        COMPARE: 0x08 [63:0],
    }

    /// Data segment: a pointer.
    pub struct DataSeg: 0x10 {
        /// The segment is no pointer but an [`InlineSeg`].
        INLINE: 0x00 [31],
        /// Bytes there; 0 stands for 2^31, so an empty place is left out.
        BYTE_COUNT: 0x00 [30:0],
        /// The key that allows it.
        LKEY: 0x04 [31:0],
        /// The address.
        ADDR: 0x08 [63:0],
    }

    /// The head of data in the entry itself. The data follow directly, and head and data are padded to a multiple of 16
    /// bytes.
    pub struct InlineSeg: 0x04 {
        /// Always set; told from a pointer by it.
        INLINE: 0x00 [31],
        /// Bytes that follow.
        BYTE_COUNT: 0x00 [9:0],
    }

    /// Datagram segment: the address of an entry's peer.
    pub struct UdAdrsVector: 0x30 {
        /// The key that the datagram carries. With its highest bit set, that of the queue pair's context is sent.
        Q_KEY: 0x00 [31:0],
        /// The vector has all of its 48 bytes. Always so here.
        EXT: 0x08 [31],
        /// The peer's queue pair.
        DESTINATION_QP_DCT: 0x08 [23:0],
        /// The highest rate, numbered as InfiniBand does, plus 5; 0 for none.
        STATIC_RATE: 0x0c [31:28],
        /// The service level; on Ethernet the priority, in the upper three bits.
        SL_ETH_PRIO: 0x0c [27:24],
        /// The peer's local identifier; on Ethernet, the UDP source port.
        RLID_UDP_SPORT: 0x0c [15:0],
        /// The peer's Ethernet address, upper part.
        RMAC_47_16: 0x14 [31:0],
        /// The peer's Ethernet address, lower part.
        RMAC_15_0: 0x18 [31:16],
        /// The traffic class.
        TCLASS: 0x18 [15:8],
        /// Routers that the datagram may pass.
        HOP_LIMIT: 0x18 [7:0],
        /// It carries a global header. Always so on Ethernet.
        GRH: 0x1c [30],
        /// Which of the port's own addresses is the source.
        SRC_ADDR_INDEX: 0x1c [27:20],
        /// The flow label.
        FLOW_LABEL: 0x1c [19:0],
        /// The peer's GID, or its IP address.
        RGID_RIP: 0x20 [u8; 16],
    }

    /// Control segment of an entry that changes a memory key (UMR).
    pub struct UmrCtrlSeg: 0x30 {
        /// The translation follows in the entry, and not behind a pointer.
        INLINE: 0x00 [31],
        /// What the key must be before: anything (0), see the constants.
        CHECK: 0x00 [30:29],
        /// Entries of the translation, in units of 16 bytes.
        XLT_OCTOWORDS: 0x04 [31:16],
        /// Which fields of the context are changed, see [`mkey_mask`].
        MKEY_MASK: 0x08 [63:0],
    }

    /// The segment before an entry of a shared receive queue, by which the adapter links free entries.
    pub struct SrqNextSeg: 0x10 {
        /// The next entry.
        NEXT_WQE_INDEX: 0x00 [15:0],
        /// Makes the exclusive or of the entry's bytes 0xff, where the context asks for it.
        SIGNATURE: 0x04 [31:24],
    }

    /// Ethernet segment: the adapter's operations on a frame. The frame's first bytes follow its last field.
    pub struct EthSeg: 0x10 {
        /// Which checksums it makes: 0x40 that of the IP header, 0x80 that of TCP or UDP.
        CS_FLAGS: 0x04 [31:24],
        /// Bytes of payload in each packet of a segmented one.
        MSS: 0x04 [15:0],
        /// Bytes of the frame that stand in the entry, the first two of them in this segment.
        INLINE_HDR_SZ: 0x0c [31:16],
        /// The frame's first two bytes.
        INLINE_HDR_START: 0x0c [15:0],
    }
}

impl DataSeg {
    /// The key in a segment that ends the list of a receive request.
    pub const INVALID_LKEY: u32 = 0x100;

    /// The segment that ends the list of a receive request with fewer places than its queue's stride.
    pub const TERMINATOR: Self = Self::from_array([0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);

    /// A pointer to `byte_count` bytes.
    #[inline]
    #[must_use]
    pub fn pointer(byte_count: u32, lkey: u32, addr: u64) -> Self {
        Self::new().with(Self::BYTE_COUNT, byte_count).with(Self::LKEY, lkey).with(Self::ADDR, addr)
    }

    /// Whether the segment ends the list of a receive request, by its key.
    #[inline]
    #[must_use]
    pub fn is_terminator(&self) -> bool {
        self.get(Self::LKEY) == Self::INVALID_LKEY
    }
}

impl UmrCtrlSeg {
    /// In `CHECK`: the key must be free. (Linux says of the same that it fails if the key is not.)
    pub const MUST_BE_FREE: u32 = 1;
    /// In `CHECK`: the key must not be free.
    pub const MUST_BE_USED: u32 = 2;
}

impl InlineSeg {
    /// The head of `byte_count` bytes, at most 1023.
    ///
    /// # Panics
    ///
    /// If there are more.
    #[inline]
    #[must_use]
    pub fn of(byte_count: u32) -> Self {
        Self::new().with(Self::INLINE, true).with(Self::BYTE_COUNT, byte_count)
    }

    /// The bytes of the entry that `byte_count` bytes take, with the head and the padding.
    #[inline]
    #[must_use]
    pub const fn room(byte_count: usize) -> usize {
        (Self::SIZE + byte_count).next_multiple_of(WQE_DS_UNIT)
    }
}

impl UdAdrsVector {
    /// The peer's Ethernet address.
    #[must_use]
    pub fn rmac(&self) -> [u8; 6] {
        let [a, b, c, d] = self.get(Self::RMAC_47_16).to_be_bytes();
        let [_, _, e, f] = self.get(Self::RMAC_15_0).to_be_bytes();
        [a, b, c, d, e, f]
    }

    /// Sets the peer's Ethernet address.
    pub fn set_rmac(&mut self, [a, b, c, d, e, f]: [u8; 6]) -> &mut Self {
        self.set(Self::RMAC_47_16, u32::from_be_bytes([a, b, c, d]));
        self.set(Self::RMAC_15_0, u32::from_be_bytes([0, 0, e, f]))
    }
}

/// The signature of an entry whose signature field is 0: the inverted exclusive or of its bytes.
#[must_use]
pub fn wqe_signature(entry: &[u8]) -> u8 {
    !entry.iter().fold(0, |sum, byte| sum ^ byte)
}

/// The mask of the fields of a memory key's context that an entry changes: [`UmrCtrlSeg::MKEY_MASK`].
pub mod mkey_mask {
    /// `LEN`.
    pub const LEN: u64 = 1 << 0;
    /// `LOG_PAGE_SIZE`.
    pub const PAGE_SIZE: u64 = 1 << 1;
    /// `START_ADDR`.
    pub const START_ADDR: u64 = 1 << 6;
    /// `PD`.
    pub const PD: u64 = 1 << 7;
    /// `EN_RINVAL`.
    pub const EN_RINVAL: u64 = 1 << 8;
    /// `BSF_EN`.
    pub const BSF_EN: u64 = 1 << 12;
    /// `MKEY_7_0`.
    pub const KEY: u64 = 1 << 13;
    /// `QPN`.
    pub const QPN: u64 = 1 << 14;
    /// `LR`.
    pub const LR: u64 = 1 << 17;
    /// `LW`.
    pub const LW: u64 = 1 << 18;
    /// `RR`.
    pub const RR: u64 = 1 << 19;
    /// `RW`.
    pub const RW: u64 = 1 << 20;
    /// `A`.
    pub const A: u64 = 1 << 21;
    /// `RELAXED_ORDERING_WRITE`.
    pub const RELAXED_ORDERING_WRITE: u64 = 1 << 25;
    /// `FREE`.
    pub const FREE: u64 = 1 << 29;
    /// `RELAXED_ORDERING_READ`.
    pub const RELAXED_ORDERING_READ: u64 = 1 << 47;
}

codes! {
    /// The operation of a send queue's entry.
    pub enum WqeOpcode {
        Nop = 0x00 "nothing",
        SendInval = 0x01 "SEND with invalidate",
        RdmaWrite = 0x08 "RDMA WRITE",
        RdmaWriteImm = 0x09 "RDMA WRITE with immediate",
        Send = 0x0a "SEND",
        SendImm = 0x0b "SEND with immediate",
        Lso = 0x0e "a packet to be segmented",
        RdmaRead = 0x10 "RDMA READ",
        AtomicCs = 0x11 "COMPARE SWAP",
        AtomicFa = 0x12 "FETCH ADD",
        AtomicMaskedCs = 0x14 "masked COMPARE SWAP",
        AtomicMaskedFa = 0x15 "masked FETCH ADD",
        BindMw = 0x18 "memory window bind",
        Fmr = 0x19 "fast registration",
        LocalInval = 0x1b "local invalidate",
        ConfigCmd = 0x1f "configuration",
        SetPsv = 0x20 "signature set",
        GetPsv = 0x21 "signature get",
        CheckPsv = 0x22 "signature check",
        Dump = 0x23 "dump of memory",
        Umr = 0x25 "memory key change",
        RgetPsv = 0x26 "remote signature get",
        RcheckPsv = 0x27 "remote signature check",
        TagMatching = 0x28 "tag matching",
        EnhancedMpsw = 0x29 "several packets",
        FlowTblAccess = 0x2c "flow table access",
        AccessAso = 0x2d "steering object access",
        Mmo = 0x2f "memory to memory",
    }

    /// The earlier requests that an entry waits for.
    pub enum FenceMode {
        None = 0 "nothing",
        InitiatorSmall = 1 "a change of a memory key before it",
        Fence = 2 "READs and atomics before it",
        StrongOrdering = 3 "all before it",
        SmallAndFence = 4 "a change of a memory key, and READs and atomics before it",
    }

    /// The condition for an entry's completion.
    pub enum CompletionMode {
        OnErrorOnly = 0 "when it fails",
        OnFirstError = 1 "when it is the first that fails",
        Always = 2 "always",
        AlwaysAndEqe = 3 "always, and an event with it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_lies_as_a_stock_driver_laid_it() {
        let ctrl = CtrlSeg::new()
            .with(CtrlSeg::OPCODE, WqeOpcode::Send.code())
            .with(CtrlSeg::QP_OR_SQ, 0x43)
            .with(CtrlSeg::DS, 2)
            .with(CtrlSeg::CE, CompletionMode::Always.code());
        let data = DataSeg::pointer(0x40, 0x4105, 0x55dc_0f76_c000);
        let seen = [
            [0x0000000a, 0x00004302, 0x00000008, 0x00000000],
            [0x00000040, 0x00004105, 0x000055dc, 0x0f76c000],
        ]
        .map(|segment: [u32; 4]| segment.map(u32::to_be_bytes).as_flattened().to_vec());
        assert_eq!(ctrl.as_bytes()[..], seen[0]);
        assert_eq!(data.as_bytes()[..], seen[1]);

        let parsed = CtrlSeg::from_bytes(&seen[0]).unwrap();
        assert_eq!(WqeOpcode::from_code(parsed.get(CtrlSeg::OPCODE)), Some(WqeOpcode::Send));
        assert_eq!(CompletionMode::from_code(parsed.get(CtrlSeg::CE)), Some(CompletionMode::Always));
        assert_eq!(parsed.get(CtrlSeg::QP_OR_SQ), 0x43);
    }

    /// The layout with all bits of one field, as bytes.
    macro_rules! ones {
        ($layout:ident, $field:ident) => {
            $layout::new().with($layout::$field, $layout::$field.max() as _).as_bytes().to_vec()
        };
    }

    #[test]
    fn every_field_of_a_control_segment_has_its_bits() {
        let seen = [
            ones!(CtrlSeg, WQE_INDEX),
            ones!(CtrlSeg, OPCODE),
            ones!(CtrlSeg, QP_OR_SQ),
            ones!(CtrlSeg, DS),
            ones!(CtrlSeg, SIGNATURE),
            ones!(CtrlSeg, FM),
            ones!(CtrlSeg, CE),
            CtrlSeg::new().with(CtrlSeg::SE, true).as_bytes().to_vec(),
            ones!(CtrlSeg, IMM),
        ];
        let wanted: [(usize, &[u8]); 9] = [
            (1, &[0xff, 0xff]),
            (3, &[0xff]),
            (4, &[0xff, 0xff, 0xff]),
            (7, &[0x3f]),
            (8, &[0xff]),
            (11, &[0xe0]),
            (11, &[0x0c]),
            (11, &[0x02]),
            (12, &[0xff, 0xff, 0xff, 0xff]),
        ];
        for (seen, (at, bits)) in seen.into_iter().zip(wanted) {
            let mut bytes = vec![0; 16];
            bytes[at..at + bits.len()].copy_from_slice(bits);
            assert_eq!(seen, bytes);
        }
        assert_eq!(CtrlSeg::UMR_MKEY.start(), CtrlSeg::IMM.start());
    }

    #[test]
    fn the_other_segments_lie_as_stock_drivers_lay_them() {
        let remote =
            RaddrSeg::new().with(RaddrSeg::RADDR, 0x0102_0304_0506_0708).with(RaddrSeg::RKEY, 0x1112_1314);
        assert_eq!(remote.as_bytes(), &[1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 0]);
        let atomic = AtomicSeg::new().with(AtomicSeg::SWAP_ADD, 1).with(AtomicSeg::COMPARE, 2);
        assert_eq!(atomic.as_bytes(), &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
        let next = SrqNextSeg::new().with(SrqNextSeg::NEXT_WQE_INDEX, 0x0102).with(SrqNextSeg::SIGNATURE, 3);
        assert_eq!(next.as_bytes(), &[0, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let change = UmrCtrlSeg::new()
            .with(UmrCtrlSeg::INLINE, true)
            .with(UmrCtrlSeg::CHECK, 1)
            .with(UmrCtrlSeg::XLT_OCTOWORDS, 4)
            .with(UmrCtrlSeg::MKEY_MASK, mkey_mask::FREE);
        assert_eq!(change.as_bytes()[..16], [0xa0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0]);
        let frame = EthSeg::new().with(EthSeg::CS_FLAGS, 0xc0).with(EthSeg::INLINE_HDR_SZ, 18);
        assert_eq!(frame.as_bytes(), &[0, 0, 0, 0, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 18, 0, 0]);
    }

    #[test]
    fn the_list_of_a_receive_request_ends_with_the_key_0x100() {
        assert!(DataSeg::TERMINATOR.is_terminator());
        assert_eq!(DataSeg::TERMINATOR, DataSeg::pointer(0, DataSeg::INVALID_LKEY, 0));
        assert!(!DataSeg::pointer(0, 0x4105, 0).is_terminator());
    }

    #[test]
    fn data_in_the_entry_are_told_from_a_pointer_and_filled_up_to_16_bytes() {
        let head = InlineSeg::of(13);
        assert_eq!(head.as_bytes(), &[0x80, 0, 0, 13]);
        let mut segment = [0; 16];
        head.write_to(&mut segment).unwrap();
        assert!(DataSeg::from_bytes(&segment).unwrap().get(DataSeg::INLINE));
        assert_eq!([0, 12, 13, 28, 29].map(InlineSeg::room), [16, 16, 32, 32, 48]);
    }

    #[test]
    fn a_datagrams_address_has_48_bytes() {
        let mut address =
            UdAdrsVector::new().with(UdAdrsVector::Q_KEY, 0x8001_0000).with(UdAdrsVector::EXT, true);
        address
            .set_rmac([2, 3, 4, 5, 6, 7])
            .set(UdAdrsVector::GRH, true)
            .set(UdAdrsVector::SRC_ADDR_INDEX, 3);
        assert_eq!(UdAdrsVector::SIZE, 48);
        assert_eq!(address.as_bytes()[..4], [0x80, 1, 0, 0]);
        assert_eq!(address.as_bytes()[8], 0x80);
        assert_eq!(address.as_bytes()[0x14..0x1a], [2, 3, 4, 5, 6, 7]);
        assert_eq!(address.as_bytes()[0x1c..0x20], [0x40, 0x30, 0, 0]);
        assert_eq!(address.rmac(), [2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_signature_makes_the_exclusive_or_of_an_entry_0xff() {
        let mut entry = CtrlSeg::new().with(CtrlSeg::WQE_INDEX, 0x1234).with(CtrlSeg::DS, 1);
        let signature = wqe_signature(entry.as_bytes());
        entry.set(CtrlSeg::SIGNATURE, signature.into());
        assert_eq!(entry.as_bytes().iter().fold(0, |sum, byte| sum ^ byte), 0xff);
    }
}
