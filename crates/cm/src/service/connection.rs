//! Connections: asking for them, and ending them.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use hca_verbs::{AckTimeout, ConnectOptions, Connected, Context, Endpoint, Gid, Lid, Mtu, QpControl, QpType};

use super::ConnectionError;
use super::manager::{End, Manager, Status};
use crate::wire::{Bits, CmTimeout, CommId, Info, Path, PrivateData, Reason, Rep, Req, Transport};
use crate::{IpHeader, Peer, PortSpace, ServiceId};

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
    manager: Held,
    peer: Gid,
    private_data: Vec<u8>,
}

/// A connection's right to be ended.
pub(super) struct Held {
    pub(super) manager: Arc<Manager>,
    pub(super) id: CommId,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.id.fmt(f)
    }
}
impl Drop for Held {
    fn drop(&mut self) {
        self.manager.call(|state, now| state.forget(now, self.id));
    }
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
    let manager = Manager::of(context)?;
    let to = first_address(address)?;
    let mut mtu = qp.endpoint().mtu;
    loop {
        match attempt(&manager, qp, to, mtu, private_data) {
            // The path carries less: the next smaller MTU.
            Err(ConnectionError::Rejected { reason: Reason::INVALID_MTU, .. }) if mtu > Mtu::B256 => {
                mtu = Mtu::from_bytes(mtu.bytes() / 2).expect("a power of two above 256");
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

fn attempt<S: Connected>(
    manager: &Arc<Manager>,
    qp: &QpControl<S>,
    to: SocketAddr,
    mtu: Mtu,
    private_data: &[u8],
) -> Result<Connection, ConnectionError> {
    let ours = Endpoint { mtu, ..qp.endpoint() };
    let source = SocketAddr::new(manager.gid.ip(), manager.source_port());
    let data = IpHeader::new(source, to.ip())?.with_data(private_data)?;
    let peer = Gid::from(to.ip());
    let request = Req {
        service_id: ServiceId::of_port(PortSpace::Tcp, to.port()),
        private_data: data,
        ..request(&ours, peer)
    };
    let id = manager.call(|state, now| {
        let id = state.machine.connect(now, Peer { gid: peer, lid: Lid::default() }, &request)?;
        state.conns.insert(id, Status::default());
        Ok::<_, ConnectionError>(id)
    })?;
    let held = Held { manager: Arc::clone(manager), id };
    let reply = manager.wait(None, |state| {
        let conn = state.conns.get_mut(&id)?;
        conn.end.clone().map(Err).or_else(|| conn.reply.take().map(Ok))
    })?;
    let (_, reply) = reply.expect("without a timeout").map_err(ended)?;
    let remote = Endpoint {
        service: ours.service,
        qpn: reply.local_qpn,
        psn: reply.starting_psn,
        mtu,
        rd_atomic: reply.responder_resources,
        gid: peer,
        lid: Lid::default(),
    };
    let options =
        ConnectOptions { rnr_retry: reply.rnr_retry_count.get() as u8, ..ConnectOptions::default() };
    if let Err(e) = qp.connect(&remote, &options) {
        let (info, none) = (Info::EMPTY, PrivateData::EMPTY);
        let _ = manager.call(|state, now| state.machine.reject(now, id, Reason::NO_RESOURCES, info, none));
        return Err(e.into());
    }
    stop_at_the_end(&held, qp);
    manager.call(|state, _| state.machine.ready(id, PrivateData::EMPTY))?;
    Ok(Connection { manager: held, peer, private_data: reply.private_data.bytes().to_vec() })
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
fn request(ours: &Endpoint, peer: Gid) -> Req {
    Req {
        local_qpn: ours.qpn,
        responder_resources: ours.rd_atomic,
        initiator_depth: ours.rd_atomic,
        remote_response_timeout: RESPONSE_TIMEOUT,
        transport: if ours.service == QpType::Uc { Transport::Uc } else { Transport::Rc },
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
        End::Disconnected | End::Done => ConnectionError::Disconnected,
    }
}

impl Connection {
    pub(super) fn new(manager: Held, peer: Gid, private_data: Vec<u8>) -> Self {
        Self { manager, peer, private_data }
    }
    /// The GID of the peer's port.
    pub fn peer(&self) -> Gid {
        self.peer
    }
    /// The private data that the peer sent with its last message of the connection: that of its reply, or, on the side
    /// that accepted, that with which the peer said that it is ready. It has as many bytes as the message has room for;
    /// those behind the peer's data are 0.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }
    /// Whether neither side has ended the connection.
    pub fn is_connected(&self) -> bool {
        let id = self.manager.id;
        self.manager.manager.call(|state, _| state.conns.get(&id).is_some_and(|conn| conn.end.is_none()))
    }
    /// Waits until the connection has ended; for ever without a `timeout`. Returns whether it has.
    ///
    /// # Errors
    /// The connection manager has stopped.
    pub fn wait_disconnected(&self, timeout: Option<Duration>) -> Result<bool, ConnectionError> {
        let id = self.manager.id;
        let ended = self.manager.manager.wait(timeout, |state| state.conns.get(&id)?.end.clone())?;
        Ok(ended.is_some())
    }
    /// Ends the connection, and waits for the peer's answer. The queue pair goes to the error state.
    ///
    /// # Errors
    /// The connection manager has stopped. A connection that has ended is no error.
    pub fn disconnect(self) -> Result<(), ConnectionError> {
        let id = self.manager.id;
        let manager = &self.manager.manager;
        let begun = manager.call(|state, now| state.machine.disconnect(now, id, PrivateData::EMPTY));
        if begun.is_ok() {
            manager.wait(None, |state| state.conns.get(&id)?.end.clone())?;
        }
        Ok(())
    }
}
