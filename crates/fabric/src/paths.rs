//! Open paths, by destination and by name; a name distinguishes a reused slot from its earlier use.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use hca_core::{AddressVector, Qpn};

use crate::share::slot_of_number;
use crate::{PathError, PathId, QpEnds};

/// Source ports begin here, as RoCEv2 asks for; what is above is entropy.
pub(crate) const FIRST_PORT: u16 = 0xc000;
/// Paths at most.
const MAX_PATHS: usize = 1 << 20;
/// Bits of a [`PathId`] that are the slot; the others tell a reused slot from its predecessor.
const SLOT_BITS: u32 = 20;
/// The most UDP source ports by which an adapter's queue pairs without a flow label send to one peer. Each port costs a
/// path: over UDP a socket, and a send call of its own if queue pairs of several ports send in one turn. With small
/// messages on 64 queue pairs that costs a fifth of the rate, and three quarters if adapter threads send many at a
/// time; a common flow label avoids the cost.
pub const PORTS_PER_PEER: u16 = 16;
const _: () = assert!(PORTS_PER_PEER.is_power_of_two() && PORTS_PER_PEER <= !FIRST_PORT);

/// The hop limit of packets whose address vector asks for this one; 0 leaves it open.
pub(crate) const fn hop_limit(asked: u8) -> u8 {
    if asked == 0 { 64 } else { asked }
}

/// Whether an address is one of an interface, and says nothing without it.
pub(crate) fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(a) if a.is_unicast_link_local())
}
/// A socket address on an interface, of which link-local addresses and groups need the index.
pub(crate) fn scoped(ip: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(a) if a.is_unicast_link_local() || a.is_multicast() => {
            SocketAddrV6::new(a, port, 0, interface).into()
        }
        _ => SocketAddr::new(ip, port),
    }
}

/// What two users of one path have in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PathKey {
    pub(crate) peer: IpAddr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) flow_label: u32,
    /// Which of the [`PORTS_PER_PEER`], where no flow label says it.
    pub(crate) lane: u16,
    /// The process at the peer's address.
    pub(crate) process: Process,
}

/// The process at a peer's address, if several share it: each receives its own part of what is sent there, so a flow,
/// of which the receiver counts the packets, leads to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Process {
    /// Not known: datagrams name it one by one.
    Unknown,
    /// The process whose queue pairs' numbers begin with this byte.
    Slot(u8),
    /// Whichever process a management datagram is for.
    Management,
}

impl Process {
    /// The process that has a queue pair of this number.
    pub(crate) fn of(qpn: Qpn) -> Self {
        match qpn.raw() {
            0 | 1 => Self::Management,
            _ => Self::Slot(slot_of_number(qpn)),
        }
    }
}

impl PathKey {
    /// The key of the path that an address vector names, from this address and between queue pairs of these numbers.
    pub(crate) fn new(local: IpAddr, av: &AddressVector, ends: QpEnds) -> Result<Self, PathError> {
        let peer = av.dgid.ip();
        PathError::unless_addressable(peer, ends)?;
        if peer.is_ipv4() != local.is_ipv4() {
            return Err(PathError::Family { peer, local });
        }
        let flow_label = av.flow_label & 0xf_ffff;
        let lane = ends.local.filter(|_| flow_label == 0).map_or(0, lane_of);
        // A group's packets go to all processes.
        let number = if peer.is_multicast() { Some(Qpn::MULTICAST) } else { ends.peer };
        let process = number.map_or(Process::Unknown, Process::of);
        let hop_limit = hop_limit(av.hop_limit);
        Ok(Self { peer, traffic_class: av.traffic_class, hop_limit, flow_label, lane, process })
    }

    /// The same without regard to this side's queue pair.
    pub(crate) fn shared(self) -> Self {
        Self { lane: 0, ..self }
    }
}

struct Slot<K, P> {
    generation: u32,
    users: u32,
    path: Option<(K, P)>,
}

/// The source ports of new paths.
pub(crate) struct Ports {
    /// The port of the last path; the first port is drawn by chance.
    last: u16,
}

impl Ports {
    pub(crate) fn new() -> Self {
        Self { last: chance() as u16 }
    }
    /// What the source port of a new path is made of: the flow label, as Linux does it; else ports that were not used
    /// for the longest time, so that a flow that begins anew is none that its receiver knows, as its Identifications
    /// are others. Ports of different lanes differ.
    pub(crate) fn entropy(&mut self, key: &PathKey) -> u16 {
        if key.flow_label != 0 {
            return (key.flow_label ^ key.flow_label >> 14) as u16;
        }
        self.last = self.last.wrapping_add(PORTS_PER_PEER);
        self.last & !(PORTS_PER_PEER - 1) | key.lane
    }
}

/// All open paths of one address, by what two users of one path have in common.
pub(crate) struct PathTable<K, P> {
    slots: Vec<Slot<K, P>>,
    free: Vec<u32>,
    by_key: HashMap<K, PathId>,
}

impl<K: Copy + Eq + Hash, P> PathTable<K, P> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), by_key: HashMap::new() }
    }

    /// Whether a path of this key is open.
    pub(crate) fn contains(&self, key: &K) -> bool {
        self.by_key.contains_key(key)
    }

    /// The path of this key, which has one user more then; `None`: it is to be inserted.
    pub(crate) fn find(&mut self, key: &K) -> Result<Option<PathId>, PathError> {
        if let Some(&id) = self.by_key.get(key) {
            self.slots[slot_of(id)].users += 1;
            return Ok(Some(id));
        }
        if self.by_key.len() == MAX_PATHS {
            return Err(PathError::Limit(MAX_PATHS));
        }
        Ok(None)
    }

    /// Adds a path with one user, for whose key [`find`](Self::find) had nothing.
    pub(crate) fn insert(&mut self, key: K, path: P) -> PathId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, users: 0, path: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.path = Some((key, path));
        slot.users = 1;
        let id = PathId(index | slot.generation << SLOT_BITS);
        self.by_key.insert(key, id);
        id
    }

    /// One user leaves; the path, if that was the last.
    pub(crate) fn close(&mut self, id: PathId) -> Option<P> {
        self.get(id)?;
        let index = slot_of(id);
        let slot = &mut self.slots[index];
        slot.users -= 1;
        if slot.users > 0 {
            return None;
        }
        let (key, path) = slot.path.take()?;
        slot.generation = slot.generation.wrapping_add(1) & (u32::MAX >> SLOT_BITS);
        self.free.push(index as u32);
        self.by_key.remove(&key);
        Some(path)
    }

    #[inline]
    pub(crate) fn get(&self, id: PathId) -> Option<&P> {
        let slot = self.slots.get(slot_of(id))?;
        if slot.generation == id.0 >> SLOT_BITS { slot.path.as_ref().map(|p| &p.1) } else { None }
    }
    #[inline]
    pub(crate) fn get_mut(&mut self, id: PathId) -> Option<&mut P> {
        let slot = self.slots.get_mut(slot_of(id))?;
        if slot.generation == id.0 >> SLOT_BITS { slot.path.as_mut().map(|p| &mut p.1) } else { None }
    }
}

#[inline]
fn slot_of(id: PathId) -> usize {
    (id.0 & ((1 << SLOT_BITS) - 1)) as usize
}

/// The port of a queue pair, of those to one peer. Numbers in a row have different ones.
fn lane_of(qpn: Qpn) -> u16 {
    qpn.spread(PORTS_PER_PEER.ilog2()) as u16
}

/// A number that nobody foresees.
pub(crate) fn chance() -> u64 {
    // Keys of the standard library's maps, drawn from the system and different for each.
    RandomState::new().build_hasher().finish()
}
