//! The queue pair's part in messages to and from a peer on the same machine.

use hca_core::{Instant, QpState, WcStatus};

use super::{Qp, Service};
use crate::connection::Variant;
use crate::message::{Head, Op};
use crate::{Count, Host, QpEvent, TxSink};

impl Qp {
    /// Takes one message that is for this queue pair's number.
    #[inline]
    pub fn handle_message<H: Host>(&mut self, now: Instant, message: &[u8], host: &mut H) {
        let rtr = self.state == QpState::Rtr;
        if !rtr && !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return self.handle_message_in_error(message, host);
        }
        let (Service::Local(m), Some((head, body))) = (&mut self.service, Head::read(message)) else {
            host.count(Count::DroppedInvalid);
            return;
        };
        if head.op.is_answer() {
            if rtr {
                host.count(Count::DroppedState);
                return;
            }
            let done = m.requester.handle_answer(now, &head, body, host);
            return self.answered(done, host);
        }
        if !m.responder.lets_in(&m.path, &head) {
            host.count(Count::DroppedPkey);
            return;
        }
        if m.path.variant == Variant::Initiator {
            host.count(Count::DroppedState);
            return;
        }
        if rtr && !self.established {
            self.established = true;
            host.event(QpEvent::CommEstablished);
        }
        if head.op == Op::Hello {
            return;
        }
        let told = if rtr { Ok(()) } else { m.requester.done(head.done, host).map(|_| ()) };
        let handled = m.responder.handle_request(&m.path, &head, body, host);
        if told.is_err() || self.drain_event {
            self.answered(told, host);
        }
        if let Err(fatal) = handled {
            self.fail_request(fatal, host);
        }
    }

    /// A refusal leaves behind the responses before it, so what one of them lent may still be told of.
    #[cold]
    fn handle_message_in_error<H: Host>(&mut self, message: &[u8], host: &mut H) {
        if self.state == QpState::Error
            && let (Service::Local(m), Some((head, _))) = (&mut self.service, Head::read(message))
            && head.op == Op::Fetched
            && m.responder.lets_in(&m.path, &head)
        {
            return m.responder.handle_fetched(&head, host);
        }
        host.count(Count::DroppedState);
    }

    #[inline]
    fn answered<H: Host>(&mut self, done: Result<(), WcStatus>, host: &mut H) {
        match done {
            Ok(()) if self.drain_event => self.check_drained(host),
            Ok(()) => {}
            Err(status) => self.fail_send(status, host),
        }
    }

    /// Whether a request that is posted now may be done at once on the peer's memory, without being queued: the
    /// connection goes by messages, is ready to send, and has no request under way or refused.
    #[inline]
    pub fn is_idle_near(&self) -> bool {
        self.state == QpState::Rts && matches!(&self.service, Service::Local(m) if m.requester.is_idle())
    }
    /// Whether [`send_messages`](Self::send_messages) may be called.
    #[inline]
    pub fn may_send_messages(&self) -> bool {
        self.state == QpState::Rts
            && matches!(&self.service, Service::Local(m) if !m.requester.wants_transmit() && !m.responder.wants_transmit())
    }
    /// Sends the requests that were posted last, and nothing else. `false`: more work is left for
    /// [`poll_transmit`](Self::poll_transmit).
    #[inline]
    pub fn send_messages<H: Host, T: TxSink>(
        &mut self,
        now: Instant,
        host: &mut H,
        tx: &mut T,
        max: usize,
    ) -> bool {
        let Service::Local(m) = &mut self.service else { return false };
        m.requester.posted();
        let (_, failure) = m.poll_requests(now, true, host, tx, max);
        if let Some(status) = failure {
            self.fail_send(status, host);
            return false;
        }
        !m.requester.wants_transmit()
    }
    /// Handles, for a connection by messages, that no adapter is at the peer's address now: the queue pair tries again
    /// soon, within its timeout.
    pub fn unreachable<H: Host>(&mut self, now: Instant, host: &mut H) {
        let Service::Local(m) = &mut self.service else { return };
        m.responder.stop();
        if let Err(status) = m.requester.unreachable(now, &m.path, host) {
            self.fail_send(status, host);
        }
    }
    /// Handles the end of a message connection's peer: requests under way fail, and so do requests that are posted
    /// later.
    pub fn peer_gone<H: Host>(&mut self, host: &mut H) {
        let Service::Local(m) = &mut self.service else { return };
        m.requester.peer_gone();
        if m.requester.oldest() != host.sq_posted() && matches!(self.state, QpState::Rts | QpState::Sqd) {
            self.fail_send(WcStatus::RetryExceeded, host);
        }
    }
}
