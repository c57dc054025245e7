//! Sides that connect by RDMA CM.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use hca::cm::{ConnectParams, DatagramListener, Listener, connect_with, resolve};
use hca_core::Mtu;

use super::{AnyQp, Endpoint, QKEY, Side};
use crate::Failure;
use crate::channel::ControlError;

/// The time that the other side has to connect.
const LIMIT: Duration = Duration::from_secs(10);

/// The port at which a side waits for the other one.
enum Port {
    Connections(Listener),
    Datagrams(DatagramListener),
}

/// A side that the other one can call.
pub(crate) struct Callable(Port);

impl Callable {
    /// The number of its port.
    pub(crate) fn port(&self) -> u16 {
        match &self.0 {
            Port::Connections(listener) => listener.address().port(),
            Port::Datagrams(listener) => listener.address().port(),
        }
    }
}

impl Side {
    /// Listens at a port of its own.
    pub(crate) fn listen(&mut self) -> Result<Callable, Failure> {
        let (context, any) = (self.pd.context(), SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0));
        Ok(Callable(match &self.qp {
            AnyQp::Rc(_) | AnyQp::Uc(_) => Port::Connections(Listener::bind(&context, any)?),
            AnyQp::Ud(qp, _) => {
                qp.activate(QKEY)?;
                Port::Datagrams(DatagramListener::bind(&context, any)?)
            }
        }))
    }
    /// Is called by the other side.
    pub(crate) fn be_called(&mut self, callable: &Callable, theirs: &Endpoint) -> Result<(), Failure> {
        self.take_window(theirs)?;
        let silent = || ControlError::Silent(LIMIT);
        match &callable.0 {
            Port::Connections(listener) => {
                let incoming = listener.accept_within(Some(LIMIT))?.ok_or_else(silent)?;
                self.connection = match &self.qp {
                    AnyQp::Rc(qp) => Some(incoming.accept(qp, b"")?),
                    AnyQp::Uc(qp) => Some(incoming.accept(qp, b"")?),
                    AnyQp::Ud(..) => None,
                };
            }
            Port::Datagrams(listener) => {
                let request = listener.accept_within(Some(LIMIT))?.ok_or_else(silent)?;
                if let AnyQp::Ud(qp, peer) = &mut self.qp {
                    *peer = Some(self.pd.create_ah(&theirs.qp.av())?.peer(theirs.qp.qpn, QKEY));
                    request.accept(qp, QKEY, b"")?;
                }
            }
        }
        Ok(())
    }
    /// Calls the other side at its port.
    pub(crate) fn call(&mut self, theirs: &Endpoint, port: u16, mtu: Mtu) -> Result<(), Failure> {
        self.take_window(theirs)?;
        let (context, at) = (self.pd.context(), SocketAddr::new(theirs.qp.gid.ip(), port));
        let params = ConnectParams { timeout: Some(LIMIT), mtu: Some(mtu), ..ConnectParams::default() };
        match &mut self.qp {
            AnyQp::Rc(qp) => self.connection = Some(connect_with(&context, qp, at, &params)?),
            AnyQp::Uc(qp) => self.connection = Some(connect_with(&context, qp, at, &params)?),
            AnyQp::Ud(qp, peer) => {
                qp.activate(QKEY)?;
                *peer = Some(resolve(&context, at, b"")?.peer(&self.pd)?);
            }
        }
        Ok(())
    }
}
