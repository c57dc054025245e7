//! Multicast groups, as programs join and leave them.

use hca_core::{DeviceError, Gid, Multicast, QpHandle};

use crate::device::SoftHca;

impl Multicast for SoftHca {
    fn attach_mcast(&self, qp: QpHandle, group: Gid) -> Result<(), DeviceError> {
        let shared = self.shared();
        self.control(|e| {
            e.attach_mcast(qp, group)?;
            let watched = match e.network.groups().and_then(|groups| groups.wait_fd()) {
                Some(fd) if shared.group_fd.get().is_none() => {
                    fd.try_clone_to_owned().map(|fd| _ = shared.group_fd.set(fd))
                }
                _ => Ok(()),
            };
            watched.map_err(|source| {
                e.leave_group(qp.index, group.ip());
                DeviceError::Io { doing: "copying the descriptor of multicast groups", source }
            })
        })?;
        shared.watch_groups();
        Ok(())
    }
    fn detach_mcast(&self, qp: QpHandle, group: Gid) -> Result<(), DeviceError> {
        self.control(|e| e.detach_mcast(qp, group))
    }
}
