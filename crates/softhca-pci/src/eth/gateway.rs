//! Proxy answers for peers beyond the server's functions: where the adapter's network leads out of this process,
//! functions reach peers outside of the server, and the adapter finds those peers by their IP addresses. The functions'
//! drivers still ask for an Ethernet address, by ARP or neighbour solicitations. The gateway answers with an Ethernet
//! address that leads nowhere: RDMA does not need it, and other frames to it are lost.
//!
//! The gateway answers for possible peers only: for unicast addresses of the same IP version and scope as the
//! adapter's, which no function has, and which are neither the adapter's own nor the asker's. The gateway does not
//! answer an ARP probe or a solicitation from the unspecified address, which ask whether an address is free, nor an
//! announcement of an address.

use std::net::{IpAddr, Ipv4Addr};

use hca_core::wire::neighbour::Message;

use super::frame::{Mac, is_group};

/// It, with its address, and the adapter's own in the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gateway {
    pub(super) mac: Mac,
    own: IpAddr,
}

/// Kinds of addresses between which there are no paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Host,
    Link,
    Wide,
}

fn scope(address: IpAddr) -> Option<Scope> {
    let (nobody, loopback, link) = match address {
        IpAddr::V4(a) => {
            let nobody = a.is_multicast() || a.is_unspecified() || a == Ipv4Addr::BROADCAST;
            (nobody, a.is_loopback(), a.is_link_local())
        }
        IpAddr::V6(a) => (a.is_multicast() || a.is_unspecified(), a.is_loopback(), a.is_unicast_link_local()),
    };
    if nobody {
        return None;
    }
    Some(if loopback {
        Scope::Host
    } else if link {
        Scope::Link
    } else {
        Scope::Wide
    })
}

impl Gateway {
    pub(crate) fn new(mac: Mac, own: IpAddr) -> Self {
        Self { mac, own }
    }

    /// What it says to a frame, if that asks for what it answers. `known` says whether a function here has an address.
    pub(super) fn answer(&self, frame: &[u8], known: &dyn Fn(IpAddr) -> bool) -> Option<Vec<u8>> {
        let to = *frame.first_chunk()?;
        if !(is_group(&to) || to == self.mac) {
            return None;
        }
        let question = Message::parse(frame)?;
        let Message::Question { wanted, by } = question else { return None };
        let answer = || question.answer_for_another(self.mac);
        if self.is_beyond(wanted, by.ip, known) { answer() } else { None }
    }

    /// Whether a peer could have an address that `asker` asks for.
    fn is_beyond(&self, target: IpAddr, asker: IpAddr, known: &dyn Fn(IpAddr) -> bool) -> bool {
        let same_kind = target.is_ipv4() == self.own.is_ipv4() && scope(target) == scope(self.own);
        let from_somebody = scope(asker).is_some() && asker != target;
        from_somebody && same_kind && target != self.own && !known(target)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use hca_core::wire::ether_type::IPV6;

    use super::*;
    use crate::eth::frame::Headers;

    const ARP_HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];

    const ASKER: Mac = [2, 1, 1, 1, 1, 1];
    const GATEWAY: Mac = [2, 7, 7, 7, 7, 7];
    const ALL: Mac = [0xff; 6];

    /// Puts the checksum of ICMPv6 into a frame of it.
    fn fill_icmp_checksum(frame: &mut [u8]) {
        let ip = Headers::of(frame).ip.unwrap();
        frame[ip.above + 2..][..2].fill(0);
        let sum = !ip.sum_above(frame);
        frame[ip.above + 2..][..2].copy_from_slice(&sum.to_be_bytes());
    }

    fn gateway(own: &str) -> Gateway {
        Gateway::new(GATEWAY, own.parse().unwrap())
    }

    fn request(to: Mac, asker: [u8; 4], target: [u8; 4]) -> Vec<u8> {
        let head = [&to[..], &ASKER, &[8, 6], &ARP_HEAD, &[0, 1], &ASKER].concat();
        [&head[..], &asker, &[0; 6], &target, &[0; 18]].concat()
    }

    fn solicitation(asker: &str, target: &str) -> Vec<u8> {
        let (asker, target) = (asker.parse::<Ipv6Addr>().unwrap(), target.parse::<Ipv6Addr>().unwrap());
        let mut to = "ff02::1:ff00:0".parse::<Ipv6Addr>().unwrap().octets();
        to[13..].copy_from_slice(&target.octets()[13..]);
        let mac = [0x33, 0x33, to[12], to[13], to[14], to[15]];
        let mut f = [&mac[..], &ASKER, &IPV6.to_be_bytes(), &[0x60, 0, 0, 0, 0, 32, 58, 255]].concat();
        f.extend([asker.octets(), to].concat());
        f.extend([135, 0, 0, 0, 0, 0, 0, 0]);
        f.extend(target.octets());
        f.extend([&[1, 1][..], &ASKER].concat());
        fill_icmp_checksum(&mut f);
        f
    }

    #[test]
    fn a_request_for_a_peer_beyond_is_answered() {
        let g = gateway("192.0.2.1");
        for to in [ALL, GATEWAY] {
            let answer = g.answer(&request(to, [10, 0, 0, 1], [10, 0, 0, 9]), &|_| false).unwrap();
            let wanted = [&ASKER[..], &GATEWAY, &[8, 6], &ARP_HEAD, &[0, 2], &GATEWAY].concat();
            assert_eq!(answer, [&wanted[..], &[10, 0, 0, 9], &ASKER, &[10, 0, 0, 1]].concat());
        }
        let g = gateway("2001:db8::1");
        let answer = g.answer(&solicitation("2001:db8::5", "2001:db8::9"), &|_| false).unwrap();
        let ip = Headers::of(&answer).ip.unwrap();
        assert!(ip.sum_above(&answer) == 0xffff && answer[..12] == [ASKER, GATEWAY].concat());
        let (from, to) = ip.addresses(&answer);
        let address = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        assert_eq!((from, to), (&address("2001:db8::9")[..], &address("2001:db8::5")[..]));
        let said = [&[0x40, 0, 0, 0], &address("2001:db8::9")[..], &[2, 1], &GATEWAY].concat();
        assert_eq!(answer[ip.above + 4..], said);
        assert_eq!(answer[ip.above..ip.above + 2], [136, 0]);
    }

    #[test]
    fn nobody_is_answered_who_asks_for_no_peer_beyond() {
        let g = gateway("192.0.2.1");
        let quiet = |g: &Gateway, what: &str, frame: &[u8]| {
            assert_eq!(g.answer(frame, &|_| false), None, "{what}");
        };
        let (a, b) = ([10, 0, 0, 1], [10, 0, 0, 9]);
        quiet(&g, "a probe", &request(ALL, [0; 4], b));
        quiet(&g, "an announcement", &request(ALL, a, a));
        quiet(&g, "the adapter's own address", &request(ALL, a, [192, 0, 2, 1]));
        quiet(&g, "to somebody else", &request([2, 3, 3, 3, 3, 3], a, b));
        for target in [[224, 0, 0, 1], [255; 4], [0; 4], [127, 0, 0, 1], [169, 254, 0, 1]] {
            quiet(&g, "an address of another kind", &request(ALL, a, target));
        }
        assert_eq!(
            g.answer(&request(ALL, a, b), &|address| address == IpAddr::from(b)),
            None,
            "a function's"
        );
        let mut reply = request(ALL, a, b);
        reply[21] = 2;
        quiet(&g, "a reply", &reply);
        let mut broken = request(ALL, a, b);
        broken[18] = 8;
        quiet(&g, "other addresses than Ethernet's", &broken);
        for len in 14..42 {
            quiet(&g, "a part", &request(ALL, a, b)[..len]);
        }
        let (one, other) = ("2001:db8::5", "2001:db8::9");
        quiet(&g, "the other version of IP", &solicitation(one, other));
        let g = gateway("2001:db8::1");
        quiet(&g, "the other version of IP", &request(ALL, a, b));
        quiet(&g, "whether an address is free", &solicitation("::", other));
        quiet(&g, "its own address", &solicitation(other, other));
        quiet(&g, "the adapter's own address", &solicitation(one, "2001:db8::1"));
        quiet(&g, "an address of the link", &solicitation(one, "fe80::1"));
        quiet(&g, "a multicast address", &solicitation(one, "ff02::1"));
        let whole = solicitation(one, other);
        for (at, what) in [(21, "it has passed a router"), (54, "another message"), (56, "a wrong checksum")]
        {
            let mut spoilt = whole.clone();
            spoilt[at] ^= 1;
            quiet(&g, what, &spoilt);
        }
        for len in 14..whole.len() {
            quiet(&g, "a part", &whole[..len]);
        }
        assert!(g.answer(&whole, &|_| false).is_some());
        assert!(gateway("fe80::1").answer(&solicitation("fe80::5", "fe80::9"), &|_| false).is_some());
        assert!(
            gateway("127.0.0.1").answer(&request(ALL, [127, 0, 0, 2], [127, 0, 0, 9]), &|_| false).is_some()
        );
    }
}
