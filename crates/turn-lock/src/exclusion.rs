//! A list that one thread copies and uses very often, while other threads rarely change it.
//!
//! Threads change the list under a lock, and count the changes as the list's version. The frequent user enters
//! ([`Exclusion::enter`]) with the version of its copy, without the lock. If the version has changed, the user copies
//! the list again ([`Exclusion::copy`]).
//!
//! Some changes need the frequent user outside ([`Exclusion::exclude`]). The user marks itself inside by a word of its
//! own, and then loads the version. The excluding thread changes the version, makes all processors execute a barrier,
//! and then loads the word. Either the user sees the changed version, and comes to the lock, or the excluding thread
//! sees the user inside, and waits until the user has left. The exclusion costs the user two plain stores.

use std::sync::PoisonError;

use crate::barrier::Barrier;
use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering, yield_now};

/// A list with the state of its frequent user.
pub struct Exclusion<T> {
    barrier: Barrier,
    list: Mutex<T>,
    /// The count of changes of `list`, and of other changes that the user has to see.
    version: AtomicU32,
    /// Not 0: the frequent user is inside.
    inside: CachePadded<AtomicU32>,
}

/// A guard: the frequent user is inside as long as this value lives.
#[must_use]
#[derive(Debug)]
pub struct Inside<'a>(&'a AtomicU32);

impl Inside<'_> {
    /// Keeps the user inside after this value is gone, until a value of [`Exclusion::inside`] is dropped.
    #[inline(always)]
    pub fn stay(self) {
        core::mem::forget(self);
    }
}

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `Exclusion::exclude`.
        self.0.store(0, Ordering::Release);
    }
}

impl<T> core::fmt::Debug for Exclusion<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let version = self.version.load(Ordering::Relaxed);
        f.debug_struct("Exclusion").field("version", &version).finish_non_exhaustive()
    }
}

impl<T> Exclusion<T> {
    /// An exclusion around a list without copies.
    pub fn new(list: T) -> Self {
        Self {
            barrier: Barrier::of_system(),
            list: Mutex::new(list),
            version: AtomicU32::new(0),
            inside: CachePadded::new(AtomicU32::new(0)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        // What it holds is whole between any two of its operations.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A version that no copy has, for a user without a copy.
    pub fn never_seen(&self) -> u32 {
        self.version.load(Ordering::Relaxed).wrapping_sub(1)
    }

    /// Enters as the frequent user, with a copy of this version. `None`: the copy is out of date, and the user has to
    /// copy the list first. For one thread only.
    #[inline(always)]
    pub fn enter(&self, version: u32) -> Option<Inside<'_>> {
        self.inside.store(1, Ordering::Relaxed);
        let inside = Inside(&self.inside);
        // Pairs with the heavy one in `exclude`.
        self.barrier.light();
        // Relaxed: what came with this version was seen when the copy was made.
        (self.version.load(Ordering::Relaxed) == version).then_some(inside)
    }

    /// The frequent user's guard again, after it [stayed](Inside::stay) inside.
    #[inline(always)]
    pub fn inside(&self) -> Inside<'_> {
        Inside(&self.inside)
    }

    /// Whether the frequent user is inside.
    pub fn is_inside(&self) -> bool {
        self.inside.load(Ordering::Relaxed) != 0
    }

    /// Copies the list, and returns the version of the copy. The call waits while another thread excludes the user. The
    /// user must not be inside.
    pub fn copy<R>(&self, copy: impl FnOnce(&T) -> R) -> (u32, R) {
        let list = self.lock();
        // Acquire: what was stored before the user was told is seen by `copy`.
        let version = self.version.load(Ordering::Acquire);
        (version, copy(&list))
    }

    /// Changes the list; the user may be inside with an old copy.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut list = self.lock();
        let done = change(&mut list);
        self.invalidate();
        done
    }

    /// Makes the user copy the list before it enters again, so that it sees earlier stores.
    pub fn invalidate(&self) {
        // Release: pairs with the Acquire in `copy`.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Changes the list while the user is outside. The user enters again with a copy of the new list.
    pub fn exclude<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut list = self.lock();
        self.invalidate();
        // Pairs with the light one in `enter`.
        self.barrier.heavy();
        // Acquire: what the user did inside is seen.
        while self.inside.load(Ordering::Acquire) != 0 {
            yield_now();
        }
        change(&mut list)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;

    /// What the user works on inside, and who excludes it as well, by words of no order.
    #[derive(Default)]
    struct Shared {
        /// Somebody is at it.
        busy: AtomicU32,
        /// Two words that are the same whenever nobody is at it.
        words: [AtomicU32; 2],
        /// It is known to be gone.
        gone: AtomicU32,
    }

    impl Shared {
        fn work(&self) {
            assert_eq!(self.busy.swap(1, Ordering::Relaxed), 0, "both are inside");
            let [a, b] = &self.words;
            let was = a.load(Ordering::Relaxed);
            assert_eq!(was, b.load(Ordering::Relaxed), "who was inside before is seen in part");
            a.store(was + 1, Ordering::Relaxed);
            b.store(was + 1, Ordering::Relaxed);
            self.busy.store(0, Ordering::Relaxed);
        }
        fn done(&self) -> u32 {
            self.words[0].load(Ordering::Relaxed)
        }
    }

    type Both = Arc<(Exclusion<bool>, Shared)>;

    /// Comes in so many times, and returns how often it did so while the list said that there is something.
    fn user(both: &Both, times: usize) -> u32 {
        let (exclusion, shared) = &**both;
        let (mut version, mut there) = (exclusion.never_seen(), false);
        let mut found = 0;
        for _ in 0..times {
            loop {
                match exclusion.enter(version) {
                    Some(inside) => break inside.stay(),
                    None => (version, there) = exclusion.copy(|list| *list),
                }
            }
            if there {
                assert_eq!(shared.gone.load(Ordering::Relaxed), 0, "it was taken out before");
                found += 1;
            }
            shared.work();
            drop(exclusion.inside());
        }
        found
    }

    fn both() -> Both {
        Arc::new((Exclusion::new(true), Shared::default()))
    }
    fn spawn<R: 'static>(both: &Both, run: impl FnOnce(&Both) -> R + 'static) -> loom::thread::JoinHandle<R> {
        let both = both.clone();
        loom::thread::spawn(move || run(&both))
    }
    /// Takes it out, as who removes a queue pair.
    fn take_out(both: &Both) {
        let (exclusion, shared) = &**both;
        exclusion.exclude(|list| {
            *list = false;
            shared.gone.store(1, Ordering::Relaxed);
            shared.work();
        });
    }
    /// Orders with so many switches at most, where there are three threads.
    fn model_of_switches(switches: usize) -> loom::model::Builder {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(switches);
        model
    }

    /// As the removal of a queue pair and the polls of a completion queue.
    #[test]
    fn who_excludes_the_user_is_alone_and_the_user_never_finds_what_was_taken_out() {
        loom::model(|| {
            let both = both();
            let user = spawn(&both, |both| user(both, 2));
            take_out(&both);
            user.join().unwrap();
            assert_eq!(both.1.done(), 3);
        });
    }

    /// As the death of an adapter, of which a third thread tells without the lock.
    #[test]
    fn a_user_who_is_told_while_it_is_excluded_stays_outside() {
        model_of_switches(3).check(|| {
            let both = both();
            let user = spawn(&both, |both| user(both, 1));
            let teller = spawn(&both, |both| both.0.invalidate());
            take_out(&both);
            user.join().unwrap();
            teller.join().unwrap();
            assert_eq!(both.1.done(), 2);
        });
    }

    #[test]
    fn two_who_exclude_the_user_take_turns() {
        model_of_switches(3).check(|| {
            let both = both();
            let user = spawn(&both, |both| user(both, 1));
            let other = spawn(&both, |both| both.0.exclude(|_| both.1.work()));
            take_out(&both);
            user.join().unwrap();
            other.join().unwrap();
            assert_eq!(both.1.done(), 3);
        });
    }

    /// As what is outstanding on an adapter that has died: the polls after that end it.
    #[test]
    fn what_was_stored_before_the_user_is_told_is_seen_by_the_copy_that_it_is_asked_to_make() {
        loom::model(|| {
            let both = both();
            let (version, ()) = both.0.copy(|_| ());
            let teller = spawn(&both, |both| {
                both.1.gone.store(1, Ordering::Relaxed);
                both.0.invalidate();
            });
            if both.0.enter(version).is_none() {
                let (_, gone) = both.0.copy(|_| both.1.gone.load(Ordering::Relaxed));
                assert_eq!(gone, 1, "told, and not seen");
            }
            teller.join().unwrap();
            assert!(both.0.enter(version).is_none(), "it was told, and is not asked");
        });
    }
}
