//! Sending: trains are cut into packets, sealed with ICRCs, sent as frames and counted; frames that did not leave are
//! kept or dropped.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use hca_core::{AddressVector, Instant};
use socket2::Socket;

use super::RoceVersion;
use super::counters::RawCounters;
use super::frame::{MAX_HEAD_BYTES, Mac, Source, Template};
use super::neighbours::{Neighbours, PeerId, Way};
use super::sys::{self, TX_BATCH, TxHeaders, VNET_BYTES};
use crate::icrc::{FlowCrc, Icrc};
use crate::netlink::Route;
use crate::paths::{FIRST_PORT, PathKey, PathTable, Ports, Process, chance};
use crate::udp::{Counters, Refusal};
use crate::{Direction, PacketHeader, PathError, PathId, QpEnds, Tap, TapFrame, Train, TxBatch};

/// When the interface took nothing, it is asked again after this time.
const RETRY_AFTER: Duration = Duration::from_micros(100);
/// Frames up to this size are put together in one piece, which is quicker than two.
const ONE_PIECE_BYTES: usize = 1024;
/// Once the interface refused a frame of several packets, packets leave one by one for so long: an interface that takes
/// such frames may have had no room just then. Each further refusal doubles the time, up to the second, as of an
/// interface that takes none.
const CUT_FOR: Duration = Duration::from_millis(1);
const CUT_FOR_LONG: Duration = Duration::from_secs(1);
/// Room in front of a payload.
const ROOM: usize = VNET_BYTES + MAX_HEAD_BYTES;
/// Bytes that wait for this adapter itself at most, with those that were taken since: of these, half of it at most.
const MAX_LOOPED_BYTES: usize = 8 << 20;

/// Where a path leads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Peer(PeerId),
    /// Back to this adapter.
    Itself,
    /// A multicast group, at its hardware address.
    Group(Mac),
}

struct RawPath {
    key: PathKey,
    to: To,
    template: Template,
    crc: FlowCrc,
    src_port: u16,
    /// IPv4 Identification of the next packet.
    next_ident: u16,
    /// Identifications are counted; else each frame begins with 0, as no receiver gets all that have this source port.
    counts: bool,
}

impl RawPath {
    /// Identification of a packet that leaves by a frame of its own behind so many others.
    #[inline]
    fn ident(&self, ahead: usize) -> u16 {
        if self.counts { self.next_ident.wrapping_add(ahead as u16) } else { self.next_ident }
    }
}

/// A packet to this adapter itself.
#[derive(Clone, Copy)]
pub(super) struct Looped {
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) header: PacketHeader,
    pub(super) ident: u16,
}

/// Packets to this adapter itself, in order.
#[derive(Default)]
pub(super) struct Loop {
    pub(super) bytes: Vec<u8>,
    pub(super) packets: VecDeque<Looped>,
}

impl Loop {
    /// Where a packet of so many bytes has room behind the others; `None`: too many wait.
    fn room(&mut self, len: usize) -> Option<usize> {
        if self.bytes.len() + len > MAX_LOOPED_BYTES {
            let taken = self.packets.front().map_or(self.bytes.len(), |oldest| oldest.start);
            // Packets are moved once as many bytes were taken.
            if taken < MAX_LOOPED_BYTES / 2 {
                return None;
            }
            self.bytes.drain(..taken);
            self.packets.iter_mut().for_each(|packet| packet.start -= taken);
        }
        Some(self.bytes.len())
    }
}

/// A frame that is about to leave.
#[derive(Clone, Copy, Default)]
struct Leaving {
    path: Option<PathId>,
    start: usize,
    len: usize,
    /// Bytes of each packet in it but the last.
    segment: usize,
    /// Where in its room the head ends.
    head: usize,
    /// Of the first packet.
    ident: u16,
}

impl Leaving {
    /// What of the batch it carries.
    #[inline]
    fn train(&self) -> Train {
        Train { path: PathId(0), start: self.start, len: self.len, segment: self.segment }
    }
}

/// What a send call counts and shows.
pub(super) struct Account<'a> {
    pub(super) now: Instant,
    pub(super) counters: &'a mut Counters,
    pub(super) raw: &'a mut RawCounters,
    pub(super) tap: &'a mut Option<Box<dyn Tap>>,
    /// Holds the address; datagrams that make the kernel find out a neighbour leave by it.
    pub(super) guard: &'a UdpSocket,
}

/// What a send call works with.
pub(super) struct Sender {
    socket: Socket,
    source: Source,
    paths: PathTable<PathKey, RawPath>,
    ports: Ports,
    neighbours: Neighbours,
    /// Other processes have the same address.
    shares: bool,
    /// Open paths back to the own address.
    paths_to_itself: usize,
    icrc: Icrc,
    headers: Box<TxHeaders>,
    /// The head of each frame: a `virtio_net_hdr`, of zeros but for super-frames, and the headers.
    heads: Box<[[u8; ROOM]; TX_BATCH]>,
    /// Where heads begin: the `virtio_net_hdr` is left out where the system does not take it.
    heads_from: usize,
    /// Packets and bytes in one frame at most.
    uncut: (usize, usize),
    leaving: Box<[Leaving; TX_BATCH]>,
    piece: Box<[u8; ROOM + ONE_PIECE_BYTES]>,
    /// Since a super-frame was refused: until when packets leave one by one.
    cut_until: Option<Instant>,
    /// For how long it is after the next refusal.
    cut_for: Duration,
    pub(super) looped: Loop,
    /// The multicast groups that this adapter has joined.
    pub(super) joined: Vec<IpAddr>,
    /// When packets that the interface did not take are to be sent again.
    retry_at: Option<Instant>,
    /// The interface is gone or down, by its own account.
    pub(super) interface_lost: bool,
}

impl Sender {
    /// A sender on a socket that takes a `virtio_net_hdr` in front of each frame and so many packets and bytes in one,
    /// or knows neither. Other processes have the same address if `shares` is set.
    pub(super) fn new(
        socket: Socket,
        source: Source,
        neighbours: Neighbours,
        uncut: Option<(usize, usize)>,
        shares: bool,
    ) -> Self {
        Self {
            socket,
            source,
            paths: PathTable::new(),
            ports: Ports::new(),
            neighbours,
            shares,
            paths_to_itself: 0,
            icrc: Icrc::new(),
            headers: TxHeaders::new(),
            heads: Box::new([[0; ROOM]; TX_BATCH]),
            heads_from: if uncut.is_some() { 0 } else { VNET_BYTES },
            uncut: uncut.unwrap_or((1, 0)),
            leaving: Box::new([Leaving::default(); TX_BATCH]),
            piece: Box::new([0; ROOM + ONE_PIECE_BYTES]),
            cut_until: None,
            cut_for: CUT_FOR,
            looped: Loop::default(),
            joined: Vec::new(),
            retry_at: None,
            interface_lost: false,
        }
    }

    pub(super) fn open_path(&mut self, av: &AddressVector, ends: QpEnds) -> Result<PathId, PathError> {
        let local = self.source.local;
        // On RoCEv1 a group's GID is not made of its IPv4 address; processes that share an address have no groups.
        let has_groups = self.source.version == RoceVersion::V2 && !self.shares;
        if !has_groups {
            PathError::unless_unicast(av.dgid.ip())?;
        }
        // RoCEv1 has no ports.
        let ends = if self.source.version == RoceVersion::V2 { ends } else { QpEnds::default() };
        let key = PathKey::new(local, av, ends)?;
        if let Some(id) = self.paths.find(&key)? {
            return Ok(id);
        }
        let to = match key.peer {
            group if group.is_multicast() => {
                To::Group(if self.neighbours.is_bare() { [0; 6] } else { mac_of_group(group) })
            }
            peer => {
                // Frames on the loopback interface come back, to the process that they are for.
                let is_itself = peer == local && !(self.shares && self.neighbours.is_bare());
                if is_itself { To::Itself } else { To::Peer(self.open_peer(peer)?) }
            }
        };
        let src_port = FIRST_PORT | self.ports.entropy(&key) & !FIRST_PORT;
        let crc = match self.source.version {
            RoceVersion::V1 => FlowCrc::grh(local.into(), key.peer.into()),
            RoceVersion::V2 => FlowCrc::new(local, key.peer, src_port).expect("families were compared"),
        };
        let src_port = if self.source.version == RoceVersion::V1 { 0 } else { src_port };
        let template = Template::new(&self.source, &key, src_port);
        let counts = !self.shares && matches!(key.process, Process::Slot(_));
        let next_ident = if counts { chance() as u16 } else { 0 };
        self.paths_to_itself += usize::from(to == To::Itself);
        Ok(self.paths.insert(key, RawPath { key, to, template, crc, src_port, next_ident, counts }))
    }

    /// Whether a path leads back to the own address.
    pub(super) fn reaches_itself(&self) -> bool {
        self.paths_to_itself > 0
    }

    /// The peer of a new path; an address of this machine can't be one, unless the interface is the loopback.
    fn open_peer(&mut self, peer: IpAddr) -> Result<PeerId, PathError> {
        let doing = "asking the kernel for the route to the peer";
        let route = self.neighbours.route(peer).map_err(|source| PathError::Io { doing, source })?;
        if route == Route::Local && !self.neighbours.is_bare() {
            return Err(PathError::SameMachine { peer, local: self.source.local });
        }
        Ok(self.neighbours.open(peer))
    }

    pub(super) fn close_path(&mut self, id: PathId, raw: &mut RawCounters) {
        match self.paths.close(id).map(|path| path.to) {
            Some(To::Peer(peer)) => raw.tx_lost_unresolved += self.neighbours.close(peer) as u64,
            Some(To::Itself) => self.paths_to_itself -= 1,
            None | Some(To::Group(_)) => {}
        }
    }

    /// When there is something to do though nothing arrives.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        [self.retry_at, self.neighbours.next_look()].into_iter().flatten().min()
    }

    /// Sends all waiting trains that the interface takes.
    #[inline]
    pub(super) fn send(&mut self, batch: &mut TxBatch, account: &mut Account<'_>) {
        self.retry_at = None;
        if self.neighbours.next_look().is_some() {
            self.send_due(account);
        }
        while !batch.is_empty() {
            if !self.step(batch, account) {
                account.counters.tx_blocked += 1;
                self.retry_at = Some(account.now + RETRY_AFTER);
                return;
            }
        }
    }

    /// Sends packets that waited for their peer's address and have it now.
    #[cold]
    pub(super) fn send_due(&mut self, account: &mut Account<'_>) {
        while let Some((peer, mac, packet)) = self.neighbours.due(account.now, account.guard, account.raw) {
            let Some(path) = self.paths.get(packet.0) else {
                account.counters.tx_lost_closed += 1;
                continue;
            };
            let head = write_head(&path.template, &mac, packet.1, &packet.2, &mut self.heads[0]);
            let pieces = std::iter::once((&self.heads[0][self.heads_from..head], &packet.2[..]));
            account.counters.send_calls += 1;
            match self.headers.send(&self.socket, pieces) {
                Ok(_) => self.account(packet.0, packet.1, &packet.2, account),
                Err(e) if matches!(Refusal::of(&e), Refusal::Blocked | Refusal::Interrupted) => {
                    self.neighbours.put_back(peer, packet, account.now + RETRY_AFTER);
                    return;
                }
                Err(e) => self.lost(&e, 1, account),
            }
        }
    }

    /// Sends the oldest packets by one call, or does what else is due with the oldest train; `false` if the
    /// interface takes nothing now.
    #[inline]
    fn step(&mut self, batch: &mut TxBatch, account: &mut Account<'_>) -> bool {
        let count = self.gather(batch, account);
        if count == 0 {
            return true;
        }
        loop {
            account.counters.send_calls += 1;
            let sent = match self.call(count, batch) {
                Ok(sent) => sent,
                Err(e) => match Refusal::of(&e) {
                    Refusal::Interrupted => continue,
                    Refusal::Blocked => {
                        self.take_back(0, count, batch);
                        return false;
                    }
                    _ if self.leaving[0].train().packets() > 1 && refuses_uncut(&e) => {
                        self.take_back(0, count, batch);
                        self.cut_until = Some(account.now + self.cut_for);
                        self.cut_for = (2 * self.cut_for).min(CUT_FOR_LONG);
                        account.raw.tx_superframes_refused += 1;
                        return true;
                    }
                    _ => {
                        self.take_back(1, count, batch);
                        let packets = self.leaving[0].train().packets();
                        self.lost(&e, packets as u64, account);
                        advance(batch, packets);
                        return true;
                    }
                },
            };
            self.take_back(sent, count, batch);
            account.counters.tx_trains += 1;
            let mut packets = 0;
            for i in 0..sent {
                let leaving = self.leaving[i];
                let before = packets;
                for packet in batch.bytes(&leaving.train()).chunks(leaving.segment) {
                    let ident = leaving.ident.wrapping_add((packets - before) as u16);
                    let path = leaving.path.expect("gathered");
                    self.account(path, ident, packet, account);
                    if !self.joined.is_empty() {
                        self.loop_to_group(path, ident, packet, account);
                    }
                    packets += 1;
                }
                if packets - before > 1 {
                    account.raw.tx_superframes += 1;
                    self.cut_for = CUT_FOR;
                }
            }
            advance(batch, packets);
            return true;
        }
    }

    /// Seals the oldest packets as far as they can leave, and builds their headers. If the oldest train can't
    /// leave at all, it is done with and there are none.
    #[inline]
    fn gather(&mut self, batch: &mut TxBatch, account: &mut Account<'_>) -> usize {
        let (mut count, mut at) = (0, 0);
        if self.cut_until.is_some_and(|until| until <= account.now) {
            self.cut_until = None;
        }
        while let Some(&train) = batch.trains().get(at) {
            let Some(path) = self.paths.get(train.path) else {
                if at == 0 {
                    account.counters.tx_lost_closed += train.packets() as u64;
                    batch.advance(1);
                }
                break;
            };
            let way = match path.to {
                To::Peer(peer) => self.neighbours.way(account.now, peer, account.guard, account.raw),
                To::Itself => Way::Wait,
                To::Group(mac) => Way::Known(mac),
            };
            let Way::Known(mac) = way else {
                if at == 0 {
                    self.keep(matches!(way, Way::Wait), train, batch, account);
                    batch.advance(1);
                }
                break;
            };
            count = self.seal(count, train, &mac, batch);
            if count == TX_BATCH {
                break;
            }
            at += 1;
        }
        count
    }

    /// Seals packets of a train and builds the heads of their frames, until there are [`TX_BATCH`].
    #[inline]
    fn seal(&mut self, mut count: usize, train: Train, mac: &Mac, batch: &mut TxBatch) -> usize {
        let path = self.paths.get_mut(train.path).expect("the caller looked");
        let segment = train.segment;
        let together = match self.uncut {
            (packets, bytes) if self.cut_until.is_none() && path.template.may_leave_uncut() => {
                packets.min(bytes.saturating_sub(MAX_HEAD_BYTES) / segment).max(1)
            }
            _ => 1,
        };
        let most = (TX_BATCH - count) * together * segment;
        let part = Train { len: train.len.min(most), ..train };
        let (mut start, end) = (part.start, part.start + part.len);
        let flips = batch.flip_within(start..end).is_some();
        let all_at_once = together == 1 && path.counts;
        if all_at_once {
            self.icrc.seal(&path.crc, path.next_ident, segment, batch.bytes_mut(&part));
        }
        while start < end {
            let (ident, room) = (path.next_ident, &mut self.heads[count]);
            let len = (end - start).min(together * segment);
            let mut leaving = Leaving { path: Some(train.path), start, len, segment, head: 0, ident };
            if !all_at_once {
                self.icrc.seal(&path.crc, ident, segment, batch.bytes_mut(&leaving.train()));
            }
            leaving.head = if len <= segment {
                write_head(&path.template, mac, ident, batch.bytes(&leaving.train()), room)
            } else {
                let headers = room.last_chunk_mut().expect("the room ends with the headers'");
                let (head, vnet) = path.template.write_uncut(mac, ident, (len, segment), headers);
                room[..VNET_BYTES].copy_from_slice(&vnet);
                VNET_BYTES + head
            };
            self.leaving[count] = leaving;
            // As the kernel counts for a UDP socket, whose receivers predict it: one a frame.
            path.next_ident = path.ident(1);
            start += len;
            count += 1;
        }
        if flips {
            batch.apply_flips(&part);
        }
        count
    }

    /// Sends what was gathered, and says how many frames left.
    #[inline]
    fn call(&mut self, count: usize, batch: &TxBatch) -> io::Result<usize> {
        let Leaving { len, head, .. } = self.leaving[0];
        let from = self.heads_from;
        if count == 1 && len <= ONE_PIECE_BYTES {
            let head = head - from;
            self.piece[..head].copy_from_slice(&self.heads[0][from..from + head]);
            self.piece[head..head + len].copy_from_slice(batch.bytes(&self.leaving[0].train()));
            return sys::send_one(&self.socket, &self.piece[..head + len]).map(|()| 1);
        }
        let pieces = self.leaving[..count].iter().zip(self.heads.iter());
        let pieces = pieces.map(|(l, head)| (&head[from..l.head], batch.bytes(&l.train())));
        self.headers.send(&self.socket, pieces)
    }

    /// Takes the Identifications and the flips of gathered frames back that did not leave.
    #[inline]
    fn take_back(&mut self, from: usize, to: usize, batch: &mut TxBatch) {
        for l in self.leaving[from..to].iter().rev() {
            batch.apply_flips(&l.train());
            if let Some(path) = self.paths.get_mut(l.path.expect("gathered")) {
                path.next_ident = l.ident;
            }
        }
    }

    /// A train that does not go out now: it waits for its peer's address, loops back to this adapter, or is lost.
    #[cold]
    fn keep(&mut self, keep: bool, train: Train, batch: &mut TxBatch, account: &mut Account<'_>) {
        let path = self.paths.get_mut(train.path).expect("the caller looked");
        if !keep {
            account.raw.tx_lost_unresolved += train.packets() as u64;
            return;
        }
        for (k, packet) in batch.bytes_mut(&train).chunks_mut(train.segment).enumerate() {
            self.icrc.seal(&path.crc, path.ident(k), packet.len(), packet);
        }
        batch.apply_flips(&train);
        let (to, counts, first) = (path.to, path.counts, path.next_ident);
        path.next_ident = path.ident(train.packets());
        for (k, packet) in batch.bytes(&train).chunks(train.segment).enumerate() {
            let ident = if counts { first.wrapping_add(k as u16) } else { first };
            match to {
                To::Peer(peer) => {
                    account.raw.tx_waited += 1;
                    self.neighbours.wait(peer, (train.path, ident, packet.into()));
                }
                To::Itself => {
                    self.loop_back(train.path, ident, packet, account);
                    self.account(train.path, ident, packet, account);
                }
                To::Group(_) => unreachable!("what goes to a group need not wait"),
            }
        }
    }

    /// Loops a packet to a group that this adapter has joined back to it: the interface does not return its own frames.
    #[cold]
    fn loop_to_group(&mut self, id: PathId, ident: u16, packet: &[u8], account: &mut Account<'_>) {
        let group =
            self.paths.get(id).filter(|path| matches!(path.to, To::Group(_))).map(|path| path.key.peer);
        if group.is_some_and(|group| self.joined.contains(&group)) && !self.neighbours.is_bare() {
            self.loop_back(id, ident, packet, account);
        }
    }

    fn loop_back(&mut self, id: PathId, ident: u16, packet: &[u8], account: &mut Account<'_>) {
        let Some(start) = self.looped.room(packet.len()) else {
            account.counters.tx_lost_no_buffers += 1;
            return;
        };
        let header = self.header(id).expect("the caller looked");
        self.looped.packets.push_back(Looped { start, len: packet.len(), header, ident });
        self.looped.bytes.extend_from_slice(packet);
        account.raw.looped_packets += 1;
    }

    /// Counts a packet that left, and shows it to the tap.
    #[inline]
    fn account(&self, id: PathId, ident: u16, payload: &[u8], account: &mut Account<'_>) {
        account.counters.tx_packets += 1;
        account.counters.tx_bytes += payload.len() as u64;
        if let Some(tap) = account.tap
            && let Some(header) = self.header(id)
        {
            let (direction, version) = (Direction::Tx, self.source.version);
            tap.frame(account.now, &TapFrame { direction, version, header, ident, payload });
        }
    }
    /// The headers of a path's packets.
    fn header(&self, id: PathId) -> Option<PacketHeader> {
        let path = self.paths.get(id)?;
        Some(PacketHeader {
            src: self.source.local,
            dst: path.key.peer,
            src_port: path.src_port,
            traffic_class: path.key.traffic_class,
            hop_limit: path.key.hop_limit,
        })
    }

    /// Counts packets that were refused for good.
    #[cold]
    fn lost(&mut self, error: &io::Error, packets: u64, account: &mut Account<'_>) {
        match error.raw_os_error() {
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                account.raw.tx_lost_interface += packets;
                self.interface_lost = true;
            }
            Some(libc::ENOBUFS | libc::ENOMEM) => account.counters.tx_lost_no_buffers += packets,
            _ => account.counters.tx_lost_other += packets,
        }
    }
}

/// The hardware address of a multicast group (RFC 1112 section 6.4, RFC 2464 section 7).
fn mac_of_group(group: IpAddr) -> Mac {
    match group {
        IpAddr::V4(group) => {
            let [_, b, c, d] = group.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(group) => {
            let [.., a, b, c, d] = group.octets();
            [0x33, 0x33, a, b, c, d]
        }
    }
}

/// Writes the head of a frame of one packet, behind a `virtio_net_hdr` of zeros, and says where it ends.
#[inline]
fn write_head(template: &Template, mac: &Mac, ident: u16, packet: &[u8], room: &mut [u8; ROOM]) -> usize {
    let (vnet, headers) = room.split_first_chunk_mut::<VNET_BYTES>().expect("the room begins with it");
    *vnet = [0; VNET_BYTES];
    let headers = headers.first_chunk_mut().expect("the room ends with the headers'");
    VNET_BYTES + template.write(mac, ident, packet, headers)
}

/// Whether the interface, or the system, takes no frames of several packets. A device that can't cut them
/// itself has them dropped where the queueing discipline is passed by, which shows as want of buffers.
#[cold]
fn refuses_uncut(error: &io::Error) -> bool {
    let known =
        [libc::ENOBUFS, libc::EINVAL, libc::EMSGSIZE, libc::EOPNOTSUPP, libc::EPROTONOSUPPORT, libc::EIO];
    error.raw_os_error().is_some_and(|e| known.contains(&e))
}

/// The oldest packets left, or are lost.
#[inline]
fn advance(batch: &mut TxBatch, mut packets: usize) {
    while packets > 0 {
        let first = batch.trains()[0].packets();
        if packets < first {
            batch.advance_packets(packets);
            return;
        }
        batch.advance(1);
        packets -= first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_this_adapter_itself_has_the_room_of_what_was_taken() {
        let dst = IpAddr::from([127, 0, 0, 1]);
        let header = PacketHeader { src: dst, dst, src_port: 0, traffic_class: 0, hop_limit: 0 };
        let packet = |start, len| Looped { start, len, header, ident: 0 };
        let (mut queue, len) = (Loop::default(), 4096);
        let put = |queue: &mut Loop, n: usize| {
            let Some(start) = queue.room(len) else { return false };
            queue.packets.push_back(packet(start, len));
            queue.bytes.extend(std::iter::repeat_n(n as u8, len));
            true
        };
        // The queue is never empty while eight times the limit go through it.
        assert!(put(&mut queue, 0) && put(&mut queue, 1));
        for n in 2..8 * MAX_LOOPED_BYTES / len {
            assert!(put(&mut queue, n), "packet {n}");
            let taken = queue.packets.pop_front().unwrap();
            assert_eq!(queue.bytes[taken.start..][..len], vec![(n - 2) as u8; len]);
        }
        let more = (0..).take_while(|_| put(&mut queue, 7)).count() * len;
        assert!((MAX_LOOPED_BYTES / 2 - 2 * len..=MAX_LOOPED_BYTES).contains(&more), "{more}");
        assert!(queue.bytes.len() <= MAX_LOOPED_BYTES);
    }

    #[test]
    fn groups_have_the_hardware_addresses_that_ip_gives_them() {
        for (group, mac) in [
            ("239.1.2.3", [0x01, 0x00, 0x5e, 1, 2, 3]),
            ("239.129.2.3", [0x01, 0x00, 0x5e, 1, 2, 3]),
            ("ff0e::1:2:3ff", [0x33, 0x33, 0, 2, 3, 0xff]),
        ] {
            assert_eq!(mac_of_group(group.parse().unwrap()), mac, "{group}");
        }
    }
}
