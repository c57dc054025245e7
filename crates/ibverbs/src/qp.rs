//! Queue pairs and shared receive queues.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use hca::hca_core::{
    AckTimeout, EventObject, Gid, Mtu, Pkey, Psn, Qkey, QpAttr, QpCap, QpHandle, QpInit, QpState, QpType,
    Qpn, RecvPort, RnrTimer, SendFlags, SendPort, SrqHandle, SrqInit, Srqn,
};

use crate::abi::{
    IbvAhAttr, IbvContext, IbvQp, IbvQpAttr, IbvQpCap, IbvQpEx, IbvQpInitAttr, IbvQpInitAttrEx, IbvSrq,
    IbvSrqAttr, IbvSrqInitAttr,
};
use crate::cq::Cq;
use crate::device::Adapter;
use crate::entry::{Errno, INVALID, In, NoPort, exports, give, lock, number, pointer, shape_of};
use crate::event::Unacknowledged;
use crate::held::{Guards, Held};
use crate::import::File;
use crate::memory::{Pd, access, access_flags, address, address_attr};
use crate::post::are_looked_at;
use crate::qp_ex::{Build, functions, offered};
use crate::xrc::{Domain, INITIATOR, TARGET, create_target};

/// The state of posts to a send queue: the port, and the requests that a program builds call by call.
pub(crate) struct Sending {
    pub(crate) port: Box<dyn SendPort>,
    pub(crate) build: Build,
}

/// Numbers of `enum ibv_qp_type`.
const RC: u32 = 2;
const UC: u32 = 3;

/// A queue pair. Each is an extended one.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) c: IbvQpEx,
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) handle: QpHandle,
    /// The XRC domain of a target.
    domain: Option<Arc<Domain>>,
    /// Flags that every request has: whether it is signaled.
    pub(crate) always: SendFlags,
    /// The program has asked for the extended interface.
    extended: bool,
    pub(crate) async_events: Unacknowledged,
    /// The groups that `ibv_attach_mcast` made it a member of.
    pub(crate) groups: Mutex<HashSet<Gid>>,
    /// The send queue; a target of XRC has none, and a port that takes nothing.
    pub(crate) send: Held<Sending>,
    pub(crate) recv: Option<Held<Box<dyn RecvPort>>>,
    /// The [shape](shape_of) of the requests that take the short way, as of a WRITE; one that no request has if none
    /// does.
    short_way: AtomicU64,
    /// The index of the port's GID that the program has given with the path.
    sgid_index: AtomicU8,
    file: Arc<File>,
}

/// The shape of no request.
const NONE: u64 = u64::MAX;

/// A queue pair of the device that is to be given to the program.
pub(crate) struct NewQp {
    pub(crate) handle: QpHandle,
    pub(crate) qpn: u32,
    pub(crate) send: Option<Box<dyn SendPort>>,
    pub(crate) recv: Option<Box<dyn RecvPort>>,
    pub(crate) extended: bool,
}

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    c: IbvSrq,
    pub(crate) adapter: Arc<Adapter>,
    handle: SrqHandle,
    init: SrqInit,
    /// That of a queue of an XRC domain.
    pub(crate) number: Option<Srqn>,
    limit: AtomicU32,
    pub(crate) async_events: Unacknowledged,
    pub(crate) recv: Held<Box<dyn RecvPort>>,
}

impl Guards for Qp {
    type Value = Sending;
    #[inline(always)]
    fn held(&self) -> &Held<Sending> {
        &self.send
    }
}

impl Qp {
    /// The numbers of `enum ibv_qp_type`; raw packets and drivers' own types are not offered.
    fn service(number: u32) -> Result<QpType, Errno> {
        match number {
            RC => Ok(QpType::Rc),
            UC => Ok(QpType::Uc),
            4 => Ok(QpType::Ud),
            INITIATOR => Ok(QpType::XrcIni),
            8 | 0xff => Err(Errno(libc::EOPNOTSUPP)),
            _ => Err(INVALID),
        }
    }
    /// Its name in messages.
    #[cold]
    pub(crate) fn name(&self) -> String {
        format!("queue pair {}", self.c.qp_base.qp_num)
    }
    #[inline(always)]
    pub(crate) fn short_way(&self) -> u64 {
        self.short_way.load(Ordering::Relaxed)
    }
    /// Has all requests from now on looked at before they are posted.
    pub(crate) fn look_at_requests(&self) {
        self.short_way.store(NONE, Ordering::Relaxed);
    }
    /// Its send queue; a target of XRC has none.
    pub(crate) fn send_queue(&self) -> Option<&Held<Sending>> {
        (self.c.qp_base.qp_type != TARGET).then_some(&self.send)
    }
    pub(crate) fn is_datagram(&self) -> bool {
        self.c.qp_base.qp_type == 4
    }
    /// Whether each request names a shared receive queue of the peer's.
    pub(crate) fn is_xrc(&self) -> bool {
        self.c.qp_base.qp_type == INITIATOR
    }
    /// Whether it is of a service that has memory windows.
    pub(crate) fn binds_windows(&self) -> bool {
        matches!(self.c.qp_base.qp_type, RC | UC)
    }

    fn create(pd: In<Pd>, attr: &IbvQpInitAttr, extended: bool) -> Result<(*mut Self, QpCap), Errno> {
        let owner = pd.get()?;
        let (send_cq, recv_cq) = (In::<Cq>::of(attr.send_cq.cast()), In::<Cq>::of(attr.recv_cq.cast()));
        let srq = In::<Srq>::of(attr.srq.cast()).opt();
        let IbvQpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = attr.cap;
        let qp_type = Self::service(attr.qp_type)?;
        // An XRC initiator has no receive queue, and programs give none of its completion queue.
        let recv_cq = if qp_type == QpType::XrcIni { send_cq } else { recv_cq };
        // Programs send a few bytes inline without asking for room, as other adapters have room for their lists.
        let spare = (max_send_sge.max(1).saturating_mul(16)).min(owner.adapter.device().attr().max_inline);
        let init = QpInit {
            qp_type,
            send_cq: send_cq.get()?.handle,
            recv_cq: recv_cq.get()?.handle,
            srq: srq.map(|srq| srq.handle),
            // A queue of no entries is one that nothing is posted to.
            cap: QpCap {
                max_send_wr: max_send_wr.max(1),
                max_recv_wr: max_recv_wr.max(1),
                max_send_sge: max_send_sge.max(1),
                max_recv_sge: max_recv_sge.max(1),
                max_inline: max_inline_data.max(spare),
            },
        };
        let ports = owner.adapter.device().create_qp(owner.handle, &init)?;
        owner.adapter.note(ports.handle, ports.qpn);
        let new = NewQp {
            handle: ports.handle,
            qpn: ports.qpn.raw(),
            send: Some(ports.send),
            recv: ports.recv,
            extended,
        };
        Ok((Self::give(In::of(owner.c.context), new, attr, pd, None)?, ports.cap))
    }
    /// Gives a queue pair of the device to the program.
    pub(crate) fn give(
        context: In<IbvContext>,
        new: NewQp,
        attr: &IbvQpInitAttr,
        pd: In<Pd>,
        domain: Option<Arc<Domain>>,
    ) -> Result<*mut Self, Errno> {
        let owner = context.context()?;
        let NewQp { handle, qpn, send, recv, extended } = new;
        let c = IbvQp {
            context: context.raw(),
            qp_context: attr.qp_context,
            pd: pd.raw().cast(),
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            handle: handle.index,
            qp_num: qpn,
            state: AtomicU32::new(0),
            qp_type: attr.qp_type,
            unused: [0; 11],
            events_completed: 0,
        };
        let c = IbvQpEx { qp_base: c, comp_mask: 0, wr_id: 0.into(), wr_flags: 0.into(), ops: functions() };
        let qp = give(Self {
            c,
            adapter: Arc::clone(&owner.adapter),
            handle,
            domain,
            always: if attr.sq_sig_all == 0 { SendFlags::empty() } else { SendFlags::SIGNALED },
            extended,
            async_events: Unacknowledged::default(),
            groups: Mutex::default(),
            send: Held::new(Sending {
                port: send.unwrap_or_else(|| Box::new(NoPort)),
                build: Build::default(),
            }),
            recv: recv.map(Held::new),
            // Other services have requests that name their destination.
            short_way: if matches!(attr.qp_type, RC | UC) { shape_of(1, 0) } else { NONE }.into(),
            sgid_index: AtomicU8::new(0),
            file: Arc::clone(&owner.file),
        });
        owner.file.add_qp(qp);
        owner.adapter.listeners.add(EventObject::Qp(handle), qp as usize, &owner.events);
        // Behind that: who has all requests looked at from now on finds the queue pair, or was before.
        if are_looked_at() {
            In::of(qp).get()?.look_at_requests();
        }
        Ok(qp)
    }

    fn modify(&self, attr: &IbvQpAttr, mask: u32) -> Result<(), Errno> {
        // Programs give both ends of an XRC connection the attributes of RC; each leaves those of the other end alone.
        let mask = match self.c.qp_base.qp_type {
            INITIATOR => mask & !(mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER),
            TARGET => mask & !(mask::MAX_QP_RD_ATOMIC | mask::RETRY_CNT | mask::RNR_RETRY),
            _ => mask,
        };
        let to = modification(attr, mask)?;
        if mask & mask::CUR_STATE != 0 && attr.cur_qp_state != self.state()? {
            return Err(INVALID);
        }
        self.adapter.device().modify_qp(self.handle, &to)?;
        if to.av.is_some() {
            self.sgid_index.store(attr.ah_attr.sgid_index, Ordering::Relaxed);
        }
        if to.state.is_some() {
            self.c.qp_base.state.store(attr.qp_state, Ordering::Relaxed);
        }
        Ok(())
    }
    /// Ends it for the device, with its memberships in groups.
    ///
    /// # Errors
    /// It has ended, or the device keeps it.
    pub(crate) fn end(&self, at: In<Self>) -> Result<(), Errno> {
        let device = self.adapter.device();
        let groups = std::mem::take(&mut *lock(&self.groups));
        for (multicast, group) in
            device.multicast().iter().flat_map(|m| groups.iter().map(move |group| (m, group)))
        {
            multicast.detach_mcast(self.handle, *group)?;
        }
        match &self.domain {
            Some(domain) => domain.close_target(self.c.qp_base.qp_num)?,
            None => _ = device.destroy_qp(self.handle)?,
        }
        self.adapter.listeners.remove(EventObject::Qp(self.handle), at.raw() as usize);
        self.file.remove_qp(at.raw());
        Ok(())
    }
    /// The state, in the program's numbering.
    fn state(&self) -> Result<u32, Errno> {
        Ok(state_number(self.adapter.device().query_qp(self.handle)?.state))
    }

    fn query(&self) -> Result<(IbvQpAttr, QpCap), Errno> {
        let status = self.adapter.device().query_qp(self.handle)?;
        let (attr, state) = (status.attr, state_number(status.state));
        self.c.qp_base.state.store(state, Ordering::Relaxed);
        let sgid_index = self.sgid_index.load(Ordering::Relaxed);
        let path = attr.av.as_ref().map(|av| IbvAhAttr { sgid_index, ..address_attr(av) });
        let found = IbvQpAttr {
            qp_state: state,
            cur_qp_state: state,
            path_mtu: attr.path_mtu.map_or(0, |mtu| mtu.encoding().into()),
            qkey: attr.qkey.map_or(0, Qkey::raw),
            rq_psn: attr.rq_psn.map_or(0, Psn::raw),
            sq_psn: attr.sq_psn.map_or(0, Psn::raw),
            dest_qp_num: attr.dest_qpn.map_or(0, Qpn::raw),
            qp_access_flags: access_flags(attr.access.unwrap_or_default()),
            cap: cap_attr(&status.cap),
            ah_attr: path.unwrap_or_default(),
            max_rd_atomic: attr.max_rd_atomic.unwrap_or(0),
            max_dest_rd_atomic: attr.max_dest_rd_atomic.unwrap_or(0),
            min_rnr_timer: attr.min_rnr_timer.map_or(0, RnrTimer::encoding),
            port_num: 1,
            timeout: attr.timeout.map_or(0, AckTimeout::encoding),
            retry_cnt: attr.retry_cnt.unwrap_or(0),
            rnr_retry: attr.rnr_retry.unwrap_or(0),
            ..IbvQpAttr::default()
        };
        Ok((found, status.cap))
    }
}

impl Srq {
    /// Its name in messages.
    #[cold]
    pub(crate) fn name(&self) -> String {
        format!("shared receive queue {}", self.handle.index)
    }
    pub(crate) fn create(pd: In<Pd>, attr: &IbvSrqInitAttr) -> Result<*mut Self, Errno> {
        let owner = pd.get()?;
        let init = SrqInit { max_wr: attr.attr.max_wr, max_sge: attr.attr.max_sge };
        let (handle, port) = owner.adapter.device().create_srq(owner.handle, &init)?;
        Self::give(pd, attr, (handle, None, port), init)
    }
    /// Gives a queue of the device to the program.
    pub(crate) fn give(
        pd: In<Pd>,
        attr: &IbvSrqInitAttr,
        (handle, number, port): (SrqHandle, Option<Srqn>, Box<dyn RecvPort>),
        init: SrqInit,
    ) -> Result<*mut Self, Errno> {
        let owner = pd.get()?;
        let c = IbvSrq {
            context: owner.c.context,
            srq_context: attr.srq_context,
            pd: pd.raw().cast(),
            handle: handle.index,
            unused: [0; 11],
            events_completed: 0,
        };
        let srq = give(Self {
            c,
            adapter: Arc::clone(&owner.adapter),
            handle,
            init,
            number,
            limit: AtomicU32::new(0),
            async_events: Unacknowledged::default(),
            recv: Held::new(port),
        });
        owner.adapter.listeners.add(
            EventObject::Srq(handle),
            srq as usize,
            &In::of(owner.c.context).context()?.events,
        );
        Ok(srq)
    }
}

fn cap_attr(cap: &QpCap) -> IbvQpCap {
    IbvQpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline,
    }
}

/// States in the order of `enum ibv_qp_state`.
const STATES: [QpState; 7] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Error];

fn state_number(state: QpState) -> u32 {
    STATES.iter().position(|s| *s == state).expect("all states are listed") as u32
}

/// Bits of `enum ibv_qp_attr_mask`.
mod mask {
    pub(super) const STATE: u32 = 1;
    pub(super) const CUR_STATE: u32 = 1 << 1;
    pub(super) const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub(super) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(super) const PKEY_INDEX: u32 = 1 << 4;
    pub(super) const PORT: u32 = 1 << 5;
    pub(super) const QKEY: u32 = 1 << 6;
    pub(super) const AV: u32 = 1 << 7;
    pub(super) const PATH_MTU: u32 = 1 << 8;
    pub(super) const TIMEOUT: u32 = 1 << 9;
    pub(super) const RETRY_CNT: u32 = 1 << 10;
    pub(super) const RNR_RETRY: u32 = 1 << 11;
    pub(super) const RQ_PSN: u32 = 1 << 12;
    pub(super) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(super) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(super) const SQ_PSN: u32 = 1 << 16;
    pub(super) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(super) const DEST_QPN: u32 = 1 << 20;
    /// All that are taken: not alternate paths, their migration, sizes of queues and rate limits.
    pub(super) const KNOWN: u32 = 0x13_bfff;
}

/// The attributes that a mask selects.
///
/// # Errors
/// A bit or a value is out of range.
fn modification(attr: &IbvQpAttr, selected: u32) -> Result<QpAttr, Errno> {
    use mask::*;
    let has = |bit| selected & bit != 0;
    let state = STATES.get(attr.qp_state as usize).copied();
    let mtu = Mtu::ALL.into_iter().find(|mtu| u32::from(mtu.encoding()) == attr.path_mtu);
    let out_of_range = has(STATE) && state.is_none()
        || has(PATH_MTU) && mtu.is_none()
        || has(PORT) && attr.port_num != 1
        || has(PKEY_INDEX) && attr.pkey_index != 0
        || has(TIMEOUT) && attr.timeout > 31
        || has(MIN_RNR_TIMER) && attr.min_rnr_timer > 31
        || has(DEST_QPN) && attr.dest_qp_num > 0xff_ffff;
    if selected & !KNOWN != 0 || out_of_range {
        return Err(INVALID);
    }
    let access = if has(ACCESS_FLAGS) { Some(access(attr.qp_access_flags)?) } else { None };
    let av = if has(AV) { Some(address(&attr.ah_attr)?) } else { None };
    Ok(QpAttr {
        state: state.filter(|_| has(STATE)),
        pkey: has(PKEY_INDEX).then_some(Pkey::DEFAULT),
        access,
        qkey: has(QKEY).then(|| Qkey::new(attr.qkey)),
        dest_qpn: has(DEST_QPN).then(|| Qpn::new(attr.dest_qp_num)),
        av,
        path_mtu: mtu.filter(|_| has(PATH_MTU)),
        rq_psn: has(RQ_PSN).then(|| Psn::new(attr.rq_psn)),
        sq_psn: has(SQ_PSN).then(|| Psn::new(attr.sq_psn)),
        max_rd_atomic: has(MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic),
        max_dest_rd_atomic: has(MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic),
        min_rnr_timer: has(MIN_RNR_TIMER).then(|| RnrTimer::new(attr.min_rnr_timer)),
        timeout: has(TIMEOUT).then(|| AckTimeout::new(attr.timeout)),
        retry_cnt: has(RETRY_CNT).then_some(attr.retry_cnt),
        rnr_retry: has(RNR_RETRY).then_some(attr.rnr_retry),
        sqd_event: has(EN_SQD_ASYNC_NOTIFY).then_some(attr.en_sqd_async_notify != 0),
    })
}

/// The place of `cap` in `struct ibv_qp_init_attr`, where creation stores what was granted.
fn granted(init: In<IbvQpInitAttr>) -> In<IbvQpCap> {
    In::of(init.raw().wrapping_byte_add(core::mem::offset_of!(IbvQpInitAttr, cap)).cast())
}

/// Bits of `enum ibv_qp_init_attr_mask`.
mod init_mask {
    pub(super) const PD: u32 = 1;
    pub(super) const XRCD: u32 = 1 << 1;
    pub(super) const CREATE_FLAGS: u32 = 1 << 2;
    pub(super) const SEND_OPS: u32 = 1 << 6;
}

pub(crate) extern "C" fn create_qp_ex(context: In<IbvContext>, init: In<IbvQpInitAttrEx>) -> *mut Qp {
    pointer(|| {
        use init_mask::*;
        let attr = init.get()?;
        let has = |bit| attr.comp_mask & bit != 0;
        let unknown = attr.comp_mask & !(PD | XRCD | CREATE_FLAGS | SEND_OPS) != 0;
        if unknown || has(CREATE_FLAGS) && attr.create_flags != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if has(SEND_OPS) && attr.send_ops_flags & !offered(attr.qp_type) != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let plain = In::<IbvQpInitAttr>::of(init.raw().cast());
        let (qp, cap) = match attr.qp_type {
            TARGET if has(XRCD) => create_target(context, In::of(attr.xrcd.cast()), plain.get()?)?,
            TARGET => return Err(INVALID),
            _ if !has(PD) => return Err(INVALID),
            _ => Qp::create(In::of(attr.pd.cast()), plain.get()?, has(SEND_OPS))?,
        };
        granted(plain).set(cap_attr(&cap))?;
        Ok(qp)
    })
}

exports! {
    "IBVERBS_1.1" fn ibv_create_qp(pd: In<Pd>, init: In<IbvQpInitAttr>) -> *mut Qp {
        pointer(|| {
            let (qp, cap) = Qp::create(pd, init.get()?, false)?;
            granted(init).set(cap_attr(&cap))?;
            Ok(qp)
        })
    }
    "IBVERBS_1.1" fn ibv_modify_qp(qp: In<Qp>, attr: In<IbvQpAttr>, mask: c_int) -> c_int {
        number(|| qp.get()?.modify(attr.get()?, mask as u32))
    }
    "IBVERBS_1.1" fn ibv_query_qp(qp: In<Qp>, attr: In<IbvQpAttr>, _mask: c_int, init: In<IbvQpInitAttr>) -> c_int {
        number(|| {
            let object = qp.get()?;
            let (found, cap) = object.query()?;
            attr.set(found)?;
            let c = &object.c.qp_base;
            init.set(IbvQpInitAttr {
                qp_context: c.qp_context,
                send_cq: c.send_cq,
                recv_cq: c.recv_cq,
                srq: c.srq,
                cap: cap_attr(&cap),
                qp_type: c.qp_type,
                sq_sig_all: object.always.contains(SendFlags::SIGNALED).into(),
            })
        })
    }
    "IBVERBS_1.1" fn ibv_destroy_qp(qp: In<Qp>) -> c_int {
        number(|| {
            let object = qp.get()?;
            if !lock(&object.groups).is_empty() {
                return Err(Errno(libc::EBUSY));
            }
            object.end(qp)?;
            object.async_events.wait();
            qp.take().map(drop)
        })
    }
    "IBVERBS_1.6" fn ibv_qp_to_qp_ex(qp: In<Qp>) -> *mut Qp {
        pointer(|| if qp.get()?.extended { Ok(qp.raw()) } else { Err(Errno(libc::EOPNOTSUPP)) })
    }
    "IBVERBS_1.1" fn ibv_create_srq(pd: In<Pd>, init: In<IbvSrqInitAttr>) -> *mut Srq {
        pointer(|| Srq::create(pd, init.get()?))
    }
    "IBVERBS_1.1" fn ibv_modify_srq(srq: In<Srq>, attr: In<IbvSrqAttr>, mask: c_int) -> c_int {
        number(|| {
            const MAX_WR: c_int = 1;
            const LIMIT: c_int = 2;
            let (srq, attr) = (srq.get()?, attr.get()?);
            if mask & !(MAX_WR | LIMIT) != 0 {
                return Err(INVALID);
            }
            if mask & MAX_WR != 0 {
                srq.recv.lock().resize(attr.max_wr)?;
            }
            if mask & LIMIT != 0 {
                srq.adapter.device().set_srq_limit(srq.handle, attr.srq_limit)?;
                srq.limit.store(attr.srq_limit, Ordering::Relaxed);
            }
            Ok(())
        })
    }
    "IBVERBS_1.1" fn ibv_query_srq(srq: In<Srq>, attr: In<IbvSrqAttr>) -> c_int {
        number(|| {
            let srq = srq.get()?;
            let found = srq.adapter.device().query_srq(srq.handle);
            attr.set(found.map_or_else(
                // A device that changes none of them tells none.
                |_| IbvSrqAttr {
                    max_wr: srq.init.max_wr,
                    max_sge: srq.init.max_sge,
                    srq_limit: srq.limit.load(Ordering::Relaxed),
                },
                |found| IbvSrqAttr { max_wr: found.max_wr, max_sge: found.max_sge, srq_limit: found.limit },
            ))
        })
    }
    "IBVERBS_1.1" fn ibv_destroy_srq(srq: In<Srq>) -> c_int {
        number(|| {
            let object = srq.get()?;
            object.adapter.device().destroy_srq(object.handle)?;
            object.adapter.listeners.remove(EventObject::Srq(object.handle), srq.raw() as usize);
            object.async_events.wait();
            srq.take().map(drop)
        })
    }
}
