//! Checkers of deliveries: each message arrives exactly once and in order, or at most as often as its service allows.

use std::collections::BTreeMap;

use super::{Breach, Found};

/// A number that stands for a message: a hash of its bytes and of its other data (`with`).
pub fn fingerprint(bytes: &[u8], with: u64) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut h = (bytes.len() as u64 ^ with.wrapping_mul(K)).wrapping_add(K);
    let mut add = |w: u64| h = (h ^ w).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
    let mut chunks = bytes.chunks_exact(8);
    for c in &mut chunks {
        add(u64::from_le_bytes(*c.first_chunk().expect("chunks of 8 bytes")));
    }
    let mut rest = [0; 8];
    rest[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    add(u64::from_le_bytes(rest));
    h ^ h >> 32
}

/// One direction of a reliable connection: every message arrives exactly once, in order.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    sent: Vec<u64>,
    arrived: u64,
    /// The receiver's completion queue overran.
    lossy: bool,
}

impl Stream {
    /// Records that a message with this fingerprint is sent, and returns its number.
    pub fn sent(&mut self, print: u64) -> u64 {
        self.sent.push(print);
        self.sent.len() as u64 - 1
    }
    /// Records that the receiver's completion queue overran, as the device reported: from now on messages may be
    /// missing.
    pub fn overran(&mut self) {
        self.lossy = true;
    }
    /// Records that a message arrived, and returns its number.
    ///
    /// # Errors
    /// The message is not the next one.
    pub fn arrived(&mut self, print: u64) -> Result<u64, Breach> {
        let mut number = self.arrived;
        if self.lossy {
            let later = self.sent.iter().skip(number as usize).position(|p| *p == print);
            number += later.unwrap_or(0) as u64;
        }
        if self.sent.get(number as usize) == Some(&print) {
            self.arrived = number + 1;
            return Ok(number);
        }
        let found = match self.sent.iter().position(|p| *p == print) {
            Some(n) if (n as u64) < number => Found::Again(n as u64),
            Some(n) => Found::Later(n as u64),
            None => Found::Other,
        };
        Err(Breach::WrongMessage { number, found })
    }
    /// Checks the sender's report that a message arrived.
    ///
    /// # Errors
    /// The message did not arrive, and the receiver's completion queue did not overrun.
    pub fn acknowledged(&self, number: u64) -> Result<(), Breach> {
        if number < self.arrived || self.lossy {
            return Ok(());
        }
        Err(Breach::NotDelivered { number, arrived: self.arrived })
    }
    /// The number of messages that arrived.
    pub fn count(&self) -> u64 {
        self.arrived
    }
    /// Whether every message that was sent has arrived, or may have.
    pub fn is_complete(&self) -> bool {
        self.arrived == self.sent.len() as u64 || self.lossy
    }
}

/// An unreliable service: messages arrive whole or not at all, and not more often than they may.
#[derive(Clone, Debug)]
pub struct Datagrams {
    /// Sent and arrived, by fingerprint.
    messages: BTreeMap<u64, (u64, u64)>,
    copies: u64,
    arrived: u64,
    /// Where order is kept: all that were sent, and how many of these have arrived or been passed over.
    order: Option<(Vec<u64>, usize)>,
}

impl Datagrams {
    /// A checker for messages that may arrive `copies` times: 1, or 2 if the network duplicates packets.
    pub fn new(copies: u64) -> Self {
        Self { messages: BTreeMap::new(), copies, arrived: 0, order: None }
    }
    /// A checker for messages that may arrive once, and never behind a later one: an unreliable connection over a
    /// network that keeps the order.
    pub fn in_order() -> Self {
        Self { order: Some((Vec::new(), 0)), ..Self::new(1) }
    }
    /// Records that a message is sent.
    pub fn sent(&mut self, print: u64) {
        self.messages.entry(print).or_default().0 += 1;
        if let Some((all, _)) = &mut self.order {
            all.push(print);
        }
    }
    /// Records that a message arrived.
    ///
    /// # Errors
    /// The message was never sent with these bytes, or arrived too often.
    pub fn arrived(&mut self, print: u64) -> Result<(), Breach> {
        let Some((sent, arrived)) = self.messages.get_mut(&print) else { return Err(Breach::NeverSent) };
        *arrived += 1;
        self.arrived += 1;
        if *arrived > *sent * self.copies {
            return Err(Breach::TooOften { sent: *sent, arrived: *arrived });
        }
        if let Some((all, next)) = &mut self.order {
            // Equal messages can't be told apart: the first that is possible leaves most room to the others.
            match all[*next..].iter().position(|p| *p == print) {
                Some(skipped) => *next += skipped + 1,
                None => {
                    let number = all[..*next].iter().rposition(|p| *p == print).unwrap_or_default() as u64;
                    return Err(Breach::Overtaken { number, last: *next as u64 - 1 });
                }
            }
        }
        Ok(())
    }
    /// The number of messages that arrived.
    pub fn count(&self) -> u64 {
        self.arrived
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_tell_bytes_lengths_and_companions_apart() {
        let all = [
            fingerprint(b"", 0),
            fingerprint(b"\0", 0),
            fingerprint(b"\0\0", 0),
            fingerprint(b"abcdefgh", 0),
            fingerprint(b"abcdefgi", 0),
            fingerprint(b"abcdefgh", 1),
            fingerprint(b"hgfedcba", 0),
            fingerprint(b"abcdefghabcdefgi", 0),
        ];
        for (n, a) in all.iter().enumerate() {
            assert!(!all[..n].contains(a), "{n}");
        }
    }

    #[test]
    fn a_stream_passes_over_messages_once_its_queue_overran_and_never_goes_back() {
        let mut s = Stream::default();
        [10, 11, 10, 12].into_iter().for_each(|p| {
            s.sent(p);
        });
        assert_eq!(s.arrived(10), Ok(0));
        assert!(s.acknowledged(2).is_err());
        s.overran();
        assert_eq!(s.acknowledged(2), Ok(()));
        assert_eq!(s.arrived(10), Ok(2));
        assert!(s.arrived(11).is_err(), "it was passed over");
        assert_eq!(s.arrived(12), Ok(3));
    }

    #[test]
    fn a_stream_notices_loss_doubling_and_change() {
        let mut s = Stream::default();
        (10..14).for_each(|p| {
            s.sent(p);
        });
        assert_eq!(s.arrived(10), Ok(0));
        let wrong = |number, found| Err(Breach::WrongMessage { number, found });
        assert_eq!(s.arrived(10), wrong(1, Found::Again(0)));
        assert_eq!(s.arrived(12), wrong(1, Found::Later(2)));
        assert_eq!(s.arrived(99), wrong(1, Found::Other));
        assert_eq!(s.acknowledged(0), Ok(()));
        assert_eq!(s.acknowledged(1), Err(Breach::NotDelivered { number: 1, arrived: 1 }));
    }

    #[test]
    fn datagrams_may_be_lost_but_not_invented_or_doubled() {
        let mut d = Datagrams::new(1);
        d.sent(1);
        d.sent(2);
        assert_eq!(d.arrived(2), Ok(()));
        assert_eq!(d.arrived(2), Err(Breach::TooOften { sent: 1, arrived: 2 }));
        assert_eq!(d.arrived(3), Err(Breach::NeverSent));
    }

    #[test]
    fn where_order_is_kept_a_message_may_be_lost_but_not_overtaken() {
        let mut d = Datagrams::in_order();
        for print in [1, 2, 1, 3] {
            d.sent(print);
        }
        assert_eq!(d.arrived(2), Ok(()));
        assert_eq!(d.arrived(1), Ok(()), "the second of its kind");
        assert_eq!(d.arrived(1), Err(Breach::Overtaken { number: 2, last: 2 }));
        assert_eq!(d.arrived(3), Ok(()));
    }
}
