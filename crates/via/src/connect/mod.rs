//! Connections between VIs, over RDMA CM.

mod address;
mod hello;
mod listener;
pub(crate) mod peer;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hca_cm::wire::Reason;
use hca_cm::{ConnectParams, Connection, ConnectionError, connect_async};
use hca_verbs::Context;

pub use address::{Discriminator, NetAddress};
pub use listener::{ConnectionRequest, Listener};

use crate::queue_pair::Control;
use crate::tasks::{block_on, left};
use crate::vi::ViShared;
use crate::{Error, Reliability, Vi, ViAttributes};
use hello::{Hello, Kind, Refusal};

/// The attributes of the VI at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteAttributes {
    /// The level of reliability.
    pub reliability: Reliability,
    /// The most bytes of a message.
    pub max_transfer_size: u32,
    /// Whether it may be written by RDMA, in memory that allows it.
    pub enable_rdma_write: bool,
    /// Whether it may be read by RDMA, from memory that allows it.
    pub enable_rdma_read: bool,
}

impl From<&ViAttributes> for RemoteAttributes {
    fn from(attributes: &ViAttributes) -> Self {
        Self {
            reliability: attributes.reliability,
            max_transfer_size: attributes.max_transfer_size,
            enable_rdma_write: attributes.enable_rdma_write,
            enable_rdma_read: attributes.enable_rdma_read,
        }
    }
}

/// Why a VI can not be connected to one with these attributes.
fn mismatch(ours: &RemoteAttributes, theirs: &RemoteAttributes) -> Option<Refusal> {
    if ours.reliability != theirs.reliability {
        return Some(Refusal::Reliability);
    }
    (ours.max_transfer_size != theirs.max_transfer_size).then_some(Refusal::Mtu)
}

/// How often a request is repeated that was taken for a part of an older connection.
const MOST_STALE: u32 = 3;

/// Asks at each port of the discriminator, until one has it.
async fn ask(
    context: &Context,
    control: &Control,
    host: IpAddr,
    hello: &Hello,
    end: Option<Instant>,
) -> Result<(Connection, RemoteAttributes), Error> {
    let private_data = &hello.bytes()[..];
    for port in hello.remote.ports() {
        let to = SocketAddr::new(host, port);
        let mut stale = 0;
        let asked = loop {
            let params = ConnectParams { private_data, timeout: left(end), ..ConnectParams::default() };
            let asked = match control {
                Control::Rc(control) => connect_async(context, control, to, &params).await,
                Control::Uc(control) => connect_async(context, control, to, &params).await,
            };
            match asked {
                // This request has overtaken the word that an earlier one of this VI was given up, and has ended that.
                Err(ConnectionError::Rejected { reason: Reason::STALE_CONNECTION, .. })
                    if stale < MOST_STALE =>
                {
                    stale += 1;
                }
                asked => break asked,
            }
        };
        match asked.map_err(refusal) {
            Ok(connection) => {
                let theirs = Hello::parse(connection.private_data()).ok_or(Error::NoMatch)?;
                return Ok((connection, theirs.attributes));
            }
            Err(Error::NoMatch) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::NoMatch)
}

/// The error of a request that was not accepted.
fn refusal(error: ConnectionError) -> Error {
    match &error {
        ConnectionError::Rejected { reason: Reason::INVALID_SERVICE_ID, .. } => Error::NoMatch,
        ConnectionError::Rejected { private_data, .. } => {
            Refusal::parse(private_data).map_or(Error::Rejected, Refusal::error)
        }
        _ => Error::Connection(error),
    }
}

fn end_of(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

impl Vi {
    /// Connects to the program that listens at an address (`VipConnectRequest`), and waits until it has accepted; for
    /// 26 s without a `timeout`. `local` is the discriminator that it sees.
    ///
    /// # Errors
    /// The VI is not idle; no program listens there with the discriminator, the program has rejected, or its VI has
    /// other attributes; or no answer came in time.
    pub fn connect(
        &self,
        local: Discriminator,
        remote: &NetAddress,
        timeout: Option<Duration>,
    ) -> Result<RemoteAttributes, Error> {
        let vi = self.shared();
        let (attempt, control, attributes) = vi.begin()?;
        let hello = Hello { kind: Kind::ClientServer, local, remote: remote.discriminator, attributes };
        let end = end_of(timeout);
        let asked = block_on(ask(&vi.nic.context, &control, remote.host, &hello, end));
        let asked = asked.map_err(|error| timed_out(error, timeout));
        settle(vi, attempt, asked)
    }
}

/// An error that tells the whole time limit.
fn timed_out(error: Error, timeout: Option<Duration>) -> Error {
    match error {
        Error::Connection(ConnectionError::TimedOut(_)) => Error::TimedOut(timeout.unwrap_or_default()),
        error => error,
    }
}

/// Ends an attempt with what has come of it.
fn settle(
    vi: &Arc<ViShared>,
    attempt: u64,
    made: Result<(Connection, RemoteAttributes), Error>,
) -> Result<RemoteAttributes, Error> {
    let done = made.and_then(|(connection, remote)| {
        vi.succeed(attempt, connection, &remote, None)?;
        Ok(remote)
    });
    if done.is_err() {
        vi.fail(attempt, None);
    }
    done
}
