//! The send port: requests are checked and queued, or done at once.
#![allow(unsafe_code)] // the ports' contracts are the traits'; nothing unsafe is done here

use hca_core::{
    Dest, FlatOp, Mixed, MixedEntry, Payload, PostError, PostErrorKind, QpState, QpType, SendFlags, SendOp,
    SendPort, SendWr,
};
use hca_fabric::LINE_DATA_BYTES;

use crate::direct::ops::{self, Op};
use crate::drive::shared::{EngineGuard, Shared};
use crate::objects::qp_shared::{decode_state, encode_state};
use crate::objects::send_queue::SendQueue;
use crate::ports::batch;
use crate::queues::ring::{Cell, Full, Producer};
use crate::queues::slot::{
    DestKind, Place, SendHeader, dest_to_cell, entry_to_cell, sge_to_cell, slot_bytes_to_cell,
};
use crate::sync::Arc;

/// The port of a send queue.
pub(crate) struct QpSendPort {
    pub(crate) hca: Arc<Shared>,
    pub(crate) queue: SendQueue,
}

impl SendQueue {
    /// Whether requests are taken.
    #[inline(always)]
    fn check(&self, hca: &Shared) -> Result<(), PostErrorKind> {
        if self.qp.state() != encode_state(QpState::Rts) || hca.fork.is_child() {
            self.check_state(hca)
        } else {
            Ok(())
        }
    }
    #[cold]
    fn check_state(&self, hca: &Shared) -> Result<(), PostErrorKind> {
        if hca.fork.is_child() {
            return Err(PostErrorKind::Destroyed);
        }
        match decode_state(self.qp.state()).ok_or(PostErrorKind::Destroyed)? {
            state @ (QpState::Reset | QpState::Init | QpState::Rtr) => Err(PostErrorKind::WrongState(state)),
            _ => Ok(()),
        }
    }
    /// Checks a request against the queue pair's limits; returns its length, its entries, and where its bytes are.
    fn check_kind(&self, wr: &SendWr<'_>) -> Result<(u64, u8, Place), PostErrorKind> {
        let qp_type = self.qp_type;
        let unsupported = || Err(PostErrorKind::Unsupported { qp_type, op: wr.op.wc_opcode() });
        if !offers(qp_type, wr.op) {
            return unsupported();
        }
        let fits = match wr.dest {
            None => !matches!(qp_type, QpType::Ud | QpType::XrcIni | QpType::Rd),
            Some(Dest::Datagram(_)) => qp_type == QpType::Ud,
            Some(Dest::Srq(_)) => qp_type == QpType::XrcIni,
            Some(Dest::Reliable(_)) => qp_type == QpType::Rd,
        };
        if !fits {
            return Err(PostErrorKind::Destination);
        }
        if wr.op.is_read_or_atomic() && !matches!(wr.payload, Payload::Sges(_)) {
            return unsupported();
        }
        let (len, entries, place) = match wr.payload {
            Payload::Inline(bytes) if bytes.len() > self.max_inline as usize => {
                return Err(PostErrorKind::inline_too_long(bytes.len(), self.max_inline));
            }
            Payload::Inline(bytes) => (bytes.len() as u64, 0, Place::Slot),
            Payload::Sges(sges) if sges.len() > self.max_sge as usize => {
                return Err(PostErrorKind::too_many_sges(sges.len(), self.max_sge));
            }
            Payload::Sges(sges) => {
                (sges.iter().map(|s| u64::from(s.len)).sum(), sges.len() as u8, Place::Memory)
            }
            Payload::Mixed(list) => self.check_mixed(&list)?,
        };
        if !wr.op.has_list() && (entries > 0 || len > 0) {
            return unsupported();
        }
        if wr.op.is_atomic() && len != 8 {
            return Err(PostErrorKind::atomic_length(len));
        }
        if len > self.max_message.into() {
            return Err(PostErrorKind::message_too_long(len, self.max_message.into()));
        }
        Ok((len, entries, place))
    }
    #[cold]
    fn check_mixed(&self, list: &Mixed<'_>) -> Result<(u64, u8, Place), PostErrorKind> {
        let (count, len) = (list.entries.len(), list.bytes.len());
        if count > self.max_sge as usize {
            return Err(PostErrorKind::too_many_sges(count, self.max_sge));
        }
        if len > self.max_inline as usize {
            return Err(PostErrorKind::inline_too_long(len, self.max_inline));
        }
        Ok((list.message_bytes(), count as u8, Place::Both))
    }

    /// Queues a request.
    #[inline(always)]
    fn push(&mut self, hca: &Shared, wr: &SendWr<'_>) -> Result<u32, PostErrorKind> {
        self.check(hca)?;
        match wr.op {
            SendOp::Send => self.push_piece(wr, &SendOp::Send),
            SendOp::Write(remote) => self.push_piece(wr, &SendOp::Write(remote)),
            _ => self.push_any(wr),
        }
    }
    /// Queues a request that is taken. Most are of a kind that connected queue pairs have, and of one piece. Returns the
    /// length of that piece; there is none of so many bytes as others are said to have.
    #[inline(always)]
    fn push_piece(&mut self, wr: &SendWr<'_>, op: &SendOp) -> Result<u32, PostErrorKind> {
        if !self.is_connected || wr.dest.is_some() {
            return self.push_any(wr);
        }
        let header = |len, sges, place| SendHeader {
            wr_id: wr.wr_id,
            op: FlatOp::new(op),
            dest: DestKind::None,
            len,
            sges,
            place,
            flags: wr.flags,
        };
        let (len, pushed) = match wr.payload {
            Payload::Inline(bytes) if bytes.len() <= self.max_inline as usize => {
                let len = bytes.len() as u32;
                (len, self.ring.push_bytes(header(len, 0, Place::Slot), bytes))
            }
            Payload::Sges(&[entry]) if self.max_sge > 0 && entry.len <= self.max_message => {
                (entry.len, self.ring.push_one(header(entry.len, 1, Place::Memory), sge_to_cell(entry)))
            }
            _ => return self.push_any(wr),
        };
        pushed.map(|()| len).map_err(|_| PostErrorKind::QueueFull { depth: self.ring.depth() })
    }
    /// As [`push`](Self::push), of any kind and with any list.
    #[inline(never)]
    fn push_any(&mut self, wr: &SendWr<'_>) -> Result<u32, PostErrorKind> {
        let (len, sges, place) = self.check_kind(wr)?;
        let header = SendHeader {
            wr_id: wr.wr_id,
            op: FlatOp::new(&wr.op),
            dest: DestKind::None,
            len: len as u32,
            sges,
            place,
            flags: wr.flags,
        };
        let pushed = queue(&mut self.ring, header, wr.payload, wr.dest);
        pushed.map(|()| u32::MAX).map_err(|_| PostErrorKind::QueueFull { depth: self.ring.depth() })
    }

    /// Tells the engine of the requests that were queued.
    #[inline(never)]
    fn ring(&mut self, hca: &Shared) {
        if self.qp.may_be_near && self.ring.is_all_published() {
            return;
        }
        self.ring.publish();
        hca.posted(&self.qp);
    }
    /// Queues a request, and tells the engine if it is to be known `NOW`.
    #[inline(never)]
    fn post_queued<const NOW: bool>(&mut self, hca: &Shared, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        self.push(hca, wr)?;
        if NOW {
            self.ring(hca);
        }
        Ok(())
    }
    /// The same by who has the engine, which did not do it at once.
    #[inline(never)]
    fn post_queued_with<const NOW: bool>(
        &mut self,
        hca: &Shared,
        wr: &SendWr<'_>,
        mut engine: EngineGuard<'_>,
    ) -> Result<(), PostErrorKind> {
        let pushed = self.push(hca, wr);
        if NOW && pushed.is_ok() {
            self.ring.publish();
            hca.turn_once(&mut engine, Some(self.qp.handle));
        }
        hca.give_back(engine);
        pushed.map(|_| ())
    }

    /// Posts a request of a connection by messages that is no SEND: one on the peer's memory is done at once, or it is
    /// queued.
    #[inline(always)]
    fn post_near<const NOW: bool>(&mut self, hca: &Shared, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        // No table of jumps: each of the frequent ones is reached by a comparison.
        if matches!(wr.op, SendOp::Write(_)) {
            self.access::<ops::Write, NOW>(hca, wr)
        } else if matches!(wr.op, SendOp::Read(_)) {
            self.access::<ops::Read, NOW>(hca, wr)
        } else {
            self.post_other::<NOW>(hca, wr)
        }
    }
    #[inline(never)]
    fn post_other<const NOW: bool>(&mut self, hca: &Shared, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        match wr.op {
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => self.access::<ops::Atomic, NOW>(hca, wr),
            SendOp::AtomicWrite { .. } => self.access::<ops::AtomicWrite, NOW>(hca, wr),
            SendOp::Flush { .. } => self.access::<ops::Flush, NOW>(hca, wr),
            _ => self.post_queued::<NOW>(hca, wr),
        }
    }

    /// A request on the peer's memory: done at once, or queued.
    #[inline(never)]
    fn access<O: Op, const NOW: bool>(&mut self, hca: &Shared, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        self.access_or::<O, true, _>(hca, wr, Ok(()), |queue, engine| match engine {
            None => queue.post_queued::<NOW>(hca, wr),
            Some(engine) => queue.post_queued_with::<NOW>(hca, wr, engine),
        })
    }
    /// The same of a request that is not queued in any case. `false`: nothing was done.
    #[inline(never)]
    fn carry_out<O: Op>(&mut self, hca: &Shared, wr: &SendWr<'_>) -> bool {
        self.access_or::<O, false, _>(hca, wr, true, |_, engine| {
            if let Some(engine) = engine {
                hca.give_back(engine);
            }
            false
        })
    }
    /// A request on the peer's memory: done at once, if nothing before it is under way, or left to `otherwise`, with the
    /// engine if that was free.
    #[inline(always)]
    fn access_or<O: Op, const POSTED: bool, R>(
        &mut self,
        hca: &Shared,
        wr: &SendWr<'_>,
        done: R,
        otherwise: impl FnOnce(&mut Self, Option<EngineGuard<'_>>) -> R,
    ) -> R {
        let may = wr.dest.is_none() && self.ring.is_released() && !hca.fork.is_child();
        let Some(mut engine) = (if may { hca.engine_at_once() } else { None }) else {
            return otherwise(self, None);
        };
        let key = O::remote(&wr.op).map_or(0, |remote| remote.rkey.raw());
        let (word, of) = self.lane.as_ref().map_or((0, key), |lane| (lane.word.get(), lane.key));
        // Only who has the engine changes the word of lanes.
        if word != self.qp.lanes.get() || of != key {
            self.lane = engine.posters_lane(self.qp.handle, key);
        }
        if let Some(lane) = &self.lane
            && let Some(leaves_nothing) = engine.access::<O, POSTED>(lane, self, wr)
        {
            hca.give_back_behind_access(engine, leaves_nothing);
            return done;
        }
        self.lane = None;
        otherwise(self, Some(engine))
    }

    /// A SEND: a small one leaves by a line as it is queued, if nothing keeps it back.
    #[inline(never)]
    fn send(&mut self, hca: &Shared, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        if hca.fork.is_child() {
            return Err(PostErrorKind::Destroyed);
        }
        let len = self.push_piece(wr, &SendOp::Send)?;
        let may =
            len as usize <= LINE_DATA_BYTES && !wr.flags.intersects(SendFlags::FENCE | SendFlags::SOLICITED);
        let Some(mut engine) = (if may { hca.engine_to_post() } else { None }) else {
            self.ring(hca);
            return Ok(());
        };
        if !engine.send_line(&hca.bell, self.qp.handle, wr.payload, len, &mut self.ring) {
            self.ring.publish();
            hca.turn_once(&mut engine, Some(self.qp.handle));
        }
        hca.give_back(engine);
        Ok(())
    }
}

/// Queues a request, behind its destination if it names one.
fn queue(
    ring: &mut Producer<SendHeader>,
    header: SendHeader,
    payload: Payload<'_>,
    dest: Option<Dest>,
) -> Result<(), Full> {
    let (kind, dest) =
        dest.map(dest_to_cell).map_or((DestKind::None, None), |(kind, cell)| (kind, Some(cell)));
    let header = SendHeader { dest: kind, ..header };
    match payload {
        Payload::Sges(sges) => {
            ring.push(header, dest.into_iter().chain(sges.iter().copied().map(sge_to_cell)))
        }
        Payload::Inline(bytes) => ring.push(header, dest.into_iter().chain(inline_cells(bytes))),
        Payload::Mixed(list) => queue_mixed(ring, header, list, dest),
    }
}
/// Queues a request whose list is of both kinds, or may be.
#[cold]
fn queue_mixed(
    ring: &mut Producer<SendHeader>,
    header: SendHeader,
    list: Mixed<'_>,
    dest: Option<Cell>,
) -> Result<(), Full> {
    let dest = dest.into_iter();
    match list.as_plain() {
        // Its slot has no room for an entry beside all the bytes.
        Some(Payload::Inline(bytes)) => {
            let header = SendHeader { place: Place::Slot, sges: 0, ..header };
            ring.push(header, dest.chain(inline_cells(bytes)))
        }
        // No entry has any of the bytes.
        Some(Payload::Sges(sges)) => {
            let header = SendHeader { place: Place::Memory, ..header };
            ring.push(header, dest.chain(sges.iter().copied().map(sge_to_cell)))
        }
        _ => ring.push(header, dest.chain(mixed_cells(list))),
    }
}

/// A mixed list as cells: its entries, of which the inline ones say where their bytes are among those behind them.
fn mixed_cells(list: Mixed<'_>) -> impl Iterator<Item = Cell> {
    let mut next = list.entries.len() * size_of::<Cell>();
    let entries = list.iter().map(move |entry| match entry {
        MixedEntry::Memory(entry) => entry_to_cell(entry),
        MixedEntry::Inline(bytes) => {
            let at = next;
            next += bytes.len();
            slot_bytes_to_cell(at, bytes.len())
        }
    });
    entries.chain(inline_cells(list.bytes))
}

/// Inline bytes as cells, the last one filled up with zeros.
fn inline_cells(bytes: &[u8]) -> impl Iterator<Item = Cell> {
    bytes.chunks(size_of::<Cell>()).map(|c| {
        let mut cell: Cell = [0; 2];
        bytemuck::cast_slice_mut::<u64, u8>(&mut cell)[..c.len()].copy_from_slice(c);
        cell
    })
}

// SAFETY: (1) a list and inline bytes are copied into the ring's slot, or used up by `access` and `send`, which return
// behind that. (2) A refusal comes before the ring's end is moved. (3) The engine takes requests from the ring in
// order, its machine ends them in order, and looks at a request's list no more once the completion is appended.
unsafe impl SendPort for QpSendPort {
    #[inline]
    unsafe fn post(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: our caller's.
        batch(wrs, |wr| unsafe { self.post_one(wr) })
    }
    #[inline]
    unsafe fn post_one(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        let Self { hca, queue } = self;
        // SENDs of a batch leave by the doorbell, all of them in one turn.
        if matches!(wr.op, SendOp::Send) || !queue.qp.is_open_and_near() {
            queue.post_queued::<false>(hca, wr)
        } else {
            queue.post_near::<false>(hca, wr)
        }
    }
    #[inline]
    unsafe fn carry_out(&mut self, wr: &SendWr<'_>) -> bool {
        let Self { hca, queue } = self;
        match wr.op {
            _ if !queue.qp.is_open_and_near() => false,
            SendOp::Write(_) => queue.carry_out::<ops::Write>(hca, wr),
            SendOp::Read(_) => queue.carry_out::<ops::Read>(hca, wr),
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => queue.carry_out::<ops::Atomic>(hca, wr),
            SendOp::AtomicWrite { .. } => queue.carry_out::<ops::AtomicWrite>(hca, wr),
            SendOp::Flush { .. } => queue.carry_out::<ops::Flush>(hca, wr),
            _ => false,
        }
    }
    fn would_take(&mut self, wr: &SendWr<'_>, before: usize) -> Result<(), PostErrorKind> {
        let Self { hca, queue } = self;
        queue.check(hca)?;
        queue.check_kind(wr)?;
        let depth = queue.ring.depth();
        if queue.ring.has_room_behind(before) { Ok(()) } else { Err(PostErrorKind::QueueFull { depth }) }
    }
    fn ring(&mut self) {
        self.queue.ring(&self.hca);
    }
    #[inline]
    unsafe fn post_now(&mut self, wr: &SendWr<'_>) -> Result<(), PostErrorKind> {
        let Self { hca, queue } = self;
        if !queue.qp.is_open_and_near() {
            queue.post_queued::<true>(hca, wr)
        } else if matches!(wr.op, SendOp::Send) {
            queue.send(hca, wr)
        } else {
            queue.post_near::<true>(hca, wr)
        }
    }
}

/// A queue pair's service as the posting side checks it.
pub(crate) const fn offers(qp_type: QpType, op: SendOp) -> bool {
    match (qp_type, op) {
        (QpType::Rc, _) => true,
        (QpType::XrcTgt | QpType::Eec, _) => false,
        (QpType::Uc, SendOp::BindMw { .. } | SendOp::LocalInv(_)) => true,
        (_, SendOp::BindMw { .. } | SendOp::LocalInv(_)) => false,
        (_, SendOp::AtomicWrite { .. } | SendOp::Flush { .. }) => false,
        (QpType::XrcIni, _) | (_, SendOp::Send | SendOp::SendImm(_)) => true,
        (QpType::Uc, SendOp::Write(_) | SendOp::WriteImm(..)) => true,
        (_, SendOp::SendInv(_)) => false,
        (qp_type, _) => matches!(qp_type, QpType::Rd),
    }
}

#[cfg(test)]
mod tests {
    use hca_core::{Lkey, Sge};

    use super::*;
    use crate::queues::ring::ring;
    use crate::queues::slot::entries;

    #[test]
    fn bytes_that_no_entry_has_take_no_room_in_a_slot() {
        let listed = [Sge { addr: 1 << 40, len: 8, lkey: Lkey::new(5) }];
        let header = SendHeader {
            wr_id: 1,
            op: FlatOp::new(&SendOp::Send),
            len: 8,
            sges: 1,
            place: Place::Both,
            dest: DestKind::None,
            flags: SendFlags::empty(),
        };
        // Cells for as many inline bytes, as of a queue pair of lists of one entry.
        let (mut queue, mut taken) = ring::<SendHeader>(1, 4);
        queue_mixed(&mut queue, header, Mixed { entries: &listed, inline: 0, bytes: &[9; 64] }, None)
            .unwrap();
        queue.publish();
        assert_eq!(taken.refresh(), 1);
        let (header, cells) = taken.at(0);
        assert_eq!((header.place, header.sges), (Place::Memory, 1));
        assert!(entries(cells, header).eq(listed));
    }
}
