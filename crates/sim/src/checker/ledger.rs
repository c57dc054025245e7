//! The checker of completions: every request ends in exactly one completion.

use std::collections::VecDeque;

use hca_core::{Instant, WcStatus};

use super::Breach;

/// The order of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The order of posts; after a failure all later requests are flushed (queues of one queue pair).
    Fifo,
    /// Any order, each on its own (a shared receive queue).
    Any,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    wr_id: u64,
    signaled: bool,
    posted: Instant,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The request's id, as posted.
    pub wr_id: u64,
    /// The status; success also for an unsignalled request that a later completion covers. A request whose completion
    /// was lost, because its [queue overran](Ledger::overran), counts as flushed: its outcome is unknown.
    pub status: WcStatus,
}

/// The outstanding requests of one queue.
#[derive(Clone, Debug)]
pub struct Ledger {
    order: Order,
    entries: VecDeque<Entry>,
    failed: Option<WcStatus>,
    /// The completion queue overran.
    lossy: bool,
}

impl Ledger {
    /// The ledger of an empty queue.
    pub fn new(order: Order) -> Self {
        Self { order, entries: VecDeque::new(), failed: None, lossy: false }
    }
    /// Records a posted request. Receive requests are always signalled.
    pub fn post(&mut self, wr_id: u64, signaled: bool, now: Instant) {
        self.entries.push_back(Entry { wr_id, signaled, posted: now });
    }
    /// Records that the completion queue overran, as the device reported: from now on completions may be missing.
    pub fn overran(&mut self) {
        self.lossy = true;
    }
    /// Records a completion, and returns the requests that have ended by it, oldest first.
    ///
    /// # Errors
    /// The request is not outstanding, overtook another, was not signalled, or was not flushed though
    /// an earlier one failed.
    pub fn complete(&mut self, wr_id: u64, status: WcStatus) -> Result<Vec<Ended>, Breach> {
        let Some(at) = self.entries.iter().position(|e| e.wr_id == wr_id) else {
            return Err(Breach::Unknown { wr_id, status });
        };
        if self.order == Order::Any {
            self.entries.remove(at);
            return Ok(vec![Ended { wr_id, status }]);
        }
        if let Some(first) = self.failed.filter(|_| status != WcStatus::WrFlushed) {
            return Err(Breach::NotFlushed { wr_id, status, first });
        }
        // After a failure the unsignalled ones complete as well.
        let skipped = self.entries.iter().take(if self.lossy { 0 } else { at });
        if let Some(e) = skipped.into_iter().find(|e| e.signaled || self.failed.is_some()) {
            return Err(Breach::OutOfOrder { wr_id, status, earlier: e.wr_id });
        }
        if status == WcStatus::Success && !self.entries[at].signaled {
            return Err(Breach::NotSignaled { wr_id });
        }
        if status != WcStatus::Success {
            self.failed = Some(status);
        }
        // A success tells that all before it ended well, even where their own completions were lost.
        let before = if self.lossy { status } else { WcStatus::Success };
        let before = if before == WcStatus::Success { before } else { WcStatus::WrFlushed };
        let mut ended: Vec<_> =
            self.entries.drain(..=at).map(|e| Ended { wr_id: e.wr_id, status: before }).collect();
        if let Some(last) = ended.last_mut() {
            last.status = status;
        }
        Ok(ended)
    }
    /// Records that the device gave a request back unused, as it does with those of a shared receive queue whose queue
    /// pair goes.
    ///
    /// # Errors
    /// The request is not outstanding.
    pub fn returned(&mut self, wr_id: u64) -> Result<(), Breach> {
        let at = self.entries.iter().position(|e| e.wr_id == wr_id).ok_or(Breach::NotHeld { wr_id })?;
        self.entries.remove(at);
        Ok(())
    }
    /// The status of the first failure, if there was one.
    pub fn failed(&self) -> Option<WcStatus> {
        self.failed
    }
    /// The outstanding requests, oldest first.
    pub fn outstanding(&self) -> impl Iterator<Item = u64> {
        self.entries.iter().map(|e| e.wr_id)
    }
    /// The number of outstanding requests.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    /// Whether no request is outstanding.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
    /// The signalled request that has waited longest, and the time of its post.
    pub fn oldest_signaled(&self) -> Option<(u64, Instant)> {
        self.entries.iter().find(|e| e.signaled).map(|e| (e.wr_id, e.posted))
    }
    /// Ends the ledger when no more completions can come: takes out the unsignalled requests at the end, which
    /// succeeded if there was no failure. After an overrun all requests are taken out.
    ///
    /// # Errors
    /// Signalled ones, or any after a failure, are outstanding, and the completion queue did not overrun.
    pub fn finish(&mut self) -> Result<Vec<Ended>, Breach> {
        if self.lossy {
            let lost = |e: Entry| Ended { wr_id: e.wr_id, status: WcStatus::WrFlushed };
            return Ok(self.entries.drain(..).map(lost).collect());
        }
        if let Some(e) = self.entries.iter().find(|e| e.signaled || self.failed.is_some()) {
            return Err(Breach::Unfinished { wr_id: e.wr_id, count: self.entries.len() });
        }
        Ok(self.entries.drain(..).map(|e| Ended { wr_id: e.wr_id, status: WcStatus::Success }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use WcStatus::{RetryExceeded, Success, WrFlushed};

    fn ledger(signaled: &[bool]) -> Ledger {
        let mut l = Ledger::new(Order::Fifo);
        for (n, s) in signaled.iter().enumerate() {
            l.post(n as u64, *s, Instant::ZERO);
        }
        l
    }
    fn ids(ended: &[Ended]) -> Vec<(u64, WcStatus)> {
        ended.iter().map(|e| (e.wr_id, e.status)).collect()
    }

    #[test]
    fn a_completion_covers_the_unsignalled_ones_before_it() {
        let mut l = ledger(&[false, false, true]);
        assert_eq!(ids(&l.complete(2, Success).unwrap()), [(0, Success), (1, Success), (2, Success)]);
        assert_eq!(l.complete(2, Success), Err(Breach::Unknown { wr_id: 2, status: Success }));
    }

    #[test]
    fn a_signalled_one_is_not_overtaken() {
        let mut l = ledger(&[true, true]);
        let status = Success;
        assert_eq!(l.complete(1, status), Err(Breach::OutOfOrder { wr_id: 1, status, earlier: 0 }));
    }

    #[test]
    fn an_unsignalled_success_has_no_completion() {
        assert_eq!(ledger(&[false]).complete(0, Success), Err(Breach::NotSignaled { wr_id: 0 }));
    }

    #[test]
    fn after_a_failure_each_is_flushed_in_order() {
        let mut l = ledger(&[false, false, false, true]);
        assert_eq!(ids(&l.complete(1, RetryExceeded).unwrap()), [(0, Success), (1, RetryExceeded)]);
        assert!(matches!(l.complete(2, Success), Err(Breach::NotFlushed { .. })));
        assert!(matches!(l.complete(3, WrFlushed), Err(Breach::OutOfOrder { earlier: 2, .. })));
        assert!(matches!(l.finish(), Err(Breach::Unfinished { wr_id: 2, count: 2 })));
        assert_eq!(ids(&l.complete(2, WrFlushed).unwrap()), [(2, WrFlushed)]);
        assert_eq!(ids(&l.complete(3, WrFlushed).unwrap()), [(3, WrFlushed)]);
        assert_eq!(l.finish(), Ok(vec![]));
    }

    #[test]
    fn a_shared_queue_completes_in_any_order() {
        let mut l = Ledger::new(Order::Any);
        (0..3).for_each(|n| l.post(n, true, Instant::ZERO));
        assert_eq!(ids(&l.complete(2, WrFlushed).unwrap()), [(2, WrFlushed)]);
        assert_eq!(ids(&l.complete(0, Success).unwrap()), [(0, Success)]);
        assert!(matches!(l.finish(), Err(Breach::Unfinished { wr_id: 1, count: 1 })));
    }

    #[test]
    fn a_request_comes_back_once_and_does_not_complete_any_more() {
        let mut l = Ledger::new(Order::Any);
        (0..2).for_each(|n| l.post(n, true, Instant::ZERO));
        assert_eq!(l.returned(0), Ok(()));
        assert_eq!(l.returned(0), Err(Breach::NotHeld { wr_id: 0 }));
        assert!(matches!(l.complete(0, Success), Err(Breach::Unknown { wr_id: 0, .. })));
        assert_eq!(l.len(), 1);
    }

    #[test]
    fn a_success_behind_an_overrun_tells_of_all_before_it_and_a_failure_of_none() {
        let mut l = ledger(&[true, false, true, true, false, true]);
        l.overran();
        assert_eq!(ids(&l.complete(2, Success).unwrap()), [(0, Success), (1, Success), (2, Success)]);
        let flushed = [(3, WrFlushed), (4, WrFlushed)];
        assert_eq!(ids(&l.complete(4, WrFlushed).unwrap()), flushed);
        assert_eq!(ids(&l.finish().unwrap()), [(5, WrFlushed)]);
        assert!(l.is_empty());
        assert_eq!(l.complete(0, Success), Err(Breach::Unknown { wr_id: 0, status: Success }));
    }
}
