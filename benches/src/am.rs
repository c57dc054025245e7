//! Active Messages between two processes: this one, and a child that it starts.
//!
//! Between two bursts the child blocks, so that a floor has both CPUs for itself.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hca::am::{Bundle, EndpointId, Segment, Source, Tag, Way};
use hca::{DeviceUrl, Opened, open_exactly};
use hca_perf::Failure;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::batches::{median_ns, per_second};
use crate::child::{serve_if_asked, wait_for_end};
use crate::logp::{Bursts, delay};

/// The first argument of a process that is the far side.
const CHILD_COMMAND: &str = "__am";
/// Bytes of the segments, and of the longest bulk message.
pub const SEGMENT: usize = 1 << 20;
const TAG: Tag = Tag(0xa3);
const ECHO: u16 = 1;
const REPLIED: u16 = 2;
const SINK: u16 = 3;
const STOP: u16 = 4;
/// Round trips, or requests, between two looks at the clock.
const ROUNDS: usize = 64;
/// Repetitions of a burst, of which the fastest counts.
const REPEATS: usize = 41;
/// The time of a measurement of [`Bursts`].
const BURST_TIME: Duration = Duration::from_millis(250);

/// Opens a bundle with an endpoint, on this CPU.
fn open(device: &DeviceUrl, way: &str, cpu: usize) -> Result<(Opened, Bundle, EndpointId), Failure> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(None, &cpus)?;
    let device = open_exactly(device)?;
    let way = if way == "via" { Way::Via } else { Way::Verbs };
    let mut bundle = Bundle::open(device.context(), way)?;
    let ep = bundle.endpoint()?;
    bundle.set_tag(ep, TAG)?;
    bundle.set_segment(ep, SEGMENT)?;
    Ok((device, bundle, ep))
}

/// The near side, with the far one mapped.
pub struct Two {
    child: Child,
    to_child: ChildStdin,
    from_child: BufReader<ChildStdout>,
    bundle: Bundle,
    ep: EndpointId,
    replies: Arc<AtomicU64>,
    asked: u64,
    memory: Segment,
    _device: Opened,
}

impl Two {
    /// Starts the child on CPU `cpus.1`, binds this thread to `cpus.0`, and maps the child's endpoint.
    ///
    /// # Errors
    /// A device can't be opened, or the process not be started.
    pub fn start(device: &DeviceUrl, cpus: (usize, usize), way: Way) -> Result<Self, Failure> {
        let way = if way == Way::Via { "via" } else { "verbs" };
        let mut child = Command::new(std::env::current_exe()?)
            .args([CHILD_COMMAND, &device.to_string(), way, &cpus.1.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to_child = child.stdin.take().expect("its input is a pipe");
        let mut from_child = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let (opened, mut bundle, ep) = open(device, way, cpus.0)?;
        let replies = Arc::new(AtomicU64::new(0));
        let counts = Arc::clone(&replies);
        // Only this thread counts.
        let count = move |_: &hca::am::Message<'_>, _: hca::am::Token<'_>| {
            counts.store(counts.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        };
        bundle.set_handler(ep, REPLIED, count)?;
        let mut line = String::new();
        from_child.read_line(&mut line)?;
        bundle.map(ep, 0, &line.trim().parse()?, TAG)?;
        let memory = bundle.alloc(SEGMENT)?;
        Ok(Self { child, to_child, from_child, bundle, ep, replies, asked: 0, memory, _device: opened })
    }
    /// Has the child poll meanwhile.
    fn burst<T>(&mut self, run: impl FnOnce(&mut Self) -> Result<T, Failure>) -> Result<T, Failure> {
        writeln!(self.to_child, "go")?;
        let done = run(self);
        self.bundle.request(self.ep, 0, STOP, &[])?;
        self.bundle.flush(Duration::from_secs(10))?;
        let mut line = String::new();
        self.from_child.read_line(&mut line)?;
        done
    }
    fn ask(&mut self) -> Result<(), Failure> {
        self.asked += 1;
        Ok(self.bundle.request(self.ep, 0, ECHO, &[self.asked as u32, 0])?)
    }
    /// Polls until all replies have come.
    fn settle(&mut self) -> Result<(), Failure> {
        while self.replies.load(Ordering::Relaxed) < self.asked {
            self.bundle.poll()?;
        }
        Ok(())
    }
    /// Half of a round trip of a short request of 8 bytes and its reply, in ns.
    ///
    /// # Errors
    /// A device, or the far side, can't go on.
    pub fn latency_ns(&mut self, time: Duration) -> Result<f64, Failure> {
        self.burst(|two| {
            median_ns(time, 2 * ROUNDS, || {
                (0..ROUNDS).try_for_each(|_| {
                    two.ask()?;
                    two.settle()
                })
            })
        })
    }
    /// Bytes a second of medium requests without replies.
    ///
    /// # Errors
    /// As [`latency_ns`](Self::latency_ns).
    pub fn medium_bytes_per_s(&mut self, size: usize, time: Duration) -> Result<f64, Failure> {
        let data = vec![7; size];
        self.burst(|two| {
            per_second(time, ROUNDS * size, || {
                (0..ROUNDS).try_for_each(|_| two.bundle.request_medium(two.ep, 0, SINK, &[], &data))
            })
            .map_err(Failure::from)
        })
    }
    /// Bytes a second of bulk requests without replies, from registered memory.
    ///
    /// # Errors
    /// As [`latency_ns`](Self::latency_ns).
    pub fn bulk_bytes_per_s(&mut self, size: usize, time: Duration) -> Result<f64, Failure> {
        let memory = self.memory.clone();
        self.burst(|two| {
            per_second(time, size, || {
                two.bundle.request_bulk(two.ep, 0, SINK, &[], Source::Segment(&memory, 0..size), 0)
            })
            .map_err(Failure::from)
        })
    }
}

impl Bursts for Two {
    type Error = Failure;
    fn window(&self) -> usize {
        self.bundle.options().credits.into()
    }
    fn round_trip_ns(&mut self) -> Result<f64, Failure> {
        Ok(2.0 * self.latency_ns(BURST_TIME)?)
    }
    fn burst_ns(&mut self, count: usize, pause: Duration) -> Result<f64, Failure> {
        self.burst(|two| {
            let mut least = f64::INFINITY;
            for _ in 0..REPEATS {
                let (begin, mut paused) = (Instant::now(), Duration::ZERO);
                for _ in 0..count {
                    two.ask()?;
                    if !pause.is_zero() {
                        paused += delay(pause);
                        two.bundle.poll()?;
                    }
                }
                least = least.min((begin.elapsed() - paused).as_nanos() as f64 / count as f64);
                two.settle()?;
            }
            Ok(least)
        })
    }
    fn byte_gap_ns(&mut self) -> Result<Option<f64>, Failure> {
        let bulk = |two: &mut Self, size| {
            two.bulk_bytes_per_s(size, BURST_TIME).map(|rate| size as f64 / rate * 1e9)
        };
        let (short, long) = (bulk(self, SEGMENT / 4)?, bulk(self, SEGMENT)?);
        Ok(Some((long - short) / (SEGMENT - SEGMENT / 4) as f64))
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        let _ = writeln!(self.to_child, "end");
        wait_for_end(&mut self.child);
    }
}

/// Ends the process with the far side's work, if that is what it was started for.
pub fn child_if_asked() {
    serve_if_asked(CHILD_COMMAND, "the far side of Active Messages", |args| {
        let [device, way, cpu] = args else { return Err("three arguments are needed".into()) };
        serve(&device.parse()?, way, cpu.parse()?)
    });
}

fn serve(device: &DeviceUrl, way: &str, cpu: usize) -> Result<(), Failure> {
    let (_device, mut bundle, ep) = open(device, way, cpu)?;
    let stopped = Arc::new(AtomicBool::new(false));
    let stops = Arc::clone(&stopped);
    bundle.set_handler(ep, ECHO, |message, token| {
        let _ = token.reply(REPLIED, message.args());
    })?;
    bundle.set_handler(ep, SINK, |_, _| ())?;
    bundle.set_handler(ep, STOP, move |_, _| stops.store(true, Ordering::Relaxed))?;
    println!("{}", bundle.name(ep)?);
    for line in std::io::stdin().lines() {
        if line? != "go" {
            break;
        }
        while !stopped.swap(false, Ordering::Relaxed) {
            bundle.poll()?;
        }
        // The answer to the last request leaves before this side blocks.
        bundle.poll()?;
        println!("stopped");
    }
    Ok(())
}
