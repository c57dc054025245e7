//! The whole state of a run, and the actions of each step.

use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;

use hca_core::{AsyncEvent, Completion, DeviceError, Instant, QpHandle, QpType, WcStatus};

use super::datagrams::{Links, rd_of};
use super::end::{End, Life, Origin, RecvBuf, Span};
use super::host::Host;
use super::managers::Managers;
use super::plan::{Chaos, Plan};
use super::report::Report;
use crate::checker::Breach;
use crate::trace::Event;
use crate::{Rng, Sim, Step, Violation};

/// How often the whole memory is compared.
const MEMORY_CHECK_EVERY: Duration = Duration::from_millis(5);
/// When it is looked again whether there are completion queues for a connection.
const LOOK_AGAIN: Duration = Duration::from_micros(100);
/// Connections made anew after a failure.
const MAX_RECONNECTS: u32 = 2;

pub(super) type Checked<T> = Result<T, Violation>;

/// A connection and its two ends.
pub(super) struct Conn {
    pub(super) ends: [usize; 2],
    pub(super) reconnects: u32,
    /// When it is to be put in error, since one end failed.
    pub(super) close_at: Option<Instant>,
    /// Since when both ends are flushed.
    pub(super) closed: bool,
    pub(super) reconnect_at: Option<Instant>,
}

pub(super) struct World {
    pub(super) sim: Sim,
    pub(super) rng: Rng,
    pub(super) plan: Plan,
    pub(super) hosts: Vec<Option<Host>>,
    pub(super) ends: Vec<End>,
    pub(super) conns: Vec<Conn>,
    /// Queue pair to end, by host, index and generation.
    pub(super) by_qp: BTreeMap<(usize, u32, u32), usize>,
    pub(super) recv_bufs: BTreeMap<u64, RecvBuf>,
    pub(super) chaos: Vec<(Instant, Chaos)>,
    /// Cuts and stalls that end: when, and how.
    pub(super) undo: Vec<(Instant, Undo)>,
    pub(super) next_wr: u64,
    pub(super) next_check: Instant,
    /// Since when there are no faults any more.
    pub(super) healed_at: Option<Instant>,
    pub(super) report: Report,
    pub(super) managers: Managers,
    pub(super) links: Links,
}

#[derive(Clone, Debug)]
pub(super) enum Undo {
    Heal(usize, usize),
    Rejoin(Vec<usize>),
    Resume(usize),
    Restart(usize),
    Hear(usize),
}

impl World {
    pub(super) fn new(sim: &Sim, plan: Plan, rng: Rng) -> Checked<Self> {
        let mut world = Self {
            sim: sim.clone(),
            rng,
            hosts: Vec::new(),
            ends: Vec::new(),
            conns: Vec::new(),
            by_qp: BTreeMap::new(),
            recv_bufs: BTreeMap::new(),
            chaos: plan.chaos.iter().map(|(d, c)| (Instant::ZERO + *d, c.clone())).collect(),
            undo: Vec::new(),
            next_wr: 1,
            next_check: Instant::ZERO + MEMORY_CHECK_EVERY,
            healed_at: None,
            report: Report { runs: 1, ..Report::default() },
            managers: Managers::new(sim, plan.calls.clone()),
            links: Links::default(),
            plan,
        };
        for n in 0..world.plan.nodes {
            sim.add_node();
            world.hosts.push(None);
            world.open_host(n, 0)?;
        }
        for c in 0..world.plan.conns.len() {
            let ends = [2 * c, 2 * c + 1];
            world.conns.push(Conn { ends, reconnects: 0, close_at: None, closed: false, reconnect_at: None });
            world.connect(c)?;
        }
        Ok(world)
    }

    pub(super) fn host(&self, n: usize) -> &Host {
        self.hosts[n].as_ref().expect("the node is up")
    }
    pub(super) fn host_mut(&mut self, n: usize) -> &mut Host {
        self.hosts[n].as_mut().expect("the node is up")
    }
    /// The counts until now.
    pub(super) fn report(&self) -> Report {
        let mut report = self.report;
        self.managers.count(&mut report);
        report
    }
    pub(super) fn now(&self) -> Instant {
        self.sim.now()
    }
    pub(super) fn broken(&self, what: impl Into<String>) -> Violation {
        self.sim.violation(what)
    }
    /// Names the end that a breach is about.
    pub(super) fn check<T>(&self, end: usize, what: &str, result: Result<T, Breach>) -> Checked<T> {
        result.map_err(|breach| {
            let e = &self.ends[end];
            let kind = self.plan.conns[e.conn].kind;
            self.broken(format!("{kind:?} qp {} of n{} ({what}): {breach}", e.qpn, e.host))
        })
    }
    pub(super) fn refused<T>(&self, what: &str, result: Result<T, DeviceError>) -> Checked<T> {
        result.map_err(|e| self.broken(format!("{what} was refused: {e}")))
    }
    pub(super) fn new_wr(&mut self) -> u64 {
        self.next_wr += 1;
        self.next_wr
    }

    /// One step: everything that can be done now. Returns when the next one is due.
    pub(super) fn step(&mut self, now: Instant) -> Checked<Step> {
        loop {
            self.poll_all()?;
            self.run_chaos(now)?;
            // What comes up while a connection is closed, as an overrun, may be about connections looked at before.
            let mut posted = self.tend_connections(now)?;
            for e in 0..self.ends.len() {
                posted |= self.post_receives(now, e)?;
                posted |= self.post_requests(now, e)?;
            }
            posted |= self.managers.step(now)?;
            // What goes on after a drain may be done at once.
            if !posted && !self.poll_all()? {
                break;
            }
        }
        if now >= self.next_check {
            self.check_memories()?;
            self.next_check = now + MEMORY_CHECK_EVERY;
        }
        Ok(match self.next_due(now) {
            Some(at) => Step::After(at.since(now)),
            None => Step::OnProgress,
        })
    }

    fn next_due(&self, now: Instant) -> Option<Instant> {
        let ends = self.ends.iter().filter(|e| e.life == Life::Up);
        let posts = ends.clone().filter(|e| e.left > 0).map(|e| e.next_post);
        let recvs = ends.map(|e| e.next_recv);
        let conns = self.conns.iter().flat_map(|c| [c.close_at, c.reconnect_at]).flatten();
        let resumes = self.ends.iter().filter(|e| e.life != Life::Gone);
        let resumes = resumes.filter_map(|e| e.drain.and_then(|d| d.resume_at));
        let chaos = self.chaos.iter().map(|c| c.0);
        let undo = self.undo.iter().map(|u| u.0);
        posts
            .chain(recvs)
            .chain(conns)
            .chain(resumes)
            .chain(chaos)
            .chain(undo)
            .chain(self.patience_ends())
            .chain(self.managers.next_due())
            .filter(|at| *at > now)
            .min()
    }

    /// Takes all completions and events. Messages that arrived are looked at first, since what a sender is
    /// told must have arrived before; flushed receive requests last, as the failure stands elsewhere. Returns whether
    /// there were completions.
    pub(super) fn poll_all(&mut self) -> Checked<bool> {
        let mut any = false;
        loop {
            let mut all: Vec<(usize, Completion)> = Vec::new();
            // Who polls a queue turns the adapter, which may put something into a queue that was looked at before.
            let mut known = usize::MAX;
            while known != all.len() {
                known = all.len();
                for n in 0..self.hosts.len() {
                    let mut some = Vec::new();
                    if let Some(host) = &mut self.hosts[n] {
                        host.drain(&mut some);
                    }
                    all.extend(some.into_iter().map(|c| (n, c)));
                }
            }
            self.poll_events()?;
            self.prove_overruns()?;
            if all.is_empty() {
                self.look_at_limits()?;
                return Ok(any);
            }
            any = true;
            for (n, c) in &all {
                self.sim.event(Event::Completed(*n, *c));
            }
            type Some = Vec<(usize, Completion)>;
            let (received, sent): (Some, Some) = all.into_iter().partition(|c| c.1.opcode.is_recv());
            let (arrived, failed): (Some, Some) =
                received.into_iter().partition(|c| c.1.status == WcStatus::Success);
            for (n, c) in &arrived {
                self.receive_completed(*n, c)?;
            }
            self.settle_owed()?;
            for (n, c) in &sent {
                self.request_completed(*n, c)?;
            }
            for (n, c) in &failed {
                self.receive_completed(*n, c)?;
            }
        }
    }

    fn poll_events(&mut self) -> Checked<()> {
        let (mut drained, mut fallen, mut limits) = (Vec::new(), Vec::new(), Vec::new());
        let mut overrun = Vec::new();
        for n in 0..self.hosts.len() {
            let Some(host) = &self.hosts[n] else { continue };
            while let Some(event) = host.device.poll_event() {
                match event {
                    AsyncEvent::CqOverrun(cq) => overrun.push((n, cq)),
                    AsyncEvent::DeviceFatal | AsyncEvent::QpFatal(_) => {
                        return Err(self.broken(format!("event {event:?} at n{n}")));
                    }
                    AsyncEvent::SqDrained(qp) => drained.push((n, qp)),
                    AsyncEvent::QpAccessError(qp) | AsyncEvent::QpRequestError(qp) => fallen.push((n, qp)),
                    AsyncEvent::SrqLimitReached(_) => limits.push(n),
                    _ => {}
                }
                self.sim.note(format!("event {event:?} at n{n}"));
            }
        }
        for (n, cq) in overrun {
            self.has_overrun(n, cq)?;
        }
        for (n, qp) in drained {
            self.has_drained(n, qp)?;
        }
        for (n, qp) in fallen {
            self.has_fallen(n, qp)?;
        }
        for n in limits {
            let srq = self.hosts[n].as_mut().and_then(|h| h.srq.as_mut());
            let twice = srq.is_none_or(|s| core::mem::replace(&mut s.limit.fired, true));
            if twice {
                return Err(self.broken(format!("a second limit event at n{n}")));
            }
        }
        Ok(())
    }
    /// The end that an event is about. Who comes back after a failure has another handle.
    pub(super) fn end_by_handle(&self, n: usize, qp: QpHandle) -> Option<usize> {
        let e = self.by_qp.get(&(n, qp.index, qp.generation)).copied();
        e.filter(|e| self.ends[*e].handle == qp)
    }
    /// The device says that a send queue has drained.
    fn has_drained(&mut self, n: usize, qp: QpHandle) -> Checked<()> {
        let (now, r) = (self.now(), self.rng.next_u64());
        let Some(e) = self.end_by_handle(n, qp) else { return Ok(()) };
        match &mut self.ends[e].drain {
            Some(d) if d.drained.is_none() => {
                let wait = Duration::from_nanos(r % (d.pause.as_nanos() as u64 + 1));
                (d.drained, d.resume_at) = (Some(now), Some(now + wait));
                Ok(())
            }
            _ => {
                Err(self.broken(format!("{qp} of n{n} has drained, but was not told to, or said so before")))
            }
        }
    }
    fn look_at_limits(&mut self) -> Checked<()> {
        for n in 0..self.hosts.len() {
            let held = self.ends.iter().filter(|e| e.host == n && e.shares).count();
            let Some(srq) = self.hosts[n].as_mut().and_then(|h| h.srq.as_mut()) else { continue };
            match srq.limit.look(srq.ledger.len(), held) {
                Ok(fired) => self.report.srq_limits += u64::from(fired),
                Err(what) => return Err(self.broken(format!("shared receive queue of n{n}: {what}"))),
            }
        }
        Ok(())
    }

    pub(super) fn check_memories(&mut self) -> Checked<()> {
        for (n, host) in self.hosts.iter().enumerate() {
            if let Some(host) = host {
                self.report.memory_checks += 1;
                if let Err(breach) = host.check_memory() {
                    return Err(self.broken(format!("memory of n{n}: {breach}")));
                }
            }
        }
        Ok(())
    }

    /// Puts a range back to where it came from, unless another request still uses it.
    pub(super) fn release(&mut self, span: Rc<Span>) {
        let Ok(span) = Rc::try_unwrap(span) else { return };
        let Some(host) = self.hosts[span.host].as_mut().filter(|h| h.epoch == span.epoch) else { return };
        match span.origin {
            Origin::Local => host.local.zone.give_back(span.range),
            Origin::Recv => host.recv_zone.give_back(span.range),
            Origin::Spare => host.spares.push(span.range.start),
            Origin::Remote => host.remote.zone.give_back(span.range),
            Origin::Own(end) => {
                if let Some(own) = self.ends[end].own.as_mut().filter(|o| !o.revoked) {
                    own.zone.give_back(span.range);
                }
            }
        }
    }
    /// What a range holds now is what it is to hold from now on.
    pub(super) fn seal(&mut self, span: &Span) {
        let Some(host) = self.hosts[span.host].as_mut().filter(|h| h.epoch == span.epoch) else { return };
        if host.shadow.is_open(&span.range) {
            let now = host.arena.read(span.range.clone());
            host.shadow.write(span.range.start, &now);
            host.shadow.close(span.range.clone());
        }
    }

    fn run_chaos(&mut self, now: Instant) -> Checked<()> {
        while let Some(at) = self.undo.iter().position(|u| u.0 <= now) {
            match self.undo.remove(at).1 {
                Undo::Heal(a, b) => self.sim.net().heal(a, b),
                Undo::Rejoin(group) => self.sim.net().rejoin(&group),
                Undo::Resume(n) => self.sim.node(n).resume(),
                Undo::Restart(n) => self.restart(n)?,
                Undo::Hear(n) => self.hear(n),
            }
        }
        while self.chaos.first().is_some_and(|c| c.0 <= now) {
            let (_, what) = self.chaos.remove(0);
            match what {
                Chaos::Cut { from, to, heal_after } => {
                    self.sim.net().cut(from, to);
                    self.undo.push((now + heal_after, Undo::Heal(from, to)));
                }
                Chaos::Partition { group, heal_after } => {
                    self.sim.net().partition(&group);
                    self.undo.push((now + heal_after, Undo::Rejoin(group)));
                }
                Chaos::Stall { node, resume_after } => {
                    self.sim.node(node).stall();
                    self.undo.push((now + resume_after, Undo::Resume(node)));
                }
                Chaos::Links(profile) => self.sim.net().set_profile(&profile),
                Chaos::Crash { node, restart_after } => {
                    self.crash(node);
                    self.undo.push((now + restart_after, Undo::Restart(node)));
                }
                Chaos::Deafen { node, hear_after } => {
                    self.deafen(node);
                    self.undo.push((now + hear_after, Undo::Hear(node)));
                }
                Chaos::Revoke { conn } => self.revoke(conn)?,
                Chaos::Drain { conn, side, pause } => self.drain(conn, side, pause)?,
            }
        }
        Ok(())
    }

    /// All faults end.
    pub(super) fn heal(&mut self) {
        self.healed_at = Some(self.now());
        self.sim.net().heal_all();
        self.chaos.retain(|c| matches!(c.1, Chaos::Revoke { .. }));
        let now = self.now();
        for (at, undo) in &mut self.undo {
            if !matches!(undo, Undo::Restart(_)) {
                *at = now;
            }
        }
    }

    /// Closes and makes connections that it is time for. Returns whether one was closed.
    fn tend_connections(&mut self, now: Instant) -> Checked<bool> {
        let mut any = false;
        for e in 0..self.ends.len() {
            let due = self.ends[e].drain.and_then(|d| d.resume_at).is_some_and(|at| at <= now);
            if due && self.ends[e].life != Life::Gone {
                self.resume(e)?;
            }
        }
        self.rebuild_queues()?;
        for c in 0..self.conns.len() {
            let ends = self.conns[c].ends;
            let lives = ends.map(|e| self.ends[e].life);
            let conn = &self.conns[c];
            if conn.closed {
                if conn.reconnect_at.is_some_and(|at| at <= now) && self.both_up(c) {
                    let may = self.may_connect(c);
                    self.conns[c].reconnect_at = (!may).then_some(now + LOOK_AGAIN);
                    if may {
                        self.connect(c)?;
                    }
                }
                continue;
            }
            if lives != [Life::Up; 2] && conn.close_at.is_none() && self.lets_go(c, now)? {
                let wait = self.rng.up_to(Duration::from_millis(1));
                self.conns[c].close_at = Some(now + wait);
            }
            let deaf = ends.iter().any(|e| self.is_deaf(self.ends[*e].host));
            if self.conns[c].close_at.is_some_and(|at| at <= now) && !deaf {
                self.close(c)?;
                any = true;
                let wait = self.rng.up_to(Duration::from_millis(2));
                let again = self.conns[c].reconnects < MAX_RECONNECTS;
                self.conns[c].reconnects += 1;
                self.conns[c].reconnect_at = again.then_some(now + wait);
            }
        }
        Ok(any)
    }
    fn both_up(&self, conn: usize) -> bool {
        self.plan.conns[conn].nodes.iter().all(|n| self.hosts[*n].is_some())
    }
    /// Whether a connection of which one end is down may be closed: the other end's requests find out
    /// for themselves first, unless they wait for ever.
    fn lets_go(&self, conn: usize, now: Instant) -> Checked<bool> {
        let plan = &self.plan.conns[conn];
        let Some(patience) = super::patience(plan, self.plan.near) else { return Ok(true) };
        for end in self.conns[conn].ends.map(|e| &self.ends[e]) {
            // A queue pair of RD whose peer has stopped sending is still heard.
            if end.life != Life::Up || plan.kind != QpType::Rc || plan.rd {
                continue;
            }
            if self.is_deaf(end.host) {
                return Ok(false);
            }
            let Some((wr_id, _)) = end.sq.oldest_signaled() else { continue };
            // What has not begun waits until the end goes on.
            if end.drain.is_some() {
                return Ok(false);
            }
            if now > end.progress_at + patience {
                return Err(self.broken(format!(
                    "hang: the peer of qp {} of n{} is gone, its request {wr_id:#x} heard nothing for {:?}, and \
                     timeout {:?} and retry_cnt {} allow {patience:?}",
                    end.qpn,
                    end.host,
                    now.since(end.progress_at),
                    plan.timeout.duration(),
                    plan.retry_cnt,
                )));
            }
            return Ok(false);
        }
        Ok(true)
    }
    /// How long requests whose peer is gone may wait.
    pub(super) fn longest_patience(&self) -> Duration {
        let all = self.plan.conns.iter().filter_map(|plan| super::patience(plan, self.plan.near));
        all.max().unwrap_or_default()
    }
    /// When requests whose peer is gone have waited long enough.
    fn patience_ends(&self) -> impl Iterator<Item = Instant> {
        let alone = |e: &&End| {
            let waits = e.life == Life::Up && self.ends[e.peer].life != Life::Up;
            waits && e.sq.oldest_signaled().is_some() && !self.is_deaf(e.host)
        };
        self.ends.iter().filter(alone).filter_map(|e| {
            let patience = super::patience(&self.plan.conns[e.conn], self.plan.near)?;
            Some(e.progress_at + patience + Duration::from_nanos(1))
        })
    }

    /// Takes everything down; the memory must be as it should be to the last byte.
    pub(super) fn tear_down(&mut self) -> Checked<()> {
        self.managers.agree()?;
        self.managers.close();
        self.check_memories()?;
        for c in 0..self.conns.len() {
            if !self.conns[c].closed {
                self.close(c)?;
            }
        }
        self.poll_all()?;
        self.check_memories()?;
        self.close_links()?;
        for n in 0..self.hosts.len() {
            let Some(mut host) = self.hosts[n].take() else { continue };
            self.check_shared_word(n, &host)?;
            self.check_shared_queues(n, &host)?;
            self.count_adapter(&host);
            let device = host.device.clone();
            if let Some(srq) = &host.srq {
                self.refused("destroy_srq", device.destroy_srq(srq.handle))?;
            }
            if let Some(rdd) = host.rdd {
                self.refused("dealloc_rdd", rd_of(&host).and_then(|rd| rd.dealloc_rdd(rdd)))?;
            }
            if let Some(xrc) = &host.xrc {
                self.refused("taking an XRC domain down", xrc.close(&*device))?;
            }
            for cq in &host.cqs {
                self.refused("destroy_cq", device.destroy_cq(cq.handle))?;
            }
            self.refused("giving back memory and protection domains", host.close_memory())?;
        }
        Ok(())
    }
    fn check_shared_word(&self, n: usize, host: &Host) -> Checked<()> {
        let bytes = host.arena.read(host.shared_word.clone());
        let value = u64::from_le_bytes(*bytes.first_chunk().expect("a word has 8 bytes"));
        let (sure, posted) = (host.shared_seen.len() as u64, host.shared_posted);
        if (sure..=posted).contains(&value) {
            return Ok(());
        }
        Err(self.broken(format!(
            "the shared word of n{n} is {value} after {posted} additions, {sure} of them acknowledged"
        )))
    }

    /// Whether all that was to be done is done.
    pub(super) fn is_finished(&self) -> bool {
        self.chaos.is_empty()
            && self.undo.is_empty()
            && self.managers.is_finished()
            && self.ends.iter().all(End::is_idle)
            && self.conns.iter().all(|c| c.reconnect_at.is_none() && (c.closed || c.close_at.is_none()))
            && self.conns.iter().all(|c| c.closed || c.ends.iter().all(|e| self.ends[*e].life == Life::Up))
    }
    /// What is still outstanding, for a report.
    pub(super) fn outstanding(&self) -> String {
        let mut out = self.managers.outstanding();
        for e in &self.ends {
            if e.is_idle() {
                continue;
            }
            let plan = &self.plan.conns[e.conn];
            out.push_str(&format!(
                "\n  {:?} qp {} of n{} ({:?}{}): {} requests outstanding, the oldest signalled one {:x?}, {} to post, \
                 {} receive requests posted, {} messages arrived; timeout {:?}, retry_cnt {}, rnr_retry {}, mtu {:?}",
                plan.kind,
                e.qpn,
                e.host,
                e.life,
                if e.drain.is_some() { ", draining" } else { "" },
                e.sq.len(),
                e.sq.oldest_signaled(),
                e.left,
                e.rq.len(),
                e.stream.count(),
                plan.timeout.duration(),
                plan.retry_cnt,
                plan.rnr_retry,
                plan.mtu,
            ));
        }
        out
    }
}
