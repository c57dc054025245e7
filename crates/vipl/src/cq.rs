//! Completion queues: which work queue has a completed descriptor.

use hca::via::{Cq, CqEntry, Queue};

use crate::abi::{Code, Result};
use crate::border::{Context, CqCallback, Ptr, exports};
use crate::nic::nic;
use crate::queue::timeout;
use crate::table::{Handle, Table};
use crate::vi;

/// A completion queue of a program.
pub(crate) struct OwnedCq {
    pub(crate) cq: Cq,
    nic: Handle,
}

pub(crate) static CQS: Table<OwnedCq> = Table::new();

/// Whether an adapter has completion queues.
pub(crate) fn any_of(nic: Handle) -> bool {
    CQS.find(|cq| cq.nic == nic).is_some()
}

fn entries(count: u64) -> Result<u32> {
    u32::try_from(count).map_err(|_| Code::InvalidParameter)
}

/// Tells the program of an entry.
fn tell(entry: CqEntry, vi: Ptr<Handle>, recv: Ptr<i32>) -> Result {
    vi.write(vi::handle_of(entry.vi).unwrap_or(Handle::NONE))?;
    recv.write((entry.queue == Queue::Receive).into())
}

exports! {
    fn VipCreateCQ(NicHandle: Handle, EntryCount: u64, CQHandle: Ptr<Handle>) {
        let (nic, out) = (nic(NicHandle)?, CQHandle.there()?);
        let cq = nic.create_cq(entries(EntryCount)?)?;
        let handle = Handle::new();
        CQS.put(handle, OwnedCq { cq, nic: NicHandle });
        out.write(handle)
    }
    fn VipDestroyCQ(CQHandle: Handle) {
        let end = |OwnedCq { cq, nic }| cq.destroy().map_err(|(cq, error)| (OwnedCq { cq, nic }, error));
        CQS.end(CQHandle, |owned| owned.cq.check_unused(), end)
    }
    fn VipResizeCQ(CQHandle: Handle, EntryCount: u64) {
        Ok(CQS.get(CQHandle)?.cq.resize(entries(EntryCount)?)?)
    }
    fn VipCQDone(CQHandle: Handle, ViHandle: Ptr<Handle>, RecvQueue: Ptr<i32>) {
        let (cq, vi, recv) = (CQS.get(CQHandle)?, ViHandle.there()?, RecvQueue.there()?);
        tell(cq.cq.done().ok_or(Code::NotDone)?, vi, recv)
    }
    fn VipCQWait(CQHandle: Handle, Timeout: u64, ViHandle: Ptr<Handle>, RecvQueue: Ptr<i32>) {
        let (cq, vi, recv) = (CQS.get(CQHandle)?, ViHandle.there()?, RecvQueue.there()?);
        tell(cq.cq.wait(timeout(Timeout))?, vi, recv)
    }
    fn VipCQNotify(CQHandle: Handle, Ctx: Context, Callback: Option<CqCallback>) {
        let (cq, call) = (CQS.get(CQHandle)?, Callback.ok_or(Code::InvalidParameter)?);
        let nic = cq.nic;
        Ok(cq.cq.notify(move |entry| {
            let vi = vi::handle_of(entry.vi).unwrap_or(Handle::NONE);
            call(Ctx, nic, vi, (entry.queue == Queue::Receive).into());
        })?)
    }
}
