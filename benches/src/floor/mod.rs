//! What the machine gives without any RDMA: the figures that ours are held against.
//!
//! Each floor runs in two processes, bound to a CPU each, as the measured programs do.

pub mod cache;
mod hand_over;
pub mod pages;
mod raw;
mod shared;
mod tcp;
mod udp;
mod xdp;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

pub use shared::{LINE_BYTES, Line, Shared, Word};

/// The first argument of a process that is the far side of a floor.
const FAR_COMMAND: &str = "__floor";
/// A stall this long means that what is missing was lost.
const STALL: Duration = Duration::from_millis(20);
/// How long the far side may take to begin.
const START_LIMIT: Duration = Duration::from_secs(5);

/// A floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floor {
    /// 8 bytes there and back on connected UDP sockets, both sides spinning.
    UdpPingPong,
    /// Goodput of 4 KiB segments, sent by UDP_SEGMENT and received by UDP_GRO.
    UdpGoodput,
    /// Packets of 24 bytes, 64 a call, by the same two.
    UdpRate,
    /// One TCP stream by calls of 1 MiB.
    TcpStream,
    /// Frames of 64 bytes behind their Ethernet header there and back over a veth pair, both sides spinning on a
    /// ring of received frames.
    RawPingPong,
    /// The same by AF_XDP in copy mode, behind a generic XDP program.
    XdpPingPong,
    /// Goodput of frames of 4 KiB over a veth pair, 64 a call, received from the ring.
    RawGoodput,
    /// Frames of 64 bytes by the same two.
    RawRate,
    /// 8 bytes there and back between two processes, each with an engine in a thread on its CPU, all of which yield.
    HandOver,
    /// What two processes do on cache lines that they share.
    Cache(cache::Kind),
}

impl Floor {
    const PLAIN: [Self; 9] = [
        Self::UdpPingPong,
        Self::UdpGoodput,
        Self::UdpRate,
        Self::TcpStream,
        Self::RawPingPong,
        Self::XdpPingPong,
        Self::RawGoodput,
        Self::RawRate,
        Self::HandOver,
    ];

    fn named(name: &str) -> Option<Self> {
        let cache = cache::Kind::ALL.into_iter().map(Self::Cache);
        Self::PLAIN.into_iter().chain(cache).find(|f| f.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::UdpPingPong => "udp-ping-pong",
            Self::UdpGoodput => "udp-goodput",
            Self::UdpRate => "udp-rate",
            Self::TcpStream => "tcp-stream",
            Self::RawPingPong => "raw-ping-pong",
            Self::XdpPingPong => "xdp-ping-pong",
            Self::RawGoodput => "raw-goodput",
            Self::RawRate => "raw-rate",
            Self::HandOver => "hand-over",
            Self::Cache(kind) => kind.name(),
        }
    }

    /// Bytes of a packet where packets are equal.
    fn segment(self) -> usize {
        match self {
            Self::UdpGoodput | Self::RawGoodput => 4096,
            Self::UdpRate => 24,
            Self::UdpPingPong | Self::HandOver => 8,
            Self::TcpStream => 1 << 20,
            Self::RawPingPong | Self::XdpPingPong | Self::RawRate => 64,
            Self::Cache(kind) => kind.bytes(),
        }
    }
}

/// What a floor's run gave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Half round trip, or one access where the floor is one, median, in ns; 0 where there is none.
    pub half_rtt_ns: f64,
    /// Bytes a second that arrived.
    pub bytes_per_s: f64,
    /// Packets a second that arrived.
    pub packets_per_s: f64,
}

/// Runs a floor for `time`: this process on CPU `near`, a new one on CPU `far`.
///
/// # Errors
/// A socket or a process can't be made.
pub fn run(floor: Floor, near: usize, far: usize, time: Duration) -> io::Result<Figures> {
    run_across(floor, near, far, time, None)
}

/// As [`run`], with the far process in another network namespace, given by its path.
///
/// # Errors
/// As [`run`].
pub fn run_across(
    floor: Floor,
    near: usize,
    far: usize,
    time: Duration,
    netns: Option<&str>,
) -> io::Result<Figures> {
    hca_perf::probe::pin(near)?;
    let shared = match floor {
        Floor::Cache(_) => Shared::with_lines(cache::LINES)?,
        Floor::HandOver => Shared::with_lines(hand_over::LINES)?,
        _ => Shared::new()?,
    };
    let mut child = Far::spawn(floor, far, &shared, netns)?;
    let figures = match floor {
        Floor::UdpPingPong => udp::ping(&shared, &mut child, time),
        Floor::UdpGoodput | Floor::UdpRate => udp::stream(floor.segment(), &shared, &mut child, time),
        Floor::TcpStream => tcp::send(floor.segment(), &shared, &mut child, time),
        Floor::RawPingPong => raw::ping::<raw::Packets>(floor.segment(), &shared, &mut child, time),
        Floor::XdpPingPong => raw::ping::<xdp::Xsk>(floor.segment(), &shared, &mut child, time),
        Floor::RawGoodput | Floor::RawRate => raw::stream(floor.segment(), &shared, &mut child, time),
        Floor::HandOver => hand_over::near(&shared, &mut child, time),
        Floor::Cache(kind) => cache::near(kind, &shared, &mut child, time),
    };
    shared.stop.store(1);
    child.end();
    figures
}

/// To be called first in `main` of every program that runs floors: becomes the far side if that is
/// what this process was started for.
pub fn far_side_if_asked() {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() != Some(FAR_COMMAND) {
        return;
    }
    let name = args.next().expect("the floor's name");
    let floor = Floor::named(&name).expect("a floor of this name");
    end_with_starter().expect("the system ends a process with its starter");
    let mut number = || args.next().and_then(|a| a.parse::<u32>().ok()).expect("a number");
    let (cpu, fd) = (number(), number());
    hca_perf::probe::pin(cpu as usize).expect("the CPU exists");
    if let Some(path) = args.next() {
        let namespace = File::open(path).expect("the starter keeps its namespace");
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), kind).expect("the starter may enter its namespace");
    }
    let shared = Shared::open(fd).expect("the starter left its memory open");
    let done = match floor {
        Floor::UdpPingPong => udp::pong(&shared),
        Floor::UdpGoodput | Floor::UdpRate => udp::sink(floor.segment(), &shared),
        Floor::TcpStream => tcp::sink(floor.segment(), &shared),
        Floor::RawPingPong => raw::pong::<raw::Packets>(floor.segment(), &shared),
        Floor::XdpPingPong => raw::pong::<xdp::Xsk>(floor.segment(), &shared),
        Floor::RawGoodput | Floor::RawRate => raw::sink(floor.segment(), &shared),
        Floor::HandOver => hand_over::far(&shared),
        Floor::Cache(kind) => cache::far(kind, &shared),
    };
    std::process::exit(i32::from(done.is_err()));
}

/// Has the system end this process when the thread ends that started it, however that comes about.
///
/// # Errors
/// The starter is gone already, or the system refuses.
pub fn end_with_starter() -> io::Result<()> {
    let starter = rustix::process::getppid();
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have ended before the call; then this process has another parent by now, or none.
    if starter.is_none() || rustix::process::getppid() != starter {
        return Err(io::Error::other("the process that started this one is gone"));
    }
    Ok(())
}

/// The far process.
struct Far(Child);

impl Far {
    fn spawn(floor: Floor, cpu: usize, shared: &Shared, netns: Option<&str>) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([FAR_COMMAND, floor.name(), &cpu.to_string(), &shared.fd().to_string()]);
        command.args(netns);
        command.spawn().map(Self)
    }

    /// The port on which the far side listens.
    fn port(&mut self, shared: &Shared) -> io::Result<u16> {
        let begin = Instant::now();
        loop {
            match shared.port.load() {
                0 if begin.elapsed() > START_LIMIT => return Err(io::ErrorKind::TimedOut.into()),
                0 => {}
                port => return Ok(port as u16),
            }
            if let Some(status) = self.0.try_wait()? {
                return Err(io::Error::other(format!("the floor's far side ended: {status}")));
            }
            std::thread::yield_now();
        }
    }

    fn end(&mut self) {
        let begin = Instant::now();
        while let Ok(None) = self.0.try_wait() {
            if begin.elapsed() > STALL * 10 {
                let _ = self.0.kill();
            }
            std::thread::yield_now();
        }
    }
}
