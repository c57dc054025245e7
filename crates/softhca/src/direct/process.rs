//! WRITEs into memory of a peer's program, by the kernel.

use hca_fabric::{Denied, Reach, max_process_write};

use crate::clock;
use crate::direct::list::{Piece, RequestList};
use crate::direct::ops::{Stop, fetch_local};
use crate::objects::direct::{DirectPeer, Lane};

/// So many bytes are gathered from pieces, to be written at once.
const FEW_BYTES: usize = 256;

/// Does a WRITE to memory of the peer's program, if nobody looks for a message there.
#[allow(unsafe_code)] // the kernel's copy
pub(crate) fn write_process(
    direct: &mut DirectPeer,
    lane: &Lane,
    reach: &mut Reach<'_>,
    list: &RequestList<'_>,
    at: u64,
    len: u32,
) -> Result<(), Stop> {
    let begin = clock::ticks();
    let Some(sleeps) = reach.sleeps(lane.grant) else {
        direct.lane = None;
        return Err(Stop::Remote);
    };
    if len as usize > max_process_write() || !direct.stream.takes(begin, sleeps) {
        return Err(Stop::Remote);
    }
    let mut few = [0; FEW_BYTES];
    let mut from = None;
    list.each::<Stop>(0, len as usize, false, |piece, i| {
        if let Some(place) = few.get_mut(i..i + piece.len()).filter(|_| len as usize <= FEW_BYTES) {
            fetch_local(&piece, place)?;
        } else if i == 0 && piece.len() == len as usize {
            from = Some(match piece {
                Piece::Memory(from, _) => from.cast_const(),
                Piece::Inline(bytes) => bytes.as_ptr(),
            });
        }
        Ok(())
    })?;
    let from = match from {
        Some(from) => from,
        None if len as usize <= FEW_BYTES => few.as_ptr(),
        None => return Err(Stop::Remote),
    };
    // SAFETY: as in `write`: the list was translated for this call, or the bytes are ours.
    let written = unsafe { reach.write_process(lane.grant, &lane.qp, at, from, len as usize) };
    direct.stream.last = (begin, clock::ticks());
    written.map_err(|denied| {
        match denied {
            Denied::Unable => {}
            Denied::QueuePair { .. } => (direct.guard, direct.lane) = (None, None),
            _ => direct.lane = None,
        }
        Stop::Remote
    })
}
