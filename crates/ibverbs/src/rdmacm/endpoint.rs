//! `rdma_getaddrinfo`, endpoints, and the events that programs write.

use core::ffi::{CStr, c_char, c_int};
use core::net::SocketAddr;
use core::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::abi::{RdmaAddrinfo, RdmaCmId, SockaddrStorage};
use super::border::{Field, Found, Registry, address, address_bytes, bytes, c_text, look_up, storage};
use super::channel::What;
use super::event::{Kind, acknowledge, complete, of};
use super::id::{IDS, Id, RC, UD};
use super::qp;
use crate::abi::IbvQpInitAttr;
use crate::entry::{Errno, INVALID, In, cancellable, counted, exports};
use crate::memory::Pd;
use crate::waiting::waiting;

/// Flags of `struct rdma_addrinfo`.
const PASSIVE: c_int = 1;
const NUMERIC_HOST: c_int = 2;
const FAMILY: c_int = 8;

const PS_TCP: c_int = 0x0106;
const PS_UDP: c_int = 0x0111;

/// A list of addresses that a program has: its first element has the others.
#[repr(C)]
pub(super) struct List {
    c: Field<RdmaAddrinfo>,
    from: SockaddrStorage,
    to: SockaddrStorage,
    connect: Vec<u8>,
    next: Option<Arc<List>>,
}

static LISTS: Registry<List> = Registry::new();

/// The wishes of a program.
#[derive(Default)]
pub(super) struct Hints {
    flags: c_int,
    family: c_int,
    qp_type: c_int,
    port_space: c_int,
    from: Option<SocketAddr>,
    to: Option<SocketAddr>,
    connect: Vec<u8>,
}

/// An address of a list, which no program has yet.
#[derive(Clone)]
pub(super) struct Info {
    flags: c_int,
    qp_type: c_int,
    port_space: c_int,
    from: Option<SocketAddr>,
    to: Option<SocketAddr>,
    connect: Vec<u8>,
}

fn optional(at: *const SockaddrStorage, len: u32) -> Result<Option<SocketAddr>, Errno> {
    if at.is_null() || len == 0 { Ok(None) } else { address(In::of(at.cast_mut().cast())).map(Some) }
}

impl Hints {
    fn new(given: In<RdmaAddrinfo>) -> Result<Self, Errno> {
        let Some(c) = given.opt() else { return Ok(Self::default()) };
        Ok(Self {
            flags: c.ai_flags,
            family: if c.ai_flags & FAMILY != 0 || c.ai_family != 0 { c.ai_family } else { 0 },
            qp_type: c.ai_qp_type,
            port_space: c.ai_port_space,
            from: optional(c.ai_src_addr, c.ai_src_len)?,
            to: optional(c.ai_dst_addr, c.ai_dst_len)?,
            connect: bytes(c.ai_connect, c.ai_connect_len),
        })
    }
    fn info(&self, qp_type: c_int, port_space: c_int) -> Info {
        let or = |said: c_int, found: c_int| if said != 0 { said } else { found };
        Info {
            flags: self.flags,
            qp_type: or(self.qp_type, qp_type),
            port_space: or(self.port_space, port_space),
            from: self.from,
            to: self.to,
            connect: self.connect.clone(),
        }
    }
    /// The addresses of a node and a service.
    fn look_up(&self, node: Option<&CStr>, service: Option<&CStr>) -> Result<Vec<Info>, Errno> {
        let is_datagram = self.qp_type == UD as c_int || self.port_space == PS_UDP;
        if node.is_none() && service.is_none() {
            let (qp_type, space) = if is_datagram { (UD, PS_UDP) } else { (RC, PS_TCP) };
            return Ok(vec![self.info(qp_type as c_int, space)]);
        }
        let is_passive = self.flags & PASSIVE != 0;
        let mut flags = if is_passive { libc::AI_PASSIVE } else { 0 };
        flags |= if self.flags & NUMERIC_HOST != 0 { libc::AI_NUMERICHOST } else { 0 };
        let socket_type = if is_datagram { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
        let failed = |e| Errno(if e == libc::EAI_MEMORY { libc::ENOMEM } else { libc::ENODATA });
        let found = look_up(node, service, flags, self.family, socket_type).map_err(failed)?;
        let info = |Found { address, socket_type, protocol }| {
            let qp_type = if socket_type == libc::SOCK_DGRAM { UD } else { RC };
            let space = if protocol == libc::IPPROTO_UDP { PS_UDP } else { PS_TCP };
            let info = self.info(qp_type as c_int, space);
            if is_passive { Info { from: Some(address), ..info } } else { Info { to: Some(address), ..info } }
        };
        Ok(found.into_iter().map(info).collect())
    }
}

/// Gives a list to the program.
fn give(infos: &[Info]) -> Result<*const RdmaAddrinfo, Errno> {
    let mut next: Option<Arc<List>> = None;
    for info in infos.iter().rev() {
        let len = |address: Option<SocketAddr>| address.map_or(0, |address| address_bytes(address) as u32);
        let family = info
            .to
            .or(info.from)
            .map_or(0, |address| if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 });
        let c = RdmaAddrinfo {
            ai_flags: info.flags,
            ai_family: family,
            ai_qp_type: info.qp_type,
            ai_port_space: info.port_space,
            ai_src_len: len(info.from),
            ai_dst_len: len(info.to),
            ai_src_addr: null(),
            ai_dst_addr: null(),
            ai_src_canonname: null(),
            ai_dst_canonname: null(),
            ai_route_len: 0,
            ai_route: null(),
            ai_connect_len: info.connect.len(),
            ai_connect: null(),
            ai_next: next.as_ref().map_or(null(), |next| next.c.at()),
        };
        let list = Arc::new(List {
            c: Field::new(c),
            from: storage(info.from),
            to: storage(info.to),
            connect: info.connect.clone(),
            next,
        });
        list.c.set(RdmaAddrinfo {
            ai_src_addr: if info.from.is_some() { &raw const list.from } else { null() },
            ai_dst_addr: if info.to.is_some() { &raw const list.to } else { null() },
            ai_connect: if list.connect.is_empty() { null() } else { list.connect.as_ptr() },
            ..c
        });
        next = Some(list);
    }
    let first = next.ok_or(Errno(libc::ENODATA))?;
    debug_assert_eq!(first.next.is_some(), infos.len() > 1);
    Ok(LISTS.give(&first).cast_const().cast())
}

/// The queue pair of an identifier, if the program asks for one.
fn create_qp(id: &Id, pd: *mut Pd, init: In<IbvQpInitAttr>) -> Result<(), Errno> {
    let Some(attr) = init.opt() else { return Ok(()) };
    let attr = IbvQpInitAttr { qp_type: id.c.qp_type.get(), ..*attr };
    init.set(attr)?;
    qp::create(id, pd, init)
}

/// An identifier that is bound, or has its route and its queue pair.
async fn create(info: &RdmaAddrinfo, pd: *mut Pd, init: In<IbvQpInitAttr>) -> Result<Arc<Id>, Errno> {
    let none = In::of(null_mut());
    let qp_type = u32::try_from(info.ai_qp_type).ok().filter(|kind| *kind != 0);
    let id = Id::create(none, null_mut(), info.ai_port_space as u32, qp_type)?;
    let mut unfinished = Unfinished(Some(Arc::clone(&id)));
    let from = optional(info.ai_src_addr, info.ai_src_len)?;
    if info.ai_flags & PASSIVE != 0 {
        let mut state = id.state();
        id.bind(&mut state, from.ok_or(INVALID)?)?;
        if !pd.is_null() {
            id.c.pd.set(pd);
        }
        state.of_requests = init.opt().map(|attr| Field::new(*attr));
    } else {
        id.resolve_addr(from, optional(info.ai_dst_addr, info.ai_dst_len)?.ok_or(INVALID)?)?;
        complete(&id).await?;
        id.resolve_route()?;
        complete(&id).await?;
        id.state().connect_data = bytes(info.ai_connect, info.ai_connect_len);
        create_qp(&id, pd, init)?;
    }
    unfinished.0 = None;
    Ok(id)
}
/// An identifier that the program does not get, unless it is finished.
struct Unfinished(Option<Arc<Id>>);
impl Drop for Unfinished {
    fn drop(&mut self) {
        self.0.iter().for_each(destroy);
    }
}
fn destroy(id: &Arc<Id>) {
    if !id.c.qp.get().is_null() {
        qp::destroy(id);
    }
    qp::destroy_srq(id);
    let _ = super::id::rdma_destroy_id(In::of(id.raw()));
}

/// Waits for a request to an endpoint that listens.
async fn request(listener: &Arc<Id>) -> Result<Arc<Id>, Errno> {
    if !listener.waits.load(Ordering::Relaxed) {
        return Err(INVALID);
    }
    listener.acknowledge_held();
    let event = listener.channel().event().await?;
    let found = of(event)?;
    if found.status != 0 || found.event != Kind::ConnectRequest as u32 {
        let _ = acknowledge(In::of(event));
        return Err(Errno(if found.status != 0 { found.status.abs() } else { libc::EINVAL }));
    }
    let id = IDS.get(In::of(found.id.cast_mut()))?;
    let attr = listener.state().of_requests.as_ref().map(Field::get);
    let made = attr.map_or(Ok(()), |mut attr| {
        let own = listener.c.pd.get();
        create_qp(&id, own, In::of(&raw mut attr))
    });
    if let Err(e) = made {
        let _ = acknowledge(In::of(event));
        destroy(&id);
        return Err(e);
    }
    // The event is the new identifier's, until its next call.
    id.c.event.set(event);
    Ok(id)
}

cancellable! {
    "RDMACM_1.4" fn rdma_resolve_addrinfo(id: In<RdmaCmId>, node: *const c_char, service: *const c_char, hints: In<RdmaAddrinfo>) -> c_int {
        waiting(|| async move {
            let id = IDS.get(id)?;
            if node.is_null() && service.is_null() && hints.raw().is_null() {
                return Err(INVALID);
            }
            let found = Hints::new(hints)?.look_up(c_text(node), c_text(service))?;
            id.state().found = found;
            id.note(What::Plain(Kind::AddrinfoResolved, 0));
            complete(&id).await?;
            Ok(0)
        }) as c_int
    }
    "RDMACM_1.0" fn rdma_create_ep(to: In<*mut RdmaCmId>, info: In<RdmaAddrinfo>, pd: *mut Pd, init: In<IbvQpInitAttr>) -> c_int {
        waiting(|| async move {
            if to.raw().is_null() {
                return Err(INVALID);
            }
            to.set(create(info.get()?, pd, init).await?.raw())?;
            Ok(0)
        }) as c_int
    }
    "RDMACM_1.0" fn rdma_get_request(listener: In<RdmaCmId>, to: In<*mut RdmaCmId>) -> c_int {
        waiting(|| async move {
            if to.raw().is_null() {
                return Err(INVALID);
            }
            to.set(request(&IDS.get(listener)?).await?.raw())?;
            Ok(0)
        }) as c_int
    }
}
exports! {
    "RDMACM_1.0" fn rdma_getaddrinfo(node: *const c_char, service: *const c_char, hints: In<RdmaAddrinfo>, to: In<*const RdmaAddrinfo>) -> c_int {
        counted(|| {
            if to.raw().is_null() || node.is_null() && service.is_null() && hints.raw().is_null() {
                return Err(INVALID);
            }
            let found = Hints::new(hints)?.look_up(c_text(node), c_text(service))?;
            to.set(give(&found)?)?;
            Ok(0)
        })
    }
    "RDMACM_1.0" fn rdma_freeaddrinfo(list: In<RdmaAddrinfo>) -> () {
        let _ = LISTS.take(list);
    }
    "RDMACM_1.4" fn rdma_query_addrinfo(id: In<RdmaCmId>, to: In<*const RdmaAddrinfo>) -> c_int {
        counted(|| {
            let id = IDS.get(id)?;
            if to.raw().is_null() {
                return Err(INVALID);
            }
            let found = id.state().found.clone();
            to.set(give(&found)?)?;
            Ok(0)
        })
    }
    "RDMACM_1.4" fn rdma_write_cm_event(id: In<RdmaCmId>, event: u32, status: c_int, arg: u64) -> c_int {
        counted(|| {
            const USER: u32 = 18;
            const INTERNAL: u32 = 19;
            let id = IDS.get(id)?;
            if !matches!(event, USER | INTERNAL) {
                return Err(INVALID);
            }
            id.note(What::User { kind: event, status, arg });
            Ok(0)
        })
    }
    "RDMACM_1.0" fn rdma_destroy_ep(id: In<RdmaCmId>) -> () {
        if let Ok(id) = IDS.get(id) {
            destroy(&id);
        }
    }
}
