//! Completion queues: the engine's side, and the state that both sides share.

use core::task::Waker;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use hca_core::{
    Completion, CqHandle, CqModeration, CqStatus, DeviceError, Instant, Notify, QpHandle, WakerSlot,
    WcOpcode, WcStatus,
};
use hca_turn_lock::{Barrier, Exclusion};

use crate::notify::fd::EventFd;
use crate::notify::runs::Attention;
use crate::options::Time;
use crate::queues::attached::Attached;
use crate::queues::ring::{Consumer, Producer, ring};
use crate::sync::{Arc, AtomicU32, Ordering};

/// What [`CqShared::armed`] says, by bits.
const SOLICITED: u32 = 1;
const ANY: u32 = 2;
/// There is an engine. Changed under the engine's lock only.
const ATTACHED: u32 = 4;
/// Completions have times, or notifications are held back: none goes to the caller of a turn without standing in the
/// queue. Changed under the engine's lock only.
const SPECIAL: u32 = 8;
/// Flags that stay when a notification is raised.
const STAYS: u32 = ATTACHED | SPECIAL;

/// What the engine and the polling side of a completion queue share beside the ring.
pub(crate) struct CqShared {
    /// Who wants to know of completions: 0 is nobody.
    armed: AtomicU32,
    barrier: Barrier,
    waker: WakerSlot,
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
            waker: WakerSlot::default(),
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
    /// Whether completions go to who polls without a look at anything else.
    #[inline]
    fn is_plain_and_not_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) & !ATTACHED == 0
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
        self.waker.set(waker);
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
        if let Some(waker) = self.waker.get() {
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
    /// The queue pairs that complete here went to ERROR for that, and none has begun anew.
    pub(crate) ended: bool,
    /// What was pushed since the last `finish`: nothing, or whether any of it was solicited or an error.
    fresh: Option<bool>,
    /// What has to end before anything more is shown.
    withheld: u32,
    /// Run by whoever puts completions here.
    engine: Option<Arc<Attached>>,
    /// Its work beside keeping completions.
    special: Option<Box<Special>>,
}

/// Times of completions, and notifications that are held back.
struct Special {
    time: Time,
    /// Completions have times.
    timed: bool,
    moderation: CqModeration,
    /// The end of what was shown last.
    seen: u32,
    /// Completions since the queue was armed that count for its notification.
    held_back: u32,
    /// When the notification is due at the latest; the engine has a timer for it.
    due: Option<Instant>,
}

impl CqEntry {
    pub(crate) fn new(handle: CqHandle, ring: Producer<Completion>, shared: Arc<CqShared>) -> Self {
        let (users, overrun, ended, fresh, withheld) = (0, false, false, None, 0);
        Self { handle, ring, shared, users, overrun, ended, fresh, withheld, engine: None, special: None }
    }
    /// One whose completions have times: the slots of its ring have a cell for that.
    pub(crate) fn timed(
        handle: CqHandle,
        ring: Producer<Completion>,
        shared: Arc<CqShared>,
        time: Time,
    ) -> Self {
        let mut entry = Self::new(handle, ring, shared);
        entry.special(time).timed = true;
        entry
    }
    fn special(&mut self, time: Time) -> &mut Special {
        self.shared.armed.fetch_or(SPECIAL, Ordering::Relaxed);
        let seen = self.ring.filled();
        self.special.get_or_insert_with(|| {
            let moderation = CqModeration::default();
            Box::new(Special { time, timed: false, moderation, seen, held_back: 0, due: None })
        })
    }
    /// Its attributes.
    pub(crate) fn status(&self) -> CqStatus {
        let special = self.special.as_ref();
        CqStatus {
            depth: self.ring.depth(),
            moderation: special.map(|s| s.moderation).unwrap_or_default(),
            timed: special.is_some_and(|s| s.timed),
        }
    }
    /// Holds notifications back from now on; one that is held back now is raised.
    pub(crate) fn moderate(&mut self, moderation: CqModeration, time: Time) {
        if moderation.holds_back() || self.special.is_some() {
            let special = self.special(time);
            special.moderation = moderation;
            if special.due.is_some() {
                self.raise();
            }
        }
    }
    /// When the notification that is held back is due.
    fn due(&self) -> Option<Instant> {
        self.special.as_ref()?.due
    }
    /// Raises the notification that is held back if it is due.
    pub(crate) fn fire(&mut self, now: Instant) {
        if self.due().is_some_and(|due| due <= now) {
            self.raise();
        }
    }
    /// Moves to another ring, with its poller's end of the present one, which becomes that of the other. `false`: it has
    /// no room for what stands here; nothing is done.
    pub(crate) fn resize(&mut self, polled: &mut Consumer<Completion>, depth: u32) -> bool {
        polled.resume();
        if self.ring.unreleased().count() as u64 > depth.into() {
            return false;
        }
        let timed = self.is_timed();
        let (mut to, end) = ring::<Completion>(depth, usize::from(timed));
        for i in (0..polled.tail().wrapping_sub(polled.head())).map(|i| polled.head().wrapping_add(i)) {
            let (c, time) = polled.at(i);
            let filled = if let Some(&time) = time.first() {
                to.push_one(*c, time).is_ok()
            } else {
                to.push_header(c)
            };
            assert!(filled, "room for all that wait was counted");
        }
        to.publish();
        if let Some(special) = &mut self.special {
            special.seen = to.filled();
        }
        *polled = end;
        let unshown = self.ring.take_unpublished();
        self.ring = to;
        unshown.iter().for_each(|c| _ = self.append(c));
        true
    }
    fn is_timed(&self) -> bool {
        self.special.as_ref().is_some_and(|s| s.timed)
    }
    /// Appends a completion to the ring. `false`: it is full.
    #[inline]
    fn append(&mut self, c: &Completion) -> bool {
        match &self.special {
            Some(special) if special.timed => self.ring.push_one(*c, [special.time.shown(), 0]).is_ok(),
            _ => self.ring.push_header(c),
        }
    }
    /// Whether all completions were polled, and nobody asked to be notified, or for anything beside completions.
    #[inline]
    pub(crate) fn is_idle(&mut self) -> bool {
        self.ring.is_released() && self.withheld == 0 && self.shared.is_plain_and_not_armed()
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
        let lost = !self.append(&c);
        (first, lost)
    }
    /// Appends a success that nobody asked to be woken for in particular, and shows it. `false`: nothing was done, as
    /// others are to be shown before or there is no room.
    #[inline(always)]
    pub(crate) fn show(&mut self, c: &Completion) -> bool {
        let shown = self.fresh.is_none() && self.special.is_none() && self.ring.push_header(c);
        if shown {
            self.publish(false);
        }
        shown
    }
    /// Shows all that was pushed to the poller, and notifies it if it asked for that. Returns the time of a notification
    /// that is held back from now on, at which [`fire`](Self::fire) is due.
    pub(crate) fn finish(&mut self) -> Option<Instant> {
        if self.withheld == 0
            && let Some(urgent) = self.fresh.take()
        {
            let before = self.due();
            self.publish(urgent);
            return if before.is_none() { self.due() } else { None };
        }
        None
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
        let filled = self.ring.filled();
        let shown =
            self.special.as_mut().map_or(0, |s| filled.wrapping_sub(core::mem::replace(&mut s.seen, filled)));
        if (armed & ANY != 0 || (armed & SOLICITED != 0 && urgent)) && !self.holds_back(shown) {
            self.raise();
        }
    }
    /// Raises the notification that was asked for.
    fn raise(&mut self) {
        if let Some(special) = &mut self.special {
            (special.held_back, special.due) = (0, None);
        }
        if self.shared.armed.fetch_and(STAYS, Ordering::Relaxed) & (SOLICITED | ANY) != 0 {
            self.shared.notify();
        }
    }
    /// Whether the notification waits for more completions, or for its time.
    fn holds_back(&mut self, shown: u32) -> bool {
        let Some(special) = self.special.as_mut().filter(|s| s.moderation.holds_back()) else { return false };
        special.held_back = special.held_back.saturating_add(shown);
        let holds = special.held_back < special.moderation.count.into();
        if holds && special.due.is_none() {
            special.due = Some(special.time.now() + special.moderation.period);
        }
        holds
    }
    /// Takes the completions of `qp` out of the queue: no poll that begins later finds them, and their places are free.
    /// Or some stay, as `purge` has it.
    pub(crate) fn purge(&mut self, qp: QpHandle, purge: Purge) {
        self.purge_each(|c| c.qp == qp, purge);
    }
    /// The same of the completions that are `its`.
    pub(crate) fn purge_each(&mut self, its: impl Fn(&Completion) -> bool, purge: Purge) {
        if self.finish().is_some() {
            // Nobody here sets a timer.
            self.raise();
        }
        if self.withheld > 0 {
            for mut c in self.take_unshown() {
                if !its(&c) || purge.keeps(&mut c) {
                    self.push(c);
                }
            }
        }
        if self.ring.unreleased().any(&its) {
            // The poller is inside for as long as it copies completions, and takes no lock there.
            self.shared.poller.exclude(|()| self.ring.retain(|c| !its(c) || purge.keeps(c)));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

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

    /// Time that the test sets, and a queue that notifies its descriptor.
    fn held_back(count: u16) -> (std::sync::Arc<std::sync::atomic::AtomicU64>, CqEntry) {
        let ns = std::sync::Arc::default();
        let time = Time::new(crate::Clock::Virtual(std::sync::Arc::clone(&ns)));
        let (producer, _) = ring::<Completion>(64, 0);
        let shared = Arc::new(CqShared::new(Arc::new(Attention::new())));
        let mut entry = CqEntry::new(CqHandle { index: 0, generation: 0 }, producer, shared);
        entry.moderate(CqModeration { count, period: core::time::Duration::from_nanos(100) }, time);
        (ns, entry)
    }
    fn show(entry: &mut CqEntry, n: usize) -> Option<Instant> {
        (0..n).for_each(|_| _ = entry.push(Completion::default()));
        entry.finish()
    }

    #[test]
    fn a_notification_waits_for_its_count_of_completions_since_the_queue_was_armed() {
        let (_, mut entry) = held_back(4);
        assert_eq!(show(&mut entry, 9), None, "nobody asked");
        entry.shared.arm(Notify::Any);
        assert_eq!(show(&mut entry, 3), Some(Instant::from_nanos(100)));
        assert!(entry.shared.is_armed());
        assert_eq!(show(&mut entry, 1), None);
        assert!(!entry.shared.is_armed(), "four came");
        entry.shared.arm(Notify::Solicited);
        assert_eq!(show(&mut entry, 5), None, "none is solicited");
        assert!(entry.shared.is_armed());
    }

    #[test]
    fn a_notification_waits_for_its_time_since_the_first_completion() {
        let (ns, mut entry) = held_back(4);
        entry.shared.arm(Notify::Any);
        ns.store(50, core::sync::atomic::Ordering::Relaxed);
        assert_eq!(show(&mut entry, 1), Some(Instant::from_nanos(150)));
        ns.store(149, core::sync::atomic::Ordering::Relaxed);
        assert_eq!(show(&mut entry, 1), None, "there is a timer");
        entry.fire(Instant::from_nanos(149));
        assert!(entry.shared.is_armed());
        entry.fire(Instant::from_nanos(150));
        assert!(!entry.shared.is_armed());
        // It counts anew.
        entry.shared.arm(Notify::Any);
        assert_eq!(show(&mut entry, 3), Some(Instant::from_nanos(249)));
        let time = entry.special.as_ref().unwrap().time.clone();
        entry.moderate(CqModeration::default(), time);
        assert!(!entry.shared.is_armed(), "it is held back no longer");
        entry.shared.arm(Notify::Any);
        assert_eq!(show(&mut entry, 1), None);
        assert!(!entry.shared.is_armed());
    }
}
