//! A device that is in use, and its asynchronous events.

use std::collections::hash_map::RandomState;
use std::future::poll_fn;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

use hca_core::{AsyncEvent, Counter, Device, DeviceAttr, DeviceError, PortAttr, Psn};
use hca_process::Fork;

use crate::pd::Pd;
use crate::wait::{deadline, wait_readable};
use crate::{CompletionQueue, MemoryError, WaitError};

/// A device that is in use: where protection domains and completion queues come from. Cheap to clone.
///
/// A program opens a device elsewhere (by name, or in a simulator) and hands it over; this crate
/// names none.
#[derive(Clone)]
pub struct Context {
    pub(crate) ctx: Arc<Ctx>,
}

/// What everything made from a context holds on to.
pub(crate) struct Ctx {
    pub(crate) device: Arc<dyn Device>,
    /// The process that opened it: a forked child touches nothing.
    fork: Fork,
    /// Where initial PSNs come from.
    psn: AtomicU64,
}

impl Context {
    /// Uses a device. Initial packet sequence numbers begin at a random place.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self::with_seed(device, RandomState::new().hash_one(std::process::id()))
    }

    /// Like [`new`](Self::new), with a seed for the initial packet sequence numbers: under a simulator
    /// a run repeats exactly.
    pub fn with_seed(device: Arc<dyn Device>, seed: u64) -> Self {
        let ctx = Ctx { device, fork: Fork::new(), psn: AtomicU64::new(seed) };
        Self { ctx: Arc::new(ctx) }
    }

    /// The device of this context.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.ctx.device
    }
    /// The limits and capabilities of the device.
    pub fn attr(&self) -> &DeviceAttr {
        self.ctx.device.attr()
    }
    /// The port of the device.
    pub fn port(&self) -> PortAttr {
        self.ctx.device.port()
    }
    /// All counters of the device.
    pub fn counters(&self) -> Vec<Counter> {
        self.ctx.device.counters()
    }
    /// The value of a counter; `None` if the device has none of this name.
    pub fn counter(&self, name: &str) -> Option<u64> {
        self.counters().into_iter().find(|c| c.name == name).map(|c| c.value)
    }

    /// Creates a protection domain.
    ///
    /// # Errors
    /// The device's limit.
    pub fn alloc_pd(&self) -> Result<Pd, DeviceError> {
        Pd::create(Arc::clone(&self.ctx))
    }

    /// Creates a completion queue of `depth` entries. Queue pairs reserve their depths on it, so it
    /// can't overrun.
    ///
    /// # Errors
    /// The device's limits.
    pub fn create_cq(&self, depth: u32) -> Result<CompletionQueue, DeviceError> {
        CompletionQueue::create(Arc::clone(&self.ctx), depth)
    }

    /// Lets the device do a piece of its work on this thread; whether it did anything. A program that
    /// waits for its own memory to change calls this in the loop ([`SharedMr::wait_until`] does).
    ///
    /// [`SharedMr::wait_until`]: crate::SharedMr::wait_until
    pub fn turn(&self) -> bool {
        self.ctx.device.turn()
    }

    /// Takes the oldest asynchronous event.
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.ctx.device.poll_event()
    }

    /// Waits for an asynchronous event; for ever without a `timeout`.
    ///
    /// # Errors
    /// Nothing came in time, or the operating system refused to wait.
    pub fn wait_event(&self, timeout: Option<Duration>) -> Result<AsyncEvent, WaitError> {
        let device = &*self.ctx.device;
        let deadline = deadline(timeout);
        loop {
            device.turn();
            let fd = device.wait_fd();
            if fd.is_none() {
                THREAD_WAKER.with(|waker| device.set_event_waker(waker));
            }
            if let Some(event) = device.poll_event() {
                return Ok(event);
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(WaitError::TimedOut(timeout.unwrap_or_default()));
            }
            // Asked for behind the descriptor, this has the device make that readable when a turn is due.
            let left = left.into_iter().chain(device.next_deadline()).min();
            match (fd, left) {
                (Some(fd), left) => drop(wait_readable(fd, left)?),
                (None, Some(left)) => std::thread::park_timeout(left),
                (None, None) => std::thread::park(),
            }
        }
    }

    /// The next asynchronous event, for any runtime. As [`CompletionQueue::next`] it moves a device that
    /// nobody else moves.
    pub async fn next_event(&self) -> AsyncEvent {
        let device = &*self.ctx.device;
        poll_fn(|cx| {
            device.turn();
            device.set_event_waker(cx.waker());
            let event = device.poll_event();
            if event.is_none() && device.needs_turns() {
                cx.waker().wake_by_ref();
            }
            event.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("device", &self.attr().name).finish_non_exhaustive()
    }
}

impl Ctx {
    /// Whether this is a child process of the one that opened the device.
    pub(crate) fn forked(&self) -> bool {
        self.fork.is_child()
    }

    /// A fresh initial PSN (splitmix64 of a counter).
    pub(crate) fn next_psn(&self) -> Psn {
        let mut z = self.psn.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Psn::new((z >> 32) as u32)
    }

    /// Checks what `Pd::alloc*` and `Pd::register` have in common.
    pub(crate) fn check_region_len(&self, len: usize) -> Result<(), MemoryError> {
        let max = self.device.attr().max_mr_bytes;
        match len as u64 {
            0 => Err(MemoryError::Empty),
            len if len > max => Err(MemoryError::TooLong { len, max }),
            _ => Ok(()),
        }
    }
}

/// Unparks a thread.
struct Unpark(std::thread::Thread);
impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
thread_local! {
    /// That of the current thread: one and the same for all its waits, so that a device keeps it once.
    static THREAD_WAKER: Waker = Waker::from(Arc::new(Unpark(std::thread::current())));
}
