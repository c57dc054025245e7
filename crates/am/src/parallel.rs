//! Parallel bundles: a bundle that several threads use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::{Bundle, Error};

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
pub struct Parallel(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bundle: Mutex<Bundle>,
    /// The thread that has the bundle, as a number.
    holder: AtomicU64,
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

impl Parallel {
    /// Lets several threads use a bundle.
    pub fn new(bundle: Bundle) -> Self {
        Self(Arc::new(Shared { bundle: Mutex::new(bundle), holder: AtomicU64::new(0) }))
    }
    /// Uses the bundle, once no other thread does.
    ///
    /// # Errors
    /// The call is made by a handler, which may only reply ([`Error::InHandler`]); or that of `call`.
    pub fn with<T>(&self, call: impl FnOnce(&mut Bundle) -> Result<T, Error>) -> Result<T, Error> {
        // Only this thread stores its own number.
        if self.0.holder.load(Ordering::Relaxed) == thread() {
            return Err(Error::InHandler);
        }
        // The bundle is in order behind a panic of a handler.
        let mut bundle = self.0.bundle.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.holder.store(thread(), Ordering::Relaxed);
        let _held = Held(&self.0.holder);
        call(&mut bundle)
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
        let shared = Arc::try_unwrap(self.0).map_err(Self)?;
        Ok(shared.bundle.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}
