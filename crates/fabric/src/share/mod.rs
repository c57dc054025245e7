//! One address for several processes of a user.
//!
//! The top byte of a queue pair's number is the *slot* of its process. By a [program] that never changes, the kernel
//! leads each packet to the process of its slot, and packets that belong to no process (management datagrams) to the
//! *desk*, a socket that all processes hold. The other [sockets](Sockets) differ among fabrics: over UDP all processes
//! hold one a slot, in a group among which the kernel steers; on raw Ethernet each process has a socket of its own, whose
//! filter passes the packets of its slot, and all hold the socket that keeps the port.
//!
//! | event | effect |
//! |---|---|
//! | the first process opens the address | it takes the abstract name of user and address, makes the sockets, listens |
//! | another one opens it | it connects to that name and wakes a thread of one process, which gives it all sockets |
//! | that process does not answer | it connects again, which wakes another one |
//! | it takes a slot | it binds `NAME/slot/N`; over UDP it empties that slot's socket, and proves the slot by a packet to itself |
//! | it ends, in any way | the kernel frees the name of its slot; others hold the sockets, so no index moves |
//! | the last one ends | the kernel closes all; the next one is the first |
//! | it forks | the [child](hca_process::NotInChildren) keeps none of the sockets |
//!
//! A network that merges packets for two slots into one train delivers the train to the first packet's slot. A process
//! forwards such a stray packet to `NAME/slot/N`, with the key that only members have.

mod desk;
mod hand;
#[cfg(test)]
pub(crate) mod machine;
pub(crate) mod program;
mod strays;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant as WallTime};

use hca_core::{Counter, Instant, Qpn, counters};
use hca_process::{Fork, NotInChildren};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};

use crate::OpenError;
use crate::cred::PeerCred;
use crate::udp::Sink;
use strays::{MAX_STRAY, Service, Waiting};

/// The most processes at one address: one message holds no more descriptors.
pub const MAX_SLOTS: u16 = 250;
/// Bytes of the key that members' messages carry, and no others.
const KEY_BYTES: usize = 16;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// A process that joins gets no answer for so long.
const JOIN_PATIENCE: Duration = Duration::from_secs(2);
/// After this time without an answer the process that joins asks a second one, and so on, each time after twice as long.
const ASK_ANOTHER_AFTER: Duration = Duration::from_millis(20);
/// The sockets of processes that ended are closed within this time.
const END_PATIENCE: Duration = Duration::from_millis(200);
/// A look again, where another process is between two steps.
const MOMENT: Duration = Duration::from_millis(1);
/// A process that can't accept one that joins, as it has no descriptor left, tries again after this time.
const NO_DESCRIPTOR_PAUSE: Duration = Duration::from_millis(100);
/// How often a program that polls looks at the desk and its strays.
const LOOK_NS: u64 = 1_000_000;
/// Strays and desk datagrams of one look at most.
pub(crate) const LOOK_PACKETS: usize = 64;
/// The lower bytes of a number that the program leads to the slot in front of it, whatever the slot.
pub(crate) const OF_SLOT: [u8; 2] = [0xff; 2];
/// The service of the kernel that a shared address of UDP sockets needs.
pub(crate) const STEERING: &str = "steering packets among sockets of one address (SO_ATTACH_REUSEPORT_CBPF)";
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

/// The sockets that all processes at an address hold, of one kind of fabric.
pub(crate) trait Sockets {
    /// The address.
    fn local(&self) -> IpAddr;
    /// The end of the address's name, which differs where the same address is another one's.
    fn place(&self) -> String;
    /// Makes the sockets, as the first process at the address: the desk, then the others.
    ///
    /// # Errors
    /// The address is another adapter's, or the system refuses the sockets.
    fn make(&self, slots: u16) -> Result<Vec<OwnedFd>, OpenError>;
    /// Has what was for an earlier process in a slot forgotten, and shows that packets for the slot arrive there.
    /// `others` are the sockets behind the desk.
    ///
    /// # Errors
    /// Packets do not arrive.
    fn prove(&self, slot: u8, others: &[OwnedFd]) -> io::Result<()>;
}

/// The names of an address.
struct Names(String);

impl Names {
    /// The kernel has abstract names for each network namespace by itself.
    fn of(sockets: &dyn Sockets) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let address = match sockets.local() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        Self(format!("hca-share/{uid}/{:032x}/{}", address.to_bits(), sockets.place()))
    }
    fn of_all(&self) -> rustix::io::Result<SocketAddrUnix> {
        SocketAddrUnix::new_abstract_name(self.0.as_bytes())
    }
    fn of_service(&self, service: u64) -> rustix::io::Result<SocketAddrUnix> {
        SocketAddrUnix::new_abstract_name(format!("{}/service/{service:016x}", self.0).as_bytes())
    }
    fn of_desk(&self) -> rustix::io::Result<SocketAddrUnix> {
        SocketAddrUnix::new_abstract_name(format!("{}/desk", self.0).as_bytes())
    }
    fn of_slot(&self, slot: u8) -> rustix::io::Result<SocketAddrUnix> {
        SocketAddrUnix::new_abstract_name(format!("{}/slot/{slot}", self.0).as_bytes())
    }
}

/// The sockets that all processes at an address hold.
struct Common {
    /// Members' messages carry it, and no others.
    key: [u8; KEY_BYTES],
    slots: u16,
    /// The listener, the desk's mailbox, the desk, then the others.
    fds: Vec<OwnedFd>,
}

impl Common {
    fn listener(&self) -> &OwnedFd {
        &self.fds[0]
    }
    /// Gets what processes that do not read the desk have received for it.
    fn desk_mailbox(&self) -> &OwnedFd {
        &self.fds[1]
    }
    fn desk(&self) -> &OwnedFd {
        &self.fds[2]
    }
    fn others(&self) -> &[OwnedFd] {
        &self.fds[3..]
    }
    fn borrowed(&self) -> Vec<BorrowedFd<'_>> {
        self.fds.iter().map(AsFd::as_fd).collect()
    }
}

counters! {
    Counts:
    /// Packets for other processes, given to them.
    strays_handed_on,
    /// Packets for other processes that did not take them.
    strays_lost,
    /// Packets that other processes gave to this one.
    strays_got,
    /// Datagrams that this process has read from the desk.
    desk_datagrams,
}

/// Takes the next datagram from the desk.
pub(crate) type FromDesk<'a> = &'a mut dyn FnMut(BorrowedFd<'_>, Sink<'_>) -> Option<usize>;

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
    pause_ns: u64,
    buffer: Box<[u8]>,
    /// Packets whose recipients' sockets have no room.
    waiting: Vec<Waiting>,
    /// Services whose requests come here.
    services: Vec<Service>,
    /// Whether this process is one of those that read the desk.
    reads_desk: bool,
    /// Answers for all processes since the last look.
    answers_to_all: u32,
    counts: Counts,
    server: Option<Server>,
    not_in_children: Vec<NotInChildren>,
}

impl Share {
    /// Joins the processes at an address, as the first one with `slots` slots.
    ///
    /// # Errors
    /// The address is another user's or an adapter's that does not share it, or all slots are taken, or the kernel does
    /// not lead packets to their slots ([`OpenError::CannotShare`]).
    pub(crate) fn join(sockets: &dyn Sockets, slots: u16) -> Result<Self, OpenError> {
        let local = sockets.local();
        let io = |doing| move |source: io::Error| OpenError::Io { doing, local, source };
        let errno = |doing| move |e: Errno| OpenError::Io { doing, local, source: e.into() };
        let names = Names::of(sockets);
        let common = Arc::new(common(sockets, &names, slots.clamp(1, MAX_SLOTS))?);
        let all = NotInChildren::new(&common.borrowed());
        let (slot, mailbox) = claim(sockets, &names, &common)?;
        let own = NotInChildren::new(&[mailbox.as_fd()]);
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(errno("creating an epoll descriptor"))?;
        epoll::add(&epoll, &mailbox, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(errno("watching the sockets of a shared address"))?;
        let server = Server::start(&common).map_err(io("starting the thread that lets others join"))?;
        Ok(Self {
            slot,
            names,
            common,
            mailbox,
            epoll,
            look_at: Instant::from_nanos(0),
            pause_ns: LOOK_NS,
            waiting: Vec::new(),
            buffer: vec![0; MAX_STRAY].into(),
            services: Vec::new(),
            reads_desk: false,
            answers_to_all: 0,
            counts: Counts::default(),
            server: Some(server),
            not_in_children: vec![all, own],
        })
    }

    /// A descriptor of a socket behind the desk.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn take(&mut self, index: usize) -> io::Result<OwnedFd> {
        let socket = self.common.others()[index].try_clone()?;
        self.not_in_children.push(NotInChildren::new(&[socket.as_fd()]));
        Ok(socket)
    }

    /// The top byte of this process's queue pair numbers.
    pub(crate) fn slot(&self) -> u8 {
        self.slot
    }
    /// The number of slots.
    pub(crate) fn slots(&self) -> u16 {
        self.common.slots
    }
    /// For people: the place.
    pub(crate) fn describe(&self) -> String {
        let (slot, slots) = (self.slot, self.slots());
        format!("slot {slot} of {slots}: this process's queue pair numbers begin with {slot:#04x}")
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
    /// Whether the desk and the mailbox are looked at in each turn, for packets that come by no other way.
    pub(crate) fn look_often(&mut self, often: bool) {
        self.pause_ns = if often { 0 } else { LOOK_NS };
        self.look_at = Instant::from_nanos(0);
    }
    /// When packets that were not handed on yet are due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let pause = Duration::from_nanos(LOOK_NS - self.pause_ns);
        (!self.waiting.is_empty()).then(|| self.look_at + pause)
    }
    /// Where they are due, gives the packets at the desk, and those that others handed on, to the sink. Returns how many
    /// it were. `next` takes the next datagram from the desk, gives its packets to a sink, and returns how many it were.
    #[inline]
    pub(crate) fn look(&mut self, now: Instant, local: IpAddr, sink: Sink<'_>, next: FromDesk<'_>) -> usize {
        if now < self.look_at {
            return 0;
        }
        self.look_at = now + Duration::from_nanos(self.pause_ns);
        self.look_now(now, local, sink, next)
    }

    #[cold]
    fn look_now(&mut self, now: Instant, local: IpAddr, sink: Sink<'_>, next: FromDesk<'_>) -> usize {
        self.answers_to_all = 0;
        let mut packets = 0;
        // The socket for datagrams that name no process, if this process reads it.
        if self.reads_desk {
            let common = Arc::clone(&self.common);
            for _ in 0..LOOK_PACKETS {
                let Some(n) = next(common.desk().as_fd(), &mut self.only_own(sink)) else { break };
                self.counts.desk_datagrams += 1;
                packets += n;
            }
        }
        self.hand_on_waiting(now);
        packets + self.strays(local, sink)
    }

    pub(crate) fn counters(&self, out: &mut Vec<Counter>) {
        self.counts.append(out);
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
fn common(sockets: &dyn Sockets, names: &Names, slots: u16) -> Result<Common, OpenError> {
    let local = sockets.local();
    let until = WallTime::now() + JOIN_PATIENCE;
    let mut maker = 0;
    let name = names.of_all().map_err(refusal("naming a shared address", local))?;
    loop {
        let listener = unix(SocketType::SEQPACKET).map_err(refusal("opening a UNIX socket", local))?;
        match bind(&listener, &name) {
            Ok(()) => return make(sockets, names, listener, slots),
            Err(Errno::ADDRINUSE) => {}
            Err(e) => return Err(refusal("binding an abstract name of a UNIX socket", local)(e)),
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

/// The error of a call without which no address is shared.
fn refusal(doing: &'static str, local: IpAddr) -> impl Fn(Errno) -> OpenError {
    move |e| match e {
        Errno::PERM
        | Errno::ACCESS
        | Errno::NOSYS
        | Errno::INVAL
        | Errno::AFNOSUPPORT
        | Errno::PROTONOSUPPORT
        | Errno::OPNOTSUPP => OpenError::CannotShare { local, doing, source: e.into() },
        _ => OpenError::Io { doing, local, source: e.into() },
    }
}

/// Makes all sockets, as the first process at an address.
fn make(sockets: &dyn Sockets, names: &Names, listener: OwnedFd, slots: u16) -> Result<Common, OpenError> {
    let local = sockets.local();
    let io = |doing| move |e: Errno| OpenError::Io { doing, local, source: e.into() };
    let desk_mailbox = mailbox().map_err(io("opening a UNIX socket"))?;
    let of_desk = names.of_desk().map_err(io("naming a shared address's desk"))?;
    let until = WallTime::now() + JOIN_PATIENCE;
    loop {
        match bind(&desk_mailbox, &of_desk) {
            // The processes before have freed the first name, and are about to free this one.
            Err(Errno::ADDRINUSE) if WallTime::now() < until => std::thread::sleep(MOMENT),
            bound => break bound.map_err(io("binding the name of a shared address's desk"))?,
        }
    }
    let made = sockets.make(slots)?;
    let mut key = [0; KEY_BYTES];
    let mut filled = 0;
    while filled < KEY_BYTES {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut key[filled..], flags).map_err(io("drawing a key"))?;
    }
    listen(&listener, BACKLOG).map_err(io("listening for processes that join"))?;
    Ok(Common { key, slots, fds: [listener, desk_mailbox].into_iter().chain(made).collect() })
}

/// Opens what has the address alone, once no socket has it. The name that this process has just taken may be free before
/// the sockets of the processes before are.
pub(crate) fn once_free<T>(open: impl Fn() -> Result<T, OpenError>) -> Result<T, OpenError> {
    let until = WallTime::now() + END_PATIENCE;
    loop {
        match open() {
            Err(OpenError::InUse(_)) if WallTime::now() < until => std::thread::sleep(MOMENT),
            opened => return opened,
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
    let (mut connections, mut pause) = (Vec::new(), ASK_ANOTHER_AFTER);
    let answered = loop {
        let socket = unix(SocketType::SEQPACKET).map_err(io("opening a UNIX socket"))?;
        if connect(&socket, name).is_ok() {
            let cred = PeerCred::of(&socket).map_err(io("looking for the user of a shared address"))?;
            if !is_own(cred.uid) {
                return Err(OpenError::NameTaken { local, uid: cred.uid });
            }
            *maker = cred.pid;
            connections.push(socket);
        } else if connections.is_empty() {
            return Ok(None);
        }
        // A connection wakes one process, which may be killed or stopped before it answers.
        let now = WallTime::now();
        if let Some(answered) = first_readable(&connections, until.min(now + pause)) {
            break answered;
        }
        if WallTime::now() >= until {
            return Ok(None);
        }
        pause *= 2;
    };
    hand::take(connections[answered].as_fd()).map_err(|source| OpenError::Io {
        doing: "taking over the sockets of a shared address",
        local,
        source,
    })
}

/// Whether this is the user of this process.
fn is_own(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw()
}

/// Waits until a descriptor is readable, or for so long.
pub(crate) fn wait_for(fd: &OwnedFd, until: WallTime) {
    first_readable(std::slice::from_ref(fd), until);
}

/// Waits until a descriptor is readable; `None`: none was, or a signal came.
fn first_readable(fds: &[OwnedFd], until: WallTime) -> Option<usize> {
    let left = until.saturating_duration_since(WallTime::now());
    let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
    let mut watched: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    poll(&mut watched, Some(&left)).ok()?;
    watched.iter().position(|fd| !fd.revents().is_empty())
}

/// Takes a slot that no process has, from one drawn by chance on: packets to a process that ended just now rarely find
/// its successor.
fn claim(sockets: &dyn Sockets, names: &Names, common: &Common) -> Result<(u8, OwnedFd), OpenError> {
    let local = sockets.local();
    let io = |doing| move |e: Errno| OpenError::Io { doing, local, source: e.into() };
    let slots = usize::from(common.slots);
    let first = crate::paths::chance() as usize % slots;
    let open = || mailbox().map_err(io("opening a UNIX socket"));
    let (mut mailbox, mut unproven) = (open()?, None);
    for slot in (0..slots).map(|i| ((first + i) % slots) as u8) {
        let name = names.of_slot(slot).map_err(io("naming a slot of a shared address"))?;
        match bind(&mailbox, &name) {
            Err(Errno::ADDRINUSE) => continue,
            bound => bound.map_err(io("binding the name of a slot"))?,
        }
        match sockets.prove(slot, common.others()) {
            Ok(()) => return Ok((slot, mailbox)),
            // Another kernel may count sockets in another way.
            Err(e) => (unproven, mailbox) = (Some(e), open()?),
        }
    }
    Err(match unproven {
        Some(source) => OpenError::CannotShare { local, doing: STEERING, source },
        None => OpenError::SlotsTaken { local, slots },
    })
}

fn unix(kind: SocketType) -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// A socket for what others hand on, which says whose each datagram is.
fn mailbox() -> rustix::io::Result<OwnedFd> {
    let socket = unix(SocketType::DGRAM)?;
    rustix::net::sockopt::set_socket_passcred(&socket, true)?;
    Ok(socket)
}

/// The events that wake the thread that lets other processes join.
const JOINS: u64 = 0;
const STOP: u64 = 1;

/// The thread that lets other processes join, whatever the program does.
struct Server {
    stop: OwnedFd,
    thread: JoinHandle<()>,
    fork: Fork,
}

impl Server {
    fn start(common: &Arc<Common>) -> io::Result<Self> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let woken_by = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // A connection wakes one process that waits, and not all of them: each would take CPU time from the one that
        // joins.
        let one = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        epoll::add(&woken_by, common.listener(), epoll::EventData::new_u64(JOINS), one)?;
        epoll::add(&woken_by, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let common = Arc::clone(common);
        let thread = hca_process::spawn("hca-share", move || serve(&common, &woken_by))?;
        Ok(Self { stop, thread, fork: Fork::new() })
    }
    fn stop(self) {
        if self.fork.is_child() {
            std::mem::forget(self.thread);
            return;
        }
        if rustix::io::write(&self.stop, &1_u64.to_ne_bytes()).is_ok() {
            let _ = self.thread.join();
        }
    }
}

/// Answers processes that join, until the thread is stopped.
fn serve(common: &Common, woken_by: &OwnedFd) {
    let listener = common.listener();
    let mut events =
        [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 2];
    loop {
        let woken = match epoll::wait(woken_by, &mut events, None) {
            Ok(woken) => woken,
            Err(Errno::INTR) => continue,
            Err(_) => return,
        };
        if events[..woken].iter().any(|event| event.data.u64() == STOP) {
            return;
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connection = match accept_with(listener, flags) {
            Ok(connection) => connection,
            // Another process was quicker.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => continue,
            // There is no descriptor left, say, and the listener stays readable.
            Err(_) => {
                std::thread::sleep(NO_DESCRIPTOR_PAUSE);
                continue;
            }
        };
        if !PeerCred::of(&connection).is_ok_and(|cred| is_own(cred.uid)) {
            continue;
        }
        let until = WallTime::now() + JOIN_PATIENCE;
        // Descriptors under way count against the user's limit: the next moment some have arrived.
        while let Err(Errno::TOOMANYREFS) = hand::give(connection.as_fd(), common) {
            if WallTime::now() >= until {
                break;
            }
            std::thread::sleep(MOMENT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sockets of an address of this test alone.
    struct Own;

    impl Sockets for Own {
        fn local(&self) -> IpAddr {
            [127, 0, 0, 1].into()
        }
        fn place(&self) -> String {
            format!("test-{}", std::process::id())
        }
        fn make(&self, _: u16) -> Result<Vec<OwnedFd>, OpenError> {
            Ok(Vec::new())
        }
        fn prove(&self, _: u8, _: &[OwnedFd]) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_desk_of_processes_that_end_is_waited_for() {
        let names = Names::of(&Own);
        let before = unix(SocketType::DGRAM).unwrap();
        bind(&before, &names.of_desk().unwrap()).unwrap();
        std::thread::scope(|s| {
            let first = s.spawn(|| common(&Own, &names, 4));
            // It has the first name, and so comes to the desk's.
            let has_name = || {
                let other = unix(SocketType::SEQPACKET).unwrap();
                bind(&other, &names.of_all().unwrap()) == Err(Errno::ADDRINUSE)
            };
            while !has_name() && !first.is_finished() {
                std::thread::yield_now();
            }
            drop(before);
            assert!(first.join().unwrap().is_ok());
        });
    }
}
