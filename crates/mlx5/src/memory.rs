//! Memory that the adapter can access: given to programs, and found again when they register it.
//!
//! Invariants:
//! 1. A [`Piece`] owns its [`DmaBuf`]: the memory stays mapped in this process and for the adapter until the piece is
//!    dropped.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hca_core::{DeviceError, DmaMemory};
use hca_vfio::DmaBuf;

use crate::error::memory;
use crate::hca::Hca;

/// What was lent to the program: by address, its length and its address for the adapter.
#[derive(Default)]
pub(crate) struct Lent(Mutex<BTreeMap<usize, (usize, u64)>>);

impl Lent {
    fn pieces(&self) -> MutexGuard<'_, BTreeMap<usize, (usize, u64)>> {
        // It is whole between any two of its operations.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a range is for the adapter, if one piece that was lent holds all of it.
    pub(crate) fn find(&self, addr: usize, len: usize) -> Option<Found> {
        let pieces = self.pieces();
        let (base, &(has, iova)) = pieces.range(..=addr).next_back()?;
        let at = addr - base;
        let piece = (iova, iova + has as u64);
        (at <= has && len <= has - at).then(|| Found { iova: iova + at as u64, piece })
    }
}

/// Memory that was lent, as the adapter sees it.
pub(crate) struct Found {
    /// The first byte.
    pub(crate) iova: u64,
    /// Where the piece that it is in begins and ends.
    pub(crate) piece: (u64, u64),
}

/// A piece that a program has.
struct Piece {
    buf: DmaBuf,
    lent: Arc<Lent>,
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.lent.pieces().remove(&self.buf.addr().addr().get());
    }
}

/// Memory for a program.
pub(crate) fn alloc(hca: &Hca, len: usize) -> Result<DmaMemory, DeviceError> {
    hca.check_alive()?;
    let (unit, align) = shape(len);
    let bytes = len.checked_next_multiple_of(unit).ok_or(DeviceError::OutOfMemory { bytes: len as u64 })?;
    let buf = hca.arena().alloc(bytes, align).map_err(memory)?;
    let addr = buf.addr();
    hca.lent.pieces().insert(addr.addr().get(), (buf.len(), buf.iova().0));
    let piece = Piece { buf, lent: hca.lent.clone() };
    // SAFETY: (1) the piece holds the memory, of which there are at least `len` bytes; an arena zeroes it, and gives it
    // to nobody else meanwhile.
    Ok(unsafe { DmaMemory::new(addr, len, Box::new(piece)) })
}

/// Of what a piece is a multiple, and where it begins. A key's list has pages of which whole ones lie in the piece, so
/// a long piece of odd length is some percent longer, and its list short.
fn shape(len: usize) -> (usize, usize) {
    const HUGE: usize = 2 << 20;
    const PAGE: usize = 4096;
    let unit = (len / 64).next_power_of_two().clamp(PAGE, HUGE);
    (unit, if len >= HUGE { HUGE } else { unit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_hardly_longer_than_asked_for_and_of_few_pages() {
        for len in [1, 4096, 5000, 100 << 10, (1 << 20) + 1, (5 << 20) + 3, (64 << 20) + 1, (3 << 30) + 5] {
            let (unit, align) = shape(len);
            let bytes = len.next_multiple_of(unit);
            assert!(bytes - len < 4096 || bytes - len <= len / 32, "{len}");
            assert!(align % unit == 0 && (bytes / unit <= 128 || unit == 2 << 20), "{len}");
        }
    }
}
