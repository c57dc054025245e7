//! The launcher's side of PMI-1: a thread that serves the processes of a job over sockets.
//!
//! ```
//! use hca_job::{Job, Settings, server::Server};
//!
//! let server = Server::start(2, "doc", |event| eprintln!("{event:?}"))?;
//! // A launcher leaves each socket open for its process, and names it in PMI_FD; here threads stand for them.
//! let seats = [server.attach(0)?, server.attach(1)?];
//! let cards: Vec<Vec<u8>> = std::thread::scope(|s| {
//!     let ranks = seats.into_iter().zip(0..);
//!     let threads: Vec<_> = ranks.map(|(seat, rank)| s.spawn(move || {
//!         let job = Job::over(seat, rank, 2, Settings::default())?;
//!         job.publish(&[rank as u8])?;
//!         job.fence()?;
//!         job.card(1 - rank)
//!     })).collect();
//!     threads.into_iter().map(|t| t.join().unwrap().unwrap()).collect()
//! });
//! assert_eq!(cards, [[1], [0]]);
//! # Ok::<(), hca_job::JobError>(())
//! ```

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hca_process::Fork;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use crate::error::{JobError, LineFault};
use crate::line::MAX_LINE_BYTES;
pub use crate::state::{Abort, NotPmi, PmiFault};
use crate::state::{JobState, Outcome};
use crate::url::MAX_SIZE;

/// The limit of TCP connections that have not named their rank yet, beside the number of processes; the oldest one is
/// closed.
const MAX_UNIDENTIFIED: usize = 64;
/// How long one of them may take to.
const GREETING: Duration = Duration::from_secs(10);
/// How long a launcher has to say that a process has ended whose connection has: so it knows of the first failure
/// before those do that follow from it.
const LAUNCHER: Duration = Duration::from_millis(300);
/// Pieces of input that are taken from one connection before the others have their turn.
const PIECES: usize = 16;
/// Bytes of answers that wait for a process to read them; it is not received meanwhile.
const MAX_UNREAD: usize = 64 * 1024;

/// A report about a process to the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The process asks to end the job.
    Abort(Abort),
    /// The process does not speak PMI-1.
    NotPmi(NotPmi),
}

/// The server of a job. A drop ends it and closes all connections.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    size: u32,
    thread: Option<thread::JoinHandle<()>>,
    fork: Fork,
}

#[derive(Debug)]
struct Shared {
    wake: OwnedFd,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    orders: Vec<Order>,
    /// Which ranks `seat` has given out.
    given: Vec<bool>,
    /// How many have not left.
    present: u32,
    /// Orders that were given, and those that were carried out.
    given_orders: u64,
    done_orders: u64,
    /// The thread has ended.
    over: bool,
}

#[derive(Debug)]
enum Order {
    Seat(u32, OwnedFd),
    Hear(u32),
    Ended(u32),
    /// End once all processes have left; those that have not come are waited for until then.
    Linger(Instant),
    Stop,
}

impl Shared {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an order; returns its number.
    fn order(&self, order: Order) -> u64 {
        let mut state = self.state();
        state.orders.push(order);
        state.given_orders += 1;
        let number = state.given_orders;
        drop(state);
        // An eventfd is full only when it has been written to and not been read: the thread is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        number
    }
}

impl Server {
    /// Starts the server of a job of `size` processes, with this name for the space of its values. The server's thread
    /// calls `on_event` for each report about a process.
    ///
    /// # Errors
    /// [`JobError::Value`] if `size` is 0 or beyond [`MAX_SIZE`]; [`JobError::System`] if the system has no thread or
    /// descriptor left.
    pub fn start(
        size: u32,
        name: &str,
        on_event: impl FnMut(Event) + Send + 'static,
    ) -> Result<Self, JobError> {
        Self::with(size, name, None, Box::new(on_event))
    }

    /// Serves processes that greet on the listener, as members of this job.
    pub(crate) fn listening(
        size: u32,
        name: &str,
        listener: TcpListener,
        job: &str,
    ) -> Result<Self, JobError> {
        listener.set_nonblocking(true).map_err(|source| JobError::System { what: "socket", source })?;
        Self::with(size, name, Some((listener, job.into())), Box::new(|_| {}))
    }

    fn with(
        size: u32,
        name: &str,
        listener: Option<(TcpListener, Box<str>)>,
        on_event: OnEvent,
    ) -> Result<Self, JobError> {
        if !(1..=MAX_SIZE).contains(&size) {
            let value = size.to_string().into();
            return Err(JobError::Value { name: "size", value, wanted: "a number from 1 to 1048576" });
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| JobError::System { what: "descriptor", source: e.into() })?;
        let state = State { given: vec![false; size as usize], present: size, ..State::default() };
        let shared = Arc::new(Shared { wake, state: Mutex::new(state), changed: Condvar::new() });
        let mut floor = Floor {
            job_state: JobState::new(size, name),
            members: (0..size).map(|_| None).collect(),
            unidentified: Vec::new(),
            listener,
            on_event,
            linger: None,
            lost: Vec::new(),
        };
        let theirs = shared.clone();
        let thread = hca_process::spawn("hca-job", move || floor.serve(&theirs))
            .map_err(|source| JobError::System { what: "thread", source })?;
        Ok(Self { shared, size, thread: Some(thread), fork: Fork::new() })
    }

    /// The socket's end for the process of this rank, with close-on-exec: a launcher whose process should inherit it
    /// clears that flag. Once for each rank.
    ///
    /// # Errors
    /// [`JobError::NoSuchRank`], [`JobError::RankTaken`]; [`JobError::System`] if there are no descriptors.
    pub fn attach(&self, rank: u32) -> Result<OwnedFd, JobError> {
        match self.shared.state().given.get_mut(rank as usize) {
            None => return Err(JobError::NoSuchRank { rank, size: self.size }),
            Some(true) => return Err(JobError::RankTaken { rank, at: "".into() }),
            Some(given) => *given = true,
        }
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|e| JobError::System { what: "descriptor", source: e.into() })?;
        self.shared.order(Order::Seat(rank, ours));
        Ok(theirs)
    }

    /// Reports that the process of this rank has ended, although its socket may still be open in a child of that
    /// process. The process's earlier lines are handled first. Ranks outside of the job are ignored.
    pub fn ended(&self, rank: u32) {
        self.shared.order(Order::Ended(rank));
    }

    /// Waits until the lines that the process of this rank has sent were handled, and their events reported. Ranks
    /// outside of the job are ignored, and `on_event` waits for nothing: it is called by the thread that handles lines.
    pub fn hear(&self, rank: u32) {
        let Some(thread) = self.thread.as_ref().filter(|t| t.thread().id() != thread::current().id()) else {
            return;
        };
        let number = self.shared.order(Order::Hear(rank));
        let mut state = self.shared.state();
        while state.done_orders < number && !state.over && !thread.is_finished() {
            let waited = self.shared.changed.wait_timeout(state, LAUNCHER);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until all processes have left; how many have not, if that takes too long.
    pub(crate) fn wait_all_left(&self, timeout: Duration) -> Result<(), u32> {
        let deadline = hca_process::in_time(timeout);
        let mut state = self.shared.state();
        while state.present > 0 && !state.over {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(state.present);
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Ends by itself once all processes have left the job, or with this process. Those that have not come yet are waited
    /// for so long.
    pub(crate) fn linger(mut self, patience: Duration) {
        self.shared.order(Order::Linger(hca_process::in_time(patience)));
        self.thread = None;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A child has no such thread, and its parent's goes on.
        if let Some(thread) = self.thread.take()
            && !self.fork.is_child()
        {
            self.shared.order(Order::Stop);
            // It waits for nothing but its descriptors. A panic has been reported by its hook.
            let _ = thread.join();
        }
    }
}

type OnEvent = Box<dyn FnMut(Event) + Send>;

/// The state of the server's thread.
struct Floor {
    job_state: JobState,
    members: Vec<Option<Wire>>,
    unidentified: Vec<(Wire, Instant)>,
    listener: Option<(TcpListener, Box<str>)>,
    on_event: OnEvent,
    /// Until when the server waits for processes that have not come, where it ends by itself.
    linger: Option<Instant>,
    /// Whose connections have ended without a word, and until when the launcher may say so.
    lost: Vec<(u32, Instant)>,
}

/// A connection.
struct Wire {
    socket: OwnedFd,
    input: Vec<u8>,
    output: Vec<u8>,
    /// It ends when its output is sent.
    closing: bool,
}

/// Which descriptor was ready.
#[derive(Clone, Copy)]
enum Ready {
    Wake,
    Listener,
    Seat(usize),
    Stranger(usize),
}

impl Floor {
    fn serve(&mut self, shared: &Shared) {
        loop {
            let orders = std::mem::take(&mut shared.state().orders);
            let stop = orders.iter().any(|o| matches!(o, Order::Stop));
            let done = orders.len() as u64;
            for order in orders {
                self.execute(order);
            }
            let mut state = shared.state();
            state.present = self.job_state.present();
            state.done_orders += done;
            drop(state);
            shared.changed.notify_all();
            let over = |until| self.job_state.present() == 0 || until <= Instant::now();
            if stop || self.alone_until().is_some_and(over) {
                break;
            }
            let ready = self.wait(shared);
            // From the last to the first, so that removing one does not move those still to come.
            for &at in ready.iter().rev() {
                match at {
                    Ready::Wake => {
                        let _ = rustix::io::read(&shared.wake, &mut [0; 8]);
                    }
                    Ready::Seat(rank) => _ = self.tend(rank),
                    Ready::Stranger(at) => self.listen_to(at),
                    Ready::Listener => self.accept(),
                }
            }
            let now = Instant::now();
            self.unidentified.retain(|(_, until)| *until > now);
            for (rank, _) in self.lost.extract_if(.., |(_, until)| *until <= now).collect::<Vec<_>>() {
                let out = self.job_state.ended(rank);
                self.apply(rank, out);
            }
        }
        shared.state().over = true;
        shared.changed.notify_all();
    }

    /// Until when it waits for those who have not come, where it ends by itself and nobody is there.
    fn alone_until(&self) -> Option<Instant> {
        self.linger.filter(|_| self.members.iter().all(Option::is_none))
    }

    /// Waits for whatever comes.
    fn wait(&self, shared: &Shared) -> Vec<Ready> {
        let mut what = vec![Ready::Wake];
        let mut fds = vec![PollFd::new(&shared.wake, PollFlags::IN)];
        if let Some((listener, _)) = &self.listener {
            what.push(Ready::Listener);
            fds.push(PollFd::new(listener, PollFlags::IN));
        }
        for (rank, wire) in self.members.iter().enumerate() {
            if let Some(wire) = wire {
                what.push(Ready::Seat(rank));
                fds.push(PollFd::new(&wire.socket, wire.wants()));
            }
        }
        for (at, (wire, _)) in self.unidentified.iter().enumerate() {
            what.push(Ready::Stranger(at));
            fds.push(PollFd::new(&wire.socket, wire.wants()));
        }
        let until = self.unidentified.iter().map(|(_, until)| *until);
        let until = until.chain(self.lost.iter().map(|(_, until)| *until)).chain(self.alone_until()).min();
        let left = until.map(|u| u.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        let left = left.and_then(|l| Timespec::try_from(l).ok());
        if let Err(e) = poll(&mut fds, left.as_ref()) {
            // A signal; or the system has no memory for the list, which passes.
            if e != Errno::INTR {
                thread::sleep(Duration::from_millis(10));
            }
            return Vec::new();
        }
        what.into_iter().zip(&fds).filter(|(_, f)| !f.revents().is_empty()).map(|(w, _)| w).collect()
    }

    fn execute(&mut self, order: Order) {
        match order {
            Order::Seat(rank, socket) => {
                // `seat` gives each out once.
                if self.job_state.attach(rank).is_ok() {
                    self.members[rank as usize] = Some(Wire::new(socket));
                }
            }
            Order::Hear(rank) => self.hear(rank, false),
            Order::Ended(rank) => {
                self.hear(rank, true);
                if (rank as usize) < self.members.len() {
                    self.members[rank as usize] = None;
                    let out = self.job_state.ended(rank);
                    self.apply(rank, out);
                }
            }
            Order::Linger(until) => self.linger = Some(until),
            Order::Stop => {}
        }
    }

    /// Handles the lines that a process has sent until now. One that has `ended` reads no answers.
    fn hear(&mut self, rank: u32, ended: bool) {
        let rank = rank as usize;
        let Some(Some(wire)) = self.members.get(rank) else { return };
        // A child of it may send for ever.
        let mut unheard = ioctl_fionread(&wire.socket).unwrap_or(0);
        loop {
            let heard = self.tend(rank);
            unheard = unheard.saturating_sub(heard);
            let Some(wire) = self.members[rank].as_mut().filter(|_| heard > 0 && unheard > 0) else { return };
            if ended {
                wire.output.clear();
            }
        }
    }

    /// Sends to a process and handles its lines. Returns how many bytes it has read of them.
    fn tend(&mut self, rank: usize) -> u64 {
        let mut heard = 0;
        for _ in 0..PIECES {
            let Some(wire) = &mut self.members[rank] else { return heard };
            if !wire.send() {
                self.part(rank);
                return heard;
            }
            if wire.closing || wire.output.len() >= MAX_UNREAD {
                break;
            }
            match wire.receive() {
                Received::Something(bytes) => heard += bytes as u64,
                Received::Nothing => break,
                Received::End => {
                    self.part(rank);
                    return heard;
                }
            }
            let lines = wire.lines();
            self.take_lines(rank as u32, lines);
        }
        if self.members[rank].as_ref().is_some_and(|w| w.closing && w.output.is_empty()) {
            self.part(rank);
        }
        heard
    }

    /// Handles lines of a process, up to one that closes its connection.
    fn take_lines(&mut self, rank: u32, lines: impl IntoIterator<Item = Heard>) {
        for line in lines {
            let out = match line {
                Ok(line) => self.job_state.line(rank, &line),
                Err(begin) => {
                    let fault = LineFault::TooLong { limit: MAX_LINE_BYTES };
                    self.job_state.not_pmi(rank, &begin, PmiFault::Line(fault))
                }
            };
            let close = out.close;
            self.apply(rank, out);
            if close {
                break;
            }
        }
    }

    /// The connection of a seat is over.
    fn part(&mut self, rank: usize) {
        self.members[rank] = None;
        if self.listener.is_none() && !self.job_state.has_left(rank as u32) {
            self.lost.push((rank as u32, Instant::now() + LAUNCHER));
            return;
        }
        let out = self.job_state.ended(rank as u32);
        self.apply(rank as u32, out);
    }

    /// Hands answers on to their connections.
    fn apply(&mut self, rank: u32, out: Outcome) {
        // Before the others hear that no barrier comes about any more: they may end for it.
        if let Some(not_pmi) = out.not_pmi {
            (self.on_event)(Event::NotPmi(not_pmi));
        }
        for (to, text) in out.answers {
            if let Some(wire) = &mut self.members[to as usize] {
                wire.output.extend_from_slice(text.as_bytes());
                // A closed connection is noticed when it is read.
                wire.send();
            }
        }
        if let Some(wire) = self.members[rank as usize].as_mut().filter(|_| out.close) {
            wire.closing = true;
        }
        if let Some(abort) = out.abort {
            (self.on_event)(Event::Abort(abort));
        }
    }

    /// Reads the greeting of an unidentified connection.
    fn listen_to(&mut self, at: usize) {
        let Some((_, job)) = &self.listener else { return };
        let wire = &mut self.unidentified[at].0;
        let received = if wire.closing { Received::Nothing } else { wire.receive() };
        let alive = wire.send() && received != Received::End;
        let mut lines = wire.lines().into_iter();
        match lines.next() {
            Some(Ok(line)) => match self.job_state.greet(&line, job) {
                Ok((rank, answer)) => {
                    let (mut wire, _) = self.unidentified.swap_remove(at);
                    wire.output.extend_from_slice(answer.as_bytes());
                    wire.send();
                    self.members[rank as usize] = Some(wire);
                    // The process may have said more than its greeting.
                    return self.take_lines(rank, lines);
                }
                Err(answer) => {
                    wire.output.extend_from_slice(answer.as_bytes());
                    wire.closing = true;
                    wire.send();
                }
            },
            Some(Err(_)) => wire.closing = true,
            None => {}
        }
        if !alive || wire.closing && wire.output.is_empty() {
            self.unidentified.swap_remove(at);
        }
    }

    fn accept(&mut self) {
        let Some((listener, _)) = &self.listener else { return };
        match listener.accept() {
            Ok((stream, _)) => {
                // It costs time only, if it can't be set.
                let _ = stream.set_nodelay(true);
                if self.unidentified.len() >= MAX_UNIDENTIFIED + self.members.len() {
                    let oldest = self.unidentified.iter().enumerate().min_by_key(|(_, (_, until))| *until);
                    let oldest = oldest.map(|(at, _)| at).expect("there are as many as the limit");
                    self.unidentified.swap_remove(oldest);
                }
                self.unidentified.push((Wire::new(stream.into()), Instant::now() + GREETING));
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            // Out of descriptors, mostly: it stays ready, so this would turn without end.
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// A line, or the beginning of one that is too long.
type Heard = Result<Vec<u8>, Vec<u8>>;

/// The result of reading a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Received {
    /// So many bytes.
    Something(usize),
    Nothing,
    End,
}

impl Wire {
    fn new(socket: OwnedFd) -> Self {
        Self { socket, input: Vec::new(), output: Vec::new(), closing: false }
    }

    fn wants(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, !self.closing && self.output.len() < MAX_UNREAD);
        flags.set(PollFlags::OUT, !self.output.is_empty());
        flags
    }

    /// Sends queued bytes; returns false if the connection has ended.
    fn send(&mut self) -> bool {
        while !self.output.is_empty() {
            match send(self.socket.as_fd(), &self.output, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => drop(self.output.drain(..sent)),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Reads one piece.
    fn receive(&mut self) -> Received {
        let mut room = [0; 4096];
        loop {
            return match recv(self.socket.as_fd(), &mut room[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => Received::End,
                Ok((got, _)) => {
                    self.input.extend_from_slice(&room[..got]);
                    Received::Something(got)
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Received::Nothing,
                Err(_) => Received::End,
            };
        }
    }

    /// The complete lines, and the beginning of a line that is too long.
    fn lines(&mut self) -> Vec<Heard> {
        let whole = self.input.iter().rposition(|&b| b == b'\n').map_or(0, |end| end + 1);
        let rest = self.input.split_off(whole);
        let text = std::mem::replace(&mut self.input, rest);
        let judged = |line: &[u8]| match line.len() > MAX_LINE_BYTES {
            true => Err(line.to_vec()),
            false => Ok(line.to_vec()),
        };
        let mut lines: Vec<_> =
            text.split_inclusive(|&b| b == b'\n').map(|l| judged(&l[..l.len() - 1])).collect();
        lines.extend(judged(&self.input).is_err().then(|| Err(std::mem::take(&mut self.input))));
        lines
    }
}
