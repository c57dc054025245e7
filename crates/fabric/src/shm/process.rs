//! Fetches from peers' processes by `process_vm_readv`: one copy of memory that the library did not allocate.
//!
//! The owner of the data announces its address, and the receiver fetches it:
//!
//! ```text
//! owner                                            fetches
//! Process: its pid, a word, and where that is ───► opens a pidfd, reads the word there by the pid
//!                        ◄─── Fetches: yes or no
//! by a message: where, how much, terms        ───► terms hold? copies; terms hold still, process lives? takes it
//! ```
//!
//! The terms are two words of the owner's board: the word of its queue pair, and a word for the memory's key. The owner
//! changes them when it ends the loan, and waits for no receiver: a receiver that copied meanwhile discards its copy,
//! since its check after the copy finds other terms. If the process of a pid is alive after the copy, the pid was that
//! process's during the copy. A process that runs another program (`exec`) keeps its pid and lives, and its board stays
//! as it was. So each call that copies also reads the word, which the other program does not have there.
//!
//! Invariants:
//! 1. The kernel writes only to the local ranges, which the caller guarantees to be valid, and reads only the peer's
//!    process.
//! 2. Structures that system calls take or fill live until the call returns, and have the sizes that the calls are
//!    given.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use hca_core::counters;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use super::board::{Bits, LOAN_WORDS_AT, QP_WORDS_AT};
use super::grant::{GrantId, LinkId, MAX_LOAN_PLACES, MAX_QP_WORDS};
use super::memory::{Segment, Window};
use super::options::ProcessVm;
use super::pages::PAGE;
use super::process_write;
use super::process_write::ProcessMemory;
use crate::cred::PeerCred;

/// Words on the board that say of keys whether what was lent by them still is; several keys share one.
const LOAN_WORDS: u32 = (PAGE / 4) as u32;

/// By this a peer knows that a pid is this process's: a word that nobody can guess, at an address that it is told.
pub(super) static PROOF: AtomicU64 = AtomicU64::new(0);

/// Where the loan word of a key stands on a board. Its low bits are a tag, the others well mixed.
pub(super) fn loan_word_at(key: u32) -> usize {
    LOAN_WORDS_AT + ((key >> 8) % LOAN_WORDS) as usize * 4
}

/// The words that the owner's board must hold before and after a copy. Made by [`Reach::terms`](crate::Reach::terms).
pub type LoanTerms = [u64; 2];

/// Memory of a peer's process that a message lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessLoan {
    /// The address in the peer's process.
    pub addr: u64,
    /// Bytes.
    pub len: usize,
    /// The key by which the peer holds the memory.
    pub key: u32,
    /// The words to check, as the peer sent them.
    pub terms: LoanTerms,
}

/// The reason why a fetch failed. The destination then holds undefined bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The memory is out of reach, or the loan has ended: the owner has to send it by the ring.
    #[error("the lent memory can't be read")]
    Gone,
    /// The peer lends memory that it does not have.
    #[error("the peer offers memory that it does not have")]
    Fault,
}

/// The destinations of fetched bytes, in order.
pub struct Places {
    list: [libc::iovec; MAX_LOAN_PLACES],
    len: usize,
    bytes: usize,
}

impl Default for Places {
    fn default() -> Self {
        let none = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        Self { list: [none; MAX_LOAN_PLACES], len: 0, bytes: 0 }
    }
}

impl Places {
    /// Appends a destination; `false`: there are [`MAX_LOAN_PLACES`] already.
    pub fn push(&mut self, at: *mut u8, len: usize) -> bool {
        let Some(place) = self.list.get_mut(self.len) else { return false };
        *place = libc::iovec { iov_base: at.cast(), iov_len: len };
        self.len += 1;
        self.bytes += len;
        true
    }
}

/// Copies from a process to places of ours, and then a word; the bytes that were there, and the word if it was.
///
/// # Safety
/// The places are mapped and writable for the call, and others may change them.
unsafe fn read_process(
    pid: Pid,
    places: &Places,
    addr: u64,
    word_at: u64,
) -> Result<(usize, Option<u64>), Errno> {
    const WORD: usize = size_of::<u64>();
    let piece = |at: u64, len| libc::iovec { iov_base: at as *mut libc::c_void, iov_len: len };
    let remote = [piece(addr, places.bytes), piece(word_at, WORD)];
    let mut word = 0_u64;
    let mut local = [piece(0, 0); MAX_LOAN_PLACES + 1];
    local[..places.len].copy_from_slice(&places.list[..places.len]);
    local[places.len] = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: WORD };
    // SAFETY: (1) our caller's, and a word of ours; (2) both lists are as long as is told.
    let read = unsafe {
        libc::process_vm_readv(
            pid.as_raw_nonzero().get(),
            local.as_ptr(),
            places.len as libc::c_ulong + 1,
            remote.as_ptr(),
            2,
            0,
        )
    };
    let read = usize::try_from(read).map_err(|_| last_error())?;
    let all = places.bytes + WORD;
    Ok(if read == all { (places.bytes, Some(word)) } else { (read.min(places.bytes), None) })
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// A word of a process.
fn read_word(pid: Pid, addr: u64) -> Result<u64, Errno> {
    // SAFETY: there are no places.
    let (_, word) = unsafe { read_process(pid, &Places::default(), addr, addr) }?;
    word.ok_or(Errno::FAULT)
}

/// A peer's process whose memory can be read.
pub(super) struct Lender {
    pub(super) pid: Pid,
    pub(super) pidfd: OwnedFd,
    pub(super) board: Window,
    pub(super) there: Bits,
    /// The word that proves the process, and where it stands there.
    pub(super) proof: (u64, u64),
    pub(super) writes: Writes,
}

/// Whether a peer's process is written to.
pub(super) enum Writes {
    Untried,
    Open(Arc<ProcessMemory>),
    Refused,
}

impl Lender {
    /// The process at the other end of a socket, if it is the one that is told, and can be read.
    pub(super) fn prove(
        socket: &OwnedFd,
        pid: u32,
        addr: u64,
        proof: u64,
        board: Window,
    ) -> Result<Self, Errno> {
        // A process of another PID namespace has no number here, or another one than it knows.
        let known = PeerCred::of(socket)?.pid;
        let pid = i32::try_from(pid).ok().filter(|told| *told == known);
        let pid = pid.and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let (there, writes) = (Bits::default(), Writes::Untried);
        let lender = Self { pid, pidfd, board, there, proof: (addr, proof), writes };
        if read_word(pid, addr)? != proof || !lender.lives() {
            return Err(Errno::SRCH);
        }
        Ok(lender)
    }

    fn lives(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&none)), Ok(0))
    }

    /// Has a page of the board be there, which its owner may have left out.
    fn ready(&mut self, at: usize) -> bool {
        let page = at / PAGE;
        if !self.there.has(page) && self.board.populate(page * PAGE, PAGE).is_ok() {
            self.there.set(page);
        }
        self.there.has(page)
    }

    /// What the board says of a loan now.
    fn terms(&self, qp: u32, key: u32) -> LoanTerms {
        let word = self.board.word64(QP_WORDS_AT + qp as usize * 8, Ordering::Acquire);
        let loan = self.board.word(loan_word_at(key), Ordering::Acquire);
        [word, terms_word(qp, loan)]
    }

    /// # Safety
    /// As [`read_process`].
    pub(super) unsafe fn fetch(&mut self, loan: &ProcessLoan, places: &Places) -> Result<Fetched, Errno> {
        let qp = (loan.terms[1] >> 32) as u32;
        let fits =
            places.bytes == loan.len && loan.len > 0 && loan.addr.checked_add(loan.len as u64).is_some();
        if qp >= MAX_QP_WORDS || !fits || loan.terms[0] == 0 {
            return Ok(Fetched::Fault);
        }
        let ready = self.ready(QP_WORDS_AT + qp as usize * 8) && self.ready(LOAN_WORDS_AT);
        if !ready || self.terms(qp, loan.key) != loan.terms {
            return Ok(Fetched::Gone);
        }
        if !self.lives() {
            return Err(Errno::SRCH);
        }
        let (proof_at, proof) = self.proof;
        // SAFETY: our caller's.
        let read = unsafe { read_process(self.pid, places, loan.addr, proof_at) };

        #[cfg(test)]
        tests::behind_the_copy();
        // What was copied was lent, if the terms are found as they were behind the copy.
        fence(Ordering::Acquire);
        if !self.lives() {
            return Err(Errno::SRCH);
        }
        if self.terms(qp, loan.key) != loan.terms {
            return Ok(Fetched::Gone);
        }
        match read {
            Ok((bytes, Some(word))) if bytes == loan.len && word == proof => Ok(Fetched::Whole),
            Ok(_) | Err(Errno::FAULT) if read_word(self.pid, proof_at) == Ok(proof) => Ok(Fetched::Fault),
            // The process runs another program.
            Ok(_) => Err(Errno::SRCH),
            Err(e) => Err(e),
        }
    }
}

/// How a copy from a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetched {
    Whole,
    /// The terms are others.
    Gone,
    /// It was never lent, or is not there.
    Fault,
}

pub(super) fn terms_word(qp: u32, loan: u32) -> u64 {
    u64::from(qp) << 32 | u64::from(loan)
}

/// Lets every process of this user read this one, where Yama asks for it.
pub(super) fn let_all_read() {
    // SAFETY: takes numbers only. Without Yama it is refused, and not needed.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

counters! {
    Transfers, "", "shm_":
    process_fetches,
    process_fetch_bytes,
    process_writes,
    process_write_bytes,
}

/// What an adapter knows of processes that it fetches from, and what it says to those that fetch from it.
#[derive(Default)]
pub(super) struct Processes {
    pub(super) lenders: HashMap<LinkId, Lender>,
    /// This adapter's board, once its process was offered.
    pub(super) board: Option<Segment>,
    /// Those that the system turned out not to let us read, until their owners are told.
    pub(super) lost: Vec<(LinkId, Errno)>,
    /// Grants of memory that turned out not to be writable, until they are let go of.
    pub(super) failed: Vec<GrantId>,
    pub(super) transfers: Transfers,
}

impl Processes {
    pub(super) fn forget(&mut self, link: LinkId) {
        self.lenders.remove(&link);
        self.lost.retain(|(l, _)| *l != link);
    }
    /// The memory of the process of a peer, if that can be written.
    pub(super) fn memory_of(&mut self, link: LinkId) -> Option<Arc<ProcessMemory>> {
        let lender = self.lenders.get_mut(&link)?;
        if let Writes::Untried = lender.writes {
            let (addr, word) = lender.proof;
            let opened = match process_write::max_process_write() {
                0 => Err(Errno::NOSYS),
                // It lives behind that: the pid was its own meanwhile.
                _ => ProcessMemory::open(lender.pid.as_raw_nonzero().get(), addr, word)
                    .and_then(|memory| if lender.lives() { Ok(memory) } else { Err(Errno::SRCH) }),
            };
            lender.writes = opened.map_or_else(
                |why| {
                    tracing::debug!(%why, "a peer's process is not written to");
                    Writes::Refused
                },
                |memory| Writes::Open(Arc::new(memory)),
            );
        }
        if let Writes::Open(memory) = &lender.writes { Some(Arc::clone(memory)) } else { None }
    }
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.transfers.process_writes += 1;
        self.transfers.process_write_bytes += bytes as u64;
    }
    /// A write into a peer's process has failed: the process is written to no more.
    #[cold]
    pub(super) fn write_failed(&mut self, link: LinkId, grant: GrantId) {
        self.failed.push(grant);
        if let Some(lender) = self.lenders.get_mut(&link) {
            lender.writes = Writes::Refused;
        }
    }
}

/// For people: how memory of the program's own travels.
pub(super) fn describe(process_vm: ProcessVm) -> String {
    const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
    let by_ring = |why: String| format!("two copies through the ring: {why}");
    if process_vm == ProcessVm::No {
        return by_ring("the device was opened with process_vm=no or isolated=yes".to_owned());
    }
    let word = AtomicU64::new(1);
    if let Err(e) = read_word(getpid(), (&raw const word).addr() as u64) {
        return by_ring(format!("process_vm_readv: {}", io::Error::from(e)));
    }
    let scope = std::fs::read_to_string(SCOPE).ok().and_then(|s| s.trim().parse::<u32>().ok()).unwrap_or(0);
    match scope {
        1 if process_vm != ProcessVm::Any => by_ring(format!(
            "{SCOPE} is 1; process_vm=any lets all processes of this user read this one, or have whoever runs this \
             machine set it to 0"
        )),
        2.. => by_ring(format!("{SCOPE} is {scope}; it takes 0, or 1 and process_vm=any")),
        _ => "one copy by process_vm_readv, where the peer's process may be read".to_owned(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        static BEHIND: RefCell<Option<Box<dyn FnOnce()>>> = RefCell::default();
    }
    /// Has `f` run behind the next copy of this thread, before that is judged.
    pub(in super::super) fn at_the_end_of_the_next_copy(f: impl FnOnce() + 'static) {
        BEHIND.set(Some(Box::new(f)));
    }
    pub(in super::super) fn behind_the_copy() {
        if let Some(f) = BEHIND.take() {
            f();
        }
    }

    #[test]
    fn a_word_of_this_process_is_read_by_its_pid() {
        let word = AtomicU64::new(0x0123_4567_89ab_cdef);
        assert_eq!(read_word(getpid(), (&raw const word).addr() as u64), Ok(0x0123_4567_89ab_cdef));
        assert_eq!(read_word(getpid(), 8), Err(Errno::FAULT));
    }

    #[test]
    fn places_are_bounded() {
        let mut places = Places::default();
        let mut byte = 0_u8;
        for _ in 0..MAX_LOAN_PLACES {
            assert!(places.push(&raw mut byte, 1));
        }
        assert!(!places.push(&raw mut byte, 1));
        assert_eq!(places.bytes, MAX_LOAN_PLACES);
    }
}
