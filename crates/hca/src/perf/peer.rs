//! The side that answers: it does what the measuring side asks for over the control channel.

use std::fs::File;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use hca_core::Mtu;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::control::{Channel, ControlError, Endpoint, FromPeer, PROTOCOL, Phase, ToPeer};
use super::plan::{Case, Op, Service};
use super::portals::serve::Seat;
use super::side::{Side, stamp};
use crate::cli::Failure;
use crate::open::{Opened, open_exactly};
use crate::probe;
use crate::url::DeviceUrl;
use softhca::Progress;

/// Datagrams that are under way when the stop comes arrive within this time.
const LINGER: Duration = Duration::from_millis(2);

/// The option of the peer's command that names the network namespace to be in.
pub(super) const NETNS_OPTION: &str = "--netns";
/// How long another host may take to begin: it says hello as soon as it has its device.
const HELLO_LIMIT: Duration = Duration::from_secs(3);
/// How long another host may be silent while nothing is measured.
const BETWEEN_LIMIT: Duration = Duration::from_secs(10);

/// How long the measuring side may be silent; `None` waits for as long as the channel is open.
#[derive(Clone, Copy, Default)]
struct Limits {
    hello: Option<Duration>,
    between: Option<Duration>,
}

/// Serves the process that started this one, over standard input and output, from within a network namespace if
/// one is given.
///
/// # Errors
/// The channel broke, the namespace can't be entered, or the device can't go on.
pub fn serve_standard_streams(netns: Option<&Path>) -> Result<(), Failure> {
    let mut channel = Channel::new(std::io::stdin(), std::io::stdout()).outliving_ctrl_c();
    if let Some(path) = netns
        && let Err(e) = enter(path)
    {
        let why = format!(
            "the network namespace {} can't be entered: {e}; `ip netns add NAME` makes one, and root may enter it",
            path.display()
        );
        channel.send(&FromPeer::Failed { why: why.clone() })?;
        return Err(why.into());
    }
    serve(channel, None, Limits::default())
}

/// Moves this thread, and those that it starts, into a network namespace.
fn enter(path: &Path) -> std::io::Result<()> {
    let namespace = File::open(path)?;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Serves a measuring process on another host. One that is silent is given up on, since the next one waits.
pub(super) fn serve_stream(stream: TcpStream, device: &DeviceUrl) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    let channel = Channel::new(stream.try_clone()?, stream.try_clone()?);
    let served =
        serve(channel, Some(device), Limits { hello: Some(HELLO_LIMIT), between: Some(BETWEEN_LIMIT) });
    // The thread that reads ends with the connection; one that broke is no error of its own.
    let _ = stream.shutdown(Shutdown::Both);
    served
}

/// Serves one conversation. A failure is told to the other side as well.
fn serve(mut channel: Channel<ToPeer>, device: Option<&DeviceUrl>, limits: Limits) -> Result<(), Failure> {
    let served = converse(&mut channel, device, limits);
    if let Err(e) = &served
        && !matches!(e.downcast_ref(), Some(ControlError::Closed))
    {
        // Where the channel itself broke, nobody is left to be told.
        let _ = channel.send(&FromPeer::Failed { why: e.to_string() });
    }
    served
}

fn converse(
    channel: &mut Channel<ToPeer>,
    device: Option<&DeviceUrl>,
    limits: Limits,
) -> Result<(), Failure> {
    let opened = match channel.recv(limits.hello)? {
        ToPeer::Hello { protocol: PROTOCOL, device: asked, cpu } => {
            if let Some(cpu) = cpu {
                probe::pin(cpu)?;
            }
            let opened = match (device, asked) {
                (Some(url), _) => open_exactly(url)?,
                (None, Some(text)) => open_exactly(&text.parse()?)?,
                (None, None) => open_exactly(&"udp://".parse()?)?,
            };
            let (device, mtu) = (opened.url().to_string(), opened.mtu().bytes());
            channel.send(&FromPeer::Hello { protocol: PROTOCOL, device, mtu, cpu })?;
            opened
        }
        ToPeer::Hello { protocol, .. } => return Err(ControlError::Version { theirs: protocol }.into()),
        other => return Err(ControlError::OutOfTurn(format!("{other:?}")).into()),
    };
    let served = measurements(channel, &opened, limits);
    // However it ended, what was captured is kept.
    opened.finish_capture()?;
    served
}

/// Serves measurements until the other side has had enough.
fn measurements(channel: &mut Channel<ToPeer>, opened: &Opened, limits: Limits) -> Result<(), Failure> {
    let mut seat = None;
    loop {
        match channel.recv(limits.between)? {
            ToPeer::Node { settings, card } => {
                drop(seat.take());
                seat = Some(Seat::open(channel, opened, settings, &card)?);
            }
            ToPeer::Move { case, phase } => match &seat {
                Some(seat) => seat.measurement(channel, opened, &case, phase)?,
                None => return Err(ControlError::OutOfTurn("a move without a node".to_owned()).into()),
            },
            ToPeer::Prepare { case, phase, mtu, endpoint } => {
                measurement(channel, opened, &case, phase, mtu, &endpoint)?;
            }
            ToPeer::Bye => return Ok(()),
            other => return Err(ControlError::OutOfTurn(format!("{other:?}")).into()),
        }
    }
}

fn measurement(
    channel: &mut Channel<ToPeer>,
    opened: &Opened,
    case: &Case,
    phase: Phase,
    mtu: u32,
    theirs: &Endpoint,
) -> Result<(), Failure> {
    if !case.service.offers(case.op) {
        return Err(ControlError::OutOfTurn(format!("{} over {}", case.op, case.service)).into());
    }
    let mtu = Mtu::from_bytes(mtu).ok_or_else(|| ControlError::OutOfTurn(format!("a path MTU of {mtu}")))?;
    let mut side = Side::new(opened, case, phase)?;
    side.connect(theirs, mtu)?;
    channel.send(&FromPeer::Ready { endpoint: side.endpoint() })?;
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

/// Sends every message back.
fn echo(channel: &Channel<ToPeer>, side: &mut Side) -> Result<(u64, u64), Failure> {
    let (mut received, mut owed) = (0, 0);
    while !channel.over() {
        owed += side.poll()?.received;
        while owed > 0 && side.post(stamp(received + 1))? {
            owed -= 1;
            received += 1;
        }
    }
    Ok((received, 0))
}

/// Takes a stream of messages.
fn take(channel: &Channel<ToPeer>, side: &mut Side, service: Service) -> Result<(u64, u64), Failure> {
    let (mut received, mut idle_since) = (0, None::<Instant>);
    loop {
        let n = side.poll()?.received;
        received += n;
        if n > 0 {
            idle_since = None;
        } else if channel.over() {
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

/// Lets the adapter work while nobody needs this program.
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

    #[test]
    fn a_host_that_falls_silent_between_measurements_is_given_up_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let near = listener.accept().unwrap().0;
        let mut far: Channel<FromPeer> = Channel::new(far.try_clone().unwrap(), far);
        let limits = Limits { hello: None, between: Some(Duration::from_millis(20)) };
        let device = "loopback://silent?progress=inline".parse().unwrap();
        let serving = std::thread::spawn(move || {
            let channel = Channel::new(near.try_clone().unwrap(), near);
            serve(channel, Some(&device), limits).unwrap_err().to_string()
        });
        far.send(&ToPeer::Hello { protocol: PROTOCOL, device: None, cpu: None }).unwrap();
        assert!(matches!(far.recv(None).unwrap(), FromPeer::Hello { .. }));
        let told = far.recv(None).unwrap();
        assert!(
            matches!(&told, FromPeer::Failed { why } if why.contains("said nothing for 20ms")),
            "{told:?}"
        );
        assert!(serving.join().unwrap().contains("said nothing"));
    }
}
