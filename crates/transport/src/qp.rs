//! The queue pair: its states, its attributes, and who gets which input.

use hca_core::wire::Packet;
use hca_core::{Instant, Mtu, QpAttr, QpState, QpType, Qpn, TransitionError};

use crate::{Host, TxSink};

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Service.
    pub qp_type: QpType,
    /// Its number.
    pub qpn: Qpn,
    /// READs and atomics outstanding at most, on either side; `max_rd_atomic` and
    /// `max_dest_rd_atomic` beyond it are refused.
    pub max_rd_atomic_limit: u8,
    /// Bytes in flight to the peer at most: what its receive buffer takes.
    pub window_bytes: u32,
    /// The largest path MTU of the port; datagrams are at most this long.
    pub port_mtu: Mtu,
}

/// What came with a packet beside its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct RxMeta<'a> {
    /// The packet met congestion on its way (CE mark in its IP header).
    pub ce: bool,
    /// The global route header as a UD receive shows it (over IPv4 the IP header in the last 20 bytes).
    /// Only UD looks at it; `None` reads as zeros.
    pub grh: Option<&'a [u8; 40]>,
}

/// An acknowledgement that waits to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckOwed {
    /// A receive request was completed since the last one left, so that the program may answer soon and
    /// the acknowledgement may wait one turn to share its train. Otherwise it leaves at the end of this turn.
    pub delivered: bool,
}

/// The send window of a connection as it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowStats {
    /// Bytes that may be in flight.
    pub cwnd_bytes: u32,
    /// Bytes in flight.
    pub inflight_bytes: u32,
    /// Smoothed round trip; 0 before the first sample.
    pub srtt_ns: u64,
    /// Its variation.
    pub rttvar_ns: u64,
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    config: QpConfig,
    state: QpState,
    attr: QpAttr,
}

impl Qp {
    /// A queue pair in state RESET.
    pub fn new(config: &QpConfig) -> Self {
        Self { config: *config, state: QpState::Reset, attr: QpAttr::default() }
    }
    /// Its service.
    pub fn qp_type(&self) -> QpType {
        self.config.qp_type
    }
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.config.qpn
    }
    /// Its state.
    pub fn state(&self) -> QpState {
        self.state
    }
    /// All attributes that were set.
    pub fn attr(&self) -> &QpAttr {
        &self.attr
    }
    /// Sets attributes and changes the state. To ERROR it completes all requests as flushed, those of the
    /// send queue first; to RESET it forgets everything, and the host drops its rings itself.
    ///
    /// # Errors
    /// The transition's rules, or a value beyond the limits of [`QpConfig`].
    pub fn modify<H: Host>(
        &mut self,
        _now: Instant,
        attr: &QpAttr,
        _host: &mut H,
    ) -> Result<(), TransitionError> {
        attr.check(self.config.qp_type, self.state)?;
        Ok(())
    }
    /// Takes one packet that is for this queue pair's number.
    pub fn handle_packet<H: Host>(
        &mut self,
        _now: Instant,
        _rx: &RxMeta<'_>,
        _packet: &Packet<'_>,
        _host: &mut H,
    ) {
    }
    /// Send or receive requests were posted.
    pub fn handle_posted<H: Host>(&mut self, _now: Instant, _host: &mut H) {}
    /// Time passed; to be called at [`next_deadline`](Self::next_deadline). Early calls are harmless.
    pub fn handle_timeout<H: Host>(&mut self, _now: Instant, _host: &mut H) {}
    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        None
    }
    /// Whether [`poll_transmit`](Self::poll_transmit) may have something; never while it merely waits for
    /// acknowledgements, credits or a timer.
    pub fn wants_transmit(&self) -> bool {
        false
    }
    /// Sends up to `max_packets` packets and returns how many; fewer when there are no more, or when the
    /// sink is full. Plain acknowledgements are left to [`poll_ack`](Self::poll_ack).
    pub fn poll_transmit<H: Host, T: TxSink>(
        &mut self,
        _now: Instant,
        _host: &mut H,
        _tx: &mut T,
        _max_packets: usize,
    ) -> usize {
        0
    }
    /// The acknowledgement that is owed, if one is.
    pub fn ack_owed(&self) -> Option<AckOwed> {
        None
    }
    /// Sends the acknowledgement that is owed, one for all packets since the last. Returns whether it did.
    pub fn poll_ack<H: Host, T: TxSink>(&mut self, _now: Instant, _host: &mut H, _tx: &mut T) -> bool {
        false
    }
    /// Forces the error state: the adapter lost one of its completions.
    pub fn fail<H: Host>(&mut self, _now: Instant, _host: &mut H) {}
    /// The send window.
    pub fn window(&self) -> WindowStats {
        WindowStats::default()
    }
}
