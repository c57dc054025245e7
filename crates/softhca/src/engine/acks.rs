//! Acknowledgements: which are owed, and when they leave.
//!
//! An acknowledgement waits for an answer that it can go along with. A target of XRC sends nothing: the program answers
//! by another queue pair, whose packets are in no order with the target's. So what a target owes leaves in the turn in
//! which it becomes due, before the program is given the message, as from an adapter in silicon; programs rely on the
//! completion of their request before its answer.

use hca_core::{Instant, QpHandle};
use hca_fabric::TxBatch;

use crate::engine::host::QpHost;
use crate::engine::near::MessageSink;
use crate::engine::{AckRule, Core, Engine, Sink, group_by_path};
use crate::network::Network;
use crate::objects::qp::QpEntry;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ack {
    None,
    Sent,
    NextTurn,
    /// The network takes no more, or READ responses stand before it: it leaves behind them.
    Blocked,
}

impl Engine {
    /// Sends the acknowledgement that a queue pair owes, before it goes or becomes unable to: its peer's requests were carried
    /// out, and must not end in error.
    pub(crate) fn acknowledge(&mut self, now: Instant, qp: QpHandle) {
        if self.core.qps.get(qp.index, qp.generation).is_some_and(|e| e.machine.ack_owed().is_some()) {
            self.core.turn += 1;
            self.core.flush_ack(now, qp.index, AckRule::UnlessDelivered, &mut self.tx, &mut self.network);
            self.send(now);
        }
    }

    /// The rule of a turn that is to acknowledge by `rule`. A program that is given a completion looks at its memory next,
    /// and may answer a WRITE that came along with it, as where each side's WRITE acknowledges the other's.
    #[inline]
    fn rule_beside_completions(&self, rule: AckRule) -> AckRule {
        let is_given = rule == AckRule::UnlessDelivered && self.core.tables.has_some_here();
        if is_given { AckRule::NextTurn } else { rule }
    }
    /// As [`flush_acks`](Self::flush_acks) behind all else that a turn does; so many were `owed` before it.
    #[inline]
    pub(super) fn flush_acks_behind(&mut self, now: Instant, rule: AckRule, owed: usize) -> bool {
        let rule = self.rule_beside_completions(rule);
        let all_wait = rule == AckRule::NextTurn && owed == 0 && !self.core.acks_leave_now;
        !all_wait && self.flush_acks(now, rule)
    }

    /// Whether a queue pair owes an acknowledgement.
    pub(crate) fn owes_acks(&self) -> bool {
        let owes = |slot: &u32| self.core.qps.at(*slot).is_some_and(|e| e.machine.ack_owed().is_some());
        self.core.acks.iter().any(owes)
    }

    /// Sends all acknowledgements that are owed, before the adapter goes.
    pub(crate) fn acknowledge_all(&mut self, now: Instant) {
        self.core.turn += 1;
        self.flush_acks(now, AckRule::UnlessDelivered);
        self.send(now);
    }

    /// Sends the acknowledgements that are due: all that were owed before this turn, and by the rule those
    /// of queue pairs whose program has nothing to answer yet.
    pub(super) fn flush_acks(&mut self, now: Instant, rule: AckRule) -> bool {
        if rule == AckRule::WithAnswer && !self.core.keep_owed_acks() {
            return false;
        }
        let mut sent = false;
        let (mut kept, mut blocked) = (0, 0);
        let core = &mut self.core;
        core.acks_leave_now = false;
        group_by_path(&mut core.acks, &core.qps);
        for i in 0..self.core.acks.len() {
            let slot = self.core.acks[i];
            match self.core.flush_ack(now, slot, rule, &mut self.tx, &mut self.network) {
                Ack::Sent => sent = true,
                Ack::None => {}
                later @ (Ack::NextTurn | Ack::Blocked) => {
                    self.core.acks[kept] = slot;
                    kept += 1;
                    blocked += usize::from(later == Ack::Blocked);
                }
            }
        }
        self.core.acks.truncate(kept);
        let held = if rule == AckRule::WithAnswer { kept - blocked } else { 0 };
        (self.core.acks_blocked, self.core.acks_held) = (blocked, held);
        sent
    }
}

impl Core {
    /// Leaves the acknowledgements that are owed as they are, and forgets those that went along with packets. Returns
    /// whether some are owed by queue pairs that never answer.
    #[cold]
    #[inline(never)]
    fn keep_owed_acks(&mut self) -> bool {
        let qps = &mut self.qps;
        let mut some_leave = false;
        self.acks.retain(|slot| {
            let Some(entry) = qps.at_mut(*slot) else { return false };
            let owes = entry.machine.ack_owed().is_some();
            if !owes {
                entry.ack_since = None;
            }
            some_leave |= owes && !entry.answers();
            owes
        });
        (self.acks_blocked, self.acks_held) = (0, self.acks.len());
        some_leave
    }

    fn flush_ack(
        &mut self,
        now: Instant,
        slot: u32,
        rule: AckRule,
        tx: &mut TxBatch,
        network: &mut Network,
    ) -> Ack {
        let turn = self.turn;
        let Some(entry) = self.qps.at_mut(slot) else { return Ack::None };
        let (Some(owed), Some(since)) = (entry.machine.ack_owed(), entry.ack_since) else {
            entry.ack_since = None;
            return Ack::None;
        };
        let may_wait = match rule {
            AckRule::Now => false,
            AckRule::UnlessDelivered => since == turn && owed.delivered,
            AckRule::NextTurn => since == turn,
            AckRule::WithAnswer => true,
        };
        if may_wait && entry.answers() {
            return Ack::NextTurn;
        }
        let QpEntry { machine, res, .. } = &mut **entry;
        let path = res.path;
        let mut host = QpHost::new(res, &mut self.tables, &self.ahs);
        let mut sink = Sink { batch: tx, path, ahs: &self.ahs, full: false, network: None };
        let sent = if machine.uses_messages() {
            let (Some(path), Some(near)) = (path, network.near()) else { return Ack::None };
            let acked = near.send_messages(now, path, |tx, _| {
                let mut sink = MessageSink { tx, full: false };
                let sent = machine.poll_ack(now, &mut host, &mut sink);
                (sent, sink.full)
            });
            if host.res.link.is_none() {
                host.res.link = near.link_of(path);
            }
            // Where nobody is, nobody asks.
            let (sent, full) = acked.unwrap_or_default();
            sink.full = full;
            sent
        } else {
            machine.poll_ack(now, &mut host, &mut sink)
        };
        if sink.full || machine.ack_owed().is_some() {
            return Ack::Blocked;
        }
        entry.ack_since = None;
        if sent { Ack::Sent } else { Ack::None }
    }
}
