//! Changing and destroying queue pairs. `drive::change` waits for peers within an access.

use hca_core::{Completion, DeviceError, Instant, QpAttr, QpHandle, QpState, QpType, TransitionError};
use hca_fabric::{QpEnds, TakeBackId};

use crate::engine::Engine;
use crate::engine::host::QpHost;
use crate::limits::{GENERAL_SERVICES, unknown};
use crate::objects::direct::DirectWork;
use crate::objects::qp::{QpEntry, QpRes, RecvQueue, is_near};
use crate::objects::qp_shared::DESTROYED;
use crate::objects::tables::Tables;
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
        let missing = || unknown("queue pair", qp.index);
        let port_mtu = self.network.attr().max_mtu;
        let entry = self.core.qps.get(qp.index, qp.generation).ok_or_else(missing)?;
        attr.check(entry.machine.qp_type(), entry.machine.state())?;
        if let Some(mtu) = attr.path_mtu.filter(|m| *m > port_mtu) {
            let (value, max) = (mtu.bytes().into(), port_mtu.bytes().into());
            return Err(TransitionError::Value { what: "path_mtu", value, max }.into());
        }
        let ends = matches!(attr.state, Some(QpState::Reset | QpState::Error));
        if ends {
            self.acknowledge(now, qp);
        }
        let entry = self.core.qps.get(qp.index, qp.generation).ok_or_else(missing)?;
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
        if is_of_rd && matches!(attr.state, Some(QpState::Reset | QpState::Error)) {
            self.core.recall(qp.index);
            // What contexts receive for it ends first, as its receive requests end in order.
            if qp_type == QpType::Rd {
                self.core.refuse_inbound_of(qp.index);
            }
        }
        let path = attr.av.as_ref().map(|av| self.open_path_of(now, kind, av, as_before)).transpose()?;
        let done = self.core.with_qp(now, qp, |entry, tables, ahs| {
            let QpEntry { machine, res, .. } = entry;
            if let Some((_, near)) = path {
                machine.use_messages(near.is_some());
            }
            machine.modify(now, attr, &mut QpHost::new(res, tables, ahs))?;
            res.shared.show_state(res.shared.state(), is_near(machine, res));
            let reset = attr.state == Some(QpState::Reset);
            if reset {
                let purge = reset_purge(res);
                drop_requests(res, tables, purge);
            }
            let old = if path.is_some() || reset {
                core::mem::replace(&mut res.path, path.map(|p| p.0))
            } else {
                None
            };
            if reset || attr.av.is_some() {
                (res.direct, res.direct_work, res.link) = (None, DirectWork::default(), None);
                machine.end_lanes();
            }
            if reset {
                (res.peer, res.near_peer) = (None, None);
            } else if let (Some(av), Some((_, near))) = (&attr.av, path) {
                (res.peer, res.near_peer) = (Some(av.dgid.ip()), near);
            }
            Ok::<_, TransitionError>(old)
        });
        self.core.list_near(qp.index);
        let done = done.ok_or_else(missing)?;
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
        let entry =
            self.core.qps.remove(qp.index, qp.generation).ok_or_else(|| unknown("queue pair", qp.index))?;
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
        drop_requests(&mut res, &mut self.core.tables, Purge::All);
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

/// Forgets all requests of a queue pair, and takes its completions out of their queues, but what `purge` leaves there.
/// A request of a shared queue whose message has begun is that queue's again.
fn drop_requests(res: &mut QpRes, tables: &mut Tables, purge: Purge) {
    let tail = res.sq.refresh();
    res.sq.release(tail);
    let begun = core::mem::take(&mut res.held.active);
    match &mut res.rq {
        RecvQueue::Own(rq) => {
            let tail = rq.refresh();
            rq.release(tail);
        }
        RecvQueue::Shared(srq) if begun => tables.return_to_srq(*srq, &mut res.held),
        RecvQueue::Shared(_) => {}
        RecvQueue::Xrc(xrc) => {
            if begun {
                xrc.give_back(tables, &mut res.held);
            }
            // Completions are those of the shared receive queues.
            return;
        }
        RecvQueue::Datagrams(slot) => tables.drop_datagram_requests(*slot),
        RecvQueue::Context(context) => {
            if begun {
                context.give_back(tables, &mut res.held);
            }
            // Completions are those of the queue pairs.
            return;
        }
    }
    for cq in [res.send_cq, res.recv_cq] {
        if let Some(c) = tables.cqs.at_mut(cq) {
            c.purge(res.shared.handle, purge);
        }
    }
}
