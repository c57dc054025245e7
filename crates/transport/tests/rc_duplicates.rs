//! Reliable connection: duplicate packets, as packet scripts. The responder answers only executed requests again.
mod pair;

use pair::*;

/// Changes, in SQD, how many READs and atomics a side serves.
fn serve(p: &mut Pair, side: Side, max: u8) {
    p.state(side, QpState::Sqd);
    p.change(side, QpAttr { max_dest_rd_atomic: Some(max), ..QpAttr::default() });
}

#[test]
fn a_changed_limit_forgets_no_atomic_that_was_carried_out() {
    for max in [1, 2, 8] {
        let mut p = Pair::rc();
        p.drop_packets(B, &[0]);
        p.send(A, SendOp::FetchAdd { remote: remote(8), add: 3 }, 64, 8);
        p.run_until(p.now + 4 * LATENCY_NS);
        assert_eq!(p.b.host.atomics, 1);
        serve(&mut p, B, max);
        p.ends(&[Success]);
        assert_eq!((p.b.host.atomics, p.b.host.counted(Count::Duplicate)), (1, 1), "{max}");
        assert_eq!(p.a.host.mem[64..72], 0_u64.to_ne_bytes());
    }
}

/// The MTU of these pairs.
const MTU: u32 = 256;
/// Repeated requests that were never made, before the connection ends.
const GUESSES: u64 = 64;

fn psn(n: u32) -> u32 {
    (PSN + n) & 0xff_ffff
}
/// A READ of three packets at address 1000, done.
fn after_a_read() -> Pair {
    let mut p = Pair::rc();
    p.fill(B, 0, 8192);
    p.send(A, SendOp::Read(remote(1000)), 512, 600);
    p.ends(&[Success]);
    p.wire.clear();
    p
}
/// The packets that B sends for a request that is given to it by hand.
fn answers(p: &mut Pair, raw: &Raw) -> Vec<(P, u32)> {
    let before = p.wire.len();
    p.deliver(B, &raw.bytes());
    p.transmit_side(B);
    p.wire[before..].iter().map(|s| (s.op().unwrap(), s.psn())).collect()
}
fn read(n: u32, va: u64, rkey: Rkey, len: u32) -> Raw {
    Raw::rc(P::ReadRequest, B, psn(n)).reth(va, rkey, len)
}

#[test]
fn what_a_read_asked_for_is_answered_again_whole_or_in_part() {
    use P::{ReadResponseFirst as First, ReadResponseLast as Last, ReadResponseMiddle as Middle};
    let mut p = after_a_read();
    assert_eq!(
        answers(&mut p, &read(0, 1000, KEY, 600)),
        [(First, psn(0)), (Middle, psn(1)), (Last, psn(2))]
    );
    assert_eq!(answers(&mut p, &read(1, 1256, KEY, 344)), [(First, psn(1)), (Last, psn(2))]);
    assert_eq!(answers(&mut p, &read(0, 1000, KEY, 512)), [(First, psn(0)), (Last, psn(1))]);
    assert_eq!(answers(&mut p, &read(1, 1256, KEY, MTU)), [(P::ReadResponseOnly, psn(1))]);
    assert_eq!(p.wire.last().unwrap().packet().payload(), patterns(1256, 256));
    assert_eq!(p.b.host.counted(Count::Duplicate), 4);
}

#[test]
fn a_repeated_read_tells_nothing_of_keys_and_guesses_end_the_connection() {
    let mut p = after_a_read();
    let mut guesses = 0;
    let mut guess = |p: &mut Pair, raw: &Raw| {
        let got = answers(p, raw);
        guesses += 1;
        (got, p.b.host.counted(Count::DroppedInvalid) == guesses)
    };
    // The right key at an address that was never asked for is no better than a wrong key.
    for raw in
        [read(0, 0, KEY, 600), read(0, 1004, KEY, 596), read(1, 1000, KEY, MTU), read(2, 1000, KEY, 88)]
    {
        assert_eq!(guess(&mut p, &raw), (vec![], true));
    }
    while p.b.host.counted(Count::DroppedInvalid) < GUESSES - 1 {
        assert_eq!(guess(&mut p, &read(0, 1000, Rkey::new(7), 600)), (vec![], true));
        assert_eq!(p.b.qp.state(), QpState::Rts);
    }
    // What A really asks for meanwhile is answered, and changes nothing.
    assert_eq!(answers(&mut p, &read(0, 1000, KEY, 600)).len(), 3);
    assert_eq!(guess(&mut p, &read(0, 1000, Rkey::new(8), 600)).0, [(P::Acknowledge, psn(3))]);
    assert_eq!(p.naks(B), [NakCode::RemoteAccess]);
    assert_eq!(p.b.qp.state(), QpState::Error);
    assert!(p.b.host.has_event(QpEvent::AccessError));
}

#[test]
fn a_repeated_read_beyond_what_was_carried_out_is_dropped() {
    let mut p = after_a_read();
    for raw in [
        read(0, 1000, KEY, 601),
        read(0, 1000, KEY, 768),
        read(0, 1000, KEY, 4 * MTU),
        read(2, 1512, KEY, 2 * MTU),
        // A part that is not of whole packets is none.
        read(0, 1000, KEY, 300),
        read(0, 1000, KEY, 0),
    ] {
        assert_eq!(answers(&mut p, &raw), [], "{:?}", raw.ext);
    }
    assert_eq!(p.b.host.counted(Count::DroppedInvalid), 6);
    // The next one is still the next one.
    assert_eq!(answers(&mut p, &read(3, 0, KEY, 8)), [(P::ReadResponseOnly, psn(3))]);
}

#[test]
fn late_copies_of_what_is_long_done_cost_nothing_however_many_they_are() {
    let mut p = after_a_read();
    p.sends(4, A, READ, 512, 8);
    p.run();
    for _ in 0..2 * GUESSES {
        assert_eq!(answers(&mut p, &read(0, 1000, KEY, 600)), []);
    }
    assert_eq!(p.b.qp.state(), QpState::Rts);
    // All that can be without an answer is remembered.
    for n in 3..7 {
        assert_eq!(answers(&mut p, &read(n, 0, KEY, 8)), [(P::ReadResponseOnly, psn(n))]);
    }
}

#[test]
fn a_repeated_atomic_tells_its_result_and_touches_no_memory_whatever_it_names() {
    let mut p = Pair::rc();
    p.send(A, SendOp::FetchAdd { remote: remote(8), add: 3 }, 64, 8);
    p.send(A, READ, 512, 8);
    p.run();
    let at = |n, va| Raw::rc(P::FetchAdd, B, psn(n)).atomic(va, 1);
    for va in [8, 16, MEMORY as u64, 3] {
        assert_eq!(answers(&mut p, &at(0, va)), [(P::AtomicAcknowledge, psn(0))]);
    }
    assert_eq!(p.b.host.atomics, 1);
    // Where a READ was there was no atomic, and the other way round.
    for i in 0..GUESSES / 2 {
        assert_eq!(p.b.qp.state(), QpState::Rts, "{i}");
        assert_eq!(answers(&mut p, &at(1, 8)), []);
        p.deliver(B, &read(0, 8, KEY, 8).bytes());
    }
    assert_eq!((p.b.qp.state(), p.b.host.atomics), (QpState::Error, 1));
}

#[test]
fn a_repeated_read_needs_the_rights_of_now() {
    let mut p = after_a_read();
    let access = Some(Access::all() - Access::REMOTE_READ);
    p.modify(B, QpAttr { access, ..QpAttr::default() }).unwrap();
    assert_eq!(answers(&mut p, &read(0, 1000, KEY, 600)), []);
    p.modify(B, QpAttr { access: Some(Access::all()), ..QpAttr::default() }).unwrap();
    p.b.host.revoked = true;
    assert_eq!(answers(&mut p, &read(0, 1000, KEY, 600)), []);
    assert_eq!(p.b.qp.state(), QpState::Rts);
}

/// B has the requests of A, and sends so many packets.
fn send_some(p: &mut Pair, packets: usize) -> Vec<(P, u32)> {
    let mut sink = VecSink::with_room(packets);
    let now = Instant::from_nanos(p.now);
    p.b.qp.poll_transmit(now, &mut p.b.host, &mut sink, packets);
    let parse = |(_, bytes): &(_, Vec<u8>)| {
        let packet = Packet::parse(bytes).unwrap();
        (packet.opcode().op().unwrap(), packet.bth().psn().raw())
    };
    sink.out.iter().map(parse).collect()
}

#[test]
fn a_response_that_waits_is_not_sent_twice_and_none_behind_it_is_forgotten() {
    use P::{ReadResponseFirst as First, ReadResponseLast as Last, ReadResponseMiddle as Middle};
    let mut p = Pair::rc();
    p.send(A, READ, 512, 1024);
    p.send(A, READ, 512, 8);
    p.flow(A);
    // Asked about before anything left, and amid the response: the rest is on its way.
    p.deliver(B, &read(0, 0, KEY, MTU).bytes());
    assert_eq!(send_some(&mut p, 2), [(First, psn(0)), (Middle, psn(1))]);
    p.deliver(B, &read(0, 0, KEY, MTU).bytes());
    assert_eq!(send_some(&mut p, 1), [(Middle, psn(2))]);
    // Gone back to its second packet: from there on, and the one behind it once.
    p.deliver(B, &read(1, 256, KEY, 768).bytes());
    p.deliver(B, &read(4, 0, KEY, 8).bytes());
    let all = [(First, psn(1)), (Middle, psn(2)), (Last, psn(3)), (P::ReadResponseOnly, psn(4))];
    assert_eq!(send_some(&mut p, 64), all);
    assert_eq!(send_some(&mut p, 64), []);
    // Asked for one packet, and then for the rest.
    p.deliver(B, &read(0, 0, KEY, MTU).bytes());
    p.deliver(B, &read(1, 256, KEY, 768).bytes());
    assert_eq!(send_some(&mut p, 64), [(First, psn(0)), (Middle, psn(1)), (Middle, psn(2)), (Last, psn(3))]);
}
