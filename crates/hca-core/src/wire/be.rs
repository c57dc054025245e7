//! Big-endian integers as byte arrays: alignment 1, castable from any bytes.

use bytemuck::{Pod, Zeroable};

macro_rules! be {
    ($(#[$m:meta])* $name:ident, $t:ty, $bytes:literal) => {
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $name([u8; $bytes]);

        impl $name {
            /// From a host-order integer; bits beyond the width are cut.
            #[inline]
            pub const fn new(v: $t) -> Self {
                let b = v.to_be_bytes();
                let mut out = [0; $bytes];
                let mut i = 0;
                while i < $bytes {
                    out[i] = b[b.len() - $bytes + i];
                    i += 1;
                }
                Self(out)
            }
            /// The integer in host order.
            #[inline]
            pub const fn get(self) -> $t {
                let mut b = [0; size_of::<$t>()];
                let skip = b.len() - $bytes;
                let mut i = 0;
                while i < $bytes {
                    b[skip + i] = self.0[i];
                    i += 1;
                }
                <$t>::from_be_bytes(b)
            }
        }
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{:#x}", self.get())
            }
        }
    };
}
be!(
    /// 16 bits.
    Be16, u16, 2
);
be!(
    /// 24 bits in a `u32`.
    Be24, u32, 3
);
be!(
    /// 32 bits.
    Be32, u32, 4
);
be!(
    /// 64 bits.
    Be64, u64, 8
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_significant_byte_comes_first_and_more_bits_are_cut() {
        assert_eq!(bytemuck::bytes_of(&Be16::new(0x0102)), [1, 2]);
        assert_eq!(bytemuck::bytes_of(&Be24::new(0xff01_0203)), [1, 2, 3]);
        assert_eq!(bytemuck::bytes_of(&Be32::new(0x0102_0304)), [1, 2, 3, 4]);
        assert_eq!(bytemuck::bytes_of(&Be64::new(0x0102_0304_0506_0708)), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Be24::new(0xff01_0203).get(), 0x01_0203);
    }
}
