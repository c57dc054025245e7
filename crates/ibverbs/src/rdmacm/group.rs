//! Ports of datagrams that several sockets of a process share: as servers do that bind a port anew for the next peer
//! while the first socket is connected to the one before (`SO_REUSEADDR`).
//!
//! One thread answers those who ask for the port, with the queue pair of the socket that was bound last of those that are
//! not connected. A datagram that comes to another one's queue pair is handed over.
//!
//! A group's lock is taken under the lock of a socket's state, and never the other way round.

use core::net::SocketAddr;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Instant;

use hca::cm::{DatagramListener, UDP_QKEY};
use hca::verbs::{QpControl, Ud};
use hca_process::PerProcess;

use super::stream::{LINGER, LISTEN_LOOK, Socket};
use crate::entry::{Errno, lock};

/// A socket of a group.
struct Member {
    socket: Weak<Socket>,
    control: QpControl<Ud>,
    /// The address that it is connected to.
    peer: Option<SocketAddr>,
    shares: bool,
}

#[derive(Default)]
struct Members {
    /// In the order in which they were bound.
    all: Vec<Member>,
    /// The thread has given the port back.
    has_ended: bool,
}

/// The sockets at one port of a device.
#[derive(Default)]
pub(super) struct Group {
    members: Mutex<Members>,
    ended: Condvar,
}

/// The groups by their addresses.
static GROUPS: PerProcess<Mutex<HashMap<SocketAddr, Weak<Group>>>> = PerProcess::new();

impl Group {
    /// Adds a socket to the group at an address. `None` if there is none that shares its port.
    pub(super) fn join(
        at: SocketAddr,
        socket: &Arc<Socket>,
        control: &QpControl<Ud>,
        shares: bool,
    ) -> Option<Arc<Self>> {
        let group = lock(GROUPS.get()).get(&at)?.upgrade()?;
        let mut members = lock(&group.members);
        let can = shares && !members.has_ended && !members.all.is_empty();
        if !can || members.all.iter().any(|member| !member.shares) {
            return None;
        }
        let (socket, control) = (Arc::downgrade(socket), control.clone());
        members.all.push(Member { socket, control, peer: None, shares });
        drop(members);
        Some(group)
    }
    /// A group of one socket, with the listener of its port.
    pub(super) fn create(
        listener: DatagramListener,
        socket: &Arc<Socket>,
        control: &QpControl<Ud>,
        shares: bool,
    ) -> Result<Arc<Self>, Errno> {
        let group = Arc::new(Self::default());
        let (own, control) = (Arc::downgrade(socket), control.clone());
        lock(&group.members).all.push(Member { socket: own, control, peer: None, shares });
        let (of_thread, at) = (Arc::clone(&group), listener.address());
        // Nobody joins a group without its thread.
        let mut groups = lock(GROUPS.get());
        let started = hca_process::spawn("hca-rnames", move || of_thread.answer(listener));
        started.map_err(|_| Errno(libc::EAGAIN))?;
        groups.retain(|_, group| group.strong_count() > 0);
        groups.insert(at, Arc::downgrade(&group));
        Ok(group)
    }
    /// Answers those who ask for the port until its sockets are closed.
    fn answer(&self, listener: DatagramListener) {
        // Told behind the end of the listener, also in a panic.
        let _ended = Ended(self);
        let listener = listener;
        while !lock(&self.members).all.is_empty() {
            match listener.accept_within(Some(LISTEN_LOOK)) {
                Ok(Some(asked)) => {
                    // Without a socket the question is answered by its end.
                    let control = lock(&self.members).bound_last().map(|member| member.control.clone());
                    let _ = control.map(|control| asked.accept(&control, UDP_QKEY, &[]));
                }
                Ok(None) => {}
                Err(_) => break,
            }
        }
    }
    /// Another socket that datagrams from an address are for.
    pub(super) fn other(&self, than: &Socket, from: SocketAddr) -> Option<Arc<Socket>> {
        let members = lock(&self.members);
        if members.all.len() == 1 {
            return None;
        }
        let connected = members.all.iter().find(|member| member.peer == Some(from));
        let owner = connected.or_else(|| members.all.iter().rfind(|member| member.peer.is_none()))?;
        owner.socket.upgrade().filter(|owner| !core::ptr::eq(&raw const **owner, than))
    }
    /// A socket is connected to an address.
    pub(super) fn connect(&self, socket: &Socket, to: SocketAddr) {
        let mut members = lock(&self.members);
        let own = members.all.iter_mut().find(|member| core::ptr::eq(member.socket.as_ptr(), socket));
        own.into_iter().for_each(|member| member.peer = Some(to));
    }
    /// Takes a socket out that is closed.
    pub(super) fn leave(&self, socket: &Socket) {
        lock(&self.members).all.retain(|member| !core::ptr::eq(member.socket.as_ptr(), socket));
    }
    /// Waits until the port is free, if the group has no sockets.
    pub(super) fn wait_for_end(&self) {
        let end = Instant::now() + LINGER;
        let mut members = lock(&self.members);
        while members.all.is_empty() && !members.has_ended {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            members = self.ended.wait_timeout(members, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Tells the end of a group's thread.
struct Ended<'a>(&'a Group);
impl Drop for Ended<'_> {
    fn drop(&mut self) {
        lock(&self.0.members).has_ended = true;
        self.0.ended.notify_all();
    }
}

impl Members {
    fn bound_last(&self) -> Option<&Member> {
        self.all.iter().rfind(|member| member.peer.is_none()).or(self.all.last())
    }
}
