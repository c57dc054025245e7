//! Reception: datagrams are cut into packets, checked, shown to the tap, and given to the sink.

use std::net::IpAddr;

use hca_core::Instant;
use hca_core::wire::ICRC_BYTES;

use super::end::Account;
use super::sys::Datagram;
use crate::flow::{Checked, RxFlows};
use crate::{Direction, PacketHeader, RxPacket, Tap, TapFrame};

/// What a receive call works with beside its buffers.
pub(crate) struct Receiver {
    /// The packets' destination.
    pub(crate) local: IpAddr,
    pub(crate) flows: RxFlows,
}

impl Receiver {
    pub(crate) fn new(local: IpAddr) -> Self {
        Self { local, flows: RxFlows::new(local) }
    }
    /// For the packets to a multicast group.
    pub(crate) fn of_group(group: IpAddr) -> Self {
        Self { local: group, flows: RxFlows::of_group(group) }
    }

    /// Gives a datagram's packets to the sink and returns how many it were.
    #[inline]
    pub(crate) fn deliver(
        &mut self,
        now: Instant,
        datagram: &Datagram<'_>,
        account: &mut Account,
        sink: &mut dyn FnMut(&RxPacket<'_>),
    ) -> usize {
        let Account { counters, tap } = account;
        let bytes = datagram.bytes;
        let segment = if datagram.control.segment == 0 { bytes.len() } else { datagram.control.segment };
        counters.rx_trains += 1;
        if bytes.is_empty() {
            counters.short_packets += 1;
            return 0;
        }
        let header = PacketHeader {
            src: datagram.src,
            dst: self.local,
            src_port: datagram.src_port,
            traffic_class: datagram.control.traffic_class,
            hop_limit: datagram.control.hop_limit,
        };
        self.flows.begin(datagram.src, datagram.src_port);
        let mut good = 0;
        for packet in bytes.chunks(segment) {
            let checked = self.flows.check(now, packet);
            if let Some(tap) = tap {
                tapped(now, header, checked, packet, tap);
            }
            match checked {
                Checked::Good(_) => {
                    good += 1;
                    counters.rx_bytes += packet.len() as u64;
                    sink(&RxPacket { header, bytes: &packet[..packet.len() - ICRC_BYTES] });
                }
                Checked::Bad(_) => counters.icrc_errors += 1,
                Checked::Odd(_) => {}
                Checked::Short => counters.short_packets += 1,
            }
        }
        self.flows.end();
        counters.rx_packets += good as u64;
        good
    }
}

#[cold]
fn tapped(now: Instant, header: PacketHeader, checked: Checked, payload: &[u8], tap: &mut Box<dyn Tap>) {
    let (Checked::Good(ident) | Checked::Bad(ident) | Checked::Odd(ident)) = checked else { return };
    let (direction, version) = (Direction::Rx, crate::RoceVersion::V2);
    tap.frame(now, &TapFrame { direction, version, header, ident, payload });
}
