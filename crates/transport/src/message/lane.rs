//! The common case in few instructions: plain SENDs of one message each, between queue pairs that nothing keeps back.
//!
//! It is the same state as the requester's and the responder's, moved as they would move it. Whatever is not of the
//! common case is refused before anything changes, and then takes the long way.
//!
//! What makes a case the common one is looked at once, by [`Qp::lane`]: a lane keeps it so. So a host that
//! touches the queue pair by nothing else meanwhile asks for [the same lane](Qp::same_lane) again.

use hca_core::{Instant, QpState};

use super::{FIRST, LAST, Messages, Op};
use crate::Qp;
use crate::qp::Service;

/// The first byte of a SEND that one message takes, without anything else.
const PLAIN: u32 = Op::Send as u32 | ((FIRST | LAST) as u32) << 4;

/// The quick way of a connection by messages that is ready to send and to receive.
///
/// The responder answers nothing, refuses nothing, and no READ or atomic is under way.
#[derive(Debug)]
pub struct Lane<'a> {
    messages: &'a mut Messages,
    open: bool,
}

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
            Service::Local(m) if ready && m.responder.is_plain() && m.requester.is_plain() => {
                let open = m.requester.is_open();
                Some(Lane { messages: m, open })
            }
            _ => None,
        }
    }
    /// The lane that was there before and was [open](Lane::is_open) or not, if nothing was called since but methods of
    /// `&self` and the lane's own.
    #[inline]
    pub fn same_lane(&mut self, open: bool) -> Option<Lane<'_>> {
        match self.service_mut() {
            Service::Local(messages) => Some(Lane { messages, open }),
            _ => None,
        }
    }
}

impl Lane<'_> {
    /// Whether plain SENDs may be sent now, and nothing else is to be sent before them.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open
    }
    /// The index of the send request that is next.
    #[inline]
    pub fn next(&self) -> u32 {
        self.messages.requester.next()
    }
    /// Whether the peer is known to have a receive request for it, or tells of none.
    #[inline]
    pub fn has_credit(&self) -> bool {
        self.messages.requester.has_credit()
    }
    /// The head of its message.
    #[inline]
    pub fn head(&self) -> [u32; 3] {
        let (number, done) = (self.messages.requester.next_number(), self.messages.responder.expected());
        [PLAIN | self.messages.path.dest_qpn.raw() << 8, u32::from(number) | u32::from(done) << 16, 0]
    }
    /// It was sent.
    #[inline]
    pub fn sent(&mut self, now: Instant) {
        self.messages.requester.sent_plain(now);
    }
    /// Messages were sent that told along what was done. `recv_credits` is
    /// [`Host::recv_credits`](crate::Host::recv_credits). Returns whether an acknowledgement is still owed.
    #[inline]
    pub fn told_along(&mut self, recv_credits: impl Fn() -> Option<u32>) -> bool {
        self.messages.responder.told_along(recv_credits);
        self.messages.responder.owes()
    }

    /// Whether a [plain SEND](plain_send_to) with this head is taken as it comes, and how many send requests it says to
    /// be done, from [`oldest`](Self::oldest) on. `None`: it is for [`Qp::handle_message`].
    #[inline]
    pub fn accepts(&self, [_, numbers, _]: [u32; 3]) -> Option<u32> {
        if self.messages.responder.expected() != numbers as u16 {
            return None;
        }
        self.messages.requester.count_done((numbers >> 16) as u16)
    }
    /// The index of the oldest send request that is not completed.
    #[inline]
    pub fn oldest(&self) -> u32 {
        self.messages.requester.oldest()
    }
    /// The SEND was placed, and used a receive request.
    #[inline]
    pub fn took(&mut self) {
        self.messages.responder.took();
    }
    /// So many send requests were completed. Returns whether there is something to be sent the long way now; then it is
    /// this lane no longer.
    #[inline]
    pub fn completed(&mut self, count: u32) -> bool {
        self.messages.requester.completed(count);
        self.messages.requester.wants_transmit()
    }
}
