//! Both ends meet by RDMA CM, as programs of librdmacm do.

use std::net::{Ipv6Addr, SocketAddr};

use hca::Opened;
use hca::cm::wire::Bits;
use hca::cm::{
    ConnectParams, Connection, ConnectionError, DatagramListener, Listener, UDP_QKEY, connect_with, resolve,
};
use hca_perf::Failure;
use hca_perf::interrupt::{SLICE, interrupted, unless_interrupted};
use hca_verbs::{Connected, Endpoint, Qkey, QpControl, Qpn, Ud};

use super::{Dest, Meeting, PingpongError, STALL, tell_waiting};
use crate::args::PingpongArgs;
use crate::output::tell;

/// RC and UC.
pub(super) fn connected<S: Connected>(
    args: &PingpongArgs,
    opened: &Opened,
    qp: &QpControl<S>,
) -> Result<Meeting, Failure> {
    let connection = match args.host() {
        Some(host) => call(args, host, {
            let (context, qp, mtu) = (opened.context().clone(), qp.clone(), args.mtu);
            move |address| {
                let params =
                    ConnectParams { timeout: Some(STALL), mtu: Some(mtu), ..ConnectParams::default() };
                connect_with(&context, &qp, address, &params)
            }
        })?,
        None => accept(args, opened, qp)?,
    };
    let theirs = Dest::of(connection.remote());
    Ok(Meeting { theirs, client: args.host().is_some(), connection: Some(connection) })
}

fn accept<S: Connected>(
    args: &PingpongArgs,
    opened: &Opened,
    qp: &QpControl<S>,
) -> Result<Connection, Failure> {
    let listener = Listener::bind(opened.context(), at(args)).map_err(refuse(args))?;
    tell_waiting(args, listener.address(), Some(listener.address().ip()));
    let incoming = wait(args, || listener.accept_within(Some(SLICE)))?;
    tell!("called by {}", incoming.source());
    Ok(incoming.accept(qp, b"")?)
}

/// UD: the request carries the number of the client's queue pair, to which the server sends.
pub(super) fn datagrams(
    args: &PingpongArgs,
    opened: &Opened,
    qp: &QpControl<Ud>,
) -> Result<(Meeting, Qkey), Failure> {
    qp.activate(UDP_QKEY)?;
    let own = qp.endpoint();
    let (theirs, qkey) = match args.host() {
        Some(host) => {
            let (context, number) = (opened.context().clone(), own.qpn.raw().to_be_bytes());
            let found = call(args, host, move |address| resolve(&context, address, &number))?;
            (Endpoint { gid: found.gid, qpn: found.qpn, ..own }, found.qkey)
        }
        None => {
            let listener = DatagramListener::bind(opened.context(), at(args)).map_err(refuse(args))?;
            tell_waiting(args, listener.address(), Some(listener.address().ip()));
            let request = wait(args, || listener.accept_within(Some(SLICE)))?;
            let number = request.private_data().first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
            let qpn = number.and_then(Bits::<24>::new).ok_or(PingpongError::CmNumber)?;
            let gid = request.from();
            tell!("called by {}", gid.ip());
            request.accept(qp, UDP_QKEY, b"")?;
            (Endpoint { gid, qpn: Qpn::new(qpn.get()), ..own }, UDP_QKEY)
        }
    };
    let client = args.host().is_some();
    Ok((Meeting { theirs: Dest::of(&theirs), client, connection: None }, qkey))
}

/// Ends a connection: the client asks for it, and the server waits for it.
pub(super) fn part(meeting: Meeting) -> Result<(), Failure> {
    match meeting.connection {
        Some(connection) if meeting.client => connection.disconnect()?,
        Some(connection) => drop(connection.wait_disconnected(Some(STALL))?),
        None => {}
    }
    Ok(())
}

fn at(args: &PingpongArgs) -> SocketAddr {
    SocketAddr::new(args.bind.unwrap_or(Ipv6Addr::UNSPECIFIED.into()), args.port)
}

fn call<T: Send + 'static>(
    args: &PingpongArgs,
    host: &str,
    call: impl FnOnce((String, u16)) -> Result<T, ConnectionError> + Send + 'static,
) -> Result<T, Failure> {
    let (address, port, service) = ((host.to_owned(), args.port), args.port, args.service);
    let answer = unless_interrupted(move || call(address)).ok_or(PingpongError::Interrupted)?;
    Ok(answer.map_err(|source| PingpongError::Cm { host: host.to_owned(), port, service, source })?)
}

/// Waits for a request in short slices.
fn wait<T>(
    args: &PingpongArgs,
    mut accept: impl FnMut() -> Result<Option<T>, ConnectionError>,
) -> Result<T, PingpongError> {
    loop {
        match accept().map_err(refuse(args))? {
            Some(incoming) => return Ok(incoming),
            None if interrupted() => return Err(PingpongError::Interrupted),
            None => {}
        }
    }
}

fn refuse(args: &PingpongArgs) -> impl FnOnce(ConnectionError) -> PingpongError {
    let port = args.port;
    move |source| PingpongError::CmListen { port, source }
}
