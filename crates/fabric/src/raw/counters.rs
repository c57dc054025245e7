//! The counters of the raw fabric, beside those of all fabrics of frames.

use hca_core::counters;

counters! {
    RawCounters:
    /// Packets to this adapter's own address, which never reach the interface, and to groups that it has joined itself.
    looped_packets,
    /// Packets that waited for their peer's hardware address.
    tx_waited,
    /// Packets lost as their peer's hardware address was not found out in time, or too many waited for it.
    tx_lost_unresolved,
    /// Packets lost as the interface is down or gone.
    tx_lost_interface,
    /// Times that the kernel's tables were looked at for a peer.
    neighbour_looks,
    /// Times that the kernel was asked to find out, or to confirm, a peer's hardware address.
    neighbour_asks,
    /// Peers whose hardware address changed.
    neighbour_changes,
    /// Frames of several packets that left uncut.
    tx_superframes,
    /// Frames of several packets that the interface refused: packets left one by one for 1 ms then, or for up to a
    /// second where it went on to refuse them.
    tx_superframes_refused,
    /// Frames of several packets that were not cut yet; cut here.
    rx_superframes,
    /// Those that could not be cut, for want of the packets' size; dropped.
    rx_superframes_refused,
    /// Frames that were longer than their slot and of which the rest is missing; dropped.
    rx_truncated,
    /// Frames that passed the filter and are no whole RoCE frames; dropped.
    rx_malformed,
    /// Packets to multicast groups that this adapter has not joined; dropped.
    rx_other_groups,
    /// Frames whose UDP checksum is wrong; dropped.
    udp_checksum_errors,
    /// Errors that the interface reported: it went down, or is gone.
    interface_errors,
}
