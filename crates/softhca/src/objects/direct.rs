//! What a queue pair knows of its peer on this machine: the peer's word, the way to its regions; and what its own side
//! shows.

use core::num::NonZeroU64;

use hca_core::{Access, CqHandle, Instant, Qpn, RemoteAddr};
use hca_fabric::{Bracket, GrantId, LinkId, MAX_QP_WORDS, QpGuard, ShmFabric, TakeBackId, Way};

use crate::limits::slot_of;
use crate::objects::regions::{Answer, Refusal, Region, Regions};
use crate::objects::stream::Stream;

/// What peers may do.
const RIGHTS: Access = Access::BY_PEERS;

/// The right to ATOMIC WRITE, which needs that to WRITE, and room for its response: in words and lanes the bit of one that
/// no peer has here.
pub(crate) const ATOMIC_WRITE: Access = Access::FLUSH_PERSISTENT;

/// Rights to what has a response of its own, for which both queue pairs have room or not.
const ANSWERED: Access = RIGHTS.difference(Access::REMOTE_WRITE).union(ATOMIC_WRITE);

/// The accesses that a queue pair or a region with these rights lets peers do.
pub(crate) fn with_atomic_write(access: Access) -> Access {
    let access = access.intersection(RIGHTS);
    if access.contains(Access::REMOTE_WRITE) { access | ATOMIC_WRITE } else { access }
}

/// The rights that are left where a queue pair has room for so many responses.
pub(crate) fn with_room_for(responses: Option<u8>, access: Access) -> Access {
    if responses.unwrap_or(0) == 0 { access.difference(ANSWERED) } else { access }
}

/// The word of a queue pair by which peers may reach memory: its number, protection domain, rights.
pub(crate) fn qp_word(number: u32, pd: u32, access: Access) -> u64 {
    u64::from(number) << 32
        | u64::from(pd & 0xff_ffff) << 8
        | u64::from(access.intersection(RIGHTS | ATOMIC_WRITE).bits())
        | 1
}

/// What has to stand on the peer's board, and what its queue pair then allows.
#[derive(Clone, Copy)]
pub(crate) struct Guard {
    pub(crate) qp: QpGuard,
    pub(crate) pd: u32,
    pub(crate) access: Access,
}

/// What a queue pair knows of its peer on this machine.
pub(crate) struct DirectPeer {
    pub(crate) link: LinkId,
    pub(crate) guard: Option<Guard>,
    /// The way to the region that was used last.
    pub(crate) lane: Option<Lane>,
    /// The key that the peer was asked for and has not answered.
    pub(crate) asked: Option<u32>,
    /// The peer refused this queue pair something while it has no guard.
    pub(crate) refused: Option<Refusal>,
    /// How WRITEs into the peer's process follow one another.
    pub(crate) stream: Stream,
}

impl DirectPeer {
    pub(crate) fn new(link: LinkId) -> Self {
        Self { link, guard: None, lane: None, asked: None, refused: None, stream: Stream::default() }
    }
    /// The peer answered the question for this key, and told the word of its queue pair.
    pub(crate) fn answered(&mut self, key: u32, granted: Option<(QpGuard, u64)>, now: Instant) {
        if self.asked == Some(key) {
            self.asked = None;
        }
        if let Some((qp, word)) = granted.filter(|(_, word)| *word != 0) {
            let access = Access::from_bits_truncate(word as u8).intersection(RIGHTS | ATOMIC_WRITE);
            self.guard = Some(Guard { qp, pd: (word >> 8) as u32 & 0xff_ffff, access });
            self.lane = None;
        }
        self.refused = self.guard.is_none().then(|| Refusal::after(self.refused, now));
    }
    /// Asks the peer for a key by way of its queue pair, unless it was asked already. A queue pair that nothing is
    /// reached through, as it is not connected yet, is looked at again later.
    #[cold]
    pub(crate) fn ask(&mut self, key: u32, peer: Qpn, regions: &mut Regions, near: &mut ShmFabric) {
        if self.asked.is_some() {
            return;
        }
        let slot = Some(slot_of(peer.raw())).filter(|slot| *slot < MAX_QP_WORDS);
        if slot.and_then(|slot| near.qp_word(self.link, slot)).unwrap_or(0) == 0 {
            self.refused = Some(Refusal::not_asked(regions.now));
            return regions.put_off(self.link, key);
        }
        if near.ask_grant(self.link, key, peer.raw()).is_ok() {
            self.asked = Some(key);
            if self.refused.is_some() || regions.is_refused(self.link, key) {
                regions.note_repeat();
            }
        }
    }
    /// The way to the region of a key, if all is there that an access to it needs. `Err`: whether to ask for it.
    #[inline]
    pub(crate) fn find(&mut self, key: u32, regions: &Regions) -> Result<Lane, bool> {
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
}

/// The way to a peer's region by way of its queue pair: where it is, how far it reaches, with which rights, and as long
/// as what on the peer's board. A bracket finds out whether that still stands there.
#[derive(Clone, Copy)]
pub(crate) struct Lane {
    pub(crate) key: u32,
    /// Those that the region and the queue pair give.
    pub(crate) rights: Access,
    pub(crate) iova: u64,
    pub(crate) len: u64,
    pub(crate) grant: GrantId,
    pub(crate) qp: QpGuard,
    pub(crate) in_process: bool,
}

impl Lane {
    pub(crate) fn new(region: Region, guard: Guard) -> Self {
        let Region { key, grant, iova, len, access, pd, in_process } = region;
        let access = with_atomic_write(access);
        let rights = if pd == guard.pd { access.intersection(guard.access) } else { Access::empty() };
        Self { key, rights, iova, len, grant, qp: guard.qp, in_process }
    }
}

/// A lane as the poster has it, as long as the queue pair's lanes are those of this word.
pub(crate) struct PostersLane {
    pub(crate) word: NonZeroU64,
    pub(crate) send_cq: u32,
    pub(crate) key: u32,
    pub(crate) rights: Access,
    pub(crate) iova: u64,
    pub(crate) way: Way,
}

impl PostersLane {
    /// `None`: the region is not mapped any more.
    pub(crate) fn new(word: NonZeroU64, send_cq: u32, lane: Lane, near: &mut ShmFabric) -> Option<Self> {
        let Lane { key, rights, iova, grant, qp, .. } = lane;
        Some(Self { word, send_cq, key, rights, iova, way: near.way(grant, qp)? })
    }
    /// Where in the region of its key an access begins, if that is allowed. One that begins before the region begins far
    /// behind it here, and the bracket refuses that.
    #[inline(always)]
    pub(crate) fn place(&self, remote: RemoteAddr, right: Access) -> Option<u64> {
        debug_assert_eq!(self.key, remote.rkey.raw());
        self.rights.contains(right).then(|| remote.addr.wrapping_sub(self.iova))
    }
    /// Begins an access. `None`: `direct::carry_out` is to find out why not.
    #[inline(always)]
    pub(crate) fn enter<'a>(&self, near: &'a mut ShmFabric) -> Option<Bracket<'a>> {
        near.access_by(&self.way)
    }
}

/// Direct work of a queue pair: the questions for its peer, and the progress of its next request.
#[derive(Default)]
pub(crate) struct DirectWork {
    /// The key to ask for.
    pub(crate) key: Option<u32>,
    /// A key of ours to offer.
    pub(crate) offer: Option<u32>,
    /// This process is to be offered.
    pub(crate) process: bool,
    /// The word of ours that the peer was told with a grant: what it fetches is guarded by that.
    pub(crate) told: u64,
    /// Bytes of the next request that are moved.
    pub(crate) offset: u32,
    /// Bytes moved since the caller last looked.
    pub(crate) moved: usize,
}

impl DirectWork {
    #[inline]
    pub(crate) fn asks_peer(&self) -> bool {
        self.key.is_some() || self.offer.is_some() || self.process
    }
}

/// A queue pair's slot, and its word on the board.
pub(crate) type OwnWord = (u32, u64);

/// Questions for keys that never were, by way of one queue pair, after which nothing is granted by way of it.
const MAX_WRONG_KEYS: u8 = 64;

/// The peer's questions for keys that never were. One who asks for what it was told of asks for none, or for one that
/// was just taken back; a right guess would map a whole region, and a wrong one does not end the connection as a
/// request with that key does. After so many wrong ones no answer tells anything, and requests go as messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Guesses(u8);

impl Guesses {
    pub(crate) fn is_over(self) -> bool {
        self.0 >= MAX_WRONG_KEYS
    }
    pub(crate) fn note_wrong(&mut self) {
        self.0 = self.0.saturating_add(1);
    }
}

/// What a turn takes back while peers are within, and the completion queues that show nothing before it is done.
pub(crate) struct TakingBack {
    pub(crate) id: TakeBackId,
    pub(crate) cqs: Vec<CqHandle>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_never_were_may_be_asked_for_so_often_and_no_more() {
        let mut guesses = Guesses::default();
        for n in 0..1000 {
            assert_eq!(guesses.is_over(), n >= u32::from(MAX_WRONG_KEYS), "{n}");
            guesses.note_wrong();
        }
    }
}
