//! Peers' MACs on an Ethernet port: MACs that the program gave, and MACs that peers have reported by ARP and neighbour
//! discovery. This module has the table and the answers; `eth` sends and receives the frames.
//!
//! Snooping switches forward the groups of neighbour discovery only to ports with announced listeners, so the port
//! announces its groups. Departs from RFC 3810: it announces them once unasked, and answers queries at once.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use hca_core::wire::listener::{Query, Version, report};
use hca_core::wire::neighbour::{Mac, Message, Station, solicited_node, usable};

/// The time for which a learned MAC is valid.
const FRESH: Duration = Duration::from_secs(30);
/// The most remembered peers; beyond it the peer heard longest ago is forgotten.
const MAX_PEERS: usize = 1024;

/// The table of peers.
pub(crate) struct Neighbours {
    mac: Mac,
    /// This port's own addresses.
    own: Vec<IpAddr>,
    peers: HashMap<IpAddr, Heard>,
    /// Whose MAC is being asked for, and by how many.
    sought: HashMap<IpAddr, u32>,
    /// Own addresses that others were heard to claim.
    claimed: HashSet<IpAddr>,
}

#[derive(Clone, Copy)]
struct Heard {
    mac: Mac,
    at: Instant,
}

impl Neighbours {
    pub(crate) fn new(mac: Mac, own: Vec<IpAddr>) -> Self {
        Self { mac, own, peers: HashMap::new(), sought: HashMap::new(), claimed: HashSet::new() }
    }

    /// This port's stations.
    pub(crate) fn own(&self) -> impl Iterator<Item = Station> {
        self.own.iter().map(|ip| Station { mac: self.mac, ip: *ip })
    }

    /// The groups in which this port is asked for its IPv6 addresses, each once.
    fn groups(&self) -> Vec<Ipv6Addr> {
        let of = |ip: &IpAddr| if let IpAddr::V6(ip) = ip { Some(solicited_node(*ip).1) } else { None };
        let mut groups: Vec<_> = self.own.iter().filter_map(of).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }
    /// The frames that tell that this port hears its groups, or one of them. None where it has no link-local address.
    fn reports(&self, one: Option<Ipv6Addr>, version: Version) -> Vec<Vec<u8>> {
        let groups = self.groups().into_iter().filter(|group| one.is_none_or(|one| one == *group));
        let by = self.own().find(|own| matches!(own.ip, IpAddr::V6(ip) if ip.is_unicast_link_local()));
        groups.filter_map(|group| report(by?, group, version)).collect()
    }
    /// The frames that tell, when nobody has asked, that this port hears its groups.
    pub(crate) fn first_reports(&self) -> Vec<Vec<u8>> {
        self.reports(None, Version::New { change: true })
    }
    /// The frames that answer a router's query for received groups.
    pub(crate) fn answer_query(&self, frame: &[u8]) -> Vec<Vec<u8>> {
        Query::parse(frame).map_or_else(Vec::new, |query| self.reports(query.group, query.version))
    }

    /// A peer's MAC, if it was told a short while ago.
    pub(crate) fn known(&self, ip: IpAddr, now: Instant) -> Option<Mac> {
        let heard = self.peers.get(&ip)?;
        (now.saturating_duration_since(heard.at) < FRESH).then_some(heard.mac)
    }

    /// Somebody waits for a peer's MAC from now on, until [`give_up`](Self::give_up).
    pub(crate) fn seek(&mut self, ip: IpAddr) {
        *self.sought.entry(ip).or_default() += 1;
    }
    /// One who waits less.
    pub(crate) fn give_up(&mut self, ip: IpAddr) {
        if let Some(waiting) = self.sought.get_mut(&ip) {
            *waiting -= 1;
            if *waiting == 0 {
                self.sought.remove(&ip);
            }
        }
    }

    /// A frame came. Returns the answer that it asks for.
    pub(crate) fn receive(&mut self, frame: &[u8], now: Instant) -> Option<Vec<u8>> {
        let message = Message::parse(frame)?;
        match message {
            Message::Question { wanted, by } => {
                let ours = self.own.contains(&wanted);
                if by.mac == self.mac {
                    // Our own, come back.
                    return None;
                }
                self.check_claim(by);
                // Who asks for us will be talked to. ARP's questions are news of those who are known, whoever is asked
                // for (RFC 826); solicitations are for the one that they ask for only (RFC 4861).
                let news = by.ip.is_ipv4() && self.peers.contains_key(&by.ip);
                if usable(by.ip) && (ours || news) {
                    self.remember(by, now);
                }
                if ours { message.answer(self.mac) } else { None }
            }
            Message::Statement { of, replaces, solicited: _ } => {
                self.check_claim(of);
                let heard = self.peers.get(&of.ip).map(|heard| heard.mac);
                // What nobody asked for is news of those who are known only; what does not replace gives way to what is
                // believed.
                let news = heard.is_some_and(|mac| replaces || mac == of.mac);
                let wanted = self.sought.contains_key(&of.ip) && self.known(of.ip, now).is_none();
                if news || wanted {
                    self.remember(of, now);
                }
                None
            }
        }
    }

    fn remember(&mut self, of: Station, now: Instant) {
        if self.own.contains(&of.ip) {
            return;
        }
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&of.ip) {
            let oldest = self.peers.iter().min_by_key(|(_, heard)| heard.at).map(|(ip, _)| *ip);
            self.peers.remove(&oldest.expect("there are many"));
        }
        self.peers.insert(of.ip, Heard { mac: of.mac, at: now });
    }

    /// Says once of each own address that somebody else uses it.
    fn check_claim(&mut self, of: Station) {
        if of.mac != self.mac && self.own.contains(&of.ip) && self.claimed.insert(of.ip) {
            let [a, b, c, d, e, f] = of.mac;
            tracing::error!(
                "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} uses {} as well, which is this port's address: give one of \
                 them another",
                of.ip
            );
        }
    }

    #[cfg(test)]
    fn is_claimed(&self, ip: IpAddr) -> bool {
        self.claimed.contains(&ip)
    }
}

#[cfg(test)]
mod tests {
    use hca_core::wire::neighbour::{announcement, question};

    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 1];

    fn ip(s: &str) -> IpAddr {
        s.parse().unwrap()
    }
    fn at(last: u8, s: &str) -> Station {
        Station { mac: [2, 0, 0, 0, 0, last], ip: ip(s) }
    }
    fn neighbours() -> Neighbours {
        Neighbours::new(MAC, vec![ip("fe80::1"), ip("10.0.0.1"), ip("10.0.0.5")])
    }
    /// What a peer answers when it is asked for its address.
    fn told(peer: Station, asker: Station) -> Vec<u8> {
        Message::parse(&question(asker, peer.ip).unwrap()).unwrap().answer(peer.mac).unwrap()
    }

    #[test]
    fn who_asks_for_an_own_address_is_answered_and_known() {
        let (mut n, now) = (neighbours(), Instant::now());
        for (peer, own) in [(at(2, "10.0.0.2"), "10.0.0.1"), (at(3, "2001:db8::3"), "fe80::1")] {
            let answer = n.receive(&question(peer, ip(own)).unwrap(), now).unwrap();
            let of = Station { mac: MAC, ip: ip(own) };
            let read = Message::parse(&answer).unwrap();
            assert_eq!(read, Message::Statement { of, replaces: true, solicited: true });
            assert_eq!(n.known(peer.ip, now), Some(peer.mac));
        }
        let other = question(at(4, "10.0.0.4"), ip("10.0.0.9")).unwrap();
        assert_eq!(
            (n.receive(&other, now), n.known(ip("10.0.0.4"), now)),
            (None, None),
            "it asks somebody else"
        );
        // Those who are known have moved; that of a solicitation to somebody else is not for us.
        n.receive(&question(at(8, "10.0.0.2"), ip("10.0.0.9")).unwrap(), now);
        n.receive(&question(at(9, "2001:db8::3"), ip("2001:db8::9")).unwrap(), now);
        assert_eq!(n.known(ip("10.0.0.2"), now), Some([2, 0, 0, 0, 0, 8]));
        assert_eq!(n.known(ip("2001:db8::3"), now), Some([2, 0, 0, 0, 0, 3]));
    }

    #[test]
    fn the_groups_of_its_addresses_are_told_each_once_in_the_version_of_who_asks() {
        let own = ["fe80::1:2", "10.0.0.1", "2001:db8::1:2", "2001:db8::5"].map(ip);
        let n = Neighbours::new(MAC, own.to_vec());
        let groups = ["ff02::1:ff00:5", "ff02::1:ff01:2"].map(|g| g.parse::<Ipv6Addr>().unwrap());
        let me = at(1, "fe80::1:2");
        let told = |version| groups.map(|group| report(me, group, version).unwrap()).to_vec();
        assert_eq!(n.first_reports(), told(Version::New { change: true }));
        // A query of version 1, made of a report: its type, and the group, all or one.
        let query = |group: Ipv6Addr| {
            let mut frame = report(at(9, "fe80::9"), group, Version::Old).unwrap();
            let sum = u16::from_be_bytes([frame[64], frame[65]]);
            frame[62] = 130;
            // Types 131 and 130 are upper bytes of a word of the sum.
            frame[64..66].copy_from_slice(&sum.wrapping_add(0x100).to_be_bytes());
            frame
        };
        assert_eq!(n.answer_query(&query(groups[1])), told(Version::Old)[1..]);
        assert_eq!(n.answer_query(&query("ff02::1:ff00:77".parse().unwrap())), [[0_u8; 0]; 0]);
        assert_eq!(n.answer_query(&announcement(at(9, "fe80::9"))), [[0_u8; 0]; 0]);
        let silent = Neighbours::new(MAC, vec![ip("10.0.0.1"), ip("2001:db8::5")]);
        assert_eq!(silent.first_reports(), [[0_u8; 0]; 0], "it has no address to tell by");
    }

    #[test]
    fn only_what_was_asked_for_is_learned_and_news_of_those_who_are_known() {
        let (mut n, now) = (neighbours(), Instant::now());
        let (me, peer) = (at(1, "10.0.0.1"), at(2, "10.0.0.2"));
        n.receive(&told(peer, me), now);
        n.receive(&announcement(peer), now);
        assert_eq!(n.known(peer.ip, now), None, "nobody asked");
        n.seek(peer.ip);
        n.seek(peer.ip);
        n.give_up(peer.ip);
        n.receive(&told(peer, me), now);
        n.give_up(peer.ip);
        assert_eq!(n.known(peer.ip, now), Some(peer.mac));
        n.receive(&announcement(at(7, "10.0.0.2")), now);
        assert_eq!(n.known(peer.ip, now), Some([2, 0, 0, 0, 0, 7]), "it has moved");
    }

    #[test]
    fn what_does_not_replace_leaves_another_mac_in_place() {
        let (mut n, now) = (neighbours(), Instant::now());
        let peer = at(2, "fe80::2");
        n.receive(&question(peer, ip("fe80::1")).unwrap(), now);
        let mut frame = announcement(at(7, "fe80::2"));
        // The override flag, and the checksum with it.
        let (flags, sum) = (58, 56);
        frame[flags] = 0;
        let was = u16::from_be_bytes([frame[sum], frame[sum + 1]]);
        let now_sum = u32::from(was) + 0x2000;
        frame[sum..sum + 2].copy_from_slice(&((now_sum + (now_sum >> 16)) as u16).to_be_bytes());
        assert!(matches!(Message::parse(&frame), Some(Message::Statement { replaces: false, .. })));
        n.receive(&frame, now);
        assert_eq!(n.known(peer.ip, now), Some(peer.mac));
        n.seek(peer.ip);
        n.receive(&frame, now);
        assert_eq!(n.known(peer.ip, now), Some(peer.mac), "also while somebody waits");
        n.receive(&frame, now + FRESH);
        assert_eq!(
            n.known(peer.ip, now + FRESH),
            Some([2, 0, 0, 0, 0, 7]),
            "what is believed no more gives way"
        );
    }

    #[test]
    fn what_is_known_is_believed_for_a_while() {
        let (mut n, now) = (neighbours(), Instant::now());
        let peer = at(2, "10.0.0.2");
        n.receive(&question(peer, ip("10.0.0.1")).unwrap(), now);
        assert!(n.known(peer.ip, now + FRESH / 2).is_some());
        assert!(n.known(peer.ip, now + FRESH).is_none());
    }

    #[test]
    fn of_many_peers_the_oldest_are_forgotten() {
        let (mut n, now) = (neighbours(), Instant::now());
        let peer = |i: u32| IpAddr::from((0x0b00_0000 + i).to_be_bytes());
        for i in 0..=MAX_PEERS as u32 {
            let by = Station { mac: [2, 0, 0, 0, 0, 9], ip: peer(i) };
            n.receive(&question(by, ip("10.0.0.1")).unwrap(), now + Duration::from_millis(i.into()));
        }
        assert_eq!(n.peers.len(), MAX_PEERS);
        assert!(!n.peers.contains_key(&peer(0)) && n.peers.contains_key(&peer(1)));
    }

    #[test]
    fn another_who_claims_an_own_address_is_noticed_and_not_believed() {
        let (mut n, now) = (neighbours(), Instant::now());
        assert_eq!(n.receive(&announcement(at(1, "10.0.0.1")), now), None, "our own, come back");
        assert!(!n.is_claimed(ip("10.0.0.1")));
        n.receive(&announcement(at(9, "10.0.0.1")), now);
        assert!(n.is_claimed(ip("10.0.0.1")));
        assert_eq!(n.known(ip("10.0.0.1"), now), None);
        n.receive(&question(at(9, "10.0.0.5"), ip("10.0.0.1")).unwrap(), now);
        assert!(n.is_claimed(ip("10.0.0.5")) && n.known(ip("10.0.0.5"), now).is_none());
    }

    #[test]
    fn who_would_like_an_own_address_is_told_that_it_is_taken() {
        let (mut n, now) = (neighbours(), Instant::now());
        let probe = question(at(9, "0.0.0.0"), ip("10.0.0.1")).unwrap();
        assert!(n.receive(&probe, now).is_some());
        assert_eq!(n.peers.len(), 0);
    }
}
