//! Connections and resolutions by their IDs, and the ways to find them.

use std::collections::{BTreeMap, BTreeSet};

use hca_core::{Instant, Qpn};

use super::conn::{Conn, Remote};
use super::event::Peer;
use super::sidr::{Asked, Asking};
use crate::ServiceId;
use crate::wire::{CommId, Guid, TransactionId};

/// A port as a key.
type Port = [u8; 16];
/// A request for a resolution as the peer has numbered it.
pub(super) type RequestKey = (Port, TransactionId, CommId);

#[derive(Debug)]
pub(super) enum Entry {
    Conn(Box<Conn>),
    /// A resolution that was asked for here.
    Asking(Asking),
    /// A resolution that a peer asks for.
    Asked(Asked),
}

impl Entry {
    fn timer(&mut self) -> &mut Option<Instant> {
        match self {
            Self::Conn(conn) => &mut conn.timer,
            Self::Asking(asking) => &mut asking.timer,
            Self::Asked(asked) => &mut asked.timer,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Listener {
    backlog: usize,
    /// Requests that the program has not answered.
    pub(super) pending: BTreeSet<CommId>,
}

#[derive(Debug)]
pub(super) struct Table {
    entries: BTreeMap<CommId, Entry>,
    /// Connections by the peer's adapter and ID.
    by_remote_id: BTreeMap<(Port, Guid, CommId), CommId>,
    /// Connections that are not in time-wait by the peer's adapter and queue pair.
    by_remote_qpn: BTreeMap<(Port, Guid, u32), CommId>,
    by_request: BTreeMap<RequestKey, CommId>,
    timers: BTreeSet<(Instant, CommId)>,
    /// Entries that make room for others, by the time at which they end anyway.
    evictable: BTreeSet<(Instant, CommId)>,
    pub(super) listeners: BTreeMap<ServiceId, Listener>,
    next: u32,
    prefix: Option<u8>,
    limit: usize,
}

impl Table {
    pub(super) fn new(seed: u64, prefix: Option<u8>, limit: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            by_remote_id: BTreeMap::new(),
            by_remote_qpn: BTreeMap::new(),
            by_request: BTreeMap::new(),
            timers: BTreeSet::new(),
            evictable: BTreeSet::new(),
            listeners: BTreeMap::new(),
            next: (seed ^ seed >> 32) as u32,
            prefix,
            // More IDs than entries, so that the search for a free one ends.
            limit: limit.min(1 << 23),
        }
    }
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
    pub(super) fn has_room(&self) -> bool {
        self.entries.len() < self.limit
    }
    pub(super) fn oldest_evictable(&self) -> Option<CommId> {
        self.evictable.first().map(|(_, id)| *id)
    }

    /// An ID that nothing has, and that was used longest ago. It is never 0.
    pub(super) fn fresh_id(&mut self) -> CommId {
        loop {
            self.next = self.next.wrapping_add(1);
            let id = CommId(match self.prefix {
                Some(prefix) => u32::from(prefix) << 24 | self.next & 0xff_ffff,
                None => self.next,
            });
            if id.0 != 0 && !self.entries.contains_key(&id) {
                return id;
            }
        }
    }
    pub(super) fn insert(&mut self, id: CommId, entry: Entry) {
        match &entry {
            Entry::Conn(conn) => self.index(id, conn.peer, conn.remote),
            Entry::Asked(asked) => drop(self.by_request.insert(asked.key, id)),
            Entry::Asking(_) => {}
        }
        self.entries.insert(id, entry);
    }
    fn index(&mut self, id: CommId, peer: Peer, remote: Option<Remote>) {
        if let Some(remote) = remote {
            self.by_remote_id.insert((peer.gid.0, remote.guid, remote.id), id);
            self.by_remote_qpn.insert((peer.gid.0, remote.guid, remote.qpn.raw()), id);
        }
    }
    /// The peer has told of its side.
    pub(super) fn set_remote(&mut self, id: CommId, remote: Remote) {
        let Some(conn) = self.conn_mut(id) else { return };
        conn.remote = Some(remote);
        let peer = conn.peer;
        self.index(id, peer, Some(remote));
    }
    /// The peer's queue pair may be connected to another one.
    pub(super) fn free_queue_pair(&mut self, id: CommId) {
        let Some(conn) = self.conn(id) else { return };
        let Some(remote) = conn.remote else { return };
        let key = (conn.peer.gid.0, remote.guid, remote.qpn.raw());
        if self.by_remote_qpn.get(&key) == Some(&id) {
            self.by_remote_qpn.remove(&key);
        }
    }
    pub(super) fn leave_backlog(&mut self, id: CommId) {
        let service = match self.entries.get_mut(&id) {
            Some(Entry::Conn(conn)) => conn.listener.take(),
            Some(Entry::Asked(asked)) => asked.listener.take(),
            _ => None,
        };
        if let Some(listener) = service.and_then(|service| self.listeners.get_mut(&service)) {
            listener.pending.remove(&id);
        }
    }
    pub(super) fn remove(&mut self, id: CommId) -> Option<Entry> {
        self.leave_backlog(id);
        self.free_queue_pair(id);
        self.set_timer(id, None);
        let entry = self.entries.remove(&id)?;
        match &entry {
            Entry::Conn(conn) => {
                if let Some(remote) = conn.remote {
                    let key = (conn.peer.gid.0, remote.guid, remote.id);
                    if self.by_remote_id.get(&key) == Some(&id) {
                        self.by_remote_id.remove(&key);
                    }
                }
            }
            Entry::Asking(_) => {}
            Entry::Asked(asked) => drop(self.by_request.remove(&asked.key)),
        }
        Some(entry)
    }

    pub(super) fn get(&self, id: CommId) -> Option<&Entry> {
        self.entries.get(&id)
    }
    pub(super) fn get_mut(&mut self, id: CommId) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }
    pub(super) fn conns(&self) -> impl Iterator<Item = &Conn> {
        self.entries.values().filter_map(|entry| match entry {
            Entry::Conn(conn) => Some(&**conn),
            _ => None,
        })
    }
    pub(super) fn conn(&self, id: CommId) -> Option<&Conn> {
        match self.entries.get(&id) {
            Some(Entry::Conn(conn)) => Some(conn),
            _ => None,
        }
    }
    pub(super) fn conn_mut(&mut self, id: CommId) -> Option<&mut Conn> {
        match self.entries.get_mut(&id) {
            Some(Entry::Conn(conn)) => Some(conn),
            _ => None,
        }
    }
    pub(super) fn by_remote_id(&self, peer: Peer, guid: Guid, id: CommId) -> Option<CommId> {
        self.by_remote_id.get(&(peer.gid.0, guid, id)).copied()
    }
    pub(super) fn by_remote_qpn(&self, peer: Peer, guid: Guid, qpn: Qpn) -> Option<CommId> {
        self.by_remote_qpn.get(&(peer.gid.0, guid, qpn.raw())).copied()
    }
    pub(super) fn by_request(&self, key: &RequestKey) -> Option<CommId> {
        self.by_request.get(key).copied()
    }

    pub(super) fn listen(&mut self, service: ServiceId, backlog: usize) -> bool {
        if self.listeners.contains_key(&service) {
            return false;
        }
        self.listeners.insert(service, Listener { backlog, pending: BTreeSet::new() });
        true
    }
    /// Takes a place in a listener's backlog; `None` if nobody listens, `Some(false)` if there is no place.
    pub(super) fn enter_backlog(&mut self, service: ServiceId, id: CommId) -> Option<bool> {
        let listener = self.listeners.get_mut(&service)?;
        let has_place = listener.pending.len() < listener.backlog;
        if has_place {
            listener.pending.insert(id);
        }
        Some(has_place)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }
    /// The oldest timer that is due, which is taken.
    pub(super) fn due(&mut self, now: Instant) -> Option<CommId> {
        let &(at, id) = self.timers.first().filter(|(at, _)| *at <= now)?;
        self.set_timer(id, None);
        debug_assert!(!self.timers.contains(&(at, id)), "{id} has no timer any more");
        Some(id)
    }
    /// The entry ends at this time, or earlier if others need its place.
    pub(super) fn ends_at(&mut self, id: CommId, end: Instant) {
        self.set_timer(id, Some(end));
        self.evictable.insert((end, id));
    }
    pub(super) fn set_timer(&mut self, id: CommId, at: Option<Instant>) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if let Some(before) = core::mem::replace(entry.timer(), at) {
            self.timers.remove(&(before, id));
            self.evictable.remove(&(before, id));
        }
        if let Some(at) = at {
            self.timers.insert((at, id));
        }
    }
}
