//! The lock around the engine: who can't have it leaves word, and who has it looks once more.
//!
//! A thread that posts must not wait for another that turns (but once for a favourite, see below), and what it posted
//! must not lie until
//! the next turn. So lock and word are one atomic: who finds it held marks it, and who unlocks it finds
//! the mark by the same exchange and runs once more. Taking and giving back cost one exchange each.
//!
//! **The favourite.** Most engines are turned by one thread for long. Once a thread has had the lock often enough in a
//! row, it is left with it: the lock's state names the thread, which then enters by a store to a word of its own and
//! leaves by another, without an exchange, which would wait for its stores to peers' memory. Who else wants the lock
//! takes the favour back: it changes the state, has all processors run a barrier ([`Barrier`]), and waits until the
//! favourite is not inside. Each time it is taken back, more is needed to be favoured again. The control path favours
//! nobody, so that an adapter's thread which stands in for the program does not have to be turned out.
//!
//! Invariants of the unsafe code:
//! 1. The value is reached only by who moved `state` from `FREE` to `HELD`, or from a favourite over `REVOKING` to
//!    `HELD` and then found the favourite outside, until it moves it on; or by the favourite whom `state` names, after it
//!    has said that it is inside and then found its name still there, until it says that it is not. [`Guard`] does both,
//!    so the two come in pairs, also when a turn panics.
//! 2. `state` is taken with Acquire and given back with Release. A mark is made with Release and found
//!    with Acquire, so that the next turn sees what was posted before it. The favourite leaves with Release, and who
//!    takes the favour back finds that with Acquire.
//! 3. A [`ThreadWord`] is never freed, and is one thread's at a time; only that thread writes to it.
#![allow(unsafe_code)]

use core::ptr;

use crate::barrier::Barrier;
use crate::sync::{AtomicPtr, Ordering, UnsafeCell, yield_now};
use crate::thread_word::{ThreadWord, this_thread};

const FREE: *mut ThreadWord = ptr::null_mut();
const HELD: *mut ThreadWord = ptr::without_provenance_mut(1);
/// Held, and word was left.
const MARKED: *mut ThreadWord = ptr::without_provenance_mut(2);
/// The favour is being taken back.
const REVOKING: *mut ThreadWord = ptr::without_provenance_mut(3);
/// Looks at a held lock before the CPU is given to somebody else.
const SPINS: u32 = 64;
/// Turns in a row that make a favourite, at first and at most.
const FAVOUR: (u32, u32) = (64, 1 << 20);

/// The lock, and the value within.
pub struct TurnLock<T> {
    /// `FREE`, `HELD`, `MARKED`, `REVOKING`, or the favourite.
    state: AtomicPtr<ThreadWord>,
    barrier: Barrier,
    value: UnsafeCell<Inner<T>>,
}

struct Inner<T> {
    value: T,
    /// Who had the lock last, and how often in a row.
    last: *const ThreadWord,
    runs: u32,
    /// How often one has to, to be favoured.
    needed: u32,
}

// SAFETY: (1) one thread at a time reaches the value, and (2) orders one after the other; (3) the pointer is to a static.
unsafe impl<T: Send> Sync for TurnLock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for TurnLock<T> {}

/// The lock, held; by a favourite as such.
pub struct Guard<'a, T> {
    lock: &'a TurnLock<T>,
    favourite: Option<&'static ThreadWord>,
}

impl<T> Guard<'_, T> {
    #[inline(always)]
    fn run<R>(&mut self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: (1) a guard exists only while the lock is held, and it is borrowed for the call.
        self.lock.value.with_mut(|p| f(unsafe { &mut (*p).value }))
    }
    /// The value, of which nobody else has a reference meanwhile.
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn value(&mut self) -> &mut T {
        // SAFETY: (1) as in `run`.
        self.lock.value.with_mut(|p| unsafe { &mut (*p).value })
    }
    /// Gives the lock back. Returns whether word was left: then [`TurnLock::turn_or_leave_word`] is due.
    #[must_use]
    #[inline(always)]
    pub fn unlock(self) -> bool {
        let Self { lock, favourite } = self;
        core::mem::forget(self);
        match favourite {
            Some(me) => me.leave(),
            None => lock.give_back(),
        }
    }
    /// As [`unlock`](Self::unlock), and makes nobody the favourite.
    fn unlock_unfavoured(self) -> bool {
        let Self { lock, favourite } = self;
        core::mem::forget(self);
        match favourite {
            Some(me) => me.leave(),
            None => lock.state.swap(FREE, Ordering::AcqRel) == MARKED,
        }
    }
}
impl<T> Drop for Guard<'_, T> {
    /// After a panic in a turn, a bug that was reported: the others may still close down.
    fn drop(&mut self) {
        match self.favourite {
            Some(me) => _ = me.leave(),
            None => _ = self.lock.state.swap(FREE, Ordering::AcqRel),
        }
    }
}

/// Between two looks at a lock that another has.
fn wait(looks: &mut u32) {
    *looks = looks.wrapping_add(1);
    if looks.is_multiple_of(SPINS) { yield_now() } else { core::hint::spin_loop() }
}

impl<T> TurnLock<T> {
    /// A lock that nobody holds.
    pub fn new(value: T) -> Self {
        Self::with_barrier(value, Barrier::of_system(), FAVOUR.0)
    }
    fn with_barrier(value: T, barrier: Barrier, needed: u32) -> Self {
        let inner = Inner { value, last: ptr::null(), runs: 0, needed };
        Self { state: AtomicPtr::new(FREE), barrier, value: UnsafeCell::new(inner) }
    }

    /// By who holds it and is no favourite. Returns whether word was left.
    #[inline]
    fn give_back(&self) -> bool {
        let Some(me) = self.count_run() else { return self.state.swap(FREE, Ordering::AcqRel) == MARKED };
        let name = ptr::from_ref(me).cast_mut();
        if self.state.compare_exchange(HELD, name, Ordering::Release, Ordering::Relaxed).is_ok() {
            return false;
        }
        self.state.swap(FREE, Ordering::AcqRel) == MARKED
    }
    /// Counts that this thread has had the lock. `Some`: it is to be favoured.
    #[inline]
    fn count_run(&self) -> Option<&'static ThreadWord> {
        // Where both sides run a barrier there is nothing to be won.
        if !cfg!(loom) && self.barrier == Barrier::Fence {
            return None;
        }
        let me = this_thread()?;
        // SAFETY: (1) our caller holds the lock.
        self.value.with_mut(|p| unsafe {
            let inner = &mut *p;
            let again = ptr::eq(inner.last, me);
            inner.runs = if again { inner.runs + 1 } else { 1 };
            inner.last = me;
            (inner.runs >= inner.needed).then(|| inner.runs = 0).map(|()| me)
        })
    }

    /// Runs `f` if nobody holds the lock, and again while word was left meanwhile; else leaves word, so
    /// that the holder runs its own once more. `None`: another holder does the work.
    #[inline]
    pub fn turn_or_leave_word<R>(&self, mut f: impl FnMut(&mut T) -> R) -> Option<R> {
        let (mut result, mut looks) = (None, 0);
        loop {
            match self.lock_once() {
                Ok(mut guard) => {
                    result = Some(guard.run(&mut f));
                    if !guard.unlock() {
                        return result;
                    }
                }
                Err(held) if self.leaves_word(held) => return result,
                Err(_) => wait(&mut looks),
            }
        }
    }

    /// The lock, if nobody holds it.
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.lock_once().ok()
    }

    /// Waits for the lock and runs `f`: the control path. A turn is bounded, so the wait is. `again` is run
    /// for word left meanwhile.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R, again: impl FnMut(&mut T)) -> R {
        let mut looks = 0_u32;
        let mut guard = loop {
            if let Ok(guard) = self.lock_once() {
                break guard;
            }
            wait(&mut looks);
        };
        let r = guard.run(f);
        if guard.unlock_unfavoured() {
            self.turn_or_leave_word(again);
        }
        r
    }

    /// Leaves word for who holds the lock, as the state says. `false`: it is to be tried again.
    fn leaves_word(&self, held: *mut ThreadWord) -> bool {
        if held == HELD || held == MARKED {
            return self.state.compare_exchange(held, MARKED, Ordering::Release, Ordering::Relaxed).is_ok();
        }
        // It is this thread itself, within its turn.
        this_thread().is_some_and(|me| ptr::eq(me, held) && me.leave_word(self.address()))
    }

    fn address(&self) -> *mut () {
        ptr::from_ref(self).cast_mut().cast()
    }

    /// The lock, or the state that says that another has it.
    #[inline(always)]
    fn lock_once(&self) -> Result<Guard<'_, T>, *mut ThreadWord> {
        let state = self.state.load(Ordering::Relaxed);
        if state > REVOKING {
            return self.enter(state);
        }
        self.state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .map(|_| Guard { lock: self, favourite: None })
    }

    /// Enters as the favourite, or takes the favour back.
    #[inline(always)]
    fn enter(&self, favourite: *mut ThreadWord) -> Result<Guard<'_, T>, *mut ThreadWord> {
        if let Some(me) = this_thread().filter(|me| ptr::eq(*me, favourite)) {
            match me.inside() {
                inside if inside.is_null() => {}
                inside if inside == self.address() => return Err(favourite),
                // It has one word only.
                _ => return self.revoke(favourite),
            }
            me.enter(self.address());
            self.barrier.light();
            // Nobody else makes this thread the favourite, so the name is still there, or never comes back meanwhile.
            if self.state.load(Ordering::Relaxed) == favourite {
                return Ok(Guard { lock: self, favourite: Some(me) });
            }
            me.leave();
            return Err(REVOKING);
        }
        self.revoke(favourite)
    }

    #[cold]
    fn revoke(&self, favourite: *mut ThreadWord) -> Result<Guard<'_, T>, *mut ThreadWord> {
        self.state.compare_exchange(favourite, REVOKING, Ordering::Acquire, Ordering::Relaxed)?;
        self.barrier.heavy();
        // SAFETY: (3) it was some thread's, and is never freed.
        let word = unsafe { &*favourite.cast_const() };
        let mut looks = 0_u32;
        while word.is_within(self.address()) {
            wait(&mut looks);
        }
        self.state.store(HELD, Ordering::Relaxed);
        // SAFETY: (1) the favourite is outside, and finds the state changed when it enters.
        self.value.with_mut(|p| unsafe { (*p).needed = ((*p).needed * 2).min(FAVOUR.1) });
        Ok(Guard { lock: self, favourite: None })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// Runs `f` if nobody holds the lock.
    fn try_with<T, R>(lock: &TurnLock<T>, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut guard = lock.try_lock()?;
        let result = f(guard.value());
        if guard.unlock() {
            lock.turn_or_leave_word(|_| ());
        }
        Some(result)
    }

    fn is_favoured<T>(lock: &TurnLock<T>) -> bool {
        lock.state.load(Ordering::Relaxed) > REVOKING
    }

    /// Enough turns to be favoured, where the system has what that needs.
    fn favoured() -> Option<TurnLock<u32>> {
        let lock = TurnLock::new(0);
        for _ in 0..FAVOUR.0 {
            lock.turn_or_leave_word(|n| *n += 1);
        }
        is_favoured(&lock).then_some(lock)
    }

    #[test]
    fn who_turns_often_is_favoured_until_another_comes() {
        let Some(lock) = favoured() else { return };
        assert_eq!(try_with(&lock, |n| *n), Some(FAVOUR.0));
        let other = || assert_eq!(try_with(&lock, |n| *n), Some(FAVOUR.0));
        std::thread::scope(|s| s.spawn(other).join().unwrap());
        assert!(!is_favoured(&lock));
        for _ in 0..FAVOUR.0 {
            lock.turn_or_leave_word(|n| *n += 1);
        }
        assert!(!is_favoured(&lock), "it takes more turns now");
        for _ in 0..FAVOUR.0 {
            lock.turn_or_leave_word(|n| *n += 1);
        }
        assert!(is_favoured(&lock));
    }

    #[test]
    fn a_favourite_within_its_turn_leaves_word_for_itself() {
        let Some(lock) = favoured() else { return };
        let mut turns = 0;
        let result = lock.turn_or_leave_word(|n| {
            turns += 1;
            assert_eq!(try_with(&lock, |_| ()), None, "it is inside");
            if turns == 1 {
                assert_eq!(lock.turn_or_leave_word(|_| unreachable!("it is inside")), None::<()>);
            }
            *n
        });
        assert_eq!((result, turns), (Some(FAVOUR.0), 2));
    }

    #[test]
    fn a_favourite_within_another_lock_enters_nevertheless() {
        let (Some(one), Some(two)) = (favoured(), favoured()) else { return };
        let sum = try_with(&one, |a| two.turn_or_leave_word(|b| *a + *b));
        assert_eq!(sum, Some(Some(2 * FAVOUR.0)));
        assert!(is_favoured(&one) && !is_favoured(&two));
    }

    #[test]
    fn the_next_thread_has_the_word_of_one_that_ended() {
        let lock = TurnLock::new(0_u32);
        for _ in 0..8 {
            std::thread::scope(|s| {
                s.spawn(|| (0..2 * FAVOUR.0).for_each(|_| _ = lock.turn_or_leave_word(|n| *n += 1)));
            });
        }
        assert_eq!(lock.with(|n| *n, |_| ()), 16 * FAVOUR.0);
    }

    /// Two threads that take the favour from each other again and again, with no atomics in the value.
    #[test]
    fn one_thread_at_a_time_is_inside() {
        let lock = TurnLock::with_barrier([0_u64; 8], Barrier::of_system(), 4);
        let over = AtomicBool::new(false);
        let turn = || {
            let mut turns = 0;
            while !over.load(Ordering::Relaxed) {
                for _ in 0..100 {
                    let add = |v: &mut [u64; 8]| v.iter_mut().for_each(|n| *n += 1);
                    turns += u64::from(try_with(&lock, add).is_some());
                }
                std::thread::yield_now();
            }
            turns
        };
        let turns: u64 = std::thread::scope(|s| {
            let threads = [s.spawn(turn), s.spawn(turn), s.spawn(turn)];
            for _ in 0..if cfg!(miri) { 2 } else { 200 } {
                // The favour takes more each time, so it is made cheap again.
                // SAFETY: (1) under the lock.
                lock.with(|_| lock.value.with_mut(|p| unsafe { (*p).needed = 4 }), |_| ());
                std::thread::yield_now();
            }
            over.store(true, Ordering::Relaxed);
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        let counts = lock.with(|v| *v, |_| ());
        assert!(counts.iter().all(|n| *n == counts[0] && *n >= turns), "{counts:?} of {turns}");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{Arc, atomic::AtomicU32};

    /// Work is posted outside of the lock and taken inside; no posted work may be left lying once all
    /// threads are done.
    #[test]
    fn no_posted_work_is_left_lying() {
        loom::model(|| {
            let lock = Arc::new(TurnLock::new(0_u32));
            let posted = Arc::new(AtomicU32::new(0));
            let turn = |lock: &TurnLock<u32>, posted: &AtomicU32| {
                posted.fetch_add(1, Ordering::AcqRel);
                lock.turn_or_leave_word(|done| *done += posted.swap(0, Ordering::AcqRel));
            };
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let (lock, posted) = (lock.clone(), posted.clone());
                    loom::thread::spawn(move || turn(&lock, &posted))
                })
                .collect();
            for t in threads {
                t.join().unwrap();
            }
            assert_eq!(posted.load(Ordering::Acquire), 0);
            assert_eq!(lock.with(|done| *done, |_| ()), 2);
        });
    }

    /// As above, with the favour given after every turn, so that one enters as the favourite while the other takes that
    /// back.
    #[test]
    fn a_favourite_and_who_takes_it_back_are_never_both_inside() {
        // All orders would take hours; few bugs need more switches than these.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let lock = Arc::new(TurnLock::with_barrier(0_u32, Barrier::of_system(), 1));
            let posted = Arc::new(AtomicU32::new(0));
            let turn = |lock: &TurnLock<u32>, posted: &AtomicU32| {
                posted.fetch_add(1, Ordering::AcqRel);
                lock.turn_or_leave_word(|done| *done += posted.swap(0, Ordering::AcqRel));
            };
            turn(&lock, &posted);
            let other = {
                let (lock, posted) = (lock.clone(), posted.clone());
                loom::thread::spawn(move || turn(&lock, &posted))
            };
            turn(&lock, &posted);
            other.join().unwrap();
            assert_eq!(posted.load(Ordering::Acquire), 0);
            assert_eq!(lock.with(|done| *done, |_| ()), 3);
        });
    }
}
