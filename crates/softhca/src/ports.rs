//! The data path: what posts and polls.
#![allow(unsafe_code)] // the ports' contracts are the traits'; nothing unsafe is done here

use core::task::Waker;
use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hca_core::{
    Completion, CqHandle, CqPort, DeviceError, FlatOp, MAX_MESSAGE_BYTES, Notify, Payload, PostError,
    PostErrorKind, QpState, QpType, RecvPort, RecvWr, SendFlags, SendOp, SendPort, SendWr, UdDest,
};

use hca_fabric::{LINE_DATA_BYTES, MAX_BRACKET_BYTES};
use hca_turn_lock::{Barrier, Inside};

use crate::cq::{CqShared, epoll_of};
use crate::engine::{DESTROYED, decode_state, encode_state};
use crate::fork::Fork;
use crate::options::Progress;
use crate::patience;
use crate::qp::{QpShared, RecvHeader, SendHeader, dest_to_cell, offers, sge_to_cell};
use crate::ring::{Cell, Consumer, Full, Producer};
use crate::shared::Shared;
use crate::sync::{Arc, Ordering};

/// A send queue.
pub(crate) struct QpSendPort {
    pub(crate) hca: Arc<Shared>,
    pub(crate) qp: Arc<QpShared>,
    pub(crate) ring: Producer<SendHeader>,
    pub(crate) qp_type: QpType,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    /// The longest message.
    pub(crate) max_message: u64,
    /// Its peer may be on this machine.
    pub(crate) may_be_near: bool,
}

impl QpSendPort {
    /// Checks a request against the queue pair's limits; returns its length, its entries, and whether it is inline.
    #[inline]
    fn check(&self, wr: &SendWr<'_>) -> Result<(u64, u8, bool), PostErrorKind> {
        if self.hca.fork.is_child() {
            return Err(PostErrorKind::Destroyed);
        }
        let state = self.qp.state.load(Ordering::Relaxed);
        if state != encode_state(QpState::Rts) {
            let state = decode_state(state).ok_or(PostErrorKind::Destroyed)?;
            if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
                return Err(PostErrorKind::WrongState(state));
            }
        }
        let qp_type = self.qp_type;
        offers(qp_type, wr.op).map_err(|op| PostErrorKind::Unsupported { qp_type, op })?;
        if wr.dest.is_some() != (qp_type == QpType::Ud) {
            return Err(PostErrorKind::Destination);
        }
        let (len, sges, inline) = match wr.payload {
            Payload::Sges(sges) => {
                if sges.len() > self.max_sge as usize {
                    return Err(PostErrorKind::TooManySges { count: sges.len(), max: self.max_sge });
                }
                (sges.iter().map(|s| u64::from(s.len)).sum(), sges.len() as u8, false)
            }
            Payload::Inline(_) if wr.op.is_read_or_atomic() => {
                return Err(PostErrorKind::Unsupported { qp_type, op: "inline data with READ or atomics" });
            }
            Payload::Inline(bytes) => {
                if bytes.len() > self.max_inline as usize {
                    return Err(PostErrorKind::InlineTooLong { len: bytes.len(), max: self.max_inline });
                }
                (bytes.len() as u64, 0, true)
            }
        };
        if len > self.max_message {
            return Err(PostErrorKind::MessageTooLong { len, max: self.max_message });
        }
        let atomic = wr.op.is_read_or_atomic() && !matches!(wr.op, hca_core::SendOp::Read(_));
        if atomic && len != 8 {
            return Err(PostErrorKind::AtomicLength { len });
        }
        Ok((len, sges, inline))
    }

    #[inline(never)]
    fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        let (len, sges, inline) = self.check(wr)?;
        // What is done at once on a peer's memory is not queued.
        if self.may_be_near && self.qp.near.load(Ordering::Relaxed) && self.ring.is_all_published() {
            match wr.op {
                SendOp::Write(_) | SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
                    if len as usize <= MAX_BRACKET_BYTES && self.hca.do_at_once(&self.qp, wr, len as u32) =>
                {
                    return Ok(());
                }
                _ => {}
            }
        }
        let header = SendHeader {
            wr_id: wr.wr_id,
            op: FlatOp::new(&wr.op),
            dest: wr.dest.is_some(),
            len: len as u32,
            sges,
            inline,
            flags: wr.flags,
        };
        let pushed = match wr.dest {
            None => queue(&mut self.ring, header, wr.payload),
            Some(dest) => self.push_datagram(header, wr.payload, dest),
        };
        pushed.map_err(|_| PostErrorKind::QueueFull { depth: self.ring.depth() })
    }

    /// Sends a small request of one piece before it is queued, or does one on the peer's memory, if nothing keeps it
    /// back and nothing is wrong with it. `false`: it is to be looked at, and queued.
    #[inline(always)]
    fn at_once(&mut self, wr: &SendWr<'_>) -> bool {
        let (len, inline) = match wr.payload {
            Payload::Inline(bytes) if bytes.len() <= self.max_inline as usize => (bytes.len(), true),
            Payload::Sges(&[entry]) if self.max_sge > 0 => (entry.len as usize, false),
            _ => return false,
        };
        let may = wr.dest.is_none()
            && len <= MAX_BRACKET_BYTES
            && self.qp.near.load(Ordering::Relaxed)
            && !self.hca.fork.is_child()
            && self.ring.is_all_published();
        if !may {
            return false;
        }
        match wr.op {
            SendOp::Send => len <= LINE_DATA_BYTES && self.send_at_once(wr, len as u32, inline),
            SendOp::Write(_) => self.touch_at_once(wr, len as u32),
            SendOp::Read(_) if !inline && self.qp_type == QpType::Rc => self.touch_at_once(wr, len as u32),
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } if !inline && len == 8 => {
                self.qp_type == QpType::Rc && self.touch_at_once(wr, 8)
            }
            _ => false,
        }
    }

    /// Does a request on a peer's memory.
    #[inline(always)]
    fn touch_at_once(&mut self, wr: &SendWr<'_>, len: u32) -> bool {
        if len == 0 {
            return false;
        }
        let Some(mut turn) = self.hca.engine_to_post() else { return false };
        let done = turn.touch(self.qp.handle, wr, len).is_some();
        self.hca.give_back(turn);
        done
    }

    /// Sends a small SEND by a line.
    #[inline(always)]
    fn send_at_once(&mut self, wr: &SendWr<'_>, len: u32, inline: bool) -> bool {
        let plain = !wr.flags.intersects(SendFlags::FENCE | SendFlags::SOLICITED);
        let ring = &mut self.ring;
        if !(plain && self.hca.progress != Progress::Thread && ring.has_room()) {
            return false;
        }
        let Some(mut turn) = self.hca.engine_to_post() else { return false };
        let sent = match turn.send_line(&self.hca.bell, self.qp.handle, wr.payload, len) {
            Some(sent) => {
                let (wr_id, sges, flags) = (wr.wr_id, u8::from(!inline), wr.flags);
                let header = SendHeader {
                    wr_id,
                    op: FlatOp::new(&SendOp::Send),
                    dest: false,
                    len,
                    sges,
                    inline,
                    flags,
                };
                queue(ring, header, wr.payload).expect("there is room");
                ring.publish();
                sent.queued();
                true
            }
            None => false,
        };
        self.hca.give_back(turn);
        sent
    }
}

/// Queues a request of a connected queue pair.
#[inline(always)]
fn queue(ring: &mut Producer<SendHeader>, header: SendHeader, payload: Payload<'_>) -> Result<(), Full> {
    match payload {
        Payload::Sges(sges) => ring.push(header, sges.iter().copied().map(sge_to_cell)),
        Payload::Inline(bytes) => ring.push_bytes(header, bytes),
    }
}

impl QpSendPort {
    fn push_datagram(&mut self, header: SendHeader, payload: Payload<'_>, dest: UdDest) -> Result<(), Full> {
        let dest = core::iter::once(dest_to_cell(dest));
        match payload {
            Payload::Sges(sges) => self.ring.push(header, dest.chain(sges.iter().copied().map(sge_to_cell))),
            Payload::Inline(bytes) => self.ring.push(header, dest.chain(inline_cells(bytes))),
        }
    }
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
#[inline]
fn batch<W>(wrs: &[W], mut push: impl FnMut(&W) -> Result<(), PostErrorKind>) -> Result<(), PostError> {
    if let [wr] = wrs {
        return push(wr).map_err(|kind| PostError { accepted: 0, kind });
    }
    for (accepted, wr) in wrs.iter().enumerate() {
        push(wr).map_err(|kind| PostError { accepted, kind })?;
    }
    Ok(())
}

// SAFETY: (1) a list and inline bytes are copied into the ring's slot, or used up by `at_once`, which returns behind
// that. (2) A refusal comes before the ring's end is moved. (3) The engine takes requests from the ring in order, its
// machine ends them in order, and looks at a request's list no more once the completion is appended.
unsafe impl SendPort for QpSendPort {
    #[inline]
    unsafe fn post(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        batch(wrs, |wr| {
            // SENDs leave by the doorbell, all of them in one turn.
            if self.may_be_near && !wr.op.consumes_recv() && self.at_once(wr) {
                return Ok(());
            }
            self.push(wr)
        })
    }
    #[inline]
    fn ring(&mut self) {
        if self.may_be_near && self.ring.is_all_published() {
            return;
        }
        self.ring.publish();
        self.hca.posted(&self.qp);
    }
    #[inline]
    unsafe fn post_now(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        if self.may_be_near && self.at_once(wr) {
            return Ok(());
        }
        self.push(wr)?;
        self.ring();
        Ok(())
    }
}

pub(crate) const MAX_CONNECTED_MESSAGE: u64 = MAX_MESSAGE_BYTES;

#[inline(always)]
fn push_recv(ring: &mut Producer<RecvHeader>, max_sge: u32, wr: &RecvWr<'_>) -> Result<(), PostErrorKind> {
    let pushed = match wr.sges {
        &[one] if max_sge > 0 => {
            let header = RecvHeader { wr_id: wr.wr_id, room: one.len.into(), sges: 1 };
            ring.push_one(header, sge_to_cell(one))
        }
        sges if sges.len() > max_sge as usize => {
            return Err(PostErrorKind::TooManySges { count: sges.len(), max: max_sge });
        }
        sges => {
            let room = sges.iter().map(|s| u64::from(s.len)).sum();
            let header = RecvHeader { wr_id: wr.wr_id, room, sges: sges.len() as u8 };
            ring.push(header, sges.iter().copied().map(sge_to_cell))
        }
    };
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
        if self.hca.fork.is_child() || state == DESTROYED {
            return Err(PostErrorKind::Destroyed);
        }
        if state == encode_state(QpState::Reset) {
            return Err(PostErrorKind::WrongState(QpState::Reset));
        }
        Ok(())
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
    pub(crate) fork: Fork,
    pub(crate) ring: Producer<RecvHeader>,
    pub(crate) max_sge: u32,
}

// SAFETY: as for `QpRecvPort`; each queue pair holds one request of a shared queue at a time.
unsafe impl RecvPort for SrqPort {
    unsafe fn post(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        if self.fork.is_child() {
            return batch(wrs, |_| Err(PostErrorKind::Destroyed));
        }
        batch(wrs, |wr| push_recv(&mut self.ring, self.max_sge, wr))
    }
    fn ring(&mut self) {
        self.ring.publish();
    }
}

/// The polling side of a completion queue.
pub(crate) struct SoftCq {
    pub(crate) hca: Arc<Shared>,
    pub(crate) handle: CqHandle,
    pub(crate) ring: Consumer<Completion>,
    pub(crate) shared: Arc<CqShared>,
    /// That of `CqShared::poller` since which `ring` goes on by itself.
    pub(crate) ring_version: u32,
    pub(crate) wait: Option<OwnedFd>,
    /// Counted in `Shared::waiters`.
    pub(crate) waiting: bool,
    /// It has a waker.
    pub(crate) has_waker: bool,
    /// It was armed for its waker alone: the next poll is the last one before a sleep.
    pub(crate) is_last_look: bool,
}

impl SoftCq {
    #[inline(always)]
    fn take(&mut self, out: &mut [Completion]) -> usize {
        if self.ring.refresh() == self.ring.head() {
            return 0;
        }
        if self.shared.poller.enter(self.ring_version).map(Inside::stay).is_none() {
            self.enter_anew();
        }
        let taken = self.ring.copy_headers(out);
        self.ring.release(self.ring.head().wrapping_add(taken as u32));
        drop(self.shared.poller.inside());
        if taken > 0 {
            self.waits_no_more();
        }
        taken
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

    #[inline]
    fn waits_no_more(&mut self) {
        if core::mem::take(&mut self.waiting) {
            self.hca.attention.remove_waiter();
        }
    }
}

impl Drop for SoftCq {
    fn drop(&mut self) {
        self.waits_no_more();
    }
}

// SAFETY: (1) the engine appends one completion a request, as it ends; slots of the ring are yielded once. (2) The ring
// hands slots over by Release and Acquire, behind what was placed; what is filled into `out` at once, this thread has
// placed itself, or found under the engine's lock. (3) `copy_headers` takes no more than `out` has room for, and
// neither does `poller_turn`, which is given the same slice.
unsafe impl CqPort for SoftCq {
    #[inline]
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        if self.hca.fork.is_child() {
            return 0;
        }
        let n = self.take(out);
        if n > 0 || out.is_empty() {
            patience::found();
            return n;
        }
        let is_last = core::mem::take(&mut self.is_last_look);
        match self.hca.poller_turn(self.handle, out, is_last) {
            None => 0,
            // Another turned, or this queue was not as empty.
            Some(0) => self.take(out),
            Some(n) => {
                self.waits_no_more();
                n
            }
        }
    }
    fn arm(&mut self, notify: Notify) {
        if self.hca.fork.is_child() {
            return;
        }
        self.shared.arm(notify);
        if self.wait.is_some() && self.hca.progress != Progress::Thread {
            if !core::mem::replace(&mut self.waiting, true) {
                self.hca.attention.add_waiter();
            }
            self.hca.prepare_wait();
        }
        if self.wait.is_none() && self.has_waker {
            self.is_last_look = true;
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
