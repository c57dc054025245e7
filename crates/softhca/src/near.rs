//! Direct access to the memory of peers on this machine: WRITE, READ, atomics, ATOMIC WRITE and FLUSH done by the
//! requester's side, once, on memory that the peer has granted. Everything else goes as a message.

mod ops;
mod process;
mod regions;

use core::num::NonZeroU64;

use hca_core::{Access, Instant, Qpn, RemoteAddr, Rkey, SendOp, Sge};
use hca_fabric::{
    Bracket, Denied, FetchError, GrantId, LinkId, LoanTerms, MAX_QP_WORDS, Places, ProcessLoan, QpGuard,
    Reach, ShmFabric, Way,
};
use hca_transport::{Direct, Loan, LoanError};

use crate::engine::slot_of;
use crate::qp::RequestList;

pub(crate) use ops::{Atomic, AtomicWrite, Flush, Op, Piece, Read, Stop, Write};
use ops::{move_piece, target};
use process::{Stream, write_process};
use regions::{Answer, Refusal};
pub(crate) use regions::{Offer, Region, Regions};

/// A longer request waits until those before it are done, instead of going as messages.
const WORTH_WAITING: u32 = 32 << 10;

/// From so many bytes on memory that is not granted is lent to be fetched from this process: by measurement, one copy
/// by the kernel is quicker than two through the ring.
pub(crate) const PROCESS_MIN: u32 = 32 << 10;
/// The same of what peers read: one such response at a time stands until it was fetched, which has to be worth it.
pub(crate) const PROCESS_READ_MIN: u32 = 128 << 10;

/// What peers may do.
const RIGHTS: Access = Access::BY_PEERS;

/// The word of a queue pair by which peers may reach memory: its number, protection domain, rights.
pub(crate) fn qp_word(number: u32, pd: u32, access: Access) -> u64 {
    u64::from(number) << 32
        | u64::from(pd & 0xff_ffff) << 8
        | u64::from(access.intersection(RIGHTS).bits())
        | 1
}

/// What has to stand on the peer's board, and what its queue pair then allows.
#[derive(Clone, Copy)]
struct Guard {
    qp: QpGuard,
    pd: u32,
    access: Access,
}

/// What a queue pair knows of its peer on this machine.
pub(crate) struct Near {
    pub(crate) link: LinkId,
    guard: Option<Guard>,
    /// The way to the region that was used last.
    lane: Option<Lane>,
    /// The key that the peer was asked for and has not answered.
    asked: Option<u32>,
    /// The peer refused this queue pair something while it has no guard.
    refused: Option<Refusal>,
    /// How WRITEs into the peer's process follow one another.
    stream: Stream,
}

impl Near {
    pub(crate) fn new(link: LinkId) -> Self {
        Self { link, guard: None, lane: None, asked: None, refused: None, stream: Stream::default() }
    }
    /// The peer answered the question for this key, and told the word of its queue pair.
    pub(crate) fn answered(&mut self, key: u32, granted: Option<(QpGuard, u64)>, now: Instant) {
        if self.asked == Some(key) {
            self.asked = None;
        }
        if let Some((qp, word)) = granted.filter(|(_, word)| *word != 0) {
            let access = Access::from_bits_truncate(word as u8).intersection(RIGHTS);
            self.guard = Some(Guard { qp, pd: (word >> 8) as u32 & 0xff_ffff, access });
            self.lane = None;
        }
        self.refused = self.guard.is_none().then(|| Refusal::after(self.refused, now));
    }
    /// Asks the peer for a key by way of its queue pair, unless it was asked already. A queue pair that nothing is
    /// reached through, as it is not connected yet, is looked at again later.
    #[cold]
    pub(crate) fn ask(&mut self, key: u32, peer: Qpn, regions: &mut Regions, shm: &mut ShmFabric) {
        if self.asked.is_some() {
            return;
        }
        let slot = Some(slot_of(peer.raw())).filter(|slot| *slot < MAX_QP_WORDS);
        if slot.and_then(|slot| shm.qp_word(self.link, slot)).unwrap_or(0) == 0 {
            self.refused = Some(Refusal::not_asked(regions.now));
            return regions.put_off(self.link, key);
        }
        if shm.ask_grant(self.link, key, peer.raw()).is_ok() {
            self.asked = Some(key);
            if self.refused.is_some() || regions.is_refused(self.link, key) {
                regions.note_repeat();
            }
        }
    }
    /// The way to the region of a key, if all is there that an access to it needs. `Err`: whether to ask for it.
    #[inline]
    fn find(&mut self, key: u32, regions: &Regions) -> Result<Lane, bool> {
        if let Some(lane) = self.lane.filter(|lane| lane.key == key) {
            return Ok(lane);
        }
        let region = match regions.asked.get(&(self.link, key)) {
            Some(Answer::Granted(region)) => *region,
            Some(Answer::Refused(refusal)) => return Err(regions.is_over(refusal)),
            None => return Err(true),
        };
        let asks = || self.refused.is_none_or(|refusal| regions.is_over(&refusal));
        let guard = self.guard.ok_or_else(asks)?;
        Ok(*self.lane.insert(Lane::new(region, guard)))
    }
    /// The way to the region that was used last, if loads and stores reach it.
    pub(crate) fn lane(&self) -> Option<Lane> {
        self.lane.filter(|lane| !lane.in_process)
    }
}

/// The way to a peer's region by way of its queue pair: where it is, how far it reaches, with which rights, and as long
/// as what on the peer's board. A bracket finds out whether that still stands there.
#[derive(Clone, Copy)]
pub(crate) struct Lane {
    key: u32,
    /// Those that the region and the queue pair give.
    rights: Access,
    iova: u64,
    len: u64,
    grant: GrantId,
    qp: QpGuard,
    in_process: bool,
}

impl Lane {
    fn new(region: Region, guard: Guard) -> Self {
        let Region { key, grant, iova, len, access, pd, in_process } = region;
        let rights = if pd == guard.pd { access.intersection(guard.access) } else { Access::empty() };
        Self { key, rights, iova, len, grant, qp: guard.qp, in_process }
    }
}

/// A lane as the poster has it, as long as the queue pair's lanes are those of this word.
pub(crate) struct PostersLane {
    pub(crate) word: NonZeroU64,
    pub(crate) send_cq: u32,
    key: u32,
    rights: Access,
    iova: u64,
    way: Way,
}

impl PostersLane {
    /// `None`: the region is not mapped any more.
    pub(crate) fn new(word: NonZeroU64, send_cq: u32, lane: Lane, shm: &mut ShmFabric) -> Option<Self> {
        let Lane { key, rights, iova, grant, qp, .. } = lane;
        Some(Self { word, send_cq, key, rights, iova, way: shm.way(grant, qp)? })
    }
    /// Where in the region an access begins, if this is the way to it. One that begins before the region begins far
    /// behind it here, and the bracket refuses that.
    #[inline(always)]
    pub(crate) fn place(&self, remote: RemoteAddr, right: Access) -> Option<u64> {
        let Self { key, rights, iova, .. } = self;
        (*key == remote.rkey.raw() && rights.contains(right)).then(|| remote.addr.wrapping_sub(*iova))
    }
    /// Begins an access. `None`: [`carry_out`] is to find out why not.
    #[inline(always)]
    pub(crate) fn enter<'a>(&self, shm: &'a mut ShmFabric) -> Option<Bracket<'a>> {
        shm.access_by(&self.way)
    }
}

/// Near work of a queue pair: the questions for its peer, and the progress of its next request.
#[derive(Default)]
pub(crate) struct NearWork {
    /// The key to ask for.
    pub(crate) key: Option<u32>,
    /// A key of ours to offer.
    pub(crate) offer: Option<u32>,
    /// This process is to be offered.
    pub(crate) process: bool,
    /// Bytes of the next request that are moved.
    offset: u32,
    /// Bytes moved since the caller last looked.
    pub(crate) moved: usize,
}

impl NearWork {
    #[inline]
    pub(crate) fn asks_peer(&self) -> bool {
        self.key.is_some() || self.offer.is_some() || self.process
    }
}

/// A queue pair's slot, and its word on the board.
pub(crate) type OwnWord = (u32, u64);

/// The part of a local list's entry that the peer may fetch by itself; it stands at `at`.
pub(crate) fn lend(
    near: Option<&Near>,
    work: &mut NearWork,
    regions: &Regions,
    reach: Option<&Reach<'_>>,
    (s, at): (Sge, *mut u8),
    own: OwnWord,
) -> Option<Loan> {
    let key = s.lkey.raw();
    let Some(near) = near else {
        work.offer = Some(key);
        return None;
    };
    match regions.offered.get(&(near.link, key)) {
        Some((Offer::Taken, _)) => {
            let memory = RemoteAddr { addr: s.addr, rkey: Rkey::new(key) };
            Some(Loan { memory, len: s.len, terms: None })
        }
        Some((Offer::Vain, refusal)) => {
            if refusal.is_none_or(|refusal| regions.is_over(&refusal)) {
                work.offer = Some(key);
            }
            lend_process(Some(near), work, regions, reach, (key, at, s.len), own)
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
    near: Option<&Near>,
    work: &mut NearWork,
    regions: &Regions,
    reach: Option<&Reach<'_>>,
    (key, at, len): (u32, *mut u8, u32),
    (slot, word): OwnWord,
) -> Option<Loan> {
    if len < PROCESS_MIN || word == 0 {
        return None;
    }
    match near.map(|near| regions.processes.get(&near.link)) {
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
    near: Option<&Near>,
    reach: Option<&mut Reach<'_>>,
    loan: &Loan,
    terms: LoanTerms,
    places: &Places,
) -> Result<(), LoanError> {
    let (near, reach) = near.zip(reach).ok_or(LoanError::Gone)?;
    let len = loan.len as usize;
    let loan = ProcessLoan { addr: loan.memory.addr, len, key: loan.memory.rkey.raw(), terms };
    // SAFETY: our caller's.
    unsafe { reach.fetch(near.link, &loan, places) }.map_err(|e| match e {
        // Copies by the ring would touch memory that this program may have unmapped.
        FetchError::Fault if !hca_dma::survives() => LoanError::Bad,
        // Either side's program may have unmapped its memory: those copies find out which.
        FetchError::Gone | FetchError::Fault => LoanError::Gone,
    })
}

/// Begins to fetch from memory that the peer lends; returns where the loan begins in it.
pub(crate) fn fetch<'r>(
    near: Option<&Near>,
    regions: &Regions,
    reach: &'r mut Reach<'_>,
    loan: &Loan,
) -> Option<(Bracket<'r>, u64)> {
    let near = near?;
    let region = regions.lent.get(&(near.link, loan.memory.rkey.raw()))?;
    let at = loan.memory.addr.checked_sub(region.iova)?;
    let within = at <= region.len && u64::from(loan.len) <= region.len - at;
    let guard = near.guard.filter(|_| within)?;
    Some((reach.access(region.grant, &guard.qp).ok()?, at))
}

/// Carries out the next piece of a request on the peer's memory, if that may be.
#[inline]
pub(crate) fn carry_out(
    near: Option<&mut Near>,
    work: &mut NearWork,
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
    let Some(near) = near else {
        work.key = Some(key);
        return Direct::Unable;
    };
    let lane = match near.find(key, regions) {
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
        let written = may_be.then(|| write_process(near, &lane, reach, list, at, len));
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
            (near.guard, near.lane) = (None, None);
            Err(Stop::Remote)
        }
        Err(_) => {
            near.lane = None;
            Err(Stop::Remote)
        }
    };
    match done {
        Ok(moved) => {
            work.moved += moved;
            if work.offset < len {
                return Direct::Again;
            }
            work.offset = 0;
            Direct::Done
        }
        Err(stop) => {
            work.offset = 0;
            match stop {
                Stop::Local(e) => Direct::Fail(e),
                Stop::Remote => Direct::Unable,
            }
        }
    }
}
