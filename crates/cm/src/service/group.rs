//! Multicast groups by their IP addresses.

use std::net::IpAddr;

use hca_verbs::{Context, DeviceError, Gid, Membership, Pd, QpControl, Ud, UdPeer};

use super::UDP_QKEY;

/// The GID of a multicast group for the port of a context, as Linux's rdma_cm makes it for RoCEv2: an IPv6 address
/// stands as it is, and of an IPv4 address the GID is `::ffff:239.1.2.3`.
///
/// On InfiniBand a group's GID comes from the subnet's manager.
///
/// # Errors
/// The address is not a group's, or of another IP version than the port's GID.
fn group_gid(context: &Context, group: IpAddr) -> Result<Gid, DeviceError> {
    let gid = Gid::from_ip(group);
    let refused = |why| Err(DeviceError::Multicast { group: gid, why });
    if !group.is_multicast() {
        return refused(
            "this is no group's address: give an IP multicast address, as 239.1.2.3 or ff0e::1:2",
        );
    }
    if context.port().link_layer == hca_verbs::LinkLayer::InfiniBand {
        return refused("this port is one of InfiniBand, where the subnet's manager names groups");
    }
    Ok(gid)
}

/// Makes a datagram queue pair a member of the multicast group at an IP address, as `rdma_join_multicast` does on
/// RoCEv2. The queue pair receives what peers send to the group with its own Q_Key, which is [`UDP_QKEY`] where programs
/// of rdma_cm join. The call does not wait, so tasks of any runtime may make it.
///
/// ```
/// # use hca_cm::{UDP_QKEY, group, join};
/// # use hca_verbs::*;
/// # fn example(context: &Context, pd: &Pd, qp: &mut QueuePair<Ud>) -> Result<(), Box<dyn std::error::Error>> {
/// qp.activate(UDP_QKEY)?;
/// let membership = join(context, qp, "239.1.2.3".parse()?)?; // dropped, it ends
/// let members = group(context, pd, "239.1.2.3".parse()?)?;
/// qp.send_to(pd.alloc(64)?, &members)?;
/// # drop(membership);
/// # Ok(()) }
/// ```
///
/// # Errors
/// The address is not a group's, or of another IP version than the port's GID; or as [`QpControl::join`].
pub fn join(context: &Context, qp: &QpControl<Ud>, group: IpAddr) -> Result<Membership, DeviceError> {
    qp.join(group_gid(context, group)?)
}

/// The members of the multicast group at an IP address as the destination of datagrams, with the Q_Key of rdma_cm
/// ([`UDP_QKEY`]). The sender need not be a member.
///
/// # Errors
/// As [`join`], or no path.
pub fn group(context: &Context, pd: &Pd, group: IpAddr) -> Result<UdPeer, DeviceError> {
    pd.group(group_gid(context, group)?, UDP_QKEY)
}
