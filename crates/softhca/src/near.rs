//! Direct access to the memory of peers on this machine: WRITE, READ, atomics, ATOMIC WRITE and FLUSH done by the
//! requester's side, once, on memory that the peer has granted. Everything else goes as a message.

use core::hash::{BuildHasherDefault, Hasher};
use core::num::NonZeroU64;
use core::time::Duration;
use std::collections::HashMap;

use hca_core::wire::{Placement, Selectivity};
use hca_core::{Access, Instant, Qpn, RemoteAddr, Rkey, SendOp, Sge, WcOpcode};
use hca_fabric::{
    Bracket, Denied, FetchError, GrantId, Granted, LinkId, LoanTerms, MAX_BRACKET_BYTES, MAX_QP_WORDS,
    Places, ProcessLoan, QpGuard, Reach, ShmFabric,
};
use hca_transport::{Direct, Loan, LoanError, LocalError};

use crate::engine::slot_of;
use crate::qp::RequestList;

/// A longer request waits until those before it are done, instead of going as messages.
const WORTH_WAITING: u32 = 32 << 10;

/// From so many bytes on memory that is not granted is lent to be fetched from this process: by measurement, one copy
/// by the kernel is quicker than two through the ring.
pub(crate) const PROCESS_MIN: u32 = 32 << 10;
/// The same of what peers read: one such response at a time stands until it was fetched, which has to be worth it.
pub(crate) const PROCESS_READ_MIN: u32 = 128 << 10;

/// An aligned request of so many bytes is seen whole, from however many pieces.
const WHOLE_BYTES: usize = 8;

/// What a peer refused is asked for again when so much time has passed, and each further time after twice as much, up
/// to [`LONGEST_WAIT`]. As often a look says whether a peer's queue pair can be reached by now.
const FIRST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Between any two questions or offers that are repeated, of all queue pairs: they take less than a hundredth of a CPU.
const REPEATS_APART: Duration = Duration::from_millis(4);

/// What peers may do.
const RIGHTS: Access = Access::BY_PEERS;

/// The word of a queue pair by which peers may reach memory: how often it changed, protection domain, rights.
pub(crate) fn qp_word(times: u32, pd: u32, access: Access) -> u64 {
    u64::from(times) << 32
        | u64::from(pd & 0xff_ffff) << 8
        | u64::from(access.intersection(RIGHTS).bits())
        | 1
}

/// A peer's region that is mapped here.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    key: u32,
    grant: GrantId,
    iova: u64,
    len: u64,
    access: Access,
    pd: u32,
}

impl Region {
    pub(crate) fn new(key: u32, grant: GrantId, g: &Granted) -> Self {
        Self { key, grant, iova: g.iova, len: g.len, access: g.access, pd: g.pd }
    }
}

/// What was not to be had, perhaps for a state that passes, and when to try again.
#[derive(Clone, Copy)]
struct Refusal {
    again_at: Instant,
    /// Zero: the peer was not asked, as it can't have what it takes yet.
    wait: Duration,
}

impl Refusal {
    fn after(before: Option<Self>, now: Instant) -> Self {
        let wait = before.map_or(FIRST_WAIT, |b| (2 * b.wait).clamp(FIRST_WAIT, LONGEST_WAIT));
        Self { again_at: now + wait, wait }
    }
    fn not_asked(now: Instant) -> Self {
        Self { again_at: now + FIRST_WAIT, wait: Duration::ZERO }
    }
}

/// What a peer says of a key.
enum Answer {
    Granted(Region),
    Refused(Refusal),
}

/// A table by numbers of links and keys. Peers that choose keys are of this user, and have few regions each.
type ByKey<K, V> = HashMap<K, V, BuildHasherDefault<KeyHasher>>;

/// Mixes a few numbers by multiplications: messages that are lent look two of them up.
#[derive(Default)]
struct KeyHasher(u64);

impl KeyHasher {
    #[inline]
    fn mix(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.mix(byte.into()));
    }
    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.mix(number.into());
    }
    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.mix(number);
    }
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// What this adapter and its peers have let each other see.
#[derive(Default)]
pub(crate) struct Regions {
    /// The time, as of the last turn that looked at it.
    pub(crate) now: Instant,
    /// Until then nothing is asked or offered again.
    repeat_at: Instant,
    /// Peers' regions by key.
    asked: ByKey<(LinkId, u32), Answer>,
    /// Peers' regions that messages are fetched from.
    lent: ByKey<(LinkId, u32), Region>,
    /// Regions of ours that were offered for that, whether the peer has taken them, and when it last did not.
    offered: ByKey<(LinkId, u32), (Offer, Option<Refusal>)>,
    /// Whether peers fetch from this process what is not granted.
    processes: ByKey<LinkId, Offer>,
}

/// What became of an offer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    Made,
    Taken,
    /// A region is offered again some time later, a process is not.
    Vain,
}

impl Regions {
    pub(crate) fn insert(&mut self, link: LinkId, key: u32, region: Region) {
        self.asked.insert((link, key), Answer::Granted(region));
    }
    /// A peer refused a key. Another queue pair may have been granted it nevertheless.
    pub(crate) fn refuse(&mut self, link: LinkId, key: u32) {
        let answer = self.asked.entry((link, key)).or_insert(Answer::Refused(Refusal::not_asked(self.now)));
        if let Answer::Refused(refusal) = answer {
            *refusal = Refusal::after(Some(*refusal), self.now);
        }
    }
    /// A peer is not asked for a key yet.
    fn put_off(&mut self, link: LinkId, key: u32) {
        let answer = self.asked.entry((link, key)).or_insert(Answer::Refused(Refusal::not_asked(self.now)));
        if let Answer::Refused(refusal) = answer {
            *refusal = Refusal::not_asked(self.now);
        }
    }
    /// Whether what was refused may be tried again.
    #[inline]
    fn is_over(&self, refusal: &Refusal) -> bool {
        self.now >= refusal.again_at && (refusal.wait.is_zero() || self.now >= self.repeat_at)
    }
    fn note_repeat(&mut self) {
        self.repeat_at = self.now + REPEATS_APART;
    }
    pub(crate) fn insert_lent(&mut self, link: LinkId, key: u32, region: Region) {
        self.lent.insert((link, key), region);
    }
    pub(crate) fn set_offer(&mut self, link: LinkId, key: u32, offer: Offer) {
        let now = self.now;
        let (state, refusal) = self.offered.entry((link, key)).or_insert((offer, None));
        *state = offer;
        match offer {
            Offer::Vain => *refusal = Some(Refusal::after(*refusal, now)),
            Offer::Made if refusal.is_some() => self.note_repeat(),
            _ => {}
        }
    }
    pub(crate) fn set_process(&mut self, link: LinkId, offer: Offer) {
        self.processes.insert(link, offer);
    }
    /// Whether the peer was offered this process.
    pub(crate) fn has_process(&self, link: LinkId) -> bool {
        self.processes.contains_key(&link)
    }
    /// Whether a peer was asked for a key, and does not grant it.
    pub(crate) fn is_refused(&self, link: LinkId, key: u32) -> bool {
        matches!(self.asked.get(&(link, key)), Some(Answer::Refused(r)) if !r.wait.is_zero())
    }
    /// The peer took a region back.
    pub(crate) fn remove(&mut self, link: LinkId, key: u32) {
        self.asked.remove(&(link, key));
        self.lent.remove(&(link, key));
    }
    /// A key of ours ends.
    pub(crate) fn end_key(&mut self, key: u32) {
        if !self.offered.is_empty() {
            self.offered.retain(|(_, k), _| *k != key);
        }
    }
    pub(crate) fn forget(&mut self, link: LinkId) {
        self.asked.retain(|(l, _), _| *l != link);
        self.lent.retain(|(l, _), _| *l != link);
        self.offered.retain(|(l, _), _| *l != link);
        self.processes.remove(&link);
    }
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
}

impl Near {
    pub(crate) fn new(link: LinkId) -> Self {
        Self { link, guard: None, lane: None, asked: None, refused: None }
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
    /// The way to the region that was used last.
    pub(crate) fn lane(&self) -> Option<Lane> {
        self.lane
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
}

impl Lane {
    fn new(region: Region, guard: Guard) -> Self {
        let Region { key, grant, iova, len, access, pd } = region;
        let rights = if pd == guard.pd { access.intersection(guard.access) } else { Access::empty() };
        Self { key, rights, iova, len, grant, qp: guard.qp }
    }
}

/// A lane as the poster has it, as long as the queue pair's lanes are those of this word.
pub(crate) struct PostersLane {
    pub(crate) word: NonZeroU64,
    pub(crate) send_cq: u32,
    lane: Lane,
}

impl PostersLane {
    pub(crate) fn new(word: NonZeroU64, send_cq: u32, lane: Lane) -> Self {
        Self { word, send_cq, lane }
    }
    /// Where in the region an access begins, if this is the way to it. One that begins before the region begins far
    /// behind it here, and the bracket refuses that.
    #[inline(always)]
    pub(crate) fn place(&self, remote: RemoteAddr, right: Access) -> Option<u64> {
        let Lane { key, rights, iova, .. } = &self.lane;
        (*key == remote.rkey.raw() && rights.contains(right)).then(|| remote.addr.wrapping_sub(*iova))
    }
    /// Begins an access. `None`: [`carry_out`] is to find out why not.
    #[inline(always)]
    pub(crate) fn enter<'a>(&self, shm: &'a mut ShmFabric) -> Option<Bracket<'a>> {
        shm.try_access(self.lane.grant, &self.lane.qp)
    }
}

/// An operation on a peer's memory.
pub(crate) trait Op {
    /// The right to it.
    const RIGHT: Access;
    /// Data comes back.
    const FETCHES: bool;
    /// The request has a local list.
    const LIST: bool = true;
    /// Where it is done; `None` for another operation.
    fn remote(op: &SendOp) -> Option<RemoteAddr>;
    /// Whether a request of one piece may have this length.
    #[inline(always)]
    fn takes(len: u32) -> bool {
        len > 0
    }
    /// As its completion reports it.
    fn opcode(op: &SendOp) -> WcOpcode;
    /// Does it. A request whose local side does not hold, or that the peer has to judge, changes nothing.
    fn carry_out(op: &SendOp, bracket: &mut Bracket<'_>, at: u64, piece: &Piece<'_>) -> Result<(), Stop>;
}

/// WRITE.
pub(crate) struct Write;
/// READ.
pub(crate) struct Read;
/// Atomic operations.
pub(crate) struct Atomic;
/// ATOMIC WRITE and FLUSH, whose right is `RIGHT`.
pub(crate) struct Placed<const RIGHT: u8>;
/// ATOMIC WRITE.
pub(crate) type AtomicWrite = Placed<{ Access::REMOTE_WRITE.bits() }>;
/// FLUSH.
pub(crate) type Flush = Placed<{ Access::FLUSH_GLOBAL.bits() }>;

impl Op for Write {
    const RIGHT: Access = Access::REMOTE_WRITE;
    const FETCHES: bool = false;
    #[inline(always)]
    fn remote(op: &SendOp) -> Option<RemoteAddr> {
        if let SendOp::Write(remote) = op { Some(*remote) } else { None }
    }
    #[inline(always)]
    fn opcode(_: &SendOp) -> WcOpcode {
        WcOpcode::RdmaWrite
    }
    #[inline(always)]
    fn carry_out(_: &SendOp, bracket: &mut Bracket<'_>, at: u64, piece: &Piece<'_>) -> Result<(), Stop> {
        write(bracket, at, piece)
    }
}

impl Op for Read {
    const RIGHT: Access = Access::REMOTE_READ;
    const FETCHES: bool = true;
    #[inline(always)]
    fn remote(op: &SendOp) -> Option<RemoteAddr> {
        if let SendOp::Read(remote) = op { Some(*remote) } else { None }
    }
    #[inline(always)]
    fn opcode(_: &SendOp) -> WcOpcode {
        WcOpcode::RdmaRead
    }
    #[inline(always)]
    fn carry_out(_: &SendOp, bracket: &mut Bracket<'_>, at: u64, piece: &Piece<'_>) -> Result<(), Stop> {
        read(bracket, at, piece)
    }
}

impl Op for Atomic {
    const RIGHT: Access = Access::REMOTE_ATOMIC;
    const FETCHES: bool = true;
    #[inline(always)]
    fn remote(op: &SendOp) -> Option<RemoteAddr> {
        match op {
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => Some(*remote),
            _ => None,
        }
    }
    #[inline(always)]
    fn takes(len: u32) -> bool {
        len == 8
    }
    #[inline(always)]
    fn opcode(op: &SendOp) -> WcOpcode {
        op.wc_opcode()
    }
    #[inline(always)]
    fn carry_out(op: &SendOp, bracket: &mut Bracket<'_>, at: u64, piece: &Piece<'_>) -> Result<(), Stop> {
        give(&atomic(bracket, at, op)?.to_ne_bytes(), piece)
    }
}

impl<const BITS: u8> Op for Placed<BITS> {
    const RIGHT: Access = Access::from_bits_truncate(BITS);
    const FETCHES: bool = false;
    const LIST: bool = false;
    #[inline(always)]
    fn remote(op: &SendOp) -> Option<RemoteAddr> {
        target(op, 0).map(|(remote, ..)| remote)
    }
    #[inline(always)]
    fn opcode(op: &SendOp) -> WcOpcode {
        op.wc_opcode()
    }
    #[inline(always)]
    fn carry_out(op: &SendOp, bracket: &mut Bracket<'_>, at: u64, _: &Piece<'_>) -> Result<(), Stop> {
        placed(op, bracket, at)
    }
}

/// The place of an operation in the peer's memory, its length there, and the right to it. `None`: there is no such
/// place, or the peer has to judge.
#[inline(always)]
fn target(op: &SendOp, len: u32) -> Option<(RemoteAddr, u32, Access)> {
    let (remote, len, right) = match *op {
        SendOp::Write(remote) => (remote, len, Access::REMOTE_WRITE),
        SendOp::Read(remote) => (remote, len, Access::REMOTE_READ),
        SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => {
            (remote, len, Access::REMOTE_ATOMIC)
        }
        SendOp::AtomicWrite { remote, .. } if remote.addr.is_multiple_of(8) => {
            (remote, 8, Access::REMOTE_WRITE)
        }
        // One of a whole region has any address, so the peer finds it.
        SendOp::Flush {
            remote,
            len,
            placement: Placement::GLOBAL_VISIBILITY,
            selectivity: Selectivity::Range,
        } => (remote, len, Access::FLUSH_GLOBAL),
        _ => return None,
    };
    (len > 0).then_some((remote, len, right))
}

/// Where a piece of a request's local list stands.
pub(crate) enum Piece<'a> {
    /// Registered memory that others may change.
    Memory(*mut u8, usize),
    /// Bytes of the request itself.
    Inline(&'a [u8]),
}

impl Piece<'_> {
    /// Bytes of it.
    fn len(&self) -> usize {
        match *self {
            Self::Memory(_, len) => len,
            Self::Inline(bytes) => bytes.len(),
        }
    }
}

/// Why a piece was not moved.
pub(crate) enum Stop {
    Local(LocalError),
    /// The peer has to judge.
    Remote,
}
impl From<LocalError> for Stop {
    fn from(e: LocalError) -> Self {
        Self::Local(e)
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
        // Either side's program may have unmapped its memory: the copies by the ring find out which.
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

#[inline]
fn move_piece(
    mut bracket: Bracket<'_>,
    at: u64,
    offset: &mut u32,
    list: &RequestList<'_>,
    (op, len): (&SendOp, u32),
) -> Result<usize, Stop> {
    let whole = len;
    let len = ((len - *offset) as usize).min(MAX_BRACKET_BYTES);
    let begin = at + u64::from(*offset);
    // Nothing is moved of a request whose list does not hold; one entry is judged as it is copied.
    let holds = |piece: &Piece<'_>, i: usize, write: bool| match piece {
        Piece::Memory(_, size) if i == 0 && *size < len => {
            list.each(0, whole as usize, write, |_, _| Ok::<_, Stop>(()))
        }
        _ => Ok(()),
    };
    match *op {
        SendOp::Write(_) if whole as usize <= WHOLE_BYTES => {
            let mut word = [0; WHOLE_BYTES];
            list.each::<Stop>(0, len, false, |piece, i| {
                Ok(fetch_local(&piece, &mut word[i..i + piece.len()])?)
            })?;
            bracket.write(begin, &word[..len]).map_err(|_| Stop::Remote)?;
        }
        SendOp::Read(_) if whole as usize <= WHOLE_BYTES => {
            list.each::<Stop>(0, len, true, |_, _| Ok(()))?;
            let mut word = [0; WHOLE_BYTES];
            bracket.read(begin, &mut word[..len]).map_err(|_| Stop::Remote)?;
            list.each(0, len, true, |piece, i| give(&word[i..i + piece.len()], &piece))?;
        }
        SendOp::Write(_) => list.each(*offset, len, false, |piece, i| {
            holds(&piece, i, false)?;
            write(&mut bracket, begin + i as u64, &piece)
        })?,
        SendOp::Read(_) => list.each(*offset, len, true, |piece, i| {
            holds(&piece, i, true)?;
            read(&mut bracket, begin + i as u64, &piece)
        })?,
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
            // The local side is checked first, as the operation can't be taken back.
            list.each::<Stop>(0, 8, true, |_, _| Ok(()))?;
            let original = atomic(&mut bracket, at, op)?.to_ne_bytes();
            list.each(0, 8, true, |piece, i| give(&original[i..i + piece.len()], &piece))?;
        }
        _ => placed(op, &mut bracket, at)?,
    }
    *offset += len as u32;
    Ok(len)
}

#[allow(unsafe_code)] // the bracket's copies, each with its argument
#[inline(always)]
fn write(bracket: &mut Bracket<'_>, to: u64, piece: &Piece<'_>) -> Result<(), Stop> {
    let written = match *piece {
        Piece::Inline(bytes) => bracket.write(to, bytes),
        // SAFETY: the list was translated by the key table for this call, under the engine's lock; memory of a peer's
        // region that is registered here as well is moved by instructions that do not care.
        Piece::Memory(from, len) => unsafe { bracket.write_from(to, from, len) },
    };
    written.map_err(|_| Stop::Remote)?;
    Ok(crate::dma::copied().map_err(LocalError::from)?)
}

#[allow(unsafe_code)] // as above
#[inline(always)]
fn read(bracket: &mut Bracket<'_>, from: u64, piece: &Piece<'_>) -> Result<(), Stop> {
    match *piece {
        Piece::Inline(_) => Err(Stop::Local(LocalError::Protection)),
        // SAFETY: as in `write`, and the list was checked for writing.
        Piece::Memory(to, len) => unsafe { bracket.read_into(from, to, len) }.map_err(|_| Stop::Remote),
    }
}

/// Does an ATOMIC WRITE or FLUSH.
#[inline(always)]
fn placed(op: &SendOp, bracket: &mut Bracket<'_>, at: u64) -> Result<(), Stop> {
    let done = match *op {
        SendOp::AtomicWrite { value, .. } => bracket.write_word(at, u64::from_ne_bytes(value)),
        SendOp::Flush { len, .. } => bracket.flush(at, len.into()),
        _ => return Err(Stop::Remote),
    };
    done.map_err(|_| Stop::Remote)
}

/// The word's old value.
#[inline(always)]
fn atomic(bracket: &mut Bracket<'_>, at: u64, op: &SendOp) -> Result<u64, Stop> {
    let original = match *op {
        SendOp::CompareSwap { compare, swap, .. } => bracket.compare_swap(at, compare, swap),
        SendOp::FetchAdd { add, .. } => bracket.fetch_add(at, add),
        _ => return Err(Stop::Remote),
    };
    original.map_err(|_| Stop::Remote)
}

/// Loads the bytes of a piece, which are as many as `out` has.
///
/// # Errors
/// The program has unmapped them.
#[allow(unsafe_code)] // as above
#[inline]
fn fetch_local(piece: &Piece<'_>, out: &mut [u8]) -> Result<(), LocalError> {
    match *piece {
        Piece::Inline(bytes) => {
            out.copy_from_slice(bytes);
            Ok(())
        }
        Piece::Memory(from, len) => {
            assert_eq!(len, out.len(), "as many bytes as the piece has");
            // SAFETY: as in `write`.
            Ok(unsafe { crate::dma::load(from, out) }?)
        }
    }
}

/// Places what was fetched in a piece of as many bytes.
#[allow(unsafe_code)] // as above
#[inline(always)]
fn give(fetched: &[u8], piece: &Piece<'_>) -> Result<(), Stop> {
    debug_assert_eq!(fetched.len(), piece.len());
    match *piece {
        Piece::Inline(_) => Err(Stop::Local(LocalError::Protection)),
        Piece::Memory(to, _) => {
            // SAFETY: as in `read`.
            unsafe { crate::dma::store(to, fetched) };
            Ok(())
        }
    }
}
