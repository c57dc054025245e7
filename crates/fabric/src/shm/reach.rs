//! Direct accesses, as an end begins and ends them.

use super::access::{Bracket, Reach, Way};
use super::fabric::ShmFabric;
use super::grant::{Denied, GrantId, Notice, QpGuard};
use super::note::Note;

impl ShmFabric {
    /// Calls `access` with access to the memory that peers have granted.
    #[inline(always)]
    pub fn reach<R>(&mut self, access: impl FnOnce(Reach<'_>) -> R) -> R {
        let result = access(Reach::new(&mut self.grants.mapped, &mut self.grants.revoked));
        self.unmap_revoked();
        result
    }
    /// The way to a peer's region by way of a queue pair of the same peer.
    pub fn way(&mut self, grant: GrantId, guard: QpGuard) -> Option<Way> {
        self.grants.mapped.way(grant, guard)
    }
    /// Begins an access like [`access`](Self::access). `None`: the way has ended, or the access is not possible.
    #[inline(always)]
    pub fn access_by(&mut self, way: &Way) -> Option<Bracket<'_>> {
        self.grants.mapped.access_by(way)
    }
    /// Begins an access to a peer's region, of at most [`MAX_BRACKET_BYTES`](crate::MAX_BRACKET_BYTES).
    ///
    /// # Errors
    /// The region was revoked, or the queue pair's word differs from the guard's.
    pub fn access(&mut self, grant: GrantId, guard: &QpGuard) -> Result<Bracket<'_>, Denied> {
        if self.grants.mapped.access(grant, guard).is_err_and(|e| e == Denied::Revoked) {
            self.unmap(grant);
            return Err(Denied::Revoked);
        }
        self.grants.mapped.access(grant, guard)
    }

    /// Unmaps a peer's region, and informs the peer.
    pub fn release_grant(&mut self, grant: GrantId) {
        let Some(m) = self.grants.mapped.remove(grant) else { return };
        self.send_note(m.link, Note::Left { key: m.key, times: m.times }, None);
    }

    /// Behind a call that was given a [`Reach`]: unmaps the regions that it found taken back.
    #[inline(always)]
    pub(super) fn unmap_revoked(&mut self) {
        if !self.grants.revoked.is_empty() {
            self.unmap_all_revoked();
        }
    }
    #[cold]
    fn unmap_all_revoked(&mut self) {
        while let Some(grant) = self.grants.revoked.pop() {
            self.unmap(grant);
        }
    }
    /// Unmaps a region that the peer took back.
    #[cold]
    pub(super) fn unmap(&mut self, grant: GrantId) {
        let Some(m) = self.grants.mapped.remove(grant) else { return };
        self.notify(m.link, Notice::GrantRevoked { link: m.link, key: m.key, grant });
    }
}
