//! Work queues: FIFOs of posted descriptors, in front of one side of a queue pair.

use std::ops::Range;
use std::sync::Arc;

use hca_core::{QpHandle, Rkey, WcOpcode, WcStatus};
use hca_verbs::{
    GatherList, Inline, OfferedBy, Rc, RecvQueue, Refused, RemoteMr, ScatterList, SendQueue, SendRequest,
    SharedRange, Uc, Wc,
};

use crate::memory::{MemTable, Region};
use crate::ring::Ring;
use crate::vi::ViShared;
use crate::{
    CONTROL_BYTES, Control, ControlSegment, Descriptor, Done, Error, ErrorKind, MemHandle, Op, Ptag,
    Reliability, Status, ViState,
};

/// The most segments of a descriptor, whatever the device can.
pub(crate) const MAX_SEGMENTS: usize = 30;
/// Payloads of up to so many bytes are copied into the request.
pub(crate) const MAX_INLINE: usize = 64;
/// Sends whose ends are learnt together, at most.
const MOST_TOGETHER: u64 = 16;
/// Set in the number of a request that ends no descriptor, see [`WorkQueue::ask`].
const ASKING: u64 = 1 << 63;

/// A work queue of a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queue {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}

/// One side of a queue pair.
pub(crate) enum Side {
    RcSend(SendQueue<Rc>),
    UcSend(SendQueue<Uc>),
    RcRecv(RecvQueue<Rc>),
    UcRecv(RecvQueue<Uc>),
}

/// What the checks of descriptors need.
#[derive(Clone)]
pub(crate) struct Rules {
    pub(crate) ptag: Ptag,
    pub(crate) reliability: Reliability,
    pub(crate) max_transfer_size: u32,
    pub(crate) max_segments: usize,
    pub(crate) max_inline: usize,
}

pub(crate) struct WorkQueue {
    vi: Arc<ViShared>,
    which: Queue,
    table: Arc<MemTable>,
    side: Side,
    qp: QpHandle,
    rules: Rules,
    posted: Ring,
    /// The number of the first descriptor that has not completed.
    ended: u64,
    /// The number of the first descriptor whose completion nobody took note of.
    noted: u64,
    /// The number behind the last send that was signalled: the ends of those from there on were not asked for.
    asked_to: u64,
    /// Of so many sends in a row one is signalled.
    together: u64,
    depth: usize,
    /// A descriptor has failed on a reliable VI: those behind it are flushed.
    broken: bool,
    /// Descriptors were flushed before a connection was made.
    early: bool,
    /// Descriptors that wait for their turn may have their ends, as they were refused or flushed.
    refused: bool,
    news: Option<ErrorKind>,
}

/// A descriptor that passed the checks.
#[derive(Clone, Copy)]
struct Checked {
    control: Control,
    immediate: u32,
    remote: Option<RemoteMr>,
}

impl WorkQueue {
    pub(crate) fn new(
        vi: &Arc<ViShared>,
        which: Queue,
        table: &Arc<MemTable>,
        (side, qp): (Side, QpHandle),
        rules: Rules,
        depth: usize,
    ) -> Self {
        Self {
            vi: Arc::clone(vi),
            which,
            table: Arc::clone(table),
            side,
            qp,
            rules,
            posted: Ring::new(depth),
            ended: 0,
            noted: 0,
            asked_to: 0,
            together: 1,
            depth,
            broken: false,
            early: false,
            refused: false,
            news: None,
        }
    }
    #[inline]
    pub(crate) fn vi(&self) -> &Arc<ViShared> {
        &self.vi
    }
    #[inline]
    pub(crate) fn which(&self) -> Queue {
        self.which
    }
    pub(crate) fn qp(&self) -> QpHandle {
        self.qp
    }
    #[inline]
    pub(crate) fn is_of(&self, qp: QpHandle) -> bool {
        self.qp == qp
    }
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.news.is_some()
    }
    pub(crate) fn take_news(&mut self) -> Option<ErrorKind> {
        self.news.take()
    }
    #[inline]
    pub(crate) fn take_count(&mut self) -> u64 {
        self.ended - std::mem::replace(&mut self.noted, self.ended)
    }
    pub(crate) fn len(&self) -> usize {
        self.posted.len()
    }

    /// Takes the first descriptor off the queue, if it has completed.
    #[inline]
    pub(crate) fn dequeue(&mut self) -> Option<Done> {
        if self.posted.first() == self.ended { None } else { self.posted.pop() }
    }

    /// Posts a descriptor, and those that follow it by `Next`.
    #[inline]
    pub(crate) fn post(&mut self, descriptor: Descriptor) -> Result<(), Box<Error>> {
        if self.posted.len() >= self.depth {
            return Err(self.full());
        }
        let state = self.vi.state();
        if self.which == Queue::Send && matches!(state, ViState::Idle | ViState::ConnectPending) {
            return Err(not_connected(state));
        }
        if !descriptor.region.is_of(&self.rules.ptag) {
            return Err(Box::new(Error::Ptag));
        }
        let control = descriptor.control();
        if control.next != 0 {
            return self.post_chain(descriptor, control, state);
        }
        self.take(descriptor, control, state);
        Ok(())
    }
    /// Posts the descriptors of a chain in their order, or none of them.
    #[cold]
    fn post_chain(
        &mut self,
        first: Descriptor,
        mut last: ControlSegment,
        state: ViState,
    ) -> Result<(), Box<Error>> {
        let mut chain = vec![first];
        while last.next != 0 {
            // A circle ends here.
            if chain.len() >= self.depth {
                let why = "it is a circle, or longer than a work queue";
                return Err(Box::new(Error::Parameter { what: "chain of descriptors", why }));
            }
            let (addr, handle) = (last.next, last.next_handle);
            let region = self.table.find(MemHandle(handle));
            let region = region.ok_or(Error::Memory { handle, addr, len: CONTROL_BYTES })?;
            if !region.is_of(&self.rules.ptag) {
                return Err(Box::new(Error::Ptag));
            }
            let descriptor = Descriptor::at(region, addr)?;
            last = descriptor.control();
            chain.push(descriptor);
        }
        if self.posted.len() + chain.len() > self.depth {
            return Err(self.full());
        }
        for descriptor in chain {
            let control = descriptor.control();
            self.take(descriptor, control, state);
        }
        Ok(())
    }
    #[cold]
    fn full(&self) -> Box<Error> {
        Box::new(Error::InUse { what: "descriptors of the work queue", users: self.posted.len() })
    }
    /// Takes a descriptor that may be posted.
    #[inline]
    fn take(&mut self, descriptor: Descriptor, control: ControlSegment, state: ViState) {
        let length = control.length;
        descriptor.begin(length);
        let sent = if state == ViState::Error {
            Err(Status::FLUSHED_ERROR)
        } else {
            self.carry_out(&descriptor, control, self.posted.next())
        };
        let status = self.op(control.control);
        *self.posted.vacant() = Some(Done { descriptor, status, length, immediate: None });
        if let Err(error) = sent {
            self.refuse(self.posted.next() - 1, error);
            self.settle();
            self.ask();
            // No connection ends by it, so those that are posted later are not behind it.
            let not_yet = matches!(state, ViState::Idle | ViState::ConnectPending);
            self.broken &= !(not_yet && self.ended == self.posted.next());
        }
    }
    /// The operation, as the status word says it.
    #[inline]
    fn op(&self, bits: u16) -> Status {
        let bits = Control::from_bits_retain(bits);
        Status::of(match self.which {
            Queue::Receive => Op::Receive,
            Queue::Send if bits.contains(Control::RDMA_WRITE) => Op::RdmaWrite,
            Queue::Send if bits.contains(Control::RDMA_READ) => Op::RdmaRead,
            Queue::Send => Op::Send,
        })
    }

    /// A descriptor could not be carried out: its end is known.
    #[cold]
    fn refuse(&mut self, number: u64, error: Status) {
        self.broken |= self.rules.reliability.is_reliable();
        if let Some(posted) = self.posted.at(number) {
            posted.fail(error);
        }
    }

    /// The checks of control bits. Returns the place that an RDMA reaches, and the number of the first data segment.
    fn check_bits(
        &self,
        bits: Control,
        descriptor: &Descriptor,
        control: ControlSegment,
    ) -> Result<(Option<RemoteMr>, usize), Status> {
        let rdma = bits & (Control::RDMA_WRITE | Control::RDMA_READ);
        let wrong = !Control::all().contains(bits)
            || rdma == Control::RDMA_WRITE | Control::RDMA_READ
            || bits.contains(Control::RDMA_READ | Control::IMMEDIATE)
            || bits.contains(Control::RDMA_READ) && !self.rules.reliability.is_reliable()
            || self.which == Queue::Receive && !bits.is_empty()
            || !rdma.is_empty() && control.segment_count == 0;
        if wrong {
            return Err(Status::FORMAT_ERROR);
        }
        if rdma.is_empty() {
            return Ok((None, 0));
        }
        let at = descriptor.segment(0).ok_or(Status::FORMAT_ERROR)?;
        let len = control.length.into();
        Ok((Some(RemoteMr { addr: at.addr, rkey: Rkey::new(at.handle), len }), 1))
    }

    /// Calls `f` with the memory of a segment of a descriptor: its region, the offset, and the number of bytes. The
    /// memory of the descriptor has the tag of the VI, as the post has seen.
    #[inline(always)]
    fn resolve<T>(
        &self,
        descriptor: &Descriptor,
        index: usize,
        f: impl FnOnce(&Region, usize, usize) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let segment = descriptor.segment(index).ok_or(Status::FORMAT_ERROR)?;
        let other;
        let region = if segment.handle() == descriptor.handle() {
            &descriptor.region
        } else {
            other = self.table.find(segment.handle()).filter(|other| other.is_of(&self.rules.ptag));
            other.as_ref().ok_or(Status::PROTECTION_ERROR)?
        };
        let len = segment.len as usize;
        f(region, region.offset(segment.addr, len).ok_or(Status::PROTECTION_ERROR)?, len)
    }
    #[inline(always)]
    fn range(&self, descriptor: &Descriptor, index: usize) -> Result<SharedRange, Status> {
        self.resolve(descriptor, index, |region, offset, len| Ok(region.range(offset, len)))
    }
    fn ranges(&self, descriptor: &Descriptor, segments: Range<usize>) -> Result<Vec<SharedRange>, Status> {
        segments.map(|index| self.range(descriptor, index)).collect()
    }

    /// Checks a descriptor with its segments, each of which is read once, and posts the request to the device.
    #[inline]
    fn carry_out(
        &mut self,
        descriptor: &Descriptor,
        control: ControlSegment,
        number: u64,
    ) -> Result<(), Status> {
        if self.broken {
            return Err(Status::FLUSHED_ERROR);
        }
        let bits = Control::from_bits_retain(control.control);
        let (remote, first) =
            if bits.is_empty() { (None, 0) } else { self.check_bits(bits, descriptor, control)? };
        let segments = first..usize::from(control.segment_count);
        if segments.len() > self.rules.max_segments {
            return Err(Status::FORMAT_ERROR);
        }
        if self.which == Queue::Receive {
            return if segments.len() == 1 {
                let range = self.range(descriptor, first)?;
                self.side.recv(range)
            } else {
                let ranges = self.ranges(descriptor, segments)?;
                self.side.recv(ranges)
            };
        }
        let length = control.length as usize;
        if control.length > self.rules.max_transfer_size {
            return Err(Status::LENGTH_ERROR);
        }
        let checked = Checked { control: bits, immediate: control.immediate, remote };
        if length <= self.rules.max_inline && !bits.contains(Control::RDMA_READ) {
            return self.send_inline(descriptor, segments, checked, length, number);
        }
        if segments.len() == 1 {
            let range = self.range(descriptor, first)?;
            check_sum(range.len(), length)?;
            self.side.send_memory(checked, range, number)?;
        } else {
            let ranges = self.ranges(descriptor, segments)?;
            check_sum(ranges.iter().map(SharedRange::len).sum(), length)?;
            self.side.send_memory(checked, ranges, number)?;
        }
        self.asked_to = number + 1;
        Ok(())
    }
    /// Posts a send or an RDMA WRITE of a few bytes, which are copied into the request.
    #[inline(always)]
    fn send_inline(
        &mut self,
        descriptor: &Descriptor,
        segments: Range<usize>,
        checked: Checked,
        length: usize,
        number: u64,
    ) -> Result<(), Status> {
        let (mut room, mut at) = ([0; MAX_INLINE], 0);
        let bytes = &mut room[..length];
        for index in segments {
            at += self.resolve(descriptor, index, |region, offset, len| {
                let into = bytes.get_mut(at..at + len).ok_or(Status::FORMAT_ERROR)?;
                region.mr().read_at(offset, into);
                Ok(len)
            })?;
        }
        check_sum(at, length)?;
        // A program waits for the end of a WRITE, which a near peer's memory has at once.
        let signal = checked.control.contains(Control::RDMA_WRITE) || self.is_to_signal(number);
        self.side.send(checked, Inline(bytes), (number, signal))?;
        if signal {
            self.asked_to = number + 1;
        }
        Ok(())
    }

    /// Whether the request of a small send is signalled. A request that is acknowledged tells the end of all before it.
    /// So a program that has several sends under way learns of some ends together, and one that waits for each send of
    /// each end by itself. An unreliable VI has no acknowledgements to save.
    #[inline]
    fn is_to_signal(&mut self, number: u64) -> bool {
        if self.posted.len() as u64 >= 2 * self.together && self.together < MOST_TOGETHER {
            self.together *= 2;
        }
        number + 1 - self.asked_to >= self.together || !self.rules.reliability.is_reliable()
    }
    /// Asks for the end of sends that were not signalled, if a program waits for them and no earlier end will tell of
    /// more: by a WRITE of no bytes, which needs no handle and no descriptor of the peer.
    pub(crate) fn ask(&mut self) {
        let (ended, next) = (self.ended, self.posted.next());
        if ended == next {
            // A thread that looks in vain may wait for the end of the next send.
            self.together = 1;
        }
        if self.which == Queue::Receive || ended == next || ended < self.asked_to || self.asked_to >= next {
            return;
        }
        if let Side::RcSend(queue) = &mut self.side {
            self.together = 1;
            let request = SendRequest::write(Inline(&[]), RemoteMr::default()).id(next | ASKING);
            match queue.post_send(request) {
                Ok(()) => self.asked_to = next,
                Err(refused) => {
                    tracing::debug!(error = %refused.error, "the ends of sends can not be asked for");
                }
            }
        }
    }

    /// A request of the device has completed.
    #[inline]
    pub(crate) fn complete(&mut self, wc: &Wc<'_>) {
        if self.which == Queue::Send {
            // Those before it have succeeded: they would have told of a failure.
            let (number, asking) = (wc.id & !ASKING, wc.id & ASKING != 0);
            while self.ended < number && self.end_next(|_| ()) {}
            if asking {
                if wc.status != WcStatus::Success {
                    self.take_note(error_of(wc.status));
                }
                return;
            }
        }
        if wc.status != WcStatus::Success {
            return self.complete_badly(wc.status);
        }
        let receives = self.which == Queue::Receive;
        self.end_next(|posted| {
            if receives {
                posted.length = wc.byte_len;
                if wc.opcode == WcOpcode::RecvRdmaWithImm {
                    posted.status = Status::of(Op::RemoteRdmaWrite);
                }
                if let Some(immediate) = wc.imm() {
                    posted.status |= Status::IMMEDIATE;
                    posted.immediate = Some(immediate);
                }
            }
        });
    }
    #[cold]
    fn complete_badly(&mut self, status: WcStatus) {
        if status == WcStatus::WrFlushed && self.vi.state() == ViState::ConnectPending {
            // The peer has gone before it was connected. The next queue pair gets the descriptors.
            self.early = true;
            return;
        }
        let (error, Some(posted)) = (error_of(status), self.posted.at(self.ended)) else { return };
        posted.fail(error);
        if status == WcStatus::Fatal {
            self.news = Some(ErrorKind::Catastrophic);
        }
        // Before those behind it are flushed. The queue pair has ended, whichever its service is.
        self.note(error);
        self.end_next(|_| ());
    }

    /// The first descriptor that has not completed does, with success after `change`. Returns whether there was one.
    #[inline]
    fn end_next(&mut self, change: impl FnOnce(&mut Done)) -> bool {
        let Some(posted) = self.posted.at(self.ended) else { return false };
        change(posted);
        posted.status |= Status::DONE;
        posted.tell();
        self.ended += 1;
        // Those behind it may have their ends already.
        if self.refused {
            self.settle();
        }
        true
    }

    /// Completes the descriptors from the first one on whose end is known.
    #[cold]
    fn settle(&mut self) {
        while let Some(posted) = self.posted.at(self.ended).filter(|posted| posted.has_end()) {
            let status = posted.status;
            posted.tell();
            self.ended += 1;
            self.take_note(status);
        }
        self.refused = self.posted.next() > self.ended;
        // The device tells nobody of these ends.
        self.vi.nic.waiters.call();
    }
    /// Notes that a descriptor has failed, if it has and that ends a connection.
    #[cold]
    fn take_note(&mut self, status: Status) {
        if self.rules.reliability.is_reliable() {
            self.note(status);
        }
    }
    fn note(&mut self, status: Status) {
        let error = status.error();
        if !error.is_empty() && self.news.is_none() {
            let lost = error.intersects(Status::FLUSHED_ERROR | Status::TRANSPORT_ERROR);
            self.news = Some(if lost { ErrorKind::ConnectionLost } else { ErrorKind::Descriptor });
        }
    }

    /// Goes on with another queue pair, which gets the descriptors that have not completed.
    pub(crate) fn carry_on(&mut self, (side, qp): (Side, QpHandle), rules: Rules) {
        (self.side, self.qp, self.rules, self.early) = (side, qp, rules, false);
        self.asked_to = self.ended;
        // Descriptors behind one that was refused have their end.
        let broken = std::mem::take(&mut self.broken);
        for number in self.ended..self.posted.next() {
            let Some(posted) = self.posted.at(number).filter(|posted| !posted.has_end()) else { continue };
            let descriptor = posted.descriptor.clone();
            if let Err(error) = self.carry_out(&descriptor, descriptor.control(), number) {
                self.refuse(number, error);
            }
        }
        self.broken |= broken;
        self.settle();
    }
    /// The connection was made after all, and has ended meanwhile.
    pub(crate) fn end_early(&mut self) {
        if std::mem::take(&mut self.early) {
            self.flush();
        }
    }
    /// Ends all descriptors that have not completed as flushed, and goes on with another queue pair.
    pub(crate) fn begin_anew(&mut self, (side, qp): (Side, QpHandle), rules: Rules) {
        self.flush();
        (self.side, self.qp, self.rules, self.broken, self.early) = (side, qp, rules, false, false);
    }
    /// Ends all descriptors that have not completed as flushed.
    pub(crate) fn flush(&mut self) {
        for number in self.ended..self.posted.next() {
            if let Some(posted) = self.posted.at(number).filter(|posted| !posted.has_end()) {
                posted.fail(Status::FLUSHED_ERROR);
            }
        }
        self.settle();
        // The VI knows.
        self.news = None;
    }
}

impl Side {
    /// Posts a receive.
    #[inline]
    fn recv<L: ScatterList>(&mut self, list: L) -> Result<(), Status> {
        match self {
            Self::RcRecv(queue) => queue.post_recv(list).map_err(|refused| status_of(&refused)),
            Self::UcRecv(queue) => queue.post_recv(list).map_err(|refused| status_of(&refused)),
            Self::RcSend(_) | Self::UcSend(_) => unreachable!("a receive queue has the receiving side"),
        }
    }
    /// Posts a send or a WRITE.
    #[inline(always)]
    fn send<L: GatherList>(&mut self, checked: Checked, list: L, numbered: Numbered) -> Result<(), Status> {
        match self {
            Self::RcSend(queue) => post(queue, checked, list, numbered),
            Self::UcSend(queue) => post(queue, checked, list, numbered),
            Self::RcRecv(_) | Self::UcRecv(_) => unreachable!("a send queue has the sending side"),
        }
    }
    /// Posts a send, a WRITE or a READ, signalled.
    fn send_memory<L: ScatterList>(&mut self, checked: Checked, list: L, number: u64) -> Result<(), Status> {
        match (self, checked.remote) {
            (Self::RcSend(queue), Some(remote)) if checked.control.contains(Control::RDMA_READ) => {
                submit(queue, SendRequest::read(list, remote), checked, (number, true))
            }
            (side, _) => side.send(checked, list, (number, true)),
        }
    }
}

/// The length of a message is the sum of its segments.
#[inline]
fn check_sum(sum: usize, length: usize) -> Result<(), Status> {
    if sum == length { Ok(()) } else { Err(Status::FORMAT_ERROR) }
}

/// The number of a request, and whether it is signalled.
type Numbered = (u64, bool);

#[inline(always)]
fn post<S, L: GatherList>(
    queue: &mut SendQueue<S>,
    checked: Checked,
    list: L,
    numbered: Numbered,
) -> Result<(), Status>
where
    S: hca_verbs::Service,
    hca_verbs::ops::Send: OfferedBy<S>,
    hca_verbs::ops::Write: OfferedBy<S>,
{
    let immediate = checked.control.contains(Control::IMMEDIATE).then_some(checked.immediate);
    match (checked.remote, immediate) {
        (None, None) => submit(queue, SendRequest::send(list), checked, numbered),
        (None, Some(data)) => submit(queue, SendRequest::send(list).imm(data), checked, numbered),
        (Some(remote), None) => submit(queue, SendRequest::write(list, remote), checked, numbered),
        (Some(remote), Some(data)) => {
            submit(queue, SendRequest::write(list, remote).imm(data), checked, numbered)
        }
    }
}

#[inline(always)]
fn submit<S: hca_verbs::Service, O: OfferedBy<S>, L: GatherList>(
    queue: &mut SendQueue<S>,
    request: SendRequest<O, L>,
    checked: Checked,
    (number, signal): Numbered,
) -> Result<(), Status> {
    let request = request.id(number).signaled(signal);
    let request = if checked.control.contains(Control::QUEUE_FENCE) { request.fence() } else { request };
    queue.post_send(request).map_err(|refused| status_of(&refused))
}

/// A VI that sends has to be connected.
#[cold]
fn not_connected(state: ViState) -> Box<Error> {
    Box::new(Error::State { state, needs: "connect it before a descriptor is posted for sending" })
}

/// The status of a descriptor that the queue pair refused.
#[cold]
fn status_of<R>(refused: &Refused<R>) -> Status {
    use hca_verbs::PostRefusal;
    match refused.error {
        PostRefusal::ForeignPd { .. } => Status::PROTECTION_ERROR,
        PostRefusal::RemoteTooShort { .. } => Status::LENGTH_ERROR,
        error => {
            tracing::debug!(%error, "the queue pair refuses a descriptor");
            Status::FLUSHED_ERROR
        }
    }
}

/// The error bit of a failed request.
#[cold]
fn error_of(status: WcStatus) -> Status {
    match status {
        WcStatus::LocalLength => Status::LENGTH_ERROR,
        WcStatus::LocalProtection | WcStatus::LocalAccess => Status::PROTECTION_ERROR,
        WcStatus::WrFlushed => Status::FLUSHED_ERROR,
        WcStatus::RemoteAccess => Status::RDMA_PROTECTION_ERROR,
        WcStatus::RemoteInvalidRequest | WcStatus::RemoteOperation | WcStatus::RnrRetryExceeded => {
            Status::REMOTE_DESCRIPTOR_ERROR
        }
        _ => Status::TRANSPORT_ERROR,
    }
}
