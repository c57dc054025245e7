//! Served functions over sockets: by the client of the `vfio` crate, and by messages written by hand.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use hca_fabric::LoopbackNet;
use hca_prm::command::hca::{EnableHcaIn, QueryIssiIn};
use hca_prm::{CMD_TYPE, CmdQueueEntry, CmdStatus};
use hca_vfio::user::serve::ListenError;
use hca_vfio::user::wire::{Capabilities, HEADER_BYTES, Header, Kind, MultiWrite, Request, Version};
use hca_vfio::{ArenaOptions, DmaArena, DmaBuf, PciFunction, UserOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softhca::{Options, Progress, SoftHca};
use softhca_pci::{PortKind, ServeError, Server, Stopper};

/// Long enough for anything that comes at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// More requests than a socket holds.
const MANY: usize = 20_000;

/// A server with two functions in a folder of its own; stopped and removed at the end.
struct Served {
    folder: PathBuf,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("softhca-pci-{}-{name}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let paths = ["a", "b"].map(|n| folder.join(n));
        let mut server = Server::open(adapter(), &paths, PortKind::InfiniBand).unwrap();
        let stopper = server.stopper().unwrap();
        let thread = Some(std::thread::spawn(move || server.run()));
        Self { folder, stopper, thread }
    }
    fn socket(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
    fn connect(&self, name: &str) -> PciFunction {
        PciFunction::connect(&self.socket(name), UserOptions::default()).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stopper.stop();
        self.thread.take().unwrap().join().unwrap();
        assert!(!self.socket("a").exists(), "the sockets go with the server");
        std::fs::remove_dir(&self.folder).unwrap();
    }
}

fn adapter() -> std::sync::Arc<SoftHca> {
    let fabric = LoopbackNet::new().attach("10.0.0.1".parse().unwrap());
    let options = Options { progress: Progress::Inline, ..Options::default() };
    SoftHca::open(Box::new(fabric), options).unwrap()
}

/// A driver that gets no further than commands that fit their slot.
struct Driver {
    function: PciFunction,
    queue: DmaBuf,
}

impl Driver {
    fn new(function: PciFunction) -> Self {
        let arena = DmaArena::new(&function, ArenaOptions::default());
        let queue = arena.alloc(4096, 4096).unwrap();
        let config = function.config().unwrap();
        config.set_memory_space(true).unwrap();
        config.set_bus_master(true).unwrap();
        let bar = function.bar(0).unwrap();
        bar.write32_be(0x10, (queue.iova().0 >> 32) as u32).unwrap();
        bar.write32_be(0x14, queue.iova().0 as u32).unwrap();
        Self { function, queue }
    }

    /// Gives a command; `None` if the slot does not come back with the doorbell's reply.
    fn command(&self, input: [u8; 16]) -> Option<CmdStatus> {
        let mut entry = CmdQueueEntry::new()
            .with(CmdQueueEntry::TYPE, CMD_TYPE)
            .with(CmdQueueEntry::INPUT_LENGTH, 16)
            .with(CmdQueueEntry::OUTPUT_LENGTH, 16)
            .with(CmdQueueEntry::COMMAND_INPUT_INLINE_DATA, input)
            .with(CmdQueueEntry::OWNERSHIP, true);
        self.queue.store(0, entry.as_bytes());
        let bar = self.function.bar(0).unwrap();
        bar.write32_be(0x18, 1).unwrap();
        // Whoever reads a register hears of the write before.
        bar.read32_be(0).unwrap();
        self.queue.load(0, entry.as_bytes_mut());
        if entry.get(CmdQueueEntry::OWNERSHIP) {
            return None;
        }
        CmdStatus::from_code(entry.get(CmdQueueEntry::COMMAND_OUTPUT_INLINE_DATA)[0].into())
    }
    fn enable(&self) -> Option<CmdStatus> {
        self.command(*EnableHcaIn::new().as_bytes())
    }
}

/// A client by hand.
struct Raw(UnixStream);

impl Raw {
    fn new(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }
    fn agreed(path: &Path) -> Self {
        let mut raw = Self::new(path);
        let version = Version { major: 0, minor: 0, capabilities: Default::default() };
        raw.0.write_all(&Request::Version(version).build(1, false)).unwrap();
        assert_eq!(raw.reply().0.kind, Kind::Reply);
        raw
    }
    fn reply(&mut self) -> (Header, Vec<u8>) {
        let mut header = [0; HEADER_BYTES];
        self.0.read_exact(&mut header).unwrap();
        let header = Header::parse(&header).unwrap();
        let mut payload = vec![0; header.payload_bytes];
        self.0.read_exact(&mut payload).unwrap();
        (header, payload)
    }
    fn ask(&mut self, request: &Request<'_>) -> Kind {
        self.0.write_all(&request.build(7, false)).unwrap();
        self.reply().0.kind
    }
    fn is_hung_up_on(&mut self) -> bool {
        match self.0.read(&mut [0; 64]) {
            Ok(n) => n == 0,
            Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn a_client_finds_a_function_its_registers_doorbell_pages_and_interrupts() {
    let served = Served::new("finds");
    let function = served.connect("a");
    let config = function.config().unwrap();
    assert_eq!((config.vendor_id().unwrap(), config.device_id().unwrap()), (0x15b3, 0x1014));
    assert!(config.msix().unwrap().is_some());
    let bar = function.bar(0).unwrap();
    assert_eq!((bar.size(), bar.mappable()), (32 << 20, vec![(0x1_1000, (32 << 20) - 0x1_1000)]));
    bar.map(0x1_1000, 4096).unwrap().store64(0x800, 1);
    assert_eq!(bar.read32_be(4).unwrap() >> 16, 5);

    let lines = function.enable_msix(function.msix_vectors().unwrap()).unwrap();
    // A vector is signalled by a message, as by an event.
    let raw_kind = function.waker();
    assert!(raw_kind.is_some(), "the server can be woken");
    drop(lines);
    let driver = Driver::new(function);
    assert_eq!(driver.enable(), Some(CmdStatus::Ok));
    assert_eq!(driver.command(*QueryIssiIn::new().as_bytes()), Some(CmdStatus::BadOutpLen));
}

#[test]
fn when_a_client_dies_the_next_one_finds_the_function_as_new() {
    let served = Served::new("dies");
    for _ in 0..20 {
        let driver = Driver::new(served.connect("a"));
        assert_eq!(driver.enable(), Some(CmdStatus::Ok));
        assert_eq!(driver.enable(), Some(CmdStatus::BadSysState));
    }
}

/// What a client can map of a function's registers.
fn mapped_file(raw: &mut Raw) -> std::fs::File {
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    raw.0.write_all(&Request::GetRegionInfo { index: 0, argsz: 64 }.build(7, false)).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 256];
    let into = &mut [std::io::IoSliceMut::new(&mut bytes)];
    rustix::net::recvmsg(&raw.0, into, &mut control, rustix::net::RecvFlags::CMSG_CLOEXEC).unwrap();
    let fds: Vec<OwnedFd> = control
        .drain()
        .flat_map(|part| match part {
            rustix::net::RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
            _ => Vec::new(),
        })
        .collect();
    fds.into_iter().next().expect("BAR 0 can be mapped").into()
}

#[test]
fn a_client_that_was_hung_up_on_shares_no_doorbells_with_the_next_one() {
    use std::os::unix::fs::FileExt;
    let served = Served::new("doorbells");
    let mut before = Raw::agreed(&served.socket("a"));
    let old = mapped_file(&mut before);
    before.0.write_all(&[0xff; 64]).unwrap();
    assert!(before.is_hung_up_on());
    let mut next = Raw::agreed(&served.socket("a"));
    let new = mapped_file(&mut next);
    old.write_all_at(b"forged", 0x11_820).unwrap();
    let mut seen = [0; 6];
    new.read_exact_at(&mut seen, 0x11_820).unwrap();
    assert_eq!(seen, [0; 6]);
}

/// Asks for a file to be mapped at 0; returns what the server says.
fn map(raw: &mut Raw, file: &std::fs::File, size: u64) -> Kind {
    use std::os::fd::AsFd;
    let map = hca_vfio::user::wire::DmaMap { read: true, write: true, offset: 0, address: 0, size };
    let bytes = Request::DmaMap(map).build(7, false);
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    let fds = [file.as_fd()];
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
    let from = &[std::io::IoSlice::new(&bytes)];
    rustix::net::sendmsg(&raw.0, from, &mut control, rustix::net::SendFlags::empty()).unwrap();
    raw.reply().0.kind
}

#[test]
fn one_of_two_clients_can_not_have_more_than_half_of_the_addresses() {
    use rustix::fs::{MemfdFlags, SealFlags};
    let served = Served::new("addresses");
    let file = rustix::fs::memfd_create("client", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, 20 << 40).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    let file = file.into();
    let mut raw = Raw::agreed(&served.socket("a"));
    let refused = Kind::Refusal { errno: rustix::io::Errno::NOSPC.raw_os_error() as u32 };
    assert_eq!(map(&mut raw, &file, 17 << 40), refused);
    assert_eq!(map(&mut raw, &file, 15 << 40), Kind::Reply);
    let mut other = Raw::agreed(&served.socket("b"));
    assert_eq!(map(&mut other, &file, 15 << 40), Kind::Reply);
}

#[test]
fn what_a_client_left_unread_does_not_keep_the_next_one_out() {
    let served = Served::new("left");
    let word = Request::RegionWrite { region: 0, offset: 0x1010, data: &[0; 4] }.build(1, true);
    let words = word.repeat(100);
    for _ in 0..50 {
        Raw::agreed(&served.socket("a")).0.write_all(&words).unwrap();
        assert_eq!(Driver::new(served.connect("a")).enable(), Some(CmdStatus::Ok));
    }
}

#[test]
fn a_reset_makes_the_function_as_new_and_keeps_what_is_mapped() {
    let served = Served::new("reset");
    let driver = Driver::new(served.connect("a"));
    assert_eq!(driver.enable(), Some(CmdStatus::Ok));
    driver.function.reset().unwrap();
    assert!(!driver.function.config().unwrap().bus_master().unwrap());
    assert_eq!(driver.enable(), None, "nobody runs commands of a function that can't reach memory");
    let again = Driver::new(driver.function.clone());
    assert_eq!(again.enable(), Some(CmdStatus::Ok));
}

#[test]
fn a_client_that_is_slow_or_broken_keeps_nobody_else_waiting() {
    let served = Served::new("slow");
    let mut slow = Raw::agreed(&served.socket("a"));
    let message = Request::DeviceGetInfo.build(9, false);
    slow.0.write_all(&message[..20]).unwrap();
    let driver = Driver::new(served.connect("b"));
    assert_eq!(driver.enable(), Some(CmdStatus::Ok), "the other function is served meanwhile");
    slow.0.write_all(&message[20..]).unwrap();
    assert_eq!(slow.reply().0.id, 9);

    // One that asks and does not read is not read any more, and its replies don't pile up.
    let ask = Request::RegionRead { region: 0, offset: 0, count: 4 << 10 }.build(1, false);
    // So long nothing moves once both directions are full.
    slow.0.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let asked = (0..MANY).take_while(|_| slow.0.write_all(&ask).is_ok()).count();
    assert!(asked < MANY, "the server reads on and on");
    assert_eq!(driver.command(*EnableHcaIn::new().as_bytes()), Some(CmdStatus::BadSysState));
}

#[test]
fn what_is_asked_amiss_is_refused_and_what_is_no_message_is_hung_up_on() {
    let served = Served::new("amiss");
    let mut raw = Raw::agreed(&served.socket("a"));
    let refused = |kind| matches!(kind, Kind::Refusal { errno } if errno != 0);
    let beyond =
        [(0, (32 << 20) - 2, 4), (0, u64::MAX, 8), (7, 4096, 1), (1, 0, 4), (9, 0, 4), (0, 0, 1 << 20)];
    for (region, offset, count) in beyond {
        assert!(refused(raw.ask(&Request::RegionRead { region, offset, count })), "{region} {offset:#x}");
    }
    assert!(refused(raw.ask(&Request::RegionWrite { region: 8, offset: 0, data: &[1] })));
    assert!(refused(raw.ask(&Request::GetRegionInfo { index: 9, argsz: 32 })));
    assert!(refused(raw.ask(&Request::GetIrqInfo { index: 5 })));
    assert!(refused(raw.ask(&Request::GetRegionIoFds { index: 0 })));
    assert!(refused(raw.ask(&Request::HcaWake)), "it was not agreed on");
    assert!(refused(raw.ask(&Request::DmaRead { address: 0, count: 4 })));
    let write = MultiWrite { offset: 0x1010, region: 0, count: 4, data: [0; 8] };
    assert!(refused(raw.ask(&Request::RegionWriteMulti(vec![write]))), "nor was this");
    let unknown = Header { id: 3, command: 999, kind: Kind::Command { no_reply: false }, payload_bytes: 0 };
    raw.0.write_all(&unknown.build()).unwrap();
    assert!(refused(raw.reply().0.kind));
    assert_eq!(raw.ask(&Request::DeviceGetInfo), Kind::Reply, "it is served on");

    let mut second = Raw::new(&served.socket("a"));
    assert!(second.is_hung_up_on(), "one client at a time");
    raw.0.write_all(&[0xff; 64]).unwrap();
    assert!(raw.is_hung_up_on());
    let mut rude = Raw::new(&served.socket("a"));
    rude.0.write_all(&Request::DeviceReset.build(1, false)).unwrap();
    assert!(rude.is_hung_up_on(), "the version comes first");
    assert_eq!(Driver::new(served.connect("a")).enable(), Some(CmdStatus::Ok));
}

/// QEMU refuses a server that takes more.
#[test]
fn a_message_has_only_so_many_writes() {
    let served = Served::new("writes");
    let mut raw = Raw::new(&served.socket("a"));
    let mut capabilities = Capabilities::default();
    capabilities.write_multiple = true;
    let version = Version { major: 0, minor: 0, capabilities };
    raw.0.write_all(&Request::Version(version).build(1, false)).unwrap();
    raw.reply();
    let write = MultiWrite { offset: 0x1010, region: 0, count: 4, data: [0; 8] };
    assert_eq!(raw.ask(&Request::RegionWriteMulti(vec![write; 256])), Kind::Reply);
    let refused = raw.ask(&Request::RegionWriteMulti(vec![write; 257]));
    assert!(matches!(refused, Kind::Refusal { .. }));
}

#[test]
fn a_client_that_takes_16_descriptors_is_not_told_of_more() {
    let served = Served::new("descriptors");
    for (theirs, ours) in [(1, 16), (16, 16), (64, 64), (u32::MAX, 64)] {
        let mut raw = Raw::new(&served.socket("a"));
        let mut capabilities = Capabilities::default();
        capabilities.max_msg_fds = theirs;
        let version = Version { major: 0, minor: 0, capabilities };
        raw.0.write_all(&Request::Version(version).build(1, false)).unwrap();
        let (_, payload) = raw.reply();
        let told = String::from_utf8_lossy(&payload);
        assert!(told.contains(&format!("\"max_msg_fds\":{ours},")), "{theirs}: {told}");
    }
}

#[test]
fn a_client_is_told_its_functions_part_of_the_ranges() {
    let served = Served::new("ranges");
    let mut raw = Raw::new(&served.socket("a"));
    let version = Version { major: 0, minor: 0, capabilities: Capabilities::default() };
    raw.0.write_all(&Request::Version(version).build(1, false)).unwrap();
    let (_, payload) = raw.reply();
    let told = String::from_utf8_lossy(&payload);
    let number = told.split("\"max_dma_maps\":").nth(1).and_then(|t| t.split([',', '}']).next());
    let maps: u32 = number.unwrap().parse().unwrap();
    assert_eq!(maps, 65_535, "QEMU takes no server that names more: {told}");
}

#[test]
fn an_interrupt_that_a_client_asks_for_comes_by_its_eventfd() {
    use hca_vfio::user::wire::{IRQ_MSIX, IrqAction, IrqData, SetIrqs};
    let served = Served::new("irq");
    let mut raw = Raw::agreed(&served.socket("b"));
    let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    let set =
        SetIrqs { index: IRQ_MSIX, start: 4, count: 1, action: IrqAction::Trigger, data: IrqData::EventFds };
    let channel = hca_vfio::user::Channel::new(raw.0.try_clone().unwrap().into());
    let fds = [std::os::fd::AsFd::as_fd(&eventfd)];
    channel.send(&Request::SetIrqs(set).build(2, false), &fds, None).unwrap();
    assert_eq!(raw.reply().0.kind, Kind::Reply);
    let of = |action, data| Request::SetIrqs(SetIrqs { action, data, ..set });
    assert_eq!(raw.ask(&of(IrqAction::Mask, IrqData::None)), Kind::Reply);
    assert_eq!(raw.ask(&of(IrqAction::Trigger, IrqData::None)), Kind::Reply);
    let comes = |millis: i64| {
        let mut fds = [PollFd::new(&eventfd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: millis * 1_000_000 })).unwrap() == 1
    };
    assert!(!comes(0), "it is masked");
    assert_eq!(raw.ask(&of(IrqAction::Unmask, IrqData::Bools(&[1]))), Kind::Reply);
    assert!(comes(0));
}

#[test]
fn a_path_that_can_not_be_served_is_refused_with_its_reason() {
    let served = Served::new("paths");
    let open = |paths: &[PathBuf]| Server::open(adapter(), paths, PortKind::Roce).unwrap_err();
    assert!(matches!(open(&[]), ServeError::Functions(0)));
    assert!(matches!(open(&[served.socket("a")]), ServeError::Listen(ListenError::InUse { .. })));
    let file = served.folder.join("file");
    std::fs::write(&file, "text").unwrap();
    assert!(matches!(open(std::slice::from_ref(&file)), ServeError::Listen(ListenError::NoSocket { .. })));
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(open(&["/nowhere/x.sock".into()]), ServeError::Listen(ListenError::System { .. })));
    // What a dead server left is in nobody's way.
    let left = served.folder.join("left");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    drop(Server::open(adapter(), std::slice::from_ref(&left), PortKind::Roce).unwrap());
    assert!(!left.exists());
}
