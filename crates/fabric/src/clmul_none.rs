//! The module for processors without the instruction: no [`Clmul`] exists.

use crate::icrc::FlowCrc;

/// Proof that the CPU can multiply without carries.
#[derive(Clone, Copy)]
pub(crate) enum Clmul {}

impl Clmul {
    pub(crate) fn detect() -> Option<Self> {
        None
    }
    #[cfg(test)]
    pub(crate) fn every() -> Vec<Self> {
        Vec::new()
    }
    pub(crate) fn residual(self, _: &FlowCrc, _: u16, _: &[u8]) -> u32 {
        match self {}
    }
    pub(crate) fn in_two(self, _: &FlowCrc, _: u16, _: usize, _: &[u8], _: &[u8]) -> u32 {
        match self {}
    }
    pub(crate) fn seal(self, _: &FlowCrc, _: u16, _: usize, _: &mut [u8]) {
        match self {}
    }
}
