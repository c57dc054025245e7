//! Shared receive queues: each request completes once, comes back once as its queue pair goes, or stays in its queue.

use hca_core::AsyncEvent;

use super::end::Role;
use super::host::{Host, Srq};
use super::world::{Checked, World};

impl World {
    /// Whether an end is destroyed in the state that it is in: one that receives by shared queues, and has sent nothing
    /// that has not ended. The request of a message that is under way is its queue's again.
    pub(super) fn goes_live(&self, e: usize) -> bool {
        let end = &self.ends[e];
        let receives_by_shared = end.shares || end.role == Some(Role::Target);
        receives_by_shared && end.sq.is_empty() && (u64::from(end.qpn.raw()) ^ self.next_wr) & 1 == 0
    }
    /// A message that broke off as an end went has left its beginning in the buffer of a request that is used again.
    pub(super) fn messages_broke_off(&mut self, e: usize) {
        let n = self.ends[e].host;
        for queue in 0..self.ends[e].recv_queues() {
            let host = self.hosts[n].as_mut().expect("the node is up");
            let Some(srq) = self.ends[e].shared_queue(host, queue) else { continue };
            let posted: Vec<u64> = srq.ledger.outstanding().collect();
            for piece in
                posted.iter().filter_map(|wr_id| self.recv_bufs.get(wr_id)).flat_map(|buf| &buf.pieces)
            {
                let bytes = host.arena.read(piece.range.clone());
                host.shadow.write(piece.range.start, &bytes);
            }
        }
    }
    /// Requests that a queue pair took from a shared receive queue came back as it went.
    pub(super) fn came_back(&mut self, e: usize, requests: &[u64]) -> Checked<()> {
        let n = self.ends[e].host;
        for &wr_id in requests {
            let host = self.hosts[n].as_mut().expect("the node is up");
            // Requests of an XRC domain stay in their queues, whose completions are not the queue pair's.
            let Some(srq) = host.srq.as_mut().filter(|_| self.ends[e].shares) else {
                let qpn = self.ends[e].qpn;
                return Err(
                    self.broken(format!("qp {qpn} of n{n} gives back {wr_id:#x}, and shares no queue"))
                );
            };
            let back = srq.ledger.returned(wr_id);
            self.check(e, "shared receive queue", back)?;
            let buf = self.recv_bufs.remove(&wr_id).expect("the ledger names requests that were posted");
            for piece in &buf.pieces {
                self.seal(piece);
            }
            buf.pieces.into_iter().for_each(|piece| self.release(piece));
        }
        Ok(())
    }

    /// All queue pairs are gone: the shared receive queues of a node have the requests that were posted, and that have
    /// neither completed nor come back.
    pub(super) fn check_shared_queues(&mut self, n: usize, host: &Host) -> Checked<()> {
        let of_domain = host.xrc.iter().flat_map(|domain| domain.queues.iter().map(|(_, srq)| srq));
        for srq in host.srq.iter().chain(of_domain) {
            let posted = srq.ledger.len() as u32;
            let fewer = posted > 0 && self.has_fewer(host, srq, posted)?;
            if fewer || posted < srq.depth && !self.has_fewer(host, srq, posted + 1)? {
                let found = if fewer { "fewer" } else { "more" };
                return Err(self.broken(format!(
                    "{posted} requests of {:?} of n{n} have neither completed nor come back, and it has {found}",
                    srq.handle
                )));
            }
            self.report.srqs_whole += 1;
        }
        Ok(())
    }
    /// Whether a queue has fewer requests than this: the limit event comes at once then.
    fn has_fewer(&self, host: &Host, srq: &Srq, limit: u32) -> Checked<bool> {
        self.refused("set_srq_limit", host.device.set_srq_limit(srq.handle, limit))?;
        let mut fired = false;
        while let Some(event) = host.device.poll_event() {
            fired |= event == AsyncEvent::SrqLimitReached(srq.handle);
        }
        Ok(fired)
    }
}
