//! Triggered operations, which wait for a count.

use std::time::Duration;

use hca_core::Instant;
use portals::v4::{AckReq, CtEvent, CtHandle, Event, Md, MdHandle, MdOptions, NiFail, Put};

use crate::host::{LOG, MD_OF_SET, MD_PLAIN, NO_GETS, Role, WINDOW};
use crate::ops::{Kind, Op};
use crate::world::{Checked, World};

/// Operations that wait for one count, asked for while it was 0.
pub(crate) struct Set {
    pub(crate) host: usize,
    pub(crate) incarnation: u32,
    /// What they wait for, and what counts acknowledgements into it.
    ct: CtHandle,
    md: MdHandle,
    /// What is counted up when the first is, and what is set when it is.
    up: CtHandle,
    set: CtHandle,
    ups: Vec<u64>,
    sets: Vec<u64>,
    /// Thresholds and operations, in the order of the calls.
    waiting: Vec<(u64, usize)>,
    /// The last that was sent.
    last: Option<(u64, usize)>,
    /// What the count is to become, what it is by what was begun, and when the next is due.
    pub(crate) end: u64,
    pub(crate) begun: u64,
    pub(crate) due: Instant,
    /// By acknowledgements of an other process; otherwise by calls.
    by: Option<usize>,
    dst: usize,
}

impl World {
    pub(crate) fn begin_set(&mut self, h: usize) -> Checked<()> {
        let nodes = self.plan.nodes as u64;
        let dst = self.rng.below(nodes) as usize;
        let by = self.rng.chance(0.5).then(|| self.rng.below(nodes) as usize);
        let end = self.rng.between(1, 6);
        let now = self.now();
        let host = self.host(h);
        let incarnation = host.incarnation;
        let [ct, up, set] = [(); 3].map(|()| host.ni.ct_alloc().unwrap());
        let options = MdOptions::EVENT_CT_ACK;
        let md = Md { options, eq: Some(host.eq), ct: Some(ct), ..Md::new(&host.payload.memory) };
        let md = host.ni.md_bind(&md).unwrap();
        self.sets.push(Set {
            host: h,
            incarnation,
            ct,
            md,
            up,
            set,
            ups: Vec::new(),
            sets: Vec::new(),
            waiting: Vec::new(),
            last: None,
            end,
            begun: 0,
            due: now,
            by,
            dst,
        });
        let which = self.sets.len() - 1;
        for _ in 0..self.rng.between(2, 10) {
            let threshold = self.rng.between(1, 8);
            match self.rng.below(6) {
                0 => self.wait_up(which, threshold),
                1 => self.wait_set(which, threshold),
                _ => self.wait_put(which, threshold)?,
            }
        }
        Ok(())
    }
    fn wait_up(&mut self, which: usize, threshold: u64) {
        let Set { host, ct, up, .. } = self.sets[which];
        let increment = CtEvent { success: 1, failure: 0 };
        self.host(host).ni.triggered_ct_inc(up, increment, ct, threshold).unwrap();
        self.sets[which].ups.push(threshold);
    }
    fn wait_set(&mut self, which: usize, threshold: u64) {
        let Set { host, ct, set, .. } = self.sets[which];
        let value = CtEvent { success: 100 + self.sets[which].sets.len() as u64, failure: 0 };
        self.host(host).ni.triggered_ct_set(set, value, ct, threshold).unwrap();
        self.sets[which].sets.push(threshold);
    }
    fn wait_put(&mut self, which: usize, threshold: u64) -> Checked<()> {
        let Set { host: h, ct, dst, end, .. } = self.sets[which];
        let len = self.rng.below(1 + self.plan.eager as u64) as usize;
        let op = self.op(Kind::Put, h, dst, LOG, 0, len);
        let op = Op { triggered: true, ..op };
        let target = self.process(dst);
        let index = self.ops.len();
        let host = self.host(h);
        let put = Put {
            ack_req: AckReq::Ack,
            match_bits: (index as u64) << 16,
            user_ptr: index as u64,
            hdr_data: !(index as u64),
            ..Put::new(host.mds[MD_PLAIN], len as u64, target, LOG)
        };
        if threshold <= end {
            host.counts[MD_PLAIN].expected += 2;
        }
        let begun = host.ni.triggered_put(&put, ct, threshold);
        // What is never reached is not to be waited for.
        let op = Op { gone: threshold > end, ..op };
        self.sets[which].waiting.push((threshold, index));
        self.begun(op, begun)
    }
    /// One more is counted.
    pub(crate) fn count_up(&mut self, which: usize) -> Checked<()> {
        let now = self.now();
        let Set { host: h, ct, md, by, .. } = self.sets[which];
        let wait = self.rng.up_to(Duration::from_micros(50));
        let set = &mut self.sets[which];
        set.begun += 1;
        set.due = now + wait;
        let Some(dst) = by else {
            let increment = CtEvent { success: 1, failure: 0 };
            self.host(h).ni.ct_inc(ct, increment).unwrap();
            return Ok(());
        };
        let op = Op { md: MD_OF_SET, ..self.op(Kind::Put, h, dst, WINDOW, NO_GETS, 0) };
        let index = self.ops.len();
        let target = self.process(dst);
        let host = self.host(h);
        let put = Put {
            ack_req: AckReq::Ack,
            match_bits: NO_GETS | (index as u64) << 16,
            user_ptr: index as u64,
            hdr_data: !(index as u64),
            ..Put::new(md, 0, target, WINDOW)
        };
        let begun = host.ni.put(&put);
        self.begun(op, begun)
    }
    /// An operation was sent: had its count been reached, and was it its turn?
    pub(crate) fn fired(&mut self, h: usize, index: usize, fail: NiFail) -> Checked<()> {
        if !self.ops[index].triggered {
            return Ok(());
        }
        let which = self.sets.iter().position(|set| set.waiting.iter().any(|w| w.1 == index));
        let set = &self.sets[which.expect("it is of a set")];
        let &now = set.waiting.iter().find(|w| w.1 == index).expect("it was found");
        let (last, ct) = (set.last, set.ct);
        let count = self.host(h).ni.ct_get(ct).unwrap();
        if count.success + count.failure < now.0 {
            return Err(self.broken(format!("operation {index} did not wait for {}: {count:?}", now.0)));
        }
        // Those that fail together are told in any order.
        if fail != NiFail::Ok {
            return Ok(());
        }
        if last.is_some_and(|last| last > now) {
            return Err(self.broken(format!("operation {index}, {now:?}, was sent behind {last:?}")));
        }
        self.sets[which.expect("it was found")].last = Some(now);
        self.report.fired += 1;
        Ok(())
    }
    /// One of them has come.
    pub(crate) fn logged(&mut self, h: usize, index: usize, event: &Event) -> Checked<()> {
        let op = &self.ops[index];
        if !op.triggered || op.pt != LOG || Role::from_word(event.user_ptr) != Some(Role::Log) {
            return Err(self.broken(format!("n{h}: {event:?} is no log")));
        }
        let count = &mut self.host(h).log.1;
        count.expected += 1;
        count.failed += u64::from(!event.is_ok());
        Ok(())
    }
    pub(crate) fn is_set_live(&self, which: usize) -> bool {
        let set = &self.sets[which];
        self.hosts[set.host].as_ref().is_some_and(|host| host.incarnation == set.incarnation)
    }
    /// All counts are as they are to be, and nothing else waits.
    pub(crate) fn end_set(&mut self, which: usize) -> Checked<()> {
        if !self.is_set_live(which) {
            return Ok(());
        }
        let set = &self.sets[which];
        let end = set.end;
        let ups = set.ups.iter().filter(|&&t| t <= end).count() as u64;
        // The last by threshold, then by call.
        let value = (0..set.sets.len()).filter(|&i| set.sets[i] <= end).max_by_key(|&i| (set.sets[i], i));
        let value = value.map_or(0, |i| 100 + i as u64);
        let waits =
            set.waiting.iter().map(|w| w.0).chain(set.ups.iter().copied()).chain(set.sets.iter().copied());
        let waits = waits.filter(|&t| t > end).count() as u32;
        let (ct, up, to, md) = (set.ct, set.up, set.set, set.md);
        let ni = &self.hosts[set.host].as_ref().expect("it is live").ni;
        let [count, up_now, set_now] = [ct, up, to].map(|ct| ni.ct_get(ct).unwrap());
        let cancelled = ni.ct_cancel_triggered(ct).unwrap();
        let right = count.success + count.failure == end
            && (up_now.success, set_now.success) == (ups, value)
            && cancelled == waits;
        if !right {
            return Err(self.broken(format!(
                "n{}: counts {count:?}, {up_now:?}, {set_now:?}, {cancelled} wait; wanted {end}, {ups}, {value}, {waits}",
                set.host
            )));
        }
        ni.md_release(md).map_err(|e| self.broken(format!("a descriptor of a set: {e}")))?;
        [ct, up, to].into_iter().try_for_each(|ct| ni.ct_free(ct)).map_err(|e| self.broken(e.to_string()))
    }
}
