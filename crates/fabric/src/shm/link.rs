//! The link to a peer: an outbox each way, and the socket by which both see each other's end.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use hca_core::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::bell::Caller;
use super::error::GrantError;
use super::grant::LinkId;
use super::grants::Direct;
use super::hello::Kind;
use super::memory::Segment;
use super::peer::PeerName;
use super::process_write::is_stopped;
use super::proof::Proof;
use super::ring::{Consumer, Producer};
use super::socket::Socket;
use crate::cred::PeerCred;

/// Links at most.
pub(super) const MAX_LINKS: usize = 1 << 14;

/// How far the two are.
pub(super) enum Stage {
    /// We connected and have said hello. Our outbox already takes packets.
    Asking(Socket),
    /// Both connected, and the peer's connection is the one that stays: it is on its way.
    Yielded,
    /// Both outboxes are mapped.
    Up(Socket),
    /// The peer is gone; what it left in its ring is taken, then the link goes.
    Ending,
    /// The adapter itself.
    Own,
}

impl Stage {
    /// Whether whoever writes into the ring calls where it is not polled.
    pub(super) fn calls(&self) -> bool {
        matches!(self, Self::Up(_) | Self::Own)
    }
}

/// The outcome of a call of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Called {
    /// The peer does not sleep, or was not called.
    Awake,
    Woken,
    /// The peer sleeps on, as the system had no memory for the message.
    Asleep,
}

/// One peer.
pub(super) struct Link {
    pub(super) peer: PeerName,
    /// The user at the other end.
    pub(super) uid: u32,
    /// What both outboxes take.
    pub(super) bytes: usize,
    pub(super) stage: Stage,
    /// Until when something has to happen.
    pub(super) deadline: Option<Instant>,
    /// What we write: our ring, and the credits for the peer's.
    pub(super) outbox: Segment,
    /// Its descriptor, until the peer has it for sure.
    pub(super) outbox_fd: Option<OwnedFd>,
    pub(super) tx: Producer,
    pub(super) rx: Option<Consumer>,
    pub(super) caller: Option<Caller>,
    /// When it last had something for us.
    pub(super) last_input: Instant,
    /// It is in the list of rings that are polled each turn.
    pub(super) polled: bool,
    /// Since when its ring is full.
    pub(super) full_since: Option<Instant>,
    /// It is in the list of those whose rings were found full.
    pub(super) listed_full: bool,
    pub(super) direct: Direct,
    /// Nothing is exchanged before both have proved their addresses.
    pub(super) unproven: Option<Proof>,
    /// It broke the rules, and is cut as soon as it is out of this side's memory.
    pub(super) closing: bool,
    /// The peer sleeps, and is to be woken.
    owes_wake: bool,
    generation: u32,
}

impl Link {
    pub(super) fn new(peer: PeerName, uid: u32, stage: Stage, outbox: Segment, tx: Producer) -> Self {
        Self {
            peer,
            uid,
            bytes: 0,
            stage,
            deadline: None,
            outbox,
            outbox_fd: None,
            tx,
            rx: None,
            caller: None,
            last_input: Instant::ZERO,
            polled: false,
            full_since: None,
            listed_full: false,
            direct: Direct::default(),
            unproven: None,
            closing: false,
            owes_wake: false,
            generation: 0,
        }
    }
    /// Calls the peer if it does not poll our ring. `wake` says whether the message was taken.
    #[inline(always)]
    pub(super) fn call_if_due(&mut self, wake: impl FnOnce(&OwnedFd) -> bool) -> Called {
        if self.tx.call_due() { self.call(wake) } else { Called::Awake }
    }
    /// Calls the peer if it waits for credits that it was given.
    #[inline(always)]
    pub(super) fn call_for_credits(&mut self, wake: impl FnOnce(&OwnedFd) -> bool) -> Called {
        let is_due = self.rx.as_mut().is_some_and(Consumer::call_due);
        if is_due { self.call(wake) } else { Called::Awake }
    }
    #[cold]
    fn call(&mut self, wake: impl FnOnce(&OwnedFd) -> bool) -> Called {
        let Some(caller) = &self.caller else { return Called::Awake };
        match &self.stage {
            Stage::Up(socket) => {
                if !caller.call() {
                    return Called::Awake;
                }
                self.owes_wake = !wake(socket);
                if self.owes_wake { Called::Asleep } else { Called::Woken }
            }
            Stage::Own => {
                // Who sends has the engine, and looks at its bells before anybody sleeps.
                caller.call();
                Called::Awake
            }
            _ => Called::Awake,
        }
    }
    /// Wakes the peer if the system had no memory for that before. `false`: it has none yet.
    fn wakes_again(&mut self, wake: impl FnOnce(&OwnedFd) -> bool) -> bool {
        if let (true, Stage::Up(socket)) = (self.owes_wake, &self.stage) {
            self.owes_wake = !wake(socket);
            return !self.owes_wake;
        }
        true
    }
    /// Whether its ring, which is full, is so for less than this time.
    #[cold]
    pub(super) fn is_worth_waiting_for(&mut self, now: Instant, patience: std::time::Duration) -> bool {
        now < *self.full_since.get_or_insert(now) + patience
    }
    /// Names it towards the kernel and the adapter, as the one that stands in this slot.
    #[inline]
    pub(super) fn token(&self, slot: u32) -> u64 {
        u64::from(self.generation) << 32 | u64::from(slot)
    }
    /// The socket at which messages of the peer come.
    pub(super) fn socket(&self) -> Option<&Socket> {
        let (Stage::Asking(socket) | Stage::Up(socket)) = &self.stage else { return None };
        Some(socket)
    }
    /// Whether there is something for us in its ring.
    #[inline]
    pub(super) fn has_input(&self) -> bool {
        self.rx.as_ref().is_some_and(Consumer::has_input)
    }
}

/// All peers of an adapter.
#[derive(Default)]
pub(super) struct Links {
    slots: Vec<Option<Box<Link>>>,
    free: Vec<u32>,
    by_peer: HashMap<PeerName, u32>,
    generation: u32,
    /// Peers that have gone, until the adapter is told.
    pub(super) gone: Vec<PeerName>,
}

impl Links {
    pub(super) fn len(&self) -> usize {
        self.by_peer.len()
    }
    /// Slots, free ones included.
    pub(super) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }
    pub(super) fn find(&self, peer: PeerName) -> Option<u32> {
        self.by_peer.get(&peer).copied()
    }
    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<&Link> {
        self.slots.get(slot as usize)?.as_deref()
    }
    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Link> {
        self.slots.get_mut(slot as usize)?.as_deref_mut()
    }
    /// The slot that the next link gets.
    pub(super) fn next_slot(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.slots.len() as u32)
    }
    pub(super) fn insert(&mut self, mut link: Link) -> u32 {
        let slot = self.next_slot();
        self.generation = self.generation.wrapping_add(1) & (u32::MAX >> 1);
        link.generation = self.generation;
        self.by_peer.insert(link.peer, slot);
        match self.free.pop() {
            Some(_) => self.slots[slot as usize] = Some(Box::new(link)),
            None => self.slots.push(Some(Box::new(link))),
        }
        slot
    }
    pub(super) fn remove(&mut self, slot: u32) -> Option<Box<Link>> {
        let link = self.slots.get_mut(slot as usize)?.take()?;
        self.by_peer.remove(&link.peer);
        self.free.push(slot);
        Some(link)
    }
    /// Names a link towards the kernel; a link that takes its place later has another name.
    pub(super) fn token(&self, slot: u32) -> u64 {
        self.get(slot).expect("the link is there").token(slot)
    }
    /// The link of a name, if it is still there.
    #[inline]
    pub(super) fn named_mut(&mut self, token: u64) -> Option<&mut Link> {
        self.get_mut(token as u32).filter(|l| l.generation == (token >> 32) as u32)
    }
    /// The slot of the link of a name, if it is still there.
    pub(super) fn by_token(&self, token: u64) -> Option<u32> {
        let slot = token as u32;
        (self.get(slot)?.generation == (token >> 32) as u32).then_some(slot)
    }
    /// A link that is up, by its name.
    pub(super) fn linked(&mut self, peer: LinkId) -> Result<&mut Link, GrantError> {
        let slot = self.by_token(peer.token()).ok_or(GrantError::Link)?;
        let link = self.get_mut(slot).expect("it was found");
        if matches!(link.stage, Stage::Up(_)) { Ok(link) } else { Err(GrantError::Link) }
    }
    /// A link to a process of this user.
    pub(super) fn trusted(&mut self, peer: LinkId) -> Result<&mut Link, GrantError> {
        let link = self.linked(peer)?;
        if link.closing {
            return Err(GrantError::Link);
        }
        if link.direct.trusted { Ok(link) } else { Err(GrantError::ForeignUser) }
    }
    /// Whether the process at the other end is stopped.
    pub(super) fn is_stopped(&self, slot: u32) -> bool {
        let Some(Stage::Up(socket)) = self.get(slot).map(|l| &l.stage) else { return false };
        PeerCred::of(socket).is_ok_and(|cred| is_stopped(cred.pid))
    }

    /// Whether nobody is at the other end of a link's socket. The kernel closes a dead process's descriptors after it
    /// has taken its memory away, and so when none of its threads runs there any more.
    pub(super) fn is_dead(&self, slot: u32) -> bool {
        let Some(Stage::Up(socket)) = self.get(slot).map(|l| &l.stage) else { return true };
        let mut fds = [PollFd::new(socket, PollFlags::empty())];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&none)).is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
    /// Wakes the peers that the system had no memory for before. `false`: it has none yet for one of them.
    #[cold]
    pub(super) fn wake_again(&mut self, local: PeerName) -> bool {
        let links = self.slots.iter_mut().flatten();
        let woken = links.map(|link| link.wakes_again(|socket| send_wake(socket, local)));
        woken.filter(|woken| !woken).count() == 0
    }
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Link)> {
        self.slots.iter().enumerate().filter_map(|(i, l)| Some((i as u32, l.as_deref()?)))
    }
}

/// Tells the other end something that is one message without descriptors.
pub(super) fn send_notice(socket: &OwnedFd, kind: Kind, from: PeerName) {
    // A queue that is full has something to read already, and who is gone needs to be told nothing.
    let _ = notify(socket, kind, from);
}
/// Wakes the other end. `false`: the system has no memory for the message, as in a control group at its limit.
pub(super) fn send_wake(socket: &OwnedFd, from: PeerName) -> bool {
    #[cfg(test)]
    if HAS_NO_MEMORY.get() {
        return false;
    }
    !matches!(notify(socket, Kind::Wake, from), Err(Errno::NOBUFS | Errno::NOMEM | Errno::INTR))
}
fn notify(socket: &OwnedFd, kind: Kind, from: PeerName) -> rustix::io::Result<()> {
    let (ring_lines, bit, barriers, nonce) = (0, 0, false, 0);
    let message = super::hello::Greeting { kind, from, ring_lines, bit, barriers, nonce };
    super::hello::send(socket.as_fd(), &message, &[])
}

#[cfg(test)]
thread_local! {
    /// In a test: the system has no memory for messages that wake.
    pub(super) static HAS_NO_MEMORY: core::cell::Cell<bool> = const { core::cell::Cell::new(false) };
}
