//! Puts of 8 bytes with an event, each answered by one.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use hca_core::{Gid, Instant, Lid, Qpn};
use hca_sim::Sim;
use portals::v4::{
    EqHandle, EventKind, Limits, ListKind, Md, MdHandle, MdOptions, Me, MeOptions, Ni, NiOptions, PtOptions,
    Put, Rank,
};
use portals::{Card, Listed, Nid, Node, NodeOptions, Pid, Process};

use super::{Asks, Ends, WINDOW};

/// Looks in a row without an event after which a node has nothing to say.
const EMPTY_LOOKS: u32 = 4;

struct End {
    node: Node,
    ni: Ni,
    eq: EqHandle,
    put: Put,
    open: usize,
}

impl End {
    fn open(sim: &Sim, n: u32, cards: &Arc<Mutex<Listed>>) -> Self {
        let (net, context) = (sim.net().clone(), sim.add_node().context());
        let options = NodeOptions {
            rank: Some(Rank(n)),
            directory: cards.clone(),
            clock: Some(Arc::new(move || net.now().since(Instant::ZERO))),
            seed: Some(n.into()),
            // The program's calls do all work, as those of the other layers do.
            offload: false,
            ..NodeOptions::default()
        };
        let node = Node::open(&context, options).expect("a node");
        let ni = NiOptions::MATCHING | NiOptions::LOGICAL;
        let ni = Ni::init(&node, ni, None, &Limits::default()).expect("an interface");
        let eq = ni.eq_alloc(64).expect("a queue");
        let options = MdOptions::EVENT_SEND_DISABLE;
        let md: MdHandle =
            ni.md_bind(&Md { options, ..Md::new(node.alloc(8).expect("memory")) }).expect("a descriptor");
        ni.pt_alloc(PtOptions::empty(), Some(eq), Some(0)).expect("an index");
        let options = MeOptions::OP_PUT | MeOptions::EVENT_LINK_DISABLE;
        let me = Me { options, ..Me::new(node.alloc(8).expect("memory")) };
        ni.me_append(0, &me, ListKind::Priority, 0).expect("an entry");
        cards.lock().expect("nobody panics").0[n as usize] = node.card();
        let put = Put::new(md, 8, Process::logical(Rank(1 - n)), 0);
        Self { node, ni, eq, put, open: 0 }
    }
    fn send(&self) {
        self.ni.put(&self.put).expect("it is taken");
    }
    /// Takes the puts that have come.
    fn received(&self) -> usize {
        let (mut received, mut empty) = (0, 0);
        while empty < EMPTY_LOOKS {
            self.node.progress();
            empty += 1;
            while let Some(got) = self.ni.eq_get(self.eq).expect("it has room") {
                assert!(got.event.kind == EventKind::Put && got.event.is_ok(), "{:?}", got.event);
                (received, empty) = (received + 1, 0);
            }
        }
        received
    }
}

impl Asks for End {
    fn ask(&mut self) -> bool {
        let sent = self.open < WINDOW;
        if sent {
            self.send();
            self.open += 1;
        }
        sent
    }
    fn answers(&mut self) -> usize {
        let answers = self.received();
        self.open -= answers;
        answers
    }
}

pub(super) fn open(sim: &Sim) -> Ends {
    let none =
        Card { nid: Nid(0), pid: Pid(0), gid: Gid::default(), lid: Lid::default(), datagrams: Qpn::new(0) };
    let cards = Arc::new(Mutex::new(Listed(vec![none; 2])));
    let [near, far] = [0, 1].map(|n| End::open(sim, n, &cards));
    let serve = Box::new(move || (0..far.received()).for_each(|_| far.send()));
    (Rc::new(RefCell::new(near)), serve)
}
