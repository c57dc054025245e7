//! Short requests and replies of Active Messages.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hca_am::{Bundle, EndpointId, Error, Options, Tag, Way};
use hca_sim::Sim;

use super::{Asks, BULK, Ends, WINDOW};
use crate::name_of;

const TAG: Tag = Tag(0x10);
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

struct Requests {
    bundle: Bundle,
    ep: EndpointId,
    replies: Arc<AtomicUsize>,
}

impl Asks for Requests {
    fn ask(&mut self) -> bool {
        match self.bundle.try_request(self.ep, 0, REQUEST, &[1]) {
            Ok(()) => true,
            // The hello has not come, or the credits are used.
            Err(Error::NotSent | Error::Unreachable) => false,
            Err(error) => panic!("{error}"),
        }
    }
    fn bulk(&mut self, len: usize) -> bool {
        match self.bundle.try_request_bulk(self.ep, 0, REQUEST, &[1], &[7; BULK[1]][..len], 0) {
            Ok(()) => true,
            Err(Error::NotSent) => false,
            Err(error) => panic!("{error}"),
        }
    }
    fn answers(&mut self) -> usize {
        self.bundle.poll().expect("the link is there");
        self.replies.swap(0, Ordering::Relaxed)
    }
}

/// The options of a bundle in simulated time.
pub(super) fn options() -> Options {
    Options {
        credits: WINDOW as u16,
        translations: 16,
        // The program's clock stands still.
        probe_interval: Duration::from_secs(1 << 30),
        ..Options::default()
    }
}

pub(super) fn open(sim: &Sim, way: Way) -> Ends {
    let options = options();
    let [(mut asks, ep), (mut answers, far)] = [0, 1].map(|n| {
        let context = sim.add_node().context();
        let mut bundle = Bundle::open_by_hand(&context, way, &options).expect("a bundle opens");
        let ep = bundle.endpoint_by_hand(name_of(sim, way, n), BULK[1]).expect("an endpoint opens");
        bundle.set_tag(ep, TAG).expect("it is there");
        (bundle, ep)
    });
    let (ours, a) = asks.half_link(false).expect("there is room");
    let (theirs, b) = answers.half_link(true).expect("there is room");
    asks.join(ours, ep, &b, Some((0, name_of(sim, way, 1), TAG))).expect("they connect");
    answers.join(theirs, far, &a, None).expect("they connect");
    let reply =
        |m: &hca_am::Message<'_>, token: hca_am::Token<'_>| token.reply(REPLY, m.args()).expect("a reply");
    answers.set_handler(far, REQUEST, reply).expect("a handler");
    let replies = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&replies);
    asks.set_handler(ep, REPLY, move |_, _| _ = count.fetch_add(1, Ordering::Relaxed)).expect("a handler");
    let serve = Box::new(move || while answers.poll().expect("the link is there") > 0 {});
    (Rc::new(RefCell::new(Requests { bundle: asks, ep, replies })), serve)
}
