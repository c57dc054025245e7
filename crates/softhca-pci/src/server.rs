//! The server: sockets, clients, and the one thread that does everything.
//!
//! While there is something to do the thread turns the adapter and looks at doorbells and completions, and looks at the
//! sockets now and then. Whoever finds nothing for a while gives the CPU away as every program does that polls the
//! adapter, and sleeps at last: on its sockets, on the adapter's descriptor, on the eventfds of clients that wake it,
//! and, where a client has doorbell pages and can't wake anybody, for a millisecond at most.

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hca_core::Device;
use hca_process::Fork;
use hca_vfio::user::Sleeper;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use softhca::{SoftHca, as_one_look};
use thiserror::Error;

use crate::client::{Client, Ended};
use crate::directory::SharedDirectory;
use crate::function::{Function, FunctionOptions, PortKind};
use crate::guest::Part;

/// How functions are served.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// What their ports are.
    pub port: PortKind,
    /// How long there is nothing to do before the thread sleeps; 50 us unless told.
    pub patience: Duration,
}

impl From<PortKind> for ServerOptions {
    fn from(port: PortKind) -> Self {
        Self { port, patience: Duration::from_micros(50) }
    }
}
/// Turns between two looks at the sockets while there is something to do.
const TURNS_A_LOOK: u32 = 32;
/// Looks at everything in vain before a client that shares the CPU may run: a client on another CPU that answers at
/// once has answered by then. With one look messages to a client on this CPU take a quarter longer, with more all of
/// them do.
const LOOKS: u32 = 3;
/// How long the thread sleeps at first, and at most, where it has to look at doorbells by itself.
const FIRST_TICK: Duration = Duration::from_micros(64);
const LAST_TICK: Duration = Duration::from_millis(1);
/// Looks at what a client may have left when the next one comes: more than a socket holds.
const LAST_WORDS: u32 = 4096;
/// Functions of one server.
const MAX_FUNCTIONS: usize = 1024;

/// Why a server does not serve.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// There is nothing to serve, or more than can be numbered.
    #[error("{0} sockets, where a server has 1 to {MAX_FUNCTIONS} functions with a socket each")]
    Functions(usize),
    /// Somebody serves there already.
    #[error("{}: another server listens there; stop it, or name another path", path.display())]
    InUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("{}: there is something that is no socket; remove it, or name another path", path.display())]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// The socket can't be made.
    #[error("{}: listening there: {source}{}", path.display(), hca_core::remedy(source))]
    Listen {
        /// The socket's path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The system refuses something else.
    #[error("{doing}: {source}{}", hca_core::remedy(source))]
    System {
        /// What was being done.
        doing: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

/// A socket with the function behind it.
#[derive(Debug)]
struct Slot {
    path: PathBuf,
    listener: UnixListener,
    function: Function,
    client: Option<Client>,
    sleeper: Sleeper,
    /// A client that has gone may still have the sleeper's descriptors.
    worn: bool,
    fork: Fork,
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The socket's file and the client are the parent's.
        if self.fork.is_child() {
            return;
        }
        self.function.disconnect();
        if let Err(e) = std::fs::remove_file(&self.path) {
            tracing::warn!("{}: the socket stays: {e}", self.path.display());
        }
    }
}

/// Functions of one adapter, each at a socket for one client at a time.
pub struct Server {
    hca: Arc<SoftHca>,
    slots: Vec<Slot>,
    stop: OwnedFd,
    patience: Duration,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("slots", &self.slots).finish_non_exhaustive()
    }
}

/// Stops a server from another thread.
#[derive(Debug)]
pub struct Stopper(OwnedFd);

impl Stopper {
    /// Has [`Server::run`] return soon.
    pub fn stop(&self) {
        // A counter that is full says the same.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Server {
    /// Listens at these paths, with a function of the adapter at each. The adapter is to be one with
    /// [`Progress::Inline`](softhca::Progress::Inline), as the server turns it.
    ///
    /// # Errors
    /// There are no paths or too many, somebody listens at one already, or the system refuses.
    pub fn open(
        hca: Arc<SoftHca>,
        paths: &[PathBuf],
        options: impl Into<ServerOptions>,
    ) -> Result<Self, ServeError> {
        let ServerOptions { port, patience } = options.into();
        if !(1..=MAX_FUNCTIONS).contains(&paths.len()) {
            return Err(ServeError::Functions(paths.len()));
        }
        let system = |doing| move |source| ServeError::System { doing, source };
        let directory = SharedDirectory::of(&hca);
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| system("making an eventfd")(e.into()))?;
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let part = Part::of(paths.len(), descriptors);
        let mut slots = Vec::with_capacity(paths.len());
        for (number, path) in (0..).zip(paths) {
            let options = FunctionOptions { number, port };
            let mut function = Function::new(hca.clone(), directory.clone(), options)
                .map_err(system("making doorbell pages"))?;
            function.guest.set_part(part);
            let sleeper = Sleeper::new().map_err(system("making an eventfd"))?;
            let listener = listen(path)?;
            let (path, fork) = (path.clone(), Fork::new());
            slots.push(Slot { path, listener, function, client: None, sleeper, worn: false, fork });
        }
        Ok(Self { hca, slots, stop, patience })
    }

    /// What stops it.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn stopper(&self) -> std::io::Result<Stopper> {
        self.stop.try_clone().map(Stopper)
    }

    /// Serves until it is stopped.
    pub fn run(&mut self) {
        let mut idle_since: Option<Instant> = None;
        let mut tick = FIRST_TICK;
        let mut turns = 0_u32;
        loop {
            let mut worked = self.turn();
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(TURNS_A_LOOK) {
                let Some(messages) = self.look_at_sockets(Some(Duration::ZERO)) else { return };
                worked |= messages;
            }
            if worked {
                (idle_since, tick) = (None, FIRST_TICK);
                continue;
            }
            if idle_since.get_or_insert_with(Instant::now).elapsed() < self.patience {
                continue;
            }
            match self.sleep(tick) {
                None => return,
                Some(true) => (idle_since, tick) = (None, FIRST_TICK),
                // It was the tick: one look, and back to sleep.
                Some(false) => tick = (2 * tick).min(LAST_TICK),
            }
        }
    }

    /// Turns the adapter, and looks at all functions once.
    fn turn(&mut self) -> bool {
        // A client that shares the CPU runs when there is nothing at all to do, not whenever one of the queues is
        // empty.
        as_one_look(|| (0..LOOKS).any(|_| self.look()))
    }
    fn look(&mut self) -> bool {
        let mut worked = false;
        // Step by step for all: what one function is to receive has its place before the other one's request is done.
        for step in [Function::look_at_requests, Function::look_at_places, Function::carry_out] {
            for slot in self.slots.iter_mut().filter(|slot| slot.client.is_some()) {
                worked |= step(&mut slot.function);
            }
        }
        worked |= self.hca.turn();
        worked
    }

    /// Gives the adapter's asynchronous events to the functions whose objects they are of.
    fn hand_out_events(&mut self) {
        while let Some(event) = self.hca.poll_event() {
            let taken = self.slots.iter_mut().any(|slot| slot.function.take_event(event));
            if !taken {
                tracing::debug!("an event is nobody's: {event:?}");
            }
        }
    }

    /// Sleeps until there is something to do, or the tick is over. Returns whether there is; `None` if it shall stop.
    fn sleep(&mut self, tick: Duration) -> Option<bool> {
        let mut ticks = false;
        for slot in &self.slots {
            let Some(client) = &slot.client else { continue };
            let told = client.wakes && slot.sleeper.announce();
            ticks |= !told && slot.function.pages.polled() > 0;
        }
        let worked = if self.turn() {
            Some(true)
        } else {
            let limit = if ticks { Some(tick) } else { None };
            let timeout = self.hca.next_deadline().into_iter().chain(limit).min();
            self.look_at_sockets(timeout)
        };
        for slot in self.slots.iter().filter(|slot| slot.client.as_ref().is_some_and(|c| c.wakes)) {
            slot.sleeper.awake();
        }
        worked
    }

    /// Waits on all descriptors, and sees to what is ready. Returns whether anything was; `None` if it shall stop.
    fn look_at_sockets(&mut self, timeout: Option<Duration>) -> Option<bool> {
        let ready = self.wait(timeout);
        if ready.stop {
            return None;
        }
        self.hand_out_events();
        for (slot, ready) in self.slots.iter_mut().zip(&ready.slots) {
            if ready.wake {
                slot.sleeper.awake();
            }
            if ready.client {
                slot.serve();
            }
            if ready.listener {
                slot.accept();
            }
        }
        Some(ready.any)
    }

    fn wait(&self, timeout: Option<Duration>) -> Ready {
        let timeout =
            timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
        let mut fds = vec![PollFd::new(&self.stop, PollFlags::IN)];
        let adapter = self.hca.wait_fd();
        fds.extend(adapter.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let first = fds.len();
        for slot in &self.slots {
            fds.push(PollFd::new(&slot.listener, PollFlags::IN));
            fds.push(PollFd::new(&slot.sleeper, PollFlags::IN));
            match &slot.client {
                Some(client) => {
                    let what = if client.is_full() { PollFlags::OUT } else { PollFlags::IN };
                    fds.push(PollFd::new(client, what));
                }
                // Nothing: the listener stands for it.
                None => fds.push(PollFd::new(&slot.listener, PollFlags::empty())),
            }
        }
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => Ready { stop: false, any: false, slots: Vec::new() },
            Err(e) => {
                // Nothing but a lack of memory; what waits is looked at by itself.
                tracing::error!("waiting: {e}");
                Ready { stop: false, any: false, slots: Vec::new() }
            }
            Ok(_) => {
                let is = |fd: &PollFd<'_>| !fd.revents().is_empty();
                let slots = fds[first..].as_chunks::<3>().0.iter();
                let slots = slots
                    .map(|[l, w, c]| ReadySlot { listener: is(l), wake: is(w), client: is(c) })
                    .collect();
                Ready { stop: is(&fds[0]), any: true, slots }
            }
        }
    }
}

/// What is ready.
struct Ready {
    stop: bool,
    any: bool,
    slots: Vec<ReadySlot>,
}

struct ReadySlot {
    listener: bool,
    wake: bool,
    client: bool,
}

impl Slot {
    /// Sees to some of the client's messages; where it has gone, its function is as new. Returns whether there were
    /// any.
    fn serve(&mut self) -> bool {
        let Some(client) = &mut self.client else { return false };
        let served = client.serve(&mut self.function, &self.sleeper);
        if let Err(ended) = &served {
            if matches!(ended, Ended::Closed) {
                tracing::info!("{}: {ended}", self.path.display());
            } else {
                tracing::warn!("{}: {ended}; it is hung up on", self.path.display());
            }
            self.client = None;
            self.function.disconnect();
            self.worn = true;
            // Where that fails now it is tried again when the next client comes.
            let _ = self.renew();
        }
        served.unwrap_or(false)
    }

    /// Makes sure that no client before shares anything with the next one: neither doorbells, nor what wakes the
    /// server.
    fn renew(&mut self) -> std::io::Result<()> {
        self.function.renew()?;
        if self.worn {
            self.sleeper = Sleeper::new()?;
            self.worn = false;
        }
        Ok(())
    }

    /// Takes a client, unless there is one.
    fn accept(&mut self) {
        let Ok((socket, _)) = self.listener.accept() else { return };
        // The client before may have gone at this moment, and have left messages.
        for _ in 0..LAST_WORDS {
            if !self.serve() {
                break;
            }
        }
        if self.client.is_some() {
            tracing::warn!("{}: a second client is hung up on", self.path.display());
            return;
        }
        if let Err(e) = self.renew() {
            tracing::error!(
                "{}: a client is hung up on, as what the one before shared with the server can't be replaced: {e}",
                self.path.display()
            );
            return;
        }
        tracing::info!("{}: a client is here", self.path.display());
        self.client = Some(Client::new(socket.into()));
    }
}

/// Listens at a path, where a socket may be that a dead server has left.
fn listen(path: &Path) -> Result<UnixListener, ServeError> {
    let here = path.to_path_buf();
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(ServeError::NoSocket { path: here });
        }
        match UnixStream::connect(path) {
            Ok(_) => return Err(ServeError::InUse { path: here }),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
                let removed = std::fs::remove_file(path);
                removed.map_err(|source| ServeError::Listen { path: here.clone(), source })?;
            }
            Err(source) => return Err(ServeError::Listen { path: here, source }),
        }
    }
    let listener = UnixListener::bind(path);
    let ready = listener.and_then(|l| l.set_nonblocking(true).map(|()| l));
    ready.map_err(|source| ServeError::Listen { path: here, source })
}
