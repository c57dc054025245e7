//! Event queues: taking events, waiting for events, and handlers.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hca_matching::EqHandle as RawEq;

use super::error::Error;
use super::event::Got;
use super::handle::EqHandle;
use super::ni::Ni;
use crate::lock::Lock;
use crate::node::NiState;

/// A handler, called with each event of a queue ([`Ni::eq_alloc`]).
pub type EqHandler = Box<dyn FnMut(&Ni, &Got) + Send>;

/// The queues of an interface, and those of them that have a handler.
#[derive(Default)]
pub(super) struct Queues {
    /// How many have one.
    count: AtomicUsize,
    handled: Mutex<Vec<Arc<Handled>>>,
    all: Mutex<Vec<(RawEq, u32)>>,
}

struct Handled {
    eq: RawEq,
    /// A thread runs it, and handles new events meanwhile.
    running: AtomicBool,
    /// One thread at a time; a thread that finds it held leaves a note.
    handler: Lock<EqHandler>,
}

/// A queue as [`Ni::ni_eq_dump`] shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EqDump {
    /// The queue.
    pub eq: EqHandle,
    /// The number of events that the queue has room for.
    pub count: u32,
    /// The number of events in the queue.
    pub held: usize,
    /// Whether a handler takes the events.
    pub handled: bool,
}

/// The reason why a wait ended.
enum Woken {
    Event(usize, Got),
    /// A queue with a handler has events.
    Handler,
}

impl Queues {
    /// The queues with a handler, which run without locks: dropping the last reference to a handler drops the program's
    /// closure.
    #[inline]
    fn handled(&self) -> Vec<Arc<Handled>> {
        // Acquire: pairs with the Release below.
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        locked(&self.handled).clone()
    }
    fn is_handled(&self, eq: RawEq) -> bool {
        self.count.load(Ordering::Acquire) > 0 && locked(&self.handled).iter().any(|of| of.eq == eq)
    }
    /// Whether a queue with a handler that does not run has events.
    fn is_wanted(&self, ni: &NiState) -> bool {
        // Relaxed: at worst a thread looks once more, or the running thread finds it.
        let waits = |of: &Arc<Handled>| {
            !of.running.load(Ordering::Relaxed) && ni.engine.eq_len(of.eq).is_ok_and(|events| events > 0)
        };
        self.count.load(Ordering::Acquire) > 0 && locked(&self.handled).iter().any(waits)
    }
    fn add_handled(&self, of: Handled) {
        let mut handled = locked(&self.handled);
        handled.push(Arc::new(of));
        self.count.store(handled.len(), Ordering::Release);
    }
    /// Takes a queue's handler out, to be dropped where nothing is held.
    fn take_handled(&self, eq: RawEq) -> Option<Arc<Handled>> {
        let mut handled = locked(&self.handled);
        let at = handled.iter().position(|of| of.eq == eq)?;
        let of = handled.remove(at);
        self.count.store(handled.len(), Ordering::Release);
        Some(of)
    }
}

/// Nothing is left half done where these are held.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says that a handler runs, until it is dropped, also by a panic.
struct Running<'a>(&'a AtomicBool);

impl<'a> Running<'a> {
    fn new(flag: &'a AtomicBool) -> Self {
        flag.store(true, Ordering::Relaxed);
        Self(flag)
    }
}
impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Ni {
    /// Makes a queue of `count` events. If more wait, the oldest are lost, and taking the next event reports that.
    ///
    /// With a handler, all events of the queue go to the handler, one after the other in the queue's order, and none to
    /// [`eq_get`](Self::eq_get) and similar calls. The handler runs in the program's own calls that move data or look
    /// for events, after the call's work and without a lock: [`put`](Self::put) and similar calls,
    /// [`eq_get`](Self::eq_get), waiting on any queue, [`md_update`](Self::md_update),
    /// [`me_md_post`](Self::me_md_post), [`status`](Self::status), [`progress`](Self::progress). A handler may call any
    /// method; later events wait until it returns, also if another thread finds them. The handler gets the interface as
    /// an argument; a clone of its own would keep the interface open for ever.
    ///
    /// # Errors
    /// `PTL_NO_SPACE`.
    #[doc(alias = "PtlEQAlloc")]
    pub fn eq_alloc(&self, count: u32, handler: Option<EqHandler>) -> Result<EqHandle, Error> {
        let made = self.inner.core.with(|ni| ni.engine.eq_alloc(count));
        let raw = made.map_err(|error| Error::new("PtlEQAlloc", error))?;
        if let Some(handler) = handler {
            let handled = Handled { eq: raw, running: AtomicBool::new(false), handler: Lock::new(handler) };
            self.inner.queues.add_handled(handled);
        }
        locked(&self.inner.queues.all).push((raw, count.max(1)));
        Ok(EqHandle { ni: self.inner.id, raw })
    }
    /// Frees a queue. The queue's events, and later events of descriptors that use the queue, are lost. No call of its
    /// handler begins any more; a call that another thread began before may still run.
    ///
    /// # Errors
    /// `PTL_EQ_INVALID`.
    #[doc(alias = "PtlEQFree")]
    pub fn eq_free(&self, eq: EqHandle) -> Result<(), Error> {
        let call = "PtlEQFree";
        self.check(call, "eq", eq.ni)?;
        self.inner.core.with(|ni| ni.engine.eq_free(eq.raw)).map_err(|error| Error::new(call, error))?;
        drop(self.inner.queues.take_handled(eq.raw));
        locked(&self.inner.queues.all).retain(|&(raw, _)| raw != eq.raw);
        Ok(())
    }
    /// Takes the oldest event; `None` is `PTL_EQ_EMPTY`, and [`Got::dropped`] is `PTL_EQ_DROPPED`.
    ///
    /// # Errors
    /// `PTL_EQ_INVALID`.
    #[doc(alias = "PtlEQGet")]
    pub fn eq_get(&self, eq: EqHandle) -> Result<Option<Got>, Error> {
        let call = "PtlEQGet";
        self.check(call, "eq", eq.ni)?;
        let kind = self.inner.core.kind().index();
        let handled = self.inner.queues.is_handled(eq.raw);
        let got = self.node().with(|state| {
            if handled {
                state.progress();
                return state.ni(kind).engine.eq_len(eq.raw).map(|_| None);
            }
            if let Some(got) = self.take(state.ni(kind), eq.raw)? {
                return Ok(Some(got));
            }
            state.progress();
            self.take(state.ni(kind), eq.raw)
        });
        self.run_handlers();
        got.map_err(|refused| Error::new(call, refused))
    }
    /// Takes the oldest event, waiting for one.
    ///
    /// # Errors
    /// `PTL_EQ_INVALID`, also when the queue is freed meanwhile; `PTL_FAIL`.
    #[doc(alias = "PtlEQWait")]
    pub fn eq_wait(&self, eq: EqHandle) -> Result<Got, Error> {
        let got = self.wait("PtlEQWait", "eq", &[eq], None)?;
        Ok(got.expect("it waits for ever").1)
    }
    /// An extension of other implementations: takes the oldest event, waiting for `timeout` at most; `None` is
    /// `PTL_EQ_EMPTY`.
    ///
    /// # Errors
    /// As [`eq_wait`](Self::eq_wait).
    #[doc(alias = "PtlEQWait_timeout")]
    pub fn eq_wait_timeout(&self, eq: EqHandle, timeout: Duration) -> Result<Option<Got>, Error> {
        Ok(self.wait("PtlEQWait_timeout", "eq", &[eq], Some(timeout))?.map(|(_, got)| got))
    }
    /// The next event, for any runtime: a thread of the node wakes the task. A future that is dropped takes no event.
    /// Handlers of other queues do not run meanwhile.
    ///
    /// # Errors
    /// As [`eq_wait`](Self::eq_wait); `PTL_FAIL` also if the thread can't be started.
    pub async fn eq_next(&self, eq: EqHandle) -> Result<Got, Error> {
        let call = "PtlEQWait";
        self.check(call, "eq", eq.ni)?;
        let kind = self.inner.core.kind().index();
        let got =
            poll_fn(|cx| self.node().poll_ready(cx, |state| Ok(self.take(state.ni(kind), eq.raw)?))).await;
        got.map_err(|refused| Error::new(call, refused))
    }
    /// Takes an event of one of several queues, and returns the queue's index too. The call waits for `timeout` at
    /// most, with `None` for ever (`PTL_TIME_FOREVER`); the result `None` is `PTL_EQ_EMPTY`. All queues get their turn.
    ///
    /// # Errors
    /// As [`eq_wait`](Self::eq_wait); `PTL_EQ_INVALID` also for an empty list of queues.
    #[doc(alias = "PtlEQPoll")]
    pub fn eq_poll(
        &self,
        eqs: &[EqHandle],
        timeout: Option<Duration>,
    ) -> Result<Option<(usize, Got)>, Error> {
        if eqs.is_empty() {
            return Err(Error::handle("PtlEQPoll", "eqs"));
        }
        self.wait("PtlEQPoll", "eqs", eqs, timeout)
    }
    /// A debugging extension that other implementations have: all queues and their events, without progress. The C
    /// interface prints them; here the caller does.
    #[doc(alias = "PtlNIEqDump")]
    pub fn ni_eq_dump(&self) -> Vec<EqDump> {
        let all = locked(&self.inner.queues.all).clone();
        let held = |raw| self.inner.core.look(|ni| ni.engine.eq_len(raw)).ok();
        let told = all.into_iter().filter_map(|(raw, count)| {
            // One that is freed meanwhile is left out.
            let (eq, handled) = (EqHandle { ni: self.inner.id, raw }, self.inner.queues.is_handled(raw));
            held(raw).map(|held| EqDump { eq, count, held, handled })
        });
        told.collect()
    }

    fn take(&self, ni: &mut NiState, eq: RawEq) -> Result<Option<Got>, hca_matching::Error> {
        let Some(got) = ni.engine.eq_get(eq)? else { return Ok(None) };
        let md = ni.engine.eq_last_md(eq)?.expect("events of 3.3 have their descriptor");
        Ok(Some(Got::of(self.inner.id, got, &md)))
    }
    fn wait(
        &self,
        call: &'static str,
        argument: &'static str,
        eqs: &[EqHandle],
        timeout: Option<Duration>,
    ) -> Result<Option<(usize, Got)>, Error> {
        for eq in eqs {
            self.check(call, argument, eq.ni)?;
        }
        let kind = self.inner.core.kind().index();
        let deadline = timeout.map(|timeout| self.node().now() + timeout);
        loop {
            let left = deadline.map(|deadline| deadline.since(self.node().now()));
            let woken = self.node().wait(left, |state| {
                let queues = &self.inner.queues;
                let ni = state.ni(kind);
                let first = ni.turn;
                for which in (0..eqs.len()).map(|i| (first % eqs.len() + i) % eqs.len()) {
                    let eq = eqs[which].raw;
                    if queues.is_handled(eq) {
                        ni.engine.eq_len(eq)?;
                    } else if let Some(got) = self.take(ni, eq)? {
                        ni.turn = which + 1;
                        return Ok(Some(Woken::Event(which, got)));
                    }
                }
                Ok(queues.is_wanted(ni).then_some(Woken::Handler))
            });
            self.run_handlers();
            match woken.map_err(|error| Error::new(call, error))? {
                Some(Woken::Event(which, got)) => return Ok(Some((which, got))),
                Some(Woken::Handler) => {}
                None => return Ok(None),
            }
        }
    }
    /// Gives events to handlers, holding nothing but the handler's own lock.
    #[inline]
    pub(super) fn run_handlers(&self) {
        for handled in self.inner.queues.handled() {
            self.run_handler(&handled);
        }
    }
    fn run_handler(&self, handled: &Handled) {
        while let Some(mut handler) = handled.handler.lock_or_notify_holder() {
            let running = Running::new(&handled.running);
            // A queue that was freed gives none.
            while let Ok(Some(got)) = self.inner.core.look(|ni| self.take(ni, handled.eq)) {
                handler(self, &got);
            }
            drop(running);
            if !handler.unlock() {
                return;
            }
        }
    }
}
