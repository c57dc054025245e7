//! Threads with adapters of their own: streams of messages that share no engine, in one process or in one each.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use hca::{
    CompletionQueue, Completions, ConnectOptions, DeviceUrl, Inline, Opened, QueuePair, Rc, SendRequest,
    open_exactly,
};
use hca_perf::Failure;
use hca_perf::probe::pin;

use crate::floor::end_with_starter;
use hca_perf::child::{serve_if_asked, wait_for_end};

/// The first argument of a process with one stream.
const CHILD_COMMAND: &str = "__stream";
/// Messages by one doorbell, of which the last is signalled.
const BURST: usize = 64;
/// Bursts between two looks at the clock.
const BURSTS_A_CLOCK: usize = 16;

/// One end of a stream.
struct End {
    opened: Opened,
    cq: CompletionQueue,
    qp: QueuePair<Rc>,
    wcs: Completions,
}

impl End {
    fn open(device: &DeviceUrl) -> Result<Self, Failure> {
        let opened = open_exactly(device)?;
        let pd = opened.context().alloc_pd()?;
        let cq = opened.context().create_cq(4 * BURST as u32)?;
        let mut qp = pd.qp::<Rc>(&cq).max_send_wr(2 * BURST as u32).max_recv_wr(BURST as u32).build()?;
        for buf in pd.alloc_many(BURST, 8)? {
            qp.post_recv(buf)?;
        }
        Ok(Self { opened, cq, qp, wcs: Completions::with_capacity(BURST) })
    }
}

/// A stream of messages of 8 bytes between two adapters of this process, both of which one thread drives.
pub struct Stream {
    from: End,
    to: End,
}

impl Stream {
    /// Opens two adapters and connects them.
    ///
    /// # Errors
    /// A limit of the device or of the system.
    pub fn open(device: &DeviceUrl) -> Result<Self, Failure> {
        let (from, to) = (End::open(device)?, End::open(device)?);
        from.qp.connect(&to.qp.endpoint(), &ConnectOptions::default())?;
        to.qp.connect(&from.qp.endpoint(), &ConnectOptions::default())?;
        let mut stream = Self { from, to };
        // So that both have met.
        (0..BURSTS_A_CLOCK).try_for_each(|_| stream.burst())?;
        Ok(stream)
    }

    fn burst(&mut self) -> Result<(), Failure> {
        let Self { from, to } = self;
        let mut batch = from.qp.batch();
        for i in 1..=BURST {
            batch.post_send(SendRequest::send(Inline(&[7; 8])).signaled(i == BURST))?;
        }
        drop(batch);
        let (mut received, mut is_sent) = (0, false);
        while received < BURST || !is_sent {
            let mut batch = to.qp.recv_batch();
            for wc in to.cq.poll(&mut to.wcs) {
                received += 1;
                batch.post_recv(wc.ok()?.take_buf().ok_or("a receive gave no buffer back")?)?;
            }
            drop(batch);
            for wc in from.cq.poll(&mut from.wcs) {
                wc.ok()?;
                is_sent = true;
            }
            from.opened.context().turn();
        }
        Ok(())
    }

    /// Messages a second, over this time.
    ///
    /// # Errors
    /// A message failed.
    pub fn rate(&mut self, time: Duration) -> Result<f64, Failure> {
        let (begin, mut messages) = (Instant::now(), 0);
        loop {
            (0..BURSTS_A_CLOCK).try_for_each(|_| self.burst())?;
            messages += BURSTS_A_CLOCK * BURST;
            let passed = begin.elapsed();
            if passed >= time {
                return Ok(messages as f64 / passed.as_secs_f64());
            }
        }
    }
}

/// Messages a second of all streams together, each driven by a thread of this process on a CPU of its own.
///
/// # Errors
/// A message failed, or a CPU is not there.
pub fn rate_by_threads(streams: &mut [Stream], cpus: &[usize], time: Duration) -> Result<f64, Failure> {
    let start = Barrier::new(streams.len());
    std::thread::scope(|s| {
        let run = |(stream, cpu): (_, &usize)| {
            let (stream, cpu, start): (&mut Stream, _, _) = (stream, *cpu, &start);
            s.spawn(move || {
                let pinned = pin(cpu);
                start.wait();
                pinned.map_err(|e| e.to_string())?;
                stream.rate(time).map_err(|e| e.to_string())
            })
        };
        let threads: Vec<_> = streams.iter_mut().zip(cpus).map(run).collect();
        let rates = threads.into_iter().map(|t| t.join().expect("a stream does not panic"));
        Ok(rates.sum::<Result<f64, String>>()?)
    })
}

/// Processes with a stream each, on CPUs of their own.
pub struct Processes {
    children: Vec<(Child, BufReader<std::process::ChildStdout>)>,
}

impl Processes {
    /// Starts a process for each CPU.
    ///
    /// # Errors
    /// A process can't be started, or can't open the device.
    pub fn start(device: &DeviceUrl, cpus: &[usize]) -> Result<Self, Failure> {
        let mut processes = Self { children: Vec::new() };
        for cpu in cpus {
            let mut child = Command::new(std::env::current_exe()?)
                .args([CHILD_COMMAND, &device.to_string(), &cpu.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let out = BufReader::new(child.stdout.take().expect("its output is a pipe"));
            processes.children.push((child, out));
        }
        for (_, out) in &mut processes.children {
            line(out)?;
        }
        Ok(processes)
    }

    /// Messages a second of all of them together.
    ///
    /// # Errors
    /// A process ended.
    pub fn rate(&mut self, time: Duration) -> Result<f64, Failure> {
        for (child, _) in &mut self.children {
            writeln!(child.stdin.as_mut().expect("its input is a pipe"), "{}", time.as_nanos())?;
        }
        let rates = self.children.iter_mut().map(|(_, out)| Ok(line(out)?.trim().parse::<f64>()?));
        rates.sum()
    }
}

/// A line that a process wrote.
fn line(out: &mut impl BufRead) -> Result<String, Failure> {
    let mut line = String::new();
    if out.read_line(&mut line)? == 0 {
        return Err("a process with a stream has ended; its message stands above".into());
    }
    Ok(line)
}

impl Drop for Processes {
    fn drop(&mut self) {
        for (child, _) in &mut self.children {
            // The end of its input is the end of the child.
            child.stdin = None;
        }
        self.children.iter_mut().for_each(|(child, _)| wait_for_end(child));
    }
}

/// To be called first in `main` of every program that starts [`Processes`]: becomes one if the process was started for
/// that.
pub fn child_if_asked() {
    serve_if_asked(CHILD_COMMAND, "a process with a stream", |args| {
        let [device, cpu] = args else { return Err("two arguments".into()) };
        end_with_starter()?;
        pin(cpu.parse()?)?;
        let mut stream = Stream::open(&device.parse()?)?;
        println!("ready");
        for time in std::io::stdin().lines() {
            println!("{}", stream.rate(Duration::from_nanos(time?.parse()?))?);
        }
        Ok(())
    });
}
