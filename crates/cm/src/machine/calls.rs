//! The program's calls.

use core::time::Duration;

use hca_core::Instant;

use super::conn::{Conn, State};
use super::event::{Cause, CmError, Event, Failure, Peer};
use super::table::Entry;
use super::{Machine, build, ids_of_request};
use crate::ServiceId;
use crate::wire::{
    About, CmTimeout, CommId, Dreq, Ids, Info, Kind, Mra, PrivateData, Reason, Rej, Rep, Req, Rtu,
    TransactionId,
};

impl Machine {
    /// Listens at a service, for connections and for resolutions. At most `backlog` requests wait until the program
    /// answers or [takes](Self::taken) them; further ones are dropped, and their senders repeat them.
    ///
    /// # Errors
    /// The service has a listener.
    pub fn listen(&mut self, service: ServiceId, backlog: usize) -> Result<(), CmError> {
        if self.table.listen(service, backlog) { Ok(()) } else { Err(CmError::InUse { service }) }
    }
    /// Ends a listener. Requests that the program has neither answered nor [taken](Self::taken) are rejected.
    pub fn unlisten(&mut self, now: Instant, service: ServiceId) {
        let Some(listener) = self.table.listeners.get_mut(&service) else { return };
        for id in core::mem::take(&mut listener.pending) {
            match self.table.get(id) {
                Some(Entry::Conn(_)) => {
                    self.closing_event(id, Event::Failed { id, failure: Failure::NoListener });
                    let (info, data) = (Info::EMPTY, PrivateData::EMPTY);
                    let _ = self.reject(now, id, Reason::INVALID_SERVICE_ID, info, data);
                }
                _ => self.refuse_sidr(now, id),
            }
        }
        self.table.listeners.remove(&service);
    }
    /// The program has taken a request, so that it does not wait in the listener's backlog any more. It outlives the
    /// listener, and waits for the program's answer as before.
    pub fn taken(&mut self, id: CommId) {
        self.table.leave_backlog(id);
    }
    /// Whether anybody listens at the service.
    pub fn is_listening(&self, service: ServiceId) -> bool {
        self.table.listeners.contains_key(&service)
    }

    /// Asks a peer for a connection. The IDs and the GUID of the request are filled in here.
    ///
    /// # Errors
    /// The limit is reached.
    pub fn connect(&mut self, now: Instant, to: Peer, request: &Req) -> Result<CommId, CmError> {
        self.make_room()?;
        let id = self.table.fresh_id();
        let request = Req { local_comm_id: id, local_ca_guid: self.config.guid, ..*request };
        let transaction = self.transaction(id);
        let round_trip = self.round_trip(&request);
        let mut conn = Conn {
            state: State::ReqReceived { delayed: false },
            peer: to,
            transaction,
            remote: None,
            local_qpn: request.local_qpn,
            starting_psn: request.starting_psn,
            listener: None,
            wait: self.bounded(round_trip + request.remote_response_timeout.duration()),
            retries: request.max_cm_retries.get() as u8,
            round_trip,
            repeats: self.repeats(&request),
            delay: Duration::ZERO,
            closed: false,
            forgotten: false,
            timer: None,
        };
        let mad = build(transaction, request);
        conn.state = State::ReqSent(conn.sending(mad.clone()));
        let wait = conn.wait;
        self.table.insert(id, Entry::Conn(Box::new(conn)));
        self.table.set_timer(id, Some(now + wait));
        self.transmit(to, mad);
        Ok(id)
    }
    /// Accepts a request. The IDs and the GUID of the reply are filled in here. The queue pair is ready to receive
    /// before the call.
    ///
    /// # Errors
    /// The connection is unknown, or does not wait for this answer.
    pub fn accept(&mut self, now: Instant, id: CommId, reply: &Rep) -> Result<(), CmError> {
        let guid = self.config.guid;
        let conn = self.known(id)?;
        let State::ReqReceived { .. } = conn.state else { return Err(wrong_state(id, conn)) };
        let reply = Rep { ids: conn.ids(id), local_ca_guid: guid, ..*reply };
        conn.local_qpn = reply.local_qpn;
        let mad = build(conn.transaction, reply);
        conn.state = State::RepSent(conn.sending(mad.clone()));
        let (peer, wait) = (conn.peer, conn.wait);
        self.table.leave_backlog(id);
        self.table.set_timer(id, Some(now + wait));
        self.transmit(peer, mad);
        Ok(())
    }
    /// Rejects a request or a reply that waits for the program's answer.
    ///
    /// # Errors
    /// The connection is unknown, or no answer of the program is due.
    pub fn reject(
        &mut self,
        now: Instant,
        id: CommId,
        reason: Reason,
        info: Info,
        private_data: PrivateData<{ Rej::PRIVATE_BYTES }>,
    ) -> Result<(), CmError> {
        let conn = self.known(id)?;
        let (about, ids) = match conn.state {
            // The peer knows no ID of this side.
            State::ReqReceived { delayed: false } => (About::Req, Ids { local: CommId(0), ..conn.ids(id) }),
            State::ReqReceived { .. } => (About::Req, conn.ids(id)),
            State::RepReceived { .. } => (About::Rep, conn.ids(id)),
            _ => return Err(wrong_state(id, conn)),
        };
        conn.closed = true;
        let mad = build(conn.transaction, Rej { ids, about, reason, info, private_data });
        let peer = conn.peer;
        self.transmit(peer, mad.clone());
        self.close(now, id, Some(mad));
        Ok(())
    }
    /// Tells the peer of a request or a reply that the answer takes this time.
    ///
    /// # Errors
    /// The connection is unknown, or does not wait for the program's answer.
    pub fn delay(&mut self, now: Instant, id: CommId, service_timeout: CmTimeout) -> Result<(), CmError> {
        let longest = self.config.max_wait;
        let conn = self.known(id)?;
        let about = match &mut conn.state {
            State::ReqReceived { delayed } => {
                *delayed = true;
                About::Req
            }
            State::RepReceived { delayed } => {
                *delayed = true;
                About::Rep
            }
            _ => return Err(wrong_state(id, conn)),
        };
        let message = Mra { ids: conn.ids(id), about, service_timeout, private_data: PrivateData::EMPTY };
        let (peer, transaction) = (conn.peer, conn.transaction);
        // The peer waits for so long, and then repeats its message as often as is left to it.
        let patience = service_timeout.duration() + Self::patience(conn);
        conn.delay = service_timeout.duration().min(longest);
        self.send(peer, transaction, message);
        if about == About::Req {
            self.table.set_timer(id, Some(now + patience));
        }
        Ok(())
    }
    /// Says that the queue pair is ready, behind [`Event::Reply`]. The connection is established.
    ///
    /// # Errors
    /// The connection is unknown, or no reply was received.
    pub fn ready(
        &mut self,
        id: CommId,
        private_data: PrivateData<{ Rtu::PRIVATE_BYTES }>,
    ) -> Result<(), CmError> {
        let conn = self.known(id)?;
        let State::RepReceived { .. } = conn.state else { return Err(wrong_state(id, conn)) };
        let mad = build(conn.transaction, Rtu { ids: conn.ids(id), private_data });
        conn.state = State::Established { rtu: Some(mad.clone()) };
        let peer = conn.peer;
        self.table.set_timer(id, None);
        self.transmit(peer, mad);
        Ok(())
    }
    /// Says that a message came through the queue pair, so that the peer is ready though its RTU did not come.
    ///
    /// # Errors
    /// The connection is unknown, or waits for no RTU. One that is established is not an error.
    pub fn established(&mut self, now: Instant, id: CommId) -> Result<(), CmError> {
        let conn = self.known(id)?;
        match conn.state {
            State::RepSent(_) => self.on_established(now, id, PrivateData::EMPTY),
            State::Established { .. } => {}
            _ => return Err(wrong_state(id, conn)),
        }
        Ok(())
    }
    /// Asks for the end of a connection.
    ///
    /// # Errors
    /// The connection is unknown or not established.
    pub fn disconnect(
        &mut self,
        now: Instant,
        id: CommId,
        private_data: PrivateData<{ Dreq::PRIVATE_BYTES }>,
    ) -> Result<(), CmError> {
        let transaction = self.transaction(id);
        let conn = self.known(id)?;
        let (State::Established { .. }, Some(remote)) = (&conn.state, conn.remote) else {
            return Err(wrong_state(id, conn));
        };
        let mad = build(transaction, Dreq { ids: conn.ids(id), remote_qpn: remote.qpn, private_data });
        conn.state = State::DreqSent(conn.sending(mad.clone()));
        let (peer, wait) = (conn.peer, conn.wait);
        // The peer may end the connection first, and connect its queue pair anew before its answer comes here.
        self.table.free_queue_pair(id);
        self.table.set_timer(id, Some(now + wait));
        self.transmit(peer, mad);
        Ok(())
    }
    /// Ends whatever has this ID, in the way that its state asks for. No event about it comes any more.
    pub fn forget(&mut self, now: Instant, id: CommId) {
        let Some(entry) = self.table.get_mut(id) else { return };
        let Entry::Conn(conn) = entry else { return self.forget_sidr(now, id) };
        (conn.forgotten, conn.closed) = (true, true);
        match &conn.state {
            State::ReqSent(_) => {
                let (peer, transaction, ids) = (conn.peer, conn.transaction, conn.ids(id));
                let rejection = self.timeout_rejection(ids, About::Req);
                self.send(peer, transaction, rejection);
                self.close(now, id, None);
            }
            State::ReqReceived { .. } | State::RepReceived { .. } => {
                let (info, data) = (Info::EMPTY, PrivateData::EMPTY);
                self.reject(now, id, Reason::CONSUMER_DEFINED, info, data)
                    .expect("a state that can be rejected");
            }
            State::Established { .. } => {
                self.disconnect(now, id, PrivateData::EMPTY).expect("the connection is established");
            }
            // A rejection of the own reply might get lost, and nobody would repeat it. The RTU is waited for, and then
            // the connection is ended.
            State::RepSent(_) | State::DreqSent(_) | State::TimeWait { .. } => {}
        }
    }
    /// Whether a DREQ has no answer yet.
    pub fn is_releasing(&self) -> bool {
        self.table.conns().any(|conn| matches!(conn.state, State::DreqSent(_)))
    }
    /// Sends all DREQs without an answer again, before it is time: for a program that ends soon. The retransmissions
    /// that are left stay as many.
    pub fn repeat_releases(&mut self) {
        let mads = self.table.conns().filter_map(|conn| match &conn.state {
            State::DreqSent(sending) => Some((conn.peer, sending.mad.clone())),
            _ => None,
        });
        for (peer, mad) in mads.collect::<Vec<_>>() {
            self.counters.retransmitted += 1;
            self.transmit(peer, mad);
        }
    }
    /// The peer is ready. If the program has forgotten the connection meanwhile, the connection ends.
    pub(super) fn on_established(
        &mut self,
        now: Instant,
        id: CommId,
        private_data: PrivateData<{ Rtu::PRIVATE_BYTES }>,
    ) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        conn.state = State::Established { rtu: None };
        let forgotten = conn.forgotten;
        self.table.set_timer(id, None);
        if forgotten {
            self.disconnect(now, id, PrivateData::EMPTY).expect("the connection is established");
        } else {
            self.event(Event::Established { id, private_data });
        }
    }

    /// The transaction of messages that begin an exchange about this ID.
    pub(super) fn transaction(&self, id: CommId) -> TransactionId {
        TransactionId(self.config.seed >> 32 << 32 | u64::from(id.0))
    }
    /// The time that a packet on the request's path and its acknowledgement take.
    pub(super) fn round_trip(&self, request: &Req) -> Duration {
        self.bounded(request.primary.local_ack_timeout.duration().unwrap_or(self.config.max_wait))
    }
    /// The time in which either side repeats its REQ or REP.
    pub(super) fn repeats(&self, request: &Req) -> Duration {
        let timeout = request.remote_response_timeout.max(request.local_response_timeout);
        let wait = self.round_trip(request) + timeout.duration();
        self.bounded(wait * (request.max_cm_retries.get() + 1))
    }
    /// The time until the peer gives up a message that is not answered.
    pub(super) fn patience(conn: &Conn) -> Duration {
        conn.wait * (u32::from(conn.retries) + 1)
    }
    fn known(&mut self, id: CommId) -> Result<&mut Conn, CmError> {
        self.table.conn_mut(id).ok_or(CmError::Unknown { id })
    }
    /// Rejects a request as stale, and ends the older connection that it shows to be lost.
    pub(super) fn stale(&mut self, now: Instant, old: CommId, rejected: (Peer, TransactionId, Kind, Ids)) {
        let (from, transaction, kind, ids) = rejected;
        let about = if kind == Kind::Req { About::Req } else { About::Rep };
        let ids = if kind == Kind::Req { ids_of_request(ids.remote) } else { ids };
        self.send_rej(from, transaction, ids, about, Reason::STALE_CONNECTION);
        let Some(conn) = self.table.conn(old) else { return };
        match conn.state {
            State::Established { .. } => {
                self.closing_event(
                    old,
                    Event::Disconnected { id: old, cause: Cause::Stale, private_data: PrivateData::EMPTY },
                );
                self.disconnect(now, old, PrivateData::EMPTY).expect("the connection is established");
            }
            State::ReqReceived { .. } => {
                self.closing_event(old, Event::Failed { id: old, failure: Failure::Stale });
                self.close(now, old, None);
            }
            // Their retransmissions end by themselves.
            _ => {}
        }
    }
}

fn wrong_state(id: CommId, conn: &Conn) -> CmError {
    CmError::State { id, state: conn.state.name() }
}
