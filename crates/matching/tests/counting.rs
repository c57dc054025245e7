//! Counting events, the seven triggered operations, and the events of an initiator of 4.3.

mod rig;

use EventKind::*;
use hca_matching::atomic::{AtomicOp, Datatype};
use hca_matching::*;
use rig::*;

const fn successes(success: u64) -> Count {
    Count { success, failure: 0 }
}

fn bind(ni: &mut Interface, options: MdOptions, eq: Option<EqHandle>, ct: Option<CtHandle>) -> MdHandle {
    ni.md_bind(Md { start: 0x4000, length: 64, options, eq, ct }).unwrap()
}

fn transfer(operation: Operation, md: MdHandle, length: u64) -> Transfer {
    Transfer {
        operation,
        md,
        local_offset: 0,
        reply: (operation.replies() && operation.writes()).then_some((md, 32)),
        length,
        ack: AckRequest::None,
        target: Process::physical(Nid(5), Pid(6)),
        pt_index: 3,
        ac_index: 0,
        match_bits: 9,
        remote_offset: 0,
        user_ptr: 21,
        hdr_data: 11,
        operand: [0; 32],
    }
}

#[test]
fn counts_are_incremented_and_set() {
    let mut ni = Interface::new(Config::default());
    let ct = ni.ct_alloc().unwrap();
    assert_eq!(ni.ct_get(ct), Ok(Count::default()));
    ni.ct_inc(ct, successes(3)).unwrap();
    ni.ct_inc(ct, Count { success: 0, failure: 2 }).unwrap();
    assert_eq!(ni.ct_get(ct), Ok(Count { success: 3, failure: 2 }));
    let both = Count { success: 1, failure: 1 };
    assert_eq!(ni.ct_inc(ct, both), Err(Error::Increment { argument: "increment" }));
    ni.ct_set(ct, both).unwrap();
    assert_eq!(ni.ct_get(ct), Ok(both));
    ni.ct_inc(ct, successes(u64::MAX)).unwrap();
    assert_eq!(ni.ct_get(ct), Ok(Count { success: 0, failure: 1 }), "-1 in C");
    ni.ct_free(ct).unwrap();
    assert_eq!(ni.ct_get(ct), Err(Error::Handle { argument: "ct" }));
}

#[test]
fn a_poll_finds_the_count_that_has_reached_its_test_failures_included() {
    let mut ni = Interface::new(Config::default());
    let (a, b) = (ni.ct_alloc().unwrap(), ni.ct_alloc().unwrap());
    let tests = [(a, 3), (b, 2)];
    assert_eq!(ni.ct_poll(&tests, 0), Ok(None));
    ni.ct_inc(b, successes(1)).unwrap();
    ni.ct_inc(b, Count { success: 0, failure: 1 }).unwrap();
    assert_eq!(ni.ct_poll(&tests, 0), Ok(Some((1, Count { success: 1, failure: 1 }))));
    ni.ct_inc(a, successes(7)).unwrap();
    assert_eq!(ni.ct_poll(&tests, 0).unwrap().unwrap().0, 0);
    assert_eq!(ni.ct_poll(&tests, 1).unwrap().unwrap().0, 1);
}

#[test]
fn triggered_put_get_atomic_fetch_atomic_and_swap_come_out_in_the_order_of_their_thresholds() {
    let mut ni = Interface::new(Config::default());
    let ct = ni.ct_alloc().unwrap();
    let md = bind(&mut ni, MdOptions::empty(), None, None);
    let operations = [
        (Operation::Put, 5),
        (Operation::Get, 2),
        (Operation::Atomic(AtomicOp::Sum, Datatype::U64), 5),
        (Operation::FetchAtomic(AtomicOp::Sum, Datatype::U64), 1),
        (Operation::Swap(AtomicOp::Cswap, Datatype::U64), 3),
    ];
    for (operation, threshold) in operations {
        ni.trigger(ct, threshold, Triggered::Transfer(transfer(operation, md, 8))).unwrap();
    }
    let fired = |ni: &mut Interface| -> Vec<Operation> {
        std::iter::from_fn(|| ni.fired()).map(|transfer| transfer.operation).collect()
    };
    assert_eq!(fired(&mut ni), []);
    ni.ct_inc(ct, successes(2)).unwrap();
    assert_eq!(fired(&mut ni), [operations[3].0, operations[1].0]);
    ni.ct_inc(ct, Count { success: 0, failure: 10 }).unwrap();
    assert_eq!(
        fired(&mut ni),
        [operations[4].0, operations[0].0, operations[2].0],
        "equal ones as they were asked for"
    );
    ni.trigger(ct, 12, Triggered::Transfer(transfer(Operation::Put, md, 8))).unwrap();
    assert_eq!(fired(&mut ni).len(), 1, "it was reached already");
}

#[test]
fn triggered_ct_inc_and_ct_set_set_off_others() {
    let mut ni = Interface::new(Config::default());
    let [a, b, c] = std::array::from_fn(|_| ni.ct_alloc().unwrap());
    let md = bind(&mut ni, MdOptions::empty(), None, None);
    ni.trigger(a, 1, Triggered::CtInc(b, successes(2))).unwrap();
    ni.trigger(b, 2, Triggered::CtSet(c, successes(40))).unwrap();
    ni.trigger(c, 40, Triggered::Transfer(transfer(Operation::Put, md, 8))).unwrap();
    ni.ct_inc(a, successes(1)).unwrap();
    assert_eq!([a, b, c].map(|ct| ni.ct_get(ct).unwrap().success), [1, 2, 40]);
    assert!(ni.fired().is_some());
    ni.ct_set(a, Count::default()).unwrap();
    ni.ct_inc(a, successes(1)).unwrap();
    assert_eq!(ni.ct_get(b), Ok(successes(2)), "each is done once");
}

#[test]
fn operations_that_feed_their_own_count_end() {
    let mut ni = Interface::new(Config::default());
    let ct = ni.ct_alloc().unwrap();
    for threshold in 1..100 {
        ni.trigger(ct, threshold, Triggered::CtInc(ct, successes(1))).unwrap();
    }
    ni.ct_inc(ct, successes(1)).unwrap();
    assert_eq!(ni.ct_get(ct), Ok(successes(100)));
}

/// Of a barrier: each level waits for two messages, and takes them off its count for the next time.
#[test]
fn a_count_that_takes_off_what_it_has_reached_begins_anew() {
    let mut ni = Interface::new(Config::default());
    let (level, done) = (ni.ct_alloc().unwrap(), ni.ct_alloc().unwrap());
    for round in 1..=2 {
        ni.trigger(level, 2, Triggered::CtInc(done, successes(1))).unwrap();
        ni.trigger(level, 2, Triggered::CtInc(level, successes(2_u64.wrapping_neg()))).unwrap();
        ni.ct_inc(level, successes(1)).unwrap();
        assert_eq!(ni.ct_get(done), Ok(successes(round - 1)));
        ni.ct_inc(level, successes(1)).unwrap();
        assert_eq!([level, done].map(|ct| ni.ct_get(ct)), [Ok(successes(0)), Ok(successes(round))]);
    }
}

#[test]
fn triggered_increments_in_any_order_of_calls_come_in_the_order_of_thresholds() {
    let mut ni = Interface::new(Config::default());
    let (trigger, log) = (ni.ct_alloc().unwrap(), ni.ct_alloc().unwrap());
    for (threshold, value) in [(3, 30), (1, 10), (2, 20)] {
        ni.trigger(trigger, threshold, Triggered::CtSet(log, successes(value))).unwrap();
    }
    let mut seen = Vec::new();
    for _ in 0..3 {
        ni.ct_inc(trigger, successes(1)).unwrap();
        seen.push(ni.ct_get(log).unwrap().success);
    }
    assert_eq!(seen, [10, 20, 30]);
}

#[test]
fn cancelled_operations_are_never_done() {
    let mut ni = Interface::new(Config::default());
    let ct = ni.ct_alloc().unwrap();
    let md = bind(&mut ni, MdOptions::empty(), None, None);
    for threshold in 1..=3 {
        ni.trigger(ct, threshold, Triggered::Transfer(transfer(Operation::Put, md, 8))).unwrap();
    }
    ni.ct_inc(ct, successes(1)).unwrap();
    assert_eq!(ni.ct_cancel_triggered(ct), Ok(2));
    ni.ct_inc(ct, successes(9)).unwrap();
    assert!(ni.fired().is_some(), "its count was reached before");
    assert!(ni.fired().is_none());
    assert_eq!(ni.ct_get(ct), Ok(successes(10)));
}

#[test]
fn triggered_operations_have_a_limit_that_counts_those_not_fetched() {
    let limits = Limits { max_triggered_ops: 2, ..Limits::default() };
    let mut ni = Interface::new(Config { limits, ..Config::default() });
    let ct = ni.ct_alloc().unwrap();
    let md = bind(&mut ni, MdOptions::empty(), None, None);
    let put = Triggered::Transfer(transfer(Operation::Put, md, 8));
    let full = Err(Error::NoSpace { what: "triggered operations", limit: 2 });
    ni.trigger(ct, 1, put).unwrap();
    ni.trigger(ct, 1, Triggered::CtInc(ct, successes(0))).unwrap();
    assert_eq!(ni.trigger(ct, 1, put), full);
    ni.ct_inc(ct, successes(1)).unwrap();
    ni.trigger(ct, 9, put).unwrap();
    assert_eq!(ni.trigger(ct, 9, put), full);
    ni.fired().unwrap();
    ni.trigger(ct, 9, put).unwrap();
    ni.ct_free(ct).unwrap();
    let other = ni.ct_alloc().unwrap();
    ni.trigger(other, 1, put).unwrap();
    ni.trigger(other, 1, put).unwrap();
}

#[test]
fn a_message_sets_off_what_waits_for_its_entrys_count() {
    let mut rig = Rig::new();
    let ct = rig.ni.ct_alloc().unwrap();
    let md = bind(&mut rig.ni, MdOptions::empty(), None, None);
    let region = Region { ct: Some(ct), ..region(64, OP | Options::EVENT_CT_COMM) };
    rig.append(ListKind::Priority, region);
    rig.ni.trigger(ct, 2, Triggered::Transfer(transfer(Operation::Put, md, 8))).unwrap();
    rig.send(rig.put(8)).unwrap();
    assert!(rig.ni.fired().is_none());
    rig.send(rig.put(8)).unwrap();
    assert!(rig.ni.fired().is_some());
}

#[test]
fn send_ack_and_reply_tell_their_fields() {
    let mut ni = Interface::new(Config::default());
    let eq = ni.eq_alloc(8).unwrap();
    let md = bind(&mut ni, MdOptions::empty(), Some(eq), None);
    let put = Transfer { ack: AckRequest::Full, local_offset: 8, ..transfer(Operation::Put, md, 16) };
    let flight = ni.begin(&put).unwrap();
    ni.sent(&flight, NiFail::Ok);
    let ack = Response { offset: 77, list: ListKind::Overflow, ..ACKED };
    ni.answered(&flight, &ack);
    let get = ni.begin(&transfer(Operation::Get, md, 16)).unwrap();
    ni.answered(
        &get,
        &Response {
            kind: ResponseKind::Reply,
            fail: NiFail::Undeliverable,
            mlength: 0,
            offset: 0,
            list: ListKind::Priority,
        },
    );
    let events: Vec<_> = std::iter::from_fn(|| ni.eq_get(eq).unwrap()).map(|got| got.event).collect();
    let told: Vec<_> = events.iter().map(|e| (e.kind, e.fail, e.mlength, e.offset, e.user_ptr)).collect();
    assert_eq!(
        told,
        [
            (Send, NiFail::Ok, 16, 0, 21),
            (Ack, NiFail::Ok, 10, 77, 21),
            (Reply, NiFail::Undeliverable, 0, 0, 21)
        ]
    );
    let lists: Vec<_> = events.iter().map(|e| e.list).collect();
    assert_eq!(lists, [ListKind::Priority, ListKind::Overflow, ListKind::Priority]);
    assert_eq!(ni.md_unlink(md), Ok(()));
}

#[test]
fn each_event_of_an_exchange_names_the_bytes_that_it_is_of() {
    let mut ni = Interface::new(Config::default());
    let eq = ni.eq_alloc(8).unwrap();
    let md = bind(&mut ni, MdOptions::empty(), Some(eq), None);
    let swap = transfer(Operation::Swap(AtomicOp::Swap, Datatype::U64), md, 8);
    let flight = ni.begin(&Transfer { local_offset: 16, ..swap }).unwrap();
    ni.sent(&flight, NiFail::Ok);
    ni.answered(&flight, &Response { kind: ResponseKind::Reply, mlength: 8, ..ACKED });
    let starts: Vec<_> = std::iter::from_fn(|| ni.eq_get(eq).unwrap()).map(|got| got.event.start).collect();
    assert_eq!(starts, [0x4000 + 16, 0x4000 + 32]);
}

#[test]
fn an_event_keeps_nothing_of_the_one_that_was_in_its_place() {
    let mut rig = Rig::new();
    let md = bind(&mut rig.ni, MdOptions::empty(), Some(rig.eq), None);
    let send = |rig: &mut Rig| {
        let flight = rig.ni.begin(&transfer(Operation::Put, md, 8)).unwrap();
        rig.ni.sent(&flight, NiFail::Undeliverable);
        rig.event().unwrap()
    };
    let sum = Operation::Atomic(AtomicOp::Sum, Datatype::U64);
    let region = Region { user_ptr: 5, ..region(64, OP | Options::MANAGE_LOCAL) };
    let holder = rig.append(ListKind::Overflow, region);
    let header = Header {
        uid: Uid(1),
        jid: Jid(2),
        match_bits: 3,
        remote_offset: 4,
        hdr_data: 6,
        ..rig.header(sum, 8)
    };
    rig.send(header).unwrap();
    rig.send(header).unwrap();
    let first = rig.event().unwrap();
    let second = rig.event().unwrap();
    assert_eq!((first.entry, second.entry, second.offset), (Some(holder), Some(holder), 8));
    // The queue is empty, so the next event is where the first one was.
    let sent = send(&mut rig);
    let wanted = Event {
        kind: Send,
        fail: NiFail::Undeliverable,
        list: ListKind::Priority,
        atomic: None,
        pt_index: 3,
        initiator: Process::physical(Nid(5), Pid(6)),
        uid: Uid(0),
        jid: Jid(0),
        match_bits: 9,
        rlength: 8,
        mlength: 8,
        remote_offset: 0,
        offset: 0,
        start: 0x4000,
        user_ptr: 21,
        hdr_data: 11,
        entry: None,
        md: Some(md),
        link: 3,
        sequence: 2,
    };
    assert_eq!(sent, wanted);
    rig.send(header).unwrap();
    let third = rig.event().unwrap();
    assert_eq!(third, Event { offset: 16, start: 0x1010, link: 4, sequence: 3, ..first });
}

/// What a put of 16 bytes tells and counts at its initiator, by the descriptor's options and what comes back.
fn put(options: MdOptions, ack: AckRequest, answer: Response) -> (Vec<EventKind>, Count) {
    let mut ni = Interface::new(Config::default());
    let (eq, ct) = (ni.eq_alloc(8).unwrap(), ni.ct_alloc().unwrap());
    let md = bind(&mut ni, options, Some(eq), Some(ct));
    let flight = ni.begin(&Transfer { ack, ..transfer(Operation::Put, md, 16) }).unwrap();
    ni.sent(&flight, NiFail::Ok);
    ni.answered(&flight, &answer);
    let kinds = std::iter::from_fn(|| ni.eq_get(eq).unwrap()).map(|got| got.event.kind).collect();
    (kinds, ni.ct_get(ct).unwrap())
}

/// The target moved 10 bytes.
const ACKED: Response =
    Response { kind: ResponseKind::Ack, fail: NiFail::Ok, mlength: 10, offset: 0, list: ListKind::Priority };
const REFUSED: Response = Response { fail: NiFail::Dropped, mlength: 0, ..ACKED };

#[test]
fn without_options_a_descriptor_tells_send_and_ack_and_counts_nothing() {
    let told = put(MdOptions::empty(), AckRequest::Full, ACKED);
    assert_eq!(told, (vec![Send, Ack], Count::default()));
}

#[test]
fn sent_at_once_tells_and_counts_what_begin_and_sent_do() {
    for (options, told) in [
        (MdOptions::empty(), 1),
        (MdOptions::EVENT_SEND_DISABLE | MdOptions::EVENT_CT_SEND, 0),
        (MdOptions::EVENT_CT_SEND | MdOptions::EVENT_CT_BYTES, 1),
    ] {
        let by = |at_once: bool| {
            let mut ni = Interface::new(Config::default());
            let (eq, ct) = (ni.eq_alloc(8).unwrap(), ni.ct_alloc().unwrap());
            let md = bind(&mut ni, options, Some(eq), Some(ct));
            let transfer = transfer(Operation::Put, md, 16);
            for _ in 0..2 {
                if at_once {
                    assert!(ni.may_send_at_once(&transfer));
                    ni.sent_at_once(&transfer);
                } else {
                    let flight = ni.begin(&transfer).unwrap();
                    ni.sent(&flight, NiFail::Ok);
                }
            }
            assert_eq!(ni.md_unlink(md), Ok(()), "nothing is under way");
            let events: Vec<_> = std::iter::from_fn(|| ni.eq_get(eq).unwrap()).collect();
            (events, ni.ct_get(ct).unwrap())
        };
        let at_once = by(true);
        assert_eq!(at_once, by(false));
        assert_eq!(at_once.0.len(), 2 * told);
    }
}

#[test]
fn only_good_puts_that_are_not_answered_are_sent_at_once() {
    let mut v4 = Interface::new(Config::default());
    let mut v3 = Interface::new(Config { version: Version::V3, ..Config::default() });
    let of_v4 = v4.md_bind(Md { length: 64, ..Md::default() }).unwrap();
    let of_v3 = v3.md_bind_region(Region { length: 64, ..Region::default() }).unwrap();
    for (ni, md) in [(&mut v4, of_v4), (&mut v3, of_v3)] {
        let good = transfer(Operation::Put, md, 16);
        let add = Operation::Atomic(AtomicOp::Sum, Datatype::I64);
        for bad in [
            Transfer { local_offset: 49, ..good },
            Transfer { local_offset: u64::MAX, ..good },
            Transfer { md: MdHandle::from_bits(7), ..good },
            Transfer { ack: AckRequest::Full, ..good },
            Transfer { operation: Operation::Get, ..good },
            Transfer { operation: add, ..good },
            Transfer { reply: Some((MdHandle::from_bits(7), 0)), ..good },
        ] {
            assert!(!ni.may_send_at_once(&bad), "{bad:?}");
        }
        assert!(ni.may_send_at_once(&Transfer { local_offset: 48, ..good }));
    }
}

#[test]
fn what_is_forgotten_tells_and_counts_nothing_and_is_under_way_no_more() {
    let mut rig = Rig::new();
    let ct = rig.ni.ct_alloc().unwrap();
    let md = bind(&mut rig.ni, MdOptions::EVENT_CT_ACK, Some(rig.eq), Some(ct));
    let put = Transfer { ack: AckRequest::Full, ..transfer(Operation::Put, md, 16) };
    let flight = rig.ni.begin(&put).unwrap();
    rig.ni.sent(&flight, NiFail::Ok);
    assert_eq!(rig.ni.md_unlink(md), Err(Error::InUse { argument: "md", pending: 1 }));
    rig.ni.forget(&flight);
    assert_eq!((rig.kinds(), rig.ni.ct_get(ct)), (vec![Send], Ok(Count::default())));
    assert_eq!(rig.ni.md_unlink(md), Ok(()));
}

#[test]
fn event_send_disable_hides_the_send() {
    let told = put(MdOptions::EVENT_SEND_DISABLE, AckRequest::Full, ACKED);
    assert_eq!(told, (vec![Ack], Count::default()));
}

#[test]
fn event_success_disable_of_a_descriptor_hides_successes_only() {
    let options = MdOptions::EVENT_SUCCESS_DISABLE;
    assert_eq!(put(options, AckRequest::Full, ACKED).0, []);
    assert_eq!(put(options, AckRequest::Full, REFUSED).0, [Ack]);
}

#[test]
fn event_ct_send_counts_what_was_sent() {
    let told = put(MdOptions::EVENT_CT_SEND, AckRequest::Full, ACKED);
    assert_eq!(told, (vec![Send, Ack], successes(1)));
}

#[test]
fn event_ct_ack_counts_acknowledgements_of_every_kind() {
    let options = MdOptions::EVENT_CT_ACK;
    assert_eq!(put(options, AckRequest::Full, ACKED), (vec![Send, Ack], successes(1)));
    let counted = Response { kind: ResponseKind::CountAck, ..ACKED };
    assert_eq!(put(options, AckRequest::Count, counted), (vec![Send], successes(1)));
    let over = Response { kind: ResponseKind::CompleteAck, mlength: 0, ..ACKED };
    assert_eq!(put(options, AckRequest::Complete, over), (vec![Send], successes(1)));
    let failed = Count { success: 0, failure: 1 };
    assert_eq!(put(options, AckRequest::Full, REFUSED), (vec![Send, Ack], failed));
}

#[test]
fn event_ct_bytes_of_a_descriptor_counts_bytes_and_single_failures() {
    let bytes = |option, ack, answer| put(option | MdOptions::EVENT_CT_BYTES, ack, answer).1;
    let (send, ack) = (MdOptions::EVENT_CT_SEND, MdOptions::EVENT_CT_ACK);
    assert_eq!(bytes(send, AckRequest::Full, ACKED), successes(16));
    assert_eq!(bytes(ack, AckRequest::Full, ACKED), successes(10));
    assert_eq!(bytes(ack, AckRequest::Full, REFUSED), Count { success: 0, failure: 1 });
    let over = Response { kind: ResponseKind::CompleteAck, ..ACKED };
    assert_eq!(bytes(ack, AckRequest::Complete, over), successes(1), "that it is over has no length");
}

#[test]
fn unordered_volatile_unreliable_and_iovec_are_looked_at_by_the_caller_alone() {
    let options = MdOptions::UNORDERED | MdOptions::VOLATILE | MdOptions::UNRELIABLE | MdOptions::IOVEC;
    assert_eq!(put(options, AckRequest::Full, ACKED), (vec![Send, Ack], Count::default()));
}

#[test]
fn event_ct_reply_counts_replies_of_every_fetching_operation() {
    for operation in [
        Operation::Get,
        Operation::FetchAtomic(AtomicOp::Sum, Datatype::U64),
        Operation::Swap(AtomicOp::Swap, Datatype::U64),
    ] {
        let mut ni = Interface::new(Config::default());
        let (ct, other) = (ni.ct_alloc().unwrap(), ni.ct_alloc().unwrap());
        let to = bind(&mut ni, MdOptions::EVENT_CT_REPLY | MdOptions::EVENT_CT_BYTES, None, Some(ct));
        let from = bind(&mut ni, MdOptions::EVENT_CT_SEND, None, Some(other));
        let plain = transfer(operation, to, 16);
        let request =
            if operation.writes() { Transfer { md: from, reply: Some((to, 0)), ..plain } } else { plain };
        let flight = ni.begin(&request).unwrap();
        if flight.is_sent() {
            ni.sent(&flight, NiFail::Ok);
        }
        ni.answered(
            &flight,
            &Response {
                kind: ResponseKind::Reply,
                fail: NiFail::Ok,
                mlength: 16,
                offset: 0,
                list: ListKind::Priority,
            },
        );
        assert_eq!(ni.ct_get(ct), Ok(successes(16)));
        assert_eq!(ni.ct_get(other), Ok(successes(u64::from(operation.writes()))));
    }
    let told = put(MdOptions::EVENT_CT_REPLY, AckRequest::Full, ACKED);
    assert_eq!(told, (vec![Send, Ack], Count::default()), "an acknowledgement is no reply");
}

#[test]
fn a_descriptor_with_messages_under_way_is_in_use() {
    let mut ni = Interface::new(Config::default());
    let md = bind(&mut ni, MdOptions::empty(), None, None);
    let flight = ni.begin(&Transfer { ack: AckRequest::Count, ..transfer(Operation::Put, md, 8) }).unwrap();
    assert_eq!(ni.md_unlink(md), Err(Error::InUse { argument: "md", pending: 2 }));
    ni.sent(&flight, NiFail::Undeliverable);
    assert_eq!(ni.md_unlink(md), Err(Error::InUse { argument: "md", pending: 1 }));
    let lost = Response {
        kind: ResponseKind::CountAck,
        fail: NiFail::Undeliverable,
        mlength: 0,
        offset: 0,
        list: ListKind::Priority,
    };
    ni.answered(&flight, &lost);
    assert_eq!(ni.md_unlink(md), Ok(()));
}
