//! `hca pingpong`: bounces messages with another host, as `ibv_rc_pingpong`, `ibv_uc_pingpong` and
//! `ibv_ud_pingpong` do, so that either end may be that program on another vendor's adapter.
//!
//! Both ends post `rx_depth` receive requests, exchange addresses over TCP ([`exchange`]) or by RDMA CM ([`cm`]), and
//! then bounce messages: the client sends first, and each end sends the next message once its last one has completed
//! and the other end's message has arrived.

mod cm;
pub(crate) mod exchange;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use hca::cm::Connection;
use hca::{Opened, Target, open_exactly};
use hca_core::{Access, AddressVector, AsyncEvent, Mtu, Qkey, QpType};
use hca_perf::interrupt::{SLICE, interrupted, unless_interrupted};
use hca_perf::{Failure, Service};
use hca_verbs::{
    Buf, CompletionQueue, Completions, ConnectOptions, Connected, Endpoint, FrozenBuf, OfferedBy, Pd,
    QueuePair, Rc, SendRequest, Service as VerbsService, Uc, Ud, UdPeer, WcError, WcStatus, ops,
};
use thiserror::Error;

use self::exchange::Dest;
use crate::args::PingpongArgs;
use crate::output::{show, tell};
use crate::perf::device_or;

/// TCP port of the exchange in `ibv_*_pingpong`.
pub(crate) const DEFAULT_PORT: u16 = 18515;
/// The Q_Key of `ibv_ud_pingpong`.
const QKEY: Qkey = Qkey::new(0x1111_1111);
/// What `ibv_*_pingpong` fills its buffer with.
const PATTERN: u8 = 0x7b;
/// With `-c` they zero the first byte of each page of so many bytes.
const PAGE: usize = 4096;
/// Bytes before each datagram.
const GRH_BYTES: usize = 40;
/// Message size of `ibv_rc_pingpong` and `ibv_uc_pingpong`.
const DEFAULT_SIZE: u64 = 4096;
/// Message size of `ibv_ud_pingpong`, whose help says 2048: that was until 2019.
const DEFAULT_UD_SIZE: u64 = 1024;
/// The time without a message after which the other end is considered gone, or (uc, ud) a message lost.
const STALL: Duration = Duration::from_secs(10);

/// The reason why two ends do not bounce.
#[derive(Debug, Error)]
enum PingpongError {
    #[error(
        "no program listens at {host}:{port}: {source}; start `hca pingpong {service} --listen` or ibv_{service}_pingpong there first, and give the address and --port that it prints"
    )]
    Connect { host: String, port: u16, service: Service, source: std::io::Error },
    #[error(
        "no address of {host} is found: {source}; give an IP address, or a name that `getent hosts` knows"
    )]
    Host { host: String, source: std::io::Error },
    #[error(
        "can't listen on {address}: {source}; end the program that uses the port, or give both ends another --port; --bind chooses an address of this machine"
    )]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error(
        "no connection by RDMA CM to {host}:{port}: {source}; start `hca pingpong {service} --cm --listen` there first, and give the address and --port that it prints"
    )]
    Cm { host: String, port: u16, service: Service, source: hca::cm::ConnectionError },
    #[error(
        "can't listen by RDMA CM on port {port}: {source}; end the program that uses the port, or give both ends another --port"
    )]
    CmListen { port: u16, source: hca::cm::ConnectionError },
    #[error("the request of the other end has no queue pair number: start `hca pingpong ud --cm` there")]
    CmNumber,
    #[error("ended by Ctrl-C")]
    Interrupted,
    #[error("a datagram carries at most {mtu} bytes on this path: give both ends --size {mtu} or less")]
    TooLong { mtu: u32 },
    #[error("no message arrived for {STALL:?} after {received} of {iters}: {advice}")]
    Stalled { received: u32, iters: u32, advice: &'static str },
    #[error(
        "{source}; the other end may use another path MTU ({mtu} here, --mtu) or another --size: give both ends the same"
    )]
    Completion { source: WcError, mtu: u32 },
    #[error("a message of {len} bytes arrived, not {size}: give both ends the same --size")]
    Size { len: u32, size: u32 },
    #[error(
        "byte {at} of message {message} is {found:#04x}, not {PATTERN:#04x}: the message was damaged on the way, or the other end is not ibv_*_pingpong or `hca pingpong`, which fill messages with this byte; without --chk the bytes are not checked"
    )]
    Data { at: usize, message: u32, found: u8 },
}

/// Runs the command.
pub(crate) fn pingpong(args: &PingpongArgs) -> Result<(), Failure> {
    let opened = open_exactly(&device_or(&args.device, Target::Auto(None))?)?;
    if let Some(note) = opened.stand_in() {
        tell!("note: {note}");
    }
    if let Some(index) = args.gid_idx {
        // All of them lead to the one address that the device has.
        opened.device().query_gid(index)?;
    }
    let done = match args.service {
        Service::Rc => connected::<Rc>(args, &opened),
        Service::Uc => connected::<Uc>(args, &opened),
        Service::Ud => datagrams(args, &opened),
    };
    opened.finish_capture()?;
    done
}

/// What both kinds of service share: queues, buffers, counts.
struct Bounce<S: VerbsService> {
    qp: QueuePair<S>,
    cq: CompletionQueue,
    source: FrozenBuf,
    /// Receive buffers that are not posted.
    free: Vec<Buf>,
    size: u32,
    rx_depth: usize,
    /// Path MTU of this end in bytes.
    mtu: u32,
    /// Whether received bytes are checked.
    chk: bool,
    /// The other end ends a connection by RDMA CM once it has the last message.
    parts: bool,
}

impl<S: VerbsService> Bounce<S> {
    fn new(args: &PingpongArgs, pd: &Pd, size: u64, headroom: usize, mtu: u32) -> Result<Self, Failure> {
        let depth = args.rx_depth;
        let cq = pd.context().create_cq(depth + 1)?;
        let builder = pd.qp::<S>(&cq).max_send_wr(1).max_recv_wr(depth).max_send_sge(1).max_recv_sge(1);
        let qp = builder.access(Access::empty()).build()?;
        let mut source = pd.alloc(size as usize)?;
        source.fill(PATTERN);
        if args.chk {
            source.iter_mut().step_by(PAGE).for_each(|first| *first = 0);
        }
        let free = pd.alloc_many(depth as usize, size as usize + headroom)?;
        let (source, size, rx_depth) = (source.freeze(), size as u32, depth as usize);
        let mut bounce = Self { qp, cq, source, free, size, rx_depth, mtu, chk: args.chk, parts: args.cm };
        bounce.post_receives()?;
        Ok(bounce)
    }

    fn post_receives(&mut self) -> Result<(), Failure> {
        let mut batch = self.qp.recv_batch();
        for buf in self.free.drain(..) {
            batch.post_recv(buf).map_err(|refused| refused.error)?;
        }
        Ok(())
    }

    /// Bounces `iters` messages in each direction; returns how long it took.
    fn run(
        &mut self,
        iters: u32,
        first: bool,
        headroom: u32,
        mut send: impl FnMut(&mut QueuePair<S>, FrozenBuf) -> Result<(), Failure>,
    ) -> Result<Duration, Failure> {
        let mut wcs = Completions::with_capacity(16);
        let (mut sent, mut received) = (0, 0);
        // The next send waits for the last one's completion, and for the other end's message.
        let (mut sending, mut waiting) = (false, true);
        if first {
            send(&mut self.qp, self.source.clone())?;
            sending = true;
        }
        let begin = Instant::now();
        let mut moved = begin;
        while (received < iters || sent < iters) && !interrupted() {
            let mut any = false;
            for wc in self.cq.poll(&mut wcs) {
                any = true;
                // An end that has the last message may end the connection before it acknowledges: rxe delivers first.
                if wc.status == WcStatus::WrFlushed && self.parts && received == iters && sent + 1 >= iters {
                    sent += u32::from(!wc.opcode.is_recv());
                    continue;
                }
                let mut wc = wc.ok().map_err(|source| PingpongError::Completion { source, mtu: self.mtu })?;
                if wc.opcode.is_recv() {
                    if wc.byte_len != self.size + headroom {
                        let len = wc.byte_len.saturating_sub(headroom);
                        return Err(PingpongError::Size { len, size: self.size }.into());
                    }
                    received += 1;
                    let buf = wc.take_buf().expect("a receive request has its buffer");
                    if self.chk {
                        check(&buf[headroom as usize..], received)?;
                    }
                    self.free.push(buf);
                    waiting = false;
                } else {
                    sent += 1;
                    sending = false;
                }
                if sent < iters && !sending && !waiting {
                    send(&mut self.qp, self.source.clone())?;
                    (sending, waiting) = (true, true);
                }
            }
            if self.free.len() * 2 > self.rx_depth {
                self.post_receives()?;
            }
            if any {
                moved = Instant::now();
            } else if moved.elapsed() > STALL {
                let advice = match S::TYPE {
                    QpType::Rc | QpType::XrcIni | QpType::XrcTgt | QpType::Rd | QpType::Eec => {
                        "see what the other end printed"
                    }
                    QpType::Uc => {
                        "this service loses messages, or the other end uses another path MTU (--mtu), size or count; start both again"
                    }
                    QpType::Ud => {
                        "this service loses messages, or the other end uses another size or count; start both again"
                    }
                };
                return Err(PingpongError::Stalled { received, iters, advice }.into());
            }
        }
        Ok(begin.elapsed())
    }
}

/// Fails unless the bytes are those with which all ends fill their messages.
fn check(bytes: &[u8], message: u32) -> Result<(), PingpongError> {
    // The other end zeroed bytes only if it checks, too.
    let wrong = |(at, found): &(usize, &u8)| **found != PATTERN && (at % PAGE != 0 || **found != 0);
    let found = bytes.iter().enumerate().find(wrong);
    found.map_or(Ok(()), |(at, &found)| Err(PingpongError::Data { at, message, found }))
}

/// RC and UC.
fn connected<S: Connected>(args: &PingpongArgs, opened: &Opened) -> Result<(), Failure>
where
    ops::Send: OfferedBy<S>,
    ops::Write: OfferedBy<S>,
{
    let pd = opened.context().alloc_pd()?;
    let size = args.size.map_or(DEFAULT_SIZE, |s| s.bytes());
    let mut bounce: Bounce<S> = Bounce::new(args, &pd, size, 0, args.mtu.bytes())?;
    let own = bounce.qp.endpoint();
    let control = bounce.qp.control();
    let by_tcp = |theirs: &Dest| {
        let options = ConnectOptions { mtu: Some(args.mtu), rd_atomic: Some(1), ..ConnectOptions::default() };
        let remote = Endpoint {
            service: S::TYPE,
            qpn: theirs.qpn(),
            psn: theirs.psn(),
            mtu: Mtu::B4096,
            rd_atomic: 1,
            gid: theirs.gid(),
            lid: theirs.lid(),
        };
        Ok(control.connect(&remote, &options)?)
    };
    let meeting = meet(args, &own, || match args.cm {
        true => cm::connected(args, opened, &control),
        false => learn(args, opened, &own, &by_tcp),
    })?;
    let send = |qp: &mut QueuePair<S>, source| Ok(qp.send(source).map_err(|r| r.error)?);
    let took = bounce.run(args.iters, meeting.client, 0, send);
    let took = took.inspect_err(|_| tell_events(opened))?;
    finish(args, &own, &meeting.theirs, size, took)?;
    linger(&mut bounce.cq);
    cm::part(meeting)
}

/// UD.
fn datagrams(args: &PingpongArgs, opened: &Opened) -> Result<(), Failure> {
    let pd = opened.context().alloc_pd()?;
    let mtu = opened.mtu().bytes();
    let size = args.size.map_or(DEFAULT_UD_SIZE.min(mtu.into()), |s| s.bytes());
    if size > mtu.into() {
        return Err(PingpongError::TooLong { mtu }.into());
    }
    let mut bounce: Bounce<Ud> = Bounce::new(args, &pd, size, GRH_BYTES, mtu)?;
    let own = bounce.qp.endpoint();
    let control = bounce.qp.control();
    let mut qkey = QKEY;
    let meeting = meet(args, &own, || {
        if args.cm {
            let (meeting, theirs) = cm::datagrams(args, opened, &control)?;
            qkey = theirs;
            return Ok(meeting);
        }
        learn(args, opened, &own, &|_: &Dest| Ok(control.activate(QKEY)?))
    })?;
    let theirs = &meeting.theirs;
    let av = AddressVector { dgid: theirs.gid(), dlid: theirs.lid(), ..AddressVector::default() };
    let peer: UdPeer = pd.create_ah(&av)?.peer(theirs.qpn(), qkey);
    let took = bounce.run(args.iters, meeting.client, GRH_BYTES as u32, |qp, source| {
        Ok(qp.post_send(SendRequest::send(source).to(&peer)).map_err(|r| r.error)?)
    });
    let took = took.inspect_err(|_| tell_events(opened))?;
    finish(args, &own, theirs, size, took)?;
    Ok(())
}

/// The other end, once both know of each other.
struct Meeting {
    theirs: Dest,
    /// Whether this end called, and sends first.
    client: bool,
    /// The connection by RDMA CM.
    connection: Option<Connection>,
}

/// Prints both ends around their meeting.
fn meet(
    args: &PingpongArgs,
    own: &Endpoint,
    meet: impl FnOnce() -> Result<Meeting, Failure>,
) -> Result<Meeting, Failure> {
    if !args.json {
        show!("  local address:  {}", describe(&Dest::of(own)));
    }
    let meeting = meet()?;
    if !args.json {
        show!("  remote address: {}", describe(&meeting.theirs));
    }
    Ok(meeting)
}

/// Learns of the other end over TCP and has `connect` make the queue pair ready at the right moment.
fn learn(
    args: &PingpongArgs,
    opened: &Opened,
    own: &Endpoint,
    connect: &dyn Fn(&Dest) -> Result<(), Failure>,
) -> Result<Meeting, Failure> {
    let dest = Dest::of(own);
    let theirs = match args.host() {
        Some(host) => {
            let mut stream = dial(args, host)?;
            let theirs = exchange::client(&mut stream, dest, exchange::LIMIT)?;
            connect(&theirs)?;
            theirs
        }
        None => exchange::server(&mut accept(args, opened, own)?, dest, exchange::LIMIT, connect)?,
    };
    Ok(Meeting { theirs, client: args.host().is_some(), connection: None })
}

/// Says where this end waits: on standard error, so that `--json` has standard output to itself.
fn tell_waiting(args: &PingpongArgs, at: SocketAddr, known: Option<IpAddr>) {
    let service = args.service;
    let host = known.map_or_else(|| "THIS-HOST".to_owned(), |ip| ip.to_string());
    let port = if at.port() == DEFAULT_PORT { String::new() } else { format!(" --port {}", at.port()) };
    let (cm, or) = match args.cm {
        true => (" --cm", String::new()),
        false => ("", format!(", or ibv_{service}_pingpong")),
    };
    tell!("waiting on {at}; start `hca pingpong {service}{cm} --connect {host}{port}`{or}");
}

/// Calls the other end; the stream's reads return after a slice of time.
fn dial(args: &PingpongArgs, host: &str) -> Result<TcpStream, PingpongError> {
    let (port, service) = (args.port, args.service);
    let refuse = |source| PingpongError::Connect { host: host.to_owned(), port, service, source };
    let called = host.to_owned();
    let call = move || -> Result<TcpStream, PingpongError> {
        let refuse = |source| PingpongError::Connect { host: called.clone(), port, service, source };
        let addresses = (called.as_str(), port).to_socket_addrs();
        let mut last = std::io::ErrorKind::AddrNotAvailable.into();
        for address in addresses.map_err(|source| PingpongError::Host { host: called.clone(), source })? {
            match TcpStream::connect_timeout(&address, STALL) {
                Ok(stream) => return Ok(stream),
                Err(e) => last = e,
            }
        }
        Err(refuse(last))
    };
    let stream =
        unless_interrupted(call).unwrap_or_else(|| Err(refuse(std::io::ErrorKind::Interrupted.into())))?;
    stream.set_read_timeout(Some(SLICE)).map_err(refuse)?;
    Ok(stream)
}

/// Waits for the other end on the device's own address, which the other end has to reach anyway, or on all addresses
/// where the device's is none of the kernel's. The stream's reads return after a slice of time.
fn accept(args: &PingpongArgs, opened: &Opened, own: &Endpoint) -> Result<TcpStream, Failure> {
    // An adapter behind vfio has addresses that the kernel does not know.
    let device = opened.soft().map(|_| own.gid.ip());
    let chosen = args.bind.or(device).unwrap_or(Ipv6Addr::UNSPECIFIED.into());
    let address = SocketAddr::new(chosen, args.port);
    let refuse = |source| PingpongError::Listen { address, source };
    let listener = TcpListener::bind(address).map_err(refuse)?;
    listener.set_nonblocking(true).map_err(refuse)?;
    let here = listener.local_addr().map_err(refuse)?;
    let known = Some(here.ip()).filter(|ip| !ip.is_unspecified()).or(device);
    tell_waiting(args, here, known);
    loop {
        match listener.accept() {
            Ok((stream, from)) => {
                tell!("called by {from}");
                stream.set_nonblocking(false).map_err(refuse)?;
                stream.set_read_timeout(Some(SLICE)).map_err(refuse)?;
                return Ok(stream);
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock && !interrupted() => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(e) => return Err(refuse(e).into()),
        }
    }
}

fn describe(dest: &Dest) -> String {
    format!(
        "LID 0x{:04x}, QPN 0x{:06x}, PSN 0x{:06x}, GID {}",
        dest.lid().raw(),
        dest.qpn().raw(),
        dest.psn().raw(),
        dest.gid()
    )
}

fn finish(
    args: &PingpongArgs,
    own: &Endpoint,
    theirs: &Dest,
    size: u64,
    took: Duration,
) -> Result<(), Failure> {
    if interrupted() {
        return Ok(());
    }
    let (seconds, iters) = (took.as_secs_f64(), f64::from(args.iters));
    let bytes = size * u64::from(args.iters) * 2;
    if args.json {
        let row = serde_json::json!({
            "service": args.service,
            "size": size,
            "iters": args.iters,
            "seconds": seconds,
            "usec_per_iter": seconds * 1e6 / iters,
            "mbit_per_s": bytes as f64 * 8.0 / seconds / 1e6,
            "local_gid": own.gid.to_string(),
            "remote_gid": theirs.gid().to_string(),
        });
        show!("{row}");
        return Ok(());
    }
    show!("{bytes} bytes in {seconds:.2} seconds = {:.2} Mbit/sec", bytes as f64 * 8.0 / seconds / 1e6);
    show!("{} iters in {seconds:.2} seconds = {:.2} usec/iter", args.iters, seconds * 1e6 / iters);
    Ok(())
}

/// Prints asynchronous events, which no completion reports.
fn tell_events(opened: &Opened) {
    while let Some(event) = opened.context().poll_event() {
        let what = match event {
            // That is how every conversation begins.
            AsyncEvent::CommEstablished(_) => continue,
            AsyncEvent::QpRequestError(_) => "the other end sent a request that does not fit this queue pair",
            AsyncEvent::QpAccessError(_) => "the other end was refused access",
            AsyncEvent::QpFatal(_) => "the queue pair has an error that no request reports",
            AsyncEvent::CqOverrun(_) => "the completion queue was full",
            AsyncEvent::PortAddressChanged => "the port has another LID or GID",
            _ => "the device reports",
        };
        tell!("event: {what} ({event:?})");
    }
}

/// Keeps the device running for a moment, to repeat acknowledgements that the other end may have missed.
fn linger(cq: &mut CompletionQueue) {
    let mut wcs = Completions::with_capacity(1);
    // Nothing more completes; the waiting itself turns the device.
    let _ = cq.wait(&mut wcs, Some(Duration::from_millis(100)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that bounces so many messages of a byte with a client that ends the connection instead of acknowledging
    /// the message of this number; whether the server fails.
    fn fails(parts: bool, iters: u32, unacknowledged: u32) -> bool {
        // Both ends move by calls only. The client is called before the server's message is sent, and not after that.
        let net = format!("loopback://pingpong-{parts}-{iters}-{unacknowledged}?progress=inline");
        let ends = [(); 2].map(|()| {
            let opened = open_exactly(&net.parse().unwrap()).unwrap();
            let pd = opened.context().alloc_pd().unwrap();
            let cq = pd.context().create_cq(16).unwrap();
            let qp = pd.qp::<Rc>(&cq).max_send_wr(1).max_recv_wr(4).build().unwrap();
            let (source, free) = (pd.alloc(1).unwrap().freeze(), pd.alloc_many(4, 1).unwrap());
            let mut bounce =
                Bounce { qp, cq, source, free, size: 1, rx_depth: 4, mtu: 1024, chk: false, parts };
            bounce.post_receives().unwrap();
            bounce
        });
        let endpoints = ends.each_ref().map(|end| end.qp.endpoint());
        for n in 0..2 {
            ends[n].qp.control().connect(&endpoints[1 - n], &ConnectOptions::default()).unwrap();
        }
        let [mut server, mut client] = ends;
        let mut said = 0;
        let mut wcs = Completions::with_capacity(16);
        let say = |client: &mut Bounce<Rc>| client.qp.send(client.source.clone()).unwrap();
        say(&mut client);
        let bounced = server.run(iters, false, 0, |qp, source| {
            client.cq.poll(&mut wcs);
            qp.send(source).map_err(|refused| refused.error)?;
            said += 1;
            if said == unacknowledged {
                qp.control().to_error()?;
                return Ok(());
            }
            // The message comes, and the answer leaves.
            client.cq.poll(&mut wcs);
            if said < iters {
                say(&mut client);
            }
            Ok(())
        });
        bounced.is_err()
    }

    #[test]
    fn the_last_message_of_a_connection_by_rdma_cm_need_not_be_acknowledged() {
        assert!(!fails(true, 2, 2));
        assert!(fails(true, 2, 1), "the other end goes in the middle");
        assert!(fails(false, 2, 2), "nobody ends a connection but by RDMA CM");
        assert!(!fails(false, 2, 3), "all are acknowledged");
    }

    #[test]
    fn a_message_is_the_pattern_but_for_the_first_bytes_of_pages_of_an_end_that_checks() {
        let mut bytes = vec![PATTERN; 3 * PAGE + 5];
        check(&bytes, 1).unwrap();
        for at in [0, PAGE, 3 * PAGE] {
            bytes[at] = 0;
        }
        check(&bytes, 1).unwrap();
        for (at, found) in [(0, 1), (1, 0), (PAGE - 1, 0), (PAGE, 0x7c), (3 * PAGE + 4, 0)] {
            let mut wrong = bytes.clone();
            wrong[at] = found;
            let said = check(&wrong, 9).unwrap_err().to_string();
            assert!(said.contains(&format!("byte {at} of message 9 is {found:#04x}, not 0x7b")), "{said}");
        }
    }
}
