//! The data path: the ports that post and poll.

pub(crate) mod cq;
pub(crate) mod recv;
pub(crate) mod send;

use hca_core::{PostError, PostErrorKind};

/// Takes the requests of a batch until one is refused.
#[inline(always)]
fn batch<W>(wrs: &[W], mut push: impl FnMut(&W) -> Result<(), PostErrorKind>) -> Result<(), PostError> {
    for (accepted, wr) in wrs.iter().enumerate() {
        push(wr).map_err(|kind| PostError { accepted, kind })?;
    }
    Ok(())
}
