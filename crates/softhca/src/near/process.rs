//! WRITEs into memory of a peer's program, by the kernel.

use hca_fabric::{Denied, Reach, max_process_write};

use super::ops::{Piece, Stop, fetch_local};
use super::{Lane, Near};
use crate::clock;
use crate::qp::RequestList;

/// WRITEs that follow one another at once, after which such a stream goes as messages.
const MAX_IN_ROW: u32 = 16;
/// So many bytes are gathered from pieces, to be written at once.
const FEW_BYTES: usize = 256;

/// In so many ticks of the processor, 13 to 65 us, a peer that polls has taken a message, and answered.
const LATE: u32 = 1 << 16;
/// WRITEs by the kernel beside an adapter that is awake, between two that go as messages, at first and at most.
const UNTIL_TRY: (u32, u32) = (64, 1 << 16);

/// How WRITEs into a peer's process follow one another. Such a WRITE spares the peer's adapter a wake-up, and takes as
/// long as several messages. So a stream of them goes as messages, which wake the adapter once.
///
/// An adapter whose program polled a moment ago does not sleep, although nobody may look at its rings for a tick of its
/// thread. A message tells which: where the next WRITE comes late behind it, nobody looked. Then the next ones are done
/// by the kernel, and a message is tried ever more rarely.
#[derive(Default)]
pub(super) struct Stream {
    /// When the last one began and ended, in ticks of the processor.
    last: (u32, u32),
    in_row: u32,
    /// When the last WRITE was left to a message, as the peer's adapter was awake.
    left_at: Option<u32>,
    /// WRITEs to come beside an adapter that is awake, and how many they were at the last try.
    beside: u32,
    until_try: u32,
}

impl Stream {
    /// Whether a WRITE that begins now is to be done by the kernel. `sleeps`: the peer's adapter does.
    fn takes(&mut self, now: u32, sleeps: bool) -> bool {
        let (began, ended) = self.last;
        let follows = now.wrapping_sub(ended) < ended.wrapping_sub(began) / 2;
        self.in_row = if follows { self.in_row + 1 } else { 0 };
        if let Some(left_at) = self.left_at.take() {
            let late = now.wrapping_sub(left_at) >= LATE;
            self.until_try = if late { (2 * self.until_try).clamp(UNTIL_TRY.0, UNTIL_TRY.1) } else { 0 };
            self.beside = self.until_try;
        }
        if self.in_row >= MAX_IN_ROW {
            return false;
        }
        if !sleeps && self.beside == 0 {
            self.left_at = Some(now);
            return false;
        }
        self.beside -= u32::from(!sleeps);
        true
    }
}

/// Does a WRITE to memory of the peer's program, if nobody looks for a message there.
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
    let Some(sleeps) = reach.sleeps(lane.grant) else {
        near.lane = None;
        return Err(Stop::Remote);
    };
    if len as usize > max_process_write() || !near.stream.takes(begin, sleeps) {
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
            let takes = stream.takes(now, true);
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

    /// So many WRITEs to a peer that is awake, of which `after` tells how long behind a message the next one comes: the
    /// number of messages.
    fn messages(stream: &mut Stream, writes: u32, after: u32) -> u32 {
        let mut now = stream.last.1;
        let mut write = || {
            if stream.takes(now, false) {
                stream.last = (now, now.wrapping_add(1000));
                now = now.wrapping_add(3000);
                0
            } else {
                now = now.wrapping_add(after);
                1
            }
        };
        (0..writes).map(|_| write()).sum()
    }

    #[test]
    fn a_peer_that_looks_gets_messages_and_one_that_does_not_gets_ever_fewer() {
        let mut stream = Stream::default();
        assert_eq!(messages(&mut stream, 1000, LATE - 1), 1000, "it looks");
        // One before each of 64, 128, .., 65,536.
        assert_eq!(messages(&mut stream, 1 << 17, LATE), 11, "its program spins");
        assert_eq!(messages(&mut stream, 1 << 17, LATE), 2);
        assert!(messages(&mut stream, 1 << 17, LATE - 1) > 1 << 15, "it looks again");
    }
}
