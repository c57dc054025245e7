//! The effect of a peer's refusals on a requester, by packets and by messages alike.

use hca_core::wire::NakCode;
use hca_core::{RNR_RETRY_INFINITE, RnrTimer, WcStatus};

use crate::connection::Path;
use crate::requester::NEVER;

/// The wait behind a refusal for want of a receive request, and how many of these the oldest request may still meet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rnr {
    until_ns: u64,
    /// The rest of the wait from `until_ns` on.
    wait_ns: u64,
    retries: u8,
    left: u8,
}

impl Rnr {
    pub(crate) fn new(path: &Path) -> Self {
        Self { until_ns: NEVER, wait_ns: 0, retries: path.rnr_retry, left: path.rnr_retry }
    }
    /// The limit of the path changed.
    pub(crate) fn update(&mut self, path: &Path) {
        (self.retries, self.left) = (path.rnr_retry, path.rnr_retry);
    }
    /// A request was done: the next one has all retries.
    #[inline(always)]
    pub(crate) fn progressed(&mut self) {
        self.left = self.retries;
    }
    /// Whether nothing may be sent now.
    #[inline(always)]
    pub(crate) fn is_waiting(&self) -> bool {
        self.until_ns != NEVER
    }
    /// When [`ends`](Self::ends) is to be asked.
    #[inline(always)]
    pub(crate) fn until_ns(&self) -> u64 {
        self.until_ns
    }
    /// The peer refused the oldest request. An error is the end of that.
    ///
    /// The wait begins with the first look at a later time than `now_ns`: that was taken before the refusal came, and
    /// by how much is not known.
    pub(crate) fn refused(&mut self, now_ns: u64, timer: RnrTimer) -> Result<(), WcStatus> {
        if self.retries < RNR_RETRY_INFINITE {
            self.left = self.left.checked_sub(1).ok_or(WcStatus::RnrRetryExceeded)?;
        }
        self.wait_until(now_ns.saturating_add(1));
        self.wait_ns = u64::try_from(timer.duration().as_nanos()).unwrap_or(NEVER);
        Ok(())
    }
    /// Nothing may be sent before this time.
    pub(crate) fn wait_until(&mut self, at_ns: u64) {
        (self.until_ns, self.wait_ns) = (at_ns, 0);
    }
    /// Whether the wait is over by now.
    pub(crate) fn ends(&mut self, now_ns: u64) -> bool {
        if now_ns < self.until_ns {
            return false;
        }
        let wait_ns = core::mem::take(&mut self.wait_ns);
        self.until_ns = if wait_ns == 0 { NEVER } else { now_ns.saturating_add(wait_ns) };
        wait_ns == 0
    }
    /// Nothing is waited for any more.
    pub(crate) fn stop(&mut self) {
        self.wait_until(NEVER);
    }
}

/// How the oldest request ends by this NAK. `None`: it does not, packets were lost.
pub(crate) fn status_of(code: NakCode) -> Option<WcStatus> {
    Some(match code {
        NakCode::PsnSequence => return None,
        NakCode::InvalidRequest => WcStatus::RemoteInvalidRequest,
        NakCode::RemoteAccess => WcStatus::RemoteAccess,
        NakCode::RemoteOperational => WcStatus::RemoteOperation,
        NakCode::InvalidRd => WcStatus::RemoteInvalidRd,
    })
}
