//! Grants: requests for direct access to peers' memory, the answers, and the words on the board.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::access::{Ends, Memory, Region};
use super::board::{generation_at, in_use_at, is_writable, qp_word_at};
use super::chance::Refusable;
use super::error::GrantError;
use super::fabric::ShmFabric;
use super::grant::{
    Grant, GrantId, Granted, LinkId, MAX_ASKED, MAX_MAPPED_OF_PEER, MAX_QP_WORDS, Notice, QpGuard,
};
use super::grants::{FIRST_PAUSE, LAST_PAUSE, MAX_UNSENT, MAX_UNSENT_WANTED};
use super::hello;
use super::link::Stage;
use super::memory::Sealed;
use super::note::{Note, Place, RIGHTS};
use super::pages::SharedPages;
use crate::PathId;

impl ShmFabric {
    /// The link behind a path, once both sides are connected; `None` for a path to the adapter itself.
    pub fn link_of(&mut self, path: PathId) -> Option<LinkId> {
        let slot = self.paths.get_mut(path)?.link;
        let link = self.links.get_mut(slot)?;
        if !matches!(link.stage, Stage::Up(_)) || link.unproven.is_some() {
            return None;
        }
        link.direct.known = true;
        Some(LinkId::new(self.links.token(slot)))
    }

    /// The memory behind an address range, if it belongs to [`SharedPages`].
    pub fn pages_of(&self, addr: usize, len: usize) -> Option<SharedPages> {
        SharedPages::find(addr, len)
    }

    /// Publishes the word of a queue pair of this adapter, which peers compare before each direct access. A word that
    /// withdraws rights is published by [`withdraw_qp_word`](Self::withdraw_qp_word).
    ///
    /// # Errors
    /// There is no memory for the word; peers see 0 then.
    ///
    /// # Panics
    /// If `slot` is not below [`MAX_QP_WORDS`].
    pub fn set_qp_word(&mut self, slot: u32, word: u64) -> Result<(), GrantError> {
        self.grants.set_qp_word(slot, word)
    }
    /// The present word of a peer's queue pair on the peer's board. A hint: it may change at any time.
    ///
    /// # Panics
    /// If `slot` is not below [`MAX_QP_WORDS`].
    pub fn qp_word(&mut self, peer: LinkId, slot: u32) -> Option<u64> {
        let at = qp_word_at(slot);
        let side = self.links.linked(peer).ok()?.direct.peer.as_mut()?;
        side.ready(at).ok()?;
        Some(side.board.word64(at, Ordering::Acquire))
    }
    /// The guard for accesses through a peer's queue pair, created once for each connection and not for each access.
    /// `None`: the peer is gone, or has no such queue pair.
    pub fn qp_guard(&mut self, peer: LinkId, slot: u32, word: u64) -> Option<QpGuard> {
        if slot >= MAX_QP_WORDS {
            return None;
        }
        self.links.linked(peer).ok()?.direct.peer.as_mut()?.ready(qp_word_at(slot)).ok()?;
        Some(QpGuard { link: peer, slot, word })
    }

    /// Asks a peer for the region of a key, for use by the peer's queue pair; the answer is a notice.
    ///
    /// # Errors
    /// The peer is not there, belongs to another user, or has too many unanswered questions.
    pub fn ask_grant(&mut self, peer: LinkId, key: u32, qpn: u32) -> Result<(), GrantError> {
        let direct = &mut self.links.trusted(peer)?.direct;
        if direct.asked.contains(&(key, qpn)) {
            return Ok(());
        }
        if direct.asked.len() >= MAX_ASKED as usize {
            return Err(GrantError::Limit { what: "questions to this peer are open", limit: MAX_ASKED });
        }
        direct.asked.push((key, qpn));
        self.grants.questions += 1;
        self.look_eagerly();
        self.send_note(peer, Note::Ask { key, qpn }, None);
        Ok(())
    }
    /// Grants a region to a peer that asked. The caller has checked key, protection domain and rights.
    ///
    /// # Errors
    /// The grant failed, and the peer was informed.
    ///
    /// # Panics
    /// If the key names another region already.
    pub fn grant(&mut self, peer: LinkId, grant: &Grant<'_>) -> Result<(), GrantError> {
        self.links.linked(peer)?.direct.asking.retain(|q| *q != (grant.key, grant.qpn));
        let granted = self.hand_over(peer, grant, false);
        if granted.is_err() {
            self.send_note(peer, Note::Refuse { key: grant.key, qpn: grant.qpn }, None);
        }
        granted
    }
    /// Refuses the grant that a peer has asked for.
    pub fn refuse_grant(&mut self, peer: LinkId, key: u32, qpn: u32) {
        let Ok(link) = self.links.linked(peer) else { return };
        link.direct.asking.retain(|q| *q != (key, qpn));
        self.send_note(peer, Note::Refuse { key, qpn }, None);
    }
    /// Grants a region to a peer that has not asked. [`Notice::GrantTaken`] or [`Notice::GrantLeft`] follows.
    ///
    /// # Errors
    /// The region can't be granted.
    ///
    /// # Panics
    /// If the key names another region already.
    pub fn offer(&mut self, peer: LinkId, grant: &Grant<'_>) -> Result<(), GrantError> {
        self.hand_over(peer, grant, true)?;
        let offers = &mut self.links.linked(peer)?.direct.offers;
        if !offers.contains(&grant.key) {
            offers.push(grant.key);
        }
        Ok(())
    }

    fn hand_over(&mut self, peer: LinkId, g: &Grant<'_>, offered: bool) -> Result<(), GrantError> {
        let link = self.links.trusted(peer)?;
        if g.pages.is_none() && !link.direct.process_offered {
            return Err(GrantError::Process);
        }
        if self.is_refused(Refusable::Grant) {
            let source = Errno::NOMEM.into();
            return Err(GrantError::Io { doing: "granting, in a simulation", source });
        }
        let known = self.grants.slot_of(g.key);
        if known.is_some_and(|slot| self.grants.is_ending(slot)) {
            return Err(GrantError::Ending);
        }
        let link = self.links.linked(peer)?;
        let holds = known.is_some_and(|slot| link.direct.held.contains(&slot));
        if !holds && link.direct.held.len() >= MAX_MAPPED_OF_PEER as usize {
            return Err(GrantError::Limit {
                what: "regions are granted to this peer",
                limit: MAX_MAPPED_OF_PEER,
            });
        }
        let slot = match known {
            Some(slot) => slot,
            None => self.grants.new_region(g)?,
        };
        let region = self.grants.region(slot).expect("it was found or made");
        let access = g.access & RIGHTS;
        if !g.pages.map_or(region.pages.is_none(), |pages| region.is_of(pages)) {
            return Err(GrantError::Exchanged);
        }
        assert_eq!(
            (region.offset, region.len, region.iova, region.access),
            (g.offset, g.len, g.iova, access),
            "key {:#x} names another region",
            g.key
        );
        let place = Place { region: slot, generation: self.grants.generation(slot), offset: g.offset as u64 };
        let (qpn, iova, len, pd, qp_word) = (g.qpn, g.iova, g.len as u64, g.pd, g.qp_word);
        let in_process = g.pages.is_none();
        let granted = Granted { qpn, iova, len, access, pd, qp_word, offered, in_process };
        let holders = self.grants.holders_mut(slot).expect("it is there");
        match holders.iter_mut().find(|(l, _)| *l == peer.slot()) {
            Some((_, times)) => *times += 1,
            None => {
                holders.push((peer.slot(), 1));
                self.links.linked(peer)?.direct.held.push(slot);
            }
        }
        self.counters.grants_given += 1;
        self.send_note(peer, Note::Grant { key: g.key, place, granted }, g.pages.cloned());
        Ok(())
    }

    /// Takes the oldest notice.
    pub fn next_notice(&mut self) -> Option<Notice> {
        let (link, notice) = self.grants.notices.pop_front()?;
        if let Ok(link) = self.links.linked(link) {
            link.direct.notices -= 1;
        }
        Some(notice)
    }

    pub(super) fn notify(&mut self, peer: LinkId, notice: Notice) {
        if let Ok(link) = self.links.linked(peer) {
            link.direct.notices += 1;
            link.direct.known = true;
        }
        self.grants.notices.push_back((peer, notice));
    }
}

/// Notes, in either direction.
impl ShmFabric {
    /// Sends a note, now or once the socket takes it. To a link that is gone nothing is sent.
    pub(super) fn send_note(&mut self, peer: LinkId, note: Note, pages: Option<SharedPages>) {
        let Ok(link) = self.links.linked(peer) else { return };
        let direct = &mut link.direct;
        let most = if note.is_waited_for() { MAX_UNSENT_WANTED } else { MAX_UNSENT };
        if direct.unsent.len() >= most {
            self.counters.notes_lost += 1;
            return;
        }
        direct.unsent.push_back((note, pages));
        if direct.unsent.len() == 1 {
            self.send_notes(peer.slot());
        }
    }

    /// Sends what waits, as far as the socket takes it.
    fn send_notes(&mut self, slot: u32) {
        let Some(link) = self.links.get_mut(slot) else { return };
        let Stage::Up(socket) = &link.stage else { return };
        let refusal = loop {
            let Some((note, pages)) = link.direct.unsent.front() else { return };
            let fd = pages.as_ref().map(SharedPages::fd);
            match hello::send_note(socket.as_fd(), note, fd) {
                Ok(()) => drop(link.direct.unsent.pop_front()),
                Err(refusal) => break refusal,
            }
        };
        match refusal {
            // Its queue is full: a peer that is stopped may leave it so for ever.
            Errno::AGAIN if self.has_kernel_tell_of_room(slot) => {}
            refusal if hello::is_for_now(refusal) => {
                if !self.grants.late.contains(&slot) {
                    self.grants.late.push(slot);
                }
            }
            // The peer is gone, which the socket's other end tells soon.
            _ => self.links.get_mut(slot).into_iter().for_each(|link| link.direct.unsent.clear()),
        }
    }

    /// There may be room in a link's socket.
    pub(super) fn send_after_room(&mut self, slot: u32) {
        self.has_kernel_tell_of_input(slot);
        self.send_notes(slot);
    }

    /// Once a tick: sends the notes that the system refused the last time for another reason than a full socket.
    pub(super) fn send_late_notes(&mut self) {
        for slot in std::mem::take(&mut self.grants.late) {
            self.send_notes(slot);
        }
        let longer = self.grants.late_pause.saturating_mul(2).min(LAST_PAUSE);
        self.grants.late_pause = if self.grants.has_late_notes() { longer } else { FIRST_PAUSE };
    }
    /// When [`send_late_notes`](Self::send_late_notes) has something to do.
    pub(super) fn late_deadline(&self) -> Option<hca_core::Instant> {
        self.grants.has_late_notes().then(|| self.now + self.grants.late_pause)
    }

    /// A peer has said something. An error: it broke the rules.
    pub(super) fn hear_note(
        &mut self,
        slot: u32,
        note: Note,
        fd: Option<std::os::fd::OwnedFd>,
    ) -> Result<(), &'static str> {
        let peer = LinkId::new(self.links.token(slot));
        let link = self.links.get_mut(slot).expect("its socket was just read");
        let direct = &mut link.direct;
        match note {
            Note::Ask { key, qpn } if !direct.trusted => {
                self.send_note(peer, Note::Refuse { key, qpn }, None);
            }
            Note::Ask { key, qpn } => {
                if direct.asking.len() >= MAX_ASKED as usize {
                    return Err("it asks for more grants than allowed");
                }
                if !direct.asking.contains(&(key, qpn)) {
                    direct.asking.push((key, qpn));
                    self.notify(peer, Notice::GrantAsked { link: peer, key, qpn });
                }
            }
            Note::Refuse { key, qpn } => {
                self.answered(slot, key, qpn)?;
                self.notify(peer, Notice::GrantRefused { link: peer, key, qpn });
            }
            Note::Grant { key, place, granted } => {
                if self.grants.mapped.key_at(peer, &place).is_some_and(|known| known != key) {
                    return Err("it grants one region by two keys");
                }
                if !granted.offered {
                    self.answered(slot, key, granted.qpn)?;
                }
                self.take_grant(peer, key, place, granted, fd);
            }
            Note::Taken { key } => {
                if take(&mut direct.offers, &key) {
                    self.notify(peer, Notice::GrantTaken { link: peer, key });
                }
            }
            Note::Left { key, times } => {
                take(&mut direct.offers, &key);
                self.be_left(peer, key, times);
            }
            Note::Process { pid, addr, proof } => self.hear_process(peer, pid, addr, proof)?,
            Note::Fetches { yes } => self.hear_fetches(peer, yes)?,
            Note::Revoked { place, .. } => {
                if let Some(grant) = self.grants.mapped.find(peer, &place) {
                    self.unmap(grant);
                }
            }
        }
        Ok(())
    }

    /// A question to a peer has its answer.
    fn answered(&mut self, slot: u32, key: u32, qpn: u32) -> Result<(), &'static str> {
        let direct = &mut self.links.get_mut(slot).expect("its socket was just read").direct;
        if !take(&mut direct.asked, &(key, qpn)) {
            return Err("it answers a question that was not asked");
        }
        self.grants.questions -= 1;
        Ok(())
    }

    /// Maps what a peer has granted.
    fn take_grant(
        &mut self,
        peer: LinkId,
        key: u32,
        place: Place,
        granted: Granted,
        fd: Option<std::os::fd::OwnedFd>,
    ) {
        match self.map_grant(peer, key, place, granted, fd) {
            Some((grant, granted)) => {
                self.counters.grants_mapped += 1;
                if granted.offered {
                    self.send_note(peer, Note::Taken { key }, None);
                }
                self.notify(peer, Notice::Granted { link: peer, key, grant, granted });
            }
            None => {
                self.counters.grants_not_mapped += 1;
                self.send_note(peer, Note::Left { key, times: 1 }, None);
                if !granted.offered {
                    self.notify(peer, Notice::GrantRefused { link: peer, key, qpn: granted.qpn });
                }
            }
        }
    }

    fn map_grant(
        &mut self,
        peer: LinkId,
        key: u32,
        place: Place,
        granted: Granted,
        fd: Option<std::os::fd::OwnedFd>,
    ) -> Option<(GrantId, Granted)> {
        if let Some(grant) = self.grants.mapped.find(peer, &place) {
            // Another queue pair asked for the same.
            let Granted { qpn, qp_word, offered, .. } = granted;
            return self.grants.mapped.again(grant).map(|g| (grant, Granted { qpn, qp_word, offered, ..g }));
        }
        // What stood there before was taken back, which was not heard of.
        if let Some(old) = self.grants.mapped.of_region(peer, place.region) {
            self.unmap(old);
        }
        if self.grants.mapped.is_full(peer) || self.is_refused(Refusable::Mapping) {
            return None;
        }
        let link = self.links.trusted(peer).ok()?;
        let at = generation_at(place.region);
        let own = link.outbox.clone();
        let side = link.direct.peer.as_mut().expect("who is linked has it");
        side.ready(at).ok()?;
        let (board, barrier) = (side.board.clone(), side.barrier);
        let memory = if granted.in_process {
            Memory::Process(self.grants.mapped.processes.memory_of(peer)?)
        } else {
            let fd = fd?;
            // Both are lengths within an address space, as the note's parsing has found.
            let needed = (place.offset + granted.len) as usize;
            let mapped = Sealed::granted(fd.as_fd(), needed)
                .and_then(|sealed| Region::map(&sealed, is_writable(granted.access)));
            match mapped {
                Ok(region) => Memory::Mapped(region),
                Err(why) => {
                    tracing::warn!(%why, "memory that a peer has granted is not mapped");
                    return None;
                }
            }
        };
        let in_use_at = in_use_at(self.own.outbox_bytes());
        let ends = Ends { link: peer, own, in_use_at, board, barrier };
        Some((self.grants.mapped.insert(ends, key, place, granted, memory, at), granted))
    }
}

/// Takes a thing out of a list; `false`: it is not there.
fn take<T: PartialEq>(list: &mut Vec<T>, thing: &T) -> bool {
    let at = list.iter().position(|t| t == thing);
    at.map(|at| list.swap_remove(at)).is_some()
}
