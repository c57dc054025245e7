//! The engine's fast path for small messages: from a send queue to a cache line of a peer's ring, and from a line to a
//! completion. The fast path handles the common case only, and leaves any other case unchanged to the general path.
#![allow(unsafe_code)] // the calls of `dma`, each with its argument

use hca_core::{Access, AsyncEvent, Instant, Payload, PdHandle, QpHandle, SendFlags, Sge, WcOpcode};
use hca_fabric::{LINE_DATA_BYTES, LineData, LineMessage, LineSink, LinkId, ShmFabric};
use hca_transport::{Lane, plain_send_to};

use crate::engine::host::complete_sent;
use crate::engine::{AckRule, Core, Engine, LISTED};
use crate::limits::slot_of;
use crate::memory::dma;
use crate::memory::mr::MrTable;
use crate::objects::parts::local;
use crate::objects::qp::{QpEntry, QpRes, RecvQueue};
use crate::objects::qp_shared::QpShared;
use crate::objects::tables::Tables;
use crate::queues::doorbell::Doorbell;
use crate::queues::ring::{Consumer, Producer};
use crate::queues::slot::{Place, RecvHeader, SendHeader, cell_to_sge, list};

/// Short turns with messages between two looks at the acknowledgements that are owed, while the program is likely to
/// answer.
const ACK_TURNS: u32 = 8;

impl Engine {
    /// What follows when messages were taken by the quick way.
    #[inline(always)]
    pub(super) fn after_lines(&mut self, taken: usize, acks: AckRule) {
        if !self.core.ready.is_empty() {
            self.transmit(self.core.now);
        }
        // One message is answered soon, and its acknowledgement goes along.
        if taken > 1 || self.short_turns.is_one_of(ACK_TURNS) || acks == AckRule::Now {
            self.flush_acks(self.core.now, acks);
        }
        self.conclude_completions();
    }

    /// Sends a plain SEND that stands in the send queue behind all that was shown to the engine, if nothing is to be
    /// sent before it, and shows it. `false`: nothing was done.
    #[inline(always)]
    pub(crate) fn send_line(
        &mut self,
        bell: &Doorbell<QpShared>,
        qp: QpHandle,
        payload: Payload<'_>,
        len: u32,
        queue: &mut Producer<SendHeader>,
    ) -> bool {
        if !self.core.ready.is_empty() || !bell.is_empty() {
            return false;
        }
        let Some(near) = self.network.near() else { return false };
        self.core.send_line(qp, near, (payload, len), queue).is_some()
    }
}

impl LineSink for Core {
    #[inline(always)]
    fn line(&mut self, from: LinkId, head: [u32; 3], data: LineData<'_>) -> bool {
        self.take_line(from, head, data).is_some()
    }
}

impl Core {
    /// Takes a plain SEND. `None`: nothing was done.
    #[inline(always)]
    fn take_line(&mut self, from: LinkId, head: [u32; 3], data: LineData<'_>) -> Option<()> {
        let qpn = plain_send_to(head)?;
        let slot = slot_of(qpn);
        let QpEntry { machine, res, ack_since, .. } = &mut **self.qps.at_mut(slot)?;
        if machine.qpn().raw() != qpn || res.link != Some(from) {
            return None;
        }
        let mut lane = machine.lane_to_take()?;
        let completed = lane.accepts(head)?;
        let len = data.len() as u32;
        let wr_id = place(res, &mut self.tables, data)?;
        res.shared.ops.completed(WcOpcode::Recv, len);
        lane.took();
        let mut wants_transmit = false;
        if completed > 0 {
            let QpRes { sq, shared, send_cq, .. } = &mut *res;
            let end = lane.oldest().wrapping_add(completed);
            sq.release_each(end, |header| complete_sent(header, shared, *send_cq, &mut self.tables));
            wants_transmit = lane.completed(completed);
        }
        self.tables.complete_plain(res.recv_cq, wr_id, res.shared.handle, WcOpcode::Recv, len);
        if ack_since.is_none_or(|since| since == LISTED) && ack_since.replace(self.turn).is_none() {
            self.acks.push(slot);
        }
        if wants_transmit {
            machine.forget_lanes();
            self.settle(slot);
        }
        Some(())
    }

    /// As [`Engine::send_line`].
    #[inline(always)]
    fn send_line(
        &mut self,
        qp: QpHandle,
        near: &mut ShmFabric,
        (payload, len): (Payload<'_>, u32),
        queue: &mut Producer<SendHeader>,
    ) -> Option<()> {
        let QpEntry { machine, res, ack_since, timer, .. } =
            &mut **self.qps.get_mut(qp.index, qp.generation)?;
        let mut lane = machine.lane_to_send()?;
        // If it is next, all before it has been shown.
        if !lane.has_credit() || queue.filled() != lane.next().wrapping_add(1) {
            return None;
        }
        let mut message = LineMessage::new(lane.head(), len as usize);
        gather_posted(payload, res, &self.tables, message.data_mut())?;
        let mut tx = near.line_tx(res.link?)?;
        if !tx.push(&mut message) {
            return None;
        }
        tx.call();
        queue.publish();
        res.sq.refresh();
        lane.sent(self.now);
        tell_along(&mut lane, res, ack_since);
        if is_due_before(timer, &lane) {
            self.settle(qp.index);
        }
        Some(())
    }

    /// As [`send_lines`], by who has just posted, without the engine's lists. `true`: nothing is left of what was
    /// posted.
    #[inline]
    pub(super) fn send_posted_lines(&mut self, qp: QpHandle, near: &mut ShmFabric) -> bool {
        let Some(entry) = self.qps.get_mut(qp.index, qp.generation) else { return false };
        // What a pace may hold up is for a turn.
        if entry.res.pace.is_some() {
            return false;
        }
        let Sent { is_all, is_due, .. } = send_lines(entry, &self.tables, self.now, near, usize::MAX);
        if is_due {
            self.settle(qp.index);
        }
        is_all
    }
}

/// The outcome of [`send_lines`].
#[derive(Default)]
pub(super) struct Sent {
    /// The requests that were sent.
    pub(super) count: usize,
    /// No request is left.
    is_all: bool,
    /// The queue pair needs a look before the timers of the engine.
    is_due: bool,
}

/// Sends plain SENDs from a queue pair's send queue, at most `max`, as long as nothing else is to be sent before them.
#[inline(always)]
pub(super) fn send_lines(
    entry: &mut QpEntry,
    tables: &Tables,
    now: Instant,
    near: &mut ShmFabric,
    max: usize,
) -> Sent {
    let mut sent = Sent::default();
    let QpEntry { machine, res, ack_since, timer, .. } = entry;
    let Some(mut lane) = machine.lane_to_send() else { return sent };
    let Some(mut tx) = res.link.and_then(|link| near.line_tx(link)) else { return sent };
    let posted = res.sq.refresh();
    let mut message = LineMessage::new(lane.head(), 0);
    while lane.next() != posted && sent.count < max && lane.has_credit() {
        if gather(res, tables, lane.next(), lane.head(), &mut message).is_none() || !tx.push(&mut message) {
            break;
        }
        lane.sent(now);
        sent.count += 1;
    }
    tx.call();
    sent.is_all = lane.next() == posted;
    if sent.count > 0 {
        tell_along(&mut lane, res, ack_since);
        sent.is_due = is_due_before(timer, &lane);
    }
    sent
}

/// Whether what was sent is looked after earlier than the engine's timers do.
#[inline(always)]
fn is_due_before(timer: &Option<Instant>, lane: &Lane<'_>) -> bool {
    timer.is_none_or(|at| lane.resends_at() < at)
}

/// What was sent told along what is done of the peer's requests.
#[inline(always)]
fn tell_along(lane: &mut Lane<'_>, res: &QpRes, ack_since: &mut Option<u64>) {
    if !lane.told_along(|| recv_credits(res)) {
        *ack_since = ack_since.map(|_| LISTED);
    }
}

/// Receive requests that wait; a shared queue counts none.
#[inline]
fn recv_credits(res: &QpRes) -> Option<u32> {
    match &res.rq {
        RecvQueue::Own(rq) => Some(rq.published().wrapping_sub(rq.head())),
        _ => None,
    }
}

/// Places a message in the oldest receive request and takes that away, if it has one entry with room. Returns the
/// request's number.
#[inline(always)]
fn place(res: &mut QpRes, tables: &mut Tables, data: LineData<'_>) -> Option<u64> {
    match &mut res.rq {
        RecvQueue::Own(rq) => place_in(rq, &tables.mrs, res.recv_pd, data),
        RecvQueue::Shared(srq) => place_in_shared(*srq, tables, res.recv_pd, data),
        // It has no lane.
        RecvQueue::Xrc(_) | RecvQueue::Datagrams(_) | RecvQueue::Context(_) => None,
    }
}

/// The same of a shared queue.
#[inline]
fn place_in_shared(srq: u32, tables: &mut Tables, pd: PdHandle, data: LineData<'_>) -> Option<u64> {
    let q = tables.srqs.at_mut(srq)?;
    // Requests that were given back unused come first.
    if !q.returned.is_empty() {
        return None;
    }
    let wr_id = place_in(&mut q.ring, &tables.mrs, pd, data)?;
    if q.limit_reached() {
        let event = AsyncEvent::SrqLimitReached(q.handle);
        tables.event(event);
    }
    Some(wr_id)
}

#[inline(always)]
fn place_in(rq: &mut Consumer<RecvHeader>, mrs: &MrTable, pd: PdHandle, data: LineData<'_>) -> Option<u64> {
    let header = rq.oldest()?;
    let len = data.len() as u32;
    if len > 0 {
        let entry = cell_to_sge(header.first);
        if header.sges != 1 || len > entry.len {
            return None;
        }
        let to = mrs.translate(pd, entry.lkey.raw(), entry.addr, len.into(), Access::LOCAL_WRITE).ok()?;
        // SAFETY: dma (1): `translate` found the range inside a live region, and we run under the engine's lock.
        unsafe { data.place(to) };
    }
    let wr_id = header.wr_id;
    rq.release(rq.head().wrapping_add(1));
    Some(wr_id)
}

/// Makes the message of a request, if it is a plain SEND that a line takes and whose bytes stand in one piece.
#[inline(always)]
fn gather(res: &QpRes, tables: &Tables, index: u32, head: [u32; 3], message: &mut LineMessage) -> Option<()> {
    let (header, cells) = res.sq.at(index);
    let plain = header.op.is_plain_send()
        && !header.flags.intersects(SendFlags::FENCE | SendFlags::SOLICITED)
        && header.len as usize <= LINE_DATA_BYTES;
    if !plain {
        return None;
    }
    *message = LineMessage::new(head, header.len as usize);
    let (out, cells) = (message.data_mut(), list(cells, header));
    if header.place == Place::Slot {
        put_inline(out, &bytemuck::cast_slice(cells)[..header.len as usize]);
    } else if !out.is_empty() {
        let one = header.sges == 1 && header.place == Place::Memory;
        load(cell_to_sge(*cells.first().filter(|_| one)?), res, tables, out)?;
    }
    Some(())
}

/// The bytes of a request that is not queued, if they stand in one piece.
#[inline(always)]
fn gather_posted(payload: Payload<'_>, res: &QpRes, tables: &Tables, out: &mut [u8]) -> Option<()> {
    match payload {
        Payload::Inline(bytes) => put_inline(out, bytes),
        Payload::Sges(_) if out.is_empty() => {}
        Payload::Sges(&[entry]) => load(entry, res, tables, out)?,
        Payload::Sges(_) | Payload::Mixed(_) => return None,
    }
    Some(())
}

/// Copies inline bytes, which are as many as `out` has: most are a word.
#[inline(always)]
fn put_inline(out: &mut [u8], bytes: &[u8]) {
    match (<&mut [u8; 8]>::try_from(&mut *out), bytes.first_chunk()) {
        (Ok(out), Some(word)) => *out = *word,
        _ => out.copy_from_slice(bytes),
    }
}

/// Loads the bytes of an entry, which are as many as `out` has.
#[inline]
fn load(entry: Sge, res: &QpRes, tables: &Tables, out: &mut [u8]) -> Option<()> {
    debug_assert_eq!(entry.len as usize, out.len());
    let from = local(tables, res.send_pd, entry, Access::empty()).ok()?;
    // SAFETY: dma (1): as in `place`; `out` is as long as the entry.
    unsafe { dma::load(from, out) }.ok()
}
