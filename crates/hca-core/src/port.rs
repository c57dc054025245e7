//! Properties of a device's port, clock and queue pairs beside limits and counters.

use core::fmt;
use core::time::Duration;

use crate::{Counter, Gid, Lid, Mtu, QpHandle, QpState, QpType, Qpn};

/// The state of a device's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// The GID of the port.
    pub gid: Gid,
    /// The LID of the port; 0 on RoCE.
    pub lid: Lid,
    /// The largest path MTU that the port's link carries.
    pub active_mtu: Mtu,
    /// Whether the port carries packets.
    pub active: bool,
    /// The link below the port.
    pub link_layer: LinkLayer,
    /// The link's present speed and width; `None` if the link has no speed (shared memory, a loopback interface), is
    /// down, or its speed is unknown.
    pub link: Option<LinkSpeed>,
}

/// The kind of link below a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// No link: packets stay within the process or the machine's memory.
    Unspecified,
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: the port speaks RoCE.
    Ethernet,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unspecified => "unspecified",
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        })
    }
}

/// The speed of a link, and the lanes that it is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkSpeed {
    /// Data rate of all lanes together, in Mbit/s.
    pub mbps: u32,
    /// The width: 1, 2, 4, 8 or 12 lanes; `None` where it is unknown.
    pub lanes: Option<u8>,
}

/// As in `100 Gbit/s (4X of 25 Gbit/s)`.
impl fmt::Display for LinkSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        rate(f, self.mbps)?;
        match self.lanes {
            Some(lanes) if lanes > 0 => {
                write!(f, " ({lanes}X of ")?;
                rate(f, self.mbps / u32::from(lanes))?;
                f.write_str(")")
            }
            _ => Ok(()),
        }
    }
}

fn rate(f: &mut fmt::Formatter<'_>, mbps: u32) -> fmt::Result {
    match mbps {
        ..1000 => write!(f, "{mbps} Mbit/s"),
        _ => write!(f, "{} Gbit/s", f64::from(mbps) / 1000.0),
    }
}

/// The counters of a port, by the names that the IBA's attribute PortCounters has for them.
///
/// They count what the port's link carries. What goes through shared memory is not counted. A function that `hca serve`
/// serves counts Ethernet frames alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortCounters {
    /// PortXmitData: octets of the packets that were sent, divided by 4.
    pub xmit_data: u64,
    /// PortRcvData: octets of the packets that were received, divided by 4.
    pub rcv_data: u64,
    /// PortXmitPkts: packets that were sent.
    pub xmit_pkts: u64,
    /// PortRcvPkts: packets that were received.
    pub rcv_pkts: u64,
    /// PortRcvErrors: packets that were received with an error, and dropped.
    pub rcv_errors: u64,
    /// PortXmitDiscards: packets that were not sent, and dropped.
    pub xmit_discards: u64,
}

impl PortCounters {
    /// All of them, with the IBA's names.
    pub fn named(&self) -> [Counter; 6] {
        [
            ("PortXmitData", self.xmit_data),
            ("PortRcvData", self.rcv_data),
            ("PortXmitPkts", self.xmit_pkts),
            ("PortRcvPkts", self.rcv_pkts),
            ("PortRcvErrors", self.rcv_errors),
            ("PortXmitDiscards", self.xmit_discards),
        ]
        .map(|(name, value)| Counter { name, value })
    }
    /// The port's counters as sums of a device's own counters. `None` if the device does not count packets and octets
    /// by these names.
    pub fn sum(counters: &[Counter], names: &PortCounterNames<'_>) -> Option<Self> {
        let sum = |names: &[&str]| {
            let named = counters.iter().filter(|c| names.contains(&c.name)).map(|c| c.value);
            named.reduce(|a, b| a + b)
        };
        Some(Self {
            xmit_data: sum(names.octets.0)? / 4,
            rcv_data: sum(names.octets.1)? / 4,
            xmit_pkts: sum(names.packets.0)?,
            rcv_pkts: sum(names.packets.1)?,
            rcv_errors: sum(names.rcv_errors).unwrap_or(0),
            xmit_discards: sum(names.xmit_discards).unwrap_or(0),
        })
    }
}

/// The names of the counters that [`PortCounters::sum`] adds up. The first of a pair are those of what is sent.
#[derive(Clone, Copy, Debug)]
pub struct PortCounterNames<'a> {
    /// Octets of packets.
    pub octets: (&'a [&'a str], &'a [&'a str]),
    /// Packets.
    pub packets: (&'a [&'a str], &'a [&'a str]),
    /// Packets that were received with an error.
    pub rcv_errors: &'a [&'a str],
    /// Packets that were not sent.
    pub xmit_discards: &'a [&'a str],
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The index in the table.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// The type of packets from this GID.
    pub kind: GidType,
    /// The network interface that has the address; `None` if no interface has it, as behind vfio.
    pub interface: Option<String>,
}

impl GidEntry {
    /// The table of a port that has one address.
    ///
    /// A RoCE port has its address at the indices that Linux's RoCE ports have for the type of its packets, since
    /// programs are told an index (1 or 3 for RoCEv2):
    ///
    /// | index | Linux | here |
    /// |---:|---|---|
    /// | 0 | the link-local address, RoCEv1 | the address of a port that sends RoCEv1 |
    /// | 1 | the link-local address, RoCEv2 | the address of a port that sends RoCEv2 |
    /// | 2 | the interface's address, RoCEv1 | as 0 |
    /// | 3 | the interface's address, RoCEv2 | as 1 |
    ///
    /// A port sends one type of packets from one address, so the other indices are not in use. An InfiniBand port has
    /// its GID at index 0.
    pub fn of_port(gid: Gid, kind: GidType, interface: Option<&str>) -> Vec<Self> {
        let indices: &[u32] = match kind {
            GidType::Ib => &[0],
            GidType::RoceV1 => &[0, 2],
            GidType::RoceV2 => &[1, 3],
        };
        let entry = |index: &u32| Self { index: *index, gid, kind, interface: interface.map(str::to_owned) };
        indices.iter().map(entry).collect()
    }
}

/// The type of packets that are sent from a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidType {
    /// InfiniBand.
    Ib,
    /// RoCE over Ethernet frames.
    RoceV1,
    /// RoCE over UDP.
    RoceV2,
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ib => "IB",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

/// A queue pair in a list of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInfo {
    /// The handle.
    pub handle: QpHandle,
    /// The queue pair number.
    pub qpn: Qpn,
    /// Its service.
    pub qp_type: QpType,
    /// Its state.
    pub state: QpState,
    /// The peer's queue pair, if this queue pair is connected.
    pub dest_qpn: Option<Qpn>,
    /// The peer's GID, if this queue pair is connected.
    pub dest_gid: Option<Gid>,
}

/// The clock of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceClock {
    /// Ticks in a millisecond.
    pub khz: u32,
    /// The present time, in ticks since a fixed moment.
    pub now: u64,
}

impl DeviceClock {
    /// The time from a time stamp to [`now`](Self::now); zero for a time stamp that is not before `now`.
    pub fn since(&self, at: u64) -> Duration {
        let ticks = self.now.wrapping_sub(at);
        // A time that is later than now: the clock was read before the completion came.
        if ticks > u64::MAX / 2 { Duration::ZERO } else { self.span(ticks) }
    }
    /// The duration of a number of ticks.
    pub fn span(&self, ticks: u64) -> Duration {
        let nanos = u128::from(ticks) * 1_000_000 / u128::from(self.khz.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ports_counters_are_sums_in_words_of_four_octets() {
        let names = PortCounterNames {
            octets: (&["tx_bytes"], &["rx_bytes"]),
            packets: (&["tx"], &["rx"]),
            rcv_errors: &["short", "icrc"],
            xmit_discards: &["lost"],
        };
        let counters = [("tx_bytes", 103), ("tx", 2), ("rx_bytes", 40), ("rx", 1), ("short", 3), ("icrc", 4)];
        let counters = counters.map(|(name, value)| Counter { name, value });
        let port = PortCounters::sum(&counters, &names).unwrap();
        assert_eq!(port.named().map(|c| c.value), [25, 10, 2, 1, 7, 0]);
        assert_eq!(PortCounters::sum(&counters[1..], &names), None);
    }

    #[test]
    fn a_speed_is_told_with_its_lanes_where_they_are_known() {
        let told = |mbps, lanes| LinkSpeed { mbps, lanes }.to_string();
        assert_eq!(told(100_000, Some(4)), "100 Gbit/s (4X of 25 Gbit/s)");
        assert_eq!(told(2500, None), "2.5 Gbit/s");
        assert_eq!(told(100, None), "100 Mbit/s");
        assert_eq!(told(1000, Some(0)), "1 Gbit/s", "lanes that nobody counted");
    }

    #[test]
    fn ticks_are_a_time_by_the_clocks_frequency() {
        let clock = DeviceClock { khz: 156_250, now: 1_000 };
        assert_eq!(clock.span(156_250), Duration::from_millis(1));
        assert_eq!(clock.since(1_000 - 5), Duration::from_nanos(32));
        assert_eq!(clock.since(1_001), Duration::ZERO);
        assert_eq!(
            DeviceClock { khz: 1, now: 1 }.since(u64::MAX),
            Duration::from_millis(2),
            "it went around"
        );
        assert_eq!(DeviceClock { khz: 0, now: 0 }.span(u64::MAX), Duration::from_nanos(u64::MAX));
    }
}
