//! The send window: the bytes that may be in flight to the peer, controlled by loss, delay and congestion marks.
//!
//! Bytes are counted in units of 64, and a packet's headers as one more unit, since packets cost a receiver's buffer,
//! too. A loss reduces the window by a fifth, at most once a round trip, and the window grows back by several packets a
//! round trip. So random loss slows a stream only a little, and a sender still yields when packets are lost because a
//! buffer is full.

/// Bytes of one unit.
pub(crate) const UNIT_BYTES: u32 = 64;
/// The largest window, in units: costs are kept modulo 2^16, and half of that stays unambiguous.
const MAX_UNITS: u32 = 1 << 14;
/// The window that a connection starts with.
const INITIAL_BYTES: u32 = 64 << 10;
/// Packets that always fit, unless the peer's whole buffer is smaller.
const FLOOR_PACKETS: u32 = 8;
/// Packets that the window grows by in a round trip.
const GROWTH_PACKETS: u32 = 4;
/// Cuts happen at most once in this time where the round trip is not known.
const BLIND_ROUND_TRIP_NS: u64 = 1_000_000;

/// The cost of a packet with `payload` bytes, in units.
#[inline]
pub(crate) const fn packet_cost(payload: u32) -> u16 {
    (1 + payload.div_ceil(UNIT_BYTES)) as u16
}

/// The congestion window of one connection, in units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    cwnd: u32,
    ssthresh: u32,
    max: u32,
    floor: u32,
    /// Units of growth a round trip.
    growth: u32,
    /// Growth earned that is less than one unit, times `cwnd`.
    earned: u32,
    /// No cut before this time.
    cut_again_ns: u64,
}

impl Window {
    /// The window towards a peer that buffers `window_bytes`, for packets of at most `mtu` bytes.
    pub(crate) fn new(window_bytes: u32, mtu: u32) -> Self {
        let max = (window_bytes / UNIT_BYTES).clamp(1, MAX_UNITS);
        let packet = u32::from(packet_cost(mtu));
        Self {
            cwnd: max.min(INITIAL_BYTES / UNIT_BYTES),
            ssthresh: max,
            max,
            floor: max.min(FLOOR_PACKETS * packet),
            growth: GROWTH_PACKETS * packet,
            earned: 0,
            cut_again_ns: 0,
        }
    }
    /// Units that may be in flight.
    #[inline]
    pub(crate) fn units(&self) -> u32 {
        self.cwnd
    }
    /// `units` were acknowledged; `grow` unless the path is congested or the window was not used.
    #[inline]
    pub(crate) fn acknowledged(&mut self, units: u32, grow: bool) {
        if self.cwnd >= self.max || !grow {
            return;
        }
        if self.cwnd < self.ssthresh {
            self.cwnd = (self.cwnd + units).min(self.max);
        } else {
            self.earned += units * self.growth;
            self.cwnd = (self.cwnd + self.earned / self.cwnd).min(self.max);
            self.earned %= self.cwnd;
        }
    }
    /// Packets were lost.
    pub(crate) fn lost(&mut self, now_ns: u64, srtt_ns: u64) {
        self.cut(now_ns, srtt_ns, 4, 5);
    }
    /// A congestion notification came.
    pub(crate) fn marked(&mut self, now_ns: u64, srtt_ns: u64) {
        self.cut(now_ns, srtt_ns, 3, 4);
    }
    fn cut(&mut self, now_ns: u64, srtt_ns: u64, keep: u32, of: u32) {
        if now_ns < self.cut_again_ns {
            return;
        }
        let round_trip = if srtt_ns == 0 { BLIND_ROUND_TRIP_NS } else { srtt_ns };
        self.cut_again_ns = now_ns.saturating_add(round_trip);
        self.cwnd = (self.cwnd * keep / of).max(self.floor);
        self.ssthresh = self.cwnd;
        self.earned = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_never_exceeds_the_peers_buffer() {
        let mut w = Window::new(100_000, 4096);
        for _ in 0..1000 {
            w.acknowledged(65, true);
        }
        assert_eq!(w.units() * UNIT_BYTES, 100_000 / 64 * 64);
    }

    #[test]
    fn a_loss_cuts_once_a_round_trip_and_never_below_the_floor() {
        let mut w = Window::new(1 << 20, 4096);
        let start = w.units();
        w.lost(1000, 50_000);
        w.lost(2000, 50_000);
        assert_eq!(w.units(), start * 4 / 5);
        for i in 0..100 {
            w.lost(100_000 * (i + 1), 50_000);
        }
        assert_eq!(w.units(), 8 * 65);
    }

    #[test]
    fn a_cut_window_grows_back_by_some_packets_a_round_trip() {
        let mut w = Window::new(1 << 20, 4096);
        w.lost(1000, 50_000);
        let cut = w.units();
        let mut left = cut;
        while left >= 65 {
            w.acknowledged(65, true);
            left -= 65;
        }
        let grown = w.units() - cut;
        assert!((3 * 65..=4 * 65).contains(&grown), "{grown}");
    }

    #[test]
    fn a_window_that_was_never_cut_grows_by_what_was_acknowledged_and_then_by_parts_of_that() {
        let mut w = Window::new(1 << 20, 4096);
        let start = w.units();
        w.acknowledged(10, true);
        assert_eq!(w.units(), start + 10);
        w.acknowledged(10, false);
        assert_eq!(w.units(), start + 10, "the path is congested, or the window was not used");
        let mut w = Window::new(1 << 20, 4096);
        w.lost(1000, 50_000);
        let cut = w.units();
        // Packets of no bytes earn less than a unit each, and a round trip of them what one of large packets does.
        (0..cut).for_each(|_| w.acknowledged(1, true));
        let grown = w.units() - cut;
        assert!((3 * 65..=4 * 65).contains(&grown), "{grown}");
        let mut w = Window::new(1 << 20, 4096);
        w.lost(1000, 50_000);
        w.acknowledged(65, true);
        assert_eq!(w.units(), cut + 65 * 4 * 65 / cut, "where it was cut it no longer grows by all");
    }

    #[test]
    fn cuts_are_a_round_trip_apart_or_a_millisecond_where_that_is_not_known() {
        for (srtt_ns, apart) in [(50_000, 50_000), (0, 1_000_000)] {
            let mut w = Window::new(1 << 20, 4096);
            w.lost(1000, srtt_ns);
            let once = w.units();
            w.lost(1000 + apart - 1, srtt_ns);
            assert_eq!(w.units(), once, "{srtt_ns}");
            w.lost(1000 + apart, srtt_ns);
            assert_eq!(w.units(), once * 4 / 5, "{srtt_ns}");
        }
    }
}
