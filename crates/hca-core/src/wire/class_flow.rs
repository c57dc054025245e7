//! The first word that the Global Route Header shares with IPv6: version, traffic class, flow label.

use bytemuck::{Pod, Zeroable};

use super::Be32;

const VERSION: u32 = 6;
const VERSION_SHIFT: u32 = 28;
const CLASS_SHIFT: u32 = 20;
const FLOW: u32 = 0xf_ffff;

/// Version (4 bits), traffic class (8 bits), flow label (20 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub(super) struct VersionClassFlow(Be32);

impl VersionClassFlow {
    /// Of version 6; `flow_label` is cut to 20 bits.
    pub(super) const fn new(traffic_class: u8, flow_label: u32) -> Self {
        let class = (traffic_class as u32) << CLASS_SHIFT;
        Self(Be32::new(VERSION << VERSION_SHIFT | class | flow_label & FLOW))
    }
    pub(super) const fn version(self) -> u8 {
        (self.0.get() >> VERSION_SHIFT) as u8
    }
    pub(super) const fn traffic_class(self) -> u8 {
        (self.0.get() >> CLASS_SHIFT) as u8
    }
    pub(super) const fn flow_label(self) -> u32 {
        self.0.get() & FLOW
    }
}
