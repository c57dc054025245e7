//! Completion queues of the verbs, each with the work queues that complete on it, under one lock.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::{self, ThreadId};
use std::time::Duration;

use hca_core::{DeviceError, Notify, QpHandle};
use hca_turn_lock::{Guard, OUTER, TurnLock};
use hca_verbs::{CompletionQueue, Completions, Context, CqRef, Wc};

use crate::notify::Look;
use crate::queue::WorkQueue;
use crate::vi::ViShared;
use crate::wait::Waiters;
use crate::{Done, Error, ErrorKind, Queue, ViId, lock};

/// Completions that a poll takes at once.
const BATCH: usize = 16;

/// A completion queue of the verbs.
pub(crate) struct Source {
    /// Outside of the lock of the device. Who takes and releases it time and again does so by plain stores.
    state: TurnLock<State, OUTER>,
    waiters: Arc<Waiters>,
    /// The thread that calls the program with what it has found here.
    calling: Mutex<Option<ThreadId>>,
    returned: Condvar,
}

/// Says that this thread calls the program with what it has found in a source.
pub(crate) struct Calling(Arc<Source>);

impl Drop for Calling {
    fn drop(&mut self) {
        *lock::lock(&self.0.calling) = None;
        self.0.returned.notify_all();
    }
}

pub(crate) struct State {
    cq: CompletionQueue,
    wcs: Completions,
    queues: Vec<Option<WorkQueue>>,
    /// The places that VIs have.
    taken: Vec<bool>,
    /// Of a completion queue that the program created; `None` for the one of a VI.
    entries: Option<Entries>,
    /// To be told once the lock is released.
    news: Vec<News>,
}

/// A VI's error, of the queue pair that it had then.
struct News {
    vi: Arc<ViShared>,
    qp: QpHandle,
    kind: ErrorKind,
}

impl News {
    fn of(queue: &WorkQueue, kind: ErrorKind) -> Self {
        Self { vi: Arc::clone(queue.vi()), qp: queue.qp(), kind }
    }
}

/// The entries of a completion queue that the program created.
struct Entries {
    waiting: VecDeque<(ViId, Queue)>,
    depth: usize,
    /// The program has dropped it.
    closed: bool,
}

impl Source {
    /// A completion queue of the verbs with room for `room` descriptors; `depth` for one that the program created.
    pub(crate) fn create(
        context: &Context,
        waiters: &Arc<Waiters>,
        room: u32,
        depth: Option<u32>,
    ) -> Result<Arc<Self>, Error> {
        let mut cq = context.create_cq(room.max(1))?;
        waiters.channel().attach(&mut cq);
        let entries =
            depth.map(|depth| Entries { waiting: VecDeque::new(), depth: depth as usize, closed: false });
        let wcs = Completions::with_capacity(BATCH);
        let state = State { cq, wcs, queues: Vec::new(), taken: Vec::new(), entries, news: Vec::new() };
        let (state, (calling, returned)) = (TurnLock::new(state), Default::default());
        Ok(Arc::new(Self { state, waiters: Arc::clone(waiters), calling, returned }))
    }
    /// Uses the state; what VIs have to be told is told once the lock is released.
    #[inline]
    pub(crate) fn with<T>(&self, use_it: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let value = use_it(&mut state);
        if state.news.is_empty() {
            release(state);
        } else {
            tell(state);
        }
        value
    }
    /// As [`with`](Self::with), by a holder of a VI's link: what VIs have to be told is told by the next other use.
    pub(crate) fn quietly<T>(&self, use_it: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let value = use_it(&mut state);
        release(state);
        value
    }
    /// Takes what completed, and then uses the state.
    #[inline]
    pub(crate) fn polled<T>(&self, use_it: impl FnOnce(&mut State) -> T) -> T {
        self.with(|state| {
            state.poll();
            use_it(state)
        })
    }
    /// Takes what completed, and then looks for something to call the program with.
    pub(crate) fn look<T>(self: &Arc<Self>, look: impl FnOnce(&mut State) -> Look<T>) -> Look<(T, Calling)> {
        self.polled(|state| match look(state) {
            Look::Found(found) => {
                *lock::lock(&self.calling) = Some(thread::current().id());
                Look::Found((found, Calling(Arc::clone(self))))
            }
            Look::Nothing => Look::Nothing,
            Look::Gone => Look::Gone,
        })
    }
    /// Waits until another thread that calls the program with what it has found here has returned.
    pub(crate) fn wait_for_call(&self) {
        let own = thread::current().id();
        let calling = lock::lock(&self.calling);
        drop(self.returned.wait_while(calling, |calling| calling.is_some_and(|thread| thread != own)));
    }
    pub(crate) fn arm(&self) {
        self.with(|state| state.cq.arm(Notify::Any));
    }
    /// Waits until `ready` yields something of the polled state.
    pub(crate) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Error> {
        self.waiters.wait(timeout, || self.arm(), || self.polled(&mut ready))
    }
    /// Whether the program created it.
    pub(crate) fn is_programs(&self) -> bool {
        self.with(|state| state.entries.is_some())
    }
}

/// Releases the state. No thread leaves notes at its lock.
#[inline(always)]
fn release(state: Guard<'_, State, OUTER>) {
    let _ = state.unlock();
}

#[cold]
fn tell(mut state: Guard<'_, State, OUTER>) {
    let news = std::mem::take(&mut state.news);
    release(state);
    for News { vi, qp, kind } in news {
        vi.tell(qp, kind);
    }
}

impl State {
    pub(crate) fn cq(&self) -> CqRef {
        self.cq.reference()
    }
    /// Gives the queue of the verbs room for `more` descriptors.
    pub(crate) fn grow(&mut self, more: u32) -> Result<(), DeviceError> {
        let needed = self.cq.reference().reserved() + more;
        if self.cq.depth() < needed { self.cq.resize(needed) } else { Ok(()) }
    }
    /// A place for a work queue, which is [put](Self::put) there later.
    pub(crate) fn reserve(&mut self) -> u32 {
        let free = self.queues.iter().zip(&self.taken).position(|(queue, taken)| queue.is_none() && !taken);
        let slot = free.unwrap_or_else(|| {
            self.queues.push(None);
            self.taken.push(false);
            self.queues.len() - 1
        });
        self.taken[slot] = true;
        slot as u32
    }
    pub(crate) fn put(&mut self, slot: u32, queue: WorkQueue) {
        self.queues[slot as usize] = Some(queue);
    }
    /// Whether a VI's queue is in a place.
    pub(crate) fn is_at(&self, slot: u32, vi: &Weak<ViShared>) -> bool {
        self.queues[slot as usize]
            .as_ref()
            .is_some_and(|queue| std::ptr::eq(Arc::as_ptr(queue.vi()), vi.as_ptr()))
    }
    pub(crate) fn remove(&mut self, slot: u32) -> Option<WorkQueue> {
        self.taken[slot as usize] = false;
        let queue = self.queues[slot as usize].take();
        if let (Some(queue), Some(entries)) = (&queue, &mut self.entries) {
            let gone = queue.vi().id();
            entries.waiting.retain(|&(vi, which)| vi != gone || which != queue.which());
        }
        queue
    }
    pub(crate) fn users(&self) -> usize {
        self.taken.iter().filter(|taken| **taken).count()
    }
    /// A work queue.
    #[inline]
    pub(crate) fn queue(&mut self, slot: u32) -> &mut WorkQueue {
        self.queues[slot as usize].as_mut().expect("a VI keeps its queues")
    }
    /// Takes the first descriptor off a queue, if it has completed. Who finds none waits for it, so its end is asked for.
    #[inline]
    pub(crate) fn dequeue_or_ask(&mut self, slot: u32) -> Option<Done> {
        let queue = self.queue(slot);
        let done = queue.dequeue();
        if done.is_none() {
            queue.ask();
        }
        done
    }
    /// Asks for the ends of a work queue's sends, if it is there.
    pub(crate) fn ask(&mut self, slot: u32) {
        if let Some(queue) = &mut self.queues[slot as usize] {
            queue.ask();
        }
    }
    /// Uses a work queue, and takes note of descriptors that have completed by that.
    #[inline]
    pub(crate) fn change<T>(&mut self, slot: u32, change: impl FnOnce(&mut WorkQueue) -> T) -> T {
        let Self { queues, entries, news, .. } = self;
        let queue = queues[slot as usize].as_mut().expect("a VI keeps its queues");
        let value = change(queue);
        note(queue, entries, news);
        value
    }
    /// The oldest entry of the program's completion queue.
    #[inline]
    pub(crate) fn next_entry(&mut self) -> Option<(ViId, Queue)> {
        self.entries.as_mut()?.waiting.pop_front()
    }
    /// The same. Who finds none waits for one, so the ends of sends are asked for.
    pub(crate) fn next_entry_or_ask(&mut self) -> Option<(ViId, Queue)> {
        let entry = self.next_entry();
        if entry.is_none() {
            self.queues.iter_mut().flatten().for_each(WorkQueue::ask);
        }
        entry
    }
    /// The program has dropped the completion queue: no entry is taken any more.
    pub(crate) fn close(&mut self) {
        if let Some(entries) = &mut self.entries {
            entries.waiting.clear();
            entries.closed = true;
        }
    }
    pub(crate) fn is_closed(&self) -> bool {
        self.entries.as_ref().is_some_and(|entries| entries.closed)
    }
    pub(crate) fn depth(&self) -> Option<usize> {
        self.entries.as_ref().map(|entries| entries.depth)
    }
    pub(crate) fn resize(&mut self, depth: usize) -> Result<(), Error> {
        let Some(entries) = &mut self.entries else { return Ok(()) };
        let users = entries.waiting.len();
        if users > depth {
            return Err(Error::InUse { what: "entries of the completion queue", users });
        }
        entries.depth = depth;
        Ok(())
    }

    /// Takes what completed.
    #[inline]
    pub(crate) fn poll(&mut self) {
        let Self { cq, wcs, queues, entries, news, .. } = self;
        loop {
            let mut came = 0;
            for wc in cq.poll(wcs) {
                came += 1;
                // A queue pair that is gone may have left a completion.
                if let Some(Some(queue)) = queues.get_mut(slot_of(&wc) as usize)
                    && queue.is_of(wc.qp)
                {
                    queue.complete(&wc);
                    note(queue, entries, news);
                }
            }
            if came < BATCH {
                break;
            }
        }
    }
}

/// Takes note of descriptors that have completed, if there is somebody to tell.
#[inline(always)]
fn note(queue: &mut WorkQueue, entries: &mut Option<Entries>, news: &mut Vec<News>) {
    if entries.is_some() || queue.has_news() {
        note_all(queue, entries, news);
    }
}
fn note_all(queue: &mut WorkQueue, entries: &mut Option<Entries>, news: &mut Vec<News>) {
    if let Some(kind) = queue.take_news() {
        news.push(News::of(queue, kind));
    }
    let Some(entries) = entries else { return };
    if entries.closed {
        return;
    }
    for _ in 0..queue.take_count() {
        if entries.waiting.len() == entries.depth {
            news.push(News::of(queue, ErrorKind::Overrun));
            return;
        }
        entries.waiting.push_back((queue.vi().id(), queue.which()));
    }
}

/// The work queue of a completion: the context of its queue pair has the slots of both.
#[inline]
fn slot_of(wc: &Wc<'_>) -> u32 {
    if wc.opcode.is_recv() { wc.context as u32 } else { (wc.context >> 32) as u32 }
}

/// The context of a queue pair with these slots.
pub(crate) fn context_of(send: u32, recv: u32) -> u64 {
    u64::from(send) << 32 | u64::from(recv)
}
