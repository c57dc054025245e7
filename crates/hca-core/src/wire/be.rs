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
