//! How long a thread looks in vain before it gives its CPU to others.
//!
//! Whoever polls spins, which is right while its peer runs on another CPU: a look takes some ten nanoseconds, and a
//! sleeper is woken in microseconds. Where both share one CPU the peer can't answer before the scheduler's slice is
//! over, milliseconds later. Nobody tells a program which of both it is, so it tries: after [`LOOKS`] looks in vain in
//! a row the thread yields, and the time that this takes says who else was there.
//!
//! | the yield took | so on this CPU there is | the next one comes |
//! |---|---|---|
//! | less than [`SWITCH`](SWITCH_NS) | nobody | after [`LOOKS`] looks |
//! | less than [`HOG`](HOG_NS) | somebody who gives way, too, and may be the one that is waited for | after [`LOOKS_IN_COMPANY`] looks |
//! | more | somebody who computes, and gives nothing back | after [`LOOKS`] looks, and as much time as was lost |
//!
//! Looks are counted by thread, whatever it looks at: what was found, or posted, begins the count again.
//! `placement` in `benches` measures these figures against others; ARCHITECTURE.md has the table.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::yield_now;

use crate::clock::monotonic_ns;

/// Looks in vain before a yield.
const LOOKS: u32 = 64;
/// The same where the last yield found company.
const LOOKS_IN_COMPANY: u32 = 1;
/// Two switches of a CPU between threads take longer, a yield to nobody less.
const SWITCH_NS: u64 = 1_000;
/// A thread that polls, too, gives way before.
const HOG_NS: u64 = 200_000;
/// How long the adapter's thread goes on looking after it last had something to do, before it sleeps.
const THREAD_NS: u64 = 0;

/// The figures in use; benches change them.
static LOOKS_NOW: AtomicU32 = AtomicU32::new(LOOKS);
static IN_COMPANY_NOW: AtomicU32 = AtomicU32::new(LOOKS_IN_COMPANY);
static HOG_NOW: AtomicU64 = AtomicU64::new(HOG_NS);
static THREAD_NOW: AtomicU64 = AtomicU64::new(THREAD_NS);
static THREAD_YIELDS: AtomicBool = AtomicBool::new(false);

/// Figures other than the built-in ones, for a bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Looks in vain before a yield; `u32::MAX` for never.
    pub looks: u32,
    /// The same where the last yield found company.
    pub looks_in_company: u32,
    /// A yield that took longer found somebody who computes.
    pub hog_ns: u64,
    /// How long the adapter's thread goes on looking.
    pub thread_ns: u64,
    /// Whether it gives way meanwhile.
    pub thread_yields: bool,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            looks: LOOKS,
            looks_in_company: LOOKS_IN_COMPANY,
            hog_ns: HOG_NS,
            thread_ns: THREAD_NS,
            thread_yields: false,
        }
    }
}

impl Patience {
    /// Puts these figures in force in this process, for threads that have not looked in vain yet.
    pub fn set(self) {
        LOOKS_NOW.store(self.looks, Ordering::Relaxed);
        IN_COMPANY_NOW.store(self.looks_in_company, Ordering::Relaxed);
        HOG_NOW.store(self.hog_ns, Ordering::Relaxed);
        THREAD_NOW.store(self.thread_ns, Ordering::Relaxed);
        THREAD_YIELDS.store(self.thread_yields, Ordering::Relaxed);
    }
}

/// One thread's looks.
struct Looks {
    /// In vain, in a row.
    in_vain: Cell<u32>,
    /// After so many it yields.
    limit: Cell<u32>,
    /// But not before this time.
    not_before_ns: Cell<u64>,
}

thread_local! {
    static MINE: Looks = const {
        Looks { in_vain: Cell::new(0), limit: Cell::new(LOOKS), not_before_ns: Cell::new(0) }
    };
}

/// This thread has found something, or done something.
#[inline]
pub(crate) fn found() {
    MINE.with(|l| l.in_vain.set(0));
}

/// This thread has looked in vain.
#[inline]
pub(crate) fn in_vain() {
    MINE.with(|l| {
        let n = l.in_vain.get() + 1;
        l.in_vain.set(n);
        if n >= l.limit.get() {
            l.give_way();
        }
    });
}

/// This thread has looked, and found something or not.
#[inline]
pub(crate) fn note(found_something: bool) {
    if found_something { found() } else { in_vain() }
}

/// How long the adapter's thread goes on looking after it last had something to do.
pub(crate) fn of_the_thread_ns() -> u64 {
    THREAD_NOW.load(Ordering::Relaxed)
}

/// The adapter's thread has looked in vain and goes on.
pub(crate) fn thread_in_vain() {
    if THREAD_YIELDS.load(Ordering::Relaxed) {
        in_vain();
    }
}

impl Looks {
    #[cold]
    #[inline(never)]
    fn give_way(&self) {
        self.in_vain.set(0);
        let looks = LOOKS_NOW.load(Ordering::Relaxed);
        self.limit.set(looks);
        let before = monotonic_ns();
        if looks == u32::MAX || before < self.not_before_ns.get() {
            return;
        }
        yield_now();
        let after = monotonic_ns();
        match after - before {
            ..SWITCH_NS => {}
            lost if lost < HOG_NOW.load(Ordering::Relaxed) => {
                self.limit.set(IN_COMPANY_NOW.load(Ordering::Relaxed));
            }
            lost => self.not_before_ns.set(after + lost),
        }
    }
}
