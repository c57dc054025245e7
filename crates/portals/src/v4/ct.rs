//! Counting events.

use std::future::poll_fn;
use std::time::Duration;

use hca_matching::Count;

use super::{CtHandle, Error, Ni, with_raw};

impl Ni {
    /// Makes a counting event, at zero.
    ///
    /// # Errors
    /// `PTL_NO_SPACE`.
    #[doc(alias = "PtlCTAlloc")]
    pub fn ct_alloc(&self) -> Result<CtHandle, Error> {
        match self.inner.core.with(|ni| ni.engine.ct_alloc()) {
            Ok(raw) => Ok(CtHandle::new(self.handle(), raw)),
            Err(e) => Err(Error::new("PtlCTAlloc", e)),
        }
    }
    /// Frees a counting event. Triggered operations that wait for it are dropped; calls that wait for it return
    /// `PTL_ARG_INVALID`.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID`.
    #[doc(alias = "PtlCTFree")]
    pub fn ct_free(&self, ct: CtHandle) -> Result<(), Error> {
        let free = || {
            let ct = ct.of(self.handle(), "ct")?;
            self.inner.core.with(|ni| ni.engine.ct_free(ct))
        };
        free().map_err(|e| Error::new("PtlCTFree", e))
    }
    /// The present value, after progress.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID`.
    #[doc(alias = "PtlCTGet")]
    #[inline]
    pub fn ct_get(&self, ct: CtHandle) -> Result<Count, Error> {
        ct.of(self.handle(), "ct")
            .and_then(|ct| self.inner.core.ct_get(ct))
            .map_err(|e| Error::new("PtlCTGet", e))
    }
    /// Waits until successes and failures together are `test`.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID`; `PTL_ABORTED`; `PTL_FAIL` if the device does not let it wait.
    #[doc(alias = "PtlCTWait")]
    pub fn ct_wait(&self, ct: CtHandle, test: u64) -> Result<Count, Error> {
        let reached = ct.of(self.handle(), "ct").and_then(|ct| self.inner.core.ct_poll(&[(ct, test)], None));
        match reached {
            Ok(reached) => Ok(reached.expect("it waits for ever").1),
            Err(e) => Err(Error::new("PtlCTWait", e)),
        }
    }
    /// The count once successes and failures together are `test`, for any runtime: a thread of the node wakes the task.
    ///
    /// # Errors
    /// As [`ct_wait`](Self::ct_wait); `PTL_FAIL` also if the thread can't be started.
    pub async fn ct_reached(&self, ct: CtHandle, test: u64) -> Result<Count, Error> {
        let raw = ct.of(self.handle(), "ct").map_err(|e| Error::new("PtlCTWait", e))?;
        let count = poll_fn(|cx| self.inner.core.poll_ct(cx, raw, test)).await;
        count.map_err(|e| Error::new("PtlCTWait", e))
    }
    /// Waits until one of several counting events has reached its test, successes and failures together, for `timeout`
    /// at most (`None` is `PTL_TIME_FOREVER`). Returns its counts and its index; `None` is `PTL_CT_NONE_REACHED`.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID` for an invalid counting event, or an empty list; `PTL_ABORTED`; `PTL_FAIL` if the device does
    /// not let it wait.
    #[doc(alias = "PtlCTPoll")]
    pub fn ct_poll(
        &self,
        cts: &[(CtHandle, u64)],
        timeout: Option<Duration>,
    ) -> Result<Option<(Count, usize)>, Error> {
        let polled = with_raw(
            cts,
            "cts",
            |(ct, test)| Ok((ct.of(self.handle(), "cts")?, test)),
            |cts| self.inner.core.ct_poll(cts, timeout),
        );
        match polled {
            Ok(polled) => Ok(polled.map(|(which, count)| (count, which))),
            Err(e) => Err(Error::new("PtlCTPoll", e)),
        }
    }
    /// Sets a counting event, which may trigger operations that wait for it.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID`.
    #[doc(alias = "PtlCTSet")]
    pub fn ct_set(&self, ct: CtHandle, new_ct: Count) -> Result<(), Error> {
        let set = || {
            let ct = ct.of(self.handle(), "ct")?;
            self.inner.core.with(|ni| ni.engine.ct_set(ct, new_ct))
        };
        set().map_err(|e| Error::new("PtlCTSet", e))
    }
    /// Increments a counting event: its successes or its failures. Counts wrap as in C: an increment of 2^64 - n, which
    /// is -n there, takes n away.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID`, also for an increment of both.
    #[doc(alias = "PtlCTInc")]
    pub fn ct_inc(&self, ct: CtHandle, increment: Count) -> Result<(), Error> {
        let inc = || {
            let ct = ct.of(self.handle(), "ct")?;
            self.inner.core.with(|ni| ni.engine.ct_inc(ct, increment))
        };
        inc().map_err(|e| Error::new("PtlCTInc", e))
    }
    /// Drops the triggered operations that wait for a counting event, and returns their number.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID`.
    #[doc(alias = "PtlCTCancelTriggered")]
    pub fn ct_cancel_triggered(&self, ct: CtHandle) -> Result<u32, Error> {
        let cancel = || {
            let ct = ct.of(self.handle(), "ct")?;
            self.inner.core.with(|ni| ni.engine.ct_cancel_triggered(ct))
        };
        cancel().map_err(|e| Error::new("PtlCTCancelTriggered", e))
    }
}
