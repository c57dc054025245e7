//! The hash that chooses one of several receive queues for a frame.

use hca_prm::command::ethernet::{RxHashFieldSelect, Tirc};

use super::frame::{Headers, Ip};

/// The hash is made as Toeplitz.
const TOEPLITZ: u32 = 2;
/// Fields that are hashed: addresses and ports, of the source and of the destination.
const SOURCE: u32 = 1;
const TO: u32 = 2;
const SOURCE_PORT: u32 = 4;
const TO_PORT: u32 = 8;

/// A hash, and what it was made of, as completions tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Hash {
    pub(super) value: u32,
    pub(super) of: u32,
}

/// The hash of a frame, as an interface asks for it.
pub(super) fn of(tirc: &Tirc, frame: &[u8], headers: &Headers) -> Hash {
    let Some(ip) = &headers.ip else { return Hash::default() };
    let asked = tirc.get(Tirc::RX_HASH_FIELD_SELECTOR_OUTER);
    let (bytes, of) = selected(&asked, frame, ip);
    if bytes.is_empty() {
        return Hash::default();
    }
    let value = if tirc.get(Tirc::RX_HASH_FN) == TOEPLITZ {
        toeplitz(&tirc.get(Tirc::RX_HASH_TOEPLITZ_KEY), &bytes)
    } else {
        u32::from(!bytes.iter().fold(0, |hash, byte| hash ^ byte))
    };
    Hash { value, of }
}

fn selected(asked: &RxHashFieldSelect, frame: &[u8], ip: &Ip) -> (Vec<u8>, u32) {
    let fields = asked.get(RxHashFieldSelect::SELECTED_FIELDS);
    let mut of = 0;
    let mut bytes = Vec::with_capacity(36);
    let v6 = asked.get(RxHashFieldSelect::L3_PROT_TYPE);
    if v6 == ip.v6 {
        let (from, to) = ip.addresses(frame);
        let kind = if v6 { 2 } else { 1 };
        for (field, address, at) in [(SOURCE, from, 0), (TO, to, 2)] {
            if fields & field != 0 {
                bytes.extend_from_slice(address);
                of |= kind << at;
            }
        }
    }
    let udp = asked.get(RxHashFieldSelect::L4_PROT_TYPE);
    if let Some(l4) = ip.l4.filter(|l4| l4.tcp != udp) {
        let kind = if udp { 2 } else { 1 };
        for (field, port, at) in [(SOURCE_PORT, 0, 4), (TO_PORT, 2, 6)] {
            if fields & field != 0 {
                bytes.extend_from_slice(&l4.ports[port..port + 2]);
                of |= kind << at;
            }
        }
    }
    (bytes, of)
}

/// The hash of that name: the exclusive or of the key's 32 bits from each bit on that is set.
fn toeplitz(key: &[u8; 40], bytes: &[u8]) -> u32 {
    let mut window = u64::from_be_bytes(*key.first_chunk().expect("40 bytes have 8"));
    let mut hash = 0;
    for (i, byte) in bytes.iter().enumerate() {
        for bit in (0..8).rev() {
            if byte >> bit & 1 != 0 {
                hash ^= (window >> 32) as u32;
            }
            window <<= 1;
        }
        window |= u64::from(key.get(i + 8).copied().unwrap_or_default());
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of Microsoft's "Verifying the RSS Hash Calculation".
    #[test]
    fn the_hash_is_that_of_its_published_examples() {
        const KEY: [u8; 40] = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
            0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
            0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
        ];
        let bytes = [66, 9, 149, 187, 161, 142, 100, 80, 0x0a, 0xea, 0x06, 0xe6];
        assert_eq!(toeplitz(&KEY, &bytes[..8]), 0x323e_8fc2);
        assert_eq!(toeplitz(&KEY, &bytes), 0x51cc_c178);
    }
}
