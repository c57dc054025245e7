//! Counters of running adapters, shown to their own user.
//!
//! A process that opens a device listens at an abstract UNIX socket, `hca-stat/UID/PID`, by one thread that sleeps
//! between two questions. The answer is the counters of that moment, in lines of text; the data path does nothing for
//! it. Both sides check the user of the other side, so another user gets no answer and can give none. The kernel frees
//! the name when the process ends. `HCA_STAT=off` in the environment leaves the socket and the thread out.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use std::{fs, mem};

use hca_core::{Counter, Device};
use hca_process::PerProcess;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::getuid;

/// The environment variable that disables the socket.
pub const STAT_VARIABLE: &str = "HCA_STAT";

/// The limit of queue pairs that are listed of a device.
const MAX_QUEUE_PAIRS: usize = 1024;
/// Bytes that a process tells at most.
const MAX_ANSWER: u64 = 16 << 20;
/// How long one side waits for the other.
const PATIENCE: Duration = Duration::from_secs(1);

/// The counters of a process with adapters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessStat {
    /// The process's pid.
    pub pid: u32,
    /// The process's name.
    pub name: String,
    /// The process's devices.
    pub devices: Vec<DeviceStat>,
}

/// The counters of a process's device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceStat {
    /// The name of the device, with its address.
    pub url: String,
    /// The device's counters, by name.
    pub counters: Vec<(String, u64)>,
    /// The device's queue pairs.
    pub queue_pairs: Vec<QpStat>,
}

/// The state and the counters of a device's queue pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QpStat {
    /// The queue pair number.
    pub qpn: u32,
    /// The service of the queue pair.
    pub service: String,
    /// The state of the queue pair.
    pub state: String,
    /// The peer's queue pair and GID, if this queue pair is connected.
    pub peer: Option<(u32, String)>,
    /// The queue pair's counters, by name; counters at zero are left out.
    pub counters: Vec<(String, u64)>,
}

impl DeviceStat {
    /// A counter's value; 0 if no counter has this name.
    pub fn counter(&self, name: &str) -> u64 {
        value(&self.counters, name)
    }
}
impl QpStat {
    /// A counter's value; 0 if no counter has this name.
    pub fn counter(&self, name: &str) -> u64 {
        value(&self.counters, name)
    }
}
fn value(counters: &[(String, u64)], name: &str) -> u64 {
    counters.iter().find(|(of, _)| of == name).map_or(0, |c| c.1)
}

/// The devices that a process shows.
#[derive(Default)]
struct Shown {
    devices: Vec<ShownDevice>,
    /// A thread answers, or could not be started.
    is_told: bool,
}

struct ShownDevice {
    url: String,
    /// The name that a program's port has, if it has files.
    port: Option<String>,
    device: Weak<dyn Device>,
}

impl ShownDevice {
    fn is(&self, device: &Arc<dyn Device>) -> bool {
        core::ptr::addr_eq(self.device.as_ptr(), Arc::as_ptr(device))
    }
}

/// A forked child has none of its parent's threads, and its own devices.
static SHOWN: PerProcess<Mutex<Shown>> = PerProcess::new();

fn shown() -> MutexGuard<'static, Shown> {
    // It is whole between any two of its operations.
    SHOWN.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shows a device that was opened. Where that is not possible, it is not shown, and works.
pub(crate) fn show(url: String, device: &Arc<dyn Device>) {
    if std::env::var_os(STAT_VARIABLE).is_some_and(|value| value == "off") {
        return;
    }
    let mut shown = shown();
    shown.devices.retain(|shown| shown.device.strong_count() > 0);
    shown.devices.push(ShownDevice { url, port: None, device: Arc::downgrade(device) });
    let is_told = mem::replace(&mut shown.is_told, true);
    drop(shown);
    if !is_told && let Ok(listener) = listen(std::process::id()) {
        let _ = hca_process::spawn("hca-stat", move || answer(&listener));
    }
}

/// The prefix of the names of this user's sockets.
fn prefix() -> String {
    format!("hca-stat/{}/", getuid().as_raw())
}

fn listen(pid: u32) -> io::Result<UnixListener> {
    // A process of another namespace may have the same number, and another user may have taken a name.
    for n in 0..16 {
        let name = format!("{}{pid}-{n}", prefix());
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?) {
            Err(e) if e.kind() == ErrorKind::AddrInUse => {}
            other => return other,
        }
    }
    Err(ErrorKind::AddrInUse.into())
}

/// The names of this user's sockets, from the text of `/proc/net/unix`, once each.
fn names(sockets: &str) -> BTreeSet<&str> {
    let prefix = prefix();
    let names = sockets.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    names.filter(|name| name.starts_with(&prefix)).collect()
}

/// Answers each question, for as long as the process lives.
fn answer(listener: &UnixListener) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // No descriptor is left; the pause keeps the thread from spinning until there is one.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let is_own = socket_peercred(&stream).is_ok_and(|peer| peer.uid == getuid());
        if is_own && stream.set_write_timeout(Some(PATIENCE)).is_ok() {
            // A client that has gone away needs no answer.
            let _ = write_counters(&stream);
        }
    }
}

fn write_counters(mut stream: &UnixStream) -> io::Result<()> {
    let open = |shown: &ShownDevice| Some((shown.url.clone(), shown.port.clone(), shown.device.upgrade()?));
    let devices: Vec<_> = shown().devices.iter().filter_map(open).collect();
    let name = fs::read_to_string("/proc/self/comm").unwrap_or_default();
    // A process's name may be anything.
    let name = name.trim_end_matches('\n').replace(char::is_control, "?");
    let mut text = format!("process\t{}\t{name}\n", std::process::id());
    for (url, port, device) in devices {
        tell_device(&mut text, &url, port.as_deref(), &*device);
    }
    text.push_str("end\n");
    stream.write_all(text.as_bytes())
}

/// The counters of a device, and those of its port by the IBA's names.
fn counters(device: &dyn Device) -> Vec<Counter> {
    let port = device.port_counters().map(|port| port.named());
    device.counters().into_iter().chain(port.into_iter().flatten()).collect()
}

/// Tells to which port, by the name of its files, a device's counters belong.
#[doc(hidden)] // for hca-ibverbs
pub fn count_for(device: &Arc<dyn Device>, port: &str) {
    shown()
        .devices
        .iter_mut()
        .filter(|shown| shown.is(device))
        .for_each(|shown| shown.port = Some(port.into()));
}

/// Shows a device no longer; what it has counted, for whoever keeps that. `None`: it was not shown.
#[doc(hidden)] // for hca-ibverbs
pub fn hide(device: &Arc<dyn Device>) -> Option<Vec<Counter>> {
    let mut shown = shown();
    let before = shown.devices.len();
    shown.devices.retain(|shown| !shown.is(device));
    let was_shown = shown.devices.len() < before;
    drop(shown);
    was_shown.then(|| counters(&**device))
}

fn tell_device(text: &mut String, url: &str, port: Option<&str>, device: &dyn Device) {
    use std::fmt::Write;
    let mut line = |args: std::fmt::Arguments<'_>| {
        text.write_fmt(args).and_then(|()| text.write_str("\n")).expect("a string takes everything");
    };
    line(format_args!("device\t{url}"));
    if let Some(port) = port {
        line(format_args!("port\t{port}"));
    }
    for Counter { name, value } in counters(device) {
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

/// The processes of this user and this network namespace that have adapters, with their present counters.
///
/// # Errors
/// `/proc/net/unix` can't be read.
pub fn running() -> io::Result<Vec<ProcessStat>> {
    let sockets = fs::read("/proc/net/unix")?;
    let sockets = String::from_utf8_lossy(&sockets);
    Ok(names(&sockets).into_iter().filter_map(|name| ask(name).ok().flatten()).collect())
}

/// A connection, if there is room for one: who blocks waits for ever where nobody accepts any, as in a process that is
/// stopped, or in one of another user that has taken the name.
fn connect(name: &str) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn ask(name: &str) -> io::Result<Option<ProcessStat>> {
    let stream = connect(name)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // Any user can take a name.
    if socket_peercred(&stream)?.uid != getuid() {
        return Ok(None);
    }
    let lines = BufReader::new(stream.take(MAX_ANSWER)).lines();
    Ok(parse(&lines.collect::<io::Result<Vec<_>>>()?))
}

/// The process of an answer; `None` for an answer that was cut off.
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
    fn names_of_this_user_alone_are_asked_and_once_each() {
        let own = prefix();
        let line = |name: &str| format!("0000000000000000: 00000002 00000000 00010000 0001 01 1 {name}\n");
        let text = [
            "@hca-stat/4294967294/7-0",
            &format!("@{own}9-0"),
            &format!("@{own}9-0"),
            "/run/x.sock",
            "",
            "@",
        ];
        let text: String = text.iter().map(|name| line(name)).collect();
        assert_eq!(names(&text), BTreeSet::from([&*format!("{own}9-0")]));
        assert_eq!(names("Num       RefCount Protocol Flags    Type St Inode Path\n"), BTreeSet::new());
    }

    #[test]
    fn a_name_that_is_taken_is_followed_by_the_next() {
        let pid = 4_194_305;
        let (a, b) = (listen(pid).unwrap(), listen(pid).unwrap());
        let name = |listener: &UnixListener| {
            let addr = listener.local_addr().unwrap();
            String::from_utf8(addr.as_abstract_name().unwrap().to_vec()).unwrap()
        };
        assert_eq!((name(&a), name(&b)), (format!("{}{pid}-0", prefix()), format!("{}{pid}-1", prefix())));
    }

    #[test]
    fn who_accepts_nobody_is_not_waited_for() {
        let name = format!("{}full-{}", prefix(), std::process::id());
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let waiting = connect(&name).unwrap();
        let (told, asked) = std::sync::mpsc::channel();
        let second = std::thread::spawn(move || told.send(connect(&name).map_err(|e| e.kind())));
        let refused = asked.recv_timeout(Duration::from_secs(60)).expect("it waits");
        assert_eq!(refused.unwrap_err(), ErrorKind::WouldBlock);
        second.join().unwrap().unwrap();
        drop((waiting, socket));
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
        // A thread that gets no CPU for a second is left out.
        let begun = std::time::Instant::now();
        while !shown() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is not shown");
        }
        drop(opened);
        assert!(!shown());
    }
}
