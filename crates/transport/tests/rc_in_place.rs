//! Payloads that are sent in place, as packet scripts.
mod pair;

use pair::*;

const LEAST: u32 = 200;
const BTH: usize = 12;
const RETH: usize = 16;

/// Where a payload that was not copied begins in its packet, and lies.
type Place = Option<(usize, InPlace)>;

/// Takes payloads of [`LEAST`] bytes and more from where they lie.
struct Gathering {
    packets: Vec<(Vec<u8>, Place)>,
    reserved: Vec<u8>,
}

impl TxSink for Gathering {
    fn reserve(&mut self, _: Option<AhHandle>, len: usize) -> Option<&mut [u8]> {
        self.reserved = vec![0xa5; len];
        Some(&mut self.reserved)
    }
    fn commit(&mut self) {
        self.packets.push((std::mem::take(&mut self.reserved), None));
    }
    fn in_place_from(&self) -> Option<u32> {
        Some(LEAST)
    }
    fn commit_in_place(&mut self, at: usize, payload: InPlace) {
        self.packets.push((std::mem::take(&mut self.reserved), Some((at, payload))));
    }
}

/// What A sends: its opcodes, and where payloads begin that were not copied and lie. Their bytes are filled in, and
/// carried to nobody.
fn sent(p: &mut Pair, now: u64) -> Vec<(PacketOp, Option<(usize, usize)>)> {
    let mut sink = Gathering { packets: Vec::new(), reserved: Vec::new() };
    p.a.qp.poll_transmit(Instant::from_nanos(now), &mut p.a.host, &mut sink, 64);
    let told = |(mut bytes, lent): (Vec<u8>, Place)| {
        if let Some((at, payload)) = lent {
            let hole = &mut bytes[at..];
            assert_eq!(hole, vec![0xa5; payload.len as usize], "nothing is copied, and nothing lies behind");
            hole.copy_from_slice(&p.a.host.mem[payload.addr..][..payload.len as usize]);
        }
        let packet = Packet::parse(&bytes).unwrap();
        assert!(packet.payload().iter().all(|b| *b == 7), "{packet:?}");
        (packet.opcode().op().unwrap(), lent.map(|(at, payload)| (at, payload.addr)))
    };
    sink.packets.into_iter().map(told).collect()
}

fn pair(stays: bool) -> Pair {
    let mut p = Pair::rc();
    p.a.host.mem.fill(7);
    p.a.host.stays = stays;
    p
}

#[test]
fn long_payloads_that_stay_are_sent_from_where_they_lie_and_short_ones_are_copied() {
    let mut p = pair(true);
    p.post(A, WRITE, 100, 700, SendFlags::SIGNALED);
    p.post(A, SendOp::Send, 40, 256 + 200, SendFlags::SIGNALED);
    p.post(A, SendOp::Send, 40, 256, SendFlags::SIGNALED);
    let write =
        [(P::WriteFirst, Some((BTH + RETH, 100))), (P::WriteMiddle, Some((BTH, 356))), (P::WriteLast, None)];
    let send = [(P::SendFirst, Some((BTH, 40))), (P::SendLast, Some((BTH, 296)))];
    // A message of one packet has the shortest way for itself.
    assert_eq!(sent(&mut p, 0), [&write[..], &send, &[(P::SendOnly, None)]].concat());
}

#[test]
fn what_is_sent_once_more_is_taken_from_its_place_again() {
    let mut p = pair(true);
    p.post(A, WRITE, 100, 512, SendFlags::SIGNALED);
    let once = sent(&mut p, 0);
    let at = p.a.qp.next_deadline().expect("an answer is waited for");
    p.a.qp.handle_timeout(at, &mut p.a.host);
    let again = sent(&mut p, at.as_nanos());
    assert_eq!(again[0], once[0], "the oldest packet asks what became of it");
    assert_eq!(again[0].1, Some((BTH + RETH, 100)));
}

#[test]
fn payloads_with_padding_and_those_that_may_change_are_copied() {
    let mut p = pair(true);
    p.post(A, SendOp::Send, 40, 256 + 254, SendFlags::SIGNALED);
    assert_eq!(sent(&mut p, 0), [(P::SendFirst, Some((BTH, 40))), (P::SendLast, None)]);
    let mut p = pair(false);
    p.post(A, SendOp::Send, 40, 512, SendFlags::SIGNALED);
    assert_eq!(sent(&mut p, 0), [(P::SendFirst, None), (P::SendLast, None)]);
}
