//! Active Messages over verbs and over VIs, and with handlers on the device, on a hostile network: loss, repetition,
//! another order, nodes that stand still and nodes that crash.
//!
//! Each link carries numbered requests of all kinds. The world checks that each is handled once and in its order, with
//! its bytes; that each is answered once, in order; that one which can not be handled comes back whole, with its reason;
//! and that all end, however few the credits are and whoever floods whom.
//!
//! `HCA_SIM_LAYERS_SEEDS` is the number of seeds, `HCA_SIM_LAYERS_FIRST` the first one; `HCA_SIM_SEED` runs a single
//! seed.

mod logp;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hca_am::{
    Bundle, EndpointId, EndpointName, Error, Message, Options, Parallel, Reason, Returned, Tag, Token, Way,
};
use hca_core::{AckTimeout, Instant};
use hca_sim::{LinkProfile, Outcome, Rng, Sim, Step, Violation};
use test_support::seeds::{number, seeds};

type Checked<T> = Result<T, Violation>;

/// How many seeds of each way run unless told otherwise.
const SEEDS: u64 = 30;
/// How long everything takes at most once all faults have ended.
const AFTERMATH: Duration = Duration::from_secs(60);
/// A survivor gives a crashed peer up so long after the crash.
const PATIENCE: Duration = Duration::from_millis(300);
/// Polls in a row without a message after which a bundle has said all that it had to say.
const EMPTY_POLLS: u32 = 6;
const TAG: Tag = Tag(0x7a6);
const REQUEST: u16 = 1;
const REPLY: u16 = 2;
const NOBODY: u16 = 99;
/// Bytes of a bulk message at most, and the places that a link has for them.
const BULK: usize = 3000;
const PLACES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    None,
    Short,
    Medium,
}

/// A request of a link: what is sent, and what has to come of it.
#[derive(Clone, Copy, Debug)]
struct Ask {
    /// `None`: it has no payload. Whether it is bulk, and its bytes.
    payload: Option<(bool, usize)>,
    answer: Answer,
    handler: u16,
}

#[derive(Clone, Debug)]
struct Link {
    from: usize,
    to: usize,
    tag: Tag,
    asks: Vec<Ask>,
}

#[derive(Clone, Debug)]
struct Plan {
    way: Way,
    /// Of each node: its adapter runs its handlers, and its program sends and does not poll.
    offloaded: Vec<bool>,
    nodes: usize,
    credits: u16,
    max_medium: usize,
    profile: LinkProfile,
    links: Vec<Link>,
    stalls: Vec<(Instant, usize, Duration)>,
    crash: Option<(Instant, usize)>,
    heal: Instant,
}

impl Plan {
    fn new(rng: &mut Rng, way: Way) -> Self {
        let nodes = 2 + rng.below(3) as usize;
        let max_medium = rng.pick(&[64, 700, 4096]);
        let mut links = Vec::new();
        for _ in 0..rng.between(1, 4) {
            let from = rng.below(nodes as u64) as usize;
            let to = (from + 1 + rng.below(nodes as u64 - 1) as usize) % nodes;
            // Both flood each other.
            let ends = if rng.chance(0.6) { vec![(from, to), (to, from)] } else { vec![(from, to)] };
            for (from, to) in ends {
                let tag = if rng.chance(0.1) { Tag(1) } else { TAG };
                let asks = (0..rng.between(5, 60)).map(|_| Ask::new(rng, max_medium)).collect();
                links.push(Link { from, to, tag, asks });
            }
        }
        let soon = |rng: &mut Rng| Instant::ZERO + rng.up_to(Duration::from_micros(3_000));
        let stalls: Vec<_> = (0..rng.below(3))
            .map(|_| (soon(rng), rng.below(nodes as u64) as usize, rng.up_to(Duration::from_millis(5))))
            .collect();
        let crash = rng.chance(0.25).then(|| {
            let at = Instant::ZERO + rng.up_to(Duration::from_micros(400));
            (at, rng.below(nodes as u64) as usize)
        });
        let profile = LinkProfile::random(rng);
        let last = stalls.iter().map(|(at, _, lasts)| *at + *lasts).max().unwrap_or(Instant::ZERO);
        let heal = last.max(Instant::ZERO + Duration::from_millis(10));
        let credits = rng.pick(&[1, 2, 3, 16]);
        let offloaded = vec![false; nodes];
        Self { way, offloaded, nodes, credits, max_medium, profile, links, stalls, crash, heal }
    }
}

impl Ask {
    fn new(rng: &mut Rng, max_medium: usize) -> Self {
        let payload = match rng.below(5) {
            0 | 1 => None,
            2 => Some((true, rng.below(BULK as u64 + 1) as usize)),
            _ => Some((false, rng.below(max_medium as u64 + 1) as usize)),
        };
        let answer = rng.pick(&[Answer::None, Answer::None, Answer::Short, Answer::Medium]);
        let handler = if rng.chance(0.05) { NOBODY } else { REQUEST };
        Self { payload, answer, handler }
    }
}

/// The bytes of a message.
fn pattern(link: usize, number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (link * 59 + number * 31 + i * 7 + i / 256) as u8).collect()
}

/// What the programs of a link have seen.
#[derive(Clone, Debug, Default)]
struct Seen {
    sent: usize,
    /// The number behind that of the request that was handled last, that of the reply, and that of the return.
    handled: usize,
    replied: usize,
    returned: usize,
    counts: [usize; 3],
    /// Requests that came back as their link had ended.
    lost: usize,
}

struct Shared {
    links: Vec<Link>,
    seen: Vec<Seen>,
    wrong: Option<String>,
}

impl Shared {
    fn is_expected(&self, link: usize, number: usize) -> Option<Ask> {
        self.links.get(link)?.asks.get(number).copied()
    }
    /// Whether a request is handled at its target.
    fn is_good(&self, link: usize, ask: &Ask) -> bool {
        ask.handler == REQUEST && self.links[link].tag == TAG
    }
    /// Notes a request, a reply or a return: each is the next of its kind.
    fn note(&mut self, kind: usize, link: usize, number: usize) -> Result<Ask, String> {
        let what = ["request", "reply", "return"][kind];
        let ask = self.is_expected(link, number).ok_or_else(|| format!("no {what} is {link}/{number}"))?;
        let good = self.is_good(link, &ask);
        let counts = |other: &Ask| match kind {
            0 => self.is_good(link, other),
            1 => self.is_good(link, other) && other.answer != Answer::None,
            _ => !self.is_good(link, other),
        };
        let asks = &self.links[link].asks;
        let seen = &self.seen[link];
        let from = [seen.handled, seen.replied, seen.returned][kind];
        let next = (from..asks.len()).find(|&n| counts(&asks[n]));
        if next != Some(number) || good == (kind == 2) {
            return Err(format!("{what} {link}/{number} instead of {next:?}; {seen:?}"));
        }
        let seen = &mut self.seen[link];
        *[&mut seen.handled, &mut seen.replied, &mut seen.returned][kind] = number + 1;
        seen.counts[kind] += 1;
        Ok(ask)
    }
    fn check(&mut self, done: Result<(), String>) {
        if let Err(what) = done {
            self.wrong.get_or_insert(what);
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
fn numbers(args: &[u32]) -> (usize, usize) {
    let arg = |i: usize| args.get(i).copied().unwrap_or(u32::MAX) as usize;
    (arg(0), arg(1))
}
fn equal(what: &str, found: &[u8], expected: &[u8]) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:02x?} instead of {expected:02x?}")) }
}

fn on_request(shared: &Mutex<Shared>, message: &Message<'_>, token: Token<'_>) {
    let mut shared = lock(shared);
    let (link, number) = numbers(message.args());
    let done = shared.note(0, link, number).and_then(|ask| {
        match ask.payload {
            Some((true, len)) => {
                let range = message.range().ok_or("a bulk request without a range")?;
                let segment = message.segment().ok_or("a bulk request without a segment")?;
                equal("bulk", &segment.to_vec(range), &pattern(link, number, len))?;
            }
            Some((false, len)) => equal("medium", message.data(), &pattern(link, number, len))?,
            None => equal("short", message.data(), &[])?,
        }
        let answered = match ask.answer {
            Answer::None => Ok(()),
            Answer::Short => token.reply(REPLY, message.args()),
            Answer::Medium => token.reply_medium(REPLY, message.args(), &pattern(link, number, 64)),
        };
        // The other side may be gone.
        if matches!(answered, Ok(()) | Err(Error::Unreachable)) {
            Ok(())
        } else {
            Err(format!("{answered:?}"))
        }
    });
    shared.check(done);
}

fn on_reply(shared: &Mutex<Shared>, message: &Message<'_>) {
    let mut shared = lock(shared);
    let (link, number) = numbers(message.args());
    let done = shared.note(1, link, number).and_then(|ask| match ask.answer {
        Answer::Medium => equal("reply", message.data(), &pattern(link, number, 64)),
        _ => equal("reply", message.data(), &[]),
    });
    shared.check(done);
}

fn on_return(shared: &Mutex<Shared>, back: &Returned<'_>) {
    let mut shared = lock(shared);
    let (link, number) = numbers(back.args);
    let done = (|| {
        let ask = match back.reason {
            Reason::Unreachable => {
                let ask = shared.is_expected(link, number).ok_or("a return that nobody sent")?;
                let seen = &mut shared.seen[link];
                seen.lost += 1;
                if number + 1 < seen.replied || number >= seen.sent {
                    return Err(format!("{link}/{number} comes back, and was answered, or never sent"));
                }
                ask
            }
            reason => {
                let ask = shared.note(2, link, number)?;
                let bad_tag = shared.links[link].tag != TAG;
                let right = if bad_tag { Reason::BadTag } else { Reason::BadHandler };
                if reason != right {
                    return Err(format!("{link}/{number} comes back: {reason:?} instead of {right:?}"));
                }
                ask
            }
        };
        let medium = ask.payload.filter(|(bulk, _)| !bulk).map_or(0, |(_, len)| len);
        equal("returned", back.data, &pattern(link, number, medium))?;
        if back.handler == ask.handler { Ok(()) } else { Err(format!("handler {}", back.handler)) }
    })();
    shared.check(done);
}

struct Host {
    bundle: Parallel,
    ep: EndpointId,
    /// The links that it sends over.
    sends: Vec<usize>,
}

struct World {
    sim: Sim,
    plan: Plan,
    hosts: Vec<Option<Host>>,
    shared: Arc<Mutex<Shared>>,
    chaos: VecDeque<(Instant, Chaos)>,
    crashed: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Chaos {
    Stall(usize),
    Resume(usize),
    Crash(usize),
    GiveUp(usize),
}

impl World {
    fn new(sim: &Sim, plan: Plan) -> Self {
        let seen = vec![Seen::default(); plan.links.len()];
        let shared = Shared { links: plan.links.clone(), seen, wrong: None };
        let shared = Arc::new(Mutex::new(shared));
        let mut hosts: Vec<_> = (0..plan.nodes).map(|n| Some(Host::open(sim, &plan, n, &shared))).collect();
        for (n, link) in plan.links.iter().enumerate() {
            let [from, to] = hosts.get_disjoint_mut([link.from, link.to]).expect("two nodes");
            let [from, to] = [from, to].map(|host| host.as_mut().expect("it is there"));
            connect(sim, plan.way, n, link, from, to);
        }
        let mut chaos: Vec<_> = plan
            .stalls
            .iter()
            .flat_map(|&(at, n, lasts)| [(at, Chaos::Stall(n)), (at + lasts, Chaos::Resume(n))])
            .collect();
        if let Some((at, n)) = plan.crash {
            chaos.extend([(at, Chaos::Crash(n)), (at + PATIENCE, Chaos::GiveUp(n))]);
        }
        chaos.sort_by_key(|(at, _)| *at);
        Self { sim: sim.clone(), plan, hosts, shared, chaos: chaos.into(), crashed: None }
    }
    fn step(&mut self, now: Instant) -> Checked<Step> {
        while let Some(&(_, chaos)) = self.chaos.front().filter(|(at, _)| *at <= now) {
            self.chaos.pop_front();
            self.happen(chaos)?;
        }
        for n in 0..self.hosts.len() {
            let Some(mut host) = self.hosts[n].take() else { continue };
            let acted = self.act(&mut host);
            self.hosts[n] = Some(host);
            acted?;
        }
        if let Some(what) = lock(&self.shared).wrong.take() {
            return Err(self.sim.violation(what));
        }
        Ok(match self.chaos.front() {
            Some((at, _)) => Step::After(at.since(now)),
            None => Step::OnProgress,
        })
    }
    fn happen(&mut self, chaos: Chaos) -> Checked<()> {
        self.sim.note(format!("{chaos:?}"));
        match chaos {
            Chaos::Stall(n) if self.hosts[n].is_some() => self.sim.node(n).stall(),
            Chaos::Resume(n) if self.hosts[n].is_some() => self.sim.node(n).resume(),
            Chaos::Stall(_) | Chaos::Resume(_) => {}
            Chaos::Crash(n) => {
                self.crashed = Some(n);
                self.hosts[n] = None;
                self.sim.node(n).crash();
            }
            Chaos::GiveUp(gone) => {
                for host in self.hosts.iter_mut().flatten() {
                    for &link in host.sends.iter().filter(|&&link| self.plan.links[link].to == gone) {
                        let unmapped = host.bundle.with(|bundle| bundle.unmap(host.ep, link));
                        unmapped.map_err(|e| self.sim.violation(e.to_string()))?;
                    }
                    host.sends.retain(|&link| self.plan.links[link].to != gone);
                }
            }
        }
        Ok(())
    }
    /// A program sends what it has credits for, and handles what has come unless its adapter does.
    fn act(&self, host: &mut Host) -> Checked<()> {
        let wrong = |error: Error| self.sim.violation(error.to_string());
        let mut empty = 0;
        while empty < EMPTY_POLLS {
            for &link in &host.sends {
                while self.send(host.ep, &host.bundle, link)? {}
            }
            if host.bundle.is_offloaded() {
                return Ok(());
            }
            let handled = host.bundle.with(Bundle::poll).map_err(wrong)?;
            empty = if handled > 0 { 0 } else { empty + 1 };
        }
        Ok(())
    }
    /// Sends the next request of a link. Returns whether it was sent.
    fn send(&self, ep: EndpointId, bundle: &Parallel, link: usize) -> Checked<bool> {
        let number = lock(&self.shared).seen[link].sent;
        let of = &self.plan.links[link];
        let Some(ask) = of.asks.get(number) else { return Ok(false) };
        let (args, bytes) = ([link as u32, number as u32, 7], ask.payload.map(|(_, len)| len));
        let bytes = pattern(link, number, bytes.unwrap_or(0));
        let sent = bundle.with(|bundle| match ask.payload {
            None => bundle.try_request(ep, link, ask.handler, &args),
            Some((false, _)) => bundle.try_request_medium(ep, link, ask.handler, &args, &bytes),
            Some((true, _)) => {
                // At most as many requests are open as there are places.
                let at = (link * PLACES + number % PLACES) * BULK;
                bundle.try_request_bulk(ep, link, ask.handler, &args, &bytes, at as u64)
            }
        });
        match sent {
            Ok(()) => {
                lock(&self.shared).seen[link].sent += 1;
                Ok(true)
            }
            Err(Error::NotSent) => Ok(false),
            // Its hello has not come, or it is gone.
            Err(Error::Unreachable) if self.crashed.is_some_and(|n| n == of.to || n == of.from) => Ok(false),
            Err(error) => Err(self.sim.violation(format!("request {link}/{number}: {error}"))),
        }
    }
    fn is_finished(&self) -> bool {
        self.chaos.is_empty() && self.left().is_empty()
    }
    /// The links that have something left.
    fn left(&self) -> Vec<usize> {
        // By the call the bundle may run what is due, whose handlers take the lock.
        let open = |host: &Host, link: usize| {
            !matches!(host.bundle.with(|bundle| bundle.outstanding(host.ep, link)), Ok(0))
        };
        let unsent = |link: usize| {
            let shared = lock(&self.shared);
            shared.seen[link].sent < shared.links[link].asks.len()
        };
        let mut left = Vec::new();
        for host in self.hosts.iter().flatten() {
            left.extend(host.sends.iter().copied().filter(|&link| unsent(link) || open(host, link)));
        }
        left
    }
    /// All that was sent has come to the end that it should.
    fn end(&self) -> Checked<[usize; 4]> {
        let shared = lock(&self.shared);
        let mut sums = [0; 4];
        for (n, (link, seen)) in shared.links.iter().zip(&shared.seen).enumerate() {
            let good = link.asks.iter().filter(|ask| shared.is_good(n, ask)).count();
            let replies = |ask: &&Ask| shared.is_good(n, ask) && ask.answer != Answer::None;
            let expected = [good, link.asks.iter().filter(replies).count(), link.asks.len() - good];
            let excused = self.crashed.is_some_and(|gone| gone == link.from || gone == link.to);
            if !excused && (seen.counts != expected || seen.lost > 0) {
                return Err(self.sim.violation(format!("link {n}: {seen:?} instead of {expected:?}")));
            }
            for (sum, count) in sums.iter_mut().zip(seen.counts.into_iter().chain([seen.lost])) {
                *sum += count;
            }
        }
        Ok(sums)
    }
}

impl Host {
    fn open(sim: &Sim, plan: &Plan, n: usize, shared: &Arc<Mutex<Shared>>) -> Self {
        let options = Options {
            credits: plan.credits,
            max_medium: plan.max_medium,
            max_links: 16,
            translations: 16,
            // The program's clock stands still.
            probe_interval: Duration::from_secs(1 << 30),
            ack_timeout: AckTimeout::new(14),
            ..Options::default()
        };
        let context = sim.add_node().context();
        let mut bundle = Bundle::open_by_hand(&context, plan.way, &options).expect("a bundle opens");
        let name = name_of(sim, plan.way, n);
        let ep = bundle.endpoint_by_hand(name, 16 * PLACES * BULK).expect("an endpoint opens");
        bundle.set_tag(ep, TAG).unwrap();
        let [requests, replies, returns] = [(); 3].map(|()| Arc::clone(shared));
        bundle.set_handler(ep, REQUEST, move |m, token| on_request(&requests, m, token)).unwrap();
        bundle.set_handler(ep, REPLY, move |m, _| on_reply(&replies, m)).unwrap();
        bundle.set_error_handler(ep, move |back| on_return(&returns, back)).unwrap();
        let bundle = if plan.offloaded[n] {
            Parallel::offloaded(bundle).expect("the adapter runs engines")
        } else {
            Parallel::new(bundle)
        };
        Self { bundle, ep, sends: Vec::new() }
    }
}

fn name_of(sim: &Sim, way: Way, n: usize) -> EndpointName {
    EndpointName { way, host: sim.net().address(n), id: n as u64 }
}

fn connect(sim: &Sim, way: Way, n: usize, link: &Link, from: &mut Host, to: &mut Host) {
    let (ours, a) = from.bundle.with(|bundle| bundle.half_link(false)).expect("there is room");
    let (theirs, b) = to.bundle.with(|bundle| bundle.half_link(true)).expect("there is room");
    let maps = Some((n, name_of(sim, way, link.to), link.tag));
    from.bundle.with(|bundle| bundle.join(ours, from.ep, &b, maps)).expect("they connect");
    to.bundle.with(|bundle| bundle.join(theirs, to.ep, &a, None)).expect("they connect");
    from.sends.push(n);
}

/// Counts of requests, replies, returns and losses; whether a node crashed; the faults, and the hash of the trace.
type Report = ([usize; 4], bool, u64, u64);

/// The interface below Active Messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Below {
    Verbs,
    Via,
    /// Verbs, and most adapters run the handlers.
    Offloaded,
}

fn run(seed: u64, below: Below) -> Checked<Report> {
    let mut rng = Rng::new(seed ^ 0x6c61_7965_7273_0000);
    let mut plan = Plan::new(&mut rng, if below == Below::Via { Way::Via } else { Way::Verbs });
    if below == Below::Offloaded {
        plan.offloaded.fill_with(|| rng.below(4) > 0);
    }
    let replay = format!("{below:?}").to_lowercase();
    let replay = format!("HCA_SIM_SEED={seed} cargo test -p hca-sim --test layers {replay}");
    let sim = Sim::builder(seed).links(&plan.profile).replay(replay).build();
    if std::env::var_os("HCA_SIM_TRACE").is_some() {
        println!("{plan:#?}");
    }
    let (heal, crashes) = (plan.heal, plan.crash.is_some());
    let world = Rc::new(RefCell::new(World::new(&sim, plan)));
    let actor = Rc::downgrade(&world);
    sim.add_actor(move |now: Instant| {
        let Some(world) = actor.upgrade() else { return Step::Done };
        let step = world.borrow_mut().step(now);
        step.unwrap_or_else(|violation| std::panic::resume_unwind(Box::new(violation)))
    });
    sim.run_until(heal)?;
    sim.net().heal_all();
    let deadline = sim.now() + AFTERMATH;
    while !world.borrow().is_finished() {
        if sim.now() > deadline {
            let left = world.borrow().left();
            return Err(sim.violation(format!("hang: all faults have ended, but links {left:?} have not")));
        }
        sim.run_for(Duration::from_millis(2))?;
    }
    if sim.run_for(AFTERMATH)? != Outcome::Idle && !crashes {
        return Err(sim.violation("nothing is left to do, but timers run or packets travel on"));
    }
    let sums = world.borrow().end()?;
    Ok((sums, crashes, sim.stats().faults(), sim.events()))
}

/// Runs a seed. Time stands still within a call of a program, so one that waits for a packet never ends.
fn run_in_time(seed: u64, below: Below) -> Report {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(run(seed, below).map_err(|violation| violation.to_string())));
    match ended.recv_timeout(Duration::from_secs(120)) {
        Ok(report) => report.unwrap_or_else(|violation| panic!("{violation}")),
        Err(_) => panic!("seed {seed} has not ended, or has panicked: a call waits for time to pass"),
    }
}

fn run_seeds(below: Below) {
    let first = number("HCA_SIM_LAYERS_FIRST").unwrap_or(0);
    let count = number("HCA_SIM_LAYERS_SEEDS").unwrap_or(SEEDS);
    let one = number("HCA_SIM_SEED");
    let (mut sums, mut crashes, mut faults) = ([0; 4], 0, 0);
    for seed in seeds(one, first, count) {
        let report = run_in_time(seed, below);
        for (sum, count) in sums.iter_mut().zip(report.0) {
            *sum += count;
        }
        (crashes, faults) = (crashes + u64::from(report.1), faults + report.2);
    }
    println!("requests, replies, returns, losses {sums:?}; {crashes} crashes, {faults} faults");
    if one.is_none() && count >= SEEDS {
        assert!(sums.iter().all(|&n| n >= 10) && crashes >= 3 && faults >= 100, "too little has happened");
    }
}

#[test]
fn messages_over_verbs_keep_every_promise() {
    run_seeds(Below::Verbs);
}

#[test]
fn messages_over_via_keep_every_promise() {
    run_seeds(Below::Via);
}

#[test]
fn messages_that_offloaded_bundles_handle_keep_every_promise() {
    run_seeds(Below::Offloaded);
}

/// Time stands still within a call: one that waits for the peer's acknowledgement never ends. A poll leaves a request
/// whose answer has no room, and a call that may not wait takes the ends of sends before it says that there is none.
#[test]
fn no_call_waits_for_room() {
    let once_waited =
        [(7238, Below::Verbs), (2785, Below::Via), (36069, Below::Offloaded), (6305, Below::Offloaded)];
    for (seed, below) in once_waited {
        run_in_time(seed, below);
    }
}

#[test]
fn a_seed_repeats_exactly() {
    for (seed, below) in [(3, Below::Verbs), (7, Below::Via), (5, Below::Offloaded)] {
        let [first, second] = [(); 2].map(|()| run(seed, below).unwrap());
        assert_eq!(first, second, "seed {seed}");
    }
}
