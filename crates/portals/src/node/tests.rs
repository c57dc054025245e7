//! A node's handling of processes that lie, ask for too much or restart, and the order of its messages: each rule by
//! itself; and that no thread waits for a device under the node's lock. Where only the other process's messages matter,
//! the test hands its hellos and messages to the node as the node's ports do.

mod gated;
mod meets;
mod room;
mod sides;
mod signals;
mod waits;

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use hca_core::{Completion, Gid, Instant, Mtu, Psn, QpType, Qpn, RemoteAddr, Rkey};
use hca_matching::{AckRequest, Header, Jid, NiFail, Operation, Pid, Rank, Response, ResponseKind, Uid};
use hca_sim::Sim;
use hca_verbs::{ConnectOptions, Context, Endpoint, Grh, Rc};

use gated::{Call, Gate, Gated, Opens};

use super::directory::nid_of;
use super::hello::{Hello, Identity};
use super::peer::{Out, Peer, Stage, WINDOW};
use super::post::NOTHING;
use super::{Card, Clock, Listed, Node, NodeOptions, State};
use crate::Memory;
use crate::v4::{
    AckReq, CtHandle, EventKind, Get, Limits, ListKind, Md, MdHandle, MdOptions, Me, MeOptions, Ni,
    NiOptions, Process, PtOptions, Put,
};
use crate::wire::{Head, Piece};

const EAGER: usize = 64;
const KEY: u64 = 7;
/// The process number of the one that is only what it says.
const PID: Pid = Pid(7);
/// The node of the simulation on which that process is.
const THERE: usize = 1;

/// Nodes of a simulation, the first with a Portals node on it.
struct Bed {
    sim: Sim,
    cards: Arc<Mutex<Listed>>,
    node: Node,
    /// Where the node's calls of its device can be held up.
    gate: Arc<Gate>,
}

impl Bed {
    fn new(with: impl Fn(NodeOptions) -> NodeOptions) -> Self {
        let sim = Sim::new(1);
        (0..3).for_each(|_| drop(sim.add_node()));
        let cards = Arc::new(Mutex::new(Listed::default()));
        let gate = Arc::<Gate>::default();
        let device = Gated { of: Arc::clone(sim.node(0).context().device()), gate: Arc::clone(&gate) };
        let node = open_on(&Context::with_seed(Arc::new(device), 1), &sim, 0, &cards, with);
        Self { sim, cards, node, gate }
    }
    fn gid(&self, n: usize) -> Gid {
        self.sim.node(n).context().port().gid
    }
    /// A hello of the process that is only what it says.
    fn hello(&self, incarnation: u64, attempt: u32, qpn: u32) -> Hello {
        let port = self.sim.node(THERE).context().port();
        let (qpn, psn) = (Qpn::new(qpn), Psn::new(0));
        let (service, mtu, rd_atomic) = (QpType::Rc, Mtu::B1024, 16);
        let endpoint = Endpoint { service, qpn, psn, mtu, rd_atomic, gid: port.gid, lid: port.lid };
        let (nid, rank) = (nid_of(port.gid), Rank(1));
        let from = Identity { nid, pid: PID, rank, uid: Uid(5), jid: Jid(0), incarnation };
        let (datagrams, eager_bytes) = (Qpn::new(9), EAGER as u32);
        Hello { from, key: KEY, endpoint, attempt, datagrams, peer_qpn: None, is_up: false, eager_bytes }
    }
    /// The node hears a hello, from this address.
    fn deliver(&self, sgid: Gid, hello: &Hello) {
        self.hears(sgid, *hello)();
    }
    /// The same, on another thread.
    fn hears(&self, sgid: Gid, hello: Hello) -> impl FnOnce() + Send + use<> {
        let grh = Grh { sgid, dgid: self.gid(0), traffic_class: 0, hop_limit: 64 };
        let node = self.node.clone();
        move || node.with(|state| state.hear_hello(&grh, &hello.to_bytes()))
    }
    /// The process and the node meet.
    fn meet(&self, hello: &Hello) {
        self.deliver(hello.endpoint.gid, hello);
        let peer_qpn = Some(self.look(|peer| peer.ours.unwrap().qpn));
        self.deliver(hello.endpoint.gid, &Hello { peer_qpn, is_up: true, ..*hello });
        assert!(self.look(|peer| peer.is_up()));
    }
    /// The process can be found.
    fn list(&self) -> Process {
        let Hello { from: Identity { nid, pid, .. }, datagrams, endpoint, .. } = self.hello(1, 1, 20);
        let Endpoint { gid, lid, .. } = endpoint;
        self.cards.lock().unwrap().0.push(Card { nid, pid, gid, lid, datagrams });
        Process::physical(nid, pid)
    }
    /// Does something that is held up in a call of the device, and meanwhile something else.
    fn meanwhile(&self, call: Call, what: impl FnOnce() + Send, meanwhile: impl FnOnce()) {
        self.gate.close(call);
        thread::scope(|scope| {
            let opens = Opens(&self.gate);
            let held = scope.spawn(what);
            self.gate.wait();
            let lock = self.node.inner.state.try_lock();
            assert!(lock.is_some(), "the node's lock is held during {call:?}");
            assert!(!lock.unwrap().unlock());
            meanwhile();
            drop(opens);
            held.join().unwrap();
        });
    }
    /// Looks at the node's only peer.
    fn look<R>(&self, f: impl FnOnce(&Peer) -> R) -> R {
        self.node.with(|state| f(state.net.peer(only(state))))
    }
}

/// The number of a node's only peer.
fn only(state: &State) -> u32 {
    let known: Vec<usize> = (0..state.net.peers.len()).filter(|&i| state.net.peers[i].is_some()).collect();
    assert_eq!(known.len(), 1, "peers");
    known[0] as u32
}

/// The kind of a node's only interface, as messages name it.
fn kind(state: &State) -> u8 {
    state.nis.iter().position(Option::is_some).expect("one is open") as u8
}

fn open(sim: &Sim, n: usize, cards: &Arc<Mutex<Listed>>, with: impl Fn(NodeOptions) -> NodeOptions) -> Node {
    open_on(&sim.node(n).context(), sim, n, cards, with)
}

fn open_on(
    context: &Context,
    sim: &Sim,
    n: usize,
    cards: &Arc<Mutex<Listed>>,
    with: impl Fn(NodeOptions) -> NodeOptions,
) -> Node {
    let net = sim.net().clone();
    let options = NodeOptions {
        eager_bytes: EAGER,
        offload: false,
        rank: Some(Rank(n as u32)),
        key: KEY,
        directory: cards.clone(),
        clock: Some(Arc::new(move || net.now().since(Instant::ZERO))),
        seed: Some(n as u64),
        ..NodeOptions::default()
    };
    let node = Node::open(context, with(options)).unwrap();
    cards.lock().unwrap().0.push(node.card());
    node
}

/// An interface, and a descriptor whose answers are counted.
fn interface(node: &Node) -> (Ni, MdHandle, CtHandle) {
    interface_of(node, NiOptions::MATCHING | NiOptions::PHYSICAL)
}

fn interface_of(node: &Node, kind: NiOptions) -> (Ni, MdHandle, CtHandle) {
    let ni = Ni::init(node, kind, None, &Limits::default()).unwrap();
    let ct = ni.ct_alloc().unwrap();
    let options = MdOptions::EVENT_CT_REPLY | MdOptions::EVENT_CT_ACK;
    let md = Md { options, ct: Some(ct), ..Md::new(node.alloc(64).unwrap()) };
    let md = ni.md_bind(&md).unwrap();
    (ni, md, ct)
}

#[test]
fn a_node_says_what_it_was_opened_as() {
    let bed = Bed::new(|o| NodeOptions { jid: Jid(4), uid: Uid(6), receive_slots: 30, send_slots: 9, ..o });
    let node = &bed.node;
    assert_eq!((node.rank(), node.jid(), node.uid()), (Some(Rank(0)), Jid(4), Uid(6)));
    assert!(!node.is_offloaded());
    // A piece is named by 16 bytes.
    assert_eq!((node.max_pieces(), node.max_exchange()), (EAGER as u32 / 16, EAGER as u32));
    let one = |receive_slots, send_slots| {
        NodeOptions { receive_slots, send_slots, ..node.options().clone() }.slot_bytes()
    };
    assert!(one(1, 0) >= EAGER as u64);
    assert_eq!((one(30, 9), one(0, 3)), (39 * one(1, 0), 3 * one(0, 1)));
    let (first, second) = (node.draw(), node.draw());
    assert!(first != second && first > 1 && second > 1);
    let before = node.now();
    bed.sim.run_for(Duration::from_millis(3)).unwrap();
    assert_eq!(node.now().since(before), Duration::from_millis(3));
    let alone = Bed::new(|o| NodeOptions { rank: None, ..o });
    assert_eq!(alone.node.rank(), None);
}

#[test]
fn nodes_that_are_opened_together_find_each_other_by_rank() {
    let sim = Sim::new(1);
    (0..3).for_each(|_| drop(sim.add_node()));
    let contexts: Vec<Context> = (0..3).map(|n| sim.node(n).context().clone()).collect();
    let options = NodeOptions { eager_bytes: EAGER, offload: false, seed: Some(1), ..NodeOptions::default() };
    let nodes = Node::open_all(&contexts, &options).unwrap();
    assert_eq!(nodes.len(), 3);
    for (n, node) in (0..).zip(&nodes) {
        assert_eq!(node.rank(), Some(Rank(n)));
        for (other, of) in (0..).zip(&nodes) {
            assert_eq!(node.options().directory.by_rank(Rank(other)).unwrap(), of.card());
        }
    }
}

#[test]
fn a_hello_whose_address_is_not_its_senders_is_a_strangers() {
    let bed = Bed::new(|options| options);
    let (there, other, here) = (bed.gid(THERE), bed.gid(2), bed.gid(0));
    let hello = bed.hello(1, 1, 20);
    let with = |gid: Gid, of: Gid| Hello {
        endpoint: Endpoint { gid, ..hello.endpoint },
        from: Identity { nid: nid_of(of), ..hello.from },
        ..hello
    };
    let itself =
        Hello { from: Identity { pid: bed.node.card().pid, ..with(here, here).from }, ..with(here, here) };
    let lies = [
        (there, with(other, there)),
        (there, with(there, other)),
        (there, with(other, other)),
        (here, itself),
    ];
    for (told, (sender, lie)) in (1..).zip(lies) {
        bed.deliver(sender, &lie);
        assert_eq!((bed.node.counts().strangers, bed.node.connections()), (told, 0), "{lie:?} of {sender}");
    }
    bed.deliver(there, &hello);
    assert_eq!((bed.node.counts().strangers, bed.node.connections()), (4, 1));
}

/// The process begins its count of queue pairs anew, so that it may be at any number.
#[test]
fn a_hello_of_another_incarnation_ends_what_its_predecessor_had() {
    for (attempt, is_up) in [(1, true), (2, true), (3, true), (1, false), (2, false), (3, false)] {
        let bed = Bed::new(|options| options);
        let (before, after) = (bed.hello(1, 2, 20), bed.hello(2, attempt, 21));
        let (to, gid) = (bed.list(), before.endpoint.gid);
        if is_up {
            bed.meet(&before);
        } else {
            bed.deliver(gid, &before);
        }
        let (ni, md, ct) = interface(&bed.node);
        let put = Put { ack_req: AckReq::Ack, ..Put::new(md, 8, to, 0) };
        ni.put(&put).unwrap();
        bed.deliver(gid, &after);
        let theirs = bed.look(|peer| peer.theirs);
        assert_eq!(theirs, Some((after.endpoint, attempt)), "attempt {attempt}, up: {is_up}");
        assert_eq!((bed.node.counts().lost, ni.ct_get(ct).unwrap().failure), (1, 1));
        assert!(!bed.look(|peer| peer.is_up()), "it knows nothing of this side yet");
    }
}

#[test]
fn long_puts_beyond_their_senders_window_are_dropped() {
    const BEYOND: u32 = 3;
    let bed = Bed::new(|options| NodeOptions { send_depth: 8, ..options });
    bed.meet(&bed.hello(1, 1, 20));
    let (ni, ..) = interface(&bed.node);
    ni.pt_alloc(PtOptions::empty(), None, Some(0)).unwrap();
    let me = Me { options: MeOptions::OP_PUT, ..Me::new(bed.node.alloc(4096).unwrap()) };
    ni.me_append(0, &me, ListKind::Priority, 0).unwrap();
    let length = 2 * EAGER as u64;
    let (operation, ack) = (Operation::Put, AckRequest::Full);
    let header = Header { operation, ack, length, ..Header::default() };
    let piece = Piece { at: RemoteAddr { addr: 0, rkey: Rkey::new(1) }, len: length as u32 };
    bed.node.with(|state| {
        let (peer, kind) = (only(state), kind(state));
        for token in 1..=WINDOW + BEYOND {
            let head = Head::request(kind, token, &header, &[0; 32], true);
            state.heard(peer, &[head.as_bytes(), &piece.to_bytes()].concat());
        }
        let of = state.peer(peer);
        assert_eq!(of.fetches.len(), WINDOW);
        // This side's own fetches have places in its own window.
        for (replies, is_full) in [(1, false), (0, true)] {
            of.replies = replies;
            assert_eq!(of.is_full_of_puts(), is_full);
        }
        let dropped = of.backlog.iter().filter_map(|out| match out {
            Out::Response { token, response, .. } if response.fail == NiFail::Dropped => Some(*token),
            _ => None,
        });
        assert!(dropped.eq(WINDOW + 1..=WINDOW + BEYOND), "those are told so");
    });
    assert_eq!(bed.node.counts().malformed, 0);
}

#[test]
fn operations_that_no_message_has_room_for_are_refused() {
    let bed = Bed::new(|o| o);
    let to = bed.list();
    let ni =
        Ni::init(&bed.node, NiOptions::MATCHING | NiOptions::PHYSICAL, None, &Limits::default()).unwrap();
    let bind = |options| ni.md_bind(&Md { options, ..Md::new(bed.node.alloc(1024).unwrap()) }).unwrap();
    let (plain, volatile) = (bind(MdOptions::empty()), bind(MdOptions::VOLATILE));
    let put =
        |md, length, pt_index| ni.put(&Put::new(md, length, to, pt_index)).map_err(|error| error.to_string());
    let (most, eager) = (u32::from(u16::MAX), EAGER as u64);
    assert_eq!((put(plain, 8, most), put(plain, 8, 0)), (Ok(()), Ok(())));
    let refused = put(plain, 8, most + 1).unwrap_err();
    assert!(refused.contains("pt_index") && refused.contains("65535"), "{refused}");
    // Longer ones are fetched, but for those whose bytes may change as soon as the call returns.
    assert_eq!([eager, eager + 1].map(|length| put(plain, length, 0)), [Ok(()), Ok(())]);
    assert_eq!(put(volatile, eager, 0), Ok(()));
    let refused = put(volatile, eager + 1, 0).unwrap_err();
    assert!(refused.contains("length") && refused.contains("64"), "{refused}");
    bed.node.with(|state| state.device_failed(&"it is gone"));
    let refused = put(plain, 8, 0).unwrap_err();
    assert!(refused.contains("device"), "{refused}");
}

/// A node that has asked something of a process which is only what it says, its counter and the memory for what comes.
fn asked(operation: Operation) -> (Bed, Ni, CtHandle, Memory) {
    let bed = Bed::new(|o| o);
    let to = bed.list();
    bed.meet(&bed.hello(1, 1, 20));
    let ni =
        Ni::init(&bed.node, NiOptions::MATCHING | NiOptions::PHYSICAL, None, &Limits::default()).unwrap();
    let (ct, memory) = (ni.ct_alloc().unwrap(), bed.node.alloc(64).unwrap());
    let options = MdOptions::EVENT_CT_REPLY | MdOptions::EVENT_CT_ACK;
    let md = ni.md_bind(&Md { options, ct: Some(ct), ..Md::new(memory.clone()) }).unwrap();
    match operation {
        Operation::Get => ni.get(&Get::new(md, 8, to, 0)).unwrap(),
        _ => ni.put(&Put { ack_req: AckReq::Ack, ..Put::new(md, 8, to, 0) }).unwrap(),
    }
    (bed, ni, ct, memory)
}

/// The peer answers an operation of this node, by the number that it has or by another one.
fn answers(bed: &Bed, response: &Response, data: usize, to_another: bool) {
    bed.node.with(|state| {
        let peer = only(state);
        let flying = &mut state.peer(peer).flying;
        let token = (0..u32::MAX).find(|token| flying.get_mut(*token).is_some()).unwrap();
        state.hear_response(peer, token + u32::from(to_another), response, &vec![0x77; data]);
    });
}

#[test]
fn an_answer_that_does_not_go_with_its_operation_ends_the_connection_and_writes_nothing() {
    use Operation::{Get, Put};
    use ResponseKind::{Ack, Reply};
    for (operation, kind, mlength, data, to_another) in [
        (Get, Ack, 8, 0, false),
        (Get, Reply, 9, 9, false),
        (Get, Reply, 8, 7, false),
        (Get, Reply, 7, 8, false),
        (Get, Reply, 8, 8, true),
        (Put, Reply, 8, 8, false),
        (Put, Reply, 0, 0, false),
        (Put, Ack, 9, 0, false),
        (Put, Ack, 8, 8, false),
    ] {
        let case = (operation, kind, mlength, data, to_another);
        let (bed, ni, ct, memory) = asked(operation);
        answers(
            &bed,
            &Response { kind, fail: NiFail::Ok, mlength, offset: 0, list: ListKind::Priority },
            data,
            to_another,
        );
        assert_eq!((bed.node.counts().malformed, bed.node.connections()), (1, 0), "{case:?}");
        bed.sim.run_for(Duration::from_millis(1)).unwrap();
        (0..4).for_each(|_| _ = bed.node.progress());
        let count = ni.ct_get(ct).unwrap();
        assert_eq!((count.success, count.failure), (0, 1), "{case:?}: it failed as its peer was let go");
        let mut seen = [0xff; 64];
        memory.read_at(0, &mut seen);
        assert_eq!(seen, [0; 64], "{case:?}");
    }
    for (operation, kind, data) in [(Get, Reply, 8), (Put, Ack, 0)] {
        let (bed, ni, ct, memory) = asked(operation);
        answers(
            &bed,
            &Response { kind, fail: NiFail::Ok, mlength: 8, offset: 0, list: ListKind::Priority },
            data,
            false,
        );
        assert_eq!((bed.node.counts().malformed, ni.ct_get(ct).unwrap().success), (0, 1), "{operation:?}");
        let mut seen = [0; 8];
        memory.read_at(0, &mut seen);
        assert_eq!(seen, [if data > 0 { 0x77 } else { 0 }; 8], "{operation:?}");
    }
}

/// Its answers would fill this node's memory: short ones in the backlog, long ones as memory that is lent for ever.
#[test]
fn a_peer_that_asks_for_more_than_its_window_is_let_go() {
    for (length, most) in [(8, WINDOW + 8), (2 * EAGER as u64, WINDOW)] {
        let bed = Bed::new(|options| NodeOptions { send_depth: 8, ..options });
        bed.meet(&bed.hello(1, 1, 20));
        let (ni, ..) = interface(&bed.node);
        ni.pt_alloc(PtOptions::empty(), None, Some(0)).unwrap();
        let me = Me { options: MeOptions::OP_GET, ..Me::new(bed.node.alloc(4096).unwrap()) };
        ni.me_append(0, &me, ListKind::Priority, 0).unwrap();
        let header = Header { operation: Operation::Get, length, ..Header::default() };
        let heard = bed.node.with(|state| {
            let (peer, kind) = (only(state), kind(state));
            (1..=2 * most).find(|&token| {
                let head = Head::request(kind, token, &header, &[0; 32], false);
                state.heard(peer, head.as_bytes());
                state.net.peers[peer as usize].is_none()
            })
        });
        assert_eq!(heard, Some(most + 1), "gets of {length} bytes");
        assert_eq!((bed.node.counts().malformed, bed.node.connections()), (1, 0));
        assert!(bed.node.holdings().is_at_rest(), "{:?}", bed.node.holdings());
    }
}

#[test]
fn a_process_that_does_not_answer_is_greeted_ever_more_seldom_and_given_up_at_its_time() {
    let bed = Bed::new(|o| NodeOptions { connect_timeout: Duration::from_secs(4), ..o });
    let to = bed.list();
    let (ni, md, ct) = interface(&bed.node);
    ni.put(&Put { ack_req: AckReq::Ack, ..Put::new(md, 8, to, 0) }).unwrap();
    let begin = bed.node.now();
    let (mut greeted, mut failed) = (Vec::new(), None);
    while failed.is_none() {
        bed.sim.run_for(Duration::from_millis(1)).unwrap();
        (0..4).for_each(|_| _ = bed.node.progress());
        let since = bed.node.now().since(begin).as_millis();
        assert!(since < 10_000, "it waits for ever");
        let tries = bed.node.with(|state| match state.net.peers.iter().flatten().next().map(|p| &p.stage) {
            Some(Stage::Connecting(meeting)) => meeting.tries as usize,
            _ => greeted.len(),
        });
        assert!(tries <= greeted.len() + 1, "two at a time");
        if tries > greeted.len() {
            greeted.push(since);
        }
        failed = (ni.ct_get(ct).unwrap().failure == 1).then_some(since);
    }
    let waits: Vec<u128> = greeted.windows(2).map(|two| two[1] - two[0]).collect();
    let doubled = [20, 40, 80, 160, 320, 640, 1000, 1000];
    let near = |is: u128, by: u128| (by - 2..by + 10).contains(&is);
    assert!(waits.len() == 8 && waits.iter().zip(doubled).all(|(is, by)| near(*is, by)), "{waits:?}");
    assert!(near(failed.unwrap(), 4000), "{failed:?}");
}

#[test]
fn a_put_does_not_overtake_operations_that_wait_for_the_window() {
    const MORE: u32 = 2;
    let roomy = |options| NodeOptions { send_depth: 2 * WINDOW, receive_slots: 2 * WINDOW, ..options };
    let bed = Bed::new(roomy);
    let target = open(&bed.sim, THERE, &bed.cards, roomy);
    let (ni, md, ct) = interface(&bed.node);
    let (there, ..) = interface(&target);
    let eq = there.eq_alloc(4 * WINDOW).unwrap();
    there.pt_alloc(PtOptions::empty(), Some(eq), Some(0)).unwrap();
    let options = MeOptions::OP_PUT | MeOptions::OP_GET | MeOptions::EVENT_LINK_DISABLE;
    let me = Me { options, ..Me::new(target.alloc(64).unwrap()) };
    there.me_append(0, &me, ListKind::Priority, 0).unwrap();
    let until = |wanted: u64| {
        for _ in 0..10_000 {
            if ni.ct_get(ct).unwrap().success == wanted {
                return;
            }
            bed.sim.run_for(Duration::from_micros(20)).unwrap();
            for node in [&bed.node, &target] {
                (0..33).for_each(|_| _ = node.progress());
            }
        }
        panic!("{:?} of {wanted}", ni.ct_get(ct));
    };
    let to = Process::physical(target.card().nid, target.card().pid);
    let gets = WINDOW + MORE;
    ni.get(&Get::new(md, 8, to, 0)).unwrap();
    until(1);
    (0..gets).for_each(|_| ni.get(&Get::new(md, 8, to, 0)).unwrap());
    let (clear, waiting) = bed.look(|peer| (peer.is_clear(), peer.waiting.len()));
    assert_eq!((clear, waiting), (true, MORE as usize), "all that the window has room for has left");
    ni.put(&Put::new(md, 8, to, 0)).unwrap();
    ni.put(&Put { ack_req: AckReq::Ack, ..Put::new(md, 8, to, 0) }).unwrap();
    until(u64::from(1 + gets + 1));
    let kinds: Vec<_> = std::iter::from_fn(|| there.eq_get(eq).unwrap()).map(|got| got.event.kind).collect();
    let first = kinds.iter().position(|&kind| kind == EventKind::Put);
    assert_eq!((first, kinds.len()), (Some(1 + gets as usize), gets as usize + 3));
}

/// The peer makes a queue pair after the other, and speaks on each at once, of which this side hears too late.
#[test]
fn receive_slots_come_back_where_a_peer_begins_anew_while_nodes_meet() {
    const SLOTS: u32 = 16;
    const TIMES: u32 = 2 * SLOTS;
    let bed = Bed::new(|options| NodeOptions { receive_slots: SLOTS, ..options });
    let pd = bed.sim.node(THERE).context().alloc_pd().unwrap();
    let cq = pd.context().create_cq(16).unwrap();
    for attempt in 1..=TIMES {
        let mut rc = pd.qp::<Rc>(&cq).max_send_wr(4).max_recv_wr(4).build().unwrap();
        let hello = Hello { endpoint: rc.endpoint(), ..bed.hello(1, attempt, 0) };
        bed.deliver(hello.endpoint.gid, &hello);
        bed.node.progress();
        assert_eq!((bed.node.counts().connected, bed.node.counts().lost), (0, 0), "attempt {attempt}");
        rc.connect(&bed.look(|peer| peer.ours.unwrap()), &ConnectOptions::default()).unwrap();
        let head = Head::ping();
        let mut ping = pd.alloc(head.as_bytes().len()).unwrap();
        ping.copy_from_slice(head.as_bytes());
        rc.send(ping).unwrap();
        bed.sim.run_for(Duration::from_millis(5)).unwrap();
    }
    bed.node.progress();
    assert_eq!(bed.node.counts().connected, 1, "the last message has found a slot");
}

/// Of two threads that speak to a process first, one has it met, and the other's messages wait with its own.
#[test]
fn a_node_is_used_while_a_process_is_met() {
    for call in [Call::CreateAh, Call::CreateQp] {
        let bed = Bed::new(|options| options);
        let (ni, md, ct) = interface(&bed.node);
        let (to, before) = (bed.list(), bed.gate.calls(call));
        let put = || ni.put(&Put { ack_req: AckReq::Ack, ..Put::new(md, 8, to, 0) }).unwrap();
        bed.meanwhile(call, put, || {
            assert_eq!(ni.ct_get(ct).unwrap().failure, 0);
            put();
            assert_eq!((bed.node.connections(), bed.look(|peer| peer.backlog.len())), (1, 1));
        });
        assert_eq!((bed.gate.calls(call), bed.look(|peer| peer.backlog.len())), (before + 1, 2), "{call:?}");
        bed.meet(&bed.hello(1, 1, 20));
    }
}

#[test]
fn a_node_is_used_while_a_queue_pair_is_connected_and_destroyed() {
    for call in [Call::ModifyQp, Call::DestroyQp] {
        let bed = Bed::new(|options| options);
        let (ni, md, ct) = interface(&bed.node);
        let (to, first) = (bed.list(), bed.hello(1, 1, 20));
        let put = || ni.put(&Put { ack_req: AckReq::Ack, ..Put::new(md, 8, to, 0) }).unwrap();
        if call == Call::DestroyQp {
            bed.meet(&first);
            put();
        }
        let hello = if call == Call::ModifyQp { first } else { bed.hello(2, 1, 21) };
        bed.meanwhile(call, bed.hears(hello.endpoint.gid, hello), || {
            // The device may still touch the memory of what is under way.
            assert_eq!(ni.ct_get(ct).unwrap().failure, 0);
            put();
            assert_eq!(bed.look(|peer| peer.backlog.len()), 1);
        });
        assert_eq!(ni.ct_get(ct).unwrap().failure, u64::from(call == Call::DestroyQp));
        assert_eq!(bed.look(|peer| peer.theirs), Some((hello.endpoint, 1)), "{call:?}");
        let peer_qpn = Some(bed.look(|peer| peer.ours.unwrap().qpn));
        bed.deliver(hello.endpoint.gid, &Hello { peer_qpn, is_up: true, ..hello });
        bed.node.progress();
        assert!(bed.look(|peer| peer.is_clear()), "what waited has left");
    }
}

#[test]
fn a_node_is_used_while_memory_is_given_back() {
    let bed = Bed::new(|options| options);
    let (ni, _, ct) = interface(&bed.node);
    ni.pt_alloc(PtOptions::empty(), None, Some(0)).unwrap();
    let me = Me { options: MeOptions::OP_PUT, ..Me::new(bed.node.alloc(64).unwrap()) };
    let entry = ni.me_append(0, &me, ListKind::Priority, 0).unwrap();
    drop(me);
    let meanwhile = || assert_eq!(ni.ct_get(ct).unwrap().failure, 0);
    bed.meanwhile(Call::DeregMr, || ni.me_unlink(entry).unwrap(), meanwhile);
    let md = ni.md_bind(&Md::new(bed.node.alloc(64).unwrap())).unwrap();
    bed.meanwhile(Call::DeregMr, || ni.md_release(md).unwrap(), meanwhile);
    let me = Me { options: MeOptions::OP_PUT, ..Me::new(bed.node.alloc(64).unwrap()) };
    ni.me_append(0, &me, ListKind::Priority, 0).unwrap();
    drop(me);
    bed.meanwhile(Call::DeregMr, || drop(ni), || assert_eq!(bed.node.counts().lost, 0));
}

/// Another has taken its place meanwhile, which is met as if the first had never been.
#[test]
fn a_queue_pair_that_comes_back_to_a_process_that_has_gone_is_destroyed() {
    for call in [Call::CreateAh, Call::CreateQp, Call::ModifyQp] {
        let bed = Bed::new(|options| options);
        let (before, after) = (bed.hello(1, 2, 20), bed.hello(2, 1, 21));
        bed.meanwhile(call, bed.hears(before.endpoint.gid, before), || {
            assert_eq!(bed.node.connections(), 1);
            bed.deliver(after.endpoint.gid, &after);
            assert_eq!((bed.node.connections(), bed.node.counts().lost), (1, 1), "{call:?}");
            assert_eq!(bed.look(|peer| peer.theirs), Some((after.endpoint, 1)));
        });
        assert_eq!(bed.look(|peer| peer.theirs), Some((after.endpoint, 1)), "{call:?}");
        assert_eq!((bed.gate.calls(Call::CreateAh), bed.gate.calls(Call::DestroyQp)), (2, 1), "{call:?}");
        bed.meet(&after);
        assert!(bed.node.with(|state| state.leaving.is_empty()));
        assert!(bed.node.holdings().is_at_rest(), "{:?}", bed.node.holdings());
    }
}

/// While an interface is closed, its connections leave, one of them in the hands of another thread.
#[test]
fn an_interface_is_closed_once_the_device_has_let_go_of_what_was_under_way() {
    let bed = Bed::new(|options| options);
    let (ni, md, _) = interface(&bed.node);
    let to = bed.list();
    bed.meet(&bed.hello(1, 1, 20));
    ni.put(&Put { ack_req: AckReq::Ack, ..Put::new(md, 8, to, 0) }).unwrap();
    let kind = bed.node.with(|state| kind(state));
    let (after, gate) = (bed.hello(2, 1, 21), Arc::clone(&bed.gate));
    thread::scope(|scope| {
        bed.meanwhile(Call::DestroyQp, bed.hears(after.endpoint.gid, after), || {
            let closes = scope.spawn(|| drop(ni));
            while !bed.node.with(|state| state.ni(kind).is_closing()) {
                thread::yield_now();
            }
            assert!(!closes.is_finished(), "its memory may still be touched");
            gate.open();
            closes.join().unwrap();
        });
    });
    assert!(bed.node.with(|state| state.nis.iter().all(Option::is_none)));
}

/// Both were there at one look: what the peer sent on the connection that it has given up is not taken for the later
/// one's.
#[test]
fn a_message_of_an_earlier_connection_is_none_of_the_later_one() {
    let bed = Bed::new(|options| options);
    let pd = bed.sim.node(THERE).context().alloc_pd().unwrap();
    let cq = pd.context().create_cq(16).unwrap();
    let mut rc = pd.qp::<Rc>(&cq).max_send_wr(4).max_recv_wr(4).build().unwrap();
    let hello = Hello { endpoint: rc.endpoint(), ..bed.hello(1, 1, 0) };
    bed.deliver(hello.endpoint.gid, &hello);
    rc.connect(&bed.look(|peer| peer.ours.unwrap()), &ConnectOptions::default()).unwrap();
    // To the later connection it would be an answer to nothing.
    let head = Head::response(1, &NOTHING, None);
    let mut answer = pd.alloc(head.as_bytes().len()).unwrap();
    answer.copy_from_slice(head.as_bytes());
    rc.send(answer).unwrap();
    bed.sim.run_for(Duration::from_millis(5)).unwrap();
    let later = bed.hello(1, 2, 21);
    bed.node.with(|state| {
        let mut out = [Completion::default(); 16];
        let n = state.net.ports.poll(&mut out);
        let of_peer = |wc: &&Completion| state.peer_of(wc).is_some();
        assert_eq!(out[..n].iter().filter(of_peer).count(), 1, "the message has come");
        state.take_hello(&later);
        out[..n].iter().for_each(|wc| state.came(wc));
    });
    assert_eq!((bed.node.counts().malformed, bed.node.connections()), (0, 1));
    let (is_up, theirs) = bed.look(|peer| (peer.is_up(), peer.theirs));
    assert_eq!((is_up, theirs), (false, Some((later.endpoint, 2))), "nothing has come of the later one");
    assert_eq!(bed.node.counts().connected, 0);
}
