//! Reliable connection: ATOMIC WRITE and FLUSH, by packets and by messages.
mod link;
mod messages;
mod pair;

use link::*;
use pair::*;

const VISIBLE: Placement = Placement::GLOBAL_VISIBILITY;
const VALUE: [u8; 8] = *b"01234567";

fn flush(len: u32, placement: Placement, selectivity: Selectivity) -> SendOp {
    SendOp::Flush { remote: remote(4096), len, placement, selectivity }
}
const fn atomic_write(remote: RemoteAddr) -> SendOp {
    SendOp::AtomicWrite { remote, value: VALUE }
}

both!(a_word_is_written_and_a_flush_comes_behind_all_that_was_placed);

fn a_word_is_written_and_a_flush_comes_behind_all_that_was_placed(by: By) {
    let mut p = by.rc();
    p.fill(A, 0, 10_000);
    p.send(A, SendOp::Write(remote(4096)), 0, 10_000);
    p.send(A, flush(10_000, VISIBLE, Selectivity::Range), 0, 0);
    p.send(A, atomic_write(remote(64)), 0, 0);
    p.send(A, flush(7, Placement::all(), Selectivity::Region), 0, 0);
    p.send(A, flush(0, Placement::PERSISTENCE, Selectivity::Range), 0, 0);
    p.run();
    let done: Vec<_> = (0..5).map(|i| Done::Send(SQ_BASE.wrapping_add(i), Success, 0)).collect();
    assert_eq!(p.a.host.done, done);
    p.expect_bytes(B, 4096, 0, 10_000);
    let host = &p.b.host;
    assert_eq!((&host.mem[64..72], host.atomics), (&VALUE[..], 1));
    let placed = host.writes;
    let [first, second] = host.flushes[..] else { panic!("{:?}", host.flushes) };
    assert_eq!(first, (Some((4096, 10_000)), Access::FLUSH_GLOBAL, placed));
    let rights = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    assert_eq!(second, (None, rights, placed + 1), "one of no bytes needs no key");
}

#[test]
fn their_packets_are_as_the_annex_has_them() {
    let mut p = Pair::rc();
    p.send(A, atomic_write(remote(64)), 0, 0);
    p.send(A, flush(1000, VISIBLE, Selectivity::Region), 0, 0);
    p.run();
    assert_eq!((p.ops(A), p.psns(A)), (vec![P::AtomicWrite, P::Flush], vec![PSN, PSN + 1]));
    assert_eq!((p.ops(B), p.psns(B)), (vec![P::ReadResponseOnly; 2], vec![PSN, PSN + 1]));
    let sent: Vec<_> = p.wire.iter().map(|s| s.packet()).collect();
    assert_eq!((sent[0].opcode().raw(), sent[1].opcode().raw()), (0x1d, 0x1c));
    let reth = |packet: &Packet<'_>| {
        let reth = packet.reth().unwrap();
        (reth.va.get(), reth.rkey.get(), reth.dma_len.get())
    };
    assert_eq!((reth(&sent[0]), sent[0].payload()), ((64, KEY.raw(), 8), &VALUE[..]));
    assert_eq!((reth(&sent[1]), sent[1].payload()), ((4096, KEY.raw(), 1000), &[][..]));
    assert_eq!(sent[1].feth(), Some(&Feth::new(Selectivity::Region, VISIBLE)));
    assert!(sent[2..].iter().all(|response| response.payload().is_empty()));
}

#[test]
fn their_lost_answers_are_told_again_and_nothing_is_done_twice() {
    let mut p = Pair::rc();
    p.drop_packets(B, &[0, 1, 2]);
    p.send(A, atomic_write(remote(64)), 0, 0);
    p.send(A, flush(8, VISIBLE, Selectivity::Range), 0, 0);
    p.send(A, SendOp::FetchAdd { remote: remote(64), add: 1 }, 0, 8);
    p.ends(&[Success; 3]);
    assert_eq!((p.b.host.atomics, p.b.host.flushes.len()), (2, 1));
    let word = u64::from_ne_bytes(VALUE) + 1;
    assert_eq!(p.b.host.mem[64..72], word.to_ne_bytes(), "a late copy does not undo what came behind it");
    assert!(p.b.host.counted(Count::Duplicate) >= 3);
}

#[test]
fn a_request_that_breaks_their_rules_is_refused_and_changes_nothing() {
    let word = |va, len| Raw::rc(P::AtomicWrite, B, PSN).reth(va, KEY, len);
    let flush = |bits, va, len| Raw::rc(P::Flush, B, PSN).feth(bits).reth(va, KEY, len);
    let end = MEMORY as u64;
    for (raw, code) in [
        (word(60, 8).payload(8), NakCode::InvalidRequest),
        (word(64, 4).payload(8), NakCode::InvalidRequest),
        (word(64, 8).payload(7), NakCode::InvalidRequest),
        (word(64, 8).payload(12), NakCode::InvalidRequest),
        (word(64, 0), NakCode::InvalidRequest),
        (word(end, 8).payload(8), NakCode::RemoteAccess),
        (flush(0x00, 0, 8), NakCode::InvalidRequest),
        (flush(0x04, 0, 8), NakCode::InvalidRequest),
        (flush(0x21, 0, 8), NakCode::InvalidRequest),
        (flush(0x31, 0, 8), NakCode::InvalidRequest),
        (flush(0x01, end - 7, 8), NakCode::RemoteAccess),
        (flush(0x01, u64::MAX, 8), NakCode::RemoteAccess),
    ] {
        let mut p = Pair::rc();
        p.deliver(B, &raw.bytes());
        p.transmit_side(B);
        assert_eq!(p.naks(B), [code], "{:02x?}", raw.bytes());
        assert_eq!(p.b.qp.state(), QpState::Error);
        assert!(p.b.host.flushes.is_empty() && p.b.host.atomics == 0);
    }
    // Reserved bits of the header mean nothing, and neither do address and length to the whole region.
    let mut p = Pair::rc();
    p.deliver(B, &flush(0xffff_ff52, u64::MAX, u32::MAX).bytes());
    p.transmit_side(B);
    assert_eq!(p.ops(B), [P::ReadResponseOnly]);
    assert_eq!(p.b.host.flushes, [(None, Access::FLUSH_PERSISTENT, 0)]);
}

/// Where a READ was there was no ATOMIC WRITE, and the other way round.
#[test]
fn a_repeat_of_another_kind_is_not_answered() {
    let mut p = Pair::rc();
    p.send(A, atomic_write(remote(64)), 0, 0);
    p.send(A, READ, 512, 8);
    p.run();
    let before = p.wire.len();
    for raw in [
        Raw::rc(P::FetchAdd, B, PSN).atomic(64, 1),
        Raw::rc(P::ReadRequest, B, PSN).reth(64, KEY, 0),
        Raw::rc(P::Flush, B, PSN + 1).feth(1).reth(0, KEY, 8),
    ] {
        p.deliver(B, &raw.bytes());
        p.transmit_side(B);
    }
    assert_eq!((p.wire.len(), p.b.host.atomics), (before, 1));
    // The header alone names what is repeated, and memory is not looked at.
    p.deliver(B, &Raw::rc(P::AtomicWrite, B, PSN).reth(3, KEY, 8).payload(8).bytes());
    p.transmit_side(B);
    assert_eq!((p.wire.len(), p.b.host.atomics), (before + 1, 1));
}

#[test]
fn an_answer_with_bytes_is_a_bad_response() {
    for op in [atomic_write(remote(64)), flush(8, VISIBLE, Selectivity::Range)] {
        let mut p = Pair::rc();
        p.send(A, op, 0, 0);
        p.transmit_side(A);
        let ack = Syndrome::Ack(None);
        p.deliver(A, &Raw::rc(P::ReadResponseOnly, A, PSN).aeth(ack).payload(4).bytes());
        p.expect_sends(&[WcStatus::BadResponse]);
    }
}
