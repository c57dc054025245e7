//! Device work: steps of a node that wait for the device or for a peer. Each step is decided under the node's lock,
//! executed outside of it, and concluded under it, so that other threads can use the node meanwhile.
//!
//! A queue pair that is being created, connected or destroyed belongs to one piece of device work: until the work is
//! concluded its peer has no queue pair, posts nothing, and begins no second piece. If the peer has left by then (the
//! attempt's number tells), another piece of work destroys the queue pair.
//!
//! The thread that releases the lock executes the work that was decided under it. A thread of the device that runs the
//! node executes such work, too, and waits for no lock ([`Inner::carry_out`]).

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use hca_core::{Access, AddressVector, DeviceError, Psn, QpAttr, QpCap, QpState, QpType, RnrTimer};
use hca_verbs::raw::{self, LastHold, RawQp, RawQpMaker};
use hca_verbs::{AddressHandle, ConnectOptions, Endpoint, Pd};

use super::Inner;
use crate::Error;
use crate::memory::{Memory, Pieces};

/// Which of the node's connections, of those that were one after the other at the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Which {
    pub(super) peer: u32,
    pub(super) attempt: u32,
}

/// A step that waits for the device or a peer.
pub(super) enum DeviceWork {
    /// The path to a peer, and a queue pair for it.
    Make { which: Which, to: AddressVector, psn: Psn },
    /// A queue pair is reset, to be connected again.
    Reset { which: Which, qp: RawQp },
    /// A queue pair is connected to one of the peer's.
    Connect { which: Which, qp: RawQp, ours: Endpoint, theirs: Endpoint },
    /// The queue pair of a peer that has left is destroyed.
    End { which: Which, qp: RawQp },
    /// The queue of hellos is to send again, behind an error.
    Revive { qp: RawQp },
    /// What nothing holds any more is given back to the device.
    LetGo(Held),
}

/// An object that the device releases when it is dropped.
pub(super) enum Held {
    Path(#[expect(dead_code, reason = "it is dropped")] AddressHandle),
    Region(#[expect(dead_code, reason = "it is dropped")] LastHold),
    Pieces(#[expect(dead_code, reason = "it is dropped")] Pieces),
}

/// The result of a piece of device work.
pub(super) enum Done {
    Made { which: Which, made: Result<Made, Error> },
    Reset { which: Which, qp: RawQp, result: Result<(), Error> },
    Connected { which: Which, qp: RawQp, result: Result<(), Error> },
    Ended { which: Which, slots: Result<Vec<u64>, DeviceError> },
    Revived { qp: RawQp },
}

/// The path to a peer, and a queue pair for it.
pub(super) struct Made {
    pub(super) to: AddressHandle,
    pub(super) qp: RawQp,
    /// The endpoint that the peer gets.
    pub(super) ours: Endpoint,
}

/// The parts of the node that device work uses without the lock.
pub(super) struct Maker {
    pub(super) pd: Pd,
    pub(super) queues: RawQpMaker,
    pub(super) cap: QpCap,
}

impl Maker {
    fn make(&self, to: &AddressVector, psn: Psn) -> Result<Made, Error> {
        let to = self.pd.create_ah(to)?;
        let qp = self.queues.make(QpType::Rc, self.cap)?;
        let (port, rd_atomic) = (self.pd.context().port(), self.pd.context().attr().max_rd_atomic);
        let (service, qpn, mtu) = (QpType::Rc, qp.qpn(), port.active_mtu);
        Ok(Made {
            to,
            qp,
            ours: Endpoint { service, qpn, psn, mtu, rd_atomic, gid: port.gid, lid: port.lid },
        })
    }
}

impl DeviceWork {
    /// Executes the step, which may take long. `None`: there is nothing to conclude.
    pub(super) fn run(self, maker: &Maker) -> Option<Done> {
        Some(match self {
            Self::Make { which, to, psn } => Done::Made { which, made: maker.make(&to, psn) },
            Self::Reset { which, mut qp } => {
                let attr = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
                let result = qp.modify(&attr).map_err(Error::from);
                Done::Reset { which, qp, result }
            }
            Self::Connect { which, mut qp, ours, theirs } => {
                // Slots are returned as soon as this node polls: a sender that finds none retries at once.
                let options = ConnectOptions { min_rnr_timer: RnrTimer::new(1), ..ConnectOptions::default() };
                let connected = qp.connect(Access::REMOTE_READ, &ours, &theirs, &options);
                Done::Connected { which, qp, result: connected.map_err(Error::from) }
            }
            // On return the device touches nothing of it any more.
            Self::End { which, qp } => Done::Ended { which, slots: qp.destroy() },
            Self::Revive { mut qp } => {
                let attr = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
                if let Err(error) = qp.modify(&attr) {
                    tracing::debug!(%error, "the queue of hellos is not in error any more, or not yet");
                }
                Done::Revived { qp }
            }
            Self::LetGo(held) => {
                drop(held);
                return None;
            }
        })
    }
}

impl Inner {
    /// Executes device work, and the work that follows from it, without the node's lock.
    ///
    /// It waits for no lock: what it can't conclude itself, as another thread has the node, that thread concludes when
    /// it leaves. So a device's thread may do it, or a thread that holds the lock of another node.
    #[cold]
    pub(super) fn carry_out(&self, queued_work: Vec<DeviceWork>) {
        let mut queued_work = VecDeque::from(queued_work);
        while let Some(work) = queued_work.pop_front() {
            let Some(done) = work.run(&self.maker) else { continue };
            self.done.lock().unwrap_or_else(PoisonError::into_inner).push(done);
            self.any_done.store(true, Ordering::Release);
            let mut more = Vec::new();
            self.catch_up(&mut more);
            queued_work.extend(more);
        }
    }
    /// The results of device work, to be concluded.
    pub(super) fn take_done(&self) -> Vec<Done> {
        // Acquire: pairs with the Release above, behind which it is among them.
        if !self.any_done.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.any_done.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Held {
    /// Releases memory; returns work if this was the last holder.
    pub(super) fn of_pieces(pieces: Pieces) -> Option<Self> {
        match pieces.into_one() {
            Ok(memory) => Self::of_memory(memory),
            Err(pieces) => Some(Self::Pieces(pieces)),
        }
    }
    fn of_memory(memory: Memory) -> Option<Self> {
        raw::let_go(memory.into_range()).map(Self::Region)
    }
}
