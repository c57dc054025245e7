//! The connection manager of a context: the machine, its queue pair and its thread.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use hca_core::{Device, Instant};
use hca_process::PerProcess;
use hca_verbs::{
    AddressVector, AhCache, Buf, BuildError, CompletionQueue, Completions, Context, DeviceError, Gid, Grh,
    Inline, Mtu, Pd, Qkey, Qpn, RecvQueue, SendQueue, Ud, WaitError,
};

use super::ConnectionError;
use super::bell::Bell;
use super::wait::{Subject, Waiters};
use crate::wire::{CommId, Guid, MAD_BYTES, Rep, Req, Resolution};
use crate::{CmError, Config, Event, Failure, Machine, Peer, Resolve, ServiceId, Transmit};

/// The Q_Key of queue pair 1.
const GENERAL_SERVICES_QKEY: Qkey = Qkey::new(0x8001_0000);
const GENERAL_SERVICES: Qpn = Qpn::new(1);
/// Datagrams that can arrive while the thread does not run.
const RECEIVES: u32 = 256;
/// Datagrams that can be sent before the thread takes their completions.
const SENDS: u32 = 256;
/// The thread takes completions of sends, if there are so many, when it is awake. They do not wake it.
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
        self.manager.call(|state, now| state.forget(now, self.id));
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
    waiters: Waiters,
    /// Connections that have so much time to be established.
    give_up: BTreeSet<(Instant, CommId)>,
    /// The last peer to which there is no path.
    no_path: Option<(Gid, DeviceError)>,
    /// When the manager went: its thread ends. Its unanswered DREQs are sent again at the second time.
    ended: Option<(Instant, Instant)>,
    stopped: Option<String>,
    thread: Thread,
    /// The port that a connect takes next as its own.
    next_port: u16,
}

/// The manager's thread, as those who call the machine see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thread {
    /// Looks at the state before it sleeps.
    Awake,
    /// Sleeps until then, `None`: until a datagram comes.
    Asleep(Option<Instant>),
}

impl Thread {
    /// Whether the thread has to be woken, for something that is due at `next` (`None`: never).
    fn oversleeps(self, next: Option<Instant>) -> bool {
        match self {
            Self::Awake => false,
            Self::Asleep(until) => next.is_some_and(|next| until.is_none_or(|until| next < until)),
        }
    }
}

/// The connection manager of a context, which ends with its last listener, connection and resolution. Its thread has no
/// part in that, so that the queue pair is gone when the last of them is.
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

/// The state that a manager and its thread share.
pub(super) struct Core {
    pub(super) gid: Gid,
    pub(super) mtu: Mtu,
    pub(super) device: Arc<dyn Device>,
    begun: std::time::Instant,
    state: Mutex<State>,
    /// Wakes the thread.
    bell: Bell,
}

/// The managers of this process, by their devices.
static MANAGERS: PerProcess<Mutex<HashMap<usize, Weak<Manager>>>> = PerProcess::new();

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Manager {
    /// The manager of this context, which begins if there is none.
    pub(super) fn of(context: &Context) -> Result<Arc<Self>, ConnectionError> {
        // The manager holds the device, so no other device has the address meanwhile.
        let key = Arc::as_ptr(context.device()).cast::<()>() as usize;
        let mut managers = lock(MANAGERS.get());
        if let Some(manager) = managers.get(&key).and_then(Weak::upgrade) {
            return Ok(manager);
        }
        // A manager that was let go just now may still have the queue pair.
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
        managers.retain(|_, manager| manager.strong_count() > 0);
        managers.insert(key, Arc::downgrade(&manager));
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
            waiters: Waiters::default(),
            give_up: BTreeSet::new(),
            no_path: None,
            ended: None,
            stopped: None,
            thread: Thread::Awake,
            next_port: 0,
        };
        let io = |doing| move |source| ConnectionError::Device(DeviceIo { doing, source }.into());
        let core = Arc::new(Core {
            gid: port.gid,
            mtu: port.active_mtu,
            device: Arc::clone(context.device()),
            begun: std::time::Instant::now(),
            state: Mutex::new(state),
            bell: Bell::new().map_err(io("creating the descriptor that wakes the connection manager's thread"))?,
        });
        let worker = Worker { core: Arc::clone(&core), cq, sent, rq, _pd: pd };
        let spawned = hca_process::spawn("hca-cm", move || worker.run());
        let thread = Some(spawned.map_err(io("starting the connection manager's thread"))?);
        Ok(Arc::new(Self { core, thread }))
    }
    /// Asks a peer for a connection, which has so much time to be established.
    pub(super) fn connect(
        self: &Arc<Self>,
        to: Gid,
        request: &Req,
        timeout: Option<Duration>,
    ) -> Result<Held, ConnectionError> {
        self.ask(to, |state, now| {
            let id = state.machine.connect(now, to.into(), request)?;
            let give_up = timeout.map(|timeout| now + timeout);
            state.give_up.extend(give_up.map(|at| (at, id)));
            state.conns.insert(id, Status { give_up, ..Status::default() });
            Ok(id)
        })
    }
    /// Asks a peer for the queue pair of a service.
    pub(super) fn resolve(self: &Arc<Self>, ask: &Resolve) -> Result<Held, ConnectionError> {
        self.ask(ask.to.gid, |state, now| {
            let id = state.machine.resolve(now, ask)?;
            state.resolved.insert(id, None);
            Ok(id)
        })
    }
    /// Asks a peer, to which there has to be a path: a message that does not leave is not waited for.
    fn ask(
        self: &Arc<Self>,
        to: Gid,
        ask: impl FnOnce(&mut State, Instant) -> Result<CommId, CmError>,
    ) -> Result<Held, ConnectionError> {
        let (id, no_path) = self.locked(|state| {
            state.no_path = None;
            let id = ask(state, self.now())?;
            state.settle();
            Ok::<_, CmError>((id, state.no_path.take_if(|(gid, _)| *gid == to)))
        })?;
        let held = Held { manager: Arc::clone(self), id };
        no_path.map_or(Ok(held), |(_, error)| Err(error.into()))
    }
}

impl Core {
    pub(super) fn now(&self) -> Instant {
        Instant::ZERO + self.begun.elapsed()
    }
    /// Looks at the state under its lock, and then wakes the thread and the tasks that have to be woken.
    fn locked<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        let mut state = lock(&self.state);
        let seen = look(&mut state);
        let woken = state.waiters.woken();
        let rings = state.wakes_thread();
        drop(state);
        if rings {
            self.bell.ring();
        }
        woken.into_iter().for_each(Waker::wake);
        seen
    }
    /// Calls the machine, and carries out what it says.
    pub(super) fn call<T>(&self, call: impl FnOnce(&mut State, Instant) -> T) -> T {
        self.locked(|state| {
            let done = call(state, self.now());
            state.settle();
            done
        })
    }
    /// Waits until `ready` yields something, which is looked at anew when the subject changes.
    pub(super) async fn until<T>(
        &self,
        subject: Subject,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, ConnectionError> {
        let mut look = |state: &mut State, waker: &Waker| {
            if let Some(value) = ready(state) {
                return Poll::Ready(Ok(value));
            }
            if let Some(why) = &state.stopped {
                return Poll::Ready(Err(ConnectionError::Stopped(why.clone())));
            }
            state.waiters.wait(subject, waker);
            Poll::Pending
        };
        poll_fn(|cx| self.locked(|state| look(state, cx.waker()))).await
    }
    /// Has requests for a service come to this manager, of those at its address.
    pub(super) fn claim(&self, service: ServiceId) -> Result<(), ConnectionError> {
        self.device.claim_service(service.0).map_err(|e| match e {
            DeviceError::InUse { .. } => CmError::InUse { service }.into(),
            e => e.into(),
        })
    }
    /// A port for a connection of this side, from the range that systems choose from.
    pub(super) fn source_port(&self) -> u16 {
        self.locked(|state| {
            state.next_port = (state.next_port + 1) % 16_384;
            49_152 + state.next_port
        })
    }
    /// Has the queue pair of a connection stopped when the connection ends.
    pub(super) fn stop_with(&self, id: CommId, stop: impl Fn() + Send + 'static) {
        lock(&self.state).stops.insert(id, Box::new(stop));
    }
}

/// The error of a system call as the device's.
struct DeviceIo {
    doing: &'static str,
    source: std::io::Error,
}
impl From<DeviceIo> for DeviceError {
    fn from(e: DeviceIo) -> Self {
        Self::Io { doing: e.doing, source: e.source }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.call(|state, now| {
            state.ended = Some((now, now + REPEAT));
        });
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
    /// Does what is due, and returns when something is due next.
    fn turn(&mut self, now: Instant) -> Option<Instant> {
        self.machine.handle_timeout(now);
        while let Some(&(at, id)) = self.give_up.first().filter(|(at, _)| *at <= now) {
            self.give_up.remove(&(at, id));
            self.end(id, End::TimedOut);
        }
        self.settle();
        self.deadline()
    }
    /// When something is due next.
    fn deadline(&self) -> Option<Instant> {
        let give_up = self.give_up.first().map(|(at, _)| *at);
        self.machine.deadline().into_iter().chain(give_up).min()
    }
    /// Whether the thread has to be woken, and was not: something is due before its sleep ends, or it has to make room.
    fn wakes_thread(&mut self) -> bool {
        let next = if self.has_room() { self.deadline() } else { Some(Instant::ZERO) };
        let wakes = self.thread.oversleeps(next);
        if wakes {
            self.thread = Thread::Awake;
        }
        wakes
    }
    fn has_room(&self) -> bool {
        self.sending() < SENDS
    }
    /// Sends what the machine wants to send, as far as the send queue has room, and takes the machine's events.
    fn settle(&mut self) {
        // The thread makes room, and comes back here.
        while self.has_room()
            && let Some(transmit) = self.machine.poll_transmit()
        {
            self.send(&transmit);
        }
        while let Some(event) = self.machine.poll_event() {
            self.on_event(event);
        }
    }
    /// How long the thread of a manager that is gone goes on: until the next repetition of DREQs without an answer.
    fn linger(&mut self, now: Instant) -> Option<Duration> {
        let (ended, repeat) = self.ended?;
        if now >= ended + LINGER || !self.machine.is_releasing() {
            return None;
        }
        let mut next = repeat;
        if now >= repeat {
            self.machine.repeat_releases();
            self.settle();
            next = now + REPEAT;
            self.ended = Some((ended, next));
        }
        Some(next.since(now))
    }
    /// Messages whose completion the thread has not taken yet.
    fn sending(&self) -> u32 {
        self.sq.control().outstanding().0
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
    fn on_event(&mut self, event: Event) {
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
        // A request that ended before the program took it is none any more.
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
        self.waiters.notify(Subject::Id(id));
    }
}

/// The thread that takes datagrams and keeps the time.
struct Worker {
    core: Arc<Core>,
    cq: CompletionQueue,
    /// The completions of sends.
    sent: CompletionQueue,
    rq: RecvQueue<Ud>,
    _pd: Pd,
}

/// The thing that the thread does next.
enum Next {
    /// Waits for datagrams, so long at most.
    Receive(Option<Duration>),
    /// Waits until a message has left, so long at most.
    Send(Option<Duration>),
    End,
}

impl Worker {
    fn run(mut self) {
        let (mut wcs, mut left) = (Completions::default(), Completions::default());
        let (mut heard, mut back): (Vec<(Gid, Buf)>, Vec<Buf>) = Default::default();
        loop {
            let next = self.turn(&heard, &mut left);
            back.extend(heard.drain(..).map(|(_, buf)| buf));
            if let Err(error) = self.post(&mut back) {
                return self.stop(&error);
            }
            let got = match next {
                Next::End => return,
                Next::Receive(wait) => self.cq.wait_or_readable(&mut wcs, self.core.bell.fd(), wait),
                Next::Send(wait) => match self.sent.wait(&mut left, wait) {
                    Ok(_) => Ok(self.cq.poll(&mut wcs)),
                    Err(e) => Err(e),
                },
            };
            match got {
                Ok(got) => {
                    for mut wc in got {
                        let from = wc.grh().filter(|_| wc.src_qp == GENERAL_SERVICES).map(|grh| grh.sgid);
                        let is_whole = wc.payload().is_some_and(|mad| mad.len() == MAD_BYTES);
                        match (from.filter(|_| is_whole), wc.take_buf()) {
                            (Some(from), Some(buf)) => heard.push((from, buf)),
                            (_, buf) => back.extend(buf),
                        }
                    }
                }
                Err(WaitError::TimedOut(_)) => {}
                Err(e) => return self.stop(&e.to_string()),
            }
        }
    }
    /// Has the machine take what was heard, and do what is due.
    fn turn(&mut self, heard: &[(Gid, Buf)], left: &mut Completions) -> Next {
        let Self { core, sent, .. } = self;
        core.bell.clear();
        core.locked(|state| {
            let now = core.now();
            state.thread = Thread::Awake;
            for (from, buf) in heard {
                state.machine.handle(now, (*from).into(), &buf[Grh::BYTES..]);
            }
            if state.sending() >= SENDS_TO_TAKE || state.ended.is_some() {
                sent.poll(left).for_each(drop);
            }
            let wait = state.turn(now);
            let linger = state.linger(now);
            let until = wait.into_iter().chain(linger.map(|time| now + time)).min();
            let wait = until.map(|at| at.since(now));
            let ends = state.ended.is_some() && linger.is_none();
            // The last messages leave before the manager ends.
            if !state.has_room() || (ends && state.sending() > 0) {
                return Next::Send(wait);
            }
            if ends {
                return Next::End;
            }
            state.thread = Thread::Asleep(until);
            Next::Receive(wait)
        })
    }
    fn post(&mut self, back: &mut Vec<Buf>) -> Result<(), String> {
        back.drain(..).try_for_each(|buf| self.rq.post_recv(buf).map_err(|refused| refused.to_string()))
    }
    /// Nothing arrives any more.
    fn stop(&self, why: &str) {
        self.core.locked(|state| {
            state.stopped = Some(why.to_string());
            state.waiters.notify_all();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_is_woken_for_what_is_due_before_its_sleep_ends() {
        let at = |ns| Some(Instant::from_nanos(ns));
        let wakes = |until| [None, at(1), at(2), at(3)].map(|next| Thread::Asleep(until).oversleeps(next));
        assert_eq!(wakes(at(2)), [false, true, false, false]);
        assert_eq!(wakes(None), [false, true, true, true], "it sleeps until a datagram comes");
        assert!(!Thread::Awake.oversleeps(at(1)), "it looks before it sleeps");
    }
}
