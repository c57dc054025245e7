//! Listeners for connections.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use hca_verbs::{Connected, Context, Endpoint, Lid, QpControl, QpType};

use super::ConnectionError;
use super::connection::{Connection, ended, first_address, options, reply, stop_at_the_end};
use super::manager::{Asked, Held, Manager, Request, State};
use super::ports::ports_to_bind;
use super::wait::{Subject, block, block_on};
use crate::wire::{Info, PrivateData, Reason, Rep, Req, Transport};
use crate::{CmError, IpHeader, PortSpace, ServiceId};

/// Requests that wait to be accepted, unless told otherwise.
const BACKLOG: usize = 128;

/// A listener at a port, for connections. Dropped, it ends, and the requests that wait are rejected. Those that were
/// taken from it stay.
///
/// ```no_run
/// # use hca_verbs::*;
/// # fn example(context: &Context, qp: QueuePair<Rc>) -> Result<(), Box<dyn std::error::Error>> {
/// let listener = hca_cm::Listener::bind(context, "0.0.0.0:7471")?;
/// let incoming = listener.accept()?;
/// println!("{} says {:?}", incoming.source(), incoming.private_data());
/// let connection = incoming.accept(&qp, b"welcome")?;
/// connection.wait_disconnected(None)?;
/// # Ok(()) }
/// ```
pub struct Listener {
    manager: Arc<Manager>,
    service: ServiceId,
    address: SocketAddr,
    /// The service is given back with the listener.
    has_claimed: bool,
}

impl Listener {
    /// Listens at an address of the device, or at `0.0.0.0` or `::`. Port 0 lets the listener choose one.
    ///
    /// # Errors
    /// The address, a port that has a listener, or a device without a general services queue pair.
    pub fn bind(context: &Context, address: impl ToSocketAddrs) -> Result<Self, ConnectionError> {
        Self::bind_with(context, address, BACKLOG)
    }
    /// As [`bind`](Self::bind), with the number of requests that wait to be accepted. Further ones are dropped, and
    /// their senders repeat them.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_with(
        context: &Context,
        address: impl ToSocketAddrs,
        backlog: usize,
    ) -> Result<Self, ConnectionError> {
        let manager = Manager::of(context)?;
        let (service, address) = listen(&manager, address, PortSpace::Tcp, backlog)?;
        Ok(Self { manager, service, address, has_claimed: true })
    }
    /// Listens at a service that was claimed, and stays so.
    pub(super) fn at_claimed(
        manager: &Arc<Manager>,
        service: ServiceId,
        backlog: usize,
    ) -> Result<Self, ConnectionError> {
        manager.call(|state, _| state.machine.listen(service, backlog))?;
        let port = service.port().map_or(0, |(_, port)| port);
        let address = SocketAddr::new(manager.gid.ip(), port);
        Ok(Self { manager: Arc::clone(manager), service, address, has_claimed: false })
    }
    /// The address that it listens at: the device's, with the port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
    /// Waits for a request.
    ///
    /// # Errors
    /// The connection manager has stopped.
    pub fn accept(&self) -> Result<Incoming, ConnectionError> {
        block(self.accept_async())
    }
    /// Waits for a request, for ever without a `timeout`; `None` if none came in time.
    ///
    /// # Errors
    /// The connection manager has stopped.
    pub fn accept_within(&self, timeout: Option<Duration>) -> Result<Option<Incoming>, ConnectionError> {
        block_on(self.accept_async(), timeout).transpose()
    }
    /// As [`accept`](Self::accept), for tasks of any runtime. A dropped future takes no request.
    ///
    /// ```no_run
    /// # use hca_verbs::*;
    /// # async fn example(context: &Context, qp: &AsyncQp<Rc>) -> Result<(), Box<dyn std::error::Error>> {
    /// let listener = hca_cm::Listener::bind(context, "0.0.0.0:7471")?;
    /// let connection = listener.accept_async().await?.accept_async(qp, b"welcome").await?;
    /// connection.disconnected().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The connection manager has stopped.
    pub async fn accept_async(&self) -> Result<Incoming, ConnectionError> {
        loop {
            let Asked { id, from, request } = next(&self.manager, self.service).await?;
            let held = Held { manager: Arc::clone(&self.manager), id };
            let Request::Connection(request) = request else { continue };
            // Programs that connect without addresses, by service IDs, have private data of another form.
            let source = IpHeader::parse(&request.private_data).map(|(header, _)| header.source());
            let source = source.unwrap_or_else(|_| SocketAddr::new(from.gid.ip(), 0));
            return Ok(Incoming { held, from: from.gid, source, request });
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        unlisten(&self.manager, self.service);
        if self.has_claimed {
            self.manager.device.release_service(self.service.0);
        }
    }
}
impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Listener").field(&self.address).finish()
    }
}

pub(super) fn unlisten(manager: &Arc<Manager>, service: ServiceId) {
    if manager.is_in_child() {
        return;
    }
    manager.call(|state, now| {
        state.machine.unlisten(now, service);
        for asked in state.asked.remove(&service).into_iter().flatten() {
            state.forget(now, asked.id);
        }
    });
}

/// Begins to listen at a port.
pub(super) fn listen(
    manager: &Arc<Manager>,
    address: impl ToSocketAddrs,
    space: PortSpace,
    backlog: usize,
) -> Result<(ServiceId, SocketAddr), ConnectionError> {
    let asked = first_address(address)?;
    let device = manager.gid.ip();
    if !asked.ip().is_unspecified() && asked.ip() != device {
        return Err(ConnectionError::NotLocal { asked: asked.ip(), device });
    }
    manager.call(|state, now| {
        for port in ports_to_bind(asked.port()) {
            let service = ServiceId::of_port(space, port);
            let begun = state.machine.listen(service, backlog).map_err(ConnectionError::from);
            // Another process at the address may have the service.
            let claimed = begun
                .and_then(|()| manager.claim(service).inspect_err(|_| state.machine.unlisten(now, service)));
            match claimed {
                Ok(()) => return Ok((service, SocketAddr::new(device, port))),
                Err(ConnectionError::Cm(CmError::InUse { .. })) if asked.port() == 0 => {}
                Err(e) => return Err(e),
            }
        }
        Err(ConnectionError::NoPort)
    })
}

/// The next request to a service.
pub(super) async fn next(manager: &Manager, service: ServiceId) -> Result<Asked, ConnectionError> {
    let take = |state: &mut State| {
        let asked = state.asked.get_mut(&service)?.pop_front()?;
        state.machine.taken(asked.id);
        Some(asked)
    };
    manager.until(Subject::Service(service), take).await
}

/// A request for a connection. Dropped, it is rejected.
#[derive(Debug)]
pub struct Incoming {
    held: Held,
    from: hca_verbs::Gid,
    source: SocketAddr,
    request: Box<Req>,
}

impl Incoming {
    /// The address and the port of the side that connects.
    pub fn source(&self) -> SocketAddr {
        self.source
    }
    /// The private data of the request: 56 bytes, of which those behind the peer's data are 0. All 92 bytes where the
    /// peer connects without addresses.
    pub fn private_data(&self) -> &[u8] {
        match IpHeader::parse(&self.request.private_data) {
            Ok((_, data)) => data,
            Err(_) => self.request.private_data.bytes(),
        }
    }
    /// The service of the queue pair that the peer connects.
    pub fn service(&self) -> QpType {
        match self.request.transport {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
            Transport::Xrc => QpType::XrcIni,
        }
    }
    /// Connects a queue pair, tells the peer, and waits until the peer is ready. `private_data`, at most 196 bytes,
    /// comes to the peer with the reply.
    ///
    /// # Errors
    /// The queue pair, another service or a smaller MTU than the peer's (it is told so), or a peer that has gone.
    pub fn accept<S: Connected>(
        self,
        qp: &QpControl<S>,
        private_data: &[u8],
    ) -> Result<Connection, ConnectionError> {
        block(self.accept_async(qp, private_data))
    }
    /// As [`accept`](Self::accept), for tasks of any runtime. A dropped future ends the connection.
    ///
    /// # Errors
    /// As there.
    pub async fn accept_async<S: Connected>(
        self,
        qp: &QpControl<S>,
        private_data: &[u8],
    ) -> Result<Connection, ConnectionError> {
        let ours = qp.endpoint();
        let remote = Endpoint {
            service: self.service(),
            qpn: self.request.local_qpn,
            psn: ours.psn,
            mtu: self.request.path_mtu,
            rd_atomic: self.request.responder_resources,
            gid: self.from,
            lid: Lid::default(),
        };
        let private_data = PrivateData::new(private_data)?;
        let id = self.held.id;
        if self.request.path_mtu > self.held.manager.mtu {
            self.refuse(Reason::INVALID_MTU, PrivateData::EMPTY);
            let why = ConnectionError::Rejected { reason: Reason::INVALID_MTU, private_data: Vec::new() };
            return Err(why);
        }
        let options = options(self.request.starting_psn, self.request.rnr_retry_count);
        if let Err(e) = qp.connect(&remote, &options) {
            self.refuse(Reason::NO_RESOURCES, PrivateData::EMPTY);
            return Err(e.into());
        }
        stop_at_the_end(&self.held, qp);
        let rep = Rep { private_data, ..reply(&ours, &self.request) };
        let manager = &self.held.manager;
        manager.call(|state, now| state.machine.accept(now, id, &rep))?;
        let ready = manager.until(Subject::Id(id), |state| {
            let conn = state.conns.get_mut(&id)?;
            conn.established.take().map(Ok).or_else(|| conn.end.clone().map(Err))
        });
        let data = ready.await?.map_err(ended)?;
        Ok(Connection::new(self.held, remote, data))
    }
    /// Rejects the request. `private_data`, at most 148 bytes, comes to the peer.
    ///
    /// # Errors
    /// The private data is too long.
    pub fn reject(self, private_data: &[u8]) -> Result<(), ConnectionError> {
        let private_data = PrivateData::new(private_data)?;
        self.refuse(Reason::CONSUMER_DEFINED, private_data);
        Ok(())
    }
    fn refuse(&self, reason: Reason, private_data: PrivateData<{ crate::wire::Rej::PRIVATE_BYTES }>) {
        let id = self.held.id;
        // One that the peer has given up meanwhile needs no rejection.
        let _ = self
            .held
            .manager
            .call(|state, now| state.machine.reject(now, id, reason, Info::EMPTY, private_data));
    }
}
