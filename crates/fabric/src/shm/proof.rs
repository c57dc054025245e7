//! How far the two sides of a link are in proving their addresses; `proving` says how they do.

use std::time::Duration;

use hca_core::Instant;

/// When a question is asked again; each time it is twice as long.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(10);

/// How far a link's two sides are in proving their addresses.
pub(super) struct Proof {
    pub(super) nonce: u64,
    /// The peer has answered.
    pub(super) answered: bool,
    /// The peer is content with our answer.
    pub(super) peer_content: bool,
    /// When it is asked next.
    pub(super) ask_at: Instant,
    pub(super) interval: Duration,
}

impl Proof {
    pub(super) fn new(nonce: u64) -> Self {
        let (answered, peer_content) = (false, false);
        Self { nonce, answered, peer_content, ask_at: Instant::ZERO, interval: ASK_AGAIN }
    }
}
