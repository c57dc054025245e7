//! Reliable datagrams (RD): the calls by which an adapter has an end-to-end context serve queue pairs in turn.
//!
//! An end-to-end context is a reliable connection whose packets name the queue pairs, and which has one message under
//! way. A request that fails takes neither end out of order: the requester's side abandons it, and sends a RESYNC by
//! which the other side drops what it has of the message, before the next request is started.
//!
//! A queue pair of RD has states and queues, and no packets of its own. The adapter hands its oldest request to the
//! end-to-end context that the request names.

use hca_core::{QpState, QpType, WcStatus};

use crate::qp::Service;
use crate::{Host, Qp};

impl Qp {
    /// Whether an end-to-end context can take a request: it is ready to send, and none is under way.
    pub fn is_vacant(&self) -> bool {
        let Service::Rc(c) = self.service() else { return false };
        self.qp_type() == QpType::Eec && self.state() == QpState::Rts && c.requester.is_drained()
    }
    /// Has a [vacant](Self::is_vacant) end-to-end context go on with the request of this index, the only one that its
    /// host has posted.
    pub fn serve_from(&mut self, index: u32) {
        if let Service::Rc(c) = self.service_mut() {
            c.requester.serve_from(index);
        }
    }
    /// Ends the request that an end-to-end context has under way. Returns whether this is one.
    pub fn abandon<H: Host>(&mut self, status: WcStatus, host: &mut H) -> bool {
        if self.qp_type() != QpType::Eec {
            return false;
        }
        let Service::Rc(c) = self.service_mut() else { return false };
        c.requester.abandon(status, &c.path, host);
        true
    }
    /// Refuses the rest of the message that an end-to-end context is receiving: the queue pair that it is for
    /// goes, or ends its requests.
    pub fn refuse_inbound<H: Host>(&mut self, host: &mut H) {
        if let Service::Rc(c) = self.service_mut() {
            c.responder.refuse_inbound(host);
        }
    }
    /// An end-to-end context has served the requests of a queue pair of RD before this index.
    pub fn served_until(&mut self, index: u32) {
        if let Service::Unconnected { index: oldest } = self.service_mut() {
            *oldest = index;
        }
    }
    /// Takes a queue pair of RD to SQE. Its oldest request completes with `status`, and the others as flushed.
    pub fn stop_sending<H: Host>(&mut self, status: WcStatus, host: &mut H) {
        if self.state() == QpState::Rts {
            self.fail_send(status, host);
        }
    }
}
