//! The automatic fabric: RoCEv2 over UDP, and shared memory to peers that are adapters of this kind on this machine.
//!
//! An adapter has an address of the network. Beside its UDP socket it listens for peers of this machine, under a name
//! made of network namespace, user, address and the socket's inode. An adapter that opens a path checks whether a
//! socket with the name of the peer's address listens. Both ends check the same two names, and so come to the same
//! choice.
//!
//! Each end proves its address before any packet is exchanged. The question is a RoCE packet as any host may send it: a
//! management datagram, *Get(ClassPortInfo)* of the performance class, to queue pair 1 of the peer, with a random
//! transaction id. The peer returns the transaction id over the UNIX socket; only the process that holds port 4791 of
//! the address can have seen it. Where processes share the address, the question goes to a number that names the peer's
//! slot.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hca_core::wire::{
    Be24, Be32, Deth, MadHeader, Opcode, Packet, PacketBuilder, PacketOp, method, mgmt_class,
};
use hca_core::{AddressVector, Counter, Instant, Psn, Qpn};
use rustix::event::epoll;

use crate::paths::is_link_local;
use crate::share::{number_of_process, process_of_number};
use crate::{
    Fabric, FabricAttr, Glance, ManagementDesk, MulticastGroups, OpenError, PathError, PathId, PeerName,
    QpEnds, RxBudget, RxOutcome, RxPacket, ShmChance, ShmError, ShmFabric, ShmOptions, Tap, TxBatch,
    UdpFabric, UdpOptions,
};

/// The Q_Key.
const GSI_QKEY: u32 = 0x8001_0000;
const SEND_ONLY: Opcode = Opcode::ud(PacketOp::SendOnly);
/// Version of the performance class.
const CLASS_VERSION: u8 = 1;
/// The attribute that all classes have: what the port can.
const CLASS_PORT_INFO: u16 = 0x0001;

/// A fabric of a network (UDP, or a simulated one), and of shared memory to peers that are found on this machine.
pub struct AutoFabric {
    network: Box<dyn Fabric>,
    near: Option<ShmFabric>,
    attr: FabricAttr,
    /// The network's notes when this was opened: the first so many of the attributes.
    notes_of_network: usize,
    /// Both networks' descriptors.
    epoll: OwnedFd,
    questions: TxBatch,
    paths_by_shm: u64,
    paths_by_udp: u64,
}

impl AutoFabric {
    /// Opens the adapter's end at an address of this machine. If shared memory is not available, a note in the
    /// attributes says so, and all packets go by UDP.
    ///
    /// # Errors
    /// As [`UdpFabric::open`].
    pub fn open(local: IpAddr, udp: &UdpOptions, shm: &ShmOptions) -> Result<Self, OpenError> {
        // Before the UDP end, which may start a thread.
        ShmFabric::register_while_alone();
        Self::beside(UdpFabric::open(local, udp)?, shm)
    }

    /// Like [`open`](Self::open), beside a UDP end that is open: the name in shared memory says which.
    ///
    /// # Errors
    /// The system refuses a descriptor.
    pub fn beside(udp: UdpFabric, shm: &ShmOptions) -> Result<Self, OpenError> {
        let local = udp.attr().local;
        // The same address may stand on two interfaces, which are two adapters.
        let shm = if is_link_local(local) {
            Err(ShmError::LinkLocal)
        } else {
            ShmFabric::open_on_network(PeerName::new(local, udp.attr().qpn_slot), shm)
        };
        Self::of(Box::new(udp), shm)
    }

    /// The adapter's end in a simulation: a simulated network, and real shared memory between the adapters of this
    /// process and simulation that have the same machine name.
    ///
    /// # Errors
    /// The system refuses a descriptor.
    pub fn simulated(
        network: Box<dyn Fabric>,
        machine: &str,
        shm: &ShmOptions,
        chance: Box<dyn ShmChance>,
    ) -> Result<Self, OpenError> {
        let FabricAttr { local, qpn_slot, .. } = *network.attr();
        let shm = ShmFabric::open_in_simulation(PeerName::new(local, qpn_slot), machine, shm, chance);
        Self::of(network, shm)
    }

    fn of(network: Box<dyn Fabric>, near: Result<ShmFabric, ShmError>) -> Result<Self, OpenError> {
        let local = network.attr().local;
        let io = |doing| move |e: rustix::io::Errno| OpenError::Io { doing, local, source: e.into() };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io("creating an epoll descriptor"))?;
        let (near, note) = match near {
            Ok(near) => (
                Some(near),
                "by shared memory: this user's adapters on auto:// in this network namespace".to_owned(),
            ),
            Err(why) => {
                tracing::warn!(%local, %why, "peers on this machine are reached by UDP");
                (None, format!("by UDP: {why}"))
            }
        };
        let of_network = network.wait_fd().into_iter().chain(network.wait_fd_beside());
        let fds = of_network.chain(near.as_ref().and_then(Fabric::wait_fd));
        for (i, fd) in fds.enumerate() {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(i as u64), epoll::EventFlags::IN)
                .map_err(io("watching the sockets"))?;
        }
        let mut attr = network.attr().clone();
        attr.name = "auto".to_owned();
        let notes_of_network = attr.notes.len();
        attr.notes.push(("local peers", note));
        let notes = near.as_ref().map(|s| &s.attr().notes[..]).unwrap_or_default();
        attr.notes.extend(notes.iter().find(|n| n.0 == "foreign memory").cloned());
        let questions = TxBatch::with_capacity(1 << 12);
        Ok(Self { network, near, attr, notes_of_network, epoll, questions, paths_by_shm: 0, paths_by_udp: 0 })
    }

    /// The network of the peers on this machine, if there is one. Its messages are taken there, and packets by
    /// [`recv`](Fabric::recv).
    #[inline(always)]
    pub fn near(&mut self) -> Option<&mut ShmFabric> {
        self.near.as_mut()
    }

    /// Opens a path for messages within [`near`](Self::near), which also closes the path. `None`: this peer gets packets,
    /// by a path of [`open_path`](Fabric::open_path). The peer comes to the same choice.
    ///
    /// # Errors
    /// The peer can't be addressed from here, or can't be reached although it expects messages.
    pub fn open_messages(&mut self, av: &AddressVector, qpn: Qpn) -> Result<Option<PathId>, PathError> {
        let (peer, local) = (av.dgid.ip(), self.attr.local);
        if peer.is_ipv4() != local.is_ipv4() {
            return Err(PathError::Family { peer, local });
        }
        let Some(near) = &mut self.near else { return Ok(None) };
        let path = near.open_messages(av, qpn)?;
        self.paths_by_shm += u64::from(path.is_some());
        Ok(path)
    }

    /// Asks peers to prove their addresses.
    #[cold]
    fn ask(&mut self, now: Instant, peer: PeerName, nonce: u64) {
        let av = AddressVector { dgid: peer.ip().into(), ..AddressVector::default() };
        let to = number_of_process(peer.slot);
        let ends = QpEnds { local: None, peer: Some(to) };
        // What does not get through is asked again.
        let Ok(path) = self.network.open_path_of(&av, ends) else { return };
        let question = question(to, number_of_process(self.attr.qpn_slot), nonce);
        if let Some(room) = self.questions.reserve(path, question.len()) {
            room.copy_from_slice(&question);
            self.questions.commit();
            self.network.send(now, &mut self.questions);
        }
        self.questions.advance(self.questions.trains().len());
        self.network.close_path(path);
    }
}

/// A question to the holder of an address, or of a slot there, from another one.
fn question(to: Qpn, from: Qpn, nonce: u64) -> Vec<u8> {
    let header = MadHeader::new(mgmt_class::PERF, CLASS_VERSION, method::GET, nonce, CLASS_PORT_INFO);
    let mut mad = [0; MadHeader::MAD_BYTES];
    mad[..MadHeader::BYTES].copy_from_slice(bytemuck::bytes_of(&header));
    let deth = Deth { qkey: Be32::new(GSI_QKEY), reserved: 0, src_qp: Be24::new(from.raw()) };
    let packet = PacketBuilder::new(SEND_ONLY, to, Psn::new(0));
    packet.deth(deth).payload(&mad).build().expect("it has the headers of its opcode")
}

/// The number in a question to this process, and its sender.
#[inline]
fn asked(to: Qpn, packet: &RxPacket<'_>) -> Option<(PeerName, u64)> {
    const DEST_QP: core::ops::Range<usize> = 5..8;
    if packet.bytes[DEST_QP] != to.raw().to_be_bytes()[1..] {
        return None;
    }
    let (slot, nonce) = parse_question(packet.bytes)?;
    Some((PeerName::new(packet.header.src, slot), nonce))
}

#[cold]
fn parse_question(bytes: &[u8]) -> Option<(Option<u8>, u64)> {
    let packet = Packet::parse(bytes).ok()?;
    let Deth { qkey, src_qp, .. } = *packet.deth()?;
    let qkey = qkey.get();
    let mad = packet.payload();
    if packet.opcode() != SEND_ONLY || qkey != GSI_QKEY || mad.len() != MadHeader::MAD_BYTES {
        return None;
    }
    let header: &MadHeader = bytemuck::from_bytes(&mad[..MadHeader::BYTES]);
    let asked =
        MadHeader::new(mgmt_class::PERF, CLASS_VERSION, method::GET, header.tid.get(), CLASS_PORT_INFO);
    let slot = process_of_number(Qpn::new(src_qp.get()));
    (*header == asked).then(|| (slot, header.tid.get()))
}

impl Fabric for AutoFabric {
    fn attr(&self) -> &FabricAttr {
        &self.attr
    }
    fn notes(&self) -> Vec<(&'static str, String)> {
        let mut notes = self.network.notes();
        notes.extend_from_slice(&self.attr.notes[self.notes_of_network..]);
        notes
    }

    fn open_path_of(&mut self, av: &AddressVector, ends: QpEnds) -> Result<PathId, PathError> {
        let path = self.network.open_path_of(av, ends)?;
        self.paths_by_udp += 1;
        Ok(path)
    }

    fn close_path(&mut self, path: PathId) {
        self.network.close_path(path);
    }

    fn send(&mut self, now: Instant, batch: &mut TxBatch) {
        self.network.send(now, batch);
    }

    fn sends_in_place_from(&self) -> Option<u32> {
        self.network.sends_in_place_from()
    }

    fn recv(&mut self, now: Instant, budget: RxBudget, sink: &mut dyn FnMut(&RxPacket<'_>)) -> RxOutcome {
        let Some(near) = &mut self.near else { return self.network.recv(now, budget, sink) };
        let (mut questions, own) = (0, number_of_process(self.attr.qpn_slot));
        let mut outcome = self.network.recv(now, budget, &mut |packet| match asked(own, packet) {
            Some((peer, nonce)) => {
                questions += 1;
                near.asked(peer, nonce);
            }
            None => sink(packet),
        });
        outcome.packets -= questions;
        while let Some((peer, nonce)) = self.near.as_mut().and_then(|near| near.question(now)) {
            self.ask(now, peer, nonce);
        }
        outcome
    }

    fn next_deadline(&self) -> Option<Instant> {
        let near = self.near.as_ref().and_then(Fabric::next_deadline);
        self.network.next_deadline().into_iter().chain(near).min()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn prepare_wait(&mut self) -> bool {
        // Each is to be prepared.
        self.network.prepare_wait() | self.near.as_mut().is_some_and(Fabric::prepare_wait)
    }

    /// Turns that look at everything find what comes by the network.
    fn renew_glance(&mut self, glance: &mut Glance) -> bool {
        match &mut self.near {
            Some(near) => near.renew_glance(glance),
            None => self.network.renew_glance(glance),
        }
    }

    fn read_traffic_class(&mut self) {
        self.network.read_traffic_class();
    }

    fn desk(&mut self) -> Option<&mut dyn ManagementDesk> {
        self.network.desk()
    }

    fn groups(&mut self) -> Option<&mut dyn MulticastGroups> {
        self.network.groups()
    }

    fn counters(&self, out: &mut Vec<Counter>) {
        out.push(Counter { name: "paths_by_shm", value: self.paths_by_shm });
        out.push(Counter { name: "paths_by_udp", value: self.paths_by_udp });
        self.network.counters(out);
        if let Some(near) = &self.near {
            near.counters_as_part(out);
        }
    }

    /// Packets are shown; messages between processes of this machine are none.
    fn set_tap(&mut self, tap: Option<Box<dyn Tap>>) {
        self.network.set_tap(tap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PacketHeader;

    #[test]
    fn a_question_is_a_management_datagram_that_only_its_number_tells_from_another() {
        let gsi = number_of_process(None);
        let bytes = question(gsi, gsi, 0x0123_4567_89ab_cdef);
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.opcode(), SEND_ONLY);
        assert_eq!(packet.bth().dest_qp(), gsi);
        assert_eq!(parse_question(&bytes), Some((None, 0x0123_4567_89ab_cdef)));
        for at in [0, 5, 12, 20, 21, 22, 23, 24, 37, 40] {
            let mut other = bytes.clone();
            other[at] ^= 0x40;
            let local: IpAddr = [127, 0, 0, 2].into();
            let (traffic_class, hop_limit, src_port) = (0, 64, 0xc000);
            let (src, dst, bytes) = (local, local, &other[..]);
            let header = PacketHeader { src, dst, src_port, traffic_class, hop_limit };
            let rx = RxPacket { header, bytes };
            assert_eq!(asked(gsi, &rx), None, "byte {at}");
        }
    }
}
