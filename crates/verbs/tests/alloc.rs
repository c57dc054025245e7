//! Between posting and completion nothing is allocated, once the room for completions has grown.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use hca_core::*;
use hca_verbs::*;
use test_support::counting::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(f: impl FnOnce()) -> u64 {
    let before = counting::calls();
    f();
    counting::calls() - before
}

/// Completes every request as it is posted, and allocates nothing doing so.
struct Echo {
    attr: DeviceAttr,
    done: Arc<Mutex<Ring>>,
    /// The generation of the next queue pair.
    built: AtomicU32,
}

struct Ring {
    completions: [Completion; 256],
    head: usize,
    tail: usize,
}

impl Ring {
    fn push(&mut self, completion: Completion) {
        self.completions[self.tail % 256] = completion;
        self.tail += 1;
        assert!(self.tail - self.head <= 256);
    }
}

struct Port(Arc<Mutex<Ring>>);

/// The first queue pair, of which all completions are.
const QP: QpHandle = QpHandle { index: 3, generation: 1 };

// SAFETY: it touches no memory, and completes each request, in order, as it is posted; so do the others.
unsafe impl SendPort for Port {
    unsafe fn post(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let mut ring = self.0.lock().unwrap();
        for wr in wrs.iter().filter(|wr| wr.flags.contains(SendFlags::SIGNALED)) {
            ring.push(Completion {
                wr_id: wr.wr_id,
                qp: QP,
                opcode: wr.op.wc_opcode(),
                ..Default::default()
            });
        }
        Ok(())
    }
    fn ring(&mut self) {}
}
// SAFETY: as above.
unsafe impl RecvPort for Port {
    unsafe fn post(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let mut ring = self.0.lock().unwrap();
        for wr in wrs {
            ring.push(Completion { wr_id: wr.wr_id, qp: QP, opcode: WcOpcode::Recv, ..Default::default() });
        }
        Ok(())
    }
    fn ring(&mut self) {}
}
// SAFETY: as above; it fills in as many as it says.
unsafe impl CqPort for Port {
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let mut ring = self.0.lock().unwrap();
        let n = out.len().min(ring.tail - ring.head);
        for out in &mut out[..n] {
            *out = ring.completions[ring.head % 256];
            ring.head += 1;
        }
        n
    }
    fn arm(&mut self, _: Notify) {}
    fn set_waker(&mut self, _: &Waker) {}
    fn wait_fd(&mut self) -> Result<std::os::fd::BorrowedFd<'_>, DeviceError> {
        Err(DeviceError::Unsupported { what: "waiting" })
    }
}

// SAFETY: it touches no memory; there is one queue pair, and nothing that was there comes again.
unsafe impl Device for Echo {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }
    fn port(&self) -> PortAttr {
        let (gid, lid) = (Gid::default(), Lid::default());
        PortAttr {
            gid,
            lid,
            active_mtu: Mtu::B1024,
            active: true,
            link_layer: LinkLayer::Unspecified,
            link: None,
        }
    }
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }
    fn alloc_pd(&self) -> Result<PdHandle, DeviceError> {
        Ok(PdHandle { index: 1, generation: 0 })
    }
    fn dealloc_pd(&self, _: PdHandle) -> Result<(), DeviceError> {
        Ok(())
    }
    fn alloc_memory(&self, len: usize) -> Result<DmaMemory, DeviceError> {
        let mut words = vec![0_u64; len.div_ceil(8) + 512].into_boxed_slice();
        let base = words.as_mut_ptr().cast::<u8>();
        // SAFETY: 4096 bytes more than needed were allocated.
        let addr = NonNull::new(unsafe { base.add(base.align_offset(4096)) }).unwrap();
        // SAFETY: zeroed, and freed with its owner.
        Ok(unsafe { DmaMemory::new(addr, len, Box::new(words)) })
    }
    unsafe fn reg_mr(&self, _: PdHandle, _: &MrInit) -> Result<MrKeys, DeviceError> {
        Ok(MrKeys { handle: MrHandle::default(), lkey: Lkey::new(1), rkey: Rkey::new(1) })
    }
    fn dereg_mr(&self, _: MrHandle) -> Result<(), DeviceError> {
        Ok(())
    }
    fn create_cq(&self, _: u32) -> Result<(CqHandle, Box<dyn CqPort>), DeviceError> {
        Ok((CqHandle::default(), Box::new(Port(Arc::clone(&self.done)))))
    }
    fn destroy_cq(&self, _: CqHandle) -> Result<(), DeviceError> {
        Ok(())
    }
    fn create_srq(&self, _: PdHandle, _: &SrqInit) -> Result<(SrqHandle, Box<dyn RecvPort>), DeviceError> {
        Err(DeviceError::Unsupported { what: "shared receive queues" })
    }
    fn set_srq_limit(&self, _: SrqHandle, _: u32) -> Result<(), DeviceError> {
        Ok(())
    }
    fn destroy_srq(&self, _: SrqHandle) -> Result<(), DeviceError> {
        Ok(())
    }
    fn create_ah(&self, _: PdHandle, _: &AddressVector) -> Result<AhHandle, DeviceError> {
        Ok(AhHandle::default())
    }
    fn destroy_ah(&self, _: AhHandle) -> Result<(), DeviceError> {
        Ok(())
    }
    fn create_qp(&self, _: PdHandle, init: &QpInit) -> Result<QpPorts, DeviceError> {
        Ok(QpPorts {
            handle: QpHandle { index: QP.index, generation: self.built.fetch_add(1, Ordering::Relaxed) },
            qpn: Qpn::new(3),
            cap: init.cap,
            send: Box::new(Port(Arc::clone(&self.done))),
            recv: Some(Box::new(Port(Arc::clone(&self.done)))),
        })
    }
    fn modify_qp(&self, _: QpHandle, _: &QpAttr) -> Result<(), DeviceError> {
        Ok(())
    }
    fn query_qp(&self, _: QpHandle) -> Result<QpStatus, DeviceError> {
        Err(DeviceError::Unsupported { what: "queries" })
    }
    fn destroy_qp(&self, _: QpHandle) -> Result<Vec<u64>, DeviceError> {
        Ok(Vec::new())
    }
    fn poll_event(&self) -> Option<AsyncEvent> {
        None
    }
    fn set_event_waker(&self, _: &Waker) {}
    fn turn(&self) -> bool {
        false
    }
    fn needs_turns(&self) -> bool {
        false
    }
    fn next_deadline(&self) -> Option<Duration> {
        None
    }
    fn wait_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

fn echo() -> Context {
    let attr = DeviceAttr {
        name: "echo".into(),
        fabric: "none".into(),
        max_qp: 8,
        max_qp_wr: 256,
        max_sge: 32,
        max_inline: 64,
        max_cq: 8,
        max_cqe: 256,
        max_mr: 8,
        max_mr_bytes: 1 << 30,
        max_pd: 8,
        max_ah: 8,
        max_srq: 0,
        max_srq_wr: 0,
        max_rd_atomic: 1,
        atomics: AtomicScope::None,
        foreign_memory: false,
        general_services: false,
        abilities: hca_core::Abilities::default(),
    };
    let ring = Ring { completions: [Completion::default(); 256], head: 0, tail: 0 };
    let (done, built) = (Arc::new(Mutex::new(ring)), AtomicU32::new(QP.generation));
    Context::with_seed(Arc::new(Echo { attr, done, built }), 1)
}

#[test]
fn posting_and_polling_allocate_nothing() {
    let context = echo();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(256).unwrap();
    let mut qp = pd.qp::<Rc>(&cq).max_send_wr(64).max_recv_wr(64).build().unwrap();
    let mr = pd.alloc_shared(4096, Access::REMOTE_WRITE).unwrap();
    let frozen = pd.alloc(64).unwrap().freeze();
    let mut bufs: Vec<Buf> = pd.alloc_many(64, 64).unwrap();
    let mut wcs = Completions::with_parts(32, 256);

    let mut round = |bufs: &mut Vec<Buf>| {
        for _ in 0..32 {
            qp.post_recv(bufs.pop().unwrap()).unwrap();
        }
        for i in 0..32 {
            let list = (bufs.pop().unwrap(), frozen.clone(), mr.range(i..i + 8));
            qp.post_send(SendRequest::send(list).id(i as u64).signaled(i == 31)).unwrap();
        }
        qp.post_send(SendRequest::write(Inline(b"8 bytes!"), mr.remote())).unwrap();
        loop {
            let mut n = 0;
            for wc in cq.poll(&mut wcs) {
                let mut wc = wc.ok().unwrap();
                bufs.extend(wc.take_bufs());
                n += 1;
            }
            if n == 0 {
                break;
            }
        }
        assert_eq!(bufs.len(), 64);
    };
    round(&mut bufs); // the queue hears of the queue pair at its first poll
    let n = allocations(|| (0..100).for_each(|_| round(&mut bufs)));
    assert_eq!(n, 0);
    assert_eq!(allocations(|| drop(vec![1])), 2, "the counter counts");
}

#[test]
fn queue_pairs_that_come_and_go_leave_nothing_where_nobody_polls() {
    let context = echo();
    let pd = context.alloc_pd().unwrap();
    let cqs = [(); 2].map(|()| context.create_cq(256).unwrap());
    for recv_cq in &cqs {
        let round = || drop(pd.qp::<Rc>(&cqs[0]).recv_cq(recv_cq).build().unwrap());
        round();
        let each = allocations(round);
        // A list that grows for ever is allocated anew at some of them.
        let all: Vec<u64> = (0..200).map(|_| allocations(round)).collect();
        assert_eq!(all, [each; 200]);
    }
}

#[test]
fn queue_pairs_of_a_reactor_that_come_and_go_leave_nothing_where_nothing_completes() {
    let context = echo();
    let pd = context.alloc_pd().unwrap();
    let (reactor, _driver) = Reactor::new(context.create_cq(256).unwrap());
    let round = || drop(pd.qp::<Rc>(&reactor).build_async(&reactor).unwrap());
    round();
    let each = allocations(round);
    // A list that grows for ever is allocated anew at some of them.
    let all: Vec<u64> = (0..200).map(|_| allocations(round)).collect();
    assert_eq!(all, [each; 200]);
}

/// What this layer costs; run by hand:
/// `cargo test --release -p hca-verbs --test alloc -- --ignored --nocapture`.
#[test]
#[ignore = "prints a measurement"]
fn cost_of_post_and_poll() {
    let context = echo();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.create_cq(256).unwrap();
    let mut qp = pd.qp::<Rc>(&cq).max_send_wr(64).max_recv_wr(64).build().unwrap();
    let mr = pd.alloc_shared(4096, Access::REMOTE_WRITE).unwrap();
    let mut wcs = Completions::default();
    let mut buf = pd.alloc(64).unwrap();
    let mut bare =
        Port(Arc::new(Mutex::new(Ring { completions: [Completion::default(); 256], head: 0, tail: 0 })));
    let ns = |f: &mut dyn FnMut()| {
        const ROUNDS: u32 = 1_000_000;
        let best = (0..7).map(|_| {
            let start = std::time::Instant::now();
            (0..ROUNDS).for_each(|_| f());
            start.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
        });
        best.fold(f64::MAX, f64::min)
    };
    let remote = mr.remote();
    let inline = ns(&mut || {
        qp.write(Inline(b"8 bytes!"), remote).unwrap();
        assert_eq!(cq.poll(&mut wcs).len(), 1);
    });
    let mut held = Some(buf);
    let owned = ns(&mut || {
        qp.send(held.take().unwrap()).unwrap();
        held = cq.poll(&mut wcs).next().unwrap().take_buf();
    });
    buf = held.unwrap();
    let empty = ns(&mut || assert_eq!(cq.poll(&mut wcs).len(), 0));
    let floor = ns(&mut || {
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Inline(&buf),
            dest: None,
        };
        // SAFETY: inline.
        unsafe { SendPort::post(std::hint::black_box(&mut bare), &[wr]) }.unwrap();
        SendPort::ring(&mut bare);
        let mut out = [Completion::default(); 1];
        assert_eq!(CqPort::poll(std::hint::black_box(&mut bare), &mut out), 1);
    });
    println!(
        "inline {inline:.1} ns, buffer {owned:.1} ns, empty poll {empty:.1} ns, bare ports {floor:.1} ns"
    );
}
