//! ACK Extended Transport Header and its syndrome.

use bytemuck::{Pod, Zeroable};

use super::Be24;
use crate::RnrTimer;

/// ACK Extended Transport Header, 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Aeth {
    /// ACK with credits, RNR NAK with timer, or NAK with code; see [`Syndrome`].
    pub syndrome: u8,
    /// Message sequence number: messages that the responder has completed, modulo 2^24.
    pub msn: Be24,
}
const _: () = assert!(size_of::<Aeth>() == 4 && align_of::<Aeth>() == 1);

/// The reason of a NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing; the requester goes back to the PSN of this NAK.
    PsnSequence = 0,
    /// The request is malformed, or not supported here.
    InvalidRequest = 1,
    /// A key, a range or a right does not allow the access.
    RemoteAccess = 2,
    /// The responder can't execute the request.
    RemoteOperational = 3,
    /// Invalid reliable datagram request.
    InvalidRd = 4,
}

/// The meaning of an [`Aeth`]'s syndrome byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Acknowledged; the encoded end-to-end credit count (0 to 30), or `None` where the responder
    /// does not count (31).
    Ack(Option<u8>),
    /// Receiver not ready; the requester waits this long.
    RnrNak(RnrTimer),
    /// Refused.
    Nak(NakCode),
}

const KIND: u8 = 0x60;
const VALUE: u8 = 0x1f;
const ACK: u8 = 0x00;
const RNR_NAK: u8 = 0x20;
const NAK: u8 = 0x60;
const NO_CREDITS: u8 = 0x1f;

impl Syndrome {
    /// The byte on the wire.
    pub const fn encode(self) -> u8 {
        match self {
            Self::Ack(Some(c)) => ACK | if c < NO_CREDITS { c } else { NO_CREDITS - 1 },
            Self::Ack(None) => ACK | NO_CREDITS,
            Self::RnrNak(t) => RNR_NAK | t.encoding(),
            Self::Nak(code) => NAK | code as u8,
        }
    }
    /// The meaning of a byte from the wire; `None` where it is reserved.
    pub const fn decode(byte: u8) -> Option<Self> {
        let v = byte & VALUE;
        Some(match byte & KIND {
            ACK if v == NO_CREDITS => Self::Ack(None),
            ACK => Self::Ack(Some(v)),
            RNR_NAK => Self::RnrNak(RnrTimer::new(v)),
            NAK => Self::Nak(match v {
                0 => NakCode::PsnSequence,
                1 => NakCode::InvalidRequest,
                2 => NakCode::RemoteAccess,
                3 => NakCode::RemoteOperational,
                4 => NakCode::InvalidRd,
                _ => return None,
            }),
            _ => return None,
        })
    }
}

/// Credits behind the encoded count of an ACK syndrome, and back.
impl Syndrome {
    const CREDITS: [u16; 31] = [
        0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
    ];
    /// The number of credits that an encoded count (0 to 30) means.
    pub const fn credits(encoded: u8) -> u16 {
        Self::CREDITS[if encoded < 31 { encoded as usize } else { 30 }]
    }
    /// The largest encoded count that promises no more than `credits`.
    pub const fn encode_credits(credits: u32) -> u8 {
        if credits < 2 {
            return credits as u8;
        }
        // From 2 on there are two counts for each power of 2: itself, and half as much again.
        let power = credits.ilog2();
        let encoded = 2 * power + (credits >> (power - 1) & 1);
        if encoded < 30 { encoded as u8 } else { 30 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_stand_where_the_iba_has_them() {
        // Golden rows RC_ACKNOWLEDGE, RC_ACK_RNR_NAK_t1 and RC_ACK_NAK_REM_ACCESS.
        for (bytes, syndrome, msn) in [
            ([0x1f_u8, 0x00, 0x00, 0x05], Syndrome::Ack(None), 5),
            ([0x21, 0x00, 0x00, 0x09], Syndrome::RnrNak(RnrTimer::new(1)), 9),
            ([0x62, 0x00, 0x00, 0x09], Syndrome::Nak(NakCode::RemoteAccess), 9),
        ] {
            let aeth: Aeth = bytemuck::cast(bytes);
            assert_eq!((Syndrome::decode(aeth.syndrome), aeth.msn.get()), (Some(syndrome), msn));
            assert_eq!(syndrome.encode(), bytes[0]);
        }
    }

    #[test]
    fn a_syndrome_is_reserved_or_encodes_to_itself() {
        for byte in 0..=0xff {
            match Syndrome::decode(byte) {
                // The highest bit is reserved and not kept.
                Some(s) => assert_eq!(s.encode(), byte & 0x7f),
                None => assert!(byte & 0x60 == 0x40 || byte & 0x7f >= 0x65, "{byte:#x}"),
            }
        }
    }

    #[test]
    fn encoded_credits_never_promise_more_than_there_are() {
        for encoded in 0..31 {
            assert_eq!(Syndrome::encode_credits(Syndrome::credits(encoded).into()), encoded);
        }
        for credits in (0..if cfg!(miri) { 100 } else { 40_000 }).chain([u32::MAX]) {
            let encoded = Syndrome::encode_credits(credits);
            assert!(u32::from(Syndrome::credits(encoded)) <= credits);
            assert!(encoded == 30 || u32::from(Syndrome::credits(encoded + 1)) > credits);
        }
        assert_eq!(Syndrome::Ack(Some(31)).encode(), Syndrome::Ack(Some(30)).encode());
    }
}
