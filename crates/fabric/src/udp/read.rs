//! Reading the own socket: the system call that fits what comes.
//!
//! | datagrams come | a call takes | the kernel merges trains | the call tells of a datagram |
//! |---|---|---|---|
//! | in a row | several | yes | everything |
//! | one by one | one | yes | everything |
//! | one by one, short, seldom two at once, on loopback | one | no | its source |
//!
//! Over loopback a ping-pong of 8 bytes takes 5 % less time by the last row: the control messages, which tell the size
//! of a train's packets and the traffic class, cost the kernel 100 ns in each datagram, and the room for them 70 ns in
//! each call, of which those that find nothing are the most. Between hosts the network takes more than that many times
//! over, and its queues mark packets that meet congestion, so such a socket is always asked for everything.
//!
//! Nothing of a datagram is missed in the last row. A train that comes nevertheless is cut by the kernel. The traffic
//! class is asked for if anyone reads it: a tap, or queue pairs of datagrams in the GRH; on loopback congestion marks
//! are set by senders alone, and one datagram of 64 is asked for its mark.

use std::os::fd::{AsFd, BorrowedFd};

use hca_core::Instant;

use super::counters::Counters;
use super::end::{End, Sink};
use super::sys::{self, RxSlots};
use crate::{RxBudget, RxOutcome};

/// Datagrams that one receive call takes at most when many small ones come.
const RX_SLOTS: usize = 8;
/// Receive calls in a row that found something, after which several datagrams are taken a call.
const BUSY_CALLS: u32 = 4;
/// The same, after which lone datagrams are taken for a train that the kernel cut.
const STREAM_CALLS: u32 = 32;
/// A datagram with this many packets or more says that more may follow.
const LARGE_TRAIN: usize = 4;
/// A longer datagram is of a stream.
const SHORT_BYTES: usize = 512;
/// Short packets that came alone, after which the next are expected to do so.
const LONE: u32 = 64;
/// A packet that came behind another, or in its train, is worth so many that came alone: a message with the
/// acknowledgement of another is cheaper as a train, which the kernel does not cut.
const NOT_ALONE: u32 = 4;
/// Of so many datagrams one is asked for its traffic class.
const SAMPLE: u32 = 64;

/// The answers that a receive call for one datagram asks the kernel for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ask {
    /// Everything; trains are merged.
    All,
    /// Everything, as trains were merged until a moment ago and one may still wait.
    AllOfTheRest,
    /// The source. Trains are not merged.
    Source,
}

/// How the own socket is read.
pub(super) struct Reader {
    slots: RxSlots,
    /// Receive calls in a row that found something.
    busy: u32,
    /// Short packets that came alone, up to [`LONE`], less [`NOT_ALONE`] for each that did not.
    lone: u32,
    /// Datagrams until the next that is asked for its traffic class.
    until_sample: u32,
    ask: Ask,
    /// The traffic class of each datagram counts: it is read, or a network may mark packets on their way here.
    needs_class: bool,
}

impl Reader {
    pub(super) fn new(on_loopback: bool) -> Self {
        Self {
            slots: RxSlots::new(RX_SLOTS),
            busy: 0,
            lone: 0,
            until_sample: 0,
            ask: Ask::All,
            needs_class: !on_loopback,
        }
    }

    /// Asks for the traffic class of each datagram from now on.
    pub(super) fn read_class(&mut self, fd: BorrowedFd<'_>) {
        self.needs_class = true;
        self.ask_all(fd);
    }

    /// Lone packets are no longer expected.
    #[inline]
    fn ask_all(&mut self, fd: BorrowedFd<'_>) {
        self.lone = 0;
        if self.ask != Ask::All {
            self.merge(fd, true);
        }
    }

    /// Has the kernel merge trains, or not. If the kernel refuses, it goes on as before.
    #[cold]
    fn merge(&mut self, fd: BorrowedFd<'_>, on: bool) {
        if sys::set_option(fd, libc::SOL_UDP, libc::UDP_GRO, on.into()).is_ok() {
            self.ask = if on { Ask::All } else { Ask::AllOfTheRest };
        }
    }

    /// The socket is empty.
    #[inline]
    fn found_nothing(&mut self, fd: BorrowedFd<'_>) {
        self.busy = 0;
        match self.ask {
            Ask::All if self.lone >= LONE && !self.needs_class => self.merge(fd, false),
            Ask::AllOfTheRest => self.ask = Ask::Source,
            _ => {}
        }
    }

    /// Receives by one call, and returns how many datagrams.
    #[inline]
    fn receive(&mut self, fd: BorrowedFd<'_>, several: bool, counters: &mut Counters) -> Result<usize, i32> {
        counters.recv_calls += 1;
        if several {
            self.slots.recv_many(fd)
        } else if self.ask == Ask::Source && self.until_sample > 0 {
            counters.recv_calls_for_source += 1;
            self.slots.recv_from(fd).map(|()| 1)
        } else {
            self.slots.recv_one(fd).map(|()| 1)
        }
    }

    /// Gives the packets of the own socket to the sink.
    #[inline]
    pub(super) fn recv(
        &mut self,
        end: &mut End,
        now: Instant,
        budget: RxBudget,
        sink: Sink<'_>,
    ) -> RxOutcome {
        let End { rx, receiver, account, .. } = end;
        let fd = rx.socket.as_fd();
        let mut outcome = RxOutcome::default();
        let mut bytes = 0;
        if account.tap.is_some() {
            self.ask_all(fd);
        }
        loop {
            if outcome.packets >= budget.packets || bytes >= budget.bytes {
                outcome.more = true;
                return outcome;
            }
            let several = self.busy >= BUSY_CALLS && self.ask == Ask::All;
            let count = match self.receive(fd, several, &mut account.counters) {
                Ok(n) => n,
                Err(libc::EAGAIN) => {
                    self.found_nothing(fd);
                    return outcome;
                }
                Err(e) => {
                    account.counters.recv_errors += u64::from(e != libc::EINTR);
                    self.busy = 0;
                    return outcome;
                }
            };
            let (before, bytes_before) = (outcome.packets, bytes);
            let (behind, mut alone) = (self.busy > 0, count == 1);
            self.until_sample = self.until_sample.checked_sub(1).unwrap_or(SAMPLE - 1);
            for slot in 0..count {
                let Some(datagram) = self.slots.datagram(slot) else { continue };
                bytes += datagram.bytes.len();
                alone &= datagram.control.traffic_class & 3 != 3;
                outcome.packets += receiver.deliver(now, &datagram, account, sink);
            }
            self.busy = if several && count < RX_SLOTS / 2 { 0 } else { self.busy.saturating_add(1) };
            let packets = outcome.packets - before;
            let few = packets < LARGE_TRAIN;
            if !alone || !few || bytes - bytes_before > SHORT_BYTES || self.busy >= STREAM_CALLS {
                self.ask_all(fd);
            } else if packets == 1 && !behind {
                self.lone = LONE.min(self.lone + 1);
            } else {
                self.lone = self.lone.saturating_sub(NOT_ALONE);
                if self.lone == 0 {
                    self.ask_all(fd);
                }
            }
            // A lone small datagram is most likely the last: that an answer leaves at once is worth
            // more than to look. Nothing is missed, as the descriptor stays readable.
            if !several && few {
                return outcome;
            }
            if several && count < RX_SLOTS {
                return outcome;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use hca_core::{AddressVector, Gid};

    use super::super::refusals::{BUDGET, Call, Ends, NOW, counter, packet, refusing};
    use super::*;
    use crate::{Fabric, PathId, Tap, TapFrame};

    /// DSCP 40, and "marks packets that meet congestion".
    const CLASS: u8 = 0xa2;
    const CONGESTION: u8 = 3;

    /// Ends whose receiver reads lone datagrams, which come with this class.
    fn lone_ends(salt: u32, class: u8) -> (Ends, PathId) {
        let mut e = Ends::new(salt);
        let dgid = Gid::from_ip(e.b.attr().local);
        let path = e.a.open_path(&AddressVector { dgid, traffic_class: class, ..AddressVector::default() });
        let path = path.expect("the peer is on this machine");
        for _ in 0..LONE + 4 {
            lone(&mut e, path);
        }
        (e, path)
    }

    /// One short datagram, and a look that finds nothing; returns the class that it came with.
    fn lone(e: &mut Ends, path: PathId) -> u8 {
        e.batch.reserve(path, 20).expect("the batch has room").copy_from_slice(&packet(1, 20));
        e.batch.commit();
        e.send();
        let mut class = None;
        for _ in 0..2 {
            e.b.recv(NOW, BUDGET, &mut |p| {
                assert_eq!(p.bytes, packet(1, 20));
                class = Some(p.header.traffic_class);
            });
        }
        class.expect("loopback delivers before the send call returns")
    }

    fn calls_for_source(e: &Ends) -> u64 {
        counter(&e.b, "recv_calls_for_source")
    }

    #[test]
    fn lone_datagrams_are_asked_for_their_source_alone_and_trains_come_whole_again() {
        let (mut e, _) = lone_ends(60, CLASS);
        assert!(calls_for_source(&e) > 0, "a datagram and a look at least");
        for train in 0..3 {
            let merged = counter(&e.b, "rx_trains");
            e.put(100, 40, 20);
            e.send();
            assert_eq!(e.receive(64), (100..140).map(|n| packet(n, 20)).collect::<Vec<_>>());
            let datagrams = counter(&e.b, "rx_trains") - merged;
            assert_eq!(datagrams, if train == 0 { 40 } else { 1 }, "train {train}");
        }
        let before = calls_for_source(&e);
        e.put(1, 2, 1024);
        e.send();
        assert_eq!(e.receive(2).len(), 2);
        assert_eq!(calls_for_source(&e), before, "longer ones are of a stream");
        assert_eq!(counter(&e.b, "icrc_errors") + counter(&e.b, "short_packets"), 0);
    }

    /// A train of two short packets, as a message with the acknowledgement of another; returns the datagrams of it.
    fn pair(e: &mut Ends) -> u64 {
        let before = counter(&e.b, "rx_trains");
        e.put(1, 2, 20);
        e.send();
        assert_eq!(e.receive(2), [packet(1, 20), packet(2, 20)]);
        counter(&e.b, "rx_trains") - before
    }

    #[test]
    fn trains_of_two_come_whole_if_they_are_many() {
        let mut e = Ends::new(69);
        let datagrams: Vec<u64> = (0..2 * LONE).map(|_| pair(&mut e)).collect();
        assert_eq!((datagrams, calls_for_source(&e)), (vec![1; 2 * LONE as usize], 0), "none is alone");
        let (mut e, _) = lone_ends(70, CLASS);
        let datagrams: Vec<u64> = (0..LONE).map(|_| pair(&mut e)).collect();
        let whole = datagrams.iter().position(|&n| n == 1).expect("they come whole again");
        assert!(whole as u32 <= LONE / (NOT_ALONE - 1) + 1, "after {whole}");
        assert!(datagrams[whole..].iter().all(|&n| n == 1), "and stay so");
    }

    #[test]
    fn few_trains_of_two_among_lone_packets_are_cut() {
        let (mut e, path) = lone_ends(71, CLASS);
        for _ in 0..LONE {
            for _ in 0..2 * NOT_ALONE {
                lone(&mut e, path);
            }
            assert_eq!(pair(&mut e), 2);
        }
    }

    /// Ends of which the receiver has just had the kernel merge trains no more, and a train that came before.
    fn ends_with_the_rest(salt: u32) -> Ends {
        let mut e = Ends::new(salt);
        let rest = (0..2 * LONE).position(|_| {
            e.put(1, 1, 20);
            e.send();
            e.b.recv(NOW, BUDGET, &mut |_| {});
            // Finds nothing. The kernel merges trains no more once so many datagrams came alone.
            e.b.recv(NOW, BUDGET, &mut |_| {});
            e.b.reader.ask == Ask::AllOfTheRest
        });
        assert!(rest.is_some());
        // As if the train had come a moment before.
        e.b.reader.merge(e.b.end.rx.socket.as_fd(), true);
        e.b.reader.ask = Ask::AllOfTheRest;
        e.put(10, 3, 20);
        e.send();
        e
    }

    #[test]
    fn a_train_that_was_merged_before_the_kernel_cuts_them_is_read_with_its_segments() {
        let mut e = ends_with_the_rest(61);
        assert_eq!(e.receive(3), [10, 11, 12].map(|n| packet(n, 20)));
    }

    #[test]
    fn a_call_that_fails_does_not_say_that_no_train_waits() {
        for (salt, errno, counted) in [(67, libc::EINTR, 0), (68, libc::ENOMEM, 1)] {
            let mut e = ends_with_the_rest(salt);
            let b = &mut e.b;
            refusing(&[Call::Receive], errno, || b.recv(NOW, BUDGET, &mut |_| panic!("nothing can come")));
            assert_eq!(counter(&e.b, "recv_errors"), counted);
            assert_eq!(e.receive(3), [10, 11, 12].map(|n| packet(n, 20)), "error {errno}");
        }
    }

    #[test]
    fn the_traffic_class_is_told_from_the_call_on_that_asks_for_it() {
        let (mut e, path) = lone_ends(62, CLASS);
        assert_eq!(lone(&mut e, path), 0, "nobody reads it");
        e.b.read_traffic_class();
        for _ in 0..3 * LONE {
            assert_eq!(lone(&mut e, path), CLASS);
        }
    }

    #[test]
    fn a_tap_sees_the_traffic_class_of_each_datagram() {
        struct Classes(Arc<Mutex<Vec<u8>>>);
        impl Tap for Classes {
            fn frame(&mut self, _: Instant, frame: &TapFrame<'_>) {
                self.0.lock().unwrap().push(frame.header.traffic_class);
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let (mut e, path) = lone_ends(63, CLASS);
        let seen = Arc::new(Mutex::new(Vec::new()));
        e.b.set_tap(Some(Box::new(Classes(seen.clone()))));
        for _ in 0..2 * LONE {
            lone(&mut e, path);
        }
        assert_eq!(*seen.lock().unwrap(), [CLASS; 2 * LONE as usize]);
    }

    #[test]
    fn a_sender_that_marks_its_packets_is_found_and_each_mark_told_from_then_on() {
        let (mut e, unmarked) = lone_ends(64, CLASS);
        let dgid = Gid::from_ip(e.b.attr().local);
        let av = AddressVector { dgid, traffic_class: CLASS | CONGESTION, ..AddressVector::default() };
        let marked = e.a.open_path(&av).expect("the peer is on this machine");
        assert_eq!(lone(&mut e, unmarked), 0);
        let until_found = (0..LONE).position(|_| lone(&mut e, marked) & CONGESTION == CONGESTION);
        assert!(until_found.is_some(), "one of so many is asked");
        for _ in 0..3 * LONE {
            assert_eq!(lone(&mut e, marked), CLASS | CONGESTION);
        }
    }

    #[test]
    fn long_datagrams_are_no_lone_ones() {
        let mut e = Ends::new(66);
        for _ in 0..2 * LONE {
            e.put(1, 1, SHORT_BYTES);
            e.send();
            assert_eq!(e.receive(1).len(), 1);
        }
        assert_eq!(calls_for_source(&e), 0);
    }

    #[test]
    fn where_a_network_may_mark_packets_all_is_asked_of_each() {
        let mut e = Ends::new(65);
        e.b.reader = Reader::new(false);
        for _ in 0..2 * LONE {
            e.put(1, 1, 20);
            e.send();
            assert_eq!(e.receive(1).len(), 1);
        }
        assert_eq!(calls_for_source(&e), 0);
    }
}
