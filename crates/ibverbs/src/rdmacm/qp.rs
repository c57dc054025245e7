//! Queue pairs of identifiers, and their transitions.

use core::ffi::c_int;
use core::hash::BuildHasher;
use std::hash::RandomState;

use hca::cm::UDP_QKEY;
use hca::cm::wire::{Ece, Rep, Req, Transport};
use hca::hca_core::{Gid, Mtu};

use super::abi::{QpInitAttrExHead, RdmaCmId};
use super::id::{IDS, Id, RC, State, UC, UD};
use crate::abi::{IbvAhAttr, IbvQpAttr, IbvQpCap, IbvQpInitAttr, IbvSrqInitAttr, IbvSrqInitAttrEx};
use crate::cq::{
    CompChannel, Cq, ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq,
};
use crate::entry::{Errno, INVALID, In, counted, done, exports, made, pointer};
use crate::memory::Pd;
use crate::qp::{Qp, create_qp_ex, ibv_create_qp, ibv_destroy_qp, ibv_destroy_srq, ibv_modify_qp};
use crate::xrc::{INITIATOR, TARGET};

/// States of `enum ibv_qp_state`.
const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;
const ERROR: u32 = 6;
/// The index of the GID that connections have, of those that the port has.
pub(super) const SGID_INDEX: u8 = 1;
/// The path MTU is told in the request.
const HOP_LIMIT: u8 = 64;

/// Bits of `enum ibv_srq_init_attr_mask`.
const SRQ_TYPE: u32 = 1;
const SRQ_PD: u32 = 1 << 1;
const SRQ_XRCD: u32 = 1 << 2;
const SRQ_CQ: u32 = 1 << 3;

/// Bits of `enum ibv_qp_attr_mask`: those of each transition.
mod mask {
    pub(super) const STATE: u32 = 1;
    const ACCESS_FLAGS: u32 = 1 << 3;
    const PKEY_INDEX: u32 = 1 << 4;
    const PORT: u32 = 1 << 5;
    const QKEY: u32 = 1 << 6;
    const AV: u32 = 1 << 7;
    const PATH_MTU: u32 = 1 << 8;
    const TIMEOUT: u32 = 1 << 9;
    const RETRY_CNT: u32 = 1 << 10;
    const RNR_RETRY: u32 = 1 << 11;
    const RQ_PSN: u32 = 1 << 12;
    const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    const MIN_RNR_TIMER: u32 = 1 << 15;
    const SQ_PSN: u32 = 1 << 16;
    const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    const DEST_QPN: u32 = 1 << 20;

    pub(super) const INIT: u32 = STATE | PKEY_INDEX | PORT | ACCESS_FLAGS;
    pub(super) const UD_INIT: u32 = STATE | PKEY_INDEX | PORT | QKEY;
    pub(super) const UC_RTR: u32 = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN;
    pub(super) const RC_RTR: u32 = UC_RTR | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
    pub(super) const UD_RTS: u32 = STATE | SQ_PSN;
    pub(super) const RC_RTS: u32 = UD_RTS | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC;
}

/// The numbers of a connection, by which its queue pair becomes ready.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub(super) peer: Gid,
    pub(super) mtu: Mtu,
    pub(super) dest_qpn: u32,
    /// The first PSN of the peer, which this side has chosen.
    pub(super) rq_psn: u32,
    sq_psn: u32,
    pub(super) retry_count: u8,
    rnr_retry: u8,
    timeout: u8,
    traffic_class: u8,
}

/// A starting PSN that cannot be guessed.
pub(super) fn fresh_psn() -> u32 {
    RandomState::new().hash_one(0) as u32 & 0xff_ffff
}

impl Link {
    /// The numbers of a peer's request.
    pub(super) fn passive(peer: Gid, request: &Req) -> Self {
        Self {
            peer,
            mtu: request.path_mtu,
            dest_qpn: request.local_qpn.raw(),
            rq_psn: fresh_psn(),
            sq_psn: request.starting_psn.raw(),
            retry_count: request.retry_count.get() as u8,
            rnr_retry: request.rnr_retry_count.get() as u8,
            timeout: request.primary.local_ack_timeout.encoding(),
            traffic_class: request.primary.traffic_class,
        }
    }
    /// The numbers of a request of this side and of the peer's reply.
    pub(super) fn active(peer: Gid, request: &Req, reply: &Rep) -> Self {
        let is_xrc = request.transport == Transport::Xrc;
        Self {
            peer,
            mtu: request.path_mtu,
            dest_qpn: if is_xrc { reply.local_eecn } else { reply.local_qpn }.raw(),
            rq_psn: request.starting_psn.raw(),
            sq_psn: reply.starting_psn.raw(),
            retry_count: request.retry_count.get() as u8,
            rnr_retry: reply.rnr_retry_count.get() as u8,
            timeout: request.primary.local_ack_timeout.encoding(),
            traffic_class: request.primary.traffic_class,
        }
    }
}

/// The path to a peer, or to a group.
pub(super) fn path_to(gid: Gid, traffic_class: u8) -> IbvAhAttr {
    let half = |at: usize| u64::from_ne_bytes(gid.0[at..at + 8].try_into().expect("8 bytes"));
    IbvAhAttr {
        dgid: [half(0), half(8)],
        sgid_index: SGID_INDEX,
        hop_limit: HOP_LIMIT,
        traffic_class,
        is_global: 1,
        port_num: 1,
        ..IbvAhAttr::default()
    }
}

/// The attributes of a transition, and their mask.
fn attributes(id: &Id, state: &State, to: u32) -> Result<(IbvQpAttr, u32), Errno> {
    const REMOTE_WRITE: u32 = 1 << 1;
    const REMOTE_READ_AND_ATOMIC: u32 = 1 << 2 | 1 << 3;
    let kind = id.c.qp_type.get();
    let attr = IbvQpAttr { qp_state: to, port_num: 1, ..IbvQpAttr::default() };
    if kind == UD {
        let attr = IbvQpAttr { qkey: UDP_QKEY.raw(), ..attr };
        return match to {
            INIT => Ok((attr, mask::UD_INIT)),
            RTR => Ok((attr, mask::STATE)),
            RTS => Ok((attr, mask::UD_RTS)),
            _ => Err(INVALID),
        };
    }
    if to == INIT {
        let read = if state.responder_resources > 0 && kind != UC { REMOTE_READ_AND_ATOMIC } else { 0 };
        return Ok((IbvQpAttr { qp_access_flags: REMOTE_WRITE | read, ..attr }, mask::INIT));
    }
    let link = state.link.as_ref().ok_or(INVALID)?;
    let attr = IbvQpAttr {
        ah_attr: path_to(link.peer, link.traffic_class | state.traffic_class),
        path_mtu: link.mtu.encoding().into(),
        dest_qp_num: link.dest_qpn,
        rq_psn: link.rq_psn,
        sq_psn: link.sq_psn,
        max_dest_rd_atomic: state.responder_resources,
        max_rd_atomic: state.initiator_depth,
        timeout: state.ack_timeout.unwrap_or(link.timeout),
        retry_cnt: link.retry_count,
        rnr_retry: link.rnr_retry,
        ..attr
    };
    match (to, kind) {
        (RTR, UC) => Ok((attr, mask::UC_RTR)),
        (RTR, _) => Ok((attr, mask::RC_RTR)),
        (RTS, UC) => Ok((attr, mask::UD_RTS)),
        (RTS, _) => Ok((attr, mask::RC_RTS)),
        _ => Err(INVALID),
    }
}

fn modify(qp: *mut Qp, mut attr: IbvQpAttr, mask: u32) -> Result<(), Errno> {
    done(ibv_modify_qp(In::of(qp), In::of(&raw mut attr), mask as c_int))
}
/// Moves the identifier's queue pair to a state.
fn to_state(id: &Id, state: &State, to: u32) -> Result<(), Errno> {
    let (attr, mask) = attributes(id, state, to)?;
    modify(id.c.qp.get(), attr, mask)
}
/// Makes the identifier's queue pair ready for its connection, if it has one.
pub(super) fn ready(id: &Id, state: &State) -> Result<(), Errno> {
    if id.c.qp.get().is_null() {
        return Ok(());
    }
    // The rights that the queue pair began with are those without a connection.
    [INIT, RTR, RTS].into_iter().try_for_each(|to| to_state(id, state, to))
}
/// Moves the identifier's queue pair to the error state, if it has one.
pub(super) fn stop(id: &Id) {
    let qp = id.c.qp.get();
    if !qp.is_null() {
        // One that is in RESET has nothing to give back.
        let _ = modify(qp, IbvQpAttr { qp_state: ERROR, ..IbvQpAttr::default() }, mask::STATE);
    }
}
/// The number of the identifier's queue pair; the program's own where it has none.
pub(super) fn number(id: &Id, own: u32) -> Result<u32, Errno> {
    match In::of(id.c.qp.get()).opt() {
        Some(qp) => Ok(qp.c.qp_base.qp_num),
        None if own > 1 && own < 0xff_ffff => Ok(own),
        None => Err(INVALID),
    }
}

/// A queue for completions with its channel, of an identifier.
fn create_cq(id: &Id, depth: u32) -> Result<(*mut CompChannel, *mut Cq), Errno> {
    let context = In::of(id.c.verbs.get());
    let channel = made(ibv_create_comp_channel(context))?;
    let depth = c_int::try_from(depth.max(1)).map_err(|_| INVALID)?;
    let created = made(ibv_create_cq(context, depth, id.raw().cast(), In::of(channel), 0));
    match created {
        Ok(cq) => Ok((channel, cq)),
        Err(e) => {
            let _ = ibv_destroy_comp_channel(In::of(channel));
            Err(e)
        }
    }
}
/// Completes the completion queues that the program gives none for: those of the identifier, which owns and shows them,
/// and creates what it does not have.
fn complete_cqs(id: &Id, attr: &mut IbvQpInitAttr) -> Result<(), Errno> {
    let IbvQpCap { max_send_wr, max_recv_wr, .. } = attr.cap;
    let ends = [
        (&mut attr.recv_cq, &id.c.recv_cq, &id.c.recv_cq_channel, max_recv_wr),
        (&mut attr.send_cq, &id.c.send_cq, &id.c.send_cq_channel, max_send_wr),
    ];
    for (given, own, own_channel, depth) in ends {
        if !given.is_null() {
            continue;
        }
        if own.get().is_null() {
            let (channel, cq) = create_cq(id, depth)?;
            own_channel.set(channel);
            own.set(cq);
        }
        *given = own.get().cast();
    }
    Ok(())
}
/// Whether the program gives another completion queue than the identifier has.
fn has_other_cqs(id: &Id, attr: &IbvQpInitAttr) -> bool {
    let ends = [(attr.recv_cq, id.c.recv_cq.get()), (attr.send_cq, id.c.send_cq.get())];
    ends.iter().any(|&(given, own)| !given.is_null() && !own.is_null() && given != own.cast())
}
fn destroy_cqs(id: &Id) {
    let both = [(&id.c.recv_cq, &id.c.recv_cq_channel), (&id.c.send_cq, &id.c.send_cq_channel)];
    for (cq, channel) in both {
        let cq = cq.replace(core::ptr::null_mut());
        if !cq.is_null() && ibv_destroy_cq(In::of(cq)) == 0 {
            let _ = ibv_destroy_comp_channel(In::of(channel.replace(core::ptr::null_mut())));
        }
    }
}

/// Creates the queue pair of an identifier, in the state INIT; a datagram one is ready.
fn create_with(id: &Id, plain: In<IbvQpInitAttr>, create: impl FnOnce() -> *mut Qp) -> Result<(), Errno> {
    let mut attr = *plain.get()?;
    if !id.c.qp.get().is_null() || id.c.verbs.get().is_null() {
        return Err(INVALID);
    }
    if !matches!(attr.qp_type, RC | UC | UD | INITIATOR | TARGET) {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if attr.qp_type != id.c.qp_type.get() && (attr.qp_type == UD) != id.is_datagram() {
        return Err(INVALID);
    }
    if has_other_cqs(id, &attr) {
        return Err(INVALID);
    }
    if attr.srq.is_null() && matches!(attr.qp_type, RC | UC | UD) {
        attr.srq = id.c.srq.get().cast();
    }
    let created = complete_cqs(id, &mut attr).and_then(|()| {
        plain.set(attr)?;
        made(create())
    });
    let qp = created.inspect_err(|_| destroy_cqs(id))?;
    id.c.qp_type.set(attr.qp_type);
    id.c.qp.set(qp);
    let mut state = id.state();
    // Its queue pair has none.
    state.local_ece = Ece::default();
    let to: &[u32] = if attr.qp_type == UD { &[INIT, RTR, RTS] } else { &[INIT] };
    let moved = to.iter().try_for_each(|to| to_state(id, &state, *to));
    drop(state);
    moved.inspect_err(|_| destroy(id))
}
pub(super) fn create(id: &Id, pd: *mut Pd, attr: In<IbvQpInitAttr>) -> Result<(), Errno> {
    let pd = if pd.is_null() { id.c.pd.get() } else { pd };
    let foreign = In::of(pd).opt().is_some_and(|pd| pd.c.context != id.c.verbs.get());
    if foreign {
        return Err(INVALID);
    }
    create_with(id, attr, || match attr.opt() {
        Some(attr) if attr.qp_type == TARGET => create_target(id, attr),
        _ => ibv_create_qp(In::of(pd), attr),
    })?;
    id.c.pd.set(pd);
    Ok(())
}
/// A target of the domain of the identifier's device.
fn create_target(id: &Id, attr: &IbvQpInitAttr) -> *mut Qp {
    pointer(|| {
        let context = In::of(id.c.verbs.get());
        let device = id.state().device.clone().ok_or(INVALID)?;
        Ok(crate::xrc::create_target(context, In::of(device.xrcd()?), attr)?.0)
    })
}
pub(super) fn destroy(id: &Id) {
    let qp = id.c.qp.replace(core::ptr::null_mut());
    if !qp.is_null() {
        let _ = ibv_destroy_qp(In::of(qp));
    }
    // Their shared receive queue has completions of the identifier's still.
    if id.c.qp_type.get() != TARGET || id.c.srq.get().is_null() {
        destroy_cqs(id);
    }
}
/// Destroys the shared receive queue of an identifier.
pub(super) fn destroy_srq(id: &Id) {
    let srq = id.c.srq.replace(core::ptr::null_mut());
    if !srq.is_null() {
        let _ = ibv_destroy_srq(In::of(srq));
        if id.c.qp_type.get() == TARGET && id.c.qp.get().is_null() {
            destroy_cqs(id);
        }
    }
}
/// Creates the shared receive queue of an identifier: of XRC where its queue pair is a target, with the identifier's
/// completions.
fn create_srq(id: &Id, pd: *mut Pd, attr: In<IbvSrqInitAttr>) -> Result<(), Errno> {
    let given = attr.get()?;
    let (srq_context, attr) = (given.srq_context, given.attr);
    let comp_mask = if id.c.qp_type.get() == TARGET { SRQ_TYPE } else { 0 };
    let none: *mut core::ffi::c_void = core::ptr::null_mut();
    let mut all = IbvSrqInitAttrEx {
        srq_context,
        attr,
        comp_mask: comp_mask | if pd.is_null() { 0 } else { SRQ_PD },
        srq_type: 1,
        pd: pd.cast(),
        xrcd: none,
        cq: none.cast(),
        tm_cap: [0; 2],
    };
    create_srq_ex(id, In::of(&raw mut all))
}
fn create_srq_ex(id: &Id, given: In<IbvSrqInitAttrEx>) -> Result<(), Errno> {
    const XRC: u32 = 1;
    if !id.c.srq.get().is_null() || id.c.verbs.get().is_null() {
        return Err(INVALID);
    }
    let mut attr = *given.get()?;
    let has = |attr: &IbvSrqInitAttrEx, bit| attr.comp_mask & bit != 0;
    if !has(&attr, SRQ_PD) {
        attr.pd = id.c.pd.get().cast();
    }
    attr.comp_mask |= SRQ_PD;
    if has(&attr, SRQ_TYPE) && attr.srq_type == XRC {
        if !has(&attr, SRQ_XRCD) {
            let device = id.state().device.clone().ok_or(INVALID)?;
            attr.xrcd = device.xrcd()?.cast();
        }
        if !has(&attr, SRQ_CQ) {
            if id.c.recv_cq.get().is_null() {
                let (channel, cq) = create_cq(id, attr.attr.max_wr)?;
                id.c.recv_cq_channel.set(channel);
                id.c.recv_cq.set(cq);
            }
            attr.cq = id.c.recv_cq.get().cast();
        }
        attr.comp_mask |= SRQ_XRCD | SRQ_CQ;
    }
    let context = In::of(id.c.verbs.get());
    id.c.srq.set(made(crate::xrc::create_srq_ex(context, In::of(&raw mut attr)))?);
    Ok(())
}

exports! {
    "RDMACM_1.0" fn rdma_create_qp(id: In<RdmaCmId>, pd: *mut Pd, attr: In<IbvQpInitAttr>) -> c_int {
        counted(|| {
            let id = IDS.get(id)?;
            create(&id, pd, attr)?;
            Ok(0)
        })
    }
    "RDMACM_1.0" fn rdma_create_qp_ex(id: In<RdmaCmId>, attr: In<QpInitAttrExHead>) -> c_int {
        counted(|| {
            const PD: u32 = 1;
            let id = IDS.get(id)?;
            let (head, plain) = (attr.get()?, In::<IbvQpInitAttr>::of(attr.raw().cast()));
            if head.comp_mask & !PD == 0 {
                let pd = if head.comp_mask & PD != 0 { head.pd } else { id.c.pd.get() };
                return create(&id, pd, plain).map(|()| 0);
            }
            create_with(&id, plain, || create_qp_ex(In::of(id.c.verbs.get()), In::of(attr.raw().cast())))?;
            Ok(0)
        })
    }
    "RDMACM_1.0" fn rdma_destroy_qp(id: In<RdmaCmId>) -> () {
        if let Ok(id) = IDS.get(id) {
            destroy(&id);
        }
    }
    "RDMACM_1.0" fn rdma_create_srq(id: In<RdmaCmId>, pd: *mut Pd, attr: In<IbvSrqInitAttr>) -> c_int {
        counted(|| {
            let id = IDS.get(id)?;
            create_srq(&id, pd, attr).map(|()| 0)
        })
    }
    "RDMACM_1.0" fn rdma_create_srq_ex(id: In<RdmaCmId>, attr: In<IbvSrqInitAttrEx>) -> c_int {
        counted(|| create_srq_ex(&*IDS.get(id)?, attr).map(|()| 0))
    }
    "RDMACM_1.0" fn rdma_destroy_srq(id: In<RdmaCmId>) -> () {
        if let Ok(id) = IDS.get(id) {
            destroy_srq(&id);
        }
    }
    "RDMACM_1.2" fn rdma_init_qp_attr(id: In<RdmaCmId>, attr: In<IbvQpAttr>, mask_out: In<c_int>) -> c_int {
        counted(|| {
            let id = IDS.get(id)?;
            let state = id.state();
            if state.device.is_none() {
                return Err(INVALID);
            }
            let (found, mask) = attributes(&id, &state, attr.get()?.qp_state)?;
            attr.set(found)?;
            mask_out.set(mask as c_int)?;
            Ok(0)
        })
    }
}
