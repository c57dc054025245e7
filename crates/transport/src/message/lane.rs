//! The common case in few instructions: plain SENDs of one message each, between queue pairs that nothing keeps back.
//!
//! It is the same state as the requester's and the responder's, moved as they would move it. Whatever is not of the
//! common case is refused before anything changes, and then takes the long way.

use hca_core::{Instant, QpState};

use super::{FIRST, LAST, Messages, Op};
use crate::Qp;
use crate::qp::Service;

/// The first byte of a SEND that one message takes, without anything else.
const PLAIN: u32 = Op::Send as u32 | ((FIRST | LAST) as u32) << 4;

/// The quick way of a connection by messages that is ready to send and to receive.
#[derive(Debug)]
pub struct Lane<'a>(&'a mut Messages);

/// The number of the queue pair that a message is for, if it is a plain SEND.
#[inline]
pub fn plain_send_to([first, ..]: [u32; 3]) -> Option<u32> {
    (first & 0xff == PLAIN).then_some(first >> 8)
}

impl Qp {
    /// The quick way, if there is one now.
    #[inline]
    pub fn lane(&mut self) -> Option<Lane<'_>> {
        let ready = self.state() == QpState::Rts && !self.awaits_drain();
        match self.service_mut() {
            Service::Local(m) if ready => Some(Lane(m)),
            _ => None,
        }
    }
}

impl Lane<'_> {
    /// Whether plain SENDs may be sent now, and nothing else is to be sent before them.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.0.requester.is_open() && !self.0.responder.wants_transmit()
    }
    /// The index of the send request that is next.
    #[inline]
    pub fn next(&self) -> u32 {
        self.0.requester.next()
    }
    /// Whether the peer is known to have a receive request for it, or tells of none.
    #[inline]
    pub fn has_credit(&self) -> bool {
        self.0.requester.has_credit()
    }
    /// The head of its message.
    #[inline]
    pub fn head(&self) -> [u32; 3] {
        let (number, done) = (self.0.requester.next_number(), self.0.responder.done());
        [PLAIN | self.0.path.dest_qpn.raw() << 8, u32::from(number) | u32::from(done) << 16, 0]
    }
    /// It was sent.
    #[inline]
    pub fn sent(&mut self, now: Instant) {
        self.0.requester.sent_whole(now);
    }
    /// Messages were sent that told along what was done. `recv_credits` is
    /// [`Host::recv_credits`](crate::Host::recv_credits). Returns whether an acknowledgement is still owed.
    #[inline]
    pub fn told_along(&mut self, recv_credits: impl Fn() -> Option<u32>) -> bool {
        self.0.responder.told_along(recv_credits);
        self.0.responder.ack_owed().is_some()
    }

    /// Whether a [plain SEND](plain_send_to) with this head is taken as it comes, and how many send requests it says to
    /// be done, from [`oldest`](Self::oldest) on. `None`: it is for [`Qp::handle_message`].
    #[inline]
    pub fn accepts(&self, [_, numbers, _]: [u32; 3]) -> Option<u32> {
        if !self.0.responder.expects(numbers as u16) {
            return None;
        }
        self.0.requester.count_done((numbers >> 16) as u16)
    }
    /// The index of the oldest send request that is not completed.
    #[inline]
    pub fn oldest(&self) -> u32 {
        self.0.requester.oldest()
    }
    /// The SEND was placed, and used a receive request; so many send requests were completed.
    #[inline]
    pub fn took(&mut self, completed: u32) {
        self.0.responder.took();
        if completed > 0 {
            self.0.requester.completed(completed);
        }
    }
    /// Whether there is something to be sent the long way.
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        self.0.requester.wants_transmit()
    }
}
