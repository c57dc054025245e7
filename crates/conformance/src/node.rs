//! One adapter of a check with a protection domain, and its completion queues.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use hca_core::{
    AddressVector, AhHandle, Completion, CqHandle, CqPort, Device, DeviceError, Gid, Notify, PdHandle,
    WcStatus,
};

use crate::Bed;
use crate::world::{World, lock};

/// A protection domain; freed when the last object on it is dropped.
pub(crate) struct Pd {
    pub(crate) dev: Arc<dyn Device>,
    pub(crate) handle: PdHandle,
}
impl Drop for Pd {
    fn drop(&mut self) {
        let _ = self.dev.dealloc_pd(self.handle);
    }
}

/// An adapter, seen through one protection domain.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) world: Arc<World>,
    pub(crate) index: usize,
    pub(crate) pd: Arc<Pd>,
}

impl Node {
    /// Opens `N` new adapters with a protection domain each.
    pub(crate) fn open<const N: usize>(bed: &dyn Bed) -> [Self; N] {
        let world = World::open(bed, N);
        core::array::from_fn(|i| Self::on(&world, i))
    }
    /// Another protection domain on one of the adapters.
    pub(crate) fn on(world: &Arc<World>, index: usize) -> Self {
        let dev = world.devices[index].clone();
        let handle = dev.alloc_pd().expect("a protection domain");
        Self { world: world.clone(), index, pd: Arc::new(Pd { dev, handle }) }
    }
    /// Another protection domain of the same adapter.
    pub(crate) fn other_pd(&self) -> Self {
        Self::on(&self.world, self.index)
    }
    pub(crate) fn dev(&self) -> &dyn Device {
        &*self.pd.dev
    }
    pub(crate) fn gid(&self) -> Gid {
        self.dev().port().gid
    }
    /// A completion queue.
    pub(crate) fn cq(&self, depth: u32) -> Arc<Cq> {
        self.cq_of(self.dev().create_cq(depth))
    }
    /// One whose completions have times.
    pub(crate) fn timed_cq(&self, depth: u32) -> Arc<Cq> {
        self.cq_of(self.dev().create_timed_cq(depth))
    }
    fn cq_of(&self, created: Result<(CqHandle, Box<dyn CqPort>), DeviceError>) -> Arc<Cq> {
        let (handle, port) = created.expect("a completion queue");
        Arc::new(Cq {
            world: self.world.clone(),
            dev: self.pd.dev.clone(),
            handle,
            inner: Mutex::new(CqInner { port, taken: VecDeque::new() }),
        })
    }
    /// An address handle for a peer.
    pub(crate) fn ah(&self, to: Gid) -> AhHandle {
        let av = AddressVector { dgid: to, ..AddressVector::default() };
        self.dev().create_ah(self.pd.handle, &av).expect("an address handle")
    }
    pub(crate) fn events(&self) -> Vec<hca_core::AsyncEvent> {
        self.world.events(self.index)
    }
    pub(crate) fn wait_event(&self, event: hca_core::AsyncEvent) {
        self.world.wait_event(self.index, event);
    }
    pub(crate) fn count_events(&self, event: hca_core::AsyncEvent) -> usize {
        self.world.count_events(self.index, event)
    }
}

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) world: Arc<World>,
    dev: Arc<dyn Device>,
    pub(crate) handle: CqHandle,
    inner: Mutex<CqInner>,
}

struct CqInner {
    port: Box<dyn CqPort>,
    taken: VecDeque<Completion>,
}

impl Cq {
    /// The oldest completion, if there is one now.
    pub(crate) fn try_next(&self) -> Option<Completion> {
        let mut inner = lock(&self.inner);
        if inner.taken.is_empty() {
            let mut out = [Completion::default(); 16];
            let n = inner.port.poll(&mut out);
            inner.taken.extend(&out[..n]);
        }
        inner.taken.pop_front()
    }
    /// Waits for a completion, turning all adapters.
    #[track_caller]
    pub(crate) fn next(&self) -> Completion {
        self.world.wait("a completion", || self.try_next())
    }
    /// Waits for a completion, polling this queue and calling nothing else.
    pub(crate) fn next_alone(&self) -> Completion {
        self.world.wait_idle("a completion", || self.try_next())
    }
    /// Waits for `n` completions.
    #[track_caller]
    pub(crate) fn take(&self, n: usize) -> Vec<Completion> {
        (0..n).map(|_| self.next()).collect()
    }
    /// Waits for a completion and fails unless it is a success of this request.
    #[track_caller]
    pub(crate) fn ok(&self, wr_id: u64) -> Completion {
        self.ends(wr_id, WcStatus::Success)
    }
    /// Waits for a completion and fails unless it is of this request with this status.
    #[track_caller]
    pub(crate) fn ends(&self, wr_id: u64, status: WcStatus) -> Completion {
        let c = self.next();
        assert_eq!(
            (c.wr_id, self.world.as_refusal(c.status, status)),
            (wr_id, status),
            "request {} ended as: {}\n{}",
            c.wr_id,
            c.status,
            self.world.report()
        );
        c
    }
    /// Waits for `(wr_id, status)` pairs in this order.
    #[track_caller]
    pub(crate) fn all_end(&self, wr_ids: impl IntoIterator<Item = u64>, status: WcStatus) {
        for id in wr_ids {
            self.ends(id, status);
        }
    }
    /// Lets everything settle and fails if there is a completion.
    #[track_caller]
    pub(crate) fn stays_empty(&self) {
        self.world.settle();
        assert_eq!(self.try_next(), None, "a completion nobody asked for\n{}", self.world.report());
    }
    pub(crate) fn arm(&self, notify: Notify) {
        lock(&self.inner).port.arm(notify);
    }
    pub(crate) fn set_waker(&self, waker: &std::task::Waker) {
        lock(&self.inner).port.set_waker(waker);
    }
    pub(crate) fn destroy(&self) -> Result<(), DeviceError> {
        self.dev.destroy_cq(self.handle)
    }
    /// Runs `f` with the port.
    pub(crate) fn with_port<R>(&self, f: impl FnOnce(&mut dyn CqPort) -> R) -> R {
        f(&mut *lock(&self.inner).port)
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        let _ = self.dev.destroy_cq(self.handle);
    }
}
