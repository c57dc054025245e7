//! The connection manager of InfiniBand and RoCE: its messages, and a state machine that makes and ends connections by
//! them.
//!
//! A [`Machine`] is the connection manager of one port. Datagrams that peers have sent to queue pair 1, the program's
//! calls and the time go in; datagrams, and events for the program, come out. The machine does no I/O, starts no
//! thread, reads no clock and draws no random number. It creates and changes no queue pair either: the program does,
//! with the numbers of the messages.
//!
//! ```
//! use hca_cm::wire::{PrivateData, Rep, Req};
//! use hca_cm::{Config, Event, Machine, PortSpace, ServiceId, wire::Guid};
//! use hca_core::{Gid, Instant, Qpn};
//! use std::net::Ipv4Addr;
//!
//! let [here, there] = [1, 2].map(|last| Gid::from(Ipv4Addr::new(10, 0, 0, last)).into());
//! let mut client = Machine::new(Config { guid: Guid(1), seed: 1, ..Config::default() });
//! let mut server = Machine::new(Config { guid: Guid(2), seed: 2, ..Config::default() });
//! let service = ServiceId::of_port(PortSpace::Tcp, 7471);
//! server.listen(service, 16)?;
//!
//! let now = Instant::ZERO;
//! let request = Req { service_id: service, local_qpn: Qpn::new(17), ..Req::default() };
//! let id = client.connect(now, there, &request)?;
//! let req = client.poll_transmit().unwrap(); // … the network …
//! server.handle(now, here, &req.mad[..]);
//! let Some(Event::Request { id: asked, .. }) = server.poll_event() else { panic!() };
//! server.accept(now, asked, &Rep { local_qpn: Qpn::new(42), ..Rep::default() })?;
//! let rep = server.poll_transmit().unwrap();
//! client.handle(now, there, &rep.mad[..]);
//! let Some(Event::Reply { reply, .. }) = client.poll_event() else { panic!() };
//! assert_eq!(reply.local_qpn, Qpn::new(42));
//! client.ready(id, PrivateData::EMPTY)?; // … and the RTU goes to the server
//! # Ok::<(), hca_cm::CmError>(())
//! ```
//!
//! With the feature `service`, which is on by default, `Listener`, `connect`, `DatagramListener` and `resolve` run a
//! machine on queue pair 1 of a device, for programs that use the verbs.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | [`wire`] | the messages: REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP, LAP, APR |
//! | `annex` | [`ServiceId`], [`PortSpace`]; [`IpHeader`]: private data with addresses, as Linux's rdma_cm has it |
//! | `machine` | [`Machine`] and its [`Config`]; one file each for calls, messages, timers, resolutions |
//! | `service` | listeners, connections, resolutions and multicast groups for programs; one machine for each context |
//!
//! `DESIGN.md` has the rules.
#![forbid(unsafe_code)]

mod annex;
mod machine;
#[cfg(feature = "service")]
mod service;
pub mod wire;

pub use annex::{IpHeader, IpHeaderError, PortSpace, ServiceId};
pub use machine::{
    Cause, CmError, Config, ConnState, Counters, Event, Failure, Machine, Peer, Resolve, SidrAnswer, Transmit,
};
#[cfg(feature = "service")]
pub use service::{
    Agent, ConnectParams, Connection, ConnectionError, DatagramListener, DatagramRequest, DatagramService,
    Incoming, Listener, Sink, UDP_QKEY, connect, connect_async, connect_with, ephemeral_port, group, join,
    ports_to_bind, resolve, resolve_async,
};
