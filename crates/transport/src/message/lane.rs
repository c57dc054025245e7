//! The fast path: the common case in few instructions, which is plain SENDs of one message each, between queue pairs
//! without obstacles.
//!
//! The fast path changes the state of requester and responder as these would change it. A request outside of the common
//! case is refused before anything changes, and then takes the general path.
//!
//! [`Qp::lanes`] checks the conditions of the common case once. They stay true as long as no other method changes the
//! queue pair: calls of a lane keep them true.

use hca_core::{Instant, QpState};

use super::{FIRST, LAST, Messages, Op};
use crate::Qp;
use crate::connection::Variant;
use crate::qp::Service;

/// The first byte of a SEND that one message takes, without anything else.
const PLAIN: u32 = Op::Send as u32 | ((FIRST | LAST) as u32) << 4;

/// The fast paths of a queue pair that are available now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    /// Whether plain SENDs may be sent, with nothing else to be sent before them.
    pub sends: bool,
    /// Whether plain SENDs of the peer are taken on arrival, with completion of the requests that they acknowledge.
    pub takes: bool,
    /// Whether requests on the peer's memory may be done when they are posted, if none is under way.
    pub accesses: bool,
}

/// The fast path of a connection by messages.
#[derive(Debug)]
pub struct Lane<'a>(&'a mut Messages);

/// The number of the queue pair that a message is for, if it is a plain SEND.
#[inline]
pub fn plain_send_to([first, ..]: [u32; 3]) -> Option<u32> {
    (first & 0xff == PLAIN).then_some(first >> 8)
}

impl Qp {
    /// The fast paths that are available now.
    pub fn lanes(&self) -> Lanes {
        match self.service() {
            Service::Local(m) if self.state() == QpState::Rts && m.path.variant == Variant::Plain => {
                let silent = m.responder.is_silent() && !self.awaits_drain();
                Lanes {
                    sends: m.requester.is_open() && silent,
                    takes: m.requester.is_plain() && silent && m.responder.is_open(),
                    accesses: m.requester.is_clear(),
                }
            }
            _ => Lanes::default(),
        }
    }
    /// The fast path that [`lanes`](Self::lanes) reported as available, provided that since then only methods of
    /// `&self` and of lanes were called.
    #[inline]
    pub fn lane(&mut self) -> Option<Lane<'_>> {
        match self.service_mut() {
            Service::Local(messages) => Some(Lane(messages)),
            _ => None,
        }
    }
}

impl Lane<'_> {
    /// The index of the next send request.
    #[inline]
    pub fn next(&self) -> u32 {
        self.0.requester.next()
    }
    /// Whether the peer is known to have a receive request for the next request, or reports no credits.
    #[inline]
    pub fn has_credit(&self) -> bool {
        self.0.requester.has_credit()
    }
    /// The head of the next request's message.
    #[inline]
    pub fn head(&self) -> [u32; 3] {
        let (number, done) = (self.0.requester.next_number(), self.0.responder.expected());
        [PLAIN | self.0.path.dest_qpn.raw() << 8, u32::from(number) | u32::from(done) << 16, 0]
    }
    /// Records that the plain message was sent.
    #[inline]
    pub fn sent(&mut self, now: Instant) {
        self.0.requester.sent_plain(now);
    }
    /// The time of the next check for retransmission.
    #[inline]
    pub fn resends_at(&self) -> Instant {
        Instant::from_nanos(self.0.requester.resends_at())
    }
    /// Records that sent messages carried an acknowledgement along. `recv_credits` is
    /// [`Host::recv_credits`](crate::Host::recv_credits). Returns whether an acknowledgement is still owed.
    #[inline]
    pub fn told_along(&mut self, recv_credits: impl Fn() -> Option<u32>) -> bool {
        self.0.responder.told_along(recv_credits);
        self.0.responder.owes()
    }

    /// The number of send requests, from [`oldest`](Self::oldest) on, that a [plain SEND](plain_send_to) with this head
    /// acknowledges, if the fast path accepts the SEND. `None`: the SEND is for [`Qp::handle_message`].
    #[inline]
    pub fn accepts(&self, [_, numbers, _]: [u32; 3]) -> Option<u32> {
        if self.0.responder.expected() != numbers as u16 {
            return None;
        }
        self.0.requester.count_done((numbers >> 16) as u16)
    }
    /// The index of the oldest send request that is not completed.
    #[inline]
    pub fn oldest(&self) -> u32 {
        self.0.requester.oldest()
    }
    /// Records that the SEND was placed, and used a receive request.
    #[inline]
    pub fn took(&mut self) {
        self.0.responder.took();
    }
    /// Records that `count` send requests were completed. Returns whether the queue pair now has to send by the general
    /// path; the lane then ends.
    #[inline]
    pub fn completed(&mut self, count: u32) -> bool {
        self.0.requester.completed(count);
        self.0.requester.wants_transmit()
    }
}
