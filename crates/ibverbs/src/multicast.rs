//! Multicast groups.

use core::ffi::c_int;

use hca::hca_core::{Gid, Multicast};

use crate::entry::{Errno, In, exports, lock, number};
use crate::qp::Qp;

/// Calls the device about a queue pair and a group, by the group's GID; LIDs have no meaning on a RoCE port.
fn member(
    qp: In<Qp>,
    group: In<[u8; 16]>,
    call: impl FnOnce(&dyn Multicast, &Qp, Gid) -> Result<(), hca::hca_core::DeviceError>,
) -> c_int {
    number(|| {
        let (qp, group) = (qp.get()?, Gid(*group.get()?));
        let multicast = qp.adapter.device().multicast().ok_or(Errno(libc::EOPNOTSUPP))?;
        Ok(call(multicast, qp, group)?)
    })
}

exports! {
    "IBVERBS_1.1" fn ibv_attach_mcast(qp: In<Qp>, group: In<[u8; 16]>, _lid: u16) -> c_int {
        member(qp, group, |multicast, qp, group| {
            let mut groups = lock(&qp.groups);
            // Once more has no effect, as in the kernel.
            if !groups.contains(&group) {
                multicast.attach_mcast(qp.handle, group)?;
                groups.insert(group);
            }
            Ok(())
        })
    }
    "IBVERBS_1.1" fn ibv_detach_mcast(qp: In<Qp>, group: In<[u8; 16]>, _lid: u16) -> c_int {
        member(qp, group, |multicast, qp, group| {
            multicast.detach_mcast(qp.handle, group)?;
            lock(&qp.groups).remove(&group);
            Ok(())
        })
    }
}
