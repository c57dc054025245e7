//! The state of meetings with peers.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::time::Duration;

use hca_core::Instant;

use super::hello::Greeting;
use super::name::Listener;
use super::peer::PeerName;
use super::socket::Socket;

/// The kernel's name for the listening socket.
pub(super) const LISTENER: u64 = u64::MAX;

/// A connection whose other end has not said hello.
pub(super) struct Pending {
    pub(super) id: u32,
    pub(super) socket: Socket,
    /// The user whose process is at the other end.
    pub(super) uid: u32,
    pub(super) deadline: Instant,
    /// The greeting, which waits until the last adapter of the same address is gone.
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
    /// When the listening socket is looked at again, after descriptors or memory had run out.
    pub(super) listen_at: Option<Instant>,
    pub(super) pending: Vec<Pending>,
    pub(super) next_pending: u32,
    /// Socket files of peers that are gone, at which somebody still listened.
    pub(super) lingering: Vec<Lingering>,
    /// Addresses whose adapters wrote garbage.
    pub(super) banned: HashSet<PeerName>,
    /// Greetings under way, for which sockets are looked at each turn for a while.
    pub(super) greetings: u32,
    pub(super) eager_until: Instant,
    /// When peers are asked to prove their addresses.
    pub(super) ask_at: Option<Instant>,
    /// Addresses at which a process listens that could not prove to be there, and the process.
    pub(super) impostors: HashMap<PeerName, i32>,
}

impl Meetings {
    pub(super) fn new(listener: Listener) -> Self {
        Self {
            listener,
            listen_at: None,
            pending: Vec::new(),
            next_pending: 0,
            lingering: Vec::new(),
            banned: HashSet::new(),
            greetings: 0,
            eager_until: Instant::ZERO,
            ask_at: None,
            impostors: HashMap::new(),
        }
    }
}
