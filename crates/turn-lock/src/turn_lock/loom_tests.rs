//! The lock in all interleavings of a few threads, by loom.

use super::*;
use crate::{INNER, OUTER};
use loom::sync::{Arc, atomic::AtomicU32};

type Lock<const LEVEL: usize> = TurnLock<u32, LEVEL>;

/// All orders would take hours; few bugs need more switches than these.
fn model_of_three_switches() -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model
}
/// Whose every turn makes a favourite.
fn favouring<const LEVEL: usize>() -> Lock<LEVEL> {
    TurnLock::with_barrier(0, Barrier::of_system(), 1)
}

/// Work is posted outside of the lock and taken inside; no posted work may be left lying once all
/// threads are done.
#[test]
fn no_posted_work_is_left_lying() {
    loom::model(|| {
        let lock = Arc::new(Lock::<INNER>::new(0));
        let posted = Arc::new(AtomicU32::new(0));
        let turn = |lock: &Lock<INNER>, posted: &AtomicU32| {
            posted.fetch_add(1, Ordering::AcqRel);
            lock.turn_or_notify_holder(|done| *done += posted.swap(0, Ordering::AcqRel));
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
    model_of_three_switches().check(|| {
        let lock = Arc::new(favouring::<INNER>());
        let posted = Arc::new(AtomicU32::new(0));
        let turn = |lock: &Lock<INNER>, posted: &AtomicU32| {
            posted.fetch_add(1, Ordering::AcqRel);
            lock.turn_or_notify_holder(|done| *done += posted.swap(0, Ordering::AcqRel));
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

/// One thread is the favourite of two nested locks, and has work for both; another takes one of them back, or both
/// nested as well. `posts` is what both post together.
fn nested(posts: u32, other_does: impl Fn(&Nested) + Copy + Send + Sync + 'static) {
    model_of_three_switches().check(move || {
        let both = Arc::new(Nested { outer: favouring(), inner: favouring(), posted: AtomicU32::new(0) });
        both.turn();
        let other = {
            let both = both.clone();
            loom::thread::spawn(move || other_does(&both))
        };
        both.turn();
        other.join().unwrap();
        assert_eq!(both.posted.load(Ordering::Acquire), 0);
        assert_eq!(both.outer.with(|n| *n, |_| ()), posts);
    });
}
struct Nested {
    outer: Lock<OUTER>,
    inner: Lock<INNER>,
    posted: AtomicU32,
}
impl Nested {
    fn turn(&self) {
        self.posted.fetch_add(1, Ordering::AcqRel);
        self.outer.turn_or_notify_holder(|done| {
            *done += self.posted.swap(0, Ordering::AcqRel);
            self.inner.turn_or_notify_holder(|turns| *turns += 1);
        });
    }
}

#[test]
fn of_nested_favours_the_outer_one_is_taken_back() {
    nested(3, |both| {
        both.posted.fetch_add(1, Ordering::AcqRel);
        both.outer.turn_or_notify_holder(|done| *done += both.posted.swap(0, Ordering::AcqRel));
    });
}

#[test]
fn of_nested_favours_the_inner_one_is_taken_back() {
    nested(2, |both| _ = both.inner.turn_or_notify_holder(|turns| *turns += 1));
}

#[test]
fn of_nested_favours_both_are_taken_back() {
    nested(3, Nested::turn);
}

/// Two wait while a third, the favourite or anybody, has the lock and leaves word: each has its turn, and all work is
/// done.
fn waited_for(lock: fn() -> Lock<INNER>) {
    model_of_three_switches().check(move || {
        let (lock, posted) = (Arc::new(lock()), Arc::new(AtomicU32::new(0)));
        lock.turn_or_notify_holder(|n| *n += 1);
        let take = |posted: &AtomicU32| posted.swap(0, Ordering::AcqRel);
        let other = {
            let (lock, posted) = (lock.clone(), posted.clone());
            loom::thread::spawn(move || lock.with(|n| *n += 1, |n| *n += take(&posted)))
        };
        posted.fetch_add(1, Ordering::AcqRel);
        lock.turn_or_notify_holder(|n| *n += take(&posted));
        lock.with(|n| *n += 1, |n| *n += take(&posted));
        other.join().unwrap();
        assert_eq!(posted.load(Ordering::Acquire), 0);
        assert_eq!(lock.with(|n| *n, |_| ()), 4);
    });
}

#[test]
fn who_waits_has_its_turn_and_no_posted_work_is_left_lying() {
    waited_for(|| Lock::new(0));
}

#[test]
fn who_waits_for_a_favourite_has_its_turn_and_no_posted_work_is_left_lying() {
    waited_for(favouring);
}

/// Who tries and goes disturbs nobody.
#[test]
fn a_favour_is_taken_back_by_who_does_not_wait() {
    model_of_three_switches().check(|| {
        let lock = Arc::new(favouring::<OUTER>());
        lock.turn_or_notify_holder(|n| *n += 1);
        let other = {
            let lock = lock.clone();
            loom::thread::spawn(move || {
                let Some(mut guard) = lock.try_lock() else { return 0 };
                guard.run(|n| *n += 1);
                assert!(!guard.unlock_unfavoured(), "nobody leaves word");
                1
            })
        };
        let mut guard = lock.lock();
        guard.run(|n| *n += 1);
        assert!(!guard.unlock(), "nobody leaves word");
        let others = other.join().unwrap();
        assert_eq!(lock.with(|n| *n, |_| ()), 2 + others);
    });
}
