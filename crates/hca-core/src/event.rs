//! Asynchronous events, which report conditions that no completion can report, and the queue in which they wait for the
//! program.

use core::task::Waker;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use crate::{CqHandle, QpHandle, SrqHandle};

/// An event of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion was lost because its queue was full; the queue pairs on it are in error.
    CqOverrun(CqHandle),
    /// A packet arrived on a queue pair that waits in RTR: the peer has connected.
    CommEstablished(QpHandle),
    /// The send queue is empty after a transition to SQD.
    SqDrained(QpHandle),
    /// A queue pair on a shared receive queue took its last request before going to error.
    LastWqeReached(QpHandle),
    /// A queue pair found an error that no work request can report; it is in error.
    QpFatal(QpHandle),
    /// A peer sent a malformed request; the queue pair is in error.
    QpRequestError(QpHandle),
    /// A peer was refused access; the queue pair is in error.
    QpAccessError(QpHandle),
    /// A shared receive queue has fewer requests than its limit; the limit is disarmed.
    SrqLimitReached(SrqHandle),
    /// The port carries packets.
    PortActive,
    /// The port does not carry packets.
    PortError,
    /// The port's LID or GID has changed, see [`Device::port`](crate::Device::port): peers need the new one.
    PortAddressChanged,
    /// The device is unusable; every outstanding request ends with status `Fatal`.
    DeviceFatal,
}

/// The object of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventObject {
    /// A queue pair.
    Qp(QpHandle),
    /// A completion queue.
    Cq(CqHandle),
    /// A shared receive queue.
    Srq(SrqHandle),
    /// The port.
    Port,
    /// The device as a whole.
    Device,
}

impl AsyncEvent {
    /// The object that the event is about.
    pub const fn object(&self) -> EventObject {
        match *self {
            Self::CqOverrun(cq) => EventObject::Cq(cq),
            Self::CommEstablished(qp)
            | Self::SqDrained(qp)
            | Self::LastWqeReached(qp)
            | Self::QpFatal(qp)
            | Self::QpRequestError(qp)
            | Self::QpAccessError(qp) => EventObject::Qp(qp),
            Self::SrqLimitReached(srq) => EventObject::Srq(srq),
            Self::PortActive | Self::PortError | Self::PortAddressChanged => EventObject::Port,
            Self::DeviceFatal => EventObject::Device,
        }
    }
}

/// Events on their way from a device to the program, and the wakers of the tasks that wait for them.
///
/// A device keeps it behind a lock of its own, and calls the wakers that it gets from here once it holds no lock: a
/// waker may use the device at once.
#[derive(Debug, Default)]
pub struct EventQueue {
    events: VecDeque<AsyncEvent>,
    dropped: u64,
    waiters: WakerSet,
}

impl EventQueue {
    /// The most waiting events; beyond it the oldest are dropped, and counted.
    pub const MAX_EVENTS: usize = 4096;
    /// The most waiting wakers, as in every [`WakerSet`].
    pub const MAX_WAITERS: usize = WakerSet::MAX;

    /// Appends an event. Returns the wakers that waited for an event; the caller wakes each.
    #[must_use = "each is to be woken"]
    pub fn push(&mut self, event: AsyncEvent) -> Vec<Waker> {
        if self.events.len() == Self::MAX_EVENTS {
            self.events.pop_front();
            self.dropped += 1;
        }
        self.events.push_back(event);
        self.waiters.take()
    }
    /// Takes the oldest event.
    pub fn pop(&mut self) -> Option<AsyncEvent> {
        self.events.pop_front()
    }
    /// Whether no event waits.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
    /// The number of dropped events.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
    /// Registers a waker, which the next [`push`](Self::push) returns with all others; as [`WakerSet::add`], it leaves
    /// one that is there already. Returns a waker that the caller wakes now: this one if an event waits already, or one
    /// that loses its place to this one.
    #[must_use = "it is to be woken"]
    pub fn wait(&mut self, waker: &mut Option<Waker>) -> Option<Waker> {
        if self.events.is_empty() { self.waiters.add(waker) } else { waker.take() }
    }
}

/// A set of wakers of the tasks that wait for the same event, each once. The waker of a dropped future stays until the
/// next [`take`](Self::take), so the set has a limit.
///
/// A clone, a drop and a wake of a program's waker may run any code of the program, so none of them is done here: the
/// caller does them once it holds no lock.
#[derive(Debug, Default)]
pub struct WakerSet(Vec<Waker>);

impl WakerSet {
    /// The most waiting wakers. Beyond it the waker that has waited longest is woken, and its task may ask again.
    pub const MAX: usize = 1024;

    /// Takes a waker; one that is in the set already is left to be dropped. If the set is full, returns the waker that
    /// loses its place, which the caller wakes.
    #[must_use = "it is to be woken"]
    pub fn add(&mut self, waker: &mut Option<Waker>) -> Option<Waker> {
        let new = waker.take_if(|waker| !self.0.iter().any(|w| w.will_wake(waker)))?;
        let longest = (self.0.len() == Self::MAX).then(|| self.0.remove(0));
        self.0.push(new);
        longest
    }
    /// Takes all wakers; the caller wakes each.
    #[must_use = "each is to be woken"]
    pub fn take(&mut self) -> Vec<Waker> {
        core::mem::take(&mut self.0)
    }
    /// Whether there is no waker to call.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The waker of the task that waits for something, behind a lock.
///
/// A clone and a drop of a program's waker may run any code of the program. Neither is done under the slot's lock, nor by
/// [`get`](Self::get), which a device may call under a lock of its own.
#[derive(Debug, Default)]
pub struct WakerSlot(Mutex<Option<Arc<Kept>>>);

impl WakerSlot {
    /// Puts a waker in the place of the one before. The caller holds no lock.
    pub fn set(&self, waker: &Waker) {
        if self.lock().as_ref().is_some_and(|kept| kept.0.will_wake(waker)) {
            return;
        }
        let kept = Arc::new(Kept(waker.clone()));
        let before = self.lock().replace(kept);
        drop(before);
    }
    /// A waker that wakes the task; the caller calls and drops it once it holds no lock.
    pub fn get(&self) -> Option<Waker> {
        self.lock().clone().map(Waker::from)
    }
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Kept>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A program's waker; clones of the waker that is made of this one count a reference.
#[derive(Debug)]
struct Kept(Waker);

impl Wake for Kept {
    fn wake(self: Arc<Self>) {
        self.0.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use test_support::wakers;

    use super::*;

    struct Nobody;
    impl Wake for Nobody {
        fn wake(self: Arc<Self>) {}
    }
    /// A clone, as the clones of one may have another table of functions than the waker itself; then `will_wake`
    /// knows the clones only from each other.
    fn waker() -> Waker {
        Waker::from(Arc::new(Nobody)).clone()
    }
    fn same(got: &[Waker], expected: &[&Waker]) -> bool {
        got.len() == expected.len() && got.iter().zip(expected).all(|(g, e)| g.will_wake(e))
    }

    #[test]
    fn the_oldest_events_are_dropped_beyond_the_limit() {
        let mut q = EventQueue::default();
        assert!(q.is_empty() && q.pop().is_none());
        assert!(q.push(AsyncEvent::PortError).is_empty());
        for _ in 0..EventQueue::MAX_EVENTS {
            assert!(q.push(AsyncEvent::PortActive).is_empty());
        }
        assert_eq!((q.pop(), q.dropped(), q.is_empty()), (Some(AsyncEvent::PortActive), 1, false));
        for _ in 0..3 {
            assert!(q.push(AsyncEvent::PortActive).is_empty());
        }
        assert_eq!(q.dropped(), 3);
    }

    #[test]
    fn each_who_waits_is_woken_once() {
        let (mut q, a, b) = (EventQueue::default(), waker(), waker());
        assert!([&a, &b, &a].into_iter().all(|w| q.wait(&mut Some(w.clone())).is_none()));
        assert!(same(&q.push(AsyncEvent::PortError), &[&a, &b]));
        assert!(q.push(AsyncEvent::PortError).is_empty(), "nobody has asked anew");
        let now = q.wait(&mut Some(a.clone()));
        assert!(same(now.as_slice(), &[&a]), "an event waits for it");
        q.pop();
        q.pop();
        assert!(q.wait(&mut Some(a.clone())).is_none() && same(&q.push(AsyncEvent::PortActive), &[&a]));
    }

    #[test]
    #[cfg_attr(miri, ignore = "half a million comparisons take miri minutes")]
    fn beyond_the_limit_the_one_that_has_waited_longest_is_woken() {
        let mut q = EventQueue::default();
        let waiters = Vec::from_iter((0..EventQueue::MAX_WAITERS).map(|_| waker()));
        assert!(waiters.iter().all(|w| q.wait(&mut Some(w.clone())).is_none()));
        let last = waker();
        assert!(same(q.wait(&mut Some(last.clone())).as_slice(), &[&waiters[0]]));
        let woken = q.push(AsyncEvent::PortError);
        assert!(woken.len() == EventQueue::MAX_WAITERS && woken.last().is_some_and(|w| w.will_wake(&last)));
    }

    #[test]
    fn a_set_runs_no_code_of_a_waker() {
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        let waker = wakers::running(move || _ = count.fetch_add(1, Ordering::Relaxed));
        let (mut q, mut own) = (EventQueue::default(), [(); 3].map(|()| Some(waker.clone())));
        let before = runs.load(Ordering::Relaxed);
        assert!(own.iter_mut().take(2).all(|own| q.wait(own).is_none()));
        assert_eq!(own.each_ref().map(Option::is_some), [false, true, true], "one waits already");
        let woken = q.push(AsyncEvent::PortError);
        let now = q.wait(&mut own[2]);
        assert_eq!((woken.len(), now.is_some(), own[2].is_some()), (1, true, false));
        assert_eq!(runs.load(Ordering::Relaxed), before);
    }

    #[test]
    fn the_waker_of_a_slot_is_cloned_once_and_without_the_lock() {
        let (slot, runs) = (Arc::new(WakerSlot::default()), Arc::new(AtomicUsize::new(0)));
        let (same, count) = (Arc::clone(&slot), Arc::clone(&runs));
        let waker = wakers::running(move || {
            count.fetch_add(1, Ordering::Relaxed);
            assert!(same.0.try_lock().is_ok(), "a clone that polls would wait for itself");
        });
        assert!(slot.get().is_none());
        slot.set(&waker);
        let got = [(); 3].map(|()| slot.get().unwrap());
        assert!(got[0].will_wake(&got[1]));
        got.into_iter().for_each(Waker::wake);
        assert_eq!(runs.load(Ordering::Relaxed), 1);
        slot.set(Waker::noop());
        assert_eq!(runs.load(Ordering::Relaxed), 2, "it is dropped, without the lock");
    }

    #[test]
    fn the_waker_of_a_slot_is_that_which_was_set_last() {
        struct Counts(AtomicUsize);
        impl Wake for Counts {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let all = [(); 2].map(|()| Arc::new(Counts(0.into())));
        let slot = WakerSlot::default();
        for counts in [&all[0], &all[0], &all[1]] {
            slot.set(&Arc::clone(counts).into());
        }
        slot.get().unwrap().wake();
        assert_eq!([0, 1].map(|i| all[i].0.load(Ordering::Relaxed)), [0, 1]);
        assert_eq!(Arc::strong_count(&all[0]), 1, "the slot has it no more");
    }
}
