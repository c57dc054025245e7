//! Arithmetic on packet sequence numbers that [`Psn`] itself does not offer.

use hca_core::Psn;

/// Packets that a requester may have outstanding: beyond it a responder takes a new PSN for an old one.
pub(crate) const MAX_OUTSTANDING: u32 = (1 << 23) - 1;

/// How many PSNs lie from `from` (included) to `to` (excluded), modulo 2^24.
#[inline]
pub(crate) fn span(from: Psn, to: Psn) -> u32 {
    to.sub(from.raw()).raw()
}
