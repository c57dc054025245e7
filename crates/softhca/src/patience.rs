//! The spin policy: the time that a thread spins without result before it yields its CPU, and before it sleeps.
//!
//! A polling thread spins, which is right while its peer runs on another CPU: a poll takes some ten nanoseconds, and
//! waking a sleeper takes microseconds. If both share one CPU, the peer can't answer before the scheduler's slice is
//! over, milliseconds later. A program can't know which of the two cases it is in, so it tries: after
//! [`LOOKS`](Patience::looks) empty polls in a row the thread yields, and the duration of the yield tells whether
//! another thread uses the CPU.
//!
//! | duration of the yield | other threads on this CPU | next yield |
//! |---|---|---|
//! | less than [`SWITCH_NS`] | none | after as many polls again |
//! | less than [`COMPUTE_NS`] | a thread that gives way, too, and may be the peer | after [`looks_in_company`](Patience::looks_in_company) |
//! | more | a computing thread, which does not give way | after half the lost time, more or less |
//!
//! "More or less" is a random share of all lost time. Two threads that poll on one CPU may each take the other for a
//! computing thread, and would do so for ever if each kept its whole slice; so the time shrinks each time, until each
//! finds out that the other gives way.
//!
//! A waiting thread that may sleep polls for some time first, since polls cost less than a sleep with an immediate
//! wake-up. The adapter's thread does so, too, except beside a computing thread: there a woken sleeper runs at once,
//! and a thread that yielded does not. So beside a computing thread it sleeps without a poll, for
//! [`sleep_factor`](Patience::sleep_factor) times the lost time.
//!
//! Polls are counted for each thread, over all queues; a poll with a result, or a post, resets the count. The figures
//! govern all waits of the adapter except the wait for the lock (`hca_turn_lock`), which may be held for microseconds
//! only. `placement` in `benches` compares them with other figures, and DESIGN.md has the table.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::thread::yield_now;

use crate::clock::monotonic_ns;

/// Two switches of a CPU between threads take longer, a yield to nobody less.
const SWITCH_NS: u64 = 1_000;
/// A thread that polls, too, gives way before.
const COMPUTE_NS: u64 = 200_000;

/// The figures of spinning, yielding and sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The empty polls before a yield; `u32::MAX`: never yield.
    pub looks: u32,
    /// The empty polls before a yield, if the last yield found another thread that gives way.
    pub looks_in_company: u32,
    /// The time without a yield beside a computing thread, in percent of the lost time, on average.
    pub hold_percent: u32,
    /// The sleep of the adapter's thread beside a computing thread, without a poll before, as a multiple of the
    /// duration of the yield; 0: no thread counts as computing.
    pub sleep_factor: u32,
    /// The time that a blocking wait polls before it sleeps.
    pub wait_ns: u64,
    /// The time that the adapter's thread polls after its last work before it sleeps.
    pub thread_ns: u64,
    /// The tick after which the adapter's thread looks whether the program has run a turn. A quarter of it is the first
    /// bound of its sleeps beside a program that leaves work, and eight of it the last one.
    pub tick_ns: u64,
    /// The time for which turns may poll shared memory only, in ticks of the processor (one to five a nanosecond).
    pub short_ticks: u32,
}

impl Patience {
    /// What was measured to be best.
    const BUILT_IN: Self = Self {
        looks: 64,
        looks_in_company: 1,
        hold_percent: 50,
        sleep_factor: 25,
        wait_ns: 50_000,
        thread_ns: 50_000,
        tick_ns: 1_000_000,
        short_ticks: 1 << 19,
    };

    /// Puts these figures in force in this process, for a bench, before anything is opened.
    pub fn set(self) {
        IN_FORCE.looks.store(self.looks, Ordering::Relaxed);
        IN_FORCE.looks_in_company.store(self.looks_in_company, Ordering::Relaxed);
        IN_FORCE.hold_percent.store(self.hold_percent, Ordering::Relaxed);
        IN_FORCE.sleep_factor.store(self.sleep_factor, Ordering::Relaxed);
        IN_FORCE.wait_ns.store(self.wait_ns, Ordering::Relaxed);
        IN_FORCE.thread_ns.store(self.thread_ns, Ordering::Relaxed);
        IN_FORCE.tick_ns.store(self.tick_ns, Ordering::Relaxed);
        IN_FORCE.short_ticks.store(self.short_ticks, Ordering::Relaxed);
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self::BUILT_IN
    }
}

/// The figures in force.
struct InForce {
    looks: AtomicU32,
    looks_in_company: AtomicU32,
    hold_percent: AtomicU32,
    sleep_factor: AtomicU32,
    wait_ns: AtomicU64,
    thread_ns: AtomicU64,
    tick_ns: AtomicU64,
    short_ticks: AtomicU32,
}

static IN_FORCE: InForce = InForce::new(Patience::BUILT_IN);

impl InForce {
    const fn new(p: Patience) -> Self {
        Self {
            looks: AtomicU32::new(p.looks),
            looks_in_company: AtomicU32::new(p.looks_in_company),
            hold_percent: AtomicU32::new(p.hold_percent),
            sleep_factor: AtomicU32::new(p.sleep_factor),
            wait_ns: AtomicU64::new(p.wait_ns),
            thread_ns: AtomicU64::new(p.thread_ns),
            tick_ns: AtomicU64::new(p.tick_ns),
            short_ticks: AtomicU32::new(p.short_ticks),
        }
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
    /// Until then a sleep comes without looks before.
    sleep_early_until_ns: Cell<u64>,
    /// It is within a look of many.
    within: Cell<bool>,
}

thread_local! {
    static MINE: Looks = const {
        Looks {
            in_vain: Cell::new(0),
            limit: Cell::new(Patience::BUILT_IN.looks),
            not_before_ns: Cell::new(0),
            sleep_early_until_ns: Cell::new(0),
            within: Cell::new(false),
        }
    };
}

/// Counts all polls within `look` as one: the thread does not yield between two of them, but only after the last, if
/// all were empty. `look` returns whether one had a result. For callers that poll many queues in turn, of which some
/// may be empty while another has work.
pub fn as_one_look(look: impl FnOnce() -> bool) -> bool {
    struct Within;
    impl Drop for Within {
        fn drop(&mut self) {
            MINE.with(|l| l.within.set(false));
        }
    }
    let within = Within;
    MINE.with(|l| l.within.set(true));
    let found_something = look();
    drop(within);
    note(found_something);
    found_something
}

/// This thread has found something, or done something.
#[inline(always)]
pub(crate) fn found() {
    MINE.with(|l| l.in_vain.set(0));
}

/// This thread has looked in vain.
#[inline(always)]
pub(crate) fn in_vain() {
    // `with` is not inlined here, and costs twice as much as what is done.
    let is_enough = MINE.try_with(|l| {
        let n = l.in_vain.get() + 1;
        l.in_vain.set(n);
        n >= l.limit.get()
    });
    if is_enough == Ok(true) {
        yield_if_due();
    }
}
#[cold]
#[inline(never)]
fn yield_if_due() {
    MINE.with(Looks::yield_if_due);
}

/// This thread has looked, and found something or not.
#[inline(always)]
pub(crate) fn note(found_something: bool) {
    if found_something { found() } else { in_vain() }
}

/// For how many ticks turns may look at shared memory alone.
#[inline(always)]
pub(crate) fn of_short_turns() -> u32 {
    IN_FORCE.short_ticks.load(Ordering::Relaxed)
}

/// The tick of the adapter's thread.
pub(crate) fn tick() -> Duration {
    Duration::from_nanos(IN_FORCE.tick_ns.load(Ordering::Relaxed))
}

/// How long who waits for completions looks before it sleeps, where its looks turn the engine.
pub(crate) fn of_a_wait() -> Duration {
    Duration::from_nanos(IN_FORCE.wait_ns.load(Ordering::Relaxed))
}

/// How long the adapter's thread, which calls this, looks since it last had something to do.
pub(crate) fn of_the_thread() -> Duration {
    let sleep_factor = MINE.with(|l| l.sleeps_early());
    Duration::from_nanos(if sleep_factor { 0 } else { IN_FORCE.thread_ns.load(Ordering::Relaxed) })
}

impl Looks {
    fn yield_if_due(&self) {
        if !self.within.get() {
            self.give_way(&IN_FORCE, yield_now);
        }
    }

    /// The count is full: gives its CPU away by `give`, unless it holds on for now.
    fn give_way(&self, figures: &InForce, give: impl FnOnce()) {
        self.in_vain.set(0);
        let looks = figures.looks.load(Ordering::Relaxed);
        self.limit.set(looks);
        if looks == u32::MAX {
            return;
        }
        let before = monotonic_ns();
        if before < self.not_before_ns.get() {
            return;
        }
        give();
        let after = monotonic_ns();
        self.judge(figures, after - before, after);
    }

    /// Who else is on this CPU, by the time that a yield took.
    fn judge(&self, figures: &InForce, lost: u64, now: u64) {
        let sleep_factor = u64::from(figures.sleep_factor.load(Ordering::Relaxed));
        if lost < SWITCH_NS {
            // Nobody.
        } else if lost < COMPUTE_NS || sleep_factor == 0 {
            self.limit.set(figures.looks_in_company.load(Ordering::Relaxed));
        } else {
            let percent = u64::from(figures.hold_percent.load(Ordering::Relaxed));
            self.not_before_ns.set(now + lost * percent / 100 * share(now) / 128);
            self.sleep_early_until_ns.set(now + lost * sleep_factor);
        }
    }

    /// Whether somebody computes on this CPU.
    fn sleeps_early(&self) -> bool {
        let until = self.sleep_early_until_ns.get();
        if until != 0 && monotonic_ns() >= until {
            self.sleep_early_until_ns.set(0);
        }
        self.sleep_early_until_ns.get() != 0
    }
}

/// A random number below 256, of the clock's digits.
fn share(now: u64) -> u64 {
    now.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOKS: u32 = Patience::BUILT_IN.looks;
    const IN_COMPANY: u32 = Patience::BUILT_IN.looks_in_company;

    fn fresh() -> Looks {
        Looks {
            in_vain: Cell::new(0),
            limit: Cell::new(LOOKS),
            not_before_ns: Cell::new(0),
            sleep_early_until_ns: Cell::new(0),
            within: Cell::new(false),
        }
    }

    /// What a yield that took so long, and was over at `now`, has left: the limit, when the next one may come, and
    /// until when a sleep comes at once.
    fn judged(figures: Patience, lost: u64, now: u64) -> (u32, u64, u64) {
        let looks = fresh();
        looks.judge(&InForce::new(figures), lost, now);
        (looks.limit.get(), looks.not_before_ns.get(), looks.sleep_early_until_ns.get())
    }

    #[test]
    fn many_looks_that_are_one_give_way_behind_the_last() {
        let counted = || MINE.with(|l| l.in_vain.get());
        std::thread::spawn(move || {
            as_one_look(|| {
                (0..3 * LOOKS).for_each(|_| in_vain());
                assert_eq!(counted(), 3 * LOOKS, "a yield begins the count again");
                false
            });
            assert_eq!(counted(), 0, "it has yielded");
            (0..LOOKS - 1).for_each(|_| in_vain());
            assert!(as_one_look(|| true));
            assert_eq!(counted(), 0, "something was found");
            let panicked = std::panic::catch_unwind(|| as_one_look(|| panic!("within")));
            assert!(panicked.is_err());
            // The yields before may have found company on a busy machine.
            MINE.with(|l| {
                l.limit.set(LOOKS);
                l.not_before_ns.set(0);
            });
            (0..LOOKS).for_each(|_| in_vain());
            assert_eq!(counted(), 0, "it yields again");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_yield_to_nobody_changes_nothing() {
        assert_eq!(judged(Patience::BUILT_IN, SWITCH_NS - 1, 7_000), (LOOKS, 0, 0));
        assert!(!fresh().sleeps_early());
    }

    #[test]
    fn in_company_looks_are_fewer_until_it_has_gone() {
        for lost in [SWITCH_NS, COMPUTE_NS - 1] {
            assert_eq!(judged(Patience::BUILT_IN, lost, 7_000), (IN_COMPANY, 0, 0), "{lost}");
        }
        // Whatever the next yield finds, it is judged anew.
        let looks = fresh();
        looks.limit.set(IN_COMPANY);
        looks.in_vain.set(5);
        looks.not_before_ns.set(u64::MAX);
        looks.give_way(&IN_FORCE, || panic!("it yields, although it holds on"));
        assert_eq!((looks.in_vain.get(), looks.limit.get()), (0, LOOKS));
    }

    #[test]
    fn a_yield_is_judged_by_the_time_that_it_took() {
        let looks = fresh();
        looks.give_way(&IN_FORCE, || {
            let begin = monotonic_ns();
            while monotonic_ns() < begin + SWITCH_NS {}
        });
        // On a busy machine it may have taken longer.
        assert!(looks.limit.get() == IN_COMPANY || looks.sleep_early_until_ns.get() > 0, "it found nobody");
    }

    #[test]
    fn beside_one_who_computes_there_is_no_yield_for_a_random_share_of_what_was_lost() {
        for lost in [COMPUTE_NS, 4_000_000, 3_600_000_000_000] {
            const TIMES: u64 = 1000;
            let nows = (1..=TIMES).map(|i| i * 1_234_567);
            let mut holds: Vec<u64> = nows
                .map(|now| {
                    let (limit, not_before, shy_until) = judged(Patience::BUILT_IN, lost, now);
                    assert_eq!((limit, shy_until), (LOOKS, now + 25 * lost));
                    not_before - now
                })
                .collect();
            // Half of it on average, from nothing to all.
            let mean = holds.iter().sum::<u64>() / TIMES;
            assert!((lost * 45 / 100..lost * 55 / 100).contains(&mean), "{mean} of {lost}");
            holds.sort_unstable();
            assert!(holds[10] < lost / 20 && holds[990] > lost * 19 / 20 && holds[999] < lost, "of {lost}");
        }
    }

    #[test]
    fn the_figures_say_that_nobody_computes_or_that_there_is_no_yield() {
        let nobody = Patience { sleep_factor: 0, ..Patience::BUILT_IN };
        assert_eq!(judged(nobody, 4_000_000, 7_000), (IN_COMPANY, 0, 0));
        let never = Patience { looks: u32::MAX, ..Patience::BUILT_IN };
        let looks = fresh();
        looks.give_way(&InForce::new(never), || panic!("it yields"));
        assert_eq!(looks.limit.get(), u32::MAX);
    }

    #[test]
    fn who_is_shy_sleeps_without_a_look_until_its_time_is_over() {
        let (looks, none) = (Duration::from_nanos(Patience::BUILT_IN.thread_ns), Duration::ZERO);
        assert_eq!(of_the_thread(), looks);
        // For ever, so that it is not over before the test looks.
        MINE.with(|l| l.sleep_early_until_ns.set(u64::MAX));
        assert_eq!([of_the_thread(), of_the_thread()], [none; 2]);
        MINE.with(|l| l.sleep_early_until_ns.set(monotonic_ns()));
        assert_eq!(of_the_thread(), looks);
        assert_eq!(MINE.with(|l| l.sleep_early_until_ns.get()), 0);
    }

    #[test]
    fn two_that_take_each_other_for_one_who_computes_soon_do_so_no_more() {
        // Each runs until its time without yields is over, or its slice is.
        const SLICE_NS: u64 = 4_000_000;
        let pair = [fresh(), fresh()];
        let (mut now, mut lost, mut rounds) = (1, SLICE_NS, 0);
        while lost >= COMPUTE_NS {
            let one = &pair[rounds % 2];
            one.judge(&IN_FORCE, lost, now);
            lost = (one.not_before_ns.get() - now).min(SLICE_NS);
            now += lost + 1_234;
            rounds += 1;
            assert!(rounds < 1000, "they still do");
        }
        assert!(rounds < 100, "it took {rounds} rounds");
    }

    #[test]
    fn what_is_found_begins_the_count_again() {
        let count = || MINE.with(|l| l.in_vain.get());
        for n in 1..LOOKS {
            note(false);
            assert_eq!(count(), n);
        }
        note(true);
        assert_eq!(count(), 0);
        for _ in 1..LOOKS {
            in_vain();
        }
        found();
        assert_eq!(count(), 0);
        for n in 1..LOOKS {
            in_vain();
            assert_eq!(count(), n);
        }
        in_vain();
        assert_eq!(count(), 0, "it gave way");
    }
}
