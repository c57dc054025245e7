//! A server's misbehaviour towards its client: each kind ends in an error that names the fault, and none in a hang or a
//! panic.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use hca_vfio::user::wire::{Command, RegionInfo, Reply, Request, WireError, refusal};
use hca_vfio::user::{ChannelError, Sleeper};
use hca_vfio::{
    ArenaOptions, DmaArena, DmaError, FunctionError, OpenError, PciFunction, UserError, UserOptions,
};
use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

use super::behaves::open;
use super::server::{AREA, Instead, Server, file, reply_bytes};

/// Far beyond what any of these calls takes.
const SOON: Duration = Duration::from_secs(60);
/// A server that answers does so within this time, whatever else the machine has to do.
const SILENCE: Duration = Duration::from_secs(2);

#[track_caller]
fn lost<T: core::fmt::Debug>(outcome: Result<T, FunctionError>, why: &ChannelError) {
    let Err(FunctionError::User(UserError::Lost { source, .. })) = &outcome else { panic!("{outcome:?}") };
    assert_eq!(source, why);
}

#[test]
fn a_server_that_dies_in_the_middle_of_a_call_fails_it_and_all_later_ones() {
    let server = Server::new();
    let function = open(&server);
    let (bar, registers) = (function.bar(0).unwrap(), function.bar(2).unwrap().map(AREA.offset, 64).unwrap());
    let arena = DmaArena::new(&function, ArenaOptions::default());
    let buf = arena.alloc(64, 1).unwrap();
    server.hook(|r| if r.header.command == 9 { Instead::Death } else { Instead::Proper });
    let begun = Instant::now();
    lost(bar.read32(0), &ChannelError::Closed);
    lost(bar.read32(0), &ChannelError::Closed);
    lost(function.config().map(drop), &ChannelError::Closed);
    lost(function.reset(), &ChannelError::Closed);
    lost(function.enable_msix(1).map(drop), &ChannelError::Closed);
    // It is told with the call in which it happened.
    let told = bar.write32(0, 0).unwrap_err().to_string();
    assert!(told.contains("was lost in REGION_READ: the other side has closed"), "{told}");
    assert!(matches!(arena.alloc(4 << 20, 1), Err(DmaError::User(e)) if e.is_final()));
    // Memory and registers are there as before.
    buf.store(0, &[1]);
    registers.store32(0, 1);
    assert_eq!(registers.load32(0), 1);
    drop(buf);
    assert!(arena.trim().is_err(), "nobody says that it is unmapped");
    assert!(begun.elapsed() < SOON);
}

#[test]
fn a_server_that_dies_in_the_middle_of_a_reply_is_told() {
    for bytes in [1, 15, 16, 17, 35] {
        let server = Server::new();
        let bar = open(&server).bar(0).unwrap();
        server.hook(move |r| Instead::Last(reply_bytes(r, &[0; 20])[..bytes].to_vec()));
        lost(bar.read32(0), &ChannelError::Closed);
    }
}

#[test]
fn a_server_that_says_nothing_costs_one_deadline_and_no_more() {
    let server = Server::new();
    let options = UserOptions::default().deadline(SILENCE);
    let function = PciFunction::connect(server.path(), options).unwrap();
    server.hook(|_| Instead::Silence);
    let begun = Instant::now();
    lost(function.bar(0).map(drop), &ChannelError::Deadline);
    for _ in 0..1000 {
        lost(function.bar(0).map(drop), &ChannelError::Deadline);
    }
    assert!(begun.elapsed() < SOON);
}

#[test]
fn a_server_that_asks_without_end_instead_of_answering_is_given_up() {
    let server = Server::new();
    let options = UserOptions::default().deadline(SILENCE);
    let function = PciFunction::connect(server.path(), options).unwrap();
    // Each answer of the client's is taken for a command, upon which it asks again.
    server.hook(|r| {
        Instead::Raw(Request::DmaRead { address: 0, count: 1 }.build(r.header.id, false), Vec::new())
    });
    lost(function.bar(0).map(drop), &ChannelError::Deadline);
}

#[test]
fn a_server_that_asks_for_more_than_is_done_until_the_deadline_is_given_up_at_it() {
    let server = Server::new();
    let function = PciFunction::connect(server.path(), UserOptions::default().deadline(SILENCE)).unwrap();
    let arena = DmaArena::new(&function, ArenaOptions::default());
    let buf = arena.alloc(1 << 20, 1).unwrap();
    let (bar, address) = (function.bar(0).unwrap(), buf.iova().0);
    server.hook(move |r| {
        // This server waits for no answers, and says at last what it was asked.
        let asks = Request::DmaRead { address, count: 1 << 20 }.build(0, true).repeat(50_000);
        let last = Reply::RegionRead { region: 0, offset: 0, data: &[0; 4] }.build(r.header.id, 0);
        Instead::Pieces(vec![(asks, Vec::new()), (last, Vec::new())])
    });
    let begun = Instant::now();
    lost(bar.read32(0), &ChannelError::Deadline);
    assert!(begun.elapsed() < SOON);
}

#[test]
fn a_server_that_asks_for_much_and_takes_none_of_it_is_given_up() {
    let server = Server::new();
    let options = UserOptions::default().deadline(SILENCE);
    let function = PciFunction::connect(server.path(), options).unwrap();
    let arena = DmaArena::new(&function, ArenaOptions::default());
    let buf = arena.alloc(1 << 20, 1).unwrap();
    let (bar, address) = (function.bar(0).unwrap(), buf.iova().0);
    let (ends, wait) = std::sync::mpsc::channel::<()>();
    let mut asked = false;
    server.hook(move |r| {
        if core::mem::replace(&mut asked, true) {
            // It reads nothing until the test is over.
            let _ = wait.recv();
            return Instead::Death;
        }
        let ask = Request::DmaRead { address, count: 1 << 20 }.build(r.header.id, false);
        Instead::Pieces((0..8).map(|_| (ask.clone(), Vec::new())).collect())
    });
    let begun = Instant::now();
    lost(bar.read32(0), &ChannelError::Deadline);
    assert!(begun.elapsed() < SOON);
    drop(ends);
}

#[test]
fn a_refusal_is_told_and_ends_nothing() {
    let server = Server::new();
    let function = open(&server);
    let bar = function.bar(0).unwrap();
    server.hook(|r| Instead::Raw(refusal(r.header.id, r.header.command, 13).to_vec(), Vec::new()));
    let refused = bar.read32(0).unwrap_err();
    assert!(refused.to_string().contains("refused REGION_READ: Permission denied"), "{refused}");
    let arena = DmaArena::new(&function, ArenaOptions::default());
    let refused = arena.alloc(1, 1);
    let Err(DmaError::User(UserError::Refused { command: Command::DmaMap, errno: 13, .. })) = refused else {
        panic!("{refused:?}")
    };
    server.hook(|r| Instead::Raw(refusal(r.header.id, r.header.command, 0).to_vec(), Vec::new()));
    assert!(bar.read32(0).unwrap_err().to_string().ends_with("it does not say why"));
    server.hook(|_| Instead::Proper);
    bar.read32(0).unwrap();
    let buf = arena.alloc(1, 1).unwrap();
    assert_eq!(buf.iova().0, 2 << 20, "a refused mapping leaves its address free");
    // Memory whose unmapping is refused stays mapped, and its address is not used again.
    drop(buf);
    server.hook(|r| match r.header.command {
        3 => Instead::Raw(refusal(r.header.id, 3, 16).to_vec(), Vec::new()),
        _ => Instead::Proper,
    });
    assert!(arena.trim().is_err());
    assert_eq!(arena.alloc(1, 1).unwrap().iova().0, 4 << 20);
}

#[track_caller]
fn answer<T: core::fmt::Debug>(outcome: Result<T, FunctionError>, part: &str) {
    let Err(FunctionError::User(e @ UserError::Answer { .. })) = &outcome else { panic!("{outcome:?}") };
    assert!(e.to_string().contains(part) && e.is_final(), "{e}");
}

#[test]
fn replies_to_something_else_are_refused() {
    let changed = |change: fn(&mut Vec<u8>)| {
        let server = Server::new();
        let bar = open(&server).bar(0).unwrap();
        server.hook(move |r| {
            let mut bytes = reply_bytes(r, &[&[0; 8][..], &[0; 4], &4_u32.to_ne_bytes(), &[0; 4]].concat());
            change(&mut bytes);
            Instead::Raw(bytes, Vec::new())
        });
        bar.read32(0)
    };
    changed(|_| ()).unwrap();
    answer(changed(|b| b[0] ^= 1), "reply to another message");
    answer(changed(|b| b[2] = 10), "reply to another command");
    answer(changed(|b| b[16] = 4), "read something else");
    answer(changed(|b| b[24] = 2), "read something else");
    let less = |b: &mut Vec<u8>| {
        b.truncate(34);
        (b[4], b[28]) = (34, 2);
    };
    answer(changed(less), "more or less than was asked");
    let count = WireError::Count { what: "the count that was read", claimed: 5, possible: 4 };
    lost(changed(|b| b[28] = 5), &count.into());
    lost(changed(|b| b[4..8].fill(0xff)), &WireError::Size { claimed: u32::MAX }.into());
    lost(changed(|b| b[8] = 7), &WireError::Kind { kind: 7 }.into());
    let short = WireError::Short { what: "REGION_READ", needs: 8, has: 0 };
    lost(changed(|b| b[4] = 16), &short.into());
}

fn region(info: RegionInfo) -> Vec<u8> {
    Reply::RegionInfo(info).build(0, u32::MAX)[16..].to_vec()
}

#[test]
fn descriptions_that_can_not_be_are_refused() {
    let sparse = RegionInfo {
        argsz: 64,
        index: 2,
        read: true,
        write: true,
        mmap: true,
        size: 0x4000,
        offset: 0,
        areas: Some(vec![AREA]),
    };
    let told = |info: Vec<u8>, fds: fn() -> Vec<OwnedFd>| {
        let server = Server::new();
        let function = open(&server);
        server.hook(move |r| match r.header.command {
            5 => Instead::Raw(reply_bytes(r, &info), fds()),
            _ => Instead::Proper,
        });
        function.bar(2).and_then(|b| b.map(AREA.offset, 4096))
    };
    told(region(sparse.clone()), || vec![file(0x4000)]).unwrap();
    answer(told(region(RegionInfo { index: 1, ..sparse.clone() }), Vec::new), "another region");
    let short = told(region(sparse.clone()), || vec![file(0x1fff)]);
    assert!(matches!(short, Err(FunctionError::ShortFile { needs: 0x2000, has: 0x1fff, .. })), "{short:?}");
    let none = told(region(sparse.clone()), Vec::new);
    assert!(matches!(none, Err(FunctionError::NotMappable { .. })), "{none:?}");
    let socket = || vec![rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()];
    let wrong = told(region(sparse.clone()), socket);
    assert!(matches!(wrong, Err(FunctionError::ShortFile { has: 0, .. })), "{wrong:?}");
    let far = RegionInfo { offset: u64::MAX - 0xfff, ..sparse.clone() };
    let far = told(region(far), || vec![file(0x4000)]);
    assert!(matches!(far, Err(FunctionError::NotMappable { .. })), "{far:?}");
    let odd = told(region(RegionInfo { offset: 0x10, ..sparse.clone() }), || vec![file(0x8000)]);
    assert!(matches!(odd, Err(FunctionError::Io { doing: "mapping registers", .. })), "{odd:?}");
    let outside = RegionInfo { size: 0x2000, ..sparse.clone() };
    let outside = told(region(outside), Vec::new);
    assert!(matches!(outside, Err(FunctionError::User(UserError::Lost { .. }))), "{outside:?}");
    let mut endless = region(sparse);
    endless[0..4].copy_from_slice(&u32::MAX.to_ne_bytes());
    let endless = told(endless, Vec::new);
    assert!(matches!(endless, Err(FunctionError::Description { .. })), "{endless:?}");

    let server = Server::new();
    let function = open(&server);
    server.answers(Command::GetIrqInfo, [16_u32, 1, 2, 2049].iter().flat_map(|w| w.to_ne_bytes()).collect());
    let many = function.enable_msix(1);
    assert!(matches!(many, Err(FunctionError::User(UserError::Lost { .. }))), "{many:?}");
}

#[test]
fn a_version_that_is_not_spoken_and_capabilities_that_are_none_are_refused() {
    let told = |payload: &[u8]| {
        let server = Server::new();
        server.answers(Command::Version, payload.to_vec());
        PciFunction::connect(server.path(), UserOptions::default())
    };
    let newer = told(&[1_u16.to_ne_bytes(), [0; 2]].concat());
    let Err(OpenError::User(e @ UserError::Version { .. })) = newer else { panic!("{newer:?}") };
    assert!(
        e.to_string().contains("speaks version 1.0") || e.to_string().contains("speaks version 256.0"),
        "{e}"
    );
    let wrong = told(b"\0\0\0\0{\"capabilities\":{\"max_msg_fds\":\"many\"}}\0");
    let Err(OpenError::User(e @ UserError::Lost { .. })) = wrong else { panic!("{wrong:?}") };
    assert!(e.to_string().contains("`max_msg_fds` is not of its kind"), "{e}");
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::empty()).unwrap()
}

#[test]
fn a_waker_that_is_none_is_refused() {
    let told = |wake: [u32; 4], fds: fn() -> Vec<OwnedFd>| {
        let server = Server::new();
        server.state().sleeper = Some(Sleeper::new().unwrap());
        let payload: Vec<u8> = wake.iter().flat_map(|w| w.to_ne_bytes()).collect();
        server.hook(move |r| match r.header.command {
            0xff01 => Instead::Raw(reply_bytes(r, &payload), fds()),
            _ => Instead::Proper,
        });
        PciFunction::connect(server.path(), UserOptions::default()).map(drop)
    };
    told([16, 0, 0, 0], || vec![event()]).unwrap();
    assert!(told([16, 0, 0, 0], Vec::new).is_err());
    assert!(told([16, 1, 0, 0], || vec![event()]).is_err());
    assert!(told([16, 1, 4, 0], || vec![event(), file(4096)]).is_err());
    assert!(told([16, 1, 4096, 0], || vec![event(), file(4096)]).is_err());
    assert!(told([16, 1, u32::MAX - 7, u32::MAX], || vec![event(), file(4096)]).is_err());
    told([16, 1, 64, 0], || vec![event(), file(4096)]).unwrap();
    // Writes to these may block, grow a file up to a limit that ends the process, or end it as nobody reads.
    assert!(told([16, 0, 0, 0], || vec![file(0)]).is_err());
    assert!(told([16, 0, 0, 0], || vec![std::io::pipe().unwrap().1.into()]).is_err());
    assert!(told([16, 0, 0, 0], || vec![UnixStream::pair().unwrap().0.into()]).is_err());
}

#[test]
fn more_descriptors_than_a_message_may_have_are_refused() {
    let told = |pieces: [usize; 2]| {
        let server = Server::new();
        let function = open(&server);
        server.hook(move |r| {
            let mut head = reply_bytes(r, &[0; 32]);
            let rest = head.split_off(20);
            let files = |n| (0..n).map(|_| file(0)).collect();
            Instead::Pieces(vec![(head, files(pieces[0])), (rest, files(pieces[1]))])
        });
        function.bar(0)
    };
    // A description of region 0 without bytes: there is none.
    assert!(matches!(told([64, 0]), Err(FunctionError::NoBar { .. })));
    lost(told([64, 1]), &ChannelError::Descriptors);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    /// Any bytes, as whatever comes after the first replies, or as the payload of a proper reply.
    #[test]
    fn nothing_that_a_server_says_makes_its_client_panic_or_hang(
        proper in 0..12_usize,
        framed in any::<bool>(),
        garbage in prop::collection::vec(prop_oneof![any::<u8>(), Just(0_u8), Just(1), Just(0xff)], 0..80),
    ) {
        let server = Server::new();
        let mut asked = 0;
        server.hook(move |r| {
            asked += 1;
            match (asked > proper, framed) {
                (false, _) => Instead::Proper,
                (true, true) => Instead::Raw(reply_bytes(r, &garbage), Vec::new()),
                (true, false) if asked == proper + 1 => Instead::Raw(garbage.clone(), Vec::new()),
                (true, false) => Instead::Death,
            }
        });
        let begun = Instant::now();
        let options = UserOptions::default().deadline(Duration::from_millis(20));
        if let Ok(function) = PciFunction::connect(server.path(), options) {
            let _ = function.config().and_then(|c| c.msix());
            let _ = function.bar(2).and_then(|b| b.map(AREA.offset, 64));
            let _ = function.bar(0).and_then(|b| b.read64(8));
            let _ = function.enable_msix(3);
            let arena = DmaArena::new(&function, ArenaOptions { chunk_bytes: 4096, huge_pages: false });
            let _ = arena.alloc(1, 1);
            let _ = arena.trim();
            let _ = function.reset();
        }
        prop_assert!(begun.elapsed() < SOON);
    }
}
