//! The connection manager of a context: the machine, its queue pair, and those that run it.
//!
//! A device that runs engines of the layers above ([`Device::offload`]) runs the manager, too: the thread that finds a
//! datagram handles it, and no other thread wakes. On other devices, and where only the program's calls move the
//! device, the manager has a thread.
//!
//! A run never waits for the state. The program's thread that holds the state may be in a call of the device, which
//! would run the manager on that very thread. A run that finds the state held leaves a note, and the holder runs the
//! manager once it has given the state back.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use hca_core::{CqHandle, Device, Instant, Offload, OffloadEngine};
use hca_process::{Fork, PerProcess};
use hca_verbs::{
    AddressVector, AhCache, BuildError, Context, DeviceError, Gid, Grh, Inline, Mtu, Qkey, Qpn, SendQueue, Ud,
};

use super::ConnectionError;
use super::agent::Sink;
use super::alarm::Alarm;
use super::bell::Bell;
use super::noted::Noted;
use super::port::{Next, Port};
use super::wait::{Subject, Waiters};
use crate::wire::{CommId, Guid, MAD_BYTES, Rep, Req, Resolution};
use crate::{CmError, Config, Event, Failure, Machine, Peer, Resolve, ServiceId, Transmit};

/// The Q_Key of queue pair 1.
const GENERAL_SERVICES_QKEY: Qkey = Qkey::new(0x8001_0000);
pub(super) const GENERAL_SERVICES: Qpn = Qpn::new(1);
/// Datagrams that can arrive while the manager does not run.
const RECEIVES: u32 = 256;
/// Datagrams that can be sent before their completions are taken.
const SENDS: u32 = 256;
/// Completions of sends are taken if there may be so many. They have nobody run the manager.
const SENDS_TO_TAKE: u32 = SENDS / 4;
/// Paths to peers that are kept.
const PATHS: usize = 1024;

/// The end of a manager is waited for so often, with pauses of this length.
const END_TRIES: u32 = 10_000;
const END_PAUSE: Duration = Duration::from_millis(1);

/// A manager that ends waits so long for the answers to its last DREQs, and sends them again so often meanwhile: nobody
/// does so later.
const LINGER: Duration = Duration::from_millis(100);
const REPEAT: Duration = Duration::from_millis(10);

/// The right to a connection or a resolution. Dropped, it ends what it names.
pub(super) struct Held {
    pub(super) manager: Arc<Manager>,
    pub(super) id: CommId,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.id.fmt(f)
    }
}
impl Drop for Held {
    fn drop(&mut self) {
        if !self.manager.is_in_child() {
            self.manager.call(|state, now| state.forget(now, self.id));
        }
    }
}

/// A program's view of a connection.
#[derive(Debug, Default)]
pub(super) struct Status {
    pub(super) reply: Option<Rep>,
    pub(super) established: Option<Vec<u8>>,
    pub(super) end: Option<End>,
    /// The end of the time that the program gives the peer.
    give_up: Option<Instant>,
}

/// The end of a connection.
#[derive(Clone, Debug)]
pub(super) enum End {
    Rejected(crate::wire::Reason, Vec<u8>),
    Failed(Failure),
    TimedOut,
    Disconnected,
    Done,
}

/// A request that the program has not taken yet.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) id: CommId,
    pub(super) from: Peer,
    pub(super) request: Request,
}

#[derive(Debug)]
pub(super) enum Request {
    Connection(Box<Req>),
    Datagram(Box<crate::wire::SidrReq>),
}

/// Moves a connection's queue pair to the error state.
type Stop = Box<dyn Fn() + Send>;

pub(super) struct State {
    pub(super) machine: Machine,
    sq: SendQueue<Ud>,
    paths: AhCache,
    pub(super) conns: HashMap<CommId, Status>,
    stops: HashMap<CommId, Stop>,
    pub(super) asked: HashMap<ServiceId, VecDeque<Asked>>,
    pub(super) resolved: HashMap<CommId, Option<(Peer, Resolution, Vec<u8>)>>,
    /// The receivers of events about what layers above do by themselves ([`super::Agent`]).
    pub(super) sinks: HashMap<Subject, Arc<dyn Sink>>,
    waiters: Waiters,
    /// Connections that have so much time to be established.
    give_up: BTreeSet<(Instant, CommId)>,
    /// The last peer to which there is no path.
    no_path: Option<(Gid, DeviceError)>,
    /// When the manager went: its thread ends. Its unanswered DREQs are sent again at the second time.
    ended: Option<(Instant, Instant)>,
    stopped: Option<String>,
    /// The receiving side, where the device runs the manager.
    port: Option<Port>,
}

/// The connection manager of a context, which ends with its last listener, connection and resolution. The device or the
/// thread that runs it has no part in that, so that the queue pair is gone when the last of them is.
pub(super) struct Manager {
    core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
}

impl Deref for Manager {
    type Target = Core;
    fn deref(&self) -> &Core {
        &self.core
    }
}

/// The state that a manager shares with the device or the thread that runs it.
pub(super) struct Core {
    pub(super) gid: Gid,
    pub(super) mtu: Mtu,
    pub(super) device: Arc<dyn Device>,
    begun: std::time::Instant,
    fork: Fork,
    state: Noted<State>,
    alarm: Alarm,
    /// The queue of datagrams, where the device runs the manager.
    queue: Option<CqHandle>,
    /// Wakes the thread.
    bell: Bell,
    /// The last field: the sending half of the queue pair goes before it.
    _until_gone: UntilGone,
}

/// Exists until both halves of a manager's queue pair are gone.
pub(super) type UntilGone = Arc<()>;

/// A manager that a device has, or had: its queue pair may outlive it.
struct Known {
    manager: Weak<Manager>,
    queue_pair: Weak<()>,
}

thread_local! {
    /// The manager that the device runs on this thread.
    static RUNS: Cell<*const Core> = const { Cell::new(std::ptr::null()) };
}

/// The managers of this process, by their devices.
static MANAGERS: PerProcess<Mutex<HashMap<usize, Known>>> = PerProcess::new();

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Manager {
    /// The manager of this context, which begins if there is none.
    pub(super) fn of(context: &Context) -> Result<Arc<Self>, ConnectionError> {
        // The manager holds the device, so no other device has the address meanwhile.
        let key = Arc::as_ptr(context.device()).cast::<()>() as usize;
        let mut managers = lock(MANAGERS.get());
        if let Some(manager) = managers.get(&key).and_then(|known| known.manager.upgrade()) {
            return Ok(manager);
        }
        // A manager that was let go just now may still have the queue pair. Those of other devices are not forgotten
        // before theirs is gone.
        managers.retain(|_, known| known.queue_pair.strong_count() > 0);
        let mut tries = if managers.contains_key(&key) { END_TRIES } else { 0 };
        let manager = loop {
            match Self::begin(context) {
                Err(ConnectionError::Build(BuildError::Device(DeviceError::InUse { .. }))) if tries > 0 => {
                    tries -= 1;
                    std::thread::sleep(END_PAUSE);
                }
                begun => break begun?,
            }
        };
        let queue_pair = Arc::downgrade(&manager.core._until_gone);
        managers.insert(key, Known { manager: Arc::downgrade(&manager), queue_pair });
        Ok(manager)
    }

    fn begin(context: &Context) -> Result<Arc<Self>, ConnectionError> {
        if !context.attr().general_services {
            return Err(ConnectionError::NoGeneralServices { device: context.attr().name.clone() });
        }
        let port = context.port();
        let pd = context.alloc_pd()?;
        let (cq, sent) = (context.create_cq(RECEIVES)?, context.create_cq(SENDS)?);
        let mut qp = pd
            .qp::<Ud>(&cq)
            .send_cq(&sent)
            .general_services()
            .max_send_wr(SENDS)
            .max_recv_wr(RECEIVES)
            .max_inline(MAD_BYTES as u32)
            .build()?;
        for _ in 0..RECEIVES {
            let buf = pd.alloc(Grh::BYTES + MAD_BYTES)?;
            if let Err(refused) = qp.post_recv(buf) {
                return Err(ConnectionError::Stopped(refused.to_string()));
            }
        }
        qp.activate(GENERAL_SERVICES_QKEY)?;
        let (sq, rq) = qp.split();
        let config = Config {
            guid: guid(port.gid),
            seed: RandomState::new().hash_one(std::process::id()),
            prefix: context.device().comm_id_prefix(),
            ..Config::default()
        };
        let state = State {
            machine: Machine::new(config),
            sq,
            paths: AhCache::new(&pd, PATHS),
            conns: HashMap::new(),
            stops: HashMap::new(),
            asked: HashMap::new(),
            resolved: HashMap::new(),
            sinks: HashMap::new(),
            waiters: Waiters::default(),
            give_up: BTreeSet::new(),
            no_path: None,
            ended: None,
            stopped: None,
            port: None,
        };
        let io = |doing| move |source| ConnectionError::Device(DeviceError::Io { doing, source });
        let bell =
            Bell::new().map_err(io("creating the descriptor that wakes the connection manager's thread"))?;
        // A device that only the program's calls move would not run the manager while the program waits for it.
        let offload = context.device().offload().filter(|_| !context.device().needs_turns());
        let queue = offload.map(|_| cq.handle());
        let until_gone = UntilGone::default();
        let core = Arc::new(Core {
            gid: port.gid,
            mtu: port.active_mtu,
            device: Arc::clone(context.device()),
            begun: std::time::Instant::now(),
            fork: Fork::new(),
            state: Noted::new(state),
            alarm: Alarm::new(),
            queue,
            bell,
            _until_gone: Arc::clone(&until_gone),
        });
        let port = Port::new(pd, cq, sent, rq, until_gone);
        let mut thread = None;
        if let (Some(offload), Some(queue)) = (offload, queue) {
            core.state.lock().port = Some(port);
            let engine: Weak<Core> = Arc::downgrade(&core);
            offload.attach(queue, engine)?;
        } else {
            let core = Arc::clone(&core);
            let spawned = hca_process::spawn("hca-cm", move || port.run(&core));
            thread = Some(spawned.map_err(io("starting the connection manager's thread"))?);
        }
        Ok(Arc::new(Self { core, thread }))
    }
    /// Asks a peer for a connection, which has so much time to be established.
    pub(super) fn connect(
        self: &Arc<Self>,
        to: Gid,
        request: &Req,
        timeout: Option<Duration>,
    ) -> Result<Held, ConnectionError> {
        self.held(to, |state, now| {
            let id = state.machine.connect(now, to.into(), request)?;
            let give_up = timeout.map(|timeout| now + timeout);
            state.give_up.extend(give_up.map(|at| (at, id)));
            state.conns.insert(id, Status { give_up, ..Status::default() });
            Ok(id)
        })
    }
    /// Asks a peer for the queue pair of a service.
    pub(super) fn resolve(self: &Arc<Self>, ask: &Resolve) -> Result<Held, ConnectionError> {
        self.held(ask.to.gid, |state, now| {
            let id = state.machine.resolve(now, ask)?;
            state.resolved.insert(id, None);
            Ok(id)
        })
    }
    /// As [`ask`](Core::ask), with the right to what was asked for.
    fn held(
        self: &Arc<Self>,
        to: Gid,
        ask: impl FnOnce(&mut State, Instant) -> Result<CommId, CmError>,
    ) -> Result<Held, ConnectionError> {
        let id = self.ask(to, ask)?;
        Ok(Held { manager: Arc::clone(self), id })
    }
}

impl Core {
    pub(super) fn now(&self) -> Instant {
        Instant::ZERO + self.begun.elapsed()
    }
    /// Whether this is a forked child's copy, which drops leave alone: a thread of the parent may have had the lock.
    pub(super) fn is_in_child(&self) -> bool {
        self.fork.is_child()
    }
    /// Looks at the state under its lock, and then wakes the tasks that have to be woken, and has the manager run if it
    /// has to be.
    fn locked<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        let seen = self.with(self.state.lock(), look);
        if self.run_noted() {
            self.ring();
        }
        seen
    }
    fn with<T>(&self, mut state: MutexGuard<'_, State>, look: impl FnOnce(&mut State) -> T) -> T {
        let seen = look(&mut state);
        let woken = state.waiters.woken();
        let oversleeps = self.alarm.set(state.deadline());
        drop(state);
        if oversleeps {
            self.ring();
        }
        woken.into_iter().for_each(Waker::wake);
        seen
    }
    /// Has the device or the thread run the manager.
    fn ring(&self) {
        match (self.offload(), self.queue) {
            // It fails if the manager is ended meanwhile, which runs it.
            (Some(offload), Some(queue)) => _ = offload.nudge(queue),
            _ => self.bell.ring(),
        }
    }
    fn offload(&self) -> Option<&dyn Offload> {
        self.device.offload().filter(|_| self.queue.is_some())
    }
    /// Runs the manager while there is a note and nobody has the state. Returns whether more is to be done.
    fn run_noted(&self) -> bool {
        let mut more = false;
        while let Some(state) = self.state.take_note() {
            more = self.with(state, |state| {
                let now = self.now();
                let more = state.receive(now);
                state.turn(now);
                more
            });
        }
        more
    }
    /// The thread is at work.
    pub(super) fn runs(&self) {
        self.bell.clear();
        self.alarm.runs();
    }
    /// The thread's turn: has the machine take what was heard, and do what is due.
    pub(super) fn turn(&self, port: &mut Port) -> Next {
        self.locked(|state| {
            let now = self.now();
            for (from, mad) in port.heard() {
                state.machine.handle(now, from.into(), mad);
            }
            if state.sending() >= SENDS_TO_TAKE || state.ended.is_some() {
                port.poll_sent();
            }
            state.turn(now);
            let ends = state.has_ended(now);
            // The last messages leave before the manager ends.
            if !state.has_room() || (ends && state.sending() > 0) {
                Next::Send
            } else if ends {
                Next::End
            } else {
                Next::Receive
            }
        })
    }
    /// How long the thread may sleep.
    pub(super) fn sleeps_for(&self) -> Option<Duration> {
        self.alarm.tell().map(|at| at.since(self.now()))
    }
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }
    /// Nothing arrives any more.
    pub(super) fn stop(&self, why: &str) {
        self.locked(|state| state.stop(why));
    }
    /// Calls the machine, and carries out what it says.
    pub(super) fn call<T>(&self, call: impl FnOnce(&mut State, Instant) -> T) -> T {
        self.locked(|state| {
            let done = call(state, self.now());
            state.settle();
            done
        })
    }
    /// Asks a peer, to which there has to be a path: a message that does not leave is not waited for.
    pub(super) fn ask(
        &self,
        to: Gid,
        ask: impl FnOnce(&mut State, Instant) -> Result<CommId, CmError>,
    ) -> Result<CommId, ConnectionError> {
        self.locked(|state| {
            state.no_path = None;
            let id = ask(state, self.now())?;
            state.settle();
            let Some((_, error)) = state.no_path.take_if(|(gid, _)| *gid == to) else { return Ok(id) };
            state.forget(self.now(), id);
            state.settle();
            Err(error.into())
        })
    }
    /// The program is about to sleep, until the manager wakes it.
    pub(super) fn program_sleeps(&self) {
        if let Some(offload) = self.offload() {
            offload.program_sleeps();
        }
    }
    /// Waits until `ready` yields something, which is looked at anew when the subject changes.
    pub(super) async fn until<T>(
        &self,
        subject: Subject,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, ConnectionError> {
        let mut look = |state: &mut State, waker: &mut Option<Waker>| {
            if let Some(value) = ready(state) {
                return Poll::Ready(Ok(value));
            }
            if let Some(why) = &state.stopped {
                return Poll::Ready(Err(ConnectionError::Stopped(why.clone())));
            }
            state.waiters.wait(subject, waker);
            Poll::Pending
        };
        poll_fn(|cx| {
            // Its clone is the program's code: it is made without the lock, and dropped without it.
            let mut waker = Some(cx.waker().clone());
            let looked = self.locked(|state| look(state, &mut waker));
            if looked.is_pending() {
                self.program_sleeps();
            }
            looked
        })
        .await
    }
    /// Has requests for a service come to this manager, of those at its address.
    pub(super) fn claim(&self, service: ServiceId) -> Result<(), ConnectionError> {
        self.device.claim_service(service.0).map_err(|e| match e {
            DeviceError::InUse { .. } => CmError::InUse { service }.into(),
            e => e.into(),
        })
    }
    /// Has the queue pair of a connection stopped when the connection ends.
    pub(super) fn stop_with(&self, id: CommId, stop: impl Fn() + Send + 'static) {
        self.state.lock().stops.insert(id, Box::new(stop));
    }
}

/// The device runs the manager.
impl OffloadEngine for Core {
    fn run(&self) -> bool {
        self.alarm.runs();
        self.state.leave_note();
        let outer = RUNS.replace(std::ptr::from_ref(self));
        let more = self.run_noted();
        RUNS.set(outer);
        more
    }
    fn next_deadline(&self) -> Option<Duration> {
        self.sleeps_for()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if self.is_in_child() {
            // The thread is the parent's.
            return std::mem::forget(self.thread.take());
        }
        self.call(|state, now| state.ended = Some((now, now + REPEAT)));
        if let (Some(offload), Some(queue)) = (self.offload(), self.queue) {
            let _ = offload.detach(queue);
            let Some(port) = self.locked(|state| state.port.take()) else { return };
            if RUNS.get() != Arc::as_ptr(&self.core) {
                return port.run(&self.core);
            }
            // A task that the run woke was the last to let the manager go. A device does not wait in a run.
            let core = Arc::clone(&self.core);
            self.thread = hca_process::spawn("hca-cm", move || port.run(&core)).ok();
            return;
        }
        self.bell.ring();
        // The last to let the manager go may be a task that the thread wakes.
        let thread = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id());
        let _ = thread.map(JoinHandle::join);
    }
}

/// A GUID that no other adapter of the network has: made of the address.
fn guid(gid: Gid) -> Guid {
    let [high, low] =
        [&gid.0[..8], &gid.0[8..]].map(|half| u64::from_be_bytes(half.try_into().expect("8 bytes")));
    Guid(high.rotate_left(32) ^ low)
}

impl State {
    /// Takes datagrams that have come, where the device runs the manager. Returns whether more may have.
    fn receive(&mut self, now: Instant) -> bool {
        let Some(port) = &mut self.port else { return false };
        let more = port.poll();
        for (from, mad) in port.heard() {
            self.machine.handle(now, from.into(), mad);
        }
        match port.done() {
            Ok(()) => more,
            Err(why) => {
                self.stop(&why);
                false
            }
        }
    }
    /// Nothing arrives any more.
    fn stop(&mut self, why: &str) {
        self.stopped = Some(why.to_string());
        self.waiters.notify_all();
    }
    /// Does what is due.
    fn turn(&mut self, now: Instant) {
        self.machine.handle_timeout(now);
        while let Some(&(at, id)) = self.give_up.first().filter(|(at, _)| *at <= now) {
            self.give_up.remove(&(at, id));
            self.end(id, End::TimedOut);
        }
        self.settle();
    }
    /// When something is due next.
    fn deadline(&self) -> Option<Instant> {
        if !self.has_room() {
            return Some(Instant::ZERO);
        }
        let give_up = self.give_up.first().map(|(at, _)| *at);
        let repeat = self.ended.map(|(_, repeat)| repeat);
        [self.machine.deadline(), give_up, repeat].into_iter().flatten().min()
    }
    fn has_room(&self) -> bool {
        self.sending() < SENDS
    }
    /// Sends what the machine wants to send, as far as the send queue has room, and takes the machine's events.
    fn settle(&mut self) {
        if self.sending() >= SENDS_TO_TAKE
            && let Some(port) = &mut self.port
        {
            port.poll_sent();
        }
        // Without room the manager is run until there is some.
        while self.has_room()
            && let Some(transmit) = self.machine.poll_transmit()
        {
            self.send(&transmit);
        }
        while let Some(event) = self.machine.poll_event() {
            self.on_event(event);
        }
    }
    /// Whether a manager that is gone has no DREQ without an answer any more, or has waited long enough. Repeats the
    /// DREQs if it is time.
    fn has_ended(&mut self, now: Instant) -> bool {
        let Some((ended, repeat)) = self.ended else { return false };
        if now >= ended + LINGER || !self.machine.is_releasing() {
            return true;
        }
        if now >= repeat {
            self.machine.repeat_releases();
            self.settle();
            self.ended = Some((ended, now + REPEAT));
        }
        false
    }
    /// Messages whose completion was not taken yet.
    fn sending(&self) -> u32 {
        self.sq.control().outstanding_sends()
    }
    /// A datagram that is not sent is lost, as on any network; the machine sends it again.
    fn send(&mut self, transmit: &Transmit) {
        let to = transmit.to;
        let av = AddressVector { dgid: to.gid, dlid: to.lid, ..AddressVector::default() };
        let ah = match self.paths.ah(&av) {
            Ok(ah) => ah,
            Err(error) => {
                tracing::debug!(to = %to.gid, %error, "a message of the connection manager has no path");
                self.no_path = Some((to.gid, error));
                return;
            }
        };
        let peer = ah.peer(GENERAL_SERVICES, GENERAL_SERVICES_QKEY);
        if let Err(refused) = self.sq.send_to(Inline(&transmit.mad[..]), &peer) {
            tracing::debug!(to = %to.gid, %refused, "a message of the connection manager is not sent");
        }
    }
    /// Gives an event to the sink that it is for. Returns whether there is one.
    fn give(&mut self, event: &Event) -> bool {
        let id = event.id();
        let (subject, is_asked) = match event {
            Event::Request { service, .. } => (Subject::Service(*service), true),
            Event::SidrRequest { request, .. } => (Subject::Service(request.service_id), true),
            _ => (Subject::Id(id), false),
        };
        let Some(sink) = self.sinks.get(&subject).cloned() else { return false };
        if let Some(of_request) = sink.event(event)
            && is_asked
        {
            self.sinks.insert(Subject::Id(id), of_request);
        }
        true
    }
    fn on_event(&mut self, event: Event) {
        if self.give(&event) {
            return;
        }
        match event {
            Event::Request { id, service, from, request } => {
                self.conns.insert(id, Status::default());
                self.ask(service, Asked { id, from, request: Request::Connection(Box::new(request)) });
            }
            Event::SidrRequest { id, from, request } => {
                let service = request.service_id;
                self.ask(service, Asked { id, from, request: Request::Datagram(Box::new(request)) });
            }
            Event::Reply { id, reply } => self.change(id, |conn| conn.reply = Some(reply)),
            Event::Established { id, private_data } => {
                self.change(id, |conn| conn.established = Some(private_data.bytes().to_vec()));
            }
            Event::Rejected { id, reason, private_data, .. } => {
                self.end(id, End::Rejected(reason, private_data.bytes().to_vec()));
            }
            Event::Failed { id, failure } => self.end(id, End::Failed(failure)),
            Event::Disconnected { id, .. } => self.end(id, End::Disconnected),
            Event::DisconnectDone { id, .. } => self.end(id, End::Done),
            Event::Resolved { id, from, resolution, private_data } => {
                if let Some(answer) = self.resolved.get_mut(&id) {
                    *answer = Some((from, resolution, private_data.bytes().to_vec()));
                }
                self.waiters.notify(Subject::Id(id));
            }
            Event::Unresolved { id } => {
                self.resolved.remove(&id);
                self.waiters.notify(Subject::Id(id));
            }
            Event::SidrExpired { id } => self.withdraw(id),
            Event::Delayed { .. } | Event::Gone { .. } => {}
        }
    }
    fn ask(&mut self, service: ServiceId, asked: Asked) {
        self.asked.entry(service).or_default().push_back(asked);
        self.waiters.notify(Subject::Service(service));
    }
    fn change(&mut self, id: CommId, change: impl FnOnce(&mut Status)) {
        if let Some(conn) = self.conns.get_mut(&id) {
            change(conn);
        }
        self.waiters.notify(Subject::Id(id));
    }
    fn end(&mut self, id: CommId, end: End) {
        self.change(id, |conn| _ = conn.end.get_or_insert(end));
        if let Some(stop) = self.stops.remove(&id) {
            stop();
        }
        self.withdraw(id);
    }
    /// A request that ended before the program took it is none any more.
    fn withdraw(&mut self, id: CommId) {
        for asked in self.asked.values_mut() {
            let before = asked.len();
            asked.retain(|asked| asked.id != id);
            if asked.len() < before {
                self.conns.remove(&id);
            }
        }
    }
    /// The connection has all the time that the messages of the connection manager take.
    pub(super) fn take_time(&mut self, id: CommId) {
        let at = self.conns.get_mut(&id).and_then(|conn| conn.give_up.take());
        if let Some(at) = at {
            self.give_up.remove(&(at, id));
        }
    }
    /// Lets a connection or a resolution go.
    pub(super) fn forget(&mut self, now: Instant, id: CommId) {
        self.take_time(id);
        self.machine.forget(now, id);
        self.conns.remove(&id);
        self.resolved.remove(&id);
        self.stops.remove(&id);
        self.sinks.remove(&Subject::Id(id));
        self.waiters.notify(Subject::Id(id));
    }
}
