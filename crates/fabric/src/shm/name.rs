//! Names: the domain that adapters share, an address for each, and the socket where it is found.
//!
//! An abstract socket's name holds all that tells two adapters apart: network namespace, user, domain, address. In a
//! folder, the folder stands for the first two, so that containers which share it find each other. Adapters at
//! addresses of the network have a domain made of namespace, user, address, the slot where the address is shared, and
//! the inode of the UDP socket that holds port 4791 of the address. No process can know the inode before the adapter is
//! open, so none can take the adapter's name beforehand. Of several sockets that share a port the kernel tells all
//! processes the same one, as long as the set of sockets does not change.

use std::ffi::OsStr;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hca_core::wire::ROCEV2_PORT;
use hca_process::Fork;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use super::ShmError;
use super::peer::PeerName;
use super::socket::Socket;
use crate::cred::PeerCred;
use crate::netlink::Netlink;

const MAX_DOMAIN: usize = 32;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// A socket file has its final name by then.
const EARLY_LIFE: Duration = Duration::from_secs(10);
/// What the system calls users that a user namespace does not map, unless it says otherwise.
const OVERFLOW_UID: u32 = 65_534;
/// Bytes of a path that a socket's address holds.
const MAX_SOCKET_PATH: usize = 107;

/// Where the adapters of a domain are found.
#[derive(Clone, Debug)]
pub(super) struct Domain {
    name: String,
    folder: Option<PathBuf>,
    /// What an abstract name begins with.
    prefix: String,
    any_user: bool,
    uid: u32,
    /// No other user has this number here.
    uid_is_ours: bool,
    /// Its adapters stand on addresses of the network, which they have to prove.
    on_network: bool,
    /// The kernel tells who holds their port, and their names say it.
    by_port: bool,
}

impl Domain {
    pub(super) fn new(name: &str, folder: Option<&Path>, any_user: bool) -> Result<Self, ShmError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > MAX_DOMAIN || !name.chars().all(legal) {
            return Err(ShmError::Domain { domain: name.to_owned() });
        }
        let uid = rustix::process::geteuid().as_raw();
        let netns = std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |m| m.ino());
        let user = if any_user { "any".to_owned() } else { uid.to_string() };
        let prefix = format!("hca-shm/{netns:x}/{user}/{name}/");
        let (name, folder_path) = (name.to_owned(), folder.map(Path::to_owned));
        let uid_is_ours = is_of_one_user(uid);
        if !uid_is_ours && !any_user {
            return Err(ShmError::User { uid });
        }
        let (on_network, by_port) = (false, false);
        let domain =
            Self { name, folder: folder_path, prefix, any_user, uid, uid_is_ours, on_network, by_port };
        if let Some(folder) = folder {
            domain.check_folder(folder)?;
        }
        Ok(domain)
    }

    /// The adapters of this user on the addresses of this thread's network namespace, as seen from one of them, whose
    /// port is taken by now.
    pub(super) fn of_network(local: Ipv6Addr) -> Result<Self, ShmError> {
        // Whom the kernel does not tell (no UDP_DIAG, no netlink for this process) meets those whom it does not tell
        // either.
        let by_port = match port_holder(local) {
            Ok(holder) => holder.is_some(),
            Err(e @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => {
                return Err(ShmError::Io { doing: "asking who holds port 4791", source: e.into() });
            }
            Err(_) => false,
        };
        let netns = std::fs::metadata("/proc/thread-self/ns/net").map_err(|source| ShmError::Io {
            doing: "looking for the network namespace's inode in /proc",
            source,
        })?;
        let uid = rustix::process::geteuid().as_raw();
        let uid_is_ours = is_of_one_user(uid);
        // Who can't tell users apart takes nobody for a peer, and must not be found by who can.
        let user = if uid_is_ours { uid.to_string() } else { format!("{uid}-any") };
        let prefix = format!("hca-auto/{:x}/{user}/", netns.ino());
        let (name, on_network) = ("network".to_owned(), true);
        Ok(Self { name, folder: None, prefix, any_user: false, uid, uid_is_ours, on_network, by_port })
    }

    /// The adapters of one simulation, which is of this process and thread, on what it takes for one machine.
    pub(super) fn of_simulation(machine: &str) -> Result<Self, ShmError> {
        let own = Self::new("simulation", None, false)?;
        let prefix = format!("hca-sim/{}/{machine}/", std::process::id());
        Ok(Self { prefix, on_network: true, ..own })
    }

    /// The abstract names of another user.
    #[cfg(test)]
    pub(super) fn of_user(name: &str, uid: u32) -> Self {
        let own = Self::new(name, None, false).expect("a test's name is legal");
        let (from, to) = (format!("/{}/", own.uid), format!("/{uid}/"));
        Self { prefix: own.prefix.replacen(&from, &to, 1), uid, ..own }
    }
    /// The names of another user on addresses of the network.
    #[cfg(test)]
    pub(super) fn of_network_of(uid: u32, address: Ipv6Addr) -> Self {
        let own = Self::of_network(address).expect("there is /proc");
        let prefix = own.prefix.replacen(&format!("/{}/", own.uid), &format!("/{uid}/"), 1);
        Self { prefix, uid, ..own }
    }
    /// The same domain, as another user's process has it.
    #[cfg(test)]
    pub(super) fn of_other_user(self, uid: u32) -> Self {
        Self { uid, ..self }
    }
    #[cfg(test)]
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn check_folder(&self, folder: &Path) -> Result<(), ShmError> {
        let wrong = |why| ShmError::Folder { folder: folder.to_owned(), why };
        let meta = std::fs::metadata(folder).map_err(|source| ShmError::FolderIo {
            doing: "looking for the sockets",
            folder: folder.to_owned(),
            source,
        })?;
        if !meta.is_dir() {
            return Err(wrong("it is no folder"));
        }
        if !self.any_user && meta.uid() != self.uid {
            return Err(wrong("it belongs to another user, who could put sockets there"));
        }
        if !self.any_user && meta.mode() & 0o022 != 0 {
            return Err(wrong("others may write to it, and put sockets there"));
        }
        if self.path(Ipv6Addr::LOCALHOST.into()).is_some_and(|p| p.as_os_str().len() + 4 > MAX_SOCKET_PATH) {
            return Err(wrong("its path is too long for the address of a socket"));
        }
        Ok(())
    }

    /// Whether its adapters stand on addresses of the network, which they have to prove.
    pub(super) fn is_on_network(&self) -> bool {
        self.on_network
    }
    /// Whether the adapter at this address takes messages beside packets.
    pub(super) fn takes_messages(&self, address: Ipv6Addr) -> bool {
        self.on_network || address.octets()[15] & 1 != 0
    }
    /// Whether processes of this user are taken for peers.
    pub(super) fn admits(&self, uid: u32) -> bool {
        self.any_user || self.is_own(uid)
    }
    /// Whether processes of other users are as well.
    pub(super) fn admits_others(&self) -> bool {
        self.any_user
    }
    /// Whether this is the user whose processes may be given memory.
    pub(super) fn is_own(&self, uid: u32) -> bool {
        self.uid_is_ours && uid == self.uid
    }
    /// The user whose domain it is, for this process.
    pub(super) fn uid(&self) -> u32 {
        self.uid
    }
    /// For people: where it is.
    pub(super) fn describe(&self) -> String {
        let users = if self.any_user { "any user" } else { "this user" };
        match &self.folder {
            Some(folder) => format!("{} in {}, {users}", self.name, folder.display()),
            None => format!("{}, {users}", self.name),
        }
    }

    /// An address that nobody else draws: unique-local, the network from the domain's name, the rest random.
    /// The last bit says whether messages are taken beside packets, so that both ends know before they meet.
    pub(super) fn draw_address(&self, messages: bool) -> Result<Ipv6Addr, ShmError> {
        let random = random().map_err(|e| ShmError::Io { doing: "drawing an address", source: e.into() })?;
        let mut octets = [0_u8; 16];
        octets[..8].copy_from_slice(&self.network());
        octets[8..].copy_from_slice(&random);
        octets[15] = octets[15] & !1 | u8::from(messages);
        Ok(octets.into())
    }

    /// The first half of every address of the domain.
    fn network(&self) -> [u8; 8] {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let folder = self.folder.as_deref().map_or(OsStr::new(""), Path::as_os_str);
        for byte in self.name.bytes().chain([0]).chain(folder.as_encoded_bytes().iter().copied()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let mut network = (hash ^ hash >> 29).to_be_bytes();
        network[0] = 0xfd;
        network[6] = 0;
        network[7] = 0;
        network
    }

    fn path(&self, peer: PeerName) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{}.{:032x}", self.name, peer.address.to_bits())))
    }
    fn socket_name(&self, peer: PeerName) -> rustix::io::Result<SocketAddrUnix> {
        match self.path(peer) {
            Some(path) => SocketAddrUnix::new(path),
            None => {
                let mut name = format!("{}{:032x}", self.prefix, peer.address.to_bits());
                if let Some(slot) = peer.slot {
                    name += &format!("-{slot}");
                }
                if self.by_port {
                    // Without a holder there is no adapter.
                    let holder = port_holder(peer.address)?.ok_or(Errno::CONNREFUSED)?;
                    name += &format!("/{holder:x}");
                }
                SocketAddrUnix::new_abstract_name(name.as_bytes())
            }
        }
    }

    /// Listens at an address; a name that somebody has is an error.
    pub(super) fn listen(&self, own: PeerName) -> Result<Listener, ShmError> {
        let io = |doing| move |e: Errno| ShmError::Io { doing, source: e.into() };
        let socket = new_socket().map_err(io("opening a UNIX socket"))?;
        let Some(path) = self.path(own) else {
            let name = self.socket_name(own).map_err(io("naming a socket"))?;
            bind(&socket, &name).map_err(io("binding an abstract UNIX socket"))?;
            listen(&socket, BACKLOG).map_err(io("listening"))?;
            return Ok(Listener { socket, path: None, fork: Fork::new() });
        };
        self.remove_stale();
        let folder = path.parent().expect("it was joined").to_owned();
        let in_folder = |doing, source| ShmError::FolderIo { doing, folder: folder.clone(), source };
        // It gets its name once it listens: one that does not is taken for a dead process's, and removed.
        let early = PathBuf::from(format!("{}.new", path.display()));
        let name = SocketAddrUnix::new(&early).map_err(io("naming a socket"))?;
        bind(&socket, &name).map_err(|e| in_folder("binding a socket", e.into()))?;
        if self.any_user {
            let_all_connect(&early, self.uid)
                .map_err(|e| in_folder("letting other users connect to a socket", e.into()))?;
        }
        listen(&socket, BACKLOG).map_err(io("listening"))?;
        let listener = Listener { socket, path: Some(path.clone()), fork: Fork::new() };
        std::fs::rename(&early, &path).map_err(|e| in_folder("naming a socket", e))?;
        Ok(listener)
    }

    /// Connects to the adapter at an address; tells the user whose it is.
    pub(super) fn connect(&self, peer: PeerName) -> rustix::io::Result<(Socket, u32)> {
        let socket = new_socket()?;
        connect(&socket, &self.socket_name(peer)?)?;
        let uid = PeerCred::of(&socket)?.uid;
        Ok((socket, uid))
    }

    /// Removes the socket file of an adapter whose process is gone. `false`: somebody listens there.
    pub(super) fn remove_if_stale(&self, peer: PeerName) -> bool {
        self.path(peer).is_none_or(|path| remove_if_dead(&path))
    }

    /// Removes the socket files of this domain that nobody listens at.
    fn remove_stale(&self) {
        let Some(Ok(entries)) = self.folder.as_deref().map(std::fs::read_dir) else { return };
        let prefix = format!("{}.", self.name);
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|n| n.starts_with(&prefix)) else { continue };
            let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
            if !name.ends_with(".new") || age().is_some_and(|age| age > EARLY_LIFE) {
                let _ = remove_if_dead(&entry.path());
            }
        }
    }
}

/// The inode of the socket that holds RoCEv2's port of an address, if the kernel tells.
fn port_holder(address: Ipv6Addr) -> rustix::io::Result<Option<u32>> {
    let local = SocketAddr::new(IpAddr::V6(address).to_canonical(), ROCEV2_PORT);
    let holder = Netlink::to_sockets().and_then(|mut table| table.udp_socket(local));
    holder.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}

/// Whether no other user has this number in our user namespace. All that a namespace does not map have one there, the
/// overflow number, which may be a number that it does map as well.
fn is_of_one_user(uid: u32) -> bool {
    let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    let overflow = overflow.ok().and_then(|s| s.trim().parse().ok()).unwrap_or(OVERFLOW_UID);
    let length = |line: &str| line.split_whitespace().nth(2)?.parse::<u32>().ok();
    let maps_all = || {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        map.lines().filter_map(length).map(u64::from).sum::<u64>() >= u64::from(u32::MAX)
    };
    uid != overflow || maps_all()
}

/// Has a socket file of this user's take connections of all users, whatever the mask for new files says.
fn let_all_connect(path: &Path, uid: u32) -> rustix::io::Result<()> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    // Others may write to the folder, and could have put something else there meanwhile: no file of ours but a socket,
    // and none that has another name elsewhere.
    let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
    if !is_socket || stat.st_uid != uid || stat.st_nlink != 1 {
        return Err(Errno::STALE);
    }
    rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), Mode::from_raw_mode(0o666))
}

/// Bytes that nobody can guess.
pub(super) fn random() -> rustix::io::Result<[u8; 8]> {
    let mut bytes = [0; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)?;
    }
    Ok(bytes)
}

/// Removes a socket file, unless somebody listens there: `false`.
fn remove_if_dead(path: &Path) -> bool {
    let connected = || -> rustix::io::Result<()> { connect(new_socket()?, &SocketAddrUnix::new(path)?) };
    match connected() {
        Err(Errno::CONNREFUSED) => {
            let _ = std::fs::remove_file(path);
            true
        }
        Err(Errno::NOENT) => true,
        _ => false,
    }
}

fn new_socket() -> rustix::io::Result<Socket> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map(Socket::from)
}

/// The socket at which an adapter is found; its file goes with it, where it was made.
pub(super) struct Listener {
    socket: Socket,
    path: Option<PathBuf>,
    fork: Fork,
}

impl Listener {
    /// A connection that waits, and the user who made it.
    pub(super) fn accept(&self) -> io::Result<(Socket, u32)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = Socket::from(rustix::net::accept_with(&self.socket, flags)?);
        let uid = PeerCred::of(&socket)?.uid;
        Ok((socket, uid))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = self.path.as_ref().filter(|_| !self.fork.is_child()) {
            let _ = std::fs::remove_file(path);
        }
    }
}
