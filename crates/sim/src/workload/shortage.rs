//! Shortages of an adapter: completions beyond the queue's depth, and regions beyond the limit.

use core::ops::Range;

use hca_core::{Access, CqHandle, DeviceError, MrKeys, QpState};

use super::end::Life;
use super::host::{CQ_DEPTH, Cq};
use super::world::{Checked, World};

impl World {
    /// Entries of a node's completion queues.
    pub(super) fn cq_depth(&self, n: usize) -> u32 {
        self.plan.shallow.filter(|s| s.node == n).map_or(CQ_DEPTH, |s| s.depth)
    }

    /// Whether a node's program looks at no completion now.
    pub(super) fn is_deaf(&self, n: usize) -> bool {
        self.hosts[n].as_ref().is_some_and(|h| h.is_deaf)
    }
    pub(super) fn deafen(&mut self, n: usize) {
        let Some(host) = &mut self.hosts[n] else { return };
        (host.is_deaf, host.was_deaf) = (true, true);
        self.report.deaf += 1;
    }
    pub(super) fn hear(&mut self, n: usize) {
        let now = self.now();
        let Some(host) = self.hosts[n].as_mut().filter(|h| h.is_deaf) else { return };
        host.is_deaf = false;
        // What ended meanwhile is seen only now.
        for end in self.ends.iter_mut().filter(|e| e.host == n) {
            end.progress_at = end.progress_at.max(now);
        }
    }

    /// What peers were told has arrived is found once the program looks.
    pub(super) fn settle_owed(&mut self) -> Checked<()> {
        for e in 0..self.ends.len() {
            if self.is_deaf(self.ends[e].host) {
                continue;
            }
            if let Some(number) = self.ends[e].owed.take().filter(|_| self.ends[e].life != Life::Gone) {
                let arrived = self.ends[e].stream.acknowledged(number);
                self.check(e, "acknowledged message, looked for late", arrived)?;
            }
        }
        Ok(())
    }

    /// The device says that a completion queue has lost completions: the queue pairs on it are in error.
    pub(super) fn has_overrun(&mut self, n: usize, handle: CqHandle) -> Checked<()> {
        let Some(host) = &mut self.hosts[n] else { return Ok(()) };
        let Some(k) = host.cqs.iter().position(|c| c.handle == handle && !c.overran) else {
            return Err(self.broken(format!("{handle:?} of n{n} is gone, or said before that it overran")));
        };
        let cq = &mut host.cqs[k];
        (cq.overran, cq.unproven) = (true, true);
        self.report.overruns += 1;
        for e in 0..self.ends.len() {
            let end = &mut self.ends[e];
            if end.host != n || end.life == Life::Gone || !end.cqs.contains(&k) {
                continue;
            }
            end.overran = true;
            if end.cqs[0] == k {
                end.sq.overran();
            }
            if end.cqs[1] == k {
                end.rq.overran();
                end.stream.overran();
            }
            let (qp, qpn) = (end.handle, end.qpn);
            let status = self.refused("query_qp", self.host(n).device.query_qp(qp))?;
            if status.state != QpState::Error {
                return Err(self.broken(format!(
                    "qp {qpn} of n{n} is in {:?}, but one of its completion queues overran",
                    status.state
                )));
            }
            self.went_down(e);
        }
        Ok(())
    }

    /// A completion queue that lost completions was full: so many are found in it.
    pub(super) fn prove_overruns(&mut self) -> Checked<()> {
        for n in 0..self.hosts.len() {
            let Some(host) = self.hosts[n].as_mut().filter(|h| !h.is_deaf) else { continue };
            for cq in &mut host.cqs {
                let (taken, depth) = (core::mem::take(&mut cq.taken), cq.depth);
                if core::mem::take(&mut cq.unproven) && taken < depth as usize {
                    let handle = cq.handle;
                    return Err(self.broken(format!(
                        "{handle:?} of n{n} overran, but {taken} completions were in it, and it holds {depth}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Completion queues that overran are made anew once no queue pair is left on them.
    pub(super) fn rebuild_queues(&mut self) -> Checked<()> {
        for n in 0..self.hosts.len() {
            for k in 0..self.hosts[n].as_ref().map_or(0, |h| h.cqs.len()) {
                let used = |e: &super::end::End| e.host == n && e.life != Life::Gone && e.cqs.contains(&k);
                let host = self.host(n);
                if !host.cqs[k].overran || host.is_deaf || self.ends.iter().any(used) {
                    continue;
                }
                let depth = self.cq_depth(n);
                self.refused("destroy_cq", host.device.destroy_cq(host.cqs[k].handle))?;
                let cq = self.refused("create_cq", Cq::new(&*host.device, depth))?;
                self.host_mut(n).cqs[k] = cq;
                self.report.rebuilt += 1;
            }
        }
        Ok(())
    }
    /// Whether both nodes of a connection have a completion queue that did not overrun.
    pub(super) fn may_connect(&self, c: usize) -> bool {
        let has = |n: &usize| self.host(*n).cqs.iter().any(|cq| !cq.overran);
        self.plan.conns[c].nodes.iter().all(has)
    }

    /// A receive request whose completion was lost: its buffer may be written until the queue pair is gone.
    pub(super) fn receive_lost(&mut self, e: usize, wr_id: u64) {
        let buf = self.recv_bufs.remove(&wr_id).expect("the ledger names requests that were posted");
        self.ends[e].tainted.extend(buf.pieces);
    }

    /// Registers a range of a host. `None`: the adapter holds as many regions as it can.
    pub(super) fn register(
        &mut self,
        n: usize,
        range: Range<usize>,
        access: Access,
    ) -> Checked<Option<MrKeys>> {
        let limit = self.plan.max_regions;
        let of_manager = self.managers.regions();
        let host = self.host_mut(n);
        let held = host.regions.len() + of_manager;
        let full = limit.is_some_and(|l| held >= l as usize);
        match host.register(range, access) {
            Ok(keys) if !full => Ok(Some(keys)),
            Err(DeviceError::LimitReached { what: "memory region", limit: l })
                if full && limit.map(u64::from) == Some(l) =>
            {
                self.report.registrations_refused += 1;
                Ok(None)
            }
            other => Err(self.broken(format!(
                "n{n} holds {held} regions, its adapter {limit:?} at most, and reg_mr ended as {other:?}"
            ))),
        }
    }
}
