//! When WRITEs into the process of a peer are done by the kernel, and when they go as messages.

/// WRITEs that follow one another at once, after which such a stream goes as messages.
const MAX_IN_ROW: u32 = 16;
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
pub(crate) struct Stream {
    /// When the last one began and ended, in ticks of the processor.
    pub(crate) last: (u32, u32),
    in_row: u32,
    /// When the last WRITE was left to a message, as the peer's adapter was awake.
    left_at: Option<u32>,
    /// WRITEs to come beside an adapter that is awake, and how many they were at the last try.
    beside: u32,
    until_try: u32,
}

impl Stream {
    /// Whether a WRITE that begins now is to be done by the kernel. `sleeps`: the peer's adapter does.
    pub(crate) fn takes(&mut self, now: u32, sleeps: bool) -> bool {
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
