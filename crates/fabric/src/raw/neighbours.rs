//! Peers and their hardware addresses, from the kernel's tables.
//!
//! No call waits. If a peer's address is unknown, this module asks the kernel to resolve it (by ARP or neighbour
//! discovery). The peer's packets wait in a queue with a limit, and the module reads the tables again until the address
//! is there or a timeout ends. A known address is looked up again once a second of use, since peers move.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use hca_core::Instant;

use super::counters::RawCounters;
use super::frame::Mac;
use crate::PathId;
use crate::netlink::{Neighbour, Netlink, Route};
use crate::paths::scoped;

/// How long a known address is trusted.
const FRESH: Duration = Duration::from_secs(1);
/// First and longest time between two looks at an address that is being found out.
const FIRST_LOOK: Duration = Duration::from_micros(50);
const LAST_LOOK: Duration = Duration::from_millis(50);
/// The kernel is reminded this often.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// After this time packets that wait are lost.
const PATIENCE: Duration = Duration::from_secs(3);
/// Bytes that wait for one peer at most.
const MAX_WAITING_BYTES: usize = 1 << 18;
/// UDP's discard port.
const DISCARD_PORT: u16 = 9;

/// A peer among the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerId(usize);

/// A packet that waits for its peer's address: path, Identification, BTH to ICRC.
pub(super) type Waiting = (PathId, u16, Box<[u8]>);

struct Peer {
    ip: IpAddr,
    users: usize,
    mac: Option<Mac>,
    /// When the tables are looked at again.
    look_at: Instant,
    pause: Duration,
    /// Since when the address is being found out.
    seeking: Option<Instant>,
    asked_at: Option<Instant>,
    /// Nobody answered in time; what is sent is lost until somebody does.
    silent: bool,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
}

/// What there is to do with a packet.
pub(super) enum Way {
    /// It leaves to this address.
    Known(Mac),
    /// It waits.
    Wait,
    /// It is lost.
    Lost,
}

/// All peers of one adapter.
pub(super) struct Neighbours {
    netlink: Netlink,
    link: u32,
    local: IpAddr,
    /// The interface has no hardware addresses.
    bare: bool,
    peers: Vec<Peer>,
    by_ip: HashMap<IpAddr, PeerId>,
    free: Vec<PeerId>,
    /// When a peer with packets that wait is looked at next.
    next_look: Option<Instant>,
}

impl Neighbours {
    pub(super) fn new(netlink: Netlink, link: u32, local: IpAddr, bare: bool) -> Self {
        let (peers, free) = (Vec::new(), Vec::new());
        Self { netlink, link, local, bare, peers, by_ip: HashMap::new(), free, next_look: None }
    }

    /// Where packets to a peer would go.
    pub(super) fn route(&mut self, ip: IpAddr) -> io::Result<Route> {
        self.netlink.route(self.link, self.local, ip)
    }

    /// Whether the interface has no hardware addresses: the loopback.
    pub(super) fn is_bare(&self) -> bool {
        self.bare
    }

    /// One user more for a peer.
    pub(super) fn open(&mut self, ip: IpAddr) -> PeerId {
        if let Some(&id) = self.by_ip.get(&ip) {
            self.peers[id.0].users += 1;
            return id;
        }
        let peer = Peer {
            ip,
            users: 1,
            mac: None,
            look_at: Instant::from_nanos(0),
            pause: FIRST_LOOK,
            seeking: None,
            asked_at: None,
            silent: false,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.peers[id.0] = peer;
                id
            }
            None => {
                self.peers.push(peer);
                PeerId(self.peers.len() - 1)
            }
        };
        self.by_ip.insert(ip, id);
        id
    }

    /// One user less; what still waits for the peer is lost with the last, and told.
    pub(super) fn close(&mut self, id: PeerId) -> usize {
        let peer = &mut self.peers[id.0];
        peer.users -= 1;
        if peer.users > 0 {
            return 0;
        }
        let lost = peer.waiting.len();
        peer.waiting.clear();
        self.by_ip.remove(&peer.ip);
        self.free.push(id);
        lost
    }

    /// What to do with a packet to this peer.
    #[inline]
    pub(super) fn way(
        &mut self,
        now: Instant,
        id: PeerId,
        guard: &UdpSocket,
        counters: &mut RawCounters,
    ) -> Way {
        let peer = &self.peers[id.0];
        match peer.mac {
            Some(mac) if now < peer.look_at && peer.waiting.is_empty() => Way::Known(mac),
            _ => self.look_for(now, id, guard, counters),
        }
    }

    #[cold]
    fn look_for(&mut self, now: Instant, id: PeerId, guard: &UdpSocket, counters: &mut RawCounters) -> Way {
        if now >= self.peers[id.0].look_at {
            self.look(now, id, guard, counters);
        }
        let peer = &self.peers[id.0];
        match peer.mac {
            // Those that wait go first.
            Some(mac) if peer.waiting.is_empty() => Way::Known(mac),
            _ if peer.silent || peer.waiting_bytes >= MAX_WAITING_BYTES => Way::Lost,
            _ => Way::Wait,
        }
    }

    /// Lets a packet wait.
    pub(super) fn wait(&mut self, id: PeerId, packet: Waiting) {
        let peer = &mut self.peers[id.0];
        peer.waiting_bytes += packet.2.len();
        peer.waiting.push_back(packet);
        let at = peer.look_at;
        self.next_look = Some(self.next_look.map_or(at, |n| n.min(at)));
    }

    /// When [`due`](Self::due) has something to do.
    #[inline]
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.next_look
    }

    /// Looks at the peers for which packets wait and whose time has come; the oldest packet that may leave now,
    /// and where to. Packets that have waited in vain are counted.
    pub(super) fn due(
        &mut self,
        now: Instant,
        guard: &UdpSocket,
        counters: &mut RawCounters,
    ) -> Option<(PeerId, Mac, Waiting)> {
        if self.next_look.is_none_or(|at| now < at) {
            return None;
        }
        self.next_look = None;
        for id in (0..self.peers.len()).map(PeerId) {
            if self.peers[id.0].waiting.is_empty() {
                continue;
            }
            if now >= self.peers[id.0].look_at {
                self.look(now, id, guard, counters);
            }
            let peer = &mut self.peers[id.0];
            if peer.silent {
                counters.tx_lost_unresolved += peer.waiting.len() as u64;
                peer.waiting.clear();
                peer.waiting_bytes = 0;
            } else if let Some(mac) = peer.mac
                && let Some(packet) = peer.waiting.pop_front()
            {
                peer.waiting_bytes -= packet.2.len();
                self.next_look = Some(now);
                return Some((id, mac, packet));
            } else {
                let at = peer.look_at;
                self.next_look = Some(self.next_look.map_or(at, |n| n.min(at)));
            }
        }
        None
    }

    /// A packet that was due could not leave; it goes back to the front.
    pub(super) fn put_back(&mut self, id: PeerId, packet: Waiting, again_at: Instant) {
        let peer = &mut self.peers[id.0];
        peer.waiting_bytes += packet.2.len();
        peer.waiting.push_front(packet);
        self.next_look = Some(again_at);
    }

    /// Asks the tables for a peer, and has the kernel find it out where they do not have it. A peer that is near
    /// has answered when that call returns, so they are asked once more then.
    fn look(&mut self, now: Instant, id: PeerId, guard: &UdpSocket, counters: &mut RawCounters) {
        let found = self.lookup(id, counters);
        if !self.wants_asking(now, id, found) {
            return;
        }
        self.peers[id.0].asked_at = Some(now);
        counters.neighbour_asks += 1;
        self.ask(self.peers[id.0].ip, guard);
        if found.is_none() {
            let found = self.lookup(id, counters);
            if found.is_some() {
                self.wants_asking(now, id, found);
            }
        }
    }

    /// Takes over what the tables have; whether the kernel is to be asked to find it out or to confirm it.
    fn wants_asking(&mut self, now: Instant, id: PeerId, found: Option<Neighbour>) -> bool {
        let peer = &mut self.peers[id.0];
        if let Some(Neighbour { mac, stale }) = found {
            (peer.mac, peer.seeking, peer.silent, peer.pause) = (Some(mac), None, false, FIRST_LOOK);
            peer.look_at = now + FRESH;
            return stale;
        }
        if peer.mac.is_some() {
            // What was known is believed until the kernel knows better.
            peer.look_at = now + FRESH;
            return true;
        }
        let since = *peer.seeking.get_or_insert(now);
        if now >= since + PATIENCE {
            peer.silent = true;
            peer.look_at = now + ASK_AGAIN;
        } else {
            peer.look_at = now + peer.pause;
            peer.pause = (peer.pause * 2).min(LAST_LOOK);
        }
        peer.asked_at.is_none_or(|at| now >= at + ASK_AGAIN)
    }

    /// What the tables have of a peer, or of the gateway in front of it.
    fn lookup(&mut self, id: PeerId, counters: &mut RawCounters) -> Option<Neighbour> {
        counters.neighbour_looks += 1;
        if self.bare {
            return Some(Neighbour { mac: [0; 6], stale: false });
        }
        let Peer { ip, mac: before, .. } = self.peers[id.0];
        let Ok(Route::Via(next)) = self.route(ip) else { return None };
        // An error of the table's is as good as nothing in it: the next look asks again.
        let found = self.netlink.neighbour(self.link, next).ok().flatten()?;
        counters.neighbour_changes += u64::from(before.is_some_and(|mac| mac != found.mac));
        Some(found)
    }

    /// Has the kernel find out a peer's address: by a request where that is allowed, else by a datagram to the
    /// peer's discard port, for which the kernel has to know it.
    fn ask(&mut self, ip: IpAddr, guard: &UdpSocket) {
        let next = match self.route(ip) {
            Ok(Route::Via(next)) => next,
            _ => ip,
        };
        if self.netlink.probe(self.link, next).is_err() {
            // What comes of it shows in the table.
            let _ = guard.send_to(&[], scoped(ip, DISCARD_PORT, self.link));
        }
    }
}
