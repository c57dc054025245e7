//! Multicast groups.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use hca::hca_core::Gid;

use super::abi::{RdmaCmId, RdmaCmJoinMcAttrEx};
use super::border::address;
use super::channel::What;
use super::event::complete;
use super::id::{Group, IDS, Id, Phase};
use crate::entry::{Errno, INVALID, In, cancellable, counted, exports};
use crate::qp::Qp;
use crate::waiting::waiting;

/// Bits of `enum rdma_cm_join_mc_attr_mask`.
const ADDRESS: u32 = 1;
const JOIN_FLAGS: u32 = 1 << 1;
/// Flags of a join.
const FULL_MEMBER: u32 = 0;
const SEND_ONLY: u32 = 1;

impl Id {
    fn join(
        self: &Arc<Self>,
        to: In<libc::sockaddr>,
        sends_only: bool,
        context: *mut c_void,
    ) -> Result<(), Errno> {
        let gid = Gid::from(address(to)?.ip());
        let mut state = self.state();
        let is_bound = matches!(state.phase, Phase::Bound | Phase::AddressResolved | Phase::RouteResolved);
        let device = state.device.clone().filter(|_| is_bound).ok_or(INVALID)?;
        if !gid.is_multicast() || gid.is_ipv4() != device.gid.is_ipv4() || !self.is_datagram() {
            return Err(INVALID);
        }
        if state.groups.iter().any(|group| group.gid == gid) {
            return Err(Errno(libc::EADDRINUSE));
        }
        device.device()?.multicast().ok_or(Errno(libc::EOPNOTSUPP))?;
        state.groups.push(Group { gid, sends_only, is_attached: false });
        drop(state);
        self.note(What::Joined { group: gid, context: context as usize });
        Ok(())
    }
    fn leave(self: &Arc<Self>, to: In<libc::sockaddr>) -> Result<(), Errno> {
        let gid = Gid::from(address(to)?.ip());
        let mut state = self.state();
        let at = state.groups.iter().position(|group| group.gid == gid);
        let group = state.groups.remove(at.ok_or(Errno(libc::EADDRNOTAVAIL))?);
        drop(state);
        // As the kernel does: the event of a join that was not taken goes with the group.
        self.forget(|what| matches!(what, What::Joined { group, .. } if *group == gid));
        // The memberships of a queue pair that is gone went with it.
        if group.is_attached
            && let Some(qp) = In::<Qp>::of(self.c.qp.get()).opt()
        {
            let device = qp.adapter.device();
            device.multicast().map_or(Ok(()), |groups| groups.detach_mcast(qp.handle, gid))?;
        }
        Ok(())
    }
}

/// Makes the queue pair a member, when the program takes the event of a join. `None`: another thread has left the group.
pub(super) fn joined(id: &Arc<Id>, gid: Gid) -> Option<Result<(), Errno>> {
    let mut state = id.state();
    let group = state.groups.iter_mut().find(|group| group.gid == gid)?;
    Some(attach(id, group))
}
fn attach(id: &Id, group: &mut Group) -> Result<(), Errno> {
    if !group.sends_only
        && let Some(qp) = In::<Qp>::of(id.c.qp.get()).opt()
    {
        let device = qp.adapter.device();
        device.multicast().ok_or(Errno(libc::EOPNOTSUPP))?.attach_mcast(qp.handle, group.gid)?;
        group.is_attached = true;
    }
    Ok(())
}

cancellable! {
    "RDMACM_1.0" fn rdma_join_multicast(id: In<RdmaCmId>, to: In<libc::sockaddr>, context: *mut c_void) -> c_int {
        waiting(|| async move {
            let id = IDS.get(id)?;
            id.join(to, false, context)?;
            complete(&id).await?;
            Ok(0)
        }) as c_int
    }
    "RDMACM_1.1" fn rdma_join_multicast_ex(id: In<RdmaCmId>, attr: In<RdmaCmJoinMcAttrEx>, context: *mut c_void) -> c_int {
        waiting(|| async move {
            let (id, attr) = (IDS.get(id)?, attr.get()?);
            let flags = if attr.comp_mask & JOIN_FLAGS != 0 { attr.join_flags } else { FULL_MEMBER };
            if attr.comp_mask & ADDRESS == 0 || attr.comp_mask & !(ADDRESS | JOIN_FLAGS) != 0 || flags > SEND_ONLY {
                return Err(INVALID);
            }
            id.join(In::of(attr.addr), flags == SEND_ONLY, context)?;
            complete(&id).await?;
            Ok(0)
        }) as c_int
    }
}
exports! {
    "RDMACM_1.0" fn rdma_leave_multicast(id: In<RdmaCmId>, to: In<libc::sockaddr>) -> c_int {
        counted(|| IDS.get(id)?.leave(to).map(|()| 0))
    }
}
