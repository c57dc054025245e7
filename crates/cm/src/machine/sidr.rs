//! Service ID resolution, on both sides.

use hca_core::Instant;

use super::conn::{Bytes, Sending};
use super::event::{CmError, Event, Peer, Resolve, SidrAnswer};
use super::table::{Entry, RequestKey};
use super::{Machine, build};
use crate::ServiceId;
use crate::wire::{CommId, Info, PrivateData, Refusal, Resolution, SidrRep, SidrReq, TransactionId};

/// A resolution that was asked for here.
#[derive(Debug)]
pub(super) struct Asking {
    to: Peer,
    service: ServiceId,
    sending: Sending,
    wait: core::time::Duration,
    pub(super) timer: Option<Instant>,
}

/// A resolution that a peer asks for.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) key: RequestKey,
    from: Peer,
    transaction: TransactionId,
    request_id: CommId,
    service: ServiceId,
    /// The listener whose backlog the request is in.
    pub(super) listener: Option<ServiceId>,
    /// The answer, for duplicates of the request.
    answer: Option<Bytes>,
    pub(super) timer: Option<Instant>,
}

impl Machine {
    /// Asks a peer for the queue pair of a service. [`Event::Resolved`] or [`Event::Unresolved`] follows.
    ///
    /// # Errors
    /// The limit is reached.
    pub fn resolve(&mut self, now: Instant, ask: &Resolve) -> Result<CommId, CmError> {
        self.make_room()?;
        let id = self.table.fresh_id();
        let Resolve { to, service, pkey, private_data, .. } = *ask;
        let request = SidrReq { request_id: id, pkey, service_id: service, private_data };
        let mad = build(self.transaction(id), request);
        let wait = self.bounded(ask.timeout.duration());
        let sending = Sending { mad: mad.clone(), left: ask.retries, delayed: false };
        self.table.insert(id, Entry::Asking(Asking { to, service, sending, wait, timer: None }));
        self.table.set_timer(id, Some(now + wait));
        self.transmit(to, mad);
        Ok(id)
    }
    /// Answers a peer's [`Event::SidrRequest`].
    ///
    /// # Errors
    /// The request is unknown, or was answered.
    pub fn answer(&mut self, now: Instant, id: CommId, answer: &SidrAnswer) -> Result<(), CmError> {
        let Some(Entry::Asked(asked)) = self.table.get_mut(id) else { return Err(CmError::Unknown { id }) };
        if asked.answer.is_some() {
            return Err(CmError::Unknown { id });
        }
        let &SidrAnswer { resolution, private_data } = answer;
        let (request_id, service_id) = (asked.request_id, asked.service);
        let message = SidrRep { request_id, resolution, service_id, info: Info::EMPTY, private_data };
        let mad = build(asked.transaction, message);
        asked.answer = Some(mad.clone());
        let from = asked.from;
        self.table.leave_backlog(id);
        let end = now + self.config.answer_memory;
        self.table.ends_at(id, end);
        self.transmit(from, mad);
        Ok(())
    }

    pub(super) fn on_sidr_req(&mut self, now: Instant, from: Peer, transaction: TransactionId, m: &SidrReq) {
        let key = (from.gid.0, transaction, m.request_id);
        if let Some(id) = self.table.by_request(&key) {
            self.counters.duplicates += 1;
            if let Some(Entry::Asked(Asked { answer: Some(answer), .. })) = self.table.get(id) {
                let answer = answer.clone();
                self.transmit(from, answer);
            }
            return;
        }
        let service = m.service_id;
        if !self.is_listening(service) {
            let resolution = Resolution::Refused(Refusal::UNSUPPORTED);
            let (request_id, private_data) = (m.request_id, PrivateData::EMPTY);
            let info = Info::EMPTY;
            return self.send(
                from,
                transaction,
                SidrRep { request_id, resolution, service_id: service, info, private_data },
            );
        }
        let Ok(id) = self.admit(service) else { return };
        let asked = Asked {
            key,
            from,
            transaction,
            request_id: m.request_id,
            service,
            listener: Some(service),
            answer: None,
            timer: None,
        };
        self.table.insert(id, Entry::Asked(asked));
        self.table.set_timer(id, Some(now + self.config.max_wait));
        self.event(Event::SidrRequest { id, from, request: *m });
    }
    pub(super) fn on_sidr_rep(&mut self, from: Peer, m: &SidrRep) {
        let id = m.request_id;
        let is_mine = matches!(self.table.get(id), Some(Entry::Asking(asking))
            if asking.to.gid == from.gid && asking.service == m.service_id);
        if !is_mine {
            self.counters.misplaced += 1;
            return;
        }
        self.table.remove(id);
        let (resolution, private_data) = (m.resolution, m.private_data);
        self.event(Event::Resolved { id, from, resolution, private_data });
    }

    pub(super) fn on_sidr_timer(&mut self, now: Instant, id: CommId) {
        match self.table.get_mut(id) {
            Some(Entry::Asking(asking)) => match asking.sending.again() {
                Some(mad) => {
                    let (to, wait) = (asking.to, asking.wait);
                    self.counters.retransmitted += 1;
                    self.table.set_timer(id, Some(now + wait));
                    self.transmit(to, mad);
                }
                None => {
                    self.table.remove(id);
                    self.event(Event::Unresolved { id });
                }
            },
            Some(Entry::Asked(asked)) => {
                let expires = asked.answer.is_none();
                self.table.remove(id);
                if expires {
                    self.event(Event::SidrExpired { id });
                }
            }
            _ => {}
        }
    }
    /// Refuses a request that the program has not answered.
    pub(super) fn refuse_sidr(&mut self, now: Instant, id: CommId) {
        let resolution = Resolution::Refused(Refusal::REJECTED);
        // One that was answered has its answer.
        let _ = self.answer(now, id, &SidrAnswer { resolution, private_data: PrivateData::EMPTY });
    }
    pub(super) fn forget_sidr(&mut self, now: Instant, id: CommId) {
        match self.table.get(id) {
            Some(Entry::Asking(_)) => drop(self.table.remove(id)),
            _ => self.refuse_sidr(now, id),
        }
    }
}
