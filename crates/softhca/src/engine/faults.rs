//! Failed requests, and refused accesses of the peer: the reasons, for completions, counters and traces.

use hca_core::{Access, Completion, KeyFault, PdHandle, Rkey, SendOp, Sge, WcStatus};
use hca_transport::{RecvDone, RemoteAccessError};

use crate::engine::host::QpHost;
use crate::objects::qp::RecvQueue;
use crate::queues::slot::{entries, in_slot};

impl QpHost<'_> {
    /// Counts and traces that an access of the peer was refused. The wire tells the peer no reason.
    #[cold]
    pub(super) fn refuse(&mut self, rkey: Rkey, va: u64, len: u64, access: Access) -> RemoteAccessError {
        let user = (self.res.pd, Some(self.res.shared.handle));
        let why = self.tables.mrs.fault(user, rkey.raw(), va, len, access);
        self.refuse_for(why, rkey, (va, len), access)
    }
    /// As [`refuse`](Self::refuse), for a known reason.
    #[cold]
    pub(super) fn refuse_for(
        &mut self,
        why: KeyFault,
        rkey: Rkey,
        (va, len): (u64, u64),
        access: Access,
    ) -> RemoteAccessError {
        let qp = self.res.shared.handle;
        tracing::debug!(%qp, %rkey, va, len, ?access, %why, "a peer's access was refused");
        self.tables.key_faults[why as usize - 1] += 1;
        RemoteAccessError
    }
    /// As [`refuse`](Self::refuse), of a SEND with invalidate.
    #[cold]
    pub(super) fn refuse_invalidate(&mut self, rkey: Rkey) -> RemoteAccessError {
        let user = (self.res.pd, Some(self.res.shared.handle));
        let why = self.tables.mrs.invalidate_fault(user, rkey.raw());
        tracing::debug!(qp = %user.1.unwrap_or_default(), %rkey, %why, "a peer's invalidate was refused");
        self.tables.key_faults[why as usize - 1] += 1;
        RemoteAccessError
    }

    /// Completes the oldest send request, which failed.
    #[cold]
    #[inline(never)]
    pub(super) fn fail_send(&mut self, index: u32, status: WcStatus) {
        let why = self.send_fault(index, status);
        let h = self.res.sq.header_ref(index);
        let (wr_id, opcode) = (h.wr_id, h.op.wc_opcode());
        self.res.sq.release(index.wrapping_add(1));
        let (qp, byte_len) = (self.res.sender.handle, code(why));
        if let Some(rd) = &mut self.res.rd {
            rd.request_failed();
        }
        let c = Completion { wr_id, qp, status, opcode, byte_len, ..Completion::default() };
        self.tables.complete(self.res.send_cq, c);
    }
    fn send_fault(&self, index: u32, status: WcStatus) -> Option<KeyFault> {
        let (pd, qp) = (self.res.send_pd, self.res.shared.handle);
        let (h, cells) = self.res.sq.at(index);
        match (status, h.op.op()) {
            (WcStatus::MwBind, SendOp::BindMw { rkey, range }) => {
                Some(self.tables.mrs.bind_fault((pd, rkey.raw()), &range))
            }
            (WcStatus::MwBind, SendOp::LocalInv(rkey)) => {
                Some(self.tables.mrs.invalidate_fault((pd, Some(qp)), rkey.raw()))
            }
            (WcStatus::LocalProtection, op) => {
                use SendOp::{CompareSwap, FetchAdd, Read};
                let fills = matches!(op, Read(_) | CompareSwap { .. } | FetchAdd { .. });
                let access = if fills { Access::LOCAL_WRITE } else { Access::empty() };
                let memory = entries(cells, h).filter(|s| in_slot(cells, h, s).is_none());
                self.list_fault(pd, memory, access)
            }
            _ => None,
        }
    }

    /// Completes the held receive request, which failed.
    #[cold]
    #[inline(never)]
    pub(super) fn fail_recv(&mut self, done: &RecvDone) {
        let why = match (done.status, &self.res.rq) {
            (WcStatus::LocalProtection, RecvQueue::Own(rq)) => {
                let (h, cells) = rq.at(rq.head());
                self.list_fault(self.res.recv_pd, h.list(cells), Access::LOCAL_WRITE)
            }
            (WcStatus::LocalProtection, _) => {
                let list = self.res.held.sges.iter().copied();
                self.list_fault(self.res.recv_pd, list, Access::LOCAL_WRITE)
            }
            _ => None,
        };
        let srq = self.release_held();
        let (wr_id, qp) = (self.res.held.wr_id, self.res.receiver.handle);
        let &RecvDone { status, opcode, .. } = done;
        let c = Completion { wr_id, qp, status, opcode, byte_len: code(why), srq, ..Completion::default() };
        self.tables.complete(self.res.recv_cq, c);
    }

    /// The reason of the first entry of a local list that its key does not allow now.
    fn list_fault(
        &self,
        pd: PdHandle,
        mut list: impl Iterator<Item = Sge>,
        access: Access,
    ) -> Option<KeyFault> {
        let mrs = &self.tables.mrs;
        list.find_map(|s| {
            let (key, len) = (s.lkey.raw(), u64::from(s.len));
            let covered = len == 0
                || mrs.translate(pd, key, s.addr, len, access).is_ok()
                || mrs.scattered(pd, key, s.addr, len, access).is_ok();
            (!covered).then(|| mrs.fault((pd, None), key, s.addr, len, access))
        })
    }
}

/// The vendor code of a completion, 0 for no reason, where the field is that a success has for its length.
fn code(why: Option<KeyFault>) -> u32 {
    why.map_or(0, |why| why.code().into())
}
