//! Calls of a Portals engine of the layer above, by one thread at a time, and the removal of an engine.
//!
//! A thread with work for an engine calls the engine ([`RunWord::call`]) and raises the device's [`Attention`]. A
//! thread that finds the attention raised clears it, and claims the called engines. If a call comes while an engine
//! runs, the running thread finds the call at the end of the run. So no call is lost, and only a thread that removes an
//! engine waits for a run.

use core::task::Waker;

use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering, lock, yield_now};

/// Completions came to its queue.
pub(crate) const CAME: u32 = 1;
/// It said that more is left, or somebody asks for a run.
pub(crate) const ASKED: u32 = 2;
const RUNNING: u32 = 4;
/// Taken away.
const OVER: u32 = 8;
const CALLED: u32 = CAME | ASKED;

/// Runs in a row by one who found it called, before that is left to the next.
pub(crate) const ROUNDS: u32 = 4;
/// Looks at a run of another's before the CPU is given away.
const SPINS: u32 = 64;

/// No time.
pub(crate) const NEVER: u64 = u64::MAX;

/// What all turns of a device look at: whether anything but the engine is to be seen to.
pub(crate) struct Attention {
    /// Somebody may sleep on a descriptor: how many, and [`DUE`](Self::DUE) and [`WAKE`](Self::WAKE).
    word: AtomicU32,
    /// The threads that may sleep on the device's own descriptor, each of them counted there.
    #[cfg_attr(loom, allow(dead_code))] // the device is not part of the models
    sleepers: Mutex<Vec<usize>>,
    /// To be called once no lock of the adapter is held, as each may use the adapter at once.
    wakers: Mutex<Vec<Waker>>,
    /// When the next run is due even if nobody calls, in nanoseconds.
    next_at: AtomicU64,
    /// Runs so far.
    runs: AtomicU64,
}

impl Attention {
    /// Something was called and is still to be run.
    const DUE: u32 = 1 << 31;
    /// Wakers are to be called.
    const WAKE: u32 = 1 << 30;

    pub(crate) fn new() -> Self {
        let (word, sleepers, wakers) = (AtomicU32::new(0), Mutex::default(), Mutex::default());
        Self { word, sleepers, wakers, next_at: AtomicU64::new(NEVER), runs: AtomicU64::new(0) }
    }
    /// Has it called by whoever gives the engine back.
    pub(crate) fn wake_later(&self, waker: Waker) {
        let mut wakers = lock(&self.wakers);
        wakers.push(waker);
        self.word.fetch_or(Self::WAKE, Ordering::Relaxed);
    }
    /// Calls all who are to be woken; by who holds no lock of the adapter.
    #[inline]
    pub(crate) fn wake_now(&self) {
        if self.word.load(Ordering::Relaxed) & Self::WAKE != 0 {
            self.call_wakers();
        }
    }
    #[cold]
    fn call_wakers(&self) {
        let next = || {
            let mut wakers = lock(&self.wakers);
            let waker = wakers.pop();
            if wakers.is_empty() {
                // Under the lock, so that the flag stands while there are any.
                self.word.fetch_and(!Self::WAKE, Ordering::Relaxed);
            }
            waker
        };
        while let Some(waker) = next() {
            waker.wake();
        }
    }
    /// Whether there is anything at all.
    #[inline(always)]
    pub(crate) fn is_wanted(&self) -> bool {
        self.word.load(Ordering::Relaxed) != 0
    }
    /// Whether there is anything but sleepers.
    #[inline(always)]
    pub(crate) fn is_wanted_now(&self) -> bool {
        self.word.load(Ordering::Relaxed) & (Self::DUE | Self::WAKE) != 0
    }
    /// Whether somebody may sleep. He is counted before he takes the engine's lock to prepare that.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.word.load(Ordering::Relaxed) & !(Self::DUE | Self::WAKE) != 0
    }
    pub(crate) fn add_waiter(&self) {
        self.word.fetch_add(1, Ordering::Relaxed);
    }
    pub(crate) fn remove_waiter(&self) {
        self.word.fetch_sub(1, Ordering::Relaxed);
    }
    /// This thread may sleep on the device's descriptor: it is a waiter until it turns the device.
    #[cfg(not(loom))]
    pub(crate) fn sleeps(&self) {
        let mut sleepers = lock(&self.sleepers);
        if !sleepers.contains(&this_thread()) {
            sleepers.push(this_thread());
            self.add_waiter();
        }
    }
    /// This thread turns the device, and sleeps no more.
    #[cfg(not(loom))]
    pub(crate) fn sleeps_no_more(&self) {
        if self.has_waiters() {
            let mut sleepers = lock(&self.sleepers);
            if let Some(at) = sleepers.iter().position(|thread| *thread == this_thread()) {
                sleepers.swap_remove(at);
                self.remove_waiter();
            }
        }
    }
    /// Something was called. SeqCst, as is the look of a thread that is about to sleep, and has said so.
    pub(crate) fn raise(&self) {
        self.word.fetch_or(Self::DUE, Ordering::SeqCst);
    }
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.word.load(Ordering::SeqCst) & Self::DUE != 0
    }
    /// Takes it down; who does looks at all that may have been called.
    pub(crate) fn take_due(&self) -> bool {
        // Acquire: pairs with `raise`, so that what was called before it is seen.
        self.is_due() && self.word.fetch_and(!Self::DUE, Ordering::AcqRel) & Self::DUE != 0
    }
    /// It is this late, in nanoseconds.
    #[inline(always)]
    pub(crate) fn note_time(&self, now: u64) {
        if now >= self.next_at() {
            self.raise();
        }
    }
    #[inline(always)]
    pub(crate) fn next_at(&self) -> u64 {
        self.next_at.load(Ordering::Relaxed)
    }
    /// Returns whether it is earlier than it was.
    pub(crate) fn set_next_at(&self, at: u64) -> bool {
        at < self.next_at.swap(at, Ordering::Relaxed)
    }
    pub(crate) fn count_run(&self) {
        self.runs.fetch_add(1, Ordering::Relaxed);
    }
    pub(crate) fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }
}

/// The state of one thing that is run.
pub(crate) struct RunWord {
    word: AtomicU32,
    /// Who runs it; 0 while that is not known.
    runner: AtomicUsize,
}

impl RunWord {
    pub(crate) fn new() -> Self {
        Self { word: AtomicU32::new(0), runner: AtomicUsize::new(0) }
    }
    /// Asks for a run. The caller raises the device's attention, or is who takes care of it.
    pub(crate) fn call(&self, why: u32) {
        // Release: pairs with the Acquire in `claim`, so that the run sees what it is called for.
        self.word.fetch_or(why, Ordering::Release);
    }
    /// What came has been taken.
    pub(crate) fn all_taken(&self) {
        self.word.fetch_and(!CAME, Ordering::Relaxed);
    }
    /// Whether it is called and nobody is at it.
    pub(crate) fn is_waiting(&self) -> bool {
        let word = self.word.load(Ordering::Acquire);
        word & CALLED != 0 && word & (RUNNING | OVER) == 0
    }
    /// Runs it if it was called (or in any case, `at_once`) and nobody is at it, and again while it is called
    /// meanwhile, for some rounds. `run` returns whether more is left. Returns whether it ran. Who ran it looks
    /// [whether it waits](Self::is_waiting) again.
    pub(crate) fn run(&self, mut at_once: bool, me: usize, mut run: impl FnMut() -> bool) -> bool {
        let (mut ran, mut more) = (false, false);
        for _ in 0..ROUNDS {
            if !self.claim(at_once) {
                break;
            }
            (at_once, ran) = (false, true);
            self.runner.store(me, Ordering::Relaxed);
            let running = Running(self);
            more |= run();
            drop(running);
        }
        if more {
            // For whoever moves the device next: between two runs others have their turn.
            self.call(ASKED);
        }
        ran
    }
    fn claim(&self, at_once: bool) -> bool {
        let claim = |word| {
            let may = word & (RUNNING | OVER) == 0 && (at_once || word & CALLED != 0);
            may.then_some(RUNNING)
        };
        self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, claim).is_ok()
    }
    /// Takes it away: no run begins any more, and none is under way but one of this thread's.
    pub(crate) fn retire(&self, me: usize) {
        self.word.fetch_or(OVER, Ordering::AcqRel);
        let mut looks = 0_u32;
        // Acquire: pairs with the end of the run.
        while self.word.load(Ordering::Acquire) & RUNNING != 0 && self.runner.load(Ordering::Relaxed) != me {
            looks = looks.wrapping_add(1);
            if cfg!(loom) || looks.is_multiple_of(SPINS) { yield_now() } else { core::hint::spin_loop() }
        }
    }
}

/// A run, which also ends in a panic.
struct Running<'a>(&'a RunWord);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // Before it is over, so that a later run is never taken for this thread's.
        self.0.runner.store(0, Ordering::Relaxed);
        self.0.word.fetch_and(!RUNNING, Ordering::AcqRel);
    }
}

/// A number of this thread, which no other that lives has.
#[cfg(not(loom))]
pub(crate) fn this_thread() -> usize {
    thread_local!(static AT: u8 = const { 0 });
    AT.with(|at| core::ptr::from_ref(at).addr())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_called_again_runs_again_but_not_for_ever() {
        let word = RunWord::new();
        let mut runs = 0;
        assert!(!word.run(false, 1, || unreachable!("nobody called")));
        word.call(CAME);
        assert!(word.run(false, 1, || {
            runs += 1;
            assert!(!word.run(true, 1, || unreachable!("it runs")));
            word.call(CAME);
            false
        }));
        assert_eq!(runs, ROUNDS);
        assert!(word.is_waiting());
        word.all_taken();
        assert!(!word.is_waiting());
    }

    #[test]
    fn a_run_that_leaves_more_is_called_but_not_repeated() {
        let word = RunWord::new();
        let mut runs = 0;
        word.call(CAME);
        assert!(word.run(false, 1, || {
            runs += 1;
            true
        }));
        word.all_taken();
        assert_eq!((runs, word.is_waiting()), (1, true), "what it asks for itself is not what came");
        assert!(word.run(false, 1, || false));
        assert!(!word.is_waiting());
    }

    #[test]
    fn what_is_taken_away_within_its_own_run_ends_with_it() {
        let word = RunWord::new();
        assert!(word.run(true, 1, || {
            word.retire(1);
            true
        }));
        assert!(!word.is_waiting());
        assert!(!word.run(true, 1, || unreachable!("it was taken away")));
    }

    #[test]
    fn a_run_that_panics_is_over() {
        let word = RunWord::new();
        let run = std::panic::AssertUnwindSafe(|| word.run(true, 1, || panic!("a fault of the layer above")));
        assert!(std::panic::catch_unwind(run).is_err());
        word.retire(2);
    }

    #[test]
    fn wakers_are_called_once_and_without_a_lock() {
        use std::sync::{Arc, Weak};
        struct Again(Weak<Attention>, AtomicU32);
        impl std::task::Wake for Again {
            fn wake(self: Arc<Self>) {
                let attention = self.0.upgrade().unwrap();
                if self.1.fetch_add(1, Ordering::Relaxed) == 0 {
                    attention.wake_later(self.into());
                }
                attention.wake_now();
            }
        }
        let attention = Arc::new(Attention::new());
        let [one, two] = [(); 2].map(|()| Arc::new(Again(Arc::downgrade(&attention), AtomicU32::new(0))));
        attention.wake_later(one.clone().into());
        attention.wake_later(two.clone().into());
        assert!(attention.is_wanted() && !attention.has_waiters() && !attention.is_due());
        attention.wake_now();
        assert!(!attention.is_wanted());
        assert_eq!([&one, &two].map(|w| w.1.load(Ordering::Relaxed)), [2, 2]);
    }

    #[test]
    fn attention_tells_waiters_from_what_is_due() {
        let attention = Attention::new();
        assert!(!attention.is_wanted());
        attention.add_waiter();
        assert!(attention.is_wanted() && attention.has_waiters() && !attention.take_due());
        attention.set_next_at(7);
        attention.note_time(6);
        assert!(!attention.is_due());
        attention.note_time(7);
        attention.remove_waiter();
        assert!(!attention.has_waiters() && attention.is_wanted());
        assert!(attention.take_due() && !attention.is_wanted());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Arc, UnsafeCell};

    struct Model {
        attention: Attention,
        word: RunWord,
        /// Left by those who call, taken by the run.
        came: AtomicU32,
        /// By the run alone.
        taken: UnsafeCell<u32>,
    }
    // SAFETY: `taken` is reached by the run, which is one thread's at a time; loom sees to it.
    #[allow(unsafe_code)]
    unsafe impl Sync for Model {}
    #[allow(unsafe_code)]
    // SAFETY: as above.
    unsafe impl Send for Model {}

    impl Model {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                attention: Attention::new(),
                word: RunWord::new(),
                came: AtomicU32::new(0),
                taken: UnsafeCell::new(0),
            })
        }
        /// What a turn does that delivers one completion.
        fn deliver(&self, me: usize) {
            self.came.fetch_add(1, Ordering::Relaxed);
            self.word.call(CAME);
            self.attention.raise();
            self.run_due(me);
        }
        fn run_due(&self, me: usize) {
            if self.attention.take_due() {
                self.word.run(false, me, || {
                    let came = self.came.swap(0, Ordering::Relaxed);
                    // SAFETY: of `Sync`.
                    #[allow(unsafe_code)]
                    self.taken.with_mut(|t| unsafe { *t += came });
                    false
                });
                if self.word.is_waiting() {
                    self.attention.raise();
                }
            }
        }
        fn taken(&self) -> u32 {
            // SAFETY: of `Sync`; nobody runs it any more.
            #[allow(unsafe_code)]
            self.taken.with(|t| unsafe { *t })
        }
    }

    /// Two threads deliver. What either brought is taken when both are done, or attention is still raised.
    #[test]
    fn no_call_is_lost_and_one_thread_runs_at_a_time() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let m = Model::new();
            let other = {
                let m = m.clone();
                loom::thread::spawn(move || m.deliver(2))
            };
            m.deliver(1);
            other.join().unwrap();
            m.run_due(1);
            assert_eq!(m.taken(), 2);
            assert!(!m.word.is_waiting());
        });
    }

    /// One thread delivers while another takes the engine away: behind that nothing of it runs.
    #[test]
    fn nothing_runs_once_it_was_taken_away() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let m = Model::new();
            // This thread ran it before.
            m.deliver(1);
            let other = {
                let m = m.clone();
                loom::thread::spawn(move || m.deliver(2))
            };
            m.word.retire(1);
            // Loom fails this if a run is under way.
            let taken = m.taken();
            other.join().unwrap();
            assert_eq!(m.taken(), taken);
        });
    }
}
