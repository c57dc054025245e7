//! Proofs of address: each of two adapters at network addresses proves that it holds its address.
//!
//! Any process can take the name of a socket, and a greeting can hold false claims. So each side sends a question with
//! an unguessable number over the network to the peer's address; the receiver returns the number over the socket. No
//! packets are exchanged, in either direction, before both sides have returned the number and have accepted the other's
//! answer.
//!
//! ```text
//! question, by the network  ───►
//!       ◄───  Answer, by the socket
//! Proven, by the socket     ───►      and the same the other way
//! ```
//!
//! The fabric that carries the questions fetches them by [`ShmFabric::question`] and delivers arrived ones by
//! [`ShmFabric::asked`].

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use hca_core::{AddressVector, Instant, Qpn};

use super::fabric::ShmFabric;
use super::hello;
use super::hello::{Greeting, Kind};
use super::link::{Link, Stage};
use super::name::random;
use super::peer::PeerName;
use super::proof::Proof;
use crate::cred::PeerCred;
use crate::{PathError, PathId};

/// The longest such time.
const ASK_SELDOM: Duration = Duration::from_secs(2);

/// How long requests wait for a peer to prove its address. Packets would be given up by then.
const PATIENCE: Duration = Duration::from_secs(4);

/// Processes that are remembered for listening at addresses that are not theirs.
const MAX_IMPOSTORS: usize = 4096;

impl ShmFabric {
    /// What a peer is asked with.
    pub(super) fn new_proof(&mut self) -> std::io::Result<Proof> {
        Ok(Proof::new(match &mut self.chance {
            Some(chance) => chance.nonce(),
            None => u64::from_ne_bytes(random()?),
        }))
    }

    /// The path to the peer of this queue pair that listens at its address, if one does who can be taken for it.
    pub(super) fn open_proven(&mut self, av: &AddressVector, qpn: Qpn) -> Result<Option<PathId>, PathError> {
        let address = av.dgid.ip();
        PathError::unless_unicast(address)?;
        let mut names = PeerName::of_queue_pair(address, qpn);
        // Adapters of one job are mostly of one kind.
        if self.own.local.slot.is_none() {
            names.reverse();
        }
        for peer in names {
            let link = match self.link_to(peer) {
                Ok(Some(link)) => link,
                // A name that another process squats is not the owner's: the owner sends packets.
                Ok(None) | Err(PathError::ForeignUser { .. }) => continue,
                Err(e) => return Err(e),
            };
            let path = self.paths.open(peer, av, link)?;
            return Ok(Some(path));
        }
        Ok(None)
    }

    /// Checks whether the process that had the address, and the slot, of this queue pair has ended. Another process may
    /// have them now, and is connected once the link to the first one is gone.
    pub fn is_predecessor_leaving(&mut self, address: IpAddr, qpn: Qpn) -> bool {
        let [in_slot, alone] = PeerName::of_queue_pair(address, qpn);
        // Both are to be checked.
        self.is_leaving(in_slot) | self.is_leaving(alone)
    }

    /// As [`is_predecessor_leaving`](Self::is_predecessor_leaving), for one name.
    pub(super) fn is_leaving(&mut self, peer: PeerName) -> bool {
        let Some(slot) = self.links.find(peer).filter(|_| self.own.domain.is_on_network()) else {
            return false;
        };
        let leaving = match self.links.get(slot).map(|l| &l.stage) {
            Some(Stage::Ending) => true,
            Some(Stage::Up(_)) if self.links.is_dead(slot) => {
                self.end(slot);
                self.links.get(slot).is_some()
            }
            _ => false,
        };
        if let Some(chance) = self.chance.as_mut().filter(|_| leaving) {
            chance.must_look();
        }
        leaving
    }

    /// The next peer that is to be asked a question at its address, and the number to ask with.
    #[inline]
    pub(crate) fn question(&mut self, now: Instant) -> Option<(PeerName, u64)> {
        if self.meetings.ask_at.is_none_or(|at| now < at) { None } else { self.next_question(now) }
    }

    #[cold]
    fn next_question(&mut self, now: Instant) -> Option<(PeerName, u64)> {
        let unanswered = |l: &Link| {
            let proof = l.unproven.as_ref().filter(|p| !p.answered && matches!(l.stage, Stage::Up(_)));
            proof.map(|p| p.ask_at)
        };
        let waiting = self.links.iter().filter_map(|(slot, l)| Some((unanswered(l)?, slot)));
        let (at, slot) = waiting.min().unzip();
        self.meetings.ask_at = at;
        let slot = slot.filter(|_| at.is_some_and(|at| at <= now))?;
        let link = self.links.get_mut(slot).expect("it was found");
        let proof = link.unproven.as_mut().expect("it was found");
        proof.ask_at = now + proof.interval;
        proof.interval = (proof.interval * 2).min(ASK_SELDOM);
        Some((link.peer, proof.nonce))
    }

    /// A question has come over the network, from this peer: the answer goes to the peer that says it is there, if
    /// that may still need it.
    #[cold]
    pub(crate) fn asked(&mut self, from: PeerName, nonce: u64) {
        let link = self.links.find(from).and_then(|slot| self.links.get(slot));
        let Some(link) = link.filter(|l| l.unproven.is_some()) else { return };
        let Some(socket) = link.socket() else { return };
        let (kind, from) = (Kind::Answer, self.own.local);
        let answer = Greeting { kind, from, ring_lines: 0, bit: 0, barriers: false, nonce };
        // What does not get through is asked again.
        let _ = hello::send(socket.as_fd(), &answer, &[]);
    }

    /// A peer says what it was asked. Anything may have come to its address, so another number says nothing.
    pub(super) fn hear_answer(&mut self, slot: u32, nonce: u64) {
        let local = self.own.local;
        let Some(link) = self.links.get_mut(slot) else { return };
        let (Some(proof), Stage::Up(socket)) = (&mut link.unproven, &link.stage) else { return };
        if proof.nonce != nonce || proof.answered {
            return;
        }
        let content =
            Greeting { kind: Kind::Proven, from: local, ring_lines: 0, bit: 0, barriers: false, nonce: 0 };
        // A peer that can't be told now is asked again, and told by way of its next answer.
        if hello::send(socket.as_fd(), &content, &[]).is_ok() {
            proof.answered = true;
            self.open_if_proven(slot);
        }
    }

    pub(super) fn hear_proven(&mut self, slot: u32) {
        if let Some(proof) = self.links.get_mut(slot).and_then(|l| l.unproven.as_mut()) {
            proof.peer_content = true;
            self.open_if_proven(slot);
        }
    }

    fn open_if_proven(&mut self, slot: u32) {
        let Some(link) = self.links.get_mut(slot) else { return };
        if link.unproven.as_ref().is_some_and(|p| p.answered && p.peer_content) {
            link.unproven = None;
            link.deadline = None;
            self.meetings.impostors.remove(&link.peer);
            self.open_link(slot);
        }
    }

    /// Requests wait for a peer to prove its address: for so long.
    pub(super) fn shorten_proof_deadline(&mut self, slot: u32) {
        let now = self.now;
        if let Some(link) = self.links.get_mut(slot) {
            link.deadline.get_or_insert(now + PATIENCE);
        }
    }

    /// Something has not happened in time.
    pub(super) fn give_up(&mut self, slot: u32) {
        // One that was not even greeted can't have proved anything.
        let was_asked = |l: &&Link| l.unproven.is_some() && !self.meetings.unsaid.contains(&l.token(slot));
        if let Some(link) = self.links.get(slot).filter(was_asked)
            && let Some(socket) = link.socket()
        {
            let address = link.peer;
            let pid = pid_of(socket);
            tracing::warn!(
                %address, pid,
                "a process that listens for peers of this address did not prove to be there: connections to it fail, and later \
                 ones go by UDP"
            );
            self.counters.peers_not_proven += 1;
            if self.meetings.impostors.len() < MAX_IMPOSTORS {
                self.meetings.impostors.insert(link.peer, pid);
            }
        }
        self.end(slot);
    }

    /// Whether the process at the other end is one that could not prove to be at this address.
    pub(super) fn is_impostor(&mut self, peer: PeerName, socket: &OwnedFd) -> bool {
        match self.meetings.impostors.get(&peer) {
            Some(&pid) if pid == pid_of(socket) => true,
            Some(_) => {
                self.meetings.impostors.remove(&peer);
                false
            }
            None => false,
        }
    }
}

/// The process at the other end of a socket; 0 if it is of another PID namespace.
fn pid_of(socket: &OwnedFd) -> i32 {
    PeerCred::of(socket).map_or(0, |cred| cred.pid)
}
