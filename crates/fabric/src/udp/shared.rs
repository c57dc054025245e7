//! The desk and the mailbox of a shared address, beside a fabric's own socket.

use hca_core::Instant;

use super::counters::Counters;
use super::rx::Receiver;
use super::sys::RxSlots;
use crate::share::{LOOK_PACKETS, Share};
use crate::{RxPacket, Tap};

/// A place at a shared address, with a buffer for what comes to the desk.
pub(crate) struct Shared {
    pub(crate) share: Share,
    slots: RxSlots,
}

impl Shared {
    pub(super) fn new(share: Share) -> Self {
        Self { share, slots: RxSlots::new(1) }
    }

    /// For people: the place.
    pub(super) fn describe(&self) -> String {
        let (slot, slots) = (self.share.slot(), self.share.slots());
        format!("slot {slot} of {slots}: this process's queue pair numbers begin with {slot:#04x}")
    }

    /// Where they are due, gives the packets at the desk, and those that others handed on, to the sink. Returns how many
    /// it were.
    #[inline]
    pub(crate) fn look(
        &mut self,
        now: Instant,
        receiver: &mut Receiver,
        counters: &mut Counters,
        tap: &mut Option<Box<dyn Tap>>,
        sink: &mut dyn FnMut(&RxPacket<'_>),
    ) -> usize {
        if self.share.is_due(now) { self.look_now(now, receiver, (counters, tap), sink) } else { 0 }
    }

    #[cold]
    fn look_now(
        &mut self,
        now: Instant,
        receiver: &mut Receiver,
        (counters, tap): (&mut Counters, &mut Option<Box<dyn Tap>>),
        sink: &mut dyn FnMut(&RxPacket<'_>),
    ) -> usize {
        let (mut packets, mut datagrams) = (0, 0);
        while datagrams < LOOK_PACKETS
            && self.share.desk().is_some_and(|desk| self.slots.recv_one(desk).is_ok())
        {
            datagrams += 1;
            let Some(datagram) = self.slots.datagram(0) else { continue };
            packets += receiver.deliver(now, &datagram, counters, tap, &mut self.share.only_own(sink));
        }
        self.share.count_desk(datagrams as u64);
        packets + self.share.strays(receiver.local, sink)
    }
}
