//! Event queues.

use std::future::poll_fn;
use std::time::Duration;

use super::{EqHandle, Error, Got, Ni, ReturnCode, with_raw};

impl Ni {
    /// Makes an event queue for `count` events. If more events arrive before they are taken, the oldest are lost, and
    /// [`Got::dropped`] reports that.
    ///
    /// # Errors
    /// `PTL_NO_SPACE`.
    #[doc(alias = "PtlEQAlloc")]
    pub fn eq_alloc(&self, count: u32) -> Result<EqHandle, Error> {
        match self.inner.core.with(|ni| ni.engine.eq_alloc(count)) {
            Ok(raw) => Ok(EqHandle::new(self.handle(), raw)),
            Err(e) => Err(Error::with_code("PtlEQAlloc", ReturnCode::NoSpace, e)),
        }
    }
    /// Frees an event queue. Its later events are lost, and calls that wait for it return `PTL_ARG_INVALID`.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID`.
    #[doc(alias = "PtlEQFree")]
    pub fn eq_free(&self, eq: EqHandle) -> Result<(), Error> {
        let free = || {
            let eq = eq.of(self.handle(), "eq")?;
            self.inner.core.with(|ni| ni.engine.eq_free(eq))
        };
        free().map_err(|e| Error::new("PtlEQFree", e))
    }
    /// Takes the oldest event; `None` is `PTL_EQ_EMPTY`.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID`.
    #[doc(alias = "PtlEQGet")]
    #[inline]
    pub fn eq_get(&self, eq: EqHandle) -> Result<Option<Got>, Error> {
        let eq = eq.of(self.handle(), "eq").map_err(|e| Error::new("PtlEQGet", e))?;
        self.inner.core.eq_take(eq, Got::of).map_err(|e| Error::new("PtlEQGet", e))
    }
    /// Waits for an event and takes it.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID`; `PTL_ABORTED`; `PTL_FAIL` if the device does not let it wait.
    #[doc(alias = "PtlEQWait")]
    pub fn eq_wait(&self, eq: EqHandle) -> Result<Got, Error> {
        let got = eq.of(self.handle(), "eq").and_then(|eq| self.inner.core.eq_poll(&[eq], None));
        match got {
            Ok(got) => Ok(Got::of_got(&got.expect("it waits for ever").1)),
            Err(e) => Err(Error::new("PtlEQWait", e)),
        }
    }
    /// The next event, for any runtime: a thread of the node wakes the task. A future that is dropped takes no event.
    /// Program loops on descriptors use [`Node::signal`](crate::Node::signal) instead.
    ///
    /// # Errors
    /// As [`eq_wait`](Self::eq_wait); `PTL_FAIL` also if the thread can't be started.
    pub async fn eq_next(&self, eq: EqHandle) -> Result<Got, Error> {
        let raw = eq.of(self.handle(), "eq").map_err(|e| Error::new("PtlEQWait", e))?;
        let got = poll_fn(|cx| self.inner.core.poll_eq(cx, raw)).await;
        got.map(|got| Got::of_got(&got)).map_err(|e| Error::new("PtlEQWait", e))
    }
    /// Waits for an event of one of several queues, for `timeout` at most (`None` is `PTL_TIME_FOREVER`), takes it, and
    /// returns the queue's index too; `None` is `PTL_EQ_EMPTY`.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID` for an invalid queue, or an empty list; `PTL_ABORTED`; `PTL_FAIL` if the device does not let
    /// it wait.
    #[doc(alias = "PtlEQPoll")]
    pub fn eq_poll(
        &self,
        eqs: &[EqHandle],
        timeout: Option<Duration>,
    ) -> Result<Option<(Got, usize)>, Error> {
        let polled = with_raw(
            eqs,
            "eqs",
            |eq| eq.of(self.handle(), "eqs"),
            |eqs| self.inner.core.eq_poll(eqs, timeout),
        );
        match polled {
            Ok(polled) => Ok(polled.map(|(which, got)| (Got::of_got(&got), which))),
            Err(e) => Err(Error::new("PtlEQPoll", e)),
        }
    }
}
