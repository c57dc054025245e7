//! Pairs of processes that talk while they share CPUs, in any progress mode and kind of wait: latency, rate, and the
//! CPU time that both took.
//!
//! Each process is a child, since a CPU and the figures of a wait hold for a whole process. The starter hands over what
//! each says to the other, and has all pairs begin at once.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use hca::{
    Buf, CompletionQueue, Completions, ConnectOptions, DeviceUrl, Endpoint, FrozenBuf, Inline, Opened,
    QueuePair, Rc, RemoteMr, SendRequest, SharedMr, open_exactly,
};
use hca_core::Access;
use hca_perf::Failure;
use rustix::time::{ClockId, clock_gettime};
use softhca::{Patience, Progress};

use crate::floor::end_with_starter;
use hca_perf::batches::median;
use hca_perf::child::serve_if_asked;

/// The first argument of a process that talks.
const TALK_COMMAND: &str = "__placed";
/// The first argument of a process that only computes.
const COMPUTE_COMMAND: &str = "__compute";
/// How long any message may take, also where each costs a slice of the scheduler's.
const PATIENCE: Duration = Duration::from_secs(5);
/// Messages of a stream that are under way at most: so many, and of long ones fewer, so that the caches hold their
/// buffers.
const MAX_UNDER_WAY: usize = 128;
const BYTES_UNDER_WAY: usize = 2 << 20;
/// Of a stream every so many messages one is signalled.
const SIGNAL_EVERY: u64 = 16;
/// Bytes of a message that is none of a stream of longer ones. So many go inline.
const SMALL_BYTES: usize = 8;
const LARGE_BYTES: usize = 64 << 10;
const _: () = assert!(
    BYTES_UNDER_WAY / LARGE_BYTES >= 2 * SIGNAL_EVERY as usize,
    "some are taken while others are sent"
);
/// The share of the time that is not counted, in which everything is set up and warm.
const WARM_UP: u32 = 5;

/// The action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Load {
    /// SENDs of 8 bytes there and back.
    PingPong,
    /// SENDs of 8 bytes, one way.
    Stream,
    /// SENDs of 4 KiB, one way.
    #[value(name = "stream-4k")]
    Stream4K,
    /// SENDs of 64 KiB, one way.
    #[value(name = "stream-64k")]
    Stream64K,
    /// READs of 8 bytes, one after the other, from a program that waits for a message that does not come.
    Read,
}

impl Load {
    /// Bytes of a message.
    pub fn message_bytes(self) -> usize {
        match self {
            Self::Stream4K => 4 << 10,
            Self::Stream64K => LARGE_BYTES,
            Self::PingPong | Self::Stream | Self::Read => SMALL_BYTES,
        }
    }

    /// Whether messages go one way, many at a time.
    pub fn is_stream(self) -> bool {
        matches!(self, Self::Stream | Self::Stream4K | Self::Stream64K)
    }

    /// Messages under way at most.
    fn under_way(self) -> usize {
        (BYTES_UNDER_WAY / self.message_bytes()).min(MAX_UNDER_WAY)
    }
}

/// How a program waits for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Wait {
    /// It polls, again and again.
    Poll,
    /// It blocks.
    Block,
}

/// Figures of the waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// The figures.
    pub patience: Patience,
}

/// What all pairs do.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The action.
    pub load: Load,
    /// How both programs wait.
    pub wait: Wait,
    /// Who does the adapters' work.
    pub progress: Progress,
    /// The figures.
    pub setting: Setting,
    /// For how long.
    pub time: Duration,
}

/// What one pair gave, or all together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Half of a round trip, or from post to completion of a READ, in ns; 0 for a stream.
    pub p50_ns: u64,
    /// The same, of the slowest hundredth the quickest.
    pub p99_ns: u64,
    /// Messages a second.
    pub rate: f64,
    /// CPU time a second, of both processes.
    pub cpus: f64,
}

impl Outcome {
    /// The median of each figure; `None` of nothing.
    pub fn median(all: &[Self]) -> Option<Self> {
        let of = |figure: fn(&Self) -> f64| median(all.iter().map(figure).collect());
        Some(Self {
            p50_ns: of(|o| o.p50_ns as f64)? as u64,
            p99_ns: of(|o| o.p99_ns as f64)? as u64,
            rate: of(|o| o.rate)?,
            cpus: of(|o| o.cpus)?,
        })
    }
}

/// Has a pair on each of these pairs of CPUs do the same at once, beside a program that computes on each CPU of `computing`.
/// Latencies are those of the pair that fares worst.
///
/// # Errors
/// A process can't be started, or a device not be opened.
pub fn run(
    device: &DeviceUrl,
    job: &Job,
    pairs: &[(usize, usize)],
    computing: &[usize],
) -> Result<Outcome, Failure> {
    let computing = computing
        .iter()
        .map(|&cpu| Talker::start(&[COMPUTE_COMMAND.into(), cpu.to_string()]))
        .collect::<Result<Vec<_>, _>>()?;
    let mut talkers = Vec::new();
    for &(near, far) in pairs {
        let (mut near, mut far) =
            (Talker::talk(device, job, near, true)?, Talker::talk(device, job, far, false)?);
        let (ours, theirs) = (near.hear()?, far.hear()?);
        near.tell(&theirs)?;
        far.tell(&ours)?;
        talkers.push((near, far));
    }
    for (near, far) in &mut talkers {
        // The far side answers before the near side asks.
        far.hear()?;
        near.hear()?;
    }
    for (near, _) in &mut talkers {
        near.tell("go")?;
    }
    let mut all = Outcome::default();
    for (near, far) in &mut talkers {
        let (near, far) = (near.figures()?, far.figures()?);
        let ([p50, p99, count, elapsed, cpu], [.., their_elapsed, their_cpu]) = (near, far);
        all.p50_ns = all.p50_ns.max(p50);
        all.p99_ns = all.p99_ns.max(p99);
        all.rate += 1e9 * count as f64 / elapsed.max(1) as f64;
        all.cpus += cpu as f64 / elapsed.max(1) as f64 + their_cpu as f64 / their_elapsed.max(1) as f64;
    }
    drop(computing);
    Ok(all)
}

/// A process that this one started.
struct Talker {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Talker {
    fn start(args: &[String]) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take().expect("its input is a pipe");
        let from = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        Ok(Self { child, to, from })
    }

    fn talk(device: &DeviceUrl, job: &Job, cpu: usize, near: bool) -> Result<Self, Failure> {
        let mut device = device.clone();
        device.options.progress = Some(job.progress);
        let name = |v: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
            v().expect("no value is hidden").get_name().to_owned()
        };
        let mut args = vec![TALK_COMMAND.to_owned(), device.to_string(), cpu.to_string(), near.to_string()];
        args.push(name(&|| job.load.to_possible_value()));
        args.push(name(&|| job.wait.to_possible_value()));
        args.push(job.time.as_nanos().to_string());
        let p = job.setting.patience;
        let counts = [p.looks, p.looks_in_company, p.hold_percent, p.sleep_factor];
        args.push(serde_json::to_string(&(counts, p.wait_ns, p.thread_ns))?);
        Self::start(&args)
    }

    fn tell(&mut self, line: &str) -> Result<(), Failure> {
        writeln!(self.to, "{}", line.trim_end())?;
        Ok(self.to.flush()?)
    }

    fn hear(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        if line.is_empty() {
            return Err("a process of a pair could not go on; its message stands above".into());
        }
        Ok(line)
    }

    fn figures(&mut self) -> Result<[u64; 5], Failure> {
        Ok(serde_json::from_str(&self.hear()?)?)
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// To be called first in `main` of every program that starts such pairs: becomes a process of one if that is what this
/// process was started for.
pub fn child_if_asked() {
    serve_if_asked(TALK_COMMAND, "placed", talk);
    serve_if_asked(COMPUTE_COMMAND, "placed", compute);
}

fn compute(args: &[String]) -> Result<(), Failure> {
    end_with_starter()?;
    hca_perf::probe::pin(args[0].parse()?)?;
    loop {
        std::hint::black_box(());
    }
}

fn talk(args: &[String]) -> Result<(), Failure> {
    end_with_starter()?;
    let [device, cpu, near, load, wait, time, figures] = args else { return Err("seven arguments".into()) };
    let ([looks, looks_in_company, hold_percent, sleep_factor], wait_ns, thread_ns) =
        serde_json::from_str(figures)?;
    let built_in = Patience::default();
    Patience { looks, looks_in_company, hold_percent, sleep_factor, wait_ns, thread_ns, ..built_in }.set();
    hca_perf::probe::pin(cpu.parse()?)?;
    let (load, wait) = (Load::from_str(load, false)?, Wait::from_str(wait, false)?);
    let time = Duration::from_nanos(time.parse()?);
    let mut side = Side::new(&device.parse()?, load, wait)?;
    println!("{}", side.introduction()?);
    let mut input = std::io::stdin().lines();
    let mut next = || input.next().unwrap_or_else(|| Ok(String::new()));
    side.connect(&next()?)?;
    println!("ready");
    let figures = if near == "true" {
        next()?;
        side.ask(time)?
    } else {
        side.answer()?
    };
    println!("{}", serde_json::to_string(&figures)?);
    // Nobody misses it before both have told.
    next()?;
    Ok(())
}

/// One end of a pair.
struct Side {
    qp: QueuePair<Rc>,
    cq: CompletionQueue,
    wcs: Completions,
    back: Vec<Buf>,
    window: SharedMr,
    remote: RemoteMr,
    sink: Option<Buf>,
    /// What is sent where it does not go inline.
    source: Option<FrozenBuf>,
    load: Load,
    wait: Wait,
    posted: u64,
    completed: u64,
    /// A message without bytes came.
    over: bool,
    _opened: Opened,
}

impl Side {
    fn new(device: &DeviceUrl, load: Load, wait: Wait) -> Result<Self, Failure> {
        let opened = open_exactly(device)?;
        let context = opened.context();
        let pd = context.alloc_pd()?;
        let (size, under_way) = (load.message_bytes(), load.under_way());
        let cq = context.create_cq(4 * under_way as u32)?;
        let qp = pd.qp::<Rc>(&cq).max_send_wr(2 * under_way as u32).max_recv_wr(2 * under_way as u32);
        let qp = qp.max_send_sge(1).max_recv_sge(1).max_inline(SMALL_BYTES as u32).build()?;
        let window = pd.alloc_shared(SMALL_BYTES, Access::REMOTE_READ)?;
        // As many again, so that a message meets a request though used ones are posted in batches.
        let back = pd.alloc_many(2 * under_way, size)?;
        let sink = Some(pd.alloc(SMALL_BYTES)?);
        let source = if size > SMALL_BYTES { Some(pd.alloc(size)?.freeze()) } else { None };
        let mut side = Self {
            qp,
            cq,
            wcs: Completions::with_parts(64, 64),
            back,
            window,
            remote: RemoteMr::default(),
            sink,
            source,
            load,
            wait,
            posted: 0,
            completed: 0,
            over: false,
            _opened: opened,
        };
        side.post_receives()?;
        Ok(side)
    }

    fn introduction(&self) -> Result<String, Failure> {
        Ok(serde_json::to_string(&(self.qp.endpoint(), self.window.remote()))?)
    }

    fn connect(&mut self, introduction: &str) -> Result<(), Failure> {
        let (endpoint, remote): (Endpoint, RemoteMr) = serde_json::from_str(introduction)?;
        self.qp.connect(&endpoint, &ConnectOptions::default())?;
        self.remote = remote;
        Ok(())
    }

    fn post_receives(&mut self) -> Result<(), Failure> {
        let mut batch = self.qp.recv_batch();
        for buf in self.back.drain(..) {
            batch.post_recv(buf).map_err(|refused| refused.error)?;
        }
        Ok(())
    }

    /// Takes what there is, or waits for it; how many messages with bytes came.
    #[inline]
    fn take(&mut self) -> Result<u64, Failure> {
        let mut received = 0;
        let wcs = match self.wait {
            Wait::Poll => self.cq.poll(&mut self.wcs),
            Wait::Block => self.cq.wait(&mut self.wcs, Some(PATIENCE))?,
        };
        for wc in wcs {
            let mut wc = wc.ok()?;
            if wc.opcode.is_recv() {
                received += u64::from(wc.byte_len > 0);
                self.over |= wc.byte_len == 0;
                self.back.extend(wc.take_buf());
            } else {
                self.completed = self.completed.max(wc.id);
                self.sink = wc.take_buf().or(self.sink.take());
            }
        }
        if self.back.len() * 4 > self.load.under_way() {
            self.post_receives()?;
        }
        Ok(received)
    }

    #[inline]
    fn send(&mut self, signal_every: u64) -> Result<(), Failure> {
        self.posted += 1;
        let signaled = self.posted.is_multiple_of(signal_every);
        let id = self.posted;
        if let Some(source) = &self.source {
            let request = SendRequest::send(source.clone()).id(id).signaled(signaled);
            return Ok(self.qp.post_send(request).map_err(|r| r.error)?);
        }
        let request = SendRequest::send(Inline(&[1; SMALL_BYTES])).id(id).signaled(signaled);
        Ok(self.qp.post_send(request).map_err(|r| r.error)?)
    }

    /// One message, or one READ, there and back.
    #[inline]
    fn once(&mut self) -> Result<(), Failure> {
        if self.load == Load::Read {
            self.posted += 1;
            let sink = self.sink.take().ok_or("the buffer came back with the last completion")?;
            self.qp.post_send(SendRequest::read(sink, self.remote).id(self.posted)).map_err(|r| r.error)?;
            while self.completed < self.posted {
                self.take()?;
            }
            return Ok(());
        }
        self.send(SIGNAL_EVERY)?;
        while self.take()? == 0 {}
        Ok(())
    }

    /// The near side. Gives p50, p99, messages, elapsed time and CPU time, in ns.
    fn ask(&mut self, time: Duration) -> Result<[u64; 5], Failure> {
        let begin = Instant::now();
        let most = self.load.under_way() as u64 - SIGNAL_EVERY;
        let mut latencies: Vec<u64> = Vec::with_capacity(1 << 20);
        let (mut counted, mut clock) = (None, begin);
        let mut sent = 0;
        while clock - begin < time {
            if counted.is_none() && clock - begin > time / WARM_UP {
                counted = Some((clock, cpu_ns()));
                sent = 0;
                latencies.clear();
            }
            if self.load.is_stream() {
                for _ in 0..SIGNAL_EVERY {
                    self.send(SIGNAL_EVERY)?;
                }
                sent += SIGNAL_EVERY;
                while self.posted - self.completed > most {
                    self.take()?;
                }
            } else {
                self.once()?;
                sent += 1;
            }
            let now = Instant::now();
            latencies.push((now - clock).as_nanos() as u64);
            clock = now;
        }
        let (from, cpu_before) = counted.ok_or(
            "nothing was done in the time of the run: give more by --time, on a machine that is less busy",
        )?;
        let figures = (from.elapsed().as_nanos() as u64, cpu_ns() - cpu_before);
        self.say_over()?;
        while !self.over {
            self.take()?;
        }
        latencies.sort_unstable();
        let halves = if self.load == Load::PingPong { 2 } else { 1 };
        let at = |part: usize| latencies.get(latencies.len() * part / 100).copied().unwrap_or(0) / halves;
        let (p50, p99) = if self.load.is_stream() { (0, 0) } else { (at(50), at(99)) };
        Ok([p50, p99, sent, figures.0, figures.1])
    }

    /// The far side. Gives elapsed time and CPU time behind three zeros.
    fn answer(&mut self) -> Result<[u64; 5], Failure> {
        let (begin, cpu_before) = (Instant::now(), cpu_ns());
        while !self.over {
            let received = self.take()?;
            if self.load == Load::PingPong {
                for _ in 0..received {
                    self.send(SIGNAL_EVERY)?;
                }
            }
        }
        let figures = [0, 0, 0, begin.elapsed().as_nanos() as u64, cpu_ns() - cpu_before];
        // Who asks hears of it, and neither needs the other any more.
        self.say_over()?;
        Ok(figures)
    }

    fn say_over(&mut self) -> Result<(), Failure> {
        let request = SendRequest::send(()).signaled(false);
        Ok(self.qp.post_send(request).map_err(|r| r.error)?)
    }
}

/// CPU time of this process so far, in ns.
fn cpu_ns() -> u64 {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
