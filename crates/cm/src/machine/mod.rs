//! The connection manager of a port as a state machine.

mod calls;
mod conn;
mod event;
mod receive;
mod sidr;
mod table;
mod timer;

use core::time::Duration;
use std::collections::VecDeque;

use hca_core::Instant;

use crate::ServiceId;
use crate::wire::{
    About, CmTimeout, CommId, Guid, Ids, Info, Mad, Message, PrivateData, Reason, Rej, TransactionId,
};
use conn::{Bytes, State};
pub use event::{Cause, CmError, ConnState, Event, Failure, Peer, Resolve, SidrAnswer, Transmit};
use table::{Entry, Table};

/// Datagrams that wait for [`Machine::poll_transmit`] at most. Those beyond are dropped, as a network drops them.
const MAX_OUTBOX: usize = 4096;

/// The settings of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The adapter's GUID. Peers tell a lost connection of this adapter by it, so no other adapter may have it.
    pub guid: Guid,
    /// The first ID is made of it. A machine that begins anew takes another seed, so that late messages to the one
    /// before do not find a connection.
    pub seed: u64,
    /// The top byte of all IDs; `None` leaves it free. Where several machines share queue pair 1, it tells whose an
    /// answer is.
    pub prefix: Option<u8>,
    /// Connections and resolutions at a time, time-wait included. The oldest in time-wait make room.
    pub max_entries: usize,
    /// The time that the program has for the answer to a request, once the peer has asked twice: the MRA says it.
    pub service_timeout: CmTimeout,
    /// The longest wait that a peer can ask for, as by an MRA or by the timeouts of its REQ.
    pub max_wait: Duration,
    /// How long the answer to a resolution is kept for duplicates of the request.
    pub answer_memory: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            guid: Guid(0),
            seed: 0,
            prefix: None,
            max_entries: 65_536,
            service_timeout: CmTimeout::new(22),
            max_wait: Duration::from_secs(70),
            answer_memory: Duration::from_secs(5),
        }
    }
}

/// Counts of datagrams since the machine was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Sent, retransmissions included.
    pub sent: u64,
    /// Retransmissions.
    pub retransmitted: u64,
    /// Received, and parsed.
    pub received: u64,
    /// Duplicates among the received.
    pub duplicates: u64,
    /// Received, and dropped because they are no messages or have impossible values.
    pub malformed: u64,
    /// Received, and dropped because they come from elsewhere than the connection's peer, or in a state that they have
    /// no place in.
    pub misplaced: u64,
    /// Requests that were dropped because a backlog was full.
    pub backlog_full: u64,
    /// Connections whose time-wait was cut short to make room. Their peers' late messages may begin new ones.
    pub evicted: u64,
    /// Datagrams that were not sent because too many waited.
    pub outbox_full: u64,
}

/// The connection manager of a port. Messages, calls and the time go in; messages and events come out.
///
/// After each call, take all of [`poll_transmit`](Self::poll_transmit) and [`poll_event`](Self::poll_event), and
/// arrange for [`handle_timeout`](Self::handle_timeout) at [`deadline`](Self::deadline).
#[derive(Debug)]
pub struct Machine {
    config: Config,
    table: Table,
    outbox: VecDeque<Transmit>,
    events: VecDeque<Event>,
    counters: Counters,
}

impl Machine {
    /// A machine without connections and listeners.
    pub fn new(config: Config) -> Self {
        Self {
            table: Table::new(config.seed, config.prefix, config.max_entries),
            config,
            outbox: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
        }
    }
    /// The oldest datagram that has to be sent.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.outbox.pop_front()
    }
    /// The oldest event for the program.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
    /// The time of the next [`handle_timeout`](Self::handle_timeout); `None` if there is nothing to wait for.
    pub fn deadline(&self) -> Option<Instant> {
        self.table.deadline()
    }
    /// The counts until now.
    pub fn counters(&self) -> Counters {
        self.counters
    }
    /// Connections and resolutions that the machine holds, those in time-wait included.
    pub fn len(&self) -> usize {
        self.table.len()
    }
    /// Whether the machine holds no connection and no resolution.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The state of a connection; `None` if there is none with this ID.
    pub fn state(&self, id: CommId) -> Option<ConnState> {
        self.table.conn(id).map(|conn| conn.state.name())
    }

    fn transmit(&mut self, to: Peer, mad: Bytes) {
        if self.outbox.len() >= MAX_OUTBOX {
            self.counters.outbox_full += 1;
            return;
        }
        self.counters.sent += 1;
        self.outbox.push_back(Transmit { to, mad });
    }
    fn send(&mut self, to: Peer, transaction: TransactionId, message: impl Into<Message>) {
        self.transmit(to, build(transaction, message));
    }
    /// Sends a rejection that no connection stands behind.
    fn send_rej(&mut self, to: Peer, transaction: TransactionId, ids: Ids, about: About, reason: Reason) {
        self.send(to, transaction, rejection(ids, about, reason, Info::EMPTY));
    }
    /// The rejection that tells the peer of a timeout. The peer finds the connection by the GUID and the sender's ID,
    /// since it may not have told its own ID yet.
    fn timeout_rejection(&self, ids: Ids, about: About) -> Rej {
        let guid = Info::new(&self.config.guid.0.to_be_bytes()).expect("8 bytes fit");
        rejection(ids, about, Reason::TIMEOUT, guid)
    }
    fn event(&mut self, event: Event) {
        self.events.push_back(event);
    }
    /// An event of a connection, unless the program has forgotten the connection.
    fn event_of(&mut self, id: CommId, event: Event) {
        if self.table.conn(id).is_some_and(|conn| !conn.forgotten) {
            self.events.push_back(event);
        }
    }
    /// The closing event of a connection, unless it was given.
    fn closing_event(&mut self, id: CommId, event: Event) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        let first = !core::mem::replace(&mut conn.closed, true);
        if first && !conn.forgotten {
            self.events.push_back(event);
        }
    }

    /// The connection's state becomes time-wait.
    fn close(&mut self, now: Instant, id: CommId, answer: Option<Bytes>) {
        self.table.leave_backlog(id);
        self.table.free_queue_pair(id);
        let Some(conn) = self.table.conn_mut(id) else { return };
        let end = now + conn.time_wait();
        conn.state = State::TimeWait { answer };
        self.table.ends_at(id, end);
    }
    /// The connection is removed.
    pub(super) fn finish(&mut self, id: CommId) {
        if let Some(Entry::Conn(conn)) = self.table.remove(id)
            && !conn.forgotten
        {
            self.event(Event::Gone { id });
        }
    }
    /// Makes room for one more entry, if need be at the expense of the oldest in time-wait.
    fn make_room(&mut self) -> Result<(), CmError> {
        if self.table.has_room() {
            return Ok(());
        }
        let oldest = self.table.oldest_evictable().ok_or(CmError::Full { limit: self.config.max_entries })?;
        self.counters.evicted += 1;
        self.finish(oldest);
        Ok(())
    }
    /// Takes a place in a listener's backlog and in the table; the ID of the request that has them. Without the first, no
    /// connection in time-wait gives way to it.
    fn admit(&mut self, service: ServiceId) -> Result<CommId, NotAdmitted> {
        let id = self.table.fresh_id();
        if self.table.enter_backlog(service, id) != Some(true) {
            self.counters.backlog_full += 1;
            return Err(NotAdmitted::Backlog);
        }
        if self.make_room().is_err() {
            self.table.listeners.get_mut(&service).map(|listener| listener.pending.remove(&id));
            return Err(NotAdmitted::Limit);
        }
        Ok(id)
    }
    /// A wait that the peer asks for, within bounds.
    fn bounded(&self, wait: Duration) -> Duration {
        wait.clamp(Duration::from_micros(1), self.config.max_wait)
    }
}

/// The reason why a request finds no place.
enum NotAdmitted {
    /// The backlog is full: the request is dropped, and the peer repeats it.
    Backlog,
    /// The table is full.
    Limit,
}

fn build(transaction: TransactionId, message: impl Into<Message>) -> Bytes {
    Box::new(Mad { transaction, message: message.into() }.build())
}

fn rejection(ids: Ids, about: About, reason: Reason, info: Info) -> Rej {
    Rej { ids, about, reason, info, private_data: PrivateData::EMPTY }
}

/// The IDs of a rejection that answers a request: the sender has no connection.
fn ids_of_request(remote: CommId) -> Ids {
    Ids { local: CommId(0), remote }
}
