//! The data path: the ports that post and poll.
#![allow(unsafe_code)] // the ports' contracts are the traits'; nothing unsafe is done here

use core::task::Waker;
use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hca_core::{
    Completion, CqHandle, CqPort, Dest, DeviceError, FlatOp, MAX_MESSAGE_BYTES, Mixed, MixedEntry, Notify,
    Payload, PdHandle, PostError, PostErrorKind, QpState, QpType, RecvPort, RecvWr, SendFlags, SendOp,
    SendPort, SendWr, SrqHandle,
};

use hca_fabric::LINE_DATA_BYTES;
use hca_turn_lock::{Barrier, Inside};

use crate::cq::{CqShared, epoll_of};
use crate::device::{MAX_CQE, MAX_WR, in_range};
use crate::engine::{DESTROYED, decode_state, encode_state};
use crate::glance::Glance;
use crate::near::{self, PostersLane};
use crate::options::Progress;
use crate::patience;
use crate::qp::{
    DestKind, Place, QpShared, RecvHeader, SendHeader, dest_to_cell, entry_to_cell, offers, sge_to_cell,
    slot_bytes_to_cell,
};
use crate::ring::{Cell, Consumer, Full, Producer};
use crate::shared::{EngineGuard, Shared};
use crate::sync::{Arc, Ordering};

/// The port of a send queue.
pub(crate) struct QpSendPort {
    pub(crate) hca: Arc<Shared>,
    pub(crate) queue: SendQueue,
}

/// A send queue, as who posts has it.
pub(crate) struct SendQueue {
    pub(crate) qp: Arc<QpShared>,
    pub(crate) ring: Producer<SendHeader>,
    pub(crate) qp_type: QpType,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    /// The longest message.
    pub(crate) max_message: u64,
    pub(crate) pd: PdHandle,
    /// The queue pair is of a type that has one peer, and whose requests name no destination.
    pub(crate) is_connected: bool,
    /// Its peer may be on this machine, and who posts has the engine do what it can do at once.
    pub(crate) may_be_near: bool,
    /// The way to the peer's memory that was used last.
    pub(crate) lane: Option<PostersLane>,
}

impl SendQueue {
    /// Whether requests are taken.
    #[inline(always)]
    fn check(&self, hca: &Shared) -> Result<(), PostErrorKind> {
        let state = self.qp.state.load(Ordering::Relaxed);
        if state != encode_state(QpState::Rts) || hca.fork.is_child() {
            self.check_state(hca)
        } else {
            Ok(())
        }
    }
    #[cold]
    fn check_state(&self, hca: &Shared) -> Result<(), PostErrorKind> {
        if hca.fork.is_child() {
            return Err(PostErrorKind::Destroyed);
        }
        match decode_state(self.qp.state.load(Ordering::Relaxed)).ok_or(PostErrorKind::Destroyed)? {
            state @ (QpState::Reset | QpState::Init | QpState::Rtr) => Err(PostErrorKind::WrongState(state)),
            _ => Ok(()),
        }
    }
    /// Checks a request against the queue pair's limits; returns its length, its entries, and where its bytes are.
    fn check_kind(&self, wr: &SendWr<'_>) -> Result<(u64, u8, Place), PostErrorKind> {
        let qp_type = self.qp_type;
        offers(qp_type, wr.op).map_err(|op| PostErrorKind::Unsupported { qp_type, op })?;
        let fits = match wr.dest {
            None => !matches!(qp_type, QpType::Ud | QpType::XrcIni | QpType::Rd),
            Some(Dest::Datagram(_)) => qp_type == QpType::Ud,
            Some(Dest::Srq(_)) => qp_type == QpType::XrcIni,
            Some(Dest::Reliable(_)) => qp_type == QpType::Rd,
        };
        if !fits {
            return Err(PostErrorKind::Destination);
        }
        if wr.op.is_read_or_atomic() && !matches!(wr.payload, Payload::Sges(_)) {
            return Err(PostErrorKind::Unsupported { qp_type, op: "inline data with READ or atomics" });
        }
        let (len, entries, place) = match wr.payload {
            Payload::Inline(bytes) if bytes.len() > self.max_inline as usize => {
                return Err(PostErrorKind::InlineTooLong { len: bytes.len(), max: self.max_inline });
            }
            Payload::Inline(bytes) => (bytes.len() as u64, 0, Place::Slot),
            Payload::Sges(sges) if sges.len() > self.max_sge as usize => {
                return Err(PostErrorKind::TooManySges { count: sges.len(), max: self.max_sge });
            }
            Payload::Sges(sges) => {
                (sges.iter().map(|s| u64::from(s.len)).sum(), sges.len() as u8, Place::Memory)
            }
            Payload::Mixed(list) => self.check_mixed(&list)?,
        };
        if !wr.op.has_list() && (entries > 0 || len > 0) {
            return Err(PostErrorKind::Unsupported { qp_type, op: "a list with an operation that has none" });
        }
        if wr.op.is_atomic() && len != 8 {
            return Err(PostErrorKind::AtomicLength { len });
        }
        if len > self.max_message {
            return Err(PostErrorKind::MessageTooLong { len, max: self.max_message });
        }
        Ok((len, entries, place))
    }
    #[cold]
    fn check_mixed(&self, list: &Mixed<'_>) -> Result<(u64, u8, Place), PostErrorKind> {
        let (count, len) = (list.entries.len(), list.bytes.len());
        if count > self.max_sge as usize {
            return Err(PostErrorKind::TooManySges { count, max: self.max_sge });
        }
        if len > self.max_inline as usize {
            return Err(PostErrorKind::InlineTooLong { len, max: self.max_inline });
        }
        Ok((list.message_bytes(), count as u8, Place::Both))
    }

    /// Queues a request.
    #[inline(always)]
    fn push(&mut self, hca: &Shared, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        self.check(hca)?;
        match wr.op {
            SendOp::Send => self.push_piece(wr, &SendOp::Send),
            SendOp::Write(remote) => self.push_piece(wr, &SendOp::Write(remote)),
            _ => self.push_any(wr),
        }
    }
    /// Queues a request that is taken. Most are of a kind that connected queue pairs have, and of one piece.
    #[inline(always)]
    fn push_piece(&mut self, wr: &SendWr<'_>, op: &SendOp) -> Result<(), PostErrorKind> {
        if !self.is_connected || wr.dest.is_some() {
            return self.push_any(wr);
        }
        let header = |len, sges, place| SendHeader {
            wr_id: wr.wr_id,
            op: FlatOp::new(op),
            dest: DestKind::None,
            len,
            sges,
            place,
            flags: wr.flags,
        };
        let pushed = match wr.payload {
            Payload::Inline(bytes) if bytes.len() <= self.max_inline as usize => {
                self.ring.push_bytes(header(bytes.len() as u32, 0, Place::Slot), bytes)
            }
            Payload::Sges(&[entry]) if self.max_sge > 0 && u64::from(entry.len) <= self.max_message => {
                self.ring.push_one(header(entry.len, 1, Place::Memory), sge_to_cell(entry))
            }
            _ => return self.push_any(wr),
        };
        pushed.map_err(|_| PostErrorKind::QueueFull { depth: self.ring.depth() })
    }
    /// As [`push`](Self::push), of any kind and with any list.
    #[inline(never)]
    fn push_any(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        let (len, sges, place) = self.check_kind(wr)?;
        let header = SendHeader {
            wr_id: wr.wr_id,
            op: FlatOp::new(&wr.op),
            dest: DestKind::None,
            len: len as u32,
            sges,
            place,
            flags: wr.flags,
        };
        let pushed = queue(&mut self.ring, header, wr.payload, wr.dest);
        pushed.map_err(|_| PostErrorKind::QueueFull { depth: self.ring.depth() })
    }

    /// Tells the engine of the requests that were queued.
    #[inline(never)]
    fn ring(&mut self, hca: &Shared) {
        if self.may_be_near && self.ring.is_all_published() {
            return;
        }
        self.ring.publish();
        hca.posted(&self.qp);
    }
    /// Queues a request, and tells the engine if it is to be known `NOW`.
    #[inline(never)]
    fn post_queued<const NOW: bool>(&mut self, hca: &Shared, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        self.push(hca, wr)?;
        if NOW {
            self.ring(hca);
        }
        Ok(())
    }
    /// The same by who has the engine, which did not do it at once.
    #[inline(never)]
    fn post_queued_with<const NOW: bool>(
        &mut self,
        hca: &Shared,
        wr: &SendWr<'_>,
        mut engine: EngineGuard<'_>,
    ) -> Result<(), PostErrorKind> {
        let pushed = self.push(hca, wr);
        if NOW && pushed.is_ok() {
            self.ring.publish();
            hca.turn_once(&mut engine, Some(self.qp.handle));
        }
        hca.give_back(engine);
        pushed
    }

    /// Whether requests may be done as they are posted.
    #[inline(always)]
    fn is_near(&self) -> bool {
        self.may_be_near && self.qp.near.load(Ordering::Relaxed)
    }
    /// Posts a request of a connection by messages that is no SEND: one on the peer's memory is done at once, or it is
    /// queued.
    #[inline(always)]
    fn post_near<const NOW: bool>(&mut self, hca: &Shared, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        // No table of jumps: each of the frequent ones is reached by a comparison.
        if matches!(wr.op, SendOp::Write(_)) {
            self.access::<near::Write, NOW>(hca, wr)
        } else if matches!(wr.op, SendOp::Read(_)) {
            self.access::<near::Read, NOW>(hca, wr)
        } else {
            self.post_other::<NOW>(hca, wr)
        }
    }
    #[inline(never)]
    fn post_other<const NOW: bool>(&mut self, hca: &Shared, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        match wr.op {
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => self.access::<near::Atomic, NOW>(hca, wr),
            SendOp::AtomicWrite { .. } => self.access::<near::AtomicWrite, NOW>(hca, wr),
            SendOp::Flush { .. } => self.access::<near::Flush, NOW>(hca, wr),
            _ => self.post_queued::<NOW>(hca, wr),
        }
    }

    /// A request on the peer's memory: done at once, if nothing before it is under way.
    #[inline(never)]
    fn access<O: near::Op, const NOW: bool>(
        &mut self,
        hca: &Shared,
        wr: &SendWr<'_>,
    ) -> Result<(), PostErrorKind> {
        let may = wr.dest.is_none() && self.ring.is_released() && !hca.fork.is_child();
        let Some(mut engine) = (if may { hca.engine_at_once() } else { None }) else {
            return self.post_queued::<NOW>(hca, wr);
        };
        // Only who has the engine changes the word of lanes.
        if self.lane.as_ref().map_or(0, |lane| lane.word.get()) != self.qp.lanes.get() {
            self.lane = engine.posters_lane(self.qp.handle);
        }
        if let Some(lane) = &self.lane
            && engine.access::<O>(lane, self, wr).is_some()
        {
            hca.give_back(engine);
            return Ok(());
        }
        self.lane = None;
        self.post_queued_with::<NOW>(hca, wr, engine)
    }

    /// A SEND: a small one leaves by a line as it is queued, if nothing keeps it back.
    #[inline(never)]
    fn send(&mut self, hca: &Shared, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        let is_first = self.ring.is_all_published();
        self.check(hca)?;
        self.push_piece(wr, &SendOp::Send)?;
        let len = match wr.payload {
            Payload::Inline(bytes) => bytes.len(),
            Payload::Sges(&[entry]) => entry.len as usize,
            _ => usize::MAX,
        };
        let may = len <= LINE_DATA_BYTES
            && is_first
            && !wr.flags.intersects(SendFlags::FENCE | SendFlags::SOLICITED);
        let Some(mut engine) = (if may { hca.engine_to_post() } else { None }) else {
            self.ring(hca);
            return Ok(());
        };
        if !engine.send_line(&hca.bell, self.qp.handle, wr.payload, len as u32, &mut self.ring) {
            self.ring.publish();
            hca.turn_once(&mut engine, Some(self.qp.handle));
        }
        hca.give_back(engine);
        Ok(())
    }
}

/// Queues a request, behind its destination if it names one.
fn queue(
    ring: &mut Producer<SendHeader>,
    header: SendHeader,
    payload: Payload<'_>,
    dest: Option<Dest>,
) -> Result<(), Full> {
    let (kind, dest) =
        dest.map(dest_to_cell).map_or((DestKind::None, None), |(kind, cell)| (kind, Some(cell)));
    let header = SendHeader { dest: kind, ..header };
    match payload {
        Payload::Sges(sges) => {
            ring.push(header, dest.into_iter().chain(sges.iter().copied().map(sge_to_cell)))
        }
        Payload::Inline(bytes) => ring.push(header, dest.into_iter().chain(inline_cells(bytes))),
        Payload::Mixed(list) => queue_mixed(ring, header, list, dest),
    }
}
/// Queues a request whose list is of both kinds, or may be.
#[cold]
fn queue_mixed(
    ring: &mut Producer<SendHeader>,
    header: SendHeader,
    list: Mixed<'_>,
    dest: Option<Cell>,
) -> Result<(), Full> {
    let dest = dest.into_iter();
    match list.as_plain() {
        // Its slot has no room for an entry beside all the bytes.
        Some(Payload::Inline(bytes)) => {
            let header = SendHeader { place: Place::Slot, sges: 0, ..header };
            ring.push(header, dest.chain(inline_cells(bytes)))
        }
        _ => ring.push(header, dest.chain(mixed_cells(list))),
    }
}

/// A mixed list as cells: its entries, of which the inline ones say where their bytes are among those behind them.
fn mixed_cells(list: Mixed<'_>) -> impl Iterator<Item = Cell> {
    let mut next = list.entries.len() * size_of::<Cell>();
    let entries = list.iter().map(move |entry| match entry {
        MixedEntry::Memory(entry) => entry_to_cell(entry),
        MixedEntry::Inline(bytes) => {
            let at = next;
            next += bytes.len();
            slot_bytes_to_cell(at, bytes.len())
        }
    });
    entries.chain(inline_cells(list.bytes))
}

/// Inline bytes as cells, the last one filled up with zeros.
fn inline_cells(bytes: &[u8]) -> impl Iterator<Item = Cell> {
    bytes.chunks(size_of::<Cell>()).map(|c| {
        let mut cell: Cell = [0; 2];
        bytemuck::cast_slice_mut::<u64, u8>(&mut cell)[..c.len()].copy_from_slice(c);
        cell
    })
}

/// Takes the requests of a batch until one is refused.
#[inline(always)]
fn batch<W>(wrs: &[W], mut push: impl FnMut(&W) -> Result<(), PostErrorKind>) -> Result<(), PostError> {
    for (accepted, wr) in wrs.iter().enumerate() {
        push(wr).map_err(|kind| PostError { accepted, kind })?;
    }
    Ok(())
}

// SAFETY: (1) a list and inline bytes are copied into the ring's slot, or used up by `access` and `send`, which return
// behind that. (2) A refusal comes before the ring's end is moved. (3) The engine takes requests from the ring in
// order, its machine ends them in order, and looks at a request's list no more once the completion is appended.
unsafe impl SendPort for QpSendPort {
    #[inline]
    unsafe fn post(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: our caller's.
        batch(wrs, |wr| unsafe { self.post_one(wr) })
    }
    #[inline]
    unsafe fn post_one(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        let Self { hca, queue } = self;
        // SENDs of a batch leave by the doorbell, all of them in one turn.
        if matches!(wr.op, SendOp::Send) || !queue.is_near() {
            queue.post_queued::<false>(hca, wr)
        } else {
            queue.post_near::<false>(hca, wr)
        }
    }
    fn ring(&mut self) {
        self.queue.ring(&self.hca);
    }
    #[inline]
    unsafe fn post_now(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        let Self { hca, queue } = self;
        if !queue.is_near() {
            queue.post_queued::<true>(hca, wr)
        } else if matches!(wr.op, SendOp::Send) {
            queue.send(hca, wr)
        } else {
            queue.post_near::<true>(hca, wr)
        }
    }
}

pub(crate) const MAX_CONNECTED_MESSAGE: u64 = MAX_MESSAGE_BYTES;

/// Queues a receive request.
#[inline(always)]
fn push_recv(ring: &mut Producer<RecvHeader>, max_sge: u32, wr: &RecvWr<'_>) -> Result<(), PostErrorKind> {
    match wr.sges {
        &[one] if max_sge > 0 => {
            let first = sge_to_cell(one);
            if ring.push_header(&RecvHeader { wr_id: wr.wr_id, first, room: one.len.into(), sges: 1 }) {
                Ok(())
            } else {
                Err(PostErrorKind::QueueFull { depth: ring.depth() })
            }
        }
        _ => push_recv_list(ring, max_sge, wr),
    }
}
/// The same, with a list of any length.
#[inline(never)]
fn push_recv_list(
    ring: &mut Producer<RecvHeader>,
    max_sge: u32,
    wr: &RecvWr<'_>,
) -> Result<(), PostErrorKind> {
    let sges = wr.sges;
    if sges.len() > max_sge as usize {
        return Err(PostErrorKind::TooManySges { count: sges.len(), max: max_sge });
    }
    let room = sges.iter().map(|s| u64::from(s.len)).sum();
    let first = sge_to_cell(sges.first().copied().unwrap_or_default());
    let header = RecvHeader { wr_id: wr.wr_id, first, room, sges: sges.len() as u8 };
    let pushed = ring.push(header, sges.iter().copied().map(sge_to_cell));
    pushed.map_err(|_| PostErrorKind::QueueFull { depth: ring.depth() })
}

/// The receive queue of a queue pair.
pub(crate) struct QpRecvPort {
    pub(crate) barrier: Barrier,
    pub(crate) hca: Arc<Shared>,
    pub(crate) qp: Arc<QpShared>,
    pub(crate) ring: Producer<RecvHeader>,
    pub(crate) max_sge: u32,
}

impl QpRecvPort {
    /// Whether requests are taken.
    #[inline(always)]
    fn check(&self) -> Result<(), PostErrorKind> {
        let state = self.qp.state.load(Ordering::Relaxed);
        if state == encode_state(QpState::Reset) || state == DESTROYED || self.hca.fork.is_child() {
            return Err(self.refusal(state));
        }
        Ok(())
    }
    #[cold]
    fn refusal(&self, state: u32) -> PostErrorKind {
        if state == DESTROYED || self.hca.fork.is_child() {
            PostErrorKind::Destroyed
        } else {
            PostErrorKind::WrongState(QpState::Reset)
        }
    }
}

// SAFETY: (1) a list is copied into the ring's slot. (2) A refusal comes before the ring's end is moved. (3) The engine
// holds one receive request at a time, the oldest, and looks at its list no more once the completion is appended.
unsafe impl RecvPort for QpRecvPort {
    #[inline]
    unsafe fn post(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.check().map_err(|kind| PostError { accepted: 0, kind })?;
        batch(wrs, |wr| push_recv(&mut self.ring, self.max_sge, wr))
    }
    #[inline]
    unsafe fn post_one(&mut self, wr: &RecvWr<'_>) -> Result<(), PostErrorKind> {
        self.check()?;
        push_recv(&mut self.ring, self.max_sge, wr)
    }
    #[inline(always)]
    fn ring(&mut self) {
        // Pairs with the barrier in `Core::show_state`: either the engine, which shows ERROR and then looks at the
        // queue, finds the requests, or we see ERROR and ring for them to be flushed.
        self.ring.publish_and_look(self.barrier);
        if self.qp.state.load(Ordering::Relaxed) == encode_state(QpState::Error) {
            self.hca.posted(&self.qp);
        }
    }
    #[inline]
    unsafe fn post_now(&mut self, wr: &RecvWr<'_>) -> Result<(), PostErrorKind> {
        self.check()?;
        push_recv(&mut self.ring, self.max_sge, wr)?;
        self.ring();
        Ok(())
    }
}

/// A shared receive queue.
pub(crate) struct SrqPort {
    pub(crate) hca: Arc<Shared>,
    pub(crate) handle: SrqHandle,
    pub(crate) ring: Producer<RecvHeader>,
    pub(crate) max_sge: u32,
}

// SAFETY: as for `QpRecvPort`; each queue pair holds one request of a shared queue at a time.
unsafe impl RecvPort for SrqPort {
    unsafe fn post(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        if self.hca.fork.is_child() {
            return batch(wrs, |_| Err(PostErrorKind::Destroyed));
        }
        batch(wrs, |wr| push_recv(&mut self.ring, self.max_sge, wr))
    }
    fn ring(&mut self) {
        self.ring.publish();
    }
    fn resize(&mut self, max_wr: u32) -> Result<u32, DeviceError> {
        self.hca.fork.check()?;
        in_range("max_wr", max_wr, 1, MAX_WR)?;
        self.hca.control(|e| {
            let users = e.srq(self.handle)?.resize(&mut self.ring, max_wr);
            users.map_err(|wait| DeviceError::InUse {
                what: "room of the shared receive queue",
                users: wait.into(),
            })
        })?;
        Ok(max_wr)
    }
}

/// The polling side of a completion queue.
pub(crate) struct SoftCq {
    pub(crate) hca: Arc<Shared>,
    pub(crate) handle: CqHandle,
    /// Its completions have times.
    pub(crate) timed: bool,
    pub(crate) ring: Consumer<Completion>,
    pub(crate) shared: Arc<CqShared>,
    /// That of `CqShared::poller` since which `ring` goes on by itself.
    pub(crate) ring_version: u32,
    pub(crate) wait: Option<OwnedFd>,
    /// Counted in `Shared::waiters`.
    pub(crate) waiting: bool,
    /// It has a waker.
    pub(crate) has_waker: bool,
    /// Who waits sleeps on the adapter's descriptor, and is told by the waker.
    pub(crate) by_waker: bool,
    /// It was armed for its waker alone: the next poll is the last one before a sleep.
    pub(crate) is_last_look: bool,
    pub(crate) glance: Glance,
}

impl SoftCq {
    /// Takes what stands in the ring, whose end was looked at just now.
    #[inline(always)]
    fn take(&mut self, out: &mut [Completion]) -> usize {
        self.come_in();
        let taken = self.ring.take_headers(out);
        drop(self.shared.poller.inside());
        if taken > 0 {
            self.waits_no_more();
        }
        taken
    }
    #[inline(never)]
    fn take_or_turn(&mut self, out: &mut [Completion]) -> usize {
        let n = self.take(out);
        // It may have been taken out meanwhile.
        if n == 0 {
            return self.turn(out);
        }
        patience::found();
        n
    }
    /// Turns the engine where the ring is empty, and takes what that brings.
    #[inline(never)]
    fn turn(&mut self, out: &mut [Completion]) -> usize {
        if out.is_empty() {
            return 0;
        }
        let is_last = core::mem::take(&mut self.is_last_look);
        match self.hca.poller_turn(self.handle, out, is_last, &mut self.glance) {
            None => 0,
            // Another turned, or this queue was not as empty.
            Some(0) if self.ring.refresh() == self.ring.head() => 0,
            Some(0) => self.take(out),
            Some(n) => {
                self.waits_no_more();
                n
            }
        }
    }

    /// Keeps out who takes completions out of the ring.
    #[inline(always)]
    fn come_in(&mut self) {
        if self.shared.poller.enter(self.ring_version).map(Inside::stay).is_none() {
            self.enter_anew();
        }
    }
    /// Comes in, and goes on where the ring begins now: completions were taken out of it.
    #[cold]
    fn enter_anew(&mut self) {
        loop {
            let (version, ()) = self.shared.poller.copy(|()| self.ring.resume());
            self.ring_version = version;
            if let Some(inside) = self.shared.poller.enter(version) {
                return inside.stay();
            }
        }
    }

    /// Completions were taken. A queue that is still armed, as they came before it was, is waited for all the same: by
    /// a channel of many queues, say.
    #[inline]
    fn waits_no_more(&mut self) {
        if self.waiting && !self.shared.is_armed() {
            self.leave_waiters();
        }
    }
    #[cold]
    fn leave_waiters(&mut self) {
        if core::mem::take(&mut self.waiting) {
            self.hca.attention.remove_waiter();
        }
    }
}

impl Drop for SoftCq {
    fn drop(&mut self) {
        self.leave_waiters();
    }
}

// SAFETY: (1) the engine appends one completion a request, as it ends; slots of the ring are yielded once. (2) The ring
// hands slots over by Release and Acquire, behind what was placed; what is filled into `out` at once, this thread has
// placed itself, or found under the engine's lock. (3) `take_headers` takes no more than `out` has room for, and
// neither does `poller_turn`, which is given the same slice.
unsafe impl CqPort for SoftCq {
    #[inline]
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        if self.hca.fork.is_child() {
            return 0;
        }
        if self.ring.refresh() != self.ring.head() {
            return self.take_or_turn(out);
        }
        if self.hca.is_quiet(&mut self.glance) { 0 } else { self.turn(out) }
    }
    fn arm(&mut self, notify: Notify) {
        if self.hca.fork.is_child() {
            return;
        }
        self.shared.arm(notify);
        if (self.wait.is_some() || self.by_waker) && self.hca.progress != Progress::Thread {
            if !core::mem::replace(&mut self.waiting, true) {
                self.hca.attention.add_waiter();
            }
            self.hca.prepare_wait();
        }
        if self.wait.is_none() && !self.by_waker && self.has_waker {
            self.is_last_look = true;
            self.glance.forget();
            self.hca.program_sleeps();
        }
    }
    fn set_waker(&mut self, waker: &Waker) {
        if self.hca.fork.is_child() {
            return;
        }
        self.has_waker = true;
        self.shared.set_waker(waker);
    }
    fn wait_by_waker(&mut self) {
        self.by_waker = true;
    }
    fn poll_with_times(&mut self, out: &mut [Completion], at: &mut [u64]) -> Option<usize> {
        if !self.timed || self.hca.fork.is_child() {
            return None;
        }
        if self.ring.refresh() == self.ring.head() {
            let is_last = core::mem::take(&mut self.is_last_look);
            let here =
                self.hca.poller_turn(self.handle, &mut [Completion::default()], is_last, &mut self.glance);
            assert!(here.is_none_or(|n| n == 0), "completions with times stand in their ring");
            self.ring.refresh();
        }
        self.come_in();
        let taken = self.ring.take_with_cells(out, at);
        drop(self.shared.poller.inside());
        if taken > 0 {
            self.waits_no_more();
        }
        Some(taken)
    }
    fn resize(&mut self, depth: u32) -> Result<u32, DeviceError> {
        self.hca.fork.check()?;
        in_range("completion queue depth", depth, 1, MAX_CQE)?;
        let Self { hca, handle, ring, .. } = self;
        let fits = hca.control(|e| e.cq(*handle).map(|entry| entry.resize(ring, depth)))?;
        let users = ring.tail().wrapping_sub(ring.head()).into();
        if fits { Ok(depth) } else { Err(DeviceError::InUse { what: "room of the completion queue", users }) }
    }
    fn wait_fd(&mut self) -> Result<BorrowedFd<'_>, DeviceError> {
        self.hca.fork.check()?;
        if self.wait.is_none() {
            let event = self.shared.event_fd()?;
            let epoll = if self.hca.progress == Progress::Thread {
                epoll_of(&[event])?
            } else {
                epoll_of(&[event, self.hca.turn_fd()?])?
            };
            self.wait = Some(epoll);
            // The queue may have been armed before there was a descriptor: the first wait returns at
            // once, and arming again prepares the next.
            self.shared.wake();
        }
        Ok(self.wait.as_ref().expect("made above").as_fd())
    }
    fn look_before_sleep(&self) -> Duration {
        // Where the adapter's thread does the work, that is who looks.
        if self.hca.progress == Progress::Thread { Duration::ZERO } else { patience::of_a_wait() }
    }
}
