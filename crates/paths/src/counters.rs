//! Counters of a device's port, summed up as a program opens one of their files.
//!
//! The tree says in `counters` what each file is the sum of, and in `ended` what ended processes have counted. Running
//! processes answer at sockets of their own, as `hca stat` asks them: each line is a name and a value, behind the line of
//! the device and that of its port, which is named by the tree and the device's name.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

/// A process has so long to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of an answer at most.
const MAX_ANSWER: u64 = 16 << 20;

/// Writes the present value of a counter to its file in the tree, if there is such a counter; an old value stays if that
/// fails.
pub(crate) fn refresh(tree: &[u8], parts: &[&[u8]]) {
    if let [b"sys", b"class", b"infiniband", device, b"ports", _, kind, counter] = parts
        && let [Ok(device), Ok(kind), Ok(counter)] = [*device, *kind, *counter].map(std::str::from_utf8)
        && kind.ends_with("counters")
    {
        let tree = Path::new(OsStr::from_bytes(tree));
        let file = tree.join(OsStr::from_bytes(&parts.join(&b'/')));
        let _ = write(tree, device, &format!("{kind}/{counter}"), &file);
    }
}

fn write(tree: &Path, device: &str, counter: &str, file: &Path) -> Option<()> {
    let table = fs::read_to_string(tree.join("counters")).ok()?;
    let names = table.lines().find_map(|line| line.strip_prefix(counter)?.strip_prefix('\t'))?;
    let names: Vec<&str> = names.split(' ').collect();
    let port = format!("{}/{device}", tree.to_str()?);
    let ended = fs::read_to_string(tree.join("ended").join(device)).unwrap_or_default();
    let value = |line: &str| {
        let (name, value) = line.split_once('\t')?;
        if names.contains(&name) { value.parse().ok() } else { None }
    };
    let mut sum: u64 = ended.lines().filter_map(value).sum();
    let sockets = fs::read("/proc/net/unix").ok()?;
    for name in sockets_of_user(&String::from_utf8_lossy(&sockets)) {
        let mut is_this = false;
        for line in answer(name).unwrap_or_default() {
            match line.split_once('\t') {
                Some(("device", _)) => is_this = false,
                Some(("port", name)) => is_this = name == port,
                Some(("counter", rest)) if is_this => sum += value(rest).unwrap_or(0),
                _ => {}
            }
        }
    }
    // Readers see the old file or the new one.
    // SAFETY: it tells a number.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    let made = tree.join(format!("making-{device}-{thread}"));
    fs::write(&made, format!("{sum}\n")).ok()?;
    fs::rename(&made, file).ok()
}

/// The names of this user's processes with adapters, once each, from the text of `/proc/net/unix`.
fn sockets_of_user(sockets: &str) -> Vec<&str> {
    let prefix = format!("hca-stat/{}/", user());
    let names = sockets.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    let mut names: Vec<&str> = names.filter(|name| name.starts_with(&prefix)).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn user() -> u32 {
    // SAFETY: it tells a number.
    unsafe { libc::getuid() }
}

/// The answer of a process of this user, line by line.
fn answer(name: &str) -> Option<Vec<String>> {
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).ok()?).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: room for what is asked for, and its length.
    let status = unsafe {
        use std::os::fd::AsRawFd;
        let (socket, room) = (stream.as_raw_fd(), (&raw mut peer).cast());
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, room, &raw mut len)
    };
    // Any user can take a name.
    if status != 0 || peer.uid != user() {
        return None;
    }
    let lines = BufReader::new(stream.take(MAX_ANSWER)).lines();
    let lines = lines.collect::<Result<Vec<_>, _>>().ok()?;
    lines.last().is_some_and(|line| line == "end").then_some(lines)
}
