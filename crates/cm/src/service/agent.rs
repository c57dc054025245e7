//! The connection manager for layers that make and move their queue pairs themselves, and that are told of events
//! instead of waiting for them: the C interface.

use std::sync::Arc;

use hca_core::{Gid, Instant, Mtu};
use hca_verbs::{Context, Endpoint};

use super::connection;
use super::manager::Manager;
use super::wait::Subject;
use super::{ConnectionError, Listener};
use crate::wire::{CommId, Rep, Req};
use crate::{Event, Machine, Resolve, ServiceId};

/// A receiver of the events of one listener, connection or resolution.
pub trait Sink: Send + Sync {
    /// Takes an event. A listener's sink returns the sink of the connection or the resolution that is asked for;
    /// without one the request is nobody's, until the listener ends.
    ///
    /// The call is made under the connection manager's lock: it notes the event, calls nothing of the [`Agent`], and
    /// does not wait.
    fn event(&self, event: &Event) -> Option<Arc<dyn Sink>>;
}

/// The connection manager of a context, whose calls are those of its [`Machine`]. Clones are the same one. It ends with
/// the last of them, and of the context's listeners and connections.
#[derive(Clone)]
pub struct Agent {
    manager: Arc<Manager>,
}

impl Agent {
    /// The connection manager of a context.
    ///
    /// # Errors
    /// The device gives its programs no queue pair 1, or refuses what the connection manager needs.
    pub fn of(context: &Context) -> Result<Self, ConnectionError> {
        Ok(Self { manager: Manager::of(context)? })
    }
    /// The GID of the device's port.
    pub fn gid(&self) -> Gid {
        self.manager.gid
    }
    /// The largest path MTU of the device's port.
    pub fn mtu(&self) -> Mtu {
        self.manager.mtu
    }
    /// Has requests for a service come to this connection manager, of those at its address.
    ///
    /// # Errors
    /// Another one has claimed the service.
    pub fn claim(&self, service: ServiceId) -> Result<(), ConnectionError> {
        self.manager.claim(service)
    }
    /// Gives a service back that was claimed.
    pub fn release(&self, service: ServiceId) {
        self.manager.device.release_service(service.0);
    }
    /// Listens at a service that was claimed. Requests go to the sink.
    ///
    /// # Errors
    /// The service has a listener.
    pub fn listen(
        &self,
        service: ServiceId,
        backlog: usize,
        sink: Arc<dyn Sink>,
    ) -> Result<(), ConnectionError> {
        self.manager.call(|state, _| {
            state.machine.listen(service, backlog)?;
            state.sinks.insert(Subject::Service(service), sink);
            Ok(())
        })
    }
    /// A listener for connections at a service that was claimed. The service stays claimed behind its end.
    ///
    /// # Errors
    /// The service has a listener.
    pub fn listener(&self, service: ServiceId, backlog: usize) -> Result<Listener, ConnectionError> {
        Listener::at_claimed(&self.manager, service, backlog)
    }
    /// Ends a listener. Requests that were neither answered nor [taken](Machine::taken) are rejected.
    pub fn unlisten(&self, service: ServiceId) {
        self.manager.call(|state, now| {
            state.sinks.remove(&Subject::Service(service));
            state.machine.unlisten(now, service);
        });
    }
    /// Asks a peer for a connection. Events go to the sink, maybe before the call returns.
    ///
    /// # Errors
    /// A limit, or no path to the peer.
    pub fn connect(&self, to: Gid, request: &Req, sink: Arc<dyn Sink>) -> Result<CommId, ConnectionError> {
        self.manager.ask(to, |state, now| {
            let id = state.machine.connect(now, to.into(), request)?;
            state.sinks.insert(Subject::Id(id), sink);
            Ok(id)
        })
    }
    /// Asks a peer for the queue pair of a service. Events go to the sink, maybe before the call returns.
    ///
    /// # Errors
    /// A limit, or no path to the peer.
    pub fn resolve(&self, ask: &Resolve, sink: Arc<dyn Sink>) -> Result<CommId, ConnectionError> {
        self.manager.ask(ask.to.gid, |state, now| {
            let id = state.machine.resolve(now, ask)?;
            state.sinks.insert(Subject::Id(id), sink);
            Ok(id)
        })
    }
    /// Makes another call of the machine.
    pub fn call<T>(&self, call: impl FnOnce(&mut Machine, Instant) -> T) -> T {
        self.manager.call(|state, now| call(&mut state.machine, now))
    }
    /// Ends whatever has this ID, in the way that its state asks for. Its sink gets no event any more.
    pub fn forget(&self, id: CommId) {
        self.manager.call(|state, now| state.forget(now, id));
    }
    /// The program is about to sleep until a sink wakes it.
    pub fn program_sleeps(&self) {
        self.manager.program_sleeps();
    }
    /// A request to a peer by a queue pair, with the times and the counts of retries that Linux's rdma_cm has, and
    /// without service and private data.
    pub fn request(ours: &Endpoint, peer: Gid) -> Req {
        connection::request(ours, peer)
    }
    /// The reply to a request, by a queue pair, without private data.
    pub fn reply(ours: &Endpoint, request: &Req) -> Rep {
        connection::reply(ours, request)
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Agent").field(&self.manager.gid).finish()
    }
}
