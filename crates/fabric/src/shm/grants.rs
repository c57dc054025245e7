//! The tables of grants: regions of this end with their holders, and mapped regions of peers.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use hca_core::Access;
use hca_process::allocate_pages;
use rustix::io::Errno;

use super::access::MappedRegions;
use super::board::{Bits, generation_at, in_use_at, is_writable, qp_word_at};
use super::error::GrantError;
use super::grant::{Grant, GrantId, LinkId, MAX_ASKED, MAX_GRANTED_REGIONS, MAX_MAPPED_OF_PEER, Notice};
use super::memory::{Segment, Window};
use super::note::{Note, RIGHTS};
use super::pages::{PAGE, SharedPages};
use super::ring::Barrier;

/// Notes that a peer has not taken from its socket; later ones that nobody waits for are lost, as are wake-ups.
pub(super) const MAX_UNSENT: usize = 1024;
/// Questions, offers and answers are kept beyond that, up to so many in all: one who leaves no more of them open than
/// it may never gets there.
pub(super) const MAX_UNSENT_WANTED: usize = 2 * MAX_UNSENT;
const _: () = assert!(MAX_UNSENT_WANTED - MAX_UNSENT >= 2 * (MAX_ASKED + MAX_MAPPED_OF_PEER) as usize);
/// Notices of one peer that nobody has taken; then its socket is left alone for a while.
pub(super) const MAX_NOTICES: u32 = 512;

/// The pauses between attempts to send notes that the system refuses: the first and the longest.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(1);
pub(super) const LAST_PAUSE: Duration = Duration::from_millis(64);

/// What a link knows of direct access.
#[derive(Default)]
pub(super) struct Direct {
    /// The peer's process is this user's.
    pub(super) trusted: bool,
    /// What the peer writes: its outbox, with the in-use word there, and its board.
    pub(super) peer: Option<PeerSide>,
    /// What was asked of the peer: keys, and queue pairs.
    pub(super) asked: Vec<(u32, u32)>,
    /// What the peer has asked.
    pub(super) asking: Vec<(u32, u32)>,
    /// Keys of regions that were offered, and are neither taken nor left.
    pub(super) offers: Vec<u32>,
    /// Slots of regions of ours that it may have mapped.
    pub(super) held: Vec<u32>,
    pub(super) unsent: VecDeque<(Note, Option<SharedPages>)>,
    /// Notices that nobody has taken.
    pub(super) notices: u32,
    /// This process was offered to the peer, to be fetched from, and the peer's to this one.
    pub(super) process_offered: bool,
    pub(super) process_told: bool,
    /// Somebody above knows this link by its name.
    pub(super) known: bool,
}

/// A peer's memory that concerns direct access.
pub(super) struct PeerSide {
    pub(super) outbox: Window,
    pub(super) in_use_at: usize,
    pub(super) board: Window,
    pub(super) there: Bits,
    pub(super) barrier: Barrier,
}

impl PeerSide {
    pub(super) fn new(outbox: Window, outbox_bytes: usize, board: Window, barrier: Barrier) -> Self {
        let mut there = Bits::default();
        there.set(0);
        Self { outbox, in_use_at: in_use_at(outbox_bytes), board, there, barrier }
    }
    /// Has a page of the board be there, which its owner may have left out.
    pub(super) fn ready(&mut self, at: usize) -> std::io::Result<()> {
        let page = at / PAGE;
        if !self.there.has(page) {
            self.board.populate(page * PAGE, PAGE)?;
            self.there.set(page);
        }
        Ok(())
    }
}

/// A region of ours that peers may have mapped.
pub(super) struct GrantedRegion {
    pub(super) key: u32,
    /// `None`: memory of the program's own.
    pub(super) pages: Option<SharedPages>,
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) iova: u64,
    pub(super) access: Access,
    /// Slots of links, and how often each was granted it.
    pub(super) holders: Vec<(u32, u32)>,
    /// Take-backs that are not done with it. It is granted to nobody any more.
    pub(super) ending: u32,
}

impl GrantedRegion {
    pub(super) fn is_writable(&self) -> bool {
        is_writable(self.access)
    }
    /// Whether its memory is in these pages.
    pub(super) fn is_of(&self, pages: &SharedPages) -> bool {
        self.pages.as_ref().is_some_and(|own| own.is(pages))
    }
}

/// What an adapter has granted, and what it was granted.
pub(super) struct Grants {
    /// A number that no other adapter of the process has.
    pub(super) adapter: u64,
    board_fd: OwnedFd,
    board: Segment,
    there: Bits,
    pub(super) regions: Vec<Option<GrantedRegion>>,
    pub(super) generations: Vec<u32>,
    pub(super) free: VecDeque<u32>,
    pub(super) by_key: HashMap<u32, u32>,
    pub(super) mapped: MappedRegions,
    /// Grants of peers that were found taken back within a call, until their memory is unmapped behind the call.
    pub(super) revoked: Vec<GrantId>,
    pub(super) notices: VecDeque<(LinkId, Notice)>,
    /// Links with notes that could not be sent, though their sockets have room.
    pub(super) late: Vec<u32>,
    /// How long a sleeping end leaves them alone: longer after each attempt in vain.
    pub(super) late_pause: Duration,
    /// Questions that peers have not answered.
    pub(super) questions: usize,
}

impl Grants {
    pub(super) fn new(board_fd: OwnedFd, board: Segment) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut there = Bits::default();
        there.set(0);
        Self {
            adapter: NEXT.fetch_add(1, Ordering::Relaxed),
            board_fd,
            board,
            there,
            regions: Vec::new(),
            generations: Vec::new(),
            free: VecDeque::new(),
            by_key: HashMap::new(),
            mapped: MappedRegions::default(),
            revoked: Vec::new(),
            notices: VecDeque::new(),
            late: Vec::new(),
            late_pause: FIRST_PAUSE,
            questions: 0,
        }
    }
    /// Has a page of the board be there.
    pub(super) fn ready(&mut self, at: usize) -> Result<(), GrantError> {
        let page = at / PAGE;
        if !self.there.has(page) {
            let io = |e: Errno| GrantError::Io { doing: "making a page of the board", source: e.into() };
            let at = (page * PAGE) as u64;
            allocate_pages(self.board_fd.as_fd(), at, PAGE as u64).map_err(io)?;
            self.there.set(page);
        }
        Ok(())
    }
    /// Publishes the word of a queue pair.
    pub(super) fn set_qp_word(&mut self, slot: u32, word: u64) -> Result<(), GrantError> {
        let at = qp_word_at(slot);
        self.ready(at)?;
        // Release: pairs with the Acquire in `bracket::enter`.
        self.board.word64(at).store(word, Ordering::Release);
        // Behind this the program, told that something was taken back, writes to that memory.
        fence(Ordering::SeqCst);
        Ok(())
    }
    /// The word of a queue pair as it was published.
    pub(super) fn qp_word(&self, slot: u32) -> u64 {
        let at = qp_word_at(slot);
        if self.there.has(at / PAGE) { self.board.word64(at).load(Ordering::Relaxed) } else { 0 }
    }
    /// A place on the board for a region that was not granted before.
    pub(super) fn new_region(&mut self, g: &Grant<'_>) -> Result<u32, GrantError> {
        let access = g.access & RIGHTS;
        let Some(pages) = g.pages else {
            if g.len == 0 || access != Access::REMOTE_WRITE {
                return Err(GrantError::Process);
            }
            return self.region_slot(g, access);
        };
        // All pages, since the descriptor opens all of them.
        let end = g.offset.checked_add(g.len).filter(|end| *end <= pages.len());
        let whole = g.offset < PAGE && end.is_some_and(|end| end.next_multiple_of(PAGE) == pages.len());
        if !whole || g.len == 0 || access.is_empty() {
            return Err(GrantError::Partial);
        }
        if !pages.claim(self.adapter) {
            return Err(GrantError::Elsewhere);
        }
        let adapter = self.adapter;
        let slot = pages.prepare(is_writable(access)).and_then(|()| self.region_slot(g, access));
        if slot.is_err() && !self.regions().any(|(_, r)| r.is_of(pages)) {
            pages.unclaim(adapter);
        }
        slot
    }

    fn region_slot(&mut self, g: &Grant<'_>, access: Access) -> Result<u32, GrantError> {
        let new = self.regions.len() as u32;
        let slot = if new < MAX_GRANTED_REGIONS { new } else { *self.free.front().unwrap_or(&new) };
        if slot == MAX_GRANTED_REGIONS {
            let what = "regions are granted";
            return Err(GrantError::Limit { what, limit: MAX_GRANTED_REGIONS });
        }
        self.ready(generation_at(slot))?;
        if slot == new {
            self.regions.push(None);
            self.generations.push(0);
        } else {
            self.free.pop_front();
        }
        let (key, offset, len, iova) = (g.key, g.offset, g.len, g.iova);
        let (pages, holders) = (g.pages.cloned(), Vec::new());
        self.regions[slot as usize] =
            Some(GrantedRegion { key, pages, offset, len, iova, access, holders, ending: 0 });
        self.by_key.insert(key, slot);
        Ok(slot)
    }
    pub(super) fn board_fd(&self) -> BorrowedFd<'_> {
        self.board_fd.as_fd()
    }
    pub(super) fn board(&self) -> Segment {
        self.board.clone()
    }
    pub(super) fn region(&self, slot: u32) -> Option<&GrantedRegion> {
        self.regions.get(slot as usize)?.as_ref()
    }
    pub(super) fn slot_of(&self, key: u32) -> Option<u32> {
        self.by_key.get(&key).copied()
    }
    /// Regions with their slots.
    pub(super) fn regions(&self) -> impl Iterator<Item = (u32, &GrantedRegion)> {
        self.regions.iter().enumerate().filter_map(|(i, r)| Some((i as u32, r.as_ref()?)))
    }
    /// A take-back begins to end a region: publishes its next generation, which ends all grants of it.
    pub(super) fn begin_to_end(&mut self, slot: u32) {
        let Some(region) = self.regions[slot as usize].as_mut() else { return };
        region.ending += 1;
        if region.ending == 1 {
            let generation = &mut self.generations[slot as usize];
            *generation = generation.wrapping_add(1);
            self.board.word(generation_at(slot)).store(*generation, Ordering::Release);
        }
    }
    /// Whether a region is being taken back.
    pub(super) fn is_ending(&self, slot: u32) -> bool {
        self.region(slot).is_some_and(|r| r.ending > 0)
    }
    /// A take-back is done with a region: forgets it, unless another one is not; tells who held it.
    pub(super) fn end(&mut self, slot: u32) -> Option<GrantedRegion> {
        let place = &mut self.regions[slot as usize];
        let region = place.as_mut()?;
        region.ending -= 1;
        if region.ending > 0 {
            return None;
        }
        let region = place.take()?;
        self.by_key.remove(&region.key);
        self.free.push_back(slot);
        if let Some(pages) = &region.pages
            && !self.regions.iter().flatten().any(|r| r.is_of(pages))
        {
            pages.unclaim(self.adapter);
        }
        Some(region)
    }
    /// The slots of all regions, and no take-back is under way for any of them.
    pub(super) fn end_all(&mut self) -> Vec<u32> {
        self.regions.iter_mut().flatten().for_each(|r| r.ending = 0);
        self.regions().map(|(slot, _)| slot).collect()
    }
    pub(super) fn generation(&self, slot: u32) -> u32 {
        self.generations[slot as usize]
    }
    pub(super) fn holders_mut(&mut self, slot: u32) -> Option<&mut Vec<(u32, u32)>> {
        Some(&mut self.regions.get_mut(slot as usize)?.as_mut()?.holders)
    }
    pub(super) fn has_late_notes(&self) -> bool {
        !self.late.is_empty()
    }

    #[cfg(test)]
    pub(super) fn notices_now(&self) -> usize {
        self.notices.len()
    }
    pub(super) fn granted_now(&self) -> usize {
        self.by_key.len()
    }
}
