//! From trains to frames: cut into packets, sealed, sent, counted, and what becomes of those that did not leave.

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
use super::netlink::Route;
use super::sys::{self, TX_BATCH, TxHeaders};
use crate::icrc::{FlowCrc, Icrc};
use crate::paths::{FIRST_PORT, PathKey, PathTable, entropy};
use crate::udp::{Counters, Refusal};
use crate::{Direction, PathError, PathId, Tap, TapFrame, Train, TxBatch};

/// When the interface took nothing, it is asked again after this time.
const RETRY_AFTER: Duration = Duration::from_micros(100);
/// Frames up to this size are put together in one piece, which is quicker than two.
const ONE_PIECE_BYTES: usize = 1024;
/// Bytes that wait for this adapter itself at most.
const MAX_LOOPED_BYTES: usize = 8 << 20;

/// Where a path leads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Peer(PeerId),
    /// Back to this adapter.
    Itself,
}

struct RawPath {
    key: PathKey,
    to: To,
    template: Template,
    crc: FlowCrc,
    src_port: u16,
    /// IPv4 Identification of the next packet.
    next_ident: u16,
}

/// A packet to this adapter itself.
#[derive(Clone, Copy)]
pub(super) struct Looped {
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) src_port: u16,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    pub(super) ident: u16,
}

/// Packets to this adapter itself, in order.
#[derive(Default)]
pub(super) struct Loop {
    pub(super) bytes: Vec<u8>,
    pub(super) packets: VecDeque<Looped>,
}

/// A packet that is about to leave.
#[derive(Clone, Copy, Default)]
struct Leaving {
    path: Option<PathId>,
    start: usize,
    len: usize,
    head: usize,
    ident: u16,
}

/// What a send call counts and shows.
pub(super) struct Ledger<'a> {
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
    paths: PathTable<RawPath>,
    neighbours: Neighbours,
    icrc: Icrc,
    headers: Box<TxHeaders>,
    heads: Box<[[u8; MAX_HEAD_BYTES]; TX_BATCH]>,
    leaving: Box<[Leaving; TX_BATCH]>,
    piece: Box<[u8; MAX_HEAD_BYTES + ONE_PIECE_BYTES]>,
    pub(super) looped: Loop,
    /// When packets that the interface did not take are to be sent again.
    retry_at: Option<Instant>,
    /// The interface is gone or down, by its own account.
    pub(super) interface_lost: bool,
}

impl Sender {
    pub(super) fn new(socket: Socket, source: Source, neighbours: Neighbours) -> Self {
        Self {
            socket,
            source,
            paths: PathTable::new(),
            neighbours,
            icrc: Icrc::new(),
            headers: TxHeaders::new(),
            heads: Box::new([[0; MAX_HEAD_BYTES]; TX_BATCH]),
            leaving: Box::new([Leaving::default(); TX_BATCH]),
            piece: Box::new([0; MAX_HEAD_BYTES + ONE_PIECE_BYTES]),
            looped: Loop::default(),
            retry_at: None,
            interface_lost: false,
        }
    }

    pub(super) fn open_path(&mut self, av: &AddressVector) -> Result<PathId, PathError> {
        let local = self.source.local;
        let key = PathKey::new(local, av)?;
        if let Some(id) = self.paths.find(&key)? {
            return Ok(id);
        }
        let to = if key.peer == local { To::Itself } else { To::Peer(self.open_peer(key.peer)?) };
        let src_port = FIRST_PORT | entropy(local, key.peer, key.flow_label) & !FIRST_PORT;
        let crc = match self.source.version {
            RoceVersion::V1 => FlowCrc::grh(local.into(), key.peer.into()),
            RoceVersion::V2 => FlowCrc::new(local, key.peer, src_port).expect("families were compared"),
        };
        let src_port = if self.source.version == RoceVersion::V1 { 0 } else { src_port };
        let template = Template::new(&self.source, &key, src_port);
        let next_ident = entropy(key.peer, local, u32::from(src_port) << 4 | 1).rotate_left(5);
        Ok(self.paths.insert(key, RawPath { key, to, template, crc, src_port, next_ident }))
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
        if let Some(RawPath { to: To::Peer(peer), .. }) = self.paths.close(id) {
            raw.tx_lost_unresolved += self.neighbours.close(peer) as u64;
        }
    }

    /// When there is something to do though nothing arrives.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        [self.retry_at, self.neighbours.next_look()].into_iter().flatten().min()
    }

    /// Sends all waiting trains that the interface takes.
    #[inline]
    pub(super) fn send(&mut self, batch: &mut TxBatch, ledger: &mut Ledger<'_>) {
        self.retry_at = None;
        if self.neighbours.next_look().is_some() {
            self.send_due(ledger);
        }
        while !batch.is_empty() {
            if !self.step(batch, ledger) {
                ledger.counters.tx_blocked += 1;
                self.retry_at = Some(ledger.now + RETRY_AFTER);
                return;
            }
        }
    }

    /// Sends packets that waited for their peer's address and have it now.
    #[cold]
    pub(super) fn send_due(&mut self, ledger: &mut Ledger<'_>) {
        while let Some((peer, mac, packet)) = self.neighbours.due(ledger.now, ledger.guard, ledger.raw) {
            let Some(path) = self.paths.get(packet.0) else {
                ledger.counters.tx_lost_closed += 1;
                continue;
            };
            let head = path.template.write(&mac, packet.1, &packet.2, &mut self.heads[0]);
            let pieces = std::iter::once((&self.heads[0][..head], &packet.2[..]));
            ledger.counters.send_calls += 1;
            match self.headers.send(&self.socket, pieces) {
                Ok(_) => self.account(packet.0, packet.1, &packet.2, ledger),
                Err(e) if matches!(Refusal::of(&e), Refusal::Blocked | Refusal::Interrupted) => {
                    self.neighbours.put_back(peer, packet, ledger.now + RETRY_AFTER);
                    return;
                }
                Err(e) => self.lost(&e, 1, ledger),
            }
        }
    }

    /// Sends the oldest packets by one call, or does what else is due with the oldest train; `false` if the
    /// interface takes nothing now.
    #[inline]
    fn step(&mut self, batch: &mut TxBatch, ledger: &mut Ledger<'_>) -> bool {
        let count = self.gather(batch, ledger);
        if count == 0 {
            return true;
        }
        loop {
            ledger.counters.send_calls += 1;
            let sent = match self.call(count, batch) {
                Ok(sent) => sent,
                Err(e) => match Refusal::of(&e) {
                    Refusal::Interrupted => continue,
                    Refusal::Blocked => {
                        self.take_flips_back(0, count, batch);
                        return false;
                    }
                    _ => {
                        self.take_flips_back(1, count, batch);
                        self.lost(&e, 1, ledger);
                        advance(batch, 1);
                        return true;
                    }
                },
            };
            self.take_flips_back(sent, count, batch);
            ledger.counters.tx_trains += 1;
            for i in 0..sent {
                let Leaving { path, start, len, ident, .. } = self.leaving[i];
                self.account(path.expect("gathered"), ident, batch.bytes(&single(start, len)), ledger);
            }
            advance(batch, sent);
            return true;
        }
    }

    /// Seals the oldest packets as far as they can leave, and builds their headers. If the oldest train can't
    /// leave at all, it is done with and there are none.
    #[inline]
    fn gather(&mut self, batch: &mut TxBatch, ledger: &mut Ledger<'_>) -> usize {
        let (mut count, mut at) = (0, 0);
        while let Some(&train) = batch.trains().get(at) {
            let Some(path) = self.paths.get(train.path) else {
                if at == 0 {
                    ledger.counters.tx_lost_closed += train.packets() as u64;
                    batch.advance(1);
                }
                break;
            };
            let way = match path.to {
                To::Peer(peer) => self.neighbours.way(ledger.now, peer, ledger.guard, ledger.raw),
                To::Itself => Way::Wait,
            };
            let Way::Known(mac) = way else {
                if at == 0 {
                    self.keep(matches!(way, Way::Wait), train, batch, ledger);
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

    /// Seals packets of a train and builds their headers, until there are [`TX_BATCH`].
    #[inline]
    fn seal(&mut self, mut count: usize, train: Train, mac: &Mac, batch: &mut TxBatch) -> usize {
        let path = self.paths.get_mut(train.path).expect("the caller looked");
        let most = (TX_BATCH - count) * train.segment;
        let part = Train { len: train.len.min(most), ..train };
        let flips = batch.flip_within(part.start..part.start + part.len).is_some();
        let mut start = part.start;
        self.icrc.seal(&path.crc, path.next_ident, train.segment, batch.bytes_mut(&part));
        for packet in batch.bytes(&part).chunks(train.segment) {
            let ident = path.next_ident;
            path.next_ident = ident.wrapping_add(1);
            let head = path.template.write(mac, ident, packet, &mut self.heads[count]);
            self.leaving[count] = Leaving { path: Some(train.path), start, len: packet.len(), head, ident };
            start += packet.len();
            count += 1;
        }
        if flips {
            batch.apply_flips(&part);
        }
        count
    }

    /// Sends what was gathered, and says how many packets left.
    #[inline]
    fn call(&mut self, count: usize, batch: &TxBatch) -> io::Result<usize> {
        let Leaving { start, len, head, .. } = self.leaving[0];
        if count == 1 && len <= ONE_PIECE_BYTES {
            self.piece[..head].copy_from_slice(&self.heads[0][..head]);
            self.piece[head..head + len].copy_from_slice(batch.bytes(&single(start, len)));
            return sys::send_one(&self.socket, &self.piece[..head + len]).map(|()| 1);
        }
        let pieces = self.leaving[..count].iter().zip(self.heads.iter());
        let pieces = pieces.map(|(l, head)| (&head[..l.head], batch.bytes(&single(l.start, l.len))));
        self.headers.send(&self.socket, pieces)
    }

    /// Takes the flips in gathered packets back that did not leave.
    #[inline]
    fn take_flips_back(&self, from: usize, to: usize, batch: &mut TxBatch) {
        for l in &self.leaving[from..to] {
            batch.apply_flips(&single(l.start, l.len));
        }
    }

    /// A train that does not go out now: it waits for its peer's address, loops back to this adapter, or is lost.
    #[cold]
    fn keep(&mut self, keep: bool, train: Train, batch: &mut TxBatch, ledger: &mut Ledger<'_>) {
        let path = self.paths.get_mut(train.path).expect("the caller looked");
        if !keep {
            ledger.raw.tx_lost_unresolved += train.packets() as u64;
            return;
        }
        let first = path.next_ident;
        self.icrc.seal(&path.crc, first, train.segment, batch.bytes_mut(&train));
        path.next_ident = first.wrapping_add(train.packets() as u16);
        batch.apply_flips(&train);
        let to = path.to;
        for (k, packet) in batch.bytes(&train).chunks(train.segment).enumerate() {
            let ident = first.wrapping_add(k as u16);
            match to {
                To::Peer(peer) => {
                    ledger.raw.tx_waited += 1;
                    self.neighbours.wait(peer, (train.path, ident, packet.into()));
                }
                To::Itself => self.loop_back(train.path, ident, packet, ledger),
            }
        }
    }

    fn loop_back(&mut self, id: PathId, ident: u16, packet: &[u8], ledger: &mut Ledger<'_>) {
        let start = self.looped.bytes.len();
        if start + packet.len() > MAX_LOOPED_BYTES {
            ledger.counters.tx_lost_no_buffers += 1;
            return;
        }
        let path = self.paths.get(id).expect("the caller looked");
        let (src_port, traffic_class, hop_limit) =
            (path.src_port, path.key.traffic_class, path.key.hop_limit);
        let len = packet.len();
        self.looped.packets.push_back(Looped { start, len, src_port, traffic_class, hop_limit, ident });
        self.looped.bytes.extend_from_slice(packet);
        ledger.raw.looped_packets += 1;
        self.account(id, ident, packet, ledger);
    }

    /// Counts a packet that left, and shows it to the tap.
    #[inline]
    fn account(&self, id: PathId, ident: u16, payload: &[u8], ledger: &mut Ledger<'_>) {
        ledger.counters.tx_packets += 1;
        ledger.counters.tx_bytes += payload.len() as u64;
        if let Some(tap) = ledger.tap
            && let Some(path) = self.paths.get(id)
        {
            let frame = TapFrame {
                direction: Direction::Tx,
                src: self.source.local,
                dst: path.key.peer,
                src_port: path.src_port,
                traffic_class: path.key.traffic_class,
                hop_limit: path.key.hop_limit,
                ident,
                payload,
            };
            tap.frame(ledger.now, &frame);
        }
    }

    /// Counts packets that were refused for good.
    #[cold]
    fn lost(&mut self, error: &io::Error, packets: u64, ledger: &mut Ledger<'_>) {
        match error.raw_os_error() {
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                ledger.raw.tx_lost_interface += packets;
                self.interface_lost = true;
            }
            Some(libc::ENOBUFS | libc::ENOMEM) => ledger.counters.tx_lost_no_buffers += packets,
            _ => ledger.counters.tx_lost_other += packets,
        }
    }
}

/// One packet of a batch, as a train of its own.
#[inline]
fn single(start: usize, len: usize) -> Train {
    Train { path: PathId(0), start, len, segment: len }
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
