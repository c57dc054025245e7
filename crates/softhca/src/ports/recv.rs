//! The receive ports, of a queue pair and of a shared queue.
#![allow(unsafe_code)] // the ports' contracts are the traits'; nothing unsafe is done here

use hca_core::{DeviceError, PostError, PostErrorKind, QpState, RecvPort, RecvWr, SrqHandle};
use hca_turn_lock::Barrier;

use crate::drive::shared::Shared;
use crate::limits::MAX_WR;
use crate::objects::qp_shared::{DESTROYED, QpShared, encode_state};
use crate::ports::batch;
use crate::queues::ring::Producer;
use crate::queues::slot::{RecvHeader, sge_to_cell};
use crate::sync::Arc;

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
        return Err(PostErrorKind::too_many_sges(sges.len(), max_sge));
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
        let state = self.qp.state_but_rts();
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
        if self.qp.state_but_rts() == encode_state(QpState::Error) {
            self.hca.posted(&self.qp);
        }
    }
}

/// A shared receive queue.
pub(crate) struct SrqPort {
    pub(crate) hca: Arc<Shared>,
    pub(crate) handle: SrqHandle,
    pub(crate) ring: Producer<RecvHeader>,
    pub(crate) max_sge: u32,
}

impl SrqPort {
    #[inline(always)]
    fn check(&self) -> Result<(), PostErrorKind> {
        if self.hca.fork.is_child() { Err(PostErrorKind::Destroyed) } else { Ok(()) }
    }
}

// SAFETY: as for `QpRecvPort`; each queue pair holds one request of a shared queue at a time.
unsafe impl RecvPort for SrqPort {
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
        self.ring.publish();
    }
    fn resize(&mut self, max_wr: u32) -> Result<u32, DeviceError> {
        self.hca.fork.check()?;
        DeviceError::unless_within("max_wr", max_wr, 1, MAX_WR)?;
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
