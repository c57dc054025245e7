//! Connecting and disconnecting adapters. No call waits: each socket is read when the kernel reports it readable, and a
//! peer that does not answer in time is dropped.
//!
//! ```text
//! connects  Hello, its memory  ───►   checks user, version, memory; maps it
//! maps      ◄───  Welcome, its memory
//! ```
//!
//! If both sides connect to each other at once, the connection from the lower address stays. On addresses of the
//! network each side then proves its address ([`proof`](super::proof)).

use core::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use hca_core::Instant;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::bell::{BITS, Caller, PAGE_BYTES};
use super::board::BOARD_BYTES;
use super::fabric::ShmFabric;
use super::grants::{MAX_NOTICES, PeerSide};
use super::hello;
use super::hello::{DESCRIPTORS, Greeting, Kind, Received};
use super::link::{Link, MAX_LINKS, Stage, send_notice};
use super::meetings::{LISTEN_AGAIN, LISTENER, Lingering, Pending};
use super::memory::{MemoryFault, Sealed, Segment, Window, Writers, create};
use super::peer::PeerName;
use super::ring::{Consumer, Producer, outbox_bytes};
use super::rounds::TICK;
use super::socket::Socket;
use crate::PathError;

/// In the kernel's name for a connection whose other end has not said hello.
const PENDING: u64 = 1 << 63;
/// Connections without a hello at most; later ones wait for being accepted.
const MAX_PENDING: usize = 64;
/// Of these, the connections of one other user at most.
const MAX_PENDING_OF_USER: usize = 16;
/// Connections accepted in one go.
const ACCEPTS: usize = 16;
/// What the kernel is asked for in one go.
const EVENTS: usize = 64;
/// Messages taken from a socket in one go.
const MESSAGES: usize = 16;
/// The time to say hello in, or to come over the connection that was announced.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the sockets are looked at each turn since a greeting has begun.
const EAGERNESS: Duration = Duration::from_millis(20);
/// When the socket file of a peer that is gone is looked at again, and the longest pause between two looks, each of
/// which is [`LONGER`] times the one before.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
const LONGER: u32 = 4;
const LAST_LOOK: Duration = Duration::from_secs(16);
/// Such files at most.
const MAX_LINGERING: usize = 1024;
/// Bytes of rings, of theirs and of ours to them, that all peers of another user may have.
pub(super) const MAX_BYTES_OF_USER: usize = if cfg!(test) { 8 << 20 } else { 1 << 30 };
/// Addresses of adapters that are remembered for having written garbage.
const MAX_BANNED: usize = 4096;

/// A peer's memory, mapped.
struct PeerMemory {
    outbox: Window,
    bits: Segment,
    board: Window,
}

/// The reason why a peer is not taken.
#[derive(Debug, thiserror::Error)]
enum Unwanted {
    #[error("{0}")]
    Memory(#[from] MemoryFault),
    #[error("the peer claims the address {0}, which is not the address of its socket")]
    Address(PeerName),
    #[error("{MAX_LINKS} peers are connected, which is the limit")]
    Limit,
    #[error("the rings of user {0}'s peers have {MAX_BYTES_OF_USER} bytes, the limit for another user")]
    User(u32),
    #[error("can't allocate shared memory for the peer: {0}")]
    Outbox(std::io::Error),
    #[error("can't hand shared memory over to the peer: {0}")]
    Greeting(Errno),
}

impl ShmFabric {
    /// The link to a peer; makes one where somebody listens there. `None`: nobody does.
    pub(super) fn link_to(&mut self, peer: PeerName) -> Result<Option<u32>, PathError> {
        if let Some(slot) = self.links.find(peer) {
            return Ok(Some(slot));
        }
        if peer == self.own.local {
            return Ok(Some(self.link_to_self()));
        }
        let on_network = self.own.domain.is_on_network();
        if self.links.len() >= MAX_LINKS && on_network {
            return Err(PathError::Limit(MAX_LINKS));
        }
        if self.meetings.banned.contains(&peer) || self.links.len() >= MAX_LINKS {
            return Ok(None);
        }
        let (socket, uid) = match self.own.domain.connect(peer) {
            Ok(connected) => connected,
            // The last two: the rights of the file, or a security module.
            Err(e @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::ACCESS | Errno::PERM)) => {
                return Err(PathError::Io { doing: "connecting to a peer's socket", source: e.into() });
            }
            Err(e) => {
                if e == Errno::CONNREFUSED {
                    let _ = self.own.domain.remove_if_stale(peer);
                    self.meetings.impostors.remove(&peer);
                } else if on_network {
                    // The peer sees that this side listens, and takes shared memory: it must not find packets.
                    return Err(PathError::Io { doing: "connecting to a peer's socket", source: e.into() });
                }
                return Ok(None);
            }
        };
        if on_network && self.is_impostor(peer, &socket) {
            return Ok(None);
        }
        if !self.own.domain.admits(uid) {
            self.counters.peers_refused += 1;
            return Err(PathError::ForeignUser { peer: peer.ip(), uid });
        }
        let io = |doing| move |source| PathError::Io { doing, source };
        let mut link =
            self.new_link(peer, uid, Stage::Yielded).map_err(io("making shared memory for a ring"))?;
        let slot = self.links.next_slot();
        let fd = link.outbox_fd.as_ref().expect("a new link has it").as_fd();
        let greeted = self.greet(Kind::Hello, &socket, slot, fd);
        if let Err(e) = greeted
            && !hello::is_for_now(e)
        {
            return if on_network { Err(io("greeting a peer")(e.into())) } else { Ok(None) };
        }
        link.stage = Stage::Asking(socket);
        link.direct.trusted = self.own.trusts(uid);
        let slot = self.links.insert(link);
        if greeted.is_err() {
            self.meetings.unsaid.push(self.links.token(slot));
        }
        self.greeting_begins();
        if let Err(e) = self.watch(slot) {
            self.end(slot);
            return Err(io("watching a peer's socket")(e.into()));
        }
        Ok(Some(slot))
    }

    /// For a while the sockets are looked at each turn.
    fn greeting_begins(&mut self) {
        self.meetings.greetings += 1;
        self.look_eagerly();
    }

    /// An answer is expected, for which the sockets are looked at each turn for a while.
    pub(super) fn look_eagerly(&mut self) {
        self.meetings.eager_until = self.now + EAGERNESS;
        self.rounds.tick_at = Instant::ZERO;
    }

    /// A link to a ring both ends of which are ours.
    fn link_to_self(&mut self) -> u32 {
        let out = Segment::heap(self.own.outbox_bytes());
        let credits = Segment::heap(super::memory::LINE);
        let mut tx = Producer::new(out.clone(), self.own.ring_lines, self.own.barrier);
        tx.link(&credits.window(), self.own.barrier);
        let mut link = Link::new(self.own.local, self.own.domain.uid(), Stage::Own, out.clone(), tx);
        link.rx = Some(Consumer::new(out.window(), credits, self.own.ring_lines, self.own.barrier));
        link.caller = Some(self.doorbells.caller(self.links.next_slot()));
        let slot = self.links.insert(link);
        self.poll_from_now_on(slot);
        slot
    }

    fn new_link(&mut self, peer: PeerName, uid: u32, stage: Stage) -> std::io::Result<Link> {
        let (fd, outbox) = create("hca-shm-ring", self.own.outbox_bytes(), Writers::Creator)?;
        let tx = Producer::new(outbox.clone(), self.own.ring_lines, self.own.barrier);
        let mut link = Link::new(peer, uid, stage, outbox, tx);
        link.bytes = self.own.outbox_bytes();
        link.outbox_fd = Some(fd);
        if self.own.domain.is_on_network() {
            link.unproven = Some(self.new_proof()?);
        }
        Ok(link)
    }

    /// Hands our memory over.
    fn greet(
        &self,
        kind: Kind,
        socket: &OwnedFd,
        slot: u32,
        outbox: BorrowedFd<'_>,
    ) -> rustix::io::Result<()> {
        let greeting = Greeting {
            kind,
            from: self.own.local,
            ring_lines: self.own.ring_lines,
            bit: slot % BITS,
            barriers: self.own.has_barriers(),
            nonce: 0,
        };
        hello::send(socket.as_fd(), &greeting, &[outbox, self.own.bits_fd.as_fd(), self.grants.board_fd()])
    }

    /// Says the greetings that the system did not take the last time.
    fn greet_again(&mut self) {
        for token in std::mem::take(&mut self.meetings.unsaid) {
            let Some(slot) = self.links.by_token(token) else { continue };
            let Some(Link { stage: Stage::Asking(socket), outbox_fd: Some(fd), .. }) = self.links.get(slot)
            else {
                continue;
            };
            // Another refusal shows at the socket.
            if self.greet(Kind::Hello, socket, slot, fd.as_fd()).is_err_and(hello::is_for_now) {
                self.meetings.unsaid.push(token);
            }
        }
    }

    /// Whether a peer sleeps for whose message the system had no memory.
    pub(super) fn owes_wakes(&self) -> bool {
        self.counters.wakeups_refused != self.rounds.woken_again
    }
    /// Wakes those peers.
    fn wake_again(&mut self) {
        if self.owes_wakes() && self.links.wake_again(self.own.local) {
            self.rounds.woken_again = self.counters.wakeups_refused;
        }
    }

    /// Has the kernel tell when there is something at a link's socket.
    fn watch(&self, slot: u32) -> rustix::io::Result<()> {
        match self.links.get(slot).and_then(Link::socket) {
            Some(socket) => self.meetings.watch(socket, self.links.token(slot)),
            None => Ok(()),
        }
    }

    /// Has the kernel tell of room in a link's socket, too. Returns whether it does.
    pub(super) fn has_kernel_tell_of_room(&self, slot: u32) -> bool {
        self.watch_for(slot, epoll::EventFlags::IN | epoll::EventFlags::OUT)
    }
    /// Has it tell of input alone again.
    pub(super) fn has_kernel_tell_of_input(&self, slot: u32) {
        self.watch_for(slot, epoll::EventFlags::IN);
    }
    fn watch_for(&self, slot: u32, what: epoll::EventFlags) -> bool {
        let Some(Stage::Up(socket)) = self.links.get(slot).map(|link| &link.stage) else { return false };
        self.meetings.watch_for(socket, self.links.token(slot), what).is_ok()
    }

    /// Has it tell nothing more of a link's socket: one that is not read would keep sleepers awake.
    pub(super) fn unwatch(&self, slot: u32) {
        if let Some(socket) = self.links.get(slot).and_then(Link::socket) {
            self.meetings.unwatch(socket);
        }
    }

    /// Looks at the sockets, and at what else is not looked at each turn.
    #[cold]
    pub(super) fn look_around(&mut self) {
        if self.doorbells.sleeps() {
            self.doorbells.wake();
        }
        let expects = self.meetings.greetings > 0 || self.grants.questions > 0;
        let eager = expects && self.now < self.meetings.eager_until;
        self.rounds.tick_at = if eager { self.now } else { self.now + TICK };
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An error leaves it to the next look.
        let found = epoll::wait(&self.meetings.epoll, &mut events[..], Some(&none));
        for event in found.map_or(&[][..], |(events, _)| events) {
            match event.data.u64() {
                LISTENER => self.accept(),
                name if name & PENDING != 0 => self.hear_pending(name as u32),
                name => {
                    let flags = event.flags;
                    if let Some(slot) = self.links.by_token(name) {
                        self.hear_link(slot);
                    }
                    // The link may have ended by what was heard.
                    if let Some(slot) =
                        self.links.by_token(name).filter(|_| flags.contains(epoll::EventFlags::OUT))
                    {
                        self.send_after_room(slot);
                    }
                }
            }
        }
        self.greet_again();
        self.wake_again();
        self.admit_waiting();
        self.tell_lost_processes();
        self.send_late_notes();
        self.expire();
        self.park_idle();
        self.scan_parked();
    }

    /// When [`expire`](Self::expire) has something to do.
    pub(super) fn meeting_deadline(&self) -> Option<Instant> {
        let files = self.meetings.lingering.iter().map(|l| l.at);
        if self.meetings.greetings == 0 && self.meetings.listen_at.is_none() {
            return files.min();
        }
        let links = self.links.iter().filter_map(|(_, l)| l.deadline);
        let own = self.meetings.listen_at.into_iter().chain(self.meetings.ask_at).chain(files);
        let own = own.chain(self.meetings.again_at(self.now));
        self.meetings.pending.iter().map(|p| p.deadline).chain(links).chain(own).min()
    }

    fn expire(&mut self) {
        if self.meeting_deadline().is_none_or(|at| self.now < at) {
            return;
        }
        let now = self.now;
        let before = self.meetings.pending.len();
        self.meetings.pending.retain(|p| now < p.deadline);
        let silent = (before - self.meetings.pending.len()) as u32;
        self.counters.peers_refused += u64::from(silent);
        self.meetings.greetings -= silent;
        let late = |l: &Link| l.deadline.is_some_and(|at| at <= now);
        let late: Vec<u32> = self.links.iter().filter(|(_, l)| late(l)).map(|(slot, _)| slot).collect();
        for slot in late {
            self.give_up(slot);
        }
        self.meetings.listen_again(now);
        let domain = &self.own.domain;
        self.meetings.lingering.retain_mut(|file| {
            if now < file.at {
                return true;
            }
            file.pause *= LONGER;
            file.at = now + file.pause;
            // Somebody who listens on may be alive, and have parted from this side only.
            !domain.remove_if_stale(file.peer) && file.pause <= LAST_LOOK
        });
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            if self.meetings.pending.len() >= MAX_PENDING {
                return self.meetings.stop_listening(self.now + TICK);
            }
            let (socket, uid) = match self.meetings.listener.accept() {
                Ok(accepted) => accepted,
                Err(e) => {
                    if e.kind() != std::io::ErrorKind::WouldBlock {
                        self.counters.accepts_failed += 1;
                        self.meetings.stop_listening(self.now + LISTEN_AGAIN);
                    }
                    return;
                }
            };
            let has_many =
                !self.own.domain.is_own(uid) && self.meetings.pending_of(uid) >= MAX_PENDING_OF_USER;
            if !self.own.domain.admits(uid) || has_many {
                self.counters.peers_refused += 1;
                tracing::warn!(uid, "a connection was refused: another user's, or above the limit");
                send_notice(&socket, Kind::Refused, self.own.local);
                continue;
            }
            let id = self.meetings.next_pending;
            self.meetings.next_pending = id.wrapping_add(1);
            if self.meetings.watch(&socket, PENDING | u64::from(id)).is_err() {
                self.counters.accepts_failed += 1;
                continue;
            }
            self.meetings.pending.push(Pending {
                id,
                socket,
                uid,
                deadline: self.now + PATIENCE,
                said: None,
            });
            self.greeting_begins();
            // Who connects says hello at once.
            self.hear_pending(id);
        }
    }

    /// Something at a connection whose other end has not said hello.
    fn hear_pending(&mut self, id: u32) {
        let Some(index) = self.meetings.pending.iter().position(|p| p.id == id) else { return };
        let received = hello::receive(self.meetings.pending[index].socket.as_fd());
        if matches!(received, Received::Nothing) {
            return;
        }
        let mut pending = self.meetings.pending.swap_remove(index);
        self.meetings.greetings -= 1;
        self.meetings.unwatch(&pending.socket);
        let socket = &pending.socket;
        match received {
            Received::Message(greeting, fds) if greeting.kind == Kind::Hello => {
                pending.said = Some((greeting, fds));
                self.meet_or_wait(pending);
            }
            Received::Closed => {}
            Received::Fault(fault) => {
                tracing::warn!(%fault, "a connection was refused");
                self.counters.peers_refused += 1;
                send_notice(socket, Kind::Refused, self.own.local);
            }
            Received::NoRoom => {
                self.counters.accepts_failed += 1;
                send_notice(socket, Kind::Refused, self.own.local);
            }
            _ => self.counters.peers_refused += 1,
        }
    }

    /// Meets somebody who said hello, unless the address is yet another one's, who is gone, or the system does not take
    /// the answer now.
    fn meet_or_wait(&mut self, pending: Pending) {
        let Pending { id, socket, uid, deadline, said: Some((greeting, fds)) } = pending else { return };
        let is_leaving = self.is_leaving(greeting.from);
        let socket = if is_leaving { Some(socket) } else { self.meet(socket, uid, &greeting, &fds) };
        if let Some(socket) = socket {
            let said = Some((greeting, fds));
            self.meetings.pending.push(Pending { id, socket, uid, deadline, said });
            self.meetings.greetings += 1;
        }
        if is_leaving {
            self.look_eagerly();
        }
    }

    /// Admits peers that wait since they said hello.
    fn admit_waiting(&mut self) {
        let waiting: Vec<_> = self.meetings.pending.extract_if(.., |p| p.said.is_some()).collect();
        for pending in waiting {
            self.meetings.greetings -= 1;
            self.meet_or_wait(pending);
        }
    }

    /// Somebody said hello; by this socket. It is returned if the answer can't be sent now.
    pub(super) fn meet(
        &mut self,
        socket: Socket,
        uid: u32,
        greeting: &Greeting,
        fds: &[OwnedFd],
    ) -> Option<Socket> {
        if let Some(slot) = self.links.find(greeting.from) {
            let link = self.links.get_mut(slot).expect("it was found");
            match link.stage {
                // Ours stays. The peer finds it at its own socket, or has done so.
                Stage::Asking(_) | Stage::Up(_) if self.own.local < greeting.from => {
                    send_notice(&socket, Kind::Crossed, self.own.local);
                    return None;
                }
                Stage::Asking(_) => {
                    link.stage = Stage::Yielded;
                }
                Stage::Yielded => {}
                // The old link goes first; the peer comes again.
                Stage::Ending => return None,
                Stage::Up(_) | Stage::Own => {
                    self.turn_away(&socket, &Unwanted::Address(greeting.from));
                    return None;
                }
            }
        }
        match self.welcome(&socket, uid, greeting, fds) {
            Ok(()) => {}
            Err(Unwanted::Greeting(_)) => return Some(socket),
            Err(why) => {
                self.turn_away(&socket, &why);
                if let Some(slot) = self.links.find(greeting.from) {
                    self.end(slot);
                }
                return None;
            }
        }
        let slot = self.links.find(greeting.from).expect("it was welcomed");
        let link = self.links.get_mut(slot).expect("it was found");
        link.stage = Stage::Up(socket);
        link.direct.trusted = self.own.trusts(uid);
        if self.watch(slot).is_err() {
            self.end(slot);
        }
        None
    }

    /// Maps a peer's memory, and hands ours over, for a link that is there (and yields) or not.
    fn welcome(
        &mut self,
        socket: &OwnedFd,
        uid: u32,
        greeting: &Greeting,
        fds: &[OwnedFd],
    ) -> Result<(), Unwanted> {
        let peer = greeting.from;
        if peer == self.own.local || self.meetings.banned.contains(&peer) {
            return Err(Unwanted::Address(peer));
        }
        self.check_user(uid, greeting)?;
        let memory = self.map(greeting, fds)?;
        let slot = match self.links.find(peer) {
            Some(slot) => slot,
            None if self.links.len() >= MAX_LINKS => return Err(Unwanted::Limit),
            None => {
                let link = self.new_link(peer, uid, Stage::Yielded).map_err(Unwanted::Outbox)?;
                self.greeting_begins();
                self.links.insert(link)
            }
        };
        let link = self.links.get(slot).expect("it was found or made");
        let fd = link.outbox_fd.as_ref().expect("it is kept until the peer has it").as_fd();
        if let Err(e) = self.greet(Kind::Welcome, socket, slot, fd)
            && hello::is_for_now(e)
        {
            let link = self.links.get_mut(slot).expect("it was found or made");
            link.deadline = Some(self.now + PATIENCE);
            return Err(Unwanted::Greeting(e));
        }
        // A peer that is gone by now may have left something in its ring, and is found gone later.
        self.link_up(slot, greeting, memory);
        Ok(())
    }

    #[cold]
    fn turn_away(&mut self, socket: &OwnedFd, why: &Unwanted) {
        tracing::warn!(%why, "a peer was refused");
        self.counters.peers_refused += 1;
        send_notice(socket, Kind::Refused, self.own.local);
    }

    /// Both have the other's memory.
    fn link_up(&mut self, slot: u32, greeting: &Greeting, memory: PeerMemory) {
        let barrier = if greeting.barriers { self.own.barrier } else { super::ring::Barrier::Fence };
        let link = self.links.get_mut(slot).expect("the link is there");
        link.tx.link(&memory.outbox, barrier);
        let outbox_bytes = outbox_bytes(greeting.ring_lines);
        link.bytes += outbox_bytes;
        let board = memory.board.clone();
        link.direct.peer = Some(PeerSide::new(memory.outbox.clone(), outbox_bytes, board, barrier));
        link.rx = Some(Consumer::new(memory.outbox, link.outbox.clone(), greeting.ring_lines, barrier));
        link.caller = Some(Caller::new(memory.bits, memory.board, greeting.bit));
        link.outbox_fd = None;
        link.deadline = None;
        if link.unproven.is_some() {
            self.meetings.ask_at = Some(self.now);
            return;
        }
        self.open_link(slot);
    }

    /// From now on something can be exchanged.
    pub(super) fn open_link(&mut self, slot: u32) {
        self.meetings.greetings -= 1;
        self.counters.peers_linked += 1;
        self.poll_from_now_on(slot);
    }

    /// Something at a link's socket.
    pub(super) fn hear_link(&mut self, slot: u32) {
        for _ in 0..MESSAGES {
            let Some(link) = self.links.get_mut(slot) else { return };
            if link.closing || link.direct.notices >= MAX_NOTICES {
                // It is not heard any more, or nobody takes them: the rest waits, and with it the peer.
                if self.links.is_dead(slot) {
                    self.end(slot);
                }
                return;
            }
            let (Stage::Asking(socket) | Stage::Up(socket)) = &link.stage else { return };
            let asking = matches!(link.stage, Stage::Asking(_));
            match hello::receive(socket.as_fd()) {
                Received::Nothing => return,
                Received::Closed => return self.end(slot),
                Received::Message(g, _) if g.kind == Kind::Wake && !asking => {
                    self.counters.wakeups_received += 1;
                    self.poll_from_now_on(slot);
                }
                Received::Message(g, fds) if g.kind == Kind::Welcome && asking => {
                    self.be_welcomed(slot, &g, &fds);
                }
                Received::Message(g, _) if g.kind == Kind::Crossed && asking => {
                    link.stage = Stage::Yielded;
                    link.deadline = Some(self.now + PATIENCE);
                    return;
                }
                Received::Message(g, _) if g.kind == Kind::Refused => {
                    self.counters.peers_refused_us += 1;
                    return self.end(slot);
                }
                Received::Message(g, _) if g.kind == Kind::Answer && !asking => {
                    self.hear_answer(slot, g.nonce);
                }
                Received::Message(g, _) if g.kind == Kind::Proven && !asking => self.hear_proven(slot),
                Received::Note(note, fd) if !asking && link.unproven.is_none() => {
                    if let Err(why) = self.hear_note(slot, note, fd) {
                        return self.drop_peer(slot, &why);
                    }
                }
                Received::Message(..) | Received::Note(..) => {
                    return self.drop_peer(slot, &"it sent a message out of turn");
                }
                Received::NoRoom => return self.end_for_now(slot, &"no descriptors are free"),
                Received::Fault(fault) => return self.drop_peer(slot, &fault),
            }
        }
    }

    fn be_welcomed(&mut self, slot: u32, greeting: &Greeting, fds: &[OwnedFd]) {
        let link = self.links.get_mut(slot).expect("its socket was just read");
        if greeting.from != link.peer {
            return self.drop_peer(slot, &Unwanted::Address(greeting.from));
        }
        let uid = link.uid;
        let mapped = self.check_user(uid, greeting).and_then(|()| Ok(self.map(greeting, fds)?));
        let memory = match mapped {
            Ok(memory) => memory,
            Err(why @ (Unwanted::User(_) | Unwanted::Memory(MemoryFault::Io(_)))) => {
                return self.end_for_now(slot, &why);
            }
            Err(why) => return self.drop_peer(slot, &why),
        };
        let link = self.links.get_mut(slot).expect("its socket was just read");
        let Stage::Asking(socket) = std::mem::replace(&mut link.stage, Stage::Yielded) else {
            unreachable!("only a process that asks is welcomed")
        };
        link.stage = Stage::Up(socket);
        self.link_up(slot, greeting, memory);
        self.call_if_due(slot);
    }

    /// Ends a link that there is no room for. The peer has done nothing wrong, and may be met again.
    #[cold]
    fn end_for_now(&mut self, slot: u32, why: &dyn std::fmt::Display) {
        let peer = self.links.get(slot).map(|l| l.peer);
        tracing::warn!(?peer, %why, "a peer could not be met");
        self.counters.accepts_failed += 1;
        self.end(slot);
    }

    /// Drops a peer that broke the rules, and remembers it.
    #[cold]
    pub(super) fn drop_peer(&mut self, slot: u32, why: &dyn std::fmt::Display) {
        self.counters.peers_dropped_garbage += 1;
        let Some(link) = self.links.get_mut(slot) else { return };
        tracing::warn!(peer = %link.peer, %why, "a peer was dropped");
        // An address of the network is somebody else's later.
        if self.meetings.banned.len() < MAX_BANNED && !self.own.domain.is_on_network() {
            self.meetings.banned.insert(link.peer);
        }
        // Nothing more is taken from its ring.
        self.silence(slot);
        self.take_back_and_end(slot);
    }

    /// Takes nothing more from a peer's ring.
    fn silence(&mut self, slot: u32) {
        let Some(link) = self.links.get_mut(slot) else { return };
        // The greeting of a link goes on until both are proven.
        self.meetings.greetings -= u32::from(link.rx.take().is_some() && link.unproven.is_some());
    }

    /// The peer is gone. What it has left in its ring is still taken.
    pub(super) fn end(&mut self, slot: u32) {
        if self.links.get(slot).is_some_and(|l| l.unproven.is_some()) {
            self.silence(slot);
        }
        let Some(link) = self.links.get_mut(slot) else { return };
        if !matches!(link.stage, Stage::Ending | Stage::Up(_)) {
            self.meetings.greetings -= u32::from(link.rx.is_none() && link.outbox_fd.is_some());
        }
        let parts = !matches!(link.stage, Stage::Ending);
        link.stage = Stage::Ending;
        link.deadline = None;
        if parts {
            self.part_grants(slot);
        }
        let Some(link) = self.links.get(slot) else { return };
        if link.rx.is_some() {
            self.poll_from_now_on(slot);
        } else {
            self.remove_link(slot);
        }
    }

    /// Nothing of a peer is left to be done.
    #[cold]
    pub(super) fn remove_link(&mut self, slot: u32) {
        self.rounds.polled.retain(|s| *s != slot);
        let Some(mut link) = self.links.remove(slot) else { return };
        let _ = link.tx.refresh();
        self.counters.tx_lines_unread += u64::from(link.tx.unconsumed());
        self.counters.peers_gone += 1;
        if self.own.messages {
            self.links.gone.push(link.peer);
        }
        if !self.own.domain.remove_if_stale(link.peer) && self.meetings.lingering.len() < MAX_LINGERING {
            self.meetings.lingering.push(Lingering {
                peer: link.peer,
                at: self.now + LOOK_AGAIN,
                pause: LOOK_AGAIN,
            });
        }
    }
}

impl ShmFabric {
    /// Maps what a peer has handed over.
    fn map(&self, greeting: &Greeting, fds: &[OwnedFd]) -> Result<PeerMemory, MemoryFault> {
        let [outbox, bits, board] = fds else { unreachable!("a greeting brings {DESCRIPTORS} descriptors") };
        // All are verified before one is mapped. A ring without pages would be filled at this side's expense.
        let len = outbox_bytes(greeting.ring_lines);
        let outbox = Sealed::verify(outbox.as_fd(), len, Writers::Creator)?.dense()?;
        let bits = Sealed::verify(bits.as_fd(), PAGE_BYTES, Writers::Anybody)?;
        let board = Sealed::verify(board.as_fd(), BOARD_BYTES, Writers::Creator)?;
        // A ring that is longer than this side's costs no more time than that; the rest is mapped by faults.
        let ready = len.min(self.own.outbox_bytes());
        Ok(PeerMemory {
            outbox: outbox.sparse_window(ready)?,
            bits: bits.segment()?,
            board: board.sparse_window(PAGE_BYTES)?,
        })
    }

    /// Whether a user's peers have room for one more with such a ring.
    fn check_user(&self, uid: u32, greeting: &Greeting) -> Result<(), Unwanted> {
        if self.own.domain.is_own(uid) {
            return Ok(());
        }
        let of_user = self.links.iter().filter(|(_, l)| l.uid == uid && l.peer != greeting.from);
        let has: usize = of_user.map(|(_, l)| l.bytes).sum();
        let more = outbox_bytes(greeting.ring_lines) + self.own.outbox_bytes();
        if has + more > MAX_BYTES_OF_USER { Err(Unwanted::User(uid)) } else { Ok(()) }
    }
}
