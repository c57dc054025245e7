//! Listeners: programs that wait for clients.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use hca_cm::{CmError, ConnectionError, Incoming};
use hca_verbs::Context;

use super::hello::{Hello, Kind, Refusal};
use super::{Discriminator, NetAddress, RemoteAttributes, end_of, mismatch, settle};
use crate::queue_pair::Control;
use crate::tasks::{Stop, block_on, left};
use crate::{Error, Nic, Vi, ViState, lock};

/// Requests that wait at a listener, at most. Further ones wait at the connection manager, which has a limit, too.
const MOST_WAITING: usize = 128;

/// Takes the first port of a discriminator that is free.
pub(crate) fn bind(context: &Context, local: &Discriminator) -> Result<hca_cm::Listener, Error> {
    let mut tried = 0;
    for port in local.ports() {
        tried += 1;
        match hca_cm::Listener::bind(context, SocketAddr::new(context.port().gid.ip(), port)) {
            Ok(listener) => return Ok(listener),
            Err(ConnectionError::Cm(CmError::InUse { .. })) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::InUse { what: "the ports of the discriminator", users: tried })
}

/// Refuses a request.
pub(crate) fn refuse(incoming: Incoming, refusal: Refusal) {
    if let Err(error) = incoming.reject(&refusal.bytes()) {
        tracing::debug!(%error, "a request that is refused has gone");
    }
}

/// Accepts a request on a queue pair.
pub(crate) async fn accept(
    incoming: Incoming,
    control: &Control,
    reply: &Hello,
) -> Result<hca_cm::Connection, Error> {
    let bytes = reply.bytes();
    Ok(match control {
        Control::Rc(control) => incoming.accept_async(control, &bytes).await?,
        Control::Uc(control) => incoming.accept_async(control, &bytes).await?,
    })
}

#[derive(Default)]
struct Waiting {
    stop: Stop,
    requests: Mutex<VecDeque<(Incoming, Hello)>>,
    came: Condvar,
    closed: AtomicBool,
    /// Called when there is room for another request.
    has_room: Mutex<Option<Waker>>,
}

impl Waiting {
    /// Waits until there is room for another request.
    async fn room(&self) {
        std::future::poll_fn(|cx| {
            let requests = lock::lock(&self.requests);
            if requests.len() < MOST_WAITING {
                return Poll::Ready(());
            }
            *lock::lock(&self.has_room) = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// A program that waits for clients with its discriminator. From [`Nic::listen`]. Dropped, it ends, and requests that
/// wait are refused.
pub struct Listener {
    nic: Nic,
    address: NetAddress,
    waiting: Arc<Waiting>,
}

impl Nic {
    /// Listens for clients with a discriminator: the first half of `VipConnectWait`. Requests wait until
    /// [`Listener::wait`] takes them. Of two listeners at one address with one discriminator, the earlier one gets the
    /// requests.
    ///
    /// # Errors
    /// The device has no connection manager, or other programs have all ports of the discriminator.
    pub fn listen(&self, discriminator: Discriminator) -> Result<Listener, Error> {
        let listener = bind(&self.shared().context, &discriminator)?;
        let waiting = Arc::<Waiting>::default();
        self.shared().tasks.spawn(serve(listener, discriminator, Arc::clone(&waiting)))?;
        let address = NetAddress { host: self.attributes().host, discriminator };
        Ok(Listener { nic: self.clone(), address, waiting })
    }
}

/// Takes the requests of a listener, and refuses those that are for others.
async fn serve(listener: hca_cm::Listener, local: Discriminator, waiting: Arc<Waiting>) {
    while waiting.stop.or(waiting.room()).await.is_some()
        && let Some(Ok(incoming)) = waiting.stop.or(listener.accept_async()).await
    {
        match Hello::parse(incoming.private_data()) {
            Some(hello) if hello.remote == local && hello.kind == Kind::ClientServer => {
                lock::lock(&waiting.requests).push_back((incoming, hello));
                waiting.came.notify_one();
            }
            _ => refuse(incoming, Refusal::NoMatch),
        }
    }
}

impl Listener {
    /// The address to connect to.
    pub fn address(&self) -> NetAddress {
        self.address
    }
    /// Waits for a client (`VipConnectWait`); for ever without a `timeout`.
    ///
    /// # Errors
    /// None came in time, or the listener was [closed](Self::close).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<ConnectionRequest, Error> {
        let end = end_of(timeout);
        let mut requests = lock::lock(&self.waiting.requests);
        loop {
            if let Some((incoming, hello)) = requests.pop_front() {
                drop(requests);
                let has_room = lock::lock(&self.waiting.has_room).take();
                has_room.into_iter().for_each(Waker::wake);
                return Ok(ConnectionRequest { nic: self.nic.clone(), incoming, hello });
            }
            if self.waiting.closed.load(Ordering::Acquire) {
                return Err(Error::Parameter { what: "listener", why: "it was closed" });
            }
            requests = match left(end) {
                Some(Duration::ZERO) => return Err(Error::TimedOut(timeout.unwrap_or_default())),
                Some(left) => {
                    let waited = self.waiting.came.wait_timeout(requests, left);
                    waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
                }
                None => {
                    let waited = self.waiting.came.wait(requests);
                    waited.unwrap_or_else(std::sync::PoisonError::into_inner)
                }
            };
        }
    }
    /// Ends it, as a drop does, for a listener that another thread waits at: all waits end with an error, and requests
    /// that wait are refused.
    pub fn close(&self) {
        if self.nic.shared().is_in_child() {
            return;
        }
        self.waiting.stop.ask();
        let mut requests = lock::lock(&self.waiting.requests);
        self.waiting.closed.store(true, Ordering::Release);
        let left = std::mem::take(&mut *requests);
        drop(requests);
        self.waiting.came.notify_all();
        for (incoming, _) in left {
            refuse(incoming, Refusal::NoMatch);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}
impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.address).finish()
    }
}

/// A client that wants to connect. Dropped, it is rejected.
#[derive(Debug)]
pub struct ConnectionRequest {
    nic: Nic,
    incoming: Incoming,
    hello: Hello,
}

impl ConnectionRequest {
    /// The client's host, and the discriminator that the client gave itself.
    pub fn remote(&self) -> NetAddress {
        NetAddress { host: self.incoming.source().ip(), discriminator: self.hello.local }
    }
    /// The attributes of the client's VI.
    pub fn attributes(&self) -> &RemoteAttributes {
        &self.hello.attributes
    }
    /// Whether a VI can be connected, as far as the client has no part in it.
    ///
    /// # Errors
    /// The VI is not idle, or belongs to another adapter.
    pub fn check(&self, vi: &Vi) -> Result<(), Error> {
        let vi = vi.shared();
        let state = vi.state();
        if state != ViState::Idle {
            return Err(Error::State { state, needs: "only an idle VI is connected" });
        }
        if !Arc::ptr_eq(vi.nic.context.device(), self.nic.shared().context.device()) {
            return Err(Error::Parameter { what: "VI", why: "it belongs to another device" });
        }
        Ok(())
    }
    /// Connects a VI to the client's, and waits until the client is ready (`VipConnectAccept`). Refused for a reason that
    /// [`check`](Self::check) tells beforehand, it rejects the client as well.
    ///
    /// # Errors
    /// The VI is not idle, belongs to another adapter, or has other attributes than the client's, which is told so; or
    /// the client has gone.
    pub fn accept(self, vi: &Vi) -> Result<(), Error> {
        if let Err(error) = self.check(vi) {
            self.reject();
            return Err(error);
        }
        let vi = vi.shared();
        let (attempt, control, attributes) = vi.begin()?;
        if let Some(refusal) = mismatch(&attributes, &self.hello.attributes) {
            refuse(self.incoming, refusal);
            vi.fail(attempt, None);
            return Err(refusal.error());
        }
        let Hello { local, remote, attributes: theirs, .. } = self.hello;
        let reply = Hello { kind: Kind::ClientServer, local: remote, remote: local, attributes };
        let accepted = block_on(accept(self.incoming, &control, &reply));
        settle(vi, attempt, accepted.map(|connection| (connection, theirs))).map(drop)
    }
    /// Rejects the client (`VipConnectReject`).
    pub fn reject(self) {
        refuse(self.incoming, Refusal::Rejected);
    }
}
