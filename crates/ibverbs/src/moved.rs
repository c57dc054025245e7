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
//! - It is of whole pages, as peers map no less; it has no file and is no stack.
//!
//! Other memory stays where it is; the kernel writes there on behalf of peers. So does all memory of a program whose
//! regions live so shortly that moving them does not pay.
#![allow(unsafe_code)]

use core::ops::Range;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hca_dma::hold_writers;
use hca_fabric::SharedPages;
use hca_process::{Backing, is_only_thread_of_program, mappings, without_signals};

use crate::forked::{self, make_own};

const PAGE: usize = 4096;
/// The longest region that is moved: all its bytes are copied, once and back again.
const MAX: usize = 256 << 20;
/// A region pays if it lives so many times as long as it took to move it.
const PAYS: u32 = 16;
/// After so many regions in a row that did not pay, none is moved any more.
const VAIN: u32 = 16;

/// The memory of regions.
pub(crate) struct Memory {
    /// Registered memory: the end of each range by its first byte and a number.
    registered: BTreeMap<(usize, u64), usize>,
    registrations: u64,
    /// Pages that were moved, by their addresses. They stay where the program has more threads by the end of the region.
    moved: BTreeMap<usize, Moved>,
    /// The last regions that did not pay, in a row.
    vain: u32,
}
struct Moved {
    pages: SharedPages,
    at: Instant,
    took: Duration,
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
            memory.forget_unmapped(&range);
            if may_move && memory.is_free(&range) {
                memory.move_in(&range);
            }
            memory.registrations += 1;
            let name = (range.start, memory.registrations);
            memory.registered.insert(name, range.end);
            Self { name }
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
        Self { registered: BTreeMap::new(), registrations: 0, moved: BTreeMap::new(), vain: 0 }
    }
    /// Whether no region has any of these bytes.
    fn is_free(&self, range: &Range<usize>) -> bool {
        self.registered.range(..(range.end, 0)).all(|(&(_, _), &end)| end <= range.start)
    }
    /// The moved pages that have any of these bytes.
    fn moved_in(&self, range: &Range<usize>) -> Vec<SharedPages> {
        let has = |pages: &&SharedPages| place_of(pages).end > range.start;
        self.moved.range(..range.end).map(|(_, moved)| &moved.pages).filter(has).cloned().collect()
    }
    /// Forgets pages that the program has unmapped since they were moved: other memory may stand there.
    fn forget_unmapped(&mut self, range: &Range<usize>) {
        for pages in self.moved_in(range) {
            let is_whole =
                pages.mapped().is_ok_and(|parts| parts.iter().map(Range::len).sum::<usize>() == pages.len());
            if !is_whole {
                self.moved.remove(&place_of(&pages).start);
                let _ = pages.give_up();
            }
        }
    }
    /// Moves a range that no region has, if it may be.
    fn move_in(&mut self, range: &Range<usize>) {
        let is_whole =
            range.start.is_multiple_of(PAGE) && range.len().is_multiple_of(PAGE) && range.len() <= MAX;
        if !is_whole || self.vain >= VAIN || !can_move() {
            return;
        }
        // Those of an earlier region, which stayed.
        if self.moved.get(&range.start).is_some_and(|moved| moved.pages.len() == range.len()) {
            return;
        }
        self.move_back(range);
        let Some(at) = NonNull::new(core::ptr::with_exposed_provenance_mut::<u8>(range.start)) else {
            return;
        };
        if !is_own_memory(range) {
            return;
        }
        hca_dma::survive();
        let begin = Instant::now();
        // SAFETY: whole pages of private memory without a file, which can be read and written. Writers wait, and this
        // thread takes no signals. A program leaves memory alone that it is registering: no call writes there.
        let moved = unsafe {
            without_signals(|| hold_writers(at, range.len(), || SharedPages::move_in(at, range.len())))
        };
        // Where the system has no more pages, the memory stays where it is.
        if let Some(Ok(pages)) = moved {
            forked::watch();
            let at = Instant::now();
            self.moved.insert(range.start, Moved { pages, at, took: at - begin });
        }
    }
    /// Makes pages that no region has any more memory of this process alone, where the program has no other thread.
    fn move_back(&mut self, range: &Range<usize>) {
        let ended: Vec<_> =
            self.moved_in(range).into_iter().filter(|pages| self.is_free(&place_of(pages))).collect();
        if ended.is_empty() || !can_move() {
            return;
        }
        for pages in ended {
            if let Some(moved) = self.moved.remove(&place_of(&pages).start) {
                let pays = moved.at.elapsed() >= moved.took * PAYS;
                self.vain = if pays { 0 } else { self.vain + 1 };
            }
            let parts = pages.give_up().unwrap_or_default();
            for part in parts {
                let Some(at) = NonNull::new(core::ptr::with_exposed_provenance_mut(part.start)) else {
                    continue;
                };
                // A part that the system has no memory for stays as it is.
                // SAFETY: whole pages of the file, of which this makes memory with the same bytes.
                unsafe { without_signals(|| hold_writers(at, part.len(), || make_own(&part))) };
            }
        }
    }
    /// The places of moved pages that the program has not unmapped.
    pub(crate) fn places(&self) -> impl Iterator<Item = Range<usize>> {
        self.moved.values().flat_map(|moved| moved.pages.mapped().unwrap_or_default())
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

/// Whether all of a range is private memory without a file, and not where this thread's stack lies.
fn is_own_memory(range: &Range<usize>) -> bool {
    let here = core::ptr::from_ref(&range).addr();
    let mut next = range.start;
    let found = mappings(range.clone()).unwrap_or_default();
    let are_own = found.iter().all(|mapping| {
        let is_next = mapping.range.start <= next;
        next = mapping.range.end;
        is_next
            && mapping.is_writable
            && mapping.backing == Backing::Anonymous
            && !mapping.range.contains(&here)
    });
    are_own && next >= range.end
}
