//! Lines of PMI-1: `cmd=NAME key=value key=value`.
//!
//! Pairs may come in any order, with more white space and more keys than are known. A message (`msg=`) and a
//! value (`value=`) may have spaces, and are the end of their line then.

use crate::error::LineFault;

/// Bytes of the longest line that is read, its end not counted. Four times what launchers take.
pub(crate) const MAX_LINE_BYTES: usize = 4096;

/// A line of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    text: &'a str,
}

impl<'a> Line<'a> {
    /// A line without its end.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, LineFault> {
        let text = core::str::from_utf8(bytes).map_err(|_| LineFault::NotText)?;
        let text = text.strip_suffix('\r').unwrap_or(text);
        if text.chars().any(|c| c.is_control() && c != '\t') {
            return Err(LineFault::NotText);
        }
        let line = Self { text };
        for word in line.words() {
            match word.split_once('=') {
                Some(("msg" | "message" | "value", _)) => break,
                Some((key, _)) if !key.is_empty() => {}
                _ => return Err(LineFault::NotPairs),
            }
        }
        Ok(line)
    }

    fn words(self) -> impl Iterator<Item = &'a str> {
        self.text.split([' ', '\t']).filter(|w| !w.is_empty())
    }

    /// The first value of this key, up to a space.
    pub(crate) fn value(self, key: &str) -> Option<&'a str> {
        self.words().filter_map(|w| w.split_once('=')).find(|(k, _)| *k == key).map(|(_, v)| v)
    }

    /// The value of this key, up to the end of the line.
    pub(crate) fn rest(self, key: &str) -> Option<&'a str> {
        let mut rest = self.text;
        loop {
            rest = rest.trim_start_matches([' ', '\t']);
            let word = rest.split([' ', '\t']).next().filter(|w| !w.is_empty())?;
            match word.split_once('=') {
                Some((k, _)) if k == key => return Some(rest[key.len() + 1..].trim_end()),
                _ => rest = &rest[word.len()..],
            }
        }
    }

    /// The command of the line.
    pub(crate) fn cmd(self) -> Option<&'a str> {
        self.value("cmd")
    }

    /// A required number.
    pub(crate) fn number(self, key: &'static str) -> Result<i64, LineFault> {
        let text = self.value(key).ok_or(LineFault::Lacks { key })?;
        text.parse().map_err(|_| LineFault::Value { key })
    }

    /// A number of processes, or of one of them.
    pub(crate) fn rank(self, key: &'static str) -> Result<u32, LineFault> {
        u32::try_from(self.number(key)?).map_err(|_| LineFault::Value { key })
    }

    /// Checks that the line is the answer of this name.
    pub(crate) fn expect(self, wanted: &'static str) -> Result<Self, LineFault> {
        if self.cmd() == Some(wanted) { Ok(self) } else { Err(LineFault::Unexpected { wanted }) }
    }
}

/// A message as one word of at most 200 bytes.
pub(crate) fn word(message: &str) -> String {
    let plain = |c: char| if c.is_ascii_graphic() && c != '=' { c } else { '_' };
    let mut word: String = message.chars().take(200).map(plain).collect();
    if word.is_empty() {
        word.push('_');
    }
    word
}

/// The message that a word encodes.
pub(crate) fn message(word: &str) -> Box<str> {
    word.replace('_', " ").trim().into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(text: &str) -> Line<'_> {
        Line::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn pairs_come_in_any_order_with_any_space_between() {
        let l = line("  rc=0\t cmd=maxes   vallen_max=1024 more=x=y ");
        assert_eq!(
            (l.cmd(), l.value("vallen_max"), l.value("more")),
            (Some("maxes"), Some("1024"), Some("x=y"))
        );
        assert_eq!((l.number("rc"), l.value("key")), (Ok(0), None));
        assert_eq!(l.number("kvsname_max"), Err(LineFault::Lacks { key: "kvsname_max" }));
    }

    #[test]
    fn a_message_may_have_spaces_and_a_value_too() {
        assert_eq!(line("cmd=get_result rc=-1 msg=no such key").rest("msg"), Some("no such key"));
        assert_eq!(line("cmd=put key=a value=b c d ").rest("value"), Some("b c d"));
        assert_eq!(line("cmd=put key=avalue=7").rest("value"), None);
    }

    #[test]
    fn what_is_no_line_of_pairs_says_why() {
        for (bytes, fault) in [
            (&b"\xff\xfe"[..], LineFault::NotText),
            (b"cmd=a\0b", LineFault::NotText),
            (b"HTTP/1.1 400 Bad Request", LineFault::NotPairs),
            (b"=x", LineFault::NotPairs),
        ] {
            assert_eq!(Line::parse(bytes), Err(fault), "{bytes:?}");
        }
        assert_eq!(line("cmd=put_result rc=x").number("rc"), Err(LineFault::Value { key: "rc" }));
        assert_eq!(line("cmd=set rank=-1").rank("rank"), Err(LineFault::Value { key: "rank" }));
        assert_eq!(line("rc=0").expect("maxes"), Err(LineFault::Unexpected { wanted: "maxes" }));
    }

    #[test]
    fn messages_are_one_word_on_the_wire() {
        assert_eq!(word("no route\nto=host"), "no_route_to_host");
        assert_eq!(word(""), "_");
        assert_eq!(word(&"é".repeat(500)).len(), 200);
        assert_eq!(&*message("no_route"), "no route");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(l) = Line::parse(&bytes) {
                let _ = (l.cmd(), l.number("rc"), l.rest("msg"), l.rest("value"), l.rank("rank"));
            }
        }

        #[test]
        fn nearly_right_lines_do_not_either(
            words in proptest::collection::vec("(cmd|rc|msg|value|key|)(=|==| |)[a-z0-9é=-]{0,6}[ \t]{0,2}", 0..8)
        ) {
            let text = words.concat();
            if let Ok(l) = Line::parse(text.as_bytes()) {
                for key in ["cmd", "rc", "msg", "value", "key"] {
                    // The first of a key is found by both, and the rest goes on where the value ends.
                    if let (Some(v), Some(r)) = (l.value(key), l.rest(key)) {
                        prop_assert!(r.starts_with(v), "{text:?}");
                    }
                }
            }
        }
    }
}
