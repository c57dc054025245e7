//! A simulation: nodes, tasks and actors on one network, and the loop that moves them.

use core::any::Any;
use core::cell::{Cell, RefCell};
use core::future::Future;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use hca_core::{Device, DeviceError, Instant};
use hca_fabric::{AutoFabric, Fabric};

use crate::executor::{Executor, JoinHandle};
use crate::fabric::SimFabric;
use crate::near::Chances;
use crate::trace::Event;
use crate::{LinkProfile, NearProfile, NetStats, Rng, SimNet, Violation};

/// Rounds in which something happens while no time passes; more is a livelock.
const MAX_ROUNDS_AT_ONE_TIME: u32 = 50_000;
/// Turns in a row that say they did something; more is a livelock of the device.
const MAX_TURNS_AT_ONE_TIME: u32 = 50_000;

/// Tells the random numbers of neighbours from all others of a seed.
const NEAR_STREAM: u64 = 0x4e45_4152 << 32;
/// How long a node that waits for room in a ring or a send buffer lets pass between its first two tries. Later ones are
/// further apart, up to 2^[`MAX_SPIN_SHIFT`] times as far.
const SPIN: Duration = Duration::from_nanos(200);
const MAX_SPIN_SHIFT: u32 = 7;

/// Simulations of this process so far.
static SIMULATIONS: AtomicU64 = AtomicU64::new(0);

/// The next step that an [`Actor`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Another step as soon as any adapter has made progress.
    OnProgress,
    /// Another step as soon as any adapter has made progress, at the latest after this time.
    After(Duration),
    /// No step any more.
    Done,
}

/// A program that polls: the simulation calls it again and again, and time passes only between the calls.
pub trait Actor {
    /// Does the work that is possible now: polls completions, posts requests. Must not wait.
    fn step(&mut self, now: Instant) -> Step;
}
impl<F: FnMut(Instant) -> Step> Actor for F {
    fn step(&mut self, now: Instant) -> Step {
        self(now)
    }
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The simulation is idle: no packet, timer or task is left that could move.
    Idle,
    /// The given time is over.
    TimeOver,
}

/// Opens the adapter of a node: gets its network, the virtual clock in nanoseconds and a seed.
type Opener = dyn Fn(Box<dyn Fabric>, Arc<AtomicU64>, u64) -> Result<Arc<dyn Device>, DeviceError>;

/// The settings of a simulation.
pub struct SimBuilder {
    seed: u64,
    ipv6: bool,
    print: bool,
    profile: LinkProfile,
    near: Option<NearProfile>,
    replay: Option<String>,
    opener: Box<Opener>,
}

impl SimBuilder {
    /// Sets whether nodes have IPv6 addresses.
    #[must_use]
    pub fn ipv6(mut self, on: bool) -> Self {
        self.ipv6 = on;
        self
    }
    /// Sets the profile of every link.
    #[must_use]
    pub fn links(mut self, profile: &LinkProfile) -> Self {
        self.profile = profile.clone();
        self
    }
    /// Lets nodes share machines, and shared memory there, as adapters on `auto://` do.
    #[must_use]
    pub fn near(mut self, profile: Option<NearProfile>) -> Self {
        self.near = profile;
        self
    }
    /// Sets whether every event is printed as it happens.
    #[must_use]
    pub fn print_trace(mut self, on: bool) -> Self {
        self.print = on;
        self
    }
    /// Sets the command that a violation names for its replay.
    #[must_use]
    pub fn replay(mut self, command: impl Into<String>) -> Self {
        self.replay = Some(command.into());
        self
    }
    /// Opens adapters by this function instead of `SoftHca::open`. It gets the node's network, the
    /// virtual clock in nanoseconds and a seed for keys.
    #[must_use]
    pub fn opener(
        mut self,
        open: impl Fn(Box<dyn Fabric>, Arc<AtomicU64>, u64) -> Result<Arc<dyn Device>, DeviceError> + 'static,
    ) -> Self {
        self.opener = Box::new(open);
        self
    }
    /// The simulation, without nodes yet.
    pub fn build(self) -> Sim {
        let mut rng = Rng::new(self.seed);
        let net = SimNet::new(rng.fork(), self.ipv6);
        net.lock().trace.set_print(self.print);
        net.set_profile(&self.profile);
        net.lock().near = self.near.map(|profile| Chances::new(profile, Rng::new(self.seed ^ NEAR_STREAM)));
        let executor = Executor::new(net.clone(), rng.fork());
        let seed = self.seed;
        let inner = Inner {
            seed,
            net,
            executor,
            nodes: RefCell::default(),
            actors: RefCell::default(),
            rng: RefCell::new(rng),
            opener: self.opener,
            replay: self.replay.unwrap_or_else(|| replay_command(seed)),
            turns: Cell::new(0),
            number: SIMULATIONS.fetch_add(1, Ordering::Relaxed),
            spins: Cell::new(0),
        };
        Sim { inner: Rc::new(inner) }
    }
}

/// How the running test is replayed; its name is that of its thread.
fn replay_command(seed: u64) -> String {
    match std::thread::current().name() {
        Some(name) if name != "main" => format!("HCA_SIM_SEED={seed} cargo test {name}"),
        _ => format!("HCA_SIM_SEED={seed} and the same command again"),
    }
}

struct NodeState {
    device: Option<Arc<dyn Device>>,
    /// Something may have happened to it: it is to be turned.
    dirty: bool,
    deadline: Option<Instant>,
    stalled: bool,
}

struct ActorState {
    /// `None` while it runs.
    actor: Option<Box<dyn Actor>>,
    due: Option<Instant>,
    waits_for_progress: bool,
}

struct Inner {
    seed: u64,
    net: SimNet,
    executor: Rc<Executor>,
    nodes: RefCell<Vec<NodeState>>,
    actors: RefCell<Vec<ActorState>>,
    rng: RefCell<Rng>,
    opener: Box<Opener>,
    replay: String,
    turns: Cell<u64>,
    /// Tells it from the other simulations of this process.
    number: u64,
    /// Times in a row that nothing was due but what was due already.
    spins: Cell<u32>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _entered = self.executor.enter();
        self.executor.clear();
        self.actors.borrow_mut().clear();
        self.nodes.borrow_mut().clear();
    }
}

/// Many adapters on one hostile network, in virtual time, from one seed. Clones are the same
/// simulation, so that tasks can break links and crash nodes while it runs.
///
/// Everything happens on the thread that calls [`run`](Self::run): the same seed and the same program
/// give the same events at the same times, which [`trace_hash`](Self::trace_hash) proves.
#[derive(Clone)]
pub struct Sim {
    inner: Rc<Inner>,
}

impl Sim {
    /// A simulation of clean links.
    pub fn new(seed: u64) -> Self {
        Self::builder(seed).build()
    }
    /// A simulation with settings.
    pub fn builder(seed: u64) -> SimBuilder {
        SimBuilder {
            seed,
            ipv6: false,
            print: std::env::var_os("HCA_SIM_TRACE").is_some(),
            profile: LinkProfile::default(),
            near: None,
            replay: None,
            opener: Box::new(crate::adapter::open),
        }
    }

    /// The seed of this run.
    pub fn seed(&self) -> u64 {
        self.inner.seed
    }
    /// The network between the nodes.
    pub fn net(&self) -> &SimNet {
        &self.inner.net
    }
    /// The counts of the network so far.
    pub fn stats(&self) -> NetStats {
        self.inner.net.stats()
    }
    /// The virtual time of the simulation.
    pub fn now(&self) -> Instant {
        self.inner.net.now()
    }
    /// An independent random number generator.
    pub fn rng(&self) -> Rng {
        self.inner.rng.borrow_mut().fork()
    }
    /// A hash of every event so far, its time included.
    pub fn trace_hash(&self) -> u64 {
        self.inner.net.lock().trace.hash()
    }
    /// The number of events so far.
    pub fn events(&self) -> u64 {
        self.inner.net.lock().trace.count()
    }
    /// Prints every event from now on.
    pub fn print_trace(&self, on: bool) {
        self.inner.net.lock().trace.set_print(on);
    }
    pub(crate) fn say(&self, text: &str) {
        self.inner.net.lock().trace.say(self.now(), text);
    }
    /// Whether every event is printed.
    pub(crate) fn prints(&self) -> bool {
        self.inner.net.lock().trace.prints()
    }
    /// Adds a note to the events.
    pub fn note(&self, text: impl Into<String>) {
        self.inner.net.event(Event::Note(text.into()));
    }
    pub(crate) fn event(&self, event: Event) {
        self.inner.net.event(event);
    }

    /// Adds a node with an adapter of its own.
    ///
    /// # Panics
    /// If its adapter can't be opened.
    pub fn add_node(&self) -> Node {
        let index = self.inner.net.lock().add_port();
        let state = NodeState { device: None, dirty: false, deadline: None, stalled: false };
        self.inner.nodes.borrow_mut().push(state);
        let node = Node { sim: self.clone(), index };
        node.restart();
        node
    }
    /// A node by its number.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn node(&self, index: usize) -> Node {
        assert!(index < self.nodes(), "node {index} of {}", self.nodes());
        Node { sim: self.clone(), index }
    }
    /// The number of added nodes.
    pub fn nodes(&self) -> usize {
        self.inner.nodes.borrow().len()
    }

    /// Starts a task that belongs to no node.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        self.inner.executor.spawn(None, future)
    }
    /// Adds a program that polls.
    pub fn add_actor(&self, actor: impl Actor + 'static) {
        let actor: Option<Box<dyn Actor>> = Some(Box::new(actor));
        let due = Some(self.now());
        self.inner.actors.borrow_mut().push(ActorState { actor, due, waits_for_progress: true });
    }

    /// A report of a violated guarantee, with the seed, the time and the last events.
    pub fn violation(&self, what: impl Into<String>) -> Violation {
        Violation {
            seed: self.inner.seed,
            at: self.now(),
            what: what.into(),
            events: self.inner.net.lock().trace.last(),
            replay: self.inner.replay.clone(),
        }
    }

    /// Runs until the simulation is idle.
    ///
    /// # Errors
    /// A task, an actor or an adapter panicked, or the simulation moves for ever while no time passes.
    pub fn run(&self) -> Result<Outcome, Violation> {
        self.run_until(Instant::from_nanos(u64::MAX))
    }
    /// Runs for this long at most.
    ///
    /// # Errors
    /// As of [`run`](Self::run).
    pub fn run_for(&self, time: Duration) -> Result<Outcome, Violation> {
        self.run_until(self.now() + time)
    }
    /// Runs until the simulation is idle, or this time has come.
    ///
    /// # Errors
    /// As of [`run`](Self::run).
    pub fn run_until(&self, end: Instant) -> Result<Outcome, Violation> {
        self.guarded(|| {
            while self.advance(end)? {}
            Ok(if self.next_event(self.now()).is_none() { Outcome::Idle } else { Outcome::TimeOver })
        })
    }
    /// Runs until this future is ready.
    ///
    /// # Errors
    /// As of [`run`](Self::run), or the simulation is idle and the future still waits.
    pub fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Result<T, Violation> {
        let handle = self.spawn(future);
        self.guarded(|| {
            let end = Instant::from_nanos(u64::MAX);
            while !handle.is_finished() && self.advance(end)? {}
            match handle.try_take() {
                Some(Ok(value)) => Ok(value),
                _ => Err(self.violation("nothing can happen any more, but the program still waits")),
            }
        })
    }

    /// Turns a panic into a violation, so that it names its seed.
    pub(crate) fn guarded<T>(&self, run: impl FnOnce() -> Result<T, Violation>) -> Result<T, Violation> {
        let _entered = self.inner.executor.enter();
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(done) => done,
            Err(panic) => match panic.downcast::<Violation>() {
                Ok(violation) => Err(*violation),
                Err(panic) => Err(self.violation(format!("panic: {}", panic_text(&*panic)))),
            },
        }
    }

    /// Does everything that can be done now, then lets time pass to the next event. `false`: there is
    /// none before `end`.
    fn advance(&self, end: Instant) -> Result<bool, Violation> {
        self.settle()?;
        self.look_at_neighbours();
        let now = self.now();
        match self.next_event(now) {
            Some(at) if at <= end => {
                let spins = &self.inner.spins;
                spins.set(if at == self.spin_end(now) { (spins.get() + 1).min(MAX_SPIN_SHIFT) } else { 0 });
                self.inner.net.clock().store(at.as_nanos(), Ordering::Relaxed);
                self.wake_what_is_due();
                Ok(true)
            }
            _ => {
                if end.as_nanos() != u64::MAX && end > now {
                    self.inner.net.clock().store(end.as_nanos(), Ordering::Relaxed);
                }
                Ok(false)
            }
        }
    }

    fn is_near(&self) -> bool {
        self.inner.net.lock().near.is_some()
    }
    /// Finds out which nodes have something of a neighbour's to look at.
    fn look_at_neighbours(&self) {
        if !self.is_near() {
            return;
        }
        let count = self.inner.nodes.borrow().len();
        for n in 0..count {
            let device = {
                let node = &self.inner.nodes.borrow()[n];
                if node.stalled { None } else { node.device.clone() }
            };
            let Some(device) = device else { continue };
            let deadline = device.next_deadline().map(|d| self.now() + d);
            self.inner.nodes.borrow_mut()[n].deadline = deadline;
        }
    }

    /// When what is due now, and can't be done now, is tried again.
    fn spin_end(&self, now: Instant) -> Instant {
        now + SPIN * (1 << self.inner.spins.get())
    }
    /// When something happens next. What is due now and was not done by `settle` would be due for ever: it is a little
    /// later.
    fn next_event(&self, now: Instant) -> Option<Instant> {
        let again = self.spin_end(now);
        let nodes = self.inner.nodes.borrow();
        let actors = self.inner.actors.borrow();
        let deadlines = nodes.iter().filter(|n| !n.stalled && n.device.is_some()).filter_map(|n| n.deadline);
        let steps = actors.iter().filter_map(|a| a.due);
        let arrival = self.inner.net.next_arrival().into_iter();
        let look = self.inner.net.lock().next_look(now);
        let all = arrival.chain(look).chain(self.inner.executor.next_timer()).chain(deadlines).chain(steps);
        all.map(|at| if at > now { at } else { again }).min()
    }

    fn wake_what_is_due(&self) {
        let now = self.now();
        let mut nodes = self.inner.nodes.borrow_mut();
        self.inner.net.deliver(|node| nodes[node].dirty = true);
        for (n, node) in nodes.iter_mut().enumerate() {
            node.dirty |=
                node.deadline.is_some_and(|d| d <= now) || self.inner.net.lock().look_is_due(n, now);
        }
        drop(nodes);
        self.inner.executor.fire_timers();
    }

    /// Turns adapters and runs programs until nothing moves at this time any more.
    fn settle(&self) -> Result<(), Violation> {
        for _ in 0..MAX_ROUNDS_AT_ONE_TIME {
            let moved = self.turn_devices()?;
            let stepped = self.step_actors(moved);
            let ran = self.inner.executor.run_ready() > 0;
            if stepped || ran {
                // Programs may have posted anywhere.
                self.inner.nodes.borrow_mut().iter_mut().for_each(|n| n.dirty = true);
            } else if !moved {
                return Ok(());
            }
        }
        Err(self.violation("livelock: something moves for ever while no time passes"))
    }

    fn turn_devices(&self) -> Result<bool, Violation> {
        let mut moved = false;
        let count = self.inner.nodes.borrow().len();
        for n in 0..count {
            let device = {
                let node = &mut self.inner.nodes.borrow_mut()[n];
                if !core::mem::take(&mut node.dirty) || node.stalled {
                    continue;
                }
                node.device.clone()
            };
            let Some(device) = device else { continue };
            let mut turns = 0;
            while device.turn() {
                moved = true;
                turns += 1;
                if turns == MAX_TURNS_AT_ONE_TIME {
                    return Err(self.violation(format!("livelock: the adapter of n{n} never stops turning")));
                }
            }
            self.inner.turns.set(self.inner.turns.get() + u64::from(turns) + 1);
            let deadline = device.next_deadline().map(|d| self.now() + d);
            self.inner.nodes.borrow_mut()[n].deadline = deadline;
        }
        Ok(moved)
    }

    fn step_actors(&self, moved: bool) -> bool {
        let now = self.now();
        let mut stepped = false;
        let count = self.inner.actors.borrow().len();
        for n in 0..count {
            let mut actor = {
                let state = &mut self.inner.actors.borrow_mut()[n];
                let due = state.due.is_some_and(|d| d <= now);
                let progressed = moved && state.waits_for_progress;
                if !due && !progressed {
                    continue;
                }
                match state.actor.take() {
                    Some(actor) => actor,
                    None => continue,
                }
            };
            stepped = true;
            let step = actor.step(now);
            let state = &mut self.inner.actors.borrow_mut()[n];
            state.waits_for_progress = step != Step::Done;
            state.due = match step {
                Step::After(d) => Some(now + d.max(Duration::from_nanos(1))),
                Step::OnProgress | Step::Done => None,
            };
            if step != Step::Done {
                state.actor = Some(actor);
            }
        }
        stepped
    }

    /// The number of tasks that have not ended.
    pub fn tasks(&self) -> usize {
        self.inner.executor.tasks()
    }
    /// The number of turns of all adapters so far.
    pub fn turns(&self) -> u64 {
        self.inner.turns.get()
    }
    /// What will happen yet, for a report.
    pub(crate) fn still_moving(&self) -> String {
        let now = self.now();
        let nodes = self.inner.nodes.borrow();
        let timers = nodes.iter().enumerate().filter_map(|(n, node)| Some((n, node.deadline?)));
        let mut out: String =
            timers.map(|(n, at)| format!("\n  n{n} wants a turn in {:?}", at.since(now))).collect();
        if let Some(at) = self.inner.net.next_arrival() {
            out += &format!("\n  a frame arrives in {:?}", at.since(now));
        }
        if let Some(at) = self.inner.actors.borrow().iter().filter_map(|a| a.due).min() {
            out += &format!("\n  a program has its step in {:?}", at.since(now));
        }
        if let Some(at) = self.inner.executor.next_timer() {
            out += &format!("\n  a task wakes in {:?}", at.since(now));
        }
        if let Some(at) = self.inner.net.lock().next_look(now) {
            out += &format!("\n  a node looks at its neighbours in {:?}", at.since(now));
        }
        out
    }
}

thread_local! {
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Suppresses the messages of panics from now on; the violation that a panic causes includes the message, with its
/// place. For programs that run many seeds.
pub fn report_panics_only() {
    std::panic::set_hook(Box::new(|info| {
        LAST_PANIC.with(|p| *p.borrow_mut() = Some(info.to_string()));
    }));
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = LAST_PANIC.with(|p| p.borrow_mut().take()) {
        text
    } else if let Some(s) = panic.downcast_ref::<&str>() {
        (*s).into()
    } else if let Some(s) = panic.downcast_ref::<String>() {
        s.clone()
    } else {
        "of an unknown kind".into()
    }
}

/// One node of a simulation; clones are the same node.
#[derive(Clone)]
pub struct Node {
    sim: Sim,
    index: usize,
}

impl Node {
    /// The number, from 0.
    pub fn index(&self) -> usize {
        self.index
    }
    /// The address of the node.
    pub fn address(&self) -> IpAddr {
        self.sim.net().address(self.index)
    }
    /// The adapter of the node.
    ///
    /// # Panics
    /// While the node is down.
    pub fn device(&self) -> Arc<dyn Device> {
        let nodes = self.sim.inner.nodes.borrow();
        nodes[self.index].device.clone().expect("the node has crashed; restart it first")
    }
    /// The adapter behind verbs, with initial PSNs that the seed decides.
    ///
    /// # Panics
    /// While the node is down.
    pub fn context(&self) -> hca_verbs::Context {
        let seed = self.sim.inner.rng.borrow_mut().next_u64();
        hca_verbs::Context::with_seed(self.device(), seed)
    }
    /// Whether the node is up: it has not crashed.
    pub fn is_up(&self) -> bool {
        self.sim.inner.nodes.borrow()[self.index].device.is_some()
    }
    /// Starts a task that is dropped when the node crashes.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        self.sim.inner.executor.spawn(Some(self.index), future)
    }
    /// Crashes the node: its tasks and its adapter are dropped, with all that they hold. Packets that it has sent are
    /// still under way; packets for it are lost.
    pub fn crash(&self) {
        let device = {
            let node = &mut self.sim.inner.nodes.borrow_mut()[self.index];
            node.deadline = None;
            node.stalled = false;
            node.device.take()
        };
        if device.is_none() {
            return;
        }
        self.sim.net().lock().close_port(self.index);
        self.sim.event(Event::Crashed(self.index));
        self.sim.inner.executor.cancel_node(self.index);
        drop(device);
    }
    /// Opens a new adapter at the node's address, without state of the old one. Does nothing while the node is up.
    ///
    /// # Panics
    /// If the adapter can't be opened.
    pub fn restart(&self) {
        if self.is_up() {
            return;
        }
        let inner = &self.sim.inner;
        let fabric = SimFabric::open(&inner.net, self.index);
        let profile = inner.net.lock().near.as_ref().map(|n| n.profile.clone());
        let fabric: Box<dyn Fabric> = match profile {
            Some(near) => {
                let machine = format!("{}-{}", inner.number, self.index % near.machines.max(1));
                let chance = Box::new(fabric.chance());
                match AutoFabric::simulated(Box::new(fabric), &machine, &near.options(), chance) {
                    Ok(fabric) => Box::new(fabric),
                    Err(e) => panic!("shared memory of n{} can't be opened: {e}", self.index),
                }
            }
            None => Box::new(fabric),
        };
        let seed = inner.rng.borrow_mut().next_u64();
        let clock = Arc::clone(inner.net.clock());
        let device = match (inner.opener)(fabric, clock, seed) {
            Ok(device) => device,
            Err(e) => panic!("the adapter of n{} can't be opened: {e}", self.index),
        };
        let node = &mut inner.nodes.borrow_mut()[self.index];
        node.device = Some(device);
        node.dirty = true;
        self.sim.event(Event::Opened(self.index));
    }
    /// Stalls the node: its adapter runs no turns, while its buffer fills and overflows. Its tasks go on.
    pub fn stall(&self) {
        self.sim.inner.nodes.borrow_mut()[self.index].stalled = true;
        self.sim.event(Event::Stalled(self.index));
    }
    /// Resumes a stalled node.
    pub fn resume(&self) {
        let node = &mut self.sim.inner.nodes.borrow_mut()[self.index];
        node.stalled = false;
        node.dirty = true;
        self.sim.event(Event::Resumed(self.index));
    }
}
