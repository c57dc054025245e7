//! The state that the posting and the polling side of a queue pair share.

use std::sync::Arc;

use hca_core::{QpHandle, QpState, QpType, Qpn};
use hca_prm::QpDbr;

use super::shadow::Shadow;
use crate::shared::{SharedCells, Word};
use crate::srq::SrqCore;
use crate::sync::{AtomicU32, Ordering};

/// Which of a queue pair's counters.
#[derive(Clone, Copy)]
pub(crate) enum Counter {
    /// Receive requests.
    Recv = QpDbr::RCV_COUNTER.offset() as isize,
    /// Blocks of the send queue.
    Send = QpDbr::SND_COUNTER.offset() as isize,
}

/// A queue pair, as its ports and its completion queues see it.
pub(crate) struct QpCore {
    pub(crate) handle: QpHandle,
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
    /// State and epoch, see [`Life`].
    life: AtomicU32,
    pub(crate) send: Shadow,
    /// Of a queue of its own.
    pub(crate) recv: Shadow,
    pub(crate) srq: Option<Arc<SrqCore>>,
    /// The doorbell record.
    record: SharedCells,
}

/// A queue pair's state as it was last set, and how often it had been reset by then.
///
/// An adapter moves queue pairs to an error state by itself; that is seen by asking it, and matters to no port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life(u32);

/// The queue pair is no more, or not looked at yet.
const DESTROYED: u8 = 0xff;

impl Life {
    /// As it begins.
    pub(crate) const NEW: Self = Self(QpState::Reset as u32);
    /// Of a port that has not looked.
    pub(crate) const UNSEEN: Self = Self(DESTROYED as u32);

    /// The state; `None`: it was destroyed.
    pub(crate) fn state(self) -> Option<QpState> {
        use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
        let all = [Reset, Init, Rtr, Rts, Sqd, Sqe, Error];
        (self.0 as u8 != DESTROYED).then(|| all[usize::from(self.0 as u8)])
    }
    /// How often it was reset.
    #[inline(always)]
    pub(crate) fn epoch(self) -> u32 {
        self.0 >> 8
    }
    /// Whether send requests are taken.
    #[inline(always)]
    pub(crate) fn takes_sends(self) -> bool {
        let state = self.0 as u8;
        state >= QpState::Rts as u8 && state != DESTROYED
    }
    /// Whether receive requests are taken.
    #[inline(always)]
    pub(crate) fn takes_recvs(self) -> bool {
        let state = self.0 as u8;
        state != QpState::Reset as u8 && state != DESTROYED
    }
}

impl QpCore {
    /// A queue pair in RESET, with rings of so many places, and a doorbell record of zeros.
    pub(crate) fn new(
        handle: QpHandle,
        qpn: Qpn,
        qp_type: QpType,
        [send, recv]: [u32; 2],
        srq: Option<Arc<SrqCore>>,
        record: SharedCells,
    ) -> Self {
        Self {
            handle,
            qpn,
            qp_type,
            life: AtomicU32::new(Life::NEW.0),
            send: Shadow::new(send),
            recv: Shadow::new(recv),
            srq,
            record,
        }
    }

    /// The state as it was last set.
    #[inline(always)]
    pub(crate) fn life(&self) -> Life {
        // Acquire: what a reset changed is seen with its epoch.
        Life(self.life.load(Ordering::Acquire))
    }
    /// Shows a new state to the ports; `None`: it is destroyed. By the control path, one at a time.
    pub(crate) fn show(&self, state: Option<QpState>) {
        let (epoch, state) = (self.life().epoch(), state.map_or(DESTROYED, |s| s as u8));
        // Release: pairs with the Acquire in `life`.
        self.life.store(epoch << 8 | u32::from(state), Ordering::Release);
    }
    /// Has the ports begin anew: the adapter has reset it, and all requests are forgotten. By the control path.
    pub(crate) fn begin_anew(&self) {
        let epoch = self.life().epoch().wrapping_add(1);
        // Release: as above.
        self.life.store(epoch << 8 | QpState::Reset as u32, Ordering::Release);
    }
    /// The receive request at a place of its queue, or of the shared one, has ended. By the poller only.
    #[inline(always)]
    pub(crate) fn take_recv(&self, at: u16) -> Option<u64> {
        match &self.srq {
            None => self.recv.take(at).map(|noted| noted.wr_id),
            Some(srq) => srq.take(at),
        }
    }
    /// Forgets all send requests, and what was told of them. While it is in RESET and its send requests are not polled.
    pub(crate) fn clear_send(&self) {
        self.send.clear();
        self.record(Counter::Send).store(0, Ordering::Relaxed);
    }
    /// Forgets all requests of its own receive queue, likewise.
    pub(crate) fn clear_recv(&self) {
        self.recv.clear();
        self.record(Counter::Recv).store(0, Ordering::Relaxed);
    }

    /// The doorbell record's counter.
    pub(crate) fn record(&self, counter: Counter) -> Word {
        self.record.word(counter as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_told_as_it_was_set_and_a_reset_counts() {
        use QpState::*;
        let record = SharedCells::on_heap(1);
        let (handle, qpn) = (QpHandle::default(), Qpn::new(1));
        let qp = QpCore::new(handle, qpn, QpType::Rc, [1, 1], None, record);
        let mut sends = Vec::new();
        for (i, state) in [Reset, Init, Rtr, Rts, Sqd, Sqe, Error, Reset].into_iter().enumerate() {
            qp.show(Some(state));
            if i == 7 {
                assert_eq!(qp.life().epoch(), 0, "it is not known yet whether it will be reset");
                qp.begin_anew();
            }
            let life = qp.life();
            assert_eq!((life.state(), life.epoch()), (Some(state), u32::from(i == 7)));
            assert_eq!(life.takes_recvs(), state != Reset);
            sends.push(life.takes_sends());
        }
        assert_eq!(sends, [false, false, false, true, true, true, true, false]);
        qp.show(None);
        let life = qp.life();
        assert!(life.state().is_none() && !life.takes_sends() && !life.takes_recvs());
    }
}
