//! Neighbour discovery for IPv6 (RFC 4861), as far as neighbours go: solicitations and advertisements.

use core::net::Ipv6Addr;

use bytemuck::{Pod, Zeroable};

use super::{Be16, Be32, checksum};

/// A neighbour solicitation or advertisement, 24 bytes; options follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct NdpMessage {
    /// The message type: [`SOLICITATION`](Self::SOLICITATION) or [`ADVERTISEMENT`](Self::ADVERTISEMENT).
    pub kind: u8,
    /// 0.
    pub code: u8,
    /// Over the pseudo header and the whole message: [`NdpMessage::checksum_of`].
    pub checksum: Be16,
    /// Flags of an advertisement: router, [`SOLICITED`](Self::SOLICITED), [`OVERRIDE`](Self::OVERRIDE).
    pub flags: Be32,
    target: [u8; 16],
}
const _: () = assert!(size_of::<NdpMessage>() == 24 && align_of::<NdpMessage>() == 1);

/// The option that holds a MAC, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct LinkAddressOption {
    /// The owner of the address: [`SOURCE`](Self::SOURCE) or [`TARGET`](Self::TARGET).
    pub kind: u8,
    /// Units of 8 bytes: 1.
    units: u8,
    /// The MAC.
    pub mac: [u8; 6],
}
const _: () = assert!(size_of::<LinkAddressOption>() == 8 && align_of::<LinkAddressOption>() == 1);

impl LinkAddressOption {
    /// Bytes on the wire.
    pub const BYTES: usize = 8;
    /// The MAC of the message's sender.
    pub const SOURCE: u8 = 1;
    /// The MAC of the message's target.
    pub const TARGET: u8 = 2;

    /// An option of this kind that holds a MAC.
    pub const fn new(kind: u8, mac: [u8; 6]) -> Self {
        Self { kind, units: 1, mac }
    }
}

impl NdpMessage {
    /// Bytes on the wire, without options.
    pub const BYTES: usize = 24;
    /// The protocol that IPv6 carries it as: ICMPv6.
    pub const PROTOCOL: u8 = 58;
    /// The hop limit of each message, on sending and on arrival: the message has passed no router.
    pub const HOP_LIMIT: u8 = 255;
    /// A request for the MAC of the target's address.
    pub const SOLICITATION: u8 = 135;
    /// The target is at this MAC.
    pub const ADVERTISEMENT: u8 = 136;
    /// The advertisement answers a solicitation.
    pub const SOLICITED: u32 = 1 << 30;
    /// The advertisement replaces earlier knowledge.
    pub const OVERRIDE: u32 = 1 << 29;

    /// A message; its checksum is 0.
    pub const fn new(kind: u8, flags: u32, target: Ipv6Addr) -> Self {
        let (checksum, flags) = (Be16::new(0), Be32::new(flags));
        Self { kind, code: 0, checksum, flags, target: target.octets() }
    }
    /// The target address, whose MAC the message is about.
    pub const fn target(&self) -> Ipv6Addr {
        Ipv6Addr::from_octets(self.target)
    }
    /// The checksum of a message with its options, computed over a checksum field of 0. For a message with a correct
    /// checksum field the result is 0.
    pub fn checksum_of(src: Ipv6Addr, dst: Ipv6Addr, message: &[u8]) -> u16 {
        let len = (message.len() as u32).to_be_bytes();
        checksum::of(&[&src.octets(), &dst.octets(), &len, &[0, 0, 0, Self::PROTOCOL], message])
    }
    /// The MAC in the first option of a kind; `None` if there is none. `Err`: an option is truncated or has length 0,
    /// so the receiver drops the whole message.
    pub fn link_address(mut options: &[u8], kind: u8) -> Result<Option<[u8; 6]>, BrokenOption> {
        let mut found = None;
        while let [this, units, ..] = *options {
            let len = usize::from(units) * 8;
            let option = options.get(..len).filter(|o| !o.is_empty()).ok_or(BrokenOption)?;
            if this == kind && found.is_none() {
                found = option.get(2..8).and_then(|mac| mac.try_into().ok());
            }
            options = &options[len..];
        }
        if options.is_empty() { Ok(found) } else { Err(BrokenOption) }
    }
}

/// The error of an option with length 0, or longer than the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenOption;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_stand_where_the_rfc_has_them() {
        let m = NdpMessage::new(NdpMessage::ADVERTISEMENT, NdpMessage::SOLICITED, "fe80::9".parse().unwrap());
        let bytes = bytemuck::bytes_of(&m);
        assert_eq!(bytes[..10], [136, 0, 0, 0, 0x40, 0, 0, 0, 0xfe, 0x80]);
        assert_eq!((bytes.len(), bytes[23]), (24, 9));
        let option = LinkAddressOption::new(LinkAddressOption::TARGET, [2, 3, 4, 5, 6, 7]);
        assert_eq!(bytemuck::bytes_of(&option), [2, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn options_are_walked_and_broken_ones_found() {
        let of = |bytes: &[u8]| NdpMessage::link_address(bytes, 1);
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[1, 1, 2, 3, 4, 5, 6, 7]), Ok(Some([2, 3, 4, 5, 6, 7])));
        // A nonce (RFC 3971) before it.
        let both = [14, 1, 9, 9, 9, 9, 9, 9, 1, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(of(&both), Ok(Some([2, 3, 4, 5, 6, 7])));
        assert_eq!(of(&both[..8]), Ok(None));
        let twice = [1, 1, 2, 2, 2, 2, 2, 2, 1, 1, 4, 4, 4, 4, 4, 4];
        assert_eq!(of(&twice), Ok(Some([2; 6])), "the first counts");
        assert_eq!(of(&both[..12]), Err(BrokenOption), "cut off");
        assert_eq!(of(&both[..9]), Err(BrokenOption), "cut off behind its kind");
        assert_eq!(of(&[1, 0, 2, 3, 4, 5, 6, 7]), Err(BrokenOption), "no length");
    }
}
