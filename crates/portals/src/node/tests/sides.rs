//! The handling of messages by initiators and by targets, each by itself.

use super::super::Kind;
use super::*;
use crate::v3;
use crate::wire::MAX_MESSAGE;

/// An entry on portal 0 that takes these operations.
pub(super) fn takes(node: &Node, ni: &Ni, options: MeOptions) {
    ni.pt_alloc(PtOptions::empty(), None, Some(0)).unwrap();
    let me = Me { options: options | MeOptions::EVENT_LINK_DISABLE, ..Me::new(node.alloc(4096).unwrap()) };
    ni.me_append(0, &me, ListKind::Priority, 0).unwrap();
}

/// The memory of a peer.
fn piece(len: u64) -> [u8; 16] {
    Piece { at: RemoteAddr { addr: 0, rkey: Rkey::new(1) }, len: len as u32 }.to_bytes()
}

/// The node's only peer asks for something, of this interface; `lent` are the bytes that it has for that.
fn hears(node: &Node, ni: u8, token: u32, header: &Header, lent: Option<u64>) {
    let head = Head::request(ni, token, header, &[0; 32], lent.is_some());
    let pieces = lent.map(piece);
    node.with(|state| {
        state.heard(only(state), &[head.as_bytes(), pieces.as_slice().as_flattened()].concat());
    });
}
fn long(operation: Operation, length: u64) -> Header {
    Header { operation, ack: AckRequest::Full, length, ..Header::default() }
}
pub(super) fn hears_long_put(node: &Node, length: u64) {
    let ni = node.with(|state| kind(state));
    hears(node, ni, 1, &long(Operation::Put, length), Some(length));
}
pub(super) fn hears_long_get(node: &Node, length: u64) {
    let ni = node.with(|state| kind(state));
    hears(node, ni, 1, &long(Operation::Get, length), None);
}

/// The answers that wait for room, those that came last first.
fn answers_of(bed: &Bed) -> Vec<Response> {
    bed.look(|peer| {
        (peer.backlog.iter().rev())
            .filter_map(|out| if let Out::Response { response, .. } = out { Some(*response) } else { None })
            .collect()
    })
}

/// A node whose answers to the process wait.
fn full() -> Bed {
    let bed = Bed::new(|o| o);
    bed.meet(&bed.hello(1, 1, 20));
    bed.node.with(|state| state.net.peer(only(state)).depth = 0);
    bed
}

#[test]
fn an_interface_that_is_not_open_answers_that_it_took_nothing() {
    let bed = full();
    let asks = |operation, ack| {
        let header = Header { operation, ack, ..Header::default() };
        hears(&bed.node, 3, 1, &header, None);
        let answer = answers_of(&bed)[0];
        let is_over = ack == AckRequest::Complete;
        let fail = if is_over { NiFail::Ok } else { NiFail::Dropped };
        assert_eq!((answer.fail, answer.mlength), (fail, 0), "{ack:?}");
        answer.kind
    };
    assert_eq!(asks(Operation::Put, AckRequest::None), ResponseKind::None);
    assert_eq!(asks(Operation::Put, AckRequest::Full), ResponseKind::Ack);
    assert_eq!(asks(Operation::Get, AckRequest::None), ResponseKind::Reply);
    assert_eq!(asks(Operation::Put, AckRequest::Count), ResponseKind::CountAck);
    // It says that the operation is over, not how.
    assert_eq!(asks(Operation::Put, AckRequest::Complete), ResponseKind::CompleteAck);
    assert_eq!(answers_of(&bed).len(), 5);
    assert_eq!(bed.node.counts().malformed, 0);
}

#[test]
fn what_a_process_without_a_rank_sends_is_counted_as_dropped() {
    let bed = full();
    let (ni, ..) = interface_of(&bed.node, NiOptions::MATCHING | NiOptions::LOGICAL);
    takes(&bed.node, &ni, MeOptions::OP_PUT);
    // The process is not on the map.
    ni.set_map(vec![(bed.node.card().nid, bed.node.card().pid)]).unwrap();
    let kind = bed.node.with(|state| kind(state));
    let header = Header { operation: Operation::Put, ack: AckRequest::Full, ..Header::default() };
    hears(&bed.node, kind, 1, &header, None);
    assert_eq!(answers_of(&bed)[0].fail, NiFail::Dropped);
    let status = bed.node.with(|state| state.ni(kind).engine.status());
    assert_eq!((status.dropped, status.permission_violations), (1, 0));
}

#[test]
fn a_put_whose_bytes_are_not_what_it_says_is_a_violation() {
    let bed = full();
    let (ni, ..) = interface(&bed.node);
    takes(&bed.node, &ni, MeOptions::OP_PUT | MeOptions::OP_GET);
    let kind = bed.node.with(|state| kind(state));
    let length = 2 * EAGER as u64;
    let violations = || bed.node.with(|state| state.ni(kind).engine.status().operation_violations);
    let cases = [
        (Operation::Get, 1, length, true),
        (Operation::Put, 1, length + 1, true),
        (Operation::Put, 0, length, false),
    ];
    for (seen, (operation, token, lent, is_told)) in (1..).zip(cases) {
        let before = answers_of(&bed).len();
        hears(&bed.node, kind, token, &long(operation, length), Some(lent));
        assert_eq!(
            (violations(), answers_of(&bed).len()),
            (seen, before + usize::from(is_told)),
            "{operation:?}"
        );
        assert!(!is_told || answers_of(&bed)[0].fail == NiFail::OpViolation);
    }
    assert_eq!(bed.look(|peer| (peer.fetches.len(), peer.lendings.len())), (0, 0));
    hears(&bed.node, kind, 1, &long(Operation::Put, length), Some(length));
    assert_eq!((violations(), bed.look(|peer| peer.fetches.len())), (3, 1));
}

/// A node that has asked the process for more bytes than go with their header.
fn asked_much(operation: Operation) -> (Bed, Ni, Memory) {
    let bed = Bed::new(|o| o);
    bed.meet(&bed.hello(1, 1, 20));
    let ni =
        Ni::init(&bed.node, NiOptions::MATCHING | NiOptions::PHYSICAL, None, &Limits::default()).unwrap();
    let (to, memory) = (bed.list(), bed.node.alloc(256).unwrap());
    let md = ni.md_bind(&Md::new(memory.clone())).unwrap();
    match operation {
        Operation::Get => ni.get(&Get::new(md, 128, to, 0)).unwrap(),
        _ => ni.put(&Put { ack_req: AckReq::Ack, ..Put::new(md, 128, to, 0) }).unwrap(),
    }
    (bed, ni, memory)
}

#[test]
fn a_reply_to_be_fetched_that_does_not_go_with_its_operation_ends_the_connection() {
    use Operation::{Get, Put};
    use ResponseKind::{Ack, Reply};
    for (operation, kind, mlength, lent, is_good) in [
        (Get, Reply, 128, Some(128), true),
        (Get, Reply, 100, Some(100), true),
        (Put, Reply, 128, Some(128), false),
        (Get, Ack, 128, Some(128), false),
        (Get, Reply, 129, Some(129), false),
        (Get, Reply, 128, Some(64), false),
        (Get, Reply, 0, None, false),
    ] {
        let (bed, _ni, _memory) = asked_much(operation);
        let response = Response { kind, fail: NiFail::Ok, mlength, offset: 0, list: ListKind::Priority };
        bed.node.with(|state| {
            let peer = only(state);
            let flying = &mut state.peer(peer).flying;
            let token = (0..u32::MAX).find(|token| flying.get_mut(*token).is_some()).unwrap();
            let pieces: Vec<u8> = lent.map(piece).into_iter().flatten().collect();
            state.heard(peer, &[Head::response(token, &response, Some(5)).as_bytes(), &pieces].concat());
        });
        let seen = (bed.node.counts().malformed, bed.node.connections());
        assert_eq!(seen, if is_good { (0, 1) } else { (1, 0) }, "{operation:?} {response:?} {lent:?}");
        if is_good {
            assert_eq!(bed.look(|peer| (peer.fetches.len(), peer.replies)), (1, 1));
        }
    }
}

#[test]
fn an_operation_whose_target_keeps_its_answer_back_is_over_and_tells_nothing() {
    let (bed, ni, ct, _memory) = asked(Operation::Put);
    answers(
        &bed,
        &Response {
            kind: ResponseKind::None,
            fail: NiFail::Ok,
            mlength: 8,
            offset: 0,
            list: ListKind::Priority,
        },
        0,
        false,
    );
    let count = ni.ct_get(ct).unwrap();
    assert_eq!((count.success, count.failure), (0, 0));
    assert_eq!((bed.node.counts().malformed, bed.look(|peer| peer.flying.len())), (0, 0));
    // A descriptor that something is under way on stays.
    let md = ni.md_bind(&Md { ct: Some(ct), ..Md::new(bed.node.alloc(8).unwrap()) }).unwrap();
    ni.md_release(md).unwrap();
}

#[test]
fn what_has_room_in_a_message_is_looked_at_in_all_arguments_together() {
    let (bed, _ni, _memory) = asked_much(Operation::Put);
    let ni = bed.node.with(|state| kind(state));
    let transfer = bed.look(|peer| peer.flying.iter().next().unwrap().flight.transfer);
    let (most, fits) = (u32::from(u16::MAX), hca_matching::Transfer { length: 8, ..transfer });
    let check = |transfer: hca_matching::Transfer| bed.node.with(|state| state.check(ni, &transfer).is_ok());
    assert!(check(fits) && check(hca_matching::Transfer { pt_index: most, ac_index: most, ..fits }));
    for (pt_index, ac_index) in [(most + 1, 0), (0, most + 1), (most + 1, most + 1)] {
        assert!(!check(hca_matching::Transfer { pt_index, ac_index, ..fits }));
    }
    let longest = hca_matching::Transfer { length: MAX_MESSAGE, pt_index: most, ac_index: most, ..fits };
    assert!(check(longest));
    assert!(!check(hca_matching::Transfer { length: MAX_MESSAGE + 1, ..longest }));
}

#[test]
fn memory_of_another_node_is_refused() {
    let bed = Bed::new(|o| o);
    let other = open(&bed.sim, THERE, &bed.cards, |o| o);
    let (ni, ..) = interface(&bed.node);
    let error = ni.md_bind(&Md::new(other.alloc(8).unwrap())).unwrap_err().to_string();
    assert!(error.contains("another node"), "{error}");
}

/// Of what is under way on two interfaces with one peer, only one's ends the connection when that is closed.
#[test]
fn closing_an_interface_ends_the_connections_that_it_uses_and_no_others() {
    let (one, other) =
        (NiOptions::MATCHING | NiOptions::PHYSICAL, NiOptions::NO_MATCHING | NiOptions::PHYSICAL);
    let number = |options: NiOptions| {
        let matching = options.contains(NiOptions::MATCHING);
        Kind::V4 { matching, logical: false }.index()
    };
    type Begins = fn(&Bed, &Ni, MdHandle, u8);
    let begins: [(&str, Begins); 5] = [
        ("a put", |bed, ni, md, _| {
            ni.put(&Put { ack_req: AckReq::Ack, ..Put::new(md, 8, bed.list(), 0) }).unwrap();
        }),
        ("a put that waits", |bed, ni, md, _| {
            bed.node.with(|state| state.net.peer(only(state)).replies = WINDOW);
            ni.put(&Put { ack_req: AckReq::Ack, ..Put::new(md, 8, bed.list(), 0) }).unwrap();
            bed.node.with(|state| state.net.peer(only(state)).replies = 0);
        }),
        ("a put that is fetched", |bed, _, _, kind| {
            hears(&bed.node, kind, 1, &long(Operation::Put, 128), Some(128));
        }),
        ("a get that is lent", |bed, _, _, kind| {
            hears(&bed.node, kind, 1, &long(Operation::Get, 128), None);
        }),
        ("a reply that is fetched", |bed, ni, _, _| {
            let md = ni.md_bind(&Md::new(bed.node.alloc(128).unwrap())).unwrap();
            ni.get(&Get::new(md, 128, bed.list(), 0)).unwrap();
            let response = Response {
                kind: ResponseKind::Reply,
                fail: NiFail::Ok,
                mlength: 128,
                offset: 0,
                list: ListKind::Priority,
            };
            bed.node.with(|state| {
                let peer = only(state);
                let flying = &mut state.peer(peer).flying;
                let token = (0..u32::MAX).find(|token| flying.get_mut(*token).is_some()).unwrap();
                state.heard(
                    peer,
                    &[Head::response(token, &response, Some(5)).as_bytes(), &piece(128)].concat(),
                );
            });
        }),
    ];
    for (name, begin) in begins {
        for options in [one, other] {
            let bed = Bed::new(|o| o);
            bed.meet(&bed.hello(1, 1, 20));
            let (ni, md, _) = interface_of(&bed.node, options);
            let (idle, ..) = interface_of(&bed.node, if options == one { other } else { one });
            ni.pt_alloc(PtOptions::empty(), None, Some(0)).unwrap();
            let memory = bed.node.alloc(4096).unwrap();
            if options == one {
                let me = Me { options: MeOptions::OP_PUT | MeOptions::OP_GET, ..Me::new(memory) };
                ni.me_append(0, &me, ListKind::Priority, 0).unwrap();
            } else {
                let le = crate::v4::Le {
                    options: crate::v4::LeOptions::OP_PUT | crate::v4::LeOptions::OP_GET,
                    ..crate::v4::Le::new(memory)
                };
                ni.le_append(0, &le, ListKind::Priority, 0).unwrap();
            }
            begin(&bed, &ni, md, number(options));
            drop(idle);
            assert_eq!((bed.node.counts().lost, bed.node.connections()), (0, 1), "{name}");
            drop(ni);
            assert_eq!((bed.node.counts().lost, bed.node.connections()), (1, 0), "{name}");
        }
    }
}

#[test]
fn a_device_that_matches_on_its_own_is_left_to_do_so_unless_the_program_wants_to() {
    let bed = Bed::new(|o| o);
    let offloaded = open(&bed.sim, THERE, &bed.cards, |o| NodeOptions { offload: true, ..o });
    let host = open(&bed.sim, 2, &bed.cards, |o| NodeOptions { offload: false, ..o });
    assert_eq!((offloaded.is_offloaded(), host.is_offloaded()), (true, false));
}

/// 3.3: who may send says which entry of the list lets it, and is known by its job.
#[test]
fn a_message_carries_its_access_control_entry_and_its_senders_job() {
    let bed = Bed::new(|o| NodeOptions { jid: Jid(4), ..o });
    let target = open(&bed.sim, THERE, &bed.cards, |o| NodeOptions { jid: Jid(5), ..o });
    let limits = v3::Limits::default();
    let [ni, there] = [&bed.node, &target].map(|node| v3::Ni::init(node, None, &limits).unwrap());
    let eq = there.eq_alloc(8, None).unwrap();
    let me = there.me_attach(2, v3::MatchId::ANY, 0, 0, v3::Unlink::Retain, v3::Position::After).unwrap();
    let options = v3::MdOptions::OP_PUT | v3::MdOptions::EVENT_START_DISABLE;
    let md = v3::Md { options, eq: Some(eq), ..v3::Md::new(target.alloc(8).unwrap()) };
    there.md_attach(me, &md, v3::Unlink::Retain).unwrap();
    there.ac_entry(3, v3::MatchId { jid: Some(Jid(4)), ..v3::MatchId::ANY }, Some(2)).unwrap();
    let md = ni.md_bind(&v3::Md::new(bed.node.alloc(8).unwrap()), v3::Unlink::Retain).unwrap();
    for (ac_index, bits) in [(2, 1), (3, 0)] {
        ni.put(md, v3::AckReq::NoAck, there.id(), 2, ac_index, 0, 0, bits).unwrap();
    }
    for _ in 0..1000 {
        bed.sim.run_for(Duration::from_millis(1)).unwrap();
        bed.node.progress();
        if let Some(got) = there.eq_get(eq).unwrap() {
            assert_eq!((got.event.jid, got.event.hdr_data), (Jid(4), 0));
            assert_eq!(there.eq_get(eq).unwrap(), None);
            return;
        }
    }
    panic!("no put has come");
}

/// 3.3: of two long gets into a descriptor that takes one more reply, the first uses it from the beginning of its
/// bytes on, and the second's are not fetched.
#[test]
fn a_long_reply_uses_its_descriptor_from_its_beginning() {
    let bed = Bed::new(|o| o);
    bed.meet(&bed.hello(1, 1, 20));
    bed.list();
    let ni = v3::Ni::init(&bed.node, None, &v3::Limits::default()).unwrap();
    let (eq, memory) = (ni.eq_alloc(8, None).unwrap(), bed.node.alloc(128).unwrap());
    let md = v3::Md { threshold: v3::Threshold::Count(1), eq: Some(eq), ..v3::Md::new(&memory) };
    let md = ni.md_bind(&md, v3::Unlink::Retain).unwrap();
    let hello = bed.hello(1, 1, 20);
    let to = v3::ProcessId { nid: hello.from.nid, pid: hello.from.pid };
    (0..2).for_each(|_| ni.get(md, to, 0, 0, 0, 0).unwrap());
    let response = Response { fail: NiFail::Ok, kind: ResponseKind::Reply, mlength: 128, ..NOTHING };
    for _ in 0..2 {
        bed.node.with(|state| {
            let peer = only(state);
            let flying = &mut state.peer(peer).flying;
            let token = (0..u32::MAX).find(|token| flying.get_mut(*token).is_some()).unwrap();
            state.heard(peer, &[Head::response(token, &response, Some(5)).as_bytes(), &piece(128)].concat());
        });
    }
    assert_eq!(bed.look(|peer| (peer.fetches.len(), peer.replies, peer.flying.len())), (1, 1, 0));
    let told: Vec<_> = std::iter::from_fn(|| ni.eq_get(eq).unwrap()).map(|got| got.event.kind).collect();
    assert_eq!(told, [v3::EventKind::ReplyStart]);
    assert_eq!(ni.status(v3::StatusRegister::DropCount), 1);
}

/// 3.3: of two gets into a descriptor that takes one more reply, the second's bytes go nowhere.
#[test]
fn a_reply_to_a_descriptor_that_is_used_up_writes_nothing() {
    let bed = Bed::new(|o| o);
    bed.meet(&bed.hello(1, 1, 20));
    bed.list();
    let ni = v3::Ni::init(&bed.node, None, &v3::Limits::default()).unwrap();
    let memory = bed.node.alloc(8).unwrap();
    let md = v3::Md { threshold: v3::Threshold::Count(1), ..v3::Md::new(&memory) };
    let md = ni.md_bind(&md, v3::Unlink::Retain).unwrap();
    let hello = bed.hello(1, 1, 20);
    let to = v3::ProcessId { nid: hello.from.nid, pid: hello.from.pid };
    (0..2).for_each(|_| ni.get(md, to, 0, 0, 0, 0).unwrap());
    let response = Response {
        kind: ResponseKind::Reply,
        fail: NiFail::Ok,
        mlength: 8,
        offset: 0,
        list: ListKind::Priority,
    };
    for byte in [0x11, 0x22] {
        bed.node.with(|state| {
            let peer = only(state);
            let flying = &mut state.peer(peer).flying;
            let token = (0..u32::MAX).find(|token| flying.get_mut(*token).is_some()).unwrap();
            state.hear_response(peer, token, &response, &[byte; 8]);
        });
    }
    assert_eq!((memory.to_vec(), bed.node.counts().malformed), (vec![0x11; 8], 0));
    assert_eq!(bed.look(|peer| peer.flying.len()), 0);
}
