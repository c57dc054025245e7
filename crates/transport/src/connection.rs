//! The state of one reliable connection: PSNs, timers, window and replay buffer of both directions.
//!
//! The connection is a type of its own, apart from the queue pair, whose queues it serves through the host: another
//! service may keep several connections, or let several queues share one.

use hca_core::wire::{
    Aeth, Be24, Be32, Bth, BthFlags, Deth, Opcode, PacketOp, Rdeth, Syndrome, TransportKind, Xrceth,
};
use hca_core::{Access, Pkey, Psn, QpAttr, QpType, Qpn, RnrTimer};

use crate::build::{CNP, CNP_PAYLOAD, Ext, reserve_packet};
use crate::window::packet_cost;
use crate::{Count, Host, QpConfig, RdEnds, TxSink};

use crate::requester::Requester;
use crate::responder::Responder;

/// Time between two CNPs of one connection at least.
const CNP_INTERVAL_NS: u64 = 50_000;
/// Packets of one READ request at most.
const MAX_CHUNK_PACKETS: u32 = 64;

/// The service of a connection, by what its requests name beside the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// Nothing (RC).
    Plain,
    /// Requests leave, and each names a shared receive queue of the peer (XRC).
    Initiator,
    /// Requests come, and each names a shared receive queue of this side (XRC).
    Target,
    /// Each request names a queue pair of either side (RD): the connection is an end-to-end context.
    EndToEnd,
}

impl Variant {
    fn of(qp_type: QpType) -> Self {
        match qp_type {
            QpType::XrcIni => Self::Initiator,
            QpType::XrcTgt => Self::Target,
            QpType::Eec => Self::EndToEnd,
            QpType::Rc | QpType::Uc | QpType::Ud | QpType::Rd => Self::Plain,
        }
    }
    /// Whether packets of this service are for this end: responses, or requests.
    pub(crate) const fn takes(self, kind: TransportKind, responses: bool) -> bool {
        match self {
            Self::Plain => matches!(kind, TransportKind::Rc),
            Self::Initiator => matches!(kind, TransportKind::Xrc) && responses,
            Self::Target => matches!(kind, TransportKind::Xrc) && !responses,
            Self::EndToEnd => matches!(kind, TransportKind::Rd),
        }
    }
    /// The service bits of the opcodes.
    const fn service(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Initiator | Self::Target => Opcode::XRC_SERVICE,
            Self::EndToEnd => Opcode::RD_SERVICE,
        }
    }
}

/// The state of the path to the peer, which both directions use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) dest_qpn: Qpn,
    pub(crate) pkey: Pkey,
    /// Path MTU in bytes, a power of two.
    pub(crate) mtu: u32,
    /// The cost of a full packet in the window.
    pub(crate) full_cost: u16,
    /// The peer's access rights.
    pub(crate) access: Access,
    /// Packets that one READ request asks for at most, a power of two. A longer READ is cut into several
    /// requests, so that no more than a window of its data is on its way to this side.
    pub(crate) chunk: u32,
    pub(crate) rnr_timer: RnrTimer,
    /// The queue pair's own timeout; `u64::MAX` is for ever.
    pub(crate) timeout_ns: u64,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) variant: Variant,
    /// The service bits of its opcodes.
    service: u8,
}

impl Path {
    pub(crate) fn new(config: &QpConfig, attr: &QpAttr) -> Self {
        let mtu = attr.path_mtu.unwrap_or(config.port_mtu).bytes();
        let packets = (config.window_bytes / 2 / mtu).clamp(1, MAX_CHUNK_PACKETS);
        let variant = Variant::of(config.qp_type);
        Self {
            dest_qpn: attr.dest_qpn.unwrap_or_default(),
            pkey: attr.pkey.unwrap_or_default(),
            mtu,
            full_cost: packet_cost(mtu),
            access: attr.access.unwrap_or_default(),
            chunk: 1 << packets.ilog2(),
            rnr_timer: attr.min_rnr_timer.unwrap_or_default(),
            timeout_ns: attr
                .timeout
                .and_then(|t| t.duration())
                .map_or(u64::MAX, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
            retry_cnt: attr.retry_cnt.unwrap_or(7),
            rnr_retry: attr.rnr_retry.unwrap_or(7),
            max_rd_atomic: attr.max_rd_atomic.unwrap_or(0),
            variant,
            service: variant.service(),
        }
    }
    /// Packets that `len` bytes take: at least one.
    #[inline]
    pub(crate) fn packets(&self, len: u32) -> u32 {
        if len <= self.mtu { 1 } else { len.div_ceil(self.mtu) }
    }
    /// The BTH of a packet on this path.
    #[inline]
    pub(crate) fn bth(&self, op: PacketOp, flags: BthFlags, pad: u8, psn: Psn) -> Bth {
        self.bth_to(self.dest_qpn, op, flags, pad, psn)
    }
    /// The same, of a packet to this queue pair.
    #[inline]
    pub(crate) fn bth_to(&self, to: Qpn, op: PacketOp, flags: BthFlags, pad: u8, psn: Psn) -> Bth {
        let opcode = Opcode::new(self.service | Opcode::rc(op).raw());
        Bth::new(opcode, flags, pad, self.pkey, to, psn)
    }
    /// The queue pair that every packet of a request is for, and the extended headers that it begins with.
    #[inline]
    pub(crate) fn head<H: Host>(&self, index: u32, host: &H) -> (Qpn, Ext) {
        match self.variant {
            Variant::Plain | Variant::Target => (self.dest_qpn, Ext::none()),
            Variant::Initiator => {
                let srqn = Be24::new(host.named_srq(index).raw());
                (self.dest_qpn, Ext::one(&Xrceth { reserved: 0, srqn }))
            }
            Variant::EndToEnd => self.datagram_head(&host.rd_ends(index)),
        }
    }
    /// The same of a reliable datagram.
    #[inline(never)]
    pub(crate) fn datagram_head(&self, ends: &RdEnds) -> (Qpn, Ext) {
        let mut ext = Ext::one(&self.rdeth());
        ext.push(&Deth { qkey: Be32::new(ends.qkey.raw()), reserved: 0, src_qp: Be24::new(ends.from.raw()) });
        (ends.to, ext)
    }
    /// The queue pair that a response is for, and its extended headers; `asker` sent the request (RD).
    #[inline(always)]
    pub(crate) fn answer(&self, asker: u32, aeth: Aeth) -> (Qpn, Ext) {
        if self.variant == Variant::EndToEnd {
            return self.datagram_answer(asker, Some(aeth));
        }
        (self.dest_qpn, Ext::one(&aeth))
    }
    /// The same of a response's packet without an acknowledgement.
    #[inline(always)]
    pub(crate) fn answer_alone(&self, asker: u32) -> (Qpn, Ext) {
        if self.variant == Variant::EndToEnd {
            return self.datagram_answer(asker, None);
        }
        (self.dest_qpn, Ext::none())
    }
    #[inline(never)]
    fn datagram_answer(&self, asker: u32, aeth: Option<Aeth>) -> (Qpn, Ext) {
        let mut ext = Ext::one(&self.rdeth());
        aeth.iter().for_each(|aeth| ext.push(aeth));
        (Qpn::new(asker), ext)
    }
    fn rdeth(&self) -> Rdeth {
        Rdeth { reserved: 0, eec: Be24::new(self.dest_qpn.raw()) }
    }
}

/// An acknowledgement header.
#[inline]
pub(crate) fn aeth(syndrome: Syndrome, msn: u32) -> Aeth {
    Aeth { syndrome: syndrome.encode(), msn: Be24::new(msn) }
}

/// Congestion notifications towards the peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cnp {
    owed: bool,
    /// None is sent before this time.
    again_ns: u64,
}

impl Cnp {
    /// A packet of the peer met congestion.
    pub(crate) fn marked<H: Host>(&mut self, now_ns: u64, host: &mut H) {
        host.count(Count::EcnMarked);
        if now_ns >= self.again_ns {
            self.again_ns = now_ns.saturating_add(CNP_INTERVAL_NS);
            self.owed = true;
        }
    }
    #[inline]
    pub(crate) fn is_owed(&self) -> bool {
        self.owed
    }
    /// Sends the one that is owed. `None`: the sink is full.
    pub(crate) fn poll<H: Host, T: TxSink>(
        &mut self,
        pkey: Pkey,
        dest_qpn: Qpn,
        host: &mut H,
        tx: &mut T,
    ) -> Option<()> {
        let bth = Bth::new(CNP, BthFlags::BECN, 0, pkey, dest_qpn, Psn::new(0));
        reserve_packet(tx, None, &bth, &Ext::none(), CNP_PAYLOAD)?.fill(0);
        tx.commit();
        host.count(Count::CnpSent);
        self.owed = false;
        Some(())
    }
}

/// One reliable connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) path: Path,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) cnp: Cnp,
}

impl Connection {
    pub(crate) fn new(config: &QpConfig, attr: &QpAttr, sq_index: u32) -> Self {
        let path = Path::new(config, attr);
        Self {
            requester: Requester::new(&path, config, attr.sq_psn.unwrap_or_default(), sq_index),
            responder: Responder::new(
                attr.rq_psn.unwrap_or_default(),
                attr.max_dest_rd_atomic.unwrap_or_default(),
            ),
            cnp: Cnp::default(),
            path,
        }
    }

    /// Ready to send, from this PSN on.
    pub(crate) fn start(&mut self, config: &QpConfig, attr: &QpAttr, psn: Psn) {
        self.path = Path::new(config, attr);
        self.requester = Requester::new(&self.path, config, psn, self.requester.una.index);
        self.requester.posted();
    }
    /// Attributes changed, or sending may go on.
    pub(crate) fn update(&mut self, config: &QpConfig, attr: &QpAttr) {
        self.path = Path::new(config, attr);
        self.requester.update(&self.path);
        self.responder.set_max_dest_rd_atomic(attr.max_dest_rd_atomic.unwrap_or_default());
        self.requester.posted();
    }
}
