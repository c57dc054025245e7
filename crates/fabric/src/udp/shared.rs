//! The desk and the mailbox of a shared address, beside a fabric's own socket.

use hca_core::Instant;

use super::end::Account;
use super::rx::Receiver;
use super::sys::RxSlots;
use crate::RxPacket;
use crate::share::Share;

/// A place at a shared address, with a buffer for what comes to the desk.
pub(crate) struct Shared {
    pub(crate) share: Share,
    slots: RxSlots,
}

impl Shared {
    pub(super) fn new(share: Share) -> Self {
        Self { share, slots: RxSlots::new(1) }
    }

    /// As [`Share::look`].
    #[inline]
    pub(crate) fn look(
        &mut self,
        now: Instant,
        receiver: &mut Receiver,
        account: &mut Account,
        sink: &mut dyn FnMut(&RxPacket<'_>),
    ) -> usize {
        let (slots, local) = (&mut self.slots, receiver.local);
        self.share.look(now, local, sink, &mut |desk, sink| {
            slots.recv_one(desk).ok()?;
            Some(slots.datagram(0).map_or(0, |d| receiver.deliver(now, &d, account, sink)))
        })
    }
}
