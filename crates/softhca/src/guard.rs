//! The guard's learning: whether the adapter's thread looks for more work before it sleeps, and the bound of its
//! sleep.

use core::time::Duration;

/// The longest sleep of a guard whose program leaves work: shorter than any retransmit timer.
pub(crate) const HORIZON: Duration = Duration::from_micros(250);
/// Looks in vain in a row, after which the thread sleeps without a look.
const IN_VAIN: u32 = 2;
/// Sleeps with work after which the thread tries a look again, at first and at most.
const UNTIL_TRY: (u32, u32) = (64, 4096);

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

/// The bound of the thread's sleeps by what its program leaves to it.
#[derive(Debug)]
pub(crate) struct Horizon {
    /// How often the program had left something, at the last sleep.
    seen: u32,
}

impl Horizon {
    pub(crate) fn new(left: u32) -> Self {
        Self { seen: left }
    }
    /// The bound of the next sleep. There is none if the program has left nothing since the last sleep began.
    pub(crate) fn next(&mut self, left: u32) -> Option<Duration> {
        let before = core::mem::replace(&mut self.seen, left);
        (before != left).then_some(HORIZON)
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
        // 64, 128, .., 4096, and then 4096 again.
        assert_eq!(looks_in_vain(&mut looks, 8192, |_| false), 7);
        assert_eq!(looks_in_vain(&mut looks, 8192, |_| false), 2);
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
    fn only_a_program_that_leaves_work_bounds_the_sleeps_of_its_guard() {
        let mut horizon = Horizon::new(7);
        assert_eq!(horizon.next(7), None);
        assert_eq!([8, 8, 8].map(|left| horizon.next(left)), [Some(HORIZON), None, None]);
        assert_eq!([9, 10, 10].map(|left| horizon.next(left)), [Some(HORIZON), Some(HORIZON), None]);
    }
}
