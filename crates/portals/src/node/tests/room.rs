//! Posting of messages: limits of room, waiting messages, and the posts at the device.

use hca_core::WcStatus;

use super::super::Holdings;
use super::*;
use crate::v4::AckReq;

/// More than a request carries inline.
const ROOMY: usize = 512;

impl Bed {
    /// A node that has met the process, with this many places on its queue pairs.
    fn met(send_depth: u32, eager_bytes: usize) -> Self {
        let bed = Self::new(|o| NodeOptions { send_depth, eager_bytes, ..o });
        bed.meet(&Hello { eager_bytes: eager_bytes as u32, ..bed.hello(1, 1, 20) });
        assert_eq!(bed.look(|peer| peer.depth), send_depth);
        bed
    }
    /// Posts so many messages that say nothing.
    fn pings(&self, count: usize) {
        self.node.with(|state| {
            let peer = only(state);
            (0..count).for_each(|_| state.post(peer, Out::Ping));
        });
    }
    /// Whether completions are to be looked at, after so many more messages.
    fn is_crowded(&self, pings: usize) -> bool {
        self.node.with(|state| state.net.crowded = false);
        self.pings(pings);
        self.node.with(|state| state.net.crowded)
    }
    /// Posts an answer with so many bytes.
    fn answers(&self, len: usize) {
        let out = Out::Response { token: 1, response: NOTHING, data: vec![0; len] };
        self.node.with(|state| state.post(only(state), out));
    }
    fn unrung(&self) -> usize {
        self.node.with(|state| state.net.unrung.len())
    }
}

#[test]
fn a_queue_pair_that_is_half_full_has_its_completions_looked_at() {
    let bed = Bed::met(8, EAGER);
    assert!(!bed.is_crowded(4));
    assert_eq!(bed.look(|peer| peer.silent), 4);
    assert!(bed.is_crowded(1));
    assert_eq!(bed.look(|peer| (peer.outstanding(), peer.silent)), (5, 0), "its completion will tell");
    let other = Bed::met(8, EAGER);
    other.node.with(|state| state.net.crowded = true);
    other.pings(1);
    assert!(other.node.with(|state| state.net.crowded), "until they are looked at");
}

#[test]
fn a_completion_queue_that_is_half_full_is_looked_at_and_never_overruns() {
    let bed = Bed::met(64, EAGER);
    bed.node.with(|state| state.net.ports.budget = 8);
    assert!(!bed.is_crowded(4));
    assert!(bed.is_crowded(1));
    bed.pings(4);
    assert_eq!(bed.look(|peer| (peer.posted, peer.backlog.len())), (8, 1));
    // READs have no other places.
    let bed = Bed::met(64, EAGER);
    let (ni, ..) = interface(&bed.node);
    sides::takes(&bed.node, &ni, MeOptions::OP_PUT);
    bed.node.with(|state| state.net.ports.budget = 0);
    sides::hears_long_put(&bed.node, 2 * EAGER as u64);
    assert_eq!(bed.look(|peer| (peer.posted, peer.fetches.len(), peer.backlog.len())), (0, 1, 1));
}

#[test]
fn of_many_messages_each_sixteenth_tells() {
    let bed = Bed::met(128, EAGER);
    bed.pings(15);
    assert_eq!(bed.look(|peer| peer.silent), 15);
    bed.pings(1);
    assert_eq!(bed.look(|peer| peer.silent), 0);
}

#[test]
fn a_message_that_goes_with_its_request_takes_no_slot() {
    let bed = Bed::met(16, ROOMY);
    let most = bed.node.with(|state| state.net.ports.max_inline)
        - Head::response(1, &NOTHING, None).as_bytes().len();
    bed.answers(most);
    assert_eq!((bed.look(|peer| peer.posted), bed.node.holdings().slots), (1, 0));
    bed.answers(most + 1);
    assert_eq!((bed.look(|peer| peer.posted), bed.node.holdings().slots), (2, 1));
}

#[test]
fn what_a_queue_pair_does_not_take_waits() {
    let bed = Bed::met(8, EAGER);
    // More than it has.
    bed.node.with(|state| state.net.peer(only(state)).depth = 100);
    bed.pings(12);
    let (posted, waiting) = bed.look(|peer| (peer.posted, peer.backlog.len()));
    assert_eq!((posted, waiting), (8, 4));
    let backlog = |bed: &Bed| bed.node.with(|state| state.blocked.clone());
    assert_eq!(backlog(&bed), [0], "once");
    // Who is still to be met is posted to then.
    let bed = Bed::new(|o| o);
    let (ni, md, _) = interface(&bed.node);
    let to = bed.list();
    (0..2).for_each(|_| ni.put(&Put::new(md, 8, to, 0)).unwrap());
    assert_eq!((bed.look(|peer| peer.backlog.len()), backlog(&bed).len()), (2, 0));
}

#[test]
fn a_completion_has_its_own_peer_post_and_one_that_waits_for_room() {
    let bed = Bed::new(|o| NodeOptions { send_depth: 8, ..o });
    let hello = bed.hello(1, 1, 20);
    for pid in [7, 8] {
        let hello = Hello { from: Identity { pid: Pid(pid), ..hello.from }, ..hello };
        bed.deliver(hello.endpoint.gid, &hello);
    }
    bed.node.with(|state| {
        for peer in 0..2 {
            state.is_up(peer);
            (0..9).for_each(|_| state.post(peer, Out::Ping));
        }
        state.ready.clear();
        assert_eq!(state.blocked, [0, 1]);
        let qp = state.net.peer(1).handle.unwrap();
        state.request_done(&Completion { qp, wr_id: 1, status: WcStatus::Success, ..Completion::default() });
        assert_eq!(state.ready, [1, 0]);
        assert_eq!(state.net.peer(1).outstanding(), 7);
    });
}

#[test]
fn what_is_posted_in_a_bundle_leaves_at_its_end() {
    let bed = Bed::met(64, ROOMY);
    let ni =
        Ni::init(&bed.node, NiOptions::MATCHING | NiOptions::PHYSICAL, None, &Limits::default()).unwrap();
    let md = ni.md_bind(&Md::new(bed.node.alloc(ROOMY).unwrap())).unwrap();
    let bundles = || bed.node.with(|state| state.net.bundles);
    let to = bed.list();
    // In its request, and out of a slot.
    for length in [8, ROOMY as u64] {
        let put = || ni.put(&Put::new(md, length, to, 0)).unwrap();
        let posted = bed.look(|peer| peer.posted);
        put();
        ni.end_bundle();
        assert_eq!((bed.unrung(), bundles()), (0, 0), "there is none");
        ni.start_bundle();
        ni.start_bundle();
        put();
        put();
        assert_eq!((bed.unrung(), bundles()), (1, 2));
        ni.end_bundle();
        assert_eq!((bed.unrung(), bundles()), (0, 1));
        put();
        assert_eq!((bed.unrung(), bundles()), (1, 1));
        ni.end_bundle();
        assert_eq!((bed.unrung(), bundles()), (0, 0));
        put();
        assert_eq!((bed.unrung(), bed.look(|peer| peer.posted)), (0, posted + 5));
    }
    (0..2).for_each(|_| ni.start_bundle());
    let (other, ..) = interface_of(&bed.node, NiOptions::NO_MATCHING | NiOptions::PHYSICAL);
    other.start_bundle();
    assert_eq!(bundles(), 3);
    drop(ni);
    assert_eq!(bundles(), 1, "those of an interface that is closed have ended");
}

/// Two nodes of one simulation that speak to each other.
struct Two<'a> {
    bed: &'a Bed,
    target: Node,
    there: Ni,
    to: Process,
}

impl<'a> Two<'a> {
    fn new(bed: &'a Bed, with: impl Fn(NodeOptions) -> NodeOptions) -> Self {
        let target = open(&bed.sim, THERE, &bed.cards, with);
        let (there, ..) = interface(&target);
        sides::takes(&target, &there, MeOptions::OP_PUT | MeOptions::OP_GET);
        let to = Process::physical(target.card().nid, target.card().pid);
        Self { bed, target, there, to }
    }
    fn pass(&self) {
        self.bed.sim.run_for(Duration::from_millis(1)).unwrap();
    }
    /// Gets, until the answer is here.
    fn get(&self, (ni, md, ct): &(Ni, MdHandle, CtHandle)) {
        let before = ni.ct_get(*ct).unwrap().success;
        ni.get(&Get::new(*md, 8, self.to, 0)).unwrap();
        for _ in 0..1000 {
            if ni.ct_get(*ct).unwrap().success > before {
                return;
            }
            self.pass();
            (0..33).for_each(|_| _ = self.target.progress());
        }
        panic!("no answer comes");
    }
}

#[test]
fn answers_leave_though_a_bundle_is_open() {
    let bed = Bed::new(|o| o);
    let two = Two::new(&bed, |o| o);
    let ends = interface(&bed.node);
    two.get(&ends);
    let (ni, md, ct) = &ends;
    two.there.start_bundle();
    ni.get(&Get::new(*md, 8, two.to, 0)).unwrap();
    two.pass();
    assert!(two.target.progress());
    two.pass();
    assert_eq!(ni.ct_get(*ct).unwrap().success, 2);
}

#[test]
fn a_program_that_only_sends_has_its_completions_taken() {
    let bed = Bed::new(|o| NodeOptions { send_depth: 8, ..o });
    let two = Two::new(&bed, |o| o);
    let ends = interface(&bed.node);
    two.get(&ends);
    for _ in 0..40 {
        ends.0.put(&Put::new(ends.1, 8, two.to, 0)).unwrap();
        two.pass();
    }
    let (outstanding, waiting) = bed.look(|peer| (peer.outstanding(), peer.backlog.len()));
    assert!(outstanding <= 5 && waiting == 0, "{outstanding} outstanding, {waiting} waiting");
}

#[test]
fn receive_slots_are_given_back_four_at_a_time_of_few() {
    let bed = Bed::new(|o| o);
    let two = Two::new(&bed, |o| NodeOptions { receive_slots: 16, ..o });
    let ends = interface(&bed.node);
    two.get(&ends);
    let used = || two.target.with(|state| state.net.ports.used_slots().len());
    for _ in 0..12 {
        let before = used();
        ends.0.put(&Put::new(ends.1, 8, two.to, 0)).unwrap();
        two.pass();
        assert!(two.target.progress());
        assert_eq!(used(), (before + 1) % 4);
    }
}

#[test]
fn progress_tells_whether_anything_came() {
    let bed = Bed::new(|o| o);
    let two = Two::new(&bed, |o| o);
    let ends = interface(&bed.node);
    two.get(&ends);
    let now = || two.target.now();
    let looks = |looks: u32, timer: Instant| {
        two.target.with(|state| {
            (state.looks, state.timer) = (looks, Some(timer));
            state.progress()
        })
    };
    // Each 32nd look that finds nothing is at the timers, too.
    let later = now() + Duration::from_secs(60);
    assert!(!looks(0, later) && !looks(31, later) && !looks(0, now()));
    assert!(looks(31, now()));
    for before in [0, 31] {
        ends.0.put(&Put::new(ends.1, 8, two.to, 0)).unwrap();
        two.pass();
        let later = now() + Duration::from_secs(60);
        assert!(looks(before, later), "a put has come");
        assert!(!looks(before, later));
    }
}

/// As the device runs it.
#[test]
fn a_run_tells_whether_anything_came_or_was_due() {
    use hca_core::OffloadEngine;
    let bed = Bed::new(|o| o);
    let runs = |timer: Duration| {
        bed.node.with(|state| (state.looks, state.timer) = (0, Some(state.clock.now() + timer)));
        bed.node.inner.run()
    };
    let (now, later) = (Duration::ZERO, Duration::from_secs(60));
    assert!(!runs(later));
    assert!(runs(now), "a timer was due");
    // A hello that is sent completes.
    let hello = bed.hello(1, 1, 20);
    bed.deliver(hello.endpoint.gid, &hello);
    while bed.node.progress() {}
    for timer in [later, now] {
        bed.deliver(hello.endpoint.gid, &hello);
        bed.sim.run_for(Duration::from_millis(1)).unwrap();
        assert!(runs(timer));
    }
}

#[test]
fn holdings_name_all_that_is_under_way() {
    let bed = Bed::met(64, ROOMY);
    assert!(bed.node.holdings().is_at_rest());
    let (ni, md, _) = interface(&bed.node);
    sides::takes(&bed.node, &ni, MeOptions::OP_PUT | MeOptions::OP_GET);
    sides::hears_long_put(&bed.node, 2 * ROOMY as u64);
    sides::hears_long_get(&bed.node, 2 * ROOMY as u64);
    let put = Put { ack_req: AckReq::Ack, ..Put::new(md, 8, bed.list(), 0) };
    ni.put(&put).unwrap();
    bed.answers(ROOMY);
    bed.node.with(|state| state.net.peer(only(state)).replies = WINDOW);
    ni.put(&put).unwrap();
    bed.node.with(|state| {
        state.net.peer(only(state)).replies = 0;
        state.net.ports.budget = 0;
    });
    bed.pings(1);
    let holds = Holdings {
        peers: 1,
        flying: 1,
        waiting: 1,
        fetches: 1,
        lendings: 1,
        backlog: 1,
        slots: 1,
        slots_of_peers: 1,
        in_use: 4,
        outstanding: 4,
    };
    assert_eq!(bed.node.holdings(), holds);
    assert!(!holds.is_at_rest());
    let posted = Holdings { in_use: 1, outstanding: 1, ..Holdings::default() };
    assert!(posted.is_at_rest());
    assert!(!Holdings { in_use: 2, ..posted }.is_at_rest(), "one is nobody's");
}

/// Each piece of a vector is a READ of its own: many of few puts are no more operations than the window has.
#[test]
fn reads_that_wait_are_no_answers_that_a_peer_owes() {
    const PIECES: usize = 32;
    const PUTS: u32 = 200;
    let bed = Bed::met(8, ROOMY);
    let (ni, ..) = interface(&bed.node);
    sides::takes(&bed.node, &ni, MeOptions::OP_PUT);
    let piece = Piece { at: RemoteAddr { addr: 0, rkey: Rkey::new(1) }, len: 32 };
    let header = Header { operation: Operation::Put, ack: AckRequest::Full, ..Header::default() };
    bed.node.with(|state| {
        let (peer, kind) = (only(state), kind(state));
        let long = Header { length: (PIECES * 32) as u64, ..header };
        for token in 1..=PUTS {
            let head = Head::request(kind, token, &long, &[0; 32], true);
            state.heard(peer, &[head.as_bytes(), &piece.to_bytes().repeat(PIECES)].concat());
        }
        let head = Head::request(kind, PUTS + 1, &header, &[0; 32], false);
        state.heard(peer, head.as_bytes());
    });
    assert_eq!((bed.node.counts().malformed, bed.node.connections()), (0, 1));
    let (fetches, backlog) = bed.look(|peer| (peer.fetches.len(), peer.backlog.len()));
    assert_eq!((fetches, backlog), (PUTS, PUTS as usize * PIECES - 8 + 1));
}
