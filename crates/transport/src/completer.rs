//! The completer: the effects of acknowledgements, READ responses and atomic responses on the requester.
//!
//! A response to one PSN also acknowledges all earlier requests, except READs and atomics: these need responses of
//! their own, and a response that skips one shows that its response was lost.

use hca_core::wire::{Aeth, NakCode, Packet, PacketOp, Syndrome};
use hca_core::{Instant, Psn, RnrTimer, WcStatus};

use crate::connection::Path;
use crate::emit::local_status;
use crate::inflight::Kind;
use crate::psn::span;
use crate::refusal::status_of;
use crate::requester::Requester;
use crate::{Count, Host};

/// Whether this opcode is a responder's answer.
#[inline]
pub(crate) const fn is_response(op: PacketOp) -> bool {
    (op as u8) >= PacketOp::ReadResponseFirst as u8 && (op as u8) <= PacketOp::AtomicAcknowledge as u8
}

impl Requester {
    /// Takes an answer of the responder. An error is the end of the oldest request.
    #[inline]
    pub(crate) fn handle_response<H: Host>(
        &mut self,
        now: Instant,
        path: &Path,
        op: PacketOp,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), WcStatus> {
        let psn = packet.bth().psn();
        let offset = span(self.una.psn, psn);
        if offset >= span(self.una.psn, self.sent_psn) {
            self.handle_ghost(psn, packet, host);
            return Ok(());
        }
        match op {
            PacketOp::Acknowledge => match packet.aeth().and_then(|a| Syndrome::decode(a.syndrome)) {
                Some(Syndrome::Ack(credits)) => {
                    self.handle_ack(now, path, psn, host);
                    self.credit(credits);
                    Ok(())
                }
                Some(Syndrome::RnrNak(timer)) => {
                    host.count(Count::RnrNakReceived);
                    self.handle_rnr_nak(now, path, psn, timer, host)
                }
                Some(Syndrome::Nak(code)) => {
                    host.count(Count::NakReceived);
                    self.handle_nak(now, path, psn, code, host)
                }
                None => {
                    host.count(Count::DroppedInvalid);
                    Ok(())
                }
            },
            PacketOp::AtomicAcknowledge => self.handle_atomic_response(now, path, psn, packet, host),
            _ => self.handle_read_response(now, path, op, psn, packet, host),
        }
    }

    /// An answer to nothing that is in flight: late, doubled, or made up.
    #[cold]
    fn handle_ghost<H: Host>(&mut self, psn: Psn, packet: &Packet<'_>, host: &mut H) {
        // The last acknowledgement once more may bring new credits.
        if psn.add(1) == self.una.psn
            && let Some(Aeth { syndrome, .. }) = packet.aeth()
            && let Some(Syndrome::Ack(credits)) = Syndrome::decode(*syndrome)
            && packet.opcode().op() == Some(PacketOp::Acknowledge)
        {
            let before = self.credits.limit;
            self.credit(credits);
            if let (Some(before), Some(limit)) = (before, self.credits.limit)
                && (limit.wrapping_sub(before) as i32) < 0
            {
                self.credits.limit = Some(before);
            }
            return;
        }
        host.count(Count::DroppedPsn);
    }

    /// All up to `psn` arrived.
    #[inline]
    fn handle_ack<H: Host>(&mut self, now: Instant, path: &Path, psn: Psn, host: &mut H) {
        if self.reach(now, path, psn.add(1), host) && self.probe.sent.is_some() {
            self.settle_probe(now);
        }
    }

    /// The probe was answered: what was sent before it and is not acknowledged was lost.
    #[cold]
    fn settle_probe(&mut self, now: Instant) {
        let Some(probed) = self.probe.sent.filter(|p| !self.una.psn.is_before(p.end)) else { return };
        self.probe.sent = None;
        let after_ns = now.as_nanos().saturating_sub(probed.at_ns);
        if self.una.psn.is_before(probed.tells_of) && self.rtt.is_answer(after_ns) {
            self.rewind(now.as_nanos());
        }
    }

    /// The same for a packet of a READ's response. One that ends `early`, where the probe asked it to, is the answer to
    /// the probe, and the rest of the READ was lost; one that goes on is an answer to the READ itself.
    #[cold]
    fn settle_read_probe(&mut self, now: Instant, early: bool, ends_request: bool) {
        if early == ends_request {
            debug_assert!(!early);
            self.probe.sent = self.probe.sent.filter(|p| self.una.psn.is_before(p.end));
        } else if ends_request {
            self.settle_probe(now);
        } else {
            self.probe.sent = None;
            if self.may_rewind(now) {
                self.rewind(now.as_nanos());
            }
        }
    }

    /// Moves the oldest unacknowledged PSN up to `upto`, completing what lies before it. Returns whether
    /// a READ or atomic that was not answered stands in the way.
    #[inline]
    fn advance<H: Host>(&mut self, now: Instant, path: &Path, upto: Psn, host: &mut H) -> bool {
        let (from, cost) = (self.una.psn, self.una.cost);
        let mut lost = false;
        while self.una.psn != upto {
            let kind = self.una_kind();
            if kind.is_answered() {
                lost = true;
                break;
            }
            let (end, end_cost) = self.end_of(self.una.index);
            let left = span(self.una.psn, end);
            let acked = span(self.una.psn, upto);
            if acked < left {
                self.una.psn = upto;
                self.una.cost = self.una.cost.wrapping_add(path.full_cost.wrapping_mul(acked as u16));
                break;
            }
            (self.una.psn, self.una.cost) = (end, end_cost);
            self.complete_oldest(kind, 0, host);
        }
        if self.una.psn != from {
            self.progressed(now, path, self.una.cost.wrapping_sub(cost));
        }
        lost
    }

    /// Brings the oldest unacknowledged PSN up to what an answer tells. `false`: a READ or atomic before that has no
    /// answer, so its response was lost, and it is asked for again.
    #[inline]
    fn reach<H: Host>(&mut self, now: Instant, path: &Path, upto: Psn, host: &mut H) -> bool {
        if self.una.psn == upto || !self.advance(now, path, upto, host) {
            return true;
        }
        if self.may_rewind(now) {
            self.rewind(now.as_nanos());
        }
        false
    }

    /// Whether this PSN is one of the oldest request's.
    fn is_within_oldest(&self, psn: Psn) -> bool {
        let first = self.first_psn(self.una.index);
        span(first, psn) < span(first, self.end_of(self.una.index).0)
    }

    #[inline]
    fn complete_oldest<H: Host>(&mut self, kind: Kind, byte_len: u32, host: &mut H) {
        if kind == Kind::Resync {
            return self.resynchronized();
        }
        host.complete_send(self.una.index, WcStatus::Success, byte_len);
        self.una.index = self.una.index.wrapping_add(1);
        self.recv_done = self.recv_done.wrapping_add(kind.consumes_recv().into());
    }

    /// The responder's credit count, as of the last PSN that it acknowledged.
    #[inline]
    fn credit(&mut self, credits: Option<u8>) {
        self.credits.limit = credits.map(|encoded| {
            // A SEND under way holds its receive request already.
            let begun = !self.is_drained()
                && self.una_kind() == Kind::Send
                && self.first_psn(self.una.index) != self.una.psn;
            let used = self.recv_done.wrapping_add(begun.into());
            used.wrapping_add(Syndrome::credits(encoded).into())
        });
        self.unblock();
    }

    #[cold]
    fn handle_rnr_nak<H: Host>(
        &mut self,
        now: Instant,
        path: &Path,
        psn: Psn,
        timer: RnrTimer,
        host: &mut H,
    ) -> Result<(), WcStatus> {
        if !self.reach(now, path, psn, host) {
            return Ok(());
        }
        if self.rnr.is_waiting() || self.resync.is_some() {
            // The same refusal once more, or one of a RESYNC, which needs no receive request.
            return Ok(());
        }
        self.rnr.refused(now.as_nanos(), timer)?;
        self.retries_left = path.retry_cnt;
        self.refused(now.as_nanos());
        Ok(())
    }

    #[cold]
    fn handle_nak<H: Host>(
        &mut self,
        now: Instant,
        path: &Path,
        psn: Psn,
        code: NakCode,
        host: &mut H,
    ) -> Result<(), WcStatus> {
        if !self.reach(now, path, psn, host) && !self.is_within_oldest(psn) {
            return Ok(());
        }
        if let Some(status) = status_of(code) {
            // A RESYNC is not refused: it is the abandoned message before that was, and no request has this PSN.
            return if self.resync.is_some() { Ok(()) } else { Err(status) };
        }
        if self.may_rewind(now) {
            self.retries_left = self.retries_left.checked_sub(1).ok_or(WcStatus::RetryExceeded)?;
            self.rewind(now.as_nanos());
        }
        Ok(())
    }

    fn handle_atomic_response<H: Host>(
        &mut self,
        now: Instant,
        path: &Path,
        psn: Psn,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), WcStatus> {
        if !self.reach(now, path, psn, host) {
            return Ok(());
        }
        let Some(original) = packet.atomic_ack() else { return Err(WcStatus::BadResponse) };
        if self.una_kind() != Kind::Atomic {
            return Err(WcStatus::BadResponse);
        }
        host.scatter(self.una.index, 0, &original.original.get().to_ne_bytes()).map_err(local_status)?;
        self.answered(now, path, Some(8), host);
        self.settle_probe(now);
        Ok(())
    }

    fn handle_read_response<H: Host>(
        &mut self,
        now: Instant,
        path: &Path,
        op: PacketOp,
        psn: Psn,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), WcStatus> {
        if !self.reach(now, path, psn, host) {
            return Ok(());
        }
        if self.una_kind() != Kind::Read {
            return Err(WcStatus::BadResponse);
        }
        let len = host.send_request(self.una.index).len;
        let at = span(self.first_psn(self.una.index), psn);
        let offset = at * path.mtu;
        let last = at + 1 == path.packets(len);
        let ends_request = last || (at + 1) & (path.chunk - 1) == 0;
        let says_end = matches!(op, PacketOp::ReadResponseLast | PacketOp::ReadResponseOnly);
        let data = packet.payload();
        let early = says_end && !ends_request;
        if data.len() as u32 != (len - offset).min(path.mtu)
            || ends_request && !says_end
            || early && self.probe.alone != Some(psn)
        {
            return Err(WcStatus::BadResponse);
        }
        if !data.is_empty() {
            host.scatter(self.una.index, offset, data).map_err(local_status)?;
        }
        self.answered(now, path, last.then_some(len), host);
        if self.probe.sent.is_some() {
            self.settle_read_probe(now, early, ends_request);
        }
        Ok(())
    }

    /// The packet that was waited for came; `Some` ends its message, with this many bytes.
    #[inline]
    fn answered<H: Host>(&mut self, now: Instant, path: &Path, ends: Option<u32>, host: &mut H) {
        let before = self.una.cost;
        match ends {
            Some(byte_len) => {
                (self.una.psn, self.una.cost) = self.end_of(self.una.index);
                self.complete_oldest(Kind::Read, byte_len, host);
            }
            None => {
                self.una.psn = self.una.psn.add(1);
                self.una.cost = self.una.cost.wrapping_add(path.full_cost);
            }
        }
        let cost = self.una.cost.wrapping_sub(before);
        self.progressed(now, path, cost);
    }
}
