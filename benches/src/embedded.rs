//! An adapter of software within this process, between two queue pairs of its own: what the same engine does without a
//! device in front of it.

use std::time::Duration;

use hca::{
    CompletionQueue, Completions, ConnectOptions, DeviceUrl, FrozenBuf, Opened, QueuePair, Rc, RemoteMr,
    SendRequest, SharedMr, open_exactly,
};
use hca_core::Access;
use hca_perf::Failure;

use crate::duo::aligned;
use hca_perf::batches::per_second;

/// Requests that are under way at once.
const UNDER_WAY: usize = 4;

/// Two queue pairs of one adapter, and memory of each.
pub struct Embedded {
    // Queue pairs go before what they complete on.
    near: QueuePair<Rc>,
    _far: QueuePair<Rc>,
    cq: CompletionQueue,
    wcs: Completions,
    source: FrozenBuf,
    target: RemoteMr,
    _memory: SharedMr,
    _opened: Opened,
    size: usize,
}

impl Embedded {
    /// Connects the two on this device, for WRITEs of `size` bytes.
    ///
    /// # Errors
    /// The device can't be opened, or a limit of it.
    pub fn open(device: &DeviceUrl, size: usize) -> Result<Self, Failure> {
        let opened = open_exactly(device)?;
        let pd = opened.context().alloc_pd()?;
        let cq = opened.context().create_cq(1024)?;
        let access = Access::REMOTE_WRITE;
        let memory = pd.alloc_shared(size, access)?;
        let [near, far] =
            [pd.qp::<Rc>(&cq).access(access).build()?, pd.qp::<Rc>(&cq).access(access).build()?];
        near.connect(&far.endpoint(), &ConnectOptions::default())?;
        far.connect(&near.endpoint(), &ConnectOptions::default())?;
        let source = aligned(&pd, size)?.freeze();
        let wcs = Completions::with_capacity(16);
        let target = memory.remote();
        Ok(Self { near, _far: far, cq, wcs, source, target, _memory: memory, _opened: opened, size })
    }

    /// WRITEs from one to the other, a few at once; bytes a second.
    ///
    /// # Errors
    /// One fails.
    pub fn write_bytes_per_s(&mut self, time: Duration) -> Result<f64, Failure> {
        let mut free = UNDER_WAY;
        let measured = per_second(time, self.size, || -> Result<(), Failure> {
            while free == 0 {
                free += self.take()?;
            }
            let whole = 0..self.size;
            let request = SendRequest::write(self.source.slice(whole.clone()), self.target.range(whole));
            self.near.post_send(request).map_err(|refused| refused.error)?;
            free -= 1;
            Ok(())
        });
        while free < UNDER_WAY {
            free += self.take()?;
        }
        measured
    }

    fn take(&mut self) -> Result<usize, Failure> {
        let mut taken = 0;
        for wc in self.cq.poll(&mut self.wcs) {
            wc.ok()?;
            taken += 1;
        }
        Ok(taken)
    }
}
