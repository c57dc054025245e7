//! Long packets by wide multiplications (VPCLMULQDQ): two or four blocks in one register, in four sums side by side.
//!
//! A register's blocks are folded as one block is: each sum is multiplied by the factor of the distance to the bytes that
//! are added to it. At the end the four registers become one, and that one's blocks go on as 128 bits.

use core::arch::x86_64::*;

use super::{BLOCK, blocks, factor, reduce, weigh};

/// Registers that are folded side by side.
const SUMS: usize = 4;

/// How wide a register is that this CPU multiplies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Width {
    /// 128 bits.
    Block,
    /// 256 bits.
    Two,
    /// 512 bits.
    Four,
}

impl Width {
    /// The widest that this CPU has.
    pub(super) fn detect() -> Self {
        if !is_x86_feature_detected!("vpclmulqdq") {
            Self::Block
        } else if is_x86_feature_detected!("avx512f") {
            Self::Four
        } else if is_x86_feature_detected!("avx2") {
            Self::Two
        } else {
            Self::Block
        }
    }
}

/// From so many bytes on a packet fills all sums of two blocks each, or of four.
pub(super) const TWO: usize = SUMS * 2 * BLOCK;
pub(super) const FOUR: usize = SUMS * 4 * BLOCK;

/// `long` for one width: the ICRC of a packet that fills all sums; its first block is given.
macro_rules! long {
    ($name:ident, $features:literal, $register:ty, $blocks:literal, $load:ident, $set:ident, $mul:ident, $add3:expr,
     $insert:ident, [$($extract:expr),*]) => {
        #[target_feature(enable = $features)]
        pub(super) fn $name(first: __m128i, packet: &[u8]) -> u32 {
            const BYTES: usize = $blocks * BLOCK;
            // SAFETY: an array of the register's size is read, at any alignment.
            let load = |block: &[u8; BYTES]| unsafe { $load(block.as_ptr().cast()) };
            let fold = |sum, factor, onto| $add3($mul::<0x00>(sum, factor), $mul::<0x11>(sum, factor), onto);
            let (registers, rest) = packet.as_chunks::<BYTES>();
            let (strides, single) = registers.as_chunks::<SUMS>();
            let (head, strides) = strides.split_first().expect("a packet that fills all sums");
            let mut sums = [load(&head[0]), load(&head[1]), load(&head[2]), load(&head[3])];
            sums[0] = $insert::<0>(sums[0], first);
            // A sum keeps its 128 bits a block, for which the factors are 4 bytes nearer.
            let by = $set(factor(SUMS * BYTES - 4));
            for stride in strides {
                for (sum, bytes) in sums.iter_mut().zip(stride) {
                    *sum = fold(*sum, by, load(bytes));
                }
            }
            let by = $set(factor(BYTES - 4));
            let far = $set(factor(2 * BYTES - 4));
            let mut sum = fold(fold(sums[0], by, sums[1]), far, fold(sums[2], by, sums[3]));
            for bytes in single {
                sum = fold(sum, by, load(bytes));
            }
            let lanes: [__m128i; $blocks] = [$($extract(sum)),*];
            let mut sum = _mm_setzero_si128();
            for (k, lane) in lanes.into_iter().enumerate() {
                sum = _mm_xor_si128(sum, weigh(lane, rest.len() + ($blocks - 1 - k) * BLOCK));
            }
            reduce(blocks(sum, packet, rest.len()))
        }
    };
}

long!(
    long_two,
    "pclmulqdq,sse4.1,avx2,vpclmulqdq",
    __m256i,
    2,
    _mm256_loadu_si256,
    _mm256_broadcastsi128_si256,
    _mm256_clmulepi64_epi128,
    |a, b, c| _mm256_xor_si256(_mm256_xor_si256(a, b), c),
    _mm256_inserti128_si256,
    [_mm256_extracti128_si256::<0>, _mm256_extracti128_si256::<1>]
);
long!(
    long_four,
    "pclmulqdq,sse4.1,avx512f,vpclmulqdq",
    __m512i,
    4,
    _mm512_loadu_si512,
    _mm512_broadcast_i32x4,
    _mm512_clmulepi64_epi128,
    |a, b, c| _mm512_ternarylogic_epi64::<0x96>(a, b, c),
    _mm512_inserti32x4,
    [
        _mm512_extracti32x4_epi32::<0>,
        _mm512_extracti32x4_epi32::<1>,
        _mm512_extracti32x4_epi32::<2>,
        _mm512_extracti32x4_epi32::<3>
    ]
);
