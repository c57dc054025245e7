//! Tasks that wait for the next of many places or messages.

use std::collections::VecDeque;
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

impl Waiters {
    /// Has `waker` woken in its turn.
    pub(super) fn wait(&mut self, ticket: &mut Ticket, waker: &Waker) {
        if let Some(own) = self.queue.iter_mut().find(|entry| Some(entry.0) == ticket.0) {
            own.1.clone_from(waker);
            return;
        }
        ticket.0 = Some(self.next);
        self.queue.push_back((self.next, waker.clone()));
        self.next += 1;
    }

    /// A task has what it waited for.
    pub(super) fn served(&mut self, ticket: &mut Ticket) {
        if let Some(number) = ticket.0.take() {
            self.queue.retain(|entry| entry.0 != number);
        }
    }

    /// A task goes without. If it had been woken, the next one is to be.
    pub(super) fn leave(&mut self, ticket: &mut Ticket) -> Option<Waker> {
        let number = ticket.0.take()?;
        match self.queue.iter().position(|entry| entry.0 == number) {
            Some(i) => {
                self.queue.remove(i);
                None
            }
            None => self.next_waker(),
        }
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
            waiters.wait(ticket, &Waker::from(Arc::clone(count)));
            waiters.wait(ticket, &Waker::from(Arc::clone(count))); // polled once more: it keeps its place
        }
        let woken = || counts.each_ref().map(|c| c.0.load(Ordering::Relaxed));
        waiters.next_waker().unwrap().wake();
        assert_eq!(woken(), [1, 0, 0]);
        // The third one had not been woken: nobody hears of its leaving.
        assert!(waiters.leave(&mut tickets[2]).is_none());
        waiters.leave(&mut tickets[0]).unwrap().wake();
        assert_eq!(woken(), [1, 1, 0]);
        waiters.served(&mut tickets[1]);
        assert!(waiters.next_waker().is_none());
        assert!(waiters.leave(&mut tickets[1]).is_none());
    }
}
