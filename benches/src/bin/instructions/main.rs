//! Counts the instructions of hot functions under callgrind and holds them against the record in
//! `benches/instructions.toml`: they repeat, whatever else the machine does.
//!
//! ```text
//! instructions            count, compare, print the differences; exit code 1 if anything got slower
//! instructions --update   count and write the record
//! instructions count CASE run one case, for callgrind
//! ```

mod border;
mod clock;
mod layers;
mod udp;

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use hca::am::Way;
use hca::{
    AsyncQp, Buf, CompletionQueue, Completions, ConnectOptions, Driver, Inline, OfferedBy, Opened, Pd,
    QueuePair, Rc, Reactor, RemoteMr, SendBatch, SendRequest, open_exactly,
};
use hca_benches::cost::{Counted, Counts, Verdict, count, judge, parse, render};
use hca_benches::matching::{Initiator, Target};
use hca_benches::portals;
use hca_benches::raw::RawEnd;
use hca_benches::served::serve;
use hca_core::Access;
use hca_core::wire::{ICRC_BYTES, Packet};
use hca_fabric::MeasuredIcrc;
use hca_matching::AckRequest;
use hca_perf::Failure;
use softhca::Patience;

/// How much a count may differ from its record.
const TOLERANCE: f64 = 0.03;
/// How often a case is counted that took more than its record: threads of a busy machine take turns in another order.
const TRIES: usize = 4;
/// Rounds of each case, of which the count is the mean.
const ROUNDS: u64 = 256;
/// Peers that take turns: more than are polled.
const PEERS: usize = 64;
/// Messages by one doorbell.
const BURST: u64 = 64;

/// Networks without a system call.
const LOOPBACK: &str = "loopback://count?progress=inline&acks=lazy";
const SHM: &str = "shm://count?progress=inline&acks=lazy";
/// By whose rings packets go, and no messages.
const SHM_PACKETS: &str = "shm://count?progress=inline&acks=lazy&mtu=4096";
/// With a thread, as connection managers would move an adapter without one at each message.
const SHM_THREAD: &str = "shm://count?acks=lazy";
/// One whose system calls are counted by what the program does around them.
const UDP: &str = "udp://?progress=inline&acks=lazy";

/// A case: its name, and what prepares and runs it.
type Case = (&'static str, fn());

const CASES: [Case; 43] = [
    ("packet_parse", packet_parse),
    ("icrc_64", || icrc(64)),
    ("icrc_4096", || icrc(4096)),
    ("post_send", post_send),
    ("post_recv", post_recv),
    ("poll_empty", || poll_empty(LOOPBACK)),
    ("rc_send_8", || rc_send(8)),
    ("rc_send_4096", || rc_send(4096)),
    ("rc_burst_8", || rc_burst(LOOPBACK)),
    ("udp_poll_empty", || poll_empty(UDP)),
    ("udp_ping_8", udp::ping),
    ("shm_ping_8", || shm_ping(SHM)),
    ("shm_packets_ping_8", || shm_ping(SHM_PACKETS)),
    ("shm_ping_raw_8", || shm_ping_raw(false)),
    ("shm_ping_raw_8_srq", || shm_ping_raw(true)),
    ("shm_turns_8", shm_turns),
    ("shm_burst_8", || rc_burst(SHM)),
    ("shm_packets_burst_8", || rc_burst(SHM_PACKETS)),
    ("shm_write_8", shm_write),
    ("shm_writes_8", shm_writes),
    ("async_shm_ping_8", async_shm_ping),
    ("async_shm_write_8", async_shm_write),
    ("shm_read_8", shm_read),
    ("shm_fetch_add", shm_fetch_add),
    ("shm_poll_empty", || poll_empty(SHM)),
    ("portals_shm_put_8", || portals_put(SHM)),
    ("portals_udp_put_8", || portals_put(UDP)),
    ("via_shm_ping_8", || layers::via_ping(SHM_THREAD)),
    ("am_shm_ping_8", || layers::am_ping(SHM_THREAD, Way::Verbs)),
    ("am_via_shm_ping_8", || layers::am_ping(SHM_THREAD, Way::Via)),
    ("am_shm_medium_4096", || layers::am_medium(SHM_THREAD, Way::Verbs)),
    ("am_via_shm_medium_4096", || layers::am_medium(SHM_THREAD, Way::Via)),
    ("global_shm_read_8", || layers::global(SHM_THREAD, false)),
    ("global_shm_write_8", || layers::global(SHM_THREAD, true)),
    ("match_put_1", || match_message(Target::persistent())),
    ("match_place_1", match_place),
    ("match_wild_1000", || match_message(Target::wild(1000, false))),
    ("match_once_1", || match_once(1)),
    ("match_once_100k", || match_once(100_000)),
    ("match_begin_sent", || match_begin(AckRequest::None)),
    ("match_begin_ack", || match_begin(AckRequest::Full)),
    ("match_sent_at_once", match_sent_at_once),
    ("mlx5_write_8", mlx5_write),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["count", case] => {
            // Valgrind is so slow that a short turn would always come late, that every yield would seem to find
            // company, and be followed by others, and that the program would seem to turn the engine no more.
            let tick_ns = 1_000_000_000;
            Patience { short_ticks: u32::MAX, looks: u32::MAX, tick_ns, ..Patience::default() }.set();
            run(case)
        }
        ["--update"] => check(true),
        [] => check(false),
        _ => Err("usage: instructions [--update | count CASE]".into()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            eprintln!("instructions: {e}");
            ExitCode::from(2)
        }
    }
}

fn run(name: &str) -> Result<bool, Failure> {
    let case = CASES.iter().find(|c| c.0 == name).ok_or_else(|| format!("there is no case {name}"))?;
    case.1();
    Ok(true)
}

fn check(update: bool) -> Result<bool, Failure> {
    let record = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.toml"));
    let recorded = match std::fs::read_to_string(&record) {
        Ok(text) => parse(&text)?,
        Err(_) if update => Counts::new(),
        Err(e) => return Err(format!("{}: {e}", record.display()).into()),
    };
    let (program, dir) = (std::env::current_exe()?, std::env::temp_dir());
    let program = program.to_str().ok_or("the path of this program is not text")?;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["case", "recorded", "counted", "difference", ""]);
    table.column_iter_mut().skip(1).take(3).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    let (mut counts, mut good) = (Counts::new(), true);
    let own = |name: &str| {
        let command = [program, "count", name];
        count(name, &Counted { command: &command, rounds: ROUNDS, of: None }, &dir)
    };
    for name in CASES.map(|case| case.0).into_iter().chain([border::CASE]) {
        let before = recorded.get(name).copied();
        let mut counted = u64::MAX;
        for _ in 0..TRIES {
            counted = counted.min(if name == border::CASE { border::count(&dir)? } else { own(name)? });
            if !update && judge(before, counted, TOLERANCE) != Verdict::Worse {
                break;
            }
        }
        let verdict = judge(before, counted, TOLERANCE);
        good &= verdict != Verdict::Worse;
        let difference = before.map(|b| format!("{:+.1} %", (counted as f64 / b as f64 - 1.0) * 100.0));
        table.add_row([
            name.to_owned(),
            before.map(|b| b.to_string()).unwrap_or_default(),
            counted.to_string(),
            difference.unwrap_or_default(),
            verdict.to_string(),
        ]);
        counts.insert(name.to_owned(), counted);
    }
    println!("{table}");
    if update {
        std::fs::write(&record, render(&counts))?;
        println!("written to {}", record.display());
    } else if !good {
        println!(
            "more instructions than recorded: find out why, or record them with `instructions --update`"
        );
    }
    Ok(good || update)
}

/// A SEND ONLY with 64 bytes of payload.
fn packet(payload: usize) -> Vec<u8> {
    let mut bytes = vec![0x04, 0x40, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0, 0, 7];
    bytes.resize(12 + payload, 0x5a);
    bytes
}

fn packet_parse() {
    let bytes = packet(64);
    for _ in 0..ROUNDS {
        counted_packet_parse(black_box(&bytes));
    }
}

#[inline(never)]
fn counted_packet_parse(bytes: &[u8]) {
    black_box(Packet::parse(bytes).is_ok());
}

fn icrc(payload: usize) {
    let ip = |n| IpAddr::V4(Ipv4Addr::new(127, 0, 0, n));
    let mut flow = MeasuredIcrc::new(ip(2), ip(3), 0xc000).expect("both are IPv4");
    let mut bytes = packet(payload + ICRC_BYTES);
    for _ in 0..ROUNDS {
        counted_icrc(&mut flow, black_box(&mut bytes));
    }
}

/// Put on by the sender, checked by the receiver.
#[inline(never)]
fn counted_icrc(flow: &mut MeasuredIcrc, bytes: &mut [u8]) {
    flow.seal(7, bytes.len(), bytes);
    black_box(flow.is_right(7, bytes));
}

/// One end of a connection inside of this process.
struct End {
    opened: Arc<Opened>,
    pd: Pd,
    cq: CompletionQueue,
    qp: QueuePair<Rc>,
    wcs: Completions,
}

impl End {
    /// Posts so many requests to receive `len` bytes.
    fn post_receives(&mut self, count: usize, len: usize) {
        for buf in self.pd.alloc_many(count, len).expect("there is memory") {
            self.qp.post_recv(buf).expect("the queue has room");
        }
    }
}

fn end(device: &str) -> Result<End, Failure> {
    end_of(Arc::new(open_exactly(&device.parse()?)?))
}

fn end_of(opened: Arc<Opened>) -> Result<End, Failure> {
    let pd = opened.context().alloc_pd()?;
    let cq = opened.context().create_cq(1024)?;
    let qp = pd.qp::<Rc>(&cq).max_send_wr(512).max_recv_wr(512).build()?;
    Ok(End { opened, pd, cq, qp, wcs: Completions::with_capacity(32) })
}

fn ends(device: &str) -> (End, End) {
    end(device)
        .and_then(|a| Ok((a, end(device)?)))
        .and_then(connected)
        .expect("a connection within a process can be made")
}

fn connected((a, b): (End, End)) -> Result<(End, End), Failure> {
    a.qp.connect(&b.qp.endpoint(), &ConnectOptions::default())?;
    b.qp.connect(&a.qp.endpoint(), &ConnectOptions::default())?;
    Ok((a, b))
}

fn post_send() {
    let (mut a, _b) = ends(LOOPBACK);
    let mut batch = a.qp.batch();
    for id in 0..ROUNDS {
        counted_post_send(&mut batch, id);
    }
}

#[inline(never)]
fn counted_post_send(batch: &mut SendBatch<'_, Rc>, id: u64) {
    let request = SendRequest::send(Inline(&[7; 8])).id(id);
    batch.post_send(request).expect("the queue has room");
}

fn post_recv() {
    let (mut a, _b) = ends(LOOPBACK);
    for buf in a.pd.alloc_many(ROUNDS as usize, 64).expect("there is memory") {
        counted_post_recv(&mut a.qp, buf);
    }
}

#[inline(never)]
fn counted_post_recv(qp: &mut QueuePair<Rc>, buf: Buf) {
    qp.post_recv(buf).expect("the queue has room");
}

fn poll_empty(device: &str) {
    let (mut a, mut b) = ends(device);
    // So that they have met.
    b.post_receives(BURST as usize, 8);
    rc_burst_once(&mut a, &mut b);
    for _ in 0..ROUNDS {
        counted_poll_empty(&mut a);
    }
}

#[inline(never)]
fn counted_poll_empty(a: &mut End) {
    assert_eq!(a.cq.poll(&mut a.wcs).len(), 0, "nothing was posted");
}

/// One message after the other from one end to the other, and its acknowledgement back.
fn rc_send(len: usize) {
    let (mut a, mut b) = ends(LOOPBACK);
    let source = a.pd.alloc(len).expect("there is memory").freeze();
    b.post_receives(8, len);
    for _ in 0..ROUNDS / 2 {
        rc_send_once(&mut a, &mut b, &source);
    }
    for _ in 0..ROUNDS {
        counted_rc_send(&mut a, &mut b, &source);
    }
}

#[inline(never)]
fn counted_rc_send(a: &mut End, b: &mut End, source: &hca::FrozenBuf) {
    rc_send_once(a, b, source);
}

fn rc_send_once(a: &mut End, b: &mut End, source: &hca::FrozenBuf) {
    a.qp.send(source.clone()).expect("the queue has room");
    let (mut sent, mut received) = (false, false);
    while !sent || !received {
        for wc in b.cq.poll(&mut b.wcs) {
            let mut wc = wc.ok().expect("the receive succeeds");
            b.qp.post_recv(wc.take_buf().expect("a buffer was posted")).expect("the queue has room");
            received = true;
        }
        for wc in a.cq.poll(&mut a.wcs) {
            wc.ok().expect("the send succeeds");
            sent = true;
        }
    }
    debug_assert!(a.opened.mtu() >= hca_core::Mtu::B256);
}

/// One message of 8 bytes there, and one back, by shared memory: unsignalled, but for every 64th. A round is both.
fn shm_ping(device: &str) {
    let (mut a, mut b) = ends(device);
    for end in [&mut a, &mut b] {
        end.post_receives(64, 8);
    }
    // Both take part in meeting each other.
    rc_burst_once(&mut a, &mut b);
    for id in 1..=ROUNDS {
        counted_shm_ping(&mut a, &mut b, id);
    }
}

#[inline(never)]
fn counted_shm_ping(a: &mut End, b: &mut End, id: u64) {
    shm_ping_once(a, b, id);
}

fn shm_ping_once(a: &mut End, b: &mut End, id: u64) {
    one_way(a, b, id);
    one_way(b, a, id);
}

/// A message there and back between an adapter and, each time, another one of these peers.
fn shm_turns() {
    let first = Arc::new(open_exactly(&SHM.parse().expect("it is a device")).expect("there is room"));
    let mut pairs: Vec<_> = (0..PEERS)
        .map(|_| {
            end_of(first.clone()).and_then(|a| connected((a, end(SHM)?))).expect("they reach each other")
        })
        .collect();
    for (a, b) in &mut pairs {
        for end in [&mut *a, &mut *b] {
            end.post_receives(64, 8);
        }
        rc_burst_once(a, b);
    }
    for id in 1..=ROUNDS {
        let (a, b) = &mut pairs[id as usize % PEERS];
        counted_shm_ping(a, b, id);
    }
}

fn one_way(from: &mut End, to: &mut End, id: u64) {
    let request = SendRequest::send(Inline(&[7; 8])).id(id).signaled(id.is_multiple_of(BURST));
    from.qp.post_send(request).expect("the queue has room");
    let mut received = false;
    while !received {
        for wc in to.cq.poll(&mut to.wcs) {
            let mut wc = wc.ok().expect("all succeed");
            if let Some(buf) = wc.take_buf() {
                to.qp.post_recv(buf).expect("the queue has room");
                received = true;
            }
        }
    }
}

/// As `shm_ping`, between raw queue pairs, which receive from a queue of their own or a shared one.
fn shm_ping_raw(shared: bool) {
    let make = || -> Result<_, Failure> {
        let (mut a, mut b) = (RawEnd::open(SHM, shared)?, RawEnd::open(SHM, shared)?);
        a.connect(&b.endpoint())?;
        b.connect(&a.endpoint())?;
        Ok((a, b))
    };
    let (mut a, mut b) = make().expect("a connection within a process can always be made");
    // Until they have met.
    for id in 1..=BURST {
        shm_ping_raw_once(&mut a, &mut b, id);
    }
    for id in BURST + 1..=BURST + ROUNDS {
        counted_shm_ping_raw(&mut a, &mut b, id);
    }
}

#[inline(never)]
fn counted_shm_ping_raw(a: &mut RawEnd, b: &mut RawEnd, id: u64) {
    shm_ping_raw_once(a, b, id);
}

fn shm_ping_raw_once(a: &mut RawEnd, b: &mut RawEnd, id: u64) {
    raw_one_way(a, b, id);
    raw_one_way(b, a, id);
}

fn raw_one_way(from: &mut RawEnd, to: &mut RawEnd, id: u64) {
    from.send(id);
    while to.take() == 0 {
        // Both take part in meeting each other.
        if id <= BURST {
            from.device().context().turn();
        }
    }
}

/// A WRITE of 8 bytes straight to a peer's memory, signalled: posted, and its completion polled.
fn shm_write() {
    let (mut a, mut b) = ends(SHM);
    let memory = b.pd.alloc_shared(4096, Access::REMOTE_WRITE).expect("there is memory");
    let target = memory.remote().range(64..72);
    // The first ones go as messages, until the memory is mapped.
    for _ in 0..100_000 {
        shm_write_once(&mut a, &mut b, target);
    }
    for _ in 0..ROUNDS {
        counted_shm_write(&mut a, &mut b, target);
    }
}

#[inline(never)]
fn counted_shm_write(a: &mut End, b: &mut End, target: RemoteMr) {
    shm_write_once(a, b, target);
}

fn shm_write_once(a: &mut End, b: &mut End, target: RemoteMr) {
    let request = SendRequest::write(Inline(&[7; 8]), target);
    a.qp.post_send(request).expect("the queue has room");
    while a.cq.poll(&mut a.wcs).next().is_none() {
        b.opened.context().turn();
    }
}

/// An end of a connection whose requests are futures. No runtime is counted: tasks are polled until they are ready, by a
/// waker that does nothing.
struct AsyncEnd {
    opened: Opened,
    pd: Pd,
    driver: Driver,
    qp: AsyncQp<Rc>,
}

fn async_ends(device: &str) -> (AsyncEnd, AsyncEnd) {
    let make = || -> Result<_, Failure> {
        let opened = open_exactly(&device.parse()?)?;
        let pd = opened.context().alloc_pd()?;
        let (reactor, driver) = Reactor::new(opened.context().create_cq(1024)?);
        let qp = pd.qp::<Rc>(&reactor).max_send_wr(512).max_recv_wr(512).build_async(&reactor)?;
        Ok(AsyncEnd { opened, pd, driver, qp })
    };
    let connect = || -> Result<_, Failure> {
        let (a, b) = (make()?, make()?);
        a.qp.connect(&b.qp.endpoint(), &ConnectOptions::default())?;
        b.qp.connect(&a.qp.endpoint(), &ConnectOptions::default())?;
        Ok((a, b))
    };
    connect().expect("a connection within a process can always be made")
}

fn ready<F: Future>(future: F, mut meanwhile: impl FnMut()) -> F::Output {
    let (mut future, mut cx) = (pin!(future), TaskContext::from_waker(Waker::noop()));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        meanwhile();
    }
}

/// As `shm_write`, by a future.
fn async_shm_write() {
    let (a, b) = async_ends(SHM);
    let memory = b.pd.alloc_shared(4096, Access::REMOTE_WRITE).expect("there is memory");
    let target = memory.remote().range(64..72);
    let mut driver = a.driver;
    let mut meet = || {
        drive(&mut driver);
        b.opened.context().turn();
    };
    for _ in 0..100_000 {
        ready(a.qp.write(Inline(&[7; 8]), target), &mut meet).expect("all succeed");
    }
    for _ in 0..ROUNDS {
        counted_async_shm_write(&a.qp, target);
    }
}

#[inline(never)]
fn counted_async_shm_write(qp: &AsyncQp<Rc>, target: RemoteMr) {
    ready(qp.write(Inline(&[7; 8]), target), || panic!("it is done as it is posted")).expect("all succeed");
}

/// As `shm_ping`, by futures: each message is sent and awaited, its buffer posted anew. All are signalled, so that the
/// acknowledgement of each message and turns of both drivers are counted.
fn async_shm_ping() {
    let (mut a, mut b) = async_ends(SHM);
    for end in [&a, &b] {
        end.qp.post_recvs(end.pd.alloc_many(64, 8).expect("there is memory")).expect("the queue has room");
    }
    for _ in 0..2 * BURST {
        async_shm_ping_once(&mut a, &mut b);
    }
    for _ in 0..ROUNDS {
        counted_async_shm_ping(&mut a, &mut b);
    }
}

#[inline(never)]
fn counted_async_shm_ping(a: &mut AsyncEnd, b: &mut AsyncEnd) {
    async_shm_ping_once(a, b);
}

fn async_shm_ping_once(a: &mut AsyncEnd, b: &mut AsyncEnd) {
    async_one_way(a, b);
    async_one_way(b, a);
}

fn async_one_way(from: &mut AsyncEnd, to: &mut AsyncEnd) {
    let mut cx = TaskContext::from_waker(Waker::noop());
    let mut sent = pin!(from.qp.send(Inline(&[7; 8])));
    let mut done = sent.as_mut().poll(&mut cx);
    // Both take part in meeting each other, and in a message's way.
    let mut both = || {
        drive(&mut to.driver);
        drive(&mut from.driver);
    };
    drop(ready(to.qp.recv(), &mut both).expect("all succeed"));
    while done.is_pending() {
        both();
        done = sent.as_mut().poll(&mut cx);
    }
    let Poll::Ready(sent) = done else { unreachable!("the loop ends when it is ready") };
    sent.expect("all succeed");
}

fn drive(driver: &mut Driver) {
    let _ = Pin::new(driver).poll(&mut TaskContext::from_waker(Waker::noop()));
}

/// A READ of 8 bytes straight from a peer's memory: posted, and its completion polled.
fn shm_read() {
    shm_fetch(SendRequest::read);
}

/// A fetch-and-add straight on a peer's memory, likewise.
fn shm_fetch_add() {
    shm_fetch(|buf, target| SendRequest::fetch_add(buf, target, 1));
}

fn shm_fetch<O: OfferedBy<Rc>>(request: impl Fn(Buf, RemoteMr) -> SendRequest<O, Buf>) {
    let (mut a, mut b) = ends(SHM);
    let access = Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let memory = b.pd.alloc_shared(4096, access).expect("there is memory");
    let (target, mut buf) = (memory.remote().range(64..72), a.pd.alloc(8).expect("there is memory"));
    for _ in 0..100_000 {
        buf = shm_fetch_once(&mut a, &mut b, || request(buf, target));
    }
    for _ in 0..ROUNDS {
        buf = counted_shm_fetch(&mut a, &mut b, || request(buf, target));
    }
}

#[inline(never)]
fn counted_shm_fetch<O: OfferedBy<Rc>>(
    a: &mut End,
    b: &mut End,
    request: impl FnOnce() -> SendRequest<O, Buf>,
) -> Buf {
    shm_fetch_once(a, b, request)
}

fn shm_fetch_once<O: OfferedBy<Rc>>(
    a: &mut End,
    b: &mut End,
    request: impl FnOnce() -> SendRequest<O, Buf>,
) -> Buf {
    a.qp.post_send(request()).expect("the queue has room");
    loop {
        if let Some(wc) = a.cq.poll(&mut a.wcs).next() {
            return wc.ok().expect("all succeed").take_buf().expect("a buffer was posted");
        }
        b.opened.context().turn();
    }
}

/// 64 WRITEs as above by one doorbell, the last one signalled, until its completion. A round is a WRITE.
fn shm_writes() {
    let (mut a, mut b) = ends(SHM);
    let memory = b.pd.alloc_shared(4096, Access::REMOTE_WRITE).expect("there is memory");
    let target = memory.remote().range(64..72);
    for _ in 0..100_000 {
        shm_write_once(&mut a, &mut b, target);
    }
    for _ in 0..ROUNDS / BURST {
        counted_shm_writes(&mut a, target);
    }
}

#[inline(never)]
fn counted_shm_writes(a: &mut End, target: RemoteMr) {
    let mut batch = a.qp.batch();
    for left in (0..BURST).rev() {
        let request = SendRequest::write(Inline(&[7; 8]), target).signaled(left == 0);
        batch.post_send(request).expect("the queue has room");
    }
    drop(batch);
    assert_eq!(a.cq.poll(&mut a.wcs).len(), 1, "they are done as they are posted");
}

/// A WRITE of 8 bytes by the ConnectX driver: its post with the doorbell, and the poll that finds it complete. What the
/// adapter does meanwhile is another thread's.
fn mlx5_write() {
    // It does not sleep, as it would not where programs are as quick as they are: then a doorbell would wake it.
    let served = serve(2, Some(Duration::from_secs(60))).expect("functions are served");
    let url = |i: usize| format!("vfio-user://{}", served.sockets()[i].display());
    let [mut a, mut b] = [0, 1].map(|i| RawEnd::open(&url(i), false).expect("the driver starts"));
    a.connect(&b.endpoint()).expect("they reach each other");
    b.connect(&a.endpoint()).expect("they reach each other");
    for number in 1..=ROUNDS {
        a.counted_write(number, b.window());
        while b.number() != number {
            std::thread::yield_now();
        }
        // The bytes are there before the completion. The server has turns between these commands. On busy processors its
        // adapter's thread may need more of them, and a poll in vain adds less than one instruction to a round.
        let ended = (0..1000).find_map(|_| {
            (0..4).for_each(|_| drop(a.device().context().alloc_pd().expect("there are protection domains")));
            a.counted_poll()
        });
        assert_eq!(ended, Some(number));
    }
}

/// 64 messages of 8 bytes by one doorbell, the last one signalled, until all are there and acknowledged.
/// A round is a message.
fn rc_burst(device: &str) {
    let (mut a, mut b) = ends(device);
    (a.wcs, b.wcs) = (Completions::with_capacity(64), Completions::with_capacity(64));
    b.post_receives(2 * BURST as usize, 8);
    // Until all that only the first ones need is done.
    for _ in 0..2 * ROUNDS / BURST {
        rc_burst_once(&mut a, &mut b);
    }
    for _ in 0..ROUNDS / BURST {
        counted_rc_burst(&mut a, &mut b);
    }
}

#[inline(never)]
fn counted_rc_burst(a: &mut End, b: &mut End) {
    rc_burst_once(a, b);
}

fn rc_burst_once(a: &mut End, b: &mut End) {
    let mut batch = a.qp.batch();
    for id in 1..=BURST {
        let request = SendRequest::send(Inline(&[7; 8])).id(id).signaled(id == BURST);
        batch.post_send(request).expect("the queue has room");
    }
    drop(batch);
    let (mut sent, mut received) = (false, 0);
    while !sent || received < BURST {
        let mut batch = b.qp.recv_batch();
        for wc in b.cq.poll(&mut b.wcs) {
            let mut wc = wc.ok().expect("the receive succeeds");
            let buf = wc.take_buf().expect("a buffer was posted");
            batch.post_recv(buf).expect("the queue has room");
            received += 1;
        }
        drop(batch);
        for wc in a.cq.poll(&mut a.wcs) {
            sent |= wc.ok().expect("the send succeeds").id == BURST;
        }
    }
}

fn match_message(mut target: Target) {
    for _ in 0..ROUNDS {
        counted_match_message(&mut target);
    }
}

#[inline(never)]
fn counted_match_message(target: &mut Target) {
    target.message();
}

fn match_place() {
    let mut target = Target::persistent();
    for _ in 0..ROUNDS {
        counted_match_place(&mut target);
    }
}

#[inline(never)]
fn counted_match_place(target: &mut Target) {
    target.message_at_hand();
}

fn match_once(entries: u64) {
    let mut target = Target::once(entries);
    for _ in 0..ROUNDS {
        counted_match_once(&mut target);
    }
}

#[inline(never)]
fn counted_match_once(target: &mut Target) {
    target.message_once();
}

fn match_begin(ack: AckRequest) {
    let mut initiator = Initiator::new();
    for _ in 0..ROUNDS {
        counted_match_begin(&mut initiator, ack);
    }
}

#[inline(never)]
fn counted_match_begin(initiator: &mut Initiator, ack: AckRequest) {
    initiator.put(ack);
}

fn match_sent_at_once() {
    let mut initiator = Initiator::new();
    for _ in 0..ROUNDS {
        counted_match_sent_at_once(&mut initiator);
    }
}

#[inline(never)]
fn counted_match_sent_at_once(initiator: &mut Initiator) {
    initiator.put_at_once();
}

/// A put of 8 bytes there and one back, each with its match and its event. A round is both.
fn portals_put(device: &str) {
    let [a, b] = portals::ends(device, 8).expect("two nodes can be opened");
    for end in [&a, &b] {
        end.post(false).expect("there is room");
    }
    a.meet(&b).expect("both are here");
    for _ in 0..ROUNDS {
        portals_put_once(&a, &b);
    }
    for _ in 0..ROUNDS {
        counted_portals_put(&a, &b);
    }
}

#[inline(never)]
fn counted_portals_put(a: &portals::End, b: &portals::End) {
    portals_put_once(a, b);
}

fn portals_put_once(a: &portals::End, b: &portals::End) {
    a.one_way(b).expect("it arrives");
    b.one_way(a).expect("it arrives");
}
