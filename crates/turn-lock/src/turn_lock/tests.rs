//! Favour, notes and hand-over, as scripts and with real threads.

use super::*;
use crate::{INNER, OUTER};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Barrier as Meeting, mpsc};

/// Runs `f` if nobody holds the lock.
fn try_with<T, R, const LEVEL: usize>(lock: &TurnLock<T, LEVEL>, f: impl FnOnce(&mut T) -> R) -> Option<R> {
    let mut guard = lock.try_lock()?;
    let result = f(&mut guard);
    if guard.unlock() {
        lock.turn_or_notify_holder(|_| ());
    }
    Some(result)
}

fn is_favoured<T, const LEVEL: usize>(lock: &TurnLock<T, LEVEL>) -> bool {
    let state = lock.state.load(Ordering::Relaxed);
    !state.is_null() && state.addr() & MODE == 0
}

/// Enough turns to be favoured, where the system has what that needs.
fn favoured<const LEVEL: usize>() -> Option<TurnLock<u32, LEVEL>> {
    let lock = TurnLock::new(0);
    for _ in 0..FAVOUR.0 {
        lock.turn_or_notify_holder(|n| *n += 1);
    }
    is_favoured(&lock).then_some(lock)
}

#[test]
fn who_turns_often_is_favoured_until_another_comes() {
    let Some(lock) = favoured::<INNER>() else { return };
    assert_eq!(try_with(&lock, |n| *n), Some(FAVOUR.0));
    let other = || assert_eq!(try_with(&lock, |n| *n), Some(FAVOUR.0));
    std::thread::scope(|s| s.spawn(other).join().unwrap());
    assert!(!is_favoured(&lock));
    for _ in 0..FAVOUR.0 {
        lock.turn_or_notify_holder(|n| *n += 1);
    }
    assert!(!is_favoured(&lock), "it takes more turns now");
    for _ in 0..FAVOUR.0 {
        lock.turn_or_notify_holder(|n| *n += 1);
    }
    assert!(is_favoured(&lock));
}

#[test]
fn a_favourite_within_its_turn_leaves_word_for_itself() {
    let Some(lock) = favoured::<INNER>() else { return };
    let mut turns = 0;
    let result = lock.turn_or_notify_holder(|n| {
        turns += 1;
        assert_eq!(try_with(&lock, |_| ()), None, "it is inside");
        if turns == 1 {
            assert_eq!(lock.turn_or_notify_holder(|_| unreachable!("it is inside")), None::<()>);
        }
        *n
    });
    assert_eq!((result, turns), (Some(FAVOUR.0), 2));
}

/// The lock is taken and given back by `holder` until somebody waits, and once more behind that; then it is left to
/// that one, with the word.
fn is_handed_to_who_waits(lock: &TurnLock<u32, INNER>) {
    std::thread::scope(|s| {
        let mut guard = lock.lock();
        let waits = s.spawn(|| {
            let mut guard = lock.lock();
            guard.run(|n| *n += 1);
            guard.unlock()
        });
        while lock.state.load(Ordering::Relaxed).addr() & WAITED == 0 {
            std::thread::yield_now();
        }
        guard.run(|n| *n += 1);
        assert!(!guard.unlock(), "nobody left word");
        // Whether it is there still or not depends on how fast that one is.
        let word = lock.turn_or_notify_holder(|n| assert!(*n % 2 == 0, "it was before who waited")).is_none();
        let told = waits.join().unwrap();
        assert!(!told || word);
    });
}

#[test]
fn who_waits_is_handed_the_lock() {
    let lock = TurnLock::new(0);
    (0..100).for_each(|_| is_handed_to_who_waits(&lock));
    let Some(lock) = favoured::<INNER>() else { return };
    is_handed_to_who_waits(&lock);
}

#[test]
fn a_lock_that_was_left_to_who_waits_is_nobody_elses_and_keeps_word() {
    let lock = TurnLock::<_, INNER>::new(0_u32);
    let guard = lock.lock();
    // As by one who waits and does not run now.
    let held = lock.state.load(Ordering::Relaxed);
    assert!(lock.ask_or_take(held).is_none() && lock.lock_or_notify_holder().is_none());
    assert!(!guard.unlock(), "who waits is told");
    for _ in 0..2 {
        assert!(lock.try_lock().is_none() && lock.lock_or_notify_holder().is_none());
    }
    let guard = lock.ask_or_take(lock.state.load(Ordering::Relaxed)).expect("it was left to this one");
    assert!(guard.unlock(), "word was left");
    assert!(lock.try_lock().is_some());
}

/// Threads that have the lock nearly always do not keep one out that waits for it.
#[test]
fn who_waits_has_its_turn_beside_those_who_never_stop() {
    let lock = TurnLock::<_, INNER>::new(0_u64);
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    _ = lock.turn_or_notify_holder(|n| *n += 1);
                }
            });
        }
        (0..if cfg!(miri) { 5 } else { 200 }).for_each(|_| lock.with(|n| *n += 1, |_| ()));
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_favourite_within_another_lock_of_the_level_enters_nevertheless() {
    let (Some(one), Some(two)) = (favoured::<INNER>(), favoured::<INNER>()) else { return };
    let sum = try_with(&one, |a| two.turn_or_notify_holder(|b| *a + *b));
    assert_eq!(sum, Some(Some(2 * FAVOUR.0)));
    assert!(is_favoured(&one) && !is_favoured(&two));
}

#[test]
fn a_favourite_is_within_one_lock_of_each_level() {
    let (Some(outer), Some(inner)) = (favoured::<OUTER>(), favoured::<INNER>()) else { return };
    let sum = try_with(&outer, |a| inner.turn_or_notify_holder(|b| *a + *b));
    assert_eq!(sum, Some(Some(2 * FAVOUR.0)));
    assert!(is_favoured(&outer) && is_favoured(&inner));
}

#[test]
fn a_favourite_in_turn_of_two_locks_of_a_level_stays_that_of_both() {
    let (Some(one), Some(two)) = (favoured::<OUTER>(), favoured::<OUTER>()) else { return };
    for _ in 0..3 {
        assert_eq!(try_with(&one, |n| *n), Some(FAVOUR.0));
        assert_eq!(try_with(&two, |n| *n), Some(FAVOUR.0));
    }
    assert!(is_favoured(&one) && is_favoured(&two));
}

#[test]
fn a_guest_is_never_favoured() {
    let lock = TurnLock::<_, OUTER>::new(0_u32);
    for _ in 0..2 * FAVOUR.0 {
        assert!(!lock.lock_or_notify_holder().unwrap().unlock_unfavoured());
        lock.with(|_| (), |_| ());
        assert!(lock.turn_or_notify_holder(|_| ()).is_some());
    }
    assert!(!is_favoured(&lock));
}

#[test]
fn a_favourite_within_its_turn_is_told_of_the_word_that_another_left() {
    let Some(lock) = favoured::<OUTER>() else { return };
    let guard = lock.lock();
    std::thread::scope(|s| {
        s.spawn(|| assert!(lock.try_lock().is_none(), "it is inside"));
    });
    std::thread::scope(|s| {
        s.spawn(|| assert!(lock.lock_or_notify_holder().is_none(), "it is inside"));
    });
    assert!(lock.lock_or_notify_holder().is_none(), "also for itself, which holds it as anybody by now");
    assert!(guard.unlock());
    assert!(!is_favoured(&lock));
    assert!(!lock.lock().unlock(), "it was told once");
}

#[test]
fn a_favourite_that_only_lost_the_favour_is_told_of_no_word() {
    let Some(lock) = favoured::<OUTER>() else { return };
    let guard = lock.lock();
    std::thread::scope(|s| {
        s.spawn(|| assert!(lock.try_lock().is_none(), "it is inside"));
    });
    assert!(!guard.unlock());
    assert_eq!(try_with(&lock, |n| *n), Some(FAVOUR.0));
}

/// As two nodes do on one adapter: each thread is inside of its own as the favourite, and has work for the other's.
#[test]
fn two_favourites_that_have_work_for_each_other_do_not_wait() {
    let locks = Arc::new([(); 2].map(|()| TurnLock::<_, OUTER>::new(0_u32)));
    let meeting = Arc::new(Meeting::new(2));
    let (done, is_done) = mpsc::channel();
    for own in 0..2 {
        let (locks, meeting, done) = (locks.clone(), meeting.clone(), done.clone());
        std::thread::spawn(move || {
            (0..FAVOUR.0).for_each(|_| _ = locks[own].turn_or_notify_holder(|n| *n += 1));
            let guard = locks[own].lock();
            meeting.wait();
            assert!(locks[1 - own].lock_or_notify_holder().is_none(), "the other is inside");
            meeting.wait();
            done.send(guard.unlock()).unwrap();
        });
    }
    for _ in 0..2 {
        let told = is_done.recv_timeout(Duration::from_secs(60)).expect("none waits for the other");
        assert!(told, "word was left");
    }
}

#[test]
fn the_next_thread_has_the_word_of_one_that_ended() {
    let lock = TurnLock::<_, INNER>::new(0_u32);
    for _ in 0..8 {
        std::thread::scope(|s| {
            s.spawn(|| (0..2 * FAVOUR.0).for_each(|_| _ = lock.turn_or_notify_holder(|n| *n += 1)));
        });
    }
    assert_eq!(lock.with(|n| *n, |_| ()), 16 * FAVOUR.0);
}

/// Two threads that take the favour from each other again and again, with no atomics in the value.
#[test]
fn one_thread_at_a_time_is_inside() {
    let lock = TurnLock::<_, INNER>::with_barrier([0_u64; 8], Barrier::of_system(), 4);
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
