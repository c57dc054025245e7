//! Global Route Header: the network header of InfiniBand and RoCEv1, and the first 40 bytes of a datagram's receive
//! buffer.

use bytemuck::{Pod, Zeroable};

use super::Be16;
use super::class_flow::VersionClassFlow;
use crate::Gid;

/// Global Route Header, 40 bytes; the shape of an IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Grh {
    /// IPVer, TClass, FlowLabel.
    version_class_flow: VersionClassFlow,
    /// Bytes behind this header, the ICRC included.
    pub pay_len: Be16,
    /// The next header: [`Grh::NEXT_IBA`] for a BTH.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    sgid: [u8; 16],
    dgid: [u8; 16],
}
const _: () = assert!(size_of::<Grh>() == 40 && align_of::<Grh>() == 1);

impl Grh {
    /// Bytes on the wire.
    pub const BYTES: usize = 40;
    /// Next header: a transport header of the IBA.
    pub const NEXT_IBA: u8 = 0x1b;

    /// A header of IP version 6 before `pay_len` bytes of the IBA's transport; `flow_label` is cut to
    /// 20 bits.
    pub const fn new(
        traffic_class: u8,
        flow_label: u32,
        pay_len: u16,
        hop_limit: u8,
        sgid: Gid,
        dgid: Gid,
    ) -> Self {
        Self {
            version_class_flow: VersionClassFlow::new(traffic_class, flow_label),
            pay_len: Be16::new(pay_len),
            next_header: Self::NEXT_IBA,
            hop_limit,
            sgid: sgid.0,
            dgid: dgid.0,
        }
    }
    /// IP version, 6 in every header that is one.
    pub const fn version(&self) -> u8 {
        self.version_class_flow.version()
    }
    /// The traffic class, 8 bits.
    pub const fn traffic_class(&self) -> u8 {
        self.version_class_flow.traffic_class()
    }
    /// Flow label, 20 bits.
    pub const fn flow_label(&self) -> u32 {
        self.version_class_flow.flow_label()
    }
    /// The GID of the source.
    pub const fn sgid(&self) -> Gid {
        Gid(self.sgid)
    }
    /// The GID of the destination.
    pub const fn dgid(&self) -> Gid {
        Gid(self.dgid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_stand_where_the_iba_has_them() {
        let (s, d) = (Gid([0x11; 16]), Gid([0x22; 16]));
        let grh = Grh::new(0xab, 0x1_2345, 0x40, 63, s, d);
        let mut bytes = [0_u8; 40];
        bytes[..8].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45, 0x00, 0x40, 0x1b, 63]);
        bytes[8..24].fill(0x11);
        bytes[24..].fill(0x22);
        assert_eq!(bytemuck::bytes_of(&grh), bytes);
        assert_eq!((grh.version(), grh.traffic_class(), grh.flow_label()), (6, 0xab, 0x1_2345));
        assert_eq!((grh.sgid(), grh.dgid()), (s, d));
    }

    #[test]
    fn a_flow_label_is_cut_to_20_bits() {
        let grh = Grh::new(0, u32::MAX, 0, 0, Gid::default(), Gid::default());
        assert_eq!((grh.version(), grh.traffic_class(), grh.flow_label()), (6, 0, 0xf_ffff));
    }
}
