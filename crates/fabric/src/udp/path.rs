//! Outgoing flows: a connected socket each, and the IPv4 Identification that comes next on it.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use hca_core::AddressVector;
use hca_core::wire::ROCEV2_PORT;
use socket2::{SockAddr, Socket};

use super::{Refusal, new_socket, sys};
use crate::icrc::{FlowCrc, Icrc};
use crate::lent::Lent;
use crate::paths::{FIRST_PORT, PathKey, PathTable, Ports, Process, chance, is_link_local, scoped};
use crate::{PathError, PathId, QpEnds, Train, TxBatch};

/// Ports that are tried before a path falls back to the shared socket.
const PORT_TRIES: u16 = 256;
/// Queue pairs are spread over several ports to a peer while less than this part of the sockets (one of 4) is in use:
/// the others are for further peers, of which each is to have one of its own.
const SPREAD_SHARE: usize = 4;
/// Closed paths that are kept with their sockets: who connects and disconnects again and again opens the same ones.
const MAX_CLOSED: usize = 16;
/// Send buffer to ask for, a flow.
const SEND_BUFFER_BYTES: i32 = 2 << 20;
/// What is sent to learn a flow's Identification. Only this side's own shared socket gets it.
const PROBE: &[u8] = b"ident";

/// One outgoing flow.
pub(crate) struct TxPath {
    key: PathKey,
    /// The own connected socket; `None`: it goes by the shared, unconnected one.
    socket: Option<Socket>,
    addr: SockAddr,
    pub(crate) src_port: u16,
    crc: FlowCrc,
    /// Identification of the next datagram; of no meaning for the shared socket (always 0) and IPv6.
    next_ident: u16,
    /// An error left open whether the kernel used up a number.
    uncertain: bool,
    /// A datagram left although that could not be found out.
    guessed: bool,
    /// The kernel and the way to this peer take trains.
    pub(crate) cuts: bool,
    /// The process that this path leads to, if the key leaves it open and a datagram has named it.
    leads_to: Option<Process>,
    /// The paths to the processes at the peer's address that other datagrams named.
    others: Vec<(Process, PathId)>,
}

impl TxPath {
    pub(crate) fn peer(&self) -> IpAddr {
        self.key.peer
    }
    pub(crate) fn traffic_class(&self) -> u8 {
        self.key.traffic_class
    }
    pub(crate) fn hop_limit(&self) -> u8 {
        self.key.hop_limit
    }
    /// Its own socket, if it has one.
    #[inline]
    pub(crate) fn own_socket(&self) -> Option<&Socket> {
        self.socket.as_ref()
    }
    /// Identification of the datagram that is sent after `ahead` others.
    #[inline]
    pub(crate) fn ident(&self, ahead: usize) -> u16 {
        if self.socket.is_some() { self.next_ident.wrapping_add(ahead as u16) } else { 0 }
    }
    /// Datagrams left.
    #[inline]
    pub(crate) fn sent(&mut self, datagrams: usize) {
        self.next_ident = self.next_ident.wrapping_add(datagrams as u16);
        self.guessed |= self.uncertain;
    }
    /// The kernel may have used up a number for a datagram that did not leave.
    pub(crate) fn doubt_ident(&mut self) {
        self.uncertain = self.socket.is_some() && !self.crc.has_no_ident();
    }
    /// Puts ICRCs on the packets of a train whose first has this Identification.
    #[inline]
    pub(crate) fn seal(&self, icrc: &mut Icrc, ident: u16, segment: usize, bytes: &mut [u8]) {
        icrc.seal(&self.crc, ident, segment, bytes);
    }
    /// The same of a train of which these payloads lie elsewhere.
    pub(crate) fn seal_lent(&self, icrc: &mut Icrc, ident: u16, train: &Train, batch: &mut TxBatch) {
        let (bytes, lent) = batch.parts_mut(train);
        let mut lent = lent.iter().peekable();
        for (k, packet) in bytes.chunks_mut(train.segment).enumerate() {
            let at = train.start + k * train.segment;
            let ident = ident.wrapping_add(k as u16);
            match lent.next_if(|l| l.at < at + packet.len()) {
                Some(l) => icrc.seal_in_two(&self.crc, ident, packet, l.at - at, l.bytes()),
                None => icrc.seal(&self.crc, ident, packet.len(), packet),
            }
        }
    }
    /// Destination and control messages for a datagram of segments of this size (0: one packet).
    #[inline]
    pub(crate) fn datagram<'a>(
        &'a self,
        bytes: &'a [u8],
        lent: (usize, &'a [Lent]),
        segment: usize,
    ) -> sys::TxDatagram<'a> {
        let mut control = sys::TxControl::new();
        if segment != 0 {
            control.segment(segment);
        }
        let to = if self.socket.is_some() {
            None
        } else {
            control.header(self.key.peer.is_ipv6(), self.key.traffic_class, self.key.hop_limit);
            Some(&self.addr)
        };
        sys::TxDatagram { bytes, lent, to, control }
    }
}

/// All outgoing flows of one address.
pub(crate) struct Paths {
    local: IpAddr,
    /// The interface of a link-local address; 0: it is none.
    interface: u32,
    table: PathTable<PathKey, TxPath>,
    ports: Ports,
    shared: Socket,
    shared_addr: SockAddr,
    shared_port: u16,
    /// Of open paths.
    sockets: usize,
    max_sockets: usize,
    /// Closed paths with a socket, the one that was closed last at the end. Each may be opened again as it was: its flow
    /// goes on.
    closed: VecDeque<TxPath>,
    /// The interface by which packets to multicast groups leave, once there is a path to one.
    groups_by: Option<u32>,
    /// Open paths that may lead to several processes.
    open_to_all: usize,
    pub(crate) ident_probes: u64,
    /// Paths that could not have a socket of their own, or not learn its Identification.
    pub(crate) shared_paths: u64,
}

impl Paths {
    pub(crate) fn open(local: IpAddr, interface: u32, max_sockets: usize) -> io::Result<Self> {
        let shared = send_socket(local)?;
        let start = chance() as u16;
        let shared_port = bind_from(&shared, (local, interface), start, u16::MAX - FIRST_PORT)
            .ok_or_else(|| io::Error::from(io::ErrorKind::AddrInUse))?;
        let shared_addr = scoped(local, shared_port, interface).into();
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let fair = descriptors.current.map_or(usize::MAX, |n| n as usize / 2);
        Ok(Self {
            local,
            interface,
            table: PathTable::new(),
            ports: Ports::new(),
            shared,
            shared_addr,
            shared_port,
            sockets: 0,
            max_sockets: max_sockets.min(fair),
            closed: VecDeque::new(),
            groups_by: None,
            open_to_all: 0,
            ident_probes: 0,
            shared_paths: 0,
        })
    }

    /// The path to a peer; equal address vectors share one, unless the queue pairs' numbers spread them.
    pub(crate) fn open_path(&mut self, av: &AddressVector, ends: QpEnds) -> Result<PathId, PathError> {
        let key = PathKey::new(self.local, av, ends)?;
        if self.interface == 0 && is_link_local(key.peer) {
            let why = "a link-local address is one of an interface, which a UDP socket at another address does not lead to: \
                       give a global or unique local address of the peer, or open this end at its own link-local \
                       address there, as in udp://[fe80::1%eth0]";
            return Err(PathError::NotUnicast { peer: key.peer, why });
        }
        self.open_key(key)
    }

    fn open_key(&mut self, key: PathKey) -> Result<PathId, PathError> {
        if key.peer.is_multicast() {
            self.reach_groups()
                .map_err(|source| PathError::Io { doing: "addressing a multicast group", source })?;
        }
        let may_spread = self.sockets < self.max_sockets / SPREAD_SHARE || self.table.contains(&key);
        let key = if may_spread { key } else { key.shared() };
        if let Some(id) = self.table.find(&key)? {
            return Ok(id);
        }
        let path = match key.process {
            // Its Identification is always 0, which each process can count on.
            Process::Management => self.unconnected(key),
            _ => self.reopen(key).or_else(|| self.connect(key)).unwrap_or_else(|| self.shared_path(key)),
        };
        self.sockets += usize::from(path.socket.is_some());
        self.open_to_all += usize::from(key.process == Process::Unknown);
        Ok(self.table.insert(key, path))
    }

    /// Finds out the interface by which packets to groups leave, once.
    fn reach_groups(&mut self) -> io::Result<()> {
        if self.groups_by.is_none() {
            let interface = sys::interface_at(self.local, self.interface)?;
            sys::send_to_groups_by(self.shared.as_fd(), self.local.is_ipv6(), interface)?;
            self.groups_by = Some(interface);
        }
        Ok(())
    }
    /// The address of a path's packets.
    fn address(&self, peer: IpAddr) -> SockAddr {
        let interface = self.groups_by.filter(|_| peer.is_multicast()).unwrap_or(self.interface);
        scoped(peer, ROCEV2_PORT, interface).into()
    }

    pub(crate) fn close_path(&mut self, id: PathId) {
        if let Some(mut path) = self.table.close(id) {
            self.sockets -= usize::from(path.socket.is_some());
            self.open_to_all -= usize::from(path.key.process == Process::Unknown);
            for (_, other) in std::mem::take(&mut path.others) {
                self.close_path(other);
            }
            self.keep(path);
        }
    }
    /// Keeps a closed path with its socket, instead of the one that was closed first if there are too many.
    fn keep(&mut self, path: TxPath) {
        if path.socket.is_none() {
            return;
        }
        self.closed.push_back(TxPath { leads_to: None, ..path });
        self.limit_closed(MAX_CLOSED);
    }
    /// Lets closed paths go, such that so many remain at most, and that all sockets are as many as there may be.
    fn limit_closed(&mut self, most: usize) {
        let most = most.min(self.max_sockets - self.sockets);
        self.closed.drain(..self.closed.len().saturating_sub(most));
    }
    /// A path that was closed.
    fn reopen(&mut self, key: PathKey) -> Option<TxPath> {
        let index = self.closed.iter().rposition(|path| path.key == key)?;
        self.closed.remove(index)
    }

    /// Has each waiting train leave by a path to the process that the train is for.
    #[inline]
    pub(crate) fn lead(&mut self, batch: &mut TxBatch) {
        if self.open_to_all > 0 {
            self.lead_each(batch);
        }
    }
    fn lead_each(&mut self, batch: &mut TxBatch) {
        for index in 0..batch.trains().len() {
            let train = batch.trains()[index];
            let Some(path) = self.table.get_mut(train.path) else { continue };
            if path.key.process != Process::Unknown {
                continue;
            }
            let process = Process::of(batch.number(&train));
            if process != Process::Management && *path.leads_to.get_or_insert(process) == process {
                continue;
            }
            // Without another path it goes by this one.
            if let Some(other) = self.other(train.path, process) {
                batch.redirect(index, other);
            }
        }
    }
    /// The path to another process at the address to which a path leads.
    fn other(&mut self, id: PathId, process: Process) -> Option<PathId> {
        let path = self.table.get(id)?;
        if let Some((_, other)) = path.others.iter().find(|other| other.0 == process) {
            return Some(*other);
        }
        let key = PathKey { process, ..path.key };
        let other = self.open_key(key).ok()?;
        self.table.get_mut(id)?.others.push((process, other));
        Some(other)
    }

    #[inline]
    pub(crate) fn get(&self, id: PathId) -> Option<&TxPath> {
        self.table.get(id)
    }
    #[inline]
    pub(crate) fn get_mut(&mut self, id: PathId) -> Option<&mut TxPath> {
        self.table.get_mut(id)
    }
    /// The descriptor that a path sends by.
    #[inline]
    pub(crate) fn socket_of<'a>(&'a self, path: &'a TxPath) -> BorrowedFd<'a> {
        path.socket.as_ref().unwrap_or(&self.shared).as_fd()
    }
    /// Whether the path's next Identification is known; learns it again where an error left it open.
    #[inline]
    pub(crate) fn ensure_ident_known(&mut self, id: PathId) {
        if self.get(id).is_some_and(|p| p.uncertain) {
            self.learn_again(id);
        }
    }

    #[cold]
    fn learn_again(&mut self, id: PathId) {
        let learned = self.get(id).and_then(|p| Some(learn_ident(p.socket.as_ref()?, &self.shared_addr)));
        self.ident_probes += 1;
        let Some(path) = self.get_mut(id) else { return };
        match learned {
            Some(Ok(last)) => {
                (path.uncertain, path.guessed, path.next_ident) = (false, false, last.wrapping_add(1));
                return;
            }
            // The address has gone, and may come back: nothing leaves before.
            Some(Err(e)) if !path.guessed && matches!(Refusal::of(&e), Refusal::Earlier | Refusal::Uncut) => {
                return;
            }
            _ => {}
        }
        let key = path.key;
        let (had_socket, path_cuts, leads_to) = (path.socket.is_some(), path.cuts, path.leads_to);
        let others = std::mem::take(&mut path.others);
        let shared = TxPath { cuts: path_cuts, leads_to, others, ..self.shared_path(key) };
        *self.get_mut(id).expect("found above") = shared;
        self.sockets -= usize::from(had_socket);
    }

    /// A path with a socket of its own, or `None` where none can be had or its Identification not be learned.
    fn connect(&mut self, key: PathKey) -> Option<TxPath> {
        if self.sockets >= self.max_sockets {
            return None;
        }
        self.limit_closed(self.max_sockets - self.sockets - 1);
        let socket = send_socket(self.local).ok()?;
        let src_port =
            bind_from(&socket, (self.local, self.interface), self.ports.entropy(&key), PORT_TRIES)?;
        if let Some(interface) = self.groups_by.filter(|_| key.peer.is_multicast()) {
            sys::send_to_groups_by(socket.as_fd(), key.peer.is_ipv6(), interface).ok()?;
        }
        socket.connect(&self.address(key.peer)).ok()?;
        set_header(&socket, key).ok()?;
        let next_ident = if self.local.is_ipv4() {
            self.ident_probes += 1;
            learn_ident(&socket, &self.shared_addr).ok()?.wrapping_add(1)
        } else {
            0
        };
        let crc = FlowCrc::new(self.local, key.peer, src_port)?;
        Some(TxPath { socket: Some(socket), src_port, crc, next_ident, ..self.unconnected(key) })
    }

    fn shared_path(&mut self, key: PathKey) -> TxPath {
        self.shared_paths += 1;
        self.unconnected(key)
    }

    /// A path by the socket that is not connected.
    fn unconnected(&self, key: PathKey) -> TxPath {
        let crc = FlowCrc::new(self.local, key.peer, self.shared_port).expect("families were compared");
        TxPath {
            key,
            socket: None,
            addr: self.address(key.peer),
            src_port: self.shared_port,
            crc,
            next_ident: 0,
            uncertain: false,
            guessed: false,
            cuts: true,
            leads_to: None,
            others: Vec::new(),
        }
    }
}

#[cfg(test)]
impl Paths {
    /// The Identification that the kernel gives next; it is asked by using one up.
    pub(crate) fn kernel_ident(&mut self, id: PathId) -> u16 {
        let path = self.get(id).expect("the path is open");
        let socket = path.socket.as_ref().expect("it has a socket of its own");
        let next = learn_ident(socket, &self.shared_addr).expect("it could be learned before");
        self.get_mut(id).expect("the path is open").sent(1);
        next
    }
    /// Has the kernel use up an Identification that this side does not know of.
    pub(crate) fn use_up_ident(&self, id: PathId) {
        let socket = self.get(id).and_then(|p| p.socket.as_ref()).expect("it has a socket of its own");
        socket.send_to(PROBE, &self.shared_addr).expect("this side's own socket takes it");
    }
    /// Makes the send buffer as small as the kernel allows.
    pub(crate) fn shrink_send_buffer(&self, id: PathId) {
        let socket = self.get(id).and_then(|p| p.socket.as_ref()).expect("it has a socket of its own");
        socket.set_send_buffer_size(1).expect("too little is made the least");
    }
}

/// A socket for sending that sets "don't fragment" and holds next to nothing that arrives.
fn send_socket(local: IpAddr) -> io::Result<Socket> {
    let socket = new_socket(local)?;
    let (level, name, dont_fragment) = if local.is_ipv6() {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)
    } else {
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
    };
    sys::set_option(socket.as_fd(), level, name, dont_fragment)?;
    socket.set_recv_buffer_size(1)?;
    // Trains are held here until the interface took them; what is not granted shows as EAGAIN.
    if sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER_BYTES).is_err() {
        socket.set_send_buffer_size(SEND_BUFFER_BYTES as usize)?;
    }
    Ok(socket)
}

/// Binds to the first free port, from an offset into the range on.
fn bind_from(socket: &Socket, (local, interface): (IpAddr, u32), start: u16, tries: u16) -> Option<u16> {
    (0..tries).map(|i| FIRST_PORT | start.wrapping_add(i) & !FIRST_PORT).find(|&port| {
        let addr: SockAddr = scoped(local, port, interface).into();
        socket.bind(&addr).is_ok()
    })
}

fn set_header(socket: &Socket, key: PathKey) -> io::Result<()> {
    let (tc, hops) = (i32::from(key.traffic_class), i32::from(key.hop_limit));
    let (level, tc_name, hops_name) = match (key.peer.is_ipv6(), key.peer.is_multicast()) {
        (true, false) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_UNICAST_HOPS),
        (true, true) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_MULTICAST_HOPS),
        (false, false) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
        (false, true) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_MULTICAST_TTL),
    };
    sys::set_option(socket.as_fd(), level, tc_name, tc)?;
    sys::set_option(socket.as_fd(), level, hops_name, hops)
}

/// The Identification that a connected socket's last datagram had.
///
/// A probe is sent to this side's own shared socket, which nobody reads: a connected socket counts
/// datagrams to other destinations as well, so nothing reaches the peer or leaves the machine. The
/// timestamp that was asked for comes back by the error queue, with the frame and its IP header.
fn learn_ident(socket: &Socket, sink: &SockAddr) -> io::Result<u16> {
    const TIMESTAMPS: i32 = (libc::SOF_TIMESTAMPING_TX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE) as i32;
    sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPING, TIMESTAMPS)?;
    let sent = socket.send_to(PROBE, sink).or_else(|e| {
        // The error of an earlier datagram, which this call took.
        if Refusal::of(&e).may_be_earlier() { socket.send_to(PROBE, sink) } else { Err(e) }
    });
    sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPING, 0)?;
    sent?;
    // On the loopback interface the stamp is there when the send returns.
    let mut frame = [0_u8; 256];
    let n = sys::recv_error(socket.as_fd(), &mut frame)?;
    let header = n.checked_sub(20 + 8 + PROBE.len()).map(|ip| &frame[ip..]);
    match header {
        Some([0x45, _, _, _, hi, lo, ..]) => Ok(u16::from_be_bytes([*hi, *lo])),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Paths from an address of this test's own, which have so many sockets at most.
    fn paths(salt: u8, max_sockets: usize) -> Paths {
        Paths::open(Ipv4Addr::new(127, 201, std::process::id() as u8, salt).into(), 0, max_sockets).unwrap()
    }
    fn open(paths: &mut Paths, peer: u8) -> PathId {
        let dgid = hca_core::Gid::from_ip(Ipv4Addr::new(127, 202, 0, peer).into());
        paths.open_path(&AddressVector { dgid, ..AddressVector::default() }, QpEnds::default()).unwrap()
    }

    #[test]
    fn a_path_that_is_opened_again_goes_on_as_it_was() {
        let mut paths = paths(1, 16);
        let first = open(&mut paths, 1);
        paths.get_mut(first).unwrap().sent(0);
        let was = (paths.get(first).unwrap().src_port, paths.kernel_ident(first));
        let probes = paths.ident_probes;
        paths.close_path(first);
        let second = open(&mut paths, 1);
        assert_ne!(second, first);
        assert_eq!(paths.get(second).unwrap().src_port, was.0);
        assert_eq!(paths.ident_probes, probes, "its number is known");
        assert_eq!(paths.get(second).unwrap().ident(0), paths.kernel_ident(second), "and right");
        assert_eq!(paths.get(second).unwrap().ident(0), was.1.wrapping_add(2));
        let other = open(&mut paths, 2);
        assert_ne!(paths.get(other).unwrap().src_port, was.0);
    }

    #[test]
    fn closed_paths_keep_as_many_sockets_as_there_may_be_and_are_no_obstacle_to_open_ones() {
        let mut paths = paths(2, 4);
        for round in 0..3 {
            let open: Vec<_> = (0..4).map(|peer| open(&mut paths, 4 * round + peer)).collect();
            assert!(
                open.iter().all(|path| paths.get(*path).unwrap().own_socket().is_some()),
                "round {round}"
            );
            assert_eq!((paths.sockets, paths.closed.len()), (4, 0));
            open.into_iter().for_each(|path| paths.close_path(path));
            assert_eq!((paths.sockets, paths.closed.len()), (0, 4));
        }
        let mut many = self::paths(3, 4 * MAX_CLOSED);
        let open: Vec<_> = (0..MAX_CLOSED as u8 + 2).map(|peer| open(&mut many, peer)).collect();
        open.into_iter().for_each(|path| many.close_path(path));
        assert_eq!(many.closed.len(), MAX_CLOSED);
    }

    #[test]
    fn over_ipv6_there_is_no_number_to_doubt() {
        let local = std::net::Ipv6Addr::LOCALHOST;
        // IPv6 may be switched off.
        let Ok(mut paths) = Paths::open(local.into(), 0, 16) else { return };
        let av = AddressVector { dgid: hca_core::Gid::from_ip(local.into()), ..AddressVector::default() };
        let path = paths.open_path(&av, QpEnds::default()).unwrap();
        paths.get_mut(path).unwrap().doubt_ident();
        paths.ensure_ident_known(path);
        assert!(paths.get(path).unwrap().own_socket().is_some());
        assert_eq!((paths.ident_probes, paths.shared_paths), (0, 0));
    }
}
