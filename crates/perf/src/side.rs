//! One side of a measurement: a queue pair with its memory, through the safe verbs.

mod cm;

use std::collections::VecDeque;

use hca::Opened;
use hca::cm::Connection;
use hca_core::{Access, Mtu, Qkey};
use hca_verbs::{
    Buf, CompletionQueue, Completions, ConnectOptions, Connected, Context, FrozenBuf, Inline, OfferedBy, Pd,
    QueuePair, Rc, RecvBatch, RemoteMr, SendBatch, SendRequest, Service as VerbsService, SharedMr, Uc, Ud,
    UdPeer, ops,
};

use super::channel::ControlError;
use super::control::{Endpoint, Phase};
use super::plan::{Case, Op, Service};
use crate::Failure;

/// Messages of at most this many bytes are sent inline.
const INLINE_BYTES: usize = 256;
/// Bytes that a side has under way at most.
const BYTES_UNDER_WAY: u64 = 2 << 20;
/// Messages that a side has under way at most.
const MAX_WINDOW: u64 = 512;
/// Messages that a side has under way at most where one at a time is measured.
const LATENCY_WINDOW: u64 = 64;
/// READs and atomics that a side has under way at most.
const READ_WINDOW: u64 = 16;
/// Of a stream, every so many requests one is signalled.
const SIGNAL_EVERY: u64 = 64;
/// Requests that one doorbell announces.
const BATCH: u64 = 64;
/// Bytes before each datagram.
const GRH_BYTES: usize = 40;
/// The Q_Key of datagrams.
const QKEY: Qkey = Qkey::new(0x1ca1);
/// The word that ends a write.
const FLAG_BYTES: usize = 8;
/// What messages are made of.
const FILL: u8 = 0x5a;

/// The word that the `n`th message carries. Its third and fourth byte are never zero, since Wireshark takes a payload
/// that begins like an EtherType and two zeros for a tunnelled frame.
pub(super) fn stamp(n: u64) -> u64 {
    n & 0xffff | 0x5a5a << 16 | n >> 16 << 32
}

/// The `n` of a [`stamp`].
fn number(stamp: u64) -> u32 {
    (stamp & 0xffff | stamp >> 16 & !0xffff) as u32
}

/// A queue pair of any service.
enum AnyQp {
    Rc(QueuePair<Rc>),
    Uc(QueuePair<Uc>),
    Ud(QueuePair<Ud>, Option<UdPeer>),
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Polled {
    /// Messages of this side that have completed.
    pub(super) completed: u64,
    /// Messages of the other side that arrived.
    pub(super) received: u64,
}

/// One side.
pub(super) struct Side {
    /// The connection by RDMA CM, if it was made so.
    connection: Option<Connection>,
    qp: AnyQp,
    cq: CompletionQueue,
    wcs: Completions,
    case: Case,
    phase: Phase,
    /// The memory that the other side writes and reads: the message, and behind it the flag.
    window: SharedMr,
    remote: Option<RemoteMr>,
    /// The source of sends that are not inline.
    source: FrozenBuf,
    /// Whether messages go inline.
    inline: bool,
    /// The bytes of inline sends.
    small: [u8; INLINE_BYTES],
    /// Whether SENDs carry numbers, as immediate data.
    numbered: bool,
    /// The number of the next messages.
    number: Option<u32>,
    /// The numbers of messages that arrived, oldest first, as many as receive requests; those of earlier versions of this
    /// program have none.
    arrived: VecDeque<Option<u32>>,
    /// Where READs and atomics go.
    sinks: Vec<Buf>,
    /// Receive buffers that came back and are not posted yet.
    back: Vec<Option<Buf>>,
    recv_depth: usize,
    /// Messages posted, and those known to be complete.
    posted: u64,
    completed: u64,
    window_messages: u64,
    /// A power of two.
    signal_every: u64,
    pd: Pd,
}

impl Side {
    /// A queue pair for a measurement.
    pub(super) fn new(opened: &Opened, case: &Case, phase: Phase) -> Result<Self, Failure> {
        let context: &Context = opened.context();
        let pd = context.alloc_pd()?;
        let size = case.size.bytes() as usize;
        let window_messages = messages_under_way(case, phase);
        // The other side's window twice, so that it meets a request even before those that it has used up
        // are posted again.
        let recv_depth = if takes_messages(case, phase) { 2 * window_messages as usize } else { 0 };
        let send_depth = 2 * window_messages as u32;
        // A queue has one entry at least.
        let cq = context.create_cq(send_depth + recv_depth.max(1) as u32)?;
        let offered = INLINE_BYTES.min(context.attr().max_inline as usize);
        let goes_inline = size <= offered;
        // A flag of a word may go beside the message.
        let inline = if goes_inline { size.max(FLAG_BYTES) } else { FLAG_BYTES };
        let qp = match case.service {
            Service::Rc => AnyQp::Rc(build(&pd, &cq, send_depth, recv_depth, inline)?),
            Service::Uc => AnyQp::Uc(build(&pd, &cq, send_depth, recv_depth, inline)?),
            Service::Ud => AnyQp::Ud(build(&pd, &cq, send_depth, recv_depth, inline)?, None),
        };
        let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let window = shared(&pd, case, flag_offset(size) + FLAG_BYTES, rights)?;
        // Written once, so that it has pages of its own and not the system's one page of zeros.
        let mut source = buffer(&pd, case, if goes_inline { 1 } else { size })?;
        source.fill(FILL);
        if case.op == Op::Read {
            window.write_at(0, &vec![FILL; size]);
        }
        let sinks = match case.op {
            Op::Read | Op::Atomic => buffers(&pd, case, window_messages as usize, size)?,
            _ => Vec::new(),
        };
        let mut side = Self {
            connection: None,
            qp,
            wcs: Completions::with_parts(64, 2 * window_messages as usize + 64),
            cq,
            case: *case,
            phase,
            window,
            remote: None,
            source: source.freeze(),
            inline: goes_inline,
            small: [FILL; INLINE_BYTES],
            numbered: is_numbered(case, phase),
            number: None,
            arrived: VecDeque::new(),
            sinks,
            back: receives(&pd, case, recv_depth)?,
            recv_depth,
            posted: 0,
            completed: 0,
            window_messages,
            signal_every: match case.op {
                Op::Read | Op::Atomic => 1,
                _ => 1 << (window_messages / 4).clamp(1, SIGNAL_EVERY).ilog2(),
            },
            pd,
        };
        side.post_receives()?;
        Ok(side)
    }

    /// Memory that a side takes for a measurement, in bytes.
    pub(super) fn memory(case: &Case, phase: Phase) -> u64 {
        let window = messages_under_way(case, phase);
        let sinks = if matches!(case.op, Op::Read | Op::Atomic) { window } else { 0 };
        let receives = if case.op == Op::Send { 2 * window } else { 0 };
        // The window and the source exist in any case.
        case.size.bytes() * (2 + sinks + receives)
    }

    /// The endpoint for the other side.
    pub(super) fn endpoint(&self) -> Endpoint {
        let qp = match &self.qp {
            AnyQp::Rc(qp) => qp.endpoint(),
            AnyQp::Uc(qp) => qp.endpoint(),
            AnyQp::Ud(qp, _) => qp.endpoint(),
        };
        Endpoint { qp, window: self.window.remote() }
    }

    /// Connects to the other side.
    pub(super) fn connect(&mut self, theirs: &Endpoint, mtu: Mtu) -> Result<(), Failure> {
        self.take_window(theirs)?;
        let options = ConnectOptions { mtu: Some(mtu), ..ConnectOptions::default() };
        match &mut self.qp {
            AnyQp::Rc(qp) => qp.connect(&theirs.qp, &options)?,
            AnyQp::Uc(qp) => qp.connect(&theirs.qp, &options)?,
            AnyQp::Ud(qp, peer) => {
                qp.activate(QKEY)?;
                *peer = Some(self.pd.create_ah(&theirs.qp.av())?.peer(theirs.qp.qpn, QKEY));
            }
        }
        Ok(())
    }
    /// Takes the other side's window as the target of this side's requests.
    fn take_window(&mut self, theirs: &Endpoint) -> Result<(), Failure> {
        let needed = (flag_offset(self.case.size.bytes() as usize) + FLAG_BYTES) as u64;
        if theirs.window.len < needed {
            return Err(ControlError::Window { len: theirs.window.len, needed }.into());
        }
        self.remote = Some(theirs.window);
        Ok(())
    }

    /// Posts one message that carries `stamp`; `false`: the queue is full.
    #[inline]
    pub(super) fn post(&mut self, stamp: u64) -> Result<bool, Failure> {
        self.number = self.numbered.then(|| number(stamp));
        self.post_stamped(stamp)
    }
    #[inline]
    fn post_stamped(&mut self, stamp: u64) -> Result<bool, Failure> {
        self.small[..8].copy_from_slice(&stamp.to_le_bytes());
        Ok(self.post_up_to(1)? == 1)
    }
    /// Posts the answer to the oldest message that was not answered, which carries the same number, or else `stamp`;
    /// `false`: the queue is full.
    #[inline]
    pub(super) fn post_answer(&mut self, stamp: u64) -> Result<bool, Failure> {
        if !self.numbered {
            return self.post(stamp);
        }
        self.number = self.arrived.front().copied().flatten();
        let posted = self.post_stamped(stamp)?;
        if posted {
            self.arrived.pop_front();
        }
        Ok(posted)
    }
    /// Whether what a poll has received is the answer to the message that carries `stamp`, and not to an earlier one,
    /// which is too late.
    #[inline]
    pub(super) fn is_answered(&mut self, polled: Polled, stamp: u64) -> bool {
        if !self.numbered {
            return polled.received > 0;
        }
        let wanted = number(stamp);
        self.arrived.drain(..).fold(false, |found, n| found | n.is_none_or(|n| n == wanted))
    }
    /// Takes completions, and returns the messages that arrived, whichever they are.
    #[inline]
    pub(super) fn receive_any(&mut self) -> Result<u64, Failure> {
        let polled = self.poll()?;
        self.arrived.clear();
        Ok(polled.received)
    }

    /// Posts as many messages as the window and `budget` allow, by one doorbell; returns how many.
    #[inline]
    pub(super) fn post_many(&mut self, budget: u64) -> Result<u64, Failure> {
        self.post_up_to(budget.min(BATCH))
    }

    #[inline]
    fn post_up_to(&mut self, wanted: u64) -> Result<u64, Failure> {
        let free = self.window_messages - (self.posted - self.completed);
        let count = wanted.min(free);
        if count == 0 {
            return Ok(0);
        }
        let message = Message {
            op: self.case.op,
            flagged: self.phase == Phase::Latency && self.case.size.bytes() > FLAG_BYTES as u64,
            counted: counts_arrivals(&self.case, self.phase),
            inline: self.inline,
            number: self.number,
            size: self.case.size.bytes() as usize,
            small: &self.small,
            source: &self.source,
            remote: self.remote.as_ref(),
        };
        let ids = self.posted + 1..=self.posted + count;
        let every = self.signal_every;
        match &mut self.qp {
            AnyQp::Rc(qp) => {
                let mut batch = qp.batch();
                for id in ids {
                    match self.case.op {
                        Op::Send => message.send(&mut batch, id, every)?,
                        Op::Write => message.write(&mut batch, id, every)?,
                        _ => message.fetch(&mut batch, id, &mut self.sinks)?,
                    }
                }
            }
            AnyQp::Uc(qp) => {
                let mut batch = qp.batch();
                for id in ids {
                    match self.case.op {
                        Op::Send => message.send(&mut batch, id, every)?,
                        _ => message.write(&mut batch, id, every)?,
                    }
                }
            }
            AnyQp::Ud(qp, peer) => {
                let peer = peer.as_ref().expect("connected before anything is posted");
                let mut batch = qp.batch();
                for id in ids {
                    message.datagram(&mut batch, peer, id, every)?;
                }
            }
        }
        self.posted += count;
        Ok(count)
    }

    /// Messages that were posted, and those of them that are known to be complete.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.posted, self.completed)
    }
    /// Has the last messages of a stream reported: posts one more, which is signalled, if they are not. `false`: the
    /// window is full, some of which is signalled; completions are to be taken first.
    pub(super) fn finish(&mut self) -> Result<bool, Failure> {
        if is_signaled(self.posted, self.signal_every) {
            return Ok(true);
        }
        let every = std::mem::replace(&mut self.signal_every, 1);
        let posted = self.post_up_to(1);
        self.signal_every = every;
        Ok(posted? == 1)
    }

    /// Takes completions, and posts used receive requests again in batches.
    #[inline]
    pub(super) fn poll(&mut self) -> Result<Polled, Failure> {
        let mut polled = Polled::default();
        let mut newest = self.completed;
        for wc in self.cq.poll(&mut self.wcs) {
            let mut wc = wc.ok()?;
            if wc.opcode.is_recv() {
                self.back.push(wc.take_buf());
                if self.numbered {
                    // One more than can wait is lost.
                    if self.arrived.len() == self.recv_depth {
                        continue;
                    }
                    self.arrived.push_back(wc.imm());
                }
                polled.received += 1;
            } else {
                newest = newest.max(wc.id);
                self.sinks.extend(wc.take_bufs());
            }
        }
        polled.completed = newest - self.completed;
        self.completed = newest;
        if self.back.len() * 4 > self.recv_depth {
            self.post_receives()?;
        }
        Ok(polled)
    }

    /// Posts the receive requests that came back.
    fn post_receives(&mut self) -> Result<(), Failure> {
        let post = |mut batch: RecvBatch<'_>, back: &mut Vec<Option<Buf>>| -> Result<(), Failure> {
            for buf in back.drain(..) {
                match buf {
                    Some(buf) => batch.post_recv(buf).map_err(|e| e.error)?,
                    None => batch.post_recv(()).map_err(|e| e.error)?,
                }
            }
            Ok(())
        };
        match &mut self.qp {
            AnyQp::Rc(qp) => post(qp.recv_batch(), &mut self.back),
            AnyQp::Uc(qp) => post(qp.recv_batch(), &mut self.back),
            AnyQp::Ud(qp, _) => post(qp.recv_batch(), &mut self.back),
        }
    }

    /// Waits until the other side's flag satisfies `done`, and returns it. `done` sees the bits that
    /// a message of this size carries.
    #[inline]
    pub(super) fn wait_flag(&self, mut done: impl FnMut(u64) -> bool) -> u64 {
        let (at, mask) = (flag_offset(self.case.size.bytes() as usize), self.flag_mask());
        self.window.wait_until(at, |word| done(word & mask)) & mask
    }

    /// The bits of a stamp that a message of this size carries.
    pub(super) fn flag_mask(&self) -> u64 {
        match self.case.size.bytes() {
            size @ 1..8 => (1 << (8 * size)) - 1,
            _ => u64::MAX,
        }
    }
}

/// Messages that a side has under way at most: no more than are used, so that the same few cache lines of its queues
/// are gone through again and again.
fn messages_under_way(case: &Case, phase: Phase) -> u64 {
    let max = match (phase, case.op) {
        (Phase::Latency, _) => LATENCY_WINDOW,
        (Phase::Stream, Op::Read | Op::Atomic) => READ_WINDOW,
        (Phase::Stream, _) => MAX_WINDOW,
    };
    (BYTES_UNDER_WAY / case.size.bytes()).clamp(2, max)
}

/// The receive requests, with a buffer each if messages carry bytes to them.
fn receives(pd: &Pd, case: &Case, depth: usize) -> Result<Vec<Option<Buf>>, Failure> {
    if case.op != Op::Send {
        return Ok((0..depth).map(|_| None).collect());
    }
    let grh = if case.service == Service::Ud { GRH_BYTES } else { 0 };
    Ok(buffers(pd, case, depth, case.size.bytes() as usize + grh)?.into_iter().map(Some).collect())
}

/// A buffer of the memory that is measured.
fn buffer(pd: &Pd, case: &Case, len: usize) -> Result<Buf, Failure> {
    Ok(if case.foreign { pd.adopt(vec![FILL; len])? } else { pd.alloc(len)? })
}
/// So many of them.
fn buffers(pd: &Pd, case: &Case, count: usize, len: usize) -> Result<Vec<Buf>, Failure> {
    if case.foreign {
        (0..count).map(|_| buffer(pd, case, len)).collect()
    } else {
        Ok(pd.alloc_many(count, len)?)
    }
}
/// The memory that the other side uses.
fn shared(pd: &Pd, case: &Case, len: usize, rights: Access) -> Result<SharedMr, Failure> {
    Ok(if case.foreign { pd.adopt_shared(vec![0_u8; len], rights)? } else { pd.alloc_shared(len, rights)? })
}

/// Whether the request of this number is signalled, of every `every`, a power of two.
#[inline]
fn is_signaled(id: u64, every: u64) -> bool {
    id & (every - 1) == 0
}

/// Whether the other side's messages take receive requests.
fn takes_messages(case: &Case, phase: Phase) -> bool {
    case.op == Op::Send || counts_arrivals(case, phase)
}

/// Whether WRITEs carry immediate data, so that their arrival can be counted where nothing else tells.
fn counts_arrivals(case: &Case, phase: Phase) -> bool {
    case.op == Op::Write && case.service == Service::Uc && phase == Phase::Stream
}

/// Whether SENDs carry numbers: where one at a time is measured, and a late answer must not be taken for that to the next
/// message.
fn is_numbered(case: &Case, phase: Phase) -> bool {
    case.op == Op::Send && case.service != Service::Rc && phase == Phase::Latency
}

/// Where the flag of a message lies: behind it, or the message is the flag.
fn flag_offset(size: usize) -> usize {
    if size <= FLAG_BYTES { 0 } else { size.next_multiple_of(FLAG_BYTES) }
}

fn build<S: VerbsService>(
    pd: &Pd,
    cq: &CompletionQueue,
    send_depth: u32,
    recv_depth: usize,
    inline: usize,
) -> Result<QueuePair<S>, Failure> {
    let builder = pd.qp::<S>(cq).max_send_wr(send_depth).max_recv_wr(recv_depth.max(1) as u32);
    Ok(builder.max_send_sge(1).max_recv_sge(1).max_inline(inline as u32).build()?)
}

/// What all messages of a batch have in common.
struct Message<'a> {
    op: Op,
    /// A flag is written behind each WRITE.
    flagged: bool,
    /// WRITEs carry immediate data.
    counted: bool,
    inline: bool,
    number: Option<u32>,
    size: usize,
    small: &'a [u8; INLINE_BYTES],
    source: &'a FrozenBuf,
    remote: Option<&'a RemoteMr>,
}

impl Message<'_> {
    /// The message's bytes, where they go inline.
    #[inline]
    fn inline(&self) -> Option<Inline<'_>> {
        self.inline.then(|| Inline(&self.small[..self.size]))
    }

    fn remote(&self) -> &RemoteMr {
        self.remote.expect("connected before anything is posted")
    }

    #[inline]
    fn send<S: Connected>(&self, batch: &mut SendBatch<'_, S>, id: u64, every: u64) -> Result<(), Failure>
    where
        ops::Send: OfferedBy<S>,
    {
        let signaled = is_signaled(id, every);
        match self.inline() {
            Some(bytes) => post(batch, self.numbered(bytes).id(id).signaled(signaled)),
            None => post(batch, self.numbered(self.source.clone()).id(id).signaled(signaled)),
        }
    }
    /// A SEND, with its number if it has one.
    #[inline]
    fn numbered<L: hca_verbs::GatherList>(&self, bytes: L) -> SendRequest<ops::Send, L> {
        let request = SendRequest::send(bytes);
        match self.number {
            Some(number) => request.imm(number),
            None => request,
        }
    }

    #[inline]
    fn datagram(
        &self,
        batch: &mut SendBatch<'_, Ud>,
        to: &UdPeer,
        id: u64,
        every: u64,
    ) -> Result<(), Failure> {
        let signaled = is_signaled(id, every);
        match self.inline() {
            Some(bytes) => post(batch, self.numbered(bytes).id(id).signaled(signaled).to(to)),
            None => post(batch, self.numbered(self.source.clone()).id(id).signaled(signaled).to(to)),
        }
    }

    #[inline]
    fn write<S: Connected>(&self, batch: &mut SendBatch<'_, S>, id: u64, every: u64) -> Result<(), Failure>
    where
        ops::Write: OfferedBy<S>,
    {
        let signaled = is_signaled(id, every);
        let remote = *self.remote();
        let body_signaled = signaled && !self.flagged;
        match self.inline() {
            Some(bytes) => self.write_body(batch, SendRequest::write(bytes, remote).id(id), body_signaled)?,
            None => {
                let source = self.source.clone();
                self.write_body(batch, SendRequest::write(source, remote).id(id), body_signaled)?;
            }
        }
        if self.flagged {
            let flag = Inline(&self.small[..FLAG_BYTES]);
            let at = remote.try_range(flag_offset(self.size)..)?;
            post(batch, SendRequest::write(flag, at).id(id).signaled(signaled))?;
        }
        Ok(())
    }

    #[inline]
    fn write_body<S: Connected, L: hca_verbs::GatherList>(
        &self,
        batch: &mut SendBatch<'_, S>,
        request: SendRequest<ops::Write, L>,
        signaled: bool,
    ) -> Result<(), Failure>
    where
        ops::Write: OfferedBy<S>,
    {
        let request = if self.counted { request.imm(0) } else { request };
        post(batch, request.signaled(signaled))
    }

    #[inline]
    fn fetch(&self, batch: &mut SendBatch<'_, Rc>, id: u64, sinks: &mut Vec<Buf>) -> Result<(), Failure> {
        let sink = sinks.pop().expect("as many buffers as the window has messages");
        let remote = *self.remote();
        match self.op {
            Op::Atomic => post(batch, SendRequest::fetch_add(sink, remote, 1).id(id)),
            _ => post(batch, SendRequest::read(sink, remote).id(id)),
        }
    }
}

#[inline]
fn post<S: VerbsService, O: OfferedBy<S>, L: hca_verbs::GatherList>(
    batch: &mut SendBatch<'_, S>,
    request: SendRequest<O, L>,
) -> Result<(), Failure> {
    Ok(batch.post_send(request).map_err(|refused| refused.error)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Size;

    /// Two sides of one device that are connected.
    fn pair(service: Service, size: u64) -> (Side, Side) {
        let device = format!("loopback://late-{service}-{size}?progress=inline").parse().unwrap();
        let opened = hca::open_exactly(&device).unwrap();
        let case = Case { op: Op::Send, service, size: Size::of(size), foreign: false };
        let side = || Side::new(&opened, &case, Phase::Latency).unwrap();
        let (mut near, mut far) = (side(), side());
        let (a, b) = (near.endpoint(), far.endpoint());
        near.connect(&b, Mtu::B1024).unwrap();
        far.connect(&a, Mtu::B1024).unwrap();
        (near, far)
    }
    /// Polls until so many messages have come.
    fn take(side: &mut Side, count: u64) {
        let mut came = 0;
        while came < count {
            came += side.poll().unwrap().received;
        }
    }
    /// Polls until something has come; whether it is the answer to a message.
    fn hears(side: &mut Side, message: u64) -> bool {
        loop {
            let polled = side.poll().unwrap();
            if polled.received > 0 {
                return side.is_answered(polled, stamp(message));
            }
        }
    }

    #[test]
    fn a_late_answer_is_not_that_to_the_next_message() {
        for (service, size) in
            [Service::Uc, Service::Ud].into_iter().flat_map(|of| [1, 8, 600].map(|n| (of, n)))
        {
            let (mut near, mut far) = pair(service, size);
            for message in (1..2000).step_by(2) {
                assert!(near.post(stamp(message)).unwrap());
                take(&mut far, 1);
                // The message was given up, and the next one is under way as its answer comes.
                assert!(near.post(stamp(message + 1)).unwrap());
                assert!(far.post_answer(stamp(0)).unwrap());
                assert!(!hears(&mut near, message + 1), "{service}, {size} bytes: message {message}");
                take(&mut far, 1);
                assert!(far.post_answer(stamp(0)).unwrap());
                assert!(hears(&mut near, message + 1), "{service}, {size} bytes: message {message}");
            }
        }
    }

    #[test]
    fn messages_without_numbers_are_answered_without() {
        let (mut near, mut far) = pair(Service::Ud, 8);
        (near.number, near.numbered) = (None, false);
        assert!(near.post(stamp(5)).unwrap());
        take(&mut far, 1);
        assert!(far.post_answer(stamp(1)).unwrap());
        near.numbered = true;
        assert!(hears(&mut near, 7), "a peer of an earlier version answers");
    }

    #[test]
    fn a_stamp_has_its_number() {
        for n in [0, 1, 0xffff, 0x1_0000, 0xffff_ffff] {
            assert_eq!(u64::from(number(stamp(n))), n);
        }
    }
}
