//! The messages between two connected adapters about direct access, over the socket of their link.

use hca_core::Access;

use super::frame::{BYTES, HelloFault, header};
use super::grant::{Granted, MAX_GRANTED_REGIONS};

/// The kinds that are notes; below are greetings.
pub(super) const FIRST: u8 = 16;
const ASK: u8 = FIRST;
const GRANT: u8 = FIRST + 1;
const REFUSE: u8 = FIRST + 2;
const TAKEN: u8 = FIRST + 3;
const LEFT: u8 = FIRST + 4;
const REVOKED: u8 = FIRST + 5;
const PROCESS: u8 = FIRST + 6;
const FETCHES: u8 = FIRST + 7;

const KEY_AT: usize = 12;
/// A queue pair's number, how often something was granted, or a process's number.
const QPN_AT: usize = 16;
const REGION_AT: usize = 20;
const GENERATION_AT: usize = 24;
const PD_AT: usize = 28;
const IOVA_AT: usize = 32;
const LEN_AT: usize = 40;
const OFFSET_AT: usize = 48;
const QP_WORD_AT: usize = 56;
const ACCESS_AT: usize = 64;
/// Whether it was offered, and whether it is memory of the program's own.
const FLAGS_AT: usize = 65;
const OFFERED: u8 = 1;
const IN_PROCESS: u8 = 2;
const _: () = assert!(FLAGS_AT < BYTES);

/// The rights that are told.
pub(super) const RIGHTS: Access = Access::BY_PEERS;

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// Asks for the region of a key, to be used by way of a queue pair.
    Ask { key: u32, qpn: u32 },
    /// Grants it; a descriptor comes along, unless it is memory of the program's own.
    Grant { key: u32, place: Place, granted: Granted },
    /// Does not grant it.
    Refuse { key: u32, qpn: u32 },
    /// What was offered is mapped.
    Taken { key: u32 },
    /// What was granted so many times is not mapped, or no more.
    Left { key: u32, times: u32 },
    /// A region was taken back.
    Revoked { key: u32, place: Place },
    /// What messages lend may be fetched from the sender's process, which has this word at this address.
    Process { pid: u32, addr: u64, proof: u64 },
    /// Whether the sender does so.
    Fetches { yes: bool },
}

/// Where a region stands on its owner's board, and in its file or in its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) region: u32,
    pub(super) generation: u32,
    pub(super) offset: u64,
}

impl Note {
    pub(super) fn brings_descriptor(&self) -> bool {
        matches!(self, Self::Grant { granted, .. } if !granted.in_process)
    }

    /// Whether something stays open at either end as long as it does not arrive. What was taken back or let go shows
    /// otherwise, too.
    pub(super) fn is_waited_for(&self) -> bool {
        !matches!(self, Self::Revoked { .. } | Self::Left { .. })
    }

    pub(super) fn encode(&self) -> [u8; BYTES] {
        let kind = match self {
            Self::Ask { .. } => ASK,
            Self::Grant { .. } => GRANT,
            Self::Refuse { .. } => REFUSE,
            Self::Taken { .. } => TAKEN,
            Self::Left { .. } => LEFT,
            Self::Revoked { .. } => REVOKED,
            Self::Process { .. } => PROCESS,
            Self::Fetches { .. } => FETCHES,
        };
        let mut m = header(kind);
        let mut put = |at: usize, bytes: &[u8]| m[at..at + bytes.len()].copy_from_slice(bytes);
        match *self {
            Self::Ask { key, qpn } | Self::Refuse { key, qpn } => {
                put(KEY_AT, &key.to_le_bytes());
                put(QPN_AT, &qpn.to_le_bytes());
            }
            Self::Taken { key } => put(KEY_AT, &key.to_le_bytes()),
            Self::Left { key, times } => {
                put(KEY_AT, &key.to_le_bytes());
                put(QPN_AT, &times.to_le_bytes());
            }
            Self::Revoked { key, place } => {
                put(KEY_AT, &key.to_le_bytes());
                put(REGION_AT, &place.region.to_le_bytes());
                put(GENERATION_AT, &place.generation.to_le_bytes());
                put(OFFSET_AT, &place.offset.to_le_bytes());
            }
            Self::Process { pid, addr, proof } => {
                put(QPN_AT, &pid.to_le_bytes());
                put(IOVA_AT, &addr.to_le_bytes());
                put(QP_WORD_AT, &proof.to_le_bytes());
            }
            Self::Fetches { yes } => put(ACCESS_AT, &[yes.into()]),
            Self::Grant { key, place, granted: g } => {
                put(KEY_AT, &key.to_le_bytes());
                put(QPN_AT, &g.qpn.to_le_bytes());
                put(REGION_AT, &place.region.to_le_bytes());
                put(GENERATION_AT, &place.generation.to_le_bytes());
                put(PD_AT, &g.pd.to_le_bytes());
                put(IOVA_AT, &g.iova.to_le_bytes());
                put(LEN_AT, &g.len.to_le_bytes());
                put(OFFSET_AT, &place.offset.to_le_bytes());
                put(QP_WORD_AT, &g.qp_word.to_le_bytes());
                let of = |set: bool, flag: u8| if set { flag } else { 0 };
                let flags = of(g.offered, OFFERED) | of(g.in_process, IN_PROCESS);
                put(ACCESS_AT, &[g.access.bits(), flags]);
            }
        }
        m
    }

    /// The note in a message whose header was checked.
    pub(super) fn decode(kind: u8, m: &[u8; BYTES]) -> Result<Self, HelloFault> {
        let word = |at: usize| u32::from_le_bytes(*m[at..].first_chunk().expect("within the message"));
        let long = |at: usize| u64::from_le_bytes(*m[at..].first_chunk().expect("within the message"));
        let (key, qpn) = (word(KEY_AT), word(QPN_AT));
        let place = || {
            let place =
                Place { region: word(REGION_AT), generation: word(GENERATION_AT), offset: long(OFFSET_AT) };
            if place.region < MAX_GRANTED_REGIONS { Ok(place) } else { Err(HelloFault::Field("region")) }
        };
        Ok(match kind {
            ASK => Self::Ask { key, qpn },
            REFUSE => Self::Refuse { key, qpn },
            TAKEN => Self::Taken { key },
            LEFT => Self::Left { key, times: qpn },
            REVOKED => Self::Revoked { key, place: place()? },
            PROCESS => Self::Process { pid: qpn, addr: long(IOVA_AT), proof: long(QP_WORD_AT) },
            FETCHES => Self::Fetches { yes: m[ACCESS_AT] & 1 != 0 },
            GRANT => {
                let rights = Access::from_bits(m[ACCESS_AT]).filter(|a| !a.is_empty() && RIGHTS.contains(*a));
                let granted = Granted {
                    qpn,
                    iova: long(IOVA_AT),
                    len: long(LEN_AT),
                    access: rights.ok_or(HelloFault::Field("access"))?,
                    pd: word(PD_AT),
                    qp_word: long(QP_WORD_AT),
                    offered: m[FLAGS_AT] & OFFERED != 0,
                    in_process: m[FLAGS_AT] & IN_PROCESS != 0,
                };
                let place = place()?;
                let end = place.offset.checked_add(granted.len).filter(|e| *e <= isize::MAX as u64);
                if granted.len == 0 || end.is_none() || granted.iova.checked_add(granted.len).is_none() {
                    return Err(HelloFault::Field("length"));
                }
                Self::Grant { key, place, granted }
            }
            _ => return Err(HelloFault::Field("kind")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(in_process: bool) -> Note {
        let granted = Granted {
            qpn: 0x12_3456,
            iova: 1 << 40,
            len: 4097,
            access: Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            pd: 7,
            qp_word: u64::MAX - 1,
            offered: true,
            in_process,
        };
        Note::Grant { key: 0xabcd_ef01, place: Place { region: 8191, generation: 5, offset: 12 }, granted }
    }

    #[test]
    fn a_note_survives_the_wire() {
        let place = Place { region: 3, generation: u32::MAX, offset: 0 };
        let (key, qpn) = (0x0102_0304, 0xff_fffe);
        for note in [
            Note::Ask { key, qpn },
            Note::Refuse { key, qpn },
            Note::Taken { key },
            Note::Left { key, times: 3 },
            Note::Revoked { key, place },
            Note::Process { pid: 4711, addr: u64::MAX, proof: 0x0123_4567_89ab_cdef },
            Note::Fetches { yes: true },
            Note::Fetches { yes: false },
            grant(false),
            grant(true),
        ] {
            let bytes = note.encode();
            assert_eq!(Note::decode(bytes[10], &bytes), Ok(note));
        }
    }

    #[test]
    fn what_is_no_note_is_told_apart() {
        let with = |at: usize, bytes: &[u8]| {
            let mut m = grant(false).encode();
            m[at..at + bytes.len()].copy_from_slice(bytes);
            Note::decode(m[10], &m)
        };
        assert_eq!(with(10, &[99]), Err(HelloFault::Field("kind")));
        assert_eq!(with(REGION_AT, &MAX_GRANTED_REGIONS.to_le_bytes()), Err(HelloFault::Field("region")));
        // Rights that peers have no use for, unknown ones, none.
        for rights in [1, 16, 32, 0xff, 0] {
            assert_eq!(with(ACCESS_AT, &[rights]), Err(HelloFault::Field("access")), "{rights}");
        }
        for (at, value) in [(LEN_AT, 0), (LEN_AT, u64::MAX), (OFFSET_AT, u64::MAX), (IOVA_AT, u64::MAX)] {
            assert_eq!(with(at, &value.to_le_bytes()), Err(HelloFault::Field("length")), "{value} at {at}");
        }
    }
}
