//! Memory of a peer's process that is fetched.
#![allow(unsafe_code)]

use rustix::process::{Signal, getpid};

use super::super::note::Note;
use super::super::process::tests::at_the_end_of_the_next_copy;
use super::direct::{KEY, Pair, link, pair};
use super::hostile::{drops, say_note};
use super::outside::{meet_child, meet_parent, next_notice, signal, small};
use super::*;
use crate::{
    FetchError, GrantError, LinkId, MAX_LOAN_PLACES, MAX_QP_WORDS, Notice, Places, ProcessLoan, ProcessVm,
};
use test_support::roles::{Helper, hear, say};

const QP: u32 = 5;
const WORD: u64 = 0xfeed_0001;

/// What `a` lends of its memory.
fn lend(a: &mut ShmFabric, data: &[u8]) -> ProcessLoan {
    let terms = a.reach(|reach| reach.terms(KEY, QP, WORD)).expect("the process was offered");
    let addr = data.as_ptr().expose_provenance() as u64;
    ProcessLoan { addr, len: data.len(), key: KEY, terms }
}

/// Fetches in pieces of these lengths.
fn fetch_in(
    b: &mut ShmFabric,
    from: LinkId,
    loan: &ProcessLoan,
    lens: &[usize],
) -> Result<Vec<u8>, FetchError> {
    let mut out = vec![0; lens.iter().sum()];
    let (mut places, mut at) = (Places::default(), out.as_mut_ptr());
    for &len in lens {
        assert!(places.push(at, len));
        at = at.wrapping_add(len);
    }
    // SAFETY: the places lie within `out`, which nobody else touches.
    b.reach(|mut reach| unsafe { reach.fetch(from, loan, &places) }).map(|()| out)
}

fn fetch(b: &mut ShmFabric, from: LinkId, loan: &ProcessLoan) -> Result<Vec<u8>, FetchError> {
    fetch_in(b, from, loan, &[loan.len])
}

/// `a` has offered its process, and `b` has taken it.
fn offered() -> Pair {
    let mut p = pair();
    p.a.set_qp_word(QP, WORD).unwrap();
    assert!(p.a.reach(|reach| reach.terms(KEY, QP, WORD)).is_none(), "nothing is lent before");
    p.a.offer_process(p.to_b).unwrap();
    assert_eq!(p.notice(true), Notice::ProcessTaken { link: p.to_b });
    p
}

fn data(seed: u32) -> Vec<u8> {
    (0..100_000_u32).map(|i| (i.wrapping_mul(seed) >> 3) as u8).collect()
}

#[test]
fn what_is_lent_is_fetched_into_all_places_in_order() {
    let mut p = offered();
    let data = data(7);
    let loan = lend(&mut p.a, &data);
    assert_eq!(fetch(&mut p.b, p.to_a, &loan), Ok(data.clone()));
    let lens = [1, 4096, 0, 60_000, 100_000 - 64_097];
    assert_eq!(fetch_in(&mut p.b, p.to_a, &loan, &lens), Ok(data.clone()));
    let mut many = [1; MAX_LOAN_PLACES];
    many[0] = 100_000 - (MAX_LOAN_PLACES - 1);
    assert_eq!(fetch_in(&mut p.b, p.to_a, &loan, &many), Ok(data));
    assert_eq!((counter(&p.b, "process_fetches"), counter(&p.b, "process_fetch_bytes")), (3, 300_000));
}

#[test]
fn what_was_taken_back_is_not_fetched_and_nobody_is_waited_for() {
    let mut p = offered();
    let data = data(11);
    let old = lend(&mut p.a, &data);
    p.a.revoke(KEY);
    assert_eq!(fetch(&mut p.b, p.to_a, &old), Err(FetchError::Gone));
    let new = lend(&mut p.a, &data);
    assert_eq!(fetch(&mut p.b, p.to_a, &new), Ok(data));
    // The queue pair came to an end, or to another state.
    for word in [0, WORD + 1] {
        p.a.set_qp_word(QP, word).unwrap();
        assert_eq!(fetch(&mut p.b, p.to_a, &new), Err(FetchError::Gone));
    }
    p.a.set_qp_word(QP, WORD).unwrap();
    assert!(fetch(&mut p.b, p.to_a, &new).is_ok());
}

#[test]
fn what_was_taken_back_while_it_was_copied_is_thrown_away() {
    let data = data(19);
    // The key; the queue pair's word.
    for by_key in [true, false] {
        let mut p = offered();
        let loan = lend(&mut p.a, &data);
        let (mut a, to_a) = (p.a, p.to_a);
        at_the_end_of_the_next_copy(move || {
            if by_key {
                a.revoke(KEY);
            } else {
                a.set_qp_word(QP, 0).unwrap();
            }
            // It lives on.
            std::mem::forget(a);
        });
        assert_eq!(fetch(&mut p.b, to_a, &loan), Err(FetchError::Gone), "by key: {by_key}");
    }
}

#[test]
fn what_was_copied_of_a_process_that_died_meanwhile_is_thrown_away() {
    let mut a = open(&domain());
    let (mut child, link) = meet_child("lender", &mut a);
    let loan = lent_by(&mut child, &mut a);
    at_the_end_of_the_next_copy(move || child.kill());
    assert_eq!(fetch(&mut a, link, &loan), Err(FetchError::Gone));
}

#[test]
fn memory_that_the_peer_does_not_have_is_its_fault_and_harms_nothing() {
    let mut p = offered();
    let data = data(13);
    let good = lend(&mut p.a, &data);
    let with = |f: fn(&mut ProcessLoan)| {
        let mut loan = good;
        f(&mut loan);
        loan
    };
    for (what, loan) in [
        ("a low address", with(|l| l.addr = 8)),
        ("none of user space", with(|l| l.addr = 1 << 63)),
        ("beyond the end", with(|l| l.addr = u64::MAX - 4096)),
        ("a queue pair that there can't be", with(|l| l.terms[1] |= u64::from(MAX_QP_WORDS) << 32)),
        ("a queue pair that is none", with(|l| l.terms[0] = 0)),
    ] {
        assert_eq!(fetch(&mut p.b, p.to_a, &loan), Err(FetchError::Fault), "{what}");
    }
    assert_eq!(fetch_in(&mut p.b, p.to_a, &good, &[good.len - 1]), Err(FetchError::Fault), "other lengths");
    // The other queue pairs' words stand in pages of the board that its owner has not made.
    let other = with(|l| l.terms[1] |= u64::from(MAX_QP_WORDS - 1) << 32);
    assert_eq!(fetch(&mut p.b, p.to_a, &other), Err(FetchError::Gone));
    assert_eq!(fetch(&mut p.b, p.to_a, &good), Ok(data));
}

#[test]
fn a_process_that_does_not_prove_to_be_the_peers_is_not_read() {
    let pid = getpid().as_raw_nonzero().get() as u32;
    let word = 0x1234_5678_9abc_def0_u64;
    let at = (&raw const word).expose_provenance() as u64;
    for (what, pid, addr, proof) in [
        ("another process", 1, at, word),
        ("no process", 0, at, word),
        ("no number of a process", u32::MAX, at, word),
        ("another word", pid, at, word + 1),
        ("no memory", pid, 8, word),
    ] {
        let mut p = pair();
        say_note(&p.a, &p.b, &Note::Process { pid, addr, proof }, None);
        let start = Clock::now();
        while counter(&p.b, "processes_not_readable") == 0 {
            recv(&mut p.b, &mut Vec::new());
            assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        }
        let loan = ProcessLoan { addr: at, len: 8, key: KEY, terms: [WORD, 0] };
        assert_eq!(fetch(&mut p.b, p.to_a, &loan), Err(FetchError::Gone), "{what}");
        assert_eq!(counter(&p.b, "peers_dropped_garbage"), 0, "{what}");
    }
}

#[test]
fn words_about_processes_out_of_turn_end_the_link() {
    let mut p = pair();
    say_note(&p.a, &p.b, &Note::Fetches { yes: true }, None);
    drops(&mut p.b, "it answers a question that was not asked");
    let mut p = pair();
    for _ in 0..2 {
        say_note(&p.a, &p.b, &Note::Process { pid: 1, addr: 0, proof: 0 }, None);
    }
    drops(&mut p.b, "it offers twice");
}

#[test]
fn who_does_not_want_it_neither_lends_nor_fetches() {
    for (isolated, process_vm) in [(true, ProcessVm::Yes), (true, ProcessVm::Any), (false, ProcessVm::No)] {
        let d = domain();
        let options = ShmOptions { isolated, process_vm, ..small() };
        let mut a = ShmFabric::open(&d, &options).unwrap();
        let mut b = open(&d);
        let path = a.open_path(&av(b.attr().local)).unwrap();
        let start = Clock::now();
        while a.link_of(path).is_none() || b.links.find(a.own.local).is_none() {
            recv(&mut a, &mut Vec::new());
            recv(&mut b, &mut Vec::new());
            assert!(start.elapsed() < Duration::from_secs(10));
        }
        let (to_b, to_a) = (link(&a, &b), link(&b, &a));
        let refused = a.offer_process(to_b).expect_err("it is not wanted");
        assert!(matches!(refused, GrantError::Isolated | GrantError::ForeignUser), "{refused}");
        b.offer_process(to_a).unwrap();
        let answer = loop {
            recv(&mut a, &mut Vec::new());
            recv(&mut b, &mut Vec::new());
            if let Some(answer) = b.next_notice() {
                break answer;
            }
            assert!(start.elapsed() < Duration::from_secs(10));
        };
        assert_eq!(answer, Notice::ProcessLeft { link: to_a });
        let note = a.attr().notes.iter().find(|n| n.0 == "foreign memory").unwrap();
        assert!(note.1.contains("two copies"), "{note:?}");
    }
}

/// Lends some of its memory, and stays.
pub(super) fn lender(domain: &str) {
    let (mut f, link) = meet_parent(domain, &small());
    f.set_qp_word(QP, WORD).unwrap();
    f.offer_process(link).unwrap();
    assert_eq!(next_notice(&mut f), Notice::ProcessTaken { link });
    let data = data(17);
    let loan = lend(&mut f, &data);
    say(format!("{} {} {}", loan.addr, loan.terms[0], loan.terms[1]));
    hear();
}

/// What a child lends.
fn lent_by(child: &mut Helper, a: &mut ShmFabric) -> ProcessLoan {
    let start = Clock::now();
    while counter(a, "processes_fetched_from") == 0 {
        recv(a, &mut Vec::new());
        assert!(start.elapsed() < Duration::from_secs(20));
    }
    let line = child.line();
    let words: Vec<u64> = line.split(' ').map(|w| w.parse().unwrap()).collect();
    ProcessLoan { addr: words[0], len: 100_000, key: KEY, terms: [words[1], words[2]] }
}

#[test]
fn a_stopped_process_is_read_and_a_dead_one_is_not_and_is_told_of() {
    let mut a = open(&domain());
    let (mut child, link) = meet_child("lender", &mut a);
    let loan = lent_by(&mut child, &mut a);
    let start = Clock::now();
    assert_eq!(fetch(&mut a, link, &loan), Ok(data(17)));
    signal(&child, Signal::STOP);
    assert_eq!(fetch(&mut a, link, &loan), Ok(data(17)));
    // It is gone for the fetch before its socket is looked at.
    child.kill();
    assert_eq!(fetch(&mut a, link, &loan), Err(FetchError::Gone));
    assert_eq!(fetch(&mut a, link, &loan), Err(FetchError::Gone));
    while counter(&a, "processes_not_readable") == 0 && counter(&a, "peers_gone") == 0 {
        recv(&mut a, &mut Vec::new());
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}

/// Where the program before and the one behind have memory of their own.
const PLACE: usize = 0x1000_0000_0000;
const PLACE_BYTES: usize = 1 << 16;

/// Fills memory there.
fn place(byte: u8) -> &'static [u8] {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let at = core::ptr::with_exposed_provenance_mut::<u8>(PLACE);
    // SAFETY: memory where nothing is yet, and which nobody else knows.
    unsafe {
        let got = libc::mmap(at.cast(), PLACE_BYTES, prot, flags | libc::MAP_FIXED_NOREPLACE, -1, 0);
        assert_eq!(got.addr(), PLACE);
        at.write_bytes(byte, PLACE_BYTES);
        core::slice::from_raw_parts(at, PLACE_BYTES)
    }
}

/// Lends some of its memory, and is another program then.
pub(super) fn execs(domain: &str) {
    use std::os::unix::process::CommandExt;
    let (mut f, link) = meet_parent(domain, &small());
    f.set_qp_word(QP, WORD).unwrap();
    f.offer_process(link).unwrap();
    assert_eq!(next_notice(&mut f), Notice::ProcessTaken { link });
    let loan = lend(&mut f, place(1));
    say(format!("{} {} {}", loan.addr, loan.terms[0], loan.terms[1]));
    assert_eq!(hear(), "go on");
    let mut next = std::process::Command::new("/proc/self/exe");
    next.args(std::env::args_os().skip(1)).env("HCA_TEST_ROLE", "successor -");
    panic!("{}", next.exec());
}
/// The other program, with other memory in the same place.
pub(super) fn successor() {
    place(2);
    say("in its place");
    hear();
}

#[test]
fn a_process_that_runs_another_program_is_read_no_more() {
    let mut a = open(&domain());
    let (mut child, link) = meet_child("execs", &mut a);
    let loan = ProcessLoan { len: PLACE_BYTES, ..lent_by(&mut child, &mut a) };
    let first = |fetched: Result<Vec<u8>, FetchError>| fetched.map(|bytes| bytes[0]);
    assert_eq!(first(fetch(&mut a, link, &loan)), Ok(1));
    child.tell("go on");
    assert_eq!(child.line(), "in its place");
    // Before the end of its socket is looked at.
    assert_eq!(first(fetch(&mut a, link, &loan)), Err(FetchError::Gone));
    child.tell("done");
    child.child.wait().unwrap();
}
