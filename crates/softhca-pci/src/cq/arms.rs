//! Completion queues that a driver may have armed by a doorbell that another doorbell has overwritten.
//!
//! All completion queues of a page are armed by doorbells in one place, and each doorbell names one queue. So behind
//! each doorbell all queues of the page are suspects; each look examines some of them.

use std::collections::VecDeque;

use crate::objects::Numbered;

/// The completion queues of a page, and which of them are suspects: so many from one of them on.
#[derive(Debug, Default)]
struct Page {
    cqs: Vec<u32>,
    next: usize,
    left: usize,
}

/// The completion queues of a function.
#[derive(Debug, Default)]
pub(crate) struct Arms {
    pages: Numbered<Page>,
    /// Pages with suspects, in the order of their turns: one suspect each.
    suspected: VecDeque<u32>,
}

impl Arms {
    pub(crate) fn insert(&mut self, uar: u32, cqn: u32) {
        self.pages.entry(uar).or_default().cqs.push(cqn);
    }

    pub(crate) fn remove(&mut self, uar: u32, cqn: u32) {
        let Some(page) = self.pages.get_mut(&uar) else { return };
        page.cqs.retain(|n| *n != cqn);
        if page.cqs.is_empty() {
            self.pages.remove(&uar);
        } else {
            // Whoever has moved is looked at, too.
            page.left = if page.left > 0 { page.cqs.len() } else { 0 };
        }
    }

    /// A completion queue of this page was armed, maybe behind others.
    pub(crate) fn suspect(&mut self, uar: u32) {
        let Some(page) = self.pages.get_mut(&uar) else { return };
        if page.left == 0 {
            self.suspected.push_back(uar);
        }
        page.left = page.cqs.len();
    }

    /// Takes a suspect: of the pages in turn, so that none waits for one that is rung all the time.
    pub(crate) fn next_suspect(&mut self) -> Option<u32> {
        loop {
            let uar = self.suspected.pop_front()?;
            // A page may be without queues by now.
            let Some(page) = self.pages.get_mut(&uar).filter(|page| page.left > 0) else { continue };
            page.left -= 1;
            page.next = (page.next + 1) % page.cqs.len();
            if page.left > 0 {
                self.suspected.push_back(uar);
            }
            return Some(page.cqs[page.next]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(arms: &mut Arms) -> Vec<u32> {
        let mut all: Vec<u32> = std::iter::from_fn(|| arms.next_suspect()).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn all_queues_of_a_page_are_suspects_once_behind_a_doorbell() {
        let mut arms = Arms::default();
        for cqn in 0..10 {
            arms.insert(cqn % 2, cqn);
        }
        assert_eq!(all(&mut arms), [0_u32; 0]);
        arms.suspect(1);
        assert_eq!(all(&mut arms), [1, 3, 5, 7, 9]);
        assert_eq!(all(&mut arms), [0_u32; 0]);
        // Doorbells of both pages, and of one again in the middle.
        for uar in [0, 1, 7] {
            arms.suspect(uar);
        }
        assert!(arms.next_suspect().is_some_and(|cqn| cqn % 2 == 0));
        arms.suspect(0);
        assert_eq!(all(&mut arms), (0..10).collect::<Vec<_>>());
        // Queues go in the middle, and a page with all of its own.
        arms.suspect(0);
        arms.next_suspect();
        arms.remove(0, 4);
        assert_eq!(all(&mut arms), [0, 2, 6, 8]);
        arms.suspect(1);
        for cqn in [1, 3, 5, 7, 9] {
            arms.remove(1, cqn);
        }
        assert_eq!(all(&mut arms), [0_u32; 0]);
        arms.insert(1, 3);
        arms.suspect(1);
        assert_eq!(all(&mut arms), [3]);
    }

    #[test]
    fn a_page_that_is_rung_all_the_time_delays_no_other_page() {
        let mut arms = Arms::default();
        arms.insert(1, 1);
        for cqn in 2..400 {
            arms.insert(2, cqn);
        }
        for order in [[1, 2], [2, 1]] {
            order.into_iter().for_each(|uar| arms.suspect(uar));
            let mut seen = false;
            for _ in 0..4 {
                seen |= arms.next_suspect() == Some(1);
                arms.suspect(2);
            }
            assert!(seen, "{order:?}");
        }
    }
}
