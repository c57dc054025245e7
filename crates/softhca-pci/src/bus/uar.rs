//! Doorbell pages (UAR): a file in memory as long as BAR 0, of which the client maps all but the first pages.
//!
//! The first page that is given out lies outside of the range that a client may map, so its doorbells arrive as
//! messages. The doorbells of event queues, which many queues share, are exact there. Another page has one event queue
//! at most, so that its latest doorbell is all there is to know. Pages that are given out later are polled. The server
//! takes a doorbell that is not zero and writes zero in its place. The doorbell says that a driver rang this page, and
//! which completion queue the driver armed. The work itself stands in the doorbell records, so that two doorbells in
//! one place lose nothing.
//!
//! A program has some pages, and most programs are idle. So each look polls the pages that were rung lately and some of
//! the others in turn. The server polls all pages before it sleeps.
//!
//! Invariants of the unsafe code:
//!
//! 1. `base` is a mapping of `BAR_BYTES` bytes, shared, readable and writable, from `new` to `drop`.
//! 2. Its file is as long, and is sealed against truncation before any client gets it, so no access ends in a signal.
//! 3. The mapping is accessed through atomics only, because clients may write to it at any time.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use hca_prm::{CQ_DOORBELL, CqDoorbell, CtrlSeg, EQ_ARM, EQ_CI, EqDoorbell};
use hca_process::memory_file;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::bus::registers::BAR_BYTES;

/// Bytes of a doorbell page.
pub(crate) const PAGE: u64 = 4096;
/// The first doorbell page: registers and vectors lie before it.
pub(crate) const FIRST_UAR: u32 = 16;
/// Doorbell pages that a function gives out at one time.
pub(crate) const MAX_UARS: u32 = 2048;
/// Where in a page send doorbells are, with two buffers each.
const SEND_SLOTS: [usize; 8] = [0x800, 0x900, 0xa00, 0xb00, 0xc00, 0xd00, 0xe00, 0xf00];
/// Looks in vain before a page is quiet, and how many of those that are quiet are looked at each time.
const PATIENCE: u32 = 1024;
const QUIET_A_LOOK: usize = 16;

/// Where event queues are armed and told how far they were read, if their page is polled. Of a driver that has written
/// both, either may be seen first.
const EVENT_SLOTS: [(usize, bool); 2] = [(EQ_CI, false), (EQ_ARM, true)];

/// A function's doorbell pages.
pub(crate) struct DoorbellPages {
    file: OwnedFd,
    base: NonNull<c_void>,
    /// Whether each is given out, from [`FIRST_UAR`] on.
    given: Vec<bool>,
    /// Those that are polled, with the looks since each was rung: first those that are looked at each time.
    polled: Vec<(u32, u32)>,
    busy: usize,
    /// Which of the others is the next one, and whether all of them are.
    next: usize,
    all: bool,
    /// Those that are to be looked at now.
    due: Vec<u32>,
    /// Those of them that an event queue is on.
    listening: Vec<u32>,
}

// SAFETY: (1) the mapping belongs to this value alone and may be used from any thread; (3) by atomics.
unsafe impl Send for DoorbellPages {}

impl DoorbellPages {
    pub(crate) fn new() -> std::io::Result<Self> {
        let file = memory_file("hca-doorbells", MemfdFlags::ALLOW_SEALING, BAR_BYTES)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a new mapping at a place that the kernel chooses; (2) the file is as long.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                BAR_BYTES as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        let base = NonNull::new(base).expect("a mapping is not at address 0");
        Ok(Self {
            file,
            base,
            given: vec![false; MAX_UARS as usize],
            polled: Vec::new(),
            busy: 0,
            next: 0,
            all: false,
            due: Vec::new(),
            listening: Vec::new(),
        })
    }

    /// Has the next look at them panic.
    #[cfg(test)]
    pub(crate) fn sabotage(&mut self) {
        self.polled.push((0, 0));
    }

    /// The file, which is as long as the BAR.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Gives a page out: the first one if that is free.
    pub(crate) fn alloc(&mut self) -> Option<u32> {
        let at = self.given.iter().position(|given| !given)?;
        self.given[at] = true;
        let uar = FIRST_UAR + at as u32;
        if uar != FIRST_UAR {
            for slot in SEND_SLOTS.into_iter().chain([CQ_DOORBELL]) {
                self.word(uar, slot).store(0, Ordering::Relaxed);
            }
            self.polled.push((uar, 0));
        }
        Some(uar)
    }

    /// Takes a page back. Returns whether it was given out.
    pub(crate) fn free(&mut self, uar: u32) -> bool {
        if !self.is_given(uar) {
            return false;
        }
        self.given[(uar - FIRST_UAR) as usize] = false;
        if let Some(at) = self.polled.iter().position(|polled| polled.0 == uar) {
            self.polled.remove(at);
            self.busy -= usize::from(at < self.busy);
        }
        self.remove_event_queue(uar);
        true
    }

    /// An event queue is made on the page. Returns whether it can be: the page is given out, and shared by none where
    /// it is polled.
    pub(crate) fn listen(&mut self, uar: u32) -> bool {
        if uar == FIRST_UAR || !self.is_given(uar) {
            return self.is_given(uar);
        }
        if self.listening.contains(&uar) {
            tracing::debug!(
                uar,
                "a second event queue on a page that is mapped, where one's doorbell could hide the other's"
            );
            return false;
        }
        for (slot, _) in EVENT_SLOTS {
            self.word(uar, slot).store(0, Ordering::Relaxed);
        }
        self.listening.push(uar);
        true
    }

    /// The event queue on the page has gone.
    pub(crate) fn remove_event_queue(&mut self, uar: u32) {
        self.listening.retain(|listening| *listening != uar);
    }

    /// How many doorbells of event queues are polled.
    pub(crate) fn listening(&self) -> usize {
        self.listening.len() * EVENT_SLOTS.len()
    }

    /// Takes the polled doorbell number `at` of an event queue. Returns it, and whether it arms the queue.
    pub(crate) fn take_event(&self, at: usize) -> Option<(EqDoorbell, bool)> {
        let uar = *self.listening.get(at / EVENT_SLOTS.len())?;
        let (slot, arm) = EVENT_SLOTS[at % EVENT_SLOTS.len()];
        let word = self.word(uar, slot);
        if word.load(Ordering::Relaxed) == 0 {
            return None;
        }
        // Acquire: as in `take_rung`.
        let bytes = word.swap(0, Ordering::Acquire).to_ne_bytes();
        Some((EqDoorbell::from_array(*bytes.first_chunk().expect("shorter than a word")), arm))
    }

    /// Whether the page is given out.
    pub(crate) fn is_given(&self, uar: u32) -> bool {
        let at = uar.checked_sub(FIRST_UAR).and_then(|at| self.given.get(at as usize));
        at.copied().unwrap_or(false)
    }

    /// Takes all pages back.
    pub(crate) fn clear(&mut self) {
        self.given.fill(false);
        self.polled.clear();
        self.busy = 0;
        self.listening.clear();
    }

    /// Has all pages be looked at the next time.
    pub(crate) fn look_at_all(&mut self) {
        self.all = true;
    }

    /// Begins a look. Returns how many pages are to be looked at.
    pub(crate) fn begin_look(&mut self) -> usize {
        let quiet = self.polled.len() - self.busy;
        let count = if std::mem::take(&mut self.all) { quiet } else { quiet.min(QUIET_A_LOOK) };
        self.due.clear();
        self.due.extend(self.polled[..self.busy].iter().map(|(uar, _)| *uar));
        for _ in 0..count {
            self.next = (self.next + 1) % quiet;
            self.due.push(self.polled[self.busy + self.next].0);
        }
        let mut at = 0;
        while at < self.busy {
            self.polled[at].1 += 1;
            if self.polled[at].1 > PATIENCE {
                self.busy -= 1;
                self.polled.swap(at, self.busy);
            } else {
                at += 1;
            }
        }
        self.due.len()
    }

    /// A page was rung.
    fn stirred(&mut self, uar: u32) {
        if let Some(at) = self.polled.iter().position(|polled| polled.0 == uar) {
            self.polled[at].1 = 0;
            if at >= self.busy {
                self.polled.swap(at, self.busy);
                self.busy += 1;
            }
        }
    }

    /// How many pages are polled.
    pub(crate) fn polled(&self) -> usize {
        self.polled.len()
    }

    /// Takes the doorbell by which completion queues are armed from page number `at` of this look. Returns the page,
    /// the queue that it names, and its word. A driver of 32 bits writes the word first and then the number of the
    /// queue. No queue has the number 0, so a doorbell with that number is the first half of one, and is left for a
    /// later look.
    pub(crate) fn take_armed(&mut self, at: usize) -> Option<(u32, u32, u32)> {
        let uar = *self.due.get(at)?;
        let word = self.word(uar, CQ_DOORBELL);
        let cqn = CqDoorbell::from_array(word.load(Ordering::Relaxed).to_ne_bytes()).get(CqDoorbell::CQN);
        if cqn == 0 {
            return None;
        }
        // Acquire: as in `take_rung`.
        let bytes = word.swap(0, Ordering::Acquire).to_ne_bytes();
        self.stirred(uar);
        let doorbell = CqDoorbell::from_array(bytes);
        Some((uar, doorbell.get(CqDoorbell::CQN), u32::from_be_bytes(doorbell.record_word())))
    }

    /// Takes the send doorbells of page number `at` of this look, and names the queues that they are of. Returns the
    /// page if there were any.
    pub(crate) fn take_rung(&mut self, at: usize, mut named: impl FnMut(u32)) -> Option<u32> {
        let uar = *self.due.get(at)?;
        let mut rung = false;
        for slot in SEND_SLOTS {
            let word = self.word(uar, slot);
            if word.load(Ordering::Relaxed) != 0 {
                // Acquire: what the client wrote to its memory before it rang is seen behind this.
                let bytes = word.swap(0, Ordering::Acquire).to_ne_bytes();
                named(queue_of(bytes));
                rung = true;
            }
        }
        if rung {
            self.stirred(uar);
        }
        rung.then_some(uar)
    }

    /// A doorbell of a page that can be given out.
    fn word(&self, uar: u32, slot: usize) -> &AtomicU64 {
        assert!(
            (FIRST_UAR..FIRST_UAR + MAX_UARS).contains(&uar)
                && slot < PAGE as usize
                && slot.is_multiple_of(8)
        );
        // SAFETY: (1) the page lies within the mapping, as BAR_BYTES has room for MAX_UARS pages behind the first ones,
        // and the mapping lives as long as `self`; (2), (3) any bytes are an atomic, aligned to 8.
        unsafe { self.base.byte_add(uar as usize * PAGE as usize + slot).cast::<AtomicU64>().as_ref() }
    }
}

const _: () = assert!((FIRST_UAR + MAX_UARS) as u64 * PAGE <= BAR_BYTES);

impl Drop for DoorbellPages {
    fn drop(&mut self) {
        // SAFETY: (1) the mapping is this value's, and no reference into it outlives it.
        if let Err(e) = unsafe { munmap(self.base.as_ptr(), BAR_BYTES as usize) } {
            tracing::error!("unmapping doorbell pages failed: {e}");
        }
    }
}

/// The queue that a doorbell is of: it begins as a request does.
pub(crate) fn queue_of(doorbell: [u8; 8]) -> u32 {
    CtrlSeg::from_array(core::array::from_fn(|i| doorbell.get(i).copied().unwrap_or_default()))
        .get(CtrlSeg::QP_OR_SQ)
}

/// Whether a doorbell at this place in a page announces work or arms a completion queue.
pub(crate) fn is_doorbell(offset: u64) -> bool {
    SEND_SLOTS.iter().chain([&CQ_DOORBELL]).any(|slot| *slot as u64 == offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_rung_is_taken_once() {
        let mut pages = DoorbellPages::new().unwrap();
        let (trapped, first, second) =
            (pages.alloc().unwrap(), pages.alloc().unwrap(), pages.alloc().unwrap());
        assert_eq!((trapped, first, second), (FIRST_UAR, FIRST_UAR + 1, FIRST_UAR + 2));
        assert_eq!(pages.polled(), 2, "the first page is trapped");
        pages.word(second, 0x800).store(1, Ordering::Relaxed);
        pages.word(second, 0x900).store(1, Ordering::Relaxed);
        assert_eq!(pages.begin_look(), 2);
        pages.due.sort_unstable();
        assert_eq!(
            [pages.take_rung(0, drop), pages.take_rung(1, drop), pages.take_rung(1, drop)],
            [None, Some(second), None]
        );
    }

    #[test]
    fn a_doorbell_of_a_completion_queue_names_it() {
        let mut pages = DoorbellPages::new().unwrap();
        let (_, uar) = (pages.alloc(), pages.alloc().unwrap());
        let doorbell = CqDoorbell::new().with(CqDoorbell::CMD_SN, 1).with(CqDoorbell::CQN, 0x1234);
        pages.word(uar, 0x20).store(u64::from_ne_bytes(*doorbell.as_bytes()), Ordering::Relaxed);
        pages.begin_look();
        assert_eq!((pages.take_armed(0), pages.take_armed(0)), (Some((uar, 0x1234, 1 << 28)), None));
        assert_eq!(pages.take_rung(0, drop), None);
    }

    #[test]
    fn the_first_half_of_a_doorbell_waits_for_the_second() {
        let mut pages = DoorbellPages::new().unwrap();
        let (_, uar) = (pages.alloc(), pages.alloc().unwrap());
        let half = CqDoorbell::new().with(CqDoorbell::CMD_SN, 2).with(CqDoorbell::CI, 5);
        for (doorbell, taken) in [(half, None), (half.with(CqDoorbell::CQN, 9), Some((uar, 9, 2 << 28 | 5)))]
        {
            pages.word(uar, CQ_DOORBELL).store(u64::from_ne_bytes(*doorbell.as_bytes()), Ordering::Relaxed);
            pages.begin_look();
            assert_eq!(pages.take_armed(0), taken);
        }
    }

    #[test]
    fn a_page_that_is_polled_has_one_event_queue_and_its_doorbells_are_taken_once() {
        let mut pages = DoorbellPages::new().unwrap();
        let (trapped, uar) = (pages.alloc().unwrap(), pages.alloc().unwrap());
        assert!(pages.listen(trapped) && pages.listen(trapped) && !pages.listen(uar + 1));
        assert!(pages.listen(uar) && !pages.listen(uar));
        let ring = |pages: &DoorbellPages, slot, ci| {
            let [a, b, c, d] =
                *EqDoorbell::new().with(EqDoorbell::EQN, 7).with(EqDoorbell::CI, ci).as_bytes();
            pages.word(uar, slot).store(u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]), Ordering::Relaxed);
        };
        ring(&pages, EQ_ARM, 3);
        ring(&pages, EQ_CI, 2);
        let taken: Vec<_> = (0..pages.listening()).filter_map(|at| pages.take_event(at)).collect();
        let taken: Vec<_> = taken.iter().map(|(d, arm)| (d.get(EqDoorbell::CI), *arm)).collect();
        assert_eq!(taken, [(2, false), (3, true)]);
        assert!((0..pages.listening()).all(|at| pages.take_event(at).is_none()));
        ring(&pages, EQ_ARM, 3);
        pages.remove_event_queue(uar);
        assert!(pages.listening() == 0 && pages.listen(uar));
        assert!(pages.take_event(1).is_none(), "those of the queue before are forgotten");
        assert!(pages.free(uar) && pages.listening() == 0);
    }

    #[test]
    fn a_page_comes_back_without_the_doorbells_of_its_last_user() {
        let mut pages = DoorbellPages::new().unwrap();
        pages.alloc();
        let uar = pages.alloc().unwrap();
        pages.word(uar, 0x800).store(7, Ordering::Relaxed);
        assert!(pages.free(uar));
        assert!(!pages.free(uar) && !pages.free(3) && !pages.free(u32::MAX));
        assert_eq!((pages.alloc(), pages.begin_look()), (Some(uar), 1));
        assert_eq!(pages.take_rung(0, drop), None);
        while pages.alloc().is_some() {}
        assert_eq!(pages.polled(), MAX_UARS as usize - 1, "as many as there are, and no more");
    }

    #[test]
    fn of_many_pages_those_that_were_rung_lately_are_looked_at_each_time_and_the_others_in_turn() {
        const PAGES: u32 = 200;
        let mut pages = DoorbellPages::new().unwrap();
        let all: Vec<u32> = (0..=PAGES).filter_map(|_| pages.alloc()).collect();
        let ring = |pages: &DoorbellPages, uar| pages.word(uar, 0x800).store(1, Ordering::Relaxed);
        // Looks until it is found.
        let looks = |pages: &mut DoorbellPages, uar: u32| {
            (1_u32..)
                .find(|_| (0..pages.begin_look()).any(|at| pages.take_rung(at, drop) == Some(uar)))
                .unwrap()
        };
        let most = PAGES.div_ceil(QUIET_A_LOOK as u32);
        for uar in [all[7], all[PAGES as usize], all[100]] {
            ring(&pages, uar);
            assert!((1..=most).contains(&looks(&mut pages, uar)));
            ring(&pages, uar);
            assert_eq!(looks(&mut pages, uar), 1, "it was rung lately");
        }
        assert_eq!((pages.busy, pages.begin_look()), (3, 3 + QUIET_A_LOOK));
        // One that goes is not looked at, whichever it is.
        assert!(pages.free(all[7]) && pages.free(all[20]));
        assert_eq!((pages.busy, pages.polled()), (2, PAGES as usize - 2));
        // Quiet ones are found at once before the server sleeps.
        for _ in 0..=PATIENCE {
            pages.begin_look();
        }
        assert_eq!((pages.busy, pages.begin_look()), (0, QUIET_A_LOOK));
        for uar in [all[1], all[100]] {
            ring(&pages, uar);
            pages.look_at_all();
            assert_eq!(looks(&mut pages, uar), 1);
        }
    }

    #[test]
    fn a_client_can_not_cut_the_file() {
        let pages = DoorbellPages::new().unwrap();
        assert!(rustix::fs::ftruncate(pages.file(), 0).is_err());
    }
}
