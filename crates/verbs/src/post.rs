//! Posting: a request goes to the device's port, and the buffers that it owns stay in a slot meanwhile.
//!
//! Invariants of the unsafe code:
//! 1. Before the device sees a request that is posted, all parts of its list are in a slot. The slots are held by the
//!    queue pair (or shared receive queue), which drops them only after the device has confirmed the queue's destruction;
//!    otherwise they are leaked.
//! 2. Parts leave a slot when the device refused the request, or completed it or a later one of the same send queue. So
//!    as long as the device may access memory, a slot owns it, or the call within which the device does the request. No
//!    code holds a reference to a [`Buf`](crate::Buf)'s bytes meanwhile, and a [`FrozenBuf`](crate::FrozenBuf)'s bytes
//!    are only read.
//! 3. Lists that the device writes into hold no frozen buffers ([`ScatterList`]).
#![allow(unsafe_code)]

use std::sync::Arc;

use hca_core::wire::Selectivity;
use hca_core::{
    DeviceError, FlatOp, MAX_MESSAGE_BYTES, Payload, PostErrorKind, QpCap, RecvPort, RecvWr, SendFlags,
    SendOp, SendPort, SendWr,
};

use crate::part::{Emptying, Entries, Filling, GatherList, Held, ScatterList, Scratch};
use crate::pd::PdCore;
use crate::request::{Head, To};
use crate::slots::{RecvPoster, RingPoster, SlotWriter};
use crate::{PostRefusal, Refused, SendRequest};

/// The posting end of a send queue.
pub(crate) struct SendSide {
    port: Box<dyn SendPort>,
    poster: RingPoster<Held>,
    pd: Arc<PdCore>,
    scratch: Scratch,
    max_sge: usize,
    depth: u32,
    /// Unsignalled requests since the last signalled one.
    unsignaled: u32,
}

impl SendSide {
    pub(crate) fn new(
        port: Box<dyn SendPort>,
        poster: RingPoster<Held>,
        pd: Arc<PdCore>,
        cap: &QpCap,
    ) -> Self {
        let max_sge = cap.max_send_sge as usize;
        let scratch = Scratch::with_capacity(max_sge);
        Self { port, poster, pd, scratch, max_sge, depth: cap.max_send_wr, unsignaled: 0 }
    }

    /// Posts one request, and rings if it is to be known `NOW`; returns what of its list stays outside of the slot.
    ///
    /// # Errors
    /// The request comes back, with the reason.
    #[inline(always)]
    pub(crate) fn post<const NOW: bool, L: GatherList>(
        &mut self,
        head: Head,
        local: L,
    ) -> Result<L::Shell, (Head, L, PostRefusal)> {
        // In parts, which stay in registers, and most of which are known where a request is put together.
        let Head { id, op, flags, remote_len, to } = head;
        let dest = to.as_ref().map(To::dest);
        let refuse = |local, error, to| Err((Head { id, op, flags, remote_len, to }, local, error));
        let signaled = flags.contains(SendFlags::SIGNALED);
        let mut entries = Entries::new::<L>(&self.pd, &mut self.scratch, self.max_sge);
        local.describe(&mut entries);
        if let Err(error) = check(&op, remote_len, to.as_ref(), &entries, &self.pd) {
            return refuse(local, error, to);
        }
        let promise = entries.promise();
        let Some(room) = self.poster.room() else {
            return refuse(local, PostErrorKind::QueueFull { depth: self.depth }.into(), to);
        };
        if !signaled && self.unsignaled + 1 >= self.depth {
            let run = self.unsignaled + 1;
            return refuse(local, PostRefusal::NeverSignaled { run, depth: self.depth }, to);
        }
        let (wr_id, shell) = room.fill(id, |slot| {
            let shell = local.store(&mut Filling(slot));
            if dest.is_some() {
                to.iter().for_each(|to| hold(slot, to));
            }
            shell
        });
        let payload = payload::<L>(L::inline(&shell), &self.scratch);
        let wr = SendWr { wr_id, op: op.op(), flags: flags | promise, payload, dest };
        // SAFETY: (1), (2), (3): the parts lie in the slot until the request is refused or completes.
        let posted = unsafe { if NOW { self.port.post_now(&wr) } else { self.port.post_one(&wr) } };
        if let Err(refused) = posted {
            let local = Emptying::slot(&mut self.poster.retract(), |parts| L::restore(shell, parts));
            return refuse(local, refused.into(), to);
        }
        self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
        if dest.is_none() {
            // There is none to drop, which is known where most requests are put together.
            core::mem::forget(to);
        }
        Ok(shell)
    }
    /// The same, of a whole request.
    ///
    /// # Errors
    /// It comes back, with the reason.
    #[inline(always)]
    #[allow(clippy::result_large_err)] // the request comes back by value, unallocated
    pub(crate) fn post_request<const NOW: bool, O, L: GatherList>(
        &mut self,
        SendRequest { head, local, .. }: SendRequest<O, L>,
    ) -> Result<(), Refused<SendRequest<O, L>>> {
        let posted = self.post::<NOW, L>(head, local).map(|_| ());
        posted
            .map_err(|(head, local, error)| Refused { request: SendRequest::from_parts(head, local), error })
    }

    /// Has one request done within the call; its list comes back.
    ///
    /// # Errors
    /// Nothing was done, and the request comes back.
    #[inline(always)]
    #[allow(clippy::result_large_err)] // the request comes back by value, unallocated
    pub(crate) fn carry_out<O, L: GatherList>(
        &mut self,
        request: SendRequest<O, L>,
    ) -> Result<L, SendRequest<O, L>> {
        let SendRequest { head: Head { op, remote_len, to, .. }, local, .. } = &request;
        let mut entries = Entries::new::<L>(&self.pd, &mut self.scratch, self.max_sge);
        local.describe(&mut entries);
        if to.is_some() || check(op, *remote_len, None, &entries, &self.pd).is_err() {
            return Err(request);
        }
        let payload = payload::<L>(local.bytes(), &self.scratch);
        let wr = SendWr { wr_id: 0, op: op.op(), flags: SendFlags::empty(), payload, dest: None };
        // SAFETY: (2): the device accesses memory within the call alone, in which the list is ours.
        if unsafe { self.port.carry_out(&wr) } { Ok(request.into_local()) } else { Err(request) }
    }

    #[inline]
    pub(crate) fn ring(&mut self) {
        self.port.ring();
    }

    /// Whether a request has room.
    pub(crate) fn has_room(&mut self) -> bool {
        self.poster.has_room()
    }
}

/// The list of a request for the device: `bytes`, or the entries that were written down.
#[inline(always)]
fn payload<'a, L: GatherList>(bytes: Option<&'a [u8]>, scratch: &'a Scratch) -> Payload<'a> {
    match bytes {
        Some(bytes) => Payload::Inline(bytes),
        None if L::HAS_INLINE => scratch.payload(),
        None => Payload::Sges(scratch.sges()),
    }
}

/// The posting end of a receive queue, a queue pair's own or a shared one.
pub(crate) struct RecvSide {
    port: Box<dyn RecvPort>,
    poster: RecvPoster<Held>,
    pd: Arc<PdCore>,
    scratch: Scratch,
    max_sge: usize,
    depth: u32,
}

impl RecvSide {
    pub(crate) fn new(
        port: Box<dyn RecvPort>,
        poster: RecvPoster<Held>,
        pd: Arc<PdCore>,
        depth: u32,
        max_sge: u32,
    ) -> Self {
        let max_sge = max_sge as usize;
        let scratch = Scratch::with_capacity(max_sge);
        Self { port, poster, pd, scratch, max_sge, depth }
    }

    /// Posts one request, and rings if it is to be known `NOW`.
    ///
    /// # Errors
    /// The list comes back, with the reason.
    #[inline(always)]
    pub(crate) fn post<const NOW: bool, L: ScatterList>(
        &mut self,
        id: u64,
        local: L,
    ) -> Result<(), (L, PostRefusal)> {
        let mut entries = Entries::new::<L>(&self.pd, &mut self.scratch, self.max_sge);
        local.describe(&mut entries);
        if let Err(error) = check_list(&entries) {
            return Err((local, error));
        }
        let Some(room) = self.poster.room() else {
            return Err((local, PostErrorKind::QueueFull { depth: self.depth }.into()));
        };
        let (wr_id, shell) = room.fill(id, |slot| local.store(&mut Filling(slot)));
        let wr = RecvWr { wr_id, sges: self.scratch.sges() };
        // SAFETY: (1), (2), (3): the parts lie in the slot until the request is refused or completes.
        let posted = unsafe { if NOW { self.port.post_now(&wr) } else { self.port.post_one(&wr) } };
        if let Err(refused) = posted {
            let local = Emptying::slot(&mut self.poster.retract(wr_id), |parts| L::restore(shell, parts));
            return Err((local, refused.into()));
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn ring(&mut self) {
        self.port.ring();
    }
    /// Gives the queue other room.
    pub(crate) fn resize(&mut self, max_wr: u32) -> Result<(), DeviceError> {
        self.port.resize(max_wr)?;
        self.depth = max_wr;
        Ok(())
    }
}

/// Keeps the path of a datagram until it has left.
#[inline(never)]
fn hold(slot: &mut SlotWriter<'_, Held>, to: &To) {
    match to {
        To::Peer(peer) => slot.push(Held::Ah(peer.ah.clone())),
        To::Reliable(peer) => slot.push(Held::Ee(peer.by.clone())),
        To::Srq(_) => {}
    }
}

/// What every list has to obey.
#[inline(always)]
fn check_list(entries: &Entries<'_>) -> Result<(), PostRefusal> {
    if let Some(entry) = entries.foreign() {
        return Err(PostRefusal::ForeignPd { entry });
    }
    if entries.count() > entries.room() {
        let max = entries.room() as u32;
        return Err(PostErrorKind::too_many_sges(entries.count(), max).into());
    }
    if entries.bytes() > MAX_MESSAGE_BYTES {
        return Err(PostErrorKind::message_too_long(entries.bytes(), MAX_MESSAGE_BYTES).into());
    }
    Ok(())
}

/// The rules of ATOMIC WRITE and FLUSH.
#[inline(never)]
fn check_placed(op: &FlatOp, remote_len: Option<u64>) -> Result<(), PostRefusal> {
    let (addr, room) = (op.remote().addr, remote_len.unwrap_or(0));
    match op.op() {
        SendOp::AtomicWrite { .. } if room < 8 => Err(PostRefusal::RemoteTooShort { len: 8, room }),
        SendOp::AtomicWrite { .. } if !addr.is_multiple_of(8) => Err(PostRefusal::Misaligned { addr }),
        SendOp::Flush { selectivity: Selectivity::Range, .. } if room > MAX_MESSAGE_BYTES => {
            Err(PostErrorKind::message_too_long(room, MAX_MESSAGE_BYTES).into())
        }
        _ => Ok(()),
    }
}

/// The rules of send requests that the device does not check.
#[inline(always)]
fn check(
    op: &FlatOp,
    remote_len: Option<u64>,
    to: Option<&To>,
    entries: &Entries<'_>,
    pd: &Arc<PdCore>,
) -> Result<(), PostRefusal> {
    check_list(entries)?;
    if let Some(room) = remote_len
        && entries.bytes() > room
    {
        return Err(PostRefusal::RemoteTooShort { len: entries.bytes(), room });
    }
    if op.is_atomic() {
        let remote = op.remote();
        if entries.bytes() != 8 {
            return Err(PostErrorKind::atomic_length(entries.bytes()).into());
        }
        if !remote.addr.is_multiple_of(8) {
            return Err(PostRefusal::Misaligned { addr: remote.addr });
        }
    } else if !op.has_list() {
        check_placed(op, remote_len)?;
    }
    match to {
        Some(To::Peer(peer)) if !peer.ah.is_of(pd) => Err(PostRefusal::ForeignAh),
        Some(To::Reliable(peer)) if !peer.by.is_of(pd) => Err(PostRefusal::ForeignEe),
        _ => Ok(()),
    }
}
