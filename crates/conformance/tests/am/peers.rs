//! Peers that break the protocol: their links end, and the others stay.

use std::net::SocketAddr;
use std::time::Instant;

use hca_am::wire::{Args, Body, Call, Frame, HELLO_BYTES, Hello, encode, parse};
use hca_am::{Reason, Way};
use hca_cm::Connection;
use hca_verbs::{CompletionQueue, Completions, Context, QueuePair, Rc};
use softhca::Progress;

#[path = "../../../../fuzz/src/active_messages.rs"]
mod active_messages;

use crate::bed::{Bed, PATIENCE, Side, TAG, answered};
use crate::beds::Net;

/// A peer that sends what it likes.
struct Rogue {
    qp: QueuePair<Rc>,
    cq: CompletionQueue,
    connection: Connection,
    heard: Vec<Vec<u8>>,
}

impl Rogue {
    fn connect(context: &Context, to: &Side) -> Self {
        let name = to.name();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(256).unwrap();
        let mut qp = pd.qp::<Rc>(&cq).max_inline(256).max_recv_wr(64).build().unwrap();
        for buf in pd.alloc_many(64, 512).unwrap() {
            qp.post_recv(buf).unwrap();
        }
        let at = SocketAddr::new(name.host, name.id as u16);
        let connection = hca_cm::connect(context, &qp, at, b"hca-am/1").unwrap();
        Self { qp, cq, connection, heard: Vec::new() }
    }
    fn greet(&mut self) -> &mut Self {
        self.say(&Frame::Hello(Hello { credits: 4, max_medium: 400, tag: TAG.0, ..Hello::default() }))
    }
    fn say(&mut self, frame: &Frame<'_>) -> &mut Self {
        self.send(&encode(frame))
    }
    fn send(&mut self, bytes: &[u8]) -> &mut Self {
        self.qp.send_inline(bytes).unwrap();
        self
    }
    fn listen(&mut self) {
        let mut wcs = Completions::default();
        for wc in self.cq.poll(&mut wcs) {
            self.heard.extend(wc.payload().map(<[u8]>::to_vec));
        }
    }
    /// Polls until the link has ended.
    fn is_cut_off(&mut self, by: &mut Side, why: &str) {
        let end = Instant::now() + PATIENCE;
        while self.connection.is_connected() {
            by.bundle.poll().unwrap();
            self.listen();
            assert!(Instant::now() < end, "the link goes on: {why}");
        }
    }
    /// Polls until so many messages have come, the hello included.
    fn hears(&mut self, count: usize, by: &mut Side) -> Frame<'_> {
        let end = Instant::now() + PATIENCE;
        while self.heard.len() < count {
            by.bundle.poll().unwrap();
            self.listen();
            assert!(Instant::now() < end, "{count} messages have not come");
        }
        parse(&self.heard[count - 1]).unwrap()
    }
}

fn call(handler: u16, body: Body<'_>) -> Call<'_> {
    Call { handler, args: Args::default(), body }
}

/// An endpoint with an honest peer, and a context for others.
fn scene() -> (Side, Side, Context) {
    let bed = Bed::new(Net::Shm, Progress::Inline, Way::Verbs);
    let contexts = bed.contexts(3);
    let [mut a, mut b] = [0, 1].map(|i| bed.side(&contexts[i], &bed.options()));
    a.map(0, &b).unwrap();
    b.bundle.set_handler(b.ep, 1, |_, _| ()).unwrap();
    (a, b, contexts[2].clone())
}

#[test]
fn a_peer_that_breaks_the_protocol_is_cut_off_and_the_others_stay() {
    let (mut a, mut b, context) = scene();
    let short = call(1, Body::Short);
    let hello = Frame::Hello(Hello { credits: 4, ..Hello::default() });
    let against = Frame::Reply { acks: 0, call: short };
    let back = Frame::Returned { acks: 0, reason: Reason::BadTag };
    let cases: [(&str, bool, Vec<u8>); 10] = [
        ("no message", false, vec![]),
        ("zeros", false, vec![0; HELLO_BYTES]),
        ("a request before the hello", false, encode(&Frame::Request(short))),
        ("a second hello", true, encode(&hello)),
        ("a reply against the direction", true, encode(&against)),
        ("an acknowledgement against the direction", true, encode(&Frame::Ack(1))),
        ("a return against the direction", true, encode(&back)),
        ("bytes behind a message", true, [encode(&Frame::Request(short)), vec![0]].concat()),
        ("a message that is cut off", true, encode(&Frame::Request(short))[..7].to_vec()),
        ("too many arguments", true, [vec![1, 17, 1, 0, 0, 0, 0, 0], vec![0; 68]].concat()),
    ];
    for (why, greets, bytes) in cases {
        let mut rogue = Rogue::connect(&context, &b);
        if greets {
            rogue.greet();
        }
        rogue.send(&bytes).is_cut_off(&mut b, why);
        a.request(1, &[]);
        answered(&mut a, &mut [&mut b]);
    }
}

#[test]
fn requests_beyond_the_credits_are_served_as_far_as_there_are_buffers() {
    let (_a, mut b, context) = scene();
    let mut rogue = Rogue::connect(&context, &b);
    rogue.greet();
    for _ in 0..6 {
        rogue.say(&Frame::Request(call(1, Body::Short)));
    }
    let Frame::Hello(hello) = rogue.hears(1, &mut b) else { panic!("the first message is a hello") };
    assert_eq!((hello.credits, hello.max_medium), (4, 4096));
    let mut served = 0;
    for message in 2.. {
        let Frame::Ack(acks) = rogue.hears(message, &mut b) else { panic!("it is no acknowledgement") };
        served += acks;
        if served == 6 {
            break;
        }
    }
}

#[test]
fn a_peer_learns_why_its_request_is_refused() {
    let (_a, mut b, context) = scene();
    let mut rogue = Rogue::connect(&context, &b);
    rogue.greet();
    let segment = crate::bed::SEGMENT as u64;
    let cases = [
        (999, Body::Short, Reason::BadHandler),
        (1, Body::Bulk { offset: segment + 1, len: 0 }, Reason::BadSegmentOffset),
        (1, Body::Bulk { offset: u64::MAX, len: u64::MAX }, Reason::BadSegmentOffset),
        (1, Body::Bulk { offset: segment, len: 1 }, Reason::BadLength),
        (1, Body::Bulk { offset: 1, len: u64::MAX }, Reason::BadLength),
    ];
    for (i, (handler, body, expected)) in cases.into_iter().enumerate() {
        rogue.say(&Frame::Request(call(handler, body)));
        assert_eq!(rogue.hears(i + 2, &mut b), Frame::Returned { acks: 0, reason: expected });
    }
}

#[test]
fn random_bytes_are_no_message_or_one_that_is_served() {
    let (mut a, mut b, context) = scene();
    let mut rng = test_support::random::Rng::new(0x25);
    for _ in 0..20 {
        let mut rogue = Rogue::connect(&context, &b);
        rogue.greet();
        for _ in 0..4 {
            let len = 8 * (1 + rng.below(4));
            let mut bytes = rng.bytes(len);
            bytes[0] %= 10;
            if rogue.qp.send_inline(&bytes).is_err() {
                break;
            }
            b.bundle.poll().unwrap();
        }
        a.request(1, &[]);
        answered(&mut a, &mut [&mut b]);
    }
}

#[test]
fn the_corpus_of_messages_is_taken_apart_and_put_together_again() {
    test_support::corpus::run("active_messages", 12, active_messages::active_messages);
    let mut rng = test_support::random::Rng::new(0xa3);
    for _ in 0..20_000 {
        let len = rng.below(90);
        let mut bytes = rng.bytes(len);
        if let Some(kind) = bytes.first_mut() {
            *kind %= 11;
        }
        active_messages::active_messages(&bytes);
    }
}
