//! Two processes that exchange every kind of request with each other, of 8 bytes and of 1 MiB, round by round, and look
//! at every byte.

use std::collections::VecDeque;

use hca_conformance::Ran;
use hca_core::{Access, AckTimeout, WcStatus};
use hca_fabric::ShmFabric;
use hca_verbs::{
    CompletionQueue, Completions, ConnectOptions, Context, Pd, QueuePair, Rc, RemoteMr, SendRequest, SharedMr,
};
use softhca::{Options, Progress, SoftHca};
use test_support::roles::{hear, say};

use crate::load::{counters, hex, key_of};
use crate::own::Own;

const LONG: usize = 1 << 20;
const SHORT: usize = 8;
/// What a region holds: what is sent, what arrives by SENDs, WRITEs and READs, and a page of words.
const SOURCE: usize = 0;
const RECEIVED: usize = LONG;
const WRITTEN: usize = 2 * LONG;
const READ: usize = 3 * LONG;
const WORDS: usize = 4 * LONG;
const BYTES: usize = WORDS + 4096;
/// Words of the last page: what peers add to and exchange; where their answers go; messages of a few bytes.
const ADDED: usize = WORDS;
const EXCHANGED: usize = WORDS + 8;
const ANSWERS: usize = WORDS + 64;
const SMALL: usize = WORDS + 128;
const TOLD: usize = WORDS + 192;
/// Rounds at least, and at most until what is waited for has come about.
const ROUNDS: u32 = 6;
const MAX_ROUNDS: u32 = 100;
/// Additions in each round.
const ADDS: u64 = 5;

/// One side of it.
pub(crate) struct Bulk {
    context: Context,
    window: SharedMr,
    remote: RemoteMr,
    qp: QueuePair<Rc>,
    cq: CompletionQueue,
    wcs: Completions,
    /// Requests and messages that have completed and were not waited for yet, and the numbers of those messages.
    sends: usize,
    recvs: usize,
    told: VecDeque<u32>,
    /// Rounds so far.
    round: u32,
    _own: Option<Own>,
    _pd: Pd,
}

fn pattern(side: &str, round: u32) -> Vec<u8> {
    let seed = side.bytes().fold(round + 1, |s, b| s.wrapping_mul(31).wrapping_add(b.into()));
    (0..LONG as u32).map(|i| (i.wrapping_mul(seed | 1) >> 7) as u8).collect()
}

impl Bulk {
    /// An adapter on this fabric, with memory of its own or of the adapter's.
    pub(crate) fn open(fabric: ShmFabric, own: bool) -> Self {
        // Whoever waits to be told something by another way is not to keep its peer waiting.
        let options = Options { progress: Progress::Adaptive, ..Options::default() };
        let context = Context::new(SoftHca::open(Box::new(fabric), options).expect("an adapter opens"));
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64).unwrap();
        let qp = pd.qp::<Rc>(&cq).max_send_wr(32).max_recv_wr(8).access(Access::all()).build().unwrap();
        let own = own.then(|| Own::new(BYTES));
        let window = match &own {
            Some(own) => own.register(&pd),
            None => pd.alloc_shared(BYTES, Access::BY_PEERS).unwrap(),
        };
        let (wcs, remote, told) = (Completions::with_capacity(16), RemoteMr::default(), VecDeque::new());
        Self { context, window, remote, qp, cq, wcs, sends: 0, recvs: 0, told, round: 0, _own: own, _pd: pd }
    }

    /// What the peer has to be told.
    pub(crate) fn line(&self) -> String {
        format!("{} {}", hex(&self.window), self.qp.endpoint())
    }

    /// Connects to the peer that has sent this line.
    pub(crate) fn connect(&mut self, line: &str) -> Result<(), hca_verbs::ConnectError> {
        let (key, end) = line.split_once(' ').expect("a key and an endpoint");
        self.remote = key_of(key);
        let options = ConnectOptions { timeout: AckTimeout::new(17), ..ConnectOptions::default() };
        self.qp.control().connect(&end.parse().expect("an endpoint"), &options)
    }

    /// Rounds, until what `until` counts has come about on both sides.
    pub(crate) fn exchange(&mut self, side: &str, other: &str, until: Option<&str>) {
        for rounds in 0.. {
            let done = self.come_about(until);
            assert!(done || rounds < MAX_ROUNDS, "{until:?}: {}", counters(&self.context));
            let round = self.round;
            self.round += 1;
            if self.play(round, side, other, done && rounds >= ROUNDS) {
                return;
            }
        }
    }

    fn come_about(&self, until: Option<&str>) -> bool {
        until.is_none_or(|name| self.context.counter(name).unwrap() > 0)
    }

    /// One of each; `true` if both sides have seen enough.
    fn play(&mut self, round: u32, side: &str, other: &str, enough: bool) -> bool {
        let (w, remote) = (self.window.clone(), self.remote);
        let theirs = pattern(other, round);
        w.write_at(SOURCE, &pattern(side, round));
        for (at, len) in [(SMALL, SHORT), (RECEIVED, LONG), (TOLD, SHORT), (TOLD, SHORT)] {
            self.qp.post_recv(w.range(at..at + len)).map_err(drop).expect("there is room");
        }
        // Both have filled what is read, and have posted what is sent to.
        assert_eq!(self.meet(0), 0);
        let qp = &mut self.qp;
        let long = w.range(SOURCE..SOURCE + LONG);
        qp.post_send(SendRequest::send(long.clone())).map_err(drop).unwrap();
        qp.post_send(SendRequest::write(long, remote.range(WRITTEN..WRITTEN + LONG))).map_err(drop).unwrap();
        let into = w.range(READ..READ + LONG);
        qp.post_send(SendRequest::read(into, remote.range(SOURCE..SOURCE + LONG))).map_err(drop).unwrap();
        let answer = w.range(ANSWERS..ANSWERS + 8);
        for _ in 0..ADDS {
            let add = SendRequest::fetch_add(answer.clone(), remote.range(ADDED..ADDED + 8), 1);
            qp.post_send(add).map_err(drop).unwrap();
        }
        let swapped = remote.range(EXCHANGED..EXCHANGED + 8);
        let exchange = SendRequest::compare_swap(answer, swapped, round.into(), u64::from(round) + 1);
        qp.post_send(exchange).map_err(drop).unwrap();
        self.complete(3 + ADDS as usize + 1, 1);
        // All of this side's is done; the other one says when its own is.
        let told = self.meet(1 + u32::from(enough));
        let arrived = |at: usize| {
            let mut got = vec![0; LONG];
            w.read_at(at, &mut got);
            got
        };
        for (what, at) in [("SEND", RECEIVED), ("WRITE", WRITTEN), ("READ", READ)] {
            assert!(arrived(at) == theirs, "{side}, round {round}: what came by {what} is something else");
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            w.read_at(at, &mut word);
            u64::from_ne_bytes(word)
        };
        let rounds = u64::from(round) + 1;
        assert_eq!((word(ADDED), word(EXCHANGED)), (rounds * ADDS, rounds), "{side}, round {round}");
        assert_eq!(word(ANSWERS), u64::from(round), "{side}: what stood there before");
        // Nothing of the next round begins before both have looked.
        assert_eq!(self.meet(3), 3);
        enough && told == 2
    }

    /// Waits for so many requests and messages.
    fn complete(&mut self, sends: usize, recvs: usize) {
        let mut ran = Ran::new();
        while self.sends < sends || self.recvs < recvs {
            for wc in self.cq.poll(&mut self.wcs) {
                assert_eq!(wc.status, WcStatus::Success, "{:?}; {}", wc.opcode, counters(&self.context));
                *(if wc.opcode.is_recv() { &mut self.recvs } else { &mut self.sends }) += 1;
                self.told.extend(wc.imm());
            }
            assert!(ran.tick().as_secs() < 20, "it stands still: {}", counters(&self.context));
            std::thread::yield_now();
        }
        self.sends -= sends;
        self.recvs -= recvs;
    }

    /// Tells the peer a number, and is told one.
    fn meet(&mut self, number: u32) -> u32 {
        let source = self.window.range(SOURCE..SOURCE + SHORT);
        self.qp.post_send(SendRequest::send(source).imm(number)).map_err(drop).unwrap();
        self.complete(1, 1);
        self.told.pop_front().expect("each of these messages has a number")
    }

    /// Tells the process that started this one what is needed to connect, hears of the peer, and exchanges with it.
    pub(crate) fn exchange_as_told(mut self, until: Option<&str>) -> String {
        let [side, other] = self.meet_as_told();
        self.exchange(&side, &other, until);
        counters(&self.context)
    }

    /// The same, and once more when it is told to.
    pub(crate) fn exchange_as_told_twice(mut self) -> String {
        let [side, other] = self.meet_as_told();
        self.exchange(&side, &other, None);
        say("once");
        hear();
        self.exchange(&side, &other, None);
        counters(&self.context)
    }

    fn meet_as_told(&mut self) -> [String; 2] {
        say(self.line());
        let told = hear();
        let words: Vec<&str> = told.splitn(3, ' ').collect();
        let [side, other, line] = words[..] else { panic!("{told}") };
        self.connect(line).expect("it connects");
        say("connected");
        hear();
        [side, other].map(str::to_owned)
    }
}
