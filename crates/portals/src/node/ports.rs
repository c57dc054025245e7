//! A node's objects on its device: queues, and the slots that messages leave from and arrive in.
//!
//! Invariants of the unsafe code:
//! 1. A receive slot belongs to the device from its post to its completion, and this module reads it only between a
//!    completion and the next post.
//! 2. A send slot is written only while it is free. The slot belongs to the device from its post until a completion of
//!    that post or of a later post of the same queue pair, or until the queue pair is destroyed.
//! 3. Slots lie in buffers of the node, which live as long as the queues do: fields are dropped in their order.
//! 4. READs go to memory that is shared with the device by its kind (`Memory`), of which no reference is ever made. The
//!    fetch holds the memory until its completions have come or the queue pair is destroyed.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ptr::NonNull;

use hca_core::{
    Completion, Lkey, Payload, PostErrorKind, Qkey, QpAttr, QpCap, QpHandle, QpState, QpType, Qpn, RecvWr,
    RemoteAddr, SendFlags, SendOp, SendWr, Sge, SrqInit, UdDest,
};
use hca_verbs::raw::{self, RawCq, RawQp, RawQpMaker, RawSrq};
use hca_verbs::{AddressHandle, Buf, Context, Grh, Pd};

use super::NodeOptions;
use super::device_work::Maker;
use super::hello::HELLO_BYTES;
use super::post::MAX_INLINE;
use crate::OpenError;
use crate::wire::MAX_HEAD;

/// Datagrams that can wait to be looked at.
const DATAGRAM_SLOTS: usize = 64;
const DATAGRAM_BYTES: usize = (Grh::BYTES + HELLO_BYTES).next_multiple_of(64);
/// Receive slots that are posted together.
const SLOT_BATCH: usize = 16;
/// A `wr_id` of a datagram queue pair: the slot, with this bit.
const DATAGRAM: u64 = 1 << 63;
/// The Q_Key of nodes' datagrams.
pub(super) const QKEY: Qkey = Qkey::new(0x5054_4c53);
/// The longest READ.
pub(super) const MAX_READ: u64 = 1 << 30;
/// Entries of a request's list.
pub(super) const MAX_SGE: usize = 4;

/// Bytes of a slot that a message leaves from or arrives in.
pub(super) fn bytes_of_slot(eager_bytes: usize) -> usize {
    eager_bytes.saturating_add(MAX_HEAD).next_multiple_of(64)
}

/// Places of the completion queue, and how many of them are for requests of connected queue pairs.
fn places(receive_slots: u32, max_cqe: u32) -> (u32, u32) {
    // Beside the receive slots, datagrams that come and hellos that leave, with room to spare.
    let others = receive_slots + 3 * DATAGRAM_SLOTS as u32;
    let budget = max_cqe.saturating_sub(others).min(16 << 10);
    (others + budget, budget)
}

/// The object of a completion.
pub(super) enum Came {
    /// A message in a receive slot.
    Message { slot: u32, len: usize },
    /// A hello in a datagram slot.
    Datagram { slot: u32, len: usize },
    /// A receive slot that came back without a message.
    Unused { slot: u32 },
    /// A hello that was sent, or could not be.
    HelloSent { well: bool },
    /// A datagram slot that came back without a hello.
    Nothing,
    /// A request of a connected queue pair, with its `wr_id`.
    Sent,
}

/// Slots of equal size in one buffer.
struct Slots {
    base: NonNull<u8>,
    lkey: Lkey,
    bytes: usize,
    _buf: Buf,
}

// SAFETY: (1), (2): the node decides under its lock which code may touch a slot.
unsafe impl Send for Slots {}

impl Slots {
    fn new(pd: &Pd, count: usize, bytes: usize) -> Result<Self, OpenError> {
        let mut buf = pd.alloc(count * bytes)?;
        let lkey = raw::lkey(&buf);
        Ok(Self { base: NonNull::from(&mut buf[..]).cast(), lkey, bytes, _buf: buf })
    }
    fn at(&self, slot: u32) -> NonNull<u8> {
        // SAFETY: slots are numbered within the buffer.
        unsafe { self.base.add(slot as usize * self.bytes) }
    }
    fn sge(&self, slot: u32, len: usize) -> Sge {
        Sge { addr: self.at(slot).addr().get() as u64, len: len as u32, lkey: self.lkey }
    }
}

/// The device, as a node uses it.
pub(super) struct Ports {
    cq: RawCq,
    srq: RawSrq,
    /// The queue of hellos; `None` while it is made to send again.
    datagrams: Option<RawQp>,
    of_datagrams: (QpHandle, Qpn),
    /// Datagram slots that were looked at meanwhile.
    unread: Vec<u32>,
    recv: Slots,
    send: Slots,
    hellos: Slots,
    /// The paths of hellos that may not have left, which the device looks at until then.
    sent_to: VecDeque<AddressHandle>,
    free: Vec<u32>,
    send_slots: usize,
    /// Receive slots that were looked at, to be posted together.
    used: Vec<u32>,
    /// How many of these are posted together.
    batch: usize,
    pub(super) pd: Pd,
    /// Bytes that a request carries inline.
    pub(super) max_inline: usize,
    cap: QpCap,
    /// Requests of connected queue pairs that may be on the completion queue at once.
    pub(super) budget: u32,
}

impl Ports {
    pub(super) fn open(context: &Context, options: &NodeOptions) -> Result<Self, OpenError> {
        let attr = context.attr().clone();
        let pd = context.alloc_pd()?;
        let slots = options.receive_slots.clamp(16, attr.max_srq_wr);
        let (depth, budget) = places(slots, attr.max_cqe);
        let cq = RawCq::create(context, depth)?;
        let srq = RawSrq::create(&pd, &SrqInit { max_wr: slots, max_sge: 1 })?;
        let cap = QpCap {
            max_send_wr: options.send_depth.clamp(8, attr.max_qp_wr),
            max_recv_wr: 0,
            max_send_sge: MAX_SGE as u32,
            max_recv_sge: 1,
            max_inline: attr.max_inline.min(MAX_INLINE as u32),
        };
        let of_datagrams = QpCap {
            max_send_wr: DATAGRAM_SLOTS as u32,
            max_recv_wr: DATAGRAM_SLOTS as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: HELLO_BYTES as u32,
        };
        let mut datagrams = RawQp::create(&pd, QpType::Ud, &cq, &cq, None, of_datagrams)?;
        let pkey = Some(hca_core::Pkey::DEFAULT);
        let init = QpAttr { state: Some(QpState::Init), pkey, qkey: Some(QKEY), ..QpAttr::default() };
        let rtr = QpAttr { state: Some(QpState::Rtr), ..QpAttr::default() };
        let sq_psn = Some(hca_core::Psn::new(0));
        let rts = QpAttr { state: Some(QpState::Rts), sq_psn, ..QpAttr::default() };
        for attr in [init, rtr, rts] {
            datagrams.modify(&attr)?;
        }
        let bytes = bytes_of_slot(options.eager_bytes);
        let send_slots = options.send_slots.max(4);
        let mut ports = Self {
            recv: Slots::new(&pd, slots as usize, bytes)?,
            send: Slots::new(&pd, send_slots as usize, bytes)?,
            hellos: Slots::new(&pd, DATAGRAM_SLOTS, DATAGRAM_BYTES)?,
            sent_to: VecDeque::new(),
            free: (0..send_slots).rev().collect(),
            send_slots: send_slots as usize,
            used: (0..slots).collect(),
            batch: SLOT_BATCH.min(slots as usize / 4),
            max_inline: cap.max_inline as usize,
            cq,
            srq,
            of_datagrams: (datagrams.handle(), datagrams.qpn()),
            datagrams: Some(datagrams),
            unread: Vec::new(),
            pd,
            cap,
            budget,
        };
        ports.give_back(true)?;
        for slot in 0..DATAGRAM_SLOTS as u32 {
            ports.give_back_datagram(slot)?;
        }
        Ok(ports)
    }
    pub(super) fn cq(&mut self) -> &mut RawCq {
        &mut self.cq
    }
    pub(super) fn datagrams(&self) -> Qpn {
        self.of_datagrams.1
    }
    /// What queue pairs for peers are made with.
    pub(super) fn maker(&self) -> Maker {
        let queues = RawQpMaker::new(&self.pd, &self.cq, &self.cq, Some(&self.srq));
        Maker { pd: self.pd.clone(), queues, cap: self.cap }
    }

    /// Fills `out`; returns how many came.
    #[inline]
    pub(super) fn poll(&mut self, out: &mut [Completion]) -> usize {
        self.cq.poll(out)
    }
    /// The object of a completion.
    #[inline]
    pub(super) fn sort(&self, wc: &Completion) -> Came {
        let good = wc.status == hca_core::WcStatus::Success;
        if wc.qp == self.of_datagrams.0 {
            if wc.wr_id & DATAGRAM == 0 {
                return Came::HelloSent { well: good };
            }
            if !good {
                return Came::Nothing;
            }
            return Came::Datagram { slot: wc.wr_id as u32, len: wc.byte_len as usize };
        }
        match wc.opcode {
            hca_core::WcOpcode::Recv if good => {
                Came::Message { slot: wc.wr_id as u32, len: wc.byte_len as usize }
            }
            hca_core::WcOpcode::Recv | hca_core::WcOpcode::RecvRdmaWithImm => {
                Came::Unused { slot: wc.wr_id as u32 }
            }
            _ => Came::Sent,
        }
    }
    /// The bytes of a received message. Its slot is marked [used](Self::used) afterwards.
    #[inline]
    pub(super) fn message(&self, slot: u32, len: usize) -> Received {
        Received { at: self.recv.at(slot), len: len.min(self.recv.bytes) }
    }
    /// A receive slot was looked at, or came back without a message.
    #[inline]
    pub(super) fn used(&mut self, slot: u32) {
        self.used.push(slot);
    }
    /// Posts the receive slots that were looked at, many together; `all` of them, or when they are many.
    #[inline]
    pub(super) fn give_back(&mut self, all: bool) -> Result<(), PostErrorKind> {
        if self.used.len() >= self.batch || all { self.post_slots() } else { Ok(()) }
    }
    #[inline(never)]
    fn post_slots(&mut self) -> Result<(), PostErrorKind> {
        let mut sges = [Sge::default(); SLOT_BATCH];
        while !self.used.is_empty() {
            let first = self.used.len().saturating_sub(SLOT_BATCH);
            let slots = &self.used[first..];
            for (sge, &slot) in sges.iter_mut().zip(slots) {
                *sge = self.recv.sge(slot, self.recv.bytes);
            }
            let wrs: [RecvWr<'_>; SLOT_BATCH] = std::array::from_fn(|i| RecvWr {
                wr_id: slots.get(i).copied().unwrap_or_default().into(),
                sges: std::slice::from_ref(&sges[i]),
            });
            // SAFETY: (1), (3).
            let posted = unsafe { self.srq.post_recv(&wrs[..slots.len()]) };
            self.used.truncate(first);
            posted.map_err(|e| e.kind)?;
        }
        Ok(())
    }
    /// A datagram's sender, and its bytes.
    pub(super) fn datagram(&self, slot: u32, len: usize) -> Option<(Grh, Vec<u8>)> {
        let len = len.min(self.hellos.bytes);
        // SAFETY: (1): its completion has come, and it is not posted yet.
        let bytes = unsafe { std::slice::from_raw_parts(self.hellos.at(slot).as_ptr(), len) };
        let (grh, payload) = bytes.split_first_chunk::<{ Grh::BYTES }>()?;
        Some((Grh::parse(grh)?, payload.to_vec()))
    }
    pub(super) fn give_back_datagram(&mut self, slot: u32) -> Result<(), PostErrorKind> {
        let Some(datagrams) = &mut self.datagrams else {
            self.unread.push(slot);
            return Ok(());
        };
        let sges = [self.hellos.sge(slot, self.hellos.bytes)];
        let wr = RecvWr { wr_id: DATAGRAM | u64::from(slot), sges: &sges };
        // SAFETY: (1), (3).
        unsafe { datagrams.post_recv(&[wr]) }.map_err(|e| e.kind)
    }
    /// Sends a hello; it may be lost, and is when the queue is full, or is being made to send again.
    pub(super) fn send_hello(&mut self, to: AddressHandle, qpn: Qpn, bytes: &[u8; HELLO_BYTES]) {
        let Some(datagrams) = &mut self.datagrams else { return };
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Inline(bytes),
            dest: Some(UdDest { ah: to.handle(), qpn, qkey: QKEY }.into()),
        };
        // SAFETY: inline bytes are copied by the call.
        if unsafe { datagrams.post_send_now(&wr) }.is_ok() {
            self.sent_to.push_back(to);
        }
    }
    /// A hello was sent, or could not be; then the queue is to be made to send again. Its path is needed no more.
    pub(super) fn hello_sent(&mut self, well: bool) -> (Option<AddressHandle>, Option<RawQp>) {
        (self.sent_to.pop_front(), if well { None } else { self.datagrams.take() })
    }
    /// The queue of hellos sends again.
    pub(super) fn revived(&mut self, qp: RawQp) -> Result<(), PostErrorKind> {
        self.datagrams = Some(qp);
        std::mem::take(&mut self.unread).into_iter().try_for_each(|slot| self.give_back_datagram(slot))
    }

    /// A free send slot.
    pub(super) fn take_slot(&mut self) -> Option<u32> {
        self.free.pop()
    }
    /// Send slots that are not free.
    pub(super) fn slots_taken(&self) -> usize {
        self.send_slots - self.free.len()
    }
    /// A send slot is free again.
    pub(super) fn free_slot(&mut self, slot: u32) {
        self.free.push(slot);
    }
    /// Writes a message into a slot that is free: `fill` writes what is behind the head.
    pub(super) fn write_slot(&mut self, slot: u32, head: &[u8], body: usize, fill: impl FnOnce(&mut [u8])) {
        assert!(head.len() + body <= self.send.bytes, "a message fits its slot");
        let at = self.send.at(slot);
        // SAFETY: (2): it is free, and as long as was just checked.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), head.len() + body) };
        bytes[..head.len()].copy_from_slice(head);
        fill(&mut bytes[head.len()..]);
    }
    /// Posts a message out of a slot.
    pub(super) fn post_slot(
        &mut self,
        qp: &mut RawQp,
        wr_id: u64,
        slot: u32,
        len: usize,
        later: bool,
    ) -> Result<(), PostErrorKind> {
        let sges = [self.send.sge(slot, len)];
        let (op, payload) = (SendOp::Send, Payload::Sges(&sges));
        let wr = SendWr { wr_id, op, flags: SendFlags::SIGNALED, payload, dest: None };
        // SAFETY: (2), (3).
        unsafe { if later { qp.post_send_later(&wr) } else { qp.post_send_now(&wr) } }
    }
}

/// Posts a message that goes with its request.
#[inline(always)]
pub(super) fn post_inline(
    qp: &mut RawQp,
    wr_id: u64,
    bytes: &[u8],
    signaled: bool,
    later: bool,
) -> Result<(), PostErrorKind> {
    let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
    let wr = SendWr { wr_id, op: SendOp::Send, flags, payload: Payload::Inline(bytes), dest: None };
    // SAFETY: inline bytes are copied by the call.
    unsafe { if later { qp.post_send_later(&wr) } else { qp.post_send_now(&wr) } }
}

/// Posts a READ.
pub(super) fn post_read(
    qp: &mut RawQp,
    wr_id: u64,
    from: RemoteAddr,
    to: &[Sge],
) -> Result<(), PostErrorKind> {
    let (op, payload) = (SendOp::Read(from), Payload::Sges(to));
    let wr = SendWr { wr_id, op, flags: SendFlags::SIGNALED, payload, dest: None };
    // SAFETY: (4).
    unsafe { qp.post_send_now(&wr) }
}

/// A message in its slot.
pub(super) struct Received {
    at: NonNull<u8>,
    len: usize,
}

impl Received {
    #[inline]
    pub(super) fn as_bytes(&self) -> &[u8] {
        // SAFETY: (1), (3): made from a completion, and dropped before its slot is posted again.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

#[cfg(test)]
impl Ports {
    /// Receive slots that were looked at, and are still to be posted.
    pub(super) fn used_slots(&self) -> &[u32] {
        &self.used
    }
    /// Makes the queue of hellos fail, by a request with an invalid key.
    pub(super) fn fail_hellos(&mut self, to: AddressHandle) {
        let sges = [Sge { addr: 0, len: 8, lkey: Lkey::new(u32::MAX) }];
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges),
            dest: Some(UdDest { ah: to.handle(), qpn: Qpn::new(1), qkey: QKEY }.into()),
        };
        // SAFETY: the key names no memory, so that the device refuses the list.
        unsafe { self.datagrams.as_mut().expect("it is here").post_send_now(&wr) }.expect("it has room");
        self.sent_to.push_back(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_places_of_the_completion_queue_that_are_left() {
        assert_eq!(places(512, 1 << 20), (512 + 192 + (16 << 10), 16 << 10));
        assert_eq!(places(512, 1000), (1000, 1000 - 512 - 192));
        assert_eq!(places(512, 704), (704, 0));
        assert_eq!(places(512, 100), (704, 0));
    }
}
