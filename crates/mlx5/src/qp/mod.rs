//! The control path of queue pairs.
//!
//! ```text
//!  core     QpCore      shared by ports and completion queues: state, shadows, the doorbell record
//!  send     SendQueue   the port that posts send requests        wqe      entries as words
//!  recv     RecvQueue   the port that posts receive requests     shadow   requests by their place
//!  context              attributes as the adapter has them
//! ```

mod context;
pub(crate) mod core;
pub(crate) mod recv;
pub(crate) mod send;
pub(crate) mod shadow;
pub(crate) mod wqe;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hca_core::{
    DeviceError, PdHandle, QpAttr, QpCap, QpHandle, QpInfo, QpInit, QpPorts, QpState, QpStatus, Qpn, RecvPort,
};
use hca_prm::command::qp::{CreateQpIn, CreateQpOut, DestroyQpIn, QueryQpIn, QueryQpOut};
use hca_prm::{PathMigration, Qpc, RqType};

use self::context::Fixed;
use self::core::QpCore;
use self::recv::RecvQueue;
use self::send::{SendLimits, SendQueue};
use self::wqe::BLOCK_CELLS;
use crate::caps::Caps;
use crate::cq::{CqCore, CqUser};
use crate::error::memory;
use crate::hca::Hca;
use crate::queue::QueueMemory;
use crate::shared::{CELL, SharedCells};
use crate::srq::SrqUser;
use crate::table::Table;
use crate::uar::Uar;

/// Sizes of a queue pair's rings, in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    /// Blocks of the send queue.
    blocks: u32,
    /// Receive requests; 0: there is no receive queue.
    recvs: u32,
    /// Cells of a receive request.
    stride: usize,
}

impl Sizes {
    fn of(cap: &QpCap, has_srq: bool) -> Self {
        let blocks = cap.max_send_wr * wqe::blocks_for(cap.max_send_sge, cap.max_inline);
        let stride = (cap.max_recv_sge as usize).next_power_of_two();
        // The send queue behind it begins with a block.
        let least = (BLOCK_CELLS / stride.min(BLOCK_CELLS)) as u32;
        let recvs =
            if has_srq || cap.max_recv_wr == 0 { 0 } else { cap.max_recv_wr.next_power_of_two().max(least) };
        Self { blocks: blocks.next_power_of_two(), recvs, stride }
    }
    fn recv_cells(&self) -> usize {
        self.recvs as usize * self.stride
    }
    fn send_cells(&self) -> usize {
        self.blocks as usize * BLOCK_CELLS
    }
}

/// Requests of a queue, at most: so many of the longest fit a send queue.
pub(crate) fn max_wr(caps: &Caps) -> u32 {
    (1 << caps.log_max_qp_sz.min(15)) / wqe::blocks_for(max_sge(caps), max_inline(caps))
}
/// Entries of a list, at most.
pub(crate) fn max_sge(caps: &Caps) -> u32 {
    wqe::MAX_SGE
        .min(caps.max_wqe_sz_rq / CELL as u32)
        .min((caps.max_wqe_sz_sq / CELL as u32).saturating_sub(4))
}
/// Inline bytes, at most.
pub(crate) fn max_inline(caps: &Caps) -> u32 {
    wqe::MAX_INLINE.min(caps.max_wqe_sz_sq.saturating_sub(4 * CELL as u32 + 4))
}

/// A queue pair, as the control path has it.
struct Entry {
    core: Arc<QpCore>,
    fixed: Fixed,
    cap: QpCap,
    pd: PdHandle,
    memory: SharedCells,
    send_cq: Arc<CqCore>,
    recv_cq: Arc<CqCore>,
    /// By what it holds its queues, until it is destroyed. Who looks at it may have it for longer.
    holds: Mutex<Option<Holds>>,
    /// Attributes as they were set; held while the queue pair changes.
    attr: Mutex<QpAttr>,
}

/// Holds on the queues of a queue pair.
type Holds = ([CqUser; 2], Option<SrqUser>);

impl Entry {
    fn attr(&self) -> MutexGuard<'_, QpAttr> {
        // It is whole between any two of its operations.
        self.attr.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// The state as the adapter has it.
    fn state(&self, hca: &Hca) -> Result<QpState, DeviceError> {
        let set = self.core.life().state().ok_or_else(|| unknown(self.core.handle))?;
        // It moves queue pairs by itself only where packets flow.
        if matches!(set, QpState::Reset | QpState::Init | QpState::Error) {
            return Ok(set);
        }
        let out = hca.exec(&QueryQpIn::new().with(QueryQpIn::QPN, self.fixed.qpn))?;
        Ok(context::state_of(out.get(QueryQpOut::QPC).get(Qpc::STATE)).unwrap_or(set))
    }
    /// Has the adapter give back the request that it took from a shared receive queue and has not filled: it comes by a
    /// flush.
    fn give_back_shared(&self, hca: &Hca, from: Option<QpState>) -> Result<(), DeviceError> {
        let busy = !matches!(from, None | Some(QpState::Reset | QpState::Error));
        if !busy || self.core.srq.is_none() {
            return Ok(());
        }
        context::command(hca, &self.fixed, [QpState::Rts, QpState::Error], &QpAttr::default(), None)
    }
    /// Takes it out of its completion queues, with what it left there, and returns what it took from a shared receive
    /// queue.
    fn leave(&self) -> Vec<u64> {
        let (send, recv) = (&self.send_cq, &self.recv_cq);
        if !Arc::ptr_eq(send, recv) {
            // One after the other: two queue pairs may have two queues the other way round.
            send.remove(&self.core);
        }
        recv.remove(&self.core)
    }
    /// Lets go of its queues, which may be destroyed from then on.
    fn let_go_of_queues(&self) {
        drop(self.holds.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
    /// Forgets all its requests, with what it left in its completion queues; those of a shared receive queue complete.
    fn forget(&self) {
        let (send, recv, core) = (&self.send_cq, &self.recv_cq, &*self.core);
        if Arc::ptr_eq(send, recv) {
            return send.reset(core, || {
                core.clear_send();
                core.clear_recv();
            });
        }
        // One after the other, as above.
        send.reset(core, || core.clear_send());
        recv.reset(core, || core.clear_recv());
    }
}

fn unknown(qp: QpHandle) -> DeviceError {
    DeviceError::UnknownHandle { what: "queue pair", handle: qp.index }
}

/// All queue pairs.
pub(crate) struct Qps(Mutex<Table<Arc<Entry>>>);

impl Qps {
    pub(crate) fn new(caps: &Caps) -> Self {
        Self(Mutex::new(Table::new("queue pair", 1 << caps.log_max_qp.min(24))))
    }
    fn table(&self) -> MutexGuard<'_, Table<Arc<Entry>>> {
        // It is whole between any two of its operations.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn find(&self, qp: QpHandle) -> Result<Arc<Entry>, DeviceError> {
        self.table().find(qp.index, qp.generation).cloned()
    }

    pub(crate) fn create(&self, hca: &Arc<Hca>, pd: PdHandle, init: &QpInit) -> Result<QpPorts, DeviceError> {
        let (cap, caps) = (&init.cap, &hca.caps);
        DeviceError::unless_within("max_send_wr", cap.max_send_wr, 1, max_wr(caps))?;
        DeviceError::unless_within("max_recv_wr", cap.max_recv_wr, 0, max_wr(caps))?;
        DeviceError::unless_within("max_send_sge", cap.max_send_sge, 0, max_sge(caps))?;
        DeviceError::unless_within("max_recv_sge", cap.max_recv_sge, 0, max_sge(caps))?;
        DeviceError::unless_within("max_inline", cap.max_inline, 0, max_inline(caps))?;
        hca.check_alive()?;
        self.table().check_room()?;
        hca.pds.hold(pd, |pdn| self.make(hca, pd, pdn, init))
    }

    fn make(&self, hca: &Arc<Hca>, pd: PdHandle, pdn: u32, init: &QpInit) -> Result<QpPorts, DeviceError> {
        let send_cq = hca.cqs.acquire(init.send_cq)?;
        let recv_cq = hca.cqs.acquire(init.recv_cq)?;
        let srq = init.srq.map(|s| hca.srqs.acquire(s, pdn)).transpose()?;
        let sizes = Sizes::of(&init.cap, srq.is_some());
        let memory =
            QueueMemory::alloc(hca.arena(), sizes.recv_cells() + sizes.send_cells()).map_err(memory)?;
        let uar = hca.uars.for_queue_pair();
        let mut fixed = Fixed {
            qpn: 0,
            qp_type: init.qp_type,
            pdn,
            send_cqn: send_cq.core.number,
            recv_cqn: recv_cq.core.number,
            counter_set: hca.counter_set.id(),
        };
        let qpc = new_context(&fixed, &sizes, &memory, uar.index, srq.as_ref())
            .with(Qpc::TS_FORMAT, hca.caps.qp_ts_format);
        let input = CreateQpIn::new().with(CreateQpIn::QPC, qpc);
        fixed.qpn = hca.exec_with(&input, &memory.pages, &mut [])?.get(CreateQpOut::QPN);
        hca.hear_of_former();
        let mut entry = None;
        let inserted = self.table().insert_numbered(fixed.qpn, |index, generation| {
            let (handle, qpn) = (QpHandle { index, generation }, Qpn::new(fixed.qpn));
            let shared = srq.as_ref().map(|s| s.core.clone());
            let places = [sizes.blocks, sizes.recvs.max(1)];
            let core = QpCore::new(handle, qpn, init.qp_type, places, shared, memory.record.clone());
            let made = Arc::new(Entry {
                core: Arc::new(core),
                fixed,
                cap: init.cap,
                pd,
                memory: memory.cells.clone(),
                send_cq: send_cq.core.clone(),
                recv_cq: recv_cq.core.clone(),
                holds: Mutex::new(Some(([send_cq, recv_cq], srq))),
                attr: Mutex::default(),
            });
            entry = Some(made.clone());
            made
        });
        if let Err(e) = inserted {
            destroy(hca, fixed.qpn)?;
            return Err(e);
        }
        let entry = entry.expect("it was inserted");
        let (send, recv) = (&entry.send_cq, &entry.recv_cq);
        if Arc::ptr_eq(send, recv) {
            send.add(&entry.core, true, true);
        } else {
            send.add(&entry.core, true, false);
            recv.add(&entry.core, false, true);
        }
        Ok(ports(hca, &entry, &sizes, &memory, uar))
    }

    pub(crate) fn modify(&self, hca: &Arc<Hca>, qp: QpHandle, attr: &QpAttr) -> Result<(), DeviceError> {
        let entry = self.find(qp)?;
        let check = || {
            let from = entry.state(hca)?;
            attr.check(entry.fixed.qp_type, from)?;
            context::check(hca, attr).map(|()| from)
        };
        // To ask for a peer may take seconds: not for what is refused, and others may use the queue pair meanwhile.
        let path = match &attr.av {
            Some(av) => check()
                .and_then(|_| hca.path(av))
                .map(|p| Some(p.of_queue_pair(Qpn::new(entry.fixed.qpn))))?,
            None => None,
        };
        let mut set = entry.attr();
        let from = check()?;
        let to = attr.state.unwrap_or(from);
        let before = entry.core.life().state();
        if to == QpState::Reset {
            // Nothing is taken any more, and what was is forgotten when the adapter has let go of it.
            entry.core.show(Some(to));
        }
        let mut all = *set;
        all.merge(attr);
        let given_back = if to == QpState::Reset { entry.give_back_shared(hca, Some(from)) } else { Ok(()) };
        let done = given_back.and_then(|()| {
            context::command(hca, &entry.fixed, [from, to], &context::complete(attr, &all), path.as_ref())
        });
        if done.is_err() {
            entry.core.show(before);
        }
        done?;
        if to == QpState::Reset {
            entry.forget();
            entry.core.begin_anew();
            *set = QpAttr::default();
        } else {
            *set = all;
            entry.core.show(Some(to));
        }
        Ok(())
    }

    /// All of them, with the states that programs put them in.
    pub(crate) fn list(&self) -> Vec<QpInfo> {
        let all: Vec<_> = self.table().iter().cloned().collect();
        let info = |entry: &Arc<Entry>| {
            let attr = *entry.attr();
            Some(QpInfo {
                handle: entry.core.handle,
                qpn: entry.core.qpn,
                qp_type: entry.core.qp_type,
                state: entry.core.life().state()?,
                dest_qpn: attr.dest_qpn,
                dest_gid: attr.av.map(|av| av.dgid),
            })
        };
        all.iter().filter_map(info).collect()
    }

    pub(crate) fn query(&self, hca: &Arc<Hca>, qp: QpHandle) -> Result<QpStatus, DeviceError> {
        let entry = self.find(qp)?;
        let attr = *entry.attr();
        let state = entry.state(hca)?;
        Ok(QpStatus { state, attr, cap: entry.cap, near: false })
    }

    pub(crate) fn destroy(&self, hca: &Arc<Hca>, qp: QpHandle) -> Result<Vec<u64>, DeviceError> {
        let entry = self.table().remove(qp.index, qp.generation)?;
        let set = entry.attr();
        let before = entry.core.life().state();
        entry.core.show(None);
        let gone = if hca.health.is_dead() {
            entry.memory.leak();
            Ok(())
        } else {
            entry
                .give_back_shared(hca, before)
                .and_then(|()| destroy(hca, entry.fixed.qpn))
                .inspect_err(|_| entry.memory.leak())
        };
        let shared = entry.leave();
        entry.let_go_of_queues();
        drop(set);
        hca.pds.release(entry.pd);
        gone.map(|()| shared)
    }

    /// The queue pair of this number, for events.
    pub(crate) fn by_number(&self, qpn: u32) -> Option<QpHandle> {
        self.table().by_number(qpn).map(|e| e.core.handle)
    }
}

fn destroy(hca: &Hca, qpn: u32) -> Result<(), DeviceError> {
    hca.exec(&DestroyQpIn::new().with(DestroyQpIn::QPN, qpn))?;
    Ok(())
}

/// The context of a new queue pair.
fn new_context(fixed: &Fixed, sizes: &Sizes, memory: &QueueMemory, uar: u32, srq: Option<&SrqUser>) -> Qpc {
    let (kind, number) = match srq {
        Some(srq) => (RqType::Srq, srq.core.number),
        None if sizes.recvs == 0 => (RqType::ZeroLength, 0),
        None => (RqType::Regular, 0),
    };
    let log = |n: u32| n.max(1).trailing_zeros();
    Qpc::new()
        .with(Qpc::ST, context::service(fixed.qp_type).code())
        .with(Qpc::PM_STATE, PathMigration::Migrated.code())
        .with(Qpc::PD, fixed.pdn)
        .with(Qpc::LOG_RQ_SIZE, log(sizes.recvs))
        .with(Qpc::LOG_RQ_STRIDE, log(sizes.stride as u32))
        .with(Qpc::LOG_SQ_SIZE, log(sizes.blocks))
        .with(Qpc::UAR_PAGE, uar)
        // Nobody's number: queue pairs are told by their own.
        .with(Qpc::USER_INDEX, 0xff_ffff)
        .with(Qpc::LOG_PAGE_SIZE, memory.log_page_size)
        .with(Qpc::CQN_SND, fixed.send_cqn)
        .with(Qpc::CQN_RCV, fixed.recv_cqn)
        .with(Qpc::DBR_ADDR, memory.record_iova)
        .with(Qpc::RQ_TYPE, kind.code())
        .with(Qpc::SRQN_RMPN_XRQN, number)
}

/// The ports of a new queue pair.
fn ports(hca: &Arc<Hca>, entry: &Entry, sizes: &Sizes, memory: &QueueMemory, uar: Uar) -> QpPorts {
    let (core, cap) = (&entry.core, entry.cap);
    let qp_type = core.qp_type;
    let limits = SendLimits {
        depth: cap.max_send_wr,
        max_sge: cap.max_send_sge,
        max_inline: cap.max_inline,
        max_message: send::max_message(qp_type, hca.caps.log_max_msg, hca.port.attr().active_mtu.bytes()),
    };
    let uar = uar.of_port(hca);
    let ring = memory.cells.part(sizes.recv_cells(), sizes.send_cells());
    let addresses = hca.ahs.addresses().clone();
    let recv: Option<Box<dyn RecvPort>> = core.srq.is_none().then(|| {
        let ring = memory.cells.part(0, sizes.recv_cells().max(sizes.stride));
        let queue =
            RecvQueue::new(core.clone(), ring, uar.clone(), sizes.stride, cap.max_recv_wr, cap.max_recv_sge);
        Box::new(queue) as Box<dyn RecvPort>
    });
    let queue = SendQueue::new(core.clone(), addresses, entry.fixed.pdn, ring, uar, limits);
    QpPorts { handle: core.handle, qpn: core.qpn, cap, send: Box::new(queue), recv }
}

#[cfg(all(test, not(loom)))]
mod tests;
