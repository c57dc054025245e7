use std::os::fd::OwnedFd;

use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

use super::{Answer, Connection, Ended, Function, ListenError, Listener, NoVersion, Region, Session};
use crate::user::wire::{
    Capabilities, Command, DmaMap, DmaUnmap, Header, IRQ_MSIX, IrqAction, IrqData, Kind, MultiWrite,
    REGION_CONFIG, Reply, Request, SetIrqs, Version,
};
use crate::user::{Received, Sleeper};

const BAR: usize = 64;
const VECTORS: usize = 4;

/// A function that panics where it is asked for what it has not.
#[derive(Default)]
struct Plain {
    bar: Vec<u8>,
    config: Vec<u8>,
    irqs: [Option<OwnedFd>; VECTORS],
    fired: [u32; VECTORS],
    masked: [bool; VECTORS],
    maps: Vec<DmaMap>,
    resets: u32,
    /// Pieces that each request takes before it is done.
    pieces: u32,
    left: u32,
    /// What it was asked to prepare.
    prepared: Vec<Command>,
    hangs_up: bool,
}

fn plain() -> Plain {
    Plain { bar: vec![0; BAR], config: vec![0; 256], ..Plain::default() }
}

impl Plain {
    fn bytes(&mut self, index: u32) -> &mut [u8] {
        match index {
            0 => &mut self.bar,
            REGION_CONFIG => &mut self.config,
            other => panic!("region {other} has no bytes"),
        }
    }
}

impl Function for Plain {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_msg_fds: 64,
            max_data_xfer_size: 32,
            max_dma_maps: 100_000,
            write_multiple: true,
            ..Capabilities::default()
        }
    }
    fn region(&self, index: u32) -> Region<'_> {
        assert!(index < 9, "region {index}");
        let bytes = match index {
            0 => BAR as u64,
            REGION_CONFIG => 256,
            _ => 0,
        };
        Region { bytes, mapped: None }
    }
    fn read(&mut self, index: u32, offset: u64, into: &mut [u8]) {
        if !into.is_empty() {
            into.copy_from_slice(&self.bytes(index)[offset as usize..][..into.len()]);
        }
    }
    fn write(&mut self, index: u32, offset: u64, data: &[u8]) {
        if !data.is_empty() {
            self.bytes(index)[offset as usize..][..data.len()].copy_from_slice(data);
        }
    }
    fn interrupts(&self, kind: u32) -> u32 {
        assert!(kind < 5, "kind {kind}");
        if kind == IRQ_MSIX { VECTORS as u32 } else { 0 }
    }
    fn listen(&mut self, kind: u32, first: u32, eventfds: Vec<Option<OwnedFd>>) -> Result<(), Errno> {
        assert!(kind == IRQ_MSIX || eventfds.is_empty());
        for (i, eventfd) in eventfds.into_iter().enumerate() {
            self.irqs[first as usize + i] = eventfd;
        }
        Ok(())
    }
    fn fire(&mut self, kind: u32, interrupt: u32) {
        assert_eq!(kind, IRQ_MSIX);
        self.fired[interrupt as usize] += 1;
    }
    fn mask(&mut self, kind: u32, interrupt: u32, masked: bool) {
        assert_eq!(kind, IRQ_MSIX);
        self.masked[interrupt as usize] = masked;
    }
    fn dma_map(&mut self, map: &DmaMap, file: Option<OwnedFd>) -> Result<(), Errno> {
        file.ok_or(Errno::INVAL)?;
        self.maps.push(*map);
        Ok(())
    }
    fn dma_unmap(&mut self, unmap: &DmaUnmap) -> Result<(), Errno> {
        let at = self.maps.iter().position(|m| m.address == unmap.address).ok_or(Errno::NOENT)?;
        self.maps.remove(at);
        Ok(())
    }
    fn reset(&mut self) {
        self.resets += 1;
    }
    fn prepare(&mut self, request: &Request<'_>) -> bool {
        self.prepared.push(request.command());
        self.left = self.left.checked_sub(1).unwrap_or(self.pieces);
        self.left > 0
    }
    fn hangs_up(&self) -> bool {
        self.hangs_up
    }
}

fn received(message: &[u8], descriptors: Vec<OwnedFd>) -> Received {
    let (header, payload) = message.split_first_chunk().unwrap();
    Received { header: Header::parse(header).unwrap(), payload: payload.to_vec(), descriptors }
}

fn version(change: impl FnOnce(&mut Capabilities)) -> Request<'static> {
    let mut capabilities = Capabilities::of_client();
    change(&mut capabilities);
    Request::Version(Version { major: 0, minor: 0, capabilities })
}

/// A client that has agreed on a version, with all that it may.
fn agreed(function: &mut Plain) -> Session {
    let mut session = Session::new();
    ask(&mut session, function, &version(|c| c.write_multiple = true)).unwrap();
    session
}

/// The reply's payload, or what a request is refused with.
fn ask(session: &mut Session, function: &mut Plain, request: &Request<'_>) -> Result<Vec<u8>, u32> {
    ask_with(session, function, request, Vec::new())
}

fn ask_with(
    session: &mut Session,
    function: &mut Plain,
    request: &Request<'_>,
    with: Vec<OwnedFd>,
) -> Result<Vec<u8>, u32> {
    let mut message = received(&request.build(7, false), with);
    let Answer::Reply { bytes, .. } = session.answer(function, None, &mut message).unwrap() else {
        panic!("{request:?} has no reply")
    };
    let reply = received(&bytes, Vec::new());
    assert_eq!((reply.header.id, reply.header.command), (7, request.command().code()));
    match reply.header.kind {
        Kind::Reply => Ok(reply.payload),
        Kind::Refusal { errno } => Err(errno),
        Kind::Command { .. } => panic!("a command"),
    }
}

fn line() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK).unwrap()
}

const INVAL: u32 = 22;
const NOSYS: u32 = 38;

#[test]
fn nothing_is_done_before_a_version_is_agreed_on() {
    let (mut function, mut session) = (plain(), Session::new());
    let mut reset = received(&Request::DeviceReset.build(1, false), Vec::new());
    assert_eq!(session.answer(&mut function, None, &mut reset).unwrap_err(), NoVersion);
    let newer = Request::Version(Version { major: 1, minor: 0, capabilities: Capabilities::default() });
    assert_eq!(ask(&mut session, &mut function, &newer), Err(93), "EPROTONOSUPPORT");
    assert_eq!(session.answer(&mut function, None, &mut reset).unwrap_err(), NoVersion);
    assert_eq!(function.resets, 0);
}

/// What the server names to a client.
fn named(change: impl FnOnce(&mut Capabilities)) -> Capabilities {
    let reply = ask(&mut Session::new(), &mut plain(), &version(change)).unwrap();
    let Reply::Version(version) = Reply::parse(Command::Version.code(), &reply).unwrap() else { panic!() };
    version.capabilities
}

#[test]
fn both_sides_name_what_both_can_do() {
    let mut function = plain();
    assert_eq!((named(|_| ()).max_msg_fds, named(|_| ()).max_data_xfer_size), (64, 32));
    assert_eq!([1, 20].map(|theirs| named(|c| c.max_msg_fds = theirs).max_msg_fds), [16, 20]);
    let ranges = [100, 80_000, 200_000].map(|theirs| named(|c| c.max_dma_maps = theirs).max_dma_maps);
    assert_eq!(ranges, [65_535, 80_000, 100_000]);
    let many = |c: &mut Capabilities| c.write_multiple = true;
    assert_eq!((named(|_| ()).write_multiple, named(many).write_multiple), (false, true));
    assert!(!named(|_| ()).hca_wake, "there is no sleeper");
    let write = MultiWrite { region: 0, offset: 0, data: [0; 8], count: 4 };
    for (change, outcome) in [((|_| ()) as fn(&mut Capabilities), Err(NOSYS)), (many, Ok(()))] {
        let mut session = Session::new();
        ask(&mut session, &mut function, &version(change)).unwrap();
        let wrote = ask(&mut session, &mut function, &Request::RegionWriteMulti(vec![write]));
        assert_eq!(wrote.map(drop), outcome);
        assert_eq!(ask(&mut session, &mut function, &Request::HcaWake), Err(NOSYS));
    }
}

#[test]
fn transfers_lie_within_their_region_and_are_as_long_as_was_agreed() {
    let mut function = plain();
    let mut session = agreed(&mut function);
    let mut write = |region, offset, data: &[u8]| {
        ask(&mut session, &mut function, &Request::RegionWrite { region, offset, data }).map(drop)
    };
    assert_eq!(
        (write(0, 32, &[1; 32]), write(0, 33, &[1; 32]), write(0, 0, &[1; 33])),
        (Ok(()), Err(INVAL), Err(INVAL))
    );
    assert_eq!((write(1, 0, &[]), write(1, 0, &[1]), write(9, 0, &[])), (Ok(()), Err(INVAL), Err(INVAL)));
    assert_eq!((write(0, u64::MAX, &[1]), write(7, 252, &[2; 4])), (Err(INVAL), Ok(())));
    let one = MultiWrite { region: 0, offset: 60, data: [3; 8], count: 4 };
    let mut all = |writes| ask(&mut session, &mut function, &Request::RegionWriteMulti(writes)).map(drop);
    assert_eq!(all(vec![one; 256]), Ok(()));
    let beyond = MultiWrite { offset: 61, ..one };
    assert_eq!((all(vec![one; 257]), all(vec![beyond])), (Err(INVAL), Err(INVAL)));
    let first = MultiWrite { offset: 0, data: [9; 8], ..one };
    assert_eq!(all(vec![first, beyond]), Err(INVAL));
    assert_eq!(function.bar[0], 0, "what is refused writes nothing");
    let read = Request::RegionRead { region: 0, offset: 56, count: 8 };
    let reply = ask(&mut session, &mut function, &read).unwrap();
    let data = &[1, 1, 1, 1, 3, 3, 3, 3];
    let told = Reply::RegionRead { region: 0, offset: 56, data };
    assert_eq!(Reply::parse(Command::RegionRead.code(), &reply).unwrap(), told);
}

#[test]
fn nothing_is_prepared_for_a_request_that_is_refused() {
    let mut function = plain();
    let mut session = Session::new();
    ask(&mut session, &mut function, &version(|_| ())).unwrap();
    function.prepared.clear();
    let write = MultiWrite { region: 0, offset: 0, data: [0; 8], count: 4 };
    for (refused, errno) in [
        (Request::RegionWriteMulti(vec![write]), NOSYS),
        (Request::RegionWrite { region: 7, offset: 250, data: &[0; 8] }, INVAL),
        (Request::RegionRead { region: 0, offset: 0, count: 33 }, INVAL),
    ] {
        assert_eq!(ask(&mut session, &mut function, &refused), Err(errno), "{refused:?}");
    }
    assert!(function.prepared.is_empty(), "{:?}", function.prepared);
    ask(&mut session, &mut function, &Request::DeviceReset).unwrap();
    assert_eq!(function.prepared, [Command::DeviceReset]);
}

#[test]
fn interrupts_are_set_fired_and_masked_within_their_kind() {
    let mut function = plain();
    let mut session = agreed(&mut function);
    let mut set = |function: &mut Plain, (index, start, count), action, data, with| {
        let set = Request::SetIrqs(SetIrqs { index, start, count, action, data });
        ask_with(&mut session, function, &set, with).map(drop)
    };
    let (trigger, fds) = (IrqAction::Trigger, IrqData::EventFds);
    assert_eq!(set(&mut function, (2, 1, 2), trigger, fds, vec![line(), line()]), Ok(()));
    assert_eq!(function.irqs.each_ref().map(Option::is_some), [false, true, true, false]);
    for wrong in [(2, 3, 2), (2, u32::MAX, 2), (3, 0, 2), (5, 0, 2)] {
        assert_eq!(set(&mut function, wrong, trigger, fds, vec![line(), line()]), Err(INVAL), "{wrong:?}");
    }
    assert_eq!(set(&mut function, (2, 0, 3), trigger, fds, vec![line(), line()]), Err(INVAL), "three of two");
    assert_eq!(set(&mut function, (2, 0, 1), IrqAction::Mask, fds, vec![line()]), Err(INVAL));
    assert_eq!(set(&mut function, (2, 1, 2), trigger, IrqData::Bools(&[0, 1]), vec![]), Ok(()));
    assert_eq!(set(&mut function, (2, 0, 2), trigger, IrqData::None, vec![]), Ok(()));
    assert_eq!(function.fired, [1, 1, 1, 0]);
    assert_eq!(set(&mut function, (2, 2, 2), IrqAction::Mask, IrqData::None, vec![]), Ok(()));
    assert_eq!(set(&mut function, (2, 2, 2), IrqAction::Unmask, IrqData::Bools(&[1, 0]), vec![]), Ok(()));
    assert_eq!(function.masked, [false, false, false, true]);
    // Without eventfds those of the range are taken back; of no interrupts at all, those of the kind.
    assert_eq!(set(&mut function, (2, 1, 1), trigger, fds, vec![]), Ok(()));
    assert_eq!(function.irqs.each_ref().map(Option::is_some), [false, false, true, false]);
    assert_eq!(set(&mut function, (2, 0, 0), trigger, IrqData::None, vec![]), Ok(()));
    assert!(function.irqs.iter().all(Option::is_none));
}

#[test]
fn a_request_that_takes_long_is_done_in_pieces_with_its_descriptors() {
    let mut function = Plain { pieces: 2, ..plain() };
    let mut session = Session::new();
    let hello = version(|_| ()).build(1, false);
    let map = DmaMap { read: true, write: true, offset: 0, address: 4096, size: 4096 };
    for (message, with) in [(hello, vec![]), (Request::DmaMap(map).build(2, false), vec![line()])] {
        let mut message = received(&message, with);
        let mut answer = || session.answer(&mut function, None, &mut message).unwrap();
        assert!(matches!(answer(), Answer::Later) && matches!(answer(), Answer::Later));
        assert!(matches!(answer(), Answer::Reply { .. }));
    }
    assert_eq!(function.maps, [map]);
}

#[test]
fn a_connection_serves_so_much_at_a_time_and_takes_nothing_while_its_replies_are_not_read() {
    use std::io::{Read, Write};
    let (mut client, server) = std::os::unix::net::UnixStream::pair().unwrap();
    client.set_nonblocking(true).unwrap();
    let (mut function, sleeper) = (plain(), Sleeper::new().unwrap());
    let mut connection = Connection::new(server.into());
    client.write_all(&version(|_| ()).build(1, false)).unwrap();
    let serve = |connection: &mut Connection, f: &mut Plain| connection.serve(f, Some(&sleeper));
    assert!(serve(&mut connection, &mut function).unwrap());
    let reset = Request::DeviceReset.build(2, true);
    // The last one comes in two parts.
    client.write_all(&reset.repeat(20)[..20 * reset.len() - 1]).unwrap();
    assert!(serve(&mut connection, &mut function).unwrap());
    assert_eq!(function.resets, 16);
    assert!(serve(&mut connection, &mut function).unwrap());
    assert!(!serve(&mut connection, &mut function).unwrap());
    assert_eq!(function.resets, 19);
    client.write_all(&reset[reset.len() - 1..]).unwrap();
    assert!(serve(&mut connection, &mut function).unwrap());
    assert_eq!(function.resets, 20);

    client.write_all(&Request::HcaWake.build(3, false)).unwrap();
    assert!(serve(&mut connection, &mut function).unwrap() && connection.wakes());
    let ask = Request::RegionRead { region: 0, offset: 0, count: 32 }.build(4, false);
    while !connection.is_full() {
        client.write_all(&ask).unwrap();
        serve(&mut connection, &mut function).unwrap();
    }
    client.write_all(&reset).unwrap();
    assert!(!serve(&mut connection, &mut function).unwrap());
    assert_eq!(function.resets, 20, "a reply waits for the client");
    while client.read(&mut [0; 65536]).is_ok() {}
    assert!(serve(&mut connection, &mut function).unwrap() && !connection.is_full());
    assert_eq!(function.resets, 21);

    function.hangs_up = true;
    client.write_all(&reset).unwrap();
    assert!(matches!(serve(&mut connection, &mut function), Err(Ended::Function)));
    assert!(!connection.has_hung_up());
    drop(client);
    assert!(connection.has_hung_up());
    assert!(serve(&mut connection, &mut function).unwrap_err().is_closed());
}

proptest! {
    /// Any payload of any command, with some descriptors or none.
    #[test]
    fn whatever_a_client_sends_is_answered_and_reaches_no_further_than_the_function(
        messages in prop::collection::vec(
            (
                prop_oneof![0..18_u16, Just(0xff01)],
                prop::collection::vec(prop_oneof![any::<u8>(), Just(0_u8), Just(1), Just(2), Just(0xff)], 0..64),
                0..4_usize,
                any::<bool>(),
            ),
            1..20,
        ),
    ) {
        let mut function = plain();
        let mut session = agreed(&mut function);
        for (command, payload, descriptors, no_reply) in messages {
            let kind = Kind::Command { no_reply };
            let header = Header { id: 9, command, kind, payload_bytes: payload.len() };
            let descriptors = (0..descriptors).map(|_| line()).collect();
            let mut message = Received { header, payload, descriptors };
            match session.answer(&mut function, None, &mut message).unwrap() {
                Answer::Reply { bytes, .. } => {
                    let reply = received(&bytes, Vec::new());
                    prop_assert!(!no_reply && reply.header.id == 9 && reply.header.command == command);
                }
                Answer::Nothing => prop_assert!(no_reply),
                Answer::Later => prop_assert!(false, "nothing takes long"),
            }
            prop_assert!(message.descriptors.is_empty());
        }
    }
}

#[test]
fn a_server_that_accepts_nobody_is_told_and_not_waited_for() {
    let path = std::env::temp_dir().join(format!("hca-full-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let stopped = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    bind(&stopped, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&stopped, 0).unwrap();
    let _in_line = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let (done, told) = std::sync::mpsc::channel();
    let at = path.clone();
    std::thread::spawn(move || done.send(Listener::bind(&at)));
    let told = told.recv_timeout(std::time::Duration::from_secs(20));
    assert!(matches!(told, Ok(Err(ListenError::InUse { .. }))), "{told:?}");
    assert!(path.exists(), "it is the other server's");
    std::fs::remove_file(path).unwrap();
}
