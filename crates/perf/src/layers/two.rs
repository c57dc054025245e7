//! Two ends of a layer: this process, and a child that it starts.
//!
//! Between two bursts the child blocks, so that a floor has both CPUs for itself.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use hca::{CaptureFile, DeviceUrl, Opened, open_exactly};
use rustix::process::Pid;

use super::logp::{Bursts, delay};
use crate::batches::median_ns;
use crate::channel::ControlError;
use crate::child::{own_end, wait_for_end, within};
use crate::interrupt::interrupted;
use crate::run::peer_of;
use crate::{Failure, Setup, probe};

/// Round trips between two looks at the clock.
pub(super) const ROUNDS: usize = 64;
/// Repetitions of a burst, of which the fastest counts.
const MAX_REPEATS: usize = 400;
const MIN_REPEATS: usize = 2;
/// Streams of bulk messages of a length, of which the fastest counts.
pub(super) const STREAMS: u32 = 4;
/// A far side that needs so much longer than its measurements hangs.
const PATIENCE: Duration = Duration::from_secs(20);
/// A call of the near side takes so many times as long as its measurement at most, on the slowest networks.
const SLOWEST: u32 = 10;
/// Bytes of the longest bulk message.
pub(super) const BULK: usize = 1 << 20;

/// The end of a layer that asks.
pub trait Near {
    /// The number of requests that may be without an answer.
    fn window(&self) -> usize;
    /// Sends a request; waits for room in the window.
    ///
    /// # Errors
    /// A device, or the far side, can't go on.
    fn ask(&mut self) -> Result<(), Failure>;
    /// Takes the answers that have come.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    fn poll(&mut self) -> Result<(), Failure>;
    /// Waits for all answers.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    fn settle(&mut self) -> Result<(), Failure>;
    /// The time of a bulk message of so many bytes in a stream, in ns; `None` for a layer without them.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    fn bulk_ns(&mut self, _size: usize, _time: Duration) -> Result<Option<f64>, Failure> {
        Ok(None)
    }
}

/// An end of a layer in a process of its own.
pub trait End: Near + Sized {
    /// What the other end has to know.
    ///
    /// # Errors
    /// It has met the other end before.
    fn introduction(&self) -> Result<String, Failure>;
    /// Connects to the other end; `near`: as the one that asks.
    ///
    /// # Errors
    /// The other end is not there.
    fn meet(&mut self, other: &str, near: bool) -> Result<(), Failure>;
    /// Has the far end stop.
    ///
    /// # Errors
    /// As [`ask`](Near::ask).
    fn stop(&mut self) -> Result<(), Failure>;
    /// At the far end: does what there is to do. Returns whether it was told to stop.
    ///
    /// # Errors
    /// As [`ask`](Near::ask).
    fn serve(&mut self) -> Result<bool, Failure>;
}

/// Fails once the user has ended the measurement: one that was cut short says nothing.
pub(super) fn go_on() -> Result<(), Failure> {
    if interrupted() { Err(ControlError::Interrupted.into()) } else { Ok(()) }
}

/// Half of a round trip, in ns: the median of batches.
pub(super) fn half_round_trip_ns(near: &mut (impl Near + ?Sized), time: Duration) -> Result<f64, Failure> {
    median_ns(time, 2 * ROUNDS, || {
        go_on()?;
        (0..ROUNDS).try_for_each(|_| {
            near.ask()?;
            near.settle()
        })
    })
}

/// The time of a request in bursts, without the delay behind each, in ns: the least of those that fit into the time, of
/// two at least.
pub(super) fn least_burst_ns(
    near: &mut (impl Near + ?Sized),
    (count, pause): (usize, Duration),
    time: Duration,
) -> Result<f64, Failure> {
    let (mut least, all) = (f64::INFINITY, Instant::now());
    for repeat in 0..MAX_REPEATS {
        go_on()?;
        if repeat >= MIN_REPEATS && all.elapsed() > time {
            break;
        }
        let (begin, mut paused) = (Instant::now(), Duration::ZERO);
        for _ in 0..count {
            near.ask()?;
            if !pause.is_zero() {
                paused += delay(pause);
                near.poll()?;
            }
        }
        least = least.min((begin.elapsed() - paused).as_nanos() as f64 / count as f64);
        near.settle()?;
    }
    Ok(least)
}

/// The time of a byte, from the times of bulk messages of two lengths: the least of some streams of each.
pub(super) fn byte_gap_ns(
    mut ns: impl FnMut(usize) -> Result<Option<f64>, Failure>,
) -> Result<Option<f64>, Failure> {
    let short = BULK / 4;
    let mut least = |size| -> Result<Option<f64>, Failure> {
        let mut times = Vec::new();
        for _ in 0..STREAMS {
            times.extend(ns(size)?);
            go_on()?;
        }
        Ok(times.into_iter().reduce(f64::min))
    };
    let (Some(less), Some(more)) = (least(short)?, least(BULK)?) else { return Ok(None) };
    // A stream of short ones that something disturbed all the time says nothing of a byte.
    Ok(Some(if more > less { (more - less) / (BULK - short) as f64 } else { more / BULK as f64 }))
}

/// The near end, connected to the far one.
pub struct Two<E> {
    child: Child,
    to_child: ChildStdin,
    from_child: BufReader<ChildStdout>,
    pub(super) end: E,
    pub(super) time: Duration,
    capture: CaptureFile,
}

impl<E: End> Two<E> {
    /// Starts the child with `command` and `spec`, binds each process to its CPU, and connects both. `time`: of a
    /// measurement.
    ///
    /// # Errors
    /// A device can't be opened, or the process not be started.
    pub fn start(
        setup: &Setup,
        command: &str,
        spec: &str,
        time: Duration,
        open: impl FnOnce(Opened) -> Result<E, Failure>,
    ) -> Result<Self, Failure> {
        let far = match &setup.peer_device {
            Some(device) => device.clone(),
            None => peer_of(&setup.device)?,
        };
        let cpu = setup.cpus.map_or("-".to_owned(), |cpus| cpus.1.to_string());
        let mut child = Command::new(std::env::current_exe()?)
            .args([command, spec, &far.to_string(), &cpu])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to_child = child.stdin.take().expect("its input is a pipe");
        let from_child = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        setup.cpus.map_or(Ok(()), |cpus| probe::pin(cpus.0))?;
        let opened = open_exactly(&setup.device)?;
        let capture = opened.capture();
        let end = open(opened)?;
        let mut two = Self { child, to_child, from_child, end, time, capture };
        writeln!(two.to_child, "{}", two.end.introduction()?)?;
        let line = two.in_time(Self::line)?;
        two.end.meet(line.trim(), true)?;
        Ok(two)
    }
    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        if self.from_child.read_line(&mut line)? == 0 {
            return Err("the far side has ended; its message stands above, if it has one".into());
        }
        Ok(line)
    }
    /// The time of a measurement.
    pub fn time(&self) -> Duration {
        self.time
    }
    /// Runs what waits for the child. A child that hangs is killed, and the error says so.
    fn in_time<T>(&mut self, run: impl FnOnce(&mut Self) -> Result<T, Failure>) -> Result<T, Failure> {
        let limit = PATIENCE + SLOWEST * self.time;
        let (done, was_late) = within(limit, Pid::from_child(&self.child), || run(self));
        done.map_err(|error| match was_late {
            true => format!("the far side hung, and was killed after {limit:?}: {error}").into(),
            false => error,
        })
    }
    /// Has the child serve meanwhile. After an error it serves no more.
    ///
    /// # Errors
    /// Those of `run`, or the far side can't go on.
    pub fn during<T>(&mut self, run: impl FnOnce(&mut E) -> Result<T, Failure>) -> Result<T, Failure> {
        let mut has_run = false;
        let done = self.in_time(|two| {
            writeln!(two.to_child, "go")?;
            let done = run(&mut two.end)?;
            two.end.settle()?;
            two.end.stop()?;
            has_run = true;
            two.line().map(|_| done)
        });
        done.map_err(|error| if has_run { error } else { self.with_the_end(error) })
    }
    /// The error of a measurement, and how the far side has ended, if that is why.
    fn with_the_end(&mut self, error: Failure) -> Failure {
        if interrupted() {
            return error;
        }
        let _ = writeln!(self.to_child, "end");
        match own_end(&mut self.child) {
            Some(status) if !status.success() => format!("the far side has ended ({status}): {error}").into(),
            _ => error,
        }
    }
    /// Half of a round trip of a request and its answer, in ns: the median of batches.
    ///
    /// # Errors
    /// A device, or the far side, can't go on.
    pub fn latency_ns(&mut self) -> Result<f64, Failure> {
        let time = self.time;
        self.during(|end| half_round_trip_ns(end, time))
    }
}

impl<E: End> Bursts for Two<E> {
    type Error = Failure;
    fn window(&self) -> usize {
        self.end.window()
    }
    fn round_trip_ns(&mut self) -> Result<f64, Failure> {
        Ok(2.0 * self.latency_ns()?)
    }
    fn burst_ns(&mut self, count: usize, pause: Duration) -> Result<f64, Failure> {
        let time = self.time;
        self.during(|end| least_burst_ns(end, (count, pause), time))
    }
    fn byte_gap_ns(&mut self) -> Result<Option<f64>, Failure> {
        let time = self.time;
        self.during(|end| byte_gap_ns(|size| end.bulk_ns(size, time / STREAMS)))
    }
    fn finish(&mut self) -> Result<(), Failure> {
        Ok(self.capture.finish()?)
    }
}

impl<E> Drop for Two<E> {
    fn drop(&mut self) {
        let _ = writeln!(self.to_child, "end");
        wait_for_end(&mut self.child);
    }
}

/// The far side: one end, which serves whenever it is told to.
///
/// # Errors
/// A device can't be opened, or the near side can't go on.
pub fn serve<E: End>(
    device: &DeviceUrl,
    cpu: Option<usize>,
    open: impl FnOnce(Opened) -> Result<E, Failure>,
) -> Result<(), Failure> {
    cpu.map_or(Ok(()), probe::pin)?;
    let mut end = open(open_exactly(device)?)?;
    let mut near = std::io::stdout();
    writeln!(near, "{}", end.introduction()?)?;
    let (lines, is_over) = hear_near_side()?;
    let Ok(other) = lines.recv() else { return Ok(()) };
    end.meet(&other, false)?;
    for line in lines {
        if line != "go" {
            break;
        }
        while !end.serve()? {
            if is_over.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        writeln!(near, "stopped")?;
    }
    Ok(())
}

/// The lines of the near side; and, once it has no more for this end, which may be serving then, that all is over.
fn hear_near_side() -> std::io::Result<(Receiver<String>, Arc<AtomicBool>)> {
    let (tell, lines) = channel();
    let is_over = Arc::<AtomicBool>::default();
    let over = Arc::clone(&is_over);
    std::thread::Builder::new().name("hca-near".to_owned()).spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if line == "end" || tell.send(line).is_err() {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
    })?;
    Ok((lines, is_over))
}
