//! The receivers of packets and messages.

use super::access::Reach;
use super::peer::PeerName;
use crate::RxPacket;

/// A receiver of packets and messages that arrive over shared memory.
pub trait ShmSink {
    /// Takes a received packet.
    fn packet(&mut self, packet: &RxPacket<'_>);
    /// Takes a message of the adapter of this name, of at least 12 bytes, with access to the memory that peers have
    /// granted. Returns the number of bytes that the receiver moved beside the message.
    fn message(&mut self, from: PeerName, message: &[u8], reach: Reach<'_>) -> usize;
}

/// Takes packets only; messages are for an adapter that asked for them.
pub(super) struct PacketsOnly<'a>(pub(super) &'a mut dyn FnMut(&RxPacket<'_>));

impl ShmSink for PacketsOnly<'_> {
    fn packet(&mut self, packet: &RxPacket<'_>) {
        (self.0)(packet);
    }
    fn message(&mut self, _: PeerName, _: &[u8], _: Reach<'_>) -> usize {
        0
    }
}
