//! The second use of the fuzz target `control`: its input is the bytes that either end of `hca pingpong` receives. The
//! corpus runs through it in `cargo test` too.

use std::io::{self, Read, Write};

use super::exchange::{self, Dest};

/// The endpoint of this end of a ping-pong.
const OWN: &[u8] = b"0000:000011:000007:00000000000000000000ffff7f000001\0";

/// A stream that yields the input in pieces, and drops all writes.
struct Heard<'a>(&'a [u8]);

impl Read for Heard<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = into.len().min(self.0.len()).min(7);
        let (came, rest) = self.0.split_at(len);
        into[..len].copy_from_slice(came);
        self.0 = rest;
        Ok(len)
    }
}

impl Write for Heard<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes `data` as the received bytes of either end of a ping-pong. A parsed message holds only values of an honest
/// end, and is built again as the same message.
#[cfg_attr(not(fuzzing), allow(unreachable_pub, reason = "the fuzz target calls it"))]
pub fn ping_pong(data: &[u8]) {
    let own = Dest::from_text(OWN).expect("it is one");
    let said = Dest::from_text(data);
    if let Ok(said) = &said {
        assert!(said.qpn().is_ordinary() && !said.gid().is_multicast());
        assert!(said.lid().raw() == 0 || said.lid().is_unicast());
        assert!(said.to_text().as_bytes().eq_ignore_ascii_case(data));
    }
    // Both ends take a text of that length, and the one that waits a `done` behind it.
    let begin = &data[..data.len().min(OWN.len())];
    if let Ok(theirs) = exchange::client(&mut Heard(data), own, exchange::LIMIT) {
        assert_eq!(theirs, Dest::from_text(begin).expect("it was taken"));
    }
    let mut connected = None;
    let served = exchange::server(&mut Heard(data), own, exchange::LIMIT, |theirs| {
        connected = Some(*theirs);
        Ok(())
    });
    assert!(served.is_err() || served.ok() == connected);
}

#[cfg(test)]
mod tests {
    use test_support::corpus::of;

    use super::*;

    #[test]
    fn the_corpus_of_control_passes_whole_cut_off_and_changed() {
        for (_, seed) in of("control", 12) {
            ping_pong(&seed);
            for at in 0..seed.len() {
                ping_pong(&seed[..at]);
                for byte in *b"+9\"" {
                    let mut changed = seed.clone();
                    changed[at] = byte;
                    ping_pong(&changed);
                }
            }
        }
    }

    #[test]
    fn the_corpus_holds_texts_that_honest_ends_say_and_such_as_are_refused() {
        let seeds = of("control", 12);
        assert!(seeds.iter().filter(|(name, _)| name.contains("ping-pong")).count() >= 5);
        // Inputs that fuzzing found may be neither.
        for (name, seed) in seeds.into_iter().filter(|(name, _)| !name.starts_with("found-")) {
            let understood = Dest::from_text(&seed[..seed.len().min(OWN.len())]).is_ok();
            assert_eq!(understood, name.contains("ping-pong") && !name.starts_with("bad-"), "{name}");
        }
    }
}
