//! Completion queues: the engine's side, and what both sides share.

use core::task::Waker;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use hca_core::{Completion, CqHandle, DeviceError, Notify, QpHandle, WcStatus};
use hca_turn_lock::Barrier;

use crate::notify::EventFd;
use crate::offload::Attached;
use crate::ring::Producer;
use crate::sync::{Arc, AtomicU32, Mutex, Ordering};

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
    event: OnceLock<EventFd>,
    /// Counts changes of `purges`.
    pub(crate) purge_epoch: AtomicU32,
    /// Completions of these queue pairs that lie before the ring index are to be passed over.
    pub(crate) purges: Mutex<Vec<(QpHandle, u32)>>,
}

impl CqShared {
    pub(crate) fn new() -> Self {
        Self {
            armed: AtomicU32::new(0),
            barrier: Barrier::of_system(),
            waker: Mutex::new(None),
            event: OnceLock::new(),
            purge_epoch: AtomicU32::new(0),
            purges: Mutex::new(Vec::new()),
        }
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
        match &mut *slot {
            Some(w) => w.clone_from(waker),
            None => *slot = Some(waker.clone()),
        }
    }
    /// The descriptor of notifications.
    pub(crate) fn event_fd(&self) -> Result<BorrowedFd<'_>, DeviceError> {
        EventFd::get_or_create(&self.event)
    }
    /// Makes the descriptor readable, if there is one.
    pub(crate) fn wake(&self) {
        if let Some(e) = self.event.get() {
            e.signal();
        }
    }
    /// Raises the notification.
    pub(crate) fn notify(&self) {
        self.wake();
        if let Some(w) = &*lock(&self.waker) {
            w.wake_by_ref();
        }
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
    /// Run by whoever puts completions here.
    engine: Option<Arc<Attached>>,
}

impl CqEntry {
    pub(crate) fn new(handle: CqHandle, ring: Producer<Completion>, shared: Arc<CqShared>) -> Self {
        Self { handle, ring, shared, users: 0, overrun: false, fresh: None, engine: None }
    }
    /// Whether all completions were polled, and nobody asked to be notified.
    #[inline]
    pub(crate) fn is_idle(&mut self) -> bool {
        self.ring.is_released() && self.shared.armed.load(Ordering::Relaxed) & (SOLICITED | ANY) == 0
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
        if let Some(urgent) = self.fresh.take() {
            self.publish(urgent);
        }
    }
    #[inline(always)]
    fn publish(&mut self, urgent: bool) {
        // Pairs with the barrier in `CqShared::arm`.
        self.ring.publish_and_look(self.shared.barrier);
        let armed = self.shared.armed.load(Ordering::Relaxed);
        if armed != 0 {
            self.tell(armed, urgent);
        }
    }
    #[cold]
    fn tell(&mut self, armed: u32, urgent: bool) {
        if let Some(engine) = &self.engine {
            engine.came();
        }
        if armed & ANY != 0 || (armed & SOLICITED != 0 && urgent) {
            self.shared.armed.fetch_and(ATTACHED, Ordering::Relaxed);
            self.shared.notify();
        }
    }
    /// From now on the poller passes over the completions of `qp` that are in the queue.
    pub(crate) fn purge(&mut self, qp: QpHandle) {
        self.finish();
        lock(&self.shared.purges).push((qp, self.ring.tail()));
        // Release: pairs with the Acquire in `SoftCq::poll`.
        self.shared.purge_epoch.fetch_add(1, Ordering::Release);
    }
}

pub(crate) fn lock<T>(m: &Mutex<T>) -> crate::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
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
        let mut entry = CqEntry::new(handle, producer, Arc::new(CqShared::new()));
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
