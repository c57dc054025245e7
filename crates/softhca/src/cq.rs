//! Completion queues: the engine's side, and what both sides share.

use core::task::Waker;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use hca_core::{Completion, CqHandle, DeviceError, Notify, QpHandle, WcOpcode, WcStatus};
use hca_turn_lock::{Barrier, Exclusion};

use crate::notify::EventFd;
use crate::offload::Attached;
use crate::ring::Producer;
use crate::runs::Attention;
use crate::sync::{Arc, AtomicU32, Mutex, Ordering, lock};

/// What [`CqShared::armed`] says, by bits.
const SOLICITED: u32 = 1;
const ANY: u32 = 2;
/// There is an engine. Changed under the engine's lock only.
const ATTACHED: u32 = 4;

/// What the engine and the polling side of a completion queue share beside the ring.
pub(crate) struct CqShared {
    /// Who wants to know of completions: 0 is nobody.
    armed: AtomicU32,
    barrier: Barrier,
    waker: Mutex<Option<Waker>>,
    attention: Arc<Attention>,
    event: OnceLock<EventFd>,
    /// Keeps the poller out while completions are taken out of the ring.
    pub(crate) poller: Exclusion<()>,
}

impl CqShared {
    pub(crate) fn new(attention: Arc<Attention>) -> Self {
        Self {
            armed: AtomicU32::new(0),
            barrier: Barrier::of_system(),
            waker: Mutex::new(None),
            attention,
            event: OnceLock::new(),
            poller: Exclusion::new(()),
        }
    }
    /// Whether a notification was asked for that has not come yet.
    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) & (SOLICITED | ANY) != 0
    }
    /// Asks for one notification. The caller polls once more afterwards.
    pub(crate) fn arm(&self, notify: Notify) {
        if let Some(e) = self.event.get() {
            e.clear();
        }
        let word = match notify {
            Notify::Any => ANY,
            Notify::Solicited => SOLICITED,
        };
        // A queue that is armed for any completion stays so.
        self.armed.fetch_or(word, Ordering::SeqCst);
        // Pairs with the light one in `CqEntry::finish`: either the engine sees the queue armed, or the
        // caller's next poll sees the completion.
        self.barrier.heavy();
    }
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let mut slot = lock(&self.waker);
        if slot.as_ref().is_some_and(|w| w.will_wake(waker)) {
            return;
        }
        let before = slot.replace(waker.clone());
        // What it stands for may end with it, and do anything.
        drop(slot);
        drop(before);
    }
    /// The descriptor of notifications.
    pub(crate) fn event_fd(&self) -> Result<BorrowedFd<'_>, DeviceError> {
        Ok(EventFd::get_or_create(&self.event)?.fd())
    }
    /// Makes the descriptor readable, if there is one.
    pub(crate) fn wake(&self) {
        if let Some(e) = self.event.get() {
            e.signal();
        }
    }
    /// Raises the notification, under the engine's lock; the waker is called behind that.
    fn notify(&self) {
        self.wake();
        let waker = lock(&self.waker).clone();
        if let Some(waker) = waker {
            self.attention.wake_later(waker);
        }
    }
}

/// What becomes of completions that nobody has polled, when their queue pair is reset or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purge {
    /// They are taken out.
    All,
    /// Those of receives tell that they were flushed; the others are taken out.
    FlushRecvs,
}

impl Purge {
    /// Whether a completion stays, and as what.
    fn keeps(self, c: &mut Completion) -> bool {
        let (wr_id, qp, status, opcode) = (c.wr_id, c.qp, WcStatus::WrFlushed, WcOpcode::Recv);
        let stays = self == Self::FlushRecvs && c.opcode.is_recv();
        if stays {
            *c = Completion { wr_id, qp, status, opcode, ..Completion::default() };
        }
        stays
    }
}

/// The engine's side of a completion queue.
pub(crate) struct CqEntry {
    pub(crate) handle: CqHandle,
    pub(crate) ring: Producer<Completion>,
    pub(crate) shared: Arc<CqShared>,
    /// Queue pairs that complete here; a pair that sends and receives here counts twice.
    pub(crate) users: u32,
    /// A completion was lost.
    pub(crate) overrun: bool,
    /// What was pushed since the last `finish`: nothing, or whether any of it was solicited or an error.
    fresh: Option<bool>,
    /// What has to end before anything more is shown.
    withheld: u32,
    /// Run by whoever puts completions here.
    engine: Option<Arc<Attached>>,
}

impl CqEntry {
    pub(crate) fn new(handle: CqHandle, ring: Producer<Completion>, shared: Arc<CqShared>) -> Self {
        Self { handle, ring, shared, users: 0, overrun: false, fresh: None, withheld: 0, engine: None }
    }
    /// Whether all completions were polled, and nobody asked to be notified.
    #[inline]
    pub(crate) fn is_idle(&mut self) -> bool {
        self.ring.is_released() && self.withheld == 0 && !self.shared.is_armed()
    }
    pub(crate) fn engine(&self) -> Option<&Arc<Attached>> {
        self.engine.as_ref()
    }
    pub(crate) fn attach(&mut self, engine: Arc<Attached>) {
        self.engine = Some(engine);
        self.shared.armed.fetch_or(ATTACHED, Ordering::Relaxed);
    }
    pub(crate) fn detach(&mut self) -> Option<Arc<Attached>> {
        self.shared.armed.fetch_and(!ATTACHED, Ordering::Relaxed);
        self.engine.take()
    }
    /// Its poller is in a turn, and takes what went to it directly: an engine need not be run for what he has.
    pub(crate) fn note_poller(&mut self) {
        if let Some(engine) = &self.engine
            && self.ring.is_released()
        {
            engine.all_taken();
        }
    }
    /// Appends a completion. Returns `(first since finish, lost)`.
    #[inline]
    pub(crate) fn push(&mut self, c: Completion) -> (bool, bool) {
        let urgent = c.solicited || c.status != WcStatus::Success;
        let first = self.fresh.is_none();
        self.fresh = Some(self.fresh.unwrap_or(false) | urgent);
        let lost = !self.ring.push_header(&c);
        (first, lost)
    }
    /// Appends a success that nobody asked to be woken for in particular, and shows it. `false`: nothing was done, as
    /// others are to be shown before or there is no room.
    #[inline(always)]
    pub(crate) fn show(&mut self, c: &Completion) -> bool {
        let shown = self.fresh.is_none() && self.ring.push_header(c);
        if shown {
            self.publish(false);
        }
        shown
    }
    /// Shows all that was pushed to the poller, and notifies it if it asked for that.
    pub(crate) fn finish(&mut self) {
        if self.withheld == 0
            && let Some(urgent) = self.fresh.take()
        {
            self.publish(urgent);
        }
    }
    /// Shows nothing more until it [may](Self::let_show) again, as often as this was called.
    pub(crate) fn withhold(&mut self) {
        self.withheld += 1;
    }
    /// `true`: [`finish`](Self::finish) is due.
    pub(crate) fn let_show(&mut self) -> bool {
        self.withheld -= 1;
        self.withheld == 0 && self.fresh.is_some()
    }
    /// Takes what is not shown out of the queue.
    pub(crate) fn take_unshown(&mut self) -> Vec<Completion> {
        self.fresh = None;
        self.ring.take_unpublished()
    }
    #[inline(always)]
    fn publish(&mut self, urgent: bool) {
        // Pairs with the barrier in `CqShared::arm`.
        self.ring.publish_and_look(self.shared.barrier);
        let armed = self.shared.armed.load(Ordering::Relaxed);
        if armed != 0 {
            self.notify(armed, urgent);
        }
    }
    #[cold]
    fn notify(&mut self, armed: u32, urgent: bool) {
        if let Some(engine) = &self.engine {
            engine.came();
        }
        if armed & ANY != 0 || (armed & SOLICITED != 0 && urgent) {
            self.shared.armed.fetch_and(ATTACHED, Ordering::Relaxed);
            self.shared.notify();
        }
    }
    /// Takes the completions of `qp` out of the queue: no poll that begins later finds them, and their places are free.
    /// Or some stay, as `purge` has it.
    pub(crate) fn purge(&mut self, qp: QpHandle, purge: Purge) {
        self.finish();
        if self.withheld > 0 {
            for mut c in self.take_unshown() {
                if c.qp != qp || purge.keeps(&mut c) {
                    self.push(c);
                }
            }
        }
        if self.ring.unreleased().any(|c| c.qp == qp) {
            // The poller is inside for as long as it copies completions, and takes no lock there.
            self.shared.poller.exclude(|()| self.ring.retain(|c| c.qp != qp || purge.keeps(c)));
        }
    }
}

/// An epoll descriptor that is readable when any of `fds` is.
pub(crate) fn epoll_of(fds: &[BorrowedFd<'_>]) -> Result<OwnedFd, DeviceError> {
    use rustix::event::epoll;
    let doing = "creating the descriptor that waiters sleep on";
    let io = |e: rustix::io::Errno| DeviceError::Io { doing, source: e.into() };
    let ep = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io)?;
    for (i, fd) in fds.iter().enumerate() {
        epoll::add(&ep, fd, epoll::EventData::new_u64(i as u64), epoll::EventFlags::IN).map_err(io)?;
    }
    Ok(ep)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ring::ring;

    #[test]
    fn a_completion_that_is_shown_at_once_waits_for_those_before_and_for_room() {
        let (producer, mut polled) = ring::<Completion>(2, 0);
        let handle = CqHandle { index: 0, generation: 0 };
        let mut entry = CqEntry::new(handle, producer, Arc::new(CqShared::new(Arc::new(Attention::new()))));
        let of = |wr_id| Completion { wr_id, ..Completion::default() };
        assert_eq!(entry.push(Completion { solicited: true, ..of(1) }), (true, false));
        assert!(!entry.show(&of(2)), "one is to be shown, and told of, before");
        assert_eq!(polled.refresh(), 0);
        entry.finish();
        assert!(entry.show(&of(2)));
        assert_eq!(polled.refresh(), 2);
        assert!(!entry.show(&of(3)), "there is no room");
        assert_eq!([0, 1].map(|i| polled.header(i).wr_id), [1, 2]);
    }
}
