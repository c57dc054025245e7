//! Flush Extended Transport Header (memory placement extensions).

use bytemuck::{Pod, Zeroable};

use super::Be32;

/// Flush Extended Transport Header, 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Feth {
    /// 26 reserved bits, SEL (2 bits), PLT (4 bits).
    bits: Be32,
}
const _: () = assert!(size_of::<Feth>() == 4 && align_of::<Feth>() == 1);

bitflags::bitflags! {
    /// The placement type of a FLUSH: the place that the data must have reached.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Placement: u8 {
        /// Visible to every reader of the memory.
        const GLOBAL_VISIBILITY = 1;
        /// Safe from a loss of power.
        const PERSISTENCE = 1 << 1;
    }
}

/// The selectivity level of a FLUSH: the range of flushed data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Selectivity {
    /// The range that the RETH names.
    Range = 0,
    /// The whole region of the RETH's key.
    Region = 1,
}

const PLT: u32 = 0x0f;
const SEL: u32 = 0x30;
const SEL_SHIFT: u32 = 4;

impl Feth {
    /// A header of this selectivity and placement.
    pub const fn new(selectivity: Selectivity, placement: Placement) -> Self {
        Self { bits: Be32::new((selectivity as u32) << SEL_SHIFT | placement.bits() as u32) }
    }
    /// A header of these 32 bits.
    pub const fn from_bits(bits: u32) -> Self {
        Self { bits: Be32::new(bits) }
    }
    /// All 32 bits, the reserved ones among them.
    pub const fn bits(&self) -> u32 {
        self.bits.get()
    }
    /// The placement type; unknown bits are kept.
    pub const fn placement(&self) -> Placement {
        Placement::from_bits_retain((self.bits.get() & PLT) as u8)
    }
    /// The selectivity level; `None` if the value is reserved.
    pub const fn selectivity(&self) -> Option<Selectivity> {
        match (self.bits.get() & SEL) >> SEL_SHIFT {
            0 => Some(Selectivity::Range),
            1 => Some(Selectivity::Region),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_and_selectivity_stand_in_the_last_byte() {
        let both = Placement::GLOBAL_VISIBILITY | Placement::PERSISTENCE;
        let f = Feth::new(Selectivity::Region, both);
        assert_eq!(bytemuck::bytes_of(&f), [0, 0, 0, 0x13]);
        assert_eq!((f.selectivity(), f.placement()), (Some(Selectivity::Region), both));
        assert_eq!((f.bits(), Feth::from_bits(0x13)), (0x13, f));
        let reserved: Feth = bytemuck::cast([0xff_u8, 0xff, 0xff, 0xe0]);
        assert_eq!((reserved.selectivity(), reserved.placement()), (None, Placement::empty()));
    }
}
