//! Two adapters with queue pairs, for tests that are processes of their own.
//!
//! Invariants:
//! 1. The memory that is registered outlives its region, which goes before it in [`End::close`].
//! 2. Posted requests name that memory, and no reference to it exists.
#![allow(unsafe_code, dead_code, unreachable_pub, missing_docs)]

pub mod peer;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use hca_core::{
    Access, AckTimeout, AddressVector, Completion, CqHandle, CqPort, Device, DmaMemory, Gid, MrInit, MrKeys,
    Mtu, Payload, PdHandle, Pkey, PostError, Psn, QpAttr, QpCap, QpHandle, QpInit, QpState, QpType, Qpn,
    RecvPort, RecvWr, RemoteAddr, RnrTimer, SendFlags, SendOp, SendPort, SendWr, Sge, SrqHandle, SrqInit,
    WcStatus,
};
use hca_fabric::{
    AutoFabric, Fabric, OpenError, ShmFabric, ShmOptions, UdpFabric, UdpOptions, UringFabric, UringOptions,
};
use softhca::{Options, Progress, SoftHca};

/// Retries for 8 s: an adapter's thread may wait long for a CPU.
pub const PATIENT: AckTimeout = AckTimeout::new(18);

/// A queue pair and its ports.
pub struct Qp {
    pub handle: QpHandle,
    pub qpn: Qpn,
    pub send: Box<dyn SendPort>,
    pub recv: Box<dyn RecvPort>,
}

impl Qp {
    fn receive(&mut self, sge: Sge) {
        // SAFETY: (2)
        unsafe { self.recv.post(&[RecvWr { wr_id: 0, sges: &[sge] }]) }.unwrap();
        self.recv.ring();
    }
}

/// One adapter with a reliable and an unreliable queue pair.
pub struct End {
    pub device: Arc<SoftHca>,
    pub pd: PdHandle,
    pub cq_handle: CqHandle,
    pub cq: Box<dyn CqPort>,
    pub srq: Box<dyn RecvPort>,
    pub rc: Qp,
    pub uc: Qp,
    pub keys: MrKeys,
    pub memory: DmaMemory,
}

/// An adapter at a free loopback address; `None` where the kernel has no such network.
pub fn open(fabric: &str, progress: Progress, salt: u32) -> Option<Arc<SoftHca>> {
    let network = network(fabric, salt)?;
    Some(SoftHca::open(network, Options { progress, ..Options::default() }).unwrap())
}

/// A network at a free loopback address; `None` where the kernel has no such network.
pub fn network(fabric: &str, salt: u32) -> Option<Box<dyn Fabric>> {
    if fabric == "shm" {
        let domain = format!("ends.{}", std::process::id());
        return Some(Box::new(ShmFabric::open(&domain, &ShmOptions::default()).unwrap()));
    }
    for host in 1..=200 {
        let ip: IpAddr =
            Ipv4Addr::from(0x7f00_0000 | (std::process::id() << 9 ^ salt << 8 | host) & 0xff_ffff).into();
        let opened: Result<Box<dyn Fabric>, OpenError> = match fabric {
            "udp" => UdpFabric::open(ip, &UdpOptions::default()).map(|f| Box::new(f) as _),
            "auto" => {
                AutoFabric::open(ip, &UdpOptions::default(), &ShmOptions::default()).map(|f| Box::new(f) as _)
            }
            _ => UringFabric::open(ip, &UringOptions::default()).map(|f| Box::new(f) as _),
        };
        match opened {
            Ok(f) => return Some(f),
            Err(OpenError::InUse(_)) => {}
            Err(e @ OpenError::Unsupported { .. }) => {
                println!("skipped: {e}");
                return None;
            }
            Err(e) => panic!("{e}"),
        }
    }
    panic!("no free loopback address");
}

/// Two adapters over shared memory, connected.
pub fn shm_pair(progress: Progress) -> [End; 2] {
    shm_pair_with(&Options { progress, ..Options::default() })
}
pub fn shm_pair_with(options: &Options) -> [End; 2] {
    let adapter =
        |n| SoftHca::open(network("shm", n).expect("there is shared memory"), options.clone()).unwrap();
    let [a, b] = [0, 1].map(|n| End::new(adapter(n)));
    a.connect(&b);
    b.connect(&a);
    [a, b]
}

impl End {
    pub fn new(device: Arc<SoftHca>) -> Self {
        Self::with_cq(device, 512)
    }

    /// An end whose completion queue has room for `depth` completions.
    pub fn with_cq(device: Arc<SoftHca>, depth: u32) -> Self {
        Self::build(device, depth, false).0
    }

    /// An end whose reliable queue pair receives from a shared receive queue.
    pub fn with_shared_queue(device: Arc<SoftHca>) -> (Self, SrqHandle) {
        Self::build(device, 512, true)
    }

    fn build(device: Arc<SoftHca>, depth: u32, shared: bool) -> (Self, SrqHandle) {
        let pd = device.alloc_pd().unwrap();
        let memory = device.alloc_memory(4096).unwrap();
        let (addr, access) = (memory.addr(), Access::LOCAL_WRITE);
        let init = MrInit { addr, len: 4096, iova: addr.as_ptr() as u64, access };
        // SAFETY: (1, 2)
        let keys = unsafe { device.reg_mr(pd, &init) }.unwrap();
        let (cq_handle, cq) = device.create_cq(depth).unwrap();
        let create_srq = || device.create_srq(pd, &SrqInit { max_wr: 8, max_sge: 1 }).unwrap();
        let ((_, srq), (shared_handle, shared_port)) = (create_srq(), create_srq());
        let mut shared_port = Some(shared_port);
        let mut qp = |qp_type| {
            let srq = (shared && qp_type == QpType::Rc).then_some(shared_handle);
            let init = QpInit { qp_type, send_cq: cq_handle, recv_cq: cq_handle, srq, cap: QpCap::default() };
            let ports = device.create_qp(pd, &init).unwrap();
            let recv = ports.recv.or_else(|| shared_port.take()).unwrap();
            Qp { handle: ports.handle, qpn: ports.qpn, send: ports.send, recv }
        };
        let (rc, uc) = (qp(QpType::Rc), qp(QpType::Uc));
        (Self { device, pd, cq_handle, cq, srq, rc, uc, keys, memory }, shared_handle)
    }

    /// Registers the same memory once more, for peers to write to.
    pub fn open_to_writes(&self) -> MrKeys {
        let (addr, access) = (self.memory.addr(), Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let init = MrInit { addr, len: 4096, iova: addr.as_ptr() as u64, access };
        // SAFETY: (1, 2)
        unsafe { self.device.reg_mr(self.pd, &init) }.unwrap()
    }
    /// The address of that memory for peers.
    pub fn remote(&self, keys: &MrKeys) -> RemoteAddr {
        RemoteAddr { addr: self.memory.addr().as_ptr() as u64 + 1024, rkey: keys.rkey }
    }

    pub fn connect(&self, peer: &Self) {
        let dgid = Gid::from_ip(peer.device.fabric().local);
        for (qp, to, timeout) in [(&self.rc, &peer.rc, Some(PATIENT)), (&self.uc, &peer.uc, None)] {
            connect_with(&self.device, qp.handle, (dgid, to.qpn), timeout);
        }
    }

    fn sge(&self) -> Sge {
        Sge { addr: self.memory.addr().as_ptr() as u64, len: 64, lkey: self.keys.lkey }
    }
    /// Posts a receive request to both queue pairs.
    pub fn recv(&mut self) {
        let sge = self.sge();
        [&mut self.rc, &mut self.uc].into_iter().for_each(|qp| qp.receive(sge));
    }
    /// Posts a receive request to the reliable one.
    pub fn recv_reliable(&mut self) {
        let sge = self.sge();
        self.rc.receive(sge);
    }
    /// Polls until a completion comes; `None` after a long time.
    pub fn next(&mut self, turn: &dyn Device) -> Option<Completion> {
        let mut one = [Completion::default()];
        for _ in 0..20_000_000 {
            if self.cq.poll(&mut one) == 1 {
                assert_eq!(one[0].status, WcStatus::Success);
                return Some(one[0]);
            }
            turn.turn();
        }
        None
    }
    pub fn counter(&self, name: &str) -> u64 {
        self.device.counters().iter().find(|c| c.name == name).expect("it is counted").value
    }
    pub fn close(self) {
        for qp in [self.rc, self.uc] {
            self.device.destroy_qp(qp.handle).unwrap();
        }
        self.device.dereg_mr(self.keys.handle).unwrap();
    }
}

/// Connects a queue pair, to its peer's address and number.
pub fn connect(device: &SoftHca, qp: QpHandle, to: (Gid, Qpn), rc: bool) {
    connect_with(device, qp, to, rc.then_some(PATIENT));
}

/// The same, of a reliable connection with this timeout, or of an unreliable one.
pub fn connect_with(device: &SoftHca, qp: QpHandle, to: (Gid, Qpn), timeout: Option<AckTimeout>) {
    connect_labelled(device, qp, to, timeout, 0);
}

/// The same with a flow label.
pub fn connect_labelled(
    device: &SoftHca,
    qp: QpHandle,
    (dgid, to): (Gid, Qpn),
    timeout: Option<AckTimeout>,
    flow_label: u32,
) {
    let rc = timeout.is_some();
    let init = QpAttr {
        state: Some(QpState::Init),
        pkey: Some(Pkey::DEFAULT),
        access: Some(Access::REMOTE_WRITE),
        ..QpAttr::default()
    };
    let rtr = QpAttr {
        state: Some(QpState::Rtr),
        dest_qpn: Some(to),
        av: Some(AddressVector { dgid, flow_label, ..AddressVector::default() }),
        path_mtu: Some(Mtu::B1024),
        rq_psn: Some(Psn::new(7)),
        max_dest_rd_atomic: rc.then_some(1),
        min_rnr_timer: rc.then_some(RnrTimer::new(1)),
        ..QpAttr::default()
    };
    let rts = QpAttr {
        state: Some(QpState::Rts),
        sq_psn: Some(Psn::new(7)),
        timeout,
        retry_cnt: rc.then_some(7),
        rnr_retry: rc.then_some(7),
        max_rd_atomic: rc.then_some(1),
        ..QpAttr::default()
    };
    for attr in [init, rtr, rts] {
        device.modify_qp(qp, &attr).unwrap();
    }
}

/// Posts a short SEND, and tells the adapter by the same call.
pub fn send(qp: &mut Qp, flags: SendFlags) {
    let payload = Payload::Inline(b"message");
    let wr = SendWr { wr_id: 1, op: SendOp::Send, flags, payload, dest: None };
    // SAFETY: inline data names no memory.
    unsafe { qp.send.post_now(&wr) }.unwrap();
}

/// Posts short requests with the same bytes, in one go.
pub fn post(qp: &mut Qp, ops: &[SendOp], flags: SendFlags) {
    try_post(qp, ops, flags).unwrap();
}

/// The same, where the queue may be full.
pub fn try_post(qp: &mut Qp, ops: &[SendOp], flags: SendFlags) -> Result<(), PostError> {
    let payload = Payload::Inline(b"message");
    let wrs: Vec<_> = ops.iter().map(|op| SendWr { wr_id: 1, op: *op, flags, payload, dest: None }).collect();
    // SAFETY: inline data names no memory.
    let posted = unsafe { qp.send.post(&wrs) };
    qp.send.ring();
    posted
}
