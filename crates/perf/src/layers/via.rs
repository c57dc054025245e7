//! VIs of two processes. The far one answers each message.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hca::Opened;
use hca::via::{
    Descriptor, Discriminator, Done, Listener, MemAttributes, MemHandle, Memory, NetAddress, Nic, NicOptions,
    Reliability, RemoteAddress, Request, Segment, Vi, ViAttributes,
};

use super::LAYER_COMMAND;
use super::two::{BULK, Near, ROUNDS, Two, go_on};
use crate::batches::{median_ns, per_second};
use crate::{Failure, Setup};

const NAME: &[u8] = b"layer";
/// Messages that may be without an answer.
const WINDOW: usize = 16;
/// Sends whose ends were not taken, as many as the verbs' beside them.
const SENDS: usize = 64;
/// Descriptors of a queue, each with its data behind it.
const SLOTS: usize = SENDS + WINDOW;
/// Descriptors that a queue takes.
const DEPTH: u32 = 127;
/// Bytes of a descriptor of two segments.
const DESCRIPTOR: usize = 64;
/// Descriptors of RDMA that may be posted.
const RDMA_WINDOW: usize = 4;
/// Of a stream, every so many messages one is answered, so that the far side always has a descriptor.
const ANSWER_EVERY: usize = 8;
/// The first byte of a message says what is asked for.
const ECHO: u8 = 1;
const STOP: u8 = 2;
const SINK: u8 = 3;

/// The VIs and their messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The level of reliability.
    pub reliability: Reliability,
    /// Bytes of a message, from 1 to 64 KiB.
    pub size: usize,
}

impl Default for Spec {
    fn default() -> Self {
        Self { reliability: Reliability::Delivery, size: 8 }
    }
}

impl Spec {
    fn words(self) -> String {
        let level = match self.reliability {
            Reliability::Unreliable => "unreliable",
            Reliability::Delivery => "delivery",
            Reliability::Reception => "reception",
        };
        format!("via {level} {}", self.size)
    }
    pub(super) fn parse(level: &str, size: &str) -> Result<Self, Failure> {
        let reliability = match level {
            "unreliable" => Reliability::Unreliable,
            "delivery" => Reliability::Delivery,
            "reception" => Reliability::Reception,
            _ => return Err(format!("`{level}` is no level of reliability").into()),
        };
        Ok(Self { reliability, size: size.parse()? })
    }
}

/// A VI, and descriptors that go round.
pub struct End {
    vi: Vi,
    nic: Nic,
    /// Where the near side is expected.
    listener: Option<Listener>,
    memory: Memory,
    /// Send descriptors that are not posted, in the order in which they are next.
    sends: VecDeque<Descriptor>,
    /// Bytes from one descriptor of `memory` to the next.
    stride: usize,
    posted: usize,
    /// Receive descriptors that are posted again behind the next send.
    idle: Vec<Descriptor>,
    /// Requests without an answer.
    open: usize,
    /// Memory for RDMA, and behind it descriptors.
    block: Memory,
    remote: RemoteAddress,
    next_rdma: usize,
    _device: Opened,
}

/// Two connected VIs in two processes. `time`: of a measurement.
///
/// # Errors
/// A device can't be opened, or the process not be started.
pub fn start(setup: &Setup, spec: Spec, time: Duration) -> Result<Two<End>, Failure> {
    Two::start(setup, LAYER_COMMAND, &spec.words(), time, |opened| End::open(opened, spec))
}

impl End {
    pub(super) fn open(device: Opened, spec: Spec) -> Result<Self, Failure> {
        // Queues as long as those of the verbs beside them.
        let options = NicOptions { descriptors_per_queue: DEPTH, ..NicOptions::default() };
        let nic = Nic::open_with(device.context(), &options)?;
        // The statuses of descriptors tell of failures; the end of the other process is none.
        nic.set_error_handler(Some(Arc::new(|_| ())));
        let ptag = nic.create_ptag()?;
        let stride = DESCRIPTOR + spec.size.next_multiple_of(DESCRIPTOR);
        let memory = nic.alloc(2 * SLOTS * stride, &MemAttributes::new(&ptag))?;
        let block = nic.alloc(BULK + RDMA_WINDOW * DESCRIPTOR, &MemAttributes::rdma(&ptag))?;
        let attributes = ViAttributes {
            reliability: spec.reliability,
            max_transfer_size: BULK as u32,
            enable_rdma_write: true,
            enable_rdma_read: spec.reliability != Reliability::Unreliable,
            ..ViAttributes::new(&ptag)
        };
        let vi = nic.create_vi(&attributes, None, None)?;
        let mut sends = VecDeque::new();
        for slot in 0..2 * SLOTS {
            let descriptor = memory.descriptor(slot * stride)?;
            let data = Segment::new(&memory, slot * stride + DESCRIPTOR, spec.size as u32);
            descriptor.write(&Request::new(&[data]))?;
            if slot < SLOTS {
                vi.post_recv(&descriptor)?;
            } else {
                memory.write_at(slot * stride + DESCRIPTOR, &vec![ECHO; spec.size]);
                sends.push_back(descriptor);
            }
        }
        let listener = Some(nic.listen(Discriminator::new(NAME)?)?);
        Ok(Self {
            vi,
            nic,
            listener,
            memory,
            sends,
            stride,
            posted: 0,
            idle: Vec::new(),
            open: 0,
            block,
            remote: RemoteAddress { addr: 0, handle: MemHandle(0) },
            next_rdma: 0,
            _device: device,
        })
    }
    /// Takes the send descriptors that have completed.
    fn collect(&mut self) -> Result<(), Failure> {
        while let Some(done) = self.vi.send_done() {
            well(&done)?;
            // Descriptors of RDMA stand behind their block, in other memory.
            if done.descriptor.handle() == self.memory.handle() {
                self.sends.push_back(done.descriptor);
            }
            self.posted -= 1;
        }
        Ok(())
    }
    #[inline]
    fn send(&mut self) -> Result<(), Failure> {
        while self.posted >= SENDS {
            self.collect()?;
        }
        let descriptor = self.sends.pop_front().ok_or("no send descriptor is left")?;
        self.vi.post_send(descriptor)?;
        self.posted += 1;
        self.post_idle()
    }
    /// Has all messages ask for an answer, as at first.
    fn all_echo(&self) {
        for slot in SLOTS..2 * SLOTS {
            self.memory.write_at(slot * self.stride + DESCRIPTOR, &[ECHO]);
        }
    }
    #[inline]
    fn post_idle(&mut self) -> Result<(), Failure> {
        for descriptor in self.idle.drain(..) {
            self.vi.post_recv(descriptor)?;
        }
        Ok(())
    }
    /// As `send`, with this first byte.
    fn send_as(&mut self, what: u8) -> Result<(), Failure> {
        let next = self.sends.front().ok_or("no send descriptor is left")?;
        let at = (next.addr() - self.memory.addr()) as usize + DESCRIPTOR;
        self.memory.write_at(at, &[what]);
        self.send()
    }
    /// Takes a message, if one has come. Returns its first byte.
    #[inline]
    fn take(&mut self) -> Result<Option<u8>, Failure> {
        let Some(done) = self.vi.recv_done() else { return Ok(None) };
        well(&done)?;
        let offset = (done.descriptor.addr() - self.memory.addr()) as usize;
        let mut first = [0];
        self.memory.read_at(offset + DESCRIPTOR, &mut first);
        self.idle.push(done.descriptor);
        Ok(Some(first[0]))
    }
    /// Posts RDMA of so many bytes of the block.
    fn rdma(&mut self, size: usize, reads: bool) -> Result<(), Failure> {
        let segment = [Segment::new(&self.block, 0, size as u32)];
        let request = match reads {
            true => Request::read(&segment, self.remote),
            false => Request::write(&segment, self.remote),
        };
        let descriptor = self.block.descriptor(BULK + self.next_rdma * DESCRIPTOR)?;
        descriptor.write(&request)?;
        self.vi.post_send(&descriptor)?;
        self.next_rdma = (self.next_rdma + 1) % RDMA_WINDOW;
        self.posted += 1;
        Ok(())
    }
    /// Waits until at most so many send descriptors are posted.
    fn drain(&mut self, left: usize) -> Result<(), Failure> {
        while self.posted > left {
            self.collect()?;
        }
        Ok(())
    }
}

fn well(done: &Done) -> Result<(), Failure> {
    if done.status.is_ok() { Ok(()) } else { Err(format!("a descriptor ended as {:?}", done.status).into()) }
}

impl Near for End {
    fn window(&self) -> usize {
        WINDOW
    }
    #[inline]
    fn ask(&mut self) -> Result<(), Failure> {
        while self.open >= WINDOW {
            self.poll()?;
        }
        self.send()?;
        self.open += 1;
        Ok(())
    }
    #[inline]
    fn poll(&mut self) -> Result<(), Failure> {
        while self.take()?.is_some() {
            self.open -= 1;
        }
        Ok(())
    }
    #[inline]
    fn settle(&mut self) -> Result<(), Failure> {
        while self.open > 0 {
            self.poll()?;
        }
        Ok(())
    }
    fn bulk_ns(&mut self, size: usize, time: Duration) -> Result<Option<f64>, Failure> {
        self.drain(0)?;
        let rate = per_second(time, 1, || {
            go_on()?;
            self.drain(RDMA_WINDOW - 1)?;
            self.rdma(size, false)
        })?;
        self.drain(0)?;
        Ok(Some(1e9 / rate))
    }
}

impl super::two::End for End {
    fn introduction(&self) -> Result<String, Failure> {
        Ok(format!("{} {} {}", self.nic.attributes().host, self.block.addr(), self.block.handle().0))
    }
    fn meet(&mut self, other: &str, near: bool) -> Result<(), Failure> {
        let words: Vec<&str> = other.split(' ').collect();
        let [host, addr, handle] = words[..] else { return Err("three words were expected".into()) };
        self.remote = RemoteAddress { addr: addr.parse()?, handle: MemHandle(handle.parse()?) };
        let listener = self.listener.take().ok_or("it has met the other one before")?;
        if !near {
            listener.wait(None)?.accept(&self.vi)?;
            return Ok(());
        }
        let host: IpAddr = host.parse()?;
        let to = NetAddress { host, discriminator: Discriminator::new(NAME)? };
        self.vi.connect(Discriminator::new(b"near")?, &to, None)?;
        Ok(())
    }
    fn stop(&mut self) -> Result<(), Failure> {
        self.send_as(STOP)?;
        self.drain(0)?;
        self.all_echo();
        Ok(())
    }
    fn serve(&mut self) -> Result<bool, Failure> {
        match self.take()? {
            Some(STOP) => return Ok(true),
            Some(ECHO) => self.send()?,
            _ => self.post_idle()?,
        }
        Ok(false)
    }
}

impl Two<End> {
    /// The time of an RDMA READ of so many bytes, in ns: the median of batches.
    ///
    /// # Errors
    /// A device, or the far side, can't go on.
    pub fn read_ns(&mut self, size: usize) -> Result<f64, Failure> {
        let time = self.time;
        self.during(|end| {
            end.drain(0)?;
            median_ns(time, ROUNDS, || {
                (0..ROUNDS).try_for_each(|_| {
                    end.rdma(size, true)?;
                    end.drain(0)
                })
            })
        })
    }
    /// Messages a second of a stream in one direction; one of eight is answered.
    ///
    /// # Errors
    /// As [`read_ns`](Self::read_ns).
    pub fn messages_per_s(&mut self) -> Result<f64, Failure> {
        let time = self.time;
        self.during(|end| {
            let rate = per_second(time, ROUNDS, || {
                for message in 0..ROUNDS {
                    if message % ANSWER_EVERY > 0 {
                        end.send_as(SINK)?;
                        continue;
                    }
                    while end.open > 1 {
                        end.poll()?;
                    }
                    end.send_as(ECHO)?;
                    end.open += 1;
                }
                Ok::<_, Failure>(())
            })?;
            end.drain(0)?;
            end.all_echo();
            Ok(rate)
        })
    }
}
