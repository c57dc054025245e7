//! Receive requests: reading them from the client's queues.
#![allow(unsafe_code)] // `RecvPort::post`, with its argument

use std::collections::VecDeque;

use hca_core::{Lkey, PostErrorKind, QpState, RecvPort, RecvWr, Sge};
use hca_prm::{CqeSyndrome, DataSeg, EventType, SrqNextSeg};

use crate::cq::complete::{Shown, error_entry};
use crate::guest::{Guest, Window};
use crate::mkey::bus::Names;
use crate::objects::{Numbered, Objects, Raised};
use crate::qp::{MAX_RECV_SGE, Qp};
use crate::srq::Srq;

/// Requests of one queue that are taken in one look.
const BUDGET: usize = 512;
/// Bytes of a place in a list.
const SEG: usize = DataSeg::SIZE;

/// The places that a request lists.
pub(crate) struct List {
    sges: [Sge; MAX_RECV_SGE as usize],
    len: usize,
}

impl List {
    /// Reads `bytes` at `at` of a queue, which are `skip` that are no places, and places. Returns what it begins with,
    /// too.
    fn read(queue: &Window, at: usize, bytes: usize, skip: usize) -> (Self, [u8; SEG]) {
        let segment = |place: usize| {
            let mut seg = [0; SEG];
            queue.load(at + place, &mut seg);
            seg
        };
        let mut list = Self { sges: [Sge::default(); MAX_RECV_SGE as usize], len: 0 };
        let head = segment(0);
        for place in (skip..bytes).step_by(SEG).take(list.sges.len()) {
            let seg = DataSeg::from_array(if place == 0 { head } else { segment(place) });
            if seg.is_terminator() {
                break;
            }
            list.sges[list.len] = Sge {
                addr: seg.get(DataSeg::ADDR),
                len: byte_count(&seg),
                lkey: Lkey::new(seg.get(DataSeg::LKEY)),
            };
            list.len += 1;
        }
        (list, head)
    }

    /// That of the request with this counter of a queue pair's own queue, or of the entry with this index of its shared
    /// one.
    pub(crate) fn of(qp: &Qp, srqs: &Numbered<Srq>, counter: u16) -> Option<Self> {
        let (queue, at, log_size, log_stride, skip) = if let Some(number) = qp.srq {
            let srq = srqs.get(&number)?;
            (&srq.memory.as_ref()?.list, 0, srq.log_size, srq.log_stride, SrqNextSeg::SIZE)
        } else {
            let rq = qp.rq?;
            (qp.memory.as_ref()?.queues.as_ref()?, rq.at, rq.log_size, rq.log_stride, 0)
        };
        let slot = usize::from(counter) & ((1 << log_size) - 1);
        Some(Self::read(queue, at + (slot << log_stride), 1 << log_stride, skip).0)
    }

    pub(crate) fn places(&self) -> &[Sge] {
        &self.sges[..self.len]
    }

    /// Posts it. `false`: there is no room, or not yet.
    fn post(&self, port: &mut dyn RecvPort, wr_id: u64) -> Result<bool, PostErrorKind> {
        let wr = RecvWr { wr_id, sges: self.places() };
        // SAFETY: the memory is the client's, which is another process or reaches it by copies, as keys were made for.
        match unsafe { port.post(&[wr]) }.map_err(|e| e.kind) {
            Ok(()) => Ok(true),
            Err(PostErrorKind::QueueFull { .. } | PostErrorKind::WrongState(_)) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

/// Bytes of a place; 0 stands for 2^31.
pub(crate) fn byte_count(seg: &DataSeg) -> u32 {
    match seg.get(DataSeg::BYTE_COUNT) {
        0 => 1 << 31,
        n => n,
    }
}

/// Takes the new requests of a queue pair's own receive queue. Returns whether there were any.
pub(crate) fn take(qp: &mut Qp, names: &mut Names<'_>, shown: &mut Shown<'_>) -> bool {
    qp.watch.more = false;
    let (Some(memory), Some(rq), false) = (&qp.memory, &mut qp.rq, qp.in_reset) else { return false };
    let posted = memory.record.load32(0) as u16;
    let first = rq.next;
    let claimed = posted.wrapping_sub(first);
    if claimed == 0 {
        return false;
    }
    let Some(queue) = &memory.queues else { return false };
    if usize::from(claimed) > 1 << rq.log_size {
        // More than the queue has: what stands there means nothing.
        return shown.fail_queue_pair(qp, EventType::WqCatasError);
    }
    if let Some(port) = &mut qp.recv {
        qp.watch.more = usize::from(claimed) > BUDGET;
        for _ in 0..usize::from(claimed).min(BUDGET) {
            let slot = usize::from(rq.next) & ((1 << rq.log_size) - 1);
            let (mut list, _) = List::read(queue, rq.at + (slot << rq.log_stride), 1 << rq.log_stride, 0);
            names.translate(qp.pd, &mut list.sges, &mut list.len);
            match list.post(&mut **port, rq.next.into()) {
                Ok(true) => rq.next = rq.next.wrapping_add(1),
                Ok(false) => {
                    qp.watch.more = false;
                    break;
                }
                Err(e) => {
                    tracing::debug!("a receive request is refused: {e}");
                    qp.watch.more = false;
                    return shown.fail_queue_pair(qp, EventType::WqCatasError);
                }
            }
        }
        if rq.next != first {
            port.ring();
        }
    } else if qp.inert_state == QpState::Error {
        // Nobody but us flushes those of one that is inert.
        for _ in 0..usize::from(claimed).min(BUDGET) {
            let counter = rq.next;
            rq.next = counter.wrapping_add(1);
            let entry = error_entry(false, CqeSyndrome::WrFlushErr, counter, 0);
            shown.write(qp.cq_recv, qp.handle, qp.user_index, entry, true);
        }
    }
    qp.rq.is_some_and(|rq| rq.next != first)
}

impl Objects {
    /// Takes the new requests of a shared receive queue. Returns whether there are more, which are as many as the adapter's
    /// queue holds at most.
    pub(crate) fn take_requests_of_srq(&mut self, guest: &Guest, number: u32) -> bool {
        let Some(srq) = self.srqs.get_mut(&number) else { return false };
        let mut names = Names { hca: &self.hca, guest, buses: &mut self.buses, keys: None };
        take_shared(number, srq, &mut names, &mut self.raised);
        srq.more
    }
}

/// Takes the new requests of a shared receive queue. Returns whether there were any.
pub(crate) fn take_shared(
    number: u32,
    srq: &mut Srq,
    names: &mut Names<'_>,
    raised: &mut VecDeque<Raised>,
) -> bool {
    srq.more = false;
    let (Some(memory), Some(adapters)) = (&srq.memory, &mut srq.adapters) else { return false };
    let entries = 1_usize << srq.log_size;
    let pd = srq.pd;
    let mut entry = |index: u16| {
        let slot = usize::from(index) & (entries - 1);
        let (mut list, head) =
            List::read(&memory.list, slot << srq.log_stride, 1 << srq.log_stride, SrqNextSeg::SIZE);
        names.translate(pd, &mut list.sges, &mut list.len);
        (list, head)
    };
    let mut any = false;
    let mut refused = None;
    // Those that a queue pair did not use come first, as they were before.
    while let Some(index) = srq.again.last().copied() {
        match entry(index).0.post(&mut *adapters.port, index.into()) {
            Ok(true) => _ = srq.again.pop(),
            Ok(false) => break,
            Err(e) => {
                refused = Some(e);
                break;
            }
        }
        any = true;
    }
    let claimed = usize::from((memory.record.load32(0) as u16).wrapping_sub(srq.taken));
    let catastrophe = claimed > entries;
    srq.more = claimed > BUDGET && !catastrophe;
    if !catastrophe {
        for _ in 0..claimed.min(BUDGET) {
            let index = srq.next & (entries - 1) as u16;
            let (list, head) = entry(index);
            match list.post(&mut *adapters.port, index.into()) {
                Ok(true) => {}
                Ok(false) => {
                    srq.more = false;
                    break;
                }
                Err(e) => {
                    (refused, srq.more) = (Some(e), false);
                    break;
                }
            }
            srq.taken = srq.taken.wrapping_add(1);
            srq.next = SrqNextSeg::from_array(head).get(SrqNextSeg::NEXT_WQE_INDEX) as u16;
            any = true;
        }
    }
    if any {
        adapters.port.ring();
    }
    if catastrophe || refused.is_some() {
        tracing::debug!(?refused, claimed, "a shared receive queue is in error");
        srq.memory = None;
        raised.push_back(Raised::Queue { event: EventType::SrqCatasError, number });
    }
    any
}
