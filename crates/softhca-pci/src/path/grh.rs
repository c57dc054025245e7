//! The global header in front of a datagram.
//!
//! The adapter puts the header there that the datagram had on its network, with the adapter's own address if a function
//! here has sent it. Functions know each other by addresses of their own, so the header is written anew with these: a
//! driver that answers whoever has sent the datagram takes the address from there.

use std::net::IpAddr;

use hca_core::Gid;
use hca_core::wire::{Grh, Ipv4Header};

use super::recv::List;
use crate::objects::Numbered;
use crate::objects::bus::Buses;
use crate::objects::mkey::Mkey;
use crate::objects::qp::Qp;
use crate::objects::srq::Srq;

/// Hops that a datagram may make whose sender says nothing.
const HOPS: u8 = 64;
/// Transport headers and ICRC around a datagram's payload; UDP's and IP's.
const AROUND: u16 = 12 + 8 + 4;
const UDP_IP: u16 = 8 + 20;

/// The 40 bytes in front of a datagram of `len` bytes: as RoCEv2 has them with IPv4 where both addresses are such, and as
/// InfiniBand has them otherwise.
pub(super) fn header(from: Gid, to: Gid, len: u32) -> [u8; Grh::BYTES] {
    // A datagram is no longer than a packet.
    let len = (len.min(4096) as u16).next_multiple_of(4) + AROUND;
    let mut bytes = [0; Grh::BYTES];
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let ip = Ipv4Header::new(from, to, len + UDP_IP).with_checksum();
            bytes[Grh::BYTES - Ipv4Header::BYTES..].copy_from_slice(bytemuck::bytes_of(&ip));
        }
        _ => bytes.copy_from_slice(bytemuck::bytes_of(&Grh::new(0, 0, len, HOPS, from, to))),
    }
    bytes
}

/// Writes bytes to where the receive request with this counter (or index) begins. What can't be reached stays as it is:
/// the adapter has written there, so it is the client who has changed its list or its key since.
pub(super) fn write(
    qp: &Qp,
    srqs: &Numbered<Srq>,
    (mkeys, buses): (&Numbered<Mkey>, &Buses),
    counter: u16,
    mut bytes: &[u8],
) {
    let Some(list) = List::of(qp, srqs, counter) else { return };
    for place in list.places() {
        let (now, rest) = bytes.split_at(bytes.len().min(place.len as usize));
        if let Some(key) = mkeys.get(&(place.lkey.raw() >> 8)) {
            key.store(qp.pd, place.lkey.raw(), place.addr, now);
        }
        buses.store(qp.pd, place, now);
        bytes = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_both_sides_in_the_form_of_their_addresses() {
        let v6 = |last| Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        let bytes = header(v6(1), v6(2), 5);
        assert_eq!((bytes[0] >> 4, bytes[6]), (6, 27));
        assert_eq!(bytes[4..6], 32_u16.to_be_bytes());
        assert_eq!((&bytes[8..24], &bytes[24..]), (&v6(1).0[..], &v6(2).0[..]));
        let v4 = |last| Gid::from_ip(IpAddr::from([10, 0, 0, last]));
        let bytes = header(v4(1), v4(2), 8);
        assert_eq!((bytes[..20].iter().max(), bytes[20], bytes[29]), (Some(&0), 0x45, 17));
        assert_eq!(bytes[32..], [10, 0, 0, 1, 10, 0, 0, 2]);
    }
}
