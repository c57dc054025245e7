//! READ, atomics, ATOMIC WRITE and FLUSH, as a responder executes them, by packets and by messages alike.
//!
//! A READ response answers an ATOMIC WRITE or FLUSH, too, without bytes; so these use a responder resource as READs do.
//! Requests are executed in order and at once: at a FLUSH all earlier WRITEs, ATOMIC WRITEs and atomics have been placed.

use hca_core::wire::{Feth, Placement, Selectivity};
use hca_core::{Access, MAX_MESSAGE_BYTES, RemoteAddr};

use crate::connection::Path;
use crate::inbound::Fault;
use crate::{ATOMIC_BYTES, AtomicOp, Count, Host, Served};

/// Begins a READ of so many bytes: what it names may be read now, and is read when its response is sent.
pub(crate) fn read<H: Host>(
    path: &Path,
    (remote, len): (RemoteAddr, u32),
    host: &mut H,
) -> Result<(), Fault> {
    if u64::from(len) > MAX_MESSAGE_BYTES {
        return Err(Fault::Invalid);
    }
    // A READ of no bytes touches nothing and needs no valid key.
    let mut is_allowed =
        || len == 0 || host.check_remote(remote.rkey, remote.addr, len.into(), Access::REMOTE_READ).is_ok();
    if !path.access.contains(Access::REMOTE_READ) || !is_allowed() {
        host.count(Count::ReadRefused);
        return Err(Fault::Access);
    }
    host.served(Served::Read, len);
    Ok(())
}

/// Executes an atomic; returns the word's old value.
pub(crate) fn atomic<H: Host>(
    path: &Path,
    remote: RemoteAddr,
    op: AtomicOp,
    host: &mut H,
) -> Result<u64, Fault> {
    if !remote.addr.is_multiple_of(ATOMIC_BYTES.into()) {
        return Err(Fault::Invalid);
    }
    if !path.access.contains(Access::REMOTE_ATOMIC) {
        return Err(Fault::Access);
    }
    let original = host.atomic_remote(remote.rkey, remote.addr, op).map_err(|_| Fault::Access)?;
    host.served(Served::Atomic, ATOMIC_BYTES);
    Ok(original)
}

/// Executes an ATOMIC WRITE of this length.
pub(crate) fn atomic_write<H: Host>(
    path: &Path,
    (remote, len): (RemoteAddr, u32),
    value: &[u8],
    host: &mut H,
) -> Result<(), Fault> {
    let word = <[u8; ATOMIC_BYTES as usize]>::try_from(value).map_err(|_| Fault::Invalid)?;
    if len != ATOMIC_BYTES || !remote.addr.is_multiple_of(ATOMIC_BYTES.into()) {
        return Err(Fault::Invalid);
    }
    let op = AtomicOp::Write { value: u64::from_ne_bytes(word) };
    if !path.access.contains(op.right()) {
        return Err(Fault::Access);
    }
    host.atomic_remote(remote.rkey, remote.addr, op).map_err(|_| Fault::Access)?;
    host.served(Served::AtomicWrite, len);
    Ok(())
}

/// Executes a FLUSH of `len` bytes, or of the whole region.
pub(crate) fn flush<H: Host>(
    path: &Path,
    feth: Feth,
    (remote, len): (RemoteAddr, u32),
    host: &mut H,
) -> Result<(), Fault> {
    let rights = flush_rights(feth.placement()).ok_or(Fault::Invalid)?;
    let range = match feth.selectivity().ok_or(Fault::Invalid)? {
        Selectivity::Range => Some((remote.addr, u64::from(len))),
        Selectivity::Region => None,
    };
    if !path.access.contains(rights) {
        return Err(Fault::Access);
    }
    // As a READ of no bytes, a FLUSH of no bytes needs no valid key.
    if range.is_none_or(|(_, len)| len > 0) {
        host.flush_remote(remote.rkey, range, rights).map_err(|_| Fault::Access)?;
    }
    host.served(Served::Flush, 0);
    Ok(())
}

/// The rights that a FLUSH of these placement types needs; `None`: of no type, or of a reserved one.
fn flush_rights(placement: Placement) -> Option<Access> {
    if placement.is_empty() || !Placement::all().contains(placement) {
        return None;
    }
    let right = |place, right| if placement.contains(place) { right } else { Access::empty() };
    let global = right(Placement::GLOBAL_VISIBILITY, Access::FLUSH_GLOBAL);
    Some(global | right(Placement::PERSISTENCE, Access::FLUSH_PERSISTENT))
}
