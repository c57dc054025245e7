//! Changing and destroying queue pairs. `drive::change` waits for peers within an access.

use hca_core::{Completion, DeviceError, Instant, QpAttr, QpHandle, QpState, QpType, TransitionError};
use hca_fabric::{PathId, PeerName, QpEnds, TakeBackId};

use crate::engine::Engine;
use crate::engine::host::QpHost;
use crate::limits::GENERAL_SERVICES;
use crate::objects::direct::DirectWork;
use crate::objects::qp::{QpEntry, QpRes, RecvQueue, is_near};
use crate::objects::qp_shared::DESTROYED;
use crate::objects::slab::Slab;
use crate::objects::tables::{Ah, Tables};
use crate::queues::cq::Purge;

/// How far a change is.
pub(crate) enum Change<T> {
    /// It is made, and what it took from peers is taken back once this take-back is done.
    Made(T, Option<TakeBackId>),
    /// Nothing is made. It is to be tried again behind this take-back: by then the object may be gone or be another
    /// one.
    Behind(TakeBackId),
}

impl Engine {
    /// Changes a queue pair.
    pub(crate) fn modify_qp(
        &mut self,
        now: Instant,
        qp: QpHandle,
        attr: &QpAttr,
    ) -> Result<Change<()>, DeviceError> {
        let entry = self.core.qps.known(qp.index, qp.generation)?;
        attr.check(entry.machine.qp_type(), entry.machine.state())?;
        let ends = matches!(attr.state, Some(QpState::Reset | QpState::Error));
        if ends {
            self.acknowledge(now, qp);
        }
        let entry = self.core.qps.known(qp.index, qp.generation)?;
        let (qp_type, had_messages) = (entry.machine.qp_type(), entry.machine.uses_messages());
        let (as_before, is_of_rd) = (entry.res.path.map(|_| had_messages), entry.res.rd.is_some());
        let peer = attr.dest_qpn.or(entry.machine.attr().dest_qpn);
        let kind = (qp_type, QpEnds { local: Some(entry.machine.qpn()), peer });
        if ends
            // Before requests end whose memory peers may be fetching.
            && let Some(id) = self.withdraw_word(qp)
        {
            return Ok(Change::Behind(id));
        }
        if ends && is_of_rd {
            self.core.recall(qp.index);
            // What contexts receive for it ends first, as its receive requests end in order.
            if qp_type == QpType::Rd {
                self.core.refuse_inbound_of(qp.index);
            }
        }
        let path = attr.av.as_ref().map(|av| self.open_path_of(now, kind, av, as_before)).transpose()?;
        let done =
            self.core.with_qp(now, qp, |entry, tables, ahs| change(now, entry, attr, path, (tables, ahs)));
        self.core.list_near(qp.index);
        let done = done.ok_or(DeviceError::UnknownHandle { what: "queue pair", handle: qp.index })?;
        let under_way = self.publish_word(qp.index);
        // The path that it does not need.
        let (goes, done) = match done {
            Ok(old) => (old.map(|p| (p, had_messages)), Ok(())),
            Err(e) => (path.map(|(p, near)| (p, near.is_some())), Err(e.into())),
        };
        if let Some((p, messages)) = goes {
            self.close_path(p, messages);
        }
        done.map(|()| Change::Made((), under_way))
    }

    /// Destroys a queue pair; names the requests of a shared receive queue that went with it.
    pub(crate) fn destroy_qp(&mut self, now: Instant, qp: QpHandle) -> Result<Change<Vec<u64>>, DeviceError> {
        self.acknowledge(now, qp);
        if let Some(id) = self.withdraw_word(qp) {
            return Ok(Change::Behind(id));
        }
        if self.core.qps.get(qp.index, qp.generation).is_some_and(|entry| entry.res.rd.is_some()) {
            self.core.recall(qp.index);
            self.core.refuse_inbound_of(qp.index);
        }
        let entry = self.core.qps.take(qp.index, qp.generation)?;
        let mut res = entry.res;
        if entry.machine.qpn() == GENERAL_SERVICES {
            self.core.general_services = None;
            if let Some(desk) = self.network.desk() {
                desk.read(false);
            }
        }
        self.leave_groups(qp.index);
        self.core.tables.ops_of_the_gone.add_all(&res.shared.ops);
        self.core.tables.mrs.unbind_windows_of(qp);
        res.shared.show_state(DESTROYED, false);
        if let Some(peer) = res.listed {
            self.core.near_qps.remove(&(peer, qp.index));
        }
        let lost = lost_recvs(&res, &mut self.core.tables);
        drop_requests(&mut res, &mut self.core.tables);
        drop_completions(&res, &mut self.core.tables, Purge::All);
        if let RecvQueue::Shared(s) = res.rq
            && let Some(srq) = self.core.tables.srqs.at_mut(s)
        {
            srq.users -= 1;
        }
        if let Some(p) = res.path {
            self.close_path(p, entry.machine.uses_messages());
        }
        self.core.forget(qp.index);
        self.end_rd_qp(entry.machine.qpn(), &mut res);
        self.end_eec(qp.index, &mut res);
        if let RecvQueue::Xrc(xrc) = &res.rq {
            self.end_xrc_target(qp.index, xrc);
        } else if !matches!(res.rq, RecvQueue::Context(_)) {
            for cq in [res.send_cq, res.recv_cq] {
                self.core.tables.cqs.at_mut(cq).expect("a user's queue exists").users -= 1;
            }
            self.leave_pd(res.pd);
        }
        self.core.finish(now);
        Ok(Change::Made(lost, None))
    }
}

/// Changes a queue pair, which leads to this path from now on; the path that it had.
fn change(
    now: Instant,
    entry: &mut QpEntry,
    attr: &QpAttr,
    path: Option<(PathId, Option<PeerName>)>,
    (tables, ahs): (&mut Tables, &Slab<Ah>),
) -> Result<Option<PathId>, TransitionError> {
    let QpEntry { machine, res, .. } = entry;
    if let Some((_, near)) = path {
        machine.use_messages(near.is_some());
    }
    let reset = attr.state == Some(QpState::Reset);
    let begins = (machine.state(), attr.state) == (QpState::Reset, Some(QpState::Init));
    if reset || begins {
        // Also those whose posters had looked at the state before the reset.
        drop_requests(res, tables);
    }
    if begins {
        let cqs = [res.send_cq, res.recv_cq];
        cqs.into_iter().for_each(|cq| _ = tables.cqs.at_mut(cq).map(|cq| cq.ended = false));
    }
    machine.modify(now, attr, &mut QpHost::new(res, tables, ahs))?;
    res.shared.show_state(res.shared.state(), is_near(machine, res));
    if reset {
        let purge = reset_purge(res);
        drop_completions(res, tables, purge);
    }
    let old =
        if path.is_some() || reset { core::mem::replace(&mut res.path, path.map(|p| p.0)) } else { None };
    // A peer that the old P_Key let in does not reach memory directly under a new one.
    if reset || attr.av.is_some() || attr.pkey.is_some() {
        (res.direct, res.direct_work, res.link) = (None, DirectWork::default(), None);
        machine.end_lanes();
    }
    if reset {
        (res.peer, res.near_peer) = (None, None);
    } else if let (Some(av), Some((_, near))) = (&attr.av, path) {
        (res.peer, res.near_peer) = (Some(av.dgid.ip()), near);
    }
    Ok(old)
}

/// The requests that a queue pair took from a shared receive queue and whose completions nobody has polled.
fn lost_recvs(res: &QpRes, tables: &mut Tables) -> Vec<u64> {
    let cq = tables.cqs.at_mut(res.recv_cq).filter(|_| matches!(res.rq, RecvQueue::Shared(_)));
    let ours = |c: &&Completion| c.qp == res.shared.handle && c.opcode.is_recv();
    cq.map_or_else(Vec::new, |cq| cq.ring.unreleased().filter(ours).map(|c| c.wr_id).collect())
}

/// What becomes of the completions of a queue pair that is reset: a request of a shared queue is named by one, or
/// nobody would know of it any more.
fn reset_purge(res: &QpRes) -> Purge {
    if matches!(res.rq, RecvQueue::Shared(_)) { Purge::FlushRecvs } else { Purge::All }
}

/// Forgets all requests of a queue pair. A request of a shared queue whose message has begun is that queue's again.
fn drop_requests(res: &mut QpRes, tables: &mut Tables) {
    let tail = res.sq.refresh();
    res.sq.release(tail);
    let begun = core::mem::take(&mut res.held.active);
    match &mut res.rq {
        RecvQueue::Own(rq) => {
            let tail = rq.refresh();
            rq.release(tail);
        }
        RecvQueue::Shared(srq) if begun => tables.return_to_srq(*srq, &mut res.held),
        RecvQueue::Xrc(xrc) if begun => xrc.give_back(tables, &mut res.held),
        RecvQueue::Datagrams(slot) => tables.drop_datagram_requests(*slot),
        RecvQueue::Context(context) if begun => context.give_back(tables, &mut res.held),
        RecvQueue::Shared(_) | RecvQueue::Xrc(_) | RecvQueue::Context(_) => {}
    }
}

/// Takes the completions of a queue pair out of their queues, but what `purge` leaves there. Those of a target of XRC
/// are the shared receive queues', and those of an end-to-end context the queue pairs'.
fn drop_completions(res: &QpRes, tables: &mut Tables, purge: Purge) {
    if matches!(res.rq, RecvQueue::Xrc(_) | RecvQueue::Context(_)) {
        return;
    }
    for cq in [res.send_cq, res.recv_cq] {
        if let Some(c) = tables.cqs.at_mut(cq) {
            c.purge(res.shared.handle, purge);
        }
    }
}

#[cfg(test)]
#[allow(unsafe_code)] // posts, whose requests name no memory
mod tests {
    use std::sync::Arc;

    use hca_core::{
        AckTimeout, AddressVector, Completion, CqPort, Device, Gid, Mtu, Payload, Pkey, Psn, QpInit, QpPorts,
        Qpn, RecvWr, RnrTimer, SendFlags, SendOp, SendWr, WcStatus,
    };
    use hca_fabric::LoopbackNet;

    use super::*;
    use crate::{Options, Progress, SoftHca};

    /// A queue pair that is connected to itself, with its completion queue.
    struct Own {
        device: Arc<SoftHca>,
        qp: QpPorts,
        cq: Box<dyn CqPort>,
    }

    fn to_state(state: QpState) -> QpAttr {
        QpAttr { state: Some(state), ..QpAttr::default() }
    }

    impl Own {
        fn new() -> Self {
            let fabric = LoopbackNet::new().attach([10, 0, 0, 1].into());
            let inline = Options { progress: Progress::Inline, ..Options::default() };
            let device = SoftHca::open(Box::new(fabric), inline).expect("an adapter opens");
            let pd = device.alloc_pd().unwrap();
            let (handle, cq) = device.create_cq(16).unwrap();
            let (qp_type, cap) = (QpType::Rc, hca_core::QpCap::default());
            let init = QpInit { qp_type, send_cq: handle, recv_cq: handle, srq: None, cap };
            let qp = device.create_qp(pd, &init).unwrap();
            let own = Self { device, qp, cq };
            own.connect();
            own
        }
        fn modify(&self, attr: &QpAttr) {
            self.device.modify_qp(self.qp.handle, attr).unwrap();
        }
        fn connect(&self) {
            let dgid = Gid::from_ip(self.device.fabric().local);
            self.modify(&QpAttr {
                pkey: Some(Pkey::DEFAULT),
                access: Some(hca_core::Access::REMOTE_WRITE),
                ..to_state(QpState::Init)
            });
            self.modify(&QpAttr {
                dest_qpn: Some(Qpn::new(self.qp.qpn.raw())),
                av: Some(AddressVector { dgid, ..AddressVector::default() }),
                path_mtu: Some(Mtu::B1024),
                rq_psn: Some(Psn::new(0)),
                max_dest_rd_atomic: Some(1),
                min_rnr_timer: Some(RnrTimer::new(1)),
                ..to_state(QpState::Rtr)
            });
            self.modify(&QpAttr {
                sq_psn: Some(Psn::new(0)),
                timeout: Some(AckTimeout::new(14)),
                retry_cnt: Some(7),
                rnr_retry: Some(7),
                max_rd_atomic: Some(1),
                ..to_state(QpState::Rts)
            });
        }
        /// Posts a SEND of no bytes.
        fn post(&mut self, wr_id: u64) {
            let (op, flags) = (SendOp::Send, SendFlags::SIGNALED);
            let wr = SendWr { wr_id, op, flags, payload: Payload::Sges(&[]), dest: None };
            // SAFETY: it names no memory.
            unsafe { self.qp.send.post_one(&wr) }.unwrap();
        }
        /// Posts a receive request of no bytes.
        fn post_recv(&mut self, wr_id: u64) {
            let recv = self.qp.recv.as_mut().expect("it has a queue of its own");
            // SAFETY: it names no memory.
            unsafe { recv.post_one(&RecvWr { wr_id, sges: &[] }) }.unwrap();
        }
        fn ring(&mut self) {
            self.qp.recv.as_mut().expect("it has a queue of its own").ring();
            self.qp.send.ring();
        }
        fn next(&mut self) -> Option<(u64, WcStatus)> {
            let mut one = [Completion::default()];
            (0..1000).find_map(|_| (self.cq.poll(&mut one) > 0).then(|| (one[0].wr_id, one[0].status)))
        }
        /// Sends a message, which goes from the next request to the next one.
        fn exchange(&mut self, round: usize) {
            self.post_recv(3);
            self.post(4);
            self.ring();
            let done = [0; 3].map(|_| self.next());
            let success = WcStatus::Success;
            assert_eq!(done, [Some((3, success)), Some((4, success)), None], "round {round}");
        }
    }

    #[test]
    fn requests_that_come_late_for_a_reset_are_forgotten() {
        let mut own = Own::new();
        for round in 0..3 {
            // Their poster looked at the state before the reset.
            own.post_recv(1);
            own.post(2);
            own.modify(&to_state(QpState::Reset));
            own.ring();
            own.connect();
            own.exchange(round);
        }
    }

    #[test]
    fn a_request_that_the_engine_has_not_seen_before_a_reset_is_forgotten() {
        let mut own = Own::new();
        let shared = own.device.shared().clone();
        let (now, qp) = (shared.time.now(), own.qp.handle);
        shared.control(|e| {
            // Another thread has the engine.
            own.post(2);
            own.ring();
            assert!(e.modify_qp(now, qp, &to_state(QpState::Reset)).is_ok());
        });
        own.modify(&to_state(QpState::Error));
        assert_eq!(own.next(), None);
        own.modify(&to_state(QpState::Reset));
        own.connect();
        own.exchange(0);
    }
}
