//! A device in memory whose queue pairs talk to each other: enough of one for the tests of this crate.
//! It carries out requests when the doorbell rings, or when turned while `Faults::hold` is set.
#![allow(dead_code, unsafe_code, unreachable_pub, missing_docs)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use hca_core::*;
use rustix::event::{EventfdFlags, eventfd};

#[derive(Default)]
pub struct Faults {
    /// Requests wait for a turn.
    pub hold: AtomicBool,
    pub refuse_dereg: AtomicBool,
    pub refuse_destroy_qp: AtomicBool,
    /// Posts from now on that are taken; then one is refused.
    pub refuse_post: AtomicBool,
    /// Each READ and WRITE fails.
    pub fail_rdma: AtomicBool,
    /// Whether datagrams come without a header, with other bytes in its place.
    pub no_header: AtomicBool,
    /// Completion queues have no descriptor.
    pub no_descriptor: AtomicBool,
    pub turns: AtomicU32,
    /// The number of send requests whose memory no code writes.
    pub stable: AtomicU32,
    /// Called while a completion queue is resized, as a waker may be; it says whether the device can.
    pub while_resizing: Mutex<Option<Resizing>>,
    /// Called by the destruction of a shared receive queue, once its number is free.
    pub while_destroying_srq: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

pub type Resizing = Box<dyn FnOnce() -> bool + Send>;

/// The number of each shared receive queue of an XRC domain, of which there is one at a time.
const XRC_NUMBER: Srqn = Srqn::new(7);

pub struct Fake {
    attr: DeviceAttr,
    shared: Arc<Shared>,
    pub faults: Arc<Faults>,
}

pub struct Shared {
    state: Mutex<State>,
    faults: Arc<Faults>,
}

#[derive(Default)]
struct State {
    next: u32,
    pds: HashMap<u32, u32>,
    mrs: HashMap<u32, Mr>,
    cqs: HashMap<u32, Cq>,
    srqs: HashMap<u32, VecDeque<Recv>>,
    /// The shared receive queue of an XRC domain, and its completion queue.
    xrc: (u32, u32),
    ahs: HashMap<u32, AddressVector>,
    qps: HashMap<u32, Qp>,
    events: EventQueue,
}

struct Mr {
    pd: u32,
    base: NonNull<u8>,
    iova: u64,
    len: usize,
    access: Access,
}
// SAFETY: a test's own region; the device's lock orders what the fake does with it.
unsafe impl Send for Mr {}

#[derive(Default)]
struct Cq {
    depth: u32,
    queue: VecDeque<Completion>,
    armed: Option<Notify>,
    waker: Option<Waker>,
    fd: Option<Arc<OwnedFd>>,
}

struct Qp {
    init: QpInit,
    pd: u32,
    state: QpState,
    attr: QpAttr,
    sq: VecDeque<Posted>,
    rq: VecDeque<Recv>,
}

struct Posted {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    payload: Result<Vec<Sge>, Vec<u8>>,
    dest: Option<Dest>,
}

struct Recv {
    wr_id: u64,
    sges: Vec<Sge>,
}

impl Fake {
    pub fn new() -> Arc<Self> {
        Self::with(|_| ())
    }
    pub fn with(change: impl FnOnce(&mut DeviceAttr)) -> Arc<Self> {
        let mut attr = DeviceAttr {
            name: "fake".into(),
            fabric: "memory".into(),
            max_qp: 1024,
            max_qp_wr: 1024,
            max_sge: 32,
            max_inline: 1024,
            max_cq: 64,
            max_cqe: 1 << 16,
            max_mr: 1024,
            max_mr_bytes: 1 << 32,
            max_pd: 16,
            max_ah: 64,
            max_srq: 16,
            max_srq_wr: 1024,
            max_rd_atomic: 16,
            atomics: AtomicScope::Cpu,
            foreign_memory: true,
            general_services: false,
            abilities: hca_core::Abilities::default(),
        };
        change(&mut attr);
        let faults = Arc::<Faults>::default();
        let shared = Shared { state: Mutex::default(), faults: Arc::clone(&faults) };
        Arc::new(Self { attr, shared: Arc::new(shared), faults })
    }
    /// Objects that exist: protection domains, regions, completion queues, queue pairs, address handles.
    pub fn objects(&self) -> [usize; 5] {
        let s = self.shared.lock();
        [s.pds.len(), s.mrs.len(), s.cqs.len(), s.qps.len(), s.ahs.len()]
    }
    /// Completes a request of the shared receive queue of the XRC domain.
    pub fn arrive_by_xrc(&self) {
        let mut s = self.shared.lock();
        let (srq, cq) = s.xrc;
        let wr_id = s.srqs.get_mut(&srq).and_then(VecDeque::pop_front).expect("a request waits").wr_id;
        let opcode = WcOpcode::Recv;
        let arrived =
            Completion { wr_id, qp: handle(u32::MAX / 4), opcode, srq: XRC_NUMBER, ..Completion::default() };
        s.push(cq, arrived);
    }
    pub fn raise(&self, event: AsyncEvent) {
        let mut s = self.shared.lock();
        let waiters = s.events.push(event);
        drop(s);
        waiters.into_iter().for_each(Waker::wake);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
    fn ring(&self) {
        if !self.faults.hold.load(Ordering::Relaxed) {
            self.run();
        }
    }
    fn run(&self) -> bool {
        let mut s = self.lock();
        let mut ids: Vec<u32> = s.qps.keys().copied().collect();
        ids.sort_unstable();
        let mut any = false;
        loop {
            let mut moved = false;
            for &id in &ids {
                while s.step(id, &self.faults) {
                    moved = true;
                }
            }
            any |= moved;
            if !moved {
                return any;
            }
        }
    }
}

impl State {
    fn id(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Carries out one send request; whether there was one.
    fn step(&mut self, id: u32, faults: &Faults) -> bool {
        let Some(qp) = self.qps.get_mut(&id) else { return false };
        if qp.state == QpState::Error {
            return self.flush(id);
        }
        if qp.state != QpState::Rts {
            return false;
        }
        let Some(wr) = qp.sq.pop_front() else { return false };
        let pd = qp.pd;
        let missing = faults.no_header.load(Ordering::Relaxed);
        let header = if missing { Header::Missing } else { Header::There };
        let front = (qp.init.qp_type == QpType::Ud).then_some(header);
        let (rc, uc_or_ud) = (qp.init.qp_type == QpType::Rc, qp.init.qp_type != QpType::Rc);
        let dest = match wr.dest {
            Some(Dest::Datagram(dest)) => dest.qpn.raw(),
            _ => qp.attr.dest_qpn.unwrap_or_default().raw(),
        };
        let len: usize =
            wr.payload.as_ref().map_or_else(Vec::len, |l| l.iter().map(|s| s.len as usize).sum());
        let status = if wr.op.consumes_recv() {
            let write = matches!(wr.op, SendOp::WriteImm(..));
            let data = self.gather(pd, &wr.payload);
            let Some(recv) = self.take_recv(dest) else {
                if rc {
                    self.qps.get_mut(&id).unwrap().sq.push_front(wr);
                    return false;
                }
                self.complete_send(id, &wr, WcStatus::Success, len);
                return uc_or_ud;
            };
            if let (SendOp::WriteImm(remote, _), Ok(data)) = (wr.op, &data) {
                self.remote(remote, data.len(), |p| copy(data.as_ptr(), p, data.len()));
            }
            self.deliver(id, dest, recv, if write { Ok(Vec::new()) } else { data }, &wr, front);
            WcStatus::Success
        } else if faults.fail_rdma.load(Ordering::Relaxed) {
            self.qps.get_mut(&id).unwrap().state = QpState::Error;
            WcStatus::RemoteAccess
        } else {
            self.rdma(pd, &wr, len)
        };
        self.complete_send(id, &wr, status, len);
        true
    }

    fn rdma(&mut self, pd: u32, wr: &Posted, len: usize) -> WcStatus {
        let done = match wr.op {
            SendOp::Write(remote) => {
                let data = self.gather(pd, &wr.payload).unwrap();
                self.remote(remote, len, |p| copy(data.as_ptr(), p, len))
            }
            SendOp::Read(remote) => {
                let mut data = vec![0; len];
                let ok = self.remote(remote, len, |p| copy(p, data.as_mut_ptr(), len));
                self.scatter(pd, wr.payload.as_ref().unwrap(), &data);
                ok
            }
            SendOp::CompareSwap { remote, compare, swap } => self.atomic(pd, wr, remote, |w| {
                w.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|v| v)
            }),
            SendOp::FetchAdd { remote, add } => {
                self.atomic(pd, wr, remote, |w| w.fetch_add(add, Ordering::SeqCst))
            }
            _ => unreachable!(),
        };
        if done { WcStatus::Success } else { WcStatus::RemoteAccess }
    }

    fn atomic(&self, pd: u32, wr: &Posted, at: RemoteAddr, f: impl FnOnce(&AtomicU64) -> u64) -> bool {
        let mut old = 0;
        // SAFETY: inside of the region and aligned, which the caller of `post` saw to.
        let ok = self.remote(at, 8, |p| old = f(unsafe { AtomicU64::from_ptr(p.cast()) }));
        self.scatter(pd, wr.payload.as_ref().unwrap(), &old.to_ne_bytes());
        ok
    }

    fn remote(&self, at: RemoteAddr, len: usize, f: impl FnOnce(*mut u8)) -> bool {
        let Some(mr) = self.mrs.get(&at.rkey.raw()) else { return false };
        let offset = (at.addr - mr.iova) as usize;
        if offset + len > mr.len {
            return false;
        }
        // SAFETY: inside of the region.
        f(unsafe { mr.base.as_ptr().add(offset) });
        true
    }

    fn local(&self, pd: u32, sge: &Sge) -> Result<*mut u8, WcStatus> {
        let mr = self.mrs.get(&sge.lkey.raw()).ok_or(WcStatus::LocalProtection)?;
        let offset = (sge.addr - mr.iova) as usize;
        if mr.pd != pd || offset + sge.len as usize > mr.len {
            return Err(WcStatus::LocalProtection);
        }
        // SAFETY: inside of the region.
        Ok(unsafe { mr.base.as_ptr().add(offset) })
    }

    fn gather(&self, pd: u32, payload: &Result<Vec<Sge>, Vec<u8>>) -> Result<Vec<u8>, WcStatus> {
        let sges = match payload {
            Ok(sges) => sges,
            Err(inline) => return Ok(inline.clone()),
        };
        let mut out = Vec::new();
        for sge in sges {
            let mut piece = vec![0; sge.len as usize];
            copy(self.local(pd, sge)?, piece.as_mut_ptr(), piece.len());
            out.extend(piece);
        }
        Ok(out)
    }

    fn scatter(&self, pd: u32, sges: &[Sge], mut data: &[u8]) -> bool {
        for sge in sges {
            let n = data.len().min(sge.len as usize);
            copy(data.as_ptr(), self.local(pd, sge).unwrap(), n);
            data = &data[n..];
        }
        data.is_empty()
    }

    fn take_recv(&mut self, dest: u32) -> Option<Recv> {
        let qp = self.qps.get_mut(&dest)?;
        match qp.init.srq {
            Some(srq) => self.srqs.get_mut(&srq.index)?.pop_front(),
            None => qp.rq.pop_front(),
        }
    }

    fn deliver(
        &mut self,
        from: u32,
        to: u32,
        recv: Recv,
        data: Result<Vec<u8>, WcStatus>,
        wr: &Posted,
        front: Option<Header>,
    ) {
        let (pd, cq) = (self.qps[&to].pd, self.qps[&to].init.recv_cq.index);
        let mut bytes = match front {
            Some(Header::There) => grh().to_vec(),
            Some(Header::Missing) => vec![0xee; 40],
            None => Vec::new(),
        };
        bytes.extend(data.unwrap());
        let fits = self.scatter(pd, &recv.sges, &bytes);
        let extra = match wr.op {
            SendOp::SendImm(imm) | SendOp::WriteImm(_, imm) => RecvExtra::Imm(imm),
            SendOp::SendInv(rkey) => RecvExtra::Invalidated(rkey),
            _ => RecvExtra::None,
        };
        let opcode =
            if matches!(wr.op, SendOp::WriteImm(..)) { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
        let completion = Completion {
            wr_id: recv.wr_id,
            qp: handle(to),
            status: if fits { WcStatus::Success } else { WcStatus::LocalLength },
            opcode,
            byte_len: bytes.len() as u32,
            extra,
            src_qp: Qpn::new(if front.is_some() { from } else { 0 }),
            srq: Srqn::default(),
            grh: front == Some(Header::There),
            solicited: wr.flags.contains(SendFlags::SOLICITED),
        };
        self.push(cq, completion);
    }

    fn complete_send(&mut self, id: u32, wr: &Posted, status: WcStatus, len: usize) {
        if status == WcStatus::Success && !wr.flags.contains(SendFlags::SIGNALED) {
            return;
        }
        let cq = self.qps[&id].init.send_cq.index;
        let opcode = wr.op.wc_opcode();
        let byte_len = len as u32;
        self.push(
            cq,
            Completion { wr_id: wr.wr_id, qp: handle(id), status, opcode, byte_len, ..Default::default() },
        );
    }

    fn flush(&mut self, id: u32) -> bool {
        let qp = self.qps.get_mut(&id).unwrap();
        let (send_cq, recv_cq) = (qp.init.send_cq.index, qp.init.recv_cq.index);
        let (sq, rq) = (std::mem::take(&mut qp.sq), std::mem::take(&mut qp.rq));
        let any = !sq.is_empty() || !rq.is_empty();
        let flushed = |wr_id, opcode| Completion {
            wr_id,
            qp: handle(id),
            status: WcStatus::WrFlushed,
            opcode,
            ..Default::default()
        };
        for wr in sq {
            self.push(send_cq, flushed(wr.wr_id, wr.op.wc_opcode()));
        }
        for wr in rq {
            self.push(recv_cq, flushed(wr.wr_id, WcOpcode::Recv));
        }
        any
    }

    fn push(&mut self, cq: u32, completion: Completion) {
        let cq = self.cqs.get_mut(&cq).unwrap();
        assert!((cq.queue.len() as u32) < cq.depth, "the completion queue overruns");
        cq.queue.push_back(completion);
        if cq.armed.take().is_some() {
            if let Some(waker) = &cq.waker {
                waker.wake_by_ref();
            }
            if let Some(fd) = &cq.fd {
                rustix::io::write(fd, &1_u64.to_ne_bytes()).unwrap();
            }
        }
    }
}

fn copy(from: *const u8, to: *mut u8, len: usize) {
    if len == 8 && to.cast::<u64>().is_aligned() {
        // SAFETY: both are valid for 8 bytes, and `to` is aligned.
        unsafe {
            let value = from.cast::<u64>().read_unaligned();
            AtomicU64::from_ptr(to.cast()).store(value, Ordering::Release);
        }
    } else {
        // SAFETY: both are valid for `len` bytes.
        unsafe { std::ptr::copy(from, to, len) };
    }
}

fn handle(id: u32) -> QpHandle {
    QpHandle { index: id, generation: id * 3 }
}

/// What a datagram's first 40 bytes are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Header {
    There,
    Missing,
}

fn grh() -> [u8; 40] {
    let mut out = [0; 40];
    out[20] = 0x45;
    out[28] = 64;
    out[32..36].copy_from_slice(&[127, 0, 0, 9]);
    out[36..40].copy_from_slice(&[127, 0, 0, 9]);
    out
}

fn unknown(what: &'static str, handle: u32) -> DeviceError {
    DeviceError::UnknownHandle { what, handle }
}

struct Allocation(NonNull<u8>, Layout);
// SAFETY: an owned allocation.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}
impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout below.
        unsafe { dealloc(self.0.as_ptr(), self.1) };
    }
}

// SAFETY: it touches memory in `State`'s functions alone, under the lock, by regions that exist and requests that are
// queued; numbers are used once.
unsafe impl Device for Fake {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }
    fn port(&self) -> PortAttr {
        let gid = Gid::from(Ipv4Addr::new(127, 0, 0, 9));
        PortAttr {
            gid,
            lid: Lid::default(),
            active_mtu: Mtu::B4096,
            active: true,
            link_layer: LinkLayer::Unspecified,
            link: None,
        }
    }
    fn counters(&self) -> Vec<Counter> {
        vec![Counter { name: "turns", value: self.faults.turns.load(Ordering::Relaxed).into() }]
    }
    fn alloc_pd(&self) -> Result<PdHandle, DeviceError> {
        let mut s = self.shared.lock();
        let id = s.id();
        s.pds.insert(id, 0);
        Ok(PdHandle { index: id, generation: 0 })
    }
    fn dealloc_pd(&self, pd: PdHandle) -> Result<(), DeviceError> {
        self.shared.lock().pds.remove(&pd.index).map(drop).ok_or_else(|| unknown("pd", pd.index))
    }
    fn alloc_memory(&self, len: usize) -> Result<DmaMemory, DeviceError> {
        let layout = Layout::from_size_align(len, 4096).unwrap();
        // SAFETY: `len` is not 0.
        let addr = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
        // SAFETY: zeroed, and freed with its owner.
        Ok(unsafe { DmaMemory::new(addr, len, Box::new(Allocation(addr, layout))) })
    }
    unsafe fn reg_mr(&self, pd: PdHandle, mr: &MrInit) -> Result<MrKeys, DeviceError> {
        let mut s = self.shared.lock();
        let id = s.id();
        let MrInit { addr: base, len, iova, access } = *mr;
        s.mrs.insert(id, Mr { pd: pd.index, base, iova, len, access });
        Ok(MrKeys { handle: MrHandle { index: id, generation: 0 }, lkey: Lkey::new(id), rkey: Rkey::new(id) })
    }
    fn dereg_mr(&self, mr: MrHandle) -> Result<(), DeviceError> {
        if self.faults.refuse_dereg.load(Ordering::Relaxed) {
            return Err(DeviceError::InUse { what: "region", users: 1 });
        }
        self.shared.lock().mrs.remove(&mr.index).map(drop).ok_or_else(|| unknown("mr", mr.index))
    }
    fn create_cq(&self, depth: u32) -> Result<(CqHandle, Box<dyn CqPort>), DeviceError> {
        let mut s = self.shared.lock();
        let id = s.id();
        s.cqs.insert(id, Cq { depth, queue: VecDeque::with_capacity(depth as usize), ..Cq::default() });
        let handle = CqHandle { index: id, generation: 0 };
        Ok((handle, Box::new(FakeCq { shared: Arc::clone(&self.shared), id, fd: None })))
    }
    fn destroy_cq(&self, cq: CqHandle) -> Result<(), DeviceError> {
        self.shared.lock().cqs.remove(&cq.index).map(drop).ok_or_else(|| unknown("cq", cq.index))
    }
    fn create_srq(&self, _: PdHandle, _: &SrqInit) -> Result<(SrqHandle, Box<dyn RecvPort>), DeviceError> {
        let mut s = self.shared.lock();
        let id = s.id();
        s.srqs.insert(id, VecDeque::new());
        let port = FakePort { shared: Arc::clone(&self.shared), id, srq: true };
        Ok((SrqHandle { index: id, generation: 0 }, Box::new(port)))
    }
    fn set_srq_limit(&self, _: SrqHandle, _: u32) -> Result<(), DeviceError> {
        Ok(())
    }
    fn destroy_srq(&self, srq: SrqHandle) -> Result<(), DeviceError> {
        let gone = self.shared.lock().srqs.remove(&srq.index);
        let during = self.faults.while_destroying_srq.lock().unwrap().take();
        during.into_iter().for_each(|during| during());
        gone.map(drop).ok_or_else(|| unknown("srq", srq.index))
    }
    fn xrc(&self) -> Option<&dyn ExtendedConnections> {
        Some(self)
    }
    fn create_ah(&self, _: PdHandle, av: &AddressVector) -> Result<AhHandle, DeviceError> {
        let mut s = self.shared.lock();
        let id = s.id();
        s.ahs.insert(id, *av);
        Ok(AhHandle { index: id, generation: 0 })
    }
    fn destroy_ah(&self, ah: AhHandle) -> Result<(), DeviceError> {
        self.shared.lock().ahs.remove(&ah.index).map(drop).ok_or_else(|| unknown("ah", ah.index))
    }
    fn create_qp(&self, pd: PdHandle, init: &QpInit) -> Result<QpPorts, DeviceError> {
        let mut s = self.shared.lock();
        let id = s.id();
        let qp = Qp {
            init: *init,
            pd: pd.index,
            state: QpState::Reset,
            attr: QpAttr::default(),
            sq: VecDeque::with_capacity(init.cap.max_send_wr as usize),
            rq: VecDeque::with_capacity(init.cap.max_recv_wr as usize),
        };
        s.qps.insert(id, qp);
        let port = |srq| FakePort { shared: Arc::clone(&self.shared), id, srq };
        Ok(QpPorts {
            handle: handle(id),
            qpn: Qpn::new(id),
            cap: init.cap,
            send: Box::new(port(false)),
            recv: init.srq.is_none().then(|| Box::new(port(false)) as Box<dyn RecvPort>),
        })
    }
    fn modify_qp(&self, qp: QpHandle, attr: &QpAttr) -> Result<(), DeviceError> {
        let mut s = self.shared.lock();
        let qp = s.qps.get_mut(&qp.index).ok_or_else(|| unknown("qp", qp.index))?;
        attr.check(qp.init.qp_type, qp.state)?;
        qp.state = attr.state.unwrap_or(qp.state);
        qp.attr.dest_qpn = attr.dest_qpn.or(qp.attr.dest_qpn);
        qp.attr.path_mtu = attr.path_mtu.or(qp.attr.path_mtu);
        qp.attr.max_rd_atomic = attr.max_rd_atomic.or(qp.attr.max_rd_atomic);
        drop(s);
        self.shared.ring();
        Ok(())
    }
    fn query_qp(&self, qp: QpHandle) -> Result<QpStatus, DeviceError> {
        let s = self.shared.lock();
        let qp = s.qps.get(&qp.index).ok_or_else(|| unknown("qp", qp.index))?;
        Ok(QpStatus { state: qp.state, attr: qp.attr, cap: qp.init.cap, near: false })
    }
    fn destroy_qp(&self, qp: QpHandle) -> Result<Vec<u64>, DeviceError> {
        if self.faults.refuse_destroy_qp.load(Ordering::Relaxed) {
            return Err(DeviceError::InUse { what: "qp", users: 1 });
        }
        let mut s = self.shared.lock();
        let gone = s.qps.remove(&qp.index).ok_or_else(|| unknown("qp", qp.index))?;
        let lost = |c: &&Completion| gone.init.srq.is_some() && c.qp == qp && c.opcode.is_recv();
        let lost = s.cqs.values().flat_map(|cq| cq.queue.iter().filter(lost)).map(|c| c.wr_id).collect();
        s.cqs.values_mut().for_each(|cq| cq.queue.retain(|c| c.qp != qp));
        Ok(lost)
    }
    fn poll_event(&self) -> Option<AsyncEvent> {
        self.shared.lock().events.pop()
    }
    fn set_event_waker(&self, waker: &Waker) {
        let mut waker = Some(waker.clone());
        let now = self.shared.lock().events.wait(&mut waker);
        now.into_iter().for_each(Waker::wake);
    }
    fn turn(&self) -> bool {
        self.faults.turns.fetch_add(1, Ordering::Relaxed);
        self.shared.run()
    }
    fn needs_turns(&self) -> bool {
        false
    }
    fn next_deadline(&self) -> Option<Duration> {
        None
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl ExtendedConnections for Fake {
    fn alloc_xrcd(&self) -> Result<XrcdHandle, DeviceError> {
        Ok(XrcdHandle { index: 0, generation: 0 })
    }
    fn dealloc_xrcd(&self, _: XrcdHandle) -> Result<(), DeviceError> {
        Ok(())
    }
    fn create_xrc_srq(
        &self,
        pd: PdHandle,
        _: XrcdHandle,
        cq: CqHandle,
        init: &SrqInit,
    ) -> Result<XrcSrqPort, DeviceError> {
        let (handle, recv) = self.create_srq(pd, init)?;
        self.shared.lock().xrc = (handle.index, cq.index);
        Ok(XrcSrqPort { handle, number: XRC_NUMBER, recv })
    }
    fn create_xrc_target(&self, _: XrcdHandle) -> Result<(QpHandle, Qpn), DeviceError> {
        Err(DeviceError::Unsupported { what: "targets" })
    }
}

struct FakePort {
    shared: Arc<Shared>,
    id: u32,
    srq: bool,
}

impl FakePort {
    fn refuse(&self) -> Result<(), PostError> {
        if self.shared.faults.refuse_post.load(Ordering::Relaxed) {
            return Err(PostError { accepted: 0, kind: PostErrorKind::Destroyed });
        }
        Ok(())
    }
}

// SAFETY: requests are copied, and carried out and completed in order under the lock.
unsafe impl SendPort for FakePort {
    unsafe fn post(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        self.refuse()?;
        let mut s = self.shared.lock();
        let qp = s.qps.get_mut(&self.id).unwrap();
        if !matches!(qp.state, QpState::Rts | QpState::Error) {
            return Err(PostError { accepted: 0, kind: PostErrorKind::WrongState(qp.state) });
        }
        for wr in wrs {
            let payload = match wr.payload {
                Payload::Sges(sges) => Ok(sges.to_vec()),
                Payload::Inline(bytes) => Err(bytes.to_vec()),
                Payload::Mixed(_) => unreachable!("the conformance suite has lists of both kinds"),
            };
            let stable = wr.flags.contains(SendFlags::STABLE);
            self.shared.faults.stable.fetch_add(stable.into(), Ordering::Relaxed);
            qp.sq.push_back(Posted { wr_id: wr.wr_id, op: wr.op, flags: wr.flags, payload, dest: wr.dest });
        }
        Ok(())
    }
    fn ring(&mut self) {
        self.shared.ring();
    }
}

// SAFETY: as above.
unsafe impl RecvPort for FakePort {
    unsafe fn post(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.refuse()?;
        let mut s = self.shared.lock();
        let recvs = wrs.iter().map(|wr| Recv { wr_id: wr.wr_id, sges: wr.sges.to_vec() });
        if self.srq {
            s.srqs.get_mut(&self.id).unwrap().extend(recvs);
        } else {
            s.qps.get_mut(&self.id).unwrap().rq.extend(recvs);
        }
        Ok(())
    }
    fn ring(&mut self) {
        self.shared.ring();
    }
}

struct FakeCq {
    shared: Arc<Shared>,
    id: u32,
    fd: Option<Arc<OwnedFd>>,
}

// SAFETY: completions are taken from the queue once, under the lock.
unsafe impl CqPort for FakeCq {
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let mut s = self.shared.lock();
        let queue = &mut s.cqs.get_mut(&self.id).unwrap().queue;
        let n = queue.len().min(out.len());
        out.iter_mut().zip(queue.drain(..n)).for_each(|(out, c)| *out = c);
        if let Some(fd) = &self.fd {
            let _ = rustix::io::read(fd, &mut [0_u8; 8]);
        }
        n
    }
    fn arm(&mut self, notify: Notify) {
        self.shared.lock().cqs.get_mut(&self.id).unwrap().armed = Some(notify);
    }
    fn set_waker(&mut self, waker: &Waker) {
        self.shared.lock().cqs.get_mut(&self.id).unwrap().waker = Some(waker.clone());
    }
    fn resize(&mut self, depth: u32) -> Result<u32, DeviceError> {
        let during = self.shared.faults.while_resizing.lock().unwrap().take();
        if during.is_some_and(|during| !during()) {
            return Err(DeviceError::Unsupported { what: "resizing" });
        }
        Ok(depth)
    }
    fn wait_fd(&mut self) -> Result<BorrowedFd<'_>, DeviceError> {
        if self.shared.faults.no_descriptor.load(Ordering::Relaxed) {
            return Err(DeviceError::Unsupported { what: "waiting" });
        }
        if self.fd.is_none() {
            let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
                .map_err(|e| DeviceError::Io { doing: "eventfd", source: e.into() })?;
            let mut s = self.shared.lock();
            let cq = s.cqs.get_mut(&self.id).unwrap();
            self.fd = Some(Arc::new(fd));
            cq.fd = self.fd.clone();
            if !cq.queue.is_empty() {
                rustix::io::write(cq.fd.as_ref().unwrap(), &1_u64.to_ne_bytes()).unwrap();
            }
        }
        Ok(self.fd.as_ref().unwrap().as_fd())
    }
}
