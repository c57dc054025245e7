//! The fabric of shared memory: the parts of an adapter's end.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use hca_core::{AddressVector, Counter, Instant, Qpn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::MembarrierCommand;

use super::bell::{Doorbells, PAGE_BYTES};
use super::board::BOARD_BYTES;
use super::chance::{Refusable, ShmChance};
use super::counters::{Counters, Now};
use super::error::ShmError;
use super::grants::Grants;
use super::link::{Links, Stage};
use super::meetings::{Meetings, SAY_AGAIN};
use super::memory::{Writers, create, create_sparse};
use super::name::{Domain, Listener};
use super::options::ShmOptions;
use super::own::{Own, listen, ring_lines};
use super::path::Paths;
use super::peer::PeerName;
use super::ring::{Consumer, Record};
use super::rounds::Rounds;
use super::shown::Shown;
use super::sink::{PacketsOnly, ShmSink};
use super::take_back::TakeBacks;
use crate::{
    Fabric, FabricAttr, Glance, PathError, PathId, QpEnds, RxBudget, RxOutcome, RxPacket, Tap, TxBatch,
};

/// A fabric that carries RoCE packets through shared memory.
pub struct ShmFabric {
    pub(super) own: Own,
    pub(super) doorbells: Doorbells,
    pub(super) meetings: Meetings,
    pub(super) rounds: Rounds,
    pub(super) links: Links,
    pub(super) paths: Paths,
    pub(super) grants: Grants,
    pub(super) take_backs: TakeBacks,
    pub(super) counters: Counters,
    pub(super) now: Instant,
    /// The packet or message that is taken from a ring.
    pub(super) record: Box<Record>,
    pub(super) shown: Option<Shown>,
    /// In a simulation: what decides in the place of time and system.
    pub(super) chance: Option<Box<dyn ShmChance>>,
}

impl ShmFabric {
    /// Prepares a process with one thread for ends, which takes milliseconds once the process has several threads, or
    /// seconds while others spin on all processors. An end that is opened without this call is the same.
    pub fn register_while_alone() {
        hca_process::register_while_alone(MembarrierCommand::RegisterGlobalExpedited);
    }

    /// Opens an adapter's end in a domain, at a random address.
    ///
    /// # Errors
    /// The domain or folder can't be used, or the system refuses sockets or memory.
    pub fn open(domain: &str, options: &ShmOptions) -> Result<Self, ShmError> {
        ring_lines(options.ring_bytes)?;
        let domain = Domain::new(domain, options.folder.as_deref(), options.any_user)?;
        let (local, listener) = listen(&domain, options.messages)?;
        Self::listening(domain, local.into(), listener, options)
    }

    /// Opens an adapter's end on an address of the network, where peers of this user and namespace find it. Nothing is
    /// exchanged with a peer before both have proved, [over the network](Self::asked), to be at their addresses.
    ///
    /// # Errors
    /// As [`open`](Self::open); somebody else listens under this name.
    pub(crate) fn open_on_network(own: PeerName, options: &ShmOptions) -> Result<Self, ShmError> {
        let domain = Domain::of_network(own.address)?;
        let listener = domain.listen(own)?;
        Self::listening(domain, own, listener, options)
    }

    /// Opens an adapter's end on an address of a simulated network, where the adapters of one simulation that have the
    /// same name of a machine find each other.
    pub(crate) fn open_in_simulation(
        own: PeerName,
        machine: &str,
        options: &ShmOptions,
        chance: Box<dyn ShmChance>,
    ) -> Result<Self, ShmError> {
        let domain = Domain::of_simulation(machine)?;
        let listener = domain.listen(own)?;
        let mut opened = Self::listening(domain, own, listener, options)?;
        opened.chance = Some(chance);
        Ok(opened)
    }

    fn listening(
        domain: Domain,
        local: PeerName,
        listener: Listener,
        options: &ShmOptions,
    ) -> Result<Self, ShmError> {
        let meetings = Meetings::new(listener)?;
        let (bits_fd, bits) = create("hca-shm-bits", PAGE_BYTES, Writers::Anybody)
            .map_err(|source| ShmError::Memory { bytes: PAGE_BYTES, source })?;
        let (board_fd, board) = create_sparse("hca-shm-board", BOARD_BYTES, PAGE_BYTES, Writers::Creator)
            .map_err(|source| ShmError::Memory { bytes: BOARD_BYTES, source })?;
        Ok(Self {
            own: Own::new(domain, local, bits_fd, options)?,
            doorbells: Doorbells::new(bits, board.clone()),
            meetings,
            rounds: Rounds::new(),
            links: Links::default(),
            paths: Paths::new(),
            grants: Grants::new(board_fd, board),
            take_backs: TakeBacks::default(),
            counters: Counters::default(),
            now: Instant::ZERO,
            record: Box::new(Record::new()),
            shown: None,
            chance: None,
        })
    }
}

impl ShmFabric {
    /// Receives packets, like [`Fabric::recv`], and messages.
    #[inline]
    pub fn recv_all<S: ShmSink>(&mut self, now: Instant, budget: RxBudget, sink: &mut S) -> RxOutcome {
        self.now = now;
        self.rounds.turn += 1;
        if self.chance.is_some() {
            return self.recv_by_chance(budget, sink);
        }
        self.recv_now(budget, sink)
    }
    #[inline]
    fn recv_now<S: ShmSink>(&mut self, budget: RxBudget, sink: &mut S) -> RxOutcome {
        if self.doorbells.rung() {
            self.answer_calls();
        }
        if self.take_backs.is_parting() {
            self.part();
        }
        if self.now >= self.rounds.tick_at {
            self.look_around();
        }
        self.poll_rings(budget, sink)
    }
    /// Like [`recv_now`](Self::recv_now), where a simulation decides when, and how much.
    #[cold]
    fn recv_by_chance<S: ShmSink>(&mut self, budget: RxBudget, sink: &mut S) -> RxOutcome {
        let Some(chance) = self.chance.as_mut().filter(|c| !c.is_killed()) else {
            return RxOutcome::default();
        };
        if !chance.looks_now() {
            return RxOutcome::default();
        }
        let packets = budget.packets.min(chance.takes_at_most());
        let outcome = self.recv_now(RxBudget { packets, ..budget }, sink);
        if outcome.packets == 0 && self.chance.as_mut().is_some_and(|c| c.sleeps()) {
            self.prepare_wait();
        }
        outcome
    }
    /// Whether a simulation lets nothing be seen now.
    #[inline(always)]
    pub(super) fn is_blind(&self) -> bool {
        self.chance.as_ref().is_some_and(|c| c.is_killed() || !c.looks_now())
    }
    /// Whether a simulation has the system refuse this.
    pub(super) fn is_refused(&mut self, what: Refusable) -> bool {
        self.chance.as_mut().is_some_and(|c| c.refuses(what))
    }
    /// When what lies there is looked at in a simulation, where nobody sleeps on the descriptor.
    fn looks_at(&self) -> Option<Instant> {
        let chance = self.chance.as_ref().filter(|c| !c.is_killed())?;
        let mut polled = self.rounds.polled.iter().filter_map(|&slot| self.links.get(slot));
        let ending = |l: &super::link::Link| matches!(l.stage, Stage::Ending);
        if self.doorbells.rung() || polled.any(|l| ending(l) || l.has_input()) {
            return Some(chance.looks_at(None));
        }
        let mut sockets = [PollFd::new(&self.meetings.epoll, PollFlags::IN)];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let readable = poll(&mut sockets, Some(&none)).is_ok_and(|n| n > 0);
        readable.then(|| chance.looks_at(Some(self.rounds.tick_at)))
    }
    /// Appends its counters, under names that tell them from those of the network beside it.
    pub(crate) fn counters_as_part(&self, out: &mut Vec<Counter>) {
        self.append_counters(true, out);
    }
    fn append_counters(&self, part: bool, out: &mut Vec<Counter>) {
        self.counters.with_quick().append_as(part, out);
        self.grants.mapped.processes.transfers.append_as(part, out);
        let now = Now {
            peers_now: self.links.len() as u64,
            regions_granted_now: self.grants.granted_now() as u64,
            regions_mapped_now: self.grants.mapped.len() as u64,
            take_backs_now: self.take_backs.now(),
        };
        now.append_as(part, out);
    }
    /// Whether this is the adapter's only network.
    pub fn is_alone(&self) -> bool {
        !self.own.domain.is_on_network()
    }
    /// Whether there are rings to poll in each turn.
    #[inline]
    pub fn polls_rings(&self) -> bool {
        !self.rounds.polled.is_empty()
    }
    /// Whether RC queue pairs exchange messages with peers that do so too.
    pub fn has_messages(&self) -> bool {
        self.own.messages
    }
    /// Whether queue pairs at both ends of a path exchange messages.
    pub fn carries_messages(&self, path: PathId) -> bool {
        self.own.messages
            && self.paths.get(path).is_some_and(|p| self.own.domain.takes_messages(p.peer.address))
    }
    /// Opens a path for messages to the queue pair of this number. `None`: this peer gets packets, by a path of
    /// [`open_path`](Fabric::open_path). The peer comes to the same choice.
    ///
    /// # Errors
    /// The peer can't be addressed from here, or can't be reached although it expects messages.
    pub fn open_messages(&mut self, av: &AddressVector, peer: Qpn) -> Result<Option<PathId>, PathError> {
        if self.own.domain.is_on_network() {
            return self.open_proven(av, peer);
        }
        let path = self.open_path(av)?;
        if self.carries_messages(path) {
            return Ok(Some(path));
        }
        self.close_path(path);
        Ok(None)
    }
    /// The peer that an open path leads to.
    pub fn peer_of(&self, path: PathId) -> Option<PeerName> {
        self.paths.get(path).map(|p| p.peer)
    }
    /// Whether this adapter may grant memory to peers and use memory that peers grant.
    pub fn shares_memory(&self) -> bool {
        self.own.messages && !self.own.isolated
    }
    /// The next peer that has disconnected; its packets under way are lost.
    #[inline]
    pub fn next_gone(&mut self) -> Option<PeerName> {
        self.links.gone.pop()
    }
}

impl Fabric for ShmFabric {
    fn attr(&self) -> &FabricAttr {
        &self.own.attr
    }

    fn open_path_of(&mut self, av: &AddressVector, _: QpEnds) -> Result<PathId, PathError> {
        let (peer, local) = (av.dgid.ip(), IpAddr::from(self.own.local.address));
        PathError::unless_unicast(peer)?;
        let IpAddr::V6(address) = peer else { return Err(PathError::Family { peer, local }) };
        let link = self.link_to(address.into())?;
        self.paths.open(address.into(), av, link.unwrap_or(u32::MAX))
    }

    fn close_path(&mut self, path: PathId) {
        self.paths.close(path);
    }

    fn send(&mut self, now: Instant, batch: &mut TxBatch) {
        self.now = now;
        self.send_trains(batch);
    }

    fn recv(&mut self, now: Instant, budget: RxBudget, sink: &mut dyn FnMut(&RxPacket<'_>)) -> RxOutcome {
        self.recv_all(now, budget, &mut PacketsOnly(sink))
    }

    fn next_deadline(&self) -> Option<Instant> {
        let parts = self.take_backs.parts_in().map(|d| self.now + d);
        let wakes = self.owes_wakes().then(|| self.now + SAY_AGAIN);
        let others = parts.into_iter().chain(self.late_deadline()).chain(self.looks_at()).chain(wakes);
        self.meeting_deadline().into_iter().chain(others).min()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.meetings.epoll.as_fd())
    }

    fn prepare_wait(&mut self) -> bool {
        let ending = |l: &super::link::Link| matches!(l.stage, Stage::Ending);
        let input = |f: &Self| {
            let mut polled = f.rounds.polled.iter().filter_map(|&slot| f.links.get(slot));
            f.doorbells.rung() || polled.any(|l| ending(l) || l.has_input())
        };
        if input(self) {
            return true;
        }
        let asked = self.rounds.ask_for_calls(&mut self.links);
        let is_parked =
            |&slot: &u32| self.links.get(slot).and_then(|l| l.rx.as_ref()).is_none_or(Consumer::is_parked);
        if !asked && self.doorbells.sleeps() && self.rounds.polled.iter().all(is_parked) {
            // All was said before, and nothing has been taken since.
            return self.rounds.has_room(&mut self.links);
        }
        self.park_polled();
        self.doorbells.sleep();
        // The first look behind the sleep is at the sockets, too.
        self.rounds.tick_at = Instant::ZERO;
        self.own.barrier.on_parking();
        input(self) || self.rounds.has_room(&mut self.links) || self.finds_calls_taken_back()
    }

    /// There is one only where a single ring is polled and nothing waits to be seen to.
    #[inline]
    fn renew_glance(&mut self, glance: &mut Glance) -> bool {
        let (&[slot], None, false) = (&self.rounds.polled[..], &self.chance, self.is_called()) else {
            return false;
        };
        let rx = self.links.get(slot).and_then(|link| link.rx.as_ref());
        rx.is_some_and(|rx| rx.renew_glance(glance, || self.doorbells.glance()))
    }

    fn counters(&self, out: &mut Vec<Counter>) {
        self.append_counters(false, out);
    }

    fn set_tap(&mut self, tap: Option<Box<dyn Tap>>) {
        self.shown = tap.map(Shown::new);
    }
}
