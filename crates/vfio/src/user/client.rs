//! The client: one call at a time, each with a deadline.
//!
//! A server may ask for the client's memory ([`wire::Command::DmaRead`], [`wire::Command::DmaWrite`]) while it works on
//! a call; the client answers from its mappings. A server that maps memory by the descriptors, which come with each
//! mapping, has no need to ask. Between calls the client does not read the socket.
//!
//! The client checks each reply before it uses the reply. After an impossible reply, a missed deadline or the end of
//! the connection the client sends nothing more, and all later calls fail with the same reason.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect as connect_to, socket_with,
};
use thiserror::Error;

use super::channel::{Channel, ChannelError, Received};
use super::wire::{
    Capabilities, Command, DeviceInfo, DmaMap, DmaUnmap, IrqAction, IrqData, IrqInfo, Kind, MAX_DESCRIPTORS,
    MAX_TRANSFER_BYTES, RegionInfo, Reply, Request, SetIrqs, Version, Wake, WireError, refusal,
};
use crate::backend::{Backend, DmaLimits, DmaMemory, DmaRights, Region, RegionFile};
use crate::error::{DmaError, FunctionError};
use crate::iova::Iova;
use crate::mapping::Mapping;
use crate::memory::Memory;
use crate::mmio::Mmio;
use crate::wake::{Waker, can_be_eventfd};

/// The options of a client's connection to its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UserOptions {
    /// The time limit of one call, from the first sent byte to the last received byte.
    pub deadline: Duration,
}

impl Default for UserOptions {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(5) }
    }
}

impl UserOptions {
    /// Sets the time limit of a call.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

/// The reason why a call to a server failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UserError {
    /// No server answers at the socket.
    #[error(
        "no vfio-user server answers at {}: {}; start it, or name the socket that it made",
        socket.display(),
        std::io::Error::from(*errno)
    )]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// The reason.
        errno: Errno,
    },
    /// The server speaks another version.
    #[error("the server at {} speaks version {major}.{minor} of vfio-user, this client 0.0", socket.display())]
    Version {
        /// The socket.
        socket: PathBuf,
        /// The version's first number.
        major: u16,
        /// The second.
        minor: u16,
    },
    /// The server refused one call; other calls may succeed.
    #[error("the server at {} refused {command}: {}", socket.display(), errno_text(*errno))]
    Refused {
        /// The socket.
        socket: PathBuf,
        /// The command of the call.
        command: Command,
        /// The reason as an error number of the operating system; 0: the server gives no reason.
        errno: u32,
    },
    /// The connection ended during a call. All later calls fail.
    #[error("the connection to the server at {} was lost in {command}: {source}; start it again, and open the device again", socket.display())]
    Lost {
        /// The socket.
        socket: PathBuf,
        /// The command of the call.
        command: Command,
        /// The channel's error.
        source: ChannelError,
    },
    /// The function was released by [`PciFunction::let_go`](crate::PciFunction::let_go). All later calls fail.
    #[error("the function at {} was released: open it again", socket.display())]
    LetGo {
        /// The socket.
        socket: PathBuf,
    },
    /// The server's reply does not fit the call. All later calls fail.
    #[error("the server at {} answered {command} wrongly, so the connection is closed: {what}", socket.display())]
    Answer {
        /// The socket.
        socket: PathBuf,
        /// The command of the call.
        command: Command,
        /// The fault of the reply.
        what: &'static str,
    },
}

fn errno_text(errno: u32) -> String {
    match i32::try_from(errno) {
        Ok(0) | Err(_) => "it does not say why".to_owned(),
        Ok(n) => std::io::Error::from_raw_os_error(n).to_string(),
    }
}

impl UserError {
    /// Whether all later calls fail.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::Answer { .. } | Self::LetGo { .. })
    }
}

/// A function that a server offers.
#[derive(Debug)]
pub(crate) struct UserFunction {
    name: String,
    socket: PathBuf,
    deadline: Duration,
    /// The server's capabilities.
    server: Capabilities,
    device: DeviceInfo,
    waker: Option<Waker>,
    connection: Mutex<Connection>,
}

#[derive(Debug)]
struct Connection {
    channel: Channel,
    next_id: u16,
    dead: Option<UserError>,
    /// The client memory that the server may access.
    memory: BTreeMap<u64, (Arc<Memory>, DmaRights)>,
}

/// Connects, agrees on a version, and asks for the device's description.
pub(crate) fn connect(socket: &Path, options: UserOptions) -> Result<UserFunction, UserError> {
    let refused = |errno| UserError::Connect { socket: socket.to_owned(), errno };
    let dial = || {
        let flags = SocketFlags::CLOEXEC;
        let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // A server whose queue is full is not waited for: `EAGAIN` says so.
        rustix::io::ioctl_fionbio(&fd, true)?;
        connect_to(&fd, &SocketAddrUnix::new(socket)?)?;
        Ok(fd)
    };
    start(dial().map_err(refused)?, socket, options)
}

fn start(fd: OwnedFd, socket: &Path, options: UserOptions) -> Result<UserFunction, UserError> {
    let connection =
        Connection { channel: Channel::new(fd), next_id: 1, dead: None, memory: BTreeMap::new() };
    let mut name = std::ffi::OsString::from("vfio-user://");
    name.push::<&OsStr>(socket.as_ref());
    let none = DeviceInfo { can_reset: false, is_pci: false, regions: 0, irq_kinds: 0 };
    let mut this = UserFunction {
        name: name.to_string_lossy().into_owned(),
        socket: socket.to_owned(),
        deadline: options.deadline,
        server: Capabilities::default(),
        device: none,
        waker: None,
        connection: Mutex::new(connection),
    };
    let ours = Version { major: 0, minor: 0, capabilities: Capabilities::of_client() };
    let version = this.ask(&Request::Version(ours), &[], |r, _| match r {
        Reply::Version(v) => Ok(v),
        _ => Err(OTHER),
    })?;
    let Version { major, minor, capabilities } = version;
    if (major, minor) != (0, 0) {
        return Err(UserError::Version { socket: socket.to_owned(), major, minor });
    }
    this.server = capabilities;
    this.device = this.ask(&Request::DeviceGetInfo, &[], |r, _| match r {
        Reply::DeviceInfo(i) => Ok(i),
        _ => Err(OTHER),
    })?;
    if capabilities.hca_wake {
        this.waker = Some(this.fetch_waker()?);
    }
    Ok(this)
}

const OTHER: &str = "the reply is of another kind";

impl UserFunction {
    fn connection(&self) -> MutexGuard<'_, Connection> {
        // A panic within a call leaves the stream in the middle of a message, so it is not used again.
        self.connection.lock().unwrap_or_else(|e| {
            let mut c = PoisonError::into_inner(e);
            c.dead.get_or_insert(UserError::Answer {
                socket: self.socket.clone(),
                command: Command::Version,
                what: "a call was interrupted",
            });
            c
        })
    }

    /// Asks, and takes the reply apart. What `take` refuses ends the connection, as all that is wrong does.
    fn ask<T>(
        &self,
        request: &Request<'_>,
        descriptors: &[BorrowedFd<'_>],
        take: impl FnOnce(Reply<'_>, Vec<OwnedFd>) -> Result<T, &'static str>,
    ) -> Result<T, UserError> {
        let mut connection = self.connection();
        if let Some(dead) = &connection.dead {
            return Err(dead.clone());
        }
        let command = request.command();
        let socket = || self.socket.clone();
        let outcome = match connection.exchange(request, descriptors, hca_process::in_time(self.deadline)) {
            Ok(received) => match received.header.kind {
                Kind::Refusal { errno } => Err(UserError::Refused { socket: socket(), command, errno }),
                _ => match Reply::parse(command.code(), &received.payload) {
                    Ok(reply) => take(reply, received.descriptors).map_err(|what| UserError::Answer {
                        socket: socket(),
                        command,
                        what,
                    }),
                    Err(e) => Err(UserError::Lost { socket: socket(), command, source: e.into() }),
                },
            },
            Err(Trouble::Channel(source)) => Err(UserError::Lost { socket: socket(), command, source }),
            Err(Trouble::Answer(what)) => Err(UserError::Answer { socket: socket(), command, what }),
        };
        if let Err(e) = &outcome
            && e.is_final()
        {
            tracing::debug!(%e, "the connection to a vfio-user server is closed");
            connection.dead = Some(e.clone());
        }
        outcome
    }

    fn fetch_waker(&self) -> Result<Waker, UserError> {
        let (Wake { word }, mut fds) = self.ask(&Request::HcaWake, &[], |r, fds| match r {
            Reply::HcaWake(w) if fds.len() == 1 + usize::from(w.word.is_some()) => Ok((w, fds)),
            Reply::HcaWake(_) => Err("an eventfd and the file of its word have to come along"),
            _ => Err(OTHER),
        })?;
        let wrong = |what| UserError::Answer { socket: self.socket.clone(), command: Command::HcaWake, what };
        let sleeps = match word {
            None => None,
            Some(at) => {
                let file = fds.pop().ok_or_else(|| wrong(OTHER))?;
                Some(word_window(&file, at).ok_or_else(|| wrong("its word can't be mapped where it says"))?)
            }
        };
        let event = fds.pop().ok_or_else(|| wrong(OTHER))?;
        let none = || wrong("its eventfd is none");
        if !can_be_eventfd(&event) {
            return Err(none());
        }
        let flags = rustix::fs::fcntl_getfl(&event).map_err(|_| none())?;
        let _ = rustix::fs::fcntl_setfl(&event, flags | rustix::fs::OFlags::NONBLOCK);
        Ok(Waker::new(event, sleeps))
    }

    fn region_error(&self, what: &'static str, source: WireError) -> FunctionError {
        FunctionError::Description { name: self.name.clone(), what, source }
    }

    /// Bytes of one transfer.
    fn transfer_bytes(&self) -> usize {
        self.server.max_data_xfer_size.clamp(1, MAX_TRANSFER_BYTES) as usize
    }
}

/// A window on the word of a file at a place, if it is within.
fn word_window(file: &OwnedFd, at: u64) -> Option<Mmio> {
    let page = rustix::param::page_size() as u64;
    let first = at & !(page - 1);
    let end = first.checked_add(page)?;
    let stat = rustix::fs::fstat(file).ok()?;
    if (stat.st_size as u64) < end {
        return None;
    }
    let within = (at - first) as usize;
    let mapping = Mapping::of_file(file.as_fd(), first, page as usize, 1).ok()?;
    Some(Mmio::new(mapping, within, 4, ()))
}

/// The failure of an exchange.
enum Trouble {
    Channel(ChannelError),
    Answer(&'static str),
}

impl From<ChannelError> for Trouble {
    fn from(e: ChannelError) -> Self {
        Self::Channel(e)
    }
}

impl Connection {
    /// Sends a request and takes its reply; meanwhile answers the server's requests.
    fn exchange(
        &mut self,
        request: &Request<'_>,
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<Received, Trouble> {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.channel.send(&request.build(id, false), descriptors, Some(deadline))?;
        loop {
            let received = self.channel.recv(Some(deadline))?;
            let header = received.header;
            if let Kind::Command { no_reply } = header.kind {
                let answer = self.answer(&received);
                if !no_reply {
                    self.channel.send(&answer, &[], Some(deadline))?;
                }
                // Where the next one is there already, nothing waits.
                if Instant::now() >= deadline {
                    return Err(ChannelError::Deadline.into());
                }
                continue;
            }
            if header.id != id {
                return Err(Trouble::Answer("it is the reply to another message"));
            }
            if header.command != request.command().code() {
                return Err(Trouble::Answer("it is the reply to another command"));
            }
            return Ok(received);
        }
    }

    /// What the server asks: memory that it may reach, or nothing that it gets.
    fn answer(&self, asked: &Received) -> Vec<u8> {
        let (id, command) = (asked.header.id, asked.header.command);
        let refused = |errno: Errno| refusal(id, command, errno.raw_os_error() as u32).to_vec();
        match Request::parse(command, &asked.payload) {
            Ok(Request::DmaRead { address, count }) => match self.find(address, count) {
                Some((memory, at, rights)) if rights.read => {
                    let mut data = vec![0; count as usize];
                    memory.load(at, &mut data);
                    Reply::DmaRead { address, data: &data }.build(id, 0)
                }
                Some(_) => refused(Errno::ACCESS),
                None => refused(Errno::FAULT),
            },
            Ok(Request::DmaWrite { address, data }) => {
                let count = data.len() as u32;
                match self.find(address, count) {
                    Some((memory, at, rights)) if rights.write => {
                        memory.store(at, data);
                        Reply::DmaWrite { address, count }.build(id, 0)
                    }
                    Some(_) => refused(Errno::ACCESS),
                    None => refused(Errno::FAULT),
                }
            }
            Ok(_) => refused(Errno::OPNOTSUPP),
            Err(WireError::Command { .. }) => refused(Errno::NOSYS),
            Err(_) => refused(Errno::INVAL),
        }
    }

    fn find(&self, address: u64, count: u32) -> Option<(&Memory, usize, DmaRights)> {
        let (start, (memory, rights)) = self.memory.range(..=address).next_back()?;
        let at = usize::try_from(address - start).ok()?;
        let fits = at <= memory.len() && count as usize <= memory.len() - at;
        fits.then_some((memory, at, *rights))
    }
}

/// A file that came with a region's description.
struct ServerFile(OwnedFd);

impl AsFd for ServerFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
impl RegionFile for ServerFile {
    fn has_length(&self) -> bool {
        true
    }
}

impl Backend for UserFunction {
    fn name(&self) -> &str {
        &self.name
    }
    fn device(&self) -> DeviceInfo {
        self.device
    }

    fn region(&self, index: u32) -> Result<Region, FunctionError> {
        let mut argsz = 4096;
        loop {
            let request = Request::GetRegionInfo { index, argsz };
            let (info, fds) = self.ask(&request, &[], |r, fds| match r {
                Reply::RegionInfo(i) if i.index == index => Ok((i, fds)),
                Reply::RegionInfo(_) => Err("it describes another region"),
                _ => Err(OTHER),
            })?;
            if info.argsz > argsz && argsz < RegionInfo::MAX_BYTES {
                argsz = info.argsz.min(RegionInfo::MAX_BYTES);
                continue;
            }
            if info.argsz > argsz {
                let (claimed, possible) = (info.argsz.into(), RegionInfo::MAX_BYTES.into());
                let source =
                    WireError::Count { what: "the length of a region's description", claimed, possible };
                return Err(self.region_error("one of its regions", source));
            }
            let file = fds.into_iter().next().map(|fd| Arc::new(ServerFile(fd)) as Arc<dyn RegionFile>);
            return Ok(Region { info, file });
        }
    }

    fn read(&self, region: &RegionInfo, offset: u64, into: &mut [u8]) -> Result<(), FunctionError> {
        let region = region.index;
        let mut at = offset;
        for part in into.chunks_mut(self.transfer_bytes()) {
            let count = part.len() as u32;
            self.ask(&Request::RegionRead { region, offset: at, count }, &[], |r, _| match r {
                Reply::RegionRead { region: r, offset: o, data } if (r, o) == (region, at) => {
                    if data.len() != part.len() {
                        return Err("it read more or less than was asked for");
                    }
                    part.copy_from_slice(data);
                    Ok(())
                }
                _ => Err("it read something else"),
            })?;
            at += u64::from(count);
        }
        Ok(())
    }

    fn write(&self, region: &RegionInfo, offset: u64, data: &[u8]) -> Result<(), FunctionError> {
        let region = region.index;
        let mut at = offset;
        for data in data.chunks(self.transfer_bytes()) {
            let count = data.len() as u32;
            self.ask(&Request::RegionWrite { region, offset: at, data }, &[], |r, _| match r {
                Reply::RegionWrite { region: r, offset: o, count: c } if (r, o, c) == (region, at, count) => {
                    Ok(())
                }
                _ => Err("it wrote other bytes, or not all of them"),
            })?;
            at += u64::from(count);
        }
        Ok(())
    }

    fn irqs(&self, kind: u32) -> Result<u32, FunctionError> {
        if self.device.irq_kinds <= kind {
            return Ok(0);
        }
        let info: IrqInfo = self.ask(&Request::GetIrqInfo { index: kind }, &[], |r, _| match r {
            Reply::IrqInfo(i) if i.index == kind => Ok(i),
            _ => Err("it describes other interrupts"),
        })?;
        Ok(if info.eventfd { info.count } else { 0 })
    }

    fn set_irqs(&self, kind: u32, eventfds: &[BorrowedFd<'_>]) -> Result<(), FunctionError> {
        let at_a_time = (self.server.max_msg_fds as usize).clamp(1, MAX_DESCRIPTORS);
        let mut start = 0;
        for fds in eventfds.chunks(at_a_time) {
            let count = fds.len() as u32;
            let (action, data) = (IrqAction::Trigger, IrqData::EventFds);
            let request = Request::SetIrqs(SetIrqs { index: kind, start, count, action, data });
            if let Err(e) = self.ask(&request, fds, |_, _| Ok(())) {
                // Some may be set up already; what the first refusal was is what counts.
                let _ = self.clear_irqs(kind);
                return Err(e.into());
            }
            start += count;
        }
        Ok(())
    }

    fn clear_irqs(&self, kind: u32) -> Result<(), FunctionError> {
        let (action, data) = (IrqAction::Trigger, IrqData::None);
        let request = Request::SetIrqs(SetIrqs { index: kind, start: 0, count: 0, action, data });
        Ok(self.ask(&request, &[], |_, _| Ok(()))?)
    }

    fn reset(&self) -> Result<(), FunctionError> {
        Ok(self.ask(&Request::DeviceReset, &[], |_, _| Ok(()))?)
    }

    fn takes_huge_pages(&self) -> bool {
        false
    }
    fn takes_foreign(&self) -> bool {
        false
    }
    fn dma_limits(&self) -> DmaLimits {
        DmaLimits {
            // What x86 processors address; a server maps whatever it is told.
            ranges: vec![0..=(1 << 48) - 1],
            page_sizes: self.server.pgsizes,
            max_mappings: self.server.max_dma_maps,
        }
    }

    fn dma_map(&self, at: Iova, memory: &DmaMemory<'_>, rights: DmaRights) -> Result<(), DmaError> {
        let DmaMemory::Own(own) = memory else {
            let (addr, bytes) = (memory.addr(), memory.len());
            return Err(DmaError::Foreign { name: self.name.clone(), addr, bytes });
        };
        let DmaRights { read, write } = rights;
        let map = DmaMap { read, write, offset: 0, address: at.0, size: own.len() as u64 };
        // Known before the server hears of it, as it may ask at once.
        self.connection().memory.insert(at.0, ((*own).clone(), rights));
        let outcome = self.ask(&Request::DmaMap(map), &[own.file()], |_, _| Ok(()));
        if outcome.is_err() {
            self.connection().memory.remove(&at.0);
        }
        Ok(outcome?)
    }

    fn dma_unmap(&self, at: Iova, len: u64) -> Result<(), DmaError> {
        let unmap = DmaUnmap { address: at.0, size: len };
        let done = self.ask(&Request::DmaUnmap(unmap), &[], |r, _| match r {
            Reply::DmaUnmap(u) if u == unmap => Ok(()),
            _ => Err("it unmapped something else"),
        });
        match done {
            // A server lets go of a client's memory when the client is gone.
            Ok(()) | Err(UserError::LetGo { .. }) => {}
            Err(e) => return Err(e.into()),
        }
        self.connection().memory.remove(&at.0);
        Ok(())
    }

    fn let_go(&self) -> Result<(), FunctionError> {
        let mut connection = self.connection();
        connection.dead = Some(UserError::LetGo { socket: self.socket.clone() });
        // The server hears that its client is gone.
        connection.channel.hang_up();
        Ok(())
    }

    fn waker(&self) -> Option<Waker> {
        self.waker.clone()
    }
}
