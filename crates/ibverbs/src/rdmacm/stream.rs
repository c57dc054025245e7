//! Connections of sockets over RDMA. Each has a thread, which connects, receives into a list of bytes, and gives the
//! buffers of sent messages back.
//!
//! A message is a SEND of at most [`CHUNK`] bytes behind a header of 8: of the stream's bytes, or of bytes for mapped
//! memory of the peer. A message without bytes is the end of the stream. A receiver whose program reads slowly posts no
//! more buffers, and the sender's requests are repeated meanwhile.

use core::ffi::c_int;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::Range;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock};
use std::time::{Duration, Instant};

use hca::cm::{
    ConnectParams, Connection, ConnectionError, PortSpace, ServiceId, connect_with, ephemeral_port,
};
use hca::verbs::{Buf, CompletionQueue, Completions, Context, QueuePair, Rc, RecvQueue, SendQueue, WcOpcode};
use hca_process::PerProcess;
use rustix::event::{EventfdFlags, eventfd};

use super::border::copy_to;
use super::changes::{Changes, ring, tell_waiters};
use super::datagram::Datagrams;
use super::device::{CmDevice, bind_all};
use crate::entry::{Errno, INVALID, In, at_exit, last, lock};

/// The most bytes of a message, and the header before them: an address of mapped memory, or [`STREAM`].
pub(super) const CHUNK: usize = 32 * 1024;
const HEADER: usize = 8;
const STREAM: u64 = u64::MAX;
/// Messages under way in each direction.
const DEPTH: usize = 16;
/// No more buffers are posted while so many bytes wait for the program.
const WAITING_BYTES: usize = CHUNK * DEPTH;
/// A program that ends waits so long for peers to take what was sent.
pub(super) const LINGER: Duration = Duration::from_secs(10);
/// Threads that wait for requests look so often whether the socket was closed.
pub(super) const LISTEN_LOOK: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    New,
    Listening,
    Connecting,
    Open,
    /// It never was connected, or is not any more.
    Failed(Errno),
}

/// A count in a socket's state, which the drop takes back, also if the socket's thread panics or was not started. A panic
/// of that thread is the end of the socket, whose calls would wait for ever.
struct Counted(Arc<Socket>, fn(&mut State));
impl Drop for Counted {
    fn drop(&mut self) {
        self.0.change(|state| {
            self.1(state);
            if std::thread::panicking() && !matches!(state.phase, Phase::Failed(_)) {
                state.phase = Phase::Failed(Errno(libc::EIO));
            }
        });
        forget_ended();
    }
}

/// Memory that the peer writes to.
struct Map {
    offset: u64,
    len: usize,
    at: usize,
}

/// What calls and threads of a socket share.
pub(super) struct State {
    pub(super) phase: Phase,
    /// The program has asked for the error, which it is told once.
    pub(super) error_told: bool,
    /// A socket of IPv6, which shows IPv4 addresses in those of IPv6.
    pub(super) is_v6: bool,
    pub(super) local: Option<SocketAddr>,
    /// The services that a socket of streams is bound to.
    bound: Vec<(Arc<CmDevice>, ServiceId)>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) nonblocking: bool,
    pub(super) options: HashMap<(c_int, c_int), Vec<u8>>,
    /// Connections that wait for `raccept`.
    pub(super) accepted: VecDeque<Arc<Socket>>,
    /// Connections that are being made, and how many of both there may be.
    making: usize,
    backlog: usize,
    received: VecDeque<u8>,
    /// The peer's stream has ended.
    ended: bool,
    /// The program has ended the own stream; so was the peer told.
    ending: bool,
    end_sent: bool,
    /// The program has closed the socket; its threads have ended.
    pub(super) closing: bool,
    threads: usize,
    /// Those of them that hold the socket's port.
    listening: usize,
    free: Vec<Buf>,
    queue: Option<SendQueue<Rc>>,
    maps: Vec<Map>,
    /// A socket of datagrams has these.
    pub(super) datagrams: Option<Datagrams>,
}

/// A socket of the program.
pub(super) struct Socket {
    /// The program's number of it, from the time when the program has the socket.
    id: OnceLock<OwnedFd>,
    /// Wakes the thread: the program has read or closed.
    wake: OwnedFd,
    /// Held by calls that choose what the socket is: `rbind`, `rlisten`, the beginning of `rconnect`, and `rclose`. It is
    /// taken before the state, and before the lock of another socket.
    choice: Mutex<()>,
    state: Mutex<State>,
    changes: Changes,
}

static SOCKETS: PerProcess<Mutex<HashMap<c_int, Arc<Socket>>>> = PerProcess::new();

/// Sockets that the program has closed, and that may have something to send.
static CLOSED: PerProcess<Mutex<Vec<Arc<Socket>>>> = PerProcess::new();

/// Lets go of closed sockets whose threads have ended, and so of their descriptors.
fn forget_ended() {
    let is_over = |socket: &mut Arc<Socket>| socket.state().threads == 0;
    let ended = Vec::from_iter(lock(CLOSED.get()).extract_if(.., is_over));
    drop(ended);
}

/// Has what was sent delivered when the program ends, as a kernel does for its programs.
fn ends_with_the_program() {
    extern "C" fn end() {
        last("hca-rsocket-end", LINGER, || {
            let open: Vec<c_int> = lock(SOCKETS.get()).keys().copied().collect();
            open.into_iter().for_each(|number| _ = Socket::close(number));
            let closed = std::mem::take(&mut *lock(CLOSED.get()));
            let end = Instant::now() + LINGER;
            closed.iter().for_each(|socket| socket.wait_until(end, |state| state.threads == 0));
        });
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| at_exit(end));
}

/// The error of a connection that was not made.
fn refused(error: ConnectionError) -> Errno {
    Errno(match error {
        ConnectionError::Rejected { .. } => libc::ECONNREFUSED,
        ConnectionError::Failed(_) | ConnectionError::TimedOut(_) => libc::ETIMEDOUT,
        ConnectionError::Disconnected => libc::ECONNRESET,
        other => return other.into(),
    })
}

pub(super) fn verbs(device: &CmDevice) -> Result<Context, Errno> {
    Ok(In::of(device.context()).context()?.adapter.verbs().clone())
}

/// The address of a peer as a device knows it: the addresses of loopback are the first device's.
pub(super) fn at_device(to: SocketAddr, device: &CmDevice) -> SocketAddr {
    let ip = to.ip().to_canonical();
    let ip = if ip.is_loopback() { device.ip() } else { ip };
    SocketAddr::new(ip, to.port())
}

/// A queue pair with its buffers.
struct Lane {
    qp: QueuePair<Rc>,
    cq: CompletionQueue,
    free: Vec<Buf>,
}
impl Lane {
    fn new(context: &Context) -> Result<Self, Errno> {
        let no_memory = |_| Errno(libc::ENOMEM);
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(2 * DEPTH as u32 + 2)?;
        let depth = DEPTH as u32;
        let built = pd.qp::<Rc>(&cq).max_send_wr(depth).max_recv_wr(depth).build();
        let mut qp = built.map_err(|_| Errno(libc::ENOMEM))?;
        let mut buffers = pd.alloc_many(2 * DEPTH, HEADER + CHUNK).map_err(no_memory)?;
        let free = buffers.split_off(DEPTH);
        for buffer in buffers {
            qp.post_recv(buffer).map_err(|_| Errno(libc::ENOMEM))?;
        }
        Ok(Self { qp, cq, free })
    }
}

impl State {
    /// An address as the program's family of addresses has it.
    pub(super) fn shown(&self, address: Option<SocketAddr>) -> Option<SocketAddr> {
        let in_v6 =
            |v4: Ipv4Addr| if v4.is_unspecified() { Ipv6Addr::UNSPECIFIED } else { v4.to_ipv6_mapped() };
        match address {
            Some(SocketAddr::V4(v4)) if self.is_v6 => Some((in_v6(*v4.ip()), v4.port()).into()),
            other => other,
        }
    }
}

impl Socket {
    /// Makes a socket, which is the program's by its number.
    pub(super) fn create() -> Result<(c_int, Arc<Self>), Errno> {
        let socket = Self::new()?;
        Ok((socket.give()?, socket))
    }
    /// Gives the socket to the program. Its number is a descriptor of this call, as in rdma-core: librspreload takes a
    /// descriptor of its own before, and release 44 of it mixes both up if the socket's is the lower one.
    pub(super) fn give(self: &Arc<Self>) -> Result<c_int, Errno> {
        let id = eventfd(0, EventfdFlags::CLOEXEC)?;
        let number = id.as_raw_fd();
        let _ = self.id.set(id);
        lock(SOCKETS.get()).insert(number, Arc::clone(self));
        Ok(number)
    }
    fn new() -> Result<Arc<Self>, Errno> {
        ends_with_the_program();
        Ok(Arc::new(Self {
            id: OnceLock::new(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            choice: Mutex::new(()),
            state: Mutex::new(State {
                phase: Phase::New,
                error_told: false,
                is_v6: false,
                local: None,
                bound: Vec::new(),
                peer: None,
                nonblocking: false,
                options: HashMap::new(),
                accepted: VecDeque::new(),
                making: 0,
                backlog: 0,
                received: VecDeque::new(),
                ended: false,
                ending: false,
                end_sent: false,
                closing: false,
                threads: 0,
                listening: 0,
                free: Vec::new(),
                queue: None,
                maps: Vec::new(),
                datagrams: None,
            }),
            changes: Changes::default(),
        }))
    }
    pub(super) fn number(&self) -> c_int {
        self.id.get().map_or(-1, AsRawFd::as_raw_fd)
    }
    /// The socket of a number; `None` for another descriptor.
    pub(super) fn find(number: c_int) -> Option<Arc<Self>> {
        lock(SOCKETS.get()).get(&number).cloned()
    }
    pub(super) fn of(number: c_int) -> Result<Arc<Self>, Errno> {
        Self::find(number).ok_or(Errno(libc::EBADF))
    }
    /// Has one thread at a time choose what the socket is.
    pub(super) fn choosing(&self) -> Result<MutexGuard<'_, ()>, Errno> {
        let choosing = lock(&self.choice);
        if self.state().closing { Err(Errno(libc::EBADF)) } else { Ok(choosing) }
    }
    pub(super) fn is_datagram(&self) -> bool {
        self.state().datagrams.is_some()
    }
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
    /// Tells calls that wait for this socket.
    pub(super) fn tell(&self) {
        self.changes.tell();
        tell_waiters();
    }
    /// The number of changes that were told.
    pub(super) fn version(&self) -> u32 {
        self.changes.count()
    }
    /// Changes the state, and tells it.
    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.tell();
    }
    /// Waits until a look at the state finds something. `EAGAIN` if the socket or the call does not wait; the error of a
    /// socket that has failed, which nothing comes to any more; `EINTR` behind a signal.
    pub(super) async fn until<T>(
        &self,
        waits: bool,
        mut look: impl FnMut(&mut State) -> Option<Result<T, Errno>>,
    ) -> Result<T, Errno> {
        loop {
            let seen = {
                let mut state = self.state();
                if let Some(found) = look(&mut state) {
                    return found;
                }
                if let Phase::Failed(e) = state.phase {
                    return Err(e);
                }
                if !waits || state.nonblocking {
                    return Err(Errno(libc::EAGAIN));
                }
                self.changes.count()
            };
            self.changes.beyond(seen).await?;
        }
    }
    /// Starts a thread of the socket, which is counted.
    pub(super) fn thread(
        self: &Arc<Self>,
        name: &str,
        run: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) -> Result<(), Errno> {
        self.state().threads += 1;
        let counted = Counted(Arc::clone(self), |state| state.threads -= 1);
        let started = hca_process::spawn(name, move || run(&counted.0));
        started.map(drop).map_err(|_| Errno(libc::EAGAIN))
    }

    /// Binds a socket of streams to an address; port 0 chooses one, which is the socket's until it is closed.
    pub(super) fn bind(&self, at: SocketAddr) -> Result<(), Errno> {
        let _choosing = self.choosing()?;
        self.bind_to(at)
    }
    fn bind_to(&self, at: SocketAddr) -> Result<(), Errno> {
        let is_any = at.ip().is_unspecified();
        let devices = if is_any { CmDevice::all()? } else { vec![CmDevice::at(at.ip())?] };
        let mut state = self.state();
        if state.phase != Phase::New || !state.bound.is_empty() {
            return Err(INVALID);
        }
        let port = bind_all(&devices, PortSpace::Tcp, at.port(), state.shares_port())?;
        let service = ServiceId::of_port(PortSpace::Tcp, port);
        state.bound = devices.into_iter().map(|device| (device, service)).collect();
        state.local = Some(SocketAddr::new(at.ip(), port));
        Ok(())
    }
    pub(super) async fn connect(self: &Arc<Self>, to: SocketAddr) -> Result<(), Errno> {
        self.begin_to_connect(to)?;
        let done = self.until(true, |state| match state.phase {
            Phase::Connecting => None,
            Phase::Failed(e) => {
                state.error_told = true;
                Some(Err(e))
            }
            _ => Some(Ok(())),
        });
        done.await.map_err(|e| if e.0 == libc::EAGAIN { Errno(libc::EINPROGRESS) } else { e })
    }
    fn begin_to_connect(self: &Arc<Self>, to: SocketAddr) -> Result<(), Errno> {
        let _choosing = self.choosing()?;
        match self.state().phase {
            Phase::New => {}
            Phase::Open => return Err(Errno(libc::EISCONN)),
            Phase::Connecting => return Err(Errno(libc::EALREADY)),
            Phase::Listening | Phase::Failed(_) => return Err(Errno(libc::EINVAL)),
        }
        let (bound, local) = {
            let state = self.state();
            (state.bound.clone(), state.local)
        };
        let device = match &bound[..] {
            [(device, _)] if local.is_some_and(|local| !local.ip().is_unspecified()) => Arc::clone(device),
            _ => CmDevice::towards(to.ip())?,
        };
        let port = bound.first().map_or_else(ephemeral_port, |(_, service)| service.0 as u16);
        let context = verbs(&device)?;
        let lane = Lane::new(&context)?;
        let to_device = at_device(to, &device);
        self.change(|state| {
            state.phase = Phase::Connecting;
            state.peer = Some(to);
            state.local = Some(SocketAddr::new(device.ip(), port));
        });
        let params = ConnectParams { source_port: Some(port), ..ConnectParams::default() };
        let begun = self.thread("hca-rsocket", move |socket| {
            match connect_with(&context, &lane.qp, to_device, &params) {
                Ok(connection) => socket.run(lane, connection, None),
                Err(e) => socket.change(|state| state.phase = Phase::Failed(refused(e))),
            }
        });
        // The program may try again.
        begun.inspect_err(|_| {
            self.change(|state| (state.phase, state.peer, state.local) = (Phase::New, None, local));
        })
    }

    /// The life of a connection. A listening socket hears of it once it can be used.
    fn run(self: &Arc<Self>, lane: Lane, connection: Connection, making: Option<Counted>) {
        let Lane { qp, mut cq, free } = lane;
        let (send, mut recv) = qp.split();
        self.change(|state| {
            state.queue = Some(send);
            state.free = free;
            state.phase = Phase::Open;
        });
        if let Some(Counted(listening, _)) = &making
            && !listening.offer(self)
        {
            Arc::clone(self).end();
        }
        // Only now: a connection that waits for `raccept` is counted among those that wait.
        drop(making);
        let mut wcs = Completions::with_capacity(2 * DEPTH);
        let mut held: Vec<Buf> = Vec::new();
        loop {
            let arrived = cq.wait_or_readable(&mut wcs, self.wake.as_fd(), None);
            let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
            let Ok(arrived) = arrived else { break };
            let mut state = self.state();
            for mut wc in arrived {
                let (is_good, is_recv, len) =
                    (wc.error().is_none(), wc.opcode == WcOpcode::Recv, wc.byte_len);
                let Some(buf) = wc.take_buf() else { continue };
                if !is_good {
                    state.broken();
                } else if is_recv {
                    state.take(&buf[..len as usize]);
                    held.push(buf);
                } else {
                    state.free.push(buf);
                }
            }
            let is_broken = state.phase != Phase::Open;
            if state.received.len() < WAITING_BYTES && !is_broken {
                post(&mut recv, &mut held);
            }
            state.end_stream();
            let is_over = is_broken || state.closing && state.end_sent && state.free.len() == DEPTH;
            drop(state);
            self.tell();
            if is_over {
                break;
            }
        }
        self.change(|state| {
            state.broken();
            state.queue = None;
        });
        let _ = connection.disconnect();
    }

    /// Sends `len` bytes of the stream, or for mapped memory from an address on. `part` gives those of a message.
    pub(super) async fn send(
        &self,
        len: usize,
        part: impl Fn(Range<usize>) -> Vec<u8>,
        to: Option<u64>,
        waits: bool,
    ) -> Result<usize, Errno> {
        let mut sent = 0;
        while sent < len {
            let bytes = part(sent..len.min(sent + CHUNK));
            let header = to.map_or(STREAM, |to| to.wrapping_add(sent as u64));
            if to.is_some() && header == STREAM {
                return Err(Errno(libc::EINVAL));
            }
            match self.until(waits, |state| state.post(header, &bytes)).await {
                Ok(()) => sent += bytes.len(),
                Err(_) if sent > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(sent)
    }
    /// Takes bytes of the stream: all that the call wants if it waits for all. None at the end of the stream.
    pub(super) async fn recv(&self, room: usize, flags: c_int) -> Result<Vec<u8>, Errno> {
        let least = if flags & libc::MSG_WAITALL != 0 { room } else { 1 };
        let waits = flags & libc::MSG_DONTWAIT == 0;
        let peeks = flags & libc::MSG_PEEK != 0;
        let mut taken = Taken { of: self, bytes: Vec::new() };
        loop {
            let left = room - taken.bytes.len();
            let part = self.until(waits, |state| state.read(left, peeks)).await;
            // The thread may wait for room.
            ring(&self.wake);
            match part {
                Ok(part) if part.is_empty() => return Ok(taken.give()),
                Ok(part) => taken.bytes.extend(part),
                Err(_) if !taken.bytes.is_empty() => return Ok(taken.give()),
                Err(e) => return Err(e),
            }
            if taken.bytes.len() >= least || peeks {
                return Ok(taken.give());
            }
        }
    }
    /// Ends the own stream behind what was sent, the peer's stream, or both. Nothing is left to do where the connection is
    /// over.
    pub(super) fn shut_down(&self, how: c_int) -> Result<(), Errno> {
        if !matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR) {
            return Err(INVALID);
        }
        let mut state = self.state();
        if !matches!(state.phase, Phase::Open | Phase::Failed(_)) {
            return Err(Errno(libc::ENOTCONN));
        }
        state.ended |= how != libc::SHUT_WR;
        state.ending |= how != libc::SHUT_RD;
        state.end_stream();
        drop(state);
        self.tell();
        Ok(())
    }
    /// Closes the socket. What was sent is delivered all the same, by the socket's thread.
    pub(super) fn close(number: c_int) -> Result<(), Errno> {
        let socket = lock(SOCKETS.get()).remove(&number).ok_or(Errno(libc::EBADF))?;
        socket.end();
        Ok(())
    }
    /// Ends a socket that the program has no more, or never had.
    pub(super) fn end(self: Arc<Self>) {
        let (accepted, groups) = {
            // A choice that another thread is making ends with the socket.
            let _choosing = lock(&self.choice);
            let mut state = self.state();
            (state.closing, state.ending) = (true, true);
            // The program may use its memory for something else now.
            state.maps.clear();
            state.received = VecDeque::new();
            let groups = state.datagrams.as_ref().map(|datagrams| datagrams.close(&self)).unwrap_or_default();
            (std::mem::take(&mut state.accepted), groups)
        };
        for waiting in accepted {
            waiting.end();
        }
        ring(&self.wake);
        // The program may use the port for another socket.
        self.wait_until(Instant::now() + LINGER, |state| state.listening == 0);
        let bound = std::mem::take(&mut self.state().bound);
        bound.iter().for_each(|(device, service)| device.unbind(*service));
        groups.iter().for_each(|group| group.wait_for_end());
        lock(CLOSED.get()).push(self);
        forget_ended();
    }
    fn wait_until(&self, end: Instant, is_so: fn(&State) -> bool) {
        loop {
            let state = self.state();
            let left = end.saturating_duration_since(Instant::now());
            if is_so(&state) || left.is_zero() {
                return;
            }
            let seen = self.changes.count();
            drop(state);
            // A signal is no reason to leave what was sent.
            self.changes.wait(seen, left);
        }
    }
    /// Maps memory for the peer's writes, at an offset.
    pub(super) fn map(&self, at: usize, len: usize, offset: u64) {
        self.state().maps.push(Map { offset, len, at });
    }
    pub(super) fn unmap(&self, at: usize, len: usize) -> Result<(), Errno> {
        let mut state = self.state();
        let found = state.maps.iter().position(|map| (map.at, map.len) == (at, len));
        found.map(|index| _ = state.maps.remove(index)).ok_or(Errno(libc::EINVAL))
    }
    /// The events of `poll` that have happened.
    pub(super) fn events(&self) -> i16 {
        let state = self.state();
        let mut events = match state.phase {
            Phase::Open if !state.free.is_empty() => libc::POLLOUT,
            Phase::Failed(_) => libc::POLLIN | libc::POLLOUT | libc::POLLERR | libc::POLLHUP,
            _ => 0,
        };
        if let Some(datagrams) = &state.datagrams {
            events |= if datagrams.has_arrived() { libc::POLLIN } else { 0 };
            return events | if datagrams.has_room() { libc::POLLOUT } else { 0 };
        }
        if !state.accepted.is_empty() || !state.received.is_empty() || state.ended {
            events |= libc::POLLIN;
        }
        if state.ended {
            events |= libc::POLLRDHUP;
        }
        events
    }
}

/// Bytes of the stream that a call has taken. Those of a thread that is cancelled go back.
struct Taken<'a> {
    of: &'a Socket,
    bytes: Vec<u8>,
}
impl Taken<'_> {
    fn give(mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}
impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.bytes.is_empty() {
            self.of.change(|state| {
                if !state.closing {
                    self.bytes.drain(..).rev().for_each(|byte| state.received.push_front(byte));
                }
            });
        }
    }
}

/// Posts buffers that were received into.
fn post(recv: &mut RecvQueue<Rc>, held: &mut Vec<Buf>) {
    while let Some(buf) = held.pop() {
        if let Err(refused) = recv.post_recv(buf) {
            drop(refused);
            return;
        }
    }
}

impl State {
    /// Whether other sockets may be bound to the same port.
    pub(super) fn shares_port(&self) -> bool {
        let is_set = |name| {
            self.options
                .get(&(libc::SOL_SOCKET, name))
                .is_some_and(|value| value.iter().any(|byte| *byte != 0))
        };
        is_set(libc::SO_REUSEADDR) || is_set(libc::SO_REUSEPORT)
    }
    /// The connection is over.
    fn broken(&mut self) {
        if self.phase == Phase::Open {
            self.phase = Phase::Failed(Errno(libc::ECONNRESET));
            // Behind the end of the peer's stream that is no error.
            self.error_told |= self.ended;
        }
    }
    /// Tells the peer of the end of the own stream, behind what was sent, once there is a buffer for that.
    fn end_stream(&mut self) {
        if self.ending && !self.end_sent && matches!(self.post(STREAM, &[]), Some(Ok(()))) {
            self.end_sent = true;
        }
    }
    /// Takes a message.
    fn take(&mut self, message: &[u8]) {
        let Some((header, bytes)) = message.split_first_chunk::<HEADER>() else { return };
        let to = u64::from_le_bytes(*header);
        if to == STREAM {
            self.ended |= bytes.is_empty();
            // Nobody reads what comes to a socket that is closed, and the peer goes on.
            if !self.closing {
                self.received.extend(bytes);
            }
            return;
        }
        // The peer chooses the offset: one just before 2^64 is no place within the memory.
        let of = |map: &&Map| {
            let end = to.checked_sub(map.offset).and_then(|from| from.checked_add(bytes.len() as u64));
            end.is_some_and(|end| end <= map.len as u64)
        };
        // Bytes for memory that is not mapped are dropped.
        if let Some(map) = self.maps.iter().find(of) {
            let at = map.at.wrapping_add((to - map.offset) as usize);
            let _ = copy_to(at as *mut u8, bytes);
        }
    }
    /// Posts a message, if there is a buffer for it.
    fn post(&mut self, header: u64, bytes: &[u8]) -> Option<Result<(), Errno>> {
        match self.phase {
            Phase::Open if self.end_sent || self.ending && !bytes.is_empty() => {
                return Some(Err(Errno(libc::EPIPE)));
            }
            Phase::Open => {}
            Phase::Failed(_) => return Some(Err(Errno(libc::EPIPE))),
            _ => return Some(Err(Errno(libc::ENOTCONN))),
        }
        let queue = self.queue.as_mut()?;
        let mut buf = self.free.pop()?;
        let len = HEADER + bytes.len();
        buf[..HEADER].copy_from_slice(&header.to_le_bytes());
        buf[HEADER..len].copy_from_slice(bytes);
        Some(queue.send(buf.first(len)).map_err(|_| Errno(libc::EPIPE)))
    }
    /// Takes received bytes; none at the end.
    fn read(&mut self, room: usize, peeks: bool) -> Option<Result<Vec<u8>, Errno>> {
        let count = room.min(self.received.len());
        if count > 0 || room == 0 {
            let bytes = self.received.range(..count).copied().collect();
            if !peeks {
                self.received.drain(..count);
            }
            return Some(Ok(bytes));
        }
        match self.phase {
            _ if self.ended => Some(Ok(Vec::new())),
            Phase::Failed(e) => Some(Err(e)),
            Phase::Open => None,
            _ => Some(Err(Errno(libc::ENOTCONN))),
        }
    }
}

mod listening;
#[cfg(test)]
mod tests;
