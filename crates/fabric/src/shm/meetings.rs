//! The state of meetings with peers.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::time::Duration;

use hca_core::Instant;
use rustix::event::epoll;
use rustix::io::Errno;

use super::error::ShmError;
use super::hello::Greeting;
use super::name::Listener;
use super::peer::PeerName;
use super::socket::Socket;

/// The kernel's name for the listening socket.
pub(super) const LISTENER: u64 = u64::MAX;
/// When a greeting or another message that the system did not take is said again.
pub(super) const SAY_AGAIN: Duration = Duration::from_millis(10);
/// When accepting is tried again after descriptors or memory had run out.
pub(super) const LISTEN_AGAIN: Duration = Duration::from_millis(100);

/// A connection whose other end has not said hello.
pub(super) struct Pending {
    pub(super) id: u32,
    pub(super) socket: Socket,
    /// The user whose process is at the other end.
    pub(super) uid: u32,
    pub(super) deadline: Instant,
    /// The greeting, which waits until the last adapter of the same address is gone, or until it can be answered.
    pub(super) said: Option<(Greeting, Vec<OwnedFd>)>,
}

/// The socket file of a peer that is gone. The system closes a dead process's descriptors one after the other, and
/// frees what memory they hold meanwhile; so whoever is told of the death may be told before the listening socket is
/// closed.
pub(super) struct Lingering {
    pub(super) peer: PeerName,
    pub(super) at: Instant,
    pub(super) pause: Duration,
}

/// How an end meets its peers: its socket, those that have not said hello, and those that it does not meet.
pub(super) struct Meetings {
    pub(super) listener: Listener,
    /// All sockets that are watched: the listening one, those of links, those of connections that have said nothing.
    pub(super) epoll: OwnedFd,
    /// When the listening socket is looked at again, after descriptors or memory had run out.
    pub(super) listen_at: Option<Instant>,
    pub(super) pending: Vec<Pending>,
    pub(super) next_pending: u32,
    /// Socket files of peers that are gone, at which somebody still listened.
    pub(super) lingering: Vec<Lingering>,
    /// Addresses whose adapters wrote garbage.
    pub(super) banned: HashSet<PeerName>,
    /// Links whose greeting the system did not take.
    pub(super) unsaid: Vec<u64>,
    /// Greetings under way, for which sockets are looked at each turn for a while.
    pub(super) greetings: u32,
    pub(super) eager_until: Instant,
    /// When peers are asked to prove their addresses.
    pub(super) ask_at: Option<Instant>,
    /// Addresses at which a process listens that could not prove to be there, and the process.
    pub(super) impostors: HashMap<PeerName, i32>,
}

impl Meetings {
    pub(super) fn new(listener: Listener) -> Result<Self, ShmError> {
        let io = |doing| move |e: Errno| ShmError::Io { doing, source: e.into() };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io("creating an epoll descriptor"))?;
        watch_listener(&epoll, &listener).map_err(io("watching the listening socket"))?;
        Ok(Self {
            listener,
            epoll,
            listen_at: None,
            pending: Vec::new(),
            next_pending: 0,
            lingering: Vec::new(),
            banned: HashSet::new(),
            unsaid: Vec::new(),
            greetings: 0,
            eager_until: Instant::ZERO,
            ask_at: None,
            impostors: HashMap::new(),
        })
    }
    /// Has the kernel tell, by this name, when there is something at a socket.
    pub(super) fn watch(&self, socket: &OwnedFd, name: u64) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(name), epoll::EventFlags::IN)
    }
    /// Has it tell of this at a socket that is watched.
    pub(super) fn watch_for(
        &self,
        socket: &OwnedFd,
        name: u64,
        what: epoll::EventFlags,
    ) -> rustix::io::Result<()> {
        epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(name), what)
    }
    /// Has it tell nothing more.
    pub(super) fn unwatch(&self, socket: &OwnedFd) {
        let _ = epoll::delete(&self.epoll, socket);
    }
    /// Leaves connections where they are for a while, since there is nothing to take them with, or no room for them.
    pub(super) fn stop_listening(&mut self, until: Instant) {
        let _ = epoll::delete(&self.epoll, &self.listener);
        self.listen_at = Some(until);
    }
    /// Watches the listening socket again, once its pause is over.
    pub(super) fn listen_again(&mut self, now: Instant) {
        if self.listen_at.is_some_and(|at| at <= now) {
            let added = watch_listener(&self.epoll, &self.listener);
            self.listen_at = added.is_err().then(|| now + LISTEN_AGAIN);
        }
    }
    /// When greetings are said again, and those that wait are answered, if there are any.
    pub(super) fn again_at(&self, now: Instant) -> Option<Instant> {
        let some = !self.unsaid.is_empty() || self.pending.iter().any(|p| p.said.is_some());
        some.then(|| now + SAY_AGAIN)
    }
    /// Connections of a user that have said nothing.
    pub(super) fn pending_of(&self, uid: u32) -> usize {
        self.pending.iter().filter(|p| p.uid == uid).count()
    }
}

fn watch_listener(epoll: &OwnedFd, listener: &Listener) -> rustix::io::Result<()> {
    epoll::add(epoll, listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)
}
