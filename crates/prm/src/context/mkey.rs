//! The context of a memory key, and entries of indirect ones.

use crate::codes::codes;
use crate::layout;

layout! {
    list LAYOUTS;

    /// Context of a memory key.
    pub struct Mkc: 0x40 {
        /// It translates nothing until a work request makes it.
        FREE: 0x00 [30],
        /// What it translates by: the upper bits of an [`AccessMode`] code.
        ACCESS_MODE_4_2: 0x00 [28:26],
        /// Peers may do atomic operations.
        A: 0x00 [14],
        /// Peers may WRITE.
        RW: 0x00 [13],
        /// Peers may READ.
        RR: 0x00 [12],
        /// The adapter may write for its own user, such as what a receive request names.
        LW: 0x00 [11],
        /// The adapter may read for its own user, such as what a send request names.
        LR: 0x00 [10],
        /// What it translates by: the lower bits of an [`AccessMode`] code.
        ACCESS_MODE_1_0: 0x00 [9:8],
        /// The one queue pair that may use it; 0xffffff for any.
        QPN: 0x04 [31:8],
        /// The key's lowest 8 bits, which the driver chooses.
        MKEY_7_0: 0x04 [7:0],
        /// It covers all addresses; `LEN` is ignored.
        LENGTH64: 0x0c [31],
        /// It has signatures.
        BSF_EN: 0x0c [30],
        /// Peers may invalidate it.
        EN_RINVAL: 0x0c [24],
        /// The protection domain.
        PD: 0x0c [23:0],
        /// The first address that it covers.
        START_ADDR: 0x10 [63:0],
        /// Bytes that it covers.
        LEN: 0x18 [63:0],
        /// Room for the translation, in units of 16 bytes: two pages, or one entry of an indirect key.
        TRANSLATIONS_OCTWORD_SIZE: 0x34 [31:0],
        /// Bytes of a page, as a power of two.
        LOG_PAGE_SIZE: 0x38 [5:0],
    }

}

impl Mkc {
    /// The `QPN` of a key that any queue pair may use.
    pub const ANY_QPN: u32 = 0xff_ffff;

    /// The [`AccessMode`] code in its two fields.
    #[must_use]
    pub fn access_mode(&self) -> u32 {
        self.get(Self::ACCESS_MODE_4_2) << 2 | self.get(Self::ACCESS_MODE_1_0)
    }

    /// Sets both fields of the access mode.
    pub fn set_access_mode(&mut self, mode: AccessMode) -> &mut Self {
        self.set(Self::ACCESS_MODE_4_2, mode.code() >> 2);
        self.set(Self::ACCESS_MODE_1_0, mode.code() & 3)
    }
}

codes! {
    /// The way in which a memory key translates addresses.
    pub enum AccessMode {
        Pa = 0x0 "nothing: addresses are the bus's own",
        Mtt = 0x1 "a list of pages",
        Klms = 0x2 "other keys, in parts of any length",
        Ksm = 0x3 "other keys, in parts of one length",
        SwIcm = 0x4 "memory of the adapter's own that a program manages",
        Memic = 0x5 "memory on the adapter",
        Crossing = 0x6 "a key of another function",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_access_mode_is_put_together_from_its_two_fields() {
        for &mode in AccessMode::ALL {
            assert_eq!(Mkc::new().set_access_mode(mode).access_mode(), mode.code());
        }
        let mut key = Mkc::new();
        key.set_access_mode(AccessMode::Mtt);
        assert_eq!(key.as_bytes()[2], 1);
    }
}
