//! Two clients that keep the rules, beside a client that does not; and a measure of the adapter's free room.
#![allow(unsafe_code)] // the contract of `reg_mr`

use hca_core::{Access, AddressVector, AsyncEvent, Device, MrInit, QpCap, QpInit, QpType, SrqInit};
use hca_prm::{Cqe64, CqeOpcode, WqeOpcode};
use softhca::SoftHca;

use super::banks::has_secret;
use crate::bed::{BASE, End, LEN, Pair, QpShape, Server, Wqe};
use crate::function::Function;

/// Bytes of a message.
const BYTES: usize = 24;

/// Two connected clients.
pub(super) struct Honest {
    pair: Pair,
    messages: u64,
    /// Completions that are to come.
    owed: u32,
}

impl Honest {
    pub(super) fn new(server: &Server) -> Self {
        Self { pair: Pair::over(server.clone(), [1, 2], QpShape::default()), messages: 0, owed: 0 }
    }

    fn ends(&mut self) -> [&mut End; 2] {
        [&mut self.pair.a, &mut self.pair.b]
    }

    /// A queue pair that the hostile client may name.
    pub(super) fn qpn(&self) -> u32 {
        self.pair.a.qp.qpn
    }

    pub(super) fn step(&mut self, step: fn(&mut Function) -> bool) {
        for end in self.ends() {
            step(&mut end.client.function);
        }
    }

    pub(super) fn take(&mut self, event: AsyncEvent) -> bool {
        self.ends().into_iter().any(|end| end.client.function.take_event(event))
    }

    fn text(&self) -> [u8; BYTES] {
        core::array::from_fn(|i| (self.messages as u8).wrapping_mul(31).wrapping_add(i as u8))
    }

    /// One sends a message to the other.
    pub(super) fn post(&mut self) {
        self.messages += 1;
        self.owed += 2;
        let text = self.text();
        self.pair.b.recv(64, BYTES as u32);
        self.pair.a.fill(0, &text);
        let seg = self.pair.a.mr.seg(0, BYTES as u32);
        self.pair.a.post(&Wqe::new(WqeOpcode::Send).seg(seg));
    }

    /// Whether it has come, and its sender has been told.
    pub(super) fn has_heard(&mut self) -> bool {
        if let Some(received) = self.pair.b.received() {
            assert_eq!(received.get(Cqe64::OPCODE), CqeOpcode::RespSend.code(), "{received:?}");
            assert_eq!(self.pair.b.bytes(64, BYTES), self.text());
            self.owed -= 1;
        }
        if let Some(sent) = self.pair.a.sent() {
            assert_eq!(sent.get(Cqe64::OPCODE), CqeOpcode::Req.code(), "{sent:?}");
            self.owed -= 1;
        }
        self.owed == 0
    }

    /// Nothing of what is not theirs has come to them.
    pub(super) fn check(&self) {
        for end in [&self.pair.a, &self.pair.b] {
            assert!(!has_secret(&end.client.read(BASE, LEN as usize)));
        }
    }
}

static BYTE: u8 = 0;

/// How many objects of each kind the adapter takes: protection domains, completion queues, shared receive queues,
/// address handles, regions, queue pairs.
pub(super) fn room(hca: &SoftHca) -> [usize; 6] {
    let pds: Vec<_> = std::iter::from_fn(|| hca.alloc_pd().ok()).collect();
    let pd = *pds.first().expect("there is room for one");
    let cqs: Vec<_> = std::iter::from_fn(|| hca.create_cq(1).ok()).collect();
    let init = SrqInit { max_wr: 1, max_sge: 1 };
    let srqs: Vec<_> = std::iter::from_fn(|| hca.create_srq(pd, &init).ok()).collect();
    let av = AddressVector { dgid: hca.port().gid, ..AddressVector::default() };
    let ahs: Vec<_> = std::iter::from_fn(|| hca.create_ah(pd, &av).ok()).collect();
    let addr = core::ptr::NonNull::from(&BYTE);
    let mr = MrInit { addr, len: 1, iova: 1, access: Access::empty() };
    // SAFETY: it lives for ever, and allows nobody to write.
    let mrs: Vec<_> = std::iter::from_fn(|| unsafe { hca.reg_mr(pd, &mr) }.ok()).collect();
    let cq = cqs.first().expect("there is room for one").0;
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    let init = QpInit { qp_type: QpType::Ud, send_cq: cq, recv_cq: cq, srq: None, cap };
    let qps: Vec<_> = std::iter::from_fn(|| hca.create_qp(pd, &init).ok()).collect();
    let counts = [pds.len(), cqs.len(), srqs.len(), ahs.len(), mrs.len(), qps.len()];
    qps.iter().for_each(|qp| drop(hca.destroy_qp(qp.handle).unwrap()));
    mrs.iter().for_each(|mr| hca.dereg_mr(mr.handle).unwrap());
    ahs.iter().for_each(|ah| hca.destroy_ah(*ah).unwrap());
    srqs.iter().for_each(|(srq, _)| hca.destroy_srq(*srq).unwrap());
    cqs.iter().for_each(|(cq, _)| hca.destroy_cq(*cq).unwrap());
    pds.iter().for_each(|pd| hca.dealloc_pd(*pd).unwrap());
    counts
}
