//! The measuring side, and the set-up of both processes.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hca::{DEVICE_VARIABLE, DeviceUrl, Opened, Options, Target, open_exactly};
use hca_core::Mtu;
use hca_fabric::RawOptions;
use hdrhistogram::Histogram;
use thiserror::Error;

use super::channel::{Channel, ControlError};
use super::control::{FromPeer, PROTOCOL, Phase, ToPeer};
use super::json::Row;
use super::plan::{Case, Layer, Op, Service, Size};
use super::side::{Side, stamp};
use super::stamps::Stamps;
use crate::Failure;
use crate::interrupt::{interrupted, unless_interrupted};
use crate::probe::{self, Placement};

/// Where `ip netns` keeps its namespaces.
const NETNS_DIR: &str = "/run/netns";
/// How long the peer may take for an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// A message of an unreliable service that takes longer is lost. Its answer is dropped when it comes.
const LOST_AFTER: Duration = Duration::from_millis(20);
/// How long a stream may take to drain.
pub(super) const DRAIN_LIMIT: Duration = Duration::from_secs(20);
/// How much longer than asked for a measurement goes on that has nothing to show.
const MAX_EXTENSION: Duration = Duration::from_secs(5);
/// The lowest expected bandwidth, in bytes a second.
const SLOWEST: u64 = 1 << 20;
/// Turns of waiting between two looks at the clock.
const SPINS: u32 = 256;
/// Messages before a latency counts.
const WARM_UP: u64 = 16;
/// The longest latency of the histogram: 1000 s.
const MAX_LATENCY_NS: u64 = 1_000_000_000_000;

/// One side, whose messages the other side answers.
pub(crate) trait Answered {
    /// Posts a message; `false`: the queue is full.
    fn ask(&mut self) -> Result<bool, Failure>;
    /// How many answers have come since the last call.
    fn answers(&mut self) -> Result<usize, Failure>;
}

impl Answered for Side {
    #[inline]
    fn ask(&mut self) -> Result<bool, Failure> {
        self.post(stamp(1))
    }
    #[inline]
    fn answers(&mut self) -> Result<usize, Failure> {
        Ok(self.receive_any()? as usize)
    }
}

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The device of this process.
    pub device: DeviceUrl,
    /// The device of the peer process; `None` takes the same fabric on an address of its own.
    pub peer_device: Option<DeviceUrl>,
    /// The network namespace that the peer process is in: a name of `ip netns`, or a path; `None` is this one's.
    pub peer_netns: Option<String>,
    /// CPUs of this process and of the peer.
    pub cpus: Option<(usize, usize)>,
}

impl Setup {
    /// A measurement with this device, and with both processes bound to the first two CPUs, if there are two.
    pub fn new(device: DeviceUrl) -> Self {
        let cpus = match *probe::cpus() {
            [a, b, ..] => Some((a, b)),
            _ => None,
        };
        Self { device, peer_device: None, peer_netns: None, cpus }
    }
}

/// The end of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// After this time.
    Time(Duration),
    /// After this many messages.
    Count(u64),
}

/// The results of one measurement.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Latencies in ns; empty for a stream.
    pub latencies: Histogram<u64>,
    /// Messages that arrived or completed.
    pub messages: u64,
    /// Messages that were lost, and completions with an error.
    pub errors: u64,
    /// Time from the first post to the last completion.
    pub elapsed: Duration,
}

impl Measured {
    pub(super) fn new() -> Self {
        let latencies = Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3).expect("the bounds are legal");
        Self { latencies, messages: 0, errors: 0, elapsed: Duration::ZERO }
    }
    /// The rate in messages a second.
    pub fn rate(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.messages as f64 / seconds } else { 0.0 }
    }
}

/// The reason why two processes could not be set up for measuring.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PairError {
    /// The peer needs a device of its own.
    #[error(
        "{device} can't serve both processes, since the port of one address belongs to one device: give the other one with --peer-device, as in --peer-device udp://ADDRESS"
    )]
    OneAddress {
        /// This process's device.
        device: Box<DeviceUrl>,
    },
    /// The peer needs an interface of its own, at the other end of the wire.
    #[error(
        "{device} can't serve both processes, since frames that leave an interface do not come back to this machine: put the peer at the other end, with --peer-netns NAME (and --peer-device), or on another host with --listen"
    )]
    OneInterface {
        /// This process's device.
        device: Box<DeviceUrl>,
    },
    /// The peer needs a function of its own.
    #[error("{device} has one user at a time: name another function for the peer with --peer-device")]
    OneFunction {
        /// This process's device.
        device: Box<DeviceUrl>,
    },
    /// No other process can reach the device.
    #[error("{device} ends at this process: measure with --device udp://, uring:// or shm://lab")]
    InProcess {
        /// This process's device.
        device: Box<DeviceUrl>,
    },
    /// The peer's messages have stopped arriving.
    #[error("no answer arrived for {0:?}; check whether the peer hangs, and run both ends again")]
    Stalled(Duration),
    /// The process can't be started.
    #[error("the peer process can't be started: {0}; check the limits on processes (ulimit -u)")]
    Spawn(std::io::Error),
    /// No server listens.
    #[error("no peer at {address}: {source}; start `hca perf --listen {ip}` there first", ip = address.ip())]
    Connect {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: std::io::Error,
    },
    /// The operation belongs to another layer.
    #[error("{service} has no {op}: measure it with --layer portals, or choose another operation")]
    NoSuchOperation {
        /// The service.
        service: Service,
        /// The operation.
        op: Op,
    },
    /// The peer connects in another way.
    #[error("the peer does not connect by RDMA CM: run the same version of hca there, or leave --cm out")]
    NoCm,
    /// A CPU can't be used.
    #[error("CPU {cpu} can't be used: {source}; --no-pin leaves the binding out")]
    Pin {
        /// The CPU.
        cpu: usize,
        /// The reason.
        source: std::io::Error,
    },
}

/// The two processes of a measurement with a device each: this process, and a peer that it started or connected to.
pub struct Pair {
    opened: Opened,
    pub(super) channel: Channel<FromPeer>,
    mtu: Mtu,
    cm: bool,
    cpus: (Option<usize>, Option<usize>),
    /// Both are on this machine, so that their CPUs can be probed.
    child: Option<Child>,
}

impl Pair {
    /// Starts a peer process: this program again, which must call
    /// [`peer_if_asked`](super::peer_if_asked) first of all.
    ///
    /// # Errors
    /// A device can't be opened, or the process not be started.
    pub fn start(setup: &Setup) -> Result<Self, Failure> {
        let peer_device = match &setup.peer_device {
            Some(url) => url.clone(),
            // In a namespace of its own the same name is another device.
            None if setup.peer_netns.is_some() => setup.device.clone(),
            None => peer_of(&setup.device)?,
        };
        if let Some((cpu, _)) = setup.cpus {
            probe::pin(cpu).map_err(|source| PairError::Pin { cpu, source })?;
        }
        let opened = open_exactly(&setup.device)?;
        let mut command = Command::new(std::env::current_exe().map_err(PairError::Spawn)?);
        command
            .arg(super::PEER_COMMAND)
            .arg(peer_device.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command.env_remove(DEVICE_VARIABLE);
        if let Some(netns) = &setup.peer_netns {
            let path = if netns.contains('/') { netns.into() } else { Path::new(NETNS_DIR).join(netns) };
            command.arg("--netns").arg(path);
        }
        if let Some((_, cpu)) = setup.cpus {
            command.arg("--cpu").arg(cpu.to_string());
        }
        let mut child = command.spawn().map_err(PairError::Spawn)?;
        let input = child.stdout.take().expect("the peer's output is a pipe");
        let out = child.stdin.take().expect("the peer's input is a pipe");
        let channel = Channel::new(input, out, None).map_err(PairError::Spawn)?;
        let cpus = setup.cpus.map_or((None, None), |(own, theirs)| (Some(own), Some(theirs)));
        Self::greet(opened, channel, cpus, Some(child))
    }

    /// Connects to a listening process on another host.
    ///
    /// # Errors
    /// No process listens, it speaks another version, or the device can't be opened.
    pub fn connect(
        address: SocketAddr,
        device: Option<&DeviceUrl>,
        options: &Options,
        cpu: Option<usize>,
    ) -> Result<Self, Failure> {
        let refuse = |source| PairError::Connect { address, source };
        let answer = unless_interrupted(move || TcpStream::connect_timeout(&address, PATIENCE));
        let stream = answer.ok_or(ControlError::Interrupted)?.map_err(refuse)?;
        let own = stream.local_addr().map_err(refuse)?.ip();
        let named = device.cloned().unwrap_or_else(|| device_at(own));
        let options = named.options.overridden_by(options.clone());
        let opened = open_exactly(&DeviceUrl { options, ..named })?;
        if let Some(cpu) = cpu {
            probe::pin(cpu).map_err(|source| PairError::Pin { cpu, source })?;
        }
        let channel = Channel::over_tcp(&stream, None).map_err(refuse)?.beating();
        Self::greet(opened, channel, (cpu, None), None)
    }

    fn greet(
        opened: Opened,
        channel: Channel<FromPeer>,
        cpus: (Option<usize>, Option<usize>),
        child: Option<Child>,
    ) -> Result<Self, Failure> {
        // From here on its drop sees to the other process, where they do not come to an understanding, too.
        let mut this = Self { mtu: opened.mtu(), cm: false, opened, channel, cpus, child };
        this.channel.send(&ToPeer::Hello { protocol: PROTOCOL })?;
        let theirs = match this.channel.recv(Some(PATIENCE))? {
            FromPeer::Hello { protocol: PROTOCOL, mtu } => mtu,
            FromPeer::Hello { protocol, .. } => return Err(ControlError::Version { theirs: protocol }.into()),
            other => return Err(unexpected(other).into()),
        };
        this.mtu = theirs.min(this.mtu);
        Ok(this)
    }

    /// Has the queue pairs connect by RDMA CM from now on.
    pub fn by_cm(&mut self) {
        self.cm = true;
    }
    /// The device of this process.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }
    /// The largest path MTU that both devices carry.
    pub fn mtu(&self) -> Mtu {
        self.mtu
    }
    /// The CPUs that this process and the peer are bound to.
    pub fn cpus(&self) -> (Option<usize>, Option<usize>) {
        self.cpus
    }

    /// The present placement of both processes' CPUs. The peer must be idle.
    pub fn placement(&self) -> Placement {
        match (self.child.is_some(), self.cpus) {
            (true, (Some(a), Some(b))) => probe::placement(a, b),
            _ => Placement::Unknown,
        }
    }

    /// Measures one phase of one case.
    ///
    /// # Errors
    /// The peer or a device can't go on.
    pub fn run(&mut self, case: &Case, phase: Phase, limit: Limit) -> Result<Measured, Failure> {
        if !case.service.offers(case.op) {
            return Err(PairError::NoSuchOperation { service: case.service, op: case.op }.into());
        }
        let mut side = self.meet(case, phase)?;
        let pace = Pace::new(&mut self.channel, limit, case.size);
        let mut run = Run::new(&mut side, pace, case);
        match phase {
            Phase::Latency => run.latency()?,
            Phase::Stream => run.stream()?,
        }
        let mut measured = run.out;
        self.channel.send(&ToPeer::Stop)?;
        match self.channel.recv(Some(DRAIN_LIMIT + PATIENCE))? {
            FromPeer::Done { received, errors } => {
                measured.errors = measured.errors.saturating_add(errors);
                if phase == Phase::Stream && case.service != Service::Rc {
                    let lost = measured.messages.saturating_sub(received);
                    measured.errors = measured.errors.saturating_add(lost);
                    measured.messages = received.min(measured.messages);
                }
            }
            other => return Err(unexpected(other).into()),
        }
        Ok(measured)
    }

    /// A side that is connected to one of the peer.
    fn meet(&mut self, case: &Case, phase: Phase) -> Result<Side, Failure> {
        let mut side = Side::new(&self.opened, case, phase)?;
        let endpoint = side.endpoint();
        let (mtu, cm) = (self.mtu, self.cm);
        self.channel.send(&ToPeer::Prepare { case: *case, phase, mtu, endpoint, cm })?;
        match self.channel.recv(Some(PATIENCE))? {
            FromPeer::Ready { endpoint, port: None } if !cm => side.connect(&endpoint, mtu)?,
            FromPeer::Ready { endpoint, port: Some(port) } if cm => side.call(&endpoint, port, mtu)?,
            FromPeer::Ready { .. } => return Err(PairError::NoCm.into()),
            other => return Err(unexpected(other).into()),
        }
        Ok(side)
    }
    /// Runs a program of SENDs, each of which the peer answers by one.
    ///
    /// # Errors
    /// As [`run`](Self::run), or the program's.
    pub(crate) fn answered<T>(
        &mut self,
        case: &Case,
        run: impl FnOnce(&mut dyn Answered, &mut Channel<FromPeer>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut side = self.meet(case, Phase::Latency)?;
        let done = run(&mut side, &mut self.channel)?;
        self.channel.send(&ToPeer::Stop)?;
        match self.channel.recv(Some(DRAIN_LIMIT + PATIENCE))? {
            FromPeer::Done { .. } => Ok(done),
            other => Err(unexpected(other).into()),
        }
    }

    /// Measures one row: the latency in one half of `time`, a stream in the other.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn row(&mut self, case: &Case, time: Duration) -> Result<Row, Failure> {
        let limit = Limit::Time(time / 2);
        let before = self.placement();
        let latency = self.run(case, Phase::Latency, limit)?;
        let stream = if interrupted() { Measured::new() } else { self.run(case, Phase::Stream, limit)? };
        let placement = before.and(self.placement());
        let row = self.assemble(case.op, case.size, &latency, &stream, placement);
        Ok(Row { service: case.service, ..row })
    }
    /// A row of results.
    pub(super) fn assemble(
        &self,
        op: Op,
        size: Size,
        latency: &Measured,
        stream: &Measured,
        placement: Placement,
    ) -> Row {
        let h = &latency.latencies;
        let rate = stream.rate();
        Row {
            fabric: self.opened.fabric().to_owned(),
            service: Service::Rc,
            op,
            layer: Layer::Verbs.to_string(),
            size: size.bytes(),
            p50_ns: h.value_at_quantile(0.5),
            p99_ns: h.value_at_quantile(0.99),
            p999_ns: h.value_at_quantile(0.999),
            mean_ns: h.mean() as u64,
            max_ns: h.max(),
            gb_per_s: rate * size.bytes() as f64 / 1e9,
            msgs_per_s: rate,
            count: h.len(),
            errors: latency.errors + stream.errors,
            progress: self.opened.progress().to_string(),
            placement,
            cpu: self.cpus.0,
            peer_cpu: self.cpus.1,
            offload: None,
            eager_bytes: None,
            depth: None,
            entries: None,
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let told = self.channel.send(&ToPeer::Bye).is_ok();
        let Some(child) = &mut self.child else { return };
        let begin = Instant::now();
        while told && begin.elapsed() < Duration::from_secs(2) {
            match child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                _ => return,
            }
        }
        // It does not listen any more; nothing of it is worth keeping.
        let _ = child.kill();
        let _ = child.wait();
    }
}

pub(super) fn unexpected(message: FromPeer) -> ControlError {
    match message {
        FromPeer::Failed { why } => ControlError::Peer(why.into()),
        other => ControlError::OutOfTurn(format!("{other:?}")),
    }
}

/// The device for a peer process on this machine.
pub(super) fn peer_of(device: &DeviceUrl) -> Result<DeviceUrl, PairError> {
    let options = &device.options;
    // An interface or a prefix stands for one address, which both ends can only share.
    let free =
        options.interface.is_none() && options.prefix.is_none() || options.share.is_some_and(|n| n > 0);
    let chosen = |ip: &Option<IpAddr>| ip.map_or(free, |ip| ip.is_ipv4() && ip.is_loopback());
    let target = match &device.target {
        Target::Auto(ip) if chosen(ip) => Target::Auto(None),
        Target::Udp(ip) if chosen(ip) => Target::Udp(None),
        Target::Uring(ip) if chosen(ip) => Target::Uring(None),
        Target::Raw { interface, options } if interface == "lo" && chosen(&options.ip) => {
            let options = RawOptions { ip: None, ..*options };
            Target::Raw { interface: interface.clone(), options }
        }
        Target::Auto(_) | Target::Udp(_) | Target::Uring(_) => {
            return Err(PairError::OneAddress { device: Box::new(device.clone()) });
        }
        Target::Shm(domain) => Target::Shm(domain.clone()),
        Target::Raw { .. } => return Err(PairError::OneInterface { device: Box::new(device.clone()) }),
        Target::Loopback(_) => return Err(PairError::InProcess { device: Box::new(device.clone()) }),
        Target::Vfio { .. } | Target::VfioUser { .. } => {
            return Err(PairError::OneFunction { device: Box::new(device.clone()) });
        }
    };
    // Faults strike both directions at one end, and a capture sees both, so the peer has neither.
    let options = Options { fault: None, capture: None, ..device.options.clone() };
    Ok(DeviceUrl { target, options })
}

/// The device for measurements with a host that is reached from the address `own`.
pub fn device_at(own: IpAddr) -> DeviceUrl {
    let target =
        if own.is_loopback() || own.is_unspecified() { Target::Udp(None) } else { Target::Udp(Some(own)) };
    DeviceUrl { target, options: Options::default() }
}

/// When a measurement under way ends.
pub(super) struct Pace<'a> {
    channel: &'a mut Channel<FromPeer>,
    pub(super) limit: Limit,
    /// How long nothing may move.
    patience: Duration,
    /// Waits between two looks at the clock.
    spins: u32,
    /// The progress at its last change, and the time of that.
    moved: (u64, Instant),
}

impl<'a> Pace<'a> {
    /// That of messages of this size.
    pub(super) fn new(channel: &'a mut Channel<FromPeer>, limit: Limit, size: Size) -> Self {
        let patience = PATIENCE + Duration::from_secs(size.bytes() / SLOWEST);
        Self { channel, limit, patience, spins: 0, moved: (0, Instant::now()) }
    }

    /// Sends a heartbeat to the peer if it is due.
    pub(super) fn heartbeat(&mut self) {
        self.channel.heartbeat(Instant::now());
    }

    /// A turn of waiting for a request. Returns the elapsed time in turns that read the clock, which few do.
    #[inline]
    fn waited(&mut self, since: Instant) -> Option<Duration> {
        self.spins = self.spins.wrapping_add(1);
        self.spins.is_multiple_of(SPINS).then(|| {
            let now = Instant::now();
            self.channel.heartbeat(now);
            now - since
        })
    }

    /// The same for what has to come.
    ///
    /// # Errors
    /// It does not, for too long.
    #[inline]
    pub(super) fn waits_since(&mut self, since: Instant) -> Result<(), PairError> {
        match self.waited(since) {
            Some(passed) if passed > self.patience => Err(PairError::Stalled(self.patience)),
            _ => Ok(()),
        }
    }

    /// Whether the user or the peer ends it.
    #[inline]
    pub(super) fn cut_short(&self) -> bool {
        interrupted() || self.channel.arrived()
    }

    /// Whether the limit is reached, or the measurement is ended. A time that was too short for a single message is
    /// extended, so that a busy machine gives a figure as well.
    pub(super) fn over(&mut self, begin: Instant, now: Instant, done: u64) -> bool {
        let reached = match self.limit {
            Limit::Time(t) => now - begin >= t && (done > 0 || now - begin >= t + MAX_EXTENSION),
            Limit::Count(n) => done >= n,
        };
        self.channel.heartbeat(now);
        if done != self.moved.0 {
            self.moved = (done, now);
        }
        reached || self.cut_short() || now - self.moved.1 > self.patience
    }

    /// Whether a message still belongs to the warm-up.
    pub(super) fn warming(&self, turns: u64, passed: Duration) -> bool {
        let early = match self.limit {
            Limit::Time(t) => passed < t / 4,
            Limit::Count(_) => true,
        };
        turns <= WARM_UP && early
    }
}

/// One measurement under way.
struct Run<'a> {
    side: &'a mut Side,
    pace: Pace<'a>,
    case: &'a Case,
    /// How long one waits for a message of an unreliable service.
    lost_after: Duration,
    out: Measured,
}

impl<'a> Run<'a> {
    fn new(side: &'a mut Side, pace: Pace<'a>, case: &'a Case) -> Self {
        Self { side, pace, case, lost_after: LOST_AFTER, out: Measured::new() }
    }
    fn reliable(&self) -> bool {
        self.case.service == Service::Rc
    }

    /// One message at a time.
    fn latency(&mut self) -> Result<(), Failure> {
        let halves = if matches!(self.case.op, Op::Send | Op::Write) { 2 } else { 1 };
        let begin = Instant::now();
        let (mut t0, mut turns) = (begin, 0_u64);
        let (mut counted_from, mut stamps) = (begin, Stamps::new());
        loop {
            let answered = self.once(stamps.next(), t0)?;
            if !answered {
                stamps.lose();
            }
            let t1 = Instant::now();
            turns += 1;
            match answered {
                true if self.pace.warming(turns, t1 - begin) => counted_from = t1,
                true => {
                    self.out.latencies.saturating_record((t1 - t0).as_nanos() as u64 / halves);
                    self.out.messages += 1;
                }
                false => self.out.errors += u64::from(!self.pace.cut_short()),
            }
            if self.pace.over(begin, t1, self.out.messages) {
                break;
            }
            t0 = t1;
        }
        self.out.elapsed = counted_from.elapsed();
        Ok(())
    }

    /// Sends one message and waits for its end; `false`: it was lost, or the measurement is over.
    fn once(&mut self, stamp: u64, posted: Instant) -> Result<bool, Failure> {
        while !self.side.post(stamp)? {
            self.side.poll()?;
            self.pace.waits_since(posted)?;
            if self.pace.cut_short() {
                return Ok(false);
            }
        }
        let limit = if self.reliable() { self.pace.patience } else { self.lost_after };
        let (side, pace) = (&mut *self.side, &mut self.pace);
        let mut gone = false;
        let here = if self.case.op == Op::Write {
            let wanted = stamp & side.flag_mask();
            let flag = side.wait_flag(|flag| {
                gone = pace.waited(posted).is_some_and(|passed| passed > limit);
                flag == wanted || gone || pace.cut_short()
            });
            flag == wanted
        } else {
            loop {
                let polled = side.poll()?;
                let ended = match self.case.op {
                    Op::Send => side.is_answered(polled, stamp),
                    _ => polled.completed > 0,
                };
                if ended {
                    break true;
                }
                gone = pace.waited(posted).is_some_and(|passed| passed > limit);
                if gone || pace.cut_short() {
                    break false;
                }
            }
        };
        if gone && !here && self.reliable() {
            return Err(PairError::Stalled(limit).into());
        }
        Ok(here)
    }

    /// As many as the queue takes.
    fn stream(&mut self) -> Result<(), Failure> {
        let begin = Instant::now();
        let mut looks = 0_u32;
        loop {
            let (posted, _) = self.side.counts();
            let budget = match self.pace.limit {
                Limit::Count(n) => n - posted,
                Limit::Time(_) => u64::MAX,
            };
            let newly = self.side.post_many(budget)?;
            let polled = self.side.poll()?;
            looks = looks.wrapping_add(1);
            let look = looks.is_multiple_of(16) || polled.completed == 0;
            if look && self.pace.over(begin, Instant::now(), posted + newly) {
                break;
            }
        }
        self.drain()?;
        self.out.elapsed = begin.elapsed();
        let (posted, completed) = self.side.counts();
        self.out.messages = completed;
        self.out.errors += posted - completed;
        Ok(())
    }

    /// Waits until all that was posted is complete.
    fn drain(&mut self) -> Result<(), Failure> {
        let begin = Instant::now();
        let mut asked = self.side.finish()?;
        while begin.elapsed() < DRAIN_LIMIT && !self.pace.cut_short() {
            let (posted, completed) = self.side.counts();
            if asked && completed == posted {
                break;
            }
            self.side.poll()?;
            self.pace.heartbeat();
            asked = asked || self.side.finish()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Answers WRITEs, but keeps the answer to one, which it sends in the place of a later one: just before a stamp of
    /// the same byte would come. Returns how often it saw the stamp of the kept one.
    fn answer_one_late(mut far: Side, over: &AtomicBool) -> u64 {
        const KEPT: u64 = 20;
        let (mut last, mut kept) = (0, 0);
        loop {
            let flag = far.wait_flag(|flag| flag != last || over.load(Ordering::Relaxed));
            if flag == last {
                return kept;
            }
            last = flag;
            kept += u64::from(flag == KEPT);
            if flag != KEPT {
                while !far.post(flag).unwrap() {
                    far.poll().unwrap();
                }
            }
            if flag == KEPT - 1 && kept > 0 {
                assert!(far.post(KEPT).unwrap());
            }
        }
    }

    #[test]
    fn a_late_answer_to_a_write_of_a_byte_is_not_that_to_a_later_message() {
        const MESSAGES: u64 = 300;
        let device = "loopback://late-writes?progress=inline".parse().unwrap();
        let opened = hca::open_exactly(&device).unwrap();
        let case = Case { op: Op::Write, service: Service::Uc, size: Size::of(1), foreign: false };
        let side = || Side::new(&opened, &case, Phase::Latency).unwrap();
        let (mut near, mut far) = (side(), side());
        let (a, b) = (near.endpoint(), far.endpoint());
        near.connect(&b, Mtu::B1024).unwrap();
        far.connect(&a, Mtu::B1024).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut channel = Channel::over_tcp(&stream, None).unwrap();
        let pace = Pace::new(&mut channel, Limit::Count(MESSAGES), case.size);
        let over = Arc::<AtomicBool>::default();
        let ends = Arc::clone(&over);
        let far = std::thread::spawn(move || answer_one_late(far, &ends));
        let mut run = Run::new(&mut near, pace, &case);
        // As long as a busy machine may take for most of the others.
        run.lost_after = Duration::from_secs(1);
        let done = run.latency();
        over.store(true, Ordering::Relaxed);
        assert_eq!(far.join().unwrap(), 1, "the stamp is not used again");
        done.unwrap();
        assert_eq!(run.out.messages, MESSAGES);
        assert!(run.out.errors >= 1);
    }
}
