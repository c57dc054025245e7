//! The Internet checksum (RFC 1071).

/// The complement of the ones' complement sum of all bytes of `parts` in a row.
pub(crate) fn of(parts: &[&[u8]]) -> u16 {
    let (mut sum, mut is_odd) = (0_u64, false);
    for mut part in parts.iter().copied() {
        if is_odd && let Some(low) = part.split_off_first() {
            sum += u64::from(*low);
            is_odd = false;
        }
        let (words, last) = part.as_chunks::<2>();
        sum += words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum::<u64>();
        if let [high] = last {
            sum += u64::from(*high) << 8;
            is_odd = true;
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_odd_length_is_padded_and_parts_join() {
        // The example of RFC 1071: the sum of these bytes is ddf2.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(super::of(&[&bytes]), !0xddf2);
        for at in 0..=bytes.len() {
            assert_eq!(super::of(&[&bytes[..at], &[], &bytes[at..]]), !0xddf2, "{at}");
        }
        assert_eq!(super::of(&[&[0xff]]), !0xff00);
    }
}
