//! VIs of two processes: this one, and a child that it starts, which answers each message.

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use hca::via::{
    Descriptor, Discriminator, Done, MemAttributes, Memory, NetAddress, Nic, Request, Segment, Vi,
    ViAttributes,
};
use hca::{DeviceUrl, Opened, open_exactly};
use hca_perf::Failure;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::batches::median_ns;
use crate::child::{serve_if_asked, wait_for_end};
use crate::logp::{Bursts, delay};

/// The first argument of a process that is the far side.
const CHILD_COMMAND: &str = "__via";
const NAME: &[u8] = b"bench";
/// Messages that may be without an answer.
const WINDOW: usize = 16;
/// Descriptors of a queue, each with its data behind it.
const SLOTS: usize = 2 * WINDOW;
const SLOT_BYTES: usize = 128;
/// Bytes of a message: the first says what is asked for.
const MESSAGE: usize = 8;
const ECHO: u8 = 1;
const STOP: u8 = 2;
const ROUNDS: usize = 64;
const REPEATS: usize = 41;

/// A VI with Reliable Delivery, and descriptors that go round.
struct Side {
    vi: Vi,
    memory: Memory,
    sends: Vec<Descriptor>,
    next: usize,
    posted: usize,
    /// Receive descriptors that are posted again behind the next send.
    idle: Vec<Descriptor>,
    _device: Opened,
}

/// Opens an adapter on a CPU.
fn open(device: &DeviceUrl, cpu: usize) -> Result<(Opened, Nic), Failure> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(None, &cpus)?;
    let device = open_exactly(device)?;
    let nic = Nic::open(device.context())?;
    Ok((device, nic))
}

impl Side {
    fn new(device: Opened, nic: &Nic) -> Result<Self, Failure> {
        let ptag = nic.create_ptag()?;
        let memory = nic.alloc(2 * SLOTS * SLOT_BYTES, &MemAttributes::new(&ptag))?;
        let vi = nic.create_vi(&ViAttributes::new(&ptag), None, None)?;
        let mut sends = Vec::new();
        for slot in 0..2 * SLOTS {
            let descriptor = memory.descriptor(slot * SLOT_BYTES)?;
            let data = Segment::new(&memory, slot * SLOT_BYTES + SLOT_BYTES / 2, MESSAGE as u32);
            descriptor.write(&Request::new(&[data]))?;
            if slot < SLOTS {
                vi.post_recv(&descriptor)?;
            } else {
                memory.write_at(slot * SLOT_BYTES + SLOT_BYTES / 2, &[ECHO; MESSAGE]);
                sends.push(descriptor);
            }
        }
        Ok(Self { vi, memory, sends, next: 0, posted: 0, idle: Vec::new(), _device: device })
    }
    fn send(&mut self) -> Result<(), Failure> {
        while self.posted >= WINDOW {
            if let Some(done) = self.vi.send_done() {
                well(&done)?;
                self.posted -= 1;
            }
        }
        self.vi.post_send(&self.sends[self.next])?;
        (self.next, self.posted) = ((self.next + 1) % SLOTS, self.posted + 1);
        for descriptor in self.idle.drain(..) {
            self.vi.post_recv(&descriptor)?;
        }
        Ok(())
    }
    /// Takes a message, if one has come. Returns its first byte.
    fn take(&mut self) -> Result<Option<u8>, Failure> {
        let Some(done) = self.vi.recv_done() else { return Ok(None) };
        well(&done)?;
        let offset = (done.descriptor.addr() - self.memory.addr()) as usize;
        let mut first = [0];
        self.memory.read_at(offset + SLOT_BYTES / 2, &mut first);
        self.idle.push(done.descriptor);
        Ok(Some(first[0]))
    }
}

fn well(done: &Done) -> Result<(), Failure> {
    if done.status.is_ok() { Ok(()) } else { Err(format!("a descriptor ended as {:?}", done.status).into()) }
}

/// The near side, connected to the far one.
pub struct TwoVis {
    child: Child,
    to_child: ChildStdin,
    from_child: BufReader<ChildStdout>,
    side: Side,
    open: usize,
    time: Duration,
}

impl TwoVis {
    /// Starts the child on CPU `cpus.1`, binds this thread to `cpus.0`, and connects. `time`: of a measurement.
    ///
    /// # Errors
    /// A device can't be opened, or the process not be started.
    pub fn start(device: &DeviceUrl, cpus: (usize, usize), time: Duration) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([CHILD_COMMAND, &device.to_string(), &cpus.1.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to_child = child.stdin.take().expect("its input is a pipe");
        let mut from_child = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let (device, nic) = open(device, cpus.0)?;
        let side = Side::new(device, &nic)?;
        let mut line = String::new();
        from_child.read_line(&mut line)?;
        let host: IpAddr = line.trim().parse()?;
        let to = NetAddress { host, discriminator: Discriminator::new(NAME)? };
        side.vi.connect(Discriminator::new(b"near")?, &to, None)?;
        Ok(Self { child, to_child, from_child, side, open: 0, time })
    }
    /// Has the child answer meanwhile.
    fn with_child<T>(&mut self, run: impl FnOnce(&mut Self) -> Result<T, Failure>) -> Result<T, Failure> {
        writeln!(self.to_child, "go")?;
        let done = run(self);
        self.settle()?;
        let at = (SLOTS + self.side.next) * SLOT_BYTES + SLOT_BYTES / 2;
        self.side.memory.write_at(at, &[STOP]);
        self.side.send()?;
        let mut line = String::new();
        self.from_child.read_line(&mut line)?;
        self.side.memory.write_at(at, &[ECHO]);
        done
    }
    fn ask(&mut self) -> Result<(), Failure> {
        while self.open >= WINDOW {
            self.poll()?;
        }
        self.side.send()?;
        self.open += 1;
        Ok(())
    }
    /// Takes the answers that have come.
    fn poll(&mut self) -> Result<(), Failure> {
        while self.side.take()?.is_some() {
            self.open -= 1;
        }
        Ok(())
    }
    fn settle(&mut self) -> Result<(), Failure> {
        while self.open > 0 {
            self.poll()?;
        }
        Ok(())
    }
    /// Half of a round trip of a send of 8 bytes and its answer, in ns.
    ///
    /// # Errors
    /// A device, or the far side, can't go on.
    pub fn latency_ns(&mut self) -> Result<f64, Failure> {
        let time = self.time;
        self.with_child(|two| {
            median_ns(time, 2 * ROUNDS, || {
                (0..ROUNDS).try_for_each(|_| {
                    two.ask()?;
                    two.settle()
                })
            })
        })
    }
}

impl Bursts for TwoVis {
    type Error = Failure;
    fn window(&self) -> usize {
        WINDOW
    }
    fn round_trip_ns(&mut self) -> Result<f64, Failure> {
        Ok(2.0 * self.latency_ns()?)
    }
    fn burst_ns(&mut self, count: usize, pause: Duration) -> Result<f64, Failure> {
        self.with_child(|two| {
            let mut least = f64::INFINITY;
            for _ in 0..REPEATS {
                let (begin, mut paused) = (Instant::now(), Duration::ZERO);
                for _ in 0..count {
                    two.ask()?;
                    if !pause.is_zero() {
                        paused += delay(pause);
                        two.poll()?;
                    }
                }
                least = least.min((begin.elapsed() - paused).as_nanos() as f64 / count as f64);
                two.settle()?;
            }
            Ok(least)
        })
    }
    fn byte_gap_ns(&mut self) -> Result<Option<f64>, Failure> {
        Ok(None)
    }
}

impl Drop for TwoVis {
    fn drop(&mut self) {
        let _ = writeln!(self.to_child, "end");
        wait_for_end(&mut self.child);
    }
}

/// Ends the process with the far side's work, if that is what it was started for.
pub fn child_if_asked() {
    serve_if_asked(CHILD_COMMAND, "the far side of VIs", |args| {
        let [device, cpu] = args else { return Err("two arguments are needed".into()) };
        serve(&device.parse()?, cpu.parse()?)
    });
}

fn serve(device: &DeviceUrl, cpu: usize) -> Result<(), Failure> {
    let (device, nic) = open(device, cpu)?;
    let mut side = Side::new(device, &nic)?;
    let listener = nic.listen(Discriminator::new(NAME)?)?;
    println!("{}", nic.attributes().host);
    listener.wait(None)?.accept(&side.vi)?;
    for line in std::io::stdin().lines() {
        if line? != "go" {
            break;
        }
        loop {
            match side.take()? {
                Some(STOP) => break,
                Some(_) => side.send()?,
                None => {}
            }
        }
        println!("stopped");
    }
    Ok(())
}
