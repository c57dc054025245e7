//! Messages of peers.

use core::time::Duration;

use hca_core::Instant;

use super::conn::{Conn, Remote, State};
use super::event::{Cause, Event, Failure, Peer};
use super::table::Entry;
use super::{Machine, NotAdmitted, ids_of_request};
use crate::wire::{
    About, ApStatus, Apr, CommId, Drep, Dreq, Guid, Ids, Kind, Lap, Mad, Message, Mra, ParseError,
    PrivateData, Reason, Rej, Rep, Req, Rtu, TransactionId,
};

impl Machine {
    /// Takes a datagram that a peer's queue pair 1 has sent to this port's queue pair 1.
    pub fn handle(&mut self, now: Instant, from: Peer, mad: &[u8]) {
        let Mad { transaction, message } = match Mad::parse(mad) {
            Ok(mad) => mad,
            Err(error) => return self.on_malformed(from, error),
        };
        self.counters.received += 1;
        match message {
            Message::Req(m) => self.on_req(now, from, transaction, &m),
            Message::Mra(m) => self.on_mra(now, from, &m),
            Message::Rej(m) => self.on_rej(now, from, &m),
            Message::Rep(m) => self.on_rep(now, from, transaction, &m),
            Message::Rtu(m) => self.on_rtu(now, from, transaction, &m),
            Message::Dreq(m) => self.on_dreq(now, from, transaction, &m),
            Message::Drep(m) => self.on_drep(now, from, &m),
            Message::SidrReq(m) => self.on_sidr_req(now, from, transaction, &m),
            Message::SidrRep(m) => self.on_sidr_rep(from, &m),
            Message::Lap(m) => self.on_lap(from, transaction, m),
            Message::Apr(_) => self.counters.misplaced += 1,
        }
    }
    fn on_malformed(&mut self, from: Peer, error: ParseError) {
        self.counters.malformed += 1;
        if let ParseError::Field { kind, owed: Some(owed), .. } = error {
            let about = if kind == Kind::Req { About::Req } else { About::Rep };
            self.send_rej(from, owed.transaction, owed.ids, about, owed.reason);
        }
    }
    /// The connection that a message of this peer is about, by the IDs as the peer has them.
    fn meant(&mut self, from: Peer, ids: Ids) -> Option<&mut Conn> {
        let conn = self.table.conn_mut(ids.remote)?;
        (conn.peer.gid == from.gid && conn.is_remote(ids.local)).then_some(conn)
    }

    fn on_req(&mut self, now: Instant, from: Peer, transaction: TransactionId, request: &Req) {
        let (guid, remote_id) = (request.local_ca_guid, request.local_comm_id);
        let old = match self.table.by_remote_id(from, guid, remote_id) {
            Some(id) if self.table.conn(id).is_some_and(|conn| conn.began_with(transaction, request)) => {
                return self.on_duplicate_req(now, id);
            }
            Some(id) => Some(id),
            None => self.table.by_remote_qpn(from, guid, request.local_qpn),
        };
        if let Some(old) = old {
            let rejected = (from, transaction, Kind::Req, ids_of_request(remote_id));
            return self.stale(now, old, rejected);
        }
        if !self.is_listening(request.service_id) {
            let ids = ids_of_request(remote_id);
            return self.send_rej(from, transaction, ids, About::Req, Reason::INVALID_SERVICE_ID);
        }
        let id = match self.admit(request.service_id) {
            Ok(id) => id,
            Err(NotAdmitted::Backlog) => return,
            Err(NotAdmitted::Limit) => {
                let ids = ids_of_request(remote_id);
                return self.send_rej(from, transaction, ids, About::Req, Reason::NO_RESOURCES);
            }
        };
        let round_trip = self.round_trip(request);
        let retries = request.max_cm_retries.get();
        let peer_waits = self.bounded(round_trip + request.remote_response_timeout.duration());
        let patience = peer_waits * (retries + 1);
        let conn = Conn {
            state: State::ReqReceived { delayed: false },
            peer: from,
            transaction,
            remote: Some(Remote { id: remote_id, guid, qpn: request.local_qpn }),
            local_qpn: request.local_qpn,
            starting_psn: request.starting_psn,
            listener: Some(request.service_id),
            wait: self.bounded(round_trip + request.local_response_timeout.duration()),
            retries: retries as u8,
            round_trip,
            repeats: self.repeats(request),
            delay: Duration::ZERO,
            closed: false,
            forgotten: false,
            timer: None,
        };
        self.table.insert(id, Entry::Conn(Box::new(conn)));
        self.table.set_timer(id, Some(now + patience));
        self.event(Event::Request { id, service: request.service_id, from, request: *request });
    }
    fn on_duplicate_req(&mut self, now: Instant, id: CommId) {
        self.counters.duplicates += 1;
        let Some(conn) = self.table.conn_mut(id) else { return };
        let (peer, transaction, ids) = (conn.peer, conn.transaction, conn.ids(id));
        match &conn.state {
            State::ReqReceived { .. } => {
                let timeout = self.config.service_timeout;
                self.delay(now, id, timeout).expect("the program has not answered");
            }
            State::TimeWait { answer: Some(answer) } => {
                let answer = answer.clone();
                self.transmit(peer, answer);
            }
            State::TimeWait { answer: None } => {
                self.send_rej(peer, transaction, ids, About::Req, Reason::STALE_CONNECTION);
            }
            _ => {}
        }
    }

    fn on_mra(&mut self, now: Instant, from: Peer, m: &Mra) {
        let Some(conn) = self.table.conn_mut(m.ids.remote).filter(|conn| conn.peer.gid == from.gid) else {
            self.counters.misplaced += 1;
            return;
        };
        let is_remote = conn.is_remote(m.ids.local);
        let sending = match (&mut conn.state, m.about) {
            (State::ReqSent(sending), About::Req) => sending,
            (State::RepSent(sending), About::Rep) if is_remote => sending,
            _ => {
                self.counters.misplaced += 1;
                return;
            }
        };
        // One a transmission, so that a peer can not make this side wait for ever.
        if core::mem::replace(&mut sending.delayed, true) {
            self.counters.duplicates += 1;
            return;
        }
        let round_trip = conn.round_trip;
        let wait = self.bounded(m.service_timeout.duration() + round_trip);
        self.table.set_timer(m.ids.remote, Some(now + wait));
        self.event_of(m.ids.remote, Event::Delayed { id: m.ids.remote, service_timeout: m.service_timeout });
    }

    fn on_rep(&mut self, now: Instant, from: Peer, transaction: TransactionId, reply: &Rep) {
        let id = reply.ids.remote;
        let Some(conn) = self.table.conn(id).filter(|conn| conn.peer.gid == from.gid) else {
            let ids = reply.ids.swapped();
            return self.send_rej(from, transaction, ids, About::Rep, Reason::INVALID_COMM_ID);
        };
        match &conn.state {
            State::ReqSent(_) if conn.transaction == transaction => {
                self.on_first_rep(now, from, transaction, reply);
            }
            // The first reply was rejected as stale.
            State::TimeWait { .. } if conn.remote.is_none() => {
                let ids = reply.ids.swapped();
                self.send_rej(from, transaction, ids, About::Rep, Reason::INVALID_COMM_ID);
            }
            _ if !conn.is_remote(reply.ids.local) => self.counters.misplaced += 1,
            State::RepReceived { .. } => {
                self.counters.duplicates += 1;
                let timeout = self.config.service_timeout;
                self.delay(now, id, timeout).expect("the program has not answered");
            }
            State::Established { rtu: Some(mad) } | State::TimeWait { answer: Some(mad) } => {
                let mad = mad.clone();
                self.counters.duplicates += 1;
                self.transmit(from, mad);
            }
            State::TimeWait { answer: None } => {
                let ids = reply.ids.swapped();
                self.send_rej(from, transaction, ids, About::Rep, Reason::INVALID_COMM_ID);
            }
            _ => self.counters.misplaced += 1,
        }
    }
    fn on_first_rep(&mut self, now: Instant, from: Peer, transaction: TransactionId, reply: &Rep) {
        let (id, guid) = (reply.ids.remote, reply.local_ca_guid);
        if self.table.by_remote_id(from, guid, reply.ids.local).is_some() {
            self.counters.misplaced += 1;
            return;
        }
        if let Some(old) = self.table.by_remote_qpn(from, guid, reply.local_qpn) {
            self.stale(now, old, (from, transaction, Kind::Rep, reply.ids.swapped()));
            self.closing_event(id, Event::Failed { id, failure: Failure::Stale });
            return self.close(now, id, None);
        }
        if let Some(conn) = self.table.conn_mut(id) {
            conn.state = State::RepReceived { delayed: false };
        }
        self.table.set_remote(id, Remote { id: reply.ids.local, guid, qpn: reply.local_qpn });
        self.table.set_timer(id, None);
        self.event_of(id, Event::Reply { id, reply: *reply });
    }

    fn on_rtu(&mut self, now: Instant, from: Peer, transaction: TransactionId, m: &Rtu) {
        let id = m.ids.remote;
        match self.meant(from, m.ids).map(|conn| &conn.state) {
            Some(State::RepSent(_)) => self.on_established(now, id, m.private_data),
            Some(State::Established { .. } | State::DreqSent(_)) => self.counters.duplicates += 1,
            // The peer takes a connection for established that has ended here.
            None | Some(_) => {
                let ids = m.ids.swapped();
                self.send_rej(from, transaction, ids, About::Other, Reason::INVALID_COMM_ID);
            }
        }
    }

    /// The connection that a rejection ends.
    fn rejected(&self, from: Peer, m: &Rej) -> Option<CommId> {
        if m.reason == Reason::TIMEOUT
            && let Ok(guid) = m.info.bytes().try_into().map(u64::from_be_bytes)
            && let Some(id) = self.table.by_remote_id(from, Guid(guid), m.ids.local)
        {
            return Some(id);
        }
        let conn = self.table.conn(m.ids.remote).filter(|conn| conn.peer.gid == from.gid)?;
        // The peer may have no ID of its own for a request, or none that came here.
        let is_request = matches!(conn.state, State::ReqSent(_));
        (is_request || conn.is_remote(m.ids.local)).then_some(m.ids.remote)
    }
    fn on_rej(&mut self, now: Instant, from: Peer, m: &Rej) {
        let Some((id, conn)) = self.rejected(from, m).and_then(|id| Some((id, self.table.conn(id)?))) else {
            self.counters.misplaced += 1;
            return;
        };
        let Rej { reason, info, private_data, .. } = *m;
        let event = match conn.state {
            State::Established { .. } => {
                Event::Disconnected { id, cause: Cause::Rejected(reason), private_data: PrivateData::EMPTY }
            }
            State::DreqSent(_) => {
                Event::DisconnectDone { id, answered: true, private_data: PrivateData::EMPTY }
            }
            State::TimeWait { .. } => {
                self.counters.duplicates += 1;
                return;
            }
            _ => Event::Rejected { id, reason, info, private_data },
        };
        self.closing_event(id, event);
        self.close(now, id, None);
    }

    fn on_dreq(&mut self, now: Instant, from: Peer, transaction: TransactionId, m: &Dreq) {
        let id = m.ids.remote;
        let answer = Drep { ids: m.ids.swapped(), private_data: PrivateData::EMPTY };
        let Some(conn) = self.meant(from, m.ids) else {
            // The end of a connection that is not there is granted, so that the peer does not repeat its request.
            return self.send(from, transaction, answer);
        };
        if conn.local_qpn != m.remote_qpn {
            self.counters.misplaced += 1;
            return;
        }
        let event = match conn.state {
            State::ReqSent(_) | State::ReqReceived { .. } => {
                self.counters.misplaced += 1;
                return;
            }
            State::TimeWait { .. } => {
                self.counters.duplicates += 1;
                return self.send(from, transaction, answer);
            }
            State::DreqSent(_) => {
                Event::DisconnectDone { id, answered: true, private_data: PrivateData::EMPTY }
            }
            _ => Event::Disconnected { id, cause: Cause::Peer, private_data: m.private_data },
        };
        self.send(from, transaction, answer);
        self.closing_event(id, event);
        self.close(now, id, None);
    }
    fn on_drep(&mut self, now: Instant, from: Peer, m: &Drep) {
        let id = m.ids.remote;
        match self.meant(from, m.ids).map(|conn| &conn.state) {
            Some(State::DreqSent(_)) => {
                self.closing_event(
                    id,
                    Event::DisconnectDone { id, answered: true, private_data: m.private_data },
                );
                self.close(now, id, None);
            }
            Some(State::TimeWait { .. }) => self.counters.duplicates += 1,
            _ => self.counters.misplaced += 1,
        }
    }
    fn on_lap(&mut self, from: Peer, transaction: TransactionId, m: Lap) {
        let known = self.meant(from, m.ids).is_some();
        let status = if known { ApStatus::UNSUPPORTED } else { ApStatus::INVALID_COMM_ID };
        self.send(from, transaction, Apr { ids: m.ids.swapped(), status });
    }
}
