//! WRITEs into memory of a peer's program, by the kernel.

use hca_fabric::{Denied, MAX_PROCESS_WRITE, Reach};

use super::ops::{Piece, Stop, fetch_local};
use super::{Lane, Near};
use crate::clock;
use crate::qp::RequestList;

/// WRITEs that follow one another at once, after which such a stream goes as messages.
const MAX_IN_ROW: u32 = 16;
/// So many bytes are gathered from pieces, to be written at once.
const FEW_BYTES: usize = 256;

/// How WRITEs into a peer's process follow one another. Such a WRITE spares the peer's adapter a wake-up, and takes as
/// long as several messages. So a stream of them goes as messages, which wake the adapter once.
#[derive(Default)]
pub(super) struct Stream {
    /// When the last one began and ended, in ticks of the processor.
    last: (u32, u32),
    in_row: u32,
}

impl Stream {
    /// Whether a WRITE that begins now is to be done by the kernel.
    fn takes(&mut self, now: u32) -> bool {
        let (began, ended) = self.last;
        let follows = now.wrapping_sub(ended) < ended.wrapping_sub(began) / 2;
        self.in_row = if follows { self.in_row + 1 } else { 0 };
        self.in_row < MAX_IN_ROW
    }
}

/// Does a WRITE to memory of the peer's program, if the peer's adapter sleeps and a message would have to wake it.
#[allow(unsafe_code)] // the kernel's copy
pub(super) fn write_process(
    near: &mut Near,
    lane: &Lane,
    reach: &mut Reach<'_>,
    list: &RequestList<'_>,
    at: u64,
    len: u32,
) -> Result<(), Stop> {
    let begin = clock::ticks();
    if len as usize > MAX_PROCESS_WRITE || !reach.sleeps(lane.grant) || !near.stream.takes(begin) {
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
    near.stream.last = (begin, clock::ticks());
    written.map_err(|denied| {
        match denied {
            Denied::Unable => {}
            Denied::QueuePair { .. } => (near.guard, near.lane) = (None, None),
            _ => near.lane = None,
        }
        Stop::Remote
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_of_writes_goes_as_messages_and_single_ones_do_not() {
        const TOOK: u32 = 1000;
        let mut stream = Stream::default();
        let mut now = u32::MAX - 10 * TOOK;
        let mut write = |after: u32| {
            now = now.wrapping_add(after);
            let takes = stream.takes(now);
            if takes {
                stream.last = (now, now.wrapping_add(TOOK));
                now = now.wrapping_add(TOOK);
            }
            takes
        };
        assert!((0..100).all(|_| write(TOOK)), "answers come in between");
        assert_eq!((0..100).take_while(|_| write(TOOK / 4)).count() as u32, MAX_IN_ROW - 1);
        assert!(write(TOOK), "after a pause");
    }
}
