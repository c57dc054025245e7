//! The global header in front of a datagram.
//!
//! The adapter puts the header there that the datagram had on its network, with the adapter's own address if a function
//! here has sent it. Functions know each other by addresses of their own, so the header is written anew with these: a
//! driver that answers whoever has sent the datagram takes the address from there.
//!
//! Between InfiniBand ports a datagram has a header only if its sender's address says so. On its way it has one all the
//! same; within the adapter, where nobody else cares for the traffic class, that says which were sent without.

use std::net::IpAddr;
use std::ops::Range;

use hca_core::wire::{Grh, Ipv4Header};
use hca_core::{Gid, PdHandle};

use super::recv::List;
use crate::guest::Window;
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

/// The 40 bytes in front of a datagram of `len` bytes: as RoCEv2 has them with IPv4 where both addresses are such, and
/// as InfiniBand has them otherwise.
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

/// The bits of a traffic class that are congestion's.
const ECN: u8 = 3;
/// What else it says of a datagram whose sender asked for no header.
const WITHOUT: u8 = !ECN;

/// The traffic class of a datagram within the adapter.
pub(super) fn traffic_class(asked: u8, with_header: bool) -> u8 {
    match (with_header, asked & !ECN) {
        (false, _) => WITHOUT,
        (true, WITHOUT) => asked & ECN,
        (true, _) => asked,
    }
}

/// Whether the sender of a datagram asked for a header, by what the adapter has put in front of it. `None`: the sender
/// has not the address `own`, and is none of the functions here.
pub(super) fn asked_for(front: &[u8; Grh::BYTES], own: Gid) -> Option<bool> {
    let (from_here, class) = match own.ip() {
        IpAddr::V4(own) => (front[32..36] == own.octets(), front[21]),
        IpAddr::V6(own) => (front[8..24] == own.octets(), front[0] << 4 | front[1] >> 4),
    };
    from_here.then_some(class & !ECN != WITHOUT)
}

/// Where the header in front of a datagram lies: in the first places of its receive request. What can't be reached of
/// it is passed over: the adapter has written there, so it is the client who has changed its list or its key since.
pub(super) struct Front<'a> {
    list: Option<List>,
    pd: PdHandle,
    keys: (&'a Numbered<Mkey>, &'a Buses),
}

impl<'a> Front<'a> {
    /// That of the receive request with this counter, or index.
    pub(super) fn of(
        qp: &Qp,
        srqs: &Numbered<Srq>,
        keys: (&'a Numbered<Mkey>, &'a Buses),
        counter: u16,
    ) -> Self {
        Self { list: List::of(qp, srqs, counter), pd: qp.pd, keys }
    }

    /// What is there; zeros where that can't be reached.
    pub(super) fn read(&self) -> [u8; Grh::BYTES] {
        let mut bytes = [0; Grh::BYTES];
        self.each(|window, at, part| window.load(at, &mut bytes[part]));
        bytes
    }

    pub(super) fn write(&self, bytes: &[u8; Grh::BYTES]) {
        self.each(|window, at, part| window.store(at, &bytes[part]));
    }

    /// Calls `visit` with each part of the header, and where it lies.
    fn each(&self, mut visit: impl FnMut(&Window, usize, Range<usize>)) {
        let mut from = 0;
        for place in self.list.iter().flat_map(List::places) {
            let part = from..Grh::BYTES.min(from + place.len as usize);
            from = part.end;
            let (mkeys, buses) = self.keys;
            let by_key = mkeys.get(&(place.lkey.raw() >> 8));
            let found = by_key.and_then(|key| key.place(self.pd, place.lkey.raw(), place.addr, part.len()));
            if let Some((window, at)) = found.or_else(|| buses.place(self.pd, place, part.len())) {
                visit(window, at, part);
            }
        }
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
    #[test]
    fn what_leaves_without_a_header_is_known_by_its_class_and_nothing_else_is() {
        let v6 = |last| Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        let v4 = |last| Gid::from_ip(IpAddr::from([10, 0, 0, last]));
        for (own, other) in [(v6(1), v6(2)), (v4(1), v4(2))] {
            let front = |from, class: u8| {
                let mut bytes = header(from, other, 8);
                if bytes[0] == 0 {
                    bytes[21] = class;
                } else {
                    (bytes[0], bytes[1]) = (0x60 | class >> 4, class << 4);
                }
                bytes
            };
            for asked in 0..=255 {
                let [without, with] = [false, true].map(|header| traffic_class(asked, header));
                assert_eq!(asked_for(&front(own, without), own), Some(false));
                assert_eq!(asked_for(&front(own, with), own), Some(true));
                assert_eq!(asked_for(&front(own, without | 3), own), Some(false), "marked by congestion");
                assert_eq!(asked_for(&front(other, without), own), None);
                assert_eq!(with & 3, asked & 3);
            }
        }
    }
}
