//! Operation codes: the upper three bits name the transport service, the lower five the operation.
//!
//! `layout` is longer than other functions here: it is one table, an arm for each kind of packet.

use super::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Rdeth, Reth, Xrceth};

/// The transport service bits of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// Reliable connection (0).
    Rc,
    /// Unreliable connection (1).
    Uc,
    /// Reliable datagram (2).
    Rd,
    /// Unreliable datagram (3).
    Ud,
    /// Congestion notification packet (4, opcode 0x81 only).
    Cnp,
    /// Extended reliable connection (5).
    Xrc,
}

macro_rules! packet_ops {
    ($($(#[$m:meta])* $name:ident = $code:literal),* $(,)?) => {
        /// The operation bits of an opcode.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum PacketOp { $($(#[$m])* $name = $code),* }

        impl PacketOp {
            const fn from_bits(bits: u8) -> Option<Self> {
                match bits { $($code => Some(Self::$name),)* _ => None }
            }
        }
    };
}
packet_ops! {
    /// First packet of a SEND.
    SendFirst = 0,
    /// Middle packet of a SEND.
    SendMiddle = 1,
    /// Last packet of a SEND.
    SendLast = 2,
    /// Last packet of a SEND with immediate data.
    SendLastImm = 3,
    /// Whole SEND.
    SendOnly = 4,
    /// Whole SEND with immediate data.
    SendOnlyImm = 5,
    /// First packet of an RDMA WRITE.
    WriteFirst = 6,
    /// Middle packet of an RDMA WRITE.
    WriteMiddle = 7,
    /// Last packet of an RDMA WRITE.
    WriteLast = 8,
    /// Last packet of an RDMA WRITE with immediate data.
    WriteLastImm = 9,
    /// Whole RDMA WRITE.
    WriteOnly = 10,
    /// Whole RDMA WRITE with immediate data.
    WriteOnlyImm = 11,
    /// RDMA READ request.
    ReadRequest = 12,
    /// First packet of a READ response.
    ReadResponseFirst = 13,
    /// Middle packet of a READ response.
    ReadResponseMiddle = 14,
    /// Last packet of a READ response.
    ReadResponseLast = 15,
    /// Whole READ response.
    ReadResponseOnly = 16,
    /// Acknowledge.
    Acknowledge = 17,
    /// Atomic acknowledge.
    AtomicAcknowledge = 18,
    /// Compare and swap.
    CompareSwap = 19,
    /// Fetch and add.
    FetchAdd = 20,
    /// Resync (RD only).
    Resync = 21,
    /// Last packet of a SEND with invalidate.
    SendLastInv = 22,
    /// Whole SEND with invalidate.
    SendOnlyInv = 23,
    /// Flush request (memory placement extensions).
    Flush = 28,
    /// Atomic write (memory placement extensions).
    AtomicWrite = 29,
}

/// The operation code byte of a [`Bth`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(u8);

impl Opcode {
    /// Congestion notification packet of RoCEv2.
    pub const CNP: Self = Self(0x81);

    /// The operation code of any byte.
    #[inline]
    pub const fn new(raw: u8) -> Self {
        Self(raw)
    }
    /// The byte of the operation code.
    #[inline]
    pub const fn raw(self) -> u8 {
        self.0
    }
    /// An operation of the reliable connection.
    #[inline]
    pub const fn rc(op: PacketOp) -> Self {
        Self(op as u8)
    }
    /// An operation of the extended reliable connection.
    #[inline]
    pub const fn xrc(op: PacketOp) -> Self {
        Self(Self::XRC_SERVICE | op as u8)
    }
    /// The service bits of the extended reliable connection.
    pub const XRC_SERVICE: u8 = 0xa0;
    /// The service bits of the reliable datagram.
    pub const RD_SERVICE: u8 = 0x40;
    /// An operation of the unreliable connection.
    #[inline]
    pub const fn uc(op: PacketOp) -> Self {
        Self(0x20 | op as u8)
    }
    /// An operation of the unreliable datagram.
    #[inline]
    pub const fn ud(op: PacketOp) -> Self {
        Self(0x60 | op as u8)
    }
    /// The transport service, if the bits name one.
    #[inline]
    pub const fn kind(self) -> Option<TransportKind> {
        Some(match self.0 >> 5 {
            0 => TransportKind::Rc,
            1 => TransportKind::Uc,
            2 => TransportKind::Rd,
            3 => TransportKind::Ud,
            4 if self.0 == 0x81 => TransportKind::Cnp,
            5 => TransportKind::Xrc,
            _ => return None,
        })
    }
    /// Whether the transport service is the reliable datagram.
    #[inline]
    pub const fn is_rd(self) -> bool {
        self.0 & 0xe0 == Self::RD_SERVICE
    }
    /// The operation, if the low bits name one (for a CNP: none).
    #[inline]
    pub const fn op(self) -> Option<PacketOp> {
        if self.0 == 0x81 { None } else { PacketOp::from_bits(self.0 & 0x1f) }
    }
    /// The headers behind the BTH and their offsets; `None` if the opcode is undefined.
    #[inline]
    pub const fn layout(self) -> Option<&'static Layout> {
        let l = &LAYOUTS[self.0 as usize];
        if l.header_bytes == 0 { None } else { Some(l) }
    }
}

impl core::fmt::Debug for Opcode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match (self.kind(), self.op()) {
            (Some(k), Some(op)) => write!(f, "{k:?}::{op:?}"),
            (Some(k), None) => write!(f, "{k:?}"),
            _ => write!(f, "Opcode({:#04x})", self.0),
        }
    }
}

/// The offsets of an opcode's extended headers from the start of the BTH; 0 for absent ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes from the BTH up to the payload; 0 marks an opcode that does not exist.
    pub header_bytes: u8,
    /// Offset of the RDETH.
    pub rdeth: u8,
    /// Offset of the DETH.
    pub deth: u8,
    /// Offset of the XRCETH.
    pub xrceth: u8,
    /// Offset of the FETH.
    pub feth: u8,
    /// Offset of the RETH.
    pub reth: u8,
    /// Offset of the AtomicETH.
    pub atomic: u8,
    /// Offset of the AETH.
    pub aeth: u8,
    /// Offset of the AtomicAckETH.
    pub atomic_ack: u8,
    /// Offset of the immediate data.
    pub imm: u8,
    /// Offset of the IETH.
    pub ieth: u8,
    /// Whether a payload may follow.
    pub payload: bool,
}

static LAYOUTS: [Layout; 256] = {
    let mut t = [layout(0); 256];
    let mut i = 0;
    while i < 256 {
        t[i] = layout(i as u8);
        i += 1;
    }
    t
};

const fn layout(raw: u8) -> Layout {
    let mut l = Layout {
        header_bytes: 0,
        rdeth: 0,
        deth: 0,
        xrceth: 0,
        feth: 0,
        reth: 0,
        atomic: 0,
        aeth: 0,
        atomic_ack: 0,
        imm: 0,
        ieth: 0,
        payload: false,
    };
    let code = Opcode::new(raw);
    let Some(kind) = code.kind() else { return l };
    let mut at = Bth::BYTES as u8;
    macro_rules! put {
        ($field:ident, $t:ty) => {{
            l.$field = at;
            at += size_of::<$t>() as u8;
        }};
    }
    use PacketOp as P;
    let Some(op) = code.op() else {
        if raw == 0x81 {
            // The CNP carries 16 reserved bytes, seen as payload.
            l.header_bytes = at;
            l.payload = true;
        }
        return l;
    };
    let legal = match kind {
        TransportKind::Rc => !matches!(op, P::Resync),
        TransportKind::Uc => (op as u8) <= P::WriteOnlyImm as u8,
        TransportKind::Ud => matches!(op, P::SendOnly | P::SendOnlyImm),
        TransportKind::Rd => (op as u8) <= P::Resync as u8,
        TransportKind::Xrc => !matches!(op, P::Resync | P::Flush | P::AtomicWrite),
        TransportKind::Cnp => false,
    };
    if !legal {
        return l;
    }
    let response = matches!(
        op,
        P::ReadResponseFirst
            | P::ReadResponseMiddle
            | P::ReadResponseLast
            | P::ReadResponseOnly
            | P::Acknowledge
            | P::AtomicAcknowledge
    );
    if matches!(kind, TransportKind::Rd) {
        put!(rdeth, Rdeth);
    }
    if matches!(kind, TransportKind::Ud) || matches!(kind, TransportKind::Rd) && !response {
        put!(deth, Deth);
    }
    if matches!(kind, TransportKind::Xrc) && !response {
        put!(xrceth, Xrceth);
    }
    if matches!(op, P::Flush) {
        put!(feth, Feth);
    }
    if matches!(
        op,
        P::WriteFirst | P::WriteOnly | P::WriteOnlyImm | P::ReadRequest | P::Flush | P::AtomicWrite
    ) {
        put!(reth, Reth);
    }
    if matches!(op, P::CompareSwap | P::FetchAdd) {
        put!(atomic, AtomicEth);
    }
    if response && !matches!(op, P::ReadResponseMiddle) {
        put!(aeth, Aeth);
    }
    if matches!(op, P::AtomicAcknowledge) {
        put!(atomic_ack, AtomicAckEth);
    }
    if matches!(op, P::SendLastImm | P::SendOnlyImm | P::WriteLastImm | P::WriteOnlyImm) {
        put!(imm, ImmDt);
    }
    if matches!(op, P::SendLastInv | P::SendOnlyInv) {
        put!(ieth, Ieth);
    }
    l.header_bytes = at;
    l.payload = !matches!(
        op,
        P::ReadRequest
            | P::Acknowledge
            | P::AtomicAcknowledge
            | P::CompareSwap
            | P::FetchAdd
            | P::Resync
            | P::Flush
    );
    l
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::MAX_HEADER_BYTES;

    #[test]
    fn an_opcode_is_its_service_and_its_operation() {
        assert_eq!(Opcode::rc(PacketOp::SendOnly).raw(), 0x04);
        assert_eq!(Opcode::uc(PacketOp::WriteOnly).raw(), 0x2a);
        assert_eq!(Opcode::xrc(PacketOp::SendOnly).raw(), 0xa4);
        assert_eq!(Opcode::xrc(PacketOp::Acknowledge).kind(), Some(TransportKind::Xrc));
        assert_eq!(Opcode::ud(PacketOp::SendOnlyImm).raw(), 0x65);
        assert_eq!(Opcode::uc(PacketOp::WriteOnly).kind(), Some(TransportKind::Uc));
        assert_eq!(Opcode::ud(PacketOp::SendOnlyImm).kind(), Some(TransportKind::Ud));
        assert_eq!((Opcode::CNP.kind(), Opcode::CNP.op()), (Some(TransportKind::Cnp), None));
        for raw in (0x80..0xa0).filter(|&raw| raw != 0x81) {
            assert_eq!(Opcode::new(raw).kind(), None, "{raw:#x}");
        }
    }

    #[test]
    fn an_opcode_is_printed_as_far_as_it_means_something() {
        let printed = [0x04, 0x81, 0x18, 0xff].map(|raw| format!("{:?}", Opcode::new(raw)));
        assert_eq!(printed, ["Rc::SendOnly", "Cnp", "Rc", "Opcode(0xff)"]);
    }

    #[test]
    fn all_headers_fit_the_most_that_there_are() {
        let bytes = (0..=u8::MAX).filter_map(|raw| Opcode::new(raw).layout());
        assert!(bytes.map(|layout| usize::from(layout.header_bytes)).max().unwrap() <= MAX_HEADER_BYTES);
    }
}
