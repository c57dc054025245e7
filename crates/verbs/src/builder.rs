//! Building queue pairs.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hca_core::{Access, DeviceError, Pkey, Psn, Qkey, QpAttr, QpCap, QpInit, QpPorts, QpState, QpType, Qpn};

use crate::BuildError;
use crate::connect::Endpoint;
use crate::context::Ctx;
use crate::cq::{CqRef, Entry, Need, register};
use crate::pd::Pd;
use crate::post::{RecvSide, SendSide};
use crate::qp::{QpInner, QueuePair};
use crate::rd::RdDomain;
use crate::service::{Rd, Service};
use crate::slots::{PoolSlots, RecvPoster, RecvSlots, RingSlots, Taker};
use crate::srq::SrqRef;
use crate::sync;
use crate::wc::Record;

/// A builder of queue pairs. From [`Pd::qp`].
///
/// ```
/// # use hca_verbs::*;
/// # fn example(pd: &Pd, cq: &CompletionQueue) -> Result<(), BuildError> {
/// let qp: QueuePair<Rc> = pd.qp::<Rc>(cq).max_send_wr(64).max_recv_wr(64).max_inline(256).build()?;
/// println!("{}", qp.endpoint()); // to be exchanged, then qp.connect(..)
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder builds nothing until `build` is called"]
pub struct QpBuilder<'a, S> {
    pd: &'a Pd,
    send_cq: CqRef,
    recv_cq: CqRef,
    srq: Option<SrqRef>,
    cap: QpCap,
    access: Access,
    pkey: Pkey,
    psn: Option<Psn>,
    rd_atomic: Option<u8>,
    context: u64,
    general_services: bool,
    /// The RD domain of the queue pair.
    rd: Option<RdDomain>,
    service: PhantomData<fn() -> S>,
}

impl QpBuilder<'_, crate::Ud> {
    /// Builds the general services queue pair, which has the number 1 and receives the messages of peers' connection
    /// managers. A device reports whether it supports one ([`DeviceAttr::general_services`](hca_core::DeviceAttr)), and
    /// has at most one at a time.
    pub fn general_services(mut self) -> Self {
        self.general_services = true;
        self
    }
}

impl<'a> QpBuilder<'a, Rd> {
    pub(crate) fn of_rd_domain(pd: &'a Pd, cq: CqRef, domain: RdDomain) -> Self {
        Self { rd: Some(domain), ..Self::new(pd, cq) }
    }
}

impl<'a, S: Service> QpBuilder<'a, S> {
    pub(crate) fn new(pd: &'a Pd, cq: CqRef) -> Self {
        Self {
            pd,
            send_cq: cq.clone(),
            recv_cq: cq,
            srq: None,
            cap: QpCap::default(),
            access: Access::BY_PEERS,
            pkey: Pkey::DEFAULT,
            psn: None,
            rd_atomic: None,
            context: 0,
            general_services: false,
            rd: None,
            service: PhantomData,
        }
    }

    /// Sets the completion queue of the send queue.
    pub fn send_cq(mut self, cq: impl AsRef<CqRef>) -> Self {
        self.send_cq = cq.as_ref().clone();
        self
    }
    /// Sets the completion queue of the receive queue.
    pub fn recv_cq(mut self, cq: impl AsRef<CqRef>) -> Self {
        self.recv_cq = cq.as_ref().clone();
        self
    }
    /// Sets the shared receive queue from which receive requests come.
    pub fn srq(mut self, srq: impl AsRef<SrqRef>) -> Self {
        self.srq = Some(srq.as_ref().clone());
        self
    }
    /// Outstanding send requests; 128 unless given.
    pub fn max_send_wr(mut self, n: u32) -> Self {
        self.cap.max_send_wr = n;
        self
    }
    /// Outstanding receive requests; 128 unless given. Without meaning with a shared receive queue.
    pub fn max_recv_wr(mut self, n: u32) -> Self {
        self.cap.max_recv_wr = n;
        self
    }
    /// Entries in a send request's list; 4 unless given.
    pub fn max_send_sge(mut self, n: u32) -> Self {
        self.cap.max_send_sge = n;
        self
    }
    /// Entries in a receive request's list; 4 unless given.
    pub fn max_recv_sge(mut self, n: u32) -> Self {
        self.cap.max_recv_sge = n;
        self
    }
    /// Inline bytes of a send request; 64 unless given.
    pub fn max_inline(mut self, bytes: u32) -> Self {
        self.cap.max_inline = bytes;
        self
    }
    /// The operations that the connected peer may execute on regions whose keys it has; all unless given. Without
    /// meaning for datagrams.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }
    /// The partition; the default one unless given.
    pub fn pkey(mut self, pkey: Pkey) -> Self {
        self.pkey = pkey;
        self
    }
    /// The first PSN that the queue pair sends; drawn by the context unless given.
    pub fn psn(mut self, psn: Psn) -> Self {
        self.psn = Some(psn);
        self
    }
    /// The peer's READs and atomics that the queue pair serves at once; the device's limit, but at most 16, unless
    /// given.
    pub fn rd_atomic(mut self, n: u8) -> Self {
        self.rd_atomic = Some(n);
        self
    }
    /// A number of the program's own, which completions carry.
    pub fn context(mut self, context: u64) -> Self {
        self.context = context;
        self
    }

    /// Builds the queue pair in state INIT: it takes receive requests, and waits to be connected (or activated).
    ///
    /// # Errors
    /// A completion queue has too few entries left, a limit of the device is reached, or a part belongs to another
    /// context or protection domain.
    pub fn build(self) -> Result<QueuePair<S>, BuildError> {
        self.check()?;
        let (send_need, recv_need) = self.needs();
        self.send_cq.shared.reserve("send", send_need)?;
        if let Err(e) = self.recv_cq.shared.reserve("receive", recv_need) {
            self.send_cq.shared.release(send_need);
            return Err(e);
        }
        let ports = self.create().inspect_err(|_| {
            self.send_cq.shared.release(send_need);
            self.recv_cq.shared.release(recv_need);
        })?;
        let (inner, send, recv) = self.assemble(ports, send_need, recv_need);
        let qp = QueuePair::new(inner, send, recv);
        // From here on, dropping `qp` undoes everything.
        let attr = to_init(S::TYPE, self.pkey, self.access);
        self.pd.core.ctx.device.modify_qp(qp.handle(), &attr)?;
        Ok(qp)
    }

    fn check(&self) -> Result<(), BuildError> {
        let ctx = &self.pd.core.ctx;
        for (what, cq) in
            [("send completion queue", &self.send_cq), ("receive completion queue", &self.recv_cq)]
        {
            if !Arc::ptr_eq(&cq.shared.ctx, ctx) {
                return Err(BuildError::ForeignContext { what });
            }
        }
        if self.rd.as_ref().is_some_and(|rd| !rd.is_of(&self.pd.core)) {
            return Err(BuildError::ForeignContext { what: "protection domain" });
        }
        if let Some(srq) = &self.srq {
            srq.check_pd(&self.pd.core)?;
        }
        let (attr, cap) = (ctx.device.attr(), &self.cap);
        let mut limits = vec![
            ("max_send_wr", cap.max_send_wr, 1, attr.max_qp_wr),
            ("max_send_sge", cap.max_send_sge, 0, attr.max_sge),
            ("max_inline", cap.max_inline, 0, attr.max_inline),
        ];
        if self.srq.is_none() && S::TYPE != QpType::XrcIni {
            limits.push(("max_recv_wr", cap.max_recv_wr, 0, attr.max_qp_wr));
            limits.push(("max_recv_sge", cap.max_recv_sge, 0, attr.max_sge));
        }
        match limits.into_iter().find(|&(_, value, min, max)| value < min || value > max) {
            Some((what, value, min, max)) => Err(BuildError::OutOfRange { what, value, min, max }),
            None => Ok(()),
        }
    }

    /// The entries to reserve on the two completion queues.
    fn needs(&self) -> (Need, Need) {
        let send = Need { entries: self.cap.max_send_wr, srq: None };
        let recv = match &self.srq {
            _ if S::TYPE == QpType::XrcIni => Need { entries: 0, srq: None },
            Some(srq) => Need { entries: 0, srq: Some((srq.inner.handle, srq.inner.most)) },
            None => Need { entries: self.cap.max_recv_wr, srq: None },
        };
        (send, recv)
    }

    fn create(&self) -> Result<QpPorts, DeviceError> {
        let init = QpInit {
            qp_type: S::TYPE,
            send_cq: self.send_cq.handle(),
            recv_cq: self.recv_cq.handle(),
            srq: self.srq.as_ref().map(|srq| srq.inner.handle),
            cap: self.cap,
        };
        let (device, pd) = (&self.pd.core.ctx.device, self.pd.core.handle);
        if let Some(rd) = &self.rd {
            rd.create_qp(pd, &init)
        } else if self.general_services {
            device.create_general_services_qp(pd, &init)
        } else {
            device.create_qp(pd, &init)
        }
    }

    /// Puts slots between the ports and the completion queues.
    fn assemble(
        &self,
        ports: QpPorts,
        send_need: Need,
        recv_need: Need,
    ) -> (QpInner, SendSide, Option<RecvSide>) {
        let (core, cap) = (&self.pd.core, &self.cap);
        // A datagram also holds its address handle.
        let (send, poster, taker) = RingSlots::create(cap.max_send_wr, cap.max_send_sge as usize + 1);
        let send_side = SendSide::new(ports.send, poster, Arc::clone(core), cap);
        let recv_side =
            |port, poster| RecvSide::new(port, poster, Arc::clone(core), cap.max_recv_wr, cap.max_recv_sge);
        let (recv, recv_taker, recv_side) = match (&self.srq, ports.recv) {
            (Some(srq), _) => {
                let slots = &srq.inner.slots;
                let taker = Taker::Shared(sync::Arc::clone(slots));
                (RecvSlots::Shared(sync::Arc::clone(slots)), taker, None)
            }
            // Several end-to-end contexts take from it.
            (None, port) if S::TYPE == QpType::Rd => {
                let (slots, poster) = PoolSlots::create(cap.max_recv_wr, cap.max_recv_sge as usize);
                let taker = Taker::Shared(sync::Arc::clone(&slots));
                let side = port.map(|port| recv_side(port, RecvPoster::Shared(poster)));
                (RecvSlots::Shared(slots), taker, side)
            }
            (None, port) => {
                let (slots, poster, taker) = RingSlots::create(cap.max_recv_wr, cap.max_recv_sge as usize);
                let side = port.map(|port| recv_side(port, RecvPoster::Own(poster)));
                (RecvSlots::Own(slots), Taker::Own(taker), side)
            }
        };
        let (qp, context) = (ports.handle, self.context);
        let grh_area = if S::TYPE == QpType::Ud { Record::GRH_AREA } else { 0 };
        let (send_cq, recv_cq) = (Arc::clone(&self.send_cq.shared), Arc::clone(&self.recv_cq.shared));
        register(
            &send_cq,
            &recv_cq,
            Entry { qp, context, grh_area, send: Some(taker), recv: Some(recv_taker) },
        );
        let inner = QpInner {
            pd: Arc::clone(core),
            handle: qp,
            endpoint: endpoint(&core.ctx, S::TYPE, ports.qpn, self.psn, self.rd_atomic),
            context,
            cap: *cap,
            send,
            recv,
            send_cq: (send_cq, send_need),
            recv_cq: (recv_cq, recv_need),
            srq: self.srq.as_ref().map(|srq| Arc::clone(&srq.inner)),
            last_wqe_reached: AtomicBool::new(false),
            _rd: self.rd.clone(),
        };
        (inner, send_side, recv_side)
    }
}

/// The data that the peer of a new queue pair must know.
pub(crate) fn endpoint(
    ctx: &Ctx,
    service: QpType,
    qpn: Qpn,
    psn: Option<Psn>,
    rd_atomic: Option<u8>,
) -> Endpoint {
    let port = ctx.device.port();
    let serves = ctx.device.attr().max_rd_atomic;
    Endpoint {
        service,
        qpn,
        psn: psn.unwrap_or_else(|| ctx.next_psn()),
        mtu: port.active_mtu,
        rd_atomic: rd_atomic.unwrap_or(16).min(serves),
        gid: port.gid,
        lid: port.lid,
    }
}

/// What takes a new queue pair to INIT.
pub(crate) fn to_init(service: QpType, pkey: Pkey, access: Access) -> QpAttr {
    let datagram = matches!(service, QpType::Ud | QpType::Rd);
    QpAttr {
        state: Some(QpState::Init),
        pkey: Some(pkey),
        access: (!datagram).then_some(access),
        qkey: datagram.then_some(Qkey::new(0)),
        ..QpAttr::default()
    }
}
