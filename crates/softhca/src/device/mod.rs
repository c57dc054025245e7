//! The adapter itself: opening it, and its control path.

mod create;
mod multicast;
mod offload;
mod rd;
mod served;
mod xrc;

use core::task::Waker;
use core::time::Duration;
use std::os::fd::BorrowedFd;
use std::thread::JoinHandle;

use hca_core::wire::Placement;
use hca_core::{
    Abilities, Access, AddressVector, AhHandle, AsyncEvent, AtomicScope, Counter, CqHandle, CqModeration,
    CqPort, CqStatus, Device, DeviceAttr, DeviceClock, DeviceError, DmaMemory, ExtendedConnections, Gid,
    GidEntry, Lid, MemoryWindows, MrHandle, MrInit, MrKeys, MrStatus, Multicast, MwHandle, MwKeys, MwRange,
    MwStatus, MwType, Offload, PdHandle, PortAttr, PortCounters, QpAttr, QpHandle, QpInfo, QpInit, QpPorts,
    QpStatus, RecvPort, ReliableDatagrams, Rkey, SrqHandle, SrqInit, SrqStatus,
};
use hca_fabric::{Fabric, FabricAttr, FabricLink, QpEnds};

use crate::counters::OpCounts;
use crate::drive::progress;
use crate::drive::shared::Shared;
use crate::drive::sleep::Sleep;
use crate::drive::sleeper::Sleeper;
use crate::engine::grants::outcome;
use crate::engine::{AckRule, Engine};
use crate::limits::{
    MAX_CQE, MAX_INLINE, MAX_MEMBERS, MAX_MODERATION, MAX_MW, MAX_QPS, MAX_RD_ATOMIC, MAX_RDD, MAX_SGE,
    MAX_WR, MAX_XRCD, SPARED_SLOTS,
};
use crate::memory::mr::MrTable;
use crate::memory::scattered::Scattered;
use crate::network::Network;
use crate::notify::events::Events;
use crate::notify::runs::Attention;
use crate::objects::qp::is_near;
use crate::objects::slab::Slab;
use crate::objects::srq::SrqEntry;
use crate::objects::tables::{Ah, Pd, Tables};
use crate::options::{Limits, Options, Progress, Time};
use crate::ports::cq::SoftCq;
use crate::ports::recv::SrqPort;
use crate::queues::cq::{CqEntry, CqShared};
use crate::queues::ring::ring;
use crate::sync::{Arc, AtomicUsize};
use hca_core::SplitMix64 as Random;

/// A host channel adapter in software.
pub struct SoftHca {
    shared: Arc<Shared>,
    /// The network as it was when the adapter was opened.
    opened_on: FabricAttr,
    thread: Option<JoinHandle<()>>,
    /// The number of dormant queue pairs that were called.
    pub(crate) calls: Arc<AtomicUsize>,
}

impl SoftHca {
    /// Opens an adapter on a network.
    ///
    /// # Errors
    /// The progress mode needs a descriptor, which the network does not have; or the system has no descriptor or thread
    /// left.
    pub fn open(mut fabric: Box<dyn Fabric>, options: Options) -> Result<std::sync::Arc<Self>, DeviceError> {
        let threaded = options.progress != Progress::Inline;
        let virtual_time = matches!(options.clock, crate::Clock::Virtual(_));
        if threaded && (fabric.wait_fd().is_none() || virtual_time) {
            return Err(DeviceError::Unsupported {
                what: "an adapter thread on a network without a descriptor, or in virtual time; use Progress::Inline",
            });
        }
        let l = options.limits;
        for (what, value, max) in
            [("queue pair limit", l.qps, MAX_QPS), ("memory region limit", l.mrs, 1 << 24)]
        {
            DeviceError::unless_within(what, value, 1, max)?;
        }
        let seed = match options.seed {
            Some(s) => s,
            None => system_seed()?,
        };
        // Queue pair numbers begin elsewhere each time an adapter is opened, so that packets to one that is
        // gone do not find its successor at the same address.
        let first_generation = Random::new(seed ^ 1).next_u64() as u32 & 0xffff;
        let mut opened_on = fabric.attr().clone();
        opened_on.max_mtu = options.mtu.unwrap_or(opened_on.max_mtu).min(opened_on.max_mtu);
        let (attr, port) = describe(&opened_on, &l, fabric.groups().map_or(0, |groups| groups.limit()));
        let attention = Arc::new(Attention::new());
        let events = Arc::new(Events::new(attention.clone()));
        let tables = Tables::new(
            Slab::new("protection domain", l.pds),
            MrTable::new(l.mrs, Random::new(seed)).with_windows(max_mw(&l)),
            Slab::new("completion queue", l.cqs),
            Slab::new("shared receive queue", l.srqs),
            events.clone(),
        );
        // Without generations in their numbers all are used once before one is used again.
        let spared = if opened_on.qpn_slot.is_some() { l.qps as usize } else { SPARED_SLOTS };
        let qps = Slab::beginning_at("queue pair", l.qps, first_generation, spared);
        let mut engine = Engine::new(Network::new(fabric), qps, tables, Slab::new("address handle", l.ahs));
        engine.real_time = !virtual_time;
        engine.max_mtu = opened_on.max_mtu;
        let calls = engine.core.dormant.calls.clone();
        let sleeper = Sleeper::new(options.progress)?;
        let time = Time::new(options.clock);
        let shared = Arc::new(Shared::new(
            engine,
            time,
            (options.progress, options.lazy_acks),
            (attr, port),
            (events, attention),
            sleeper,
        )?);
        let thread = if threaded {
            let s = shared.clone();
            let sleep = Sleep::new(s.sleeper.kick(), &s.sleeper.watch)?;
            let io = |source| DeviceError::Io { doing: "starting the adapter's thread", source };
            Some(hca_process::spawn("hca-progress", move || progress::run(&s, sleep)).map_err(io)?)
        } else {
            None
        };
        Ok(std::sync::Arc::new(Self { shared, opened_on, thread, calls }))
    }

    /// The progress mode that the adapter was opened with.
    pub fn progress(&self) -> Progress {
        self.shared.progress
    }
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
    /// As [`Shared::control`]; a forked child's calls are refused.
    pub(crate) fn control<R>(
        &self,
        f: impl FnOnce(&mut Engine) -> Result<R, DeviceError>,
    ) -> Result<R, DeviceError> {
        self.shared.fork.check()?;
        self.shared.control(f)
    }
    /// The attributes of the network, some found at run time; in a forked child, those of the time when the adapter was
    /// opened.
    pub fn fabric(&self) -> FabricAttr {
        let mut attr = self.opened_on.clone();
        if !self.shared.fork.is_child() {
            attr.notes = self.shared.control(|e| e.network.notes());
        }
        attr
    }
    /// Registers memory as [`Device::reg_mr`] does, with a key whose lowest byte is `tag`: for callers whose own
    /// clients choose that byte. If a slot of the table gets the same tag again, the slot's old key becomes valid
    /// again; the table avoids such a slot as long as it has others.
    ///
    /// # Safety
    /// As [`Device::reg_mr`].
    ///
    /// # Errors
    /// As [`Device::reg_mr`].
    #[allow(unsafe_code)] // the contract of `reg_mr`
    pub unsafe fn reg_mr_tagged(&self, pd: PdHandle, mr: &MrInit, tag: u8) -> Result<MrKeys, DeviceError> {
        self.register(pd, mr, Some(tag))
    }
    /// Changes a region's protection domain and access rights; its memory, addresses and keys stay. On return, no
    /// access is under way that is no longer allowed. The region has a new handle from now on, and the same keys.
    ///
    /// # Errors
    /// The region or the domain is unknown, or `access` asks for persistence: nothing was done then. Or the region is
    /// gone, and a peer on this machine may still be within an access ([`DeviceError::Exposed`]).
    pub fn change_mr(&self, mr: MrHandle, pd: PdHandle, access: Access) -> Result<MrKeys, DeviceError> {
        self.shared.fork.check()?;
        check_rights(access)?;
        let ((init, scattered), ended, begun) = self.shared.control(|e| {
            e.use_pd(pd)?;
            let mrs = &mut e.core.tables.mrs;
            let was = mrs.init_of(mr)?;
            let ended = mrs.end(mr)?;
            e.use_pd(pd)?.users += 1;
            let begun = e.begin_revoke(ended.key);
            Ok::<_, DeviceError>((was, ended, begun))
        })?;
        let revocation = self.shared.taken_back(begun);
        let init = MrInit { access, ..init };
        self.shared.control(|e| e.replace_mr((ended, &revocation), pd, &init, scattered))
    }
    /// Registers memory in several pieces as one region, whose first byte has the address `iova` for peers, with a tag
    /// as in [`reg_mr_tagged`](Self::reg_mr_tagged). An access costs a look-up for each piece that it touches, and the
    /// memory is never granted to peers on this machine; otherwise the region behaves like memory in one piece.
    ///
    /// # Safety
    /// As [`Device::reg_mr`], for each piece.
    ///
    /// # Errors
    /// As [`Device::reg_mr`].
    #[allow(unsafe_code)] // the contract of `reg_mr`
    pub unsafe fn reg_scattered(
        &self,
        pd: PdHandle,
        memory: Arc<Scattered>,
        (iova, access): (u64, Access),
        tag: u8,
    ) -> Result<MrKeys, DeviceError> {
        let len = memory.len();
        check_rights(access)?;
        self.register_with(pd, (0, len, iova), |mrs| mrs.register_scattered(pd, memory, (iova, access), tag))
    }
    fn register(&self, pd: PdHandle, mr: &MrInit, tag: Option<u8>) -> Result<MrKeys, DeviceError> {
        check_rights(mr.access)?;
        self.register_with(pd, (mr.addr.addr().get(), mr.len, mr.iova), |mrs| match tag {
            None => mrs.register(pd, mr),
            Some(tag) => mrs.register_tagged(pd, mr, tag),
        })
    }
    fn register_with(
        &self,
        pd: PdHandle,
        (addr, len, iova): (usize, usize, u64),
        register: impl FnOnce(&mut MrTable) -> Result<MrKeys, DeviceError>,
    ) -> Result<MrKeys, DeviceError> {
        self.shared.fork.check()?;
        let max = self.shared.attr.max_mr_bytes;
        let fits = addr.checked_add(len).is_some() && iova.checked_add(len as u64).is_some();
        if len == 0 || len as u64 > max || !fits {
            return Err(DeviceError::OutOfRange { what: "region length", value: len as u64, min: 1, max });
        }
        self.shared.control(|e| {
            e.use_pd(pd)?;
            let keys = register(&mut e.core.tables.mrs)?;
            e.use_pd(pd)?.users += 1;
            Ok(keys)
        })
    }
    fn create_cq_of(&self, depth: u32, timed: bool) -> Result<(CqHandle, Box<dyn CqPort>), DeviceError> {
        self.shared.fork.check()?;
        DeviceError::unless_within("completion queue depth", depth, 1, MAX_CQE)?;
        let (producer, consumer) = ring(depth, usize::from(timed));
        let shared = Arc::new(CqShared::new(self.shared.attention.clone()));
        let handle = self.shared.control(|e| {
            let cqs = &mut e.core.tables.cqs;
            let (index, generation) = cqs.vacant()?;
            let handle = CqHandle { index, generation };
            cqs.insert(match timed {
                false => CqEntry::new(handle, producer, shared.clone()),
                true => CqEntry::timed(handle, producer, shared.clone(), self.shared.time.clone()),
            })?;
            Ok::<_, DeviceError>(handle)
        })?;
        let port = SoftCq::new(self.shared.clone(), handle, timed, consumer, shared);
        Ok((handle, Box::new(port)))
    }
    /// Creates a shared receive queue; `as_what` is called with it, and may refuse it.
    pub(crate) fn create_srq_as(
        &self,
        pd: PdHandle,
        init: &SrqInit,
        as_what: impl FnOnce(&mut Engine, SrqHandle) -> Result<(), DeviceError>,
    ) -> Result<(SrqHandle, Box<dyn RecvPort>), DeviceError> {
        self.shared.fork.check()?;
        DeviceError::unless_within("max_wr", init.max_wr, 1, MAX_WR)?;
        DeviceError::unless_within("max_sge", init.max_sge, 0, MAX_SGE)?;
        let SrqInit { max_wr: depth, max_sge } = *init;
        let (producer, ring) = ring(depth, max_sge as usize);
        let handle = self.shared.control(|e| {
            e.use_pd(pd)?;
            let srqs = &mut e.core.tables.srqs;
            let (index, generation) = srqs.vacant()?;
            let handle = SrqHandle { index, generation };
            let (returned, limit, users, xrc, rd) = (Vec::new(), 0, 0, None, None);
            srqs.insert(SrqEntry { handle, pd, ring, returned, depth, max_sge, limit, users, xrc, rd })?;
            if let Err(why) = as_what(e, handle) {
                e.core.tables.srqs.remove(index, generation);
                return Err(why);
            }
            e.use_pd(pd)?.users += 1;
            Ok(handle)
        })?;
        let hca = self.shared.clone();
        Ok((handle, Box::new(SrqPort { hca, handle, ring: producer, max_sge })))
    }
    /// The send window of a queue pair.
    ///
    /// # Errors
    /// The queue pair is unknown.
    pub fn window(&self, qp: QpHandle) -> Result<hca_transport::WindowStats, DeviceError> {
        self.control(|e| e.core.qps.known(qp.index, qp.generation).map(|q| q.machine.window()))
    }
}

impl SoftHca {
    /// Sends the acknowledgements that the adapter owes its peers. A process that ends with the adapter open calls this:
    /// the peers' requests for what it has received end in error otherwise.
    pub fn acknowledge_all(&self) {
        if !self.shared.fork.is_child() {
            let now = self.shared.time.now();
            self.shared.control(|e| e.acknowledge_all(now));
        }
    }
    /// The same without a wait, for a process that ends in a signal handler, say: its thread may have been interrupted
    /// while it had the engine. Nothing is sent where a thread has it for long.
    pub fn acknowledge_at_once(&self) {
        if let Some(mut engine) = self.shared.engine_without_wait() {
            engine.acknowledge_all(self.shared.time.now());
            self.shared.give_back(engine);
        }
    }
}

impl Drop for SoftHca {
    fn drop(&mut self) {
        if self.shared.fork.is_child() {
            return;
        }
        self.shared.retire_engines();
        self.acknowledge_all();
        self.shared.sleeper.stop();
        if let Some(t) = self.thread.take()
            && t.thread().id() != std::thread::current().id()
            && t.join().is_err()
        {
            tracing::error!("the adapter's thread had panicked");
        }
    }
}

/// Refuses the right to FLUSH for persistence: an answer to such a FLUSH would promise what ordinary memory does not do.
fn check_rights(access: Access) -> Result<(), DeviceError> {
    if access.contains(Access::FLUSH_PERSISTENT) {
        return Err(DeviceError::Unsupported {
            what: "a FLUSH for persistence: the memory is lost with the power",
        });
    }
    Ok(())
}

fn system_seed() -> Result<u64, DeviceError> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| DeviceError::Io { doing: "drawing the seed of the keys", source: e.into() })?;
    Ok(u64::from_ne_bytes(bytes))
}

const ABILITIES: Abilities = Abilities {
    cq_moderation: Some(MAX_MODERATION),
    cq_resize: true,
    srq_resize: true,
    mr_rereg: true,
    max_mw: MAX_MW,
    max_xrcd: MAX_XRCD,
    max_rdd: MAX_RDD,
    // By its network.
    max_mcast_grp: 0,
    max_mcast_qp_attach: 0,
    atomic_write: true,
    flush: Placement::GLOBAL_VISIBILITY,
};

/// Memory windows that have keys beside those of regions.
fn max_mw(limits: &Limits) -> u32 {
    MAX_MW.min((1 << 24) - limits.mrs)
}

fn describe(fabric: &FabricAttr, l: &Limits, groups: u32) -> (DeviceAttr, PortAttr) {
    let abilities = Abilities {
        max_mw: max_mw(l),
        max_mcast_grp: groups,
        max_mcast_qp_attach: if groups > 0 { MAX_MEMBERS } else { 0 },
        ..ABILITIES
    };
    let attr = DeviceAttr {
        name: format!("softhca-{}", fabric.local),
        fabric: fabric.name.clone(),
        max_qp: l.qps,
        max_qp_wr: MAX_WR,
        max_sge: MAX_SGE,
        max_inline: MAX_INLINE,
        max_cq: l.cqs,
        max_cqe: MAX_CQE,
        max_mr: l.mrs,
        max_mr_bytes: crate::memory::pages::MAX_BYTES,
        max_pd: l.pds,
        max_ah: l.ahs,
        max_srq: l.srqs,
        max_srq_wr: MAX_WR,
        max_rd_atomic: MAX_RD_ATOMIC,
        atomics: AtomicScope::Cpu,
        foreign_memory: true,
        general_services: true,
        abilities,
    };
    let gid = Gid::from_ip(fabric.local);
    let port = PortAttr {
        gid,
        lid: Lid::new(0),
        active_mtu: fabric.max_mtu,
        active: true,
        link_layer: fabric.link.layer,
        link: fabric.link.speed,
    };
    (attr, port)
}

#[allow(unsafe_code)] // a promise of its own, and `reg_mr`'s contract
// SAFETY: (1) the engine finds memory by a key alone: the table of regions checks key, protection domain, rights and
// range of each piece before it yields an address; a list comes from a request that was not released yet. Peers on this
// machine ask for a region's pages by its key and are shown those that its rights grant. (2) Addresses go to `dma` and
// to the kernel. (3), (4), (5) What removes a region, a queue pair or a shared receive queue holds the engine's lock,
// under which all of that is done; it takes grants and loans back, and returns behind that. `lost_recvs` returns what
// was taken and not polled. (6) `memory` maps whole pages. (7) Handles have the generation of their place in a table,
// and keys are made of the region's place. (8) Ports hold what they share with the engine by `Arc`, and find a
// destroyed queue by its state.
unsafe impl Device for SoftHca {
    fn attr(&self) -> &DeviceAttr {
        &self.shared.attr
    }
    fn port(&self) -> PortAttr {
        self.shared.port
    }
    fn gids(&self) -> Vec<GidEntry> {
        let FabricLink { kind, interface, .. } = &self.opened_on.link;
        GidEntry::of_port(self.shared.port.gid, *kind, interface.as_deref())
    }
    fn port_counters(&self) -> Option<PortCounters> {
        // Messages between processes of one machine are no packets.
        if self.shared.fork.is_child()
            || self.shared.control(|e| e.network.near().is_some_and(|s| s.is_alone()))
        {
            return None;
        }
        PortCounters::sum(&self.counters(), &crate::counters::OF_PORT)
    }
    fn counters(&self) -> Vec<Counter> {
        let mut out = Vec::new();
        if self.shared.fork.is_child() {
            return out;
        }
        self.shared.control(|e| {
            let t = &e.core.tables;
            e.core.counters.append(&mut out);
            crate::counters::named(&t.counts, &mut out);
            crate::counters::named_faults(&t.key_faults, &mut out);
            let ops = OpCounts::default();
            ops.add_all(&t.ops_of_the_gone);
            e.core.qps.iter().for_each(|(_, qp)| ops.add_all(&qp.res.shared.ops));
            ops.named(&mut out);
            out.extend([
                Counter { name: "completions", value: t.completions },
                Counter { name: "events_dropped", value: t.events.dropped() },
                Counter { name: "portals_runs", value: self.shared.attention.runs() },
                Counter { name: "queue_pairs", value: e.core.qps.len().into() },
                Counter { name: "memory_regions", value: t.mrs.live().into() },
                Counter { name: "protection_domains", value: t.pds.len().into() },
            ]);
            e.network.counters(&mut out);
        });
        out
    }
    fn qp_counters(&self, qp: QpHandle) -> Result<Vec<Counter>, DeviceError> {
        self.control(|e| {
            let entry = e.core.qps.known(qp.index, qp.generation)?;
            let mut out = Vec::new();
            crate::counters::named(&entry.res.counts, &mut out);
            entry.res.shared.ops.named(&mut out);
            Ok(out)
        })
    }
    fn queue_pairs(&self) -> Vec<QpInfo> {
        if self.shared.fork.is_child() {
            return Vec::new();
        }
        self.shared.control(|e| e.core.qps.iter().map(|(_, entry)| entry.info()).collect())
    }

    fn clock(&self) -> Option<DeviceClock> {
        Some(DeviceClock { khz: 1_000_000, now: self.shared.time.shown() })
    }

    fn alloc_pd(&self) -> Result<PdHandle, DeviceError> {
        self.control(|e| {
            let (index, generation) = e.core.tables.pds.insert(Pd { users: 0 })?;
            Ok(PdHandle { index, generation })
        })
    }
    fn dealloc_pd(&self, pd: PdHandle) -> Result<(), DeviceError> {
        self.control(|e| {
            DeviceError::unless_unused("protection domain", e.use_pd(pd)?.users)?;
            e.core.tables.pds.remove(pd.index, pd.generation);
            Ok(())
        })
    }

    fn alloc_memory(&self, len: usize) -> Result<DmaMemory, DeviceError> {
        self.shared.fork.check()?;
        if self.shared.gives_shared_memory
            && let Some(memory) = crate::memory::pages::alloc_shared(len)
        {
            return Ok(memory);
        }
        crate::memory::pages::alloc(len)
    }
    unsafe fn reg_mr(&self, pd: PdHandle, mr: &MrInit) -> Result<MrKeys, DeviceError> {
        self.register(pd, mr, None)
    }
    fn rereg_mr(&self, mr: MrHandle, pd: PdHandle, access: Access) -> Result<MrKeys, DeviceError> {
        self.change_mr(mr, pd, access)
    }
    fn query_mr(&self, mr: MrHandle) -> Result<MrStatus, DeviceError> {
        self.control(|e| e.core.tables.mrs.status(mr))
    }
    fn dereg_mr(&self, mr: MrHandle) -> Result<(), DeviceError> {
        self.shared.fork.check()?;
        // All copies of ours run under the engine's lock, so none is under way behind this; those of peers are waited
        // for, while others have the engine.
        let (ended, begun) = self.shared.control(|e| {
            let ended = e.core.tables.mrs.end(mr)?;
            let begun = e.begin_revoke(ended.key);
            Ok::<_, DeviceError>((ended, begun))
        })?;
        let revocation = self.shared.taken_back(begun);
        self.shared.control(|e| {
            e.leave_pd(ended.pd);
            e.core.tables.mrs.free(ended);
        });
        outcome(&revocation)
    }

    fn create_cq(&self, depth: u32) -> Result<(CqHandle, Box<dyn CqPort>), DeviceError> {
        self.create_cq_of(depth, false)
    }
    fn create_timed_cq(&self, depth: u32) -> Result<(CqHandle, Box<dyn CqPort>), DeviceError> {
        self.create_cq_of(depth, true)
    }
    fn moderate_cq(&self, cq: CqHandle, moderation: CqModeration) -> Result<(), DeviceError> {
        self.shared.fork.check()?;
        let micros = |period: Duration| u64::try_from(period.as_micros()).unwrap_or(u64::MAX);
        let (value, max) = (micros(moderation.period), micros(MAX_MODERATION.period));
        if value > max {
            return Err(DeviceError::OutOfRange { what: "period in microseconds", value, min: 0, max });
        }
        let time = self.shared.time.clone();
        self.shared.control(|e| e.cq(cq).map(|entry| entry.moderate(moderation, time)))
    }
    fn query_cq(&self, cq: CqHandle) -> Result<CqStatus, DeviceError> {
        self.control(|e| e.cq(cq).map(|entry| entry.status()))
    }
    fn destroy_cq(&self, cq: CqHandle) -> Result<(), DeviceError> {
        let engine = self.control(|e| {
            DeviceError::unless_unused("completion queue", *e.cq_users(cq)?)?;
            Ok(e.core.tables.cqs.remove(cq.index, cq.generation).and_then(|mut entry| entry.detach()))
        })?;
        engine.inspect(|engine| self.shared.retire(engine));
        Ok(())
    }

    fn create_srq(
        &self,
        pd: PdHandle,
        init: &SrqInit,
    ) -> Result<(SrqHandle, Box<dyn RecvPort>), DeviceError> {
        self.create_srq_as(pd, init, |_, _| Ok(()))
    }
    fn set_srq_limit(&self, srq: SrqHandle, limit: u32) -> Result<(), DeviceError> {
        self.control(|e| {
            let q = e.srq(srq)?;
            DeviceError::unless_within("limit", limit, 0, q.depth)?;
            q.limit = limit;
            if q.limit_reached() {
                e.core.tables.event(AsyncEvent::SrqLimitReached(srq));
            }
            Ok(())
        })
    }
    fn query_srq(&self, srq: SrqHandle) -> Result<SrqStatus, DeviceError> {
        self.control(|e| e.srq(srq).map(|q| q.status()))
    }
    fn destroy_srq(&self, srq: SrqHandle) -> Result<(), DeviceError> {
        self.control(|e| {
            let SrqEntry { users, xrc, .. } = *e.srq(srq)?;
            DeviceError::unless_unused("shared receive queue", users)?;
            xrc.inspect(|xrc| e.end_xrc_srq(srq.index, *xrc));
            let q = e.core.tables.srqs.remove(srq.index, srq.generation).expect("seen just now");
            e.leave_pd(q.pd);
            Ok(())
        })
    }

    fn create_ah(&self, pd: PdHandle, av: &AddressVector) -> Result<AhHandle, DeviceError> {
        self.control(|e| {
            e.use_pd(pd)?;
            e.core.ahs.vacant()?;
            let path = e.open_path(av, QpEnds::default())?;
            e.use_pd(pd)?.users += 1;
            let (index, generation) = e.core.ahs.insert(Ah { pd, path }).expect("a vacant slot was seen");
            Ok(AhHandle { index, generation })
        })
    }
    fn destroy_ah(&self, ah: AhHandle) -> Result<(), DeviceError> {
        self.control(|e| {
            let gone = e.core.ahs.take(ah.index, ah.generation)?;
            e.network.close_path(gone.path);
            e.leave_pd(gone.pd);
            Ok(())
        })
    }

    fn create_qp(&self, pd: PdHandle, init: &QpInit) -> Result<QpPorts, DeviceError> {
        self.control(|e| e.create_qp(&self.shared, pd, init, None))
    }
    fn create_general_services_qp(&self, pd: PdHandle, init: &QpInit) -> Result<QpPorts, DeviceError> {
        self.control(|e| e.create_general_services_qp(&self.shared, pd, init))
    }

    fn comm_id_prefix(&self) -> Option<u8> {
        self.opened_on.qpn_slot
    }
    fn claim_service(&self, service: u64) -> Result<(), DeviceError> {
        self.shared.fork.check()?;
        let claimed = self.shared.control(|e| e.network.desk().map_or(Ok(()), |desk| desk.claim(service)));
        claimed.map_err(|source| match source.kind() {
            std::io::ErrorKind::AddrInUse => DeviceError::InUse { what: "service", users: 1 },
            _ => DeviceError::Io { doing: "claiming a service at a shared address", source },
        })
    }
    fn release_service(&self, service: u64) {
        if !self.shared.fork.is_child() {
            self.shared.control(|e| _ = e.network.desk().map(|desk| desk.release(service)));
        }
    }
    fn modify_qp(&self, qp: QpHandle, attr: &QpAttr) -> Result<(), DeviceError> {
        self.shared.fork.check()?;
        let done = self.shared.change(|e, now| e.modify_qp(now, qp, attr));
        self.shared.note_changed();
        done
    }
    fn query_qp(&self, qp: QpHandle) -> Result<QpStatus, DeviceError> {
        self.control(|e| {
            let q = e.core.qps.known(qp.index, qp.generation)?;
            let near = is_near(&q.machine, &q.res);
            Ok(QpStatus { state: q.machine.state(), attr: *q.machine.attr(), cap: q.res.cap, near })
        })
    }
    fn destroy_qp(&self, qp: QpHandle) -> Result<Vec<u64>, DeviceError> {
        self.shared.fork.check()?;
        self.shared.change(|e, now| e.destroy_qp(now, qp))
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        if self.shared.fork.is_child() {
            return None;
        }
        self.shared.events.pop()
    }
    fn set_event_waker(&self, waker: &Waker) {
        if self.shared.fork.is_child() {
            return;
        }
        self.shared.events.set_waker(waker);
        self.shared.program_sleeps();
    }

    fn turn(&self) -> bool {
        self.shared.attention.sleeps_no_more();
        self.shared.program_turn(AckRule::NextTurn)
    }
    fn needs_turns(&self) -> bool {
        self.shared.progress == Progress::Inline && !self.shared.time.is_virtual()
    }
    fn next_deadline(&self) -> Option<Duration> {
        if self.shared.fork.is_child() {
            return None;
        }
        if self.shared.progress != Progress::Thread {
            self.shared.attention.sleeps();
        }
        self.shared.prepare_wait();
        self.shared.next_deadline()
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.fork.check().ok()?;
        self.shared.wait_fd().ok()
    }

    fn turn_fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.fork.check().ok().filter(|()| self.shared.progress != Progress::Thread)?;
        self.shared.turn_fd().ok()
    }

    fn windows(&self) -> Option<&dyn MemoryWindows> {
        Some(self)
    }
    fn xrc(&self) -> Option<&dyn ExtendedConnections> {
        Some(self)
    }
    fn reliable_datagrams(&self) -> Option<&dyn ReliableDatagrams> {
        Some(self)
    }
    fn multicast(&self) -> Option<&dyn Multicast> {
        (self.shared.attr.abilities.max_mcast_grp > 0).then_some(self)
    }
    fn offload(&self) -> Option<&dyn Offload> {
        Some(self)
    }
}

impl MemoryWindows for SoftHca {
    fn alloc_mw(&self, pd: PdHandle, kind: MwType) -> Result<MwKeys, DeviceError> {
        self.control(|e| {
            e.use_pd(pd)?;
            let keys = e.core.tables.mrs.alloc_window(pd, kind)?;
            e.use_pd(pd)?.users += 1;
            Ok(keys)
        })
    }
    fn bind_mw(&self, mw: MwHandle, range: Option<&MwRange>) -> Result<Rkey, DeviceError> {
        self.shared.fork.check()?;
        // As for `dereg_mr`, no access is under way behind this, and no peer has one of its own.
        self.shared.control(|e| e.core.tables.mrs.bind_one(mw, range))
    }
    fn query_mw(&self, mw: MwHandle) -> Result<MwStatus, DeviceError> {
        self.control(|e| e.core.tables.mrs.window_status(mw))
    }
    fn dealloc_mw(&self, mw: MwHandle) -> Result<(), DeviceError> {
        self.control(|e| {
            let pd = e.core.tables.mrs.free_window(mw)?;
            e.leave_pd(pd);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use hca_core::{Access, AddressVector, Mtu, Pkey, Psn, QpAttr, QpCap, QpInit, QpState, QpType, Qpn};
    use hca_fabric::LoopbackNet;

    use super::*;

    #[test]
    fn the_smaller_mtu_of_network_and_options_is_the_ports() {
        for (mtu, wins) in [(None, Mtu::B4096), (Some(Mtu::B512), Mtu::B512), (Some(Mtu::B4096), Mtu::B4096)]
        {
            let fabric = LoopbackNet::new().attach([10, 0, 0, 1].into());
            let options = Options { mtu, progress: Progress::Inline, ..Options::default() };
            let hca = SoftHca::open(Box::new(fabric), options).unwrap();
            assert_eq!((hca.port().active_mtu, hca.fabric().max_mtu), (wins, wins));
            let (pd, (cq, _port)) = (hca.alloc_pd().unwrap(), hca.create_cq(1).unwrap());
            let init =
                QpInit { qp_type: QpType::Uc, send_cq: cq, recv_cq: cq, srq: None, cap: QpCap::default() };
            let qp = hca.create_qp(pd, &init).unwrap().handle;
            let (pkey, access) = (Some(Pkey::DEFAULT), Some(Access::empty()));
            let init = QpAttr { state: Some(QpState::Init), pkey, access, ..QpAttr::default() };
            hca.modify_qp(qp, &init).unwrap();
            let larger = QpAttr {
                state: Some(QpState::Rtr),
                dest_qpn: Some(Qpn::new(7)),
                av: Some(AddressVector { dgid: hca.port().gid, ..AddressVector::default() }),
                path_mtu: Some(Mtu::B1024),
                rq_psn: Some(Psn::new(0)),
                ..QpAttr::default()
            };
            assert_eq!(hca.modify_qp(qp, &larger).is_err(), wins == Mtu::B512);
        }
    }
}
