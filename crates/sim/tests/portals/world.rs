//! The world of a run: all processes, their operations under way, and the present faults.

use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hca_core::Instant;
use hca_sim::{Rng, Sim, Step, Violation};
use portals::Listed;
use portals::v4::NiFail;

use crate::Report;
use crate::host::{BOX, Cards, Host, payload_bytes};
use crate::ops::Op;
use crate::plan::{Chaos, Plan};
use crate::trigger::Set;

pub(crate) type Checked<T> = Result<T, Violation>;

/// How long after a fault has ended connections may still fail of it: the transport's retries, the keepalive, and
/// a new connection that is in vain.
pub(crate) const GRACE: Duration = Duration::from_secs(15);

/// Something was broken, for these.
struct Fault {
    what: Chaos,
    begun: Instant,
    ended: Option<Instant>,
}

impl Fault {
    fn hits(&self, a: usize, b: usize) -> bool {
        match &self.what {
            &Chaos::Cut { from, to, .. } => [(from, to), (to, from)].contains(&(a, b)),
            Chaos::Partition { group, .. } => group.contains(&a) != group.contains(&b),
            Chaos::Stall { node, .. } | Chaos::Crash { node, .. } | Chaos::Leave { node, .. } => {
                [a, b].contains(node)
            }
        }
    }
    fn overlaps(&self, begun: Instant, now: Instant) -> bool {
        self.begun <= now && self.ended.is_none_or(|ended| begun <= ended + GRACE)
    }
}

pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) cards: Arc<Cards>,
    pub(crate) hosts: Vec<Option<Host>>,
    stalled: Vec<bool>,
    incarnations: Vec<u32>,
    /// Operations that each has still to begin, and when the next is due.
    left: Vec<u64>,
    due: Vec<Instant>,
    pub(crate) ops: Vec<Op>,
    pub(crate) sets: Vec<Set>,
    pub(crate) payloads: Rc<Vec<Vec<u8>>>,
    /// When, by whom, to whom, which portal.
    pub(crate) retries: Vec<(Instant, usize, usize, u32)>,
    faults: Vec<Fault>,
    /// What is begun from now on must end well.
    calm: Option<Instant>,
    undo: Vec<(Instant, usize)>,
    /// Connections from one to another that may be dead without anybody having noticed.
    suspect: Vec<Vec<bool>>,
    deaths: Vec<(usize, Instant)>,
    /// All has been begun.
    pub(crate) finishing: bool,
    /// Nothing is left to do.
    pub(crate) idle: bool,
    /// Nothing is to be done for a while.
    pub(crate) resting: bool,
    pub(crate) report: Report,
}

impl World {
    pub(crate) fn new(sim: &Sim, plan: Plan, mut rng: Rng) -> Self {
        let nodes = plan.nodes;
        let nodes_of_sim: Vec<_> = (0..nodes).map(|_| sim.add_node()).collect();
        let card = |context: &hca_verbs::Context| portals::Card {
            nid: portals::Nid(0),
            pid: portals::Pid(0),
            gid: context.port().gid,
            lid: context.port().lid,
            datagrams: hca_core::Qpn::new(0),
        };
        let cards = nodes_of_sim.iter().map(|node| card(&node.context())).collect();
        let cards = Arc::new(Mutex::new(Listed(cards)));
        let due = (0..nodes).map(|_| Instant::ZERO + rng.up_to(Duration::from_micros(20))).collect();
        let mut world = Self {
            sim: sim.clone(),
            cards,
            hosts: (0..nodes).map(|_| None).collect(),
            stalled: vec![false; nodes],
            incarnations: vec![0; nodes],
            left: vec![plan.ops; nodes],
            due,
            ops: Vec::new(),
            sets: Vec::new(),
            payloads: Rc::new(Vec::new()),
            retries: Vec::new(),
            faults: Vec::new(),
            calm: None,
            undo: Vec::new(),
            suspect: vec![vec![false; nodes]; nodes],
            deaths: Vec::new(),
            finishing: false,
            idle: false,
            resting: false,
            report: Report::default(),
            plan,
            rng,
        };
        for h in 0..nodes {
            world.open(h);
        }
        world
    }
    fn open(&mut self, h: usize) {
        self.incarnations[h] += 1;
        let index = self.payloads.len();
        let Self { sim, plan, cards, rng, .. } = self;
        let host = Host::open(sim, plan, h, self.incarnations[h], cards, index, rng);
        let mut bytes = vec![0; payload_bytes(&self.plan)];
        host.payload.memory.read_at(0, &mut bytes);
        Rc::make_mut(&mut self.payloads).push(bytes);
        self.hosts[h] = Some(host);
    }

    pub(crate) fn now(&self) -> Instant {
        self.sim.now()
    }
    pub(crate) fn sim_prints(&self) -> bool {
        std::env::var_os("HCA_SIM_TRACE").is_some()
    }
    pub(crate) fn broken(&self, what: impl Into<String>) -> Violation {
        self.sim.violation(what)
    }
    pub(crate) fn is_suspect(&self, src: usize, dst: usize) -> bool {
        self.suspect[src][dst]
    }
    /// Whether a fault may be why an operation could not be delivered.
    pub(crate) fn is_excused(&self, op: &Op, now: Instant) -> bool {
        op.suspect || self.is_recent(op, now)
    }
    /// Whether there is a fault while it was under way, or shortly before.
    pub(crate) fn is_recent(&self, op: &Op, now: Instant) -> bool {
        let hits = |fault: &Fault| fault.hits(op.src, op.dst) && fault.overlaps(op.begun, now);
        self.calm.is_none_or(|calm| op.begun < calm) && self.faults.iter().any(hits)
    }
    fn died(&self, h: usize, since: Instant) -> bool {
        self.deaths.iter().any(|&(n, at)| n == h && at >= since)
    }
    /// An operation ended: the connection is alive, or a new one.
    pub(crate) fn heard(&mut self, index: usize) {
        let (src, dst, begun) = (self.ops[index].src, self.ops[index].dst, self.ops[index].begun);
        let now = self.now();
        if !self.faults.iter().any(|fault| fault.hits(src, dst) && fault.overlaps(begun, now)) {
            self.suspect[src][dst] = false;
        }
    }

    /// What all programs do now; when they want to go on.
    pub(crate) fn step(&mut self, now: Instant) -> Checked<Step> {
        self.chaos(now)?;
        for h in 0..self.plan.nodes {
            if self.hosts[h].is_some() && !self.stalled[h] {
                self.act(h, now)?;
            }
        }
        self.retry(now)?;
        for which in 0..self.sets.len() {
            let set = &self.sets[which];
            if set.begun < set.end
                && set.due <= now
                && self.is_set_live(which)
                && !self.stalled[self.sets[which].host]
            {
                self.count_up(which)?;
            }
        }
        let finished = self.is_begun();
        self.finishing = finished;
        if self.idle {
            return Ok(Step::OnProgress);
        }
        if self.resting {
            return Ok(Step::After(Duration::from_secs(1)));
        }
        let sets = (0..self.sets.len()).filter(|&i| {
            let set = &self.sets[i];
            set.begun < set.end && self.is_set_live(i) && !self.stalled[set.host]
        });
        let sets = sets.map(|i| self.sets[i].due);
        let awake = (0..self.plan.nodes).filter(|&h| !self.stalled[h]);
        let looks = awake.filter_map(|h| self.hosts[h].as_ref()).map(|host| match self.plan.offload {
            true => host.looks_again.max(now + Duration::from_millis(5)),
            false => host.timers_at,
        });
        // Who stands still or calls nothing for a while goes on when it does.
        let calls = (0..self.plan.nodes).filter(|&h| self.hosts[h].is_some() && !self.stalled[h]);
        let calls = calls.filter_map(|h| {
            let host = self.hosts[h].as_ref().expect("it is up");
            let due = Some(self.due[h]).filter(|_| self.left[h] > 0);
            let due = due.into_iter().chain(host.flow_disabled).min()?;
            Some(if self.plan.offload { due.max(host.looks_again) } else { due })
        });
        let next = sets
            .chain(looks)
            .chain(calls)
            .chain(self.retries.iter().map(|r| r.0))
            .chain(self.undo.iter().map(|u| u.0))
            .chain(self.plan.chaos.first().map(|c| c.0))
            .min();
        let at = next.unwrap_or(now + Duration::from_millis(1));
        Ok(Step::After(at.since(now).max(Duration::from_nanos(100))))
    }
    fn act(&mut self, h: usize, now: Instant) -> Checked<()> {
        let (offload, nap) = (self.plan.offload, self.plan.nap);
        if offload && self.host(h).looks_again > now {
            return Ok(());
        }
        if offload && !nap.is_zero() {
            let nap = self.rng.up_to(nap);
            self.host(h).looks_again = now + nap;
        }
        if !offload && self.host(h).timers_at <= now {
            // A node looks for what is due now and then only.
            let host = self.host(h);
            host.timers_at = now + Duration::from_millis(5);
            for _ in 0..33 {
                host.node.progress();
            }
        }
        self.poll(h)?;
        let plan = self.plan.clone();
        if self.host(h).flow_disabled.is_some_and(|at| at <= now) {
            let host = self.host(h);
            host.refill_flow(&plan);
            host.flow_disabled = None;
            host.ni.pt_enable(crate::host::FLOW).map_err(|e| self.broken(format!("pt_enable: {e}")))?;
        }
        self.host(h).refill_overflow(&plan);
        self.bundle(h);
        while self.left[h] > 0 && self.due[h] <= now {
            self.left[h] -= 1;
            self.due[h] = now + plan.gap;
            if self.rng.chance(0.4) {
                self.post_receive(h);
            }
            if self.rng.chance(0.05) {
                self.begin_set(h)?;
            }
            if self.rng.chance(0.3) {
                self.host(h).refill_flow(&plan);
            }
            self.begin_any(h)?;
        }
        if self.host(h).bundle && (self.left[h] == 0 || self.rng.chance(0.7)) {
            let host = self.host(h);
            host.ni.end_bundle();
            host.bundle = false;
        }
        if self.finishing && self.rng.chance(0.1) || self.rng.chance(0.002) {
            self.host(h).search_all();
        }
        Ok(())
    }
    /// Some operations are begun in bundles, of which some end later.
    fn bundle(&mut self, h: usize) {
        let open = std::mem::replace(&mut self.host(h).bundle, false);
        if open {
            self.host(h).ni.end_bundle();
        }
        if self.left[h] > 0 && self.rng.chance(0.2) {
            let host = self.host(h);
            host.ni.start_bundle();
            host.bundle = true;
        }
    }
    fn post_receive(&mut self, h: usize) {
        let processes: Vec<_> = (0..self.plan.nodes).map(|n| self.process(n)).collect();
        let Self { hosts, plan, rng, .. } = self;
        let host = hosts[h].as_mut().expect("it is up");
        host.post_receive(plan, rng, |n| processes[n]);
    }
    fn retry(&mut self, now: Instant) -> Checked<()> {
        for (at, src, dst, pt) in std::mem::take(&mut self.retries) {
            if self.hosts[src].is_none() {
                continue;
            }
            if at > now || self.stalled[src] {
                self.retries.push((at.max(now + Duration::from_micros(50)), src, dst, pt));
            } else if pt == BOX {
                self.put_to_box(src, dst)?;
            } else {
                self.flow(src, dst)?;
            }
        }
        Ok(())
    }

    fn chaos(&mut self, now: Instant) -> Checked<()> {
        let mut due: Vec<usize> = self.undo.iter().filter(|u| u.0 <= now).map(|u| u.1).collect();
        self.undo.retain(|u| u.0 > now);
        due.sort_unstable();
        for fault in due {
            self.faults[fault].ended = Some(now);
            match self.faults[fault].what.clone() {
                Chaos::Cut { from, to, .. } => self.sim.net().heal(from, to),
                Chaos::Partition { group, .. } => self.sim.net().rejoin(&group),
                Chaos::Stall { node, .. } => {
                    self.stalled[node] = false;
                    self.sim.node(node).resume();
                }
                Chaos::Crash { node, .. } | Chaos::Leave { node, .. } => {
                    self.sim.node(node).restart();
                    self.open(node);
                }
            }
        }
        while self.plan.chaos.first().is_some_and(|c| c.0 <= now) {
            let (_, what) = self.plan.chaos.remove(0);
            if let Chaos::Stall { node, .. } | Chaos::Crash { node, .. } | Chaos::Leave { node, .. } = &what
                && (self.stalled[*node] || self.hosts[*node].is_none())
            {
                continue;
            }
            self.undo.push((now + what.lasts(), self.faults.len()));
            match what.clone() {
                Chaos::Cut { from, to, .. } => self.sim.net().cut(from, to),
                Chaos::Partition { group, .. } => self.sim.net().partition(&group),
                Chaos::Stall { node, .. } => {
                    self.sim.node(node).stall();
                    self.stalled[node] = true;
                }
                Chaos::Crash { node, .. } => {
                    self.poll(node)?;
                    self.die(node, true)?;
                }
                Chaos::Leave { node, .. } => {
                    self.poll(node)?;
                    self.die(node, false)?;
                }
            }
            self.report.faults += 1;
            let fault = Fault { what, begun: now, ended: None };
            for (src, dst) in (0..self.plan.nodes).flat_map(|a| (0..self.plan.nodes).map(move |b| (a, b))) {
                self.suspect[src][dst] |= fault.hits(src, dst);
            }
            self.faults.push(fault);
        }
        Ok(())
    }
    fn die(&mut self, h: usize, crash: bool) -> Checked<()> {
        let now = self.now();
        self.check_matching(h)?;
        if crash {
            self.sim.node(h).crash();
        }
        let host = self.hosts[h].take().expect("it lives");
        for op in self.ops.iter_mut().filter(|op| (op.src, op.incarnation) == (h, host.incarnation)) {
            op.gone = true;
        }
        self.retries.retain(|r| r.1 != h);
        self.deaths.push((h, now));
        drop(host);
        Ok(())
    }

    /// Whether all that is to be begun was.
    fn is_begun(&self) -> bool {
        let sets =
            (0..self.sets.len()).all(|i| !self.is_set_live(i) || self.sets[i].begun == self.sets[i].end);
        let left = (0..self.plan.nodes).all(|h| self.left[h] == 0);
        left && sets && self.plan.chaos.is_empty() && self.undo.is_empty() && self.retries.is_empty()
    }
    /// Whether all of it is over, as far as anybody is told.
    pub(crate) fn is_finished(&self) -> bool {
        self.is_begun()
            && self.ops.iter().all(Op::is_over)
            && self.hosts.iter().flatten().all(|host| {
                host.counts.iter().all(|count| {
                    let now = host.ni.ct_get(count.ct).unwrap();
                    now.success + now.failure >= count.expected
                })
            })
    }
    pub(crate) fn outstanding(&self) -> String {
        let mut out = String::new();
        for (i, op) in self.ops.iter().enumerate().filter(|(_, op)| !op.is_over()).take(10) {
            out.push_str(&format!("\n  {i}: {op:?}"));
        }
        for (h, host) in self.hosts.iter().enumerate() {
            let Some(host) = host else { continue };
            let counts: Vec<_> =
                host.counts.iter().map(|c| (host.ni.ct_get(c.ct).unwrap(), c.expected)).collect();
            out.push_str(&format!("\n  n{h}: {:?}, {counts:?}", host.node.holdings()));
        }
        let left = (&self.left, self.plan.chaos.len(), self.undo.len(), self.retries.len());
        out.push_str(&format!("\n  left {left:?}"));
        out
    }

    /// Messages of one process that may match the same entries do so in their order.
    fn check_matching(&self, h: usize) -> Checked<()> {
        let host = self.hosts[h].as_ref().expect("it is up");
        for (n, &(first, its)) in host.matched.iter().enumerate() {
            for &(second, others) in &host.matched[n + 1..] {
                // By the order in which they were sent.
                let ((a, a_entry), (b, b_entry)) = if first < second {
                    ((first, its), (second, others))
                } else {
                    ((second, others), (first, its))
                };
                let (a_op, b_op) = (&self.ops[a], &self.ops[b]);
                if (a_op.src, a_op.incarnation) != (b_op.src, b_op.incarnation) || b_entry >= a_entry {
                    continue;
                }
                let entry = &host.receives[b_entry];
                let fits = entry.from.is_none_or(|from| from == a_op.src)
                    && entry.tag.is_none_or(|tag| tag == a_op.tag);
                if fits {
                    return Err(self.broken(format!(
                        "n{h}: operation {a} went to entry {a_entry}, {b} behind it to {b_entry} before that one"
                    )));
                }
            }
        }
        Ok(())
    }

    /// A round between all, of which nothing may fail if `all_well`.
    pub(crate) fn probe(&mut self, all_well: bool, answers: bool) -> Checked<()> {
        if all_well {
            self.suspect.iter_mut().flatten().for_each(|suspect| *suspect = false);
            self.calm = Some(self.now());
        }
        let was_gone: Vec<_> = (0..self.plan.nodes).map(|h| self.incarnations[h] > 1).collect();
        for h in 0..self.plan.nodes {
            for dst in 0..self.plan.nodes {
                // Who has come again is found by the others, and does not speak first.
                if was_gone[h] && !was_gone[dst] && !answers {
                    continue;
                }
                let op = self.op(crate::ops::Kind::Put, h, dst, crate::host::WINDOW, crate::host::NO_GETS, 8);
                self.put(op)?;
            }
        }
        Ok(())
    }
    /// The network is quiet: takes what waits, and looks whether all is as it must be.
    pub(crate) fn end(&mut self) -> Checked<()> {
        for h in 0..self.plan.nodes {
            self.host(h).search_all();
            self.finishing = true;
            self.poll(h)?;
            self.check_matching(h)?;
        }
        for which in 0..self.sets.len() {
            self.end_set(which)?;
        }
        self.check_ops()?;
        for h in 0..self.plan.nodes {
            self.check_host(h)?;
        }
        for h in 0..self.plan.nodes {
            self.free(h)?;
        }
        Ok(())
    }
    fn check_ops(&self) -> Checked<()> {
        let now = self.now();
        for (i, op) in self.ops.iter().enumerate() {
            let broken = |what: &str| Err(self.broken(format!("operation {i} {what}: {op:?}")));
            if let Some(seen) = op.seen
                && seen.waits
                && !self.died(op.dst, op.begun)
            {
                return broken("was never found");
            }
            if op.gone {
                continue;
            }
            let delivered = op.seen.is_some_and(|seen| seen.fail == NiFail::Ok);
            match op.answered {
                Some((NiFail::Ok, mlength)) => {
                    // That its bytes were fetched may be lost with the connection.
                    let unheard = op.kind == crate::ops::Kind::Get
                        && op.len > self.plan.eager
                        && self.is_excused(op, now);
                    if !delivered && !unheard && !self.died(op.dst, op.begun) {
                        return broken("ended well and was never done");
                    }
                    if op.seen.is_some_and(|seen| seen.fail == NiFail::Ok && seen.mlength != mlength) {
                        return broken("moved a length here and another there");
                    }
                }
                Some((NiFail::Undeliverable, _)) => {}
                Some(_) if op.seen.is_some() => return broken("was refused and done"),
                Some(_) => {}
                None => {
                    let may_fail = op.expect != crate::ops::Expect::Ok
                        || self.is_excused(op, now)
                        || self.died(op.dst, op.begun);
                    if !delivered && !may_fail {
                        return broken("was never done");
                    }
                }
            }
        }
        Ok(())
    }
}
