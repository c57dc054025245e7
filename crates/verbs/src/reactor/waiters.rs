//! Tasks that wait for the next of many places or messages.
//!
//! A task may end with its last waker, and do anything then; a waker's clone is the program's code, too. So wakers are
//! cloned before the lock is taken, and given back, to be woken or dropped without it.

use std::collections::VecDeque;
use std::mem;
use std::task::Waker;

/// Tasks in the order in which they came. A task that is woken and goes without what it was woken for passes its turn on.
#[derive(Default)]
pub(super) struct Waiters {
    queue: VecDeque<(u64, Waker)>,
    next: u64,
}

/// A task's place among [`Waiters`].
#[derive(Default)]
pub(super) struct Ticket(Option<u64>);

/// The wakers that a task leaves which goes without what it waited for.
#[must_use = "to be passed on without a lock"]
pub(super) enum Left {
    Nothing,
    /// Its own waker.
    Own(Waker),
    /// The task had been woken: the next one is to be.
    Turn(Waker),
}

impl Left {
    pub(super) fn pass_on(self) {
        match self {
            Self::Nothing => {}
            Self::Own(own) => drop(own),
            Self::Turn(next) => next.wake(),
        }
    }
}

impl Waiters {
    /// Has `waker` woken in its turn. The one that it replaces is to be dropped without a lock.
    #[must_use = "to be dropped without a lock"]
    pub(super) fn wait(&mut self, ticket: &mut Ticket, waker: Waker) -> Option<Waker> {
        if let Some(own) = self.queue.iter_mut().find(|entry| Some(entry.0) == ticket.0) {
            return Some(mem::replace(&mut own.1, waker));
        }
        ticket.0 = Some(self.next);
        self.queue.push_back((self.next, waker));
        self.next += 1;
        None
    }

    /// A task has what it waited for. Its waker is to be dropped without a lock.
    #[must_use = "to be dropped without a lock"]
    pub(super) fn served(&mut self, ticket: &mut Ticket) -> Option<Waker> {
        let number = ticket.0.take()?;
        self.remove(number)
    }

    /// A task goes without. If it had been woken, the next one is to be.
    pub(super) fn leave(&mut self, ticket: &mut Ticket) -> Left {
        let Some(number) = ticket.0.take() else { return Left::Nothing };
        match self.remove(number) {
            Some(own) => Left::Own(own),
            None => self.next_waker().map_or(Left::Nothing, Left::Turn),
        }
    }

    fn remove(&mut self, number: u64) -> Option<Waker> {
        let at = self.queue.iter().position(|entry| entry.0 == number)?;
        self.queue.remove(at).map(|entry| entry.1)
    }

    /// The task whose turn it is, which has to be woken.
    pub(super) fn next_waker(&mut self) -> Option<Waker> {
        self.queue.pop_front().map(|entry| entry.1)
    }

    /// All tasks, which have to be woken.
    pub(super) fn all(&mut self, wakers: &mut Vec<Waker>) {
        if !self.queue.is_empty() {
            wakers.extend(self.queue.drain(..).map(|entry| entry.1));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_woken_task_that_goes_without_passes_its_turn_on() {
        let counts = [(); 3].map(|()| Arc::new(Count::default()));
        let mut tickets = [(); 3].map(|()| Ticket::default());
        let mut waiters = Waiters::default();
        for (ticket, count) in tickets.iter_mut().zip(&counts) {
            for _ in 0..2 {
                // Polled once more, it keeps its place.
                drop(waiters.wait(ticket, Waker::from(Arc::clone(count))));
            }
        }
        let woken = || counts.each_ref().map(|c| c.0.load(Ordering::Relaxed));
        waiters.next_waker().unwrap().wake();
        assert_eq!(woken(), [1, 0, 0]);
        // The third one had not been woken: nobody hears of its leaving.
        waiters.leave(&mut tickets[2]).pass_on();
        assert_eq!(woken(), [1, 0, 0]);
        waiters.leave(&mut tickets[0]).pass_on();
        assert_eq!(woken(), [1, 1, 0]);
        assert!(waiters.served(&mut tickets[1]).is_none(), "it was woken");
        assert!(waiters.next_waker().is_none());
        assert!(matches!(waiters.leave(&mut tickets[1]), Left::Nothing));
    }
}
