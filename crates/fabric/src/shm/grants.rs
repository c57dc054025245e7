//! Direct access to peers' memory: asking, granting, and taking back.

use super::access::Bracket;
use super::fabric::ShmFabric;
use super::grant::{Denied, Grant, GrantError, GrantId, LinkId, Notice, QpGuard, Revocation};
use super::link::Stage;
use super::pages::SharedPages;
use crate::PathId;

impl ShmFabric {
    /// The link behind a path, once both sides have met; none to the adapter itself.
    pub fn link_of(&mut self, path: PathId) -> Option<LinkId> {
        let link = self.paths.get_mut(path)?.link;
        matches!(self.links.get(link)?.stage, Stage::Up(_)).then(|| LinkId(self.links.token(link)))
    }

    /// The memory behind an address range, if it is of [`SharedPages`].
    pub fn pages_of(&self, addr: usize, len: usize) -> Option<SharedPages> {
        SharedPages::find(addr, len)
    }

    /// Publishes the word of a queue pair of this adapter, which peers compare before each direct access.
    ///
    /// # Errors
    /// The memory for it can't be had; peers see 0 then.
    ///
    /// # Panics
    /// If `slot` is not below [`MAX_QP_WORDS`](super::MAX_QP_WORDS).
    pub fn set_qp_word(&mut self, _slot: u32, _word: u64) -> Result<(), GrantError> {
        Ok(())
    }
    /// Publishes another word of a queue pair, and returns only once no access under the old one is under way from
    /// the peer that it is connected to. A peer that stays in one for 100 ms is dropped, as by
    /// [`revoke`](Self::revoke).
    pub fn withdraw_qp_word(&mut self, _peer: LinkId, _slot: u32, _word: u64) -> Revocation {
        Revocation::default()
    }
    /// The word of a peer's queue pair, as it stands on the peer's board now. A hint: it may change at any time.
    pub fn qp_word(&mut self, _peer: LinkId, _slot: u32) -> Option<u64> {
        None
    }
    /// What an access by way of a peer's queue pair has to find there. Made once a connection, not once an access.
    pub fn qp_guard(&mut self, _peer: LinkId, _slot: u32, _word: u64) -> Option<QpGuard> {
        None
    }

    /// Asks a peer for the region of a key; the answer is a notice.
    ///
    /// # Errors
    /// The peer is not there, is another user's, or has left too many questions open.
    pub fn ask_grant(&mut self, _peer: LinkId, _key: u32, _qpn: u32) -> Result<(), GrantError> {
        Err(GrantError::Link)
    }
    /// Grants a region to a peer that asked. The caller has checked key, protection domain and rights.
    ///
    /// # Errors
    /// It is not granted, and the peer was told so.
    pub fn grant(&mut self, _peer: LinkId, _grant: &Grant<'_>) -> Result<(), GrantError> {
        Err(GrantError::Link)
    }
    /// Answers a peer that asked that there is no such grant.
    pub fn refuse_grant(&mut self, _peer: LinkId, _key: u32, _qpn: u32) {}
    /// Grants a region to a peer that has not asked. [`Notice::GrantTaken`] or [`Notice::GrantLeft`] follows.
    ///
    /// # Errors
    /// It is not granted.
    pub fn offer(&mut self, _peer: LinkId, _grant: &Grant<'_>) -> Result<(), GrantError> {
        Err(GrantError::Link)
    }
    /// Takes the region of a key back from all peers. When this returns, no access by that key is under way and none
    /// will be. A peer that is within one for 100 ms is dropped; if it could write, then the region's memory is made
    /// private in place, so that what it does later is not seen here.
    ///
    /// A key that was never granted costs a look into a table.
    pub fn revoke(&mut self, _key: u32) -> Revocation {
        Revocation::default()
    }

    /// Begins an access to a peer's region.
    ///
    /// # Errors
    /// The region was taken back, or the queue pair's word is another one.
    #[inline]
    pub fn access(&mut self, _grant: GrantId, _guard: &QpGuard) -> Result<Bracket<'_>, Denied> {
        Err(Denied::Unknown)
    }
    /// Unmaps a peer's region, and tells it so.
    pub fn release_grant(&mut self, _grant: GrantId) {}

    /// What has happened, oldest first.
    pub fn next_notice(&mut self) -> Option<Notice> {
        None
    }
}
