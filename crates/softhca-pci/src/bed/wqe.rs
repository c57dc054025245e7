//! Requests of send queues.

use hca_core::Gid;
use hca_prm::{
    AtomicSeg, CompletionMode, CtrlSeg, DataSeg, InlineSeg, RaddrSeg, UdAdrsVector, WqeOpcode, XrcSeg,
};

/// A request of a send queue that is being put together.
#[derive(Clone, Debug)]
pub(crate) struct Wqe {
    ctrl: CtrlSeg,
    rest: Vec<u8>,
}

impl Wqe {
    pub(crate) fn new(opcode: WqeOpcode) -> Self {
        let ctrl = CtrlSeg::new()
            .with(CtrlSeg::OPCODE, opcode.code())
            .with(CtrlSeg::CE, CompletionMode::Always.code());
        Self { ctrl, rest: Vec::new() }
    }
    pub(crate) fn quiet(mut self) -> Self {
        self.ctrl.set(CtrlSeg::CE, 0);
        self
    }
    pub(crate) fn solicited(mut self) -> Self {
        self.ctrl.set(CtrlSeg::SE, true);
        self
    }
    pub(crate) fn opcode(mut self, code: u32) -> Self {
        self.ctrl.set(CtrlSeg::OPCODE, code);
        self
    }
    pub(crate) fn imm(mut self, imm: u32) -> Self {
        self.ctrl.set(CtrlSeg::IMM, imm);
        self
    }
    /// To a shared receive queue of the peer's domain.
    pub(crate) fn srq(mut self, number: u32) -> Self {
        self.rest.extend(XrcSeg::new().with(XrcSeg::XRC_SRQN, number).as_bytes());
        self
    }
    pub(crate) fn to(mut self, remote: RaddrSeg) -> Self {
        self.rest.extend(remote.as_bytes());
        self
    }
    pub(crate) fn datagram(self, gid: Gid, lid: u32, qpn: u32, qkey: u32) -> Self {
        self.datagram_of_class(gid, lid, qpn, qkey, 0)
    }
    /// A datagram with a traffic class.
    pub(crate) fn datagram_of_class(mut self, gid: Gid, lid: u32, qpn: u32, qkey: u32, class: u32) -> Self {
        let to = UdAdrsVector::new()
            .with(UdAdrsVector::Q_KEY, qkey)
            .with(UdAdrsVector::EXT, true)
            .with(UdAdrsVector::DESTINATION_QP_DCT, qpn)
            .with(UdAdrsVector::RLID_UDP_SPORT, lid)
            .with(UdAdrsVector::GRH, gid != Gid::default())
            .with(UdAdrsVector::TCLASS, class)
            .with(UdAdrsVector::RGID_RIP, gid.0);
        self.rest.extend(to.as_bytes());
        self
    }
    /// A datagram between Ethernet ports, as their drivers address it: by MAC and GID, with a UDP port where a LID
    /// would be.
    pub(crate) fn ethernet_datagram(mut self, gid: Gid, port: u32, qpn: u32, qkey: u32) -> Self {
        let mut to = UdAdrsVector::new()
            .with(UdAdrsVector::Q_KEY, qkey)
            .with(UdAdrsVector::EXT, true)
            .with(UdAdrsVector::DESTINATION_QP_DCT, qpn)
            .with(UdAdrsVector::RLID_UDP_SPORT, port)
            .with(UdAdrsVector::RGID_RIP, gid.0);
        to.set_rmac([2, 0, 0, 0, 0, 1]);
        self.rest.extend(to.as_bytes());
        self
    }
    /// Any segments.
    #[cfg(test)]
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.rest.extend(bytes);
        self
    }
    /// A datagram that is addressed so.
    #[cfg(test)]
    pub(crate) fn address(mut self, to: &UdAdrsVector) -> Self {
        self.rest.extend(to.as_bytes());
        self
    }
    pub(crate) fn atomic(mut self, swap_add: u64, compare: u64) -> Self {
        let seg = AtomicSeg::new().with(AtomicSeg::SWAP_ADD, swap_add).with(AtomicSeg::COMPARE, compare);
        self.rest.extend(seg.as_bytes());
        self
    }
    pub(crate) fn seg(mut self, seg: DataSeg) -> Self {
        self.rest.extend(seg.as_bytes());
        self
    }
    pub(crate) fn inline(mut self, bytes: &[u8]) -> Self {
        let from = self.rest.len();
        self.rest.extend(InlineSeg::of(bytes.len() as u32).as_bytes());
        self.rest.extend(bytes);
        self.rest.resize(from + InlineSeg::room(bytes.len()), 0);
        self
    }
    pub(crate) fn bytes(&self, qpn: u32, counter: u16) -> Vec<u8> {
        let ds = (CtrlSeg::SIZE + self.rest.len()) / 16;
        let ctrl = self
            .ctrl
            .with(CtrlSeg::QP_OR_SQ, qpn)
            .with(CtrlSeg::WQE_INDEX, counter.into())
            .with(CtrlSeg::DS, ds as u32);
        let mut bytes = ctrl.as_bytes().to_vec();
        bytes.extend(&self.rest);
        bytes
    }
}
