//! The counters of the fabric.

use super::link::Called;
use hca_core::counters;

counters! {
    Counters, "", "shm_":
    /// Packets written to rings, of which messages are none.
    tx_packets,
    /// Their bytes, from BTH to padding.
    tx_bytes,
    /// The lines that they took.
    tx_lines,
    /// Messages written to rings, and taken from them.
    tx_messages,
    rx_messages,
    /// Those that went, and came, by the quick way, a line each: counted here alone, and among all when they are read.
    tx_messages_quick,
    rx_messages_quick,
    /// Send calls that ended at a full ring; the packets stay in the batch.
    tx_blocked,
    /// Send calls of messages that ended at a full ring.
    tx_messages_blocked,
    /// Packets lost as nobody is at the peer's address.
    tx_lost_unreachable,
    /// Packets lost as the peer's process is gone.
    tx_lost_gone,
    /// Packets lost as the peer has left its ring full for too long.
    tx_lost_full,
    /// Packets lost as a bit of them was to be flipped on the way, which an ICRC would show.
    tx_lost_damaged,
    /// Packets to paths that were closed.
    tx_lost_closed,
    /// Lines written for peers that were gone before they read them.
    tx_lines_unread,
    /// Packets given to the sink.
    rx_packets,
    /// Their bytes, from BTH to padding.
    rx_bytes,
    /// The lines that they took.
    rx_lines,
    /// Peers met.
    peers_linked,
    /// Peers whose process ended, or that left.
    peers_gone,
    /// Peers that were turned away: of another user, of another version, with memory that is not sealed.
    peers_refused,
    /// Peers that turned this side away.
    peers_refused_us,
    /// Peers that did not prove to be at the address that they say they have.
    peers_not_proven,
    /// Peers dropped as they wrote what no peer writes.
    peers_dropped_garbage,
    /// Peers dropped as they stayed within an access to memory that was taken back.
    peers_dropped_stuck,
    /// Regions granted to peers, each time.
    grants_given,
    /// Grants taken back from peers that held them.
    grants_revoked,
    /// Regions of peers mapped here.
    grants_mapped,
    /// Regions that peers have granted and that could not be mapped.
    grants_not_mapped,
    /// Regions whose memory is this process's alone since a dropped peer had it.
    regions_made_private,
    /// Peers from whose processes what they lend is fetched.
    processes_fetched_from,
    /// Peers whose processes can't be read, or no more: what they would lend comes by the ring.
    processes_not_readable,
    /// Messages about grants that a peer did not take from its socket.
    notes_lost,
    /// Rings that are no longer polled.
    rings_parked,
    /// Rings that are polled again.
    rings_unparked,
    /// Peers found asleep, and woken.
    wakeups_sent,
    /// Messages to wake a peer that the system had no memory for; they are sent again.
    wakeups_refused,
    /// Times that this side was woken.
    wakeups_received,
    /// Packets found in a ring whose producer had called nobody.
    rings_found_by_scan,
    /// Connections that could not be accepted, or made, for want of descriptors or memory.
    accepts_failed,
}

counters! {
    Now, "", "shm_":
    peers_now,
    regions_granted_now,
    regions_mapped_now,
    take_backs_now,
}

impl Counters {
    /// A peer was called.
    #[inline]
    pub(super) fn note_call(&mut self, called: Called) {
        match called {
            Called::Awake => {}
            Called::Woken => self.wakeups_sent += 1,
            Called::Asleep => self.wakeups_refused += 1,
        }
    }
    /// With what went by the quick way among all that did.
    pub(super) fn with_quick(&self) -> Self {
        let (tx, rx) = (self.tx_messages_quick, self.rx_messages_quick);
        Self {
            tx_messages: self.tx_messages + tx,
            tx_lines: self.tx_lines + tx,
            rx_messages: self.rx_messages + rx,
            rx_lines: self.rx_lines + rx,
            ..*self
        }
    }
}
