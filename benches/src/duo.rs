//! Ours between two processes, through the safe verbs, timed in batches: this process, and a child that it starts.
//!
//! [`hca_perf::Pair`] looks at the clock for each message, which is right for microseconds. Times of a cache line or
//! two are measured here, and what `hca perf` does not measure: lines that the target's CPU owns, memory beyond the
//! caches.
//!
//! Between two bursts the child blocks, so that a floor has both CPUs for itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use hca::{
    Buf, CompletionQueue, Completions, ConnectOptions, DeviceUrl, Endpoint, FrozenBuf, Inline, Opened, Pd,
    QueuePair, Rc, RemoteMr, SendRequest, SharedMr, open_exactly,
};
use hca_core::Access;
use hca_perf::Failure;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::floor::cache::{OWNED, OWNED_STRIDE, own_again, owned_line};
use crate::floor::{LINE_BYTES, Shared, end_with_starter};
use crate::foreign::Foreign;
use hca_perf::batches::{median_ns, median_of, per_second};
use hca_perf::child::{serve_if_asked, wait_for_end};

/// The first argument of a process that is the far side.
const CHILD_COMMAND: &str = "__duo";
/// Receive requests that are posted: so many, and of long messages fewer, so that the caches hold their buffers.
const MAX_RECEIVES: usize = 64;
const MIN_RECEIVES: usize = 8;
const RECEIVE_BYTES: usize = 1 << 20;
/// Entries of the send queue.
const SENDS: usize = 128;
/// Every so many messages one is signalled.
const SIGNAL_EVERY: u64 = 16;
/// Round trips between two looks at the clock.
const ROUNDS: usize = 64;
/// Lines that a stream of WRITEs goes through, round and round.
const FOLLOWED: usize = 1024;
/// Requests of a stream by one doorbell, of which the last is signalled.
const BATCH: usize = 64;
/// Bytes under way at most where large blocks are written.
const BYTES_UNDER_WAY: usize = 4 << 20;
/// How long the far side may take for anything.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of the window that are no part of the line on which the far side spins.
const SECOND_WORD: Range<usize> = LINE_BYTES..LINE_BYTES + 8;
/// Large blocks begin at multiples of this.
const PAGE_BYTES: usize = 4096;

/// What the two do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SENDs there and back into receive requests that are posted before.
    Send,
    /// WRITEs there and back; each side spins on its memory, and turns its device between two looks.
    Write,
    /// The same on memory that is not the library's.
    WriteForeign,
    /// WRITEs there and back; each side spins on its memory and calls nothing until the answer is there. The adapters'
    /// threads are not bound to the CPUs of the programs.
    Spin,
    /// The same on memory that is not the library's.
    SpinForeign,
    /// READ, and atomics, of lines that the far side's CPU has written just before.
    Read,
    /// See [`Read`](Self::Read).
    FetchAdd,
    /// See [`Read`](Self::Read).
    CompareSwap,
    /// 8-byte WRITEs to successive lines, which the far side follows.
    Follow,
    /// WRITEs of whole blocks; the far side only turns its device.
    Blocks {
        /// Bytes of the memory that is written from, and of that which is written to: block after block.
        span: usize,
    },
    /// Blocks of memory that is not the library's, on both sides.
    Foreign {
        /// What is done with them.
        op: ForeignOp,
        /// Bytes of the memory on either side: block after block.
        span: usize,
    },
}

/// What is done with blocks of foreign memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignOp {
    /// SENDs, into receive requests on the library's memory.
    Send,
    /// WRITEs.
    Write,
    /// READs.
    Read,
}

impl Kind {
    fn to_args(self) -> [String; 2] {
        let (name, span) = match self {
            Self::Send => ("send", 0),
            Self::Write => ("write", 0),
            Self::WriteForeign => ("write-foreign", 0),
            Self::Spin => ("spin", 0),
            Self::SpinForeign => ("spin-foreign", 0),
            Self::Read => ("read", 0),
            Self::FetchAdd => ("fetch-add", 0),
            Self::CompareSwap => ("compare-swap", 0),
            Self::Follow => ("follow", 0),
            Self::Blocks { span } => ("blocks", span),
            Self::Foreign { op: ForeignOp::Send, span } => ("foreign-send", span),
            Self::Foreign { op: ForeignOp::Write, span } => ("foreign-write", span),
            Self::Foreign { op: ForeignOp::Read, span } => ("foreign-read", span),
        };
        [name.to_owned(), span.to_string()]
    }

    fn of_args(name: &str, span: usize) -> Self {
        match name {
            "send" => Self::Send,
            "write" => Self::Write,
            "write-foreign" => Self::WriteForeign,
            "spin" => Self::Spin,
            "spin-foreign" => Self::SpinForeign,
            "read" => Self::Read,
            "fetch-add" => Self::FetchAdd,
            "compare-swap" => Self::CompareSwap,
            "follow" => Self::Follow,
            "foreign-send" => Self::Foreign { op: ForeignOp::Send, span },
            "foreign-write" => Self::Foreign { op: ForeignOp::Write, span },
            "foreign-read" => Self::Foreign { op: ForeignOp::Read, span },
            _ => Self::Blocks { span },
        }
    }

    /// Whether each side calls nothing until the answer is there.
    fn spins(self) -> bool {
        matches!(self, Self::Spin | Self::SpinForeign)
    }

    /// Bytes that the other side may reach. Its first line is where a side that owns lines waits.
    fn window_bytes(self, size: usize) -> usize {
        match self {
            Self::Blocks { span } | Self::Foreign { span, .. } => span,
            Self::Send | Self::Write | Self::WriteForeign | Self::Spin | Self::SpinForeign => {
                size.max(LINE_BYTES)
            }
            Self::Follow => FOLLOWED * LINE_BYTES,
            _ => (1 + OWNED * OWNED_STRIDE) * LINE_BYTES,
        }
    }
}

/// One side.
struct Side {
    qp: QueuePair<Rc>,
    cq: CompletionQueue,
    wcs: Completions,
    window: SharedMr,
    remote: RemoteMr,
    /// What is sent or written where it does not go inline.
    source: FrozenBuf,
    /// The same where it is not the library's.
    foreign: Option<Foreign>,
    /// The window's memory.
    _far: Option<Foreign>,
    /// Used receive buffers.
    back: Vec<Buf>,
    receives: usize,
    /// Where READs and atomics go.
    sink: Option<Buf>,
    inline: bool,
    size: usize,
    posted: u64,
    completed: u64,
    /// The newest word that this side has seen in its memory.
    last: u64,
    pd: Pd,
    opened: Opened,
}

impl Side {
    /// Opens the device, and binds this thread to CPU `cpus.0`. Where programs spin without calls, the adapter's thread
    /// is bound to the CPUs of both programs.
    fn on(cpus: (usize, usize), device: &DeviceUrl, kind: Kind, size: usize) -> Result<Self, Failure> {
        let mut before = CpuSet::new();
        before.set(cpus.0);
        if kind.spins() {
            before.set(cpus.1);
        }
        sched_setaffinity(None, &before)?;
        let side = Self::new(device, kind, size)?;
        hca_perf::probe::pin(cpus.0)?;
        Ok(side)
    }

    fn new(device: &DeviceUrl, kind: Kind, size: usize) -> Result<Self, Failure> {
        let opened = open_exactly(device)?;
        let context = opened.context();
        let pd = context.alloc_pd()?;
        let receives = (RECEIVE_BYTES / size).clamp(MIN_RECEIVES, MAX_RECEIVES);
        let cq = context.create_cq((receives + SENDS) as u32)?;
        let inline = size <= 8;
        let qp = pd.qp::<Rc>(&cq).max_send_wr(SENDS as u32).max_recv_wr(receives as u32);
        let qp = qp.max_send_sge(1).max_recv_sge(1).max_inline(8).build()?;
        let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let is_foreign = matches!(kind, Kind::Foreign { .. });
        let register = || Foreign::register(&pd, kind.window_bytes(size), rights);
        let foreign = is_foreign.then(register).transpose()?;
        let far = (is_foreign || matches!(kind, Kind::WriteForeign | Kind::SpinForeign)).then(register);
        let far = far.transpose()?;
        let window = match &far {
            Some(far) => far.mr().clone(),
            None => pd.alloc_shared(kind.window_bytes(size), rights)?,
        };
        let source = match kind {
            Kind::Blocks { span } => {
                // So that pages stand behind it.
                window.write_at(0, &vec![1; span]);
                aligned(&pd, span)?
            }
            _ => pd.alloc(size)?,
        };
        let receiving = matches!(kind, Kind::Send | Kind::Foreign { op: ForeignOp::Send, .. });
        let back = if receiving { pd.alloc_many(receives, size)? } else { Vec::new() };
        let sink = Some(pd.alloc(8)?);
        let (wcs, remote) = (Completions::with_parts(64, 2 * SENDS), RemoteMr::default());
        let source = source.freeze();
        let (posted, completed, last) = (0, 0, 0);
        let mut side = Self {
            qp,
            cq,
            wcs,
            window,
            remote,
            source,
            foreign,
            _far: far,
            back,
            receives,
            sink,
            inline,
            size,
            posted,
            completed,
            last,
            pd,
            opened,
        };
        side.post_receives()?;
        Ok(side)
    }

    fn introduction(&self) -> Result<String, Failure> {
        Ok(serde_json::to_string(&(self.qp.endpoint(), self.window.remote()))?)
    }

    fn connect(&mut self, introduction: &str) -> Result<(), Failure> {
        let (endpoint, remote): (Endpoint, RemoteMr) = serde_json::from_str(introduction)?;
        let options = ConnectOptions { mtu: Some(self.opened.mtu()), ..ConnectOptions::default() };
        self.qp.connect(&endpoint, &options)?;
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

    /// Looks at the window's first word until `done` says so, and returns the word.
    #[inline]
    fn wait_for_word(&self, kind: Kind, mut done: impl FnMut(u64) -> bool) -> u64 {
        if !kind.spins() {
            return self.window.wait_until(0, done);
        }
        loop {
            let word = self.window.load_u64(0);
            if done(word) {
                return word;
            }
            core::hint::spin_loop();
        }
    }

    /// Writes the next number, and waits until the far side has written it back.
    #[inline]
    fn round_trip(&mut self, kind: Kind, gone: &mut Gone<'_>) -> Result<(), Failure> {
        self.last += 1;
        let value = self.last;
        self.post(kind, value)?;
        let mut lost = Ok(());
        self.wait_for_word(kind, |word| {
            word == value || {
                lost = gone.look();
                lost.is_err()
            }
        });
        lost
    }

    /// Takes completions; how many messages arrived.
    #[inline]
    fn take(&mut self) -> Result<u64, Failure> {
        let mut received = 0;
        for wc in self.cq.poll(&mut self.wcs) {
            let mut wc = wc.ok()?;
            if wc.opcode.is_recv() {
                received += 1;
                self.back.extend(wc.take_buf());
            } else {
                self.completed = self.completed.max(wc.id);
            }
        }
        if self.back.len() * 4 > self.receives {
            self.post_receives()?;
        }
        Ok(received)
    }

    /// Posts a SEND or a WRITE of `value`, or of as many bytes as a message has.
    #[inline]
    fn post(&mut self, kind: Kind, value: u64) -> Result<(), Failure> {
        while self.posted - self.completed >= 4 * SIGNAL_EVERY {
            self.take()?;
        }
        self.posted += 1;
        let (id, signaled) = (self.posted, self.posted.is_multiple_of(SIGNAL_EVERY));
        let bytes = value.to_le_bytes();
        let (qp, remote) = (&mut self.qp, self.remote);
        let refused = match (kind, self.inline) {
            (Kind::Send, true) => {
                let request = SendRequest::send(Inline(&bytes)).id(id).signaled(signaled);
                qp.post_send(request).map_err(|r| r.error)
            }
            (Kind::Send, false) => {
                let request = SendRequest::send(self.source.clone()).id(id).signaled(signaled);
                qp.post_send(request).map_err(|r| r.error)
            }
            _ => {
                let request = SendRequest::write(Inline(&bytes), remote).id(id).signaled(signaled);
                qp.post_send(request).map_err(|r| r.error)
            }
        };
        Ok(refused?)
    }

    /// Posts one signalled request that gives 8 bytes back, and waits for its completion.
    #[inline]
    fn fetch(&mut self, kind: Kind, line: usize, expected: u64) -> Result<(), Failure> {
        let at = line * LINE_BYTES;
        let remote = self.remote.range(at..at + 8);
        let sink = self.sink.take().ok_or("the buffer came back with the last completion")?;
        match kind {
            Kind::FetchAdd => self.qp.post_send(SendRequest::fetch_add(sink, remote, 1)).map_err(|r| r.error),
            Kind::CompareSwap => {
                let request = SendRequest::compare_swap(sink, remote, expected, expected + 1);
                self.qp.post_send(request).map_err(|r| r.error)
            }
            _ => self.qp.post_send(SendRequest::read(sink, remote)).map_err(|r| r.error),
        }?;
        while self.sink.is_none() {
            for wc in self.cq.poll(&mut self.wcs) {
                self.sink = wc.ok()?.take_buf();
            }
        }
        let seen = self.sink.as_deref().and_then(|b| b.first_chunk()).map(|b| u64::from_ne_bytes(*b));
        if seen != Some(expected) {
            return Err(format!("a line that holds {expected} gave {seen:?}").into());
        }
        Ok(())
    }

    /// Posts a READ of 8 bytes, and waits for its completion.
    #[inline]
    fn fetch_any(&mut self) -> Result<(), Failure> {
        let sink = self.sink.take().ok_or("the buffer came back with the last completion")?;
        self.qp.post_send(SendRequest::read(sink, self.remote.range(SECOND_WORD))).map_err(|r| r.error)?;
        while self.sink.is_none() {
            for wc in self.cq.poll(&mut self.wcs) {
                self.sink = wc.ok()?.take_buf();
            }
        }
        Ok(())
    }

    /// Posts a WRITE of 8 bytes, and waits for its completion.
    #[inline]
    fn write_and_wait(&mut self, gone: &mut Gone<'_>) -> Result<(), Failure> {
        self.posted += 1;
        let bytes = self.posted.to_le_bytes();
        let request = SendRequest::write(Inline(&bytes), self.remote.range(SECOND_WORD)).id(self.posted);
        self.qp.post_send(request).map_err(|refused| refused.error)?;
        while self.completed < self.posted {
            self.take()?;
            gone.look()?;
        }
        Ok(())
    }

    /// Waits until all that was posted has completed.
    fn drain(&mut self, kind: Kind) -> Result<(), Failure> {
        let begin = Instant::now();
        if matches!(kind, Kind::Blocks { .. } | Kind::Foreign { .. } | Kind::Follow) {
            while self.completed < self.posted && begin.elapsed() < PATIENCE {
                self.take()?;
            }
        }
        Ok(())
    }
}

/// A buffer that begins at a page, written to, so that pages stand behind it.
///
/// # Errors
/// The device has no memory left.
pub fn aligned(pd: &Pd, bytes: usize) -> Result<Buf, Failure> {
    let whole = pd.alloc(bytes + PAGE_BYTES)?;
    let gap = whole.as_ptr().align_offset(PAGE_BYTES);
    let mut buf = whole.split_at(gap).1.split_at(bytes).0;
    buf.fill(1);
    Ok(buf)
}

/// This process, and the child.
pub struct Duo {
    child: Child,
    to_child: Option<ChildStdin>,
    _from_child: BufReader<ChildStdout>,
    side: Side,
    shared: Shared,
    kind: Kind,
    burst: u64,
}

impl Duo {
    /// Starts the child on CPU `cpus.1`, binds this thread to `cpus.0`, and connects both by queue pairs of their own.
    ///
    /// # Errors
    /// A device can't be opened, or the process not be started.
    pub fn start(device: &DeviceUrl, cpus: (usize, usize), kind: Kind, size: usize) -> Result<Self, Failure> {
        let shared = Shared::new()?;
        let mut child = Command::new(std::env::current_exe()?)
            .args([CHILD_COMMAND, &device.to_string()])
            .args([cpus.1.to_string(), cpus.0.to_string(), shared.fd().to_string()])
            .args(kind.to_args())
            .arg(size.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (to_child, from_child) = (child.stdin.take(), child.stdout.take());
        let from_child = BufReader::new(from_child.expect("its output is a pipe"));
        // From here on whatever fails ends the child, too.
        let mut guard = Started(Some(child));
        let mut side = Side::on(cpus, device, kind, size)?;
        let (mut to_child, mut from_child) = (to_child.expect("its input is a pipe"), from_child);
        writeln!(to_child, "{}", side.introduction()?)?;
        let mut line = String::new();
        from_child.read_line(&mut line)?;
        if line.is_empty() {
            return Err("the far side could not begin; its message stands above".into());
        }
        side.connect(&line)?;
        let child = guard.0.take().expect("it was started");
        let to_child = Some(to_child);
        Ok(Self { child, to_child, _from_child: from_child, side, shared, kind, burst: 0 })
    }

    /// The protection domain of this side.
    pub fn pd(&self) -> &Pd {
        &self.side.pd
    }

    /// What blocks are written from.
    pub fn source(&self) -> &FrozenBuf {
        &self.side.source
    }

    /// Half of a round trip of SENDs or WRITEs, or the time from post to completion of what gives 8 bytes back: the
    /// median of batches, in ns. Between programs that call nothing while they wait it is the mean.
    ///
    /// # Errors
    /// A device, or the far side, can't go on.
    pub fn latency_ns(&mut self, time: Duration) -> Result<f64, Failure> {
        self.begin()?;
        let (kind, child, shared, side) = (self.kind, &mut self.child, &self.shared, &mut self.side);
        let mut gone = Gone::new(child);
        let measured = match kind {
            Kind::Send => median_ns(time, 2 * ROUNDS, || {
                (0..ROUNDS).try_for_each(|_| {
                    side.post(kind, 0)?;
                    while side.take()? == 0 {
                        gone.look()?;
                    }
                    Ok(())
                })
            }),
            Kind::Write | Kind::WriteForeign => {
                median_ns(time, 2 * ROUNDS, || (0..ROUNDS).try_for_each(|_| side.round_trip(kind, &mut gone)))
            }
            // Pauses count.
            Kind::Spin | Kind::SpinForeign => {
                per_second(time, 2, || side.round_trip(kind, &mut gone)).map(|rate| 1e9 / rate)
            }
            _ => median_of(time, OWNED, || {
                let begin = Instant::now();
                let round = own_again(shared, || begin.elapsed() > PATIENCE).ok_or("the far side is gone")?;
                let begin = Instant::now();
                (0..OWNED).try_for_each(|i| side.fetch(kind, 1 + owned_line(i), round))?;
                Ok(begin.elapsed())
            }),
        };
        self.end()?;
        measured
    }

    /// WRITEs of 8 bytes a second, signalled every 64th, by one doorbell each 64.
    ///
    /// # Errors
    /// A device, or the far side, can't go on.
    pub fn writes_per_s(&mut self, time: Duration) -> Result<f64, Failure> {
        self.begin()?;
        let (kind, child, side) = (self.kind, &mut self.child, &mut self.side);
        let mut gone = Gone::new(child);
        let measured = per_second(time, BATCH, || -> Result<(), Failure> {
            while side.posted - side.completed > (SENDS - BATCH) as u64 {
                side.take()?;
                gone.look()?;
            }
            let mut batch = side.qp.batch();
            for left in (0..BATCH).rev() {
                side.posted += 1;
                let at = side.posted as usize % FOLLOWED * LINE_BYTES;
                let (bytes, remote) = (side.posted.to_le_bytes(), side.remote.range(at..at + 8));
                let request = SendRequest::write(Inline(&bytes), remote).id(side.posted);
                batch.post_send(request.signaled(left == 0)).map_err(|refused| refused.error)?;
            }
            Ok(())
        });
        side.drain(kind)?;
        self.end()?;
        measured
    }

    /// The time of a READ of 8 bytes, from post to completion: the median of batches, in ns. Nobody else looks at their
    /// line.
    ///
    /// # Errors
    /// A device, or the far side, can't go on.
    pub fn read_ns(&mut self, time: Duration) -> Result<f64, Failure> {
        self.one_by_one_ns(time, |side, _| side.fetch_any())
    }

    /// The time of a WRITE of 8 bytes, from post to completion, in the same way.
    ///
    /// # Errors
    /// As [`read_ns`](Self::read_ns).
    pub fn write_ns(&mut self, time: Duration) -> Result<f64, Failure> {
        self.one_by_one_ns(time, |side, gone| side.write_and_wait(gone))
    }

    fn one_by_one_ns(
        &mut self,
        time: Duration,
        mut one: impl FnMut(&mut Side, &mut Gone<'_>) -> Result<(), Failure>,
    ) -> Result<f64, Failure> {
        self.begin()?;
        let (child, side) = (&mut self.child, &mut self.side);
        let mut gone = Gone::new(child);
        let measured = median_ns(time, ROUNDS, || (0..ROUNDS).try_for_each(|_| one(side, &mut gone)));
        self.end()?;
        measured
    }

    /// Bytes a second of WRITEs of this size over all of the memory, block after block.
    ///
    /// # Errors
    /// A device, or the far side, can't go on.
    pub fn write_bytes_per_s(&mut self, time: Duration) -> Result<f64, Failure> {
        self.begin()?;
        let (kind, child, side) = (self.kind, &mut self.child, &mut self.side);
        let mut gone = Gone::new(child);
        let (size, mut at) = (side.size, 0);
        let under_way = (BYTES_UNDER_WAY / size).clamp(2, 64) as u64;
        let begun = side.posted;
        let measured = per_second(time, size, || -> Result<(), Failure> {
            while side.posted - side.completed >= under_way {
                if side.take()? == 0 {
                    gone.look()?;
                }
            }
            side.posted += 1;
            let request =
                SendRequest::write(side.source.slice(at..at + size), side.remote.range(at..at + size));
            side.qp.post_send(request.id(side.posted)).map_err(|refused| refused.error)?;
            at = (at + size) % side.source.len();
            Ok(())
        });
        assert!(side.posted > begun, "a burst writes something");
        side.drain(kind)?;
        self.end()?;
        measured
    }

    /// Bytes a second of what is done with foreign memory, block after block.
    ///
    /// # Errors
    /// A device, or the far side, can't go on.
    ///
    /// # Panics
    /// If this was started for something else.
    pub fn foreign_bytes_per_s(&mut self, time: Duration) -> Result<f64, Failure> {
        let Kind::Foreign { op, span } = self.kind else {
            panic!("{:?} is not of foreign memory", self.kind)
        };
        self.begin()?;
        let (kind, child, side) = (self.kind, &mut self.child, &mut self.side);
        let mut gone = Gone::new(child);
        let (size, mut at) = (side.size, 0);
        let under_way = (BYTES_UNDER_WAY / size).clamp(2, 64) as u64;
        let measured = per_second(time, size, || -> Result<(), Failure> {
            while side.posted - side.completed >= under_way {
                if side.take()? == 0 {
                    gone.look()?;
                }
            }
            side.posted += 1;
            let local = side.foreign.as_ref().expect("it is of foreign memory").mr().range(at..at + size);
            let (id, remote) = (side.posted, side.remote.range(at..at + size));
            let refused = match op {
                ForeignOp::Send => side.qp.post_send(SendRequest::send(local).id(id)).map_err(|r| r.error),
                ForeignOp::Write => {
                    side.qp.post_send(SendRequest::write(local, remote).id(id)).map_err(|r| r.error)
                }
                ForeignOp::Read => {
                    side.qp.post_send(SendRequest::read(local, remote).id(id)).map_err(|r| r.error)
                }
            };
            refused?;
            at = (at + size) % span;
            Ok(())
        });
        side.drain(kind)?;
        self.end()?;
        measured
    }

    /// Has the child begin a burst.
    fn begin(&mut self) -> Result<(), Failure> {
        self.burst += 1;
        self.shared.asked.store(0);
        self.shared.done.store(0);
        let out = self.to_child.as_mut().expect("open until the end");
        out.write_all(b"g")?;
        Ok(out.flush()?)
    }

    /// Has the child end it.
    fn end(&mut self) -> Result<(), Failure> {
        self.shared.stop.store(self.burst);
        let begin = Instant::now();
        while self.shared.arrived.load() != self.burst {
            // What it still needs of this side, it gets.
            self.side.take()?;
            if begin.elapsed() > PATIENCE || !matches!(self.child.try_wait(), Ok(None)) {
                return Err("the far side did not end; its message stands above, if it has one".into());
            }
        }
        Ok(())
    }
}

impl Drop for Duo {
    fn drop(&mut self) {
        // The end of its input is the end of the child.
        self.to_child = None;
        wait_for_end(&mut self.child);
    }
}

/// A child that ends with this value.
struct Started(Option<Child>);

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Now and then looks whether the child has ended, which it does not by itself.
struct Gone<'a> {
    child: &'a mut Child,
    looks: u32,
}

impl<'a> Gone<'a> {
    fn new(child: &'a mut Child) -> Self {
        Self { child, looks: 0 }
    }

    #[inline]
    fn look(&mut self) -> Result<(), Failure> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(1 << 16) && !matches!(self.child.try_wait(), Ok(None)) {
            return Err("the far side ended; its message stands above".into());
        }
        Ok(())
    }
}

/// To be called first in `main` of every program that measures so: becomes the far side if that is what this process
/// was started for.
pub fn child_if_asked() {
    serve_if_asked(CHILD_COMMAND, "duo", serve);
}

fn serve(args: &[String]) -> Result<(), Failure> {
    end_with_starter()?;
    let [device, cpu, other_cpu, fd, kind, span, size] = args else { return Err("seven arguments".into()) };
    let (kind, shared) = (Kind::of_args(kind, span.parse()?), Shared::open(fd.parse()?)?);
    let cpus = (cpu.parse()?, other_cpu.parse()?);
    let mut side = Side::on(cpus, &device.parse()?, kind, size.parse()?)?;
    let mut input = BufReader::new(std::io::stdin());
    let mut line = String::new();
    input.read_line(&mut line)?;
    side.connect(&line)?;
    println!("{}", side.introduction()?);
    let (mut burst, mut byte) = (0, [0]);
    while input.read(&mut byte)? == 1 {
        burst += 1;
        serve_burst(&mut side, kind, &shared, burst)?;
        shared.arrived.store(burst);
    }
    Ok(())
}

/// Answers until the near side ends the burst.
fn serve_burst(side: &mut Side, kind: Kind, shared: &Shared, burst: u64) -> Result<(), Failure> {
    let over = || shared.stop.load() == burst;
    match kind {
        Kind::Foreign { op: ForeignOp::Send, .. } => {
            while !over() {
                side.take()?;
            }
        }
        Kind::Send => {
            while !over() {
                for _ in 0..side.take()? {
                    side.post(kind, 0)?;
                }
            }
        }
        Kind::Write | Kind::WriteForeign | Kind::Spin | Kind::SpinForeign => {
            loop {
                // What came before this burst began counts as well.
                let last = side.last;
                side.last = side.wait_for_word(kind, |word| word != last || over());
                if side.last == last {
                    return Ok(());
                }
                side.post(kind, side.last)?;
            }
        }
        Kind::Follow => {
            while !over() {
                // A line that was written again since has that one's number.
                let (at, next) = (side.last as usize % FOLLOWED * LINE_BYTES, side.last);
                side.last = next.max(side.window.wait_until(at, |word| word >= next || over()) + 1);
            }
        }
        Kind::Blocks { .. } | Kind::Foreign { .. } => {
            side.window.wait_until(0, |_| over());
        }
        Kind::Read | Kind::FetchAdd | Kind::CompareSwap => {
            let mut round = 1;
            loop {
                // It waits on a line of its own, so that those that are accessed stay where they are.
                side.window.wait_until(0, |_| shared.asked.load() == round || over());
                if over() {
                    return Ok(());
                }
                for i in 0..OWNED {
                    side.window.store_u64((1 + owned_line(i)) * LINE_BYTES, round);
                }
                shared.done.store(round);
                round += 1;
            }
        }
    }
    Ok(())
}
