//! Direct access between adapters' ends in one process.

use hca_core::Access;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::note::{Note, Place};
use super::hostile::met;
use super::*;
use crate::{
    AccessError, Denied, Grant, GrantError, GrantId, Granted, LinkId, Notice, QpGuard, Revocation,
    SharedPages, TakeBack, TakeBackId,
};

pub(super) const KEY: u32 = 0x1234_5678;
pub(super) const QPN: u32 = 77;
const WORD: u64 = 0xfeed_0001;
pub(super) const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// Two that have met: the one that asks, and the one that grants.
pub(super) struct Pair {
    pub(super) a: ShmFabric,
    pub(super) b: ShmFabric,
    /// The link to `b` as `a` knows it, and the other way round.
    pub(super) to_b: LinkId,
    pub(super) to_a: LinkId,
}

pub(super) fn link(f: &ShmFabric, peer: &ShmFabric) -> LinkId {
    LinkId::new(f.links.token(f.links.find(peer.own.local).unwrap()))
}

pub(super) fn pair() -> Pair {
    let (a, b, _) = met();
    let (to_b, to_a) = (link(&a, &b), link(&b, &a));
    Pair { a, b, to_b, to_a }
}

/// A page of `b`'s that is granted to `a`, and what `a` needs to reach it.
fn granted_page() -> (Pair, SharedPages, GrantId, QpGuard) {
    let mut p = pair();
    let pages = SharedPages::alloc(4096).unwrap();
    let (g, _) = p.granted(&pages, KEY, ALL);
    let guard = p.guard();
    (p, pages, g, guard)
}

pub(super) fn grant(pages: &SharedPages, key: u32, access: Access) -> Grant<'_> {
    let (offset, len) = (0, pages.len());
    let pages = Some(pages);
    Grant { key, qpn: QPN, pages, offset, len, iova: 1 << 40, access, pd: 3, qp_word: WORD }
}

impl Pair {
    /// The next notice of either.
    pub(super) fn notice(&mut self, of_a: bool) -> Notice {
        let start = Clock::now();
        loop {
            recv(&mut self.a, &mut Vec::new());
            recv(&mut self.b, &mut Vec::new());
            let f = if of_a { &mut self.a } else { &mut self.b };
            if let Some(n) = f.next_notice() {
                return n;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "no notice");
        }
    }
    /// Turns both for a while in which nothing is to happen.
    fn settle(&mut self) {
        let start = Clock::now();
        while start.elapsed() < Duration::from_millis(5) {
            recv(&mut self.a, &mut Vec::new());
            recv(&mut self.b, &mut Vec::new());
        }
    }
    /// `a` asks for memory of `b`'s, and gets it.
    pub(super) fn granted(&mut self, pages: &SharedPages, key: u32, access: Access) -> (GrantId, Granted) {
        self.b.set_qp_word(5, WORD).unwrap();
        self.a.ask_grant(self.to_b, key, QPN).unwrap();
        assert_eq!(self.notice(false), Notice::GrantAsked { link: self.to_a, key, qpn: QPN });
        self.b.grant(self.to_a, &grant(pages, key, access)).unwrap();
        match self.notice(true) {
            Notice::Granted { link, key: k, grant, granted } if (link, k) == (self.to_b, key) => {
                (grant, granted)
            }
            other => panic!("{other:?}"),
        }
    }
    pub(super) fn guard(&mut self) -> QpGuard {
        self.a.qp_guard(self.to_b, 5, WORD).unwrap()
    }
}

pub(super) fn bytes(pages: &SharedPages, at: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    assert!(at + len <= pages.len());
    // SAFETY: within the pages, which live.
    #[allow(unsafe_code)]
    unsafe {
        hca_dma::load(pages.addr().as_ptr().add(at), &mut out);
    }
    out
}

#[test]
fn what_is_granted_is_written_read_and_added_to() {
    let mut p = pair();
    let pages = SharedPages::alloc(3 << 20).unwrap();
    let (g, granted) = p.granted(&pages, KEY, ALL);
    let (iova, len, in_process) = (1 << 40, 3 << 20, false);
    let expected =
        Granted { qpn: QPN, iova, len, access: ALL, pd: 3, qp_word: WORD, offered: false, in_process };
    assert_eq!(granted, expected);
    let guard = p.guard();
    let data: Vec<u8> = (0..250_000_u32).map(|i| (i % 253) as u8).collect();
    p.a.access(g, &guard).unwrap().write(1_000_001, &data).unwrap();
    assert_eq!(bytes(&pages, 1_000_001, data.len()), data);
    let mut back = vec![0; data.len()];
    let mut bracket = p.a.access(g, &guard).unwrap();
    assert_eq!(bracket.fetch_add(8, 5), Ok(0));
    assert_eq!(bracket.compare_swap(8, 4, 9), Ok(5));
    assert_eq!(bracket.compare_swap(8, 5, 9), Ok(5));
    bracket.read(1_000_001, &mut back).unwrap();
    drop(bracket);
    assert_eq!(back, data);
    assert_eq!(bytes(&pages, 8, 8), 9_u64.to_ne_bytes());
}

#[test]
fn nothing_is_moved_out_of_range_without_the_right_or_in_too_long_a_bracket() {
    let mut p = pair();
    let pages = SharedPages::alloc(2 << 20).unwrap();
    let (g, _) = p.granted(&pages, KEY, Access::REMOTE_READ | Access::REMOTE_WRITE);
    let guard = p.guard();
    let end = pages.len() as u64;
    let mut b = p.a.access(g, &guard).unwrap();
    let mut few = [0; 16];
    for at in [end - 15, end, end + 1, u64::MAX, u64::MAX - 15] {
        assert_eq!(b.write(at, &few), Err(AccessError::Range), "{at}");
        assert_eq!(b.read(at, &mut few), Err(AccessError::Range), "{at}");
        assert_eq!(
            b.fetch_add(at, 1),
            Err(if at == end - 15 { AccessError::Right } else { AccessError::Range })
        );
    }
    assert_eq!(b.fetch_add(0, 1), Err(AccessError::Right));
    assert_eq!(b.write(end - 16, &few), Ok(()));
    drop(b);
    let mut b = p.a.access(g, &guard).unwrap();
    assert_eq!(b.write(0, &vec![1; crate::MAX_BRACKET_BYTES]), Ok(()));
    assert_eq!(b.write(0, &[1]), Err(AccessError::Length));
    drop(b);
    let (atomics, _) = p.granted(&SharedPages::alloc(4096).unwrap(), KEY + 1, Access::REMOTE_ATOMIC);
    let mut b = p.a.access(atomics, &guard).unwrap();
    assert_eq!(b.fetch_add(4, 1), Err(AccessError::Alignment));
    assert_eq!(b.read(0, &mut few), Err(AccessError::Right));
    assert_eq!(b.write(0, &few), Err(AccessError::Right));
}

#[test]
fn the_queue_pairs_word_is_looked_at_each_time() {
    let (mut p, _pages, g, guard) = granted_page();
    assert_eq!(p.a.qp_word(p.to_b, 5), Some(WORD));
    assert!(p.a.access(g, &guard).is_ok());
    assert_eq!(p.b.withdraw_qp_word(p.to_a, 5, 1).unwrap(), crate::Revocation::default());
    assert_eq!(p.a.access(g, &guard).err(), Some(Denied::QueuePair { found: 1 }));
    let now = p.a.qp_guard(p.to_b, 5, 1).unwrap();
    assert!(p.a.access(g, &now).is_ok());
    // The last word of all, on a page that is not there yet.
    assert_eq!(p.a.qp_word(p.to_b, 65_535), Some(0));
    p.b.set_qp_word(65_535, 9).unwrap();
    assert_eq!(p.a.qp_word(p.to_b, 65_535), Some(9));
}

#[test]
fn what_was_taken_back_is_denied_at_once_and_unmapped() {
    let (mut p, pages, g, guard) = granted_page();
    let way = p.a.way(g, guard).unwrap();
    p.a.access_by(&way).unwrap().write(0, &[0; 3]).unwrap();
    assert_eq!(p.b.revoke(KEY), crate::Revocation::default());
    // Before any message was heard.
    assert!(p.a.access_by(&way).is_none(), "the region's generation is another");
    assert_eq!(p.a.access(g, &guard).err(), Some(Denied::Revoked));
    assert_eq!(p.a.access(g, &guard).err(), Some(Denied::Unknown));
    assert_eq!(p.notice(true), Notice::GrantRevoked { link: p.to_b, key: KEY, grant: g });
    p.settle();
    assert_eq!(p.a.next_notice(), None);
    // Granted once more, on the slot of another region in between.
    let (again, _) = p.granted(&pages, KEY + 1, ALL);
    assert_eq!(p.a.access(g, &guard).err(), Some(Denied::Unknown));
    assert!(p.a.access_by(&way).is_none(), "it ended with the region, whose slot another has now");
    p.a.access(again, &guard).unwrap().write(0, &[7; 3]).unwrap();
    assert_eq!(bytes(&pages, 0, 4), [7, 7, 7, 0]);
    assert_eq!(p.b.revoke(KEY + 1), crate::Revocation::default());
    assert_eq!(p.notice(true), Notice::GrantRevoked { link: p.to_b, key: KEY + 1, grant: again });
    assert_eq!((p.a.grants.mapped.len(), p.b.grants.granted_now()), (0, 0));
    assert_eq!(p.b.revoke(KEY), crate::Revocation::default());
}

#[test]
fn all_that_one_call_finds_taken_back_is_unmapped_behind_it() {
    let mut p = pair();
    let pages = [(); 3].map(|()| SharedPages::alloc(4096).unwrap());
    let keys = [KEY, KEY + 1, KEY + 2];
    let grants: Vec<_> = keys.iter().zip(&pages).map(|(key, pages)| p.granted(pages, *key, ALL).0).collect();
    let guard = p.guard();
    for key in keys {
        assert_eq!(p.b.revoke(key), crate::Revocation::default());
    }
    // Before any message was heard.
    p.a.reach(|mut reach| {
        for grant in grants.iter().chain(&grants) {
            assert_eq!(reach.access(*grant, &guard).err(), Some(Denied::Revoked));
        }
    });
    assert_eq!(p.a.grants.mapped.len(), 0);
    let told = core::iter::from_fn(|| p.a.next_notice()).count();
    assert_eq!(told, keys.len(), "each is told once");
}

#[test]
fn a_refusal_is_told() {
    let mut p = pair();
    p.a.ask_grant(p.to_b, KEY, QPN).unwrap();
    p.a.ask_grant(p.to_b, KEY, QPN).unwrap();
    assert_eq!(p.notice(false), Notice::GrantAsked { link: p.to_a, key: KEY, qpn: QPN });
    p.b.refuse_grant(p.to_a, KEY, QPN);
    assert_eq!(p.notice(true), Notice::GrantRefused { link: p.to_b, key: KEY, qpn: QPN });
    p.settle();
    assert_eq!((p.a.next_notice(), p.b.next_notice(), p.a.grants.questions), (None, None, 0));
}

#[test]
fn a_region_that_is_a_part_of_its_memory_is_not_granted() {
    let mut p = pair();
    let pages = SharedPages::alloc(3 * 4096).unwrap();
    let whole = grant(&pages, KEY, ALL);
    for (offset, len) in [(4096, 8192), (0, 8192), (0, 0), (0, 3 * 4096 + 1), (usize::MAX, 2)] {
        p.a.ask_grant(p.to_b, KEY, QPN).unwrap();
        assert!(matches!(p.notice(false), Notice::GrantAsked { .. }));
        let refused = p.b.grant(p.to_a, &Grant { offset, len, ..whole });
        assert!(matches!(refused, Err(GrantError::Partial)), "{offset} {len}: {refused:?}");
        assert!(matches!(p.notice(true), Notice::GrantRefused { .. }));
    }
    // All pages, but neither all of the first nor of the last.
    p.a.ask_grant(p.to_b, KEY, QPN).unwrap();
    p.notice(false);
    p.b.grant(p.to_a, &Grant { offset: 100, len: 2 * 4096, ..whole }).unwrap();
    let Notice::Granted { grant: g, .. } = p.notice(true) else { panic!("it is granted") };
    p.b.set_qp_word(5, WORD).unwrap();
    let guard = p.guard();
    let mut b = p.a.access(g, &guard).unwrap();
    assert_eq!(b.write(8192, &[1]), Err(AccessError::Range));
    b.write(8191, &[1]).unwrap();
    b.write(0, &[2]).unwrap();
    drop(b);
    assert_eq!((bytes(&pages, 8291, 2), bytes(&pages, 99, 2)), (vec![1, 0], vec![0, 2]));
}

#[test]
fn what_was_granted_for_reading_is_never_granted_for_writing() {
    let mut p = pair();
    let pages = SharedPages::alloc(8192).unwrap();
    let (g, _) = p.granted(&pages, KEY, Access::REMOTE_READ);
    let guard = p.guard();
    assert_eq!(p.a.access(g, &guard).unwrap().write(0, &[1]), Err(AccessError::Right));
    p.a.access(g, &guard).unwrap().read(0, &mut [0; 9]).unwrap();
    p.a.ask_grant(p.to_b, KEY + 1, QPN).unwrap();
    p.notice(false);
    let refused = p.b.grant(p.to_a, &grant(&pages, KEY + 1, ALL));
    assert!(matches!(refused, Err(GrantError::ReadOnly)), "{refused:?}");
    // Who had it for writing before keeps it.
    let pages = SharedPages::alloc(4096).unwrap();
    assert!(matches!(p.notice(true), Notice::GrantRefused { .. }));
    let (writes, _) = p.granted(&pages, KEY + 2, ALL);
    p.granted(&pages, KEY + 3, Access::REMOTE_READ);
    p.a.access(writes, &guard).unwrap().write(0, &[1]).unwrap();
}

#[test]
fn an_offer_is_taken_and_the_one_who_offers_learns_of_it() {
    let mut p = pair();
    let pages = SharedPages::alloc(1 << 20).unwrap();
    p.b.set_qp_word(5, WORD).unwrap();
    p.b.offer(p.to_a, &grant(&pages, KEY, Access::REMOTE_READ)).unwrap();
    let Notice::Granted { grant: g, granted, .. } = p.notice(true) else { panic!("it is mapped") };
    assert!(granted.offered && granted.access == Access::REMOTE_READ);
    assert_eq!(p.notice(false), Notice::GrantTaken { link: p.to_a, key: KEY });
    let guard = p.guard();
    p.a.access(g, &guard).unwrap().read(5, &mut [1; 100]).unwrap();
    p.a.release_grant(g);
    assert_eq!(p.notice(false), Notice::GrantLeft { link: p.to_a, key: KEY });
    assert_eq!((p.b.grants.granted_now(), p.a.grants.mapped.len()), (0, 0));
    assert_eq!(p.a.access(g, &guard).err(), Some(Denied::Unknown));
}

#[test]
fn a_region_granted_twice_is_held_until_both_are_let_go() {
    let mut p = pair();
    let pages = SharedPages::alloc(4096).unwrap();
    let (g, _) = p.granted(&pages, KEY, ALL);
    // Another queue pair's question, answered while the first grant is on its way back.
    p.a.ask_grant(p.to_b, KEY, QPN + 1).unwrap();
    p.notice(false);
    p.b.grant(p.to_a, &Grant { qpn: QPN + 1, ..grant(&pages, KEY, ALL) }).unwrap();
    p.a.release_grant(g);
    let Notice::Granted { grant: second, .. } = p.notice(true) else { panic!("it is granted") };
    p.settle();
    assert_eq!((p.b.next_notice(), p.b.grants.granted_now()), (None, 1));
    let guard = p.guard();
    p.a.access(second, &guard).unwrap().write(0, &[1]).unwrap();
    p.a.release_grant(second);
    assert_eq!(p.notice(false), Notice::GrantLeft { link: p.to_a, key: KEY });
    assert_eq!(p.b.grants.granted_now(), 0);
}

#[test]
fn two_queue_pairs_that_ask_for_one_key_share_the_mapping() {
    let mut p = pair();
    let pages = SharedPages::alloc(4096).unwrap();
    let (first, _) = p.granted(&pages, KEY, ALL);
    p.a.ask_grant(p.to_b, KEY, QPN + 1).unwrap();
    p.notice(false);
    p.b.grant(p.to_a, &Grant { qpn: QPN + 1, qp_word: 9, ..grant(&pages, KEY, ALL) }).unwrap();
    let Notice::Granted { grant: second, granted, .. } = p.notice(true) else { panic!("it is granted") };
    assert_eq!((second, granted.qpn, granted.qp_word), (first, QPN + 1, 9));
    assert_eq!(p.a.grants.mapped.len(), 1);
    p.a.release_grant(first);
    assert_eq!(p.notice(false), Notice::GrantLeft { link: p.to_a, key: KEY });
}

#[test]
fn grants_end_with_the_link_on_both_sides() {
    let (mut p, pages, g, guard) = granted_page();
    let own = SharedPages::alloc(4096).unwrap();
    p.a.offer(p.to_b, &grant(&own, KEY + 1, ALL)).unwrap();
    assert!(matches!(p.notice(false), Notice::Granted { .. }));
    assert!(matches!(p.notice(true), Notice::GrantTaken { .. }));
    drop(p.b);
    let start = Clock::now();
    let mut notices = Vec::new();
    while notices.last() != Some(&Notice::LinkGone { link: p.to_b }) {
        recv(&mut p.a, &mut Vec::new());
        notices.extend(p.a.next_notice());
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(p.a.access(g, &guard).err(), Some(Denied::Unknown));
    assert_eq!((p.a.grants.granted_now(), p.a.grants.mapped.len()), (0, 0));
    assert!(matches!(p.a.ask_grant(p.to_b, KEY, QPN), Err(GrantError::Link)));
    // The memory is its owner's again: another adapter may grant it.
    let mut q = pair();
    q.granted(&pages, KEY, ALL);
    q.granted(&own, KEY + 1, ALL);
}

#[test]
fn memory_is_granted_by_one_adapter_at_a_time() {
    let (mut p, mut q) = (pair(), pair());
    let pages = SharedPages::alloc(4096).unwrap();
    p.granted(&pages, KEY, ALL);
    q.a.ask_grant(q.to_b, KEY, QPN).unwrap();
    q.notice(false);
    assert!(matches!(q.b.grant(q.to_a, &grant(&pages, KEY, ALL)), Err(GrantError::Elsewhere)));
    assert!(matches!(q.notice(true), Notice::GrantRefused { .. }));
    p.b.revoke(KEY);
    q.granted(&pages, KEY, ALL);
}

#[test]
fn questions_and_grants_are_bounded() {
    let mut p = pair();
    for key in 0..crate::MAX_ASKED {
        p.a.ask_grant(p.to_b, key, QPN).unwrap();
    }
    assert!(matches!(p.a.ask_grant(p.to_b, 1000, QPN), Err(GrantError::Limit { limit: 64, .. })));
    let pages = SharedPages::alloc(4096).unwrap();
    let mut asked = 0;
    while asked < crate::MAX_MAPPED_OF_PEER {
        let Notice::GrantAsked { key, .. } = p.notice(false) else { panic!("a question") };
        p.b.grant(p.to_a, &grant(&pages, key, ALL)).unwrap();
        assert!(matches!(p.notice(true), Notice::Granted { .. }));
        asked += 1;
        if asked + crate::MAX_ASKED - 1 < crate::MAX_MAPPED_OF_PEER {
            p.a.ask_grant(p.to_b, asked + crate::MAX_ASKED - 1, QPN).unwrap();
        }
    }
    assert_eq!(p.a.grants.mapped.len(), 256);
    p.a.ask_grant(p.to_b, 9999, QPN).unwrap();
    p.notice(false);
    let limit = p.b.grant(p.to_a, &grant(&pages, 9999, ALL));
    assert!(matches!(limit, Err(GrantError::Limit { limit: 256, .. })), "{limit:?}");
    assert!(matches!(p.notice(true), Notice::GrantRefused { .. }));
    p.b.revoke(0);
    assert!(matches!(p.notice(true), Notice::GrantRevoked { .. }));
    p.granted(&pages, 9999, ALL);
}

#[test]
fn pages_are_found_by_any_range_within() {
    let pages = SharedPages::alloc(5000).unwrap();
    let at = pages.addr().addr().get();
    assert_eq!(pages.len(), 8192);
    assert!(bytes(&pages, 0, 8192).iter().all(|b| *b == 0));
    for (from, len, found) in
        [(0, 8192, true), (0, 8193, false), (8191, 1, true), (8192, 1, false), (100, 0, true)]
    {
        assert_eq!(SharedPages::find(at + from, len).is_some(), found, "{from} {len}");
    }
    assert!(SharedPages::find(at - 1, 1).is_none_or(|p| !p.is(&pages)));
    drop(pages);
    assert!(SharedPages::find(at, 1).is_none());
    let large = SharedPages::alloc(3 << 20).unwrap();
    assert_eq!(large.addr().addr().get() % (2 << 20), 0);
}

/// Prints what an access costs, beside the bare copy.
#[test]
#[ignore = "a measurement: run it alone, built for release"]
fn an_access_costs_little_more_than_its_copy() {
    let mut p = pair();
    let pages = SharedPages::alloc(1 << 20).unwrap();
    let (g, _) = p.granted(&pages, KEY, ALL);
    let guard = p.guard();
    let best = |f: &mut dyn FnMut()| {
        const TIMES: u32 = 20_000;
        let run = |_| {
            let start = Clock::now();
            (0..TIMES).for_each(|_| f());
            start.elapsed().as_nanos() as f64 / f64::from(TIMES)
        };
        (0..30).map(run).fold(f64::MAX, f64::min)
    };
    for len in [8, 64, 256, 4096] {
        let data = vec![1; len];
        let to = pages.addr().as_ptr();
        // SAFETY: within the pages, which live.
        #[allow(unsafe_code)]
        let bare = best(&mut || unsafe { hca_dma::store(to, std::hint::black_box(&data)) });
        let access =
            best(&mut || p.a.access(g, &guard).unwrap().write(0, std::hint::black_box(&data)).unwrap());
        println!("{len:5} bytes: the copy {bare:.1} ns, as an access {access:.1} ns");
    }
}

/// Rounds at most until one in which the machine had time for this process within the peer's 100 ms.
const ROUNDS: u32 = 50;

/// Runs a test in rounds of which one has to come to its end in time.
fn in_time(mut round: impl FnMut() -> Option<()>) {
    assert!((0..ROUNDS).any(|_| round().is_some()), "the peer was dropped each time");
}

fn under_way(begun: TakeBack) -> Option<TakeBackId> {
    match begun {
        TakeBack::UnderWay(id) => Some(id),
        TakeBack::Done(done) => {
            assert_ne!(done, Revocation::default(), "nobody waited for a peer that is within");
            None
        }
    }
}

#[test]
fn what_is_taken_back_is_granted_to_nobody_until_the_peer_is_out_of_it() {
    in_time(|| {
        let (mut p, pages, g, guard) = granted_page();
        let bracket = p.a.access(g, &guard).unwrap();
        let id = under_way(p.b.begin_revoke(KEY))?;
        assert!(matches!(p.b.offer(p.to_a, &grant(&pages, KEY, ALL)), Err(GrantError::Ending)));
        assert_eq!((counter(&p.b, "take_backs_now"), counter(&p.b, "regions_granted_now")), (1, 1));
        if let Some(done) = p.b.continue_take_back(id) {
            assert_eq!(done.dropped, [p.to_a], "it is within");
            return None;
        }
        drop(bracket);
        let done = p.b.continue_take_back(id).expect("it is out");
        if !done.dropped.is_empty() {
            return None;
        }
        assert_eq!(done, Revocation::default());
        assert_eq!((counter(&p.b, "take_backs_now"), counter(&p.b, "regions_granted_now")), (0, 0));
        assert_eq!(p.a.access(g, &guard).err(), Some(Denied::Revoked));
        p.b.offer(p.to_a, &grant(&pages, KEY, ALL)).unwrap();
        Some(())
    });
}

/// One of the two finds that the peer's time is over, and both report it. What the region was is done with once.
#[test]
fn all_that_wait_for_a_peer_that_is_dropped_learn_what_came_of_it() {
    in_time(|| {
        let (mut p, pages, g, guard) = granted_page();
        let bracket = p.a.access(g, &guard).unwrap();
        let ids = [
            under_way(p.b.begin_revoke(KEY))?,
            under_way(p.b.begin_revoke(KEY))?,
            under_way(p.b.begin_withdraw_qp_word(p.to_a, 5, 0).unwrap())?,
            // The word is another one already, and yet accesses under the old one are not over.
            under_way(p.b.begin_withdraw_qp_word(p.to_a, 5, 0).unwrap())?,
        ];
        assert!(p.b.is_withdrawing(5) && !p.b.is_withdrawing(6));
        let first = loop {
            if let Some(done) = p.b.continue_take_back(ids[2]) {
                break done;
            }
        };
        assert_eq!(first, Revocation { dropped: vec![p.to_a], private: true, exposed: false });
        for id in [ids[0], ids[1], ids[3]] {
            assert_eq!(p.b.continue_take_back(id), Some(first.clone()));
        }
        assert!(pages.is_private() && !p.b.is_withdrawing(5));
        assert_eq!((counter(&p.b, "peers_dropped_stuck"), p.b.grants.granted_now()), (1, 0));
        drop(bracket);
        Some(())
    });
}

/// A peer that is not out in time costs the others the memory, and these have as much time to leave it.
#[test]
fn others_have_time_to_leave_memory_that_becomes_private() {
    in_time(|| {
        let (mut p, pages, g, guard) = granted_page();
        let mut c = open(p.b.own.domain.name());
        let path = c.open_path(&av(p.b.attr().local)).unwrap();
        while c.link_of(path).is_none() {
            recv(&mut c, &mut Vec::new());
            recv(&mut p.b, &mut Vec::new());
        }
        let (c_to_b, b_to_c) = (c.link_of(path).unwrap(), link(&p.b, &c));
        p.b.offer(b_to_c, &grant(&pages, KEY + 1, ALL)).unwrap();
        let of_c = loop {
            recv(&mut c, &mut Vec::new());
            if let Some(Notice::Granted { grant, .. }) = c.next_notice() {
                break grant;
            }
        };
        let guard_of_c = c.qp_guard(c_to_b, 5, WORD).unwrap();
        let stays = p.a.access(g, &guard).unwrap();
        let leaves = c.access(of_c, &guard_of_c).unwrap();
        let id = under_way(p.b.begin_revoke(KEY))?;
        let region_of_c = p.b.grants.slot_of(KEY + 1).unwrap();
        while !p.b.grants.is_ending(region_of_c) {
            assert_eq!(p.b.continue_take_back(id), None);
        }
        drop(leaves);
        let done = p.b.continue_take_back(id).expect("all are out, or stuck");
        if done.dropped.len() > 1 {
            return None;
        }
        assert_eq!(done, Revocation { dropped: vec![p.to_a], private: true, exposed: false });
        assert_eq!((link(&p.b, &c), counter(&p.b, "peers_dropped_stuck")), (b_to_c, 1));
        assert_eq!(c.access(of_c, &guard_of_c).err(), Some(Denied::Revoked));
        drop(stays);
        Some(())
    });
}

/// Another peer comes and goes, and the one that is within is no reason to wait for it.
#[test]
fn a_peer_that_broke_the_rules_while_it_is_within_is_heard_no_more_and_cut_behind_that() {
    in_time(|| {
        let (mut p, pages, g, guard) = granted_page();
        super::hostile::say_note(&p.a, &p.b, &Note::Refuse { key: KEY, qpn: QPN }, None);
        let bracket = p.a.access(g, &guard).unwrap();
        p.b.drop_peer(p.to_a.slot(), &"it broke the rules");
        if counter(&p.b, "peers_dropped_stuck") > 0 {
            return None;
        }
        assert_eq!(p.b.links.len(), 1, "it is within");
        // The input of its socket keeps no sleeper awake.
        let mut fds = [PollFd::new(&p.b.meetings.epoll, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0));
        assert!(matches!(p.b.offer(p.to_a, &grant(&pages, KEY + 1, ALL)), Err(GrantError::Link)));
        // What goes by its queue pair waits for it as well.
        let id = under_way(p.b.begin_withdraw_qp_word(p.to_a, 5, 0).unwrap())?;
        recv(&mut p.b, &mut Vec::new());
        drop(bracket);
        recv(&mut p.b, &mut Vec::new());
        assert_eq!((p.b.links.len(), p.b.grants.granted_now()), (0, 0));
        assert!(p.b.continue_take_back(id).is_some());
        (counter(&p.b, "peers_dropped_stuck") == 0).then_some(())
    });
}

/// A peer that does not take its notes loses those that nobody waits for, and no answer.
#[test]
fn notes_that_are_lost_leave_no_question_open() {
    let mut p = pair();
    p.a.ask_grant(p.to_b, KEY, QPN).unwrap();
    assert_eq!(p.notice(false), Notice::GrantAsked { link: p.to_a, key: KEY, qpn: QPN });
    let place = Place { region: 9, generation: 0, offset: 0 };
    while counter(&p.b, "notes_lost") == 0 {
        p.b.send_note(p.to_a, Note::Revoked { key: KEY + 1, place }, None);
    }
    p.b.refuse_grant(p.to_a, KEY, QPN);
    p.b.ask_grant(p.to_a, KEY + 2, QPN).unwrap();
    assert_eq!(p.notice(true), Notice::GrantRefused { link: p.to_b, key: KEY, qpn: QPN });
    assert_eq!(p.notice(true), Notice::GrantAsked { link: p.to_b, key: KEY + 2, qpn: QPN });
    p.a.refuse_grant(p.to_b, KEY + 2, QPN);
    assert_eq!(p.notice(false), Notice::GrantRefused { link: p.to_a, key: KEY + 2, qpn: QPN });
    // One who asks without end, and takes no answer, has no more room than others.
    let lost = counter(&p.b, "notes_lost");
    while counter(&p.b, "notes_lost") == lost {
        p.b.send_note(p.to_a, Note::Refuse { key: KEY, qpn: QPN }, None);
    }
}
