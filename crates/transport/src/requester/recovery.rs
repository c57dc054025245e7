//! Loss recovery of a requester: timers, probes, and the way back to the oldest unacknowledged packet.

use hca_core::{Instant, WcStatus};

use super::{NEVER, Probed, Requester, send_resync};
use crate::connection::Path;
use crate::emit::{Current, emit};
use crate::inflight::Kind;
use crate::psn::span;
use crate::{Count, Host, TxSink};

/// From one packet one does not go back again within a round trip, nor within this time.
const MIN_REWIND_NS: u64 = 20_000;

impl Requester {
    /// The delay of the next probe.
    #[inline]
    pub(super) fn probe_ns(&self, path: &Path) -> u64 {
        let reads = !self.is_drained() && self.una_kind() == Kind::Read;
        self.rtt.probe_ns(path.timeout_ns, reads)
    }

    /// Sends the oldest unacknowledged packet once more, by itself, and asks what became of it. Of a READ it asks for
    /// one packet: the others may well be on their way. `false`: the sink is full.
    #[cold]
    pub(super) fn probe<H: Host, T: TxSink>(
        &mut self,
        now: Instant,
        path: &Path,
        host: &mut H,
        tx: &mut T,
    ) -> Result<bool, WcStatus> {
        if self.una.psn == self.sent_psn {
            self.probe.is_due = false;
            return Ok(true);
        }
        if !self.send_oldest(path, host, tx)? {
            return Ok(false);
        }
        host.count(Count::Probe);
        self.probe.is_due = false;
        let end = self.una.psn.add(1);
        let tells_of = if self.asking.until.is_none() {
            // The next answer is the probe's, and tells of all that was sent before it.
            self.asking.until = Some(end);
            self.sent_psn
        } else {
            // An answer to what asked before may come first; it tells no more than that it is older.
            end.add(u32::from(end != self.sent_psn))
        };
        self.probe.sent = Some(Probed { end, tells_of, at_ns: now.as_nanos() });
        self.sample = None;
        self.rtt.probed();
        self.probe.at = now.as_nanos().saturating_add(self.probe_ns(path));
        Ok(true)
    }

    /// Sends the oldest unacknowledged packet, by itself. `false`: the sink is full.
    fn send_oldest<H: Host, T: TxSink>(
        &mut self,
        path: &Path,
        host: &mut H,
        tx: &mut T,
    ) -> Result<bool, WcStatus> {
        if let Some(ends) = self.resync {
            return Ok(send_resync(&ends, self.una.psn, path, tx));
        }
        let request = host.send_request(self.una.index);
        let current = Current { request, kind: Kind::of(&request.op), packets: path.packets(request.len) };
        let packet = span(self.first_psn(self.una.index), self.una.psn);
        let sent = emit(&current, self.una.index, packet, 1, self.una.psn, true, path, host, tx)?;
        if sent && current.kind == Kind::Read {
            self.probe.alone = Some(self.una.psn);
        }
        Ok(sent)
    }

    /// Time passed. An error is the end of the oldest request.
    pub(crate) fn timeout<H: Host>(
        &mut self,
        now: Instant,
        path: &Path,
        host: &mut H,
    ) -> Result<(), WcStatus> {
        let now_ns = now.as_nanos();
        if self.rnr.is_waiting() {
            self.ready = self.rnr.ends(now_ns);
        }
        if now_ns >= self.timeout_at {
            if self.retries_left == 0 {
                return Err(WcStatus::RetryExceeded);
            }
            self.retries_left -= 1;
            host.count(Count::Timeout);
            self.timeout_at = now_ns.saturating_add(path.timeout_ns);
            self.probe.at = now_ns.saturating_add(self.probe_ns(path));
            self.rewind(now_ns);
        } else if now_ns >= self.probe.at {
            self.probe.is_due = true;
            self.probe.at = now_ns.saturating_add(self.probe_ns(path));
        }
        Ok(())
    }

    /// Starts the timers. The queue pair's own runs for an answer that was asked for; the probe asks.
    #[inline]
    pub(super) fn arm(&mut self, now_ns: u64, path: &Path) {
        self.timeout_at =
            if self.asking.until.is_some() { now_ns.saturating_add(path.timeout_ns) } else { NEVER };
        self.probe.at = now_ns.saturating_add(self.probe_ns(path));
    }
    /// Stops the timers.
    pub(crate) fn disarm(&mut self) {
        (self.timeout_at, self.probe.at, self.probe.is_due) = (NEVER, NEVER, false);
        self.asking.until = None;
    }

    /// `una` moved on: restarts timers and counts, measures, grows the window, lets the cursor catch up.
    #[inline]
    pub(crate) fn progressed(&mut self, now: Instant, path: &Path, cost: u16) {
        let now_ns = now.as_nanos();
        self.retries_left = path.retry_cnt;
        self.rnr.progressed();
        self.refused = false;
        self.probe.is_due = false;
        if let Some((psn, at)) = self.sample
            && psn.is_before(self.una.psn)
        {
            self.rtt.sample(now_ns.saturating_sub(at));
            self.sample = None;
        }
        if let Some(probed) = self.probe.sent.filter(|p| !self.una.psn.is_before(p.end)) {
            self.rtt.probe_answered(now_ns.saturating_sub(probed.at_ns));
        }
        // A window that is not used says nothing about the path.
        let inflight = u32::from(self.cur.cost.wrapping_sub(self.una.cost)) + u32::from(cost);
        let used = self.blocked || inflight * 2 >= self.window.units();
        self.window.acknowledged(cost.into(), used && !self.rtt.is_congested());
        self.unanswered.release(self.una.psn);
        if self.asking.until.is_some_and(|end| !self.una.psn.is_before(end)) {
            self.asking.until = None;
        }
        let sent = span(self.una.psn, self.sent_psn);
        if span(self.una.psn, self.cur.psn) > sent {
            self.cursor_to_una();
        }
        if sent == 0 || self.rnr.is_waiting() {
            self.disarm();
        } else {
            self.arm(now_ns, path);
        }
        self.unblock();
    }

    /// The peer saw congestion.
    pub(crate) fn marked(&mut self, now_ns: u64) {
        self.window.marked(now_ns, self.rtt.srtt_ns);
    }

    /// Whether going back makes sense: not a second time from the same packet within a round trip.
    pub(crate) fn may_rewind(&self, now: Instant) -> bool {
        self.rewound_una != Some(self.una.psn)
            || now.as_nanos().saturating_sub(self.rewound_at) >= self.rtt.srtt_ns.max(MIN_REWIND_NS)
    }
    /// Goes back to the oldest unacknowledged packet, since packets were lost.
    #[cold]
    pub(crate) fn rewind(&mut self, now_ns: u64) {
        self.window.lost(now_ns, self.rtt.srtt_ns);
        self.go_back(now_ns);
    }
    /// The peer has no receive request for the oldest unacknowledged packet: that one is sent once more when
    /// the wait is over.
    pub(crate) fn refused(&mut self, now_ns: u64) {
        self.go_back(now_ns);
        self.disarm();
        self.refused = true;
    }
    /// Goes back to the oldest unacknowledged packet.
    fn go_back(&mut self, now_ns: u64) {
        self.cursor_to_una();
        (self.rewound_at, self.rewound_una) = (now_ns, Some(self.una.psn));
        self.unanswered.clear();
        self.sample = None;
        self.probe.sent = None;
        self.probe.is_due = false;
        self.asking.begin();
        self.ready = true;
    }
    pub(super) fn cursor_to_una(&mut self) {
        self.cur.index = self.una.index;
        self.cur_packet = if self.una.index == self.next.index {
            0
        } else {
            span(self.first_psn(self.una.index), self.una.psn)
        };
        self.cur.psn = self.una.psn;
        self.cur.cost = self.una.cost;
        self.current = None;
    }
}
