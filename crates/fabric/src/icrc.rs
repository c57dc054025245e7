//! The invariant CRC (ICRC) of a flow's packets, with the parts that repeat computed once.
//!
//! CRC-32 is linear, so the part of a packet's ICRC that its flow's addresses contribute is computed once a flow, the
//! part of the lengths once a length, and the part of the IPv4 Identification is two table look-ups. Only the packet's
//! own bytes are left for each packet. This way serves CPUs without carry-less multiplication, and lengths that no
//! packet of this project has; otherwise `clmul` computes the ICRC, in half the instructions for a small packet.
//!
//! The same linearity answers the inverse question: which Identification makes a given ICRC right?
//! The residual is shifted back over the packet's bytes (a multiplication by a power of the inverse
//! of x, modulo the polynomial) and then lies in a space of 17 dimensions (16 bits, and "don't
//! fragment") or in none: [`Icrc::solve`].

use core::net::IpAddr;

use hca_core::Gid;
use hca_core::wire::{Bth, Grh, ICRC_BYTES, ImmDt, ROCEV2_PORT, Reth};

use crate::clmul::Clmul;

/// The polynomial of IEEE 802.3, reflected.
pub(crate) const POLY: u32 = 0xedb8_8320;
/// From here on crc32fast's vector code is quicker than tables.
const VECTOR_BYTES: usize = 64;
/// Shorter payloads that lie elsewhere than their headers are left to the tables.
const MIN_PIECE: usize = 32;
/// The headers of a WRITE with immediate data, which are the longest before a payload.
const MAX_HEADERS: usize = Bth::BYTES + size_of::<Reth>() + size_of::<ImmDt>();
/// Bytes of ones, IPv4 header and UDP header.
const PREFIX_V4: usize = 8 + 20 + 8;
/// Bytes of ones, IPv6 header and UDP header.
const PREFIX_V6: usize = 8 + 40 + 8;
/// Bytes of ones and GRH.
const PREFIX_GRH: usize = 8 + 40;
/// Where the Identification stands in the prefix.
const IDENT_AT: usize = 8 + 4;
/// Where the IPv4 flags stand in the prefix.
const FLAGS_AT: usize = 8 + 6;
/// "Don't fragment" in the first byte of the flags.
const DF: u8 = 0x40;

/// `TABLES[k][b]`: the raw CRC of byte `b` and `k` bytes of zero behind it.
static TABLES: [[u32; 256]; 8] = slice_tables();
/// Contribution of the Identification's first and second byte at the end of an IPv4 prefix.
static IDENT: [[u32; 256]; 2] = [byte_table(PREFIX_V4 - IDENT_AT - 1), byte_table(PREFIX_V4 - IDENT_AT - 2)];
/// Contribution of "don't fragment" at the end of an IPv4 prefix.
const DF_PART: u32 = byte_part(DF, PREFIX_V4 - FLAGS_AT - 1);
/// A reduced basis of what Identification and "don't fragment" contribute.
static BASIS: [(u32, u32); 17] = basis();
/// `BACK[k]`: x to the power of minus 8 * 2^k.
static BACK: [u32; 16] = back_powers();

const fn shift_byte(mut c: u32) -> u32 {
    let mut i = 0;
    while i < 8 {
        c = if c & 1 == 1 { c >> 1 ^ POLY } else { c >> 1 };
        i += 1;
    }
    c
}
const fn byte_part(byte: u8, behind: usize) -> u32 {
    let mut c = shift_byte(byte as u32);
    let mut i = 0;
    while i < behind {
        c = shift_byte(c);
        i += 1;
    }
    c
}
const fn byte_table(behind: usize) -> [u32; 256] {
    let mut t = [0; 256];
    let mut b = 0;
    while b < 256 {
        t[b] = byte_part(b as u8, behind);
        b += 1;
    }
    t
}
const fn slice_tables() -> [[u32; 256]; 8] {
    let mut t = [[0; 256]; 8];
    let mut k = 0;
    while k < 8 {
        t[k] = byte_table(k);
        k += 1;
    }
    t
}
/// Each row: a vector, and in which unknowns (bit 0 to 15: Identification, bit 16: "don't fragment") it
/// consists; rows have distinct highest bits and descend.
const fn basis() -> [(u32, u32); 17] {
    let mut rows = [(0_u32, 0_u32); 17];
    let mut i = 0;
    while i < 17 {
        let mut v = if i == 16 {
            DF_PART
        } else if i >= 8 {
            byte_part(1 << (i - 8), PREFIX_V4 - IDENT_AT - 1)
        } else {
            byte_part(1 << i, PREFIX_V4 - IDENT_AT - 2)
        };
        let mut what = 1_u32 << i;
        let mut at = 0;
        while at < i {
            if v ^ rows[at].0 < v {
                v ^= rows[at].0;
                what ^= rows[at].1;
            }
            at += 1;
        }
        assert!(v != 0, "the unknowns are independent");
        let mut to = i;
        while to > 0 && rows[to - 1].0 < v {
            rows[to] = rows[to - 1];
            to -= 1;
        }
        rows[to] = (v, what);
        i += 1;
    }
    rows
}
/// The product of two polynomials modulo the CRC's, bit 31 being the coefficient of 1.
pub(crate) const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut p = 0;
    let mut m = 1 << 31;
    while m != 0 {
        if a & m != 0 {
            p ^= b;
        }
        b = if b & 1 == 1 { b >> 1 ^ POLY } else { b >> 1 };
        m >>= 1;
    }
    p
}
const fn back_powers() -> [u32; 16] {
    // x^-1, squared three times: x^-8.
    let mut p = (1 << 31 ^ POLY) << 1 | 1;
    let mut t = [0; 16];
    let mut i = 0;
    while i < 3 + 16 {
        if i >= 3 {
            t[i - 3] = p;
        }
        p = multiply(p, p);
        i += 1;
    }
    t
}

/// Raw CRC state after a few more bytes.
#[inline]
fn advance(mut c: u32, bytes: &[u8]) -> u32 {
    let (eights, rest) = bytes.as_chunks::<8>();
    for e in eights {
        c = advance8(c, *e);
    }
    let mut rest = rest;
    if let Some((four, tail)) = rest.split_first_chunk::<4>() {
        c = advance4(c, *four);
        rest = tail;
    }
    for &b in rest {
        c = TABLES[0][((c ^ u32::from(b)) & 0xff) as usize] ^ c >> 8;
    }
    c
}
#[inline]
fn advance8(c: u32, e: [u8; 8]) -> u32 {
    let lo = c ^ u32::from_le_bytes([e[0], e[1], e[2], e[3]]);
    let byte = |v: u32, n: u32| (v >> (8 * n) & 0xff) as usize;
    TABLES[7][byte(lo, 0)]
        ^ TABLES[6][byte(lo, 1)]
        ^ TABLES[5][byte(lo, 2)]
        ^ TABLES[4][byte(lo, 3)]
        ^ TABLES[3][e[4] as usize]
        ^ TABLES[2][e[5] as usize]
        ^ TABLES[1][e[6] as usize]
        ^ TABLES[0][e[7] as usize]
}
#[inline]
fn advance4(c: u32, e: [u8; 4]) -> u32 {
    let lo = c ^ u32::from_le_bytes(e);
    let byte = |v: u32, n: u32| (v >> (8 * n) & 0xff) as usize;
    TABLES[3][byte(lo, 0)] ^ TABLES[2][byte(lo, 1)] ^ TABLES[1][byte(lo, 2)] ^ TABLES[0][byte(lo, 3)]
}

/// What stands in front of a flow's BTHs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Head {
    #[default]
    Ipv4,
    Ipv6,
    Grh,
}

/// What a flow's addresses contribute to the ICRC of its packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowCrc {
    /// Raw CRC state in front of the BTH, with zeros for lengths and Identification.
    base: u32,
    head: Head,
}

impl FlowCrc {
    /// The flow from `src` and `src_port` to `dst`, "don't fragment" set; `None` if the IP versions differ.
    pub(crate) fn new(src: IpAddr, dst: IpAddr, src_port: u16) -> Option<Self> {
        let mut bytes = [0_u8; PREFIX_V6];
        bytes[..8].fill(0xff);
        let (udp, head) = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let ip = &mut bytes[8..28];
                (ip[0], ip[1], ip[6], ip[8], ip[9]) = (0x45, 0xff, DF, 0xff, 17);
                ip[10..12].fill(0xff);
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..20].copy_from_slice(&dst.octets());
                (28, Head::Ipv4)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let ip = &mut bytes[8..48];
                ip[..4].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff]);
                (ip[6], ip[7]) = (17, 0xff);
                ip[8..24].copy_from_slice(&src.octets());
                ip[24..40].copy_from_slice(&dst.octets());
                (48, Head::Ipv6)
            }
            _ => return None,
        };
        bytes[udp..udp + 2].copy_from_slice(&src_port.to_be_bytes());
        bytes[udp + 2..udp + 4].copy_from_slice(&ROCEV2_PORT.to_be_bytes());
        bytes[udp + 6..udp + 8].fill(0xff);
        Some(Self { base: advance(!0, &bytes[..udp + 8]), head })
    }
    /// The flow of RoCEv1 between two GIDs: a GRH and nothing else stands in front of the BTH. Traffic class,
    /// flow label and hop limit are taken as ones, and so is the LRH, which Ethernet has none of.
    pub(crate) fn grh(src: Gid, dst: Gid) -> Self {
        let mut bytes = [0xff_u8; PREFIX_GRH];
        let grh = &mut bytes[8..];
        grh[0] = 0x6f;
        grh[4..6].fill(0);
        grh[6] = Grh::NEXT_IBA;
        grh[8..24].copy_from_slice(&src.0);
        grh[24..40].copy_from_slice(&dst.0);
        Self { base: advance(!0, &bytes), head: Head::Grh }
    }
    /// Raw CRC state in front of the BTH, with zeros for lengths and Identification.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn base(&self) -> u32 {
        self.base
    }
    /// What stands in front of its BTHs.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn head(&self) -> Head {
        self.head
    }
    /// Whether its packets have no Identification.
    #[inline]
    pub(crate) fn has_no_ident(&self) -> bool {
        self.head != Head::Ipv4
    }
    /// The same flow without "don't fragment" where it was set, with it where it was not.
    pub(crate) fn toggle_df(&mut self) {
        self.base ^= DF_PART;
    }
}

/// The ICRC as fabrics compute it, for benches. Not a part of the interface: it may change at any time.
#[doc(hidden)]
pub struct MeasuredIcrc(Icrc, FlowCrc);

impl MeasuredIcrc {
    /// The ICRC of the flow between two addresses of one IP version.
    pub fn new(src: IpAddr, dst: IpAddr, src_port: u16) -> Option<Self> {
        Some(Self(Icrc::new(), FlowCrc::new(src, dst, src_port)?))
    }
    /// Puts the ICRC onto packets of `segment` bytes (BTH to ICRC), the first with this Identification.
    #[inline]
    pub fn seal(&mut self, ident: u16, segment: usize, train: &mut [u8]) {
        self.0.seal(&self.1, ident, segment, train);
    }
    /// Whether the ICRC of a packet (BTH to ICRC) is right.
    #[inline]
    pub fn is_right(&mut self, ident: u16, packet: &[u8]) -> bool {
        self.0.residual(&self.1, ident, packet) == 0
    }
}

/// An unknown of a packet's IP header, as its ICRC proves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Solution {
    /// The Identification.
    pub(crate) ident: u16,
    /// "Don't fragment" is not as the flow has it.
    pub(crate) df_differs: bool,
}

/// Computes ICRCs; remembers what the lengths seen last contribute.
pub(crate) struct Icrc {
    clmul: Option<Clmul>,
    /// By length: (length and kind of headers, the contribution of the lengths).
    lens: [(u32, u32); 16],
    /// By length: (length, x to the power of minus 8 a byte).
    backs: [(u32, u32); 16],
}

impl Icrc {
    pub(crate) fn new() -> Self {
        Self { clmul: Clmul::detect(), lens: [(u32::MAX, 0); 16], backs: [(u32::MAX, 0); 16] }
    }
    /// As this CPU does it, by each width of registers that it multiplies, and by tables.
    #[cfg(test)]
    fn every() -> impl Iterator<Item = Self> {
        let clmuls = Clmul::every().into_iter().map(Some).chain([None]);
        clmuls.map(|clmul| Self { clmul, ..Self::new() })
    }

    /// By what the ICRC of `packet` (BTH to ICRC) differs from the right one: 0 if it is right.
    ///
    /// # Panics
    /// When `packet` is shorter than a BTH and an ICRC.
    #[inline]
    pub(crate) fn residual(&mut self, flow: &FlowCrc, ident: u16, packet: &[u8]) -> u32 {
        if let Some(clmul) = self.clmul
            && packet.len().is_multiple_of(4)
        {
            return clmul.residual(flow, ident, packet);
        }
        let (body, tail) = packet.split_last_chunk::<ICRC_BYTES>().expect("an ICRC");
        u32::from_le_bytes(*tail) ^ self.icrc(flow, ident, body)
    }

    /// Puts the ICRCs onto a train: packets of `segment` bytes, the last one may be shorter. The first has this
    /// Identification.
    ///
    /// # Panics
    /// When a packet is shorter than a BTH and an ICRC.
    #[inline]
    pub(crate) fn seal(&mut self, flow: &FlowCrc, ident: u16, segment: usize, train: &mut [u8]) {
        if let Some(clmul) = self.clmul
            && (train.len() | segment).is_multiple_of(4)
        {
            return clmul.seal(flow, ident, segment, train);
        }
        for (k, packet) in train.chunks_mut(segment).enumerate() {
            let (body, tail) = packet.split_last_chunk_mut::<ICRC_BYTES>().expect("room for the ICRC");
            *tail = self.icrc(flow, ident.wrapping_add(k as u16), body).to_le_bytes();
        }
    }

    /// Puts the ICRC onto a packet (BTH to ICRC) whose bytes from `at` to its ICRC are `payload`, and lie elsewhere.
    /// They are a multiple of 4.
    ///
    /// # Panics
    /// When there are fewer than a BTH before `at`, or more than the headers of a SEND or WRITE.
    pub(crate) fn seal_in_two(
        &mut self,
        flow: &FlowCrc,
        ident: u16,
        packet: &mut [u8],
        at: usize,
        payload: &[u8],
    ) {
        let (head, tail) = (&packet[..at], at + payload.len());
        let icrc = match self.clmul {
            Some(clmul) if at.is_multiple_of(4) && payload.len() > MIN_PIECE => {
                // Zeros stand behind the headers, in place of an ICRC.
                let mut first = [0; MAX_HEADERS + ICRC_BYTES];
                first[..at].copy_from_slice(head);
                let first = &first[..at + ICRC_BYTES];
                !advance4(clmul.in_two(flow, ident, packet.len(), first, payload), [0; 4])
            }
            _ => {
                let c = self.register(flow, ident, tail, head);
                !register_of(c, payload)
            }
        };
        packet[tail..].copy_from_slice(&icrc.to_le_bytes());
    }

    /// The ICRC of a packet whose transport bytes (BTH to padding) are `packet`, by tables and crc32fast.
    fn icrc(&mut self, flow: &FlowCrc, ident: u16, packet: &[u8]) -> u32 {
        !self.register(flow, ident, packet.len(), packet)
    }

    /// The CRC's register behind the first of a packet's `len` transport bytes, which begin with its BTH.
    fn register(&mut self, flow: &FlowCrc, ident: u16, len: usize, first: &[u8]) -> u32 {
        let (bth, rest) = first.split_first_chunk::<{ Bth::BYTES }>().expect("a packet has a BTH");
        let mut c = flow.base ^ self.lengths(len, flow.head);
        if flow.head == Head::Ipv4 {
            c ^= ident_part(ident);
        }
        c = advance8(c, [bth[0], bth[1], bth[2], bth[3], 0xff, bth[5], bth[6], bth[7]]);
        c = advance4(c, [bth[8], bth[9], bth[10], bth[11]]);
        register_of(c, rest)
    }

    /// The one Identification (and "don't fragment") that makes a packet right whose ICRC, computed
    /// with `ident`, differs from the one it carries by `residual`; `None` if there is none.
    pub(crate) fn solve(&mut self, ident: u16, residual: u32, packet_bytes: usize) -> Option<Solution> {
        let mut v = multiply(residual, self.back(packet_bytes));
        let mut what = 0;
        for &(row, unknowns) in &BASIS {
            if v ^ row < v {
                v ^= row;
                what ^= unknowns;
            }
        }
        (v == 0).then_some(Solution { ident: ident ^ what as u16, df_differs: what >> 16 & 1 == 1 })
    }

    #[inline]
    fn lengths(&mut self, packet_bytes: usize, head: Head) -> u32 {
        let key = (packet_bytes as u32) << 2 | head as u32;
        let slot = &mut self.lens[packet_bytes >> 2 & 15];
        if slot.0 != key {
            *slot = (key, lengths_part(packet_bytes, head));
        }
        slot.1
    }

    fn back(&mut self, packet_bytes: usize) -> u32 {
        let slot = &mut self.backs[packet_bytes >> 2 & 15];
        if slot.0 != packet_bytes as u32 {
            let mut p = 1 << 31;
            for (k, &power) in BACK.iter().enumerate() {
                if packet_bytes >> k & 1 == 1 {
                    p = multiply(p, power);
                }
            }
            *slot = (packet_bytes as u32, p);
        }
        slot.1
    }
}

/// The CRC's register behind these bytes.
#[inline]
fn register_of(c: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < VECTOR_BYTES {
        return advance(c, bytes);
    }
    // crc32fast takes a tail of less than 16 bytes byte by byte.
    let (wide, tail) = bytes.split_at(bytes.len() & !15);
    let mut wide_crc = crc32fast::Hasher::new_with_initial(!c);
    wide_crc.update(wide);
    advance(!wide_crc.finalize(), tail)
}

#[inline]
fn ident_part(ident: u16) -> u32 {
    IDENT[0][usize::from(ident >> 8)] ^ IDENT[1][usize::from(ident & 0xff)]
}

#[cold]
fn lengths_part(packet_bytes: usize, head: Head) -> u32 {
    let transport = packet_bytes + ICRC_BYTES;
    let udp = ((8 + transport) as u16).to_be_bytes();
    let mut bytes = [0_u8; PREFIX_V6];
    match head {
        Head::Ipv4 => {
            let total = (20 + 8 + transport) as u16;
            bytes[10..12].copy_from_slice(&total.to_be_bytes());
            bytes[32..34].copy_from_slice(&udp);
            advance(0, &bytes[..PREFIX_V4])
        }
        Head::Ipv6 => {
            bytes[12..14].copy_from_slice(&udp);
            bytes[52..54].copy_from_slice(&udp);
            advance(0, &bytes)
        }
        Head::Grh => {
            bytes[12..14].copy_from_slice(&(transport as u16).to_be_bytes());
            advance(0, &bytes[..PREFIX_GRH])
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use hca_core::wire::icrc::IpFlow;
    use proptest::prelude::*;

    fn ip(v6: bool, bits: u128) -> IpAddr {
        if v6 { IpAddr::V6(bits.into()) } else { IpAddr::V4((bits as u32).into()) }
    }

    /// The ICRC of a RoCEv1 packet from its definition: ones in place of an LRH, the GRH with what routers
    /// change as ones, the BTH with its fifth byte as ones, the rest.
    fn plain_grh(src: Gid, dst: Gid, packet: &[u8]) -> u32 {
        let mut head =
            bytemuck::bytes_of(&Grh::new(0xff, 0xf_ffff, (packet.len() + 4) as u16, 0xff, src, dst)).to_vec();
        head.extend_from_slice(&packet[..Bth::BYTES]);
        head[Grh::BYTES + 4] = 0xff;
        let mut crc = crc32fast::Hasher::new();
        for part in [&[0xff; 8], &head[..], &packet[Bth::BYTES..]] {
            crc.update(part);
        }
        crc.finalize()
    }

    /// Every length that a packet can have, and some that none has.
    #[test]
    fn equals_the_plain_computation_for_every_length() {
        let bytes: Vec<u8> = (0..9000_u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        for (v6, mut icrc) in
            [false, true].into_iter().flat_map(|v6| Icrc::every().map(move |icrc| (v6, icrc)))
        {
            let (src, dst) = (ip(v6, 0xc0a8_0102), ip(v6, 7 << 70 | 0x0a00_0001));
            let (plain, flow) = (IpFlow::new(src, dst, 777).unwrap(), FlowCrc::new(src, dst, 777).unwrap());
            let grh = FlowCrc::grh(src.into(), dst.into());
            for len in (12..=4200).chain([8192 + 12, 8996 - 12]) {
                let ident = (len as u16).wrapping_mul(31);
                let packet = &bytes[len % 7..len % 7 + len + ICRC_BYTES];
                let (body, tail) = packet.split_last_chunk().unwrap();
                let wrong = plain.icrc(ident, body) ^ u32::from_le_bytes(*tail);
                assert_eq!(icrc.residual(&flow, ident, packet), wrong, "{len} bytes, v6 {v6}");
                let wrong = plain_grh(src.into(), dst.into(), body) ^ u32::from_le_bytes(*tail);
                assert_eq!(icrc.residual(&grh, ident, packet), wrong, "{len} bytes behind a GRH");
            }
        }
    }

    proptest! {
        #[test]
        fn equals_the_plain_computation_behind_a_grh(
            src: [u8; 16], dst: [u8; 16], ident: u16,
            segment in 16_usize..600, packets in 1_usize..10, last in 16_usize..600, words: bool, byte: u8,
        ) {
            let (src, dst) = (Gid(src), Gid(dst));
            let flow = FlowCrc::grh(src, dst);
            let round = |n: usize| if words { n & !3 } else { n };
            let segment = round(segment);
            let len = segment * (packets - 1) + round(last).min(segment);
            for mut icrc in Icrc::every() {
                let mut train: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8)).collect();
                icrc.seal(&flow, ident, segment, &mut train);
                for packet in train.chunks(segment) {
                    let (body, tail) = packet.split_last_chunk().unwrap();
                    prop_assert_eq!(u32::from_le_bytes(*tail), plain_grh(src, dst, body));
                    prop_assert_eq!(icrc.residual(&flow, !ident, packet), 0);
                }
            }
        }

        #[test]
        fn equals_the_plain_computation_for_every_flow_and_alignment(
            v6: bool, src: u128, dst: u128, port: u16, ident: u16, at in 0_usize..64,
            bytes in proptest::collection::vec(any::<u8>(), 80..4300),
        ) {
            let (src, dst) = (ip(v6, src), ip(v6, dst));
            let (plain, flow) = (IpFlow::new(src, dst, port).unwrap(), FlowCrc::new(src, dst, port).unwrap());
            let whole = (bytes.len() - at) & !3;
            for packet in [&bytes[at..], &bytes[at..at + whole]] {
                let (body, tail) = packet.split_last_chunk().unwrap();
                let wrong = plain.icrc(ident, body) ^ u32::from_le_bytes(*tail);
                for mut icrc in Icrc::every() {
                    prop_assert_eq!(icrc.residual(&flow, ident, packet), wrong);
                }
            }
        }

        #[test]
        fn a_train_is_sealed_packet_by_packet(
            v6: bool, src: u128, dst: u128, port: u16, ident: u16,
            segment in 16_usize..600, packets in 1_usize..10, last in 16_usize..600, words: bool, byte: u8,
        ) {
            let (src, dst) = (ip(v6, src), ip(v6, dst));
            let (plain, flow) = (IpFlow::new(src, dst, port).unwrap(), FlowCrc::new(src, dst, port).unwrap());
            let round = |n: usize| if words { n & !3 } else { n };
            let segment = round(segment);
            let len = segment * (packets - 1) + round(last).min(segment);
            for mut icrc in Icrc::every() {
                let mut train: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8)).collect();
                icrc.seal(&flow, ident, segment, &mut train);
                for (k, packet) in train.chunks(segment).enumerate() {
                    let (body, tail) = packet.split_last_chunk().unwrap();
                    let at = k * segment;
                    prop_assert!(body.iter().enumerate().all(|(i, b)| *b == byte.wrapping_add((at + i) as u8)));
                    prop_assert_eq!(u32::from_le_bytes(*tail), plain.icrc(ident.wrapping_add(k as u16), body));
                }
            }
        }

        #[test]
        fn a_packet_in_two_places_gets_the_icrc_of_a_whole_one(
            v6: bool, src: u128, dst: u128, port: u16, ident: u16, headers in 3_usize..=8, at in 0_usize..64,
            words in 1_usize..1100, bytes in proptest::collection::vec(any::<u8>(), 36 + 4 * 1100 + 64..=36 + 4 * 1100 + 64),
        ) {
            let (src, dst) = (ip(v6, src), ip(v6, dst));
            let (plain, flow) = (IpFlow::new(src, dst, port).unwrap(), FlowCrc::new(src, dst, port).unwrap());
            let (head, payload) = (&bytes[..4 * headers], &bytes[36 + at..][..4 * words]);
            for mut icrc in Icrc::every() {
                let mut packet = [head, &vec![0x77; 4 * words + ICRC_BYTES]].concat();
                icrc.seal_in_two(&flow, ident, &mut packet, head.len(), payload);
                let sealed = u32::from_le_bytes(*packet.last_chunk().unwrap());
                prop_assert_eq!(sealed, plain.icrc(ident, &[head, payload].concat()));
                let hole = &packet[head.len()..packet.len() - ICRC_BYTES];
                prop_assert!(packet.starts_with(head) && hole.iter().all(|b| *b == 0x77), "nothing else is written");
            }
        }

        #[test]
        fn the_identification_is_solved_exactly(
            src: u32, port: u16, guess: u16, truth: u16, df: bool,
            packet in proptest::collection::vec(any::<u8>(), 12..4200),
        ) {
            let (src, dst) = (ip(false, src.into()), ip(false, 0x7f00_0001));
            let mut icrc = Icrc::new();
            let flow = FlowCrc::new(src, dst, port).unwrap();
            let flags = if df { 0x4000 } else { 0 };
            let wire = IpFlow::new(src, dst, port).unwrap().icrc_with_flags(truth, flags, &packet);
            let residual = wire ^ icrc.icrc(&flow, guess, &packet);
            prop_assert_eq!(
                icrc.solve(guess, residual, packet.len()),
                Some(Solution { ident: truth, df_differs: !df })
            );
        }
    }

    /// A flipped bit leaves a residual that depends on its place from the packet's first byte only. Of all
    /// places in packets up to 4200 bytes, two lie in the space of 17 dimensions by chance, and none in that of the
    /// Identification alone.
    #[test]
    fn a_flipped_bit_is_never_taken_for_another_identification_alone() {
        let mut icrc = Icrc::new();
        let mut solved = Vec::new();
        for at in (0..4200).filter(|at| *at != 4) {
            let bytes = (at + 1).max(Bth::BYTES);
            for bit in 0..8 {
                let residual = byte_part(1 << bit, bytes - 1 - at);
                if let Some(solution) = icrc.solve(0, residual, bytes) {
                    assert!(solution.df_differs, "byte {at}, bit {bit}");
                    solved.push((at, bit));
                }
            }
        }
        assert_eq!(solved, [(173, 3), (1834, 6)]);
    }
}
