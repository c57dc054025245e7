//! Completion queues: polling, blocking, and async on any runtime.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::{Duration, Instant};

use hca_core::{
    Completion, CqHandle, CqModeration, CqPort, CqStatus, DeviceError, Notify, QpHandle, SrqHandle, Srqn,
};

use crate::context::Ctx;
use crate::part::Held;
use crate::slots::{RingTaker, Taker};
use crate::wait::{deadline, wait_either};
use crate::wc::{Record, Wc, Wcs};
use crate::{BuildError, Completions, WaitError};

/// Looks of a wait between two at the clock.
const LOOKS_A_CLOCK: u32 = 4;

/// A completion queue, which yields completions with the buffers that they give back. From
/// [`Context::create_cq`](crate::Context::create_cq).
///
/// One thread at a time uses the queue; other threads may post. Queue pairs are built on its
/// [`reference`](Self::reference), and keep the device's queue alive. After this value is dropped no thread can poll,
/// and the buffers of later completions stay with their queue pairs until these are dropped.
pub struct CompletionQueue {
    port: Box<dyn CqPort>,
    cq: CqRef,
    /// The changes that were taken over from `CqShared`.
    epoch: u64,
    /// Where the requests of queue pairs are found; vacant places bear [`Entry::NOBODY`].
    entries: Vec<Entry>,
    index: HashMap<QpHandle, usize, BuildHasherDefault<HandleHasher>>,
    vacant: Vec<usize>,
    /// Where the last completion's queue pair was found.
    last: usize,
    /// Where notifications go, if it is on a channel.
    channel: Option<Waker>,
}

/// A reference to a completion queue, for building queue pairs. Cheap to clone.
#[derive(Clone)]
pub struct CqRef {
    pub(crate) shared: Arc<CqShared>,
}

impl CompletionQueue {
    pub(crate) fn create(ctx: Arc<Ctx>, depth: u32, timed: bool) -> Result<Self, DeviceError> {
        let created = if timed { ctx.device.create_timed_cq(depth) } else { ctx.device.create_cq(depth) };
        let (handle, port) = created?;
        let shared = Arc::new(CqShared {
            ctx,
            handle,
            depth: AtomicU32::new(depth),
            reserved: Mutex::default(),
            changes: Mutex::new(Some(HashMap::new())),
            epoch: AtomicU64::new(0),
        });
        Ok(Self {
            port,
            cq: CqRef { shared },
            epoch: 0,
            entries: Vec::new(),
            index: HashMap::default(),
            vacant: Vec::new(),
            last: 0,
            channel: None,
        })
    }

    /// A reference with which another thread can build queue pairs.
    pub fn reference(&self) -> CqRef {
        self.cq.clone()
    }
    /// The handle of the device's object.
    pub fn handle(&self) -> CqHandle {
        self.cq.handle()
    }
    /// The number of entries.
    pub fn depth(&self) -> u32 {
        self.cq.depth()
    }
    /// Gives the queue `depth` entries. Completions that wait in it stay.
    ///
    /// ```
    /// # use hca_verbs::*;
    /// # fn example(cq: &mut CompletionQueue) -> Result<(), Box<dyn std::error::Error>> {
    /// let needed = cq.reference().reserved() + 1024;
    /// if cq.depth() < needed {
    ///     cq.resize(needed)?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `depth` is 0, beyond the device's limit, or less than queue pairs have reserved; or the device can not
    /// (`Abilities::cq_resize`). The queue is as it was.
    pub fn resize(&mut self, depth: u32) -> Result<(), DeviceError> {
        let before = self.cq.shared.limit(depth)?;
        // Without the lock: the device may call wakers, which may build and drop queue pairs.
        let resized = self.port.resize(depth);
        self.cq.shared.set_depth(if resized.is_ok() { depth } else { before });
        resized.map(drop)
    }
    /// Holds notifications back, so that one stands for several completions: a waiter by [`wait_fd`](Self::wait_fd), a
    /// waker or a channel wakes up less often. Polls still return completions at once.
    ///
    /// ```
    /// # use hca_verbs::*;
    /// # fn example(cq: &mut CompletionQueue) -> Result<(), Box<dyn std::error::Error>> {
    /// // A notification for 32 completions, or 100 us after the first one.
    /// let period = std::time::Duration::from_micros(100);
    /// cq.moderate(CqModeration { count: 32, period })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A value is beyond the device's limit, or it holds none back (`Abilities::cq_moderation`).
    pub fn moderate(&self, moderation: CqModeration) -> Result<(), DeviceError> {
        self.cq.shared.ctx.device.moderate_cq(self.handle(), moderation)
    }
    /// The attributes of the queue as the device has them.
    ///
    /// # Errors
    /// The device has no such query.
    pub fn query(&self) -> Result<CqStatus, DeviceError> {
        self.cq.shared.ctx.device.query_cq(self.handle())
    }

    /// Takes the oldest completions, as many as `wcs` has room for. Never waits.
    ///
    /// ```
    /// # use hca_verbs::*;
    /// # fn example(cq: &mut CompletionQueue, qp: &mut QueuePair<Rc>) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut wcs = Completions::with_capacity(32);
    /// for wc in cq.poll(&mut wcs) {
    ///     let mut wc = wc.ok()?;
    ///     if let Some(buf) = wc.take_buf() {
    ///         qp.post_recv(buf)?;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn poll<'w>(&mut self, wcs: &'w mut Completions) -> Wcs<'w> {
        if self.fill(wcs) == 0 { Wcs::default() } else { wcs.iter_mut() }
    }

    /// Takes completions; if there are none, waits for some, for ever without a `timeout`. The call blocks on the
    /// device's descriptor, and makes the progress of a device without a thread. It polls for some microseconds before
    /// it sleeps, if the device recommends that.
    ///
    /// # Errors
    /// No completion came in time, or the device has no descriptor to wait on.
    pub fn wait<'w>(
        &mut self,
        wcs: &'w mut Completions,
        timeout: Option<Duration>,
    ) -> Result<Wcs<'w>, WaitError> {
        self.wait_for(wcs, Notify::Any, None, timeout)
    }

    /// Takes completions, like [`wait`](Self::wait), but also ends, perhaps without completions, when `other` is
    /// readable: for a thread that waits for something beside completions. The look before the sleep does not see
    /// `other`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_or_readable<'w>(
        &mut self,
        wcs: &'w mut Completions,
        other: BorrowedFd<'_>,
        timeout: Option<Duration>,
    ) -> Result<Wcs<'w>, WaitError> {
        self.wait_for(wcs, Notify::Any, Some(other), timeout)
    }

    /// Takes completions, like [`wait`](Self::wait), but sleeps at once, and only a solicited completion or an error
    /// ends the sleep. All completions that are there at the call, or at the wake-up, are yielded, solicited or not.
    ///
    /// # Errors
    /// No completion came in time, or the device has no descriptor to wait on.
    pub fn wait_solicited<'w>(
        &mut self,
        wcs: &'w mut Completions,
        timeout: Option<Duration>,
    ) -> Result<Wcs<'w>, WaitError> {
        self.wait_for(wcs, Notify::Solicited, None, timeout)
    }

    fn wait_for<'w>(
        &mut self,
        wcs: &'w mut Completions,
        notify: Notify,
        other: Option<BorrowedFd<'_>>,
        timeout: Option<Duration>,
    ) -> Result<Wcs<'w>, WaitError> {
        if self.fill(wcs) > 0 {
            return Ok(wcs.iter_mut());
        }
        let deadline = deadline(timeout);
        // Who looks takes what comes, solicited or not.
        if notify == Notify::Any && self.look(wcs, deadline) > 0 {
            return Ok(wcs.iter_mut());
        }
        // The descriptor first: it is made at the first call, and an armed notification needs it.
        self.port.wait_fd()?;
        loop {
            self.port.arm(notify);
            if self.fill(wcs) > 0 {
                return Ok(wcs.iter_mut());
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(WaitError::TimedOut(timeout.unwrap_or_default()));
            }
            let readable = wait_either(self.port.wait_fd()?, other, left)?;
            if self.fill(wcs) > 0 || readable.other {
                return Ok(wcs.iter_mut());
            }
        }
    }

    /// Looks for a while before it is worth sleeping. A device that finds nothing many times in a row gives way to
    /// other threads meanwhile.
    fn look(&mut self, wcs: &mut Completions, deadline: Option<Instant>) -> usize {
        let until = Instant::now() + self.port.look_before_sleep();
        let until = deadline.map_or(until, |d| d.min(until));
        while Instant::now() < until {
            for _ in 0..LOOKS_A_CLOCK {
                let n = self.fill(wcs);
                if n > 0 {
                    return n;
                }
            }
        }
        0
    }

    /// The next completions, on any runtime. Meanwhile an adapter thread, or the simulator's executor, makes the
    /// device's progress. For a device that only the program's calls move (`progress=inline`) this future makes the
    /// progress, and asks its runtime to poll it again and again. A program whose runtime should sleep instead waits
    /// for the descriptor ([`wait_fd`](Self::wait_fd), or `AsyncCq` with the feature `tokio`). The future may be
    /// dropped at any await; nothing is lost.
    pub async fn next<'w>(&mut self, wcs: &'w mut Completions) -> Wcs<'w> {
        poll_fn(|cx| self.poll_next(cx, wcs)).await;
        wcs.iter_mut()
    }

    /// Fills `wcs`, or arranges that the task is woken when completions arrive: [`next`](Self::next) for futures
    /// written by hand.
    pub fn poll_next(&mut self, cx: &mut TaskContext<'_>, wcs: &mut Completions) -> Poll<()> {
        if self.fill(wcs) > 0 {
            return Poll::Ready(());
        }
        if self.needs_turns() {
            // The task never sleeps, so there is nothing that it has to be notified of.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.port.set_waker(cx.waker());
        self.port.arm(Notify::Any);
        if self.fill(wcs) > 0 { Poll::Ready(()) } else { Poll::Pending }
    }
    /// Whether only the program's calls move the device.
    pub(crate) fn needs_turns(&self) -> bool {
        self.cq.shared.ctx.device.needs_turns()
    }

    /// Asks for one notification, on the descriptor and the waker. A completion that came before does
    /// not raise it: poll once more after arming, and only then wait.
    pub fn arm(&mut self, notify: Notify) {
        if let Some(channel) = &self.channel {
            // A future may have put its own in this place.
            self.port.set_waker(channel);
        }
        self.port.arm(notify);
    }
    /// Has notifications go to a channel.
    pub(crate) fn notify_by(&mut self, channel: Waker) {
        self.port.wait_by_waker();
        self.channel = Some(channel);
    }

    /// Takes the oldest completions, like [`poll`](Self::poll), with the times at which the device wrote them, in ticks
    /// of [`Context::clock`](crate::Context::clock). The queue is one of
    /// [`Context::create_timed_cq`](crate::Context::create_timed_cq). A ConnectX adapter gives a request that failed
    /// the time 0.
    ///
    /// ```
    /// # use hca_verbs::*;
    /// fn ages(context: &Context, cq: &mut CompletionQueue) -> Result<(), Box<dyn std::error::Error>> {
    ///     let (mut wcs, mut times) = (Completions::default(), Vec::new());
    ///     for (wc, at) in cq.poll_with_times(&mut wcs, &mut times)? {
    ///         let clock = context.clock().expect("it gave a time");
    ///         println!("{}: {:?} ago", wc.id, clock.since(at));
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// Completions of this queue have no times; nothing was polled.
    pub fn poll_with_times<'w>(
        &mut self,
        wcs: &'w mut Completions,
        times: &'w mut Vec<u64>,
    ) -> Result<impl Iterator<Item = (Wc<'w>, u64)> + use<'w>, DeviceError> {
        wcs.clear();
        times.clear();
        times.resize(wcs.raw.len(), 0);
        let none =
            DeviceError::Unsupported { what: "times of completions: the queue was created without them" };
        let n = self.port.poll_with_times(&mut wcs.raw, times).ok_or(none)?;
        self.take_polled(n, wcs);
        // A completion of a queue pair that is being dropped has no record.
        for (i, record) in wcs.records.iter().enumerate() {
            times[i] = times[record.raw()];
        }
        Ok(wcs.iter_mut().zip(times.iter().copied()))
    }

    /// One descriptor for event loops: readable when an armed notification was raised or the device
    /// needs a turn (then poll, arm, and poll again).
    ///
    /// # Errors
    /// The device has no descriptor.
    pub fn wait_fd(&mut self) -> Result<BorrowedFd<'_>, DeviceError> {
        self.port.wait_fd()
    }

    /// Empties `wcs` and fills it; returns how many.
    #[inline(always)]
    pub(crate) fn fill(&mut self, wcs: &mut Completions) -> usize {
        wcs.clear();
        let n = self.port.poll(&mut wcs.raw);
        self.take_polled(n, wcs)
    }
    /// Makes completions of the first `n` raw ones; returns how many.
    #[inline(always)]
    fn take_polled(&mut self, n: usize, wcs: &mut Completions) -> usize {
        // Acquire: pairs with the Release in `CqShared::change`. After the poll, so that a queue pair
        // whose completion came is known.
        if self.cq.shared.epoch.load(Ordering::Acquire) != self.epoch {
            return self.take_all_after_changes(n, wcs);
        }
        match n {
            0 => 0,
            1 => self.take_one(wcs),
            _ => self.take_all(n, wcs),
        }
    }
    /// Most polls yield one, for which a loop would keep more at hand than it needs.
    #[inline(never)]
    fn take_one(&mut self, wcs: &mut Completions) -> usize {
        self.take(0, wcs);
        wcs.count
    }
    #[inline(never)]
    fn take_all(&mut self, n: usize, wcs: &mut Completions) -> usize {
        let mut raw = 0;
        while raw < n {
            self.take(raw, wcs);
            raw += 1;
        }
        wcs.count
    }
    #[cold]
    fn take_all_after_changes(&mut self, n: usize, wcs: &mut Completions) -> usize {
        let gone = self.take_over_changes();
        self.take_all(n, wcs);
        self.forget(gone);
        wcs.count
    }

    /// Finds the request of a completion and takes its buffers back.
    #[inline(always)]
    fn take(&mut self, raw: usize, wcs: &mut Completions) {
        match self.entries.get_mut(self.last) {
            Some(entry) if entry.qp == wcs.raw[raw].qp => entry.take(raw, wcs),
            _ => self.take_of_another(raw, wcs),
        }
    }
    /// As [`take`](Self::take), of another queue pair than the completion before.
    #[inline(never)]
    fn take_of_another(&mut self, raw: usize, wcs: &mut Completions) {
        let completion = &wcs.raw[raw];
        let of_xrc = completion.srq != Srqn::default();
        let source = if of_xrc { Entry::of_srq(completion.srq) } else { completion.qp };
        let Some(&found) = self.index.get(&source) else { return stray(completion, "queue pair") };
        if !of_xrc {
            self.last = found;
        }
        self.entries[found].take(raw, wcs);
    }

    /// Learns of the queue pairs that came. Returns those that went, to be [forgotten](Self::forget) once the
    /// completions in hand are taken.
    fn take_over_changes(&mut self) -> Vec<QpHandle> {
        let mut changes = self.cq.shared.changes();
        self.epoch = self.cq.shared.epoch.load(Ordering::Relaxed);
        let taken = changes.as_mut().map(std::mem::take).unwrap_or_default();
        drop(changes);
        let mut gone = Vec::new();
        for (qp, change) in taken {
            // One that went may have done so after the completions in hand were polled.
            let Some(entry) = change else {
                gone.push(qp);
                continue;
            };
            let i = self.vacant.pop().unwrap_or_else(|| {
                self.entries.push(Entry::NOBODY);
                self.entries.len() - 1
            });
            self.entries[i] = entry;
            if let Some(before) = self.index.insert(qp, i) {
                self.vacate(before);
            }
        }
        gone
    }

    fn forget(&mut self, gone: Vec<QpHandle>) {
        for qp in gone {
            if let Some(i) = self.index.remove(&qp) {
                self.vacate(i);
            }
        }
    }
    fn vacate(&mut self, i: usize) {
        self.entries[i] = Entry::NOBODY;
        self.vacant.push(i);
    }
}

/// Logs a completion of an unknown object.
#[cold]
#[inline(never)]
fn stray(completion: &Completion, of_no: &str) {
    tracing::warn!(?completion, "completion of no {of_no}");
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // No poller applies changes any more, so none are kept.
        *self.cq.shared.changes() = None;
    }
}
impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cq.fmt(f)
    }
}
impl AsRef<CqRef> for CompletionQueue {
    fn as_ref(&self) -> &CqRef {
        &self.cq
    }
}
impl AsRef<Self> for CqRef {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl CqRef {
    /// The handle of the device's object.
    pub fn handle(&self) -> CqHandle {
        self.shared.handle
    }
    /// The number of entries.
    pub fn depth(&self) -> u32 {
        self.shared.depth.load(Ordering::Relaxed)
    }
    /// The number of entries that queue pairs have reserved.
    pub fn reserved(&self) -> u32 {
        self.shared.reserved().entries
    }
}
impl fmt::Debug for CqRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("handle", &self.handle())
            .field("depth", &self.depth())
            .field("reserved", &self.reserved())
            .finish()
    }
}

/// The state that a completion queue's poller and its queue pairs share.
pub(crate) struct CqShared {
    pub(crate) ctx: Arc<Ctx>,
    pub(crate) handle: CqHandle,
    /// Changed while `reserved` is locked.
    depth: AtomicU32,
    reserved: Mutex<Reserved>,
    /// Queue pairs that were added (`Some`) or removed since the poller last looked; `None` once the poller is gone.
    changes: Mutex<Option<HashMap<QpHandle, Option<Entry>>>>,
    /// Counts changes.
    epoch: AtomicU64,
}

/// Where a queue pair's requests are found.
pub(crate) struct Entry {
    pub(crate) qp: QpHandle,
    pub(crate) context: u64,
    /// [`Record::GRH_AREA`] if messages lie behind the area of a GRH, else 0.
    pub(crate) grh_area: u32,
    pub(crate) send: Option<RingTaker<Held>>,
    pub(crate) recv: Option<Taker<Held>>,
}

impl Entry {
    /// Takes the buffers of a completion's request back.
    #[inline(always)]
    fn take(&mut self, raw: usize, wcs: &mut Completions) {
        let Completions { raw: completions, records, count, parts } = wcs;
        let completion = &mut completions[raw];
        let id = match (completion.opcode.is_recv(), &mut self.recv) {
            (false, _) => self.send.as_mut().and_then(|ring| ring.take(completion.wr_id, &mut *parts)),
            (true, Some(slots)) => slots.take(completion.wr_id, &mut *parts),
            (true, None) => None,
        };
        // A queue pair that is dropped at this moment frees what it took from a shared queue.
        let Some(id) = id else { return stray(completion, "outstanding request") };
        // From here on it is the program's number, not that of the slot.
        completion.wr_id = id;
        let (raw, parts_end) = (raw as u32 | self.grh_area, parts.len() as u32);
        records[*count] = Record { context: self.context, raw, parts_end };
        *count += 1;
    }
    /// Of no queue pair: no device has a table of so many.
    const NOBODY: Self = Self::empty(QpHandle { index: u32::MAX, generation: u32::MAX });
    const fn empty(qp: QpHandle) -> Self {
        Self { qp, context: 0, grh_area: 0, send: None, recv: None }
    }

    /// The handle under which a shared receive queue of an XRC domain is found: that of no queue pair either. Its
    /// number is used again, unlike a handle.
    const fn of_srq(number: Srqn) -> QpHandle {
        QpHandle { index: u32::MAX, generation: number.raw() }
    }
}

#[derive(Default)]
struct Reserved {
    entries: u32,
    /// Queue pairs on each shared receive queue: its depth is reserved once.
    srqs: HashMap<SrqHandle, u32>,
}

/// What one queue pair needs of a completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub(crate) entries: u32,
    pub(crate) srq: Option<(SrqHandle, u32)>,
}

impl CqShared {
    fn reserved(&self) -> MutexGuard<'_, Reserved> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn changes(&self) -> MutexGuard<'_, Option<HashMap<QpHandle, Option<Entry>>>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets entries aside, so that the queue can't overrun.
    pub(crate) fn reserve(&self, side: &'static str, need: Need) -> Result<(), BuildError> {
        let mut reserved = self.reserved();
        let srq = need.srq.filter(|(srq, _)| !reserved.srqs.contains_key(srq)).map_or(0, |s| s.1);
        let needed = need.entries.saturating_add(srq);
        let depth = self.depth.load(Ordering::Relaxed);
        if needed > depth.saturating_sub(reserved.entries) {
            let reserved = reserved.entries;
            return Err(BuildError::CqDepth { side, depth, reserved, needed });
        }
        reserved.entries += needed;
        if let Some((srq, _)) = need.srq {
            *reserved.srqs.entry(srq).or_default() += 1;
        }
        Ok(())
    }

    /// Reserves no more than `depth` entries from now on, and no more than before. Returns the depth.
    fn limit(&self, depth: u32) -> Result<u32, DeviceError> {
        let reserved = self.reserved();
        if depth < reserved.entries {
            let users = reserved.entries.into();
            return Err(DeviceError::InUse { what: "entries of the completion queue", users });
        }
        let before = self.depth.load(Ordering::Relaxed);
        self.depth.store(before.min(depth), Ordering::Relaxed);
        Ok(before)
    }
    fn set_depth(&self, depth: u32) {
        let _reserved = self.reserved();
        self.depth.store(depth, Ordering::Relaxed);
    }

    /// Gives entries back.
    pub(crate) fn release(&self, need: Need) {
        let mut reserved = self.reserved();
        reserved.entries -= need.entries;
        if let Some((srq, depth)) = need.srq {
            let users = reserved.srqs.get_mut(&srq).expect("it was reserved");
            *users -= 1;
            if *users == 0 {
                reserved.srqs.remove(&srq);
                reserved.entries -= depth;
            }
        }
    }

    /// Tells the poller of a queue pair that came, or went. Once each: one that goes twice is kept for a poller that
    /// never heard of it.
    fn change(&self, qp: QpHandle, change: Option<Entry>) {
        let mut changes = self.changes();
        let Some(pending) = changes.as_mut() else { return };
        let gone = change.is_none();
        let before = pending.insert(qp, change);
        if gone && matches!(before, Some(Some(_))) && qp.index != u32::MAX {
            // The poller never heard of it (a handle is never used twice).
            pending.remove(&qp);
        }
        // Release: pairs with the Acquire in `CompletionQueue::fill`.
        self.epoch.fetch_add(1, Ordering::Release);
        drop(changes);
        drop(before);
    }
}

impl CqShared {
    /// Tells the poller of a shared receive queue of an XRC domain that came, or went.
    pub(crate) fn change_srq(&self, number: Srqn, requests: Option<Taker<Held>>) {
        let qp = Entry::of_srq(number);
        self.change(qp, requests.map(|recv| Entry { recv: Some(recv), ..Entry::empty(qp) }));
    }
}

/// Tells the pollers of the completion queues where a queue pair's requests are found.
pub(crate) fn register(send_cq: &Arc<CqShared>, recv_cq: &Arc<CqShared>, mut entry: Entry) {
    let qp = entry.qp;
    if !Arc::ptr_eq(send_cq, recv_cq) {
        let Entry { context, grh_area, ref mut recv, .. } = entry;
        recv_cq.change(qp, Some(Entry { qp, context, grh_area, send: None, recv: recv.take() }));
    }
    send_cq.change(qp, Some(entry));
}

/// Tells the pollers of a queue pair that went: the device yields no completion of it any more.
pub(crate) fn unregister(send_cq: &Arc<CqShared>, recv_cq: &Arc<CqShared>, qp: QpHandle) {
    if !Arc::ptr_eq(send_cq, recv_cq) {
        recv_cq.change(qp, None);
    }
    send_cq.change(qp, None);
}

impl Drop for CqShared {
    fn drop(&mut self) {
        if !self.ctx.forked()
            && let Err(error) = self.ctx.device.destroy_cq(self.handle)
        {
            tracing::error!(cq = %self.handle, %error, "the device keeps the completion queue");
        }
    }
}

/// Hashes a handle by one multiplication: the device chose it, no adversary did.
#[derive(Default)]
pub(crate) struct HandleHasher(u64);

impl Hasher for HandleHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u32(b.into()));
    }
    fn write_u32(&mut self, n: u32) {
        self.0 = (self.0 ^ u64::from(n)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}
