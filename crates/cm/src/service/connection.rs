//! Connections: asking for them, and ending them.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hca_verbs::{
    AckTimeout, ConnectOptions, Connected, Context, Endpoint, Gid, Lid, Mtu, Psn, QpControl, QpType,
};

use super::ConnectionError;
use super::manager::{End, Held, Manager, State};
use super::ports::ephemeral_port;
use super::wait::{Subject, block, block_on};
use crate::wire::{Bits, CmTimeout, Info, Path, PrivateData, Reason, Rep, Req, Transport};
use crate::{IpHeader, PortSpace, ServiceId};

/// The time that a message of the connection manager has for its answer: 1.07 s, as in Linux.
pub(super) const RESPONSE_TIMEOUT: CmTimeout = CmTimeout::new(18);
/// Retransmissions of a message, as in Linux.
pub(super) const MAX_RETRIES: u32 = 15;
/// The time that a packet and its acknowledgement take on a RoCE network, as Linux assumes: 0.54 s.
const LOCAL_ACK_TIMEOUT: AckTimeout = AckTimeout::new(17);
/// The LID of a path that is found by GIDs alone.
const PERMISSIVE_LID: Lid = Lid::new(0xffff);

/// An established connection. Dropped, it is disconnected.
///
/// Its queue pair goes to the error state when the peer disconnects, so that all its requests come back.
#[derive(Debug)]
pub struct Connection {
    held: Held,
    remote: Endpoint,
    private_data: Vec<u8>,
}

/// The options of a connect: private data, time limit, path MTU, own port.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectParams<'a> {
    /// At most 56 bytes, which come to the listener with the request.
    pub private_data: &'a [u8],
    /// The time until the connection is established; `None` leaves it to the retransmissions, which take 26 s where no
    /// peer answers.
    pub timeout: Option<Duration>,
    /// The path MTU to begin with; `None` takes the port's. Where the peer's port carries less, the next smaller one is
    /// asked for.
    pub mtu: Option<Mtu>,
    /// The own port, which the listener is told; `None` chooses one.
    pub source_port: Option<u16>,
}

/// Connects a queue pair to the service that listens at an address. `private_data`, at most 56 bytes, comes to the
/// listener with the request.
///
/// ```no_run
/// # use hca_verbs::*;
/// # fn example(context: &Context, qp: &QueuePair<Rc>) -> Result<(), Box<dyn std::error::Error>> {
/// let connection = hca_cm::connect(context, qp, "10.0.0.2:7471", b"hello")?;
/// println!("the server says {:?}", connection.private_data());
/// # Ok(()) }
/// ```
///
/// # Errors
/// The address, a rejection, no answer (after 26 s), or the queue pair.
pub fn connect<S: Connected>(
    context: &Context,
    qp: &QpControl<S>,
    address: impl ToSocketAddrs,
    private_data: &[u8],
) -> Result<Connection, ConnectionError> {
    connect_with(context, qp, address, &ConnectParams { private_data, ..ConnectParams::default() })
}

/// As [`connect`], with all parameters.
///
/// # Errors
/// As [`connect`], and [`ConnectionError::TimedOut`].
pub fn connect_with<S: Connected>(
    context: &Context,
    qp: &QpControl<S>,
    address: impl ToSocketAddrs,
    params: &ConnectParams<'_>,
) -> Result<Connection, ConnectionError> {
    block(connect_async(context, qp, first_address(address)?, params))
}

/// As [`connect_with`], for tasks of any runtime. A dropped future takes the request back.
///
/// ```no_run
/// # use hca_verbs::*;
/// # async fn example(context: &Context, qp: &AsyncQp<Rc>) -> Result<(), Box<dyn std::error::Error>> {
/// use hca_cm::{ConnectParams, connect_async};
/// use std::time::{Duration, Instant};
///
/// let params = ConnectParams { timeout: Some(Duration::from_secs(3)), ..ConnectParams::default() };
/// let connection = connect_async(context, qp, "10.0.0.2:7471".parse()?, &params).await?;
/// qp.send(Inline(b"over the connection")).await?;
/// connection.disconnected().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// As [`connect_with`].
pub async fn connect_async<S: Connected>(
    context: &Context,
    qp: &QpControl<S>,
    address: SocketAddr,
    params: &ConnectParams<'_>,
) -> Result<Connection, ConnectionError> {
    let manager = Manager::of(context)?;
    let port = params.source_port.unwrap_or_else(ephemeral_port);
    let header = IpHeader::new(SocketAddr::new(manager.gid.ip(), port), address.ip())?;
    let data = header.with_data(params.private_data)?;
    let end = params.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut mtu = params.mtu.unwrap_or(qp.endpoint().mtu);
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        match attempt(&manager, qp, address, mtu, data, left).await {
            // The path carries less: the next smaller MTU.
            Err(ConnectionError::Rejected { reason: Reason::INVALID_MTU, .. }) if mtu > Mtu::B256 => {
                mtu = Mtu::from_bytes(mtu.bytes() / 2).expect("a power of two above 256");
            }
            Err(ConnectionError::TimedOut(_)) => {
                return Err(ConnectionError::TimedOut(params.timeout.unwrap_or_default()));
            }
            done => return done,
        }
    }
}

pub(super) fn first_address(address: impl ToSocketAddrs) -> Result<SocketAddr, ConnectionError> {
    let none = || std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    let found = address.to_socket_addrs().and_then(|mut all| all.next().ok_or_else(none));
    found.map_err(ConnectionError::Address)
}

async fn attempt<S: Connected>(
    manager: &Arc<Manager>,
    qp: &QpControl<S>,
    to: SocketAddr,
    mtu: Mtu,
    private_data: PrivateData<{ Req::PRIVATE_BYTES }>,
    timeout: Option<Duration>,
) -> Result<Connection, ConnectionError> {
    let ours = Endpoint { mtu, ..qp.endpoint() };
    let peer = Gid::from(to.ip());
    let request = Req {
        service_id: ServiceId::of_port(PortSpace::Tcp, to.port()),
        private_data,
        ..request(&ours, peer)
    };
    let held = manager.connect(peer, &request, timeout)?;
    let id = held.id;
    let reply = manager.until(Subject::Id(id), |state| {
        let conn = state.conns.get_mut(&id)?;
        conn.end.clone().map(Err).or_else(|| conn.reply.take().map(Ok))
    });
    let reply = reply.await?.map_err(ended)?;
    let remote = Endpoint {
        service: ours.service,
        qpn: reply.local_qpn,
        psn: ours.psn,
        mtu,
        rd_atomic: reply.responder_resources,
        gid: peer,
        lid: Lid::default(),
    };
    let options = options(reply.starting_psn, reply.rnr_retry_count);
    if let Err(e) = qp.connect(&remote, &options) {
        let (info, none) = (Info::EMPTY, PrivateData::EMPTY);
        let _ = manager.call(|state, now| state.machine.reject(now, id, Reason::NO_RESOURCES, info, none));
        return Err(e.into());
    }
    stop_at_the_end(&held, qp);
    manager.call(|state, _| {
        state.take_time(id);
        state.machine.ready(id, PrivateData::EMPTY)
    })?;
    Ok(Connection { held, remote, private_data: reply.private_data.bytes().to_vec() })
}

/// The settings of a connection: each side's first PSN is the other side's choice.
pub(super) fn options(psn: Psn, rnr_retry_count: Bits<3>) -> ConnectOptions {
    ConnectOptions { psn: Some(psn), rnr_retry: rnr_retry_count.get() as u8, ..ConnectOptions::default() }
}

/// Has the queue pair stopped when the peer ends the connection.
pub(super) fn stop_at_the_end<S: Connected>(held: &Held, qp: &QpControl<S>) {
    let qp = qp.clone();
    held.manager.stop_with(held.id, move || {
        if let Err(error) = qp.to_error() {
            tracing::debug!(%error, "the queue pair of a connection that has ended is gone");
        }
    });
}

/// A request without service and private data.
pub(super) fn request(ours: &Endpoint, peer: Gid) -> Req {
    Req {
        local_qpn: ours.qpn,
        responder_resources: ours.rd_atomic,
        initiator_depth: ours.rd_atomic,
        remote_response_timeout: RESPONSE_TIMEOUT,
        transport: match ours.service {
            QpType::Uc => Transport::Uc,
            QpType::XrcIni => Transport::Xrc,
            _ => Transport::Rc,
        },
        flow_control: true,
        starting_psn: ours.psn,
        local_response_timeout: RESPONSE_TIMEOUT,
        retry_count: Bits::MAX,
        pkey: hca_core::Pkey::DEFAULT,
        path_mtu: ours.mtu,
        rnr_retry_count: Bits::MAX,
        max_cm_retries: Bits::at_most(MAX_RETRIES),
        primary: Path {
            local_lid: PERMISSIVE_LID,
            remote_lid: PERMISSIVE_LID,
            local_gid: ours.gid,
            remote_gid: peer,
            hop_limit: 64,
            local_ack_timeout: LOCAL_ACK_TIMEOUT,
            ..Path::default()
        },
        ..Req::default()
    }
}

/// The reply to a request, without private data.
pub(super) fn reply(ours: &Endpoint, request: &Req) -> Rep {
    Rep {
        local_qpn: ours.qpn,
        starting_psn: ours.psn,
        responder_resources: ours.rd_atomic,
        initiator_depth: ours.rd_atomic.min(request.responder_resources),
        flow_control: request.flow_control,
        rnr_retry_count: Bits::MAX,
        ..Rep::default()
    }
}

pub(super) fn ended(end: End) -> ConnectionError {
    match end {
        End::Rejected(reason, private_data) => ConnectionError::Rejected { reason, private_data },
        End::Failed(failure) => ConnectionError::Failed(failure),
        End::TimedOut => ConnectionError::TimedOut(Duration::ZERO),
        End::Disconnected | End::Done => ConnectionError::Disconnected,
    }
}

impl Connection {
    pub(super) fn new(held: Held, remote: Endpoint, private_data: Vec<u8>) -> Self {
        Self { held, remote, private_data }
    }
    /// The peer's queue pair, with the path MTU that both sides use.
    pub fn remote(&self) -> &Endpoint {
        &self.remote
    }
    /// The private data that the peer sent with its last message of the connection: that of its reply, or, on the side
    /// that accepted, that with which the peer said that it is ready. It has as many bytes as the message has room for;
    /// those behind the peer's data are 0.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }
    /// Whether neither side has ended the connection.
    pub fn is_connected(&self) -> bool {
        let Held { manager, id } = &self.held;
        manager.call(|state, _| state.conns.get(id).is_some_and(|conn| conn.end.is_none()))
    }
    /// Waits until the connection has ended; for ever without a `timeout`. Returns whether it has.
    ///
    /// # Errors
    /// The connection manager has stopped.
    pub fn wait_disconnected(&self, timeout: Option<Duration>) -> Result<bool, ConnectionError> {
        Ok(block_on(self.disconnected(), timeout).transpose()?.is_some())
    }
    /// As [`wait_disconnected`](Self::wait_disconnected), for tasks.
    ///
    /// # Errors
    /// As there.
    pub async fn disconnected(&self) -> Result<(), ConnectionError> {
        let Held { manager, id } = &self.held;
        let has_ended = |state: &mut State| state.conns.get(id)?.end.as_ref().map(drop);
        manager.until(Subject::Id(*id), has_ended).await
    }
    /// Ends the connection, and waits for the peer's answer. The queue pair goes to the error state.
    ///
    /// # Errors
    /// The connection manager has stopped. A connection that has ended is no error.
    pub fn disconnect(self) -> Result<(), ConnectionError> {
        block(self.disconnect_async())
    }
    /// As [`disconnect`](Self::disconnect), for tasks. The peer is asked at the first poll, even if the future is
    /// dropped after it.
    ///
    /// # Errors
    /// As there.
    pub async fn disconnect_async(self) -> Result<(), ConnectionError> {
        let Held { manager, id } = &self.held;
        let begun = manager.call(|state, now| state.machine.disconnect(now, *id, PrivateData::EMPTY));
        if begun.is_ok() { self.disconnected().await } else { Ok(()) }
    }
}
