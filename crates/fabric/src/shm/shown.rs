//! The frames by which a tap is shown shared memory: each packet as it would stand on a wire.

use std::net::Ipv6Addr;

use hca_core::Instant;
use hca_core::wire::ICRC_BYTES;

use super::ring::Attributes;
use crate::icrc::{FlowCrc, Icrc};
use crate::{Direction, PacketHeader, Tap, TapFrame};

/// The source port that a tap is shown: there is none.
pub(super) const SRC_PORT: u16 = 0xc000;

/// The header of a packet from the first address to the second one, as taps are shown it.
#[inline]
pub(super) fn header((src, dst): (Ipv6Addr, Ipv6Addr), attributes: Attributes) -> PacketHeader {
    let Attributes { traffic_class, hop_limit } = attributes;
    PacketHeader { src: src.into(), dst: dst.into(), src_port: SRC_PORT, traffic_class, hop_limit }
}

/// A tap, and the ICRCs of what it is shown.
pub(super) struct Shown {
    tap: Box<dyn Tap>,
    icrc: Icrc,
}

impl Shown {
    pub(super) fn new(tap: Box<dyn Tap>) -> Self {
        Self { tap, icrc: Icrc::new() }
    }
    /// Shows a packet from the first address to the second one.
    #[cold]
    pub(super) fn packet(
        &mut self,
        now: Instant,
        direction: Direction,
        ends: (Ipv6Addr, Ipv6Addr),
        attributes: Attributes,
        packet: &[u8],
    ) {
        let header = header(ends, attributes);
        let crc = FlowCrc::new(header.src, header.dst, SRC_PORT).expect("both are IPv6");
        let mut payload = packet.to_vec();
        payload.extend([0; ICRC_BYTES]);
        self.icrc.seal(&crc, 0, payload.len(), &mut payload);
        let version = crate::RoceVersion::V2;
        self.tap.frame(now, &TapFrame { direction, version, header, ident: 0, payload: &payload });
    }
}
