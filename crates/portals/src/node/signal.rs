//! A node in an event loop, and in futures: a descriptor that is readable when events may be available.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::Duration;

use hca_core::{Notify, WakerSet};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::{ARMED, Inner, Node, State};
use crate::Error;

/// One descriptor for everything that a program on a node waits for: readable when an event queue or a counting event
/// of the node's interfaces may have changed, or when the node has work to do. From [`Node::signal`].
///
/// A loop takes all events (`eq_get`, `ct_get`), [arms](Self::arm) the signal, takes once more, and only then sleeps on
/// the descriptor. A signal may come without an event. The signal keeps its node open.
pub struct Signal {
    node: Node,
    fds: Arc<SignalFds>,
}

/// The descriptors of a signal.
pub(super) struct SignalFds {
    epoll: OwnedFd,
    /// Raised when another thread finds something.
    told: OwnedFd,
    /// Raised when the node wants a turn though nothing came.
    timer: OwnedFd,
}

impl SignalFds {
    fn new(inner: &Arc<Inner>) -> Result<Arc<Self>, Error> {
        let io = |doing| move |e: rustix::io::Errno| Error::Io { doing, source: e.into() };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let told = eventfd(0, flags).map_err(io("creating a descriptor to be told by"))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(io("creating a timer"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io("creating an epoll descriptor"))?;
        // Not that of the completion queue, which may be one of many already: descriptors of descriptors have an end.
        for fd in
            [Some(told.as_fd()), Some(timer.as_fd()), inner.context.device().turn_fd()].into_iter().flatten()
        {
            epoll::add(&epoll, fd, EventData::new_u64(0), EventFlags::IN)
                .map_err(io("watching descriptors"))?;
        }
        let fds = Arc::new(Self { epoll, told, timer });
        let mut signals = locked(&inner.signals);
        // Signals that have gone, where nothing was told since.
        signals.retain(|fds| fds.strong_count() > 0);
        let is_first = signals.is_empty();
        signals.push(Arc::downgrade(&fds));
        drop(signals);
        if is_first {
            let waker = Waker::from(Arc::new(WakeAll(Arc::downgrade(inner))));
            let node = Node { inner: Arc::clone(inner) };
            node.with(|state| {
                let cq = state.net.ports.cq();
                cq.wait_by_waker();
                cq.set_waker(&waker);
            });
        }
        Ok(fds)
    }
    /// Has the descriptor be readable from now on when there is something, or a turn is due.
    fn arm(&self, inner: &Inner, state: &mut State) {
        state.waiters |= ARMED;
        state.net.ports.cq().arm(Notify::Any);
        let due = state.timer.map(|at| at.since(inner.clock.now()).max(Duration::from_nanos(1)));
        let due = due.unwrap_or_default();
        let value = Timespec { tv_sec: due.as_secs() as i64, tv_nsec: due.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec::default(), it_value: value };
        // A timer of its own takes every time that is not negative; zero is none.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }
    fn raise(&self) {
        // A counter that is full is readable as well.
        let _ = rustix::io::write(&self.told, &1_u64.to_ne_bytes());
    }
    /// Clears the raised signals.
    fn clear(&self) {
        for fd in [&self.told, &self.timer] {
            let _ = rustix::io::read(fd, &mut [0; 8]);
        }
    }
}

/// The waker of the node's completion queue.
pub(super) struct WakeAll(pub(super) Weak<Inner>);

impl Wake for WakeAll {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(inner) = self.0.upgrade() {
            inner.tell_signals();
        }
    }
}

impl Signal {
    /// Arms the signal for everything that arrives from now on. The program checks once more after this, and only then
    /// waits.
    pub fn arm(&self) {
        self.fds.clear();
        self.node.with(|state| self.fds.arm(&self.node.inner, state));
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fds.epoll.as_fd()
    }
}
impl std::os::fd::AsRawFd for Signal {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.as_fd().as_raw_fd()
    }
}
impl std::fmt::Debug for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signal").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Wakes futures: a thread that sleeps on a signal for all of a node's, while there are any. Made by the first future
/// that has to wait.
pub(super) struct Reactor {
    fds: Arc<SignalFds>,
    shared: Arc<Shared>,
}

/// The state that the thread and the futures share.
struct Shared {
    wakers: Mutex<WakerSet>,
    /// Has the thread look anew.
    kick: OwnedFd,
    closed: AtomicBool,
}

impl Shared {
    fn kick(&self) {
        let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
    }
}

impl Reactor {
    fn new(inner: &Arc<Inner>) -> Result<Self, Error> {
        let fds = SignalFds::new(inner)?;
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::Io { doing: "creating a descriptor to be kicked by", source: e.into() })?;
        let shared = Arc::new(Shared { wakers: Mutex::default(), kick, closed: AtomicBool::new(false) });
        let (node, own) = (Arc::downgrade(inner), (Arc::clone(&fds), Arc::clone(&shared)));
        hca_process::spawn("portals-wake", move || run(&node, &own.0, &own.1))
            .map_err(|source| Error::Io { doing: "starting the thread that wakes futures", source })?;
        Ok(Self { fds, shared })
    }
    fn register(&self, waker: &Waker) {
        // Its clone is the program's code, as is its drop.
        let mut waker = Some(waker.clone());
        let longest = locked(&self.shared.wakers).add(&mut waker);
        longest.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.kick();
    }
}

/// The thread: sleeps on the signal while futures wait, and only on its kick while none does.
fn run(node: &Weak<Inner>, fds: &SignalFds, shared: &Shared) {
    while !shared.closed.load(Ordering::Acquire) {
        let waits = !locked(&shared.wakers).is_empty();
        let mut polled = [
            PollFd::from_borrowed_fd(shared.kick.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(fds.epoll.as_fd(), PollFlags::IN),
        ];
        let _ = poll(&mut polled[..if waits { 2 } else { 1 }], None);
        let has_signal = waits && polled[1].revents().contains(PollFlags::IN);
        let _ = rustix::io::read(&shared.kick, &mut [0; 8]);
        if !has_signal {
            continue;
        }
        fds.clear();
        // A node that is being dropped has no futures: each holds its interface.
        let Some(inner) = node.upgrade() else { return };
        let node = Node { inner };
        node.with(|state| state.progress() | state.run_timers());
        let wakers = locked(&shared.wakers).take();
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Node {
    /// Makes a descriptor for event loops.
    ///
    /// # Errors
    /// The device has no descriptor to sleep on, or the system has none left.
    pub fn signal(&self) -> Result<Signal, Error> {
        Ok(Signal { fds: SignalFds::new(&self.inner)?, node: self.clone() })
    }

    /// Looks whether `ready` yields something; if not, the task is woken when that may have changed.
    pub(crate) fn poll_ready<R>(
        &self,
        cx: &mut TaskContext<'_>,
        mut ready: impl FnMut(&mut State) -> Result<Option<R>, Error>,
    ) -> Poll<Result<R, Error>> {
        let mut look = |state: &mut State| match ready(state)? {
            None if state.progress() | state.run_timers() => ready(state),
            None => state.has_nothing_to_come(),
            found => Ok(found),
        };
        match self.with(&mut look).transpose() {
            None => {}
            Some(found) => return Poll::Ready(found),
        }
        let inner = &self.inner;
        let reactor = match inner.reactor() {
            Ok(reactor) => reactor,
            Err(error) => return Poll::Ready(Err(error)),
        };
        reactor.register(cx.waker());
        self.with(|state| reactor.fds.arm(inner, state));
        match self.with(&mut look).transpose() {
            Some(found) => Poll::Ready(found),
            None => {
                reactor.shared.kick();
                Poll::Pending
            }
        }
    }
}

impl Inner {
    fn reactor(self: &Arc<Self>) -> Result<&Reactor, Error> {
        if let Some(reactor) = self.reactor.get() {
            return Ok(reactor);
        }
        let made = Reactor::new(self)?;
        Ok(self.reactor.get_or_init(|| made))
    }
    /// Tells all signals.
    #[cold]
    pub(super) fn tell_signals(&self) {
        locked(&self.signals).retain(|fds| {
            let fds = fds.upgrade();
            fds.inspect(|fds| fds.raise()).is_some()
        });
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // It is whole between any two of its operations.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The signal descriptors of a node.
pub(super) type Signals = Mutex<Vec<Weak<SignalFds>>>;
