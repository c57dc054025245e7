//! The rules of the machine, one by one: datagrams and times go in, and what comes out is compared.

use std::net::Ipv4Addr;
use std::time::Duration;

use hca_cm::wire::*;
use hca_cm::*;
use hca_core::{AckTimeout, Gid, Instant, Psn, Qkey, Qpn};

const SERVICE: ServiceId = ServiceId::of_port(PortSpace::Tcp, 7471);

fn peer(last: u8) -> Peer {
    Gid::from(Ipv4Addr::new(10, 0, 0, last)).into()
}
fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}
fn request() -> Req {
    Req {
        service_id: SERVICE,
        local_qpn: Qpn::new(0x111),
        starting_psn: Psn::new(5),
        remote_response_timeout: CmTimeout::new(15), // 134 ms
        local_response_timeout: CmTimeout::new(15),
        max_cm_retries: Bits::new(3).unwrap(),
        primary: Path { local_ack_timeout: AckTimeout::new(14), ..Path::default() }, // 67 ms
        private_data: PrivateData::new(b"from the active side").unwrap(),
        ..Req::default()
    }
}
fn reply() -> Rep {
    Rep { local_qpn: Qpn::new(0x222), private_data: PrivateData::new(b"reply").unwrap(), ..Rep::default() }
}

/// An active side at 10.0.0.1 and a passive one at 10.0.0.2, which listens.
struct Pair {
    sides: [Machine; 2],
}

impl Pair {
    fn new() -> Self {
        Self::with(|_| {})
    }
    fn with(change: impl Fn(&mut Config)) -> Self {
        let machine = |i: u64| {
            let mut config = Config { guid: Guid(i + 1), seed: i << 40 | i << 20, ..Config::default() };
            change(&mut config);
            Machine::new(config)
        };
        let mut sides = [machine(0), machine(1)];
        sides[1].listen(SERVICE, 4).unwrap();
        Self { sides }
    }
    /// The datagrams that this side wants to send.
    fn sent(&mut self, side: usize) -> Vec<Mad> {
        let machine = &mut self.sides[side];
        std::iter::from_fn(|| machine.poll_transmit()).map(|t| Mad::parse(&t.mad[..]).unwrap()).collect()
    }
    fn kinds(&mut self, side: usize) -> Vec<Kind> {
        self.sent(side).iter().map(|mad| mad.message.kind()).collect()
    }
    fn events(&mut self, side: usize) -> Vec<Event> {
        let machine = &mut self.sides[side];
        std::iter::from_fn(|| machine.poll_event()).collect()
    }
    fn deliver(&mut self, now: Instant, to: usize, mad: &Mad) {
        self.sides[to].handle(now, peer(2 - to as u8), &mad.build());
    }
    /// Carries all that this side wants to send to the other one; says what it was.
    fn carry(&mut self, now: Instant, from: usize) -> Vec<Mad> {
        let sent = self.sent(from);
        sent.iter().for_each(|mad| self.deliver(now, 1 - from, mad));
        sent
    }
    /// A connection of which the passive side has the request.
    fn requested(&mut self) -> [CommId; 2] {
        let active = self.sides[0].connect(at(0), peer(2), &request()).unwrap();
        self.carry(at(0), 0);
        let [Event::Request { id, .. }] = self.events(1)[..] else { panic!("one request") };
        [active, id]
    }
    fn replied(&mut self) -> [CommId; 2] {
        let ids = self.requested();
        self.sides[1].accept(at(1), ids[1], &reply()).unwrap();
        self.carry(at(1), 1);
        ids
    }
    fn established(&mut self) -> [CommId; 2] {
        let ids = self.replied();
        self.sides[0].ready(ids[0], PrivateData::EMPTY).unwrap();
        self.carry(at(2), 0);
        assert!((0..2).all(|i| self.sides[i].state(ids[i]) == Some(ConnState::Established)));
        self.events(0);
        self.events(1);
        ids
    }
}

fn only(mads: Vec<Mad>) -> Mad {
    let [mad] = mads[..] else { panic!("one datagram: {mads:?}") };
    mad
}
fn rejection(mad: Mad) -> Rej {
    let Message::Rej(rej) = mad.message else { panic!("a rejection: {mad:?}") };
    rej
}

#[test]
fn three_messages_make_a_connection_and_two_end_it() {
    let mut pair = Pair::new();
    let ids = pair.requested();
    pair.sides[1].accept(at(1), ids[1], &reply()).unwrap();
    assert_eq!(only(pair.carry(at(1), 1)).message.kind(), Kind::Rep);
    let [Event::Reply { id, reply: got }] = pair.events(0)[..] else { panic!("one reply") };
    assert_eq!((id, got.local_qpn, got.local_ca_guid), (ids[0], Qpn::new(0x222), Guid(2)));
    assert_eq!(&got.private_data.bytes()[..6], b"reply\0");
    pair.sides[0].ready(ids[0], PrivateData::new(b"rtu").unwrap()).unwrap();
    assert_eq!(only(pair.carry(at(2), 0)).message.kind(), Kind::Rtu);
    let private_data = PrivateData::new(b"rtu").unwrap();
    assert_eq!(pair.events(1), [Event::Established { id: ids[1], private_data }]);

    pair.sides[1].disconnect(at(9), ids[1], PrivateData::new(b"bye").unwrap()).unwrap();
    let dreq = only(pair.carry(at(9), 1));
    assert!(matches!(dreq.message, Message::Dreq(Dreq { remote_qpn, .. }) if remote_qpn == Qpn::new(0x111)));
    let private_data = PrivateData::new(b"bye").unwrap();
    assert_eq!(pair.events(0), [Event::Disconnected { id: ids[0], cause: Cause::Peer, private_data }]);
    let drep = only(pair.carry(at(9), 0));
    assert_eq!((drep.message.kind(), drep.transaction), (Kind::Drep, dreq.transaction));
    let (answered, private_data) = (true, PrivateData::EMPTY);
    assert_eq!(pair.events(1), [Event::DisconnectDone { id: ids[1], answered, private_data }]);
    for (side, id) in ids.into_iter().enumerate() {
        assert_eq!(pair.sides[side].state(id), Some(ConnState::TimeWait));
        let end = pair.sides[side].deadline().unwrap();
        pair.sides[side].handle_timeout(end);
        assert_eq!(pair.events(side), [Event::Gone { id }]);
        assert!(pair.sides[side].is_empty() && pair.sides[side].deadline().is_none());
    }
}

#[test]
fn a_request_without_an_answer_is_repeated_as_often_as_it_says_and_then_given_up() {
    let mut pair = Pair::new();
    let id = pair.sides[0].connect(at(0), peer(2), &request()).unwrap();
    let mut times = Vec::new();
    let first = only(pair.sent(0));
    let failure = loop {
        let now = pair.sides[0].deadline().unwrap();
        pair.sides[0].handle_timeout(now);
        times.push(now.as_nanos() / 1_000_000);
        match pair.events(0)[..] {
            [] => assert_eq!(only(pair.sent(0)), first),
            [Event::Failed { id: of, failure }] if of == id => break failure,
            ref other => panic!("{other:?}"),
        }
    };
    assert_eq!((times, failure), (vec![201, 402, 603, 805], Failure::NoAnswer(Kind::Req)));
    let rej = rejection(only(pair.sent(0)));
    assert_eq!((rej.reason, rej.info.bytes()), (Reason::TIMEOUT, &1u64.to_be_bytes()[..]));
}

#[test]
fn a_lost_rtu_is_sent_again_for_a_repeated_reply() {
    let mut pair = Pair::new();
    let ids = pair.replied();
    pair.sides[0].ready(ids[0], PrivateData::new(b"rtu").unwrap()).unwrap();
    let rtu = only(pair.sent(0)); // lost
    let again = pair.sides[1].deadline().unwrap();
    pair.sides[1].handle_timeout(again);
    assert_eq!(only(pair.carry(again, 1)).message.kind(), Kind::Rep);
    assert_eq!(only(pair.carry(again, 0)), rtu);
    assert_eq!(pair.sides[1].state(ids[1]), Some(ConnState::Established));
}

#[test]
fn a_message_through_the_queue_pair_stands_for_the_rtu() {
    let mut pair = Pair::new();
    let ids = pair.replied();
    pair.sides[1].established(at(5), ids[1]).unwrap();
    let private_data = PrivateData::EMPTY;
    assert_eq!(pair.events(1), [Event::Established { id: ids[1], private_data }]);
    assert_eq!(pair.sides[1].deadline(), None);
    pair.sides[1].established(at(6), ids[1]).unwrap();
    assert_eq!(pair.events(1), []);
}

#[test]
fn a_repeated_request_that_the_program_has_not_answered_is_acknowledged_by_mra() {
    let mut pair = Pair::new();
    let ids = pair.requested();
    let again = pair.sides[0].deadline().unwrap();
    pair.sides[0].handle_timeout(again);
    pair.carry(again, 0);
    assert_eq!(pair.events(1), []);
    let Message::Mra(mra) = only(pair.carry(again, 1)).message else { panic!("an MRA") };
    assert_eq!((mra.about, mra.service_timeout), (About::Req, CmTimeout::new(22)));
    assert!(matches!(pair.events(0)[..], [Event::Delayed { id, .. }] if id == ids[0]));
    let wait = pair.sides[0].deadline().unwrap().since(again);
    assert_eq!(wait, CmTimeout::new(22).duration() + Duration::from_nanos(4096 << 14));
    // The late answer is in time.
    pair.sides[1].accept(at(9000), ids[1], &reply()).unwrap();
    pair.carry(at(9000), 1);
    assert_eq!(pair.sides[0].state(ids[0]), Some(ConnState::RepReceived));
}

#[test]
fn a_peer_can_not_delay_for_ever() {
    let mut pair = Pair::with(|config| config.max_wait = Duration::from_secs(10));
    let ids = pair.requested();
    let mra = Mra {
        ids: Ids { local: CommId(7), remote: ids[0] },
        about: About::Req,
        service_timeout: CmTimeout::new(31), // 2.4 hours
        private_data: PrivateData::EMPTY,
    };
    let mad = Mad { transaction: TransactionId(0), message: mra.into() };
    for _ in 0..100 {
        pair.deliver(at(1), 0, &mad);
    }
    assert_eq!(pair.sides[0].deadline(), Some(at(10_001)));
    assert_eq!(pair.sides[0].counters().duplicates, 99);
}

#[test]
fn an_answer_is_remembered_until_the_peer_has_waited_for_it_and_repeated_its_request() {
    // Both sides cut long waits to the same time, and the MRA takes some of it to arrive.
    let mut pair = Pair::with(|config| config.max_wait = Duration::from_secs(2));
    let ids = pair.requested();
    pair.sides[1].delay(at(1), ids[1], CmTimeout::new(22)).unwrap();
    pair.carry(at(9), 1);
    let no_data = PrivateData::EMPTY;
    pair.sides[1].reject(at(1), ids[1], Reason::CONSUMER_DEFINED, Info::EMPTY, no_data).unwrap();
    let lost = only(pair.sent(1));
    let again = pair.sides[0].deadline().unwrap();
    assert_eq!(again, at(2009));
    pair.sides[1].handle_timeout(again);
    pair.sides[0].handle_timeout(again);
    assert_eq!(only(pair.carry(again, 0)).message.kind(), Kind::Req);
    assert_eq!(only(pair.sent(1)), lost, "the same answer once more");
    assert_eq!(pair.events(1), [], "the program hears of one request");
}

#[test]
fn a_rejection_has_reason_and_private_data_and_is_repeated_for_a_repeated_request() {
    let mut pair = Pair::new();
    let ids = pair.requested();
    let data = PrivateData::new(b"no").unwrap();
    pair.sides[1].reject(at(1), ids[1], Reason::CONSUMER_DEFINED, Info::EMPTY, data).unwrap();
    let rej = only(pair.sent(1)); // lost
    let again = pair.sides[0].deadline().unwrap();
    pair.sides[0].handle_timeout(again);
    pair.carry(again, 0);
    assert_eq!(pair.events(1), [], "the program is not asked again");
    assert_eq!(only(pair.carry(again, 1)), rej);
    let (reason, info) = (Reason::CONSUMER_DEFINED, Info::EMPTY);
    assert_eq!(pair.events(0), [Event::Rejected { id: ids[0], reason, info, private_data: data }]);
}

#[test]
fn a_reply_can_be_rejected_too() {
    let mut pair = Pair::new();
    let ids = pair.replied();
    let (info, data) = (Info::EMPTY, PrivateData::EMPTY);
    pair.sides[0].reject(at(2), ids[0], Reason::NO_RESOURCES, info, data).unwrap();
    assert_eq!(rejection(only(pair.carry(at(2), 0))).about, About::Rep);
    let private_data = data;
    assert_eq!(
        pair.events(1),
        [Event::Rejected { id: ids[1], reason: Reason::NO_RESOURCES, info, private_data }]
    );
    let refused = pair.sides[0].reject(at(3), ids[0], Reason::NO_RESOURCES, info, data);
    assert_eq!(refused, Err(CmError::State { id: ids[0], state: ConnState::TimeWait }));
}

#[test]
fn nobody_listens_is_said_at_once_and_nothing_is_kept() {
    let mut pair = Pair::new();
    let request = Req { service_id: ServiceId(99), ..request() };
    pair.sides[0].connect(at(0), peer(2), &request).unwrap();
    pair.carry(at(0), 0);
    assert_eq!(rejection(only(pair.carry(at(0), 1))).reason, Reason::INVALID_SERVICE_ID);
    assert!(pair.sides[1].is_empty());
    assert_eq!(pair.sides[1].listen(SERVICE, 1), Err(CmError::InUse { service: SERVICE }));
}

#[test]
fn a_flood_of_requests_stays_within_backlog_and_table() {
    let mut pair = Pair::with(|config| config.max_entries = 6);
    let flood = |pair: &mut Pair, n: u32| {
        let req = Req {
            local_comm_id: CommId(n),
            local_qpn: Qpn::new(n + 2),
            local_ca_guid: Guid(77),
            ..request()
        };
        pair.deliver(at(0), 1, &Mad { transaction: TransactionId(n.into()), message: req.into() });
    };
    (0..10_000).for_each(|n| flood(&mut pair, n));
    assert_eq!((pair.events(1).len(), pair.sides[1].len()), (4, 4));
    assert_eq!((pair.sides[1].counters().backlog_full, pair.kinds(1).len()), (9996, 0));
    // A program that accepts all of them is bounded by the table, and says so to those beyond.
    for n in 20_000..20_100 {
        flood(&mut pair, n);
        for event in pair.events(1) {
            let Event::Request { id, .. } = event else { panic!("{event:?}") };
            pair.sides[1].accept(at(0), id, &reply()).unwrap();
        }
    }
    assert!(pair.sides[1].len() <= 6);
}

#[test]
fn the_oldest_in_time_wait_makes_room() {
    let mut pair = Pair::with(|config| config.max_entries = 2);
    let first = pair.established();
    pair.sides[0].disconnect(at(5), first[0], PrivateData::EMPTY).unwrap();
    pair.carry(at(5), 0);
    pair.carry(at(5), 1);
    assert_eq!(pair.sides[0].state(first[0]), Some(ConnState::TimeWait));
    pair.events(0);
    let other = Req { local_qpn: Qpn::new(0x333), ..request() };
    pair.sides[0].connect(at(6), peer(2), &other).unwrap();
    pair.sides[0].connect(at(6), peer(2), &other).unwrap();
    assert_eq!(pair.events(0), [Event::Gone { id: first[0] }]);
    assert_eq!(pair.sides[0].counters().evicted, 1);
    assert_eq!(pair.sides[0].connect(at(6), peer(2), &other), Err(CmError::Full { limit: 2 }));
}

#[test]
fn a_resolution_that_finds_no_place_in_the_backlog_takes_no_connections_place() {
    let mut pair = Pair::with(|config| config.max_entries = 5);
    let ids = pair.established();
    pair.sides[1].disconnect(at(5), ids[1], PrivateData::EMPTY).unwrap();
    pair.carry(at(5), 1);
    pair.carry(at(5), 0);
    assert_eq!(pair.sides[1].state(ids[1]), Some(ConnState::TimeWait));
    pair.events(1);
    for id in 1..=9 {
        let ask = SidrReq { request_id: CommId(id), service_id: SERVICE, ..SidrReq::default() };
        let transaction = TransactionId(id.into());
        pair.deliver(at(6), 1, &Mad { transaction, message: ask.into() });
    }
    let asked = pair.events(1);
    assert!(asked.iter().all(|event| matches!(event, Event::SidrRequest { .. })), "{asked:?}");
    let counters = pair.sides[1].counters();
    assert_eq!((asked.len(), counters.evicted, counters.backlog_full), (4, 0, 5));
    assert_eq!(pair.sides[1].state(ids[1]), Some(ConnState::TimeWait));
}

#[test]
fn a_request_by_a_connected_queue_pair_shows_a_stale_connection() {
    let mut pair = Pair::new();
    let ids = pair.established();
    // The active side began anew, and has another ID but the same queue pair.
    let req = Req { local_comm_id: CommId(0xbeef), local_ca_guid: Guid(1), ..request() };
    pair.deliver(at(9), 1, &Mad { transaction: TransactionId(3), message: req.into() });
    let private_data = PrivateData::EMPTY;
    assert_eq!(pair.events(1), [Event::Disconnected { id: ids[1], cause: Cause::Stale, private_data }]);
    let sent = pair.sent(1);
    let [rej, dreq] = &sent[..] else { panic!("{sent:?}") };
    let rej = rejection(*rej);
    assert_eq!((rej.reason, rej.ids.remote), (Reason::STALE_CONNECTION, CommId(0xbeef)));
    assert_eq!(dreq.message.kind(), Kind::Dreq);
    // A second request finds the way free.
    pair.deliver(at(10), 1, &Mad { transaction: TransactionId(3), message: req.into() });
    assert!(matches!(pair.events(1)[..], [Event::Request { .. }]));
}

#[test]
fn a_request_by_an_id_that_is_in_use_shows_a_stale_connection() {
    let mut pair = Pair::new();
    let ids = pair.established();
    let req = Req { local_comm_id: ids[0], local_ca_guid: Guid(1), local_qpn: Qpn::new(0x999), ..request() };
    pair.deliver(at(9), 1, &Mad { transaction: TransactionId(3), message: req.into() });
    assert!(matches!(pair.events(1)[..], [Event::Disconnected { cause: Cause::Stale, .. }]));
    assert_eq!(rejection(pair.sent(1)[0]).reason, Reason::STALE_CONNECTION);
}

#[test]
fn a_dreq_without_an_answer_is_sent_again_when_the_program_ends() {
    let mut pair = Pair::new();
    let [a, b] = pair.established();
    assert!(!pair.sides[0].is_releasing());
    pair.sides[0].repeat_releases();
    assert!(pair.sent(0).is_empty());
    pair.sides[0].forget(at(0), a);
    // The first one is lost.
    assert_eq!(pair.kinds(0), [Kind::Dreq]);
    assert!(pair.sides[0].is_releasing());
    pair.sides[0].repeat_releases();
    assert_eq!(pair.carry(at(1), 0).len(), 1);
    pair.carry(at(1), 1);
    assert!(!pair.sides[0].is_releasing() && pair.sides[1].state(b) == Some(ConnState::TimeWait));
}

#[test]
fn a_dreq_is_answered_in_every_state() {
    let dreq = |local, remote, qpn| {
        let message =
            Dreq { ids: Ids { local, remote }, remote_qpn: Qpn::new(qpn), private_data: PrivateData::EMPTY };
        Mad { transaction: TransactionId(8), message: message.into() }
    };
    // No connection at all.
    let mut pair = Pair::new();
    pair.deliver(at(0), 1, &dreq(CommId(1), CommId(2), 0x111));
    assert_eq!(pair.kinds(1), [Kind::Drep]);
    // The reply is on its way: the peer has it, and its RTU was lost.
    let mut pair = Pair::new();
    let ids = pair.replied();
    pair.deliver(at(3), 1, &dreq(ids[0], ids[1], 0x222));
    assert!(matches!(pair.events(1)[..], [Event::Disconnected { cause: Cause::Peer, .. }]));
    assert_eq!(pair.kinds(1), [Kind::Drep]);
    // Time-wait: again.
    pair.deliver(at(4), 1, &dreq(ids[0], ids[1], 0x222));
    assert_eq!((pair.kinds(1), pair.events(1)), (vec![Kind::Drep], vec![]));
    // The program has the reply and has not said yet that it is ready.
    let mut pair = Pair::new();
    let ids = pair.replied();
    pair.events(0);
    pair.deliver(at(3), 0, &dreq(ids[1], ids[0], 0x111));
    assert!(matches!(pair.events(0)[..], [Event::Disconnected { .. }]));
    assert_eq!(pair.kinds(0), [Kind::Drep]);
    // Both ask at the same time.
    let mut pair = Pair::new();
    let ids = pair.established();
    for (side, id) in ids.into_iter().enumerate() {
        pair.sides[side].disconnect(at(5), id, PrivateData::EMPTY).unwrap();
    }
    let [from_active, from_passive] = [pair.sent(0), pair.sent(1)];
    pair.deliver(at(6), 1, &from_active[0]);
    pair.deliver(at(6), 0, &from_passive[0]);
    for side in 0..2 {
        assert!(matches!(pair.events(side)[..], [Event::DisconnectDone { answered: true, .. }]));
        assert_eq!(pair.kinds(side), [Kind::Drep]);
    }
    // Another queue pair is meant.
    let mut pair = Pair::new();
    let ids = pair.established();
    pair.deliver(at(5), 1, &dreq(ids[0], ids[1], 0x777));
    assert_eq!((pair.kinds(1), pair.events(1)), (vec![], vec![]));
    assert_eq!(pair.sides[1].state(ids[1]), Some(ConnState::Established));
}

/// The peer of one side says nothing any more; that side's timers alone end its connection.
fn side_without_a_peer_ends(pair: &mut Pair, side: usize, id: CommId) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(now) = pair.sides[side].deadline() {
        pair.sides[side].handle_timeout(now);
        pair.sent(side);
        events.extend(pair.events(side));
    }
    assert!(pair.sides[side].is_empty(), "nothing is left");
    assert_eq!(events.pop(), Some(Event::Gone { id }));
    events
}

#[test]
fn a_peer_that_dies_after_its_request_or_before_its_reply_leaves_nothing() {
    let mut pair = Pair::new();
    let [active, passive] = pair.requested();
    let failed = side_without_a_peer_ends(&mut pair, 0, active);
    assert_eq!(failed, [Event::Failed { id: active, failure: Failure::NoAnswer(Kind::Req) }]);
    let failed = side_without_a_peer_ends(&mut pair, 1, passive);
    assert_eq!(failed, [Event::Failed { id: passive, failure: Failure::Unanswered }]);
}

#[test]
fn a_peer_that_dies_after_the_reply_leaves_nothing() {
    let mut pair = Pair::new();
    let [_, passive] = pair.replied();
    let failed = side_without_a_peer_ends(&mut pair, 1, passive);
    assert_eq!(failed, [Event::Failed { id: passive, failure: Failure::NoAnswer(Kind::Rep) }]);
}

#[test]
fn a_peer_that_dies_while_connected_or_while_the_connection_ends_leaves_nothing() {
    let mut pair = Pair::new();
    let ids = pair.established();
    for (side, id) in ids.into_iter().enumerate() {
        // Nothing tells of the peer's death but the queue pair, or the peer's next life.
        assert_eq!(pair.sides[side].deadline(), None);
        pair.sides[side].disconnect(at(3), id, PrivateData::EMPTY).unwrap();
        pair.sent(side);
        let ended = side_without_a_peer_ends(&mut pair, side, id);
        let done = Event::DisconnectDone { id, answered: false, private_data: PrivateData::EMPTY };
        assert_eq!(ended, [done]);
    }
}

#[test]
fn a_peer_that_dies_after_its_end_was_answered_leaves_nothing() {
    let mut pair = Pair::new();
    let [active, passive] = pair.established();
    pair.sides[0].disconnect(at(3), active, PrivateData::EMPTY).unwrap();
    pair.carry(at(3), 0);
    assert_eq!(pair.events(1).len(), 1);
    assert_eq!(side_without_a_peer_ends(&mut pair, 1, passive), []);
}

#[test]
fn another_port_that_knows_the_ids_changes_nothing() {
    let mut pair = Pair::new();
    let ids = pair.established();
    let both = Ids { local: ids[0], remote: ids[1] };
    let messages: [Message; 3] = [
        Dreq { ids: both, remote_qpn: Qpn::new(0x222), private_data: PrivateData::EMPTY }.into(),
        Rej {
            ids: both,
            about: About::Other,
            reason: Reason::TIMEOUT,
            info: Info::new(&1u64.to_be_bytes()).unwrap(),
            private_data: PrivateData::EMPTY,
        }
        .into(),
        Drep { ids: both, private_data: PrivateData::EMPTY }.into(),
    ];
    for message in messages {
        pair.sides[1].handle(at(5), peer(9), &Mad { transaction: TransactionId(1), message }.build());
    }
    assert_eq!(pair.events(1), []);
    assert_eq!(pair.sides[1].state(ids[1]), Some(ConnState::Established));
}

#[test]
fn an_alternate_path_is_refused() {
    let mut pair = Pair::new();
    let ids = pair.established();
    let both = Ids { local: ids[0], remote: ids[1] };
    for (ids, status) in [(both, ApStatus::UNSUPPORTED), (Ids::default(), ApStatus::INVALID_COMM_ID)] {
        pair.deliver(at(5), 1, &Mad { transaction: TransactionId(4), message: Lap { ids }.into() });
        assert_eq!(only(pair.sent(1)).message, Apr { ids: ids.swapped(), status }.into());
    }
}

#[test]
fn a_request_with_an_impossible_field_is_rejected_with_its_reason() {
    let mut pair = Pair::new();
    let mut mad =
        Mad { transaction: TransactionId(4), message: Req { local_comm_id: CommId(6), ..request() }.into() }
            .build();
    mad[24 + 50] = 0xf0; // path MTU
    pair.sides[1].handle(at(0), peer(1), &mad);
    let rej = rejection(only(pair.sent(1)));
    assert_eq!((rej.reason, rej.about, rej.ids.remote), (Reason::INVALID_MTU, About::Req, CommId(6)));
    assert_eq!(pair.sides[1].counters().malformed, 1);
}

#[test]
fn a_listener_that_ends_rejects_what_waits() {
    let mut pair = Pair::new();
    let ids = pair.requested();
    pair.sides[1].unlisten(at(1), SERVICE);
    let failure = Failure::NoListener;
    assert_eq!(pair.events(1), [Event::Failed { id: ids[1], failure }]);
    assert_eq!(rejection(only(pair.sent(1))).reason, Reason::INVALID_SERVICE_ID);
    assert!(!pair.sides[1].is_listening(SERVICE));
}

#[test]
fn a_request_that_the_program_has_taken_leaves_its_place_and_outlives_its_listener() {
    let mut pair = Pair::new();
    let ids = pair.requested();
    pair.sides[1].taken(ids[1]);
    let more = (0..5).map(|n| Req { local_qpn: Qpn::new(0x1000 + n), ..request() });
    more.for_each(|request| _ = pair.sides[0].connect(at(0), peer(2), &request).unwrap());
    pair.carry(at(0), 0);
    assert_eq!((pair.events(1).len(), pair.sides[1].counters().backlog_full), (4, 1));
    pair.sides[1].unlisten(at(1), SERVICE);
    assert_eq!(pair.kinds(1), [Kind::Rej; 4]);
    pair.events(1);
    pair.sides[1].accept(at(1), ids[1], &reply()).unwrap();
    assert_eq!(only(pair.carry(at(1), 1)).message.kind(), Kind::Rep);
}

#[test]
fn a_resolution_is_answered_once_by_the_program_and_from_memory_afterwards() {
    let mut pair = Pair::new();
    let service = SERVICE;
    let private_data = PrivateData::new(b"who?").unwrap();
    let (timeout, pkey) = (CmTimeout::new(15), hca_core::Pkey::DEFAULT);
    let ask = Resolve { to: peer(2), service, pkey, timeout, retries: 2, private_data };
    let id = pair.sides[0].resolve(at(0), &ask).unwrap();
    pair.carry(at(0), 0);
    let [Event::SidrRequest { id: asked, from, request }] = pair.events(1)[..] else { panic!("one request") };
    assert_eq!((from, request.private_data), (peer(1), private_data));
    let resolution = Resolution::Found { qpn: Qpn::new(0x42), qkey: Qkey::new(0x0123_4567) };
    let answer = SidrAnswer { resolution, private_data: PrivateData::new(b"me").unwrap() };
    pair.sides[1].answer(at(1), asked, &answer).unwrap();
    assert_eq!(pair.sides[1].answer(at(1), asked, &answer), Err(CmError::Unknown { id: asked }));
    let lost = only(pair.sent(1));
    let again = pair.sides[0].deadline().unwrap();
    pair.sides[0].handle_timeout(again);
    pair.carry(again, 0);
    assert_eq!(pair.events(1), []);
    assert_eq!(only(pair.carry(again, 1)), lost);
    let private_data = answer.private_data;
    assert_eq!(pair.events(0), [Event::Resolved { id, from: peer(2), resolution, private_data }]);
    assert!(pair.sides[0].is_empty());
    let end = pair.sides[1].deadline().unwrap();
    pair.sides[1].handle_timeout(end);
    assert!(pair.sides[1].is_empty());
}

#[test]
fn a_resolution_that_the_program_does_not_answer_is_withdrawn() {
    let mut pair = Pair::new();
    let ask = SidrReq { request_id: CommId(7), service_id: SERVICE, ..SidrReq::default() };
    pair.deliver(at(0), 1, &Mad { transaction: TransactionId(1), message: ask.into() });
    let [Event::SidrRequest { id, .. }] = pair.events(1)[..] else { panic!("one request") };
    let end = pair.sides[1].deadline().unwrap();
    pair.sides[1].handle_timeout(end);
    assert_eq!(pair.events(1), [Event::SidrExpired { id }]);
    assert!(pair.sides[1].is_empty() && pair.sent(1).is_empty());
}

#[test]
fn a_resolution_that_nobody_answers_ends() {
    let mut pair = Pair::new();
    let (timeout, pkey) = (CmTimeout::new(15), hca_core::Pkey::DEFAULT);
    let private_data = PrivateData::EMPTY;
    let ask = Resolve { to: peer(2), service: ServiceId(4), pkey, timeout, retries: 1, private_data };
    let id = pair.sides[0].resolve(at(0), &ask).unwrap();
    assert_eq!(pair.kinds(0), [Kind::SidrReq]);
    pair.sides[0].handle_timeout(at(135));
    assert_eq!(pair.kinds(0), [Kind::SidrReq]);
    pair.sides[0].handle_timeout(at(270));
    assert_eq!(pair.events(0), [Event::Unresolved { id }]);
    // Where nobody listens, that is said.
    pair.sides[0].resolve(at(300), &ask).unwrap();
    pair.carry(at(300), 0);
    pair.carry(at(300), 1);
    let refused = Resolution::Refused(Refusal::UNSUPPORTED);
    assert!(matches!(pair.events(0)[..], [Event::Resolved { resolution, .. }] if resolution == refused));
}

#[test]
fn ids_have_the_machines_prefix_and_are_not_used_again_at_once() {
    let mut machine = Machine::new(Config { prefix: Some(0xab), seed: 0xffff_fffe, ..Config::default() });
    let mut last = None;
    for _ in 0..100 {
        let id = machine.connect(at(0), peer(2), &request()).unwrap();
        assert_eq!(id.0 >> 24, 0xab);
        assert_ne!(last.replace(id), Some(id));
        machine.forget(at(0), id);
    }
}
