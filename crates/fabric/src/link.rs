//! The link below a fabric: its kind, its network interface and its speed.

use std::fs::read_to_string;
use std::path::Path;

use hca_core::{GidType, LinkLayer, LinkSpeed};

use crate::interface_index;

/// The link that carries a fabric's packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricLink {
    /// The kind of link.
    pub layer: LinkLayer,
    /// The type of the fabric's packets.
    pub kind: GidType,
    /// The network interface that has the fabric's address.
    pub interface: Option<String>,
    /// The link's speed, if the interface has one.
    pub speed: Option<LinkSpeed>,
}

impl FabricLink {
    /// The attributes of a fabric without a link: packets stay within the machine's memory.
    pub const fn none() -> Self {
        Self { layer: LinkLayer::Unspecified, kind: GidType::RoceV2, interface: None, speed: None }
    }

    /// That of a network interface.
    pub(crate) fn of(interface: Option<String>, kind: GidType) -> Self {
        let speed = interface.as_deref().and_then(speed);
        Self { layer: LinkLayer::Ethernet, kind, interface, speed }
    }
}

/// The speed of an interface, as its driver tells the kernel. One without a cable, a bridge without ports and the
/// loopback interface have none.
fn speed(interface: &str) -> Option<LinkSpeed> {
    let folder = Path::new("/sys/class/net").join(interface);
    let told = |file: &str| read_to_string(folder.join(file)).ok();
    // The mounted folder may belong to another network namespace, which may have an interface of the same name.
    let index: u32 = told("ifindex")?.trim().parse().ok()?;
    if interface_index(interface).ok() != Some(index) {
        return None;
    }
    speed_of(&told("speed")?)
}

/// The file has Mbit/s, or -1 where there is no speed now.
fn speed_of(told: &str) -> Option<LinkSpeed> {
    let mbps = told.trim().parse().ok().filter(|mbps| *mbps > 0 && *mbps != u32::MAX)?;
    Some(LinkSpeed { mbps, lanes: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_what_the_kernel_tells_in_mbit() {
        assert_eq!(speed_of("25000\n"), Some(LinkSpeed { mbps: 25_000, lanes: None }));
        for none in ["-1\n", "0", "4294967295", "", "fast"] {
            assert_eq!(speed_of(none), None, "{none:?}");
        }
        assert_eq!(speed("lo"), None, "the loopback interface has none");
        assert_eq!(speed("no-such-interface"), None);
    }
}
