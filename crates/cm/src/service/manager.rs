//! The connection manager of a context: the machine, its queue pair and its thread.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use hca_core::Instant;
use hca_process::PerProcess;
use hca_verbs::{
    AddressVector, AhCache, Buf, BuildError, CompletionQueue, Completions, Context, DeviceError, Gid, Grh,
    Inline, Mtu, Pd, Qkey, Qpn, RecvQueue, SendQueue, Ud, WaitError,
};

use super::ConnectionError;
use crate::wire::{CommId, Guid, MAD_BYTES, Rep, Req, Resolution};
use crate::{Config, Event, Failure, Machine, Peer, ServiceId};

/// The Q_Key of queue pair 1.
const GENERAL_SERVICES_QKEY: Qkey = Qkey::new(0x8001_0000);
const GENERAL_SERVICES: Qpn = Qpn::new(1);
/// Datagrams that can arrive while the thread does not run.
const RECEIVES: u32 = 256;
/// Datagrams that can be sent before the thread takes their completions.
const SENDS: u32 = 256;
/// Paths to peers that are kept.
const PATHS: usize = 1024;

/// The end of a manager is waited for so often, with pauses of this length.
const END_TRIES: u32 = 10_000;
const END_PAUSE: Duration = Duration::from_millis(1);

/// A program's view of a connection.
#[derive(Debug, Default)]
pub(super) struct Status {
    pub(super) reply: Option<(Peer, Rep)>,
    pub(super) established: Option<Vec<u8>>,
    pub(super) end: Option<End>,
}

/// The end of a connection.
#[derive(Clone, Debug)]
pub(super) enum End {
    Rejected(crate::wire::Reason, Vec<u8>),
    Failed(Failure),
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
    stopped: Option<String>,
    /// The port that a connect takes next as its own.
    next_port: u16,
}

/// The connection manager of a context.
pub(super) struct Manager {
    pub(super) gid: Gid,
    pub(super) mtu: Mtu,
    begun: std::time::Instant,
    state: Mutex<State>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
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
        let cq = context.create_cq(RECEIVES + SENDS)?;
        let qp = pd
            .qp::<Ud>(&cq)
            .general_services()
            .max_send_wr(SENDS)
            .max_recv_wr(RECEIVES)
            .max_inline(MAD_BYTES as u32)
            .build()?;
        let mut qp = qp;
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
            stopped: None,
            next_port: 0,
        };
        let manager = Arc::new(Self {
            gid: port.gid,
            mtu: port.active_mtu,
            begun: std::time::Instant::now(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            thread: Mutex::new(None),
        });
        let worker = Worker { manager: Arc::downgrade(&manager), cq, rq, _pd: pd };
        let spawned = hca_process::spawn("hca-cm", move || worker.run());
        let io = |source| DeviceIo { doing: "starting the connection manager's thread", source };
        *lock(&manager.thread) = Some(spawned.map_err(|e| ConnectionError::Device(io(e).into()))?);
        Ok(manager)
    }

    pub(super) fn now(&self) -> Instant {
        Instant::ZERO + self.begun.elapsed()
    }
    /// Calls the machine, and carries out what it says.
    pub(super) fn call<T>(&self, call: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = lock(&self.state);
        let done = call(&mut state, self.now());
        state.settle();
        self.changed.notify_all();
        done
    }
    /// Waits until `ready` yields something; `None` if that takes longer than `timeout`.
    pub(super) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>, ConnectionError> {
        let end = timeout.and_then(|timeout| std::time::Instant::now().checked_add(timeout));
        let mut state = lock(&self.state);
        loop {
            if let Some(value) = ready(&mut state) {
                return Ok(Some(value));
            }
            if let Some(why) = &state.stopped {
                return Err(ConnectionError::Stopped(why.clone()));
            }
            state = match end.map(|end| end.saturating_duration_since(std::time::Instant::now())) {
                Some(Duration::ZERO) => return Ok(None),
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
    /// A port for a connection of this side, from the range that systems choose from.
    pub(super) fn source_port(&self) -> u16 {
        let mut state = lock(&self.state);
        state.next_port = (state.next_port + 1) % 16_384;
        49_152 + state.next_port
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
        // The thread sees that the manager is gone once its queue pair is in error, which completes all receives.
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = state.sq.control().to_error();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // The last to let the manager go may be the thread itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

/// A GUID that no other adapter of the network has: made of the address.
fn guid(gid: Gid) -> Guid {
    let [high, low] =
        [&gid.0[..8], &gid.0[8..]].map(|half| u64::from_be_bytes(half.try_into().expect("8 bytes")));
    Guid(high.rotate_left(32) ^ low)
}

impl State {
    /// Sends what the machine wants to send, and takes its events.
    fn settle(&mut self) {
        while let Some(transmit) = self.machine.poll_transmit() {
            let av =
                AddressVector { dgid: transmit.to.gid, dlid: transmit.to.lid, ..AddressVector::default() };
            // A datagram that is not sent is lost, as on any network; the machine sends it again.
            let sent = match self.paths.ah(&av) {
                Ok(ah) => {
                    let peer = ah.peer(GENERAL_SERVICES, GENERAL_SERVICES_QKEY);
                    self.sq.send_to(Inline(&transmit.mad[..]), &peer).map_err(|refused| refused.to_string())
                }
                Err(e) => Err(e.to_string()),
            };
            if let Err(error) = sent {
                tracing::debug!(to = %transmit.to.gid, error, "a message of the connection manager is not sent");
            }
        }
        while let Some(event) = self.machine.poll_event() {
            self.on_event(event);
        }
    }
    fn on_event(&mut self, event: Event) {
        match event {
            Event::Request { id, service, from, request } => {
                self.conns.insert(id, Status::default());
                let request = Request::Connection(Box::new(request));
                self.asked.entry(service).or_default().push_back(Asked { id, from, request });
            }
            Event::SidrRequest { id, from, request } => {
                let service = request.service_id;
                let request = Request::Datagram(Box::new(request));
                self.asked.entry(service).or_default().push_back(Asked { id, from, request });
            }
            Event::Reply { id, reply } => {
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.reply = Some((Peer::default(), reply));
                }
            }
            Event::Established { id, private_data } => {
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.established = Some(private_data.bytes().to_vec());
                }
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
            }
            Event::Unresolved { id } => drop(self.resolved.remove(&id)),
            Event::Delayed { .. } | Event::Gone { .. } => {}
        }
    }
    fn end(&mut self, id: CommId, end: End) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.end.get_or_insert(end);
        }
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
    /// Lets a connection go.
    pub(super) fn forget(&mut self, now: Instant, id: CommId) {
        self.machine.forget(now, id);
        self.conns.remove(&id);
        self.stops.remove(&id);
    }
}

/// The thread that takes datagrams and keeps the time.
struct Worker {
    manager: Weak<Manager>,
    cq: CompletionQueue,
    rq: RecvQueue<Ud>,
    _pd: Pd,
}

impl Worker {
    fn run(mut self) {
        let mut wcs = Completions::default();
        loop {
            let Some(manager) = self.manager.upgrade() else { return };
            let deadline = manager.call(|state, now| {
                state.machine.handle_timeout(now);
                state.settle();
                state.machine.deadline().map(|at| at.since(now))
            });
            drop(manager);
            let mut back: Vec<Buf> = Vec::new();
            match self.cq.wait(&mut wcs, deadline) {
                Ok(got) => {
                    let Some(manager) = self.manager.upgrade() else { return };
                    for mut wc in got {
                        let from = wc.grh().filter(|_| wc.src_qp == GENERAL_SERVICES).map(|grh| grh.sgid);
                        if let (Some(from), Some(mad)) = (from, wc.payload()) {
                            manager.call(|state, now| state.machine.handle(now, from.into(), mad));
                        }
                        back.extend(wc.take_buf());
                    }
                }
                Err(WaitError::TimedOut(_)) => {}
                Err(e) => return self.stop(&e.to_string()),
            }
            for buf in back {
                if let Err(refused) = self.rq.post_recv(buf) {
                    return self.stop(&refused.to_string());
                }
            }
        }
    }
    /// Nothing arrives any more.
    fn stop(&self, why: &str) {
        if let Some(manager) = self.manager.upgrade() {
            manager.call(|state, _| state.stopped = Some(why.to_string()));
        }
    }
}
