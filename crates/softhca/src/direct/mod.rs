//! Direct access to the memory of peers on this machine: WRITE, READ, atomics, ATOMIC WRITE and FLUSH done by the
//! requester's side, once, on memory that the peer has granted. Everything else goes as a message.

pub(crate) mod list;
pub(crate) mod ops;
mod process;

use hca_core::{RemoteAddr, Rkey, SendOp, Sge};
use hca_fabric::{Bracket, Denied, FetchError, LinkId, LoanTerms, Places, ProcessLoan, Reach};
use hca_transport::{Direct, Loan, LoanError};

use crate::direct::list::RequestList;
use crate::direct::ops::{Stop, move_piece, target};
use crate::direct::process::write_process;
use crate::objects::direct::{DirectPeer, DirectWork, OwnWord};
use crate::objects::regions::{Offer, Regions};

/// A longer request waits until those before it are done, instead of going as messages.
const WORTH_WAITING: u32 = 32 << 10;

/// From so many bytes on memory that is not granted is lent to be fetched from this process: by measurement, one copy
/// by the kernel is quicker than two through the ring.
pub(crate) const PROCESS_MIN: u32 = 32 << 10;
/// The same of what peers read: one such response at a time stands until it was fetched, which has to be worth it.
pub(crate) const PROCESS_READ_MIN: u32 = 128 << 10;

/// The part of a local list's entry that the peer may fetch by itself; it stands at `at`.
pub(crate) fn lend(
    direct: Option<&DirectPeer>,
    work: &mut DirectWork,
    regions: &Regions,
    reach: Option<&Reach<'_>>,
    (s, at): (Sge, *mut u8),
    own: OwnWord,
) -> Option<Loan> {
    let key = s.lkey.raw();
    let Some(direct) = direct else {
        work.offer = Some(key);
        return None;
    };
    match regions.offered.get(&(direct.link, key)) {
        // The peer's queue pair has not heard of our word, or not when it was connected: the same offer tells it again.
        Some((Offer::Taken, _)) if work.told != own.1 => {
            work.offer = Some(key);
            None
        }
        Some((Offer::Taken, _)) => {
            let memory = RemoteAddr { addr: s.addr, rkey: Rkey::new(key) };
            Some(Loan { memory, len: s.len, terms: None })
        }
        Some((Offer::Vain, refusal)) => {
            if refusal.is_none_or(|refusal| regions.is_over(&refusal)) {
                work.offer = Some(key);
            }
            lend_process(Some(direct), work, regions, reach, (key, at, s.len), own)
        }
        Some((Offer::Made, _)) => None,
        None => {
            work.offer = Some(key);
            None
        }
    }
}

/// Memory of this process that the peer may fetch by itself although it is not granted.
pub(crate) fn lend_process(
    direct: Option<&DirectPeer>,
    work: &mut DirectWork,
    regions: &Regions,
    reach: Option<&Reach<'_>>,
    (key, at, len): (u32, *mut u8, u32),
    (slot, word): OwnWord,
) -> Option<Loan> {
    if len < PROCESS_MIN || word == 0 {
        return None;
    }
    match direct.map(|direct| regions.processes.get(&direct.link)) {
        Some(Some(Offer::Taken)) => {}
        Some(Some(_)) => return None,
        Some(None) | None => {
            work.process = true;
            return None;
        }
    }
    let terms = reach?.terms(key, slot, word)?;
    let memory = RemoteAddr { addr: at.expose_provenance() as u64, rkey: Rkey::new(key) };
    Some(Loan { memory, len, terms: Some(terms) })
}

/// Fetches from the peer's process what it lends.
///
/// # Safety
/// As [`Reach::fetch`].
#[allow(unsafe_code)] // passed on
pub(crate) unsafe fn fetch_process(
    link: Option<LinkId>,
    reach: Option<&mut Reach<'_>>,
    loan: &Loan,
    terms: LoanTerms,
    places: &Places,
) -> Result<(), LoanError> {
    let (link, reach) = link.zip(reach).ok_or(LoanError::Gone)?;
    let len = loan.len as usize;
    let loan = ProcessLoan { addr: loan.memory.addr, len, key: loan.memory.rkey.raw(), terms };
    // SAFETY: our caller's.
    unsafe { reach.fetch(link, &loan, places) }.map_err(|e| match e {
        // Copies by the ring would touch memory that this program may have unmapped.
        FetchError::Fault if !hca_dma::survives() => LoanError::Bad,
        // Either side's program may have unmapped its memory: those copies find out which.
        FetchError::Gone | FetchError::Fault => LoanError::Gone,
    })
}

/// Begins to fetch from memory that the peer lends; returns where the loan begins in it.
pub(crate) fn fetch<'r>(
    direct: Option<&DirectPeer>,
    regions: &Regions,
    reach: &'r mut Reach<'_>,
    loan: &Loan,
) -> Option<(Bracket<'r>, u64)> {
    let direct = direct?;
    let region = regions.lent.get(&(direct.link, loan.memory.rkey.raw()))?;
    let at = loan.memory.addr.checked_sub(region.iova)?;
    let within = at <= region.len && u64::from(loan.len) <= region.len - at;
    let guard = direct.guard.filter(|_| within)?;
    Some((reach.access(region.grant, &guard.qp).ok()?, at))
}

/// Carries out the next piece of a request on the peer's memory, if that may be.
#[inline]
pub(crate) fn carry_out(
    direct: Option<&mut DirectPeer>,
    work: &mut DirectWork,
    regions: &Regions,
    reach: &mut Reach<'_>,
    list: &RequestList<'_>,
    (op, len): (&SendOp, u32),
    behind: bool,
) -> Direct {
    let Some((remote, there, right)) = target(op, len) else {
        return Direct::Unable;
    };
    let key = remote.rkey.raw();
    let Some(direct) = direct else {
        work.key = Some(key);
        return Direct::Unable;
    };
    let lane = match direct.find(key, regions) {
        Ok(found) => found,
        Err(ask) => {
            work.key = ask.then_some(key).or(work.key);
            return Direct::Unable;
        }
    };
    let at = remote.addr.wrapping_sub(lane.iova);
    let within = remote.addr >= lane.iova && at <= lane.len && u64::from(there) <= lane.len - at;
    if !(within && lane.rights.contains(right)) {
        return Direct::Unable;
    }
    if lane.in_process {
        let may_be = matches!(op, SendOp::Write(_)) && !behind;
        let written = may_be.then(|| write_process(direct, &lane, reach, list, at, len));
        return match written.unwrap_or(Err(Stop::Remote)) {
            Ok(()) => {
                work.moved += len as usize;
                Direct::Done
            }
            Err(Stop::Local(e)) => Direct::Fail(e),
            Err(Stop::Remote) => Direct::Unable,
        };
    }
    if behind {
        return if len > WORTH_WAITING { Direct::Later } else { Direct::Unable };
    }
    let done = match reach.access(lane.grant, &lane.qp) {
        Ok(bracket) => move_piece(bracket, at, &mut work.offset, list, (op, len)),
        Err(Denied::QueuePair { .. }) => {
            (direct.guard, direct.lane) = (None, None);
            Err(Stop::Remote)
        }
        Err(_) => {
            direct.lane = None;
            Err(Stop::Remote)
        }
    };
    match done {
        Ok(moved) => {
            work.moved += moved;
            if work.offset < len { Direct::Again } else { Direct::Done }
        }
        Err(Stop::Local(e)) => Direct::Fail(e),
        Err(Stop::Remote) => Direct::Unable,
    }
}
