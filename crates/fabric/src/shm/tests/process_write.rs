//! Memory of a peer's program that is written by the kernel.
#![allow(unsafe_code)]

use rustix::process::Signal;

use super::super::process::tests::at_the_end_of_the_next_copy;
use super::direct::{ALL, KEY, Pair, QPN, grant, pair};
use super::outside::{meet_child, meet_parent, next_notice, signal, small};
use super::*;
use crate::{
    AccessError, Denied, Grant, GrantError, GrantId, LinkId, Notice, ProcessVm, QpGuard, Revocation,
    SharedPages, TakeBack, max_process_write,
};
use hca_core::Access;
use test_support::roles::{hear, say};

const QP: u32 = 5;
const WORD: u64 = 0xfeed_0001;

/// Whether peers' memory can be written so here.
fn possible() -> bool {
    let possible = max_process_write() > 0;
    if !possible {
        eprintln!("skipped: needs restartable sequences (rseq) of the C library");
    }
    possible
}

/// The grant of memory of this program.
fn own(data: &[u8], access: Access) -> Grant<'static> {
    let (offset, len) = (data.as_ptr().expose_provenance(), data.len());
    Grant { key: KEY, qpn: QPN, pages: None, offset, len, iova: 1 << 40, access, pd: 3, qp_word: WORD }
}

/// `a` may write to these bytes, which are `b`'s, if that is possible here.
fn granted(data: &[u8]) -> Option<(Pair, GrantId, QpGuard)> {
    if !possible() {
        return None;
    }
    let mut p = pair();
    p.b.set_qp_word(QP, WORD).unwrap();
    p.a.ask_grant(p.to_b, KEY, QPN).unwrap();
    assert_eq!(p.notice(false), Notice::GrantAsked { link: p.to_a, key: KEY, qpn: QPN });
    p.b.offer_process(p.to_a).unwrap();
    p.b.grant(p.to_a, &own(data, Access::REMOTE_WRITE)).unwrap();
    let Notice::Granted { grant, granted, .. } = p.notice(true) else { panic!("it is granted") };
    assert!(granted.in_process && granted.len == data.len() as u64);
    let guard = p.a.qp_guard(p.to_b, QP, WORD).unwrap();
    Some((p, grant, guard))
}

fn write(f: &mut ShmFabric, grant: GrantId, guard: &QpGuard, offset: u64, data: &[u8]) -> Result<(), Denied> {
    // SAFETY: the slice lives.
    f.reach(|mut reach| unsafe { reach.write_process(grant, guard, offset, data.as_ptr(), data.len()) })
}

/// The bytes as they are now, whoever has written them.
fn seen(data: &[u8]) -> Vec<u8> {
    let mut out = vec![0; data.len()];
    // SAFETY: the slice lives.
    unsafe { hca_dma::load(data.as_ptr().cast_mut(), &mut out) };
    out
}

#[test]
fn memory_of_the_program_is_written_within_its_range_and_not_reached_otherwise() {
    let data = vec![0_u8; 100_000];
    let Some((mut p, grant, guard)) = granted(&data) else { return };
    let bytes: Vec<u8> = (0..max_process_write() as u32).map(|i| (i % 251) as u8).collect();
    write(&mut p.a, grant, &guard, 60_001, &bytes).unwrap();
    write(&mut p.a, grant, &guard, 99_999, &[7]).unwrap();
    let mut expected = vec![0; data.len()];
    expected[60_001..60_001 + bytes.len()].copy_from_slice(&bytes);
    expected[99_999] = 7;
    assert!(seen(&data) == expected);
    for (offset, len) in [(99_999, 2), (100_001, 0), (u64::MAX, 1), (0, max_process_write() + 1)] {
        assert_eq!(write(&mut p.a, grant, &guard, offset, &vec![1; len]), Err(Denied::Unable), "{offset}");
    }
    // Nothing is mapped.
    let mut bracket = p.a.access(grant, &guard).unwrap();
    assert_eq!(bracket.write(0, &[1]), Err(AccessError::Right));
    assert_eq!(bracket.read(0, &mut [1]), Err(AccessError::Right));
    assert_eq!(bracket.fetch_add(0, 1), Err(AccessError::Right));
    assert_eq!(bracket.flush(0, 1), Err(AccessError::Right));
    drop(bracket);
    assert!(seen(&data) == expected);
    let written = max_process_write() as u64 + 1;
    assert_eq!((counter(&p.a, "process_writes"), counter(&p.a, "process_write_bytes")), (2, written));
}

/// A program has other memory where that of a region was, so that the region's key names either.
#[test]
fn a_region_is_granted_once_more_with_the_same_memory_only() {
    let data = vec![0_u8; 1 << 16];
    let Some((mut p, ..)) = granted(&data) else { return };
    assert_eq!(p.notice(false), Notice::ProcessTaken { link: p.to_a });
    let [pages, others] = [(); 2].map(|()| SharedPages::alloc(data.len()).unwrap());
    p.granted(&pages, KEY + 1, ALL);
    let own = own(&data, Access::REMOTE_WRITE);
    let of_pages = Grant { pages: Some(&pages), ..own };
    let of_others = Grant { qpn: QPN + 1, ..grant(&others, KEY + 1, ALL) };
    let of_program = Grant { pages: None, ..of_others };
    for exchanged in [Grant { qpn: QPN + 1, ..of_pages }, of_others, of_program] {
        let Grant { key, qpn, .. } = exchanged;
        p.a.ask_grant(p.to_b, key, qpn).unwrap();
        assert_eq!(p.notice(false), Notice::GrantAsked { link: p.to_a, key, qpn });
        assert!(matches!(p.b.grant(p.to_a, &exchanged), Err(GrantError::Exchanged)), "{exchanged:?}");
        assert_eq!(p.notice(true), Notice::GrantRefused { link: p.to_b, key, qpn });
    }
    p.b.grant(p.to_a, &own).unwrap();
}

#[test]
fn a_write_wakes_nobody_and_who_sleeps_is_seen_to() {
    let data = vec![0_u8; 64];
    let Some((mut p, grant, guard)) = granted(&data) else { return };
    let path = p.a.open_path(&av(p.b.attr().local)).unwrap();
    assert_eq!(p.a.reach(|mut reach| reach.sleeps(grant)), Some(false));
    while p.b.prepare_wait() {
        recv(&mut p.b, &mut Vec::new());
    }
    assert_eq!(p.a.reach(|mut reach| reach.sleeps(grant)), Some(true));
    let before = counter(&p.a, "wakeups_sent");
    let value = [7_u8; 8];
    let done = p.a.send_messages(now(), path, |_, mut reach| {
        // SAFETY: the array lives.
        unsafe { reach.write_process(grant, &guard, 8, value.as_ptr(), value.len()) }
    });
    assert_eq!((done, &seen(&data)[8..16]), (Some(Ok(())), &value[..]));
    assert_eq!(counter(&p.a, "wakeups_sent"), before);
}

#[test]
fn what_was_taken_back_is_not_written() {
    let data = vec![0_u8; 4096];
    let Some((mut p, grant, guard)) = granted(&data) else { return };
    p.b.set_qp_word(QP, WORD + 1).unwrap();
    let denied = write(&mut p.a, grant, &guard, 0, &[1]);
    assert_eq!(denied, Err(Denied::QueuePair { found: WORD + 1 }));
    p.b.set_qp_word(QP, WORD).unwrap();
    assert_eq!(p.b.revoke(KEY), Revocation::default());
    assert_eq!(write(&mut p.a, grant, &guard, 0, &[1]), Err(Denied::Revoked));
    assert_eq!(seen(&data), [0; 4096]);
    assert_eq!(p.notice(true), Notice::GrantRevoked { link: p.to_b, key: KEY, grant });
}

/// A writer within a bracket, and before the call, when the memory is taken back, does not write.
#[test]
fn what_is_taken_back_between_the_bracket_and_the_call_is_not_written() {
    for by_key in [true, false] {
        let data = vec![0_u8; 4096];
        let Some((p, grant, guard)) = granted(&data) else { return };
        let Pair { mut a, mut b, to_a, .. } = p;
        at_the_end_of_the_next_copy(move || {
            let begun =
                if by_key { b.begin_revoke(KEY) } else { b.begin_withdraw_qp_word(to_a, QP, 0).unwrap() };
            assert!(matches!(begun, TakeBack::UnderWay(_)), "{begun:?}");
            // It lives on.
            std::mem::forget(b);
        });
        assert!(write(&mut a, grant, &guard, 0, &[1]).is_err());
        assert_eq!(seen(&data), [0; 4096], "by key: {by_key}");
    }
}

/// A peer that does not leave the call: who withdraws its queue pair's word learns that the memory may change, and so
/// does the revocation of the key behind that, once.
#[test]
fn memory_that_a_dropped_writer_may_change_is_told_of_when_its_key_is_revoked() {
    for by_key in [true, false] {
        let data = vec![0_u8; 4096];
        let Some((p, grant, guard)) = granted(&data) else { return };
        let Pair { mut a, mut b, to_a, .. } = p;
        at_the_end_of_the_next_copy(move || {
            let first = if by_key { b.revoke(KEY) } else { b.withdraw_qp_word(to_a, QP, 0).unwrap() };
            let changes = Revocation { dropped: vec![to_a], private: false, exposed: true };
            assert_eq!(first, changes);
            let behind = b.revoke(KEY);
            assert_eq!(behind, Revocation { exposed: !by_key, ..Revocation::default() });
            assert_eq!(b.revoke(KEY), Revocation::default());
            std::mem::forget(b);
        });
        assert!(write(&mut a, grant, &guard, 0, &[1]).is_err());
    }
}

#[test]
fn memory_that_is_not_there_is_not_granted_again() {
    let nowhere = core::ptr::slice_from_raw_parts(core::ptr::without_provenance::<u8>(8), 4096);
    // SAFETY: not read.
    let nowhere = unsafe { &*nowhere };
    let Some((mut p, grant, guard)) = granted(nowhere) else { return };
    assert_eq!(write(&mut p.a, grant, &guard, 0, &[1]), Err(Denied::Unable));
    assert_eq!(p.notice(true), Notice::GrantRevoked { link: p.to_b, key: KEY, grant });
    assert_eq!(p.a.reach(|mut reach| reach.sleeps(grant)), None);
    while p.notice(false) != (Notice::GrantLeft { link: p.to_a, key: KEY }) {}
    assert_eq!(p.b.grants.granted_now(), 0);
    p.a.ask_grant(p.to_b, KEY, QPN).unwrap();
    while !matches!(p.notice(false), Notice::GrantAsked { .. }) {}
    p.b.grant(p.to_a, &own(nowhere, Access::REMOTE_WRITE)).unwrap();
    assert_eq!(p.notice(true), Notice::GrantRefused { link: p.to_b, key: KEY, qpn: QPN });
}

#[test]
fn memory_of_the_program_is_granted_to_those_that_know_its_process_and_for_writing_only() {
    let data = [0_u8; 64];
    let mut p = pair();
    p.b.set_qp_word(QP, WORD).unwrap();
    let refused = |p: &mut Pair, access| {
        let granted = p.b.grant(p.to_a, &own(&data, access));
        assert!(matches!(granted, Err(GrantError::Process)), "{granted:?}");
    };
    refused(&mut p, Access::REMOTE_WRITE);
    p.b.offer_process(p.to_a).unwrap();
    refused(&mut p, Access::REMOTE_READ);
    refused(&mut p, Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    let d = domain();
    let options = ShmOptions { process_vm: ProcessVm::No, ..small() };
    let mut c = ShmFabric::open(&d, &options).unwrap();
    let mut e = open(&d);
    let path = c.open_path(&av(e.attr().local)).unwrap();
    let link = turn_until_linked(&mut c, &mut e, path);
    assert!(matches!(c.offer_process(link), Err(GrantError::Isolated)));
    assert!(matches!(c.grant(link, &own(&data, Access::REMOTE_WRITE)), Err(GrantError::Process)));
}

fn turn_until_linked(a: &mut ShmFabric, b: &mut ShmFabric, path: PathId) -> LinkId {
    loop {
        recv(a, &mut Vec::new());
        recv(b, &mut Vec::new());
        if let Some(link) = a.link_of(path) {
            return link;
        }
    }
}

/// A child that writes rising numbers all over what it is granted, again and again.
pub(super) fn scrawl(domain: &str) {
    let (mut f, parent) = meet_parent(domain, &small());
    let mut piece = [0_u8; 64];
    for i in 1_u32.. {
        f.ask_grant(parent, KEY, QPN).unwrap();
        let grant = loop {
            match next_notice(&mut f) {
                Notice::Granted { grant, .. } => break grant,
                Notice::LinkGone { .. } => return,
                _ => {}
            }
        };
        let guard = f.qp_guard(parent, QP, WORD).unwrap();
        loop {
            piece.fill(i as u8);
            match write(&mut f, grant, &guard, 0, &piece) {
                Ok(()) => {}
                Err(Denied::Revoked | Denied::Unknown) => break,
                Err(Denied::Unable) => {}
                Err(other) => panic!("{other}"),
            }
        }
        if i == 1 {
            say("out");
            hear();
        }
    }
}

/// Stopped at any moment: nothing changes once the revocation has returned, and nobody waits for the peer.
#[test]
fn a_writer_that_is_stopped_at_any_moment_changes_nothing_behind_a_revocation() {
    if !possible() {
        return;
    }
    let mut a = open(&domain());
    let (mut child, link) = meet_child("scrawl", &mut a);
    a.set_qp_word(QP, WORD).unwrap();
    a.offer_process(link).unwrap();
    let data = vec![0_u8; 64];
    for round in 0..100_u32 {
        while !matches!(next_notice(&mut a), Notice::GrantAsked { .. }) {}
        let before = seen(&data);
        a.grant(link, &own(&data, Access::REMOTE_WRITE)).unwrap();
        // Once it is at work.
        let granted = Clock::now();
        while seen(&data) == before {
            assert!(granted.elapsed() < Duration::from_secs(20), "round {round}: the child does not write");
            recv(&mut a, &mut Vec::new());
            std::thread::yield_now();
        }
        let start = Clock::now();
        while start.elapsed() < Duration::from_nanos(u64::from(round) * 7919 % 20_011) {
            std::hint::spin_loop();
        }
        signal(&child, Signal::STOP);
        assert_eq!(a.revoke(KEY), Revocation::default(), "round {round}");
        let zeros = vec![0; data.len()];
        // SAFETY: the vector lives.
        unsafe { hca_dma::store(data.as_ptr().cast_mut(), &zeros) };
        signal(&child, Signal::CONT);
        if round == 0 {
            assert_eq!(child.line(), "out");
            child.tell("go on");
        }
        // It asks again once it has found out.
        while a.grants.notices_now() == 0 {
            recv(&mut a, &mut Vec::new());
            assert!(start.elapsed() < Duration::from_secs(20), "the child does not ask again");
            std::thread::yield_now();
        }
        assert_eq!(seen(&data), zeros, "round {round}: it changed");
    }
    assert_eq!(counter(&a, "peers_dropped_stuck"), 0);
    child.kill();
}
