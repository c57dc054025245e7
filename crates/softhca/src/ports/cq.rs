//! The polling port of a completion queue.
#![allow(unsafe_code)] // the ports' contracts are the traits'; nothing unsafe is done here

use core::task::Waker;
use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hca_core::{Completion, CqHandle, CqPort, DeviceError, Notify};
use hca_turn_lock::Inside;

use crate::drive::glance::Glance;
use crate::drive::shared::Shared;
use crate::limits::MAX_CQE;
use crate::notify::fd::epoll_of;
use crate::options::Progress;
use crate::patience;
use crate::queues::cq::CqShared;
use crate::queues::ring::Consumer;
use crate::sync::Arc;

/// The polling side of a completion queue.
pub(crate) struct SoftCq {
    hca: Arc<Shared>,
    handle: CqHandle,
    /// Its completions have times.
    timed: bool,
    ring: Consumer<Completion>,
    shared: Arc<CqShared>,
    /// That of `CqShared::poller` since which `ring` goes on by itself.
    ring_version: u32,
    wait: Option<OwnedFd>,
    /// Counted in `Shared::waiters`.
    waiting: bool,
    /// It has a waker.
    has_waker: bool,
    /// Who waits sleeps on the adapter's descriptor, and is told by the waker.
    by_waker: bool,
    /// It was armed for its waker alone: the next poll is the last one before a sleep.
    is_last_look: bool,
    glance: Glance,
}

impl SoftCq {
    pub(crate) fn new(
        hca: Arc<Shared>,
        handle: CqHandle,
        timed: bool,
        ring: Consumer<Completion>,
        shared: Arc<CqShared>,
    ) -> Self {
        let ring_version = shared.poller.never_seen();
        Self {
            hca,
            handle,
            timed,
            ring,
            shared,
            ring_version,
            wait: None,
            waiting: false,
            has_waker: false,
            by_waker: false,
            is_last_look: false,
            glance: Glance::default(),
        }
    }
    /// Takes what stands in the ring, whose end was looked at just now.
    #[inline(always)]
    fn take(&mut self, out: &mut [Completion]) -> usize {
        self.come_in();
        let taken = self.ring.take_headers(out);
        drop(self.shared.poller.inside());
        if taken > 0 {
            self.waits_no_more();
        }
        taken
    }
    #[inline(never)]
    fn take_or_turn(&mut self, out: &mut [Completion]) -> usize {
        let n = self.take(out);
        // It may have been taken out meanwhile.
        if n == 0 {
            return self.turn(out);
        }
        patience::found();
        n
    }
    /// Turns the engine where the ring is empty, and takes what that brings.
    #[inline(never)]
    fn turn(&mut self, out: &mut [Completion]) -> usize {
        if out.is_empty() {
            return 0;
        }
        let is_last = core::mem::take(&mut self.is_last_look);
        match self.hca.poller_turn(self.handle, out, (is_last, self.waiting), &mut self.glance) {
            None => 0,
            // Another turned, or this queue was not as empty.
            Some(0) if self.ring.refresh() == self.ring.head() => 0,
            Some(0) => self.take(out),
            Some(n) => {
                self.waits_no_more();
                n
            }
        }
    }

    /// Keeps out who takes completions out of the ring.
    #[inline(always)]
    fn come_in(&mut self) {
        if self.shared.poller.enter(self.ring_version).map(Inside::stay).is_none() {
            self.enter_anew();
        }
    }
    /// Comes in, and goes on where the ring begins now: completions were taken out of it.
    #[cold]
    fn enter_anew(&mut self) {
        loop {
            let (version, ()) = self.shared.poller.copy(|()| self.ring.resume());
            self.ring_version = version;
            if let Some(inside) = self.shared.poller.enter(version) {
                return inside.stay();
            }
        }
    }

    /// Completions were taken. A queue that is still armed, as they came before it was, is waited for all the same: by
    /// a channel of many queues, say.
    #[inline]
    fn waits_no_more(&mut self) {
        if self.waiting && !self.shared.is_armed() {
            self.leave_waiters();
        }
    }
    #[cold]
    fn leave_waiters(&mut self) {
        if core::mem::take(&mut self.waiting) {
            self.hca.attention.remove_waiter();
        }
    }
}

impl Drop for SoftCq {
    fn drop(&mut self) {
        self.leave_waiters();
    }
}

// SAFETY: (1) the engine appends one completion a request, as it ends; slots of the ring are yielded once. (2) The ring
// hands slots over by Release and Acquire, behind what was placed; what is filled into `out` at once, this thread has
// placed itself, or found under the engine's lock. (3) `take_headers` takes no more than `out` has room for, and
// neither does `poller_turn`, which is given the same slice.
unsafe impl CqPort for SoftCq {
    #[inline]
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        if self.hca.fork.is_child() {
            return 0;
        }
        if self.ring.refresh() != self.ring.head() {
            return self.take_or_turn(out);
        }
        if self.hca.is_quiet(&mut self.glance) { 0 } else { self.turn(out) }
    }
    fn arm(&mut self, notify: Notify) {
        if self.hca.fork.is_child() {
            return;
        }
        self.shared.arm(notify);
        if (self.wait.is_some() || self.by_waker) && self.hca.progress != Progress::Thread {
            if !core::mem::replace(&mut self.waiting, true) {
                self.hca.attention.add_waiter();
            }
            self.hca.prepare_wait();
        }
        if self.wait.is_none() && !self.by_waker && self.has_waker {
            self.is_last_look = true;
            self.glance.forget();
            self.hca.program_sleeps();
        }
    }
    fn set_waker(&mut self, waker: &Waker) {
        if self.hca.fork.is_child() {
            return;
        }
        self.has_waker = true;
        self.shared.set_waker(waker);
    }
    fn wait_by_waker(&mut self) {
        self.by_waker = true;
    }
    fn poll_with_times(&mut self, out: &mut [Completion], at: &mut [u64]) -> Option<usize> {
        if !self.timed || self.hca.fork.is_child() {
            return None;
        }
        if self.ring.refresh() == self.ring.head() {
            let is_last = core::mem::take(&mut self.is_last_look);
            let (last, mut one) = ((is_last, self.waiting), [Completion::default()]);
            let here = self.hca.poller_turn(self.handle, &mut one, last, &mut self.glance);
            assert!(here.is_none_or(|n| n == 0), "completions with times stand in their ring");
            self.ring.refresh();
        }
        self.come_in();
        let taken = self.ring.take_with_cells(out, at);
        drop(self.shared.poller.inside());
        if taken > 0 {
            self.waits_no_more();
        }
        Some(taken)
    }
    fn resize(&mut self, depth: u32) -> Result<u32, DeviceError> {
        self.hca.fork.check()?;
        DeviceError::unless_within("completion queue depth", depth, 1, MAX_CQE)?;
        let Self { hca, handle, ring, .. } = self;
        let fits = hca.control(|e| e.cq(*handle).map(|entry| entry.resize(ring, depth)))?;
        let users = ring.tail().wrapping_sub(ring.head()).into();
        if fits { Ok(depth) } else { Err(DeviceError::InUse { what: "room of the completion queue", users }) }
    }
    fn wait_fd(&mut self) -> Result<BorrowedFd<'_>, DeviceError> {
        self.hca.fork.check()?;
        if self.wait.is_none() {
            let event = self.shared.event_fd()?;
            let epoll = if self.hca.progress == Progress::Thread {
                epoll_of(&[event])?
            } else {
                epoll_of(&[event, self.hca.turn_fd()?])?
            };
            self.wait = Some(epoll);
            // The queue may have been armed before there was a descriptor: the first wait returns at
            // once, and arming again prepares the next.
            self.shared.wake();
        }
        Ok(self.wait.as_ref().expect("made above").as_fd())
    }
    fn look_before_sleep(&self) -> Duration {
        // Where the adapter's thread does the work, that is who looks.
        if self.hca.progress == Progress::Thread { Duration::ZERO } else { patience::of_a_wait() }
    }
}

#[cfg(test)]
mod tests {
    use hca_core::QpHandle;
    use hca_fabric::LoopbackNet;

    use super::*;
    use crate::queues::cq::{CqEntry, Purge};
    use crate::queues::ring::ring;
    use crate::{Options, SoftHca};

    /// A queue pair goes on another thread, between a poll's look at the queue and its copy.
    #[test]
    fn a_poll_finds_nothing_where_completions_were_taken_out_that_came_behind_its_look() {
        let fabric = LoopbackNet::new().attach([10, 0, 0, 1].into());
        let inline = Options { progress: Progress::Inline, ..Options::default() };
        let hca = SoftHca::open(Box::new(fabric), inline).expect("an adapter opens");
        let (handle, qp) = (CqHandle { index: 0, generation: 0 }, QpHandle { index: 7, generation: 0 });
        let (producer, ring) = ring::<Completion>(8, 0);
        let shared = Arc::new(CqShared::new(hca.shared().attention.clone()));
        let mut entry = CqEntry::new(handle, producer, shared.clone());
        let mut port = SoftCq::new(hca.shared().clone(), handle, false, ring, shared);
        let mut show = |wr_id, qp| {
            entry.push(Completion { wr_id, qp, ..Completion::default() });
            entry.finish();
        };
        show(0, qp);
        port.ring.refresh();
        let other = QpHandle { index: 8, generation: 0 };
        [(1, qp), (2, qp), (3, other)].into_iter().for_each(|(wr_id, of)| show(wr_id, of));
        entry.purge(qp, Purge::All);
        let mut out = [Completion::default(); 4];
        assert_eq!((port.take(&mut out), out[0].wr_id, out[0].qp), (1, 3, other));
        assert_eq!(port.poll(&mut out), 0);
    }
}
