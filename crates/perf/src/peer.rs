//! The answering side: it executes the requests of the measuring side over the control channel.

use std::fs::File;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use hca::{DeviceUrl, Opened, open_exactly};
use hca_core::Mtu;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use softhca::Progress;

use super::channel::{Channel, ControlError};
use super::control::{Endpoint, FromPeer, PROTOCOL, Phase, ToPeer};
use super::plan::{Case, Memory, Op, Service};
use super::portals::serve::Seat;
use super::run::DRAIN_LIMIT;
use super::side::{Side, stamp};
use crate::Failure;
use crate::probe;

/// Datagrams that are under way when the stop comes arrive within this time.
const LINGER: Duration = Duration::from_millis(2);

/// How long another host may take to begin: it says hello as soon as it has its device.
const HELLO_LIMIT: Duration = Duration::from_secs(3);
/// How long another host may be silent when it is its turn. While it measures it says each second that it does.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);

/// The peer of a measurement, as the measuring process starts it.
#[derive(Clone, Debug, Parser)]
pub struct PeerArgs {
    /// The device to open
    pub device: DeviceUrl,
    /// The network namespace to be in
    #[arg(long)]
    pub netns: Option<PathBuf>,
    /// The CPU to be bound to
    #[arg(long)]
    pub cpu: Option<usize>,
}

/// The limits of requests of the measuring side; `None` is no limit, as for the parent process.
#[derive(Clone, Copy, Default)]
pub(super) struct Limits {
    /// How long it may take to begin.
    hello: Option<Duration>,
    /// Memory that one measurement may take here, in bytes.
    memory: Option<u64>,
}

impl Limits {
    /// No more memory than this, for as long as it takes.
    #[cfg(any(test, fuzzing))]
    pub(super) fn of_memory(bytes: u64) -> Self {
        Self { hello: None, memory: Some(bytes) }
    }

    /// Fails if a measurement takes more memory than this side gives.
    pub(super) fn admit(&self, bytes: u64) -> Result<(), ControlError> {
        match self.memory.filter(|&given| bytes > given) {
            Some(given) => Err(ControlError::Memory { needed: bytes.div_ceil(1 << 20), given: given >> 20 }),
            None => Ok(()),
        }
    }
}

/// The time during which this side still receives messages after it was asked to stop.
#[derive(Default)]
pub(super) struct Drain(Option<Instant>);

impl Drain {
    /// Whether it takes too long, from the first call on.
    pub(super) fn is_long(&mut self) -> bool {
        self.0.get_or_insert_with(Instant::now).elapsed() > DRAIN_LIMIT
    }
}

/// Serves the process that started this one, over standard input and output, as its arguments say. That process tells
/// what fails here: the namespace can't be entered, or the device or the CPU is not available.
///
/// # Errors
/// The channel broke.
pub fn serve_standard_streams(args: &PeerArgs) -> Result<(), Failure> {
    let mut channel = Channel::new(std::io::stdin(), std::io::stdout(), None)?.outliving_ctrl_c();
    if let Err(why) = settle(args) {
        return Ok(channel.send(&FromPeer::Failed { why: why.to_string().into() })?);
    }
    serve(channel, &args.device, Limits::default())
        .or_else(|e| if is_of_the_channel(&e) { Err(e) } else { Ok(()) })
}

/// Whether the other side was not told of a failure.
fn is_of_the_channel(e: &Failure) -> bool {
    matches!(e.downcast_ref(), Some(ControlError::Closed))
}

/// Goes where the arguments say.
fn settle(args: &PeerArgs) -> Result<(), Failure> {
    if let Some(path) = &args.netns {
        enter(path).map_err(|e| {
            format!(
                "the network namespace {} can't be entered: {e}; `ip netns add NAME` makes one, and root may enter it",
                path.display()
            )
        })?;
    }
    args.cpu.map_or(Ok(()), probe::pin)?;
    Ok(())
}

/// Moves this thread, and those that it starts, into a network namespace.
fn enter(path: &Path) -> std::io::Result<()> {
    let namespace = File::open(path)?;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Serves a measuring process on another host. The call gives up on a silent process, since the next one waits.
///
/// # Errors
/// The channel broke, the device can't be opened, or the other side sent a message out of turn.
pub fn serve_stream(stream: &TcpStream, device: &DeviceUrl, memory: Memory) -> Result<(), Failure> {
    stream.set_nonblocking(false)?;
    let channel = Channel::over_tcp(stream, Some(SILENCE_LIMIT))?;
    let served = serve(channel, device, Limits { hello: Some(HELLO_LIMIT), memory: Some(memory.0) });
    // The thread that reads ends with the connection; one that broke is no error of its own.
    let _ = stream.shutdown(Shutdown::Both);
    served
}

/// Serves one conversation. A failure is sent to the other side as well.
fn serve(mut channel: Channel<ToPeer>, device: &DeviceUrl, limits: Limits) -> Result<(), Failure> {
    let served = converse(&mut channel, device, &limits);
    if let Err(e) = &served
        && !is_of_the_channel(e)
    {
        // If the channel itself broke, the failure can't be sent.
        let _ = channel.send(&FromPeer::Failed { why: e.to_string().into() });
    }
    served
}

fn converse(channel: &mut Channel<ToPeer>, device: &DeviceUrl, limits: &Limits) -> Result<(), Failure> {
    match channel.recv(limits.hello)? {
        ToPeer::Hello { protocol: PROTOCOL } => {}
        ToPeer::Hello { protocol } => return Err(ControlError::Version { theirs: protocol }.into()),
        other => return Err(ControlError::OutOfTurn(format!("{other:?}")).into()),
    }
    let opened = open_exactly(device)?;
    channel.send(&FromPeer::Hello { protocol: PROTOCOL, mtu: opened.mtu() })?;
    let served = measurements(channel, &opened, limits);
    // The capture is kept, however the measurement ended.
    opened.finish_capture()?;
    served
}

/// Serves measurements until the other side has had enough.
fn measurements(channel: &mut Channel<ToPeer>, opened: &Opened, limits: &Limits) -> Result<(), Failure> {
    let mut seat = None;
    loop {
        match channel.recv(None)? {
            ToPeer::Node { settings, card } => {
                drop(seat.take());
                seat = Some(Seat::open(channel, opened, settings, card, limits)?);
            }
            ToPeer::Move { case, phase } => match &seat {
                Some(seat) => seat.measurement(channel, opened, &case, phase, limits)?,
                None => return Err(ControlError::OutOfTurn("a move without a node".to_owned()).into()),
            },
            ToPeer::Prepare { case, phase, mtu, endpoint, cm } => {
                limits.admit(Side::memory(&case, phase))?;
                let mut side = Side::new(opened, &case, phase)?;
                meet(channel, &mut side, mtu, &endpoint, cm)?;
                measurement(channel, opened, &case, phase, side)?;
            }
            ToPeer::Bye => return Ok(()),
            other => return Err(ControlError::OutOfTurn(format!("{other:?}")).into()),
        }
    }
}

/// Connects to the measuring side, which learns of this one.
fn meet(
    channel: &mut Channel<ToPeer>,
    side: &mut Side,
    mtu: Mtu,
    theirs: &Endpoint,
    cm: bool,
) -> Result<(), Failure> {
    let endpoint = side.endpoint();
    if cm {
        let callable = side.listen()?;
        channel.send(&FromPeer::Ready { endpoint, port: Some(callable.port()) })?;
        return side.be_called(&callable, theirs);
    }
    side.connect(theirs, mtu)?;
    Ok(channel.send(&FromPeer::Ready { endpoint, port: None })?)
}

fn measurement(
    channel: &mut Channel<ToPeer>,
    opened: &Opened,
    case: &Case,
    phase: Phase,
    mut side: Side,
) -> Result<(), Failure> {
    let (received, errors) = match (case.op, phase) {
        (Op::Send, Phase::Latency) => echo(channel, &mut side)?,
        (Op::Send, Phase::Stream) => take(channel, &mut side, case.service)?,
        (Op::Write, Phase::Latency) => write_back(channel, &mut side)?,
        // Its WRITEs carry immediate data, so that arrivals can be counted.
        (Op::Write, Phase::Stream) if case.service == Service::Uc => take(channel, &mut side, case.service)?,
        _ => stand_by(channel, opened),
    };
    // A measurement takes as long as the other side wants, and an adapter's own thread may do all the work.
    match channel.recv(None)? {
        ToPeer::Stop => Ok(channel.send(&FromPeer::Done { received, errors })?),
        other => Err(ControlError::OutOfTurn(format!("{other:?}")).into()),
    }
}

/// Answers every message by one of the same number.
fn echo(channel: &Channel<ToPeer>, side: &mut Side) -> Result<(u64, u64), Failure> {
    let (mut received, mut owed) = (0, 0);
    while !channel.over() {
        owed += side.poll()?.received;
        while owed > 0 && side.post_answer(stamp(received + 1))? {
            owed -= 1;
            received += 1;
        }
    }
    Ok((received, 0))
}

/// Takes a stream of messages.
fn take(channel: &Channel<ToPeer>, side: &mut Side, service: Service) -> Result<(u64, u64), Failure> {
    let (mut received, mut idle_since, mut drain) = (0, None::<Instant>, Drain::default());
    loop {
        let n = side.poll()?.received;
        received += n;
        if !channel.over() {
            continue;
        }
        if drain.is_long() {
            return Ok((received, 0));
        }
        if n > 0 {
            idle_since = None;
        } else {
            let since = *idle_since.get_or_insert_with(Instant::now);
            if service == Service::Rc || since.elapsed() > LINGER {
                return Ok((received, 0));
            }
        }
    }
}

/// Answers every WRITE with one of the same stamp.
fn write_back(channel: &Channel<ToPeer>, side: &mut Side) -> Result<(u64, u64), Failure> {
    let mut last = 0;
    loop {
        let flag = side.wait_flag(|flag| flag != last || channel.over());
        if flag == last {
            return Ok((0, 0));
        }
        while !side.post(flag)? {
            side.poll()?;
            if channel.over() {
                return Ok((0, 0));
            }
        }
        last = flag;
    }
}

/// Makes the adapter's progress while the program is idle.
fn stand_by(channel: &Channel<ToPeer>, opened: &Opened) -> (u64, u64) {
    // An adapter's own thread would share the CPU with a loop here.
    while opened.progress() != Progress::Thread && !channel.over() {
        opened.context().turn();
    }
    (0, 0)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::control::NodeCard;
    use crate::portals::Settings;

    #[test]
    fn a_host_that_falls_silent_between_measurements_is_given_up_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let near = listener.accept().unwrap().0;
        let mut far: Channel<FromPeer> = Channel::over_tcp(&far, None).unwrap();
        let device = "loopback://silent?progress=inline".parse().unwrap();
        let serving = std::thread::spawn(move || {
            let channel = Channel::over_tcp(&near, Some(Duration::from_millis(20))).unwrap();
            serve(channel, &device, Limits::default()).unwrap_err().to_string()
        });
        far.send(&ToPeer::Hello { protocol: PROTOCOL }).unwrap();
        assert!(matches!(far.recv(None).unwrap(), FromPeer::Hello { .. }));
        let told = far.recv(None).unwrap();
        assert!(
            matches!(&told, FromPeer::Failed { why } if String::from(why.clone()).contains("sent nothing for 20ms")),
            "{told:?}"
        );
        assert!(serving.join().unwrap().contains("sent nothing"));
    }

    /// What the far end is told to its node, and to its measurement on that, by a listener that gives so much.
    fn told(memory: u64, size: u64) -> (FromPeer, Option<FromPeer>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let near = listener.accept().unwrap().0;
        let mut far: Channel<FromPeer> = Channel::over_tcp(&stream, None).unwrap();
        let device = format!("loopback://memory-{memory}?progress=inline").parse().unwrap();
        let serving = std::thread::spawn(move || {
            let channel = Channel::over_tcp(&near, None).unwrap();
            serve(channel, &device, Limits { memory: Some(memory), ..Limits::default() }).is_ok()
        });
        far.send(&ToPeer::Hello { protocol: PROTOCOL }).unwrap();
        assert!(matches!(far.recv(None).unwrap(), FromPeer::Hello { .. }));
        let mut card = [1; portals::Card::BYTES];
        // Numbers of queue pairs have 24 bits.
        card[24] = 0;
        let card = NodeCard(portals::Card::from_bytes(&card).unwrap());
        far.send(&ToPeer::Node { settings: Settings::default(), card }).unwrap();
        let node = far.recv(None).unwrap();
        let moved = matches!(node, FromPeer::Node { .. }).then(|| {
            let case = crate::portals::Case::new(Op::PutAck, size);
            far.send(&ToPeer::Move { case, phase: Phase::Latency }).unwrap();
            far.recv(None).unwrap()
        });
        stream.shutdown(std::net::Shutdown::Both).unwrap();
        serving.join().unwrap();
        (node, moved)
    }

    #[test]
    fn the_slots_of_a_node_count_to_what_a_measurement_takes() {
        const SIZE: u64 = 1 << 20;
        let slots = portals::NodeOptions::default().slot_bytes();
        let refused = |answer: &FromPeer| match answer {
            FromPeer::Failed { why } => String::from(why.clone()).contains("larger --memory"),
            _ => false,
        };
        let (node, _) = told(slots - 1, SIZE);
        assert!(refused(&node), "less than the slots: {node:?}");
        let (node, moved) = told(slots + 2 * SIZE - 1, SIZE);
        assert!(moved.as_ref().is_some_and(refused), "less than both: {node:?}, {moved:?}");
        let (node, moved) = told(slots + 2 * SIZE, SIZE);
        assert!(matches!(moved, Some(FromPeer::Listening)), "enough: {node:?}, {moved:?}");
    }
}
