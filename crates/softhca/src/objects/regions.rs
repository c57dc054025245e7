//! What an adapter and its peers on this machine have let each other see.

use core::hash::{BuildHasherDefault, Hasher};
use core::time::Duration;
use std::collections::HashMap;

use hca_core::{Access, Instant};
use hca_fabric::{GrantId, Granted, LinkId};

/// What a peer refused is asked for again when so much time has passed, and each further time after twice as much, up
/// to [`LONGEST_WAIT`]. As often a look says whether a peer's queue pair can be reached by now.
const FIRST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Between any two questions or offers that are repeated, of all queue pairs: they take less than a hundredth of a CPU.
const REPEATS_APART: Duration = Duration::from_millis(4);
/// Answers that are kept before refusals are forgotten that may be over: a program that registers memory for each
/// request asks for ever more keys.
const MANY_ANSWERS: usize = 4096;

/// A peer's region that is mapped here.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub(crate) key: u32,
    pub(crate) grant: GrantId,
    pub(crate) iova: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    pub(crate) pd: u32,
    /// It is memory of the peer's program, which the kernel writes.
    pub(crate) in_process: bool,
}

impl Region {
    pub(crate) fn new(key: u32, grant: GrantId, g: &Granted) -> Self {
        let Granted { iova, len, access, pd, in_process, .. } = *g;
        Self { key, grant, iova, len, access, pd, in_process }
    }
}

/// What was not to be had, perhaps for a state that passes, and when to try again.
#[derive(Clone, Copy)]
pub(crate) struct Refusal {
    again_at: Instant,
    /// Zero: the peer was not asked, as it can't have what it takes yet.
    wait: Duration,
}

impl Refusal {
    pub(crate) fn after(before: Option<Self>, now: Instant) -> Self {
        let wait = before.map_or(FIRST_WAIT, |b| (2 * b.wait).clamp(FIRST_WAIT, LONGEST_WAIT));
        Self { again_at: now + wait, wait }
    }
    pub(crate) fn not_asked(now: Instant) -> Self {
        Self { again_at: now + FIRST_WAIT, wait: Duration::ZERO }
    }
}

/// What a peer says of a key.
pub(crate) enum Answer {
    Granted(Region),
    Refused(Refusal),
}

/// A table by numbers of links and keys. Peers that choose keys are of this user, and have few regions each.
pub(crate) type ByKey<K, V> = HashMap<K, V, BuildHasherDefault<KeyHasher>>;

/// Mixes a few numbers by multiplications: messages that are lent look two of them up.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

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
    /// So many answers are kept before some are forgotten.
    room: usize,
    /// Peers' regions by key.
    pub(crate) asked: ByKey<(LinkId, u32), Answer>,
    /// Peers' regions that messages are fetched from.
    pub(crate) lent: ByKey<(LinkId, u32), Region>,
    /// Regions of ours that were offered for that, whether the peer has taken them, and when it last did not.
    pub(crate) offered: ByKey<(LinkId, u32), (Offer, Option<Refusal>)>,
    /// Whether peers fetch from this process what is not granted.
    pub(crate) processes: ByKey<LinkId, Offer>,
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
        let now = self.now;
        if let Answer::Refused(refusal) = self.answer(link, key) {
            *refusal = Refusal::after(Some(*refusal), now);
        }
    }
    /// A peer is not asked for a key yet.
    pub(crate) fn put_off(&mut self, link: LinkId, key: u32) {
        let now = self.now;
        if let Answer::Refused(refusal) = self.answer(link, key) {
            *refusal = Refusal::not_asked(now);
        }
    }
    /// What is known of a key that a peer does not grant now.
    fn answer(&mut self, link: LinkId, key: u32) -> &mut Answer {
        let now = self.now;
        if self.asked.len() >= self.room.max(MANY_ANSWERS) {
            // Nobody tells of the end of a key that was not granted. Those in use are asked for before.
            let is_old = |r: &Refusal| now >= r.again_at + LONGEST_WAIT;
            self.asked.retain(|_, answer| !matches!(answer, Answer::Refused(r) if is_old(r)));
            self.room = 2 * self.asked.len();
        }
        self.asked.entry((link, key)).or_insert(Answer::Refused(Refusal::not_asked(now)))
    }
    /// Whether what was refused may be tried again.
    #[inline]
    pub(crate) fn is_over(&self, refusal: &Refusal) -> bool {
        self.now >= refusal.again_at && (refusal.wait.is_zero() || self.may_repeat())
    }
    /// Whether something may be asked or offered again.
    #[inline]
    pub(crate) fn may_repeat(&self) -> bool {
        self.now >= self.repeat_at
    }
    pub(crate) fn note_repeat(&mut self) {
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
    /// Whether a peer was asked for a key, and no load or store reaches that memory.
    pub(crate) fn is_not_mapped(&self, link: LinkId, key: u32) -> bool {
        let granted = self.asked.get(&(link, key));
        self.is_refused(link, key) || matches!(granted, Some(Answer::Granted(r)) if r.in_process)
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

#[cfg(test)]
mod tests {
    use hca_fabric::ShmFabric;

    use super::*;

    /// The link of an adapter to itself will do.
    fn some_link() -> LinkId {
        let domain = format!("regions.{}", std::process::id());
        let [mut a, mut b] = [(); 2].map(|()| ShmFabric::open(&domain, &Default::default()).unwrap());
        let av = hca_core::AddressVector {
            dgid: hca_core::Gid::from_ip(hca_fabric::Fabric::attr(&b).local),
            ..Default::default()
        };
        let path = hca_fabric::Fabric::open_path(&mut a, &av).unwrap();
        let begun = std::time::Instant::now();
        loop {
            for fabric in [&mut a, &mut b] {
                let now = Instant::from_nanos(begun.elapsed().as_nanos() as u64);
                hca_fabric::Fabric::recv(
                    fabric,
                    now,
                    hca_fabric::RxBudget { packets: 1, bytes: 1 },
                    &mut |_| {},
                );
            }
            if let Some(link) = a.link_of(path) {
                return link;
            }
        }
    }

    #[test]
    fn ever_more_keys_that_are_refused_take_no_more_memory() {
        let (link, mut regions, mut most) = (some_link(), Regions::default(), 0);
        for key in 0..1_000_000 {
            regions.now = Instant::from_nanos(u64::from(key) * 100_000);
            if key % 3 == 0 {
                regions.put_off(link, key);
            } else {
                regions.refuse(link, key);
            }
            most = most.max(regions.asked.len());
        }
        // As many as come within some seconds.
        assert!(most <= 8 * MANY_ANSWERS, "{most} answers");
        assert!(regions.is_refused(link, 999_998) && !regions.is_over(&Refusal::not_asked(regions.now)));
    }
}
