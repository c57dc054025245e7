//! Queue pairs of a function's driver.
//!
//! A queue pair of the RC, UC, UD or XRC service has a counterpart at the adapter, with the same number and, except for
//! the send queue error state, the same state. An XRC queue pair without a send queue is a target, which has no queues,
//! no doorbell record and no completion queues; one with a send queue is an initiator, which has that queue alone.
//! Management queue pairs, and the queue pair by which Linux changes memory keys, have no counterpart: they have a
//! number, states, and queues. They accept management datagrams, which get no answer, and changes of the rights and
//! protection domains of keys; every other request ends in error. Queue pairs of other services are refused.

mod aside;
pub(crate) mod grh;
pub(crate) mod modify;
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
pub(crate) mod tests_watch;
#[cfg(test)]
mod tests_wqe;
pub(crate) mod watch;

use hca_core::{
    Device, ExtendedConnections, PdHandle, QpCap, QpHandle, QpInit, QpState, QpType, RecvPort, SendPort,
    SrqHandle,
};
use hca_prm::command::qp::{CreateQpIn, CreateQpOut, DestroyQpIn, QueryQpIn, QueryQpOut};
use hca_prm::{CmdStatus, QpState as StateCode, Qpc, RqType, SEND_WQE_BB, ServiceType};

use crate::command::caps::{self, LOG_QP_SIZE, LOG_QPS};
use crate::command::{Output, parse};
use crate::function::Function;
use crate::guest::users::{Noted, Windows};
use crate::guest::{Guest, Window};
use crate::objects::{Counted, Objects, has_room, no_window, status};
use crate::port::counters::Fetched;
use crate::port::directory::Directory;
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

impl Windows for QpMemory {
    fn windows(&self) -> impl Iterator<Item = &Window> {
        self.queues.iter().chain([&self.record])
    }
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
    /// The domain of extended connections of a target.
    pub(crate) xrcd: Option<u32>,
    /// None of a target, and none once it has gone.
    pub(crate) memory: Option<Noted<QpMemory>>,
    pub(crate) sq: Option<WorkQueue>,
    pub(crate) rq: Option<WorkQueue>,
    /// Where send requests go; none of a target.
    pub(crate) send: Option<Box<dyn SendPort>>,
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
    counted: Counted,
}

impl Qp {
    pub(crate) fn is_inert(&self) -> bool {
        matches!(self.service, Service::Inert { .. })
    }
    pub(crate) fn is_datagram(&self) -> bool {
        self.service == Service::Real(QpType::Ud)
    }
    /// Whether an error of its send queue ends all of it.
    pub(crate) fn is_reliable(&self) -> bool {
        matches!(self.service, Service::Real(qp_type) if qp_type.is_reliable())
    }
    /// The doorbell page on which it announces its work; a target has none.
    pub(crate) fn uar(&self) -> Option<u32> {
        self.sq.map(|_| self.context.get(Qpc::UAR_PAGE))
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

/// A queue pair as the adapter has made it.
struct Made {
    handle: QpHandle,
    qpn: u32,
    xrcd: Option<u32>,
    memory: Option<QpMemory>,
    send: Option<Box<dyn SendPort>>,
    recv: Option<Box<dyn RecvPort>>,
    counted: Counted,
}

fn service(context: &Qpc) -> Result<Service, CmdStatus> {
    use ServiceType as S;
    let service = ServiceType::from_code(context.get(Qpc::ST)).ok_or(CmdStatus::BadParam)?;
    Ok(match service {
        S::Rc => Service::Real(QpType::Rc),
        S::Uc => Service::Real(QpType::Uc),
        S::Ud => Service::Real(QpType::Ud),
        S::Xrc if context.get(Qpc::RQ_TYPE) == RqType::Regular.code() => return Err(CmdStatus::BadParam),
        S::Xrc if context.get(Qpc::NO_SQ) => Service::Real(QpType::XrcTgt),
        S::Xrc => Service::Real(QpType::XrcIni),
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
        let Shape { sq, rq, shared } = Shape::of(&context)?;
        // Those of extended connections have no receive queue; drivers name one of a domain all the same.
        let extended = matches!(service, Service::Real(QpType::XrcIni | QpType::XrcTgt));
        let shape = Shape { sq, rq, shared: shared && !extended };
        let (cq_send, cq_recv) = self.completion_queues(&context, &shape)?;
        let real = matches!(service, Service::Real(_));
        let srq = (shape.shared && real).then(|| context.get(Qpc::SRQN_RMPN_XRQN));
        let made = if service == Service::Real(QpType::XrcTgt) {
            self.make_target(context.get(Qpc::XRCD))?
        } else {
            let adapters_srq = srq.map(|number| self.adapters_srq(number)).transpose()?;
            let memory = shape.memory(guest, &context, pas)?;
            self.make_queues(pd, service, &shape, adapters_srq, memory)?
        };
        if let Some(pace) = &self.pace {
            self.hca.set_pace(made.handle, pace.clone());
        }
        let qpn = made.qpn;
        let qp = Qp {
            handle: made.handle,
            service,
            pd,
            user_index: context.get(Qpc::USER_INDEX),
            cq_send,
            cq_recv,
            srq,
            xrcd: made.xrcd,
            memory: made.memory.map(|memory| self.queues_of.qps.note(qpn, memory)),
            sq: shape.sq,
            rq: shape.rq,
            send: made.send,
            recv: made.recv.filter(|_| real),
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
            counted: made.counted,
        };
        self.by_index.insert(qp.handle.index, qpn);
        self.qps.insert(qpn, qp);
        self.watched.insert(qpn);
        Ok(qpn)
    }

    /// The completion queues of a queue pair: those of the queues that it has. A queue that it lacks has none,
    /// whichever the driver names.
    fn completion_queues(&self, context: &Qpc, shape: &Shape) -> Result<(u32, u32), CmdStatus> {
        let of = |there: bool, cqn: u32| if there { self.usable_cq(cqn) } else { Ok(0) };
        let receives = shape.rq.is_some() || shape.shared;
        Ok((of(shape.sq.is_some(), context.get(Qpc::CQN_SND))?, of(receives, context.get(Qpc::CQN_RCV))?))
    }

    /// Has the adapter make a target of a domain of extended connections.
    fn make_target(&mut self, xrcd: u32) -> Result<Made, CmdStatus> {
        let domain = self.xrcds.get(&xrcd).ok_or(CmdStatus::BadRes)?;
        let (handle, qpn) = self.hca.create_xrc_target(domain.handle).map_err(status)?;
        let (xrcd, qpn) = (Some(xrcd), qpn.raw());
        Ok(Made { handle, qpn, xrcd, memory: None, send: None, recv: None, counted: Counted::default() })
    }

    /// Has the adapter make a queue pair with queues.
    fn make_queues(
        &mut self,
        pd: PdHandle,
        service: Service,
        shape: &Shape,
        srq: Option<SrqHandle>,
        memory: QpMemory,
    ) -> Result<Made, CmdStatus> {
        let completions = self.completions()?;
        let (qp_type, cap) = match service {
            Service::Real(qp_type) => (qp_type, shape.cap()),
            Service::Inert { .. } => {
                let cap =
                    QpCap { max_send_wr: 1, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline: 0 };
                (QpType::Ud, cap)
            }
        };
        let init = QpInit { qp_type, send_cq: completions, recv_cq: completions, srq, cap };
        let counted = self.count_queues(&cap)?;
        let ports = self.hca.create_qp(pd, &init).map_err(|e| {
            self.uncount_queue(counted);
            status(e)
        })?;
        Ok(Made {
            handle: ports.handle,
            qpn: ports.qpn.raw(),
            xrcd: None,
            memory: Some(memory),
            send: Some(ports.send),
            recv: ports.recv,
            counted,
        })
    }

    fn unnamed(&mut self) -> Result<PdHandle, CmdStatus> {
        match self.unnamed {
            Some(pd) => Ok(pd),
            None => Ok(*self.unnamed.insert(self.hca.alloc_pd().map_err(status)?)),
        }
    }

    fn count_queues(&mut self, cap: &QpCap) -> Result<Counted, CmdStatus> {
        let entries = cap.max_send_sge.max(cap.max_inline / 16);
        let send = self.count_queue(cap.max_send_wr, entries)?;
        let recv = self.count_queue(cap.max_recv_wr, cap.max_recv_sge);
        if recv.is_err() {
            self.uncount_queue(send);
        }
        Ok(send + recv?)
    }

    /// The adapter's queue of a shared receive queue; those of domains are for targets alone.
    fn adapters_srq(&self, number: u32) -> Result<SrqHandle, CmdStatus> {
        let srq = self.srqs.get(&number).filter(|srq| srq.extended().is_none());
        srq.and_then(Srq::handle).ok_or(CmdStatus::BadRes)
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
        self.watched.remove(qpn, &qp, (&mut self.srqs, &mut self.xrcds));
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
        let reliable = qp.is_reliable();
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
        // A target announces nothing, so Linux gives it no doorbell page.
        let is_target = context.get(Qpc::ST) == ServiceType::Xrc.code() && context.get(Qpc::NO_SQ);
        if !is_target && !self.pages.is_given(context.get(Qpc::UAR_PAGE)) {
            return Err(CmdStatus::BadRes);
        }
        let pas = &input[CreateQpIn::SIZE..];
        let qpn = self.objects.create_qp(&self.guest, pd, &command, pas)?;
        self.directory.lock().add_qp(qpn, self.options.number);
        out.put(&CreateQpOut::new().with(CreateQpOut::QPN, qpn))
    }

    pub(crate) fn destroy_qp(&mut self, input: &[u8], _out: &mut Output) -> Result<(), CmdStatus> {
        let qpn = parse::<DestroyQpIn>(input)?.get(DestroyQpIn::QPN);
        if self.objects.qps.get(&qpn).is_some_and(Qp::is_datagram) {
            // Whether its protection domain has others is looked for.
            self.commands.charge(self.objects.qps.len());
        }
        let mut directory = self.directory.lock();
        self.objects.destroy_qp(qpn, &directory)?;
        directory.remove_qp(qpn);
        Ok(())
    }

    pub(crate) fn query_qp(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let qpn = parse::<QueryQpIn>(input)?.get(QueryQpIn::QPN);
        out.put(&QueryQpOut::new().with(QueryQpOut::QPC, self.objects.query_qp(qpn)?))
    }
}
