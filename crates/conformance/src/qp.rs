//! Queue pairs of a check, shared receive queues, and pairs of connected queue pairs.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use hca_core::{
    Access, AckTimeout, AddressVector, AsyncEvent, DeviceError, Gid, Mtu, Payload, Pkey, PostError,
    PostErrorKind, Psn, Qkey, QpAttr, QpCap, QpHandle, QpInit, QpPorts, QpState, QpStatus, QpType, Qpn,
    RecvPort, RecvWr, RnrTimer, SendFlags, SendOp, SendPort, SendWr, Sge, SrqHandle, SrqInit, WcStatus,
};

use crate::Bed;
use crate::mem::Mem;
use crate::node::{Cq, Node, Pd};
use crate::world::{RaiseOnDrop, lock};

/// Everything that a peer or this side may be allowed on regions of all devices.
pub(crate) const ALL: Access = Access::all().difference(FLUSHES);
/// The rights to FLUSH.
pub(crate) const FLUSHES: Access = Access::FLUSH_GLOBAL.union(Access::FLUSH_PERSISTENT);
/// The Q_Key of a check's datagrams.
pub(crate) const QKEY: Qkey = Qkey::new(0x1234_5678);

/// How the queue pairs of a check are made and connected; the first of two values is side A's.
#[derive(Clone, Copy)]
pub(crate) struct Conn {
    pub(crate) qp_type: QpType,
    pub(crate) cap: QpCap,
    pub(crate) cq_depth: u32,
    pub(crate) mtu: Mtu,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) psn: [u32; 2],
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) access: Access,
    pub(crate) mem_bytes: usize,
}

impl Default for Conn {
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            cap: QpCap::default(),
            cq_depth: 512,
            mtu: Mtu::B1024,
            timeout: 16,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            psn: [0x11_2233, 0x44_5566],
            max_rd_atomic: 8,
            max_dest_rd_atomic: 8,
            access: Access::all(),
            mem_bytes: 16 << 10,
        }
    }
}

impl Conn {
    pub(crate) fn of(qp_type: QpType) -> Self {
        Self { qp_type, ..Self::default() }
    }
    /// With a path MTU that an adapter's port has.
    pub(crate) fn at(qp_type: QpType, node: &Node) -> Self {
        let conn = Self::of(qp_type);
        Self { mtu: conn.mtu.min(node.dev().port().active_mtu), ..conn }
    }
    pub(crate) fn init(&self) -> QpAttr {
        let ud = matches!(self.qp_type, QpType::Ud | QpType::Rd);
        QpAttr {
            state: Some(QpState::Init),
            pkey: Some(Pkey::DEFAULT),
            qkey: ud.then_some(QKEY),
            access: (!ud).then_some(self.access),
            ..QpAttr::default()
        }
    }
    /// To RTR, towards queue pair `qpn` at `gid`; `psn` is the peer's first.
    pub(crate) fn rtr(&self, qpn: Qpn, gid: Gid, psn: u32) -> QpAttr {
        let (rc, ud) =
            (matches!(self.qp_type, QpType::Rc | QpType::XrcTgt | QpType::Eec), self.qp_type == QpType::Ud);
        QpAttr {
            state: Some(QpState::Rtr),
            dest_qpn: (!ud).then_some(qpn),
            av: (!ud).then_some(AddressVector { dgid: gid, ..AddressVector::default() }),
            path_mtu: (!ud).then_some(self.mtu),
            rq_psn: (!ud).then_some(Psn::new(psn)),
            max_dest_rd_atomic: rc.then_some(self.max_dest_rd_atomic),
            min_rnr_timer: rc.then_some(RnrTimer::new(self.min_rnr_timer)),
            ..QpAttr::default()
        }
    }
    pub(crate) fn rts(&self, psn: u32) -> QpAttr {
        let rc = matches!(self.qp_type, QpType::Rc | QpType::XrcIni | QpType::Eec);
        QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(psn)),
            timeout: self.qp_type.is_reliable().then_some(AckTimeout::new(self.timeout)),
            retry_cnt: rc.then_some(self.retry_cnt),
            rnr_retry: rc.then_some(self.rnr_retry),
            max_rd_atomic: rc.then_some(self.max_rd_atomic),
            ..QpAttr::default()
        }
    }
}

/// Only a change of state.
pub(crate) fn to_state(state: QpState) -> QpAttr {
    QpAttr { state: Some(state), ..QpAttr::default() }
}

/// A queue pair; destroyed when dropped.
pub(crate) struct Qp {
    pub(crate) node: Node,
    pub(crate) handle: QpHandle,
    pub(crate) qpn: Qpn,
    pub(crate) cap: QpCap,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    send: Mutex<Box<dyn SendPort>>,
    recv: Mutex<Option<Box<dyn RecvPort>>>,
    _srq: Option<Arc<Srq>>,
}

impl Node {
    /// A queue pair in RESET with two completion queues of its own.
    pub(crate) fn qp(&self, conn: &Conn) -> Qp {
        self.qp_on(conn, &self.cq(conn.cq_depth), &self.cq(conn.cq_depth), None)
    }
    /// A queue pair in RESET on given completion queues.
    pub(crate) fn qp_on(
        &self,
        conn: &Conn,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        srq: Option<&Arc<Srq>>,
    ) -> Qp {
        let ports = self
            .dev()
            .create_qp(self.pd.handle, &qp_init(conn, send_cq, recv_cq, srq))
            .expect("a queue pair");
        self.qp_of(ports, conn, (send_cq, recv_cq), srq)
    }
    /// The general services queue pair, in RESET.
    pub(crate) fn general_services(&self) -> Result<Qp, DeviceError> {
        let conn = Conn::of(QpType::Ud);
        let (send_cq, recv_cq) = (self.cq(conn.cq_depth), self.cq(conn.cq_depth));
        let init = qp_init(&conn, &send_cq, &recv_cq, None);
        let ports = self.dev().create_general_services_qp(self.pd.handle, &init)?;
        Ok(self.qp_of(ports, &conn, (&send_cq, &recv_cq), None))
    }
    pub(crate) fn qp_of(
        &self,
        ports: QpPorts,
        conn: &Conn,
        (send_cq, recv_cq): (&Arc<Cq>, &Arc<Cq>),
        srq: Option<&Arc<Srq>>,
    ) -> Qp {
        let (want, got) = (conn.cap, ports.cap);
        assert!(got.max_send_wr >= want.max_send_wr && got.max_send_sge >= want.max_send_sge);
        assert!(got.max_inline >= want.max_inline);
        assert!(
            srq.is_some()
                || conn.qp_type == QpType::XrcIni
                || got.max_recv_wr >= want.max_recv_wr && got.max_recv_sge >= want.max_recv_sge
        );
        let receives = srq.is_none() && conn.qp_type != QpType::XrcIni;
        assert_eq!(ports.recv.is_some(), receives, "a receive port comes without an SRQ, and only so");
        Qp {
            node: self.clone(),
            handle: ports.handle,
            qpn: ports.qpn,
            cap: got,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            send: Mutex::new(ports.send),
            recv: Mutex::new(ports.recv),
            _srq: srq.cloned(),
        }
    }
}

pub(crate) fn qp_init(conn: &Conn, send_cq: &Cq, recv_cq: &Cq, srq: Option<&Arc<Srq>>) -> QpInit {
    QpInit {
        qp_type: conn.qp_type,
        send_cq: send_cq.handle,
        recv_cq: recv_cq.handle,
        srq: srq.map(|s| s.handle),
        cap: conn.cap,
    }
}

impl Qp {
    /// Posts a batch of send requests and rings.
    pub(crate) fn try_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let mut port = lock(&self.send);
        // SAFETY: the memory of a check is reached through atomics only (see `mem`), so there is no
        // reference to it; whether a key fits is the device's to check.
        let r = unsafe { port.post(wrs) };
        port.ring();
        r
    }
    /// Whether a send request would be taken behind so many others.
    pub(crate) fn would_take(&self, wr: &SendWr<'_>, before: usize) -> Result<(), PostErrorKind> {
        lock(&self.send).would_take(wr, before)
    }
    /// Whether the device does a request within a call.
    pub(crate) fn carries_out(&self, wr: &SendWr<'_>) -> bool {
        // SAFETY: as in `try_send`.
        unsafe { lock(&self.send).carry_out(wr) }
    }
    /// Posts a batch of receive requests and rings.
    pub(crate) fn try_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let mut port = lock(&self.recv);
        let port = port.as_mut().expect("this queue pair has a receive queue");
        // SAFETY: as in `try_send`.
        let r = unsafe { port.post(wrs) };
        port.ring();
        r
    }
    /// Posts one signalled request.
    #[track_caller]
    pub(crate) fn send(&self, wr_id: u64, op: SendOp, sges: &[Sge]) {
        self.try_send(&[wr(wr_id, op, sges)]).expect("the request is taken");
    }
    /// Posts one receive request.
    #[track_caller]
    pub(crate) fn recv(&self, wr_id: u64, sges: &[Sge]) {
        self.try_recv(&[RecvWr { wr_id, sges }]).expect("the request is taken");
    }
    pub(crate) fn modify(&self, attr: &QpAttr) -> Result<(), DeviceError> {
        self.node.dev().modify_qp(self.handle, attr)
    }
    /// Goes to a state that needs no attributes.
    #[track_caller]
    pub(crate) fn go(&self, state: QpState) {
        self.modify(&to_state(state)).expect("a legal transition");
    }
    pub(crate) fn query(&self) -> QpStatus {
        self.node.dev().query_qp(self.handle).expect("the queue pair is there")
    }
    pub(crate) fn state(&self) -> QpState {
        self.query().state
    }
    /// Waits until it is in a state.
    pub(crate) fn wait_state(&self, state: QpState) {
        self.node.world.wait(&format!("state {state:?} (it is {:?})", self.state()), || {
            (self.state() == state).then_some(())
        });
    }
    pub(crate) fn wait_event(&self, event: fn(QpHandle) -> AsyncEvent) {
        self.node.wait_event(event(self.handle));
    }
    pub(crate) fn count_events(&self, event: fn(QpHandle) -> AsyncEvent) -> usize {
        self.node.count_events(event(self.handle))
    }
    pub(crate) fn to_init(&self, conn: &Conn) {
        self.modify(&conn.init()).expect("RESET to INIT");
    }
    /// From INIT to RTS towards a peer; `side` says whose PSNs are whose.
    pub(crate) fn to_rts(&self, conn: &Conn, qpn: Qpn, gid: Gid, side: usize) {
        self.modify(&conn.rtr(qpn, gid, conn.psn[1 - side])).expect("INIT to RTR");
        self.modify(&conn.rts(conn.psn[side])).expect("RTR to RTS");
    }
}

impl Qp {
    /// Destroys it ahead of time.
    pub(crate) fn destroy(&self) -> Result<Vec<u64>, DeviceError> {
        self.node.dev().destroy_qp(self.handle)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let _ = self.destroy();
    }
}

/// Brings two queue pairs in RESET to RTS, towards each other.
pub(crate) fn connect(conn: &Conn, a: &Qp, b: &Qp) {
    connect_to(conn, [a, b], [a.node.gid(), b.node.gid()]);
}

/// The same, each by its GID among these.
fn connect_to(conn: &Conn, [a, b]: [&Qp; 2], gids: [Gid; 2]) {
    a.to_init(conn);
    b.to_init(conn);
    b.to_rts(conn, a.qpn, gids[0], 1);
    a.to_rts(conn, b.qpn, gids[1], 0);
}

/// A signalled request.
pub(crate) fn wr(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendWr<'_> {
    SendWr { wr_id, op, flags: SendFlags::SIGNALED, payload: Payload::Sges(sges), dest: None }
}

/// A shared receive queue; destroyed when dropped.
pub(crate) struct Srq {
    node: Node,
    _pd: Arc<Pd>,
    pub(crate) handle: SrqHandle,
    port: Mutex<Box<dyn RecvPort>>,
}

impl Node {
    pub(crate) fn srq(&self, max_wr: u32, max_sge: u32) -> Arc<Srq> {
        let (handle, port) = self
            .dev()
            .create_srq(self.pd.handle, &SrqInit { max_wr, max_sge })
            .expect("a shared receive queue");
        self.srq_of(handle, port)
    }
    pub(crate) fn srq_of(&self, handle: SrqHandle, port: Box<dyn RecvPort>) -> Arc<Srq> {
        Arc::new(Srq { node: self.clone(), _pd: self.pd.clone(), handle, port: Mutex::new(port) })
    }
}

impl Srq {
    pub(crate) fn try_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let mut port = lock(&self.port);
        // SAFETY: as in `Qp::try_send`.
        let r = unsafe { port.post(wrs) };
        port.ring();
        r
    }
    #[track_caller]
    pub(crate) fn recv(&self, wr_id: u64, sges: &[Sge]) {
        self.try_recv(&[RecvWr { wr_id, sges }]).expect("the request is taken");
    }
    /// Runs `f` with the port.
    pub(crate) fn with_port<R>(&self, f: impl FnOnce(&mut dyn RecvPort) -> R) -> R {
        f(&mut **lock(&self.port))
    }
    pub(crate) fn set_limit(&self, limit: u32) -> Result<(), DeviceError> {
        self.node.dev().set_srq_limit(self.handle, limit)
    }
    pub(crate) fn destroy(&self) -> Result<(), DeviceError> {
        self.node.dev().destroy_srq(self.handle)
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        let _ = self.node.dev().destroy_srq(self.handle);
    }
}

/// Two connected queue pairs on two adapters, with a region each that grants everything.
pub(crate) struct Pair {
    pub(crate) conn: Conn,
    pub(crate) a: Qp,
    pub(crate) b: Qp,
    pub(crate) ma: Mem,
    pub(crate) mb: Mem,
}

impl Pair {
    pub(crate) fn rc(bed: &dyn Bed) -> Self {
        Self::new(bed, Conn::default())
    }
    pub(crate) fn new(bed: &dyn Bed, conn: Conn) -> Self {
        let [a, b] = Node::open(bed);
        Self::between(&a, &b, conn)
    }
    /// Between two adapters, which may be the same.
    pub(crate) fn between(a: &Node, b: &Node, conn: Conn) -> Self {
        Self::to(a, b, conn, [a.gid(), b.gid()])
    }
    /// The same, each side by its GID among these.
    pub(crate) fn to(a: &Node, b: &Node, mut conn: Conn, gids: [Gid; 2]) -> Self {
        conn.mtu = conn.mtu.min(a.dev().port().active_mtu).min(b.dev().port().active_mtu);
        let (ma, mb) = (a.mem(conn.mem_bytes, ALL), b.mem(conn.mem_bytes, ALL));
        let (a, b) = (a.qp(&conn), b.qp(&conn));
        connect_to(&conn, [&a, &b], gids);
        Self { conn, a, b, ma, mb }
    }
    pub(crate) fn settle(&self) {
        self.a.node.world.settle();
    }
    /// A carries out `ops` over and over, each with `len` bytes of its own, until one is refused. Meanwhile `take_back`
    /// runs. Each round writes other bytes.
    pub(crate) fn access_until_refused(&self, ops: &[SendOp], len: usize, take_back: impl FnOnce()) {
        let (a, ma, done) = (&self.a, &self.ma, AtomicBool::new(false));
        std::thread::scope(|s| {
            s.spawn(|| {
                for fill in (1..=u8::MAX).cycle() {
                    ma.fill(fill);
                    for (i, op) in ops.iter().enumerate() {
                        a.send(i as u64, *op, &[ma.sge(i * len, len)]);
                    }
                    let statuses: Vec<_> = ops.iter().map(|_| a.send_cq.next().status).collect();
                    if let Some(failed) = statuses.into_iter().find(|s| *s != WcStatus::Success) {
                        let status = a.node.world.as_refusal(failed, WcStatus::RemoteAccess);
                        assert_eq!(status, WcStatus::RemoteAccess);
                        break;
                    }
                    if done.load(Ordering::Acquire) {
                        break;
                    }
                }
            });
            let _end = RaiseOnDrop(&done);
            take_back();
        });
    }
    /// Sends one message each way and fails if either does not arrive.
    #[track_caller]
    pub(crate) fn assert_works(&self) {
        for (from, to, mf, mt) in
            [(&self.a, &self.b, &self.ma, &self.mb), (&self.b, &self.a, &self.mb, &self.ma)]
        {
            let bytes = crate::mem::pattern(77, 100);
            mf.write(0, &bytes);
            to.recv(901, &[mt.sge(200, 100)]);
            from.send(900, SendOp::Send, &[mf.sge(0, 100)]);
            assert_eq!(to.recv_cq.ok(901).byte_len, 100);
            from.send_cq.ok(900);
            mt.assert_bytes(200, &bytes);
        }
    }
}

/// A queue pair without ports: an XRC target, or an end-to-end context; destroyed when dropped.
pub(crate) struct Portless {
    pub(crate) node: Node,
    pub(crate) handle: QpHandle,
    pub(crate) qpn: Qpn,
}

impl Portless {
    pub(crate) fn new(node: &Node, (handle, qpn): (QpHandle, Qpn)) -> Self {
        Self { node: node.clone(), handle, qpn }
    }
    pub(crate) fn destroy(&self) -> Result<Vec<u64>, DeviceError> {
        self.node.dev().destroy_qp(self.handle)
    }
    pub(crate) fn state(&self) -> QpState {
        self.node.dev().query_qp(self.handle).expect("it is there").state
    }
    pub(crate) fn wait_state(&self, state: QpState) {
        self.node.world.wait("the state of a queue pair", || (self.state() == state).then_some(()));
    }
    fn modify(&self, attr: &QpAttr) {
        self.node.dev().modify_qp(self.handle, attr).expect("a legal transition");
    }
    pub(crate) fn go(&self, state: QpState) {
        self.modify(&to_state(state));
    }
    /// From RESET to RTS.
    pub(crate) fn connect(&self, conn: &Conn, (qpn, gid): (Qpn, Gid), side: usize) {
        for attr in [conn.init(), conn.rtr(qpn, gid, conn.psn[1 - side]), conn.rts(conn.psn[side])] {
            self.modify(&attr);
        }
    }
}

impl Drop for Portless {
    fn drop(&mut self) {
        let _ = self.destroy();
    }
}
