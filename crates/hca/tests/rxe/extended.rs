//! Memory windows, keys that a SEND takes back, and ATOMIC WRITE, each with either side as the requester.
//!
//! A test tells which operations rxe's kernel lacks, and leaves them out.

use hca::hca_core::{Access, RemoteAddr, Rkey, WcStatus};
use hca::{MemoryWindow, QpWindow, Rc, SendRequest};

use crate::world::{GUARD, Kind, Request, Setup, Side, World};

pub(crate) const BYTES: usize = 1 << 16;
/// The range that a window shows, and a message inside of it.
const SHOWN: std::ops::Range<usize> = 8192..16384;
pub(crate) const AT: usize = SHOWN.start + 512;
pub(crate) const LEN: usize = 3000;
/// Ids of what the tests post beside transfers.
const BIND: u64 = 50;
const RECV: u64 = 51;

/// A connection, if rxe has all of these.
pub(crate) fn world(needs: &[&str]) -> Option<World<Rc>> {
    let able = World::<Rc>::new(4096).peer.ask("able");
    let missing: Vec<_> = needs.iter().filter(|word| !able.split(' ').any(|a| a == **word)).collect();
    if !missing.is_empty() {
        println!("rc: left out: rxe of this kernel has no {missing:?}, only {able:?}");
        return None;
    }
    let flush = needs.contains(&"flush");
    let theirs = if flush { "wramf" } else { "wram" };
    let mut world = World::with_rights(BYTES, Access::BY_PEERS | Access::MW_BIND, theirs);
    world.connect(Setup { extended: needs != ["windows"], ..Setup::default() });
    Some(world)
}

/// A window at one side, and what the other side reaches by it.
struct Shown {
    remote: RemoteAddr,
    /// It is there as long as this.
    _ours: Option<(Option<MemoryWindow>, Option<QpWindow>)>,
}

/// Binds a window of a type at one side to [`SHOWN`], for WRITEs and READs.
fn show(world: &mut World<Rc>, at: Side, kind: u8) -> Shown {
    let rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
    match at {
        Side::Rxe => {
            let made = world.peer.ask(&format!("window {kind}"));
            let (window, _) = made.trim().split_once(' ').expect("two numbers");
            let (link, len) = (world.theirs(0), SHOWN.len());
            let bound = format!("bind {window} {link} {BIND} 0 {} {len} wr", SHOWN.start);
            let rkey = Rkey::new(world.peer.ask(&bound).trim().parse().unwrap());
            let done = world.reap(at, 1)[0];
            assert_eq!((done.id, done.status), (BIND, 0), "rxe binds: {done:?}");
            let addr = world.region.addr + SHOWN.start as u64;
            Shown { remote: RemoteAddr { addr, rkey }, _ours: None }
        }
        Side::Ours => {
            let range = world.memory.range(SHOWN);
            let (remote, ours) = if kind == 1 {
                let mut window = world.pd.alloc_window().unwrap();
                let remote = window.bind(&range, rights).unwrap();
                (remote, (Some(window), None))
            } else {
                let mut window = world.pd.alloc_qp_window().unwrap();
                let bind = SendRequest::bind(&mut window, &range, rights).unwrap();
                world.ours(0).post_send(bind.id(BIND)).unwrap();
                let done = world.reap(at, 1)[0];
                assert_eq!((done.id, done.status), (BIND, 0), "this adapter binds: {done:?}");
                (window.remote().expect("it is bound"), (None, Some(window)))
            };
            Shown { remote: RemoteAddr { addr: remote.addr, rkey: remote.rkey }, _ours: Some(ours) }
        }
    }
}

/// A request of one side, and how it ends.
pub(crate) fn ends(world: &mut World<Rc>, by: Side, request: &Request) -> u32 {
    world.peer.settle();
    world.post(0, by, request);
    let done = world.reap(by, 1)[0];
    assert_eq!(done.id, request.id, "{done:?}");
    done.status
}
pub(crate) fn request(kind: Kind, at: usize, len: usize, remote: RemoteAddr) -> Request {
    Request { id: 7, kind, at, len, remote, a: 0, b: 0 }
}

/// A WRITE through a window, and a READ of the same bytes.
fn goes_through(world: &mut World<Rc>, by: Side, shown: &Shown, seed: u64) {
    let remote = RemoteAddr { addr: shown.remote.addr + (AT - SHOWN.start) as u64, ..shown.remote };
    let back = AT + SHOWN.len();
    world.fill(by, AT, LEN, seed);
    world.blank(by.other(), AT - GUARD, LEN + 2 * GUARD);
    world.blank(by, back - GUARD, LEN + 2 * GUARD);
    assert_eq!(ends(world, by, &request(Kind::Write, AT, LEN, remote)), 0, "WRITE by {by:?}");
    world.check(by.other(), AT, LEN, seed).unwrap_or_else(|e| panic!("WRITE by {by:?}: {e}"));
    assert_eq!(ends(world, by, &request(Kind::Read, back, LEN, remote)), 0, "READ by {by:?}");
    world.check(by, back, LEN, seed).unwrap_or_else(|e| panic!("READ by {by:?}: {e}"));
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run rxe"]
fn windows_of_either_side_open_their_range_and_nothing_else() {
    for by in Side::BOTH {
        for kind in [1, 2] {
            // Of a window rxe looks at the rights, and at the range of the region below it.
            let ranges: &[bool] = if by == Side::Ours { &[false] } else { &[false, true] };
            for &beyond in ranges {
                let Some(mut world) = world(&["windows"]) else { return };
                let shown = show(&mut world, by.other(), kind);
                goes_through(&mut world, by, &shown, 0x77_0001 + u64::from(kind));
                // One byte behind the range, or an atomic that the window does not grant.
                let refused = if beyond {
                    let addr = shown.remote.addr + (SHOWN.len() - LEN + 1) as u64;
                    request(Kind::Write, AT, LEN, RemoteAddr { addr, ..shown.remote })
                } else {
                    request(Kind::Add, 0, 8, shown.remote)
                };
                world.blank(by.other(), SHOWN.start, SHOWN.len() + GUARD);
                let status = ends(&mut world, by, &refused);
                let what = format!("{refused:?} by {by:?} through a window of type {kind}");
                assert_eq!(status, WcStatus::RemoteAccess as u32, "{what}");
                for at in [SHOWN.start + GUARD, SHOWN.end - GUARD, SHOWN.end] {
                    world.check(by.other(), at, 0, 0).unwrap_or_else(|e| panic!("{what}: {e}"));
                }
            }
            println!("rc: windows of type {kind} used by {by:?}");
        }
    }
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run rxe"]
fn a_send_takes_back_the_key_of_a_window() {
    for by in Side::BOTH {
        let Some(mut world) = world(&["windows"]) else { return };
        let to = by.other();
        let shown = show(&mut world, to, 2);
        goes_through(&mut world, by, &shown, 0x78_0001);
        world.fill(by, 0, 100, 5);
        world.blank(to, 4096 - GUARD, 100 + 2 * GUARD);
        world.post_recv(0, to, RECV, 4096, 100);
        world.peer.settle();
        let key = shown.remote.rkey.raw();
        let send = Request { a: key.into(), ..request(Kind::SendInvalidate, 0, 100, shown.remote) };
        assert_eq!(ends(&mut world, by, &send), 0, "SEND with invalidate by {by:?}");
        let done = world.reap(to, 1)[0];
        assert_eq!((done.id, done.status, done.bytes, done.imm), (RECV, 0, 100, key), "{by:?}: {done:?}");
        world.check(to, 4096, 100, 5).unwrap_or_else(|e| panic!("SEND with invalidate by {by:?}: {e}"));
        let late = request(Kind::Write, AT, LEN, shown.remote);
        let status = ends(&mut world, by, &late);
        assert_eq!(status, WcStatus::RemoteAccess as u32, "WRITE by {by:?} after the key was taken back");
        println!("rc: SEND with invalidate by {by:?}");
    }
}

#[test]
#[ignore = "needs Linux's rdma_rxe: vm/run rxe"]
fn atomic_writes_store_words_behind_the_data_before_them() {
    let Some(mut world) = world(&["atomic_write"]) else { return };
    for by in Side::BOTH {
        let to = by.other();
        for n in 0..50u64 {
            let (word, value) = (SHOWN.end + 8 * n as usize, 0x0123_4567_89ab_cd00 + n);
            world.fill(by, AT, LEN, n + 9);
            world.blank(to, AT - GUARD, LEN + 2 * GUARD);
            world.set(to, word, 0);
            world.peer.settle();
            let (data, remote) = (world.remote(by, AT), world.remote(by, word));
            world.post(0, by, &Request { id: 6, ..request(Kind::Write, AT, LEN, data) });
            world.post(0, by, &Request { a: value, ..request(Kind::AtomicWrite, 0, 8, remote) });
            let done = world.reap(by, 2);
            assert_eq!(done.iter().map(|d| (d.id, d.status)).collect::<Vec<_>>(), [(6, 0), (7, 0)], "{by:?}");
            assert_eq!(world.word(to, word), value, "ATOMIC WRITE by {by:?}");
            world
                .check(to, AT, LEN, n + 9)
                .unwrap_or_else(|e| panic!("before an ATOMIC WRITE by {by:?}: {e}"));
        }
        println!("rc: 50 ATOMIC WRITEs by {by:?}");
    }
    let misaligned = world.remote(Side::Rxe, SHOWN.end + 4);
    let status = ends(&mut world, Side::Rxe, &request(Kind::AtomicWrite, 0, 8, misaligned));
    assert_eq!(status, WcStatus::RemoteInvalidRequest as u32, "a word that is not aligned");
}
