//! Parallel bundles: a bundle that several threads use, and the device's engine.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use hca_core::{CqHandle, Device, OffloadEngine};

use crate::bundle::Left;
use crate::{Bundle, Error};

/// The time until a run looks again for room for answers.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// A parallel bundle (`AM_PAR`): a bundle that several threads use, one call at a time. Clones are the same bundle.
///
/// ```
/// # use hca_am::{Bundle, EndpointId, Error, Parallel};
/// fn serve(bundle: Bundle, echo: EndpointId) -> Result<(), Error> {
///     let bundle = Parallel::new(bundle);
///     std::thread::scope(|s| {
///         let polls = s.spawn(|| bundle.with(|bundle| bundle.poll()));
///         bundle.with(|bundle| bundle.request(echo, 0, 1, &[7]))?;
///         polls.join().expect("no panic").map(drop)
///     })
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Parallel(Arc<Handle>);

/// The program's side of a bundle, without which the device runs it no more.
#[derive(Debug)]
struct Handle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bundle: Mutex<Bundle>,
    /// The thread that has the bundle, as a number.
    holder: AtomicU64,
    engine: Option<Engine>,
}

/// The device's part of an offloaded bundle.
struct Engine {
    device: Arc<dyn Device>,
    queue: CqHandle,
    /// A run is due that found the bundle in use.
    note: AtomicBool,
    /// The last run has left messages whose answers have no room.
    stuck: AtomicBool,
}

/// A number of the calling thread, never 0.
fn thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static ID: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    ID.with(|id| *id)
}

/// Clears the holder, also behind a panic of a handler.
struct Held<'a>(&'a AtomicU64);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Leaves to the device what a call leaves that ends by a panic.
struct Unwinding<'a>(&'a Shared, &'a Engine);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.ask_for_a_run(self.1);
        }
    }
}

impl Parallel {
    /// Lets several threads use a bundle.
    pub fn new(bundle: Bundle) -> Self {
        let shared = Shared { bundle: Mutex::new(bundle), holder: AtomicU64::new(0), engine: None };
        Self(Arc::new(Handle(Arc::new(shared))))
    }
    /// As [`new`](Self::new), and the device runs handlers while the program makes no call: a process that computes
    /// still answers.
    ///
    /// Handlers then run on the thread that moves the device, one at a time as ever. They must not block, or they hold
    /// up all of the device. A panic of theirs is logged. While a thread is within [`with`](Self::with), the device
    /// leaves messages to it. A [`wait`](Self::wait) also ends when the device has handled a message.
    ///
    /// # Errors
    /// [`Error::NoEngine`], or the device has no room for another engine.
    pub fn offloaded(bundle: Bundle) -> Result<Self, Error> {
        let (device, queue) = bundle.lower.engine_queue().ok_or(Error::NoEngine)?;
        let engine = Engine {
            device: Arc::clone(&device),
            queue,
            note: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
        };
        let (bundle, holder) = (Mutex::new(bundle), AtomicU64::new(0));
        let shared = Arc::new(Shared { bundle, holder, engine: Some(engine) });
        let runs: Weak<Shared> = Arc::downgrade(&shared);
        device.offload().ok_or(Error::NoEngine)?.attach(queue, runs)?;
        Ok(Self(Arc::new(Handle(shared))))
    }
    /// Whether the device runs handlers.
    pub fn is_offloaded(&self) -> bool {
        self.shared().engine.is_some()
    }
    #[inline]
    fn shared(&self) -> &Shared {
        &self.0.0
    }
    /// Uses the bundle, once no other thread does.
    ///
    /// # Errors
    /// The call is made by a handler, which may only reply ([`Error::InHandler`]); or that of `call`.
    pub fn with<T>(&self, call: impl FnOnce(&mut Bundle) -> Result<T, Error>) -> Result<T, Error> {
        let shared = self.shared();
        if shared.is_held() {
            return Err(Error::InHandler);
        }
        // The bundle is in order behind a panic of a handler.
        let bundle = shared.bundle.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(engine) = &shared.engine else { return shared.hold(bundle, call) };
        let _unwinding = Unwinding(shared, engine);
        let value = shared.hold(bundle, |bundle| {
            let value = call(bundle);
            // Messages that the call took off the queue, and did not handle, are no completions: no run comes for them.
            if !bundle.events.is_empty() {
                engine.note.store(true, Ordering::Relaxed);
            }
            value
        });
        if shared.run_noted(engine) != Left::Nothing {
            shared.ask_for_a_run(engine);
        }
        value
    }
    /// As [`Bundle::wait`]. Other threads use the bundle meanwhile; of several that wait, one is woken at once, and the
    /// others within a probe interval.
    ///
    /// # Errors
    /// As there.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let (found, sleeper, most) = self.with(|bundle| {
                let found = bundle.has_event()?;
                let sleeper = if found { None } else { bundle.before_sleep() };
                Ok((found, sleeper, bundle.options().probe_interval))
            })?;
            if found {
                return Ok(true);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
            if let Some(sleeper) = sleeper {
                sleeper.sleep(left.unwrap_or(Duration::MAX).min(most))?;
            }
        }
    }
    /// The bundle, if this is the only clone.
    ///
    /// # Errors
    /// Clones exist. The error has this one.
    pub fn into_inner(self) -> Result<Bundle, Self> {
        if self.shared().is_held() {
            return Err(self);
        }
        let handle = Arc::try_unwrap(self.0).map_err(Self)?;
        let shared = Arc::clone(&handle.0);
        // The device runs it no more.
        drop(handle);
        let shared = Arc::into_inner(shared).expect("only the handle and runs have it");
        Ok(shared.bundle.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({:?})", self.queue)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(Engine { device, queue, .. }) = &self.0.engine
            && let Some(offload) = device.offload()
            && let Err(error) = offload.detach(*queue)
        {
            tracing::debug!(%error, "the device has let go of a bundle before");
        }
    }
}

impl Shared {
    /// Whether this thread has the bundle. Only this thread stores its own number.
    fn is_held(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == thread()
    }
    /// Uses the bundle, which is free for others afterwards.
    fn hold<T>(&self, mut bundle: MutexGuard<'_, Bundle>, call: impl FnOnce(&mut Bundle) -> T) -> T {
        self.holder.store(thread(), Ordering::Relaxed);
        let _held = Held(&self.holder);
        call(&mut bundle)
    }
    /// Has the device run the bundle soon.
    #[cold]
    fn ask_for_a_run(&self, engine: &Engine) {
        if let Some(offload) = engine.device.offload()
            && let Err(error) = offload.nudge(engine.queue)
        {
            tracing::debug!(%error, "the device runs a bundle no more");
        }
    }
    /// Does the runs that are due, unless another thread has the bundle: that thread does them then, once it has let go
    /// of the bundle. Returns what is left.
    fn run_noted(&self, engine: &Engine) -> Left {
        let mut left = Left::Nothing;
        loop {
            // The note and the lock: who leaves the one looks at the other afterwards.
            fence(Ordering::SeqCst);
            if !engine.note.load(Ordering::Relaxed) {
                return left;
            }
            let bundle = match self.bundle.try_lock() {
                Ok(bundle) => bundle,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return left,
            };
            engine.note.store(false, Ordering::Relaxed);
            let run = |bundle: &mut Bundle| {
                bundle.in_run = true;
                let left = catch_unwind(AssertUnwindSafe(|| bundle.run()));
                bundle.in_run = false;
                left.unwrap_or_else(|_| {
                    tracing::error!("a handler has panicked in a run of the device");
                    Left::More
                })
            };
            left = self.hold(bundle, run);
            engine.stuck.store(left == Left::NoRoom, Ordering::Relaxed);
        }
    }
}

/// The device runs the bundle.
impl OffloadEngine for Shared {
    fn run(&self) -> bool {
        let Some(engine) = &self.engine else { return false };
        engine.note.store(true, Ordering::Relaxed);
        // A handler's own call may move the device.
        !self.is_held() && self.run_noted(engine) == Left::More
    }
    fn next_deadline(&self) -> Option<Duration> {
        let stuck = self.engine.as_ref().is_some_and(|engine| engine.stuck.load(Ordering::Relaxed));
        stuck.then_some(LOOK_AGAIN)
    }
}
