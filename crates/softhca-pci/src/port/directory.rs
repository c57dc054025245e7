//! The translation between the functions' addresses and the adapter's own.
//!
//! All functions of a server share one adapter, which has one address. To its driver each function has its own
//! addresses: GIDs that the driver chose or that an InfiniBand port generates, and a LID. The directory knows the
//! function of each address, so that one function reaches another by it: an outgoing packet gets the adapter's own GID
//! in its place, and an incoming packet gets the address of the sending function. An address that no function here has
//! goes to the network unchanged.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hca_core::{Device, Gid, Lid, QpHandle};
use softhca::SoftHca;

use crate::eth::gateway::Gateway;
use crate::eth::switch::Switch;
use crate::function::FunctionOptions;
use crate::port::{guid_of, mac_of};

/// Hops that a packet may make whose sender says nothing.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// A directory that all functions of a server share, and the switch between their Ethernet ports.
#[derive(Clone, Debug)]
pub struct SharedDirectory {
    directory: Arc<Mutex<Directory>>,
    switch: Arc<Mutex<Switch>>,
    /// Frames that wait anywhere at the switch.
    waiting: Arc<AtomicUsize>,
}

impl SharedDirectory {
    /// The directory of an adapter with the GID `own`.
    pub fn new(own: Gid) -> Self {
        let directory = Directory {
            own,
            gids: HashMap::new(),
            gids_of: HashMap::new(),
            fixed: HashMap::new(),
            lids: HashMap::new(),
            qps: HashMap::new(),
            connections: HashMap::new(),
            here: HashMap::new(),
            down: HashSet::new(),
            version: 1,
            tables: HashMap::new(),
            marks: HashMap::new(),
        };
        let switch = Switch::default();
        let waiting = switch.waiting.clone();
        Self { directory: Arc::new(Mutex::new(directory)), switch: Arc::new(Mutex::new(switch)), waiting }
    }

    /// That of an adapter. Where its network leads out of this process, an address stands for the Ethernet port behind
    /// which its peers are.
    pub(crate) fn of(hca: &SoftHca) -> Self {
        let (own, fabric) = (hca.port().gid, hca.fabric());
        let this = Self::new(own);
        // Layers in front of a network are told with it.
        if fabric.name.rsplit('+').next() != Some("loopback") {
            this.switch().gateway = Some(Gateway::new(mac_of(guid_of(own, 0)), fabric.local));
        }
        this
    }

    /// Stores the fixed settings of a function.
    pub(crate) fn fix(&self, options: &FunctionOptions) {
        let mut directory = self.lock();
        options.fixed.gids().for_each(|gid| directory.fix_gid(gid, options.number));
        if let Some(mac) = options.fixed.mac {
            self.switch().fix(options.number, mac);
        }
    }

    /// The directory, for as long as the guard lives.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Directory> {
        self.directory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The switch, as long as the guard lives. A thread that takes both locks takes the directory first.
    pub(crate) fn switch(&self) -> MutexGuard<'_, Switch> {
        self.switch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no frame waits anywhere.
    pub(crate) fn nothing_waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }
}

/// The addresses of all functions, and their connections.
#[derive(Debug)]
pub(crate) struct Directory {
    own: Gid,
    gids: HashMap<Gid, u16>,
    /// The same GIDs by function.
    gids_of: HashMap<u16, BTreeSet<[u8; 16]>>,
    /// The function that an operator has fixed for a GID, whether or not the function uses the GID now.
    fixed: HashMap<Gid, u16>,
    lids: HashMap<u16, u16>,
    qps: HashMap<u32, u16>,
    connections: HashMap<u32, Connection>,
    /// Queue pairs whose peers are here, by the number of the peer.
    here: HashMap<u32, HashSet<u32>>,
    /// Functions whose links are down.
    down: HashSet<u16>,
    /// Changes with each change of `connections` and of links.
    version: u64,
    /// The addresses of each function, as its port's table has them.
    tables: HashMap<u16, Vec<Gid>>,
    /// The requests of senders of datagrams, by sending and receiving function.
    marks: HashMap<(u16, u16), Marks>,
}

/// The addresses and the hop limit that the sender of a datagram has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The sender's address; none if there is to be no header.
    pub(crate) source: Option<Gid>,
    /// The address that the datagram is sent to.
    pub(crate) to: Gid,
    /// The hop limit.
    pub(crate) hop_limit: u8,
}

/// The requests of one function for its datagrams to another function.
#[derive(Debug, Default)]
struct Marks {
    all: Vec<Mark>,
    /// The index of the mark that is replaced next when there are too many.
    oldest: usize,
}

/// The most marks: as many as a hop limit can number, except 0, which stands for the default.
const MAX_MARKS: usize = 255;

impl Marks {
    /// The number of a mark.
    fn number(&mut self, mark: Mark) -> u8 {
        let at = self.all.iter().position(|other| *other == mark).unwrap_or_else(|| {
            if self.all.len() < MAX_MARKS {
                self.all.push(mark);
                return self.all.len() - 1;
            }
            let at = self.oldest;
            (self.all[at], self.oldest) = (mark, (at + 1) % MAX_MARKS);
            at
        });
        at as u8 + 1
    }
}

/// The peer that a queue pair is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    /// The adapter's name of the queue pair that is connected.
    pub(crate) handle: QpHandle,
    /// The queue pair at the other end.
    pub(crate) remote: u32,
    /// Whether that has the adapter's own address: it is one of a function here, or nobody's.
    pub(crate) here: bool,
}

impl Directory {
    /// The adapter's own GID.
    pub(crate) fn own(&self) -> Gid {
        self.own
    }

    /// The function with this number has this GID from now on, unless another one has it: none takes another's. Returns
    /// whether it may use it.
    #[must_use]
    pub(crate) fn add_gid(&mut self, gid: Gid, function: u16) -> bool {
        if self.fixed.get(&gid).is_some_and(|of| *of != function) {
            return false;
        }
        if gid == Gid::default() || gid == self.own {
            return true;
        }
        let is_its = *self.gids.entry(gid).or_insert(function) == function;
        if is_its {
            self.gids_of.entry(function).or_default().insert(gid.0);
        }
        is_its
    }

    /// No other function may have this GID, ever.
    pub(crate) fn fix_gid(&mut self, gid: Gid, function: u16) {
        self.fixed.insert(gid, function);
    }

    /// The function has it no more.
    pub(crate) fn remove_gid(&mut self, gid: Gid, function: u16) {
        if self.gids.get(&gid) == Some(&function) {
            self.gids.remove(&gid);
            if let Some(of_function) = self.gids_of.get_mut(&function) {
                of_function.remove(&gid.0);
            }
        }
    }

    /// The function has this LID, unless another one has it. Returns whether it has.
    #[must_use]
    pub(crate) fn add_lid(&mut self, lid: Lid, function: u16) -> bool {
        *self.lids.entry(lid.raw()).or_insert(function) == function
    }

    /// The function has no address any more.
    pub(crate) fn remove_function(&mut self, function: u16) {
        self.gids.retain(|_, of| *of != function);
        self.gids_of.remove(&function);
        self.lids.retain(|_, of| *of != function);
        self.tables.remove(&function);
        self.marks.retain(|(from, to), _| *from != function && *to != function);
    }

    /// The function's port has this address in this place of its table from now on.
    pub(crate) fn set_address(&mut self, function: u16, index: u32, gid: Gid) {
        let table = self.tables.entry(function).or_default();
        if table.len() <= index as usize {
            table.resize(index as usize + 1, Gid::default());
        }
        table[index as usize] = gid;
    }

    /// The hop limit of a datagram from a function to the queue pair with this number, which must belong to a function
    /// of this server: by the hop limit the receiver finds the sender's request. If the sender asks for a header,
    /// `source` is the index of the header's address in the sender's table.
    pub(crate) fn mark(
        &mut self,
        (function, to_qp): (u16, u32),
        source: Option<u32>,
        to: Gid,
        hop_limit: u8,
    ) -> u8 {
        let Some(receiver) = self.qps.get(&to_qp) else { return hop_limit };
        let in_table = |index: u32| self.tables.get(&function).and_then(|t| t.get(index as usize)).copied();
        let named = |index| in_table(index).filter(|gid| *gid != Gid::default());
        let source = source.map(|index| named(index).unwrap_or_else(|| self.gid_of(function)));
        let hop_limit = if hop_limit == 0 { DEFAULT_HOP_LIMIT } else { hop_limit };
        self.marks.entry((function, *receiver)).or_default().number(Mark { source, to, hop_limit })
    }

    /// The request of a datagram's sender, if the sender is a function of this server: by the queue pairs at both ends,
    /// and the datagram's hop limit.
    pub(crate) fn marked(&self, (from, to): (u32, u32), hop_limit: u8) -> Option<&Mark> {
        let marks = self.marks.get(&(*self.qps.get(&from)?, *self.qps.get(&to)?))?;
        marks.all.get(usize::from(hop_limit).checked_sub(1)?)
    }

    /// Whether anything is known of the function.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn knows(&self, function: u16) -> bool {
        let (gids, lids) = (self.gids.values(), self.lids.values());
        gids.chain(lids).chain(self.qps.values()).any(|of| *of == function)
    }

    /// The function has this queue pair.
    pub(crate) fn add_qp(&mut self, qpn: u32, function: u16) {
        self.qps.insert(qpn, function);
    }

    /// It has it no more.
    pub(crate) fn remove_qp(&mut self, qpn: u32) {
        self.qps.remove(&qpn);
        self.disconnect(qpn);
        self.version += 1;
    }

    /// The queue pair is connected from now on. Returned are those of functions here that are connected to it, though
    /// it is not to them: as all functions have one address, the adapter would take their packets for its peer's. Their
    /// connections end.
    pub(crate) fn connect(&mut self, qpn: u32, connection: Connection) -> Vec<QpHandle> {
        self.disconnect(qpn);
        self.version += 1;
        self.connections.insert(qpn, connection);
        if connection.here {
            self.here.entry(connection.remote).or_default().insert(qpn);
        }
        let is_peer = |from: u32| connection.here && connection.remote == from;
        let to_it = self.here.get(&qpn).into_iter().flatten().copied();
        let strangers: Vec<u32> = to_it.filter(|from| !is_peer(*from)).collect();
        strangers.into_iter().filter_map(|from| self.disconnect(from)).map(|c| c.handle).collect()
    }

    /// The queue pair is connected no more. Returns its connection, if it had one.
    pub(crate) fn disconnect(&mut self, qpn: u32) -> Option<Connection> {
        let ended = self.connections.remove(&qpn)?;
        self.version += 1;
        if ended.here
            && let Some(to_peer) = self.here.get_mut(&ended.remote)
        {
            to_peer.remove(&qpn);
            if to_peer.is_empty() {
                self.here.remove(&ended.remote);
            }
        }
        Some(ended)
    }

    /// The function's link is up, or down.
    pub(crate) fn set_link(&mut self, function: u16, up: bool) {
        _ = if up { self.down.remove(&function) } else { self.down.insert(function) };
        self.version += 1;
    }

    /// Whether the queue pair is one of a function whose link is down.
    pub(crate) fn is_cut_off(&self, qpn: u32) -> bool {
        !self.down.is_empty() && self.qps.get(&qpn).is_some_and(|function| self.down.contains(function))
    }

    /// Whether the function with this GID, or this LID, has a link that is down.
    pub(crate) fn is_down(&self, gid: Gid, lid: Lid) -> bool {
        let function = self.gids.get(&gid).or_else(|| self.lids.get(&lid.raw()));
        function.is_some_and(|function| self.down.contains(function))
    }

    /// Whether what a queue pair sends is for who it is connected to, unless that has another peer, and no link between
    /// them is down.
    pub(crate) fn is_heard(&self, qpn: u32) -> bool {
        if self.is_cut_off(qpn) {
            return false;
        }
        let Some(connection) = self.connections.get(&qpn).filter(|c| c.here) else { return true };
        if self.is_cut_off(connection.remote) {
            return false;
        }
        self.connections.get(&connection.remote).is_none_or(|peer| peer.here && peer.remote == qpn)
    }

    /// Changes whenever connections or links do.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Whether a function here has this address.
    pub(crate) fn is_here(&self, address: IpAddr) -> bool {
        let mapped = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        self.gids.contains_key(&Gid(mapped.octets()))
    }

    /// By which LID the sender with this queue pair is known, if it is a function here that has one.
    pub(crate) fn lid_of_qp(&self, qpn: u32) -> Option<u16> {
        let function = self.qps.get(&qpn)?;
        self.lids.iter().find(|(_, of)| *of == function).map(|(lid, _)| *lid)
    }

    /// By which GID a function is known, the lowest of several; by the adapter's own if it has none.
    fn gid_of(&self, function: u16) -> Gid {
        self.gids_of.get(&function).and_then(BTreeSet::first).map_or(self.own, |gid| Gid(*gid))
    }

    /// Where packets to this GID go: the adapter's own GID if a function here has it, the GID itself otherwise.
    pub(crate) fn route_gid(&self, gid: Gid) -> Gid {
        if self.gids.contains_key(&gid) { self.own } else { gid }
    }

    /// Where packets to this LID go, if a function here has it.
    pub(crate) fn route_lid(&self, lid: Lid) -> Option<Gid> {
        self.lids.contains_key(&lid.raw()).then_some(self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_connected_to_one_that_has_another_peer_is_told_of_once() {
        let shared = SharedDirectory::new(Gid([1; 16]));
        let mut d = shared.lock();
        let handle = |index| QpHandle { index, generation: 1 };
        let connect = |d: &mut Directory, from: u32, remote| {
            d.connect(from, Connection { handle: handle(from), remote, here: true })
        };
        (1..=4).for_each(|qpn| d.add_qp(qpn, 0));
        assert_eq!(connect(&mut d, 1, 2), []);
        assert_eq!(connect(&mut d, 3, 2), []);
        assert_eq!(connect(&mut d, 4, 3), []);
        assert_eq!(connect(&mut d, 2, 1), [handle(3)]);
        for _ in 0..2 {
            d.disconnect(2);
            assert_eq!(connect(&mut d, 2, 1), [], "it is in error, and connected to nobody");
        }
        assert!(d.is_heard(1) && d.is_heard(2) && d.is_heard(4));
        (1..=4).for_each(|qpn| d.remove_qp(qpn));
        assert!(d.connections.is_empty() && d.here.is_empty() && !d.knows(0));
    }
}
