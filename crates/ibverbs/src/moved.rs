//! Registered memory that is moved to pages that peers on the machine can map.
//!
//! Peers write directly to memory that they can map, and a program's own is not: it belongs to one process. At its
//! registration it is copied to a file in memory ([`SharedPages`]), whose mapping takes its place at the same address.
//! At the end of the last registration it becomes memory of this process alone again.
//!
//! A copy loses what is written meanwhile, so memory is moved only where nobody can write:
//!
//! - The calling thread is the only one of the program, and takes no signals during the copy. Threads of this library
//!   may have data on the same pages: they wait before they write there ([`hold_writers`]).
//! - No region has any of its bytes: neither the adapter nor a peer writes there.
//! - It is of whole pages, as peers map no less; it has no file and no code, and is no stack.
//!
//! Other memory stays where it is; the kernel writes there on behalf of peers. So does all memory of a program whose
//! regions live so shortly that moving them does not pay.
#![allow(unsafe_code)]

use core::ops::Range;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hca_dma::hold_writers;
use hca_fabric::{MAX_SHARED_ALLOCATIONS, SharedPages};
use hca_process::{Backing, Mapping, is_only_thread_of_program, mappings, without_signals};

use crate::forked::{self, Ends, make_own};

const PAGE: usize = 4096;
/// The longest region that is moved: all its bytes are copied, once and back again.
const MAX: usize = 256 << 20;
/// A region pays if it lives so many times as long as it took to move it.
const PAYS: u32 = 16;
/// After so many regions in a row that did not pay, none is moved any more.
const VAIN: u32 = 16;
/// So often a part of a mapping is moved, which leaves it in three: a process has 65,530 mappings by default.
const SPLITS: u32 = 8192;
const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// The memory of regions.
pub(crate) struct Memory {
    /// Registered memory: the end of each range by its first byte and a number.
    registered: BTreeMap<(usize, u64), usize>,
    registrations: u64,
    /// The most bytes that a registration had.
    longest: usize,
    /// Pages that were moved, by their addresses; the program may have unmapped some. No two overlap.
    moved: BTreeMap<usize, Moved>,
    /// The last regions that did not pay, in a row.
    vain: u32,
    splits: u32,
    /// Sockets for the next child, which needs them although there are no more descriptors.
    pub(crate) for_child: Option<Ends>,
}
struct Moved {
    pages: SharedPages,
    at: Instant,
    took: Duration,
    /// Its last region has ended.
    has_ended: bool,
}
pub(crate) static MEMORY: Mutex<Memory> = Mutex::new(Memory::new());

/// Registered memory of the program. Its owner drops it once the device knows the region no more.
pub(crate) struct Registered {
    name: (usize, u64),
}

impl Registered {
    /// Notes memory that is registered next, and moves it if `may_move` and nobody can write there.
    pub(crate) fn new(range: Range<usize>, may_move: bool) -> Self {
        forked::with_memory(|memory| {
            if may_move && memory.is_free(&range) {
                memory.move_in(&range);
            }
            Self { name: memory.note(&range) }
        })
    }
}
impl Drop for Registered {
    fn drop(&mut self) {
        forked::with_memory(|memory| {
            // A forked child has none of its parent's.
            if let Some(end) = memory.registered.remove(&self.name) {
                memory.move_back(&(self.name.0..end));
            }
        });
    }
}

impl Memory {
    pub(crate) const fn new() -> Self {
        Self {
            registered: BTreeMap::new(),
            registrations: 0,
            longest: 0,
            moved: BTreeMap::new(),
            vain: 0,
            splits: 0,
            for_child: None,
        }
    }
    /// That of a forked child, which has copies of its own. Registrations of its parent are no name of the child's.
    pub(crate) fn of_child(&self) -> Self {
        Self { registrations: self.registrations, ..Self::new() }
    }
    /// Notes that a region has these bytes; its name.
    fn note(&mut self, range: &Range<usize>) -> (usize, u64) {
        self.registrations += 1;
        self.longest = self.longest.max(range.len());
        let name = (range.start, self.registrations);
        self.registered.insert(name, range.end);
        name
    }
    /// Whether no region has any of these bytes.
    fn is_free(&self, range: &Range<usize>) -> bool {
        let first = range.start.saturating_sub(self.longest);
        self.registered.range((first, 0)..(range.end, 0)).all(|(_, &end)| end <= range.start)
    }
    /// The moved pages that have any of these bytes.
    fn moved_in(&self, range: &Range<usize>) -> Vec<SharedPages> {
        let has = |pages: &&SharedPages| place_of(pages).end > range.start;
        self.moved.range(..range.end).map(|(_, moved)| &moved.pages).filter(has).cloned().collect()
    }
    /// Moves a range that no region has, if it may be.
    fn move_in(&mut self, range: &Range<usize>) {
        let is_whole =
            range.start.is_multiple_of(PAGE) && range.len().is_multiple_of(PAGE) && range.len() <= MAX;
        let is_worn = self.vain >= VAIN || self.splits >= SPLITS;
        if !is_whole || is_worn || self.moved.len() >= MAX_SHARED_ALLOCATIONS as usize || !can_move() {
            return;
        }
        // Pages of an earlier region may have stayed.
        self.move_back(range);
        if !self.moved_in(range).is_empty() || !self.has_ends() {
            return;
        }
        let Some(at) = NonNull::new(core::ptr::with_exposed_provenance_mut::<u8>(range.start)) else {
            return;
        };
        let Some(own) = own_mappings(range) else { return };
        hca_dma::survive();
        let begin = Instant::now();
        // SAFETY: whole pages of private memory without a file, which can be read and written. Writers wait, and this
        // thread's stack is elsewhere. A program leaves memory alone that it is registering: no call writes there.
        let moved = unsafe { SharedPages::move_in(at, range.len()) };
        // Where the system has no more pages, the memory stays where it is.
        if let Ok(pages) = moved {
            forked::watch();
            self.splits += u32::from(own.first().is_none_or(|mapping| mapping.range != *range));
            let at = Instant::now();
            self.moved.insert(range.start, Moved { pages, at, took: at - begin, has_ended: false });
        }
    }
    /// Makes pages that no region has any more memory of this process alone.
    fn move_back(&mut self, range: &Range<usize>) {
        for pages in self.moved_in(range) {
            let place = place_of(&pages);
            if forked::forks() || !self.is_free(&place) {
                continue;
            }
            if let Some(moved) = self.moved.get_mut(&place.start).filter(|moved| !moved.has_ended) {
                moved.has_ended = true;
                let pays = moved.at.elapsed() >= moved.took * PAYS;
                self.vain = if pays { 0 } else { self.vain + 1 };
            }
            pages.give_up();
            if can_move() && move_parts_back(&pages) {
                self.moved.remove(&place.start);
            } else {
                // The program has more threads, which may write: private copies of the file's pages, in their place.
                // Where the system has no memory for them, they stay as they are.
                let _ = pages.end();
            }
        }
    }
    /// Has sockets for the next child, if there are descriptors for them.
    pub(crate) fn has_ends(&mut self) -> bool {
        self.for_child = self.for_child.take().or_else(|| UnixStream::pair().ok());
        self.for_child.is_some()
    }
    /// The places of moved pages that the program has not unmapped.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub(crate) fn places(&self) -> std::io::Result<Vec<Mapping>> {
        let mut places = Vec::new();
        for moved in self.moved.values() {
            places.extend(moved.pages.mapped()?);
        }
        Ok(places)
    }
    pub(crate) fn is_any_moved(&self) -> bool {
        !self.moved.is_empty()
    }
}

/// Whether memory that no region has stays as it is for the time of a copy.
fn can_move() -> bool {
    is_only_thread_of_program() && !forked::forks()
}
fn place_of(pages: &SharedPages) -> Range<usize> {
    let start = pages.addr().addr().get();
    start..start + pages.len()
}

/// Makes all that is left of pages memory without a file; whether it could. Nobody writes there but threads of this
/// library.
fn move_parts_back(pages: &SharedPages) -> bool {
    hca_dma::survive();
    pages.mapped().is_ok_and(|parts| {
        parts.iter().all(|part| {
            let at = NonNull::new(core::ptr::with_exposed_provenance_mut(part.range.start));
            let make = || make_own(part);
            // SAFETY: whole pages of the file, of which this makes memory with the same bytes.
            let moved = at
                .filter(|_| part.rights == BOTH)
                .map(|at| unsafe { without_signals(|| hold_writers(at, part.range.len(), make)) });
            moved.flatten() == Some(true)
        })
    })
}

/// The mappings of a range that is all private memory without a file, and not where this thread's stack lies.
fn own_mappings(range: &Range<usize>) -> Option<Vec<Mapping>> {
    let here = core::ptr::from_ref(&range).addr();
    let mut next = range.start;
    let found = mappings(range.clone()).unwrap_or_default();
    let are_own = found.iter().all(|mapping| {
        let is_next = mapping.range.start <= next;
        next = mapping.range.end;
        is_next
            && mapping.rights == BOTH
            && mapping.backing == Backing::Anonymous
            && !mapping.range.contains(&here)
    });
    (are_own && next >= range.end).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_found_behind_shorter_ones_and_a_child_gives_no_name_twice() {
        let mut memory = Memory::new();
        let first = memory.note(&(0x1000..0x9000));
        memory.note(&(0x2000..0x3000));
        let free = [0..0x1000, 0x8fff..0xa000, 0x9000..0xa000, 0..0xa000].map(|range| memory.is_free(&range));
        assert_eq!(free, [true, false, true, false]);
        let mut child = memory.of_child();
        assert!(child.is_free(&(0..0xa000)) && child.note(&(0x1000..0x9000)) != first);
    }
}
