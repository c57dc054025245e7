//! The counters of the fabrics over UDP.

use hca_core::counters;

counters! {
    Counters:
    /// Packets that the kernel took.
    tx_packets,
    /// Their bytes, from BTH to ICRC.
    tx_bytes,
    /// Trains that the kernel took.
    tx_trains,
    /// System calls for sending.
    send_calls,
    /// Send calls that the kernel could not take at the time; the trains stay in the batch.
    tx_blocked,
    /// Errors of earlier packets (nobody listens at the peer's address, no route), told by a later call.
    tx_refused,
    /// Packets lost as the peer could not be reached.
    tx_lost_unreachable,
    /// Packets lost for want of buffers.
    tx_lost_no_buffers,
    /// Packets lost by other errors.
    tx_lost_other,
    /// Packets to paths that were closed.
    tx_lost_closed,
    /// Trains that were sent packet by packet, since the kernel refused to cut them.
    tx_uncut_trains,
    /// Packets given to the sink.
    rx_packets,
    /// Their bytes, from BTH to ICRC.
    rx_bytes,
    /// Datagrams, merged trains counted as one.
    rx_trains,
    /// System calls for receiving.
    recv_calls,
    /// System calls for receiving that asked for a datagram's source alone.
    recv_calls_for_source,
    /// Errors of receive calls.
    recv_errors,
    /// Packets whose ICRC is wrong; dropped.
    icrc_errors,
    /// Packets shorter than a BTH and an ICRC; dropped.
    short_packets,
}
