//! The [`Host`] of a queue pair: its transport machine's access to rings, keys, memory and completions.

use core::sync::atomic::fence;

use hca_core::wire::Packet;
use hca_core::{
    Access, AsyncEvent, Completion, PdHandle, Qkey, Qpn, RdDest, Rkey, SendFlags, SendOp, Sge, Srqn,
    WcOpcode, WcStatus,
};
use hca_fabric::{Places, Reach};
use hca_transport::{
    AtomicOp, Count, Direct, Host, InPlace, Loan, LoanError, LocalError, QpEvent, RdEnds, RecvDone,
    RemoteAccessError, SendRequest, Served,
};

use crate::direct;
use crate::direct::list::RequestList;
use crate::memory::dma;
use crate::memory::mr::Refused;
use crate::objects::direct::OwnWord;
use crate::objects::parts::{each_part, local};
use crate::objects::qp::{QpRes, RecvQueue};
use crate::objects::qp_shared::QpShared;
use crate::objects::slab::Slab;
use crate::objects::srq::Held;
use crate::objects::tables::{Ah, Tables};
use crate::queues::slot::{
    DestKind, Place, SendHeader, cell_to_reliable, cell_to_sge, cell_to_target, entries, in_slot, list,
    part_of, pieces,
};
use crate::sync::Ordering;

/// The [`Host`] of one queue pair: its own resources and the adapter's tables.
pub(crate) struct QpHost<'a> {
    pub(crate) res: &'a mut QpRes,
    pub(crate) tables: &'a mut Tables,
    pub(crate) ahs: &'a Slab<Ah>,
    /// Peers' memory, where it may be reached.
    reach: Option<Reach<'a>>,
}

impl<'a> QpHost<'a> {
    #[inline]
    pub(crate) fn new(res: &'a mut QpRes, tables: &'a mut Tables, ahs: &'a Slab<Ah>) -> Self {
        Self { res, tables, ahs, reach: None }
    }
    /// With peers' memory in reach.
    #[inline]
    pub(crate) fn reaching(self, reach: Reach<'a>) -> Self {
        Self { reach: Some(reach), ..self }
    }
}

/// The same of the receive request that is held.
#[inline]
pub(crate) fn held_pieces<E: From<LocalError>>(
    rq: &RecvQueue,
    held: &Held,
    offset: u32,
    len: usize,
    f: impl FnMut(Sge, usize) -> Result<(), E>,
) -> Result<(), E> {
    match rq {
        RecvQueue::Own(rq) => {
            let (h, cells) = rq.at(rq.head());
            pieces(h.list(cells), offset, len, f)
        }
        _ => pieces(held.sges.iter().copied(), offset, len, f),
    }
}

/// One more place to fetch to.
fn push(places: &mut Places, at: *mut u8, len: usize) -> Result<(), LoanError> {
    if places.push(at, len) { Ok(()) } else { Err(LoanError::Gone) }
}

impl QpHost<'_> {
    /// Its slot, and its word on the board.
    fn own_word(&self) -> OwnWord {
        (self.res.shared.handle.index, self.res.word)
    }
    /// The bytes behind a peer's access through a memory window, by the key of the region.
    #[cold]
    pub(super) fn through_window(
        &self,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<(u32, u64), Refused> {
        let who = (self.res.pd, self.res.shared.handle);
        self.tables.mrs.through_window(who, rkey.raw(), va, len, access)
    }
    #[inline]
    fn local(&self, s: Sge, access: Access) -> Result<*mut u8, LocalError> {
        local(self.tables, self.res.send_pd, s, access)
    }
    /// The address of an entry, if it is found at once: by the key of the access before.
    #[inline(always)]
    fn local_again(&self, pd: PdHandle, s: Sge, access: Access) -> Option<*mut u8> {
        self.tables.mrs.translate_again(pd, s.lkey.raw(), s.addr, s.len.into(), access)
    }
    /// Drops the held receive request's slot, for good. Returns the number of its queue, if that is one of an XRC
    /// domain.
    #[inline]
    pub(super) fn release_held(&mut self) -> Srqn {
        self.res.held.active = false;
        if let RecvQueue::Own(rq) = &mut self.res.rq {
            rq.release(rq.head().wrapping_add(1));
            return Srqn::default();
        }
        self.number_of_held()
    }
    #[inline(never)]
    fn number_of_held(&self) -> Srqn {
        if let RecvQueue::Xrc(xrc) = &self.res.rq { xrc.number() } else { Srqn::default() }
    }
    #[inline(never)]
    fn take_of_xrc(&mut self) -> Option<u64> {
        let QpRes { rq: RecvQueue::Xrc(xrc), held, .. } = &mut *self.res else { return None };
        let (room, pd, cq) = xrc.take(self.tables, held)?;
        (self.res.recv_pd, self.res.recv_cq) = (pd, cq);
        Some(room)
    }
    #[inline(never)]
    fn take_of_queue_pair(&mut self) -> Option<u64> {
        let QpRes { rq: RecvQueue::Context(context), held, .. } = &mut *self.res else { return None };
        let (room, of) = context.take(self.tables, held)?;
        (self.res.recv_pd, self.res.recv_cq, self.res.receiver) = of;
        Some(room)
    }
    fn hold_datagrams(&mut self) -> Option<u64> {
        let RecvQueue::Datagrams(slot) = self.res.rq else { return None };
        self.tables.take_from_srq(slot, &mut self.res.held)
    }
    #[inline]
    fn hold_own(&mut self) -> Option<u64> {
        let QpRes { rq: RecvQueue::Own(rq), held, .. } = &mut *self.res else { return None };
        let h = rq.oldest()?;
        (held.active, held.wr_id, held.first) = (true, h.wr_id, cell_to_sge(h.first));
        Some(h.room)
    }
}

/// Completes a send request that succeeded, and is no READ or atomic.
#[inline(always)]
pub(crate) fn complete_sent(header: &SendHeader, of: &QpShared, send_cq: u32, tables: &mut Tables) {
    of.ops.completed(header.op.wc_opcode(), header.len);
    if header.flags.contains(SendFlags::SIGNALED) {
        tables.complete_plain(send_cq, header.wr_id, of.handle, header.op.wc_opcode(), 0);
    }
}

#[allow(unsafe_code)] // the calls of `dma`, each with its argument
impl Host for QpHost<'_> {
    #[inline]
    fn sq_posted(&self) -> u32 {
        match &self.res.rd {
            None => self.res.sq.tail(),
            Some(rd) => rd.posted(&self.res.sq),
        }
    }
    #[inline(always)]
    fn send_request(&self, index: u32) -> SendRequest {
        let h = self.res.sq.header_ref(index);
        let datagram = h.dest == DestKind::Datagram;
        let dest = datagram.then(|| cell_to_target(self.res.sq.cells(index)[0]));
        SendRequest { op: h.op, flags: h.flags, len: h.len, dest }
    }
    fn named_srq(&self, index: u32) -> Srqn {
        let named = self.res.sq.header_ref(index).dest == DestKind::Srq;
        if named { Srqn::new(self.res.sq.cells(index)[0][0] as u32) } else { Srqn::default() }
    }
    fn rd_ends(&self, index: u32) -> RdEnds {
        let from = self.res.rd.as_ref().and_then(|rd| rd.served()).unwrap_or_default();
        let RdDest { qpn, qkey, .. } = cell_to_reliable(self.res.sq.cells(index)[0]);
        RdEnds { to: qpn, qkey, from }
    }
    #[inline]
    fn gather(&mut self, index: u32, offset: u32, out: &mut [u8]) -> Result<(), LocalError> {
        let (h, cells) = self.res.sq.at(index);
        if h.place == Place::Slot {
            let bytes: &[u8] = bytemuck::cast_slice(list(cells, h));
            let offset = offset as usize;
            let end = offset + out.len();
            out.copy_from_slice(bytes[..h.len as usize].get(offset..end).ok_or(LocalError::Length)?);
            return Ok(());
        }
        if h.place == Place::Memory
            && let Some(s) = entries(cells, h).next().and_then(|s| part_of(s, offset, out.len()))
            && let Some(from) = self.local_again(self.res.send_pd, s, Access::empty())
        {
            // SAFETY: dma (1): `translate_again` found `s` inside a live region, and we run under the engine's lock.
            return Ok(unsafe { dma::load(from, out) }?);
        }
        self.gather_parts(index, offset, out)
    }
    #[inline]
    fn in_place(&mut self, index: u32, offset: u32, len: u32) -> Option<InPlace> {
        let h = self.res.sq.header_ref(index);
        if h.place != Place::Memory || !h.flags.contains(SendFlags::STABLE) {
            return None;
        }
        let s = part_of(entries(self.res.sq.cells(index), h).next()?, offset, len as usize)?;
        let from = self.local(s, Access::empty()).ok()?;
        Some(InPlace { addr: from.expose_provenance(), len })
    }
    #[inline]
    fn scatter(&mut self, index: u32, offset: u32, data: &[u8]) -> Result<(), LocalError> {
        let (h, cells) = self.res.sq.at(index);
        if let Some(s) = entries(cells, h).next().and_then(|s| part_of(s, offset, data.len()))
            && let Ok(to) = self.local(s, Access::LOCAL_WRITE)
        {
            // SAFETY: as in `gather`, with the right to write.
            unsafe { dma::store(to, data) };
            return Ok(());
        }
        self.scatter_parts(index, offset, data)
    }
    fn check_local(&mut self, index: u32, write: bool) -> Result<(), LocalError> {
        let h = self.res.sq.header_ref(index);
        if h.dest == DestKind::Datagram {
            let d = cell_to_target(self.res.sq.cells(index)[0]);
            let ah = self.ahs.get(d.ah.index, d.ah.generation).filter(|a| a.pd == self.res.send_pd);
            ah.ok_or(LocalError::Protection)?;
        }
        if h.place == Place::Slot {
            return Ok(());
        }
        let access = if write { Access::LOCAL_WRITE } else { Access::empty() };
        let cells = self.res.sq.cells(index);
        for s in entries(cells, h).filter(|s| s.len > 0 && in_slot(cells, h, s).is_none()) {
            self.local(s, access).map(drop).or_else(|e| {
                let found =
                    self.tables.mrs.scattered(self.res.send_pd, s.lkey.raw(), s.addr, s.len.into(), access);
                found.map(drop).map_err(|_| e)
            })?;
        }
        Ok(())
    }
    fn carry_out(&mut self, index: u32) -> Result<(), WcStatus> {
        let (pd, qp) = (self.res.send_pd, self.res.shared.handle);
        let mrs = &mut self.tables.mrs;
        let done = match self.res.sq.header_ref(index).op.op() {
            SendOp::BindMw { rkey, range } => mrs.bind_two(pd, qp, rkey.raw(), &range),
            SendOp::LocalInv(rkey) => mrs.invalidate_window(pd, qp, rkey.raw()).unwrap_or(Err(Refused)),
            op => unreachable!("{op:?} is not carried out by the adapter alone"),
        };
        done.map_err(|Refused| WcStatus::MwBind)
    }
    #[inline]
    fn complete_send(&mut self, index: u32, status: WcStatus, byte_len: u32) {
        let sq = &mut self.res.sq;
        assert_eq!(index, sq.head(), "send requests complete in order");
        if status != WcStatus::Success {
            return self.fail_send(index, status);
        }
        let h = sq.header_ref(index);
        let (wr_id, opcode, flags, len) = (h.wr_id, h.op.wc_opcode(), h.flags, h.len);
        sq.release(index.wrapping_add(1));
        self.res.sender.ops.completed(opcode, len);
        if !flags.contains(SendFlags::SIGNALED) {
            return;
        }
        let qp = self.res.sender.handle;
        let make = || Completion { wr_id, qp, status, opcode, byte_len, ..Completion::default() };
        self.tables.complete_with(self.res.send_cq, make);
    }
    #[inline]
    fn complete_sends(&mut self, first: u32, count: u32) {
        let QpRes { sq, sender, send_cq, .. } = &mut *self.res;
        assert_eq!(first, sq.head(), "send requests complete in order");
        let end = first.wrapping_add(count);
        sq.release_each(end, |header| complete_sent(header, sender, *send_cq, self.tables));
    }

    #[inline]
    fn take_recv(&mut self, _packet: Option<&Packet<'_>>) -> Option<u64> {
        assert!(!self.res.held.active, "one receive request at a time");
        match self.res.rq {
            RecvQueue::Own(_) => self.hold_own(),
            RecvQueue::Shared(srq) => self.tables.take_from_srq(srq, &mut self.res.held),
            RecvQueue::Xrc(_) => self.take_of_xrc(),
            RecvQueue::Datagrams(_) => None,
            RecvQueue::Context(_) => self.take_of_queue_pair(),
        }
    }
    #[inline]
    fn place_recv(&mut self, offset: u32, data: &[u8]) -> Result<(), LocalError> {
        if let Some(s) = part_of(self.res.held.first, offset, data.len())
            && let Some(to) = self.local_again(self.res.recv_pd, s, Access::LOCAL_WRITE)
        {
            // SAFETY: as in `scatter`.
            unsafe { dma::store(to, data) };
            return Ok(());
        }
        self.place_parts(offset, data)
    }
    #[inline]
    fn complete_recv(&mut self, done: &RecvDone) {
        assert!(self.res.held.active, "a receive request is held");
        if done.status != WcStatus::Success {
            return self.fail_recv(done);
        }
        self.res.receiver.ops.completed(done.opcode, done.byte_len);
        let srq = self.release_held();
        let QpRes { held, receiver, recv_cq, .. } = &*self.res;
        // Field by field from where they are, as few registers as that takes.
        let make = || Completion {
            wr_id: held.wr_id,
            qp: receiver.handle,
            status: WcStatus::Success,
            opcode: done.opcode,
            byte_len: done.byte_len,
            extra: done.extra,
            solicited: done.solicited,
            src_qp: done.src_qp,
            srq,
            grh: done.grh,
        };
        self.tables.complete_with(*recv_cq, make);
    }
    fn return_recv(&mut self) {
        if !core::mem::take(&mut self.res.held.active) {
            return;
        }
        match &self.res.rq {
            RecvQueue::Own(_) => {}
            RecvQueue::Shared(srq) => self.tables.return_to_srq(*srq, &mut self.res.held),
            RecvQueue::Xrc(xrc) => xrc.give_back(self.tables, &mut self.res.held),
            RecvQueue::Datagrams(_) => {}
            RecvQueue::Context(context) => context.give_back(self.tables, &mut self.res.held),
        }
    }
    fn recv_credits(&self) -> Option<u32> {
        match &self.res.rq {
            RecvQueue::Own(rq) => {
                Some(rq.published().wrapping_sub(rq.head()) - u32::from(self.res.held.active))
            }
            _ => None,
        }
    }
    fn flush_recv(&mut self) {
        loop {
            if self.res.held.active || self.hold_own().or_else(|| self.hold_datagrams()).is_some() {
                let (wr_id, qp) = (self.res.held.wr_id, self.res.receiver.handle);
                let (status, opcode) = (WcStatus::WrFlushed, WcOpcode::Recv);
                let srq = self.release_held();
                let c = Completion { wr_id, qp, status, opcode, srq, ..Completion::default() };
                self.tables.complete(self.res.recv_cq, c);
            } else {
                return;
            }
        }
    }
    fn has_srq(&self) -> bool {
        matches!(self.res.rq, RecvQueue::Shared(_) | RecvQueue::Xrc(_))
    }
    fn enter_queue_pair(&mut self, number: Qpn, qkey: Option<Qkey>) -> Result<(), RemoteAccessError> {
        let RecvQueue::Context(context) = &mut self.res.rq else { return Err(RemoteAccessError) };
        self.res.pd = context.enter(number, qkey, self.tables).ok_or(RemoteAccessError)?;
        Ok(())
    }
    fn enter_srq(&mut self, number: Srqn) -> Result<(), RemoteAccessError> {
        let RecvQueue::Xrc(xrc) = &mut self.res.rq else { return Err(RemoteAccessError) };
        self.res.pd = xrc.enter(number, self.tables).ok_or(RemoteAccessError)?;
        Ok(())
    }

    #[inline]
    fn check_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<(), RemoteAccessError> {
        if len == 0 {
            return Ok(());
        }
        match self.tables.mrs.translate(self.res.pd, rkey.raw(), va, len, access) {
            Ok(_) => Ok(()),
            Err(_) => {
                let found = self.tables.mrs.scattered(self.res.pd, rkey.raw(), va, len, access);
                let found = found.map(drop).or_else(|_| self.through_window(rkey, va, len, access).map(drop));
                found.map_err(|_| self.refuse(rkey, va, len, access))
            }
        }
    }
    #[inline]
    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), RemoteAccessError> {
        if data.is_empty() {
            return Ok(());
        }
        let (len, access) = (data.len() as u64, Access::REMOTE_WRITE);
        let Ok(to) = self.tables.mrs.translate(self.res.pd, rkey.raw(), va, len, access) else {
            return self.each_of_several_remote(rkey, (va, data.len()), access, &mut |to, part, len| {
                // SAFETY: as below.
                unsafe { dma::store(to, &data[part..part + len]) };
                Ok(())
            });
        };
        // SAFETY: dma (1): `translate` found the range inside a live region that peers may write, and we
        // run under the engine's lock.
        unsafe { dma::store(to, data) };
        Ok(())
    }
    #[inline]
    fn read_remote(&mut self, rkey: Rkey, va: u64, out: &mut [u8]) -> Result<(), RemoteAccessError> {
        if out.is_empty() {
            return Ok(());
        }
        let (len, access) = (out.len() as u64, Access::REMOTE_READ);
        let Ok(from) = self.tables.mrs.translate(self.res.pd, rkey.raw(), va, len, access) else {
            return self.each_of_several_remote(rkey, (va, out.len()), access, &mut |from, part, len| {
                // SAFETY: as below.
                Ok(unsafe { dma::load(from, &mut out[part..part + len]) }?)
            });
        };
        // SAFETY: as in `write_remote`, with the right to read.
        unsafe { dma::load(from, out) }.map_err(|_| self.refuse(rkey, va, len, access))
    }
    fn atomic_remote(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, RemoteAccessError> {
        let right = op.right();
        let at = self
            .tables
            .mrs
            .translate(self.res.pd, rkey.raw(), va, 8, right)
            .or_else(|_| {
                let (key, va) = self.through_window(rkey, va, 8, right)?;
                self.tables.mrs.translate(self.res.pd, key, va, 8, Access::empty())
            })
            .map_err(|_| self.refuse(rkey, va, 8, right))?;
        // A region whose addresses are not its memory's may have aligned addresses of unaligned words.
        if at.addr() & 7 != 0 {
            return Err(self.refuse(rkey, va, 8, right));
        }
        // SAFETY: as in `write_remote`, with the right to the operation, and aligned.
        unsafe { dma::atomic(at, op) }.map_err(|_| self.refuse(rkey, va, 8, right))
    }
    fn flush_remote(
        &mut self,
        rkey: Rkey,
        range: Option<(u64, u64)>,
        rights: Access,
    ) -> Result<(), RemoteAccessError> {
        let user = (self.res.pd, Some(self.res.shared.handle));
        let allowed = self.tables.mrs.allows(user, rkey.raw(), range, rights);
        allowed.map_err(|why| self.refuse_for(why, rkey, range.unwrap_or_default(), rights))?;
        // No region has the right to persistence, so this is for visibility: whatever this adapter placed before is
        // seen by all that look after the peer has its answer.
        fence(Ordering::SeqCst);
        Ok(())
    }
    fn invalidate(&mut self, rkey: Rkey) -> Result<(), RemoteAccessError> {
        let (pd, qp) = (self.res.pd, self.res.shared.handle);
        let mrs = &mut self.tables.mrs;
        if let Some(done) = mrs.invalidate_window(pd, qp, rkey.raw()) {
            return done.map_err(|_| self.refuse_invalidate(rkey));
        }
        mrs.invalidate(pd, rkey.raw()).map_err(|_| self.refuse_invalidate(rkey))?;
        self.tables.taken_back.push((rkey.raw(), self.res.recv_cq));
        Ok(())
    }

    #[inline]
    fn direct(&mut self, index: u32, request: &SendRequest, behind: bool) -> Direct {
        // What does not leave by messages is not counted.
        let Some(reach) = self.reach.as_mut().filter(|_| self.res.pace.is_none()) else {
            return Direct::Unable;
        };
        let QpRes { direct, direct_work: work, sq, send_pd: pd, .. } = &mut *self.res;
        let list = RequestList { sq, index, tables: self.tables, pd: *pd };
        let what = (&request.op.op(), request.len);
        let done = direct::carry_out(direct.as_mut(), work, &self.tables.regions, reach, &list, what, behind);
        if !matches!(done, Direct::Again) {
            // Whatever becomes of it, the next request begins at its beginning.
            work.offset = 0;
        }
        done
    }

    fn lend(&mut self, index: u32, offset: u32, max: u32) -> Option<Loan> {
        let own = self.own_word();
        let QpRes { direct, direct_work: work, sq, send_pd: pd, pace, .. } = &mut *self.res;
        let h = sq.header_ref(index);
        if h.place != Place::Memory || pace.is_some() {
            return None;
        }
        let regions = &self.tables.regions;
        if let SendOp::Write(remote) = h.op.op()
            && !direct.as_ref().is_some_and(|n| regions.is_not_mapped(n.link, remote.rkey.raw()))
        {
            // It is done directly, once the peer has answered.
            return None;
        }
        let mut loan = None;
        // Only the first piece counts.
        let _ = pieces(entries(sq.cells(index), h), offset, max as usize, |s, _| {
            // What lies in several pieces is sent.
            let at = local(self.tables, *pd, s, Access::empty())?;
            loan = direct::lend(direct.as_ref(), work, regions, self.reach.as_ref(), (s, at), own);
            Err::<(), LocalError>(LocalError::Length)
        });
        loan
    }
    fn loan_refused(&mut self) {
        // A peer that was not connected yet has not heard of our word.
        let regions = &mut self.tables.regions;
        if regions.may_repeat() {
            regions.note_repeat();
            self.res.direct_work.told = 0;
        }
    }
    fn place_loan(&mut self, offset: u32, loan: &Loan) -> Result<(), LoanError> {
        let Self { res, tables, reach, .. } = self;
        let from = res.peer_link();
        let QpRes { direct, direct_work: work, rq, held, recv_pd: pd, .. } = &mut **res;
        if let Some(terms) = loan.terms {
            let mut places = Places::default();
            let place = |s: Sge, _: usize| {
                each_part(tables, *pd, s, Access::LOCAL_WRITE, |to, _, len| push(&mut places, to, len))
            };
            held_pieces(rq, held, offset, loan.len as usize, place)?;
            // SAFETY: dma (1): as in `scatter`.
            unsafe { direct::fetch_process(from, reach.as_mut(), loan, terms, &places) }?;
            work.moved += loan.len as usize;
            return Ok(());
        }
        let reach = reach.as_mut().ok_or(LoanError::Gone)?;
        let (mut bracket, from) =
            direct::fetch(direct.as_ref(), &tables.regions, reach, loan).ok_or(LoanError::Gone)?;
        let place = |s: Sge, at: usize| {
            each_part(tables, *pd, s, Access::LOCAL_WRITE, |to, part, len| {
                // SAFETY: dma (1): `local` found the part inside a live region of ours, and we run under the engine's
                // lock; memory of the peer's that is registered here as well is moved by instructions that do not care.
                unsafe { bracket.read_into(from + (at + part) as u64, to, len) }.map_err(|_| LoanError::Gone)
            })
        };
        let len = loan.len as usize;
        held_pieces(rq, held, offset, len, place)?;
        work.moved += len;
        Ok(())
    }
    fn write_loan(&mut self, rkey: Rkey, va: u64, loan: &Loan) -> Result<(), LoanError> {
        let Self { res, tables, reach, .. } = self;
        let from = res.peer_link();
        let QpRes { direct, direct_work: work, pd, .. } = &mut **res;
        let to = tables.mrs.translate(*pd, rkey.raw(), va, loan.len.into(), Access::REMOTE_WRITE);
        let to = match to {
            Ok(to) => to,
            // What lies in several pieces, or is reached through a window, is not fetched, but sent.
            Err(_) => {
                let scattered =
                    tables.mrs.scattered(*pd, rkey.raw(), va, loan.len.into(), Access::REMOTE_WRITE);
                let is_sent = scattered.is_ok() || {
                    let (who, access) = ((*pd, res.shared.handle), Access::REMOTE_WRITE);
                    tables.mrs.through_window(who, rkey.raw(), va, loan.len.into(), access).is_ok()
                };
                if !is_sent {
                    self.refuse(rkey, va, loan.len.into(), Access::REMOTE_WRITE);
                }
                return Err(if is_sent { LoanError::Gone } else { LoanError::Remote });
            }
        };
        let len = loan.len as usize;
        if let Some(terms) = loan.terms {
            let mut places = Places::default();
            push(&mut places, to, len)?;
            // SAFETY: dma (1): as in `write_remote`.
            unsafe { direct::fetch_process(from, reach.as_mut(), loan, terms, &places) }?;
        } else {
            let reach = reach.as_mut().ok_or(LoanError::Gone)?;
            let fetched = direct::fetch(direct.as_ref(), &tables.regions, reach, loan);
            let (mut bracket, from) = fetched.ok_or(LoanError::Gone)?;
            // SAFETY: dma (1): as in `write_remote`, and as in `place_loan` where the memory is the peer's.
            unsafe { bracket.read_into(from, to, len) }.map_err(|_| LoanError::Gone)?;
        }
        work.moved += len;
        Ok(())
    }
    fn lend_remote(&mut self, rkey: Rkey, va: u64, max: u32) -> Option<Loan> {
        if max < direct::PROCESS_READ_MIN || self.res.pace.is_some() {
            return None;
        }
        let own = self.own_word();
        let QpRes { direct, direct_work: work, pd, .. } = &mut *self.res;
        let key = rkey.raw();
        let at = self.tables.mrs.translate(*pd, key, va, max.into(), Access::REMOTE_READ).ok()?;
        let (direct, reach) = (direct.as_ref(), self.reach.as_ref());
        direct::lend_process(direct, work, &self.tables.regions, reach, (key, at, max), own)
    }
    fn scatter_loan(&mut self, index: u32, offset: u32, loan: &Loan) -> Result<(), LoanError> {
        let Self { res, tables, reach, .. } = self;
        let from = res.peer_link();
        let QpRes { direct_work: work, sq, send_pd: pd, .. } = &mut **res;
        // Memory that is granted is read by the request itself.
        let terms = loan.terms.ok_or(LoanError::Bad)?;
        let mut places = Places::default();
        let place = |s: Sge, _: usize| {
            each_part(tables, *pd, s, Access::LOCAL_WRITE, |to, _, len| push(&mut places, to, len))
        };
        pieces(entries(sq.cells(index), sq.header_ref(index)), offset, loan.len as usize, place)?;
        // SAFETY: dma (1): as in `scatter`.
        unsafe { direct::fetch_process(from, reach.as_mut(), loan, terms, &places) }?;
        work.moved += loan.len as usize;
        Ok(())
    }

    fn event(&mut self, event: QpEvent) {
        let qp = self.res.shared.handle;
        self.tables.event(match event {
            QpEvent::CommEstablished => AsyncEvent::CommEstablished(qp),
            QpEvent::SqDrained => AsyncEvent::SqDrained(qp),
            QpEvent::LastWqeReached => AsyncEvent::LastWqeReached(qp),
            QpEvent::Fatal => AsyncEvent::QpFatal(qp),
            QpEvent::RequestError => AsyncEvent::QpRequestError(qp),
            QpEvent::AccessError => AsyncEvent::QpAccessError(qp),
        });
    }
    #[inline]
    fn served(&mut self, what: Served, bytes: u32) {
        self.res.shared.ops.served(what, bytes);
    }
    #[inline]
    fn count(&mut self, what: Count) {
        self.tables.counts[what as usize] += 1;
        self.res.counts[what as usize] += 1;
    }
}
