//! The ICRC by carry-less multiplication (PCLMULQDQ): 16 bytes a step, without tables of bytes and without
//! a loop over single bytes at the end.
//!
//! The computation covers a packet with the 4 bytes of its ICRC. The first 16 bytes, which hold the BTH, are a block of
//! their own; the contributions of the flow, the lengths and the Identification are added to it unreduced. Every 64-bit
//! half of a block is multiplied by the power of x that its distance to the end asks for, modulo the polynomial (32
//! bits, so that a product has 95), the products are added, and one division by two multiplications (Barrett) takes the
//! sum to 32 bits. The bytes behind the last whole block are read as the packet's last 16 bytes, with the bytes masked
//! out that were counted before. Long packets run through eight independent sums first, as a multiplication is ready
//! after 7 cycles but one begins in each; where the CPU multiplies two or four blocks at once, [`wide`] does that.
//!
//! **Bit order.** As in every reflected CRC the first bit is the highest power: bit `i` of a 32-bit value
//! stands for x^(31-i), of a 64-bit half for x^(63-i). The product of both has bit `s` for x^(94-s). Sums of
//! products are read with bit `s` for x^(95-s), so factors are smaller by one power than it seems.
//!
//! Invariant:
//! 1. A [`Clmul`] exists only if the CPU has PCLMULQDQ and SSE4.1, and its width is one that the CPU can multiply: only
//!    `detect` creates one, after it has asked the CPU.
#![allow(unsafe_code)]

mod wide;

use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_clmulepi64_si128, _mm_cvtsi32_si128, _mm_extract_epi32, _mm_or_si128,
    _mm_set_epi32, _mm_set_epi64x, _mm_setzero_si128, _mm_xor_si128,
};

use crate::icrc::{FlowCrc, Head, POLY, multiply};
use wide::Width;

/// Bytes of a block.
const BLOCK: usize = 16;
/// Sums that run side by side over a long packet.
const LANES: usize = 8;
/// Bytes that they take at once.
const STRIDE: usize = LANES * BLOCK;

/// `POWERS[j]`: x^(32 j - 33) modulo the polynomial.
const POWERS: [u32; 67] = {
    let mut t = [power(-33); 67];
    let mut j = 1;
    while j < t.len() {
        t[j] = multiply(t[j - 1], power(32));
        j += 1;
    }
    t
};
/// The factors for a block's halves with `4 (j - 1)` bytes behind the block: the first half's in the low 64 bits.
static FACTORS: [u128; 65] = {
    let mut t = [0; 65];
    let mut j = 0;
    while j < t.len() {
        t[j] = pair(POWERS[j + 2], POWERS[j]);
        j += 1;
    }
    t
};
/// `KEEP[n..n + 16]` keeps the last `n` bytes of a block.
static KEEP: [u8; 2 * BLOCK] = {
    let mut t = [0; 2 * BLOCK];
    let mut i = BLOCK;
    while i < t.len() {
        t[i] = 0xff;
        i += 1;
    }
    t
};
/// The polynomial with its highest power, which is bit 0.
const DIVISOR: u64 = (POLY as u64) << 1 | 1;
/// What `DIVISOR` times this leaves of the low 64 bits is 1.
const INVERSE: u64 = {
    let (mut inverse, mut rest, mut i) = (0, 1, 0);
    while i < 64 {
        if rest >> i & 1 == 1 {
            inverse |= 1 << i;
            rest ^= DIVISOR << i;
        }
        i += 1;
    }
    inverse
};

const fn pair(low: u32, high: u32) -> u128 {
    (high as u128) << 64 | low as u128
}
/// x to the power of `n`.
const fn power(n: i64) -> u32 {
    // The polynomial is primitive: the order of x is 2^32 - 1.
    let mut n = n.rem_euclid(u32::MAX as i64);
    let (mut square, mut p) = (1 << 30, 1 << 31);
    while n > 0 {
        if n & 1 == 1 {
            p = multiply(p, square);
        }
        square = multiply(square, square);
        n >>= 1;
    }
    p
}
/// The factor for 16 bits of a header in front of the BTH that have this many bytes between them and the packet.
const fn header_factor(behind: i64) -> u32 {
    power(47 + 8 * behind)
}
/// What a [`Head`] multiplies UDP's length, the total length (high 64 bits) and the Identification by. IPv6's
/// length is UDP's and it has no other, so its place is added to UDP's. A GRH's length stands in place of UDP's.
static HEADERS: [[u128; 2]; 3] = [
    [pair(header_factor(2), header_factor(24)), pair(header_factor(22), 0)],
    [pair(header_factor(2) ^ header_factor(42), 0), 0],
    [pair(header_factor(34), 0), 0],
];

/// Proof that the CPU can multiply without carries, and the ICRC made by it.
#[derive(Clone, Copy)]
pub(crate) struct Clmul(Width);

impl Clmul {
    /// `None` where the CPU cannot.
    pub(crate) fn detect() -> Option<Self> {
        let can = is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.1");
        can.then(|| Self(Width::detect()))
    }

    /// One of each width that the CPU has.
    #[cfg(test)]
    pub(crate) fn every() -> Vec<Self> {
        let Some(widest) = Self::detect() else { return Vec::new() };
        [Width::Block, Width::Two, Width::Four].into_iter().filter(|w| *w <= widest.0).map(Self).collect()
    }

    /// By what the ICRC of `packet`, its last 4 bytes, differs from the right one. Its length is a multiple of 4;
    /// that of another says nothing.
    ///
    /// # Panics
    /// When `packet` is shorter than a BTH and an ICRC.
    #[inline]
    pub(crate) fn residual(self, flow: &FlowCrc, ident: u16, packet: &[u8]) -> u32 {
        // SAFETY: (1): `self` shows that the CPU has what `residual` is compiled for.
        unsafe { residual(self.0, flow, ident, packet) }
    }

    /// The CRC's register behind a packet's headers and its payload, but without the step over 4 bytes of 0 that ends
    /// it. `head` is the headers and 4 bytes of 0; both are multiples of 4, and the payload has more than two blocks.
    /// The whole packet has `bytes` bytes, its ICRC included.
    ///
    /// # Panics
    /// When `head` is shorter than a BTH and an ICRC, or the payload than a block.
    #[inline]
    pub(crate) fn in_two(self, flow: &FlowCrc, ident: u16, bytes: usize, head: &[u8], payload: &[u8]) -> u32 {
        // SAFETY: (1): `self` shows that the CPU has what `in_two` is compiled for.
        unsafe { in_two(self.0, flow, ident, bytes, head, payload) }
    }

    /// Puts the ICRC on each packet of a train: `segment` bytes each, the last one may be shorter, all of them
    /// multiples of 4. The first has this Identification.
    ///
    /// # Panics
    /// When a packet is shorter than a BTH and an ICRC.
    #[inline]
    pub(crate) fn seal(self, flow: &FlowCrc, ident: u16, segment: usize, train: &mut [u8]) {
        // SAFETY: (1): `self` shows that the CPU has what `seal` is compiled for.
        unsafe { seal(self.0, flow, ident, segment, train) }
    }
}

#[target_feature(enable = "pclmulqdq,sse4.1")]
fn residual(width: Width, flow: &FlowCrc, ident: u16, packet: &[u8]) -> u32 {
    Start::new(width, flow, packet.len()).residual(ident, packet)
}

#[target_feature(enable = "pclmulqdq,sse4.1")]
fn in_two(width: Width, flow: &FlowCrc, ident: u16, bytes: usize, head: &[u8], payload: &[u8]) -> u32 {
    let register = !Start::new(width, flow, bytes).residual(ident, head);
    // The headers' register counts as if it were added to the payload's first bytes.
    let first = load(payload.first_chunk().expect("a block"));
    !longer(width, _mm_xor_si128(first, _mm_cvtsi32_si128(register as i32)), payload)
}

#[target_feature(enable = "pclmulqdq,sse4.1")]
fn seal(width: Width, flow: &FlowCrc, ident: u16, segment: usize, train: &mut [u8]) {
    let mut start = Start::new(width, flow, segment);
    for (k, packet) in train.chunks_mut(segment).enumerate() {
        if packet.len() != segment {
            start = Start::new(width, flow, packet.len());
        }
        let wrong = start.residual(ident.wrapping_add(k as u16), packet);
        let tail = packet.last_chunk_mut::<4>().expect("room for the ICRC");
        *tail = (u32::from_le_bytes(*tail) ^ wrong).to_le_bytes();
    }
}

/// What packets of one flow and length have in common.
struct Start {
    /// What the flow and the lengths contribute, added to the first block.
    common: __m128i,
    /// The Identification's factor.
    ident: __m128i,
    /// How wide a register the CPU multiplies.
    width: Width,
}

impl Start {
    #[inline]
    #[target_feature(enable = "pclmulqdq,sse4.1")]
    fn new(width: Width, flow: &FlowCrc, bytes: usize) -> Self {
        let [lengths, ident] = &HEADERS[flow.head() as usize];
        let lengths = vector(*lengths);
        // A GRH's length counts no UDP header.
        let udp = if flow.head() == Head::Grh { bytes } else { bytes + 8 };
        let udp = _mm_clmulepi64_si128::<0x00>(header_field(udp as u16), lengths);
        let total = _mm_clmulepi64_si128::<0x10>(header_field((bytes + 28) as u16), lengths);
        Self { common: add3(_mm_cvtsi32_si128(flow.base() as i32), udp, total), ident: vector(*ident), width }
    }

    #[inline]
    #[target_feature(enable = "pclmulqdq,sse4.1")]
    fn residual(&self, ident: u16, packet: &[u8]) -> u32 {
        let first = load(packet.first_chunk().expect("a BTH and an ICRC"));
        // The BTH's byte of congestion marks and reserved bits counts as ones.
        let first = _mm_or_si128(first, _mm_set_epi32(0, 0, 0xff, 0));
        let first = add3(first, self.common, low(header_field(ident), self.ident));
        let behind = packet.len() - BLOCK;
        if behind > BLOCK {
            return longer(self.width, first, packet);
        }
        let last = packet[behind..].first_chunk().expect("a block");
        reduce(add_last(weigh(first, behind), last, behind))
    }
}

/// 16 bits of a header, as the wire has them.
#[inline]
#[target_feature(enable = "sse2")]
fn header_field(value: u16) -> __m128i {
    _mm_cvtsi32_si128(value.swap_bytes().into())
}

/// The ICRC of a packet of more than two blocks, the first of which is given.
#[inline(never)]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn longer(width: Width, first: __m128i, packet: &[u8]) -> u32 {
    if packet.len() < STRIDE {
        let behind = packet.len() - BLOCK;
        return reduce(blocks(weigh(first, behind), packet, behind));
    }
    match width {
        // SAFETY: (1): the CPU multiplies registers of this width.
        Width::Four if packet.len() >= wide::FOUR => unsafe { wide::long_four(first, packet) },
        // SAFETY: as above; a CPU that multiplies four blocks multiplies two.
        Width::Four | Width::Two if packet.len() >= wide::TWO => unsafe { wide::long_two(first, packet) },
        _ => long(first, packet),
    }
}

/// The ICRC of a packet that fills all lanes; its first block is given.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn long(first: __m128i, packet: &[u8]) -> u32 {
    let (strides, rest) = packet.as_chunks::<STRIDE>();
    let (head, strides) = strides.split_first().expect("a packet that fills all lanes");
    let mut lanes = lanes(head);
    lanes[0] = first;
    // From one stride to the next; a sum keeps its 128 bits, for which the factors are 4 bytes nearer.
    let factor = factor(STRIDE - 4);
    for stride in strides {
        for (lane, block) in lanes.iter_mut().zip(self::lanes(stride)) {
            *lane = add3(block, low(*lane, factor), high(*lane, factor));
        }
    }
    let mut sum = _mm_setzero_si128();
    for (k, lane) in lanes.into_iter().enumerate() {
        sum = _mm_xor_si128(sum, weigh(lane, rest.len() + (LANES - 1 - k) * BLOCK));
    }
    reduce(blocks(sum, packet, rest.len()))
}

/// Adds the last `behind` bytes of a packet to the sum.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn blocks(mut sum: __m128i, packet: &[u8], behind: usize) -> __m128i {
    let (whole, rest) = packet[packet.len() - behind..].as_chunks::<BLOCK>();
    // From the end on: a block's factors stand 4 further than those of the block behind it.
    let (factors, _) = FACTORS[rest.len() / 4 + 1..].as_chunks::<4>();
    for (block, factors) in whole.iter().rev().zip(factors) {
        let (block, factor) = (load(block), vector(factors[0]));
        sum = add3(sum, low(block, factor), high(block, factor));
    }
    if rest.is_empty() {
        return sum;
    }
    add_last(sum, packet.last_chunk().expect("more than a block"), rest.len())
}

/// Adds the last `behind` bytes of a packet's last block to the sum.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn add_last(sum: __m128i, last: &[u8; BLOCK], behind: usize) -> __m128i {
    let keep = load(KEEP[behind..].first_chunk().expect("16 bytes at most"));
    _mm_xor_si128(sum, weigh(_mm_and_si128(load(last), keep), 0))
}

/// A block with this many bytes behind it, times what that asks for.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn weigh(block: __m128i, behind: usize) -> __m128i {
    let factor = factor(behind);
    _mm_xor_si128(low(block, factor), high(block, factor))
}
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn low(block: __m128i, factor: __m128i) -> __m128i {
    _mm_clmulepi64_si128::<0x00>(block, factor)
}
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn high(block: __m128i, factor: __m128i) -> __m128i {
    _mm_clmulepi64_si128::<0x11>(block, factor)
}
#[inline]
#[target_feature(enable = "sse2")]
fn add3(a: __m128i, b: __m128i, c: __m128i) -> __m128i {
    _mm_xor_si128(_mm_xor_si128(a, b), c)
}
#[inline]
#[target_feature(enable = "sse2")]
fn factor(behind: usize) -> __m128i {
    vector(FACTORS[behind / 4 + 1])
}

/// The ICRC of a sum of products (95 bits): what is left of it modulo the polynomial, complemented.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn reduce(sum: __m128i) -> u32 {
    let by = _mm_set_epi64x(DIVISOR as i64, INVERSE as i64);
    // The multiple of the polynomial that has the same low 64 bits, which are the high powers.
    let quotient = _mm_clmulepi64_si128::<0x00>(sum, by);
    let multiple = _mm_clmulepi64_si128::<0x10>(quotient, by);
    !(_mm_extract_epi32::<2>(_mm_xor_si128(sum, multiple)) as u32)
}

#[inline]
#[target_feature(enable = "sse2")]
fn vector(v: u128) -> __m128i {
    _mm_set_epi64x((v >> 64) as i64, v as i64)
}
#[inline]
#[target_feature(enable = "sse2")]
fn load(block: &[u8; BLOCK]) -> __m128i {
    vector(u128::from_le_bytes(*block))
}
#[inline]
#[target_feature(enable = "sse2")]
fn lanes(stride: &[u8; STRIDE]) -> [__m128i; LANES] {
    let mut lanes = [_mm_setzero_si128(); LANES];
    for (lane, block) in lanes.iter_mut().zip(stride.as_chunks().0) {
        *lane = load(block);
    }
    lanes
}
