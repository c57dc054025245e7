//! The transport services as types, and the operations of each.

use hca_core::QpType;

/// A transport service: [`Rc`], [`Uc`], [`Ud`], [`Xrc`] or [`Rd`].
pub trait Service: sealed::Sealed + Send + Sync + 'static {
    /// The queue pair number.
    const TYPE: QpType;
}

/// A service whose queue pairs are connected to one peer: [`Rc`], [`Uc`] or [`Xrc`].
pub trait Connected: Service {}

/// Reliable connection: every operation; nothing is lost, doubled or reordered.
#[derive(Debug)]
pub enum Rc {}
/// Unreliable connection: SEND and RDMA WRITE; messages may be lost.
#[derive(Debug)]
pub enum Uc {}
/// Unreliable datagram: SEND of one packet to any peer; messages may be lost.
#[derive(Debug)]
pub enum Ud {}

/// Extended reliable connection, the sending end (initiator): SEND, RDMA and atomics to the shared receive queues of the
/// peer's XRC domain. Each request names one, by [`SendRequest::to_srq`](crate::SendRequest::to_srq). The peer's end is an
/// [`XrcTarget`](crate::XrcTarget). The queue pair receives nothing.
#[derive(Debug)]
pub enum Xrc {}

/// Reliable datagram: SEND, RDMA and atomics to any queue pair that an end-to-end context leads to, each request to
/// another one, by [`SendRequest::to_peer`](crate::SendRequest::to_peer). Nothing is lost, doubled or reordered. A queue
/// pair is of an [`RdDomain`](crate::RdDomain), which has an example.
#[derive(Debug)]
pub enum Rd {}

impl Service for Rc {
    const TYPE: QpType = QpType::Rc;
}
impl Service for Uc {
    const TYPE: QpType = QpType::Uc;
}
impl Service for Ud {
    const TYPE: QpType = QpType::Ud;
}
impl Service for Xrc {
    const TYPE: QpType = QpType::XrcIni;
}
impl Service for Rd {
    const TYPE: QpType = QpType::Rd;
}
impl Connected for Rc {}
impl Connected for Uc {}
impl Connected for Xrc {}

/// An operation that a service offers.
#[diagnostic::on_unimplemented(
    message = "a `{S}` queue pair does not offer `{Self}`",
    note = "Rc offers everything but datagrams; Uc offers SEND and RDMA WRITE; Ud offers datagrams: `SendRequest::send(..).to(..)`; Xrc offers requests that name a shared receive queue: `SendRequest::send(..).to_srq(..)`; Rd offers requests that name a peer: `SendRequest::send(..).to_peer(..)`"
)]
pub trait OfferedBy<S: Service>: sealed::Sealed {}

/// The operations as types, which tie each request to the services that offer it.
pub mod ops {
    /// SEND to the connected peer.
    #[derive(Debug)]
    pub enum Send {}
    /// SEND that invalidates a key at the peer.
    #[derive(Debug)]
    pub enum SendInvalidate {}
    /// SEND to any peer.
    #[derive(Debug)]
    pub enum Datagram {}
    /// The operation RDMA WRITE, of RC and UC.
    #[derive(Debug)]
    pub enum Write {}
    /// The operation RDMA READ, of RC.
    #[derive(Debug)]
    pub enum Read {}
    /// Compare and swap, fetch and add.
    #[derive(Debug)]
    pub enum Atomic {}
    /// The operation ATOMIC WRITE, of RC.
    #[derive(Debug)]
    pub enum AtomicWrite {}
    /// The operation FLUSH, of RC.
    #[derive(Debug)]
    pub enum Flush {}
    /// Bind of a memory window, of RC and UC.
    #[derive(Debug)]
    pub enum Bind {}
    /// Taking back of a memory window's key, of RC and UC.
    #[derive(Debug)]
    pub enum LocalInvalidate {}
    /// The operation `O`, to a shared receive queue of the peer's XRC domain.
    #[derive(Debug)]
    pub struct ToSrq<O>(core::marker::PhantomData<O>);
    /// The operation `O`, as a reliable datagram.
    #[derive(Debug)]
    pub struct ToPeer<O>(core::marker::PhantomData<O>);
}

impl OfferedBy<Rc> for ops::Send {}
impl OfferedBy<Rc> for ops::SendInvalidate {}
impl OfferedBy<Rc> for ops::Write {}
impl OfferedBy<Rc> for ops::Read {}
impl OfferedBy<Rc> for ops::Atomic {}
impl OfferedBy<Rc> for ops::AtomicWrite {}
impl OfferedBy<Rc> for ops::Flush {}
impl OfferedBy<Rc> for ops::Bind {}
impl OfferedBy<Rc> for ops::LocalInvalidate {}
impl OfferedBy<Uc> for ops::Bind {}
impl OfferedBy<Uc> for ops::LocalInvalidate {}
impl OfferedBy<Uc> for ops::Send {}
impl OfferedBy<Uc> for ops::Write {}
impl OfferedBy<Ud> for ops::Datagram {}
impl OfferedBy<Xrc> for ops::ToSrq<ops::Send> {}
impl OfferedBy<Xrc> for ops::ToSrq<ops::SendInvalidate> {}
impl OfferedBy<Xrc> for ops::ToSrq<ops::Write> {}
impl OfferedBy<Xrc> for ops::ToSrq<ops::Read> {}
impl OfferedBy<Xrc> for ops::ToSrq<ops::Atomic> {}
impl OfferedBy<Rd> for ops::ToPeer<ops::Send> {}
impl OfferedBy<Rd> for ops::ToPeer<ops::Write> {}
impl OfferedBy<Rd> for ops::ToPeer<ops::Read> {}
impl OfferedBy<Rd> for ops::ToPeer<ops::Atomic> {}

mod sealed {
    use super::{Rc, Rd, Uc, Ud, Xrc, ops};

    pub trait Sealed {}
    impl Sealed for Rc {}
    impl Sealed for Uc {}
    impl Sealed for Ud {}
    impl Sealed for Xrc {}
    impl Sealed for Rd {}
    impl Sealed for ops::Send {}
    impl Sealed for ops::SendInvalidate {}
    impl Sealed for ops::Datagram {}
    impl Sealed for ops::Write {}
    impl Sealed for ops::Read {}
    impl Sealed for ops::Atomic {}
    impl Sealed for ops::AtomicWrite {}
    impl Sealed for ops::Flush {}
    impl Sealed for ops::Bind {}
    impl Sealed for ops::LocalInvalidate {}
    impl<O> Sealed for ops::ToSrq<O> {}
    impl<O> Sealed for ops::ToPeer<O> {}
}
