//! The variant CRC of an InfiniBand link: the last two bytes of a packet, computed again at every hop.
//!
//! CRC-16 of the polynomial x^16 + x^12 + x^3 + x + 1 (0x100B), seeded with ones, each byte taken
//! least significant bit first, the result complemented, over the packet from the first byte of the
//! LRH to the end of the ICRC. RoCE has none: Ethernet's frame check sequence stands in its place.

/// The polynomial with its bits in the order in which they are sent.
const REFLECTED: u16 = 0x100b_u16.reverse_bits();

static TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ REFLECTED } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The VCRC over `packet`, LRH to ICRC; appended in little-endian order, as the ICRC is.
pub fn vcrc(packet: &[u8]) -> u16 {
    !packet.iter().fold(0xffff, |crc: u16, byte| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long division over GF(2), bit by bit in sending order: shares nothing with the table.
    fn long_division(packet: &[u8]) -> u16 {
        let mut bits: Vec<bool> =
            packet.iter().flat_map(|b| (0..8).map(move |i| b >> i & 1 == 1)).chain([false; 16]).collect();
        for bit in &mut bits[..16] {
            *bit = !*bit;
        }
        let divisor: Vec<bool> = (0..=16).rev().map(|i| 0x1_100b_u32 >> i & 1 == 1).collect();
        for at in 0..bits.len() - 16 {
            if bits[at] {
                bits[at..at + 17].iter_mut().zip(&divisor).for_each(|(bit, d)| *bit ^= d);
            }
        }
        let rest = &bits[bits.len() - 16..];
        !rest.iter().enumerate().fold(0, |crc, (i, bit)| crc | u16::from(*bit) << i)
    }

    #[test]
    fn the_table_agrees_with_long_division() {
        let bytes: Vec<u8> = (0..97_u8).map(|i| i.wrapping_mul(37)).collect();
        for len in (2..bytes.len()).step_by(if cfg!(miri) { 31 } else { 1 }) {
            assert_eq!(vcrc(&bytes[..len]), long_division(&bytes[..len]), "{len} bytes");
        }
    }

    #[test]
    fn a_packet_with_its_vcrc_leaves_the_same_residue_whatever_it_holds() {
        let with_vcrc = |packet: &[u8]| vcrc(&[packet, &vcrc(packet).to_le_bytes()].concat());
        assert_eq!(with_vcrc(b"one packet"), with_vcrc(&[0; 64]));
        assert_ne!(with_vcrc(b"one packet"), vcrc(b"one packet\0\0"));
    }

    #[test]
    fn every_single_flipped_bit_is_seen() {
        let packet = [0x5a_u8; 32];
        for bit in 0..256 {
            let mut bad = packet;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(vcrc(&bad), vcrc(&packet));
        }
    }
}
