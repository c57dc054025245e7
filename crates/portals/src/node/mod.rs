//! A node: a process on a device, its interfaces, and the connections to other nodes.

mod device_work;
mod directory;
mod hello;
mod holdings;
mod initiator;
mod interface;
mod leave;
mod meet;
mod peer;
mod ports;
mod post;
mod signal;
mod slab;
mod target;
#[cfg(test)]
mod tests;
mod wait;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use hca_core::{Completion, CqHandle, Instant, OffloadEngine, Qpn, SplitMix64};
use hca_matching::instrument::{self, Part};
use hca_matching::{Jid, Nid, Pid, Rank, Uid};
use hca_process::Fork;
use hca_verbs::{Context, MemoryError};
use rustix::fd::OwnedFd;

pub use directory::{Card, Directory, DirectoryError, Listed};
#[doc(hidden)]
pub use holdings::Holdings;
pub(crate) use interface::{Kind, NiState};

use crate::lock::{Guard, Lock};
use crate::{Memory, OpenError, wire};
use device_work::{DeviceWork, Done, Held, Maker};
use hello::{Identity, NO_RANK};
use leave::{Departures, Leaving};
use peer::Peer;
use ports::{Came, Ports};
pub use signal::Signal;
use signal::{Reactor, Signals};

/// The options of a node. The defaults suit most programs.
#[derive(Clone)]
pub struct NodeOptions {
    /// The longest message that goes with its header, in bytes; the receiver fetches longer ones. All processes of a
    /// job need the same value: a peer with another value gets no answer, and a warning is logged.
    pub eager_bytes: usize,
    /// The number of messages, of all peers together, that can arrive before this node polls.
    pub receive_slots: u32,
    /// The number of messages longer than the device's inline limit that can be on their way, to all peers together.
    pub send_slots: u32,
    /// The number of requests that can be on their way to one peer.
    pub send_depth: u32,
    /// The time limit for a peer's answer to the first hello.
    pub connect_timeout: Duration,
    /// The silence of a peer that owes an answer after which the node sends it a keepalive.
    pub keepalive: Duration,
    /// Whether a device that can match does so while the program computes. Otherwise the program's calls match.
    pub offload: bool,
    /// The process number; `None` takes a number from the device.
    pub pid: Option<Pid>,
    /// The rank of this process in its job.
    pub rank: Option<Rank>,
    /// The number of the job.
    pub jid: Jid,
    /// The secret that the processes of the job share; a peer with another one gets no answer.
    pub key: u64,
    /// The user number that peers see.
    pub uid: Uid,
    /// The directory of the other processes.
    pub directory: Arc<dyn Directory>,
    /// The clock: the time since any fixed moment. `None` is the system's monotonic clock; simulators use their own.
    pub clock: Option<Arc<dyn Fn() -> Duration + Send + Sync>>,
    /// The seed of initial sequence numbers and hashes; `None` is a random seed.
    pub seed: Option<u64>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            eager_bytes: 4096,
            receive_slots: 512,
            send_slots: 256,
            send_depth: 128,
            connect_timeout: Duration::from_secs(10),
            keepalive: Duration::from_secs(1),
            offload: true,
            pid: None,
            rank: None,
            jid: Jid(0),
            key: 0,
            uid: Uid(rustix::process::getuid().as_raw()),
            directory: Arc::new(Listed::default()),
            clock: None,
            seed: None,
        }
    }
}

impl NodeOptions {
    /// The most bytes of device memory that a node takes for its send and receive slots; a device with short receive
    /// queues has fewer slots.
    pub fn slot_bytes(&self) -> u64 {
        let slots = u64::from(self.receive_slots) + u64::from(self.send_slots);
        slots * ports::bytes_of_slot(self.eager_bytes) as u64
    }
}

impl fmt::Debug for NodeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeOptions")
            .field("eager_bytes", &self.eager_bytes)
            .field("offload", &self.offload)
            .field("pid", &self.pid)
            .field("rank", &self.rank)
            .field("jid", &self.jid)
            .finish_non_exhaustive()
    }
}

/// A process's place on a device: where its Portals interfaces live. Cheap to clone.
///
/// It has one connection to each process that it has spoken to, made on first use, and nothing for the others.
#[derive(Clone)]
pub struct Node {
    inner: Arc<Inner>,
}

struct Inner {
    /// A forked child leaves it alone (see the drop).
    state: ManuallyDrop<Lock<State>>,
    card: Card,
    identity: Identity,
    options: NodeOptions,
    context: Context,
    clock: Clock,
    cq: CqHandle,
    /// The device runs the node.
    offloaded: bool,
    fds: OnceLock<Fds>,
    /// Descriptors of event loops.
    signals: Signals,
    /// The thread that wakes futures.
    reactor: OnceLock<Reactor>,
    /// Executes device work.
    maker: Maker,
    /// Finished device work, which the next holder of the lock concludes.
    done: Mutex<Vec<Done>>,
    any_done: AtomicBool,
    departures: Arc<Departures>,
    /// How often a wait has begun to sleep.
    sleeps: AtomicU64,
    /// The process that opened it.
    fork: Fork,
}

/// The bit of [`State::waiters`] that says that signals are armed; the others count.
const ARMED: u32 = 1 << 31;

/// What waiters sleep on.
struct Fds {
    queue: OwnedFd,
    /// A semaphore with a word for each waiter that was called: another thread has found an event that it may wait for.
    found: OwnedFd,
}

/// The time.
#[derive(Clone)]
enum Clock {
    System(std::time::Instant),
    Given(Arc<dyn Fn() -> Duration + Send + Sync>),
}

impl Clock {
    fn now(&self) -> Instant {
        let since = match self {
            Self::System(origin) => origin.elapsed(),
            Self::Given(clock) => clock(),
        };
        Instant::ZERO + since
    }
}

/// All that is under the node's lock.
pub(crate) struct State {
    nis: [Option<Box<NiState>>; Kind::COUNT],
    net: Net,
    free_peers: Vec<u32>,
    by_process: HashMap<(Nid, Pid), u32>,
    by_rank: HashMap<Rank, u32>,
    by_qp: Vec<u32>,
    /// Peers with a backlog that may have become postable.
    ready: Vec<u32>,
    /// Peers that found no room, each once.
    blocked: VecDeque<u32>,
    cards: HashMap<(Nid, Pid), Card>,
    rank_cards: HashMap<Rank, Card>,
    /// Processes that were lost: the directory is asked once more where they are.
    stale: HashSet<(Nid, Pid)>,
    /// What an engine left is being done.
    in_after: bool,
    /// The operation that is being begun may have its target met.
    may_meet: bool,
    /// The device work to execute after the lock is released.
    queued_work: Vec<DeviceWork>,
    /// Ended connections whose queue pairs the device has not released yet, by the number of their attempt.
    leaving: HashMap<u32, Leaving>,
    departures: Arc<Departures>,
    identity: Identity,
    key: u64,
    clock: Clock,
    eager_bytes: usize,
    connect_timeout: Duration,
    /// Queue pairs for peers that were made.
    attempts: u32,
    keepalive: Duration,
    random: SplitMix64,
    /// The time of the next timer.
    timer: Option<Instant>,
    /// The device runs the node.
    offloaded: bool,
    /// The device is to ask for it, as it is sooner than when it did so last.
    sooner: bool,
    /// Where completions are polled to. They are kept, as to clear them for each look would cost more than the look.
    out: Box<[Completion]>,
    looks: u32,
    /// Threads that sleep, or are about to, and were not called.
    waiters: u32,
    /// How often waiters were called.
    calls: u64,
    /// Anything that a waiter may wait for has happened since it was last looked at.
    found: bool,
    counts: Counts,
    /// The device failed; all that is begun fails.
    pub(crate) dead: bool,
}

/// What messages leave by.
struct Net {
    peers: Vec<Option<Box<Peer>>>,
    ports: Ports,
    /// Requests of connected queue pairs that may be on the completion queue.
    in_use: u32,
    /// A queue has filled up by half since completions were looked at.
    crowded: bool,
    /// Bundles that are open, of all interfaces.
    bundles: u32,
    /// Peers with posted requests whose doorbell was not rung.
    unrung: Vec<u32>,
}

/// Counters of a node, beside those of its interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Malformed messages: unreadable, or with impossible values.
    pub malformed: u64,
    /// Hellos with a wrong secret, with other `eager_bytes`, or malformed.
    pub strangers: u64,
    /// The number of established connections.
    pub connected: u64,
    /// The connections that ended with operations under way, or by the peer's fault.
    pub lost: u64,
}

impl Node {
    /// Opens a node on a device.
    ///
    /// # Errors
    /// A limit of the device is reached, or its memory is used up.
    pub fn open(context: &Context, options: NodeOptions) -> Result<Self, OpenError> {
        let mut ports = Ports::open(context, &options)?;
        let port = context.port();
        let pid = options.pid.unwrap_or(Pid(ports.datagrams().raw()));
        let seed = options.seed.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()));
        let identity = Identity {
            nid: directory::nid_of(port.gid),
            pid,
            rank: options.rank.unwrap_or(NO_RANK),
            uid: options.uid,
            jid: options.jid,
            incarnation: incarnation_of(seed),
        };
        let card =
            Card { nid: identity.nid, pid, gid: port.gid, lid: port.lid, datagrams: ports.datagrams() };
        let clock = match &options.clock {
            Some(clock) => Clock::Given(Arc::clone(clock)),
            None => Clock::System(std::time::Instant::now()),
        };
        let cq = ports.cq().handle();
        let (maker, departures) = (ports.maker(), Arc::<Departures>::default());
        let offload = context.device().offload().filter(|_| options.offload);
        let state = State {
            nis: Default::default(),
            net: Net { peers: Vec::new(), ports, in_use: 0, crowded: false, bundles: 0, unrung: Vec::new() },
            free_peers: Vec::new(),
            by_process: HashMap::new(),
            by_rank: HashMap::new(),
            by_qp: Vec::new(),
            ready: Vec::new(),
            blocked: VecDeque::new(),
            cards: HashMap::from([((card.nid, card.pid), card)]),
            stale: HashSet::new(),
            rank_cards: options.rank.map(|rank| (rank, card)).into_iter().collect(),
            in_after: false,
            may_meet: false,
            queued_work: Vec::new(),
            leaving: HashMap::new(),
            departures: Arc::clone(&departures),
            identity,
            key: options.key,
            clock: clock.clone(),
            eager_bytes: options.eager_bytes,
            connect_timeout: options.connect_timeout,
            attempts: 0,
            keepalive: options.keepalive,
            random: SplitMix64::new(seed),
            timer: None,
            offloaded: offload.is_some(),
            sooner: false,
            out: vec![Completion::default(); 16].into(),
            looks: 0,
            waiters: 0,
            calls: 0,
            found: false,
            counts: Counts::default(),
            dead: false,
        };
        let inner = Arc::new(Inner {
            state: ManuallyDrop::new(Lock::new(state)),
            card,
            identity,
            context: context.clone(),
            clock,
            cq,
            offloaded: offload.is_some(),
            fds: OnceLock::new(),
            signals: Signals::default(),
            reactor: OnceLock::new(),
            maker,
            done: Mutex::default(),
            any_done: AtomicBool::new(false),
            departures,
            sleeps: AtomicU64::new(0),
            fork: Fork::new(),
            options,
        });
        if let Some(offload) = offload {
            let engine: Weak<Inner> = Arc::downgrade(&inner);
            offload.attach(cq, engine)?;
        }
        Ok(Self { inner })
    }

    /// Allocates `len` zeroed bytes for messages, aligned to 4096 bytes, in a memory region of their own.
    ///
    /// # Errors
    /// The device has no more memory or regions, or the length is beyond its limit.
    pub fn alloc(&self, len: usize) -> Result<Memory, MemoryError> {
        Memory::alloc(&self.inner.maker.pd, len)
    }
    /// Registers memory of the program's own, if the device can reach such memory.
    ///
    /// # Safety
    /// `addr .. addr + len` is valid for reads and writes until all clones and parts are dropped and all operations on
    /// them are over; meanwhile no reference to these bytes is used, and the program touches them only through the
    /// [`Memory`], or by atomic or volatile access.
    ///
    /// # Errors
    /// The device reaches only memory of its own, or it has no more regions.
    #[allow(unsafe_code)] // hands the caller's promise on
    pub unsafe fn register(&self, addr: NonNull<u8>, len: usize) -> Result<Memory, MemoryError> {
        // SAFETY: as the caller promised.
        unsafe { Memory::register(&self.inner.maker.pd, addr, len) }
    }
    /// The card that other nodes need to find this node.
    pub fn card(&self) -> Card {
        self.inner.card
    }
    /// The node's rank in the job, if it has one.
    pub fn rank(&self) -> Option<Rank> {
        Some(self.inner.identity.rank).filter(|&rank| rank != NO_RANK)
    }
    /// The number of the node's job.
    pub fn jid(&self) -> Jid {
        self.inner.identity.jid
    }
    /// The user number that other nodes see.
    pub fn uid(&self) -> Uid {
        self.inner.identity.uid
    }
    /// Whether the device matches on its own, while the program computes.
    pub fn is_offloaded(&self) -> bool {
        self.inner.offloaded
    }
    /// The device that the node runs on.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }
    /// The options that the node was opened with.
    pub fn options(&self) -> &NodeOptions {
        &self.inner.options
    }
    /// The counters of this node.
    pub fn counts(&self) -> Counts {
        self.with(|state| state.counts)
    }
    /// The number of connections of the node.
    pub fn connections(&self) -> usize {
        self.with(|state| state.net.peers.iter().flatten().count())
    }
    /// Makes progress without waiting, and returns whether there was work. On a device without progress of its own, a
    /// program calls this while it waits for a change of its own memory; all calls that look for events make progress
    /// themselves.
    pub fn progress(&self) -> bool {
        self.with(State::progress)
    }

    /// The time, as the node counts it.
    pub(crate) fn now(&self) -> Instant {
        self.inner.clock.now()
    }
    /// A random number.
    pub(crate) fn draw(&self) -> u64 {
        self.with(State::random)
    }
    /// How many pieces a message's memory may have: long messages name them all to the peer that fetches them.
    pub(crate) fn max_pieces(&self) -> u32 {
        (self.inner.options.eager_bytes / wire::PIECE_BYTES).max(1) as u32
    }
    /// Bytes that go both ways at once, at most: those of an exchange are never fetched.
    pub(crate) fn max_exchange(&self) -> u32 {
        self.inner.options.eager_bytes.min(u32::MAX as usize) as u32
    }
    /// Wakes all waiters.
    pub(crate) fn wake_all(&self) {
        self.inner.wake_all();
    }
    /// Runs `f` on the state, and does what others left to be done meanwhile, and what `f` left to be waited for.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        instrument::begin();
        let mut state = self.inner.state.lock();
        instrument::mark(Part::Lock);
        let result = f(&mut state);
        instrument::begin();
        if state.leaves_work() {
            self.unlock_and_do_left(state);
            return result;
        }
        let wanted = state.unlock();
        instrument::mark(Part::Unlock);
        if wanted {
            self.inner.do_left(true, Left::default());
        }
        result
    }
    #[cold]
    fn unlock_and_do_left(&self, mut state: Guard<'_, State>) {
        let left = state.take_left();
        let wanted = state.unlock();
        self.inner.do_left(wanted, left);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("card", &self.inner.card).finish_non_exhaustive()
    }
}

/// The work that the holder of the lock leaves to be done behind the lock.
#[derive(Default)]
struct Left {
    /// The waiters to wake, as [`State::take_waiters`] counts them.
    wake: u32,
    /// The device is to ask for the deadline.
    sooner: bool,
    queued_work: Vec<DeviceWork>,
}

impl Inner {
    /// Does what was left behind the lock: by other threads, if `wanted`, and by the holder.
    #[cold]
    fn do_left(&self, wanted: bool, Left { wake, sooner, queued_work }: Left) {
        self.wake_and_tell(wake, sooner);
        if wanted || !queued_work.is_empty() {
            self.after_unlock(wanted, queued_work);
        }
    }
    fn wake_and_tell(&self, wake: u32, sooner: bool) {
        if wake > 0 {
            self.wake(wake);
        }
        if sooner {
            self.tell_deadline();
        }
    }
    /// Does the work that was left while the node was held: by other threads, if `wanted`, and by the holder.
    #[cold]
    fn after_unlock(&self, wanted: bool, mut queued_work: Vec<DeviceWork>) -> bool {
        let more = wanted && self.catch_up(&mut queued_work);
        if !queued_work.is_empty() {
            self.carry_out(queued_work);
        }
        more
    }
    /// Handles what arrived while the node was held; returns whether more is left. Device work is added to `queued_work`.
    #[cold]
    fn catch_up(&self, queued_work: &mut Vec<DeviceWork>) -> bool {
        loop {
            let Some(mut state) = self.state.lock_or_notify_holder() else { return false };
            for done in self.take_done() {
                if let Err(error) = state.conclude(done) {
                    tracing::warn!(%error, "a Portals peer can't be connected to");
                }
            }
            let more = state.progress() | state.run_timers();
            let Left { wake, sooner, queued_work: new } = state.take_left();
            queued_work.extend(new);
            let wanted = state.unlock();
            self.wake_and_tell(wake, sooner);
            if !wanted {
                return more;
            }
        }
    }
}

impl Inner {
    /// Has a device that runs the node ask when it wants to be run.
    #[cold]
    fn tell_deadline(&self) {
        if let Some(offload) = self.context.device().offload()
            && let Err(error) = offload.nudge(self.cq)
        {
            tracing::warn!(%error, "the device does not run the node's engine");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A forked child leaks the state: a thread of its parent may have held the lock at the fork, and have changed a
        // part of the state by half.
        if self.fork.is_child() {
            return;
        }
        if let Some(offload) = self.context.device().offload().filter(|_| self.offloaded)
            && let Err(error) = offload.detach(self.cq)
        {
            tracing::warn!(%error, "the device keeps the node's engine");
        }
        let mut state = self.state.lock();
        state.close();
        drop(state);
        // A forked child leaves the state undropped, which is why the state is dropped by hand.
        // SAFETY: the state is not used again.
        #[allow(unsafe_code)]
        unsafe {
            ManuallyDrop::drop(&mut self.state);
        }
    }
}

/// The node, as the device runs it.
impl OffloadEngine for Inner {
    fn run(&self) -> bool {
        self.after_unlock(true, Vec::new())
    }
    fn next_deadline(&self) -> Option<Duration> {
        // The holder makes the device ask again, if there is something new.
        let mut state = self.state.try_lock()?;
        let timer = state.timer;
        state.sooner = false;
        let queued_work = std::mem::take(&mut state.queued_work);
        let wanted = state.unlock();
        self.after_unlock(wanted, queued_work);
        timer.map(|timer| timer.since(self.clock.now()))
    }
}

impl Net {
    #[inline]
    fn peer(&mut self, peer: u32) -> &mut Peer {
        self.peers[peer as usize].as_mut().expect("a peer that is there")
    }
}

impl State {
    /// Handles new completions and their consequences; returns whether there were any.
    pub(crate) fn progress(&mut self) -> bool {
        self.net.crowded = false;
        // A caller that looks for events waits for its own operations.
        if !self.net.unrung.is_empty() {
            self.net.ring();
        }
        let n = self.net.ports.poll(&mut self.out);
        for i in 0..n {
            let wc = self.out[i];
            self.came(&wc);
        }
        if n > 0 {
            self.give_back_slots();
        }
        if !self.ready.is_empty() {
            self.post_backlogs();
        }
        if !self.net.unrung.is_empty() {
            // Answers that were given within a bundle.
            self.net.ring();
        }
        self.looks = self.looks.wrapping_add(1);
        if self.timer.is_some() && (n == 0 && self.looks.is_multiple_of(32)) {
            return self.run_timers();
        }
        n > 0
    }
    /// Looks for completions where a program that only sends would fill its queues.
    #[inline]
    pub(crate) fn make_room(&mut self) {
        if self.net.crowded {
            self.progress();
        }
    }
    #[inline(always)]
    pub(super) fn came(&mut self, wc: &Completion) {
        // Of copies, so that the original need not be in memory.
        let Came::Message { slot, len } = self.net.ports.sort(wc) else { return self.other_came(&{ *wc }) };
        match self.peer_of(wc) {
            Some(peer) => {
                let message = self.net.ports.message(slot, len);
                self.heard(peer, message.as_bytes());
            }
            None => self.polled_late(&{ *wc }, slot),
        }
        self.net.ports.used(slot);
    }
    /// What is no message came.
    #[inline(never)]
    fn other_came(&mut self, wc: &Completion) {
        match self.net.ports.sort(wc) {
            Came::Message { .. } => unreachable!("messages were looked at"),
            Came::Sent => self.request_done(wc),
            Came::Datagram { slot, len } => {
                if let Some((grh, bytes)) = self.net.ports.datagram(slot, len) {
                    self.hear_hello(&grh, &bytes);
                }
                if let Err(error) = self.net.ports.give_back_datagram(slot) {
                    self.device_failed(&error);
                }
            }
            Came::Unused { slot } => {
                self.polled_late(wc, slot);
                self.net.ports.used(slot);
            }
            Came::HelloSent { well } => {
                let (path, broken) = self.net.ports.hello_sent(well);
                self.queued_work.extend(path.map(|path| DeviceWork::LetGo(Held::Path(path))));
                self.queued_work.extend(broken.map(|qp| DeviceWork::Revive { qp }));
            }
            Came::Nothing => {}
        }
    }
    #[inline]
    fn give_back_slots(&mut self) {
        if let Err(error) = self.net.ports.give_back(false) {
            self.device_failed(&error);
        }
    }
    #[cold]
    fn device_failed(&mut self, error: &dyn fmt::Display) {
        if !std::mem::replace(&mut self.dead, true) {
            tracing::error!(%error, "the device takes no more receive requests of a Portals node");
        }
        self.found = true;
    }
    /// The answer to a waiter that has found nothing: on a failed device nothing comes any more.
    fn has_nothing_to_come<R>(&self) -> Result<Option<R>, crate::Error> {
        if self.dead { Err(crate::Error::Device) } else { Ok(None) }
    }
    /// The peer whose queue pair a completion is of.
    #[inline]
    pub(super) fn peer_of(&self, wc: &Completion) -> Option<u32> {
        let &peer = self.by_qp.get(wc.qp.index as usize)?;
        let of = self.net.peers.get(peer as usize)?.as_ref()?;
        (of.handle == Some(wc.qp)).then_some(peer)
    }
    #[inline]
    fn peer(&mut self, peer: u32) -> &mut Peer {
        self.net.peer(peer)
    }
    /// Whether the holder leaves anything to be done behind the lock.
    #[inline(always)]
    fn leaves_work(&self) -> bool {
        self.waiters > 0 && self.found || self.sooner || !self.queued_work.is_empty()
    }
    #[cold]
    fn take_left(&mut self) -> Left {
        let wake = if self.waiters > 0 && std::mem::take(&mut self.found) { self.take_waiters() } else { 0 };
        Left { wake, sooner: self.sooner, queued_work: std::mem::take(&mut self.queued_work) }
    }
    /// The number of waiters to wake, and whether to raise signals ([`ARMED`]), which disarms them. They are called by
    /// that, each once.
    #[cold]
    fn take_waiters(&mut self) -> u32 {
        self.calls += 1;
        std::mem::take(&mut self.waiters)
    }
    /// A random number.
    fn random(&mut self) -> u64 {
        self.random.next_u64()
    }
    /// Says goodbye, as far as that needs no waiting.
    fn close(&mut self) {
        let up: Vec<u32> = (0..self.net.peers.len() as u32)
            .filter(|&i| self.net.peers[i as usize].as_ref().is_some_and(|peer| peer.is_clear()))
            .collect();
        for peer in up {
            self.post(peer, peer::Out::Bye);
        }
    }
    /// The job's secret is known.
    pub(crate) fn set_key(&mut self, key: u64) {
        self.key = key;
    }
    /// Where datagrams to this node go.
    fn datagrams(&self) -> Qpn {
        self.net.ports.datagrams()
    }
}

/// Of a node that draws its numbers from this seed: none of those numbers.
fn incarnation_of(seed: u64) -> u64 {
    SplitMix64::mix(seed ^ 0x6e6f_6465)
}
