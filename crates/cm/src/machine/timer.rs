//! Time: retransmissions, and what ends by itself.

use hca_core::Instant;

use super::Machine;
use super::conn::{Sending, State};
use super::event::{Event, Failure};
use super::table::Entry;
use crate::wire::{About, CommId, Kind, PrivateData};

impl Machine {
    /// Does all that is due at this time.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(id) = self.table.due(now) {
            match self.table.get(id) {
                Some(Entry::Conn(_)) => self.on_conn_timer(now, id),
                Some(_) => self.on_sidr_timer(now, id),
                None => {}
            }
        }
    }

    fn on_conn_timer(&mut self, now: Instant, id: CommId) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        let (peer, wait) = (conn.peer, conn.wait);
        let again = match &mut conn.state {
            State::ReqSent(sending) | State::RepSent(sending) | State::DreqSent(sending) => sending.again(),
            State::ReqReceived { .. } | State::RepReceived { .. } | State::Established { .. } => None,
            State::TimeWait { .. } => return self.finish(id),
        };
        match again {
            Some(mad) => {
                self.counters.retransmitted += 1;
                self.table.set_timer(id, Some(now + wait));
                self.transmit(peer, mad);
            }
            None => self.give_up(now, id),
        }
    }
    /// The peer does not answer, or the program did not.
    fn give_up(&mut self, now: Instant, id: CommId) {
        let Some(conn) = self.table.conn(id) else { return };
        let (peer, transaction, ids) = (conn.peer, conn.transaction, conn.ids(id));
        let (about, failure) = match conn.state {
            State::ReqSent(_) => (About::Req, Failure::NoAnswer(Kind::Req)),
            State::RepSent(_) => (About::Other, Failure::NoAnswer(Kind::Rep)),
            State::ReqReceived { .. } => (About::Req, Failure::Unanswered),
            State::DreqSent(_) => {
                let private_data = PrivateData::EMPTY;
                self.closing_event(id, Event::DisconnectDone { id, answered: false, private_data });
                return self.close(now, id, None);
            }
            _ => return,
        };
        let rejection = self.timeout_rejection(ids, about);
        self.send(peer, transaction, rejection);
        self.closing_event(id, Event::Failed { id, failure });
        self.close(now, id, None);
    }
}

impl Sending {
    /// The datagram, if it may be sent once more.
    pub(super) fn again(&mut self) -> Option<super::Bytes> {
        self.left = self.left.checked_sub(1)?;
        self.delayed = false;
        Some(self.mad.clone())
    }
}
