//! Direct access from other processes, some of which do not keep the protocol.

use std::net::Ipv6Addr;
use std::os::fd::{AsFd, OwnedFd};

use hca_core::Access;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Pid, Signal, kill_process};

use super::super::hello::{self, Received};
use super::super::link::Stage;
use super::super::note::Note;
use super::children::{as_nobody, child};
use super::direct::{ALL, KEY, QPN, bytes, grant, link};
use super::*;
use crate::{Denied, GrantError, GrantId, LinkId, Notice, QpGuard, Revocation, SharedPages};
use test_support::roles::{Helper, hear, say};

const WORD: u64 = 0xfeed_0001;

/// A child's end: opens, meets the adapter that it is told, and stays linked.
pub(super) fn meet_parent(domain: &str, options: &ShmOptions) -> (ShmFabric, LinkId) {
    let mut f = ShmFabric::open(domain, options).unwrap();
    say(f.own.local);
    let parent: Ipv6Addr = hear().parse().unwrap();
    let path = f.open_path(&av(parent.into())).unwrap();
    let start = Clock::now();
    loop {
        recv(&mut f, &mut Vec::new());
        if let Some(link) = f.link_of(path) {
            return (f, link);
        }
        wait_since(start);
    }
}

/// Gives way, for as long as there is hope.
fn wait_since(start: Clock) {
    assert!(start.elapsed() < Duration::from_secs(20), "the other process does not come");
    std::thread::yield_now();
}

pub(super) fn small() -> ShmOptions {
    ShmOptions { ring_bytes: 1 << 16, ..ShmOptions::default() }
}

/// Starts a child in a role, and meets it.
pub(super) fn meet_child(role: &str, a: &mut ShmFabric) -> (Helper, LinkId) {
    let helper = child(role, a.own.domain.name(), None);
    meet_helper(helper, a)
}

fn meet_helper(mut child: Helper, a: &mut ShmFabric) -> (Helper, LinkId) {
    let address: Ipv6Addr = child.line().parse().unwrap();
    child.tell(&a.own.local.to_string());
    let start = Clock::now();
    loop {
        recv(a, &mut Vec::new());
        let up = |slot| a.links.get(slot).is_some_and(|l| matches!(l.stage, Stage::Up(_)));
        if let Some(slot) = a.links.find(address.into()).filter(|s| up(*s)) {
            return (child, LinkId::new(a.links.token(slot)));
        }
        wait_since(start);
    }
}

pub(super) fn next_notice(f: &mut ShmFabric) -> Notice {
    let start = Clock::now();
    loop {
        recv(f, &mut Vec::new());
        if let Some(n) = f.next_notice() {
            return n;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "no notice");
        std::thread::yield_now();
    }
}

/// Answers a child's question.
fn grant_to(a: &mut ShmFabric, link: LinkId, pages: &SharedPages, access: Access) {
    a.set_qp_word(5, WORD).unwrap();
    let asked = next_notice(a);
    assert_eq!(asked, Notice::GrantAsked { link, key: KEY, qpn: QPN });
    a.grant(link, &grant(pages, KEY, access)).unwrap();
}

/// A child that gets the grant that it asks for.
fn get_grant(domain: &str) -> (ShmFabric, LinkId, GrantId, QpGuard) {
    let (mut f, parent) = meet_parent(domain, &small());
    f.ask_grant(parent, KEY, QPN).unwrap();
    let Notice::Granted { grant, .. } = next_notice(&mut f) else { panic!("it is granted") };
    let guard = f.qp_guard(parent, 5, WORD).unwrap();
    (f, parent, grant, guard)
}

/// What a peer can do with the descriptor of memory that it was granted; zeros the first page if it can.
pub(super) fn grab(domain: &str) {
    let (f, parent) = meet_parent(domain, &small());
    let link = f.links.get(parent.slot()).unwrap();
    let Stage::Up(socket) = &link.stage else { panic!("they have met") };
    hello::send_note(socket.as_fd(), &Note::Ask { key: KEY, qpn: QPN }, None).unwrap();
    let start = Clock::now();
    let fd = loop {
        match hello::receive(socket.as_fd()) {
            Received::Note(Note::Grant { .. }, Some(fd)) => break fd,
            Received::Nothing => wait_since(start),
            other => panic!("{other:?}"),
        }
    };
    let maps = |fd: &OwnedFd| {
        let nowhere = core::ptr::null_mut();
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping changes no memory of ours.
        #[allow(unsafe_code)]
        let mapped = unsafe { rustix::mm::mmap(nowhere, 4096, prot, MapFlags::SHARED, fd, 0) };
        mapped.is_ok()
    };
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    let reopened = rustix::fs::open(path, OFlags::RDWR, rustix::fs::Mode::empty());
    let reopened_maps = reopened.as_ref().is_ok_and(maps);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let size = rustix::fs::fstat(&fd).unwrap().st_size as u64;
    let shrinks = rustix::fs::ftruncate(&fd, 0).is_ok() || rustix::fs::ftruncate(&fd, 4096).is_ok();
    let grows = rustix::fs::ftruncate(&fd, size + 4096).is_ok();
    let punches = rustix::fs::fallocate(&fd, punch, 0, 4096).is_ok();
    let writes = rustix::io::pwrite(&fd, &[9], 4096).is_ok();
    say(format!(
        "maps {} reopened {} writes {writes} punches {punches} shrinks {shrinks} grows {grows}",
        maps(&fd),
        reopened_maps
    ));
    hear();
}

fn grabbed(access: Access) -> (String, SharedPages) {
    let d = domain();
    let mut a = open(&d);
    let (mut child, link) = meet_child("grab", &mut a);
    let pages = SharedPages::alloc(3 * 4096).unwrap();
    // SAFETY: within the pages, which live.
    #[allow(unsafe_code)]
    unsafe {
        hca_dma::store(pages.addr().as_ptr(), &[7; 3 * 4096]);
    }
    grant_to(&mut a, link, &pages, access);
    let found = child.line();
    child.tell("done");
    child.child.wait().unwrap();
    (found, pages)
}

#[test]
fn who_was_granted_reading_cannot_write_by_any_means() {
    let (found, pages) = grabbed(Access::REMOTE_READ);
    assert_eq!(found, "maps false reopened false writes false punches false shrinks false grows false");
    assert!(bytes(&pages, 0, 3 * 4096).iter().all(|b| *b == 7));
}

#[test]
fn who_was_granted_writing_can_punch_holes_which_read_as_zeros_and_no_more() {
    let (found, pages) = grabbed(ALL);
    assert_eq!(found, "maps true reopened true writes true punches true shrinks false grows false");
    assert!(bytes(&pages, 0, 4096).iter().all(|b| *b == 0));
    assert_eq!(bytes(&pages, 4096, 2), [9, 7]);
    assert!(bytes(&pages, 8192, 4096).iter().all(|b| *b == 7));
}

/// Writes rising numbers all over what it was granted until that ends.
pub(super) fn scribble(domain: &str) {
    let (mut f, _, grant, guard) = get_grant(domain);
    say("granted");
    let mut piece = vec![0_u8; 256 << 10];
    for i in 1_u32.. {
        piece.fill(i as u8);
        match f.access(grant, &guard) {
            Ok(mut b) => b.write(0, &piece).unwrap(),
            Err(Denied::Revoked | Denied::Unknown) => break,
            Err(other) => panic!("{other}"),
        }
        if i % 64 == 0 {
            recv(&mut f, &mut Vec::new());
        }
    }
    say("out");
    hear();
}

pub(super) fn signal(child: &Helper, signal: Signal) {
    kill_process(Pid::from_child(&child.child), signal).unwrap();
}

/// Stopped at any moment, within an access or between two: nothing changes once the revocation has returned.
#[test]
fn a_peer_that_is_stopped_at_any_moment_changes_nothing_behind_a_revocation() {
    let mut stuck = 0;
    for round in 0..8_u64 {
        let mut a = open(&domain());
        let (mut child, link) = meet_child("scribble", &mut a);
        let pages = SharedPages::alloc(256 << 10).unwrap();
        grant_to(&mut a, link, &pages, ALL);
        assert_eq!(child.line(), "granted");
        // Once it is at work.
        while bytes(&pages, 0, 1)[0] < 10 {
            std::thread::yield_now();
        }
        let start = Clock::now();
        while start.elapsed() < Duration::from_micros(round * 137) {
            std::hint::spin_loop();
        }
        signal(&child, Signal::STOP);
        let revoked = a.revoke(KEY);
        let before = bytes(&pages, 0, pages.len());
        match revoked.dropped.as_slice() {
            [] => assert!(!revoked.private && !pages.is_private()),
            [one] => {
                assert!(*one == link && revoked.private && pages.is_private());
                stuck += 1;
            }
            more => panic!("{more:?}"),
        }
        signal(&child, Signal::CONT);
        assert_eq!(child.line(), "out");
        assert!(bytes(&pages, 0, pages.len()) == before, "round {round}: it changed");
        child.tell("done");
        child.child.wait().unwrap();
    }
    println!("stopped within an access: {stuck} of 8");
}

/// Stays within an access until it is told to end it, and goes on writing till then.
pub(super) fn dwell(domain: &str) {
    let (mut f, _, grant, guard) = get_grant(domain);
    let mut bracket = f.access(grant, &guard).unwrap();
    bracket.write(0, &[1; 5000]).unwrap();
    say("inside");
    hear();
    bracket.write(4000, &[2; 5000]).unwrap();
    assert_eq!(bracket.fetch_add(9000, 3), Ok(0));
    drop(bracket);
    let start = Clock::now();
    while f.access(grant, &guard).is_ok() || f.links.len() > 0 {
        recv(&mut f, &mut Vec::new());
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    say("out");
    hear();
}

#[test]
fn a_peer_that_stays_within_an_access_is_dropped_and_writes_to_pages_of_its_own() {
    let d = domain();
    let mut a = open(&d);
    let (mut child, link) = meet_child("dwell", &mut a);
    let pages = SharedPages::alloc(3 * 4096).unwrap();
    grant_to(&mut a, link, &pages, ALL);
    // Another one holds the same region by another key, and is no hindrance.
    let mut c = open(&d);
    let to_a = c.open_path(&av(a.attr().local)).unwrap();
    while c.link_of(to_a).is_none() {
        recv(&mut c, &mut Vec::new());
        recv(&mut a, &mut Vec::new());
    }
    let (c_to_a, a_to_c) = (c.link_of(to_a).unwrap(), self::link(&a, &c));
    a.offer(a_to_c, &grant(&pages, KEY + 1, ALL)).unwrap();
    let Notice::Granted { grant: g, .. } = next_notice(&mut c) else { panic!("it is granted") };
    let guard = c.qp_guard(c_to_a, 5, WORD).unwrap();
    c.access(g, &guard).unwrap().write(8192, &[5; 100]).unwrap();
    assert_eq!(child.line(), "inside");

    let revoked = a.revoke(KEY);
    assert_eq!(revoked, Revocation { dropped: vec![link], private: true, exposed: false });
    assert!(matches!(a.ask_grant(link, KEY, QPN), Err(GrantError::Link)));
    let mine = bytes(&pages, 0, pages.len());
    assert!(mine[..5000].iter().all(|b| *b == 1) && mine[8192..8292].iter().all(|b| *b == 5));
    // The other one was kept out before the pages became private.
    assert_eq!(c.access(g, &guard).err(), Some(Denied::Revoked));
    child.tell("go on");
    assert_eq!(child.line(), "out");
    assert!(bytes(&pages, 0, pages.len()) == mine);
    // What this side writes stays its own, and peers can't be given it again.
    assert!(matches!(a.offer(a_to_c, &grant(&pages, KEY + 2, ALL)), Err(GrantError::Private)));
    assert_eq!((counter(&a, "peers_dropped_stuck"), counter(&a, "peers_dropped_garbage")), (1, 0));
    child.tell("done");
    child.child.wait().unwrap();
}

#[test]
fn a_peer_that_stays_within_an_access_holds_up_its_queue_pairs_word_no_longer() {
    let mut a = open(&domain());
    let (mut child, link) = meet_child("dwell", &mut a);
    let pages = SharedPages::alloc(3 * 4096).unwrap();
    grant_to(&mut a, link, &pages, ALL);
    assert_eq!(child.line(), "inside");
    let withdrawn = a.withdraw_qp_word(link, 5, 0).unwrap();
    assert_eq!(withdrawn, Revocation { dropped: vec![link], private: true, exposed: false });
    let mine = bytes(&pages, 0, pages.len());
    child.tell("go on");
    assert_eq!(child.line(), "out");
    assert!(bytes(&pages, 0, pages.len()) == mine);
    assert_eq!(a.grants.granted_now(), 0);
    child.tell("done");
    child.child.wait().unwrap();
}

#[test]
fn a_peer_that_was_killed_within_an_access_counts_as_out() {
    let mut a = open(&domain());
    let (mut child, link) = meet_child("dwell", &mut a);
    let pages = SharedPages::alloc(3 * 4096).unwrap();
    grant_to(&mut a, link, &pages, ALL);
    assert_eq!(child.line(), "inside");
    child.kill();
    assert_eq!(a.revoke(KEY), Revocation::default());
    assert!(!pages.is_private());
    assert_eq!(bytes(&pages, 0, 1), [1]);
}

/// Asks as a peer of another user.
pub(super) fn stranger(domain: &str) {
    let (f, parent) = meet_parent(domain, &ShmOptions { any_user: true, ..small() });
    let link = f.links.get(parent.slot()).unwrap();
    let Stage::Up(socket) = &link.stage else { panic!("they have met") };
    assert!(!link.direct.trusted);
    hello::send_note(socket.as_fd(), &Note::Ask { key: KEY, qpn: QPN }, None).unwrap();
    let start = Clock::now();
    loop {
        match hello::receive(socket.as_fd()) {
            Received::Note(note, _) => break say(format!("{note:?}")),
            Received::Nothing => wait_since(start),
            other => panic!("{other:?}"),
        }
    }
    hear();
}

#[test]
#[ignore = "needs root: to be two users"]
fn another_users_process_is_granted_nothing() {
    let d = domain();
    let mut a = ShmFabric::open(&d, &ShmOptions { any_user: true, ..small() }).unwrap();
    let (mut child, link) = meet_helper(as_nobody("stranger", &d), &mut a);
    assert!(matches!(a.ask_grant(link, KEY, QPN), Err(GrantError::ForeignUser)));
    let pages = SharedPages::alloc(4096).unwrap();
    assert!(matches!(a.offer(link, &grant(&pages, KEY, ALL)), Err(GrantError::ForeignUser)));
    let start = Clock::now();
    let (answered, answer) =
        (std::sync::mpsc::channel(), format!("{:?}", Note::Refuse { key: KEY, qpn: QPN }));
    let line = std::thread::scope(|s| {
        let child = &mut child;
        s.spawn(move || answered.0.send(child.line()).unwrap());
        loop {
            recv(&mut a, &mut Vec::new());
            if let Ok(line) = answered.1.try_recv() {
                break line;
            }
            assert!(start.elapsed() < Duration::from_secs(10));
        }
    });
    assert_eq!(line, answer);
    assert_eq!(a.next_notice(), None);
    child.tell("done");
    child.child.wait().unwrap();
}

fn resources() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let maps = maps.lines().filter(|l| l.contains("hca-pages")).count();
    (std::fs::read_dir("/proc/self/fd").unwrap().count(), maps)
}

/// Counts descriptors and mappings over grants that are taken back, let go, and lost with the peer.
pub(super) fn tidy(_: &str) {
    use super::direct::pair;
    let mut p = pair();
    let before = resources();
    let pages = SharedPages::alloc(4096).unwrap();
    for key in 0..10 {
        p.granted(&pages, key, ALL);
    }
    // One descriptor for the memory, and none for a grant.
    assert_eq!(resources(), (before.0 + 1, before.1 + 11));
    for key in 0..5 {
        p.b.revoke(key);
        assert!(matches!(p.notice(true), Notice::GrantRevoked { .. }));
    }
    let (g, _) = p.granted(&pages, 5, ALL);
    p.a.release_grant(g);
    assert!(matches!(p.notice(false), Notice::GrantLeft { .. }));
    assert_eq!(resources(), (before.0 + 1, before.1 + 5));
    drop(p.b);
    let start = Clock::now();
    while p.a.links.len() > 0 {
        recv(&mut p.a, &mut Vec::new());
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(resources().1, before.1 + 1);
    drop(pages);
    assert_eq!(resources().1, before.1);
    // As many allocations as there may be, over and over.
    for _ in 0..2 {
        let all: Vec<_> =
            (0..crate::MAX_SHARED_ALLOCATIONS).map(|_| SharedPages::alloc(1).unwrap()).collect();
        assert!(matches!(SharedPages::alloc(1), Err(GrantError::Limit { limit: 256, .. })));
        drop(all);
    }
    say("tidy");
}

/// Pages of the program that are moved keep their bytes. Given up, or unmapped by the program, they are found no more,
/// and stay the program's.
#[test]
#[allow(unsafe_code)] // memory of this test
fn pages_of_the_program_move_and_stay_its_own() {
    let len = 4 * 4096;
    let map = |at: *mut core::ffi::c_void, fixed, byte| {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, or pages of this test.
        let at = unsafe { rustix::mm::mmap_anonymous(at, len, prot, MapFlags::PRIVATE | fixed) }.unwrap();
        // SAFETY: as above.
        unsafe { hca_dma::store(at.cast(), &[byte; 4 * 4096]) };
        core::ptr::NonNull::new(at.cast::<u8>()).unwrap()
    };
    hca_dma::survive();
    let at = map(core::ptr::null_mut(), MapFlags::empty(), 5);
    let all = at.addr().get()..at.addr().get() + len;
    // SAFETY: whole pages of this test, of which nobody else knows.
    let pages = unsafe { SharedPages::move_in(at, len) }.unwrap();
    assert!((pages.addr(), pages.len()) == (at, len) && bytes(&pages, 0, len).iter().all(|b| *b == 5));
    assert!(SharedPages::find(all.start, len).is_some());
    // The program may unmap some of them.
    // SAFETY: pages of this test.
    unsafe { rustix::mm::munmap(at.as_ptr().add(4096).cast(), 4096) }.unwrap();
    let left = [all.start..all.start + 4096, all.start + 2 * 4096..all.end];
    let ranges =
        |pages: &SharedPages| -> Vec<_> { pages.mapped().unwrap().into_iter().map(|m| m.range).collect() };
    assert_eq!(ranges(&pages), left);
    assert!(SharedPages::find(all.start, len).is_none(), "other memory may stand there");
    // Pages that are no longer there are not made private in their place.
    map(at.as_ptr().cast(), MapFlags::FIXED, 6);
    pages.make_private().unwrap();
    assert!(pages.is_private() && bytes(&pages, 0, len).iter().all(|b| *b == 6));
    // SAFETY: whole pages of this test, of which nobody else knows.
    let again = unsafe { SharedPages::move_in(at, len) }.unwrap();
    drop(pages);
    assert!(SharedPages::find(all.start, len).is_some(), "the later ones are found");
    assert_eq!(ranges(&again), core::slice::from_ref(&all));
    again.give_up();
    assert!(again.is_private() && SharedPages::find(all.start, len).is_none());
    drop(again);
    // SAFETY: pages of this test, which are still mapped.
    unsafe {
        let mut read = [0; 8];
        hca_dma::load(at.as_ptr(), &mut read);
        assert_eq!(read, [6; 8]);
        rustix::mm::munmap(at.as_ptr().cast(), len).unwrap();
    }
}

#[test]
fn grants_leave_no_descriptor_and_no_mapping_behind() {
    let mut helper = child("tidy", "-", None);
    assert_eq!(helper.line(), "tidy");
    assert!(helper.child.wait().unwrap().success());
}
