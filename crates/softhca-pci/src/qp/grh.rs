//! The global header in front of a datagram.
//!
//! The adapter puts the header there that the datagram had on its network, with the adapter's own address if a function
//! here has sent it. Functions know each other by addresses of their own, so the function rewrites the header with
//! these: a driver that answers the sender of a datagram takes the address from the header.
//!
//! Between InfiniBand ports a datagram has a header only if its sender's address says so, and on Ethernet a sender may
//! have several addresses. On its way a datagram has a header all the same, with the adapter's address. The number in
//! place of the hop limit tells whether the sender asked for a header, and with which fields, see [`Directory::mark`];
//! the field is free for that because a packet within the adapter makes no hop.
//!
//! [`Directory::mark`]: crate::port::directory::Directory::mark

use std::net::IpAddr;
use std::ops::Range;

use hca_core::wire::{Grh, Ipv4Header};
use hca_core::{Gid, PdHandle};

use super::recv::List;
use crate::guest::Window;
use crate::mkey::Mkey;
use crate::mkey::bus::Buses;
use crate::objects::Numbered;
use crate::qp::Qp;
use crate::srq::Srq;

/// Transport headers and ICRC around a datagram's payload; UDP's and IP's.
const AROUND: u16 = 12 + 8 + 4;
const UDP_IP: u16 = 8 + 20;

/// What the header in front of a datagram says of its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) from: Gid,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

/// Reads the 40 bytes in front of a datagram. `None`: they are no header.
pub(crate) fn seen(front: &[u8; Grh::BYTES]) -> Option<Seen> {
    let bytes = |at: usize| -> [u8; 16] { front[at..at + 16].try_into().expect("16 bytes") };
    match (front[0] >> 4, front[20] >> 4) {
        (6, _) => {
            let traffic_class = front[0] << 4 | front[1] >> 4;
            Some(Seen { from: Gid(bytes(8)), traffic_class, hop_limit: front[7] })
        }
        (0, 4) => {
            let from = IpAddr::from([front[32], front[33], front[34], front[35]]);
            Some(Seen { from: Gid::from_ip(from), traffic_class: front[21], hop_limit: front[28] })
        }
        _ => None,
    }
}

/// The 40 bytes in front of a datagram of `len` bytes: as RoCEv2 has them with IPv4 where both addresses are such, and
/// as InfiniBand has them otherwise.
pub(crate) fn header(from: Gid, to: Gid, traffic_class: u8, hop_limit: u8, len: u32) -> [u8; Grh::BYTES] {
    // A datagram is no longer than a packet.
    let len = (len.min(4096) as u16).next_multiple_of(4) + AROUND;
    let mut bytes = [0; Grh::BYTES];
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut ip = Ipv4Header::new(from, to, len + UDP_IP);
            (ip.tos, ip.ttl) = (traffic_class, hop_limit);
            bytes[Grh::BYTES - Ipv4Header::BYTES..].copy_from_slice(bytemuck::bytes_of(&ip.with_checksum()));
        }
        _ => bytes.copy_from_slice(bytemuck::bytes_of(&Grh::new(traffic_class, 0, len, hop_limit, from, to))),
    }
    bytes
}

/// Where the header in front of a datagram lies: in the first places of its receive request. What can't be reached of
/// it is passed over: the adapter has written there, so it is the client who has changed its list or its key since.
pub(crate) struct Front<'a> {
    list: Option<List>,
    pd: PdHandle,
    keys: (&'a Numbered<Mkey>, &'a Buses),
}

impl<'a> Front<'a> {
    /// That of the receive request with this counter, or index.
    pub(crate) fn of(
        qp: &Qp,
        srqs: &Numbered<Srq>,
        keys: (&'a Numbered<Mkey>, &'a Buses),
        counter: u16,
    ) -> Self {
        let pd = qp.srq.and_then(|number| srqs.get(&number)).map_or(qp.pd, |srq| srq.pd);
        Self { list: List::of(qp, srqs, counter), pd, keys }
    }

    /// What is there; zeros where that can't be reached.
    pub(crate) fn read(&self) -> [u8; Grh::BYTES] {
        let mut bytes = [0; Grh::BYTES];
        self.each(|window, at, part| window.load(at, &mut bytes[part]));
        bytes
    }

    pub(crate) fn write(&self, bytes: &[u8; Grh::BYTES]) {
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
        let bytes = header(v6(1), v6(2), 0xfe, 9, 5);
        assert_eq!((bytes[0] >> 4, bytes[6]), (6, 27));
        assert_eq!(bytes[4..6], 32_u16.to_be_bytes());
        assert_eq!((&bytes[8..24], &bytes[24..]), (&v6(1).0[..], &v6(2).0[..]));
        assert_eq!(seen(&bytes), Some(Seen { from: v6(1), traffic_class: 0xfe, hop_limit: 9 }));
        let v4 = |last| Gid::from_ip(IpAddr::from([10, 0, 0, last]));
        let bytes = header(v4(1), v4(2), 0xfe, 9, 8);
        assert_eq!((bytes[..20].iter().max(), bytes[20], bytes[29]), (Some(&0), 0x45, 17));
        assert_eq!(bytes[32..], [10, 0, 0, 1, 10, 0, 0, 2]);
        assert_eq!(seen(&bytes), Some(Seen { from: v4(1), traffic_class: 0xfe, hop_limit: 9 }));
        assert_eq!(seen(&[0; Grh::BYTES]), None);
    }
}
