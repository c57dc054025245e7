//! One address for several processes of a user.
//!
//! The top byte of a queue pair's number is the *slot* of its process. All processes at an address hold the same
//! sockets, one a slot and one more, the *desk*, bound to one address and port. By a [program] that never changes, the
//! kernel steers each packet to the socket of its slot, and packets that belong to no process (management datagrams) to
//! the desk. A process receives by the socket of its own slot, and serves the desk together with the others.
//!
//! | event | effect |
//! |---|---|
//! | the first process opens the address | it takes the abstract name of network namespace, user and address, makes the sockets, listens |
//! | another one opens it | it connects to that name, and a thread of any process that lives gives it all sockets, the listening one too |
//! | it takes a slot | it binds `NAME/slot/N`, empties that slot's socket, and proves the slot by a packet to itself |
//! | it ends, in any way | the kernel frees the name of its slot; others hold the sockets, so no index moves |
//! | the last one ends | the kernel closes all; the next one is the first |
//! | it forks | the [child](hca_process::NotInChildren) keeps none of the sockets |
//!
//! A network that merges packets for two slots into one train delivers the train to the first packet's slot. A process
//! forwards such a stray packet to `NAME/slot/N`, with the key that only members have.

mod desk;
mod hand;
mod program;
mod strays;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant as WallTime};

use hca_core::wire::ROCEV2_PORT;
use hca_core::{Counter, Instant, Qpn};
use hca_process::{Fork, NotInChildren};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    recv, socket_with,
};
use socket2::Socket;

use crate::OpenError;
use crate::cred::PeerCred;
use crate::paths::scoped;
use crate::udp::sys;
use strays::{MAX_STRAY, Service};

/// The most processes at one address: one message holds no more descriptors.
pub const MAX_SLOTS: u16 = 250;
/// Bytes of the key that members' messages carry, and no others.
const KEY_BYTES: usize = 16;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// A process that joins gets no answer for so long.
const JOIN_PATIENCE: Duration = Duration::from_secs(2);
/// The sockets of processes that ended are closed within this time.
const END_PATIENCE: Duration = Duration::from_millis(200);
/// A look again, where another process is between two steps.
const MOMENT: Duration = Duration::from_millis(1);
/// How long the packet to oneself may take, and how often it is sent.
const PROOF_PATIENCE: Duration = Duration::from_millis(200);
const PROOFS: u32 = 3;
/// Packets that a slot's socket may hold from the process before.
const MAX_LEFT: usize = 1 << 16;
/// How often a program that polls looks at the desk and its strays.
const LOOK_NS: u64 = 1_000_000;
/// Strays and desk datagrams of one look at most.
pub(crate) const LOOK_PACKETS: usize = 64;
/// The lower bytes of a number that the program leads to the slot in front of it, whatever the slot.
const OF_SLOT: [u8; 2] = [0xff; 2];
/// The number of the general services queue pair.
const GSI: Qpn = Qpn::new(1);

/// The slot that a queue pair's number names, if its address is shared.
#[inline]
pub(crate) fn slot_of_number(qpn: Qpn) -> u8 {
    (qpn.raw() >> 16) as u8
}

/// The number by which the process in a slot gets packets that are for the process, as the general services queue pair
/// does where the address is not shared (`None`). No queue pair has it.
pub(crate) fn number_of_process(slot: Option<u8>) -> Qpn {
    let [high, low] = OF_SLOT;
    slot.map_or(GSI, |slot| Qpn::new(u32::from_be_bytes([0, slot, high, low])))
}

/// The slot of the process that such a number names.
pub(crate) fn process_of_number(qpn: Qpn) -> Option<u8> {
    Some(slot_of_number(qpn)).filter(|slot| number_of_process(Some(*slot)) == qpn)
}

/// Opens a socket at the address: one of a group, or, with `false`, one that has the address alone.
pub(crate) type OpenSocket<'a> = &'a dyn Fn(bool) -> Result<Socket, OpenError>;

/// The names of an address.
struct Names(String);

impl Names {
    fn of(local: IpAddr, interface: u32) -> io::Result<Self> {
        let netns = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
        let uid = rustix::process::geteuid().as_raw();
        let address = match local {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        Ok(Self(format!("hca-share/{netns:x}/{uid}/{:032x}/{interface:x}", address.to_bits())))
    }
    fn of_all(&self) -> rustix::io::Result<SocketAddrUnix> {
        SocketAddrUnix::new_abstract_name(self.0.as_bytes())
    }
    fn of_service(&self, service: u64) -> rustix::io::Result<SocketAddrUnix> {
        SocketAddrUnix::new_abstract_name(format!("{}/service/{service:016x}", self.0).as_bytes())
    }
    fn of_slot(&self, slot: u8) -> rustix::io::Result<SocketAddrUnix> {
        SocketAddrUnix::new_abstract_name(format!("{}/slot/{slot}", self.0).as_bytes())
    }
}

/// The sockets that all processes at an address hold.
struct Common {
    key: [u8; KEY_BYTES],
    /// The listener, the desk, then the slots.
    fds: Vec<OwnedFd>,
}

impl Common {
    fn listener(&self) -> &OwnedFd {
        &self.fds[0]
    }
    fn desk(&self) -> &OwnedFd {
        &self.fds[1]
    }
    fn slots(&self) -> &[OwnedFd] {
        &self.fds[2..]
    }
    fn borrowed(&self) -> Vec<BorrowedFd<'_>> {
        self.fds.iter().map(AsFd::as_fd).collect()
    }
}

/// Counts of the desk's datagrams and of stray packets.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    handed_on: u64,
    lost: u64,
    got: u64,
    desk: u64,
}

/// A process's place at an address that it shares.
pub(crate) struct Share {
    slot: u8,
    names: Names,
    common: Arc<Common>,
    /// Holds the slot's name, and gets its strays.
    mailbox: OwnedFd,
    /// Readable when the slot's socket, the desk or the mailbox is.
    epoll: OwnedFd,
    /// When a program that polls looks at the desk and the mailbox again.
    look_at: Instant,
    buffer: Box<[u8]>,
    /// Services whose requests come here.
    services: Vec<Service>,
    /// Whether this process is one of those that read the desk.
    reads_desk: bool,
    /// Answers for all processes since the last look.
    answers_to_all: u32,
    counts: Counts,
    server: Option<Server>,
    _not_in_children: [NotInChildren; 2],
}

impl Share {
    /// Joins the processes at an address, as the first one with `slots` slots whose sockets `open` makes; returns the
    /// socket of the own slot, too.
    ///
    /// # Errors
    /// The address is another user's or an adapter's that does not share it, or all slots are taken, or the kernel does
    /// not steer packets ([`OpenError::Unsupported`]).
    pub(crate) fn join(
        local: IpAddr,
        interface: u32,
        slots: u16,
        open: OpenSocket<'_>,
    ) -> Result<(Self, Socket), OpenError> {
        let io = |doing| move |source: io::Error| OpenError::Io { doing, local, source };
        let errno = |doing| move |e: Errno| OpenError::Io { doing, local, source: e.into() };
        let names = Names::of(local, interface).map_err(io("looking for the network namespace in /proc"))?;
        let common = Arc::new(common(local, &names, slots.clamp(1, MAX_SLOTS), open)?);
        let all = NotInChildren::new(&common.borrowed());
        let (slot, mailbox) = claim(local, interface, &names, &common)?;
        let socket =
            common.slots()[usize::from(slot)].try_clone().map_err(io("taking a slot of a shared address"))?;
        let own = NotInChildren::new(&[socket.as_fd(), mailbox.as_fd()]);
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(errno("creating an epoll descriptor"))?;
        epoll::add(&epoll, &mailbox, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(errno("watching the sockets of a shared address"))?;
        let server = Server::start(&common).map_err(io("starting the thread that lets others join"))?;
        let share = Self {
            slot,
            names,
            common,
            mailbox,
            epoll,
            look_at: Instant::from_nanos(0),
            buffer: vec![0; MAX_STRAY].into(),
            services: Vec::new(),
            reads_desk: false,
            answers_to_all: 0,
            counts: Counts::default(),
            server: Some(server),
            _not_in_children: [all, own],
        };
        Ok((share, socket.into()))
    }

    /// The top byte of this process's queue pair numbers.
    pub(crate) fn slot(&self) -> u8 {
        self.slot
    }
    /// The number of slots.
    pub(crate) fn slots(&self) -> u16 {
        self.common.slots().len() as u16
    }
    /// Has [`wait_fd`](Self::wait_fd) be readable when this is, too.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(2), epoll::EventFlags::IN)
    }
    /// Readable when there is something for this process.
    pub(crate) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
    /// To be called before a sleep: the look behind it is one at all sockets.
    pub(crate) fn prepare_wait(&mut self) {
        self.look_at = Instant::from_nanos(0);
    }
    /// Whether the desk and the mailbox are due to be looked at, which they are not again for a while then.
    #[inline]
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let due = now >= self.look_at;
        if due {
            self.look_at = now + Duration::from_nanos(LOOK_NS);
            self.answers_to_all = 0;
        }
        due
    }
    /// The socket for datagrams that name no process, if this process reads it.
    pub(crate) fn desk(&self) -> Option<BorrowedFd<'_>> {
        self.reads_desk.then(|| self.common.desk().as_fd())
    }
    /// Datagrams that came to the desk.
    pub(crate) fn count_desk(&mut self, datagrams: u64) {
        self.counts.desk += datagrams;
    }

    pub(crate) fn counters(&self, out: &mut Vec<Counter>) {
        let mut push = |name, value| out.push(Counter { name, value });
        push("strays_handed_on", self.counts.handed_on);
        push("strays_lost", self.counts.lost);
        push("strays_got", self.counts.got);
        push("desk_datagrams", self.counts.desk);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // In a child there is no such thread.
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

/// The sockets of an address: made by this process if it is the first, given by another one else.
fn common(local: IpAddr, names: &Names, slots: u16, open: OpenSocket<'_>) -> Result<Common, OpenError> {
    let io = |doing| move |e: Errno| OpenError::Io { doing, local, source: e.into() };
    let until = WallTime::now() + JOIN_PATIENCE;
    let mut maker = 0;
    let name = names.of_all().map_err(io("naming a shared address"))?;
    loop {
        let listener = unix(SocketType::SEQPACKET).map_err(io("opening a UNIX socket"))?;
        match bind(&listener, &name) {
            Ok(()) => return make(local, listener, slots, open),
            Err(Errno::ADDRINUSE) => {}
            Err(e) => return Err(io("binding the name of a shared address")(e)),
        }
        if let Some(common) = ask(local, &name, until, &mut maker)? {
            return Ok(common);
        }
        if WallTime::now() >= until {
            return Err(OpenError::NoAnswer { local, maker, after: JOIN_PATIENCE });
        }
        // The process that has the name makes the sockets just now, or ended just now.
        std::thread::sleep(MOMENT);
    }
}

/// Makes all sockets, as the first process at an address.
fn make(local: IpAddr, listener: OwnedFd, slots: u16, open: OpenSocket<'_>) -> Result<Common, OpenError> {
    let io = |doing| move |e: Errno| OpenError::Io { doing, local, source: e.into() };
    until_free(open)?;
    let sockets = (0..=slots).map(|_| open(true)).collect::<Result<Vec<_>, _>>()?;
    sys::steer(sockets[0].as_fd(), &program::program(slots)).map_err(|source| OpenError::Unsupported {
        what: "steering packets among sockets of one address",
        source,
    })?;
    let mut key = [0; KEY_BYTES];
    let mut filled = 0;
    while filled < KEY_BYTES {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut key[filled..], flags).map_err(io("drawing a key"))?;
    }
    listen(&listener, BACKLOG).map_err(io("listening for processes that join"))?;
    let mut sockets = sockets.into_iter().map(OwnedFd::from);
    let slots: Vec<_> = sockets.by_ref().take(slots.into()).collect();
    let fds = [listener].into_iter().chain(sockets).chain(slots).collect();
    Ok(Common { key, fds })
}

/// Waits until no socket has the address. The name that this process has just taken may be free before the sockets of the
/// processes before are: in a group with them, new sockets would get other indices.
fn until_free(open: OpenSocket<'_>) -> Result<(), OpenError> {
    let until = WallTime::now() + END_PATIENCE;
    loop {
        match open(false) {
            Err(OpenError::InUse(_)) if WallTime::now() < until => std::thread::sleep(MOMENT),
            opened => return opened.map(drop),
        }
    }
}

/// Asks a process at the address for the sockets; `None`: none answered. Says the process that made them.
fn ask(
    local: IpAddr,
    name: &SocketAddrUnix,
    until: WallTime,
    maker: &mut i32,
) -> Result<Option<Common>, OpenError> {
    let io = |doing| move |e: Errno| OpenError::Io { doing, local, source: e.into() };
    let socket = unix(SocketType::SEQPACKET).map_err(io("opening a UNIX socket"))?;
    if connect(&socket, name).is_err() {
        return Ok(None);
    }
    let cred = PeerCred::of(&socket).map_err(io("looking for the user of a shared address"))?;
    if !is_own(cred.uid) {
        return Err(OpenError::NameTaken { local, uid: cred.uid });
    }
    *maker = cred.pid;
    wait_for(&socket, until);
    let handed = hand::take(socket.as_fd()).map_err(|source| OpenError::Io {
        doing: "taking over the sockets of a shared address",
        local,
        source,
    })?;
    Ok(handed.map(|h| Common { key: h.key, fds: h.fds }))
}

/// Whether this is the user of this process.
fn is_own(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw()
}

/// Waits until a descriptor is readable, or for so long.
fn wait_for(fd: &OwnedFd, until: WallTime) {
    let left = until.saturating_duration_since(WallTime::now());
    let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
    let _ = poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&left));
}

/// Takes a slot that no process has, from one drawn by chance on: packets to a process that ended just now rarely find
/// its successor.
fn claim(local: IpAddr, interface: u32, names: &Names, common: &Common) -> Result<(u8, OwnedFd), OpenError> {
    let io = |doing| move |e: Errno| OpenError::Io { doing, local, source: e.into() };
    let slots = common.slots().len();
    let first = crate::paths::chance() as usize % slots;
    let mut unproven = None;
    for slot in (0..slots).map(|i| ((first + i) % slots) as u8) {
        let mailbox = unix(SocketType::DGRAM).map_err(io("opening a UNIX socket"))?;
        let name = names.of_slot(slot).map_err(io("naming a slot of a shared address"))?;
        match bind(&mailbox, &name) {
            Err(Errno::ADDRINUSE) => continue,
            bound => bound.map_err(io("binding the name of a slot"))?,
        }
        match prove(local, interface, slot, &common.slots()[usize::from(slot)]) {
            Ok(()) => return Ok((slot, mailbox)),
            // Another kernel may count sockets in another way.
            Err(e) => unproven = Some(e),
        }
    }
    Err(match unproven {
        Some(source) => {
            OpenError::Unsupported { what: "steering packets among sockets of one address", source }
        }
        None => OpenError::SlotsTaken { local, slots },
    })
}

/// Empties a slot's socket, and sends a packet to it, which has to arrive there.
fn prove(local: IpAddr, interface: u32, slot: u8, socket: &OwnedFd) -> io::Result<()> {
    let mut packet = [0; 2048];
    for _ in 0..MAX_LEFT {
        if recv(socket, &mut packet[..], RecvFlags::DONTWAIT).is_err() {
            break;
        }
    }
    let sender = UdpSocket::bind(scoped(local, 0, interface))?;
    let nonce = crate::paths::chance().to_be_bytes();
    let proof = [&[0, 0, 0, 0, 0, slot][..], &OF_SLOT, &nonce].concat();
    let to: SocketAddr = scoped(local, ROCEV2_PORT, interface);
    for _ in 0..PROOFS {
        sender.send_to(&proof, to)?;
        let until = WallTime::now() + PROOF_PATIENCE;
        while WallTime::now() < until {
            match recv(socket, &mut packet[..], RecvFlags::DONTWAIT) {
                Ok((len, _)) if packet[..len] == proof[..] => return Ok(()),
                Ok(_) => {}
                Err(_) => wait_for(socket, until),
            }
        }
    }
    Err(io::Error::other("a packet to a process's own queue pair did not reach it"))
}

fn unix(kind: SocketType) -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// The thread that lets other processes join, whatever the program does.
struct Server {
    stop: Arc<OwnedFd>,
    thread: JoinHandle<()>,
    fork: Fork,
}

impl Server {
    fn start(common: &Arc<Common>) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (stopped, common) = (Arc::clone(&stop), Arc::clone(common));
        let thread = hca_process::spawn("hca-share", move || serve(&common, &stopped))?;
        Ok(Self { stop, thread, fork: Fork::new() })
    }
    fn stop(self) {
        if self.fork.is_child() {
            std::mem::forget(self.thread);
            return;
        }
        if rustix::io::write(&*self.stop, &1_u64.to_ne_bytes()).is_ok() {
            let _ = self.thread.join();
        }
    }
}

fn serve(common: &Common, stop: &OwnedFd) {
    let listener = common.listener();
    loop {
        let mut watched = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut watched, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        if !watched[1].revents().is_empty() {
            return;
        }
        // All processes are woken; the others find nothing.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(connection) = accept_with(listener, flags) else { continue };
        if PeerCred::of(&connection).is_ok_and(|cred| !is_own(cred.uid)) {
            continue;
        }
        let until = WallTime::now() + JOIN_PATIENCE;
        let fds = common.borrowed();
        // Descriptors under way count against the user's limit: the next moment some have arrived.
        while let Err(Errno::TOOMANYREFS) = hand::give(connection.as_fd(), &common.key, &fds) {
            if WallTime::now() >= until {
                break;
            }
            std::thread::sleep(MOMENT);
        }
    }
}
