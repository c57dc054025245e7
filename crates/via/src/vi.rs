//! VIs: two work queues, their attributes, and the state of the connection.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Duration;

use hca_core::{AsyncEvent, EventObject, QpHandle};
use hca_verbs::Endpoint;

use crate::connect::peer::PeerOutcome;
use crate::nic::NicShared;
use crate::notify::Look;
use crate::queue::{Queue, Rules, Side, WorkQueue};
use crate::queue_pair::{Control, build};
use crate::source::{Source, context_of};
use crate::tasks::Stop;
use crate::{
    AsyncError, Cq, Descriptor, Done, Error, ErrorKind, MemHandle, Nic, Ptag, Reliability, RemoteAttributes,
    lock,
};

/// The name of a VI of a process, which entries of completion queues and asynchronous errors carry. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ViId(pub u64);

impl fmt::Display for ViId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VI {}", self.0)
    }
}

/// The state of a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ViState {
    /// It is not connected, and takes receive descriptors.
    Idle = 0,
    /// A connection is being made.
    ConnectPending = 1,
    /// It is connected.
    Connected = 2,
    /// The connection has ended; posted descriptors are flushed. [`Vi::disconnect`] makes it idle.
    Error = 3,
}

/// The attributes of a VI (`VIP_VI_ATTRIBUTES`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViAttributes {
    /// The level of reliability, which both VIs of a connection share.
    pub reliability: Reliability,
    /// The most bytes of a message, which both VIs of a connection share.
    pub max_transfer_size: u32,
    /// The protection tag of the memory that the VI may use.
    pub ptag: Ptag,
    /// Whether the peer may write by RDMA, into memory that allows it.
    pub enable_rdma_write: bool,
    /// Whether the peer may read by RDMA, from memory that allows it.
    pub enable_rdma_read: bool,
}

impl ViAttributes {
    /// Attributes of a VI with Reliable Delivery, for messages of up to 1 MiB, whose peer may use RDMA where the memory
    /// allows it.
    pub fn new(ptag: &Ptag) -> Self {
        Self {
            reliability: Reliability::Delivery,
            max_transfer_size: 1 << 20,
            ptag: ptag.clone(),
            enable_rdma_write: true,
            enable_rdma_read: true,
        }
    }
}

/// The state of a VI, as [`Vi::query`] tells it (`VipQueryVi`).
#[derive(Clone, Debug)]
pub struct ViStatus {
    /// The state.
    pub state: ViState,
    /// The attributes.
    pub attributes: ViAttributes,
    /// The attributes of the connected VI.
    pub remote: Option<RemoteAttributes>,
    /// Whether the send queue has no descriptors.
    pub send_queue_empty: bool,
    /// Whether the receive queue has no descriptors.
    pub receive_queue_empty: bool,
}

pub(crate) struct ViShared {
    pub(crate) nic: Arc<NicShared>,
    id: ViId,
    state: AtomicU8,
    link: Mutex<Link>,
    changed: Condvar,
    /// The sources of the work queues, and the queues' places there.
    send: (Arc<Source>, u32),
    recv: (Arc<Source>, u32),
}

/// The parts of a VI that connecting changes.
pub(crate) struct Link {
    /// `None` once the program has dropped the VI: tasks that hold it for a moment do not hold the protection tag.
    attributes: Option<ViAttributes>,
    control: Control,
    /// Ends the task that has the connection.
    pub(crate) leave: Option<Arc<Stop>>,
    remote: Option<RemoteAttributes>,
    pub(crate) peer: Option<PeerOutcome>,
    /// Counts the connections that were begun.
    attempt: u64,
}

impl Link {
    fn attributes(&self) -> &ViAttributes {
        self.attributes.as_ref().expect("the program has the VI")
    }
}

impl ViShared {
    pub(crate) fn id(&self) -> ViId {
        self.id
    }
    #[inline]
    pub(crate) fn state(&self) -> ViState {
        match self.state.load(Ordering::Acquire) {
            0 => ViState::Idle,
            1 => ViState::ConnectPending,
            2 => ViState::Connected,
            _ => ViState::Error,
        }
    }
    fn set(&self, state: ViState) {
        self.state.store(state as u8, Ordering::Release);
        self.changed.notify_all();
    }
    pub(crate) fn link(&self) -> MutexGuard<'_, Link> {
        lock::lock(&self.link)
    }
    fn source(&self, queue: Queue) -> &(Arc<Source>, u32) {
        if queue == Queue::Send { &self.send } else { &self.recv }
    }
    /// Waits for a change of the state.
    pub(crate) fn wait_change<'l>(
        &self,
        link: MutexGuard<'l, Link>,
        left: Option<Duration>,
    ) -> MutexGuard<'l, Link> {
        match left {
            Some(left) => {
                let waited = self.changed.wait_timeout(link, left);
                waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
            }
            None => self.changed.wait(link).unwrap_or_else(std::sync::PoisonError::into_inner),
        }
    }

    /// Connects the queue pair to a peer's that the program knows.
    pub(crate) fn connect_by_hand(self: &Arc<Self>, remote: &Endpoint) -> Result<(), Error> {
        let (attempt, control, _) = self.begin()?;
        let connected = control.connect(remote);
        let connected = connected.and_then(|()| control.end_without_descriptor(self.nic.ack_timeout));
        match connected {
            Ok(()) => self.set(ViState::Connected),
            Err(_) => self.fail(attempt, None),
        }
        Ok(connected?)
    }
    /// Begins to connect. Returns the number of the attempt, the queue pair and the attributes.
    pub(crate) fn begin(&self) -> Result<(u64, Control, RemoteAttributes), Error> {
        let mut link = self.link();
        let state = self.state();
        if state != ViState::Idle {
            return Err(Error::State { state, needs: "only an idle VI is connected" });
        }
        self.set(ViState::ConnectPending);
        link.attempt += 1;
        Ok((link.attempt, link.control.clone(), link.attributes().into()))
    }
    /// Goes on with an attempt whose peer has gone before it was connected. Posted receive descriptors stay.
    pub(crate) fn try_again(self: &Arc<Self>, attempt: u64) -> Result<Control, Error> {
        let mut link = self.link();
        if link.attempt != attempt || self.state() != ViState::ConnectPending {
            return Err(Error::State { state: self.state(), needs: "the connection was given up" });
        }
        self.renew_unused(&mut link)?;
        Ok(link.control.clone())
    }
    /// Ends an attempt that has failed. Posted receive descriptors stay.
    pub(crate) fn fail(self: &Arc<Self>, attempt: u64, outcome: Option<PeerOutcome>) {
        let mut link = self.link();
        if link.attempt != attempt || self.state() != ViState::ConnectPending {
            return;
        }
        (link.peer, link.leave) = (outcome, None);
        let renewed = self.renew_unused(&mut link);
        self.set(if renewed.is_ok() { ViState::Idle } else { ViState::Error });
        drop(link);
        self.tell_all();
    }
    /// Ends an attempt that has succeeded.
    pub(crate) fn succeed(
        self: &Arc<Self>,
        attempt: u64,
        connection: hca_cm::Connection,
        remote: &RemoteAttributes,
        outcome: Option<PeerOutcome>,
    ) -> Result<(), Error> {
        let mut link = self.link();
        if link.attempt != attempt || self.state() != ViState::ConnectPending {
            let needs = "the connection was given up while it was made";
            return Err(Error::State { state: self.state(), needs });
        }
        link.control.end_without_descriptor(self.nic.ack_timeout)?;
        let leave = Arc::<Stop>::default();
        self.nic.tasks.spawn(watch(Arc::downgrade(self), connection, Arc::clone(&leave)))?;
        link.leave = Some(leave);
        link.remote = Some(remote.clone());
        link.peer = outcome;
        self.set(ViState::Connected);
        let (source, slot) = &self.recv;
        source.quietly(|state| state.change(*slot, WorkQueue::end_early));
        Ok(())
    }
    /// Ends the connection, or the attempt to make one. The VI is idle.
    fn disconnect(self: &Arc<Self>) -> Result<(), Error> {
        let mut link = self.link();
        link.attempt += 1;
        if let Some(leave) = link.leave.take() {
            leave.ask();
        }
        (link.remote, link.peer) = (None, None);
        self.end_queue_pair(&link);
        // From here on a send of another thread is refused, so that none meets the new queue pair.
        self.set(ViState::Idle);
        let renewed = self.renew(&mut link, WorkQueue::begin_anew);
        if renewed.is_err() {
            self.set(ViState::Error);
        }
        drop(link);
        self.tell_all();
        self.nic.waiters.call();
        renewed
    }
    /// Tells VIs what a renewal has found.
    fn tell_all(&self) {
        for (source, _) in [&self.send, &self.recv] {
            source.with(|_| ());
        }
    }
    /// Has an idle queue pair, in the place of one that was never connected to a peer's.
    fn renew_unused(self: &Arc<Self>, link: &mut Link) -> Result<(), Error> {
        if link.control.is_new() { Ok(()) } else { self.renew(link, WorkQueue::carry_on) }
    }
    /// Takes what has completed, and puts a new queue pair in the place of the old one. `pass` passes a work queue on.
    fn renew(self: &Arc<Self>, link: &mut Link, pass: Pass) -> Result<(), Error> {
        let (rules, context) = (self.nic.rules(link.attributes()), context_of(self.send.1, self.recv.1));
        for (source, _) in [&self.send, &self.recv] {
            source.quietly(|state| state.poll());
        }
        let built = build(&self.nic, link.attributes(), context, &self.send.0, &self.recv.0);
        let (control, send, recv) = match built {
            Ok(built) => built,
            Err(error) => {
                for (source, slot) in [&self.send, &self.recv] {
                    source.quietly(|state| state.change(*slot, WorkQueue::flush));
                }
                return Err(error);
            }
        };
        let handle = control.handle();
        link.control = control;
        for ((source, slot), side) in [(&self.send, send), (&self.recv, recv)] {
            let rules = rules.clone();
            source.quietly(|state| state.change(*slot, |queue| pass(queue, (side, handle), rules)));
        }
        Ok(())
    }

    /// One of the queues says that something has failed on this queue pair; or a completion queue has overrun. The VI may
    /// have another queue pair by now, and a connection that has not failed.
    #[cold]
    pub(crate) fn tell(&self, qp: QpHandle, kind: ErrorKind) {
        if kind == ErrorKind::Overrun {
            return self.nic.handlers.raise(&AsyncError { kind, vi: self.id });
        }
        let mut link = self.link();
        if self.state() == ViState::Connected && link.control.handle() == qp {
            self.lose(&mut link);
            drop(link);
            self.raise(kind, qp);
        }
    }
    /// The connection has ended.
    fn lose(&self, link: &mut Link) {
        self.set(ViState::Error);
        self.end_queue_pair(link);
        if let Some(leave) = link.leave.take() {
            leave.ask();
        }
    }
    /// Ends the queue pair. Which sends have succeeded before is asked for.
    fn end_queue_pair(&self, link: &Link) {
        let (source, slot) = &self.send;
        source.quietly(|state| state.ask(*slot));
        link.control.to_error();
    }
    fn raise(&self, kind: ErrorKind, qp: QpHandle) {
        self.nic.waiters.call();
        let event = self.nic.context.poll_event_of(EventObject::Qp(qp));
        let kind = match event {
            Some(AsyncEvent::QpAccessError(_)) if self.has_counted(qp, "reads_refused") => {
                ErrorKind::ReadProtection
            }
            Some(AsyncEvent::QpAccessError(_)) => ErrorKind::WriteProtection,
            // The peer does not send again: its RNR retry count is 0.
            _ if kind == ErrorKind::ConnectionLost && self.has_counted(qp, "rnr_nak_sent") => {
                ErrorKind::ReceiveQueueEmpty
            }
            _ => kind,
        };
        self.nic.handlers.raise(&AsyncError { kind, vi: self.id });
    }
    /// Whether the adapter has counted something of a queue pair. One that does not count has not.
    fn has_counted(&self, qp: QpHandle, what: &str) -> bool {
        let counters = self.nic.context.device().qp_counters(qp).unwrap_or_default();
        counters.iter().any(|counter| counter.name == what && counter.value > 0)
    }
    /// The peer has ended the connection.
    fn lost(&self, of: &Arc<Stop>) {
        let mut link = self.link();
        if !link.leave.as_ref().is_some_and(|leave| Arc::ptr_eq(leave, of)) {
            return;
        }
        self.lose(&mut link);
        let handle = link.control.handle();
        drop(link);
        self.raise(ErrorKind::ConnectionLost, handle);
    }
}

/// Holds a connection until the VI leaves it or the peer ends it.
async fn watch(vi: Weak<ViShared>, connection: hca_cm::Connection, leave: Arc<Stop>) {
    if leave.or(connection.disconnected()).await.is_none() {
        let _ = connection.disconnect_async().await;
        return;
    }
    drop(connection);
    if let Some(vi) = vi.upgrade() {
        vi.lost(&leave);
    }
}

/// Passes a work queue on to a new queue pair.
type Pass = fn(&mut WorkQueue, (Side, QpHandle), Rules);

/// A Virtual Interface: a send queue and a receive queue, connected to those of one peer. From
/// [`Nic::create_vi`](crate::Nic::create_vi).
///
/// All calls may be made by several threads. Dropped, it disconnects, and its descriptors are forgotten.
pub struct Vi {
    shared: Arc<ViShared>,
}

impl Vi {
    pub(crate) fn create(
        nic: &Nic,
        attributes: &ViAttributes,
        send_cq: Option<&Cq>,
        recv_cq: Option<&Cq>,
    ) -> Result<Self, Error> {
        let shared = nic.shared();
        shared.check(attributes)?;
        for cq in [send_cq, recv_cq].into_iter().flatten() {
            cq.check(shared)?;
        }
        let (depth, rules) = (shared.attributes.max_descriptors_per_queue, shared.rules(attributes));
        let own = if send_cq.is_none() || recv_cq.is_none() {
            Some(Source::create(&shared.context, &shared.waiters, 2 * depth + 1, None)?)
        } else {
            None
        };
        let of = |cq: Option<&Cq>| {
            cq.map(|cq| Arc::clone(cq.source())).or_else(|| own.clone()).expect("one of them is there")
        };
        let (send, recv) = (of(send_cq), of(recv_cq));
        // The places come first, since the queue pair has them as its number.
        let (send_slot, recv_slot) = (send.with(|state| state.reserve()), recv.with(|state| state.reserve()));
        let built = build(shared, attributes, context_of(send_slot, recv_slot), &send, &recv);
        let (control, send_side, recv_side) = built.inspect_err(|_| {
            send.with(|state| state.remove(send_slot));
            recv.with(|state| state.remove(recv_slot));
        })?;
        let handle = control.handle();
        let link = Link {
            attributes: Some(attributes.clone()),
            control,
            leave: None,
            remote: None,
            peer: None,
            attempt: 0,
        };
        let vi = Arc::new(ViShared {
            nic: Arc::clone(shared),
            id: shared.next_vi(),
            state: AtomicU8::new(ViState::Idle as u8),
            link: Mutex::new(link),
            changed: Condvar::new(),
            send: (send, send_slot),
            recv: (recv, recv_slot),
        });
        for (which, side) in [(Queue::Send, send_side), (Queue::Receive, recv_side)] {
            let (source, slot) = vi.source(which);
            let table = &shared.table;
            let queue = WorkQueue::new(&vi, which, table, (side, handle), rules.clone(), depth as usize);
            source.with(|state| state.put(*slot, queue));
        }
        shared.vis.fetch_add(1, Ordering::Relaxed);
        Ok(Self { shared: vi })
    }
    pub(crate) fn shared(&self) -> &Arc<ViShared> {
        &self.shared
    }
    /// The queue pair, for a program that connects it [by hand](Self::connect_by_hand).
    #[doc(hidden)]
    pub fn endpoint_by_hand(&self) -> Endpoint {
        self.shared.link().control.endpoint()
    }
    /// Connects to the VI with this queue pair, whose program does the same.
    ///
    /// # Errors
    /// The VI is not idle, or the device refuses.
    #[doc(hidden)]
    pub fn connect_by_hand(&self, remote: &Endpoint) -> Result<(), Error> {
        self.shared.connect_by_hand(remote)
    }
    /// The VI's name in completion queues and asynchronous errors.
    pub fn id(&self) -> ViId {
        self.shared.id
    }
    /// The state of the connection, as last noticed.
    pub fn state(&self) -> ViState {
        self.shared.state()
    }
    /// Whether it is connected to a process of this machine, whose CPU takes long messages out of this process's memory.
    pub fn is_near(&self) -> bool {
        self.shared.link().control.query().is_ok_and(|status| status.near)
    }
    /// The state, the attributes, and whether the queues are empty (`VipQueryVi`).
    pub fn query(&self) -> ViStatus {
        // Before the link is locked: a poll may find that the connection has ended.
        let [send_queue_empty, receive_queue_empty] = [Queue::Send, Queue::Receive].map(|queue| {
            let (source, slot) = self.shared.source(queue);
            source.polled(|state| state.queue(*slot).len() == 0)
        });
        let link = self.shared.link();
        ViStatus {
            state: self.shared.state(),
            attributes: link.attributes().clone(),
            remote: link.remote.clone(),
            send_queue_empty,
            receive_queue_empty,
        }
    }
    /// Sets the attributes (`VipSetViAttributes`).
    ///
    /// # Errors
    /// The VI is not idle, its queues have descriptors, or the adapter does not support an attribute.
    pub fn set_attributes(&self, attributes: &ViAttributes) -> Result<(), Error> {
        self.shared.nic.check(attributes)?;
        self.check_unused()?;
        let mut link = self.shared.link();
        let state = self.shared.state();
        if state != ViState::Idle {
            return Err(Error::State {
                state,
                needs: "its attributes are set while it is idle, and another thread connects it",
            });
        }
        let before = link.attributes.replace(attributes.clone());
        let renewed = self.shared.renew(&mut link, WorkQueue::begin_anew);
        if renewed.is_err() {
            link.attributes = before;
        }
        drop(link);
        self.shared.tell_all();
        renewed
    }
    /// Whether the VI can be [destroyed](Self::destroy) now.
    ///
    /// # Errors
    /// It is not idle, or its queues have descriptors.
    pub fn check_unused(&self) -> Result<(), Error> {
        let status = self.query();
        if status.state != ViState::Idle {
            return Err(Error::State { state: status.state, needs: "disconnect it first" });
        }
        let both = [Queue::Send, Queue::Receive];
        let users = both.map(|queue| {
            let (source, slot) = self.shared.source(queue);
            source.with(|state| state.queue(*slot).len())
        });
        match users.iter().sum() {
            0 => Ok(()),
            users => Err(Error::InUse { what: "descriptors of the VI's queues", users }),
        }
    }
    /// Destroys the VI (`VipDestroyVi`). On return no callback of it is under way, unless this is called from one: so a
    /// caller holds no lock that a callback takes.
    ///
    /// # Errors
    /// It is not idle, or its queues have descriptors. The error gives the VI back.
    pub fn destroy(self) -> Result<(), (Self, Error)> {
        if let Err(error) = self.check_unused() {
            return Err((self, error));
        }
        let own = [Queue::Send, Queue::Receive].map(|queue| self.unattached(queue));
        own.into_iter().flatten().for_each(|(source, _)| source.wait_for_call());
        Ok(())
    }
    /// Ends the connection, or an attempt to make one (`VipDisconnect`). On return the VI is idle, and all its posted
    /// descriptors have completed: those that were not carried out as flushed. An idle VI with receive descriptors is
    /// rid of them so.
    ///
    /// # Errors
    /// The VI is idle and has no descriptors; or the device has no queue pair left, and the VI is in the state Error.
    pub fn disconnect(&self) -> Result<(), Error> {
        if self.check_unused().is_ok() {
            return Err(Error::State { state: ViState::Idle, needs: "it is not connected" });
        }
        self.shared.disconnect()
    }

    /// Posts a descriptor to the send queue (`VipPostSend`), and those that are [chained](Descriptor::chain) behind it. A
    /// descriptor that can not be carried out completes with an error. One that is given, and not lent, saves a clone.
    ///
    /// # Errors
    /// The queue has no room for all of them, the VI was not connected, a descriptor's memory has another protection tag,
    /// or the chain is a circle or leaves registered memory. None was posted then.
    #[inline]
    pub fn post_send(&self, descriptor: impl Into<Descriptor>) -> Result<(), Error> {
        self.post(Queue::Send, descriptor.into())
    }
    /// Posts a descriptor to the receive queue (`VipPostRecv`), and those that are [chained](Descriptor::chain) behind it.
    /// A descriptor that can not be carried out completes with an error.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send), but the VI need not be connected.
    #[inline]
    pub fn post_recv(&self, descriptor: impl Into<Descriptor>) -> Result<(), Error> {
        self.post(Queue::Receive, descriptor.into())
    }
    /// Posts the descriptor at an address, in the memory that the handle names.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send) and [`post_recv`](Self::post_recv), or the address is no multiple of 64, or
    /// the handle names no memory there.
    pub fn post_at(&self, queue: Queue, addr: u64, handle: MemHandle) -> Result<(), Error> {
        let region = self.shared.nic.table.find(handle);
        let region = region.ok_or(Error::Memory { handle: handle.0, addr, len: 1 })?;
        self.post(queue, Descriptor::at(region, addr)?)
    }
    #[inline]
    fn post(&self, queue: Queue, descriptor: Descriptor) -> Result<(), Error> {
        let (source, slot) = self.shared.source(queue);
        source.with(|state| state.change(*slot, |queue| queue.post(descriptor))).map_err(|error| *error)
    }

    /// Takes the first descriptor off the send queue, if it has completed (`VipSendDone`). Never waits.
    #[inline]
    pub fn send_done(&self) -> Option<Done> {
        self.done(Queue::Send)
    }
    /// Takes the first descriptor off the receive queue, if it has completed (`VipRecvDone`). Never waits.
    #[inline]
    pub fn recv_done(&self) -> Option<Done> {
        self.done(Queue::Receive)
    }
    #[inline]
    fn done(&self, queue: Queue) -> Option<Done> {
        let (source, slot) = self.shared.source(queue);
        source.with(|state| {
            if let Some(done) = state.queue(*slot).dequeue() {
                return Some(done);
            }
            state.poll();
            state.dequeue_or_ask(*slot)
        })
    }
    /// Waits until the first descriptor of the send queue has completed, and takes it off (`VipSendWait`); for ever
    /// without a `timeout`.
    ///
    /// # Errors
    /// Nothing completed in time, or the queue is attached to a completion queue.
    pub fn send_wait(&self, timeout: Option<Duration>) -> Result<Done, Error> {
        self.wait(Queue::Send, timeout)
    }
    /// Waits until the first descriptor of the receive queue has completed, and takes it off (`VipRecvWait`); for ever
    /// without a `timeout`.
    ///
    /// # Errors
    /// As [`send_wait`](Self::send_wait).
    pub fn recv_wait(&self, timeout: Option<Duration>) -> Result<Done, Error> {
        self.wait(Queue::Receive, timeout)
    }
    fn wait(&self, queue: Queue, timeout: Option<Duration>) -> Result<Done, Error> {
        let (source, slot) = self.unattached(queue)?;
        source.wait(timeout, |state| state.dequeue_or_ask(*slot))
    }
    fn unattached(&self, queue: Queue) -> Result<&(Arc<Source>, u32), Error> {
        let own = self.shared.source(queue);
        if own.0.is_programs() {
            let why = "it is attached to a completion queue: wait for that";
            return Err(Error::Parameter { what: "work queue", why });
        }
        Ok(own)
    }
    /// Has `call` called once, when the first descriptor of the send queue has completed, with the descriptor taken off
    /// (`VipSendNotify`). Calls are made in the order in which they were asked for, by a thread of the adapter.
    ///
    /// # Errors
    /// The queue is attached to a completion queue, or the system starts no thread.
    pub fn send_notify(&self, call: impl FnOnce(Done) + Send + 'static) -> Result<(), Error> {
        self.notify(Queue::Send, call)
    }
    /// Has `call` called once, when the first descriptor of the receive queue has completed, with the descriptor taken
    /// off (`VipRecvNotify`).
    ///
    /// # Errors
    /// As [`send_notify`](Self::send_notify).
    pub fn recv_notify(&self, call: impl FnOnce(Done) + Send + 'static) -> Result<(), Error> {
        self.notify(Queue::Receive, call)
    }
    fn notify(&self, queue: Queue, call: impl FnOnce(Done) + Send + 'static) -> Result<(), Error> {
        let (source, slot) = self.unattached(queue)?;
        let (vi, slot) = (Arc::downgrade(&self.shared), *slot);
        self.shared.nic.notifier.add(
            source,
            slot.into(),
            move |state| {
                if !state.is_at(slot, &vi) {
                    return Look::Gone;
                }
                match state.dequeue_or_ask(slot) {
                    Some(done) => Look::Found(done),
                    None => Look::Nothing,
                }
            },
            call,
        )
    }
}

impl Drop for Vi {
    fn drop(&mut self) {
        if self.shared.nic.is_in_child() {
            return;
        }
        let mut link = self.shared.link();
        link.attempt += 1;
        // The program has no VI any more that an error could be told of.
        self.shared.set(ViState::Error);
        let attributes = link.attributes.take();
        if let Some(leave) = link.leave.take() {
            leave.ask();
        }
        link.control.to_error();
        drop((link, attributes));
        for (source, slot) in [&self.shared.send, &self.shared.recv] {
            // Dropped outside of the lock.
            let queue = source.with(|state| state.remove(*slot));
            drop(queue);
        }
        self.shared.nic.vis.fetch_sub(1, Ordering::Relaxed);
        self.shared.nic.waiters.call();
    }
}
impl fmt::Debug for Vi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vi({}, {:?})", self.shared.id.0, self.state())
    }
}

impl NicShared {
    /// The rules by which descriptors of a VI are checked.
    fn rules(&self, attributes: &ViAttributes) -> Rules {
        Rules {
            ptag: attributes.ptag.clone(),
            reliability: attributes.reliability,
            max_transfer_size: attributes.max_transfer_size,
            max_segments: self.attributes.max_segments_per_descriptor as usize,
            max_inline: self.max_inline,
        }
    }
    /// Whether a VI can have these attributes.
    fn check(&self, attributes: &ViAttributes) -> Result<(), Error> {
        if !attributes.ptag.is_of(&self.context) {
            return Err(Error::Ptag);
        }
        if !self.attributes.reliability_levels.contains(&attributes.reliability) {
            return Err(Error::Reliability);
        }
        if attributes.max_transfer_size > self.attributes.max_transfer_size {
            return Err(Error::Mtu);
        }
        Ok(())
    }
}
