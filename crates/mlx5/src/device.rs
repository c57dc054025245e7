//! [`Mlx5`]: the adapter as a [`Device`].
#![allow(unsafe_code)] // a promise of its own; `reg_mr` asks its caller for one, and hands it on

use core::sync::atomic::{AtomicU32, Ordering};
use core::task::Waker;
use core::time::Duration;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use hca_core::{
    Abilities, Access, AddressVector, AhHandle, AsyncEvent, AtomicScope, Counter, CqHandle, CqModeration,
    CqPort, CqStatus, Device, DeviceAttr, DeviceClock, DeviceError, DmaMemory, GidEntry, MrHandle, MrInit,
    MrKeys, MrStatus, PdHandle, PortAttr, PortCounters, QpAttr, QpHandle, QpInfo, QpInit, QpPorts, QpStatus,
    QpType, RecvPort, SrqHandle, SrqInit,
};
use hca_vfio::PciFunction;

use crate::error::OpenError;
use crate::hca::Hca;
use crate::health::Death;
use crate::options::Options;
use crate::{counters, cq, memory, qp, srq};

/// Turns in vain before the CPU is given to others.
const LOOKS: u32 = 2;

/// An adapter of the ConnectX family.
///
/// The adapter is stopped, and releases all memory, when the device and all ports of its queues are dropped: the last
/// drop waits for that. [`close`](Self::close) stops it earlier.
pub struct Mlx5 {
    hca: Arc<Hca>,
    attr: DeviceAttr,
    /// The adapter is a process that may wait for a CPU.
    served: bool,
    /// Turns that were asked for.
    turns: AtomicU32,
}

impl core::fmt::Debug for Mlx5 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Mlx5").field(self.hca.function()).finish()
    }
}

impl Mlx5 {
    /// Resets the function and starts the adapter.
    ///
    /// # Errors
    /// The function is not a ConnectX adapter or can't be used, or its firmware refuses a command.
    pub fn open(function: PciFunction, options: Options) -> Result<Arc<Self>, OpenError> {
        let hca = Hca::open(function, &options)?;
        let (attr, served) = (attributes(&hca), hca.function().waker().is_some());
        Ok(Arc::new(Self { hca, attr, served, turns: AtomicU32::new(0) }))
    }

    /// Stops the adapter, although ports of its queues and objects on it live, and waits until the adapter is stopped:
    /// afterwards it accesses no memory. Every outstanding request ends with status `Fatal`, an
    /// [`AsyncEvent::DeviceFatal`] comes, and all later calls on the adapter fail. The function stays open until all
    /// ports and the device are gone. Closing it again does nothing.
    ///
    /// Within a waker, on the driver's own thread, the call resets the adapter instead. In a forked child the call
    /// changes nothing.
    ///
    /// # Errors
    /// The function did not answer, so the adapter may still access memory.
    pub fn close(&self) -> Result<(), DeviceError> {
        self.hca.close()
    }

    /// The reason of the adapter's death, if it is dead.
    pub fn death(&self) -> Option<Death> {
        self.hca.health.death()
    }
    /// Pages of 4 KiB that the adapter has been lent for its own tables.
    pub fn pages_lent(&self) -> usize {
        self.hca.pages_lent()
    }
}

fn attributes(hca: &Hca) -> DeviceAttr {
    let caps = &hca.caps;
    let of = |log: u32| 1_u32 << log.min(31);
    DeviceAttr {
        name: hca.function().name().to_owned(),
        fabric: if hca.port.ethernet { "roce" } else { "infiniband" }.to_owned(),
        max_qp: of(caps.log_max_qp),
        max_qp_wr: qp::max_wr(caps),
        max_sge: qp::max_sge(caps).min(srq::max_sge(caps)),
        max_inline: qp::max_inline(caps),
        max_cq: of(caps.log_max_cq),
        max_cqe: cq::max_cqe(caps),
        max_mr: of(caps.log_max_mkey.min(24)),
        max_mr_bytes: 1 << caps.log_max_mr_bytes,
        max_pd: of(caps.log_max_pd),
        max_ah: crate::ah::LIMIT,
        max_srq: of(caps.log_max_srq),
        max_srq_wr: srq::max_wr(caps),
        max_rd_atomic: of(caps.log_max_ra_req_qp.min(caps.log_max_ra_res_qp)).min(128) as u8,
        atomics: if caps.atomic { AtomicScope::Hca } else { AtomicScope::None },
        foreign_memory: hca.function().takes_foreign(),
        general_services: false,
        // It moves no queue to other memory, and has neither ATOMIC WRITE nor FLUSH.
        abilities: Abilities {
            mr_rereg: true,
            cq_moderation: caps.cq_moderation.then_some(cq::MAX_MODERATION),
            ..Abilities::default()
        },
    }
}

// SAFETY: (1) an adapter reaches memory by keys, over ranges and rights that `mr` gave them, and nothing that
// `hca_vfio` did not map for it. (2) It does so by itself, or from another process. (3) A key is destroyed before its
// mapping is taken back (`mr`); an adapter that does not answer is kept from all memory, or the call fails. (4), (5) A
// queue is destroyed by a command that the adapter answers when it is done with its requests, or it is kept from all
// memory; `CqCore::remove` returns what was taken and not polled. (6) Arenas are pages. (7) Handles have a generation,
// and keys are the adapter's with a tag of ours. (8) Ports hold the adapter and what they share with the control path
// by `Arc`; queues' memory is kept as long as the adapter may know it.
unsafe impl Device for Mlx5 {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }
    fn port(&self) -> PortAttr {
        self.hca.port.attr()
    }
    fn counters(&self) -> Vec<Counter> {
        let counter = |name, value| Counter { name, value };
        let mut all = vec![
            counter("pages_lent", self.hca.pages_lent() as u64),
            counter("events_lost", self.hca.events.lost()),
            counter("health_reports", self.hca.health.reports()),
        ];
        if let Some(eth) = &self.hca.ethernet {
            let c = eth.counters();
            all.push(counter("neighbour_frames_received", c.heard));
            all.push(counter("neighbour_frames_sent", c.said));
            all.push(counter("neighbour_frames_not_sent", c.tx_dropped));
        }
        counters::read(&self.hca, &mut all);
        all
    }
    fn port_counters(&self) -> Option<PortCounters> {
        PortCounters::sum(&self.counters(), &counters::OF_PORT)
    }
    fn gids(&self) -> Vec<GidEntry> {
        self.hca.port.gids()
    }
    fn queue_pairs(&self) -> Vec<QpInfo> {
        self.hca.qps.list()
    }
    fn clock(&self) -> Option<DeviceClock> {
        let khz = self.hca.caps.clock_khz?;
        Some(DeviceClock { khz, now: self.hca.registers.timer().ok()? })
    }

    fn alloc_pd(&self) -> Result<PdHandle, DeviceError> {
        self.hca.pds.create(&self.hca)
    }
    fn dealloc_pd(&self, pd: PdHandle) -> Result<(), DeviceError> {
        self.hca.pds.destroy(&self.hca, pd)
    }

    fn alloc_memory(&self, len: usize) -> Result<DmaMemory, DeviceError> {
        memory::alloc(&self.hca, len)
    }
    unsafe fn reg_mr(&self, pd: PdHandle, mr: &MrInit) -> Result<MrKeys, DeviceError> {
        // SAFETY: our caller's promise.
        unsafe { self.hca.mrs.register(&self.hca, pd, mr) }
    }
    fn dereg_mr(&self, mr: MrHandle) -> Result<(), DeviceError> {
        self.hca.mrs.deregister(&self.hca, mr)
    }
    fn rereg_mr(&self, mr: MrHandle, pd: PdHandle, access: Access) -> Result<MrKeys, DeviceError> {
        self.hca.mrs.change(&self.hca, mr, pd, access)
    }
    fn query_mr(&self, mr: MrHandle) -> Result<MrStatus, DeviceError> {
        self.hca.mrs.query(mr)
    }

    fn create_cq(&self, depth: u32) -> Result<(CqHandle, Box<dyn CqPort>), DeviceError> {
        self.hca.cqs.create(&self.hca, depth)
    }
    fn moderate_cq(&self, cq: CqHandle, moderation: CqModeration) -> Result<(), DeviceError> {
        self.hca.cqs.moderate(&self.hca, cq, moderation)
    }
    fn query_cq(&self, cq: CqHandle) -> Result<CqStatus, DeviceError> {
        self.hca.cqs.query(&self.hca, cq)
    }
    fn destroy_cq(&self, cq: CqHandle) -> Result<(), DeviceError> {
        self.hca.cqs.destroy(&self.hca, cq)
    }

    fn create_srq(
        &self,
        pd: PdHandle,
        init: &SrqInit,
    ) -> Result<(SrqHandle, Box<dyn RecvPort>), DeviceError> {
        self.hca.srqs.create(&self.hca, pd, init)
    }
    fn set_srq_limit(&self, srq: SrqHandle, limit: u32) -> Result<(), DeviceError> {
        self.hca.srqs.set_limit(&self.hca, srq, limit)
    }
    fn destroy_srq(&self, srq: SrqHandle) -> Result<(), DeviceError> {
        self.hca.srqs.destroy(&self.hca, srq)
    }

    fn create_ah(&self, pd: PdHandle, av: &AddressVector) -> Result<AhHandle, DeviceError> {
        self.hca.ahs.create(&self.hca, pd, av)
    }
    fn destroy_ah(&self, ah: AhHandle) -> Result<(), DeviceError> {
        self.hca.ahs.destroy(&self.hca, ah)
    }

    fn create_qp(&self, pd: PdHandle, init: &QpInit) -> Result<QpPorts, DeviceError> {
        match init.qp_type {
            QpType::Rc | QpType::Uc | QpType::Ud => {}
            QpType::XrcIni | QpType::XrcTgt => {
                return Err(DeviceError::Unsupported { what: "extended reliable connections (XRC)" });
            }
            QpType::Rd | QpType::Eec => {
                return Err(DeviceError::Unsupported { what: "reliable datagrams (RD)" });
            }
        }
        self.hca.qps.create(&self.hca, pd, init)
    }
    fn modify_qp(&self, qp: QpHandle, attr: &QpAttr) -> Result<(), DeviceError> {
        self.hca.qps.modify(&self.hca, qp, attr)
    }
    fn query_qp(&self, qp: QpHandle) -> Result<QpStatus, DeviceError> {
        self.hca.qps.query(&self.hca, qp)
    }
    fn destroy_qp(&self, qp: QpHandle) -> Result<Vec<u64>, DeviceError> {
        self.hca.qps.destroy(&self.hca, qp)
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        self.hca.events.pop()
    }
    fn set_event_waker(&self, waker: &Waker) {
        self.hca.events.set_waker(waker);
    }

    /// The adapter moves by itself; one that is served does so on a CPU that who looks in a loop may have.
    fn turn(&self) -> bool {
        if self.served && self.turns.fetch_add(1, Ordering::Relaxed) % LOOKS == LOOKS - 1 {
            std::thread::yield_now();
        }
        false
    }
    fn needs_turns(&self) -> bool {
        false
    }
    fn next_deadline(&self) -> Option<Duration> {
        None
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.hca.events.fd())
    }
}
