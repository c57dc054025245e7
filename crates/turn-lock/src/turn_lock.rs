//! The lock: a thread that finds it held leaves a note, and the holder then does the work again.
//!
//! A thread that wants work done must not wait for a thread that is doing such work, and its work must not be left
//! undone until another thread happens to take the lock. So the lock and the note are one atomic word: a thread that
//! finds the lock held sets the note's flag, and the holder finds the flag by the exchange that releases the lock, and
//! does the work. Taking and releasing cost one exchange each.
//!
//! **Waiting threads** set a flag in the same word. A holder that releases a lock with this flag hands the lock over to
//! the waiting threads, and to no other thread. Otherwise a thread that takes and releases the lock again and again
//! would keep out a waiting thread, which tries only now and then. A note is handed over too.
//!
//! **The favourite.** Most of these locks have one user for a long time. A thread that has taken the lock often enough
//! in a row becomes its favourite: the lock's state names the thread. The favourite enters by a store to a word of its
//! own and leaves by another store. It needs no exchange, which would wait for the thread's stores to peers' memory.
//! After each of the two stores the favourite checks that the state still is its name. Another thread that wants the
//! lock revokes the favour: it changes the state, makes all processors execute a barrier ([`Barrier`]), and loads the
//! favourite's word. If the favourite is outside, the revoking thread holds the lock. If the favourite is inside, it
//! holds the lock from now on as any holder does: other threads can leave a note for it, and none has to wait. After
//! each revocation a thread needs more turns in a row to become the favourite. A guest ([`Guard::unlock_unfavoured`])
//! never becomes the favourite, so that no thread has to revoke its favour.
//!
//! ```text
//!   FREE ─────────────> HELD ──────────────────────────────────────────> NAMED      by its holder
//!   NAMED ────────────> REVOKING                                                    by another thread that wants the lock
//!   REVOKING ─────────> HELD      the favourite is outside                          by the revoking thread, which holds the lock
//!   REVOKING ─────────> HELD      the same: it is leaving, or has just looked in    by the former favourite
//!   REVOKING ─────────> KEPT      the favourite is inside, and holds the lock       by the revoking thread
//!   HELD, KEPT ───────> FREE                                                        by its holder
//!   HELD, KEPT ───────> HANDED    a thread waits                                    by its holder
//!   HANDED ───────────> HELD                                                        by a waiting thread
//! ```
//!
//! A thread that leaves a note adds the flag `WORD` to the state, unless the state is `FREE`. A waiting thread adds the
//! flag `WAITED` to a state that is held or `REVOKING`. A waiting thread goes on until it has the lock, so a lock that
//! is `HANDED` is always taken.
//!
//! Invariants of the unsafe code:
//! 1. Only the holder of the lock accesses the value. The holder is one of: the thread that moved `state` from `FREE`
//!    or `HANDED` to `HELD`; the thread that moved `state` from `NAMED` to `REVOKING` and then found it `HELD`, or
//!    found the favourite outside and made it `HELD`; the favourite that `state` names. The favourite holds the lock
//!    from the moment when it has marked itself inside and then found its name without flags still in `state`, until it
//!    marks itself outside; and then, if `state` is `KEPT` with its name, until it changes that state. [`Guard`] does
//!    all of these steps, so that taking and releasing come in pairs, also when a turn panics.
//! 2. A thread takes `state` with Acquire and releases it with Release; between the two `state` changes by exchanges
//!    only. A flag is set with Release and found with Acquire, so that the next turn sees the stores before the note.
//!    The favourite marks itself outside with Release, and the revoking thread loads that with Acquire.
//! 3. A [`ThreadWord`] is never freed, and belongs to one thread at a time. Only that thread writes to it, and only
//!    that thread makes a state `NAMED` with it. So if a thread has left and then finds its name in the state, the name
//!    is from the favour that it used.
#![allow(unsafe_code)]

use core::marker::PhantomData;
#[cfg(not(loom))]
use core::ops::{Deref, DerefMut};
use core::ptr;
use core::time::Duration;

use crate::barrier::Barrier;
use crate::sync::{AtomicPtr, Ordering, UnsafeCell, sleep, yield_now};
use crate::thread_word::{LEVELS, ThreadWord, known_thread, this_thread};

/// The type of `state`: the address of a thread's word, or null, with flags in the low bits.
type State = *mut ThreadWord;

const FREE: State = ptr::null_mut();
/// The lock is held, and the state does not name the holder.
const HELD: State = ptr::without_provenance_mut(MODE_TAKEN);
/// Flag: a note was left.
const WORD: usize = 1;
/// Without a name: `HELD`. With a name: the favour is being revoked.
const MODE_TAKEN: usize = 2;
/// With a name: the named thread was the favourite, and holds the lock.
const MODE_KEPT: usize = 4;
const MODE: usize = MODE_TAKEN | MODE_KEPT;
/// The lock is reserved for waiting threads, and no thread holds it.
const HANDED: State = ptr::without_provenance_mut(MODE_KEPT);
/// Flag: a thread waits.
const WAITED: usize = 8;
/// The flags that other threads set while a thread holds the lock.
const LEFT: usize = WORD | WAITED;
const FLAGS: usize = LEFT | MODE;
const _: () = assert!(FLAGS < align_of::<ThreadWord>());

/// The attempts at a held lock before the thread yields the CPU; the yields before the thread sleeps after each
/// attempt; and the time of one sleep.
const SPINS: u32 = 64;
const YIELDS: u32 = 256;
const NAP: Duration = Duration::from_micros(50);
/// Turns in a row that make a favourite, at first and at most.
const FAVOUR: (u32, u32) = (64, 1 << 20);

/// The thread that a state names, or null.
#[inline(always)]
fn name(state: State) -> State {
    state.map_addr(|a| a & !FLAGS)
}
/// The same state with another mode.
fn with_mode(state: State, mode: usize) -> State {
    state.map_addr(|a| a & !MODE | mode)
}
/// The state `HELD`, with the flags that other threads have set in `state`.
fn held_as(state: State) -> State {
    HELD.map_addr(|a| a | state.addr() & LEFT)
}
fn is_handed(state: State) -> bool {
    name(state).is_null() && state.addr() & MODE == MODE_KEPT
}
#[inline(always)]
fn has_word(state: State) -> bool {
    state.addr() & WORD != 0
}
/// The state if a note can be left at it, else `FREE`. At a name without flags no note can be left, because the
/// favourite may be outside.
fn held_or_free(state: State) -> State {
    if state.addr() & MODE == 0 { FREE } else { state }
}

/// A lock of one of two levels, [`OUTER`](crate::OUTER) or [`INNER`](crate::INNER): a thread can be inside one lock of
/// each level as the favourite. Of two nested locks of one level, a thread does not enter the inner one as its
/// favourite.
///
/// A holder may wait for another lock of this kind only by [`lock`](Self::lock), and only for a lock of an inner level.
/// All other methods never wait.
pub struct TurnLock<T, const LEVEL: usize> {
    state: AtomicPtr<ThreadWord>,
    barrier: Barrier,
    value: UnsafeCell<Inner<T>>,
}

struct Inner<T> {
    value: T,
    /// The thread that had the lock last; `runs` counts how often in a row.
    last: *const ThreadWord,
    runs: u32,
    /// The number of turns in a row after which a thread becomes the favourite.
    needed: u32,
}

// SAFETY: (1) one thread at a time reaches the value, and (2) orders one after the other; (3) the pointer is to a
// static.
unsafe impl<T: Send, const LEVEL: usize> Sync for TurnLock<T, LEVEL> {}
// SAFETY: as above.
unsafe impl<T: Send, const LEVEL: usize> Send for TurnLock<T, LEVEL> {}

/// A guard of a held lock. It derefs to the value, to which no other reference exists meanwhile.
///
/// Dropping it, as in a panic, discards a note that was left.
pub struct Guard<'a, T, const LEVEL: usize> {
    lock: &'a TurnLock<T, LEVEL>,
    favourite: Option<&'static ThreadWord>,
    /// The favourite's word is the thread's own.
    of_this_thread: PhantomData<*const ()>,
}

impl<T, const LEVEL: usize> Guard<'_, T, LEVEL> {
    #[inline(always)]
    fn run<R>(&mut self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: (1) a guard exists only while the lock is held, and it is borrowed for the call.
        self.lock.value.with_mut(|p| f(unsafe { &mut (*p).value }))
    }
    /// Releases the lock, to a waiting thread if there is one. Returns whether a note was left that no waiting thread
    /// will see: then the caller has to call [`TurnLock::turn_or_notify_holder`] or a similar method.
    #[must_use = "somebody may have left word"]
    #[inline(always)]
    pub fn unlock(self) -> bool {
        let Self { lock, favourite, .. } = self;
        core::mem::forget(self);
        match favourite {
            Some(me) => lock.leave(me),
            None => lock.give_back(),
        }
    }
    /// Like [`unlock`](Self::unlock), without making this thread the favourite: for guests.
    #[must_use = "somebody may have left word"]
    #[inline]
    pub fn unlock_unfavoured(self) -> bool {
        let Self { lock, favourite, .. } = self;
        core::mem::forget(self);
        match favourite {
            Some(me) => lock.leave(me),
            None => lock.free(),
        }
    }
}
impl<T, const LEVEL: usize> Drop for Guard<'_, T, LEVEL> {
    /// After a panic in a turn, a bug that was reported: the others may still close down.
    fn drop(&mut self) {
        match self.favourite {
            Some(me) => self.lock.leave(me),
            None => self.lock.free(),
        };
    }
}
#[cfg(not(loom))]
impl<T, const LEVEL: usize> Deref for Guard<'_, T, LEVEL> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: (1) as in `run`.
        self.lock.value.with(|p| unsafe { &(*p).value })
    }
}
#[cfg(not(loom))]
impl<T, const LEVEL: usize> DerefMut for Guard<'_, T, LEVEL> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: (1) as in `run`.
        self.lock.value.with_mut(|p| unsafe { &mut (*p).value })
    }
}

/// Between two looks at a lock that another has.
fn wait(looks: &mut u32) {
    *looks = looks.saturating_add(1);
    if !looks.is_multiple_of(SPINS) && !cfg!(loom) {
        core::hint::spin_loop();
    } else if *looks < SPINS * YIELDS {
        yield_now();
    } else {
        // Its holder may be of a lower priority, to which nobody yields.
        sleep(NAP);
        *looks = SPINS * YIELDS - 1;
    }
}

impl<T, const LEVEL: usize> TurnLock<T, LEVEL> {
    /// A lock that is free.
    pub fn new(value: T) -> Self {
        Self::with_barrier(value, Barrier::of_system(), FAVOUR.0)
    }
    fn with_barrier(value: T, barrier: Barrier, needed: u32) -> Self {
        const { assert!(LEVEL < LEVELS) };
        let inner = Inner { value, last: ptr::null(), runs: 0, needed };
        Self { state: AtomicPtr::new(FREE), barrier, value: UnsafeCell::new(inner) }
    }

    /// Runs `f` if the lock is free, and again while notes were left meanwhile; else leaves a note, so that the holder
    /// runs its own function once more. `None`: the holder does the work. Never waits. The caller is a guest: as a
    /// favourite it would cost the next other thread a barrier.
    #[inline]
    pub fn turn_or_notify_holder<R>(&self, mut f: impl FnMut(&mut T) -> R) -> Option<R> {
        let mut result = None;
        while let Some(mut guard) = self.lock_or_notify_holder() {
            result = Some(guard.run(&mut f));
            if !guard.unlock_unfavoured() {
                break;
            }
        }
        result
    }

    /// Takes the lock if it is free; else leaves a note, which [`Guard::unlock`] returns to the holder, which may be
    /// this thread. Never waits.
    #[inline]
    pub fn lock_or_notify_holder(&self) -> Option<Guard<'_, T, LEVEL>> {
        loop {
            match self.lock_once() {
                Ok(guard) => return Some(guard),
                Err(state) if self.leaves_word(state) => return None,
                Err(_) => core::hint::spin_loop(),
            }
        }
    }

    /// Takes the lock if it is free. Never waits.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<Guard<'_, T, LEVEL>> {
        self.lock_once().ok()
    }

    /// Waits for the lock, which this thread must not hold: the next release leaves it to the waiting threads. A note
    /// may have been left before.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T, LEVEL> {
        self.lock_once().unwrap_or_else(|_| self.wait())
    }
    #[cold]
    fn wait(&self) -> Guard<'_, T, LEVEL> {
        let mut looks = 0_u32;
        loop {
            match self.lock_once() {
                Ok(guard) => return guard,
                Err(state) => {
                    if let Some(guard) = self.ask_or_take(state) {
                        return guard;
                    }
                }
            }
            wait(&mut looks);
        }
    }
    /// Called by a waiting thread: takes a lock that was handed over to waiting threads, or sets the flag that a thread
    /// waits.
    fn ask_or_take(&self, state: State) -> Option<Guard<'_, T, LEVEL>> {
        let exchange = |to, order| self.state.compare_exchange(state, to, order, Ordering::Relaxed).is_ok();
        if is_handed(state) {
            // Acquire: pairs with the Release of `free_changed`.
            return exchange(held_as(state), Ordering::Acquire).then(|| self.guard(None));
        }
        if state.addr() & MODE != 0 && state.addr() & WAITED == 0 {
            // If it fails the lock has changed hands, and is looked at again.
            exchange(state.map_addr(|a| a | WAITED), Ordering::Relaxed);
        }
        None
    }

    /// Waits for the lock and runs `f`: for the control path, which is a guest. The wait is bounded, since turns are
    /// bounded and a release leaves the lock to waiting threads. `again` runs for notes left meanwhile.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R, again: impl FnMut(&mut T)) -> R {
        let mut guard = self.lock();
        let r = guard.run(f);
        if guard.unlock_unfavoured() {
            self.turn_or_notify_holder(again);
        }
        r
    }

    /// Leaves a note for the holder of the lock in this state. `false`: the caller has to try again.
    fn leaves_word(&self, state: State) -> bool {
        let word = state.map_addr(|a| a | WORD);
        // Release: what came before is seen by who finds the word; also where word was left already.
        state != FREE
            && self.state.compare_exchange(state, word, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    fn address(&self) -> *mut () {
        ptr::from_ref(self).cast_mut().cast()
    }
    #[inline(always)]
    fn guard(&self, favourite: Option<&'static ThreadWord>) -> Guard<'_, T, LEVEL> {
        Guard { lock: self, favourite, of_this_thread: PhantomData }
    }

    /// The lock; or a state at which a note can be left, because a thread holds the lock; or `FREE`: the lock changed
    /// hands just now.
    #[inline(always)]
    fn lock_once(&self) -> Result<Guard<'_, T, LEVEL>, State> {
        let state = self.state.load(Ordering::Relaxed);
        // The favourite's way is the shortest.
        let me = known_thread();
        if ptr::eq(me, state) && me.inside::<LEVEL>().is_null() {
            return self.enter(me);
        }
        if state == FREE {
            return match self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => Ok(self.guard(None)),
                Err(state) => Err(held_or_free(state)),
            };
        }
        self.revoke(state)
    }

    /// The favourite's side of the barrier: a compiler fence is enough, because a lock has a favourite only if a
    /// revoking thread can make all processors execute a barrier.
    #[inline(always)]
    fn light(&self) {
        if cfg!(any(loom, miri)) {
            self.barrier.light();
        } else {
            core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
        }
    }

    /// Enters as the favourite, if this thread still is.
    #[inline(always)]
    fn enter(&self, me: &'static ThreadWord) -> Result<Guard<'_, T, LEVEL>, State> {
        me.enter::<LEVEL>(self.address());
        self.light();
        // Nobody else makes this thread the favourite, so the name is still there, or never comes back meanwhile.
        if ptr::eq(self.state.load(Ordering::Relaxed), me) {
            return Ok(self.guard(Some(me)));
        }
        self.enter_no_more(me)
    }
    /// The favour was being taken back while the favourite entered.
    #[cold]
    fn enter_no_more(&self, me: &'static ThreadWord) -> Result<Guard<'_, T, LEVEL>, State> {
        me.leave::<LEVEL>();
        loop {
            let state = self.state.load(Ordering::Relaxed);
            if !ptr::eq(name(state), me) {
                return Err(held_or_free(state));
            }
            if state.addr() & MODE == MODE_KEPT {
                self.demote();
                return Ok(self.guard(None));
            }
            if self.hands_over(state) {
                return Err(FREE);
            }
        }
    }

    /// Called by the favourite, which is inside: leaves the lock. Returns whether a note was left.
    #[inline(always)]
    fn leave(&self, me: &'static ThreadWord) -> bool {
        me.leave::<LEVEL>();
        self.light();
        !ptr::eq(self.state.load(Ordering::Relaxed), me) && self.leave_changed(me)
    }
    /// Leaves the lock in a changed state: this thread itself left a note, or the favour is being revoked or was
    /// revoked.
    #[cold]
    fn leave_changed(&self, me: &'static ThreadWord) -> bool {
        loop {
            let state = self.state.load(Ordering::Relaxed);
            if !ptr::eq(name(state), me) {
                // Who took the favour back holds the lock, or did, and was left the word.
                return false;
            }
            match state.addr() & MODE {
                MODE_KEPT => {
                    self.demote();
                    return self.free();
                }
                MODE_TAKEN if self.hands_over(state) => return false,
                MODE_TAKEN => {}
                _ => {
                    let taken =
                        self.state.compare_exchange(state, name(state), Ordering::AcqRel, Ordering::Relaxed);
                    if taken.is_ok() {
                        return has_word(state);
                    }
                }
            }
        }
    }
    /// Called by the former favourite, outside by now: gives the lock to the revoking thread, which may have seen the
    /// favourite inside.
    fn hands_over(&self, state: State) -> bool {
        self.state.compare_exchange(state, held_as(state), Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Revokes the favour, if there is one. A favourite that is inside keeps the lock; otherwise the caller gets it.
    #[cold]
    #[inline(never)]
    fn revoke(&self, state: State) -> Result<Guard<'_, T, LEVEL>, State> {
        if state.addr() & MODE != 0 {
            return Err(state);
        }
        let is_within = |me: &ThreadWord| ptr::eq(name(state), me) && me.inside::<LEVEL>() == self.address();
        if this_thread().is_some_and(is_within) {
            return Err(state);
        }
        let revoking = with_mode(state, MODE_TAKEN);
        // Acquire: pairs with the Release that made the favourite, who may never have been inside since.
        self.state
            .compare_exchange(state, revoking, Ordering::Acquire, Ordering::Relaxed)
            .map_err(held_or_free)?;
        self.barrier.heavy();
        // SAFETY: (3) it was some thread's, and is never freed.
        let word = unsafe { &*name(state).cast_const() };
        let inside = word.is_within::<LEVEL>(self.address());
        let mut state = revoking;
        // Without a name it is the caller's: the favourite has left meanwhile.
        while !name(state).is_null() {
            let next = if inside { with_mode(state, MODE_KEPT) } else { held_as(state) };
            // Acquire: pairs with the Release of `hands_over`.
            match self.state.compare_exchange(state, next, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) if inside => return Err(next),
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        self.demote();
        Ok(self.guard(None))
    }

    /// Called by a holder that is not the favourite: releases the lock. Returns whether a note was left.
    #[inline]
    fn give_back(&self) -> bool {
        let Some(me) = self.count_run() else { return self.free() };
        let favoured = ptr::from_ref(me).cast_mut();
        if self.state.compare_exchange(HELD, favoured, Ordering::Release, Ordering::Relaxed).is_ok() {
            return false;
        }
        self.free()
    }
    /// Like [`give_back`](Self::give_back), and favours nobody.
    #[inline(always)]
    fn free(&self) -> bool {
        match self.state.compare_exchange(HELD, FREE, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => false,
            Err(state) => self.free_changed(state),
        }
    }
    /// Something was left, or it was the favourite that held it.
    #[cold]
    #[inline(never)]
    fn free_changed(&self, mut state: State) -> bool {
        loop {
            let waited = state.addr() & WAITED != 0;
            let next = if waited { HANDED.map_addr(|a| a | state.addr() & WORD) } else { FREE };
            // Acquire: for the word that was left. Release: for who holds it next.
            match self.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return !waited && has_word(state),
                Err(now) => state = now,
            }
        }
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
    /// Called by the holder after a revocation: raises the number of turns for the next favourite.
    fn demote(&self) {
        // SAFETY: (1) our caller holds the lock, and has given no reference to it away.
        self.value.with_mut(|p| unsafe { (*p).needed = ((*p).needed * 2).min(FAVOUR.1) });
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
