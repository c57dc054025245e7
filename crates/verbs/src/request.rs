//! Send requests, typed by their operation.

use std::fmt;
use std::marker::PhantomData;

use hca_core::wire::{Placement, Selectivity};
use hca_core::{Dest, FlatOp, Rkey, SendFlags, SendOp, Srqn};

use crate::ah::UdPeer;
use crate::mr::RemoteMr;
use crate::part::{GatherList, ScatterList};
use crate::rd::RdPeer;
use crate::service::{OfferedBy, Rd, Xrc, ops};

/// A request for a send queue: an operation `O` on a local list `L`.
///
/// ```
/// # use hca_verbs::{Buf, RemoteMr, SendRequest};
/// # fn example(a: Buf, b: Buf, c: Buf, remote: RemoteMr) {
/// let hello = SendRequest::send(a).imm(7).id(42);
/// let put = SendRequest::write((b, c), remote.range(64..)).signaled(false);
/// # }
/// ```
pub struct SendRequest<O, L> {
    pub(crate) head: Head,
    pub(crate) local: L,
    op: PhantomData<fn() -> O>,
}

/// A request without its local list.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) id: u64,
    pub(crate) op: FlatOp,
    pub(crate) flags: SendFlags,
    /// Bytes at the peer; for RDMA and atomics.
    pub(crate) remote_len: Option<u64>,
    pub(crate) to: Option<To>,
}

/// The destination of a request, where the connection alone does not name it.
#[derive(Clone, Debug)]
pub(crate) enum To {
    Peer(UdPeer),
    Reliable(RdPeer),
    Srq(Srqn),
}

impl To {
    #[inline(always)]
    pub(crate) fn dest(&self) -> Dest {
        match self {
            Self::Peer(peer) => peer.dest().into(),
            Self::Reliable(peer) => peer.dest().into(),
            Self::Srq(number) => Dest::Srq(*number),
        }
    }
}

impl<O, L> SendRequest<O, L> {
    #[inline(always)]
    pub(crate) fn new(op: SendOp, remote_len: Option<u64>, local: L) -> Self {
        let head = Head { id: 0, op: FlatOp::new(&op), flags: SendFlags::SIGNALED, remote_len, to: None };
        Self { head, local, op: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn from_parts(head: Head, local: L) -> Self {
        Self { head, local, op: PhantomData }
    }

    /// A number of the program's own, which the completion carries; 0 unless given.
    #[must_use]
    #[inline(always)]
    pub fn id(mut self, id: u64) -> Self {
        self.head.id = id;
        self
    }
    /// Whether a success is reported (a failure always is); yes unless given. The buffers of an
    /// unsignalled request come back with the next completion of its queue.
    #[must_use]
    #[inline(always)]
    pub fn signaled(mut self, yes: bool) -> Self {
        self.head.flags.set(SendFlags::SIGNALED, yes);
        self
    }
    /// Makes the request begin only when all earlier READs and atomics of this queue have completed.
    #[must_use]
    pub fn fence(mut self) -> Self {
        self.head.flags |= SendFlags::FENCE;
        self
    }
    /// Makes the peer's receive completion raise a solicited event.
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.head.flags |= SendFlags::SOLICITED;
        self
    }
    /// The local list of the request.
    pub fn local(&self) -> &L {
        &self.local
    }
    /// The local list, back.
    pub fn into_local(self) -> L {
        self.local
    }

    /// Makes it a request to a shared receive queue of the peer's XRC domain, by the queue's
    /// [number](crate::XrcSrq::number): receive requests come from this queue, and the keys of RDMA and atomics are those
    /// of its protection domain. After [`imm`](SendRequest::imm) and [`invalidate`](SendRequest::invalidate).
    ///
    /// ```
    /// # use hca_verbs::*;
    /// # fn example(qp: &mut QueuePair<Xrc>, hello: Buf, page: Buf, window: RemoteMr, queue: Srqn) -> Result<(), PostRefusal> {
    /// qp.post_send(SendRequest::send(hello).imm(7).to_srq(queue)).map_err(|refused| refused.error)?;
    /// qp.post_send(SendRequest::write(page, window).to_srq(queue)).map_err(|refused| refused.error)?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    #[inline(always)]
    pub fn to_srq(mut self, queue: Srqn) -> SendRequest<ops::ToSrq<O>, L>
    where
        ops::ToSrq<O>: OfferedBy<Xrc>,
    {
        self.head.to = Some(To::Srq(queue));
        SendRequest { head: self.head, local: self.local, op: PhantomData }
    }

    /// Makes it a reliable datagram: a request for the queue pair of `peer`. Receive requests come from this queue pair,
    /// and the keys of RDMA and atomics are those of its protection domain. After [`imm`](SendRequest::imm).
    ///
    /// ```
    /// # use hca_verbs::*;
    /// # fn example(qp: &mut QueuePair<Rd>, a: &RdPeer, b: &RdPeer, news: Buf, page: Buf, window: RemoteMr) -> Result<(), PostRefusal> {
    /// qp.post_send(SendRequest::send(news).imm(7).to_peer(a)).map_err(|refused| refused.error)?;
    /// qp.post_send(SendRequest::read(page, window).to_peer(b)).map_err(|refused| refused.error)?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn to_peer(mut self, peer: &RdPeer) -> SendRequest<ops::ToPeer<O>, L>
    where
        ops::ToPeer<O>: OfferedBy<Rd>,
    {
        self.head.to = Some(To::Reliable(peer.clone()));
        SendRequest { head: self.head, local: self.local, op: PhantomData }
    }

    #[inline(always)]
    fn with_op<P>(mut self, op: SendOp) -> SendRequest<P, L> {
        self.head.op = FlatOp::new(&op);
        SendRequest { head: self.head, local: self.local, op: PhantomData }
    }
}

impl<L: GatherList> SendRequest<ops::Send, L> {
    /// SEND, into a receive request of the peer.
    #[inline(always)]
    pub fn send(local: L) -> Self {
        Self::new(SendOp::Send, None, local)
    }
    /// Adds immediate data to the message.
    #[must_use]
    pub fn imm(self, data: u32) -> Self {
        self.with_op(SendOp::SendImm(data))
    }
    /// Invalidates a key of the peer, in place of immediate data.
    #[must_use]
    pub fn invalidate(self, rkey: Rkey) -> SendRequest<ops::SendInvalidate, L> {
        self.with_op(SendOp::SendInv(rkey))
    }
    /// Makes it a datagram to `peer`.
    #[must_use]
    pub fn to(self, peer: &UdPeer) -> SendRequest<ops::Datagram, L> {
        let op = self.head.op.op();
        let mut request = self.with_op(op);
        request.head.to = Some(To::Peer(peer.clone()));
        request
    }
}

impl<L: GatherList> SendRequest<ops::Datagram, L> {
    /// Adds immediate data to the message.
    #[must_use]
    pub fn imm(self, data: u32) -> Self {
        self.with_op(SendOp::SendImm(data))
    }
}

impl<L: GatherList> SendRequest<ops::Write, L> {
    /// RDMA WRITE, to the beginning of `remote`.
    #[inline(always)]
    pub fn write(local: L, remote: RemoteMr) -> Self {
        Self::new(SendOp::Write(remote.target()), Some(remote.len), local)
    }
    /// Also consumes a receive request of the peer, to deliver immediate data.
    #[must_use]
    pub fn imm(self, data: u32) -> Self {
        let remote = self.head.op.remote();
        self.with_op(SendOp::WriteImm(remote, data))
    }
}

impl<L: ScatterList> SendRequest<ops::Read, L> {
    /// RDMA READ, from the beginning of `remote`, of as many bytes as the local list has.
    #[inline(always)]
    pub fn read(local: L, remote: RemoteMr) -> Self {
        Self::new(SendOp::Read(remote.target()), Some(remote.len), local)
    }
}

impl<L: ScatterList> SendRequest<ops::Atomic, L> {
    /// Replaces the word at the beginning of `remote` by `swap` if it equals `compare`. Its old value comes back into
    /// the 8 bytes of the local list, in this machine's byte order.
    #[inline(always)]
    pub fn compare_swap(local: L, remote: RemoteMr, compare: u64, swap: u64) -> Self {
        let op = SendOp::CompareSwap { remote: remote.target(), compare, swap };
        Self::new(op, Some(remote.len), local)
    }
    /// Adds to the word at the beginning of `remote`. Its old value comes back into the 8 bytes of the
    /// local list, in this machine's byte order.
    #[inline(always)]
    pub fn fetch_add(local: L, remote: RemoteMr, add: u64) -> Self {
        Self::new(SendOp::FetchAdd { remote: remote.target(), add }, Some(remote.len), local)
    }
}

impl SendRequest<ops::AtomicWrite, ()> {
    /// ATOMIC WRITE: stores `value` as the word at the beginning of `remote`, in this machine's byte order. No reader
    /// of the word sees a part of it, or sees it before the data of earlier WRITEs. It completes when the word is
    /// stored, and uses the peer's right to write. [`Abilities::atomic_write`](crate::Abilities::atomic_write) tells
    /// whether the device has it.
    pub fn atomic_write(remote: RemoteMr, value: u64) -> Self {
        let op = SendOp::AtomicWrite { remote: remote.target(), value: value.to_ne_bytes() };
        Self::new(op, Some(remote.len), ())
    }
}

impl SendRequest<ops::Flush, ()> {
    /// FLUSH of a range: completes when the data of all earlier requests of this queue in `remote` has reached the
    /// place, or the places, of `placement`. The peer's region has the right to each of them
    /// ([`Access::FLUSH_GLOBAL`](crate::Access::FLUSH_GLOBAL), `FLUSH_PERSISTENT`).
    /// [`Abilities::flush`](crate::Abilities::flush) tells those that the device has.
    ///
    /// ```
    /// # use hca_verbs::{Buf, Placement, QueuePair, Rc, RemoteMr, SendRequest};
    /// # fn example(mut qp: QueuePair<Rc>, record: Buf, remote: RemoteMr) -> Result<(), Box<dyn std::error::Error>> {
    /// qp.post_send(SendRequest::write(record, remote.range(8..)).signaled(false))?;
    /// qp.post_send(SendRequest::flush(remote.range(8..), Placement::GLOBAL_VISIBILITY).signaled(false))?;
    /// // Behind the record comes the word that tells of it.
    /// qp.post_send(SendRequest::atomic_write(remote.range(..8), 1))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn flush(remote: RemoteMr, placement: Placement) -> Self {
        Self::flush_of(remote, placement, Selectivity::Range)
    }
    /// FLUSH of the whole region, or window, that the key of `remote` names.
    pub fn flush_region(remote: RemoteMr, placement: Placement) -> Self {
        Self::flush_of(remote, placement, Selectivity::Region)
    }
    fn flush_of(remote: RemoteMr, placement: Placement, selectivity: Selectivity) -> Self {
        // A longer range is refused when it is posted.
        let len = u32::try_from(remote.len).unwrap_or(u32::MAX);
        let op = SendOp::Flush { remote: remote.target(), len, placement, selectivity };
        Self::new(op, Some(remote.len), ())
    }
}

impl<O, L> fmt::Debug for SendRequest<O, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendRequest")
            .field("id", &self.head.id)
            .field("op", &self.head.op.op())
            .field("flags", &self.head.flags)
            .finish_non_exhaustive()
    }
}
