//! The guard's learning: whether the adapter's thread looks for more work before it sleeps, and the bound of its
//! sleep.

use core::time::Duration;

use hca_core::Instant;

use crate::patience;

/// The longest sleep of a guard whose program leaves work, at first, and at most.
fn horizon() -> (Duration, Duration) {
    // 250 us, shorter than any retransmit timer, and 8 ms.
    (patience::tick() / 4, patience::tick() * 8)
}
/// Looks in vain in a row, after which the thread sleeps without a look.
const IN_VAIN: u32 = 2;
/// Sleeps with work after which the thread tries a look again, at first and at most.
const UNTIL_TRY: (u32, u32) = (64, 1 << 16);

/// Whether the thread looks for more work, after it did some, before it sleeps.
///
/// A thread that has a CPU of its own finds the next message by a look, without a wake-up. A thread that shares its CPU
/// with a program that spins on its memory takes, by a look, the time in which that program would have sent the next
/// message. It must not yield either: a thread that yields runs after the slice of the other one, milliseconds later,
/// while a thread that sleeps runs as soon as it is woken. Nothing tells the thread in which of the two cases it is. So
/// it learns from the result of its looks, and now and then tries a look again.
#[derive(Debug)]
pub(crate) struct Looks {
    /// Looks in vain in a row, tries included.
    in_vain: u32,
    /// Sleeps that ended with work since the last look, and their number until the next try.
    slept: u32,
    until_try: u32,
}

impl Default for Looks {
    fn default() -> Self {
        Self { in_vain: 0, slept: 0, until_try: UNTIL_TRY.0 }
    }
}

impl Looks {
    /// The thread found work, by a look or after a sleep. Returns whether it looks for more.
    pub(crate) fn found(&mut self, by_look: bool) -> bool {
        if by_look {
            *self = Self::default();
        }
        if self.in_vain < IN_VAIN {
            return true;
        }
        self.slept += 1;
        self.slept >= self.until_try
    }
    /// A look has ended without work.
    pub(crate) fn in_vain(&mut self) {
        self.in_vain = self.in_vain.saturating_add(1);
        if self.in_vain > IN_VAIN {
            self.until_try = (2 * self.until_try).min(UNTIL_TRY.1);
        }
        self.slept = 0;
    }
}

/// Whether the thread holds the acknowledgements of what it received back until the program answers.
///
/// The answer to what a peer wrote leaves with the program's next post, and an acknowledgement that is owed goes along.
/// An acknowledgement that leaves earlier costs the peer's thread a wake-up of its own, and so, where no CPU is free,
/// the peer's program the CPU just when the answer comes. A peer that waits for its completion only, and not for an
/// answer, gets it late. So the thread learns from what became of those that it held back.
#[derive(Debug)]
pub(crate) struct HeldAcks {
    tries: Looks,
    /// What comes next is held back.
    holds: bool,
    /// Until when acknowledgements are held back now.
    until: Option<Instant>,
}

impl Default for HeldAcks {
    fn default() -> Self {
        Self { tries: Looks::default(), holds: true, until: None }
    }
}

impl HeldAcks {
    /// Whether a turn holds back what becomes due. `owed`: acknowledgements are owed before the turn.
    pub(crate) fn hold_back(&mut self, now: Instant, owed: bool) -> bool {
        let Some(until) = self.until else { return self.holds };
        if owed && now < until {
            return true;
        }
        self.until = None;
        if owed {
            self.tries.in_vain();
        }
        self.holds = self.tries.found(!owed);
        // What has waited until now leaves, whatever else comes.
        self.holds && !owed
    }
    /// Such a turn has held back what became due, or not. `worked`: it found something. `owed`: acknowledgements are
    /// owed behind it. `hold`: for how long they are held back.
    pub(crate) fn turned(&mut self, now: Instant, held_back: bool, worked: bool, owed: bool, hold: Duration) {
        if !held_back {
            self.holds |= worked && self.tries.found(false);
        } else if owed && self.until.is_none() {
            self.until = Some(now + hold);
        }
    }
    /// Whether what comes next is held back.
    pub(crate) fn holds(&self) -> bool {
        self.holds
    }
    /// Until when acknowledgements are held back.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }
}

/// The bound of the thread's sleeps beside a program that leaves work to it, as the timers of what it posts.
///
/// A sleep that the bound ends costs the program some 20 us of its CPU, and may cost it milliseconds: a thread that
/// had more of a CPU than the program since it last slept does not run at once when a packet wakes it. So sleeps whose
/// bound was in vain make the next ones longer, and a timer may fire so much later. One that was due makes them shorter
/// again.
#[derive(Debug)]
pub(crate) struct Horizon {
    /// How often the program had left something, at the last sleep.
    seen: u32,
    bound: Duration,
}

impl Horizon {
    pub(crate) fn new(left: u32) -> Self {
        Self { seen: left, bound: horizon().0 }
    }
    /// The bound of the next sleep. There is none if the program has left nothing since the last sleep began.
    pub(crate) fn next(&mut self, left: u32) -> Option<Duration> {
        let before = core::mem::replace(&mut self.seen, left);
        (before != left).then_some(self.bound)
    }
    /// The thread has a CPU of its own: its sleeps cost the program nothing.
    pub(crate) fn begin_again(&mut self) {
        self.bound = horizon().0;
    }
    /// The bound, where there is one.
    pub(crate) fn bound(&self) -> Duration {
        self.bound
    }
    /// How much later than due a timer may fire that the program leaves.
    pub(crate) fn late(&self) -> Duration {
        self.bound - horizon().0
    }
    /// A sleep beside a program that spins has ended, and not by packets. `worked`: a timer was due.
    pub(crate) fn ended(&mut self, worked: bool) {
        let (first, last) = horizon();
        self.bound = if worked { (self.bound / 2).max(first) } else { (2 * self.bound).min(last) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many messages, of which `near` tells whether one comes while the thread looks; the number of looks in vain.
    fn looks_in_vain(looks: &mut Looks, messages: u32, near: impl Fn(u32) -> bool) -> u32 {
        let mut looking = false;
        let mut vain = 0;
        for message in 0..messages {
            let by_look = looking && near(message);
            if looking && !by_look {
                looks.in_vain();
                vain += 1;
            }
            looking = looks.found(by_look);
        }
        vain
    }

    #[test]
    fn a_thread_with_a_cpu_of_its_own_looks_on_and_on() {
        let mut looks = Looks::default();
        assert_eq!(looks_in_vain(&mut looks, 10_000, |_| true), 0);
        assert!(looks.found(true));
        // Now and then a message is late.
        assert_eq!(looks_in_vain(&mut looks, 10_000, |n| n % 10 != 9), 1000);
        assert!(looks.found(true));
    }

    #[test]
    fn a_thread_whose_looks_hold_its_peer_up_sleeps_at_once_and_tries_ever_more_rarely() {
        let mut looks = Looks::default();
        assert_eq!(looks_in_vain(&mut looks, 1 + IN_VAIN, |_| false), IN_VAIN);
        // 64, 128, .., 65,536, and then 65,536 again.
        assert_eq!(looks_in_vain(&mut looks, 8192, |_| false), 7);
        assert_eq!(looks_in_vain(&mut looks, 1 << 17, |_| false), 4);
        assert_eq!(looks_in_vain(&mut looks, 1 << 17, |_| false), 2);
    }

    #[test]
    fn a_try_that_finds_work_begins_the_looks_again() {
        let mut looks = Looks::default();
        looks_in_vain(&mut looks, 1 + IN_VAIN, |_| false);
        assert_eq!(looks_in_vain(&mut looks, 10_000, |_| true), 0);
        assert!(looks.found(true));
        assert_eq!(looks_in_vain(&mut looks, 1 + IN_VAIN, |_| false), IN_VAIN);
    }

    #[test]
    fn bounds_in_vain_make_sleeps_longer_and_one_that_was_due_makes_them_shorter() {
        let mut own = Horizon::new(0);
        let mut bound_behind = |worked| {
            own.ended(worked);
            assert_eq!(own.late() + horizon().0, own.bound());
            own.bound()
        };
        let in_vain: Vec<_> = (0..7).map(|_| bound_behind(false).as_micros()).collect();
        assert_eq!(in_vain, [500, 1000, 2000, 4000, 8000, 8000, 8000]);
        let due: Vec<_> = (0..6).map(|_| bound_behind(true).as_micros()).collect();
        assert_eq!(due, [4000, 2000, 1000, 500, 250, 250]);
        bound_behind(false);
        own.begin_again();
        assert_eq!(own.late(), Duration::ZERO);
    }

    #[test]
    fn only_a_program_that_leaves_work_bounds_the_sleeps_of_its_guard() {
        let mut own = Horizon::new(7);
        assert_eq!(own.next(7), None);
        assert_eq!([8, 8, 8].map(|left| own.next(left)), [Some(horizon().0), None, None]);
        assert_eq!([9, 10, 10].map(|left| own.next(left)), [Some(horizon().0), Some(horizon().0), None]);
    }

    /// What a thread does that holds acknowledgements back as it has learned: one message, and the turn in which it
    /// looks after what it has held back, `later`. Returns whether it has held back.
    fn message(held: &mut HeldAcks, now: Instant, later: Duration, answered: bool) -> bool {
        let holds = held.hold_back(now, false);
        held.turned(now, holds, true, holds, horizon().0);
        assert_eq!(held.until(), holds.then_some(now + horizon().0), "a bound of the thread's sleep");
        if holds {
            let owed = !answered;
            let still = held.hold_back(now + later, owed);
            held.turned(now + later, still, owed && !still, owed && still, horizon().0);
        }
        holds
    }

    #[test]
    fn acknowledgements_that_leave_with_answers_are_held_back_on_and_on() {
        let mut held = HeldAcks::default();
        for n in 0..10_000 {
            assert!(message(&mut held, Instant::from_nanos(n * 100_000), horizon().0 / 5, true));
            assert_eq!(held.until(), None);
        }
    }

    #[test]
    fn acknowledgements_that_nothing_follows_are_soon_held_back_ever_more_rarely() {
        let mut held = HeldAcks::default();
        let now = |n: u64| Instant::from_nanos(n * 100_000);
        let holds = (0..1000).filter(|n| message(&mut held, now(*n), horizon().0, false)).count();
        assert!((3..=7).contains(&holds), "{holds}");
        // As soon as a try meets an answer, all are held back.
        let until_answered = (0..10_000).find(|n| message(&mut held, now(*n), horizon().0 / 5, true));
        assert!(until_answered.is_some());
        assert!((0..100).all(|n| message(&mut held, now(n), horizon().0 / 5, true)));
    }

    #[test]
    fn no_acknowledgement_is_held_back_for_longer_than_its_time() {
        let (mut held, begin) = (HeldAcks::default(), Instant::from_nanos(7));
        // What was owed before the thread came is so, too, although its turn finds nothing.
        assert!(held.hold_back(begin, true));
        held.turned(begin, true, false, true, horizon().0);
        assert_eq!(held.until(), Some(begin + horizon().0));
        // More that comes meanwhile waits no longer than the first.
        let later = begin + horizon().0 / 2;
        assert!(held.hold_back(later, true));
        held.turned(later, true, true, true, horizon().0);
        assert_eq!(held.until(), Some(begin + horizon().0));
        assert!(!held.hold_back(begin + horizon().0, true));
        assert_eq!(held.until(), None);
    }
}
