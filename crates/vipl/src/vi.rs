//! VIs: their attributes and their state.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use hca::via::{Vi, ViId};

use crate::abi::{CViAttributes, Result, state_code};
use crate::border::{Ptr, exports};
use crate::cq::CQS;
use crate::nic::nic;
use crate::table::{Handle, Table, lock};

/// A VI of a program.
pub(crate) struct OwnedVi {
    pub(crate) vi: Vi,
    pub(crate) nic: Handle,
}

pub(crate) static VIS: Table<OwnedVi> = Table::new();
/// The handles of VIs, which completion queues and asynchronous errors name by their numbers.
static NUMBERS: LazyLock<Mutex<HashMap<ViId, Handle>>> = LazyLock::new(Mutex::default);

/// The handle of a VI that has not been destroyed.
pub(crate) fn handle_of(vi: ViId) -> Option<Handle> {
    lock(&NUMBERS).get(&vi).copied()
}
/// Whether an adapter has VIs.
pub(crate) fn any_of(nic: Handle) -> bool {
    VIS.find(|vi| vi.nic == nic).is_some()
}

exports! {
    fn VipCreateVi(
        NicHandle: Handle,
        ViAttribs: Ptr<CViAttributes>,
        SendCQHandle: Handle,
        RecvCQHandle: Handle,
        ViHandle: Ptr<Handle>,
    ) {
        let (nic, out) = (nic(NicHandle)?, ViHandle.there()?);
        let attributes = ViAttribs.read()?.parse()?;
        let cq = |handle: Handle| if handle.is_none() { Ok(None) } else { CQS.get(handle).map(Some) };
        let (send, recv) = (cq(SendCQHandle)?, cq(RecvCQHandle)?);
        let [send, recv] = [&send, &recv].map(|cq| cq.as_ref().map(|cq| &cq.cq));
        let vi = nic.create_vi(&attributes, send, recv)?;
        let handle = Handle::new();
        lock(&NUMBERS).insert(vi.id(), handle);
        VIS.put(handle, OwnedVi { vi, nic: NicHandle });
        out.write(handle)
    }
    fn VipDestroyVi(ViHandle: Handle) {
        let id = VIS.get(ViHandle)?.vi.id();
        let end = |OwnedVi { vi, nic }| vi.destroy().map_err(|(vi, error)| (OwnedVi { vi, nic }, error));
        VIS.end(ViHandle, |owned| owned.vi.check_unused(), end)?;
        lock(&NUMBERS).remove(&id);
        Ok(())
    }
    fn VipSetViAttributes(ViHandle: Handle, Attributes: Ptr<CViAttributes>) {
        let vi = VIS.get(ViHandle)?;
        Ok(vi.vi.set_attributes(&Attributes.read()?.parse()?)?)
    }
    fn VipQueryVi(
        ViHandle: Handle,
        State: Ptr<u32>,
        Attributes: Ptr<CViAttributes>,
        ViSendQEmpty: Ptr<i32>,
        ViRecvQEmpty: Ptr<i32>,
    ) {
        let vi = VIS.get(ViHandle)?;
        let (state, attributes) = (State.there()?, Attributes.there()?);
        let (send, recv) = (ViSendQEmpty.there()?, ViRecvQEmpty.there()?);
        let status = vi.vi.query();
        state.write(state_code(status.state))?;
        attributes.write(CViAttributes::of(&status.attributes))?;
        send.write(status.send_queue_empty.into())?;
        recv.write(status.receive_queue_empty.into())
    }
}

/// Calls `f` with a VI.
pub(crate) fn with<T>(handle: Handle, f: impl FnOnce(&Vi) -> Result<T>) -> Result<T> {
    f(&VIS.get(handle)?.vi)
}
