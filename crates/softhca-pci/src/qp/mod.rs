//! Queue pairs of a function's driver.
//!
//! A queue pair of the RC, UC or UD service has a counterpart at the adapter, with the same number and, except for the
//! send queue error state, the same state. Management queue pairs, and the queue pair by which Linux changes memory
//! keys, have no counterpart: they have a number, states, and queues. They accept management datagrams, which get no
//! answer, and changes of the rights and protection domains of keys; every other request ends in error. Queue pairs of
//! other services, extended reliable connections (XRC) among them, are refused.

mod aside;
pub(crate) mod grh;
pub(crate) mod recv;
mod segments;
pub(crate) mod send;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
pub(crate) mod tests_datagram;
#[cfg(test)]
mod tests_errors;
#[cfg(test)]
mod tests_fields;
#[cfg(test)]
mod tests_garbage;
#[cfg(test)]
mod tests_watch;
#[cfg(test)]
mod tests_wqe;
pub(crate) mod watch;

use hca_core::{
    Access, AckTimeout, AddressVector, Device, DeviceError, Gid, Lid, PdHandle, Pkey, Psn, Qkey, QpAttr,
    QpCap, QpHandle, QpInit, QpState, QpType, Qpn, RecvPort, RnrTimer, SendPort, SrqHandle,
};
use hca_prm::command::qp::{CreateQpIn, CreateQpOut, DestroyQpIn, QueryQpIn, QueryQpOut, Rst2InitQpIn};
use hca_prm::{
    Ads, CmdStatus, MtuCode, Opcode, QpState as StateCode, Qpc, RqType, SEND_WQE_BB, ServiceType, optpar,
};
use softhca::SoftHca;

use crate::command::caps::{self, LOG_QP_SIZE, LOG_QPS};
use crate::command::{Output, parse};
use crate::function::Function;
use crate::guest::{Guest, Window};
use crate::objects::{Objects, gone, has_room, no_window, status};
use crate::port::counters::Fetched;
use crate::port::directory::{Connection, Directory};
use crate::srq::Srq;
use aside::Aside;

/// Requests of a send queue that the adapter holds at one time; the others wait in the client's memory.
pub(crate) const MAX_HELD_SENDS: u32 = 128;
/// Places that a request lists, at most: as many as there is room for beside the control segment.
pub(crate) const MAX_SEND_SGE: u32 = hca_prm::MAX_WQE_DS - 1;
/// Places that a receive request lists, at most.
pub(crate) const MAX_RECV_SGE: u32 = caps::RECV_WQE / 16;
/// Bytes in a request of the adapter's; more are set aside.
pub(crate) const MAX_INLINE: u32 = 512;
/// Bytes of a doorbell record.
const RECORD: u64 = 8;

/// Which service a queue pair offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// One that the adapter offers.
    Real(QpType),
    /// One that nothing is behind. With `sends`, its datagrams leave, and nobody answers.
    Inert { sends: bool },
}

/// Where a work queue lies in its queue pair's memory, and how far it was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkQueue {
    /// The first byte.
    pub(crate) at: usize,
    /// Blocks or requests, as a power of two.
    pub(crate) log_size: u32,
    /// Bytes of one, as a power of two.
    pub(crate) log_stride: u32,
    /// The counter of the next one to be taken.
    pub(crate) next: u16,
}

impl WorkQueue {
    fn bytes(&self) -> usize {
        1 << (self.log_size + self.log_stride)
    }
}

/// The client memory of a queue pair.
#[derive(Debug)]
pub(crate) struct QpMemory {
    pub(crate) queues: Option<Window>,
    pub(crate) record: Window,
}

/// What stands before the next request of a send queue until all before it have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Barrier {
    /// The counter of the request's first block, its blocks, and its operation as the driver gave it.
    pub(crate) counter: u16,
    pub(crate) blocks: u16,
    pub(crate) opcode: u8,
    /// Whether its success is reported.
    pub(crate) signaled: bool,
    /// What is wrong with it; `None`: it does nothing.
    pub(crate) wrong: Option<hca_prm::CqeSyndrome>,
}

/// A queue pair.
pub(crate) struct Qp {
    pub(crate) handle: QpHandle,
    pub(crate) service: Service,
    pub(crate) pd: PdHandle,
    pub(crate) user_index: u32,
    pub(crate) cq_send: u32,
    pub(crate) cq_recv: u32,
    /// The shared receive queue that it takes requests from.
    pub(crate) srq: Option<u32>,
    pub(crate) memory: Option<QpMemory>,
    pub(crate) sq: Option<WorkQueue>,
    pub(crate) rq: Option<WorkQueue>,
    pub(crate) send: Box<dyn SendPort>,
    /// Where own receive requests go; none where they come from a shared queue, or go nowhere.
    pub(crate) recv: Option<Box<dyn RecvPort>>,
    /// It is in RESET: its records mean nothing, as drivers clear them later.
    pub(crate) in_reset: bool,
    /// Blocks of the send queue that were announced when that was looked at last, counted without end.
    pub(crate) announced: u16,
    /// Requests that the adapter holds.
    pub(crate) held: u32,
    pub(crate) barrier: Option<Barrier>,
    /// Where bytes of its requests are set aside, once one needed it.
    pub(crate) aside: Option<Aside>,
    /// Whether its peer hears it, as of this version of the directory.
    pub(crate) heard: (u64, bool),
    /// What is still in the send queue is flushed.
    pub(crate) send_failed: bool,
    /// The state of one that is inert.
    pub(crate) inert_state: QpState,
    /// What was fetched of the adapter's counters for it.
    pub(super) fetched: Fetched,
    watch: watch::Watch,
    context: Qpc,
    counted: usize,
}

impl Qp {
    pub(crate) fn touches(&self, iova: u64, size: u64) -> bool {
        self.memory.as_ref().is_some_and(|m| {
            m.record.touches(iova, size) || m.queues.as_ref().is_some_and(|q| q.touches(iova, size))
        })
    }
    pub(crate) fn is_inert(&self) -> bool {
        matches!(self.service, Service::Inert { .. })
    }
    pub(crate) fn is_datagram(&self) -> bool {
        self.service == Service::Real(QpType::Ud)
    }
    /// The set of counters that it names.
    pub(crate) fn counter_set(&self) -> u32 {
        self.context.get(Qpc::COUNTER_SET_ID)
    }
    /// As it was made.
    fn empty(&mut self) {
        for queue in [&mut self.sq, &mut self.rq].into_iter().flatten() {
            queue.next = 0;
        }
        (self.announced, self.held, self.barrier, self.send_failed) = (0, 0, None, false);
        if let Some(aside) = &mut self.aside {
            aside.empty();
        }
    }
}

/// What the context says about the queues.
struct Shape {
    sq: Option<WorkQueue>,
    rq: Option<WorkQueue>,
    shared: bool,
}

impl Shape {
    fn of(context: &Qpc) -> Result<Self, CmdStatus> {
        let rq_type = RqType::from_code(context.get(Qpc::RQ_TYPE)).ok_or(CmdStatus::BadParam)?;
        let log_bb = SEND_WQE_BB.trailing_zeros();
        let own = WorkQueue {
            at: 0,
            log_size: context.get(Qpc::LOG_RQ_SIZE),
            log_stride: context.get(Qpc::LOG_RQ_STRIDE) + 4,
            next: 0,
        };
        let rq = (rq_type == RqType::Regular).then_some(own);
        let at = rq.map_or(0, |rq| rq.bytes());
        let sq = WorkQueue { at, log_size: context.get(Qpc::LOG_SQ_SIZE), log_stride: log_bb, next: 0 };
        let sq = (!context.get(Qpc::NO_SQ)).then_some(sq);
        let too_long = |q: WorkQueue| q.log_size > LOG_QP_SIZE;
        if sq.is_some_and(too_long)
            || rq.is_some_and(|q| too_long(q) || q.log_stride > caps::RECV_WQE.ilog2())
        {
            return Err(CmdStatus::LimErr);
        }
        Ok(Self { sq, rq, shared: rq_type == RqType::Srq })
    }

    fn bytes(&self) -> usize {
        self.rq.map_or(0, |q| q.bytes()) + self.sq.map_or(0, |q| q.bytes())
    }

    fn memory(&self, guest: &Guest, context: &Qpc, pas: &[u8]) -> Result<QpMemory, CmdStatus> {
        let record = context.get(Qpc::DBR_ADDR);
        if !record.is_multiple_of(RECORD) {
            return Err(CmdStatus::BadParam);
        }
        let log_page = context.get(Qpc::LOG_PAGE_SIZE) + 12;
        let first = u64::from(context.get(Qpc::PAGE_OFFSET)) << (log_page - 6);
        let bytes = self.bytes() as u64;
        let queues =
            (bytes > 0).then(|| guest.window_of_pages(pas, log_page, first, bytes, false)).transpose();
        Ok(QpMemory {
            queues: queues.map_err(no_window)?,
            record: guest.window(&[(record, RECORD)], false).map_err(no_window)?,
        })
    }

    fn cap(&self) -> QpCap {
        let held = self.sq.map_or(1, |q| (1 << q.log_size).min(MAX_HELD_SENDS));
        let room = self.sq.map_or(0, |q| q.bytes() as u32);
        QpCap {
            max_send_wr: held,
            max_recv_wr: self.rq.map_or(0, |q| 1 << q.log_size),
            max_send_sge: MAX_SEND_SGE.min(room / 16),
            max_recv_sge: self.rq.map_or(0, |q| 1 << (q.log_stride - 4)),
            max_inline: MAX_INLINE.min(room),
        }
    }
}

fn service(context: &Qpc) -> Result<Service, CmdStatus> {
    use ServiceType as S;
    let service = ServiceType::from_code(context.get(Qpc::ST)).ok_or(CmdStatus::BadParam)?;
    Ok(match service {
        S::Rc => Service::Real(QpType::Rc),
        S::Uc => Service::Real(QpType::Uc),
        S::Ud => Service::Real(QpType::Ud),
        S::Qp0 | S::Qp1 => Service::Inert { sends: true },
        // Linux makes one at its start, also where capabilities tell it to change no key by requests.
        S::RegUmr => Service::Inert { sends: false },
        _ => return Err(CmdStatus::BadParam),
    })
}

impl Objects {
    /// Makes a queue pair; `pas` follows the command's layout.
    pub(crate) fn create_qp(
        &mut self,
        guest: &Guest,
        pd: PdHandle,
        command: &CreateQpIn,
        pas: &[u8],
    ) -> Result<u32, CmdStatus> {
        has_room(self.qps.len(), LOG_QPS)?;
        let context = command.get(CreateQpIn::QPC);
        if command.get(CreateQpIn::WQ_UMEM_VALID) || context.get(Qpc::DBR_UMEM_VALID) {
            return Err(CmdStatus::BadParam);
        }
        caps::check_clock(context.get(Qpc::TS_FORMAT))?;
        let service = service(&context)?;
        let shape = Shape::of(&context)?;
        let (cq_send, cq_recv) = (context.get(Qpc::CQN_SND), context.get(Qpc::CQN_RCV));
        let has_queue = |cqn: &u32| self.cqs.contains_key(cqn);
        let needs_recv = shape.rq.is_some() || shape.shared;
        if (shape.sq.is_some() && !has_queue(&cq_send)) || (needs_recv && !has_queue(&cq_recv)) {
            return Err(CmdStatus::BadRes);
        }
        let real = matches!(service, Service::Real(_));
        let srq = (shape.shared && real).then(|| context.get(Qpc::SRQN_RMPN_XRQN));
        let adapters_srq = srq.map(|number| self.adapters_srq(number)).transpose()?;
        let memory = shape.memory(guest, &context, pas)?;
        let completions = self.completions()?;
        let (qp_type, cap) = match service {
            Service::Real(qp_type) => (qp_type, shape.cap()),
            Service::Inert { .. } => {
                let cap =
                    QpCap { max_send_wr: 1, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline: 0 };
                (QpType::Ud, cap)
            }
        };
        let init = QpInit { qp_type, send_cq: completions, recv_cq: completions, srq: adapters_srq, cap };
        let counted = self.count_queues(&cap)?;
        let ports = self.hca.create_qp(pd, &init).map_err(|e| {
            self.uncount_queue(counted);
            status(e)
        })?;
        if let Some(pace) = &self.pace {
            self.hca.set_pace(ports.handle, pace.clone());
        }
        let qpn = ports.qpn.raw();
        let qp = Qp {
            handle: ports.handle,
            service,
            pd,
            user_index: context.get(Qpc::USER_INDEX),
            cq_send,
            cq_recv,
            srq,
            memory: Some(memory),
            sq: shape.sq,
            rq: shape.rq,
            send: ports.send,
            recv: ports.recv.filter(|_| real),
            in_reset: true,
            announced: 0,
            held: 0,
            barrier: None,
            aside: None,
            heard: (0, true),
            send_failed: false,
            inert_state: QpState::Reset,
            fetched: Fetched::default(),
            watch: watch::Watch::default(),
            context,
            counted,
        };
        self.by_index.insert(qp.handle.index, qpn);
        self.qps.insert(qpn, qp);
        self.watched.insert(qpn);
        Ok(qpn)
    }

    fn unnamed(&mut self) -> Result<PdHandle, CmdStatus> {
        match self.unnamed {
            Some(pd) => Ok(pd),
            None => Ok(*self.unnamed.insert(self.hca.alloc_pd().map_err(status)?)),
        }
    }

    fn count_queues(&mut self, cap: &QpCap) -> Result<usize, CmdStatus> {
        let entries = cap.max_send_sge.max(cap.max_inline / 16);
        let send = self.count_queue(cap.max_send_wr, entries)?;
        let recv = self.count_queue(cap.max_recv_wr, cap.max_recv_sge);
        if recv.is_err() {
            self.uncount_queue(send);
        }
        Ok(send + recv?)
    }

    fn adapters_srq(&self, number: u32) -> Result<SrqHandle, CmdStatus> {
        self.srqs.get(&number).and_then(Srq::handle).ok_or(CmdStatus::BadRes)
    }

    /// Destroys a queue pair. What the adapter has completed for it is shown first.
    pub(crate) fn destroy_qp(&mut self, qpn: u32, directory: &Directory) -> Result<(), CmdStatus> {
        if !self.qps.contains_key(&qpn) {
            return Err(CmdStatus::BadRes);
        }
        self.take_all_completions(directory);
        self.leave_counters(qpn);
        let qp = self.qps.remove(&qpn).ok_or(CmdStatus::BadRes)?;
        self.by_index.remove(&qp.handle.index);
        self.watched.remove(qpn, &qp, &mut self.srqs);
        let lost = self.hca.destroy_qp(qp.handle).map_err(status)?;
        self.uncount_queue(qp.counted);
        if let Some(srq) = qp.srq {
            self.give_back(srq, &lost);
        }
        if qp.is_datagram() {
            self.addresses.in_flight -= qp.held.min(self.addresses.in_flight);
            if !self.qps.values().any(|other| other.pd == qp.pd && other.is_datagram()) {
                self.forget_addresses_of(qp.pd);
            }
        }
        Ok(())
    }

    /// The state of a queue pair.
    pub(crate) fn state_of(&self, qp: &Qp) -> Result<StateCode, CmdStatus> {
        let state =
            if qp.is_inert() { qp.inert_state } else { self.hca.query_qp(qp.handle).map_err(status)?.state };
        let reliable = qp.service == Service::Real(QpType::Rc);
        Ok(match state {
            QpState::Reset => StateCode::Rst,
            QpState::Init => StateCode::Init,
            QpState::Rtr => StateCode::Rtr,
            QpState::Rts if qp.send_failed && !reliable => StateCode::SqEr,
            QpState::Rts => StateCode::Rts,
            QpState::Sqd => StateCode::Sqd,
            QpState::Sqe => StateCode::SqEr,
            QpState::Error => StateCode::Err,
        })
    }

    /// The context of a queue pair as it is now.
    pub(crate) fn query_qp(&self, qpn: u32) -> Result<Qpc, CmdStatus> {
        let qp = self.qps.get(&qpn).ok_or(CmdStatus::BadRes)?;
        let next = |queue: Option<WorkQueue>| queue.map_or(0, |q| q.next.into());
        Ok(qp
            .context
            .with(Qpc::STATE, self.state_of(qp)?.code())
            .with(Qpc::HW_SQ_WQEBB_COUNTER, next(qp.sq))
            .with(Qpc::HW_RQ_COUNTER, next(qp.rq)))
    }

    /// Carries out a command that changes a queue pair's state or attributes.
    pub(crate) fn modify_qp(
        &mut self,
        opcode: Opcode,
        qpn: u32,
        optional: u32,
        asked: &Qpc,
        directory: &mut Directory,
    ) -> Result<(), CmdStatus> {
        self.activate(qpn);
        let qp = self.qps.get(&qpn).ok_or(CmdStatus::BadRes)?;
        let (froms, to) = transition(opcode).ok_or(CmdStatus::BadOp)?;
        if !froms.is_empty() && !froms.contains(&self.state_of(qp)?) {
            return Err(CmdStatus::BadQpState);
        }
        let rate = asked.get(Qpc::PRIMARY_ADDRESS_PATH).get(Ads::STAT_RATE);
        if optional & foreign(qp.service) != 0 || (opcode == Opcode::INIT2RTR_QP && rate != 0) {
            return Err(CmdStatus::BadParam);
        }
        if to == QpState::Reset {
            self.take_all_completions(directory);
        }
        self.leave_counters(qpn);
        let Self { hca, qps, addresses, .. } = self;
        let qp = qps.get_mut(&qpn).ok_or(CmdStatus::BadRes)?;
        let mut context = qp.context;
        set_fields(opcode, optional, asked, &mut context);
        if let Service::Real(qp_type) = qp.service {
            let mut attr = attributes(opcode, qp_type, optional, &context, directory)?;
            let in_sqe = opcode == Opcode::SQERR2RTS_QP
                && hca.query_qp(qp.handle).map_err(status)?.state == QpState::Rts;
            // Before it hears anybody.
            if let (Some(av), Some(remote)) = (attr.av, attr.dest_qpn) {
                let (handle, remote) = (qp.handle, remote.raw());
                let here = av.dgid == directory.own();
                let strangers = directory.connect(qpn, Connection { handle, remote, here });
                for stranger in &strangers {
                    let attr = QpAttr { state: Some(QpState::Error), ..QpAttr::default() };
                    gone("connection of a stranger", hca.modify_qp(*stranger, &attr));
                }
                if !strangers.is_empty() {
                    drop_packets_under_way(hca);
                }
            }
            // An error that the adapter knows nothing of ends here.
            if !in_sqe && let Err(e) = modify(hca, qp.handle, &mut attr, directory) {
                if attr.av.is_some() {
                    directory.disconnect(qpn);
                }
                return Err(status(e));
            }
        } else {
            qp.inert_state = to;
        }
        qp.context = context;
        qp.in_reset = to == QpState::Reset;
        match to {
            QpState::Reset => {
                directory.disconnect(qpn);
                if qp.is_datagram() {
                    addresses.in_flight -= qp.held.min(addresses.in_flight);
                }
                qp.empty();
            }
            QpState::Error => qp.send_failed = true,
            QpState::Rts if opcode == Opcode::SQERR2RTS_QP => qp.send_failed = false,
            _ => {}
        }
        Ok(())
    }
}

/// From which states a command leads, all where none is named, and to which.
fn transition(opcode: Opcode) -> Option<(&'static [StateCode], QpState)> {
    use StateCode as S;
    Some(match opcode {
        Opcode::RST2INIT_QP => (&[S::Rst], QpState::Init),
        Opcode::INIT2INIT_QP => (&[S::Init], QpState::Init),
        Opcode::INIT2RTR_QP => (&[S::Init], QpState::Rtr),
        Opcode::RTR2RTS_QP => (&[S::Rtr], QpState::Rts),
        Opcode::RTS2RTS_QP => (&[S::Rts], QpState::Rts),
        Opcode::SQERR2RTS_QP => (&[S::SqEr], QpState::Rts),
        Opcode::SQD_RTS_QP => (&[S::Sqd], QpState::Rts),
        Opcode::QP_2ERR => (&[], QpState::Error),
        Opcode::QP_2RST => (&[], QpState::Reset),
        _ => return None,
    })
}

/// Which optional fields a service has not: who names one is refused.
fn foreign(service: Service) -> u32 {
    let reliable = optpar::RRE
        | optpar::RAE
        | optpar::RNR_TIMEOUT
        | optpar::SRA_MAX
        | optpar::RRA_MAX
        | optpar::RETRY_COUNT
        | optpar::RNR_RETRY
        | optpar::ACK_TIMEOUT;
    match service {
        Service::Real(QpType::Rc) => optpar::Q_KEY,
        Service::Real(QpType::Uc) => optpar::Q_KEY | reliable,
        Service::Real(QpType::Ud) => {
            optpar::RWE | optpar::PRIMARY_ADDR_PATH | optpar::ALT_ADDR_PATH | optpar::PM_STATE | reliable
        }
        Service::Real(QpType::XrcIni | QpType::XrcTgt) | Service::Inert { .. } => 0,
    }
}

/// Sets those fields of a context that a command sets.
fn set_fields(opcode: Opcode, optional: u32, asked: &Qpc, context: &mut Qpc) {
    let set = |context: &mut Qpc, bit: u32, always: bool, fields: &[hca_prm::Field<Qpc, u32>]| {
        if always || optional & bit != 0 {
            for field in fields {
                context.set(*field, asked.get(*field));
            }
        }
    };
    let flags = |context: &mut Qpc, always: bool| {
        for (bit, field) in [(optpar::RRE, Qpc::RRE), (optpar::RWE, Qpc::RWE), (optpar::RAE, Qpc::RAE)] {
            if always || optional & bit != 0 {
                context.set(field, asked.get(field));
            }
        }
    };
    let first = opcode == Opcode::RST2INIT_QP;
    let (rtr, rts) = (opcode == Opcode::INIT2RTR_QP, opcode == Opcode::RTR2RTS_QP);
    flags(context, first);
    set(context, optpar::Q_KEY, first, &[Qpc::Q_KEY]);
    set(context, optpar::PM_STATE, first, &[Qpc::PM_STATE]);
    set(context, optpar::COUNTER_SET_ID, first, &[Qpc::COUNTER_SET_ID]);
    set(context, optpar::RNR_TIMEOUT, rtr, &[Qpc::MIN_RNR_NAK]);
    set(context, optpar::RRA_MAX, rtr, &[Qpc::LOG_RRA_MAX]);
    set(context, optpar::SRA_MAX, rts, &[Qpc::LOG_SRA_MAX]);
    set(context, optpar::RETRY_COUNT, rts, &[Qpc::RETRY_COUNT]);
    set(context, optpar::RNR_RETRY, rts, &[Qpc::RNR_RETRY]);
    set(context, 0, rts, &[Qpc::NEXT_SEND_PSN, Qpc::LOG_ACK_REQ_FREQ]);
    set(context, 0, rtr, &[Qpc::MTU, Qpc::LOG_MSG_MAX, Qpc::REMOTE_QPN, Qpc::NEXT_RCV_PSN]);
    let asked_path = asked.get(Qpc::PRIMARY_ADDRESS_PATH);
    let path = context.get(Qpc::PRIMARY_ADDRESS_PATH);
    let timeout = asked_path.get(Ads::ACK_TIMEOUT);
    let path = match opcode {
        Opcode::INIT2RTR_QP => {
            let (pkey, port) = (path.get(Ads::PKEY_INDEX), path.get(Ads::VHCA_PORT_NUM));
            asked_path.with(Ads::PKEY_INDEX, pkey).with(Ads::VHCA_PORT_NUM, port)
        }
        Opcode::RST2INIT_QP => path
            .with(Ads::PKEY_INDEX, asked_path.get(Ads::PKEY_INDEX))
            .with(Ads::VHCA_PORT_NUM, asked_path.get(Ads::VHCA_PORT_NUM)),
        Opcode::RTR2RTS_QP => path.with(Ads::ACK_TIMEOUT, timeout),
        _ if optional & optpar::ACK_TIMEOUT != 0 => path.with(Ads::ACK_TIMEOUT, timeout),
        _ => path,
    };
    context.set(Qpc::PRIMARY_ADDRESS_PATH, path);
}

/// What peers may do through a queue pair.
fn access(context: &Qpc) -> Access {
    [(Qpc::RRE, Access::REMOTE_READ), (Qpc::RWE, Access::REMOTE_WRITE), (Qpc::RAE, Access::REMOTE_ATOMIC)]
        .into_iter()
        .filter(|(field, _)| context.get(*field))
        .map(|(_, access)| access)
        .collect()
}

/// By what a path leads on: by its GID, if it has one, or by its LID; the other one is none.
pub(crate) fn named(gid: [u8; 16], grh: bool, lid: u32) -> (Gid, Lid) {
    if gid != [0; 16] && (grh || lid == 0) {
        (Gid(gid), Lid::new(0))
    } else {
        (Gid::default(), Lid::new(lid as u16))
    }
}

/// Where a path leads. The addresses of functions here lead to the adapter's own.
pub(crate) fn destination(directory: &Directory, (gid, lid): (Gid, Lid)) -> Option<Gid> {
    if gid == Gid::default() { directory.route_lid(lid) } else { Some(directory.route_gid(gid)) }
}

/// A queue pair that answers nothing: the adapter gives no queue pair the number of management, and drops what is for
/// one that it has not.
const NOBODY: Qpn = Qpn::new(0);

/// To whom a context connects its queue pair.
fn peer(context: &Qpc, directory: &Directory) -> (AddressVector, Qpn) {
    let path = context.get(Qpc::PRIMARY_ADDRESS_PATH);
    let (gid, lid) = (path.get(Ads::RGID_RIP), path.get(Ads::RLID));
    let Some(dgid) = destination(directory, named(gid, path.get(Ads::GRH), lid)) else {
        return nobody(directory);
    };
    let mut traffic_class = path.get(Ads::TCLASS) as u8;
    if path.rmac() != [0; 6] {
        // RoCE has a place of its own for the class of service.
        traffic_class = (path.get(Ads::DSCP) << 2) as u8 | traffic_class & 3;
    }
    let av = AddressVector {
        dgid,
        flow_label: path.get(Ads::FLOW_LABEL),
        hop_limit: path.get(Ads::HOP_LIMIT) as u8,
        traffic_class,
        ..AddressVector::default()
    };
    (av, Qpn::new(context.get(Qpc::REMOTE_QPN)))
}

/// The peer of who is connected to an address that nobody has: packets leave, and no answer comes.
fn nobody(directory: &Directory) -> (AddressVector, Qpn) {
    (AddressVector { dgid: directory.own(), ..AddressVector::default() }, NOBODY)
}

/// Takes packets that queue pairs of this adapter have sent to it, while the receiver is not ready and drops them.
fn drop_packets_under_way(hca: &SoftHca) {
    const TURNS: usize = 64;
    for _ in 0..TURNS {
        if !hca.turn() {
            break;
        }
    }
}

/// Has the adapter change a queue pair. An adapter in silicon does not ask whether there is a way to the peer, so one
/// to which the network has none is nobody.
fn modify(hca: &SoftHca, qp: QpHandle, attr: &mut QpAttr, directory: &Directory) -> Result<(), DeviceError> {
    match hca.modify_qp(qp, attr) {
        Err(e @ (DeviceError::NoPath { .. } | DeviceError::Io { .. })) if attr.av.is_some() => {
            tracing::debug!("a connection leads nowhere: {e}");
            let (av, remote) = nobody(directory);
            (attr.av, attr.dest_qpn) = (Some(av), Some(remote));
            hca.modify_qp(qp, attr)
        }
        done => done,
    }
}

/// What the adapter is asked for.
fn attributes(
    opcode: Opcode,
    qp_type: QpType,
    optional: u32,
    context: &Qpc,
    directory: &Directory,
) -> Result<QpAttr, CmdStatus> {
    let (_, to) = transition(opcode).ok_or(CmdStatus::BadOp)?;
    let mut attr = QpAttr { state: Some(to), ..QpAttr::default() };
    if matches!(to, QpState::Reset | QpState::Error) {
        return Ok(attr);
    }
    let (connected, rc) = (qp_type != QpType::Ud, qp_type == QpType::Rc);
    let entering = matches!(opcode, Opcode::RST2INIT_QP | Opcode::INIT2INIT_QP);
    if entering {
        attr.pkey = Some(Pkey::DEFAULT);
    }
    if connected && (entering || optional & (optpar::RRE | optpar::RWE | optpar::RAE) != 0) {
        attr.access = Some(access(context));
    }
    if !connected && (entering || optional & optpar::Q_KEY != 0) {
        attr.qkey = Some(Qkey::new(context.get(Qpc::Q_KEY)));
    }
    let rnr = RnrTimer::new(context.get(Qpc::MIN_RNR_NAK) as u8);
    if opcode == Opcode::INIT2RTR_QP && connected {
        let mtu = MtuCode::from_code(context.get(Qpc::MTU)).and_then(MtuCode::mtu);
        attr.path_mtu = Some(mtu.ok_or(CmdStatus::BadParam)?);
        let (av, remote) = peer(context, directory);
        (attr.av, attr.dest_qpn) = (Some(av), Some(remote));
        attr.rq_psn = Some(Psn::new(context.get(Qpc::NEXT_RCV_PSN)));
        if rc {
            attr.max_dest_rd_atomic = Some(1 << context.get(Qpc::LOG_RRA_MAX));
            attr.min_rnr_timer = Some(rnr);
        }
    }
    if opcode == Opcode::RTR2RTS_QP {
        attr.sq_psn = Some(Psn::new(context.get(Qpc::NEXT_SEND_PSN)));
        if rc {
            let timeout = context.get(Qpc::PRIMARY_ADDRESS_PATH).get(Ads::ACK_TIMEOUT);
            attr.timeout = Some(AckTimeout::new(timeout as u8));
            attr.retry_cnt = Some(context.get(Qpc::RETRY_COUNT) as u8);
            attr.rnr_retry = Some(context.get(Qpc::RNR_RETRY) as u8);
            attr.max_rd_atomic = Some(1 << context.get(Qpc::LOG_SRA_MAX));
        }
    }
    let later = !entering && opcode != Opcode::INIT2RTR_QP;
    if rc && later && optional & optpar::RNR_TIMEOUT != 0 {
        attr.min_rnr_timer = Some(rnr);
    }
    Ok(attr)
}

impl Function {
    pub(crate) fn create_qp(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let command: CreateQpIn = parse(input)?;
        let context = command.get(CreateQpIn::QPC);
        let pd = match self.resources.pd(context.get(Qpc::PD)) {
            Some(pd) => pd,
            // Linux names none for the queue pair by which it would change keys.
            None if context.get(Qpc::ST) == ServiceType::RegUmr.code() => self.objects.unnamed()?,
            None => return Err(CmdStatus::BadRes),
        };
        if !self.pages.is_given(context.get(Qpc::UAR_PAGE)) {
            return Err(CmdStatus::BadRes);
        }
        let pas = &input[CreateQpIn::SIZE..];
        let qpn = self.objects.create_qp(&self.guest, pd, &command, pas)?;
        self.directory.lock().add_qp(qpn, self.options.number);
        out.put(&CreateQpOut::new().with(CreateQpOut::QPN, qpn))
    }

    pub(crate) fn destroy_qp(&mut self, input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        let qpn = parse::<DestroyQpIn>(input)?.get(DestroyQpIn::QPN);
        let mut directory = self.directory.lock();
        self.objects.destroy_qp(qpn, &directory)?;
        directory.remove_qp(qpn);
        Ok(())
    }

    pub(crate) fn query_qp(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let qpn = parse::<QueryQpIn>(input)?.get(QueryQpIn::QPN);
        out.put(&QueryQpOut::new().with(QueryQpOut::QPC, self.objects.query_qp(qpn)?))
    }

    /// All commands that change a queue pair's state or attributes, told apart by `opcode`.
    pub(crate) fn modify_qp(
        &mut self,
        opcode: Opcode,
        input: &[u8],
        _out: &mut Output,
    ) -> Result<(), CmdStatus> {
        let (qpn, optional, asked) = if matches!(opcode, Opcode::QP_2ERR | Opcode::QP_2RST) {
            (parse::<DestroyQpIn>(input)?.get(DestroyQpIn::QPN), 0, Qpc::new())
        } else {
            // The layouts of all of these are alike.
            let command: Rst2InitQpIn = parse(input)?;
            let optional = command.get(Rst2InitQpIn::OPT_PARAM_MASK);
            (command.get(Rst2InitQpIn::QPN), optional, command.get(Rst2InitQpIn::QPC))
        };
        let mut directory = self.directory.lock();
        self.objects.modify_qp(opcode, qpn, optional, &asked, &mut directory)
    }
}
