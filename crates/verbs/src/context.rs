//! Contexts: a device in use, and its asynchronous events.

use std::collections::hash_map::RandomState;
use std::future::poll_fn;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hca_core::{
    AsyncEvent, Counter, Device, DeviceAttr, DeviceClock, DeviceError, EventObject, GidEntry, GidType, Pkey,
    PortAttr, PortCounters, Psn, QpInfo, SplitMix64,
};
use hca_process::Fork;

use crate::events::Events;
use crate::pd::Pd;
use crate::{CompletionChannel, CompletionQueue, MemoryError, RdDomain, WaitError, XrcDomain};

/// A device in use, which creates protection domains and completion queues. Cheap to clone.
///
/// A program opens a device elsewhere (by name, or in a simulator) and passes it to a context; this crate depends on no
/// particular device.
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
    pub(crate) events: Events,
}

impl Context {
    /// A context on a device. Initial packet sequence numbers are random.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self::with_seed(device, RandomState::new().hash_one(std::process::id()))
    }

    /// A context with a seed for the initial packet sequence numbers, so that a run in a simulator repeats exactly.
    pub fn with_seed(device: Arc<dyn Device>, seed: u64) -> Self {
        let ctx = Ctx { device, fork: Fork::new(), psn: AtomicU64::new(seed), events: Events::default() };
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
    /// The port's GID table.
    pub fn gids(&self) -> Vec<GidEntry> {
        self.ctx.device.gids()
    }
    /// The entry of the GID table with this index; `None` if it is not in use.
    pub fn gid(&self, index: u32) -> Option<GidEntry> {
        self.ctx.device.gid(index)
    }
    /// The entry of the GID table with this index, for a program that was told the index.
    ///
    /// # Errors
    /// As [`Device::query_gid`].
    pub fn query_gid(&self, index: u32) -> Result<GidEntry, DeviceError> {
        self.ctx.device.query_gid(index)
    }
    /// The entries of the GID table for packets of this type, on this interface if one is given.
    pub fn gids_of(&self, kind: GidType, interface: Option<&str>) -> Vec<GidEntry> {
        self.ctx.device.gids_of(kind, interface)
    }
    /// The port's P_Key table, by index.
    pub fn pkeys(&self) -> Vec<Pkey> {
        self.ctx.device.pkeys()
    }
    /// The port's counters by the names of the IBA; `None` where there is no link, or the device does not count them.
    pub fn port_counters(&self) -> Option<PortCounters> {
        self.ctx.device.port_counters()
    }
    /// All queue pairs of the device, also those of other contexts on it; empty where the device lists none.
    pub fn queue_pairs(&self) -> Vec<QpInfo> {
        self.ctx.device.queue_pairs()
    }
    /// The device's clock, which [`CompletionQueue::poll_with_times`] reads; `None` where it has none. That of the
    /// software adapter is the system's `CLOCK_MONOTONIC` in nanoseconds, in a simulation the virtual time.
    pub fn clock(&self) -> Option<DeviceClock> {
        self.ctx.device.clock()
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

    /// Allocates an XRC domain.
    ///
    /// # Errors
    /// The device's limit, or it has no extended reliable connections (`Abilities::max_xrcd` is 0).
    pub fn alloc_xrc_domain(&self) -> Result<XrcDomain, DeviceError> {
        XrcDomain::create(Arc::clone(&self.ctx))
    }

    /// Allocates a domain of reliable datagrams.
    ///
    /// # Errors
    /// The device's limit, or it has no reliable datagrams (`Abilities::max_rdd` is 0).
    pub fn alloc_rd_domain(&self) -> Result<RdDomain, DeviceError> {
        RdDomain::create(Arc::clone(&self.ctx))
    }

    /// Creates a completion queue of `depth` entries. Queue pairs reserve their depths on it, so it
    /// can't overrun.
    ///
    /// # Errors
    /// The device's limits.
    pub fn create_cq(&self, depth: u32) -> Result<CompletionQueue, DeviceError> {
        CompletionQueue::create(Arc::clone(&self.ctx), depth, false)
    }
    /// As [`create_cq`](Self::create_cq), of a queue whose completions have times
    /// ([`CompletionQueue::poll_with_times`]): those of the device's [`clock`](Self::clock).
    ///
    /// # Errors
    /// As there, or the device has no clock.
    pub fn create_timed_cq(&self, depth: u32) -> Result<CompletionQueue, DeviceError> {
        CompletionQueue::create(Arc::clone(&self.ctx), depth, true)
    }

    /// Creates a completion channel: one descriptor for any number of completion queues.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn create_channel(&self) -> Result<CompletionChannel, DeviceError> {
        CompletionChannel::create(Arc::clone(&self.ctx))
    }

    /// Lets the device do a piece of its work on this thread, and returns whether there was any. A program that waits
    /// for its own memory to change calls this in the loop ([`SharedMr::wait_until`] does).
    ///
    /// [`SharedMr::wait_until`]: crate::SharedMr::wait_until
    pub fn turn(&self) -> bool {
        self.ctx.device.turn()
    }

    /// Takes the oldest asynchronous event.
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.ctx.events.poll(&*self.ctx.device, None)
    }
    /// Takes the oldest asynchronous event about one object. Events about other objects stay in the queue.
    ///
    /// ```
    /// # use hca_verbs::*;
    /// # use hca_core::EventObject;
    /// fn has_peer(context: &Context, qp: &QueuePair<Rc>) -> bool {
    ///     context.poll_event_of(EventObject::Qp(qp.handle())).is_some()
    /// }
    /// ```
    pub fn poll_event_of(&self, object: EventObject) -> Option<AsyncEvent> {
        self.ctx.events.poll(&*self.ctx.device, Some(object))
    }

    /// Waits for an asynchronous event; for ever without a `timeout`.
    ///
    /// # Errors
    /// No event came in time, or the operating system refused to wait.
    pub fn wait_event(&self, timeout: Option<Duration>) -> Result<AsyncEvent, WaitError> {
        self.ctx.events.wait(&*self.ctx.device, None, timeout)
    }
    /// Waits for an asynchronous event about one object; for ever without a `timeout`. Any number of threads can wait
    /// at the same time, each for its own object.
    ///
    /// # Errors
    /// No event came in time, or the operating system refused to wait.
    pub fn wait_event_of(
        &self,
        object: EventObject,
        timeout: Option<Duration>,
    ) -> Result<AsyncEvent, WaitError> {
        self.ctx.events.wait(&*self.ctx.device, Some(object), timeout)
    }

    /// The next asynchronous event, for any runtime. Like [`CompletionQueue::next`], the future makes the progress of a
    /// device without a thread.
    pub async fn next_event(&self) -> AsyncEvent {
        poll_fn(|cx| self.ctx.events.poll_next(&*self.ctx.device, None, cx)).await
    }
    /// The next asynchronous event about one object, like [`next_event`](Self::next_event).
    pub async fn next_event_of(&self, object: EventObject) -> AsyncEvent {
        poll_fn(|cx| self.ctx.events.poll_next(&*self.ctx.device, Some(object), cx)).await
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

    /// A fresh initial PSN.
    pub(crate) fn next_psn(&self) -> Psn {
        let state = self.psn.fetch_add(SplitMix64::STEP, Ordering::Relaxed);
        Psn::new((SplitMix64::mix(state) >> 32) as u32)
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
