//! Packets with payloads in other memory, over real sockets.
//!
//! Invariant:
//! 1. Lent memory outlives the batch, and is written only after the batch was sent or taken in.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex};

use hca_core::Instant;
use hca_core::wire::ICRC_BYTES;

use super::refusals::{Call, Ends, NOW, counter, packet};
use crate::{Direction, Fabric, Tap, TapFrame};

/// Lends the payload of a packet, whose headers are its first `head` bytes.
fn lend(e: &mut Ends, packet: &[u8], head: usize) {
    let to = e.batch.reserve(e.path, packet.len()).unwrap();
    to[..head].copy_from_slice(&packet[..head]);
    to[head..].fill(0xee);
    // SAFETY: (1)
    unsafe { e.batch.commit_lent(head, packet[head..].as_ptr(), packet.len() - head) };
}

#[test]
fn payloads_that_lie_elsewhere_arrive_in_their_packets() {
    let mut e = Ends::new(60);
    // As WRITEs leave: the first packet of a message is longer, the last may be shorter, small ones are copied.
    let lens = [
        vec![28 + 4096],
        vec![28 + 4096, 12 + 4096],
        vec![12 + 4096; 33],
        [vec![28 + 1024], vec![12 + 1024; 70], vec![12 + 1000], vec![20; 3]].concat(),
    ];
    let mut n = 1;
    for (round, lens) in lens.iter().enumerate() {
        let packets: Vec<_> = (n..).zip(lens).map(|(n, len)| (packet(n, *len), *len)).collect();
        n += lens.len() as u32;
        for (p, len) in &packets {
            let head = if len % 1024 == 28 { 28 } else { 12 };
            if *len > 1000 {
                lend(&mut e, p, head);
            } else {
                e.batch.reserve(e.path, *len).unwrap().copy_from_slice(p);
                e.batch.commit();
            }
        }
        e.send();
        assert!(e.batch.is_empty());
        let sent: Vec<_> = packets.into_iter().map(|p| p.0).collect();
        assert!(e.receive(sent.len()) == sent, "round {round}");
    }
    assert_eq!(counter(&e.b, "icrc_errors") + counter(&e.b, "icrc_ident_solved"), 0);
    e.expect_certain();
}

#[test]
fn a_train_is_sealed_as_if_its_payloads_lay_in_it() {
    let mut e = Ends::new(64);
    let packets = [1, 2, 3, 4].map(|n| packet(n, if n < 4 { 12 + 1024 } else { 24 }));
    let mut sealed = [true, false].map(|lent| {
        for p in &packets {
            if lent && p.len() > 24 {
                lend(&mut e, p, 12);
            } else {
                e.batch.reserve(e.path, p.len()).unwrap().copy_from_slice(p);
                e.batch.commit();
            }
        }
        let train = e.batch.trains()[0];
        e.a.end.sender.seal(&train, 3, &mut e.batch);
        e.batch.take_in();
        let bytes = e.batch.bytes(&train).to_vec();
        e.batch.advance(1);
        bytes
    });
    assert!(sealed[0] == sealed[1]);
    sealed[0].truncate(12);
    assert_eq!(sealed[0], packets[0][..12]);
}

#[test]
fn a_kernel_that_will_not_cut_trains_gets_packets_with_their_payloads() {
    let mut e = Ends::new(61);
    let packets: Vec<_> = (1..8).map(|n| packet(n, 12 + 1024)).collect();
    packets.iter().for_each(|p| lend(&mut e, p, 12));
    e.send_refused(&[Call::Train], libc::EIO);
    assert!(e.batch.is_empty());
    assert_eq!(e.receive(7), packets);
    assert_eq!(counter(&e.a, "tx_uncut_trains"), 1);
}

#[test]
fn what_waits_leaves_as_it_was_when_it_was_taken_in() {
    let mut e = Ends::new(62);
    let sent: Vec<_> = (1..4).map(|n| packet(n, 12 + 1024)).collect();
    let mut packets = sent.clone();
    packets.iter().for_each(|p| lend(&mut e, p, 12));
    e.send_refused(&[Call::Packet, Call::Train, Call::Several], libc::EAGAIN);
    assert_eq!(e.batch.trains().len(), 1, "nothing left");
    e.batch.take_in();
    packets.iter_mut().for_each(|p| p.fill(0));
    e.send();
    assert_eq!(e.receive(3), sent);
}

/// Keeps what is sent.
struct Kept(Arc<Mutex<Vec<Vec<u8>>>>);
impl Tap for Kept {
    fn frame(&mut self, _: Instant, frame: &TapFrame<'_>) {
        if frame.direction == Direction::Tx {
            let bytes = &frame.payload[..frame.payload.len() - ICRC_BYTES];
            self.0.lock().unwrap().push(bytes.to_vec());
        }
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_tap_sees_whole_packets() {
    let mut e = Ends::new(63);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let packets: Vec<_> = (1..4).map(|n| packet(n, 12 + 1024)).collect();
    assert!(e.a.sends_in_place_from().is_some());
    // It comes while a batch is filled.
    packets.iter().for_each(|p| lend(&mut e, p, 12));
    e.a.set_tap(Some(Box::new(Kept(Arc::clone(&seen)))));
    assert_eq!(e.a.sends_in_place_from(), None);
    e.a.send(NOW, &mut e.batch);
    assert_eq!(*seen.lock().unwrap(), packets);
    assert_eq!(e.receive(3), packets);
}
