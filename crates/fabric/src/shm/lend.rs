//! Memory of the program's own, as it is lent to peers and fetched from them.
#![allow(unsafe_code)] // a copy by the kernel, whose contract is passed on

use std::sync::atomic::{Ordering, fence};

use rustix::io::Errno;
use rustix::process::getpid;

use super::access::Reach;
use super::board::LOAN_WORDS_AT;
use super::chance::Refusable;
use super::error::GrantError;
use super::fabric::ShmFabric;
use super::grant::{LinkId, Notice};
use super::link::Stage;
use super::name::random;
use super::note::Note;
use super::options::ProcessVm;
use super::process::{
    FetchError, Fetched, Lender, LoanTerms, PROOF, Places, ProcessLoan, let_all_read, loan_word_at,
    terms_word,
};

impl Reach<'_> {
    /// The terms of a loan by a key, through the queue pair with this slot and word on the board.
    pub fn terms(&self, key: u32, qp: u32, qp_word: u64) -> Option<LoanTerms> {
        let board = self.processes().board.as_ref()?;
        let loan = board.word(loan_word_at(key)).load(Ordering::Relaxed);
        Some([qp_word, terms_word(qp, loan)])
    }

    /// Copies lent memory of a peer's process to local places of the same total length.
    ///
    /// # Errors
    /// The peer must send it through the ring, or the peer lends memory that it does not have.
    ///
    /// # Safety
    /// The places are mapped and writable for the call, and reached by others through copies and atomics only.
    pub unsafe fn fetch(
        &mut self,
        link: LinkId,
        loan: &ProcessLoan,
        places: &Places,
    ) -> Result<(), FetchError> {
        let processes = self.processes_mut();
        let lender = processes.lenders.get_mut(&link).ok_or(FetchError::Gone)?;
        // SAFETY: our caller's.
        match unsafe { lender.fetch(loan, places) } {
            Ok(Fetched::Whole) => {
                processes.transfers.process_fetches += 1;
                processes.transfers.process_fetch_bytes += loan.len as u64;
                Ok(())
            }
            Ok(Fetched::Gone) => Err(FetchError::Gone),
            Ok(Fetched::Fault) => Err(FetchError::Fault),
            Err(e) => {
                processes.lenders.remove(&link);
                processes.lost.push((link, e));
                Err(FetchError::Gone)
            }
        }
    }
}

impl ShmFabric {
    /// Allows a peer to fetch memory that messages lend from this process. [`Notice::ProcessTaken`] or
    /// [`Notice::ProcessLeft`] follows, the latter at any time.
    ///
    /// # Errors
    /// The peer is not there or belongs to another user, or this adapter does not share memory so.
    pub fn offer_process(&mut self, peer: LinkId) -> Result<(), GrantError> {
        self.links.trusted(peer)?;
        if self.own.process_vm == ProcessVm::No {
            return Err(GrantError::Isolated);
        }
        self.grants.ready(LOAN_WORDS_AT)?;
        let io = |e: Errno| GrantError::Io { doing: "drawing a number", source: e.into() };
        if PROOF.load(Ordering::Relaxed) == 0 {
            // Another adapter of this process may draw at the same time; the first one counts.
            let drawn = u64::from_ne_bytes(random().map_err(io)?) | 1;
            let _ = PROOF.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed);
        }
        if self.own.process_vm == ProcessVm::Any {
            let_all_read();
        }
        self.grants.mapped.processes.board = Some(self.grants.board());
        let direct = &mut self.links.linked(peer)?.direct;
        if !direct.process_offered {
            direct.process_offered = true;
            let (pid, addr) = (getpid().as_raw_nonzero().get() as u32, (&raw const PROOF).addr() as u64);
            self.send_note(peer, Note::Process { pid, addr, proof: PROOF.load(Ordering::Relaxed) }, None);
        }
        Ok(())
    }

    /// What was lent by a key is so no more: what peers have copied of it, and not taken yet, they throw away.
    pub(super) fn end_loans(&mut self, key: u32) {
        if let Some(board) = &self.grants.mapped.processes.board {
            board.word(loan_word_at(key)).fetch_add(1, Ordering::Release);
            // Whatever the program writes to the memory from now on comes behind that.
            fence(Ordering::SeqCst);
        }
    }

    /// A peer tells of its process.
    pub(super) fn hear_process(
        &mut self,
        peer: LinkId,
        pid: u32,
        addr: u64,
        proof: u64,
    ) -> Result<(), &'static str> {
        let wanted = self.own.process_vm != ProcessVm::No && !self.is_refused(Refusable::ProcessRead);
        let Ok(link) = self.links.linked(peer) else { return Ok(()) };
        if core::mem::replace(&mut link.direct.process_told, true) {
            return Err("it offers to read its process twice");
        }
        let (trusted, board) = (link.direct.trusted, link.direct.peer.as_ref().map(|p| p.board.clone()));
        let proved = match (&link.stage, board) {
            (Stage::Up(socket), Some(board)) if trusted && wanted => {
                Lender::prove(socket, pid, addr, proof, board)
            }
            _ => Err(Errno::PERM),
        };
        match proved {
            Ok(lender) => {
                self.counters.processes_fetched_from += 1;
                self.grants.mapped.processes.lenders.insert(peer, lender);
                self.send_note(peer, Note::Fetches { yes: true }, None);
            }
            Err(e) => self.cannot_fetch(peer, e),
        }
        Ok(())
    }

    #[cold]
    fn cannot_fetch(&mut self, peer: LinkId, why: Errno) {
        tracing::debug!(%why, "a peer's process can't be read: its messages go through the ring");
        self.counters.processes_not_readable += 1;
        self.send_note(peer, Note::Fetches { yes: false }, None);
    }

    /// A peer says whether it fetches from this process.
    pub(super) fn hear_fetches(&mut self, peer: LinkId, yes: bool) -> Result<(), &'static str> {
        let Ok(link) = self.links.linked(peer) else { return Ok(()) };
        if !link.direct.process_offered {
            return Err("it answers a question that was not asked");
        }
        let notice =
            if yes { Notice::ProcessTaken { link: peer } } else { Notice::ProcessLeft { link: peer } };
        self.notify(peer, notice);
        Ok(())
    }

    /// Once a tick: tells those whose process the system does not let us read any more.
    pub(super) fn tell_lost_processes(&mut self) {
        for (peer, why) in core::mem::take(&mut self.grants.mapped.processes.lost) {
            self.cannot_fetch(peer, why);
        }
        for grant in core::mem::take(&mut self.grants.mapped.processes.failed) {
            let Some(m) = self.grants.mapped.remove(grant) else { continue };
            self.send_note(m.link, Note::Left { key: m.key, times: m.times }, None);
            self.notify(m.link, Notice::GrantRevoked { link: m.link, key: m.key, grant });
        }
    }
}
