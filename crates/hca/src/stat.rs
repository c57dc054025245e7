//! Counters of running adapters, shown to their own user.
//!
//! A process that opens a device listens at a socket in the user's runtime folder, by one thread that sleeps until
//! somebody asks. Whoever asks is told the counters of that moment, in lines of text; between two questions nothing is
//! counted, written or sent for it. The folder belongs to the user alone, and who asks is the same user, or is not
//! answered. `HCA_STAT=off` in the environment leaves the socket out.

use std::fs::{self, DirBuilder, read_dir};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use hca_core::{Counter, Device};
use rustix::net::sockopt::socket_peercred;
use rustix::process::getuid;

/// The environment variable that switches this off.
pub const STAT_VARIABLE: &str = "HCA_STAT";

/// Queue pairs of a device that are told of at most.
const MAX_QUEUE_PAIRS: usize = 1024;
/// Bytes that a process tells at most.
const MAX_ANSWER: u64 = 16 << 20;
/// How long a reader, or who answers, may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// A process with adapters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessStat {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its devices.
    pub devices: Vec<DeviceStat>,
}

/// A device of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceStat {
    /// By which name it was opened, the address included.
    pub url: String,
    /// Its counters, by name.
    pub counters: Vec<(String, u64)>,
    /// Its queue pairs.
    pub queue_pairs: Vec<QpStat>,
}

/// A queue pair of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QpStat {
    /// Its number.
    pub qpn: u32,
    /// Its service and its state.
    pub service: String,
    /// Its state.
    pub state: String,
    /// The peer's queue pair and GID, of one that is connected.
    pub peer: Option<(u32, String)>,
    /// Its counters, by name; those at zero are left out.
    pub counters: Vec<(String, u64)>,
}

impl DeviceStat {
    /// A counter's value; 0 where there is none of the name.
    pub fn counter(&self, name: &str) -> u64 {
        value(&self.counters, name)
    }
}
impl QpStat {
    /// A counter's value; 0 where there is none of the name.
    pub fn counter(&self, name: &str) -> u64 {
        value(&self.counters, name)
    }
}
fn value(counters: &[(String, u64)], name: &str) -> u64 {
    counters.iter().find(|(of, _)| of == name).map_or(0, |c| c.1)
}

/// The devices that a process shows.
struct Shown {
    pid: u32,
    devices: Vec<(String, Weak<dyn Device>)>,
}

static SHOWN: Mutex<Option<Shown>> = Mutex::new(None);

/// Shows a device that was opened. Where that is not possible, it is not shown, and works.
pub(crate) fn show(url: String, device: &Arc<dyn Device>) {
    if std::env::var_os(STAT_VARIABLE).is_some_and(|value| value == "off") {
        return;
    }
    let pid = std::process::id();
    let mut shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    // A forked child has none of its parent's threads, and its own devices.
    let is_new = shown.as_ref().is_none_or(|shown| shown.pid != pid);
    if is_new {
        *shown = Some(Shown { pid, devices: Vec::new() });
    }
    let devices = &mut shown.as_mut().expect("made above").devices;
    devices.retain(|(_, device)| device.strong_count() > 0);
    devices.push((url, Arc::downgrade(device)));
    drop(shown);
    if is_new && let Ok(listener) = folder().and_then(|folder| listen(&folder, pid)) {
        let _ = std::thread::Builder::new().name("hca-stat".into()).spawn(move || answer(&listener, pid));
    }
}

/// The user's folder of sockets, which is made if it is not there.
fn folder() -> io::Result<PathBuf> {
    let uid = getuid().as_raw();
    // After a change of user, the variable may name the folder of the one before.
    let is_own = |folder: &PathBuf| folder.metadata().is_ok_and(|is| is.is_dir() && is.uid() == uid);
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(is_own);
    let folder = runtime.map_or_else(|| format!("/tmp/hca-{uid}").into(), |folder| folder.join("hca"));
    private(&folder, uid)?;
    Ok(folder)
}

/// Makes a folder that is the user's alone, or refuses one that is not.
fn private(folder: &Path, uid: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let is = fs::symlink_metadata(folder)?;
    if is.is_dir() && is.uid() == uid && is.mode() & 0o077 == 0 {
        return Ok(());
    }
    let text = format!("{} is no folder of this user alone: remove it", folder.display());
    Err(io::Error::new(ErrorKind::PermissionDenied, text))
}

/// The sockets in a folder, without those of processes that are gone, which are removed.
fn sockets(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut living = Vec::new();
    for entry in read_dir(folder)?.flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|ending| ending != "sock") {
            continue;
        }
        let pid = path.file_stem().and_then(|stem| stem.to_str()?.split('-').next()?.parse::<u32>().ok());
        let is_there = pid.is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists());
        // A process of another namespace has no number here, and answers; one that is gone refuses.
        let refuses = |e: io::Error| e.kind() == ErrorKind::ConnectionRefused;
        if !is_there && UnixStream::connect(&path).is_err_and(refuses) {
            let _ = fs::remove_file(&path);
        } else {
            living.push(path);
        }
    }
    living.sort();
    Ok(living)
}

fn listen(folder: &Path, pid: u32) -> io::Result<UnixListener> {
    sockets(folder)?;
    for n in 0..16 {
        // Processes of several namespaces may have one number.
        let name = if n == 0 { format!("{pid}.sock") } else { format!("{pid}-{n}.sock") };
        let path = folder.join(name);
        if UnixStream::connect(&path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused) {
            let _ = fs::remove_file(&path);
        }
        match UnixListener::bind(&path) {
            Err(e) if e.kind() == ErrorKind::AddrInUse => {}
            other => return other,
        }
    }
    Err(ErrorKind::AddrInUse.into())
}

/// Answers who asks, for as long as the process lives.
fn answer(listener: &UnixListener, pid: u32) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Nothing is left to take it with, which passes.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let is_own = socket_peercred(&stream).is_ok_and(|peer| peer.uid == getuid());
        if is_own && stream.set_write_timeout(Some(PATIENCE)).is_ok() {
            // Who went away has what came before.
            let _ = tell(&stream, pid);
        }
    }
}

fn tell(mut stream: &UnixStream, pid: u32) -> io::Result<()> {
    let devices: Vec<_> = {
        let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let all = shown.as_ref().filter(|shown| shown.pid == pid).map(|shown| shown.devices.iter());
        all.into_iter().flatten().filter_map(|(url, device)| Some((url.clone(), device.upgrade()?))).collect()
    };
    let name = fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let mut text = format!("process\t{pid}\t{}\n", name.trim_end());
    for (url, device) in devices {
        tell_device(&mut text, &url, &*device);
    }
    text.push_str("end\n");
    stream.write_all(text.as_bytes())
}

fn tell_device(text: &mut String, url: &str, device: &dyn Device) {
    use std::fmt::Write;
    let mut line = |args: std::fmt::Arguments<'_>| {
        text.write_fmt(args).and_then(|()| text.write_str("\n")).expect("a string takes everything");
    };
    line(format_args!("device\t{url}"));
    for Counter { name, value } in device.counters() {
        line(format_args!("counter\t{name}\t{value}"));
    }
    for qp in device.queue_pairs().into_iter().take(MAX_QUEUE_PAIRS) {
        let peer = qp.dest_qpn.zip(qp.dest_gid);
        let peer = peer.map_or(String::new(), |(qpn, gid)| format!("\t{}\t{gid}", qpn.raw()));
        line(format_args!("qp\t{}\t{:?}\t{:?}{peer}", qp.qpn.raw(), qp.qp_type, qp.state));
        for Counter { name, value } in device.qp_counters(qp.handle).unwrap_or_default() {
            if value > 0 {
                line(format_args!("count\t{name}\t{value}"));
            }
        }
    }
}

/// All processes of this user that have adapters, with their counters now. What dead processes left behind is removed.
///
/// # Errors
/// The folder of sockets is not this user's alone, or can't be read.
pub fn running() -> io::Result<Vec<ProcessStat>> {
    Ok(sockets(&folder()?)?.iter().filter_map(|path| ask(path).ok().flatten()).collect())
}

fn ask(path: &Path) -> io::Result<Option<ProcessStat>> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // Nobody else can make a socket in the folder; who answers is the same user all the same.
    if socket_peercred(&stream)?.uid != getuid() {
        return Ok(None);
    }
    let lines = BufReader::new(stream.take(MAX_ANSWER)).lines();
    Ok(parse(&lines.collect::<io::Result<Vec<_>>>()?))
}

/// What a process told; `None` if it did not tell all.
fn parse(lines: &[String]) -> Option<ProcessStat> {
    let mut process = ProcessStat::default();
    for line in lines {
        let fields: Vec<&str> = line.split('\t').collect();
        match fields[..] {
            ["process", pid, name] => (process.pid, process.name) = (pid.parse().ok()?, name.to_owned()),
            ["device", url] => {
                process.devices.push(DeviceStat { url: url.to_owned(), ..DeviceStat::default() });
            }
            ["counter", name, value] => {
                process.devices.last_mut()?.counters.push((name.to_owned(), value.parse().ok()?));
            }
            ["qp", qpn, service, state, ref peer @ ..] => {
                let peer = match peer {
                    [qpn, gid] => Some((qpn.parse().ok()?, (*gid).to_owned())),
                    _ => None,
                };
                let (service, state) = (service.to_owned(), state.to_owned());
                let qp = QpStat { qpn: qpn.parse().ok()?, service, state, peer, counters: Vec::new() };
                process.devices.last_mut()?.queue_pairs.push(qp);
            }
            ["count", name, value] => {
                let qp = process.devices.last_mut()?.queue_pairs.last_mut()?;
                qp.counters.push((name.to_owned(), value.parse().ok()?));
            }
            ["end"] => return Some(process),
            // Of a later version.
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn what_a_process_tells_is_read_again() {
        let told = "process\t7\tname\ndevice\tudp://127.0.0.2\ncounter\tturns\t5\nqp\t9\tRc\tRts\t10\t::1\n\
                    count\ttx_send_requests\t3\nqp\t11\tUd\tReset\nnews\tof later\nend";
        let process = parse(&lines(told)).unwrap();
        assert_eq!((process.pid, process.name.as_str(), process.devices.len()), (7, "name", 1));
        let device = &process.devices[0];
        assert_eq!((device.counter("turns"), device.counter("none")), (5, 0));
        let [rc, ud] = &device.queue_pairs[..] else { panic!("{device:?}") };
        assert_eq!(
            (rc.qpn, rc.peer.clone(), rc.counter("tx_send_requests")),
            (9, Some((10, "::1".into())), 3)
        );
        assert_eq!((ud.service.as_str(), ud.state.as_str(), ud.peer.is_none()), ("Ud", "Reset", true));
        for bad in ["process\t7\tname", "counter\tturns\t5\nend", "process\tx\ty\nend", "count\ta\t1\nend"] {
            assert_eq!(parse(&lines(bad)), None, "{bad}");
        }
    }

    #[test]
    fn a_folder_that_others_may_read_is_refused() {
        let folder = std::env::temp_dir().join(format!("hca-stat-test-{}", std::process::id()));
        let uid = getuid().as_raw();
        private(&folder, uid).unwrap();
        private(&folder, uid).unwrap();
        assert!(private(&folder, uid + 1).is_err(), "it is another's");
        fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(private(&folder, uid).unwrap_err().kind(), ErrorKind::PermissionDenied);
        fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn sockets_of_the_dead_are_removed_and_others_stay() {
        let folder = std::env::temp_dir().join(format!("hca-stat-dead-{}", std::process::id()));
        private(&folder, getuid().as_raw()).unwrap();
        let (dead, other) = (folder.join("4194305.sock"), folder.join("note.txt"));
        drop(UnixListener::bind(&dead).unwrap());
        fs::write(&other, "kept").unwrap();
        let living = listen(&folder, std::process::id()).unwrap();
        assert!(!dead.exists() && other.exists());
        assert_eq!(sockets(&folder).unwrap().len(), 1);
        drop(living);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_device_is_shown_while_it_is_open() {
        let opened = crate::open_exactly(&"loopback://stat?progress=inline".parse().unwrap()).unwrap();
        let shown = || {
            let own = running().unwrap().into_iter().find(|process| process.pid == std::process::id());
            own.is_some_and(|own| {
                own.devices.iter().any(|d| d.url.contains("loopback://stat") && !d.counters.is_empty())
            })
        };
        assert!(shown());
        drop(opened);
        assert!(!shown());
    }
}
