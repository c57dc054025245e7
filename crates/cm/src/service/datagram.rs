//! Datagram services: resolving them, and offering them.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use hca_verbs::{AddressVector, Context, DeviceError, Gid, Lid, Pd, Pkey, Qkey, QpControl, Qpn, Ud, UdPeer};

use super::ConnectionError;
use super::connection::{MAX_RETRIES, RESPONSE_TIMEOUT, first_address};
use super::listener::{listen, next, unlisten};
use super::manager::{Asked, Held, Manager, Request};
use super::ports::ephemeral_port;
use super::wait::{Subject, block, block_on};
use crate::wire::{PrivateData, Refusal, Resolution, SidrReq};
use crate::{IpHeader, Peer, PortSpace, Resolve, ServiceId, SidrAnswer};

/// The Q_Key that datagram services of Linux's rdma_cm have.
pub const UDP_QKEY: Qkey = Qkey::new(0x0123_4567);

/// Requests that wait for an answer, unless told otherwise.
const BACKLOG: usize = 128;

/// A datagram service that was resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramService {
    /// The port of the service.
    pub gid: Gid,
    /// The queue pair of the service.
    pub qpn: Qpn,
    /// The Q_Key that the queue pair takes.
    pub qkey: Qkey,
    /// The private data of the answer: 136 bytes, of which those behind the peer's data are 0.
    pub private_data: Vec<u8>,
}

impl DatagramService {
    /// The service as the destination of datagrams.
    ///
    /// # Errors
    /// The device's limit, or no path.
    pub fn peer(&self, pd: &Pd) -> Result<UdPeer, DeviceError> {
        let av = AddressVector { dgid: self.gid, ..AddressVector::default() };
        Ok(pd.create_ah(&av)?.peer(self.qpn, self.qkey))
    }
}

/// Asks for the queue pair of the datagram service that listens at an address. `private_data`, at most 180 bytes, comes
/// to the listener with the request.
///
/// # Errors
/// The address, a refusal, or no answer (after 17 s).
pub fn resolve(
    context: &Context,
    address: impl ToSocketAddrs,
    private_data: &[u8],
) -> Result<DatagramService, ConnectionError> {
    block(resolve_async(context, first_address(address)?, private_data))
}

/// As [`resolve`], for tasks of any runtime. A dropped future ends the resolution.
///
/// # Errors
/// As there.
pub async fn resolve_async(
    context: &Context,
    address: SocketAddr,
    private_data: &[u8],
) -> Result<DatagramService, ConnectionError> {
    let manager = Manager::of(context)?;
    let source = SocketAddr::new(manager.gid.ip(), ephemeral_port());
    let ask = Resolve {
        to: Peer { gid: address.ip().into(), lid: Lid::default() },
        service: ServiceId::of_port(PortSpace::Udp, address.port()),
        pkey: Pkey::DEFAULT,
        timeout: RESPONSE_TIMEOUT,
        retries: MAX_RETRIES as u8,
        private_data: IpHeader::new(source, address.ip())?.with_data(private_data)?,
    };
    let Held { manager, id } = &manager.resolve(&ask)?;
    let answer = manager.until(Subject::Id(*id), |state| match state.resolved.get_mut(id) {
        Some(answer) => answer.take().map(Some),
        None => Some(None),
    });
    let (from, resolution, private_data) = answer.await?.ok_or(ConnectionError::NoAnswer)?;
    match resolution {
        Resolution::Found { qpn, qkey } => Ok(DatagramService { gid: from.gid, qpn, qkey, private_data }),
        Resolution::Refused(refusal) => {
            Err(ConnectionError::Unresolved { status: refusal.status(), private_data })
        }
    }
}

/// A listener at a port, for resolutions of a datagram service. Dropped, it ends.
pub struct DatagramListener {
    manager: Arc<Manager>,
    service: ServiceId,
    address: SocketAddr,
}

impl DatagramListener {
    /// Listens at an address of the device, or at `0.0.0.0` or `::`. Port 0 lets the listener choose one.
    ///
    /// # Errors
    /// The address, a port that has a listener, or a device without a general services queue pair.
    pub fn bind(context: &Context, address: impl ToSocketAddrs) -> Result<Self, ConnectionError> {
        let manager = Manager::of(context)?;
        let (service, address) = listen(&manager, address, PortSpace::Udp, BACKLOG)?;
        Ok(Self { manager, service, address })
    }
    /// The address that it listens at: the device's, with the port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
    /// Waits for a request, for ever without a `timeout`; `None` if none came in time.
    ///
    /// # Errors
    /// The connection manager has stopped.
    pub fn accept_within(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Option<DatagramRequest>, ConnectionError> {
        block_on(self.accept_async(), timeout).transpose()
    }
    /// Waits for a request, for tasks of any runtime. A dropped future takes no request.
    ///
    /// # Errors
    /// The connection manager has stopped.
    pub async fn accept_async(&self) -> Result<DatagramRequest, ConnectionError> {
        loop {
            let Asked { id, from, request } = next(&self.manager, self.service).await?;
            let held = Held { manager: Arc::clone(&self.manager), id };
            let Request::Datagram(request) = request else { continue };
            return Ok(DatagramRequest { held, from: from.gid, request });
        }
    }
}

impl Drop for DatagramListener {
    fn drop(&mut self) {
        unlisten(&self.manager, self.service);
        self.manager.device.release_service(self.service.0);
    }
}
impl std::fmt::Debug for DatagramListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DatagramListener").field(&self.address).finish()
    }
}

/// A request for the queue pair of a datagram service. Dropped, it is refused.
pub struct DatagramRequest {
    held: Held,
    from: Gid,
    request: Box<SidrReq>,
}

impl DatagramRequest {
    /// The port that asks.
    pub fn from(&self) -> Gid {
        self.from
    }
    /// The private data of the request: 180 bytes, of which those behind the peer's data are 0. All 216 bytes where the
    /// peer asks without addresses.
    pub fn private_data(&self) -> &[u8] {
        match IpHeader::parse(&self.request.private_data) {
            Ok((_, data)) => data,
            Err(_) => self.request.private_data.bytes(),
        }
    }
    /// Tells the peer of a queue pair and the Q_Key that the queue pair takes. `private_data`, at most 136 bytes, comes
    /// along.
    ///
    /// # Errors
    /// The private data is too long, or the peer waits no more.
    pub fn accept(self, qp: &QpControl<Ud>, qkey: Qkey, private_data: &[u8]) -> Result<(), ConnectionError> {
        let private_data = PrivateData::new(private_data)?;
        let resolution = Resolution::Found { qpn: qp.qpn(), qkey };
        self.answer(SidrAnswer { resolution, private_data })
    }
    /// Refuses. `private_data`, at most 136 bytes, comes along.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn reject(self, private_data: &[u8]) -> Result<(), ConnectionError> {
        let private_data = PrivateData::new(private_data)?;
        self.answer(SidrAnswer { resolution: Resolution::Refused(Refusal::REJECTED), private_data })
    }
    fn answer(&self, answer: SidrAnswer) -> Result<(), ConnectionError> {
        let Held { manager, id } = &self.held;
        Ok(manager.call(|state, now| state.machine.answer(now, *id, &answer))?)
    }
}

impl std::fmt::Debug for DatagramRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatagramRequest").field("from", &self.from).finish_non_exhaustive()
    }
}
