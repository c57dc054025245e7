//! The Internet checksum (RFC 1071).

/// The complement of the ones' complement sum of all bytes of `parts` in a row.
pub(crate) fn of(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u64;
    let mut high = true;
    for byte in parts.iter().flat_map(|p| p.iter()) {
        sum += u64::from(*byte) << if high { 8 } else { 0 };
        high = !high;
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
        assert_eq!(super::of(&[&bytes[..3], &bytes[3..]]), !0xddf2);
        assert_eq!(super::of(&[&[0xff]]), !0xff00);
    }
}
