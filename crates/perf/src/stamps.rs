//! The stamps that the messages of a latency carry.
//!
//! A WRITE of less than 8 bytes carries the lower bytes of its stamp only, and no number beside them. So the lowest byte
//! of a stamp whose message was lost is not used again while its answer may still come: a late answer would be that of
//! another message.

use std::collections::VecDeque;

use crate::side::stamp;

/// Lost messages whose lowest bytes are not used again. Each loss takes as long as a message is waited for, so an answer
/// may be late by so many times that.
const REMEMBERED: usize = 128;
const _: () = assert!(REMEMBERED < 256, "some values of a byte are left");

/// The stamps of one measurement, in their order.
pub(super) struct Stamps {
    /// The number of the last message.
    last: u64,
    /// The lowest bytes that are not used.
    avoided: [bool; 256],
    /// The same, the oldest first.
    lost: VecDeque<u8>,
}

impl Stamps {
    pub(super) fn new() -> Self {
        Self { last: 0, avoided: [false; 256], lost: VecDeque::with_capacity(REMEMBERED) }
    }
    /// The stamp of the next message.
    #[inline]
    pub(super) fn next(&mut self) -> u64 {
        loop {
            self.last += 1;
            if !self.avoided[usize::from(self.last as u8)] {
                return stamp(self.last);
            }
        }
    }
    /// The message that has got the last stamp was lost.
    #[cold]
    pub(super) fn lose(&mut self) {
        if self.lost.len() == REMEMBERED
            && let Some(oldest) = self.lost.pop_front()
        {
            self.avoided[usize::from(oldest)] = false;
        }
        self.avoided[usize::from(self.last as u8)] = true;
        self.lost.push_back(self.last as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_byte_of_a_lost_message_comes_again_behind_many_losses_only() {
        let mut stamps = Stamps::new();
        let lowest = |stamps: &mut Stamps| stamps.next() as u8;
        for _ in 0..4 {
            stamps.next();
        }
        let first = lowest(&mut stamps);
        stamps.lose();
        assert!((0..3 * 256).all(|_| lowest(&mut stamps) != first));
        for _ in 1..REMEMBERED {
            assert_ne!(lowest(&mut stamps), first);
            stamps.lose();
        }
        assert!((0..3 * 256).all(|_| lowest(&mut stamps) != first));
        stamps.lose();
        assert!((0..3 * 256).any(|_| lowest(&mut stamps) == first));
    }

    #[test]
    fn stamps_without_losses_are_those_of_all_numbers() {
        let mut stamps = Stamps::new();
        assert!((1..1000).all(|n| stamps.next() == stamp(n)));
    }
}
