//! The text by which the programs `ibv_rc_pingpong`, `ibv_uc_pingpong` and `ibv_ud_pingpong` learn of
//! each other: `LID:QPN:PSN:GID` in hexadecimal over TCP, each with a zero byte behind it.
//!
//! The client sends its own, reads the server's, and sends `done`. The server connects its queue pair
//! before it answers, so that the client's first message finds it ready.
//!
//! An end that says nothing is given up on after a limit, and on Ctrl-C. Both are looked for whenever a read
//! yields, so the stream has a read timeout ([`SLICE`](hca_perf::interrupt::SLICE)).

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use hca_core::{Gid, Lid, Psn, Qpn};
use hca_perf::interrupt::interrupted;
use hca_verbs::Endpoint;
use thiserror::Error;

/// Bytes of the text, its zero byte included.
const DEST_BYTES: usize = "0000:000000:000000:00000000000000000000000000000000\0".len();
/// The client's last message of the exchange.
const DONE: &[u8] = b"done\0";

/// The whole exchange takes this long at most; both programs answer at once.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// One end, as the other one needs to know it. It holds nothing that no end of a ping-pong is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dest {
    lid: Lid,
    qpn: Qpn,
    psn: Psn,
    gid: Gid,
}

/// The reason why the two ends did not learn of each other.
#[derive(Debug, Error)]
pub(crate) enum ExchangeError {
    /// The connection broke.
    #[error(
        "the connection of the exchange broke while {doing}: {source}; read the other end's output, and start both again"
    )]
    Io { doing: &'static str, source: std::io::Error },
    /// The other end says nothing.
    #[error(
        "the other end sent nothing for {limit:?} while {doing}: check that an ibv_*_pingpong or `hca pingpong` of the same service runs at that address and port, end it if it hangs, and start both again"
    )]
    Silent { doing: &'static str, limit: Duration },
    /// The user ended it.
    #[error("ended by Ctrl-C while {doing}")]
    Interrupted { doing: &'static str },
    /// Something else answered.
    #[error(
        "the other end sent {text:?} instead of LID:QPN:PSN:GID: check that an ibv_*_pingpong or `hca pingpong` of the same service listens on that port"
    )]
    Garbled { text: String },
    /// The peer says what can't be.
    #[error(
        "the other end sent {text:?}, which has an invalid {what}: check that an ibv_*_pingpong or `hca pingpong` of the same service listens on that port"
    )]
    Impossible { text: String, what: &'static str },
    /// The peer gave neither GID nor LID.
    #[error(
        "the other end sent no GID, which RoCE needs: start it with -g and the index of its RoCEv2 GID (show_gids, or ibv_devinfo -v, lists them)"
    )]
    NoGid,
    /// This end could not connect its queue pair.
    #[error(transparent)]
    Connect(hca_perf::Failure),
}

impl Dest {
    /// The address of this end. With LIDs the GID is left out, since rdma-core's programs take a GID as a request for a
    /// global header.
    pub(crate) fn of(own: &Endpoint) -> Self {
        let gid = if own.lid.raw() == 0 { own.gid } else { Gid::default() };
        Self { lid: own.lid, qpn: own.qpn, psn: own.psn, gid }
    }

    /// The LID of a unicast address; 0 on RoCE.
    pub(crate) fn lid(&self) -> Lid {
        self.lid
    }
    /// The queue pair's number, which is an ordinary one.
    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }
    /// The first PSN that this end sends.
    pub(crate) fn psn(&self) -> Psn {
        self.psn
    }
    /// The port, which is no group; none on InfiniBand, where the LID is enough.
    pub(crate) fn gid(&self) -> Gid {
        self.gid
    }

    pub(crate) fn to_text(self) -> String {
        let gid: String = self.gid.0.iter().map(|b| format!("{b:02x}")).collect();
        format!("{:04x}:{:06x}:{:06x}:{gid}\0", self.lid.raw(), self.qpn.raw(), self.psn.raw())
    }

    /// Whether there is an address for that: a GID, or LIDs on both ends, as programs that were given no index of a GID
    /// have on InfiniBand.
    fn can_be_reached_by(&self, other: &Self) -> bool {
        self.gid != Gid::default() || (self.lid.raw() != 0 && other.lid.raw() != 0)
    }

    pub(crate) fn from_text(text: &[u8]) -> Result<Self, ExchangeError> {
        let shown = || String::from_utf8_lossy(text).into_owned();
        let garbled = || ExchangeError::Garbled { text: shown() };
        let clean = std::str::from_utf8(text).ok().and_then(|t| t.strip_suffix('\0')).ok_or_else(garbled)?;
        let mut parts = clean.split(':');
        let mut number = |digits: usize| {
            // All of them, and no sign, which Rust would take.
            let whole = |p: &&str| p.len() == digits && p.bytes().all(|b| b.is_ascii_hexdigit());
            let part = parts.next().filter(whole).ok_or_else(garbled)?;
            u128::from_str_radix(part, 16).map_err(|_| garbled())
        };
        let (lid, qpn, psn, gid) = (number(4)?, number(6)?, number(6)?, number(32)?);
        if parts.next().is_some() {
            return Err(garbled());
        }
        let dest = Self {
            lid: Lid::new(lid as u16),
            qpn: Qpn::new(qpn as u32),
            psn: Psn::new(psn as u32),
            gid: Gid(gid.to_be_bytes()),
        };
        let refuse = |what| Err(ExchangeError::Impossible { text: shown(), what });
        match dest {
            Self { lid, .. } if lid.raw() != 0 && !lid.is_unicast() => refuse("LID"),
            Self { qpn, .. } if !qpn.is_ordinary() => refuse("queue pair number"),
            Self { gid, .. } if gid.is_multicast() => refuse("GID"),
            dest => Ok(dest),
        }
    }
}

/// The remaining time of the exchange.
#[derive(Clone, Copy)]
struct Patience {
    limit: Duration,
    until: Instant,
}

impl Patience {
    fn new(limit: Duration) -> Self {
        Self { limit, until: Instant::now() + limit }
    }

    /// Fills `bytes`.
    fn read(
        self,
        stream: &mut impl Read,
        mut bytes: &mut [u8],
        doing: &'static str,
    ) -> Result<(), ExchangeError> {
        while !bytes.is_empty() {
            let source = match stream.read(bytes) {
                Ok(0) => ErrorKind::UnexpectedEof.into(),
                Ok(n) => {
                    bytes = &mut bytes[n..];
                    continue;
                }
                Err(e) => e,
            };
            match source.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                _ => return Err(ExchangeError::Io { doing, source }),
            }
            if interrupted() {
                return Err(ExchangeError::Interrupted { doing });
            }
            if Instant::now() >= self.until {
                return Err(ExchangeError::Silent { doing, limit: self.limit });
            }
        }
        Ok(())
    }

    fn read_dest(self, stream: &mut impl Read, own: &Dest) -> Result<Dest, ExchangeError> {
        let mut text = [0; DEST_BYTES];
        self.read(stream, &mut text, "reading the other end's address")?;
        let theirs = Dest::from_text(&text)?;
        if theirs.can_be_reached_by(own) { Ok(theirs) } else { Err(ExchangeError::NoGid) }
    }
}

fn write(stream: &mut impl Write, bytes: &[u8], doing: &'static str) -> Result<(), ExchangeError> {
    stream.write_all(bytes).map_err(|source| ExchangeError::Io { doing, source })
}

/// The side that connected: sends its own, reads the other's, says done.
pub(crate) fn client(
    stream: &mut (impl Read + Write),
    own: Dest,
    limit: Duration,
) -> Result<Dest, ExchangeError> {
    let patience = Patience::new(limit);
    write(stream, own.to_text().as_bytes(), "sending this end's address")?;
    let theirs = patience.read_dest(stream, &own)?;
    write(stream, DONE, "closing the exchange")?;
    Ok(theirs)
}

/// The side that waited: reads the other's, has `connect` make its queue pair ready, answers, and waits
/// for the end.
pub(crate) fn server(
    stream: &mut (impl Read + Write),
    own: Dest,
    limit: Duration,
    connect: impl FnOnce(&Dest) -> Result<(), hca_perf::Failure>,
) -> Result<Dest, ExchangeError> {
    let patience = Patience::new(limit);
    let theirs = patience.read_dest(stream, &own)?;
    connect(&theirs).map_err(ExchangeError::Connect)?;
    write(stream, own.to_text().as_bytes(), "sending this end's address")?;
    patience.read(stream, &mut [0; DONE.len()], "waiting for the other end's `done`")?;
    Ok(theirs)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn dest(n: u8) -> Dest {
        Dest {
            lid: Lid::new(0),
            qpn: Qpn::new(0x11 + u32::from(n)),
            psn: Psn::new(0xabc_def),
            gid: Gid::from_ip([127, 0, 0, n].into()),
        }
    }

    #[test]
    fn the_text_is_that_of_rdma_core() {
        let text = dest(2).to_text();
        assert_eq!(text, "0000:000013:abcdef:00000000000000000000ffff7f000002\0");
        assert_eq!(text.len(), DEST_BYTES);
        assert_eq!(Dest::from_text(text.as_bytes()).unwrap(), dest(2));
    }

    #[test]
    fn both_sides_learn_of_each_other_and_the_server_connects_before_it_answers() {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        let far = std::thread::spawn(move || {
            // Nothing may have been answered while the server connects.
            let connect = |d: &Dest| {
                assert_eq!(*d, dest(1));
                Ok(())
            };
            server(&mut b, dest(2), LIMIT, connect).unwrap()
        });
        assert_eq!(client(&mut a, dest(1), LIMIT).unwrap(), dest(2));
        assert_eq!(far.join().unwrap(), dest(1));
    }

    #[test]
    fn a_server_that_can_not_connect_does_not_answer() {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        let far = std::thread::spawn(move || server(&mut b, dest(2), LIMIT, |_| Err("no path".into())));
        assert!(client(&mut a, dest(1), LIMIT).unwrap_err().to_string().contains("exchange broke"));
        assert!(far.join().unwrap().unwrap_err().to_string().contains("no path"));
    }

    #[test]
    fn an_end_that_says_nothing_or_a_part_is_given_up_on() {
        let limit = Duration::from_millis(20);
        let (mut a, mut b) = UnixStream::pair().unwrap();
        a.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let e = client(&mut a, dest(1), limit).unwrap_err();
        assert!(matches!(e, ExchangeError::Silent { .. }), "{e}");
        assert!(e.to_string().contains("20ms") && e.to_string().contains("start both again"), "{e}");
        // An address, and then no `done`.
        b.write_all(dest(2).to_text().as_bytes()).unwrap();
        let e = server(&mut a, dest(1), limit, |_| Ok(())).unwrap_err();
        assert!(
            matches!(e, ExchangeError::Silent { doing: "waiting for the other end's `done`", .. }),
            "{e}"
        );
    }

    #[test]
    fn a_peer_without_a_gid_and_a_stranger_are_told_apart() {
        let of = |own: Dest, text: &'static [u8]| {
            let (mut a, mut b) = UnixStream::pair().unwrap();
            b.write_all(text).unwrap();
            client(&mut a, own, LIMIT)
        };
        let by_lid = b"0001:000013:abcdef:00000000000000000000000000000000\0";
        let none = b"0000:000013:abcdef:00000000000000000000000000000000\0";
        let infiniband = Dest { lid: Lid::new(2), ..dest(1) };
        assert!(of(dest(1), by_lid).unwrap_err().to_string().contains("-g"));
        assert!(of(infiniband, none).unwrap_err().to_string().contains("-g"));
        assert_eq!(of(infiniband, by_lid).unwrap().lid, Lid::new(1));
        let long = b"0000:000013:abcdef:00000000000000000000ffff7f000002:0\0";
        for text in [&b"HTTP/1.1 400 Bad Request"[..], b"0000:000013:abcdef\0", b"\xff\xfe", b"", long] {
            let e = Dest::from_text(text).unwrap_err();
            assert!(matches!(e, ExchangeError::Garbled { .. }), "{text:?}: {e}");
        }
    }

    #[test]
    fn what_no_end_is_is_not_taken() {
        let good = "0000:000013:abcdef:00000000000000000000ffff7f000002\0";
        Dest::from_text(good.as_bytes()).unwrap();
        for (from, to, part) in [
            ("0000:0", "+000:0", "instead of LID"),
            ("000013", "+00013", "instead of LID"),
            (":abcdef", ":+bcdef", "instead of LID"),
            (":00000000000000000000ffff", ":+0000000000000000000ffff", "instead of LID"),
            ("0000:0", "0:0", "instead of LID"),
            ("000013", "13", "instead of LID"),
            ("7f000002\0", "7f000002", "instead of LID"),
            ("0000:0", "c000:0", "LID"),
            ("0000:0", "ffff:0", "LID"),
            ("000013", "000000", "queue pair"),
            ("000013", "000001", "queue pair"),
            ("000013", "ffffff", "queue pair"),
            ("7f000002", "e0000001", "GID"),
            (":0000000000", ":ff02000000", "GID"),
        ] {
            assert!(good.contains(from), "{from}");
            let e = Dest::from_text(good.replacen(from, to, 1).as_bytes()).unwrap_err().to_string();
            assert!(e.contains(part), "{to}: {e}");
        }
    }
}
