//! Membership of multicast groups.

use std::fmt;

use hca_core::{AddressVector, DeviceError, Gid, Multicast, Qkey, Qpn};

use crate::ah::UdPeer;
use crate::{Pd, QpControl, Ud};

/// A queue pair's membership of a multicast group, from [`QpControl::join`]. Dropping it leaves the group. It keeps the
/// queue pair alive.
///
/// ```
/// # use hca_verbs::*;
/// # fn example(pd: &Pd, qp: &mut QueuePair<Ud>, qkey: Qkey) -> Result<(), Box<dyn std::error::Error>> {
/// let group: Gid = "239.1.2.3".parse::<std::net::IpAddr>()?.into();
/// let membership = qp.join(group)?;
/// qp.post_recv(pd.alloc(40 + 1024)?)?; // each message takes a receive request, as other datagrams do
///
/// let members = pd.group(group, qkey)?; // a sender need not be a member
/// qp.send_to(pd.alloc(1024)?, &members)?; // and gets its own message, if it is one
/// membership.leave()?;
/// # Ok(()) }
/// ```
pub struct Membership {
    qp: QpControl<Ud>,
    group: Gid,
    left: bool,
}

impl Membership {
    /// The GID of the group that was joined.
    pub fn group(&self) -> Gid {
        self.group
    }
    /// Leaves the group, as a drop does, and reports what comes of it.
    ///
    /// # Errors
    /// The device refuses.
    pub fn leave(mut self) -> Result<(), DeviceError> {
        self.end()
    }
    fn end(&mut self) -> Result<(), DeviceError> {
        let ctx = &self.qp.inner.pd.ctx;
        if std::mem::replace(&mut self.left, true) || ctx.forked() {
            return Ok(());
        }
        groups(&self.qp)?.detach_mcast(self.qp.handle(), self.group)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(group = %self.group, %error, "the queue pair stays a member of the group");
        }
    }
}
impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("qp", &self.qp).field("group", &self.group).finish_non_exhaustive()
    }
}

fn groups(qp: &QpControl<Ud>) -> Result<&dyn Multicast, DeviceError> {
    qp.inner.pd.ctx.device.multicast().ok_or(DeviceError::Unsupported { what: "multicast" })
}

impl QpControl<Ud> {
    /// Makes the queue pair a member of a multicast group: it gets the datagrams that are sent to the group with its
    /// Q_Key. See [`Membership`].
    ///
    /// # Errors
    /// The device has no multicast ([`Abilities::max_mcast_grp`](crate::Abilities::max_mcast_grp)) or a limit is
    /// reached; the GID is not that of a group, or of another IP version than the port's; the queue pair is a member
    /// already; or the network refuses.
    pub fn join(&self, group: Gid) -> Result<Membership, DeviceError> {
        groups(self)?.attach_mcast(self.handle(), group)?;
        Ok(Membership { qp: self.clone(), group, left: false })
    }
}

impl Pd {
    /// The destination of datagrams to all members of a multicast group, which have this Q_Key.
    ///
    /// # Errors
    /// The device's limits, or no path.
    pub fn group(&self, group: Gid, qkey: Qkey) -> Result<UdPeer, DeviceError> {
        let av = AddressVector { dgid: group, ..AddressVector::default() };
        Ok(self.create_ah(&av)?.peer(Qpn::MULTICAST, qkey))
    }
}
