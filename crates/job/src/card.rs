//! Cards as values of limited length.
//!
//! A value is text without `=`, white space and line ends, within the launcher's limit of length. So a card is written
//! in base64 (RFC 4648 §5, without padding) and cut into parts. The first part holds the number of parts and the number
//! of the card's bytes: `c1-PARTS-BYTES-TEXT`.

use data_encoding::BASE64URL_NOPAD;

/// The length of the longest card in bytes.
pub const MAX_CARD_BYTES: usize = 64 * 1024;
/// Bytes of the longest value that is made. A whole line has to fit the 1,024 bytes that launchers read, with the
/// longest name of a job's values (256), the key (64) and the words around them.
pub(crate) const MAX_PART_BYTES: usize = 640;
/// Bytes of the shortest limit that is worked with.
pub(crate) const MIN_VALUE_BYTES: usize = 64;
/// Bytes of the longest key that is made, of a card of the last rank: `hca-4294967295-65535`.
pub(crate) const KEY_BYTES: usize = 24;

/// The key of a part.
pub(crate) fn key(rank: u32, part: usize) -> String {
    format!("hca-{rank}-{part}")
}

/// The values of a card, none longer than `limit`, which is at least [`MIN_VALUE_BYTES`].
pub(crate) fn split(card: &[u8], limit: usize) -> Vec<String> {
    let text = BASE64URL_NOPAD.encode(card);
    let limit = limit.min(MAX_PART_BYTES);
    // Room for the head at its longest: `c1-65535-65536-`.
    let first = (limit - 16).min(text.len());
    let (head, tail) = text.split_at(first);
    let mut parts = vec![String::new()];
    parts.extend(tail.as_bytes().chunks(limit).map(|c| c.iter().map(|&b| char::from(b)).collect()));
    parts[0] = format!("c1-{}-{}-{head}", parts.len(), card.len());
    parts
}

/// A card whose parts come one by one.
pub(crate) struct Joined {
    text: String,
    parts: usize,
    bytes: usize,
}

impl Joined {
    /// From its first part; `None` if that is none.
    pub(crate) fn first(value: &str) -> Option<Self> {
        let mut fields = value.strip_prefix("c1-")?.splitn(3, '-');
        let parts = fields.next()?.parse().ok()?;
        let bytes = fields.next()?.parse().ok()?;
        let text = fields.next()?;
        let possible = bytes <= MAX_CARD_BYTES && (1..=bytes * 2 + 1).contains(&parts);
        possible.then(|| Self { text: text.to_owned(), parts, bytes })
    }

    /// How many parts there are, the first one counted.
    pub(crate) fn parts(&self) -> usize {
        self.parts
    }

    /// Takes the next part; no card if it is more than there can be.
    pub(crate) fn push(&mut self, value: &str) -> Option<()> {
        let fits = !value.is_empty() && self.text.len() + value.len() <= self.bytes * 2;
        fits.then(|| self.text.push_str(value))
    }

    /// The card, if the parts make one.
    pub(crate) fn card(self) -> Option<Vec<u8>> {
        BASE64URL_NOPAD.decode(self.text.as_bytes()).ok().filter(|card| card.len() == self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn join(parts: &[String]) -> Option<Vec<u8>> {
        let mut joined = Joined::first(parts.first()?)?;
        if joined.parts() != parts.len() {
            return None;
        }
        for part in &parts[1..] {
            joined.push(part)?;
        }
        joined.card()
    }

    #[test]
    fn the_letters_are_those_of_rfc_4648() {
        // RFC 4648 §10, and the two letters that are of file names.
        let letters = |card: &[u8]| split(card, MAX_PART_BYTES);
        assert_eq!(letters(b"foobar"), ["c1-1-6-Zm9vYmFy"]);
        assert_eq!(letters(b"fooba"), ["c1-1-5-Zm9vYmE"]);
        assert_eq!(letters(&[0xff, 0xef, 0xbe]), ["c1-1-3-_---"]);
    }

    #[test]
    fn the_longest_card_fits_keys_and_values() {
        let card = vec![0xa5; MAX_CARD_BYTES];
        for limit in [MIN_VALUE_BYTES, 255, 1024, 1 << 20] {
            let parts = split(&card, limit);
            assert!(parts.iter().all(|p| p.len() <= limit.min(MAX_PART_BYTES)), "{limit}");
            assert!(key(u32::MAX, parts.len() - 1).len() < KEY_BYTES, "{limit}");
            assert_eq!(join(&parts).unwrap(), card, "{limit}");
        }
    }

    #[test]
    fn what_lies_about_its_length_is_no_card() {
        for value in [
            "",
            "c1",
            "c1-1-",
            "c1-1-3-Zm9",
            "c1-1-2-Zm9v",
            "c1-0-0-",
            "c1-9-1-Zg",
            "c1-18446744073709551616-3-Zm9v",
            "c1-1-65537-Zm9v",
            "c1-1-1-Z",
            "c1-1-1-Zz",
            "c1-1-3-Zm9=",
            "c2-1-3-Zm9v",
        ] {
            assert_eq!(join(&[value.to_owned()]), None, "{value}");
        }
        assert_eq!(join(&["c1-2-3-Zm9".to_owned(), "v".repeat(4000)]), None);
        let whole = |bytes: usize| format!("c1-1-{bytes}-{}", BASE64URL_NOPAD.encode(&vec![7; bytes]));
        assert!(join(&[whole(MAX_CARD_BYTES)]).is_some() && join(&[whole(MAX_CARD_BYTES + 1)]).is_none());
        assert_eq!(join(&["c1-2-3-Zm9v".to_owned(), String::new()]), None);
    }

    proptest! {
        #[test]
        fn a_card_comes_back_from_its_parts(
            card in proptest::collection::vec(any::<u8>(), 0..2000), limit in MIN_VALUE_BYTES..1500usize
        ) {
            let parts = split(&card, limit);
            for part in &parts {
                prop_assert!(part.len() <= limit.min(MAX_PART_BYTES));
                prop_assert!(part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
            }
            prop_assert_eq!(join(&parts).unwrap(), card);
        }

        #[test]
        fn no_parts_make_it_panic(parts in proptest::collection::vec("(c1-)?[0-9A-Za-z_=-]{0,20}", 0..4)) {
            let _ = join(&parts);
        }
    }
}
