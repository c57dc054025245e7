//! The server: sockets, clients, and the one thread that does everything.
//!
//! While there is work the thread drives the adapter and polls doorbells and completions, and polls the sockets now and
//! then. After some time without work the thread yields the CPU, as every program does that polls the adapter, and at
//! last sleeps. It wakes by its sockets, the adapter's descriptor, and the eventfds of clients that signal their
//! doorbells; while a client has doorbell pages and signals nothing, a sleep lasts a millisecond at most.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hca_core::Device;
use hca_process::Fork;
use hca_vfio::user::serve::{Connection, Ended, ListenError, Listener};
use hca_vfio::user::{ChannelError, Sleeper};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use softhca::{SoftHca, as_one_look};
use thiserror::Error;

use crate::function::{Function, FunctionOptions, PortKind};
use crate::guest::Part;
use crate::port::directory::SharedDirectory;
use crate::port::fixed::{self, Fixed, FixedError};
use crate::script::Script;
use crate::trim::Trimmer;

/// The options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The kind of the functions' ports.
    pub port: PortKind,
    /// The idle time before the thread sleeps; 50 us by default.
    pub patience: Duration,
    /// Like [`FunctionOptions::no_spare_pages`]; off by default.
    pub no_spare_pages: bool,
    /// The settings that an operator has fixed, one entry for each function in their order; a function without an entry
    /// has no fixed settings.
    pub fixed: Vec<Fixed>,
    /// For tests: the functions' deviations from correct behaviour.
    pub script: Option<Arc<dyn Script>>,
}

impl From<PortKind> for ServerOptions {
    fn from(port: PortKind) -> Self {
        Self {
            port,
            patience: Duration::from_micros(50),
            no_spare_pages: false,
            fixed: Vec::new(),
            script: None,
        }
    }
}
/// Turns between two looks at the sockets while there is something to do.
const TURNS_A_LOOK: u32 = 32;
/// Turns behind a message with a look at the sockets each: who has had an answer often asks for more, and waits for it.
const TURNS_AFTER_MESSAGE: u32 = 32;
/// Looks at everything in vain before a client that shares the CPU may run: a client on another CPU that answers at
/// once has answered by then. With one look messages to a client on this CPU take a quarter longer, with more all of
/// them do.
const LOOKS: u32 = 3;
/// Dormant queue pairs of each function that are looked at then, and when the thread sleeps again without having
/// worked. Before it sleeps first all are.
const DORMANT_PER_POLL: usize = 8;
const DORMANT_PER_TICK: usize = 64;
/// How long the thread sleeps at first, and at most, where it has to look at doorbells by itself.
const FIRST_TICK: Duration = Duration::from_micros(64);
const LAST_TICK: Duration = Duration::from_millis(1);
/// How long a client waits that could not be let in, as the system had no descriptor left, before it is tried again.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Functions of one server.
const MAX_FUNCTIONS: usize = 1024;

/// The reason why a server does not serve.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The number of functions is zero, or more than the server can number.
    #[error("{0} sockets: a server has 1 to {MAX_FUNCTIONS} functions with a socket each")]
    Functions(usize),
    /// A setting of a function can't be fixed.
    #[error("{}: {why}", path.display())]
    Fixed {
        /// The function's socket.
        path: PathBuf,
        /// The reason.
        why: FixedError,
    },
    /// The server can't listen at a socket's path.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The system refuses another operation.
    #[error("{doing}: {source}{}", hca_core::remedy(source))]
    System {
        /// The operation.
        doing: &'static str,
        /// The reason.
        source: std::io::Error,
    },
}

/// A socket with the function behind it.
#[derive(Debug)]
struct Slot {
    listener: Listener,
    /// None where it broke down, and could not be replaced.
    function: Option<Function>,
    part: Part,
    client: Option<Connection>,
    /// A client waits that could not be let in: the listener, which stays readable, is left alone until then.
    accept_at: Option<Instant>,
    /// The operator was told of that.
    is_told: bool,
    sleeper: Sleeper,
    /// A client has gone, and what its function has of it is being destroyed.
    leaving: bool,
    /// A client that has gone may still have the sleeper's descriptors.
    has_stale_mapping: bool,
    fork: Fork,
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The client is the parent's.
        if self.fork.is_child() {
            return;
        }
        if let Some(function) = self.function.take() {
            dismiss(function);
        }
    }
}

/// Functions of one adapter, each at a socket for one client at a time.
pub struct Server {
    hca: Arc<SoftHca>,
    slots: Vec<Slot>,
    stop: OwnedFd,
    patience: Duration,
    trimmer: Trimmer,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("slots", &self.slots).finish_non_exhaustive()
    }
}

/// A handle that stops a server from another thread.
#[derive(Debug)]
pub struct Stopper(OwnedFd);

impl Stopper {
    /// Makes [`Server::run`] return soon.
    pub fn stop(&self) {
        // A counter that is full says the same.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Server {
    /// Listens at these paths, with a function of the adapter at each. The adapter has to have
    /// [`Progress::Inline`](softhca::Progress::Inline), because the server's thread drives it.
    ///
    /// # Errors
    /// There are no paths or too many, somebody listens at one already, or the system refuses.
    pub fn open(
        hca: Arc<SoftHca>,
        paths: &[PathBuf],
        options: impl Into<ServerOptions>,
    ) -> Result<Self, ServeError> {
        let ServerOptions { port, patience, no_spare_pages, fixed, script } = options.into();
        if !(1..=MAX_FUNCTIONS).contains(&paths.len()) {
            return Err(ServeError::Functions(paths.len()));
        }
        fixed::check(hca.port().gid, port, paths, &fixed)?;
        let system = |doing| move |source| ServeError::System { doing, source };
        let directory = SharedDirectory::of(&hca);
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| system("making an eventfd")(e.into()))?;
        let part = Part::of(paths.len(), memory_bytes());
        let mut slots = Vec::with_capacity(paths.len());
        let all_fixed = fixed.into_iter().chain(std::iter::repeat_with(Fixed::default));
        for ((number, path), fixed) in (0..).zip(paths).zip(all_fixed) {
            let options = FunctionOptions { number, port, no_spare_pages, fixed, script: script.clone() };
            let mut function = Function::new(hca.clone(), directory.clone(), options)
                .map_err(system("making doorbell pages"))?;
            function.set_part(part);
            let sleeper = Sleeper::new().map_err(system("making an eventfd"))?;
            let listener = Listener::bind(path)?;
            let (function, fork) = (Some(function), Fork::new());
            slots.push(Slot {
                listener,
                function,
                part,
                client: None,
                accept_at: None,
                is_told: false,
                sleeper,
                leaving: false,
                has_stale_mapping: false,
                fork,
            });
        }
        Ok(Self { hca, slots, stop, patience, trimmer: Trimmer::default() })
    }

    /// A handle that stops this server from another thread.
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
        let (mut turns, mut talks) = (0_u32, 0_u32);
        loop {
            let mut worked = self.turn();
            turns = turns.wrapping_add(1);
            let is_look = turns.is_multiple_of(TURNS_A_LOOK);
            if is_look || talks > 0 {
                let Some(messages) = self.look_at_sockets(Some(Duration::ZERO)) else { return };
                talks = if messages { TURNS_AFTER_MESSAGE } else { talks.saturating_sub(1) };
                worked |= messages;
            }
            if is_look {
                worked |= self.poll_dormant(DORMANT_PER_POLL);
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
                worked |= slot.guarded(step);
            }
        }
        for slot in &mut self.slots {
            worked |= slot.guarded(Function::give_back) | slot.leave();
            if slot.client.as_ref().is_some_and(Connection::is_put_off) {
                worked |= slot.serve();
            }
        }
        worked |= self.hca.turn();
        worked
    }

    /// Looks at some queue pairs of each function to which nothing has drawn attention. Returns whether one has
    /// something to do.
    fn poll_dormant(&mut self, count: usize) -> bool {
        let slots = self.slots.iter_mut().filter(|slot| slot.client.is_some());
        slots.fold(false, |any, slot| any | slot.guarded(|function| function.poll_dormant(count)))
    }

    /// Gives the adapter's asynchronous events to the functions whose objects they are of.
    fn hand_out_events(&mut self) {
        while let Some(event) = self.hca.poll_event() {
            let taken = self.slots.iter_mut().any(|slot| slot.guarded(|function| function.take_event(event)));
            if !taken {
                tracing::debug!("an event of no function: {event:?}");
            }
        }
    }

    /// Sleeps until there is something to do, or the tick is over. Returns whether there is; `None` if it shall stop.
    fn sleep(&mut self, tick: Duration) -> Option<bool> {
        let mut ticks = false;
        for slot in &self.slots {
            let (Some(client), Some(function)) = (&slot.client, &slot.function) else { continue };
            let told = client.wakes() && slot.sleeper.announce();
            ticks |= !told && function.pages.polled() > 0;
            ticks |= function.options().script.is_some();
        }
        for function in self.slots.iter_mut().filter_map(|slot| slot.function.as_mut()) {
            function.pages.look_at_all();
        }
        let dormant = if tick == FIRST_TICK { usize::MAX } else { DORMANT_PER_TICK };
        let worked = if self.poll_dormant(dormant) | self.turn() {
            Some(true)
        } else {
            let limit = if ticks { Some(tick) } else { None };
            let frames = self.slots.iter().filter_map(|slot| slot.function.as_ref()?.frames_leave_in()).min();
            let accepts = self.slots.iter().filter_map(|slot| slot.accept_at).min();
            let accepts = accepts.map(|at| at.saturating_duration_since(Instant::now()));
            let all = self.hca.next_deadline().into_iter().chain(limit).chain(frames).chain(accepts);
            let timeout = all.min();
            self.look_at_sockets(timeout)
        };
        for slot in self.slots.iter().filter(|slot| slot.client.as_ref().is_some_and(Connection::wakes)) {
            slot.sleeper.awake();
        }
        worked
    }

    /// Waits on all descriptors, and sees to what is ready. Returns whether anything was; `None` if it shall stop.
    fn look_at_sockets(&mut self, timeout: Option<Duration>) -> Option<bool> {
        for slot in &mut self.slots {
            slot.accept_at = slot.accept_at.filter(|&at| at > Instant::now());
        }
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
        for function in self.slots.iter_mut().filter_map(|slot| slot.function.as_mut()) {
            self.trimmer.count(function.take_freed());
        }
        self.trimmer.look();
        Some(ready.any)
    }

    fn wait(&self, timeout: Option<Duration>) -> Ready {
        let spec = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
        let mut fds = vec![PollFd::new(&self.stop, PollFlags::IN)];
        let adapter = self.hca.wait_fd();
        fds.extend(adapter.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let first = fds.len();
        for slot in &self.slots {
            let what = if slot.accept_at.is_none() { PollFlags::IN } else { PollFlags::empty() };
            fds.push(PollFd::new(&slot.listener, what));
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
        match poll(&mut fds, spec.as_ref()) {
            Ok(0) | Err(Errno::INTR) => Ready { stop: false, any: false, slots: Vec::new() },
            Err(e) => {
                // A lack of memory, or a limit of descriptors below what there is already. The doorbells are looked at
                // by themselves, and the system is asked again a moment later.
                tracing::error!("waiting: {e}");
                std::thread::sleep(timeout.map_or(LAST_TICK, |t| t.min(LAST_TICK)));
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
    /// Has the function do something. Where it panics its client is hung up on, and another function takes its place:
    /// the others of the server are none the worse for it.
    fn guarded<R: Default>(&mut self, what: impl FnOnce(&mut Function) -> R) -> R {
        let Some(function) = &mut self.function else { return R::default() };
        let done = catch_unwind(AssertUnwindSafe(|| what(function)));
        done.unwrap_or_else(|_| {
            self.break_down();
            R::default()
        })
    }

    #[cold]
    fn break_down(&mut self) {
        let Some(broken) = self.function.take() else { return };
        tracing::error!(
            "{}: the function has panicked and was reset: please report the output, and what its client did",
            self.listener.path().display()
        );
        (self.client, self.leaving, self.has_stale_mapping) = (None, false, true);
        let (hca, directory, options) =
            (broken.hca.clone(), broken.directory.clone(), broken.options().clone());
        dismiss(broken);
        match Function::new(hca, directory, options) {
            Ok(mut function) => {
                function.set_part(self.part);
                self.function = Some(function);
            }
            Err(e) => {
                tracing::error!(
                    "{}: the function can't be created again: {e}",
                    self.listener.path().display()
                );
            }
        }
    }

    /// Sees to some of the client's messages; where it has gone, its function is as new. Returns whether there were
    /// any.
    fn serve(&mut self) -> bool {
        let (Some(client), Some(function)) = (&mut self.client, &mut self.function) else { return false };
        let sleeper = &self.sleeper;
        let Ok(served) = catch_unwind(AssertUnwindSafe(|| client.serve(function, Some(sleeper)))) else {
            self.break_down();
            return true;
        };
        if let Err(ended) = &served {
            self.end(ended);
        }
        served.unwrap_or(false)
    }

    /// Lets go of the client, if there is one: its function is as new.
    fn end(&mut self, ended: &Ended) {
        if self.client.take().is_none() {
            return;
        }
        if ended.is_closed() {
            tracing::info!("{}: {ended}", self.listener.path().display());
        } else {
            tracing::warn!("{}: {ended}; its connection is closed", self.listener.path().display());
        }
        (self.leaving, self.has_stale_mapping) = (true, true);
        self.leave();
    }

    /// Does a piece of what makes a function as new whose client has gone. Returns whether there was any.
    fn leave(&mut self) -> bool {
        if !self.leaving {
            return false;
        }
        if !self.guarded(Function::disconnect_piece) && std::mem::take(&mut self.leaving) {
            self.guarded(Function::disconnect);
            // Where that fails now it is tried again when the next client comes.
            let _ = self.renew();
        }
        true
    }

    /// Makes sure that an earlier client shares nothing with the next one: neither doorbells, nor what wakes the
    /// server.
    fn renew(&mut self) -> std::io::Result<()> {
        let gone = || std::io::Error::other("the function broke down");
        self.function.as_mut().ok_or_else(gone)?.renew()?;
        if self.has_stale_mapping {
            self.sleeper = Sleeper::new()?;
            self.has_stale_mapping = false;
        }
        Ok(())
    }

    /// Takes a client, unless there is one. While the function is not as new who comes waits.
    fn accept(&mut self) {
        if self.client.as_ref().is_some_and(Connection::has_hung_up) {
            // What it has left unread would change what is reset now.
            self.end(&ChannelError::Closed.into());
        }
        if self.leaving {
            return;
        }
        let socket = match self.listener.accept() {
            Ok(Some(socket)) => socket,
            Ok(None) => return,
            Err(e) => {
                if !std::mem::replace(&mut self.is_told, true) {
                    let (path, remedy) = (self.listener.path().display(), hca_core::remedy(&e));
                    tracing::warn!("{path}: a client waits, as it can't be let in: {e}{remedy}");
                }
                self.accept_at = Some(Instant::now() + ACCEPT_AGAIN);
                return;
            }
        };
        self.is_told = false;
        if self.client.is_some() {
            tracing::warn!("{}: the connection of a second client is closed", self.listener.path().display());
            return;
        }
        if let Err(e) = self.renew() {
            tracing::error!(
                "{}: a client's connection is closed, as the memory shared with the client before can't be replaced: {e}",
                self.listener.path().display()
            );
            return;
        }
        tracing::info!("{}: a client is connected", self.listener.path().display());
        self.client = Some(Connection::new(socket));
    }
}

/// Ends a function. What the adapter may still use of it, as it panics on the way, stays for ever.
fn dismiss(mut function: Function) {
    if catch_unwind(AssertUnwindSafe(|| function.disconnect())).is_err() {
        std::mem::forget(function);
    }
}

/// Bytes of memory that this machine has.
fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    // Types differ between machines.
    (info.totalram as u64).saturating_mul(info.mem_unit.into())
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;

    use hca_fabric::LoopbackNet;
    use hca_prm::InitSegment;
    use hca_vfio::user::wire::{DmaUnmap, Request};
    use softhca::{Options, Progress};

    use super::*;

    /// A server of two functions that is turned by hand, and its folder.
    struct Bed {
        server: Server,
        folder: PathBuf,
    }

    impl Bed {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("hca-server-{}-{name}", std::process::id()));
            std::fs::create_dir(&folder).unwrap();
            let fabric = LoopbackNet::new().attach("10.0.0.1".parse().unwrap());
            let options = Options { progress: Progress::Inline, ..Options::default() };
            let hca = SoftHca::open(Box::new(fabric), options).unwrap();
            let paths = ["a", "b"].map(|n| folder.join(n));
            Self { server: Server::open(hca, &paths, PortKind::InfiniBand).unwrap(), folder }
        }
        fn connect(&self, name: &str) -> UnixStream {
            let stream = UnixStream::connect(self.folder.join(name)).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        }
        /// A client that was let in, and that has agreed on a version.
        fn client(&mut self, name: &str) -> UnixStream {
            let mut stream = self.connect(name);
            let version =
                hca_vfio::user::wire::Version { major: 0, minor: 0, capabilities: Default::default() };
            stream.write_all(&Request::Version(version).build(1, false)).unwrap();
            self.look();
            assert!(reads(&mut stream) > 0, "it is told the version");
            stream
        }
        /// Looks at the sockets until there is nothing.
        fn look(&mut self) {
            while self.server.look_at_sockets(Some(Duration::ZERO)).unwrap() {}
        }
    }

    impl Drop for Bed {
        fn drop(&mut self) {
            self.server.slots.clear();
            std::fs::remove_dir(&self.folder).unwrap();
        }
    }

    /// Bytes that are there.
    fn reads(stream: &mut UnixStream) -> usize {
        stream.read(&mut [0; 4096]).unwrap()
    }
    /// Messages of which the socket has room for the whole.
    fn fills(stream: &mut UnixStream, message: &[u8]) -> usize {
        let taken = (0..1 << 20).position(|_| match stream.write(message) {
            Ok(n) => {
                assert_eq!(n, message.len());
                false
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::WouldBlock);
                true
            }
        });
        taken.unwrap()
    }

    #[test]
    fn a_second_client_does_not_have_the_first_ones_messages_done_in_one_go() {
        let mut bed = Bed::new("second");
        let mut first = bed.client("a");
        let word = Request::RegionWrite { region: 0, offset: 0x1010, data: &[0; 4] }.build(1, true);
        let room = fills(&mut first, &word);
        assert!(room > 40, "a socket has room for more than is done in one look: {room}");
        let mut second = bed.connect("a");
        bed.server.look_at_sockets(Some(Duration::ZERO));
        let done = fills(&mut first, &word);
        assert!(done <= 16, "{done} messages in one look");
        assert_eq!(reads(&mut second), 0, "the second one is hung up on");
        // Once the first one has gone, whatever it left, the next one is let in.
        fills(&mut first, &word);
        drop(first);
        bed.client("a");
    }

    #[test]
    fn a_function_that_panics_ends_alone() {
        let mut bed = Bed::new("panics");
        let (mut a, mut b) = (bed.client("a"), bed.client("b"));
        bed.server.slots[0].function.as_mut().unwrap().pages.sabotage();
        bed.server.turn();
        assert_eq!(reads(&mut a), 0, "its client is hung up on");
        let ask = |bed: &mut Bed, client: &mut UnixStream| {
            client.write_all(&Request::DeviceGetInfo.build(2, false)).unwrap();
            bed.look();
            bed.server.turn();
            reads(client)
        };
        assert!(ask(&mut bed, &mut b) > 0);
        let mut next = bed.client("a");
        assert!(ask(&mut bed, &mut next) > 0);
    }

    /// Gives the first slot a function whose driver has made so many keys of its memory.
    fn give_keys(bed: &mut Bed, count: usize) {
        let function = bed.server.slots[0].function.as_mut().unwrap();
        let (hca, directory) = (function.hca.clone(), function.directory.clone());
        let mut client = crate::bed::Server { hca, directory, completion_entries: None }.client(0);
        for _ in 0..count {
            client.mr(64);
        }
        std::mem::swap(function, &mut client.function);
    }

    /// Gives the first slot a function whose driver has made so many queue pairs.
    fn give_queue_pairs(bed: &mut Bed, count: usize) {
        let function = bed.server.slots[0].function.as_mut().unwrap();
        let (hca, directory) = (function.hca.clone(), function.directory.clone());
        let server = crate::bed::Server { hca, directory, completion_entries: None };
        let mut client = crate::bed::Client::new(&server, FunctionOptions::default(), 16 << 20);
        let cq = client.cq(4);
        for _ in 0..count {
            client.qp(crate::bed::QpShape::default(), &cq, &cq);
        }
        std::mem::swap(function, &mut client.function);
    }

    #[test]
    fn many_ranges_are_unmapped_while_others_are_served() {
        const RANGES: u64 = 20_000;
        for gone in [false, true] {
            let mut bed = Bed::new(if gone { "ranges-gone" } else { "ranges" });
            let (mut a, mut b) = (bed.client("a"), bed.client("b"));
            let ranges = |bed: &Bed| bed.server.slots[0].function.as_ref().unwrap().guest.ranges();
            let function = bed.server.slots[0].function.as_mut().unwrap();
            for n in 0..RANGES {
                function.dma_map(n << 12, 1 << 12, (true, true), None).unwrap();
            }
            if gone {
                a.shutdown(std::net::Shutdown::Both).unwrap();
            } else {
                let unmap = DmaUnmap { address: 0, size: RANGES << 12 };
                a.write_all(&Request::DmaUnmap(unmap).build(2, false)).unwrap();
            }
            let (turns, most) = turns_until_none(&mut bed, &mut b, ranges);
            assert!(turns > 1 && most <= 4096 * (LOOKS as usize + 1), "{turns} turns, {most} ranges in one");
            bed.look();
            assert!(gone || reads(&mut a) > 0, "it is answered");
        }
    }

    /// Turns until none of something are left, while the other client is served. Returns how many turns that took, and
    /// how many went in one of them at most.
    fn turns_until_none(bed: &mut Bed, b: &mut UnixStream, count: impl Fn(&Bed) -> usize) -> (usize, usize) {
        let (mut turns, mut most, mut left) = (0, 0, count(bed));
        while left > 0 {
            b.write_all(&Request::DeviceGetInfo.build(3, false)).unwrap();
            bed.server.look_at_sockets(Some(Duration::ZERO));
            assert!(reads(b) > 0, "the other one is served meanwhile");
            bed.server.turn();
            let now = count(bed);
            (turns, most, left) = (turns + 1, most.max(left - now), now);
        }
        (turns, most)
    }
    fn queue_pairs(bed: &Bed) -> usize {
        bed.server.slots[0].function.as_ref().unwrap().objects.qps.len()
    }

    #[test]
    fn a_function_with_many_queue_pairs_is_reset_and_let_go_of_while_others_are_served() {
        // By message, by configuration space, by a register, and as its client goes.
        for (n, name) in ["reset", "flr", "register", "gone"].iter().enumerate() {
            let mut bed = Bed::new(name);
            let (mut a, mut b) = (bed.client("a"), bed.client("b"));
            give_queue_pairs(&mut bed, 1000);
            match n {
                0 => a.write_all(&Request::DeviceReset.build(2, false)).unwrap(),
                1 => {
                    let at = crate::bus::pci::EXPRESS as u64 + 8;
                    let write = Request::RegionWrite { region: 7, offset: at, data: &[0x10, 0xa0] };
                    a.write_all(&write.build(2, false)).unwrap();
                }
                2 => {
                    let interface = InitSegment::new().with(InitSegment::NIC_INTERFACE, 7);
                    let data = &interface.as_bytes()[0x14..0x18];
                    let write = Request::RegionWrite { region: 0, offset: 0x14, data };
                    a.write_all(&write.build(2, false)).unwrap();
                }
                _ => drop(a.shutdown(std::net::Shutdown::Both)),
            }
            let (turns, most) = turns_until_none(&mut bed, &mut b, queue_pairs);
            assert!(turns > 1000 / 64 / (LOOKS as usize + 1), "{name}: {turns} turns");
            assert!(most <= 64 * (LOOKS as usize + 1), "{name}: {most} queue pairs in one turn");
            bed.look();
            if n < 3 {
                assert!(reads(&mut a) > 0, "{name}: it is answered");
            } else {
                assert!(bed.server.slots[0].client.is_none());
                bed.client("a");
            }
        }
    }

    #[test]
    fn whoever_takes_memory_with_many_keys_back_waits_and_nobody_else_does() {
        let mut bed = Bed::new("keys");
        let (mut a, mut b) = (bed.client("a"), bed.client("b"));
        give_keys(&mut bed, 300);
        let unmap = DmaUnmap { address: crate::bed::BASE, size: crate::bed::LEN };
        a.write_all(&Request::DmaUnmap(unmap).build(2, false)).unwrap();
        let (mut turns, mut told) = (0, false);
        while !told {
            b.write_all(&Request::DeviceGetInfo.build(3, false)).unwrap();
            bed.server.look_at_sockets(Some(Duration::ZERO));
            assert!(reads(&mut b) > 0, "the other one is served meanwhile");
            bed.server.turn();
            turns += 1;
            told = a.read(&mut [0; 4096]).is_ok_and(|n| n > 0);
        }
        assert!(turns > 300 / 64 / LOOKS as usize, "{turns} turns");
    }
}
