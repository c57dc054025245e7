//! The second driver: put and get on buffers with tags, without matching of messages in the order of their posts.
//!
//! A side has two queue pairs, each connected to the other kind at the other side. Protocol messages leave by the polled
//! one, whose completions are looked at when a slot is needed. They arrive at the signalled one, where an interrupt
//! tells of them, and which carries RDMA, so that no long transfer is before a protocol message. A short message goes
//! within a protocol message; a long one is fetched (put) or written (get) by the target.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, yield_now};
use std::time::{Duration, Instant};

use hca::{
    Buf, CompletionQueue, Completions, ConnectOptions, Endpoint, Opened, Pd, QueuePair, Rc, RemoteMr,
    SendRequest, SharedMr,
};
use hca_core::Access;
use hca_perf::layers::two::{self, Near, Two};
use hca_perf::{Failure, Setup};

use super::{CHILD_COMMAND, PATIENCE, silent, take_by_interrupt};

/// Bytes of the header of a protocol message: kind, whether an acknowledgement is wanted, status, two tags, and the
/// initiator's memory.
pub const HEADER: usize = 16 + RemoteMr::BYTES;
/// Protocol messages that may be posted in each direction.
const SLOTS: usize = 16;
/// How often the interrupt's thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes of the buffer of the test program.
const BUFFER: usize = 1 << 20;
/// The tags of the test program: the message, and the end of a burst.
const MESSAGE: u32 = 1;
const OVER: u32 = 2;

/// Why a request was not carried out, as an acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// It was carried out.
    Done = 1,
    /// The target has no buffer with the tag.
    NoSuchTag = 2,
    /// The target's buffer is shorter than the data.
    TooLong = 3,
}

/// A notification of one operation on a buffer.
#[derive(Clone, Debug, Default)]
pub struct Notice(Arc<AtomicU64>);

impl Notice {
    /// The status and the number of bytes, once the operation has ended.
    pub fn get(&self) -> Option<(Status, usize)> {
        let word = self.0.load(Ordering::Acquire);
        let status = match word >> 32 {
            0 => return None,
            1 => Status::Done,
            2 => Status::NoSuchTag,
            _ => Status::TooLong,
        };
        Some((status, word as u32 as usize))
    }
    fn set(&self, status: Status, len: usize) {
        self.0.store((status as u64) << 32 | len as u64, Ordering::Release);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Put = 1,
    Get = 2,
    /// The data of a get, or word that they are there.
    Data = 3,
    Ack = 4,
}

/// A protocol message, without its data.
#[derive(Clone, Copy)]
struct Header {
    kind: Kind,
    acked: bool,
    status: u32,
    /// The initiator's buffer and the target's.
    initiator: u32,
    target: u32,
    /// The initiator's memory, whose length is that of the data.
    memory: RemoteMr,
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        (bytes[0], bytes[1]) = (self.kind as u8, self.acked.into());
        for (at, word) in [(4, self.status), (8, self.initiator), (12, self.target)] {
            bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        bytes[16..].copy_from_slice(&self.memory.to_bytes());
        bytes
    }
    fn of_bytes(bytes: &[u8; HEADER]) -> Option<Self> {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let kind = match bytes[0] {
            1 => Kind::Put,
            2 => Kind::Get,
            3 => Kind::Data,
            4 => Kind::Ack,
            _ => return None,
        };
        let memory = RemoteMr::from_bytes(bytes[16..].try_into().ok()?);
        let (status, initiator, target) = (word(4), word(8), word(12));
        Some(Self { kind, acked: bytes[1] != 0, status, initiator, target, memory })
    }
}

/// A registered buffer, with the notifications that are asked for.
struct Tagged {
    memory: SharedMr,
    incoming: Option<Notice>,
    outgoing: Option<Notice>,
}

/// The state that the program's calls and the interrupts share.
struct State {
    polled: QueuePair<Rc>,
    polled_cq: CompletionQueue,
    signalled: QueuePair<Rc>,
    wcs: Completions,
    /// Protocol messages that are sent.
    outbox: SharedMr,
    free: Vec<usize>,
    slot_bytes: usize,
    /// Data on their way from a buffer to a protocol message.
    scratch: Vec<u8>,
    buffers: HashMap<u32, Tagged>,
    /// RDMA of this side as a target, by the number of its request.
    under_way: HashMap<u64, Header>,
    next: u64,
    /// Why the interrupts have ended, if they have.
    failed: Option<String>,
    pd: Pd,
}

impl State {
    /// Sends a protocol message with data of a buffer behind it.
    fn send(&mut self, header: &Header, data: Option<(u32, usize)>) -> Result<(), Failure> {
        while self.free.is_empty() {
            for wc in self.polled_cq.poll(&mut self.wcs) {
                self.free.push(wc.ok()?.id as usize);
            }
        }
        let slot = self.free.pop().expect("one is free");
        let at = slot * self.slot_bytes;
        self.outbox.write_at(at, &header.to_bytes());
        let mut len = HEADER;
        if let Some((tag, bytes)) = data
            && let Some(buffer) = self.buffers.get(&tag)
        {
            self.scratch.resize(bytes, 0);
            buffer.memory.read_at(0, &mut self.scratch);
            self.outbox.write_at(at + HEADER, &self.scratch);
            len += bytes;
        }
        let request = SendRequest::send(self.outbox.range(at..at + len)).id(slot as u64);
        Ok(self.polled.post_send(request).map_err(|refused| refused.error)?)
    }
    fn is_short(&self, len: usize) -> bool {
        HEADER + len <= self.slot_bytes
    }
    fn tell(&mut self, tag: u32, incoming: bool, status: Status, len: usize) {
        let Some(buffer) = self.buffers.get_mut(&tag) else { return };
        let notice = if incoming { &mut buffer.incoming } else { &mut buffer.outgoing };
        if let Some(notice) = notice.take() {
            notice.set(status, len);
        }
    }
    /// A protocol message has come.
    fn handle(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let Some((head, data)) = bytes.split_first_chunk() else { return Ok(()) };
        let Some(header) = Header::of_bytes(head) else { return Ok(()) };
        let len = header.memory.len as usize;
        match header.kind {
            Kind::Put | Kind::Get => self.carry_out(&header, data, len),
            Kind::Data => {
                if self.is_short(len)
                    && let Some(buffer) = self.buffers.get(&header.initiator)
                    && data.len() == len
                    && len <= buffer.memory.len()
                {
                    buffer.memory.write_at(0, data);
                }
                self.tell(header.initiator, true, Status::Done, len);
                Ok(())
            }
            Kind::Ack => {
                let status = if header.status == 2 { Status::NoSuchTag } else { Status::TooLong };
                let status = if header.status == 1 { Status::Done } else { status };
                self.tell(header.initiator, false, status, len);
                Ok(())
            }
        }
    }
    /// Carries out the other side's request.
    fn carry_out(&mut self, header: &Header, data: &[u8], len: usize) -> Result<(), Failure> {
        let refusal = match self.buffers.get(&header.target) {
            None => Some(Status::NoSuchTag),
            Some(buffer) if len > buffer.memory.len() => Some(Status::TooLong),
            Some(_) => None,
        };
        if let Some(status) = refusal {
            return if header.acked { self.acknowledge(header, status) } else { Ok(()) };
        }
        let memory = &self.buffers[&header.target].memory;
        match (header.kind, self.is_short(len)) {
            (Kind::Put, true) => {
                memory.write_at(0, &data[..len.min(data.len())]);
                self.ended(header)
            }
            (Kind::Get, true) => {
                self.send(&Header { kind: Kind::Data, ..*header }, Some((header.target, len)))?;
                self.ended(header)
            }
            (kind, _) => {
                let (local, id) = (memory.range(..len), self.next);
                self.next += 1;
                self.under_way.insert(id, *header);
                let remote = header.memory;
                let posted = match kind {
                    Kind::Put => {
                        self.signalled.post_send(SendRequest::read(local, remote).id(id)).map_err(|r| r.error)
                    }
                    _ => self
                        .signalled
                        .post_send(SendRequest::write(local, remote).id(id))
                        .map_err(|r| r.error),
                };
                Ok(posted?)
            }
        }
    }
    /// RDMA of this side has completed.
    fn transferred(&mut self, id: u64) -> Result<(), Failure> {
        let Some(header) = self.under_way.remove(&id) else { return Ok(()) };
        if header.kind == Kind::Get {
            self.send(&Header { kind: Kind::Data, ..header }, None)?;
        }
        self.ended(&header)
    }
    /// A request was carried out.
    fn ended(&mut self, header: &Header) -> Result<(), Failure> {
        self.tell(header.target, header.kind == Kind::Put, Status::Done, header.memory.len as usize);
        if header.acked { self.acknowledge(header, Status::Done) } else { Ok(()) }
    }
    fn acknowledge(&mut self, header: &Header, status: Status) -> Result<(), Failure> {
        self.send(&Header { kind: Kind::Ack, status: status as u32, ..*header }, None)
    }
}

/// The driver of one process.
pub struct Driver {
    state: Arc<Mutex<State>>,
    over: Arc<AtomicBool>,
    interrupts: Option<JoinHandle<()>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver {
    /// A driver whose protocol messages have so many bytes at most, their headers included.
    ///
    /// # Errors
    /// The device's limits, or the messages have no room for a header.
    pub fn open(pd: &Pd, protocol: usize) -> Result<Self, Failure> {
        if protocol < HEADER {
            return Err(format!("a protocol message has a header of {HEADER} B, not {protocol} B").into());
        }
        let context = pd.context();
        let (polled_cq, mut cq) =
            (context.create_cq(2 * SLOTS as u32)?, context.create_cq(4 * SLOTS as u32)?);
        let polled = pd.qp::<Rc>(&polled_cq).max_send_wr(SLOTS as u32).max_recv_wr(1).build()?;
        let mut signalled =
            pd.qp::<Rc>(&cq).max_send_wr(2 * SLOTS as u32).max_recv_wr(2 * SLOTS as u32).build()?;
        for buf in pd.alloc_many(2 * SLOTS, protocol)? {
            signalled.post_recv(buf).map_err(|refused| refused.error)?;
        }
        let state = Arc::new(Mutex::new(State {
            polled,
            polled_cq,
            signalled,
            wcs: Completions::with_parts(SLOTS, 2 * SLOTS),
            outbox: pd.alloc_shared(SLOTS * protocol, Access::empty())?,
            free: (0..SLOTS).collect(),
            slot_bytes: protocol,
            scratch: Vec::new(),
            buffers: HashMap::new(),
            under_way: HashMap::new(),
            next: 0,
            failed: None,
            pd: pd.clone(),
        }));
        let over = Arc::new(AtomicBool::new(false));
        let (serves, ends) = (Arc::clone(&state), Arc::clone(&over));
        let interrupts = std::thread::spawn(move || {
            if let Err(e) = serve_interrupts(&serves, &mut cq, &ends) {
                lock(&serves).failed = Some(e.to_string());
            }
        });
        Ok(Self { state, over, interrupts: Some(interrupts) })
    }
    /// The endpoints that the other side has to know.
    pub fn endpoints(&self) -> [Endpoint; 2] {
        let state = lock(&self.state);
        [state.polled.endpoint(), state.signalled.endpoint()]
    }
    /// Connects to the other side's endpoints: each queue pair to the other kind.
    ///
    /// # Errors
    /// The endpoints are none.
    pub fn connect(
        &self,
        [polled, signalled]: &[Endpoint; 2],
        options: &ConnectOptions,
    ) -> Result<(), Failure> {
        let state = lock(&self.state);
        state.polled.connect(signalled, options)?;
        Ok(state.signalled.connect(polled, options)?)
    }
    /// Registers a buffer with a tag. Returns its memory.
    ///
    /// # Errors
    /// The device's limits, or the tag is in use.
    pub fn register(&self, tag: u32, len: usize) -> Result<SharedMr, Failure> {
        let mut state = lock(&self.state);
        let memory = state.pd.alloc_shared(len, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        if state.buffers.contains_key(&tag) {
            return Err(format!("the tag {tag} is in use").into());
        }
        state.buffers.insert(tag, Tagged { memory: memory.clone(), incoming: None, outgoing: None });
        Ok(memory)
    }
    /// Asks to be told, once, when the next data have come into a buffer.
    ///
    /// # Errors
    /// There is no such buffer, or it is asked for the other direction.
    pub fn notify_incoming(&self, tag: u32) -> Result<Notice, Failure> {
        let mut state = lock(&self.state);
        check(&state)?;
        let buffer = state.buffers.get_mut(&tag).ok_or_else(|| format!("no buffer has the tag {tag}"))?;
        if buffer.outgoing.is_some() {
            return Err("the buffer has a notification of outgoing data".into());
        }
        Ok(buffer.incoming.insert(Notice::default()).clone())
    }
    /// Asks to be told, once, when data have left a buffer: of a short put when it is sent, of a long put and of one
    /// with an acknowledgement when that has come, of the other side's get when the data were sent.
    ///
    /// # Errors
    /// As [`notify_incoming`](Self::notify_incoming).
    pub fn notify_outgoing(&self, tag: u32) -> Result<Notice, Failure> {
        let mut state = lock(&self.state);
        check(&state)?;
        let buffer = state.buffers.get_mut(&tag).ok_or_else(|| format!("no buffer has the tag {tag}"))?;
        if buffer.incoming.is_some() {
            return Err("the buffer has a notification of incoming data".into());
        }
        Ok(buffer.outgoing.insert(Notice::default()).clone())
    }
    /// Begins to put the first bytes of a buffer into the other side's buffer.
    ///
    /// # Errors
    /// There is no such buffer, or the device can't go on.
    pub fn put(&self, local: u32, remote: u32, len: usize, acked: bool) -> Result<(), Failure> {
        self.request(Kind::Put, local, remote, len, acked)
    }
    /// Begins to get the first bytes of the other side's buffer.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn get(&self, local: u32, remote: u32, len: usize, acked: bool) -> Result<(), Failure> {
        self.request(Kind::Get, local, remote, len, acked)
    }
    fn request(&self, kind: Kind, local: u32, remote: u32, len: usize, acked: bool) -> Result<(), Failure> {
        let mut state = lock(&self.state);
        check(&state)?;
        let buffer = state.buffers.get(&local).ok_or_else(|| format!("no buffer has the tag {local}"))?;
        if len > buffer.memory.len() {
            return Err(format!("the buffer has {} B, not {len} B", buffer.memory.len()).into());
        }
        let memory = buffer.memory.remote().range(0..len);
        let header = Header { kind, acked, status: 0, initiator: local, target: remote, memory };
        let within = kind == Kind::Put && state.is_short(len);
        state.send(&header, within.then_some((local, len)))?;
        if within && !acked {
            state.tell(local, false, Status::Done, len);
        }
        Ok(())
    }
}

fn check(state: &State) -> Result<(), Failure> {
    match &state.failed {
        None => Ok(()),
        Some(why) => Err(why.clone().into()),
    }
}

/// The interrupt service: takes the completions of the signalled queue pair.
fn serve_interrupts(
    state: &Mutex<State>,
    cq: &mut CompletionQueue,
    over: &AtomicBool,
) -> Result<(), Failure> {
    let mut wcs = Completions::with_parts(SLOTS, 2 * SLOTS);
    while !over.load(Ordering::Acquire) {
        take_by_interrupt(cq, &mut wcs, LOOK, |wc| {
            let mut state = lock(state);
            if !wc.opcode.is_recv() {
                return state.transferred(wc.id);
            }
            if let Some(bytes) = wc.payload() {
                state.handle(bytes)?;
            }
            let back: Option<Buf> = wc.take_buf();
            back.map_or(Ok(()), |buf| Ok(state.signalled.post_recv(buf).map_err(|refused| refused.error)?))
        })?;
    }
    Ok(())
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(interrupts) = self.interrupts.take() {
            // A panic there was reported by itself.
            let _ = interrupts.join();
        }
    }
}

/// The test program of latency: put, and poll the notification of the other side's put.
pub struct End {
    driver: Driver,
    size: usize,
    waits: Option<Notice>,
    over: Option<Notice>,
    /// How long the other side may take.
    patience: Duration,
    opened: Opened,
}

/// The driver in two processes, with protocol messages of so many bytes. `time`: of a measurement.
///
/// # Errors
/// A device can't be opened, or the process not be started.
pub fn start(setup: &Setup, protocol: usize, time: Duration) -> Result<Two<End>, Failure> {
    let spec = format!("second {protocol}");
    Two::start(setup, CHILD_COMMAND, &spec, time, |opened| End::open(opened, protocol))
}

/// The time of a round trip of puts of so many bytes, in ns: the median of batches.
///
/// # Errors
/// A device, or the far side, can't go on.
pub fn round_trip_ns(two: &mut Two<End>, size: usize) -> Result<f64, Failure> {
    two.during(|end| {
        end.size = size;
        Ok(())
    })?;
    Ok(2.0 * two.latency_ns()?)
}

impl End {
    pub(super) fn open(opened: Opened, protocol: usize) -> Result<Self, Failure> {
        let driver = Driver::open(&opened.context().alloc_pd()?, protocol)?;
        driver.register(MESSAGE, BUFFER)?.write_at(0, &vec![7; BUFFER]);
        driver.register(OVER, 8)?;
        Ok(Self { driver, size: 8, waits: None, over: None, patience: PATIENCE, opened })
    }
}

impl Near for End {
    fn window(&self) -> usize {
        1
    }
    fn ask(&mut self) -> Result<(), Failure> {
        self.settle()?;
        self.waits = Some(self.driver.notify_incoming(MESSAGE)?);
        self.driver.put(MESSAGE, MESSAGE, self.size, false)
    }
    fn poll(&mut self) -> Result<(), Failure> {
        Ok(())
    }
    fn settle(&mut self) -> Result<(), Failure> {
        if let Some(notice) = self.waits.take() {
            let begin = Instant::now();
            while notice.get().is_none() {
                check(&lock(&self.driver.state))?;
                yield_now();
                if begin.elapsed() >= self.patience {
                    return Err(silent(self.patience, "no answer has come"));
                }
            }
        }
        Ok(())
    }
}

impl two::End for End {
    fn introduction(&self) -> Result<String, Failure> {
        Ok(serde_json::to_string(&self.driver.endpoints())?)
    }
    fn meet(&mut self, other: &str, near: bool) -> Result<(), Failure> {
        let options = ConnectOptions { mtu: Some(self.opened.mtu()), ..ConnectOptions::default() };
        if !near {
            self.waits = Some(self.driver.notify_incoming(MESSAGE)?);
            self.over = Some(self.driver.notify_incoming(OVER)?);
        }
        self.driver.connect(&serde_json::from_str(other)?, &options)
    }
    fn stop(&mut self) -> Result<(), Failure> {
        self.driver.put(OVER, OVER, 8, false)
    }
    fn serve(&mut self) -> Result<bool, Failure> {
        if let Some((_, len)) = self.waits.as_ref().and_then(Notice::get) {
            self.waits = Some(self.driver.notify_incoming(MESSAGE)?);
            self.driver.put(MESSAGE, MESSAGE, len, false)?;
            return Ok(false);
        }
        if self.over.as_ref().is_some_and(|notice| notice.get().is_some()) {
            self.over = Some(self.driver.notify_incoming(OVER)?);
            return Ok(true);
        }
        check(&lock(&self.driver.state))?;
        yield_now();
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(name: &str, protocol: usize) -> ([Driver; 2], [Opened; 2]) {
        let url = format!("loopback://{name}?progress=inline").parse().unwrap();
        let opened = [(); 2].map(|()| hca::open_exactly(&url).unwrap());
        let drivers =
            opened.each_ref().map(|o| Driver::open(&o.context().alloc_pd().unwrap(), protocol).unwrap());
        let ends = drivers.each_ref().map(Driver::endpoints);
        drivers[0].connect(&ends[1], &ConnectOptions::default()).unwrap();
        drivers[1].connect(&ends[0], &ConnectOptions::default()).unwrap();
        (drivers, opened)
    }

    fn bytes(memory: &SharedMr) -> Vec<u8> {
        let mut bytes = vec![0; memory.len()];
        memory.read_at(0, &mut bytes);
        bytes
    }

    fn wait(notice: &Notice) -> (Status, usize) {
        let begin = Instant::now();
        loop {
            if let Some(told) = notice.get() {
                return told;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "no notification came");
            yield_now();
        }
    }

    #[test]
    fn puts_and_gets_within_a_protocol_message_and_by_rdma_move_the_same_bytes() {
        let ([a, b], _opened) = two("drivers-second", 64);
        for (round, len) in [1, 64 - HEADER, 65 - HEADER, 5000].into_iter().enumerate() {
            let tag = 10 + round as u32;
            let (from, to) = (a.register(tag, len).unwrap(), b.register(tag, len).unwrap());
            from.write_at(0, &vec![round as u8 + 1; len]);
            let (came, sent) = (b.notify_incoming(tag).unwrap(), a.notify_outgoing(tag).unwrap());
            a.put(tag, tag, len, true).unwrap();
            assert_eq!((wait(&came), wait(&sent)), ((Status::Done, len), (Status::Done, len)));
            assert_eq!(bytes(&to), vec![round as u8 + 1; len]);
            to.write_at(0, &vec![0x40 + round as u8; len]);
            let (came, left) = (a.notify_incoming(tag).unwrap(), b.notify_outgoing(tag).unwrap());
            a.get(tag, tag, len, false).unwrap();
            assert_eq!((wait(&came), wait(&left)), ((Status::Done, len), (Status::Done, len)));
            assert_eq!(bytes(&from), vec![0x40 + round as u8; len]);
        }
    }

    #[test]
    fn an_acknowledgement_says_why_nothing_was_done_and_a_notification_tells_one_operation() {
        let ([a, b], _opened) = two("drivers-second-refused", 64);
        a.register(1, 100).unwrap();
        let short = b.register(1, 10).unwrap();
        for (remote, len, status) in
            [(9, 4, Status::NoSuchTag), (1, 11, Status::TooLong), (1, 10, Status::Done)]
        {
            let told = a.notify_outgoing(1).unwrap();
            a.put(1, remote, len, true).unwrap();
            assert_eq!(wait(&told).0, status, "{len} bytes to the tag {remote}");
        }
        let once = b.notify_incoming(1).unwrap();
        assert!(b.notify_outgoing(1).is_err(), "a buffer has one kind of notification");
        a.put(1, 1, 3, false).unwrap();
        assert_eq!(wait(&once), (Status::Done, 3));
        let again = a.notify_outgoing(1).unwrap();
        a.put(1, 1, 5, true).unwrap();
        assert_eq!((wait(&again), once.get()), ((Status::Done, 5), Some((Status::Done, 3))));
        assert!(a.put(1, 1, 101, false).is_err() && a.put(7, 1, 1, false).is_err());
        assert_eq!(short.len(), 10);
    }

    #[test]
    fn a_far_side_that_does_not_answer_is_an_error() {
        let url = "loopback://drivers-second-silent?progress=thread".parse().unwrap();
        let [mut near, mut far] = [(); 2].map(|()| End::open(hca::open_exactly(&url).unwrap(), 64).unwrap());
        let told = [&near, &far].map(|end| two::End::introduction(end).unwrap());
        two::End::meet(&mut near, &told[1], true).unwrap();
        two::End::meet(&mut far, &told[0], false).unwrap();
        near.patience = Duration::from_millis(20);
        near.ask().unwrap();
        let told = near.settle().unwrap_err().to_string();
        assert!(told.contains("no answer has come for 20ms: the other side has ended"), "{told}");
    }
}
