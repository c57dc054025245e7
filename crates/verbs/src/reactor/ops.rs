//! Requests in flight whose futures wait: a completion finds its future's waker, and a request whose future was dropped
//! keeps its buffers until they are reclaimed.

use std::mem;
use std::task::Waker;

use hca_core::{QpHandle, WcOpcode, WcStatus};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    pub(super) qp: QpHandle,
    pub(super) opcode: WcOpcode,
    pub(super) status: WcStatus,
    pub(super) vendor_code: u8,
}

/// A request whose future was dropped: its number as the program gave it, and what it gives back.
pub(super) struct Abandoned<P> {
    pub(super) id: u64,
    pub(super) ending: Ending,
    pub(super) parts: Vec<P>,
}

/// The requests of one send queue, each by the number that its completion carries.
pub(super) struct Ops<P> {
    slots: Vec<Slot<P>>,
    free: Vec<u32>,
    /// Requests whose futures were dropped, and that have not completed.
    abandoned: u32,
    /// Requests that have not completed, those among them.
    in_flight: u32,
}

struct Slot<P> {
    /// Counts the requests that had this slot, so that none is taken for another.
    generation: u32,
    state: State,
    /// The program's number.
    id: u64,
    /// The parts that the request gives back. The slot's next request uses their room again.
    parts: Vec<P>,
}

enum State {
    Free,
    Waiting(Option<Waker>),
    Abandoned,
    Done(Ending),
}

impl<P> Ops<P> {
    pub(super) fn with_capacity(count: usize) -> Self {
        Self { slots: Vec::with_capacity(count), free: Vec::with_capacity(count), abandoned: 0, in_flight: 0 }
    }

    /// A number for a request that is about to be posted.
    pub(super) fn begin(&mut self, id: u64) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            // A future that is not polled keeps its slot, so there may be more of them than the queue has places.
            self.slots.push(Slot { generation: 0, state: State::Free, id: 0, parts: Vec::with_capacity(1) });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.state = State::Waiting(None);
        slot.id = id;
        self.in_flight += 1;
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    /// The request was refused, or its future has taken all.
    pub(super) fn end(&mut self, key: u64) {
        if let Some(slot) = self.slot(key) {
            let before = mem::replace(&mut slot.state, State::Free);
            slot.parts.clear();
            self.free.push(key as u32);
            self.in_flight -= u32::from(matches!(before, State::Waiting(_)));
        }
    }

    /// A completion came. Its future is to be woken; one that was dropped leaves what it owned; of a number that is
    /// nobody's the parts come back untouched.
    pub(super) fn complete<I: Iterator<Item = P>>(
        &mut self,
        key: u64,
        ending: Ending,
        parts: I,
        wakers: &mut Vec<Waker>,
    ) -> Option<Abandoned<P>> {
        let Some(slot) = self.slot(key) else {
            return Some(Abandoned { id: key, ending, parts: parts.collect() });
        };
        match mem::replace(&mut slot.state, State::Done(ending)) {
            State::Waiting(waker) => {
                slot.parts.extend(parts);
                wakers.extend(waker);
                self.in_flight -= 1;
                None
            }
            State::Abandoned => {
                let abandoned = Abandoned { id: slot.id, ending, parts: parts.collect() };
                self.abandoned -= 1;
                self.in_flight -= 1;
                self.end(key);
                Some(abandoned)
            }
            // It has completed before, or is nobody's.
            before @ (State::Free | State::Done(_)) => {
                slot.state = before;
                Some(Abandoned { id: key, ending, parts: parts.collect() })
            }
        }
    }

    /// How the request ended; until it has, `waker` is kept for its completion. The one that it replaces is left there,
    /// to be dropped without a lock.
    pub(super) fn poll(&mut self, key: u64, waker: &mut Option<Waker>) -> Option<Ending> {
        let slot = self.slot(key).expect("a request keeps its slot until its future is done");
        match &mut slot.state {
            State::Done(ending) => Some(*ending),
            State::Waiting(kept) => {
                if waker.is_some() {
                    mem::swap(kept, waker);
                }
                None
            }
            State::Free | State::Abandoned => unreachable!("the slot is its future's"),
        }
    }

    /// The parts of a request that has ended. [`end`](Self::end) follows.
    pub(super) fn take_parts(&mut self, key: u64) -> impl Iterator<Item = P> {
        self.slot(key).expect("it has ended").parts.drain(..)
    }

    /// Its future is dropped: what it owned comes back now if it has ended, or when it completes. Its waker is to be
    /// dropped without a lock.
    pub(super) fn abandon(&mut self, key: u64) -> (Option<Abandoned<P>>, Option<Waker>) {
        let Some(slot) = self.slot(key) else { return (None, None) };
        match mem::replace(&mut slot.state, State::Abandoned) {
            State::Done(ending) => {
                let abandoned = Abandoned { id: slot.id, ending, parts: mem::take(&mut slot.parts) };
                self.end(key);
                (Some(abandoned), None)
            }
            before => {
                self.abandoned += 1;
                (None, if let State::Waiting(waker) = before { waker } else { None })
            }
        }
    }

    /// Requests whose futures were dropped, and that have not completed.
    pub(super) fn abandoned(&self) -> u32 {
        self.abandoned
    }

    /// Requests that have not completed.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The tasks of all requests that have not completed.
    pub(super) fn all(&mut self, wakers: &mut Vec<Waker>) {
        for slot in &mut self.slots {
            if let State::Waiting(waker) = &mut slot.state {
                wakers.extend(waker.take());
            }
        }
    }

    fn slot(&mut self, key: u64) -> Option<&mut Slot<P>> {
        let (index, generation) = (key as u32 as usize, (key >> 32) as u32);
        self.slots
            .get_mut(index)
            .filter(|slot| slot.generation == generation && !matches!(slot.state, State::Free))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    pub(super) const ENDING: Ending = Ending {
        qp: QpHandle { index: 1, generation: 1 },
        opcode: WcOpcode::Send,
        status: WcStatus::Success,
        vendor_code: 0,
    };

    #[test]
    fn a_request_that_was_abandoned_leaves_what_it_owned_and_its_slot() {
        let (mut ops, mut wakers) = (Ops::with_capacity(1), Vec::new());
        let first = ops.begin(70);
        assert!(ops.poll(first, &mut Some(Waker::noop().clone())).is_none());
        assert!(ops.abandon(first).0.is_none());
        assert_eq!(ops.abandoned(), 1);
        let left = ops.complete(first, ENDING, ["a", "b"].into_iter(), &mut wakers).unwrap();
        assert_eq!((left.id, left.parts, ops.abandoned()), (70, vec!["a", "b"], 0));
        assert!(wakers.is_empty(), "nobody waits");
        let second = ops.begin(71);
        assert_eq!((second as u32, second == first), (first as u32, false), "the same slot, another request");
        assert_eq!(
            ops.complete(first, ENDING, ["c"].into_iter(), &mut wakers).unwrap().id,
            first,
            "a stale number"
        );
        assert!(ops.complete(second, ENDING, ["d"].into_iter(), &mut wakers).is_none());
        let left = ops.abandon(second).0.unwrap();
        assert_eq!((left.id, left.parts), (71, vec!["d"]), "what has completed and was not taken");
    }
}

/// Run by `RUSTFLAGS="--cfg loom" cargo test -p hca-verbs --lib --release loom_`.
#[cfg(all(test, loom))]
mod loom_tests {
    use std::task::Wake;

    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;

    const ENDING: Ending = Ending {
        qp: QpHandle { index: 1, generation: 1 },
        opcode: WcOpcode::Send,
        status: WcStatus::Success,
        vendor_code: 0,
    };

    struct Flag(AtomicBool);
    impl Wake for Flag {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.store(true, Ordering::Release);
        }
    }

    /// A future that was told to wait is woken, however its polls and the completion meet.
    #[test]
    fn loom_a_completion_wakes_the_waker_of_the_last_poll() {
        loom::model(|| {
            let ops = Arc::new(Mutex::new(Ops::<u32>::with_capacity(1)));
            let key = ops.lock().unwrap().begin(0);
            let reactor = {
                let ops = Arc::clone(&ops);
                thread::spawn(move || {
                    let mut wakers = Vec::new();
                    let left = ops.lock().unwrap().complete(key, ENDING, std::iter::once(7), &mut wakers);
                    // Outside of the lock, as the reactor does it.
                    wakers.into_iter().for_each(Waker::wake);
                    assert!(left.is_none());
                })
            };
            // The task moves between two polls: each has a waker of its own.
            let flags = [(); 2].map(|()| std::sync::Arc::new(Flag(AtomicBool::new(false))));
            let mut last = None;
            for flag in &flags {
                let mut waker = Some(Waker::from(std::sync::Arc::clone(flag)));
                if ops.lock().unwrap().poll(key, &mut waker).is_some() {
                    last = None;
                    break;
                }
                last = Some(flag);
            }
            reactor.join().unwrap();
            if let Some(flag) = last {
                assert!(flag.0.load(Ordering::Acquire), "told to wait, and never woken");
            }
            let mut ops = ops.lock().unwrap();
            assert!(ops.poll(key, &mut None).is_some());
            assert_eq!(ops.take_parts(key).collect::<Vec<_>>(), [7]);
        });
    }

    /// The parts of a dropped future are left once, by its drop or by its completion.
    #[test]
    fn loom_a_dropped_future_leaves_its_parts_once() {
        loom::model(|| {
            let ops = Arc::new(Mutex::new(Ops::<u32>::with_capacity(1)));
            let key = ops.lock().unwrap().begin(0);
            let reactor = {
                let ops = Arc::clone(&ops);
                thread::spawn(move || {
                    let left = ops.lock().unwrap().complete(key, ENDING, std::iter::once(7), &mut Vec::new());
                    left.map_or(0, |left| left.parts.len())
                })
            };
            let by_drop = ops.lock().unwrap().abandon(key).0.map_or(0, |left| left.parts.len());
            assert_eq!(by_drop + reactor.join().unwrap(), 1);
            let mut ops = ops.lock().unwrap();
            assert_eq!(ops.abandoned(), 0);
            assert_eq!(ops.begin(1) as u32, key as u32, "its slot is free");
        });
    }
}
