//! Small messages between raw queue pairs, as a layer above the verbs uses them: inline, unsignalled, received from a
//! queue of the pair's own or from a shared one.
//!
//! Invariants of the unsafe code:
//! 1. Receive requests name a region that outlives the queues, by places that nothing else uses; it is never read.
#![allow(unsafe_code)]

use hca::raw::{RawCq, RawQp, RawSrq, sge};
use hca::{ConnectOptions, Endpoint, Opened, SharedMr, open_exactly};
use hca_core::{
    Access, Completion, Payload, Psn, QpCap, QpType, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, SrqInit,
    WcOpcode, WcStatus,
};
use hca_perf::Failure;

/// Receive requests of an end.
const REQUESTS: u64 = 64;
/// Bytes that each takes.
const ROOM: usize = 64;
/// Every so manyth message is signalled.
const SIGNALED: u64 = 64;

/// One end of a connection.
pub struct RawEnd {
    qp: RawQp,
    srq: Option<RawSrq>,
    cq: RawCq,
    memory: SharedMr,
    endpoint: Endpoint,
    device: Opened,
}

impl RawEnd {
    /// Opens a device and makes an end; `shared` has it take receive requests from a shared queue.
    ///
    /// # Errors
    /// The device can't be opened, or its limits.
    pub fn open(device: &str, shared: bool) -> Result<Self, Failure> {
        let device = open_exactly(&device.parse()?)?;
        let pd = device.context().alloc_pd()?;
        let cq = RawCq::create(device.context(), 1024)?;
        let depth = REQUESTS as u32;
        let srq =
            shared.then(|| RawSrq::create(&pd, &SrqInit { max_wr: 2 * depth, max_sge: 1 })).transpose()?;
        let cap = QpCap { max_send_wr: 512, max_recv_wr: 2 * depth, max_inline: 8, ..QpCap::default() };
        let qp = RawQp::create(&pd, QpType::Rc, &cq, &cq, srq.as_ref(), cap)?;
        let memory = pd.alloc_shared(REQUESTS as usize * ROOM, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let port = device.context().port();
        let endpoint = Endpoint {
            service: QpType::Rc,
            qpn: qp.qpn(),
            psn: Psn::new(1),
            mtu: port.active_mtu,
            rd_atomic: 1,
            gid: port.gid,
            lid: port.lid,
        };
        Ok(Self { qp, srq, cq, memory, endpoint, device })
    }
    /// Connects it to its peer, and posts its receive requests.
    ///
    /// # Errors
    /// It does not reach the other.
    pub fn connect(&mut self, peer: &Endpoint) -> Result<(), Failure> {
        self.qp.connect(Access::REMOTE_WRITE, &self.endpoint, peer, &ConnectOptions::default())?;
        (0..REQUESTS).for_each(|place| self.post_recv(place));
        Ok(())
    }
    /// What its peer connects to.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }
    /// The device.
    pub fn device(&self) -> &Opened {
        &self.device
    }

    fn post_recv(&mut self, place: u64) {
        let at = place as usize * ROOM;
        let sges = [sge(&self.memory.range(at..at + ROOM))];
        let wr = [RecvWr { wr_id: place, sges: &sges }];
        // SAFETY: (1).
        let posted = unsafe {
            match &mut self.srq {
                Some(srq) => srq.post_recv(&wr),
                None => self.qp.post_recv(&wr),
            }
        };
        posted.expect("the queue has room");
    }

    /// Sends 8 bytes; every 64th of them signalled.
    ///
    /// # Panics
    /// The queue is full.
    pub fn send(&mut self, id: u64) {
        let flags = if id.is_multiple_of(SIGNALED) { SendFlags::SIGNALED } else { SendFlags::empty() };
        let payload = Payload::Inline(&[7; 8]);
        let wr = SendWr { wr_id: id, op: SendOp::Send, flags, payload, dest: None };
        // SAFETY: it names no memory.
        unsafe { self.qp.post_send_now(&wr) }.expect("the queue has room");
    }

    /// Where its peer may write.
    pub fn window(&self) -> RemoteAddr {
        let memory = self.memory.remote();
        RemoteAddr { addr: memory.addr, rkey: memory.rkey }
    }
    /// The number in the first 8 bytes of its memory.
    pub fn number(&self) -> u64 {
        self.memory.load_u64(0)
    }
    /// Writes a number to its peer's memory, signalled.
    ///
    /// # Panics
    /// The queue is full.
    #[inline(never)]
    pub fn counted_write(&mut self, number: u64, to: RemoteAddr) {
        let payload = Payload::Inline(&number.to_ne_bytes());
        let wr =
            SendWr { wr_id: number, op: SendOp::Write(to), flags: SendFlags::SIGNALED, payload, dest: None };
        // SAFETY: it names no memory.
        unsafe { self.qp.post_send_now(&wr) }.expect("the queue has room");
    }
    /// Takes one completion, if it is there.
    #[inline(never)]
    pub fn counted_poll(&mut self) -> Option<u64> {
        let mut wc = [Completion::default()];
        let n = self.cq.poll(&mut wc);
        (n == 1 && wc[0].status == WcStatus::Success).then_some(wc[0].wr_id)
    }

    /// Takes what came, and posts the requests anew; returns how many messages came.
    ///
    /// # Panics
    /// A request failed.
    pub fn take(&mut self) -> u64 {
        let mut wcs = [Completion::default(); 16];
        let (n, mut came) = (self.cq.poll(&mut wcs), 0);
        for wc in &wcs[..n] {
            assert_eq!(wc.status, WcStatus::Success);
            if wc.opcode == WcOpcode::Recv {
                self.post_recv(wc.wr_id);
                came += 1;
            }
        }
        came
    }
}
