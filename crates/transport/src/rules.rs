//! The rules between requests, by packets and by messages alike: what keeps the next request back, and what refuses it
//! before its first packet or message.

use hca_core::{MAX_MESSAGE_BYTES, SendFlags, WcStatus};

use crate::connection::Path;
use crate::emit::local_status;
use crate::inflight::Kind;
use crate::{ATOMIC_BYTES, Host, SendRequest};

/// End-to-end credits: the peer's receive requests that were used, and how many may be.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Credits {
    pub(crate) used: u32,
    /// `None`: the peer does not count.
    pub(crate) limit: Option<u32>,
}

impl Credits {
    /// Whether the peer is known to have more than so many receive requests, or does not count.
    #[inline(always)]
    pub(crate) fn are_more_than(&self, count: i32) -> bool {
        self.limit.is_none_or(|limit| limit.wrapping_sub(self.used) as i32 > count)
    }
    /// A request of this kind has begun.
    #[inline(always)]
    pub(crate) fn take(&mut self, kind: Kind) {
        self.used = self.used.wrapping_add(kind.consumes_recv().into());
    }
    /// The request is to be sent again.
    #[inline]
    pub(crate) fn give_back(&mut self, kind: Kind) {
        self.used = self.used.wrapping_sub(kind.consumes_recv().into());
    }
}

/// Whether the next request may begin. `unanswered`: READs and atomics that wait for their responses; `is_alone`: no
/// request is under way.
#[inline(always)]
pub(crate) fn may_begin(
    flags: SendFlags,
    kind: Kind,
    unanswered: usize,
    credits: &Credits,
    is_alone: bool,
) -> bool {
    let is_fenced = unanswered > 0 && flags.contains(SendFlags::FENCE);
    // Without credits one message may go, as a probe, when nothing else is under way.
    !is_fenced && (is_alone || !kind.consumes_recv() || credits.are_more_than(0))
}

/// Checks a request before its first packet or message; one that goes in `several` is checked whole, as nothing of it
/// may leave where the rest can't.
#[inline]
pub(crate) fn check<H: Host>(
    request: &SendRequest,
    (kind, several): (Kind, bool),
    index: u32,
    path: &Path,
    host: &mut H,
) -> Result<(), WcStatus> {
    let len = request.len;
    if u64::from(len) > MAX_MESSAGE_BYTES || kind == Kind::Atomic && len != ATOMIC_BYTES {
        return Err(WcStatus::LocalLength);
    }
    let answered = kind.is_answered();
    if answered && path.max_rd_atomic == 0 {
        return Err(WcStatus::LocalQpOperation);
    }
    // What goes in one is checked as it is gathered.
    if len > 0 && (answered || several) {
        host.check_local(index, answered).map_err(local_status)?;
    }
    Ok(())
}
