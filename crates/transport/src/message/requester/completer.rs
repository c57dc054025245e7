//! The completer: the effects of the peer's answers on the requester.

use hca_core::wire::Syndrome;
use hca_core::{Instant, WcStatus};

use super::super::{BY_VALUE, FIRST, Head, LAST, LENT, LIMITED, NOT_LENT, Op, take_loan};
use super::{Fetch, Requester};
use crate::emit::local_status;
use crate::inflight::Kind;
use crate::refusal::status_of;
use crate::{Count, Host, LoanError};

impl Requester {
    /// All requests before the one of this number are done. `Ok(false)`: the number is none of ours.
    #[inline]
    pub(crate) fn done<H: Host>(&mut self, number: u16, host: &mut H) -> Result<bool, WcStatus> {
        let count = u32::from(number.wrapping_sub(self.number(self.una)));
        if count == 0 {
            return Ok(true);
        }
        if count > self.high.wrapping_sub(self.una) {
            return Ok(false);
        }
        if self.is_plain() {
            host.complete_sends(self.una, count);
            self.completed(count);
            return Ok(true);
        }
        for _ in 0..count {
            if self.unanswered > 0 && Kind::of(&host.send_request(self.una).op).is_answered() {
                return Err(WcStatus::BadResponse);
            }
            // It was done although it was about to be sent again, and took its receive request.
            if self.una == self.next && self.sent == 0 {
                self.credits.take(Kind::of(&host.send_request(self.una).op));
            }
            host.complete_send(self.una, WcStatus::Success, 0);
            self.advance();
        }
        self.progressed();
        self.unblock();
        Ok(true)
    }

    /// The oldest request is completed.
    #[inline]
    pub(super) fn advance(&mut self) {
        // It was done although it was about to be sent again.
        if self.una == self.next {
            self.next = self.next.wrapping_add(1);
            (self.current, self.sent) = (None, 0);
        }
        self.una = self.una.wrapping_add(1);
        self.rnr.progressed();
        self.refused = false;
    }

    #[inline]
    pub(super) fn unblock(&mut self) {
        if core::mem::take(&mut self.blocked) {
            self.posted();
        }
    }

    /// Takes an answer. An error is the end of the oldest request.
    #[inline]
    pub(crate) fn handle_answer<H: Host>(
        &mut self,
        now: Instant,
        head: &Head,
        body: &[u8],
        host: &mut H,
    ) -> Result<(), WcStatus> {
        if !self.done(head.done, host)? {
            host.count(Count::DroppedPsn);
            return Ok(());
        }
        match head.op {
            Op::Ack => {
                self.credits.limit = head.has(LIMITED).then_some(head.extra);
                self.unblock();
                Ok(())
            }
            Op::Nak => self.handle_nak(now, head, host),
            _ => self.handle_response(head, body, host),
        }
    }

    #[cold]
    fn handle_nak<H: Host>(&mut self, now: Instant, head: &Head, host: &mut H) -> Result<(), WcStatus> {
        if head.number != self.number(self.una) || !self.is_waiting() && self.sent == 0 {
            host.count(Count::DroppedPsn);
            return Ok(());
        }
        if head.has(NOT_LENT) {
            host.loan_refused();
            // The next one may be half sent.
            self.lends_from = Some(self.high.wrapping_add((self.next == self.high).into()));
            self.recount(self.una, host);
            self.go_back(self.una);
            return Ok(());
        }
        let code = match Syndrome::decode(head.extra as u8) {
            Some(Syndrome::RnrNak(timer)) => {
                host.count(Count::RnrNakReceived);
                if self.rnr.is_waiting() && self.next == self.una && self.sent == 0 {
                    // Of a copy that went to a slow peer: the same refusal once more.
                    return Ok(());
                }
                self.rnr.refused(now.as_nanos(), timer)?;
                self.refused = true;
                self.recount(self.una, host);
                self.go_back(self.una);
                self.ready = false;
                self.progressed();
                return Ok(());
            }
            Some(Syndrome::Nak(code)) => code,
            _ => return Err(WcStatus::BadResponse),
        };
        host.count(Count::NakReceived);
        // Messages have neither PSNs nor reliable datagrams.
        let status = status_of(code).filter(|status| *status != WcStatus::RemoteInvalidRd);
        Err(status.unwrap_or(WcStatus::BadResponse))
    }

    fn handle_response<H: Host>(&mut self, head: &Head, body: &[u8], host: &mut H) -> Result<(), WcStatus> {
        if head.number != self.number(self.una) || !self.is_waiting() {
            host.count(Count::DroppedPsn);
            return Ok(());
        }
        if self.fetch == Fetch::Failed {
            // What had left before the peer knew.
            if !head.has(BY_VALUE) {
                return Ok(());
            }
            self.fetch = Fetch::No;
        }
        let lent = head.op == Op::ReadData && head.has(LENT);
        let request = host.send_request(self.una);
        let loan = if lent { Some(take_loan(body).ok_or(WcStatus::BadResponse)?) } else { None };
        let (len, last) = match (Kind::of(&request.op), head.op) {
            (Kind::Read, Op::ReadData) => (request.len, head.has(LAST)),
            (Kind::Atomic, Op::Original) if body.len() == 8 => (8, true),
            _ => return Err(WcStatus::BadResponse),
        };
        let end = self.answered as usize + loan.map_or(body.len(), |l| l.len as usize);
        if head.has(FIRST) != (self.answered == 0) || last != (end == len as usize) || end > len as usize {
            return Err(WcStatus::BadResponse);
        }
        if let Some(loan) = loan {
            match host.scatter_loan(self.una, self.answered, &loan) {
                Ok(()) => self.fetch = Fetch::Yes,
                Err(LoanError::Gone) => {
                    self.fetch = Fetch::Failed;
                    self.note_fetched(head, Some(self.answered));
                    return Ok(());
                }
                Err(LoanError::Local(e)) => return Err(local_status(e)),
                Err(LoanError::Remote | LoanError::Bad) => return Err(WcStatus::BadResponse),
            }
        } else if !body.is_empty() {
            host.scatter(self.una, self.answered, body).map_err(local_status)?;
        }
        self.answered = end as u32;
        if last {
            self.answered = 0;
            if core::mem::replace(&mut self.fetch, Fetch::No) == Fetch::Yes {
                self.note_fetched(head, None);
            }
            // One that is to be asked again is not counted.
            if self.una != self.next {
                self.unanswered = self.unanswered.saturating_sub(1);
            }
            host.complete_send(self.una, WcStatus::Success, len);
            self.advance();
        }
        self.progressed();
        self.unblock();
        Ok(())
    }
}
