//! The adapter's port: InfiniBand, or Ethernet with RoCE.

use hca_core::{Gid, Lid, Mtu, PortAttr};

/// What the port is.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    /// Whether it is an Ethernet port.
    pub(crate) ethernet: bool,
    /// Its attributes.
    pub(crate) attr: PortAttr,
    /// Which entry of the GID table its GID is.
    pub(crate) gid_index: u32,
}

impl Default for Port {
    fn default() -> Self {
        let attr = PortAttr { gid: Gid::default(), lid: Lid::new(0), active_mtu: Mtu::B4096, active: false };
        Self { ethernet: false, attr, gid_index: 0 }
    }
}
