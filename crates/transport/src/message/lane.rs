//! The common case in few instructions: plain SENDs of one message each, between queue pairs that nothing keeps back.
//!
//! It is the same state as the requester's and the responder's, moved as they would move it. Whatever is not of the
//! common case is refused before anything changes, and then takes the long way.
//!
//! What makes a case the common one is looked at once, by [`Qp::lanes`], and stays so as long as nothing else touches
//! the queue pair: a lane keeps it so.

use hca_core::{Instant, QpState};

use super::{FIRST, LAST, Messages, Op};
use crate::Qp;
use crate::qp::Service;

/// The first byte of a SEND that one message takes, without anything else.
const PLAIN: u32 = Op::Send as u32 | ((FIRST | LAST) as u32) << 4;

/// Which of a queue pair's ways are quick now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    /// Plain SENDs may be sent, and nothing else is to be sent before them.
    pub sends: bool,
    /// Plain SENDs of the peer are taken as they come, and the requests that they say to be done are completed.
    pub takes: bool,
    /// Requests on the peer's memory may be done as they are posted, whenever none is under way.
    pub accesses: bool,
}

/// The quick way of a connection by messages.
#[derive(Debug)]
pub struct Lane<'a>(&'a mut Messages);

/// The number of the queue pair that a message is for, if it is a plain SEND.
#[inline]
pub fn plain_send_to([first, ..]: [u32; 3]) -> Option<u32> {
    (first & 0xff == PLAIN).then_some(first >> 8)
}

impl Qp {
    /// Which ways are quick now.
    pub fn lanes(&self) -> Lanes {
        match self.service() {
            Service::Local(m) if self.state() == QpState::Rts => {
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
    /// A way of which [`lanes`](Self::lanes) said that it is quick, if nothing was called since but methods of `&self`
    /// and those of lanes.
    #[inline]
    pub fn lane(&mut self) -> Option<Lane<'_>> {
        match self.service_mut() {
            Service::Local(messages) => Some(Lane(messages)),
            _ => None,
        }
    }
}

impl Lane<'_> {
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
        let (number, done) = (self.0.requester.next_number(), self.0.responder.expected());
        [PLAIN | self.0.path.dest_qpn.raw() << 8, u32::from(number) | u32::from(done) << 16, 0]
    }
    /// Records that the plain message was sent.
    #[inline]
    pub fn sent(&mut self, now: Instant) {
        self.0.requester.sent_plain(now);
    }
    /// When it is looked whether what was sent is to be sent again.
    #[inline]
    pub fn resends_at(&self) -> Instant {
        Instant::from_nanos(self.0.requester.resends_at())
    }
    /// Messages were sent that told along what was done. `recv_credits` is
    /// [`Host::recv_credits`](crate::Host::recv_credits). Returns whether an acknowledgement is still owed.
    #[inline]
    pub fn told_along(&mut self, recv_credits: impl Fn() -> Option<u32>) -> bool {
        self.0.responder.told_along(recv_credits);
        self.0.responder.owes()
    }

    /// Whether a [plain SEND](plain_send_to) with this head is taken as it comes, and how many send requests it says to
    /// be done, from [`oldest`](Self::oldest) on. `None`: it is for [`Qp::handle_message`].
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
    /// The SEND was placed, and used a receive request.
    #[inline]
    pub fn took(&mut self) {
        self.0.responder.took();
    }
    /// So many send requests were completed. Returns whether there is something to be sent the long way now; then it is
    /// such a lane no longer.
    #[inline]
    pub fn completed(&mut self, count: u32) -> bool {
        self.0.requester.completed(count);
        self.0.requester.wants_transmit()
    }
}
