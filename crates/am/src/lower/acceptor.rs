//! Parts that both lower layers have: places of links, and the threads that accept peers.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use super::LinkId;
use crate::segment::Remote;
use crate::wire::Hello;
use crate::{EndpointId, Error};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Values are whole between any two operations.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The places of links, which the bundle and its acceptors take.
pub(super) struct Places {
    /// The link of each place, 0 for a free one; and the last generation.
    taken: Mutex<(Vec<u64>, u64)>,
    max: usize,
}

impl Places {
    pub(super) fn new(max: usize) -> Self {
        Self { taken: Mutex::default(), max }
    }
    pub(super) fn take(&self) -> Result<LinkId, Error> {
        let (taken, generation) = &mut *lock(&self.taken);
        let place = taken.iter().position(|&link| link == 0).unwrap_or(taken.len());
        if place == self.max {
            return Err(Error::Limit { what: "links of the bundle", max: self.max });
        }
        if place == taken.len() {
            taken.push(0);
        }
        *generation += 1;
        taken[place] = *generation << 32 | place as u64;
        Ok(LinkId(taken[place]))
    }
    pub(super) fn free(&self, link: LinkId) {
        lock(&self.taken).0[link.place()] = 0;
    }
    /// Whether a link has its place: it is there, or its handshake goes on.
    pub(super) fn has(&self, link: LinkId) -> bool {
        lock(&self.taken).0.get(link.place()) == Some(&link.0)
    }
    /// Whether more places are taken than this number of links.
    pub(super) fn any_to_come(&self, links: usize) -> bool {
        lock(&self.taken).0.iter().filter(|&&link| link != 0).count() > links
    }
}

/// Links that peers have made, for the bundle to take over.
pub(super) struct Inbox<L> {
    links: Mutex<Vec<(EndpointId, LinkId, L)>>,
    any: AtomicBool,
    /// Called behind each link: who polls only when messages come may have the link's first messages already.
    tell: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl<L> Inbox<L> {
    pub(super) fn new() -> Self {
        Self { links: Mutex::default(), any: AtomicBool::new(false), tell: OnceLock::new() }
    }
    pub(super) fn put(&self, endpoint: EndpointId, id: LinkId, link: L) {
        lock(&self.links).push((endpoint, id, link));
        self.any.store(true, Ordering::Release);
        if let Some(tell) = self.tell.get() {
            tell();
        }
    }
    /// Has `tell` called for each link that comes from now on. The first one that is given stays.
    pub(super) fn tell_by(&self, tell: impl Fn() + Send + Sync + 'static) {
        let _ = self.tell.set(Box::new(tell));
    }
    /// Whether there may be any.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }
    #[cold]
    pub(super) fn take(&self) -> Vec<(EndpointId, LinkId, L)> {
        let mut links = lock(&self.links);
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut links)
    }
}

/// Where the acceptor of an endpoint builds links, which changes when the endpoint moves to another bundle.
pub(super) struct Home<M, L>(Mutex<Arc<Target<M, L>>>);

/// The bundle of an endpoint.
pub(super) struct Target<M, L> {
    /// The parts that links are built of.
    pub(super) maker: Arc<M>,
    pub(super) inbox: Arc<Inbox<L>>,
    /// The endpoint there.
    pub(super) endpoint: EndpointId,
}

impl<M, L> Home<M, L> {
    pub(super) fn new(target: Target<M, L>) -> Self {
        Self(Mutex::new(Arc::new(target)))
    }
    pub(super) fn now(&self) -> Arc<Target<M, L>> {
        Arc::clone(&lock(&self.0))
    }
    pub(super) fn set(&self, target: Target<M, L>) {
        let before = std::mem::replace(&mut *lock(&self.0), Arc::new(target));
        // Without the lock: with the earlier bundle's parts goes what they hold.
        drop(before);
    }
}

/// The hello of an endpoint: the first message of a link.
pub(super) struct Greeting(Mutex<(Hello, bool)>);

impl Greeting {
    pub(super) fn new(hello: Hello) -> Self {
        Self(Mutex::new((hello, false)))
    }
    /// The hello, which from now on does not change.
    pub(super) fn say(&self) -> Hello {
        let mut greeting = lock(&self.0);
        greeting.1 = true;
        greeting.0
    }
    /// Changes the limits of the bundle. Links that were greeted before keep theirs.
    pub(super) fn set_limits(&self, limits: &Hello) {
        let hello = &mut lock(&self.0).0;
        (hello.credits, hello.max_medium) = (limits.credits, limits.max_medium);
    }
    pub(super) fn set_segment(&self, remote: Remote) -> Result<(), Error> {
        let (hello, said) = &mut *lock(&self.0);
        if *said {
            return Err(Error::InUse { what: "the endpoint: peers that know its segment", users: 1 });
        }
        (hello.segment_addr, hello.segment_len, hello.segment_key) = (remote.addr, remote.len, remote.key);
        Ok(())
    }
}

/// A thread that accepts the peers of an endpoint. Dropped, it is asked to end, and not waited for: a peer may stand
/// still within its handshake.
pub(super) struct Acceptor {
    stop: Arc<Stop>,
    pub(super) greeting: Arc<Greeting>,
}

impl Acceptor {
    pub(super) fn start(
        greeting: Arc<Greeting>,
        serve: impl FnOnce(&Stop) + Send + 'static,
    ) -> Result<Self, Error> {
        let stop = Arc::<Stop>::default();
        let theirs = Arc::clone(&stop);
        drop(hca_process::spawn("hca-am", move || serve(&theirs))?);
        Ok(Self { stop, greeting })
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop.ask();
    }
}

/// Asks a thread to end.
#[derive(Default)]
pub(super) struct Stop(Mutex<(bool, Option<Waker>)>);

impl Stop {
    pub(super) fn is_asked(&self) -> bool {
        lock(&self.0).0
    }
    fn ask(&self) {
        let mut state = lock(&self.0);
        state.0 = true;
        let waker = state.1.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
    /// Blocks until the future is ready; `None` if the thread is asked to end first.
    pub(super) fn or<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let (mut future, mut cx) = (pin!(future), Context::from_waker(&waker));
        loop {
            let mut state = lock(&self.0);
            if state.0 {
                return None;
            }
            state.1 = Some(waker.clone());
            drop(state);
            if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
                return Some(value);
            }
            std::thread::park();
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
