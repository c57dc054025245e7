//! Events, and what taking one does.

use core::ffi::c_int;
use core::ptr::null;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hca::cm::wire::{Info, PrivateData, Reason, Rep, Req, Resolution};
use hca::cm::{Event, Failure, UDP_QKEY};
use hca::hca_core::{Gid, Qpn};

use super::abi::{RdmaCmEvent, RdmaConnParam, RdmaEventChannel, RdmaEventParam, RdmaUdParam};
use super::border::{Field, Registry};
use super::channel::{CHANNELS, Note, What};
use super::id::{Asked, IDS, Id, Phase};
use super::qp::{self, Link, path_to};
use crate::entry::{Errno, INVALID, In, cancellable, counted, exports, sleeping};

/// The kinds of events, in the numbering of `enum rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    AddrResolved = 0,
    RouteResolved = 2,
    ConnectRequest = 4,
    ConnectResponse = 5,
    ConnectError = 6,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    MulticastJoin = 12,
    MulticastError = 13,
    TimewaitExit = 15,
    AddrinfoResolved = 16,
}

/// The most private data that an event has.
const MAX_DATA: usize = 255;

/// An event that a program has.
#[repr(C)]
pub(super) struct Given {
    c: Field<RdmaCmEvent>,
    data: Field<[u8; MAX_DATA]>,
    /// The identifier that it is acknowledged for.
    of: Arc<Id>,
}

pub(super) static EVENTS: Registry<Given> = Registry::new();

/// The content of an event.
struct Content {
    kind: u32,
    status: c_int,
    param: Param,
    /// The identifier that the event is about, where that is not the one that it is acknowledged for.
    child: Option<Arc<Id>>,
}
enum Param {
    None,
    Conn(RdmaConnParam, Vec<u8>),
    Ud(RdmaUdParam, Vec<u8>),
    Arg(u64),
}

impl From<Kind> for Content {
    fn from(kind: Kind) -> Self {
        Self { kind: kind as u32, status: 0, param: Param::None, child: None }
    }
}

/// Does what an event of the channel asks for, and gives the event to the program. `None`: the event is not the
/// program's.
pub(super) fn occur(note: &Note) -> Option<*mut RdmaCmEvent> {
    let id = &note.of;
    let content = match &note.what {
        What::Plain(kind, status) => Some(Content { status: *status, ..(*kind).into() }),
        What::User { kind, status, arg } => {
            Some(Content { kind: *kind, status: *status, param: Param::Arg(*arg), child: None })
        }
        What::Joined { group, context } => super::multicast::joined(id, *group).map(|joined| {
            let of_group = of_datagrams(*group, Qpn::MULTICAST.raw(), UDP_QKEY.raw());
            let ud = RdmaUdParam { private_data: *context as *const u8, ..of_group };
            let (kind, status) =
                joined.map_or_else(|e| (Kind::MulticastError, -e.0), |()| (Kind::MulticastJoin, 0));
            Content { status, param: Param::Ud(ud, Vec::new()), ..kind.into() }
        }),
        What::Request(child) => request(id, child),
        What::Cm(event) => changed(id, event),
    }?;
    Some(give(id, &content))
}

fn give(of: &Arc<Id>, content: &Content) -> *mut RdmaCmEvent {
    let cleared = RdmaUdParam {
        private_data: null(),
        private_data_len: 0,
        ah_attr: crate::abi::IbvAhAttr::default(),
        qp_num: 0,
        qkey: 0,
    };
    let event = RdmaCmEvent {
        id: content.child.as_ref().unwrap_or(of).raw(),
        listen_id: if content.child.is_some() { of.raw() } else { null() },
        event: content.kind,
        status: content.status,
        param: RdmaEventParam { ud: cleared },
    };
    let given = Arc::new(Given { c: Field::new(event), data: Field::new([0; MAX_DATA]), of: Arc::clone(of) });
    let data = |bytes: &[u8]| {
        let mut all = [0; MAX_DATA];
        let bytes = &bytes[..bytes.len().min(MAX_DATA)];
        all[..bytes.len()].copy_from_slice(bytes);
        given.data.set(all);
        (if bytes.is_empty() { null() } else { given.data.at().cast::<u8>() }, bytes.len() as u8)
    };
    let param = match &content.param {
        Param::None => RdmaEventParam { conn: RdmaConnParam::NONE },
        Param::Arg(arg) => RdmaEventParam { arg: *arg },
        Param::Conn(conn, bytes) => {
            let (private_data, private_data_len) = data(bytes);
            RdmaEventParam { conn: RdmaConnParam { private_data, private_data_len, ..*conn } }
        }
        // The pointer of a group is the program's own.
        Param::Ud(ud, bytes) if bytes.is_empty() => RdmaEventParam { ud: *ud },
        Param::Ud(ud, bytes) => {
            let (private_data, private_data_len) = data(bytes);
            RdmaEventParam { ud: RdmaUdParam { private_data, private_data_len, ..*ud } }
        }
    };
    given.c.set(RdmaCmEvent { param, ..event });
    EVENTS.give(&given).cast()
}

/// A request: the program gets the identifier of it.
fn request(listener: &Arc<Id>, child: &Arc<Id>) -> Option<Content> {
    let state = child.state();
    let asked = state.asked?;
    let (device, comm) = (state.device.clone()?, state.comm?);
    if let Asked::Connection(_, request) = &asked
        && request.path_mtu > device.agent.mtu()
    {
        // The peer asks again with a smaller one.
        let (info, data) = (Info::EMPTY, PrivateData::EMPTY);
        let _ = device.agent.call(|cm, now| cm.reject(now, comm, Reason::INVALID_MTU, info, data));
        drop(state);
        let _ = IDS.take(In::of(child.raw()));
        child.stop();
        return None;
    }
    // From now on it outlives its listener.
    device.agent.call(|cm, _| cm.taken(comm));
    drop(state);
    let channel = listener.channel();
    if listener.waits() {
        child.migrate(In::of(core::ptr::null_mut())).ok()?;
    } else if !Arc::ptr_eq(&channel, &child.channel()) {
        // The listener has moved behind the request.
        child.migrate(In::of(channel.raw())).ok()?;
    }
    let param = match &asked {
        Asked::Connection(_, request) => Param::Conn(of_request(request), asked.data()),
        Asked::Datagram(peer, _) => Param::Ud(of_datagrams(peer.gid, 0, 0), asked.data()),
    };
    Some(Content { param, child: Some(Arc::clone(child)), ..Kind::ConnectRequest.into() })
}

/// The parameters of a request, as its receiver has them: the peer's depth is what is served here.
fn of_request(request: &Req) -> RdmaConnParam {
    RdmaConnParam {
        private_data: null(),
        private_data_len: 0,
        responder_resources: request.initiator_depth,
        initiator_depth: request.responder_resources,
        flow_control: request.flow_control.into(),
        retry_count: request.retry_count.get() as u8,
        rnr_retry_count: request.rnr_retry_count.get() as u8,
        srq: request.srq.into(),
        qp_num: request.local_qpn.raw(),
    }
}
fn of_reply(reply: &Rep) -> RdmaConnParam {
    RdmaConnParam {
        private_data: null(),
        private_data_len: 0,
        responder_resources: reply.initiator_depth,
        initiator_depth: reply.responder_resources,
        flow_control: reply.flow_control.into(),
        retry_count: 0,
        rnr_retry_count: reply.rnr_retry_count.get() as u8,
        srq: reply.srq.into(),
        qp_num: reply.local_qpn.raw(),
    }
}
/// The destination of datagrams to a peer or a group.
fn of_datagrams(gid: Gid, qp_num: u32, qkey: u32) -> RdmaUdParam {
    RdmaUdParam { private_data: null(), private_data_len: 0, ah_attr: path_to(gid, 0), qp_num, qkey }
}

/// An event of the connection or the resolution.
fn changed(id: &Arc<Id>, event: &Event) -> Option<Content> {
    let timed_out = -libc::ETIMEDOUT;
    match event {
        Event::Reply { reply, .. } => accepted(id, reply),
        Event::Established { .. } => {
            id.state().phase = Phase::Connected;
            Some(Kind::Established.into())
        }
        Event::Rejected { reason: Reason::INVALID_MTU, .. } if super::connect::again(id) => None,
        Event::Rejected { reason: Reason::INVALID_SERVICE_ID, .. } if super::later::repeat(id) => None,
        Event::Rejected { reason, private_data, .. } => {
            ended(id);
            let data = private_data.bytes().to_vec();
            let param = Param::Conn(RdmaConnParam::NONE, data);
            Some(Content { status: reason.0.into(), param, ..Kind::Rejected.into() })
        }
        Event::Failed { failure: Failure::NoListener, .. } => None,
        Event::Failed { .. } | Event::Unresolved { .. } => {
            ended(id);
            Some(Content { status: timed_out, ..Kind::Unreachable.into() })
        }
        Event::Disconnected { .. } | Event::DisconnectDone { answered: true, .. } => disconnected(id, 0),
        Event::DisconnectDone { .. } => disconnected(id, timed_out),
        Event::Gone { .. } => {
            let state = id.state();
            let had_connection = state.phase == Phase::Ended && !state.has_failed;
            (had_connection && state.link.is_some()).then(|| Kind::TimewaitExit.into())
        }
        Event::Resolved { from, resolution, private_data, .. } => match resolution {
            Resolution::Found { qpn, qkey } => {
                id.state().phase = Phase::Connected;
                let ud = of_datagrams(from.gid, qpn.raw(), qkey.raw());
                let param = Param::Ud(ud, private_data.bytes().to_vec());
                Some(Content { param, ..Kind::Established.into() })
            }
            Resolution::Refused(refusal) => {
                ended(id);
                let status = refusal.status().0.into();
                let param = Param::Ud(of_datagrams(from.gid, 0, 0), private_data.bytes().to_vec());
                Some(Content { status, param, ..Kind::Unreachable.into() })
            }
        },
        _ => None,
    }
}

/// The connection came to nothing: the queue pair gives its requests back.
fn ended(id: &Id) {
    let mut state = id.state();
    (state.phase, state.link) = (Phase::Ended, None);
    drop(state);
    qp::stop(id);
}
fn disconnected(id: &Id, status: c_int) -> Option<Content> {
    let mut state = id.state();
    state.phase = Phase::Ended;
    (!state.has_failed).then(|| Content { status, ..Kind::Disconnected.into() })
}

/// The peer has accepted: the queue pair becomes ready, and the peer is told. A program with a queue pair of its own
/// does that itself.
fn accepted(id: &Arc<Id>, reply: &Rep) -> Option<Content> {
    let mut state = id.state();
    let (device, comm, (peer, request)) = (state.device.clone()?, state.comm?, state.sent?);
    state.link = Some(Link::active(peer, &request, reply));
    state.remote_ece = reply.ece;
    (state.responder_resources, state.initiator_depth) = (reply.initiator_depth, reply.responder_resources);
    let param = Param::Conn(of_reply(reply), reply.private_data.bytes().to_vec());
    if id.c.qp.get().is_null() {
        return Some(Content { param, ..Kind::ConnectResponse.into() });
    }
    let made = qp::ready(id, &state).and_then(|()| {
        let told = device.agent.call(|cm, _| cm.ready(comm, PrivateData::EMPTY));
        told.map_err(|_| Errno(libc::ECONNRESET))
    });
    if let Err(e) = made {
        state.has_failed = true;
        state.phase = Phase::Ended;
        let (info, data) = (Info::EMPTY, PrivateData::EMPTY);
        let _ = device.agent.call(|cm, now| cm.reject(now, comm, Reason::NO_RESOURCES, info, data));
        drop(state);
        qp::stop(id);
        return Some(Content { status: -e.0, ..Kind::ConnectError.into() });
    }
    state.phase = Phase::Connected;
    Some(Content { param, ..Kind::Established.into() })
}

/// The program has handled an event.
pub(super) fn acknowledge(event: In<RdmaCmEvent>) -> Result<(), Errno> {
    EVENTS.take(event)?.of.acknowledged();
    Ok(())
}

/// Waits for the event of a call, of an identifier whose calls wait.
pub(super) async fn complete(id: &Arc<Id>) -> Result<(), Errno> {
    if !id.waits.load(Ordering::Relaxed) {
        return Ok(());
    }
    id.acknowledge_held();
    let event = id.channel().event().await?;
    id.c.event.set(event);
    let given = EVENTS.get(In::of(event))?;
    let RdmaCmEvent { event: kind, status, .. } = given.c.get();
    match status {
        0 => Ok(()),
        _ if kind == Kind::Rejected as u32 => Err(Errno(libc::ECONNREFUSED)),
        status => Err(Errno(status.abs())),
    }
}

/// The kind and the identifier of an event that a program has.
pub(super) fn of(event: *mut RdmaCmEvent) -> Result<RdmaCmEvent, Errno> {
    Ok(EVENTS.get(In::of(event))?.c.get())
}

cancellable! {
    "RDMACM_1.0" fn rdma_get_cm_event(channel: In<RdmaEventChannel>, to: In<*mut RdmaCmEvent>) -> c_int {
        sleeping(|slept| {
            if to.raw().is_null() {
                return Err(INVALID);
            }
            match CHANNELS.get(channel)?.look(slept)? {
                Ok(event) => to.set(event)?,
                Err(sleep) => return Ok(Some(sleep)),
            }
            Ok(None)
        })
    }
}
exports! {
    "RDMACM_1.0" fn rdma_ack_cm_event(event: In<RdmaCmEvent>) -> c_int {
        counted(|| acknowledge(event).map(|()| 0))
    }
}
