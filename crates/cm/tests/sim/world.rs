//! The two machines, their programs, and the channel between them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use hca_cm::wire::*;
use hca_cm::*;
use hca_core::{AckTimeout, Gid, Instant, Psn, Qkey, Qpn};
use test_support::random::Rng;

/// The faults of a run beside loss, doubles, delays and reordering.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) deaths: bool,
    pub(crate) garbage: bool,
}

/// Services with a listener, and one without.
const SERVICES: [ServiceId; 3] = [ServiceId(0x0106_0001), ServiceId(2), ServiceId(3)];
const LISTENED: usize = 2;
/// A message of one kind and transaction is lost at most so often in a row.
const LOSSES: u32 = 4;
const MAX_DELAY: Duration = Duration::from_millis(30);
/// Everything ends within this time once the programs rest.
const BOUND: Duration = Duration::from_secs(3 * 3600);

/// Private data of a message: a function of the token of the connection and the kind of the message.
fn pattern<const N: usize>(token: u64, kind: Kind) -> PrivateData<N> {
    let mut data = Rng::new(token ^ (kind as u64) << 48).bytes(N);
    data[..8].copy_from_slice(&token.to_be_bytes());
    PrivateData::new(&data).unwrap()
}
fn token_of(data: &[u8]) -> u64 {
    u64::from_be_bytes(data[..8].try_into().unwrap())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    Pending,
    Established,
    Ended,
}

/// A program's view of one connection.
#[derive(Debug)]
struct Local {
    token: u64,
    view: View,
    closing: u32,
    forgotten: bool,
    disconnecting: bool,
    qpn: Qpn,
}

/// The answer that a program gives later.
#[derive(Clone, Copy, Debug)]
enum Later {
    Request(CommId),
    Reply(CommId),
    Sidr(CommId, u64),
}

struct Side {
    machine: Machine,
    peer: Peer,
    /// Lives until now.
    life: u64,
    conns: BTreeMap<CommId, Local>,
    asked: BTreeSet<u64>,
    resolving: BTreeMap<CommId, u64>,
    later: Vec<Later>,
    next_qpn: u32,
    free_qpns: Vec<Qpn>,
}

struct Flight {
    to: usize,
    from: Peer,
    mad: Vec<u8>,
}

pub(crate) struct World {
    rng: Rng,
    plan: Plan,
    talk: bool,
    now: Instant,
    sides: [Side; 2],
    flights: BTreeMap<(Instant, u64), Flight>,
    order: u64,
    lost: BTreeMap<(usize, u64, u16), u32>,
    loss: usize,
    tokens: u64,
    /// How each side has ended up with each connection.
    ended: BTreeMap<u64, [Option<View>; 2]>,
    asked: u64,
    established: u64,
    resolved: u64,
    restarts: u64,
    /// A side died: the other one can not know all.
    strange: bool,
    /// A program never answered a request.
    ignored: bool,
    /// Programs act by themselves.
    acting: bool,
}

fn side(index: usize, seed: u64, life: u64) -> Side {
    let config = Config {
        guid: Guid(0x10 + index as u64),
        seed: Rng::new(seed ^ life << 8 ^ index as u64).next_u64(),
        prefix: seed.is_multiple_of(3).then_some(index as u8 + 7),
        max_entries: if seed.is_multiple_of(7) { 12 } else { 200 },
        max_wait: Duration::from_secs(40),
        service_timeout: CmTimeout::new(18),
        ..Config::default()
    };
    let mut machine = Machine::new(config);
    for service in &SERVICES[..LISTENED] {
        machine.listen(*service, if seed.is_multiple_of(5) { 3 } else { 1000 }).unwrap();
    }
    Side {
        machine,
        peer: Gid::from(Ipv4Addr::new(10, 0, 0, index as u8 + 1)).into(),
        life,
        conns: BTreeMap::new(),
        asked: BTreeSet::new(),
        resolving: BTreeMap::new(),
        later: Vec::new(),
        next_qpn: 10,
        free_qpns: Vec::new(),
    }
}

impl Side {
    fn qpn(&mut self) -> Qpn {
        self.free_qpns.pop().unwrap_or_else(|| {
            self.next_qpn += 1;
            Qpn::new(self.next_qpn)
        })
    }
}

impl World {
    pub(crate) fn new(seed: u64, plan: Plan, talk: bool) -> Self {
        let mut rng = Rng::new(seed);
        let loss = [1000, 20, 6, 3][rng.below(4)];
        Self {
            rng,
            plan,
            talk,
            now: Instant::ZERO,
            sides: [side(0, seed, 1), side(1, seed, 1)],
            flights: BTreeMap::new(),
            order: 0,
            lost: BTreeMap::new(),
            loss,
            tokens: seed << 20,
            ended: BTreeMap::new(),
            asked: 0,
            established: 0,
            resolved: 0,
            restarts: 0,
            strange: false,
            ignored: false,
            acting: true,
        }
    }

    /// Requests, established connections, resolutions, restarts.
    pub(crate) fn run(mut self) -> [u64; 4] {
        let actions = 10 + self.rng.below(60);
        for _ in 0..actions {
            self.act();
            let pause = Duration::from_micros(self.rng.below(60_000) as u64);
            self.pass(self.now + pause);
        }
        self.acting = false;
        self.rest();
        self.agree();
        for index in 0..2 {
            let side = &mut self.sides[index];
            let ids: Vec<_> =
                side.conns.iter().filter(|(_, c)| c.view == View::Established).map(|(id, _)| *id).collect();
            for id in ids {
                self.disconnect(index, id);
            }
        }
        self.rest();
        for side in &self.sides {
            assert!(side.machine.is_empty(), "{} entries are left", side.machine.len());
            assert_eq!(side.machine.deadline(), None);
            let left: Vec<_> = side.conns.iter().filter(|(_, c)| !c.forgotten).collect();
            assert!(left.is_empty(), "the program was not told of the end of {left:?}");
            assert!(side.resolving.is_empty(), "{:?} have no end", side.resolving);
        }
        [self.asked, self.established, self.resolved, self.restarts]
    }

    /// Lets time pass until nothing happens by itself.
    fn rest(&mut self) {
        let start = self.now;
        loop {
            for index in 0..2 {
                while let Some(later) = self.sides[index].later.pop() {
                    self.decide(index, later, true);
                    self.drain(index);
                }
            }
            let timers = self.sides.iter().filter_map(|side| side.machine.deadline());
            let flights = self.flights.keys().next().map(|(at, _)| *at);
            let Some(next) = timers.chain(flights).min() else { break };
            self.pass(next);
            assert!(self.now.since(start) < BOUND, "it does not end");
        }
    }

    fn pass(&mut self, until: Instant) {
        loop {
            let timer = (0..2).filter_map(|i| Some((self.sides[i].machine.deadline()?, i))).min();
            let flight = self.flights.keys().next().copied();
            match (timer, flight) {
                (Some((at, i)), flight) if at <= until && flight.is_none_or(|(f, _)| at <= f) => {
                    self.now = self.now.max(at);
                    self.sides[i].machine.handle_timeout(self.now);
                    assert!(
                        self.sides[i].machine.deadline().is_none_or(|d| d > self.now),
                        "a timer stands still"
                    );
                    self.drain(i);
                }
                (_, Some(key)) if key.0 <= until => {
                    self.now = self.now.max(key.0);
                    let flight = self.flights.remove(&key).unwrap();
                    self.sides[flight.to].machine.handle(self.now, flight.from, &flight.mad);
                    self.drain(flight.to);
                }
                _ => break,
            }
        }
        self.now = self.now.max(until);
    }

    /// Takes all that a machine says.
    fn drain(&mut self, index: usize) {
        loop {
            if let Some(transmit) = self.sides[index].machine.poll_transmit() {
                self.carry(index, &transmit);
            } else if let Some(event) = self.sides[index].machine.poll_event() {
                if self.talk {
                    let text: String = format!("{event:?}").chars().take(150).collect();
                    println!("{:>12} side {index}: {text}", self.now.as_nanos());
                }
                self.on_event(index, event);
            } else {
                break;
            }
        }
    }

    fn carry(&mut self, from: usize, transmit: &Transmit) {
        let Some(to) = (0..2).find(|i| self.sides[*i].peer.gid == transmit.to.gid) else {
            return; // to a port that does not exist
        };
        let mad = Mad::parse(&transmit.mad[..]).expect("a machine sends what may stand on the wire");
        if self.talk {
            let text: String = format!("{:?}", mad.message).chars().take(150).collect();
            println!("{:>12} {from} -> {to}: {text}", self.now.as_nanos());
        }
        let lost = self.lost.entry((from, mad.transaction.0, mad.message.kind() as u16)).or_default();
        if *lost < LOSSES && self.rng.one_in(self.loss) {
            *lost += 1;
            return;
        }
        *lost = 0;
        let copies = if self.rng.one_in(8) { 2 } else { 1 };
        for _ in 0..copies {
            self.fly(to, self.sides[from].peer, transmit.mad.to_vec());
        }
        let connects = matches!(mad.message.kind(), Kind::Req | Kind::SidrReq);
        if !connects && self.rng.one_in(6) {
            // Somebody else, who knows the IDs: nothing may come of it.
            let stranger = Gid::from(Ipv4Addr::new(10, 0, 0, 99)).into();
            self.fly(to, stranger, transmit.mad.to_vec());
        }
        if self.plan.garbage && self.acting && self.rng.one_in(3) {
            let mut garbage = transmit.mad.to_vec();
            for _ in 0..=self.rng.below(6) {
                let at = self.rng.below(garbage.len() * 8);
                garbage[at / 8] ^= 1 << (at % 8);
            }
            if self.rng.one_in(20) {
                garbage = self.rng.bytes(300);
            }
            self.fly(to, self.sides[from].peer, garbage);
        }
    }
    fn fly(&mut self, to: usize, from: Peer, mad: Vec<u8>) {
        let delay = Duration::from_micros(self.rng.below(MAX_DELAY.as_micros() as usize) as u64 + 1);
        self.order += 1;
        self.flights.insert((self.now + delay, self.order), Flight { to, from, mad });
    }

    fn act(&mut self) {
        let index = self.rng.below(2);
        match self.rng.below(if self.plan.deaths { 24 } else { 22 }) {
            0..8 => self.connect(index),
            8..11 => self.resolve(index),
            11..16 => {
                let side = &mut self.sides[index];
                if !side.later.is_empty() {
                    let later = side.later.swap_remove(self.rng.below(side.later.len()));
                    self.decide(index, later, false);
                }
            }
            16..18 => {
                if let Some(id) = self.any(index, |c| c.view == View::Established) {
                    self.disconnect(index, id);
                }
            }
            18 => {
                if let Some(id) = self.any(index, |_| true) {
                    self.sides[index].machine.forget(self.now, id);
                    let conn = self.sides[index].conns.get_mut(&id).unwrap();
                    conn.forgotten = true;
                    let token = conn.token;
                    self.end(index, token, View::Ended);
                }
            }
            19 => {
                if let Some(id) = self.any(index, |c| c.view == View::Pending) {
                    let _ = self.sides[index].machine.delay(
                        self.now,
                        id,
                        CmTimeout::new(self.rng.below(20) as u8),
                    );
                }
            }
            20 => {
                let service = SERVICES[self.rng.below(LISTENED)];
                let side = &mut self.sides[index].machine;
                side.unlisten(self.now, service);
                side.listen(service, 1000).unwrap();
            }
            21 => {}
            _ => self.restart(index),
        }
        self.drain(index);
    }
    fn any(&mut self, index: usize, which: impl Fn(&Local) -> bool) -> Option<CommId> {
        let conns = self.sides[index].conns.iter().filter(|(_, c)| !c.forgotten && which(c));
        let ids: Vec<_> = conns.map(|(id, _)| *id).collect();
        (!ids.is_empty()).then(|| ids[self.rng.below(ids.len())])
    }
    fn restart(&mut self, index: usize) {
        self.restarts += 1;
        self.strange = true;
        let life = self.sides[index].life + 1;
        for conn in std::mem::take(&mut self.sides[index].conns).into_values() {
            self.end(index, conn.token, View::Ended);
        }
        self.sides[index] = side(index, self.tokens, life);
    }
    fn end(&mut self, index: usize, token: u64, view: View) {
        self.ended.entry(token).or_default()[index] = Some(view);
    }

    fn connect(&mut self, index: usize) {
        self.tokens += 1;
        let token = self.tokens;
        let to = self.sides[1 - index].peer;
        let side = &mut self.sides[index];
        let qpn = side.qpn();
        let request = Req {
            service_id: SERVICES[self.rng.below(SERVICES.len())],
            local_qpn: qpn,
            starting_psn: Psn::new(self.rng.next_u32()),
            remote_response_timeout: CmTimeout::new(15),
            local_response_timeout: CmTimeout::new(15),
            max_cm_retries: Bits::MAX,
            primary: Path { local_ack_timeout: AckTimeout::new(14), ..Path::default() },
            private_data: pattern(token, Kind::Req),
            ..Req::default()
        };
        match side.machine.connect(self.now, to, &request) {
            Ok(id) => {
                self.asked += 1;
                side.conns.insert(id, local(token, qpn));
            }
            Err(CmError::Full { .. }) => side.free_qpns.push(qpn),
            Err(e) => panic!("{e}"),
        }
    }
    fn resolve(&mut self, index: usize) {
        self.tokens += 1;
        let token = self.tokens;
        let to = self.sides[1 - index].peer;
        let service = SERVICES[self.rng.below(SERVICES.len())];
        let ask = Resolve {
            to,
            service,
            pkey: hca_core::Pkey::new(0xffff),
            timeout: CmTimeout::new(15),
            retries: 15,
            private_data: pattern(token, Kind::SidrReq),
        };
        let side = &mut self.sides[index];
        if let Ok(id) = side.machine.resolve(self.now, &ask) {
            side.resolving.insert(id, token);
        }
    }
    fn disconnect(&mut self, index: usize, id: CommId) {
        let side = &mut self.sides[index];
        let conn = side.conns.get_mut(&id).unwrap();
        if side.machine.disconnect(self.now, id, pattern(conn.token, Kind::Dreq)).is_ok() {
            conn.disconnecting = true;
        }
        self.drain(index);
    }

    /// The program's answer to something that waits. At last nothing waits any more.
    fn decide(&mut self, index: usize, later: Later, last: bool) {
        let choice = self.rng.below(10);
        let now = self.now;
        let side = &mut self.sides[index];
        match later {
            Later::Request(id) => {
                let Some(conn) = side.conns.get_mut(&id).filter(|c| !c.forgotten) else { return };
                match choice {
                    0 if !last => self.ignored = true,
                    1 => {
                        let data = pattern(conn.token, Kind::Rej);
                        if side.machine.reject(now, id, Reason::CONSUMER_DEFINED, Info::EMPTY, data).is_ok() {
                            conn.closing += 1;
                            let token = conn.token;
                            self.end(index, token, View::Ended);
                        }
                    }
                    _ => {
                        let rep = Rep {
                            local_qpn: conn.qpn,
                            private_data: pattern(conn.token, Kind::Rep),
                            ..Rep::default()
                        };
                        let _ = side.machine.accept(now, id, &rep);
                    }
                }
            }
            Later::Reply(id) => {
                let Some(conn) = side.conns.get_mut(&id).filter(|c| !c.forgotten) else { return };
                let token = conn.token;
                if choice == 0 {
                    let data = pattern(token, Kind::Rej);
                    if side.machine.reject(now, id, Reason::CONSUMER_DEFINED, Info::EMPTY, data).is_ok() {
                        conn.closing += 1;
                        self.end(index, token, View::Ended);
                    }
                } else if side.machine.ready(id, pattern(token, Kind::Rtu)).is_ok() {
                    conn.view = View::Established;
                    self.end(index, token, View::Established);
                }
            }
            Later::Sidr(id, token) => {
                let (qpn, qkey) = (Qpn::new(token as u32 | 2), Qkey::new(token as u32));
                let resolution = match choice {
                    0 => Resolution::Refused(Refusal::REJECTED),
                    _ => Resolution::Found { qpn, qkey },
                };
                let answer = SidrAnswer { resolution, private_data: pattern(token, Kind::SidrRep) };
                let _ = side.machine.answer(now, id, &answer);
            }
        }
    }

    fn later(&mut self, index: usize, later: Later) {
        if self.rng.one_in(3) {
            self.sides[index].later.push(later);
        } else {
            self.decide(index, later, false);
        }
    }
    fn same<const N: usize>(&self, got: PrivateData<N>, token: u64, kind: Kind) {
        assert!(self.plan.garbage || got == pattern(token, kind), "private data of {kind}: {got:?}");
    }
    fn closing(&mut self, index: usize, id: CommId) -> u64 {
        let conn = self.sides[index].conns.get_mut(&id).expect("an event of a known connection");
        assert!(!conn.forgotten, "an event of a forgotten connection");
        conn.closing += 1;
        assert_eq!(conn.closing, 1, "two closing events");
        conn.view = View::Ended;
        let token = conn.token;
        self.end(index, token, View::Ended);
        token
    }

    fn on_event(&mut self, index: usize, event: Event) {
        match event {
            Event::Request { id, request, from, service } => {
                assert!(SERVICES[..LISTENED].contains(&service) && service == request.service_id);
                assert_eq!(from, self.sides[1 - index].peer);
                let token = token_of(request.private_data.bytes());
                let first = self.sides[index].asked.insert(token);
                let forgot = self.forgot();
                let side = &mut self.sides[index];
                assert!(self.plan.garbage || forgot || first, "the program is asked twice");
                let qpn = side.qpn();
                side.conns.insert(id, local(token, qpn));
                self.same(request.private_data, token, Kind::Req);
                self.later(index, Later::Request(id));
            }
            Event::Reply { id, reply } => {
                let token = self.sides[index].conns[&id].token;
                self.same(reply.private_data, token, Kind::Rep);
                self.later(index, Later::Reply(id));
            }
            Event::Established { id, private_data } => {
                self.established += 1;
                let conn = self.sides[index].conns.get_mut(&id).unwrap();
                assert_eq!(conn.view, View::Pending);
                conn.view = View::Established;
                let token = conn.token;
                self.end(index, token, View::Established);
                self.same(private_data, token, Kind::Rtu);
            }
            Event::Rejected { id, reason, private_data, .. } => {
                let token = self.closing(index, id);
                if reason == Reason::CONSUMER_DEFINED && private_data != PrivateData::EMPTY {
                    self.same(private_data, token, Kind::Rej);
                }
                let stale = reason == Reason::STALE_CONNECTION;
                let excused = self.strange || self.plan.garbage || self.forgot();
                assert!(excused || !stale, "nobody died");
            }
            Event::Failed { id, failure } => {
                self.closing(index, id);
                self.check_failure(failure);
            }
            Event::Disconnected { id, cause, private_data } => {
                let token = self.closing(index, id);
                if cause == Cause::Peer && private_data != PrivateData::EMPTY {
                    self.same(private_data, token, Kind::Dreq);
                }
            }
            Event::DisconnectDone { id, answered, .. } => {
                assert!(self.sides[index].conns[&id].disconnecting || self.plan.garbage);
                self.closing(index, id);
                assert!(answered || self.strange || self.plan.garbage, "a peer that lives answers a DREQ");
            }
            Event::Gone { id } => {
                let side = &mut self.sides[index];
                let conn = side.conns.remove(&id).expect("the end comes once");
                assert_eq!(conn.closing, 1, "{conn:?} ends without a closing event");
                side.free_qpns.push(conn.qpn);
            }
            Event::SidrRequest { id, request, .. } => {
                let token = token_of(request.private_data.bytes());
                self.same(request.private_data, token, Kind::SidrReq);
                self.later(index, Later::Sidr(id, token));
            }
            Event::Resolved { id, resolution, private_data, .. } => {
                let token = self.sides[index].resolving.remove(&id).expect("an answer comes once");
                if let Resolution::Found { qpn, qkey } = resolution {
                    self.resolved += 1;
                    self.same(private_data, token, Kind::SidrRep);
                    assert!(
                        self.plan.garbage
                            || (qpn.raw() == (token as u32 | 2) & 0xff_ffff && qkey.raw() == token as u32)
                    );
                }
            }
            Event::Unresolved { id } => {
                self.sides[index].resolving.remove(&id).expect("an end comes once");
            }
            _ => {}
        }
    }
    /// A side has cut time-wait short, so that late messages may surprise the other one.
    fn forgot(&self) -> bool {
        self.sides.iter().any(|side| side.machine.counters().evicted > 0)
    }
    /// Among the living no message stays without an answer, unless a table or a backlog was full.
    fn check_failure(&self, failure: Failure) {
        let full = self.sides.iter().any(|side| side.machine.counters().backlog_full > 0);
        let excused = self.strange || self.plan.garbage;
        match failure {
            Failure::NoAnswer(kind) => {
                assert!(excused || kind == Kind::Req && (full || self.ignored), "{failure}");
            }
            Failure::Stale => assert!(excused || self.forgot(), "{failure}"),
            _ => {}
        }
    }

    /// Both programs see each connection in the same way.
    fn agree(&self) {
        if self.strange || self.plan.garbage {
            return;
        }
        for (token, views) in &self.ended {
            let established = views.map(|v| v == Some(View::Established));
            assert_eq!(established[0], established[1], "connection {token:#x}: {views:?}");
        }
    }
}

fn local(token: u64, qpn: Qpn) -> Local {
    Local { token, view: View::Pending, closing: 0, forgotten: false, disconnecting: false, qpn }
}
