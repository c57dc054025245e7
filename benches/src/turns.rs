//! Peers that take turns: adapters of one other process, each connected to this one, of which now this one and now that
//! one sends a message and hears the answer.
//!
//! Only so many rings are polled; a message that comes by another one has to say that it is there. What that costs
//! shows where each message comes from another peer than the last, beside as many messages from one of the same peers.

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use hca::{
    Buf, CompletionQueue, Completions, ConnectOptions, DeviceUrl, Endpoint, Inline, Opened, Pd, QueuePair,
    Rc, SendRequest, open_exactly,
};
use hca_perf::Failure;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use softhca::Progress;
use test_support::random::Rng;

use crate::floor::{Shared, end_with_starter};
use hca_perf::batches::median_ns;
use hca_perf::child::{serve_if_asked, wait_for_end};

/// The first argument of a process that is all the peers.
const CHILD_COMMAND: &str = "__turns";
/// What it is told: endpoints to connect to, or who is to take turns.
const MORE: &str = "more";
const RUN: &str = "run";
/// Peers that begin at once, so that no socket has more callers than it holds.
const AT_ONCE: usize = 50;
/// Descriptors that are left for what is not counted.
const SPARE_DESCRIPTORS: usize = 64;
/// Bytes of a message.
const MESSAGE_BYTES: usize = 8;
/// Receive requests of a queue pair.
const RECEIVES: usize = 4;
/// Entries of its send queue, of which every fourth is signalled.
const SENDS: u32 = 16;
const SIGNAL_EVERY: u64 = 4;
/// Round trips between two looks at the clock; so many greet all that begin at once.
const ROUNDS: usize = 64;
const _: () = assert!(AT_ONCE <= ROUNDS);
/// Turns of each adapter in which it sends what it owes.
const LAST_TURNS: usize = 4;
/// How long the other side may take for anything.
const PATIENCE: Duration = Duration::from_secs(20);
/// What the order in which peers are drawn begins with.
const SEED: u64 = 22;

/// In which order peers send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One after the other, again and again.
    Fixed,
    /// Each once in an order that is drawn anew, from a fixed seed, whenever all were there. Nobody is twice in a row.
    Drawn,
}

/// The peers, and this side, which answers.
pub struct Turns {
    // The queue pairs go first, so that the peers hear of it.
    ends: Vec<End>,
    cq: CompletionQueue,
    wcs: Completions,
    pd: Pd,
    child: Child,
    to_child: Option<ChildStdin>,
    from_child: BufReader<ChildStdout>,
    shared: Shared,
    burst: u64,
    _opened: Opened,
}

impl Turns {
    /// Starts a process on CPU `cpus.1` with so many adapters, or as many as its limit of descriptors allows, binds
    /// this thread to `cpus.0`, and has each of them greeted.
    ///
    /// # Errors
    /// A device can't be opened, or the process not be started.
    pub fn start(device: &DeviceUrl, cpus: (usize, usize), count: usize) -> Result<Self, Failure> {
        hca_perf::probe::pin(cpus.0)?;
        raise_descriptors(2 * count + SPARE_DESCRIPTORS);
        let opened = open_exactly(device)?;
        let pd = opened.context().alloc_pd()?;
        let cq = opened.context().create_cq(count as u32 * (RECEIVES as u32 + SENDS))?;
        let shared = Shared::new()?;
        let mut child = Command::new(std::env::current_exe()?)
            .args([CHILD_COMMAND, &device.to_string(), &cpus.1.to_string(), &shared.fd().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to_child = child.stdin.take();
        let from_child = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let (ends, wcs) = (Vec::new(), Completions::with_parts(64, 64));
        let mut turns =
            Self { ends, cq, wcs, pd, child, to_child, from_child, shared, burst: 0, _opened: opened };
        while turns.ends.len() < count && turns.add(AT_ONCE.min(count - turns.ends.len()))? {}
        Ok(turns)
    }

    /// How many peers there are.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Connects so many more; whether there is room for others.
    fn add(&mut self, count: usize) -> Result<bool, Failure> {
        let begin = self.ends.len();
        let mut ends = (0..count).map(|_| End::new(&self.pd, &self.cq)).collect::<Result<Vec<_>, _>>()?;
        let ours: Vec<Endpoint> = ends.iter().map(|e| e.qp.endpoint()).collect();
        self.tell(&format!("{MORE} {}", serde_json::to_string(&ours)?))?;
        let theirs: Vec<Endpoint> = serde_json::from_str(&self.hear()?)?;
        ends.truncate(theirs.len());
        for (end, (id, theirs)) in ends.iter_mut().zip((begin as u64..).zip(&theirs)) {
            end.connect(theirs)?;
            end.post_receives(&self.pd, id)?;
        }
        self.ends.extend(ends);
        if !theirs.is_empty() {
            // So that all of the way there is set up.
            self.half_round_trip_ns(begin..self.ends.len(), Order::Fixed, Duration::ZERO)?;
        }
        Ok(theirs.len() == count)
    }

    /// Half of a round trip of 8 bytes that these peers ask for in turns, one at a time: the median of batches, in ns.
    ///
    /// # Errors
    /// The device, or the other process, can't go on.
    ///
    /// # Panics
    /// If there are no such peers.
    pub fn half_round_trip_ns(
        &mut self,
        who: Range<usize>,
        order: Order,
        time: Duration,
    ) -> Result<f64, Failure> {
        assert!(!who.is_empty() && who.end <= self.ends.len(), "{who:?} of {} peers", self.ends.len());
        self.burst += 1;
        let drawn = u64::from(order == Order::Drawn);
        let what = [who.start as u64, who.end as u64, drawn, time.as_nanos() as u64];
        self.tell(&format!("{RUN} {}", serde_json::to_string(&what)?))?;
        let (begin, mut looks) = (Instant::now(), 0_u32);
        while self.shared.done.load() != self.burst {
            self.answer()?;
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(1 << 16) && !matches!(self.child.try_wait(), Ok(None)) {
                return Err("the peers ended; their message stands above".into());
            }
            if looks.is_multiple_of(1 << 16) && begin.elapsed() > time + PATIENCE {
                return Err("the peers go on for too long".into());
            }
        }
        Ok(serde_json::from_str(&self.hear()?)?)
    }

    /// Answers what came.
    #[inline]
    fn answer(&mut self) -> Result<(), Failure> {
        for wc in self.cq.poll(&mut self.wcs) {
            let mut wc = wc.ok()?;
            if wc.opcode.is_recv() {
                let (id, buf) = (wc.id, wc.take_buf().ok_or("a message comes with its buffer")?);
                let end = &mut self.ends[id as usize];
                end.send()?;
                end.qp.post_recv_id(id, buf).map_err(|refused| refused.error)?;
            }
        }
        Ok(())
    }

    fn tell(&mut self, line: &str) -> Result<(), Failure> {
        let to = self.to_child.as_mut().expect("open until the end");
        writeln!(to, "{line}")?;
        Ok(to.flush()?)
    }

    fn hear(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.from_child.read_line(&mut line)?;
        if line.is_empty() {
            return Err("the peers could not go on; their message stands above".into());
        }
        Ok(line)
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        // The end of its input is the end of the child.
        self.to_child = None;
        wait_for_end(&mut self.child);
    }
}

/// A queue pair and what is under way on it.
struct End {
    qp: QueuePair<Rc>,
    posted: u64,
}

impl End {
    fn new(pd: &Pd, cq: &CompletionQueue) -> Result<Self, Failure> {
        let qp = pd.qp::<Rc>(cq).max_send_wr(SENDS).max_recv_wr(RECEIVES as u32);
        let qp = qp.max_send_sge(1).max_recv_sge(1).max_inline(MESSAGE_BYTES as u32).build()?;
        Ok(Self { qp, posted: 0 })
    }

    fn connect(&mut self, peer: &Endpoint) -> Result<(), Failure> {
        Ok(self.qp.connect(peer, &ConnectOptions::default())?)
    }

    fn post_receives(&mut self, pd: &Pd, id: u64) -> Result<(), Failure> {
        for buf in pd.alloc_many(RECEIVES, MESSAGE_BYTES)? {
            self.qp.post_recv_id(id, buf).map_err(|refused| refused.error)?;
        }
        Ok(())
    }

    #[inline]
    fn send(&mut self) -> Result<(), Failure> {
        self.posted += 1;
        let signaled = self.posted.is_multiple_of(SIGNAL_EVERY);
        let request = SendRequest::send(Inline(&[1; MESSAGE_BYTES])).signaled(signaled);
        Ok(self.qp.post_send(request).map_err(|refused| refused.error)?)
    }
}

/// An adapter of the other process.
struct Peer {
    end: End,
    cq: CompletionQueue,
    opened: Opened,
}

impl Peer {
    fn open(device: &DeviceUrl) -> Result<Self, Failure> {
        let opened = open_exactly(device)?;
        let pd = opened.context().alloc_pd()?;
        let cq = opened.context().create_cq(RECEIVES as u32 + SENDS)?;
        let mut end = End::new(&pd, &cq)?;
        end.post_receives(&pd, 0)?;
        Ok(Self { end, cq, opened })
    }

    /// A message, and its answer.
    #[inline]
    fn ask(&mut self, wcs: &mut Completions, back: &mut Vec<Buf>) -> Result<(), Failure> {
        self.end.send()?;
        while back.is_empty() {
            for wc in self.cq.poll(wcs) {
                back.extend(wc.ok()?.take_buf());
            }
        }
        for buf in back.drain(..) {
            self.end.qp.post_recv(buf).map_err(|refused| refused.error)?;
        }
        Ok(())
    }
}

/// To be called first in `main` of every program that has peers take turns: becomes them if that is what this process
/// was started for.
pub fn child_if_asked() {
    serve_if_asked(CHILD_COMMAND, "peers that take turns", serve);
}

fn serve(args: &[String]) -> Result<(), Failure> {
    end_with_starter()?;
    let [device, cpu, fd] = args else { return Err("three arguments".into()) };
    hca_perf::probe::pin(cpu.parse()?)?;
    let shared = Shared::open(fd.parse()?)?;
    raise_descriptors(usize::MAX);
    let mut url: DeviceUrl = device.parse()?;
    // Who has a thousand adapters turns those that it uses.
    url.options.progress = Some(Progress::Inline);
    url.options.lazy_acks = Some(true);
    let mut peers =
        Peers { all: Vec::new(), wcs: Completions::default(), back: Vec::new(), random: Rng::new(SEED) };
    let mut burst = 0;
    for line in std::io::stdin().lines() {
        let line = line?;
        match line.split_once(' ') {
            Some((MORE, theirs)) => {
                let theirs: Vec<Endpoint> = serde_json::from_str(theirs)?;
                println!("{}", peers.add(&url, &theirs)?);
            }
            Some((RUN, what)) => {
                burst += 1;
                let measured = peers.run(serde_json::from_str(what)?);
                shared.done.store(burst);
                println!("{}", measured?);
            }
            _ => return Err(format!("`{line}` is nothing that peers do").into()),
        }
    }
    Ok(())
}

/// All adapters of the other process.
struct Peers {
    all: Vec<Peer>,
    wcs: Completions,
    back: Vec<Buf>,
    random: Rng,
}

impl Peers {
    /// Opens an adapter for each of these endpoints, as far as there is room; theirs, as text.
    fn add(&mut self, device: &DeviceUrl, endpoints: &[Endpoint]) -> Result<String, Failure> {
        let begin = self.all.len();
        for endpoint in endpoints.iter().take(room_beside(begin)?) {
            let mut peer = Peer::open(device)?;
            peer.end.connect(endpoint)?;
            self.all.push(peer);
        }
        let ours: Vec<Endpoint> = self.all[begin..].iter().map(|p| p.end.qp.endpoint()).collect();
        Ok(serde_json::to_string(&ours)?)
    }

    /// Has those from `begin` to `end` take turns, and says what half of a round trip took, in ns.
    fn run(&mut self, [begin, end, drawn, time_ns]: [u64; 4]) -> Result<f64, Failure> {
        let mut order: Vec<usize> = (begin as usize..end as usize).collect();
        let mut at = 0;
        let measured = median_ns(Duration::from_nanos(time_ns), 2 * ROUNDS, || {
            for _ in 0..ROUNDS {
                if at == 0 && drawn != 0 {
                    draw(&mut order, &mut self.random);
                }
                self.all[order[at]].ask(&mut self.wcs, &mut self.back)?;
                at = (at + 1) % order.len();
            }
            Ok(())
        });
        // What answers are owed an acknowledgement would otherwise wait for the next burst.
        for _ in 0..LAST_TURNS {
            for peer in &self.all[begin as usize..end as usize] {
                peer.opened.context().turn();
            }
        }
        measured
    }
}

/// Another order, which does not begin where this one ends.
fn draw(order: &mut [usize], random: &mut Rng) {
    let Some(&last) = order.last() else { return };
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i + 1));
    }
    if order[0] == last {
        order.swap(0, order.len() - 1);
    }
}

/// How many more adapters this process has descriptors for, beside so many.
fn room_beside(adapters: usize) -> Result<usize, Failure> {
    if adapters == 0 {
        return Ok(AT_ONCE);
    }
    let used = std::fs::read_dir("/proc/self/fd")?.count();
    let limit = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize);
    Ok(limit.saturating_sub(used + SPARE_DESCRIPTORS) / used.div_ceil(adapters))
}

/// Raises the limit of descriptors to so many, or as far as this process may.
fn raise_descriptors(wanted: usize) {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(wanted, |maximum| wanted.min(maximum as usize)) as u64;
    if limit.current.is_some_and(|current| current < most) {
        // Where it can't be, there are fewer peers.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_order_holds_everybody_once_and_nobody_twice_in_a_row() {
        let (mut order, mut random) = ((0..10).collect::<Vec<_>>(), Rng::new(SEED));
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1000 {
            let last = order[9];
            draw(&mut order, &mut random);
            assert_ne!(order[0], last);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..10).collect::<Vec<_>>());
            seen.insert(order.clone());
        }
        assert!(seen.len() > 990, "{} of 1,000 orders are different", seen.len());
    }

    #[test]
    fn one_peer_is_in_any_order() {
        let (mut order, mut random) = (vec![3], Rng::new(SEED));
        draw(&mut order, &mut random);
        assert_eq!(order, [3]);
    }
}
