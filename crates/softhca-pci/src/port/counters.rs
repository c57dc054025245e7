//! Counters of queue pairs, by the set that each of them names.
//!
//! The adapter's counters of a queue pair are fetched when the driver queries a set; a completion with an error is
//! counted when it is written to the client's queue. The adapter does not report responses that skip a PSN, so that
//! counter stays 0.

use std::collections::BTreeMap;

use hca_core::{Counter, Device};
use hca_prm::command::counter::QueryQCounterOut as Set;
use hca_prm::{CqeSyndrome, Field};

use crate::objects::Objects;
use crate::qp::Qp;

/// What the adapter calls its counters, and which each of them is here.
const FETCHED: [(&str, Field<Set, u32>); 12] = [
    ("rx_write_requests", Set::RX_WRITE_REQUESTS),
    ("rx_read_requests", Set::RX_READ_REQUESTS),
    ("rx_atomic_requests", Set::RX_ATOMIC_REQUESTS),
    ("rx_dropped_no_recv", Set::OUT_OF_BUFFER),
    ("rnr_nak_sent", Set::OUT_OF_BUFFER),
    ("nak_sequence_sent", Set::OUT_OF_SEQUENCE),
    ("rx_duplicate", Set::DUPLICATE_REQUEST),
    ("rnr_nak_received", Set::RNR_NAK_RETRY_ERR),
    // With those that end a request.
    ("nak_received", Set::PACKET_SEQ_ERR),
    ("timeouts", Set::LOCAL_ACK_TIMEOUT_ERR),
    ("nak_invalid_sent", Set::RESP_REMOTE_INVALID_REQUEST),
    ("nak_access_sent", Set::RESP_REMOTE_ACCESS_ERRORS),
];
/// Negative acknowledgements that end a request.
const FINAL: [Field<Set, u32>; 3] =
    [Set::REQ_REMOTE_INVALID_REQUEST, Set::REQ_REMOTE_ACCESS_ERRORS, Set::REQ_REMOTE_OPERATION_ERRORS];

/// What was fetched of a queue pair.
pub(crate) type Fetched = [u64; FETCHED.len()];

/// The sets of a function.
#[derive(Debug, Default)]
pub(crate) struct QCounters(BTreeMap<u32, Set>);

impl QCounters {
    fn add(&mut self, set: u32, field: Field<Set, u32>, more: u64) {
        if more > 0 {
            let set = self.0.entry(set).or_default();
            // Its 32 bits go around, as an adapter's do.
            set.set(field, set.get(field).wrapping_add(more as u32));
        }
    }

    /// A request has completed in error.
    pub(crate) fn count_error(&mut self, set: u32, requester: bool, syndrome: CqeSyndrome) {
        use CqeSyndrome as S;
        let (all, flushed) = if requester {
            (Set::REQ_CQE_ERROR, Set::REQ_CQE_FLUSH_ERROR)
        } else {
            (Set::RESP_CQE_ERROR, Set::RESP_CQE_FLUSH_ERROR)
        };
        self.add(set, all, 1);
        let what = match (syndrome, requester) {
            (S::WrFlushErr, _) => flushed,
            (S::LocalLengthErr, true) => Set::REQ_LOCAL_LENGTH_ERROR,
            (S::LocalLengthErr, false) => Set::RESP_LOCAL_LENGTH_ERROR,
            (S::LocalQpOpErr, true) => Set::LOCAL_OPERATION_ERROR,
            (S::LocalQpOpErr, false) => Set::RESP_LOCAL_QP_ERROR,
            (S::LocalProtErr, true) => Set::REQ_LOCAL_PROTECTION,
            (S::LocalProtErr, false) => Set::RESP_LOCAL_PROTECTION,
            (S::MwBindErr, true) => Set::REQ_MW_BINDING,
            (S::BadRespErr, true) => Set::REQ_BAD_RESPONSE,
            (S::RemoteInvalReqErr, true) => Set::REQ_REMOTE_INVALID_REQUEST,
            (S::RemoteAccessErr, true) => Set::REQ_REMOTE_ACCESS_ERRORS,
            (S::RemoteOpErr, true) => Set::REQ_REMOTE_OPERATION_ERRORS,
            (S::TransportRetryExcErr, true) => Set::REQ_TRANSPORT_RETRIES_EXCEEDED,
            (S::RnrRetryExcErr, true) => Set::REQ_RNR_RETRIES_EXCEEDED,
            _ => return,
        };
        self.add(set, what, 1);
    }

    /// Adds what the adapter has counted for a queue pair since it was asked before.
    pub(crate) fn fetch(&mut self, qp: &mut Qp, counted: &[Counter]) {
        for (i, (name, field)) in FETCHED.iter().enumerate() {
            let now = counted.iter().find(|c| c.name == *name).map_or(0, |c| c.value);
            let before = std::mem::replace(&mut qp.fetched[i], now);
            self.add(qp.counter_set(), *field, now.saturating_sub(before));
        }
    }
}

impl Objects {
    /// The counts of a set, and how many queue pairs were asked for that. `again`: the set begins anew.
    pub(crate) fn counters_of(&mut self, set: u32, again: bool) -> (Set, usize) {
        let Self { qps, hca, counters, .. } = self;
        let mut asked = 0;
        for qp in qps.values_mut().filter(|qp| qp.counter_set() == set && !qp.is_inert()) {
            counters.fetch(qp, &hca.qp_counters(qp.handle).unwrap_or_default());
            asked += 1;
        }
        let mut told = counters.0.get(&set).copied().unwrap_or_default();
        let ends = FINAL.iter().map(|field| told.get(*field)).fold(0, u32::wrapping_add);
        told.set(Set::PACKET_SEQ_ERR, told.get(Set::PACKET_SEQ_ERR).saturating_sub(ends));
        if again {
            counters.0.remove(&set);
        }
        (told, asked)
    }

    /// A queue pair goes, or names another set from now on.
    pub(crate) fn leave_counters(&mut self, qpn: u32) {
        let Self { qps, hca, counters, .. } = self;
        if let Some(qp) = qps.get_mut(&qpn).filter(|qp| !qp.is_inert()) {
            counters.fetch(qp, &hca.qp_counters(qp.handle).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use hca_prm::command::counter::{AllocQCounterIn, AllocQCounterOut, DeallocQCounterIn, QueryQCounterIn};

    use super::*;
    use crate::bed::{Driver, Server};
    use crate::function::PortKind;

    #[test]
    fn a_set_is_read_and_begins_anew_when_it_is_asked_to_or_somebody_elses() {
        let mut d = Driver::new(&Server::new(), 0, PortKind::Roce);
        d.boot();
        let alloc = |d: &mut Driver| {
            d.command(&AllocQCounterIn::new()).unwrap().get(AllocQCounterOut::COUNTER_SET_ID)
        };
        let read = |d: &mut Driver, set, again| {
            let query = QueryQCounterIn::new().with(QueryQCounterIn::COUNTER_SET_ID, set);
            let told = d.command(&query.with(QueryQCounterIn::CLEAR, again)).unwrap();
            (told.get(Set::RESP_CQE_FLUSH_ERROR), told.get(Set::OUT_OF_BUFFER))
        };
        let set = alloc(&mut d);
        let happens = |d: &mut Driver| {
            d.function.objects.counters.count_error(set, false, CqeSyndrome::WrFlushErr);
            d.function.objects.counters.add(set, Set::OUT_OF_BUFFER, u64::from(u32::MAX));
            // Of an Ethernet queue that names it.
            d.function.ethernet.seen.out_of_buffer.insert(set, 3);
        };
        happens(&mut d);
        assert_eq!((read(&mut d, set, false), read(&mut d, set, true)), ((1, 2), (1, 2)));
        assert_eq!(read(&mut d, set, false), (0, 0));
        happens(&mut d);
        d.command(&DeallocQCounterIn::new().with(DeallocQCounterIn::COUNTER_SET_ID, set)).unwrap();
        assert_eq!((alloc(&mut d), read(&mut d, set, false)), (set, (0, 0)));
    }
}
